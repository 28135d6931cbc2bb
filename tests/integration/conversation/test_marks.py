"""Marks of RECEIVE: they skip consumed rows that vacuum may not remove, and never a message."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.store.queue import queue_functions
from support import (
    ORDER,
    STOCK,
    STOCK_QUEUE,
    Undo,
    begin,
    bodies,
    drain,
    group_of,
    open_dialog,
    query,
    queue_number,
    run_together,
    surveying_always,
    tolerate_rollbacks,
)


def survey_always(database: sb.Database) -> None:
    """Replace the functions of the target's queue by ones that advance the marks as often as possible."""
    functions = queue_functions(queue_number(database, STOCK_QUEUE), retention=False)
    with database.instance.connection() as connection:
        connection.execute(surveying_always(functions.sql).encode())


@contextmanager
def open_one_session(database: sb.Database) -> Iterator[sb.Database]:
    """Open another instance with one connection, so that every RECEIVE uses the same session."""
    with sb.open(database.instance.url, upkeep=None) as instance:
        yield instance.database(database.name)


@contextmanager
def old_transaction(database: sb.Database, *, writes: bool) -> Iterator[None]:
    """Keep a transaction open during the block, so that vacuum cannot remove rows deleted meanwhile."""
    with psycopg.connect(database.instance.url) as old:
        old.execute("set transaction isolation level repeatable read")
        old.execute("select pg_current_xact_id()" if writes else "select")
        yield
        old.rollback()


def marks(database: sb.Database) -> list[int]:
    with database.instance.connection() as connection:
        name = f"servicebroker.marks_{queue_number(database, STOCK_QUEUE)}"
        row = connection.execute("select current_setting(%s, true)", (name,)).fetchone()
    assert row is not None
    return [int(mark) for mark in row[0].strip("{}").split(",")] if row[0] else []


def receive_all(database: sb.Database, top: int = 100) -> list[sb.Message]:
    found = []
    while messages := database.receive(STOCK_QUEUE, top=top):
        found += messages
    return found


