"""A broker database alone, as ENABLE_BROKER, NEW_BROKER and DROP DATABASE need it (reference 01 section 1).

Who uses the database is who holds a lock on one of its queues' tables: a transaction that has sent into it or received
from it. Those that run are waited for, or ended; then the tables are locked, but never for longer than a moment while
somebody else waits for us, so that nobody dies of a deadlock but we ourselves, who try again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import psycopg

from servicebroker.engine.users import User, end_users, lock_database, users
from servicebroker.model.errors import BrokerError
from servicebroker.store.direct import DirectConnection
from servicebroker.store.statements import Steps, run

T = TypeVar("T")

_LOOK = 0.02  # seconds between two looks at whether they have ended


class Termination(NamedTuple):
    """What becomes of those who use the database: they are ended after so many seconds, or they win at once.

    Neither given: they are waited for.
    """

    rollback_after: float | None = None
    no_wait: bool = False


def checked_termination(no_wait: bool, rollback_after: object) -> Termination:
    """What WITH says: NO_WAIT, ROLLBACK AFTER seconds, or neither.

    Raises:
        BrokerError: 402 for both, or no number of seconds.
    """
    if rollback_after is None:
        return Termination(no_wait=bool(no_wait))
    if no_wait:
        raise BrokerError(402, "WITH", "NO_WAIT and ROLLBACK AFTER", "one of the two")
    if not isinstance(rollback_after, int | float) or isinstance(rollback_after, bool) or not rollback_after >= 0:
        raise BrokerError(402, "ROLLBACK AFTER", repr(rollback_after), "seconds, 0 or more")
    return Termination(rollback_after=rollback_after)


def alone(
    connection: DirectConnection,
    database_id: int,
    termination: Termination,
    in_use: BrokerError,
    steps: Callable[[], Steps[T]],
) -> T:
    """Do these steps in a transaction that has the database for itself. `connection` is in autocommit mode.

    Raises:
        BrokerError: `in_use`, when it is and we do not wait.
    """
    deadline = None if termination.rollback_after is None else time.monotonic() + termination.rollback_after
    while True:
        try:
            with connection.transaction():
                run(connection, lock_database(database_id))
                return run(connection, steps())
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if termination.no_wait:
                raise in_use from None
        _outlast(connection, database_id, run(connection, users(database_id)), deadline)


def _outlast(connection: DirectConnection, database_id: int, there: list[User], deadline: float | None) -> None:
    """Wait until none of these transactions runs any more, or end them."""
    while set(run(connection, users(database_id))) & set(there):
        if deadline is not None and time.monotonic() >= deadline:
            run(connection, end_users(there))
            return
        time.sleep(_LOOK)
