from __future__ import annotations

import sys
from random import Random
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
    ClockDiffers,
    Dialog,
    DialogEvent,
    Diverged,
    Dropped,
    Failed,
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
    Exchange,
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
    return dialog(False, TransmissionState(peer_broker=HERE), **changes)


def send(from_: Dialog, now: float = 0.0) -> Transmission:
    transmission = from_.transmit(now)
    assert transmission is not None
    return transmission


def send_one(from_: Dialog) -> Transmission:
    from_.offer(from_.next_to_offer, 10)
    return send(from_)


def send_again(from_: Dialog, now: float = 5.0) -> Transmission:
    """Let the retry timer fire at `now`, and return the retransmission."""
    from_.tick(now)
    return send(from_, now)


def bodies(transmission: Transmission, content: Content = Content.DATA) -> Payload:
    """Return the payload of a transmission, as if every body consisted of x."""
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
    """Return both sides after a first message and its acknowledgement."""
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, target_dialog)
    store(target_dialog)
    (event,) = carry(target_dialog, initiator)
    initiator.deleted(event)
    return initiator, target_dialog


def test_a_new_dialog_has_no_work() -> None:
    fresh = dialog()
    assert not fresh.has_work(0.0)
    assert fresh.transmit(0.0) is None
    assert fresh.wake_at == NEVER
    assert fresh.is_idle
    assert fresh.status == ""


def test_the_initiator_introduces_itself_until_anything_is_acknowledged() -> None:
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    initiator.offer(1, 300)
    first, second = send(initiator, 400.0), send(initiator, 400.5)
    assert first.header == Header(
        CONVERSATION,
        True,
        Kind.RUN,
        False,
        "//there",
        None,
        "//here",
        HERE,
        0,
        0,
        1,
        None,
        Opening("//contract", 600),
        floor=0,
    )
    assert second.header.opening == Opening("//contract", 599)
    target_dialog.arrived(first.header, bodies(first))
    store(target_dialog)
    assert carry(target_dialog, initiator) == [Acknowledged(1, THERE)]
    third = send(initiator).header
    assert (third.opening, third.to_broker) == (None, THERE)


def test_a_target_sends_its_clock_until_it_has_opened_the_conversation() -> None:
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    sent = send(initiator)
    told = msgspec.structs.replace(send_header(sides_after(1)[1]), acknowledgement=None, clock=1_000)
    assert initiator.arrived(told, None) == [ClockDiffers(1_000)]
    assert initiator.arrived(msgspec.structs.replace(told, from_broker=ELSEWHERE), None) == [ClockDiffers(1_000)]
    target_dialog.arrived(sent.header, bodies(sent))
    store(target_dialog)
    carry(target_dialog, initiator)
    assert initiator.arrived(told, None) == []
    assert target_dialog.arrived(msgspec.structs.replace(sent.header, clock=1_000), None) == []


def test_a_silent_peer_is_told_the_session_key_again() -> None:
    """The peer may have been restored from a backup that was made before it knew the key."""
    exchange = Exchange(UUID(int=9), b"mine", b"theirs", b"", b"wrapped", b"signed")
    initiator, target_dialog = dialog(), target(is_secured=True, exchange=exchange)
    initiator.offer(0, 1)
    carry(initiator, target_dialog)
    store(target_dialog)
    target_dialog.offer(0, 1)
    assert send(target_dialog).header.exchange == exchange
    initiator.arrived(send_again(target_dialog).header, (Part("t", Content.DATA, b"x"),))
    store(initiator)
    carry(initiator, target_dialog)
    target_dialog.offer(1, 1)
    assert [send(target_dialog).header.exchange, send_again(target_dialog, 5.0).header.exchange] == [None, None]
    silent = send_again(target_dialog, 20.0).header
    assert target_dialog.is_unanswered
    assert silent.exchange == exchange
    initiator.arrived(silent, (Part("t", Content.DATA, b"x"),))
    store(initiator)
    carry(initiator, target_dialog)
    target_dialog.offer(2, 1)
    assert send(target_dialog).header.exchange is None


def test_a_lifetime_that_is_over_is_never_below_zero() -> None:
    initiator = dialog()
    initiator.offer(0, 1)
    assert send(initiator, 5_000.0).header.opening == Opening("//contract", 0)


