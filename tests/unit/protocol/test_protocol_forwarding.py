"""The forwarder: messages it holds, for how long, and which it drops."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.envelope import Header, Kind
from servicebroker.protocol.forwarding import (
    MAX_HOPS,
    MEGABYTE_BYTES,
    MESSAGE_OVERHEAD_BYTES,
    TIME_TO_LIVE,
    DroppedMessage,
    Forwarder,
    Passage,
    unwrap,
    wrap,
)
from servicebroker.protocol.wire_errors import CorruptedMessage

CONVERSATION, BROKER, MESSAGE = UUID(int=1), UUID(int=2), UUID(int=3)
FRESH = Passage(MESSAGE)


def header(number: int = 0, kind: Kind = Kind.RUN, conversation: UUID = CONVERSATION) -> Header:
    return Header(conversation, True, kind, False, "//to", None, "//from", BROKER, number)


def pass_on(forwarder: Forwarder[str], hop: str, now: float) -> tuple[Passage, bytes]:
    passed_on = forwarder.pass_on(hop, now)
    assert isinstance(passed_on, tuple)
    assert not isinstance(passed_on, DroppedMessage)
    return unwrap(passed_on[1])


def number_of(refusal: object) -> int:
    assert isinstance(refusal, DroppedMessage)
    return refusal.error.number


@pytest.mark.feature(154, 155)
def test_a_message_is_passed_on_with_one_hop_less_and_the_time_it_was_held() -> None:
    forwarder: Forwarder[str] = Forwarder(1_000)
    assert forwarder.take_in(header(), b"body", FRESH, "next", 10.0) is None
    assert forwarder.hops == ["next"]
    assert pass_on(forwarder, "next", 12.5) == (Passage(MESSAGE, MAX_HOPS - 1, TIME_TO_LIVE, 2.5), b"body")
    assert (len(forwarder), forwarder.held_bytes, forwarder.hops) == (0, 0, [])
    assert forwarder.pass_on("next", 13.0) is None


@pytest.mark.feature(154)
def test_the_hops_come_to_an_end() -> None:
    passage, hops = FRESH, 0
    while True:
        forwarder: Forwarder[str] = Forwarder(1_000)
        refusal = forwarder.take_in(header(), b"", passage, "next", 0.0)
        if refusal:
            break
        passage, hops = pass_on(forwarder, "next", 0.0)[0], hops + 1
    assert (number_of(refusal), hops) == (11285, MAX_HOPS)


def test_claimed_hops_and_lifetimes_are_limited() -> None:
    claimed, forwarder = Passage(MESSAGE, 255, 2**31 - 1), Forwarder[str](MEGABYTE_BYTES)
    forwarder.take_in(header(), b"", unwrap(wrap(claimed, b""))[0], "next", 0.0)
    assert forwarder.wake_at == TIME_TO_LIVE
    assert forwarder.expire(TIME_TO_LIVE - 1) == []
    assert [number_of(forwarded) for forwarded in forwarder.expire(TIME_TO_LIVE)] == [11290]
    forwarder.take_in(header(), b"", claimed, "next", 0.0)
    assert pass_on(forwarder, "next", 1.0)[0] == Passage(MESSAGE, MAX_HOPS - 1, TIME_TO_LIVE, 1.0)


@pytest.mark.feature(155)
def test_an_expired_message_is_dropped() -> None:
    forwarder: Forwarder[str] = Forwarder(1_000)
    late = Passage(MESSAGE, 3, 60, 60.0)
    refusal = forwarder.take_in(header(), b"", late, "next", 5.0)
    assert number_of(refusal) == 11291
    assert "time to live of 60 seconds (the message arrived with 60 seconds consumed" in str(refusal)
    forwarder.take_in(header(), b"", Passage(MESSAGE, 3, 60, 58.0), "next", 5.0)
    assert forwarder.expire(6.9) == []
    assert number_of(forwarder.pass_on("next", 7.0)) == 11291
    forwarder.take_in(header(), b"", Passage(MESSAGE, 3, 60, 58.0), "next", 5.0)
    assert [number_of(forwarded) for forwarded in forwarder.expire(7.0)] == [11290]
    assert (len(forwarder), forwarder.held_bytes) == (0, 0)


@pytest.mark.feature(153)
def test_memory_has_its_limit_and_is_free_again() -> None:
    forwarder: Forwarder[str] = Forwarder(2 * (MESSAGE_OVERHEAD_BYTES + 10))
    for number in range(2):
        assert forwarder.take_in(header(number), b"0123456789", FRESH, "next", 0.0) is None
    refusal = forwarder.take_in(header(2), b"", FRESH, "other", 0.0)
    assert number_of(refusal) == 11289
    assert f"limit of {forwarder.limit} bytes" in str(refusal)
    pass_on(forwarder, "next", 0.0)
    assert forwarder.take_in(header(2), b"", FRESH, "other", 0.0) is None


def test_a_duplicate_is_not_held_twice() -> None:
    forwarder: Forwarder[str] = Forwarder(10_000)
    assert forwarder.take_in(header(7), b"once", FRESH, "next", 0.0) is None
    assert number_of(forwarder.take_in(header(7), b"again", FRESH, "next", 1.0)) == 11288
    assert forwarder.take_in(header(7, conversation=UUID(int=9)), b"", FRESH, "next", 1.0) is None
    ack = header(kind=Kind.ACKNOWLEDGEMENT)
    assert forwarder.take_in(ack, b"old", FRESH, "next", 0.0) is None
    assert forwarder.take_in(ack, b"new", FRESH, "next", 1.0) is None  # the acknowledgement is newer
    assert [pass_on(forwarder, "next", 1.0)[1] for _ in range(3)] == [b"once", b"", b"new"]
    assert forwarder.take_in(header(7), b"again", FRESH, "next", 1.0) is None


@pytest.mark.feature(152)
def test_all_of_it_goes_when_forwarding_ends() -> None:
    forwarder: Forwarder[str] = Forwarder(10_000)
    for number in range(3):
        forwarder.take_in(header(number), b"", FRESH, f"hop{number}", 0.0)
    assert [number_of(forwarded) for forwarded in forwarder.drop_all(9792)] == [9792] * 3
    assert (len(forwarder), forwarder.held_bytes, forwarder.hops) == (0, 0, [])


@given(st.integers(0, 255), st.integers(0, 2**31 - 1), st.floats(0, 1e6), st.binary(max_size=300))
def test_a_passage_comes_out_as_it_went_in(hops: int, live: int, consumed: float, body: bytes) -> None:
    passage = Passage(MESSAGE, hops, live, consumed)
    assert unwrap(wrap(passage, body)) == (passage, body)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_passage_or_refused(data: bytes) -> None:
    try:
        passage, _ = unwrap(data)
    except CorruptedMessage:
        return
    assert 0 <= passage.hops_remaining <= 255


_kinds = st.sampled_from([Kind.RUN, Kind.FRAGMENT, Kind.ACKNOWLEDGEMENT, Kind.FAILURE])
_arrivals = st.tuples(
    st.just("take in"), st.integers(0, 4), _kinds, st.sampled_from("ab"), st.integers(0, 2), st.floats(0, 70)
)
_steps = st.one_of(_arrivals, st.tuples(st.just("pass on"), st.sampled_from("ab")), st.just(("expire",)))


Step = tuple[Any, ...]


@given(st.lists(st.tuples(_steps, st.floats(0, 40)), max_size=60))
def test_memory_is_bounded_and_expired_messages_are_not_passed_on(
    steps: list[tuple[tuple[Any, ...], float]],
) -> None:
    forwarder: Forwarder[str] = Forwarder(5 * MESSAGE_OVERHEAD_BYTES)
    now, taken, gone = 0.0, 0, 0
    for step, seconds in steps:
        now += seconds
        match step:
            case ("take in", number, kind, hop, hops, consumed):
                before = len(forwarder)
                refusal = forwarder.take_in(header(number, kind), b"", Passage(MESSAGE, hops, 60, consumed), hop, now)
                taken += len(forwarder) - before
                assert (refusal is None) or len(forwarder) == before
            case ("pass on", hop):
                passed_on = forwarder.pass_on(hop, now)
                gone += passed_on is not None
                if isinstance(passed_on, DroppedMessage):
                    assert passed_on.error.number == 11291
                elif passed_on is not None:
                    passage, _ = unwrap(passed_on[1])
                    assert passage.hops_remaining >= 0
                    assert passage.time_consumed < passage.time_to_live
            case _:
                gone += len(forwarder.expire(now))
                assert all(held.expires_at > now for held in forwarder)
        assert len(forwarder) == taken - gone
        assert forwarder.held_bytes == sum(held.size for held in forwarder) <= forwarder.limit
        assert set(forwarder.hops) == {held.hop for held in forwarder}


@pytest.mark.feature(153)
def test_the_owner_with_the_most_memory_gives_way() -> None:
    forwarder: Forwarder[str] = Forwarder(10 * MESSAGE_OVERHEAD_BYTES)
    for number in range(10):
        assert forwarder.take_in(header(number), b"", FRESH, "dead", 0.0, "Mallory") is None
    assert not forwarder.make_room(b"", "Mallory")
    assert number_of(forwarder.take_in(header(10), b"", FRESH, "dead", 0.0, "Mallory")) == 11289
    theirs = [header(number, conversation=UUID(int=9)) for number in range(6)]
    for their_header in theirs[:5]:
        (dropped,) = forwarder.make_room(b"", "Bob")
        assert dropped.error.number == 11289
        assert dropped.header.conversation_id != their_header.conversation_id
        assert forwarder.take_in(their_header, b"", FRESH, "next", 0.0, "Bob") is None
    assert [held.header.number for held in forwarder if held.owner == "Mallory"] == [0, 1, 2, 3, 4]
    for owner in ("Bob", "Mallory"):  # each owner has half of the memory
        assert not forwarder.make_room(b"", owner)
        assert number_of(forwarder.take_in(theirs[5], b"", FRESH, "next", 0.0, owner)) == 11289
    for _ in range(5):
        pass_on(forwarder, "dead", 0.0)
    assert not forwarder.make_room(b"", "Bob")
    assert forwarder.take_in(theirs[5], b"", FRESH, "next", 0.0, "Bob") is None


@pytest.mark.feature(153)
def test_no_message_is_dropped_for_one_that_is_refused_anyway() -> None:
    """Two owners hold half of the memory each. A fair drop frees three tenths of it, but not four."""
    forwarder: Forwarder[str] = Forwarder(10 * MESSAGE_OVERHEAD_BYTES)
    for number in range(5):
        assert forwarder.take_in(header(number), b"", FRESH, "dead", 0.0, "Mallory") is None
        assert forwarder.take_in(header(number + 5), b"", FRESH, "dead", 0.0, "Bob") is None
    three, four = bytes(2 * MESSAGE_OVERHEAD_BYTES), bytes(3 * MESSAGE_OVERHEAD_BYTES)
    assert not forwarder.make_room(four, "Carol")
    assert len(forwarder) == 10
    assert len(forwarder.make_room(three, "Carol")) == 3
    assert forwarder.take_in(header(10), three, FRESH, "dead", 0.0, "Carol") is None


def test_held_messages_can_be_listed_during_changes_by_another_thread() -> None:
    """The daemon lists the messages of every partition for sys.dm_broker_forwarded_messages."""
    forwarder: Forwarder[str] = Forwarder(100_000_000)
    is_over = threading.Event()

    def busy() -> None:
        for number in itertools.count():
            forwarder.take_in(header(number), b"", FRESH, "next", 0.0)
            if len(forwarder) > 3_000 or is_over.is_set():
                forwarder.drop_all(9792)
            if is_over.is_set():
                return

    thread = threading.Thread(target=busy)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        thread.start()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert all(forwarded.hop == "next" for forwarded in forwarder)
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        thread.join()
