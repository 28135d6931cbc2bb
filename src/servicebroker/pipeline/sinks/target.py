"""Writes a batch into the tables of a pipeline: each table takes it once, without rows that it already has.

A table without a key appends the rows. A table with a key keeps the newest row of each key (`keyed_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.definition import Pipeline
from servicebroker.pipeline.sinks.delta import DeltaLocation
from servicebroker.pipeline.sinks.evolution import SchemaChange
from servicebroker.pipeline.sinks.iceberg import IcebergLocation
from servicebroker.pipeline.sinks.keyed_rows import Changes, newest_changes, plan_replacement
from servicebroker.pipeline.sinks.parquet import DataFile, write_parquet
from servicebroker.pipeline.sinks.row_replacement import NEW_INDEX, read_columns
from servicebroker.pipeline.sinks.row_selection import select_rows
from servicebroker.pipeline.sinks.storage import Folder, create_folder, filesystem_of, flush, move, names_in, remove
from servicebroker.pipeline.sinks.tables import (
    Batch,
    TableFile,
    TableLocation,
    TableVersion,
    commit_batch,
    commit_with_retry,
    has_batch,
    open_or_alter,
    plan_schema_change,
)
from servicebroker.pipeline.sorting import arrow_schema, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

STAGE_FOLDER = "_staged"  # the folder within a table's folder for files that readers must not see
_LATE_PART = "later"  # marks names of Parquet files with rows that their batch lacked at its commit


@dataclass(frozen=True)
class Target:
    """A table of a pipeline, as the target of a batch: its location, its columns, and how rows get into it.

    Attributes:
        folder: folder of uncommitted files. For the format "parquet" it is the table itself.
        location: location of the table; None for the format "parquet".
        nullable: columns that may be null.
        partition_by: partition columns.
        key: columns that identify a row. A new row replaces an older row with the same key.
        tombstones: table of the deleted keys; None if no rule deletes.
        queue: column with the label of a message's queue.
        handle, number: columns that identify a message.
        order, time: columns with a message's position in its queue, and its enqueue time.
        queues: labels of the pipeline's queues.
    """

    folder: Folder
    location: TableLocation | None
    schema: pa.Schema
    nullable: frozenset[str]
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    queue: str = "_queue"
    handle: str = "_conversation_handle"
    number: str = "_message_sequence_number"
    order: str = "_queuing_order"
    time: str = "_message_enqueue_time"
    queues: frozenset[str] = frozenset()
    tombstones: Target | None = None

    @property
    def stage_folder(self) -> Folder:
        """The folder of files that are not in the table yet: a commit moves them into it, or merges their rows."""
        return self.folder / STAGE_FOLDER

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write these rows into files. `commit` adds the files to the table."""
        if self.location is None or self.key:
            return write_parquet(iter(rows.to_batches()), self.stage_folder, rows.schema)
        if isinstance(self.location, DeltaLocation):  # columns are identified by name, so the log need not be read
            return self.location.write(rows, self.partition_by)
        return commit_with_retry(self.location, self.open_or_alter).write(rows)

    def write_and_commit(self, rows: pa.Table | None, deletes: pa.Table | None, query_id: str, batch_id: int) -> None:
        """Add rows to the table, and delete rows by their key. `deletes` has the columns of `tombstones`."""
        files = self.write(rows) if rows is not None else []
        deleted = self.tombstones.write(deletes) if deletes is not None and self.tombstones else []
        self.commit(files, query_id, batch_id, deletes=deleted)

    def commit(
        self,
        files: list[DataFile],
        query_id: str,
        batch_id: int,
        *,
        deletes: Sequence[DataFile] = (),
        adds_missing: bool = False,
    ) -> None:
        """Add a batch's files to the table, once for (query id, batch id).

        Args:
            deletes: files of `tombstones`, with the keys to delete.
            adds_missing: if the table already has the batch, add the rows that it lacks; for tables without a key.

        Raises:
            InstanceError: the table has other columns or partitions.
        """
        batch = query_id, batch_id
        if self.location is None:
            _commit_parquet_files(self, files, *batch, adds_missing=adds_missing)
        elif self.key:
            _commit_keyed_rows(self, files, deletes, batch)
        else:
            is_new = commit_batch(
                *(self.location, self.schema, files, batch),
                partition_by=self.partition_by,
                nullable=self.nullable,
                only_new=lambda table, batch_files: _remove_known_messages(self, table, batch_files),
            )
            if adds_missing and not is_new:
                commit_with_retry(self.location, partial(_add_missing, self, files))

    def create_or_extend(self) -> None:
        """Create the table if it is missing, and give it the columns that it lacks.

        Raises:
            InstanceError: the table cannot get the columns of its rule.
        """
        if self.location is None:
            create_folder(self.folder)
        else:
            with self.location.raising_instance_errors():
                commit_with_retry(self.location, self.open_or_alter)
        if self.tombstones:
            self.tombstones.create_or_extend()

    def open_or_alter(self) -> TableVersion:
        """Return the newest version of the table, after adding the columns that it lacks."""
        return open_or_alter(self.table, self.schema, self.partition_by, self.nullable)

    def plan_schema_change(self) -> SchemaChange:
        """Return the changes of columns that the table's rule requires; none for a missing table.

        Raises:
            InstanceError: the table cannot get the columns of its rule.
        """
        if self.location is None or not self.location.exists():
            return SchemaChange()
        return plan_schema_change(self.location, self.location.open(), self.schema, self.partition_by, self.nullable)

    def last_batches(self) -> Callable[[str], int | None]:
        """Return a function from a query id to the query's last batch in the table; None if the table has none."""
        if self.location is None:
            return partial(_last_batch_in_names, names_in(self.folder, ".parquet"))
        return self.location.open().last_batch if self.location.exists() else lambda query_id: None

    @property
    def table(self) -> TableLocation:
        """The location of the table, for formats other than "parquet"."""
        assert self.location is not None
        return self.location


