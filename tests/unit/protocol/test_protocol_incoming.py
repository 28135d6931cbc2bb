from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.envelope import MAXIMUM_RANGES, Acknowledgement, Content, Part
from servicebroker.protocol.incoming import (
    Batch,
    Complete,
    Deliver,
    Discard,
    Incoming,
    Keep,
    Kept,
    Progress,
    Verdict,
    impossible,
)
from servicebroker.protocol.limits import Limits

LIMITS = Limits(fragment_size=1, message_cost=0, kept_cost=0, ahead_messages=5, ahead_bytes=20)


def data(body: bytes = b"x") -> Part:
    return Part("t", Content.DATA, body)


END, ERROR = Part("t", Content.END, None), Part("t", Content.ERROR, b"why")
PIECE_OF_ERROR = Part("t", Content.ERROR, b"w")


def incoming() -> Incoming:
    return Incoming(Progress(limits=LIMITS))


def arrive_whole(into: Incoming, number: int, part: Part | None = None) -> Verdict:
    return into.arrived(number, 0, 1, part or data())


def commit(into: Incoming) -> Batch:
    batch = into.batch()
    assert batch is not None
    into.committed()
    return batch


def test_messages_in_order_are_delivered_in_one_batch() -> None:
    into = incoming()
    assert [arrive_whole(into, number) for number in range(3)] == [Verdict.NEW] * 3
    assert commit(into) == Batch(0, 3, [Deliver(number, (data(),)) for number in range(3)])


def test_a_message_too_early_is_kept_until_its_turn() -> None:
    into = incoming()
    arrive_whole(into, 1)
    assert commit(into) == Batch(0, 0, [Keep(1, 0, 1, data())])
    assert into.stored.acknowledgement() == Acknowledgement(0, ((1, 1),))
    arrive_whole(into, 0)
    assert commit(into) == Batch(0, 2, [Deliver(0, (data(),)), Complete(1)])
    assert into.stored.acknowledgement() == Acknowledgement(2)


def test_fragments_in_any_order_make_the_message() -> None:
    into = incoming()
    for fragment in (2, 0, 1):
        assert into.arrived(0, fragment, 3, data()) is Verdict.NEW
    assert commit(into).steps == [*(Keep(0, fragment, 3, data()) for fragment in (2, 0, 1)), Complete(0)]


def test_messages_are_acknowledged_after_their_commit() -> None:
    into = incoming()
    arrive_whole(into, 0)
    assert (into.is_ack_due, into.stored.acknowledgement().below) == (False, 0)
    assert into.batch() is not None
    assert (into.is_ack_due, into.stored.acknowledgement().below) == (False, 0)
    into.committed()
    assert (into.is_ack_due, into.stored.acknowledgement().below) == (True, 1)


def test_a_duplicate_is_acknowledged_again_once_it_is_stored() -> None:
    into = incoming()
    arrive_whole(into, 0)
    assert arrive_whole(into, 0) is Verdict.PENDING
    assert not into.is_ack_due
    commit(into)
    into.is_ack_due = False
    assert arrive_whole(into, 0) is Verdict.DUPLICATE
    assert into.is_ack_due
    assert into.batch() is None


def test_one_batch_at_a_time() -> None:
    into = incoming()
    assert into.batch() is None
    arrive_whole(into, 0)
    assert into.batch() is not None
    arrive_whole(into, 1)
    assert into.batch() is None
    assert into.is_busy
    into.committed()
    assert commit(into) == Batch(1, 2, [Deliver(1, (data(),))])
    assert not into.is_busy
    with pytest.raises(ValueError, match="no batch"):
        into.committed()


def test_after_a_rollback_everything_may_come_again() -> None:
    into = incoming()
    arrive_whole(into, 0)
    into.batch()
    arrive_whole(into, 1)
    assert into.load > 0
    into.rolled_back()
    assert (into.is_busy, into.load) == (False, 0)
    assert [arrive_whole(into, 0), arrive_whole(into, 1)] == [Verdict.NEW] * 2
    assert commit(into).reached == 2


def test_messages_kept_ahead_are_bounded() -> None:
    into = Incoming(Progress(limits=LIMITS._replace(fragment_size=20)))
    assert arrive_whole(into, 5) is Verdict.TOO_FAR
    assert arrive_whole(into, 1, data(b"x" * 15)) is Verdict.NEW
    commit(into)
    assert arrive_whole(into, 2, data(b"x" * 6)) is Verdict.TOO_FAR
    assert arrive_whole(into, 2, data(b"x" * 5)) is Verdict.NEW
    commit(into)
    assert into.arrived(0, 0, 9, data(b"x" * 20)) is Verdict.NEW  # the next message does not belong to it
    commit(into)
    assert into.arrived(0, 1, 9, data(b"x" * 20)) is Verdict.NEW
    assert into.arrived(0, 2, 9, data(b"x" * 20)) is Verdict.TOO_FAR  # until the store has taken the waiting messages
    commit(into)
    assert into.arrived(0, 2, 9, data(b"x" * 20)) is Verdict.NEW


