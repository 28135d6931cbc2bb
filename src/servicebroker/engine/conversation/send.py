"""SEND: one statement if the delivery path is cached; otherwise check every rule, then deliver, park or refuse."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import AnswerPath, Catalog, Channel, Usage, Usages, find_usages
from servicebroker.engine.catalog.delivery_paths import DeliveryPath, DeparturePath, RemoteSide, TargetSide
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import (
    Endpoint,
    find_endpoint,
    lock_endpoint,
    lock_parking,
    lock_rows,
    state_at,
)
from servicebroker.engine.conversation.failure import fail_conversation
from servicebroker.engine.conversation.retention import retain_sent
from servicebroker.engine.conversation.validation import ANYTHING, accepts, rejection, sender_of
from servicebroker.engine.delivery import transmission
from servicebroker.engine.delivery.opening import StableRoute, lock_service, open_target
from servicebroker.engine.delivery.parking import park
from servicebroker.engine.security.authorization import authorize, conversation, refused_arrival
from servicebroker.model.arguments import MAX_BODY_BYTES
from servicebroker.model.errors import BrokerError
from servicebroker.model.rejection import Rejection, on_both_sides
from servicebroker.model.security.permissions import DBO_ID
from servicebroker.model.states import Event, after
from servicebroker.operations.send import Send, SendBatch
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Bodies, Statement, Steps

SQL = SqlFile(__file__)


def send(catalog: Catalog, operation: Send[int], *, now: datetime, maximum_body: int = MAX_BODY_BYTES) -> Steps[int]:
    """SEND on one conversation. Returns the message sequence number; `maximum_body` is in bytes."""
    content = operation.content(maximum_body)
    handle, message_type = operation.handle, operation.message_type
    assert isinstance(handle, UUID)  # several handles go to `multicast`
    # not `is_delayed`: each SEND comes here, and a loop of them feels each call
    is_delayed = operation.delay is not None or operation.at is not None
    if is_delayed and (until := operation.due(now)) is not None:
        return (yield from _delay(catalog, handle, message_type, [content], now, until))
    channel = catalog.channels.get(handle)
    if channel is None and handle.bytes in catalog.received:
        number = yield from _answer(catalog, handle, message_type, content, now)
        if number is not None:
            return number
    if channel is not None and not channel.far_queue_id:
        return (yield from _transmit(catalog, channel, handle, message_type, [content], now))
    if channel is not None:
        far = known_usage(channel, message_type)
        if far is not None and (far.validation == ANYTHING or accepts(far, channel.is_initiator, content)):
            rows = yield Statement(
                "conversation.send",
                enqueue.send(channel.far_queue_id),
                (handle, far.message_type_id, far.validation, content, now, channel.catalog_version),
                certain=enqueue.send(channel.far_queue_id, certain=True),
            )
            if rows:
                catalog.count_enqueued(channel.far_priority, 1)
                return int(rows[0][0])
        catalog.forget(handle)
    elif (path := catalog.paths.take_begun(handle)) is not None and (
        yield from _open_and_send(catalog, path, operation, content, now)
    ):
        return 0
    return (yield from _send_slowly(catalog, handle, message_type, [content], now))


def _answer(
    catalog: Catalog, handle: UUID, message_type: str, content: bytes | None, now: datetime
) -> Steps[int | None]:
    """SEND the first message on a received conversation, on the path of the last such SEND.

    None, with nothing sent, if that path is not cached or does not apply.
    """
    kind = catalog.received[handle.bytes].kind
    path = catalog.answer_paths.get(kind)
    if path is not None and not path.channel.far_queue_id:
        return (yield from _transmit_answer(catalog, kind, path.channel, handle, message_type, content, now))
    usage = path and known_usage(path.channel, message_type)
    if path is None or usage is None or not accepts(usage, path.channel.is_initiator, content):
        return None
    channel = path.channel
    rows = yield Statement(
        "send.answer",
        enqueue.send_answer(channel.far_queue_id),
        (
            *(handle, usage.message_type_id, usage.validation, content, now, channel.catalog_version),
            *(*kind, channel.is_initiator, path.far_service_id, path.far_contract_id),
        ),
    )
    if not rows:
        catalog.answer_paths.pop(kind, None)
        return None
    number, priority, _ = rows[0]
    catalog.remember_channel(handle, channel._replace(far_priority=priority))
    catalog.count_enqueued(priority, 1)
    return int(number)


def _transmit_answer(
    catalog: Catalog,
    kind: tuple[int, int],
    channel: Channel,
    handle: UUID,
    message_type: str,
    content: bytes | None,
    now: datetime,
) -> Steps[int | None]:
    """SEND the first message on a received conversation with a peer in another instance, as `_answer`."""
    if not _is_allowed(channel.near, channel.is_initiator, message_type):
        return None
    rows = yield Statement(
        "send.transmit_answer",
        enqueue.TRANSMIT_ANSWER,
        (handle, message_type, content, now, *kind, channel.is_initiator),
    )
    if not rows:
        catalog.answer_paths.pop(kind, None)
        return None
    catalog.remember_channel(handle, channel)
    return int(rows[0][0])


def _open_and_send(
    catalog: Catalog, path: DeliveryPath, operation: Send[int], content: bytes | None, now: datetime
) -> Steps[bool]:
    """SEND the first message on a conversation whose path is cached. False if nothing was written."""
    usage = first_usage(path, operation.message_type, [content])
    if usage is None:
        return False
    handle = operation.handle
    rows = yield Statement(
        "send.open_and_send",
        enqueue.open_and_send(path.target.queue_id),
        (*path.parameters, handle, now, usage.message_type_id, usage.validation, content),
    )
    if not rows:
        catalog.paths.forget(path)
        return False
    assert isinstance(handle, UUID)
    note_sent(catalog, path, [handle], rows[0][0], 1)
    return True


def first_usage(
    path: DeliveryPath | DeparturePath, message_type: str, contents: Sequence[bytes | None]
) -> Usage | None:
    """Return the target's usage of the type of first messages, from the cache; None if a side does not take them.

    Another instance judges by itself what it takes: then the usage is that of the own contract.
    """
    near = path.target.near.get(message_type)
    if near is None or not near.by_initiator:
        return None
    if isinstance(path, DeparturePath):
        return near
    far = path.target.far.get(message_type)
    return far if all(accepts(far, True, content) for content in contents) else None


def note_sent(catalog: Catalog, path: DeliveryPath, handles: Sequence[UUID], priority: int, messages: int) -> None:
    """Cache the path of conversations whose first messages were sent."""
    target = path.target
    channel = Channel(True, target.queue_id, target.near, target.far, target.catalog_version, priority)
    for handle in handles:
        catalog.remember_channel(handle, channel)
    catalog.count_enqueued(priority, messages)


def send_batch(
    catalog: Catalog, operation: SendBatch, *, now: datetime, maximum_body: int = MAX_BODY_BYTES
) -> Steps[int]:
    """SEND many messages of one type on one conversation. Returns the first sequence number."""
    contents = operation.contents(maximum_body)
    handle, message_type = operation.handle, operation.message_type
    if operation.is_delayed and (until := operation.due(now)) is not None:
        return (yield from _delay(catalog, handle, message_type, contents, now, until))
    channel = catalog.channels.get(handle)
    if channel is not None and not channel.far_queue_id:
        return (yield from _transmit(catalog, channel, handle, message_type, contents, now))
    portions = enqueue.split_batch(contents)
    if channel is not None and len(portions) == 1:
        far = known_usage(channel, message_type)
        if far is not None and all(accepts(far, channel.is_initiator, content) for content in contents):
            rows = yield Statement(
                "send.send_batch",
                enqueue.send_batch(channel.far_queue_id),
                (handle, far.message_type_id, far.validation, portions[0], len(contents), now, channel.catalog_version),
            )
            if rows:
                catalog.count_enqueued(channel.far_priority, len(contents))
                return int(rows[0][0])
        catalog.forget(handle)
    return (yield from _send_slowly(catalog, handle, message_type, contents, now))


def _delay(
    catalog: Catalog, handle: UUID, message_type: str, contents: Sequence[bytes | None], now: datetime, until: datetime
) -> Steps[int]:
    """SEND into the transmission queue, where the messages are held until that time.

    The peer is not asked whether it takes them: it may take others then.
    """
    catalog.paths.take_begun(handle)
    catalog.forget(handle)
    endpoint = yield from find_endpoint(handle)
    if catalog.user is not None:
        yield from authorize(catalog.user, Send.permission, conversation(handle))
    yield lock_parking() if endpoint.has_peer else lock_service(endpoint.far_service)
    endpoint = yield from lock_endpoint(handle)
    near = yield from check_own_side(catalog, endpoint, message_type, now)
    check_delay(endpoint, until)
    return (yield from pass_on(catalog, endpoint, near, message_type, contents, now, until=until))


def check_delay(endpoint: Endpoint, until: datetime) -> None:
    """Refuse a delay that ends after the conversation.

    Raises:
        BrokerError: 402.
    """
    if until > endpoint.lifetime:
        raise BrokerError(
            402, "the delay", f"one until {until}", f"a time before the lifetime ends, {endpoint.lifetime}"
        )


def _transmit(
    catalog: Catalog, channel: Channel, handle: UUID, message_type: str, contents: list[bytes | None], now: datetime
) -> Steps[int]:
    """SEND to a peer in another instance."""
    portions = enqueue.split_batch(contents)
    if len(portions) == 1 and _is_allowed(channel.near, channel.is_initiator, message_type):
        rows = yield Statement(
            "send.transmit", enqueue.TRANSMIT, (handle, message_type, portions[0], len(contents), now)
        )
        if rows:
            return int(rows[0][0])
    catalog.forget(handle)
    return (yield from _send_slowly(catalog, handle, message_type, contents, now))


def _transmit_all(
    catalog: Catalog, handle: UUID, message_type: str, contents: Sequence[bytes | None], now: datetime
) -> Steps[int]:
    """SEND in portions. Only the statements lock the endpoint, so that arrivals for it meanwhile are stored."""
    numbers = []
    portions = enqueue.split_batch(contents)
    for place, portion in enumerate(portions):
        rows = yield Statement(
            "send.transmit_all", enqueue.TRANSMIT, (handle, message_type, portion, len(portion), now)
        )
        if not rows:  # the endpoint ended meanwhile, or its queue retains now
            endpoint = yield from lock_endpoint(handle)
            near = yield from check_own_side(catalog, endpoint, message_type, now)
            left = [content for portion in portions[place:] for content in portion]
            numbers.append((yield from pass_on(catalog, endpoint, near, message_type, left, now)))
            break
        numbers.append(int(rows[0][0]))
    return numbers[0]


def _send_slowly(
    catalog: Catalog, handle: UUID, message_type: str, contents: Sequence[bytes | None], now: datetime
) -> Steps[int]:
    """SEND in every case: check one rule after the other, under the endpoint's lock."""
    endpoint = yield from find_endpoint(handle)
    if catalog.user is not None:
        yield from authorize(catalog.user, Send.permission, conversation(handle))
    looked_at = endpoint.catalog_version  # permissions checked so far, and below, are at least as recent
    near = yield from check_own_side(catalog, endpoint, message_type, now)
    if endpoint.is_remote and not endpoint.retains:
        if catalog.user is None:
            channel = Channel(endpoint.is_initiator, 0, near, {}, 0)
            catalog.remember_channel(handle, channel)
            kind = endpoint.service_id, endpoint.service_contract_id
            catalog.remember_answer_path(kind, AnswerPath(channel, 0, 0))
        return (yield from _transmit_all(catalog, handle, message_type, contents, now))
    if not endpoint.has_peer:
        yield lock_service(endpoint.far_service)
    elif endpoint.is_blocked:
        yield lock_parking()
    if endpoint.has_peer and not endpoint.peer_has_ended:
        if (yield from find_refusal(catalog, endpoint, message_type, contents)):
            yield from lock_rows(endpoint.conversation_id)  # the Error goes to both sides
        elif not endpoint.is_blocked and not endpoint.retains:
            number = yield from _send_unlocked(catalog, endpoint, near, message_type, contents, now, looked_at)
            if number is not None:
                return number
    endpoint = yield from lock_endpoint(handle)
    near = yield from check_own_side(catalog, endpoint, message_type, now)
    return (yield from pass_on(catalog, endpoint, near, message_type, contents, now, looked_at=looked_at))


