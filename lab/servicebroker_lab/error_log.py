"""The log of a process under test: its errors and tracebacks, and its size."""

from __future__ import annotations

import logging

from servicebroker.overriding import override


class ErrorLog(logging.Handler):
    """Collects the log's errors and tracebacks, and counts its characters."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._errors: list[str] = []
        self.characters = 0

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        text = self.format(record)
        self.characters += len(text) + 1
        if record.exc_info or record.levelno >= logging.ERROR:
            self._errors.append(text)

    def take(self) -> list[str]:
        """Return the errors since the last call."""
        errors, self._errors = self._errors, []
        return errors
