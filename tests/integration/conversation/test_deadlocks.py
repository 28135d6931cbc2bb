"""Deadlocks: one transaction is the victim and gets 1205, the other continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    begin,
    bodies,
    eventually,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    state,
    wait_until_blocked,
)

Work = Callable[[], None]


@pytest.fixture
def stock(database: sb.Database) -> str:
    """An application's table with one row."""
    table = f"stock_{database.database_id}"
    with database.instance.connection() as connection:
        connection.execute(f"create table {table} as select 0 as taken")  # type: ignore[call-overload]
    return table


def take(transaction: sb.JoinedTransaction, table: str) -> None:
    transaction.connection.execute(f"update {table} set taken = taken + 1")  # type: ignore[call-overload]


def run_concurrently(*work: Work) -> list[sb.BrokerError]:
    """Run functions in threads. Return the errors, each of which must be 1205."""
    futures = [in_thread(function) for function in work]
    victims = [problem for problem in [future.exception(30) for future in futures] if problem is not None]
    for victim in victims:
        assert isinstance(victim, sb.BrokerError), victim
        assert (victim.number, victim.severity) == (1205, 13)
        assert "deadlock victim" in victim.text
    return [victim for victim in victims if isinstance(victim, sb.BrokerError)]


def circle(database: sb.Database, handle: UUID, table: str, both_hold: threading.Barrier) -> tuple[Work, Work]:
    """Return a sender that locks the row before the conversation, and a reader that locks them in the other order."""

    def row_first() -> None:
        with database.transaction() as transaction:
            take(transaction, table)
            both_hold.wait(10)
            transaction.end_conversation(handle)

    def conversation_first() -> None:
        with database.transaction() as transaction:
            assert transaction.receive(STOCK_QUEUE, conversation_handle=handle)
            both_hold.wait(10)
            take(transaction, table)

    return row_first, conversation_first


@pytest.mark.feature(81)
def test_a_circle_of_user_rows_and_conversations_has_one_victim(database: sb.Database, stock: str) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"x")
    both_hold = threading.Barrier(2)
    work = circle(database, target, stock, both_hold)
    (victim,) = run_concurrently(*work)
    assert isinstance(victim.__cause__, psycopg.errors.DeadlockDetected)
    assert query(database, f"select taken from {stock}") == [(1,)]  # the victim's work is rolled back
    assert database.receive(STOCK_QUEUE) == []  # received by the reader, or removed by the END
    if state(database, target) == "CO":  # END was the victim: a retry finds the previous state
        database.end_conversation(target)
    assert state(database, target) == "DO" or state(database, initiator) == "DI"
    text = (
        "select count(*) from pg_locks where locktype = 'advisory' "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    eventually(lambda: query(database, text) == [(0,)])


def test_one_of_two_senders_that_deadlock_fails_and_the_other_commits(database: sb.Database) -> None:
    first, second = begin(database), begin(database)
    for handle in (first, second):
        database.send(handle, ORDER, b"0")
    both_hold = threading.Barrier(2)

    def send_on(one: UUID, other: UUID) -> None:
        with database.transaction() as transaction:
            transaction.send(one, ORDER, b"1")
            both_hold.wait(10)
            transaction.send(other, ORDER, b"2")

    assert len(run_concurrently(partial(send_on, first, second), partial(send_on, second, first))) == 1
    received = [bodies(database.receive(STOCK_QUEUE)) for _ in range(2)]
    assert sorted(received) == [[b"0", b"1"], [b"0", b"2"]]


def test_a_sender_to_a_service_being_created_is_no_victim(database: sb.Database) -> None:
    """The sender has locked a conversation that waits for the service, and begins another one with the service."""
    name = "//test/Late"
    waiting, begins = begin(database, name), begin(database, name)
    database.send(waiting, ORDER, b"0")
    with database.transaction() as transaction:
        transaction.begin_conversation_timer(waiting, 60)
        creating = in_thread(database.create_service, name, STOCK_QUEUE, [CONTRACT])
        wait_until_blocked(database)
        transaction.send(begins, ORDER, b"first")
        time.sleep(1.5)  # the server checks for deadlocks after a second
        assert not creating.done()
    creating.result(30)
    received = sorted(bodies(database.receive(STOCK_QUEUE)) for _ in range(2))
    assert received == [[b"0"], [b"first"]]


@pytest.mark.feature(81)
def test_user_rows_before_conversations_never_deadlock(database: sb.Database, stock: str) -> None:
    initiator = begin(database)
    database.send_batch(initiator, ORDER, [b"%d" % number for number in range(20)])
    target = peer_handle(database, initiator)

    def read() -> None:
        for _ in range(10):
            with database.transaction() as transaction:
                take(transaction, stock)
                assert transaction.receive(STOCK_QUEUE, top=1, conversation_handle=target)

    assert run_concurrently(read, read) == []
    assert query(database, f"select taken from {stock}") == [(20,)]
    assert database.receive(STOCK_QUEUE) == []


@pytest.mark.feature(81)
def test_concurrent_send_and_end_on_both_sides(database: sb.Database) -> None:
    """Each side locks its own row and waits for the other's. The victim retries, and finds the peer's EndDialog."""
    for _ in range(3):
        initiator, target = open_dialog(database)
        both_hold = threading.Barrier(2)

        def send_and_end(handle: UUID, message_type: str, both_hold: threading.Barrier = both_hold) -> None:
            with database.transaction() as transaction:
                transaction.send(handle, message_type, b"last")
                both_hold.wait(10)
                transaction.end_conversation(handle)

        victims = run_concurrently(partial(send_and_end, initiator, ORDER), partial(send_and_end, target, REPLY))
        assert len(victims) == 1
        handle, queue = (initiator, ORDERS_QUEUE) if state(database, initiator) == "DI" else (target, STOCK_QUEUE)
        assert bodies(database.receive(queue)) == [b"last", None]
        database.end_conversation(handle)
        assert database.receive(STOCK_QUEUE) == database.receive(ORDERS_QUEUE) == []


def test_verbs_fail_after_a_caught_deadlock_until_the_transaction_ends(database: sb.Database, stock: str) -> None:
    """The victim's transaction is rolled back, and every further verb fails until it ends."""
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"x")
    both_hold = threading.Barrier(2)

    def other() -> None:
        with database.transaction() as transaction:
            assert transaction.receive(STOCK_QUEUE, conversation_handle=target)
            both_hold.wait(10)
            # the other session detects the deadlock first
            transaction.connection.execute("set local deadlock_timeout = '20s'")
            take(transaction, stock)

    with psycopg.connect(database.instance.url) as connection:
        verbs = database.join(connection)
        take(verbs, stock)
        future = in_thread(other)
        both_hold.wait(10)
        with pytest.raises(sb.BrokerError) as error:
            verbs.end_conversation(target)
        assert error.value.number == 1205
        assert str(connection.info.backend_pid) in error.value.text
        with pytest.raises(sb.InstanceError, match="begin it again"):
            verbs.send(initiator, ORDER, b"y")
        connection.rollback()
        future.result(10)
        verbs.end_conversation(target)
    assert state(database, target) == "DO" or state(database, target) == "CD"
