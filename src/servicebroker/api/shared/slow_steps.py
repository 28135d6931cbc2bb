"""Steps of opening an instance that may take long, told when they take more than a second."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from servicebroker.model.reporting import report
from servicebroker.model.wording import cleaned

SILENCE_S = 1.0  # longer, and a person wonders whether the program hangs

_STANDARD_ERROR = 2  # its file descriptor

_LOG = logging.getLogger("servicebroker")


@contextmanager
def told_if_slow(step: str) -> Iterator[None]:
    """Log the step if the block takes longer than a second.

    Without any handler of logs, a person at a terminal reads it as a warning.
    """
    timer = threading.Timer(SILENCE_S, _tell, (step,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(step: str) -> None:
    is_last_resort = not _LOG.hasHandlers() and os.isatty(_STANDARD_ERROR)
    report(_LOG, logging.WARNING if is_last_resort else logging.INFO, "%s ...", cleaned(step))
