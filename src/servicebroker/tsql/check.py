"""`servicebroker tsql check`: what of a script runs here, what differs, and what does not, statement by statement."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from servicebroker.model.errors import BrokerError
from servicebroker.model.event_types import RAISED_BY_NOTHING, events_of
from servicebroker.model.security.domain import check_account
from servicebroker.tsql.interpreter.definitions.objects import IGNORED_OPTIONS
from servicebroker.tsql.interpreter.definitions.principals import is_unchecked_permission
from servicebroker.tsql.interpreter.set_options import ALWAYS_OFF, ALWAYS_ON, OPTIONS_WITHOUT_EFFECT
from servicebroker.tsql.interpreter.static_checks import (
    AssumedTables,
    AssumedTypes,
    DeclaredNames,
    check_statement,
    statements_in,
)
from servicebroker.tsql.parser import parse, parse_piecewise
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import (
    Declarations,
    DeclareTable,
    Definition,
    ExecuteText,
    NoEffect,
    Permission,
    Relational,
    SetOption,
    Statement,
    Unsupported,
)
from servicebroker.tsql.tokens import END, STRING, Batch, batches, string_value, tokenize, unquote
from servicebroker.tsql.translation.documents.document_options import UnknownColumns

_ = Session  # the module registers what runs each statement


_INSENSITIVE_COLLATION = re.compile(r"\w+_(?:CI|AI)(?:_\w+)?", re.IGNORECASE)


class Verdict(StrEnum):
    """What becomes of a statement here."""

    RUNS = "runs"
    DIFFERS = "differs"
    REFUSED = "does not run"


class Row(StrEnum):
    """How rows of the table of differences begin, in docs/reference/t-sql.md."""

    NONE = ""
    TUNING = "what tunes SQL Server"
    OPTIONS = "SET of ANSI options"
    DATABASE = "ALTER DATABASE ... SET other options than the broker's"
    PERMISSIONS = "permissions that nothing here asks for"
    PASSWORDS = "passwords of logins"
    ACCOUNTS = "Windows accounts"
    AUTHENTICATION = "AUTHENTICATION = WINDOWS"
    COLLATIONS = "text is compared by the database's collation"
    TRACED = "event notifications of what SQL Server traces"


class Finding(NamedTuple):
    """One statement; `note` says what differs, or what to write instead; `row` where the differences have it."""

    line: int
    statement: str
    verdict: Verdict
    note: str = ""
    row: Row = Row.NONE


def check(script: str) -> Iterator[Finding]:
    """Judge each statement of a script without a database; names of tables and columns are not looked up."""
    known = DeclaredNames({}, AssumedTables(), AssumedTypes(), [])
    try:
        for batch in batches(script):
            yield from _check_batch(batch, known)
    except TsqlError as error:
        yield _refused(error, "text")


def _check_batch(batch: Batch, known: DeclaredNames) -> Iterator[Finding]:
    try:
        statements = parse(batch.tokens, ())
    except TsqlError as error:
        yield from _check_unparsed_batch(batch, error, known)
        return
    declared = known._replace(variables={})
    for statement in statements:
        yield from _check(statement, declared)
    _forget_variables(known)


def _check_unparsed_batch(batch: Batch, error: TsqlError, known: DeclaredNames) -> Iterator[Finding]:
    """A batch that does not run: statement by statement, unless it is wrong as a whole."""
    parts = list(parse_piecewise(batch.tokens))
    numbers = {found.number for _, found in parts if isinstance(found, TsqlError)}
    if error.number not in numbers:
        yield _refused(error, "batch")
    if not numbers:
        return
    declared = known._replace(variables={})
    for words, found in parts:
        if isinstance(found, TsqlError):
            yield _refused(found, words or "statement")
        else:
            for statement in found:
                yield from _check(statement, declared)
    _forget_variables(known)


def _forget_variables(known: DeclaredNames) -> None:
    """The batch is over: its table variables are gone, temporary tables stay."""
    for name in [name for name in known.tables if not name.startswith("#")]:
        del known.tables[name]


def _refused(error: BrokerError, statement: str, line: int = 0) -> Finding:
    return Finding(getattr(error, "line", 0) or line, statement, Verdict.REFUSED, f"{error.number}: {error.text}")


def _check(statement: Statement, declared: DeclaredNames) -> Iterator[Finding]:
    """The statement, then those inside it."""
    declared = declared.within(statement)
    if isinstance(statement, Declarations):
        for one in statement.made:
            with contextlib.suppress(BrokerError, UnknownColumns):  # which its DECLARE says
                check_statement(one, declared)
        return
    title = title_of(statement)
    try:
        check_statement(statement, declared)
        yield Finding(statement.line, title, *_difference(statement))
    except UnknownColumns:  # a star over a table: only the database knows its columns
        yield Finding(statement.line, title, Verdict.RUNS)
    except BrokerError as error:
        yield _refused(error, title, statement.line)
    if isinstance(statement, ExecuteText):
        yield from _check_text(statement, declared)
    for inner in statements_in(statement):
        yield from _check(inner, declared)


def _check_text(statement: ExecuteText, declared: DeclaredNames) -> Iterator[Finding]:
    """What a text that stands there as it is says."""
    tokens = tokenize(statement.text.text)
    if tokens.kinds == [STRING, END]:
        inner = Batch(tokenize(string_value(tokens.text(0))))
        for found in _check_batch(inner, declared):
            yield found._replace(line=statement.line)


def _difference(statement: Statement) -> tuple[Verdict, str, Row]:
    """What becomes of a statement that nothing refuses."""
    if isinstance(statement, Unsupported):
        raise unsupported(statement.feature, statement.alternative, statement.line)
    if isinstance(statement, NoEffect):
        return Verdict.DIFFERS, f"{statement.feature} changes nothing here.", Row.TUNING
    if isinstance(statement, SetOption) and set(statement.options) & (OPTIONS_WITHOUT_EFFECT | ALWAYS_ON | ALWAYS_OFF):
        return Verdict.DIFFERS, "The option changes nothing here.", Row.OPTIONS
    if any(_has_insensitive_collation(columns) for columns in _defined_columns(statement)):
        return Verdict.DIFFERS, "What the columns hold is compared by its characters.", Row.COLLATIONS
    if isinstance(statement, Permission):
        return _check_permission(statement)
    if isinstance(statement, Definition):
        ignored = [option for option in statement.clauses.get("ignored", ()) if option.split()[0] in IGNORED_OPTIONS]
        if ignored:
            return Verdict.DIFFERS, f"{', '.join(ignored)} changes nothing here.", Row.DATABASE
        if (statement.verb, statement.kind) == ("CREATE", "EVENT NOTIFICATION"):
            return _check_notification(statement)
        if statement.kind == "LOGIN" and statement.verb == "CREATE":
            return _check_login(statement)
        if statement.kind == "ENDPOINT" and "WINDOWS" in statement.clauses.get("authentication", "").split():
            said = "WINDOWS is the domain of the instance; its protocols all mean the same."
            return Verdict.DIFFERS, said, Row.AUTHENTICATION
    return Verdict.RUNS, "", Row.NONE


def _defined_columns(statement: Statement) -> Iterator[str]:
    """The text of the columns that a statement defines."""
    if isinstance(statement, Relational) and statement.verb in ("CREATE TABLE", "ALTER TABLE"):
        yield statement.text
    elif isinstance(statement, DeclareTable):
        yield statement.columns
    elif isinstance(statement, Definition) and (statement.verb, statement.kind) == ("CREATE", "TYPE"):
        yield statement.clauses.get("columns", "")


def _has_insensitive_collation(columns: str) -> bool:
    """Whether one has a collation in which letters of another case, or with an accent, are equal."""
    tokens = tokenize(columns)
    following = (unquote(tokens.text(place)) for place in range(1, len(tokens.words) - 1))
    return any(
        word == "COLLATE" and _INSENSITIVE_COLLATION.fullmatch(name)
        for word, name in zip(tokens.words, following, strict=False)
    )


def _check_notification(statement: Definition) -> tuple[Verdict, str, Row]:
    """Raises: BrokerError: 1084, 1098."""
    wanted = events_of(statement.clauses["events"], statement.clauses["on"])
    silent = [event for event in wanted if event in RAISED_BY_NOTHING]
    if not silent:
        return Verdict.RUNS, "", Row.NONE
    return Verdict.DIFFERS, f"Nothing here raises {', '.join(silent[:5])}.", Row.TRACED


def _check_login(statement: Definition) -> tuple[Verdict, str, Row]:
    """Raises: BrokerError: 15407 this is no account of a domain."""
    if "from_windows" not in statement.clauses:
        return Verdict.DIFFERS, "Who may log in is PostgreSQL's to say; the login only has users.", Row.PASSWORDS
    check_account(statement.name.own)
    said = "It is a member of the domain of the instance, to be granted CONNECT ON ENDPOINT."
    return Verdict.DIFFERS, said, Row.ACCOUNTS


def _check_permission(statement: Permission) -> tuple[Verdict, str, Row]:
    nothing = [one for one in statement.permissions if is_unchecked_permission(statement.kind, one)]
    if not nothing:
        return Verdict.RUNS, "", Row.NONE
    return Verdict.DIFFERS, f"Nothing here asks for {', '.join(nothing)}: it is not kept.", Row.PERMISSIONS


def title_of(statement: Statement) -> str:
    """What the report calls a statement: its words."""
    if isinstance(statement, Definition):
        return f"{statement.verb} {statement.kind}"
    if isinstance(statement, Relational | Permission):
        return statement.verb
    if isinstance(statement, Unsupported | NoEffect):
        return statement.feature
    name = type(statement).__name__
    return "".join(" " + letter if letter.isupper() else letter for letter in name).strip().upper()
