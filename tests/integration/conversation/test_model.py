"""Random histories: the engine and the in-memory test double must give the same results."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from random_histories import DEFINITIONS, Model, run_histories
from servicebroker.engine.conversation import deferred_dialogs
from servicebroker.store.statements import Steps

RecordProperty = Callable[[str, object], None]


class ShortModel(Model):
    """Most conversations are begun, sent on, answered and ended at once."""

    # aliases: Hypothesis then chooses these rules more often
    begin_again = begin_once_more = begin_in_haste = begin_for_one = Model.begin_and_send
    begin_with_choices = (
        Model.begin_and_send
    )  # a dialog with options is never sent in one statement with its first message
    receive_again = receive_once_more = Model.receive_all
    end_again = Model.end

    @precondition(lambda self: not self.open)
    @rule(kind=st.sampled_from(DEFINITIONS), which=Model.number, chance=st.integers(0, 7))
    def define(self, kind: str, which: int, chance: int) -> None:  # type: ignore[override]
        if chance == 0:  # one time in eight, since definitions are rare
            self.definition(kind, which)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_engine_and_the_double_agree(
    make_instance_url: Callable[..., str],
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: RecordProperty,
) -> None:
    run_histories(Model, make_instance_url(), request.config.option.model_steps, seeded_random, record_property)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_engine_and_the_double_agree_on_short_conversations(
    make_instance_url: Callable[..., str],
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: RecordProperty,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BEGIN DIALOG and SEND run as one statement, after an ALTER as two. Both happen here."""
    outcomes = {True: 0, False: 0}
    begin_and_send = deferred_dialogs._begin_and_send

    def counted(*arguments: Any) -> Steps[bool]:
        is_done = yield from begin_and_send(*arguments)
        outcomes[is_done] += 1
        return is_done

    monkeypatch.setattr(deferred_dialogs, "_begin_and_send", counted)
    steps = request.config.option.model_steps // 2
    run_histories(ShortModel, make_instance_url(), steps, seeded_random, record_property)
    record_property("in one statement", outcomes)
    assert min(outcomes.values()) > 0
