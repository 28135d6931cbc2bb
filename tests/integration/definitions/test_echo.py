"""The built-in echo service: in one instance, between two, and its permissions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import servicebroker as sb
from built_in_support import answer, ask_in_t_sql, begin, broker_of
from daemons import Site, Two
from remote_support import EAST, Pair, leftovers
from servicebroker.api.maintenance import run_maintenance
from servicebroker.engine.built_in.echo_and_query import MAX_MESSAGES, answer_built_in
from servicebroker.model.names import ECHO, ERROR, SERVICE_BROKER, SERVICE_ECHO, SYSTEM_SERVICES
from servicebroker.store.running import run_alone
from support import (
    APP,
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    Clock,
    bodies,
    errors,
    eventually,
    peer_handle,
    query,
    refused,
    rolled_back,
    standard_database,
    state,
)


def count_echoes(database: sb.Database) -> int:
    """Return the number of messages that wait for an answer, or whose answer waits for delivery."""
    return int(query(database, f"select count(*) from {database.name.lower()}_dbo.servicebrokerqueue")[0][0])  # type: ignore[arg-type]


@pytest.mark.feature(206)
def test_echo_returns_the_sent_messages(database: sb.Database) -> None:
    handle = begin(database)
    sent = [b"hello", None, bytes(range(256)) * 9000, *(str(number).encode() for number in range(MAX_MESSAGES))]
    for body in sent:
        database.send(handle, ECHO, *(() if body is None else (body,)))
    assert database.receive(ORDERS_QUEUE) == []
    answer(database)
    back = database.receive(ORDERS_QUEUE)
    assert bodies(back) == sent
    assert {(message.message_type_name, message.service_contract_name) for message in back} == {(ECHO, SERVICE_ECHO)}
    assert [message.message_sequence_number for message in back] == list(range(len(sent)))
    database.send(handle, ECHO, b"again")
    answer(database)
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"again"]
    assert count_echoes(database) == 0
    database.end_conversation(handle)


@pytest.mark.parametrize("error", [None, (7, "enough")])
def test_echo_ends_after_the_sender_and_leaves_no_messages(
    database: sb.Database, error: tuple[int, str] | None
) -> None:
    handle = begin(database)
    database.send(handle, ECHO, b"unread")
    database.send(handle, ECHO, b"unread too")
    database.end_conversation(handle, error=error)
    answer(database)
    assert (database.receive(ORDERS_QUEUE), count_echoes(database)) == ([], 0)
    text = "select is_initiator, state from sys.conversation_endpoints where broker_database = %s"
    assert query(database, text, database.name) == [(0, "CD")]  # the target endpoint stays, to refuse replays


@pytest.mark.feature(206)
def test_echo_ends_after_a_sender_that_has_its_answer(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ECHO, b"a")
    answer(database)
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"a"]
    assert state(database, handle) == "CO"  # the service does not end it
    target = peer_handle(database, handle)
    database.end_conversation(handle)
    answer(database)
    assert (state(database, handle), state(database, target)) == (None, "CD")


def test_a_lifetime_ends_both_sides(database: sb.Database, clock: Clock) -> None:
    handle = database.begin_dialog(
        ORDERS, SERVICE_BROKER, contract=SERVICE_ECHO, lifetime=60, broker_instance=broker_of(database)
    )
    database.send(handle, ECHO, b"a")
    answer(database)
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"a"]
    target = peer_handle(database, handle)
    clock.jump(seconds=61)
    with database.instance.connection() as connection:
        run_maintenance(connection, clock())
    assert errors(database.receive(ORDERS_QUEUE)) == [-8489]
    assert (state(database, target), count_echoes(database)) == ("CD", 0)
    database.end_conversation(handle)


def test_two_such_services_do_not_talk_for_ever(database: sb.Database) -> None:
    handle = begin(database, service=SERVICE_BROKER)
    database.send(handle, ECHO, b"once")
    answer(database)
    assert bodies(database.receive("ServiceBrokerQueue", conversation_handle=handle)) == [b"once"]
    database.end_conversation(handle)
    answer(database)
    assert count_echoes(database) == 0


def test_echo_skips_messages_locked_by_another_transaction(database: sb.Database) -> None:
    handles = [begin(database), begin(database)]
    for handle in handles:
        database.send(handle, ECHO, b"x")
    with rolled_back(database) as transaction, database.instance.connection() as connection:
        (taken,) = transaction.receive("ServiceBrokerQueue")
        assert taken.message_type_name == ECHO
        assert run_alone(connection, answer_built_in(database.instance.clock()))  # a message is left
        (message,) = database.receive(ORDERS_QUEUE)
        assert message.conversation_handle == handles[1]
    answer(database)
    (message,) = database.receive(ORDERS_QUEUE)
    assert message.conversation_handle == handles[0]


@pytest.mark.parametrize("contract", [CONTRACT, "DEFAULT"])
def test_another_contract_is_refused(database: sb.Database, contract: str) -> None:
    handle = begin(database, contract=contract)
    types = {CONTRACT: ORDER, "DEFAULT": "DEFAULT"}
    database.send(handle, types[contract], b"<a/>")
    (message,) = database.receive(ORDERS_QUEUE)
    assert (message.message_type_name, sb.read_error(message.message_body)[0]) == (ERROR, -8408)
    database.end_conversation(handle)


def test_another_message_type_is_refused_at_once(database: sb.Database) -> None:
    handle = begin(database)
    with refused(8431):
        database.send(handle, ORDER, b"x")
    assert count_echoes(database) == 0
    for service in {name for name, _ in SYSTEM_SERVICES} - {SERVICE_BROKER}:
        other_handle = database.begin_dialog(ORDERS, service, contract=SERVICE_ECHO)
        database.send(other_handle, ECHO, b"x")
        assert errors(database.receive(ORDERS_QUEUE, conversation_handle=other_handle)) == [-8408]


# ---------------------------------------------------------------- permissions


@pytest.mark.feature(206)
def test_an_owner_that_is_not_dbo_needs_send(database: sb.Database, app: sb.Database) -> None:
    database.create_service("//test/Own", ORDERS_QUEUE)
    database.grant("CONTROL", APP, queue=ORDERS_QUEUE)
    database.alter_authorization(APP, service="//test/Own")

    def echo_answers() -> list[sb.Message]:
        handle = begin(database, service="//test/Own")
        database.send(handle, ECHO, b"x")
        answer(database)
        return database.receive(ORDERS_QUEUE, conversation_handle=handle)

    assert errors(echo_answers()) == [-8494]
    database.grant("SEND", APP, service=SERVICE_BROKER)
    assert bodies(echo_answers()) == [b"x"]
    database.deny("SEND", "public", service=SERVICE_BROKER)
    assert errors(echo_answers()) == [-8494]
    database.revoke("SEND", "public", service=SERVICE_BROKER)
    database.revoke("SEND", APP, service=SERVICE_BROKER)
    assert errors(echo_answers()) == [-8494]
    with refused(15151):
        app.grant("SEND", "public", service=SERVICE_BROKER)


@pytest.mark.parametrize("permission", ["CONTROL", "ALTER", "TAKE OWNERSHIP", "VIEW DEFINITION"])
def test_only_send_can_be_granted_on_the_built_in_service(
    database: sb.Database, app: sb.Database, permission: str
) -> None:
    with refused(9663):
        database.grant(permission, APP, service=SERVICE_BROKER)
    with refused(9663):
        database.alter_authorization(APP, service=SERVICE_BROKER)


# ---------------------------------------------------------------- answering process and time


@pytest.mark.feature(206)
def test_the_background_answers_as_soon_as_it_is_told(make_instance_url: Callable[..., str]) -> None:
    with sb.open(make_instance_url(1), upkeep=3600) as instance:  # answers only because it is notified
        database = standard_database(instance)
        handle = begin(database)
        for body in (b"a", b"b"):  # the first SEND looks up the target, the second has it cached
            database.send(handle, ECHO, body)
            assert bodies(database.receive(ORDERS_QUEUE, wait=60)) == [body]
        target = peer_handle(database, handle)
        database.end_conversation(handle)
        eventually(lambda: state(database, target) == "CD")


@pytest.mark.feature(206)
def test_in_t_sql(database: sb.Database) -> None:
    ask_in_t_sql(database, SERVICE_ECHO, ECHO, "way")
    script = f"receive top (1) cast(message_body as nvarchar(max)) as body from {ORDERS_QUEUE};"
    assert database.execute_tsql(script).rows == [("way",)]


# ---------------------------------------------------------------- between instances


@pytest.mark.feature(206)
def test_between_two_instances(pair: Pair) -> None:
    west, east = pair.west.database, pair.east.database
    west.create_route("EchoOfEast", service_name=SERVICE_BROKER, broker_instance=broker_of(east), address=EAST)
    denied = begin(west, broker_of(east))
    west.send(denied, ECHO, b"x")
    pair.rounds()
    assert errors(west.receive(ORDERS_QUEUE)) == [-8494]
    west.end_conversation(denied)
    east.grant("SEND", "public", service=SERVICE_BROKER)
    handle = begin(west, broker_of(east))
    sent = [b"a", b"x" * 300_000, b"b"]
    for body in sent:
        west.send(handle, ECHO, body)
    pair.rounds()
    answer(east)
    pair.rounds()
    assert bodies(west.receive(ORDERS_QUEUE)) == sent
    west.end_conversation(handle)
    pair.rounds()
    answer(east)
    pair.rounds()
    assert leftovers(pair.west) == {}
    assert query(east, "select state from sys.conversation_endpoints") == [("CD",)]
    assert count_echoes(east) == 0


def test_another_contract_is_refused_there_too(pair: Pair) -> None:
    west, east = pair.west.database, pair.east.database
    west.create_route("EchoOfEast", service_name=SERVICE_BROKER, broker_instance=broker_of(east), address=EAST)
    east.grant("SEND", "public", service=SERVICE_BROKER)
    handle = begin(west, broker_of(east), contract="DEFAULT")
    west.send(handle, body=b"x")
    pair.rounds()
    assert errors(west.receive(ORDERS_QUEUE)) == [-8408]


@pytest.mark.feature(206)
def test_daemons_answer(make_instance_url: Callable[..., str], tmp_path: Path) -> None:
    """No other process with a background task serves the other side."""
    sites = [Site(name, make_instance_url(1), tmp_path) for name in ("west", "east")]
    try:
        two = Two(*sites)
        for site in sites:
            site.endpoint(encryption="DISABLED")
            site.serve()
        west, east = two.west.database, two.east.database
        west.create_route(
            "EchoOfEast", service_name=SERVICE_BROKER, broker_instance=broker_of(east), address=two.east.address
        )
        east.grant("SEND", "public", service=SERVICE_BROKER)
        handle = begin(west, broker_of(east))
        for body in (b"a", b"b"):
            west.send(handle, ECHO, body)
            assert bodies(west.receive(ORDERS_QUEUE, wait=60)) == [body]
        west.end_conversation(handle)
        eventually(lambda: query(east, "select state from sys.conversation_endpoints") == [("CD",)])
        eventually(lambda: state(west, handle) is None)
    finally:
        for site in sites:
            site.close()