def _send_unlocked(
    catalog: Catalog,
    endpoint: Endpoint,
    near: Usages,
    message_type: str,
    contents: Sequence[bytes | None],
    now: datetime,
    looked_at: int,
) -> Steps[int | None]:
    """SEND in one statement, which also checks that the endpoint is unchanged. The peer takes these messages.

    None, with nothing sent, if the endpoint has changed.
    """
    portions = enqueue.split_batch(contents)
    if len(portions) > 1:
        return None
    far = yield from far_usages(catalog, endpoint)
    number = yield from _enqueue_portion(endpoint, far[message_type], portions[0], now, None)
    if number is not None:
        catalog.count_enqueued(endpoint.far_priority, len(contents))
        _remember(catalog, endpoint, near, far, looked_at)
    return number


def pass_on(
    catalog: Catalog,
    endpoint: Endpoint,
    near: Usages,
    message_type: str,
    contents: Sequence[bytes | None],
    now: datetime,
    body_id: int | None = None,
    looked_at: int = -1,
    until: datetime | None = None,
) -> Steps[int]:
    """Deliver, park or turn into Errors messages from a locked endpoint, which the sender's side allows.

    With RETENTION on, the own queue keeps copies of them. Returns the first sequence number. `body_id` is the shared
    body that stands for the only element of `contents`. `looked_at` is the catalog version under which permissions were
    checked; with another version the next SEND checks them again. `until`: the messages are delayed until that time.
    """
    if until is None and not endpoint.is_delayed:
        first = yield from _dispatch(catalog, endpoint, near, message_type, contents, now, body_id, looked_at)
    elif endpoint.has_peer and endpoint.peer_has_ended:
        first = yield from transmission.discard(endpoint, len(contents))
    else:  # behind earlier messages that are delayed, too
        first = yield from park(endpoint, message_type, contents, "", body_id=body_id, until=until)
    if endpoint.retains:
        yield from retain_sent(endpoint, message_type, first, contents, body_id)
    return first


