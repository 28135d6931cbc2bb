"""Log records of failures. A logger runs handlers and filters of the application, which may fail themselves."""

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
    """Log a record. Exceptions of the logger's handlers or filters are ignored."""
    with contextlib.suppress(Exception):
        log.log(level, text, *values, exc_info=exc_info, extra=extra)  # type: ignore[arg-type] # the types that logging accepts
