"""The store of a round in PostgreSQL: the engine's verbs on one connection, and the transaction around them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar, cast
from uuid import UUID, uuid4

import psycopg

from servicebroker.broker.kept_deliveries import KeptDeliveries
from servicebroker.broker.store_operations import Store
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation import enqueue, traces
from servicebroker.engine.conversation.failure import ConversationFailure
from servicebroker.engine.conversation.traces import MessageContext
from servicebroker.engine.remote import (
    admission,
    arriving,
    departing,
    local_topology,
    mirrored_pairs,
    missing_routes,
    old_copies,
    remote_endpoints,
    remote_opening,
    unfinished_arrivals,
)
from servicebroker.engine.remote.admission import Target
from servicebroker.engine.remote.departing import (
    AcknowledgedEndpoints,
    Claimed,
    OutgoingMessages,
    OutgoingPoll,
    ReadRequest,
    Snapshot,
)
from servicebroker.engine.remote.local_topology import Database, LocalInstance, LocalService, LocalTopology
from servicebroker.engine.remote.mirrored_pairs import StoredPair
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.remote.remote_opening import (
    BEING_ALTERED,
    NewTarget,
    TargetLocation,
    Unroutable,
    locate_target,
)
from servicebroker.engine.security import known_brokers, session_keys
from servicebroker.engine.security.known_brokers import KnownBroker
from servicebroker.engine.security.master_keys import MasterKey, find_master_key
from servicebroker.engine.security.session_keys import Keys, UndecidedDialog
from servicebroker.engine.security.user_certificates import UserCertificate
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.overriding import override
from servicebroker.protocol.dialog import Acknowledged, Diverged
from servicebroker.protocol.division import WHOLE, Division
from servicebroker.protocol.envelope import BrokerFailure, Header
from servicebroker.protocol.incoming import Batch
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.protocol.routing import Ask, Decision, Elsewhere, Pick, RoutingTable
from servicebroker.protocol.unfinished import Stored
from servicebroker.store.direct import DirectConnection, QueuedCommand, run_command
from servicebroker.store.outage import Outage
from servicebroker.store.running import run
from servicebroker.store.statements import Statement, Steps

T = TypeVar("T")

LOCKED_QUEUES_POLL_INTERVAL_S = 1.0  # seconds between looks for locked queues, while messages arrive
_DURABLE_COMMIT = b"set local statement_timeout = 0; commit"
_LAZY_COMMIT = b"set local synchronous_commit = off; commit"

_log = logging.getLogger("servicebroker.broker")


class PostgresStore(Store):
    """The tables of an instance, over a connection in autocommit mode.

    It reads the conversations of one share (partition) only. Large messages are delivered by `kept`, if given.
    """

    def __init__(
        self,
        connection: DirectConnection,
        clock: Callable[[], datetime],
        division: Division = WHOLE,
        kept: KeptDeliveries | None = None,
    ) -> None:
        self._connection = connection
        self._clock = clock
        self.division = division
        self.kept = kept
        self._is_beside = False  # this transaction has stored large messages for `kept`
        self._catalog = Catalog()
        self._answers: dict[Hashable, object] | None = None  # results of this transaction, which several openings need
        self._must_last = False
        self._is_replicated = True
        self._locked_queues: dict[int, str] = {}
        self._next_look = 0.0  # the time of the next look for locked queues
        self._locks = Outage(_log, "Messages wait, and those for other queues go on")

    def notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Handle a notice of PostgreSQL: a canceled wait for the standby, after which the commit still succeeds."""
        if notice.source_function == "SyncRepWaitForLSN":
            self._is_replicated = False

    @override
    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction. BEGIN is sent with the first statement, and COMMIT waits for the disk only if it must.

        The commit has no deadline: it may wait for a standby.
        """
        connection, self._must_last, self._is_beside = self._connection, False, False
        self._answers = {}
        connection.queued.append(QueuedCommand(b"begin"))
        try:
            yield
            run_command(connection, _DURABLE_COMMIT if self._must_last else _LAZY_COMMIT)
        except BaseException:
            connection.queued.clear()
            with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
                connection.rollback()
            raise
        finally:
            self._answers = None
        if not self._is_replicated:
            raise InstanceError("A commit did not reach the synchronous standby, so nothing of it is acknowledged.")
        if self._is_beside and self.kept is not None:
            self.kept.ask()

    def prove(self) -> None:
        """Wait for a commit and, if there is one, for the synchronous standby, which then has all earlier commits.

        Raises:
            InstanceError: the wait for the standby was canceled.
        """
        with self.transaction():
            self._do(mirrored_pairs.write_proof())

    def _do(self, steps: Steps[T]) -> T:
        """Run an operation whose commit must wait for the disk."""
        self._must_last = True
        return run(self._connection, steps)

    def _do_lazily(self, steps: Steps[T]) -> T:
        """Run an operation that only reads, or whose loss in a server crash only makes a peer repeat a message."""
        return run(self._connection, steps)

    def _once(self, key: Hashable, steps: Steps[T]) -> T:
        """Run a query once in a transaction, and cache its result for the other openings."""
        if self._answers is None:
            return self._do(steps)
        if key not in self._answers:
            self._answers[key] = self._do(steps)
        return cast("T", self._answers[key])

    def _execute(self, statement: Statement) -> None:
        self._do(_alone(statement))

    # ---------------------------------------------------------------- conversations with messages

    @override
    def look(self, seen: Snapshot | None) -> OutgoingPoll:
        return self._do_lazily(departing.look(seen, self.division))

    @override
    def page(self, after: UUID, count: int) -> list[UUID]:
        return self._do(departing.page(after, count, self.division))

    @override
    def endpoints(self, handles: Sequence[UUID]) -> list[RemoteEndpoint]:
        return self._do(remote_endpoints.find_by_handle(handles))

    @override
    def endpoints_of(self, keys: Sequence[tuple[UUID, bool]]) -> list[RemoteEndpoint]:
        return self._do(remote_endpoints.find_by_conversation(keys))

    @override
    def groups_of(self, handles: Sequence[UUID]) -> dict[UUID, UUID]:
        return self._do(remote_endpoints.groups_of(list(handles)))

    @override
    def existing_groups(self, groups: Collection[UUID]) -> set[UUID]:
        return self._do(remote_endpoints.existing_groups(groups))

    # ---------------------------------------------------------------- routes

    @override
    def route(self, departures: Sequence[RemoteEndpoint], here: LocalInstance) -> dict[UUID, Decision]:
        return self._do(departing.route(self._catalog, departures, here, self._clock()))

    @override
    def route_arrivals(
        self, headers: Sequence[Header], here: LocalInstance, may_ask: Callable[[int, Ask], bool]
    ) -> list[Decision]:
        return self._do(local_topology.route_arrivals(self._catalog, headers, here, self._clock(), may_ask))

    @override
    def site(self) -> LocalTopology:
        return self._do(local_topology.find_topology([], self._clock()))

    @override
    def routes(self, located: LocalTopology, database: Database) -> RoutingTable:
        return self._do(located.routes(self._catalog, database))

    @override
    def ask(self, database_id: int, missing: Ask) -> None:
        self._do(missing_routes.ask(database_id, missing, self._clock()))

    @override
    def known_pairs(self, pairs: Iterable[Elsewhere]) -> dict[Elsewhere, KnownTimeline]:
        return self._do(mirrored_pairs.find_timelines(pairs))

    @override
    def find_routed_pairs(self) -> list[Elsewhere]:
        return self._do(mirrored_pairs.find_routed_pairs())

    @override
    def save_pairs(self, rows: Sequence[StoredPair]) -> None:
        self._execute(mirrored_pairs.save(rows, self._clock()))

    @override
    def claim(self, claims: Mapping[UUID, Claimed]) -> set[UUID]:
        return self._do(departing.claim(claims))

    # ---------------------------------------------------------------- outgoing messages

    @override
    def read(self, wanted: dict[UUID, ReadRequest], longest: int) -> dict[UUID, OutgoingMessages]:
        return self._do_lazily(departing.read(wanted, longest))

    @override
    def read_fragment(self, handle: UUID, number: int, offset: int, length: int) -> bytes | None:
        return self._do_lazily(departing.read_fragment(handle, number, offset, length))

    @override
    def read_token(self, handle: UUID, number: int) -> bytes | None:
        return self._do(departing.token_of(handle, number))

    @override
    def read_traces(self, header: Header, first: int, last: int) -> list[tuple[int, bytes]]:
        return self._do_lazily(traces.find_contexts(header.conversation_id, header.is_from_initiator, first, last))

    @override
    def acknowledge(self, news: Mapping[UUID, Acknowledged]) -> AcknowledgedEndpoints:
        return self._do_lazily(departing.acknowledge(news, self._clock()))

    @override
    def acknowledge_traces(self, below: Mapping[UUID, int]) -> None:
        self._execute(traces.remove_delivered(below))

    @override
    def fail(self, failures: Mapping[UUID, BrokerFailure]) -> list[UUID]:
        return self._do(departing.fail(self._without_locked(failures), self._clock()))

    @override
    def diverge(self, diverged: Mapping[UUID, Diverged]) -> list[UUID]:
        return self._do(departing.diverge(self._without_locked(diverged), self._clock()))

    @override
    def note_old_copy(
        self, endpoint: RemoteEndpoint, peer_broker: UUID | None, own: BrokerFailure, *, is_here: bool
    ) -> None:
        self._execute(old_copies.note(endpoint, peer_broker, own, self._clock(), is_here=is_here))

    @override
    def set_statuses(self, texts: dict[UUID, str]) -> None:
        self._execute(departing.set_statuses(texts))

    # ---------------------------------------------------------------- received messages

    @override
    def find_place(self, header: Header, pick: Pick) -> TargetLocation | ConversationFailure | Unroutable:
        service, opening, now = header.to_service, header.opening, self._clock()
        assert opening is not None
        key = ("find_place", service, header.to_broker, opening.contract)
        answers = {} if self._answers is None else self._answers
        if key in answers:
            return cast("TargetLocation | ConversationFailure | Unroutable", answers[key])
        if not self._once(("lock_service", service), remote_opening.lock_service(service)):
            return BEING_ALTERED
        located, outside = self._once(
            ("locate", service, opening.contract),
            remote_opening.locate(self._catalog, service, opening.contract, now),
        )
        was_asked = False

        def noted_pick(count: int) -> int:
            nonlocal was_asked
            was_asked = True
            return pick(count)

        place = locate_target(header, located, outside, now, noted_pick)
        if isinstance(place, TargetLocation) and place.home.queue_id in self._find_locked_queues():
            return BEING_ALTERED
        if not was_asked:  # after a random choice, another conversation may get another database
            answers[key] = place
        return place

    def _without_locked(self, changes: Mapping[UUID, T]) -> Mapping[UUID, T]:
        """Return the changes of endpoints whose queue is not locked. Their Errors go into their queues."""
        locked = self._find_locked_queues() if changes else ()
        if not locked:
            return changes
        blocked = self._do_lazily(remote_endpoints.find_in_queues(list(changes), list(locked)))
        return {handle: change for handle, change in changes.items() if handle not in blocked}

    def _find_locked_queues(self) -> Collection[int]:
        """Return the queues that other sessions have locked, at most a second ago."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOCKED_QUEUES_POLL_INTERVAL_S
            self._locked_queues = self._do_lazily(arriving.find_locked_queues())
            if self._locked_queues:
                names = ", ".join(sorted(self._locked_queues.values()))
                self._locks.report(
                    InstanceError(
                        f"another session has locked the table of {names}. servicebroker doctor names the session."
                    )
                )
            else:
                self._locks.end()
        return self._locked_queues.keys()

    @override
    def new_handle(self) -> UUID:
        return uuid4()

    @override
    def store(
        self, batches: Mapping[UUID, Batch], owners: Mapping[UUID, str], targets: Mapping[UUID, NewTarget]
    ) -> arriving.StoreResult:
        large = LIMITS.most_fragments if self.kept is None else arriving.LARGE_FRAGMENTS
        locked = self._find_locked_queues()
        steps = arriving.store(
            self._catalog, batches, owners, self._clock(), targets=targets, locked=locked, large=large
        )
        result = self._do(steps)
        self._is_beside |= result.is_beside
        return result

    @override
    def unfinished(self, handles: Sequence[UUID] | None = None) -> list[Stored]:
        return self._do_lazily(unfinished_arrivals.find_unfinished(self.division, handles))

    @override
    def drop_unfinished(self, handles: Sequence[UUID]) -> list[UUID]:
        return self._do(unfinished_arrivals.drop_unfinished(handles))

    @override
    def drop_openings(self, handles: Sequence[UUID]) -> list[UUID]:
        return self._do(unfinished_arrivals.drop_openings(handles))

    @override
    def store_traces(self, traced: Sequence[MessageContext]) -> None:
        self._execute(traces.store_contexts(traced, self._clock()))

    @override
    def wake(self, queues: Collection[int]) -> None:
        self._execute(enqueue.wake(list(queues)))

    # ---------------------------------------------------------------- dialog security

    @override
    def find_beginnings(self, handles: Sequence[UUID]) -> list[UndecidedDialog]:
        return self._do(session_keys.find_undecided(handles))

    @override
    def find_certificates_of(self, owners: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[UserCertificate]]:
        return self._do(session_keys.find_certificates_of(owners))

    @override
    def find_certificates(self, database_id: int, thumbprints: Sequence[bytes]) -> dict[bytes, UserCertificate]:
        key = ("find_certificates", database_id, *thumbprints)
        return self._once(key, session_keys.find_certificates(database_id, thumbprints))

    @override
    def find_master_key(self, database_id: int) -> MasterKey | None:
        return self._once(("find_master_key", database_id), find_master_key(database_id))

    @override
    def ask_for_binding(self, database_id: int, service: str) -> bool:
        return self._do(missing_routes.ask_for_binding(database_id, service, self._clock()))

    @override
    def save_keys(self, keys: Mapping[UUID, Keys]) -> None:
        self._do(session_keys.save_keys(keys))

    @override
    def save_exchange(self, handle: UUID, exchange: bytes) -> None:
        self._execute(session_keys.save_exchange(handle, exchange))

    @override
    def save_second_keys(self, keys: Mapping[UUID, tuple[UUID, bytes]]) -> None:
        self._execute(session_keys.save_second_keys(keys))

    @override
    def find_broker(self, certificate_id: int, broker: UUID) -> KnownBroker:
        return self._do_lazily(known_brokers.find_broker(certificate_id, broker))

    @override
    def save_broker(self, certificate_id: int, broker: UUID, capabilities: Sequence[str], ahead_until: int) -> None:
        self._execute(known_brokers.save_broker(certificate_id, broker, capabilities, ahead_until))

    @override
    def find_target(self, home: LocalService) -> Target:
        key = ("find_target", home.database_id, home.service_id)
        return self._once(key, admission.find_target(home.database_id, home.service_id))

    @override
    def refused_keeper(self, target: Target, principal_id: int) -> BrokerError | None:
        return self._once(("refused_keeper", target, principal_id), admission.refused_keeper(target, principal_id))

    @override
    def refused_sender(self, target: Target, principal_id: int) -> BrokerError | None:
        return self._once(("refused_sender", target, principal_id), admission.refused_sender(target, principal_id))

    @override
    def refused_owner(self, target: Target) -> BrokerError | None:
        return self._once(("refused_owner", target), admission.refused_owner(target))


def _alone(statement: Statement) -> Steps[None]:
    """Yield a single statement."""
    yield statement