def test_an_acknowledgement_leaves_only_after_the_commit() -> None:
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, target_dialog)
    assert not target_dialog.has_work(0.0)
    batch = target_dialog.batch()
    assert batch is not None
    assert not target_dialog.has_work(0.0)
    target_dialog.committed()
    transmission = send(target_dialog)
    assert transmission.header.kind is Kind.ACKNOWLEDGEMENT
    assert transmission.header.acknowledgement == Acknowledgement(1)
    assert not target_dialog.has_work(0.0)


def test_an_acknowledgement_rides_on_a_message_that_travels_anyway() -> None:
    initiator, target_dialog = dialog(), target()
    for number in range(3):
        initiator.offer(number, 10)
    carry(initiator, target_dialog)
    store(target_dialog)
    target_dialog.offer(0, 10)
    transmission = send(target_dialog)
    assert transmission.header.kind is Kind.RUN
    assert transmission.header.acknowledgement == Acknowledgement(3)
    assert initiator.arrived(transmission.header, bodies(transmission)) == [Acknowledged(3, THERE)]
    assert not target_dialog.has_work(0.0)


def test_a_batch_that_was_rolled_back_is_not_acknowledged() -> None:
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, target_dialog)
    target_dialog.batch()
    target_dialog.rolled_back()
    assert not target_dialog.has_work(0.0)


def test_a_duplicate_is_acknowledged_again() -> None:
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    transmission = send(initiator)
    target_dialog.arrived(transmission.header, bodies(transmission))
    store(target_dialog)
    send(target_dialog)
    (event,) = target_dialog.arrived(transmission.header, bodies(transmission))
    assert event == Dropped(11218, RULES[11218].text)
    assert send(target_dialog).header.acknowledgement == Acknowledgement(1)


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"is_from_initiator": True}, 11221),
        ({"to_service": "//else"}, 11222),
        ({"from_broker": ELSEWHERE}, 11224),
    ],
)
def test_frames_that_are_not_for_this_endpoint(changes: dict[str, Any], number: int) -> None:
    initiator, target_dialog = conversing()
    target_dialog.offer(0, 10)
    header = msgspec.structs.replace(send(target_dialog).header, kind=Kind.ACKNOWLEDGEMENT, **changes)
    (event,) = initiator.arrived(header, None)
    assert event.number == number
    assert initiator.is_idle


# --- one side was restored from a backup


def token_of(number: int, history: str = "a") -> bytes:
    """Return the token of a message in one of two histories."""
    return f"{history}{number:07}".encode()


def say(from_: Dialog, count: int = 1, history: str = "a", content: Content = Content.DATA) -> None:
    for number in range(from_.next_to_offer, from_.next_to_offer + count):
        from_.offer(number, 10, content, token_of(number, history))


def move(from_: Dialog, to: Dialog, history: str = "a") -> list[Any]:
    """Deliver all transmissions of one side, and return the events of the other side."""
    events = []
    while (transmission := from_.transmit(0.0)) is not None:
        payload, cut = transmission.payload, transmission.cut
        if cut is not None:
            numbers = range(cut.first, cut.last + 1)
            payload = tuple(Part("t", Content.DATA, b"x" * 10, token_of(number, history)) for number in numbers)
        number = to.token_to_recall(transmission.header)
        events += to.arrived(transmission.header, payload, None if number is None else token_of(number, history))
        if to.batch() is not None:
            to.committed()
    return events


def sides_after(count: int) -> tuple[Dialog, Dialog]:
    """Return both sides after `count` messages that were delivered and acknowledged."""
    initiator, target_dialog = dialog(), target()
    say(initiator, count)
    move(initiator, target_dialog)
    (event,) = move(target_dialog, initiator)
    initiator.deleted(event)
    return initiator, target_dialog


def check_diverged(at: Dialog, peer: Dialog, apart: Any, *, is_here: bool) -> None:
    """Check that this side has failed, that it sends only the error, and that the peer gets it."""
    assert isinstance(apart, Diverged)
    assert (apart.is_here, apart.own.code, apart.far.code) == (
        is_here,
        *((-9719, -9720) if is_here else (-9720, -9719)),
    )
    assert (at.sending, at.batch()) == (Sending.FAILED, None)
    transmission = send(at)
    assert transmission.payload == apart.far
    assert peer.arrived(transmission.header, apart.far)[-1] == Failed(apart.far)


