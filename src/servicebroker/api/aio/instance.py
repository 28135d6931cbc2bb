"""An instance: one PostgreSQL database with the schema `servicebroker`, in a data folder or at a URL."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from servicebroker.api.aio.database import AsyncDatabase
from servicebroker.api.aio.maintenance import Maintenance, write_counts, write_statement_counts
from servicebroker.api.aio.network import AsyncNetwork
from servicebroker.api.aio.notifier import Notifier, WaitingReader
from servicebroker.api.aio.poison import PoisonDetector
from servicebroker.api.aio.requesting import AsyncWatchers
from servicebroker.api.aio.rights import AsyncRights
from servicebroker.api.aio.transaction import release_group_locks, translate_errors
from servicebroker.api.shared.preparation import prepare
from servicebroker.api.shared.slow_steps import logged_if_slow
from servicebroker.api.shared.tally import Tally
from servicebroker.engine.activation.poison_detection import DisabledQueue
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation.owner_verbs import OwnerVerbs
from servicebroker.engine.diagnosis.consistency import Report, check
from servicebroker.engine.diagnosis.queue_counts import Backlog, QueueStatus, queue_statuses, transmission_status
from servicebroker.engine.remote.local_topology import find_instance
from servicebroker.model import names
from servicebroker.model.arguments import MAX_BODY_BYTES, checked_maximum
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.events import Events
from servicebroker.model.security.permissions import User
from servicebroker.model.wording import short_repr
from servicebroker.overriding import override
from servicebroker.store import forked
from servicebroker.store.aio import session_locks
from servicebroker.store.aio.concurrency import IS_ASYNC, Lock, event_loop, finish, in_thread
from servicebroker.store.aio.connection import connect, is_url, pool
from servicebroker.store.aio.direct import AsyncDirectConnection, AsyncDirectPool
from servicebroker.store.aio.running import run, run_alone
from servicebroker.store.aio.server_time import follow
from servicebroker.store.concurrency import is_interrupt
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.opened_keys import OpenedKeys
from servicebroker.store.server_clock import Clock, ServerClock, system_time
from servicebroker.store.statements import Steps

MAINTENANCE_INTERVAL_S = 30.0  # the time between two runs of the maintenance (maintenance.py)
_LOG = logging.getLogger("servicebroker")
_CLOSE_TIMEOUT_S = 0.5  # the time to get a connection for the last counts
_NOT_CLOSED = (
    "An instance was garbage-collected but never closed. Its last counts are lost, and its embedded server runs until "
    "the process ends. Use the instance in a `with` block, or call its `close`."
)

# to wait for a connection of the pool; after FIRST_TIMEOUT_S a caller checks whether the server can be reached
CONNECTION_TIMEOUT_S, FIRST_TIMEOUT_S = 30, 2


def checked_target(target: object) -> str:
    """Return a data folder or the URL of a PostgreSQL server as a str.

    Raises:
        InstanceError: it names neither.
    """
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if not isinstance(target, str) or not target or "\0" in target or not names.is_encodable(target):
        raise InstanceError(
            f"An instance is opened by its data folder or a PostgreSQL URL, not by {short_repr(target)}."
        )
    return target


def _key_folder(target: str, folder: str | os.PathLike[str] | None) -> KeyFolder | None:
    if folder is not None:
        if not isinstance(folder, str | os.PathLike):
            raise BrokerError(402, "keys", short_repr(folder), "the path of a folder")
        return KeyFolder(Path(folder))
    return None if is_url(target) else KeyFolder(Path(target) / "keys")


def _new_catalog(tally: Tally, keys: OpenedKeys, user: User | None = None) -> Catalog:
    """Return a new catalog cache. As a method, it would keep a dropped instance alive through the maintenance."""
    return Catalog(user, tally.enqueued, keys)


class AsyncInstance(AsyncNetwork, AsyncRights):
    """An instance. Open it with a `with` block or `open`, and close it.

    Attributes:
        url: the address of its PostgreSQL database, for any libpq client of the same user.
        keys: opens master keys and private keys, with the service master key of the instance.
        clock: returns the time for timers and lifetimes. Default: the time of the PostgreSQL server.
        events: events of this process for administrators.
        maximum_body: the limit of a message body in bytes, for SEND.
        draw: returns a new identifier for a conversation handle or group.
        engine: the interpreter of operations for the PostgreSQL role, owner or restricted; set by `open`.
    """

    works_as_user = False  # True if it is bound to one user of one database, as in an activated task

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        connections: int = 20,
        upkeep: float | None = MAINTENANCE_INTERVAL_S,
        maximum_body: int = MAX_BODY_BYTES,
        keys: str | os.PathLike[str] | None = None,
        draw: Callable[[], UUID] = uuid4,
    ) -> None:
        self.draw = draw
        self.clock: Clock = clock or ServerClock(time.monotonic, system_time, _LOG.warning)
        self.maximum_body = checked_maximum(maximum_body)
        self.tally = Tally()
        self.url = checked_target(target)
        self.keys = OpenedKeys(_key_folder(self.url, keys))
        self._new_catalog = partial(_new_catalog, self.tally, self.keys)
        self.catalog = self._new_catalog()
        self._catalogs: dict[User, Catalog] = {}
        self.events = Events(partial(is_interrupt, exits=True))
        self.engine: type[OwnerVerbs] = OwnerVerbs
        self.poison = PoisonDetector(self.connection, self.clock, self._disable_queue, self.events, self.tally)
        self._connections = connections
        self._interval = upkeep
        self._server_check, self._last_server_check = Lock(), -math.inf
        self._losses = 0  # lost connections of the notifier, when the pool was last checked
        self._lent = 0  # connections lent so far: as long as the number rises, waiting callers will get one
        self._server: EmbeddedServer | None = None
        self._pool: AsyncDirectPool | None = None
        self._maintenance: Maintenance | None = None
        self.thread_view: Any = None  # the ThreadInstance of T-SQL under asyncio (aio/scripts.py)
        self._process = forked.process_id
        self._event_loop: object = None
        self._is_closed = False
        self.defers_from = 0.0  # see deferred_answers.py
        self.open_transactions: defaultdict[object, int] = defaultdict(int)  # count by thread, or task
        self.watchers = AsyncWatchers()

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is not None and not (self._is_closed or self.is_forked):
            with suppress(RuntimeError):  # the event loop is closed, or the interpreter exits
                pool.drop(*([] if self._maintenance is None else [self._maintenance.stop]), self.notifier.stop)
            warnings.warn(_NOT_CLOSED, ResourceWarning, stacklevel=2, source=self)

    async def open(self) -> Self:
        """Open the instance, unless it is open.

        Raises:
            InstanceError: it cannot be created, reached or used; the message has the reason.
        """
        if self._pool is not None:
            self.check_caller()
            return self
        self._process, self._event_loop = forked.process_id, event_loop()
        self._is_closed = False
        if not is_url(self.url):
            with logged_if_slow(EmbeddedServer.step(self.url)):
                self._server = await finish(in_thread(EmbeddedServer.start, Path(self.url)))
            self.url = self._server.url
        try:
            self.engine = await in_thread(prepare, self.url, self.clock)
            self.notifier = Notifier(self.url, self.engine)
            self._pool = pool(self.url, self._connections)
            await self._pool.open()
            if self._interval and self.engine.runs_maintenance:
                self._maintenance = Maintenance(self.url, self.clock, self._interval, self.tally, self._new_catalog)
        except BaseException:
            await finish(self.close())
            raise
        return self

    @override
    async def database(self, name: str, *, create: bool = False, user: str | None = None) -> AsyncDatabase:
        """Return the broker database of that name; names are case-insensitive.

        Args:
            name: the name of the database.
            create: create the database if it does not exist.
            user: the principal to act as. Default: the user that the connection's PostgreSQL role is mapped to
                (`Database.create_user`); otherwise dbo for a role with the rights of the schema's owner, else guest.

        Raises:
            BrokerError: 911 no such database, 916 the principal may not connect, 15517 no such user, or the role may
                not act as that user.
        """
        async with self.connection() as connection, translate_errors():
            database_id = await run_alone(connection, self.engine.find_database(name, create=create))
            return AsyncDatabase(self, name, await run_alone(connection, self.engine.find_user(database_id, user)))

    @override
    async def key_folder(self) -> KeyFolder:
        """Return the folder of private keys: the `keys` argument of `open`, or `keys` in the data folder.

        For an instance at a URL, the default is a folder named by its identifier, below the user's data folder.
        """
        if self.keys.folder is not None:
            return self.keys.folder
        return self.keys.locate(await self.identifier())

    async def identifier(self) -> UUID:
        """Return the identifier of the instance, which is part of its domain certificate."""
        async with self.connection() as connection:
            return await run(connection, find_instance())

    def catalog_of(self, user: User) -> Catalog:
        """Return the catalog cache of a principal."""
        return self.catalog if user.is_dbo else self._catalogs.setdefault(user, self._new_catalog(user))

    async def status(self) -> tuple[list[QueueStatus], Backlog]:
        """Return all queues with services, depth and oldest message, and the backlog of the transmission queue."""
        async with self.connection() as connection, translate_errors():
            return await run(connection, queue_statuses()), await run(connection, transmission_status())

    async def check(self) -> Report:
        """Check the consistency of the stored data, as DBCC CHECKDB does. This reads every queue."""
        async with self.connection() as connection, translate_errors():
            return await run(connection, check(self.clock()))

    @override
    def connection(self) -> AbstractAsyncContextManager[AsyncDirectConnection]:
        """Lend a connection of the pool, in autocommit mode, for a `with` block."""
        return _Borrowed(self)

    async def renew(self) -> None:
        """Replace lost connections of the pool, if the notifier has lost its connection since the last call."""
        if self._pool is not None and self._losses != self.notifier.losses:
            self._losses = self.notifier.losses
            await self._pool.check()

    @property
    def is_forked(self) -> bool:
        """Return whether a parent process opened the instance, and this process was forked afterwards."""
        return self._process != forked.process_id

    def check_caller(self) -> None:
        """Refuse a caller that cannot use the connections.

        A forked process and its parent would read answers from the same socket. In another event loop nothing wakes a
        task that waits for a connection.

        Raises:
            InstanceError: this process was forked while the instance was open, or the instance was opened in another
                event loop.
        """
        if self._process != forked.process_id:
            raise InstanceError(
                "This process was forked when the instance was open already, and its connections are the parent's: "
                "open the instance in this process, after the fork."
            )
        if self._event_loop is not event_loop():
            raise InstanceError(
                "This instance was opened in another event loop: open and use it in the same one. Each asyncio.run "
                "makes a new loop; in tests, the fixture that opens the instance and the test need the same loop scope."
            )

    def count_received(self, queue_id: int, messages: int, *, filtered: bool) -> None:
        """Count the messages of a RECEIVE, so that the maintenance truncates the table of a drained queue.

        `filtered`: the RECEIVE was limited to a conversation or group, so an empty result does not mean an empty queue.
        """
        if self._maintenance is not None and (messages or not filtered):
            self._maintenance.count_received(queue_id, messages)

    async def sleep(self, reader: WaitingReader, seconds: float) -> bool:
        """Wait until the reader is woken, at most `seconds`. Return whether the queue may have been altered."""
        return await reader.wait(seconds)

    def count_polled(self, found: bool) -> None:
        """Note whether GET CONVERSATION GROUP returned a group. The session of an activated task overrides this."""

    def share_events(self, other: Any) -> None:
        """Share rollback counts and events with `other`: the same instance, opened for threads and for asyncio."""
        self.events = other.events
        self.poison.share_counts_with(other.poison)

    async def close(self) -> None:
        """Close the instance. The last process to close it stops an embedded server. A forked child closes nothing."""
        if self.is_forked:
            return
        if self._pool is not None:
            self.check_caller()
        self._is_closed = True
        if self._maintenance is not None:
            await self._maintenance.close()
        if self._pool is not None:
            if self.engine.runs_maintenance:
                await self._write_last_counts(self._pool)
            self.watchers.stop()
            await self._pool.close()
            await self.notifier.close()  # after the pool: readers that it wakes get "the instance is closed"
            await self.watchers.join()
        if self._server is not None:
            await in_thread(self._server.close)

    def _disable_queue(self, queue_id: int) -> Steps[DisabledQueue | None]:
        return self.engine.disable_queue(queue_id, self.clock())

    async def _write_last_counts(self, connections: AsyncDirectPool) -> None:
        """Add the last counts to the totals, if a connection is free at once."""
        try:
            async with connections.connection(timeout=_CLOSE_TIMEOUT_S) as connection:
                await write_counts(connection, self.tally)
                await write_statement_counts(connection)
        except (psycopg.Error, PoolTimeout, PoolClosed) as problem:
            _LOG.debug("totals: %s", problem)

    async def _lend(self) -> AsyncDirectConnection:
        if self._pool is None:
            raise InstanceError("The instance is not open: use it in a `with` block, or call its `open`.")
        if self._process != forked.process_id or (IS_ASYNC and self._event_loop is not event_loop()):
            self.check_caller()
        try:
            try:
                connection = await self._pool.getconn(timeout=FIRST_TIMEOUT_S)
            except PoolTimeout:
                connection = await self._wait_for_connection(self._pool)
            self._lent += 1
        except PoolClosed:
            raise InstanceError("The instance is closed: open it again.") from None
        except PoolTimeout:
            raise await self._no_connection(self._pool) from None
        try:
            await follow(self.clock, connection)
        except BaseException:
            await self._take_back(connection)
            raise
        return connection

    async def _take_back(self, connection: AsyncDirectConnection) -> None:
        assert self._pool is not None
        if self._process != forked.process_id:
            return
        connection.queued.clear()  # an interruption may have left a BEGIN there
        connection.deferred.verbs = None
        left = connection if session_locks.may_keep_locks(connection) else self._pool.keep(connection)
        if left is not None:
            await finish(self._put(self._pool, left))

    async def _wait_for_connection(self, connections: AsyncDirectPool) -> AsyncDirectConnection:
        """Wait for a connection while connections are still lent to other callers."""
        await self._check_server()
        while True:
            lent = self._lent
            try:
                return await connections.getconn(timeout=CONNECTION_TIMEOUT_S - FIRST_TIMEOUT_S)
            except PoolTimeout:
                if self._lent == lent:
                    raise

    async def _no_connection(self, connections: AsyncDirectPool) -> InstanceError:
        """Return the error for a timeout: the server accepts no further connection, or all connections are in use."""
        try:
            await self._check_server()
        except InstanceError as problem:
            return problem
        in_use = connections.get_stats()["pool_size"]
        text = f"No connection to PostgreSQL became free in {CONNECTION_TIMEOUT_S} s: "
        if in_use < connections.max_size:
            return InstanceError(f"{text}{in_use} of this instance are in use, and the server accepted no further one.")
        return InstanceError(f"{text}all {in_use} connections of this instance are in use. Use fewer threads or tasks.")

    async def _check_server(self) -> None:
        """Raise InstanceError if the server is down. Concurrent callers share one check."""
        async with self._server_check:
            if time.monotonic() - self._last_server_check > FIRST_TIMEOUT_S:
                await (await connect(self.url)).close()
                self._last_server_check = time.monotonic()

    async def _put(self, connections: AsyncDirectPool, connection: AsyncDirectConnection) -> None:
        await release_group_locks(connection)
        lost = connection.closed
        await connections.putconn(connection)
        if lost:  # the server may have closed the other connections, too
            await connections.check()

    def __await__(self) -> Generator[Any, Any, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finish(self.close())


class _Borrowed(AbstractAsyncContextManager[AsyncDirectConnection]):
    """The context manager of `connection`; a class, since each statement enters one and a generator is slower."""

    __slots__ = ("_connection", "_instance")

    def __init__(self, instance: AsyncInstance) -> None:
        self._instance = instance

    @override
    async def __aenter__(self) -> AsyncDirectConnection:
        self._connection = await self._instance._lend()
        return self._connection

    @override
    async def __aexit__(self, *raised: object) -> None:
        await self._instance._take_back(self._connection)
