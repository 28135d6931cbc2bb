"""What activated procedures print goes to the log, line by line; what others print goes where it went."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TextIO

Say = Callable[[str], None]


class _Lines:
    """Pieces of text, said line by line."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._begun = ""

    def write(self, text: str) -> None:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                self._say(line)


_current: ContextVar[_Lines | None] = ContextVar("servicebroker_output", default=None)


@contextlib.contextmanager
def said_by(say: Say) -> Iterator[None]:
    """What is printed in the block, in this thread or a coroutine it starts, is for `say`, where `captured` is on."""
    lines = _Lines(say)
    token = _current.set(lines)
    try:
        yield
    finally:
        lines.write("\n")
        _current.reset(token)


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """In the block, standard output is looked through for what procedures print. For a process of our own."""
    before = sys.stdout
    sys.stdout = _Output(before)
    try:
        yield
    finally:
        sys.stdout = before


class _Output(io.TextIOBase):
    def __init__(self, other: TextIO) -> None:
        self._other = other

    def write(self, text: str) -> int:
        lines = _current.get()
        if lines is None:
            return self._other.write(text)
        lines.write(text)
        return len(text)

    def flush(self) -> None:
        self._other.flush()

    def fileno(self) -> int:
        return self._other.fileno()  # a prompt asks it how wide the terminal is

    def isatty(self) -> bool:
        return self._other.isatty()
