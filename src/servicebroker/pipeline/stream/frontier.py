"""Offsets of a stream as plain values, and the SQL that plans the next page.

Transactions do not commit in the order in which they draw numbers, so the number of a row alone does not tell what was
read. A *window* is all rows with lo <= stamp < hi. hi was the oldest unfinished transaction id when the window was
opened. Every transaction below hi has finished, and rows of all others carry a higher stamp, so a window never changes.
Within a window the rows are paged by queuing_order. A new window opens when the last one has been read to its end. So
every page, and every batch of Spark, can be repeated exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import msgspec

from servicebroker.engine.conversation.shared_bodies import MESSAGE_BODY, READERS_GONE
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import shown
from servicebroker.store.queue import retain_gone

OFFSET_VERSION = 1
MAX_BIGINT = 2**63 - 1  # of transaction ids and numbers of arrival in PostgreSQL
PRIORITIES = range(1, 11)
_EVERY_PRIORITY = f"{{{','.join(map(str, PRIORITIES))}}}"  # as an array of SQL
SYSTEM_TYPES = (names.ERROR_ID, names.END_DIALOG_ID, names.DIALOG_TIMER_ID)


@dataclass(frozen=True, slots=True)
class Frontier:
    """An offset of the stream. All windows below `lo` are read; of window [lo, hi) the rows up to `queuing_order`.

    `system_identifier` names the PostgreSQL cluster, since transaction ids mean nothing in another one. `queue` names
    the queue, as broker identifier:number. A copy in the same cluster has another `database_oid`; offsets of earlier
    versions have 0.
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
        """True if nothing has been read yet: no window is open."""
        return self.lo == self.hi

    def opened(self, hi: int) -> Frontier:
        """Return the beginning of the next window, up to the transaction id `hi`."""
        return replace(self, lo=self.hi, hi=hi, queuing_order=0)

    def read_to(self, queuing_order: int) -> Frontier:
        """Return a later point of the same window."""
        return replace(self, queuing_order=queuing_order)


def foreign_offset_error(stored: object) -> InstanceError:
    """Return the error for an offset in a checkpoint that this source has not written."""
    return InstanceError(
        f"The checkpoint holds an offset that is not one of the servicebroker source: {shown(stored)}."
    )


class QueuePosition(NamedTuple):
    """The present position of a server and a queue.

    Attributes:
        frontier: the oldest unfinished transaction id. Everything below it is final. It never goes down.
        drawn: the last queuing_order that the queue has drawn.
    """

    frontier: int
    drawn: int


class Slice(NamedTuple):
    """Rows of one window: lo <= stamp < hi and after < queuing_order <= upto."""

    lo: int
    hi: int
    after: int
    upto: int


def slice_between(start: Frontier, end: Frontier) -> Slice | None:
    """Return the rows of a batch; None for an empty one. A batch never crosses the border of a window.

    After a restart an initial offset may differ ("latest"). So the end alone defines the first batch.

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
    """Return the read rows of the offset's window, which may be acknowledged once the sink has them."""
    if offset.queuing_order == 0:
        return None
    return Slice(offset.lo, offset.hi, 0, offset.queuing_order)


def has_read(offset: Frontier, other: Frontier) -> bool:
    """True if a stream at `offset` has read everything that one at `other` has read."""
    if (offset.lo, offset.hi) == (other.lo, other.hi):
        return offset.queuing_order >= other.queuing_order
    return offset.lo >= other.hi


