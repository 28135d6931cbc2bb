"""Read the time of the PostgreSQL server's clock."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

import psycopg

from servicebroker.store.aio.running import execute
from servicebroker.store.server_clock import Clock, ServerClock


async def follow(clock: Clock, connection: psycopg.AsyncConnection[Any]) -> None:
    """Read the server's time for a `ServerClock` that has to be updated. Another clock stays as it is.

    A lost connection is ignored, because its next use raises the error.
    """
    if isinstance(clock, ServerClock) and (asked_at := clock.begin_update()) is not None:
        with contextlib.suppress(psycopg.Error):
            clock.update(asked_at, await server_time(connection))


async def server_time(connection: psycopg.AsyncConnection[Any]) -> datetime:
    """Return the time of the server's clock."""
    rows = await execute(connection, "store.server_time", "select clock_timestamp()")
    now: datetime = rows[0][0]
    return now
