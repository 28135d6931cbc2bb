"""System procedures that scripts of the broker often call: session context, sp_who, sp_helptext, role members."""

from __future__ import annotations

from servicebroker.model.zero_character import from_postgres
from servicebroker.store.running import fetch
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.calls import bind_arguments, system_procedure
from servicebroker.tsql.interpreter.definitions.principals import change_member
from servicebroker.tsql.interpreter.evaluation import evaluate_operand
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.procedures.catalog_procedures import check_current_database, parse_database
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Execute, Name
from servicebroker.tsql.types import BIT, NVARCHAR, VARIANT


def _argument_texts(machine: Machine, statement: Execute) -> list[str]:
    """Return the arguments as texts, "" for NULL. Arguments with DEFAULT are left out."""
    values = [
        evaluate_operand(machine, argument.value) for argument in statement.arguments if argument.value is not None
    ]
    return ["" if value is None else convert(value, source, NVARCHAR) for value, source in values]


@system_procedure("sp_configure")
def _sp_configure(machine: Machine, statement: Execute) -> None:
    """Emit that nothing changes: an instance has no such options."""
    arguments = ", ".join(_argument_texts(machine, statement))
    machine.emit(Message(f"sp_configure {arguments} changes nothing: change the setting in PostgreSQL."))


@system_procedure("sp_set_session_context")
def _sp_set_session_context(machine: Machine, statement: Execute) -> None:
    """Set a value of the session context.

    Raises:
        TsqlError: 15664 the key is read-only, 15666 the key is empty.
    """
    arguments = bind_arguments(machine, statement, ("@key", "@value", "@read_only"), required=2)
    key = convert(*arguments["@key"], NVARCHAR)
    if not key:
        raise TsqlError(15666, "Cannot set key in the session context: it must not be empty.")
    if key in machine.read_only_context:
        raise TsqlError(
            15664, f"Cannot set key '{key}' in the session context. The key has been set as read_only for this session."
        )
    machine.session_context[key] = convert(*arguments["@value"], VARIANT)
    read_only = arguments.get("@read_only")
    if read_only is not None and convert(*read_only, BIT):
        machine.read_only_context.add(key)


_SESSIONS = (
    "FROM sys.dm_exec_sessions AS s LEFT JOIN sys.dm_exec_requests AS r ON r.session_id = s.session_id "
    "ORDER BY s.session_id"
)


@system_procedure("sp_who")
def _sp_who(machine: Machine, statement: Execute) -> None:
    machine.emit(machine.queries.fetch_result(
        "SELECT s.session_id AS spid, 0 AS ecid, s.status, s.login_name AS loginame, s.host_name AS hostname, "
        "ISNULL(r.blocking_session_id, 0) AS blk, DB_NAME() AS dbname, ISNULL(r.command, 'AWAITING COMMAND') AS cmd, "
        f"0 AS request_id {_SESSIONS}"
    ))  # fmt: skip


@system_procedure("sp_who2")
def _sp_who2(machine: Machine, statement: Execute) -> None:
    machine.emit(machine.queries.fetch_result(
        "SELECT s.session_id AS SPID, s.status AS Status, s.login_name AS Login, s.host_name AS HostName, "
        "ISNULL(CAST(NULLIF(r.blocking_session_id, 0) AS varchar(9)), '  .') AS BlkBy, DB_NAME() AS DBName, "
        "ISNULL(r.command, 'AWAITING COMMAND') AS Command, ISNULL(r.cpu_time, 0) AS CPUTime, 0 AS DiskIO, "
        f"s.login_time AS LastBatch, s.program_name AS ProgramName, s.session_id AS SPID, 0 AS REQUESTID {_SESSIONS}"
    ))  # fmt: skip


