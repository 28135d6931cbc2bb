"""Counts of the verbs of one process, until the background of its instance adds them to the totals."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from servicebroker.engine.diagnosis.totals import ENQUEUED


class Tally:
    """Counts by the name of the counter. Any thread may use one."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, counter: str, many: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._counts[counter] += many

    def enqueued(self, priority: int, many: int) -> None:
        """Count messages of a priority that were put into a queue."""
        with self._lock:
            self._counts[ENQUEUED[priority]] += many

    def take(self) -> dict[str, int]:
        """Return the counts since the last call, and reset them."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return dict(taken)

    def put_back(self, counts: Mapping[str, int]) -> None:
        """Add counts that could not be written, so that they are written with the next ones."""
        with self._lock:
            self._counts.update(counts)
