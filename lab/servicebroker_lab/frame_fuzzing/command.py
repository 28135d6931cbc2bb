"""`python -m servicebroker_lab.frame_fuzzing`: bring random sequences of frames for a time, and say what broke."""

from __future__ import annotations

from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker_lab.case_loop import judge_cases
from servicebroker_lab.frame_fuzzing.trials import judge


def fuzz_frames_command(
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    first: Annotated[int, typer.Option(help="The number of the first case.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Bring sequences of frames to a relay over several connections; exit code 1 when a case failed."""
    sums, failures = judge_cases(judge, first, seconds)
    if as_json:
        say_json({"outcomes": dict(sums), "failures": [failure._asdict() for failure in failures]})
    else:
        for outcome, count in sorted(sums.items()):
            say(f"{count:>10,} {outcome}")
        for failure in failures:
            say(f"case {failure.number}, step {failure.step}: {failure.problem}")
    if failures:
        raise typer.Exit(1)
