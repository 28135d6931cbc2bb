"""How far a stream has read a queue: offsets as plain values, and the SQL that plans the next page.

Transactions commit in another order than they draw numbers, so no number of a row alone says what was read.
A *window* is all rows with lo <= stamp < hi, where hi was the oldest unfinished transaction id when the window
was opened: every transaction below it has finished, and rows of all others carry a higher stamp, so a window
never changes. Inside a window the rows are paged by queuing_order. A new window opens when the last one has
been read to its end, which makes every page, and so every batch of Spark, exactly repeatable.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from servicebroker.engine.conversation.shared_bodies import MESSAGE_BODY, READERS_GONE
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.store.queue import retain_gone

VERSION = 1
PRIORITIES = range(1, 11)
SYSTEM_TYPES = (names.ERROR_ID, names.END_DIALOG_ID, names.DIALOG_TIMER_ID)


@dataclass(frozen=True, slots=True)
class Frontier:
    """An offset of the stream: all windows below `lo` are read, and of window [lo, hi) the rows up to `queuing_order`.

    `system_identifier` names the PostgreSQL cluster, since transaction ids mean nothing in another one, and
    `queue` the queue, as broker identifier:number. A copy in the same cluster has another `database_oid`; it is 0 in
    offsets of earlier versions.
    """

    system_identifier: str
    queue: str
    lo: int = 0
    hi: int = 0
    queuing_order: int = 0
    database_oid: int = 0

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark stores it in the checkpoint."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Frontier:
        """The offset that `to_json` stored.

        Raises:
            InstanceError: it was stored by a newer version, or is not an offset of this source.
        """
        fields = dict(stored)
        if fields.pop("version", None) != VERSION:
            raise InstanceError(
                "The checkpoint was not written by this version of the servicebroker source: "
                "upgrade servicebroker, or start the query with a new checkpoint location."
            )
        try:
            return cls(**fields)
        except TypeError:
            raise InstanceError(
                f"The checkpoint holds an offset that is not one of the servicebroker source: {stored!r}."
            ) from None

    @property
    def is_initial(self) -> bool:
        """Nothing has been read yet: no window is open."""
        return self.lo == self.hi

    def opened(self, hi: int) -> Frontier:
        """The beginning of the next window, up to the transaction id `hi`."""
        return replace(self, lo=self.hi, hi=hi, queuing_order=0)

    def read_to(self, queuing_order: int) -> Frontier:
        """A later point of the same window."""
        return replace(self, queuing_order=queuing_order)


class Now(NamedTuple):
    """How far a server and a queue are.

    Attributes:
        frontier: the oldest unfinished transaction id: what lies below it is final. Never goes down.
        drawn: the last queuing_order that the queue has given.
    """

    frontier: int
    drawn: int


class Slice(NamedTuple):
    """Rows of one window: lo <= stamp < hi and after < queuing_order <= upto."""

    lo: int
    hi: int
    after: int
    upto: int


def between(start: Frontier, end: Frontier) -> Slice | None:
    """The rows of a batch; None when there are none. A batch never crosses the border of a window.

    An initial offset may be another one after a restart ("latest"): what the first batch is, its end says alone.

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


def read_so_far(offset: Frontier) -> Slice | None:
    """The rows of the offset's window that have been read: what may be acknowledged once the sink has them."""
    if offset.queuing_order == 0:
        return None
    return Slice(offset.lo, offset.hi, 0, offset.queuing_order)


def has_read(offset: Frontier, other: Frontier) -> bool:
    """Whether a stream at `offset` has read all that one at `other` has."""
    if (offset.lo, offset.hi) == (other.lo, other.hi):
        return offset.queuing_order >= other.queuing_order
    return offset.lo >= other.hi


