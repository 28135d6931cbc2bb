"""Random histories in T-SQL text beside the in-memory double."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from random_histories import run_histories
from spoken_histories import TsqlModel


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_tsql_and_the_double_agree(
    make_instance_url: Callable[..., str],
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    run_histories(TsqlModel, make_instance_url(), request.config.option.tsql_steps, seeded_random, record_property)
