"""`python -m servicebroker_lab.frame_fuzzing`: send random frames to a relay for some seconds, and report failures."""

from __future__ import annotations

from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker_lab.case_loop import run_cases
from servicebroker_lab.frame_fuzzing.trials import run_case


def fuzz_frames_command(
    seconds: Annotated[float, typer.Option(help="Seconds to run.")] = 60.0,
    first: Annotated[int, typer.Option(help="The number of the first case.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Send sequences of frames to the daemon's `Relay` over several connections; exit code 1 when a case failed."""
    outcome_counts, failures = run_cases(run_case, first, seconds)
    if as_json:
        say_json({"outcomes": dict(outcome_counts), "failures": [failure._asdict() for failure in failures]})
    else:
        for outcome, count in sorted(outcome_counts.items()):
            say(f"{count:>10,} {outcome}")
        for failure in failures:
            say(f"case {failure.number}, step {failure.step}: {failure.problem}")
    if failures:
        raise typer.Exit(1)
