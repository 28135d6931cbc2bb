"""The polling mode of readers: the arithmetic of api/shared/polling_mode.py."""

from __future__ import annotations

import math

from servicebroker.api.shared.polling_mode import PollingMode


def begun_mode(start: float = 0.0) -> tuple[PollingMode, float]:
    """Return a polling mode that has just begun, and the time."""
    mode = PollingMode()
    now = start
    while not mode.is_on:
        now += 0.004
        mode.note_notification(now, were_asleep=False)
    return mode, now


def test_a_few_notifications_or_slow_ones_are_none() -> None:
    mode = PollingMode()
    for number in range(1000):
        mode.note_notification(number * 0.02, were_asleep=False)
        assert not mode.is_on
    for burst in range(100, 1000):
        for number in range(5):
            mode.note_notification(burst + number * 0.001, were_asleep=False)
        assert not mode.is_on


def test_a_poll_ends_a_burst() -> None:
    mode = PollingMode()
    for burst in range(100):
        for number in range(9):
            mode.note_notification(burst * 0.01 + number * 0.001, were_asleep=False)
        mode.plan_poll(burst * 0.01 + 0.009)
        assert not mode.is_on


def test_notifications_that_follow_each_other_closely_are_one() -> None:
    mode, now = begun_mode()
    assert now < 0.1
    assert now < mode.next_poll < now + 0.01


def test_notifications_that_find_all_readers_asleep_are_none() -> None:
    """A single one of them resets the count."""
    mode = PollingMode()
    for number in range(1000):
        mode.note_notification(number * 0.001, were_asleep=number % 9 == 0)
        assert not mode.is_on


def test_polling_ends_after_some_empty_polls() -> None:
    """Readers are notified again, and poll a few more times until the open transactions have ended."""
    mode, now = begun_mode()
    begun, over, pauses = now, [], []
    while mode.next_poll < math.inf:
        pauses.append(mode.next_poll - now)
        now = mode.next_poll
        if mode.plan_poll(now):
            over.append(now - begun)
        assert mode.is_on is (not over)
    assert pauses == sorted(pauses)
    assert len(pauses) < 12
    assert len(over) == 1
    assert 0.01 < over[0] < 0.1
    assert now - begun > 0.9
    mode.note_notification(now, were_asleep=False)
    assert not mode.is_on


def test_messages_found_after_the_end_start_no_new_polling() -> None:
    mode, now = begun_mode()
    while not mode.plan_poll(now):
        now = mode.next_poll
    while mode.next_poll < math.inf:
        mode.note_message()
        mode.plan_poll(mode.next_poll)
        assert not mode.is_on


def test_polling_lasts_while_readers_find_messages() -> None:
    mode, now = begun_mode()
    for number in range(1000):
        if number % 2 == 0:
            mode.note_message()
        now = mode.next_poll
        mode.plan_poll(now)
        assert mode.is_on
        assert mode.next_poll - now < 0.02
    while mode.is_on:
        now = mode.next_poll
        mode.plan_poll(now)


def test_polling_lasts_while_other_readers_find_messages() -> None:
    """Readers without messages poll rarely, and check at times if messages still arrive."""
    mode, now = begun_mode()
    begun, asked = now, 0
    for number in range(1000):
        asks = mode.needs_count(now := mode.next_poll)
        asked += asks
        mode.last_attended = now - 0.5
        assert not mode.plan_poll(now, number if asks else None)
        assert mode.next_poll - now < 0.02
    assert 0.04 < (now - begun) / asked < 0.1
    begun = now
    while mode.is_on:
        now = mode.next_poll
        mode.plan_poll(now, 1000 if mode.needs_count(now) else None)
    assert now - begun < 0.2


def test_polling_ends_without_readers() -> None:
    mode, now = begun_mode()
    mode.last_attended = begun = now
    for number in range(1000):
        now = mode.next_poll
        if mode.plan_poll(now, number if mode.needs_count(now) else None):
            break
    assert 1 < now - begun < 1.2
