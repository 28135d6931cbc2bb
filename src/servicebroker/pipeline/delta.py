"""The sink `servicebroker_delta`: each batch of a query lands in a Delta table once, for every reader of Delta.

Tasks write Parquet files into the table's folder. They count only once the log of the table names them, and one
entry of that log names all files of a batch together with (query id, batch id).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.delta_reader import DeltaReader, table_schema
from servicebroker.pipeline.options import whole_number
from servicebroker.pipeline.parquet import DataFile, flush, write_parquet
from servicebroker.pipeline.spark_task import query_id

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

LOG = "_delta_log"
T = TypeVar("T")


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
        InstanceError: no path, a path that is not a local folder, or another output mode.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._folder = _local_folder(options.get("path"))
        version = whole_number({name.lower(): value for name, value in options.items()}, "versionAsOf", -1, 0)
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
        return DeltaReader(self._folder, self._version)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DeltaWriter:
        """The writer of a streaming query."""
        if overwrite:
            raise InstanceError("The servicebroker_delta sink only appends: use outputMode('append').")
        return DeltaWriter(self._folder, schema)


class DeltaWriter(DataSourceStreamArrowWriter):
    """Writes files in the tasks and names them in the table's log at the end of a batch."""

    def __init__(self, folder: Path, schema: StructType) -> None:
        from servicebroker.pipeline import rows

        self._folder = folder
        self._schema = _arrow_schema(schema)
        if rows.holds_parts(self._schema.names):
            self._schema = rows.arrow_schema()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override] # as in pyspark's own
        """The rows of one task, in one durable file; none when there are no rows."""
        from servicebroker.pipeline.rows import delivered

        files = write_parquet(delivered(iterator), self._folder, self._schema)
        return Written(query_id("servicebroker_delta"), files)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Land the batch, unless it has landed before."""
        written = [message for message in messages if isinstance(message, Written)]
        files = [file for message in written for file in message.files]
        if files:
            land(self._folder, self._schema, files, written[0].query_id, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: the files stay unnamed, or the batch has landed and Spark does not know."""


def ensure_table(folder: Path, schema: StructType) -> None:
    """Create the table when it is missing, so that it can be read before the first batch lands.

    Raises:
        InstanceError: there is one with other columns.
    """
    opened(folder, _arrow_schema(schema))


def land(
    folder: Path,
    schema: pa.Schema,
    files: list[DataFile],
    query_id: str,
    batch_id: int,
    *,
    partition_by: Sequence[str] = (),
    only_new: Callable[[DeltaTable, list[DataFile]], list[DataFile]] = lambda table, files: files,
) -> bool:
    """Add `files` to the table in `folder`, once for (query id, batch id). False when it has landed before.

    `only_new` says which of the files, or which others in their place, the table as it is still lacks.

    Raises:
        InstanceError: the table has other columns, or is written by too many at once.
        deltalake.exceptions.DeltaError: its log cannot be read or written.
    """
    from deltalake import CommitProperties, Schema, Transaction

    def change() -> bool:
        table = opened(folder, schema, partition_by)
        if has_landed(table, query_id, batch_id):
            flush_landed(folder, query_id)
            return False
        actions: list[AddAction | RemoveAction] = [_add(file) for file in only_new(table, files)]
        flush(folder)
        # deltalake refuses when another commit with this query id came after `table` was opened, so of two
        # writers of one batch the second sees it landed at its next look
        table.create_write_transaction(
            actions,
            "append",
            Schema.from_arrow(schema),
            partition_by=list(partition_by),
            commit_properties=CommitProperties(app_transactions=[Transaction(query_id, batch_id)]),
        )
        flush_log(folder, table.version())
        return True

    return committed(folder, change)


def committed(folder: Path, change: Callable[[], T], attempts: int = 100) -> T:
    """What `change` gives, which opens the table and commits: once more when another commit came between the two.

    Raises:
        InstanceError: another one always does.
    """
    from deltalake.exceptions import CommitFailedError

    for _ in range(attempts):
        with contextlib.suppress(CommitFailedError):
            return change()
    raise InstanceError(f"The Delta table '{folder}' is written by too many others at once: try again.")


def has_landed(table: DeltaTable, query_id: str, batch_id: int) -> bool:
    """Whether the table knows a batch, or a later one of its query."""
    landed = table.transaction_version(query_id)
    return landed is not None and landed >= batch_id


def opened(folder: Path, schema: pa.Schema, partition_by: Sequence[str] = ()) -> DeltaTable:
    """The table as it is now, created when it is missing.

    Raises:
        InstanceError: it is another kind of table than these rows need.
    """
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError, TableNotFoundError

    wanted = Schema.from_arrow(schema)
    try:
        table = DeltaTable(folder)
    except TableNotFoundError:
        try:
            table = DeltaTable.create(folder, wanted, partition_by=list(partition_by))
        except DeltaError:  # somebody else was faster
            table = DeltaTable(folder)
    if [(field.name, field.type) for field in table.schema().fields] != [
        (field.name, field.type) for field in wanted.fields
    ]:
        raise InstanceError(
            f"The Delta table '{folder}' has other columns than the query: give the query those columns, "
            "in that order, or write into another folder."
        )
    if table.metadata().partition_columns != list(partition_by):
        by = ", ".join(table.metadata().partition_columns) or "nothing"
        raise InstanceError(
            f"The Delta table '{folder}' is partitioned by {by}, not by {', '.join(partition_by) or 'nothing'}."
        )
    return table


def _add(file: DataFile) -> AddAction:
    from deltalake.transaction import AddAction

    return AddAction(file.name, file.size, file.partition, file.modification_time, True, file.stats)


def flush_log(folder: Path, since: int) -> None:
    """The queue forgets a batch once it has landed: until then its entry in the log must be on the disk.

    `since`: the version that the batch was added to, whose writer may not have come to this yet.
    """
    for entry in _entries(folder, since, ".json", ".checkpoint.parquet"):
        flush(entry)
    flush(folder / LOG)


def flush_changes(folder: Path, before: int) -> None:
    """What deltalake itself has written since the version `before` is on the disk: files, then the log."""
    entries = _entries(folder, before + 1, ".json")
    added = [unquote(add["path"]) for entry in entries for add in _actions(entry, "add")]
    for name in added:
        with contextlib.suppress(FileNotFoundError):  # a compaction has put another in its place since
            flush(folder / name)
    for inner in {inner for name in added for inner in Path(name).parents}:
        flush(folder / inner)
    flush_log(folder, before)


def flush_landed(folder: Path, query_id: str) -> None:
    """Make the last batch of a query durable, whose writer may have died before it could."""
    for entry in reversed(_entries(folder, 0, ".json")):
        if any(landed["appId"] == query_id for landed in _actions(entry, "txn")):
            flush_changes(folder, int(entry.stem) - 1)
            return


def _entries(folder: Path, since: int, *kinds: str) -> list[Path]:
    """The files of these kinds that the log has from a version on, in order."""
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


def _local_folder(path: str | None) -> Path:
    if not path:
        raise InstanceError("The servicebroker_delta sink needs the option 'path', the folder of the table.")
    url = urlsplit(path)
    if url.scheme and url.scheme != "file":
        raise InstanceError(f"The servicebroker_delta sink writes into local folders, not into '{path}'.")
    return Path(unquote(url.path) if url.scheme else path).absolute()
