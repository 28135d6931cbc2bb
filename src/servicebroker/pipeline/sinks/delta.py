"""The Spark sink `servicebroker_delta`: adds each batch of a query once to a Delta table that any reader can read.

Tasks write Parquet files into the table's folder. The files belong to the table once its log names them. One entry of
the log names all files of a batch, and records (query id, batch id).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import unquote

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import short_repr
from servicebroker.overriding import override
from servicebroker.pipeline.options import known_options, whole_number, without_spark_options
from servicebroker.pipeline.sinks.delta_reader import (
    DeltaReader,
    FilePartition,
    arrow_columns,
    check_readable,
    files_of,
    open_table,
    read_file,
    table_schema,
    version_at,
)
from servicebroker.pipeline.sinks.parquet import DataFile, partition_values, write_divided, write_parquet
from servicebroker.pipeline.sinks.storage import Folder, StoreFolder, flush, folder_at, has_table, now, plain
from servicebroker.pipeline.sinks.tables import Batch, Conflict, TableFile, commit_batch, open_or_alter
from servicebroker.pipeline.spark_task import query_id

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.transaction import AddAction, RemoveAction

LOG_FOLDER = "_delta_log"


@dataclass
class DeltaTaskResult(WriterCommitMessage):
    """The result of one task, for the commit: the query id, and the files that the task wrote."""

    query_id: str
    files: list[DataFile]


class DeltaSink(DataSource):
    """`df.writeStream.format("servicebroker_delta").option("path", folder)`; output mode append.

    The table is created if it is missing. Its columns are those of the query, with timestamps in UTC; for a query that
    delivers parts, those of the source. `spark.read` with the same format and path reads a Delta table
    (`delta_reader.py`), an older version with `versionAsOf` or `timestampAsOf`.

    Raises:
        InstanceError: no path, an invalid path, an unknown option, an invalid version or time, or another output mode.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        names = ("path", "versionAsOf", "timestampAsOf")
        values = known_options("delta sink", without_spark_options(options), names, ())
        self._folder = _folder(values.get("path"))
        version = whole_number(values, "versionAsOf", -1, 0)
        self._version = None if version < 0 else version
        if moment := values.get("timestampasof"):
            if self._version is not None:
                raise InstanceError("The options 'versionAsOf' and 'timestampAsOf' exclude each other.")
            self._version = version_at(self._folder, _time(moment))

    @override
    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "servicebroker_delta"

    @override
    def schema(self) -> StructType:
        """Return the columns of the existing table, for a reader."""
        return table_schema(self._folder, self._version)

    @override
    def reader(self, schema: StructType) -> DeltaReader:
        """Return a reader of the existing table."""
        return DeltaReader(self._folder, self._version, schema.fieldNames())

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DeltaWriter:
        """Return the writer for a streaming query."""
        if overwrite:
            raise InstanceError("The servicebroker_delta sink only appends: use outputMode('append').")
        if self._version is not None:
            raise InstanceError("An older version is only for reading: new rows follow the newest version.")
        return DeltaWriter(self._folder, schema)


class DeltaWriter(DataSourceStreamArrowWriter):
    """Writes files in the tasks, and commits them to the table's log at the end of a batch."""

    def __init__(self, folder: Folder, schema: StructType) -> None:
        from servicebroker.pipeline.stream import rows

        self._folder = folder
        self._schema = _arrow_schema(schema)
        if rows.holds_parts(self._schema.names):
            self._schema = rows.arrow_schema()

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> DeltaTaskResult:  # type: ignore[override] # as in pyspark's own
        """Write the rows of one task into one file, and flush it to disk. Without rows, no file is written."""
        from servicebroker.pipeline.stream.rows import messages_for_sink

        files = write_parquet(messages_for_sink(iterator), self._folder, self._schema)
        return DeltaTaskResult(query_id("servicebroker_delta"), files)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Add the batch to the table, unless the table already has it."""
        results = [message for message in messages if isinstance(message, DeltaTaskResult)]
        files = [file for message in results for file in message.files]
        if files:
            commit_batch(DeltaLocation(self._folder), self._schema, files, (results[0].query_id, batchId))

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the log does not name the files, or the batch was committed and Spark does not know it."""


def ensure_table(folder: Folder, schema: StructType) -> None:
    """Create the table if it is missing, so that it can be read before the first batch.

    Raises:
        InstanceError: the table exists with other columns.
    """
    open_or_alter(DeltaLocation(folder), _arrow_schema(schema))


