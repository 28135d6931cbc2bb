"""Storage of tables: a local folder or a folder of an object store, with credentials from the environment.

The rules: "Location of tables" in docs/reference/pipeline-file.md; the reasons: decision 533.
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
from servicebroker.overriding import override

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

STORE_SCHEMES = ("s3", "s3a", "gs", "abfss", "hdfs")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/{1,2}")  # dbfs:/ and s3://, but not a drive letter such as C:/
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # terminal colours, with which deltalake prints chains of causes


@dataclass(frozen=True)
class StoreFolder:
    """A folder of an object store. It need not be created, and every file in it is durable."""

    url: str

    def __truediv__(self, name: str) -> StoreFolder:
        return StoreFolder(f"{self.url}/{name}")

    @override
    def __str__(self) -> str:
        return self.url


Folder: TypeAlias = Path | StoreFolder


def folder_at(text: str, base: Path) -> Folder:
    """Return the folder at a path or URL. A relative path starts at `base`.

    Raises:
        ValueError: the location is not supported, or the URL holds credentials.
    """
    if "\0" in text:
        raise ValueError("the path of a folder has no NUL")
    parts = urlsplit(text)
    if parts.scheme == "file":
        if parts.hostname not in (None, "localhost"):
            raise ValueError(f"a file URL names a folder of this machine, not of '{parts.hostname}'")
        if "%00" in parts.path:
            raise ValueError("the path of a folder has no NUL")
        return Path(unquote(parts.path))
    scheme = _SCHEME.match(text)
    if scheme is None:
        return base / text
    if "://" not in text or parts.scheme not in STORE_SCHEMES:
        stores = ", ".join(f"{store}://" for store in STORE_SCHEMES)
        raise ValueError(f"tables are in local folders, or at {stores}, not at {scheme[0]}")
    if parts.password is not None or (parts.username is not None and parts.scheme != "abfss"):
        raise ValueError("credentials belong in the environment, not in a URL")
    if parts.query or parts.fragment:
        raise ValueError("remove ?... and #... from the URL of tables; credentials belong in the environment")
    if not parts.hostname:
        raise ValueError(f"'{text}' names no bucket, container or host")
    return StoreFolder(text.rstrip("/"))


def filesystem_of(folder: Folder) -> FileSystem:
    """Return a file system rooted at a folder."""
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
    """Return the sorted names of the files in a folder that end with `ending`, without subfolders.

    A missing folder has no files. `before`: only files written earlier than this time, in seconds since 1970.

    Raises:
        InstanceError: the folder cannot be read.
    """
    from pyarrow import fs

    try:
        entries = filesystem_of(folder).get_file_info(fs.FileSelector("", allow_not_found=True))
    except OSError as problem:
        raise InstanceError(f"The folder '{folder}' cannot be read: {plain(problem)}.") from None
    files = [file for file in entries if file.is_file and file.path.endswith(ending)]
    return sorted(file.path for file in files if before is None or (file.mtime_ns or 0) < before * 1e9)


def move(folder: Folder, name: str, new: str) -> None:
    """Rename a file. Readers never see a part of it. In a store it exists under both names for a short time."""
    filesystem_of(folder).move(name, new)


def remove(folder: Folder, name: str) -> None:
    """Remove a file, if it exists."""
    with suppress(FileNotFoundError):
        filesystem_of(folder).delete_file(name)


def create_folder(folder: Folder) -> None:
    """Create a local folder, if it is missing."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)


def flush(path: Folder) -> None:
    """Flush a file, or a folder's entries, to disk, so that they survive a power failure."""
    if isinstance(path, StoreFolder):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def now() -> int:
    """Return the present time in milliseconds since 1970, as tables record it for files."""
    return time.time_ns() // 1_000_000


def has_table(folder: Folder) -> bool:
    """True if the folder has a Delta table.

    Raises:
        InstanceError: the store cannot be reached.
    """
    from deltalake import DeltaTable

    if isinstance(folder, Path) and not folder.exists():
        return False
    try:
        return bool(DeltaTable.is_deltatable(str(folder)))
    except OSError as problem:
        raise InstanceError(f"The Delta table '{folder}' cannot be read: {plain(problem)}.") from None


def plain(problem: Exception) -> str:
    """Return the text of a deltalake error on one line, without colours and arrows."""
    return " ".join(
        _COLOURS.sub("", str(problem)).replace("\N{DOWNWARDS ARROW WITH TIP RIGHTWARDS}", ":").split()
    ).rstrip(".")
