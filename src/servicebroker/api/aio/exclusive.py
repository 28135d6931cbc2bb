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
from servicebroker.store.aio.concurrency import sleep
from servicebroker.store.aio.direct import AsyncDirectConnection
from servicebroker.store.aio.running import in_transaction, run
from servicebroker.store.statements import Steps

T = TypeVar("T")

_POLL_INTERVAL_S = 0.02  # the time between two checks whether the transactions have ended


async def run_exclusively(
    connection: AsyncDirectConnection,
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
            return await in_transaction(connection, exclusive(attempt))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            if termination.no_wait:
                raise in_use from None
        await _wait_for_end(connection, database_id, await run(connection, find_transactions(database_id)), deadline)
        attempt += 1


async def _wait_for_end(
    connection: AsyncDirectConnection, database_id: int, transactions: list[DatabaseTransaction], deadline: float | None
) -> None:
    """Wait until all these transactions have ended. At the deadline, terminate them."""
    while set(await run(connection, find_transactions(database_id))) & set(transactions):
        if deadline is not None and time.monotonic() >= deadline:
            await run(connection, end_transactions(transactions))
            return
        await sleep(_POLL_INTERVAL_S)