@dataclass(frozen=True)
class DeltaLocation:
    """The folder of a Delta table."""

    folder: Folder
    kind: ClassVar[str] = "Delta"

    @override
    def __str__(self) -> str:
        return str(self.folder)

    def exists(self) -> bool:
        """True if the folder has a log."""
        return has_table(self.folder)

    def open(self) -> DeltaVersion:
        """Return the newest version."""
        return _writable_version(self.folder, open_table(self.folder))

    def open_or_create(self, columns: pa.Schema, partition_by: Sequence[str]) -> DeltaVersion:
        """Return the newest version of the table. A missing table is created."""
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError, TableNotFoundError

        url = str(self.folder)
        try:
            table = DeltaTable(url)
        except TableNotFoundError:
            try:
                table = DeltaTable.create(url, Schema.from_arrow(columns), partition_by=list(partition_by))
            except DeltaError:  # another writer was faster
                table = DeltaTable(url)
        check_readable(self.folder, table)
        return _writable_version(self.folder, table)

    def write(self, rows: pa.Table, partition_by: Sequence[str]) -> list[DataFile]:
        """Write these rows into files in the folder. The log does not name the files yet."""
        return write_divided(rows, self.folder, partition_by)

    @contextlib.contextmanager
    def raising_instance_errors(self) -> Iterator[None]:
        """Turn errors of deltalake into an InstanceError."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as problem:
            raise InstanceError(f"The Delta table '{self}' cannot be changed: {plain(problem)}.") from None

    def overwrite(self, rows: pa.Table) -> None:
        """Commit a version that has exactly these rows and columns."""
        from deltalake import write_deltalake

        write_deltalake(str(self.folder), rows, mode="overwrite")

    def merge_files(self) -> tuple[int, int]:
        """Merge small files with deltalake's compaction."""
        table = open_table(self.folder)
        before = table.version()
        with _conflicts(self.folder, before):
            metrics = table.optimize.compact()
        flush_changes(self.folder, before)
        return metrics["numFilesRemoved"], metrics["numFilesAdded"]

    def remove_files(self, keep_hours: float, *, with_orphans: bool) -> int:
        """Remove old files with deltalake's vacuum."""
        table = open_table(self.folder)
        before = table.version()
        with _conflicts(self.folder, before):
            removed = table.vacuum(
                retention_hours=round(keep_hours), dry_run=False, enforce_retention_duration=False, full=with_orphans
            )
        flush_log(self.folder, before)
        return len(removed)