def test_tokens_of_one_history_change_nothing() -> None:
    initiator, target_dialog = sides_after(5)
    say(initiator, 300)
    for _ in range(10):
        assert not [event for event in move(initiator, target_dialog) if not isinstance(event, Acknowledged)]
        move(target_dialog, initiator)
    assert (initiator.next_to_offer, initiator.is_idle) == (305, False)
    assert unpack(target_dialog.save()).token == token_of(304)


@pytest.mark.parametrize("count", [1, 3])
def test_a_sender_that_went_back_learns_it_from_the_acknowledgement(count: int) -> None:
    _, target_dialog = sides_after(9)
    initiator = dialog(state=TransmissionState(5, 5, peer_broker=THERE, is_acknowledged=True))
    say(initiator, count, "b")
    (event,) = move(initiator, target_dialog, "b")
    assert event.number == 11218  # no evidence of a different message yet
    (apart,) = move(target_dialog, initiator, "b")
    assert apart.what == f"The messages {5 + count} to 8 were acknowledged, and never sent."
    check_diverged(initiator, target_dialog, apart, is_here=True)


@pytest.mark.parametrize("count", [4, 6])
def test_a_sender_that_went_back_is_known_by_the_last_message(count: int) -> None:
    _, target_dialog = sides_after(9)
    initiator = dialog(state=TransmissionState(5, 5, peer_broker=THERE, is_acknowledged=True))
    say(initiator, count, "b")
    (apart, *_) = move(initiator, target_dialog, "b")
    assert apart.what == "Message 8 has come twice, and differs."
    check_diverged(target_dialog, initiator, apart, is_here=False)


def test_a_message_after_an_unknown_one_is_refused() -> None:
    """The frames before this message were lost."""
    _, target_dialog = sides_after(9)
    initiator = dialog(state=TransmissionState(5, 5, peer_broker=THERE, is_acknowledged=True))
    say(initiator, 4, "b")
    send(initiator)
    say(initiator, 1, "b")
    (apart,) = move(initiator, target_dialog, "b")
    check_diverged(target_dialog, initiator, apart, is_here=False)


def test_a_message_after_another_kept_one_is_refused() -> None:
    """The message was acknowledged beyond a gap, so the sender does not send it again."""
    initiator, target_dialog = sides_after(5)
    say(initiator)
    send(initiator)  # the frame is lost
    say(initiator)
    move(initiator, target_dialog)
    initiator = dialog(state=TransmissionState(5, 5, peer_broker=THERE, is_acknowledged=True))
    say(initiator, 2, "b")
    send(initiator)
    say(initiator, 1, "b")
    (apart,) = move(initiator, target_dialog, "b")
    assert apart.what == "Message 6 has come twice, and differs."
    check_diverged(target_dialog, initiator, apart, is_here=False)


def test_messages_sent_before_a_restore_are_detected() -> None:
    _, target_dialog = sides_after(9)
    initiator = dialog(state=TransmissionState(5, 12, peer_broker=THERE, is_acknowledged=True))
    say(initiator, 1, "b")
    move(initiator, target_dialog, "b")
    (apart,) = move(target_dialog, initiator, "b")
    assert apart.what == "Message 8 was acknowledged, and is not the one that was sent."
    same = dialog(state=TransmissionState(5, 12, peer_broker=THERE, is_acknowledged=True))
    say(same)
    move(same, target_dialog)
    assert move(target_dialog, same) == [Acknowledged(9, THERE)]


def test_any_frame_tells_a_restored_receiver_of_its_loss() -> None:
    for has_message in (True, False):
        initiator, _ = sides_after(9)
        target_dialog = dialog(False, TransmissionState(next=5, peer_broker=HERE, token=token_of(4)))
        if has_message:
            say(initiator)
        else:
            target_dialog.offer(0, 1)
            initiator.arrived(send(target_dialog).header, (Part("t", Content.DATA, b"x", None),))
            store(initiator)
        *_, apart = move(initiator, target_dialog)
        assert apart.what == "The messages 5 to 8 were acknowledged, and are not known."
        check_diverged(target_dialog, initiator, apart, is_here=True)


def test_a_copy_that_has_missed_nothing_goes_on() -> None:
    """The copy retransmits messages that were not acknowledged when it was made."""
    _, target_dialog = sides_after(9)
    initiator = dialog(state=TransmissionState(5, 9, peer_broker=THERE, is_acknowledged=True))
    say(initiator, 4)
    assert [event.number for event in move(initiator, target_dialog)] == [11218]
    assert move(target_dialog, initiator) == [Acknowledged(9, THERE)]


