"""Everything that goes wrong, in any order, under load: nothing is lost, and all goes on by itself.

`make test` lets some faults happen for a moment, drawn by the seed; `make chaos` has an hour of them, each lasts as
long as the table says, and doctor has to see it.
"""

from __future__ import annotations

import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chaos import Outcome, World, hurt, judge, possible

_log = logging.getLogger(__name__)


@pytest.fixture
def world(seeded_random: random.Random) -> Iterator[World]:
    # not under pytest's own folder, which another run of pytest shuts for PostgreSQL's user
    with tempfile.TemporaryDirectory(prefix="servicebroker-chaos-", ignore_cleanup_errors=True) as folder:
        made = World(Path(folder), seeded_random)
        yield made
        made.close()


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_nothing_is_lost_whatever_goes_wrong(
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
        outcomes.append(hurt(world, waiting.pop(), lasts))
        if lasts is None:
            _log.info("%s", outcomes[-1])
    count = judge(world)
    worst = {one.scenario: max(o.seconds for o in outcomes if o.scenario == one.scenario) for one in outcomes}
    told = ", ".join(f"{name} {value:.1f} s" for name, value in sorted(worst.items()))
    memory = max(one.megabytes for one in outcomes)
    record_property(
        "chaos",
        f"{count:,} messages there and back, {len(outcomes)} faults, daemons of {memory} MB; until all went on: {told}",
    )
