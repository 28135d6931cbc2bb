"""The fuzzer of SQL Server's clients: some cases pass, and each kind of planted failure is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import servicebroker as sb
from servicebroker.tds import client_session
from servicebroker.tds.response import Response
from servicebroker_lab.tds_fuzzing import trials
from servicebroker_lab.tds_fuzzing.site import Site
from servicebroker_lab.tds_fuzzing.trials import Failure, judge

CASE_COUNT = 12
MAX_CASES = 40  # until a planted failure is found


@pytest.fixture(scope="module")
def site(instance: sb.Instance) -> Iterator[Site]:
    with Site(instance) as there:
        yield there


def test_random_clients_break_nothing(site: Site) -> None:
    totals: Counter[str] = Counter()
    for number in range(CASE_COUNT):
        outcome = judge(site, number)
        assert not isinstance(outcome, Failure), outcome.problem
        totals += outcome
    assert {"logins", "requests", "responses without error", "responses with errors"} <= totals.keys()


def fails(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("owner", "name", "broken", "problem"),
    [
        (client_session, "parse_batch", fails, "the log has an error"),
        (Response, "finish", lambda self: self._writer.finish(), "without its last DONE"),
    ],
)
def test_a_planted_failure_is_found(
    site: Site, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, broken: Callable[..., object], problem: str
) -> None:
    monkeypatch.setattr(trials, "ANSWER_LIMIT_S", 2.0)
    monkeypatch.setattr(owner, name, broken)
    outcomes = (judge(site, number) for number in range(MAX_CASES))
    assert any(isinstance(outcome, Failure) and problem in outcome.problem for outcome in outcomes)
