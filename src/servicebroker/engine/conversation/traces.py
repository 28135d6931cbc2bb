"""Trace contexts of messages (W3C, as 25 bytes: trace id, span id, flags), stored beside them while they travel.

A sender that traces stores one, and a receiver that traces takes it. Between instances it travels in the header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


CONTEXT_RETENTION = timedelta(hours=1)  # contexts that no receiver has taken by then are removed
_SWEEP_BATCH_ROWS = 10_000  # rows removed at a time

T = TypeVar("T", int, list[int])


class MessageContext(NamedTuple):
    """The context of one message from another instance."""

    conversation_id: UUID
    is_from_initiator: bool
    number: int
    context: bytes


def send_with_context(steps: Steps[T], handles: Sequence[UUID], many: int, context: bytes, now: datetime) -> Steps[T]:
    """Run a SEND of `many` messages on each of these endpoints, and store their trace context."""
    yield SQL("send_with_context.begin")  # opens one transaction, so that no reader sees a message before its context
    result = yield from steps
    numbers = result if isinstance(result, list) else [result]
    yield SQL("send_with_context.insert_contexts", (list(handles), numbers, many, context, now))
    return result


def take(messages: Sequence[tuple[UUID, int]]) -> Steps[list[bytes]]:
    """Remove and return the contexts of received messages (handle and sequence number of each), in their order."""
    rows = yield SQL("take", ([handle for handle, _ in messages], [number for _, number in messages]))
    return [context for (context,) in rows]


def find_contexts(
    conversation_id: UUID, is_from_initiator: bool, first: int, last: int
) -> Steps[list[tuple[int, bytes]]]:
    """Return the contexts of departing messages, with sequence numbers. They stay: a message may be sent again."""
    rows = yield SQL("find_contexts", (conversation_id, is_from_initiator, first, last))
    return [(number, context) for number, context in rows]


def store_contexts(found: Sequence[MessageContext], now: datetime) -> Statement:
    """Store the contexts of messages from another instance."""
    return SQL(
        "store_contexts",
        (
            [one.conversation_id for one in found],
            [one.is_from_initiator for one in found],
            [one.number for one in found],
            [one.context for one in found],
            now,
        ),
    )


def remove_delivered(below: Mapping[UUID, int]) -> Statement:
    """Remove contexts of messages that the peers have: what these endpoints sent below the given numbers."""
    return SQL("remove_delivered", (list(below), list(below.values())))


def sweep(now: datetime) -> Steps[int]:
    """Remove old contexts, whose receivers trace nothing. Returns their number."""
    rows = yield SQL("sweep", (now - CONTEXT_RETENTION, _SWEEP_BATCH_ROWS))
    return int(rows[0][0])
