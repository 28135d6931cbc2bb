"""What becomes of endpoints that have ended, and of groups that nobody is in any more."""

from __future__ import annotations

from uuid import UUID

from servicebroker.model.states import REPLAY_PROTECTION, EndpointState
from servicebroker.testing.rows import Endpoint, Session


def close_endpoint(session: Session, endpoint: Endpoint) -> None:
    """Its end is with the peer: an initiator is removed, a target kept against replays."""
    if endpoint.is_initiator:
        remove_endpoint(session, endpoint)
        return
    _leave_last_number(session, endpoint)
    session.update(
        endpoint,
        state=EndpointState.CLOSED,
        dialog_timer=None,
        far_handle=None,
        is_parked=False,
        security_timestamp=session.now + REPLAY_PROTECTION,
    )


def remove_endpoint(session: Session, endpoint: Endpoint) -> None:
    """Delete it, and its group when it was the last one of it."""
    _leave_last_number(session, endpoint)
    session.lock("endpoint", endpoint.conversation_handle)
    session.endpoints.remove(endpoint.conversation_handle)
    remove_empty_group(session, endpoint.conversation_group_id)


def remove_closed(session: Session) -> None:
    """Delete closed target endpoints whose time of replay protection is over; those in use stay for the next time."""
    for endpoint in session.endpoints.all():
        handle, group = endpoint.conversation_handle, endpoint.conversation_group_id
        until = endpoint.security_timestamp
        if not until or until > session.now:
            continue
        if session.try_lock("endpoint", handle) and session.try_lock("row of the group", group):
            session.endpoints.remove(handle)
            remove_empty_group(session, group)


def remove_empty_group(session: Session, group: UUID) -> None:
    """Delete the group when no conversation is in it; a dialog that is beginning in it has to be waited for."""
    if session.groups.get(group):
        session.lock("row of the group", group)
        if not any(endpoint.conversation_group_id == group for endpoint in session.endpoints.all()):
            session.groups.remove(group)


def _leave_last_number(session: Session, endpoint: Endpoint) -> None:
    peer = session.other_side(endpoint)
    if peer:
        session.update(peer, last_received=endpoint.send_sequence)


def expire_ended(session: Session) -> None:
    """Remove endpoints that have ended and waited for the delivery of that until their lifetime was over."""
    for endpoint in session.endpoints.all():
        if endpoint.state is EndpointState.DISCONNECTED_OUTBOUND and endpoint.lifetime <= session.now:
            session.drop_waiting(endpoint.conversation_handle)
            remove_endpoint(session, endpoint)
