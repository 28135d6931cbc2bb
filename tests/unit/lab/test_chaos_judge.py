"""The judge of the chaos run, with ledgers that break exactly-once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import chaos

SENT_MESSAGES = [("a", 0), ("b", 0), ("a", 1), ("a", 2), ("b", 1)]


def world(folder: Path, **ledgers: list[tuple[str, int]]) -> Any:
    """Return the ledgers of both applications: correct, except for `ledgers`."""
    kept = {"sent": SENT_MESSAGES, "received": SENT_MESSAGES, "answered": SENT_MESSAGES, "error": []} | ledgers
    side = SimpleNamespace(
        ledger=lambda action: list(kept[action]), confirmed=lambda action: set(kept.get(f"{action}, committed", ()))
    )
    return SimpleNamespace(
        west=side, east=side, calm=folder / "calm", answer_count=lambda: len(kept["answered"]), describe=lambda: ""
    )


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "SETTLE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(chaos.time, "sleep", lambda seconds: None)


def test_each_once_and_in_order(tmp_path: Path) -> None:
    other_way = [("b", 0), ("b", 1), ("a", 0), ("a", 1), ("a", 2)]  # conversations do not wait for each other
    assert chaos.judge(world(tmp_path, received=other_way)) == len(SENT_MESSAGES)


@pytest.mark.parametrize("action", ["received", "answered"])
@pytest.mark.parametrize(
    ("found", "words"),
    [
        (SENT_MESSAGES[:-1], "never: 1"),
        ([*SENT_MESSAGES, ("a", 2)], "more than once"),
        ([*SENT_MESSAGES, ("a", 3)], "and never sent"),
        ([("a", 1), ("a", 0), *SENT_MESSAGES[3:], ("b", 0)], "out of order"),
        ([("b", 0), ("b", 1), ("a", 1), ("a", 0), ("a", 2)], "out of order"),
    ],
)
def test_a_fault_in_the_ledgers_is_named(tmp_path: Path, action: str, found: list[tuple[str, int]], words: str) -> None:
    with pytest.raises(AssertionError, match=f"{action}.* {words}"):
        chaos.judge(world(tmp_path, **{action: found}))


def test_a_conversation_that_has_failed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="conversations have failed"):
        chaos.judge(world(tmp_path, error=[("-9719", 0)]))


@pytest.mark.parametrize("action", ["sent", "received", "answered"])
def test_a_commit_that_postgresql_confirmed_and_lost(tmp_path: Path, action: str) -> None:
    """The loss is reported even if both sides agree on the rest."""
    with pytest.raises(AssertionError, match=rf"{action}, committed, and gone: 1, \[\('b', 2\)\]"):
        chaos.judge(world(tmp_path, **{f"{action}, committed": [*SENT_MESSAGES, ("b", 2)]}))
