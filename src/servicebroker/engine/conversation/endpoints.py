"""Endpoints and groups: reading, locking and removing their rows."""

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
    """The row of a conversation endpoint, and what its peer in this instance says (0 and '' where there is none).

    Of its own queue: `retains` and `is_queue_enabled` are its options RETENTION and STATUS, `keeps_retained` says that
    it may hold retained messages, from now or from earlier. `owner_id` is the principal that owns its service. Of an
    initiator, `acts_as` is who it is in the target's database, where a remote service binding says so.
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
    far_handle: UUID | None
    far_queue_id: int
    far_contract_id: int
    send_sequence: int
    far_database_id: int
    peer_queue_id: int
    peer_state: str
    catalog_version: int
    blocked_by: int
    retains: bool
    keeps_retained: bool
    is_queue_enabled: bool
    owner_id: int
    far_service_id: int
    is_remote: bool
    far_priority: int
    acts_as: int | None

    @property
    def obstacle(self) -> str:
        """Why nothing can be delivered to the peer now; '' when it can."""
        return OBSTACLES[self.blocked_by]

    @property
    def is_blocked(self) -> bool:
        """What is sent now has to wait, or something already waits before it."""
        return bool(self.blocked_by) or (self.has_peer and not self.far_queue_id)

    @property
    def has_peer(self) -> bool:
        """The other endpoint exists in this instance."""
        return self.far_handle is not None

    @property
    def peer_has_ended(self) -> bool:
        """What is sent now is for nobody; the peer could not say so yet, or never will.

        It is gone where it had expired before us: its application has ended what we take for open still.
        """
        if self.has_peer and not self.peer_state:
            return True
        return self.peer_state in (EndpointState.DISCONNECTED_OUTBOUND, EndpointState.CLOSED)


OBSTACLES = {0: "", 9749: waiting.TARGET_QUEUE_OFF, 9791: waiting.SENDER_DISABLED, 28012: waiting.TARGET_DISABLED}


def state_at(endpoint: Endpoint, now: datetime) -> EndpointState:
    """The endpoint's state, also when its lifetime has run out and nobody has looked yet."""
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
    "case when e.is_initiator then p.far_principal_id end "
    "from servicebroker.conversation_endpoints e "
    "join servicebroker.databases own on own.database_id = e.database_id "
    "join servicebroker.queues mine on mine.queue_id = e.queue_id "
    "left join servicebroker.services s on s.service_id = e.service_id "
    "left join servicebroker.conversation_endpoints p on p.conversation_handle = e.far_handle "
    "left join servicebroker.databases far on far.database_id = p.database_id "
    "left join servicebroker.queues q on q.queue_id = p.queue_id "
)


def find_endpoint(handle: UUID) -> Steps[Endpoint]:
    """The endpoint of a handle.

    Raises:
        BrokerError: 8426 when there is none.
    """
    rows = yield Statement("endpoints.find_endpoint", _SELECT + "where e.conversation_handle = $1", (handle,))
    if not rows:
        raise BrokerError(8426, handle)
    return Endpoint(*rows[0])


def find_endpoints(handles: Sequence[UUID]) -> Steps[dict[UUID, Endpoint]]:
    """The endpoints of several handles.

    Raises:
        BrokerError: 8426 naming the first handle that has none.
    """
    rows = yield Statement(
        "endpoints.find_endpoints", _SELECT + "where e.conversation_handle = any ($1)", (list(handles),)
    )
    found = {row[0]: Endpoint(*row) for row in rows}
    for handle in handles:
        if handle not in found:
            raise BrokerError(8426, handle)
    return found


def lock_endpoint(handle: UUID) -> Steps[Endpoint]:
    """The endpoint as it is once every transaction that sends on it has ended, and kept so until ours ends.

    Raises:
        BrokerError: 8426 when it is gone.
    """
    yield SQL("lock_endpoint", (handle,))
    return (yield from find_endpoint(handle))


def lock_conversation(handle: UUID) -> Steps[tuple[Endpoint, Endpoint | None]]:
    """The endpoint and its peer in this instance, both locked, under the endpoint's group lock.

    Rows are locked in one order for both sides, so that two ENDs never wait for each other in a circle; a SEND
    holds only its own row.
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
    """Both endpoints' rows, in the one order; the second may come into being while we wait for the first."""
    locked, there = 0, 1
    while locked < there:
        rows = yield SQL("lock_rows.lock", (conversation_id,))
        locked = len(rows)
        rows = yield SQL("lock_rows.count", (conversation_id,))
        there = len(rows)


