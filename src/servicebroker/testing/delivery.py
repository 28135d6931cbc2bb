"""SEND, and the delivery of messages to the peer's queue, or into the transmission queue if that is impossible now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from servicebroker.model import names, waiting
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import DelayedMessage, error_body
from servicebroker.model.rejection import Rejection, invalid_body, unknown_type, wrong_direction
from servicebroker.model.states import REMOVED, TRANSITIONS, EndpointState, Event, after, at
from servicebroker.operations.delayed import CancelDelayed, DelayedMessages
from servicebroker.operations.send import Send, SendBatch
from servicebroker.testing.catalog import Broker, Service
from servicebroker.testing.endpoints import close_endpoint, remove_endpoint
from servicebroker.testing.memory import Endpoint, Memory, Session, UndeliveredMessage


def send(session: Session, operation: Send[Any]) -> Any:
    """SEND one message on one or several conversations. Returns the sequence number, or a list of them."""
    content, handles, message_type = operation.content(), operation.handles, operation.message_type
    until = operation.due(session.now)
    if operation.is_single:
        return _send(session, handles[0], message_type, [content], until)
    return _send_multicast(session, handles, message_type, content, until)


def _send_multicast(
    session: Session, handles: Sequence[UUID], message_type: str, content: bytes | None, until: datetime | None
) -> list[int]:
    """SEND one message on each of the conversations, or on none. Returns the sequence numbers."""
    for endpoint in [session.endpoint(handle) for handle in handles]:
        _refuse(endpoint, message_type, session, until)
    for handle in sorted(handles):
        session.lock("endpoint", handle)
    numbers = []
    for handle in handles:
        endpoint = session.endpoint(handle)
        numbers.append(endpoint.send_sequence)
        if endpoint.state is EndpointState.ERROR:  # a SEND of this loop on the conversation's other side has failed it
            session.update(endpoint, send_sequence=endpoint.send_sequence + 1)
        else:
            _send(session, handle, message_type, [content], until)
    return numbers


def send_batch(session: Session, operation: SendBatch) -> int:
    """SEND messages of one type on a conversation. Returns the first sequence number."""
    contents = operation.contents()
    return _send(session, operation.handle, operation.message_type, contents, operation.due(session.now))


def _send(
    session: Session, handle: UUID, message_type: str, contents: list[bytes | None], until: datetime | None
) -> int:
    endpoint = session.endpoint(handle)
    _refuse(endpoint, message_type, session, until)
    session.lock("endpoint", handle)
    first = endpoint.send_sequence
    if until is not None or session.is_delayed(handle):
        _delay(session, endpoint, message_type, contents, until)
    elif endpoint.peer_handle is not None or _open_and_deliver(session, endpoint, message_type, contents):
        _deliver(session, session.endpoint(handle), message_type, contents)
    return first


def _delay(
    session: Session, endpoint: Endpoint, message_type: str, contents: list[bytes | None], until: datetime | None
) -> None:
    """Delay messages until a time, or behind earlier delayed messages. Drop them if the peer has ended."""
    peer = session.peer(endpoint)
    if peer and peer.state in (EndpointState.DISCONNECTED_OUTBOUND, EndpointState.CLOSED):
        session.update(endpoint, send_sequence=endpoint.send_sequence + len(contents))
    else:
        park(session, endpoint, message_type, contents, waiting.DELAYED, until=until)


def _open_and_deliver(session: Session, endpoint: Endpoint, message_type: str, contents: list[bytes | None]) -> bool:
    """Create the target's side of a new conversation.

    Returns False if the conversation fails, or its messages have to wait.
    """
    refusal, wait_reason = _open_target(session, endpoint)
    if refusal:
        _fail(session, endpoint, refusal)
    elif wait_reason:
        park(session, endpoint, message_type, contents, wait_reason)
    else:
        return deliver_waiting(session, session.endpoint(endpoint.conversation_handle))
    return False


def _deliver(session: Session, endpoint: Endpoint, message_type: str, contents: list[bytes | None]) -> None:
    """Put messages into the peer's queue, if the peer accepts them and nothing delays them."""
    first = endpoint.send_sequence
    peer = session.peer(endpoint)
    assert peer is not None  # an endpoint in state CO that loses its peer loses the address too
    if peer.state in (EndpointState.DISCONNECTED_OUTBOUND, EndpointState.CLOSED):
        session.update(endpoint, send_sequence=first + len(contents))  # the peer does not receive any more
        return
    for number, content in enumerate(contents, first):
        if rejected := _rejection(endpoint, peer, message_type, number, content):
            if number > first:
                _deliver(session, endpoint, message_type, contents[: number - first])
            _fail(session, endpoint, *rejected)
            return
    if wait_reason := obstacle(endpoint, peer):
        park(session, endpoint, message_type, contents, wait_reason)
    elif not endpoint.is_parked or deliver_waiting(session, endpoint):
        type_of_peer, _, _ = peer.contract.usages[message_type]
        for number, content in enumerate(contents, first):
            session.enqueue(peer, type_of_peer, content, number=number)
        session.update(endpoint, send_sequence=first + len(contents))


