"""A queue whose monitor runs in this process, and its tasks."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from servicebroker.activation.task import Stop
from servicebroker.engine.activation.monitors import Definition
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

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to do for a reader."""
        return self.monitor.state != MonitorState.NOTIFIED and len(self.tasks) <= self.waiting

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
