"""Random operations on the store of the simulator and on PostgreSQL have the same results."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.broker.postgres_store import PostgresStore
from servicebroker.broker.store_operations import Store
from servicebroker.engine.remote.departing import Claimed, ReadRequest
from servicebroker.engine.remote.mirrored_pairs import StoredPair
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.remote.remote_opening import NewTarget, TargetLocation, lifetime_of
from servicebroker.engine.security.known_brokers import MAX_OF_CERTIFICATE, KnownBroker
from servicebroker.model.errors import InstanceError
from servicebroker.model.messages import error_body
from servicebroker.model.security.dialog_security import Security
from servicebroker.model.states import EndpointState
from servicebroker.protocol.dialog import Acknowledged, Diverged
from servicebroker.protocol.envelope import BrokerFailure, Content, Header, Kind, Opening, Part
from servicebroker.protocol.incoming import Batch, Begun, Complete, Deliver, Discard, Incoming, Keep, Progress
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.protocol.routing import Address, Elsewhere, Route
from servicebroker.protocol.unfinished import Stored
from servicebroker.store.connection import connect
from servicebroker_lab.simulation.store import Endpoint, MemoryStore, Tables
from support import CONTRACT, ORDER, ORDERS, REPLY, STOCK, Clock, query, standard_database

FAR = UUID(int=7)  # the broker identifier of the peers
HANDLE_COUNT = 6  # open endpoints at a time
_READS = (EndpointState.STARTED_INBOUND, EndpointState.CONVERSING, EndpointState.DISCONNECTED_INBOUND)


class Failure(Exception):
    """Makes a transaction fail."""


class StorePair:
    """An instance in PostgreSQL and its double in memory, with operations that run on both."""

    def __init__(self, url: str, rng: random.Random) -> None:
        moment = Clock()()
        self.rng = rng
        self.instance = sb.open(url, clock=lambda: moment, upkeep=None)
        self.database = standard_database(self.instance)
        self.database.drop_service(STOCK)
        self.database.create_route("ToStock", service_name=STOCK, address="TCP://east:4022")
        self.connection = connect(url)
        self.real = PostgresStore(self.connection, lambda: moment)
        ((guid, self.queue),) = query(
            self.database,
            "select service_broker_guid, queue_id from servicebroker.services join servicebroker.databases "
            "using (database_id) where services.name = %s",
            ORDERS,
        )
        self.tables = Tables(guid, rng)
        self.tables.services.add(ORDERS)
        self.double = MemoryStore(self.tables, lambda: moment)
        self.snapshots: tuple[Any, Any] = (self.real.look(None).snapshot, self.double.look(None).snapshot)

    def close(self) -> None:
        self.connection.close()
        self.instance.close()

    @property
    def handles(self) -> list[UUID]:
        return list(self.tables.endpoints)

    def choose_handles(self) -> list[UUID]:
        """Choose random endpoints, perhaps with one that was removed."""
        removed = [endpoint.handle for endpoint in self.tables.removed[-1:]]
        return [handle for handle in [*self.handles, *removed] if self.rng.random() < 0.5]

    def _choose_known_handles(self) -> list[UUID]:
        """Choose random handles, without conversations that no peer knows yet."""
        endpoints = self.tables.endpoints
        return [handle for handle in self.choose_handles() if handle not in endpoints or endpoints[handle].is_remote]

    def run_on_both(self, do: Callable[[Store], Any]) -> Any:
        """Run an operation on both stores, and check that the results are the same, or that both fail."""
        results = []
        for store in (self.real, self.double):
            try:
                results.append(_plain(do(store)))
            except InstanceError:
                results.append("refused")
        assert results[0] == results[1]
        return results[0]

    # ---------------------------------------------------------------- operations of applications

    def begin(self) -> None:
        handle = self.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
        (row,) = self.real.endpoints([handle])
        self.tables.insert(
            Endpoint(
                *(handle, row.conversation_id, True, row.own_service, row.far_service, row.contract, row.lifetime),
                priority=row.priority,
            )
        )

    def send(self) -> None:
        endpoint = self._pick_endpoint(
            lambda endpoint: endpoint.is_open and (endpoint.is_initiator or endpoint.is_remote)
        )
        if endpoint is not None:
            name, body = ORDER if endpoint.is_initiator else REPLY, self.rng.randbytes(self.rng.choice((0, 3, 9)))
            self.database.send(endpoint.handle, name, body)
            self._copy(endpoint, Content.DATA, name, body)

    def end(self) -> None:
        endpoint = self._pick_endpoint(
            lambda endpoint: endpoint.is_remote and endpoint.is_open and endpoint.send_sequence > 0
        )
        if endpoint is not None:
            error = self.rng.choice((None, (1, "why")))
            self.database.end_conversation(endpoint.handle, error=error)
            content = Content.ERROR if error else Content.END
            self._copy(endpoint, content, "", error_body(*error) if error else b"")

    def close_conversation(self) -> None:
        endpoint = self._pick_endpoint(
            lambda endpoint: endpoint.state in (EndpointState.DISCONNECTED_INBOUND, EndpointState.ERROR)
        )
        if endpoint is not None:
            self.database.end_conversation(endpoint.handle)
            self.tables.end(endpoint)

    def route(self, row: StoredPair) -> None:
        """Create a route to the mirrored pair of this row."""
        addresses = {"address": row.address, "mirror_address": row.mirror_address}
        self.database.create_route("pair", service_name="Nobody", broker_instance=FAR, **addresses)
        self.tables.set_routes([Route("pair", "Nobody", str(FAR), None, *addresses.values())])

    def _copy(self, one: Endpoint, content: Content, name: str, body: bytes) -> None:
        """Write the message of a SEND or END into the double, with the token that PostgreSQL has drawn."""
        number = one.send_sequence
        part = self.real.read({one.handle: ReadRequest(number, 1, 1)}, 100)[one.handle].parts[0]
        assert part.token is not None
        xact = self.tables.begin()
        assert self.tables.send(one, content, name or part.message_type, body, part.token, xact) == number
        self.tables.commit(xact)
        for sequence_number, status in self.read_queues()[0].get(one.handle, {}).items():
            one.rows[sequence_number].status = status  # set by SEND, which the double does not simulate

    def _pick_endpoint(self, is_suitable: Callable[[Endpoint], bool]) -> Endpoint | None:
        suitable = [endpoint for endpoint in self.tables.endpoints.values() if is_suitable(endpoint)]
        return self.rng.choice(suitable) if suitable else None

    # ---------------------------------------------------------------- operations of rounds

    def open_target(self, *, is_empty: bool = False) -> None:
        conversation = UUID(int=self.rng.getrandbits(128))
        header = Header(
            *(conversation, True, Kind.RUN, False, ORDERS, None, STOCK, FAR, 0, 0, 1, None),
            Opening(CONTRACT, 3600, False),
        )
        place = self.real.find_place(header, lambda count: 0)
        assert isinstance(place, TargetLocation)
        now = self.instance.clock()
        handle = self.real.new_handle()
        target = NewTarget(handle, header, place.home, place.broker, lifetime_of(header, now), "N")
        choices = (None, self._first_batch(), self._first_batch(is_whole=False))
        batch = None if is_empty else self.rng.choice(choices)
        batches = {} if batch is None else {handle: batch}
        self.run_on_both(lambda store: _store_in_transaction(store, batches, {handle: target}))
        (created,) = self.real.endpoints([handle])
        state = EndpointState.CONVERSING if batch and batch.reached else EndpointState.STARTED_INBOUND
        reached = created._replace(receive_sequence=0, receive_token=None, kept={}, state="SI")
        assert created.state == state
        assert reached == target.endpoint._replace(honors_priority=created.honors_priority)
        another = target._replace(conversation_handle=self.real.new_handle())
        # the target exists already
        self.run_on_both(lambda store: _store_in_transaction(store, {}, {another.conversation_handle: another}))

    def _first_batch(self, *, is_whole: bool = True) -> Batch:
        """Return the first two messages of a conversation, or one fragment of the first."""
        incoming = Incoming(Progress(0, {}, None, None, LIMITS))
        for number in (0, 1) if is_whole else ():
            incoming.arrived(number, 0, 1, Part(ORDER, Content.DATA, b"first", number.to_bytes(8, "big")))
        if not is_whole:
            incoming.arrived(0, 0, 3, Part(ORDER, Content.DATA, bytes(LIMITS.fragment_size), bytes(8)))
        batch = incoming.batch()
        assert batch is not None
        return batch

    def claim(self) -> None:
        claimed = [
            one for one in self.choose_handles() if one not in self.handles or self.tables.endpoints[one].send_sequence
        ]
        claims = {
            handle: Claimed(self.rng.choice((None, str(FAR))), self.rng.choice((*Security,))) for handle in claimed
        }
        self.run_on_both(lambda store: store.claim(claims))

    def acknowledge(self) -> None:
        news = {}
        for handle in self._choose_known_handles():
            endpoint = self.tables.endpoints.get(handle)
            news[handle] = Acknowledged(self.rng.randint(0, endpoint.send_sequence if endpoint else 0), FAR)
        settled = self.run_on_both(lambda store: store.acknowledge(news))
        assert set(settled[0]) == news.keys()

    def fail(self) -> None:
        failures = {handle: BrokerFailure(-8462, "gone") for handle in self._choose_known_handles()[:1]}
        self.run_on_both(lambda store: store.fail(failures))

    def diverge(self) -> None:
        diverged = {
            handle: Diverged(self.rng.random() < 0.5, "it differs") for handle in self._choose_known_handles()[:1]
        }
        self.run_on_both(lambda store: store.diverge(diverged))

    def store(self) -> None:
        batches = {
            handle: batch for handle in self._choose_known_handles() if (batch := self._batch(handle)) is not None
        }
        if self.rng.random() < 0.3:  # a conversation may be closed between ordering and storing
            self.close_conversation()

        self.run_on_both(lambda store: _store_in_transaction(store, batches, {}))

    def _batch(self, handle: UUID) -> Batch | None:
        """Return a batch that a peer may have sent, sometimes with a wrong count."""
        (found,) = self.real.endpoints([handle]) or [None]
        if found is None:
            return Batch(0, 0, [], None)
        incoming = Incoming(Progress(found.receive_sequence, dict(found.kept), None, found.receive_token, LIMITS))
        name = REPLY if found.is_initiator else ORDER
        for _ in range(self.rng.randint(1, 6)):
            number = found.receive_sequence + self.rng.randint(0, 3)
            content = self.rng.choice((*[Content.DATA] * 8, Content.END, Content.ERROR))
            token = number.to_bytes(8, "big")
            if content is Content.DATA and number % 2:
                fragment = self.rng.randrange(3)
                incoming.arrived(
                    number, fragment, 3, Part(name, content, (b"%04d" % fragment) * (LIMITS.fragment_size // 4), token)
                )
            else:
                body = error_body(1, "why") if content is Content.ERROR else b"" if content is Content.END else b"abc"
                incoming.arrived(number, 0, 1, Part(name, content, body or None, token))
        batch = incoming.batch()
        return batch._replace(expected=batch.reached + 1) if batch and self.rng.random() < 0.02 else batch

    def set_statuses(self) -> None:
        texts = {handle: self.rng.choice(("", "it waits")) for handle in self.choose_handles()}
        self.run_on_both(lambda store: store.set_statuses(texts))

    def unfinished(self) -> None:
        handles = self.rng.choice((None, self.choose_handles()))

        def found(store: Store) -> list[Any]:
            rows = store.unfinished() if handles is None else store.unfinished(handles)
            return sorted(one._replace(idle=0.0) for one in rows)

        self.run_on_both(found)
        if self.rng.random() < 0.2:
            choose_handles = self.choose_handles()
            self.run_on_both(
                lambda store: sorted(store.drop_unfinished([one for one in choose_handles if one in self.handles]))
            )

    def read(self) -> None:
        expected = {
            handle: ReadRequest(self.rng.randint(0, 3), self.rng.randint(1, 4), self.rng.choice((1, 8, 100)))
            for handle in self.choose_handles()
        }
        self.run_on_both(lambda store: store.read(expected, 4))
        for handle in self.choose_handles()[:3]:
            number = self.rng.randint(0, 3)
            self.run_on_both(lambda store, handle=handle, number=number: store.read_token(handle, number))
            self.run_on_both(lambda store, handle=handle, number=number: store.read_fragment(handle, number, 1, 4))

    def page(self) -> None:
        after = self.rng.choice([UUID(int=0), *self.handles])
        self.run_on_both(lambda store: store.page(after, 3))

    def look(self) -> None:
        looks = self.real.look(self.snapshots[0]), self.double.look(self.snapshots[1])
        assert _plain(looks[0].waiting) == _plain(looks[1].waiting)
        self.snapshots = looks[0].snapshot, looks[1].snapshot

    def round(self) -> None:
        """Run several operations in one transaction, which may fail."""
        fails = self.rng.random() < 0.4
        before = self.read_queues()
        try:
            with self.real.transaction(), self.double.transaction():
                for _ in range(self.rng.randint(1, 4)):
                    self.rng.choice((self.claim, self.acknowledge, self.fail, self.set_statuses, self.read))()
                if fails:
                    raise Failure
        except Failure:
            assert self.read_queues() == before

    # ---------------------------------------------------------------- comparison

    def check(self) -> None:
        handles = [*self.handles, *(one.handle for one in self.tables.removed[-3:])]
        self.run_on_both(lambda store: [_comparable(one) for one in store.endpoints(handles)])
        self.run_on_both(lambda store: {one.conversation_handle for one in store.endpoints_of(self._keys())})
        queues = self.read_queues()
        for one in self.tables.endpoints.values():
            waits = {number: row.status for number, row in one.rows.items()}
            assert queues[0].get(one.handle, {}) == waits
            if one.state in (*_READS, EndpointState.ERROR):
                assert queues[1].get(one.handle, []) == [(c is Content.DATA, body) for c, body in one.queue]

    def _keys(self) -> list[tuple[UUID, bool]]:
        return [endpoint.key for endpoint in self.tables.endpoints.values()]

    def read_queues(self) -> tuple[dict[UUID, Any], dict[UUID, Any]]:
        """Return the contents of the transmission queue and of the queue."""
        waits: dict[UUID, Any] = {}
        for handle, number, status in query(
            self.database,
            "select conversation_handle, message_sequence_number, transmission_status "
            "from servicebroker.transmission_queue",
        ):
            waits.setdefault(handle, {})[number] = status
        queue: dict[UUID, Any] = {}
        for handle, validation, body in query(
            self.database,
            "select conversation_handle, validation::text, message_body "
            f"from servicebroker.queue_{self.queue} order by queuing_order",
        ):
            queue.setdefault(handle, []).append((validation not in "EX", bytes(body or b"")))
        return waits, queue


def _store_in_transaction(store: Store, batches: dict[UUID, Batch], targets: dict[UUID, NewTarget]) -> Any:
    with store.transaction():
        result = store.store(batches, {handle: f"owner of {handle}" for handle in batches}, targets)
    created = {handle: one.priority for handle, one in result.made.items()}
    return result._replace(queues={0} if result.queues else set(), made=created)


def _comparable(one: RemoteEndpoint) -> list[str]:
    read_queues = one._replace(database_id=0, honors_priority=False, kept=dict(sorted(one.kept.items())))._asdict()
    return [f"{name}: {value}" for name, value in read_queues.items()]


def _plain(result: Any) -> Any:
    """Sort lists, because some results of PostgreSQL have no defined order."""
    if isinstance(result, list):
        return sorted(map(_plain, result), key=repr)
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return tuple(map(_plain, result))
    if isinstance(result, tuple):
        return tuple(map(_plain, result))
    return result


@pytest.fixture
def store_pair(make_instance_url: Callable[..., str], seeded_random: random.Random) -> Iterator[StorePair]:
    with closing(StorePair(make_instance_url(1), seeded_random)) as created:
        yield created


def test_both_stores_have_the_same_results(
    make_instance_url: Callable[..., str], seeded_random: random.Random, request: pytest.FixtureRequest
) -> None:
    """Each instance runs at most 500 operations, because ended conversations pile up."""
    remaining = request.config.option.store_operations
    while remaining > 0:
        with closing(StorePair(make_instance_url(1), seeded_random)) as both:
            _operate(both, min(remaining, 500))
        remaining -= 500


def _operate(store_pair: StorePair, count: int) -> None:
    actions = [
        store_pair.send,
        store_pair.store,
        store_pair.claim,
        store_pair.acknowledge,
        store_pair.end,
        store_pair.close_conversation,
        store_pair.fail,
    ]
    actions += [
        store_pair.diverge,
        store_pair.set_statuses,
        store_pair.read,
        store_pair.page,
        store_pair.look,
        store_pair.round,
        store_pair.unfinished,
    ]
    weights = [8, 8, 3, 4, 2, 4, 1, 1, 2, 2, 1, 2, 3, 2]
    for _ in range(count):
        if len([endpoint for endpoint in store_pair.tables.endpoints.values() if not endpoint.is_over]) < HANDLE_COUNT:
            store_pair.rng.choice((store_pair.begin, store_pair.open_target))()
        store_pair.rng.choices(actions, weights)[0]()
        store_pair.check()


def test_pages_are_sorted_in_every_plan(store_pair: StorePair) -> None:
    """PostgreSQL may use a hash join with the delayed messages, which changes the order of rows."""
    store_pair.connection.execute("set enable_nestloop = off; set enable_mergejoin = off")
    for _ in range(20):
        store_pair.begin()
        store_pair.database.send(store_pair.handles[-1], ORDER, b"x")
    waiting = sorted(store_pair.handles)
    assert store_pair.real.page(UUID(int=0), 3) == waiting[:3]
    assert store_pair.real.page(waiting[4], 50) == waiting[5:]


def test_parts_kept_for_a_target_that_closes_are_dropped(store_pair: StorePair) -> None:
    """Until the daemon stores its batch, it takes the endpoint for open and its kept parts for stored."""
    store_pair.open_target(is_empty=True)
    (endpoint,) = store_pair.tables.endpoints.values()
    whole, half = (Part(ORDER, Content.DATA, b"abcd", bytes([number] * 8)) for number in range(2))
    kept = Batch(0, 0, [Keep(0, 0, 2, half), Keep(1, 0, 1, whole)])
    assert store_pair.run_on_both(
        lambda store: store.store({endpoint.handle: kept}, {endpoint.handle: "shop"}, {}).stored
    ) == [endpoint.handle]
    found = store_pair.run_on_both(lambda store: [stored._replace(idle=0.0) for stored in store.unfinished()])
    assert found == _plain([Stored(endpoint.handle, "shop", Begun(0, 2 * LIMITS.fragment_size, 2_004, 2_004), 0.0)])
    store_pair.run_on_both(lambda store: store.diverge({endpoint.handle: Diverged(False, "it differs")}))
    store_pair.database.end_conversation(endpoint.handle)
    store_pair.tables.end(endpoint)
    late = Batch(0, 2, [Keep(0, 1, 2, half), Complete(0), Complete(1)], b"t" * 8)
    with store_pair.real.transaction(), store_pair.double.transaction():
        real, double = (store.store({endpoint.handle: late}, {}, {}) for store in (store_pair.real, store_pair.double))
    assert real.stored == double.stored == real.closed == double.closed == [endpoint.handle]
    assert not real.queues
    assert not double.queues
    store_pair.check()


@pytest.mark.parametrize("is_off", [False, True], ids=["enabled", "disabled"])
def test_a_message_completed_before_an_error_keeps_its_body(store_pair: StorePair, *, is_off: bool) -> None:
    """The Error drops only the parts of later messages."""
    store_pair.open_target(is_empty=True)
    (endpoint,) = store_pair.tables.endpoints.values()
    ((queue,),) = query(
        store_pair.database, "select name from servicebroker.queues where queue_id = %s", store_pair.queue
    )
    if is_off:
        store_pair.database.alter_queue(queue, status=False)
    parts = [Part(ORDER, Content.DATA, b"%d" % number, bytes([number] * 8)) for number in range(3)]
    error = Part("", Content.ERROR, error_body(1, "why"), b"e" * 8)
    begun = Batch(0, 0, [Keep(0, 0, 2, parts[0])])
    ended = Batch(
        0, 6, [Keep(0, 1, 2, parts[1]), Complete(0), Keep(3, 0, 2, parts[2]), Discard(1, 5), Deliver(5, (error,))]
    )
    for batch in (begun, ended):
        with store_pair.real.transaction():
            assert store_pair.real.store({endpoint.handle: batch}, {}, {}).stored == [endpoint.handle]
    if is_off:
        store_pair.database.alter_queue(queue, status=True)
    assert [body for is_data, body in store_pair.read_queues()[1][endpoint.handle] if is_data] == [b"01"]


def test_known_capabilities_of_a_broker_only_grow(store_pair: StorePair) -> None:
    store_pair.database.create_master_key("correct horse")
    store_pair.database.create_certificate("Peer")
    ((number,),) = query(store_pair.database, "select certificate_id from sys.certificates where name = 'Peer'")
    nobody = KnownBroker()
    assert store_pair.run_on_both(lambda store: store.find_broker(number, FAR)) == nobody
    for capabilities, ahead, expected in (
        (["a"], 0, KnownBroker(frozenset("a"), 0)),
        ([], 7, KnownBroker(frozenset("a"), 7)),
        (["b", "a"], 5, KnownBroker(frozenset("ab"), 7)),
    ):
        store_pair.run_on_both(lambda store: store.save_broker(number, FAR, capabilities, ahead))  # noqa: B023
        assert store_pair.run_on_both(lambda store: store.find_broker(number, FAR)) == expected
        assert store_pair.run_on_both(lambda store: store.find_broker(number, UUID(int=1))) == nobody
    store_pair.database.drop_certificate("Peer")
    store_pair.real.save_broker(number, FAR, ["a"], 0)  # as a round that has read the certificate before
    assert store_pair.real.find_broker(number, FAR) == nobody


def test_a_certificate_is_known_as_at_most_a_thousand_brokers(store_pair: StorePair) -> None:
    store_pair.database.create_master_key("correct horse")
    store_pair.database.create_certificate("Peer")
    ((number,),) = query(store_pair.database, "select certificate_id from sys.certificates where name = 'Peer'")
    query(
        store_pair.database,
        "insert into servicebroker.known_brokers select %s, gen_random_uuid(), '{}', 0 "
        f"from generate_series(1, {MAX_OF_CERTIFICATE - 1}) returning 1",
        number,
    )
    for broker, is_known in ((FAR, True), (UUID(int=1), False), (FAR, True)):
        store_pair.real.save_broker(number, broker, ["a"], 0)
        assert bool(store_pair.real.find_broker(number, broker).capabilities) is is_known


def test_the_highest_timeline_of_a_pair_is_kept(store_pair: StorePair) -> None:
    """Shares may hear of a promotion at different times. For a pair without a route nothing is stored."""
    pair = Elsewhere(Address("one", 4022), Address("two", 4022))
    first = StoredPair("TCP://one:4022", "TCP://two:4022", None, "7", 3, b"signed", "The first.")
    unrouted = first._replace(mirror_address="TCP://three:4022")
    store_pair.route(first)

    def save_and_read(*rows: StoredPair) -> list[object]:
        for store in (store_pair.real, store_pair.double):
            with store.transaction():
                store.save_pairs([*rows, unrouted])
            assert store.find_routed_pairs() == [pair]
        return [store.known_pairs([pair])[pair] for store in (store_pair.real, store_pair.double)]

    late = first._replace(timeline=2, evidence=b"older", explanation="Late.")
    other_system = late._replace(system="8")
    assert save_and_read(first) == [KnownTimeline("7", 3, b"signed")] * 2
    assert save_and_read(late) == [KnownTimeline("7", 3, b"signed")] * 2
    assert save_and_read(other_system) == [KnownTimeline("8", 2, b"older")] * 2


def test_a_pair_saved_while_its_route_is_dropped_is_not_read(store_pair: StorePair) -> None:
    row = StoredPair("TCP://one:4022", "TCP://two:4022", None, "7", 3, b"signed", "It was.")
    store_pair.route(row)
    with store_pair.real.transaction():
        store_pair.real.save_pairs([row])
        store_pair.database.drop_route("pair")
    assert store_pair.real.find_routed_pairs() == []
