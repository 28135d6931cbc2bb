"""`servicebroker simulate`: seeds on all processors, and the trace of the first that fails."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from servicebroker.simulation.run import Failure, run_many

PORTION = 200  # seeds that a process runs before it reports


def parse_seeds(text: str) -> range:
    """Seeds A:B, from A up to, not including, B; or one seed.

    Raises:
        ValueError: it is neither.
    """
    first, colon, end = text.partition(":")
    seeds = range(int(first), int(end)) if colon else range(int(first), int(first) + 1)
    if not seeds or seeds.start < 0:
        raise ValueError
    return seeds


def simulate(seeds: range, progress: Callable[[int, int], object]) -> tuple[Counter[str], list[Failure]]:
    """Run the seeds. `progress` hears how many are done and how many of them failed."""
    portions = [range(start, min(start + PORTION, seeds.stop)) for start in range(seeds.start, seeds.stop, PORTION)]
    sums: Counter[str] = Counter()
    failures: list[Failure] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, failed in pool.map(run_many, portions):
            sums.update(done)
            failures += failed
            progress(sums["runs"], len(failures))
    return sums, failures
