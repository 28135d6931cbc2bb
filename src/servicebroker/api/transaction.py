"""Transactions: the application's own tables and its messages, committed together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg

from servicebroker.api.verbs import Verbs
from servicebroker.model.errors import InstanceError
from servicebroker.store.statements import Steps, run

if TYPE_CHECKING:
    from servicebroker.api.database import Database

T = TypeVar("T")


class JoinedTransaction(Verbs):
    """The verbs on a connection whose transaction somebody else begins and ends."""

    def __init__(self, database: Database, connection: psycopg.Connection[Any]) -> None:
        self.database = database
        self.connection = connection

    def _do(self, steps: Steps[T]) -> T:
        with translated():
            return run(self.connection, steps)


class Transaction(JoinedTransaction):
    """A transaction of ours. `connection` is the live psycopg connection, for the application's statements."""

    def __enter__(self) -> Self:
        self.connection.execute("begin")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.connection.execute("commit")
        elif not self.connection.closed:
            self.connection.rollback()


@contextmanager
def translated() -> Iterator[None]:
    """A lost connection and an aborted transaction in our own words; other errors of PostgreSQL as they are."""
    try:
        yield
    except psycopg.errors.InFailedSqlTransaction:
        raise InstanceError(
            "An earlier statement of this transaction failed, so PostgreSQL ignores the rest of it: "
            "roll it back and begin again."
        ) from None
    except psycopg.OperationalError as problem:
        if isinstance(problem, psycopg.errors.DeadlockDetected | psycopg.errors.LockNotAvailable):
            raise
        raise InstanceError(
            f"PostgreSQL went away or refused ({' '.join(str(problem).split())}): what was not committed is undone; "
            "begin the transaction again."
        ) from problem