def test_the_ending_side_knows_the_acknowledged_count_before_the_end_is_offered() -> None:
    """The receiver waits for a message that was acknowledged, and the window is full."""
    initiator = dialog(state=TransmissionState(5, 500, sending=Sending.ENDING, peer_broker=THERE, is_acknowledged=True))
    assert not initiator.has_work(0.0)
    say(initiator)
    assert send(initiator).header.floor == 5


def test_an_error_leaves_out_messages_and_says_nothing_of_them() -> None:
    initiator, target_dialog = sides_after(2)
    initiator.offer(9, 1, Content.ERROR, token_of(9))
    transmission = send(initiator)
    assert transmission.header.floor is None
    assert target_dialog.arrived(transmission.header, (Part("t", Content.ERROR, b"x", token_of(9)),)) == []
    store(target_dialog)
    assert move(target_dialog, initiator) == [Acknowledged(10, THERE)]


def test_fragments_of_two_histories_make_no_message() -> None:
    initiator, target_dialog = sides_after(1)
    initiator.offer(1, 250, Content.DATA, token_of(1))
    header = send(initiator).header
    target_dialog.arrived(header, (Part("t", Content.DATA, b"x" * 100, token_of(1)),))
    store(target_dialog)
    following = msgspec.structs.replace(header, fragment=1)
    (apart,) = target_dialog.arrived(following, (Part("t", Content.DATA, b"x" * 100, token_of(1, "b")),))
    check_diverged(target_dialog, initiator, apart, is_here=False)


def test_a_divergence_is_reported_once_and_answered_each_time() -> None:
    initiator, target_dialog = sides_after(9)
    target_dialog = dialog(False, TransmissionState(next=5, peer_broker=HERE))
    say(initiator)
    transmission = send(initiator)
    payload = (Part("t", Content.DATA, b"x" * 10, token_of(9)),)
    assert len(target_dialog.arrived(transmission.header, payload)) == 1
    send(target_dialog)
    (event,) = target_dialog.arrived(transmission.header, payload)
    assert event.number == 11212
    assert isinstance(send(target_dialog).payload, BrokerFailure)
    assert target_dialog.transmit(0.0) is None


def test_a_conversation_has_one_contract() -> None:
    initiator, target_dialog = dialog(contract="//other"), target()
    initiator.offer(0, 10)
    (event,) = carry(initiator, target_dialog)
    assert event.number == 11223
    assert target_dialog.batch() is None


def test_fragments_that_differ_and_messages_too_far_are_explained() -> None:
    target_dialog = target()
    header = Header(CONVERSATION, True, Kind.FRAGMENT, False, "//there", THERE, "//here", HERE, 0, 0, 3)
    part = (Part("t", Content.DATA, b"x" * LIMITS.fragment_size),)
    assert target_dialog.arrived(header, part) == []
    (event,) = target_dialog.arrived(msgspec.structs.replace(header, fragment=1), (Part("t", Content.DATA, b"x"),))
    assert event.number == 11221
    (event,) = target_dialog.arrived(msgspec.structs.replace(header, fragment=1, fragments=2), part)
    assert event.number == 11221
    (event,) = target_dialog.arrived(msgspec.structs.replace(header, number=2**40), part)
    assert event == Dropped(11217, RULES[11217].text.format(0, 2**40))
    target_dialog.arrived(
        msgspec.structs.replace(header, number=1, fragments=1, kind=Kind.RUN), (Part("t", Content.END, None),)
    )
    (event,) = target_dialog.arrived(msgspec.structs.replace(header, number=2), part)
    assert event.number == 11212


def test_an_end_is_the_last_that_is_sent() -> None:
    initiator, target_dialog = conversing()
    initiator.offer(1, 0, Content.END)
    assert initiator.sending is Sending.ENDING
    assert initiator.room == 0
    with pytest.raises(ValueError, match="behind the end"):
        initiator.offer(2, 10)
    carry(initiator, target_dialog, Content.END)
    store(target_dialog)
    assert target_dialog.sending is Sending.HELD
    assert carry(target_dialog, initiator) == [Acknowledged(2, THERE)]
    assert initiator.sending is Sending.ENDED


