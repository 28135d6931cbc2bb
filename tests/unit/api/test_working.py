"""The readers of a worker in one process."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.api.working import _count_readers


@pytest.mark.parametrize(
    ("own", "slots", "readers"), [(None, None, 2_000), (1_500, None, 1_500), (None, 3, 3), (2, 3, 2)]
)
def test_a_worker_has_no_more_readers_than_slots(own: int | None, slots: int | None, readers: int) -> None:
    worker = sb.Worker("Q", concurrency=own, global_concurrency=slots)
    assert _count_readers(worker, 2_000) == readers
