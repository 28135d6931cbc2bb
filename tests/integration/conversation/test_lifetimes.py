"""Expired lifetimes, and the maintenance thread that handles them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

import servicebroker as sb
from portal import run_maintenance
from servicebroker.store.queue import queue_functions
from support import (
    CONTRACT,
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    Clock,
    begin,
    bodies,
    eventually,
    in_thread,
    leftovers,
    peer_handle,
    query,
    queue_number,
    refused,
    standard_database,
    state,
    wait_until_blocked,
    waiting_messages,
)

pytestmark = pytest.mark.both_apis

HALT_KEY = 8489  # the key of an advisory lock
EXPIRED = (-8489, "The dialog has exceeded the specified LIFETIME.")


def errors(messages: list[sb.Message]) -> list[tuple[int, str]]:
    return [sb.read_error(message.message_body) for message in messages if message.is_error]


@pytest.mark.feature(39, 100, 102)
def test_both_sides_get_an_error_after_the_lifetime(database: sb.Database, clock: Clock) -> None:
    initiator = begin(database, lifetime=60)
    database.send(initiator, ORDER, b"1")
    target = peer_handle(database, initiator)
    clock.jump(seconds=50)
    assert bodies(database.receive(STOCK_QUEUE, top=1)) == [b"1"]
    database.send(initiator, ORDER, b"2")
    database.send(target, REPLY, b"3")
    clock.jump(seconds=11)
    messages = database.receive(STOCK_QUEUE)
    assert errors(messages[:1]) == [EXPIRED]
    assert bodies(messages[1:]) == [b"2"]  # messages that have arrived can still be received
    assert state(database, target) == "ER"
    assert errors(database.receive(ORDERS_QUEUE)) == [EXPIRED]
    assert state(database, initiator) == "ER"
    assert database.receive(STOCK_QUEUE) == database.receive(ORDERS_QUEUE) == []
    for handle in (initiator, target):
        database.end_conversation(handle)
    assert (state(database, initiator), state(database, target)) == (None, "CD")
    assert database.receive(STOCK_QUEUE) == database.receive(ORDERS_QUEUE) == []


@pytest.mark.feature(39, 100)
def test_verbs_see_an_expired_conversation_before_upkeep(database: sb.Database, clock: Clock) -> None:
    initiator = begin(database, lifetime=60)
    database.send(initiator, ORDER, b"1")
    target = peer_handle(database, initiator)
    database.send(target, REPLY, b"2")
    clock.jump(seconds=60)
    for handle, message_type in ((initiator, ORDER), (target, REPLY)):
        with refused(8429, "'ER'"):
            database.send(handle, message_type, b"x")
        with refused(8429, "'ER'"):
            database.send_batch(handle, message_type, [b"x"] * 2)
        with refused(8410):
            database.begin_conversation_timer(handle, 0 if handle == initiator else 5)
    database.end_conversation(initiator)  # as in the state ER: the peer gets no EndDialog
    assert state(database, initiator) is None
    messages = database.receive(STOCK_QUEUE)
    assert errors(messages) == [EXPIRED]
    assert not any(message.is_end_dialog for message in messages)


@pytest.mark.feature(39)
def test_a_lifetime_out_of_range_is_refused(database: sb.Database, clock: Clock) -> None:
    for number, wrong in (
        (8406, None), (8411, 0), (8411, -1), (8411, 2**31), (402, "60"), (402, 1.5), (402, True)
    ):  # fmt: skip
        with refused(number):
            begin(database, lifetime=wrong)
    shown = "select lifetime from sys.conversation_endpoints where broker_database = %s"
    assert query(database, shown, database.name) == []
    for seconds, options in ((1, {"lifetime": 1}), (2**31 - 1, {"lifetime": 2**31 - 1}), (2**31 - 1, {})):
        before = clock() + timedelta(seconds=seconds)
        handle = begin(database, **options)
        database.send(handle, ORDER, b"x")
        initiator, target = query(database, shown, database.name)  # the same time on both sides
        assert initiator == target
        assert before <= initiator[0] <= clock() + timedelta(seconds=seconds)
        clock.jump(seconds=seconds - 30)
        assert state(database, handle) == "CO"
        clock.jump(seconds=31)
        assert errors(database.receive(ORDERS_QUEUE)) == errors(database.receive(STOCK_QUEUE)[:1]) == [EXPIRED]
        clock.jump(seconds=-seconds - 1)
        database.end_conversation(peer_handle(database, handle), cleanup=True)
        database.end_conversation(handle)


def test_an_expired_lifetime_fails_conversations_that_have_not_ended(fresh_database: sb.Database, clock: Clock) -> None:
    database = fresh_database
    started = begin(database, lifetime=60)
    disconnected = begin(database, lifetime=60)
    database.send(disconnected, ORDER, b"x")
    database.end_conversation(peer_handle(database, disconnected))
    failed = begin(database, lifetime=60)
    database.send(failed, ORDER, b"x")
    database.end_conversation(peer_handle(database, failed), error=(5, "own"))
    waits = begin(database, "//test/Nowhere", lifetime=60)
    database.send(waits, ORDER, b"x")
    ended = begin(database, "//test/Nowhere", lifetime=60)
    database.send(ended, ORDER, b"x")
    database.end_conversation(ended)
    lives = begin(database, lifetime=70)
    clock.jump(seconds=61)
    errors_by_handle = {
        message.conversation_handle: message
        for _ in range(4)
        for message in database.receive(ORDERS_QUEUE)
        if message.is_error
    }
    assert {handle: sb.read_error(message.message_body) for handle, message in errors_by_handle.items()} == {
        started: EXPIRED, disconnected: EXPIRED, waits: EXPIRED, failed: (5, "own")}  # fmt: skip
    assert [state(database, handle) for handle in (started, disconnected, waits, failed, ended, lives)] == [
        "ER", "ER", "ER", "ER", "DO", "SO"]  # fmt: skip
    assert waiting_messages(database) == 2  # the conversation that has ended
    database.create_service("//test/Other", STOCK_QUEUE, [CONTRACT])
    with database.instance.connection() as connection:
        run_maintenance(connection, clock())
    assert state(database, ended) is None
    assert waiting_messages(database) == 0
    for handle in (started, disconnected, failed, waits, lives):
        database.end_conversation(handle)
    clock.jump(minutes=31)
    with database.instance.connection() as connection:
        run_maintenance(connection, clock())
    assert leftovers(database) == {}


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("sends", [ORDERS_QUEUE, STOCK_QUEUE])
def test_a_send_called_before_the_expiry_is_not_delivered_after_it(
    fresh_database: sb.Database, clock: Clock, sends: str, is_told: bool
) -> None:
    """A verb uses the time of its call, also if it has waited for a connection. The other side has ended meanwhile."""
    database = fresh_database
    with sb.open(database.instance.url, clock=Clock(), upkeep=None) as before:
        sender = before.database(database.name)
        initiator = begin(database, lifetime=60)
        database.send(initiator, ORDER, b"0")
        target = peer_handle(database, initiator)
        near, far, kind = (initiator, target, ORDER) if sends == ORDERS_QUEUE else (target, initiator, REPLY)
        last = sender.send(near, kind, b"the way is remembered")
        clock.jump(seconds=61)
        far_queue = STOCK_QUEUE if sends == ORDERS_QUEUE else ORDERS_QUEUE
        if is_told:
            assert errors(database.receive(far_queue)) == [EXPIRED]
        database.end_conversation(far)
        assert state(database, near) == "CO"
        assert sender.send(near, kind, b"one") == last + 1
        assert sender.send([near], kind, b"shared") == [last + 2]
        assert sender.send_batch(near, kind, [b"several", b"more"]) == last + 3
        assert query(database, f"select from {database.name}_dbo.{far_queue}") == []
        assert database.instance.check().findings == []
        sender.end_conversation(near)
    assert [state(database, handle) for handle in (initiator, target)] == [None, "CD"]
    assert waiting_messages(database) == 0


def test_a_rolled_back_receive_leaves_the_lifetime_to_the_next(database: sb.Database, clock: Clock) -> None:
    handle = begin(database, lifetime=60)
    clock.jump(seconds=61)
    with database.transaction() as transaction:
        assert errors(transaction.receive(ORDERS_QUEUE)) == [EXPIRED]
        assert database.receive(ORDERS_QUEUE) == []  # another reader does not wait for the lock
        transaction.connection.rollback()
    assert state(database, handle) == "SO"
    assert errors(database.receive(ORDERS_QUEUE)) == [EXPIRED]


def test_a_waiting_reader_gets_the_error(database: sb.Database) -> None:
    handle = begin(database, lifetime=1)
    (error,) = database.receive(ORDERS_QUEUE, wait=10)
    assert (error.conversation_handle, error.is_error) == (handle, True)


def test_many_conversations_expire_and_the_index_is_used(fresh_database: sb.Database, clock: Clock) -> None:
    database = fresh_database
    with database.transaction() as transaction:
        for _ in range(250):
            transaction.begin_dialog("//test/Orders", "//test/Stock", contract=CONTRACT, lifetime=60)
    clock.jump(seconds=61)
    with database.instance.connection() as connection:
        run_maintenance(connection, clock())
        connection.execute("set enable_seqscan = off")
        plan = connection.execute(
            "explain select from servicebroker.conversation_endpoints e where e.queue_id = 1 and e.lifetime <= now() "
            "and e.can_expire and e.state not in ('DO', 'ER', 'CD')"
        ).fetchall()
        connection.execute("reset enable_seqscan")
    assert "conversation_endpoints_lifetime" in str(plan)
    rows = query(database, f"select count(*) from {database.name}_dbo.ordersqueue")
    assert rows == [(250,)]


def halt_expiry(connection: psycopg.Connection[object], number: int) -> None:
    """Make the function that expires a queue's conversations wait for the lock HALT_KEY before it locks a row."""
    text = queue_functions(number, False).sql
    halted = f"lifetime <= at and pg_advisory_xact_lock_shared({HALT_KEY}) is not null"
    connection.execute(text.replace("lifetime <= at", halted, 1).encode())


