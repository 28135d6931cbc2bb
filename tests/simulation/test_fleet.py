"""The simulated fleet: messages arrive once, at one instance per conversation, evenly spread, despite faults."""

from __future__ import annotations

import json
from random import Random

import pytest
from typer.testing import CliRunner

from servicebroker.cli.main import single_command
from servicebroker_lab.simulation import fleet
from servicebroker_lab.simulation.command import simulate_command
from servicebroker_lab.simulation.fleet import Fleet, Size

program = single_command(simulate_command)

SMALL = Size(100, 2_000, 6_000, 20)


@pytest.mark.feature(116, 118, 126)
@pytest.mark.parametrize("seed", range(3))
def test_every_conversation_arrives_at_one_instance_of_its_service(seed: int) -> None:
    fleet_run = Fleet(seed, SMALL).run()
    assert fleet_run.misplaced == 0
    assert fleet_run.conversations == SMALL.conversations
    assert fleet_run.settled < 60
    assert fleet_run.spread < 5  # chi-square with 3 degrees of freedom, p = 0.002
    assert min(fleet_run.rerouted, fleet_run.forwarded, fleet_run.repeated, fleet_run.dropped[11290]) > 0


def test_a_seed_does_the_same_again(seeded_random: Random) -> None:
    seed, size = seeded_random.randrange(2**40), Size(50, 500, 1_000, 10)
    assert Fleet(seed, size).run() == Fleet(seed, size).run()


def test_a_forgotten_choice_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the choice were repeated for a conversation, two instances would receive the same message."""
    real, chance = Fleet._go_on, Random(1)

    def forgetful(self: Fleet, one: fleet._Journey) -> bool:
        one.sent_to = None
        return real(self, one)

    monkeypatch.setattr(Fleet, "_go_on", forgetful)
    monkeypatch.setattr(fleet._Journey, "pick", lambda self: chance.randrange)
    assert Fleet(1, SMALL).run().misplaced > 0


def test_an_uneven_choice_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet._Journey, "pick", lambda self: lambda count: max(0, self.identifier % (count + 1) - 1))
    assert Fleet(1, SMALL).run().spread > 20


def test_the_fleet_command_counts_misplaced_conversations() -> None:
    result = CliRunner().invoke(program, ["--fleet", "40:400", "--conversations", "500", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    (run,) = document["runs"]
    assert (document["instances"], run["conversations"], run["misplaced"]) == (40, 500, 0)
    assert "0 misplaced" in CliRunner().invoke(program, ["--fleet", "40:400", "--conversations", "500"]).output
    for wrong in ("40", "0:5", "x:y"):
        assert CliRunner().invoke(program, ["--fleet", wrong]).exit_code == 2
