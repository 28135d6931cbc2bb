"""The input file: choose it, read its complete lines, and detect that it was replaced since the last run."""

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
_HASHED_BYTES = 4096  # bytes hashed at each end of the part already sent: if they differ, it is another file

BATCH_LINES = 1000  # a batch ends at the first limit that it reaches
BATCH_BYTES = 1024 * 1024


class Position(NamedTuple):
    """The part of a file that was sent: `offset` bytes, `lines` lines.

    The inode, and hashes of the first and last bytes before the offset (`head`, `tail`), identify the file.
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
    """Return the package manager's log, else another readable log, else a text file of Python's library."""
    for name in _LOGS:
        if os.access(name, os.R_OK) and os.path.isfile(name) and os.path.getsize(name):
            return Path(name)
    return Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"


def open_source(path: Path) -> BinaryIO:
    """Open the file for reading.

    Raises:
        OSError: the file is missing, unreadable or not a regular file. The text is one sentence.
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
        and (known.head, known.tail) == _end_hashes(file, known.offset)
    ):
        return known
    return Position(inode, 0, 0, *_end_hashes(file, 0))


def advanced(file: BinaryIO, position: Position, batch: Batch) -> Position:
    """Return the position after a batch."""
    return Position(position.inode, batch.end, position.lines + len(batch.lines), *_end_hashes(file, batch.end))


def batches(file: BinaryIO, offset: int, size: int) -> Iterator[Batch]:
    """Yield the complete lines from `offset` up to `size`, in batches. Lines appended later are left out."""
    lines: list[bytes] = []
    batch_bytes = 0
    end = offset
    for line, end in _complete_lines(file.fileno(), offset, size):
        lines.append(line)
        batch_bytes += len(line)
        if len(lines) >= BATCH_LINES or batch_bytes >= BATCH_BYTES:
            yield Batch(lines, end)
            lines, batch_bytes = [], 0
    if lines:
        yield Batch(lines, end)


def _complete_lines(descriptor: int, offset: int, size: int) -> Iterator[tuple[bytes, int]]:
    """Yield each line with the offset after it, without an incomplete last line."""
    parts: list[bytes] = []  # the parts of a line that crosses blocks
    position = offset
    while position < size:
        block = os.pread(descriptor, min(BATCH_BYTES, size - position), position)
        if not block:
            return
        begin = 0
        while (line_feed := block.find(b"\n", begin)) >= 0:
            parts.append(block[begin:line_feed])
            begin = line_feed + 1
            yield b"".join(parts), position + begin
            parts = []
        parts.append(block[begin:])
        position += len(block)


def _end_hashes(file: BinaryIO, offset: int) -> tuple[str, str]:
    """Return hashes of the first and of the last bytes before the offset."""
    length = min(_HASHED_BYTES, offset)
    head = os.pread(file.fileno(), length, 0)
    tail = os.pread(file.fileno(), length, offset - length)
    return hashlib.sha256(head).hexdigest(), hashlib.sha256(tail).hexdigest()
