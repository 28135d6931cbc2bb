from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servicebroker.protocol.envelope import MAXIMUM_RUN, Acknowledgement
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.outgoing import NEVER, Cut, Outgoing

LIMITS = Limits(fragment_size=100, window=1_000, message_cost=10, jitter=0.0)


def outgoing(*sizes: int, limits: Limits = LIMITS) -> Outgoing:
    out = Outgoing(0, 0, limits, lambda: 0.5)
    for number, size in enumerate(sizes):
        out.offer(number, [size])
    return out


def cuts(out: Outgoing, now: float = 0.0) -> list[Cut]:
    found = []
    while (cut := out.cut(now)) is not None:
        found.append(cut)
    return found


def fragments(found: list[Cut]) -> list[tuple[int, int]]:
    """Return (message, fragment) for everything in these cuts."""
    return [(number, cut.fragment) for cut in found for number in range(cut.first, cut.last + 1)]


def test_small_messages_share_a_frame_and_large_ones_are_cut() -> None:
    frames = cuts(outgoing(40, 60, 1, 250, 0))
    assert frames == [
        Cut(0, 1, 0, 1, 0, 100),
        Cut(2, 2, 0, 1, 0, 1),
        Cut(3, 3, 0, 3, 0, 100),
        Cut(3, 3, 1, 3, 100, 100),
        Cut(3, 3, 2, 3, 200, 50),
        Cut(4, 4, 0, 1, 0, 0),
    ]


def test_a_frame_has_at_most_so_many_messages() -> None:
    limits = Limits(window=10**9)
    assert [cut.last - cut.first + 1 for cut in cuts(outgoing(*[0] * (2 * MAXIMUM_RUN + 5), limits=limits))] == [
        MAXIMUM_RUN,
        MAXIMUM_RUN,
        5,
    ]


def test_messages_are_offered_in_order_while_there_is_room() -> None:
    out = outgoing(500)
    assert (out.next_number, out.room) == (1, 490)
    out.offer(1, [600])
    assert out.room < 0
    with pytest.raises(ValueError, match="message 2 comes next"):
        out.offer(3, [1])


def test_no_more_than_the_window_is_under_way() -> None:
    out = outgoing(2_000)
    assert len(cuts(out)) == 10  # of 20 fragments
    out.acknowledged(Acknowledgement(0, (), ((0, 0, 4),)))
    assert fragments(cuts(out)) == [(0, fragment) for fragment in range(10, 15)]


def test_only_unacknowledged_fragments_travel_again() -> None:
    out = outgoing(500, 10, 10, 10)
    cuts(out)
    assert out.acknowledged(Acknowledgement(0, ((2, 2),), ((0, 0, 1), (0, 3, 3))))
    assert not out.acknowledged(Acknowledgement(0, ((2, 2),), ((0, 0, 1), (0, 3, 3))))
    out.tick(4.0)
    assert fragments(cuts(out, 4.0)) == [(0, 2), (0, 4), (1, 0), (3, 0)]


def test_retries_come_after_4_8_16_32_and_then_every_64_seconds() -> None:
    out, now, waits = outgoing(10), 0.0, []
    for _ in range(7):
        assert len(cuts(out, now)) == 1
        due = out.wake_at()
        out.tick(due - 0.01)
        assert not out.has_work(due - 0.01)
        out.tick(due)
        assert out.has_work(due)
        waits.append(due - now)
        now = due
    assert waits == [4, 8, 16, 32, 64, 64, 64]


def test_jitter_spreads_a_wait_to_both_sides() -> None:
    for draw, wait in ((0.0, 3.8), (0.5, 4.0), (0.999, 4.2)):
        out = Outgoing(0, 0, Limits(), lambda draw=draw: draw)  # type: ignore[misc]
        out.offer(0, [1])
        out.cut(0.0)
        assert out.wake_at() == pytest.approx(wait, abs=0.01)


def test_a_cumulative_acknowledgement_frees_everything_below_it() -> None:
    out = outgoing(10, 300, 10)
    cuts(out)
    assert out.acknowledged(Acknowledgement(2))
    assert (out.base, out.next_number) == (2, 3)
    assert out.acknowledged(Acknowledgement(3))
    assert out.wake_at() == NEVER
    assert out.is_settled
    assert not out.acknowledged(Acknowledgement(1))  # the acknowledgement was overtaken


