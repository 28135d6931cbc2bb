"""The dynamic routing service: one request for each missing route, and the answer takes effect."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import servicebroker as sb
from remote_support import WEST, Pair
from servicebroker.api.maintenance import run_maintenance
from servicebroker.broker.conversations import ROUTE_MATCH_INTERVAL_S
from servicebroker.engine.remote.missing_routes import ROUTE_REQUEST_RETRY
from servicebroker.model.names import CONFIGURATION_NOTICE
from servicebroker.protocol.routing import DYNAMIC_ROUTING_SERVICE
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, Clock, begin, bodies, define_standard_set, query

EXAMPLE = Path(__file__).parents[3] / "examples/dynamic-routing"
REQUEST_PENDING_STATUS = "Locating routes and security information via the Broker Configuration Service."
LOCAL_ROUTE_STATUS = "matched a LOCAL route"
MISSING_ROUTE = f"{CONFIGURATION_NOTICE}/MissingRoute"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dynamic_routing_example", EXAMPLE / "service.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def routed_databases(
    make_instance_url: Callable[..., str], example: ModuleType, clock: Clock
) -> Iterator[tuple[sb.Database, Any]]:
    """A database that uses the dynamic routing service, and the database of the service."""
    with sb.open(make_instance_url(), clock=clock, upkeep=None) as instance:
        service = example.define(instance)
        assert example.define(instance).name == service.name  # a second call creates nothing
        database = define_standard_set(instance.database("Shop", create=True))
        database.drop_route("AutoCreatedLocal")
        database.create_route("Mine", service_name=ORDERS, address="LOCAL")
        database.create_route(
            "Replies", service_name="http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker", address="LOCAL"
        )
        example.use_dynamic_routing(database)
        yield database, service


def run_background_work(database: sb.Database) -> None:
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())


def status(database: sb.Database) -> list[str]:
    return [
        text
        for (text,) in query(
            database,
            "select distinct transmission_status from sys.transmission_queue where to_service_name <> %s",
            DYNAMIC_ROUTING_SERVICE,
        )
    ]


def requests(service: sb.Database) -> list[bytes | None]:
    """Return the bodies of unanswered requests."""
    return [
        body
        for (body,) in query(
            service, "select message_body from routing_dbo.brokerconfigurationqueue where message_type_name = %s",
            MISSING_ROUTE,
        )
    ]  # fmt: skip


@pytest.mark.feature(119)
def test_the_service_is_asked_once_and_messages_are_delivered(
    routed_databases: tuple[sb.Database, sb.Database], example: ModuleType, tmp_path: Path
) -> None:
    database, service = routed_databases
    handles = [begin(database) for _ in range(3)]
    for handle in handles:
        database.send(handle, ORDER, b"1")
        database.send(handle, ORDER, b"2")
    assert status(database) == [REQUEST_PENDING_STATUS]
    run_background_work(database)
    assert requests(service) == [
        f'<MissingRoute xmlns="{MISSING_ROUTE}"><SERVICE_NAME>{STOCK}</SERVICE_NAME></MissingRoute>'.encode()
    ]
    assert status(database) == [REQUEST_PENDING_STATUS]
    file = tmp_path / "addresses.toml"
    file.write_text(f'lifetime = 3600\n[addresses]\n"{STOCK}" = "LOCAL"\n')
    assert example.answer(service, file) == 1
    received = [bodies(database.receive(STOCK_QUEUE)) for _ in handles]
    assert received == [[b"1", b"2"]] * 3
    run_background_work(database)
    left = "select count(*) from sys.conversation_endpoints where far_service in (%s, %s)"
    names = (DYNAMIC_ROUTING_SERVICE, "http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker")
    assert query(database, left + " and state <> 'CD'", *names) == [(0,)]
    assert query(database, "select name from sys.routes where remote_service_name = %s", STOCK) == [(f"Found {STOCK}",)]


@pytest.mark.feature(119)
def test_a_request_contains_the_broker_identifier(routed_databases: tuple[sb.Database, sb.Database]) -> None:
    database, service = routed_databases
    guid = "01234567-89ab-cdef-0123-456789abcdef"
    handle = database.begin_dialog(ORDERS, "//test/<Far>", broker_instance=guid, contract=CONTRACT, encryption=False)
    database.send(handle, ORDER, b"1")
    run_background_work(database)
    assert requests(service) == [
        f'<MissingRoute xmlns="{MISSING_ROUTE}"><SERVICE_NAME>//test/&lt;Far&gt;</SERVICE_NAME>'
        f"<BROKER_INSTANCE>{guid}</BROKER_INSTANCE></MissingRoute>".encode()
    ]


@pytest.mark.feature(119)
def test_a_rolled_back_transaction_sends_no_request(routed_databases: tuple[sb.Database, sb.Database]) -> None:
    database, service = routed_databases
    with pytest.raises(ZeroDivisionError), database.transaction() as transaction:
        transaction.send(transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False), ORDER, b"1")
        raise ZeroDivisionError
    run_background_work(database)
    assert requests(service) == []
    assert query(database, "select count(*) from servicebroker.route_requests") == [(0,)]


@pytest.mark.feature(119)
def test_concurrent_transactions_send_one_request_and_do_not_wait(
    routed_databases: tuple[sb.Database, sb.Database],
) -> None:
    database, service = routed_databases
    with database.transaction() as first:
        first.send(first.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False), ORDER, b"1")
        database.send(begin(database), ORDER, b"2")  # before the first one commits
    run_background_work(database)
    assert len(requests(service)) == 1


@pytest.mark.feature(118, 119)
def test_a_rolled_back_request_is_sent_by_another_transaction(
    routed_databases: tuple[sb.Database, sb.Database],
) -> None:
    database, service = routed_databases
    with pytest.raises(ZeroDivisionError), database.transaction() as first:
        first.send(first.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"1")
        database.send(begin(database), ORDER, b"2")
        raise ZeroDivisionError
    assert status(database) == [REQUEST_PENDING_STATUS]
    run_background_work(database)
    run_background_work(database)  # the first run sends the request, the second delivers it
    assert len(requests(service)) == 1


@pytest.mark.feature(119)
def test_an_answer_does_not_wait_for_locks(
    routed_databases: tuple[sb.Database, sb.Database], example: ModuleType, tmp_path: Path
) -> None:
    database, service = routed_databases
    database.send(begin(database), ORDER, b"1")
    run_background_work(database)
    (tmp_path / "addresses.toml").write_text("[addresses]\n")
    assert example.answer(service, tmp_path / "addresses.toml") == 1
    pending = "select count(*) from servicebroker.route_requests where answered is null"
    with database.transaction() as transaction:
        transaction.send(transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"2")  # waits
        run_background_work(database)
        assert query(database, pending) == [(1,)]
    run_background_work(database)
    assert query(database, pending) == [(0,)]


@pytest.mark.feature(119)
def test_an_error_of_the_service_is_logged_and_retried_later(
    routed_databases: tuple[sb.Database, sb.Database],
    example: ModuleType,
    tmp_path: Path,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    database, service = routed_databases
    database.send(begin(database), ORDER, b"1")
    run_background_work(database)
    file = tmp_path / "addresses.toml"
    file.write_text("[addresses]\n")
    assert example.answer(service, file) == 1
    with caplog.at_level(logging.ERROR, "servicebroker"):
        run_background_work(database)
    assert "9761" in caplog.text
    assert "No address is known" in caplog.text
    database.send(begin(database), ORDER, b"2")
    run_background_work(database)
    assert requests(service) == []
    clock.jump(seconds=ROUTE_REQUEST_RETRY.total_seconds() + 1)
    database.send(begin(database), ORDER, b"3")
    run_background_work(database)
    assert len(requests(service)) == 1


def notices(service: sb.Database) -> list[tuple[str, bytes]]:
    """Return the unanswered requests: the end of the message type's name, and the body."""
    rows = query(service, "select message_type_name, message_body from routing_dbo.brokerconfigurationqueue")
    return [(name.rpartition("/")[2], body) for name, body in rows if body is not None]


