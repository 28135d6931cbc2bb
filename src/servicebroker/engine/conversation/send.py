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
from servicebroker.model.names import advise_contract
from servicebroker.model.rejection import Rejection, on_both_sides
from servicebroker.model.security.permissions import DBO_ID
from servicebroker.model.states import Event, after
from servicebroker.operations.send import Send, SendBatch
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Bodies, Statement, Steps

SQL = SqlFile(__file__)


def send(catalog: Catalog, operation: Send[int], *, now: datetime, maximum_body: int = MAX_BODY_BYTES) -> Steps[int]:
    """SEND one message on one conversation. Returns its sequence number.

    `maximum_body` is the size limit of a body, in bytes.
    """
    content = operation.content(maximum_body)
    handle, message_type = operation.handle, operation.message_type
    assert isinstance(handle, UUID)  # several handles go to `multicast`
    # not `operation.is_delayed`: every SEND runs this line, and the property call costs measurable time
    is_delayed = operation.delay is not None or operation.at is not None
    if is_delayed and (until := operation.due(now)) is not None:
        return (yield from _delay(catalog, handle, message_type, [content], now, until))
    channel = catalog.channels.get(handle)
    if channel is None and handle.bytes in catalog.received:
        number = yield from _answer(catalog, handle, message_type, content, now)
        if number is not None:
            return number
    if channel is not None and not channel.delivery_queue_id:
        return (yield from _transmit(catalog, channel, handle, message_type, [content], now))
    if channel is not None:
        usage = known_usage(channel, message_type)
        if usage is not None and (usage.validation == ANYTHING or accepts(usage, channel.is_initiator, content)):
            rows = yield Statement(
                "conversation.send",
                enqueue.send(channel.delivery_queue_id),
                (handle, usage.message_type_id, usage.validation, content, now, channel.catalog_version),
                certain=enqueue.send(channel.delivery_queue_id, certain=True),
            )
            if rows:
                catalog.count_enqueued(channel.peer_priority, 1)
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
    """SEND the first message on a received conversation, using the delivery path of the last such SEND.

    The path is cached for the pair of service and contract. Returns the sequence number. Returns None, with nothing
    sent, if no path is cached or the cached path does not apply.
    """
    kind = catalog.received[handle.bytes].kind
    path = catalog.answer_paths.get(kind)
    if path is not None and not path.channel.delivery_queue_id:
        return (yield from _transmit_answer(catalog, kind, path.channel, handle, message_type, content, now))
    usage = path and known_usage(path.channel, message_type)
    if path is None or usage is None or not accepts(usage, path.channel.is_initiator, content):
        return None
    channel = path.channel
    rows = yield Statement(
        "send.answer",
        enqueue.send_answer(channel.delivery_queue_id),
        (
            *(handle, usage.message_type_id, usage.validation, content, now, channel.catalog_version),
            *(*kind, channel.is_initiator, path.peer_service_id, path.peer_contract_id),
        ),
    )
    if not rows:
        catalog.answer_paths.pop(kind, None)
        return None
    number, priority, _ = rows[0]
    catalog.remember_channel(handle, channel._replace(peer_priority=priority))
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
    """SEND the first message on a received conversation whose peer is in another instance. Returns as `_answer`."""
    if not _is_allowed(channel.own_usages, channel.is_initiator, message_type):
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
    """Create the target endpoint and SEND the first message, on a cached path. Returns False if nothing was written."""
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
    cache_channels(catalog, path, [handle], rows[0][0], 1)
    return True


def first_usage(
    path: DeliveryPath | DeparturePath, message_type: str, contents: Sequence[bytes | None]
) -> Usage | None:
    """Return the target's cached usage of the message type of first messages.

    None if the own contract does not allow the type for an initiator, or the target refuses one of the bodies. A target
    in another instance checks messages itself, so for such a target the usage of the own contract is returned.
    """
    own_usage = path.target.own_usages.get(message_type)
    if own_usage is None or not own_usage.by_initiator:
        return None
    if isinstance(path, DeparturePath):
        return own_usage
    peer_usage = path.target.peer_usages.get(message_type)
    return peer_usage if all(accepts(peer_usage, True, content) for content in contents) else None


