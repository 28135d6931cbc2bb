"""The body of a DIALOG frame: a message from one endpoint of a conversation to the other.

    header length 2 | header | sealed payload

The header is sent in clear, since brokers on the way route by it, and is authenticated with the payload. Both are
msgspec arrays: a later version may add fields after the last one, which this version skips.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from servicebroker.model.names import MAXIMUM_NAME, MAXIMUM_SERVICE_NAME
from servicebroker.protocol.integrity import Protection
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.wire_errors import CorruptedMessage, Undeliverable

MAXIMUM_NUMBER = 2**62
MAXIMUM_FRAGMENTS = LIMITS.most_fragments  # the most fragments of one message
MAXIMUM_RUN = 350  # messages in one frame; they fit even with the longest names and traces
MAXIMUM_RANGES = 64  # the most ranges in one acknowledgement
MAXIMUM_INTEGER = 2**31 - 1
MAXIMUM_CAPABILITIES = 32  # the most capabilities that a broker may state
DATED = "dated"  # the capability of a broker that dates each opening
BATCHED = "batched"  # the capability of a broker that accepts batched key exchanges
CAPABILITIES = (DATED, BATCHED)  # the capabilities of this version
MAXIMUM_SIBLINGS = 16  # siblings in the Merkle tree under one signature: up to 65,536 exchanges

Number = Annotated[int, Meta(ge=0, le=MAXIMUM_NUMBER)]
FragmentNumber = Annotated[int, Meta(ge=0, le=MAXIMUM_FRAGMENTS)]
ObjectName = Annotated[str, Meta(min_length=1, max_length=MAXIMUM_NAME)]


class Kind(IntEnum):
    """The kind of a message. Runs and fragments are sequenced; acknowledgements and failures are not."""

    RUN = 0
    FRAGMENT = 1
    ACKNOWLEDGEMENT = 2
    FAILURE = 3


class Content(IntEnum):
    """The content of a sequenced message: data, END CONVERSATION, or END CONVERSATION WITH ERROR."""

    DATA = 0
    END = 1
    ERROR = 2


UnixTime = Annotated[int, Meta(ge=0, le=2**40)]  # seconds since 1970, UTC
Capability = Annotated[str, Meta(min_length=1, max_length=64)]

# A random value drawn by SEND. It distinguishes a message from another one with its number, in a restored copy.
Token = Annotated[bytes, Meta(min_length=8, max_length=8)]


class Acknowledgement(Struct, array_like=True, frozen=True):
    """The messages that the receiver has committed: all below `below`, and early ones that it has stored.

    `whole`: ranges of early messages (first, last). `parts`: ranges of fragments (message, first, last). `token`: that
    of message `below` - 1, if known.
    """

    below: Number
    whole: Annotated[tuple[tuple[Number, Number], ...], Meta(max_length=MAXIMUM_RANGES)] = ()
    parts: Annotated[tuple[tuple[Number, FragmentNumber, FragmentNumber], ...], Meta(max_length=MAXIMUM_RANGES)] = ()
    token: Token | None = None


class Opening(Struct, array_like=True, frozen=True):
    """The data from which a target creates its endpoint. The initiator sends it until the first acknowledgement.

    `lifetime`: the remaining seconds of the conversation. `sealed_at`: the time of this frame, in a secured
    conversation. If the target's broker has reported another clock, `sealed_at` is by that clock, and `own_clock` by
    the initiator's. `capabilities`: those of the initiator's broker. All of it is authenticated.
    """

    contract: str
    lifetime: Annotated[int, Meta(ge=0, le=MAXIMUM_INTEGER)]
    encryption: bool = True
    sealed_at: UnixTime | None = None
    own_clock: UnixTime | None = None
    capabilities: Annotated[tuple[Capability, ...], Meta(max_length=MAXIMUM_CAPABILITIES)] = ()


Thumbprint = Annotated[bytes, Meta(max_length=64)]
Secret = Annotated[bytes, Meta(max_length=4_096)]


Sibling = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Exchange(Struct, array_like=True, frozen=True):
    """The security header: a session key for the peer, sent until the first acknowledgement.

    `source`: the SHA-256 of the certificate that signs it, empty without a signature. `destination`: that of the
    certificate that the key is wrapped for. `broker/key_exchange.py` makes and opens the other fields.

    `siblings` is None in a single exchange, which every version supports. A batched exchange uses a shared key exchange
    key. Its signature signs the root of a Merkle tree; `siblings` prove that the exchange is in the tree. Bit n of
    `sides` is set if sibling n is the left one.
    """

    key_id: UUID
    source: Thumbprint
    destination: Thumbprint
    capsule: Secret
    wrapped: Secret
    signature: Secret
    sides: Annotated[int, Meta(ge=0, lt=2**MAXIMUM_SIBLINGS)] = 0
    siblings: Annotated[tuple[Sibling, ...], Meta(max_length=MAXIMUM_SIBLINGS)] | None = None


# The index of a message in the run, and its trace context: trace id, span id, flags (W3C).
Trace = tuple[Annotated[int, Meta(ge=0, lt=MAXIMUM_RUN)], Annotated[bytes, Meta(min_length=25, max_length=25)]]


class Header(Struct, array_like=True, frozen=True):
    """The clear part. `number`: the first message of a run, or the message of a fragment.

    `floor`: the peer has acknowledged all messages below it. `before`: the token of message `number` - 1, until the
    peer has acknowledged that message. `clock`: the target broker's time, in the answer to an opening that was sealed
    too long ago. `capabilities`: those of the target's broker, in its answers to frames that open a secured
    conversation. Names are unchecked until `check_addresses`.
    """

    conversation_id: UUID
    is_from_initiator: bool
    kind: Kind
    is_secured: bool
    to_service: str
    to_broker: UUID | None
    from_service: str
    from_broker: UUID
    number: Number = 0
    fragment: FragmentNumber = 0
    fragments: FragmentNumber = 1
    acknowledgement: Acknowledgement | None = None
    opening: Opening | None = None
    exchange: Exchange | None = None
    traces: Annotated[tuple[Trace, ...], Meta(max_length=MAXIMUM_RUN)] | None = None
    floor: Number | None = None
    before: Token | None = None
    clock: UnixTime | None = None
    capabilities: Annotated[tuple[Capability, ...], Meta(max_length=MAXIMUM_CAPABILITIES)] = ()


class Part(Struct, array_like=True, frozen=True):
    """One message of a run, or a fragment of one: then `body` is the fragment's bytes."""

    message_type: ObjectName
    content: Content
    body: bytes | None
    token: Token | None = None


