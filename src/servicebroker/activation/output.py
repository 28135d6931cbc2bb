"""Redirect the standard output of activated procedures to the log, line by line. Other output is unchanged."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TextIO

from servicebroker.overriding import override

WriteLine = Callable[[str], None]


class _Lines:
    """Joins pieces of text, and writes complete lines."""

    def __init__(self, write_line: WriteLine) -> None:
        self._write_line = write_line
        self._rest = ""

    def write(self, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                self._write_line(line)


_current: ContextVar[_Lines | None] = ContextVar("servicebroker_output", default=None)


@contextlib.contextmanager
def output_to(write_line: WriteLine) -> Iterator[None]:
    """Send lines printed in the block, by this thread or its coroutines, to `write_line`.

    Lines are redirected only inside `capture_stdout`.
    """
    lines = _Lines(write_line)
    token = _current.set(lines)
    try:
        yield
    finally:
        lines.write("\n")
        _current.reset(token)


@contextlib.contextmanager
def capture_stdout() -> Iterator[None]:
    """Replace standard output in the block, to redirect lines that procedures print.

    Use this only in processes of servicebroker, never in an application's.
    """
    stdout = sys.stdout
    sys.stdout = _Output(stdout)
    try:
        yield
    finally:
        sys.stdout = stdout


class _Output(io.TextIOBase):
    def __init__(self, other: TextIO) -> None:
        self._other = other

    @override
    def write(self, text: str) -> int:
        lines = _current.get()
        if lines is None:
            return self._other.write(text)
        lines.write(text)
        return len(text)

    @override
    def flush(self) -> None:
        self._other.flush()

    @override
    def fileno(self) -> int:
        return self._other.fileno()  # a prompt needs it to read the width of the terminal

    @override
    def isatty(self) -> bool:
        return self._other.isatty()
