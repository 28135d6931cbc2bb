"""`python -m servicebroker_lab.simulation`: run seeds, and print the trace of the first that fails."""

from __future__ import annotations

import contextlib
import logging
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker_lab.simulation import mirrors as failing_mirrors
from servicebroker_lab.simulation.fleet import Fleet, Outcome, Size
from servicebroker_lab.simulation.run import Failure, run_many
from servicebroker_lab.simulation.shrinking import shrink
from servicebroker_lab.simulation.store import GuaranteeBroken

PORTION_SEEDS = 200  # seeds, at most, that a process runs before it reports
PORTIONS_PER_CORE = 4  # at least so many portions per processor: seeds take different times


def simulate_command(
    seeds: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Seeds A up to, not including, B; or one seed. 0:1000, with --fleet 0."),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANCES:SERVICES",
            help="Instead: a fleet that routes by name while instances die and routes change, such as 1000:100000.",
        ),
    ] = None,
    conversations: Annotated[int, typer.Option(help="With --fleet: how many begin.")] = 100_000,
    mirrors: Annotated[
        bool, typer.Option("--mirrors", help="Instead: mirrored pairs whose primaries fail and come back.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run brokers over broken links and crashes, one run for each seed, and say which lost a promise."""
    try:
        expected = parse_seeds(seeds if seeds is not None else "0" if fleet else "0:1000")
        size = None if fleet is None else parse_fleet(fleet, conversations)
    except ValueError:
        raise typer.BadParameter("give two numbers as in 0:1000, the second one larger, or one seed") from None
    if mirrors:
        run_mirrors(expected, as_json=as_json)
    elif size is not None:
        run_fleets(expected, size, as_json=as_json)
    else:
        run_seeds(expected, as_json=as_json)


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


def parse_fleet(text: str, conversations: int) -> Size:
    """INSTANCES:SERVICES.

    Raises:
        ValueError: it is not, or a number makes no sense.
    """
    instances, _, services = text.partition(":")
    size = Size(int(instances), int(services), conversations)
    if min(size) < 1:
        raise ValueError
    return size


def run_seeds(seeds: range, *, as_json: bool) -> None:
    """Run the seeds and print what was found; exit code 1 when one failed."""
    sums, failures = simulate(
        seeds, lambda done, failed: say(f"{done} of {len(seeds)} runs, {failed} failed", error=True)
    )
    if as_json:
        say_json({**sums, "failures": [failure._asdict() for failure in failures]})
    else:
        summary = f"{sums['messages']} messages delivered, {sums['corrupted']} corrupted, {sums['forged']} forged"
        summary += f", {sums['brought']} brought again"
        say(f"{sums['runs']} runs, {summary}")
        for failure in failures:
            say(f"seed {failure.seed}: {failure.reason}")
        if failures and (failing := shrink(failures[0].seed)):
            say(f"The shortest run that was found to fail as that of seed {failures[0].seed} does: {failing}.")
            say(*failing.trace)
    if failures:
        raise typer.Exit(1)


def simulate(seeds: range, progress: Callable[[int, int], object]) -> tuple[Counter[str], list[Failure]]:
    """Run the seeds. `progress` hears how many are done and how many of them failed."""
    cores = os.cpu_count() or 1
    sums: Counter[str] = Counter()
    failures: list[Failure] = []
    with ProcessPoolExecutor(cores, initializer=_be_quiet) as pool:
        for done, failed in pool.map(run_many, portions(seeds, cores)):
            sums.update(done)
            failures += failed
            progress(sums["runs"], len(failures))
    return sums, failures


def portions(seeds: range, cores: int) -> list[range]:
    """Divide the seeds into portions for a process, small enough that each core has some."""
    size = max(1, min(PORTION_SEEDS, len(seeds) // (PORTIONS_PER_CORE * cores)))
    return [seeds[start : start + size] for start in range(0, len(seeds), size)]


def _be_quiet() -> None:
    """Silence the log of refusals: a run of thousands of messages would print too many."""
    logging.getLogger("servicebroker.broker").setLevel(logging.CRITICAL + 1)


def run_fleets(seeds: range, size: Size, *, as_json: bool) -> None:
    """Run a fleet for each seed and print what was found; exit code 1 when a conversation was misplaced."""
    found = {seed: Fleet(seed, size).run() for seed in seeds}
    if as_json:
        runs = [{"seed": seed, **outcome._asdict()} for seed, outcome in found.items()]
        say_json({"instances": size.instances, "services": size.services, "runs": runs})
    else:
        for seed, outcome in found.items():
            say(_words(seed, size, outcome))
    if any(outcome.misplaced for outcome in found.values()):
        raise typer.Exit(1)


def run_mirrors(seeds: range, *, as_json: bool) -> None:
    """Run failing mirrors for each seed and print what was found; exit code 1 when one has lost a message."""
    sums: Counter[str] = Counter()
    failures: list[Failure] = []
    for seed in seeds:
        try:
            sums.update(runs=1, **failing_mirrors.run(seed)._asdict())
        except GuaranteeBroken as problem:
            failures.append(Failure(seed, str(problem)))
    if as_json:
        say_json({**sums, "failures": [failure._asdict() for failure in failures]})
    else:
        say(
            f"{sums['runs']} runs, {sums['messages']:,} messages stored once and in order; "
            f"{sums['promotions']:,} standbys were promoted, senders changed over {sums['changes']:,} times"
        )
        for failure in failures:
            say(f"seed {failure.seed}: {failure.reason}")
    if failures:
        with contextlib.suppress(GuaranteeBroken):
            failing_mirrors.run(failures[0].seed, lambda line: say(line, error=True))
        raise typer.Exit(1)


def _words(seed: int, size: Size, outcome: Outcome) -> str:
    half, most, longest = outcome.waited
    return (
        f"seed {seed}: {outcome.conversations:,} conversations to {size.services:,} services of "
        f"{size.instances:,} instances in {outcome.seconds:,.0f} s; {outcome.misplaced} misplaced; all had arrived "
        f"{outcome.settled:,.0f} s after the last fault. Half waited {half:,.0f} s, 99 % at most {most:,.0f} s, the "
        f"last {longest:,.0f} s. {outcome.rerouted:,} went to another instance since theirs was dead, "
        f"{outcome.forwarded:,} messages passed a gateway, {outcome.repeated:,} came twice and were dropped. "
        f"Spread over the instances of a service: chi-square / degrees of freedom {outcome.spread:.2f}."
    )
