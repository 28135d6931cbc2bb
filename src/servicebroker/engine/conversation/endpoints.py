"""Read, lock and remove the rows of endpoints and groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.model import waiting
from servicebroker.model.errors import BrokerError
from servicebroker.model.states import REPLAY_PROTECTION, EndpointState, at
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class Endpoint(NamedTuple):
    """The row of a conversation endpoint, with the state of its peer if the peer is in this instance.

    The peer is the other endpoint of the conversation; names with `peer_` are values of it, as are `far_service` and
    `far_broker_instance`, named as in sys.conversation_endpoints. Without a peer in this instance its numbers are 0 and
    its texts ''.

    Attributes:
        delivery_queue_id: the peer's queue; 0 while messages cannot be delivered directly (`is_blocked`).
        peer_queue_id: the peer's queue, also while delivery is blocked.
        catalog_version: that of the peer's queue.
        blocked_by: the number of the obstacle to delivery (`OBSTACLES`); 0 if there is none.
        retains, is_queue_enabled: the options RETENTION and STATUS of the endpoint's own queue.
        keeps_retained: the own queue may have retained messages, even if RETENTION is off now.
        owner_id: the principal that owns the endpoint's service.
        acts_as: the principal as which an initiator acts in the target's database, if a remote service binding names
            one.
        is_delayed: a sent message of the endpoint is delayed (engine/delivery/delayed_messages.py).
    """

    conversation_handle: UUID
    conversation_id: UUID
    is_initiator: bool
    database_id: int
    service_id: int
    service_contract_id: int
    conversation_group_id: UUID
    queue_id: int
    priority: int
    state: str
    lifetime: datetime
    far_service: str
    far_broker_instance: str | None
    peer_handle: UUID | None
    delivery_queue_id: int
    peer_contract_id: int
    send_sequence: int
    peer_database_id: int
    peer_queue_id: int
    peer_state: str
    catalog_version: int
    blocked_by: int
    retains: bool
    keeps_retained: bool
    is_queue_enabled: bool
    owner_id: int
    peer_service_id: int
    is_remote: bool
    peer_priority: int
    acts_as: int | None
    is_delayed: bool

    @property
    def obstacle(self) -> str:
        """The reason why nothing can be delivered to the peer now; '' if it can."""
        return OBSTACLES[self.blocked_by]

    @property
    def is_blocked(self) -> bool:
        """True if a new message has to wait: there is an obstacle, or earlier messages are waiting."""
        return bool(self.blocked_by) or (self.has_peer and not self.delivery_queue_id)

    @property
    def has_peer(self) -> bool:
        """True if the other endpoint exists in this instance."""
        return self.peer_handle is not None

    @property
    def peer_has_ended(self) -> bool:
        """True if the peer has ended the conversation, even if its EndDialog or Error is not delivered yet.

        The peer's row is missing if its lifetime ran out and its application then ended the conversation.
        """
        if self.has_peer and not self.peer_state:
            return True
        return self.peer_state in (EndpointState.DISCONNECTED_OUTBOUND, EndpointState.CLOSED)


OBSTACLES = {0: "", 9749: waiting.TARGET_QUEUE_OFF, 9791: waiting.SENDER_DISABLED, 28012: waiting.TARGET_DISABLED}


def state_at(endpoint: Endpoint, now: datetime) -> EndpointState:
    """Return the endpoint's state at `now`: ERROR after the end of the lifetime, even before the row says so."""
    return at(EndpointState(endpoint.state), endpoint.lifetime, now)


_SELECT = (
    "select e.conversation_handle, e.conversation_id, e.is_initiator, e.database_id, e.service_id, "
    "e.service_contract_id, e.conversation_group_id, e.queue_id, e.priority, e.state, e.lifetime, "
    "e.far_service, e.far_broker_instance, e.far_handle, coalesce(e.far_queue_id, 0), "
    "coalesce(e.far_contract_id, 0), e.send_sequence, coalesce(p.database_id, 0), "
    "coalesce(p.queue_id, 0), coalesce(p.state, ''), coalesce(q.catalog_version, 0), "
    "case when not own.is_broker_enabled then 9791 when not far.is_broker_enabled then 28012 "
    "when not q.is_enqueue_enabled then 9749 else 0 end, "
    "mine.is_retention_enabled, mine.keeps_retained, mine.is_enqueue_enabled, coalesce(s.owner_id, 1), "
    "coalesce(e.far_service_id, 0), e.is_remote, coalesce(e.far_priority, 0), "
    "case when e.is_initiator then p.far_principal_id end, "
    "case when e.far_queue_id is null then exists (select from servicebroker.transmission_queue t "
    "where t.conversation_handle = e.conversation_handle and t.delayed_until is not null) else false end "
    "from servicebroker.conversation_endpoints e "
    "join servicebroker.databases own on own.database_id = e.database_id "
    "join servicebroker.queues mine on mine.queue_id = e.queue_id "
    "left join servicebroker.services s on s.service_id = e.service_id "
    "left join servicebroker.conversation_endpoints p on p.conversation_handle = e.far_handle "
    "left join servicebroker.databases far on far.database_id = p.database_id "
    "left join servicebroker.queues q on q.queue_id = p.queue_id "
)


