"""An error of the broker on a conversation: an Error message on each side, with the negative number."""

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


class Failed(NamedTuple):
    """Not taken: the Error that the peer is to get, with its number below zero.

    `message_type` is that of the message that has just been refused, '' when the whole conversation is.
    """

    code: int
    description: str
    message_type: str = ""

    @classmethod
    def of(cls, error: BrokerError) -> Self:
        """That error, as it travels."""
        return cls(-error.number, error.text)


def fail_conversation(endpoint: Endpoint, error: BrokerError, at_peer: BrokerError | None = None) -> Steps[None]:
    """Put the conversation into error on both sides; what waited for delivery is dropped.

    The peer gets `error` too, or its own. Both applications must still END it; neither verb nor message of theirs
    raises.
    """
    yield from fail_endpoints([endpoint.conversation_handle], error)
    if endpoint.far_handle is not None:
        yield from fail_endpoints([endpoint.far_handle], at_peer or error)


def fail_endpoints(handles: list[UUID], error: BrokerError) -> Steps[None]:
    """An Error on each of these endpoints, as `fail_with`."""
    yield from fail_with(handles, error_body(-error.number, f"{error.text} {error.hint}".rstrip()))


def fail_with(handles: list[UUID], body: bytes) -> Steps[None]:
    """An Error on each of these endpoints, whose rows are locked; what they sent and still waits is dropped.

    An endpoint that has ended is removed, since its application never sees the error; one that is closed or
    has its error already stays as it is. The Error goes into the queue even when that is off: nobody reads there.
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


def tell_remote(handles: Iterable[UUID], failed: Failed) -> Statement:
    """The peers of those of these endpoints that are in other instances get the Error when they next send."""
    return SQL("tell_remote", (list(handles), failed.code, failed.description))


def drop_waiting(handles: list[UUID]) -> Statement:
    """Forget what was sent on these endpoints and not delivered."""
    return purge("transmission_queue", "conversation_handle = any ($1)", handles)
