"""A thread that hears PostgreSQL's notifications, beside one that works."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import psycopg

from servicebroker.store.connection import connect
from servicebroker.store.running import execute

_LOOK = 0.5  # seconds between looks at whether the block has ended


@contextlib.contextmanager
def hearing(
    url: str, channels: tuple[str, ...], heard: Callable[[psycopg.Notify], object], *, name: str
) -> Iterator[None]:
    """Call `heard` for each notification as long as the block runs, on a connection of that application name.

    When the connection is lost nothing more is heard; who works on another one finds out by that.

    Raises:
        InstanceError: the server cannot be reached.
    """
    with connect(url, application_name=name) as connection:
        for channel in channels:
            execute(connection, f"listen {channel}")
        over = threading.Event()

        def hear() -> None:
            with contextlib.suppress(psycopg.Error):
                while not over.is_set():
                    for notice in connection.notifies(timeout=_LOOK):
                        heard(notice)

        thread = threading.Thread(target=hear, name=f"{name} hears", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
