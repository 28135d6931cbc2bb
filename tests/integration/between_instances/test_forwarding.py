"""Forwarding of messages for another instance: the forwarder neither stores nor acknowledges them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import servicebroker as sb
from many_sites import Site, rounds
from servicebroker.broker import forwarding, metrics
from servicebroker.protocol.forwarding import unwrap
from servicebroker.protocol.mirroring import ANSWER_TIMEOUT_S, ROLE_QUERY_INTERVAL_S, Role, RoleReport
from servicebroker.protocol.routing import Address, parse_address
from servicebroker.store import locks
from servicebroker.store.connection import connect
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
    eventually,
    query,
    waiting_messages,
)


class Three:
    """West sends to east through the middle, and east answers the same way."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites = sites
        self.west, self.middle, self.east = sites.values()

    def rounds(self, count: int = 12) -> None:
        rounds(self.sites.values(), count)

    def kill_middle(self) -> None:
        """Restart the forwarder: its memory and the frames to and from it are lost."""
        self.middle.out.clear()
        self.middle.restart()
        for site in (self.west, self.east):
            if pipe := site.out.pop("middle", None):
                site.relay.lost(pipe, "gone")

    def pass_time(self, seconds: float) -> None:
        for site in self.sites.values():
            site.seconds += seconds

    def send(self, *texts: str, handle: Any = None) -> Any:
        handle = handle or self.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
        for text in texts:
            self.west.database.send(handle, ORDER, text)
        return handle


@pytest.fixture(scope="module")
def three_sites(make_instance_url: Callable[..., str]) -> Iterator[Three]:
    world: dict[str, Site] = {}
    clock = Clock()
    for name in ("west", "middle", "east"):
        world[name] = Site(name, make_instance_url(), clock, world)
    west, middle, east = world.values()
    west.database.drop_service(STOCK)
    east.database.drop_service(ORDERS)
    middle.database.drop_service(ORDERS)  # the middle keeps its service STOCK: a route of msdb has precedence
    west.route(STOCK, "middle")
    middle.route(STOCK, "east", outside=True)
    middle.route(ORDERS, "west", outside=True)
    east.route(ORDERS, "middle")
    yield Three(world)
    for site in world.values():
        site.close()


@pytest.fixture
def three(three_sites: Three) -> Three:
    """The sites, lossless and with forwarding enabled."""
    for site in three_sites.sites.values():
        site.lost.clear()
        site.here = site.here._replace(forwards=True, forward_size=10)
    return three_sites


