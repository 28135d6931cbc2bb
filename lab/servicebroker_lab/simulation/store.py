"""The tables of one instance in memory, and the operations of the daemon on them.

This is a second implementation of the operations that PostgreSQL runs in a round (one transaction of the daemon).
test_store_equivalence.py compares both. The tables survive every simulated crash of a daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from servicebroker.broker.store_operations import Store
from servicebroker.engine.conversation.failure import ConversationFailure
from servicebroker.engine.conversation.traces import MessageContext
from servicebroker.engine.remote.admission import Target
from servicebroker.engine.remote.arriving import StoreResult
from servicebroker.engine.remote.departing import (
    AcknowledgedEndpoints,
    Claimed,
    OutgoingMessages,
    OutgoingPoll,
    ReadRequest,
    Snapshot,
    WaitingConversation,
    route_departures,
)
from servicebroker.engine.remote.local_topology import (
    Database,
    LocalInstance,
    LocalService,
    LocalTopology,
    route_headers,
)
from servicebroker.engine.remote.mirrored_pairs import StoredPair
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.remote.remote_opening import (
    CreatedTarget,
    NewTarget,
    TargetLocation,
    Unroutable,
    locate_target,
)
from servicebroker.engine.security.known_brokers import KnownBroker
from servicebroker.engine.security.master_keys import MasterKey
from servicebroker.engine.security.session_keys import Keys, UndecidedDialog
from servicebroker.engine.security.user_certificates import UserCertificate
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.messages import error_body
from servicebroker.model.security.dialog_security import Binding, Security
from servicebroker.model.security.permissions import DBO_ID, Kind, Securable
from servicebroker.model.states import REMOVED, REPLAY_PROTECTION, TRANSITIONS, EndpointState, Event
from servicebroker.overriding import override
from servicebroker.protocol.dialog import Acknowledged, Diverged
from servicebroker.protocol.division import WHOLE, Division
from servicebroker.protocol.envelope import BrokerFailure, Content, Header, Part
from servicebroker.protocol.incoming import Batch, Begun, Complete, Deliver, Discard, Keep, Kept
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.protocol.routing import Ask, Decision, Elsewhere, Pick, Route, RoutingTable, Site, parse_address
from servicebroker.protocol.unfinished import Stored
from servicebroker_lab.simulation.simulated_time import MIDNIGHT

K = TypeVar("K")
V = TypeVar("V")
Key = tuple[UUID, bool]  # (conversation, is_initiator): one side of a conversation

DATABASE_ID = 1  # an instance has one database, whose routes are also those of msdb
QUEUE_ID = 1
_BEGUN = (EndpointState.STARTED_INBOUND, EndpointState.CONVERSING)
_LIVE = (*_BEGUN, EndpointState.DISCONNECTED_INBOUND)


class GuaranteeBroken(AssertionError):
    """A guarantee was broken: the run has found a defect."""


@dataclass(slots=True)
class Waiting:
    """A row of the transmission queue, with the id of the transaction that has inserted it."""

    part: Part
    xact: int
    status: str = ""


@dataclass(slots=True, eq=False)
class Endpoint:
    """A row of conversation_endpoints, with the rows of other tables that belong to it."""

    handle: UUID
    conversation: UUID
    is_initiator: bool
    own_service: str
    far_service: str
    contract: str
    lifetime: datetime
    encryption: bool = False
    priority: int = 5
    state: EndpointState = EndpointState.STARTED_OUTBOUND
    peer_broker: str | None = None
    routed_broker: str | None = None
    is_remote: bool = False
    is_acknowledged: bool = False
    security: str | None = None
    keys: Keys | None = None
    send_sequence: int = 0
    rows: dict[int, Waiting] = field(default_factory=dict)  # the transmission queue
    next: int = 0  # the number of the next message to arrive
    token: bytes | None = None  # the token of the last message that has arrived in order
    failure: tuple[int, str] | None = None  # the error for the peer
    kept: dict[int, dict[int, Keep]] = field(default_factory=dict)  # arrived fragments
    kept_owner: str = ""  # the owner of the certificate of the peer that has sent them
    queue: list[tuple[Content, bytes]] = field(default_factory=list)  # all messages for its application so far
    goes_at: datetime | None = None  # when a closed endpoint is removed

    @property
    def key(self) -> Key:
        """The side of the conversation that this endpoint is."""
        return self.conversation, self.is_initiator

    @property
    def is_open(self) -> bool:
        """True if the application may send."""
        return (self.state, Event.SEND) in TRANSITIONS

    @property
    def is_over(self) -> bool:
        """True if the application has ended it, or has received nothing, because a late fragment has created it."""
        is_empty = self.state is EndpointState.STARTED_INBOUND and not self.queue
        return self.state is EndpointState.CLOSED or is_empty

    @property
    def has_error(self) -> bool:
        """True if the application has received an Error."""
        return any(content is Content.ERROR for content, _ in self.queue)

    def twin(self) -> Endpoint:
        """Return a copy of the endpoint."""
        twin = copy(self)
        twin.rows = {number: copy(row) for number, row in self.rows.items()}
        twin.kept = {number: fragments.copy() for number, fragments in self.kept.items()}
        twin.queue = self.queue.copy()
        return twin


class Tables:
    """The committed state of one instance, and the actions of its applications."""

    def __init__(self, broker: UUID, rng: Random) -> None:
        self.broker = broker
        self.rng = rng
        self.endpoints: dict[UUID, Endpoint] = {}
        self.removed: list[Endpoint] = []  # removed endpoints, for the checks of the run
        self.services: set[str] = set()
        self.routes = RoutingTable(())
        self.routes_version = 1
        self.bindings: dict[str, tuple[Binding, int]] = {}  # the binding and its user, by remote service
        self.certificates: list[UserCertificate] = []
        self.master_key: MasterKey | None = None
        self.pairs: dict[Elsewhere, StoredPair] = {}
        self.traces: dict[tuple[UUID, bool, int], bytes] = {}
        self.brokers: dict[tuple[int, UUID], KnownBroker] = {}  # known brokers, by certificate and broker
        self.old_copies: set[tuple[UUID | None, bool]] = set()  # (broker, this instance is the old copy)
        self.unfinished: set[int] = set()  # ids of open transactions
        self.next_xact = 1
        self.open: list[MemoryStore] = []  # stores with an open transaction
        self.limits = LIMITS
        self.is_held: Callable[[UUID], bool] = lambda handle: False  # another session has locked the endpoint's row
        self.on_wake: Callable[[], None] = lambda: None
        self.clock: Callable[[], datetime] = lambda: MIDNIGHT  # the server's clock

    def set_routes(self, routes: Iterable[Route]) -> None:
        """CREATE, ALTER and DROP ROUTE. Mirrored pairs without a route are forgotten."""
        self.routes = RoutingTable(routes)
        self.pairs = {pair: row for pair, row in self.pairs.items() if self.leads_to(row)}
        self.routes_version += 1

    def leads_to(self, row: StoredPair) -> bool:
        """Check whether a route leads to a mirrored pair."""
        return any((route.address, route.mirror_address) == row[:2] for route in self.routes.routes)

    def take_certificate(self, certificate: UserCertificate) -> None:
        """CREATE CERTIFICATE, and DROP CERTIFICATE of the previous one of the same user."""
        self.certificates = [other for other in self.certificates if other.owner_id != certificate.owner_id]
        self.certificates.append(certificate)

    def draw_handle(self) -> UUID:
        """Draw a new identifier."""
        return UUID(int=self.rng.getrandbits(128))

    def find(self, key: Key) -> Endpoint | None:
        """Return the endpoint of a side of a conversation; None without one."""
        return next((endpoint for endpoint in self.endpoints.values() if endpoint.key == key), None)

    def twin(self) -> dict[UUID, Endpoint]:
        """Return a copy of all endpoints."""
        return {handle: endpoint.twin() for handle, endpoint in self.endpoints.items()}

    # ---------------------------------------------------------------- statements of applications

    def begin(self) -> int:
        """BEGIN of an application. Returns the transaction id."""
        xact, self.next_xact = self.next_xact, self.next_xact + 1
        self.unfinished.add(xact)
        return xact

    def commit(self, xact: int) -> None:
        """COMMIT of an application."""
        self.unfinished.remove(xact)

    def insert(self, endpoint: Endpoint) -> None:
        """BEGIN DIALOG."""
        self.endpoints[endpoint.handle] = endpoint

    def send(self, endpoint: Endpoint, content: Content, name: str, body: bytes, token: bytes, xact: int) -> int:
        """SEND, or END CONVERSATION of a conversation with sent messages, by a transaction that commits now."""
        if content is Content.ERROR:
            endpoint.rows.clear()
            if not endpoint.is_remote:  # the peer gets no message
                self.close(endpoint)
                return endpoint.send_sequence
        number, endpoint.send_sequence = endpoint.send_sequence, endpoint.send_sequence + 1
        endpoint.rows[number] = Waiting(Part(name, content, body or None, token), xact)
        if content is Content.DATA:
            endpoint.state = EndpointState.CONVERSING
        else:
            endpoint.state = EndpointState.DISCONNECTED_OUTBOUND
        return number

    def end(self, endpoint: Endpoint) -> None:
        """END CONVERSATION after the peer's end or an Error. Nothing is sent or received any more."""
        endpoint.rows.clear()
        self.close(endpoint)

    def close(self, endpoint: Endpoint) -> None:
        """Close an endpoint. An initiator without dialog security is removed; other rows are kept against replays."""
        endpoint.kept.clear()
        endpoint.state, endpoint.goes_at = EndpointState.CLOSED, self.clock() + REPLAY_PROTECTION
        if endpoint.is_initiator and endpoint.security in (None, Security.NONE):
            endpoint.rows.clear()
            self.removed.append(self.endpoints.pop(endpoint.handle))

    def forget_closed(self, now: datetime) -> list[Endpoint]:
        """Remove and return closed endpoints after their retention, as maintenance does."""
        expired_endpoints = [
            endpoint for endpoint in self.endpoints.values() if endpoint.goes_at is not None and endpoint.goes_at <= now
        ]
        for endpoint in expired_endpoints:
            self.removed.append(self.endpoints.pop(endpoint.handle))
        return expired_endpoints


