"""XML schema collections, and message types whose validation is VALID_XML WITH SCHEMA COLLECTION."""

from __future__ import annotations

from uuid import UUID

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    DOCUMENT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    refused,
    waiting_messages,
)

COLLECTION = "Documents"
VALID, ALSO_VALID, INVALID = b"<count>7</count>", b"<mark/>", b"<count>many</count>"


def schema(element: str, kind: str = "xs:int", namespace: str = "") -> str:
    target = f'targetNamespace="{namespace}"' if namespace else ""
    return (
        f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" {target}>'
        f'<xs:element name="{element}" type="{kind}"/></xs:schema>'
    )


@pytest.fixture
def typed_database(database: sb.Database) -> sb.Database:
    """Return a database with the standard set, where DOCUMENT must be a <count> of digits."""
    database.create_xml_schema_collection(COLLECTION, schema("count"))
    database.alter_message_type(DOCUMENT, "VALID_XML", schema_collection=COLLECTION)
    return database


def received_errors(database: sb.Database, queue: str) -> list[int]:
    return [sb.read_error(m.message_body)[0] for m in database.receive(queue) if m.is_error]


@pytest.mark.both_apis
@pytest.mark.feature(9)
def test_a_message_type_of_each_validation(database: sb.Database) -> None:
    database.create_xml_schema_collection(COLLECTION, schema("count"))
    database.create_message_type("//none", "NONE")
    database.create_message_type("//empty", "EMPTY")
    database.create_message_type("//xml", "WELL_FORMED_XML")
    database.create_message_type("//valid", "VALID_XML", schema_collection="[dbo].[documents]")
    text = (
        "select name, validation, xml_collection_id is not null from sys.service_message_types "
        "where broker_database = %s and name in ('//none', '//empty', '//xml', '//valid') order by message_type_id"
    )
    assert query(database, text, database.name) == [
        ("//none", "N", False),
        ("//empty", "E", False),
        ("//xml", "X", False),
        ("//valid", "X", True),
    ]
    accepted = {
        "//none": [b"any \0 bytes", None],
        "//empty": [None],
        "//xml": [b"<a/>", b"<a/>text<b/>", b"text", None],
        "//valid": [VALID, VALID + b"text" + VALID, None],
    }
    database.create_contract("//all", dict.fromkeys(accepted, "ANY"))
    database.create_service("//target", STOCK_QUEUE, ["//all"])

    def send_one(message_type: str, body: bytes | None) -> list[int]:
        handle = database.begin_dialog(ORDERS, "//target", contract="//all")
        database.send(handle, message_type, body or b"")
        return received_errors(database, ORDERS_QUEUE)

    for message_type, bodies_ in accepted.items():
        for body in bodies_:
            assert send_one(message_type, body) == []
    assert send_one("//empty", b"x") == [-8430]
    for body in (b"<a>", b"<!DOCTYPE a><a/>", b"<a>" * 129 + b"</a>" * 129):
        assert send_one("//xml", body) == [-9615]
    for body in (b"<a/>", INVALID, VALID + INVALID):
        assert send_one("//valid", body) == [-9615]
    for name in accepted:
        with refused(3716, name):
            database.drop_message_type(name)
    database.drop_service("//target")
    database.drop_contract("//all")
    for name in accepted:
        database.drop_message_type(name)
    assert query(database, text, database.name) == []
    for wrong in ({"validation": "VALID_XML"}, {"validation": "NONE", "schema_collection": COLLECTION}):
        with refused(402, "collection"):
            database.create_message_type("//wrong", **wrong)
    with refused(15151, "nowhere"):
        database.create_message_type("//wrong", "VALID_XML", schema_collection="nowhere")