def dropped_events(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return the error numbers of the events Broker:Forwarded Message Dropped."""
    texts = [record.getMessage() for record in caplog.records if "Forwarded Message Dropped" in record.getMessage()]
    return [int(text.split("Msg ")[1].split(",")[0]) for text in texts]


@pytest.mark.feature(152, 117)
def test_messages_and_replies_pass_through(three: Three) -> None:
    handle = three.send("a", "b" * 100_000)
    three.rounds(20)
    messages = three.east.database.receive(STOCK_QUEUE)
    assert bodies(messages) == [b"a", b"b" * 100_000]
    three.east.database.send(messages[0].conversation_handle, REPLY, b"c")
    three.rounds()
    assert bodies(three.west.database.receive(ORDERS_QUEUE, conversation_handle=handle)) == [b"c"]
    assert waiting_messages(three.west.database) == waiting_messages(three.east.database) == 0
    assert query(three.middle.database, "select count(*) from servicebroker.conversation_endpoints") == [(0,)]
    assert query(three.middle.database, "select count(*) from servicebroker.transmission_queue") == [(0,)]
    three.west.database.end_conversation(handle)
    three.rounds()
    (end,) = three.east.database.receive(STOCK_QUEUE)
    assert end.is_end_dialog


@pytest.mark.feature(152)
def test_without_forwarding_messages_wait_at_the_sender(three: Three, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "servicebroker")
    three.middle.here = three.middle.here._replace(forwards=False)
    three.send("a")
    three.rounds(4)
    assert dropped_events(caplog) == [9792]
    assert waiting_messages(three.west.database) == 1
    assert three.middle.database.receive(STOCK_QUEUE) == []  # although it has a service of that name
    three.middle.here = three.middle.here._replace(forwards=True)
    three.pass_time(5)
    three.rounds()
    assert bodies(three.east.database.receive(STOCK_QUEUE)) == [b"a"]


@pytest.mark.feature(156)
def test_a_killed_forwarder_neither_loses_nor_duplicates_messages(three: Three, seeded_random: random.Random) -> None:
    handles = [three.send() for _ in range(5)]
    for handle in handles:
        three.send(*map(str, range(20)), handle=handle)
    for _ in range(150):
        three.rounds(1)
        if seeded_random.random() < 0.3:
            three.kill_middle()
        three.pass_time(3)
        if not waiting_messages(three.west.database):
            break
    received: dict[Any, list[bytes | None]] = {}
    while messages := three.east.database.receive(STOCK_QUEUE):
        received.setdefault(messages[0].conversation_handle, []).extend(bodies(messages))
    assert list(received.values()) == [[str(n).encode() for n in range(20)]] * 5
    assert waiting_messages(three.west.database) == 0


@pytest.mark.feature(156)
def test_only_the_target_acknowledges(three: Three) -> None:
    three.send("a")
    for _ in range(6):
        three.west.round()
        three.middle.round()
    assert waiting_messages(three.west.database) == 1
    three.rounds()
    assert waiting_messages(three.west.database) == 0
    assert bodies(three.east.database.receive(STOCK_QUEUE)) == [b"a"]


def test_held_and_forwarded_messages_are_counted(three: Three) -> None:
    def value(name: str) -> float:
        return metrics.REGISTRY.get_sample_value(f"servicebroker_forwarded_{name}") or 0.0

    sent, carried = value("messages_total"), value("message_bytes_total")
    three.middle.lost.add("east")
    three.send("a" * 1000)
    for _ in range(2):
        three.west.round()
        three.middle.round()
    many, size = three.middle.relay.forwarding.held
    assert many == 1
    assert 1500 < size < 3000
    assert value("messages_total") == sent
    three.middle.lost.clear()
    three.middle.round()
    assert three.middle.relay.forwarding.held == (0, 0)
    assert value("messages_total") == sent + 1
    assert 1000 < value("message_bytes_total") - carried < 2000
    three.rounds()
    assert bodies(three.east.database.receive(STOCK_QUEUE)) == [b"a" * 1000]


@pytest.mark.feature(153)
def test_the_memory_for_forwarding_has_a_limit(three: Three, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "servicebroker")
    three.middle.here = three.middle.here._replace(forward_size=1)
    three.middle.lost.add("east")
    three.pass_time(1)  # no recent small messages, which would slow down large ones
    handles = [three.send("x" * 600_000) for _ in range(3)]
    three.rounds(20)
    assert set(dropped_events(caplog)) == {11289}
    held = three.middle.relay.forwarding.observed()
    assert 20 < len(held) < 40  # 1 MB in fragments of up to 32 KB
    three.middle.lost.clear()
    received = []
    for _ in range(60):
        three.pass_time(2)
        three.rounds(2)
        while messages := three.east.database.receive(STOCK_QUEUE):
            received += bodies(messages)
        if len(received) == len(handles):
            break
    assert received == [b"x" * 600_000] * len(handles)


@pytest.mark.feature(155, 157)
def test_held_messages_are_shown_until_their_lifetime_ends(three: Three, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "servicebroker")
    middle = three.middle
    middle.lost.add("east")
    three.send("a")
    three.west.round()
    middle.round()
    shown = []
    with connect(middle.instance.url) as connection:
        connection.execute("select pg_advisory_lock(%s, 0)", (locks.BROKER_DAEMON,))  # as the daemon does
        for seconds in (0, 10):
            middle.seconds += seconds
            forwarding.write(connection, middle.relay.forwarding.observed())
            text = (
                "select to_service_name, from_service_name, adjacent_broker_address, is_initiator, "
                "message_sequence_number, hops_remaining, time_to_live, time_consumed "
                "from sys.dm_broker_forwarded_messages"
            )
            shown += query(middle.database, text)
    assert shown == [(STOCK, ORDERS, "TCP://east:4022", 1, 0, 16, 60, spent) for spent in (0, 10)]
    eventually(lambda: query(middle.database, "select * from sys.dm_broker_forwarded_messages") == [])  # no daemon
    middle.seconds += 51
    middle.round()
    assert dropped_events(caplog) == [11290]
    assert middle.relay.forwarding.observed() == []
    middle.lost.clear()
    three.pass_time(5)
    three.rounds()
    assert bodies(three.east.database.receive(STOCK_QUEUE)) == [b"a"]


@pytest.mark.feature(154)
def test_a_loop_ends(three: Three, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "servicebroker")
    west, middle, east = three.west, three.middle, three.east
    west.route("//test/Round", "middle")
    middle.route("//test/Round", "east", outside=True)
    east.route("//test/Round", "middle", outside=True)
    handle = west.database.begin_dialog(ORDERS, "//test/Round", contract=CONTRACT, encryption=False)
    west.database.send(handle, ORDER, b"a")
    west.round()
    for _ in range(30):
        middle.round()
        east.round()
    assert dropped_events(caplog) == [11285]
    assert sum(len(pipe.frames) for site in three.sites.values() for pipe in site.out.values()) == 0
    west.database.end_conversation(handle, cleanup=True)


@pytest.mark.feature(156)
def test_a_route_to_the_forwarder_itself_is_not_valid(three: Three, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "servicebroker")
    west, middle, east = three.west, three.middle, three.east
    west.route("//test/Self", "middle")
    middle.route("//test/Self", "middle", outside=True)
    handle = west.database.begin_dialog(ORDERS, "//test/Self", contract=CONTRACT, encryption=False)
    west.database.send(handle, ORDER, b"a")
    three.rounds()
    assert set(dropped_events(caplog)) == {11294}
    assert not east.database.receive(STOCK_QUEUE)
    assert waiting_messages(west.database) == 1
    west.database.end_conversation(handle, cleanup=True)


@pytest.mark.feature(157)
def test_a_forwarded_message_carries_its_hop_count(three: Three) -> None:
    three.send("a")
    three.west.round()
    three.middle.round()
    ((frame, is_forwarded),) = three.middle.out["east"].frames
    assert is_forwarded
    assert unwrap(frame)[0].hops_remaining == 15
    three.rounds()
    assert bodies(three.east.database.receive(STOCK_QUEUE)) == [b"a"]


@pytest.mark.feature(121)
def test_a_route_to_the_instance_itself_uses_the_routes_of_msdb(three: Three) -> None:
    west = three.west
    assert west.here.addresses == frozenset({parse_address("TCP://WEST:4022")})
    west.database.create_route("Myself", service_name="//test/Mine", address="TCP://west:4022")
    west.msdb.create_route("Away", service_name="//test/Mine", address="TCP://east:4022")
    three.east.database.create_service("//test/Mine", STOCK_QUEUE, [CONTRACT])
    handle = west.database.begin_dialog(ORDERS, "//test/Mine", contract=CONTRACT, encryption=False)
    west.database.send(handle, ORDER, b"a")
    west.here = west.here._replace(forwards=False)
    three.rounds()
    text = "select transmission_status from sys.transmission_queue where to_service_name = '//test/Mine'"
    assert "forwarding is disabled" in query(west.database, text)[0][0]
    west.here = west.here._replace(forwards=True)
    west.msdb.alter_route("Away", address="TCP://east:4022")
    three.rounds()
    assert bodies(three.east.database.receive(STOCK_QUEUE)) == [b"a"]


@pytest.mark.feature(110)
def test_database_routes_serve_local_messages_and_msdb_routes_arrivals(three: Three) -> None:
    middle = three.middle
    middle.database.create_service("//test/Inside", ORDERS_QUEUE)
    handle = middle.database.begin_dialog("//test/Inside", STOCK, contract=CONTRACT)
    # msdb routes to another instance, the database's own route is LOCAL
    middle.database.send(handle, ORDER, b"from here")
    three.send("from outside")
    three.rounds()
    assert bodies(middle.database.receive(STOCK_QUEUE)) == [b"from here"]
    assert bodies(three.east.database.receive(STOCK_QUEUE)) == [b"from outside"]


@pytest.mark.feature(114)
def test_a_transport_route_connects_to_the_address_in_the_service_name(three: Three) -> None:
    name = "tcp://EAST:4022/stock"
    three.east.database.create_service(name, STOCK_QUEUE, [CONTRACT])
    database = three.west.database
    database.create_route("Dialled", address="TRANSPORT")
    handle = database.begin_dialog(ORDERS, name, contract=CONTRACT, encryption=False)
    database.send(handle, ORDER, b"dialled")
    three.west.round()
    assert len(three.west.out["east"].frames) == 1  # not through the forwarder
    three.rounds()
    (message,) = three.east.database.receive(STOCK_QUEUE)
    assert (message.service_name, message.message_body) == (name, b"dialled")
    assert waiting_messages(database) == 0
    database.drop_route("Dialled")


# ---------------------------------------------------------------- mirrored pairs

EAST, NOBODY = Address("east", 4022), Address("nobody", 4022)
MIRROR = RoleReport(Role.MIRROR, "c", 1)


@contextmanager
def route_with_mirror(three: Three, site: Site, table: sb.Database, before: str) -> Iterator[None]:
    """Let the route of `table` lead to east with an unreachable mirror, instead of to `before`, during the block."""
    text = "select service_broker_guid::text from sys.databases where broker_database = 'Test'"
    ((broker,),) = query(three.east.database, text)
    table.drop_route(f"{STOCK} to {before}")
    clauses = {"address": str(EAST), "mirror_address": str(NOBODY)}
    table.create_route("pair", service_name=STOCK, broker_instance=broker, **clauses)
    site.asked.clear()
    try:
        yield
    finally:
        table.drop_route("pair")
        site.route(STOCK, before, outside=table is site.msdb)


def principal(timeline: int) -> RoleReport:
    return RoleReport(Role.PRINCIPAL, "c", timeline)


@pytest.mark.feature(122)
def test_messages_wait_for_the_principal_of_a_pair(three: Three) -> None:
    west, east = three.west, three.east
    with route_with_mirror(three, west, west.database, "middle"):
        handle = three.send("a")
        three.rounds(4)
        assert west.asked == {"east", "nobody"}
        assert east.database.receive(STOCK_QUEUE) == []
        west.relay.on_peer_role(EAST, principal(1))
        west.relay.unreached(NOBODY, "refused")
        three.rounds()
        assert bodies(east.database.receive(STOCK_QUEUE)) == [b"a"]
        west.asked.clear()
        three.send("b", handle=handle)
        west.round()  # the message is sent, and lost
        east.world["west"].out["east"].frames.clear()
        assert west.asked == set()
        west.relay.on_peer_role(EAST, MIRROR)
        three.send("c", handle=handle)
        three.rounds(4)
        assert west.asked == {"east", "nobody"}
        ((why,),) = query(west.database, "select distinct transmission_status from sys.transmission_queue")
        assert why.startswith("The target service broker is unreachable. Neither is known to be the principal: ")
        assert "TCP://east:4022 says that it is the mirror" in why
        west.relay.on_peer_role(EAST, principal(2))
        west.relay.on_peer_role(NOBODY, principal(1))  # the former principal
        three.rounds()
        assert bodies(east.database.receive(STOCK_QUEUE)) == [b"b", b"c"]
        west.restart()  # west still knows that nobody:4022 is the former principal
        three.send("d", handle=handle)
        three.rounds(4)
        west.relay.on_peer_role(NOBODY, principal(1))
        west.relay.unreached(EAST, "cut")
        three.rounds(4)
        ((why,),) = query(west.database, "select distinct transmission_status from sys.transmission_queue")
        assert "TCP://nobody:4022 claims to be the principal on a timeline that a promotion has ended" in why
        west.relay.on_peer_role(EAST, principal(2))
        three.rounds()
        assert bodies(east.database.receive(STOCK_QUEUE)) == [b"d"]
    assert query(west.database, "select * from servicebroker.mirrored_pairs") == []


@pytest.mark.feature(122)
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_pair_without_a_route_is_not_asked_any_more(three: Three, rounds: int) -> None:
    """Also if the route is dropped right after the round that first used the pair."""
    west = three.west
    with route_with_mirror(three, west, west.database, "middle"):
        three.send("a")
        for _ in range(rounds):
            west.round()
        assert west.asked == {"east", "nobody"}
    west.asked.clear()
    three.rounds()
    three.pass_time(ANSWER_TIMEOUT_S + ROLE_QUERY_INTERVAL_S)
    three.rounds()
    assert bodies(three.east.database.receive(STOCK_QUEUE)) == [b"a"]
    assert "nobody" not in west.asked
    assert query(west.database, "select * from servicebroker.mirrored_pairs") == []


@pytest.mark.feature(122, 152)
def test_a_forwarder_holds_messages_until_a_pair_has_a_principal(three: Three) -> None:
    middle, east = three.middle, three.east
    with route_with_mirror(three, middle, middle.msdb, "east"):
        three.send("a")
        three.rounds(4)
        assert middle.asked == {"east", "nobody"}
        assert len(middle.relay.forwarding.observed()) == 1
        assert east.database.receive(STOCK_QUEUE) == []
        middle.relay.on_peer_role(EAST, principal(1))
        middle.relay.on_peer_role(NOBODY, MIRROR)
        three.rounds()
        assert bodies(east.database.receive(STOCK_QUEUE)) == [b"a"]
        assert middle.relay.forwarding.observed() == []
