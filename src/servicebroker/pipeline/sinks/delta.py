"""The sink `servicebroker_delta`: each batch of a query lands in a Delta table once, for every reader of Delta.

Tasks write Parquet files into the table's folder. They count only once the log of the table names them, and one
entry of that log names all files of a batch together with (query id, batch id).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import unquote

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.options import known_options, whole_number, without_sparks_own
from servicebroker.pipeline.sinks.delta_reader import (
    DeltaReader,
    File,
    arrow_columns,
    check_readable,
    files_of,
    open_table,
    read_file,
    table_schema,
)
from servicebroker.pipeline.sinks.parquet import DataFile, partition_values, write_divided, write_parquet
from servicebroker.pipeline.sinks.storage import Folder, StoreFolder, flush, folder_at, has_table, now, plain
from servicebroker.pipeline.sinks.tables import Batch, Conflict, TableFile, land, opened
from servicebroker.pipeline.spark_task import query_id

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.transaction import AddAction, RemoveAction

LOG = "_delta_log"


@dataclass
class Written(WriterCommitMessage):
    """What one task hands to the commit: who it wrote for, and its files."""

    query_id: str
    files: list[DataFile]


class DeltaSink(DataSource):
    """`df.writeStream.format("servicebroker_delta").option("path", folder)`; output mode append.

    The table is created when it is missing. Its columns are those of the query, timestamps in UTC; of a query that
    delivers parts, those of the source.
    `spark.read` with the same format and path reads a Delta table back (`delta_reader.py`), with `versionAsOf` an older
    version of it.

    Raises:
        InstanceError: no path, one where no tables can be, an option that there is not, or another output mode.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        values = known_options("delta sink", without_sparks_own(options), ("path", "versionAsOf"), ())
        self._folder = _folder(values.get("path"))
        version = whole_number(values, "versionAsOf", -1, 0)
        self._version = None if version < 0 else version

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "servicebroker_delta"

    def schema(self) -> StructType:
        """The columns of the table that is there, for a reader."""
        return table_schema(self._folder, self._version)

    def reader(self, schema: StructType) -> DeltaReader:
        """The rows of the table that is there."""
        return DeltaReader(self._folder, self._version, schema.fieldNames())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DeltaWriter:
        """The writer of a streaming query."""
        if overwrite:
            raise InstanceError("The servicebroker_delta sink only appends: use outputMode('append').")
        if self._version is not None:
            raise InstanceError("The option 'versionAsOf' is for reading: rows go behind the newest version.")
        return DeltaWriter(self._folder, schema)


class DeltaWriter(DataSourceStreamArrowWriter):
    """Writes files in the tasks and names them in the table's log at the end of a batch."""

    def __init__(self, folder: Folder, schema: StructType) -> None:
        from servicebroker.pipeline.stream import rows

        self._folder = folder
        self._schema = _arrow_schema(schema)
        if rows.holds_parts(self._schema.names):
            self._schema = rows.arrow_schema()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override] # as in pyspark's own
        """The rows of one task, in one durable file; none when there are no rows."""
        from servicebroker.pipeline.stream.rows import delivered

        files = write_parquet(delivered(iterator), self._folder, self._schema)
        return Written(query_id("servicebroker_delta"), files)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Land the batch, unless it has landed before."""
        written = [message for message in messages if isinstance(message, Written)]
        files = [file for message in written for file in message.files]
        if files:
            land(DeltaPlace(self._folder), self._schema, files, (written[0].query_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: the files stay unnamed, or the batch has landed and Spark does not know."""


def ensure_table(folder: Folder, schema: StructType) -> None:
    """Create the table when it is missing, so that it can be read before the first batch lands.

    Raises:
        InstanceError: there is one with other columns.
    """
    opened(DeltaPlace(folder), _arrow_schema(schema))


