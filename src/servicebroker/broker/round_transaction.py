"""The transaction of a round, the statements in it, and when what somebody else holds is tried again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg

from servicebroker.protocol.outgoing import NEVER
from servicebroker.store.direct import Ahead, DirectConnection, run_command
from servicebroker.store.running import run
from servicebroker.store.statements import Statement, Steps

T = TypeVar("T")

Do = Callable[[Steps[Any]], Any]

SOON = 0.02  # seconds until what somebody else holds is tried again, at first
LATER = 1.0  # seconds until then, at most


class Again:
    """When what somebody else holds is tried again: soon, and less often as long as that lasts.

    Attributes:
        at: the moment; NEVER when nothing is left to try.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._pause = SOON
        self.at = NEVER

    def has_come(self) -> bool:
        """Whether it is time. Then it is to be planned anew."""
        if self._seconds() < self.at:
            return False
        self.at = NEVER
        return True

    def hurry(self) -> None:
        """It is time now."""
        self.at = self._seconds()

    def plan(self, *, is_left: bool) -> None:
        """Something is left to try, or nothing."""
        if not is_left:
            self.at, self._pause = NEVER, SOON
        elif self.at == NEVER:
            self.at = self._seconds() + self._pause
            self._pause = min(self._pause * 2, LATER)


class Lasting:
    """Runs verbs, and remembers whether the transaction must be on disk before anything goes on.

    Attributes:
        is_wanted: it must; not as long as all was run by `do_lazily`.
    """

    def __init__(self, connection: DirectConnection) -> None:
        self._connection = connection
        self.is_wanted = False

    def do(self, steps: Steps[T]) -> T:
        """Run a verb."""
        self.is_wanted = True
        return run(self._connection, steps)

    def do_lazily(self, steps: Steps[T]) -> T:
        """Run one that only reads, or whose loss in a crash of the server only means that a peer is asked again."""
        return run(self._connection, steps)


@contextlib.contextmanager
def transaction(connection: DirectConnection) -> Iterator[Lasting]:
    """As the driver's, but BEGIN travels with the first statement, and not every COMMIT waits for the disk."""
    lasting = Lasting(connection)
    connection.ahead.append(Ahead(b"begin"))
    try:
        yield lasting
        run_command(connection, b"commit" if lasting.is_wanted else b"set local synchronous_commit = off; commit")
    except BaseException:
        connection.ahead.clear()
        with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
            connection.rollback()
        raise


def alone(statement: Statement) -> Steps[None]:
    """A statement without a verb around it."""
    yield statement
