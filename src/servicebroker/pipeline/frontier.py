"""How far a stream has read a queue: offsets as plain values, and the SQL that plans the next page.

Transactions commit in another order than they draw numbers, so no number of a row alone says what was read.
A *window* is all rows with lo <= stamp < hi, where hi was the oldest unfinished transaction id when the window
was opened: every transaction below it has finished, and rows of all others carry a higher stamp, so a window
never changes. Inside a window the rows are paged by queuing_order. A new window opens when the last one has
been read to its end, which makes every page, and so every batch of Spark, exactly repeatable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from servicebroker.engine.shared_bodies import READERS_GONE
from servicebroker.model.errors import InstanceError
from servicebroker.store.queue import retain_gone

VERSION = 1
PRIORITIES = range(1, 11)


@dataclass(frozen=True, slots=True)
class Frontier:
    """An offset of the stream: all windows below `lo` are read, and of window [lo, hi) the rows up to `queuing_order`.

    `system_identifier` names the PostgreSQL cluster, since transaction ids mean nothing in another one, and
    `queue` the queue, as broker identifier:number.
    """

    system_identifier: str
    queue: str
    lo: int = 0
    hi: int = 0
    queuing_order: int = 0

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

    def opened(self, hi: int) -> Frontier:
        """The beginning of the next window, up to the transaction id `hi`."""
        return replace(self, lo=self.hi, hi=hi, queuing_order=0)

    def read_to(self, queuing_order: int) -> Frontier:
        """A later point of the same window."""
        return replace(self, queuing_order=queuing_order)


class Slice(NamedTuple):
    """Rows of one window: lo <= stamp < hi and after < queuing_order <= upto."""

    lo: int
    hi: int
    after: int
    upto: int


def between(start: Frontier, end: Frontier) -> Slice | None:
    """The rows of a batch; None when there are none. A batch never crosses the border of a window.

    Raises:
        InstanceError: `end` cannot follow `start`.
    """
    if start == end:
        return None
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


def check_continuity(start: Frontier, here: Frontier, hi: int) -> None:
    """Refuse an offset that does not belong to this queue in this cluster at this point of its life.

    `here` is the initial offset of the queue as it is found now, `hi` the current frontier.

    Raises:
        InstanceError: another queue, another cluster, or a cluster that went back in time.
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
    if start.hi > hi:
        raise InstanceError(
            f"The server has gone back in time: the checkpoint has read up to transaction {start.hi}, the server "
            f"is at {hi}, as after restoring a backup. {advice}"
        )


# ---------------------------------------------------------------- SQL

# A queue's statistics are always stale, a scan of the whole table would grow with its depth, and a sort spills.
PIN_PLANS = (
    "select set_config(name, value, false) from (values ('enable_seqscan', 'off'), ('enable_sort', 'off'), "
    "('enable_bitmapscan', 'off'), ('max_parallel_workers_per_gather', '0')) pinned (name, value)"
)

FRONTIER = "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint"


_IN_WINDOW = "stamp >= $1::text::xid8 and stamp < $2::text::xid8 and queuing_order > $3"


def extremes(queue_id: int) -> str:
    """The first and the last queuing_order that a window has left, NULL when there is none: one probe at each end.

    Parameters: lo, hi, after.
    """
    forwards = _merged(queue_id, "queuing_order", _IN_WINDOW)
    backwards = _merged(queue_id, "queuing_order", _IN_WINDOW, "desc")
    return (
        f"select (select min(queuing_order) from ({forwards} limit 1) f), "
        f"(select max(queuing_order) from ({backwards} limit 1) b)"
    )


def page_end(queue_id: int) -> str:
    """The last queuing_order of the next page, NULL when the window has no more rows. Reads the whole page.

    Parameters: lo, hi, after, how many rows at most.
    """
    return f"select max(queuing_order) from ({_merged(queue_id, 'queuing_order', _IN_WINDOW)} limit $4) page"


def rows(queue_id: int, piece: Slice, partition: int, partitions: int, columns: str) -> str:
    """The rows of a slice whose group falls into `partition` of `partitions`, ordered by queuing_order.

    The values are written into the text because COPY takes no parameters; all are numbers.
    """
    return _merged(queue_id, columns, f"{_in_slice(piece)} and bucket % {int(partitions)} = {int(partition)}")


def endings(queue_id: int, piece: Slice) -> str:
    """How many rows a slice has, how many of them have shared bodies, and whom its control messages end, in order.

    Parameters: database id, name of the message type that ends a stream.
    """
    return (
        "select count(*), count(*) filter (where is_shared), "
        "array_agg(distinct conversation_handle order by conversation_handle) filter ("
        "where message_type_id in (1, 2) or message_type_id = (select message_type_id "
        "from servicebroker.message_types where database_id = $1 and name = $2)) "
        f"from servicebroker.queue_{queue_id} where {_scanned(piece)}"
    )


def delete_rows(queue_id: int, piece: Slice) -> str:
    """Delete a slice of rows that have their bodies to themselves."""
    return f"delete from servicebroker.queue_{queue_id} where {_scanned(piece)}"


def take_rows(queue_id: int, piece: Slice, retention: bool) -> str:
    """Delete a slice of any rows; with `retention` the queue keeps the messages where RECEIVE does not find them."""
    and_then = retain_gone(queue_id) if retention else f", unread as ({READERS_GONE})"
    return (
        f"with gone as (delete from servicebroker.queue_{queue_id} where {_scanned(piece)} returning *){and_then} "
        "select count(*) from gone"
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


def _merged(queue_id: int, columns: str, where: str, direction: str = "") -> str:
    """A scan of the arrival index for each priority, merged: no sort, so rows flow at once.

    PostgreSQL sees the merge only when each scan asks for the order by itself.
    """
    scans = (
        f"(select {columns} from servicebroker.queue_{queue_id} "
        f"where priority = {priority} and {where} order by queuing_order {direction})"
        for priority in PRIORITIES
    )
    return " union all ".join(scans) + f" order by queuing_order {direction}"


def _in_slice(piece: Slice) -> str:
    lo, hi, after, upto = (int(number) for number in piece)
    return f"queuing_order > {after} and queuing_order <= {upto} and stamp >= '{lo}'::xid8 and stamp < '{hi}'::xid8"


def _scanned(piece: Slice) -> str:
    """A slice, with the column that the arrival index begins with."""
    return f"priority = any ('{{{','.join(map(str, PRIORITIES))}}}') and {_in_slice(piece)}"