@dataclass(frozen=True)
class DeltaPlace:
    """The folder of a Delta table."""

    folder: Folder
    kind: ClassVar[str] = "Delta"

    def __str__(self) -> str:
        return str(self.folder)

    def is_there(self) -> bool:
        """Whether the folder has a log."""
        return has_table(self.folder)

    def open(self) -> OpenDelta:
        """The newest version."""
        return _opened(self.folder, open_table(self.folder))

    def made(self, columns: pa.Schema, partition_by: Sequence[str]) -> OpenDelta:
        """The newest version, made where there is none."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError, TableNotFoundError

        place = str(self.folder)
        try:
            table = DeltaTable(place)
        except TableNotFoundError:
            try:
                table = DeltaTable.create(place, Schema.from_arrow(columns), partition_by=list(partition_by))
            except DeltaError:  # somebody else was faster
                table = DeltaTable(place)
        check_readable(self.folder, table)
        return _opened(self.folder, table)

    def write(self, rows: pa.Table, partition_by: Sequence[str]) -> list[DataFile]:
        """Files in the folder, which the log does not name yet."""
        return write_divided(rows, self.folder, partition_by)

    @contextlib.contextmanager
    def said(self) -> Iterator[None]:
        """What deltalake refuses, as a sentence."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as problem:
            raise InstanceError(f"The Delta table '{self}' cannot be changed: {plain(problem)}.") from None

    def overwrite(self, rows: pa.Table) -> None:
        """A version with these rows and columns."""
        from deltalake import write_deltalake

        write_deltalake(str(self.folder), rows, mode="overwrite")

    def merge_files(self) -> tuple[int, int]:
        """By deltalake's own means."""
        table = open_table(self.folder)
        before = table.version()
        with _conflicts(self.folder, before):
            told = table.optimize.compact()
        flush_changes(self.folder, before)
        return told["numFilesRemoved"], told["numFilesAdded"]

    def remove_files(self, keep_hours: float, *, left_over: bool) -> int:
        """By deltalake's own means."""
        table = open_table(self.folder)
        before = table.version()
        with _conflicts(self.folder, before):
            removed = table.vacuum(
                retention_hours=round(keep_hours), dry_run=False, enforce_retention_duration=False, full=left_over
            )
        flush_log(self.folder, before)
        return len(removed)


