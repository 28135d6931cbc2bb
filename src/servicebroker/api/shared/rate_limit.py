"""The rate limit of a worker in one process: messages per second, spread evenly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SLACK_S = 0.05  # a reader that is late by so much loses nothing, so that many readers reach a high rate


class RateLimit:
    """A token bucket for the readers of a worker. A reader takes a place before it receives.

    Args:
        per_second: messages.
        clock: seconds, which only grow.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1 / per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock()  # the time from which the next message may be received

    def take(self) -> float:
        """Take the place of one message. Return 0.0, or the seconds after which to try again."""
        with self._lock:
            now = self._clock()
            if self._next > now:
                return self._next - now
            self._next = max(self._next, now - _SLACK_S) + self._interval
            return 0.0

    def settle(self, received: int) -> None:
        """Count the messages that were received on a place: none gives it back, more than one delay the next."""
        with self._lock:
            self._next += (received - 1) * self._interval