def find_endpoint(handle: UUID) -> Steps[Endpoint]:
    """Return the endpoint of a handle.

    Raises:
        BrokerError: 8426 no such endpoint.
    """
    rows = yield Statement("endpoints.find_endpoint", _SELECT + "where e.conversation_handle = $1", (handle,))
    if not rows:
        raise BrokerError(8426, handle)
    return Endpoint(*rows[0])


def find_endpoints(handles: Sequence[UUID]) -> Steps[dict[UUID, Endpoint]]:
    """Return the endpoints of several handles.

    Raises:
        BrokerError: 8426 naming the first handle without an endpoint.
    """
    rows = yield Statement(
        "endpoints.find_endpoints", _SELECT + "where e.conversation_handle = any ($1)", (list(handles),)
    )
    endpoints = {row[0]: Endpoint(*row) for row in rows}
    for handle in handles:
        if handle not in endpoints:
            raise BrokerError(8426, handle)
    return endpoints


def lock_endpoint(handle: UUID) -> Steps[Endpoint]:
    """Lock the endpoint's row until this transaction ends, and return the row as read after locking.

    Raises:
        BrokerError: 8426 the endpoint does not exist any more.
    """
    yield SQL("lock_endpoint", (handle,))
    return (yield from find_endpoint(handle))


def lock_conversation(handle: UUID) -> Steps[tuple[Endpoint, Endpoint | None]]:
    """Lock the endpoint's group, then the rows of the endpoint and of its peer in this instance. Returns both.

    Both sides lock the two rows in the same order, so two ENDs never deadlock. A SEND locks only its own row.
    """
    yield from lock_group_of(handle)
    endpoint = yield from find_endpoint(handle)
    if endpoint.is_blocked:
        yield lock_parking()
    yield from lock_rows(endpoint.conversation_id)
    rows = yield Statement(
        "endpoints.lock_conversation", _SELECT + "where e.conversation_id = $1", (endpoint.conversation_id,)
    )
    both = {row[0]: Endpoint(*row) for row in rows}
    if handle not in both:
        raise BrokerError(8426, handle)
    peers = [other for key, other in both.items() if key != handle]
    return both[handle], peers[0] if peers else None


def lock_rows(conversation_id: UUID) -> Steps[None]:
    """Lock both endpoints' rows, the target's first. Repeats if a row was inserted while this waited for a lock."""
    locked, present = 0, 1
    while locked < present:
        rows = yield SQL("lock_rows.lock", (conversation_id,))
        locked = len(rows)
        rows = yield SQL("lock_rows.count", (conversation_id,))
        present = len(rows)


def lock_parking() -> Statement:
    """Lock parking, shared, before this transaction locks rows of a conversation that is or may become parked.

    The delivery of parked messages takes this lock exclusively. So either it sees the messages parked here, or this
    transaction sees that the path to the peer is free.
    """
    return SQL("lock_parking", (locks.PARKED_DELIVERY,))


def lock_group(group: UUID) -> Statement:
    """Take the group's lock, waiting if necessary, until the transaction ends."""
    return SQL("lock_group", (group,), locks=True)


def keep_lock(group: UUID) -> Statement:
    """Lock a group for the session too: a rollback to a savepoint would release the transaction's lock."""
    return SQL("keep_lock", (group, locks.CONVERSATION_GROUP), locks=True)


def lock_group_of(handle: UUID) -> Steps[UUID]:
    """Lock the group of a conversation and return its id. If the conversation was moved meanwhile, lock the new group.

    Raises:
        BrokerError: 8426 no such conversation.
    """
    group, locked = (yield from find_endpoint(handle)).conversation_group_id, None
    while group != locked:
        yield lock_group(group)
        group, locked = (yield from find_endpoint(handle)).conversation_group_id, group
    return group


