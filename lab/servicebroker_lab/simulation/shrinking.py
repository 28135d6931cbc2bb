"""Shrink a failing run: find one with fewer faults, conversations and seconds that fails in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from servicebroker.overriding import override
from servicebroker_lab.simulation.faults import Faults
from servicebroker_lab.simulation.run import Case, run

OTHER_SEEDS = 300  # other seeds that are tried with the remaining faults


class Failing(NamedTuple):
    """A failing case, with the trace of its events."""

    case: Case
    trace: list[str]

    @override
    def __str__(self) -> str:
        faults = sorted(set(Faults._fields) - self.case.without)
        limits = f"at most {self.case.conversations} conversations, {self.case.seconds:g} s"
        return f"seed {self.case.seed}, {limits}, faults: {', '.join(faults) or 'none'}"


def shrink(seed: int) -> Failing | None:
    """Return the shortest run found that fails with the same exception as the seed's. None if that does not fail."""
    original = _failing(Case(seed), None)
    if original is None:
        return None
    shortest, kind = original, original.trace[-1].split(":")[0]
    while smaller := _first(_smaller(shortest.case), kind):
        shortest = smaller
    others = (shortest.case._replace(seed=index) for index in range(OTHER_SEEDS))
    shorter = [failing for case in others if (failing := _failing(case, kind, len(shortest.trace)))]
    return min([shortest, *shorter], key=lambda failing: len(failing.trace))


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases with one fault or conversation less, or half of the time."""
    for fault in Faults._fields:
        if fault not in case.without:
            yield case._replace(without=case.without | {fault})
    if case.conversations > 1:
        yield case._replace(conversations=case.conversations - 1)
    if case.seconds > 1:
        yield case._replace(seconds=case.seconds / 2)


def _first(cases: Iterable[Case], kind: str) -> Failing | None:
    return next((failing for case in cases if (failing := _failing(case, kind))), None)


def _failing(case: Case, kind: str | None, max_lines: int | None = None) -> Failing | None:
    """Run a case. Return it with its trace if it fails with an exception of this kind, and a shorter trace."""
    trace: list[str] = []
    try:
        run(case, trace.append)
    except Exception as problem:
        trace.append(f"{type(problem).__name__}: {problem}")
        is_match = kind in (None, type(problem).__name__) and (max_lines is None or len(trace) < max_lines)
        return Failing(case, trace) if is_match else None
    return None
