"""A batch of a pipeline lands in its tables: appended once, or merged by key, without what is there already."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.definition import Pipeline
from servicebroker.pipeline.delta import committed, flush_changes, flush_landed, has_landed, land, opened
from servicebroker.pipeline.parquet import DataFile, flush, write_divided, write_parquet
from servicebroker.pipeline.sorting import arrow_schema, columns_of

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

STAGED = "_staged"  # folder inside a table's, for files that its readers must not see


@dataclass(frozen=True)
class Target:
    """One table of a pipeline: where, in which columns, and how rows get into it.

    Attributes:
        handle, number, order: columns that name a message, and its place in the queue `queue`.
    """

    folder: Path
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    is_delta: bool = True
    queue: str = "_queue"
    handle: str = "_conversation_handle"
    number: str = "_message_sequence_number"
    order: str = "_queuing_order"

    @property
    def staged(self) -> Path:
        """Where tasks write: beside the table's files where a commit does not name them one by one."""
        return self.folder / STAGED if self.key or not self.is_delta else self.folder

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Files with these rows, which count once they have landed."""
        return write_divided(rows, self.staged, () if self.key else self.partition_by)

    def land(self, files: list[DataFile], query_id: str, batch_id: int) -> None:
        """Make a batch's files count, once for (query id, batch id).

        Raises:
            InstanceError: the table has other columns or partitions.
        """
        if not self.is_delta:
            _rename(self, files, query_id, batch_id)
        elif self.key:
            _merge(self, files, query_id, batch_id)
        else:
            land(
                self.folder,
                self.schema,
                files,
                query_id,
                batch_id,
                partition_by=self.partition_by,
                only_new=lambda table, given: _without_known(self, table, given),
            )

    def ensure(self) -> None:
        """Create the table when it is missing.

        Raises:
            InstanceError: there is one with other columns or partitions.
        """
        if self.is_delta:
            opened(self.folder, self.schema, self.partition_by)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)


def target(pipeline: Pipeline, table: str) -> Target:
    """One of the pipeline's tables. Bronze and quarantine know a message by its place in the queue alone."""
    schema = arrow_schema(columns_of(pipeline, table))
    is_delta = pipeline.format == "delta"
    if table in (pipeline.bronze, pipeline.quarantine):
        names = ("queue", "conversation_handle", "queuing_order", "queuing_order")
        return Target(pipeline.folder(table), schema, (), (), is_delta, *names)
    (rule,) = (rule for rule in pipeline.messages if rule.table == table)
    return Target(pipeline.folder(table), schema, rule.partition_by, rule.key, is_delta)


# ---------------------------------------------------------------- what is there already


def _without_known(target: Target, table: DeltaTable, files: list[DataFile]) -> list[DataFile]:
    """The files without messages that the table has, as when a lost checkpoint brings an archive again.

    Only files of the table whose range of arrival meets that of the new ones are looked into; without replays
    hardly any does.
    """
    import pyarrow as pa

    names = [target.handle, target.number]
    folder = target.folder
    fresh = [_columns(folder / file.name, [target.order, *names]) for file in files]
    arrived: list[Any] = [number for rows in fresh for number in rows.column(target.order).to_pylist()]
    queue = _queue_of(target, files)
    known = [
        _columns(folder / name, names)
        for name in _meeting(target, table, queue, min(arrived, default=0), max(arrived, default=-1))
    ]
    if not known:
        return files
    there = pa.concat_tables(known).group_by(names).aggregate([])
    found: list[DataFile] = []
    for file, rows in zip(files, fresh, strict=True):
        again = rows.select(names).join(there, keys=names, join_type="left semi").num_rows
        found += [file] if not again else _rewritten(target, file, there)
    return found


def _meeting(target: Target, table: DeltaTable, queue: str | None, first: int, last: int) -> Iterable[str]:
    """Files of the table that may hold messages of the queue from `first` to `last`."""
    import pyarrow as pa

    rows: list[Any] = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    for row in rows:
        lowest, highest = row.get(f"min.{target.order}"), row.get(f"max.{target.order}")
        one = row.get(f"partition.{target.queue}") or row.get(f"min.{target.queue}")
        other = row.get(f"partition.{target.queue}") or row.get(f"max.{target.queue}")
        apart = lowest is not None and highest is not None and (highest < first or lowest > last)
        elsewhere = bool(one and other and queue) and not one <= queue <= other
        if not apart and not elsewhere:
            yield row["path"]


