"""A peer sends messages with foreign addresses and unroutable services: the work they cause is bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID, uuid4

import pytest

from remote_support import Wire
from servicebroker.broker.peers import Peers
from servicebroker.broker.refusals import REACHED_RETENTION_S, Refusals
from servicebroker.broker.relay import Relay
from servicebroker.broker.transport.links import Arrival
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.engine.remote.refusals import RefusalKey
from servicebroker.model.security.peers import FalseClaim
from servicebroker.protocol.budgets import OVER_BUDGET, UNANSWERED_PERIOD_S, over_budget
from servicebroker.protocol.envelope import Content, Header, Kind, Opening, Part, encode
from servicebroker.protocol.forwarding import MAX_HOPS, Passage, unwrap, wrap
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.routing import DYNAMIC_ROUTING_SERVICE, LOCAL, TRANSPORT, Address, Ask, Decision, Route
from servicebroker_lab.simulation.simulated_time import MIDNIGHT
from servicebroker_lab.simulation.store import MemoryStore, Tables

SMALL_BUDGET = {"addresses": 10, "route_requests": 20}
MALLORY, SHOP = "certificate mallory", "certificate shop"
LOCAL_TARGET = Route("target", "//target", None, None, LOCAL)
TO_ASK = Route("ask", DYNAMIC_ROUTING_SERVICE, None, None, LOCAL)
BY_NAME = Route("any", None, None, None, TRANSPORT)


class Asking(MemoryStore):
    """A store that counts the requests for routes."""

    asked: list[Ask]

    def ask(self, database_id: int, missing: Ask) -> None:
        self.asked.append(missing)

    def route_arrivals(
        self, headers: Sequence[Header], here: LocalInstance, may_ask: Callable[[int, Ask], bool]
    ) -> list[Decision]:
        decisions = super().route_arrivals(headers, here, may_ask)
        for index, decision in enumerate(decisions):
            if isinstance(decision.destination, Ask) and may_ask(index, decision.destination):
                self.asked.append(decision.destination)
        return decisions


class Victim:
    """An instance that authenticates peers by certificate, forwards messages, and has no link at first."""

    def __init__(self, *routes: Route) -> None:
        self.now = 0.0
        self.reached: dict[Address, Wire] = {}
        self.dialled: list[Address] = []
        self.tables = Tables(uuid4(), Random(1))
        self.tables.services.add("//target")
        self.tables.set_routes([LOCAL_TARGET, *routes])
        self.peers = Peers()
        self.peers.proves = True
        self.peers.set_budgets(dict.fromkeys((MALLORY, SHOP), SMALL_BUDGET))
        here = LocalInstance(frozenset({Address("here", 4022)}), True, frozenset(), 10)
        self.relay = Relay(self, lambda: MIDNIGHT, lambda: self.now, Random(1), lambda: here, peers=self.peers)
        self.store = Asking(self.tables, lambda: MIDNIGHT)
        self.store.asked = []

    def reach(self, address: Address) -> Wire | str:
        self.dialled.append(address)
        return self.reached.get(address, "")

    def ask(self, address: Address, known: object) -> None:
        raise NotImplementedError

    def takes(self, link: Wire, *bodies: bytes, is_forwarded: bool = False) -> None:
        self.relay.round(self.store, [Arrival(link, body, is_forwarded) for body in bodies])


class Forwarding(Wire):
    """A link that accepts forwarded frames."""

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        self.frames.append(body)


def opening(to_service: str, from_service: str = "//shop", conversation: UUID | None = None) -> bytes:
    names = to_service, None, from_service, uuid4()
    header = Header(conversation or uuid4(), True, Kind.RUN, False, *names, opening=Opening("//contract", 1_000, False))
    return encode(header, (Part("//type", Content.DATA, b"x", bytes(8)),), CHECKSUM)


def service_url(number: int) -> str:
    return f"tcp://host{number}:4022/service"


@pytest.mark.parametrize(
    ("routes", "make", "resource"),
    [
        ([BY_NAME], lambda number: opening("//target", service_url(number)), "addresses"),
        ([TO_ASK], lambda number: opening("//target", f"//from/{number}"), "route_requests"),
        ([TO_ASK], lambda number: opening(f"//to/{number}"), "route_requests"),
    ],
    ids=["addresses of senders", "routes to senders", "routes to targets"],
)
def test_work_caused_by_one_peers_messages_is_bounded(
    routes: list[Route], make: Callable[[int], bytes], resource: str
) -> None:
    victim, mallory = Victim(*routes), Wire(owner=MALLORY)
    for first in range(0, 100, 25):
        victim.takes(mallory, *map(make, range(first, first + 25)))
    done = {*victim.dialled} if resource == "addresses" else {*victim.store.asked}
    assert len(done) == SMALL_BUDGET[resource]
    assert mallory.refusals[OVER_BUDGET] == 100 - SMALL_BUDGET[resource]
    assert FalseClaim(MALLORY, "messages") not in victim.peers.take_mistrusted()
    victim.takes(Wire(owner=SHOP), make(1_000))  # another peer has its own budget
    done = {*victim.dialled} if resource == "addresses" else {*victim.store.asked}
    assert len(done) == SMALL_BUDGET[resource] + 1


def test_messages_that_wait_for_trust_beyond_the_budget_are_no_mistrust() -> None:
    victim, mallory = Victim(BY_NAME), Wire(owner=MALLORY)
    victim.peers.set_budgets({MALLORY: {"waiting_messages": 3}})
    victim.takes(mallory, *(opening("//target", service_url(1)) for _ in range(5)))
    assert mallory.refusals[OVER_BUDGET] == 2
    assert victim.peers.take_mistrusted() == {}


def test_messages_to_pass_on_have_connections_made_to_few_addresses_at_a_time() -> None:
    victim, mallory, shop = Victim(BY_NAME), Wire(owner=MALLORY), Wire(owner=SHOP)
    for number in range(60):
        victim.takes(mallory, sealed_frame(service_url(number)))
    assert len({*victim.dialled}) == SMALL_BUDGET["addresses"]
    link = Forwarding()
    victim.reached[Address("host99", 4022)] = link
    victim.takes(shop, sealed_frame(service_url(99)))
    assert len(link.frames) == 1
    victim.takes(mallory, sealed_frame(service_url(99)))  # the link is there
    assert len(link.frames) == 2
    victim.now += UNANSWERED_PERIOD_S
    victim.takes(shop)
    assert len({*victim.dialled}) == 2 * SMALL_BUDGET["addresses"] + 1  # others have their turn


def sealed_frame(to_service: str) -> bytes:
    """Return a frame that only its target can decrypt."""
    header = Header(uuid4(), True, Kind.RUN, True, to_service, None, "//shop", uuid4())
    return encode(header, (Part("//type", Content.DATA, b"x", bytes(8)),), CHECKSUM)


def test_a_circle_of_forwarders_ends() -> None:
    """The routes of two forwarders lead to each other. The hop count ends the circle, whatever the frame claims."""
    names = Address("west", 4022), Address("east", 4022)
    sites = [Victim(Route("other", None, None, None, str(there))) for there in names]
    wires = [Forwarding(owner=SHOP), Forwarding(owner=SHOP)]
    for site, there, wire in zip(sites, names, wires, strict=True):
        site.reached[there] = wire
    endless = wrap(Passage(uuid4(), 255, 2**31 - 1), sealed_frame("//nowhere"))
    sites[0].takes(Wire(owner=MALLORY), endless, endless, is_forwarded=True)
    passed = []
    for turn in range(60):
        wire = wires[turn % 2]
        frames = list(wire.frames)
        wire.frames.clear()
        passed += frames
        sites[1 - turn % 2].takes(wires[turn % 2], *frames, is_forwarded=True)
    assert len(passed) <= 2 * MAX_HOPS
    assert min(unwrap(body)[0].hops_remaining for body in passed) == 0
    assert [len(site.relay.forwarding._forwarder) for site in sites] == [0, 0]


def test_all_budgets_that_a_peer_has_reached_are_told() -> None:
    """Only the latest text of each refusal is kept, so it names all budgets that the peer reached."""
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    what = RefusalKey(True, MALLORY, OVER_BUDGET)
    for resource in ("openings", "addresses", "openings"):
        refusals.note(what, over_budget(resource, 5).text)
    ((times, text),) = refusals.take().values()
    assert (times, text.count("openings"), text.count("addresses")) == (3, 1, 1)
    now[0] += REACHED_RETENTION_S / 2
    refusals.note(what, over_budget("addresses", 5).text)
    now[0] += REACHED_RETENTION_S / 2
    refusals.note(what._replace(peer=SHOP), over_budget("openings", 5).text)
    refusals.note(what, over_budget("addresses", 5).text)
    texts = {refusal.peer: text for refusal, (_, text) in refusals.take().items()}
    assert {peer: "openings" in text for peer, text in texts.items()} == {SHOP: True, MALLORY: False}
