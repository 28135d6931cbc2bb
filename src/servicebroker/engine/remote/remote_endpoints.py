"""Endpoints whose peer is in another instance: their identity, and the progress of sending and receiving."""

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
    """An endpoint whose peer is in another instance; values named `far_` are the peer's.

    Attributes:
        routed_broker: the broker identifier that the route names, if any.
        is_remote: the conversation is claimed: messages were sent to another instance, or are about to be.
        is_acknowledged: the peer has acknowledged a message.
        first: the lowest number in the transmission queue; `send_sequence` if no message waits.
        send_sequence: the number of the next SEND.
        receive_sequence: the next number to arrive.
        failure: code and text of the Error for the peer.
        kept: the stored parts of messages from `receive_sequence` on, by number.
        security: the security mode; None while undecided.
        keys: the session keys, encrypted by the database's master key.
        by_service_master_key: the database's master key, encrypted by the service master key.
        receive_token: the token of the last message that arrived in order.
        is_end_waiting: the peer has ended, and its EndDialog or Error is beside a queue that is off.
    """

    conversation_handle: UUID
    conversation_id: UUID
    is_initiator: bool
    database_id: int
    own_broker: UUID
    is_enabled: bool
    own_service: str
    far_service: str
    peer_broker: str | None
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
    receive_token: bytes | None = None
    is_end_waiting: bool = False

    @property
    def is_end_unsent(self) -> bool:
        """True if this side has ended without sending a message: all of them were delayed and then cancelled."""
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
    """Return these endpoints, without those whose peer is in this instance."""
    return _find(
        Statement(
            "remote_endpoints.find_by_handle",
            _SELECT + "where e.conversation_handle = any ($1) and e.far_handle is null",
            (list(handles),),
        )
    )


def find_by_conversation(keys: Sequence[tuple[UUID, bool]]) -> Steps[list[RemoteEndpoint]]:
    """Return the endpoints with these conversation ids and sides, without those whose peer is in this instance."""
    return _find(
        Statement(
            "remote_endpoints.find_by_conversation",
            _SELECT + "where (e.conversation_id, e.is_initiator) in (select * from unnest($1::uuid[], $2::boolean[])) "
            "and e.far_handle is null",
            ([conversation for conversation, _ in keys], [is_initiator for _, is_initiator in keys]),
        )
    )


class _LastColumns(NamedTuple):
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
    behind = [build_row(_LastColumns, row[_OWN_COLUMNS:]) for row in rows]
    endpoints = [_endpoint(row[:_OWN_COLUMNS], more) for row, more in zip(rows, behind, strict=True)]
    kept_messages = yield from _find_kept(
        {
            endpoint.conversation_handle: endpoint.receive_sequence
            for endpoint, more in zip(endpoints, behind, strict=True)
            if more.has_fragments
        }
    )
    return [_with_kept(endpoint, kept_messages.get(endpoint.conversation_handle)) for endpoint in endpoints]


def _endpoint(own: Row, more: _LastColumns) -> RemoteEndpoint:
    failure = None if more.failure_code is None else (more.failure_code, more.failure_text)
    keys = more.security, more.keys, more.by_service_master_key
    return RemoteEndpoint._make([*own, failure, {}, *keys, more.receive_token, False])


def _with_kept(endpoint: RemoteEndpoint, kept_messages: dict[int, Kept] | None) -> RemoteEndpoint:
    """Return the endpoint with the stored parts of later messages and `is_end_waiting`."""
    if not kept_messages:
        return endpoint
    last = kept_messages.pop(endpoint.receive_sequence - 1, None)
    return endpoint._replace(kept=kept_messages, is_end_waiting=last is not None and last.content is not Content.DATA)


def _find_kept(next_of: dict[UUID, int]) -> Steps[dict[UUID, dict[int, Kept]]]:
    """Return stored parts of messages that are not in the queue: incomplete ones, and the last one beside its queue.

    `next_of` has the `receive_sequence` of each endpoint. Parts of later messages beyond the limits are deleted: the
    peer sends them again.
    """
    kept_messages: dict[UUID, dict[int, Kept]] = defaultdict(dict)
    if not next_of:
        return kept_messages
    rows = yield SQL("find_kept", (list(next_of),))
    for handle, number, least, most, firsts, behinds, size, content, token in rows:
        bounds = tuple(chain.from_iterable(zip(firsts, behinds, strict=True)))
        fragments = most if least == most else 0  # the parts disagree on the number of fragments
        kept_messages[handle][number] = Kept(fragments, bounds, size, Content(content), token)
    yield from _drop_impossible(next_of, kept_messages)
    return kept_messages


def _drop_impossible(next_of: dict[UUID, int], kept_messages: dict[UUID, dict[int, Kept]]) -> Steps[None]:
    """Delete the parts of messages that are beyond the limits (`impossible`), also from `kept`."""
    dropped = []
    for handle, next_number in next_of.items():
        behind = {number: message for number, message in kept_messages[handle].items() if number >= next_number}
        for number in impossible(next_number, behind):
            dropped.append((handle, number))
            del kept_messages[handle][number]
    if dropped:
        yield SQL("drop_impossible", ([handle for handle, _ in dropped], [number for _, number in dropped]))


def lock_shared(handles: Sequence[UUID]) -> Steps[tuple[set[UUID], set[UUID]]]:
    """Lock these endpoints, shared, without waiting. Returns the locked handles, and those without an endpoint.

    Endpoints that a session is ending or moving are skipped. SENDs on locked endpoints do not wait.
    """
    rows = yield SQL("lock_shared", (list(handles),))
    free = {handle for (handle,) in rows}
    return free, (yield from find_gone([handle for handle in handles if handle not in free]))


def find_gone(handles: Sequence[UUID]) -> Steps[set[UUID]]:
    """Return the handles that have no endpoint any more."""
    if not handles:
        return set()
    rows = yield SQL("find_gone", (list(handles),))
    return set(handles) - {handle for (handle,) in rows}


def find_in_queues(handles: Sequence[UUID], queues: Sequence[int]) -> Steps[set[UUID]]:
    """Return those of the endpoints that belong to one of the queues."""
    rows = yield SQL("find_in_queues", (handles, queues))
    return {handle for (handle,) in rows}


def lock_alone(handles: Sequence[UUID]) -> Steps[set[UUID]]:
    """Lock these endpoints for writing, without those that other sessions have locked. Returns the locked handles."""
    if not handles:
        return set()
    rows = yield SQL("lock_alone", (list(handles),))
    return {handle for (handle,) in rows}


def groups_of(handles: list[UUID]) -> Steps[dict[UUID, UUID]]:
    """Return the conversation group of each endpoint."""
    rows = yield SQL("groups_of", (handles,))
    return dict(rows)


def existing_groups(groups: Collection[UUID]) -> Steps[set[UUID]]:
    """Return the groups that still exist."""
    rows = yield SQL("existing_groups", (list(groups),))
    return {group for (group,) in rows}
