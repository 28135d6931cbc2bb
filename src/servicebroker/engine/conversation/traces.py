"""Trace contexts of messages: W3C Trace Context as 25 bytes (trace id, span id, flags), in a table of their own.

A sender with tracing stores the context of each message, and a receiver with tracing reads and deletes it. Between
instances the context is in the message's header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar
from uuid import UUID

from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


CONTEXT_RETENTION = timedelta(hours=1)  # the age at which contexts that no receiver has read are deleted
_SWEEP_BATCH_ROWS = 10_000  # rows deleted in one transaction

T = TypeVar("T", int, list[int])


class MessageContext(NamedTuple):
    """The context of one message from another instance."""

    conversation_id: UUID
    is_from_initiator: bool
    number: int
    context: bytes


def send_with_context(steps: Steps[T], handles: Sequence[UUID], count: int, context: bytes, now: datetime) -> Steps[T]:
    """Run a SEND of `count` messages on each of these endpoints, and store their trace context."""
    yield SQL("send_with_context.begin")  # opens one transaction, so that no reader sees a message before its context
    result = yield from steps
    numbers = result if isinstance(result, list) else [result]
    yield SQL("send_with_context.insert_contexts", (list(handles), numbers, count, context, now))
    return result


def take(messages: Sequence[tuple[UUID, int]]) -> Steps[list[bytes]]:
    """Delete and return the contexts of received messages, in their order. A message: handle and sequence number."""
    rows = yield SQL("take", ([handle for handle, _ in messages], [number for _, number in messages]))
    return [context for (context,) in rows]


def find_contexts(
    conversation_id: UUID, is_from_initiator: bool, first: int, last: int
) -> Steps[list[tuple[int, bytes]]]:
    """Return the contexts of messages to another instance, as (sequence number, context).

    The contexts are not deleted, because a message may be sent again.
    """
    rows = yield SQL("find_contexts", (conversation_id, is_from_initiator, first, last))
    return [(number, context) for number, context in rows]


def store_contexts(contexts: Sequence[MessageContext], now: datetime) -> Statement:
    """Store the contexts of messages from another instance."""
    return SQL(
        "store_contexts",
        (
            [message.conversation_id for message in contexts],
            [message.is_from_initiator for message in contexts],
            [message.number for message in contexts],
            [message.context for message in contexts],
            now,
        ),
    )


def remove_delivered(below: Mapping[UUID, int]) -> Statement:
    """Delete the contexts of messages that peers have acknowledged: by endpoint, those below a sequence number."""
    return SQL("remove_delivered", (list(below), list(below.values())))


def delete_old_traces(now: datetime) -> Steps[int]:
    """Delete contexts older than `CONTEXT_RETENTION`, whose receivers do not trace. Returns their number."""
    rows = yield SQL("delete_old_traces", (now - CONTEXT_RETENTION, _SWEEP_BATCH_ROWS))
    return int(rows[0][0])