def test_a_message_sent_during_the_expiry_is_dropped(database: sb.Database, clock: Clock) -> None:
    """The message was committed after the expiry had begun its query, and before it locked the row."""
    handle, number = begin(database, lifetime=60), queue_number(database, ORDERS_QUEUE)
    database.alter_queue(STOCK_QUEUE, status=False)
    with psycopg.connect(database.instance.url, autocommit=True) as holder:
        halt_expiry(holder, number)
        holder.execute("select pg_advisory_lock(%s)", (HALT_KEY,))
        at = clock() + timedelta(seconds=61)
        expiring = in_thread(query, database, f"select servicebroker.expire_{number}(%s)", at)
        wait_until_blocked(database)
        database.send(handle, ORDER, b"too late")
        assert waiting_messages(database) == 1
        holder.execute("select pg_advisory_unlock(%s)", (HALT_KEY,))
        assert expiring.result(30) == [(1,)]
    assert state(database, handle) == "ER"
    assert waiting_messages(database) == 0
    database.alter_queue(STOCK_QUEUE, status=True)
    assert database.receive(STOCK_QUEUE) == []
    assert errors(database.receive(ORDERS_QUEUE)) == [EXPIRED]


# ---------------------------------------------------------------- upkeep


def test_upkeep_skips_locked_conversations(database: sb.Database, clock: Clock) -> None:
    """Waiting readers are not notified of a skipped conversation."""
    handle = begin(database, lifetime=60)
    clock.jump(seconds=61)
    url, number = database.instance.url, queue_number(database, ORDERS_QUEUE)
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as listener:
        listener.execute("listen servicebroker")
        # as a waiting reader does
        listener.execute("insert into servicebroker.waiting_readers values (%s, -1)", (number,))
        holder.execute(
            "select from servicebroker.conversation_endpoints where conversation_handle = %s for update", (handle,)
        )
        with database.instance.connection() as connection:
            run_maintenance(connection, clock())
            holder.rollback()
            connection.execute("notify servicebroker, 'free'")
            run_maintenance(connection, clock())
            connection.execute("notify servicebroker, 'fired'")
        listener.execute("delete from servicebroker.waiting_readers where queue_id = %s", (number,))
        heard = [notice.payload for notice in listener.notifies(timeout=120, stop_after=3)]
    assert heard == ["free", str(number), "fired"]
    assert errors(database.receive(ORDERS_QUEUE)) == [EXPIRED]