def test_pending_messages_are_held_after_the_peers_end() -> None:
    initiator, target_dialog = conversing()
    target_dialog.offer(0, 10)
    initiator.offer(1, 0, Content.END)
    carry(initiator, target_dialog, Content.END)
    store(target_dialog)
    assert send(target_dialog).header.kind is Kind.ACKNOWLEDGEMENT
    assert not target_dialog.has_work(100.0)
    assert target_dialog.wake_at == NEVER
    assert target_dialog.status == RULES[9779].text
    target_dialog.end()
    assert send(target_dialog).header.kind is Kind.RUN
    assert target_dialog.status == ""


def test_an_error_overtakes_unacknowledged_messages() -> None:
    initiator, target_dialog = conversing()
    initiator.offer(1, 900)
    send(initiator)
    initiator.offer(5, 30, Content.ERROR)
    transmission = send(initiator)
    assert transmission.header.number == 5
    target_dialog.arrived(transmission.header, bodies(transmission, Content.ERROR))
    store(target_dialog)
    assert carry(target_dialog, initiator) == [Acknowledged(6, THERE)]
    assert initiator.sending is Sending.ENDED


def test_a_refusal_is_repeated_each_time_the_peer_tries_again() -> None:
    initiator, target_dialog = dialog(), target()
    failure = BrokerFailure(-8408, "no such contract")
    initiator.offer(0, 10)
    target_dialog.refuse(failure)
    transmission = send(target_dialog)
    assert (transmission.header.kind, transmission.payload) == (Kind.FAILURE, failure)
    assert not target_dialog.has_work(0.0)
    (event,) = carry(initiator, target_dialog)
    assert event.number == 11212
    assert target_dialog.batch() is None
    transmission = send(target_dialog)
    assert initiator.arrived(transmission.header, failure) == [Failed(failure)]
    assert initiator.arrived(transmission.header, failure) == []
    assert initiator.sending is Sending.FAILED
    assert initiator.status == RULES[9784].text
    initiator.tick(10.0)
    assert not initiator.has_work(10.0)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_failed_endpoint_takes_nothing_new(is_told: bool) -> None:
    """The failure may come from the peer's broker, or the endpoint may be loaded as failed from the database."""
    initiator, target_dialog = dialog(), dialog(False, TransmissionState(sending=Sending.FAILED, peer_broker=HERE))
    if is_told:
        target_dialog = target()
        header = msgspec.structs.replace(send_one(initiator).header, kind=Kind.FAILURE)
        assert target_dialog.arrived(header, BrokerFailure(-9720, "an old copy")) == [
            Failed(BrokerFailure(-9720, "an old copy"))
        ]
    initiator.offer(initiator.next_to_offer, 10)
    initiator.tick(100.0)
    again = send(initiator, 100.0)
    assert [event.number for event in target_dialog.arrived(again.header, bodies(again))] == [11212]
    assert target_dialog.batch() is None
    assert send(target_dialog).payload == GONE


def test_a_closed_endpoint_acknowledges_stored_messages_and_refuses_others() -> None:
    initiator, target_dialog = conversing()
    target_dialog.close()
    initiator.offer(1, 10)
    carry(initiator, target_dialog)
    transmission = send(target_dialog)
    assert transmission.payload == GONE
    again = msgspec.structs.replace(send_header(initiator), number=0, kind=Kind.RUN)
    (event,) = target_dialog.arrived(again, (Part("t", Content.DATA, b"x"),))
    assert event.number == 11218
    assert send(target_dialog).header.kind is Kind.ACKNOWLEDGEMENT


def send_header(from_: Dialog) -> Header:
    from_.offer(from_.next_to_offer, 1)
    return send(from_).header


@pytest.mark.parametrize("event", DialogEvent)
@pytest.mark.parametrize("sending", Sending)
def test_every_event_in_every_state(sending: Sending, event: DialogEvent) -> None:
    flowing, held, ending, ended, failed, closed = Sending
    expected = {
        DialogEvent.ENDED_HERE: {flowing: ending, held: ending},
        DialogEvent.PEER_ENDED: {flowing: held},
        DialogEvent.END_ACKNOWLEDGED: {ending: ended},
        DialogEvent.FAILURE_ARRIVED: {flowing: failed, ending: failed},
        DialogEvent.CLOSED_HERE: dict.fromkeys(Sending, closed),
        DialogEvent.DIVERGED: dict.fromkeys((flowing, held, ending), failed),
    }[event]
    assert TRANSITIONS.get((sending, event), sending) is expected.get(sending, sending)


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
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, target_dialog)
    store(target_dialog)
    target_dialog.link_down(0.0, "unreachable")
    assert target_dialog.wake_at == 4.0
    assert not target_dialog.is_idle
    target_dialog.tick(4.0)
    assert target_dialog.has_work(4.0)