def test_acknowledgements_of_unsent_messages_are_contradictions() -> None:
    out = outgoing(10)
    assert out.contradicts(Acknowledgement(2), None) == "The messages 1 to 1 were acknowledged, and never sent."
    assert out.contradicts(Acknowledgement(1), None) is None


def test_a_message_that_was_never_sent_cannot_be_acknowledged() -> None:
    """A receiver may keep messages beyond a gap that the sender has lost since, by a restore from a backup."""
    out = outgoing(10, 110)
    for ack in (Acknowledgement(1, whole=((1, 1),)), Acknowledgement(1, parts=((1, 0, 0),)), Acknowledgement(2)):
        assert out.contradicts(ack, None) is None
    for ack in (Acknowledgement(1, whole=((1, 2),)), Acknowledgement(2, parts=((2, 0, 3),))):
        assert out.contradicts(ack, None) == "Of message 2 something has come, and it was never sent."


def test_unknown_fragments_belong_to_another_message() -> None:
    """A message without fragments can only be acknowledged as whole."""
    out = outgoing(10, 10, 210)
    for part in ((1, 0, 0), (2, 0, 2), (2, 3, 3), (2, 1, 7)):
        wrong = f"Parts of message {part[0]} have come, and it was sent in others."
        assert out.contradicts(Acknowledgement(1, parts=(part,)), None) == wrong
    for part in ((2, 0, 1), (2, 1, 2)):
        assert out.contradicts(Acknowledgement(1, parts=(part,)), None) is None


def test_an_error_waits_for_nothing() -> None:
    """An Error replaces missing messages, so a waiting message with its number must be a different one."""
    out = outgoing(10, 10)
    out.skip_to(4)
    out.offer(4, [20])
    for whole in ((2, 3), (1, 1)):
        assert out.contradicts(Acknowledgement(1, whole=(whole,)), None) is None
    wrong = "Message 4 waits for others there, and an Error was sent, which waits for none."
    assert out.contradicts(Acknowledgement(1, whole=((2, 2), (4, 4))), None) == wrong


def test_a_fragment_is_sent_again_although_the_first_of_its_message_has_arrived() -> None:
    """The whole message before it is sent again in a frame of its own."""
    out = outgoing(10, 250)
    cuts(out)
    out.tick(100.0)
    out.acknowledged(Acknowledgement(0, parts=((1, 0, 0),)))
    assert [(cut.first, cut.fragment) for cut in cuts(out, 100.0)] == [(0, 0), (1, 1), (1, 2)]


def test_another_message_than_was_sent_cannot_be_acknowledged() -> None:
    out = Outgoing(3, 10, LIMITS, lambda: 0.5)
    out.offer(3, [1, 1], [b"message3", b"message4"])
    assert (out.token(2), out.token(3), out.token(5)) == (None, b"message3", None)
    for ack in (Acknowledgement(4, token=b"message3"), Acknowledgement(5), Acknowledgement(3, token=b"message9")):
        assert out.contradicts(ack, None) is None
    assert "Message 4 was acknowledged" in str(out.contradicts(Acknowledgement(5, token=b"message9"), None))
    recalled = Acknowledgement(9, token=b"message8")  # of an earlier life
    assert out.contradicts(recalled, None) is None
    assert out.contradicts(recalled, b"message8") is None
    assert "Message 8 was acknowledged" in str(out.contradicts(recalled, b"message7"))
    out.acknowledged(Acknowledgement(4))
    assert (out.token(3), out.token(4)) == (None, b"message4")


def test_messages_that_a_restored_peer_lacks_are_sent_again() -> None:
    """The peer had acknowledged messages beyond a gap, and went back to a copy: all pieces are there, the message is
    not.
    """
    out = outgoing(10, 250)
    cuts(out)
    out.acknowledged(Acknowledgement(0, parts=((1, 0, 1),)))
    out.acknowledged(Acknowledgement(1, parts=((1, 0, 1),)))
    assert cuts(out) == []
    out.acknowledged(Acknowledgement(1, parts=((1, 2, 2),)))
    assert [cut.fragment for cut in cuts(out)] == [0, 1, 2]