def _dispatch(
    catalog: Catalog,
    endpoint: Endpoint,
    near: Usages,
    message_type: str,
    contents: Sequence[bytes | None],
    now: datetime,
    body_id: int | None,
    looked_at: int,
) -> Steps[int]:
    handle, begun, found = endpoint.conversation_handle, endpoint, None
    if endpoint.is_remote:
        return (yield from park(endpoint, message_type, contents, "", body_id=body_id))
    if not endpoint.has_peer:
        outcome = yield from open_target(catalog, endpoint, now)
        if outcome.refusal:
            yield from fail_conversation(endpoint, outcome.refusal)
            return endpoint.send_sequence
        if outcome.waits:
            if outcome.departs_under is not None:
                _remember_departure(catalog, endpoint, outcome.departs_under, near)
            return (yield from park(endpoint, message_type, contents, outcome.waits, body_id=body_id))
        opened = yield from find_endpoint(handle)
        if not (yield from transmission.deliver_waiting(catalog, opened, now)):
            return endpoint.send_sequence
        endpoint, found = (yield from find_endpoint(handle)), outcome.found
    if endpoint.peer_has_ended:
        return (yield from transmission.discard(endpoint, len(contents)))
    first = endpoint.send_sequence
    refused = yield from find_refusal(catalog, endpoint, message_type, contents)
    if refused:
        if refused.place:
            before = contents[: refused.place]
            yield from _dispatch(catalog, endpoint, near, message_type, before, now, body_id, looked_at)
        yield from fail_conversation(endpoint, *refused.rejection)
        return first
    far = yield from far_usages(catalog, endpoint)
    usage = far[message_type]
    portions = enqueue.split_batch(contents)
    while portions:
        if endpoint.is_blocked:
            yield lock_parking()
            endpoint = yield from find_endpoint(handle)
            if endpoint.obstacle:
                for portion in portions:
                    yield from park(
                        endpoint,
                        message_type,
                        portion,
                        endpoint.obstacle,
                        validation=usage.validation,
                        body_id=body_id,
                    )
                return first
            if not (yield from transmission.deliver_waiting(catalog, endpoint, now)):
                return first
        if (yield from _enqueue_portion(endpoint, usage, portions[0], now, body_id)) is not None:
            catalog.count_enqueued(endpoint.far_priority, len(portions.pop(0)))
        else:  # the queue or the message type was altered meanwhile
            endpoint = yield from find_endpoint(handle)
            left = [content for portion in portions for content in portion]
            yield from _dispatch(catalog, endpoint, near, message_type, left, now, body_id, looked_at)
            return first
    _remember(catalog, endpoint, near, far, looked_at)
    if found and endpoint.far_queue_id and not endpoint.retains:
        yield from _remember_target(catalog, begun, endpoint, found, near, far)
    return first


