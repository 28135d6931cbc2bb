"""Databases, message types, contracts, queues and services."""

from __future__ import annotations

from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

import servicebroker as sb
from support import (
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    in_thread,
    query,
    refused,
)


def columns(database: sb.Database, text: str, *parameters: object) -> list[object]:
    return [row[0] for row in query(database, text, *parameters)]


@pytest.mark.feature(1)
def test_each_database_has_a_guid_of_its_own_that_stays(instance: sb.Instance) -> None:
    def guids() -> list[object]:
        text = "select service_broker_guid from servicebroker.databases where name in ('GuidA', 'GuidB') order by name"
        return columns(first, text)

    first = instance.database("GuidA", create=True)
    instance.database("GuidB", create=True)
    before = guids()
    assert len(set(before)) == 2
    with sb.open(instance.url) as second_instance:
        second_instance.database("guida", create=True)
    assert guids() == before


def test_a_database_is_found_without_regard_to_case(instance: sb.Instance) -> None:
    created = instance.database("CaSe", create=True)
    assert instance.database("case").database_id == created.database_id
    assert instance.database("CASE", create=True).database_id == created.database_id


def test_msdb_is_always_there(instance: sb.Instance) -> None:
    assert instance.database("msdb").database_id == instance.database("MSDB", create=True).database_id


def test_a_database_that_does_not_exist(instance: sb.Instance) -> None:
    with refused(911, "Nowhere", "create=True"):
        instance.database("Nowhere")
    for wrong in (None, 5, b"x"):
        with refused(402):
            instance.database(wrong)  # type: ignore[arg-type]
    with refused(15151):
        instance.database("x" * 129, create=True)


def test_a_database_made_by_many_threads_is_made_once(instance: sb.Instance) -> None:
    futures = [in_thread(instance.database, "Contested", create=True) for _ in range(6)]
    assert len({future.result(10).database_id for future in futures}) == 1


@pytest.mark.feature(11, 44)
def test_the_default_type_and_contract_need_no_definition(instance: sb.Instance) -> None:
    database = instance.database("Defaults", create=True)
    database.create_queue("Q")
    database.create_service("A", "Q")
    database.create_service("B", "Q", [sb.DEFAULT])
    handle = database.begin_dialog("A", "B")
    assert database.send(handle, body=b"hello") == 0
    (message,) = database.receive("Q")
    assert (message.message_type_name, message.message_type_id) == ("DEFAULT", 14)
    assert (message.service_contract_name, message.service_contract_id) == ("DEFAULT", 6)
    database.send(message.conversation_handle, body=b"back")
    (answer,) = database.receive("Q", conversation_handle=handle)
    assert answer.message_body == b"back"


def test_names_that_are_taken(database: sb.Database) -> None:
    with refused(2714, ORDER):
        database.create_message_type(ORDER)
    with refused(2714, CONTRACT):
        database.create_contract(CONTRACT, {ORDER: "ANY"})
    with refused(2714, STOCK):
        database.create_service(STOCK, STOCK_QUEUE)
    for queue in (STOCK_QUEUE, STOCK_QUEUE.upper(), f"DBO.{STOCK_QUEUE}", f"[{STOCK_QUEUE}]"):
        with refused(2714):
            database.create_queue(queue)
    with refused(2714):
        database.create_message_type("DEFAULT")


@pytest.mark.feature(24)
def test_types_contracts_and_services_are_compared_byte_by_byte(database: sb.Database) -> None:
    for name in (ORDER.upper(), "caf\u00e9", "cafe\u0301", "trailing ", "trailing"):
        database.create_message_type(name)
        database.create_contract(name, {name: "ANY"})
        database.create_service(name, STOCK_QUEUE, [name])
    for name in ("caf\u00e9", "cafe\u0301", "trailing ", "trailing"):
        handle = database.begin_dialog(ORDERS, name, contract=name)
        database.send(handle, name, b"x")
        (message,) = database.receive(STOCK_QUEUE)
        assert message.service_name == message.service_contract_name == message.message_type_name == name
        with refused(8428):
            database.send(handle, name.upper(), b"x")
        with refused(8425):
            database.begin_dialog(ORDERS, name, contract=name.upper())
        with refused(8423):
            database.begin_dialog(name.upper(), STOCK)


def test_a_contract_needs_its_types_and_an_initiator(database: sb.Database) -> None:
    with refused(15151, "//no/such"):
        database.create_contract("C", {"//no/such": "ANY"})
    with refused(8492, "C"):
        database.create_contract("C", {ORDER: "TARGET"})
    with refused(8403, ORDER):
        database.create_contract("C", [(ORDER, "ANY"), (ORDER, "TARGET")])
    database.create_contract("C", [(ORDER, "ANY"), (sb.DEFAULT, "TARGET")])


