"""Offsets of a stream as plain values, and the SQL that plans the next page.

Transactions do not commit in the order in which they draw queuing_order numbers. So a number alone does not separate
read rows from unread ones. The *stamp* of a row is the id of the transaction that wrote it. The *frontier* is the
oldest transaction id that has not ended.

A *window* is all rows with lo <= stamp < hi, where hi was the frontier when the window was opened. Every transaction
below hi has ended, so a window never gets new rows. Within a window the rows are read in pages, ordered by
queuing_order. A *slice* is such a page, and a batch of Spark is a slice of each queue. When a window is read to its
end, the next one opens. So every page and every batch can be repeated exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import msgspec

from servicebroker.engine.conversation.shared_bodies import DELETE_REFERENCES_SQL, MESSAGE_BODY
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import short_repr
from servicebroker.store.queue import retain_rows

OFFSET_VERSION = 1
MAX_BIGINT = 2**63 - 1  # upper bound of transaction ids and of queuing_order
PRIORITIES = range(1, 11)
_EVERY_PRIORITY = f"{{{','.join(map(str, PRIORITIES))}}}"  # as an array of SQL
SYSTEM_TYPES = (names.ERROR_ID, names.END_DIALOG_ID, names.DIALOG_TIMER_ID)


@dataclass(frozen=True, slots=True)
class Frontier:
    """An offset of the stream. All windows below `lo` are read, and in window [lo, hi) the rows up to `queuing_order`.

    Attributes:
        system_identifier: the PostgreSQL cluster. Transaction ids have no meaning in another cluster.
        queue: the queue, as "broker identifier:queue id".
        database_oid: the PostgreSQL database, which distinguishes copies in the same cluster. 0 in offsets of earlier
            versions.
    """

    system_identifier: str
    queue: str
    lo: int = 0
    hi: int = 0
    queuing_order: int = 0
    database_oid: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it in the checkpoint."""
        return {"version": OFFSET_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Frontier:
        """Return the offset that `to_json` stored.

        Raises:
            InstanceError: the offset is of a newer version, or not of this source.
        """
        fields = dict(stored)
        if fields.pop("version", None) != OFFSET_VERSION:
            raise InstanceError(
                "The checkpoint was not written by this version of the servicebroker source: "
                "upgrade servicebroker, or start the query with a new checkpoint location."
            )
        try:
            if fields.keys() - cls.__slots__:
                raise msgspec.ValidationError("unknown fields")
            offset = msgspec.convert(fields, cls)
        except msgspec.ValidationError:
            raise foreign_offset_error(stored) from None
        last_order = 0 if offset.is_initial else MAX_BIGINT
        if not (0 <= offset.lo <= offset.hi <= MAX_BIGINT and 0 <= offset.queuing_order <= last_order):
            raise foreign_offset_error(stored)
        return offset

    @property
    def is_initial(self) -> bool:
        """True if no window is open yet, so that nothing has been read."""
        return self.lo == self.hi

    def opened(self, hi: int) -> Frontier:
        """Return the beginning of the next window, which ends before the transaction id `hi`."""
        return replace(self, lo=self.hi, hi=hi, queuing_order=0)

    def read_to(self, queuing_order: int) -> Frontier:
        """Return the offset at `queuing_order` in the same window."""
        return replace(self, queuing_order=queuing_order)


def foreign_offset_error(stored: object) -> InstanceError:
    """Return the error for an offset in a checkpoint that another source has written."""
    return InstanceError(
        f"The checkpoint holds an offset that is not one of the servicebroker source: {short_repr(stored)}."
    )


class QueuePosition(NamedTuple):
    """The present position of a server and a queue.

    Attributes:
        frontier: the oldest transaction id that has not ended. It never goes down.
        drawn: the last queuing_order that the queue's sequence has returned.
    """

    frontier: int
    drawn: int


class Slice(NamedTuple):
    """A page of rows of a window: lo <= stamp < hi and after < queuing_order <= upto."""

    lo: int
    hi: int
    after: int
    upto: int


def slice_between(start: Frontier, end: Frontier) -> Slice | None:
    """Return the rows of a batch; None for an empty batch. All rows of a batch are in one window.

    With "latest", the initial offset differs after a restart. So the end alone defines the first batch.

    Raises:
        InstanceError: `end` cannot follow `start`.
    """
    if start == end:
        return None
    if start.is_initial and not end.is_initial:
        return Slice(end.lo, end.hi, 0, end.queuing_order)
    if (start.lo, start.hi) == (end.lo, end.hi) and start.queuing_order < end.queuing_order:
        return Slice(end.lo, end.hi, start.queuing_order, end.queuing_order)
    if start.hi == end.lo < end.hi:
        return Slice(end.lo, end.hi, 0, end.queuing_order)
    raise InstanceError(f"The checkpoint is damaged: no batch leads from {start} to {end}.")


def slice_read_so_far(offset: Frontier) -> Slice | None:
    """Return the rows of the offset's window up to the offset; None for none."""
    if offset.queuing_order == 0:
        return None
    return Slice(offset.lo, offset.hi, 0, offset.queuing_order)


def has_read(offset: Frontier, other: Frontier) -> bool:
    """True if a stream at `offset` has read all rows that a stream at `other` has read."""
    if (offset.lo, offset.hi) == (other.lo, other.hi):
        return offset.queuing_order >= other.queuing_order
    return offset.lo >= other.hi


def divide_slice(window_slice: Slice, parts: int) -> list[Slice]:
    """Divide a slice into at most `parts` slices, with about equal ranges of queuing_order."""
    length = window_slice.upto - window_slice.after
    borders = sorted({window_slice.after + length * number // parts for number in range(parts + 1)})
    return [window_slice._replace(after=after, upto=upto) for after, upto in itertools.pairwise(borders)]


def check_continuity(start: Frontier, initial: Frontier, position: QueuePosition) -> None:
    """Check that a stream can continue at `start` on the present queue, database and cluster.

    `initial` is the initial offset of the present queue.

    Raises:
        InstanceError: `start` is of another queue, database or cluster; or the cluster was restored to a time before
            `start`.
    """
    advice = (
        "Transaction ids of the checkpoint mean nothing here: start the query with a new checkpoint location, "
        "after checking in the target which messages it already holds."
    )
    if start.queue != initial.queue:
        raise InstanceError(
            "The checkpoint belongs to another queue, or to one that was dropped and created again: "
            "use one checkpoint location per queue."
        )
    if start.system_identifier != initial.system_identifier:
        raise InstanceError(
            f"The checkpoint belongs to another PostgreSQL server (system identifier {start.system_identifier}, "
            f"this one has {initial.system_identifier}), as after a dump and restore. {advice}"
        )
    if start.database_oid not in (0, initial.database_oid):
        raise InstanceError(
            "The checkpoint was made for another database of this PostgreSQL server. This database is a copy of that "
            f"one (dump and restore). {advice}"
        )
    if start.hi > position.frontier:
        raise InstanceError(
            f"The server has gone back in time: the checkpoint has read up to transaction {start.hi}, the server "
            f"is at {position.frontier}, as after restoring a backup. {advice}"
        )
    if start.queuing_order > position.drawn:
        raise InstanceError(
            f"The server has gone back in time: the checkpoint has read up to message {start.queuing_order} of the "
            f"queue, which is at {position.drawn}, as after restoring a backup or a failover to a server that had not "
            f"everything. {advice}"
        )


# ---------------------------------------------------------------- SQL

# The planner's statistics of a queue are always stale. A sequential scan costs as much as the queue is deep, and a sort
# spills to disk.
PIN_PLANS = (
    "select set_config(name, value, false) from (values ('enable_seqscan', 'off'), ('enable_sort', 'off'), "
    "('enable_bitmapscan', 'off'), ('max_parallel_workers_per_gather', '0')) pinned (name, value)"
)

FRONTIER = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

# Commits a transaction that is durable and younger than every frontier so far. After a crash, a server assigns the ids
# of transactions that left nothing on disk again. After this commit it assigns no id below those frontiers.
KEEP_FRONTIER = "select pg_logical_emit_message(true, 'servicebroker', 'frontier')"

_IN_WINDOW = "stamp >= $1::text::xid8 and stamp < $2::text::xid8 and queuing_order > $3"
_UPTO = f"{_IN_WINDOW} and queuing_order <= $4"


def extremes_sql(queue_id: int, archived: bool) -> str:
    """Select the first and the last queuing_order after `after` in a window; NULL for none. Needs two index probes.

    Parameters: lo, hi, after. `archived`: include archived rows.
    """
    forwards = _merged_sql(queue_id, "queuing_order", _IN_WINDOW, archived)
    backwards = _merged_sql(queue_id, "queuing_order", _IN_WINDOW, archived, "desc")
    return (
        f"select (select min(queuing_order) from ({forwards} limit 1) f), "
        f"(select max(queuing_order) from ({backwards} limit 1) b)"
    )


def page_end_sql(queue_id: int, archived: bool) -> str:
    """Select the last queuing_order of the next page; NULL if the window has no more rows. Scans the page.

    Parameters: lo, hi, after, maximum rows.
    """
    return (
        f"select max(queuing_order) from ({_merged_sql(queue_id, 'queuing_order', _IN_WINDOW, archived)} limit $4) page"
    )


def fitting_sql(queue_id: int, archived: bool) -> str:
    """Select for the next rows of a window: last queuing_order, bytes of the bodies, first queuing_order.

    The fourth column is the last queuing_order up to which the bodies have at most `maximum bytes`; NULL for none.

    Parameters: lo, hi, after, last queuing_order to consider, maximum rows, maximum bytes.
    """
    columns = f"queuing_order, octet_length({MESSAGE_BODY}) as bytes"
    if archived:
        return _fitting_sql(
            f"select * from ({_merged_sql(queue_id, columns, _UPTO)} limit $5) q union all select * from (select "
            f"queuing_order, octet_length(message_body) from servicebroker.archived_{queue_id} where {_UPTO} "
            "order by queuing_order limit $5) a order by queuing_order limit $5"
        )
    return _fitting_sql(f"{_merged_sql(queue_id, columns, _UPTO)} limit $5")


def _fitting_sql(page: str) -> str:
    return (
        "select max(queuing_order), max(bytes)::bigint, min(queuing_order), "
        "max(queuing_order) filter (where bytes <= $6) from (select queuing_order, "
        f"sum(coalesce(bytes, 0)) over (order by queuing_order) as bytes from ({page}) page) summed"
    )


class GroupPartition(NamedTuple):
    """A partition of the conversation groups: those whose bucket modulo `of` is `number`."""

    number: int
    of: int


def rows_sql(
    queue_id: int,
    window_slice: Slice,
    partition: GroupPartition,
    columns: str,
    *,
    archived: bool,
    system_messages: bool,
) -> str:
    """Return the SQL that selects the rows of a slice in a partition, ordered by queuing_order.

    The values, all numbers, are formatted into the text, since COPY takes no parameters.
    """
    where = _in_slice_sql(window_slice) + _without_system_messages_sql(system_messages)
    if partition.of > 1:
        where += f" and bucket % {int(partition.of)} = {int(partition.number)}"
    return _merged_sql(queue_id, columns, where, archived)


def measure_sql(queue_id: int, window_slice: Slice, *, archived: bool, system_messages: bool) -> str:
    """Select the number of rows of a slice, and the bytes of their bodies."""
    types = _without_system_messages_sql(system_messages)
    sizes = [
        f"select octet_length({MESSAGE_BODY}) as bytes from servicebroker.queue_{queue_id} "
        f"where {_scanned_slice_sql(window_slice)}{types}"
    ]
    if archived:
        archive = f"servicebroker.archived_{queue_id}"
        sizes.append(f"select octet_length(message_body) from {archive} where {_in_slice_sql(window_slice)}{types}")
    return f"select count(*), coalesce(sum(bytes), 0)::bigint from ({' union all '.join(sizes)}) sizes"


def _without_system_messages_sql(system_messages: bool) -> str:
    return "" if system_messages else f" and message_type_id not in ({', '.join(map(str, SYSTEM_TYPES))})"


def endings_sql(queue_id: int, window_slice: Slice) -> str:
    """Select the number of rows of a slice, the number with shared bodies, and the handles of conversations to end.

    Parameters: database id, name of the message type that ends a stream.
    """
    return (
        "select count(*), count(*) filter (where is_shared), "
        "array_agg(conversation_handle) filter ("  # with repetitions, since DISTINCT would sort all rows
        "where message_type_id in (1, 2) or message_type_id = (select message_type_id "
        "from servicebroker.message_types where database_id = $1 and name = $2)) "
        f"from servicebroker.queue_{queue_id} where {_scanned_slice_sql(window_slice)}"
    )


def delete_rows_sql(queue_id: int, window_slice: Slice) -> str:
    """Delete the rows of a slice. No other row may share their bodies."""
    return f"delete from servicebroker.queue_{queue_id} where {_scanned_slice_sql(window_slice)}"


def take_rows_sql(queue_id: int, window_slice: Slice, *, retention: bool, archive: bool) -> str:
    """Delete the rows of a slice, also rows with shared bodies.

    With `retention` the queue keeps the messages, hidden from RECEIVE. With `archive` the rows go into the queue's
    archive.
    """
    further_parts = retain_rows(queue_id, "deleted") if retention else f", unread as ({DELETE_REFERENCES_SQL})"
    if archive:
        further_parts += _archived_sql(queue_id)
    return (
        f"with deleted as (delete from servicebroker.queue_{queue_id} where {_scanned_slice_sql(window_slice)} "
        f"returning *){further_parts} select count(*) from deleted"
    )


def archive_conversations_sql(queue_id: int, window_slice: Slice | None = None) -> str:
    """Move the messages of conversations from the queue, or from a slice of it, into the queue's archive.

    Parameter: their handles (an array).
    """
    in_slice = "" if window_slice is None else f"and {_in_slice_sql(window_slice)} "
    return (
        f"with deleted as (delete from servicebroker.queue_{queue_id} q using servicebroker.conversation_endpoints e "
        "where e.conversation_handle = any ($1) and q.priority = e.priority "
        "and q.conversation_group_id = e.conversation_group_id and q.conversation_handle = e.conversation_handle "
        f"{in_slice}returning q.*), unread as ({DELETE_REFERENCES_SQL}){_archived_sql(queue_id)} "
        "select count(*) from deleted"
    )


def _archived_sql(queue_id: int) -> str:
    """Return a CTE that inserts the rows of the CTE `deleted`, which deletes them, into the archive."""
    return (
        f", archived as (insert into servicebroker.archived_{queue_id} ({_ARCHIVED_COLUMNS}, message_body) "
        f"select {_ARCHIVED_COLUMNS}, {MESSAGE_BODY} from deleted)"
    )


def has_later_sql(queue_id: int, window_slice: Slice) -> str:
    """Return a condition: messages have arrived after a slice. One index probe for each priority."""
    return " or ".join(
        f"exists (select from servicebroker.queue_{queue_id} "
        f"where priority = {priority} and queuing_order > {int(window_slice.upto)})"
        for priority in PRIORITIES
    )


def has_others_sql(queue_id: int, window_slice: Slice) -> str:
    """Return a condition: the queue has a row outside a slice. Scans the whole queue."""
    return f"exists (select from servicebroker.queue_{queue_id} where not ({_in_slice_sql(window_slice)}))"


_ARCHIVED_COLUMNS = (
    "queuing_order, message_sequence_number, stamp, message_enqueue_time, conversation_group_id, conversation_handle, "
    "service_id, service_contract_id, message_type_id, priority, bucket, validation"
)


def create_archive_sql(queue_id: int) -> str:
    """Create the archive of a queue, a table that keeps acknowledged messages."""
    return (
        f"create table if not exists servicebroker.archived_{queue_id} (like servicebroker.queue_{queue_id} "
        "including defaults, archived_at timestamptz not null default clock_timestamp(), primary key (queuing_order))"
    )


def oldest_behind_sql(queue_id: int) -> str:
    """Select the enqueue time of the first message after a queuing_order; no row for none.

    One index probe for each priority. Parameter: the queuing_order.
    """
    return _merged_sql(queue_id, "message_enqueue_time, queuing_order", "queuing_order > $1") + " limit 1"


# The transaction that holds the frontier back: process id, age in seconds, application. Only writers hold it back.
# Parameter: process ids of sessions to ignore.
BLOCKING = (
    "select pid, extract(epoch from clock_timestamp() - xact_start)::bigint, application_name from pg_stat_activity "
    "where backend_xid::text::bigint = mod(pg_snapshot_xmin(pg_current_snapshot())::text::bigint, 4294967296) "
    "and pid <> pg_backend_pid() and pid <> all ($1::integer[])"
)


# The oldest open transaction, of a session or prepared: process id, name, user, database, state, age in seconds.
HOLDER = (
    "with oldest as (select mod(pg_snapshot_xmin(pg_current_snapshot())::text::bigint, 4294967296) as xid) "
    "select pid, application_name, usename::text, datname::text, state, "
    "extract(epoch from clock_timestamp() - xact_start)::bigint from pg_stat_activity, oldest "
    "where backend_xid::text::bigint = xid and pid <> pg_backend_pid() "
    "union all select null, gid, owner::text, database::text, null, "
    "extract(epoch from clock_timestamp() - prepared)::bigint from pg_prepared_xacts, oldest "
    "where transaction::text::bigint = xid"
)


def held_back_sql(queue_id: int) -> str:
    """Select the number of messages that a frontier holds back. Parameters: frontier, last queuing_order to count."""
    return (
        f"select count(*) from servicebroker.queue_{queue_id} where priority = any ('{_EVERY_PRIORITY}') "
        "and queuing_order <= $2 and stamp >= $1::text::xid8"
    )


def _merged_sql(queue_id: int, columns: str, where: str, archived: bool = False, direction: str = "") -> str:
    """Select rows ordered by queuing_order, by a merge of one index scan per priority. Nothing is sorted.

    PostgreSQL plans the merge only if each scan has an ORDER BY of its own.
    """
    scans = [
        f"(select {columns} from servicebroker.queue_{queue_id} "
        f"where priority = {priority} and {where} order by queuing_order {direction})"
        for priority in PRIORITIES
    ]
    if archived:
        table = f"servicebroker.archived_{queue_id}"
        scans.append(f"(select {columns} from {table} where {where} order by queuing_order {direction})")
    return " union all ".join(scans) + f" order by queuing_order {direction}"


def _in_slice_sql(window_slice: Slice) -> str:
    lo, hi, after, upto = (int(number) for number in window_slice)
    return f"queuing_order > {after} and queuing_order <= {upto} and stamp >= '{lo}'::xid8 and stamp < '{hi}'::xid8"


def _scanned_slice_sql(window_slice: Slice) -> str:
    """Return the condition of a slice, for an index scan: with the priority, the first column of the arrival index."""
    return f"priority = any ('{_EVERY_PRIORITY}') and {_in_slice_sql(window_slice)}"