def test_fragments_that_do_not_fit_together() -> None:
    into = incoming()
    into.arrived(0, 0, 3, data())
    assert into.arrived(0, 1, 4, data()) is Verdict.INCONSISTENT
    assert into.arrived(0, 1, 3, PIECE_OF_ERROR) is Verdict.INCONSISTENT


def test_messages_after_the_end_are_refused() -> None:
    into = incoming()
    arrive_whole(into, 1, END)
    assert arrive_whole(into, 2) is Verdict.AFTER_END
    commit(into)
    assert not into.stored.is_closed
    arrive_whole(into, 0)
    commit(into)
    assert into.stored.is_closed


def test_an_error_replaces_missing_messages() -> None:
    into = incoming()
    arrive_whole(into, 2)
    arrive_whole(into, 99, ERROR)
    assert commit(into) == Batch(0, 100, [Keep(2, 0, 1, data()), Discard(0, 99), Deliver(99, (ERROR,))])
    assert into.stored.is_closed
    assert into.stored.held == 0
    assert arrive_whole(into, 1) is Verdict.DUPLICATE


def test_an_error_in_fragments() -> None:
    into = incoming()
    arrive_whole(into, 2)
    into.arrived(3, 0, 2, PIECE_OF_ERROR)
    assert commit(into).reached == 0
    into.arrived(3, 1, 2, PIECE_OF_ERROR)
    assert commit(into) == Batch(0, 4, [Keep(3, 1, 2, PIECE_OF_ERROR), Discard(0, 3), Complete(3)])


def test_an_acknowledgement_names_the_lowest_gaps_only() -> None:
    into = Incoming(Progress(limits=Limits(fragment_size=1)))
    for number in range(1, 400, 2):
        arrive_whole(into, number)
    commit(into)
    assert into.stored.acknowledgement().whole == tuple((number, number) for number in range(1, 129, 2))
    verdicts = [into.arrived(0, fragment, 500, data()) for fragment in range(0, 400, 2)]
    assert verdicts == [Verdict.NEW] * MAXIMUM_RANGES + [Verdict.TOO_FAR] * (200 - MAXIMUM_RANGES)
    assert into.arrived(0, 127, 500, data()) is Verdict.NEW  # next to a fragment that has arrived
    assert into.arrived(0, 125, 500, data()) is Verdict.NEW  # between two
    assert into.arrived(0, 398, 500, data()) is Verdict.NEW  # makes room for another range
    commit(into)
    ack = into.stored.acknowledgement()
    assert ack.whole == ()  # messages behind 64 ranges are sent again
    assert ack.parts == (*((0, index, index) for index in range(0, 124, 2)), (0, 124, 127), (0, 398, 398))


@given(st.permutations([(number, fragment) for number in range(4) for fragment in range(3)]), st.randoms())
def test_any_order_and_any_commits_deliver_the_same(order: list[tuple[int, int]], random: object) -> None:
    limits = Limits(fragment_size=1)
    into, delivered = Incoming(Progress(limits=limits)), []
    for number, fragment in order:
        into.arrived(number, fragment, 3, data())
        if random.random() < 0.5 and (batch := into.batch()) is not None:  # type: ignore[attr-defined]
            delivered += [step.number for step in batch.steps if isinstance(step, Complete)]
            into.committed()
    batch = into.batch()
    if batch is not None:
        delivered += [step.number for step in batch.steps if isinstance(step, Complete)]
        into.committed()
    assert delivered == [0, 1, 2, 3]
    assert into.stored.acknowledgement() == Acknowledgement(4)
    assert into.stored.held == into.stored.ahead == 0


def test_whole_messages_side_by_side_are_one_range() -> None:
    into = incoming()
    for number in (4, 1, 2):
        arrive_whole(into, number)
    commit(into)
    assert into.stored.acknowledgement() == Acknowledgement(0, ((1, 2), (4, 4)))


# ---------------------------------------------------------------- hostile input


def test_one_fragment_of_very_many_takes_no_more_memory_than_one() -> None:
    limits = Limits()
    into = Incoming(Progress(limits=limits))
    assert into.arrived(1, limits.most_fragments - 1, limits.most_fragments, data()) is Verdict.NEW
    commit(into)
    (kept,) = into.stored.kept.values()
    assert sys.getsizeof(kept) + sum(map(sys.getsizeof, kept)) + sum(map(sys.getsizeof, kept.bounds)) < 500


def test_no_message_has_more_fragments_than_the_largest_body_needs() -> None:
    limits = Limits()
    into = Incoming(Progress(limits=limits))
    most = limits.most_fragments
    assert (most - 1) * limits.fragment_size < limits.largest_body <= most * limits.fragment_size
    assert into.arrived(0, most, most + 1, data()) is Verdict.MISSHAPEN
    assert into.arrived(0, most - 1, most, data()) is Verdict.NEW


