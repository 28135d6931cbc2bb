"""Lands a batch of a pipeline in its tables: appended once, or merged by key, without rows that the table has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.definition import Pipeline
from servicebroker.pipeline.sinks.delta import DeltaLocation
from servicebroker.pipeline.sinks.evolution import SchemaChange
from servicebroker.pipeline.sinks.iceberg import IcebergLocation
from servicebroker.pipeline.sinks.parquet import DataFile, write_parquet
from servicebroker.pipeline.sinks.row_replacement import (
    NEW_INDEX,
    OLD_INDEX,
    carry_columns,
    find_matching_files,
    join_rows,
    read_columns,
    rewrite_without,
)
from servicebroker.pipeline.sinks.row_selection import exclude_rows, select_rows
from servicebroker.pipeline.sinks.storage import Folder, files_in, flush, make, move, names_in, remove
from servicebroker.pipeline.sinks.tables import (
    Batch,
    TableFile,
    TableLocation,
    TableVersion,
    commit_with_retry,
    foreign_columns,
    has_landed,
    land,
    open_or_alter,
    plan_schema_change,
)
from servicebroker.pipeline.sorting import arrow_schema, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

STAGE_FOLDER = "_staged"  # in a table's folder, for files that its readers must not see
_LATER = "later"  # in names of plain Parquet files, for rows that their batch lacked when it landed


@dataclass(frozen=True)
class Target:
    """One table of a pipeline: its location, its columns, and how rows get into it.

    Attributes:
        folder: folder of files that do not count yet; of plain Parquet files the table itself.
        location: location of the table; None for plain Parquet files.
        optional: columns that may be null.
        handle, number: columns that identify a message.
        order, time: columns of its position in the queue `queue`, and of its enqueue time.
        queues: labels of the pipeline's queues.
    """

    folder: Folder
    location: TableLocation | None
    schema: pa.Schema
    optional: frozenset[str]
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    queue: str = "_queue"
    handle: str = "_conversation_handle"
    number: str = "_message_sequence_number"
    order: str = "_queuing_order"
    time: str = "_message_enqueue_time"
    queues: frozenset[str] = frozenset()

    @property
    def staged(self) -> Folder:
        """The folder for files that a commit does not name one by one."""
        return self.folder / STAGE_FOLDER

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write files with these rows, which count once they have landed."""
        if self.location is None or self.key:
            return write_parquet(iter(rows.to_batches()), self.staged, rows.schema)
        if isinstance(self.location, DeltaLocation):  # columns are identified by name, so the log need not be read
            return self.location.write(rows, self.partition_by)
        return commit_with_retry(self.location, self.open_or_alter).write(rows)

    def land(self, files: list[DataFile], query_id: str, batch_id: int, *, fills: bool = False) -> None:
        """Land a batch's files, once for (query id, batch id).

        `fills`: if the batch has landed before, add the rows that it lacked; for tables without a key.

        Raises:
            InstanceError: the table has other columns or partitions.
        """
        batch = query_id, batch_id
        if self.location is None:
            _rename(self, files, *batch, fills=fills)
        elif self.key:
            _merge(self, self.location, files, batch)
        else:
            is_new = land(
                *(self.location, self.schema, files, batch),
                partition_by=self.partition_by,
                optional=self.optional,
                only_new=lambda table, given: _without_known(self, table, given),
            )
            if fills and not is_new:
                commit_with_retry(self.location, partial(_fill, self, files))

    def ensure(self) -> None:
        """Create the table if it is missing, and give it the columns that it lacks.

        Raises:
            InstanceError: the table cannot be changed as its rule says.
        """
        if self.location is None:
            make(self.folder)
        else:
            with self.location.raising_instance_errors():
                commit_with_retry(self.location, self.open_or_alter)

    def open_or_alter(self) -> TableVersion:
        """Return the table as it is now, with all columns of its rule."""
        return open_or_alter(self.table, self.schema, self.partition_by, self.optional)

    def plan_schema_change(self) -> SchemaChange:
        """Return the changes that the table needs for its rule; none for a missing table.

        Raises:
            InstanceError: the table cannot be changed as its rule says.
        """
        if self.location is None or not self.location.is_there():
            return SchemaChange()
        return plan_schema_change(self.location, self.location.open(), self.schema, self.partition_by, self.optional)

    def last_batches(self) -> Callable[[str], int | None]:
        """Return a function that gives the last batch of a query in the present table; None without one."""
        if self.location is None:
            return partial(_last_named, names_in(self.folder, ".parquet"))
        return self.location.open().last_batch if self.location.is_there() else lambda query_id: None

    @property
    def table(self) -> TableLocation:
        """The location of a table that is more than plain files."""
        assert self.location is not None
        return self.location


def location_of(pipeline: Pipeline, table: str) -> TableLocation | None:
    """Return the location of one of the pipeline's tables; None for plain Parquet files."""
    folder = pipeline.folder(table)
    if pipeline.format == "iceberg":
        return IcebergLocation(pipeline.catalog, (pipeline.namespace, table), folder)
    return DeltaLocation(folder) if pipeline.format == "delta" else None


