# Made from aio/running.py by tools/make_sync.py: change that file, then run `make sync`.
"""Run verbs (SEND, RECEIVE and the other statements of Service Broker) on a psycopg connection."""

from __future__ import annotations

import contextlib
from time import perf_counter
from typing import Any, TypeVar

import psycopg
from psycopg.pq import Format, TransactionStatus

from servicebroker.model.errors import InstanceError
from servicebroker.store import session_locks
from servicebroker.store.clamped_times import clamp_times
from servicebroker.store.concurrency import Lock, current_work
from servicebroker.store.direct import SPOIL_COMMAND, DirectConnection, adapt, is_direct, run_command, run_query
from servicebroker.store.server_errors import STATEMENT
from servicebroker.store.statement_counts import counts_of
from servicebroker.store.statements import Rows, Statement, Steps, resume, text_of

T = TypeVar("T")

_TURN = "servicebroker_turn"  # an attribute of the connection


class _Turn:
    """The thread or task whose verb runs on a connection. The others wait, because a verb has several statements."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.work: object = None


def run(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Run a verb on a connection, inside the open transaction, if any. Returns its result.

    Threads and tasks that share the connection run their verbs one after the other.
    """
    turn: _Turn = vars(connection).get(_TURN) or vars(connection).setdefault(_TURN, _Turn())
    work = current_work()
    if turn.work == work:
        return _run(connection, steps)  # a verb within a verb
    with turn.lock:
        turn.work = work
        try:
            return _run(connection, steps)
        finally:
            turn.work = None


def _run(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    try:
        statement = next(steps)
        while True:
            statement = steps.send(_rows(connection, statement))
    except StopIteration as done:
        result: T = done.value
        return result
    except Exception:
        raise  # a broker error has changed nothing; an error of PostgreSQL has aborted the transaction
    except BaseException:
        _spoil(connection)
        raise
    finally:
        steps.close()


def run_alone(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Run a verb as a transaction of its own, on a connection in autocommit mode.

    The first statement of a verb completes the verb or only reads, so it runs without BEGIN: the usual SEND and RECEIVE
    take one round trip. If further statements follow, these run between BEGIN and COMMIT.
    """
    try:
        statement = steps.send(_rows(connection, next(steps)))
    except StopIteration as done:
        result: T = done.value
        return result
    return in_transaction(connection, resume(statement, steps))


def in_transaction(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Run a verb between BEGIN and COMMIT, on a connection in autocommit mode."""
    run_command(connection, b"begin")
    try:
        result = run(connection, steps)
        run_command(connection, b"commit")
    except BaseException:
        with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
            connection.rollback()
        raise
    return result


def execute(connection: psycopg.Connection[Any], name: str, sql: str, *parameters: object) -> Rows:
    """Run one statement and return its rows."""
    return _rows(connection, Statement(name, sql, parameters, prepared=False))


def fetch(connection: psycopg.Connection[Any], name: str, sql: str, parameters: tuple[object, ...] = ()) -> Rows:
    """Run one statement that is kept prepared, and return its rows."""
    return _rows(connection, Statement(name, sql, parameters))


def _rows(connection: psycopg.Connection[Any], statement: Statement) -> Rows:
    """Run and count a statement, and record the locks that the session keeps (`session_locks.py`)."""
    try:
        counts, start = counts_of(connection), perf_counter()
        try:
            if statement.prepared and isinstance(connection, DirectConnection) and is_direct(connection):
                text = text_of(statement.name, statement.sql)
                rows: Rows = connection.run_prepared(text, statement.parameters, statement.then)
            else:
                rows = _fetched(connection, statement)
        finally:
            counts.add(statement.name, perf_counter() - start)
    except BaseException as problem:
        if statement.locks:
            session_locks.record_unknown(connection)
        if isinstance(problem, psycopg.Error):
            problem.add_note(f"{STATEMENT}{statement.name}")
        raise
    session_locks.record(connection, statement, rows)
    return rows


def _fetched(connection: psycopg.Connection[Any], statement: Statement) -> Rows:
    """Run a statement on a cursor and return its rows. Rows may have no columns (`select from ...`).

    Raises:
        InstanceError: the application has a pipeline open, which returns results too late.
    """
    if not is_direct(connection):
        raise InstanceError(
            "The connection is in psycopg's pipeline mode, which returns results too late for a verb: leave the "
            "pipeline's block first. Nothing was done."
        )
    with psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
        cursor.format = Format.BINARY
        adapt(cursor.adapters)
        clamp_times(cursor.adapters)
        run_query(
            cursor, text_of(statement.name, statement.sql).encode(), statement.parameters, prepare=statement.prepared
        )
        return () if cursor.description is None else cursor.fetchall()


def _spoil(connection: psycopg.Connection[Any]) -> None:
    """Fail the transaction of an interrupted verb, so that a part of it is not committed."""
    if connection.info.transaction_status == TransactionStatus.INTRANS:
        with contextlib.suppress(psycopg.Error):
            connection.execute(SPOIL_COMMAND)
