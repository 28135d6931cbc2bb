# Made from aio/doorbell.py by tools/make_sync.py: change that file, then run `make sync`.
"""How a reader that waits is woken: it lists itself, a SEND that sees it notifies, and its bell rings."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import psycopg

from servicebroker.model.errors import InstanceError
from servicebroker.store.concurrency import Background, Event, Lock
from servicebroker.store.connection import connect
from servicebroker.store.running import execute

_LOOK = 0.5  # seconds between looks at whether the instance was closed
_REGISTER = (
    "with gone as (delete from servicebroker.waiting_readers "
    "where pid = $1 and queue_id <> all ($2::int[]) or pid <> all (select pid from pg_stat_activity)) "
    "insert into servicebroker.waiting_readers select queue_id, $1 from unnest($2::int[]) as queue_id "
    "on conflict do nothing"
)


class Doorbell:
    """One LISTEN connection for all waiting readers of a process, started by the first."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = Lock()
        self._waiting: dict[int, list[Event]] = {}
        self._registered: set[int] = set()
        self._registrar: psycopg.Connection[Any] | None = None
        self._background: Background | None = None
        self._closed, self._listens = Event(), Event()
        self._lost = False

    @contextlib.contextmanager
    def listening(self, queue_id: int) -> Iterator[Bell]:
        """A bell that rings when a message was sent to the queue. The caller looks again after entering."""
        event = Event()
        try:
            self._enter(queue_id, event)
            yield Bell(event)
        finally:
            self._leave(queue_id, event)

    def close(self) -> None:
        """Stop listening; who still waits looks once more, and finds the instance closed."""
        self._closed.set()
        if self._background is not None:
            self._background.stop()
        with self._lock:
            if self._registrar is not None:
                self._registrar.close()
            for event in itertools.chain(*self._waiting.values()):
                event.set()

    def _enter(self, queue_id: int, event: Event) -> None:
        with self._lock:
            self._start()
            bells = self._waiting.setdefault(queue_id, [])
            bells.append(event)
            if queue_id not in self._registered:
                self._register()

    def _leave(self, queue_id: int, event: Event) -> None:
        with self._lock:
            bells = self._waiting.get(queue_id, [])
            if event in bells:  # not when it was interrupted before it entered
                bells.remove(event)
                if not bells:
                    del self._waiting[queue_id]
                    self._register()

    def _start(self) -> None:
        if self._background is None:
            self._background = Background(self._listen, "servicebroker doorbell")
            self._listens.wait(_LOOK)

    def _register(self) -> None:
        """List the queues that we wait for, and no others.

        Where that fails nobody notifies us, and the reader's own poll still finds every message.
        """
        self._registered = set()
        for _ in range(2):  # the first may find that the connection was lost
            if self._closed.is_set():
                return
            try:
                registrar = self._registrar = self._registrar or self._connect()
                execute(registrar, _REGISTER, registrar.info.backend_pid, list(self._waiting))
                self._registered = set(self._waiting)
                return
            except (psycopg.Error, InstanceError):
                if self._registrar is not None:
                    self._registrar.close()
                self._registrar = None

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self._url, application_name="servicebroker waiting readers")

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                with connect(self._url, application_name="servicebroker doorbell") as connection:
                    connection.execute("listen servicebroker")
                    self._listens.set()
                    if self._lost:
                        with self._lock:
                            self._register()  # a server that crashed has forgotten
                    while not self._closed.is_set():
                        for notice in connection.notifies(timeout=_LOOK):
                            self._ring(int(notice.payload))
            except (psycopg.Error, InstanceError):
                self._lost = True
                self._closed.wait(_LOOK)

    def _ring(self, queue_id: int) -> None:
        with self._lock:
            for event in self._waiting.get(queue_id, ()):
                event.set()


class Bell:
    """Rings once for any number of messages that came."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def wait(self, seconds: float) -> None:
        """Sleep until a message was sent, at most `seconds`."""
        self._event.wait(seconds)
        self._event.clear()