def _remember(catalog: Catalog, endpoint: Endpoint, near: Usages, far: Usages, looked_at: int) -> None:
    """Cache the path of sent messages, unless permissions count that were checked under another version."""
    is_old = endpoint.catalog_version != looked_at and _is_checked(catalog, endpoint)
    if not endpoint.far_queue_id or endpoint.retains or is_old:
        return
    channel = Channel(
        endpoint.is_initiator, endpoint.far_queue_id, near, far, endpoint.catalog_version, endpoint.far_priority
    )
    catalog.remember_channel(endpoint.conversation_handle, channel)
    kind = endpoint.service_id, endpoint.service_contract_id
    catalog.remember_answer_path(kind, AnswerPath(channel, endpoint.far_service_id, endpoint.far_contract_id))


def _is_checked(catalog: Catalog, endpoint: Endpoint) -> bool:
    """Check whether permissions decide who may send."""
    return catalog.user is not None or endpoint.owner_id != DBO_ID or endpoint.acts_as is not None


def _remember_target(
    catalog: Catalog, begun: Endpoint, opened: Endpoint, found: StableRoute, near: Usages, far: Usages
) -> Steps[None]:
    """Cache the target of a conversation's first message, for the next conversations of its service.

    Permissions are checked again: the first check came before the version of the target's queue was known.
    """
    if _is_checked(catalog, opened):
        try:
            if catalog.user is not None:
                yield from authorize(catalog.user, Send.permission, conversation(opened.conversation_handle))
        except BrokerError:
            return
        if (yield from refused_arrival(opened, opened.far_service_id)):
            return
    target = TargetSide(
        found.routes_version,
        opened.far_database_id,
        opened.far_service_id,
        opened.far_contract_id,
        opened.far_queue_id,
        opened.catalog_version,
        found.broker,
        near,
        far,
    )
    catalog.paths.remember_target(
        begun.service_id, begun.service_contract_id, begun.far_service, begun.far_broker_instance, target
    )


