"""A queue whose monitor runs in this process, and its tasks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from servicebroker.activation.stop import Stop
from servicebroker.engine.activation.monitors import Definition, Glance
from servicebroker.protocol.queue_monitor import NEW, Monitor, MonitorState


@dataclass
class Watched:
    """A queue whose monitor runs here, and its tasks."""

    definition: Definition
    is_on: bool = True  # else its tasks are about to end
    is_ours: bool = True  # the lease; else the database was lost
    monitor: Monitor = NEW
    tasks: dict[threading.Thread, Stop] = field(default_factory=dict)
    waiting: int = 0
    due: datetime | None = None
    shown: tuple[Any, ...] = ()
    counters: tuple[Any, ...] = ()  # of the last glance
    settles: int | None = None  # once every transaction below it has ended, a look sees all that the counters tell of
    is_settled: bool = False  # the queue is empty, and stays so while the counters are what they are

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to do for a reader."""
        return self.monitor.state != MonitorState.NOTIFIED and len(self.tasks) <= self.waiting

    def wants_look(self, glance: Glance, following: int) -> bool:
        """Whether there may be something that no look has seen yet: a transaction that has put it there goes on.

        Who puts a message into a queue draws its number after it has its transaction's id, so that no transaction from
        `following` on, after the glance that has found the counters as they were, has put there what they count.
        """
        if glance.counters != self.counters:
            self.unsettle()
            self.counters = glance.counters
        elif self.settles is None:
            self.settles = following
        return glance.is_due or not self.is_settled

    def unsettle(self) -> None:
        """Look at each glance again, until nothing can come that was not seen."""
        self.counters, self.settles, self.is_settled = (), None, False

    def may_settle(self, oldest: int) -> bool:
        """Whether a look after a glance with this `oldest` has seen all that the counters tell of, and nobody reads."""
        seen = self.settles is not None and oldest >= self.settles
        return seen and not self.is_settled and not self.tasks and self.monitor.state == MonitorState.INACTIVE

    @property
    def wants_to_be_told(self) -> bool:
        """Whether a SEND is to notify: while nobody reads. Later looks are enough for the rest."""
        return self.is_on and not self.tasks and self.monitor.state != MonitorState.NOTIFIED

    def news(self, now: datetime, here: float) -> tuple[Any, ...] | None:
        """What sys.dm_broker_queue_monitors is to show, when that is new; `here` is `now` on the monitor's clock."""

        def at(moment: float | None) -> datetime | None:
            return None if moment is None else now - timedelta(seconds=here - moment)

        monitor = self.monitor
        new = (monitor.state, monitor.last_empty, monitor.last_activated, self.waiting)
        if new == self.shown:
            return None
        self.shown = new
        times = at(monitor.last_empty), at(monitor.last_activated)
        return self.definition.queue_id, str(monitor.state), *times, self.waiting
