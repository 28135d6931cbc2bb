"""The system procedures that scripts of the broker call."""

from __future__ import annotations

from servicebroker.model.zero_character import from_postgres
from servicebroker.store.running import fetch
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.calls import named_arguments, system
from servicebroker.tsql.interpreter.definitions.principals import change_member
from servicebroker.tsql.interpreter.evaluation import operand_value
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.procedures.catalog_procedures import check_here, database_in
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Execute, Name
from servicebroker.tsql.types import BIT, NVARCHAR, VARIANT


def _texts(machine: Machine, statement: Execute) -> list[str]:
    values = [operand_value(machine, one.value) for one in statement.arguments if one.value is not None]
    return ["" if value is None else convert(value, source, NVARCHAR) for value, source in values]


@system("sp_configure")
def _sp_configure(machine: Machine, statement: Execute) -> None:
    """An instance has no such options: what they ask for holds, or is PostgreSQL's to set."""
    said = ", ".join(_texts(machine, statement))
    machine.say(Message(f"sp_configure {said} changes nothing: set what PostgreSQL has for it."))


@system("sp_set_session_context")
def _sp_set_session_context(machine: Machine, statement: Execute) -> None:
    """Raises: TsqlError: 15664 the key was set to stay as it is, 15666 a key is missing."""
    given = named_arguments(machine, statement, ("@key", "@value", "@read_only"), required=2)
    key = convert(*given["@key"], NVARCHAR)
    if not key:
        raise TsqlError(15666, "Cannot set key in the session context: it must not be empty.")
    if key in machine.fixed_context:
        raise TsqlError(
            15664, f"Cannot set key '{key}' in the session context. The key has been set as read_only for this session."
        )
    machine.session_context[key] = convert(*given["@value"], VARIANT)
    fixed = given.get("@read_only")
    if fixed is not None and convert(*fixed, BIT):
        machine.fixed_context.add(key)


_SESSIONS = (
    "FROM sys.dm_exec_sessions AS s LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id "
    "ORDER BY s.session_id"
)


@system("sp_who")
def _sp_who(machine: Machine, statement: Execute) -> None:
    machine.say(machine.queries.collect(
        "SELECT s.session_id AS spid, 0 AS ecid, s.status, s.login_name AS loginame, s.host_name AS hostname, "
        "ISNULL(r.blocking_session_id, 0) AS blk, DB_NAME() AS dbname, ISNULL(r.command, 'AWAITING COMMAND') AS cmd, "
        f"0 AS request_id {_SESSIONS}"
    ))  # fmt: skip


@system("sp_who2")
def _sp_who2(machine: Machine, statement: Execute) -> None:
    machine.say(machine.queries.collect(
        "SELECT s.session_id AS SPID, s.status AS Status, s.login_name AS Login, s.host_name AS HostName, "
        "ISNULL(CAST(NULLIF(r.blocking_session_id, 0) AS varchar(9)), '  .') AS BlkBy, DB_NAME() AS DBName, "
        "ISNULL(r.command, 'AWAITING COMMAND') AS Command, ISNULL(r.cpu_time, 0) AS CPUTime, 0 AS DiskIO, "
        f"s.login_time AS LastBatch, s.program_name AS ProgramName, s.session_id AS SPID, 0 AS REQUESTID {_SESSIONS}"
    ))  # fmt: skip


@system("sp_helptext")
def _sp_helptext(machine: Machine, statement: Execute) -> None:
    names = _texts(machine, statement)
    if not names:
        raise TsqlError(
            201, "Procedure or function 'sp_helptext' expects parameter '@objname', which was not supplied."
        )
    check_here(machine, database_in(names[0]))
    rows = fetch(
        machine.connection,
        "system.sp_helptext",
        "select id is not null, tsql.object_definition(id) from tsql.object_id($1, $2) id",
        (machine.database.name, names[0]),
    )
    if not rows[0][0]:
        raise TsqlError(15009, f"The object '{names[0]}' does not exist in database '{machine.database.name}'.")
    if rows[0][1] is None:
        raise TsqlError(15197, f"There is no text for object '{names[0]}'.")
    lines = [(line + "\n",) for line in from_postgres(rows[0][1]).splitlines()]
    machine.say(ResultSet(("Text",), list(lines)))


def _role_and_member(machine: Machine, statement: Execute) -> tuple[str, str]:
    given = _texts(machine, statement)
    assert isinstance(statement.procedure, Name)
    name = statement.procedure.own
    if len(given) > 2:
        raise TsqlError(8144, f"Procedure or function {name} has too many arguments specified.", state=2)
    if len(given) < 2:
        missing = ("@rolename", "@membername")[len(given)]
        raise TsqlError(201, f"Procedure or function '{name}' expects parameter '{missing}', which was not supplied.")
    return given[0], given[1]


@system("sp_addrolemember")
def _sp_addrolemember(machine: Machine, statement: Execute) -> None:
    role, member = _role_and_member(machine, statement)
    change_member(machine, role, member, add=True)


@system("sp_droprolemember")
def _sp_droprolemember(machine: Machine, statement: Execute) -> None:
    role, member = _role_and_member(machine, statement)
    change_member(machine, role, member, add=False)


@system("sp_fulltext_database")
@system("sp_db_vardecimal_storage_format")
@system("sp_changedbowner")
@system("sp_dbcmptlevel")
@system("sp_procoption")
@system("sp_addextendedproperty")
@system("sp_updateextendedproperty")
@system("sp_dropextendedproperty")
@system("sp_updatestats")
@system("sp_recompile")
@system("sp_refreshview")
def _of_no_effect(machine: Machine, statement: Execute) -> None:
    """What scripts written by tools call: it asks for what holds here anyhow, or notes what nothing reads."""
    assert isinstance(statement.procedure, Name)
    machine.say(Message(f"{statement.procedure.own} changes nothing here."))


@system("sp_dboption")
def _sp_dboption(machine: Machine, statement: Execute) -> None:
    machine.say(Message("sp_dboption changes nothing: use ALTER DATABASE ... SET."))
