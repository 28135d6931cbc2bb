from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.model.errors import RULES
from servicebroker.protocol.dialog import (
    GONE,
    TRANSITIONS,
    Acknowledged,
    Dialog,
    Dropped,
    Failed,
    Happening,
    Identity,
    Sending,
    Transmission,
    TransmissionState,
    pack,
    unpack,
)
from servicebroker.protocol.envelope import (
    Acknowledgement,
    BrokerFailure,
    Content,
    Header,
    Kind,
    Opening,
    Part,
    Payload,
)
from servicebroker.protocol.incoming import Kept
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.outgoing import NEVER

CONVERSATION, HERE, THERE, ELSEWHERE = (UUID(int=number) for number in range(1, 5))
LIMITS = Limits(fragment_size=100, window=1_000, message_cost=10)


def dialog(is_initiator: bool = True, state: TransmissionState | None = None, **changes: Any) -> Dialog:
    own, far = ("//here", "//there") if is_initiator else ("//there", "//here")
    identity = Identity(CONVERSATION, is_initiator, HERE if is_initiator else THERE, own, far, "//contract", 1_000.0)
    return Dialog(identity._replace(**changes), state or TransmissionState(), lambda: 0.5, LIMITS)


def target(**changes: Any) -> Dialog:
    return dialog(False, TransmissionState(far_broker=HERE), **changes)


def send(from_: Dialog, now: float = 0.0) -> Transmission:
    transmission = from_.transmit(now)
    assert transmission is not None
    return transmission


def bodies(transmission: Transmission, content: Content = Content.DATA) -> Payload:
    """As if every message had a body of x."""
    if transmission.cut is None:
        return transmission.payload
    cut = transmission.cut
    count = cut.last - cut.first + 1
    return tuple(Part("t", content, b"x" * (cut.length // count)) for _ in range(count))


def carry(from_: Dialog, to: Dialog, content: Content = Content.DATA) -> list[Any]:
    transmission = send(from_)
    return to.arrived(transmission.header, bodies(transmission, content))


def store(at: Dialog) -> None:
    assert at.batch() is not None
    at.committed()


def conversing() -> tuple[Dialog, Dialog]:
    """Both sides after a first message and its acknowledgement."""
    initiator, other = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, other)
    store(other)
    (event,) = carry(other, initiator)
    initiator.deleted(event)
    return initiator, other


def test_nothing_to_do_at_first() -> None:
    fresh = dialog()
    assert not fresh.has_work(0.0)
    assert fresh.transmit(0.0) is None
    assert fresh.wake_at == NEVER
    assert fresh.is_idle
    assert fresh.status == ""


def test_the_initiator_introduces_itself_until_anything_is_acknowledged() -> None:
    initiator, other = dialog(), target()
    initiator.offer(0, 10)
    initiator.offer(1, 300)
    first, second = send(initiator, 400.0), send(initiator, 400.5)
    assert first.header == Header(
        CONVERSATION, True, Kind.RUN, False, "//there", None, "//here", HERE, 0, 0, 1, None, Opening("//contract", 600)
    )
    assert second.header.opening == Opening("//contract", 599)
    other.arrived(first.header, bodies(first))
    store(other)
    assert carry(other, initiator) == [Acknowledged(1, THERE)]
    third = send(initiator).header
    assert (third.opening, third.to_broker) == (None, THERE)


def test_a_lifetime_that_is_over_is_never_below_zero() -> None:
    initiator = dialog()
    initiator.offer(0, 1)
    assert send(initiator, 5_000.0).header.opening == Opening("//contract", 0)


def test_an_acknowledgement_leaves_only_after_the_commit() -> None:
    initiator, other = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, other)
    assert not other.has_work(0.0)
    batch = other.batch()
    assert batch is not None
    assert not other.has_work(0.0)
    other.committed()
    transmission = send(other)
    assert transmission.header.kind is Kind.ACKNOWLEDGEMENT
    assert transmission.header.acknowledgement == Acknowledgement(1)
    assert not other.has_work(0.0)


def test_an_acknowledgement_rides_on_a_message_that_travels_anyway() -> None:
    initiator, other = dialog(), target()
    for number in range(3):
        initiator.offer(number, 10)
    carry(initiator, other)
    store(other)
    other.offer(0, 10)
    transmission = send(other)
    assert transmission.header.kind is Kind.RUN
    assert transmission.header.acknowledgement == Acknowledgement(3)
    assert initiator.arrived(transmission.header, bodies(transmission)) == [Acknowledged(3, THERE)]
    assert not other.has_work(0.0)


def test_a_batch_that_was_rolled_back_is_not_acknowledged() -> None:
    initiator, other = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, other)
    other.batch()
    other.rolled_back()
    assert not other.has_work(0.0)


