"""`python -m servicebroker_lab.fuzzing`: decode random bodies for a time, and report the failures of decoders."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker_lab.fuzzing.cases import MAKERS, make_case
from servicebroker_lab.fuzzing.trials import CASES_PER_PROCESS, Failure, add_outcomes, case_as_json, run_cases


def fuzz_command(
    seconds: Annotated[float, typer.Option(help="Seconds to run.")] = 60.0,
    first: Annotated[int, typer.Option(help="The number of the first case of each format.")] = 0,
    formats: Annotated[list[str] | None, typer.Option("--format", help="Only this format; may be repeated.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Decode random bodies with limits of memory and time; exit code 1 when a decoder failed."""
    selected = formats or list(MAKERS)
    if unknown_formats := set(selected) - MAKERS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown_formats))} is not a format: there are {', '.join(MAKERS)}")
    outcome_counts, failures = fuzz(selected, first, seconds)
    if as_json:
        say_json({"outcomes": dict(outcome_counts), "failures": [_as_json(failure) for failure in failures]})
    else:
        for outcome, count in sorted(outcome_counts.items()):
            say(f"{count:>10,} {outcome}")
        for failure in failures:
            say(
                f"{failure.format_} {failure.number}: {failure.problem}",
                str(case_as_json(make_case(failure.format_, failure.number))),
            )
    if failures:
        raise typer.Exit(1)


def fuzz(formats: list[str], first: int, seconds: float) -> tuple[Counter[str], list[Failure]]:
    """Run cases of each format in turn, `CASES_PER_PROCESS` at a time, until the time is over."""
    sums: Counter[str] = Counter()
    failures: list[Failure] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for format_ in formats:
            add_outcomes(run_cases(format_, range(first, first + CASES_PER_PROCESS)), sums, failures, format_)
        first += CASES_PER_PROCESS
    return sums, failures


def _as_json(failure: Failure) -> dict[str, object]:
    return {**failure._asdict(), "case": case_as_json(make_case(failure.format_, failure.number))}
