"""A queue with a procedure that records its calls, for tests of activation."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import servicebroker as sb
from support import ORDER, STOCK_QUEUE, begin, query, queue_number

PROCEDURE = "usp_Stock"
ON = sb.Activation(PROCEDURE, max_queue_readers=1, execute_as="SELF", status=True)


class CallRecorder:
    """Records the messages that a procedure has received, its calls, and the maximum of concurrent calls (`most`)."""

    def __init__(self) -> None:
        self.bodies: list[bytes | None] = []
        self.calls = 0
        self.running = self.most = 0
        self.lock = threading.Lock()
        self.go_on = threading.Event()

    @contextmanager
    def recorded_call(self) -> Iterator[None]:
        with self.lock:
            self.calls += 1
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1


def send(database: sb.Database, *texts: str, conversations: int = 1) -> None:
    for text in texts:
        for _ in range(conversations):
            database.send(begin(database), ORDER, text)


def switch_on(database: sb.Database, **changes: Any) -> None:
    database.alter_queue(STOCK_QUEUE, activation=ON._replace(**changes))


def monitor(database: sb.Database) -> tuple[Any, ...] | None:
    text = (
        "select state, last_empty_rowset_time, last_activated_time, tasks_waiting "
        "from sys.dm_broker_queue_monitors where queue_id = %s"
    )
    rows = query(database, text, queue_number(database, STOCK_QUEUE))
    return rows[0] if rows else None


def count_logged(caplog: pytest.LogCaptureFixture, number: int, *words: str) -> int:
    """Return the number of log messages with this error number and these words."""
    texts = [record.getMessage() for record in caplog.records]
    return sum(text.startswith(f"Msg {number},") and all(word in text for word in words) for text in texts)
