"""Rows of an Arrow table by their places, however much text they have.

An array of texts or bytes holds 2 GiB. Columns of tables are made of several, but `take` and `sort_by` join all of a
column first, also for a single row, and fail where there is more. `filter` goes array by array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

LARGE = 1 << 30  # bytes of rows: no column of fewer is too much for one array


def only_at(rows: pa.Table, places: Any) -> pa.Table:
    """The rows at `places`, in the order that they have."""
    return rows.filter(_are_at(rows, places))


def except_at(rows: pa.Table, places: Any) -> pa.Table:
    """All rows but those at `places`."""
    from pyarrow import compute

    return rows.filter(compute.invert(_are_at(rows, places)))


def taken(rows: pa.Table, places: pa.Array[Any]) -> pa.Table:
    """The rows at `places`, in the order of these; nulls where a place is null."""
    import pyarrow as pa
    from pyarrow import compute

    if rows.nbytes < LARGE:
        return rows.take(places)
    wanted: Any = compute.unique(places.drop_null()).sort()
    if len(wanted) < rows.num_rows:
        return taken(only_at(rows, wanted), compute.index_in(places, value_set=wanted))
    if len(places) < 2:
        return rows.take(places)
    middle = len(places) // 2
    return pa.concat_tables([taken(rows, places.slice(0, middle)), taken(rows, places.slice(middle))])


def _are_at(rows: pa.Table, places: Any) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    return compute.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=places)
