"""Read the server's time."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any

import psycopg

from servicebroker.store.aio.running import execute
from servicebroker.store.server_clock import Clock, ServerClock


async def follow(clock: Clock, connection: psycopg.AsyncConnection[Any]) -> None:
    """Ask the server for its time if that is due; a clock that is not a `ServerClock` is left alone.

    A lost connection is ignored here, and reported by its next use.
    """
    if isinstance(clock, ServerClock) and (asked_at := clock.asks()) is not None:
        with contextlib.suppress(psycopg.Error):
            clock.note(asked_at, await server_time(connection))


async def server_time(connection: psycopg.AsyncConnection[Any]) -> datetime:
    """Return the time of the server's clock."""
    rows = await execute(connection, "store.server_time", "select clock_timestamp()")
    now: datetime = rows[0][0]
    return now
