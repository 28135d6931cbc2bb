"""EXEC: procedures with their parameters, text, and the procedures that come with the system."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from servicebroker.engine.security.tsql_objects import Use
from servicebroker.tsql.context import SessionDatabase, database_of
from servicebroker.tsql.interpreter.definitions import user_types
from servicebroker.tsql.interpreter.definitions.modules import Module, find_procedure
from servicebroker.tsql.interpreter.evaluation import evaluate, operand_value, text
from servicebroker.tsql.interpreter.execute_as import working_as
from servicebroker.tsql.interpreter.foresight import CALLS, system_name
from servicebroker.tsql.interpreter.frame import Frame
from servicebroker.tsql.interpreter.machine import RUNNERS, Machine, ScopeEnd, check_nesting, runs
from servicebroker.tsql.interpreter.simple import Value
from servicebroker.tsql.parser import parse_text
from servicebroker.tsql.results import ResultSet, RowCount, Said
from servicebroker.tsql.statement_errors import UNSUPPORTED, TsqlError
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
from servicebroker.tsql.types import INT

SystemProcedure = Callable[[Machine, Execute], int | None]  # its return code, or nothing for 0
SYSTEM: dict[str, SystemProcedure] = {}


def system(name: str) -> Callable[[SystemProcedure], SystemProcedure]:
    """Registers a procedure that comes with the system, by its name in lower case."""

    def register(procedure: SystemProcedure) -> SystemProcedure:
        SYSTEM[name] = procedure
        return procedure

    return register


@runs(Execute)
def _execute(machine: Machine, statement: Execute) -> None:
    name = _name(machine, statement.procedure)
    if statement.returned is not None:
        machine.frame.type_of(statement.returned)
    if system_name(name) not in SYSTEM:
        name = machine.queries.behind(name)
    if system_name(name) in SYSTEM:
        _execute_system(machine, statement, name)
        return
    found = find_procedure(machine, name)
    if found is None:
        raise TsqlError(2812, f"Could not find stored procedure '{name}'.", state=62)
    database, module = found
    is_dbos = machine.frame.is_module and database is machine.context.database  # what dbo's modules call is dbo's too
    if not (is_dbos or module.is_temporary):
        machine.allow(Use("EXECUTE", name.schema or "dbo", name.own), database=database)
    call(machine, database, module, statement.arguments, statement.returned)


def _execute_system(machine: Machine, statement: Execute, name: Name) -> None:
    """Run a procedure that comes with the system, in the database that its name begins with.

    Those that nothing stands behind are refused in every database, also in one that is not there.
    """
    called = system_name(name)
    statement = replace(statement, procedure=Name((name.own,)))
    if called in CALLS:
        CALLS[called](statement)
    database = database_of(machine, name)
    machine.error = 0
    with machine.context.within(database):
        code = SYSTEM[called](machine, statement)
    if statement.returned is not None:
        machine.frame.assign(statement.returned, code or 0, INT)


def _name(machine: Machine, procedure: Name | Variable) -> Name:
    if isinstance(procedure, Name):
        return procedure
    said = str(machine.frame.value_of(procedure.name) or "")
    with contextlib.suppress(TsqlError):
        parsed = parse_text(f"EXEC {said}") if said.strip() else ()
        if len(parsed) == 1 and isinstance(parsed[0], Execute) and isinstance(parsed[0].procedure, Name):
            return parsed[0].procedure
    raise TsqlError(2812, f"Could not find stored procedure '{said}'.", state=62)


def call(
    machine: Machine,
    database: SessionDatabase,
    module: Module,
    arguments: Sequence[Argument] = (),
    returned: str | None = None,
) -> None:
    """Run a procedure in its database, as whom it says, and give back its OUTPUT parameters and return code."""
    check_nesting(machine)
    frame = Frame(module.name, module.number, is_module=not module.is_temporary, signers=module.signers)
    outputs = _bind(machine, frame, module, arguments, database)
    with machine.inside(frame, database, working_as(machine, module.user)):
        _run(machine, module.procedure.body)
    caller = machine.frame
    for parameter, variable in outputs.items():
        caller.assign(variable, frame.values[parameter], frame.types[parameter])
    if returned is not None:
        caller.assign(returned, frame.code, INT)


def _run(machine: Machine, body: Sequence[Statement]) -> None:
    """The statements of a procedure. It leaves as many transactions open as it found, or one that began unseen."""
    before = machine.transactions.count
    nocount, xact_abort, isolation = machine.nocount, machine.xact_abort, machine.isolation
    row_limit, implicit, no_execution = machine.row_limit, machine.implicit, machine.no_execution
    try:
        machine.run(body)
    except ScopeEnd:
        pass  # what could not be found ended the procedure alone
    finally:
        machine.nocount, machine.xact_abort, machine.isolation = nocount, xact_abort, isolation
        machine.row_limit, machine.implicit, machine.no_execution = row_limit, implicit, no_execution
    after = machine.transactions.count
    if after != (before or int(machine.transactions.is_implicit)) and not machine.tries:
        error = TsqlError(
            266, "Transaction count after EXECUTE indicates a mismatching number of BEGIN and COMMIT statements. "
            f"Previous count = {before}, current count = {after}.", state=2, line=1, procedure=machine.frame.procedure,
        )  # fmt: skip
        machine.say(error)
        machine.error = 266


def _bind(
    machine: Machine, frame: Frame, module: Module, arguments: Sequence[Argument], database: SessionDatabase
) -> dict[str, str]:
    """Give the parameters their values; which variable of the caller each OUTPUT goes to.

    Arguments are the caller's; types and defaults are those of the module's `database`.
    """
    parameters = {parameter.name: parameter for parameter in module.procedure.parameters}
    names = list(parameters)
    outputs: dict[str, str] = {}
    given: dict[str, Value | None] = {}
    lent: dict[str, Operand | None] = {}
    for place, argument in enumerate(arguments):
        name = argument.name or (names[place] if place < len(names) else "")
        if not argument.name and not name:
            raise TsqlError(8144, f"Procedure or function {module.name} has too many arguments specified.", state=2)
        if name not in parameters:
            raise TsqlError(8145, f"{name} is not a parameter for procedure {module.name}.")
        if name in given:
            raise TsqlError(8143, f"Parameter '{name}' was supplied multiple times.")
        if parameters[name].read_only:
            given[name] = None
            lent[name] = argument.value
            continue
        given[name] = None if argument.value is None else operand_value(machine, argument.value)
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
                user_types.lend(machine, frame, parameter, lent.get(parameter.name))
                continue
            frame.declare(parameter.name, machine.type_named(parameter.type))
            value = _value(machine, module, parameter, given)
            frame.assign(parameter.name, value.value, value.type)
    return outputs


def _value(machine: Machine, module: Module, parameter: Parameter, given: dict[str, Value | None]) -> Value:
    value = given.get(parameter.name)
    if value is not None:
        return value
    if parameter.default is not None:
        return evaluate(machine, parameter.default)
    raise TsqlError(
        201, f"Procedure or function '{module.name}' expects parameter '{parameter.name}', which was not supplied.",
        state=4,
    )  # fmt: skip


def named_arguments(machine: Machine, statement: Execute, names: Sequence[str], required: int = 0) -> dict[str, Value]:
    """The values that a system procedure is given, by the names of its parameters in lower case.

    Raises:
        TsqlError: 201 one of the first `required` is missing, 8144 too many, 8145 another name.
    """
    procedure = str(statement.procedure)
    given: dict[str, Value] = {}
    for place, argument in enumerate(statement.arguments):
        if not argument.name and place >= len(names):
            raise TsqlError(8144, f"Procedure or function {procedure} has too many arguments specified.", state=2)
        name = argument.name or names[place]
        if name not in names:
            raise TsqlError(8145, f"{name} is not a parameter for procedure {procedure}.")
        if argument.value is not None:
            given[name] = operand_value(machine, argument.value)
    for name in names[:required]:
        if name not in given:
            text = f"Procedure or function '{procedure}' expects parameter '{name}', which was not supplied."
            raise TsqlError(201, text, state=4)
    return given


# ---------------------------------------------------------------- text


@runs(ExecuteText)
def _execute_text(machine: Machine, statement: ExecuteText) -> None:
    value, _ = evaluate(machine, statement.text)
    work_as = None
    if statement.user is not None:
        work_as = functools.partial(machine.context.execute_as, statement.kind, text(machine, statement.user) or "")
    frame = Frame(machine.frame.procedure, machine.frame.number)
    run_text(machine, "" if value is None else str(value), frame, work_as)


def run_text(machine: Machine, script: str, frame: Frame, work_as: Callable[[], None] | None = None) -> None:
    """Statements of a text, with variables of their own; temporary tables of the caller are there.

    One that cannot be read ends itself alone, whatever XACT_ABORT says.
    """
    check_nesting(machine)
    try:
        body = parse_text(script, {*frame.types, *frame.tables})
    except TsqlError as unreadable:
        if machine.tries or unreadable.number == UNSUPPORTED:
            raise
        machine.say(unreadable)
        machine.error = unreadable.number
        return
    frame.signers = machine.frame.signers
    with machine.inside(frame, machine.context.database, work_as):
        _run(machine, body)


@system("sp_executesql")
def _sp_executesql(machine: Machine, statement: Execute) -> int:
    """Its return code is @@ERROR of the text's last statement, also where the text cannot be read."""
    arguments = list(statement.arguments)
    if not arguments:
        raise TsqlError(
            201, "Procedure or function 'sp_executesql' expects parameter '@statement', which was not supplied."
        )
    values = [None if one.value is None else operand_value(machine, one.value) for one in arguments[:2]]
    script = values[0].value if values[0] else None
    frame = Frame(machine.frame.procedure, machine.frame.number)
    outputs: dict[str, str] = {}
    if len(arguments) > 1:
        declared = _declared(str(values[1].value or "") if values[1] else "")
        module = Module(declared, None, "sp_executesql")
        outputs = _bind(machine, frame, module, arguments[2:], machine.context.database)
    run_text(machine, "" if script is None else str(script), frame)
    for parameter, variable in outputs.items():
        machine.frame.assign(variable, frame.values[parameter], frame.types[parameter])
    return machine.error


def _declared(text: str) -> Procedure:
    """The parameters that sp_executesql is told of."""
    (made,) = parse_text(f"CREATE PROCEDURE sp_executesql {text} AS RETURN")
    assert isinstance(made, Procedure)
    return made


# ---------------------------------------------------------------- INSERT ... EXEC


@runs(InsertExecute)
def _insert_execute(machine: Machine, statement: InsertExecute) -> None:
    """The result sets of the procedure become rows of the table; what else it does stands or falls with them."""
    sets: list[ResultSet] = []
    listener = machine.listener

    def keep(said: Said) -> None:
        if isinstance(said, ResultSet):
            sets.append(said)
        elif not isinstance(said, RowCount):
            listener(said)

    with machine.whole():
        machine.listener = keep
        try:
            with machine.transactions.held_open():
                RUNNERS[type(statement.source)](machine, statement.source)
        finally:
            machine.listener = listener
        machine.queries.insert_rows(statement.target, [row for found in sets for row in found.rows])
