"""`python -m servicebroker_lab.frame_fuzzing`: bring random sequences of frames for a time, and say what broke."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker_lab.frame_fuzzing.trials import Failure, judge


def fuzz_frames_command(
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    first: Annotated[int, typer.Option(help="The number of the first case.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Bring sequences of frames to a relay over several connections; exit code 1 when a case failed."""
    sums, failures = fuzz(first, seconds)
    if as_json:
        say_json({"outcomes": dict(sums), "failures": [failure._asdict() for failure in failures]})
    else:
        for outcome, count in sorted(sums.items()):
            say(f"{count:>10,} {outcome}")
        for failure in failures:
            say(f"case {failure.number}, step {failure.step}: {failure.problem}")
    if failures:
        raise typer.Exit(1)


def fuzz(first: int, seconds: float) -> tuple[Counter[str], list[Failure]]:
    """Judge case after case until the time is over. Returns the frames by outcome, and the failures."""
    sums: Counter[str] = Counter()
    failures: list[Failure] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        outcome = judge(first)
        sums["cases"] += 1
        if isinstance(outcome, Failure):
            failures.append(outcome)
        else:
            sums += outcome
        first += 1
    return sums, failures
