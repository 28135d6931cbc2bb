"""Log records of failures. The application's own handlers and filters run in a logger, and may fail themselves."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping


def report(
    log: logging.Logger,
    level: int,
    text: str,
    *values: object,
    exc_info: object = None,
    extra: Mapping[str, object] | None = None,
) -> None:
    """Log a record. What a handler or filter of the logger raises ends nobody's work."""
    with contextlib.suppress(Exception):
        log.log(level, text, *values, exc_info=exc_info, extra=extra)  # type: ignore[arg-type] # whatever logging takes
