"""Maintenance that two sessions run concurrently has the same result as if one ran it after the other.

Every open instance, daemon and reader runs maintenance jobs, so any two of them may run a job at the same time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from built_in_support import begin as begin_echo
from portal import run_maintenance
from servicebroker.engine.activation.monitors import MonitorRow, poll_queue, save_states
from servicebroker.engine.activation.poison_detection import disable_queue
from servicebroker.engine.built_in.echo_and_query import answer_built_in
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.event_notifications import send_pending_events
from servicebroker.engine.conversation.begin import forget_keys
from servicebroker.engine.conversation.endpoints import remove_closed_endpoints
from servicebroker.engine.conversation.failed_messages import sweep as sweep_failed
from servicebroker.engine.conversation.maintenance import fire_timers_and_lifetimes, remove_expired_endpoints
from servicebroker.engine.conversation.recycling import next_answer, remove_answer
from servicebroker.engine.conversation.requests import drop_late_answers
from servicebroker.engine.conversation.shared_bodies import delete_unreferenced_bodies
from servicebroker.engine.conversation.traces import delete_old_traces as sweep_traces
from servicebroker.engine.delivery.delayed_messages import find_due, release
from servicebroker.engine.delivery.transmission import deliver_left_over
from servicebroker.engine.diagnosis.audit import delete_old_audit_rows
from servicebroker.engine.diagnosis.history import record_history_sample
from servicebroker.engine.diagnosis.totals import StatementTotal, add_statements, add_totals
from servicebroker.engine.diagnosis.wrong_clocks import note_wrong_clock
from servicebroker.engine.remote.missing_routes import forget_answered_requests
from servicebroker.engine.remote.route_answers import take_route_answers
from servicebroker.engine.remote.unfinished_arrivals import forget_openings
from servicebroker.model.names import ECHO, POST_EVENT_NOTIFICATION
from servicebroker.pipeline.sending import _end_answered
from servicebroker.store.connection import connect
from servicebroker.store.running import in_transaction, run
from servicebroker.store.statements import Steps
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    count_blocked_sessions,
    eventually,
    in_thread,
    open_dialog,
    peer_handle,
    queue_number,
)

Job = Callable[[sb.Database, datetime], Steps[Any]]

LEFT_SERVICE, LEFT_QUEUE = "//test/Left", "LeftQueue"  # messages for the queue were left over
WATCHER, WATCH_QUEUE = "//test/Watcher", "WatchQueue"
# Columns that are not compared: they depend on the time of the run (its interval of ten seconds, statistics).
TIME_DEPENDENT = ("history_samples.slot", "history_samples.step", "history.")


def answer_next(database: sb.Database, now: datetime) -> Steps[None]:
    """Handle the next message that came back for a conversation pool, as one of its sessions does."""
    answer = yield from next_answer(database.database_id, ORDERS)
    if answer is not None:
        yield from remove_answer(answer)


def release_due(now: datetime) -> Steps[None]:
    """Release the delayed messages that are due."""
    due = yield from find_due(now, ())
    yield from release(due.handles, now)


JOBS: dict[str, Job] = {
    "timers and lifetimes": lambda database, now: fire_timers_and_lifetimes(queue_number(database, ORDERS_QUEUE), now),
    "a poll of the queue monitor": lambda database, now: poll_queue(queue_number(database, STOCK_QUEUE), now, 0),
    "the state of the queue monitor": lambda database, now: save_states(
        [MonitorRow(queue_number(database, STOCK_QUEUE), "x", now, now, 0, None, 0)]
    ),
    "ended conversations": lambda database, now: remove_expired_endpoints(now),
    "late answers": lambda database, now: drop_late_answers(now),
    "closed endpoints": lambda database, now: remove_closed_endpoints(now),
    "delayed messages": lambda database, now: release_due(now),
    "idempotency keys": lambda database, now: forget_keys(now),
    "targets without messages": lambda database, now: forget_openings(now),
    "answered requests for routes": lambda database, now: forget_answered_requests(now),
    "failed messages": lambda database, now: sweep_failed(queue_number(database, ORDERS_QUEUE)),
    "contexts of traces": lambda database, now: sweep_traces(now),
    "the audit": lambda database, now: delete_old_audit_rows(now),
    "shared bodies": lambda database, now: delete_unreferenced_bodies(),
    "messages that were left over": lambda database, now: deliver_left_over(Catalog(), now),
    "events to post": lambda database, now: send_pending_events(now),
    "echoes": lambda database, now: answer_built_in(now),
    "answers to a conversation pool": answer_next,
    "answers of the dynamic routing service": lambda database, now: take_route_answers(Catalog(), now),
    "ended conversations of the Spark writer": lambda database, now: _end_answered(now),
    "poison": lambda database, now: disable_queue(queue_number(database, WATCH_QUEUE), now),
    "a sample of the history": lambda database, now: record_history_sample(),
    "totals": lambda database, now: add_totals({"a": 1, "b": 2}),
    "statements": lambda database, now: add_statements([StatementTotal("a", 1, 2), StatementTotal("b", 3, 4)]),
    "a report of a wrong clock": lambda database, now: note_wrong_clock(timedelta(seconds=9), now),
}
# of readers, workers, monitors, pools and Spark; and the figures that maintenance writes in other intervals
NOT_OF_MAINTENANCE = {
    *("a poll of the queue monitor", "the state of the queue monitor", "failed messages", "poison"),
    *("answers to a conversation pool", "ended conversations of the Spark writer", "a sample of the history"),
    *("totals", "statements", "a report of a wrong clock"),
}


def make_work(database: sb.Database, clock: Clock) -> None:
    """Create work for every job."""
    for _ in range(3):
        initiator, target = open_dialog(database)
        for handle in (initiator, target):
            database.begin_conversation_timer(handle, 50)
        expires = begin(database, lifetime=60)
        database.send(expires, ORDER, b"unread")
        for handle in reversed(open_dialog(database)):
            database.end_conversation(handle)
        ended = begin(database, "//test/Nowhere", lifetime=60)
        database.send(ended, ORDER, b"never")
        database.end_conversation(ended)
        request = database.begin_request(ORDERS, STOCK, ORDER, b"?", contract=CONTRACT, keep=0)
        (question,) = database.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, request))
        database.send(question.conversation_handle, REPLY, b"late")
        database.send(begin_echo(database), ECHO, b"echo")
    route_dialogs = [open_dialog(database) for _ in range(2)]
    writer_dialogs = [open_dialog(database) for _ in range(2)]
    for _, target in (*route_dialogs, *writer_dialogs):
        database.end_conversation(target)
    for number in range(3):
        database.send(begin(database, idempotency_key=f"key {number}"), ORDER, b"later", delay=60)
    openings = [begin(database) for _ in range(3)]
    for handle in openings:
        database.send(handle, ORDER, b"opens")
    database.create_queue(WATCH_QUEUE)
    database.create_service(WATCHER, WATCH_QUEUE, [POST_EVENT_NOTIFICATION])
    database.create_event_notification("n", on_queue=ORDERS_QUEUE, events="BROKER_QUEUE_DISABLED", to_service=WATCHER)
    database.create_queue(LEFT_QUEUE)
    database.create_service(LEFT_SERVICE, LEFT_QUEUE, [CONTRACT])
    database.alter_queue(LEFT_QUEUE, status=False)
    left_over = begin(database, LEFT_SERVICE)
    database.send_batch(left_over, ORDER, [b"1", b"2"])
    now = clock()
    with database.instance.connection() as connection:
        for number, ((request, _), (handle, _)) in enumerate(zip(route_dialogs, writer_dialogs, strict=True)):
            connection.execute(
                "insert into servicebroker.route_requests (database_id, service_name, conversation_handle) "
                "values (%s, %s, %s)",
                (database.database_id, f"//test/Asked{number}", request),
            )
            connection.execute(
                "insert into servicebroker.writer_conversations "
                "(conversation_handle, writer, slot, begun_at, is_in_use) values (%s, 'w', %s, %s, false)",
                (handle, number, now),
            )
            connection.execute(
                "insert into servicebroker.session_answers "
                "(database_id, from_service, conversation_handle, message_type_id) values (%s, %s, %s, 1)",
                (database.database_id, ORDERS, handle),
            )
        connection.execute(
            "insert into servicebroker.failed_messages select gen_random_uuid(), %s, gen_random_uuid(), 5, n, 1, 1, "
            "%s, %s, 'x', 'x' from generate_series(1, 3) n",
            (queue_number(database, ORDERS_QUEUE), now, now),
        )
        connection.execute(
            "insert into servicebroker.trace_contexts select gen_random_uuid(), true, n, 'x', %s "
            "from generate_series(1, 3) n",
            (now - timedelta(days=400),),
        )
        connection.execute(
            "insert into servicebroker.audit (at, principal, face, act, broker_database, subject) "
            "select now() - interval '10 years', '', '', 'x', '', '' from generate_series(1, 3)"
        )
        connection.execute("insert into servicebroker.shared_bodies (body) values ('1'), ('2')")
        connection.execute("update servicebroker.idempotency_keys set expires_at = %s", (now,))
        connection.execute(
            "insert into servicebroker.arrivals (conversation_handle, opened_at) "
            "select peer_handle, %s from unnest(%s::uuid[]) peer_handle",
            (now - timedelta(days=400), [peer_handle(database, handle) for handle in openings]),
        )
        connection.execute(
            "update servicebroker.conversation_endpoints set state = 'SI', is_remote = true, far_handle = null, "
            "far_queue_id = null where conversation_handle in (select conversation_handle from servicebroker.arrivals)"
        )
        connection.execute(
            "insert into servicebroker.route_requests (database_id, service_name, conversation_handle, answered) "
            "select %s, 'answered ' || n, gen_random_uuid(), %s from generate_series(1, 3) n",
            (database.database_id, now - timedelta(days=400)),
        )
        connection.execute(
            "insert into servicebroker.events_to_post values (%s, 'BROKER_QUEUE_DISABLED')",
            (queue_number(database, ORDERS_QUEUE),),
        )
        connection.execute(
            "update servicebroker.queues set is_receive_enabled = true, is_enqueue_enabled = true where queue_id = %s",
            (queue_number(database, LEFT_QUEUE),),
        )


def rows_of(connection: psycopg.Connection[Any], tables: Iterable[str]) -> dict[str, Counter[Any]]:
    """Return the values of each column of the tables, and the numbers of rows."""
    counts: dict[str, Counter[Any]] = {}
    for table in tables:
        text = f"select to_jsonb(t) from servicebroker.{table} t"
        for (row,) in connection.execute(text.encode()).fetchall():
            for column, value in {"": None, **row}.items():
                counts.setdefault(f"{table}.{column}", Counter())[json.dumps(value)] += 1
    return counts


class Outcome(NamedTuple):
    """The result of a job that two sessions run one after the other: the tables that it writes, and all their rows."""

    tables: list[str]
    rows: dict[str, Counter[Any]]


def run_consecutively(connection: psycopg.Connection[Any], job: Callable[[], Steps[Any]]) -> Outcome:
    with connection.transaction(force_rollback=True):
        run(connection, job())
        run(connection, job())
        rows = connection.execute(
            "select relname from pg_stat_xact_user_tables where schemaname = 'servicebroker' "
            "and n_tup_ins + n_tup_upd + n_tup_del > 0 order by 1"
        ).fetchall()
        tables = [table for (table,) in rows]
        return Outcome(tables, rows_of(connection, tables))


@pytest.mark.timeout(120)
def test_concurrent_sessions_have_the_result_of_consecutive_ones(fresh_database: sb.Database, clock: Clock) -> None:
    """The second session runs while the first one's transaction is open. If it has to wait, the first one continues.

    Columns that differ between two equal runs (times, transactions, new identifiers) are left out.
    """
    database, url = fresh_database, fresh_database.instance.url
    make_work(database, clock)
    now = clock() + timedelta(days=1)
    differences, idle = {}, []
    with connect(url) as first, connect(url) as second:
        for name, make in JOBS.items():

            def job(make: Job = make) -> Steps[Any]:
                return make(database, now)

            (tables, expected), (_, repeated) = (run_consecutively(first, job) for _ in range(2))
            nondeterministic = {
                column for column in expected.keys() | repeated.keys() if expected.get(column) != repeated.get(column)
            }
            with first.transaction():
                run(first, job())
                second_run = in_thread(in_transaction, second, job())
                eventually(lambda second_run=second_run: second_run.done() or count_blocked_sessions(database), 30)
            second_run.result(30)
            actual = rows_of(first, tables)
            compared = {
                column for column in expected.keys() | actual.keys() if not column.startswith(TIME_DEPENDENT)
            } - nondeterministic
            if differing := {column for column in compared if actual.get(column) != expected.get(column)}:
                differences[name] = {column: (actual.get(column), expected.get(column)) for column in sorted(differing)}
            if not tables:
                idle.append(name)
    assert differences == {}
    assert idle == []


def test_maintenance_does_every_job(fresh_database: sb.Database, clock: Clock) -> None:
    """Maintenance does not receive: work that its own work makes is done by the next run."""
    database = fresh_database
    make_work(database, clock)
    now = clock() + timedelta(days=1)
    with connect(database.instance.url) as connection:

        def written_by(name: str) -> list[str]:
            connection.execute("select pg_stat_force_next_flush()")  # forget what the session has written before
            return run_consecutively(connection, lambda: JOBS[name](database, now)).tables

        assert JOBS.keys() >= NOT_OF_MAINTENANCE
        names = JOBS.keys() - NOT_OF_MAINTENANCE
        idle = {name for name in names if not written_by(name)}
        for _ in range(2):
            run_maintenance(connection, now)
        busy = {name: tables for name in names if (tables := written_by(name))}
    assert (idle, busy) == (set(), {})


@pytest.mark.parametrize(
    ("verb", "first_result", "left_in_queue"),
    [
        ("receive", 1, 0),
        ("receive groups", 1, 0),
        # these two put the due message into the queue without receiving it
        ("get", 1, 1),
        ("poll", 0, 1),
    ],
)
@pytest.mark.parametrize("due", ["timer", "lifetime"])
def test_one_of_three_concurrent_readers_gets_a_due_message(
    database: sb.Database, clock: Clock, verb: str, first_result: int, left_in_queue: int, due: str
) -> None:
    """The first of three concurrent readers gets the message of a due timer or lifetime, and the others get none.

    `first_result`: the number of results of the first reader. `left_in_queue`: the messages received afterwards.
    """
    handle = begin(database, lifetime=60)
    if due == "timer":
        database.begin_conversation_timer(handle, 50)
    clock.jump(seconds=55 if due == "timer" else 65)
    number = queue_number(database, ORDERS_QUEUE)

    def read(reader: Any) -> list[UUID]:
        if verb == "receive":
            return [message.conversation_handle for message in reader.receive(ORDERS_QUEUE)]
        if verb == "receive groups":
            return [message.conversation_handle for message in reader.receive(ORDERS_QUEUE, top=5, groups=5)]
        if verb == "get":
            return [group] if (group := reader.get_conversation_group(ORDERS_QUEUE)) else []
        with database.instance.connection() if reader is database else nullcontext(reader.connection) as connection:
            run(connection, poll_queue(number, clock(), 0))
        return []

    with database.transaction() as first:
        assert len(read(first)) == first_result
        readers = [in_thread(read, database) for _ in range(2)]
        eventually(lambda: all(future.done() for future in readers) or count_blocked_sessions(database) == 2)
    received = [future.result(30) for future in readers]
    with database.transaction() as reader_after_commit:
        received.append([message.conversation_handle for message in reader_after_commit.receive(ORDERS_QUEUE)])
    assert sum(map(len, received)) == left_in_queue
