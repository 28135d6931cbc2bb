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
    """A machine whose conversations are mostly short: consecutive steps begin, answer and end them."""

    # Aliases of one rule: Hypothesis chooses a rule with several names more often.
    begin_and_send_2 = begin_and_send_3 = begin_and_send_4 = begin_and_send_5 = Model.begin_and_send
    receive_all_2 = receive_all_3 = Model.receive_all
    end_2 = Model.end
    # Replaces a rule of `Model`: BEGIN DIALOG with options never joins its first SEND in one statement.
    begin_with_choices = Model.begin_and_send

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
    """BEGIN DIALOG and its SEND run as one statement, or as two if a definition has changed since.

    The test demands that both ways occur.
    """
    outcomes = {True: 0, False: 0}
    begin_and_send = deferred_dialogs._begin_and_send

    def count_outcome(*arguments: Any) -> Steps[bool]:
        is_done = yield from begin_and_send(*arguments)
        outcomes[is_done] += 1
        return is_done

    monkeypatch.setattr(deferred_dialogs, "_begin_and_send", count_outcome)
    steps = request.config.option.model_steps // 2
    run_histories(ShortModel, make_instance_url(), steps, seeded_random, record_property)
    record_property("in one statement", outcomes)
    assert min(outcomes.values()) > 0
