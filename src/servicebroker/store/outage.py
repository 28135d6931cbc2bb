"""Log messages about a lost database: at the loss, then once a minute, though it is retried each second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from servicebroker.store.connection import one_line

REPEAT_S = 60.0  # seconds until the same message is logged again


class Outage:
    """The warnings of one thread about its database, which begin with `text`."""

    def __init__(self, log: logging.Logger, text: str, seconds: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._text = text
        self._seconds = seconds
        self._said = ""
        self._say_at = 0.0

    def lost(self, problem: Exception) -> None:
        """Log a lost connection; the same message again only after `REPEAT_S` seconds."""
        said, now = one_line(problem), self._seconds()
        if said != self._said or now >= self._say_at:
            self._log.warning("%s: %s", self._text, said)
            self._said, self._say_at = said, now + REPEAT_S

    def over(self) -> None:
        """Note that it is back, so that the next loss is logged at once."""
        self._said = ""
