"""Load balancing among several instances of a service: each new conversation is sent to one, and stays there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

import servicebroker as sb
from many_sites import Site, rounds
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.remote.departing import route
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.protocol.routing import Address
from servicebroker.store.running import run
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    bodies,
    define_standard_set,
    query,
    waiting_messages,
)

INSTANCE_COUNT = 8
CONVERSATION_COUNT = 10_000


def departure(database_id: int) -> RemoteEndpoint:
    """Return a conversation without sent messages."""
    return RemoteEndpoint(
        uuid4(), uuid4(), True, database_id, uuid4(), True, ORDERS, STOCK, None, None, CONTRACT,
        datetime.now(UTC) + timedelta(days=1), False, 5, False, "CO", False, False, 0, 1, 0, None, {},
    )  # fmt: skip


@pytest.mark.feature(116)
def test_the_engine_spreads_conversations_evenly(database: sb.Database) -> None:
    for number in range(INSTANCE_COUNT):
        database.create_route(
            f"r{number}", service_name=STOCK, broker_instance=uuid4(), address=f"TCP://host{number}:4022"
        )
    departures = [departure(database.database_id) for _ in range(CONVERSATION_COUNT)]
    now = database.instance.clock()
    with database.instance.connection() as connection:
        decisions = run(connection, route(Catalog(), departures, LocalInstance(), now))
        again = run(connection, route(Catalog(), departures, LocalInstance(), now))
        lost = LocalInstance(unreachable=frozenset({Address("host0", 4022)}))
        without = run(connection, route(Catalog(), departures, lost, now))
    assert decisions == again  # another process, or the same one after a restart, decides equally
    expected = CONVERSATION_COUNT / INSTANCE_COUNT
    counts = Counter(decision.destination for decision in decisions.values())
    assert len(counts) == INSTANCE_COUNT
    chi_square = sum((seen - expected) ** 2 / expected for seen in counts.values())
    assert chi_square < 29.9  # 7 degrees of freedom, p = 0.0001
    assert len({decision.destination for decision in without.values()}) == INSTANCE_COUNT - 1


@pytest.fixture(scope="module")
def sites(make_instance_url: Callable[..., str]) -> Iterator[dict[str, Site]]:
    """West begins conversations. North and south both have the service."""
    world: dict[str, Site] = {}
    clock = Clock()
    for name in ("west", "north", "south"):
        world[name] = Site(name, make_instance_url(), clock, world)
    west = world["west"]
    west.database.drop_service(STOCK)
    for name in ("north", "south"):
        world[name].database.drop_service(ORDERS)
        world[name].route(ORDERS, "west")
        west.database.create_route(
            f"To{name}", service_name=STOCK, broker_instance=broker(world[name]), address=f"TCP://{name}:4022"
        )
    yield world
    for site in world.values():
        site.close()


def broker(site: Site) -> str:
    return str(query(site.database, "select service_broker_guid::text from sys.databases where name = 'Test'")[0][0])


def lose(sites: dict[str, Site], name: str) -> None:
    """Break the connection to this site, which cannot be reached afterwards."""
    west = sites["west"]
    west.lost.add(name)
    west.here = west.here._replace(unreachable=frozenset({Address(name, 4022)}))
    west.relay.lost(west.out.pop(name), "gone")


def find_again(sites: dict[str, Site], name: str) -> None:
    west = sites["west"]
    west.lost.clear()
    west.here = west.here._replace(unreachable=frozenset())
    west.relay.reached(Address(name, 4022))


def begin(sites: dict[str, Site], text: str) -> UUID:
    database = sites["west"].database
    handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    database.send(handle, ORDER, text)
    return handle


def receive_all(site: Site) -> list[bytes | None]:
    received_bodies: list[bytes | None] = []
    while messages := site.database.receive(STOCK_QUEUE):
        received_bodies += bodies(messages)
    return received_bodies


@pytest.mark.feature(115, 116)
def test_an_unreachable_instance_gets_no_new_conversations(sites: dict[str, Site]) -> None:
    handles = [begin(sites, f"first {n}") for n in range(40)]
    rounds(sites.values())
    first = {name: receive_all(sites[name]) for name in ("north", "south")}
    assert {text for texts in first.values() for text in texts} == {f"first {n}".encode() for n in range(40)}
    assert sum(map(len, first.values())) == 40
    assert all(len(texts) > 5 for texts in first.values())
    lose(sites, "north")
    for number, handle in enumerate(handles):
        sites["west"].database.send(handle, ORDER, f"second {number}")
    for number in range(20):
        begin(sites, f"new {number}")
    rounds(sites.values())
    second = receive_all(sites["south"])
    assert {text for text in second if text and text.startswith(b"new")} == {f"new {n}".encode() for n in range(20)}
    assert receive_all(sites["north"]) == []
    assert waiting_messages(sites["west"].database) == len(first["north"])
    find_again(sites, "north")
    rounds(sites.values())
    there = receive_all(sites["north"])
    for texts, later in (
        (first["north"], there),
        (first["south"], second),
    ):  # each conversation has stayed at its instance
        expected = {text.replace(b"first", b"second") for text in texts if text}
        assert expected == {text for text in later if text and text.startswith(b"second")}
    assert waiting_messages(sites["west"].database) == 0


@pytest.mark.feature(115)
def test_unacknowledged_messages_are_not_sent_to_another_instance(sites: dict[str, Site]) -> None:
    """The message may be stored at the first one. A restarted daemon knows the target, too."""
    west = sites["west"]
    for number in range(6):
        begin(sites, str(number))
    west.round()  # the conversations are claimed, and messages are sent
    sent = {name: len(west.out[name].frames) for name in ("north", "south")}
    assert sum(sent.values()) >= 6
    for name in ("north", "south"):
        sites[name].round()  # stored, but the acknowledgements are lost
        sites[name].out["west"].frames.clear()
        sites[name].relay.lost(sites[name].out.pop("west"), "gone")
    lose(sites, "north")
    west.restart()
    rounds(sites.values())
    bodies_by_site = {name: receive_all(sites[name]) for name in ("north", "south")}
    assert Counter(bodies_by_site["north"] + bodies_by_site["south"]) == Counter(str(n).encode() for n in range(6))
    find_again(sites, "north")
    west.seconds += 70
    rounds(sites.values())
    assert receive_all(sites["north"]) == receive_all(sites["south"]) == []
    assert waiting_messages(west.database) == 0


@pytest.mark.feature(116)
def test_a_dropped_route_releases_unacknowledged_conversations(sites: dict[str, Site]) -> None:
    west = sites["west"]
    lose(sites, "north")
    lost: list[UUID] = []
    west.here = west.here._replace(unreachable=frozenset())  # the loss is not noticed yet
    west.lost.clear()
    while not lost:
        begin(sites, "x")
        west.round()
        if pipe := west.out.get("north"):
            lost = [UUID(int=0)] if pipe.frames else []
            pipe.frames.clear()
    lose(sites, "north")
    guid = broker(sites["north"])
    west.database.drop_route("ToNorth")
    rounds(sites.values())
    assert waiting_messages(west.database) == 0
    assert set(receive_all(sites["south"])) == {b"x"}
    west.database.create_route("ToNorth", service_name=STOCK, broker_instance=guid, address="TCP://north:4022")
    find_again(sites, "north")


@pytest.mark.feature(117)
def test_a_reply_finds_its_instance_without_a_route(sites: dict[str, Site]) -> None:
    west = sites["west"]
    west.msdb.drop_route("AutoCreatedLocal")
    handle = begin(sites, "question")
    rounds(sites.values())
    for name in ("north", "south"):
        for message in sites[name].database.receive(STOCK_QUEUE):
            sites[name].database.send(message.conversation_handle, REPLY, b"answer")
    rounds(sites.values())
    assert bodies(west.database.receive(ORDERS_QUEUE, conversation_handle=handle)) == [b"answer"]
    west.msdb.create_route("AutoCreatedLocal", address="LOCAL")


@pytest.mark.feature(113)
def test_an_identifier_in_the_route_names_the_database_there(sites: dict[str, Site]) -> None:
    """North has the service in two databases. The route leads to the one that it names."""
    north, west = sites["north"], sites["west"]
    copy = north.instance.database("Copy", create=True)
    define_standard_set(copy)
    for number in range(10):
        begin(sites, str(number))
    rounds(sites.values())
    messages = receive_all(north) + receive_all(sites["south"])
    assert len(messages) == 10
    assert copy.receive(STOCK_QUEUE) == []
    assert waiting_messages(west.database) == 0


def test_the_explanation_shows_the_decision(sites: dict[str, Site]) -> None:
    decisions: Any = sites["west"].database.explain_route(STOCK).decisions
    assert {decision.destination.address.host for decision in decisions} == {"north", "south"}