@dataclass(frozen=True)
class DeltaVersion:
    """A version of a Delta table."""

    folder: Folder
    table: DeltaTable

    @property
    def columns(self) -> pa.Schema:
        """The columns of the version."""
        return arrow_columns(self.table)

    @property
    def partition_by(self) -> list[str]:
        """The partition columns. Their values are in the log, not in the files."""
        return self.table.metadata().partition_columns

    def files(self) -> list[TableFile]:
        """Return the files of the version."""
        return files_of(self.table)

    def read(self, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file."""
        return read_file(FilePartition.of(self.folder, file, schema))

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write these rows into files in the folder. The log does not name the files yet."""
        return write_divided(rows, self.folder, self.partition_by)

    def last_batch(self, query: str) -> int | None:
        """Return the last batch of a query in the log; None if there is none."""
        from deltalake.exceptions import DeltaError

        try:
            return self.table.transaction_version(query)
        except (DeltaError, OSError) as problem:
            raise InstanceError(f"The Delta table '{self.folder}' cannot be read: {plain(problem)}.") from None

    def make_batch_durable(self, query: str) -> None:
        """Flush the log entry of the query's last batch."""
        flush_last_batch(self.folder, query)

    def add(self, files: list[DataFile], batch: Batch) -> None:
        """Commit one log entry with the files and the batch.

        Commits of other queries may intervene. deltalake refuses the commit if another one of this query came after the
        table was opened. So if two writers have the same batch, the second finds it in the table when it retries.
        """
        self._commit([_add(file) for file in files], "append", _properties(batch))

    def replace_files(self, removed: list[TableFile], added: list[DataFile], batch: Batch | None = None) -> None:
        """Commit one log entry, which must directly follow this version."""
        from deltalake.transaction import RemoveAction

        actions: list[AddAction | RemoveAction] = [_add(file) for file in added]
        actions += [
            RemoveAction(file.name, True, now(), file.size, partition_values(file.partition)) for file in removed
        ]
        self._commit(actions, "append", _properties(batch, max_commit_retries=0))

    def alter_columns(self, columns: pa.Schema) -> bool:
        """Add new columns in the log, without rewriting files. Returns False, without change, if a type would change.

        A Delta table that every reader can read has one type per column in all its files.
        """
        from deltalake import Schema

        present = self.columns
        if any(columns.field(field.name).type != field.type for field in present):
            return False
        version = self.table.version()
        added = [field for field in Schema.from_arrow(columns).fields if field.name not in present.names]
        with _conflicts(self.folder, version):
            self.table.alter.add_columns(added, commit_properties=_properties(None, max_commit_retries=0))
        flush_log(self.folder, version + 1)
        return True

    def replace_content(self, columns: pa.Schema, parts: Iterator[pa.Table]) -> None:
        """Commit one log entry with new files in place of all old ones. It must directly follow this version."""
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


# Keys of a column's metadata
_WRITER_FEATURES = ("delta.generationExpression", "delta.identity.start", "delta.invariants")
_CONSTRAINT = "delta.constraints."


def _writable_version(folder: Folder, table: DeltaTable) -> DeltaVersion:
    """Return the table as a version that may be changed.

    Raises:
        InstanceError: the table needs a writer feature that this sink does not support.
    """
    for name in table.metadata().configuration:
        if name.startswith(_CONSTRAINT):
            raise InstanceError(
                f"The Delta table '{folder}' has the constraint '{name.removeprefix(_CONSTRAINT)}'. "
                "servicebroker cannot check constraints, so it does not write to this table: drop the constraint."
            )
    for field in table.schema().fields:
        features = [name for name in _WRITER_FEATURES if name in field.metadata]
        if features:
            raise InstanceError(
                f"The column '{field.name}' of the Delta table '{folder}' has {features[0]}, which is not supported "
                "here: make it a plain column, or drop it."
            )
    return DeltaVersion(folder, table)


def _properties(batch: Batch | None, max_commit_retries: int | None = None) -> CommitProperties:
    """Return the properties of a commit. None for `max_commit_retries` stands for deltalake's default."""
    from deltalake import CommitProperties, Transaction

    transactions = [Transaction(*batch)] if batch else None
    return CommitProperties(max_commit_retries=max_commit_retries, app_transactions=transactions)


@contextlib.contextmanager
def _conflicts(folder: Folder, version: int) -> Iterator[None]:
    """Turn a refused commit after `version` into a Conflict, which says if another writer has committed meanwhile."""
    from deltalake.exceptions import CommitFailedError

    try:
        yield
    except CommitFailedError as problem:
        raise Conflict(plain(problem), has_new_version=open_table(folder).version() > version) from None


def _add(file: DataFile) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(file.name, file.size, file.partition, file.modification_time, True, file.stats)


def flush_log(folder: Folder, since: int) -> None:
    """Flush the log entries from version `since` on, because the queue then deletes the batch's messages.

    `since`: the version to which the batch was added. Its writer may not have flushed it yet.
    """
    for entry in _entries(folder, since, ".json", ".checkpoint.parquet"):
        flush(entry)
    flush(folder / LOG_FOLDER)


def flush_changes(folder: Folder, before: int) -> None:
    """Flush the files and log entries that deltalake wrote after version `before`: the files first."""
    entries = _entries(folder, before + 1, ".json")
    added = [unquote(add["path"]) for entry in entries for add in _actions(entry, "add")]
    for name in added:
        with contextlib.suppress(FileNotFoundError):  # a later compaction has replaced it
            flush(folder / name)
    for subfolder in {subfolder for name in added for subfolder in Path(name).parents}:
        flush(folder / str(subfolder))
    flush_log(folder, before)


def flush_last_batch(folder: Folder, query_id: str) -> None:
    """Flush the last batch of a query to disk; a writer that died may not have done it."""
    for entry in reversed(_entries(folder, 0, ".json")):
        if any(transaction["appId"] == query_id for transaction in _actions(entry, "txn")):
            flush_changes(folder, int(entry.stem) - 1)
            return


def _entries(folder: Folder, since: int, *endings: str) -> list[Path]:
    """Return the log files with these endings, from version `since` on, in order.

    For an object store, return none: everything there is already durable.
    """
    if isinstance(folder, StoreFolder):
        return []
    return sorted(
        entry
        for entry in (folder / LOG_FOLDER).glob("[0-9]*")
        if entry.name >= f"{since:020}" and entry.name.endswith(endings)
    )


def _actions(entry: Path, kind: str) -> list[dict[str, Any]]:
    """Return the actions of one kind ("add", "txn") in a log entry."""
    lines = entry.read_bytes().split(b"\n")  # splitlines would also split at other characters
    actions = (json.loads(line) for line in lines if line)
    return [action[kind] for action in actions if kind in action]


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def _time(text: str) -> datetime:
    """Return the time for an option; without a zone it is UTC, without a time midnight."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InstanceError(
            "The option 'timestampAsOf' must be a time of ISO 8601, such as 2026-01-31T12:00:00Z, not "
            f"{short_repr(text)}."
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _folder(path: str | None) -> Folder:
    if not path:
        raise InstanceError("The servicebroker_delta sink needs the option 'path', the folder of the table.")
    try:
        return folder_at(path, Path.cwd())
    except ValueError as problem:
        raise InstanceError(f"The option 'path' of the servicebroker_delta sink: {problem}.") from None
