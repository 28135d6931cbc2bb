"""`servicebroker tsql check`: what of a script runs here, what differs, and what does not, statement by statement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields
from enum import StrEnum
from typing import NamedTuple

from servicebroker.engine.security.tsql_objects import Use as SchemaUse
from servicebroker.engine.security.tsql_objects import check_schemas
from servicebroker.model.domain import check_account
from servicebroker.model.errors import BrokerError
from servicebroker.tsql.context import MASTER
from servicebroker.tsql.interpreter.applocks import check_constants
from servicebroker.tsql.interpreter.machine import RUNNERS
from servicebroker.tsql.interpreter.modules import check_module
from servicebroker.tsql.interpreter.objects import OPTIONS, check_definition
from servicebroker.tsql.interpreter.principals import asked_by_nothing, check_permission
from servicebroker.tsql.interpreter.queries import TEMPORARY
from servicebroker.tsql.interpreter.session_functions import KNOWN
from servicebroker.tsql.interpreter.set_options import ALWAYS_OFF, ALWAYS_ON, WITHOUT_EFFECT, check_options
from servicebroker.tsql.interpreter.transport import check_alteration
from servicebroker.tsql.parser import parse, parse_apart
from servicebroker.tsql.relational import translate, translate_expression
from servicebroker.tsql.scope import Scope, UserType
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import (
    Declarations,
    DeclareTable,
    DeclareVariable,
    Definition,
    Execute,
    ExecuteText,
    Expression,
    Function,
    InsertExecute,
    NoEffect,
    Permission,
    Procedure,
    Relational,
    SetOption,
    Statement,
    Trigger,
    Unsupported,
    Use,
)
from servicebroker.tsql.tokens import END, STRING, Batch, batches, string_value, tokenize
from servicebroker.tsql.translation.definitions.function_bodies import check_body
from servicebroker.tsql.translation.documents.shared import UnknownColumns
from servicebroker.tsql.types import SqlType, parse_type, type_key

_ = Session  # the module registers what runs each statement


class Verdict(StrEnum):
    """What becomes of a statement here."""

    RUNS = "runs"
    DIFFERS = "differs"
    REFUSED = "does not run"


class Finding(NamedTuple):
    """One statement; `note` says what differs, or what to write instead."""

    line: int
    statement: str
    verdict: Verdict
    note: str = ""


class Declared(NamedTuple):
    """What the statements of a batch have declared so far."""

    variables: dict[str, SqlType]
    tables: dict[str, str]
    types: dict[str, UserType]  # of the whole script
    used: list[str]  # the databases that the script has named with USE


def check(script: str) -> Iterator[Finding]:
    """Judge each statement of a script without a database; names of tables and columns are not looked up."""
    known = Declared({}, {}, {}, [])
    try:
        for batch in batches(script):
            yield from _check_batch(batch, known)
    except TsqlError as error:
        yield _refused(error, "text")


def _check_batch(batch: Batch, known: Declared) -> Iterator[Finding]:
    try:
        statements = parse(batch.tokens, ())
    except TsqlError as error:
        yield from _check_apart(batch, error, known)
        return
    declared = known._replace(variables={}, tables={})
    for statement in statements:
        yield from _check(statement, declared)


def _check_apart(batch: Batch, error: TsqlError, known: Declared) -> Iterator[Finding]:
    """A batch that does not run: statement by statement, unless it is wrong as a whole."""
    parts = list(parse_apart(batch.tokens))
    numbers = {found.number for _, found in parts if isinstance(found, TsqlError)}
    if error.number not in numbers:
        yield _refused(error, "batch")
    if not numbers:
        return
    declared = known._replace(variables={}, tables={})
    for words, found in parts:
        if isinstance(found, TsqlError):
            yield _refused(found, words or "statement")
        else:
            for statement in found:
                yield from _check(statement, declared)


def _refused(error: BrokerError, statement: str, line: int = 0) -> Finding:
    return Finding(getattr(error, "line", 0) or line, statement, Verdict.REFUSED, f"{error.number}: {error.text}")


def _check(statement: Statement, declared: Declared) -> Iterator[Finding]:
    """The statement, then those inside it."""
    if isinstance(statement, Procedure | Function):
        declared = declared._replace(variables={}, tables={})
    elif isinstance(statement, Trigger):
        tables = {"inserted": "pg_temp.inserted", "deleted": "pg_temp.deleted"}
        declared = declared._replace(variables={}, tables=tables)
    if isinstance(statement, Declarations):
        for one in statement.made:
            with contextlib.suppress(BrokerError, UnknownColumns):  # which its DECLARE says
                _judged(one, declared)
        return
    title = title_of(statement)
    try:
        verdict, note = _judged(statement, declared)
        yield Finding(statement.line, title, verdict, note)
    except UnknownColumns:  # a star over a table: only the database knows its columns
        yield Finding(statement.line, title, Verdict.RUNS)
    except BrokerError as error:
        yield _refused(error, title, statement.line)
    if isinstance(statement, ExecuteText):
        yield from _check_text(statement, declared)
    for inner in _inside(statement):
        yield from _check(inner, declared)


def _check_text(statement: ExecuteText, declared: Declared) -> Iterator[Finding]:
    """What a text that stands there as it is says."""
    tokens = tokenize(statement.text.text)
    if tokens.kinds == [STRING, END]:
        inner = tokenize(string_value(tokens.text(0)))
        for found in _check_batch(Batch(inner), declared):
            yield found._replace(line=statement.line)


def _judged(statement: Statement, declared: Declared) -> tuple[Verdict, str]:
    if isinstance(statement, Unsupported):
        raise unsupported(statement.what, statement.instead, statement.line)
    if isinstance(statement, NoEffect):
        return Verdict.DIFFERS, f"{statement.what} changes nothing here."
    if isinstance(statement, Definition):
        check_definition(statement)
        if (statement.verb, statement.kind) == ("ALTER", "CERTIFICATE") and declared.used[-1:] == [MASTER]:
            check_alteration(statement)
    elif isinstance(statement, Use):
        declared.used.append(statement.database.lower())
    elif isinstance(statement, Execute) and str(statement.procedure).lower() == "sp_getapplock":
        check_constants(statement)
    elif isinstance(statement, Permission):
        check_permission(statement)
    elif isinstance(statement, Procedure | Trigger):
        check_module(statement)
    elif isinstance(statement, SetOption):
        check_options(statement)
    if type(statement) not in RUNNERS:
        return Verdict.REFUSED, "There is nothing like it here."
    _check_schema(statement)
    scope = Scope(
        "master", declared.variables, declared.tables, dict.fromkeys(KNOWN), user_types=declared.types
    )  # fmt: skip
    if isinstance(statement, Procedure | Function):
        for parameter in statement.parameters:
            if parameter.read_only:
                declared.tables[parameter.name] = f'pg_temp."{parameter.name}"'
            else:
                declared.variables[parameter.name] = _type(parameter.type, declared)
    if isinstance(statement, DeclareVariable):
        if _is_table(statement.type, declared):
            declared.tables[statement.name] = f'pg_temp."{statement.name}"'
        else:
            declared.variables.setdefault(statement.name, _type(statement.type, declared))
    elif isinstance(statement, Definition) and (statement.verb, statement.kind) == ("CREATE", "TYPE"):
        _declare_type(statement, declared, scope)
    elif isinstance(statement, DeclareTable):
        declared.tables[statement.name] = f'pg_temp."{statement.name}"'
        translate(f"CREATE TABLE #checked {statement.columns}", scope)
    elif isinstance(statement, Function):
        check_body(statement, scope)
    elif isinstance(statement, Relational):
        check_schemas(translate(statement.text, scope).uses)
        made = TEMPORARY.search(statement.text)
        if made:
            name = (made[1] or made[2]).lower()
            declared.tables[name] = f'pg_temp."{name}"'
    elif isinstance(statement, InsertExecute):
        return Verdict.RUNS, ""
    for expression in _expressions(statement):
        translate_expression(expression.text, scope)
    return _difference(statement)


def _check_schema(statement: Statement) -> None:
    """Raises: BrokerError: 2760, 3701 or 1088 what it names is in a schema of the system."""
    if isinstance(statement, Procedure | Function | Trigger):
        check_schemas([SchemaUse(f"CREATE {title_of(statement)}", statement.name.schema or "dbo", statement.name.own)])
    elif isinstance(statement, Definition) and statement.kind in ("QUEUE", "TYPE") and statement.verb == "CREATE":
        check_schemas([SchemaUse(f"CREATE {statement.kind}", statement.name.schema or "dbo", statement.name.own)])


def _difference(statement: Statement) -> tuple[Verdict, str]:
    if isinstance(statement, SetOption) and set(statement.options) & (WITHOUT_EFFECT | ALWAYS_ON | ALWAYS_OFF):
        return Verdict.DIFFERS, "The option changes nothing here."
    if isinstance(statement, Permission):
        return _permission(statement)
    if isinstance(statement, Definition):
        ignored = [option for option in statement.clauses.get("ignored", ()) if option.split()[0] in OPTIONS]
        if ignored:
            return Verdict.DIFFERS, f"{', '.join(ignored)} changes nothing here."
        if statement.kind == "LOGIN" and statement.verb == "CREATE":
            return _login(statement)
        if statement.kind == "ENDPOINT" and "WINDOWS" in statement.clauses.get("authentication", "").split():
            return Verdict.DIFFERS, "WINDOWS is the domain of the instance; its protocols all mean the same."
    return Verdict.RUNS, ""


def _login(statement: Definition) -> tuple[Verdict, str]:
    if "windows" not in statement.clauses:
        return Verdict.DIFFERS, "Who may log in is PostgreSQL's to say; the login only has users."
    try:
        check_account(statement.name.own)
    except BrokerError as refused:
        return Verdict.REFUSED, f"{refused.number}: {refused.text}"
    return Verdict.DIFFERS, "It is a member of the domain of the instance, to be granted CONNECT ON ENDPOINT."


def _permission(statement: Permission) -> tuple[Verdict, str]:
    nothing = [one for one in statement.permissions if asked_by_nothing(statement.kind, one)]
    if not nothing:
        return Verdict.RUNS, ""
    return Verdict.DIFFERS, f"Nothing here asks for {', '.join(nothing)}: it is not kept."


def _type(text: str, declared: Declared) -> SqlType:
    made = declared.types.get(type_key(text) or "")
    return parse_type(text) if made is None or made.of is None else made.of


def _is_table(text: str, declared: Declared) -> bool:
    made = declared.types.get(type_key(text) or "")
    return made is not None and made.of is None


def _declare_type(statement: Definition, declared: Declared, scope: Scope) -> None:
    clauses = statement.clauses
    of = None
    if "columns" in clauses:
        translate(f"CREATE TABLE #checked {clauses['columns']}", scope)
    else:
        of = parse_type(clauses["type"])
    key = f"{statement.name.schema or 'dbo'}.{statement.name.own}".lower()
    declared.types[key] = UserType(0, of, clauses.get("columns", ""), clauses.get("is_nullable", True))


def _expressions(statement: Statement) -> Iterator[Expression]:
    for one in fields(statement):
        value = getattr(statement, one.name)
        if isinstance(value, Expression):
            yield value
        elif isinstance(value, tuple):
            yield from (each for each in value if isinstance(each, Expression))


def _inside(statement: Statement) -> Iterator[Statement]:
    for one in fields(statement):
        value = getattr(statement, one.name)
        if isinstance(value, Statement):
            yield value
        elif isinstance(value, tuple):
            yield from (each for each in value if isinstance(each, Statement))


def title_of(statement: Statement) -> str:
    """What the report calls a statement: its words."""
    if isinstance(statement, Definition):
        return f"{statement.verb} {statement.kind}"
    if isinstance(statement, Relational | Permission):
        return statement.verb
    if isinstance(statement, Unsupported | NoEffect):
        return statement.what
    name = type(statement).__name__
    return "".join(" " + letter if letter.isupper() else letter for letter in name).strip().upper()
