"""Cases in a process that may be lost, with limits of memory and time."""

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

MEMORY_BYTES = 1 << 30  # of address space for the cases of one process
CPU_LIMIT_S = 5.0  # for one body
CASE_TIMEOUT_S = 60.0  # after which a body is taken for one that never ends
CASES_PER_PROCESS = 200  # few, since what a case leaves behind counts against later ones


class Failure(NamedTuple):
    """A case that broke a decoder, and how."""

    format_: str
    number: int
    problem: str


Judge = Callable[[Case], str]


def judged(case: Case) -> str:
    """Decode: `decoded`, `refused schema`, or the reason of `Undecodable`. Whatever else is raised is a failure."""
    try:
        reader = decoder(**case.options)
    except ValueError:
        return "refused schema"
    try:
        reader.decode(case.body)
    except Undecodable as refused:
        return refused.reason
    return "decoded"


def trial(format_: str, numbers: range, judge: Judge = judged) -> Iterator[str | Failure]:
    """Judge the cases of these numbers: of each what became of it."""
    left = numbers
    while left:
        outcomes = list(_in_process(format_, left[:CASES_PER_PROCESS], judge))
        yield from outcomes
        left = left[len(outcomes) :]


def _in_process(format_: str, numbers: range, judge: Judge) -> Iterator[str | Failure]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_judge_all, args=(format_, numbers, judge, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        for number in numbers:
            try:
                outcome, problem = (
                    ours.recv() if ours.poll(CASE_TIMEOUT_S) else ("", f"still busy after {CASE_TIMEOUT_S} s")
                )
            except EOFError:
                process.join()
                outcome, problem = "", f"the process has ended: exit code {process.exitcode}"
            yield Failure(format_, number, problem) if problem else outcome
            if problem and not outcome:
                return
    finally:
        process.kill()
        process.join()
        ours.close()


def _judge_all(format_: str, numbers: range, judge: Judge, told: Connection) -> None:
    """In the process: of each case the outcome and, of a failure, the problem."""
    limit_memory(MEMORY_BYTES)
    for number in numbers:
        case = make_case(format_, number)
        begun, problem, outcome = time.process_time(), "", "failed"
        try:
            outcome = judge(case)
        except BaseException as raised:
            problem = f"{type(raised).__name__}: {raised}"[:500]
        took = time.process_time() - begun
        if took > CPU_LIMIT_S:
            problem = problem or f"{took:.1f} s of processor time for {len(case.body):,} bytes"
        told.send((outcome, problem))


def summed(outcomes: Iterator[str | Failure], sums: Counter[str], failures: list[Failure], format_: str) -> None:
    """Add what became of the cases."""
    for one in outcomes:
        sums[f"{format_}: {one if isinstance(one, str) else 'failed'}"] += 1
        if isinstance(one, Failure):
            failures.append(one)


def shown(case: Case) -> dict[str, Any]:
    """A case as JSON can hold it."""
    options = {name: value.hex() if isinstance(value, bytes) else repr(value) for name, value in case.options.items()}
    return {"options": options, "bytes": len(case.body), "body": case.body[:2_000].hex()}