@given(st.integers(0, 2**32), st.lists(st.sampled_from([0, 10, 60, 99, 101, 250, 950]), min_size=1, max_size=12))
def test_all_messages_arrive_despite_lost_and_late_frames(seed: int, sizes: list[int]) -> None:
    """Half of all frames are lost for two minutes. Then two of the longest retry delays must be enough."""
    random, initiator, target_dialog = Random(seed), dialog(), target()
    under_way: list[tuple[float, Dialog, Transmission]] = []
    offered = 0
    for now in range(400):
        while offered < len(sizes) and initiator.room > 0:
            initiator.offer(offered, sizes[offered])
            offered += 1
        for here, there in ((initiator, target_dialog), (target_dialog, initiator)):
            here.tick(now)
            while (transmission := here.transmit(now)) is not None:
                if now >= 120 or random.random() < 0.5:
                    under_way.append((now + random.choice([0, 0, 1, 5]), there, transmission))
        for frame in [entry for entry in under_way if entry[0] <= now]:
            under_way.remove(frame)
            frame[1].arrived(frame[2].header, bodies(frame[2]))
        if random.random() < 0.8 and target_dialog.batch() is not None:
            target_dialog.committed()
    assert offered == len(sizes)
    assert not initiator.has_work(10_000.0)
    assert target_dialog.save() == dialog(False, unpack(target_dialog.save())).save()
    assert unpack(target_dialog.save()).next == len(sizes)


def test_a_saved_dialog_continues_after_a_restart() -> None:
    initiator, target_dialog = conversing()
    assert initiator.dirty
    saved = initiator.save()
    assert not initiator.dirty
    again = dialog(state=unpack(saved))
    again.offer(1, 10)
    header = send(again).header
    assert (header.number, header.to_broker, header.opening) == (1, THERE, None)
    assert not again.is_idle
    other_again = dialog(False, unpack(target_dialog.save()))
    other_again.arrived(header, (Part("t", Content.DATA, b"x"),))
    batch = other_again.batch()
    assert batch is not None
    assert (batch.expected, batch.reached) == (1, 2)


def test_rows_that_are_not_deleted_yet_are_offered_again_after_a_restart() -> None:
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, target_dialog)
    store(target_dialog)
    (event,) = carry(target_dialog, initiator)
    assert not initiator.is_idle
    assert unpack(initiator.save()).base == 0
    initiator.deleted(event)
    assert initiator.is_idle
    assert unpack(initiator.save()).base == 1


def test_a_peer_that_has_ended_is_known_after_a_restart() -> None:
    assert dialog(state=TransmissionState(next=3, final=2)).sending is Sending.HELD
    closed = dialog(state=TransmissionState(sending=Sending.CLOSED, peer_broker=THERE))
    assert closed.sending is Sending.CLOSED


@st.composite
def progresses(draw: st.DrawFn) -> tuple[int, dict[int, Kept]]:
    """Draw the next expected message and the messages kept behind it within the limits."""
    next_number, kept = draw(st.integers(0, 2**62)), {}
    for number in draw(st.sets(st.integers(next_number, next_number + 100), max_size=3)):
        message = Kept(500, (), 0, draw(st.sampled_from(Content)))
        for fragment in draw(st.sets(st.integers(0, 499), min_size=1, max_size=9)):
            message = message.with_fragment(fragment, LIMITS.fragment_size if fragment < 499 else 1)
        kept[number] = message
    return next_number, kept


states = st.builds(
    TransmissionState,
    st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 100),
    st.sampled_from(Sending),
    st.none() | st.uuids(),
    st.booleans(),
    st.just(0),
    st.none() | st.integers(0, 2**62),
    st.none() | st.binary(min_size=8, max_size=8),
)


@given(states, progresses())
def test_a_state_is_packed_and_unpacked(state: TransmissionState, progress: tuple[int, dict[int, Kept]]) -> None:
    state = state._replace(next=progress[0], kept=progress[1])
    assert unpack(pack(state), LIMITS) == state