def test_a_duplicate_is_acknowledged_again() -> None:
    initiator, other = dialog(), target()
    initiator.offer(0, 10)
    transmission = send(initiator)
    other.arrived(transmission.header, bodies(transmission))
    store(other)
    send(other)
    (event,) = other.arrived(transmission.header, bodies(transmission))
    assert event == Dropped(11218, RULES[11218].text)
    assert send(other).header.acknowledgement == Acknowledgement(1)


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"is_from_initiator": True}, 11221),
        ({"to_service": "//else"}, 11222),
        ({"from_broker": ELSEWHERE}, 11224),
        ({"acknowledgement": Acknowledgement(9)}, 28010),
    ],
)
def test_frames_that_are_not_for_this_endpoint(changes: dict[str, Any], number: int) -> None:
    initiator, other = conversing()
    other.offer(0, 10)
    header = msgspec.structs.replace(send(other).header, kind=Kind.ACKNOWLEDGEMENT, **changes)
    (event,) = initiator.arrived(header, None)
    assert event.number == number
    assert initiator.is_idle


def test_a_conversation_has_one_contract() -> None:
    initiator, other = dialog(contract="//other"), target()
    initiator.offer(0, 10)
    (event,) = carry(initiator, other)
    assert event.number == 11223
    assert other.batch() is None


def test_fragments_that_differ_and_messages_too_far_are_explained() -> None:
    other = target()
    header = Header(CONVERSATION, True, Kind.FRAGMENT, False, "//there", THERE, "//here", HERE, 0, 0, 3)
    part = (Part("t", Content.DATA, b"x"),)
    assert other.arrived(header, part) == []
    (event,) = other.arrived(msgspec.structs.replace(header, fragment=1, fragments=2), part)
    assert event.number == 11221
    (event,) = other.arrived(msgspec.structs.replace(header, number=2**40), part)
    assert event == Dropped(11217, RULES[11217].text.format(0, 2**40))
    other.arrived(
        msgspec.structs.replace(header, number=1, fragments=1, kind=Kind.RUN), (Part("t", Content.END, None),)
    )
    (event,) = other.arrived(msgspec.structs.replace(header, number=2), part)
    assert event.number == 11212


def test_an_end_is_the_last_that_is_sent() -> None:
    initiator, other = conversing()
    initiator.offer(1, 0, Content.END)
    assert initiator.sending is Sending.ENDING
    assert initiator.room == 0
    with pytest.raises(ValueError, match="behind the end"):
        initiator.offer(2, 10)
    carry(initiator, other, Content.END)
    store(other)
    assert other.sending is Sending.HELD
    assert carry(other, initiator) == [Acknowledged(2, THERE)]
    assert initiator.sending is Sending.ENDED


def test_what_a_side_has_to_send_is_held_when_the_peer_has_ended() -> None:
    initiator, other = conversing()
    other.offer(0, 10)
    initiator.offer(1, 0, Content.END)
    carry(initiator, other, Content.END)
    store(other)
    assert send(other).header.kind is Kind.ACKNOWLEDGEMENT
    assert not other.has_work(100.0)
    assert other.wake_at == NEVER
    assert other.status == RULES[9779].text
    other.end()
    assert send(other).header.kind is Kind.RUN
    assert other.status == ""


def test_an_error_goes_past_what_was_not_acknowledged() -> None:
    initiator, other = conversing()
    initiator.offer(1, 900)
    send(initiator)
    initiator.offer(5, 30, Content.ERROR)
    transmission = send(initiator)
    assert transmission.header.number == 5
    other.arrived(transmission.header, bodies(transmission, Content.ERROR))
    store(other)
    assert carry(other, initiator) == [Acknowledged(6, THERE)]
    assert initiator.sending is Sending.ENDED


def test_a_refusal_is_repeated_each_time_the_peer_tries_again() -> None:
    initiator, other = dialog(), target()
    failure = BrokerFailure(-8408, "no such contract")
    initiator.offer(0, 10)
    other.refuse(failure)
    transmission = send(other)
    assert (transmission.header.kind, transmission.payload) == (Kind.FAILURE, failure)
    assert not other.has_work(0.0)
    (event,) = carry(initiator, other)
    assert event.number == 11212
    assert other.batch() is None
    transmission = send(other)
    assert initiator.arrived(transmission.header, failure) == [Failed(failure)]
    assert initiator.arrived(transmission.header, failure) == []
    assert initiator.sending is Sending.FAILED
    assert initiator.status == RULES[9784].text
    initiator.tick(10.0)
    assert not initiator.has_work(10.0)


def test_a_closed_endpoint_acknowledges_what_it_has_and_refuses_the_rest() -> None:
    initiator, other = conversing()
    other.close()
    initiator.offer(1, 10)
    carry(initiator, other)
    transmission = send(other)
    assert transmission.payload == GONE
    again = msgspec.structs.replace(send_header(initiator), number=0, kind=Kind.RUN)
    (event,) = other.arrived(again, (Part("t", Content.DATA, b"x"),))
    assert event.number == 11218
    assert send(other).header.kind is Kind.ACKNOWLEDGEMENT


