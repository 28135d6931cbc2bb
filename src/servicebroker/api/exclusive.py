# Made from aio/exclusive.py by tools/make_sync.py: change that file, then run `make sync`.
"""Exclusive use of a broker database, for ENABLE_BROKER, NEW_BROKER and DROP DATABASE.

The rules: docs/reference/rules.md#databases. A transaction uses the database if it has sent or received messages there:
then it holds a lock on the table of a queue. The statement waits for these transactions, or ends them. Then it locks
the tables with a short lock timeout, and tries again after a timeout. So if there is a deadlock, this statement gives
up, and no other transaction fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from servicebroker.engine.catalog.database_transactions import (
    DatabaseTransaction,
    end_transactions,
    find_transactions,
    lock_database,
)
from servicebroker.model.arguments import Termination
from servicebroker.model.errors import BrokerError
from servicebroker.store.concurrency import sleep
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import in_transaction, run
from servicebroker.store.statements import Steps

T = TypeVar("T")

_POLL_INTERVAL_S = 0.02  # the time between two checks whether the transactions have ended


def run_exclusively(
    connection: DirectConnection,
    database_id: int,
    termination: Termination,
    in_use: BrokerError,
    steps: Callable[[], Steps[T]],
) -> T:
    """Run the steps in a transaction with exclusive use of the database. `connection` is in autocommit mode.

    Raises:
        BrokerError: `in_use`, if other transactions use the database and `termination` does not wait for them.
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
        _wait_for_end(connection, database_id, run(connection, find_transactions(database_id)), deadline)
        attempt += 1


def _wait_for_end(
    connection: DirectConnection, database_id: int, transactions: list[DatabaseTransaction], deadline: float | None
) -> None:
    """Wait until all these transactions have ended. At the deadline, terminate them."""
    while set(run(connection, find_transactions(database_id))) & set(transactions):
        if deadline is not None and time.monotonic() >= deadline:
            run(connection, end_transactions(transactions))
            return
        sleep(_POLL_INTERVAL_S)
