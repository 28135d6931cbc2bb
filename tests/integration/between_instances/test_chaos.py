"""Random faults under load: no message is lost, and the instances recover without help.

`make test` runs some short faults, chosen by the seed. `make chaos` runs faults for an hour: each lasts as long as its
scenario says, and doctor must report it.
"""

from __future__ import annotations

import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos import Outcome, World, judge, possible, run_scenario

_log = logging.getLogger(__name__)


@pytest.fixture
def world(seeded_random: random.Random) -> Iterator[World]:
    # not under pytest's folder, which is closed to PostgreSQL's user
    with tempfile.TemporaryDirectory(prefix="servicebroker-chaos-", ignore_cleanup_errors=True) as folder:
        made = World(Path(folder), seeded_random)
        yield made
        made.close()


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_no_message_is_lost_by_any_fault(
    world: World,
    seeded_random: random.Random,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    seconds = request.config.option.chaos_seconds
    lasts = None if seconds >= 60 else 0.5
    world.goes_on()
    scenarios = possible(world)
    outcomes: list[Outcome] = []
    over, waiting = time.monotonic() + seconds, []
    while time.monotonic() < over:
        waiting = waiting or seeded_random.sample(scenarios, len(scenarios))
        outcomes.append(run_scenario(world, waiting.pop(), lasts))
        if lasts is None:
            _log.info("%s", outcomes[-1])
    count = judge(world)
    worst = {
        outcome.scenario: max(o.seconds for o in outcomes if o.scenario == outcome.scenario) for outcome in outcomes
    }
    summary = ", ".join(f"{name} {value:.1f} s" for name, value in sorted(worst.items()))
    memory = max(outcome.megabytes for outcome in outcomes)
    record_property(
        "chaos",
        f"{count:,} messages there and back, {len(outcomes)} faults, daemons of {memory} MB; "
        f"until all went on: {summary}",
    )
