"""CREATE TYPE and DROP TYPE, and variables and parameters of table types."""

from __future__ import annotations

from servicebroker.engine.security.tsql_objects import authorize_type
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.zero_character import from_postgres
from servicebroker.store.running import fetch
from servicebroker.tsql.context import SessionDatabase, database_of
from servicebroker.tsql.interpreter.call_frame import CallFrame
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.scope import UserType
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import DeclareVariable, Definition, Name, Operand, Parameter, Procedure, Variable
from servicebroker.tsql.translator import translate
from servicebroker.tsql.types import parse_type, type_key


def _find_table_type(machine: Machine, text: str) -> UserType | None:
    """Return the table type of a name, None if the name is not a table type."""
    key = type_key(text)
    user_type = None if key is None else machine.queries.user_types.get(key)
    return user_type if user_type is not None and user_type.of is None else None


def declare_table_variable(machine: Machine, statement: DeclareVariable) -> bool:
    """Run DECLARE @name of a table type. Return False if the type is not a table type."""
    table_type = _find_table_type(machine, statement.type)
    if table_type is None:
        return False
    if statement.value is not None:
        raise TsqlError(206, f"Operand type clash: a value is incompatible with {statement.type}. Use INSERT.", state=2)
    _create_variable(machine, machine.frame, statement.name, table_type)
    return True


def _create_variable(machine: Machine, frame: CallFrame, name: str, table_type: UserType) -> None:
    machine.queries.declare_table(frame, name, table_type.columns)
    frame.table_type_ids[name] = table_type.number


def check_parameter(machine: Machine, parameter: Parameter) -> None:
    """Check that the type of a procedure's parameter exists, and that a table type is READONLY.

    Raises:
        TsqlError: 2715 there is no such type, 346 READONLY on another type, 352 a table type without READONLY.
    """
    if parameter.read_only:
        if _find_table_type(machine, parameter.type) is None:
            machine.resolve_type(parameter.type)
            raise TsqlError(
                346, f'The parameter "{parameter.name}" can not be declared READONLY since it is not a table-valued '
                "parameter."
            )  # fmt: skip
    elif _find_table_type(machine, parameter.type) is not None:
        raise TsqlError(
            352, f'The table-valued parameter "{parameter.name}" must be declared with the READONLY option.'
        )
    else:
        machine.resolve_type(parameter.type)


def bind_table_parameter(machine: Machine, frame: CallFrame, parameter: Parameter, argument: Operand | None) -> None:
    """Make the caller's table the value of a table-valued parameter. Without an argument the parameter is empty.

    Raises:
        TsqlError: 206 the argument is not a table of that type, 137 it was not declared, 2715 the type no longer
            exists.
    """
    table_type = _find_table_type(machine, parameter.type)
    if table_type is None:
        raise TsqlError(2715, f"Parameter {parameter.name}: Cannot find data type {parameter.type}.", state=3)
    caller = machine.frame
    if argument is None:
        _create_variable(machine, frame, parameter.name, table_type)
        return
    kind = "a value"
    if isinstance(argument, Variable):
        if caller.table_type_ids.get(argument.name) == table_type.number:
            frame.tables[parameter.name] = caller.tables[argument.name]
            frame.table_type_ids[parameter.name] = table_type.number
            frame.caller_tables.add(parameter.name)
            return
        kind = "table" if argument.name in caller.tables else str(caller.type_of(argument.name))
    raise TsqlError(206, f"Operand type clash: {kind} is incompatible with {parameter.type}.", state=2)


# ---------------------------------------------------------------- CREATE, DROP


def _authorize(machine: Machine, statement: Definition) -> SessionDatabase:
    """Check the permission for CREATE TYPE or DROP TYPE, and return the database of the type.

    Raises:
        BrokerError: 262 or 2760 the user may not create it, 218 nor drop it.
    """
    machine.transactions.check_not_doomed()
    database, name = database_of(machine, statement.name), statement.name
    machine.context.ask(authorize_type(database.user, f"{statement.keyword} TYPE", name.schema or "dbo", str(name)))
    return database


@defines("CREATE", "TYPE")
def _create(machine: Machine, statement: Definition) -> None:
    """Run CREATE TYPE.

    Raises:
        TsqlError: 219 the type exists; the errors of its columns or base type.
    """
    database = _authorize(machine, statement)
    clauses, name = dict(statement.clauses), statement.name
    is_table = "columns" in clauses
    if is_table:
        scope = machine.queries.scope()
        scope.tables = {"#type": 'pg_temp."tsql_type"'}
        translation = translate(f"CREATE TABLE #type {clauses['columns']}", scope)
        machine.queries.define(f'{translation.sql}; drop table pg_temp."tsql_type"')
    else:
        clauses = clauses | {"type": str(parse_type(clauses["type"]))}
    schema = name.schema or "dbo"
    machine.transactions.set_guard()
    try:
        rows = fetch(
            machine.connection,
            "user_types.create",
            "insert into servicebroker.tsql_types (database_id, schema_name, name, is_table, definition, is_nullable) "
            f"values ($1, $2, $3, $4, $5, $6) on conflict do nothing returning {audit_context_sql(7)}",
            (database.database_id, schema, name.object, is_table, clauses["columns" if is_table else "type"],
             clauses.get("is_nullable", True), database.user.name, client_kind()),
        )  # fmt: skip
        if not rows:
            raise TsqlError(
                219, f"The type '{name}' already exists, or you do not have permission to create it.", state=1
            )
    except BaseException:
        machine.transactions.undo_statement()
        raise
    machine.queries.user_types.invalidate()


@defines("DROP", "TYPE")
def _drop(machine: Machine, statement: Definition) -> None:
    """Run DROP TYPE.

    Raises:
        TsqlError: 218 the type does not exist, 3732 a procedure has a parameter of it.
    """
    database = _authorize(machine, statement)
    name, schema = statement.name, statement.name.schema or "dbo"
    procedure = _find_procedure_using(machine, database, schema, name)
    if procedure is not None:
        raise TsqlError(
            3732, f"Cannot drop type '{name}' because it is being referenced by object '{procedure}'. "
            "There may be other objects that reference this type."
        )  # fmt: skip
    rows = fetch(
        machine.connection,
        "user_types.drop",
        "delete from servicebroker.tsql_types where database_id = $1 and lower(schema_name) = lower($2) "
        f"and lower(name) = lower($3) returning {audit_context_sql(4)}",
        (database.database_id, schema, name.object, database.user.name, client_kind()),
    )
    if not rows and not statement.if_exists:
        raise TsqlError(
            218,
            f"Could not find the type '{name}'. Either it does not exist or you do not have the necessary permission.",
        )
    machine.queries.user_types.invalidate()


def _find_procedure_using(machine: Machine, database: SessionDatabase, schema: str, name: Name) -> str | None:
    """Return the name of a procedure with a parameter of the type, None if there is none."""
    key = f"{schema}.{name.object}".lower()
    rows = fetch(
        machine.connection,
        "user_types.find_procedure_using",
        "select name, definition from servicebroker.tsql_modules where database_id = $1 and kind = 'P' "
        "and position(lower($2) in lower(definition)) > 0",
        (database.database_id, name.object),
    )
    for procedure_name, text in rows:
        (procedure,) = parse_text(from_postgres(text))
        if isinstance(procedure, Procedure) and any(
            type_key(parameter.type) == key for parameter in procedure.parameters
        ):
            return str(procedure_name)
    return None
