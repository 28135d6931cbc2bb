"""A run that fails, cut down to a short one that fails too: with fewer faults, conversations and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from servicebroker_lab.simulation.faults import Faults
from servicebroker_lab.simulation.run import Case, run

OTHER_SEEDS = 300  # seeds that are tried with what is left of the faults


class Failing(NamedTuple):
    """A case that fails, and what happens in it, line by line."""

    case: Case
    trace: list[str]

    def __str__(self) -> str:
        faults = sorted(set(Faults._fields) - self.case.without)
        most = f"at most {self.case.conversations} conversations, {self.case.seconds:g} s"
        return f"seed {self.case.seed}, {most}, faults: {', '.join(faults) or 'none'}"


def shrunk(seed: int) -> Failing | None:
    """The shortest run that was found to fail as that of the seed does; None when that one does not fail."""
    whole = _failing(Case(seed), None)
    if whole is None:
        return None
    shortest, kind = whole, whole.trace[-1].split(":")[0]
    while smaller := _first(_smaller(shortest.case), kind):
        shortest = smaller
    others = (shortest.case._replace(seed=other) for other in range(OTHER_SEEDS))
    found = [one for case in others if (one := _failing(case, kind, len(shortest.trace)))]
    return min([shortest, *found], key=lambda one: len(one.trace))


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    for fault in Faults._fields:
        if fault not in case.without:
            yield case._replace(without=case.without | {fault})
    if case.conversations > 1:
        yield case._replace(conversations=case.conversations - 1)
    if case.seconds > 1:
        yield case._replace(seconds=case.seconds / 2)


def _first(cases: Iterable[Case], kind: str) -> Failing | None:
    return next((one for case in cases if (one := _failing(case, kind))), None)


def _failing(case: Case, kind: str | None, longest: int | None = None) -> Failing | None:
    """The case with its trace, when it fails in that way, and within so many lines."""
    trace: list[str] = []
    try:
        run(case, trace.append)
    except Exception as problem:
        trace.append(f"{type(problem).__name__}: {problem}")
        is_it = kind in (None, type(problem).__name__) and (longest is None or len(trace) < longest)
        return Failing(case, trace) if is_it else None
    return None