def _refuse(endpoint: Endpoint, message_type: str, session: Session, until: datetime | None) -> None:
    """Raise the errors of the sender's own side: state first, then message type, direction and delay."""
    after(at(endpoint.state, endpoint.lifetime, session.now), Event.SEND)
    if message_type not in endpoint.contract.usages:
        if message_type not in endpoint.broker.message_types:
            raise BrokerError(8428, message_type)
        contracts = endpoint.broker.contracts.values()
        suitable = sorted(contract.name for contract in contracts if message_type in contract.usages)
        raise BrokerError(8431, message_type, hint=names.advise_contract(endpoint.contract.name, suitable))
    if not endpoint.contract.allows(message_type, initiator=endpoint.is_initiator):
        raise BrokerError(8432 if endpoint.is_initiator else 8434, message_type)
    if until is not None and until > endpoint.lifetime:
        raise BrokerError(
            402, "the delay", f"one until {until}", f"a time before the lifetime ends, {endpoint.lifetime}"
        )


def _rejection(
    sender: Endpoint, peer: Endpoint, message_type: str, number: int, content: bytes | None
) -> Rejection | None:
    """Return why the peer rejects the message, None if it accepts it."""
    if message_type not in peer.contract.usages:
        return unknown_type(message_type, is_known=message_type in peer.broker.message_types)
    if not peer.contract.allows(message_type, initiator=sender.is_initiator):
        return wrong_direction(message_type, from_initiator=sender.is_initiator)
    type_of_peer, _, _ = peer.contract.usages[message_type]
    return invalid_body(
        message_type,
        type_of_peer.validation,
        content,
        sender.conversation_id,
        number,
        from_initiator=sender.is_initiator,
    )


def obstacle(endpoint: Endpoint, peer: Endpoint | None) -> str:
    """Return why no message can be delivered to the peer now; "" if messages can."""
    if not endpoint.broker.is_enabled:
        return waiting.SENDER_DISABLED
    if peer and not peer.broker.is_enabled:
        return waiting.TARGET_DISABLED
    if peer and not peer.service.queue.is_enqueue_enabled:
        return waiting.TARGET_QUEUE_OFF
    return ""


def park(
    session: Session,
    endpoint: Endpoint,
    message_type: str,
    contents: list[bytes | None],
    wait_reason: str,
    end: str = "",
    until: datetime | None = None,
) -> None:
    """Put messages into the transmission queue. With `until`, they are delayed until that time."""
    handle = endpoint.conversation_handle
    for number, content in enumerate(contents, endpoint.send_sequence):
        message = UndeliveredMessage(handle, number, message_type, content, wait_reason, session.now, end, until)
        session.waiting.put((handle, number), message)
    state = EndpointState.DISCONNECTED_OUTBOUND if end else EndpointState.CONVERSING
    session.update(endpoint, send_sequence=endpoint.send_sequence + len(contents), state=state, is_parked=True)


