"""`python -m servicebroker_lab.tds_fuzzing`: be a random client of SQL Server for a time, and say what broke."""

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
from servicebroker_lab.tds_fuzzing.site import Site
from servicebroker_lab.tds_fuzzing.trials import judge


def fuzz_tds_command(
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    first: Annotated[int, typer.Option(help="The number of the first case.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Send random handshakes and requests to a new instance's server for TDS; exit code 1 when a case failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o711)  # the user of the embedded server has to reach its data
        with sb.open(str(folder / "instance")) as instance, Site(instance) as site:
            totals, failures = run_cases(partial(judge, site), first, seconds)
            totals["MB that the process has grown by"] = site.growth_bytes() // 2**20
    if as_json:
        say_json({"outcomes": dict(totals), "failures": [failure._asdict() for failure in failures]})
    else:
        for outcome, count in sorted(totals.items()):
            say(f"{count:>10,} {outcome}")
        for failure in failures:
            say(f"case {failure.number}: {failure.problem}", ascii(failure.sent[-1_000:]))
    if failures:
        raise typer.Exit(1)
