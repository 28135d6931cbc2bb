"""The budget of a test run for second tries of failed tests."""

from __future__ import annotations

import pytest

from second_tries import SECOND_TRIES

pytest_plugins = ["pytester"]

TESTS = """
import pytest

tried = set()

@pytest.mark.parametrize("number", range({count}))
def test_passes_at_the_second_try(number):
    assert number in tried or tried.add(number)
"""


@pytest.mark.parametrize(
    ("count", "ends"), [(SECOND_TRIES, pytest.ExitCode.OK), (SECOND_TRIES + 1, pytest.ExitCode.TESTS_FAILED)]
)
def test_more_second_tries_than_the_budget_fail_the_run_and_are_named(
    pytester: pytest.Pytester, count: int, ends: pytest.ExitCode
) -> None:
    pytester.makepyfile(TESTS.format(count=count))
    result = pytester.runpytest_inprocess("-p", "second_tries", "--reruns", "1")
    assert result.ret == ends
    result.assert_outcomes(passed=count)
    named = "test_passes_at_the_second_try[[]0[]], *test_passes_at_the_second_try[[]1[]]"
    if ends != pytest.ExitCode.OK:
        result.stdout.fnmatch_lines([f"*more than {SECOND_TRIES} tests needed a second try: *{named}*"])