# ---------------------------------------------------------------- the target's side of a new conversation


def _open_target(session: Session, initiator: Endpoint) -> tuple[BrokerError | None, str]:
    """Create the target's endpoint.

    Returns the error that fails the conversation, or the reason why its messages wait.
    """
    if not initiator.is_initiator or (initiator.send_sequence and not never_opened(session, initiator)):
        return BrokerError(8462), ""
    if wait_reason := obstacle(initiator, None):
        return None, wait_reason
    service = _find_service(session.memory, initiator)
    if service is None:
        return _missing_service(session.memory, initiator)
    contract = service.contracts.get(initiator.contract.name)
    if initiator.contract.name not in service.broker.contracts:
        return BrokerError(8425, initiator.contract.name), ""
    if contract is None:
        return BrokerError(8408, initiator.far_service, initiator.contract.name), ""
    if not service.queue.is_enqueue_enabled:
        return None, waiting.TARGET_QUEUE_OFF
    chosen = initiator.chosen_priority if service.broker is initiator.broker else None
    handle, _, group = session.memory.identify(initiator.conversation_handle)
    target = Endpoint(
        handle,
        initiator.conversation_id,
        group,
        is_initiator=False,
        service=service,
        contract=contract,
        priority=chosen or service.broker.level(contract, service, initiator.service.name),
        state=EndpointState.CONVERSING,
        lifetime=initiator.lifetime,
        far_service=initiator.service.name,
        far_broker_instance=str(initiator.broker.service_broker_guid),
        peer_handle=initiator.conversation_handle,
    )
    session.endpoints.put(handle, target)
    session.groups.put(group, service)
    session.lock("endpoint", handle)
    session.update(
        initiator,
        peer_handle=handle,
        state=EndpointState.CONVERSING if initiator.state is EndpointState.STARTED_OUTBOUND else initiator.state,
        far_broker_instance=str(service.broker.service_broker_guid),
    )
    return None, ""


def _missing_service(memory: Memory, initiator: Endpoint) -> tuple[BrokerError | None, str]:
    """Return an error if the addressed database exists without the service; otherwise the reason to wait."""
    enabled = [broker for broker in memory.brokers if broker.is_enabled]
    if initiator.far_broker_instance in [str(broker.service_broker_guid) for broker in enabled]:
        return BrokerError(8490, initiator.far_service), ""
    is_elsewhere = any(initiator.far_service in broker.services for broker in enabled)
    return None, waiting.INSTANCE_NOT_HERE if is_elsewhere else waiting.NOT_HERE


def _find_service(memory: Memory, initiator: Endpoint) -> Service | None:
    """Return the service, first from the initiator's own database; None without one.

    An addressed broker instance excludes others.
    """
    for broker in sorted(memory.brokers, key=lambda broker: (broker is not initiator.broker, broker.database_id)):
        fits = initiator.far_broker_instance in (None, str(broker.service_broker_guid))
        if broker.is_enabled and fits and initiator.far_service in broker.services:
            return broker.services[initiator.far_service]
    return None


def never_opened(session: Session, endpoint: Endpoint) -> bool:
    """True if message 0 is still undelivered, so that no target endpoint was ever created."""
    return session.waiting.get((endpoint.conversation_handle, 0)) is not None


# ---------------------------------------------------------------- undelivered messages


