"""`python -m servicebroker_lab.http_fuzzing`: send random requests to a dashboard for a time, and say what broke."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import servicebroker as sb
from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker_lab.case_loop import run_cases
from servicebroker_lab.http_fuzzing.site import Site, fill
from servicebroker_lab.http_fuzzing.trials import run_case


def fuzz_http_command(
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    first: Annotated[int, typer.Option(help="The number of the first case.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Send sequences of requests to the dashboard of a new instance; exit code 1 when a case failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)  # the user of the embedded server has to reach its data
        with sb.open(str(folder / "instance")) as instance:
            fill(instance)
            with Site(instance, folder) as site:
                totals, failures = run_cases(partial(run_case, site), first, seconds)
    if as_json:
        say_json({"outcomes": dict(totals), "failures": [failure._asdict() for failure in failures]})
    else:
        for outcome, count in sorted(totals.items()):
            say(f"{count:>10,} {outcome}")
        for failure in failures:
            say(f"case {failure.number}: {failure.problem}", ascii(failure.sent[:2_000]))
    if failures:
        raise typer.Exit(1)
