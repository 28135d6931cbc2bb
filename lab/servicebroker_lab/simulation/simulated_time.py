"""Simulated time, which jumps from one event to the next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from heapq import heappop, heappush
from itertools import count
from random import Random

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)  # when every run begins


class Loop:
    """A queue of events in the order of their time, then of their creation, and the random generator of a run."""

    def __init__(self, seed: int, trace: Callable[[str], object] | None = None) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = count()
        self._trace = trace

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` in `delay` seconds."""
        self.at(self.now + delay, action)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Run `action` at a time, or now if that has passed."""
        heappush(self._events, (max(time, self.now), next(self._count), action))

    def run(self, until: float) -> None:
        """Run the events up to the time `until`."""
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heappop(self._events)
            action()
        self.now = until

    def below(self, count: int) -> int:
        """Draw a number from 0 to `count` - 1. Each call consumes the same amount of randomness."""
        return int(self.random.random() * count)

    def happens(self, rate: float) -> bool:
        """Draw whether an event with this probability happens."""
        return rate > 0 and self.random.random() < rate

    def trace(self, subject: object, *event: object) -> None:
        """Trace an event, if tracing is on."""
        if self._trace is not None:
            self._trace(f"{self.now:9.3f} {subject}: {' '.join(map(str, event))}")
