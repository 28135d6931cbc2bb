"""The script fuzzer runs scripts: results are checked, slow scripts time out, and a planted failure is found."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker_lab.script_fuzzing import trials
from servicebroker_lab.script_fuzzing.mutations import Corpus, own_scripts
from servicebroker_lab.script_fuzzing.trials import Runner

CASE_COUNT = 25


@pytest.fixture
def runner(instance: sb.Instance, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(trials, "RUN_LIMIT_S", 1.0)
    return Runner(instance)


def test_changed_scripts_run(runner: Runner) -> None:
    corpus = Corpus(own_scripts())
    findings = {number: runner.judge_run(corpus.make_text(number)) for number in range(CASE_COUNT)}
    assert {number: problem for number, problem in findings.items() if problem} == {}


@pytest.mark.parametrize("text", ["WHILE 1 = 1 SELECT 1", "WAITFOR DELAY '00:01:00'"])
def test_a_script_that_lasts_is_no_failure(runner: Runner, text: str) -> None:
    assert runner.judge_run(text) == ""
    assert runner.judge_run("SELECT 1") == ""


def test_an_exception_of_the_run_is_a_failure(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(session: object, text: str) -> None:
        raise IndexError("no such row")

    monkeypatch.setattr(trials.Session, "run", fail)
    assert runner.judge_run("SELECT 1") == "IndexError: no such row in test_script_fuzzing.py fail"
