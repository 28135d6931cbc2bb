"""What arrives: what waits for its batch is bounded, whatever a peer repeats."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from servicebroker.broker.arrivals import TRACED, Settling
from servicebroker.engine.conversation.traces import Traced


def test_trace_contexts_of_what_only_comes_again_do_not_pile_up() -> None:
    none: Any = None
    settling = Settling(none, lambda: 0.0)
    settling._traced = [Traced(uuid4(), True, number, b"context") for number in range(TRACED + 5)]
    assert settling.store(none, set()) is None
    assert [one.number for one in settling._traced] == list(range(5, TRACED + 5))
