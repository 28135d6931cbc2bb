"""Counting rollbacks: once for each open instance, outside of every transaction, since a ROLLBACK undoes a count."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any

import psycopg

from servicebroker.api.shared.tally import Tally
from servicebroker.engine.activation.poison_detection import DisabledQueue, find_outcomes
from servicebroker.engine.diagnosis.totals import ROLLBACKS
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.events import QUEUE_DISABLED_CLASS, Events
from servicebroker.model.poison import Rollbacks, reason
from servicebroker.store.aio.running import in_transaction, run
from servicebroker.store.statements import Steps

_LOG = logging.getLogger("servicebroker")

Connections = Callable[[], AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]]


class PoisonDetector:
    """Automatic poison detection: disable a queue after five rollbacks in a row.

    `connections` lends a connection without an open transaction.
    """

    def __init__(
        self,
        connections: Connections,
        clock: Callable[[], datetime],
        disable: Callable[[int], Steps[DisabledQueue | None]],
        events: Events,
        tally: Tally,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._disable_queue = disable
        self._events = events
        self._tally = tally
        self._rollbacks = Rollbacks()
        self._lock = threading.Lock()
        self._unconfirmed: dict[psycopg.AsyncConnection[Any], set[tuple[int, int]]] = {}

    def share(self, other: Any) -> None:
        """Count together with the detector of another form of the same instance."""
        self._events, self._rollbacks, self._lock = other._events, other._rollbacks, other._lock

    def took(self, transaction: int, queue_id: int) -> None:
        """Note that a transaction of this process took messages. It reports its end, unless the process dies."""

    def received(self, transaction: int, queues: Iterable[int]) -> None:
        """Note that a transaction, which others end, took messages from these queues."""
        with self._lock:
            self._rollbacks.received(transaction, queues)

    def committed(self, queues: Iterable[int]) -> None:
        """Note that a transaction which took messages was committed."""
        with self._lock:
            self._rollbacks.committed(queues)

    async def rolled_back(self, connection: psycopg.AsyncConnection[Any], queues: Iterable[int]) -> None:
        """Count the rollback of a transaction that took messages; `connection` is free now."""
        with self._lock:
            reached = self._rollbacks.rolled_back(queues)
        for queue_id in reached:
            if connection.closed:
                with contextlib.suppress(InstanceError):
                    async with self._connections() as other:
                        await self._disable(other, queue_id)
            else:
                await self._disable(connection, queue_id)

    def commit_deferred(self, connection: psycopg.AsyncConnection[Any], taken: set[tuple[int, int]]) -> None:
        """Note what a transaction took, by its id and queue. Its COMMIT goes with the connection's next statement."""
        self._unconfirmed[connection] = taken

    def commit_confirmed(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Note that this COMMIT was done."""
        self.committed({queue_id for _, queue_id in self._unconfirmed.pop(connection, ())})

    def commit_unknown(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """When the connection is given back, note a COMMIT whose end is unknown, so that `judge` asks for it."""
        for transaction, queue_id in self._unconfirmed.pop(connection, ()):
            self.received(transaction, [queue_id])

    def forget_commit(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Forget a COMMIT that travelled and failed; its rollback does not count. Return whether there was one."""
        return self._unconfirmed.pop(connection, None) is not None

    async def resolve_if_due(self, queue_id: int) -> None:
        """Before a RECEIVE, ask how transactions have ended, if that may have disabled the queue."""
        with self._lock:
            due = self._rollbacks.is_due(queue_id)
        if due:
            with contextlib.suppress(InstanceError):
                async with self._connections() as connection:
                    await self.resolve_outcomes(connection)

    async def resolve_outcomes(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Ask the server for the end of transactions whose end is unknown."""
        with self._lock:
            pending = self._rollbacks.pending()
        try:
            found = await run(connection, find_outcomes(pending)) if pending else {}
        except psycopg.Error as problem:
            _LOG.debug("poison detection: %s", problem)
            return
        if undone := list(found.values()).count("aborted"):
            self._tally.add(ROLLBACKS, undone)
        with self._lock:
            reached = self._rollbacks.ended(found)
        for queue_id in reached:
            await self._disable(connection, queue_id)

    async def _disable(self, connection: psycopg.AsyncConnection[Any], queue_id: int) -> None:
        try:
            disabled = await in_transaction(connection, self._disable_queue(queue_id))
        except psycopg.Error as problem:
            _LOG.error("%s (%s)", BrokerError(8405, "of the queue", queue_id, problem.sqlstate, 1), problem)
            return
        if disabled:
            for error in disabled.notification_errors:
                _LOG.error("%s", error)
            text = reason(disabled.name)
            self._events.record(QUEUE_DISABLED_CLASS, self._clock(), disabled.database_id, queue_id, text)
