"""Processes next to a benchmark: an error that one raised is reported, not its consequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker_lab.benchmarks.sender_process import SenderProcess, all_during


@contextmanager
def sending() -> Iterator[Callable[[int], int]]:
    def send(count: int) -> int:
        if count < 0:
            raise InstanceError("The disk is full.")
        return count

    yield send


def wait_for_messages() -> None:
    raise InstanceError("3 messages have not arrived.")


def test_a_sender_that_has_failed_is_why_its_messages_have_not_come() -> None:
    well, ill = asides = [SenderProcess(sending), SenderProcess(sending)]
    try:
        assert all_during(lambda: "read", [(well, (1,)), (ill, (2,))]) == "read"
        assert (well.answer, ill.answer) == (1, 2)

        def wait() -> None:
            for aside in asides:
                assert aside._pipe.poll(30)  # its answer is there
            wait_for_messages()

        with pytest.raises(InstanceError, match=r"^3 messages"):
            all_during(wait, [(well, (1,)), (ill, (2,))])
        with pytest.raises(InstanceError, match=r"^The disk is full\.$"):
            all_during(wait, [(well, (1,)), (ill, (-1,))])
    finally:
        for aside in asides:
            aside.close()
