"""Connections in asyncio: prepared statements as in ../direct.py, and cancellation without lost results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from servicebroker.overriding import override
from servicebroker.store import forked
from servicebroker.store.aio.concurrency import cancel_later, finish
from servicebroker.store.direct import (
    POLL_INTERVAL_S,
    DeferredVerbs,
    DirectConnection,
    Outcome,
    PreparedStatements,
    QueuedCommand,
    SpareConnection,
    adapt,
    behind,
    command_steps,
    nothing,
)
from servicebroker.store.statements import Row, Statement

T = TypeVar("T")

_CANCEL_ATTEMPTS = 4  # attempts to cancel a statement
_CANCEL_TIMEOUT_S = 1.0  # seconds that the server has for each attempt
_VIEW_ATTRIBUTE = "servicebroker_view"  # the attribute of the connection that caches its `_BlockingView`


class AsyncDirectConnection(psycopg.AsyncConnection[Row]):
    """A psycopg connection with a cache of its prepared statements.

    Attributes:
        queued: deferred commands, sent before the next statement, also one of the application.
        deferred: verbs that run before that statement, too.
        due: the `time.monotonic()` at which the pool has to check the connection again.
        interval: seconds between two checks of the socket during a wait.
    """

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn, tuple_row)
        forked.protect(self)
        adapt(self.adapters)
        self.queued: list[QueuedCommand] = []
        self.deferred = DeferredVerbs()
        self.due = 0.0
        self.interval = POLL_INTERVAL_S
        self.prepared_statements = PreparedStatements(self.queued, self.deferred)

    async def run_prepared(self, sql: str, parameters: tuple[object, ...], then: bytes = b"") -> list[Row]:
        """Run a statement with $1, $2, ..., then the command `then`. Returns the rows of the statement.

        The statement is prepared at its first use.

        Raises:
            psycopg.Error: as from a cursor.
        """
        async with self.lock:
            return await _completed(self, self.prepared_statements.steps(self, sql, parameters, then))

    @override
    async def wait(self, gen: PQGen[T], interval: float | None = None, timeout: float | None = None) -> T:
        """Run the deferred verbs and commands, then `gen`. If a cancellation comes too late, return the result."""
        return await _completed(self, behind(self, gen), interval or self.interval, timeout=timeout)


class AsyncDirectPool(AsyncConnectionPool[AsyncDirectConnection]):
    """A pool of direct connections, with a spare one outside of it, whose `getconn` swallows no cancellation."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._spare: SpareConnection[AsyncDirectConnection] = SpareConnection()
        self.keep = self._spare.keep
        super().__init__(*arguments, **options)

    @override
    async def getconn(self, timeout: float | None = None) -> AsyncDirectConnection:
        """Take the spare connection, or one of the pool.

        The driver's method uses asyncio.wait_for, which may swallow a cancellation in Python 3.11. Then the task is
        cancelled again.
        """
        if (connection := self._spare.take()) is not None:
            return connection
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            connection = await super().getconn(timeout)
        finally:
            self._spare.asked(connection)
        if task and task.cancelling() > before:
            cancel_later()
        return connection

    @override
    async def check(self) -> None:
        """Check the connections of the pool, and the spare one."""
        if (spare := self._spare.remove()) is not None:
            await self.putconn(spare)
        await super().check()

    @override
    async def close(self, timeout: float = 5.0) -> None:
        """Close the pool and the spare connection."""
        if (spare := self._spare.remove(and_close=True)) is not None:
            await self.putconn(spare)
        await super().close(timeout)

    def drop(self, *stops: Callable[[], None]) -> None:
        """Stop the work that uses the pool. The pool itself ends with its event loop."""
        for stop in stops:
            stop()


class _BlockingView(DirectConnection):
    """An asyncio connection for use by a thread, with the same prepared statements and deferred commands."""

    def __init__(self, connection: AsyncDirectConnection) -> None:
        super().__init__(connection.pgconn)
        self.handlers = _handlers(connection)
        self.queued, self.deferred = connection.queued, connection.deferred
        self.prepared_statements = connection.prepared_statements
        self.prepare_threshold = None
        self.autocommit = True
        self._pool = None  # as the driver marks connections that need no closing


