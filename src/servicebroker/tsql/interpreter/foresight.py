"""What can be said of a statement before it runs: `tsql check` asks it of a script, CREATE PROCEDURE of its body.

Names of tables and columns are not looked up: they may come later.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields
from typing import NamedTuple, TypeVar

from servicebroker.engine.security.tsql_objects import Use, check_schemas
from servicebroker.model.errors import BrokerError
from servicebroker.tsql.context import MASTER
from servicebroker.tsql.interpreter.definitions.objects import check_definition
from servicebroker.tsql.interpreter.definitions.principals import check_permission
from servicebroker.tsql.interpreter.definitions.temporary_procedures import check_temporary
from servicebroker.tsql.interpreter.definitions.transport import check_alteration
from servicebroker.tsql.interpreter.machine import RUNNERS
from servicebroker.tsql.interpreter.procedures.session_functions import KNOWN
from servicebroker.tsql.interpreter.receiving import check_items
from servicebroker.tsql.interpreter.set_options import check_options
from servicebroker.tsql.postgres_errors import from_broker
from servicebroker.tsql.relational import TEMPORARY, translate, translate_expression
from servicebroker.tsql.scope import Scope, UserType
from servicebroker.tsql.statement_errors import TsqlError, no_condition, unsupported
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
from servicebroker.tsql.translation.documents.shared import UnknownColumns
from servicebroker.tsql.translation.values.expressions import CONDITION
from servicebroker.tsql.types import NVARCHAR, SqlType, parse_type, type_key

T = TypeVar("T")

# what no table, variable or type that comes later can mend
_NEVER = frozenset({102, 156, 174, 195, 4145, 40515})


# what refuses a call of a procedure of the system, by its name, for the constants that it is given
CALLS: dict[str, Callable[[Execute], None]] = {}


def system_name(procedure: Name | Variable) -> str:
    """What a procedure would be called in lower case if it came with the system; "" for one that cannot."""
    if isinstance(procedure, Variable) or procedure.schema.lower() not in ("", "sys", "dbo"):
        return ""
    return procedure.own.lower()


class Declared(NamedTuple):
    """What the statements of a batch or module have declared so far."""

    variables: dict[str, SqlType]
    tables: dict[str, str]
    types: MutableMapping[str, UserType]  # of the whole script
    used: list[str]  # the databases that it has named with USE

    def within(self, statement: Statement) -> Declared:
        """What holds inside a statement: a module has variables of its own."""
        if not isinstance(statement, Procedure | Function | Trigger):
            return self
        inner = self._replace(variables={}, tables=type(self.tables)())
        if isinstance(statement, Trigger):
            inner.tables.update({"inserted": "pg_temp.inserted", "deleted": "pg_temp.deleted"})
        return inner


class OtherTables(dict[str, str]):
    """The tables of a script that stands alone: a temporary one that it does not make is made by who calls it."""

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """What a table is called in PostgreSQL."""
        found = super().get(name, default)
        return f'pg_temp."{name}"' if found is None and name.startswith("#") else found


_OF_OTHERS = UserType(-1, NVARCHAR, "", True)


class OtherTypes(dict[str, UserType]):
    """The types of a script that stands alone: one that it does not make is made by another one."""

    def get(self, name: str, default: UserType | None = None) -> UserType | None:  # type: ignore[override]
        """What a name stands for; a text, and perhaps a table, for one that nobody knows."""
        return super().get(name, default) or _OF_OTHERS


def refuse_unrunnable(module: Procedure | Trigger, types: Mapping[str, UserType]) -> None:
    """Refuse to keep a module of which a statement can never run.

    What the parser refuses only when its turn comes, as DROP ASSEMBLY behind IF EXISTS, is left to that.

    Raises:
        TsqlError: of that statement, with its line.
    """
    made: dict[str, UserType] = {}
    declared = Declared({}, {}, ChainMap(made, types), [])  # type: ignore[arg-type] # only `made` is written
    for statement, known in _all_inside(module, declared.within(module)):
        if isinstance(statement, Unsupported):
            continue
        try:
            foresee(statement, known)
        except UnknownColumns:
            continue
        except BrokerError as refused:
            if refused.number in _NEVER:
                error = from_broker(refused)
                error.line, error.procedure = error.line or statement.line, module.name.own
                raise error from None


def _all_inside(statement: Statement, declared: Declared) -> Iterator[tuple[Statement, Declared]]:
    """The statement itself comes first: it declares its parameters."""
    yield statement, declared
    for inner in inside(statement):
        yield from _all_inside(inner, declared)


def foresee(statement: Statement, declared: Declared) -> None:
    """Refuse what never runs; what it declares is noted in `declared`.

    Raises:
        BrokerError: as the run does.
        UnknownColumns: only the database knows, as for a star over a table.
    """
    if isinstance(statement, Declarations | Unsupported):
        return
    if isinstance(statement, Procedure | Function):
        _declare_parameters(statement, declared)
    _refuse(statement, declared)
    if type(statement) not in RUNNERS:
        raise unsupported(type(statement).__name__, "There is nothing like it here.", statement.line)
    _check_schema(statement)
    scope = Scope("master", declared.variables, declared.tables, dict.fromkeys(KNOWN), user_types=declared.types)
    if isinstance(statement, DeclareVariable):
        made = _made_type(statement.type, declared)
        if made is not None and (made.of is None or made is _OF_OTHERS):
            declared.tables[statement.name] = f'pg_temp."{statement.name}"'
        if made is None or made.of is not None:
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
        temporary = TEMPORARY.search(statement.text)
        if temporary:
            name = (temporary[1] or temporary[2]).lower()
            declared.tables[name] = f'pg_temp."{name}"'
    elif isinstance(statement, InsertExecute):
        return
    elif isinstance(statement, Receive):
        check_items(statement, scope)
    for expression in _parts(statement, Expression):
        done = translate_expression(expression.text, scope)
        if isinstance(statement, If | While) and done.types != (CONDITION,):
            raise no_condition(expression.text)


def _refuse(statement: Statement, declared: Declared) -> None:
    """What the run refuses by the text alone."""
    if isinstance(statement, Definition):
        check_definition(statement)
        if (statement.verb, statement.kind) == ("ALTER", "CERTIFICATE") and declared.used[-1:] == [MASTER]:
            check_alteration(statement)
    elif isinstance(statement, SetOption):
        check_options(statement)
    elif isinstance(statement, Permission):
        check_permission(statement)
    elif isinstance(statement, Procedure | Trigger):
        check_module(statement)
    elif isinstance(statement, UseDatabase):
        declared.used.append(statement.database.lower())
    elif isinstance(statement, Execute):
        called = system_name(statement.procedure)
        if called in CALLS:
            CALLS[called](statement)


def check_module(statement: Procedure | Trigger) -> None:
    """Refuse a module that never runs.

    Raises:
        TsqlError: 40515.
    """
    if isinstance(statement, Procedure):
        check_temporary(statement)
    elif statement.name.own.startswith("#"):
        raise unsupported("A temporary trigger", "Give it a name without #.", statement.line)


def _check_schema(statement: Statement) -> None:
    """Raises: BrokerError: 2760, 3701 or 1088 what it names is in a schema of the system."""
    if isinstance(statement, Procedure | Function | Trigger):
        kind = type(statement).__name__.upper()
    elif isinstance(statement, Definition) and statement.kind in ("QUEUE", "TYPE") and statement.verb == "CREATE":
        kind = statement.kind
    else:
        return
    check_schemas([Use(f"CREATE {kind}", statement.name.schema or "dbo", statement.name.own)])


def _declare_parameters(statement: Procedure | Function, declared: Declared) -> None:
    for parameter in statement.parameters:
        if parameter.read_only:
            declared.tables[parameter.name] = f'pg_temp."{parameter.name}"'
        else:
            declared.variables[parameter.name] = _type(parameter.type, declared)


def _type(text: str, declared: Declared) -> SqlType:
    made = _made_type(text, declared)
    return parse_type(text) if made is None or made.of is None else made.of


def _made_type(text: str, declared: Declared) -> UserType | None:
    """What CREATE TYPE has made of a name that is no type of the system."""
    try:
        parse_type(text)
    except TsqlError as unknown:
        key = type_key(text) if unknown.number == 2715 else None
        return declared.types.get(key) if key is not None else None
    return None


def _declare_type(statement: Definition, declared: Declared, scope: Scope) -> None:
    clauses = statement.clauses
    of = None
    if "columns" in clauses:
        translate(f"CREATE TABLE #checked {clauses['columns']}", scope)
    else:
        of = parse_type(clauses["type"])
    key = f"{statement.name.schema or 'dbo'}.{statement.name.own}".lower()
    declared.types[key] = UserType(0, of, clauses.get("columns", ""), clauses.get("is_nullable", True))


def inside(statement: Statement) -> Iterator[Statement]:
    """The statements that one is made of."""
    return _parts(statement, Statement)


def _parts(statement: Statement, kind: type[T]) -> Iterator[T]:
    for one in fields(statement):
        value = getattr(statement, one.name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, kind):
                yield each