def target(pipeline: Pipeline, table: str) -> Target:
    """Return one of the pipeline's tables. Bronze and quarantine identify a message by its queuing_order alone."""
    columns = columns_of(pipeline, table)
    schema = arrow_schema(columns)
    folder, location = pipeline.folder(table), location_of(pipeline, table)
    queues = frozenset(queue.label for queue in pipeline.queues)
    if table in (pipeline.bronze, pipeline.quarantine):
        names = ("queue", "conversation_handle", "queuing_order", "queuing_order", "message_enqueue_time")
        return Target(folder, location, schema, frozenset(schema.names), (), (), *names, queues)
    (rule,) = (rule for rule in pipeline.messages if rule.table == table)
    optional = frozenset(column.name for column in columns if column.is_optional)
    return Target(folder, location, schema, optional, rule.partition_by, rule.key, queues=queues)


# ---------------------------------------------------------------- rows that the table has


def _without_known(target: Target, table: TableVersion, files: list[DataFile]) -> list[DataFile]:
    """Return the files without messages that the table has, as when an archive is read again.

    Only those files of the table are read whose range of queuing_order meets that of the new files, or whose range of
    time. A message moved to another group has a new queuing_order and its old time. Without repeats few ranges meet.
    """
    import pyarrow as pa

    names = [target.handle, target.number]
    new_messages = [_columns(file, [*dict.fromkeys([target.order, target.time, *names])]) for file in files]
    positions = [rows.select([target.order, target.time]) for rows in new_messages]
    queue = _queue_of(target, files)
    known_files = _meeting(target, table, queue, pa.concat_tables(positions) if positions else None)
    known_messages = [read_columns(table, file, names) for file in known_files]
    return _without(target, files, new_messages, known_messages) if known_messages else files


def _fill(target: Target, files: list[DataFile]) -> None:
    """Add the rows that a batch lacked when it landed."""
    table = target.open_or_alter()
    if new := _without_known(target, table, files):
        table.replace_files([], new)


def _without(
    target: Target, files: list[DataFile], new_messages: list[pa.Table], known_messages: list[pa.Table]
) -> list[DataFile]:
    """Return the files without the messages `known_messages`; `new_messages` has the messages of each file."""
    import pyarrow as pa

    names = [target.handle, target.number]
    known_keys = pa.concat_tables(known_messages).group_by(names).aggregate([])
    files_to_land: list[DataFile] = []
    for file, rows in zip(files, new_messages, strict=True):
        repeated = rows.select(names).join(known_keys, keys=names, join_type="left semi").num_rows
        files_to_land += [file] if not repeated else _rewritten(target, file, known_keys)
    return files_to_land


def _meeting(target: Target, table: TableVersion, queue: str | None, positions: pa.Table | None) -> Iterable[TableFile]:
    """Yield files of the table that may hold messages of the queue in these ranges of position or of time.

    Files of the pipeline's other queues are skipped. A queue name that the pipeline no longer has may be an earlier
    name of this queue. Then only the time decides, since positions of different queues often coincide.
    """
    from pyarrow import compute

    if positions is None or not positions.num_rows:
        return
    ranges: dict[str, Any] = {name: compute.min_max(positions.column(name)).as_py() for name in positions.schema.names}
    for file in table.files():
        lowest, highest = file.range_of(target.queue)
        is_of_other_name = bool(lowest and highest and queue) and not lowest <= queue <= highest
        if is_of_other_name and {lowest, highest} <= target.queues:
            continue
        names = [target.time] if is_of_other_name else list(ranges)
        if any(_meets(file.range_of(name), ranges[name]) for name in names):
            yield file


def _meets(file_range: tuple[Any, Any], rows_range: dict[str, Any]) -> bool:
    """True if two ranges overlap, as far as they are known."""
    file_min, file_max = file_range
    if isinstance(file_max, datetime):
        file_max += timedelta(milliseconds=1)  # Delta's statistics cut times off to milliseconds
    return file_min is None or file_max is None or not (file_max < rows_range["min"] or file_min > rows_range["max"])


def _queue_of(target: Target, files: list[DataFile]) -> str | None:
    """Return the queue of a batch: each batch has only one. None for a batch without rows."""
    for file in files:
        if target.queue in file.partition:
            return file.partition[target.queue]
        rows = _columns(file, [target.queue])
        if rows.num_rows:
            return str(rows.column(0)[0].as_py())
    return None


def _rewritten(target: Target, file: DataFile, known_keys: pa.Table) -> list[DataFile]:
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

    with files_in(folder).open_input_file(name) as source, ParquetFile(source) as parquet:
        return parquet.read(columns=names, use_threads=False)


# ---------------------------------------------------------------- by key


def _merge(target: Target, place: TableLocation, files: list[DataFile], batch: Batch) -> None:
    """Land the newest row of each key in place of the table's row, unless the table's is newer."""
    import pyarrow as pa

    def change() -> None:
        table = target.open_or_alter()
        if has_landed(place, table, batch):
            return
        rows = newest_by_key(pa.concat_tables([_columns(file, None) for file in files]), target)
        table.replace_files(*_replacement(target, table, rows), batch)

    commit_with_retry(place, change)
    for file in files:
        remove(file.folder, file.name)


