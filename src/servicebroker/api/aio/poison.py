"""Automatic poison detection: count the rollbacks of receiving transactions, in the memory of each open instance.

A count in a table would be undone by the ROLLBACK that it counts.
"""

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
    """Disables a queue after five rollbacks in a row of transactions that received from it.

    A COMMIT may be deferred to the next statement on its connection, so its outcome may be unconfirmed for a while.

    Args:
        connections: lends a connection without an open transaction.
        clock: returns the time of events.
        disable: returns the steps that disable a queue.
        events: records the event of a disabled queue.
        tally: counts rollbacks.
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

    def share_counts_with(self, other: Any) -> None:
        """Share counts and events with the detector of `other`: the same instance, for threads and for asyncio."""
        self._events, self._rollbacks, self._lock = other._events, other._rollbacks, other._lock

    def note_receive(self, transaction: int, queue_id: int) -> None:
        """Note that a transaction of this process received. Does nothing here: the transaction reports its end."""

    def note_unknown_outcome(self, transaction: int, queues: Iterable[int]) -> None:
        """Note that a transaction received from these queues. Its outcome is queried later (`resolve_outcomes`)."""
        with self._lock:
            self._rollbacks.note_unknown_outcome(transaction, queues)

    def note_commit(self, queues: Iterable[int]) -> None:
        """Note that a transaction that received from these queues was committed."""
        with self._lock:
            self._rollbacks.note_commit(queues)

    async def count_rollback(self, connection: psycopg.AsyncConnection[Any], queues: Iterable[int]) -> None:
        """Count the rollback of a transaction that received from these queues. `connection` has no open transaction."""
        with self._lock:
            reached = self._rollbacks.count_rollback(queues)
        for queue_id in reached:
            if connection.closed:
                with contextlib.suppress(InstanceError):
                    async with self._connections() as other:
                        await self._disable(other, queue_id)
            else:
                await self._disable(connection, queue_id)

    def note_deferred_commit(
        self, connection: psycopg.AsyncConnection[Any], received_from: set[tuple[int, int]]
    ) -> None:
        """Note a deferred COMMIT, which is sent with the next statement on the connection.

        `received_from` are the transaction ids and queues of its RECEIVEs.
        """
        self._unconfirmed[connection] = received_from

    def confirm_commit(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Note that the deferred COMMIT succeeded."""
        self.note_commit({queue_id for _, queue_id in self._unconfirmed.pop(connection, ())})

    def note_unknown_commit(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Note that the outcome of a deferred COMMIT is unknown, so that `resolve_outcomes` queries it."""
        for transaction, queue_id in self._unconfirmed.pop(connection, ()):
            self.note_unknown_outcome(transaction, [queue_id])

    def forget_commit(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Forget a deferred COMMIT that failed; its rollback does not count. Return whether there was one."""
        return self._unconfirmed.pop(connection, None) is not None

    async def resolve_if_due(self, queue_id: int) -> None:
        """Query unknown outcomes before a RECEIVE, if they may bring the queue to the limit of rollbacks."""
        with self._lock:
            due = self._rollbacks.is_due(queue_id)
        if due:
            with contextlib.suppress(InstanceError):
                async with self._connections() as connection:
                    await self.resolve_outcomes(connection)

    async def resolve_outcomes(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Query the outcomes of transactions from the server, and disable queues that have reached the limit."""
        with self._lock:
            pending = self._rollbacks.pending()
        try:
            outcomes = await run(connection, find_outcomes(pending)) if pending else {}
        except psycopg.Error as problem:
            _LOG.debug("poison detection: %s", problem)
            return
        if rollbacks := list(outcomes.values()).count("aborted"):
            self._tally.add(ROLLBACKS, rollbacks)
        with self._lock:
            reached = self._rollbacks.count_outcomes(outcomes)
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
