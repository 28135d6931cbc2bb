"""CREATE, ALTER and DROP ROUTE, and their effect on conversations of one instance."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import uuid4

import pytest

import servicebroker as sb
from servicebroker.protocol.routing import parse_address
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    bodies,
    define_standard_set,
    query,
    refused,
)

HOST = "TCP://stock.example.com:4022"
NO_ROUTE = (
    "No route matches the destination service name for this conversation. Create a route to the destination "
    "service name for messages in this conversation to be delivered."
)
NOT_HERE = (
    "The target service name matched a LOCAL route, but there is no service by that name in the local SQL Server "
    "instance."
)
NO_BROKER_HERE = "Could not find the target broker in the local SQL Server instance."
NO_TRANSPORT = "The Service Broker protocol transport is not available."


def routes(database: sb.Database) -> list[tuple[Any, ...]]:
    text = (
        "select name, remote_service_name, broker_instance, address, mirror_address from sys.routes "
        "where broker_database = %s order by route_id"
    )
    return query(database, text, database.name)


def status(database: sb.Database) -> list[str]:
    text = "select distinct transmission_status from sys.transmission_queue where broker_database = %s"
    return [text for (text,) in query(database, text, database.name)]


def broker(database: sb.Database) -> str:
    text = "select service_broker_guid::text from sys.databases where broker_database = %s"
    return str(query(database, text, database.name)[0][0])


@pytest.fixture
def other_database(instance: sb.Instance) -> sb.Database:
    """Return a second database of the instance with the same services."""
    return define_standard_set(instance.database(f"other_{uuid4().hex}", create=True))


@pytest.mark.feature(35)
def test_every_database_begins_with_a_route_to_this_instance(database: sb.Database) -> None:
    assert routes(database) == [("AutoCreatedLocal", None, None, "LOCAL", None)]
    assert ("AutoCreatedLocal", None, None, "LOCAL", None) in routes(database.instance.database("msdb"))
    database.drop_route("autocreatedLOCAL")
    assert routes(database) == []


@pytest.mark.feature(28)
def test_a_route_stores_the_given_clauses(database: sb.Database) -> None:
    instance = uuid4()
    database.create_route("ToStock", service_name=STOCK, broker_instance=instance, address=HOST)
    database.create_route("Dialled", address="transport")
    database.create_route(
        "Mirrored",
        service_name="s",
        broker_instance=str(instance).upper(),
        address="TCP://a:1",
        mirror_address="TCP://b:1",
    )
    assert routes(database)[1:] == [
        ("ToStock", STOCK, str(instance), HOST, None),
        ("Dialled", None, None, "transport", None),
        ("Mirrored", "s", str(instance), "TCP://a:1", "TCP://b:1"),
    ]
    database.alter_route("TOSTOCK", address="TCP://elsewhere:4022")
    assert routes(database)[1] == ("ToStock", STOCK, str(instance), "TCP://elsewhere:4022", None)
    database.drop_route("tostock")
    assert [name for name, *_ in routes(database)] == ["AutoCreatedLocal", "Dialled", "Mirrored"]


GUID = "01234567-89ab-cdef-0123-456789abcdef"
MIRRORED = {"service_name": "s", "broker_instance": GUID, "address": "TCP://a:1", "mirror_address": "TCP://b:1"}


@pytest.mark.feature(28)
@pytest.mark.parametrize(
    ("number", "clauses"),
    [
        (9659, {"address": ""}),
        (9659, {"address": None}),
        (9659, {"address": "LOCAL", "service_name": ""}),
        (9660, {"address": "TCP://" + 250 * "a" + ":4022"}),
        (9660, {"address": "LOCAL", "service_name": 257 * "s"}),
        (9661, MIRRORED | {"broker_instance": None}),
        (9661, MIRRORED | {"broker_instance": None, "service_name": None}),
        (9662, {"address": "LOCAL", "broker_instance": GUID}),
        (9743, MIRRORED | {"address": "LOCAL"}),
        (9743, MIRRORED | {"mirror_address": "transport"}),
        (9744, {"address": "somewhere"}),
        (9744, {"address": "TCP://"}),
        (9744, {"address": "TCP://host:"}),
        (9744, {"address": "TCP://host/x"}),
        (9744, {"address": "TCP://host:99999"}),
        (9744, MIRRORED | {"mirror_address": "host:1"}),
        (9745, {"address": "TRANSPORT", "service_name": "s"}),
        (9746, {"address": "LOCAL", "lifetime": 0}),
        (9746, {"address": "LOCAL", "lifetime": 2_147_483_648}),
        (9747, MIRRORED | {"mirror_address": "tcp://A:1"}),
        (1093, {"address": "LOCAL", "service_name": "s", "broker_instance": "not an identifier"}),
        (1093, {"address": "LOCAL", "service_name": "SQL/ServiceBroker/BrokerConfiguration", "broker_instance": GUID}),
        (402, {"address": 4022}),
        (402, {"address": "LOCAL", "lifetime": "long"}),
        (402, {"address": "LOCAL", "service_name": "s\0"}),
        (15151, {"address": "LOCAL", "name": ""}),
        (15151, {"address": "LOCAL", "name": 129 * "r"}),
        (2714, {"address": "LOCAL", "name": "autoCREATEDlocal"}),
    ],
)
def test_invalid_clauses_of_create_route_are_refused(
    database: sb.Database, number: int, clauses: dict[str, Any]
) -> None:
    with refused(number):
        database.create_route(**({"name": "r"} | clauses))
    assert len(routes(database)) == 1


@pytest.mark.parametrize(
    ("address", "dialled"),
    [
        ("TCP://stock.example.com", ("stock.example.com", 4022)),
        ("tcp://192.168.10.2/", ("192.168.10.2", 4022)),
        ("TCP://stock.example.com:5022/", ("stock.example.com", 5022)),
        ("TCP://[::1]", ("::1", 4022)),
    ],
)
def test_an_address_may_lack_its_port_and_end_with_a_slash(
    database: sb.Database, address: str, dialled: tuple[str, int]
) -> None:
    database.create_route("r", service_name="s", address=address)
    assert parse_address(address) == dialled
    mirror = f"TCP://{address[6:].rstrip('/')}/"
    with refused(9747):
        database.create_route("m", **(MIRRORED | {"address": address, "mirror_address": mirror}))


@pytest.mark.feature(28)
def test_invalid_alter_route_and_drop_route_are_refused(database: sb.Database) -> None:
    for verb in (lambda: database.alter_route("r", address=HOST), lambda: database.drop_route("r")):
        with refused(15151):
            verb()
    database.create_route("r", address=HOST)
    before = routes(database)
    with refused(9662):
        database.alter_route("r", broker_instance=GUID)
    with refused(9661):
        database.alter_route("r", mirror_address="TCP://b:1")
    with refused(402):
        database.alter_route("r")
    assert routes(database) == before


@pytest.mark.feature(118, 124, 126)
def test_without_a_route_messages_wait_and_a_new_route_takes_effect_for_them(database: sb.Database) -> None:
    database.drop_route("AutoCreatedLocal")
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    database.send(handle, ORDER, b"2")
    assert status(database) == [NO_ROUTE]
    assert database.receive(STOCK_QUEUE) == []
    database.create_route("ToStock", service_name=STOCK, address=HOST)
    assert status(database) == [NO_TRANSPORT]
    database.alter_route("ToStock", address="LOCAL")
    database.send(handle, ORDER, b"3")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"2", b"3"]


@pytest.mark.feature(124)
def test_a_service_that_is_not_here_waits_for_it(database: sb.Database) -> None:
    handle = database.begin_dialog(ORDERS, "//test/Nowhere", contract=CONTRACT)
    database.send(handle, ORDER, b"1")
    assert status(database) == [NOT_HERE]
    far = database.begin_dialog(ORDERS, "//test/Far", broker_instance=GUID, contract=CONTRACT)
    database.create_route("Here", service_name="//test/Far", address="LOCAL")
    database.create_service("//test/Far", STOCK_QUEUE, [CONTRACT])
    database.send(far, ORDER, b"1")
    assert set(status(database)) == {NOT_HERE, NO_BROKER_HERE}


@pytest.mark.feature(29)
def test_an_expired_route_is_ignored_and_revived(database: sb.Database, clock: Clock) -> None:
    database.drop_route("AutoCreatedLocal")
    database.create_route("ToStock", service_name=STOCK, lifetime=60, address="LOCAL")
    clock.jump(seconds=61)
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    assert status(database) == [NO_ROUTE]
    assert len(routes(database)) == 1  # ignored, not deleted
    database.alter_route("ToStock", lifetime=60)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
    other_handle = begin(database)
    database.send(other_handle, ORDER, b"2")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]
    clock.jump(seconds=61)
    database.send(other_handle, ORDER, b"3")  # a conversation that has found its target needs no route
    assert bodies(database.receive(STOCK_QUEUE)) == [b"3"]


@pytest.mark.feature(112)
def test_a_network_route_is_used_only_for_remote_services(database: sb.Database) -> None:
    database.create_route("Elsewhere", address=HOST)
    here, away = begin(database), database.begin_dialog(ORDERS, "//test/Nowhere", contract=CONTRACT)
    database.send(here, ORDER, b"1")
    database.send(away, ORDER, b"1")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
    assert status(database) == [NO_TRANSPORT]


@pytest.mark.feature(112)
def test_a_route_with_the_name_goes_before_the_service_next_door(database: sb.Database) -> None:
    database.create_route("ToStock", service_name=STOCK, address=HOST)
    database.send(begin(database), ORDER, b"1")
    assert database.receive(STOCK_QUEUE) == []
    assert status(database) == [NO_TRANSPORT]


@pytest.mark.feature(113)
def test_the_own_database_goes_before_others(database: sb.Database, other_database: sb.Database) -> None:
    for number in range(20):
        database.send(begin(database), ORDER, str(number))
    assert other_database.receive(STOCK_QUEUE) == []
    database.create_route("There", service_name=STOCK, broker_instance=broker(other_database), address="LOCAL")
    database.send(begin(database), ORDER, b"there")
    assert bodies(other_database.receive(STOCK_QUEUE)) == [b"there"]


@pytest.mark.feature(113)
def test_conversations_spread_over_databases_with_the_same_service(instance: sb.Instance) -> None:
    name, chosen = f"//test/{uuid4().hex}", Counter[str]()
    sender, *homes = [define_standard_set(instance.database(f"d{n}_{uuid4().hex}", create=True)) for n in range(3)]
    for home in homes:
        home.create_service(name, STOCK_QUEUE, [CONTRACT])
    for _ in range(40):
        handle = begin(sender, name)
        for _ in range(2):
            sender.send(handle, ORDER, b"x")
    for home in homes:
        while messages := home.receive(STOCK_QUEUE):
            assert len(messages) == 2  # a conversation stays where it began
            chosen[home.name] += 1
    assert sum(chosen.values()) == 40
    assert min(chosen.values()) > 5


def test_another_process_sees_a_new_route(database: sb.Database, other_database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"1")  # the routes are cached now
    with sb.open(database.instance.url) as second:
        second.database(database.name).create_route(
            "There", service_name=STOCK, broker_instance=broker(other_database), address="LOCAL"
        )
    database.send(begin(database), ORDER, b"2")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
    assert bodies(other_database.receive(STOCK_QUEUE)) == [b"2"]
