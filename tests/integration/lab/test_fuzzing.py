"""The decoder fuzzer: some hundred cases pass, and each kind of planted failure is found."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from servicebroker_lab.fuzzing import trials
from servicebroker_lab.fuzzing.cases import MAKERS, Case, make_case
from servicebroker_lab.fuzzing.command import fuzz
from servicebroker_lab.fuzzing.trials import Failure, run_cases


def test_the_decoders_survive_random_bodies(pytestconfig: pytest.Config) -> None:
    sums, failures = fuzz(list(MAKERS), 0, pytestconfig.getoption("--decoder-seconds"))
    assert failures == []
    reached = Counter(outcome.partition(": ")[0] for outcome in sums if outcome.endswith("decoded"))
    assert reached.keys() == MAKERS.keys()  # each seed also has valid bodies


def test_a_case_is_the_same_each_time() -> None:
    for format_ in MAKERS:
        assert make_case(format_, 7) == make_case(format_, 7)


def raises(case: Case) -> str:
    raise IndexError("no such byte")


def ends(case: Case) -> str:
    os._exit(11)


def allocates(case: Case) -> str:
    return str(len(bytes(trials.MEMORY_BYTES * 2)))


def computes(case: Case) -> str:
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    return "decoded"


def waits(case: Case) -> str:
    time.sleep(60)
    return "decoded"


@pytest.mark.parametrize(
    ("judge", "problem"),
    [
        (raises, "IndexError: no such byte"),
        (ends, "exit code 11"),
        (allocates, "MemoryError"),
        (computes, "of processor time"),
        (waits, "still busy"),
    ],
)
def test_each_kind_of_failure_is_found(
    monkeypatch: pytest.MonkeyPatch, judge: Callable[[Case], str], problem: str
) -> None:
    monkeypatch.setattr(trials, "CPU_LIMIT_S", 0.1)
    monkeypatch.setattr(trials, "CASE_TIMEOUT_S", 1.0)
    found = list(run_cases("avro", range(2), judge))
    assert [outcome.number for outcome in found if isinstance(outcome, Failure)] == [0, 1]
    assert all(problem in outcome.problem for outcome in found if isinstance(outcome, Failure))
