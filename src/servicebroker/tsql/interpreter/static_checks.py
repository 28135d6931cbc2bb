"""Checks of a statement before it runs: `tsql check` applies them to a script, CREATE PROCEDURE to its body.

Names of tables and columns are not looked up, because they may be created later.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from servicebroker.engine.security.tsql_objects import Use, check_schemas
from servicebroker.model.errors import BrokerError
from servicebroker.overriding import override
from servicebroker.tsql.context import MASTER
from servicebroker.tsql.interpreter.definitions.objects import check_definition
from servicebroker.tsql.interpreter.definitions.principals import check_permission
from servicebroker.tsql.interpreter.definitions.temporary_procedures import check_temporary
from servicebroker.tsql.interpreter.definitions.transport_certificates import check_alteration, parse_dates
from servicebroker.tsql.interpreter.machine import RUNNERS
from servicebroker.tsql.interpreter.procedures.session_functions import SESSION_FUNCTIONS
from servicebroker.tsql.interpreter.receive_list import check_item_expressions
from servicebroker.tsql.interpreter.set_options import check_options
from servicebroker.tsql.postgres_errors import from_broker
from servicebroker.tsql.scope import Scope, UserType
from servicebroker.tsql.statement_errors import TsqlError, condition_expected, unsupported
from servicebroker.tsql.syntax import (
    Declarations,
    DeclareTable,
    DeclareVariable,
    Definition,
    Execute,
    Expression,
    Function,
    If,
    InsertExecute,
    Name,
    Permission,
    Procedure,
    Receive,
    Relational,
    SetOption,
    Statement,
    Trigger,
    Unsupported,
    Variable,
    While,
)
from servicebroker.tsql.syntax import Use as UseDatabase
from servicebroker.tsql.translation.definitions.function_bodies import check_body
from servicebroker.tsql.translation.documents.document_options import UnknownColumns
from servicebroker.tsql.translation.values.expressions import CONDITION_TYPE
from servicebroker.tsql.translator import TEMPORARY, translate, translate_expression
from servicebroker.tsql.types import NVARCHAR, SqlType, parse_type, type_key

T = TypeVar("T")

# errors that stay, whatever tables and types are created later
_FINAL_ERRORS = frozenset({102, 156, 174, 195, 4145, 40515})


# checks of a call by its text alone, by the name of the system procedure
CALL_CHECKS: dict[str, Callable[[Execute], None]] = {}


def system_name(procedure: Name | Variable) -> str:
    """Return the name in lower case that a system procedure would have, "" for a name that cannot be one."""
    if isinstance(procedure, Variable) or procedure.schema.lower() not in ("", "sys", "dbo"):
        return ""
    return procedure.object.lower()


class DeclaredNames(NamedTuple):
    """The names that the statements of a batch or module have declared so far.

    Attributes:
        variables: the types of variables.
        tables: the quoted PostgreSQL names of table variables and temporary tables.
        types: the types of the whole script.
        used_databases: the databases of USE, in order.
    """

    variables: dict[str, SqlType]
    tables: dict[str, str]
    types: MutableMapping[str, UserType]
    used_databases: list[str]

    def within(self, statement: Statement) -> DeclaredNames:
        """Return the names that hold inside a statement. A module has its own variables and tables."""
        if not isinstance(statement, Procedure | Function | Trigger):
            return self
        inner = self._replace(variables={}, tables=type(self.tables)())
        if isinstance(statement, Trigger):
            inner.tables.update({"inserted": "pg_temp.inserted", "deleted": "pg_temp.deleted"})
        return inner


class AssumedTables(dict[str, str]):
    """The tables of a script that is checked alone. Every other temporary table is assumed to be the caller's."""

    @override
    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Return the PostgreSQL name of a table."""
        table = super().get(name, default)
        return f'pg_temp."{name}"' if table is None and name.startswith("#") else table


_ASSUMED_TYPE = UserType(-1, NVARCHAR, "", True)


class AssumedTypes(dict[str, UserType]):
    """The types of a script that is checked alone. Every other type is assumed to exist."""

    @override
    def get(self, name: str, default: UserType | None = None) -> UserType | None:  # type: ignore[override]
        """Return a type. An unknown name may be a text type or a table type."""
        return super().get(name, default) or _ASSUMED_TYPE


def check_module_body(module: Procedure | Trigger, types: Mapping[str, UserType]) -> None:
    """Refuse a module with a statement that can never run.

    A statement that the parser refuses only when it runs, such as DROP ASSEMBLY after IF EXISTS, is left alone.

    Raises:
        TsqlError: the error of that statement, with its line.
    """
    module_types: dict[str, UserType] = {}
    declared = DeclaredNames({}, {}, ChainMap(module_types, types), [])  # type: ignore[arg-type] # only `module_types` is written
    for statement, names in _walk(module, declared.within(module)):
        if isinstance(statement, Unsupported):
            continue
        try:
            check_statement(statement, names)
        except UnknownColumns:
            continue
        except BrokerError as error:
            if error.number in _FINAL_ERRORS:
                tsql_error = from_broker(error)
                tsql_error.at(statement.line, module.name.object).procedure = module.name.object
                raise tsql_error from None


def _walk(statement: Statement, declared: DeclaredNames) -> Iterator[tuple[Statement, DeclaredNames]]:
    """Yield a statement, then the statements inside it, which may use what it declares."""
    yield statement, declared
    for inner in statements_in(statement):
        yield from _walk(inner, declared)


def check_statement(statement: Statement, declared: DeclaredNames) -> None:
    """Refuse a statement that can never run. Add the names that it declares to `declared`.

    Raises:
        BrokerError: as the run does.
        UnknownColumns: only the database knows the columns, as for a star over a table.
    """
    if isinstance(statement, Declarations | Unsupported):
        return
    if isinstance(statement, Procedure | Function):
        _declare_parameters(statement, declared)
    _check_clauses(statement, declared)
    if type(statement) not in RUNNERS:
        raise unsupported(type(statement).__name__, "It has no counterpart here.", statement.line)
    _check_schema(statement)
    scope = Scope(
        "master", declared.variables, declared.tables, dict.fromkeys(SESSION_FUNCTIONS), user_types=declared.types
    )
    if isinstance(statement, DeclareVariable):
        user_type = _find_user_type(statement.type, declared)
        if user_type is not None and (user_type.of is None or user_type is _ASSUMED_TYPE):
            declared.tables[statement.name] = f'pg_temp."{statement.name}"'
        if user_type is None or user_type.of is not None:
            declared.variables.setdefault(statement.name, _resolve_type(statement.type, declared))
    elif isinstance(statement, Definition) and (statement.keyword, statement.kind) == ("CREATE", "TYPE"):
        _declare_type(statement, declared, scope)
    elif isinstance(statement, DeclareTable):
        declared.tables[statement.name] = f'pg_temp."{statement.name}"'
        translate(f"CREATE TABLE #checked {statement.columns}", scope)
    elif isinstance(statement, Function):
        check_body(statement, scope)
    elif isinstance(statement, Relational):
        check_schemas(translate(statement.text, scope).uses)
        temporary = TEMPORARY.search(statement.text)
        if temporary:
            name = (temporary[1] or temporary[2]).lower()
            declared.tables[name] = f'pg_temp."{name}"'
    elif isinstance(statement, InsertExecute):
        return
    elif isinstance(statement, Receive):
        check_item_expressions(statement, scope)
    for expression in _children(statement, Expression):
        translation = translate_expression(expression.text, scope)
        if isinstance(statement, If | While) and translation.types != (CONDITION_TYPE,):
            raise condition_expected(expression.text)


def _check_clauses(statement: Statement, declared: DeclaredNames) -> None:
    """Apply the checks that need only the text of the statement."""
    if isinstance(statement, Definition):
        check_definition(statement)
        if (statement.keyword, statement.kind) == ("ALTER", "CERTIFICATE") and declared.used_databases[-1:] == [MASTER]:
            check_alteration(statement)
        if (statement.keyword, statement.kind) == ("CREATE", "CERTIFICATE"):
            parse_dates(statement.clauses, datetime.now(UTC))
    elif isinstance(statement, SetOption):
        check_options(statement)
    elif isinstance(statement, Permission):
        check_permission(statement)
    elif isinstance(statement, Procedure | Trigger):
        check_module(statement)
    elif isinstance(statement, UseDatabase):
        declared.used_databases.append(statement.database.lower())
    elif isinstance(statement, Execute):
        called = system_name(statement.procedure)
        if called in CALL_CHECKS:
            CALL_CHECKS[called](statement)


def check_module(statement: Procedure | Trigger) -> None:
    """Refuse a module that never runs.

    Raises:
        TsqlError: 40515 a temporary procedure that is global or has EXECUTE AS, or a temporary trigger.
    """
    if isinstance(statement, Procedure):
        check_temporary(statement)
    elif statement.name.object.startswith("#"):
        raise unsupported("A temporary trigger", "Give it a name without #.", statement.line)


def _check_schema(statement: Statement) -> None:
    """Refuse a definition in a schema of the system.

    Raises:
        BrokerError: 2760, 3701 or 1088.
    """
    if isinstance(statement, Procedure | Function | Trigger):
        kind = type(statement).__name__.upper()
    elif isinstance(statement, Definition) and statement.kind in ("QUEUE", "TYPE") and statement.keyword == "CREATE":
        kind = statement.kind
    else:
        return
    check_schemas([Use(f"CREATE {kind}", statement.name.schema or "dbo", statement.name.object)])


def _declare_parameters(statement: Procedure | Function, declared: DeclaredNames) -> None:
    """Add the parameters to `declared` as variables, and READONLY parameters as tables."""
    for parameter in statement.parameters:
        if parameter.read_only:
            declared.tables[parameter.name] = f'pg_temp."{parameter.name}"'
        else:
            declared.variables[parameter.name] = _resolve_type(parameter.type, declared)


def _resolve_type(text: str, declared: DeclaredNames) -> SqlType:
    """Return the type that a declaration names, with names of CREATE TYPE resolved."""
    user_type = _find_user_type(text, declared)
    return parse_type(text) if user_type is None or user_type.of is None else user_type.of


def _find_user_type(text: str, declared: DeclaredNames) -> UserType | None:
    """Return the type that CREATE TYPE has defined; None for a system type and for an unknown name."""
    try:
        parse_type(text)
    except TsqlError as error:
        key = type_key(text) if error.number == 2715 else None
        return declared.types.get(key) if key is not None else None
    return None


def _declare_type(statement: Definition, declared: DeclaredNames, scope: Scope) -> None:
    """Check a CREATE TYPE, and add its type to `declared`."""
    clauses = statement.clauses
    base_type = None
    if "columns" in clauses:
        translate(f"CREATE TABLE #checked {clauses['columns']}", scope)
    else:
        base_type = parse_type(clauses["type"])
    key = f"{statement.name.schema or 'dbo'}.{statement.name.object}".lower()
    declared.types[key] = UserType(0, base_type, clauses.get("columns", ""), clauses.get("is_nullable", True))


def statements_in(statement: Statement) -> Iterator[Statement]:
    """Return the statements directly inside a statement."""
    return _children(statement, Statement)


def _children(statement: Statement, kind: type[T]) -> Iterator[T]:
    """Yield the values of one kind in the fields of a statement, and in its tuples."""
    for field in fields(statement):
        value = getattr(statement, field.name)
        for child in value if isinstance(value, tuple) else (value,):
            if isinstance(child, kind):
                yield child
