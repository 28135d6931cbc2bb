"""`servicebroker check`: each planted fault is found, and a healthy instance has no findings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest

import servicebroker as sb
from forked import run_command
from servicebroker.engine.diagnosis.consistency import changes_of
from servicebroker.store.expected_objects import find_changed_objects, is_foreign
from servicebroker.store.migrations import mend
from servicebroker.store.running import run
from support import (
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    Clock,
    begin,
    group_of,
    open_dialog,
    query,
    queue_number,
)


def numbers(instance: sb.Instance) -> set[int]:
    return {finding.number for finding in instance.check().findings}


def busy(database: sb.Database) -> None:
    """Create conversations in every state, with messages in queues and in transmission."""
    initiator, target = open_dialog(database)
    database.send(target, REPLY, b"there")
    ended, _ = open_dialog(database)
    database.end_conversation(ended)
    closed, _ = open_dialog(database)
    database.end_conversation(closed, error=(5, "no"))
    gone, moved = open_dialog(database)
    database.move_conversation(moved, group_of(database, target))
    database.send(gone, ORDER, b"in another group")
    left, _ = open_dialog(database)
    database.end_conversation(left, cleanup=True)
    finished, answered = open_dialog(database)
    database.end_conversation(answered)
    database.end_conversation(finished)
    begin(database)
    database.send(begin(database, "//nowhere"), ORDER, b"waits")
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(initiator, ORDER, b"parked")
    database.end_conversation(initiator)
    database.send(begin(database), ORDER, b"for a queue that is off")


@pytest.mark.both_apis
@pytest.mark.feature(203)
def test_a_whole_instance_has_no_fault(fresh_database: sb.Database, clock: Clock) -> None:
    busy(fresh_database)
    analyzed, findings = fresh_database.instance.check()
    assert findings == []
    assert analyzed["Service Queues"] == 8
    assert analyzed["Services"] == 8
    assert analyzed["Conversation Endpoints"] > 10
    assert set(analyzed) == {
        "Conversation Priorities",
        "Services",
        "Service Queues",
        "Conversation Endpoints",
        "Conversation Groups",
        "Message Types",
        "Service Contracts",
    }
    clock.jump(minutes=10)
    assert fresh_database.instance.check().findings == []


THIS = "where conversation_handle = '{handle}'"

PLANTED = {
    9680: "delete from servicebroker.conversation_groups where conversation_group_id = '{group}'",
    9681: f"update servicebroker.conversation_endpoints set service_contract_id = 1000000 {THIS}",
    9682: f"update servicebroker.conversation_endpoints set service_id = 1000000 {THIS}",
    9683: "insert into servicebroker.conversation_groups values (gen_random_uuid(), 1000000)",
    9705: "update servicebroker.queue_{queue} set conversation_handle = gen_random_uuid()",
    9708: "update servicebroker.queue_{queue} set conversation_group_id = gen_random_uuid()",
    9709: "update servicebroker.queue_{queue} set message_type_id = 1000000",
    9711: "insert into servicebroker.transmission_queue "
    "(conversation_handle, message_sequence_number, message_type_name) values (gen_random_uuid(), 0, 'x')",
    9716: "insert into servicebroker.conversation_groups "
    "select gen_random_uuid(), service_id from servicebroker.services",
    8444: "drop view {view}",
}

INCONSISTENT = [
    "set queue_id = {other_queue}",
    "set far_queue_id = {other_queue}",
    "set far_group_id = gen_random_uuid()",
    "set far_handle = gen_random_uuid()",
    "set conversation_id = gen_random_uuid()",
]


def plant(database: sb.Database, text: str) -> sb.Instance:
    handle, _ = open_dialog(database)
    database.send(handle, ORDER, b"there")
    ids = dict(
        query(
            database,
            "select name, object_id from sys.service_queues where broker_database = %s",
            database.name,
        )
    )
    values = {
        "handle": handle,
        "group": group_of(database, handle),
        "queue": ids[STOCK_QUEUE],
        "other_queue": ids[ORDERS_QUEUE] if "far_queue_id" in text else ids[STOCK_QUEUE],
        "view": f"{database.name}_dbo.stockqueue",
    }
    with database.instance.connection() as connection:
        connection.execute(text.format(**values).encode())
    return database.instance


@pytest.mark.feature(203)
@pytest.mark.parametrize("number", PLANTED)
def test_a_fault_is_found(fresh_database: sb.Database, number: int) -> None:
    assert number in numbers(plant(fresh_database, PLANTED[number]))


@pytest.mark.feature(203)
def test_a_shared_body_that_is_gone_and_a_retained_message_that_is_left(fresh_database: sb.Database) -> None:
    fresh_database.alter_queue(ORDERS_QUEUE, retention=True)
    handles = [begin(fresh_database), begin(fresh_database)]
    fresh_database.send(handles, ORDER, b"for both")
    fresh_database.receive(ORDERS_QUEUE)
    assert numbers(fresh_database.instance) == set()
    retained = f"select 'servicebroker.retained_' || queue_id from servicebroker.queues where name = '{ORDERS_QUEUE}'"
    ((table,),) = query(fresh_database, retained)
    with fresh_database.instance.connection() as connection:
        connection.execute("delete from servicebroker.shared_body_readers")
        connection.execute(f"update {table} set conversation_handle = gen_random_uuid()".encode())
    assert numbers(fresh_database.instance) == {8444, 9705}


@pytest.mark.feature(203)
@pytest.mark.parametrize("change", INCONSISTENT)
def test_an_endpoint_that_does_not_fit_its_peer(fresh_database: sb.Database, change: str) -> None:
    assert 9715 in numbers(plant(fresh_database, f"update servicebroker.conversation_endpoints {change} {THIS}"))


@pytest.mark.feature(203)
def test_a_number_that_is_in_use(fresh_database: sb.Database) -> None:
    handle = begin(fresh_database, "//nowhere")
    fresh_database.send(handle, ORDER, b"waits")
    instance = fresh_database.instance
    assert numbers(instance) == set()
    with instance.connection() as connection:
        connection.execute("update servicebroker.conversation_endpoints set send_sequence = 0")
    assert numbers(instance) == {9715}


@pytest.mark.feature(203)
def test_a_table_that_a_drop_has_left(fresh_database: sb.Database) -> None:
    with fresh_database.instance.connection() as connection:
        connection.execute("create table servicebroker.queue_999999 (a integer)")
    assert numbers(fresh_database.instance) == {8444}
    fresh_database.create_queue("Q")
    fresh_database.drop_queue("Q")  # removes it, too
    assert numbers(fresh_database.instance) == set()


@pytest.mark.feature(203)
def test_messages_whose_way_is_free(fresh_database: sb.Database, clock: Clock) -> None:
    instance = fresh_database.instance
    handle, _ = open_dialog(fresh_database)
    fresh_database.alter_queue(STOCK_QUEUE, status=False)
    fresh_database.send(handle, ORDER, b"waits")
    clock.jump(minutes=2)
    assert numbers(instance) == set()
    with instance.connection() as connection:
        connection.execute("update servicebroker.queues set is_enqueue_enabled = true")
    assert numbers(instance) == {28021}
    with instance.connection() as connection:
        moment = clock() - timedelta(seconds=5)
        connection.execute("update servicebroker.transmission_queue set enqueue_time = %s", (moment,))
    assert numbers(instance) == set()  # the background task may be about to do it


def test_check_reports_problems_and_its_exit_code(fresh_database: sb.Database) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return run_command("check", "--instance", instance.url, *options)

    instance = fresh_database.instance
    whole = run()
    assert (whole.returncode, whole.stdout.splitlines()[-1]) == (0, "0 problems found.")
    assert "Services analyzed: 8." in whole.stdout
    plant(fresh_database, PLANTED[9711])
    broken = run()
    assert broken.returncode == 1
    assert broken.stdout.startswith("Msg 9711: The transmission queue is referencing")
    report = run("--json")
    assert (report.returncode, json.loads(report.stdout)["findings"][0]["number"]) == (1, 9711)
    nowhere = run_command("check", "--instance", "/nonexistent")
    assert (nowhere.returncode, "no instance" in nowhere.stderr) == (1, True)


# ---------------------------------------------------------------- the broker's own objects

CHANGED = [
    ("drop view sys.events", "the view sys.events is missing"),
    ("create or replace view sys.events as select 1 as object_id, 'x'::text as type_desc, 'y'::text as broker_database",
     "the view sys.events has another definition"),
    ("alter view sys.routes reset (security_invoker)", "the view sys.routes has another definition"),
    ("create or replace function servicebroker.approximate_count(queue_id integer) returns bigint "
     "language sql return 1",
     "the function servicebroker.approximate_count(queue_id integer) has another definition"),
    ("alter function servicebroker.marks_hold(integer) security definer", "has another definition"),
    ("drop function tsql.certencoded(integer)", "the function tsql.certencoded(id integer) is missing"),
    ("alter table servicebroker.routes add column x integer", "the table servicebroker.routes has another definition"),
    ("create trigger spy after insert on servicebroker.services for each statement "
     "execute function servicebroker.ring_delivery()", "the table servicebroker.services has another definition"),
    ("create rule spy as on insert to servicebroker.routes do also nothing", "the table servicebroker.routes has"),
    ("drop trigger remove_unread_body on servicebroker.shared_body_readers", "the trigger servicebroker.shared_body_"),
    ("alter table servicebroker.shared_body_readers disable trigger remove_unread_body", "the trigger servicebroker."),
    ("alter function servicebroker_fence.send_all security invoker", "the function servicebroker_fence.send_all"),
    ("alter function servicebroker_fence.send_all reset search_path", "the function servicebroker_fence.send_all"),
    ("create or replace view servicebroker_fence.caller as select key from servicebroker.fenced_roles",
     "the view servicebroker_fence.caller has another definition"),
    ("drop function servicebroker.refusal", "the function servicebroker.refusal("),
    ("drop index servicebroker.routes_name", "the index servicebroker.routes_name is missing"),
    ("drop view {view}", "the view test_dbo.stockqueue is missing"),
    ("alter view {view} alter column status set default 1", "the view test_dbo.stockqueue has another definition"),
    ("drop trigger refuse on {view}", "the trigger test_dbo.stockqueue.refuse is missing"),
    ("drop trigger refuse_all on {view}", "the trigger test_dbo.stockqueue.refuse_all is missing"),
    ("create trigger spy after insert on servicebroker.queue_{queue} for each statement "
     "execute function servicebroker.ring_delivery()", "the table servicebroker.queue_"),
    ("drop function servicebroker.expire_{queue}", "the function servicebroker.expire_"),
    ("alter function servicebroker.look_{queue} security definer", "the function servicebroker.look_"),
    ("drop index servicebroker.queue_{queue}_group", "is missing"),
    ("create or replace function servicebroker.fire_timers_{queue}(at timestamptz) returns void language sql as ''",
     "the function servicebroker.fire_timers_"),
    ("alter table servicebroker.retained_{queue} add column x integer", "the table servicebroker.retained_"),
    ("create policy p on servicebroker.queue_{queue}", "the table servicebroker.queue_"),
    ("alter view {view} reset (security_invoker)", "the view test_dbo.stockqueue has another definition"),
    ("drop function servicebroker.fingerprint", "the function servicebroker.fingerprint(queue integer) is missing"),
]  # fmt: skip


@pytest.fixture(scope="module")
def checked_database(make_instance_url: Callable[[], str]) -> Iterator[sb.Database]:
    """Return a database whose objects the tests change in a transaction that is rolled back."""
    with sb.open(make_instance_url(), upkeep=None) as instance:
        database = instance.database("Test", create=True)
        database.create_queue(STOCK_QUEUE)
        database.create_queue("[odd name].[Q 65537]", retention=True)
        yield database


@pytest.mark.parametrize(("statement", "expected_text"), CHANGED, ids=[text[:50] for text, _ in CHANGED])
@pytest.mark.sampled(12)
def test_changes_by_a_superuser_are_detected(checked_database: sb.Database, statement: str, expected_text: str) -> None:
    values = {"view": "test_dbo.stockqueue", "queue": queue_number(checked_database, STOCK_QUEUE)}
    with psycopg.connect(checked_database.instance.url) as connection:
        assert run(connection, find_changed_objects(100)) == []
        connection.execute(statement.format(**values).encode())
        changes = [changes_of(*difference) for difference in run(connection, find_changed_objects(100))]
        connection.rollback()
    assert any(expected_text in text for text in changes), changes
    assert len(changes) <= 4


def test_retention_and_a_search_path_are_no_changes(checked_database: sb.Database) -> None:
    checked_database.alter_queue(STOCK_QUEUE, retention=True)
    checked_database.alter_queue(STOCK_QUEUE, retention=False)
    checked_database.alter_queue("[odd name].[Q 65537]", retention=False)
    with psycopg.connect(checked_database.instance.url) as connection:
        connection.execute("set search_path = servicebroker, sys, tsql, test_dbo")
        assert run(connection, find_changed_objects(100)) == []
    assert checked_database.instance.check().findings == []


def touched_queues(database: sb.Database) -> set[str]:
    """Return the queues whose definitions have to be compared."""
    text = (
        "select name from servicebroker.queues where fingerprint is distinct from servicebroker.fingerprint(queue_id)"
    )
    return {name for (name,) in query(database, text)}


def test_an_unchanged_queue_is_not_compared_again(fresh_database: sb.Database) -> None:
    """Acts of the broker on a queue are not a change. After a GRANT the queue is compared, without a finding."""
    fresh_database.create_queue("Used")
    fresh_database.alter_queue("Used", retention=True)
    fresh_database.alter_queue("Used", status=False, activation=sb.Activation("usp_Used", 1, "OWNER"))
    handle, _ = open_dialog(fresh_database)
    fresh_database.send(handle, ORDER, b"there")
    fresh_database.receive(STOCK_QUEUE)
    number = queue_number(fresh_database, STOCK_QUEUE)
    with psycopg.connect(fresh_database.instance.url, autocommit=True) as connection:
        connection.execute(f"truncate servicebroker.queue_{number}".encode())
        connection.execute(f"vacuum (full, analyze) servicebroker.queue_{number}".encode())
    assert touched_queues(fresh_database) == set()
    with psycopg.connect(fresh_database.instance.url, autocommit=True) as connection:
        connection.execute(f"grant execute on function servicebroker.look_{number} to public".encode())
        assert touched_queues(fresh_database) == {STOCK_QUEUE}
        assert run(connection, find_changed_objects(100)) == []
        mend(connection)
    assert touched_queues(fresh_database) == set()


def test_a_later_definition_does_not_hide_a_change(fresh_database: sb.Database) -> None:
    number = queue_number(fresh_database, STOCK_QUEUE)
    with psycopg.connect(fresh_database.instance.url, autocommit=True) as connection:
        connection.execute(f"alter table servicebroker.queue_{number} add column x integer".encode())
        table = [("table", f"servicebroker.queue_{number}", True)]
        assert run(connection, find_changed_objects(100)) == table
        fresh_database.alter_queue(STOCK_QUEUE, retention=True)
        assert run(connection, find_changed_objects(100)) == table
        mend(connection)
        assert run(connection, find_changed_objects(100)) == table


def test_the_fingerprint_of_a_queue_is_of_all_that_it_has(checked_database: sb.Database) -> None:
    ((text,),) = query(checked_database, "select prosrc from pg_proc where proname = 'fingerprint'")
    names = query(
        checked_database, "select name from servicebroker.made where of_queue and kind not in ('view', 'trigger')"
    )
    for (name,) in names:
        stem = name.removeprefix("servicebroker.").split("(")[0].replace("{id}", "%s")
        assert f"format('{stem}', queue)" in text


def test_mend_recreates_views_and_functions(make_instance_url: Callable[[], str]) -> None:
    url = make_instance_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop view sys.events; drop trigger refuse on msdb_dbo.servicebrokerqueue")
        connection.execute("alter function servicebroker.approximate_count(integer) security definer")
    look = run_command("doctor", "--instance", url)
    assert "the view sys.events is missing" in look.stdout
    assert "check --mend" in look.stdout
    result = run_command("check", "--instance", url)
    assert result.returncode == 1
    assert result.stdout.count("Msg 3859") == 4  # the view, its trigger is missing and it is without, the function
    mended = run_command("check", "--mend", "--instance", url)
    assert (mended.returncode, mended.stdout.splitlines()[-1]) == (0, "0 problems found.")


def test_another_postgresql_is_not_taken_for_a_change(make_instance_url: Callable[[], str]) -> None:
    with sb.open(make_instance_url(), upkeep=None) as instance, instance.connection() as connection:
        connection.execute("update servicebroker.made set server = 14, definition = 'otherwise written'")
        assert run(connection, find_changed_objects(100)) == []
        assert run(connection, is_foreign())
        mend(connection)
        assert not run(connection, is_foreign())
        assert run(connection, find_changed_objects(100)) == []
