# Made from aio/giving_way.py by tools/make_sync.py: change that file, then run `make sync`.
"""Definitions that need locks which others hold, while others wait for locks which the definition holds.

The definition gives way: it never waits longer than a moment, below the server's deadlock_timeout, and then undoes what
it has done and tries again. So no reader dies of a deadlock (1205) because a service was moved or dropped, and who
begins to send is never held up for longer than that moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from servicebroker.model.errors import BrokerError, LockTimeout
from servicebroker.store.concurrency import sleep
from servicebroker.store.statements import Statement, Steps

T = TypeVar("T")

MOMENTS = (100,)  # milliseconds that the attempts wait, one after the other and again from the first
# for the lock that everybody takes who begins to send: some are longer, so that transactions of which one begins before
# the other has ended do not keep us out for ever
RISING = (100, 100, 200, 200, 400, 800)
_FIRST_PAUSE, _LAST_PAUSE = 0.01, 1.0  # seconds; each is twice the last
_DEADLOCK = 1205


def giving_way(attempt: Callable[[int], T], patience: float) -> T:
    """Do it, each time with the number of the attempt, as often as it takes until nobody is in the way.

    `attempt` runs `hurried` steps, and holds nothing any more when it fails. `patience` is what `find_patience` says.

    Raises:
        LockTimeout: all attempts together took longer than the patience.
    """
    began, pause, number = time.monotonic(), _FIRST_PAUSE, 0
    while True:
        try:
            return attempt(number)
        except LockTimeout:
            if patience and time.monotonic() >= began + patience:
                raise
        except BrokerError as refused:
            if refused.number != _DEADLOCK:
                raise
        sleep(pause)
        pause, number = min(2 * pause, _LAST_PAUSE), number + 1


def find_patience() -> Steps[float]:
    """Seconds for which the session is ready to wait for locks, 0 for ever."""
    rows = yield Statement(
        "giving_way.find_patience",
        "select coalesce(min(setting::int) filter (where setting <> '0'), 0) / 1000.0::float "
        "from pg_settings where name in ('lock_timeout', 'statement_timeout')",
    )
    return float(rows[0][0])


def hurried(steps: Steps[T], moment: int) -> Steps[T]:
    """The steps, none of which waits for a lock longer than so many milliseconds: the server raises then."""
    rows = yield Statement(
        "giving_way.hurried.set_timeout",
        "with before as materialized (select current_setting('lock_timeout') as said) "
        "select said, set_config('lock_timeout', $1, true) from before",
        (str(moment),),
    )
    result = yield from steps
    yield Statement("giving_way.hurried.restore_timeout", "select set_config('lock_timeout', $1, true)", (rows[0][0],))
    return result
