"""Which tests reach a line or a SQL statement: each test file is run once under coverage, and the result is kept.

A line of a function belongs to the tests in whose context it ran. If it ran in another process, it belongs to all tests
of the file that started the process. A line that runs at import belongs to the tests that run most of its module.
The functions of the server are reached by the statements that call them, directly or through each other.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from coverage import CoverageData

from servicebroker_lab.mutation import python_operators, sql_operators
from servicebroker_lab.mutation.project import Copies, Copy, DeadlinePassed, Project
from servicebroker_lab.mutation.recorder import RECORD_FILE

RECORD_DEADLINE_S = 1800.0  # the time for one test file under coverage
IN_PROCESS = ""  # the context of lines that ran at import, or in another process

_COVERAGE_SETTINGS = """\
[run]
source = {source}
parallel = true
patch = subprocess, _exit
data_file = {data}
"""


class Choice(NamedTuple):
    """The tests to run for a line, and how many more reach it."""

    tests: list[str]
    seconds: float
    left_out: int


class Reach:
    """The lines and statements that the recorded test files reach."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._folder = project.cache / "reach"
        self._records: dict[str, dict[str, Any]] = {}
        for file in sorted(self._folder.glob("*.json")):
            record = json.loads(file.read_text())
            if (project.root / record["file"]).exists():
                self._records[record["file"]] = record

    def missing(self, files: Iterable[str]) -> list[str]:
        """Return the test files that were not recorded, or have changed since."""
        return [
            file
            for file in files
            if file not in self._records or self._records[file]["digest"] != digest(self._project.root / file)
        ]

    def record(self, copies: Copies, files: Iterable[str], tell: Callable[[str], object]) -> None:
        """Run the missing ones of these test files and keep what they reach."""
        self._folder.mkdir(parents=True, exist_ok=True)
        missing = self.missing(files)

        def record(file: str) -> None:
            with copies.lend() as copy:
                record = self._record(copy, file)
            (self._folder / (file.replace("/", ".") + ".json")).write_text(json.dumps(record))
            self._records[file] = record
            failed = [test for test, told in record["tests"].items() if not told["passed"]]
            failure_note = f", {len(failed)} skipped or failed" if failed else ""
            tell(f"{file}: {len(record['tests'])} tests{failure_note}")

        with ThreadPoolExecutor(copies.count) as pool:
            for _ in pool.map(record, missing):
                pass

    def _record(self, copy: Copy, file: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="reach-") as folder:
            data, settings, told = (Path(folder, name) for name in ("coverage", "settings", "record.json"))
            source = copy.root / self._project.sources
            settings.write_text(_COVERAGE_SETTINGS.format(source=source, data=data))
            options = ["-p", RECORDER, "--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
            variables = {RECORD_FILE: str(told), "COVERAGE_FILE": str(data)}
            try:
                copy.run_tests([file], RECORD_DEADLINE_S, *options, variables=variables)
            except DeadlinePassed:
                tests: dict[str, Any] = {}
            else:
                tests = json.loads(told.read_text()) if told.exists() else {}
            lines = _lines_by_test(CoverageData(str(data)), copy.root) if data.exists() else {}
        digests = {path: digest(self._project.root / path) for path in lines}
        own = digest(self._project.root / file)
        return {"file": file, "digest": own, "tests": tests, "lines": lines, "digests": digests}

    def tests_of(self, path: str, line: int) -> dict[str, float]:
        """Return the tests that reach a line of a file, the best first, each with its seconds."""
        text = (self._project.root / path).read_text(encoding="utf-8")
        tests = self._tests_of_sql(path, text, line) if path.endswith(".sql") else self._tests_of_line(path, text, line)
        return {test: self._seconds[test] for test in tests if test in self._seconds}

    def choose(self, path: str, line: int, budget_s: float) -> Choice:
        """Return the tests to run for a line: the fastest of each file in turns, up to so many seconds."""
        reached = self.tests_of(path, line)
        chosen: list[str] = []
        spent = 0.0
        for test in _in_turns(reached):
            if chosen and spent + reached[test] > budget_s:
                continue
            chosen.append(test)
            spent += reached[test]
        return Choice(_by_file(chosen), spent, len(reached) - len(chosen))

    @functools.cached_property
    def _seconds(self) -> dict[str, float]:
        """The seconds of each test that passed."""
        return {
            test: told["seconds"]
            for record in self._records.values()
            for test, told in record["tests"].items()
            if told["passed"]
        }

    def _tests_of_line(self, path: str, text: str, line: int) -> list[str]:
        exact: list[str] = []
        by_file: list[str] = []
        counts: dict[str, int] = {}
        is_function = line in python_operators.function_lines(text)
        own = digest(self._project.root / path)
        for record in self._records.values():
            contexts: Mapping[str, list[int]] = record["lines"].get(path, {})
            is_same = record["digests"].get(path) == own
            for test, lines in contexts.items():
                if test != IN_PROCESS:
                    counts[test] = len(lines)
                    if is_same and line in lines:
                        exact.append(test)
                elif is_same and is_function and line in lines:
                    by_file += record["tests"]
        if is_function and (exact or by_file):
            return list(dict.fromkeys([*exact, *by_file]))
        is_old = any(record["digests"].get(path, own) != own for record in self._records.values())
        if is_function and not is_old:
            return []
        return sorted(counts, key=lambda test: -counts[test])

    def _tests_of_sql(self, path: str, text: str, line: int) -> list[str]:
        statement, made = sql_operators.unit_of(text, line)
        names = {f"{Path(path).stem}.{statement}"} if statement else set()
        functions = self._callers(made) if made else set()
        found = [
            test
            for record in self._records.values()
            for test, told in record["tests"].items()
            if not names.isdisjoint(told["statements"]) or not functions.isdisjoint(told["functions"])
        ]
        return found or self._tests_that_mention(made or statement or Path(path).stem)

    def _callers(self, function: str) -> set[str]:
        """Return a function of the server and all that call it, directly or through each other."""
        callers, waiting = {function}, [function]
        while waiting:
            called = waiting.pop()
            for name, calls in self._calls.items():
                if called in calls and name not in callers:
                    callers.add(name)
                    waiting.append(name)
        return callers

    @functools.cached_property
    def _calls(self) -> dict[str, set[str]]:
        calls: defaultdict[str, set[str]] = defaultdict(set)
        for file in (self._project.root / self._project.sources).rglob("*.sql"):
            for name, called in sql_operators.functions_of(file.read_text(encoding="utf-8")).items():
                calls[name] |= called
        return dict(calls)

    def _tests_that_mention(self, word: str) -> list[str]:
        """Return the tests of the files in which a name occurs: triggers and views are called by no statement."""
        return [
            test
            for file, record in self._records.items()
            if word in (self._project.root / file).read_text(encoding="utf-8")
            for test in record["tests"]
        ]


RECORDER = "servicebroker_lab.mutation.recorder"


def digest(file: Path) -> str:
    """Return a digest of a file; an empty one if the file is gone."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.exists() else ""


def _lines_by_test(data: CoverageData, root: Path) -> dict[str, dict[str, list[int]]]:
    """Return, for each file, the lines that ran in the context of each test."""
    data.read()
    reached: dict[str, dict[str, list[int]]] = {}
    for file in data.measured_files():
        by_test: defaultdict[str, set[int]] = defaultdict(set)
        for line, contexts in data.contexts_by_lineno(file).items():
            for context in contexts:
                by_test[context.rpartition("|")[0] if "|" in context else context].add(line)
        reached[os.path.relpath(file, root)] = {test: sorted(lines) for test, lines in by_test.items()}
    return reached


def _in_turns(seconds: Mapping[str, float]) -> list[str]:
    """Return tests by turns: the fastest of each file, then the second of each."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for test in sorted(seconds, key=lambda test: seconds[test]):
        files[test.partition("::")[0]].append(test)
    places = {test: index for tests in files.values() for index, test in enumerate(tests)}
    return sorted(seconds, key=lambda test: (places[test], seconds[test]))


def _by_file(tests: Sequence[str]) -> list[str]:
    """Return tests so that those of a file follow each other, in the order in which the files came."""
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return [test for file in files for test in tests if test.partition("::")[0] == file]
