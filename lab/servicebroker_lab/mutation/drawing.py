"""Draw mutants by a seed: in turns from each package, from files by their length, from the kinds of fault equally."""

from __future__ import annotations

import difflib
import functools
import hashlib
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from servicebroker_lab.mutation import python_operators, sql_operators
from servicebroker_lab.mutation.candidates import Candidate
from servicebroker_lab.mutation.project import Project

MAX_ATTEMPTS = 50  # draws without a new mutant after which a package has no more

# Lines before and after a change that name its mutant: its result is kept when the rest of the file changes.
SURROUNDING_LINES = 4


class Mutant(NamedTuple):
    """A file with one fault."""

    identifier: str
    path: str
    candidate: Candidate
    text: str
    before: str  # the changed lines, as in the product
    after: str


def draw(project: Project, seed: int) -> Iterator[Mutant]:
    """Yield mutants without end, the same ones for a seed and a tree; none twice."""
    packages = {package: files for package in project.packages if (files := project.files(package))}
    known: set[str] = set()
    failures: dict[str, int] = dict.fromkeys(packages, 0)
    turn = 0
    while failures:
        for package in list(failures):
            mutant = _draw_mutant(project, packages[package], random.Random(f"{seed} {package} {turn}"))
            if mutant is not None and mutant.identifier not in known:
                known.add(mutant.identifier)
                failures[package] = 0
                yield mutant
            else:
                failures[package] += 1
                if failures[package] == MAX_ATTEMPTS:
                    del failures[package]
        turn += 1


def _draw_mutant(project: Project, files: list[str], rng: random.Random) -> Mutant | None:
    sizes = [(project.root / path).stat().st_size for path in files]
    path = rng.choices(files, sizes)[0]
    text = (project.root / path).read_text(encoding="utf-8")
    families = _families(path, text)
    if not families:
        return None
    candidate = rng.choice(families[rng.choice(sorted(families))])
    return plant(path, text, candidate)


def candidates(path: str, text: str) -> Iterator[Candidate]:
    """Yield the faults that can be planted in a file, by the language that its name tells."""
    return sql_operators.candidates(text) if path.endswith(".sql") else python_operators.candidates(text)


def plant(path: str, text: str, candidate: Candidate) -> Mutant | None:
    """Return the mutant of a file; None if the fault leaves no program, or the same one."""
    operators = sql_operators if path.endswith(".sql") else python_operators
    changed: str | None = operators.plant(text, candidate)
    return None if changed is None else _mutant(path, candidate, text, changed)


@functools.cache
def _families(path: str, text: str) -> dict[str, list[Candidate]]:
    families: defaultdict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates(path, text):
        families[candidate.family].append(candidate)
    return families


def _mutant(path: str, candidate: Candidate, text: str, changed: str) -> Mutant:
    lines, others = text.splitlines(), changed.splitlines()
    changes = [
        (lines[a:b], others[c:d])
        for tag, a, b, c, d in difflib.SequenceMatcher(None, lines, others, autojunk=False).get_opcodes()
        if tag != "equal"
    ]
    before, after = ("\n".join(line.strip() for part in side for line in part) for side in zip(*changes, strict=True))
    first = next((index for index, (one, other) in enumerate(zip(lines, others, strict=False)) if one != other), 0)
    surroundings = lines[max(0, first - SURROUNDING_LINES) : first + SURROUNDING_LINES]
    named = "\n".join([path, candidate.operator, after, *surroundings])
    return Mutant(hashlib.sha256(named.encode()).hexdigest()[:12], path, candidate, changed, before, after)
