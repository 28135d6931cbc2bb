# Made from aio/instance.py by tools/make_sync.py: change that file, then run `make sync`.
"""An instance: one PostgreSQL database with the schema of servicebroker, embedded in a folder or by URL."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
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
from servicebroker.api.shared.tally import Tally
from servicebroker.api.transaction import release_kept, translated
from servicebroker.api.upkeep import Upkeep, tell, tell_statements
from servicebroker.engine.activation.poison_detection import Disabled
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation.plain_verbs import Direct
from servicebroker.engine.diagnosis.consistency import Report, check
from servicebroker.engine.diagnosis.queue_counts import Backlog, QueueStatus, queue_statuses, transmission_status
from servicebroker.engine.remote.site import find_instance
from servicebroker.model import names
from servicebroker.model.arguments import MAX_BODY_BYTES, checked_maximum
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.events import Events
from servicebroker.model.security.permissions import User
from servicebroker.model.wording import shown
from servicebroker.store import kept
from servicebroker.store.concurrency import Lock, in_thread, is_interrupt
from servicebroker.store.connection import connect, is_url, pool
from servicebroker.store.direct import DirectConnection, DirectPool
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.opened_keys import OpenedKeys
from servicebroker.store.process_id import process_id
from servicebroker.store.running import run, run_alone
from servicebroker.store.server_clock import Clock, ServerClock, system_time
from servicebroker.store.server_time import follow
from servicebroker.store.statements import Steps

UPKEEP = 30.0  # seconds between two looks of the background for what is due
_LOG = logging.getLogger("servicebroker")
_AT_ONCE = 0.5  # seconds
PATIENCE, FIRST_PATIENCE = 30, 2  # seconds to wait for a connection; after the first few, look whether any can be had


def checked_target(target: object) -> str:
    """A data folder or a PostgreSQL server, as a str.

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

    works_as_user = False  # whether its databases are those of one user of one of them, as in an activated task

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        connections: int = 20,
        upkeep: float | None = UPKEEP,
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
        self.catalog = self._new_catalog()
        self._catalogs: dict[User, Catalog] = {}
        self.events = Events(partial(is_interrupt, exits=True))
        self.engine: type[Direct] = Direct
        self.poison = PoisonDetector(self.connection, self.clock, self._disable_queue, self.events, self.tally)
        self._connections = connections
        self._interval = upkeep
        self._looking, self._looked = Lock(), -math.inf
        self._losses = 0  # of the doorbell's connection, after which those of the pool were looked at
        self._lent = 0  # connections so far: as long as the number rises, who waits has a turn coming
        self._server: EmbeddedServer | None = None
        self._pool: DirectPool | None = None
        self._upkeep: Upkeep | None = None
        self.seen_by_threads: Any = None  # what T-SQL under asyncio sees of it
        self._process = process_id()
        self.open_transactions: Counter[object] = Counter()  # of each thread, or task
        self.watchers = Watchers()

    def open(self) -> Self:
        """Open it, unless it is open.

        Raises:
            InstanceError: it cannot be made, reached or used; the message says why.
        """
        if self._pool is not None:
            self.check_process()
            return self
        self._process = process_id()
        if not is_url(self.url):
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
        """The broker database of that name, compared without case; made when it is missing and `create` is set.

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
        """Where the private keys of the instance are: what it was opened with, or `keys` in its data folder.

        For a server by URL it is a folder of the instance's own in the user's data.
        """
        if self.keys.folder is not None:
            return self.keys.folder
        return self.keys.locate(self.identifier())

    def identifier(self) -> UUID:
        """The identifier of the instance, which the certificate of a domain carries."""
        with self.connection() as connection:
            return run(connection, find_instance())

    def catalog_of(self, user: User) -> Catalog:
        """What this process remembers of the catalog for a principal."""
        return self.catalog if user.is_dbo else self._catalogs.setdefault(user, self._new_catalog(user))

    def _new_catalog(self, user: User | None = None) -> Catalog:
        return Catalog(user, self.tally.enqueued, self.keys)

    def status(self) -> tuple[list[QueueStatus], Backlog]:
        """Every queue with its services, depth and oldest message; and what waits for delivery."""
        with self.connection() as connection, translated():
            return run(connection, queue_statuses()), run(connection, transmission_status())

    def check(self) -> Report:
        """DBCC CHECKDB for the broker: whether all that is stored holds together. Reads every queue."""
        with self.connection() as connection, translated():
            return run(connection, check(self.clock()))

    def connection(self) -> AbstractContextManager[DirectConnection]:
        """A connection of the pool, in autocommit mode, for the length of a `with` block."""
        return _Borrowed(self)

    def renew(self) -> None:
        """Replace the connections that were lost with the server, if it was lost since the last time."""
        if self._pool is not None and self._losses != self.doorbell.losses:
            self._losses = self.doorbell.losses
            self._pool.check()

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that has opened the instance."""
        return self._process != process_id()

    def check_process(self) -> None:
        """Refuse what would go over connections of another process: each would read the other's answers.

        Raises:
            InstanceError: this process was forked from the one that has opened the instance.
        """
        if self._process != process_id():
            raise InstanceError(
                "This process was forked when the instance was open already, and its connections are the parent's: "
                "open the instance in this process, after the fork."
            )

    def took(self, queue_id: int, messages: int, *, choosy: bool) -> None:
        """A RECEIVE took so many messages: the background gives back the space of a queue that was drained.

        `choosy` is one of a certain conversation or group: when it finds nothing, the queue may have more.
        """
        if self._upkeep is not None and (messages or not choosy):
            self._upkeep.took(queue_id, messages)

    def sleep(self, bell: Bell, seconds: float) -> bool:
        """A reader waits for its bell, at most `seconds`: whether its queue itself may have changed meanwhile."""
        return bell.wait(seconds)

    def looked(self, found: bool) -> None:
        """A GET CONVERSATION GROUP has found one, or none: of interest to the session of an activated task."""

    def share(self, other: Any) -> None:
        """Count rollbacks and record events together with another open form of the same instance."""
        self.events = other.events
        self.poison.share(other.poison)

    def close(self) -> None:
        """Leave the instance; an embedded server stops with its last user. What a forked child has is its parent's."""
        if self.is_forked:
            return
        if self._upkeep is not None:
            self._upkeep.close()
        if self._pool is not None:
            if self.engine.has_upkeep:
                self._tell(self._pool)
            self.watchers.stop()
            self._pool.close()
            self.doorbell.close()  # whoever it wakes is to find the instance closed
            self.watchers.join()
        if self._server is not None:
            in_thread(self._server.close)

    def _disable_queue(self, queue_id: int) -> Steps[Disabled | None]:
        return self.engine.disable_queue(queue_id, self.clock())

    def _tell(self, connections: DirectPool) -> None:
        """Add to the totals what was counted last, if that is to be had at once."""
        try:
            with connections.connection(timeout=_AT_ONCE) as connection:
                tell(connection, self.tally)
                tell_statements(connection)
        except (psycopg.Error, PoolTimeout, PoolClosed) as problem:
            _LOG.debug("totals: %s", problem)

    def _lend(self) -> DirectConnection:
        if self._pool is None:
            raise InstanceError("The instance is not open: use it in a `with` block, or call its `open`.")
        if self._process != process_id():
            self.check_process()
        try:
            try:
                connection = self._pool.getconn(timeout=FIRST_PATIENCE)
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
        if self._process != process_id():
            return
        connection.ahead.clear()  # an interruption may have left a BEGIN there
        connection.waiting.verbs = None
        left = connection if kept.is_kept(connection) else self._pool.keep(connection)
        if left is not None:
            self._put(self._pool, left)

    def _get_later(self, connections: DirectPool) -> DirectConnection:
        """Wait for a connection as long as others get theirs."""
        self._look()
        while True:
            lent = self._lent
            try:
                return connections.getconn(timeout=PATIENCE - FIRST_PATIENCE)
            except PoolTimeout:
                if self._lent == lent:
                    raise

    def _refusal(self, connections: DirectPool) -> InstanceError:
        """Say why there was no connection: the server has no room for another one, or all are in use."""
        try:
            self._look()
        except InstanceError as problem:
            return problem
        held = connections.get_stats()["pool_size"]
        said = f"No connection to PostgreSQL could be had in {PATIENCE} s: "
        if held < connections.max_size:
            return InstanceError(f"{said}{held} of this instance are in use, and the server took no other meanwhile.")
        return InstanceError(f"{said}all {held} connections of this instance are in use.")

    def _look(self) -> None:
        """Find out whether the server is down; one of those who wait for a connection does it for all."""
        with self._looking:
            if time.monotonic() - self._looked > FIRST_PATIENCE:
                (connect(self.url)).close()
                self._looked = time.monotonic()

    def _put(self, connections: DirectPool, connection: DirectConnection) -> None:
        release_kept(connection)
        lost = connection.closed
        connections.putconn(connection)
        if lost:  # the server has gone, or will have lost the others too
            connections.check()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Borrowed(AbstractContextManager[DirectConnection]):
    """A connection of an instance's pool for the length of a `with` block; a class, since each verb has one."""

    __slots__ = ("_connection", "_instance")

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def __enter__(self) -> DirectConnection:
        self._connection = self._instance._lend()
        return self._connection

    def __exit__(self, *raised: object) -> None:
        self._instance._take_back(self._connection)