@pytest.mark.feature(100)
def test_upkeep_expires_conversations_without_a_reader(make_instance_url: Callable[..., str]) -> None:
    clock = Clock()
    with sb.open(make_instance_url(1), clock=clock, upkeep=0.05) as instance:
        database = standard_database(instance)
        expires, timed = begin(database, lifetime=60), begin(database)
        database.begin_conversation_timer(timed, 50)
        closes = begin(database)
        database.send(closes, ORDER, b"x")
        database.end_conversation(peer_handle(database, closes))
        database.end_conversation(closes)
        time.sleep(0.2)
        assert state(database, expires) == "SO"
        clock.ahead += timedelta(minutes=31)
        eventually(lambda: state(database, expires) == "ER")
        eventually(lambda: query(database, f"select count(*) from {database.name}_dbo.ordersqueue") == [(2,)])
        eventually(lambda: leftovers(database)["conversation_endpoints"] == 2)


@pytest.mark.usefixtures("without_polls")
def test_upkeep_wakes_a_reader(make_instance_url: Callable[..., str]) -> None:
    clock = Clock()
    with sb.open(make_instance_url(1), clock=clock, upkeep=0.05) as instance:
        database = standard_database(instance)
        begin(database, lifetime=60)
        reader = in_thread(database.receive, ORDERS_QUEUE, wait=60)
        eventually(lambda: query(database, "select count(*) from servicebroker.waiting_readers") == [(1,)])
        clock.jump(seconds=61)
        assert errors(reader.result(5)) == [EXPIRED]


def test_close_does_not_wait_for_blocked_upkeep(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    with sb.open(url, upkeep=None) as outside, outside.connection() as connection:
        inside = sb.open(url, upkeep=0.02)
        with connection.transaction():
            connection.execute("lock table servicebroker.conversation_endpoints in access exclusive mode")
            time.sleep(0.3)
            began = time.monotonic()
            inside.close()
            assert time.monotonic() - began < 2


@pytest.mark.slow
def test_upkeep_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    clock = Clock()
    with sb.open(tmp_path / "data", clock=clock, upkeep=0.05) as instance:
        database = standard_database(instance)
        handle = begin(database, lifetime=60)
        postmaster = int((tmp_path / "data/postgresql/postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        time.sleep(0.5)
        with sb.open(tmp_path / "data", clock=clock, upkeep=None) as again:
            clock.jump(seconds=61)
            eventually(lambda: state(again.database("Test"), handle) == "ER")
