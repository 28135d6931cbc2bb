"""Read files that users name: each may be a device, a pipe, as large as a disk, or replaced during the read.

All files named by commands, definitions, scripts or folders are read by these functions (decision 188). A test searches
for modules that read files in another way.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

BYTES_PER_MIB = 1024 * 1024
MAX_FILE_BYTES = 16 * BYTES_PER_MIB  # bytes of definitions, schemas and configurations: the largest known have 1 MiB


def read_file(path: Path, most: int = MAX_FILE_BYTES, check: Callable[[os.stat_result], object] | None = None) -> bytes:
    """Return the contents of a regular file, without blocking on a pipe.

    `check` gets the status of the opened file, not of the path, which may name another file by now.

    Raises:
        OSError: it cannot be read, is a pipe, a socket or a device, or has more than `most` bytes.
    """
    with _open(path, _open_without_waiting) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "It is a pipe or device, not a file", str(path))
        if check is not None:
            check(status)
        return _read(opened.read(most + 1), most, path)


def read_argument(path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    """Return the contents of a command's file argument. If it is a pipe, wait for its writer, as `cat` does.

    Raises:
        OSError: it cannot be read, or has more than `most` bytes.
    """
    with _open(path) as opened:
        return _read(opened.read(most + 1), most, path)


def read_standard_input(most: int) -> bytes:
    """Return all of standard input.

    Raises:
        OSError: it cannot be read, or has more than `most` bytes.
    """
    return _read(sys.stdin.buffer.read(most + 1), most, Path("standard input"))


def _open(path: Path, opener: Callable[[str, int], int] | None = None) -> BinaryIO:
    """Open a file for reading. A name with U+0000 or a lone surrogate is an OSError, too."""
    try:
        return open(path, "rb", opener=opener)
    except ValueError:
        raise OSError(errno.EINVAL, "No file can have this name", str(path)) from None


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; for a pipe, do not wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read(data: bytes, most: int, path: Path) -> bytes:
    if len(data) > most:
        raise OSError(errno.EFBIG, f"The file has more than {most:,} bytes", str(path))
    return data
