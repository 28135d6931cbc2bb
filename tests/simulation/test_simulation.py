"""A short run of the simulator: it finds no error in the code, and detects the recorded mutants."""

from __future__ import annotations

from random import Random

import pytest

from servicebroker_lab.simulation.faults import Faults
from servicebroker_lab.simulation.run import Case, run, run_many
from simulation.mutants import MUTANTS, Mutant, find_seed


def test_every_message_arrives_once_and_in_order_despite_faults(request: pytest.FixtureRequest) -> None:
    seeds = request.config.option.seeds
    sums, failures = run_many(range(seeds))
    assert failures == []
    assert sums["runs"] == seeds
    assert sums["messages"] > 5 * seeds
    assert sums["corrupted"] > seeds
    assert sums["forged"] > seeds
    assert sums["brought"] > seeds


def test_random_seeds_have_no_failure(request: pytest.FixtureRequest, seeded_random: Random) -> None:
    start = seeded_random.randrange(2**40)
    assert run_many(range(start, start + request.config.option.other_seeds))[1] == []


def test_a_seed_is_reproducible() -> None:
    first: list[str] = []
    again: list[str] = []
    assert run(Case(7), first.append) == run(Case(7), again.append)
    assert first == again
    assert len(first) > 30


def test_every_fault_is_drawn_and_left_out() -> None:
    drawn = [Faults.draw(Random(seed)) for seed in range(50)]
    for fault in Faults._fields:
        assert {getattr(faults, fault) > 0 for faults in drawn} == {True, False}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_detected(mutant: Mutant) -> None:
    """The mutant's recorded seed detects it, and finds no error without the mutant."""
    assert run_many(range(mutant.seed, mutant.seed + 1))[1] == []
    assert find_seed(mutant, range(mutant.seed, mutant.seed + 1)) == mutant.seed


def test_every_mutant_changes_something() -> None:
    assert [mutant.name for mutant in MUTANTS if mutant.file.read_text().count(mutant.before) != 1] == []
