"""PostgreSQL times outside of Python's range are clamped to its ends, and hide no other rows."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from servicebroker.store import running
from servicebroker.store.aio.connection import connect as connect_aio
from servicebroker.store.aio.running import fetch as fetch_aio
from servicebroker.store.clamped_times import EARLIEST, LATEST
from servicebroker.store.connection import connect

TIMES = (
    "select n, x::timestamptz, x::timestamp, x::date from (values (1, 'infinity'), (2, '-infinity'), "
    "(3, '11533-01-01'), (4, '4000-01-01 BC'), (5, '2030-01-02 03:04:05.678901'), (6, '0001-01-01'), "
    "(7, '9999-12-31 23:59:59.999999'), (8, null)) v (n, x) order by n"
)
EXPECTED: list[tuple[Any, ...]] = [
    (1, LATEST, LATEST.replace(tzinfo=None), LATEST.date()),
    (2, EARLIEST, EARLIEST.replace(tzinfo=None), EARLIEST.date()),
    (3, LATEST, LATEST.replace(tzinfo=None), LATEST.date()),
    (4, EARLIEST, EARLIEST.replace(tzinfo=None), EARLIEST.date()),
    (5, datetime(2030, 1, 2, 3, 4, 5, 678901, UTC), datetime(2030, 1, 2, 3, 4, 5, 678901), date(2030, 1, 2)),
    (6, datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1), date(1, 1, 1)),
    (7, datetime.max.replace(tzinfo=UTC), datetime.max, date.max),
    (8, None, None, None),
]


def test_our_statements_clamp_times_that_python_cannot_represent(database: sb.Database) -> None:
    with connect(database.instance.url) as connection:
        for _ in range(2):
            assert list(running.fetch(connection, "t", TIMES)) == EXPECTED
            assert list(running.execute(connection, "t", TIMES)) == EXPECTED
        arrays = running.fetch(connection, "t", "select array['infinity', '2030-01-01']::timestamptz[]")
        assert list(arrays) == [([LATEST, datetime(2030, 1, 1, tzinfo=UTC)],)]


def test_our_statements_in_asyncio_clamp_times_that_python_cannot_represent(database: sb.Database) -> None:
    async def fetch_rows() -> list[Any]:
        async with await connect_aio(database.instance.url) as connection:
            return list(await fetch_aio(connection, "t", TIMES))

    assert asyncio.run(fetch_rows()) == EXPECTED


def test_statements_of_the_application_are_the_drivers(database: sb.Database) -> None:
    """A time that the driver refuses is not changed silently."""
    with database.transaction() as transaction, pytest.raises(psycopg.DataError):
        transaction.connection.execute(TIMES).fetchall()
    with connect(database.instance.url) as connection, pytest.raises(psycopg.DataError):
        connection.run_described(TIMES, ())  # like T-SQL
