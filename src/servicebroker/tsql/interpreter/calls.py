"""Runs EXEC of procedures, dynamic SQL and system procedures, and INSERT ... EXEC."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.model.names import bracketed
from servicebroker.tsql.context import SessionDatabase, database_of
from servicebroker.tsql.interpreter.call_frame import CallFrame
from servicebroker.tsql.interpreter.definitions import user_types
from servicebroker.tsql.interpreter.definitions.modules import Module, find_function, find_procedure
from servicebroker.tsql.interpreter.evaluation import evaluate, evaluate_operand, evaluate_text
from servicebroker.tsql.interpreter.execute_as import impersonation
from servicebroker.tsql.interpreter.machine import RUNNERS, Machine, ScopeAborted, check_nesting, runs
from servicebroker.tsql.interpreter.simple_expressions import Value
from servicebroker.tsql.interpreter.static_checks import CALL_CHECKS, system_name
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.results import ResultSet, RowCount, ScriptOutput
from servicebroker.tsql.statement_errors import UNSUPPORTED_ERROR, TsqlError
from servicebroker.tsql.syntax import (
    Argument,
    Execute,
    ExecuteText,
    InsertExecute,
    Name,
    Operand,
    Parameter,
    Procedure,
    Statement,
    Variable,
)
from servicebroker.tsql.types import INT, NVARCHAR, STRINGS, SqlType

SystemProcedure = Callable[[Machine, Execute], int | None]  # returns the return code, None for 0
SYSTEM_PROCEDURES: dict[str, SystemProcedure] = {}
_MAX_CACHED_CHARS = 500  # the longest text of a procedure's name that is cached


def system_procedure(name: str) -> Callable[[SystemProcedure], SystemProcedure]:
    """Register the decorated function as a system procedure, by its name in lower case."""

    def register(procedure: SystemProcedure) -> SystemProcedure:
        SYSTEM_PROCEDURES[name] = procedure
        return procedure

    return register


@runs(Execute)
def _execute(machine: Machine, statement: Execute) -> None:
    """Run EXEC of a procedure.

    A system procedure takes precedence over a synonym or a procedure with the same name.
    """
    name = _procedure_name(machine, statement.procedure)
    if statement.returned is not None:
        machine.frame.type_of(statement.returned)
    if system_name(name) not in SYSTEM_PROCEDURES:
        name = machine.queries.resolve_synonym(name)
    if system_name(name) in SYSTEM_PROCEDURES:
        _execute_system(machine, statement, name)
        return
    procedure = find_procedure(machine, name)
    if procedure is None:
        if _execute_function(machine, statement, name):
            return
        raise TsqlError(2812, f"Could not find stored procedure '{name}'.", state=62)
    database, module = procedure
    # ownership chaining: dbo owns all modules, so a module needs no permission to call another one of its database
    is_chained = machine.frame.is_module and database is machine.context.database
    if not (is_chained or module.is_temporary):
        machine.authorize(Use("EXECUTE", name.schema or "dbo", name.object), database=database)
    call_procedure(machine, database, module, statement.arguments, statement.returned)


def _execute_function(machine: Machine, statement: Execute, name: Name) -> bool:
    """Run EXEC @result = function, with defaults for omitted parameters. Return False if there is no such function."""
    function = find_function(machine, name)
    if function is None:
        return False
    frame, values = CallFrame(machine.frame.procedure, machine.frame.object_id), dict[str, Value]()
    names = [parameter.name for parameter in function.parameters]
    for position, argument in enumerate(statement.arguments):
        if not argument.name and position >= len(names):
            raise TsqlError(8144, f"Procedure or function {name} has too many arguments specified.", state=2)
        parameter_name = argument.name or names[position]
        if parameter_name not in names:
            raise TsqlError(8145, f"{parameter_name} is not a parameter for procedure {name}.")
        if argument.value is not None:
            values[parameter_name] = evaluate_operand(machine, argument.value)
    for variable, value in values.items():
        frame.declare(variable, value.type or NVARCHAR)
        frame.assign(variable, value.value, value.type)
    for parameter in function.parameters:
        if parameter.name not in values and parameter.default is None:
            raise TsqlError(
                201, f"Procedure or function '{name}' expects parameter '{parameter.name}', which was not supplied.",
                state=4,
            )  # fmt: skip
    argument_list = ", ".join(parameter if parameter in values else "DEFAULT" for parameter in names)
    function_name = bracketed(*(name.parts if name.schema else ("dbo", name.object)))
    with machine.enter_frame(frame, machine.context.database):
        result = machine.queries.evaluate_scalar(f"{function_name}({argument_list})")
    if statement.returned is not None:
        machine.frame.assign(statement.returned, result.value, result.type)
    machine.record_success(0)
    return True


def _execute_system(machine: Machine, statement: Execute, name: Name) -> None:
    """Run a system procedure in the database that its name begins with.

    A procedure that is not supported is refused before the database is looked up.
    """
    system_key = system_name(name)
    statement = replace(statement, procedure=Name((name.object,)))
    if system_key in CALL_CHECKS:
        CALL_CHECKS[system_key](statement)
    database = database_of(machine, name)
    machine.error_number = 0
    with machine.context.within(database):
        code = SYSTEM_PROCEDURES[system_key](machine, statement)
    if statement.returned is not None:
        machine.frame.assign(statement.returned, code or 0, INT)


def _procedure_name(machine: Machine, procedure: Name | Variable) -> Name:
    """Return the name of the procedure to call. If it is a variable, parse its value as a name."""
    if isinstance(procedure, Name):
        return procedure
    text = str(machine.frame.value_of(procedure.name) or "")
    name = _parse_procedure_name(text) if len(text) <= _MAX_CACHED_CHARS else _parse_procedure_name.__wrapped__(text)
    if name is None:
        raise TsqlError(2812, f"Could not find stored procedure '{text}'.", state=62)
    return name


@functools.lru_cache(maxsize=1_000)
def _parse_procedure_name(text: str) -> Name | None:
    """Return the name that EXEC reads from a text, None if there is none. Clients name the same procedures often."""
    with contextlib.suppress(TsqlError):
        parsed = parse_text(f"EXEC {text}") if text.strip() else ()
        if len(parsed) == 1 and isinstance(parsed[0], Execute) and isinstance(parsed[0].procedure, Name):
            return parsed[0].procedure
    return None


def call_procedure(
    machine: Machine,
    database: SessionDatabase,
    module: Module,
    arguments: Sequence[Argument] = (),
    return_variable: str | None = None,
) -> None:
    """Run a procedure, in its database and as the user of its EXECUTE AS.

    Then assign the OUTPUT parameters and the return code to the caller's variables.
    """
    check_nesting(machine)
    frame = CallFrame(module.name, module.object_id, is_module=not module.is_temporary, signers=module.signers)
    outputs = _bind_parameters(machine, frame, module, arguments, database)
    with machine.enter_frame(frame, database, impersonation(machine, module.user)):
        _run_body(machine, module.procedure.body)
    caller = machine.frame
    for parameter, variable in outputs.items():
        caller.assign(variable, frame.values[parameter], frame.types[parameter])
    if return_variable is not None:
        caller.assign(return_variable, frame.return_code, INT)


def _run_body(machine: Machine, body: Sequence[Statement]) -> None:
    """Run the statements of a procedure or dynamic SQL, and restore the SET options afterwards.

    Outside of TRY, emit error 266 if @@TRANCOUNT has changed. An implicit BEGIN does not count as a change.
    """
    before = machine.transactions.count
    saved_nocount, saved_xact_abort, saved_isolation = machine.nocount, machine.xact_abort, machine.isolation
    saved_row_limit, saved_is_implicit, saved_is_noexec = machine.row_limit, machine.is_implicit, machine.is_noexec
    saved_dates = machine.dates
    try:
        machine.run(body)
    except ScopeAborted:
        pass  # a missing name ends the procedure, and its caller continues
    finally:
        machine.nocount, machine.xact_abort, machine.isolation = saved_nocount, saved_xact_abort, saved_isolation
        machine.row_limit, machine.is_implicit, machine.is_noexec = saved_row_limit, saved_is_implicit, saved_is_noexec
        if machine.dates != saved_dates:
            machine.set_dates(saved_dates)
    after = machine.transactions.count
    if after != (before or int(machine.transactions.is_implicit)) and not machine.try_depth:
        error = TsqlError(
            266, "Transaction count after EXECUTE indicates a mismatching number of BEGIN and COMMIT statements. "
            f"Previous count = {before}, current count = {after}.", state=2, line=1, procedure=machine.frame.procedure,
        )  # fmt: skip
        machine.emit(error)
        machine.error_number = 266


def _bind_parameters(
    machine: Machine, frame: CallFrame, module: Module, arguments: Sequence[Argument], database: SessionDatabase
) -> dict[str, str]:
    """Assign the arguments to the parameters. Return the caller's variable for each OUTPUT parameter, by parameter.

    Arguments are evaluated in the caller's frame, but types and defaults in the module's `database`.
    """
    parameters = {parameter.name: parameter for parameter in module.procedure.parameters}
    names = list(parameters)
    outputs: dict[str, str] = {}
    values: dict[str, Value | None] = {}
    table_arguments: dict[str, Operand | None] = {}
    for position, argument in enumerate(arguments):
        name = argument.name or (names[position] if position < len(names) else "")
        if not argument.name and not name:
            raise TsqlError(8144, f"Procedure or function {module.name} has too many arguments specified.", state=2)
        if name not in parameters:
            raise TsqlError(8145, f"{name} is not a parameter for procedure {module.name}.")
        if name in values:
            raise TsqlError(8143, f"Parameter '{name}' was supplied multiple times.")
        if parameters[name].read_only:
            values[name] = None
            table_arguments[name] = argument.value
            continue
        values[name] = None if argument.value is None else evaluate_operand(machine, argument.value)
        if argument.output:
            if not parameters[name].output:
                raise TsqlError(
                    8162, f'The formal parameter "{name}" was not declared as an OUTPUT parameter, but the actual '
                    "parameter passed in requested output.", state=2,
                )  # fmt: skip
            if not isinstance(argument.value, Variable):
                raise TsqlError(179, "Cannot use the OUTPUT option when passing a constant to a stored procedure.")
            outputs[name] = argument.value.name
    with machine.context.within(database):
        for parameter in module.procedure.parameters:
            if parameter.read_only:
                user_types.bind_table_parameter(machine, frame, parameter, table_arguments.get(parameter.name))
                continue
            frame.declare(parameter.name, machine.resolve_type(parameter.type))
            value = _argument_value(machine, module, parameter, values)
            try:
                frame.assign(parameter.name, value.value, value.type)
            except TsqlError as error:
                raise _parameter_error(error, value, frame.types[parameter.name]) from None
    return outputs


_CONVERSION_ERRORS = frozenset({235, 241, 242, 244, 245, 248, 293, 8114, 8115, 8169})


def _parameter_error(error: TsqlError, value: Value, target: SqlType) -> TsqlError:
    """Return error 8114 if a string could not be converted to the parameter's type; otherwise `error`."""
    if error.number not in _CONVERSION_ERRORS or value.type is None or value.type.name not in STRINGS:
        return error
    return TsqlError(8114, f"Error converting data type {value.type.name} to {target.name}.")


