"""How a reader that waits is woken: it lists itself, a SEND that sees it notifies, a thread rings its bell."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg

from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import connect
from servicebroker.store.statements import execute

_LOOK = 0.5  # seconds between looks at whether the instance was closed
_REGISTER = (
    "with gone as (delete from servicebroker.waiting_readers "
    "where pid = $1 and queue_id <> all ($2::int[]) or pid <> all (select pid from pg_stat_activity)) "
    "insert into servicebroker.waiting_readers select queue_id, $1 from unnest($2::int[]) as queue_id "
    "on conflict do nothing"
)


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
        self._lost = False

    @contextlib.contextmanager
    def listening(self, queue_id: int) -> Iterator[Bell]:
        """A bell that rings when a message was sent to the queue. The caller looks again after entering."""
        event = threading.Event()
        with self._lock:
            self._start()
            self._bells.setdefault(queue_id, []).append(event)
            self._waiting[queue_id] += 1
            if self._waiting[queue_id] == 1:
                self._register()
        try:
            yield Bell(event)
        finally:
            with self._lock:
                self._bells[queue_id].remove(event)
                self._waiting[queue_id] -= 1
                if not self._waiting[queue_id]:
                    del self._waiting[queue_id], self._bells[queue_id]
                    self._register()

    def close(self) -> None:
        """Stop the thread and its connections; who still waits looks once more, and finds the instance closed."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            if self._registrar is not None:
                self._registrar.close()
            for event in itertools.chain(*self._bells.values()):
                event.set()

    def _start(self) -> None:
        if self._thread is None:
            listening = threading.Event()
            self._thread = threading.Thread(
                target=self._listen, args=(listening,), name="servicebroker doorbell", daemon=True
            )
            self._thread.start()
            listening.wait(timeout=_LOOK)

    def _register(self) -> None:
        """List the queues that we wait for, and no others.

        Where that fails nobody notifies us, and the reader's own poll still finds every message.
        """
        for _ in range(2):  # the first may find that the connection was lost
            if self._closed.is_set():
                return
            try:
                registrar = self._registrar = self._registrar or self._connect()
                execute(registrar, _REGISTER, registrar.info.backend_pid, list(self._waiting))
                return
            except (psycopg.Error, InstanceError):
                if self._registrar is not None:
                    self._registrar.close()
                self._registrar = None

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self._url, application_name="servicebroker waiting readers")

    def _listen(self, listening: threading.Event) -> None:
        while not self._closed.is_set():
            try:
                with connect(self._url, application_name="servicebroker doorbell") as connection:
                    connection.execute("listen servicebroker")
                    listening.set()
                    if self._lost:
                        with self._lock:
                            self._register()  # a server that crashed has forgotten
                    while not self._closed.is_set():
                        for notice in connection.notifies(timeout=_LOOK):
                            self._ring(int(notice.payload))
                            if self._closed.is_set():
                                break
            except (psycopg.Error, InstanceError):
                self._lost = True
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
