"""Failures of conversations: the broker puts an Error message with a negative code into the queue of each side."""

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
    """The Error to send to the peer because its message was refused; the code is negative.

    `message_type` is that of the refused message; '' if the whole conversation was refused.
    """

    code: int
    description: str
    message_type: str = ""

    @classmethod
    def of(cls, error: BrokerError) -> Self:
        """Return the failure for an error: the code is its negated number."""
        return cls(-error.number, error.text)


def fail_conversation(endpoint: Endpoint, error: BrokerError, at_peer: BrokerError | None = None) -> Steps[None]:
    """Put the conversation into error on both sides, and delete parked messages.

    The peer's Error has `at_peer`, or `error` without it. Both applications receive the Error and must END the
    conversation.
    """
    yield from fail_endpoints([endpoint.conversation_handle], error)
    if endpoint.peer_handle is not None:
        yield from fail_endpoints([endpoint.peer_handle], at_peer or error)


def fail_endpoints(handles: list[UUID], error: BrokerError) -> Steps[None]:
    """Put an Error with the text of `error` on each of these endpoints, as `fail_with_body` does."""
    yield from fail_with_body(handles, error_body(-error.number, f"{error.text} {error.hint}".rstrip()))


def fail_with_body(handles: list[UUID], body: bytes) -> Steps[None]:
    """Put an Error on each of these endpoints, whose rows are locked, and delete their parked messages.

    An endpoint that has ended is removed, because its application cannot receive the Error. An endpoint that is closed
    or already has an Error is not changed. The Error is written even if the queue is off.
    """
    if not handles:
        return
    yield delete_parked(handles)
    rows = yield SQL("fail_with_body.find_endpoints", (handles,))
    ended: list[UUID] = []
    queues: dict[int, list[UUID]] = defaultdict(list)
    for handle, queue_id, state in rows:
        event = (EndpointState(state), Event.ERROR_ARRIVED)
        if event in TRANSITIONS:
            (ended if TRANSITIONS[event] is REMOVED else queues[queue_id]).append(handle)
    for queue_id, failed in queues.items():
        yield Statement(
            "failure.fail_with_body.enqueue_error", enqueue.tell_self(queue_id), (failed, names.ERROR_ID, "X", body)
        )
    if ended:
        yield from remove_endpoints(ended)


def store_remote_error(handles: Iterable[UUID], failed: ConversationFailure) -> Statement:
    """Store the Error for the remote peers of these endpoints. The daemon answers a peer's next message with it."""
    return SQL("store_remote_error", (list(handles), failed.code, failed.description))


def delete_parked(handles: list[UUID]) -> Statement:
    """Delete parked messages of these endpoints."""
    return purge("transmission_queue", "conversation_handle = any ($1)", handles)
