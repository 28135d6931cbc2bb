"""A batch of a pipeline lands in its tables: appended once, or merged by key, without what is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.definition import Pipeline
from servicebroker.pipeline.sinks.delta import DeltaPlace
from servicebroker.pipeline.sinks.evolution import Plan
from servicebroker.pipeline.sinks.iceberg import IcebergPlace
from servicebroker.pipeline.sinks.parquet import DataFile, write_parquet
from servicebroker.pipeline.sinks.places import except_at, only_at
from servicebroker.pipeline.sinks.replacing import HERE, THERE, carried, meetings, pairs, read_columns, without
from servicebroker.pipeline.sinks.storage import Folder, files_in, flush, make, move, names_in, remove
from servicebroker.pipeline.sinks.tables import (
    Batch,
    Place,
    Table,
    TableFile,
    committed,
    has_landed,
    lacks,
    land,
    opened,
    others_columns,
)
from servicebroker.pipeline.sorting import arrow_schema, columns_of

if TYPE_CHECKING:
    import pyarrow as pa

STAGED = "_staged"  # folder inside a table's, for files that its readers must not see
_LATER = "later"  # in the name of a file of plain Parquet: what its batch lacked when it landed


@dataclass(frozen=True)
class Target:
    """One table of a pipeline: where, in which columns, and how rows get into it.

    Attributes:
        folder: where files lie that do not count yet; of plain Parquet files the table.
        place: the table, None of plain Parquet files.
        optional: columns that may be null.
        handle, number: columns that name a message.
        order, time: its place in the queue `queue`, and since when it is there.
        queues: the names that the pipeline's queues have.
    """

    folder: Folder
    place: Place | None
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
        """Where tasks write what a commit does not name file by file."""
        return self.folder / STAGED

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Files with these rows, which count once they have landed."""
        if self.place is None or self.key:
            return write_parquet(iter(rows.to_batches()), self.staged, rows.schema)
        if isinstance(self.place, DeltaPlace):  # which knows columns by their names: its log need not be read here
            return self.place.write(rows, self.partition_by)
        return committed(self.place, self.opened).write(rows)

    def land(self, files: list[DataFile], query_id: str, batch_id: int, *, fills: bool = False) -> None:
        """Make a batch's files count, once for (query id, batch id).

        `fills`: where the batch has landed, what it had not then is added; of tables without a key.

        Raises:
            InstanceError: the table has other columns or partitions.
        """
        batch = query_id, batch_id
        if self.place is None:
            _rename(self, files, *batch, fills=fills)
        elif self.key:
            _merge(self, self.place, files, batch)
        else:
            is_new = land(
                *(self.place, self.schema, files, batch),
                partition_by=self.partition_by,
                optional=self.optional,
                only_new=lambda table, given: _without_known(self, table, given),
            )
            if fills and not is_new:
                committed(self.place, partial(_fill, self, files))

    def ensure(self) -> None:
        """Create the table when it is missing, and give it what it lacks.

        Raises:
            InstanceError: there is one that cannot become what its rule says.
        """
        if self.place is None:
            make(self.folder)
        else:
            with self.place.said():
                committed(self.place, self.opened)

    def opened(self) -> Table:
        """The table as it is now, with all that its rule needs."""
        return opened(self.table, self.schema, self.partition_by, self.optional)

    def lacks(self) -> Plan:
        """What the table has not yet that its rule needs; nothing where there is no table.

        Raises:
            InstanceError: there is one that cannot become what its rule says.
        """
        if self.place is None or not self.place.is_there():
            return Plan()
        return lacks(self.place, self.place.open(), self.schema, self.partition_by, self.optional)

    def batches(self) -> Callable[[str], int | None]:
        """What the table has now: the last batch of a query, None where it has none."""
        if self.place is None:
            return partial(_last_named, names_in(self.folder, ".parquet"))
        return self.place.open().last_batch if self.place.is_there() else lambda query_id: None

    @property
    def table(self) -> Place:
        """Where the table is, of one that is more than files."""
        assert self.place is not None
        return self.place


def place_of(pipeline: Pipeline, table: str) -> Place | None:
    """Where one of the pipeline's tables is; None of plain Parquet files."""
    folder = pipeline.folder(table)
    if pipeline.format == "iceberg":
        return IcebergPlace(pipeline.catalog, (pipeline.namespace, table), folder)
    return DeltaPlace(folder) if pipeline.format == "delta" else None


