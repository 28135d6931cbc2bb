# Made from aio/server_time.py by tools/make_sync.py: change that file, then run `make sync`.
"""Read the time of the PostgreSQL server's clock."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

import psycopg

from servicebroker.store.running import execute
from servicebroker.store.server_clock import Clock, ServerClock


def follow(clock: Clock, connection: psycopg.Connection[Any]) -> None:
    """Read the server's time for a `ServerClock` that has to be updated. Another clock stays as it is.

    A lost connection is ignored, because its next use raises the error.
    """
    if isinstance(clock, ServerClock) and (asked_at := clock.begin_update()) is not None:
        with contextlib.suppress(psycopg.Error):
            clock.update(asked_at, server_time(connection))


def server_time(connection: psycopg.Connection[Any]) -> datetime:
    """Return the time of the server's clock."""
    rows = execute(connection, "store.server_time", "select clock_timestamp()")
    now: datetime = rows[0][0]
    return now
