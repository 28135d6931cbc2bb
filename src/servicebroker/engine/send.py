"""SEND: one statement when the way is known, else find out what holds and either deliver, park or refuse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from servicebroker.engine import enqueue, transmission
from servicebroker.engine.catalog import Catalog, Channel, Usages, find_usages
from servicebroker.engine.endpoints import (
    Endpoint,
    check_handle,
    find_endpoint,
    lock_endpoint,
    lock_parking,
    lock_rows,
    state_at,
)
from servicebroker.engine.failure import fail_conversation
from servicebroker.engine.opening import lock_service, open_target
from servicebroker.engine.validation import Rejection, accepts, rejection
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.limits import MAXIMUM_BODY
from servicebroker.model.states import Event, State, after
from servicebroker.store.statements import Statement, Steps

Body = bytes | bytearray | memoryview | str


class Omitted:
    """Stands for a body that was not given, which is not the same as NULL."""


OMITTED = Omitted()


def send(
    catalog: Catalog,
    handle: UUID,
    message_type: str = names.DEFAULT,
    body: Body | Omitted = OMITTED,
    *,
    now: datetime,
) -> Steps[int]:
    """SEND ON CONVERSATION handle MESSAGE TYPE message_type (body). Returns the message sequence number.

    Raises:
        BrokerError: 8418 no handle, 8426 unknown handle, 8429 wrong state, 8428, 8431, 8432, 8434 message type,
            8433 NULL body, 8459 too large, 402 wrong type (reference 02 section 4).
    """
    check_handle(handle)
    names.checked("message type", message_type)
    content = _as_body(body)
    channel = catalog.channels.get(handle)
    if channel is not None:
        far = channel.far.get(message_type)
        if _allowed(channel.near, channel.is_initiator, message_type) and (
            far is not None and accepts(far, channel.is_initiator, content)
        ):
            rows = yield Statement(
                enqueue.send(channel.far_queue_id),
                (handle, far.message_type_id, far.validation, content, now, channel.catalog_version),
            )
            if rows:
                return int(rows[0][0])
        catalog.forget(handle)
    return (yield from _send_slowly(catalog, handle, message_type, [content], now))


def send_batch(
    catalog: Catalog, handle: UUID, message_type: str, bodies: Iterable[Body], *, now: datetime
) -> Steps[int]:
    """SEND many messages of one type on one conversation, in their order. Returns the first sequence number.

    All are sent or none. Raises what `send` raises.
    """
    check_handle(handle)
    names.checked("message type", message_type)
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Iterable):
        raise BrokerError(402, "the batch", type(bodies).__name__, "a list of bodies")
    contents = [_as_body(body) for body in bodies]
    if not contents:
        raise BrokerError(402, "the batch", "empty", "at least one body")
    channel = catalog.channels.get(handle)
    portions = enqueue.portions(contents)
    if channel is not None and len(portions) == 1:
        far = channel.far.get(message_type)
        if _allowed(channel.near, channel.is_initiator, message_type) and (
            far is not None and all(accepts(far, channel.is_initiator, content) for content in contents)
        ):
            rows = yield Statement(
                enqueue.send_batch(channel.far_queue_id),
                (handle, far.message_type_id, far.validation, portions[0], len(contents), now, channel.catalog_version),
            )
            if rows:
                return int(rows[0][0])
        catalog.forget(handle)
    return (yield from _send_slowly(catalog, handle, message_type, contents, now))


def _send_slowly(
    catalog: Catalog, handle: UUID, message_type: str, contents: Sequence[bytes | None], now: datetime
) -> Steps[int]:
    """Every rule, one after the other, under the endpoint's lock."""
    endpoint = yield from find_endpoint(handle)
    near = yield from _refuse(catalog, endpoint, message_type, now)
    if not endpoint.has_peer:
        yield lock_service(endpoint.far_service)
    elif endpoint.is_blocked:
        yield lock_parking()
    if endpoint.has_peer and (yield from _rejected(catalog, endpoint, message_type, contents)):
        yield from lock_rows(endpoint.conversation_id)  # the Error goes to both sides
    endpoint = yield from lock_endpoint(handle)
    yield from _refuse(catalog, endpoint, message_type, now)
    if not endpoint.has_peer:
        outcome = yield from open_target(catalog, endpoint, now)
        if outcome.refusal:
            yield from fail_conversation(endpoint, outcome.refusal)
            return endpoint.send_sequence
        if outcome.waits:
            return (yield from transmission.park(endpoint, message_type, contents, outcome.waits))
        opened = yield from find_endpoint(handle)
        if not (yield from transmission.deliver_waiting(catalog, opened, now)):
            return endpoint.send_sequence
        endpoint = yield from find_endpoint(handle)
    if endpoint.peer_state in (State.DISCONNECTED_OUTBOUND, State.CLOSED):
        return (yield from transmission.discard(endpoint, len(contents)))
    failure = yield from _rejected(catalog, endpoint, message_type, contents)
    if failure:
        yield from fail_conversation(endpoint, *failure)
        return endpoint.send_sequence
    first = endpoint.send_sequence
    far = yield from _far_usages(catalog, endpoint)
    usage = far[message_type]
    portions = enqueue.portions(contents)
    while portions:
        if endpoint.is_blocked:
            yield lock_parking()
            endpoint = yield from find_endpoint(handle)
            if endpoint.obstacle:
                for portion in portions:
                    yield from transmission.park(
                        endpoint, message_type, portion, endpoint.obstacle, validation=usage.validation
                    )
                return first
            if not (yield from transmission.deliver_waiting(catalog, endpoint, now)):
                return first
        rows = yield Statement(
            enqueue.send_batch(endpoint.peer_queue_id),
            (
                handle,
                usage.message_type_id,
                usage.validation,
                portions[0],
                len(portions[0]),
                now,
                endpoint.catalog_version,
            ),
        )
        if rows:
            portions.pop(0)
        else:  # the queue or the message type was altered since we looked
            endpoint = yield from find_endpoint(handle)
            far = yield from _far_usages(catalog, endpoint)
            usage = far[message_type]
            if failure := (yield from _rejected(catalog, endpoint, message_type, portions[0])):
                yield from fail_conversation(endpoint, *failure)
                return first
    if endpoint.far_queue_id:
        channel = Channel(endpoint.is_initiator, endpoint.far_queue_id, near, far, endpoint.catalog_version)
        catalog.remember(handle, channel)
    return first


