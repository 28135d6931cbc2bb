"""The CI form of the simulator: it finds nothing, and it would find what is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from servicebroker.protocol.dialog import Dialog
from servicebroker.protocol.envelope import Acknowledgement
from servicebroker.protocol.incoming import Incoming
from servicebroker.protocol.outgoing import Outgoing
from servicebroker.simulation.faults import Faults
from servicebroker.simulation.run import run, run_many, trace_of
from servicebroker.simulation.store import Lost


def test_every_message_arrives_once_and_in_order_whatever_goes_wrong(request: pytest.FixtureRequest) -> None:
    seeds = request.config.option.seeds
    sums, failures = run_many(range(seeds))
    assert failures == []
    assert sums["runs"] == seeds
    assert sums["messages"] > 5 * seeds
    assert sums["corrupted"] > seeds


def test_other_seeds_each_time(seeded_random: Random) -> None:
    start = seeded_random.randrange(2**40)
    assert run_many(range(start, start + 100))[1] == []


def test_a_seed_does_the_same_again() -> None:
    assert trace_of(7) == trace_of(7)
    assert run(7) == run(7)


def test_every_fault_is_drawn_and_left_out() -> None:
    drawn = [Faults.draw(Random(seed)) for seed in range(50)]
    for fault in Faults._fields:
        assert {getattr(faults, fault) > 0 for faults in drawn} == {True, False}


def acknowledge_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = Incoming.arrived

    def hasty(self: Incoming, *arrival: object) -> object:
        verdict = arrived(self, *arrival)  # type: ignore[arg-type]
        self.stored, self.is_ack_due = self.seen.copy(), True
        return verdict

    monkeypatch.setattr(Incoming, "arrived", hasty)


def take_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Incoming._judge

    def trusting(self: Incoming, number: int, *rest: object) -> object:
        if number < self.seen.next:
            self.seen.next = number
        return judge(self, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Incoming, "_judge", trusting)


def compare_no_tokens_at_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    contradicts = Outgoing.contradicts

    def trusting(self: Outgoing, ack: Acknowledgement, _: object) -> str | None:
        return contradicts(self, ack, None) if ack.below > self.sent_below else None

    monkeypatch.setattr(Outgoing, "contradicts", trusting)


def compare_no_tokens_at_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Incoming, "contradicts", lambda *_: None)


def say_nothing_of_what_was_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dialog, "_floor", None)


def rely_on_what_the_peer_has_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Outgoing, "_lacks_what_it_had", lambda _: False)


@pytest.mark.parametrize(
    ("defect", "seed"),
    [
        (compare_no_tokens_at_the_sender, 125),
        (compare_no_tokens_at_the_receiver, 92),
        (say_nothing_of_what_was_acknowledged, 979),
        (rely_on_what_the_peer_has_kept, 234),
    ],
)
def test_messages_that_an_old_copy_loses_are_found(
    defect: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These seeds restore one. What is acknowledged and lost without an Error, or a reason to wait, is found there."""
    assert "goes back to an old copy" in "\n".join(trace_of(seed))
    defect(monkeypatch)
    with pytest.raises(Lost):
        run(seed)


@pytest.mark.parametrize("defect", [acknowledge_before_the_commit, take_duplicates])
def test_a_defect_is_found(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    _, failures = run_many(range(40))
    assert any(failure.reason.startswith("Lost") for failure in failures)
