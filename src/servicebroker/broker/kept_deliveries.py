"""Delivery of large messages in a thread of its own, with its own connection, outside the rounds (decision 462).

A round only stores and acknowledges their fragments. Joining 400 MB into one row takes seconds. Within a round, all
other peers would wait for that long, and the daemon would report that it is out of service.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

import psycopg

from servicebroker.engine.remote.waiting_arrivals import deliver_free, find_kept
from servicebroker.model.errors import ServiceBrokerError
from servicebroker.store.connection import connect
from servicebroker.store.outage import Outage
from servicebroker.store.running import in_transaction, run

NAME = "servicebroker serve"  # the application_name of its connection
# seconds until the next attempt after a failure or a locked row; each pause is twice the last
RETRY_S, LAST_RETRY_S = 1.0, 60.0
CLOSING_TIME_S = 10.0  # seconds that `close` waits for the server to cancel a statement

_log = logging.getLogger("servicebroker.broker")


class KeptDeliveries:
    """Inserts complete large messages into their queues, after each call of `ask`."""

    def __init__(self, url: str, clock: Callable[[], datetime]) -> None:
        self._url, self._clock = url, clock
        self._due, self._closed = threading.Event(), threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._outage = Outage(_log, "Large messages wait beside their queues")

    def ask(self) -> None:
        """Request a delivery of the messages stored so far. Thread-safe; the first call starts the thread."""
        self._due.set()
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="kept deliveries", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread. The delivery in progress is rolled back, and repeated by the next daemon."""
        self._closed.set()
        self._due.set()
        connection, thread = self._connection, self._thread
        if connection is not None:
            with suppress(psycopg.Error):
                connection.cancel_safe(timeout=CLOSING_TIME_S)
        if thread is not None:
            thread.join(CLOSING_TIME_S)

    def _run(self) -> None:
        pause = RETRY_S
        while self._due.wait() and not self._closed.is_set():
            self._due.clear()
            try:
                with connect(self._url, application_name=NAME) as connection:
                    self._connection = connection
                    is_done = self._deliver(connection)
            except (psycopg.Error, ServiceBrokerError) as problem:
                is_done = False
                if not self._closed.is_set():
                    self._outage.report(problem)
            finally:
                self._connection = None
            if is_done:
                self._outage.end()
                pause = RETRY_S
            else:
                self._closed.wait(pause)
                pause = min(2 * pause, LAST_RETRY_S)
                self._due.set()

    def _deliver(self, connection: psycopg.Connection[Any]) -> bool:
        """Deliver the messages of each conversation in a transaction of its own. A failure does not stop the others.

        Returns whether all were delivered.
        """
        handles = run(connection, find_kept())
        for handle in handles:
            if self._closed.is_set():
                break
            try:
                in_transaction(connection, deliver_free(handle, self._clock()))
            except psycopg.Error as problem:
                if connection.broken:
                    raise
                self._outage.report(problem)
        return not handles or not run(connection, find_kept())