def _argument_value(machine: Machine, module: Module, parameter: Parameter, values: dict[str, Value | None]) -> Value:
    """Return the value of an argument, or the default of its parameter."""
    value = values.get(parameter.name)
    if value is not None:
        return value
    if parameter.default is not None:
        return evaluate(machine, parameter.default)
    raise TsqlError(
        201, f"Procedure or function '{module.name}' expects parameter '{parameter.name}', which was not supplied.",
        state=4,
    )  # fmt: skip


def bind_arguments(machine: Machine, statement: Execute, names: Sequence[str], required: int = 0) -> dict[str, Value]:
    """Return the arguments of a system procedure by parameter name, in lower case. Omitted parameters have no entry.

    Raises:
        TsqlError: 201 one of the first `required` is missing, 8144 there are too many, 8145 a name is unknown.
    """
    procedure = str(statement.procedure)
    values: dict[str, Value] = {}
    for position, argument in enumerate(statement.arguments):
        if not argument.name and position >= len(names):
            raise TsqlError(8144, f"Procedure or function {procedure} has too many arguments specified.", state=2)
        name = argument.name or names[position]
        if name not in names:
            raise TsqlError(8145, f"{name} is not a parameter for procedure {procedure}.")
        if argument.value is not None:
            values[name] = evaluate_operand(machine, argument.value)
    for name in names[:required]:
        if name not in values:
            message = f"Procedure or function '{procedure}' expects parameter '{name}', which was not supplied."
            raise TsqlError(201, message, state=4)
    return values


