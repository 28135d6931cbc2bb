"""A queue whose monitor runs in this process, with its tasks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from servicebroker.activation.stop_signal import StopSignal
from servicebroker.engine.activation.monitors import Definition, MonitorRow, QueueCounters
from servicebroker.protocol.queue_monitor import NEW, Monitor, MonitorState


@dataclass
class MonitoredQueue:
    """A queue whose monitor runs in this process, with its tasks."""

    definition: Definition
    is_on: bool = True  # False: the queue was switched off, and its tasks were asked to stop
    has_lease: bool = True  # False: the connection was lost, and with it the lease
    monitor: Monitor = NEW
    tasks: dict[threading.Thread, StopSignal] = field(default_factory=dict)
    waiting: int = 0  # readers that wait for a message
    due: datetime | None = None  # the time of the next conversation timer or end of a lifetime
    written: tuple[Any, ...] = ()  # the state that the database has
    counters: tuple[Any, ...] = ()  # the counters of the last check
    # once every transaction below this id has ended, a check sees all counted messages
    visible_from: int | None = None
    is_known_empty: bool = False  # the queue stays empty until the counters change

    @property
    def is_quiet(self) -> bool:
        """True if each reader waits for a message, and no further reader is needed."""
        return self.monitor.state != MonitorState.NOTIFIED and len(self.tasks) <= self.waiting

    def must_check(self, current: QueueCounters, next_transaction: int) -> bool:
        """Check whether the queue may have messages that no check has seen, because their transaction had not ended.

        A sender takes its transaction id before it takes the message number. So no transaction with an id of at least
        `next_transaction` can have added one of the messages counted here.
        """
        if current.counters != self.counters:
            self.expect_messages()
            self.counters = current.counters
        elif self.visible_from is None:
            self.visible_from = next_transaction
        return current.is_due or not self.is_known_empty

    def expect_messages(self) -> None:
        """Check the queue in each round until all counted messages have been seen."""
        self.counters, self.visible_from, self.is_known_empty = (), None, False

    def may_be_empty(self, oldest: int) -> bool:
        """Check whether the queue has no reader, and the last check has seen all counted messages.

        `oldest`: the id of the oldest transaction that ran when the counters were read.
        """
        has_seen_all = self.visible_from is not None and oldest >= self.visible_from
        is_idle = not self.tasks and self.monitor.state == MonitorState.INACTIVE
        return has_seen_all and not self.is_known_empty and is_idle

    @property
    def needs_notification(self) -> bool:
        """True if a SEND has to notify this process, because the queue has no reader."""
        return self.is_on and not self.tasks and self.monitor.state != MonitorState.NOTIFIED

    def changed_row(self, now: datetime, monotonic_now: float) -> MonitorRow | None:
        """Return the new row of sys.dm_broker_queue_monitors; None if it is unchanged.

        `monotonic_now` is the time `now` by the monotonic clock, which the monitor uses.
        """

        def at(monotonic_time: float | None) -> datetime | None:
            return None if monotonic_time is None else now - timedelta(seconds=monotonic_now - monotonic_time)

        monitor = self.monitor
        new_state = (monitor.state, monitor.last_empty, monitor.last_activated, self.waiting)
        if new_state == self.written:
            return None
        self.written = new_state
        is_notified = self.definition.procedure is None and monitor.state == MonitorState.NOTIFIED
        return MonitorRow(
            self.definition.queue_id,
            str(monitor.state),
            at(monitor.last_empty),
            at(monitor.last_activated),
            self.waiting,
            self.definition.version if is_notified else None,
            monitor.seen.receives if monitor.seen is not None else 0,
        )
