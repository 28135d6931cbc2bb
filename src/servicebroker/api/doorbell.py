"""How a reader that waits is woken: it lists itself, a SEND that sees it notifies, a thread rings its bell."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg

from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import connect
from servicebroker.store.statements import execute

_LOOK = 0.5  # seconds between looks at whether the instance was closed


class Doorbell:
    """One LISTEN connection and one thread for all waiting readers of a process, started by the first."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._bells: dict[int, list[threading.Event]] = {}
        self._waiting: Counter[int] = Counter()
        self._registrar: psycopg.Connection[Any] | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._pid = 0

    @contextlib.contextmanager
    def listening(self, queue_id: int) -> Iterator[Bell]:
        """A bell that rings when a message was sent to the queue. The caller looks again after entering."""
        event = threading.Event()
        with self._lock:
            self._start()
            self._bells.setdefault(queue_id, []).append(event)
            self._waiting[queue_id] += 1
            if self._waiting[queue_id] == 1:
                self._register(
                    "insert into servicebroker.waiting_readers values ($1, $2) on conflict do nothing",
                    queue_id,
                )
        try:
            yield Bell(event)
        finally:
            with self._lock:
                self._bells[queue_id].remove(event)
                self._waiting[queue_id] -= 1
                if not self._waiting[queue_id]:
                    self._register(
                        "delete from servicebroker.waiting_readers where queue_id = $1 and pid = $2", queue_id
                    )

    def close(self) -> None:
        """Stop the thread and its connections."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        if self._registrar is not None:
            self._registrar.close()

    def _start(self) -> None:
        if self._thread is None:
            self._registrar = connect(self._url, application_name="servicebroker waiting readers")
            self._pid = self._registrar.info.backend_pid
            execute(
                self._registrar,
                "delete from servicebroker.waiting_readers where pid <> all (select pid from pg_stat_activity)",
            )
            listening = threading.Event()
            self._thread = threading.Thread(
                target=self._listen, args=(listening,), name="servicebroker doorbell", daemon=True
            )
            self._thread.start()
            listening.wait(timeout=_LOOK)

    def _register(self, sql: str, queue_id: int) -> None:
        """Without it nobody notifies us, and the reader's own poll still finds every message."""
        with contextlib.suppress(psycopg.Error):
            if self._registrar is not None:
                execute(self._registrar, sql, queue_id, self._pid)

    def _listen(self, listening: threading.Event) -> None:
        while not self._closed.is_set():
            try:
                with connect(self._url, application_name="servicebroker doorbell") as connection:
                    connection.execute("listen servicebroker")
                    listening.set()
                    while not self._closed.is_set():
                        for notice in connection.notifies(timeout=_LOOK):
                            self._ring(int(notice.payload))
                            if self._closed.is_set():
                                break
            except (psycopg.Error, InstanceError):
                self._closed.wait(_LOOK)

    def _ring(self, queue_id: int) -> None:
        with self._lock:
            for event in self._bells.get(queue_id, ()):
                event.set()


class Bell:
    """Rings once for any number of messages that came."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def wait(self, seconds: float) -> None:
        """Sleep until a message was sent, at most `seconds`."""
        self._event.wait(seconds)
        self._event.clear()
