"""The script fuzzer: its cases are repeatable, `tsql check` passes a sample, and a planted failure is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from servicebroker_lab.script_fuzzing import trials
from servicebroker_lab.script_fuzzing.command import judge_case
from servicebroker_lab.script_fuzzing.mutations import Corpus, own_scripts

CASE_COUNT = 150


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus(own_scripts())


def test_check_survives_changed_scripts(corpus: Corpus, tmp_path: Path) -> None:
    assert [problem for number in range(CASE_COUNT) for problem in judge_case(corpus, number, tmp_path, None)] == []


def test_a_case_is_the_same_each_time(corpus: Corpus) -> None:
    assert [corpus.make_text(number) for number in range(9)] == [corpus.make_text(number) for number in range(9)]


def test_an_exception_is_a_failure(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise IndexError("no such token")

    monkeypatch.setattr(trials, "check", fail)
    (failure,) = judge_case(corpus, 0, tmp_path, None)
    assert (failure.judge, failure.problem) == ("check", "IndexError: no such token in test_script_mutations.py fail")
