"""Routes that are created, changed or expire while conversations wait for their target."""

from __future__ import annotations

from uuid import uuid4

import pytest

import servicebroker as sb
from remote_support import EAST, Pair, begin, open_conversation
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import parse_address
from support import CONTRACT, ORDER, STOCK, STOCK_QUEUE, bodies, query, waiting_messages


def test_a_claimed_conversation_gets_no_second_target_in_its_instance(pair: Pair) -> None:
    pair.west.is_connected = False
    begin(pair)
    pair.west.round([])
    pair.west.database.create_service(STOCK, STOCK_QUEUE, [CONTRACT])
    pair.west.database.alter(enable_broker=True)
    assert pair.west.database.receive(STOCK_QUEUE) == []
    pair.west.is_connected = True
    pair.pass_time(5)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]
    assert pair.west.database.receive(STOCK_QUEUE) == []


def home_in(instance: sb.Instance) -> sb.Database:
    """Create another database with the objects that the service needs."""
    home = instance.database("Home", create=True)
    home.create_message_type(ORDER)
    home.create_contract(CONTRACT, {ORDER: "INITIATOR"})
    home.create_queue(STOCK_QUEUE)
    return home


def wait_at_home(pair: Pair, home: sb.Database) -> None:
    """Begin a conversation with a service of `home`, whose queue is disabled. The relay remembers nothing of it."""
    home.create_service(STOCK, STOCK_QUEUE, [CONTRACT])
    home.alter_queue(STOCK_QUEUE, status=False)
    begin(pair)
    pair.rounds()
    assert pair.west.relay.remembered == 0


@pytest.mark.feature(116)
def test_a_conversation_that_waits_for_a_local_target_uses_a_new_route(pair: Pair) -> None:
    database = pair.west.database
    database.drop_route("ToStock")
    wait_at_home(pair, database)
    database.create_route("ToStock", service_name=STOCK, address=EAST)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]


@pytest.mark.feature(116)
@pytest.mark.parametrize("what", ["service", "database", "broker", "read_only"])
def test_a_conversation_follows_its_service_to_another_instance(pair: Pair, what: str) -> None:
    """The service was local, with a disabled queue. Then it is dropped, or its database stops accepting messages."""
    database, instance = pair.west.database, pair.west.instance
    home = database if what == "service" else home_in(instance)
    database.drop_route("ToStock")
    database.create_route("Any", address=EAST)
    wait_at_home(pair, home)
    match what:
        case "service":
            home.drop_service(STOCK)
        case "database":
            instance.drop_database("Home")
        case "broker":
            home.alter(disable_broker=True)
        case _:
            home.alter(read_only=True)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]


@pytest.mark.feature(112)
def test_a_conversation_that_waits_for_a_local_target_leaves_when_the_route_expires(pair: Pair) -> None:
    west = pair.west
    for name in ("ToStock", "AutoCreatedLocal"):
        west.database.drop_route(name)
    west.database.create_route("Here", service_name=STOCK, address="LOCAL", lifetime=60)
    west.database.create_route("Any", address=EAST)
    wait_at_home(pair, west.database)
    assert 0 < west.relay.wake_at - west.seconds <= 60
    west.clock.jump(seconds=61)
    pair.pass_time(61)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]


@pytest.mark.feature(112)
def test_an_expired_route_to_a_local_target_is_checked_once(pair: Pair) -> None:
    """The daemon's clock may be ahead of the store's."""
    west = pair.west
    west.database.drop_route("ToStock")
    west.database.create_route("Here", service_name=STOCK, address="LOCAL", lifetime=60)
    wait_at_home(pair, west.database)
    pair.pass_time(61)
    for _ in range(3):
        west.round([])
        assert west.relay.wake_at > west.seconds
    west.clock.jump(seconds=61)
    pair.pass_time(61)
    west.round([])
    assert west.relay.wake_at == NEVER
    assert west.relay.remembered == 0


@pytest.mark.feature(112)
def test_a_conversation_does_not_use_an_expired_route(pair: Pair) -> None:
    west = pair.west
    west.database.drop_route("ToStock")
    west.database.create_route("Old", service_name=STOCK, address="TCP://old:4022", lifetime=60)
    west.database.create_route("Any", address=EAST)
    west.other = parse_address("TCP://old:4022")
    handle, _ = open_conversation(pair)
    west.relay.lost(west.out, "gone")
    west.clock.jump(seconds=61)
    pair.pass_time(61)
    west.other = parse_address(EAST)
    west.database.send(handle, ORDER, b"1")
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]


@pytest.mark.feature(113)
@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_a_new_route_does_not_move_existing_conversations(pair: Pair, *, is_acknowledged: bool) -> None:
    """Not even without an acknowledgement, because the first message could be stored twice."""
    west, east = pair.west.database, pair.east.database
    ((broker,),) = query(
        east, "select service_broker_guid::text from servicebroker.databases where name = %s", east.name
    )
    west.alter_route("ToStock", broker_instance=broker)
    handles = [begin(pair) for _ in range(8)]
    pair.west.round([])
    if is_acknowledged:
        pair.rounds()
    west.create_route("More", service_name=STOCK, broker_instance=uuid4(), address="TCP://more:4022")
    pair.rounds()
    for handle in handles:
        west.send(handle, ORDER, b"1")
    pair.rounds()
    assert waiting_messages(west) == 0
    assert [bodies(east.receive(STOCK_QUEUE)) for _ in handles] == [[b"0", b"1"]] * 8