class BrokerFailure(Struct, array_like=True, frozen=True):
    """An error of a broker: its negative number, and the text of the Error message."""

    code: Annotated[int, Meta(ge=-MAXIMUM_INTEGER, le=-1)]
    description: Annotated[str, Meta(max_length=3_000)]


Payload = tuple[Part, ...] | BrokerFailure | None


def refusal(header: Header, own_broker: UUID, *, is_secured: bool = False) -> Header:
    """Return the header of a `BrokerFailure` that answers `header` without an endpoint."""
    return Header(
        header.conversation_id,
        not header.is_from_initiator,
        Kind.FAILURE,
        is_secured,
        header.from_service,
        header.from_broker,
        header.to_service,
        own_broker,
    )


class Envelope(NamedTuple):
    """A parsed header, with its bytes and the sealed payload."""

    header: Header
    clear: bytes
    sealed: bytes


class _First(Struct, array_like=True, frozen=True):
    """The first field of a header."""

    conversation_id: UUID


_PARTS = Annotated[tuple[Part, ...], Meta(min_length=1, max_length=MAXIMUM_RUN)]
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_headers = msgspec.msgpack.Decoder(Header)
_first = msgspec.msgpack.Decoder(_First)
_parts = msgspec.msgpack.Decoder(_PARTS)
_failures = msgspec.msgpack.Decoder(BrokerFailure)
_exchanges = msgspec.msgpack.Decoder(Exchange)


def pack_exchange(exchange: Exchange) -> bytes:
    """Return the bytes of an exchange, for the store."""
    return _encoder.encode(exchange)


def unpack_exchange(packed: bytes) -> Exchange:
    """Return the exchange from the bytes of `pack_exchange`."""
    return _exchanges.decode(packed)