def cache_channels(catalog: Catalog, path: DeliveryPath, handles: Sequence[UUID], priority: int, messages: int) -> None:
    """Cache a channel for each conversation whose first messages were sent, and count those messages."""
    target = path.target
    channel = Channel(True, target.queue_id, target.own_usages, target.peer_usages, target.catalog_version, priority)
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
    if channel is not None and not channel.delivery_queue_id:
        return (yield from _transmit(catalog, channel, handle, message_type, contents, now))
    portions = enqueue.split_batch(contents)
    if channel is not None and len(portions) == 1:
        usage = known_usage(channel, message_type)
        if usage is not None and all(accepts(usage, channel.is_initiator, content) for content in contents):
            kind = usage.message_type_id, usage.validation
            rows = yield Statement(
                "send.send_batch",
                enqueue.send_batch(channel.delivery_queue_id),
                (handle, *kind, portions[0], len(contents), now, channel.catalog_version),
            )
            if rows:
                catalog.count_enqueued(channel.peer_priority, len(contents))
                return int(rows[0][0])
        catalog.forget(handle)
    return (yield from _send_slowly(catalog, handle, message_type, contents, now))


def _delay(
    catalog: Catalog, handle: UUID, message_type: str, contents: Sequence[bytes | None], now: datetime, until: datetime
) -> Steps[int]:
    """SEND delayed messages: store them in the transmission queue until the time `until`.

    The peer's contract is not checked now but when the messages are released, because it may change before that.
    """
    catalog.paths.take_begun(handle)
    catalog.forget(handle)
    endpoint = yield from find_endpoint(handle)
    if catalog.user is not None:
        yield from authorize(catalog.user, Send.permission, conversation(handle))
    yield lock_parking() if endpoint.has_peer else lock_service(endpoint.far_service)
    endpoint = yield from lock_endpoint(handle)
    own_usages = yield from check_own_side(catalog, endpoint, message_type, now)
    check_delay(endpoint, until)
    return (yield from deliver_or_park(catalog, endpoint, own_usages, message_type, contents, now, until=until))


def check_delay(endpoint: Endpoint, until: datetime) -> None:
    """Refuse a delay that ends after the conversation's lifetime.

    Raises:
        BrokerError: 402 the delay ends after the lifetime.
    """
    if until > endpoint.lifetime:
        raise BrokerError(
            402, "the delay", f"one until {until}", f"a time before the lifetime ends, {endpoint.lifetime}"
        )


def _transmit(
    catalog: Catalog, channel: Channel, handle: UUID, message_type: str, contents: list[bytes | None], now: datetime
) -> Steps[int]:
    """SEND to a peer in another instance, in one statement if the messages fit into one."""
    portions = enqueue.split_batch(contents)
    if len(portions) == 1 and _is_allowed(channel.own_usages, channel.is_initiator, message_type):
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
    """SEND in portions to a peer in another instance. Returns the first sequence number.

    The endpoint is locked by each statement, not before: the daemon can store messages for it between two portions.
    """
    numbers = []
    portions = enqueue.split_batch(contents)
    for index, portion in enumerate(portions):
        rows = yield Statement(
            "send.transmit_all", enqueue.TRANSMIT, (handle, message_type, portion, len(portion), now)
        )
        if not rows:  # the endpoint ended meanwhile, or its queue retains now
            endpoint = yield from lock_endpoint(handle)
            own_usages = yield from check_own_side(catalog, endpoint, message_type, now)
            unsent = [content for portion in portions[index:] for content in portion]
            numbers.append((yield from deliver_or_park(catalog, endpoint, own_usages, message_type, unsent, now)))
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
    permissions_version = endpoint.catalog_version  # the checks above and below see at least this catalog version
    own_usages = yield from check_own_side(catalog, endpoint, message_type, now)
    if endpoint.is_remote and not endpoint.retains:
        if catalog.user is None:
            channel = Channel(endpoint.is_initiator, 0, own_usages, {}, 0)
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
            number = yield from _send_unlocked(
                catalog, endpoint, own_usages, message_type, contents, now, permissions_version
            )
            if number is not None:
                return number
    endpoint = yield from lock_endpoint(handle)
    own_usages = yield from check_own_side(catalog, endpoint, message_type, now)
    return (
        yield from deliver_or_park(
            catalog, endpoint, own_usages, message_type, contents, now, permissions_version=permissions_version
        )
    )