def divide_slice(window_slice: Slice, parts: int) -> list[Slice]:
    """Divide a slice into `parts` of about equal ranges of queuing_order; fewer if the slice has fewer numbers."""
    length = window_slice.upto - window_slice.after
    borders = sorted({window_slice.after + length * number // parts for number in range(parts + 1)})
    return [window_slice._replace(after=after, upto=upto) for after, upto in itertools.pairwise(borders)]


def check_continuity(start: Frontier, here: Frontier, position: QueuePosition) -> None:
    """Refuse an offset that does not belong to this queue in this cluster at this point of its life.

    `here` is the initial offset of the queue as it is now.

    Raises:
        InstanceError: another queue, another cluster or database, or a cluster that went back in time.
    """
    advice = (
        "Transaction ids of the checkpoint mean nothing here: start the query with a new checkpoint location, "
        "after checking in the target which messages it already holds."
    )
    if start.queue != here.queue:
        raise InstanceError(
            "The checkpoint belongs to another queue, or to one that was dropped and created again: "
            "use one checkpoint location per queue."
        )
    if start.system_identifier != here.system_identifier:
        raise InstanceError(
            f"The checkpoint belongs to another PostgreSQL server (system identifier {start.system_identifier}, "
            f"this one has {here.system_identifier}), as after a dump and restore. {advice}"
        )
    if start.database_oid not in (0, here.database_oid):
        raise InstanceError(
            "The checkpoint belongs to another database of this PostgreSQL server, of which this one is a copy, as "
            f"after a dump and restore. {advice}"
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

# The planner's statistics of a queue are always stale. A whole scan would grow with the queue's depth; a sort spills.
PIN_PLANS = (
    "select set_config(name, value, false) from (values ('enable_seqscan', 'off'), ('enable_sort', 'off'), "
    "('enable_bitmapscan', 'off'), ('max_parallel_workers_per_gather', '0')) pinned (name, value)"
)

FRONTIER = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

# Commits a transaction that reaches the disk and is younger than every frontier so far. A server that crashes assigns
# ids of transactions again that left nothing on the disk. After this commit it assigns none below those frontiers.
KEEP_FRONTIER = "select pg_logical_emit_message(true, 'servicebroker', 'frontier')"

_IN_WINDOW = "stamp >= $1::text::xid8 and stamp < $2::text::xid8 and queuing_order > $3"
_UPTO = f"{_IN_WINDOW} and queuing_order <= $4"


def extremes_sql(queue_id: int, archived: bool) -> str:
    """Select the first and the last queuing_order that a window still has; NULL for none. One probe at each end.

    Parameters: lo, hi, after. `archived`: archived rows count too.
    """
    forwards = _merged_sql(queue_id, "queuing_order", _IN_WINDOW, archived)
    backwards = _merged_sql(queue_id, "queuing_order", _IN_WINDOW, archived, "desc")
    return (
        f"select (select min(queuing_order) from ({forwards} limit 1) f), "
        f"(select max(queuing_order) from ({backwards} limit 1) b)"
    )


def page_end_sql(queue_id: int, archived: bool) -> str:
    """Select the last queuing_order of the next page; NULL if the window has no more rows. Reads the whole page.

    Parameters: lo, hi, after, maximum rows.
    """
    return (
        f"select max(queuing_order) from ({_merged_sql(queue_id, 'queuing_order', _IN_WINDOW, archived)} limit $4) page"
    )


def fitting_sql(queue_id: int, archived: bool) -> str:
    """Select of the next rows of a window: last queuing_order, bytes of the bodies, first queuing_order.

    The fourth column is the last queuing_order up to which the bodies fit into the given bytes.

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
    """The conversation groups of a partition: those whose bucket modulo `of` is `number`."""

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
    """Select the rows of a slice that belong to a partition, ordered by queuing_order.

    The text contains the values, since COPY takes no parameters; all are numbers.
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
    """Select the number of rows of a slice, of rows with shared bodies, and the handles that control messages end.

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
    """Delete a slice of rows whose bodies no other row shares."""
    return f"delete from servicebroker.queue_{queue_id} where {_scanned_slice_sql(window_slice)}"


def take_rows_sql(queue_id: int, window_slice: Slice, *, retention: bool, archive: bool) -> str:
    """Delete a slice of any rows. With `retention` the queue keeps the messages where RECEIVE does not find them.

    With `archive` the whole rows go into the queue's archive.
    """
    further_parts = retain_gone(queue_id) if retention else f", unread as ({READERS_GONE})"
    if archive:
        further_parts += _archived_sql(queue_id)
    return (
        f"with gone as (delete from servicebroker.queue_{queue_id} where {_scanned_slice_sql(window_slice)} "
        f"returning *){further_parts} select count(*) from gone"
    )


def archive_conversations_sql(queue_id: int, window_slice: Slice | None = None) -> str:
    """Move the messages of conversations from the queue, or from a slice of it, into the queue's archive.

    Parameter: their handles (an array).
    """
    in_slice = "" if window_slice is None else f"and {_in_slice_sql(window_slice)} "
    return (
        f"with gone as (delete from servicebroker.queue_{queue_id} q using servicebroker.conversation_endpoints e "
        "where e.conversation_handle = any ($1) and q.priority = e.priority "
        "and q.conversation_group_id = e.conversation_group_id and q.conversation_handle = e.conversation_handle "
        f"{in_slice}returning q.*), unread as ({READERS_GONE}){_archived_sql(queue_id)} "
        "select count(*) from gone"
    )


def _archived_sql(queue_id: int) -> str:
    """Return a further part of a statement, to put the rows deleted in its part `gone` into the archive."""
    return (
        f", archived as (insert into servicebroker.archived_{queue_id} ({_ARCHIVED_COLUMNS}, message_body) "
        f"select {_ARCHIVED_COLUMNS}, {MESSAGE_BODY} from gone)"
    )


def has_later_sql(queue_id: int, window_slice: Slice) -> str:
    """True if messages have arrived after a slice: one probe for each priority."""
    return " or ".join(
        f"exists (select from servicebroker.queue_{queue_id} "
        f"where priority = {priority} and queuing_order > {int(window_slice.upto)})"
        for priority in PRIORITIES
    )


def has_others_sql(queue_id: int, window_slice: Slice) -> str:
    """True if the queue has any row outside a slice. Reads the whole queue."""
    return f"exists (select from servicebroker.queue_{queue_id} where not ({_in_slice_sql(window_slice)}))"


_ARCHIVED_COLUMNS = (
    "queuing_order, message_sequence_number, stamp, message_enqueue_time, conversation_group_id, conversation_handle, "
    "service_id, service_contract_id, message_type_id, priority, bucket, validation"
)


def create_archive_sql(queue_id: int) -> str:
    """Create the archive of a queue, for acknowledged messages to keep."""
    return (
        f"create table if not exists servicebroker.archived_{queue_id} (like servicebroker.queue_{queue_id} "
        "including defaults, archived_at timestamptz not null default clock_timestamp(), primary key (queuing_order))"
    )


def oldest_behind_sql(queue_id: int) -> str:
    """Select the enqueue time of the first message after a queuing_order; no row for none. One probe for each priority.

    Parameter: the queuing_order.
    """
    return _merged_sql(queue_id, "message_enqueue_time, queuing_order", "queuing_order > $1") + " limit 1"


# The transaction that holds the frontier back, and its age in seconds; only writing transactions do so.
# Parameter: process ids of sessions to ignore.
BLOCKING = (
    "select pid, extract(epoch from clock_timestamp() - xact_start)::bigint, application_name from pg_stat_activity "
    "where backend_xid::text::bigint = mod(pg_snapshot_xmin(pg_current_snapshot())::text::bigint, 4294967296) "
    "and pid <> pg_backend_pid() and pid <> all ($1::integer[])"
)


# The oldest open transaction: process, name, user, database, state, seconds. Session or prepared transaction.
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
    """Select the number of messages that a frontier holds back. Parameters: the frontier, the last queuing_order."""
    return (
        f"select count(*) from servicebroker.queue_{queue_id} where priority = any ('{_EVERY_PRIORITY}') "
        "and queuing_order <= $2 and stamp >= $1::text::xid8"
    )


def _merged_sql(queue_id: int, columns: str, where: str, archived: bool = False, direction: str = "") -> str:
    """Merge an index scan of each priority in the order of arrival. Nothing is sorted, so rows flow at once.

    PostgreSQL recognises the merge only if each scan has an ORDER BY of its own.
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
    """Return the condition of a slice, with the column that the arrival index begins with."""
    return f"priority = any ('{_EVERY_PRIORITY}') and {_in_slice_sql(window_slice)}"