@dataclass(frozen=True)
class OpenDelta:
    """A version of a Delta table."""

    folder: Folder
    table: DeltaTable

    @property
    def columns(self) -> pa.Schema:
        """The columns of the version."""
        return arrow_columns(self.table)

    @property
    def partition_by(self) -> list[str]:
        """The columns whose values stand in the log."""
        return self.table.metadata().partition_columns

    def files(self) -> list[TableFile]:
        """The files of the version."""
        return files_of(self.table)

    def read(self, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a file."""
        return read_file(File.of(self.folder, file, schema))

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Files in the folder, which the log does not name yet."""
        return write_divided(rows, self.folder, self.partition_by)

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that the log knows."""
        from deltalake.exceptions import DeltaError

        try:
            return self.table.transaction_version(query)
        except (DeltaError, OSError) as problem:
            raise InstanceError(f"The Delta table '{self.folder}' cannot be read: {plain(problem)}.") from None

    def keep(self, query: str) -> None:
        """Flush what the log says of it."""
        flush_landed(self.folder, query)

    def add(self, files: list[DataFile], batch: Batch) -> None:
        """One entry of the log with the files and the batch.

        Others may append in between. deltalake refuses when another commit with this query came after the table was
        opened, so of two writers of one batch the second sees it landed at its next look.
        """
        self._commit([_add(file) for file in files], "append", _properties(batch))

    def exchange(self, gone: list[TableFile], come: list[DataFile], batch: Batch | None = None) -> None:
        """One entry of the log, right behind this version."""
        from deltalake.transaction import RemoveAction

        actions: list[AddAction | RemoveAction] = [_add(file) for file in come]
        actions += [RemoveAction(file.name, True, now(), file.size, partition_values(file.partition)) for file in gone]
        self._commit(actions, "append", _properties(batch, max_commit_retries=0))

    def gets(self, columns: pa.Schema) -> bool:
        """New columns go into the log alone; Delta that every reader knows has no other types beside old files."""
        from deltalake import Schema

        there = self.columns
        if any(columns.field(field.name).type != field.type for field in there):
            return False
        before = self.table.version()
        added = [field for field in Schema.from_arrow(columns).fields if field.name not in there.names]
        with _conflicts(self.folder, before):
            self.table.alter.add_columns(added, commit_properties=_properties(None, max_commit_retries=0))
        flush_log(self.folder, before + 1)
        return True

    def become(self, columns: pa.Schema, parts: Iterator[pa.Table]) -> None:
        """One entry of the log that names all files anew, right behind this version."""
        from deltalake import Schema

        actions = [_add(file) for part in parts for file in self.write(part)]
        schema = Schema.from_arrow(columns)
        self._commit(actions, "overwrite", _properties(None, max_commit_retries=0), schema)

    def _commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        mode: Literal["append", "overwrite"],
        properties: CommitProperties,
        schema: Schema | None = None,
    ) -> None:
        flush(self.folder)
        with _conflicts(self.folder, self.table.version()):
            self.table.create_write_transaction(
                list(actions),
                mode,
                schema or self.table.schema(),
                partition_by=self.partition_by,
                commit_properties=properties,
            )
        flush_log(self.folder, self.table.version())


_ASKS = ("delta.generationExpression", "delta.identity.start", "delta.invariants")  # of a column, in its metadata
_CONSTRAINT = "delta.constraints."


def _opened(folder: Folder, table: DeltaTable) -> OpenDelta:
    """A version that may be written behind.

    Raises:
        InstanceError: the table asks its writers for something that nothing here does.
    """
    for name in table.metadata().configuration:
        if name.startswith(_CONSTRAINT):
            raise InstanceError(
                f"The Delta table '{folder}' has the constraint '{name.removeprefix(_CONSTRAINT)}', and nothing here "
                "compares rows with it: drop it."
            )
    for field in table.schema().fields:
        asks = [name for name in _ASKS if name in field.metadata]
        if asks:
            raise InstanceError(
                f"The column '{field.name}' of the Delta table '{folder}' has {asks[0]}, which nothing here heeds: "
                "make it a plain column, or drop it."
            )
    return OpenDelta(folder, table)


def _properties(batch: Batch | None, max_commit_retries: int | None = None) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    known = [Transaction(*batch)] if batch else None
    return CommitProperties(max_commit_retries=max_commit_retries, app_transactions=known)


@contextlib.contextmanager
def _conflicts(folder: Folder, version: int) -> Iterator[None]:
    """A commit behind `version` that is refused has met another one, where there is one now."""
    from deltalake.exceptions import CommitFailedError

    try:
        yield
    except CommitFailedError as problem:
        raise Conflict(plain(problem), is_seen=open_table(folder).version() > version) from None


def _add(file: DataFile) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(file.name, file.size, file.partition, file.modification_time, True, file.stats)


def flush_log(folder: Folder, since: int) -> None:
    """The queue forgets a batch once it has landed: until then its entry in the log must be on the disk.

    `since`: the version that the batch was added to, whose writer may not have come to this yet.
    """
    for entry in _entries(folder, since, ".json", ".checkpoint.parquet"):
        flush(entry)
    flush(folder / LOG)


def flush_changes(folder: Folder, before: int) -> None:
    """What deltalake itself has written since the version `before` is on the disk: files, then the log."""
    entries = _entries(folder, before + 1, ".json")
    added = [unquote(add["path"]) for entry in entries for add in _actions(entry, "add")]
    for name in added:
        with contextlib.suppress(FileNotFoundError):  # a compaction has put another in its place since
            flush(folder / name)
    for inner in {inner for name in added for inner in Path(name).parents}:
        flush(folder / str(inner))
    flush_log(folder, before)


def flush_landed(folder: Folder, query_id: str) -> None:
    """Make the last batch of a query durable, whose writer may have died before it could."""
    for entry in reversed(_entries(folder, 0, ".json")):
        if any(landed["appId"] == query_id for landed in _actions(entry, "txn")):
            flush_changes(folder, int(entry.stem) - 1)
            return


def _entries(folder: Folder, since: int, *kinds: str) -> list[Path]:
    """The files of these kinds that the log has from a version on, in order; none in a store, where all is durable."""
    if isinstance(folder, StoreFolder):
        return []
    return sorted(
        entry for entry in (folder / LOG).glob("[0-9]*") if entry.name >= f"{since:020}" and entry.name.endswith(kinds)
    )


def _actions(entry: Path, kind: str) -> list[dict[str, Any]]:
    """The actions of one kind that an entry of the log holds."""
    lines = entry.read_bytes().split(b"\n")  # and at no other character that ends a line of text
    actions = (json.loads(line) for line in lines if line)
    return [action[kind] for action in actions if kind in action]


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _folder(path: str | None) -> Folder:
    if not path:
        raise InstanceError("The servicebroker_delta sink needs the option 'path', the folder of the table.")
    try:
        return folder_at(path, Path.cwd())
    except ValueError as problem:
        raise InstanceError(f"The option 'path' of the servicebroker_delta sink: {problem}.") from None
