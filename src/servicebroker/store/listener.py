"""A thread that receives PostgreSQL's notifications for another thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import psycopg

from servicebroker.store import lost_sessions
from servicebroker.store.connection import connect
from servicebroker.store.running import execute

_POLL_INTERVAL_S = 3600.0  # seconds between two polls of the driver; closing the block ends the wait


class Listener:
    """The state of a listener: its connection may be lost while others live."""

    def __init__(self) -> None:
        self.problem: psycopg.Error | None = None

    def check(self) -> None:
        """Raise if notifications no longer come; call it now and then.

        Raises:
            psycopg.Error: the cause.
        """
        if self.problem is not None:
            raise self.problem


@contextlib.contextmanager
def listening(
    url: str, channels: tuple[str, ...], heard: Callable[[psycopg.Notify], object], *, name: str
) -> Iterator[Listener]:
    """Call `heard` for each notification while the block runs, on a connection with that application name.

    If the connection is lost, no more notifications come, which only the `Listener` tells.

    Raises:
        InstanceError: the server cannot be reached.
    """
    with connect(url, application_name=name) as connection:
        connection.interval = _POLL_INTERVAL_S
        for channel in channels:
            execute(connection, "listener.listening", f"listen {channel}")
        lost_sessions.watch_listener(connection)
        listener = Listener()

        def hear() -> None:
            try:
                for notice in connection.notifies():
                    heard(notice)
            except psycopg.Error as problem:
                listener.problem = problem

        thread = threading.Thread(target=hear, name=f"{name} hears", daemon=True)
        thread.start()
        try:
            yield listener
        finally:
            lost_sessions.shut_down_socket(connection)
            thread.join()
