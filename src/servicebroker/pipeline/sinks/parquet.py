"""Parquet files of a Delta table: written durably, with the statistics that let readers skip files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.sinks.storage import Folder, files_in, flush, make, now

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 64 * 1024 * 1024
LONGEST_STATISTIC = 256  # characters


@dataclass(frozen=True)
class DataFile:
    """A file with rows: its name in a folder, size in bytes, time of writing in ms, Delta statistics as JSON.

    `partition`: the values of the columns that divide the table, as Delta writes them, which the file itself lacks.
    """

    folder: Folder
    name: str
    size: int
    modification_time: int
    stats: str
    partition: dict[str, str | None] = field(default_factory=dict)


def write_parquet(batches: Iterator[pa.RecordBatch], folder: Folder, schema: pa.Schema) -> list[DataFile]:
    """Write all batches into one file with a new name in `folder`; no file when there are no rows.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups = _row_groups(batches, schema)
    first = next(groups, None)
    if first is None:
        return []
    make(folder)
    files, name = files_in(folder), f"part-{uuid.uuid4()}.parquet"
    repeating: Any = [field.name for field in schema if pa.types.is_string(field.type)]  # others seldom do
    with (
        files.open_output_stream(name) as sink,
        pq.ParquetWriter(sink, schema, use_dictionary=repeating, write_statistics=_comparable(schema)) as writer,
    ):
        writer.write_table(first, row_group_size=first.num_rows)
        for group in groups:
            writer.write_table(group, row_group_size=group.num_rows)
    flush(folder / name)
    with files.open_input_file(name) as written:
        size = written.size()
        stats = json.dumps(statistics(pq.read_metadata(written)), ensure_ascii=False)
    return [DataFile(folder, name, size, now(), stats)]


def write_divided(rows: pa.Table, folder: Folder, partition_by: Sequence[str]) -> list[DataFile]:
    """Write rows into a file for each combination of values of the columns `partition_by`; one when there are none.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    found: list[DataFile] = []
    for values, these in divided(rows, partition_by):
        own = these.select([name for name in rows.schema.names if name not in values])
        files = write_parquet(iter(own.to_batches()), folder, own.schema)
        found += [replace(file, partition=partition_values(values)) for file in files]
    return found


def divided(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Rows in a table for each combination of values of the columns `partition_by`, and these values."""
    import pyarrow as pa
    from pyarrow import compute

    if not partition_by:
        yield {}, rows
        return
    place = pa.array(range(rows.num_rows), pa.int64())
    grouped = rows.select(list(partition_by)).append_column("a place", place).group_by(list(partition_by))
    groups = grouped.aggregate([("a place", "list")])
    places: Any = groups.column("a place_list").combine_chunks()
    # by places: 0.0 and -0.0 are values of their own here, and equal where they are compared
    for values, theirs in zip(groups.select(list(partition_by)).to_pylist(), places, strict=True):
        yield values, rows.filter(compute.is_in(place, value_set=theirs.values))


def partition_values(values: dict[str, Any]) -> dict[str, str | None]:
    """The values of the columns that divide a table, as Delta writes them."""
    return {name: _partition_text(value) for name, value in values.items()}


def _partition_text(value: Any) -> str | None:
    """A value as Delta names a partition; an empty text is null there."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return str(_plain(value))
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def statistics(metadata: Any) -> dict[str, Any]:
    """The statistics of a Delta add action, from the footer of a Parquet file.

    A column is left out where one of its row groups has none, or a text is too long to be worth it.
    """
    found: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number in range(metadata.num_columns):
        columns = [metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)]
        if "." in columns[0].path_in_schema:  # a part of a column that others have added
            continue
        known = [column.statistics for column in columns]
        if any(one is None or not one.has_null_count for one in known):
            continue
        name = columns[0].path_in_schema
        found["nullCount"][name] = sum(one.null_count for one in known)
        ranges = [one for one in known if one.has_min_max]
        if ranges and all(one.has_min_max or one.num_values == 0 for one in known):
            _add_range(found, name, min(one.min for one in ranges), max(one.max for one in ranges))
    return found


def _add_range(found: dict[str, Any], name: str, lowest: Any, highest: Any) -> None:
    if isinstance(lowest, str) and max(len(lowest), len(highest)) > LONGEST_STATISTIC:
        return
    found["minValues"][name] = _plain(lowest)
    found["maxValues"][name] = _plain(highest)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value


def _comparable(schema: pa.Schema) -> list[str]:
    """Columns whose range is worth knowing: whole numbers, short texts and timestamps; not bodies."""
    from pyarrow import types

    tests = (types.is_integer, types.is_string, types.is_timestamp)
    return [field.name for field in schema if any(test(field.type) for test in tests)]


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Few, large groups: small ones compress badly and fill the footer."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting).cast(schema)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).cast(schema)
