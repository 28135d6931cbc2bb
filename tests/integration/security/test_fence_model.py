"""Random histories through the fence, compared with the in-memory double: the same rules for a restricted role."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from fenced_histories import FencedModel, restricted_role
from random_histories import run_histories


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_the_fence_and_the_double_agree(
    make_url: Callable[[], str],
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    url = make_url()
    with ExitStack() as stack:
        run_histories(
            FencedModel,
            url,
            request.config.option.model_steps // 8,
            seeded_random,
            record_property,
            lambda: stack.enter_context(restricted_role(FencedModel, url)),
        )
