"""`python -m servicebroker_lab.mutation`: plant faults in a copy of the tree, and say which ones no test finds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from servicebroker.cli.output import say
from servicebroker_lab.mutation.drawing import Mutant, draw
from servicebroker_lab.mutation.project import Copies, Project
from servicebroker_lab.mutation.reach import Choice, Reach
from servicebroker_lab.mutation.results import Equivalents, Result, Results, report
from servicebroker_lab.mutation.trial import SURVIVED, UNJUDGED, UNREACHED, Outcome, run_trial

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".mutants"
EQUIVALENTS = Path(__file__).parent / "equivalent.toml"
BUDGET_S = 60.0  # seconds of tests for one mutant
JOBS = max(1, (os.cpu_count() or 2) // 2)  # tests and their server need a processor each


def mutants_command(
    count: Annotated[int, typer.Option(help="How many mutants are judged, with those of earlier runs.")] = 100,
    seed: Annotated[int, typer.Option(help="Another seed draws other mutants.")] = 1,
    packages: Annotated[list[str] | None, typer.Option("--package", help="Only this one; may be given again.")] = None,
    tests: Annotated[
        list[str] | None, typer.Option("--tests", help="Record only test files below this folder.")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds of tests for each mutant, by their recorded time.")] = BUDGET_S,
    jobs: Annotated[int, typer.Option(help="Mutants at a time.")] = JOBS,
    survivors: Annotated[bool, typer.Option("--survivors", help="Only try the survivors again.")] = False,
    only_report: Annotated[
        bool, typer.Option("--report", help="Run nothing; print the results that are kept.")
    ] = False,
) -> None:
    """Judge mutants by the tests that reach them; exit code 1 if one survives that is not known to be equivalent."""
    project = Project(ROOT, CACHE)
    if packages:
        project = Project(ROOT, CACHE, packages=tuple(packages))
    results = Results(CACHE / "results.jsonl")
    equivalents = Equivalents(EQUIVALENTS)
    if not only_report:
        reach = Reach(project)
        copies = Copies(project, jobs)
        reach.record(copies, project.test_files(tests or ()), say)
        run_mutants(project, copies, reach, results, seed=seed, count=count, budget_s=budget, again=survivors)
    shown = [result for result in results if result.seed == seed and result.package in project.packages]
    say(*report(shown, equivalents))
    if any(result.outcome == SURVIVED and result not in equivalents for result in shown):
        raise typer.Exit(1)


def run_mutants(
    project: Project,
    copies: Copies,
    reach: Reach,
    results: Results,
    *,
    seed: int,
    count: int,
    budget_s: float = BUDGET_S,
    again: bool = False,
) -> None:
    """Judge the mutants of a seed that have no result, or with `again` those that have survived."""

    def judge(mutant: Mutant) -> None:
        choice = reach.choose(mutant.path, mutant.candidate.line, budget_s)
        with copies.lend() as copy:
            outcome = run_trial(copy, mutant, choice)
        results.add(result_of(project, seed, mutant, choice, outcome))
        location = f"{mutant.path}:{mutant.candidate.line} {mutant.candidate.operator}"
        say(f"{outcome.outcome:<9} {outcome.seconds:6.1f} s  {location} {outcome.killer}")

    with ThreadPoolExecutor(copies.count) as pool:
        for _ in pool.map(judge, choose_mutants(project, reach, results, seed, count, again=again)):
            pass


def choose_mutants(
    project: Project, reach: Reach, results: Results, seed: int, count: int, *, again: bool
) -> Sequence[Mutant]:
    """Return the mutants to judge: of the first `count` that a test reaches, those without a result."""

    def mutants_in_reach() -> Iterator[Mutant]:
        for mutant in draw(project, seed):
            if reach.tests_of(mutant.path, mutant.candidate.line):
                yield mutant
            elif mutant.identifier not in results:
                results.add(result_of(project, seed, mutant, Choice([], 0.0, 0), Outcome(UNREACHED, "", 0.0)))

    first = list(islice(mutants_in_reach(), count))
    if again:
        return [one for one in first if one.identifier in results and results[one.identifier].outcome == SURVIVED]
    return [
        one
        for one in first
        if one.identifier not in results or results[one.identifier].outcome in (UNREACHED, UNJUDGED)
    ]


def result_of(project: Project, seed: int, mutant: Mutant, choice: Choice, outcome: Outcome) -> Result:
    """Return the line that is kept of a mutant."""
    return Result(
        identifier=mutant.identifier,
        seed=seed,
        package=project.package_of(mutant.path),
        family=mutant.candidate.family,
        operator=mutant.candidate.operator,
        path=mutant.path,
        line=mutant.candidate.line,
        before=mutant.before,
        after=mutant.after,
        outcome=outcome.outcome,
        killer=outcome.killer,
        seconds=round(outcome.seconds, 1),
        tests=len(choice.tests),
        left_out=choice.left_out,
    )