@pytest.mark.feature(106)
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_an_invalid_body_is_an_error_on_both_sides(typed_database: sb.Database, batch: bool, first: bool) -> None:
    handle = begin(typed_database)
    target: UUID | None = None
    if not first:  # on the fast path, which has sent a valid body before
        typed_database.send(handle, DOCUMENT, VALID)
        target = peer_handle(typed_database, handle)
        assert bodies(typed_database.receive(STOCK_QUEUE)) == [VALID]
    number = (
        typed_database.send_batch(handle, DOCUMENT, [VALID, INVALID])
        if batch
        else typed_database.send(handle, DOCUMENT, INVALID)
    )
    assert number == (0 if first else 1)
    (error,) = typed_database.receive(ORDERS_QUEUE)
    code, text = sb.read_error(error.message_body)
    assert code == -9615
    for word in (DOCUMENT, "line 1", "xs:int", f"Message sequence number: {number + batch}"):
        assert word in text
    with refused(8429):
        typed_database.send(handle, DOCUMENT, VALID)
    assert received_errors(typed_database, STOCK_QUEUE) == [-9616]
    if target is not None:
        typed_database.end_conversation(target)
    typed_database.end_conversation(handle)


@pytest.mark.feature(106)
def test_the_initiator_validates_replies_and_empty_bodies(typed_database: sb.Database) -> None:
    handle, target = open_dialog(typed_database)
    typed_database.send(target, DOCUMENT, INVALID)
    for queue in (ORDERS_QUEUE, STOCK_QUEUE):
        assert received_errors(typed_database, queue) == [-9616]
    handle, target = open_dialog(typed_database)
    typed_database.send(handle, MARK, b"not empty")
    (sender,), (receiver,) = typed_database.receive(ORDERS_QUEUE), typed_database.receive(STOCK_QUEUE)
    assert sb.read_error(sender.message_body)[0] == -8430
    code, text = sb.read_error(receiver.message_body)
    assert (code, MARK in text) == (-8499, True)


@pytest.mark.feature(102, 105)
@pytest.mark.parametrize(
    ("usages", "sender", "message_type", "codes"),
    [
        ({ORDER: "ANY"}, "initiator", REPLY, -8428),
        ({ORDER: "ANY"}, "initiator", DOCUMENT, -8498),
        ({ORDER: "ANY", DOCUMENT: "TARGET"}, "initiator", DOCUMENT, -8457),
        ({ORDER: "ANY", DOCUMENT: "INITIATOR"}, "target", DOCUMENT, -8437),
    ],
)
def test_the_receiver_has_another_contract(
    instance: sb.Instance, database: sb.Database, usages: dict[str, str], sender: str, message_type: str, codes: int
) -> None:
    """The receiver's database has a different contract of the same name."""
    near = instance.database(f"{database.name}Near", create=True)
    for name in (ORDER, REPLY, DOCUMENT):
        near.create_message_type(name)
    near.create_contract("//two", {ORDER: "ANY", REPLY: "ANY", DOCUMENT: "ANY"})
    near.create_queue("Q")
    database.drop_service(STOCK)
    database.drop_contract(CONTRACT)
    database.drop_message_type(REPLY)
    database.create_contract("//two", usages)
    lax, strict = (near, "Q"), (database, STOCK_QUEUE)
    (begins, begins_queue), (answers, answers_queue) = (lax, strict) if sender == "initiator" else (strict, lax)
    begins.create_service(f"//{near.name}/from", begins_queue)
    answers.create_service(f"//{near.name}/to", answers_queue, ["//two"])
    handle = begins.begin_dialog(f"//{near.name}/from", f"//{near.name}/to", contract="//two")
    begins.send(handle, ORDER, b"fine")
    (message,) = answers.receive(answers_queue)
    sides = (handle, message.conversation_handle)
    from_ = sides if sender == "initiator" else sides[::-1]
    (begins if sender == "initiator" else answers).send(from_[0], message_type, b"<a/>")
    assert received_errors(begins, begins_queue) == [codes]
    assert received_errors(answers, answers_queue) == [codes]


