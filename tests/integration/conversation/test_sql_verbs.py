"""servicebroker.begin_dialog and servicebroker.send: BEGIN DIALOG and SEND for triggers, psql and other languages."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import servicebroker as sb
import servicebroker.api.aio.maintenance
import servicebroker.api.aio.verbs
import servicebroker.api.maintenance
import servicebroker.api.verbs
import servicebroker.store.sql_verbs
from portal import deliver
from servicebroker.api.maintenance import run_maintenance
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.delivery.transmission import deliver_left_over, find_oldest_writer
from servicebroker.model.errors import RULES
from servicebroker.store.running import run
from servicebroker.store.sql_verbs import verbs
from support import (
    CONTRACT,
    DOCUMENT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    bodies,
    define_standard_set,
    errors,
    eventually,
    group_of,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    state,
    statuses,
    waiting_messages,
)

BEGIN = "select servicebroker.begin_dialog(%s, %s, %s, %s)"
SEND = "select servicebroker.send(%s, %s, %s)"


def sql_begin(database: sb.Database, to: str = STOCK, contract: str = CONTRACT) -> UUID:
    handle: UUID = query(database, BEGIN, database.name.upper(), ORDERS, to, contract)[0][0]
    return handle


def sql_send(database: sb.Database, handle: UUID | None, message_type: str | None, body: bytes | None) -> int:
    number: int = query(database, SEND, handle, message_type, body)[0][0]
    return number


def deliver_messages(database: sb.Database) -> bool:
    """Deliver messages sent in SQL, as upkeep does. Return False if a message had to be skipped."""
    with database.instance.connection() as connection:
        return not deliver(connection, database.instance.clock())


def check_raises(number: int, statement: Callable[[], Any]) -> str:
    """Check that the statement raises this number, also as the SQLSTATE. Return the first line of the text."""
    with pytest.raises(psycopg.Error) as error:
        statement()
    assert error.value.sqlstate == f"S{number:04}", str(error.value)
    text = str(error.value).splitlines()[0]
    assert text.startswith(f"Msg {number}, Level 16, State 1: {RULES[number].text.split('{')[0]}")
    assert "{" not in text
    assert "%" not in text
    return text


def test_begin_and_send_in_sql(database: sb.Database) -> None:
    handle = sql_begin(database)
    assert state(database, handle) == "SO"
    assert [sql_send(database, handle, ORDER, body) for body in (b"1", b"2")] == [0, 1]
    assert state(database, handle) == "CO"
    assert database.receive(STOCK_QUEUE) == []
    assert deliver_messages(database)
    messages = database.receive(STOCK_QUEUE)
    assert [(m.message_sequence_number, m.message_body) for m in messages] == [(0, b"1"), (1, b"2")]
    assert waiting_messages(database) == 0
    target = messages[0].conversation_handle
    assert sql_send(database, target, REPLY, b"back") == 0
    assert deliver_messages(database)
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"back"]
    database.end_conversation(target)
    database.end_conversation(handle)


def test_a_message_type_that_the_peers_database_lacks_is_an_error_for_both_sides(database: sb.Database) -> None:
    near = define_standard_set(database.instance.database(f"Near{uuid4().hex}", create=True))
    far = database.instance.database(f"Far{uuid4().hex}", create=True)
    far.create_message_type(ORDER)
    far.create_contract(CONTRACT, {ORDER: "INITIATOR"})
    far.create_queue("Far")
    far.create_service("//far", "Far", [CONTRACT])
    handle = begin(near, "//far", encryption=False)
    near.send(handle, ORDER, b"known")
    sql_send(near, handle, DOCUMENT, b"<a/>")
    assert deliver_messages(near)
    assert len(errors(far.receive("Far"))) == 1
    assert len(errors(near.receive(ORDERS_QUEUE))) == 1


def test_sql_verbs_have_the_defaults_of_the_python_verbs(database: sb.Database) -> None:
    database.create_service("//default", STOCK_QUEUE, [sb.DEFAULT])
    text = "select servicebroker.begin_dialog(broker_database => %s, from_service => %s, to_service => '//default')"
    handle = query(database, text, database.name, ORDERS)[0][0]
    assert query(database, "select servicebroker.send(%s)", handle) == [(0,)]
    assert query(database, "select servicebroker.send(%s, body => 'x')", handle) == [(1,)]
    assert deliver_messages(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [None, b"x"]
    ((expiry,),) = query(
        database, "select lifetime from servicebroker.conversation_endpoints where conversation_handle = %s", handle
    )
    assert abs((expiry - database.instance.clock()).total_seconds() - 2_147_483_647) < 60


def test_options_of_begin_dialog(database: sb.Database) -> None:
    database.create_broker_priority("High", local_service_name=ORDERS, priority_level=9)
    group = uuid4()
    ((own_broker,),) = query(database, "select service_broker_guid from sys.databases where name = %s", database.name)
    text = (
        "select servicebroker.begin_dialog(%s, %s, %s, %s, lifetime => 60, broker_instance => %s, "
        "related_conversation_group => %s, encryption => false)"
    )
    handles = [
        query(database, text, database.name, ORDERS, STOCK, CONTRACT, broker_instance, group)[0][0]
        for broker_instance in ("CURRENT DATABASE", str(own_broker).upper(), None)
    ]
    columns = "conversation_group_id, priority, encryption, far_broker_instance"
    rows = query(
        database,
        f"select {columns} from servicebroker.conversation_endpoints where conversation_handle = any (%s) "
        "order by array_position(%s, conversation_handle)",
        handles,
        handles,
    )
    assert rows == [(group, 9, False, str(own_broker)), (group, 9, False, str(own_broker)), (group, 9, False, None)]


def test_begin_dialog_refuses_invalid_arguments(database: sb.Database) -> None:
    name = database.name

    def prepare_begin(*values: object, **options: object) -> Callable[[], Any]:
        named = "".join(f", {option} => %s" for option in options)
        marks = ", ".join(["%s"] * len(values))
        return lambda: query(database, f"select servicebroker.begin_dialog({marks}{named})", *values, *options.values())

    assert "'nowhere'" in check_raises(911, prepare_begin("nowhere", ORDERS, STOCK))
    check_raises(8421, prepare_begin(name, None, STOCK))
    check_raises(8421, prepare_begin(name, ORDERS, None))
    check_raises(8417, prepare_begin(name, ORDERS, STOCK, None))
    assert '"//no/such"' in check_raises(8423, prepare_begin(name, "//no/such", STOCK))
    assert "'//no/such'" in check_raises(8425, prepare_begin(name, ORDERS, STOCK, "//no/such"))
    check_raises(8406, prepare_begin(name, ORDERS, STOCK, CONTRACT, None))
    assert "of 0 is outside the allowable range of 1 to 2147483647" in check_raises(
        8411, prepare_begin(name, ORDERS, STOCK, CONTRACT, 0)
    )
    for wrong in ("no guid", "x" * 256):
        assert f"'{wrong}'" in check_raises(1093, prepare_begin(name, ORDERS, STOCK, broker_instance=wrong))
    for wrong in ("x" * 257, "ä" * 129):  # bytes
        assert f"'{wrong[:256]}'" in check_raises(8413, prepare_begin(name, ORDERS, STOCK, broker_instance=wrong))
    assert "ENCRYPTION is NULL" in check_raises(402, prepare_begin(name, ORDERS, STOCK, encryption=None))
    check_raises(8414, prepare_begin(name, ORDERS, STOCK, related_conversation_group=UUID(int=0)))
    for wrong in ("", "x" * 257):
        with pytest.raises(psycopg.Error, match="Msg 15151") as error:
            prepare_begin(name, ORDERS, wrong)()
        assert error.value.sqlstate == "SB000"
    group = uuid4()
    database.create_service("//other", ORDERS_QUEUE)
    prepare_begin(name, "//other", STOCK, related_conversation_group=group)()
    assert str(group) in check_raises(9610, prepare_begin(name, ORDERS, STOCK, related_conversation_group=group))


def test_upkeep_keeps_a_group_in_which_a_dialog_begins(fresh_database: sb.Database, clock: Clock) -> None:
    """The group's only other conversation is a closed target endpoint, which upkeep removes meanwhile."""
    database = fresh_database
    initiator, target = open_dialog(database)
    group = group_of(database, target)
    for handle in (target, initiator):
        database.end_conversation(handle)
    clock.jump(minutes=31)
    text = BEGIN.replace("%s)", "%s, related_conversation_group => %s)")
    with psycopg.connect(database.instance.url) as beginner, database.instance.connection() as connection:
        row = beginner.execute(text, (database.name, STOCK, ORDERS, CONTRACT, group)).fetchone()
        in_thread(run_maintenance, connection, clock()).result(120)
    assert row is not None
    assert group_of(database, row[0]) == group
    assert database.instance.check().findings == []
    assert database.receive(STOCK_QUEUE, conversation_group_id=group) == []  # no error: the group exists


