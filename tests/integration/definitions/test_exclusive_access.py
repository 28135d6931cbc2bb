"""Exclusive access to a database: ENABLE_BROKER, NEW_BROKER, NO_WAIT, ROLLBACK AFTER, and DROP DATABASE."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    DOCUMENT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    define_standard_set,
    errors,
    eventually,
    in_thread,
    leftovers,
    open_dialog,
    query,
    refused,
    result_or_none,
    waiting_messages,
)

pytestmark = pytest.mark.both_apis

SWITCHES = [{"enable_broker": True}, {"new_broker": True}]


@pytest.fixture
def other_database(instance: sb.Instance) -> sb.Database:
    return define_standard_set(instance.database(f"Other{uuid4().hex}", create=True))


@pytest.mark.feature(5)
@pytest.mark.parametrize("switch", SWITCHES, ids=repr)
@pytest.mark.parametrize("use", ["send", "receive"])
def test_a_switch_waits_for_transactions_of_the_database(
    database: sb.Database, switch: dict[str, Any], use: str
) -> None:
    handle, _ = open_dialog(database)
    database.send(handle, ORDER, b"there")
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"x") if use == "send" else transaction.receive(STOCK_QUEUE)
        switched = in_thread(database.alter, **switch)
        time.sleep(0.5)
        assert not switched.done()
        # meanwhile no other session has to wait
        assert database.send(begin(database), ORDER, b"y") == 0
    switched.result(10)


@pytest.mark.feature(5)
@pytest.mark.parametrize("switch", SWITCHES, ids=repr)
def test_a_switch_waits_for_a_transaction_that_begins_a_dialog(database: sb.Database, switch: dict[str, Any]) -> None:
    with database.transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, related_conversation_group=uuid4())
        with refused(5070, database.name):
            database.alter(**switch, no_wait=True)
        switched = in_thread(database.alter, **switch)
        time.sleep(0.5)
        assert not switched.done()
    switched.result(10)
    if "new_broker" in switch:
        with refused(8426):
            database.send(handle, ORDER, b"x")
        assert not query(
            database,
            "select from servicebroker.conversation_groups join servicebroker.services using (service_id) "
            f"where database_id = {database.database_id}",
        )
    else:
        assert database.send(handle, ORDER, b"x") == 0


@pytest.mark.feature(5)
@pytest.mark.parametrize("switch", SWITCHES, ids=repr)
def test_no_wait_is_refused(database: sb.Database, other_database: sb.Database, switch: dict[str, Any]) -> None:
    handle, _ = open_dialog(database)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"x")
        with refused(5070, database.name):
            database.alter(**switch, no_wait=True)
        other_database.alter(**switch, no_wait=True)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]
    database.alter(**switch, no_wait=True)


@pytest.mark.feature(5)
@pytest.mark.parametrize("switch", SWITCHES, ids=repr)
@pytest.mark.parametrize("seconds", [0, 0.5])
def test_rollback_ends_only_sessions_that_use_this_database(
    database: sb.Database, other_database: sb.Database, switch: dict[str, Any], seconds: float
) -> None:
    handle, _ = open_dialog(database)
    elsewhere, _ = open_dialog(other_database)
    instance = database.instance
    with other_database.transaction() as bystander, pytest.raises(sb.InstanceError, match="PostgreSQL went away"):
        bystander.send(elsewhere, ORDER, b"stays")
        with instance.connection() as idle:  # a session that used the database before, and holds no lock
            database.join(idle).send(handle, ORDER, b"committed")
            with database.transaction() as transaction:
                transaction.send(handle, ORDER, b"gone")
                began = time.monotonic()
                database.alter(**switch, rollback_after=seconds)
                assert time.monotonic() - began >= seconds
                assert idle.execute("select 1").fetchall() == [(1,)]
                transaction.send(handle, ORDER, b"too late")
    assert bodies(other_database.receive(STOCK_QUEUE)) == [b"stays"]
    assert bodies(database.receive(STOCK_QUEUE)) == ([b"committed"] if "enable_broker" in switch else [])


def test_a_transaction_that_commits_in_time_is_not_ended(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"x")
        switched = in_thread(database.alter, enable_broker=True, rollback_after=20)
        time.sleep(0.3)
    switched.result(10)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]


def test_a_reader_of_a_queue_view_does_not_delay_a_switch(database: sb.Database) -> None:
    with psycopg.connect(database.instance.url) as connection:
        connection.execute(f"select from {database.name.lower()}_dbo.stockqueue".encode())
        database.alter(enable_broker=True, no_wait=True)
        database.alter(new_broker=True, no_wait=True)


@pytest.mark.parametrize("wrong", [-1, "0", True, float("nan")])
def test_seconds_that_are_refused(database: sb.Database, wrong: Any) -> None:
    with refused(402, "ROLLBACK AFTER"):
        database.alter(enable_broker=True, rollback_after=wrong)
    with refused(402):
        database.alter(enable_broker=True, rollback_after=1, no_wait=True)


@pytest.mark.slow
def test_switching_a_busy_database_causes_no_deadlock(database: sb.Database, seeded_random: random.Random) -> None:
    """Transactions use both queues in either order, and ALTER DATABASE waits for them: no deadlock."""
    dialogs = [open_dialog(database) for _ in range(4)]
    stop = threading.Event()

    def use(dialog: tuple[Any, Any], seed: float) -> int:
        own, rounds = random.Random(seed), 0
        while not stop.is_set():
            with database.transaction() as transaction:
                steps: list[Callable[[], Any]] = [
                    lambda t=transaction: t.send(dialog[0], ORDER, b"x"),  # type: ignore[misc]
                    lambda t=transaction: t.send(dialog[1], DOCUMENT, b"<a/>"),  # type: ignore[misc]
                    lambda t=transaction: t.receive(STOCK_QUEUE),  # type: ignore[misc]
                ]
                own.shuffle(steps)
                for step in steps:
                    step()
                    time.sleep(own.random() / 100)
            rounds += 1
        return rounds

    workers = [in_thread(use, dialog, seeded_random.random()) for dialog in dialogs]
    for _ in range(5):
        database.alter(enable_broker=True)
        time.sleep(0.1)
    stop.set()
    assert all(worker.result(30) > 0 for worker in workers)


# ---------------------------------------------------------------- DROP DATABASE


def test_drop_database_leaves_nothing(fresh_instance: sb.Instance) -> None:
    before = _database_content(fresh_instance.database("msdb"))
    database = define_standard_set(fresh_instance.database("Gone", create=True))
    database.create_queue("Sales.Queue", activation=sb.Activation("p", 1, "SELF"))
    database.create_broker_priority("Any", contract_name=CONTRACT, local_service_name=STOCK)
    database.create_xml_schema_collection("C", '<schema xmlns="http://www.w3.org/2001/XMLSchema"/>')
    database.create_message_type("//valid", "VALID_XML", schema_collection="C")
    open_dialog(database)
    database.send(begin(database, "//nowhere"), ORDER, b"waits")
    fresh_instance.drop_database("gone")
    msdb = fresh_instance.database("msdb")
    assert _database_content(msdb) == before
    assert leftovers(msdb) == {}
    with refused(911, "Gone"):
        fresh_instance.database("Gone")
    again = define_standard_set(fresh_instance.database("Gone", create=True))
    again.send(begin(again), ORDER, b"new")
    assert bodies(again.receive(STOCK_QUEUE)) == [b"new"]


def _database_content(database: sb.Database) -> list[tuple[Any, ...]]:
    """Return our tables, sequences, views and functions, all schemas, and the row counts of the catalog."""
    rows = query(
        database,
        "select relnamespace::regnamespace::text || '.' || relname from pg_class where relkind in ('r', 'v', 'S') "
        "and relnamespace::regnamespace::text !~ '^(pg_|information_schema)' "
        "union all select oid::regprocedure::text from pg_proc where pronamespace = 'servicebroker'::regnamespace "
        "union all select nspname::text from pg_namespace where nspname !~ '^pg_' order by 1",
    )
    tables = query(
        database,
        "select tablename::text from pg_tables "
        "where schemaname = 'servicebroker' and tablename !~ '_probes|waiting|audit'",
    )
    counts = [(t, query(database, f"select count(*) from servicebroker.{t}")[0][0]) for (t,) in sorted(tables)]  # type: ignore[arg-type]
    return [*rows, *counts]


@pytest.mark.feature(7)
def test_verbs_in_a_database_that_was_dropped(instance: sb.Instance) -> None:
    database = define_standard_set(instance.database(f"Drop{uuid4().hex}", create=True))
    handle, target = open_dialog(database)
    with sb.open(instance.url, upkeep=None) as another:
        second_database = another.database(database.name)
        second_database.receive(STOCK_QUEUE)
        remembered = second_database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        second_database.send(remembered, ORDER, b"x")
        waiting = in_thread(second_database.receive, ORDERS_QUEUE, wait=30)
        eventually(lambda: query(database, "select from servicebroker.waiting_readers"))
        instance.drop_database(database.name)
        with refused(8442):
            waiting.result(10)
        verbs: list[Callable[[Any], Any]] = [
            lambda v: v.begin_dialog(ORDERS, STOCK, contract=CONTRACT),
            lambda v: v.send(handle, ORDER, b"x"),
            lambda v: v.send(remembered, ORDER, b"x"),
            lambda v: v.send_batch(remembered, ORDER, [b"x"]),
            lambda v: v.receive(STOCK_QUEUE),
            lambda v: v.get_conversation_group(ORDERS_QUEUE),
            lambda v: v.move_conversation(target, uuid4()),
            lambda v: v.end_conversation(handle),
            lambda v: v.begin_conversation_timer(handle, 5),
        ]
        for verb in verbs:
            for each in (database, second_database):
                with refused(8442, "no Service Broker active"):
                    verb(each)
        with refused(8442):
            second_database.create_queue("Q")
        with refused(8442):
            second_database.create_message_type("//new")
        with second_database.transaction() as transaction:
            with refused(8442):
                transaction.begin_dialog(ORDERS, STOCK)
            assert transaction.connection.execute("select 1").fetchall() == [(1,)]


def test_drop_database_takes_the_views_over_its_queues(fresh_instance: sb.Instance) -> None:
    shop = fresh_instance.database("Shop", create=True)
    shop.execute_tsql("CREATE QUEUE Inbox\nGO\nCREATE VIEW Look AS SELECT * FROM Inbox")
    fresh_instance.drop_database("Shop")
    again = fresh_instance.database("Shop", create=True)
    again.execute_tsql("CREATE QUEUE Inbox\nGO\nCREATE VIEW Look AS SELECT * FROM Inbox")
    fresh_instance.database("master", create=True).execute_tsql("DROP DATABASE Shop")
    assert fresh_instance.database("Shop", create=True).execute_tsql("SELECT OBJECT_ID('Look')").rows == [(None,)]


def test_drop_database_that_is_in_use(database: sb.Database, other_database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"x")
        with refused(3702, database.name):
            database.instance.drop_database(database.name)
        database.instance.drop_database(other_database.name)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]
    with pytest.raises(sb.InstanceError), database.transaction() as transaction:
        transaction.send(handle, ORDER, b"x")
        database.instance.drop_database(database.name, rollback_after=0)
        transaction.send(handle, ORDER, b"too late")
    with refused(911):
        database.instance.database(database.name)


def test_the_system_database_stays(instance: sb.Instance) -> None:
    for name in ("msdb", "MSDB"):
        with refused(3708, "msdb"):
            instance.drop_database(name, rollback_after=0)
    with refused(911):
        instance.drop_database("nowhere")
    assert instance.database("msdb").receive("ServiceBrokerQueue") == []


def test_dropping_a_database_drops_messages_to_it_and_fails_its_peers(
    database: sb.Database, other_database: sb.Database
) -> None:
    other_database.create_service("//there", STOCK_QUEUE, [CONTRACT])
    handle = begin(database, "//there")
    database.send(handle, ORDER, b"x")
    other_database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"waits")
    database.instance.drop_database(other_database.name)
    assert (waiting_messages(database), database.receive(ORDERS_QUEUE)) == (0, [])
    database.send(handle, ORDER, b"to nobody")
    assert errors(database.receive(ORDERS_QUEUE)) == [-8462]
    database.end_conversation(handle)


def test_tables_of_the_applications_own_stay(instance: sb.Instance) -> None:
    database = define_standard_set(instance.database(f"Own{uuid4().hex}", create=True))
    schema = f"{database.name.lower()}_dbo"
    with instance.connection() as connection:
        connection.execute(f"create table {schema}.mine (a integer)".encode())
    instance.drop_database(database.name)
    msdb = instance.database("msdb")
    assert query(msdb, "select tablename::text from pg_tables where schemaname = %s", schema) == [("mine",)]
    assert query(msdb, "select from pg_views where schemaname = %s", schema) == []


@pytest.mark.slow
def test_a_database_is_dropped_while_others_speak_to_it(instance: sb.Instance, database: sb.Database) -> None:
    for _ in range(3):
        gone = define_standard_set(instance.database(f"Race{uuid4().hex}", create=True))
        gone.create_service(f"//{gone.name}", STOCK_QUEUE, [CONTRACT])
        stop = threading.Event()

        def speak(to: str = f"//{gone.name}", stop: threading.Event = stop) -> None:
            while not stop.is_set():
                handle = begin(database, to)
                for _ in range(3):
                    result_or_none(lambda: database.send(handle, ORDER, b"x"), 8429)  # noqa: B023
                database.end_conversation(handle, cleanup=True)

        workers = [in_thread(speak) for _ in range(3)]
        time.sleep(0.5)
        instance.drop_database(gone.name, rollback_after=0.5)
        time.sleep(0.2)
        stop.set()
        for worker in workers:
            tried_or_ended(worker)
    text = (
        "select from servicebroker.conversation_endpoints e "
        "where not exists (select from servicebroker.databases d where d.database_id = e.database_id)"
    )
    assert query(database, text) == []


def tried_or_ended(worker: Any) -> None:
    problem = worker.exception(20)
    assert problem is None or isinstance(problem, sb.InstanceError), problem
