"""How pyiceberg reads and writes what a table is told in: by the files of `storage`, durably, with its credentials."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyiceberg.io.pyarrow import PyArrowFile

from servicebroker.pipeline.sinks.storage import Folder, files_in, flush, folder_at, make

if TYPE_CHECKING:
    from pyarrow import NativeFile


_PART = 1 << 20  # bytes: what a stream's buffer takes reaches a store's file as the bytes that it wants


class TableFiles:
    """The `py-io-impl` of our catalogs. What it has written is on the disk before a catalog names it."""

    def __init__(self, properties: dict[str, str]) -> None:
        self.properties = properties

    def new_input(self, location: str) -> PyArrowFile:
        """A file to read."""
        folder, name = _place(location)
        return PyArrowFile(location, name, files_in(folder))

    def new_output(self, location: str) -> Output:
        """A file to write."""
        return Output(location)

    def delete(self, location: Any) -> None:
        """Remove a file."""
        folder, name = _place(location if isinstance(location, str) else location.location)
        files_in(folder).delete_file(name)


class Output:
    """A file that is written."""

    def __init__(self, location: str) -> None:
        self.location = location

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        """Whether it is there."""
        return bool(self.to_input_file().exists())

    def to_input_file(self) -> PyArrowFile:
        """The same file, to be read."""
        return TableFiles({}).new_input(self.location)

    def create(self, overwrite: bool = False) -> Stream:
        """Where its bytes go. Each name is new, so there is never anything to overwrite."""
        folder, name = _place(self.location)
        make(folder)
        return Stream(files_in(folder).open_output_stream(name, buffer_size=2 * _PART), folder, name)


class Stream:
    """The bytes of a file, durable when it is closed."""

    def __init__(self, stream: NativeFile, folder: Folder, name: str) -> None:
        self._stream, self._folder, self._name = stream, folder, name

    def write(self, data: bytes) -> int:
        """Add bytes."""
        for start in range(0, len(data), _PART):
            self._stream.write(data[start : start + _PART])
        return len(data)

    def close(self) -> None:
        """Put them on the disk, and the file's name into its folder."""
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
