"""sp_MSforeachdb and sp_MSforeachtable: run a text for each database, or for each table of one."""

from __future__ import annotations

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.call_frame import CallFrame
from servicebroker.tsql.interpreter.calls import bind_arguments, run_text, system_procedure
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.syntax import Execute
from servicebroker.tsql.translation.text_writer import quote_string as literal
from servicebroker.tsql.types import NVARCHAR

_COMMAND_PARAMETERS = ("@command1", "@command2", "@command3")
_LIST_DATABASES = "SELECT name FROM sys.databases WHERE HAS_DBACCESS(name) = 1 ORDER BY database_id"
_LIST_TABLES = (
    "SELECT QUOTENAME(SCHEMA_NAME(syso.schema_id)) + '.' + QUOTENAME(o.name) FROM dbo.sysobjects AS o "
    "JOIN sys.all_objects AS syso ON o.id = syso.object_id WHERE o.type = 'U' AND syso.is_ms_shipped = 0 {} "
    "ORDER BY o.id"
)


@system_procedure("sp_msforeachdb")
def _sp_msforeachdb(machine: Machine, statement: Execute) -> None:
    arguments = _bind_texts(
        machine, statement, ("@command1", "@replacechar", *_COMMAND_PARAMETERS[1:], "@precommand", "@postcommand")
    )
    _run_for_each(machine, arguments, _LIST_DATABASES)


@system_procedure("sp_msforeachtable")
def _sp_msforeachtable(machine: Machine, statement: Execute) -> None:
    names = ("@command1", "@replacechar", *_COMMAND_PARAMETERS[1:], "@whereand", "@precommand", "@postcommand")
    arguments = _bind_texts(machine, statement, names)
    _run_for_each(machine, arguments, _LIST_TABLES.format(arguments.get("@whereand", "")))


def _bind_texts(machine: Machine, statement: Execute, names: tuple[str, ...]) -> dict[str, str]:
    arguments = bind_arguments(machine, statement, names, required=1)
    texts = {name: convert(*value, NVARCHAR) for name, value in arguments.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _run_for_each(machine: Machine, arguments: dict[str, str], query: str) -> None:
    """Run each piece of dynamic SQL as its own EXEC, so that after an error the next one runs."""
    placeholder = arguments.get("@replacechar", "?")[:1]
    with machine.enter_frame(_new_frame(machine), machine.context.database):
        names = [str(name) for (name,) in machine.queries.fetch_result(query).rows]
    commands = [arguments[command] for command in _COMMAND_PARAMETERS if command in arguments]
    texts = [text.replace(placeholder, name) if placeholder else text for name in names for text in commands]
    around = [[arguments[name]] if name in arguments else [] for name in ("@precommand", "@postcommand")]
    script = "".join(f"EXEC (N{literal(text)});" for text in (*around[0], *texts, *around[1]))
    run_text(machine, script, _new_frame(machine))


def _new_frame(machine: Machine) -> CallFrame:
    """Return a frame for a text, without the permissions of a procedure around it."""
    return CallFrame(machine.frame.procedure, machine.frame.object_id)
