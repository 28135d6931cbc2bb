"""The engine's interface to PostgreSQL: a verb is a generator that yields statements and is sent their rows.

One generator serves every interface: `running.py` drives it on a psycopg connection, `aio/running.py` in asyncio; a
test can drive it without a database. Statements use PostgreSQL's own placeholders ($1, $2, ...). No driver is known
here.
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

    `name`: the module and the function that issues it; the folder and the function if those are the same. If a function
    has several, a word follows. Errors and counters show a statement by its name.
    `prepared`: keep it prepared on the connection, since it recurs; not for DDL.
    `takes`: it is a RECEIVE. `then`: a command that is sent with it and runs if it succeeds.
    `locks`: the last column of its first row is the key of a group lock that the session keeps, or an array of such, or
    NULL.
    `certain`: a variant to be followed by COMMIT: it fails with DIVISION_BY_ZERO if this one would return no row.
    """

    name: str
    sql: str
    parameters: tuple[object, ...] = ()
    prepared: bool = True
    locks: bool = False
    takes: bool = False
    then: bytes = b""
    certain: str = ""


@functools.lru_cache(maxsize=2048)  # one text object for each statement: it is the key of what was prepared
def text_of(name: str, sql: str) -> str:
    """Return the statement as the server gets it, and shows it in pg_stat_activity."""
    return f"/* {name} */ {sql}"


class Bodies(list[bytes | None]):
    """A bytea[] that is sent in binary (`direct.py`); drivers would send escaped text, five times as slowly."""


Steps = Generator[Statement, Rows, T]


def with_savepoint(steps: Steps[T], savepoint: bytes) -> Steps[T]:
    """Run the same verb, with the command `savepoint` after each RECEIVE."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send((yield statement._replace(then=savepoint) if statement.takes else statement))
    except StopIteration as done:
        result: T = done.value
        return result


def only(statement: Statement) -> Steps[Rows]:
    """Run one statement."""
    return (yield statement)


def result_of(steps: Steps[T], rows: Rows) -> T:
    """Return the result of a verb whose last statement returned these rows."""
    try:
        steps.send(rows)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("another statement follows")


def resumed(statement: Statement, steps: Steps[T]) -> Steps[T]:
    """Continue a verb that has already yielded `statement`."""
    try:
        while True:
            statement = steps.send((yield statement))
    except StopIteration as done:
        result: T = done.value
        return result
