"""The server's clock, extrapolated by a process between two readings."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from servicebroker.store.server_clock import ServerClock

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class World:
    """A server, and a machine with a monotonic clock and a wall clock that may be wrong."""

    def __init__(self, ahead: float = 0.0) -> None:
        self.passed, self.ahead, self.set_by = 0.0, timedelta(seconds=ahead), timedelta()
        self.told: list[str] = []
        self.clock = ServerClock(lambda: self.passed, lambda: self.true + self.ahead, self.told.append)

    @property
    def true(self) -> datetime:
        return NOON + timedelta(seconds=self.passed)

    @property
    def server(self) -> datetime:
        return self.true + self.set_by

    def update(self, delay_s: float = 0.0) -> bool:
        """Update the clock if that is due. Request and answer take `delay_s` seconds each."""
        asked_at = self.clock.begin_update()
        if asked_at is None:
            return False
        self.passed += delay_s
        answer = self.server
        self.passed += delay_s
        self.clock.update(asked_at, answer)
        return True


def test_the_servers_time_overrides_the_machines() -> None:
    world = World(ahead=3600)
    assert world.update()
    assert world.clock() == NOON
    world.passed += 7.5
    assert world.clock() == world.true


def test_the_machines_clock_may_be_set_meanwhile() -> None:
    world = World()
    world.update()
    world.ahead = timedelta(hours=-5)
    world.passed += 1
    assert world.clock() == world.true


def test_a_slow_answer_costs_half_of_the_way_at_most() -> None:
    world = World()
    world.update(delay_s=2.0)
    assert world.clock() == world.true


def test_the_server_is_asked_again_and_followed_when_its_clock_was_set() -> None:
    world = World()
    assert world.update()
    assert not world.update()
    world.set_by = timedelta(hours=1)
    world.passed += 11
    assert world.update()
    assert world.clock() == world.server


def test_the_machines_time_is_used_before_the_first_measurement() -> None:
    world = World(ahead=60)
    assert world.clock() == NOON + timedelta(seconds=60)


def test_a_difference_is_told_once_and_again_when_it_has_changed() -> None:
    world = World(ahead=3600)
    for _ in range(3):
        world.update()
        world.passed += 11
    assert len(world.told) == 1
    assert "3,600 s ahead of" in world.told[0]
    world.ahead = timedelta(seconds=-90)
    world.update()
    assert "90 s behind" in world.told[1]


def test_four_seconds_are_nothing_to_tell() -> None:
    world = World(ahead=4)
    world.update()
    assert world.told == []


def test_a_difference_is_taken_once() -> None:
    world = World(ahead=3600)
    assert world.clock.take_difference() is None
    world.update()
    assert world.clock.take_difference() == timedelta(seconds=3600)
    assert world.clock.take_difference() is None
    world.passed += 11
    world.update()
    assert world.clock.take_difference() == timedelta(seconds=3600)  # for another of the processes