def target(pipeline: Pipeline, table: str) -> Target:
    """One of the pipeline's tables. Bronze and quarantine know a message by its place in the queue alone."""
    columns = columns_of(pipeline, table)
    schema = arrow_schema(columns)
    folder, place = pipeline.folder(table), place_of(pipeline, table)
    queues = frozenset(queue.label for queue in pipeline.queues)
    if table in (pipeline.bronze, pipeline.quarantine):
        names = ("queue", "conversation_handle", "queuing_order", "queuing_order", "message_enqueue_time")
        return Target(folder, place, schema, frozenset(schema.names), (), (), *names, queues)
    (rule,) = (rule for rule in pipeline.messages if rule.table == table)
    optional = frozenset(column.name for column in columns if column.is_optional)
    return Target(folder, place, schema, optional, rule.partition_by, rule.key, queues=queues)


# ---------------------------------------------------------------- what is there already


def _without_known(target: Target, table: Table, files: list[DataFile]) -> list[DataFile]:
    """The files without messages that the table has, as when a lost checkpoint brings an archive again.

    Only files of the table whose range of arrival meets that of the new ones are looked into, or whose range of time:
    who has been moved to another group has a new place and its old time. Without replays few do.
    """
    import pyarrow as pa

    names = [target.handle, target.number]
    fresh = [_columns(file, [*dict.fromkeys([target.order, target.time, *names])]) for file in files]
    arrived = pa.concat_tables([rows.select([target.order, target.time]) for rows in fresh]) if fresh else None
    known = [read_columns(table, file, names) for file in _meeting(target, table, _queue_of(target, files), arrived)]
    return _without(target, files, fresh, known) if known else files


def _fill(target: Target, files: list[DataFile]) -> None:
    """Add to a table that has a batch what the batch did not have when it landed."""
    table = target.opened()
    if new := _without_known(target, table, files):
        table.exchange([], new)


def _without(target: Target, files: list[DataFile], fresh: list[pa.Table], known: list[pa.Table]) -> list[DataFile]:
    """The files without the messages `known`; `fresh` says which they have."""
    import pyarrow as pa

    names = [target.handle, target.number]
    there = pa.concat_tables(known).group_by(names).aggregate([])
    found: list[DataFile] = []
    for file, rows in zip(files, fresh, strict=True):
        again = rows.select(names).join(there, keys=names, join_type="left semi").num_rows
        found += [file] if not again else _rewritten(target, file, there)
    return found


def _meeting(target: Target, table: Table, queue: str | None, arrived: pa.Table | None) -> Iterable[TableFile]:
    """Files of the table that may hold messages of the queue with such places in it, or from such a time.

    Those of the pipeline's other queues are passed over. What has a name that no queue has any more may be from this
    one, which had another name then: the time tells, since places of strangers meet too often.
    """
    from pyarrow import compute

    if arrived is None or not arrived.num_rows:
        return
    ranges: dict[str, Any] = {name: compute.min_max(arrived.column(name)).as_py() for name in arrived.schema.names}
    for file in table.files():
        one, other = file.range_of(target.queue)
        elsewhere = bool(one and other and queue) and not one <= queue <= other
        if elsewhere and {one, other} <= target.queues:
            continue
        names = [target.time] if elsewhere else list(ranges)
        if any(_meets(file.range_of(name), ranges[name]) for name in names):
            yield file


def _meets(there: tuple[Any, Any], here: dict[str, Any]) -> bool:
    """Whether two ranges have something in common, as far as anybody knows."""
    lowest, highest = there
    if isinstance(highest, datetime):
        highest += timedelta(milliseconds=1)  # Delta tells times in these, cut off
    return lowest is None or highest is None or not (highest < here["min"] or lowest > here["max"])


def _queue_of(target: Target, files: list[DataFile]) -> str | None:
    """The queue that a batch comes from: each batch has one."""
    for file in files:
        if target.queue in file.partition:
            return file.partition[target.queue]
        rows = _columns(file, [target.queue])
        if rows.num_rows:
            return str(rows.column(0)[0].as_py())
    return None


def _rewritten(target: Target, file: DataFile, there: pa.Table) -> list[DataFile]:
    import pyarrow as pa

    names = [target.handle, target.number]
    rows = _columns(file, None)
    named = rows.select(names).append_column(HERE, pa.array(range(rows.num_rows), pa.int64()))
    rows = only_at(rows, named.join(there, keys=names, join_type="left anti").column(HERE))
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


def _merge(target: Target, place: Place, files: list[DataFile], batch: Batch) -> None:
    """The newest row of each key replaces what the table has, unless that is newer."""
    import pyarrow as pa

    def change() -> None:
        table = target.opened()
        if has_landed(place, table, batch):
            return
        rows = newest(pa.concat_tables([_columns(file, None) for file in files]), target)
        table.exchange(*_replaced(target, table, rows), batch)

    committed(place, change)
    for file in files:
        remove(file.folder, file.name)