def test_a_remembered_channel_notices_a_receivers_direction(instance: sb.Instance, database: sb.Database) -> None:
    """The fast path checks the receiver's direction, too, not only the sender's."""
    near = instance.database(f"{database.name}Fast", create=True)
    for name in (ORDER, REPLY):
        near.create_message_type(name)
    near.create_contract(CONTRACT, {ORDER: "INITIATOR", REPLY: "INITIATOR"})
    near.create_queue("Q")
    near.create_service("//fast", "Q")
    handle = near.begin_dialog("//fast", STOCK, contract=CONTRACT, broker_instance=_identifier(database))
    for _ in range(2):
        near.send(handle, ORDER, b"fine")
    near.send(handle, REPLY, b"only a target may")
    assert received_errors(near, "Q") == [-8457]


def _identifier(database: sb.Database) -> UUID:
    text = "select service_broker_guid from servicebroker.databases where database_id = %s"
    identifier: UUID = query(database, text, database.database_id)[0][0]
    return identifier


def test_another_process_notices_that_a_collection_has_changed(typed_database: sb.Database) -> None:
    with sb.open(typed_database.instance.url, upkeep=None) as other_instance:
        second_database = other_instance.database(typed_database.name)
        handle = second_database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        second_database.send(handle, DOCUMENT, VALID)
        typed_database.alter_xml_schema_collection(COLLECTION, schema("mark", "xs:string"))
        second_database.send_batch(handle, DOCUMENT, [ALSO_VALID, VALID])
        assert bodies(typed_database.receive(STOCK_QUEUE)) == [VALID, ALSO_VALID, VALID]
        typed_database.alter_message_type(DOCUMENT, "NONE")
        second_database.send(handle, DOCUMENT, INVALID)
        typed_database.create_xml_schema_collection("Other", schema("other"))
        typed_database.alter_message_type(DOCUMENT, "VALID_XML", schema_collection="Other")
        second_database.send(handle, DOCUMENT, VALID)
    assert bodies(typed_database.receive(STOCK_QUEUE))[1:] == [INVALID]  # the Error arrives first
    assert received_errors(typed_database, ORDERS_QUEUE) == [-9615]


def test_a_waiting_message_is_validated_by_the_collection_at_delivery(typed_database: sb.Database) -> None:
    kept, lost = begin(typed_database), begin(typed_database)
    for handle in (kept, lost):
        typed_database.send(handle, DOCUMENT, VALID)
    assert len(typed_database.receive(STOCK_QUEUE)) + len(typed_database.receive(STOCK_QUEUE)) == 2
    typed_database.alter_queue(STOCK_QUEUE, status=False)
    for handle, body in ((kept, VALID), (lost, VALID)):
        typed_database.send(handle, DOCUMENT, body)
    typed_database.create_xml_schema_collection("Narrow", schema("count", "xs:boolean"))
    typed_database.alter_message_type(DOCUMENT, "VALID_XML", schema_collection="Narrow")
    typed_database.alter_queue(STOCK_QUEUE, status=True)
    assert waiting_messages(typed_database) == 0
    assert sorted(received_errors(typed_database, ORDERS_QUEUE) + received_errors(typed_database, ORDERS_QUEUE)) == [
        -9615,
        -9615,
    ]


def test_the_schemas_of_a_collection_import_each_other(typed_database: sb.Database) -> None:
    using = (
        '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:t="urn:t" targetNamespace="urn:u">'
        '<xs:import namespace="urn:t"/><xs:element name="u"><xs:complexType><xs:sequence>'
        '<xs:element ref="t:t"/></xs:sequence></xs:complexType></xs:element></xs:schema>'
    )
    with refused(2378, "'urn:t'"):
        typed_database.alter_xml_schema_collection(COLLECTION, using)
    typed_database.alter_xml_schema_collection(COLLECTION, [schema("t", namespace="urn:t"), using.encode("utf-16")])
    handle = begin(typed_database)
    for body in (VALID, b'<u xmlns="urn:u"><t xmlns="urn:t">7</t></u>'):
        typed_database.send(handle, DOCUMENT, body)
    assert len(typed_database.receive(STOCK_QUEUE)) == 2


