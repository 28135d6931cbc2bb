"""Counters of one process. The maintenance of its instance adds them to the totals in the database."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from servicebroker.engine.diagnosis.totals import ENQUEUED


class Tally:
    """Counts by the name of the counter. Thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, counter: str, number: int = 1) -> None:
        """Add a number to a counter."""
        with self._lock:
            self._counts[counter] += number

    def enqueued(self, priority: int, messages: int) -> None:
        """Count messages of a priority that were put into a queue."""
        with self._lock:
            self._counts[ENQUEUED[priority]] += messages

    def take(self) -> dict[str, int]:
        """Return the counts since the last call, and reset them."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    def put_back(self, counts: Mapping[str, int]) -> None:
        """Add counts that could not be written. The next `take` returns them."""
        with self._lock:
            self._counts.update(counts)