@contextlib.contextmanager
def blocking(connection: AsyncDirectConnection) -> Iterator[DirectConnection]:
    """Return a blocking connection object on the same socket, for a thread, until the block ends.

    No task may use the connection meanwhile.
    """
    attributes, original_handlers = connection.__dict__, _handlers(connection)
    view: _BlockingView = attributes.get(_VIEW_ATTRIBUTE) or attributes.setdefault(
        _VIEW_ATTRIBUTE, _BlockingView(connection)
    )
    connection.pgconn.notice_handler, connection.pgconn.notify_handler = view.handlers
    try:
        yield view
    finally:
        connection.pgconn.notice_handler, connection.pgconn.notify_handler = original_handlers


def _handlers(connection: AsyncDirectConnection) -> tuple[Any, Any]:
    """Return the handlers of notices and notifications; creating a driver object replaces them."""
    return connection.pgconn.notice_handler, connection.pgconn.notify_handler


async def run_together(connection: AsyncDirectConnection, sent: Sequence[Statement | bytes]) -> Outcome:
    """Run statements and commands in one round trip, up to the first that fails. Nothing may be deferred."""
    async with connection.lock:
        return await _completed(
            connection, behind(connection, connection.prepared_statements.together(connection, sent))
        )


async def run_command(connection: psycopg.AsyncConnection[Any], command: bytes) -> None:
    """Run a statement without parameters and rows, such as BEGIN and COMMIT."""
    async with connection.lock:
        await _completed(connection, behind(connection, command_steps(connection, command)))


async def send_queued(connection: AsyncDirectConnection) -> None:
    """Run the deferred verbs and commands without a statement after them."""
    if connection.queued or connection.deferred.verbs:
        async with connection.lock:
            await _completed(connection, behind(connection, nothing()))


async def wait_for_notifications(connection: AsyncDirectConnection, seconds: float) -> list[str]:
    """Wait until notifications arrive, at most `seconds`, and return their payloads."""
    return [notice.payload async for notice in connection.notifies(timeout=seconds, stop_after=1)]


async def run_query(
    cursor: psycopg.AsyncRawCursor[Any], sql: bytes, parameters: tuple[object, ...], *, prepare: bool
) -> None:
    """Run a statement on a cursor, also one of the application. If a cancellation comes too late, it is postponed."""
    try:
        await cursor.execute(sql, parameters, prepare=prepare)
    except asyncio.CancelledError:
        if cursor.pgresult is None:
            raise
        cancel_later()


async def _completed(
    connection: psycopg.AsyncConnection[Any], steps: PQGen[T], interval: float = POLL_INTERVAL_S, **limits: Any
) -> T:
    """Run protocol steps and return their result.

    A cancellation cancels the statement in the server. If the statement has completed, its result is returned, and the
    cancellation is raised at the next await.
    """
    results: list[T] = []

    def keep_result() -> PQGen[None]:
        results.append((yield from steps))

    recording_steps = keep_result()
    try:
        await waiting.wait_async(recording_steps, connection.pgconn.socket, interval, **limits)
    except asyncio.CancelledError:
        await finish(_stop(connection, recording_steps))
        if not results:
            raise
        cancel_later()
    return results[0]


async def _stop(connection: psycopg.AsyncConnection[Any], steps: PQGen[None]) -> None:
    """Cancel the running statement. If that fails, close the connection, so that the server rolls back."""
    if connection.pgconn.transaction_status != TransactionStatus.ACTIVE:
        return
    try:
        for _ in range(_CANCEL_ATTEMPTS):  # the first attempt may have hit the preparation, not the statement itself
            with contextlib.suppress(psycopg.Error, TimeoutError):  # usually: the statement was cancelled
                await connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
                async with asyncio.timeout(_CANCEL_TIMEOUT_S):
                    await waiting.wait_async(steps, connection.pgconn.socket, POLL_INTERVAL_S)
            if connection.pgconn.transaction_status != TransactionStatus.ACTIVE:
                return
    finally:
        if connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
            connection.pgconn.finish()
