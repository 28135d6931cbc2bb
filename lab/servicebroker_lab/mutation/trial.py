"""Run the tests that reach a mutant, and say how it ended."""

from __future__ import annotations

import re
import time
from typing import NamedTuple

import pytest

from servicebroker_lab.mutation.drawing import Mutant
from servicebroker_lab.mutation.project import Copy, DeadlinePassed
from servicebroker_lab.mutation.reach import Choice

STARTUP_S = 60.0  # the start of pytest with a server, on a loaded machine
SLOWNESS_FACTOR = 4.0  # the deadline is the recorded time multiplied by this

KILLED = "killed"  # a test failed
HUNG = "hung"  # the deadline passed: killed, too
SURVIVED = "survived"
UNREACHED = "unreached"  # no recorded test runs the line
UNJUDGED = "unjudged"  # the tests could not run: a fault of the run, not of the mutant
DEAD = {KILLED, HUNG}

_ALL_PASSED = re.compile(r"^\d+ passed(?:, \d+ (?:skipped|deselected|warnings?))* in ", re.MULTILINE)
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)


class Outcome(NamedTuple):
    """The end of a mutant, the test that killed it, and the seconds until then."""

    outcome: str
    killer: str
    seconds: float


def run_trial(copy: Copy, mutant: Mutant, choice: Choice) -> Outcome:
    """Plant a mutant into the copy and run the chosen tests until one fails."""
    if not choice.tests:
        return Outcome(UNREACHED, "", 0.0)
    began = time.monotonic()
    try:
        with copy.with_text(mutant.path, mutant.text):
            result = copy.run_tests(choice.tests, STARTUP_S + SLOWNESS_FACTOR * choice.seconds, "-x")
    except DeadlinePassed:
        return Outcome(HUNG, "", time.monotonic() - began)
    seconds = time.monotonic() - began
    if result.returncode == pytest.ExitCode.OK or _ALL_PASSED.search(result.stdout):  # or pytest failed at its own end
        return Outcome(SURVIVED, "", seconds)
    if result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED or "ERROR: not found:" in result.stdout:
        return Outcome(UNJUDGED, result.stdout[-500:], seconds)
    failure = _FAILURE.search(result.stdout)  # none when the product cannot even be imported
    return Outcome(KILLED, failure[1] if failure else result.stdout.strip().splitlines()[-1][:200], seconds)
