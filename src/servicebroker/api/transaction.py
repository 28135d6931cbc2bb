"""Transactions: the application's own tables and its messages, committed together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from servicebroker.api.verbs import Verbs
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import one_line
from servicebroker.store.statements import Steps, run, run_alone

if TYPE_CHECKING:
    from servicebroker.api.database import Database

T = TypeVar("T")


class JoinedTransaction(Verbs):
    """The verbs on a connection whose transaction somebody else begins and ends.

    On a connection in autocommit mode with no transaction open, each verb is a transaction of its own.
    """

    def __init__(self, database: Database, connection: psycopg.Connection[Any]) -> None:
        self.database = database
        self.connection = connection

    def _do(self, steps: Steps[T]) -> T:
        alone = self.connection.autocommit and _is_idle(self.connection)
        with translated():
            return run_alone(self.connection, steps) if alone else run(self.connection, steps)

    def _may_repeat(self) -> bool:
        return _is_idle(self.connection)


class Transaction(JoinedTransaction):
    """A transaction of ours. `connection` is the live psycopg connection, for the application's statements."""

    def __enter__(self) -> Self:
        self.connection.execute("begin")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        connection = self.connection
        self._ended = True  # the connection serves somebody else from now on
        if kind is None:
            _commit(connection)
        else:
            with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
                connection.rollback()

    _ended = False

    def _do(self, steps: Steps[T]) -> T:
        if self._ended:
            raise InstanceError("This transaction has ended: begin another one with database.transaction().")
        if _is_idle(self.connection):
            raise InstanceError(
                "The transaction was committed or rolled back on its connection: leave the block to end it, and "
                "begin another one."
            )
        with translated():
            return run(self.connection, steps)


def _is_idle(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.transaction_status == TransactionStatus.IDLE


def _commit(connection: psycopg.Connection[Any]) -> None:
    if connection.info.transaction_status == TransactionStatus.INERROR:
        connection.rollback()
        raise psycopg.errors.InFailedSqlTransaction
    try:
        connection.execute("commit")
    except psycopg.OperationalError as problem:
        if connection.closed:
            raise InstanceError(
                f"The connection was lost during COMMIT ({one_line(problem)}): look whether it was done before you "
                "begin the transaction again."
            ) from problem
        raise


@contextmanager
def translated() -> Iterator[None]:
    """A lost connection and an aborted transaction in our own words; other errors of PostgreSQL as they are."""
    try:
        yield
    except psycopg.errors.InFailedSqlTransaction:
        raise InstanceError(
            "An earlier statement of this transaction failed, so PostgreSQL has undone all of it: begin it again."
        ) from None
    except psycopg.OperationalError as problem:
        if problem.sqlstate and not problem.sqlstate.startswith(("08", "57P")):
            raise  # a deadlock, a timeout, a full disk: the connection lives
        raise InstanceError(
            f"PostgreSQL went away or refused ({one_line(problem)}): what was not committed is undone; "
            "begin the transaction again."
        ) from problem
