"""The limits of one viewer of the dashboard: at each limit, beyond it, and after something has ended."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from servicebroker.dashboard.viewer_limits import (
    MAX_REQUESTS_PER_VIEWER,
    MAX_STREAMS,
    MAX_STREAMS_PER_VIEWER,
    Stream,
    TooManyRequests,
    ViewerLimits,
)


def refusal(limits: ViewerLimits, viewer: str) -> int:
    """Return the status with which a stream of the viewer is refused, 0 if it is not."""
    try:
        with limits.stream(viewer):
            return 0
    except TooManyRequests as problem:
        return problem.status


def test_requests_of_a_viewer_are_limited_until_one_ends() -> None:
    limits = ViewerLimits()
    with ExitStack() as others:
        for _ in range(MAX_REQUESTS_PER_VIEWER - 1):
            others.enter_context(limits.request("anna"))
        with limits.request("anna"):
            with pytest.raises(TooManyRequests) as error, limits.request("anna"):
                pass
            assert error.value.status == 429
            with limits.request("ben"):
                pass
        with pytest.raises(ZeroDivisionError), limits.request("anna"):
            raise ZeroDivisionError
        with limits.request("anna"):
            pass


def test_streams_of_a_viewer_are_limited_until_one_ends() -> None:
    limits = ViewerLimits()
    with ExitStack() as others:
        for _ in range(MAX_STREAMS_PER_VIEWER - 1):
            others.enter_context(limits.stream("anna"))
        with limits.stream("anna"):
            assert (refusal(limits, "anna"), refusal(limits, "ben")) == (429, 0)
        assert refusal(limits, "anna") == 0


@pytest.mark.parametrize(
    ("streams", "viewer", "status", "displaced"),
    [
        ({"anna": 10, "ben": 10, "cid": 10, "dan": 10, "eve": 9}, "fay", 0, None),  # one is free
        ({"anna": 9, "ben": 10, "cid": 10, "dan": 10, "eve": 10, "fay": 1}, "fay", 0, "ben"),
        ({"anna": 9, "ben": 10, "cid": 10, "dan": 10, "eve": 10, "fay": 1}, "anna", 0, "ben"),
        ({str(number): 1 for number in range(MAX_STREAMS)}, "new", 0, "0"),
        ({str(number): 1 for number in range(MAX_STREAMS)}, "7", 503, None),  # as many as the others
        ({str(number): 2 for number in range(MAX_STREAMS // 2)}, "7", 503, None),
    ],
)
def test_a_viewer_with_few_streams_displaces_the_oldest_of_one_with_most(
    streams: dict[str, int], viewer: str, status: int, displaced: str | None
) -> None:
    limits, opened = ViewerLimits(), dict[str, list[Stream]]()
    with ExitStack() as stack:
        for name, count in streams.items():
            opened[name] = [stack.enter_context(limits.stream(name)) for _ in range(count)]
        assert refusal(limits, viewer) == status
        gone = [
            (name, index) for name, kept in opened.items() for index, stream in enumerate(kept) if stream.is_displaced
        ]
        assert gone == ([] if displaced is None else [(displaced, 0)])
