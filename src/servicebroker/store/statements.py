"""The engine's interface to PostgreSQL: a verb is a generator that yields SQL statements and receives their rows.

A verb is SEND, RECEIVE or another statement of Service Broker. `running.py` runs such a generator on a psycopg
connection, `aio/running.py` in asyncio, and a test can run it without a database. Statements use PostgreSQL's own
placeholders ($1, $2, ...). This module does not depend on a driver.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = Sequence[Row]


class Statement(NamedTuple):
    """One SQL statement and its parameters, in the order of $1, $2, ...

    Attributes:
        name: the module and the function that issue the statement, and a word if the function issues several. A
            function with the name of its module has the folder instead. Errors and counters show this name.
        prepared: keep the statement prepared on the connection. False for a rare statement and for DDL.
        locks: the last column of the first row is the key of a group lock that the session keeps, an array of such
            keys, or NULL.
        takes: the statement is a RECEIVE.
        then: a command that is sent with the statement and runs if it succeeds.
        certain: a variant of the statement that can be sent together with a COMMIT. It fails with DIVISION_BY_ZERO
            where the statement itself returns no row.
    """

    name: str
    sql: str
    parameters: tuple[object, ...] = ()
    prepared: bool = True
    locks: bool = False
    takes: bool = False
    then: bytes = b""
    certain: str = ""


@functools.lru_cache(maxsize=2048)  # the same str object each time: it is a key of the prepared statements
def text_of(name: str, sql: str) -> str:
    """Return the SQL with the name as a comment, which pg_stat_activity shows."""
    return f"/* {name} */ {sql}"


class Bodies(list[bytes | None]):
    """A bytea[] that is sent in binary form (`direct.py`). Drivers would send escaped text, five times as slowly."""


Steps = Generator[Statement, Rows, T]


def with_savepoint(steps: Steps[T], savepoint: bytes) -> Steps[T]:
    """Run a verb, with the command `savepoint` after each RECEIVE."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send((yield statement._replace(then=savepoint) if statement.takes else statement))
    except StopIteration as done:
        result: T = done.value
        return result


def only(statement: Statement) -> Steps[Rows]:
    """Run one statement as a verb."""
    return (yield statement)


def result_of(steps: Steps[T], rows: Rows) -> T:
    """Return the result of a verb whose last statement returned these rows."""
    try:
        steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("another statement follows")


def resume(statement: Statement, steps: Steps[T]) -> Steps[T]:
    """Continue a verb that has yielded `statement`, whose rows it has not received yet."""
    try:
        while True:
            statement = steps.send((yield statement))
    except StopIteration as done:
        result: T = done.value
        return result