def answer_with_nothing(service: sb.Database) -> None:
    for message in service.receive("BrokerConfigurationQueue", top=100):
        service.end_conversation(message.conversation_handle)


@pytest.mark.feature(120)
def test_an_answer_without_a_route_is_reported_as_failed(
    routed_databases: tuple[sb.Database, sb.Database], clock: Clock
) -> None:
    database, service = routed_databases
    database.send(begin(database), ORDER, b"1")
    run_background_work(database)
    assert [name for name, _ in notices(service)] == ["MissingRoute"]
    database.create_route("Expired", service_name=STOCK, address="LOCAL", lifetime=1)
    clock.jump(seconds=2)
    answer_with_nothing(service)
    run_background_work(database)
    assert notices(service) == []
    clock.jump(seconds=ROUTE_REQUEST_RETRY.total_seconds() + 1)
    database.send(begin(database), ORDER, b"2")
    run_background_work(database)
    ((name, body),) = notices(service)
    assert name == "FailedRoute"
    space = "http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/FailedRoute"
    assert body == f'<FailedRoute xmlns="{space}"><SERVICE_NAME>{STOCK}</SERVICE_NAME></FailedRoute>'.encode()
    answer_with_nothing(service)
    database.create_route("There", service_name=STOCK, address="LOCAL")
    run_background_work(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


@pytest.mark.feature(120)
def test_an_expired_route_is_missing_and_not_failed(
    routed_databases: tuple[sb.Database, sb.Database], clock: Clock
) -> None:
    database, service = routed_databases
    database.send(begin(database), ORDER, b"1")
    run_background_work(database)
    database.create_route("There", service_name=STOCK, address="LOCAL", lifetime=600)
    answer_with_nothing(service)
    run_background_work(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
    clock.jump(seconds=601)
    database.send(begin(database), ORDER, b"2")
    run_background_work(database)
    assert [name for name, _ in notices(service)] == ["MissingRoute"]


@pytest.mark.feature(120)
def test_the_service_is_asked_for_a_remote_service_binding(pair: Pair, example: ModuleType) -> None:
    west = pair.west.database
    service = example.define(west.instance)

    def ask_again() -> list[tuple[str, bytes]]:
        pair.pass_time(ROUTE_MATCH_INTERVAL_S + 0.1)
        pair.rounds(2)
        run_background_work(west)
        return notices(service)

    secured = west.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    west.send(secured, ORDER, b"sealed")
    plain = west.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    west.send(plain, ORDER, b"plain")
    assert ask_again() == []  # no dynamic routing service exists
    assert "no remote service binding" in status(west)[0]
    example.use_dynamic_routing(west)
    west.create_route(
        "Replies", service_name="http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker", address="LOCAL"
    )
    ((name, body),) = ask_again()
    assert name == "MissingRemoteServiceBinding"
    space = f"http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/{name}"
    assert body == f'<{name} xmlns="{space}"><SERVICE_NAME>{STOCK}</SERVICE_NAME></{name}>'.encode()
    assert ask_again() == [(name, body)]  # one request
    assert status(west) == [REQUEST_PENDING_STATUS]
    answer_with_nothing(service)
    assert ask_again() == []  # no immediate retry
    assert ask_again() == []
    assert "no remote service binding" in status(west)[0]
    pair.west.clock.jump(seconds=ROUTE_REQUEST_RETRY.total_seconds() + 1)
    assert [name for name, _ in ask_again()] == ["FailedRemoteServiceBinding"]
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"plain"]
    west.create_user("Stock")
    west.create_remote_service_binding("ToStock", to_service=STOCK, user="Stock", anonymous=True)
    answer_with_nothing(service)
    assert ask_again() == []
    assert ask_again() == []
    assert "no security certificate" in status(west)[0]  # the binding exists, but its user has no certificate


@pytest.mark.feature(119, 126)
def test_a_manually_created_route_needs_no_answer(routed_databases: tuple[sb.Database, sb.Database]) -> None:
    database, service = routed_databases
    database.send(begin(database), ORDER, b"1")
    run_background_work(database)
    database.create_route("ByHand", service_name=STOCK, address="LOCAL")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
    assert len(requests(service)) == 1  # the request is still open, and is not repeated


@pytest.mark.feature(111, 119)
def test_a_pending_request_does_not_block_wildcard_routes(
    routed_databases: tuple[sb.Database, sb.Database],
) -> None:
    database, _ = routed_databases
    database.create_route("Auto", address="LOCAL")
    first, second = begin(database), begin(database)
    database.send(first, ORDER, b"1")
    assert status(database) == [REQUEST_PENDING_STATUS]
    database.send(second, ORDER, b"2")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]
    nowhere = database.begin_dialog(ORDERS, "//test/Nowhere", contract=CONTRACT, encryption=False)
    database.send(nowhere, ORDER, b"3")
    again = database.begin_dialog(ORDERS, "//test/Nowhere", contract=CONTRACT, encryption=False)
    database.send(again, ORDER, b"3")
    assert status(database) == [REQUEST_PENDING_STATUS]


