"""Endpoints whose peer is in another instance, as the broker sees them: identity, and progress in both directions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from itertools import chain
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.security.session_keys import Keys
from servicebroker.model.states import EndpointState
from servicebroker.protocol.envelope import Content
from servicebroker.protocol.incoming import Kept, impossible
from servicebroker.store.rows import build_row
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Row, Statement, Steps

SQL = SqlFile(__file__)


class RemoteEndpoint(NamedTuple):
    """An endpoint whose peer is in another instance.

    `first` is the lowest message in the transmission queue, `send_sequence` the number of the next SEND (both are equal
    if none waits). `receive_sequence` is the next number to arrive, `kept` has stored parts of later ones. `failure` is
    the error for the peer. `is_remote`: a message was, or is about to be, sent to another instance. `routed_broker` is
    the broker instance of its route, if the route names one. `security` is None while undecided. `keys` are encrypted
    by the master key, and that is encrypted itself. `is_end_waiting`: the peer has ended, and its end waits beside a
    queue that is off.
    """

    conversation_handle: UUID
    conversation_id: UUID
    is_initiator: bool
    database_id: int
    own_broker: UUID
    is_enabled: bool
    own_service: str
    far_service: str
    far_broker: str | None
    routed_broker: str | None
    contract: str
    lifetime: datetime
    encryption: bool
    priority: int
    honors_priority: bool
    state: str
    is_remote: bool
    is_acknowledged: bool
    first: int
    send_sequence: int
    receive_sequence: int
    failure: tuple[int, str] | None
    kept: dict[int, Kept]
    security: str | None = None
    keys: Keys | None = None
    by_service_master_key: bytes | None = None
    receive_token: bytes | None = None  # of the last message that has arrived in order
    is_end_waiting: bool = False

    @property
    def is_end_unsent(self) -> bool:
        """True if this side has ended before it has sent anything: all its messages were delayed, then cancelled."""
        is_first = self.is_initiator and self.first == 0 and self.send_sequence == 1
        return is_first and self.state == EndpointState.DISCONNECTED_OUTBOUND


_SELECT = (
    "select e.conversation_handle, e.conversation_id, e.is_initiator, e.database_id, d.service_broker_guid, "
    "d.is_broker_enabled, coalesce(s.name, ''), e.far_service, e.far_broker_instance, e.routed_broker, "
    "coalesce(c.name, ''), "
    "e.lifetime, e.encryption, e.priority::int, d.is_honor_broker_priority_on, e.state, e.is_remote, "
    "e.is_acknowledged, "
    "coalesce((select min(t.message_sequence_number) from servicebroker.transmission_queue t "
    "  where t.conversation_handle = e.conversation_handle), e.send_sequence), e.send_sequence, "
    "coalesce(a.receive_sequence, 0), a.failure_code, a.failure_text, e.security::text, m.by_service_master_key, "
    "a.token, "
    "exists (select from servicebroker.arrived_fragments f where f.conversation_handle = e.conversation_handle), "
    "k.principal_id, k.far_principal_id, k.first_key_id, k.first_key, k.second_key_id, k.second_key, k.exchange "
    "from servicebroker.conversation_endpoints e "
    "join servicebroker.databases d on d.database_id = e.database_id "
    "left join servicebroker.services s on s.service_id = e.service_id "
    "left join servicebroker.service_contracts c "
    "  on c.database_id = e.database_id and c.service_contract_id = e.service_contract_id "
    "left join servicebroker.arrivals a on a.conversation_handle = e.conversation_handle "
    "left join servicebroker.conversation_keys k on k.conversation_handle = e.conversation_handle "
    "left join servicebroker.master_keys m on m.database_id = e.database_id and k.first_key_id is not null "
)


def find_by_handle(handles: Sequence[UUID]) -> Steps[list[RemoteEndpoint]]:
    """Return those of these endpoints that have no peer in this instance."""
    return _find(
        Statement(
            "remote_endpoints.find_by_handle",
            _SELECT + "where e.conversation_handle = any ($1) and e.far_handle is null",
            (list(handles),),
        )
    )


def find_by_conversation(keys: Sequence[tuple[UUID, bool]]) -> Steps[list[RemoteEndpoint]]:
    """Return the endpoints of these conversations and sides, if they are here and have no peer in this instance."""
    return _find(
        Statement(
            "remote_endpoints.find_by_conversation",
            _SELECT + "where (e.conversation_id, e.is_initiator) in (select * from unnest($1::uuid[], $2::boolean[])) "
            "and e.far_handle is null",
            ([conversation for conversation, _ in keys], [is_initiator for _, is_initiator in keys]),
        )
    )


class _Behind(NamedTuple):
    """The columns of `_SELECT` after the fields of `RemoteEndpoint`."""

    failure_code: int | None
    failure_text: str
    security: str | None
    by_service_master_key: bytes | None
    receive_token: bytes | None
    has_fragments: bool
    keys: Keys | None


_OWN_COLUMNS = RemoteEndpoint._fields.index("failure")


def _find(statement: Statement) -> Steps[list[RemoteEndpoint]]:
    rows = yield statement
    behind = [build_row(_Behind, row[_OWN_COLUMNS:]) for row in rows]
    endpoints = [_endpoint(row[:_OWN_COLUMNS], more) for row, more in zip(rows, behind, strict=True)]
    kept = yield from _find_kept(
        {
            endpoint.conversation_handle: endpoint.receive_sequence
            for endpoint, more in zip(endpoints, behind, strict=True)
            if more.has_fragments
        }
    )
    return [_with_kept(endpoint, kept.get(endpoint.conversation_handle)) for endpoint in endpoints]


def _endpoint(own: Row, more: _Behind) -> RemoteEndpoint:
    failure = None if more.failure_code is None else (more.failure_code, more.failure_text)
    keys = more.security, more.keys, more.by_service_master_key
    return RemoteEndpoint._make([*own, failure, {}, *keys, more.receive_token, False])


def _with_kept(endpoint: RemoteEndpoint, kept: dict[int, Kept] | None) -> RemoteEndpoint:
    """Add the stored fragments of later messages, and note whether the last message in order is an end that waits."""
    if not kept:
        return endpoint
    last = kept.pop(endpoint.receive_sequence - 1, None)
    return endpoint._replace(kept=kept, is_end_waiting=last is not None and last.content is not Content.DATA)


def _find_kept(next_of: dict[UUID, int]) -> Steps[dict[UUID, dict[int, Kept]]]:
    """Return stored parts of unreadable messages, and of the last message in order if it waits for its queue.

    `next_of` has the next number of each endpoint. Parts of later messages beyond the limits are deleted: the peer
    sends them again.
    """
    kept: dict[UUID, dict[int, Kept]] = defaultdict(dict)
    if not next_of:
        return kept
    rows = yield SQL("find_kept", (list(next_of),))
    for handle, number, least, most, firsts, behinds, size, content, token in rows:
        bounds = tuple(chain.from_iterable(zip(firsts, behinds, strict=True)))
        fragments = most if least == most else 0  # contradicting counts belong to no message
        kept[handle][number] = Kept(fragments, bounds, size, Content(content), token)
    yield from _drop_impossible(next_of, kept)
    return kept


def _drop_impossible(next_of: dict[UUID, int], kept: dict[UUID, dict[int, Kept]]) -> Steps[None]:
    dropped = []
    for handle, next_number in next_of.items():
        behind = {number: one for number, one in kept[handle].items() if number >= next_number}
        for number in impossible(next_number, behind):
            dropped.append((handle, number))
            del kept[handle][number]
    if dropped:
        yield SQL("drop_impossible", ([handle for handle, _ in dropped], [number for _, number in dropped]))


def lock_shared(handles: Sequence[UUID]) -> Steps[tuple[set[UUID], set[UUID]]]:
    """Lock those endpoints that no session is ending or moving. Returns them, and the handles that are gone.

    Waits for no lock, and does not disturb senders on them.
    """
    rows = yield SQL("lock_shared", (list(handles),))
    free = {handle for (handle,) in rows}
    return free, (yield from find_gone([handle for handle in handles if handle not in free]))


def find_gone(handles: Sequence[UUID]) -> Steps[set[UUID]]:
    """Return those of these endpoints that no longer exist."""
    if not handles:
        return set()
    rows = yield SQL("find_gone", (list(handles),))
    return set(handles) - {handle for (handle,) in rows}


def lock_alone(handles: Sequence[UUID]) -> Steps[set[UUID]]:
    """Lock, for writing, those of these endpoints whose row no other session has locked. Returns their handles."""
    if not handles:
        return set()
    rows = yield SQL("lock_alone", (list(handles),))
    return {handle for (handle,) in rows}


def groups_of(handles: list[UUID]) -> Steps[dict[UUID, UUID]]:
    """Return the conversation groups of these endpoints."""
    rows = yield SQL("groups_of", (handles,))
    return dict(rows)


def groups_left(groups: Collection[UUID]) -> Steps[set[UUID]]:
    """Return those of these groups that still exist."""
    rows = yield SQL("groups_left", (list(groups),))
    return {group for (group,) in rows}