def divided(piece: Slice, parts: int) -> list[Slice]:
    """The slice in `parts` of about equally many numbers of arrival; fewer when it has fewer numbers."""
    length = piece.upto - piece.after
    borders = sorted({piece.after + length * number // parts for number in range(parts + 1)})
    return [piece._replace(after=after, upto=upto) for after, upto in itertools.pairwise(borders)]


def check_continuity(start: Frontier, here: Frontier, now: Now) -> None:
    """Refuse an offset that does not belong to this queue in this cluster at this point of its life.

    `here` is the initial offset of the queue as it is found now.

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
    if start.hi > now.frontier:
        raise InstanceError(
            f"The server has gone back in time: the checkpoint has read up to transaction {start.hi}, the server "
            f"is at {now.frontier}, as after restoring a backup. {advice}"
        )
    if start.queuing_order > now.drawn:
        raise InstanceError(
            f"The server has gone back in time: the checkpoint has read up to message {start.queuing_order} of the "
            f"queue, which is at {now.drawn}, as after restoring a backup or a failover to a server that had not "
            f"everything. {advice}"
        )


# ---------------------------------------------------------------- SQL

# A queue's statistics are always stale, a scan of the whole table would grow with its depth, and a sort spills.
PIN_PLANS = (
    "select set_config(name, value, false) from (values ('enable_seqscan', 'off'), ('enable_sort', 'off'), "
    "('enable_bitmapscan', 'off'), ('max_parallel_workers_per_gather', '0')) pinned (name, value)"
)

FRONTIER = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"

# A commit that reaches the disk, of a transaction younger than every frontier before: a server that crashes then gives
# no transaction id below them a second time, as it does with those of transactions that left nothing on the disk.
KEEP_FRONTIER = "select pg_logical_emit_message(true, 'servicebroker', 'frontier')"

_IN_WINDOW = "stamp >= $1::text::xid8 and stamp < $2::text::xid8 and queuing_order > $3"
_UPTO = f"{_IN_WINDOW} and queuing_order <= $4"


def extremes(queue_id: int, archived: bool) -> str:
    """The first and the last queuing_order that a window has left, NULL when there is none: one probe at each end.

    Parameters: lo, hi, after. `archived`: what is archived counts too.
    """
    forwards = _merged(queue_id, "queuing_order", _IN_WINDOW, archived)
    backwards = _merged(queue_id, "queuing_order", _IN_WINDOW, archived, "desc")
    return (
        f"select (select min(queuing_order) from ({forwards} limit 1) f), "
        f"(select max(queuing_order) from ({backwards} limit 1) b)"
    )


def page_end(queue_id: int, archived: bool) -> str:
    """The last queuing_order of the next page, NULL when the window has no more rows. Reads the whole page.

    Parameters: lo, hi, after, how many rows at most.
    """
    return f"select max(queuing_order) from ({_merged(queue_id, 'queuing_order', _IN_WINDOW, archived)} limit $4) page"


def fitting(queue_id: int, archived: bool) -> str:
    """Of the next rows of a window: their last number of arrival, the bytes of their bodies, their first number.

    And the last number up to which no more bytes than given have come.

    Parameters: lo, hi, after, up to which queuing_order, how many rows at most, how many bytes.
    """
    columns = f"queuing_order, octet_length({MESSAGE_BODY}) as bytes"
    if archived:
        return _fitting(
            f"select * from ({_merged(queue_id, columns, _UPTO)} limit $5) q union all select * from (select "
            f"queuing_order, octet_length(message_body) from servicebroker.archived_{queue_id} where {_UPTO} "
            "order by queuing_order limit $5) a order by queuing_order limit $5"
        )
    return _fitting(f"{_merged(queue_id, columns, _UPTO)} limit $5")


def _fitting(page: str) -> str:
    return (
        "select max(queuing_order), max(bytes)::bigint, min(queuing_order), "
        "max(queuing_order) filter (where bytes <= $6) from (select queuing_order, "
        f"sum(coalesce(bytes, 0)) over (order by queuing_order) as bytes from ({page}) page) summed"
    )


class Share(NamedTuple):
    """The conversation groups of a partition: those whose bucket falls into `number` of `of`."""

    number: int
    of: int


def rows(queue_id: int, piece: Slice, share: Share, columns: str, *, archived: bool, system_messages: bool) -> str:
    """The rows of a slice that belong to a share, ordered by queuing_order.

    The values are written into the text because COPY takes no parameters; all are numbers.
    """
    where = _in_slice(piece) + _without_system_messages(system_messages)
    if share.of > 1:
        where += f" and bucket % {int(share.of)} = {int(share.number)}"
    return _merged(queue_id, columns, where, archived)


def measure(queue_id: int, piece: Slice, *, archived: bool, system_messages: bool) -> str:
    """How many rows a slice has, and how many bytes their bodies."""
    kinds = _without_system_messages(system_messages)
    sizes = [
        f"select octet_length({MESSAGE_BODY}) as bytes from servicebroker.queue_{queue_id} "
        f"where {_scanned(piece)}{kinds}"
    ]
    if archived:
        archive = f"servicebroker.archived_{queue_id}"
        sizes.append(f"select octet_length(message_body) from {archive} where {_in_slice(piece)}{kinds}")
    return f"select count(*), coalesce(sum(bytes), 0)::bigint from ({' union all '.join(sizes)}) sizes"


def _without_system_messages(system_messages: bool) -> str:
    return "" if system_messages else f" and message_type_id not in ({', '.join(map(str, SYSTEM_TYPES))})"


def endings(queue_id: int, piece: Slice) -> str:
    """How many rows a slice has, how many of them have shared bodies, and whom its control messages end.

    Parameters: database id, name of the message type that ends a stream.
    """
    return (
        "select count(*), count(*) filter (where is_shared), "
        "array_agg(conversation_handle) filter ("  # each as often as it comes: DISTINCT would sort all rows
        "where message_type_id in (1, 2) or message_type_id = (select message_type_id "
        "from servicebroker.message_types where database_id = $1 and name = $2)) "
        f"from servicebroker.queue_{queue_id} where {_scanned(piece)}"
    )


def delete_rows(queue_id: int, piece: Slice) -> str:
    """Delete a slice of rows that have their bodies to themselves."""
    return f"delete from servicebroker.queue_{queue_id} where {_scanned(piece)}"


def take_rows(queue_id: int, piece: Slice, *, retention: bool, archive: bool) -> str:
    """Delete a slice of any rows; with `retention` the queue keeps the messages where RECEIVE does not find them.

    With `archive` they go, whole, into the queue's archive.
    """
    and_then = retain_gone(queue_id) if retention else f", unread as ({READERS_GONE})"
    if archive:
        and_then += _archived(queue_id)
    return (
        f"with gone as (delete from servicebroker.queue_{queue_id} where {_scanned(piece)} returning *){and_then} "
        "select count(*) from gone"
    )


def archive_conversations(queue_id: int, piece: Slice | None = None) -> str:
    """What some conversations have in the queue, or in a slice of it, goes into the queue's archive.

    Parameters: their handles (an array).
    """
    in_slice = "" if piece is None else f"and {_in_slice(piece)} "
    return (
        f"with gone as (delete from servicebroker.queue_{queue_id} q using servicebroker.conversation_endpoints e "
        "where e.conversation_handle = any ($1) and q.priority = e.priority "
        "and q.conversation_group_id = e.conversation_group_id and q.conversation_handle = e.conversation_handle "
        f"{in_slice}returning q.*), unread as ({READERS_GONE}){_archived(queue_id)} "
        "select count(*) from gone"
    )


def _archived(queue_id: int) -> str:
    """A further part of a statement whose part `gone` deletes rows: they go into the archive."""
    return (
        f", archived as (insert into servicebroker.archived_{queue_id} ({_KEPT}, message_body) "
        f"select {_KEPT}, {MESSAGE_BODY} from gone)"
    )


def has_later(queue_id: int, piece: Slice) -> str:
    """Whether messages have arrived behind a slice: one probe for each priority."""
    return " or ".join(
        f"exists (select from servicebroker.queue_{queue_id} "
        f"where priority = {priority} and queuing_order > {int(piece.upto)})"
        for priority in PRIORITIES
    )


def has_others(queue_id: int, piece: Slice) -> str:
    """Whether the queue has any row outside a slice. Reads it all."""
    return f"exists (select from servicebroker.queue_{queue_id} where not ({_in_slice(piece)}))"


_KEPT = (
    "queuing_order, message_sequence_number, stamp, message_enqueue_time, conversation_group_id, conversation_handle, "
    "service_id, service_contract_id, message_type_id, priority, bucket, validation"
)


def create_archive(queue_id: int) -> str:
    """Where acknowledged messages of a queue go that are to be kept."""
    return (
        f"create table if not exists servicebroker.archived_{queue_id} (like servicebroker.queue_{queue_id} "
        "including defaults, archived_at timestamptz not null default clock_timestamp(), primary key (queuing_order))"
    )


def oldest_behind(queue_id: int) -> str:
    """When the first message after a number of arrival was enqueued: one probe for each priority. No row: none is.

    Parameters: the number.
    """
    return _merged(queue_id, "message_enqueue_time, queuing_order", "queuing_order > $1") + " limit 1"


# Which transaction holds the frontier back, and for how many seconds; none but those that write do. Parameter: the
# numbers of sessions that are not meant.
BLOCKING = (
    "select pid, extract(epoch from clock_timestamp() - xact_start)::bigint, application_name from pg_stat_activity "
    "where backend_xid::text::bigint = mod(pg_snapshot_xmin(pg_current_snapshot())::text::bigint, 4294967296) "
    "and pid <> pg_backend_pid() and pid <> all ($1::integer[])"
)


def _merged(queue_id: int, columns: str, where: str, archived: bool = False, direction: str = "") -> str:
    """A scan of the arrival index for each priority, merged: no sort, so rows flow at once.

    PostgreSQL sees the merge only when each scan asks for the order by itself.
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


def _in_slice(piece: Slice) -> str:
    lo, hi, after, upto = (int(number) for number in piece)
    return f"queuing_order > {after} and queuing_order <= {upto} and stamp >= '{lo}'::xid8 and stamp < '{hi}'::xid8"


def _scanned(piece: Slice) -> str:
    """A slice, with the column that the arrival index begins with."""
    return f"priority = any ('{{{','.join(map(str, PRIORITIES))}}}') and {_in_slice(piece)}"