# ---------------------------------------------------------------- dynamic SQL


@runs(ExecuteText)
def _execute_text(machine: Machine, statement: ExecuteText) -> None:
    """Run EXEC ('dynamic SQL'), with AS USER or AS LOGIN if the statement has it."""
    value, _ = evaluate(machine, statement.text)
    impersonate = None
    if statement.user is not None:
        impersonate = functools.partial(
            machine.context.execute_as, statement.kind, evaluate_text(machine, statement.user) or ""
        )
    frame = CallFrame("", machine.frame.object_id)  # errors in dynamic SQL name no procedure
    run_text(machine, "" if value is None else str(value), frame, impersonate)


def run_text(machine: Machine, script: str, frame: CallFrame, impersonate: Callable[[], None] | None = None) -> None:
    """Run dynamic SQL with its own variables. The caller's temporary tables stay visible.

    If it cannot be parsed, the error is emitted and the caller continues, even under XACT_ABORT. Inside TRY, or if the
    SQL contains something unsupported, the error is raised.
    """
    check_nesting(machine)
    try:
        body = parse_text(script, {*frame.types, *frame.tables})
    except TsqlError as error:
        if machine.try_depth or error.number == UNSUPPORTED_ERROR:
            raise
        machine.emit(error)
        machine.error_number = error.number
        return
    frame.signers = machine.frame.signers
    with machine.enter_frame(frame, machine.context.database, impersonate):
        _run_body(machine, body)