def _queue_of(target: Target, files: list[DataFile]) -> str | None:
    """The queue that a batch comes from: each batch has one."""
    for file in files:
        if target.queue in file.partition:
            return file.partition[target.queue]
        rows = _columns(target.folder / file.name, [target.queue])
        if rows.num_rows:
            return str(rows.column(0)[0].as_py())
    return None


def _rewritten(target: Target, file: DataFile, there: pa.Table) -> list[DataFile]:
    names = [target.handle, target.number]
    rows = _columns(target.folder / file.name, None)
    rows = rows.join(there, keys=names, join_type="left anti").select(rows.schema.names)
    return [
        replace(new, partition=file.partition)
        for new in write_parquet(iter(rows.to_batches()), target.folder, rows.schema)
    ]


def _columns(path: Path, names: list[str] | None) -> pa.Table:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        return file.read(columns=names, use_threads=False)


# ---------------------------------------------------------------- by key


def _merge(target: Target, files: list[DataFile], query_id: str, batch_id: int) -> None:
    """The newest row of each key replaces what the table has, unless that is newer."""
    import pyarrow as pa

    def change() -> None:
        table = opened(target.folder, target.schema, target.partition_by)
        if has_landed(table, query_id, batch_id):
            flush_landed(target.folder, query_id)
            return
        before = table.version()
        rows = newest(pa.concat_tables([_columns(target.staged / file.name, None) for file in files]), target)
        _merge_rows(target, table, rows, query_id, batch_id)
        flush_changes(target.folder, before)

    committed(target.folder, change)
    for file in files:
        (target.staged / file.name).unlink(missing_ok=True)


def _merge_rows(target: Target, table: DeltaTable, rows: pa.Table, query_id: str, batch_id: int) -> None:
    from deltalake import CommitProperties, Transaction

    # Clocks may go back, places in a queue do not, unless it was made anew: then time tells.
    newer = (
        'case when source."_queue" = target."_queue" '
        'and source."_conversation_handle" = target."_conversation_handle" '
        'then source."_queuing_order" > target."_queuing_order" '
        'else source."_message_enqueue_time" > target."_message_enqueue_time" '
        'or source."_queue" = target."_queue" and source."_queuing_order" > target."_queuing_order" end'
    )
    (
        table.merge(
            rows,
            " and ".join(f'target."{name}" = source."{name}"' for name in target.key),
            source_alias="source",
            target_alias="target",
            commit_properties=CommitProperties(app_transactions=[Transaction(query_id, batch_id)]),
        )
        .when_matched_update_all(newer)
        .when_not_matched_insert_all()
        .execute()
    )


def newest(rows: pa.Table, target: Target) -> pa.Table:
    """Of the rows of a batch with one key the one that was enqueued last: they all come from one queue."""
    import pyarrow as pa

    ordered = rows.sort_by("_queuing_order")
    place = pa.array(range(ordered.num_rows), pa.int64())
    last = ordered.select(list(target.key)).append_column("place", place)
    places: Any = last.group_by(list(target.key)).aggregate([("place", "max")]).column("place_max")
    return ordered.take(places.combine_chunks().sort())


# ---------------------------------------------------------------- Parquet


def _rename(target: Target, files: list[DataFile], query_id: str, batch_id: int) -> None:
    """Files get the name of their batch, which says how many it has: once all have it, the batch has landed.

    What a batch that was cut off has left is replaced when it comes again. One that has landed stays: its
    conversations may have been ended since, and their messages have left the queue.
    """
    name = f"batch-{query_id}-{batch_id:010d}"
    staged = [target.staged / file.name for file in files]
    there = list(target.folder.glob(f"{name}-*.parquet"))
    if there and all(file.stem.endswith(f"-of-{len(there):04d}") for file in there):
        for file in staged:
            file.unlink(missing_ok=True)
    else:
        for file in there:
            file.unlink()
        flush(target.folder)
        for number, file in enumerate(staged):
            file.rename(target.folder / f"{name}-{number:04d}-of-{len(staged):04d}.parquet")
    flush(target.folder)
