"""Explain errors of PostgreSQL: the cause, that nothing was done, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NoReturn

import psycopg

from servicebroker.model.errors import BrokerError, InstanceError, LockTimeout, ServiceBrokerError
from servicebroker.store.connection import one_line
from servicebroker.store.lock_functions import ALL_FUNCTIONS, CLOSING_COMMAND
from servicebroker.store.queue import quoted

STATEMENT = "Statement: "  # begins a note (add_note) with the name of the failed statement

_UNDONE = "what was not committed is undone"
_LOST = f"PostgreSQL went away or refused ({{}}): {_UNDONE}; begin the transaction again."

# The explanations by SQLSTATE, or by its first two or three characters. `{}` is PostgreSQL's message.
_SENTENCES: dict[str, str] = {
    "25P02": "An earlier statement of this transaction failed, so PostgreSQL has undone all of it: begin it again.",
    "25006": "PostgreSQL changes nothing here ({}): the server is a standby, or transactions are read only. Open the "
    "instance on the primary; where default_transaction_read_only is on, as on a managed server whose disk is nearly "
    "full, make room or switch that setting off.",
    "25P03": "PostgreSQL has ended the session, whose transaction was idle for longer than "
    f"idle_in_transaction_session_timeout allows: {_UNDONE}. Begin the transaction again, or raise that setting.",
    "25P04": f"PostgreSQL has ended the transaction, which took longer than transaction_timeout allows: {_UNDONE}. "
    "Begin it again, or raise that setting.",
    "53100": f"The disk of the PostgreSQL server is full ({{}}): {_UNDONE}. Free some space there and begin again.",
    "53200": f"The PostgreSQL server is out of memory ({{}}): {_UNDONE}. If it names max_locks_per_transaction, raise "
    "that setting or do less in one transaction; servicebroker doctor names a session that holds most of the locks.",
    "53300": "The PostgreSQL server has no connection left ({}): raise max_connections, or close what is not used.",
    "57014": f"PostgreSQL has cancelled the statement ({{}}): {_UNDONE}. Where it says statement timeout, raise "
    "statement_timeout or do less at once.",
    "58": f"PostgreSQL cannot read or write its files ({{}}): {_UNDONE}. See the server's log.",
    "08": _LOST,
    "57P": _LOST,
}
_LOCK_FUNCTION = re.compile(r"pg_(try_)?advisory_\w*lock")
_DEADLOCK_NUMBER = 1205
_TRANSACTION_ROLLBACK = "40"  # the class of SQLSTATE of deadlocks and serialization failures
_OF_THE_TRANSACTION = ("25P", "25006", "08", "57P")


def explain_error(problem: psycopg.Error, *, transaction_only: bool = False) -> ServiceBrokerError | None:
    """Return the error to raise instead; None for an error that must keep its SQLSTATE, such as 40001.

    `transaction_only`: return None also for errors of a single statement, which may be the application's.
    """
    state = problem.sqlstate or ""
    if isinstance(problem, psycopg.errors.DeadlockDetected):
        return BrokerError(1205, _victim(problem), "lock")
    if state == "S3906":
        match = re.search('"(.*)"', problem.diag.message_primary or "")
        return BrokerError(3906, match[1] if match else "")
    if transaction_only and not affects_transaction(problem):
        return None
    if isinstance(problem, psycopg.errors.LockNotAvailable):
        return LockTimeout(
            "PostgreSQL gave up waiting for a lock of another session after lock_timeout: nothing of the statement was "
            f"done. Begin the transaction again, or raise that setting.{_where(problem)}"
        )
    if _where(problem) and (locked_out := explain_lock_refusal(problem)):
        return InstanceError(f"{locked_out}{_where(problem)}")
    if isinstance(problem, psycopg.errors.InsufficientPrivilege) and "servicebroker" in str(problem):
        return InstanceError(
            f"The PostgreSQL role may not do that here ({problem.diag.message_primary}): a restricted role has only "
            "the verbs, all else is for the owner of the schema. `servicebroker rights show` says what a role may do."
            f"{_where(problem)}"
        )
    for key in (state, state[:3], state[:2]):
        if key in _SENTENCES:
            return InstanceError(_SENTENCES[key].format(one_line(problem)) + _where(problem))
    if isinstance(problem, psycopg.OperationalError) and not state:  # raised by the driver: the connection is lost
        return InstanceError(_LOST.format(one_line(problem)) + _where(problem))
    return None


def explain_lock_refusal(refused: psycopg.Error, role: str = "") -> str | None:
    """Return advice if PostgreSQL refuses a function for advisory locks; None for other errors.

    `role`: the refused role, while there is no schema yet from which `rights locks` could find the roles.
    """
    problem = refused.diag.message_primary or ""
    if not isinstance(refused, psycopg.errors.InsufficientPrivilege) or not _LOCK_FUNCTION.search(problem):
        return None
    cure = (
        f"GRANT EXECUTE ON FUNCTION {ALL_FUNCTIONS} TO {quoted(role)}"
        if role
        else f"what {CLOSING_COMMAND} --sql prints"
    )
    return (
        f"The PostgreSQL role may not take the broker's locks ({problem}), whose functions are not everybody's in this "
        f"database. Let a superuser run {cure}."
    )


def _where(problem: psycopg.Error) -> str:
    """Return a sentence with the name of the failed statement; '' for a statement of the application."""
    notes = (note for note in getattr(problem, "__notes__", ()) if note.startswith(STATEMENT))
    return "".join(f" {note}." for note in notes)


def affects_transaction(problem: psycopg.Error) -> bool:
    """Check whether the transaction or its connection is lost, instead of only one statement."""
    return not problem.sqlstate or problem.sqlstate.startswith(_OF_THE_TRANSACTION)


def raise_broker_error(problem: psycopg.Error) -> NoReturn:
    """Raise the BrokerError or InstanceError that corresponds to an error of PostgreSQL, or else that error."""
    broker_error = explain_error(problem)
    if broker_error is None:
        raise problem
    raise broker_error from problem


def is_transaction_conflict(problem: BaseException | None) -> bool:
    """Check whether the cause of a failure is a deadlock, or a conflict with another transaction."""
    return any(_is_conflict(cause) for cause in _causes(problem))


def _causes(problem: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and its causes, each once: `raise problem from problem` makes a circle."""
    yielded: set[int] = set()
    while problem is not None and id(problem) not in yielded:
        yield problem
        yielded.add(id(problem))
        problem = problem.__cause__


def _is_conflict(problem: BaseException) -> bool:
    if isinstance(problem, psycopg.Error):
        return (problem.sqlstate or "").startswith(_TRANSACTION_ROLLBACK)
    return isinstance(problem, BrokerError) and problem.number == _DEADLOCK_NUMBER


def _victim(deadlock: psycopg.errors.DeadlockDetected) -> str:
    """Return the server process that PostgreSQL has chosen as the victim: the first in the detail."""
    match = re.search(r"\d+", deadlock.diag.message_detail or "")
    return match[0] if match else "unknown"
