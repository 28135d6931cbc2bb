# Made from aio/throttle.py by tools/make_sync.py: change that file, then run `make sync`.
"""The limits of a worker, for one of its readers: local limits in this process, global limits of all processes.

The readers of a process share its local rate limit, an object. Global limits are in the database. A slot of the global
concurrency is an advisory lock of the reader's session, so a process that dies releases it. The global rate is a token
bucket: a row with the time of the next message. Only workers with a global limit query the server (decision 66).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from servicebroker.api.shared.rate_limit import RateLimit
from servicebroker.model.errors import ServiceBrokerError
from servicebroker.model.workers import Worker
from servicebroker.store.concurrency import Event
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import run_alone

if TYPE_CHECKING:
    from servicebroker.api.database import Database

MAX_PAUSE_S = 1.0  # the longest pause for a token: a reader that finds the queue empty returns its token early
SLOT_PAUSE_S = 0.5  # the pause of a reader without a slot: another process may have died


def limit_of(worker: Worker) -> RateLimit | None:
    """Return the rate limit that the readers of a worker share in this process; None without one.

    It also bounds how often a process requests tokens of a global rate.
    """
    rates = [rate for rate in (worker.per_second, worker.global_per_second) if rate is not None]
    return RateLimit(min(rates)) if rates else None


def throttle_of(database: Database, worker: Worker, limit: RateLimit | None, stop_requested: Event) -> Throttle | None:
    """Return the limits for a reader of a worker, None if it has none. `stop_requested` ends a pause."""
    if limit is None and worker.global_concurrency is None:
        return None
    return Throttle(database, worker, limit, stop_requested)


class Throttle:
    """The limits for one reader. It pauses without a connection until it may receive again, or the worker stops."""

    def __init__(self, database: Database, worker: Worker, limit: RateLimit | None, stop_requested: Event) -> None:
        self._database = database
        self._limit = limit
        self._stop_requested = stop_requested
        self._slots = worker.global_concurrency
        self._slot: int | None = None
        self._interval_s = None if worker.global_per_second is None else 1 / worker.global_per_second
        self._has_token = False  # a token of the global rate, for the next RECEIVE
        self._pause_s = 0.0

    def begin(self, queue_id: int) -> bool:
        """Take a token of the global rate, before the reader has a connection. Return False if it must pause first."""
        if self._interval_s is None:
            return True
        engine = self._database.engine
        if not self._take_local():
            return False
        ((wait_s,),) = self._database._do(engine.call("take_place", queue_id, self._interval_s))
        self._has_token = not wait_s
        if not self._has_token:
            self.settle(0)
            self._pause_s = wait_s
        return self._has_token

    def end(self, queue_id: int, received: int) -> None:
        """Count the messages received for the token of `begin`. Zero returns the token."""
        if self._interval_s is None or received == 1:
            return
        engine = self._database.engine
        self._database._do(engine.call("settle_place", queue_id, (received - 1) * self._interval_s))

    def enter(self, connection: DirectConnection, queue_id: int) -> bool:
        """Take a slot for the session. Return False if no slot is free; the reader then pauses."""
        if self._slots is None:
            return True
        try:
            ((self._slot,),) = run_alone(connection, self._database.engine.call("take_slot", queue_id, self._slots))
        except BaseException:
            connection.close()  # the session may have the slot
            raise
        if self._slot is None:
            if self._has_token:
                self._has_token = False
                self.settle(0)
            self._pause_s = SLOT_PAUSE_S
        return self._slot is not None

    def leave(self, connection: DirectConnection, queue_id: int) -> None:
        """Release the slot. If that fails, close the session, which releases it too."""
        slot, self._slot = self._slot, None
        if slot is None or connection.closed:
            return
        try:
            run_alone(connection, self._database.engine.call("release_slot", queue_id, slot))
        except (psycopg.Error, ServiceBrokerError):
            connection.close()

    def take(self) -> bool:
        """Take the token of one message. Return False if the reader must pause first."""
        if self._interval_s is None:
            return self._take_local()
        has_token, self._has_token = self._has_token, False
        return has_token

    def settle(self, received: int) -> None:
        """Count the messages received for a token of the local rate."""
        if self._limit is not None:
            self._limit.settle(received)

    def pause(self) -> None:
        """Wait until the reader may try again."""
        pause_s, self._pause_s = self._pause_s, 0.0
        if pause_s:
            self._stop_requested.wait(min(pause_s, MAX_PAUSE_S))

    def _take_local(self) -> bool:
        self._pause_s = 0.0 if self._limit is None else self._limit.take()
        return not self._pause_s
