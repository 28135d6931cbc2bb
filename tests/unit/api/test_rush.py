"""When readers look by themselves: the arithmetic of api/shared/rush.py."""

from __future__ import annotations

import math

from servicebroker.api.shared.rush import Rush


def rushed(start: float = 0.0) -> tuple[Rush, float]:
    """A rush that has just begun, and when."""
    rush = Rush()
    now = start
    while not rush.is_on:
        now += 0.004
        rush.notified(now)
    return rush, now


def test_a_few_notifications_or_slow_ones_are_none() -> None:
    rush = Rush()
    for number in range(1000):
        rush.notified(number * 0.02)
        assert not rush.is_on
    for burst in range(100, 1000):
        for number in range(5):
            rush.notified(burst + number * 0.001)
        assert not rush.is_on


def test_notifications_that_follow_each_other_closely_are_one() -> None:
    rush, now = rushed()
    assert now < 0.1
    assert now < rush.due < now + 0.01


def test_it_ends_when_some_looks_have_found_nothing() -> None:
    """Then they are notified again, and look some more times, until the transactions of then have ended."""
    rush, now = rushed()
    begun, over, pauses = now, [], []
    while rush.due < math.inf:
        pauses.append(rush.due - now)
        now = rush.due
        if rush.look(now):
            over.append(now - begun)
        assert rush.is_on is (not over)
    assert pauses == sorted(pauses)
    assert len(pauses) < 12
    assert len(over) == 1
    assert 0.01 < over[0] < 0.1
    assert now - begun > 0.9
    rush.notified(now)
    assert not rush.is_on


def test_what_is_found_after_a_rush_makes_no_new_one() -> None:
    rush, now = rushed()
    while not rush.look(now):
        now = rush.due
    while rush.due < math.inf:
        rush.found()
        rush.look(rush.due)
        assert not rush.is_on


def test_it_lasts_as_long_as_readers_find_something() -> None:
    rush, now = rushed()
    for number in range(1000):
        if number % 2 == 0:
            rush.found()
        now = rush.due
        rush.look(now)
        assert rush.is_on
        assert rush.due - now < 0.02
    while rush.is_on:
        now = rush.due
        rush.look(now)


def test_it_lasts_as_long_as_others_find_something() -> None:
    """Where readers here find nothing they look seldom, and ask now and then whether messages still come."""
    rush, now = rushed()
    begun, asked = now, 0
    for number in range(1000):
        asks = rush.asks(now := rush.due)
        asked += asks
        rush.attended = now - 0.5
        assert not rush.look(now, number if asks else None)
        assert rush.due - now < 0.02
    assert 0.04 < (now - begun) / asked < 0.1
    begun = now
    while rush.is_on:
        now = rush.due
        rush.look(now, 1000 if rush.asks(now) else None)
    assert now - begun < 0.2


def test_it_ends_where_readers_have_gone() -> None:
    rush, now = rushed()
    rush.attended = begun = now
    for number in range(1000):
        now = rush.due
        if rush.look(now, number if rush.asks(now) else None):
            break
    assert 1 < now - begun < 1.2