def test_collections_that_are_refused(typed_database: sb.Database) -> None:
    with refused(2714, COLLECTION.upper()):
        typed_database.create_xml_schema_collection(COLLECTION.upper(), schema("a"))
    with refused(2714, COLLECTION):
        typed_database.create_xml_schema_collection(f"dbo.{COLLECTION}", schema("a"))
    typed_database.create_xml_schema_collection(f"other.{COLLECTION}", schema("a"))
    with refused(9609, "a.b.c"):
        typed_database.create_xml_schema_collection("a.b.c", schema("a"))
    for name in ("", "[x", "x" * 200):
        with refused(15151):
            typed_database.create_xml_schema_collection(name, schema("a"))
    for text in ("", "<a/>", "<!DOCTYPE a>" + schema("a"), schema("a", "xs:nope"), [schema("a"), schema("a")]):
        with refused(2378):
            typed_database.create_xml_schema_collection("Wrong", text)
    for wrong in (None, 5, [], [5]):
        with refused(402, "schemas"):
            typed_database.create_xml_schema_collection("Wrong", wrong)  # type: ignore[arg-type]
    with refused(15151, "alter", "Wrong"):
        typed_database.alter_xml_schema_collection("Wrong", schema("a"))
    with refused(2378, "already"):
        typed_database.alter_xml_schema_collection(COLLECTION, schema("count", "xs:string"))
    handle = begin(typed_database)
    typed_database.send(handle, DOCUMENT, VALID)  # a refused body has changed nothing
    assert bodies(typed_database.receive(STOCK_QUEUE)) == [VALID]


@pytest.mark.both_apis
def test_a_collection_in_use_is_not_dropped(typed_database: sb.Database) -> None:
    with refused(3716, COLLECTION, "message types"):
        typed_database.drop_xml_schema_collection(COLLECTION)
    typed_database.alter_message_type(DOCUMENT, "WELL_FORMED_XML")
    typed_database.drop_xml_schema_collection(COLLECTION.lower())
    with refused(15151, "drop"):
        typed_database.drop_xml_schema_collection(COLLECTION)
    assert (
        query(typed_database, "select from sys.xml_schema_collections where broker_database = %s", typed_database.name)
        == []
    )


def test_drop_and_use_at_once_leave_no_type_without_its_collection(typed_database: sb.Database) -> None:
    typed_database.alter_message_type(DOCUMENT, "NONE")
    for _ in range(10):
        used = in_thread(typed_database.alter_message_type, DOCUMENT, "VALID_XML", schema_collection=COLLECTION)
        dropped = in_thread(typed_database.drop_xml_schema_collection, COLLECTION)
        outcomes = [used.exception(10), dropped.exception(10)]
        refusals = [problem.number for problem in outcomes if isinstance(problem, sb.BrokerError)]
        assert refusals in ([3716], [15151])
        if refusals == [15151]:
            typed_database.create_xml_schema_collection(COLLECTION, schema("count"))
        typed_database.alter_message_type(DOCUMENT, "NONE")


def test_the_views_list_schema_collections_and_their_message_types(typed_database: sb.Database) -> None:
    ((number,),) = query(
        typed_database,
        "select xml_collection_id from sys.xml_schema_collections where broker_database = %s",
        typed_database.name,
    )
    assert number >= 65536
    text = (
        "select t.name, u.xml_collection_id, c.name, s.nspname from sys.message_type_xml_schema_collection_usages u "
        "join sys.service_message_types t using (message_type_id, broker_database) "
        "join sys.xml_schema_collections c on c.xml_collection_id = u.xml_collection_id "
        "join pg_namespace s on s.oid = c.schema_id where u.broker_database = %s"
    )
    assert query(typed_database, text, typed_database.name) == [
        (DOCUMENT, number, COLLECTION, f"{typed_database.name.lower()}_dbo")
    ]