def _remember_departure(catalog: Catalog, begun: Endpoint, routes_version: int, near: Usages) -> None:
    """Cache that conversations of these services leave the instance. Who may begin one may send its first messages."""
    if not begun.retains:
        target = RemoteSide(routes_version, begun.far_broker_instance, near)
        catalog.paths.remember_target(
            begun.service_id, begun.service_contract_id, begun.far_service, begun.far_broker_instance, target
        )


def _enqueue_portion(
    endpoint: Endpoint, usage: Usage, portion: Bodies, now: datetime, body_id: int | None
) -> Steps[int | None]:
    """Deliver one portion. Returns the first sequence number.

    None if the peer's queue, or an object behind its catalog version, has changed.
    """
    handle, version = endpoint.conversation_handle, endpoint.catalog_version
    kind = (usage.message_type_id, usage.validation)
    queue_id = endpoint.peer_queue_id
    if body_id is None:
        values = (handle, *kind, portion, len(portion), now, version)
        rows = yield Statement("send.enqueue_portion.batch", enqueue.send_batch(queue_id), values)
        return int(rows[0][0]) if rows else None
    rows = yield Statement(
        "send.enqueue_portion.shared", enqueue.send_shared(queue_id), ([handle], *kind, body_id, version)
    )
    return int(rows[0][1]) if rows else None


