"""Our own connections under asyncio: prepared statements as in ../direct.py, and cancellation without loss."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from servicebroker.store import forked
from servicebroker.store.aio.concurrency import cancel_later, finish
from servicebroker.store.direct import (
    POLL_INTERVAL_S,
    DirectConnection,
    PendingVerbs,
    PreparedStatements,
    QueuedCommand,
    SpareConnection,
    adapt,
    behind,
    command_steps,
    nothing,
)
from servicebroker.store.statements import Row

T = TypeVar("T")

_CANCEL_ATTEMPTS = 4  # attempts to cancel a statement
_CANCEL_TIMEOUT_S = 1.0  # seconds that the server has for each attempt
_VIEW_ATTRIBUTE = "servicebroker_view"  # the attribute of the connection that caches its view for threads


class AsyncDirectConnection(psycopg.AsyncConnection[Row]):
    """A psycopg connection of ours with a cache of its prepared statements.

    Attributes:
        ahead: commands to send before the next statement, whoever runs that.
        waiting: deferred verbs to run before it, too.
        due: the time at which the pool has to check it again.
        interval: seconds between two checks of the socket during a wait.
    """

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn, tuple_row)
        forked.protect(self)
        adapt(self.adapters)
        self.ahead: list[QueuedCommand] = []
        self.waiting = PendingVerbs()
        self.due = 0.0
        self.interval = POLL_INTERVAL_S
        self.prepared_statements = PreparedStatements(self.ahead, self.waiting)

    async def run_prepared(self, sql: str, parameters: tuple[object, ...], then: bytes = b"") -> list[Row]:
        """Run a statement with $1, $2, ..., prepared at its first use, then the command `then`. Returns the rows.

        Raises:
            psycopg.Error: as from a cursor.
        """
        async with self.lock:
            return await _completed(self, self.prepared_statements.steps(self, sql, parameters, then))

    async def wait(self, gen: PQGen[T], interval: float | None = None, timeout: float | None = None) -> T:
        """Run protocol steps after the deferred ones. If a cancellation comes too late, the result is returned."""
        return await _completed(self, behind(self, gen), interval or self.interval, timeout=timeout)


class AsyncDirectPool(AsyncConnectionPool[AsyncDirectConnection]):
    """A pool of such connections that obeys every cancellation, and keeps the last returned connection at hand."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._at_hand: SpareConnection[AsyncDirectConnection] = SpareConnection()
        self.keep = self._at_hand.keep
        super().__init__(*arguments, **options)

    async def getconn(self, timeout: float | None = None) -> AsyncDirectConnection:
        """Take the connection at hand, else one of the pool.

        The driver's method uses asyncio.wait_for, which may swallow a cancellation in Python 3.11.
        """
        if (connection := self._at_hand.take()) is not None:
            return connection
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            connection = await super().getconn(timeout)
        finally:
            self._at_hand.asked(connection)
        if task and task.cancelling() > before:
            cancel_later()
        return connection

    async def check(self) -> None:
        """Check the pool, including the connection at hand."""
        if (left := self._at_hand.let_go()) is not None:
            await self.putconn(left)
        await super().check()

    async def close(self, timeout: float = 5.0) -> None:
        """Close the pool, including the connection at hand."""
        if (left := self._at_hand.let_go(for_good=True)) is not None:
            await self.putconn(left)
        await super().close(timeout)

    def drop(self, *stops: Callable[[], None]) -> None:
        """Stop the work that uses the pool, and leave the pool to the end of its event loop."""
        for stop in stops:
            stop()


class _BlockingView(DirectConnection):
    """An asyncio connection for use by a thread, with the same prepared statements and deferred commands."""

    def __init__(self, connection: AsyncDirectConnection) -> None:
        super().__init__(connection.pgconn)
        self.handlers = _handlers(connection)
        self.ahead, self.waiting = connection.ahead, connection.waiting
        self.prepared_statements = connection.prepared_statements
        self.prepare_threshold = None
        self.autocommit = True
        self._pool = None  # as the driver marks connections that need no closing


@contextlib.contextmanager
def blocking(connection: AsyncDirectConnection) -> Iterator[DirectConnection]:
    """Lend the connection to a thread until the block ends, as a blocking connection object on the same socket.

    No task may use it meanwhile.
    """
    remembered, theirs = connection.__dict__, _handlers(connection)
    view: _BlockingView = remembered.get(_VIEW_ATTRIBUTE) or remembered.setdefault(
        _VIEW_ATTRIBUTE, _BlockingView(connection)
    )
    connection.pgconn.notice_handler, connection.pgconn.notify_handler = view.handlers
    try:
        yield view
    finally:
        connection.pgconn.notice_handler, connection.pgconn.notify_handler = theirs


def _handlers(connection: AsyncDirectConnection) -> tuple[Any, Any]:
    """Return the handlers of notices and notifications; creating a driver object replaces them."""
    return connection.pgconn.notice_handler, connection.pgconn.notify_handler


async def run_command(connection: psycopg.AsyncConnection[Any], command: bytes) -> None:
    """Run a statement without parameters and rows, such as BEGIN and COMMIT."""
    async with connection.lock:
        await _completed(connection, behind(connection, command_steps(connection, command)))


async def send_ahead(connection: AsyncDirectConnection) -> None:
    """Run the deferred commands and verbs now, since no statement follows."""
    if connection.ahead or connection.waiting.verbs:
        async with connection.lock:
            await _completed(connection, behind(connection, nothing()))


async def wait_for_notifications(connection: AsyncDirectConnection, seconds: float) -> list[str]:
    """Return the payloads of notifications, once some have come, or none after `seconds`."""
    return [notice.payload async for notice in connection.notifies(timeout=seconds, stop_after=1)]


async def run_query(
    cursor: psycopg.AsyncRawCursor[Any], sql: bytes, parameters: tuple[object, ...], *, prepare: bool
) -> None:
    """Run a statement on a cursor, possibly of a connection of the application."""
    try:
        await cursor.execute(sql, parameters, prepare=prepare)
    except asyncio.CancelledError:
        if cursor.pgresult is None:
            raise
        cancel_later()


async def _completed(
    connection: psycopg.AsyncConnection[Any], steps: PQGen[T], interval: float = POLL_INTERVAL_S, **limits: Any
) -> T:
    """Return the result of the steps. A cancellation stops the statement in the server, unless it comes too late."""
    results: list[T] = []

    def noted() -> PQGen[None]:
        results.append((yield from steps))

    noting = noted()
    try:
        await waiting.wait_async(noting, connection.pgconn.socket, interval, **limits)
    except asyncio.CancelledError:
        await finish(_stop(connection, noting))
        if not results:
            raise
        cancel_later()
    return results[0]


async def _stop(connection: psycopg.AsyncConnection[Any], steps: PQGen[None]) -> None:
    """Cancel the running statement, or else close the connection, so that the server rolls it back."""
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
