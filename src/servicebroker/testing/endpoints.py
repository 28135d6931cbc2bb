"""Removal of endpoints that have ended, and of empty groups."""

from __future__ import annotations

from uuid import UUID

from servicebroker.model.states import REPLAY_PROTECTION, EndpointState
from servicebroker.testing.memory import Endpoint, Session


def close_endpoint(session: Session, endpoint: Endpoint) -> None:
    """Close an endpoint whose end has reached the peer. An initiator is removed, a target is kept against replays."""
    if endpoint.is_initiator:
        remove_endpoint(session, endpoint)
        return
    _leave_last_number(session, endpoint)
    session.update(
        endpoint,
        state=EndpointState.CLOSED,
        dialog_timer=None,
        peer_handle=None,
        is_parked=False,
        security_timestamp=session.now + REPLAY_PROTECTION,
    )


def remove_endpoint(session: Session, endpoint: Endpoint) -> None:
    """Delete an endpoint, and its group if it was the last one in it."""
    _leave_last_number(session, endpoint)
    session.lock("endpoint", endpoint.conversation_handle)
    session.endpoints.remove(endpoint.conversation_handle)
    remove_empty_group(session, endpoint.conversation_group_id)


def remove_closed(session: Session) -> None:
    """Delete closed target endpoints after their replay protection. Locked endpoints are left to the next call."""
    for endpoint in session.endpoints.all():
        handle, group = endpoint.conversation_handle, endpoint.conversation_group_id
        until = endpoint.security_timestamp
        if not until or until > session.now:
            continue
        if session.try_lock("endpoint", handle) and session.try_lock("row of the group", group):
            session.endpoints.remove(handle)
            remove_empty_group(session, group)


def forget_keys(session: Session) -> None:
    """Delete expired idempotency keys."""
    for key, row in session.keys.items():
        if row.expires_at <= session.now:
            session.keys.remove(key)


def remove_empty_group(session: Session, group: UUID) -> None:
    """Delete a group without conversations.

    Raises:
        WouldWait: an open transaction begins a conversation in the group.
    """
    if session.groups.get(group):
        session.lock("row of the group", group)
        if not any(endpoint.conversation_group_id == group for endpoint in session.endpoints.all()):
            session.groups.remove(group)


def _leave_last_number(session: Session, endpoint: Endpoint) -> None:
    peer = session.other_side(endpoint)
    if peer:
        session.update(peer, last_received=endpoint.send_sequence)


def expire_ended(session: Session) -> None:
    """Remove ended endpoints whose end was not delivered within their lifetime."""
    for endpoint in session.endpoints.all():
        if endpoint.state is EndpointState.DISCONNECTED_OUTBOUND and endpoint.lifetime <= session.now:
            session.drop_undelivered(endpoint.conversation_handle)
            remove_endpoint(session, endpoint)
