"""The background of an open instance: a thread that looks now and then for what is due, and is told what to deliver."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import psycopg

from servicebroker.engine.endpoints import remove_closed
from servicebroker.engine.transmission import deliver_left_over
from servicebroker.engine.upkeep import due_queues, expire_ended, serve_queue
from servicebroker.model.errors import ServiceBrokerError
from servicebroker.store.connection import connect
from servicebroker.store.statements import Steps, run
from servicebroker.store.verbs import DELIVERY_CHANNEL

T = TypeVar("T")

_LOG = logging.getLogger("servicebroker")
_PATIENCE = 2.0  # seconds that `close` waits for a round to end; its connection is closed under it then
_STATEMENT_TIMEOUT = 10_000  # milliseconds: a round that waits for others gives way
_ROUNDS = 100  # each takes some hundred rows; the rest waits for the next time
_SOON, _LATER = 0.02, 1.0  # seconds until the next look at what somebody is at: ever longer


class Upkeep:
    """Runs `upkeep` every `interval` seconds, and `deliver` as soon as the server's own SEND has put something down.

    It listens for that on a connection of its own. A round that fails, because the server is down or restarts, is made
    up for by the next one.
    """

    def __init__(self, url: str, clock: Callable[[], datetime], interval: float) -> None:
        self._url = url
        self._clock = clock
        self._interval = interval
        self._closed = threading.Event()
        self._bell, self._string = socket.socketpair()  # pulled by `close`
        self._connection: psycopg.Connection[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="servicebroker upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, also in the middle of a round: what a round has done is committed piece by piece."""
        self._closed.set()
        self._string.close()
        connection = self._connection
        if connection is not None:
            connection.cancel_safe(timeout=_PATIENCE)
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        with self._bell:
            while not self._closed.is_set():
                try:
                    with connect(self._url, application_name="servicebroker upkeep") as connection:
                        self._connection = connection
                        self._serve(connection)
                except (psycopg.Error, ServiceBrokerError) as problem:
                    _LOG.debug("upkeep: %s", problem)
                    self._closed.wait(min(self._interval, 1.0))
                finally:
                    self._connection = None

    def _serve(self, connection: psycopg.Connection[Any]) -> None:
        heard: list[psycopg.Notify] = []
        connection.add_notify_handler(heard.append)
        connection.execute(f"set statement_timeout = {_STATEMENT_TIMEOUT}")
        connection.execute(f"listen {DELIVERY_CHANNEL}")
        next_round, pause = time.monotonic() + self._interval, _SOON
        while not self._closed.is_set():
            heard.clear()
            if time.monotonic() >= next_round:
                upkeep(connection, self._clock(), self._closed.is_set)
                next_round = time.monotonic() + self._interval
            left = deliver(connection, self._clock())
            connection.execute("")  # hears what has come while we were at it
            if not heard:
                seconds = max(0.0, next_round - time.monotonic())
                select.select(
                    [connection.fileno(), self._bell.fileno()], [], [], min(seconds, pause) if left else seconds
                )
            pause = min(2 * pause, _LATER) if left else _SOON


def deliver(connection: psycopg.Connection[Any], now: datetime) -> bool:
    """Deliver what waits and need not. True when something is left over, on which somebody is at work."""
    return _in_transaction(connection, deliver_left_over(now))


def upkeep(connection: psycopg.Connection[Any], now: datetime, stopped: Callable[[], bool] = lambda: False) -> None:
    """Everything that is due at `now`, in small transactions. `connection` is in autocommit mode."""
    for _ in range(_ROUNDS):
        queues = run(connection, due_queues(now))
        for queue_id in queues:
            if stopped():
                return
            run(connection, serve_queue(queue_id, now))
        if not queues:
            break
    for work in (expire_ended, remove_closed):
        for _ in range(_ROUNDS):
            if stopped() or not _in_transaction(connection, work(now)):
                break
    if not stopped():
        deliver(connection, now)


def _in_transaction(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    with connection.transaction():
        return run(connection, steps)
