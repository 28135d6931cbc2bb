"""Results of mutants: a line of JSON for each, the table by package and kind of fault, and the survivors.

`equivalent.toml` names survivors that no test can kill, each with the reason. An entry is found by its file and its
changed lines, so it stays true when lines move.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from servicebroker_lab.mutation.trial import DEAD, SURVIVED, UNJUDGED, UNREACHED

EQUIVALENT = "equivalent"
_COLUMNS = ("dead", SURVIVED, EQUIVALENT, UNREACHED, UNJUDGED)


@dataclass(frozen=True)
class Result:
    """One mutant and its outcome; names of fields are those of the JSON."""

    identifier: str
    seed: int
    package: str
    family: str
    operator: str
    path: str
    line: int
    before: str
    after: str
    outcome: str
    killer: str = ""
    seconds: float = 0.0
    tests: int = 0  # the number of tests that were chosen
    left_out: int = 0  # tests that reach the line and were not chosen


class Results:
    """The results of a cache folder; the last line of a mutant counts."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._results: dict[str, Result] = {}
        if file.exists():
            whole, _, half = file.read_text(encoding="utf-8").rpartition("\n")
            if half:  # a run that was killed has left it
                file.write_text(whole and whole + "\n", encoding="utf-8")
            for line in whole.splitlines():
                result = Result(**json.loads(line))
                self._results[result.identifier] = result

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._results

    def __iter__(self) -> Iterator[Result]:
        return iter(self._results.values())

    def __getitem__(self, identifier: str) -> Result:
        return self._results[identifier]

    def add(self, result: Result) -> None:
        """Keep a result."""
        self._results[result.identifier] = result
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(result)) + "\n")


class Equivalents:
    """The survivors that are equivalent to the product, with the reason for each."""

    def __init__(self, file: Path) -> None:
        entries = tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", []) if file.exists() else []
        self.reasons = {(entry["path"], entry["before"], entry["after"]): entry["reason"] for entry in entries}

    def __contains__(self, result: Result) -> bool:
        return (result.path, result.before, result.after) in self.reasons


def kind_of(result: Result, equivalents: Equivalents) -> str:
    """Return the column of a result in the table."""
    if result.outcome == SURVIVED and result in equivalents:
        return EQUIVALENT
    return "dead" if result.outcome in DEAD else result.outcome


def report(results: Iterable[Result], equivalents: Equivalents) -> Iterator[str]:
    """Yield the lines of the report: by package, by kind of fault, then the survivors."""
    kept = list(results)
    for heading, name in (("package", "package"), ("kind", "family")):
        yield f"{heading:<16}" + "".join(f"{column:>12}" for column in _COLUMNS) + f"{'killed':>9}"
        groups = {str(getattr(result, name)) for result in kept}
        for group in [*sorted(groups), "all"]:
            counts = Counter(kind_of(result, equivalents) for result in kept if group in ("all", getattr(result, name)))
            yield f"{group:<16}" + "".join(f"{counts[column]:>12}" for column in _COLUMNS) + f"{_share(counts):>9}"
        yield ""
    for result in sorted(kept, key=lambda result: (result.path, result.line)):
        if kind_of(result, equivalents) in (SURVIVED, UNJUDGED):
            left_out = f"; {result.left_out} more reach it" if result.left_out else ""
            yield f"{result.outcome} {result.identifier} {result.path}:{result.line} {result.operator}"
            yield from (f"  - {line}" for line in result.before.splitlines())
            yield from (f"  + {line}" for line in result.after.splitlines())
            yield f"  {result.tests} tests passed{left_out}" if result.outcome == SURVIVED else f"  {result.killer}"


def _share(counts: Counter[str]) -> str:
    """Return the share of the judged mutants that died; equivalent ones do not count."""
    judged = counts["dead"] + counts[SURVIVED]
    return f"{counts['dead'] / judged:.0%}" if judged else "-"