def pages_of_a_receive(database: sb.Database, arguments: str = "1, now()", times: int = 3) -> int:
    """Return the number of pages that a RECEIVE reads."""
    number = queue_number(database, STOCK_QUEUE)
    text = f"explain (analyze, buffers, format json) select * from servicebroker.receive_{number}({arguments})"
    found = []
    for _ in range(times):  # the marks advance at most every 10 ms
        ((plan,),) = query(database, text)
        found.append(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
        time.sleep(0.02)
    return int(min(found))


# ---------------------------------------------------------------- rows that a mark may skip


def test_a_message_that_is_numbered_early_and_committed_late_is_received(database: sb.Database) -> None:
    survey_always(database)
    late, other_handle = begin(database), begin(database)
    for handle in (late, other_handle):
        database.send(handle, ORDER, b"open")
    with open_one_session(database) as reader:
        receive_all(reader)
        with database.transaction() as slow:
            slow.send(late, ORDER, b"first")
            for _ in range(3):
                for number in range(20):
                    database.send(other_handle, ORDER, b"%d" % number)
                assert len(receive_all(reader)) == 20
                time.sleep(0.02)
            slow.send(late, ORDER, b"second")
        assert bodies(receive_all(reader)) == [b"first", b"second"]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_marks_that_depend_on_an_open_transaction(database: sb.Database, ends: str) -> None:
    """Marks advance past an open transaction after a while, and return to its rows once it has ended."""
    survey_always(database)
    late, other_handle = begin(database), begin(database)
    for handle in (late, other_handle):
        database.send(handle, ORDER, b"open")
    with open_one_session(database) as reader, psycopg.connect(database.instance.url) as slow:
        receive_all(reader)
        database.join(slow).send(late, ORDER, b"late")
        conditional = False
        for number in range(40):
            database.send(other_handle, ORDER, b"%d" % number)
            assert bodies(receive_all(reader)) == [b"%d" % number]
            conditional = conditional or marks(reader)[10] == 1
            time.sleep(0.001)
        assert conditional
        assert marks(reader)[4] > 20
        slow.commit() if ends == "commit" else slow.rollback()
        assert bodies(receive_all(reader)) == ([b"late"] if ends == "commit" else [])
        database.send(other_handle, ORDER, b"end")
        assert bodies(receive_all(reader)) == [b"end"]
        assert marks(reader)[10] == 0


def test_messages_of_a_rolled_back_receive_are_received_again(database: sb.Database) -> None:
    survey_always(database)
    handles = [begin(database) for _ in range(3)]
    for handle in handles:
        database.send_batch(handle, ORDER, [b"1", b"2"])
    with open_one_session(database) as reader, open_one_session(database) as other:
        with other.transaction() as undone:
            assert len(undone.receive(STOCK_QUEUE)) == 2
            assert len(receive_all(reader)) == 4
            for _ in range(3):
                database.send(handles[0], ORDER, b"3")
                assert receive_all(reader) == []
            undone.connection.rollback()
        assert bodies(receive_all(reader)) == [b"1", b"2", b"3", b"3", b"3"]


def test_messages_of_a_rolled_back_savepoint_are_received_again(database: sb.Database) -> None:
    survey_always(database)
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    with open_one_session(database) as reader, reader.transaction() as transaction:
        for _ in range(3):
            transaction.connection.execute("savepoint s")
            assert bodies(transaction.receive(STOCK_QUEUE)) == [b"1", b"2"]
            assert transaction.receive(STOCK_QUEUE) == []
            transaction.connection.execute("rollback to savepoint s")
        assert bodies(transaction.receive(STOCK_QUEUE)) == [b"1", b"2"]


def test_a_session_at_repeatable_read_keeps_its_marks(database: sb.Database) -> None:
    survey_always(database)
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    with open_one_session(database) as reader:
        receive_all(reader)
        before = marks(reader)
        with reader.transaction() as transaction:
            transaction.connection.execute("set transaction isolation level repeatable read")
            database.send_batch(handle, ORDER, [b"2"] * 5)
            assert len(transaction.receive(STOCK_QUEUE)) == 5
        assert marks(reader) == before
        assert receive_all(reader) == []


@pytest.mark.feature(72)
def test_each_priority_has_a_mark(database: sb.Database) -> None:
    """Old messages of a low priority do not slow down RECEIVE. They are returned after all higher ones."""
    survey_always(database)
    low = begin(database)
    database.send(low, ORDER, b"low")
    database.create_broker_priority("High", remote_service_name=None, local_service_name=STOCK, priority_level=9)
    high = begin(database)
    with open_one_session(database) as reader:
        for number in range(30):
            database.send(high, ORDER, b"%d" % number)
            (message,) = reader.receive(STOCK_QUEUE, top=1)
            assert (message.message_body, message.priority) == (b"%d" % number, 9)
        first, *_ = found = marks(reader)
        assert found[8] > found[4]
        assert first > found[4]
        assert bodies(receive_all(reader)) == [b"low"]


# ---------------------------------------------------------------- cost


@pytest.mark.slow
@pytest.mark.feature(211)
@pytest.mark.parametrize("writes", [False, True], ids=["reads", "writes"])
def test_an_old_transaction_does_not_slow_down_receive(database: sb.Database, writes: bool) -> None:
    """20,000 messages are consumed meanwhile. The last ones cost as many pages as the first ones."""
    handles = [begin(database) for _ in range(10)]
    with open_one_session(database) as reader, old_transaction(database, writes=writes):
        first = 0
        for _ in range(20):
            for handle in handles:
                database.send_batch(handle, ORDER, [b"x" * 100] * 100)
            assert len(receive_all(reader)) == 1000
            first = first or pages_of_a_receive(reader)
        table = f"servicebroker.queue_{queue_number(database, STOCK_QUEUE)}"
        ((pages,),) = query(database, f"select pg_relation_size('{table}') / 8192")
        assert pages > 400  # all rows are still there
        assert pages_of_a_receive(reader) < first + 60


@pytest.mark.parametrize("of_group", [False, True])
def test_consumed_messages_of_a_group_are_not_read_again(database: sb.Database, of_group: bool) -> None:
    """RECEIVE of several messages reads the group's lower priorities. RECEIVE from one group reads all priorities."""
    with open_one_session(database) as reader, old_transaction(database, writes=False):
        initiator, target = open_dialog(reader)
        arguments = f"10, now(), in_group => '{group_of(reader, target)}'" if of_group else "10, now()"
        found = []
        for _ in range(4):
            reader.send_batch(initiator, ORDER, [bytes(1500)] * 150)
            assert len(receive_all(reader)) == 150
            time.sleep(0.02)  # the marks advance at most every 10 ms
            receive_all(reader)
            reader.send(initiator, ORDER, b"last")
            found.append(pages_of_a_receive(reader, arguments, times=1))
        assert found[-1] < 90  # the 600 messages have 120 pages


@pytest.mark.slow
def test_a_sender_that_stays_open_does_not_slow_down_receive(database: sb.Database) -> None:
    handle, other_handle = begin(database), begin(database)
    for one in (handle, other_handle):
        database.send(one, ORDER, b"open")
    with open_one_session(database) as reader:
        receive_all(reader)
        with old_transaction(database, writes=False), database.transaction() as slow:
            slow.send(other_handle, ORDER, b"late")
            for _ in range(10):
                database.send_batch(handle, ORDER, [b"x" * 100] * 1000)
                assert len(receive_all(reader)) == 1000
                time.sleep(0.12)  # the wait for the open transaction ends after 100 ms
                receive_all(reader)
            assert marks(reader)[10] == 1
            assert pages_of_a_receive(reader) < 250
        assert bodies(receive_all(reader)) == [b"late"]


def test_a_transaction_does_not_slow_itself_down(database: sb.Database) -> None:
    """RECEIVE skips 2,000 rows that its own transaction has consumed. A rollback brings the messages back."""
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"%d" % number for number in range(2_100)])
    with open_one_session(database) as reader:
        with reader.transaction() as transaction:

            def drain(messages: int) -> list[bytes | None]:
                found = []
                for left in range(messages, 0, -100):
                    found += bodies(transaction.receive(STOCK_QUEUE, top=min(100, left)))
                    time.sleep(0.001)
                time.sleep(0.02)  # the marks advance at most every 10 ms
                return found + bodies(transaction.receive(STOCK_QUEUE, top=1))

            def pages() -> int:
                number = queue_number(database, STOCK_QUEUE)
                text = f"explain (analyze, buffers, format json) select * from servicebroker.receive_{number}(1, now())"
                found = []
                for _ in range(5):  # concurrent writes can prevent an advance of the marks
                    ((plan,),) = transaction.connection.execute(text.encode()).fetchall()
                    found.append(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
                    time.sleep(0.02)
                return int(min(found))

            assert drain(9) == [b"%d" % number for number in range(10)]
            first = pages()
            transaction.connection.execute("savepoint s")
            assert drain(1_000)[-1] == b"1015"
            transaction.connection.execute("rollback to savepoint s")
            assert drain(2_000)[-1] == b"2015"
            assert pages() < first + 20
            transaction.connection.rollback()
        assert bodies(receive_all(reader, 3_000)) == [b"%d" % number for number in range(2_100)]


# ---------------------------------------------------------------- stress


@pytest.mark.slow
@pytest.mark.feature(62, 63, 67, 76, 77, 211)
@pytest.mark.parametrize("held_back", [False, True], ids=["vacuumed", "held back"])
def test_messages_are_received_once_and_in_order(
    database: sb.Database, seeded_random: random.Random, held_back: bool
) -> None:
    """Readers use savepoints and rollbacks, senders commit late, conversations move, the queue is toggled, timers fire.

    Every message is received once, in the order of its conversation.
    """
    tolerate_rollbacks(database)
    survey_always(database)
    pairs = [open_dialog(database) for _ in range(12)]
    numbers: dict[UUID, list[int]] = defaultdict(list)
    timers: Counter[UUID] = Counter()
    senders_done, all_done = threading.Event(), threading.Event()

    def send(seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(40):
            try:
                with database.transaction() as transaction:
                    for initiator, _ in sorted(choice.sample(pairs, choice.randint(1, 3)), key=str):
                        transaction.send_batch(initiator, ORDER, [b"x"] * choice.randint(1, 5))
                    if choice.random() < 0.2:
                        time.sleep(choice.random() / 20)
                    if choice.random() < 0.2:
                        raise Undo
            except Undo:
                continue

    def read(seed: float) -> None:
        choice = random.Random(seed)
        with open_one_session(database) as reader:
            drain(partial(receive, reader, choice), all_done, 9617)

    def receive(reader: sb.Database, choice: random.Random) -> list[sb.Message]:
        with reader.transaction() as transaction:
            top = choice.choice([1, 2, 7, None])
            if choice.random() < 0.3:
                with suppress(Undo), transaction.savepoint():
                    transaction.receive(STOCK_QUEUE, top=top)
                    raise Undo
            messages = transaction.receive(STOCK_QUEUE, top=top)
            if messages and choice.random() < 0.2:
                raise Undo
            if messages and choice.random() < 0.1:
                time.sleep(choice.random() / 50)
            for message in messages:  # while the group is locked
                if message.is_timer:
                    timers[message.conversation_handle] += 1
                else:
                    numbers[message.conversation_handle].append(message.message_sequence_number)
        return messages

    def move(seed: float) -> None:
        choice = random.Random(seed)
        while not senders_done.is_set():
            one, other = choice.sample(pairs, 2)
            database.move_conversation(one[1], group_of(database, other[1]))
            database.begin_conversation_timer(one[1], 1)
            time.sleep(0.01)

    def switch(seed: float) -> None:
        choice = random.Random(seed)
        while not senders_done.is_set():
            database.alter_queue(STOCK_QUEUE, status=False)
            time.sleep(choice.random() / 30)
            database.alter_queue(STOCK_QUEUE, status=True)
            time.sleep(choice.random() / 10)

    def send_all() -> None:
        run_together(*[partial(send, seeded_random.random()) for _ in range(6)])
        senders_done.set()

    def write() -> None:
        changers = [partial(change, seeded_random.random()) for change in (move, switch)]
        run_together(send_all, *changers)
        all_done.set()

    readers = [partial(read, seeded_random.random()) for _ in range(8)]
    if held_back:
        with old_transaction(database, writes=True):
            run_together(write, *readers)
    else:
        run_together(write, *readers)
    sent = "select conversation_handle, send_sequence from servicebroker.conversation_endpoints where is_initiator"
    totals = dict(query(database, sent))
    for initiator, target in pairs:
        assert numbers[target] == list(range(1, totals[initiator]))
    assert query(database, f"select count(*) from {database.name}_dbo.stockqueue") == [(0,)]
    assert query(database, f"select count(*) from {database.name}_dbo.ordersqueue") == [(0,)]