def is_unopened(initiator: Endpoint) -> Steps[bool]:
    """Check whether the first message (number 0) is in the transmission queue, so that no target was ever created."""
    rows = yield SQL("is_unopened", (initiator.conversation_handle,))
    return bool(rows)


# Before an endpoint is closed or removed, its last sequence number is stored with its peer: sys.conversation_endpoints
# shows it as the peer's receive_sequence.
LEAVE_LAST_NUMBER = (
    "update servicebroker.conversation_endpoints peer set receive_sequence = finished.send_sequence from finished "
    "where peer.conversation_id = finished.conversation_id and peer.is_initiator = not finished.is_initiator"
)


def remove_endpoint(endpoint: Endpoint) -> Steps[None]:
    """Delete the endpoint's row, which is locked, and its group if the group has no other conversation.

    Locks the group's row, because other statements remove conversations of the group without the group's lock.
    """
    yield Statement(
        "endpoints.remove_endpoint",
        "with finished as ("
        "delete from servicebroker.conversation_endpoints where conversation_handle = $1 returning *), "
        f"left_behind as ({LEAVE_LAST_NUMBER}) "
        "select from servicebroker.conversation_groups where conversation_group_id = $2 for update",
        (endpoint.conversation_handle, endpoint.conversation_group_id),
    )
    yield remove_empty_groups([endpoint.conversation_group_id])


def remove_closed_endpoints(now: datetime, limit: int = 100) -> Steps[int]:
    """Delete up to `limit` closed endpoints whose replay protection has ended. Returns their number.

    Endpoints that are locked, or in whose group a dialog is beginning, are skipped until the next call.
    """
    rows = yield SQL("remove_closed_endpoints", (now, limit))
    if rows:
        yield remove_empty_groups([group for (group,) in rows])
    return len(rows)


def remove_endpoints(handles: list[UUID]) -> Steps[None]:
    """Delete many endpoint rows, and the groups that become empty."""
    rows = yield Statement(
        "endpoints.remove_endpoints",
        "with finished as ("
        "delete from servicebroker.conversation_endpoints where conversation_handle = any ($1) returning *), "
        # not for endpoints of this list: one statement must not change a row twice
        f"left_behind as ({LEAVE_LAST_NUMBER} and not peer.conversation_handle = any ($1)) "
        "select conversation_group_id from finished",
        (handles,),
    )
    if rows:
        yield from _remove_if_empty([group for (group,) in rows])


def _remove_if_empty(groups: list[UUID]) -> Steps[None]:
    """Delete those of the groups that are now empty. The caller does not hold the groups' locks.

    Another session may be beginning a dialog in a group, or removing its other conversation. The first statement waits
    for these sessions, so that the second one sees what they did.
    """
    yield SQL("remove_if_empty", (groups,))
    yield remove_empty_groups(groups)


# A closed initiator is removed at once, unless its keys are needed to answer the peer's EndDialog (decision 50).
_IS_REMOVED_AT_ONCE = "(is_initiator and coalesce(security, 'N') = 'N')"


def close_endpoints(handles: list[UUID], now: datetime) -> Steps[None]:
    """Close endpoints whose EndDialog or Error is acknowledged.

    Targets are kept for replay protection. Initiators without dialog security are removed.
    """
    removed = yield Statement(
        "endpoints.close_endpoints.update_endpoints",
        "with finished as ("
        "update servicebroker.conversation_endpoints set state = 'CD', can_expire = false, dialog_timer = null, "
        "far_handle = null, far_queue_id = null, security_timestamp = $2 "
        f"where conversation_handle = any ($1) and not {_IS_REMOVED_AT_ONCE} returning *), "
        f"left_behind as ({LEAVE_LAST_NUMBER}) "
        "select conversation_handle from servicebroker.conversation_endpoints "
        f"where conversation_handle = any ($1) and {_IS_REMOVED_AT_ONCE}",
        (handles, now + REPLAY_PROTECTION),
    )
    yield SQL(  # fragments of messages that will not be received
        "close_endpoints.delete_fragments", (handles,)
    )
    if removed:
        yield from remove_endpoints([handle for (handle,) in removed])


def remove_empty_groups(groups: list[UUID]) -> Statement:
    """Delete those of the groups that have no conversation."""
    return SQL("remove_empty_groups", (groups,))