def far_usages(catalog: Catalog, endpoint: Endpoint) -> Steps[Usages]:
    """Return the usages of the peer's contract, with the peer's own validation letters."""
    return find_usages(catalog, endpoint.far_database_id, endpoint.far_contract_id, endpoint.catalog_version)


def check_own_side(catalog: Catalog, endpoint: Endpoint, message_type: str, now: datetime) -> Steps[Usages]:
    """Raise what the sender's side forbids: state, message type, direction, a queue that is off. Returns its usages."""
    after(state_at(endpoint, now), Event.SEND)
    usages = yield from find_usages(catalog, endpoint.database_id, endpoint.service_contract_id)
    if message_type not in usages:
        rows = yield SQL("check_own_side.find_message_types", (endpoint.database_id, message_type))
        raise BrokerError(8431 if rows else 8428, message_type)
    if not _is_allowed(usages, endpoint.is_initiator, message_type):
        raise BrokerError(8432 if endpoint.is_initiator else 8434, message_type)
    if endpoint.retains and not endpoint.is_queue_enabled:
        rows = yield SQL("check_own_side.find_queues", (endpoint.queue_id,))
        raise BrokerError(9618, *rows[0])
    return usages


def known_usage(channel: Channel, message_type: str) -> Usage | None:
    """Return the peer's cached usage of a message type; None if this side may not send it or the peer not get it."""
    near, far, is_initiator = channel.near.get(message_type), channel.far.get(message_type), channel.is_initiator
    if near is None or not (near.by_initiator if is_initiator else near.by_target):
        return None
    if far is None or not (far.by_initiator if is_initiator else far.by_target):
        return None
    return far


def _is_allowed(usages: Usages, is_initiator: bool, message_type: str) -> bool:
    usage = usages.get(message_type)
    return usage is not None and usage.allows(is_initiator)


class PeerRefusal(NamedTuple):
    """The first of several messages that the peer refuses: its position, and the reason."""

    place: int
    rejection: Rejection


def find_refusal(
    catalog: Catalog, endpoint: Endpoint, message_type: str, contents: Sequence[bytes | None]
) -> Steps[PeerRefusal | None]:
    """Return the first of these messages that the peer refuses, or a refusal of the sender; None if it takes all."""
    if endpoint.is_initiator and (refused := (yield from refused_arrival(endpoint, endpoint.far_service_id))):
        return PeerRefusal(0, on_both_sides(refused))
    far = yield from far_usages(catalog, endpoint)
    for place, content in enumerate(contents):
        number = endpoint.send_sequence + place
        if failure := (yield from rejection(sender_of(endpoint), far, message_type, number, content)):
            return PeerRefusal(place, failure)
    return None
