"""How the engine talks to PostgreSQL: a verb is a generator that yields statements and is sent their rows.

One generator serves every face: `run` drives it on a synchronous psycopg connection; a test can drive it
on nothing at all. Statements use PostgreSQL's own placeholders ($1, $2, ...).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg.pq import Format

from servicebroker.store import kept
from servicebroker.store.direct import DirectConnection, Row, adapt

T = TypeVar("T")
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
    try:
        statement = next(steps)
        while True:
            statement = steps.send(_rows(connection, statement))
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        steps.close()


def run_alone(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Drive a verb as a transaction of its own, on a connection in autocommit mode.

    The first statement of a verb either completes it or only reads, so it needs no BEGIN: the usual SEND and
    RECEIVE are one round trip. Only a verb that goes on gets a transaction, around the rest.
    """
    try:
        statement = steps.send(_rows(connection, next(steps)))
    except StopIteration as done:
        result: T = done.value
        return result
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
    return _rows(connection, Statement(sql, parameters, prepared=False))


def _rows(connection: psycopg.Connection[Any], statement: Statement) -> Rows:
    """Run a statement, and note what it says of a lock that it keeps beyond savepoints."""
    try:
        rows = _fetched(connection, statement)
    except BaseException:
        if statement.locks:
            kept.doubt(connection)
        raise
    if statement.locks and rows and rows[0][-1] is not None:
        kept.note(connection, rows[0][-1])
    return rows


def _fetched(connection: psycopg.Connection[Any], statement: Statement) -> Rows:
    """Its rows; those without columns (`select from ...`) count too."""
    if statement.prepared and isinstance(connection, DirectConnection) and connection.is_direct:
        return connection.run_prepared(statement.sql, statement.parameters)
    with psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        cursor.format = Format.BINARY
        adapt(cursor.adapters)
        cursor.execute(statement.sql.encode(), statement.parameters, prepare=statement.prepared)
        return () if cursor.description is None else cursor.fetchall()
