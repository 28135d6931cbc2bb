"""The HTTP fuzzer: some cases pass, and each kind of planted failure is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

import servicebroker as sb
from servicebroker.dashboard import pages
from servicebroker.dashboard.access import Sessions
from servicebroker_lab.http_fuzzing import trials
from servicebroker_lab.http_fuzzing.site import Site, fill
from servicebroker_lab.http_fuzzing.trials import Answer, Failure, RuleError, run_case

CASE_COUNT = 30
MAX_CASES = 100  # until a planted failure is found


@pytest.fixture
def site(instance: sb.Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(trials, "WAIT_RATE", 0.0)
    fill(instance)
    with Site(instance, tmp_path) as there:
        yield there


def test_random_requests_break_nothing(site: Site) -> None:
    totals: Counter[str] = Counter()
    for number in range(CASE_COUNT):
        outcome = run_case(site, number)
        assert not isinstance(outcome, Failure), outcome
        totals += outcome
    assert {f"answers {status}" for status in (200, 303, 400, 401, 403, 404, 405)} <= totals.keys()
    assert site.log.characters < 1_000 * CASE_COUNT


def fails(*_: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("owner", "name", "broken", "problem"),
    [
        (Sessions, "is_own_form", lambda *_: True, "no request had a valid form token"),
        (pages, "chosen_dead_letters", fails, "status 500"),
    ],
)
def test_a_planted_failure_is_found(
    site: Site, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, broken: Callable[..., object], problem: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert_is_found(site, problem)


def test_pages_that_escape_nothing_are_found(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site._dashboard._templates, "autoescape", False)
    assert_is_found(site, "which the request had")


def test_a_header_of_the_request_is_found_in_a_head_only() -> None:
    harmless = Answer(200, b"HTTP/1.1 200 OK\r\ncontent-type: text/html", b"first\r\nx-zz9: 1")
    trials._check(harmless)
    with pytest.raises(RuleError, match="which the request had"):
        trials._check(harmless._replace(head=harmless.head + b"\r\nx-zz9: 1"))


def assert_is_found(site: Site, problem: str) -> None:
    outcomes = (run_case(site, number) for number in range(MAX_CASES))
    assert any(isinstance(outcome, Failure) and problem in outcome.problem for outcome in outcomes)
