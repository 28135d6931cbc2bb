"""Read-only access to an instance for doctor, status, check, watch and the dashboard, with a deadline for each query.

When an operator runs these commands, the instance may be stuck: a lock is held, the standby of a synchronous commit is
gone, or the server hangs. So each query is a read-only transaction of its own, with timeouts. A query that fails is
recorded in `failed_queries`, and the next one runs. The schema is not upgraded, since the daemon of an older version
may be using it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Self, TypeVar

import psycopg

from servicebroker.api.shared.preparation import Inspected, inspect
from servicebroker.cli.existing_instance import check_exists, opening
from servicebroker.cli.output import say, waiting_for
from servicebroker.engine.conversation.owner_verbs import OwnerVerbs
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis.fact_types import FailedQueryFacts, HostFacts
from servicebroker.engine.diagnosis.facts import find_timeouts
from servicebroker.engine.remote.mirrored_pairs import read_role
from servicebroker.model.errors import InstanceError, Unreachable
from servicebroker.protocol.mirroring import Role
from servicebroker.store.connection import connect, is_url, one_line, urls_of_hosts
from servicebroker.store.direct import DirectConnection, run_command
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.lost_sessions import shut_down_socket
from servicebroker.store.running import run
from servicebroker.store.server import check_sessions
from servicebroker.store.server_clock import ServerClock, system_time
from servicebroker.store.server_errors import raise_broker_error
from servicebroker.store.server_time import follow
from servicebroker.store.statements import Steps

T = TypeVar("T")
U = TypeVar("U")

LOCK_TIMEOUT_MS = 2_000  # SEND and RECEIVE hold their locks for milliseconds
STATEMENT_TIMEOUT_MS = 5_000
LATER_TIMEOUT_MS = 1_000  # replaces both after a query has timed out, so that the command ends within half a minute
ANSWER_TIMEOUT_S = 10.0  # the time for all statements of a query, if the server does not answer at all
_LOG = logging.getLogger("servicebroker")


class DiagnosedInstance:
    """An existing instance, open for read-only queries.

    Attributes:
        url: the URL of its PostgreSQL database.
        clock: the time of its server.
        inspected: how its schema differs from this version's; None if that could not be read.
        refusal: why this server is unsuitable for applications, such as a pooler in front of it; '' if it is suitable.
        failed_queries: the queries that have failed since the last `report_failed_queries`, each with its reason.
    """

    def __init__(self, url: str, program: str, *, is_thorough: bool) -> None:
        self.url, self._program, self._is_thorough = url, program, is_thorough
        self.clock = ServerClock(time.monotonic, system_time, _LOG.warning)
        self.failed_queries: list[FailedQueryFacts] = []
        self.refusal = ""
        self.inspected: Inspected | None = None
        self._connection: DirectConnection | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def engine(self) -> type[OwnerVerbs]:
        """The implementation of SEND, RECEIVE and the other verbs that the role may use."""
        return OwnerVerbs if self.inspected is None else self.inspected.engine

    def query(self, subject: str, steps: Steps[T], default: U) -> T | U:
        """Run read-only steps. If they fail or time out, add that to `failed_queries` and return `default`.

        `subject` names the result in the report of failed queries.

        Raises:
            BrokerError: the steps have raised it, such as for an unknown queue.
            InstanceError: the connection was lost and cannot be opened again, or a restricted role may not read this.
        """
        with self._recording_failure(subject), self._transaction() as connection:
            return run(connection, steps)
        return default

    def read(self, steps: Steps[T]) -> T:
        """Run read-only steps with the deadlines of one query.

        Raises:
            psycopg.Error: a statement has failed; `QueryCanceled` and `LockNotAvailable` mean that it timed out.
            BrokerError: the steps have raised it, such as for an unknown conversation.
            InstanceError: the connection was lost and cannot be opened again.
        """
        with self._transaction() as connection:
            return run(connection, steps)

    def find_timeouts(self) -> dict[str, int]:
        """Return the timeouts that interrupt applications of this role, in milliseconds."""
        subject = "timeouts of the role"
        try:
            with (
                self._recording_failure(subject),
                connect(self.url, application_name=self._program, keeps_timeouts=True) as connection,
                self._deadline(connection),
            ):
                return run(connection, find_timeouts())
        except Unreachable as problem:  # the server may have no room for a second connection
            self._add_failure(subject, str(problem))
        return {}

    def find_hosts(self) -> list[HostFacts]:
        """Return role and timeline of each reachable server, if the URL names several hosts; else an empty list."""
        servers = []
        for host, url in urls_of_hosts(self.url).items():
            with (
                suppress(InstanceError),
                self._recording_failure(f"the server {host}"),
                connect(url, application_name=self._program) as connection,
                self._deadline(connection),
            ):
                standing = run(connection, read_role())
                servers.append(HostFacts(host, standing.role is Role.MIRROR, standing.system, standing.timeline))
        return servers

    def report_failed_queries(self) -> bool:
        """Print the failed queries on standard error, and clear the list. Return whether it was empty."""
        failures, self.failed_queries = self.failed_queries, []
        for failure in failures:
            say(f"Not seen: {failure.subject}: {failure.reason}", error=True)
        return not failures

    @property
    def is_lost(self) -> bool:
        """True if the connection was lost; the next query opens another one."""
        return self._connection is None or self._connection.closed

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        connection = self._connected()
        with self._recording_failure("the time of the server"), self._transaction():
            follow(self.clock, connection)
        with self._recording_failure("sessions"), self._deadline(connection):
            try:
                check_sessions(connection, self.url)
            except InstanceError as problem:
                self.refusal = str(problem)
        with self._recording_failure("the number of the schema"), self._transaction():
            self.inspected = inspect(connection)

    def _connected(self) -> DirectConnection:
        """Return the connection. Open a new one if it was lost."""
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.url, application_name=self._program)
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[DirectConnection]:
        """Run the block in a read-only transaction with short timeouts."""
        connection = self._connected()
        statement_ms, lock_ms = STATEMENT_TIMEOUT_MS, LOCK_TIMEOUT_MS
        if any(failure.is_cut for failure in self.failed_queries):
            statement_ms = lock_ms = LATER_TIMEOUT_MS
        if self._is_thorough:
            statement_ms = 0  # no limit
        begin = f"begin read only; set local lock_timeout = {lock_ms}; set local statement_timeout = {statement_ms}"
        with self._deadline(connection):
            try:
                run_command(connection, begin.encode())
                yield connection
                run_command(connection, b"commit")
            except BaseException:
                with suppress(psycopg.Error):  # a lost connection has rolled back
                    connection.rollback()
                raise

    @contextmanager
    def _deadline(self, connection: DirectConnection) -> Iterator[None]:
        """Shut down the connection if the block takes longer than `ANSWER_TIMEOUT_S`, unless `is_thorough`."""
        if self._is_thorough:
            yield
            return
        deadline = threading.Timer(ANSWER_TIMEOUT_S, shut_down_socket, (connection,))
        deadline.daemon = True
        deadline.start()
        try:
            yield
        finally:
            deadline.cancel()

    @contextmanager
    def _recording_failure(self, subject: str) -> Iterator[None]:
        """Suppress an error of PostgreSQL in the block, and add it to `failed_queries`."""
        try:
            yield
        except psycopg.errors.QueryCanceled:
            self._add_failure(subject, "PostgreSQL did not answer in time.", is_cut=True)
        except psycopg.errors.LockNotAvailable:
            self._add_failure(subject, "another session holds a lock that it needs.", is_cut=True)
        except psycopg.errors.InsufficientPrivilege as problem:
            if self.engine is RestrictedVerbs:
                raise_broker_error(problem)
            self._add_failure(subject, one_line(problem))
        except psycopg.Error as problem:
            is_lost = self._connection is not None and self._connection.closed
            reason = "the connection to PostgreSQL was lost, or gave no answer." if is_lost else one_line(problem)
            self._add_failure(subject, reason, is_cut=is_lost)

    def _add_failure(self, subject: str, reason: str, *, is_cut: bool = False) -> None:
        self.failed_queries.append(FailedQueryFacts(subject, reason, is_cut))


@contextmanager
def diagnose(target: str, program: str, *, is_thorough: bool = False) -> Iterator[DiagnosedInstance]:
    """Open an existing instance for read-only queries. `is_thorough`: statements have no timeout, locks still do.

    Raises:
        InstanceError: there is no instance, the server cannot be reached, or the database holds a restored copy.
    """
    with waiting_for(opening(target)):
        check_exists(target)
        starting = nullcontext() if is_url(target) else EmbeddedServer.start(target, watches=False)
    with starting as server:
        url = target if server is None else server.url
        with DiagnosedInstance(url, program, is_thorough=is_thorough) as instance:
            yield instance
