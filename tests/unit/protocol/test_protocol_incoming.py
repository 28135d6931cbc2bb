from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.envelope import Acknowledgement, Content, Part
from servicebroker.protocol.incoming import (
    Batch,
    Complete,
    Deliver,
    Discard,
    Incoming,
    Keep,
    Progress,
    Verdict,
)
from servicebroker.protocol.limits import Limits

LIMITS = Limits(ahead_messages=5, ahead_bytes=20)


def data(body: bytes = b"x") -> Part:
    return Part("t", Content.DATA, body)


END, ERROR = Part("t", Content.END, None), Part("t", Content.ERROR, b"why")


def incoming() -> Incoming:
    return Incoming(Progress(), LIMITS)


def whole(into: Incoming, number: int, part: Part | None = None) -> Verdict:
    return into.arrived(number, 0, 1, part or data())


def commit(into: Incoming) -> Batch:
    batch = into.batch()
    assert batch is not None
    into.committed()
    return batch


def test_messages_in_order_are_delivered_in_one_batch() -> None:
    into = incoming()
    assert [whole(into, number) for number in range(3)] == [Verdict.NEW] * 3
    assert commit(into) == Batch(0, 3, [Deliver(number, (data(),)) for number in range(3)])


def test_a_message_too_early_is_kept_until_its_turn() -> None:
    into = incoming()
    whole(into, 1)
    assert commit(into) == Batch(0, 0, [Keep(1, 0, 1, data())])
    assert into.stored.acknowledgement() == Acknowledgement(0, ((1, 1),))
    whole(into, 0)
    assert commit(into) == Batch(0, 2, [Deliver(0, (data(),)), Complete(1)])
    assert into.stored.acknowledgement() == Acknowledgement(2)


def test_fragments_in_any_order_make_the_message() -> None:
    into = incoming()
    for fragment in (2, 0, 1):
        assert into.arrived(0, fragment, 3, data()) is Verdict.NEW
    assert commit(into).steps == [*(Keep(0, fragment, 3, data()) for fragment in (2, 0, 1)), Complete(0)]


def test_nothing_is_acknowledged_before_its_commit() -> None:
    into = incoming()
    whole(into, 0)
    assert (into.is_ack_due, into.stored.acknowledgement().below) == (False, 0)
    assert into.batch() is not None
    assert (into.is_ack_due, into.stored.acknowledgement().below) == (False, 0)
    into.committed()
    assert (into.is_ack_due, into.stored.acknowledgement().below) == (True, 1)


def test_a_duplicate_is_acknowledged_again_once_it_is_stored() -> None:
    into = incoming()
    whole(into, 0)
    assert whole(into, 0) is Verdict.PENDING
    assert not into.is_ack_due
    commit(into)
    into.is_ack_due = False
    assert whole(into, 0) is Verdict.DUPLICATE
    assert into.is_ack_due
    assert into.batch() is None


def test_one_batch_at_a_time() -> None:
    into = incoming()
    assert into.batch() is None
    whole(into, 0)
    assert into.batch() is not None
    whole(into, 1)
    assert into.batch() is None
    assert into.is_busy
    into.committed()
    assert commit(into) == Batch(1, 2, [Deliver(1, (data(),))])
    assert not into.is_busy
    with pytest.raises(ValueError, match="no batch"):
        into.committed()


def test_after_a_rollback_everything_may_come_again() -> None:
    into = incoming()
    whole(into, 0)
    into.batch()
    whole(into, 1)
    into.rolled_back()
    assert not into.is_busy
    assert [whole(into, 0), whole(into, 1)] == [Verdict.NEW] * 2
    assert commit(into).reached == 2


def test_what_is_kept_is_bounded() -> None:
    into = incoming()
    assert whole(into, 5) is Verdict.TOO_FAR
    assert whole(into, 1, data(b"x" * 15)) is Verdict.NEW
    commit(into)
    assert whole(into, 2, data(b"x" * 6)) is Verdict.TOO_FAR
    assert whole(into, 2, data(b"x" * 5)) is Verdict.NEW
    commit(into)
    assert into.arrived(0, 0, 9, data(b"x" * 20)) is Verdict.NEW  # the next message is no part of it
    commit(into)
    assert into.arrived(0, 1, 9, data(b"x" * 20)) is Verdict.NEW
    assert into.arrived(0, 2, 9, data()) is Verdict.TOO_FAR  # until the store has taken what waits for it
    commit(into)
    assert into.arrived(0, 2, 9, data()) is Verdict.NEW


def test_fragments_that_do_not_fit_together() -> None:
    into = incoming()
    into.arrived(0, 0, 3, data())
    assert into.arrived(0, 1, 4, data()) is Verdict.INCONSISTENT
    assert into.arrived(0, 1, 3, ERROR) is Verdict.INCONSISTENT


def test_nothing_comes_after_the_end() -> None:
    into = incoming()
    whole(into, 1, END)
    assert whole(into, 2) is Verdict.AFTER_END
    commit(into)
    assert not into.stored.is_closed
    whole(into, 0)
    commit(into)
    assert into.stored.is_closed


def test_an_error_takes_the_place_of_what_is_missing() -> None:
    into = incoming()
    whole(into, 2)
    whole(into, 99, ERROR)
    assert commit(into) == Batch(0, 100, [Keep(2, 0, 1, data()), Discard(0, 99), Deliver(99, (ERROR,))])
    assert into.stored.is_closed
    assert into.stored.held == 0
    assert whole(into, 1) is Verdict.DUPLICATE


def test_an_error_in_fragments() -> None:
    into = incoming()
    whole(into, 2)
    into.arrived(3, 0, 2, ERROR)
    assert commit(into).reached == 0
    into.arrived(3, 1, 2, ERROR)
    assert commit(into) == Batch(0, 4, [Keep(3, 1, 2, ERROR), Discard(0, 3), Complete(3)])


def test_an_acknowledgement_names_the_lowest_gaps_only() -> None:
    into = Incoming(Progress(), Limits())
    for number in range(1, 400, 2):
        whole(into, number)
    for fragment in range(0, 400, 2):
        into.arrived(0, fragment, 500, data())
    commit(into)
    ack = into.stored.acknowledgement()
    assert ack.whole == tuple((number, number) for number in range(1, 129, 2))
    assert ack.parts == tuple((0, fragment, fragment) for fragment in range(0, 128, 2))


@given(st.permutations([(number, fragment) for number in range(4) for fragment in range(3)]), st.randoms())
def test_any_order_and_any_commits_deliver_the_same(order: list[tuple[int, int]], random: object) -> None:
    into, delivered = Incoming(Progress(), Limits()), []
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
        whole(into, number)
    commit(into)
    assert into.stored.acknowledgement() == Acknowledgement(0, ((1, 2), (4, 4)))
