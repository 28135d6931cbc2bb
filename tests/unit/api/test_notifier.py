"""A waiting reader of the notifier wakes the next reader in certain cases only."""

from __future__ import annotations

import pytest

from servicebroker.api.notifier import Notifier, WaitingReader
from servicebroker.overriding import override


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


# ---------------------------------------------------------------- notifications


class Stub(Notifier):
    """A notifier without connections, which keeps the queues that it registers."""

    def __init__(self) -> None:
        super().__init__("", None)  # type: ignore[arg-type]
        self.registrations: list[set[int]] = []

    @override
    def _start(self) -> None:
        """Start no thread."""

    @override
    def _register(self) -> None:
        self._registered = {queue_id for queue_id in self._waiting if not self._is_polled(queue_id)}
        self.registrations.append(set(self._registered))


def asleep(notifier: Stub, queue_id: int, *, filtered: bool = False) -> WaitingReader:
    reader = WaitingReader(filtered=filtered)
    notifier._enter(queue_id, reader)
    reader.is_asleep = True
    return reader


def woken(*readers: WaitingReader) -> list[bool]:
    return [reader.is_woken for reader in readers]


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("5 abc", [True, False, True, False]),  # messages of one group
        ("5", [True, False, True, False]),
        ("-5", [True, True, True, False]),  # the queue was altered
        ("6 abc", [False, False, False, True]),
        ("9", [False] * 4),
        ("x", [False] * 4),
        ("", [False] * 4),
        ("12345678901", [False] * 4),
    ],
)
def test_a_notification_wakes_those_whom_it_may_concern(payload: str, expected: list[bool]) -> None:
    notifier = Stub()
    notifier.service_changes = {5: 1, 6: 1}
    first, second = asleep(notifier, 5), asleep(notifier, 5)
    filtered, other = asleep(notifier, 5, filtered=True), asleep(notifier, 6)
    notifier._notified(payload)
    assert woken(first, second, filtered, other) == expected
    assert first.wakes_next == (payload == "5")
    assert first.wait(0) == (payload == "-5" or not expected[0])
    assert notifier.service_changes == ({6: 1} if payload == "-5" else {5: 1, 6: 1})
    assert set(notifier._polling) <= {5, 6}


def test_a_reader_that_leaves_passes_its_wake_up_on() -> None:
    notifier = Stub()
    first, second, third = asleep(notifier, 5), asleep(notifier, 5), asleep(notifier, 5)
    notifier._notified("5")
    notifier._leave(5, first)
    assert woken(second, third) == [True, False]
    assert second.wakes_next
    notifier._leave(5, third)
    assert notifier.registrations == [{5}]
    notifier._leave(5, second)
    notifier._leave(5, second)  # an interrupted reader may leave twice
    assert (notifier.registrations, notifier._waiting) == ([{5}, set()], {})


def test_a_reader_that_found_a_message_wakes_the_one_that_sleeps_longest() -> None:
    notifier = Stub()
    first, second, third = asleep(notifier, 5), asleep(notifier, 5), asleep(notifier, 5)
    notifier._notified("5")
    first.wait(0)
    assert notifier.keep_waiting(5, first)
    assert woken(first, second, third) == [False, True, False]
    assert notifier._waiting[5] == [second, third, first]
    second.wait(0)
    notifier._registered = set()  # the connection was lost meanwhile
    assert not notifier.keep_waiting(5, second)
    assert notifier.registrations[-1] == {5}
    assert notifier.keep_waiting(5, second)


def test_another_reader_is_woken_if_one_sleeps() -> None:
    notifier = Stub()
    busy = asleep(notifier, 5)
    busy.is_asleep = False
    notifier.wake_another(5)
    notifier.wake_another(6)
    assert woken(busy) == [False]
    sleeper = asleep(notifier, 5)
    assert notifier.count_asleep(5) == 1
    notifier.wake_another(5)
    assert woken(busy, sleeper) == [False, True]
    assert notifier.count_asleep(5) == 0


def test_a_burst_of_notifications_begins_polls_and_the_last_one_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("servicebroker.api.notifier.time.monotonic", lambda: now)
    notifier = Stub()
    reader = asleep(notifier, 5)
    reader.is_asleep = False
    for _ in range(11):
        notifier._notified("5 g")
        now += 0.001
    assert notifier._is_polled(5)
    assert notifier.is_registered(5)
    assert notifier.registrations[-1] == set()
    polls = 0
    while notifier._is_polled(5) and polls < 100:
        reader.wait(0)
        reader.is_asleep = True
        now = notifier._polling[5].next_poll
        notifier._poll()
        assert woken(reader) == [True]
        polls += 1
    assert 3 < polls < 100
    assert notifier.registrations[-1] == {5}


def test_the_readers_of_a_closed_notifier_are_woken() -> None:
    notifier = Stub()
    readers = [asleep(notifier, queue_id, filtered=queue_id == 6) for queue_id in (5, 6)]
    notifier.close()
    assert woken(*readers) == [True, True]