def _send_unlocked(
    catalog: Catalog,
    endpoint: Endpoint,
    own_usages: Usages,
    message_type: str,
    contents: Sequence[bytes | None],
    now: datetime,
    permissions_version: int,
) -> Steps[int | None]:
    """SEND in one statement that also checks that the endpoint is unchanged. The caller knows that the peer accepts.

    Returns the first sequence number. Returns None, with nothing sent, if the endpoint has changed or the messages need
    several statements.
    """
    portions = enqueue.split_batch(contents)
    if len(portions) > 1:
        return None
    peer_usages = yield from find_peer_usages(catalog, endpoint)
    number = yield from _enqueue_portion(endpoint, peer_usages[message_type], portions[0], now, None)
    if number is not None:
        catalog.count_enqueued(endpoint.peer_priority, len(contents))
        _cache_channel(catalog, endpoint, own_usages, peer_usages, permissions_version)
    return number


def deliver_or_park(
    catalog: Catalog,
    endpoint: Endpoint,
    own_usages: Usages,
    message_type: str,
    contents: Sequence[bytes | None],
    now: datetime,
    body_id: int | None = None,
    permissions_version: int = -1,
    until: datetime | None = None,
) -> Steps[int]:
    """Deliver or park messages of a locked endpoint; a message that the peer refuses fails the conversation.

    The caller has called `check_own_side`. With RETENTION on, the own queue keeps copies of the messages.

    Args:
        body_id: the shared body that replaces the only element of `contents`.
        permissions_version: the catalog version under which permissions were checked. If it is not that of the peer's
            queue, the next SEND checks them again.
        until: the time until which the messages are delayed.

    Returns:
        The first sequence number.
    """
    if until is None and not endpoint.is_delayed:
        first = yield from _dispatch(
            catalog, endpoint, own_usages, message_type, contents, now, body_id, permissions_version
        )
    elif endpoint.has_peer and endpoint.peer_has_ended:
        first = yield from transmission.discard(endpoint, len(contents))
    else:  # these messages are delayed, or earlier messages of the conversation are
        first = yield from park(endpoint, message_type, contents, "", body_id=body_id, until=until)
    if endpoint.retains:
        yield from retain_sent(endpoint, message_type, first, contents, body_id)
    return first


