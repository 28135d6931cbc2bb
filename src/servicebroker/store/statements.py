"""How the engine talks to PostgreSQL: a verb is a generator that yields statements and is sent their rows.

One generator serves every face: `running.py` drives it on a psycopg connection, `aio/running.py` on one of asyncio; a
test can drive it on nothing at all. Statements use PostgreSQL's own placeholders ($1, $2, ...).
No driver is known here.
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

    `name`: the module and the function that has it; the folder and the function where those are the same. If a function
    has several, a word follows. Wherever a statement is seen, in errors and counters too, it is by its name.
    `prepared`: keep it prepared on the connection, since it comes again; not for DDL.
    `takes`: it is a RECEIVE. `then`: a command that follows it at once, in its round trip, where it succeeds.
    `locks`: the last column of its first row is the key of a group lock that the session keeps, or an array of such, or
    NULL.
    `certain`: the same, to be followed by COMMIT: where this returns no row that one fails, with DIVISION_BY_ZERO.
    """

    name: str
    sql: str
    parameters: tuple[object, ...] = ()
    prepared: bool = True
    locks: bool = False
    takes: bool = False
    then: bytes = b""
    certain: str = ""


@functools.lru_cache(maxsize=2048)  # one text, however often it comes: it is what was prepared
def text_of(name: str, sql: str) -> str:
    """The statement as the server sees it, and shows it in pg_stat_activity."""
    return f"/* {name} */ {sql}"


class Bodies(list[bytes | None]):
    """A bytea[] that travels in binary (`direct.py`); drivers would write it as escaped text, five times as slowly."""


Steps = Generator[Statement, Rows, T]


def with_savepoint(steps: Steps[T], savepoint: bytes) -> Steps[T]:
    """The same verb; what takes messages is followed by this command."""
    try:
        statement = next(steps)
        while True:
            statement = steps.send((yield statement._replace(then=savepoint) if statement.takes else statement))
    except StopIteration as done:
        result: T = done.value
        return result


def only(statement: Statement) -> Steps[Rows]:
    """One statement."""
    return (yield statement)


def resumed(statement: Statement, steps: Steps[T]) -> Steps[T]:
    """The rest of a verb that has already yielded `statement`."""
    try:
        while True:
            statement = steps.send((yield statement))
    except StopIteration as done:
        result: T = done.value
        return result