@pytest.mark.parametrize(("fragment", "size", "verdict"), [
    (0, 19, Verdict.MISSHAPEN), (0, 20, Verdict.NEW), (0, 21, Verdict.MISSHAPEN),
    (2, 1, Verdict.NEW), (2, 20, Verdict.NEW), (2, 21, Verdict.MISSHAPEN),
])  # fmt: skip
def test_every_fragment_but_the_last_is_full(fragment: int, size: int, verdict: Verdict) -> None:
    into = Incoming(Progress(limits=Limits(fragment_size=20)))
    assert into.arrived(0, fragment, 3, data(b"x" * size)) is verdict


def test_a_kept_message_costs_more_than_its_body() -> None:
    limits = Limits(ahead_messages=10**6)
    into = Incoming(Progress(limits=limits))
    verdicts = [arrive_whole(into, number) for number in range(1, 20_000)]
    assert verdicts.count(Verdict.NEW) == limits.ahead_bytes // (1 + limits.kept_cost + limits.message_cost)
    assert limits.ahead_bytes - 500 < into.seen.held <= limits.ahead_bytes
    assert arrive_whole(into, 0) is Verdict.NEW  # then all of them are complete
    assert into.seen.held == 0


def test_all_that_an_honest_sender_has_under_way_is_kept_when_its_first_message_is_lost() -> None:
    limits = Limits()
    into = Incoming(Progress(limits=limits))
    under_way = range(1, limits.window // limits.message_cost)
    assert {arrive_whole(into, number, Part("t", Content.DATA, None)) for number in under_way} == {Verdict.NEW}


@given(st.lists(st.integers(0, 40), unique=True))
def test_the_ranges_are_those_of_a_set(fragments: list[int]) -> None:
    kept, came = Kept(41, (), 0, Content.DATA), set()
    for fragment in fragments:
        kept = kept.with_fragment(fragment, 1)
        came.add(fragment)
        assert {number for number in range(41) if kept.has(number)} == came
        assert [number for first, last in kept.ranges for number in range(first, last + 1)] == sorted(came)
        assert kept.arrived == kept.size == len(came)
        assert len(kept.ranges) == sum(number - 1 not in came for number in came)
    assert kept.is_whole is (len(came) == 41)


@given(st.permutations([(number, fragment) for number in range(1, 4) for fragment in range(4)]), st.integers(0, 12))
def test_messages_kept_within_the_limits_are_possible(order: list[tuple[int, int]], count: int) -> None:
    limits = Limits(fragment_size=2)
    into = Incoming(Progress(limits=limits))
    for number, fragment in order[:count]:
        into.arrived(number, fragment, 4, data(b"x" if fragment == 3 else b"xx"))
    arrive_whole(into, 9)
    assert impossible(0, into.seen.kept, limits) == []


FRAGMENT_BYTES = 32_768


@pytest.mark.parametrize("kept", [
    Kept(2**21, (2**21 - 1, 2**21), 1, Content.DATA),
    Kept(3, (0, 1), FRAGMENT_BYTES - 1, Content.DATA),
    Kept(3, (2, 3), FRAGMENT_BYTES + 1, Content.DATA),
    Kept(3, (0, 1, 2, 3), FRAGMENT_BYTES, Content.DATA),
    Kept(3, (0, 4), 4 * FRAGMENT_BYTES, Content.DATA),
    Kept(3, (), 0, Content.DATA),
    Kept(3, (1, 1), 0, Content.DATA),
    Kept(3, (-1, 1), 2 * FRAGMENT_BYTES, Content.DATA),
    Kept(3, (0, 1, 2), 2 * FRAGMENT_BYTES, Content.DATA),
    Kept(0, (0, 1), FRAGMENT_BYTES, Content.DATA),
    Kept(1, (1, 2), 0, Content.DATA),
    Kept(130, tuple(range(130)), 65 * FRAGMENT_BYTES, Content.DATA),
])  # fmt: skip
def test_impossible_kept_messages_are_found(kept: Kept) -> None:
    assert impossible(5, {5: kept}) == [5]


def test_messages_kept_too_far_ahead_are_found() -> None:
    kept = Kept(1, (0, 1), 1_000_000, Content.DATA)
    assert impossible(5, {20: kept, 5: kept, 7: kept, 6: kept, 8: kept, 9: kept, 5 + 16_384: kept}) == [20, 5 + 16_384]
    assert impossible(5, {5 + 16_384: kept._replace(size=1)}) == [5 + 16_384]


def test_nothing_is_left_of_forgotten_messages() -> None:
    into = incoming()
    arrive_whole(into, 0)
    arrive_whole(into, 2, END)
    into.arrived(1, 0, 2, data())
    commit(into)
    into.forget_kept()
    for progress in (into.stored, into.seen):
        assert (progress.next, progress.final, progress.kept, progress.held) == (1, None, {}, 0)
    assert into.begun is None
    arrive_whole(into, 1)
    arrive_whole(into, 2, END)
    assert commit(into).reached == 3
    assert into.stored.is_closed
    into.forget_kept()
    assert into.stored.is_closed
