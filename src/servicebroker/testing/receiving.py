"""RECEIVE, GET CONVERSATION GROUP, and what becomes due in a queue: timers and lifetimes."""

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
from servicebroker.testing.delivery import tell_error
from servicebroker.testing.rows import Endpoint, Queued, Session

_EXPIRING = (
    EndpointState.STARTED_OUTBOUND,
    EndpointState.STARTED_INBOUND,
    EndpointState.CONVERSING,
    EndpointState.DISCONNECTED_INBOUND,
)


def look(session: Session, queue: Queue, operation: Receive) -> None:
    """Before a RECEIVE: do what is due in the queue, and lock the group that WHERE asks for.

    What is due is done also when the RECEIVE is then refused.
    """
    operation.check()
    if operation.conversation_group_id is not None:
        session.lock("group", operation.conversation_group_id)
    if operation.top == 0 or not queue.is_receive_enabled:
        return
    serve(session, queue)
    handle = operation.conversation_handle
    endpoint = session.endpoints.get(handle) if handle is not None else None
    if endpoint and endpoint.service.queue is queue:
        session.lock("group", endpoint.conversation_group_id)


def receive(session: Session, queue: Queue, operation: Receive) -> list[Message]:
    """RECEIVE, after `look`: messages of one group after the other; their locks are held until the transaction ends."""
    handle, group = operation.conversation_handle, operation.conversation_group_id
    is_open = queue.is_receive_enabled and operation.top != 0
    taken: list[Queued] = []
    if is_open and operation.groups > 1:
        for each in _free(session, _by_arrival(session, queue), operation.groups):
            taken += _candidates(session, queue, None, each)[: operation.top]
    elif is_open:
        taken = _candidates(session, queue, handle, group)[: operation.top]
    if not taken:
        _check(session, queue, handle, group)
    for message in taken:
        session.messages.remove(message.queuing_order)
    return [_row(message) for message in taken]


def get_conversation_group(session: Session, queue: Queue) -> UUID | None:
    """GET CONVERSATION GROUP: the group that RECEIVE would take from, locked."""
    if queue.is_receive_enabled:
        serve(session, queue)
        for message in _candidates(session, queue, None, None):
            return message.conversation_group_id
    _check(session, queue, None, None)
    return None


def _candidates(session: Session, queue: Queue, handle: UUID | None, group: UUID | None) -> list[Queued]:
    """What RECEIVE would take, in order, without TOP; the group is locked."""
    found = session.messages_in(queue)
    if handle is not None:
        found = [message for message in found if message.conversation_handle == handle]
    elif group is not None:
        found = [message for message in found if message.conversation_group_id == group]
    else:
        free = _free(session, _by_arrival(session, queue), 1)
        found = [message for message in found if message.conversation_group_id in free]
    return sorted(found, key=lambda message: message.place)


def _by_arrival(session: Session, queue: Queue) -> list[UUID]:
    """The groups of the queue's messages, first that of the oldest message of the highest priority."""
    in_order = sorted(session.messages_in(queue), key=lambda message: (-message.priority, message.queuing_order))
    return list(dict.fromkeys(message.conversation_group_id for message in in_order))


def _free(session: Session, groups: Iterable[UUID], most: int) -> list[UUID]:
    """Lock so many of the groups that nobody else has locked."""
    return list(islice((group for group in groups if session.try_lock("group", group)), most))


def _check(session: Session, queue: Queue, handle: UUID | None, group: UUID | None) -> None:
    """Tell an empty queue from one that cannot be received from."""
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


def _row(message: Queued) -> Message:
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


# ---------------------------------------------------------------- what is due


def serve(session: Session, queue: Queue) -> None:
    """Fire timers and end lifetimes of a queue that are due; endpoints in use are left for the next time."""
    for endpoint in _endpoints(session, queue):
        timer = endpoint.dialog_timer
        if timer and timer <= session.now and session.try_lock("endpoint", endpoint.conversation_handle):
            endpoint = session.update(endpoint, dialog_timer=None)
            session.enqueue(endpoint, endpoint.broker.message_types[names.DIALOG_TIMER], rank=0)
    for endpoint in _endpoints(session, queue):
        if _is_over(endpoint, session.now) and session.try_lock("endpoint", endpoint.conversation_handle):
            session.drop_waiting(endpoint.conversation_handle)
            expired = BrokerError(8489)
            endpoint = session.update(endpoint, state=EndpointState.ERROR, dialog_timer=None)
            tell_error(session, endpoint, -expired.number, expired.text)


def is_due(endpoint: Endpoint, now: datetime) -> bool:
    """Whether its timer or its lifetime is due."""
    return bool(endpoint.dialog_timer and endpoint.dialog_timer <= now) or _is_over(endpoint, now)


def _is_over(endpoint: Endpoint, now: datetime) -> bool:
    return endpoint.state in _EXPIRING and endpoint.lifetime <= now


def next_due(session: Session, queue: Queue) -> datetime | None:
    """When the next timer or lifetime of a queue is due."""
    endpoints = _endpoints(session, queue)
    times = [endpoint.dialog_timer for endpoint in endpoints if endpoint.dialog_timer]
    times += [endpoint.lifetime for endpoint in endpoints if endpoint.state in _EXPIRING]
    return min((time for time in times if time > session.now), default=None)


def _endpoints(session: Session, queue: Queue) -> list[Endpoint]:
    return [endpoint for endpoint in session.endpoints.all() if endpoint.service.queue is queue]
