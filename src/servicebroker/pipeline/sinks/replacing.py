"""Rows of a table that others replace, or that leave it: the files that hold them are written anew without them.

MERGE of deltalake does so too, but its files give texts in a form that filters of Arrow refuse (decision 212).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.places import except_at, taken
from servicebroker.pipeline.sinks.tables import Table, TableFile

if TYPE_CHECKING:
    import pyarrow as pa

HERE, THERE = "_place_here", "_place_there"


def meetings(
    table: Table, rows: pa.Table, names: Sequence[str], more: Sequence[str] = ()
) -> Iterator[tuple[TableFile, pa.Table]]:
    """Files of the table that hold rows with the same values in the columns `names` as some of `rows`, and these pairs.

    A pair has the places of both rows (`HERE` in `rows`, `THERE` in the file), and of the columns `more` the value that
    `rows` has under the column's name, and the file's behind "there ".
    """
    ranges = _ranges(rows, names)
    for file in table.files():
        if _is_apart(file, ranges):
            continue
        there = _with_empty_texts(table, read_columns(table, file, [*names, *more]), names)
        found = pairs(rows, there, names, more)
        if found.num_rows:
            yield file, found


def _with_empty_texts(table: Table, rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Rows of a table by columns that are never null: where one divides a table of Delta, an empty text is null."""
    import pyarrow as pa
    from pyarrow import compute

    for number, field in enumerate(rows.schema):
        if field.name in names and field.name in table.partition_by and pa.types.is_string(field.type):
            column: Any = rows.column(number)
            rows = rows.set_column(number, field, compute.fill_null(column, ""))
    return rows


def pairs(here: pa.Table, there: pa.Table, names: Sequence[str], more: Sequence[str] = ()) -> pa.Table:
    """Rows of two tables with the same values in `names`, as `meetings` gives them."""
    import pyarrow as pa

    ours = here.select([*names, *more]).append_column(HERE, pa.array(range(here.num_rows), pa.int64()))
    theirs = there.select([*names, *more]).append_column(THERE, pa.array(range(there.num_rows), pa.int64()))
    theirs = theirs.rename_columns([*names, *(f"there {name}" for name in more), THERE])
    return ours.join(theirs, keys=list(names), join_type="inner")


def read_columns(table: Table, file: TableFile, names: Sequence[str]) -> pa.Table:
    """Some columns of one of the table's files, those too that divide the table."""
    import pyarrow as pa

    schema = pa.schema([table.columns.field(name) for name in names])
    return pa.Table.from_batches(table.read(file, schema), schema)


def without(table: Table, file: TableFile, places: Any) -> list[DataFile]:
    """A file with the rows of one of the table's files but for those at `places`; none when there are no others."""
    return table.write(except_at(read_columns(table, file, table.columns.names), places))


def carried(table: Table, rows: pa.Table, names: Sequence[str], others: Sequence[str]) -> pa.Table:
    """`rows` with the columns `others` of the table's row that has the same values in `names`; null where none has."""
    import pyarrow as pa

    places: list[int | None] = [None] * rows.num_rows
    values = [pa.schema([table.columns.field(name) for name in others]).empty_table()]
    count = 0
    for file, found in meetings(table, rows, names):
        there: Any = found.column(THERE).combine_chunks()
        values.append(taken(read_columns(table, file, others), there))
        here: list[Any] = found.column(HERE).to_pylist()
        for number, place in enumerate(here, count):
            places[place] = number
        count += found.num_rows
    beside = taken(pa.concat_tables(values), pa.array(places, pa.int64()))
    for name in others:
        rows = rows.append_column(beside.schema.field(name), beside.column(name))
    return rows


def _ranges(rows: pa.Table, names: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """The least and the greatest value of those columns whose statistics every writer keeps whole."""
    import pyarrow as pa
    from pyarrow import compute

    found = {}
    for name in names:
        column: Any = rows.column(name)
        if rows.num_rows and (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
            both: Any = compute.min_max(column).as_py()
            found[name] = (both["min"], both["max"])
    return found


def _is_apart(file: TableFile, ranges: dict[str, tuple[Any, Any]]) -> bool:
    """Whether the table's log says that the file has no row with such values."""
    for name, (lowest, highest) in ranges.items():
        least, greatest = file.range_of(name)
        if least is not None and greatest is not None and (greatest < lowest or least > highest):
            return True
    return False
