"""The rate limit of a worker in one process: messages per second, spread evenly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_SLACK_S = 0.05  # delay of a reader that costs no token, so that many readers reach a high rate


class RateLimit:
    """A token bucket for the readers of a worker. A reader takes a token before it receives.

    Args:
        per_second: messages.
        clock: returns seconds of a monotonic clock.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 1 / per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._next = clock()  # the time from which the next message may be received

    def take(self) -> float:
        """Take the token of one message. Return 0.0, or the seconds after which to try again."""
        with self._lock:
            now = self._clock()
            if self._next > now:
                return self._next - now
            self._next = max(self._next, now - _SLACK_S) + self._interval
            return 0.0

    def settle(self, received: int) -> None:
        """Count the messages received for one token. Zero returns the token; each further message costs another one."""
        with self._lock:
            self._next += (received - 1) * self._interval
