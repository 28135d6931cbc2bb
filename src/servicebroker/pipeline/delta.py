"""The sink `servicebroker_delta`: each batch of a query lands in a Delta table once, for every reader of Delta.

Tasks write Parquet files into the table's folder. They count only once the log of the table names them, and one
entry of that log names all files of a batch together with (query id, batch id).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.delta_reader import (
    DeltaReader,
    TableFile,
    arrow_columns,
    columns_in_arrow,
    files_of,
    table_schema,
)
from servicebroker.pipeline.evolution import Plan, plan
from servicebroker.pipeline.options import whole_number
from servicebroker.pipeline.parquet import DataFile, partition_values, write_parquet
from servicebroker.pipeline.replacing import written_anew
from servicebroker.pipeline.spark_task import query_id
from servicebroker.pipeline.storage import Folder, StoreFolder, flush, folder_at, now, plain

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field, Transaction
    from deltalake.transaction import AddAction, RemoveAction

LOG = "_delta_log"
OWN = {"servicebroker.column": "rule"}  # metadata of a column
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
        InstanceError: no path, one where no tables can be, or another output mode.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._folder = _folder(options.get("path"))
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

    def __init__(self, folder: Folder, schema: StructType) -> None:
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


def ensure_table(folder: Folder, schema: StructType) -> None:
    """Create the table when it is missing, so that it can be read before the first batch lands.

    Raises:
        InstanceError: there is one with other columns.
    """
    opened(folder, _arrow_schema(schema))


def land(
    folder: Folder,
    schema: pa.Schema,
    files: list[DataFile],
    query_id: str,
    batch_id: int,
    *,
    partition_by: Sequence[str] = (),
    optional: Container[str] | None = None,
    only_new: Callable[[DeltaTable, list[DataFile]], list[DataFile]] = lambda table, files: files,
) -> bool:
    """Add `files` to the table in `folder`, once for (query id, batch id). False when it has landed before.

    `only_new` says which of the files, or which others in their place, the table as it is still lacks. `optional` is as
    for `opened`.

    Raises:
        InstanceError: the table has other columns, or is written by too many at once.
        deltalake.exceptions.DeltaError: its log cannot be read or written.
    """
    from deltalake import CommitProperties, Schema, Transaction

    def change() -> bool:
        table = opened(folder, schema, partition_by, optional)
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


def exchange(
    folder: Folder,
    table: DeltaTable,
    gone: list[TableFile],
    come: list[DataFile],
    transaction: Transaction | None = None,
) -> None:
    """Put files into the place of some that the table has, in its next version.

    Raises:
        deltalake.exceptions.CommitFailedError: that version is another's already: nobody has looked at its rows.
    """
    from deltalake import CommitProperties
    from deltalake.transaction import RemoveAction

    actions: list[AddAction | RemoveAction] = [_add(file) for file in come]
    actions += [RemoveAction(file.name, True, now(), file.size, partition_values(file.partition)) for file in gone]
    flush(folder)
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        partition_by=table.metadata().partition_columns,
        commit_properties=CommitProperties(
            max_commit_retries=0, app_transactions=[transaction] if transaction else None
        ),
    )
    flush_log(folder, table.version())


def committed(folder: Folder, change: Callable[[], T], attempts: int = 100) -> T:
    """What `change` gives, which opens the table and commits: once more when another commit came between the two.

    Raises:
        InstanceError: another one always does.
    """
    from deltalake.exceptions import CommitFailedError

    for _ in range(attempts):
        with contextlib.suppress(CommitFailedError):
            return change()
    raise InstanceError(f"The Delta table '{folder}' is written by too many others at once: try again.")


@contextlib.contextmanager
def said(folder: Folder) -> Iterator[None]:
    """What deltalake refuses, as a sentence.

    Raises:
        InstanceError: it refuses.
    """
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as problem:
        raise InstanceError(f"The Delta table '{folder}' cannot be changed: {plain(problem)}.") from None


def has_landed(table: DeltaTable, query_id: str, batch_id: int) -> bool:
    """Whether the table knows a batch, or a later one of its query."""
    landed = table.transaction_version(query_id)
    return landed is not None and landed >= batch_id


def opened(
    folder: Folder, schema: pa.Schema, partition_by: Sequence[str] = (), optional: Container[str] | None = None
) -> DeltaTable:
    """The table as it is now: created when it is missing, and changed to hold these columns where it can be.

    `optional`: columns that may be null, where the table may be changed; None where it may not.

    Raises:
        InstanceError: it is another kind of table than these rows need, by the name of the column.
        deltalake.exceptions.CommitFailedError: somebody else has changed it in between.
    """
    from deltalake import DeltaTable, Schema
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        table = DeltaTable(str(folder))
    except TableNotFoundError:
        try:
            table = DeltaTable.create(str(folder), Schema(own_columns(schema)), partition_by=list(partition_by))
        except DeltaError:  # somebody else was faster
            table = DeltaTable(str(folder))
    lacking = lacks(folder, table, schema, partition_by, schema.names if optional is None else optional)
    if lacking and optional is None:
        needs = ", it ".join(lacking.sentences())
        raise InstanceError(
            f"The Delta table '{folder}' would have to change for the query (it {needs}): give the query the columns "
            "that the table has, or write into another folder."
        )
    return _changed(folder, table, schema, lacking) if lacking else table


def lacks(
    folder: Folder, table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str], optional: Container[str]
) -> Plan:
    """What the table lacks for rows with these columns.

    Raises:
        InstanceError: it is another kind of table than these rows need, by the name of the column.
    """
    check_partitions(folder, table, partition_by)
    columns = arrow_columns(table)
    differs = any(field.name not in columns.names or columns.field(field.name).type != field.type for field in schema)
    return plan(str(folder), columns, schema, optional, has_rows=differs and bool(files_of(table)))


def check_partitions(folder: Folder, table: DeltaTable, partition_by: Sequence[str]) -> None:
    """Refuse a table that is divided by other columns.

    Raises:
        InstanceError: it is.
    """
    if table.metadata().partition_columns != list(partition_by):
        by = ", ".join(table.metadata().partition_columns) or "nothing"
        raise InstanceError(
            f"The Delta table '{folder}' is partitioned by {by}, not by {', '.join(partition_by) or 'nothing'}."
        )


def _changed(folder: Folder, table: DeltaTable, schema: pa.Schema, lacking: Plan) -> DeltaTable:
    """The table with what it lacks, as its next version: readers see it before or after."""
    from deltalake import CommitProperties, DeltaTable, Field, Schema

    wanted = {field.name: field for field in own_columns(schema)}
    added = [wanted[name] for name, _ in lacking.added]
    before = table.version()
    if lacking.widened:
        wider = {one.column for one in lacking.widened}
        fields = [
            Field(there.name, wanted[there.name].type, nullable=there.nullable, metadata=there.metadata)
            if there.name in wider
            else there
            for there in table.schema().fields
        ]
        become(
            folder, table, [*fields, *added], written_anew(folder, table, columns_in_arrow(Schema([*fields, *added])))
        )
    else:
        table.alter.add_columns(added, commit_properties=CommitProperties(max_commit_retries=0))
        flush_log(folder, before + 1)
    return DeltaTable(str(folder))


def become(folder: Folder, table: DeltaTable, fields: list[Field], files: list[DataFile]) -> None:
    """Give the table other columns and other files in place of all that it has, as its next version.

    Which batches have landed stays in its log.

    Raises:
        deltalake.exceptions.CommitFailedError: that version is another's already.
    """
    from deltalake import CommitProperties, Schema

    flush(folder)
    table.create_write_transaction(
        [_add(file) for file in files],
        "overwrite",
        Schema(fields),
        partition_by=table.metadata().partition_columns,
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    flush_log(folder, table.version())


def own_columns(schema: pa.Schema) -> list[Field]:
    """Columns of a rule, which their mark tells from those that others have added."""
    from deltalake import Field, Schema

    fields = Schema.from_arrow(schema).fields
    return [Field(field.name, field.type, nullable=field.nullable, metadata=OWN) for field in fields]


def others_columns(table: DeltaTable, schema: pa.Schema) -> list[str]:
    """Columns of the table that others have added, beside those of `schema`."""
    return [field.name for field in table.schema().fields if field.name not in schema.names and field.metadata != OWN]


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
