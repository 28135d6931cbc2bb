"""Refused messages from another broker: each is reported and answered, and no other message is affected."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID

import prometheus_client
import pytest
from msgspec.structs import replace

import servicebroker as sb
from remote_support import Pair, begin, leftovers
from servicebroker.broker import metrics
from servicebroker.model import xml
from servicebroker.protocol.envelope import (
    BrokerFailure,
    Content,
    Header,
    Kind,
    Opening,
    Part,
    Payload,
    encode,
    open_payload,
    parse,
)
from servicebroker.protocol.integrity import CHECKSUM, SessionKey
from support import (
    CONTRACT,
    DOCUMENT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    bodies,
    errors,
    query,
    state,
    waiting_messages,
)

UNDELIVERABLE = "Broker:Message Undeliverable: "
Change = Callable[[Header, Any], tuple[Header, Payload]]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "servicebroker.broker")


def frames_of(pair: Pair) -> list[bytes]:
    """Return the frames that west has sent in its last round, taken from its link by the test."""
    pair.west.round([])
    frames, pair.west.out.frames = list(pair.west.out.frames), deque()
    return frames


def forge(frame: bytes, change: Change) -> bytes:
    """Return a frame of an unsecured conversation with a change, and with a valid checksum."""
    envelope = parse(frame)
    header, payload = change(envelope.header, open_payload(envelope, CHECKSUM))
    return encode(header, payload, CHECKSUM)


def count_dropped() -> float:
    value = prometheus_client.CollectorRegistry.get_sample_value
    return value(metrics.REGISTRY, "servicebroker_dropped_messages_total") or 0.0


def count_corrupted() -> float:
    value = prometheus_client.CollectorRegistry.get_sample_value
    return value(metrics.REGISTRY, "servicebroker_corrupted_messages_total") or 0.0


def in_header(**changes: Any) -> Change:
    return lambda header, payload: (replace(header, **changes), payload)


def with_opening(**changes: Any) -> Change:
    return lambda header, payload: (replace(header, opening=replace(header.opening, **changes)), payload)


def with_part(content: Content = Content.DATA, name: str = ORDER, body: bytes | None = b"x") -> Change:
    return lambda header, payload: (header, (Part(name, content, body),))


# ---------------------------------------------------------------- the first message of a conversation


@pytest.mark.feature(139)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (in_header(from_service=""), "the FROM service name is missing"),
        (in_header(from_service="x" * 257), "the FROM service name exceeds the maximum size of 512 bytes"),
        (in_header(to_service=""), "the TO service name is missing"),
        (in_header(to_service="x" * 257), "the TO service name exceeds the maximum size of 512 bytes"),
        (with_opening(contract=""), "the service contract name is missing"),
        (with_opening(contract="x" * 129), "the service contract name exceeds the maximum size of 256 bytes"),
        (in_header(to_service=STOCK.lower()), "the TO service could not be found"),
        (in_header(to_broker=UUID(int=7)), "Could not find the target broker"),
        (in_header(opening=None), "this is not the first message in the conversation"),
        (in_header(is_from_initiator=False, to_broker=UUID(int=7)), "this is not the first message"),
        (in_header(is_from_initiator=False, to_broker=None), "the TO broker instance is missing"),
        (with_opening(contract="//test/none"), "contract could not be found"),
        (in_header(kind=Kind.FRAGMENT), "the fragment numbers do not fit the message"),
        (lambda h, p: (replace(h, number=1), (Part("t", Content.END, None), *p)), "messages follow the end"),
        (lambda h, _: (replace(h, kind=Kind.ACKNOWLEDGEMENT), None), "not be associated with an active conversation"),
        (lambda h, _: (replace(h, kind=Kind.FAILURE), BrokerFailure(-1, "")), "not be associated with an active conv"),
    ],
)
@pytest.mark.sampled(6)
def test_an_invalid_first_message_is_refused(
    pair: Pair, caplog: pytest.LogCaptureFixture, change: Change, words: str
) -> None:
    begin(pair)
    (frame,) = frames_of(pair)
    before = count_dropped()
    pair.east.round([forge(frame, change)])
    assert words in caplog.text.split(UNDELIVERABLE)[-1]
    assert count_dropped() == before + 1
    assert leftovers(pair.east) == {}
    assert not any(parse(frame).header.acknowledgement for frame in pair.east.out.frames)
    pair.east.out.frames.clear()
    pair.east.round([frame])  # the genuine message
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]


@pytest.mark.feature(139)
def test_public_may_not_send(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.east.database.revoke("SEND", "public", service=STOCK)
    begin(pair)
    pair.rounds()
    assert "does not have permission to send to the service" in caplog.text
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8494]
    assert leftovers(pair.east) == {}


@pytest.mark.feature(139)
def test_a_service_that_the_named_database_lacks_is_an_error(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    east = query(pair.east.database, "select service_broker_guid from sys.databases where name = 'Test'")[0][0]
    pair.west.database.create_route("Nowhere", service_name="//test/Nowhere", address="TCP://east:4022")
    handle = pair.west.database.begin_dialog(
        ORDERS, "//test/Nowhere", broker_instance=east, contract=CONTRACT, encryption=False
    )
    pair.west.database.send(handle, ORDER, b"x")
    pair.rounds()
    assert "the TO service could not be found" in caplog.text
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8490]


# ---------------------------------------------------------------- in a conversation

WITHOUT_TOKEN = Part(ORDER, Content.DATA, b"x")  # as any other with its number


@pytest.mark.feature(139)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (in_header(to_service=ORDERS), "does not match the name in the conversation endpoint"),
        (in_header(opening=Opening("//test/other", 1)), "the service contract name '//test/other' in the message"),
        (in_header(from_broker=UUID(int=7)), "another instance of this service program has already started"),
        (in_header(number=100_000), "it is out of sequence with respect to the conversation"),
        (lambda header, _: (replace(header, number=0), (WITHOUT_TOKEN,)), "it is a duplicate"),
        (with_part(name="//test/none"), "the message type name could not be found. Message type name: '//test/none'"),
        (with_part(name="//test/Unused"), "the message type is not part of the service contract"),
        (with_part(name=REPLY), "the initiator service has sent a message with a message type that can only be sent"),
    ],
)
@pytest.mark.sampled(4)
def test_an_invalid_later_message_is_refused(
    pair: Pair, caplog: pytest.LogCaptureFixture, change: Change, words: str
) -> None:
    pair.east.database.create_message_type("//test/Unused")
    handle = begin(pair)
    pair.rounds()
    (first,) = pair.east.database.receive(STOCK_QUEUE)
    pair.west.database.send(handle, ORDER, b"1")
    (frame,) = frames_of(pair)
    before = count_dropped()
    pair.east.round([forge(frame, change)])
    assert words in caplog.text.split(UNDELIVERABLE)[-1]
    assert count_dropped() == before + 1
    pair.east.round([frame])
    if state(pair.east.database, first.conversation_handle) == "ER":  # a message against the contract ends it
        assert [message.is_error for message in pair.east.database.receive(STOCK_QUEUE)] == [True]
        pair.rounds()
        assert [message.is_error for message in pair.west.database.receive(ORDERS_QUEUE)] == [True]
    else:
        assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]
        pair.rounds()
        assert waiting_messages(pair.west.database) == 0


@pytest.mark.feature(139)
def test_a_message_type_that_only_the_initiator_may_send(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    begin(pair)
    pair.rounds()
    (first,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.send(first.conversation_handle, REPLY, b"a")
    pair.east.round([])
    (frame,) = pair.east.out.frames
    pair.west.round([forge(frame, with_part(name=ORDER))])
    assert "the target service has sent a message with a message type that can only be sent by the init" in caplog.text
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8437]


@pytest.mark.feature(139)
def test_a_closed_endpoint_drops_new_messages(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    handle = begin(pair)
    pair.rounds()
    (first,) = pair.east.database.receive(STOCK_QUEUE)
    pair.west.database.send(handle, ORDER, b"1")
    (late,) = frames_of(pair)
    pair.west.database.end_conversation(handle)
    pair.east.database.end_conversation(first.conversation_handle)
    for _ in range(3):
        pair.rounds()
        pair.pass_time(5)
    assert state(pair.east.database, first.conversation_handle) == "CD"
    pair.east.round([forge(late, in_header(number=7))])
    assert "the conversation endpoint has already been closed" in caplog.text
    assert pair.east.database.receive(STOCK_QUEUE) == []


@pytest.mark.feature(139)
@pytest.mark.parametrize("is_opening", [True, False])
def test_a_secured_message_in_an_unsecured_conversation_is_refused(
    pair: Pair, caplog: pytest.LogCaptureFixture, *, is_opening: bool
) -> None:
    handle = begin(pair)
    if not is_opening:
        pair.rounds()
        pair.east.database.receive(STOCK_QUEUE)
        pair.west.database.send(handle, ORDER, b"1")
    (frame,) = frames_of(pair)
    envelope = parse(frame)
    key = SessionKey(bytes(32), lambda: bytes(16))
    header = replace(envelope.header, is_secured=True)
    pair.east.round([encode(header, open_payload(envelope, CHECKSUM), key)])
    text = "No Security Header" if is_opening else "the conversation endpoint is not secured, however the message is"
    assert text in caplog.text
    pair.east.round([frame])
    assert len(pair.east.database.receive(STOCK_QUEUE)) == 1


# ---------------------------------------------------------------- sequenced and unsequenced messages


@pytest.mark.feature(129)
@pytest.mark.parametrize("kind", [Kind.ACKNOWLEDGEMENT, Kind.FAILURE])
def test_an_unsequenced_message_has_the_number_zero(pair: Pair, caplog: pytest.LogCaptureFixture, kind: Kind) -> None:
    handle = begin(pair)
    pair.west.round([])
    pair.east.round(list(pair.west.out.frames))
    (frame,) = pair.east.out.frames
    payload = BrokerFailure(-8462, "gone") if kind is Kind.FAILURE else None
    before = count_corrupted()
    for number in (1, 2**62):
        pair.west.round([forge(frame, lambda h, _, n=number: (replace(h, kind=kind, number=n), payload))])
    assert caplog.text.count("an unsequenced message had a non-zero sequence number") == 2
    assert count_corrupted() == before + 2
    assert waiting_messages(pair.west.database) == 1  # the frame acknowledges nothing, and ends nothing
    assert state(pair.west.database, handle) == "CO"
    pair.west.round([frame])
    assert waiting_messages(pair.west.database) == 0


@pytest.mark.feature(129)
@pytest.mark.parametrize("content", [Content.END, Content.ERROR])
def test_the_first_message_of_an_initiator_cannot_be_an_end(
    pair: Pair, caplog: pytest.LogCaptureFixture, content: Content
) -> None:
    begin(pair)
    (frame,) = frames_of(pair)
    pair.east.round([forge(frame, with_part(content, body=None if content is Content.END else b"<x/>"))])
    assert "may not be set in the first sequenced message" in caplog.text
    assert leftovers(pair.east) == {}


@pytest.mark.feature(128)
@pytest.mark.parametrize("body", [b"garbage", None, b"<Error><Code>1</Code></Error>"])
@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_an_error_with_an_unreadable_body_is_replaced(pair: Pair, body: bytes | None, *, is_on: bool) -> None:
    handle = begin(pair)
    pair.rounds()
    pair.east.database.alter_queue(STOCK_QUEUE, status=is_on)
    pair.west.database.end_conversation(handle, error=(5, "no more"))
    (frame,) = frames_of(pair)
    pair.east.round([forge(frame, with_part(Content.ERROR, "//of/nobody", body))])
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    pair.rounds()
    error = next(message for message in pair.east.database.receive(STOCK_QUEUE) if message.message_body != b"0")
    assert error.is_error
    number, text = sb.read_error(error.message_body)
    assert (number, "was received and failed XML validation" in text) == (-9616, True)
    pair.east.database.end_conversation(error.conversation_handle)
    assert "arrived_fragments" not in leftovers(pair.east)


@pytest.mark.feature(128)
@pytest.mark.parametrize("is_on", [True, False], ids=["on", "off"])
def test_the_end_of_a_conversation_has_neither_body_nor_another_name(pair: Pair, *, is_on: bool) -> None:
    handle = begin(pair)
    pair.rounds()
    pair.east.database.alter_queue(STOCK_QUEUE, status=is_on)
    pair.west.database.end_conversation(handle)
    (frame,) = frames_of(pair)
    pair.east.round([forge(frame, with_part(Content.END, ORDER, b"poison"))])
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    pair.rounds()
    (_, end) = pair.east.database.receive(STOCK_QUEUE)
    assert (end.is_end_dialog, end.message_body) == (True, None)


def test_a_broker_error_out_of_range_is_dropped(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    handle = begin(pair)
    pair.west.round([])
    pair.east.round(list(pair.west.out.frames))
    (frame,) = pair.east.out.frames
    over = in_header(kind=Kind.FAILURE)
    pair.west.round([forge(frame, lambda h, p: (over(h, p)[0], BrokerFailure(-(10**12), "x")))])
    assert "Received a malformed message" in caplog.text
    assert state(pair.west.database, handle) == "CO"


@pytest.mark.feature(129)
def test_only_sequenced_messages_are_numbered_and_retried(pair: Pair) -> None:
    """Messages, ends and errors of applications have numbers. Acknowledgements and errors of brokers have none."""
    handle = begin(pair, 2)
    (frame,) = frames_of(pair)
    assert (parse(frame).header.kind, parse(frame).header.number) == (Kind.RUN, 0)
    pair.east.round([frame])
    (acknowledgement,) = pair.east.out.frames
    header = parse(acknowledgement).header
    assert (header.kind, header.number, header.fragment) == (Kind.ACKNOWLEDGEMENT, 0, 0)
    assert header.acknowledgement is not None
    assert header.acknowledgement.below == 2
    pair.east.out.frames.clear()  # the frame is lost, and has no retry
    for _ in range(3):
        pair.pass_time(1)
        pair.east.round([])
    assert not pair.east.out.frames
    assert query(pair.east.database, "select count(*) from servicebroker.transmission_queue") == [(0,)]
    pair.pass_time(5)  # a retry of the original triggers another one
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    (first, _) = pair.east.database.receive(STOCK_QUEUE)
    pair.west.database.end_conversation(handle, error=(5, "no more"))
    (frame,) = frames_of(pair)
    assert (parse(frame).header.kind, parse(frame).header.number) == (Kind.RUN, 2)
    pair.east.round([frame])
    assert errors(pair.east.database.receive(STOCK_QUEUE)) == [5]
    assert state(pair.east.database, first.conversation_handle) == "ER"


@pytest.mark.feature(129)
def test_a_lost_error_of_a_broker_is_created_again_by_the_next_attempt(pair: Pair) -> None:
    pair.east.database.alter_service(STOCK, drop_contracts=[CONTRACT])
    begin(pair)
    pair.east.round(frames_of(pair))
    (failure,) = pair.east.out.frames
    assert (parse(failure).header.kind, parse(failure).header.number) == (Kind.FAILURE, 0)
    pair.east.out.frames.clear()
    pair.pass_time(5)
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8408]


# ---------------------------------------------------------------- integrity


@pytest.mark.feature(136)
def test_any_changed_bit_is_detected_and_the_message_is_retried(
    pair: Pair, caplog: pytest.LogCaptureFixture, seeded_random: Any
) -> None:
    """For a conversation without security. With keys see test_dialog_security.py."""
    handle = begin(pair)
    pair.rounds()
    pair.east.database.receive(STOCK_QUEUE)
    pair.west.database.send(handle, ORDER, b"the one and only")
    (frame,) = frames_of(pair)
    before = count_corrupted() + count_dropped()
    bits = seeded_random.sample(range(8 * len(frame)), 200)
    pair.east.round([_flip_bit(frame, bit) for bit in bits])
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert not any(
        header.acknowledgement and header.acknowledgement.below > 1
        for header in (parse(answer).header for answer in pair.east.out.frames)
    )
    assert "Broker:Corrupted Message" in caplog.text
    assert count_corrupted() + count_dropped() >= before + len(bits)
    pair.east.out.frames.clear()
    pair.pass_time(70)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"the one and only"]
    assert waiting_messages(pair.west.database) == 0


def _flip_bit(frame: bytes, bit: int) -> bytes:
    changed = bytearray(frame)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.feature(136)
def test_a_header_with_another_messages_payload_is_refused(pair: Pair) -> None:
    """Both parts are intact, but belong to different messages."""
    handle = begin(pair)
    pair.rounds()
    pair.east.database.receive(STOCK_QUEUE)
    frames = []
    for body in (b"1", b"2"):
        pair.west.database.send(handle, ORDER, body)
        frames += frames_of(pair)
    first, second = map(parse, frames)
    swapped = [len(a.clear).to_bytes(2, "big") + a.clear + b.sealed for a, b in ((first, second), (second, first))]
    before = count_corrupted()
    pair.east.round(swapped)
    assert count_corrupted() == before + 2
    pair.east.round(frames)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1", b"2"]


@pytest.mark.parametrize("cause", ["tags", "judge"])
def test_a_failed_validation_affects_only_its_conversation(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Its conversation gets an Error, whatever the validation raised. A message of another conversation arrives."""
    body = b"<r>" + b"<a/>" * xml.MAX_TAGS + b"</r>" if cause == "tags" else b"<r/>"
    if cause == "judge":
        monkeypatch.setattr(xml, "check_content", lambda body: 1 / 0)
    bad = begin(pair)
    pair.west.database.send(bad, DOCUMENT, body)
    good = begin(pair)
    received: list[sb.Message] = []
    refusals: list[sb.Message] = []
    for _ in range(400):
        pair.rounds(1)
        received += pair.east.database.receive(STOCK_QUEUE)
        refusals += pair.west.database.receive(ORDERS_QUEUE)
        if refusals and len(received) == 3:
            break
    assert {message.message_type_name for message in received} == {ORDER, sb.ERROR}
    assert [error.conversation_handle for error in refusals] == [bad]
    number, text = sb.read_error(refusals[0].message_body)
    assert number == -9615
    assert ("more than 2,000,000 tags" if cause == "tags" else "cannot be validated: ZeroDivisionError") in text
    assert state(pair.west.database, good) == "CO"
