"""CREATE TYPE and DROP TYPE; variables and parameters of table types."""

from __future__ import annotations

from servicebroker.engine.security.tsql_objects import authorize_type
from servicebroker.model.faces import face, telling
from servicebroker.model.zero_character import from_postgres
from servicebroker.store.running import fetch
from servicebroker.tsql.context import SessionDatabase, database_of
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.frame import Frame
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.relational import translate
from servicebroker.tsql.scope import UserType
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import DeclareVariable, Definition, Name, Operand, Parameter, Procedure, Variable
from servicebroker.tsql.types import parse_type, type_key


def _table_type(machine: Machine, text: str) -> UserType | None:
    """The table type of that name; None where there is none."""
    key = type_key(text)
    found = None if key is None else machine.queries.user_types.get(key)
    return found if found is not None and found.of is None else None


def declare_table(machine: Machine, statement: DeclareVariable) -> bool:
    """DECLARE @name of a table type; False when its type is none."""
    of = _table_type(machine, statement.type)
    if of is None:
        return False
    if statement.value is not None:
        raise TsqlError(206, f"Operand type clash: a value is incompatible with {statement.type}. Use INSERT.", state=2)
    _make(machine, machine.frame, statement.name, of)
    return True


def _make(machine: Machine, frame: Frame, name: str, of: UserType) -> None:
    machine.queries.declare_table(frame, name, of.columns)
    frame.row_types[name] = of.number


def check_parameter(machine: Machine, parameter: Parameter) -> None:
    """That the type of a procedure's parameter is there, and is a table type when it is READONLY.

    Raises:
        TsqlError: 2715 there is no such type, 346 and 352 READONLY stands where it must not, or does not where it must.
    """
    if parameter.read_only:
        if _table_type(machine, parameter.type) is None:
            machine.type_named(parameter.type)
            raise TsqlError(
                346, f'The parameter "{parameter.name}" can not be declared READONLY since it is not a table-valued '
                "parameter."
            )  # fmt: skip
    elif _table_type(machine, parameter.type) is not None:
        raise TsqlError(
            352, f'The table-valued parameter "{parameter.name}" must be declared with the READONLY option.'
        )
    else:
        machine.type_named(parameter.type)


def lend(machine: Machine, frame: Frame, parameter: Parameter, given: Operand | None) -> None:
    """A table-valued parameter is the caller's table, which the procedure reads; without one it is empty.

    Raises:
        TsqlError: 206 what is given is no table of that type, 137 it was not declared, 2715 the type is gone.
    """
    of = _table_type(machine, parameter.type)
    if of is None:
        raise TsqlError(2715, f"Parameter {parameter.name}: Cannot find data type {parameter.type}.", state=3)
    caller = machine.frame
    if given is None:
        _make(machine, frame, parameter.name, of)
        return
    kind = "a value"
    if isinstance(given, Variable):
        if caller.row_types.get(given.name) == of.number:
            frame.tables[parameter.name] = caller.tables[given.name]
            frame.row_types[parameter.name] = of.number
            frame.lent.add(parameter.name)
            return
        kind = "table" if given.name in caller.tables else str(caller.type_of(given.name))
    raise TsqlError(206, f"Operand type clash: {kind} is incompatible with {parameter.type}.", state=2)


# ---------------------------------------------------------------- CREATE, DROP


def _may(machine: Machine, statement: Definition) -> SessionDatabase:
    """Raises: BrokerError: 262 or 2760 the user may not create it, 218 nor drop it."""
    machine.transactions.check()
    database, name = database_of(machine, statement.name), statement.name
    machine.context.ask(authorize_type(database.user, f"{statement.verb} TYPE", name.schema or "dbo", str(name)))
    return database


@defines("CREATE", "TYPE")
def _create(machine: Machine, statement: Definition) -> None:
    """Raises: TsqlError: 219 there is one; what is wrong with its columns or the type that it names."""
    database = _may(machine, statement)
    clauses, name = dict(statement.clauses), statement.name
    is_table = "columns" in clauses
    if is_table:
        scope = machine.queries.scope()
        scope.tables = {"#type": 'pg_temp."tsql_type"'}
        made = translate(f"CREATE TABLE #type {clauses['columns']}", scope)
        machine.queries.define(f'{made.sql}; drop table pg_temp."tsql_type"')
    else:
        clauses = clauses | {"type": str(parse_type(clauses["type"]))}
    schema = name.schema or "dbo"
    machine.transactions.guard()
    try:
        rows = fetch(
            machine.connection,
            "user_types.create",
            "insert into servicebroker.tsql_types (database_id, schema_name, name, is_table, definition, is_nullable) "
            f"values ($1, $2, $3, $4, $5, $6) on conflict do nothing returning {telling(7)}",
            (database.database_id, schema, name.own, is_table, clauses["columns" if is_table else "type"],
             clauses.get("is_nullable", True), database.user.name, face()),
        )  # fmt: skip
        if not rows:
            raise TsqlError(
                219, f"The type '{name}' already exists, or you do not have permission to create it.", state=1
            )
    except BaseException:
        machine.transactions.undo()
        raise
    machine.queries.user_types.forget()


@defines("DROP", "TYPE")
def _drop(machine: Machine, statement: Definition) -> None:
    """Raises: TsqlError: 218 there is none, 3732 a procedure has a parameter of it."""
    database = _may(machine, statement)
    name, schema = statement.name, statement.name.schema or "dbo"
    user = _procedure_with(machine, database, schema, name)
    if user is not None:
        raise TsqlError(
            3732, f"Cannot drop type '{name}' because it is being referenced by object '{user}'. "
            "There may be other objects that reference this type."
        )  # fmt: skip
    rows = fetch(
        machine.connection,
        "user_types.drop",
        "delete from servicebroker.tsql_types where database_id = $1 and lower(schema_name) = lower($2) "
        f"and lower(name) = lower($3) returning {telling(4)}",
        (database.database_id, schema, name.own, database.user.name, face()),
    )
    if not rows and not statement.if_exists:
        raise TsqlError(
            218,
            f"Could not find the type '{name}'. Either it does not exist or you do not have the necessary permission.",
        )
    machine.queries.user_types.forget()


def _procedure_with(machine: Machine, database: SessionDatabase, schema: str, name: Name) -> str | None:
    """A procedure with a parameter of the type."""
    key = f"{schema}.{name.own}".lower()
    rows = fetch(
        machine.connection,
        "user_types.procedure_with",
        "select name, definition from servicebroker.tsql_modules where database_id = $1 and kind = 'P' "
        "and position(lower($2) in lower(definition)) > 0",
        (database.database_id, name.own),
    )
    for own, text in rows:
        (procedure,) = parse_text(from_postgres(text))
        if isinstance(procedure, Procedure) and any(type_key(one.type) == key for one in procedure.parameters):
            return str(own)
    return None