def test_two_unanswered_attempts_are_noticed() -> None:
    out = outgoing(10)
    out.cut(0.0)
    out.tick(100.0)
    assert not out.is_unanswered
    out.cut(100.0)
    out.tick(200.0)
    assert out.is_unanswered
    out.acknowledged(Acknowledgement(1))
    assert not out.is_unanswered


def test_after_a_restart_the_peer_may_know_more_than_was_offered() -> None:
    out = Outgoing(3, 10, LIMITS, lambda: 0.5)
    out.offer(3, [10])
    assert out.acknowledged(Acknowledgement(8))
    assert out.next_number == 8


def test_acknowledgements_of_unknown_messages_are_ignored() -> None:
    out = outgoing(250)
    cuts(out)
    assert not out.acknowledged(Acknowledgement(0, ((5, 2**62),), ((7, 0, 3),)))
    assert out.acknowledged(Acknowledgement(0, (), ((0, 1, 2**21),)))
    assert not out.acknowledged(Acknowledgement(0, (), ((0, 2, 1),)))


def test_without_a_link_nothing_travels_until_the_next_attempt() -> None:
    out = outgoing(10, 10)
    cuts(out)
    waits, now = [], 0.0
    for _ in range(6):
        out.hold(now)
        out.hold(now + 1)  # told twice
        out.tick(now + 1)
        assert out.cut(now + 1) is None
        assert not out.has_work(now + 1)
        waits.append(out.wake_at() - now)
        now = out.wake_at()
        out.tick(now)
        assert out.has_work(now)
    assert waits == [4, 8, 16, 32, 64, 64]
    assert fragments(cuts(out, now)) == [(0, 0), (1, 0)]


def test_a_link_sets_it_going_at_once_and_an_acknowledgement_forgets_the_failures() -> None:
    out = outgoing(10)
    out.hold(0.0)
    out.release()
    assert fragments(cuts(out, 0.1)) == [(0, 0)]
    assert out.attempts == 1
    out.acknowledged(Acknowledgement(1))
    assert out.attempts == 0


def test_a_resent_frame_joins_only_missing_messages() -> None:
    out = outgoing(*[10] * 6)
    cuts(out)
    out.acknowledged(Acknowledgement(1, ((3, 3),)))
    out.tick(4.0)
    assert cuts(out, 4.0) == [Cut(1, 2, 0, 1, 0, 20), Cut(4, 5, 0, 1, 0, 20)]


def test_an_acknowledgement_that_comes_between_a_retry_and_its_frame() -> None:
    out = outgoing(*[10] * 4)
    cuts(out)
    out.tick(4.0)
    out.acknowledged(Acknowledgement(1, ((2, 2),)))
    assert cuts(out, 4.0) == [Cut(1, 1, 0, 1, 0, 10), Cut(3, 3, 0, 1, 0, 10)]


def test_skipping_drops_waiting_messages() -> None:
    out = outgoing(10, 500)
    cuts(out)
    out.skip_to(5)
    out.offer(5, [20])
    assert cuts(out, 1.0) == [Cut(5, 5, 0, 1, 0, 20)]
    assert not out.acknowledged(Acknowledgement(2))
    assert out.acknowledged(Acknowledgement(6))


def test_acknowledged_messages_are_not_sent_again_after_a_lost_link() -> None:
    out = outgoing(10, 250, 10)
    cuts(out)
    out.acknowledged(Acknowledgement(1, ((2, 2),), ((1, 0, 1),)))
    out.rewind()
    assert fragments(cuts(out, 1.0)) == [(1, 2)]
    assert not out.has_work(1.0)


def test_a_message_in_parts_that_was_acknowledged_in_part_is_dropped_whole() -> None:
    out = outgoing(250)
    out.cut(0.0)
    out.acknowledged(Acknowledgement(0, (), ((0, 2, 2),)))
    out.acknowledged(Acknowledgement(1))
    assert out.room == 1_000
    out.tick(100.0)
    assert not out.has_work(100.0)


