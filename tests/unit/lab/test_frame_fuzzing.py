"""Run a sample of the frame fuzzer's cases, and check that it notices two removed limits."""

from __future__ import annotations

from collections import Counter

import pytest

from servicebroker.broker.arrivals import MessageOpener
from servicebroker.protocol.incoming import Incoming
from servicebroker_lab.frame_fuzzing import trials
from servicebroker_lab.frame_fuzzing.trials import Failure, run_case

CASE_COUNT, STEP_COUNT = 20, 100


def test_sequences_of_frames_break_nothing() -> None:
    totals: Counter[str] = Counter()
    for number in range(CASE_COUNT):
        outcome = run_case(number, STEP_COUNT)
        assert not isinstance(outcome, Failure), outcome
        totals += outcome
    assert totals["frames"] > CASE_COUNT * STEP_COUNT
    # a limit, a malformed frame, an unknown service
    assert {"refused with 10928", "refused with 11235", "refused with 11210"} <= totals.keys()


@pytest.mark.parametrize(
    ("owner", "name", "broken", "problem"),
    [
        (MessageOpener, "_over_budget", lambda *_: None, "openings"),
        (Incoming, "_is_shaped", lambda *_: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_the_fuzzer_notices_a_removed_limit(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: object, problem: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    # conversations without a delivered message
    monkeypatch.setattr(trials, "BUDGET", trials.BUDGET._replace(openings=2))
    outcomes = [run_case(number, STEP_COUNT) for number in range(3)]
    assert any(isinstance(outcome, Failure) and problem in outcome.problem for outcome in outcomes), outcomes
