from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from servicebroker.cli.main import single_command
from servicebroker.protocol.outgoing import Outgoing
from servicebroker_lab.simulation import command as simulate
from servicebroker_lab.simulation import shrinking
from servicebroker_lab.simulation.command import parse_seeds, portions, simulate_command
from servicebroker_lab.simulation.run import Failure, run_many

program = single_command(simulate_command)


@pytest.mark.parametrize(("text", "seeds"), [("3:5", range(3, 5)), ("7", range(7, 8))])
def test_seeds_are_parsed(text: str, seeds: range) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "x", "5:5", "5:3", "-2:3", "1:2:3"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_seeds(text)
    assert CliRunner().invoke(program, ["--seeds", text]).exit_code == 2


@pytest.mark.parametrize(("seeds", "cores"), [(range(3), 2), (range(7, 207), 2), (range(50), 16), (range(10_000), 2)])
def test_each_core_has_some_of_the_seeds(seeds: range, cores: int) -> None:
    slices = portions(seeds, cores)
    assert [seed for portion in slices for seed in portion] == list(seeds)
    assert len(slices) >= min(len(seeds), cores)
    assert max(map(len, slices)) <= simulate.PORTION_SEEDS


def test_good_seeds_exit_with_code_0() -> None:
    result = CliRunner().invoke(program, ["--seeds", "0:3", "--json"])
    assert result.exit_code == 0
    counts = json.loads(result.stdout)
    assert (counts["runs"], counts["failures"]) == (3, [])


def test_a_seed_that_fails_is_shown_with_the_trace_of_a_short_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_this_process(seeds: range, progress: object) -> tuple[object, list[Failure]]:
        return run_many(seeds)

    monkeypatch.setattr(simulate, "simulate", in_this_process)
    monkeypatch.setattr(shrinking, "OTHER_SEEDS", 3)
    monkeypatch.setattr(Outgoing, "has_work", lambda self, now: False)
    result = CliRunner().invoke(program, ["--seeds", "2:4"])
    assert result.exit_code == 1
    assert "seed 2: GuaranteeBroken" in result.stdout
    assert "at most 1 conversations, 0.9375 s, faults: none." in result.stdout
    assert result.stdout.count("application sends") < 10
