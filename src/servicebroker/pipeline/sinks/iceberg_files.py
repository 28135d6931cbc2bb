"""File access of pyiceberg for table metadata: over `storage`, durable, and with its credentials."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyiceberg.io.pyarrow import PyArrowFile

from servicebroker.pipeline.sinks.storage import Folder, files_in, flush, folder_at, make

if TYPE_CHECKING:
    from pyarrow import NativeFile


_WRITE_CHUNK_BYTES = 1 << 20  # below the buffer size, so that a store's file gets the bytes objects that it needs


class TableFiles:
    """The `py-io-impl` of our catalogs. Written files are on the disk before a catalog names them."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def new_input(self, location: str) -> PyArrowFile:
        """Return a file to read."""
        folder, name = _place(location)
        return PyArrowFile(location, name, files_in(folder))

    def new_output(self, location: str) -> Output:
        """Return a file to write."""
        return Output(location)

    def delete(self, location: Any) -> None:
        """Delete a file."""
        folder, name = _place(location if isinstance(location, str) else location.location)
        files_in(folder).delete_file(name)


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
        """Return a stream for the file's bytes. Each name is new, so nothing is ever overwritten."""
        folder, name = _place(self.location)
        make(folder)
        return Stream(files_in(folder).open_output_stream(name, buffer_size=2 * _WRITE_CHUNK_BYTES), folder, name)


class Stream:
    """A stream into a file, which is durable when it is closed."""

    def __init__(self, stream: NativeFile, folder: Folder, name: str) -> None:
        self._stream, self._folder, self._name = stream, folder, name

    def write(self, data: bytes) -> int:
        """Add bytes."""
        for start in range(0, len(data), _WRITE_CHUNK_BYTES):
            self._stream.write(data[start : start + _WRITE_CHUNK_BYTES])
        return len(data)

    def close(self) -> None:
        """Flush the file, and its name in the folder."""
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


def _place(location: str) -> tuple[Folder, str]:
    folder, _, name = location.rpartition("/")
    return folder_at(folder, Path.cwd()), name