def send_header(from_: Dialog) -> Header:
    from_.offer(from_.next_to_offer, 1)
    return send(from_).header


@pytest.mark.parametrize("happening", Happening)
@pytest.mark.parametrize("sending", Sending)
def test_every_happening_in_every_state(sending: Sending, happening: Happening) -> None:
    flowing, held, ending, ended, failed, closed = Sending
    expected = {
        Happening.ENDED_HERE: {flowing: ending, held: ending},
        Happening.PEER_ENDED: {flowing: held},
        Happening.END_ACKNOWLEDGED: {ending: ended},
        Happening.FAILURE_ARRIVED: {flowing: failed, ending: failed},
        Happening.CLOSED_HERE: dict.fromkeys(Sending, closed),
    }[happening]
    assert TRANSITIONS.get((sending, happening), sending) is expected.get(sending, sending)


def test_a_lost_link_says_why_and_is_tried_again() -> None:
    initiator = dialog()
    initiator.offer(0, 10)
    initiator.link_down(0.0, "unreachable")
    assert initiator.status == "unreachable"
    assert not initiator.has_work(1.0)
    assert initiator.wake_at == 4.0
    assert initiator.is_idle
    initiator.tick(4.0)
    assert initiator.has_work(4.0)
    assert not initiator.is_idle
    initiator.link_down(4.0, "unreachable")
    initiator.link_up()
    assert initiator.status == ""
    assert initiator.has_work(4.1)


def test_an_acknowledgement_alone_asks_for_a_link_too() -> None:
    initiator, other = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, other)
    store(other)
    other.link_down(0.0, "unreachable")
    assert other.wake_at == 4.0
    assert not other.is_idle
    other.tick(4.0)
    assert other.has_work(4.0)


def test_it_is_saved_only_at_rest_and_goes_on_from_there() -> None:
    initiator, other = conversing()
    assert initiator.dirty
    saved = initiator.save()
    assert not initiator.dirty
    again = dialog(state=unpack(saved))
    again.offer(1, 10)
    header = send(again).header
    assert (header.number, header.to_broker, header.opening) == (1, THERE, None)
    assert not again.is_idle
    other_again = dialog(False, unpack(other.save()))
    other_again.arrived(header, (Part("t", Content.DATA, b"x"),))
    batch = other_again.batch()
    assert batch is not None
    assert (batch.expected, batch.reached) == (1, 2)


def test_rows_that_are_not_deleted_yet_are_offered_again_after_a_restart() -> None:
    initiator, other = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, other)
    store(other)
    (event,) = carry(other, initiator)
    assert not initiator.is_idle
    assert unpack(initiator.save()).base == 0
    initiator.deleted(event)
    assert initiator.is_idle
    assert unpack(initiator.save()).base == 1


def test_a_peer_that_has_ended_is_known_after_a_restart() -> None:
    assert dialog(state=TransmissionState(next=3, final=2)).sending is Sending.HELD
    closed = dialog(state=TransmissionState(sending=Sending.CLOSED, far_broker=THERE))
    assert closed.sending is Sending.CLOSED


kept = st.builds(Kept, st.just(500), st.integers(0, 2**500 - 1), st.integers(0, 2**31), st.sampled_from(Content))
states = st.builds(
    TransmissionState,
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 100),
    st.sampled_from(Sending),
    st.none() | st.uuids(),
    st.booleans(),
    st.integers(0, 2**62),
    st.none() | st.integers(0, 2**62),
    st.dictionaries(st.integers(0, 2**62), kept, max_size=3),
)


@given(states)
def test_a_state_is_packed_and_unpacked(state: TransmissionState) -> None:
    assert unpack(pack(state)) == state


@pytest.mark.feature(137)
def test_a_transmission_object_takes_about_one_kilobyte() -> None:
    initiator, _ = conversing()
    assert len(initiator.save()) < 100
    shared = {id(LIMITS), id(initiator.identity), *map(id, initiator.identity)}
    assert size_of(initiator, shared) < 1_500


def size_of(thing: object, seen: set[int]) -> int:
    """Bytes of an object and of what it alone refers to."""
    if id(thing) in seen or isinstance(thing, (type, Limits)) or callable(thing):
        return 0
    seen.add(id(thing))
    inner = [getattr(thing, slot, None) for slot in getattr(type(thing), "__slots__", ())]
    if isinstance(thing, dict):
        inner += [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple)):
        inner += thing
    return sys.getsizeof(thing) + sum(size_of(one, seen) for one in inner if not isinstance(one, (bool, type(None))))


def test_an_acknowledgement_that_says_nothing_new_changes_nothing() -> None:
    initiator, other = conversing()
    initiator.save()
    other.offer(0, 10)
    transmission = send(other)
    assert initiator.arrived(transmission.header, None) == []
    assert not initiator.dirty
