"""BEGIN DIALOG, BEGIN CONVERSATION TIMER and MOVE CONVERSATION."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from servicebroker.model.arguments import CURRENT_DATABASE
from servicebroker.model.errors import BrokerError
from servicebroker.model.states import EndpointState, Event, after
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog, RepeatedHandle
from servicebroker.operations.move import MoveConversation
from servicebroker.testing.catalog import Broker, Service
from servicebroker.testing.endpoints import remove_empty_group
from servicebroker.testing.memory import Endpoint, IdempotencyKey, Session


def begin_dialog(session: Session, broker: Broker, operation: BeginDialog) -> UUID:
    """BEGIN DIALOG: create an endpoint in the state STARTED_OUTBOUND, lock its group, and return its handle."""
    operation.check()
    from_service, contract, instance = operation.from_service, operation.contract, operation.target_broker
    if from_service not in broker.services:
        raise BrokerError(8423, from_service)
    if contract not in broker.contracts:
        raise BrokerError(8425, contract)
    service = broker.services[from_service]
    related = _related_group(session, service, operation.related_conversation, operation.related_conversation_group)
    key = None if operation.idempotency_key is None else (service.service_id, operation.idempotency_key)
    if key is not None:
        session.lock("idempotency key", key)
        first = session.keys.get(key)
        if first is not None and first.expires_at > session.now:
            return RepeatedHandle.of(first.handle)
    handle, conversation, new_group = session.memory.identify(None)
    if key is not None:
        session.keys.put(key, IdempotencyKey(handle, operation.key_expiry(session.now)))
    group = related or new_group
    if session.groups.get(group) is None:
        session.groups.put(group, service)
    session.lock("group", group)
    session.lock("endpoint", handle)
    endpoint = Endpoint(
        handle,
        conversation,
        group,
        is_initiator=True,
        service=service,
        contract=broker.contracts[contract],
        priority=operation.priority or broker.level(broker.contracts[contract], service, operation.to_service),
        chosen_priority=operation.priority,
        state=EndpointState.STARTED_OUTBOUND,
        lifetime=operation.expiry(session.now),
        far_service=operation.to_service,
        far_broker_instance=str(broker.service_broker_guid) if instance == CURRENT_DATABASE else instance,
    )
    session.endpoints.put(handle, endpoint)
    return handle


def _related_group(session: Session, service: Service, conversation: UUID | None, group: UUID | None) -> UUID | None:
    """Return the group that the new conversation joins, locked; None for a new group."""
    if conversation is not None:
        group = session.endpoint(conversation).conversation_group_id
    if group is None:
        return None
    session.lock("group", group)
    owner = session.groups.get(group)
    if owner:
        session.lock("row of the group", group, shared=True)
        if owner is not service:
            clause = "RELATED_CONVERSATION" if conversation is not None else "RELATED_CONVERSATION_GROUP"
            raise BrokerError(9610, service.name, owner.name, clause, conversation or group)
    return group


def begin_conversation_timer(session: Session, operation: BeginConversationTimer) -> None:
    """BEGIN CONVERSATION TIMER: set the only timer of an endpoint."""
    operation.check()
    endpoint = session.endpoint(operation.handle)
    session.lock("group", endpoint.conversation_group_id)
    after(endpoint.state, Event.TIMER)
    fires = session.now + timedelta(seconds=operation.timeout)
    if fires > endpoint.lifetime:
        raise BrokerError(8410)
    session.update(endpoint, dialog_timer=fires)


def move_conversation(session: Session, operation: MoveConversation) -> None:
    """MOVE CONVERSATION to another group of its service. Its messages get a new order of arrival there."""
    operation.check()
    handle, group = operation.handle, operation.group
    endpoint = session.endpoint(handle)
    old_group = endpoint.conversation_group_id
    session.lock("move", handle)
    session.lock("group", old_group)
    session.lock("group", group)
    session.lock("endpoint", handle)
    peer = session.other_side(endpoint)
    if peer:
        session.lock("endpoint", peer.conversation_handle)
    after(endpoint.state, Event.MOVE)
    service = session.groups.get(group)
    if service is None:
        raise BrokerError(8436, group)
    session.lock("row of the group", group, shared=True)
    if service is not endpoint.service:
        raise BrokerError(8439, group)
    if group == old_group:
        return
    session.update(endpoint, conversation_group_id=group)
    messages = [message for message in session.messages.all() if message.conversation_handle == handle]
    session.requeue(sorted(messages, key=lambda message: message.sort_key), conversation_group_id=group)
    remove_empty_group(session, old_group)