def encode(header: Header, payload: Payload, protection: Protection) -> bytes:
    """Return the body of a DIALOG frame."""
    clear = _encoder.encode(header)
    sealed = protection.seal(clear, b"" if payload is None else _encoder.encode(payload))
    return b"".join((len(clear).to_bytes(2, "big"), clear, sealed))


def parse(body: bytes) -> Envelope:
    """Parse the header of a DIALOG frame's body. It is not authenticated until `open_payload`.

    Raises:
        CorruptedMessage: 11235 the body has no valid header.
    """
    end = 2 + int.from_bytes(body[:2], "big")
    clear = body[2:end]
    try:
        header = _headers.decode(clear)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise CorruptedMessage(11235, problem) from None
    return Envelope(header, clear, body[end:])


def conversation_of(body: bytes) -> UUID:
    """Return the conversation of a DIALOG frame's body, without a check of the other fields.

    Raises:
        CorruptedMessage: 11235 the body names no conversation.
    """
    try:
        return _first.decode(body[2 : 2 + int.from_bytes(body[:2], "big")]).conversation_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise CorruptedMessage(11235, problem) from None


def check_addresses(header: Header) -> None:
    """Check that the header names both sides.

    Raises:
        Undeliverable: 11201, 11205 or 11207 a name is missing; 11202, 11206 or 11208 it is too long; 11220 the
            frame of a target names no broker.
    """
    origin = header.from_broker
    for missing, name, max_length in (
        (11201, header.from_service, MAXIMUM_SERVICE_NAME),
        (11205, header.to_service, MAXIMUM_SERVICE_NAME),
        (11207, header.opening.contract if header.opening else None, MAXIMUM_NAME),
    ):
        if name == "":
            raise Undeliverable(missing, origin)
        if name is not None and len(name) > max_length:
            raise Undeliverable(missing + 1, 2 * max_length, name[:max_length], origin)
    if not header.is_from_initiator and header.to_broker is None:
        raise Undeliverable(11220)


def open_payload(envelope: Envelope, protection: Protection) -> Payload:
    """Verify that payload and header are unchanged, and return the payload.

    Raises:
        CorruptedMessage: 11230 they were changed; 11235, 11277 or 11299 no broker makes such a message.
        Undeliverable: 11231 or 11232 only one of the message and the conversation is secured; 11221 the
            header does not fit the payload.
    """
    header = envelope.header
    if header.is_secured != protection.is_secured:
        raise Undeliverable(11231 if header.is_secured else 11232)
    plain = protection.open(envelope.clear, envelope.sealed)
    try:
        payload = _decode(header.kind, plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise CorruptedMessage(11235, problem) from None
    _check(header, payload)
    return payload


def _decode(kind: Kind, plain: bytes) -> Payload:
    if kind is Kind.ACKNOWLEDGEMENT:
        return None
    return _failures.decode(plain) if kind is Kind.FAILURE else _parts.decode(plain)


def _check(header: Header, payload: Payload) -> None:
    if header.acknowledgement is not None and not _ascends(header.acknowledgement):
        raise Undeliverable(11221, "the acknowledged ranges are not in order")
    if not isinstance(payload, tuple):
        if (header.number, header.fragment, header.fragments) != (0, 0, 1):
            raise CorruptedMessage(11299)
        return
    if header.is_from_initiator and header.number == 0 and payload[0].content is not Content.DATA:
        raise CorruptedMessage(11277)
    if any(part.content is not Content.DATA for part in payload[:-1]):
        raise Undeliverable(11221, "messages follow the end of the conversation")
    whole = header.kind is Kind.RUN
    if (header.fragment, header.fragments) != (0, 1) if whole else not _is_fragment(header, payload):
        raise Undeliverable(11221, "the fragment numbers do not fit the message")


def _ascends(acknowledgement: Acknowledgement) -> bool:
    """Return whether the ranges are not empty, and in order without overlaps. Others would cost time each time."""
    end = 0
    for first, last in acknowledgement.whole:
        if not end <= first <= last:
            return False
        end = last + 1
    position = (0, 0)
    for number, first, last in acknowledgement.parts:
        if not position <= (number, first) <= (number, last):
            return False
        position = (number, last + 1)
    return True


def _is_fragment(header: Header, payload: tuple[Part, ...]) -> bool:
    return 2 <= header.fragments > header.fragment and len(payload) == 1 and bool(payload[0].body)