def deliver_waiting(session: Session, endpoint: Endpoint) -> bool:
    """Deliver the undelivered messages of an endpoint that precede the first delayed one. Nothing blocks delivery.

    Returns False if one of them fails the conversation.
    """
    peer = session.peer(endpoint)
    assert peer is not None
    end, failure = "", None
    for message in session.deliverable(endpoint.conversation_handle):
        number = message.message_sequence_number
        if not message.end:
            failure = _rejection(endpoint, peer, message.message_type, number, message.message_body)
        if failure:
            session.drop_undelivered(endpoint.conversation_handle, number)
            break
        session.waiting.remove((endpoint.conversation_handle, number))
        if message.end:
            end = message.end
            kind = peer.broker.message_types[end]
        else:
            kind, _, _ = peer.contract.usages[message.message_type]
        session.enqueue(peer, kind, message.message_body, number=number, rank=1 if end == names.ERROR else 2)
    endpoint = session.update(endpoint, is_parked=bool(session.undelivered(endpoint.conversation_handle)))
    if failure:
        _fail(session, endpoint, *failure)
    elif end:
        if peer.state is EndpointState.CONVERSING:
            session.update(
                peer, state=EndpointState.ERROR if end == names.ERROR else EndpointState.DISCONNECTED_INBOUND
            )
        close_endpoint(session, endpoint)
    return failure is None


def deliver_to_service(session: Session, name: str) -> None:
    """Deliver undelivered messages for a service, oldest conversation first."""
    for message in session.waiting.all():
        if message.message_sequence_number == 0 and message.delayed_until is None:
            endpoint = session.endpoints.get(message.conversation_handle)
            if endpoint and endpoint.far_service == name:
                _open_waiting(session, endpoint)


def deliver_everything(session: Session) -> None:
    """Deliver all messages that can be delivered: first on conversations with a target, then on new ones."""
    handles = dict.fromkeys(message.conversation_handle for message in session.waiting.all())
    for opened in (True, False):
        for handle in handles:
            endpoint = session.endpoints.get(handle)
            if endpoint is None or (endpoint.peer_handle is not None) is not opened:
                continue
            if not session.deliverable(handle):
                continue
            peer = session.peer(endpoint)
            if peer and endpoint.is_parked and not obstacle(endpoint, peer):
                deliver_waiting(session, endpoint)
            elif never_opened(session, endpoint) and _should_retry(session, endpoint):
                _open_waiting(session, endpoint)


def release_due(session: Session) -> None:
    """Release due delayed messages and deliver them. Locked conversations are skipped until the next call."""
    due = [row for row in session.waiting.all() if row.delayed_until and row.delayed_until <= session.now]
    released = set()
    for message in due:
        handle = message.conversation_handle
        if session.try_lock("endpoint", handle):
            session.waiting.put(
                (handle, message.message_sequence_number), replace(message, delayed_until=None, status="")
            )
            released.add(handle)
    _deliver_released(session, released)


def _deliver_released(session: Session, handles: Iterable[UUID]) -> None:
    """Deliver messages on these conversations up to the next delayed one, as if they were sent now."""
    released = [message for handle in handles for message in session.deliverable(handle)]
    for message in released:
        key = message.conversation_handle, message.message_sequence_number
        if message.status == waiting.DELAYED:
            session.waiting.put(key, replace(message, status=""))
    if released:
        deliver_everything(session)


def find_delayed(session: Session, broker: Broker, operation: DelayedMessages) -> list[DelayedMessage]:
    """Return the delayed messages and the messages queued behind them, the next due message first."""
    operation.check()
    delayed = []
    for handle in dict.fromkeys(message.conversation_handle for message in session.waiting.all()):
        endpoint, until = session.endpoint(handle), None
        if endpoint.broker is not broker or operation.handle not in (None, handle):
            continue
        for message in session.undelivered(handle):
            until = max(until or message.delayed_until, message.delayed_until) if message.delayed_until else until
            if until:
                names_of_services = endpoint.service.name, endpoint.far_service
                size = len(message.message_body or b"")
                number, kind, sent = message.message_sequence_number, message.message_type, message.enqueue_time
                delayed.append(DelayedMessage(handle, number, kind, *names_of_services, size, sent, until))
    return sorted(delayed, key=lambda row: (row.delayed_until, row.conversation_handle, row.message_sequence_number))


