# Made from aio/giving_way.py by tools/make_sync.py: change that file, then run `make sync`.
"""Definitions that need rows which readers hold, while readers wait for rows which the definition holds.

The definition gives way: it never waits longer than a moment, well below the server's deadlock_timeout, and then goes
back to its savepoint and tries again. So no reader dies of a deadlock (1205) because a service was moved or dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from servicebroker.api.transaction import JoinedTransaction
from servicebroker.model.errors import BrokerError
from servicebroker.store.concurrency import sleep
from servicebroker.store.statements import Statement, Steps

T = TypeVar("T")

_MOMENT = 100  # milliseconds
_FIRST_PAUSE, _LAST_PAUSE = 0.01, 1.0  # seconds; each is twice the last
_DEADLOCK = 1205


def giving_way(transaction: JoinedTransaction, steps: Callable[[], Steps[T]]) -> T:
    """Do these steps in the transaction, as often as it takes until nobody is in their way.

    Raises:
        psycopg.errors.LockNotAvailable: the session has a lock_timeout, and all attempts together took longer.
    """
    began, pause = time.monotonic(), _FIRST_PAUSE
    patience = transaction._do(_patience())
    while True:
        try:
            with transaction.savepoint():
                return transaction._do(_hurried(steps()))
        except psycopg.errors.LockNotAvailable:
            if patience and time.monotonic() >= began + patience:
                raise
        except BrokerError as refused:
            if refused.number != _DEADLOCK:
                raise
        sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)


def _patience() -> Steps[float]:
    """Seconds for which the session is ready to wait for locks, 0 for ever."""
    rows = yield Statement("select setting::int / 1000.0::float from pg_settings where name = 'lock_timeout'")
    return float(rows[0][0])


def _hurried(steps: Steps[T]) -> Steps[T]:
    rows = yield Statement(
        "with before as materialized (select current_setting('lock_timeout') as said) "
        "select said, set_config('lock_timeout', $1, true) from before",
        (str(_MOMENT),),
    )
    result = yield from steps
    yield Statement("select set_config('lock_timeout', $1, true)", (rows[0][0],))
    return result
