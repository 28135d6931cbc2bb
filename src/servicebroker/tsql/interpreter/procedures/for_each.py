"""sp_MSforeachdb and sp_MSforeachtable: a text for each database, and for each table of one."""

from __future__ import annotations

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.calls import named_arguments, run_text, system
from servicebroker.tsql.interpreter.frame import Frame
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.syntax import Execute
from servicebroker.tsql.translation.text_writer import string as literal
from servicebroker.tsql.types import NVARCHAR

_COMMANDS = ("@command1", "@command2", "@command3")
_DATABASES = "SELECT name FROM sys.databases WHERE HAS_DBACCESS(name) = 1 ORDER BY database_id"
_TABLES = (
    "SELECT QUOTENAME(SCHEMA_NAME(syso.schema_id)) + '.' + QUOTENAME(o.name) FROM dbo.sysobjects AS o "
    "JOIN sys.all_objects AS syso ON o.id = syso.object_id WHERE o.type = 'U' AND syso.is_ms_shipped = 0 {} "
    "ORDER BY o.id"
)


@system("sp_msforeachdb")
def _sp_msforeachdb(machine: Machine, statement: Execute) -> None:
    given = _given(machine, statement, ("@command1", "@replacechar", *_COMMANDS[1:], "@precommand", "@postcommand"))
    _run(machine, given, _DATABASES)


@system("sp_msforeachtable")
def _sp_msforeachtable(machine: Machine, statement: Execute) -> None:
    names = ("@command1", "@replacechar", *_COMMANDS[1:], "@whereand", "@precommand", "@postcommand")
    given = _given(machine, statement, names)
    _run(machine, given, _TABLES.format(given.get("@whereand", "")))


def _given(machine: Machine, statement: Execute, names: tuple[str, ...]) -> dict[str, str]:
    given = named_arguments(machine, statement, names, required=1)
    texts = {name: convert(*value, NVARCHAR) for name, value in given.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _run(machine: Machine, given: dict[str, str], query: str) -> None:
    """Each text is run for itself: an error in one is told, and the next one runs."""
    sign = given.get("@replacechar", "?")[:1]
    with machine.inside(_frame(machine), machine.context.database):
        names = [str(name) for (name,) in machine.queries.collect(query).rows]
    commands = [given[command] for command in _COMMANDS if command in given]
    texts = [text.replace(sign, name) if sign else text for name in names for text in commands]
    around = [[given[name]] if name in given else [] for name in ("@precommand", "@postcommand")]
    script = "".join(f"EXEC (N{literal(text)});" for text in (*around[0], *texts, *around[1]))
    run_text(machine, script, _frame(machine))


def _frame(machine: Machine) -> Frame:
    """A text has no part in what a procedure around it may."""
    return Frame(machine.frame.procedure, machine.frame.number)
