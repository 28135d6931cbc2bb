"""A drained queue returns its disk space, without blocking other sessions."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial

import psycopg
import pytest

import servicebroker as sb
import servicebroker.engine.conversation.maintenance
from servicebroker.api.maintenance import run_maintenance
from servicebroker.engine.conversation.maintenance import MIN_TRUNCATED_BYTES, truncate_empty_queue
from servicebroker.store import locks
from servicebroker.store.running import run
from support import (
    ORDER,
    ORDERS_QUEUE,
    STOCK_QUEUE,
    Clock,
    begin,
    bodies,
    eventually,
    in_thread,
    query,
    queue_number,
    run_together,
    standard_database,
    wait_until_blocked,
)


def size(database: sb.Database) -> int:
    """Return the size of the files of the target's queue in bytes."""
    number = queue_number(database, STOCK_QUEUE)
    size_bytes: int = query(database, "select pg_total_relation_size(%s::regclass)", f"servicebroker.queue_{number}")[
        0
    ][0]
    return size_bytes


def give_back(database: sb.Database) -> bool:
    with database.instance.connection() as connection:
        return run(connection, truncate_empty_queue(queue_number(database, STOCK_QUEUE)))


def fill(database: sb.Database, messages: int) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        for _ in range(messages // 1000):
            transaction.send_batch(handle, ORDER, [b"x" * 500] * 1000)


def drain(database: sb.Database) -> int:
    taken = 0
    while messages := database.receive(STOCK_QUEUE, top=1000):
        taken += len(messages)
    return taken


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.feature(211)
def test_a_queue_stays_small_after_many_messages(
    database: sb.Database, clock: Clock, request: pytest.FixtureRequest
) -> None:
    """Also while an old transaction prevents vacuum from removing rows."""
    messages = request.config.getoption("--space-messages")
    with psycopg.connect(database.instance.url) as old, database.instance.connection() as connection:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select pg_current_xact_id()")
        first = 0
        for _ in range(10):
            fill(database, messages)
            assert drain(database) == messages
            drained = size(database)
            first = first or drained
            assert drained < 2 * first
            run_maintenance(connection, clock())
            assert size(database) < MIN_TRUNCATED_BYTES
            old.execute("select 1")
        assert first > MIN_TRUNCATED_BYTES


@pytest.mark.slow
@pytest.mark.feature(211)
def test_upkeep_returns_the_space_of_a_drained_queue(make_instance_url: Callable[..., str]) -> None:
    with sb.open(make_instance_url(1), upkeep=3600) as instance:
        database = standard_database(instance)
        fill(database, 20_000)
        assert drain(database) == 20_000
        eventually(lambda: size(database) < MIN_TRUNCATED_BYTES)
        fill(database, 1000)
        assert drain(database) == 1000


def test_a_queue_with_a_message_or_a_user_keeps_its_table(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    assert not give_back(database)
    with database.transaction() as reader:
        assert bodies(reader.receive(STOCK_QUEUE)) == [b"1"]
        assert not give_back(database)  # the RECEIVE may be rolled back
    with database.transaction() as sender:
        sender.send(handle, ORDER, b"2")
        assert not give_back(database)
    assert not give_back(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]
    with database.transaction() as looker:
        assert looker.receive(STOCK_QUEUE) == []
        assert not give_back(database)  # another session uses the table
    assert give_back(database)
    database.send(handle, ORDER, b"3")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"3"]


def test_a_queue_whose_search_times_out_does_not_block_others(
    fresh_database: sb.Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fresh_database
    monkeypatch.setattr(servicebroker.engine.conversation.maintenance, "MIN_TRUNCATED_BYTES", 0)
    first, later = queue_number(database, ORDERS_QUEUE), queue_number(database, STOCK_QUEUE)
    assert first < later
    database.send(begin(database), ORDER, b"1")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
    with database.instance.connection() as connection:
        connection.execute(
            "create function cancelled() returns trigger language plpgsql as "
            "$$ begin raise exception 'as the statement timeout does' using errcode = 'query_canceled'; end $$"
        )
        text = f"create trigger cancelled before truncate on servicebroker.queue_{first} execute function cancelled()"
        connection.execute(text.encode())
        run_maintenance(connection, clock())
    assert query(database, "select pg_relation_size(%s::regclass)", f"servicebroker.queue_{later}") == [(0,)]


def test_space_is_not_given_back_before_the_first_message_is_received(database: sb.Database) -> None:
    """The first arrival number is counted, too."""
    assert give_back(database)
    database.send(begin(database), ORDER, b"1")
    assert not give_back(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_waiting_reader_and_a_pipeline_are_not_disturbed(database: sb.Database) -> None:
    handle = begin(database)
    waiting = in_thread(database.receive, STOCK_QUEUE, wait=30)
    number = queue_number(database, STOCK_QUEUE)
    eventually(lambda: database.instance.notifier._waiting.get(number))
    eventually(lambda: give_back(database))
    database.send(handle, ORDER, b"1")
    assert bodies(waiting.result(10)) == [b"1"]
    with database.instance.connection() as pipeline:
        pipeline.execute("select pg_advisory_lock(%s, %s)", (locks.PIPELINE_QUEUE, number))
        database.send(handle, ORDER, b"2")
        assert not give_back(database)  # unacknowledged messages stay
        pipeline.execute(f"delete from servicebroker.queue_{number}".encode())
        assert give_back(database)
        pipeline.execute("select pg_advisory_unlock(%s, %s)", (locks.PIPELINE_QUEUE, number))


def test_returning_space_never_blocks(database: sb.Database) -> None:
    """Not even behind another session that waits for a lock on the table."""
    with psycopg.connect(database.instance.url) as looker:
        looker.execute(f"select from servicebroker.queue_{queue_number(database, STOCK_QUEUE)}".encode())
        rebuild = in_thread(database.alter_queue, STOCK_QUEUE, rebuild=True)
        wait_until_blocked(database)
        looker.execute("select 1")
        assert not in_thread(give_back_alone, database).result(10)
        looker.rollback()
        rebuild.result(10)


def give_back_alone(database: sb.Database) -> bool:
    with psycopg.connect(database.instance.url) as connection:
        connection.execute("set lock_timeout = 1000")
        row = connection.execute(
            "select servicebroker.truncate_if_empty(%s)", (queue_number(database, STOCK_QUEUE),)
        ).fetchone()
    return bool(row and row[0])


@pytest.mark.slow
def test_no_message_is_lost_when_space_is_given_back_under_load(
    database: sb.Database, seeded_random: random.Random
) -> None:
    """The queue becomes empty repeatedly. No message is lost with the truncated table."""
    done_event = threading.Event()
    handles = [begin(database) for _ in range(4)]
    taken: list[list[sb.Message]] = [[] for _ in range(3)]
    given_back: list[bool] = []
    sent: list[int] = []

    def send(seed: float) -> None:
        """Send 100 messages, and more until the queue was empty once."""
        choice = random.Random(seed)
        for number in range(2_000):
            if number >= 100 and any(given_back):
                return
            sent.append(number)
            handle = handles[choice.randrange(4)]
            with database.transaction() as transaction:
                transaction.send(handle, ORDER, b"%d" % number)
                done_event.wait(choice.random() / 200)

    def read(mine: list[sb.Message]) -> None:
        while True:
            finished = done_event.is_set()
            messages = database.receive(STOCK_QUEUE, wait=0.01)
            mine += messages
            if finished and not messages:
                return

    def cut_queue() -> None:
        while not done_event.is_set():
            given_back.append(give_back(database))
            done_event.wait(0.002)

    def send_all() -> None:
        run_together(*[partial(send, seeded_random.random()) for _ in range(3)])
        done_event.set()

    run_together(send_all, cut_queue, *[partial(read, mine) for mine in taken])
    assert sum(map(len, taken)) == len(sent)
    assert any(given_back)
