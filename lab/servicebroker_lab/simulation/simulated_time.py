"""Time that jumps from one event to the next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from random import Random

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)  # when every run begins


class Loop:
    """Events in the order of their time, then of their making; one source of randomness."""

    def __init__(self, seed: int, trace: Callable[[str], object] | None = None) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()
        self._trace = trace

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` in `delay` seconds."""
        self.at(self.now + delay, action)

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Run `action` at a moment, now when it is over."""
        heappush(self._events, (max(moment, self.now), next(self._count), action))

    def run(self, until: float) -> None:
        """Run what comes before `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heappop(self._events)
            action()
        self.now = until

    def below(self, count: int) -> int:
        """A number from 0 up to and without `count`; as much chance is used up for one count as for another."""
        return int(self.random.random() * count)

    def happens(self, rate: float) -> bool:
        """Return whether something of this probability happens now."""
        return rate > 0 and self.random.random() < rate

    def trace(self, who: object, *what: object) -> None:
        """Trace an event, if tracing is on."""
        if self._trace is not None:
            self._trace(f"{self.now:9.3f} {who}: {' '.join(map(str, what))}")
