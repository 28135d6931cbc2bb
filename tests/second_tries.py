"""The tests that a run may try a second time (decision 176); conftest.py has the hook."""

from __future__ import annotations

import pytest

SECOND_TRIES = 2  # tests of a run that may be run once more


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Second tries have a budget: a run that needed more of them has failed, whatever came of them."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    again = sorted({report.nodeid for report in terminal.getreports("rerun")}) if terminal else []
    if len(again) > SECOND_TRIES:
        terminal.write_line(f"\nmore than {SECOND_TRIES} tests needed a second try: {', '.join(again)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
