"""Trust in the sources of messages: which peers may send for a service, and when that is looked up again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from uuid import UUID, uuid4

import pytest

from remote_support import Wire
from servicebroker.broker.arrivals import PendingOpenings, ReceivedMessage
from servicebroker.broker.peers import Peers
from servicebroker.broker.policy import Policy
from servicebroker.broker.transport.links import Link
from servicebroker.broker.trust import SOURCE_TIMEOUT_S, Trust
from servicebroker.engine.remote.local_topology import Database, LocalInstance, LocalTopology
from servicebroker.model.security.dialog_security import Security
from servicebroker.model.security.peers import MESSAGES, Answer, FalseClaim
from servicebroker.protocol.budgets import OVER_BUDGET, RouteRequests, UnansweredAddresses
from servicebroker.protocol.envelope import Envelope, Exchange, Header, Kind
from servicebroker.protocol.routing import (
    DYNAMIC_ROUTING_SERVICE,
    Address,
    Ask,
    Decision,
    Dropped,
    Elsewhere,
    Local,
    Route,
    RoutingTable,
    Rule,
    Site,
)
from servicebroker_lab.simulation.simulated_time import MIDNIGHT

SHOP, STOCK, OTHER = UUID(int=1), UUID(int=2), UUID(int=3)  # brokers: of the peer, of the receiver, of a third
HONEST, MALLORY = "certificate shop", "certificate mallory"
SHOP_AT, MALLORY_AT, OWN = Address("shop", 4022), Address("mallory", 4022), Address("stock", 4022)
TO_SHOP = Route("shop", "//shop", None, None, str(SHOP_AT))
ASKED = Route("asked", DYNAMIC_ROUTING_SERVICE, None, None, "LOCAL")
HERE = Decision(Local(str(STOCK)), Rule.SERVICE)
NOT_HERE = Decision(Dropped(9750), Rule.NONE)
ONWARD = Decision(Elsewhere(Address("third", 4022)), Rule.SERVICE)
UNSIGNED = Exchange(uuid4(), b"", b"d" * 32, b"", b"", b"")
SIGNED = Exchange(uuid4(), b"s" * 32, b"d" * 32, b"", b"", b"s")


class Proving(Policy):
    """An endpoint whose connections prove the identities of peers."""

    proves = True


class RoutedStore:
    """The databases msdb, Stock and Other of an instance with their routes, and what was asked of it."""

    def __init__(self) -> None:
        self.routed: dict[str, list[Route]] = {"msdb": [TO_SHOP], str(STOCK): [], str(OTHER): []}
        self.read: list[dict[str, list[Route]]] = []  # the routes at each reading; their version is its number
        self.asked: list[tuple[int, Ask]] = []

    def site(self) -> LocalTopology:
        self.read.append({broker: list(routes) for broker, routes in self.routed.items()})
        version = self.reads
        databases = [
            Database(n, version, broker, True, broker == "msdb", ()) for n, broker in enumerate(self.routed, 1)
        ]
        return LocalTopology(Site({}, frozenset()), databases, {}, 0.0)

    def routes(self, located: LocalTopology, database: Database) -> RoutingTable:
        return RoutingTable(self.read[database.routes_version - 1][database.broker])

    @property
    def reads(self) -> int:
        return len(self.read)

    def ask(self, database_id: int, missing: Ask) -> None:
        self.asked.append((database_id, missing))


class Complaining(Wire):
    """A link that counts complaints."""

    complaints = 0

    def complain(self) -> None:
        self.complaints += 1


class Connections:
    """The connections of the instance: a link, or why there is none; '' while it is being opened."""

    def __init__(self) -> None:
        self.links: dict[Address, Link | str] = {}
        self.reached: list[Address] = []

    def reach(self, address: Address) -> Link | str:
        self.reached.append(address)
        return self.links.get(address, "")

    def ask(self, address: Address, known: object) -> None:
        raise AssertionError("no pair is asked")


class Receiver:
    """An instance that decides on received messages. Its peer shop is known at its address, unless a test says else."""

    def __init__(self, budgets: dict[str, dict[str, int]] | None = None) -> None:
        self.store, self.links, self.peers = RoutedStore(), Connections(), Peers()
        self.seconds, self.version, self.decision = 0.0, 1, HERE
        self.peers.set_budgets(budgets or {})
        self.know(SHOP_AT, HONEST)
        self.waiting = PendingOpenings(lambda: self.seconds, self.peers.budgets)
        self.trust = Trust(
            self.links,
            self.peers,
            self.waiting,
            UnansweredAddresses(self.peers.budgets),
            RouteRequests(self.peers.budgets),
            lambda: LocalInstance(frozenset({OWN})),
            lambda: MIDNIGHT,
            lambda: self.seconds,
        )

    def know(self, address: Address | None, owner: str) -> None:
        answers = {} if address is None else {address: Answer(owner, SHOP)}
        self.peers.apply(Proving(owners=frozenset({HONEST, MALLORY}), answers=answers))

    def message(self, owner: str, header: Header | None = None) -> ReceivedMessage:
        return ReceivedMessage(
            Complaining(owner=owner), Envelope(header or opening(), b"", b""), b"", None, self.seconds
        )

    def takes(self, message: ReceivedMessage, entry: Any = None) -> bool:
        self.trust.on_routes(self.version)
        return self.trust.takes(cast("Any", self.store), message, entry, self.decision)

    def trusts(self, owner: str, header: Header | None = None, entry: Any = None) -> bool:
        """Return whether a message is accepted; one that was refused has waited too long for its peer."""
        message = self.message(owner, header)
        return self.takes(message._replace(since=self.seconds - SOURCE_TIMEOUT_S), entry)

    @property
    def false_claims(self) -> list[FalseClaim]:
        return list(self.peers._mistrusted)


def opening(**fields: Any) -> Header:
    names = {"to_service": "//stock", "to_broker": None, "from_service": "//shop", "from_broker": SHOP}
    fields = (
        {"conversation_id": uuid4(), "is_from_initiator": True, "kind": Kind.RUN, "is_secured": False} | names | fields
    )
    return Header(**fields)


def known_conversation(**changes: Any) -> Any:
    """Return the entry of a conversation with the service //shop."""
    endpoint = {
        "security": Security.NONE,
        "far_service": "//shop",
        "routed_broker": None,
        "own_broker": STOCK,
    } | changes
    return SimpleNamespace(
        endpoint=SimpleNamespace(**endpoint), dialog=SimpleNamespace(peer_broker=changes.get("peer_broker"))
    )


