"""Run cases in a child process, which a case may break, with limits of memory and time."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from servicebroker.pipeline.decoding import Undecodable, decoder
from servicebroker_lab.fuzzing.cases import Case, make_case
from servicebroker_lab.fuzzing.memory import limit_memory

MEMORY_BYTES = 1 << 30  # the address space of a process that runs cases
CPU_LIMIT_S = 5.0  # processor time for one body
CASE_TIMEOUT_S = 60.0  # a body that takes longer counts as a hang
CASES_PER_PROCESS = 200  # few, since what a case leaves behind counts against later ones


class Failure(NamedTuple):
    """A case that broke a decoder, and the error."""

    format_: str
    number: int
    problem: str


RunCase = Callable[[Case], str]


def decode_case(case: Case) -> str:
    """Decode the body of a case. Returns `decoded`, `refused schema`, or the reason of `Undecodable`.

    Any other exception is a failure.
    """
    try:
        reader = decoder(**case.options)
    except ValueError:
        return "refused schema"
    try:
        reader.decode(case.body)
    except Undecodable as error:
        return error.reason
    return "decoded"


def run_cases(format_: str, numbers: range, run_case: RunCase = decode_case) -> Iterator[str | Failure]:
    """Run the cases with these numbers. Yields the outcome or the failure of each."""
    remaining = numbers
    while remaining:
        outcomes = list(_in_process(format_, remaining[:CASES_PER_PROCESS], run_case))
        yield from outcomes
        remaining = remaining[len(outcomes) :]


def _in_process(format_: str, numbers: range, run_case: RunCase) -> Iterator[str | Failure]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_cases, args=(format_, numbers, run_case, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        for number in numbers:
            outcome, problem, is_lost = "", "", False
            try:
                if ours.poll(CASE_TIMEOUT_S):
                    outcome, problem = ours.recv()
                else:
                    problem, is_lost = f"still busy after {CASE_TIMEOUT_S} s", True
            except EOFError:
                process.join()
                problem, is_lost = f"the process has ended: exit code {process.exitcode}", True
            yield Failure(format_, number, problem) if problem else outcome
            if is_lost:
                return
    finally:
        process.kill()
        process.join()
        ours.close()


def _run_cases(format_: str, numbers: range, run_case: RunCase, results: Connection) -> None:
    """Run cases in the child process. Sends the outcome of each and, of a failure, the problem ("" for none)."""
    limit_memory(MEMORY_BYTES)
    for number in numbers:
        case = make_case(format_, number)
        started_at, problem, outcome = time.process_time(), "", "failed"
        try:
            outcome = run_case(case)
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"[:500]
        seconds = time.process_time() - started_at
        if seconds > CPU_LIMIT_S:
            problem = problem or f"{seconds:.1f} s of processor time for {len(case.body):,} bytes"
        results.send((outcome, problem))


def add_outcomes(outcomes: Iterator[str | Failure], sums: Counter[str], failures: list[Failure], format_: str) -> None:
    """Add the outcomes of cases to `sums`, and their failures to `failures`."""
    for outcome in outcomes:
        sums[f"{format_}: {outcome if isinstance(outcome, str) else 'failed'}"] += 1
        if isinstance(outcome, Failure):
            failures.append(outcome)


def case_as_json(case: Case) -> dict[str, Any]:
    """Return a case in types that JSON has."""
    options = {name: value.hex() if isinstance(value, bytes) else repr(value) for name, value in case.options.items()}
    return {"options": options, "bytes": len(case.body), "body": case.body[:2_000].hex()}
