"""The states of a conversation endpoint, with every transition (docs/reference/rules.md#states) in one table.

`TRANSITIONS[state, event]` is the next state; a missing pair is refused with `REFUSALS[event]`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from servicebroker.model.errors import BrokerError


class EndpointState(StrEnum):
    """The letters of sys.conversation_endpoints.state."""

    STARTED_OUTBOUND = "SO"
    STARTED_INBOUND = "SI"
    CONVERSING = "CO"
    DISCONNECTED_INBOUND = "DI"
    DISCONNECTED_OUTBOUND = "DO"
    ERROR = "ER"
    CLOSED = "CD"


STATE_WORDS: dict[str, str] = {state.value: state.name.lower().replace("_", " ") for state in EndpointState}
STATE_MEANINGS: dict[str, str] = {
    EndpointState.STARTED_OUTBOUND: "It has begun, and nothing was sent yet.",
    EndpointState.STARTED_INBOUND: "A later message has arrived, but not the first one.",
    EndpointState.CONVERSING: "Both sides may send.",
    EndpointState.DISCONNECTED_INBOUND: "The other side has ended it; this side has not.",
    EndpointState.DISCONNECTED_OUTBOUND: "This side has ended it; the other side does not know yet.",
    EndpointState.ERROR: "It has failed; this side has not ended it.",
    EndpointState.CLOSED: "Both sides have ended it. It is kept for a while, so that no replay reopens it.",
}


class Event(StrEnum):
    """An event of an endpoint, by a local verb or by its peer."""

    SEND = "SEND"
    END = "END CONVERSATION"
    TIMER = "BEGIN CONVERSATION TIMER"
    MOVE = "MOVE CONVERSATION"
    END_DIALOG_ARRIVED = "receive end conversation"
    ERROR_ARRIVED = "receive end conversation with error"
    ACKNOWLEDGED = "receive message acknowledgement"


REMOVED = None  # the endpoint is deleted
# The time for which a closed endpoint is kept (docs/reference/rules.md#replay-protection)
REPLAY_PROTECTION = timedelta(minutes=30)

_OPEN = (EndpointState.STARTED_OUTBOUND, EndpointState.STARTED_INBOUND, EndpointState.CONVERSING)

TRANSITIONS: dict[tuple[EndpointState, Event], EndpointState | None] = {
    (EndpointState.STARTED_OUTBOUND, Event.SEND): EndpointState.CONVERSING,
    (EndpointState.CONVERSING, Event.SEND): EndpointState.CONVERSING,
    (EndpointState.STARTED_OUTBOUND, Event.END): REMOVED,
    (EndpointState.CONVERSING, Event.END): EndpointState.DISCONNECTED_OUTBOUND,
    (EndpointState.DISCONNECTED_INBOUND, Event.END): EndpointState.CLOSED,
    (EndpointState.ERROR, Event.END): EndpointState.CLOSED,
    **{
        (state, event): state
        for event in (Event.TIMER, Event.MOVE)
        for state in (*_OPEN, EndpointState.DISCONNECTED_INBOUND, EndpointState.ERROR)
    },
    (EndpointState.CONVERSING, Event.END_DIALOG_ARRIVED): EndpointState.DISCONNECTED_INBOUND,
    **{(state, Event.ERROR_ARRIVED): EndpointState.ERROR for state in (*_OPEN, EndpointState.DISCONNECTED_INBOUND)},
    (EndpointState.DISCONNECTED_OUTBOUND, Event.ERROR_ARRIVED): REMOVED,
    (EndpointState.DISCONNECTED_OUTBOUND, Event.END_DIALOG_ARRIVED): EndpointState.DISCONNECTED_OUTBOUND,
    (EndpointState.DISCONNECTED_OUTBOUND, Event.ACKNOWLEDGED): EndpointState.CLOSED,
}

REFUSALS = {Event.SEND: 8429, Event.END: 8427, Event.TIMER: 8458, Event.MOVE: 8438}


def after(state: EndpointState, event: Event) -> EndpointState | None:
    """Return the state after `event`, None if the endpoint is removed.

    Raises:
        BrokerError: the error of the verb (8427, 8429, 8438, 8458), naming the state.
        KeyError: a received message that this state does not accept; the caller discards the message.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        if event in REFUSALS:
            raise BrokerError(REFUSALS[event], state.value) from None
        raise


def at(state: EndpointState, lifetime: datetime, now: datetime) -> EndpointState:
    """Return the state at `now`, with a lifetime that has expired even if no statement has recorded it yet."""
    if lifetime <= now and TRANSITIONS.get((state, Event.ERROR_ARRIVED)) is EndpointState.ERROR:
        return EndpointState.ERROR
    return state