# ---------------------------------------------------------------- which peer may send


def test_only_the_peer_that_a_route_names_may_send() -> None:
    receiver = Receiver()
    assert receiver.trusts(HONEST)
    message = receiver.message(MALLORY)
    assert not receiver.takes(message)
    assert cast("Complaining", message.link).complaints == 1
    assert receiver.false_claims == [FalseClaim(MALLORY, MESSAGES)]
    assert receiver.trusts(HONEST)


class SourceCase(NamedTuple):
    """A message, and whether the route-named peer's proof is needed. `named`: the database with the route."""

    decision: Decision = HERE
    header: Header = opening()
    entry: Any = None
    named: str = "msdb"
    is_taken_of_anybody: bool = False
    is_taken_of_peer: bool = True


CASES = {
    "the routes of msdb": SourceCase(),
    "the routes of the receiving database": SourceCase(named=str(STOCK)),
    "the routes of another database": SourceCase(named=str(OTHER), is_taken_of_peer=False),
    "the broker that the message names": SourceCase(NOT_HERE, opening(to_broker=STOCK), named=str(STOCK)),
    "the database of the decision, not of the message": SourceCase(
        header=opening(to_broker=OTHER), named=str(OTHER), is_taken_of_peer=False
    ),
    "a message without effect": SourceCase(NOT_HERE, is_taken_of_anybody=True),
    "another service": SourceCase(header=opening(from_service="//other"), is_taken_of_peer=False),
    "a forwarded message": SourceCase(ONWARD),
    "a forwarded message, by a route of a database": SourceCase(ONWARD, named=str(STOCK), is_taken_of_peer=False),
    "a secured message to be forwarded": SourceCase(ONWARD, opening(is_secured=True), is_taken_of_anybody=True),
    "an opening that is signed": SourceCase(header=opening(is_secured=True, exchange=SIGNED), is_taken_of_anybody=True),
    "an opening without a key": SourceCase(header=opening(is_secured=True), is_taken_of_anybody=True),
    "an opening that is not signed": SourceCase(header=opening(is_secured=True, exchange=UNSIGNED)),
    "a conversation": SourceCase(entry=known_conversation()),
    "a conversation with another service": SourceCase(
        entry=known_conversation(far_service="//other"), is_taken_of_peer=False
    ),
    "a conversation of another database": SourceCase(
        entry=known_conversation(own_broker=OTHER), named=str(STOCK), is_taken_of_peer=False
    ),
    **{
        f"a conversation with security {security}": SourceCase(
            entry=known_conversation(security=security), is_taken_of_anybody=True
        )
        for security in (Security.ANONYMOUS, Security.FULL)
    },
    # that the message says it is secured changes nothing: the key of the conversation decides
    "a conversation without security": SourceCase(
        header=opening(is_secured=True, exchange=SIGNED), entry=known_conversation()
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_source_that_a_message_must_prove(name: str) -> None:
    case, receiver = CASES[name], Receiver()
    receiver.decision = case.decision
    receiver.store.routed["msdb"] = []
    receiver.store.routed[case.named] = [TO_SHOP]
    taken = {owner: receiver.trusts(owner, case.header, case.entry) for owner in (HONEST, MALLORY)}
    assert taken == {HONEST: case.is_taken_of_peer, MALLORY: case.is_taken_of_anybody}


@pytest.mark.parametrize(
    ("known", "routed", "claimed", "is_taken"),
    [  # the broker of the first acknowledgement, of the route, and of the message
        (None, None, SHOP, True),
        (None, None, OTHER, False),
        (SHOP, None, OTHER, True),
        (OTHER, None, SHOP, False),
        (None, str(SHOP), OTHER, True),
        (None, str(OTHER), SHOP, False),
        (SHOP, str(OTHER), OTHER, True),
    ],
)
def test_the_broker_of_a_conversation_is_the_known_one(
    known: UUID | None, routed: str | None, claimed: UUID, is_taken: bool
) -> None:
    receiver = Receiver()
    receiver.store.routed["msdb"] = [TO_SHOP._replace(broker_instance=str(SHOP))]
    entry = known_conversation(routed_broker=routed, peer_broker=known)
    assert receiver.trusts(HONEST, opening(from_broker=claimed), entry) is is_taken


def test_the_addresses_of_this_instance_prove_nothing() -> None:
    receiver = Receiver()
    receiver.know(OWN, MALLORY)
    receiver.store.routed["msdb"] = [TO_SHOP._replace(address=str(OWN))]
    assert not receiver.trusts(MALLORY)
    assert receiver.links.reached == []


def test_either_broker_of_a_mirrored_pair_may_send() -> None:
    receiver = Receiver()
    receiver.store.routed["msdb"] = [TO_SHOP._replace(address=str(MALLORY_AT), mirror_address=str(SHOP_AT))]
    receiver.links.links[MALLORY_AT] = "cannot be reached"
    assert receiver.trusts(HONEST)


# ---------------------------------------------------------------- when that is looked up again


def test_an_accepted_source_is_looked_up_once() -> None:
    receiver = Receiver()
    assert [receiver.trusts(HONEST) for _ in range(3)] == [True] * 3
    assert receiver.store.reads == 1


def test_a_source_is_not_accepted_of_another_peer_or_for_another_source() -> None:
    receiver = Receiver()
    receiver.store.routed[str(STOCK)] = [TO_SHOP]
    receiver.store.routed["msdb"] = []
    assert receiver.trusts(HONEST)
    assert not receiver.trusts(MALLORY)
    assert not receiver.trusts(HONEST, opening(from_service="//other"))
    receiver.decision = Decision(Local(str(OTHER)), Rule.SERVICE)
    assert not receiver.trusts(HONEST)


def drop_route(receiver: Receiver) -> None:
    receiver.store.routed["msdb"] = []
    receiver.version += 1


@pytest.mark.parametrize("change", [drop_route, lambda receiver: receiver.know(SHOP_AT, MALLORY)])
def test_an_accepted_source_is_forgotten_after_a_change(change: Callable[[Receiver], None]) -> None:
    receiver = Receiver()
    assert receiver.trusts(HONEST)
    change(receiver)
    assert not receiver.trusts(HONEST)


def test_routes_are_read_again_before_a_message_is_refused() -> None:
    """The version of the routes is that of the last round: a route may have been created since."""
    receiver = Receiver()
    receiver.store.routed["msdb"] = []
    assert not receiver.trusts(HONEST)
    receiver.store.routed["msdb"] = [TO_SHOP]
    assert receiver.trusts(HONEST)


def test_refused_messages_of_one_round_read_the_routes_once() -> None:
    receiver = Receiver()
    receiver.trust.on_routes(1)
    for _ in range(3):
        message = receiver.message(MALLORY)
        assert not receiver.trust.takes(cast("Any", receiver.store), message, None, HERE)
    assert receiver.store.reads == 1


# ---------------------------------------------------------------- peers that are not known yet


def test_a_message_waits_until_its_peer_is_known() -> None:
    receiver = Receiver()
    receiver.know(None, HONEST)
    message = receiver.message(HONEST)
    assert not receiver.takes(message)
    assert (cast("Complaining", message.link).complaints, receiver.false_claims) == (0, [])
    assert set(receiver.links.reached) == {SHOP_AT}
    receiver.waiting.retry_now()
    assert receiver.waiting.take() == [message]
    receiver.links.links[SHOP_AT] = Wire(owner=HONEST)
    assert receiver.takes(message)


def test_a_message_of_another_peer_is_refused_as_soon_as_the_address_has_answered() -> None:
    receiver = Receiver()
    receiver.know(None, HONEST)
    receiver.links.links[SHOP_AT] = Wire(owner=HONEST)
    message = receiver.message(MALLORY)
    assert not receiver.takes(message)
    assert receiver.waiting.take() == []
    assert receiver.false_claims == [FalseClaim(MALLORY, MESSAGES)]


@pytest.mark.parametrize(
    ("waited", "is_kept"), [(0.0, True), (SOURCE_TIMEOUT_S - 0.1, True), (SOURCE_TIMEOUT_S, False)]
)
def test_a_message_waits_for_four_seconds(waited: float, is_kept: bool) -> None:
    receiver = Receiver()
    receiver.know(None, HONEST)
    message = receiver.message(HONEST)
    receiver.seconds += waited
    assert not receiver.takes(message)
    receiver.waiting.retry_now()
    assert receiver.waiting.take() == ([message] if is_kept else [])
    assert bool(receiver.false_claims) is not is_kept


def test_a_message_does_not_wait_for_an_address_that_cannot_be_reached() -> None:
    receiver = Receiver()
    receiver.know(None, HONEST)
    receiver.links.links[SHOP_AT] = "Connection refused"
    assert not receiver.takes(receiver.message(HONEST))
    assert receiver.waiting.take() == []


def test_an_address_counts_until_it_has_answered() -> None:
    receiver = Receiver({HONEST: {"addresses": 1}})
    receiver.know(None, HONEST)
    receiver.store.routed["msdb"].append(Route("other", "//other", None, None, "TCP://other:4022"))
    assert not receiver.takes(receiver.message(HONEST))  # its address is being connected to
    second = receiver.message(HONEST, opening(from_service="//other"))
    assert not receiver.takes(second)
    assert dict(cast("Wire", second.link).refusals) == {OVER_BUDGET: 1}
    assert receiver.false_claims == []  # beyond a budget, which is no lie
    assert set(receiver.links.reached) == {SHOP_AT}
    receiver.links.links[SHOP_AT] = Wire(owner=HONEST)
    assert receiver.takes(receiver.message(HONEST))
    assert not receiver.takes(receiver.message(HONEST, opening(from_service="//other")))
    assert receiver.links.reached[-1] == Address("other", 4022)


def test_the_addresses_of_one_peer_do_not_count_for_another() -> None:
    receiver = Receiver({MALLORY: {"addresses": 1}})
    receiver.know(None, HONEST)
    receiver.store.routed["msdb"] += [Route(f"{n}", f"//{n}", None, None, f"TCP://host{n}:4022") for n in range(3)]
    for n in range(3):
        receiver.takes(receiver.message(MALLORY, opening(from_service=f"//{n}")))
    assert set(receiver.links.reached) == {Address("host0", 4022)}
    assert not receiver.takes(receiver.message(HONEST))
    assert receiver.links.reached[-1] == SHOP_AT


# ---------------------------------------------------------------- missing routes


def asking_receiver(**options: Any) -> Receiver:
    receiver = Receiver(**options)
    receiver.store.routed = {"msdb": [], str(STOCK): [ASKED], str(OTHER): [ASKED]}
    return receiver


def test_a_missing_route_is_asked_for_in_the_receiving_database() -> None:
    receiver = asking_receiver()
    message = receiver.message(HONEST)
    assert not receiver.takes(message)
    assert receiver.store.asked == [(2, Ask("//shop", str(SHOP)))]
    receiver.waiting.retry_now()
    assert receiver.waiting.take() == [message]


@pytest.mark.parametrize(
    "change",
    [
        lambda receiver: receiver.store.routed.update({str(STOCK): []}),
        lambda receiver: receiver.store.routed.update({str(STOCK): [ASKED._replace(expires=MIDNIGHT)]}),
        lambda receiver: setattr(receiver, "decision", ONWARD),
        lambda receiver: setattr(receiver, "seconds", SOURCE_TIMEOUT_S),
    ],
    ids=["no dynamic routing service", "an expired route to it", "a message to be forwarded", "too late"],
)
def test_no_route_is_asked_for(change: Callable[[Receiver], object]) -> None:
    receiver = asking_receiver()
    message = receiver.message(HONEST)
    change(receiver)
    assert not receiver.takes(message)
    assert receiver.store.asked == []
    assert receiver.waiting.take() == []


def test_requests_for_routes_have_a_budget_for_each_peer() -> None:
    receiver = asking_receiver(budgets={MALLORY: {"route_requests": 2}})
    for n in range(4):
        message = receiver.message(MALLORY, opening(from_service=f"//{n}"))
        assert not receiver.takes(message)
        assert dict(cast("Wire", message.link).refusals) == ({} if n < 2 else {OVER_BUDGET: 1})
    assert [missing.service for _, missing in receiver.store.asked] == ["//0", "//1"]
    assert not receiver.takes(receiver.message(HONEST))
    assert receiver.store.asked[-1][1].service == "//shop"


def test_messages_that_wait_have_a_budget_for_each_peer() -> None:
    receiver = Receiver({HONEST: {"waiting_messages": 2}})
    receiver.know(None, HONEST)
    messages = [receiver.message(HONEST) for _ in range(3)]
    assert not any(receiver.takes(message) for message in messages)
    assert [dict(cast("Wire", message.link).refusals) for message in messages] == [{}, {}, {OVER_BUDGET: 1}]
    receiver.waiting.retry_now()
    assert receiver.waiting.take() == messages[:2]


def test_an_expired_route_to_the_dynamic_routing_service_counts_until_then() -> None:
    receiver = asking_receiver()
    receiver.store.routed[str(STOCK)] = [ASKED._replace(expires=MIDNIGHT + timedelta(seconds=1))]
    assert not receiver.takes(receiver.message(HONEST))
    assert len(receiver.store.asked) == 1
