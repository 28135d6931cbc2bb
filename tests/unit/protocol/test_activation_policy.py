"""The queue monitor's decisions: a table of cases and random histories. Time is an argument."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servicebroker.protocol.queue_monitor import (
    NEW,
    Decision,
    Monitor,
    MonitorState,
    Seen,
    Settings,
    could_not_start,
    died,
    look,
)

INACTIVE, NOTIFIED, OCCURRING = MonitorState.INACTIVE, MonitorState.NOTIFIED, MonitorState.RECEIVES_OCCURRING
NOTHING, ACTIVATE, LIMIT = Decision.NOTHING, Decision.ACTIVATE, Decision.LIMIT
THREE = Settings(max_readers=3)
OUTSIDE = Settings(max_readers=0, external=True)

READY, EMPTY = Seen(True, arrivals=1), Seen(False)


def test_the_decisions_differ() -> None:
    assert len(Decision) == len({NOTHING, ACTIVATE, LIMIT}) == 3, "two names of one value would be one decision"


def play(settings: Settings, *steps: tuple[float, Seen, MonitorState, Decision]) -> Monitor:
    """Run the monitor through the steps (time, queue, expected state, expected decision)."""
    monitor = NEW
    for number, (now, seen, state, decision) in enumerate(steps):
        monitor, decided = look(monitor, seen, settings, now)
        assert (monitor.state, decided) == (state, decision), f"step {number}"
    return monitor


def ready(running: int = 1, **seen: Any) -> Seen:
    return Seen(True, **{"arrivals": 1, "running": running, **seen})


TABLE: dict[str, tuple[Settings, list[tuple[float, Seen, MonitorState, Decision]]]] = {
    "an arrival starts the first at once": (
        THREE,
        [(0, EMPTY, INACTIVE, NOTHING), (0.001, READY, NOTIFIED, ACTIVATE)],
    ),
    "messages that are there when the monitor begins start it too": (THREE, [(0, READY, NOTIFIED, ACTIVATE)]),
    "old counters are not a RECEIVE": (
        THREE,
        [(0, ready(0, receives=900, empty=30), NOTIFIED, ACTIVATE), (99, ready(1, receives=900), NOTIFIED, NOTHING)],
    ),
    "nothing more until somebody has executed RECEIVE": (
        THREE,
        [(0, READY, NOTIFIED, ACTIVATE), (60, ready(1), NOTIFIED, NOTHING), (61, ready(0), NOTIFIED, NOTHING)],
    ),
    "a RECEIVE of anybody frees a monitor that is stuck": (
        THREE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (9, ready(0), NOTIFIED, NOTHING),
            (10, ready(0, receives=1), NOTIFIED, ACTIVATE),
        ],
    ),
    "one more each five seconds, up to the maximum": (
        THREE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (0.1, ready(1, receives=1), OCCURRING, NOTHING),
            (5.0, ready(1, receives=50), OCCURRING, NOTHING),
            (5.1, ready(1, receives=51), OCCURRING, ACTIVATE),
            (10.0, ready(2, receives=90), OCCURRING, NOTHING),
            (10.1, ready(2, receives=91), OCCURRING, ACTIVATE),
            (15.1, ready(3, receives=99), OCCURRING, LIMIT),
            (15.2, ready(3, receives=99), OCCURRING, NOTHING),
        ],
    ),
    "a RECEIVE that finds nothing begins the five seconds again": (
        THREE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (0.1, ready(1, receives=1), OCCURRING, NOTHING),
            (4.0, ready(1, receives=9, empty=1), OCCURRING, NOTHING),
            (8.9, ready(1, receives=20, empty=1), OCCURRING, NOTHING),
            (9.0, ready(1, receives=21, empty=1), OCCURRING, ACTIVATE),
        ],
    ),
    "a reader that leaves messages behind is started again at once": (
        THREE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (0.1, ready(1, receives=1), OCCURRING, NOTHING),
            (0.2, ready(0, receives=1), NOTIFIED, ACTIVATE),
            (0.3, ready(0, receives=2), NOTIFIED, ACTIVATE),
        ],
    ),
    "one that left because it found nothing is not, until the next arrival": (
        THREE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (0.1, ready(0, receives=1, empty=1), OCCURRING, NOTHING),
            (0.2, ready(0, receives=1, empty=1, arrivals=2), NOTIFIED, ACTIVATE),
        ],
    ),
    "nor later than after five seconds": (
        THREE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (0.1, ready(0, receives=1, empty=1), OCCURRING, NOTHING),
            (5.1, ready(0, receives=1, empty=1), NOTIFIED, ACTIVATE),
        ],
    ),
    "a first look starts one more at once, as after ALTER QUEUE": (THREE, [(0, ready(1), OCCURRING, ACTIVATE)]),
    "but no more than allowed": (THREE, [(0, ready(3), INACTIVE, LIMIT)]),
    "what is locked is not there": (
        THREE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (0.1, Seen(False, 1, receives=1, running=1), INACTIVE, NOTHING),
            (60, Seen(False, 1, receives=1, running=1), INACTIVE, NOTHING),
        ],
    ),
    "an arrival beside a reader waits its five seconds": (
        THREE,
        [
            (0, Seen(False, running=1), INACTIVE, NOTHING),
            (1, ready(1), OCCURRING, NOTHING),
            (6, ready(1), OCCURRING, ACTIVATE),
        ],
    ),
    "who waits in a RECEIVE takes it": (
        THREE,
        [(0, ready(0, waiting=1), INACTIVE, NOTHING), (0.1, Seen(False, 1, receives=1), INACTIVE, NOTHING)],
    ),
    "unless it does not within five seconds": (
        THREE,
        [(0, ready(0, waiting=1), INACTIVE, NOTHING), (5, ready(0, waiting=1), NOTIFIED, ACTIVATE)],
    ),
    "a notification goes out once": (
        OUTSIDE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (99, ready(0), NOTIFIED, NOTHING),
            (100, ready(0, arrivals=2), NOTIFIED, NOTHING),
        ],
    ),
    "and again five seconds after a RECEIVE, while messages remain": (
        OUTSIDE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (1, ready(0, receives=1), OCCURRING, NOTHING),
            (5.9, ready(0, receives=5), OCCURRING, NOTHING),
            (6, ready(0, receives=6), NOTIFIED, ACTIVATE),
            (12, ready(0, receives=7), OCCURRING, NOTHING),
        ],
    ),
    "and when a message comes into a queue that was empty": (
        OUTSIDE,
        [
            (0, READY, NOTIFIED, ACTIVATE),
            (1, Seen(False, 1, receives=1), INACTIVE, NOTHING),
            (2, ready(0, receives=1, arrivals=2), NOTIFIED, ACTIVATE),
        ],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_table(name: str) -> None:
    settings, steps = TABLE[name]
    play(settings, *steps)


def test_a_failed_start_is_retried_every_five_seconds() -> None:
    monitor, decision = look(NEW, READY, THREE, 100)
    assert decision == ACTIVATE
    monitor = could_not_start(monitor, THREE, 100)
    for now, expected in ((100.1, NOTHING), (104.9, NOTHING), (105, ACTIVATE)):
        assert monitor.state == INACTIVE  # no reader was requested
        monitor, decision = look(monitor, READY, THREE, now)
        assert decision == expected, now


def test_a_reader_that_died_without_a_receive_is_restarted_after_the_interval() -> None:
    monitor = died(look(NEW, READY, THREE, 100)[0], THREE, 100)
    for now, expected in ((100.1, NOTHING), (104.9, NOTHING), (105, ACTIVATE), (999, NOTHING)):
        monitor, decision = look(monitor, READY, THREE, now)
        assert (monitor.state, decision) == (NOTIFIED, expected), now


def test_a_reader_that_died_after_a_receive_is_restarted_at_once() -> None:
    monitor = died(look(NEW, READY, THREE, 100)[0], THREE, 100)
    assert look(monitor, ready(0, receives=1), THREE, 100.1)[1] == ACTIVATE
    occurring = look(look(NEW, READY, THREE, 100)[0], ready(1, receives=1), THREE, 101)[0]
    assert look(died(occurring, THREE, 102), ready(0, receives=1), THREE, 102.1)[1] == ACTIVATE


def test_the_interval_can_be_set() -> None:
    quick = Settings(3, interval=0.5)
    play(
        quick,
        (0, READY, NOTIFIED, ACTIVATE),
        (0.1, ready(1, receives=1), OCCURRING, NOTHING),
        (0.6, ready(1, receives=2), OCCURRING, ACTIVATE),
    )


def test_the_times_of_the_view() -> None:
    monitor = play(
        THREE,
        (1, READY, NOTIFIED, ACTIVATE),
        (2, ready(1, receives=1), OCCURRING, NOTHING),
        (3, Seen(False, 1, receives=2, empty=1, running=1), INACTIVE, NOTHING),
    )
    assert (monitor.last_activated, monitor.last_empty) == (1, 3)


STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "receive", "exit", "wait"]), st.floats(0.01, 9)), min_size=1, max_size=60
)


@given(st.integers(1, 4), STEPS)
@settings(max_examples=300, deadline=None)
def test_work_has_at_least_one_reader_and_at_most_the_maximum(maximum: int, steps: list[tuple[str, float]]) -> None:
    """Readers RECEIVE and may leave at any time. The monitor looks at every step and 20 ms later."""
    asked = Settings(maximum)
    monitor, now, messages = NEW, 0.0, 0
    arrivals = receives = empty = running = 0
    started: list[float] = []

    def poll() -> None:
        nonlocal monitor, running
        monitor, decision = look(monitor, Seen(messages > 0, arrivals, receives, empty, 0, running), asked, now)
        if decision == ACTIVATE:
            if running:
                assert now - started[-1] >= asked.interval, "a second one joins after five seconds, no sooner"
            running += 1
            started.append(now)
        assert running <= maximum
        if decision == LIMIT:
            assert running == maximum

    for action, pause in steps:
        if action == "send":
            messages, arrivals = messages + 3, arrivals + 3
        elif action in ("receive", "exit") and running:
            receives += 1
            empty += messages == 0
            messages = max(0, messages - 1)
            running -= action == "exit"
        poll()
        now += 0.02
        poll()
        assert running or not messages, "work, and nobody at it"
        now += pause