def lock_parking() -> Statement:
    """Whoever touches the rows of a conversation that is, or may become, parked says so before it locks them.

    Who delivers parked messages takes the lock alone: it sees all that waits, or the sender sees the way free.
    """
    return SQL("lock_parking", (locks.DELIVERY,))


def lock_group(group: UUID) -> Statement:
    """Take the group's lock, waiting for it; it is held until the transaction ends."""
    return SQL("lock_group", (group,), locks=True)


def keep_lock(group: UUID) -> Statement:
    """A group that we have locked under a savepoint: the session keeps the lock beyond it."""
    return SQL("keep_lock", (group, locks.GROUP), locks=True)


def lock_group_of(handle: UUID) -> Steps[UUID]:
    """Take the lock of the group that a conversation is in. It may be moved while we wait: then the next one too.

    Raises:
        BrokerError: 8426 when there is no such conversation.
    """
    group, locked = (yield from find_endpoint(handle)).conversation_group_id, None
    while group != locked:
        yield lock_group(group)
        group, locked = (yield from find_endpoint(handle)).conversation_group_id, group
    return group


def never_opened(initiator: Endpoint) -> Steps[bool]:
    """Whether message 0 still waits in the transmission queue: then no target endpoint was ever made."""
    rows = yield SQL("never_opened", (initiator.conversation_handle,))
    return bool(rows)


# The last thing a finished endpoint leaves with its peer, for sys.conversation_endpoints: what it has sent.
LEAVE_LAST_NUMBER = (
    "update servicebroker.conversation_endpoints peer set receive_sequence = finished.send_sequence from finished "
    "where peer.conversation_id = finished.conversation_id and peer.is_initiator = not finished.is_initiator"
)


def remove_endpoint(endpoint: Endpoint) -> Steps[None]:
    """Delete the row, which is locked, and its group when it was the last one of it.

    The group's row is locked too: who removes another conversation of it need not have the group's lock.
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


def remove_closed(now: datetime, limit: int = 100) -> Steps[int]:
    """Delete closed endpoints whose time of replay protection is over. Returns how many.

    They are anybody's: one that somebody holds, or in whose group a dialog is beginning, is left for the next time.
    """
    rows = yield SQL("remove_closed", (now, limit))
    if rows:
        yield remove_empty_groups([group for (group,) in rows])
    return len(rows)


def remove_endpoints(handles: list[UUID]) -> Steps[None]:
    """Delete many rows, and the groups that they leave empty."""
    rows = yield Statement(
        "endpoints.remove_endpoints",
        "with finished as ("
        "delete from servicebroker.conversation_endpoints where conversation_handle = any ($1) returning *), "
        # not of those that go themselves: one statement must not change a row twice
        f"left_behind as ({LEAVE_LAST_NUMBER} and not peer.conversation_handle = any ($1)) "
        "select conversation_group_id from finished",
        (handles,),
    )
    if rows:
        yield from _leave_groups([group for (group,) in rows])


def _leave_groups(groups: list[UUID]) -> Steps[None]:
    """Delete those of the groups that are left empty; their locks are not ours.

    A dialog may be beginning in one of them, or somebody else removing the other conversation of it: wait for both, so
    that the next statement sees it.
    """
    yield SQL("leave_groups", (groups,))
    yield remove_empty_groups(groups)


# A closed initiator, unless its peer's end can be answered only with the keys that go with it (decision 53).
_GOES_AT_ONCE = "(is_initiator and coalesce(security, 'N') = 'N')"


def close_endpoints(handles: list[UUID], now: datetime) -> Steps[None]:
    """The end is acknowledged: who may still be asked for an answer is kept against replays, the others are removed."""
    going = yield Statement(
        "endpoints.close_endpoints.update_endpoints",
        "with finished as ("
        "update servicebroker.conversation_endpoints set state = 'CD', dialog_timer = null, "
        "far_handle = null, far_queue_id = null, security_timestamp = $2 "
        f"where conversation_handle = any ($1) and not {_GOES_AT_ONCE} returning *), "
        f"left_behind as ({LEAVE_LAST_NUMBER}) "
        "select conversation_handle from servicebroker.conversation_endpoints "
        f"where conversation_handle = any ($1) and {_GOES_AT_ONCE}",
        (handles, now + REPLAY_PROTECTION),
    )
    yield SQL(  # they take no more
        "close_endpoints.delete_fragments", (handles,)
    )
    if going:
        yield from remove_endpoints([handle for (handle,) in going])


def remove_empty_groups(groups: list[UUID]) -> Statement:
    """Delete those of the groups that no conversation is in."""
    return SQL("remove_empty_groups", (groups,))
