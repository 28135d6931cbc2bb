"""`servicebroker tsql check`: reports for each statement of a script whether it runs, differs, or is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from servicebroker.model.errors import BrokerError
from servicebroker.model.event_types import RAISED_BY_NOTHING, events_of
from servicebroker.model.security.domain import check_account
from servicebroker.tsql.collations import ignores_accents
from servicebroker.tsql.date_texts import settings_of_language
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
from servicebroker.tsql.translation.definitions.object_definitions import LOST_OFFSETS
from servicebroker.tsql.translation.documents.document_options import UnknownColumns

_ = Session  # importing the session registers the runner of each statement


class Verdict(StrEnum):
    """The result of the check of a statement."""

    RUNS = "runs"
    DIFFERS = "differs"
    REFUSED = "does not run"


class Row(StrEnum):
    """The first words of a row in the table of differences of docs/reference/t-sql.md."""

    NONE = ""
    TUNING = "statements that tune SQL Server"
    OPTIONS = "SET of ANSI options"
    DATABASE = "ALTER DATABASE ... SET other options than the broker's"
    PERMISSIONS = "permissions that nothing here asks for"
    PASSWORDS = "passwords of logins"
    ACCOUNTS = "Windows accounts"
    AUTHENTICATION = "AUTHENTICATION = WINDOWS"
    COLLATIONS = "text is compared by the database's collation"
    OFFSETS = "datetime counts in 1/300 of a second"
    TRACED = "event notifications of what SQL Server traces"


class Finding(NamedTuple):
    """The result of the check of one statement.

    `note` describes the difference or the replacement. `row` is the row that describes it in the table of differences.
    """

    line: int
    statement: str
    verdict: Verdict
    note: str = ""
    row: Row = Row.NONE


def check(script: str) -> Iterator[Finding]:
    """Check each statement of a script without a database. Names of tables and columns are not looked up."""
    declared = DeclaredNames({}, AssumedTables(), AssumedTypes(), [])
    try:
        for batch in batches(script):
            yield from _check_batch(batch, declared._replace(variables={}))
            _remove_table_variables(declared)
    except TsqlError as error:
        yield _refused(error, "text")


def _check_batch(batch: Batch, declared: DeclaredNames) -> Iterator[Finding]:
    """Check the statements of one batch. The variables of `declared` are its parameters."""
    try:
        statements = parse(batch.tokens, declared.variables)
    except TsqlError as error:
        yield from _check_unparsed_batch(batch, error, declared)
        return
    for statement in statements:
        yield from _check(statement, declared)


def _check_unparsed_batch(batch: Batch, error: TsqlError, declared: DeclaredNames) -> Iterator[Finding]:
    """Check a batch that cannot be parsed as a whole, statement by statement."""
    parts = list(parse_piecewise(batch.tokens))
    numbers = {result.number for _, result in parts if isinstance(result, TsqlError)}
    if error.number not in numbers:
        yield _refused(error, "batch")
    if not numbers:
        return
    for words, result in parts:
        if isinstance(result, TsqlError):
            yield _refused(result, words or "statement")
        else:
            for statement in result:
                yield from _check(statement, declared)


def _remove_table_variables(script_names: DeclaredNames) -> None:
    """Remove the table variables at the end of a batch. Temporary tables stay."""
    for name in [name for name in script_names.tables if not name.startswith("#")]:
        del script_names.tables[name]


def _refused(error: BrokerError, statement: str, line: int = 0) -> Finding:
    """Build the finding of a statement that raises `error`."""
    if isinstance(error, TsqlError):
        line = error.at(line, "").line
    return Finding(line, statement, Verdict.REFUSED, f"{error.number}: {error.text}")


def _check(statement: Statement, declared: DeclaredNames) -> Iterator[Finding]:
    """Check a statement, then the statements inside it."""
    declared = declared.within(statement)
    if isinstance(statement, Declarations):
        for declaration in statement.declarations:
            with contextlib.suppress(BrokerError, UnknownColumns):  # reported at the DECLARE itself
                check_statement(declaration, declared)
        return
    title = title_of(statement)
    try:
        check_statement(statement, declared)
        yield Finding(statement.line, title, *_difference(statement))
    except UnknownColumns:  # a star over a table, whose columns only the database knows
        yield Finding(statement.line, title, Verdict.RUNS)
    except BrokerError as error:
        yield _refused(error, title, statement.line)
    if isinstance(statement, ExecuteText):
        yield from _check_text(statement, declared)
    for inner in statements_in(statement):
        yield from _check(inner, declared)


def _check_text(statement: ExecuteText, declared: DeclaredNames) -> Iterator[Finding]:
    """Check the dynamic SQL of EXEC ('...') if it is a single constant.

    It has its own variables, and can use the temporary tables of its caller.
    """
    tokens = tokenize(statement.text.text)
    if tokens.kinds != [STRING, END]:
        return
    try:
        batch = Batch(tokenize(string_value(tokens.text(0))))
    except TsqlError as error:
        yield _refused(error, "text")._replace(line=statement.line)
        return
    temporary = {name: table for name, table in declared.tables.items() if name.startswith("#")}
    inner = declared._replace(
        variables={}, tables=type(declared.tables)(temporary), used_databases=[*declared.used_databases]
    )
    for finding in _check_batch(batch, inner):
        yield finding._replace(line=statement.line)


def _difference(statement: Statement) -> tuple[Verdict, str, Row]:
    """Return the verdict on a statement that raised no error."""
    if isinstance(statement, Unsupported):
        raise unsupported(statement.feature, statement.alternative, statement.line)
    if isinstance(statement, NoEffect):
        return Verdict.DIFFERS, f"{statement.feature} changes nothing here.", Row.TUNING
    if isinstance(statement, SetOption) and set(statement.options) & (OPTIONS_WITHOUT_EFFECT | ALWAYS_ON | ALWAYS_OFF):
        return Verdict.DIFFERS, "The option changes nothing here.", Row.OPTIONS
    if isinstance(statement, SetOption) and statement.options == ("LANGUAGE",) and not _is_english(statement.value):
        note = "It sets the order of dates and the first day of a week. Names and messages stay English."
        return Verdict.DIFFERS, note, Row.OPTIONS
    if any(ignores_accents(name) for columns in _defined_columns(statement) for name in _collations(columns)):
        return Verdict.DIFFERS, "Accents count in comparisons, whatever the collation.", Row.COLLATIONS
    if any(_has_offset_column(columns) for columns in _defined_columns(statement)):
        return Verdict.DIFFERS, LOST_OFFSETS, Row.OFFSETS
    if isinstance(statement, Permission):
        return _check_permission(statement)
    if isinstance(statement, Definition):
        ignored = [option for option in statement.clauses.get("ignored", ()) if option.split()[0] in IGNORED_OPTIONS]
        if ignored:
            return Verdict.DIFFERS, f"{', '.join(ignored)} changes nothing here.", Row.DATABASE
        if (statement.keyword, statement.kind) == ("CREATE", "EVENT NOTIFICATION"):
            return _check_notification(statement)
        if statement.kind == "DATABASE" and statement.keyword != "DROP":
            return _check_collation(statement)
        if statement.kind == "LOGIN" and statement.keyword == "CREATE":
            return _check_login(statement)
        if statement.kind == "ENDPOINT" and "WINDOWS" in statement.clauses.get("authentication", "").split():
            note = "WINDOWS is the domain of the instance. NTLM, KERBEROS and NEGOTIATE mean the same."
            return Verdict.DIFFERS, note, Row.AUTHENTICATION
    return Verdict.RUNS, "", Row.NONE


def _is_english(language: str) -> bool:
    """Check whether a language has the English names of months and days. For a variable, this is unknown."""
    settings = settings_of_language(language.strip("'N[]"))
    return settings is not None and settings.language in ("us_english", "British")


def _defined_columns(statement: Statement) -> Iterator[str]:
    """Yield the column definitions of a statement as text."""
    if isinstance(statement, Relational) and statement.keyword in ("CREATE TABLE", "ALTER TABLE"):
        yield statement.text
    elif isinstance(statement, DeclareTable):
        yield statement.columns
    elif isinstance(statement, Definition) and (statement.keyword, statement.kind) == ("CREATE", "TYPE"):
        yield statement.clauses.get("columns", "")


def _collations(columns: str) -> Iterator[str]:
    """Yield the name of each collation in the definitions of columns."""
    tokens = tokenize(columns)
    for place, word in enumerate(tokens.words[:-2]):
        if word == "COLLATE":
            yield unquote(tokens.text(place + 1))


def _has_offset_column(columns: str) -> bool:
    """Check whether the definitions of columns name the type datetimeoffset."""
    tokens = tokenize(columns)
    names = (
        unquote(tokens.text(place)).lower() for place in range(len(tokens.words) - 1) if tokens.kinds[place] != STRING
    )
    return "datetimeoffset" in names


def _check_collation(statement: Definition) -> tuple[Verdict, str, Row]:
    """Return the verdict on the collation of CREATE and ALTER DATABASE."""
    collation = statement.clauses.get("collate")
    if statement.keyword == "CREATE" and not collation:
        note = "Strings are compared with their case. COLLATE with a _CI_ collation ignores it, as SQL Server does."
        return Verdict.DIFFERS, note, Row.COLLATIONS
    if collation and ignores_accents(collation):
        return Verdict.DIFFERS, "Accents count in comparisons, whatever the collation.", Row.COLLATIONS
    return Verdict.RUNS, "", Row.NONE


def _check_notification(statement: Definition) -> tuple[Verdict, str, Row]:
    """Return the verdict on CREATE EVENT NOTIFICATION.

    Raises:
        BrokerError: 1084 not an event, 1098 an event that cannot be raised for this target.
    """
    events = events_of(statement.clauses["events"], statement.clauses["on"])
    silent = [event for event in events if event in RAISED_BY_NOTHING]
    if not silent:
        return Verdict.RUNS, "", Row.NONE
    return Verdict.DIFFERS, f"These events are never raised: {', '.join(silent[:5])}.", Row.TRACED


def _check_login(statement: Definition) -> tuple[Verdict, str, Row]:
    """Return the verdict on CREATE LOGIN.

    Raises:
        BrokerError: 15407 the name is not a domain account.
    """
    if "from_windows" not in statement.clauses:
        return Verdict.DIFFERS, "PostgreSQL decides who may log in. The login only owns users.", Row.PASSWORDS
    check_account(statement.name.object)
    note = "The login is a member of the instance's domain. Grant it CONNECT ON ENDPOINT."
    return Verdict.DIFFERS, note, Row.ACCOUNTS


def _check_permission(statement: Permission) -> tuple[Verdict, str, Row]:
    """Return the verdict on GRANT, DENY or REVOKE."""
    unchecked = [
        permission for permission in statement.permissions if is_unchecked_permission(statement.kind, permission)
    ]
    if not unchecked:
        return Verdict.RUNS, "", Row.NONE
    return (
        Verdict.DIFFERS,
        f"The permission is never checked, and is not stored: {', '.join(unchecked)}: it is not kept.",
        Row.PERMISSIONS,
    )


def title_of(statement: Statement) -> str:
    """Return the words that the report shows for a statement."""
    if isinstance(statement, Definition):
        return f"{statement.keyword} {statement.kind}"
    if isinstance(statement, Relational | Permission):
        return statement.keyword
    if isinstance(statement, Unsupported | NoEffect):
        return statement.feature
    name = type(statement).__name__
    return "".join(" " + letter if letter.isupper() else letter for letter in name).strip().upper()