def _replacement(target: Target, table: TableVersion, rows: pa.Table) -> tuple[list[TableFile], list[DataFile]]:
    """Return files of the table that have older rows of these keys, and new files with the rows that count."""
    import pyarrow as pa
    from pyarrow import compute

    removed: list[TableFile] = []
    added: list[DataFile] = []
    outdated: list[Any] = []
    for file, matches in find_matching_files(table, rows, target.key, _AGE_COLUMNS):
        is_newer = _is_newer(matches)
        outdated += matches.filter(compute.invert(is_newer)).column(NEW_INDEX).to_pylist()
        replaced = matches.filter(is_newer).column(OLD_INDEX)
        if len(replaced):
            removed.append(file)
            added += rewrite_without(table, file, replaced)
    rows = exclude_rows(rows, pa.array(outdated, pa.int64()))
    if added_columns := foreign_columns(table, target.schema):
        rows = carry_columns(table, rows, target.key, added_columns)
    return removed, [*added, *table.write(rows)]


def fold_by_key(target: Target, existing: pa.Table, rows: pa.Table) -> pa.Table:
    """Return the rows that count, from existing and new rows, which each have one row per key."""
    import pyarrow as pa
    from pyarrow import compute

    matches = join_rows(rows, existing, target.key, _AGE_COLUMNS)
    is_newer = _is_newer(matches)
    replaced = matches.filter(is_newer).column(OLD_INDEX)
    outdated = matches.filter(compute.invert(is_newer)).column(NEW_INDEX)
    return pa.concat_tables([exclude_rows(existing, replaced), exclude_rows(rows, outdated)])


_AGE_COLUMNS = ("_queue", "_conversation_handle", "_queuing_order", "_message_enqueue_time")


def _is_newer(matches: pa.Table) -> Any:
    """Tell for each match if the new row is newer.

    Clocks may go back; positions in a queue do not, unless it was recreated.

    If position and time of two conversations disagree, either may have come first, and no row tells which. Then the new
    row counts, since batches come in the order of the queue (decision 92).
    """
    from pyarrow import compute

    def both(test: Any, name: str) -> Any:
        return test(matches.column(name), matches.column(f"there {name}"))

    same_queue = both(compute.equal, "_queue")
    is_behind = both(compute.greater, "_queuing_order")
    is_later = compute.or_(both(compute.greater, "_message_enqueue_time"), compute.and_(same_queue, is_behind))
    same_conversation = compute.and_(same_queue, both(compute.equal, "_conversation_handle"))
    return compute.if_else(same_conversation, is_behind, is_later)


def newest_by_key(rows: pa.Table, target: Target) -> pa.Table:
    """Return for each key of a batch the row that was enqueued last. A batch comes from one queue."""
    from pyarrow import compute

    rank: Any = compute.rank(rows.column("_queuing_order"), "ascending", tiebreaker="first")
    groups = rows.select(list(target.key)).append_column("the rank", rank).group_by(list(target.key))
    last: Any = groups.aggregate([("the rank", "max")]).column("the rank_max")
    return rows.filter(compute.is_in(rank, value_set=last))


# ---------------------------------------------------------------- Parquet


def _rename(target: Target, files: list[DataFile], query_id: str, batch_id: int, *, fills: bool) -> None:
    """Name the files after their batch and the number of its files.

    The batch has landed once all of them have their names.

    Files of an interrupted batch are replaced when it is repeated. A batch that has landed stays: its conversations may
    have ended since, and their messages have left the queue.
    """
    name = f"batch-{query_id}-{batch_id:010d}"
    known_names = [known for known in names_in(target.folder, ".parquet") if known.startswith(f"{name}-")]
    landed_names = [known for known in known_names if not known.startswith(f"{name}-{_LATER}-")]
    if landed_names and all(landed.endswith(f"-of-{len(landed_names):04d}.parquet") for landed in landed_names):
        new = _lacking(target, files, known_names) if fills else []
        for file in files:
            if file not in new:
                remove(target.staged, file.name)
        for file in new:
            move(target.folder, f"{STAGE_FOLDER}/{file.name}", f"{name}-{_LATER}-{file.name}")
    else:
        for landed_name in landed_names:
            remove(target.folder, landed_name)
        flush(target.folder)
        for number, file in enumerate(files):
            final = f"{name}-{number:04d}-of-{len(files):04d}.parquet"
            move(target.folder, f"{STAGE_FOLDER}/{file.name}", final)
    flush(target.folder)


def _lacking(target: Target, files: list[DataFile], known_names: list[str]) -> list[DataFile]:
    """Return the files without rows that the files `known_names` of their batch have."""
    names = [target.handle, target.number]
    known_messages = [_read(target.folder, known_name, names) for known_name in known_names]
    return _without(target, files, [_columns(file, names) for file in files], known_messages)


def _last_named(names: list[str], query_id: str) -> int | None:
    """Return the last batch of a query among file names; None without one."""
    start = f"batch-{query_id}-"
    return max((int(name[len(start) :].partition("-")[0]) for name in names if name.startswith(start)), default=None)
