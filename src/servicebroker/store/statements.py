"""How the engine talks to PostgreSQL: a verb is a generator that yields statements and is sent their rows.

One generator serves every face: `run` drives it on a synchronous psycopg connection; a test can drive it
on nothing at all. Statements use PostgreSQL's own placeholders ($1, $2, ...).
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format

from servicebroker.store import kept

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = Sequence[Row]


class Statement(NamedTuple):
    """One SQL statement and its parameters, in the order of $1, $2, ...

    `prepared`: keep it prepared on the connection, since it comes again; not for DDL.
    `locks`: the last column of its first row is the key of a group lock that the session keeps, or NULL.
    """

    sql: str
    parameters: tuple[object, ...] = ()
    prepared: bool = True
    locks: bool = False


Steps = Generator[Statement, Rows, T]


def run(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Drive a verb to its result on `connection`, inside whatever transaction is open there."""
    cursor = _cursor(connection)
    try:
        statement = next(steps)
        while True:
            statement = steps.send(_rows_of(connection, cursor, statement))
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        steps.close()
        cursor.close()


def run_alone(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Drive a verb as a transaction of its own, on a connection in autocommit mode.

    The first statement of a verb either completes it or only reads, so it needs no BEGIN: the usual SEND and
    RECEIVE are one round trip. Only a verb that goes on gets a transaction, around the rest.
    """
    cursor = _cursor(connection)
    try:
        statement = next(steps)
        statement = steps.send(_rows_of(connection, cursor, statement))
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        cursor.close()
    with connection.transaction():
        return run(connection, _resumed(statement, steps))


def _resumed(statement: Statement, steps: Steps[T]) -> Steps[T]:
    """The rest of a verb that has already yielded `statement`."""
    try:
        while True:
            statement = steps.send((yield statement))
    except StopIteration as done:
        result: T = done.value
        return result


def execute(connection: psycopg.Connection[Any], sql: str, *parameters: object) -> Rows:
    """Run one statement and return its rows."""
    with _cursor(connection) as cursor:
        cursor.execute(sql.encode(), parameters)
        return _rows(cursor)


def _rows_of(connection: psycopg.Connection[Any], cursor: psycopg.RawCursor[Row], statement: Statement) -> Rows:
    try:
        cursor.execute(statement.sql.encode(), statement.parameters, prepare=statement.prepared)
        rows = _rows(cursor)
    except BaseException:
        if statement.locks:
            kept.doubt(connection)
        raise
    if statement.locks and rows and rows[0][-1] is not None:
        kept.note(connection, rows[0][-1])
    return rows


def _rows(cursor: psycopg.RawCursor[Row]) -> Rows:
    """What the statement returned; rows without columns (`select from ...`) count too."""
    return () if cursor.description is None else cursor.fetchall()


def _cursor(connection: psycopg.Connection[Any]) -> psycopg.RawCursor[Row]:
    cursor = psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row)
    cursor.format = Format.BINARY
    cursor.adapters.register_loader("uuid", _UuidLoader)
    return cursor


class _UuidLoader(Loader):
    """The rows of one RECEIVE name few conversations: build each UUID once."""

    format = Format.BINARY

    def load(self, data: Buffer) -> UUID:
        return _uuid(bytes(data))


@functools.lru_cache(maxsize=4096)
def _uuid(data: bytes) -> UUID:
    return UUID(bytes=data)
