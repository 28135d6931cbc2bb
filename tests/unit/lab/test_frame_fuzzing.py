"""The fuzzer of frames: a sample of its cases, and that it finds what it is there for."""

from __future__ import annotations

from collections import Counter

import pytest

from servicebroker.broker.arrivals import MessageOpener
from servicebroker.protocol.incoming import Incoming
from servicebroker_lab.frame_fuzzing import trials
from servicebroker_lab.frame_fuzzing.trials import Failure, judge

CASE_COUNT, STEP_COUNT = 20, 100


def test_sequences_of_frames_break_nothing() -> None:
    sums: Counter[str] = Counter()
    for number in range(CASE_COUNT):
        outcome = judge(number, STEP_COUNT)
        assert not isinstance(outcome, Failure), outcome
        sums += outcome
    assert sums["frames"] > CASE_COUNT * STEP_COUNT
    assert {"refused with 10928", "refused with 11235", "refused with 11210"} <= sums.keys()


@pytest.mark.parametrize(
    ("of", "name", "broken", "problem"),
    [
        (MessageOpener, "_over_budget", lambda *_: None, "openings"),
        (Incoming, "_is_shaped", lambda *_: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_bound_that_is_gone_is_found(
    monkeypatch: pytest.MonkeyPatch, of: type, name: str, broken: object, problem: str
) -> None:
    monkeypatch.setattr(of, name, broken)
    monkeypatch.setattr(trials, "BUDGET", trials.BUDGET._replace(openings=2))
    outcomes = [judge(number, STEP_COUNT) for number in range(3)]
    assert any(isinstance(one, Failure) and problem in one.problem for one in outcomes), outcomes