def test_send_refuses_invalid_arguments(database: sb.Database, clock: Clock) -> None:
    handle, target = open_dialog(database)

    def prepare_send(
        handle: UUID | None, message_type: str | None = ORDER, body: bytes | None = b"x"
    ) -> Callable[[], Any]:
        return lambda: sql_send(database, handle, message_type, body)

    check_raises(8418, prepare_send(None))
    unknown = uuid4()
    assert str(unknown) in check_raises(8426, prepare_send(unknown))
    check_raises(8433, prepare_send(handle, body=None))
    for missing in ("//no/such", None):
        check_raises(8428, prepare_send(handle, missing))
    assert f"'{sb.DEFAULT}'" in check_raises(8431, prepare_send(handle, sb.DEFAULT))
    assert f"'{REPLY}'" in check_raises(8432, prepare_send(handle, REPLY))
    check_raises(8434, prepare_send(target, ORDER))
    assert waiting_messages(database) == 0
    assert database.send(handle, ORDER, b"next") == 1  # a refused SEND takes no sequence number
    database.end_conversation(target)
    assert "'DI'" in check_raises(8429, prepare_send(handle))
    database.end_conversation(handle)
    check_raises(8426, prepare_send(handle))
    short = query(database, BEGIN.replace("%s)", "%s, 1)"), database.name, ORDERS, STOCK, CONTRACT)[0][0]
    time.sleep(1.1)
    assert "'ER'" in check_raises(8429, prepare_send(short))


