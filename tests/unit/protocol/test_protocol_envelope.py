from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol import envelope
from servicebroker.protocol.envelope import (
    CAPABILITIES,
    MAXIMUM_FRAGMENTS,
    MAXIMUM_RANGES,
    MAXIMUM_RUN,
    Acknowledgement,
    BrokerFailure,
    Content,
    Header,
    Kind,
    Opening,
    Part,
    Payload,
    check_addresses,
    encode,
    open_payload,
    parse,
    refusal,
)
from servicebroker.protocol.frames import MAXIMUM_BODY
from servicebroker.protocol.integrity import CHECKSUM, SessionKey
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.wire_errors import CorruptedMessage, Undeliverable

CONVERSATION, HERE, THERE = UUID(int=1), UUID(int=2), UUID(int=3)
KEY = SessionKey(bytes(32), lambda: bytes(16))
DATA = Part("t", Content.DATA, b"x")


def header(kind: Kind = Kind.RUN, **changes: Any) -> Header:
    fields: dict[str, Any] = {
        "conversation_id": CONVERSATION,
        "is_from_initiator": True,
        "kind": kind,
        "is_secured": False,
        "to_service": "//to",
        "to_broker": None,
        "from_service": "//from",
        "from_broker": HERE,
    }
    return Header(**(fields | changes))


def test_the_longest_run_fits_into_a_frame() -> None:
    name = "\N{MAHJONG TILE RED DRAGON}" * 128  # four bytes each
    share = LIMITS.fragment_size // MAXIMUM_RUN
    parts = tuple(Part(name, Content.DATA, b"x" * share) for _ in range(MAXIMUM_RUN))
    ranges = tuple((2**62, 2**62) for _ in range(MAXIMUM_RANGES))
    pieces = tuple((2**62, MAXIMUM_FRAGMENTS, MAXIMUM_FRAGMENTS) for _ in ranges)
    longest = header(
        to_service=name * 2,
        from_service=name * 2,
        to_broker=THERE,
        number=2**62,
        opening=Opening(name, 2**31 - 1),
        acknowledgement=Acknowledgement(2**62, ranges, pieces),
        traces=tuple((n, bytes(25)) for n in range(MAXIMUM_RUN)),
    )
    assert len(encode(longest, parts, KEY)) < MAXIMUM_BODY - 16_384  # leaves room for session keys and a passage


names = st.text(min_size=1, max_size=128)
numbers = st.integers(0, 2**62)
fragments = st.integers(0, MAXIMUM_FRAGMENTS)


