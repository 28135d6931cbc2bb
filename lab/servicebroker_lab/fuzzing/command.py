"""`python -m servicebroker_lab.fuzzing`: decode random bodies for a time, and say what broke a decoder."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker_lab.fuzzing.cases import MAKERS, make_case
from servicebroker_lab.fuzzing.trials import CASES_PER_PROCESS, Failure, shown, summed, trial


def fuzz_command(
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    first: Annotated[int, typer.Option(help="The number of the first case of each format.")] = 0,
    formats: Annotated[list[str] | None, typer.Option("--format", help="Only this one; may be given again.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Decode random bodies with limits of memory and time; exit code 1 when a decoder failed."""
    wanted = formats or list(MAKERS)
    if unknown := set(wanted) - MAKERS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is no format: there are {', '.join(MAKERS)}")
    sums, failures = fuzz(wanted, first, seconds)
    if as_json:
        say_json({"outcomes": dict(sums), "failures": [_told(one) for one in failures]})
    else:
        for outcome, count in sorted(sums.items()):
            say(f"{count:>10,} {outcome}")
        for one in failures:
            say(f"{one.format_} {one.number}: {one.problem}", str(shown(make_case(one.format_, one.number))))
    if failures:
        raise typer.Exit(1)


def fuzz(formats: list[str], first: int, seconds: float) -> tuple[Counter[str], list[Failure]]:
    """Judge cases of these formats in turns, portion by portion, until the time is over."""
    sums: Counter[str] = Counter()
    failures: list[Failure] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for format_ in formats:
            summed(trial(format_, range(first, first + CASES_PER_PROCESS)), sums, failures, format_)
        first += CASES_PER_PROCESS
    return sums, failures


def _told(one: Failure) -> dict[str, object]:
    return {**one._asdict(), "case": shown(make_case(one.format_, one.number))}