def table_location(pipeline: Pipeline, table: str) -> TableLocation | None:
    """Return the location of one of the pipeline's tables; None for plain Parquet files."""
    folder = pipeline.folder(table)
    if pipeline.format == "iceberg":
        return IcebergLocation(pipeline.catalog, (pipeline.namespace, table), folder)
    return DeltaLocation(folder) if pipeline.format == "delta" else None


def target(pipeline: Pipeline, table: str) -> Target:
    """Return a table of the pipeline as a target. Bronze and quarantine identify a message by its queuing_order."""
    columns = columns_of(pipeline, table)
    schema = arrow_schema(columns)
    folder, location = pipeline.folder(table), table_location(pipeline, table)
    queues = frozenset(queue.label for queue in pipeline.queues)
    if table in (pipeline.bronze, pipeline.quarantine):
        names = ("queue", "conversation_handle", "queuing_order", "queuing_order", "message_enqueue_time")
        return Target(folder, location, schema, frozenset(schema.names), (), (), *names, queues)
    nullable = frozenset(column.name for column in columns if column.is_optional)
    rule = pipeline.row_rule(pipeline.table_with_tombstones(table) or table)
    assert rule is not None
    if rule.table != table:
        return Target(folder, location, schema, nullable, key=rule.key, queues=queues)
    tombstones = pipeline.tombstones(table)
    deleted = target(pipeline, tombstones) if tombstones else None
    return Target(folder, location, schema, nullable, rule.partition_by, rule.key, queues=queues, tombstones=deleted)


# ---------------------------------------------------------------- repeated messages