def test_a_large_message_gives_way_and_small_ones_do_not() -> None:
    out = outgoing(1_000, 40)
    out.large_window = 200
    assert [cut.fragment for cut in cuts(out)] == [0, 1]
    assert out.acknowledged(Acknowledgement(0, parts=((0, 0, 0),)))
    assert out.has_work(0.0)
    assert [cut.fragment for cut in cuts(out)] == [2]
    out.large_window = None
    assert [cut.fragment for cut in cuts(out)][:6] == [3, 4, 5, 6, 7, 8]
    small = outgoing(*[40] * 10)
    small.large_window = 0
    assert [cut.last for cut in cuts(small)] == [1, 3, 5, 7, 9]


def test_without_a_message_there_is_nothing_to_wait_for() -> None:
    out = outgoing()
    out.hold(0.0)
    assert out.wake_at() == NEVER
    out.offer(0, [10])
    assert out.wake_at() == out.paused_until == 4.0


def test_the_largest_body_needs_its_last_fragment() -> None:
    assert [Limits(fragment_size=100, largest_body=size).most_fragments for size in (199, 200, 201)] == [2, 2, 3]


def test_a_resent_frame_has_at_most_so_many_messages() -> None:
    out = outgoing(*[0] * (2 * MAXIMUM_RUN + 5), limits=Limits(window=10**9))
    assert len(cuts(out)) == 3
    out.tick(100.0)
    assert [cut.last - cut.first + 1 for cut in cuts(out, 100.0)] == [MAXIMUM_RUN, MAXIMUM_RUN, 5]


class Peer:
    """A receiver that stores fragments in any order, and acknowledges them."""

    def __init__(self, sizes: list[int]) -> None:
        self.counts = [max(1, -(-size // LIMITS.fragment_size)) for size in sizes]
        self.stored: set[tuple[int, int]] = set()

    def take(self, cut: Cut) -> None:
        self.stored.update(fragments([cut]))

    def acknowledge(self) -> Acknowledgement:
        whole = [
            all((number, fragment) in self.stored for fragment in range(count))
            for number, count in enumerate(self.counts)
        ]
        below = next((number for number, is_whole in enumerate(whole) if not is_whole), len(whole))
        early = tuple((number, number) for number in range(below, len(whole)) if whole[number])
        parts = tuple((n, f, f) for n, f in sorted(self.stored) if n >= below and not whole[n])
        return Acknowledgement(below, early, parts)


@given(
    st.lists(st.sampled_from([0, 10, 100, 250]), min_size=2, max_size=8),
    st.lists(st.sampled_from(["offer", "deliver", "lose", "acknowledge", "tick", "rewind"]), max_size=60),
)
@example([10, 10, 10], ["offer", "lose", "offer", "deliver", "acknowledge", "offer", "rewind", "deliver"])
def test_acknowledged_messages_are_neither_sent_again_nor_in_flight(sizes: list[int], events: list[str]) -> None:
    out, peer, now = outgoing(), Peer(sizes), 0.0
    known: set[tuple[int, int]] = set()  # to the sender
    for event in events:
        if event == "offer" and out.next_number < len(sizes):
            out.offer(out.next_number, [sizes[out.next_number]])
        elif event == "acknowledge":
            known = set(peer.stored)
            out.acknowledged(peer.acknowledge())
        elif event == "tick":
            now += 100.0
            out.tick(now)
        elif event == "rewind":
            out.rewind()
        elif event in ("deliver", "lose") and (cut := out.cut(now)) is not None:
            assert not known.intersection(fragments([cut]))
            if event == "deliver":
                peer.take(cut)
        sent = [(n, f) for n, count in enumerate(peer.counts) for f in range(count) if (n, f) < out._cursor]
        assert out._in_flight == sum(out._cost(n, f) for n, f in sent if n >= out.base and (n, f) not in known)
    for number in range(out.next_number, len(sizes)):
        out.offer(number, [sizes[number]])
    for _ in range(3):
        now += 100.0
        out.tick(now)
        for cut in cuts(out, now):
            peer.take(cut)
        out.acknowledged(peer.acknowledge())
    assert (out.base, out._in_flight, out.room) == (len(sizes), 0, LIMITS.window)
