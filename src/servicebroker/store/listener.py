"""LISTEN in a thread, which calls a function for each notification."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import psycopg

from servicebroker.store import lost_sessions
from servicebroker.store.connection import connect
from servicebroker.store.running import execute

_WAIT_INTERVAL_S = 3600.0  # the driver checks for signals this often; the end of the block ends the wait


class Listener:
    """The state of the thread that listens: its connection may be lost."""

    def __init__(self) -> None:
        self.problem: psycopg.Error | None = None

    def check(self) -> None:
        """Raise the error that has ended the thread, if any. Call this regularly.

        Raises:
            psycopg.Error: the connection was lost.
        """
        if self.problem is not None:
            raise self.problem


@contextlib.contextmanager
def listening(
    url: str, channels: tuple[str, ...], on_notification: Callable[[psycopg.Notify], object], *, name: str
) -> Iterator[Listener]:
    """Call a function for each notification on the channels while the block runs.

    If the connection is lost, the function is not called any more. Then `Listener.check` raises.

    Args:
        name: the application name of the connection.

    Raises:
        InstanceError: the server cannot be reached.
    """
    with connect(url, application_name=name) as connection:
        connection.interval = _WAIT_INTERVAL_S
        for channel in channels:
            execute(connection, "listener.listening", f"listen {channel}")
        lost_sessions.watch_listener(connection)
        listener = Listener()

        def receive() -> None:
            try:
                for notification in connection.notifies():
                    on_notification(notification)
            except psycopg.Error as problem:
                listener.problem = problem

        thread = threading.Thread(target=receive, name=f"{name} listens", daemon=True)
        thread.start()
        try:
            yield listener
        finally:
            lost_sessions.shut_down_socket(connection)
            thread.join()