@system_procedure("sp_executesql")
def _sp_executesql(machine: Machine, statement: Execute) -> int:
    """Run dynamic SQL with parameters. The return code is the final @@ERROR, or the error number of the parser."""
    arguments = list(statement.arguments)
    if not arguments:
        raise TsqlError(
            201, "Procedure or function 'sp_executesql' expects parameter '@statement', which was not supplied."
        )
    values = [
        None if argument.value is None else evaluate_operand(machine, argument.value) for argument in arguments[:2]
    ]
    script = values[0].value if values[0] else None
    frame = CallFrame("", machine.frame.object_id)  # errors in dynamic SQL name no procedure
    outputs: dict[str, str] = {}
    if len(arguments) > 1:
        procedure = _parse_parameter_list(str(values[1].value or "") if values[1] else "")
        module = Module(procedure, None, "sp_executesql")
        try:
            outputs = _bind_parameters(machine, frame, module, arguments[2:], machine.context.database)
        except TsqlError as error:
            missing = re.search("expects parameter '(@[^']+)'", error.text) if error.number == 201 else None
            if missing is None:
                raise
            query = f"({values[1].value if values[1] else ''}){script or ''}"[:64]
            raise TsqlError(
                8178,
                f"The parameterized query '{query}' expects the parameter '{missing[1]}', which was not supplied.",
            ) from None
    run_text(machine, "" if script is None else str(script), frame)
    for parameter, variable in outputs.items():
        machine.frame.assign(variable, frame.values[parameter], frame.types[parameter])
    return machine.error_number


def _parse_parameter_list(text: str) -> Procedure:
    """Parse the parameter list of sp_executesql, as the parameters of a procedure."""
    (procedure,) = parse_text(f"CREATE PROCEDURE sp_executesql {text} AS RETURN")
    assert isinstance(procedure, Procedure)
    return procedure


# ---------------------------------------------------------------- INSERT ... EXEC


@runs(InsertExecute)
def _insert_execute(machine: Machine, statement: InsertExecute) -> None:
    """Insert the result sets of a procedure into a table. An error also undoes the changes that the procedure made."""
    result_sets: list[ResultSet] = []
    listener = machine.listener

    def collect(output: ScriptOutput) -> None:
        if isinstance(output, ResultSet):
            result_sets.append(output)
        elif not isinstance(output, RowCount):
            listener(output)

    with machine.atomic():
        machine.listener = collect
        try:
            with machine.transactions.hold_open():
                RUNNERS[type(statement.source)](machine, statement.source)
        finally:
            machine.listener = listener
        machine.queries.insert_rows(statement.target, [row for result_set in result_sets for row in result_set.rows])
