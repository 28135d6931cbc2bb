"""Clamp times that Python cannot represent: infinity, and years outside 1 to 9999.

psycopg fails on the whole result if it has one such value, so a single row would hide all others from an administrator.
Such a time is loaded as EARLIEST or LATEST. These lie a day within Python's range, so that they can be shown in any
time zone. Other times are unchanged.
"""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format

from servicebroker.overriding import override

EARLIEST, LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL's
_MICROSECOND, _DAY = timedelta(microseconds=1), timedelta(days=1)
_LONG, _INTEGER = struct.Struct("!q"), struct.Struct("!i")


class ClampedContext(NamedTuple):
    """The argument of a psycopg Transformer that clamps times."""

    adapters: AdaptersMap
    connection: psycopg.Connection[object] | psycopg.AsyncConnection[object] | None


def clamped_context(connection: psycopg.Connection[object] | psycopg.AsyncConnection[object]) -> ClampedContext:
    """Return a context with a copy of the connection's adapters that clamps times."""
    adapters = AdaptersMap(connection.adapters)
    clamp_times(adapters)
    return ClampedContext(adapters, connection)


def clamp_times(adapters: AdaptersMap) -> None:
    """Register loaders that clamp times in binary results."""
    adapters.register_loader("timestamptz", _ZonedLoader)
    adapters.register_loader("timestamp", _PlainLoader)
    adapters.register_loader("date", _DateLoader)


class _ZonedLoader(Loader):
    format = Format.BINARY

    @override
    def load(self, data: Buffer) -> datetime:
        return _time(_LONG.unpack(data)[0], _MICROSECOND)


class _PlainLoader(_ZonedLoader):
    @override
    def load(self, data: Buffer) -> datetime:
        return super().load(data).replace(tzinfo=None)


class _DateLoader(Loader):
    format = Format.BINARY

    @override
    def load(self, data: Buffer) -> date:
        return _time(_INTEGER.unpack(data)[0], _DAY).date()


def _time(units: int, unit: timedelta) -> datetime:
    """Return the time `units` after PostgreSQL's epoch, or the nearer bound."""
    try:
        return _EPOCH + units * unit
    except OverflowError:
        return LATEST if units > 0 else EARLIEST