def in_order(places: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return True if the ranges (..., first, last) are in order and do not overlap."""
    ranges: list[tuple[int, ...]] = []
    for place in sorted((*place[:-2], min(place[-2:]), max(place[-2:])) for place in places):
        if not ranges or (*ranges[-1][:-2], ranges[-1][-1]) < place[:-1]:
            ranges.append(place)
    return tuple(ranges)


acknowledgements = st.builds(
    Acknowledgement,
    numbers,
    st.lists(st.tuples(numbers, numbers), max_size=MAXIMUM_RANGES).map(in_order),
    st.lists(st.tuples(numbers, fragments, fragments), max_size=MAXIMUM_RANGES).map(in_order),
)
addresses: dict[str, st.SearchStrategy[Any]] = {
    "is_from_initiator": st.booleans(),
    "to_service": st.text(min_size=1, max_size=256),
    "from_service": names,
    "to_broker": st.none() | st.uuids(),
    "acknowledgement": st.none() | acknowledgements,
    "opening": st.none()
    | st.builds(
        Opening,
        names,
        st.integers(0, 2**31 - 1),
        st.booleans(),
        st.none() | st.integers(0, 2**40),
        st.none() | st.integers(0, 2**40),
        st.just(()) | st.just(CAPABILITIES),
    ),
    "clock": st.none() | st.integers(0, 2**40),
}
parts = st.builds(Part, names, st.just(Content.DATA), st.none() | st.binary(max_size=50))


@st.composite
def messages(draw: st.DrawFn) -> tuple[Header, Payload]:
    kind = draw(st.sampled_from(Kind))
    fields = {name: draw(strategy) for name, strategy in addresses.items()}
    if kind is Kind.ACKNOWLEDGEMENT:
        return header(kind, **fields), None
    if kind is Kind.FAILURE:
        return header(kind, **fields), BrokerFailure(-draw(st.integers(1, 99_999)), draw(st.text(max_size=100)))
    fields["number"] = draw(numbers)
    if kind is Kind.RUN:
        return header(kind, **fields), tuple(draw(st.lists(parts, min_size=1, max_size=5)))
    count = draw(st.integers(2, MAXIMUM_FRAGMENTS))
    fields |= {"fragments": count, "fragment": draw(st.integers(0, count - 1))}
    return header(kind, **fields), (Part("t", Content.DATA, draw(st.binary(min_size=1, max_size=50))),)


@given(messages(), st.booleans())
def test_a_message_arrives_as_it_was_sent(message: tuple[Header, Payload], is_secured: bool) -> None:
    sent = msgspec.structs.replace(message[0], is_secured=is_secured)
    protection = KEY if is_secured else CHECKSUM
    received = parse(encode(sent, message[1], protection))
    assert received.header == sent
    assert open_payload(received, protection) == message[1]


@given(st.binary(max_size=300))
def test_any_bytes_parse_or_raise_the_documented_error(junk: bytes) -> None:
    with suppress(CorruptedMessage):
        open_payload(parse(junk), CHECKSUM)


@given(messages(), st.binary(max_size=100))
def test_a_payload_that_is_sealed_rightly_is_hostile_all_the_same(message: tuple[Header, Payload], junk: bytes) -> None:
    clear = parse(encode(message[0], message[1], CHECKSUM)).clear
    body = len(clear).to_bytes(2, "big") + clear + CHECKSUM.seal(clear, junk)
    with suppress(CorruptedMessage):
        open_payload(parse(body), CHECKSUM)


@given(messages(), st.data())
def test_every_changed_bit_is_found(message: tuple[Header, Payload], data: st.DataObject) -> None:
    body = bytearray(encode(message[0], message[1], CHECKSUM))
    bit = data.draw(st.integers(0, 8 * len(body) - 1))
    body[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptedMessage):
        open_payload(parse(bytes(body)), CHECKSUM)


def test_a_secured_conversation_takes_no_unsecured_message_and_the_other_way_round() -> None:
    with pytest.raises(CorruptedMessage, match="11232"):
        open_payload(parse(encode(header(), (DATA,), CHECKSUM)), KEY)
    with pytest.raises(CorruptedMessage, match="11231"):
        open_payload(parse(encode(header(is_secured=True), (DATA,), KEY)), CHECKSUM)


@pytest.mark.parametrize(
    ("sent", "payload", "number"),
    [
        (header(Kind.ACKNOWLEDGEMENT, number=1), None, 11299),
        (header(Kind.FAILURE, number=1), BrokerFailure(-1, ""), 11299),
        (header(Kind.ACKNOWLEDGEMENT, fragment=1), None, 11299),
        (header(), (Part("t", Content.END, None),), 11277),
        (header(), (Part("t", Content.ERROR, b"x"),), 11277),
        (header(number=1), (Part("t", Content.END, None), DATA), 11221),
        (header(fragments=2), (DATA,), 11221),
        (header(Kind.FRAGMENT, fragments=1), (DATA,), 11221),
        (header(Kind.FRAGMENT, fragments=2, fragment=2), (DATA,), 11221),
        (header(Kind.FRAGMENT, fragments=2), (DATA, DATA), 11221),
        (header(Kind.FRAGMENT, fragments=2), (Part("t", Content.DATA, b""),), 11221),
        (header(Kind.FRAGMENT, fragment=2**21 - 1, fragments=2**21), (DATA,), 11235),
        (header(acknowledgement=Acknowledgement(0, ((3, 2),))), (DATA,), 11221),
        (header(acknowledgement=Acknowledgement(0, ((1, 9), (9, 10)))), (DATA,), 11221),
        (header(acknowledgement=Acknowledgement(0, ((5, 9), (1, 2)))), (DATA,), 11221),
        (header(acknowledgement=Acknowledgement(0, (), ((1, 3, 2),))), (DATA,), 11221),
        (header(acknowledgement=Acknowledgement(0, (), ((1, 0, 2), (1, 2, 3)))), (DATA,), 11221),
        (header(acknowledgement=Acknowledgement(0, (), ((2, 0, 2), (1, 0, 2)))), (DATA,), 11221),
        (header(), (), 11235),
        (header(), (DATA,) * (MAXIMUM_RUN + 1), 11235),
        (header(), (Part("", Content.DATA, b""),), 11235),
        (header(Kind.FAILURE), BrokerFailure(8462, "not below zero"), 11235),
    ],
)
def test_impossible_frames_are_refused(sent: Header, payload: Payload, number: int) -> None:
    with pytest.raises(CorruptedMessage, match=f"Msg {number}"):
        open_payload(parse(encode(sent, payload, CHECKSUM)), CHECKSUM)


def test_a_target_may_begin_with_an_end() -> None:
    sent, end = header(is_from_initiator=False), (Part("t", Content.END, None),)
    assert open_payload(parse(encode(sent, end, CHECKSUM)), CHECKSUM) == end


@pytest.mark.parametrize(
    "changes",
    [
        {"number": -1},
        {"number": 2**62 + 1},
        {"acknowledgement": Acknowledgement(0, ((1, 1),) * (MAXIMUM_RANGES + 1))},
        {"opening": Opening("c", -1)},
        {"opening": Opening("c", 1, sealed_at=-1)},
        {"opening": Opening("c", 1, sealed_at=2**40 + 1)},
        {"opening": Opening("c", 1, own_clock=2**40 + 1)},
        {"opening": Opening("c", 1, capabilities=("",))},
        {"opening": Opening("c", 1, capabilities=("x" * 65,))},
        {"opening": Opening("c", 1, capabilities=("x",) * 33)},
        {"clock": -1},
    ],
)
def test_fields_out_of_bounds(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptedMessage, match="11235"):
        parse(encode(header(**changes), (DATA,), CHECKSUM))


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"from_service": ""}, 11201),
        ({"from_service": "x" * 257}, 11202),
        ({"to_service": ""}, 11205),
        ({"to_service": "x" * 257}, 11206),
        ({"opening": Opening("", 1)}, 11207),
        ({"opening": Opening("x" * 129, 1)}, 11208),
        ({"is_from_initiator": False, "to_broker": None}, 11220),
    ],
)
def test_missing_or_long_addresses_are_refused(changes: dict[str, Any], number: int) -> None:
    with pytest.raises(Undeliverable, match=f"Msg {number}") as error:
        check_addresses(parse(encode(header(**changes), (DATA,), CHECKSUM)).header)
    assert len(error.value.text) < 600


def test_the_longest_names_are_allowed() -> None:
    check_addresses(header(from_service="x" * 256, to_service="x" * 256, opening=Opening("x" * 128, 1)))


# A secured opening of the last version without dates, sealed with the key of bytes 0 to 31.
UNDATED = bytes.fromhex(
    "00c0dc0011c41000000000000000000000000000000001c300c3a42f2f746fc0a62f2f66726f6dc410000000000000000000"
    "00000000000002000001c093aa2f2f636f6e74726163743cc296c41000000000000000000000000000000009c42073737373"
    "73737373737373737373737373737373737373737373737373737373c4206464646464646464646464646464646464646464"
    "646464646464646464646464c40763617073756c65c40777726170706564c4097369676e6174757265c000c0000000000000"
    "0000000000000000000000000000000000008c03c086d7bbf7d80dfb9c3672ba6b142ae45ed9d1bafe2ad4c94185857d4e85"
    "ae074ff7ad2dcacffe9d"
)


def test_an_opening_of_a_version_without_dates_is_opened() -> None:
    envelope = parse(UNDATED)
    key = SessionKey(bytes(range(32)), lambda: bytes(16))
    assert envelope.header.opening == Opening("//contract", 60, False)
    assert envelope.header.exchange is not None
    assert envelope.header.clock is None
    assert open_payload(envelope, key) == (Part("//type", Content.DATA, b"body", b"token of"),)


class UndatedOpening(msgspec.Struct, array_like=True):
    """An opening as a version without dates reads it."""

    contract: str
    lifetime: int
    encryption: bool


class UndatedHeader(msgspec.Struct, array_like=True):
    """A header as a version without dates reads it."""

    conversation_id: UUID
    is_from_initiator: bool
    kind: Kind
    is_secured: bool
    to_service: str
    to_broker: UUID | None
    from_service: str
    from_broker: UUID
    number: int
    fragment: int
    fragments: int
    acknowledgement: Acknowledgement | None
    opening: UndatedOpening | None
    exchange: envelope.Exchange | None
    traces: None
    floor: int | None
    before: bytes | None


def test_a_version_without_dates_skips_them() -> None:
    dated = Opening("//contract", 60, sealed_at=1_000, own_clock=2_000, capabilities=CAPABILITIES)
    for sent in (header(is_secured=True, opening=dated), header(Kind.ACKNOWLEDGEMENT, is_secured=True, clock=1_000)):
        parsed = parse(encode(sent, (DATA,) if sent.kind is Kind.RUN else None, KEY))
        read = msgspec.msgpack.decode(parsed.clear, type=UndatedHeader)
        assert (read.kind, read.from_broker, read.before) == (sent.kind, HERE, None)
        assert read.opening is None or read.opening.contract == "//contract"
        assert KEY.open(parsed.clear, parsed.sealed) is not None  # the authenticated bytes are those that were sent


def test_fields_of_a_later_version_are_skipped() -> None:
    clear = msgspec.msgpack.encode([*msgspec.to_builtins(header(), builtin_types=(UUID,), order=None), "later"])
    sealed = CHECKSUM.seal(clear, envelope._encoder.encode((DATA,)))
    received = parse(len(clear).to_bytes(2, "big") + clear + sealed)
    assert received.header == header()
    assert open_payload(received, CHECKSUM) == (DATA,)


def test_a_refusal_goes_back_where_the_message_came_from() -> None:
    answer = refusal(header(to_broker=THERE, opening=Opening("c", 1)), THERE)
    assert answer == Header(CONVERSATION, False, Kind.FAILURE, False, "//from", HERE, "//to", THERE)
