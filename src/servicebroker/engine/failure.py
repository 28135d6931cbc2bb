"""An error of the broker on a conversation: an Error message on each side, with the negative number."""

from __future__ import annotations

from servicebroker.engine import enqueue
from servicebroker.engine.endpoints import Endpoint, find_endpoint, remove_endpoint
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import error_body
from servicebroker.model.states import REMOVED, Event, State, after
from servicebroker.store.statements import Statement, Steps


def fail_conversation(endpoint: Endpoint, error: BrokerError) -> Steps[None]:
    """Put the conversation into error on both sides; what waited for delivery is dropped.

    Both applications must still END it; neither verb nor message of theirs raises.
    """
    yield Statement(
        "delete from servicebroker.transmission_queue where conversation_handle = $1",
        (endpoint.conversation_handle,),
    )
    if after(State(endpoint.state), Event.ERROR_ARRIVED) is REMOVED:
        yield from remove_endpoint(endpoint)  # it has ended: its application never sees the error
    else:
        yield _error_to(endpoint, error)
    if endpoint.far_handle is not None:
        yield _error_to((yield from find_endpoint(endpoint.far_handle)), error)


def _error_to(endpoint: Endpoint, error: BrokerError) -> Statement:
    return Statement(
        enqueue.tell_self(endpoint.queue_id),
        (endpoint.conversation_handle, names.ERROR_ID, "X", error_body(-error.number, error.text)),
    )
