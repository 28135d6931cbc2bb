"""The token bucket of a worker's readers, with a clock that the test moves."""

from __future__ import annotations

import pytest

from servicebroker.api.shared.rate_limit import RateLimit


class Bucket:
    """A limit of ten messages a second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.limit = RateLimit(10, lambda: self.now)

    def wait_at(self, seconds: float) -> float:
        """Take a token at a time. Returns the seconds to wait, 0 if there was one."""
        self.now = 100.0 + seconds
        return round(self.limit.take(), 6)


def test_tokens_come_at_the_rate() -> None:
    bucket = Bucket()
    waits = [bucket.wait_at(at) for at in (0, 0.04, 0.1, 0.1, 0.2)]
    assert waits == [0, 0.06, 0, 0.1, 0]


@pytest.mark.parametrize(("late", "following"), [(0.03, 0.1), (0.05, 0.1), (0.2, 0.25), (60, 60.05)])
def test_a_late_reader_makes_up_for_a_little_and_not_for_a_pause(late: float, following: float) -> None:
    """`following`: the time of the next token, in seconds after the time at which the late one was due."""
    bucket = Bucket()
    assert bucket.wait_at(0) == 0
    assert bucket.wait_at(0.1 + late) == 0
    assert bucket.wait_at(0.1 + following - 0.001) == pytest.approx(0.001)
    assert bucket.wait_at(0.1 + following) == 0


@pytest.mark.parametrize(("received", "following"), [(0, 0.0), (1, 0.1), (5, 0.5)])
def test_a_token_is_settled_by_the_messages_received(received: int, following: float) -> None:
    bucket = Bucket()
    assert bucket.wait_at(0) == 0
    bucket.limit.settle(received)
    assert bucket.wait_at(0) == pytest.approx(following)
