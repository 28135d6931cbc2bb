"""Transactions that use a broker database: find, wait for and end them.

They are recognized by their locks: on its queue tables, or the advisory lock that BEGIN DIALOG takes.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.catalog.alter import lock_catalog
from servicebroker.engine.delivery.transmission import lock_delivery
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


# ms to wait for the tables, one attempt after the other. Well below the server's deadlock_timeout, so that we give up
# before PostgreSQL chooses a victim.
_LOCK_TIMEOUTS_MS = (20, 20, 50, 50, 100, 100, 200, 200)


class DatabaseTransaction(NamedTuple):
    """A running transaction that uses a database."""

    pid: int
    xact_start: datetime


def find_transactions(database_id: int) -> Steps[list[DatabaseTransaction]]:
    """Return the transactions that have begun a dialog, sent or received in the database. Leaves out mere readers."""
    rows = yield SQL("find_transactions", (database_id, locks.DATABASE_BEGIN))
    return [DatabaseTransaction(*row) for row in rows]


def lock_database(database_id: int, attempt: int) -> Steps[None]:
    """Lock the queues of the database until the transaction ends; also definitions, deliveries and new dialogs.

    The server raises `lock_not_available` after a short timeout. Success depends on the order in which other sessions
    lock queues, so every second `attempt` uses the opposite order.
    """
    order = "desc" if attempt % 2 else "asc"
    rows = yield Statement(
        "database_transactions.lock_database.find_queues",
        f"select string_agg('servicebroker.queue_' || queue_id, ', ' order by queue_id {order}) "
        "from servicebroker.queues where database_id = $1",
        (database_id,),
    )
    timeout = _LOCK_TIMEOUTS_MS[attempt % len(_LOCK_TIMEOUTS_MS)]
    yield Statement(
        "database_transactions.lock_database.set_timeout", f"set local lock_timeout = {timeout}", prepared=False
    )
    yield lock_catalog()
    yield lock_delivery()
    yield SQL("lock_database.lock", (locks.DATABASE_BEGIN, database_id))
    if rows[0][0] is not None:
        yield Statement(
            "database_transactions.lock_database.lock_queues",
            f"lock table {rows[0][0]} in exclusive mode",
            prepared=False,
        )
    yield SQL("lock_database.reset_timeout", prepared=False)


def end_transactions(transactions: list[DatabaseTransaction]) -> Steps[None]:
    """WITH ROLLBACK: end the sessions of these transactions, except sessions that have started another transaction."""
    yield SQL(
        "end_transactions",
        ([transaction.pid for transaction in transactions], [transaction.xact_start for transaction in transactions]),
    )
