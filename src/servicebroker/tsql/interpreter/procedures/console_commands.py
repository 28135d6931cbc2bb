"""DBCC OPENTRAN, the oldest open transaction, and DBCC INPUTBUFFER, the last batch of a session."""

from __future__ import annotations

from servicebroker.store.running import fetch
from servicebroker.tsql.context import SessionDatabase
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.evaluation import evaluate_integer, evaluate_untyped
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Definition, Operand

_FIND_OLDEST = """
select t.session_id, a.name, to_char(a.transaction_begin_time at time zone 'UTC', 'Mon DD YYYY HH12:MI:SS:MSAM')
  from tsql.dm_tran_active_transactions a join tsql.dm_tran_session_transactions t using (transaction_id)
 where a.transaction_type = 1 order by a.transaction_begin_time limit 1
"""


def _require_owner(machine: Machine, command: str) -> None:
    user = machine.database.user
    if not user.is_dbo:
        raise TsqlError(2571, f"User '{user.name}' does not have permission to run {command}.", severity=14)


@defines("DBCC", "OPENTRAN")
def _open_transaction(machine: Machine, statement: Definition) -> None:
    """Show the oldest open transaction that has changed something.

    Raises:
        BrokerError: 911 no such database, 916 the session may not enter it.
        TsqlError: 2571 no permission.
    """
    with machine.context.within(_find_database(machine, statement.clauses["given"])):
        _emit_oldest(machine, statement)


def _find_database(machine: Machine, arguments: list[Operand]) -> SessionDatabase:
    """Return the database that a command names, or numbers; the current one without an argument and for 0."""
    name = evaluate_untyped(machine, arguments[0]) if arguments else None
    if not name:
        return machine.context.database
    if isinstance(name, int):
        name = machine.queries.evaluate_scalar(f"DB_NAME({name})").value or name
    return machine.context.database_named(str(name))


def _emit_oldest(machine: Machine, statement: Definition) -> None:
    _require_owner(machine, "DBCC OPENTRAN")
    _ = machine.spid  # draws the session's number
    rows = fetch(machine.connection, "console_commands.emit_oldest", _FIND_OLDEST)
    if statement.clauses["shows_table"]:
        names = ("OLDACT_SPID", "OLDACT_NAME", "OLDACT_STARTTIME")
        machine.emit(ResultSet(("REC", "VALUE"), list(zip(names, map(str, rows[0]), strict=True)) if rows else []))
        return
    if not rows:
        machine.emit(Message("No active open transactions."))
        return
    session, name, begun = rows[0]
    database = machine.database.name
    machine.emit(Message(f"Transaction information for database '{database}'."))
    machine.emit(
        Message(
            f"Oldest active transaction:\n    SPID (server process ID): {session}\n    Name          : {name}\n"
            f"    Start time    : {begun}"
        )
    )


@defines("DBCC", "INPUTBUFFER")
def _input_buffer(machine: Machine, statement: Definition) -> None:
    """Show the last batch of a session.

    Raises:
        TsqlError: 7955 there is no such session, 2571 no permission for another session.
    """
    number = evaluate_integer(machine, statement.clauses["given"][0]) if statement.clauses["given"] else None
    if number != machine.spid:
        _require_owner(machine, "DBCC INPUTBUFFER")
    rows = fetch(
        machine.connection,
        "console_commands.input_buffer",
        "select event_type, parameters, regexp_replace(event_info, '^/[*].*?[*]/ ', '') "
        "from tsql.dm_exec_input_buffer($1, 0)",
        (number,),
    )
    if not rows:
        raise TsqlError(7955, f"Invalid SPID {number} specified.")
    machine.emit(ResultSet(("EventType", "Parameters", "EventInfo"), [tuple(row) for row in rows]))
