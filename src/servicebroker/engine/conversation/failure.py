"""Errors of the broker on a conversation: an Error message with a negative code on each side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple, Self
from uuid import UUID

from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import Endpoint, remove_endpoints
from servicebroker.engine.conversation.shared_bodies import purge
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import error_body
from servicebroker.model.states import REMOVED, TRANSITIONS, EndpointState, Event
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class ConversationFailure(NamedTuple):
    """The Error that the peer is to get because its message was refused; the code is negative.

    `message_type` is that of the message that has just been refused, '' if the whole conversation is.
    """

    code: int
    description: str
    message_type: str = ""

    @classmethod
    def of(cls, error: BrokerError) -> Self:
        """Return that error with its code negated, as it is sent."""
        return cls(-error.number, error.text)


def fail_conversation(endpoint: Endpoint, error: BrokerError, at_peer: BrokerError | None = None) -> Steps[None]:
    """Put the conversation into error on both sides, and drop messages that wait for delivery.

    The peer gets `at_peer`, or else `error` too. Both applications must still END the conversation; their verbs and
    messages raise nothing.
    """
    yield from fail_endpoints([endpoint.conversation_handle], error)
    if endpoint.far_handle is not None:
        yield from fail_endpoints([endpoint.far_handle], at_peer or error)


def fail_endpoints(handles: list[UUID], error: BrokerError) -> Steps[None]:
    """Put an Error on each of these endpoints, as `fail_with` does."""
    yield from fail_with(handles, error_body(-error.number, f"{error.text} {error.hint}".rstrip()))


def fail_with(handles: list[UUID], body: bytes) -> Steps[None]:
    """Put an Error on each of these endpoints, whose rows are locked, and drop what they have parked.

    An endpoint that has ended is removed, since its application never sees the error. One that is closed or has an
    error already stays unchanged. The Error enters the queue even if the queue is off, since nothing reads there.
    """
    if not handles:
        return
    yield drop_waiting(handles)
    rows = yield SQL("fail_with.find_endpoints", (handles,))
    gone: list[UUID] = []
    queues: dict[int, list[UUID]] = defaultdict(list)
    for handle, queue_id, state in rows:
        event = (EndpointState(state), Event.ERROR_ARRIVED)
        if event in TRANSITIONS:
            (gone if TRANSITIONS[event] is REMOVED else queues[queue_id]).append(handle)
    for queue_id, there in queues.items():
        yield Statement(
            "failure.fail_with.enqueue_error", enqueue.tell_self(queue_id), (there, names.ERROR_ID, "X", body)
        )
    if gone:
        yield from remove_endpoints(gone)


def store_remote_error(handles: Iterable[UUID], failed: ConversationFailure) -> Statement:
    """Store the Error for the remote peers of these endpoints, which get it when they next send."""
    return SQL("store_remote_error", (list(handles), failed.code, failed.description))


def drop_waiting(handles: list[UUID]) -> Statement:
    """Delete parked messages of these endpoints."""
    return purge("transmission_queue", "conversation_handle = any ($1)", handles)
