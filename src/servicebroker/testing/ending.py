"""END CONVERSATION: plain, WITH ERROR and WITH CLEANUP."""

from __future__ import annotations

from uuid import UUID

from servicebroker.model import names
from servicebroker.model.messages import error_body
from servicebroker.model.states import REMOVED, TRANSITIONS, EndpointState, Event, after, at
from servicebroker.operations.end import EndConversation
from servicebroker.testing.delivery import enqueue_error, never_opened, obstacle, park
from servicebroker.testing.endpoints import close_endpoint, remove_closed, remove_endpoint
from servicebroker.testing.memory import Endpoint, Session


def end_conversation(session: Session, operation: EndConversation) -> None:
    """END CONVERSATION: plain, WITH ERROR or WITH CLEANUP."""
    operation.check()
    handle, error, cleanup = operation.handle, operation.error, operation.cleanup
    endpoint, peer = _lock(session, handle)
    state = REMOVED if cleanup else after(at(endpoint.state, endpoint.lifetime, session.now), Event.END)
    for message in session.messages.all():
        if message.conversation_handle == handle:
            session.messages.remove(message.queuing_order)
    if cleanup or error or state is not EndpointState.DISCONNECTED_OUTBOUND:
        session.drop_undelivered(handle)
    if peer:
        session.drop_undelivered(peer.conversation_handle)  # this side does not receive any more
    if peer and peer.state is EndpointState.DISCONNECTED_OUTBOUND:  # both sides have ended, and neither gets a message
        session.drop_undelivered(handle)
        close_endpoint(session, peer)
        endpoint = session.endpoint(handle)
        state = state and EndpointState.CLOSED
    if cleanup:
        _forget_address(session, endpoint)
    elif state is EndpointState.DISCONNECTED_OUTBOUND and _send_end(session, endpoint, peer, error):
        return
    endpoint = session.endpoint(handle)
    if state is REMOVED:
        remove_endpoint(session, endpoint)
    else:
        close_endpoint(session, endpoint)
    remove_closed(session)


def _lock(session: Session, handle: UUID) -> tuple[Endpoint, Endpoint | None]:
    """Return the endpoint and its peer, locked together with the endpoint's group."""
    endpoint = session.endpoint(handle)
    session.lock("group", endpoint.conversation_group_id)
    peer = session.other_side(endpoint)
    session.lock("endpoint", handle)
    if peer:
        session.lock("endpoint", peer.conversation_handle)
    return endpoint, peer


def _send_end(session: Session, endpoint: Endpoint, peer: Endpoint | None, error: tuple[int, str] | None) -> bool:
    """Send EndDialog or Error to the peer. Returns True if it has to wait in the transmission queue."""
    if peer is None or endpoint.peer_handle is None:
        if error or not never_opened(session, endpoint):
            return False
        _park_end(session, endpoint, None)
        return True
    if endpoint.is_parked or obstacle(endpoint, peer):
        _park_end(session, endpoint, error)
        session.update(peer, is_parked=True)  # the ended side does not receive any more
        return True
    event = Event.ERROR_ARRIVED if error else Event.END_DIALOG_ARRIVED
    if (peer.state, event) not in TRANSITIONS:
        return False
    if error:
        enqueue_error(session, peer, *error, number=endpoint.send_sequence)
    else:
        kind = peer.broker.message_types[names.END_DIALOG]
        session.enqueue(peer, kind, number=endpoint.send_sequence)
    session.update(endpoint, send_sequence=endpoint.send_sequence + 1)
    session.update(peer, state=TRANSITIONS[peer.state, event])
    return False


def _park_end(session: Session, endpoint: Endpoint, error: tuple[int, str] | None) -> None:
    """Put EndDialog or Error into the transmission queue, after earlier messages."""
    name, body = (names.ERROR, error_body(*error)) if error else (names.END_DIALOG, None)
    park(session, endpoint, name, [body], obstacle(endpoint, session.peer(endpoint)), end=name)
    session.update(endpoint, dialog_timer=None)


def _forget_address(session: Session, endpoint: Endpoint) -> None:
    """Remove the peer's address of an endpoint that is removed, so that the peer's next SEND fails."""
    peer = session.peer(endpoint)
    if peer and peer.peer_handle == endpoint.conversation_handle:
        session.update(peer, peer_handle=None, is_parked=False)
