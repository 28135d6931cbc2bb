"""Retries of definitions (DDL) that conflict with the locks of readers and senders.

A definition waits for a lock about 100 ms, which is less than the server's deadlock_timeout. Then it rolls back, pauses
and tries again. So moving or dropping a service never causes a deadlock error (1205) in a reader, and a SEND never
waits longer than one of these timeouts.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from servicebroker.model.errors import BrokerError, LockTimeout
from servicebroker.store.aio.concurrency import sleep
from servicebroker.store.statements import Statement, Steps

T = TypeVar("T")

LOCK_TIMEOUTS_MS = (100,)  # attempt n has the timeout n modulo the length
# For a lock that each new conversation takes. The longer timeouts outlast overlapping transactions. With
# 100 ms alone, these could delay the definition for ever.
RISING_LOCK_TIMEOUTS_MS = (100, 100, 200, 200, 400, 800)
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.01, 1.0  # the pauses between two attempts; each is twice the one before
_DEADLOCK_ERROR = 1205


async def retry_locked(attempt: Callable[[int], Awaitable[T]], timeout_s: float) -> T:
    """Call `attempt` with 0, 1, 2 ... until it gets its locks.

    `attempt` runs steps `with_lock_timeout`, and holds no lock after a failure. `timeout_s` is the result of
    `find_lock_timeout`; 0 for no timeout.

    Raises:
        LockTimeout: all attempts together took longer than `timeout_s`.
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
    """Return the session's lock_timeout or statement_timeout, whichever is shorter, in seconds; 0 for none."""
    rows = yield Statement(
        "lock_retry.find_lock_timeout",
        "select coalesce(min(setting::int) filter (where setting <> '0'), 0) / 1000.0::float "
        "from pg_settings where name in ('lock_timeout', 'statement_timeout')",
    )
    return float(rows[0][0])


def with_lock_timeout(steps: Steps[T], timeout_ms: int) -> Steps[T]:
    """Run the steps with this lock_timeout, and restore the previous value."""
    rows = yield Statement(
        "lock_retry.with_lock_timeout.set_timeout",
        "with previous as materialized (select current_setting('lock_timeout') as timeout) "
        "select timeout, set_config('lock_timeout', $1, true) from previous",
        (str(timeout_ms),),
    )
    result = yield from steps
    yield Statement(
        "lock_retry.with_lock_timeout.restore_timeout", "select set_config('lock_timeout', $1, true)", (rows[0][0],)
    )
    return result