def test_kept_messages_beyond_the_limits_are_sent_again() -> None:
    possible = Kept(3, (0, 1), LIMITS.fragment_size, Content.DATA)
    state = TransmissionState(next=5, kept={5: possible, 6: possible._replace(bounds=(0, 2))})
    assert unpack(pack(state), LIMITS).kept == {5: possible}


@pytest.mark.feature(137)
def test_a_transmission_object_takes_about_one_kilobyte() -> None:
    initiator, _ = conversing()
    assert len(initiator.save()) < 100
    shared = {id(LIMITS), id(initiator.identity), *map(id, initiator.identity)}
    assert size_of(initiator, shared) < 1_600


def size_of(thing: object, seen: set[int]) -> int:
    """Return the bytes of an object and of all objects that it refers to."""
    if id(thing) in seen or isinstance(thing, (type, Limits)) or callable(thing):
        return 0
    seen.add(id(thing))
    inner = [getattr(thing, slot, None) for slot in getattr(type(thing), "__slots__", ())]
    if isinstance(thing, dict):
        inner += [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple)):
        inner += thing
    return sys.getsizeof(thing) + sum(size_of(part, seen) for part in inner if not isinstance(part, (bool, type(None))))


def test_an_acknowledgement_that_says_nothing_new_changes_nothing() -> None:
    initiator, target_dialog = conversing()
    initiator.save()
    target_dialog.offer(0, 10)
    transmission = send(target_dialog)
    assert initiator.arrived(transmission.header, None) == []
    assert not initiator.dirty


@pytest.mark.parametrize(
    ("below", "token", "number"),
    [(1, b"token", 0), (3, b"token", 2), (4, b"token", None), (0, b"token", None), (3, None, None)],
)
def test_the_token_of_a_message_of_an_earlier_life_is_recalled(
    below: int, token: bytes | None, number: int | None
) -> None:
    """Each of the three messages of that life may be the last one that the peer has taken."""
    remade = dialog(state=TransmissionState(sent_below=3))
    header = send_one(target()).header
    acknowledged = msgspec.structs.replace(header, acknowledgement=Acknowledgement(below, token=token))
    assert remade.token_to_recall(acknowledged) == number


def test_kept_fragments_are_not_forgotten_while_something_is_stored() -> None:
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, target_dialog)
    with pytest.raises(ValueError, match="is being stored"):
        target_dialog.forget_kept()
    store(target_dialog)
    target_dialog.forget_kept()


def test_the_rest_of_a_partly_stored_run_is_accepted() -> None:
    initiator, target_dialog = dialog(), target()
    for number in range(3):
        initiator.offer(number, 10)
    first = send(initiator)
    target_dialog.arrived(first.header, bodies(first))
    store(target_dialog)
    target_dialog.arrived(msgspec.structs.replace(first.header, number=1), bodies(first))
    store(target_dialog)
    assert send(target_dialog).header.acknowledgement == Acknowledgement(4)


def test_an_acknowledgement_over_another_link_clears_the_status() -> None:
    """The peer may connect to an instance that cannot connect to it."""
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, target_dialog)
    store(target_dialog)
    initiator.offer(1, 10)
    initiator.link_down(0.0, "unreachable")
    assert initiator.status == "unreachable"
    carry(target_dialog, initiator)
    assert initiator.status == ""


@pytest.mark.parametrize("attempts", range(4))
def test_a_restart_does_not_shorten_the_pause_before_the_next_attempt(attempts: int) -> None:
    initiator = dialog()
    initiator.offer(0, 10)
    for _ in range(attempts):
        initiator.link_down(0.0, "unreachable")
        initiator.link_up()
    again = dialog(state=unpack(initiator.save()))
    again.offer(0, 10)
    again.link_down(100.0, "unreachable")
    assert again.wake_at == 100.0 + 4.0 * 2**attempts


def test_a_deletion_before_an_error_that_skips_it_changes_nothing() -> None:
    initiator, target_dialog = dialog(), target()
    initiator.offer(0, 10)
    carry(initiator, target_dialog)
    store(target_dialog)
    (event,) = carry(target_dialog, initiator)
    for number in range(1, 4):
        initiator.offer(number, 10)
    initiator.offer(4, 10, Content.ERROR)
    initiator.deleted(event)
    assert unpack(initiator.save()).base == 4
