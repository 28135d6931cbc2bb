"""The tests that may be run a second time (decision 176). The hook is in conftest.py."""

from __future__ import annotations

import pytest

SECOND_TRIES = 2  # the most tests of a run that may be run a second time


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if more tests than the limit needed a second try, whatever their results."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    second_tries = sorted({report.nodeid for report in terminal.getreports("rerun")}) if terminal else []
    if len(second_tries) > SECOND_TRIES:
        terminal.write_line(
            f"\nmore than {SECOND_TRIES} tests needed a second try: {', '.join(second_tries)}", red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
