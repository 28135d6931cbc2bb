"""The example application of programmatic poison handling, run as printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "examples/expense-reports/expenses.py"


@pytest.mark.feature(188, 189)
def test_every_report_meets_its_fate() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert {line[:24].strip(): line[25:] for line in done.stdout.splitlines()} == {
        "in order": "booked 120",
        "names no employee": "error 422: The report names no employee.",
        "impossible employee": "error 422: There can be no employee -7.",
        "employee still to come": "booked 30",
        "breaks a rule": "error 500: Unable to process message.",
        "unknown item": "set aside: UnknownItem: Nobody knows what 'zeppelin' is.; booked 900",
        "in order too": "booked 31",
    }