@system_procedure("sp_lock")
def _sp_lock(machine: Machine, statement: Execute) -> None:
    """Show the locks of all sessions, or of one or two."""
    spids = [text for text in _argument_texts(machine, statement)[:2] if text.isdigit()]
    chosen = f" WHERE l.request_session_id IN ({', '.join(spids)})" if spids else ""
    machine.emit(machine.queries.fetch_result(
        "SELECT l.request_session_id AS spid, l.resource_database_id AS dbid, "
        "ISNULL(l.resource_associated_entity_id, 0) AS ObjId, 0 AS IndId, LEFT(l.resource_type, 4) AS [Type], "
        "l.resource_description AS Resource, l.request_mode AS Mode, l.request_status AS Status "
        f"FROM sys.dm_tran_locks AS l{chosen} ORDER BY l.request_session_id"
    ))  # fmt: skip


@system_procedure("sp_helptext")
def _sp_helptext(machine: Machine, statement: Execute) -> None:
    """Show the text of a module, one row for each line.

    Raises:
        TsqlError: 201 the name is missing, 15009 there is no such object, 15197 it has no text.
    """
    names = _argument_texts(machine, statement)
    if not names:
        raise TsqlError(
            201, "Procedure or function 'sp_helptext' expects parameter '@objname', which was not supplied."
        )
    check_current_database(machine, parse_database(names[0]))
    ((exists, text),) = fetch(
        machine.connection,
        "general_procedures.sp_helptext",
        "select id is not null, tsql.object_definition(id) from tsql.object_id($1, $2) id",
        (machine.database.name, names[0]),
    )
    if not exists:
        raise TsqlError(15009, f"The object '{names[0]}' does not exist in database '{machine.database.name}'.")
    if text is None:
        raise TsqlError(15197, f"There is no text for object '{names[0]}'.")
    lines = [(line + "\n",) for line in from_postgres(text).splitlines()]
    machine.emit(ResultSet(("Text",), list(lines)))


def _role_and_member(machine: Machine, statement: Execute) -> tuple[str, str]:
    """Return the two arguments of sp_addrolemember and sp_droprolemember.

    Raises:
        TsqlError: 201 an argument is missing, 8144 there are too many.
    """
    texts = _argument_texts(machine, statement)
    assert isinstance(statement.procedure, Name)
    name = statement.procedure.object
    if len(texts) > 2:
        raise TsqlError(8144, f"Procedure or function {name} has too many arguments specified.", state=2)
    if len(texts) < 2:
        missing = ("@rolename", "@membername")[len(texts)]
        raise TsqlError(201, f"Procedure or function '{name}' expects parameter '{missing}', which was not supplied.")
    return texts[0], texts[1]


@system_procedure("sp_addrolemember")
def _sp_addrolemember(machine: Machine, statement: Execute) -> None:
    role, member = _role_and_member(machine, statement)
    change_member(machine, role, member, add=True)


@system_procedure("sp_droprolemember")
def _sp_droprolemember(machine: Machine, statement: Execute) -> None:
    role, member = _role_and_member(machine, statement)
    change_member(machine, role, member, add=False)


@system_procedure("sp_fulltext_database")
@system_procedure("sp_db_vardecimal_storage_format")
@system_procedure("sp_changedbowner")
@system_procedure("sp_dbcmptlevel")
@system_procedure("sp_procoption")
@system_procedure("sp_addextendedproperty")
@system_procedure("sp_updateextendedproperty")
@system_procedure("sp_dropextendedproperty")
@system_procedure("sp_updatestats")
@system_procedure("sp_recompile")
@system_procedure("sp_refreshview")
def _do_nothing(machine: Machine, statement: Execute) -> None:
    """Emit that nothing changes: the request is in force anyway, or stores what nothing reads."""
    assert isinstance(statement.procedure, Name)
    machine.emit(Message(f"{statement.procedure.object} changes nothing here."))


@system_procedure("sp_dboption")
def _sp_dboption(machine: Machine, statement: Execute) -> None:
    machine.emit(Message("sp_dboption changes nothing: use ALTER DATABASE ... SET."))
