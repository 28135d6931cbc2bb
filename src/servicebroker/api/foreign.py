# Made from aio/foreign.py by tools/make_sync.py: change that file, then run `make sync`.
"""Transactions of other libraries: verbs on the psycopg connection under a connection of SQLAlchemy or Django."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from servicebroker.api.transaction import JoinedTransaction
from servicebroker.model.errors import JoinError
from servicebroker.model.wording import shown
from servicebroker.store import session_locks
from servicebroker.store.concurrency import IS_ASYNC
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.database import Database

T = TypeVar("T")

_SQLALCHEMY, _DJANGO = "sqlalchemy", "django"
_SQLALCHEMY_ASYNCIO = "sqlalchemy.ext.asyncio"
_OTHER_FORM = (
    "This connection is of the other form: a database of open_async joins asynchronous connections and sessions, one "
    "of open the others."
)
_OTHER_DRIVERS = {"asyncpg", "psycopg2"}


class ForeignTransaction(JoinedTransaction):
    """The verbs in a transaction of SQLAlchemy or Django; their savepoints hold for what is sent and received, too.

    `connection` is the psycopg connection of the last verb.
    """

    def __init__(self, database: Database, given: Any) -> None:
        self.database, self.instance, self.engine = database, database.instance, database.engine
        self._given = given
        self._library = _library_of(given)

    def _do(self, steps: Steps[T]) -> T:
        self._find_connection()
        return super()._do(steps)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A savepoint, see `JoinedTransaction.savepoint`; the library's own do the same."""
        self._find_connection()
        with super().savepoint():
            yield

    def _find_connection(self) -> None:
        """Find the current connection. Asking for it sets the savepoints that the library has put off."""
        driver_connection: object
        if self._library == _DJANGO:
            self._given.ensure_connection()
            driver_connection = self._given.connection
        else:
            given = self._given
            connection = given if hasattr(given, "get_isolation_level") else given.connection()
            connection = getattr(connection, "sync_connection", connection)
            if connection is None:
                raise JoinError("The connection of SQLAlchemy is not open: use it in an `async with` block.")
            driver_connection = connection.connection.driver_connection
            _give_back_at_the_end(connection.engine.pool)
        if not isinstance(driver_connection, psycopg.Connection):
            raise JoinError(_refusal(driver_connection))
        self.connection = driver_connection

    def _is_alone(self) -> bool:
        return hasattr(self, "connection") and super()._is_alone()


def _library_of(given: object) -> str:
    """Return the library that an object belongs to; its class may be derived by the application.

    Raises:
        JoinError: it belongs to neither, or is of the other form.
    """
    modules = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    if _DJANGO in modules and hasattr(given, "ensure_connection"):
        return _DJANGO
    if _SQLALCHEMY in modules and hasattr(type(given), "connection"):  # of the class: the object may refuse
        if any(kind.__module__.startswith(_SQLALCHEMY_ASYNCIO) for kind in type(given).__mro__) != IS_ASYNC:
            raise JoinError(_OTHER_FORM)
        return _SQLALCHEMY
    raise JoinError(_refusal(given))


def _refusal(given: object) -> str:
    driver = type(given).__module__.partition(".")[0]
    if isinstance(given, psycopg.Connection | psycopg.Connection):
        return _OTHER_FORM
    if driver in _OTHER_DRIVERS:
        return f"{driver} is another driver than psycopg 3, which the verbs need: use a URL postgresql+psycopg://."
    return (
        f"join takes a connection of psycopg 3, or a session or connection of SQLAlchemy or Django, not {shown(given)}."
    )


def _give_back_at_the_end(pool: Any) -> None:
    """Release the group locks of a session when the transaction's connection goes back to the pool."""
    from sqlalchemy import event

    if not event.contains(pool, "checkin", _checked_in):
        event.listen(pool, "checkin", _checked_in)


def _checked_in(connection: object, record: Any) -> None:
    if connection is not None and session_locks.may_keep_locks(record.driver_connection):
        _give_back(record.driver_connection)


def _give_back(connection: psycopg.Connection[Any]) -> None:
    session_locks.release(connection)
    connection.rollback()  # the transaction that releasing has begun
