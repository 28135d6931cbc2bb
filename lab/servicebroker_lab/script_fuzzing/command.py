"""`python -m servicebroker_lab.script_fuzzing`: judge changed scripts for a time, and report what broke."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

import servicebroker as sb
from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker_lab.script_fuzzing.mutations import Corpus, own_scripts, read_scripts
from servicebroker_lab.script_fuzzing.trials import Failure, Runner, judge_check


def fuzz_scripts_command(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="[PATH]...", help="Scripts, or folders of scripts; else our own.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    first: Annotated[int, typer.Option(help="The number of the first case.")] = 0,
    cases: Annotated[int, typer.Option(help="At most so many cases.")] = 1_000_000_000,
    runs: Annotated[bool, typer.Option("--run/--check-only", help="Run each script, too.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Check and run changed scripts; exit code 1 if one broke them."""
    corpus = Corpus(read_scripts(paths) if paths else own_scripts())
    count, failures = 0, list[Failure]()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, _runner(runs, Path(folder)) as runner:
        while time.monotonic() < end and count < cases:
            failures += judge_case(corpus, first + count, Path(folder), runner)
            count += 1
    if as_json:
        say_json({"cases": count, "failures": [failure._asdict() for failure in failures]})
    else:
        say(f"{count:,} scripts, {len(failures):,} failures")
        for failure in failures:
            say(f"{failure.number} {failure.judge}: {failure.problem}", ascii(failure.text[:2_000]))
    if failures:
        raise typer.Exit(1)


@contextlib.contextmanager
def _runner(runs: bool, folder: Path) -> Iterator[Runner | None]:
    """Open an instance for the run, if scripts are run."""
    if not runs:
        yield None
        return
    with sb.open(str(folder / "instance")) as instance:
        yield Runner(instance)


def judge_case(corpus: Corpus, number: int, folder: Path, runner: Runner | None) -> Iterator[Failure]:
    """Yield the failures of one case."""
    text = corpus.make_text(number)
    if problem := judge_check(text, folder):
        yield Failure(number, "check", problem, text)
    if runner is not None and (problem := runner.judge_run(text)):
        yield Failure(number, "run", problem, text)
