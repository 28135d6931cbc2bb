"""The example application of programmatic poison handling, run as printed."""

from __future__ import annotations

import pytest

from support import run_example


@pytest.mark.feature(188, 189)
def test_every_report_meets_its_fate() -> None:
    assert {line[:24].strip(): line[25:] for line in run_example("expense-reports/expenses.py")} == {
        "in order": "booked 120",
        "names no employee": "error 422: The report names no employee.",
        "impossible employee": "error 422: There can be no employee -7.",
        "employee still to come": "booked 30",
        "breaks a rule": "error 500: Unable to process message.",
        "unknown item": "set aside: UnknownItem: Nobody knows what 'zeppelin' is.; booked 900",
        "in order too": "booked 31",
    }
