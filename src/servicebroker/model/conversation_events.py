"""Broker:Conversation and Broker:Conversation Group: events of a verb, derived from snapshots before and after.

The names are those of the trace (docs/reference/metrics.md#events).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from servicebroker.model.events import CONVERSATION_CLASS, CONVERSATION_GROUP_CLASS
from servicebroker.model.states import EndpointState

CREATED, DROPPED = "Create", "Drop"  # the subclasses of Broker:Conversation Group


class ConversationEvent(StrEnum):
    """The subclasses of Broker:Conversation, in the order of their numbers."""

    SEND = "SEND Message"
    END = "END CONVERSATION"
    END_WITH_ERROR = "END CONVERSATION WITH ERROR"
    BROKER_ERROR = "Broker Initiated Error"
    TERMINATE = "Terminate Dialog"
    RECEIVED_MESSAGE = "Received Sequenced Message"
    RECEIVED_END = "Received END CONVERSATION"
    RECEIVED_ERROR = "Received END CONVERSATION WITH ERROR"
    RECEIVED_BROKER_ERROR = "Received Broker Error Message"
    RECEIVED_END_ACK = "Received END CONVERSATION Ack"
    BEGIN = "BEGIN DIALOG"
    DIALOG_CREATED = "Dialog Created"
    END_WITH_CLEANUP = "END CONVERSATION WITH CLEANUP"


class EndpointSnapshot(NamedTuple):
    """The state of an endpoint at one time. `waits`: a message that it has sent is not delivered yet."""

    conversation_handle: UUID
    conversation_id: UUID
    conversation_group_id: UUID
    is_initiator: bool
    state: str
    send_sequence: int
    waits: bool
    database_id: int

    @property
    def is_over(self) -> bool:
        """True if no further messages can arrive."""
        return self.state in (EndpointState.DISCONNECTED_OUTBOUND, EndpointState.ERROR, EndpointState.CLOSED)


class ConversationSnapshot(NamedTuple):
    """Both sides of conversations by their handles, and the conversation groups that exist."""

    endpoints: Mapping[UUID, EndpointSnapshot]
    groups: frozenset[UUID]

    def peer(self, endpoint: EndpointSnapshot) -> EndpointSnapshot | None:
        """Return the other side, if it is in this instance."""
        for other in self.endpoints.values():
            if other.conversation_id == endpoint.conversation_id and other.is_initiator != endpoint.is_initiator:
                return other
        return None


class EndpointEvent(NamedTuple):
    """One event of the class Broker:Conversation."""

    event_class: ConversationEvent
    endpoint: EndpointSnapshot


class GroupEvent(NamedTuple):
    """One event of the class Broker:Conversation Group."""

    subclass: str
    group: UUID
    database_id: int


VerbEvent = EndpointEvent | GroupEvent


def find_events(
    event_class: ConversationEvent | None,
    before: ConversationSnapshot,
    after: ConversationSnapshot,
    handles: Sequence[UUID],
    many: int = 1,
) -> Iterator[VerbEvent]:
    """Return the events of a verb on these handles, in order; `event_class` is None if it only moves conversations.

    `many` is the number of messages that a SEND has sent on each.
    """
    for endpoint in after.endpoints.values():
        if endpoint.conversation_group_id not in before.groups and endpoint.conversation_handle not in before.endpoints:
            yield GroupEvent(CREATED, endpoint.conversation_group_id, endpoint.database_id)
    for handle in handles:
        was, now = before.endpoints.get(handle), after.endpoints.get(handle)
        own = now or (was and was._replace(state=EndpointState.CLOSED.value))
        if own is None or event_class is None:
            continue
        if event_class is ConversationEvent.SEND:
            yield from _send_events(own, before, after, many)
        else:
            yield EndpointEvent(event_class, own)
            if event_class is not ConversationEvent.BEGIN:
                yield from _end_events(event_class, own, before, after)
    removed_groups = {endpoint.conversation_group_id: endpoint.database_id for endpoint in before.endpoints.values()}
    for group in removed_groups.keys() & (before.groups - after.groups):
        yield GroupEvent(DROPPED, group, removed_groups[group])


def _send_events(
    own: EndpointSnapshot, before: ConversationSnapshot, after: ConversationSnapshot, many: int
) -> Iterator[VerbEvent]:
    for _ in range(many):
        yield EndpointEvent(ConversationEvent.SEND, own)
    peer, peer_was = after.peer(own), before.peer(own)
    if peer is not None and peer_was is None:
        yield EndpointEvent(ConversationEvent.DIALOG_CREATED, peer)
    if own.state == EndpointState.ERROR:
        if peer is not None:
            yield EndpointEvent(ConversationEvent.BROKER_ERROR, peer)
            yield EndpointEvent(ConversationEvent.RECEIVED_BROKER_ERROR, own)
        else:
            yield EndpointEvent(ConversationEvent.BROKER_ERROR, own)
    elif peer is not None and not own.waits and not peer.is_over:
        for _ in range(many):
            yield EndpointEvent(ConversationEvent.RECEIVED_MESSAGE, peer)


def _end_events(
    event_class: ConversationEvent, own: EndpointSnapshot, before: ConversationSnapshot, after: ConversationSnapshot
) -> Iterator[VerbEvent]:
    peer, peer_was = after.peer(own), before.peer(own)
    if peer is not None and peer_was is not None and peer.state != peer_was.state:
        event = {
            EndpointState.DISCONNECTED_INBOUND: ConversationEvent.RECEIVED_END,
            EndpointState.ERROR: ConversationEvent.RECEIVED_ERROR,
        }.get(EndpointState(peer.state))
        if event is not None:
            yield EndpointEvent(event, peer)
            if own.state == EndpointState.CLOSED:
                yield EndpointEvent(ConversationEvent.RECEIVED_END_ACK, own)
    peer_is_closed = peer is None or peer.state == EndpointState.CLOSED
    if (
        own.state == EndpointState.CLOSED
        and peer_was is not None
        and peer_is_closed
        and event_class is not ConversationEvent.END_WITH_CLEANUP
    ):
        yield EndpointEvent(ConversationEvent.TERMINATE, own)


def describe_event(event: VerbEvent) -> tuple[int, int, str, str, dict[str, str]]:
    """Return number, database, text, subclass and columns of an event, with the names of the trace."""
    if isinstance(event, GroupEvent):
        columns = {"GUID": str(event.group)}
        return CONVERSATION_GROUP_CLASS, event.database_id, "", event.subclass, columns
    endpoint = event.endpoint
    columns = {
        "GUID": str(endpoint.conversation_id),
        "ObjectName": str(endpoint.conversation_handle),
        "MethodName": str(endpoint.conversation_group_id),
        "RoleName": "initiator" if endpoint.is_initiator else "target",
    }
    return CONVERSATION_CLASS, endpoint.database_id, endpoint.state, event.event_class.value, columns
