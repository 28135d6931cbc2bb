"""Rows and deletes of a table with a key: the newest message of each key decides.

**The problem.** Messages of a key come from several queues and batches, and batches are repeated. An older message must
neither replace a newer row nor bring back a row that a newer message has deleted.

**The flow.** Within a batch only the newest message of a key counts (`newest_changes`). A newer row replaces the
table's row of its key, and a newer delete removes it (`plan_replacement`). The newest delete of each key is kept in a
tombstone table. A row that is older than the tombstone of its key is dropped.

**The rules.**

* A batch is first committed in the tombstone table, then in the table.
* The tombstones are read after the table is opened, and the commit must directly follow that version. So if another
  writer deletes a key meanwhile, either its tombstone is read, or its later commit in the table removes the row.
* Rebuild and replay apply the same rules to messages of bronze (`fold`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.row_replacement import (
    NEW_INDEX,
    OLD_INDEX,
    OLD_PREFIX,
    carry_columns,
    find_matching_files,
    join_rows,
    rewrite_without,
)
from servicebroker.pipeline.sinks.row_selection import exclude_rows, select_rows
from servicebroker.pipeline.sinks.tables import TableFile, TableVersion, foreign_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

AGE_COLUMNS = ("_queue", "_conversation_handle", "_queuing_order", "_message_enqueue_time")


@dataclass(frozen=True)
class Changes:
    """Rows and deletes of messages. `deletes` has the columns of the tombstone table; None for a table without one."""

    rows: pa.Table
    deletes: pa.Table | None = None


def newest_by_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return for each key the row of a batch that was enqueued last. All rows of a batch come from one queue."""
    from pyarrow import compute

    rank: Any = compute.rank(rows.column("_queuing_order"), "ascending", tiebreaker="first")
    groups = rows.select(list(key)).append_column("the rank", rank).group_by(list(key))
    last: Any = groups.aggregate([("the rank", "max")]).column("the rank_max")
    return rows.filter(compute.is_in(rank, value_set=last))


def newest_changes(key: Sequence[str], changes: Changes) -> Changes:
    """Return for each key the row or the delete of a batch that was enqueued last."""
    import pyarrow as pa
    from pyarrow import compute

    if changes.deletes is None:
        return Changes(newest_by_key(changes.rows, key))
    both = _keys(key, changes)
    both = both.append_column(NEW_INDEX, pa.array(range(both.num_rows), pa.int64()))
    indexes: Any = newest_by_key(both, key).column(NEW_INDEX)
    of_deletes = compute.subtract(indexes, changes.rows.num_rows)
    return Changes(select_rows(changes.rows, indexes), select_rows(changes.deletes, of_deletes))


def plan_replacement(
    table: TableVersion, schema: pa.Schema, key: Sequence[str], changes: Changes, tombstones: TableVersion | None
) -> tuple[list[TableFile], list[DataFile]]:
    """Return the table's files with older rows of these keys, and the files that replace them.

    Args:
        schema: columns of the rule.
        changes: at most one row or delete of each key.
        tombstones: version of the tombstone table, read after `table`; None for a table without one.
    """
    rows = changes.rows
    if tombstones is not None:
        deleted = [_outdated(matches) for _, matches in find_matching_files(tombstones, rows, key, AGE_COLUMNS)]
        rows = _without(rows, deleted)
    removed: list[TableFile] = []
    added: list[DataFile] = []
    outdated: list[Any] = []
    for file, matches in find_matching_files(table, _keys(key, Changes(rows, changes.deletes)), key, AGE_COLUMNS):
        outdated.append(_outdated(matches))
        replaced = matches.filter(_is_newer(matches)).column(OLD_INDEX)
        if len(replaced):
            removed.append(file)
            added += rewrite_without(table, file, replaced)
    rows = _without(rows, outdated)
    if added_columns := foreign_columns(table, schema):
        rows = carry_columns(table, rows, key, added_columns)
    return removed, [*added, *table.write(rows)]


def fold(key: Sequence[str], existing: Changes, batch: Changes) -> Changes:
    """Return the newest row of each key that is not deleted, and the newest delete of each key.

    `existing`: a result of this function, or no rows and no deletes.
    """
    import pyarrow as pa

    rows, deletes, tombstones = batch.rows, batch.deletes, existing.deletes
    newest = newest_changes(key, batch)
    rows = newest.rows
    if deletes is not None and tombstones is not None:
        tombstones = fold(key, Changes(tombstones), Changes(deletes)).rows
        rows = _without(rows, [_outdated(join_rows(rows, tombstones, key, AGE_COLUMNS))])
    matches = join_rows(_keys(key, Changes(rows, newest.deletes)), existing.rows, key, AGE_COLUMNS)
    remaining = exclude_rows(existing.rows, matches.filter(_is_newer(matches)).column(OLD_INDEX))
    return Changes(pa.concat_tables([remaining, _without(rows, [_outdated(matches)])]), tombstones)


def _keys(key: Sequence[str], changes: Changes) -> pa.Table:
    """Return key and age of the rows, then of the deletes."""
    import pyarrow as pa

    names = list(dict.fromkeys([*key, *AGE_COLUMNS]))
    parts = [changes.rows] if changes.deletes is None else [changes.rows, changes.deletes]
    return pa.concat_tables([part.select(names) for part in parts])


def _outdated(matches: pa.Table) -> Any:
    """Return the indexes of new rows that are not newer than their old row."""
    from pyarrow import compute

    return matches.filter(compute.invert(_is_newer(matches))).column(NEW_INDEX)


def _without(rows: pa.Table, indexes: Sequence[Any]) -> pa.Table:
    """Return the rows except those at the indexes in several columns. Indexes beyond the rows are ignored."""
    import pyarrow as pa

    chunks = [chunk for column in indexes for chunk in column.chunks]
    return exclude_rows(rows, pa.chunked_array(chunks, pa.int64())) if chunks else rows


def _is_newer(matches: pa.Table) -> Any:
    """Return for each match (a new and an old row with the same key) True if the new row is newer.

    Clocks may go back; positions in a queue do not, unless it was recreated. If position and time of two conversations
    disagree, the order is unknown. The new row then wins, since batches come in the order of the queue (decision 533).
    """
    from pyarrow import compute

    def compare(test: Any, name: str) -> Any:
        return test(matches.column(name), matches.column(f"{OLD_PREFIX}{name}"))

    same_queue = compare(compute.equal, "_queue")
    has_later_position = compare(compute.greater, "_queuing_order")
    has_later_time = compare(compute.greater, "_message_enqueue_time")
    is_later = compute.or_(has_later_time, compute.and_(same_queue, has_later_position))
    same_conversation = compute.and_(same_queue, compare(compute.equal, "_conversation_handle"))
    return compute.if_else(same_conversation, has_later_position, is_later)
