"""The count of rollbacks, and the registry of events, without a database."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from functools import partial

import pytest

from servicebroker.model import poison
from servicebroker.model.events import QUEUE_DISABLED_CLASS, BrokerEvent, Events
from servicebroker.model.poison import Rollbacks
from servicebroker.store.concurrency import is_interrupt

QUEUE_ID, OTHER_QUEUE_ID = 1, 2
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_fifth_rollback_in_a_row_reaches_the_limit_and_the_count_begins_again() -> None:
    rollbacks = Rollbacks()
    for _ in range(2):
        assert [rollbacks.count_rollback([QUEUE_ID]) for _ in range(5)] == [[], [], [], [], [QUEUE_ID]]


def test_a_commit_begins_again_and_each_queue_has_its_own_count() -> None:
    rollbacks = Rollbacks()
    for _ in range(4):
        assert rollbacks.count_rollback([QUEUE_ID, OTHER_QUEUE_ID]) == []
    rollbacks.note_commit([QUEUE_ID])
    assert rollbacks.count_rollback([QUEUE_ID, OTHER_QUEUE_ID]) == [OTHER_QUEUE_ID]
    assert rollbacks.count_rollback([QUEUE_ID, OTHER_QUEUE_ID]) == []


def test_transactions_are_asked_for_when_they_may_matter() -> None:
    rollbacks = Rollbacks()
    for transaction in range(4):
        rollbacks.note_unknown_outcome(transaction, [QUEUE_ID])
        assert not rollbacks.is_due(QUEUE_ID)
    rollbacks.note_unknown_outcome(4, [QUEUE_ID, OTHER_QUEUE_ID])
    assert rollbacks.is_due(QUEUE_ID)
    assert not rollbacks.is_due(OTHER_QUEUE_ID)
    assert rollbacks.count_outcomes({0: "aborted", 1: "in progress", 2: "aborted", 3: "aborted", 4: "aborted"}) == []
    assert rollbacks.pending() == [1]
    assert rollbacks.count_outcomes({1: "aborted"}) == [QUEUE_ID]
    assert rollbacks.pending() == []
    rollbacks.note_unknown_outcome(5, [QUEUE_ID])
    assert rollbacks.count_outcomes({5: None}) == []
    assert rollbacks.pending() == []


def test_pending_rollbacks_are_bounded() -> None:
    rollbacks = Rollbacks()
    for transaction in range(poison._MAX_PENDING + 10):
        rollbacks.note_unknown_outcome(transaction, [QUEUE_ID])
    assert len(rollbacks.pending()) == poison._MAX_PENDING
    assert rollbacks.pending()[0] == 10


def test_events_are_kept_and_told() -> None:
    events = Events()
    seen_events: list[BrokerEvent] = []

    def broken(_: BrokerEvent) -> None:
        raise ValueError("broken handler")

    events.subscribe(broken)
    events.subscribe(seen_events.append)
    events.record(QUEUE_DISABLED_CLASS, NOW, 5, 70000, "off")
    assert seen_events == events.recent() == events.recent(QUEUE_DISABLED_CLASS)
    assert seen_events[0][:7] == (143, "Broker:Queue Disabled", NOW, 5, 70000, "off", "")
    assert events.recent(1) == []
    for _ in range(2000):
        events.record(QUEUE_DISABLED_CLASS, NOW, 5, 70000, "off")
    assert len(events.recent()) == 1000


@pytest.mark.parametrize("problem", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_handler_that_exits_ends_no_thread_of_ours(problem: type[BaseException]) -> None:
    events, seen_events = Events(partial(is_interrupt, exits=True)), []

    def broken(_: BrokerEvent) -> None:
        raise problem

    def record() -> None:
        events.record(QUEUE_DISABLED_CLASS, NOW, 5, 70000, "off")
        seen_events.append("off")

    events.subscribe(broken)
    working = threading.Thread(target=record)
    working.start()
    working.join()
    assert seen_events == ["off"]
    if problem is not GeneratorExit:  # in the main thread the program handles it
        with pytest.raises(problem):
            record()


def test_a_log_handler_that_fails_hides_no_event() -> None:
    events, seen_events = Events(), []

    class BrokenEvent(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("no log")

    handler, log = BrokenEvent(), logging.getLogger("servicebroker")
    log.addHandler(handler)
    try:
        events.subscribe(seen_events.append)
        events.record(QUEUE_DISABLED_CLASS, NOW, 5, 70000, "off")
    finally:
        log.removeHandler(handler)
    assert len(seen_events) == 1


@pytest.mark.parametrize(
    ("outcome", "counts", "is_pending"),
    [("aborted", True, False), ("committed", False, False), ("in progress", False, True), (None, False, False)],
)
def test_only_rollbacks_that_are_known_count(outcome: str | None, counts: bool, is_pending: bool) -> None:
    rollbacks = Rollbacks()
    for _ in range(poison.MAX_ROLLBACKS - 1):
        assert rollbacks.count_rollback([QUEUE_ID]) == []
    rollbacks.note_unknown_outcome(7, [QUEUE_ID])
    assert rollbacks.count_outcomes({7: outcome}) == ([QUEUE_ID] if counts else [])
    assert rollbacks.pending() == ([7] if is_pending else [])
    is_reset = counts or outcome == "committed"
    assert rollbacks.count_rollback([QUEUE_ID]) == ([] if is_reset else [QUEUE_ID])
