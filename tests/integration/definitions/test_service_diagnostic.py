"""The built-in diagnostic service: its answers, its permissions, and its refusals."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from lxml import etree

import servicebroker as sb
from built_in_support import answer, ask_in_t_sql, begin, broker_of
from remote_support import EAST, Pair, leftovers
from servicebroker.engine.built_in.echo_and_query import MAX_MESSAGES
from servicebroker.model.names import (
    DESCRIPTION,
    ERROR,
    QUERY,
    SERVICE_BROKER,
    SERVICE_DIAGNOSTIC,
    SERVICE_ECHO,
    STATUS,
)
from support import (
    APP,
    CONTRACT,
    ORDERS,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    errors,
    peer_handle,
    query,
    refused,
    state,
)

pytestmark = pytest.mark.feature(206)


def question(service: str) -> str:
    return f'<Query xmlns="{QUERY}"><SERVICE_NAME>{service}</SERVICE_NAME></Query>'


def open_dialog(database: sb.Database, to: UUID | None = None, service: str = ORDERS) -> UUID:
    return begin(database, to, SERVICE_DIAGNOSTIC, service)


def ask(database: sb.Database, *services: str, by: str = ORDERS) -> list[tuple[str, list[str]]]:
    """Ask the questions in a conversation, and return the replies."""
    handle = open_dialog(database, service=by)
    for service in services:
        database.send(handle, QUERY, question(service))
    answer(database)
    messages = database.receive(ORDERS_QUEUE, conversation_handle=handle)
    database.end_conversation(handle)
    answer(database)
    return [read(message) for message in messages]


def read(message: sb.Message) -> tuple[str, list[str]]:
    """Return the message type, and the texts of the elements."""
    if message.message_type_name == ERROR:
        return ERROR, [str(sb.read_error(message.message_body)[0])]
    root = etree.fromstring(message.message_body or b"")
    assert root.tag == f"{{{message.message_type_name}}}{message.message_type_name.rpartition('/')[2]}"
    names = [child.tag.removeprefix(f"{{{message.message_type_name}}}") for child in root]
    if message.message_type_name == STATUS:
        assert names == ["SERVICE_NAME", "BROKER_INSTANCE", "STATE"]
    else:
        assert names == ["SERVICE_NAME", *["CONTRACT"] * (len(names) - 1)]
    return message.message_type_name, [child.text or "" for child in root]


def description_messages(
    database: sb.Database, service: str, stands: str = "READY", *contracts: str
) -> list[tuple[str, list[str]]]:
    status = (STATUS, [service, str(broker_of(database)), stands])
    return [status] if stands == "UNKNOWN" else [status, (DESCRIPTION, [service, *contracts])]


def test_a_service_is_described(database: sb.Database) -> None:
    database.alter_service(STOCK, add_contracts=["DEFAULT"])
    replies = ask(database, STOCK, ORDERS, SERVICE_BROKER)
    assert replies == [
        *description_messages(database, STOCK, "READY", CONTRACT, "DEFAULT"),
        *description_messages(database, ORDERS),  # a service that only begins conversations
        *description_messages(database, SERVICE_BROKER, "READY", SERVICE_DIAGNOSTIC, SERVICE_ECHO),
    ]


def test_a_status_is_that_of_the_moment(database: sb.Database) -> None:
    handle = open_dialog(database)

    def stands() -> str:
        database.send(handle, QUERY, question(STOCK))
        answer(database)
        return read(database.receive(ORDERS_QUEUE, conversation_handle=handle)[0])[1][2]

    assert stands() == "READY"
    database.alter_queue(STOCK_QUEUE, status=False)
    assert stands() == "DISABLED"
    database.alter_queue(STOCK_QUEUE, status=True)
    assert stands() == "READY"
    database.drop_service(STOCK)
    assert stands() == "UNKNOWN"
    assert state(database, handle) == "CO"  # the conversation goes on until its initiator ends it
    target = peer_handle(database, handle)
    database.end_conversation(handle)
    answer(database)
    assert (state(database, handle), state(database, target)) == (None, "CD")


@pytest.mark.parametrize("name", ["nobody", STOCK.upper(), STOCK + " ", "a&lt;b"])
def test_a_missing_service_is_unknown(database: sb.Database, name: str) -> None:
    assert ask(database, name) == description_messages(database, name.replace("&lt;", "<"), "UNKNOWN")


def test_names_that_xml_writes_otherwise(database: sb.Database) -> None:
    database.create_service("a<&>ü😀", ORDERS_QUEUE)
    assert ask(database, "a&lt;&amp;&gt;ü😀") == description_messages(database, "a<&>ü😀")


def test_a_service_of_another_database_is_not_told(database: sb.Database) -> None:
    other_database = database.instance.database(database.name + "Other", create=True)
    other_database.create_queue("q")
    other_database.create_service("//other/Service", "q")
    assert ask(database, "//other/Service") == description_messages(database, "//other/Service", "UNKNOWN")


def test_many_questions_are_answered_in_order(database: sb.Database) -> None:
    names = [f"service {number}" for number in range(MAX_MESSAGES + 1)]
    assert [texts[0] for _, texts in ask(database, *names)] == names


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("<a/>", "The root is not Query"),
        ("<Query/>", "The root is not Query"),
        (f'<Query xmlns="{QUERY}"/>', "one SERVICE_NAME"),
        (f'<Query xmlns="{QUERY}"><SERVICE_NAME/></Query>', "one SERVICE_NAME"),
        (f'<Query xmlns="{QUERY}"><SERVICE_NAME>a</SERVICE_NAME><SERVICE_NAME>b</SERVICE_NAME></Query>', "one SERVICE"),
        (f'<Query xmlns="{QUERY}"><SERVICE_NAME>a<b/></SERVICE_NAME></Query>', "one SERVICE_NAME"),
        (f'<Query xmlns="{QUERY}"><SERVICE_NAME>{"a" * 257}</SERVICE_NAME></Query>', "1 to 256 characters"),
        (f'<Query xmlns="{QUERY}"><BROKER_INSTANCE>a</BROKER_INSTANCE></Query>', "one SERVICE_NAME"),
        (f'<Query xmlns="{QUERY}"><SERVICE_NAME xmlns="">a</SERVICE_NAME></Query>', "one SERVICE_NAME"),
        ("not xml", "failed XML validation"),
        ("", "failed XML validation"),
    ],
    ids=["root", "namespace", "none", "empty", "two", "inner", "long", "other", "no namespace", "text", "nothing"],
)
def test_a_malformed_query_ends_the_conversation(database: sb.Database, body: str, why: str) -> None:
    handle = open_dialog(database)
    database.send(handle, QUERY, body)
    database.send(handle, QUERY, question(STOCK))
    answer(database)
    (message,) = database.receive(ORDERS_QUEUE)
    code, text = sb.read_error(message.message_body)
    assert (message.message_type_name, code) == (ERROR, 9615)  # positive: the service has ended it
    assert why in text
    database.end_conversation(handle)
    with database.instance.connection() as connection:
        left = connection.execute("select state from servicebroker.conversation_endpoints").fetchall()
    assert [row for row in left if row[0] != "CD"] == []


WITH_ENTITY = (
    f'<!DOCTYPE Query [<!ENTITY x SYSTEM "file:///etc/passwd">]><Query xmlns="{QUERY}">'
    "<SERVICE_NAME>&x;</SERVICE_NAME></Query>"
)


@pytest.mark.parametrize("body", ["<a>", WITH_ENTITY], ids=["open", "entity"])
def test_a_query_that_is_not_xml_is_refused_at_delivery(database: sb.Database, body: str) -> None:
    handle = open_dialog(database)
    database.send(handle, QUERY, body)
    assert errors(database.receive(ORDERS_QUEUE)) == [-9615]


@pytest.mark.parametrize("message_type", [STATUS, DESCRIPTION], ids=["status", "description"])
def test_the_asking_side_cannot_send_answers(database: sb.Database, message_type: str) -> None:
    handle = open_dialog(database)
    with refused(8432):
        database.send(handle, message_type, "<a/>")


def test_without_send_on_the_broker_service_no_service_is_found(database: sb.Database, app: sb.Database) -> None:
    database.create_service("//test/Own", ORDERS_QUEUE)
    database.grant("CONTROL", APP, queue=ORDERS_QUEUE)
    database.alter_authorization(APP, service="//test/Own")

    def ask_as_owner() -> list[tuple[str, list[str]]]:
        return ask(database, STOCK, by="//test/Own")

    assert ask_as_owner() == [(ERROR, ["-8494"])]  # the user has no access to any service
    database.grant("SEND", APP, service=SERVICE_BROKER)
    assert ask_as_owner() == description_messages(database, STOCK, "UNKNOWN")
    database.grant("SEND", APP, service=STOCK)
    assert ask_as_owner() == description_messages(database, STOCK, "READY", CONTRACT)
    database.deny("SEND", "public", service=STOCK)
    assert ask_as_owner() == description_messages(database, STOCK, "UNKNOWN")


def test_in_t_sql(database: sb.Database) -> None:
    ask_in_t_sql(database, SERVICE_DIAGNOSTIC, QUERY, question(STOCK))
    script = f"""declare @body xml;
        receive top (1) @body = cast(message_body as xml) from {ORDERS_QUEUE};
        with xmlnamespaces (default '{STATUS}')
        select @body.value('(/Status/STATE)[1]', 'nvarchar(20)') as stands;"""
    assert database.execute_tsql(script).rows == [("READY",)]


# ---------------------------------------------------------------- between instances


def ask_east(pair: Pair, handle: UUID, service: str = STOCK) -> list[tuple[str, list[str]]]:
    west, east = pair.west.database, pair.east.database
    west.send(handle, QUERY, question(service))
    pair.rounds()
    answer(east)
    pair.rounds()
    return [read(message) for message in west.receive(ORDERS_QUEUE, conversation_handle=handle)]


def lead_to_east(pair: Pair) -> UUID:
    broker = broker_of(pair.east.database)
    pair.west.database.create_route("East", service_name=SERVICE_BROKER, broker_instance=broker, address=EAST)
    return broker


def test_the_diagnostic_service_is_closed_to_other_instances_by_default(pair: Pair) -> None:
    handle = open_dialog(pair.west.database, lead_to_east(pair))
    assert ask_east(pair, handle) == [(ERROR, ["-8494"])]


def test_an_unknown_peer_learns_only_of_public_services(pair: Pair) -> None:
    west, east = pair.west.database, pair.east.database
    handle = open_dialog(west, lead_to_east(pair))
    east.grant("SEND", "public", service=SERVICE_BROKER)
    assert ask_east(pair, handle) == description_messages(east, STOCK, "READY", CONTRACT)
    east.alter_queue(STOCK_QUEUE, status=False)
    assert ask_east(pair, handle) == description_messages(east, STOCK, "DISABLED", CONTRACT)
    east.revoke("SEND", "public", service=STOCK)
    assert ask_east(pair, handle) == description_messages(east, STOCK, "UNKNOWN")
    assert ask_east(pair, handle, "nobody") == description_messages(east, "nobody", "UNKNOWN")
    west.send(handle, QUERY, "<a/>")
    pair.rounds()
    answer(east)
    pair.rounds()
    (message,) = west.receive(ORDERS_QUEUE)
    assert sb.read_error(message.message_body)[0] == 9615
    west.end_conversation(handle)
    pair.rounds()
    assert leftovers(pair.west) == {}
    assert query(east, "select state from sys.conversation_endpoints") == [("CD",)]


def test_a_peer_with_a_certificate_learns_of_its_users_services(pair: Pair, tmp_path: Path) -> None:
    west, east = pair.west.database, pair.east.database
    broker = lead_to_east(pair)
    for database, other, user in ((west, east, "Orders"), (east, west, "Stock")):
        database.create_master_key("correct horse")
        database.create_certificate("own")
        database.backup_certificate("own", tmp_path / f"{user}.pem")
        other.create_user(user)
        other.create_certificate("theirs", file=tmp_path / f"{user}.pem", authorization=user)
    west.create_remote_service_binding("Broker", to_service=SERVICE_BROKER, user="Stock")
    east.revoke("SEND", "public", service=STOCK)
    east.grant("SEND", "Orders", service=SERVICE_BROKER)
    handle = west.begin_dialog(ORDERS, SERVICE_BROKER, contract=SERVICE_DIAGNOSTIC, broker_instance=broker)
    assert ask_east(pair, handle) == description_messages(east, STOCK, "UNKNOWN")
    east.grant("SEND", "Orders", service=STOCK)
    assert ask_east(pair, handle) == description_messages(east, STOCK, "READY", CONTRACT)
