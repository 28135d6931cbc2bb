"""File access for pyiceberg: files of table metadata are read and written through `storage.py`, durably."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyiceberg.io.pyarrow import PyArrowFile

from servicebroker.pipeline.sinks.storage import Folder, create_folder, filesystem_of, flush, folder_at

if TYPE_CHECKING:
    from pyarrow import NativeFile


# Below the stream's buffer size: pyarrow hands a larger write to the file unbuffered, and files of object stores
# accept only bytes.
_WRITE_CHUNK_BYTES = 1 << 20


class TableFiles:
    """The `py-io-impl` for pyiceberg's catalogs. A written file is on disk before a catalog names it."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def new_input(self, location: str) -> PyArrowFile:
        """Return a file to read."""
        folder, name = _split_location(location)
        return PyArrowFile(location, name, filesystem_of(folder))

    def new_output(self, location: str) -> Output:
        """Return a file to write."""
        return Output(location)

    def delete(self, location: Any) -> None:
        """Delete a file."""
        folder, name = _split_location(location if isinstance(location, str) else location.location)
        filesystem_of(folder).delete_file(name)


class Output:
    """A file to write."""

    def __init__(self, location: str) -> None:
        self.location = location

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        """True if the file exists."""
        return bool(self.to_input_file().exists())

    def to_input_file(self) -> PyArrowFile:
        """Return the same file, to read."""
        return TableFiles({}).new_input(self.location)

    def create(self, overwrite: bool = False) -> Stream:
        """Return a stream that writes the file. Each name is new, so no file is ever overwritten."""
        folder, name = _split_location(self.location)
        create_folder(folder)
        return Stream(filesystem_of(folder).open_output_stream(name, buffer_size=2 * _WRITE_CHUNK_BYTES), folder, name)


class Stream:
    """A stream into a file. `close` makes the file durable."""

    def __init__(self, stream: NativeFile, folder: Folder, name: str) -> None:
        self._stream, self._folder, self._name = stream, folder, name

    def write(self, data: bytes) -> int:
        """Add bytes."""
        for start in range(0, len(data), _WRITE_CHUNK_BYTES):
            self._stream.write(data[start : start + _WRITE_CHUNK_BYTES])
        return len(data)

    def close(self) -> None:
        """Close the file, and flush it and its folder entry to disk."""
        if self._stream.closed:
            return
        self._stream.close()
        flush(self._folder / self._name)
        flush(self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _split_location(location: str) -> tuple[Folder, str]:
    folder, _, name = location.rpartition("/")
    return folder_at(folder, Path.cwd()), name
