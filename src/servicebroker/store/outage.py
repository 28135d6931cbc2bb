"""Log a lost database connection: at once, and then once a minute while reconnecting fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from servicebroker.store.connection import one_line

REPEAT_INTERVAL_S = 60.0  # the time before the same message is logged again


class Outage:
    """Logs the failures of one thread to use its database. Each warning begins with `text`."""

    def __init__(self, log: logging.Logger, text: str, seconds: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._text = text
        self._seconds = seconds
        self._logged = ""
        self._repeat_at = 0.0

    def report(self, problem: Exception) -> None:
        """Log a failure. The same message is logged again only after `REPEAT_INTERVAL_S`."""
        message, now = one_line(problem), self._seconds()
        if message != self._logged or now >= self._repeat_at:
            self._log.warning("%s: %s", self._text, message)
            self._logged, self._repeat_at = message, now + REPEAT_INTERVAL_S

    def end(self) -> None:
        """Record the end of the outage, so that the next failure is logged at once."""
        self._logged = ""
