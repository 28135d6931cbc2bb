"""An instance: one PostgreSQL database with the schema of servicebroker, embedded in a folder or by URL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from servicebroker.api.database import Database
from servicebroker.api.doorbell import Doorbell
from servicebroker.api.poison import PoisonDetector
from servicebroker.api.transaction import release_kept
from servicebroker.api.upkeep import Upkeep
from servicebroker.engine.catalog import Catalog
from servicebroker.engine.check import Report, check
from servicebroker.engine.databases import (
    SYSTEM_DATABASE,
    create_database,
    create_system_services,
    find_database,
    without_system_services,
)
from servicebroker.engine.status import QueueStatus, Waiting, queue_statuses, transmission_status
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.events import Events
from servicebroker.store import locks
from servicebroker.store.connection import connect, is_url, pool
from servicebroker.store.direct import DirectConnection
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.migrations import migrate
from servicebroker.store.statements import execute, run

Clock = Callable[[], datetime]

UPKEEP = 30.0  # seconds between two looks of the background for what is due
PATIENCE, FIRST_PATIENCE = 30, 2  # seconds to wait for a connection; after the first few, look whether any can be had


def utc_now() -> datetime:
    """The clock of everyday use."""
    return datetime.now(UTC)


class Instance:
    """An open instance; close it, or use it in a `with` block.

    Attributes:
        url: where its PostgreSQL is reached, for any libpq client of the same user.
        clock: gives every rule its time.
        events: what happened in this process that an administrator wants to know.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        clock: Clock = utc_now,
        connections: int = 20,
        upkeep: float | None = UPKEEP,
    ) -> None:
        self.clock = clock
        self.catalog = Catalog()
        self.events = Events()
        self.poison = PoisonDetector(self.connection, clock, self.events)
        self._server = None if is_url(os.fspath(target)) else EmbeddedServer.start(Path(target))
        try:
            self.url = self._server.url if self._server else os.fspath(target)
            with connect(self.url) as connection:
                migrate(connection)
                _ensure_system_objects(connection)
            self._pool = pool(self.url, connections)
            self.doorbell = Doorbell(self.url)
            self._upkeep = Upkeep(self.url, clock, upkeep) if upkeep else None
        except BaseException:
            if self._server:
                self._server.close()
            raise

    def database(self, name: str, *, create: bool = False) -> Database:
        """The broker database of that name, compared without case; made when it is missing and `create` is set.

        Raises:
            BrokerError: 911 when it does not exist.
        """
        with self.connection() as connection:
            if create:
                with contextlib.suppress(_AlreadyThere), connection.transaction():
                    _create_database(connection, name)
            return Database(self, run(connection, find_database(name)), name)

    def drop_database(self, name: str, *, rollback_after: float | None = None) -> None:
        """DROP DATABASE: the broker database with its conversations and objects. Verbs on it get 8442 from now on.

        Peers in other databases are not told; their next SEND gets them the Error -8462. Tables of your own in the
        PostgreSQL schemas of the database stay. `rollback_after`: seconds after which the sessions of transactions that
        use it are ended; 0 at once, None is refused while there are any.

        Raises:
            BrokerError: 911 when it does not exist, 3702 in use, 3708 msdb, 402.
        """
        self.database(name)._drop(rollback_after)

    def status(self) -> tuple[list[QueueStatus], Waiting]:
        """Every queue with its services, depth and oldest message; and what waits for delivery."""
        with self.connection() as connection:
            return run(connection, queue_statuses()), run(connection, transmission_status())

    def check(self) -> Report:
        """DBCC CHECKDB for the broker: whether all that is stored holds together. Reads every queue."""
        with self.connection() as connection:
            return run(connection, check(self.clock()))

    def connection(self) -> AbstractContextManager[DirectConnection]:
        """A connection of the pool, in autocommit mode, for the length of a `with` block."""
        return self._borrowed()

    def close(self) -> None:
        """Leave the instance; an embedded server stops with its last user."""
        if self._upkeep:
            self._upkeep.close()
        self.doorbell.close()
        self._pool.close()
        if self._server:
            self._server.close()

    @contextlib.contextmanager
    def _borrowed(self) -> Iterator[DirectConnection]:
        try:
            connection = self._get()
        except PoolClosed:
            raise InstanceError("The instance is closed: open it again.") from None
        except PoolTimeout:
            raise InstanceError(
                f"No connection to PostgreSQL could be had in {PATIENCE} s: all {self._pool.max_size} connections of "
                "this instance are in use."
            ) from None
        try:
            yield connection
        finally:
            release_kept(connection)
            lost = connection.closed
            self._pool.putconn(connection)
            if lost:  # the server has gone, or will have lost the others too
                self._pool.check()

    def _get(self) -> DirectConnection:
        try:
            return self._pool.getconn(timeout=FIRST_PATIENCE)
        except PoolTimeout:
            connect(self.url).close()  # says so when the server is down
            return self._pool.getconn(timeout=PATIENCE - FIRST_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_instance(target: str | os.PathLike[str], *, clock: Clock = utc_now, upkeep: float | None = UPKEEP) -> Instance:
    """Open an instance: a data folder (an embedded PostgreSQL is made or joined there) or a PostgreSQL URL.

    Every `upkeep` seconds a thread of it fires timers and ends lifetimes that are due in queues that nobody receives
    from, and removes closed endpoints; None for no such thread.

    Raises:
        InstanceError: it cannot be made, reached or used; the message says why.
    """
    return Instance(target, clock=clock, upkeep=upkeep)


class _AlreadyThere(Exception):
    pass


def _create_database(connection: psycopg.Connection[Any], name: str) -> None:
    try:
        run(connection, create_database(name))
    except BrokerError as refused:
        if refused.number == 1801:
            raise _AlreadyThere from None
        raise


def _ensure_system_objects(connection: psycopg.Connection[Any]) -> None:
    """The database msdb, and what an older version has not given its databases."""
    found = execute(connection, "select from servicebroker.databases where name = $1", SYSTEM_DATABASE)
    if not found:
        with contextlib.suppress(_AlreadyThere), connection.transaction():
            _create_database(connection, SYSTEM_DATABASE)
    if run(connection, without_system_services()):
        with connection.transaction():
            execute(connection, "select pg_advisory_xact_lock($1, 0)", locks.CATALOG)
            for database_id in run(connection, without_system_services()):
                run(connection, create_system_services(database_id))
