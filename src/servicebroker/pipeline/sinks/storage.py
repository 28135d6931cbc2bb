"""Where tables live: a local folder, or one in an object store, which deltalake reaches with what the environment says.

The rules: "Where tables live" in docs/reference/pipeline-file.md; why they are so: decision 233.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from servicebroker.model.errors import InstanceError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

STORES = ("s3", "s3a", "gs", "abfss", "hdfs")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # in which deltalake draws chains of causes, with arrows


@dataclass(frozen=True)
class StoreFolder:
    """A folder of an object store: it is there as soon as something is in it, and what was written is durable."""

    url: str

    def __truediv__(self, name: str) -> StoreFolder:
        return StoreFolder(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url


Folder: TypeAlias = Path | StoreFolder


def folder_at(text: str, beside: Path) -> Folder:
    """The folder that a path or URL names; a relative path goes on from `beside`.

    Raises:
        ValueError: there are no tables in such a place, or it holds credentials.
    """
    parts = urlsplit(text)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if "://" not in text:
        return beside / text
    if parts.scheme not in STORES:
        stores = ", ".join(f"{store}://" for store in STORES)
        raise ValueError(f"tables are in local folders, or at {stores}, not at {parts.scheme}://")
    if parts.password is not None or (parts.username is not None and parts.scheme != "abfss"):
        raise ValueError("credentials belong into the environment, not into a URL")
    if parts.query or parts.fragment:
        raise ValueError("a URL of tables ends with their path, and credentials belong into the environment")
    if not parts.hostname:
        raise ValueError(f"'{text}' names no bucket, container or host")
    return StoreFolder(text.rstrip("/"))


def files_in(folder: Folder) -> FileSystem:
    """The files of a folder, by their names in it."""
    from pyarrow import fs

    if isinstance(folder, StoreFolder):
        return _store(folder.url)
    return fs.SubTreeFileSystem(str(folder.absolute()), fs.LocalFileSystem())


@lru_cache(maxsize=100)
def _store(url: str) -> FileSystem:
    from deltalake.fs import DeltaStorageHandler
    from pyarrow import fs

    return fs.PyFileSystem(DeltaStorageHandler(url, {}))


def names_in(folder: Folder, ending: str, *, before: float | None = None) -> list[str]:
    """The files right in a folder whose names end so, in their order; none where there is no folder.

    `before`: seconds since 1970; only those that were written earlier.

    Raises:
        InstanceError: it cannot be read.
    """
    from pyarrow import fs

    try:
        found = files_in(folder).get_file_info(fs.FileSelector("", allow_not_found=True))
    except OSError as problem:
        raise InstanceError(f"The folder '{folder}' cannot be read: {plain(problem)}.") from None
    wanted = [one for one in found if one.is_file and one.path.endswith(ending)]
    return sorted(one.path for one in wanted if before is None or (one.mtime_ns or 0) < before * 1e9)


def move(folder: Folder, name: str, new: str) -> None:
    """Give a file another name: it is always whole, in a store for a moment under both."""
    files_in(folder).move(name, new)


def remove(folder: Folder, name: str) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError):
        files_in(folder).delete_file(name)


def make(folder: Folder) -> None:
    """Make a folder, if it is not there."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)


def flush(place: Folder) -> None:
    """Make a file, or the names in a folder, survive a power failure."""
    if isinstance(place, StoreFolder):
        return
    descriptor = os.open(place, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def now() -> int:
    """The time as tables note it of their files: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def has_table(folder: Folder) -> bool:
    """Whether there is a Delta table.

    Raises:
        InstanceError: the store cannot be asked.
    """
    from deltalake import DeltaTable

    if isinstance(folder, Path) and not folder.exists():
        return False
    try:
        return bool(DeltaTable.is_deltatable(str(folder)))
    except OSError as problem:
        raise InstanceError(f"The Delta table '{folder}' cannot be read: {plain(problem)}.") from None


def plain(problem: Exception) -> str:
    """What deltalake says, on one line and without what it draws."""
    return " ".join(
        _COLOURS.sub("", str(problem)).replace("\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}", ":").split()
    ).rstrip(".")