def _replaced(target: Target, table: Table, rows: pa.Table) -> tuple[list[TableFile], list[DataFile]]:
    """Files of the table that have older rows of these keys, and files in their place, with the rows that count."""
    import pyarrow as pa
    from pyarrow import compute

    gone: list[TableFile] = []
    come: list[DataFile] = []
    beaten: list[Any] = []
    for file, found in meetings(table, rows, target.key, _AGE):
        is_newer = _is_newer(found)
        beaten += found.filter(compute.invert(is_newer)).column(HERE).to_pylist()
        old = found.filter(is_newer).column(THERE)
        if len(old):
            gone.append(file)
            come += without(table, file, old)
    rows = except_at(rows, pa.array(beaten, pa.int64()))
    if others := others_columns(table, target.schema):
        rows = carried(table, rows, target.key, others)
    return gone, [*come, *table.write(rows)]


def folded(target: Target, there: pa.Table, rows: pa.Table) -> pa.Table:
    """Of rows that are there and rows that come, each with one for each key, those that count."""
    import pyarrow as pa
    from pyarrow import compute

    found = pairs(rows, there, target.key, _AGE)
    is_newer = _is_newer(found)
    old, beaten = found.filter(is_newer).column(THERE), found.filter(compute.invert(is_newer)).column(HERE)
    return pa.concat_tables([except_at(there, old), except_at(rows, beaten)])


_AGE = ("_queue", "_conversation_handle", "_queuing_order", "_message_enqueue_time")


def _is_newer(found: pa.Table) -> Any:
    """Whether the row that comes is newer: clocks may go back, places in a queue do not, unless it was made anew.

    Where place and time of two conversations disagree, either may have happened, and no row says which. Then the row
    that comes counts, since batches come in the order of the queue (decision 255).
    """
    from pyarrow import compute

    def both(test: Any, name: str) -> Any:
        return test(found.column(name), found.column(f"there {name}"))

    one_queue = both(compute.equal, "_queue")
    behind = both(compute.greater, "_queuing_order")
    later = compute.or_(both(compute.greater, "_message_enqueue_time"), compute.and_(one_queue, behind))
    one_conversation = compute.and_(one_queue, both(compute.equal, "_conversation_handle"))
    return compute.if_else(one_conversation, behind, later)


def newest(rows: pa.Table, target: Target) -> pa.Table:
    """Of the rows of a batch with one key the one that was enqueued last: they all come from one queue."""
    from pyarrow import compute

    rank: Any = compute.rank(rows.column("_queuing_order"), "ascending", tiebreaker="first")
    groups = rows.select(list(target.key)).append_column("the rank", rank).group_by(list(target.key))
    last: Any = groups.aggregate([("the rank", "max")]).column("the rank_max")
    return rows.filter(compute.is_in(rank, value_set=last))


# ---------------------------------------------------------------- Parquet


def _rename(target: Target, files: list[DataFile], query_id: str, batch_id: int, *, fills: bool) -> None:
    """Files get the name of their batch, which says how many it has: once all have it, the batch has landed.

    What a batch that was cut off has left is replaced when it comes again. One that has landed stays: its
    conversations may have been ended since, and their messages have left the queue.
    """
    name = f"batch-{query_id}-{batch_id:010d}"
    known = [one for one in names_in(target.folder, ".parquet") if one.startswith(f"{name}-")]
    there = [one for one in known if not one.startswith(f"{name}-{_LATER}-")]
    if there and all(one.endswith(f"-of-{len(there):04d}.parquet") for one in there):
        new = _lacking(target, files, known) if fills else []
        for file in files:
            if file not in new:
                remove(target.staged, file.name)
        for file in new:
            move(target.folder, f"{STAGED}/{file.name}", f"{name}-{_LATER}-{file.name}")
    else:
        for one in there:
            remove(target.folder, one)
        flush(target.folder)
        for number, file in enumerate(files):
            final = f"{name}-{number:04d}-of-{len(files):04d}.parquet"
            move(target.folder, f"{STAGED}/{file.name}", final)
    flush(target.folder)


def _lacking(target: Target, files: list[DataFile], known: list[str]) -> list[DataFile]:
    """The files without what the files `known` of their batch have."""
    names = [target.handle, target.number]
    there = [_read(target.folder, one, names) for one in known]
    return _without(target, files, [_columns(file, names) for file in files], there)


def _last_named(names: list[str], query_id: str) -> int | None:
    """The last batch of a query of which there are files with these names."""
    start = f"batch-{query_id}-"
    return max((int(one[len(start) :].partition("-")[0]) for one in names if one.startswith(start)), default=None)
