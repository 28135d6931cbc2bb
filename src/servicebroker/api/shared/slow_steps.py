"""Log messages for steps of `open` that take longer than a second."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from servicebroker.model.reporting import report
from servicebroker.model.wording import cleaned

SLOW_STEP_S = 1.0  # the longest silence before a user thinks that the program hangs

_STANDARD_ERROR = 2  # its file descriptor

_LOG = logging.getLogger("servicebroker")


@contextmanager
def logged_if_slow(step: str) -> Iterator[None]:
    """Log the step if the block takes longer than a second.

    If no log handler is configured and standard error is a terminal, the level is WARNING, so that Python prints it.
    """
    timer = threading.Timer(SLOW_STEP_S, _log_step, (step,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _log_step(step: str) -> None:
    is_last_resort = not _LOG.hasHandlers() and os.isatty(_STANDARD_ERROR)
    report(_LOG, logging.WARNING if is_last_resort else logging.INFO, "%s ...", cleaned(step))
