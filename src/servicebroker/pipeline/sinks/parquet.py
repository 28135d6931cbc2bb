"""Durable Parquet files for Delta tables, with the statistics that let readers skip files."""

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
MAX_STATISTIC_CHARACTERS = 256  # longer texts get no statistics


@dataclass(frozen=True)
class DataFile:
    """A file of rows: name in a folder, size in bytes, time of writing in ms, and Delta statistics as JSON.

    `partition`: the values of the partition columns as Delta writes them. The file itself lacks these columns.
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
    # Values of other types seldom repeat, so a dictionary would not pay.
    repeating: Any = [field.name for field in schema if pa.types.is_string(field.type)]
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
    """Write rows into one file for each combination of values of the columns `partition_by`.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    files: list[DataFile] = []
    for values, part_rows in divide_rows(rows, partition_by):
        columns = part_rows.select([name for name in rows.schema.names if name not in values])
        part_files = write_parquet(iter(columns.to_batches()), folder, columns.schema)
        files += [replace(file, partition=partition_values(values)) for file in part_files]
    return files


def divide_rows(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Yield for each combination of values of the columns `partition_by` these values and their rows."""
    import pyarrow as pa
    from pyarrow import compute

    if not partition_by:
        yield {}, rows
        return
    index = pa.array(range(rows.num_rows), pa.int64())
    grouped = rows.select(list(partition_by)).append_column("row index", index).group_by(list(partition_by))
    groups = grouped.aggregate([("row index", "list")])
    indexes: Any = groups.column("row index_list").combine_chunks()
    # by indexes, since 0.0 and -0.0 are different values here, but equal in a comparison
    for values, part_indexes in zip(groups.select(list(partition_by)).to_pylist(), indexes, strict=True):
        yield values, rows.filter(compute.is_in(index, value_set=part_indexes.values))


def partition_values(values: dict[str, Any]) -> dict[str, str | None]:
    """Return the values of partition columns as Delta writes them."""
    return {name: _partition_text(value) for name, value in values.items()}


def _partition_text(value: Any) -> str | None:
    """Return a value as Delta names a partition. An empty text is null there, here None."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return str(_plain(value))
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def statistics(metadata: Any) -> dict[str, Any]:
    """Return the statistics of a Delta add action, from the footer of a Parquet file.

    A column is left out if one of its row groups has none, or if a text is too long.
    """
    result: dict[str, Any] = {"numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for number in range(metadata.num_columns):
        columns = [metadata.row_group(group).column(number) for group in range(metadata.num_row_groups)]
        if "." in columns[0].path_in_schema:  # a field of a nested column that another writer has added
            continue
        groups = [column.statistics for column in columns]
        if any(group is None or not group.has_null_count for group in groups):
            continue
        name = columns[0].path_in_schema
        result["nullCount"][name] = sum(group.null_count for group in groups)
        ranges = [group for group in groups if group.has_min_max]
        if ranges and all(group.has_min_max or group.num_values == 0 for group in groups):
            _add_range(result, name, min(group.min for group in ranges), max(group.max for group in ranges))
    return result


def _add_range(result: dict[str, Any], name: str, lowest: Any, highest: Any) -> None:
    if isinstance(lowest, str) and max(len(lowest), len(highest)) > MAX_STATISTIC_CHARACTERS:
        return
    result["minValues"][name] = _plain(lowest)
    result["maxValues"][name] = _plain(highest)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value


def _comparable(schema: pa.Schema) -> list[str]:
    """Return columns whose range is useful: whole numbers, short texts and timestamps, but not bodies."""
    from pyarrow import types

    tests = (types.is_integer, types.is_string, types.is_timestamp)
    return [field.name for field in schema if any(test(field.type) for test in tests)]


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield few large row groups, since small ones compress badly and fill the footer."""
    import pyarrow as pa

    buffered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        buffered.append(batch)
        size += batch.nbytes
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(buffered).cast(schema)
            buffered, size = [], 0
    if buffered:
        yield pa.Table.from_batches(buffered).cast(schema)