def cancel_delayed(session: Session, operation: CancelDelayed) -> int:
    """Cancel one delayed message, or all of a conversation. Later messages get lower numbers. Returns the number."""
    operation.check()
    handle = operation.handle
    session.lock("endpoint", handle)
    messages = session.undelivered(session.endpoint(handle).conversation_handle)
    waiting_messages = messages[len(session.deliverable(handle)) :]
    if operation.number is None:
        cancelled = [row for row in waiting_messages if row.delayed_until and not row.end]
    else:
        number = operation.number
        cancelled = [row for row in waiting_messages if row.message_sequence_number == number and not row.end]
    if not cancelled:
        return 0
    remaining = [row for row in messages if row not in cancelled]
    first = messages[0].message_sequence_number
    session.drop_undelivered(handle)
    for number, message in enumerate(remaining, first):
        session.waiting.put((handle, number), replace(message, message_sequence_number=number))
    endpoint = session.endpoint(handle)
    session.update(endpoint, send_sequence=endpoint.send_sequence - len(cancelled), is_parked=bool(remaining))
    _deliver_released(session, [handle])
    return len(cancelled)


def _should_retry(session: Session, initiator: Endpoint) -> bool:
    """True if a service may accept the messages, or if one has no status yet: an EndDialog behind waiting messages."""
    name = initiator.far_service
    brokers = [broker for broker in session.memory.brokers if broker.is_enabled and name in broker.services]
    is_taken = any(broker.services[name].queue.is_enqueue_enabled for broker in brokers)
    is_untried = any(not message.status for message in session.undelivered(initiator.conversation_handle))
    return initiator.broker.is_enabled and (is_taken or is_untried)


def _open_waiting(session: Session, endpoint: Endpoint) -> None:
    if endpoint.peer_handle is not None:
        return
    refusal, wait_reason = _open_target(session, endpoint)
    if refusal:
        _fail(session, endpoint, refusal)
    elif wait_reason:
        for message in session.undelivered(endpoint.conversation_handle):
            key = message.conversation_handle, message.message_sequence_number
            if message.delayed_until is None:
                session.waiting.put(key, replace(message, status=wait_reason))
    else:
        deliver_waiting(session, session.endpoint(endpoint.conversation_handle))


# ---------------------------------------------------------------- errors of the broker


def _fail(session: Session, endpoint: Endpoint, error: BrokerError, at_peer: BrokerError | None = None) -> None:
    """Fail a conversation on both sides with an error of the broker. The peer gets the same error, or `at_peer`."""
    fail_endpoints(session, [endpoint.conversation_handle], error)
    if endpoint.peer_handle is not None:
        fail_endpoints(session, [endpoint.peer_handle], at_peer or error)


def fail_endpoints(session: Session, handles: list[UUID], error: BrokerError) -> None:
    """Put an Error message into the queue of each endpoint, and drop its undelivered messages.

    An endpoint that has ended is removed, since its application would never see the error. One that is closed or has an
    error already stays as it is.
    """
    for handle in handles:
        session.drop_undelivered(handle)
    for handle in handles:
        endpoint = session.endpoints.get(handle)
        if endpoint is None or (endpoint.state, Event.ERROR_ARRIVED) not in TRANSITIONS:
            continue
        if TRANSITIONS[endpoint.state, Event.ERROR_ARRIVED] is REMOVED:
            remove_endpoint(session, endpoint)
        else:
            enqueue_error(session, session.update(endpoint, state=EndpointState.ERROR), -error.number, error.text)


def enqueue_error(session: Session, receiver: Endpoint, code: int, description: str, number: int = 0) -> None:
    """Put an Error message into the queue of an endpoint, before its other messages."""
    kind = receiver.broker.message_types[names.ERROR]
    session.enqueue(receiver, kind, error_body(code, description), number=number, rank=1)
