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
    is_on: bool = True  # else its tasks are asked to stop
    has_lease: bool = True  # else the connection was lost
    monitor: Monitor = NEW
    tasks: dict[threading.Thread, StopSignal] = field(default_factory=dict)
    waiting: int = 0
    due: datetime | None = None
    shown: tuple[Any, ...] = ()
    counters: tuple[Any, ...] = ()  # of the last check
    settled_from: int | None = None  # a check sees all counted messages once every transaction below this id has ended
    is_known_empty: bool = False  # the queue is empty as long as the counters do not change

    @property
    def is_quiet(self) -> bool:
        """True if no reader has anything to do."""
        return self.monitor.state != MonitorState.NOTIFIED and len(self.tasks) <= self.waiting

    def must_check(self, glance: QueueCounters, next_transaction: int) -> bool:
        """True if there may be messages that no check has seen yet, since the transaction that sent them still runs.

        A sender takes its transaction id before it takes the message number. So no transaction with an id of at least
        `next_transaction` can have added one of the messages counted here.
        """
        if glance.counters != self.counters:
            self.expect_messages()
            self.counters = glance.counters
        elif self.settled_from is None:
            self.settled_from = next_transaction
        return glance.is_due or not self.is_known_empty

    def expect_messages(self) -> None:
        """Check the queue each time, until all counted messages have been seen."""
        self.counters, self.settled_from, self.is_known_empty = (), None, False

    def may_be_empty(self, oldest: int) -> bool:
        """True if nothing reads, and a check after a glance with this `oldest` has seen all counted messages."""
        has_seen_all = self.settled_from is not None and oldest >= self.settled_from
        is_idle = not self.tasks and self.monitor.state == MonitorState.INACTIVE
        return has_seen_all and not self.is_known_empty and is_idle

    @property
    def needs_notification(self) -> bool:
        """True if a SEND has to notify this process, since nothing reads. Otherwise the regular checks suffice."""
        return self.is_on and not self.tasks and self.monitor.state != MonitorState.NOTIFIED

    def changed_row(self, now: datetime, monotonic_now: float) -> MonitorRow | None:
        """Return the row for sys.dm_broker_queue_monitors, None if unchanged.

        `monotonic_now` is `now` on the monitor's clock.
        """

        def at(moment: float | None) -> datetime | None:
            return None if moment is None else now - timedelta(seconds=monotonic_now - moment)

        monitor = self.monitor
        new_state = (monitor.state, monitor.last_empty, monitor.last_activated, self.waiting)
        if new_state == self.shown:
            return None
        self.shown = new_state
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
