"""A thread that hears PostgreSQL's notifications, beside one that works."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from servicebroker.store.connection import connect
from servicebroker.store.running import execute

_FOREVER = 3600.0  # seconds between two looks at nothing: what ends the block ends the wait


class Ear:
    """Tells whether notifications still come: the connection that hears may be lost alone."""

    def __init__(self) -> None:
        self.problem: psycopg.Error | None = None

    def check(self) -> None:
        """To be asked now and then.

        Raises:
            psycopg.Error: nothing is heard any more, and why.
        """
        if self.problem is not None:
            raise self.problem


@contextlib.contextmanager
def hearing(
    url: str, channels: tuple[str, ...], heard: Callable[[psycopg.Notify], object], *, name: str
) -> Iterator[Ear]:
    """Call `heard` for each notification as long as the block runs, on a connection of that application name.

    When the connection is lost nothing more is heard, which only the `Ear` tells.

    Raises:
        InstanceError: the server cannot be reached.
    """
    with connect(url, application_name=name) as connection:
        connection.interval = _FOREVER
        for channel in channels:
            execute(connection, "store.hearing", f"listen {channel}")
        ear = Ear()

        def hear() -> None:
            try:
                for notice in connection.notifies():
                    heard(notice)
            except psycopg.Error as problem:
                ear.problem = problem

        thread = threading.Thread(target=hear, name=f"{name} hears", daemon=True)
        thread.start()
        try:
            yield ear
        finally:
            _hang_up(connection)
            thread.join()


def _hang_up(connection: psycopg.Connection[Any]) -> None:
    """End what waits on the connection, in another thread."""
    with (
        contextlib.suppress(OSError, psycopg.Error),  # it is lost: that has ended it
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)
