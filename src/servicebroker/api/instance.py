# Made from aio/instance.py by tools/make_sync.py: change that file, then run `make sync`.
"""An instance: one PostgreSQL database with the schema of servicebroker, embedded in a folder or by URL."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from servicebroker.api.database import Database
from servicebroker.api.doorbell import Bell, Doorbell
from servicebroker.api.network import Network
from servicebroker.api.poison import PoisonDetector
from servicebroker.api.requesting import Watchers
from servicebroker.api.rights import Rights
from servicebroker.api.shared.preparation import prepare
from servicebroker.api.shared.slow_steps import told_if_slow
from servicebroker.api.shared.tally import Tally
from servicebroker.api.transaction import release_kept, translated
from servicebroker.api.upkeep import Upkeep, tell, tell_statements
from servicebroker.engine.activation.poison_detection import Disabled
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
from servicebroker.model.wording import shown
from servicebroker.store import forked, session_locks
from servicebroker.store.concurrency import Lock, in_thread, is_interrupt
from servicebroker.store.connection import connect, is_url, pool
from servicebroker.store.direct import DirectConnection, DirectPool
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.opened_keys import OpenedKeys
from servicebroker.store.running import run, run_alone
from servicebroker.store.server_clock import Clock, ServerClock, system_time
from servicebroker.store.server_time import follow
from servicebroker.store.statements import Steps

UPKEEP_INTERVAL_S = 30.0  # between two rounds of the background
_LOG = logging.getLogger("servicebroker")
_CLOSE_TIMEOUT_S = 0.5  # to get a connection for the last counts
_NOT_CLOSED = (
    "An instance was dropped and not closed: its last counts are lost, and its embedded server runs on until the "
    "process ends. Use it in a `with` block, or call its `close`."
)

# to wait for a connection; after the first seconds, find out whether the server can be reached
CONNECTION_TIMEOUT_S, FIRST_TIMEOUT_S = 30, 2


def checked_target(target: object) -> str:
    """Return a data folder or the URL of a PostgreSQL server as a str.

    Raises:
        InstanceError: it names neither.
    """
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if not isinstance(target, str) or not target or "\0" in target or not names.is_encodable(target):
        raise InstanceError(f"An instance is opened by its data folder or a PostgreSQL URL, not by {shown(target)}.")
    return target


def _key_folder(target: str, given: str | os.PathLike[str] | None) -> KeyFolder | None:
    if given is not None:
        if not isinstance(given, str | os.PathLike):
            raise BrokerError(402, "keys", shown(given), "the path of a folder")
        return KeyFolder(Path(given))
    return None if is_url(target) else KeyFolder(Path(target) / "keys")


def _new_catalog(tally: Tally, keys: OpenedKeys, user: User | None = None) -> Catalog:
    """Return a new catalog cache. No method of the instance: upkeep has it, and would keep a dropped instance."""
    return Catalog(user, tally.enqueued, keys)


class Instance(Network, Rights):
    """An instance; open it with a `with` block or `open`, and close it.

    Attributes:
        url: where its PostgreSQL is reached, for any libpq client of the same user.
        keys: opens master keys and private keys, with the service master key of the instance.
        clock: gives every rule its time: that of the PostgreSQL server, unless another one was given.
        events: what happened in this process that an administrator wants to know.
        maximum_body: how many bytes the body of a message may have that is sent here.
        draw: makes the handle and the group of a conversation that this process begins.
        engine: the verbs as its PostgreSQL role may do them, which opening it has found out.
    """

    works_as_user = False  # True if it is bound to one user of one database, as in an activated task

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        connections: int = 20,
        upkeep: float | None = UPKEEP_INTERVAL_S,
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
        self._looking, self._looked = Lock(), -math.inf
        self._losses = 0  # of the doorbell's connection, when the pool was last checked
        self._lent = 0  # connections so far: as long as the number rises, waiting callers will get one
        self._server: EmbeddedServer | None = None
        self._pool: DirectPool | None = None
        self._upkeep: Upkeep | None = None
        self.seen_by_threads: Any = None  # the view that T-SQL under asyncio works on
        self._process = forked.process_id
        self._is_closed = False
        self.open_transactions: defaultdict[object, int] = defaultdict(int)  # of each thread, or task
        self.watchers = Watchers()

    def __del__(self) -> None:
        pool = getattr(self, "_pool", None)
        if pool is not None and not (self._is_closed or self.is_forked):
            with suppress(RuntimeError):  # its event loop is gone, and all of its work, or the interpreter ends
                pool.drop(*([] if self._upkeep is None else [self._upkeep.stop]), self.doorbell.stop)
            warnings.warn(_NOT_CLOSED, ResourceWarning, stacklevel=2, source=self)

    def open(self) -> Self:
        """Open the instance, unless it is open.

        Raises:
            InstanceError: it cannot be made, reached or used; the message says why.
        """
        if self._pool is not None:
            self.check_process()
            return self
        self._process = forked.process_id
        self._is_closed = False
        if not is_url(self.url):
            with told_if_slow(EmbeddedServer.step(self.url)):
                self._server = in_thread(EmbeddedServer.start, Path(self.url))
            self.url = self._server.url
        try:
            self.engine = in_thread(prepare, self.url, self.clock)
            self.doorbell = Doorbell(self.url, self.engine)
            self._pool = pool(self.url, self._connections)
            self._pool.open()
            if self._interval and self.engine.has_upkeep:
                self._upkeep = Upkeep(self.url, self.clock, self._interval, self.tally, self._new_catalog)
        except BaseException:
            self.close()
            raise
        return self

    def database(self, name: str, *, create: bool = False, user: str | None = None) -> Database:
        """Return the broker database of that name, compared without case; made if it is missing and `create` is set.

        `user` is the principal to work as. Without it, it is the one that the connection's PostgreSQL role is mapped
        to (`Database.create_user`), else dbo for a role with the rights of the schema's owner, else guest.

        Raises:
            BrokerError: 911 when it does not exist, 916 the principal may not connect, 15517 no such user, or one that
                this role may not act as.
        """
        with self.connection() as connection, translated():
            database_id = run_alone(connection, self.engine.find_database(name, create=create))
            return Database(self, name, run_alone(connection, self.engine.find_user(database_id, user)))

    def key_folder(self) -> KeyFolder:
        """Return the folder of private keys: the one it was opened with, or `keys` in its data folder.

        For a server by URL it is a folder of the instance's own in the user's data.
        """
        if self.keys.folder is not None:
            return self.keys.folder
        return self.keys.locate(self.identifier())

    def identifier(self) -> UUID:
        """Return the identifier of the instance, which the certificate of a domain carries."""
        with self.connection() as connection:
            return run(connection, find_instance())

    def catalog_of(self, user: User) -> Catalog:
        """Return the catalog cache of a principal."""
        return self.catalog if user.is_dbo else self._catalogs.setdefault(user, self._new_catalog(user))

    def status(self) -> tuple[list[QueueStatus], Backlog]:
        """Return every queue with its services, depth and oldest message, and the messages that wait for delivery."""
        with self.connection() as connection, translated():
            return run(connection, queue_statuses()), run(connection, transmission_status())

    def check(self) -> Report:
        """Check the consistency of all that is stored, as DBCC CHECKDB does. Reads every queue."""
        with self.connection() as connection, translated():
            return run(connection, check(self.clock()))

    def connection(self) -> AbstractContextManager[DirectConnection]:
        """Lend a connection of the pool, in autocommit mode, for the length of a `with` block."""
        return _Borrowed(self)

    def renew(self) -> None:
        """Replace the connections of the pool that were lost, if the server was lost since the last time."""
        if self._pool is not None and self._losses != self.doorbell.losses:
            self._losses = self.doorbell.losses
            self._pool.check()

    @property
    def is_forked(self) -> bool:
        """Return whether this process was forked from the one that opened the instance."""
        return self._process != forked.process_id

    def check_process(self) -> None:
        """Refuse to use connections of another process: each process would read the other's answers.

        Raises:
            InstanceError: this process was forked from the one that has opened the instance.
        """
        if self._process != forked.process_id:
            raise InstanceError(
                "This process was forked when the instance was open already, and its connections are the parent's: "
                "open the instance in this process, after the fork."
            )

    def count_received(self, queue_id: int, messages: int, *, filtered: bool) -> None:
        """Count the messages that a RECEIVE took, so that the background gives back the space of a drained queue.

        `filtered`: it was of a certain conversation or group, so the queue may have more even if it took nothing.
        """
        if self._upkeep is not None and (messages or not filtered):
            self._upkeep.count_received(queue_id, messages)

    def sleep(self, bell: Bell, seconds: float) -> bool:
        """Wait for the bell, at most `seconds`. Return whether the queue itself may have changed meanwhile."""
        return bell.wait(seconds)

    def count_polled(self, found: bool) -> None:
        """Note whether a GET CONVERSATION GROUP found a group; the session of an activated task overrides this."""

    def share_events(self, other: Any) -> None:
        """Count rollbacks and record events together with another open form of the same instance."""
        self.events = other.events
        self.poison.share(other.poison)

    def close(self) -> None:
        """Close the instance; an embedded server stops with its last user. In a forked child nothing is closed."""
        if self.is_forked:
            return
        self._is_closed = True
        if self._upkeep is not None:
            self._upkeep.close()
        if self._pool is not None:
            if self.engine.has_upkeep:
                self._tell(self._pool)
            self.watchers.stop()
            self._pool.close()
            self.doorbell.close()  # after the pool: readers that it wakes find the instance closed
            self.watchers.join()
        if self._server is not None:
            in_thread(self._server.close)

    def _disable_queue(self, queue_id: int) -> Steps[Disabled | None]:
        return self.engine.disable_queue(queue_id, self.clock())

    def _tell(self, connections: DirectPool) -> None:
        """Add the last counts to the totals, if a connection is free at once."""
        try:
            with connections.connection(timeout=_CLOSE_TIMEOUT_S) as connection:
                tell(connection, self.tally)
                tell_statements(connection)
        except (psycopg.Error, PoolTimeout, PoolClosed) as problem:
            _LOG.debug("totals: %s", problem)

    def _lend(self) -> DirectConnection:
        if self._pool is None:
            raise InstanceError("The instance is not open: use it in a `with` block, or call its `open`.")
        if self._process != forked.process_id:
            self.check_process()
        try:
            try:
                connection = self._pool.getconn(timeout=FIRST_TIMEOUT_S)
            except PoolTimeout:
                connection = self._get_later(self._pool)
            self._lent += 1
        except PoolClosed:
            raise InstanceError("The instance is closed: open it again.") from None
        except PoolTimeout:
            raise self._refusal(self._pool) from None
        try:
            follow(self.clock, connection)
        except BaseException:
            self._take_back(connection)
            raise
        return connection

    def _take_back(self, connection: DirectConnection) -> None:
        assert self._pool is not None
        if self._process != forked.process_id:
            return
        connection.ahead.clear()  # an interruption may have left a BEGIN there
        connection.waiting.verbs = None
        left = connection if session_locks.may_keep_locks(connection) else self._pool.keep(connection)
        if left is not None:
            self._put(self._pool, left)

    def _get_later(self, connections: DirectPool) -> DirectConnection:
        """Wait for a connection as long as other callers get theirs."""
        self._look()
        while True:
            lent = self._lent
            try:
                return connections.getconn(timeout=CONNECTION_TIMEOUT_S - FIRST_TIMEOUT_S)
            except PoolTimeout:
                if self._lent == lent:
                    raise

    def _refusal(self, connections: DirectPool) -> InstanceError:
        """Return why there was no connection: the server has no room for another one, or all are in use."""
        try:
            self._look()
        except InstanceError as problem:
            return problem
        held = connections.get_stats()["pool_size"]
        said = f"No connection to PostgreSQL could be had in {CONNECTION_TIMEOUT_S} s: "
        if held < connections.max_size:
            return InstanceError(f"{said}{held} of this instance are in use, and the server took no other meanwhile.")
        return InstanceError(f"{said}all {held} connections of this instance are in use.")

    def _look(self) -> None:
        """Find out whether the server is down; one of the waiting callers does it for all."""
        with self._looking:
            if time.monotonic() - self._looked > FIRST_TIMEOUT_S:
                (connect(self.url)).close()
                self._looked = time.monotonic()

    def _put(self, connections: DirectPool, connection: DirectConnection) -> None:
        release_kept(connection)
        lost = connection.closed
        connections.putconn(connection)
        if lost:  # the server is gone, or has lost the other connections, too
            connections.check()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Borrowed(AbstractContextManager[DirectConnection]):
    """The context manager of `connection`; a class, since each verb enters one."""

    __slots__ = ("_connection", "_instance")

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def __enter__(self) -> DirectConnection:
        self._connection = self._instance._lend()
        return self._connection

    def __exit__(self, *raised: object) -> None:
        self._instance._take_back(self._connection)
