"""A plugin for pytest: writes which tests passed, their time, and the SQL statements that each one ran.

`python -m pytest -p servicebroker_lab.mutation.recorder`; the file is named by the variable `RECORD_FILE`.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

from servicebroker.store import statements
from servicebroker_lab.mutation.sql_operators import called_in

RECORD_FILE = "SERVICEBROKER_MUTANTS_RECORD"

_seconds: defaultdict[str, float] = defaultdict(float)
_failed: set[str] = set()
_statements: defaultdict[str, set[str]] = defaultdict(set)
_functions: defaultdict[str, set[str]] = defaultdict(set)
_current = ""
_text_of = statements.text_of


def _recorded_text_of(name: str, sql: str) -> str:
    """Record the statement for the running test, and return its text."""
    if name not in _statements[_current]:
        _statements[_current].add(name)
        _functions[_current] |= called_in(sql)
    return _text_of(name, sql)


statements.text_of = _recorded_text_of  # type: ignore[assignment]  # before any module has imported it


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note the test that runs from now on."""
    global _current
    _current = nodeid


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add the time of one phase; a test that was skipped is none to choose, like one that failed."""
    _seconds[report.nodeid] += report.duration
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the file."""
    tests = {
        test: {
            "seconds": round(seconds, 3),
            "passed": test not in _failed,
            "statements": sorted(_statements[test]),
            "functions": sorted(_functions[test]),
        }
        for test, seconds in _seconds.items()
    }
    Path(os.environ[RECORD_FILE]).write_text(json.dumps(tests))
