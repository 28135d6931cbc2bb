"""A waiting reader of the notifier wakes the next reader in certain cases only."""

from __future__ import annotations

from servicebroker.api.notifier import WaitingReader


def test_a_reader_that_found_a_message_wakes_the_next_one() -> None:
    reader = WaitingReader(filtered=False)
    reader.wake(wakes_next=True)
    reader.wake()  # before it has polled
    reader.wait(0)
    assert reader.wakes_next


def test_a_reader_that_found_nothing_and_sleeps_again_wakes_none() -> None:
    reader = WaitingReader(filtered=False)
    reader.wake(wakes_next=True)
    reader.wait(0)
    reader.is_asleep = True  # as in `wait` until it is woken
    reader.wake()
    assert not reader.wakes_next
