"""The input file: choosing it, reading its complete lines, and noticing that it was replaced."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_LOGS = (
    "/var/log/dpkg.log",
    "/var/log/dnf.rpm.log",
    "/var/log/dnf.log",
    "/var/log/pacman.log",
    "/var/log/zypper.log",
    "/var/log/apt/history.log",
    "/var/log/install.log",
    "/var/log/syslog",
    "/var/log/messages",
    "/var/log/system.log",
)
_HASHED_BYTES = 4096  # at each end of the part that was read: they must stay the same

BATCH_LINES = 1000
BATCH_BYTES = 1024 * 1024


class Position(NamedTuple):
    """A position in a file, with the means to tell the file from another one under the same name.

    `offset` and `lines` count what was sent; `head` and `tail` hash the first and last bytes before the offset.
    """

    inode: int
    offset: int
    lines: int
    head: str
    tail: str


class Batch(NamedTuple):
    """Complete lines, without their line feeds, and the offset behind the last one."""

    lines: list[bytes]
    end: int


def default_source() -> Path:
    """The package manager's log of this machine, else another readable log, else a text of Python's library."""
    for name in _LOGS:
        if os.access(name, os.R_OK) and os.path.isfile(name) and os.path.getsize(name):
            return Path(name)
    return Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"


def open_source(path: Path) -> BinaryIO:
    """The file, open for reading.

    Raises:
        OSError: it is missing, unreadable or not a regular file, in one sentence.
    """
    if not path.exists():
        raise FileNotFoundError(f"The input file '{path}' does not exist.")
    if not path.is_file():
        raise OSError(f"The input '{path}' is not a regular file: name a file of lines.")
    try:
        return path.open("rb")
    except OSError as problem:
        raise OSError(f"The input file '{path}' cannot be read: {problem.strerror}.") from None


def resume(file: BinaryIO, known: Position | None) -> Position:
    """Return the position to continue at: `known`, or the start if the file was shrunk or replaced since."""
    inode = os.fstat(file.fileno()).st_ino
    if (
        known is not None
        and known.inode == inode
        and known.offset <= os.fstat(file.fileno()).st_size
        and (known.head, known.tail) == _prints(file, known.offset)
    ):
        return known
    return Position(inode, 0, 0, *_prints(file, 0))


def advanced(file: BinaryIO, position: Position, batch: Batch) -> Position:
    """The position behind a batch."""
    return Position(position.inode, batch.end, position.lines + len(batch.lines), *_prints(file, batch.end))


def batches(file: BinaryIO, offset: int, size: int) -> Iterator[Batch]:
    """The complete lines from `offset` on, as far as the file reached when its `size` was taken."""
    lines: list[bytes] = []
    held = 0
    end = offset
    for line, end in _complete_lines(file.fileno(), offset, size):
        lines.append(line)
        held += len(line)
        if len(lines) >= BATCH_LINES or held >= BATCH_BYTES:
            yield Batch(lines, end)
            lines, held = [], 0
    if lines:
        yield Batch(lines, end)


def _complete_lines(descriptor: int, offset: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Each line with the offset behind it; an unfinished last line is left out."""
    parts: list[bytes] = []  # of a line longer than a block
    place = offset
    while place < size:
        block = os.pread(descriptor, min(BATCH_BYTES, size - place), place)
        if not block:
            return
        begin = 0
        while (feed := block.find(b"\n", begin)) >= 0:
            parts.append(block[begin:feed])
            begin = feed + 1
            yield b"".join(parts), place + begin
            parts = []
        parts.append(block[begin:])
        place += len(block)


def _prints(file: BinaryIO, offset: int) -> tuple[str, str]:
    length = min(_HASHED_BYTES, offset)
    head = os.pread(file.fileno(), length, 0)
    tail = os.pread(file.fileno(), length, offset - length)
    return hashlib.sha256(head).hexdigest(), hashlib.sha256(tail).hexdigest()
