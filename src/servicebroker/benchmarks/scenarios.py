"""The scenarios: what is compared, on how many messages, and which ratios are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PIPELINE = "pipeline"
PIPELINE_ROUNDS = 3  # at most: one takes a minute


@dataclass(frozen=True)
class Scenario:
    """One comparison.

    Attributes:
        title: what it is, for a reader.
        messages: how many in one round, at scale 1.
        goals: for each peer, how many times as fast as it we want to be.
    """

    title: str
    messages: int
    goals: Mapping[str, float] = field(default_factory=dict)


SCENARIOS: dict[str, Scenario] = {
    "send-one": Scenario("SEND, one per transaction", 3_000, {"pgmq": 1.2, "pgqueuer": 1.2, "procrastinate": 2.0}),
    "send-batch": Scenario("SEND, 1,000 per transaction", 60_000, {"pgmq": 1.8, "pgqueuer": 2.5, "procrastinate": 8.0}),
    "receive-one": Scenario("RECEIVE TOP (1), one per transaction", 3_000, {"pgmq": 0.9}),
    "receive-batch": Scenario("RECEIVE TOP (1000)", 100_000, {"pgmq": 4.0}),
    "worker": Scenario("A worker that commits each message", 1_500, {"procrastinate": 10.0}),
    PIPELINE: Scenario("Queue into a Delta table with Spark", 1_000_000, {"spark": 0.5}),
}