def _far_usages(catalog: Catalog, endpoint: Endpoint) -> Steps[Usages]:
    """What the peer's contract allows, with the peer's own validation letters."""
    return find_usages(catalog, endpoint.far_database_id, endpoint.far_contract_id, endpoint.catalog_version)


def _refuse(catalog: Catalog, endpoint: Endpoint, message_type: str, now: datetime) -> Steps[Usages]:
    """Raise what the sender's own side forbids: the state, then the message type and its direction."""
    after(state_at(endpoint, now), Event.SEND)
    usages = yield from find_usages(catalog, endpoint.database_id, endpoint.service_contract_id)
    if message_type not in usages:
        rows = yield Statement(
            "select from servicebroker.message_types where database_id = $1 and name = $2",
            (endpoint.database_id, message_type),
        )
        raise BrokerError(8431 if rows else 8428, message_type)
    if not _allowed(usages, endpoint.is_initiator, message_type):
        raise BrokerError(8432 if endpoint.is_initiator else 8434, message_type)
    return usages


def _allowed(usages: Usages, is_initiator: bool, message_type: str) -> bool:
    usage = usages.get(message_type)
    return usage is not None and usage.allows(is_initiator)


def _rejected(
    catalog: Catalog, endpoint: Endpoint, message_type: str, contents: Sequence[bytes | None]
) -> Steps[Rejection | None]:
    """What the peer says of the first of these messages that it does not take."""
    far = yield from _far_usages(catalog, endpoint)
    for number, content in enumerate(contents, endpoint.send_sequence):
        if failure := (yield from rejection(endpoint, far, message_type, number, content)):
            return failure
    return None


def _as_body(body: Body | Omitted | None) -> bytes | None:
    """The bytes to store: None for an omitted or empty body; a str is sent as UTF-8."""
    if isinstance(body, Omitted):
        return None
    if body is None:
        raise BrokerError(8433)
    if isinstance(body, str):
        if not names.is_encodable(body):
            raise BrokerError(402, "the message body", "a str that UTF-8 cannot carry", "bytes or str")
        content = body.encode()
    elif isinstance(body, (bytes, bytearray, memoryview)):
        content = bytes(body)
    else:
        raise BrokerError(402, "the message body", type(body).__name__, "bytes or str")
    if len(content) > MAXIMUM_BODY:
        raise BrokerError(8459, MAXIMUM_BODY)
    return content or None
