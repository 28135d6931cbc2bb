"""Replacement and removal of rows in a table, by rewriting the files that hold them.

MERGE of deltalake does this too, but its files store texts in a form that Arrow filters refuse (decision 533).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.row_selection import exclude_rows, take_rows
from servicebroker.pipeline.sinks.tables import TableFile, TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

NEW_INDEX, OLD_INDEX = "_new_index", "_old_index"  # columns of a match: indexes of its new and its old row
OLD_PREFIX = "old "  # the prefix of columns that a match has from its old row


def find_matching_files(
    table: TableVersion, rows: pa.Table, names: Sequence[str], more: Sequence[str] = ()
) -> Iterator[tuple[TableFile, pa.Table]]:
    """Yield each file of the table that has matches, and these matches.

    A match is a pair of a new row in `rows` and an old row in the file with equal values in the columns `names`. It has
    the index of the new row in `rows` (`NEW_INDEX`) and of the old row in the file (`OLD_INDEX`). For each column of
    `more` it has the new row's value under the column's name, and the old row's under `OLD_PREFIX` and the name.
    """
    columns = list(dict.fromkeys([*names, *more]))
    ranges = _ranges(rows, names)
    for file in table.files():
        if _is_out_of_range(file, ranges):
            continue
        file_rows = _with_empty_strings(table, read_columns(table, file, columns), names)
        matches = join_rows(rows, file_rows, names, more)
        if matches.num_rows:
            yield file, matches


def _with_empty_strings(table: TableVersion, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Replace nulls by empty strings in partition columns among `names`: Delta stores an empty string there as null."""
    import pyarrow as pa
    from pyarrow import compute

    for number, field in enumerate(rows.schema):
        if field.name in names and field.name in table.partition_by and pa.types.is_string(field.type):
            column: Any = rows.column(number)
            rows = rows.set_column(number, field, compute.fill_null(column, ""))
    return rows


def join_rows(new_rows: pa.Table, old_rows: pa.Table, names: Sequence[str], more: Sequence[str] = ()) -> pa.Table:
    """Return the matches (see `find_matching_files`) of two tables of rows."""
    import pyarrow as pa

    shared = [name for name in more if name in names]
    more = [name for name in more if name not in names]
    new_keys = new_rows.select([*names, *more]).append_column(NEW_INDEX, pa.array(range(new_rows.num_rows), pa.int64()))
    old_keys = old_rows.select([*names, *more]).append_column(OLD_INDEX, pa.array(range(old_rows.num_rows), pa.int64()))
    old_keys = old_keys.rename_columns([*names, *(f"{OLD_PREFIX}{name}" for name in more), OLD_INDEX])
    matches = new_keys.join(old_keys, keys=list(names), join_type="inner")
    for name in shared:
        matches = matches.append_column(f"{OLD_PREFIX}{name}", matches.column(name))
    return matches


def read_columns(table: TableVersion, file: TableFile, names: Sequence[str]) -> pa.Table:
    """Return the columns `names` of one of the table's files, including partition columns."""
    import pyarrow as pa

    schema = pa.schema([table.columns.field(name) for name in names])
    return pa.Table.from_batches(table.read(file, schema), schema)


def rewrite_without(table: TableVersion, file: TableFile, indexes: Any) -> list[DataFile]:
    """Write one of the table's files again without the rows at `indexes`; no file if nothing remains."""
    return table.write(exclude_rows(read_columns(table, file, table.columns.names), indexes))


def carry_columns(table: TableVersion, rows: pa.Table, names: Sequence[str], others: Sequence[str]) -> pa.Table:
    """Add the columns `others` to `rows`, with values of the matching rows in the table; null without a match."""
    import pyarrow as pa

    value_indexes: list[int | None] = [None] * rows.num_rows
    values = [pa.schema([table.columns.field(name) for name in others]).empty_table()]
    count = 0
    for file, matches in find_matching_files(table, rows, names):
        old_indexes: Any = matches.column(OLD_INDEX).combine_chunks()
        values.append(take_rows(read_columns(table, file, others), old_indexes))
        new_indexes: list[Any] = matches.column(NEW_INDEX).to_pylist()
        for number, index in enumerate(new_indexes, count):
            value_indexes[index] = number
        count += matches.num_rows
    carried = take_rows(pa.concat_tables(values), pa.array(value_indexes, pa.int64()))
    for name in others:
        rows = rows.append_column(carried.schema.field(name), carried.column(name))
    return rows


def _ranges(rows: pa.Table, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return (minimum, maximum) of the integer and string columns, for which every writer keeps statistics."""
    import pyarrow as pa
    from pyarrow import compute

    ranges = {}
    for name in names:
        column: Any = rows.column(name)
        if rows.num_rows and (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
            extremes: Any = compute.min_max(column).as_py()
            ranges[name] = (extremes["min"], extremes["max"])
    return ranges


def _is_out_of_range(file: TableFile, ranges: dict[str, tuple[Any, Any]]) -> bool:
    """True if the file's statistics show that it has no row in these ranges."""
    for name, (lowest, highest) in ranges.items():
        least, greatest = file.range_of(name)
        if least is not None and greatest is not None and (greatest < lowest or least > highest):
            return True
    return False
