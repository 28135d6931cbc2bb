"""The loop of the fuzzers whose cases have numbers: run case after case for a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

FailureT = TypeVar("FailureT")


def run_cases(
    run_case: Callable[[int], Counter[str] | FailureT], first: int, seconds: float
) -> tuple[Counter[str], list[FailureT]]:
    """Run the cases from number `first` on until the time is over. Returns the counts of outcomes, and the failures."""
    totals: Counter[str] = Counter()
    failures: list[FailureT] = []
    end = time.monotonic() + seconds
    number = first
    while time.monotonic() < end:
        outcome = run_case(number)
        totals["cases"] += 1
        if isinstance(outcome, Counter):
            totals += outcome
        else:
            failures.append(outcome)
        number += 1
    return totals, failures
