"""Which of two rows with one key a table keeps: by queue, conversation, position and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pyarrow as pa
import pytest

from servicebroker.pipeline.sinks.keyed_rows import Changes, fold

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def row(value: str, queue: str, conversation: str, position: int, seconds: int) -> pa.Table:
    time = NOON + timedelta(seconds=seconds)
    return pa.table(
        {
            "id": pa.array([7], pa.int64()),
            "value": [value],
            "_queue": [queue],
            "_conversation_handle": [conversation],
            "_queuing_order": pa.array([100 + position], pa.int64()),
            "_message_enqueue_time": pa.array([time], pa.timestamp("us", "UTC")),
        }
    )


@pytest.mark.parametrize(("position", "seconds"), list(product((-1, 0, 1), repeat=2)))
@pytest.mark.parametrize(("queue", "conversation"), [("q", "c"), ("q", "other"), ("other", "c"), ("other", "other")])
def test_the_newer_row_of_a_key_stays(queue: str, conversation: str, position: int, seconds: int) -> None:
    """The clock of a server may go back: in one conversation the position decides, between queues only the time."""
    has_later_position = queue == "q" and position > 0
    is_newer = has_later_position or ((queue, conversation) != ("q", "c") and seconds > 0)
    existing = Changes(row("old", "q", "c", 0, 0))
    (kept,) = fold(["id"], existing, Changes(row("new", queue, conversation, position, seconds))).rows.to_pylist()
    assert kept["value"] == ("new" if is_newer else "old")