def _remove_known_messages(target: Target, table: TableVersion, files: list[DataFile]) -> list[DataFile]:
    """Return the files without messages that the table already has, as when an archive is read again.

    Reads only files of the table whose range of queuing_order, or of enqueue time, overlaps that of the new files. A
    message moved to another group has a new queuing_order and its old time. Without repeats few ranges overlap.
    """
    import pyarrow as pa

    names = [target.handle, target.number]
    new_messages = [_columns(file, [*dict.fromkeys([target.order, target.time, *names])]) for file in files]
    positions = [rows.select([target.order, target.time]) for rows in new_messages]
    queue = _queue_of(target, files)
    known_files = _find_overlapping_files(target, table, queue, pa.concat_tables(positions) if positions else None)
    known_messages = [read_columns(table, file, names) for file in known_files]
    return _remove_messages(target, files, new_messages, known_messages) if known_messages else files


def _add_missing(target: Target, files: list[DataFile]) -> None:
    """Add the rows of a recorded batch that the table lacks."""
    table = target.open_or_alter()
    if new := _remove_known_messages(target, table, files):
        table.replace_files([], new)


def _remove_messages(
    target: Target, files: list[DataFile], new_messages: list[pa.Table], known_messages: list[pa.Table]
) -> list[DataFile]:
    """Return the files without `known_messages`. `new_messages` has the message keys of each file."""
    import pyarrow as pa

    names = [target.handle, target.number]
    known_keys = pa.concat_tables(known_messages).group_by(names).aggregate([])
    new_files: list[DataFile] = []
    for file, rows in zip(files, new_messages, strict=True):
        repeated = rows.select(names).join(known_keys, keys=names, join_type="left semi").num_rows
        new_files += [file] if not repeated else _rewrite_without(target, file, known_keys)
    return new_files


def _find_overlapping_files(
    target: Target, table: TableVersion, queue: str | None, positions: pa.Table | None
) -> Iterable[TableFile]:
    """Yield files of the table that may hold messages of the queue in the same range of position or of time.

    Files of the pipeline's other queues are skipped. A label that the pipeline no longer has may be an earlier label of
    this queue. Then only the time decides, since positions of different queues often coincide.
    """
    from pyarrow import compute

    if positions is None or not positions.num_rows:
        return
    ranges: dict[str, Any] = {name: compute.min_max(positions.column(name)).as_py() for name in positions.schema.names}
    for file in table.files():
        lowest, highest = file.range_of(target.queue)
        has_other_label = bool(lowest and highest and queue) and not lowest <= queue <= highest
        if has_other_label and {lowest, highest} <= target.queues:
            continue
        names = [target.time] if has_other_label else list(ranges)
        if any(_overlaps(file.range_of(name), ranges[name]) for name in names):
            yield file


def _overlaps(file_range: tuple[Any, Any], rows_range: dict[str, Any]) -> bool:
    """True if two ranges overlap, or if the file's range is unknown."""
    file_min, file_max = file_range
    if isinstance(file_max, datetime):
        file_max += timedelta(milliseconds=1)  # Delta's statistics cut times off to milliseconds
    return file_min is None or file_max is None or not (file_max < rows_range["min"] or file_min > rows_range["max"])


def _queue_of(target: Target, files: list[DataFile]) -> str | None:
    """Return the label of the queue that a batch comes from; None for a batch without rows."""
    for file in files:
        if target.queue in file.partition:
            return file.partition[target.queue]
        rows = _columns(file, [target.queue])
        if rows.num_rows:
            return str(rows.column(0)[0].as_py())
    return None


def _rewrite_without(target: Target, file: DataFile, known_keys: pa.Table) -> list[DataFile]:
    """Write a new file without the messages `known_keys`; no file if nothing remains."""
    import pyarrow as pa

    names = [target.handle, target.number]
    rows = _columns(file, None)
    keys = rows.select(names).append_column(NEW_INDEX, pa.array(range(rows.num_rows), pa.int64()))
    rows = select_rows(rows, keys.join(known_keys, keys=names, join_type="left anti").column(NEW_INDEX))
    return [
        replace(new, partition=file.partition)
        for new in write_parquet(iter(rows.to_batches()), file.folder, rows.schema)
    ]


