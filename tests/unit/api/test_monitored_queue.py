"""The activation thread's memory of a queue, and the alerts of queues that were switched off."""

from __future__ import annotations

import subprocess
import threading
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from servicebroker.activation import alerts
from servicebroker.activation.alerts import RETRY_DELAY_S, Alert
from servicebroker.activation.monitored_queue import MonitoredQueue
from servicebroker.engine.activation.monitors import Definition, QueueCounters
from servicebroker.engine.activation.poison_detection import PendingAlert
from servicebroker.protocol.queue_monitor import Monitor, MonitorState, Seen

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PROCEDURE = Definition(7, 1, "Test", "dbo", "Queue", "[Test].[dbo].[p]", 1, "dbo", 1, 42)
EXTERNAL = PROCEDURE._replace(procedure=None)


def queue_in(state: MonitorState = MonitorState.INACTIVE, *, tasks: int = 0, **fields: Any) -> MonitoredQueue:
    queue = MonitoredQueue(fields.pop("definition", PROCEDURE), monitor=Monitor(state), **fields)
    signal: Any = None
    queue.tasks = {threading.Thread(): signal for _ in range(tasks)}
    return queue


def counters(*numbers: int, is_due: bool = False) -> QueueCounters:
    return QueueCounters(7, is_due, numbers)


def test_a_queue_is_checked_until_all_counted_messages_were_visible() -> None:
    queue = queue_in()
    assert queue.must_check(counters(1), 100)
    assert not queue.may_be_empty(1_000)  # messages of the counters may belong to a transaction that goes on
    assert queue.must_check(counters(1), 100)
    assert queue.must_check(counters(1), 200)
    assert [queue.may_be_empty(oldest) for oldest in (99, 100, 101)] == [False, True, True]
    queue.is_known_empty = True
    assert not queue.may_be_empty(1_000)
    assert not queue.must_check(counters(1), 300)
    assert queue.must_check(counters(1, is_due=True), 300)
    assert queue.must_check(counters(2), 300)
    assert not queue.is_known_empty
    assert not queue.may_be_empty(1_000)


@pytest.mark.parametrize(
    ("state", "tasks", "is_idle"),
    [
        (MonitorState.INACTIVE, 0, True),
        (MonitorState.INACTIVE, 1, False),
        (MonitorState.NOTIFIED, 0, False),
        (MonitorState.RECEIVES_OCCURRING, 0, False),
    ],
)
def test_only_a_queue_without_a_reader_may_be_empty(state: MonitorState, tasks: int, is_idle: bool) -> None:
    assert queue_in(state, tasks=tasks, visible_from=1).may_be_empty(1) is is_idle


@pytest.mark.parametrize(
    ("state", "tasks", "is_on", "is_needed"),
    [
        (MonitorState.INACTIVE, 0, True, True),
        (MonitorState.RECEIVES_OCCURRING, 0, True, True),
        (MonitorState.NOTIFIED, 0, True, False),
        (MonitorState.INACTIVE, 1, True, False),
        (MonitorState.INACTIVE, 0, False, False),
    ],
)
def test_a_send_notifies_the_monitor_of_a_queue_without_a_reader(
    state: MonitorState, tasks: int, is_on: bool, is_needed: bool
) -> None:
    assert queue_in(state, tasks=tasks, is_on=is_on).needs_notification is is_needed


@pytest.mark.parametrize(
    ("state", "tasks", "waiting", "is_quiet"),
    [
        (MonitorState.INACTIVE, 0, 0, True),
        (MonitorState.INACTIVE, 2, 2, True),
        (MonitorState.INACTIVE, 2, 1, False),
        (MonitorState.NOTIFIED, 0, 0, False),
    ],
)
def test_a_queue_is_quiet_while_all_its_readers_wait(
    state: MonitorState, tasks: int, waiting: int, is_quiet: bool
) -> None:
    assert queue_in(state, tasks=tasks, waiting=waiting).is_quiet is is_quiet


def test_the_row_of_a_monitor_has_times_of_the_server_and_is_written_once() -> None:
    queue = queue_in(MonitorState.RECEIVES_OCCURRING, waiting=2)
    queue.monitor = queue.monitor._replace(last_empty=90.0, last_activated=40.0, seen=Seen(True, receives=5))
    row = queue.changed_row(NOW, 100.0)
    assert row == (7, "RECEIVES_OCCURRING", NOW - timedelta(seconds=10), NOW - timedelta(seconds=60), 2, None, 5)
    assert queue.changed_row(NOW, 100.0) is None
    queue.waiting = 1
    assert queue.changed_row(NOW, 100.0) is not None


@pytest.mark.parametrize(
    ("definition", "state", "version"),
    [
        (EXTERNAL, MonitorState.NOTIFIED, 42),
        (EXTERNAL, MonitorState.INACTIVE, None),
        (PROCEDURE, MonitorState.NOTIFIED, None),
    ],
)
def test_another_process_learns_of_a_sent_notification(
    definition: Definition, state: MonitorState, version: int | None
) -> None:
    row = queue_in(state, definition=definition).changed_row(NOW, 0.0)
    assert row is not None
    assert row[5] == version


# ---------------------------------------------------------------- alerts


class Watched:
    """A queue that was switched off, the hook, and the order of what is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | None) -> None:
        self.done: list[object] = []
        self.pending = [PendingAlert(7, "Test", "dbo", "Queue", NOW)]
        self.outcomes = list(outcomes)
        monkeypatch.setattr(alerts, "find_pending_alerts", lambda: lambda: list(self.pending))
        monkeypatch.setattr(alerts, "mark_alerted", lambda alarm: lambda: self.mark(alarm))
        monkeypatch.setattr(alerts, "run", lambda connection, steps: steps())
        monkeypatch.setattr(alerts, "send_alert", self.send)

    def mark(self, alarm: PendingAlert) -> None:
        self.done.append("marked")
        self.pending.remove(alarm)

    def send(self, alert: Alert, alarm: PendingAlert) -> None:
        self.done.append("sent")
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome

    def watch(self, polls: int) -> list[float]:
        """Watch for so many polls. Return the pauses before them, and the one that follows."""
        pauses: list[float] = []

        def wait(seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) > polls

        instance: Any = SimpleNamespace(connection=lambda: nullcontext())
        stopping: Any = SimpleNamespace(wait=wait)
        alerts._watch(instance, Alert("hook"), stopping)
        return pauses


def test_an_alert_is_pending_until_the_hook_has_accepted_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch, OSError("refused"), subprocess.TimeoutExpired("hook", 30), None)
    pauses = watched.watch(4)
    assert watched.done == ["sent", "sent", "sent", "marked"]
    assert pauses == [0.0, RETRY_DELAY_S, RETRY_DELAY_S, alerts.POLL_INTERVAL_S, alerts.POLL_INTERVAL_S]


@pytest.mark.parametrize(
    ("webhook", "is_address"),
    [
        ("http://host/path", True),
        ("https://host:8443/?a=b", True),
        ("ftp://host/", False),
        ("file:///etc/passwd", False),
        ("http:///path", False),
        ("http://host:0/", False),
        ("http://host:99999/", False),
        ("http://[::1/", False),
        ("http://host/a b", False),
        ("http://host/\r\nHost: other", False),
        ("http://h\u00f6st/", False),
        ("host", False),
    ],
)
def test_the_address_of_a_webhook(webhook: str, is_address: bool) -> None:
    assert alerts._is_address(webhook) is is_address
