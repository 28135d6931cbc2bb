# Made from aio/exclusive.py by tools/make_sync.py: change that file, then run `make sync`.
"""A broker database alone, as ENABLE_BROKER, NEW_BROKER and DROP DATABASE need it (docs/reference/rules.md#databases).

Who uses the database is who holds a lock on one of its queues' tables: a transaction that has sent into it or received
from it. Those that run are waited for, or ended; then the tables are locked, but never for longer than a moment while
somebody else waits for us, so that nobody dies of a deadlock but we ourselves, who try again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from servicebroker.engine.catalog.database_users import User, end_users, lock_database, users
from servicebroker.model.arguments import Termination
from servicebroker.model.errors import BrokerError
from servicebroker.store.concurrency import sleep
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import in_transaction, run
from servicebroker.store.statements import Steps

T = TypeVar("T")

_LOOK = 0.02  # seconds between two looks at whether they have ended


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

    def exclusive(attempt: int) -> Steps[T]:
        yield from lock_database(database_id, attempt)
        return (yield from steps())

    deadline = None if termination.rollback_after is None else time.monotonic() + termination.rollback_after
    attempt = 0
    while True:
        try:
            return in_transaction(connection, exclusive(attempt))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if termination.no_wait:
                raise in_use from None
        _outlast(connection, database_id, run(connection, users(database_id)), deadline)
        attempt += 1


def _outlast(connection: DirectConnection, database_id: int, there: list[User], deadline: float | None) -> None:
    """Wait until none of these transactions runs any more, or end them."""
    while set(run(connection, users(database_id))) & set(there):
        if deadline is not None and time.monotonic() >= deadline:
            run(connection, end_users(there))
            return
        sleep(_LOOK)
