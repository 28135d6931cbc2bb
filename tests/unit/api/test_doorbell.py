"""The bell of one reader: what api/doorbell.py remembers of the reason that woke it."""

from __future__ import annotations

from servicebroker.api.doorbell import Bell


def test_a_reader_that_found_a_message_wakes_the_next_one() -> None:
    bell = Bell(filtered=False)
    bell.ring(wakes_next=True)
    bell.ring()  # before it has looked
    bell.wait(0)
    assert bell.wakes_next


def test_a_reader_that_found_nothing_and_sleeps_again_wakes_none() -> None:
    bell = Bell(filtered=False)
    bell.ring(wakes_next=True)
    bell.wait(0)
    bell.is_asleep = True  # as `wait` leaves it while nothing rings
    bell.ring()
    assert not bell.wakes_next
