"""Writes durable Parquet files for tables, with the statistics by which readers skip files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.sinks.storage import Folder, create_folder, filesystem_of, flush, now

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES = 64 * 1024 * 1024  # target size of a row group, in memory
MAX_STATISTIC_CHARACTERS = 256  # a column with a longer minimum or maximum gets no statistics


@dataclass(frozen=True)
class DataFile:
    """A written file of rows, for the commit that adds it to a table.

    Attributes:
        size: in bytes.
        modification_time: in milliseconds since 1970.
        stats: Delta statistics, as JSON.
        partition: values of the partition columns, as Delta writes them. Delta's files lack these columns.
            Empty for other formats, whose files contain them.
    """

    folder: Folder
    name: str
    size: int
    modification_time: int
    stats: str
    partition: dict[str, str | None] = field(default_factory=dict)


def write_parquet(batches: Iterator[pa.RecordBatch], folder: Folder, schema: pa.Schema) -> list[DataFile]:
    """Write all batches into one file with a new name in `folder`. Without rows, no file is written.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups = _row_groups(batches, schema)
    first = next(groups, None)
    if first is None:
        return []
    create_folder(folder)
    files, name = filesystem_of(folder), f"part-{uuid.uuid4()}.parquet"
    # Values of other types rarely repeat, so a dictionary would not make the file smaller.
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
    """Yield each combination of values of the columns `partition_by`, with the rows that have these values."""
    import pyarrow as pa
    from pyarrow import compute

    if not partition_by:
        yield {}, rows
        return
    index = pa.array(range(rows.num_rows), pa.int64())
    grouped = rows.select(list(partition_by)).append_column("row index", index).group_by(list(partition_by))
    groups = grouped.aggregate([("row index", "list")])
    indexes: Any = groups.column("row index_list").combine_chunks()
    # by index, not by value: 0.0 and -0.0 are different partitions, but compare as equal
    for values, part_indexes in zip(groups.select(list(partition_by)).to_pylist(), indexes, strict=True):
        yield values, rows.filter(compute.is_in(index, value_set=part_indexes.values))


def partition_values(values: dict[str, Any]) -> dict[str, str | None]:
    """Return the values of partition columns as Delta writes them."""
    return {name: _partition_text(value) for name, value in values.items()}


def _partition_text(value: Any) -> str | None:
    """Return the text by which Delta names a partition value; None for null and for an empty string."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return str(_plain(value))
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def statistics(metadata: Any) -> dict[str, Any]:
    """Return the statistics for a Delta add action, from the footer of a Parquet file.

    A column has no entry if a row group lacks statistics of it, or if its minimum or maximum is too long a string.
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
    """Return the names of columns that get statistics: integers, strings and timestamps, but not bodies."""
    from pyarrow import types

    tests = (types.is_integer, types.is_string, types.is_timestamp)
    return [field.name for field in schema if any(test(field.type) for test in tests)]


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows as few large row groups. Many small ones compress badly and make the footer large."""
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