def _dispatch(
    catalog: Catalog,
    endpoint: Endpoint,
    own_usages: Usages,
    message_type: str,
    contents: Sequence[bytes | None],
    now: datetime,
    body_id: int | None,
    permissions_version: int,
) -> Steps[int]:
    """Deliver or park messages that are not delayed. Opens the target first if there is none."""
    handle, unopened, stable_route = endpoint.conversation_handle, endpoint, None
    if endpoint.is_remote:
        return (yield from park(endpoint, message_type, contents, "", body_id=body_id))
    if not endpoint.has_peer:
        opening = yield from open_target(catalog, endpoint, now)
        if opening.refusal:
            yield from fail_conversation(endpoint, opening.refusal)
            return endpoint.send_sequence
        if opening.waiting_reason:
            if opening.remote_routes_version is not None:
                _cache_remote_target(catalog, endpoint, opening.remote_routes_version, own_usages)
            return (yield from park(endpoint, message_type, contents, opening.waiting_reason, body_id=body_id))
        opened = yield from find_endpoint(handle)
        if not (yield from transmission.deliver_waiting(catalog, opened, now)):
            return endpoint.send_sequence
        endpoint, stable_route = (yield from find_endpoint(handle)), opening.stable_route
    if endpoint.peer_has_ended:
        return (yield from transmission.discard(endpoint, len(contents)))
    first = endpoint.send_sequence
    refused = yield from find_refusal(catalog, endpoint, message_type, contents)
    if refused:
        if refused.position:
            accepted = contents[: refused.position]
            yield from _dispatch(
                catalog, endpoint, own_usages, message_type, accepted, now, body_id, permissions_version
            )
        yield from fail_conversation(endpoint, *refused.rejection)
        return first
    peer_usages = yield from find_peer_usages(catalog, endpoint)
    usage = peer_usages[message_type]
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
            catalog.count_enqueued(endpoint.peer_priority, len(portions.pop(0)))
        else:  # the queue or the message type was altered meanwhile
            endpoint = yield from find_endpoint(handle)
            unsent = [content for portion in portions for content in portion]
            yield from _dispatch(catalog, endpoint, own_usages, message_type, unsent, now, body_id, permissions_version)
            return first
    _cache_channel(catalog, endpoint, own_usages, peer_usages, permissions_version)
    if stable_route and endpoint.delivery_queue_id and not endpoint.retains:
        yield from _cache_target(catalog, unopened, endpoint, stable_route, own_usages, peer_usages)
    return first


def _cache_channel(
    catalog: Catalog, endpoint: Endpoint, own_usages: Usages, peer_usages: Usages, permissions_version: int
) -> None:
    """Cache the channel for the next SEND. Does nothing if its permissions were checked under another version."""
    is_old = endpoint.catalog_version != permissions_version and _is_checked(catalog, endpoint)
    if not endpoint.delivery_queue_id or endpoint.retains or is_old:
        return
    channel = Channel(
        endpoint.is_initiator,
        endpoint.delivery_queue_id,
        own_usages,
        peer_usages,
        endpoint.catalog_version,
        endpoint.peer_priority,
    )
    catalog.remember_channel(endpoint.conversation_handle, channel)
    kind = endpoint.service_id, endpoint.service_contract_id
    catalog.remember_answer_path(kind, AnswerPath(channel, endpoint.peer_service_id, endpoint.peer_contract_id))


def _is_checked(catalog: Catalog, endpoint: Endpoint) -> bool:
    """Check whether permissions decide who may send."""
    return catalog.user is not None or endpoint.owner_id != DBO_ID or endpoint.acts_as is not None


def _cache_target(
    catalog: Catalog,
    unopened: Endpoint,
    opened: Endpoint,
    stable_route: StableRoute,
    own_usages: Usages,
    peer_usages: Usages,
) -> Steps[None]:
    """Cache the target of a conversation's first message, for the next conversations of its service.

    `unopened` and `opened` are the initiator before and after its target was opened. Permissions are checked again,
    because the first check came before the version of the target's queue was known.
    """
    if _is_checked(catalog, opened):
        try:
            if catalog.user is not None:
                yield from authorize(catalog.user, Send.permission, conversation(opened.conversation_handle))
        except BrokerError:
            return
        if (yield from refused_arrival(opened, opened.peer_service_id)):
            return
    target = TargetSide(
        stable_route.routes_version,
        opened.peer_database_id,
        opened.peer_service_id,
        opened.peer_contract_id,
        opened.delivery_queue_id,
        opened.catalog_version,
        stable_route.broker,
        own_usages,
        peer_usages,
    )
    _remember_target(catalog, unopened, target)


def _cache_remote_target(catalog: Catalog, initiator: Endpoint, routes_version: int, own_usages: Usages) -> None:
    """Cache that conversations between these two services leave the instance.

    No permission is checked: whoever may begin such a conversation may send its first messages.
    """
    if not initiator.retains:
        _remember_target(catalog, initiator, RemoteSide(routes_version, initiator.far_broker_instance, own_usages))