@pytest.mark.feature(12)
def test_a_contract_fixes_the_sender_of_each_type(database: sb.Database) -> None:
    database.create_contract("//says", {ORDER: "INITIATOR", REPLY: "TARGET", MARK: "ANY"})
    text = (
        "select t.name, u.is_sent_by_initiator, u.is_sent_by_target from sys.service_contract_message_usages u "
        "join sys.service_contracts c using (service_contract_id, broker_database) "
        "join sys.service_message_types t using (message_type_id, broker_database) "
        "where broker_database = %s and c.name = '//says'"
    )
    assert set(query(database, text, database.name)) == {(ORDER, 1, 0), (REPLY, 0, 1), (MARK, 1, 1)}
    database.create_service("//says", STOCK_QUEUE, ["//says"])
    handle = database.begin_dialog(ORDERS, "//says", contract="//says")
    with refused(8432):
        database.send(handle, REPLY, b"x")
    database.send(handle, ORDER, b"x")
    (message,) = database.receive(STOCK_QUEUE)
    with refused(8434):
        database.send(message.conversation_handle, ORDER, b"x")
    database.send(message.conversation_handle, REPLY, b"x")
    database.send(message.conversation_handle, MARK)
    # there is no ALTER CONTRACT, and a second CREATE changes nothing
    assert not hasattr(database, "alter_contract")
    with refused(2714, "//says"):
        database.create_contract("//says", {ORDER: "ANY"})
    for usages, error_number in (({ORDER: "TARGET"}, 8492), ([(ORDER, "ANY"), (ORDER, "TARGET")], 8403)):
        with refused(error_number):
            database.create_contract("//wrong", usages)
    with refused(3716, "//says"):
        database.drop_contract("//says")
    database.drop_service("//says")
    database.drop_contract("//says")
    assert query(database, text, database.name) == []


@pytest.mark.feature(19)
def test_a_service_needs_its_queue_and_contracts(database: sb.Database) -> None:
    with refused(15151, "NoQueue"):
        database.create_service("S", "NoQueue")
    with refused(15151, "//no/contract"):
        database.create_service("S", STOCK_QUEUE, ["//no/contract"])
    with refused(8404, CONTRACT):
        database.create_service("S", STOCK_QUEUE, [CONTRACT, CONTRACT])
    database.create_service("S", STOCK_QUEUE)  # without a contract it can only begin conversations
    database.send(database.begin_dialog("S", STOCK, contract=CONTRACT), ORDER, b"x")
    handle = begin(database, "S")
    database.send(handle, ORDER, b"x")
    (error,) = database.receive(ORDERS_QUEUE)
    assert sb.read_error(error.message_body) == (
        -8408,
        f"Target service 'S' does not support contract '{CONTRACT}'.",
    )


@pytest.mark.feature(23)
def test_two_services_on_one_queue_are_told_apart(database: sb.Database) -> None:
    database.create_service("//test/Second", STOCK_QUEUE, [CONTRACT])
    for service in (STOCK, "//test/Second"):
        database.send(begin(database, service), ORDER, service.encode())
        (message,) = database.receive(STOCK_QUEUE)
        assert message.service_name.encode() == message.message_body


ODD_NAMES = ["we\"ird'queue", "größe 大", "x" * 128, "SELECT", "{id}$1%s\\", "a]b", "emoji 🐘", "Trailing ", "select"]


@pytest.mark.feature(25)
def test_a_queue_can_be_read_under_its_own_name(instance: sb.Instance, database: sb.Database) -> None:
    for index, name in enumerate(ODD_NAMES[:-1]):
        quoted_name = "[" + name.replace("]", "]]") + "]"
        database.create_queue(quoted_name)
        service = f"{name[:100]} service"
        database.create_service(service, quoted_name, [CONTRACT])
        database.send(begin(database, service), ORDER, b"%d" % index)
        schema, view = query(
            database,
            "select postgres_schema, postgres_name from servicebroker.queues where database_id = %s and name = %s",
            database.database_id,
            name,
        )[0]
        assert schema == f"{database.name.lower()}_dbo"
        if len(name) < 60:
            assert view == name.lower()
        with instance.connection() as connection:
            text = "select message_body, service_name, status from {}.{}"
            rows = connection.execute(sql.SQL(text).format(sql.Identifier(schema), sql.Identifier(view))).fetchall()
        assert rows == [(b"%d" % index, service, 1)]
        (message,) = database.receive(quoted_name)
        assert message.message_body == b"%d" % index
    with refused(2714):
        database.create_queue("select")


