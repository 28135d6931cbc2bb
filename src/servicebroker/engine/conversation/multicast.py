"""SEND ON CONVERSATION (h1, h2, ...): one message on several conversations, or on none. The body is stored once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, Usage
from servicebroker.engine.conversation import enqueue, shared_bodies
from servicebroker.engine.conversation.endpoints import Endpoint, find_endpoint, find_endpoints, lock_parking
from servicebroker.engine.conversation.send import (
    check_delay,
    check_own_side,
    deliver_or_park,
    find_peer_usages,
    find_refusal,
)
from servicebroker.engine.delivery.opening import lock_service
from servicebroker.engine.delivery.transmission import discard
from servicebroker.engine.security.authorization import authorize, conversation
from servicebroker.model.arguments import MAX_BODY_BYTES
from servicebroker.model.states import EndpointState
from servicebroker.operations.send import Send
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class _DecisionKey(NamedTuple):
    """The facts that decide whether a peer accepts the message. Conversations with equal facts are checked once.

    `usage` is that of the peer's contract. The others decide the permission to send, which only an initiator needs.
    """

    usage: Usage | None
    is_initiator: bool
    owner_id: int
    acts_as: int | None
    peer_service_id: int


_Decisions: TypeAlias = dict[_DecisionKey, bool]


def send_multicast(
    catalog: Catalog,
    operation: Send[list[int]],
    *,
    now: datetime,
    maximum_body: int = MAX_BODY_BYTES,
) -> Steps[list[int]]:
    """SEND one message on each of these conversations. Returns the sequence numbers, in the order of the handles.

    If one handle is invalid, no message is sent. If a peer refuses the message, its conversation gets an Error and the
    others get the message.
    """
    content = operation.content(maximum_body)
    handles, message_type, until = operation.handles, operation.message_type, operation.due(now)
    if catalog.user is not None:
        yield from authorize(catalog.user, Send.permission, conversation(*handles))
    decisions: _Decisions = {}
    yield from _lock(catalog, handles, message_type, content, decisions, now, until)
    endpoints = yield from find_endpoints(handles)
    near = {}
    for handle in handles:
        near[handle] = yield from check_own_side(catalog, endpoints[handle], message_type, now)
        if until is not None:
            check_delay(endpoints[handle], until)
    body_id = None if content is None else (yield from shared_bodies.store(content))
    sent: dict[UUID, int] = {}
    if until is None:
        sent = yield from _deliver(catalog, list(endpoints.values()), message_type, content, decisions, body_id)
    for handle in handles:
        if handle in sent:
            continue
        endpoint = endpoints[handle]
        if endpoint.peer_handle in endpoints:  # the other end may have failed this one
            endpoint = yield from find_endpoint(handle)
        if endpoint.state == EndpointState.ERROR:
            sent[handle] = yield from discard(endpoint, 1)
        else:
            sent[handle] = yield from deliver_or_park(
                catalog, endpoint, near[handle], message_type, [content], now, body_id, until=until
            )
    if body_id is not None:
        yield shared_bodies.remove_if_unread(body_id)
    return [sent[handle] for handle in handles]


def _lock(
    catalog: Catalog,
    handles: Sequence[UUID],
    message_type: str,
    content: bytes | None,
    decisions: _Decisions,
    now: datetime,
    until: datetime | None,
) -> Steps[None]:
    """Take every lock that a SEND on any of the handles takes, in the order common to all statements."""
    endpoints = yield from find_endpoints(handles)
    wanted = list(handles)
    for handle in handles:
        endpoint = endpoints[handle]
        yield from check_own_side(catalog, endpoint, message_type, now)
        if until is not None:
            check_delay(endpoint, until)
        if endpoint.peer_handle and not (yield from _accepted(catalog, endpoint, message_type, content, decisions)):
            wanted.append(endpoint.peer_handle)  # the Error goes to both sides
    for service in sorted({endpoint.far_service for endpoint in endpoints.values() if not endpoint.has_peer}):
        yield lock_service(service)
    if until is not None or any(endpoint.is_blocked for endpoint in endpoints.values()):
        yield lock_parking()
    yield SQL("lock", (wanted,))


def _deliver(
    catalog: Catalog,
    endpoints: list[Endpoint],
    message_type: str,
    content: bytes | None,
    decisions: _Decisions,
    body_id: int | None,
) -> Steps[dict[UUID, int]]:
    """Deliver directly where possible, with one statement for each queue. Returns the sequence numbers, by handle."""
    handles_by_path: dict[tuple[int, int, str, int], list[UUID]] = defaultdict(list)
    for endpoint in endpoints:
        if not endpoint.has_peer or endpoint.is_blocked or endpoint.peer_has_ended or endpoint.retains:
            continue
        if (yield from _accepted(catalog, endpoint, message_type, content, decisions)):
            usage = (yield from find_peer_usages(catalog, endpoint))[message_type]
            path = (endpoint.peer_queue_id, usage.message_type_id, usage.validation, endpoint.catalog_version)
            handles_by_path[path].append(endpoint.conversation_handle)
    sent: dict[UUID, int] = {}
    for (queue_id, type_id, validation, version), path_handles in handles_by_path.items():
        values = (path_handles, type_id, validation, body_id, version)
        rows = yield Statement("multicast.deliver", enqueue.send_shared(queue_id), values)
        sent.update((handle, number) for handle, number, _ in rows)
    for endpoint in endpoints:
        if endpoint.conversation_handle in sent:
            catalog.count_enqueued(endpoint.peer_priority, 1)
    return sent


def _accepted(
    catalog: Catalog, endpoint: Endpoint, message_type: str, content: bytes | None, decisions: _Decisions
) -> Steps[bool]:
    """Check whether the peer accepts the message. Peers with equal facts are checked once."""
    usage = (yield from find_peer_usages(catalog, endpoint)).get(message_type)
    key = _DecisionKey(usage, endpoint.is_initiator, endpoint.owner_id, endpoint.acts_as, endpoint.peer_service_id)
    if key not in decisions:
        decisions[key] = (yield from find_refusal(catalog, endpoint, message_type, [content])) is None
    return decisions[key]
