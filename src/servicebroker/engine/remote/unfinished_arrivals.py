"""Incomplete messages from other instances: the owner, size and last arrival of their stored parts, and their deletion.

The limits that decide when parts are deleted are in `protocol/unfinished.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from servicebroker.model.states import EndpointState
from servicebroker.protocol.budgets import DEFAULT
from servicebroker.protocol.division import WHOLE, Division
from servicebroker.protocol.incoming import Begun
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.unfinished import Stored
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


# The life of a target without messages: its initiator may be down for a while
OPENING_RETENTION = timedelta(days=1)
OPENINGS_AT_ONCE = 500  # targets deleted in one transaction
MAX_ROWS = 100_000  # rows that a summary reads: beside a queue that is off there may be many more
STARTED_INBOUND = EndpointState.STARTED_INBOUND.value
_ROWS = "servicebroker.arrived_fragments"
# The cost of a stored message, as in `Incoming.begun`.
_COST = (
    f"{LIMITS.unfinished_cost + LIMITS.kept_cost} + {LIMITS.message_cost} * count(*) "
    "+ sum(coalesce(octet_length(f.message_body), 0))"
)


def _messages(rows: str = _ROWS, condition: str = "") -> str:
    """Return a query for messages that are not next in order yet, or incomplete, with owner, size and times.

    Their bodies are not read from disk: PostgreSQL knows the lengths.
    """
    return (
        "select f.conversation_handle, f.message_sequence_number as number, coalesce(a.receive_sequence, 0) as due, "
        f"max(f.fragments) as fragments, ({_COST})::bigint as cost, max(f.owner) as owner, "
        "min(f.enqueue_time) as first_time, max(f.enqueue_time) as last_time "
        f"from {rows} f left join servicebroker.arrivals a using (conversation_handle) "
        f"where f.message_sequence_number >= coalesce(a.receive_sequence, 0) {condition} group by 1, 2, 3"
    )


_OF_THESE = "and f.conversation_handle = any ($1)"
_FIND = (
    "select conversation_handle, conversation_id, max(owner), due, "
    "coalesce(max(fragments) filter (where number = due), 0)::bigint, "
    "coalesce(sum(cost) filter (where number = due), 0)::bigint, "
    "coalesce(sum(cost) filter (where number > due), 0)::bigint, "
    "greatest(0, extract(epoch from clock_timestamp() - max(last_time)))::float8 "
    "from ({0}) m join servicebroker.conversation_endpoints e using (conversation_handle) group by 1, 2, due"
)


class UnfinishedOfPeer(NamedTuple):
    """The incomplete messages of one peer: their number, size and times.

    `certificate` is the name of the owner's latest certificate, `quota` the peer's limit in bytes.
    """

    owner: str
    certificate: str | None
    conversations: int
    messages: int
    bytes: int
    first_time: datetime
    last_time: datetime
    quota: int = DEFAULT.unfinished_bytes


def sum_by_peer(most: int) -> Steps[list[UnfinishedOfPeer]]:
    """Return the `most` peers with the largest incomplete messages in sum."""
    rows = yield Statement(
        "unfinished_arrivals.sum_by_peer",
        "select owner, (select c.name from servicebroker.transport_certificates c where c.owner = m.owner "
        "and not c.is_own order by c.certificate_id desc limit 1), count(distinct conversation_handle), count(*), "
        "sum(cost)::bigint, min(first_time), max(last_time), coalesce((select b.amount "
        "from servicebroker.peer_budgets b where b.owner = m.owner and b.resource = 'unfinished_bytes'), $2) "
        f"from ({_messages(f'(select * from {_ROWS} limit {MAX_ROWS})')}) m group by 1 order by 5 desc limit $1",
        (most, DEFAULT.unfinished_bytes),
    )
    return [UnfinishedOfPeer(*row) for row in rows]


def find_unfinished(division: Division = WHOLE, handles: Sequence[UUID] | None = None) -> Steps[list[Stored]]:
    """Return the incomplete messages by conversation: of one division, and with `handles` only of these."""
    if handles is None:
        rows = yield Statement("unfinished_arrivals.find_unfinished.all", _FIND.format(_messages()))
    else:
        text = _FIND.format(_messages(condition=_OF_THESE))
        rows = yield Statement("unfinished_arrivals.find_unfinished.some", text, (list(handles),))
    return [
        Stored(handle, owner, Begun(number, fragments * LIMITS.fragment_size, current, ahead), idle)
        for handle, conversation, owner, number, fragments, current, ahead, idle in rows
        if division.has(conversation)
    ]


def drop_unfinished(handles: Sequence[UUID]) -> Steps[list[UUID]]:
    """Delete the parts of incomplete messages, with their trace contexts. Returns the conversations without parts.

    Waits for no lock: parts that another session has locked are skipped.
    """
    yield SQL("drop_unfinished.delete_fragments", (list(handles),))
    yield SQL("drop_unfinished.delete_contexts", (list(handles),))
    left = yield Statement(
        "unfinished_arrivals.drop_unfinished.find_left",
        f"select distinct conversation_handle from ({_messages(condition=_OF_THESE)}) m",
        (list(handles),),
    )
    return sorted(set(handles) - {handle for (handle,) in left})


def drop_openings(handles: Sequence[UUID]) -> Steps[list[UUID]]:
    """Delete these targets, without those that have received a message or stored a part. Returns the deleted handles.

    No message of a deleted target was acknowledged, so the initiator sends its first message again.
    """
    rows = yield SQL("drop_openings", (list(handles), STARTED_INBOUND))
    return sorted(handle for (handle,) in rows)


def forget_openings(now: datetime) -> Steps[int]:
    """Delete targets older than `OPENING_RETENTION` that have received no message. Returns their number."""
    rows = yield SQL("forget_openings", (now - OPENING_RETENTION, STARTED_INBOUND, OPENINGS_AT_ONCE))
    return len((yield from drop_openings([handle for (handle,) in rows]))) if rows else 0