@pytest.mark.feature(119)
def test_remote_conversations_continue_after_an_answer(pair: Pair, example: ModuleType, tmp_path: Path) -> None:
    west = pair.west.database
    service = example.define(west.instance)
    west.drop_route("ToStock")
    example.use_dynamic_routing(west)
    west.send(west.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False), ORDER, b"1")
    pair.rounds()
    assert status(west) == [REQUEST_PENDING_STATUS]
    run_background_work(west)
    file = tmp_path / "addresses.toml"
    file.write_text(f'[addresses]\n"{STOCK}" = "TCP://east:4022"\n')
    assert example.answer(service, file) == 1
    pair.rounds()  # the changed route is used at once
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]


@pytest.mark.feature(126)
def test_a_changed_route_applies_to_messages_being_sent(pair: Pair) -> None:
    west = pair.west.database
    west.alter_route("ToStock", address=WEST.replace("west", "nowhere"))
    pair.west.reach = lambda address: pair.west.out if address == pair.west.other else "unreachable"  # type: ignore[method-assign]
    handle = west.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    west.send(handle, ORDER, b"1")
    pair.rounds()
    assert status(west) == ["unreachable"]
    west.alter_route("ToStock", address="TCP://east:4022")
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]
    west.drop_route("ToStock")
    west.send(handle, ORDER, b"2")
    pair.rounds()
    assert len(status(west)) == 1
    assert LOCAL_ROUTE_STATUS in status(west)[0]
    west.create_route("Back", service_name=STOCK, address="TCP://east:4022")
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"2"]