def test_send_refuses_a_body_over_the_limit(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lower limit, because the real one is 512 MB."""
    handle, _ = open_dialog(database)
    monkeypatch.setattr(servicebroker.store.sql_verbs, "MAX_BODY_BYTES", 1000)
    with psycopg.connect(database.instance.url) as connection:  # which is rolled back
        connection.execute(verbs().encode())
        assert connection.execute(SEND, (handle, ORDER, b"x" * 1000)).fetchone() == (1,)
        assert "allowed of 1000" in check_raises(8459, lambda: connection.execute(SEND, (handle, ORDER, b"x" * 1001)))


def test_a_refused_send_leaves_no_lock(database: sb.Database) -> None:
    with database.instance.connection() as connection:
        connection.execute("begin")
        connection.execute("savepoint before")
        with pytest.raises(psycopg.Error, match="8426"):
            connection.execute(SEND, (uuid4(), ORDER, b"x"))
        connection.execute("rollback to savepoint before")
        in_thread(database.alter_queue, STOCK_QUEUE, status=True).result(5)
        connection.execute("rollback")


def test_a_rollback_undoes_a_send(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with database.instance.connection() as connection:
        connection.execute("begin")
        assert connection.execute(SEND, (handle, ORDER, b"gone")).fetchone() == (1,)
        connection.rollback()
    assert sql_send(database, handle, ORDER, b"here") == 1
    assert deliver_messages(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"here"]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_sends_of_both_kinds_stay_in_order(database: sb.Database, opened: bool, together: bool) -> None:
    handle = begin(database)
    expected = []
    if opened:
        database.send(handle, ORDER, b"0")
        expected.append(b"0")
    with database.instance.connection() as connection:
        if together:
            connection.execute("begin")
        verbs = database.join(connection)
        for number in range(1, 10):
            body = str(number).encode()
            expected.append(body)
            if number % 3:
                connection.execute(SEND, (handle, ORDER, body))
            else:
                verbs.send(handle, ORDER, body)
        if together:
            connection.execute("commit")
    assert waiting_messages(database) == 0  # the last SEND has delivered the earlier messages
    messages = database.receive(STOCK_QUEUE)
    assert bodies(messages) == expected
    assert [m.message_sequence_number for m in messages] == list(range(len(expected)))


def test_end_while_messages_wait(database: sb.Database) -> None:
    handle, target = open_dialog(database)
    sql_send(database, handle, ORDER, b"last")
    database.end_conversation(handle)
    assert state(database, handle) == "DO"
    assert deliver_messages(database)
    messages = database.receive(STOCK_QUEUE)
    assert (messages[0].message_body, messages[1].is_end_dialog) == (b"last", True)
    database.end_conversation(target)
    assert state(database, handle) is None


def test_messages_to_a_side_that_has_ended_are_dropped(database: sb.Database) -> None:
    handle, target = open_dialog(database)
    database.alter_queue(ORDERS_QUEUE, status=False)
    database.end_conversation(target)  # the EndDialog waits
    assert sql_send(database, handle, ORDER, b"to nobody") == 1
    assert waiting_messages(database) == 1
    database.alter_queue(ORDERS_QUEUE, status=True)
    assert [m.is_end_dialog for m in database.receive(ORDERS_QUEUE)] == [True]
    assert database.receive(STOCK_QUEUE) == []


def test_sent_messages_are_retained_in_the_senders_queue(database: sb.Database) -> None:
    database.alter_queue(ORDERS_QUEUE, retention=True)
    handle = sql_begin(database)
    sql_send(database, handle, ORDER, b"kept")
    sql_send(database, handle, ORDER, b"")
    view = (
        f"select status, message_sequence_number, message_type_name, message_body from {database.name}_dbo.ordersqueue"
    )
    assert query(database, view) == [(3, 0, ORDER, b"kept"), (3, 1, ORDER, None)]
    assert deliver_messages(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"kept", None]
    database.alter_queue(ORDERS_QUEUE, status=False)
    check_raises(9618, lambda: sql_send(database, handle, ORDER, b"refused"))
    database.alter_queue(ORDERS_QUEUE, status=True)
    database.end_conversation(handle)
    assert query(database, view) == []


def test_a_revoke_at_the_target_holds_for_sql_too(database: sb.Database) -> None:
    database.create_user("Team")
    database.alter_authorization("Team", service=ORDERS)
    database.grant("SEND", "Team", service=STOCK)
    handle = sql_begin(database)
    for number in range(2):
        sql_send(database, handle, ORDER, b"allowed")
        assert deliver_messages(database)
        assert bodies(database.receive(STOCK_QUEUE)) == [b"allowed"], number
    database.revoke("SEND", "Team", service=STOCK)
    sql_send(database, handle, ORDER, b"refused")
    assert deliver_messages(database)
    assert errors(database.receive(ORDERS_QUEUE)) == [-8494]
    assert errors(database.receive(STOCK_QUEUE)) == [-8494]
    assert waiting_messages(database) == 0


def test_the_receiver_validates_at_delivery(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    for body in (b"<a/>", b"<a>", b"<b/>"):
        sql_send(database, handle, DOCUMENT, body)
    assert deliver_messages(database)
    assert errors(database.receive(ORDERS_QUEUE)) == [-9615]
    messages = database.receive(STOCK_QUEUE)
    assert (errors(messages), bodies(messages)[1:]) == ([-9616], [b"<a/>"])


def test_errors_of_the_target_reach_the_initiator(instance: sb.Instance, database: sb.Database) -> None:
    handle = sql_begin(database, contract=sb.DEFAULT)
    sql_send(database, handle, sb.DEFAULT, b"x")
    assert deliver_messages(database)
    assert errors(database.receive(ORDERS_QUEUE)) == [-8408]
    far = define_standard_set(instance.database(f"{database.name}Far", create=True))
    handle = begin(far, "//far/nowhere", broker_instance=broker_of(database))
    sql_send(far, handle, ORDER, b"x")
    assert deliver_messages(far)
    assert errors(far.receive(ORDERS_QUEUE)) == [-8490]
    gone, target = open_dialog(database)
    database.end_conversation(target, cleanup=True)
    sql_send(database, gone, ORDER, b"x")
    assert deliver_messages(database)
    assert errors(database.receive(ORDERS_QUEUE)) == [-8462]


def broker_of(database: sb.Database) -> UUID:
    text = "select service_broker_guid from servicebroker.databases where database_id = %s"
    broker: UUID = query(database, text, database.database_id)[0][0]
    return broker


def test_an_undelivered_message_has_a_status_and_is_delivered_later(database: sb.Database) -> None:
    nowhere, (handle, _) = begin(database, "//sql/later"), open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    sql_send(database, nowhere, ORDER, b"early")
    sql_send(database, handle, ORDER, b"waits")
    assert statuses(database) == {""}
    assert deliver_messages(database)
    assert any("no service by that name" in status for status in statuses(database))
    assert waiting_messages(database) == 2
    database.alter_queue(STOCK_QUEUE, status=True)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"waits"]
    database.create_service("//sql/later", STOCK_QUEUE, [CONTRACT])
    assert bodies(database.receive(STOCK_QUEUE)) == [b"early"]


def test_delivery_skips_locked_conversations(database: sb.Database) -> None:
    busy, _ = open_dialog(database)
    free, _ = open_dialog(database)
    with database.instance.connection() as connection:
        connection.execute("begin")
        connection.execute(SEND, (busy, ORDER, b"later"))
        sql_send(database, free, ORDER, b"now")
        assert deliver_messages(database)  # uncommitted messages are invisible
        assert bodies(database.receive(STOCK_QUEUE)) == [b"now"]
        connection.execute("commit")
    with database.instance.connection() as connection:
        connection.execute("begin")
        connection.execute(SEND, (busy, ORDER, b"uncommitted"))
        sql_send(database, free, ORDER, b"now too")
        assert not deliver_messages(database)  # the conversation `busy` is locked
        assert bodies(database.receive(STOCK_QUEUE)) == [b"now too"]
        connection.rollback()
    assert deliver_messages(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"later"]


def test_public_may_not_execute_the_functions(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    other_schema = f"hostile_{uuid4().hex}"
    with database.instance.connection() as connection, pytest.raises(ZeroDivisionError), connection.transaction():
        connection.execute("create role sql_sender")
        connection.execute("grant usage on schema servicebroker to sql_sender")
        for statement, values in ((BEGIN, (database.name, ORDERS, STOCK, CONTRACT)), (SEND, (handle, ORDER, b"x"))):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute("set local role sql_sender")
                connection.execute(statement, values)
        connection.execute("grant execute on function servicebroker.send, servicebroker.begin_dialog to sql_sender")
        # the functions do not use objects of the caller's search_path
        connection.execute(f"create schema {other_schema}")  # type: ignore[call-overload]
        connection.execute(
            f"create function {other_schema}.hashtext(text) returns integer language sql as $$ select 1/0 $$"  # type: ignore[call-overload]
        )
        connection.execute(f"grant usage on schema {other_schema} to sql_sender")  # type: ignore[call-overload]
        connection.execute("set local role sql_sender")
        connection.execute(f"set local search_path = {other_schema}, pg_catalog")  # type: ignore[call-overload]
        row = connection.execute(BEGIN, (database.name, ORDERS, STOCK, CONTRACT)).fetchone()
        assert row is not None
        assert connection.execute(SEND, (row[0], ORDER, b"x")).fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute("select from servicebroker.conversation_endpoints")
        raise ZeroDivisionError  # roll back everything, including the role


@pytest.fixture
def maintained_database(
    open_face: Callable[..., AbstractContextManager[sb.Instance]], make_instance_url: Callable[..., str]
) -> Iterator[sb.Database]:
    """A database with the standard set, in an instance with upkeep every minute."""
    with open_face(make_instance_url(), upkeep=60) as instance:
        yield define_standard_set(instance.database("Served", create=True))


@pytest.mark.usefixtures("without_polls")
@pytest.mark.both_apis
def test_a_message_is_delivered_as_soon_as_it_is_committed(
    maintained_database: sb.Database,
) -> None:
    times = []
    with psycopg.connect(maintained_database.instance.url, autocommit=True) as connection:
        for number in range(20):
            reader = in_thread(maintained_database.receive, STOCK_QUEUE, wait=30)
            eventually(lambda: query(maintained_database, "select from servicebroker.waiting_readers"))
            start = time.monotonic()
            with connection.transaction():
                row = connection.execute(BEGIN, ("Served", ORDERS, STOCK, CONTRACT)).fetchone()
                assert row is not None
                connection.execute(SEND, (row[0], ORDER, str(number)))
            assert bodies(reader.result(10)) == [str(number).encode()]
            times.append(time.monotonic() - start)
    assert sorted(times)[10] < 0.5  # a few milliseconds on an idle machine


@pytest.mark.both_apis
def test_messages_sent_while_no_instance_was_open(
    open_face: Callable[..., AbstractContextManager[sb.Instance]], make_instance_url: Callable[..., str]
) -> None:
    url = make_instance_url()
    with sb.open(url, upkeep=None) as instance:
        define_standard_set(instance.database("Closed", create=True))
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(BEGIN, ("Closed", ORDERS, STOCK, CONTRACT)).fetchone()
        assert row is not None
        connection.execute(SEND, (row[0], ORDER, b"kept"))
    with open_face(url, upkeep=60) as instance:
        assert bodies(instance.database("Closed").receive(STOCK_QUEUE, wait=10)) == [b"kept"]


@pytest.mark.slow
@pytest.mark.parametrize("analyzed", [False, True])
def test_messages_for_a_disabled_queue_are_not_read_for_each_message(
    fresh_database: sb.Database, analyzed: bool
) -> None:
    database = fresh_database
    database.create_queue("Off")
    database.create_service("//test/off", "Off", [CONTRACT])
    handles = [begin(database, "//test/off") for _ in range(4)]
    database.send(handles[0], ORDER, b"opens")
    database.alter_queue("Off", status=False)
    for handle in handles:
        database.send_batch(handle, ORDER, [b"x"] * 12_500)
    with psycopg.connect(database.instance.url) as connection:
        if analyzed:
            connection.execute("analyze")
        since = run(connection, find_oldest_writer())
        for _ in range(3):
            sql_send(database, sql_begin(database), ORDER, b"on")
        assert not run(connection, deliver_left_over(Catalog(), database.instance.clock(), since))
        ((rows_read,),) = connection.execute(
            "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relname = 'transmission_queue'"
        ).fetchall()
    assert sum(len(database.receive(STOCK_QUEUE)) for _ in range(3)) == 3
    assert waiting_messages(database) == 50_000
    assert rows_read < 100


@pytest.mark.both_apis
def test_messages_of_a_long_transaction_are_delivered(maintained_database: sb.Database) -> None:
    """The transaction began before messages that were already delivered."""
    with psycopg.connect(maintained_database.instance.url) as connection:
        connection.execute("select pg_current_xact_id()")
        sql_send(maintained_database, sql_begin(maintained_database), ORDER, b"younger")
        assert bodies(maintained_database.receive(STOCK_QUEUE, wait=120)) == [b"younger"]
        row = connection.execute(BEGIN, ("Served", ORDERS, STOCK, CONTRACT)).fetchone()
        assert row is not None
        connection.execute(SEND, (row[0], ORDER, b"older"))
        sql_send(maintained_database, sql_begin(maintained_database), ORDER, b"youngest")
        assert bodies(maintained_database.receive(STOCK_QUEUE, wait=120)) == [b"youngest"]
    assert bodies(maintained_database.receive(STOCK_QUEUE, wait=120)) == [b"older"]


@pytest.mark.both_apis
def test_upkeep_warns_after_a_statement_timeout(
    maintained_database: sb.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (servicebroker.api.maintenance, servicebroker.api.aio.maintenance):
        monkeypatch.setattr(module, "_STATEMENT_TIMEOUT_MS", 50)
    text = (
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name = 'servicebroker maintenance' and datname = current_database()"
    )
    handle = sql_begin(maintained_database)
    with psycopg.connect(maintained_database.instance.url) as connection:
        connection.execute("lock table servicebroker.transmission_queue")
        query(maintained_database, text)  # the new connection has the new timeout
        eventually(lambda: [line for line in caplog.records if line.levelname == "WARNING"])
    assert "maintenance: canceling statement due to statement timeout" in caplog.text
    monkeypatch.undo()
    sql_send(maintained_database, handle, ORDER, b"x")
    assert bodies(maintained_database.receive(STOCK_QUEUE, wait=120)) == [b"x"]


@pytest.mark.both_apis
def test_upkeep_does_not_delay_the_close_of_an_instance(
    open_face: Callable[..., AbstractContextManager[sb.Instance]], make_instance_url: Callable[..., str]
) -> None:
    times = []
    for _ in range(3):
        with open_face(make_instance_url(), upkeep=60) as instance:
            time.sleep(0.2)  # until upkeep listens
            start = time.monotonic()
        times.append(time.monotonic() - start)
        assert not [thread for thread in threading.enumerate() if thread.name == "servicebroker maintenance"]
        assert instance.url
    assert min(times) < 0.6  # no wait for the interval of upkeep


@pytest.mark.both_apis
def test_upkeep_reconnects(maintained_database: sb.Database) -> None:
    text = (
        "select pg_terminate_backend(pid) from pg_stat_activity "
        "where application_name = 'servicebroker maintenance' and datname = current_database()"
    )
    assert query(maintained_database, text)
    eventually(lambda: query(maintained_database, text.replace("pg_terminate_backend(pid)", "pid")))
    handle = sql_begin(maintained_database)
    sql_send(maintained_database, handle, ORDER, b"x")
    assert bodies(maintained_database.receive(STOCK_QUEUE, wait=20)) == [b"x"]


@pytest.mark.both_apis
def test_upkeep_after_transaction_ids_were_reused(maintained_database: sb.Database) -> None:
    """After a failover or a crash the server may assign lower transaction ids than upkeep has already seen."""
    sql_send(maintained_database, sql_begin(maintained_database), ORDER, b"1")
    assert bodies(maintained_database.receive(STOCK_QUEUE, wait=60)) == [b"1"]
    maintained_database.instance._maintenance._since += 1_000_000
    sql_send(maintained_database, sql_begin(maintained_database), ORDER, b"2")
    assert bodies(maintained_database.receive(STOCK_QUEUE, wait=30)) == [b"2"]


def test_a_trigger_sends_a_message(maintained_database: sb.Database) -> None:
    """Run the example of docs/how-to/send-from-a-trigger.md."""
    page = (Path(__file__).parents[3] / "docs/how-to/send-from-a-trigger.md").read_text()
    statements = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    shop = maintained_database.instance.database("Shop", create=True)
    shop.create_message_type("//shop/Order")
    shop.create_contract("//shop/Orders", {"//shop/Order": "INITIATOR"})
    for queue, service, contracts in (("Sales", "//shop/Sales", []), ("Stock", "//shop/Stock", ["//shop/Orders"])):
        shop.create_queue(queue)
        shop.create_service(service, queue, contracts)
    with psycopg.connect(maintained_database.instance.url, autocommit=True) as connection:
        connection.execute("create role shop_app")
        rights = {"send": ["//shop/Stock"], "receive": ["Sales"], "contracts": ["//shop/Orders"]}
        maintained_database.instance.grant_rights("shop_app", database="Shop", **rights)
        for statement in statements:
            with connection.transaction():
                if "servicebroker_fence" in statement:
                    connection.execute("set local role shop_app")
                connection.execute(statement.encode())
        maintained_database.instance.revoke_rights("shop_app")
        connection.execute("drop owned by shop_app")
        connection.execute("drop role shop_app")
        with connection.transaction(force_rollback=True):
            connection.execute("insert into orders (item, quantity) values ('undone', 1)")
    messages = shop.receive("Stock", wait=20)
    assert bodies(messages) == [b'{"id":1,"item":"teapot","quantity":3}']
    time.sleep(0.1)
    assert shop.receive("Stock") == []


@pytest.mark.slow
def test_concurrent_senders_in_sql_and_python_keep_the_order(
    make_instance_url: Callable[..., str], seeded_random: random.Random
) -> None:
    """No message is lost, duplicated or out of order on conversations with senders in SQL and Python."""
    with sb.open(make_instance_url(), upkeep=0.05) as instance:
        database = define_standard_set(instance.database("Both", create=True))
        handles = [begin(database) for _ in range(3)]
        seconds, stop, sent_all = 4.0, threading.Event(), threading.Event()
        seeds = [seeded_random.random() for _ in range(4)]

        def send(seed: float) -> None:
            own = random.Random(seed)
            while not stop.is_set():
                handle, body = own.choice(handles), uuid4().hex.encode()
                with instance.connection() as connection:
                    connection.execute("begin")
                    verbs = database.join(connection)
                    for _ in range(own.randrange(1, 4)):
                        if own.random() < 0.5:
                            connection.execute(SEND, (handle, ORDER, body))
                        else:
                            verbs.send(handle, ORDER, body)
                    connection.execute("commit" if own.random() < 0.8 else "rollback")

        numbers: dict[UUID, list[int]] = {}

        def read() -> None:
            while not (sent_all.is_set() and waiting_messages(database) == 0):
                for message in database.receive(STOCK_QUEUE, wait=0.1):
                    numbers.setdefault(message.conversation_handle, []).append(message.message_sequence_number)
            for _ in handles:
                for message in database.receive(STOCK_QUEUE):
                    numbers.setdefault(message.conversation_handle, []).append(message.message_sequence_number)

        workers = [in_thread(send, seed) for seed in seeds]
        reader = in_thread(read)
        time.sleep(seconds)
        stop.set()
        for worker in workers:
            worker.result(30)
        sent_all.set()
        reader.result(60)
        text = "select send_sequence from servicebroker.conversation_endpoints where conversation_handle = %s"
        for handle in handles:
            ((sent,),) = query(database, text, handle)
            assert sent > 10
            assert numbers[peer_handle(database, handle)] == list(range(sent))
