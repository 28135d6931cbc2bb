"""Transactions of SQLAlchemy and Django: statements on the psycopg connection that the library uses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from servicebroker.api.aio.transaction import AsyncJoinedTransaction
from servicebroker.model.errors import JoinError
from servicebroker.model.wording import short_repr
from servicebroker.overriding import override
from servicebroker.store.aio import session_locks
from servicebroker.store.aio.concurrency import IS_ASYNC, in_greenlet
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase

T = TypeVar("T")

_SQLALCHEMY, _DJANGO = "sqlalchemy", "django"
_SQLALCHEMY_ASYNCIO = "sqlalchemy.ext.asyncio"
_OTHER_FORM = (
    "An instance of open_async joins asynchronous connections and sessions, an instance of open joins blocking ones. "
    "Pass a connection of the same kind as the instance."
)
_OTHER_DRIVERS = {"asyncpg", "psycopg2"}


class AsyncForeignTransaction(AsyncJoinedTransaction):
    """The statements in a transaction of SQLAlchemy or Django. Its savepoints include messages sent and received.

    `connection` is the psycopg connection of the last statement.
    """

    def __init__(self, database: AsyncDatabase, library_object: Any) -> None:
        self.database, self.instance, self.engine = database, database.instance, database.engine
        self._library_object = library_object
        self._library = _library_of(library_object)

    @override
    async def _do(self, steps: Steps[T]) -> T:
        await self._find_connection()
        return await super()._do(steps)

    @override
    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Set a savepoint, as `JoinedTransaction.savepoint`. The library's own savepoints have the same effect."""
        await self._find_connection()
        async with super().savepoint():
            yield

    async def _find_connection(self) -> None:
        """Find the current connection. The library sets its deferred savepoints when it is asked for the connection."""
        driver_connection: object
        if self._library == _DJANGO:
            self._library_object.ensure_connection()
            driver_connection = self._library_object.connection
        else:
            session = self._library_object
            connection = session if hasattr(session, "get_isolation_level") else await session.connection()
            connection = getattr(connection, "sync_connection", connection)
            if connection is None:
                raise JoinError("The SQLAlchemy connection is not open: use it in an `async with` block.")
            driver_connection = connection.connection.driver_connection
            _release_at_checkin(connection.engine.pool)
        if not isinstance(driver_connection, psycopg.AsyncConnection):
            raise JoinError(_wrong_object(driver_connection))
        self.connection = driver_connection

    @override
    def _is_alone(self) -> bool:
        return hasattr(self, "connection") and super()._is_alone()


def _library_of(library_object: object) -> str:
    """Return the library of an object. Its class may be derived by the application.

    Raises:
        JoinError: it belongs to neither library, or is asynchronous where a blocking object is needed, or the reverse.
    """
    modules = {kind.__module__.partition(".")[0] for kind in type(library_object).__mro__}
    if _DJANGO in modules and hasattr(library_object, "ensure_connection"):
        return _DJANGO
    if _SQLALCHEMY in modules and hasattr(type(library_object), "connection"):  # the object's attribute may raise
        if any(kind.__module__.startswith(_SQLALCHEMY_ASYNCIO) for kind in type(library_object).__mro__) != IS_ASYNC:
            raise JoinError(_OTHER_FORM)
        return _SQLALCHEMY
    raise JoinError(_wrong_object(library_object))


def _wrong_object(library_object: object) -> str:
    """Return the error text for an object that `join` cannot use."""
    driver = type(library_object).__module__.partition(".")[0]
    if isinstance(library_object, psycopg.Connection | psycopg.AsyncConnection):
        return _OTHER_FORM
    if driver in _OTHER_DRIVERS:
        return f"The driver is {driver}, but join needs psycopg 3: use a URL postgresql+psycopg://."
    return (
        "join takes a connection of psycopg 3, or a session or connection of SQLAlchemy or Django, "
        f"not {short_repr(library_object)}."
    )


def _release_at_checkin(pool: Any) -> None:
    """Release the group locks of a session when its connection returns to the pool of SQLAlchemy."""
    from sqlalchemy import event

    if not event.contains(pool, "checkin", _checked_in):
        event.listen(pool, "checkin", _checked_in)


def _checked_in(connection: object, record: Any) -> None:
    if connection is not None and session_locks.may_keep_locks(record.driver_connection):
        in_greenlet(_release_locks(record.driver_connection))


async def _release_locks(connection: psycopg.AsyncConnection[Any]) -> None:
    await session_locks.release(connection)
    await connection.rollback()  # `release` has begun a transaction
