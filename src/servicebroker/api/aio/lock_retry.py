"""Definitions that wait for locks of others, while others wait for locks that the definition holds.

The definition retries: it waits for a lock at most some 100 ms, less than the server's deadlock_timeout. Then it undoes
what it has done, pauses and tries again. So no reader dies of a deadlock (1205) because a service was moved or dropped,
and a SEND is never held up for longer than one of these timeouts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from servicebroker.model.errors import BrokerError, LockTimeout
from servicebroker.store.aio.concurrency import sleep
from servicebroker.store.statements import Statement, Steps

T = TypeVar("T")

LOCK_TIMEOUTS_MS = (100,)  # of the attempts, one after the other and again from the first
# for the lock that each new conversation takes: some are longer, or overlapping transactions keep us out for ever
RISING_LOCK_TIMEOUTS_MS = (100, 100, 200, 200, 400, 800)
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.01, 1.0  # between two attempts; each pause is twice the one before
_DEADLOCK_ERROR = 1205


async def retry_locked(attempt: Callable[[int], Awaitable[T]], timeout_s: float) -> T:
    """Run an attempt, with its number, again and again until it gets its locks.

    `attempt` runs steps `with_lock_timeout`, and holds no lock when it has failed. `patience_s` is what
    `find_lock_patience` returns.

    Raises:
        LockTimeout: all attempts together took longer than the patience.
    """
    began, pause, number = time.monotonic(), _MIN_PAUSE_S, 0
    while True:
        try:
            return await attempt(number)
        except LockTimeout:
            if timeout_s and time.monotonic() >= began + timeout_s:
                raise
        except BrokerError as refused:
            if refused.number != _DEADLOCK_ERROR:
                raise
        await sleep(pause)
        pause, number = min(2 * pause, _MAX_PAUSE_S), number + 1


def find_lock_timeout() -> Steps[float]:
    """Return the seconds for which the session waits for locks, 0 for ever."""
    rows = yield Statement(
        "lock_retry.find_lock_timeout",
        "select coalesce(min(setting::int) filter (where setting <> '0'), 0) / 1000.0::float "
        "from pg_settings where name in ('lock_timeout', 'statement_timeout')",
    )
    return float(rows[0][0])


def with_lock_timeout(steps: Steps[T], timeout_ms: int) -> Steps[T]:
    """Run the steps; if one waits longer than that for a lock, the server raises."""
    rows = yield Statement(
        "lock_retry.with_lock_timeout.set_timeout",
        "with before as materialized (select current_setting('lock_timeout') as said) "
        "select said, set_config('lock_timeout', $1, true) from before",
        (str(timeout_ms),),
    )
    result = yield from steps
    yield Statement(
        "lock_retry.with_lock_timeout.restore_timeout", "select set_config('lock_timeout', $1, true)", (rows[0][0],)
    )
    return result