def _columns(file: DataFile, names: list[str] | None) -> pa.Table:
    return _read(file.folder, file.name, names)


def _read(folder: Folder, name: str, names: list[str] | None) -> pa.Table:
    from pyarrow.parquet import ParquetFile

    with filesystem_of(folder).open_input_file(name) as source, ParquetFile(source) as parquet:
        return parquet.read(columns=names, use_threads=False)


# ---------------------------------------------------------------- tables with a key


def _commit_keyed_rows(target: Target, files: Sequence[DataFile], deletes: Sequence[DataFile], batch: Batch) -> None:
    """Apply a batch to the table's rows of its keys; the deletes first to the tombstone table."""
    if deletes and target.tombstones:
        _replace_rows(target.tombstones, deletes, (), batch)
    _replace_rows(target, files, deletes, batch)
    for file in (*files, *deletes):
        remove(file.folder, file.name)


def _replace_rows(target: Target, files: Sequence[DataFile], deletes: Sequence[DataFile], batch: Batch) -> None:
    import pyarrow as pa

    def read(staged: Sequence[DataFile], schema: pa.Schema) -> pa.Table:
        return pa.concat_tables([schema.empty_table(), *(_columns(file, None) for file in staged)])

    def change() -> None:
        table = target.open_or_alter()
        if has_batch(target.table, table, batch):
            return
        deleted, tombstones = None, None
        if target.tombstones:
            deleted = read(deletes, target.tombstones.schema)
            tombstones = target.tombstones.open_or_alter()
        changes = newest_changes(target.key, Changes(read(files, target.schema), deleted))
        table.replace_files(*plan_replacement(table, target.schema, target.key, changes, tombstones), batch)

    commit_with_retry(target.table, change)


# ---------------------------------------------------------------- plain Parquet files


def _commit_parquet_files(
    target: Target, files: list[DataFile], query_id: str, batch_id: int, *, adds_missing: bool
) -> None:
    """Move a batch's files into the table, under names with the batch, the file's number and the number of files.

    A batch is complete once all its files have their names. A repetition replaces the files of an incomplete batch. A
    complete batch stays: its conversations may have ended since, and their messages have left the queue.
    """
    name = f"batch-{query_id}-{batch_id:010d}"
    known_names = [known for known in names_in(target.folder, ".parquet") if known.startswith(f"{name}-")]
    batch_names = [known for known in known_names if not known.startswith(f"{name}-{_LATE_PART}-")]
    is_complete = all(known.endswith(f"-of-{len(batch_names):04d}.parquet") for known in batch_names)
    if batch_names and is_complete:
        new = _find_missing_rows(target, files, known_names) if adds_missing else []
        for file in files:
            if file not in new:
                remove(target.stage_folder, file.name)
        for file in new:
            move(target.folder, f"{STAGE_FOLDER}/{file.name}", f"{name}-{_LATE_PART}-{file.name}")
    else:
        for batch_name in batch_names:
            remove(target.folder, batch_name)
        flush(target.folder)
        for number, file in enumerate(files):
            final = f"{name}-{number:04d}-of-{len(files):04d}.parquet"
            move(target.folder, f"{STAGE_FOLDER}/{file.name}", final)
    flush(target.folder)


def _find_missing_rows(target: Target, files: list[DataFile], known_names: list[str]) -> list[DataFile]:
    """Return the files without messages that the batch's files `known_names` in the table have."""
    names = [target.handle, target.number]
    known_messages = [_read(target.folder, known_name, names) for known_name in known_names]
    return _remove_messages(target, files, [_columns(file, names) for file in files], known_messages)


def _last_batch_in_names(names: list[str], query_id: str) -> int | None:
    """Return the last batch of a query, from file names; None if no file is of this query."""
    start = f"batch-{query_id}-"
    return max((int(name[len(start) :].partition("-")[0]) for name in names if name.startswith(start)), default=None)
