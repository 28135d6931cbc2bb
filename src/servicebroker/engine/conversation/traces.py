"""Trace contexts of messages (W3C, as 25 bytes: trace id, span id, flags), stored beside them while they travel.

A sender that traces stores one, a receiver that traces takes it; between instances it goes along in the header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

from servicebroker.store.statements import Statement, Steps

KEPT = timedelta(hours=1)  # what nobody has taken by then goes
_SWEPT = 10_000  # at a time

T = TypeVar("T", int, list[int])


class Traced(NamedTuple):
    """The context of one message from another instance."""

    conversation_id: UUID
    is_from_initiator: bool
    number: int
    context: bytes


def sent(steps: Steps[T], handles: Sequence[UUID], many: int, context: bytes, now: datetime) -> Steps[T]:
    """A SEND, of `many` messages on each of these endpoints, and the context of what it has sent."""
    yield Statement(
        "traces.sent.begin", "select"
    )  # what follows is one transaction: nobody receives the message before its context
    result = yield from steps
    numbers = result if isinstance(result, list) else [result]
    yield Statement(
        "traces.sent.insert_contexts",
        "insert into servicebroker.trace_contexts "
        "select conversation_id, is_initiator, first + i, $4, $5 "
        "from unnest($1::uuid[], $2::bigint[]) s (handle, first) "
        "join servicebroker.conversation_endpoints on conversation_handle = handle "
        "cross join generate_series(0, $3 - 1) i on conflict do nothing",
        (list(handles), numbers, many, context, now),
    )
    return result


def take(messages: Sequence[tuple[UUID, int]]) -> Steps[list[bytes]]:
    """The contexts of received messages (handle and sequence number of each), in their order; they are gone then."""
    rows = yield Statement(
        "traces.take",
        "with gone as (delete from servicebroker.trace_contexts t "
        "using unnest($1::uuid[], $2::bigint[]) with ordinality m (handle, number, place) "
        "join servicebroker.conversation_endpoints e on e.conversation_handle = handle "
        "where t.conversation_id = e.conversation_id and t.is_from_initiator = not e.is_initiator "
        "and t.message_sequence_number = number returning place, context) "
        "select context from gone order by place",
        ([handle for handle, _ in messages], [number for _, number in messages]),
    )
    return [context for (context,) in rows]


def leaving(conversation_id: UUID, is_from_initiator: bool, first: int, last: int) -> Steps[list[tuple[int, bytes]]]:
    """The contexts of messages that travel, with their sequence numbers; they may travel again."""
    rows = yield Statement(
        "traces.leaving",
        "select message_sequence_number, context from servicebroker.trace_contexts "
        "where conversation_id = $1 and is_from_initiator = $2 and message_sequence_number between $3 and $4 "
        "order by message_sequence_number",
        (conversation_id, is_from_initiator, first, last),
    )
    return [(number, context) for number, context in rows]


def arrived(found: Sequence[Traced], now: datetime) -> Statement:
    """Store what came along with messages from another instance."""
    return Statement(
        "traces.arrived",
        "insert into servicebroker.trace_contexts "
        "select *, $5 from unnest($1::uuid[], $2::boolean[], $3::bigint[], $4::bytea[]) on conflict do nothing",
        (
            [one.conversation_id for one in found],
            [one.is_from_initiator for one in found],
            [one.number for one in found],
            [one.context for one in found],
            now,
        ),
    )


def delivered(below: Mapping[UUID, int]) -> Statement:
    """The peers have what these endpoints have sent below those numbers."""
    return Statement(
        "traces.delivered",
        "delete from servicebroker.trace_contexts t using unnest($1::uuid[], $2::bigint[]) a (handle, below) "
        "join servicebroker.conversation_endpoints e on e.conversation_handle = handle "
        "where t.conversation_id = e.conversation_id and t.is_from_initiator = e.is_initiator "
        "and t.message_sequence_number < below",
        (list(below), list(below.values())),
    )


def sweep(now: datetime) -> Steps[int]:
    """Remove contexts that nobody took: their receivers trace nothing. Returns how many."""
    rows = yield Statement(
        "traces.sweep",
        "with old as (select ctid from servicebroker.trace_contexts where stored_at < $1 limit $2), "
        "gone as (delete from servicebroker.trace_contexts where ctid = any (array(select ctid from old)) returning 1) "
        "select count(*) from gone",
        (now - KEPT, _SWEPT),
    )
    return int(rows[0][0])