@pytest.mark.feature(18)
def test_the_view_of_a_queue_has_the_columns_of_the_reference(database: sb.Database) -> None:
    view_columns = columns(
        database,
        "select attname::text from pg_attribute where attrelid = (%s)::regclass and attnum > 0 order by attnum",
        f"{database.name.lower()}_dbo.stockqueue",
    )
    expected = (
        "status priority queuing_order conversation_group_id conversation_handle message_sequence_number "
        "service_name service_id service_contract_name service_contract_id message_type_name message_type_id "
        "validation message_body message_enqueue_time"
    )
    assert " ".join(map(str, view_columns)) == expected
    assert list(sb.Message._fields) == view_columns


def test_the_view_cannot_be_written(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"x")
    view = f"{database.name.lower()}_dbo.stockqueue"
    for text in (f"delete from {view}", f"update {view} set status = 0", f"insert into {view} (status) values (1)"):
        with database.instance.connection() as connection, pytest.raises(psycopg.Error):
            connection.execute(text)  # type: ignore[call-overload]


def test_queues_of_several_schemas(database: sb.Database) -> None:
    database.create_queue(f"sales.{STOCK_QUEUE}")
    database.create_service("//sales", f"sales.{STOCK_QUEUE}", [CONTRACT])
    database.send(begin(database, "//sales"), ORDER, b"sales")
    assert database.receive(STOCK_QUEUE) == []
    (message,) = database.receive(f"SALES.{STOCK_QUEUE.lower()}")
    assert message.message_body == b"sales"


def test_a_queue_that_is_refused(database: sb.Database) -> None:
    with refused(9609):
        database.create_queue("server.schema.name.queue")
    for wrong in ("#temporary", "dbo.#temporary", "x" * 129, "x" * 129 + ".q", "", "a..b"):
        with refused(15151):
            database.create_queue(wrong)
    with refused(15151, "NoQueue"):
        database.receive("NoQueue")


def test_a_database_name_like_a_reserved_schema(instance: sb.Instance) -> None:
    for name in ("pg", "pg_catalog", "information"):
        database = instance.database(name, create=True)
        database.create_queue("schema.Q")
        database.create_service("s", "schema.Q", [sb.DEFAULT])
        database.send(database.begin_dialog("s", "s"), body=b"x")
        assert len(database.receive("schema.q")) == 1


def test_a_service_made_by_two_threads_is_made_once(database: sb.Database) -> None:
    futures = [in_thread(database.create_service, "//twice", STOCK_QUEUE, [CONTRACT]) for _ in range(4)]
    problems = [future.exception(10) for future in futures]
    assert problems.count(None) == 1
    assert {problem.number for problem in problems if isinstance(problem, sb.BrokerError)} == {2714}


def test_queues_made_by_many_threads(database: sb.Database) -> None:
    names = [f"Queue{n % 4}" for n in range(8)]
    problems = [future.exception(20) for future in [in_thread(database.create_queue, name) for name in names]]
    assert problems.count(None) == 4
    assert {problem.number for problem in problems if isinstance(problem, sb.BrokerError)} == {2714}


def test_a_refused_definition_leaves_nothing_behind(database: sb.Database) -> None:
    before = query(database, "select count(*) from pg_class")
    with refused(15151):
        database.create_service("//half", STOCK_QUEUE, [CONTRACT, "//missing"])
    with refused(2714):
        database.create_queue(STOCK_QUEUE)
    assert query(database, "select count(*) from pg_class") == before
    assert columns(database, "select name from servicebroker.services where name = '//half'") == []


def test_status_counts_messages_and_conversations(fresh_instance: sb.Instance, fresh_database: sb.Database) -> None:
    handle = begin(fresh_database)
    fresh_database.send_batch(handle, ORDER, [b"1", b"2"])
    queues, waiting = fresh_instance.status()
    status_by_queue = {status.queue: status for status in queues}
    assert waiting.messages == 0
    assert status_by_queue[f"dbo.{STOCK_QUEUE}"].messages == 2
    assert status_by_queue[f"dbo.{STOCK_QUEUE}"].services == [STOCK]
    assert status_by_queue[f"dbo.{STOCK_QUEUE}"].conversations == {"CO": 1}
    assert status_by_queue[f"dbo.{ORDERS_QUEUE}"].messages == 0


@pytest.mark.feature(61)
def test_an_unknown_thing_is_named(database: sb.Database) -> None:
    unknown = uuid4()
    with refused(8426, str(unknown)):
        database.send(unknown, ORDER, b"x")
    with refused(8426, str(unknown)):
        database.end_conversation(unknown)
    with refused(8426, str(unknown)):
        database.begin_conversation_timer(unknown, 5)
    with refused(8426, str(unknown)):
        database.receive(STOCK_QUEUE, conversation_handle=unknown)
    with refused(8436, str(unknown)):
        database.receive(STOCK_QUEUE, conversation_group_id=unknown)
