"""Selection of rows of an Arrow table by index, also from columns with more than 2 GiB of text.

An Arrow array of strings or bytes holds at most 2 GiB; a column of a table may consist of several arrays. `take` and
`sort_by` first join these arrays, even for a single row, and fail beyond 2 GiB. `filter` works array by array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

MAX_TAKE_BYTES = 1 << 30  # size of a table up to which each of its columns surely fits into one array


def select_rows(rows: pa.Table, indexes: Any) -> pa.Table:
    """Return the rows at `indexes`, in the order of the table."""
    return rows.filter(_are_at(rows, indexes))


def exclude_rows(rows: pa.Table, indexes: Any) -> pa.Table:
    """Return all rows except those at `indexes`."""
    from pyarrow import compute

    return rows.filter(compute.invert(_are_at(rows, indexes)))


def take_rows(rows: pa.Table, indexes: pa.Array[Any]) -> pa.Table:
    """Return the rows at `indexes`, in the order of the indexes; null rows for null indexes."""
    import pyarrow as pa
    from pyarrow import compute

    if rows.nbytes < MAX_TAKE_BYTES:
        return rows.take(indexes)
    wanted: Any = compute.unique(indexes.drop_null()).sort()
    if len(wanted) < rows.num_rows:
        return take_rows(select_rows(rows, wanted), compute.index_in(indexes, value_set=wanted))
    if len(indexes) < 2:
        return rows.take(indexes)
    middle = len(indexes) // 2
    return pa.concat_tables([take_rows(rows, indexes.slice(0, middle)), take_rows(rows, indexes.slice(middle))])


def _are_at(rows: pa.Table, indexes: Any) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    return compute.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=indexes)
