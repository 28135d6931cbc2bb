"""The facts of which `servicebroker doctor`, `status` and the dashboard judge, in real situations of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from servicebroker.engine.diagnosis import facts as queries
from servicebroker.engine.diagnosis.fact_types import Facts, QueueFacts
from servicebroker.model.names import POST_EVENT_NOTIFICATION
from servicebroker.store import locks
from servicebroker.store.connection import connect
from servicebroker.store.running import run
from servicebroker.store.server_time import server_time
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    STOCK_QUEUE,
    begin,
    count_blocked_sessions,
    eventually,
    in_thread,
    open_dialog,
    pipeline_on,
    queue_number,
    waiting_reader,
)


def facts_of(database: sb.Database, *, later: timedelta = timedelta()) -> Facts:
    with connect(database.instance.url) as connection:
        return run(connection, queries.gather(server_time(connection) + later))


def queue_facts_of(database: sb.Database) -> QueueFacts:
    with connect(database.instance.url) as connection:
        (facts,) = run(connection, queries.queue_facts(queue_number(database, STOCK_QUEUE)))
    return facts


# ---------------------------------------------------------------- a queue


@contextmanager
def executed(database: sb.Database, text: str) -> Iterator[None]:
    """Keep a session open that has run a statement on the queue `{queue}`."""
    with psycopg.connect(database.instance.url, autocommit=True) as connection:
        connection.execute(text.format(queue=queue_number(database, STOCK_QUEUE)).encode())
        yield


@contextmanager
def reader_in(database: sb.Database) -> Iterator[None]:
    """Keep a reader waiting, which a message ends."""
    reader = waiting_reader(database)
    try:
        yield
    finally:
        database.send(begin(database), ORDER, b"x")
        reader.result(30)


@contextmanager
def receiving(database: sb.Database) -> Iterator[None]:
    """Keep a transaction open that has received a message, and one that has only sent."""
    initiator, _ = open_dialog(database)
    database.send_batch(initiator, ORDER, [b"1", b"2"])
    with database.transaction() as receiver, database.transaction() as sender:
        assert receiver.receive(STOCK_QUEUE, top=1)
        sender.send(database.begin_dialog(ORDERS, "//test/Stock", contract=CONTRACT), ORDER, b"3")
        yield


def fail_once(database: sb.Database) -> None:
    initiator, _ = open_dialog(database)
    database.send(initiator, ORDER, b"x")
    database.process(STOCK_QUEUE, lambda tx, messages: {}["jug"], poison=lambda failure: sb.Retry(after=3600))


def notify(database: sb.Database) -> None:
    database.create_queue("Watched")
    database.create_service("//test/Watcher", "Watched", [POST_EVENT_NOTIFICATION])
    database.create_event_notification(
        "n", on_queue=STOCK_QUEUE, events="QUEUE_ACTIVATION", to_service="//test/Watcher"
    )


def make(change: Callable[[sb.Database], object]) -> Callable[[sb.Database], AbstractContextManager[None]]:
    return lambda database: nullcontext(change(database) and None)


ADVISORY = "select pg_advisory_lock{}({}, {{queue}})"
TASK = "insert into servicebroker.activated_tasks values ({}, {{queue}}, 'p')"
# a situation, and the facts in which the queue differs from one of which nobody has taken notice
SITUATIONS: dict[str, tuple[Callable[[sb.Database], AbstractContextManager[None]], dict[str, Any]]] = {
    "off": (make(lambda db: db.alter_queue(STOCK_QUEUE, status=False)), {"is_on": False}),
    "a reader": (reader_in, {"readers": 1}),
    "a receiver beside a sender": (receiving, {"messages": 2, "holders": 1}),
    "an activation": (
        make(lambda db: db.alter_queue(STOCK_QUEUE, activation=sb.Activation("dbo.p", 3, "OWNER", status=True))),
        {"is_activated": True, "procedure": "p", "max_readers": 3},
    ),
    "a monitor": (
        lambda db: executed(db, ADVISORY.format("", locks.QUEUE_ACTIVATION)), {"hosted": True},
    ),
    "a pipeline": (pipeline_on, {"is_piped": True}),
    "a RECEIVE in progress": (lambda db: executed(db, ADVISORY.format("_shared", locks.PIPELINE_QUEUE)), {}),
    "a failed message": (make(fail_once), {"messages": 1, "failing": 1}),
    "an event notification": (make(notify), {"notifies": True}),
    "the state of a monitor": (
        lambda db: executed(db, "insert into servicebroker.queue_monitors values ({queue}, 'NOTIFIED', null, null, 0)"),
        {"monitor": "NOTIFIED"},
    ),
    "a task": (lambda db: executed(db, TASK.format("pg_backend_pid()")), {"tasks": 1}),
    "a task whose session has ended": (lambda db: executed(db, TASK.format("-1")), {}),
    "a reader whose session has ended": (
        lambda db: executed(db, "insert into servicebroker.waiting_readers values ({queue}, -1)"), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_facts_of_a_queue_show_one_situation(database: sb.Database, situation: str) -> None:
    hold, changed = SITUATIONS[situation]
    before = queue_facts_of(database)
    with hold(database):
        after = queue_facts_of(database)
    assert (after.oldest is not None) == bool(after.messages)
    if "procedure" in changed:
        changed = changed | {"procedure": f"[{database.name}].[dbo].[p]"}
    assert after._replace(oldest=None) == before._replace(**changed)


# ---------------------------------------------------------------- locks and sessions


def test_who_holds_a_lock_of_the_broker_for_which_others_wait(database: sb.Database) -> None:
    url, number = database.instance.url, 4_711
    with ExitStack() as stack:
        holders = {}
        for index, lock in enumerate(queries._LOCK_WORDS):
            holder, waiter = (stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(2))
            shared = ("", "_shared") if index % 2 else ("_shared", "")
            holder.execute(f"select pg_advisory_lock{shared[0]}({lock}, {number})".encode())
            in_thread(waiter.execute, f"select pg_advisory_lock{shared[1]}({lock}, {number})".encode())
            holders[holder.info.backend_pid] = queries._LOCK_WORDS[lock]
        eventually(lambda: count_blocked_sessions(database) == len(holders))
        assert facts_of(database).neighbours.blockers == []  # for less than LONG_WAIT
        blockers = facts_of(database, later=queries.LONG_WAIT + timedelta(seconds=30)).neighbours.blockers
        assert {blocker.pid: blocker.lock for blocker in blockers} == holders
        assert {blocker.waiting for blocker in blockers} == {1}
        with psycopg.connect(url, autocommit=True) as connection:
            for pid in holders:
                connection.execute("select pg_terminate_backend(%s)", (pid,))
        eventually(lambda: count_blocked_sessions(database) == 0)


def test_which_sessions_have_locked_tables_against_writes(database: sb.Database) -> None:
    modes = {
        "share": "session_errors",
        "share row exclusive": "session_answers",
        "exclusive": "writer_conversations",
        "access exclusive": "shared_bodies",
    }
    with ExitStack() as stack:
        pids = {}
        for mode, table in {**modes, "row exclusive": "trace_contexts", "access share": "audit"}.items():
            session = stack.enter_context(psycopg.connect(database.instance.url))
            session.execute(f"lock table servicebroker.{table} in {mode} mode".encode())
            pids[session.info.backend_pid] = f"servicebroker.{table}" if mode in modes else ""
        with connect(database.instance.url) as connection:
            facts = run(connection, queries._read_table_locks(Facts(server_time(connection))))
        table_by_process = {lock.pid: lock.table for lock in facts.table_locks}
    assert table_by_process == {pid: table for pid, table in pids.items() if table}


def test_which_transactions_are_open(database: sb.Database, make_url: Callable[[], str]) -> None:
    initiator, _ = open_dialog(database)
    other, _ = open_dialog(database)
    database.send(initiator, ORDER, b"1")
    database.send(other, ORDER, b"2")
    elsewhere = psycopg.connect(make_url())
    idle = psycopg.connect(database.instance.url, autocommit=True)
    with elsewhere, idle, database.transaction() as reader:
        elsewhere.execute("select 1")
        idle.execute("select 1")
        assert len(reader.receive(STOCK_QUEUE, top=1, groups=2)) == 2
        (session,) = facts_of(database).sessions
        assert (session.pid, session.groups, session.state) == (
            reader.connection.info.backend_pid, 2, "idle in transaction",
        )  # fmt: skip
        idle.execute(f"select pg_advisory_lock({locks.BROKER_DAEMON}, 0)".encode())
        daemon = facts_of(database).daemon
        assert daemon is not None
        assert (daemon.pid, daemon.state) == (idle.info.backend_pid, "idle")
    assert (facts_of(database).sessions, facts_of(database).daemon) == ([], None)