def _remember_target(catalog: Catalog, initiator: Endpoint, target: TargetSide | RemoteSide) -> None:
    catalog.paths.remember_target(
        initiator.service_id,
        initiator.service_contract_id,
        initiator.far_service,
        initiator.far_broker_instance,
        target,
    )


def _enqueue_portion(
    endpoint: Endpoint, usage: Usage, portion: Bodies, now: datetime, body_id: int | None
) -> Steps[int | None]:
    """Deliver one portion of a batch. Returns its first sequence number.

    Returns None, with nothing sent, if the peer's queue or its catalog version has changed.
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


def find_peer_usages(catalog: Catalog, endpoint: Endpoint) -> Steps[Usages]:
    """Return the usages of the peer's contract, with the validation of the peer's message types."""
    return find_usages(catalog, endpoint.peer_database_id, endpoint.peer_contract_id, endpoint.catalog_version)


def check_own_side(catalog: Catalog, endpoint: Endpoint, message_type: str, now: datetime) -> Steps[Usages]:
    """Check the sender's side: state, message type, direction, and its queue if it retains. Returns its usages.

    Raises:
        BrokerError: as the state, 8428 and 8431 unknown message type, 8432 and 8434 wrong side, 9618 queue disabled.
    """
    after(state_at(endpoint, now), Event.SEND)
    usages = yield from find_usages(catalog, endpoint.database_id, endpoint.service_contract_id)
    if message_type not in usages:
        contract_id = endpoint.service_contract_id
        rows = yield SQL("check_own_side.find_message_types", (endpoint.database_id, message_type, contract_id))
        if not rows:
            raise BrokerError(8428, message_type)
        raise BrokerError(8431, message_type, hint=advise_contract(*rows[0]))
    if not _is_allowed(usages, endpoint.is_initiator, message_type):
        raise BrokerError(8432 if endpoint.is_initiator else 8434, message_type)
    if endpoint.retains and not endpoint.is_queue_enabled:
        rows = yield SQL("check_own_side.find_queues", (endpoint.queue_id,))
        raise BrokerError(9618, *rows[0])
    return usages


def known_usage(channel: Channel, message_type: str) -> Usage | None:
    """Return the peer's cached usage of a message type; None unless both contracts allow this side to send it."""
    own_usage, peer_usage = channel.own_usages.get(message_type), channel.peer_usages.get(message_type)
    is_initiator = channel.is_initiator
    if own_usage is None or not (own_usage.by_initiator if is_initiator else own_usage.by_target):
        return None
    if peer_usage is None or not (peer_usage.by_initiator if is_initiator else peer_usage.by_target):
        return None
    return peer_usage


def _is_allowed(usages: Usages, is_initiator: bool, message_type: str) -> bool:
    usage = usages.get(message_type)
    return usage is not None and usage.allows(is_initiator)


class PeerRefusal(NamedTuple):
    """The first message of a batch that the peer refuses: its position in the batch, and the reason."""

    position: int
    rejection: Rejection


def find_refusal(
    catalog: Catalog, endpoint: Endpoint, message_type: str, contents: Sequence[bytes | None]
) -> Steps[PeerRefusal | None]:
    """Return the first message that the peer refuses; None if it accepts all.

    A sender without permission is refused with the first message.
    """
    if endpoint.is_initiator and (refused := (yield from refused_arrival(endpoint, endpoint.peer_service_id))):
        return PeerRefusal(0, on_both_sides(refused))
    peer_usages = yield from find_peer_usages(catalog, endpoint)
    for index, content in enumerate(contents):
        number = endpoint.send_sequence + index
        if failure := (yield from rejection(sender_of(endpoint), peer_usages, message_type, number, content)):
            return PeerRefusal(index, failure)
    return None