class MemoryStore(Store):
    """The operations of one connection on the tables. `clock` is that of the server.

    `look` and `page` return only conversations of one share (a partition). Uncommitted changes of other shares are
    visible, unlike in PostgreSQL, but no share reads the conversations of another one.
    """

    def __init__(self, tables: Tables, clock: Callable[[], datetime], division: Division = WHOLE) -> None:
        self._tables = tables
        self._clock = clock
        self.division = division
        self._before: dict[UUID, Endpoint | None] = {}  # the state of written endpoints before this transaction
        self._rows: list[
            tuple[dict[Any, Any], object, object]
        ] = []  # written rows of other tables: (table, key, former row)
        self._is_open = False

    @override
    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Restore the state before the transaction if the block fails."""
        self._is_open = True
        self._tables.open.append(self)
        try:
            yield
        except BaseException:
            for table, key, row in reversed(self._rows):
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
            for handle, before in self._before.items():
                self._undo(handle, before)
            raise
        finally:
            self._tables.open.remove(self)
            self._is_open, self._before, self._rows = False, {}, []

    def _change(self, table: dict[K, V], key: K) -> None:
        """Record a row of another table before it is written."""
        self._rows.append((table, key, table.get(key)))

    def locks(self, handle: UUID) -> bool:
        """Check whether this transaction has locked an endpoint."""
        return handle in self._before

    def _undo(self, handle: UUID, before: Endpoint | None) -> None:
        tables = self._tables
        removed = next((other for other in tables.removed if other.handle == handle), None)
        if before is None:
            del tables.endpoints[handle]
            return
        endpoint = removed or tables.endpoints[handle]
        for name in Endpoint.__slots__:
            setattr(endpoint, name, getattr(before, name))
        if removed is not None:
            tables.removed.remove(removed)
            tables.endpoints[handle] = removed

    def _to_write(self, handle: UUID) -> Endpoint | None:
        """Lock and return an endpoint; None if another session has locked it, or it was removed."""
        endpoint = self._tables.endpoints.get(handle)
        if endpoint is None or (handle not in self._before and self._is_held(handle)):
            return None
        if self._is_open and handle not in self._before:
            self._before[handle] = endpoint.twin()
        return endpoint

    def _is_held(self, handle: UUID) -> bool:
        return any(store.locks(handle) for store in self._tables.open) or self._tables.is_held(handle)

    def _missing_handles(self, handles: Iterable[UUID]) -> list[UUID]:
        return [handle for handle in handles if handle not in self._tables.endpoints]

    # ---------------------------------------------------------------- waiting conversations

    @override
    def look(self, seen: Snapshot | None) -> OutgoingPoll:
        tables, waiting = self._tables, []
        for handle, endpoint in tables.endpoints.items():
            if not self.division.has(endpoint.conversation):
                continue
            fresh = [
                number
                for number, row in endpoint.rows.items()
                if seen is not None and (row.xact >= seen.end or row.xact in seen.unfinished)
            ]
            if fresh:
                has_end = any(endpoint.rows[number].part.content is not Content.DATA for number in fresh)
                waiting.append(WaitingConversation(handle, max(fresh), has_end))
        snapshot = Snapshot(tables.next_xact, tuple(tables.unfinished))
        return OutgoingPoll(snapshot, waiting, frozenset(), tables.routes_version, bool(tables.traces))

    @override
    def page(self, after: UUID, count: int) -> list[UUID]:
        mine = {
            handle: endpoint
            for handle, endpoint in self._tables.endpoints.items()
            if self.division.has(endpoint.conversation)
        }
        return sorted(handle for handle, endpoint in mine.items() if endpoint.rows and handle > after)[:count]

    @override
    def endpoints(self, handles: Sequence[UUID]) -> list[RemoteEndpoint]:
        endpoints_by_handle = self._tables.endpoints
        return [
            self._as_remote_endpoint(endpoints_by_handle[handle]) for handle in handles if handle in endpoints_by_handle
        ]

    @override
    def endpoints_of(self, keys: Sequence[tuple[UUID, bool]]) -> list[RemoteEndpoint]:
        return [
            self._as_remote_endpoint(endpoint) for endpoint in self._tables.endpoints.values() if endpoint.key in keys
        ]

    def _as_remote_endpoint(self, endpoint: Endpoint) -> RemoteEndpoint:
        master_key = self._tables.master_key
        return RemoteEndpoint(
            *(endpoint.handle, endpoint.conversation, endpoint.is_initiator, DATABASE_ID, self._tables.broker, True),
            *(
                endpoint.own_service,
                endpoint.far_service,
                endpoint.peer_broker,
                endpoint.routed_broker,
                endpoint.contract,
                endpoint.lifetime,
            ),
            *(
                endpoint.encryption,
                endpoint.priority,
                True,
                endpoint.state.value,
                endpoint.is_remote,
                endpoint.is_acknowledged,
            ),
            *(
                min(endpoint.rows, default=endpoint.send_sequence),
                endpoint.send_sequence,
                endpoint.next,
                endpoint.failure,
            ),
            kept={
                number: _merge_kept(list(steps.values()))
                for number, steps in endpoint.kept.items()
                if number >= endpoint.next
            },
            security=endpoint.security,
            keys=endpoint.keys,
            by_service_master_key=master_key.by_service_master_key if master_key and endpoint.keys else None,
            receive_token=endpoint.token,
        )

    @override
    def groups_of(self, handles: Sequence[UUID]) -> dict[UUID, UUID]:
        return {handle: handle for handle in handles if handle in self._tables.endpoints}

    @override
    def existing_groups(self, groups: Collection[UUID]) -> set[UUID]:
        return set(groups) & self._tables.endpoints.keys()

    # ---------------------------------------------------------------- routing

    def _local_services(self, here: LocalInstance) -> LocalTopology:
        tables, broker = self._tables, str(self._tables.broker)
        homes = {
            (service, broker): LocalService(1, QUEUE_ID, DATABASE_ID, True, 1, True, False)
            for service in tables.services
        }
        site = Site(
            {service: [broker] for service in tables.services},
            frozenset({broker}),
            here.addresses,
            here.forwards,
            unreachable=here.unreachable,
        )
        database = Database(DATABASE_ID, tables.routes_version, broker, True, True, ())
        return LocalTopology(site, [database], homes, 0.0)

    @override
    def route(self, departures: Sequence[RemoteEndpoint], here: LocalInstance) -> dict[UUID, Decision]:
        routes = self._tables.routes
        return route_departures(departures, self._local_services(here), {DATABASE_ID: routes}, routes, self._clock())

    @override
    def route_arrivals(
        self, headers: Sequence[Header], here: LocalInstance, may_ask: Callable[[int, Ask], bool]
    ) -> list[Decision]:
        return route_headers(headers, self._local_services(here), self._tables.routes, self._clock())

    @override
    def site(self) -> LocalTopology:
        return self._local_services(LocalInstance())

    @override
    def routes(self, located: LocalTopology, database: Database) -> RoutingTable:
        return self._tables.routes

    @override
    def ask(self, database_id: int, missing: Ask) -> None:
        raise AssertionError("no route leads to a dynamic routing service")

    @override
    def known_pairs(self, pairs: Iterable[Elsewhere]) -> dict[Elsewhere, KnownTimeline]:
        kept = {pair: KnownTimeline(row.system, row.timeline, row.evidence) for pair, row in self._tables.pairs.items()}
        return {pair: kept.get(pair, KnownTimeline()) for pair in pairs}

    @override
    def find_routed_pairs(self) -> list[Elsewhere]:
        return [pair for pair, row in self._tables.pairs.items() if self._tables.leads_to(row)]

    @override
    def save_pairs(self, rows: Sequence[StoredPair]) -> None:
        for row in filter(self._tables.leads_to, rows):
            address, mirror = parse_address(row.address), parse_address(row.mirror_address)
            assert address is not None
            self._change(self._tables.pairs, Elsewhere(address, mirror))
            before = self._tables.pairs.get(Elsewhere(address, mirror))
            if before is not None and before.system == row.system and before.timeline > row.timeline:
                row = row._replace(timeline=before.timeline, evidence=before.evidence)
            self._tables.pairs[Elsewhere(address, mirror)] = row

    @override
    def claim(self, claims: Mapping[UUID, Claimed]) -> set[UUID]:
        claimed = set()
        for handle, how in claims.items():
            if (endpoint := self._to_write(handle)) is not None:
                endpoint.is_remote, endpoint.routed_broker = True, how.broker
                endpoint.security = endpoint.security or how.security
                claimed.add(handle)
        return claimed

    # ---------------------------------------------------------------- outgoing messages

    @override
    def read(self, expected: dict[UUID, ReadRequest], longest: int) -> dict[UUID, OutgoingMessages]:
        found = {}
        for handle, reading in expected.items():
            endpoint = self._tables.endpoints.get(handle)
            rows = {} if endpoint is None else endpoint.rows
            numbers = sorted(number for number in rows if number >= reading.first)
            sizes: list[int] = []
            parts: list[Part] = []
            for number in numbers[: reading.most]:
                if sum(sizes) >= reading.room:
                    break
                part = rows[number].part
                sizes.append(len(part.body or b""))
                parts.append(part if sizes[-1] <= longest else Part(part.message_type, part.content, None, part.token))
            if parts:
                found[handle] = OutgoingMessages(tuple(numbers[: len(parts)]), tuple(sizes), parts)
        return found

    def _part(self, handle: UUID, number: int) -> Part | None:
        endpoint = self._tables.endpoints.get(handle)
        row = None if endpoint is None else endpoint.rows.get(number)
        return None if row is None else row.part

    @override
    def read_fragment(self, handle: UUID, number: int, offset: int, length: int) -> bytes | None:
        part = self._part(handle, number)
        return None if part is None or part.body is None else part.body[offset : offset + length]

    @override
    def read_token(self, handle: UUID, number: int) -> bytes | None:
        part = self._part(handle, number)
        return None if part is None else part.token

    @override
    def read_traces(self, header: Header, first: int, last: int) -> list[tuple[int, bytes]]:
        key = header.conversation_id, header.is_from_initiator
        numbers = [number for number in range(first, last + 1) if (*key, number) in self._tables.traces]
        return [(number, self._tables.traces[*key, number]) for number in numbers]

    @override
    def acknowledge(self, news: Mapping[UUID, Acknowledged]) -> AcknowledgedEndpoints:
        done, over = self._missing_handles(news), []
        for handle, event in news.items():
            if (endpoint := self._to_write(handle)) is None:
                continue
            done.append(handle)
            acknowledged = [endpoint.rows.pop(number) for number in list(endpoint.rows) if number < event.below]
            ends = any(row.part.content is not Content.DATA for row in acknowledged)
            if not endpoint.is_acknowledged:
                endpoint.is_acknowledged, endpoint.peer_broker = True, str(event.peer_broker)
            if ends and endpoint.state is EndpointState.DISCONNECTED_OUTBOUND:
                self._tables.close(endpoint)
                over.append(handle)
        return AcknowledgedEndpoints(done, over)

    @override
    def acknowledge_traces(self, below: Mapping[UUID, int]) -> None:
        for handle, number in below.items():
            if endpoint := self._tables.endpoints.get(handle):
                for key in [key for key in self._tables.traces if key[:2] == endpoint.key and key[2] < number]:
                    self._change(self._tables.traces, key)
                    del self._tables.traces[key]

    @override
    def fail(self, failures: Mapping[UUID, BrokerFailure]) -> list[UUID]:
        done = self._missing_handles(failures)
        for handle, failure in failures.items():
            if (endpoint := self._to_write(handle)) is None:
                continue
            done.append(handle)
            endpoint.rows.clear()
            if endpoint.state is EndpointState.DISCONNECTED_OUTBOUND:
                self._tables.close(endpoint)
            elif (endpoint.state, Event.ERROR_ARRIVED) in TRANSITIONS:
                endpoint.state = EndpointState.ERROR
                endpoint.queue.append((Content.ERROR, error_body(failure.code, failure.description)))
                self._tables.on_wake()
        return done

    @override
    def diverge(self, diverged: Mapping[UUID, Diverged]) -> list[UUID]:
        done = self.fail({handle: apart.own for handle, apart in diverged.items()})
        for handle in done:
            endpoint = self._tables.endpoints.get(handle)
            if endpoint is not None:
                endpoint.is_remote, far = True, diverged[handle].far
                endpoint.failure = far.code, far.description
        return done

    @override
    def note_old_copy(
        self, endpoint: RemoteEndpoint, peer_broker: UUID | None, own: BrokerFailure, *, is_here: bool
    ) -> None:
        self._tables.old_copies.add((peer_broker, is_here))

    @override
    def set_statuses(self, texts: dict[UUID, str]) -> None:
        for handle, text in texts.items():
            if (endpoint := self._to_write(handle)) is not None:
                for row in endpoint.rows.values():
                    row.status = text

    # ---------------------------------------------------------------- incoming messages

    @override
    def find_place(self, header: Header, pick: Pick) -> TargetLocation | ConversationFailure | Unroutable:
        return locate_target(header, self._local_services(LocalInstance()), self._tables.routes, self._clock(), pick)

    @override
    def new_handle(self) -> UUID:
        return self._tables.draw_handle()

    def _insert_target(self, target: NewTarget) -> None:
        header, opening = target.header, target.opening
        endpoint = Endpoint(
            target.conversation_handle,
            header.conversation_id,
            is_initiator=False,
            own_service=header.to_service,
            far_service=header.from_service,
            contract=opening.contract,
            lifetime=target.lifetime,
            encryption=opening.encryption,
            state=EndpointState.STARTED_INBOUND,
            peer_broker=str(header.from_broker),
            is_remote=True,
            security=target.security,
            keys=target.keys,
        )
        if self._is_open:
            self._before[endpoint.handle] = None
        self._tables.insert(endpoint)

    @override
    def store(
        self, batches: Mapping[UUID, Batch], owners: Mapping[UUID, str], targets: Mapping[UUID, NewTarget]
    ) -> StoreResult:
        made: dict[UUID, CreatedTarget] = {}
        for handle, target in targets.items():
            if self._tables.find((target.header.conversation_id, False)) is None:
                self._insert_target(target)
                shown = self._as_remote_endpoint(self._tables.endpoints[handle])
                made[handle] = CreatedTarget(shown.priority, shown.honors_priority, shown.by_service_master_key)
        result = StoreResult([], [], set(self._missing_handles(batches)), [], {}, set(), made)
        for handle, batch in batches.items():
            if handle in result.gone:
                continue
            endpoint = self._to_write(handle)
            if endpoint is None:
                result.postponed.append(handle)
                continue
            result.stored.append(handle)
            if endpoint.state is EndpointState.CLOSED:
                result.closed.append(handle)
            if endpoint.failure is not None:
                result.failures[handle] = ConversationFailure(*endpoint.failure)
            if self._store(endpoint, batch):
                result.queues.add(QUEUE_ID)
            if any(isinstance(step, Keep) for step in batch.steps):
                endpoint.kept_owner = owners.get(handle, "")
        return result

    @override
    def unfinished(self, handles: Sequence[UUID] | None = None) -> list[Stored]:
        tables, found = self._tables, []
        for handle, endpoint in tables.endpoints.items():
            kept = {
                number: _merge_kept(list(steps.values()))
                for number, steps in endpoint.kept.items()
                if number >= endpoint.next
            }
            is_asked = handles is None or handle in handles
            if not kept or not is_asked or not self.division.has(endpoint.conversation):
                continue
            current, limits = kept.pop(endpoint.next, None), tables.limits
            begun = Begun(
                endpoint.next,
                0 if current is None else current.fragments * limits.fragment_size,
                0 if current is None else current.cost(limits) + limits.unfinished_cost,
                sum(early.cost(limits) + limits.unfinished_cost for early in kept.values()),
            )
            found.append(Stored(handle, endpoint.kept_owner, begun, 0.0))
        return found

    @override
    def drop_unfinished(self, handles: Sequence[UUID]) -> list[UUID]:
        dropped = []
        for handle in handles:
            if (endpoint := self._to_write(handle)) is not None:
                endpoint.kept = {number: steps for number, steps in endpoint.kept.items() if number < endpoint.next}
                sent = endpoint.conversation, not endpoint.is_initiator
                for key in [key for key in self._tables.traces if key[:2] == sent and key[2] >= endpoint.next]:
                    self._change(self._tables.traces, key)
                    del self._tables.traces[key]
                dropped.append(handle)
        return dropped

    @override
    def drop_openings(self, handles: Sequence[UUID]) -> list[UUID]:
        tables, dropped = self._tables, []
        for handle in handles:
            endpoint = self._to_write(handle)
            if endpoint is None or endpoint.is_initiator or endpoint.state is not EndpointState.STARTED_INBOUND:
                continue
            if endpoint.is_remote and endpoint.next == 0 and not endpoint.kept:
                tables.removed.append(tables.endpoints.pop(handle))
                dropped.append(handle)
        return sorted(dropped)

    def _store(self, endpoint: Endpoint, batch: Batch) -> bool:
        """Store a batch. Returns True if the application has something to receive."""
        if batch.reached != batch.expected:
            if batch.expected != endpoint.next:
                raise InstanceError("Another process stores messages of the same conversations.")
            endpoint.next, endpoint.token = batch.reached, batch.token
        if endpoint.state is EndpointState.CLOSED:  # a closed endpoint accepts no messages; its fragments were deleted
            return False
        self._keep(endpoint, batch)
        is_new, found = False, self._in_order(endpoint, batch)
        for step in batch.steps:
            if isinstance(step, Discard):
                for number in [number for number in endpoint.kept if step.first <= number < step.below]:
                    del endpoint.kept[number]
        for content, body in found:
            takes = _BEGUN if content is Content.DATA else _LIVE
            if endpoint.state in takes:
                endpoint.queue.append((content, body))
                is_new = True
                if endpoint.state is EndpointState.STARTED_INBOUND:
                    endpoint.state = EndpointState.CONVERSING
            if content is not Content.DATA:
                self._take_end(endpoint, content)
                break
        return is_new

    @staticmethod
    def _keep(endpoint: Endpoint, batch: Batch) -> None:
        for step in batch.steps:
            if isinstance(step, Keep):
                fragments = endpoint.kept.setdefault(step.number, {})
                if step.fragment in fragments:
                    raise GuaranteeBroken(f"fragment {step.fragment} of message {step.number} is kept twice")
                fragments[step.fragment] = step

    @staticmethod
    def _in_order(endpoint: Endpoint, batch: Batch) -> list[tuple[Content, bytes]]:
        """Return the messages that the batch completes, in order."""
        found: list[tuple[Content, bytes]] = []
        new = {step.number: step for step in batch.steps if isinstance(step, Keep)}
        for step in batch.steps:
            if isinstance(step, Deliver):
                found += [(part.content, part.body or b"") for part in step.parts]
            elif isinstance(step, Complete):
                fragments = endpoint.kept.pop(step.number, {})
                ordered = [fragments[index].part for index in sorted(fragments)] or [new[step.number].part]
                body = b"".join(part.body or b"" for part in ordered)
                found.append((ordered[0].content, b"" if ordered[0].content is Content.END else body))
        return found

    def _take_end(self, endpoint: Endpoint, content: Content) -> None:
        event = Event.END_DIALOG_ARRIVED if content is Content.END else Event.ERROR_ARRIVED
        after = TRANSITIONS.get((endpoint.state, event), endpoint.state)
        if event is Event.ERROR_ARRIVED and (endpoint.state, event) in TRANSITIONS:
            endpoint.rows.clear()
        if after is REMOVED:
            self._tables.close(endpoint)
        else:
            endpoint.state = after

    @override
    def store_traces(self, traced: Sequence[MessageContext]) -> None:
        for trace in traced:
            key = trace.conversation_id, trace.is_from_initiator, trace.number
            self._change(self._tables.traces, key)
            self._tables.traces[key] = trace.context

    @override
    def wake(self, queues: Collection[int]) -> None:
        self._tables.on_wake()

    # ---------------------------------------------------------------- dialog security

    @override
    def find_beginnings(self, handles: Sequence[UUID]) -> list[UndecidedDialog]:
        tables, found = self._tables, []
        for handle in handles:
            endpoint = tables.endpoints.get(handle)
            if endpoint is not None and endpoint.is_initiator and endpoint.security is None:
                binding, user = tables.bindings.get(endpoint.far_service, (Binding.NO_BINDING, None))
                found.append(
                    UndecidedDialog(
                        handle, DATABASE_ID, "sim", endpoint.encryption, binding, DBO_ID, user, tables.master_key
                    )
                )
        return found

    @override
    def find_certificates_of(self, owners: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[UserCertificate]]:
        return {
            owner: [certificate for certificate in self._tables.certificates if certificate.owner_id == owner[1]]
            for owner in owners
        }

    @override
    def find_certificates(self, database_id: int, thumbprints: Sequence[bytes]) -> dict[bytes, UserCertificate]:
        return {
            certificate.facts.thumbprint: certificate
            for certificate in self._tables.certificates
            if certificate.facts.thumbprint in thumbprints
        }

    @override
    def find_master_key(self, database_id: int) -> MasterKey | None:
        return self._tables.master_key

    @override
    def ask_for_binding(self, database_id: int, service: str) -> bool:
        return False

    @override
    def save_keys(self, keys: Mapping[UUID, Keys]) -> None:
        for handle, new_keys in keys.items():
            if (endpoint := self._own(handle)) is not None and endpoint.keys is None:
                endpoint.keys = new_keys

    @override
    def save_exchange(self, handle: UUID, exchange: bytes) -> None:
        if (endpoint := self._own(handle)) is not None and endpoint.keys is not None:
            endpoint.keys = endpoint.keys._replace(exchange=exchange)

    @override
    def save_second_keys(self, keys: Mapping[UUID, tuple[UUID, bytes]]) -> None:
        for handle, (key_id, key) in keys.items():
            if (
                (endpoint := self._own(handle)) is not None
                and endpoint.keys is not None
                and endpoint.keys.second_key is None
            ):
                endpoint.keys = endpoint.keys._replace(second_key_id=key_id, second_key=key)

    def _own(self, handle: UUID) -> Endpoint | None:
        """Return an endpoint without a lock, to write columns that no other session writes."""
        endpoint = self._tables.endpoints.get(handle)
        if endpoint is not None and self._is_open and handle not in self._before:
            self._before[handle] = endpoint.twin()
        return endpoint

    @override
    def find_broker(self, certificate_id: int, broker: UUID) -> KnownBroker:
        return self._tables.brokers.get((certificate_id, broker), KnownBroker())

    @override
    def save_broker(self, certificate_id: int, broker: UUID, capabilities: Sequence[str], ahead_until: int) -> None:
        known, brokers = self.find_broker(certificate_id, broker), self._tables.brokers
        self._change(brokers, (certificate_id, broker))
        brokers[certificate_id, broker] = KnownBroker(
            known.capabilities | {*capabilities}, max(known.ahead_until, ahead_until)
        )

    @override
    def find_target(self, home: LocalService) -> Target:
        return Target(home.database_id, Securable(Kind.SERVICE, 1, DBO_ID, ""), Securable(Kind.QUEUE, 1, DBO_ID, ""))

    @override
    def refused_keeper(self, target: Target, principal_id: int) -> BrokerError | None:
        return None

    @override
    def refused_sender(self, target: Target, principal_id: int) -> BrokerError | None:
        return None

    @override
    def refused_owner(self, target: Target) -> BrokerError | None:
        return None


def _merge_kept(steps: list[Keep]) -> Kept:
    first = steps[0]
    kept = Kept(first.fragments, (), 0, first.part.content, first.part.token)
    for step in steps:
        kept = kept.with_fragment(step.fragment, len(step.part.body or b""))
    return kept
