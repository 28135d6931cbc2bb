"""The CI form of the simulator: it finds nothing, and it would find what is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from servicebroker.protocol.incoming import Incoming
from servicebroker.simulation.faults import Faults
from servicebroker.simulation.run import run, run_many, trace_of


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


@pytest.mark.parametrize("defect", [acknowledge_before_the_commit, take_duplicates])
def test_a_defect_is_found(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    _, failures = run_many(range(40))
    assert any(failure.reason.startswith("Lost") for failure in failures)
