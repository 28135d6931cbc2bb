"""RECEIVE and GET CONVERSATION GROUP; due timers and lifetimes of a queue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message
from servicebroker.model.states import EndpointState
from servicebroker.operations.receive import Receive
from servicebroker.testing.catalog import Queue
from servicebroker.testing.delivery import enqueue_error, release_due
from servicebroker.testing.memory import Endpoint, QueuedMessage, Session

_EXPIRING = (
    EndpointState.STARTED_OUTBOUND,
    EndpointState.STARTED_INBOUND,
    EndpointState.CONVERSING,
    EndpointState.DISCONNECTED_INBOUND,
)


def prepare_receive(session: Session, queue: Queue, operation: Receive) -> None:
    """Fire due events of the queue, and lock the group that WHERE names, before a RECEIVE.

    Due events are fired even if the RECEIVE is then refused.
    """
    operation.check()
    if operation.conversation_group_id is not None:
        session.lock("group", operation.conversation_group_id)
    if operation.top == 0 or not queue.is_receive_enabled:
        return
    fire_due_events(session, queue)
    release_due(session)
    handle = operation.conversation_handle
    endpoint = session.endpoints.get(handle) if handle is not None else None
    if endpoint and endpoint.service.queue is queue:
        session.lock("group", endpoint.conversation_group_id)


def receive(session: Session, queue: Queue, operation: Receive) -> list[Message]:
    """RECEIVE, after `prepare_receive`: take messages group by group. Their locks last until the transaction ends."""
    handle, group = operation.conversation_handle, operation.conversation_group_id
    is_open = queue.is_receive_enabled and operation.top != 0
    taken: list[QueuedMessage] = []
    if is_open and operation.groups > 1:
        for free_group in _lock_free_groups(session, _by_arrival(session, queue), operation.groups):
            taken += _candidates(session, queue, None, free_group)[: operation.top]
    elif is_open:
        taken = _candidates(session, queue, handle, group)[: operation.top]
    if not taken:
        _refuse_if_unreceivable(session, queue, handle, group)
    for message in taken:
        session.messages.remove(message.queuing_order)
    return [_as_message(message) for message in taken]


def get_conversation_group(session: Session, queue: Queue) -> UUID | None:
    """GET CONVERSATION GROUP: return the group that RECEIVE would take from, locked."""
    if queue.is_receive_enabled:
        fire_due_events(session, queue)
        release_due(session)
        for message in _candidates(session, queue, None, None):
            return message.conversation_group_id
    _refuse_if_unreceivable(session, queue, None, None)
    return None


def _candidates(session: Session, queue: Queue, handle: UUID | None, group: UUID | None) -> list[QueuedMessage]:
    """Return the messages that RECEIVE would take without TOP, in order, with their group locked."""
    messages = session.messages_in(queue)
    if handle is not None:
        messages = [message for message in messages if message.conversation_handle == handle]
    elif group is not None:
        messages = [message for message in messages if message.conversation_group_id == group]
    else:
        free = _lock_free_groups(session, _by_arrival(session, queue), 1)
        messages = [message for message in messages if message.conversation_group_id in free]
    return sorted(messages, key=lambda message: message.sort_key)


def _by_arrival(session: Session, queue: Queue) -> list[UUID]:
    """Return the groups of the queue's messages, ordered by their highest priority and oldest message.

    Groups that wait for a retry are left out.
    """
    free = [
        message for message in session.messages_in(queue) if not session.waits_for_retry(message.conversation_group_id)
    ]
    in_order = sorted(free, key=lambda message: (-message.priority, message.queuing_order))
    return list(dict.fromkeys(message.conversation_group_id for message in in_order))


def _lock_free_groups(session: Session, groups: Iterable[UUID], maximum: int) -> list[UUID]:
    """Lock up to `maximum` groups that no other transaction has locked."""
    return list(islice((group for group in groups if session.try_lock("group", group)), maximum))


def _refuse_if_unreceivable(session: Session, queue: Queue, handle: UUID | None, group: UUID | None) -> None:
    """Raise if the queue, conversation or group cannot be received from; an empty queue is not an error."""
    if not queue.is_receive_enabled:
        raise BrokerError(9617, queue.name)
    if handle is not None:
        endpoint = session.endpoints.get(handle)
        if endpoint is None or endpoint.service.queue is not queue:
            raise BrokerError(8426, handle)
    if group is not None:
        service = session.groups.get(group)
        if service is None or service.queue is not queue:
            raise BrokerError(8436, group)


def _as_message(message: QueuedMessage) -> Message:
    contract, kind = message.contract, message.message_type
    return Message(
        0,
        message.priority,
        message.queuing_order,
        message.conversation_group_id,
        message.conversation_handle,
        message.message_sequence_number,
        message.service.name,
        message.service.service_id,
        "" if contract.is_dropped else contract.name,
        contract.service_contract_id,
        "" if kind.is_dropped else kind.name,
        kind.message_type_id,
        message.validation,
        message.message_body,
        message.message_enqueue_time,
    )


# ---------------------------------------------------------------- due events


def fire_due_events(session: Session, queue: Queue) -> None:
    """Fire due timers and end due lifetimes of a queue. Locked endpoints are skipped until the next call."""
    for endpoint in _endpoints(session, queue):
        timer = endpoint.dialog_timer
        if timer and timer <= session.now and session.try_lock("endpoint", endpoint.conversation_handle):
            endpoint = session.update(endpoint, dialog_timer=None)
            session.enqueue(endpoint, endpoint.broker.message_types[names.DIALOG_TIMER], rank=0)
    for endpoint in _endpoints(session, queue):
        if _is_expired(endpoint, session.now) and session.try_lock("endpoint", endpoint.conversation_handle):
            session.drop_undelivered(endpoint.conversation_handle)
            expired = BrokerError(8489)
            endpoint = session.update(endpoint, state=EndpointState.ERROR, dialog_timer=None)
            enqueue_error(session, endpoint, -expired.number, expired.text)


def is_due(endpoint: Endpoint, now: datetime) -> bool:
    """True if the timer or the lifetime of an endpoint is due."""
    return bool(endpoint.dialog_timer and endpoint.dialog_timer <= now) or _is_expired(endpoint, now)


def _is_expired(endpoint: Endpoint, now: datetime) -> bool:
    return endpoint.state in _EXPIRING and endpoint.lifetime <= now


def next_due(session: Session, queue: Queue) -> datetime | None:
    """Return the time of the next timer, lifetime or retry of a queue, or of a delayed message; None without any."""
    endpoints = _endpoints(session, queue)
    times = [endpoint.dialog_timer for endpoint in endpoints if endpoint.dialog_timer]
    times += [endpoint.lifetime for endpoint in endpoints if endpoint.state in _EXPIRING]
    times += [
        session.memory.retry_at[message.conversation_group_id]
        for message in session.messages_in(queue)
        if session.waits_for_retry(message.conversation_group_id)
    ]
    times += [message.delayed_until for message in session.waiting.all() if message.delayed_until]
    return min((time for time in times if time > session.now), default=None)


def _endpoints(session: Session, queue: Queue) -> list[Endpoint]:
    return [endpoint for endpoint in session.endpoints.all() if endpoint.service.queue is queue]
