"""DBCC OPENTRAN and DBCC INPUTBUFFER: who holds a transaction open, and what a session has said."""

from __future__ import annotations

from servicebroker.store.running import fetch
from servicebroker.tsql.context import SessionDatabase
from servicebroker.tsql.interpreter.definitions.objects import defines
from servicebroker.tsql.interpreter.evaluation import integer, operand
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import Message, TsqlError
from servicebroker.tsql.syntax import Definition, Operand

_OLDEST = """
select t.session_id, a.name, to_char(a.transaction_begin_time at time zone 'UTC', 'Mon DD YYYY HH12:MI:SS:MSAM')
  from tsql.dm_tran_active_transactions a join tsql.dm_tran_session_transactions t using (transaction_id)
 where a.transaction_type = 1 order by a.transaction_begin_time limit 1
"""


def _demand_owner(machine: Machine, command: str) -> None:
    user = machine.database.user
    if not user.is_dbo:
        raise TsqlError(2571, f"User '{user.name}' does not have permission to run {command}.", severity=14)


@defines("DBCC", "OPENTRAN")
def _open_transaction(machine: Machine, statement: Definition) -> None:
    """The oldest transaction that has changed something.

    Raises:
        BrokerError: 911 no such database, 916 not for who works.
        TsqlError: 2571 not for who works.
    """
    with machine.context.within(_database_given(machine, statement.clauses["given"])):
        _tell_oldest(machine, statement)


def _database_given(machine: Machine, given: list[Operand]) -> SessionDatabase:
    """The database that a command names, also by its number; the current one for none and for 0."""
    name = operand(machine, given[0]) if given else None
    if not name:
        return machine.context.database
    if isinstance(name, int):
        name = machine.queries.scalar(f"DB_NAME({name})").value or name
    return machine.context.named(str(name))


def _tell_oldest(machine: Machine, statement: Definition) -> None:
    _demand_owner(machine, "DBCC OPENTRAN")
    _ = machine.spid  # which gives the session its number
    rows = fetch(machine.connection, "console_commands.tell_oldest", _OLDEST)
    if statement.clauses["shows_table"]:
        names = ("OLDACT_SPID", "OLDACT_NAME", "OLDACT_STARTTIME")
        machine.say(ResultSet(("REC", "VALUE"), list(zip(names, map(str, rows[0]), strict=True)) if rows else []))
        return
    if not rows:
        machine.say(Message("No active open transactions."))
        return
    session, name, begun = rows[0]
    database = machine.database.name
    machine.say(Message(f"Transaction information for database '{database}'."))
    machine.say(
        Message(
            f"Oldest active transaction:\n    SPID (server process ID): {session}\n    Name          : {name}\n"
            f"    Start time    : {begun}"
        )
    )


@defines("DBCC", "INPUTBUFFER")
def _input_buffer(machine: Machine, statement: Definition) -> None:
    """Raises: TsqlError: 7955 there is no such session, 2571 another's is not for who works."""
    number = integer(machine, statement.clauses["given"][0]) if statement.clauses["given"] else None
    if number != machine.spid:
        _demand_owner(machine, "DBCC INPUTBUFFER")
    rows = fetch(
        machine.connection,
        "console_commands.input_buffer",
        "select event_type, parameters, regexp_replace(event_info, '^/[*].*?[*]/ ', '') "
        "from tsql.dm_exec_input_buffer($1, 0)",
        (number,),
    )
    if not rows:
        raise TsqlError(7955, f"Invalid SPID {number} specified.")
    machine.say(ResultSet(("EventType", "Parameters", "EventInfo"), [tuple(row) for row in rows]))
