"""A thread that hears PostgreSQL's notifications, beside one that works."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import psycopg

from servicebroker.store.connection import connect
from servicebroker.store.running import execute

_LOOK = 0.5  # seconds between looks at whether the block has ended


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
        for channel in channels:
            execute(connection, "store.hearing", f"listen {channel}")
        over, ear = threading.Event(), Ear()

        def hear() -> None:
            try:
                while not over.is_set():
                    for notice in connection.notifies(timeout=_LOOK):
                        heard(notice)
            except psycopg.Error as problem:
                ear.problem = problem

        thread = threading.Thread(target=hear, name=f"{name} hears", daemon=True)
        thread.start()
        try:
            yield ear
        finally:
            over.set()
            thread.join()
