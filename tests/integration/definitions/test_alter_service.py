"""ALTER and DROP SERVICE."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.engine.conversation.begin import begin_dialog
from servicebroker.operations.begin import BeginDialog
from servicebroker.store.running import run_alone
from servicebroker.store.statements import Steps, resume
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    check_numbers,
    drain,
    errors,
    in_thread,
    leftovers,
    open_dialog,
    pipeline_on,
    refused,
    result_or_none,
    run_together,
    state,
    wait_until_blocked,
    waiting_messages,
    waiting_reader,
)

pytestmark = pytest.mark.both_apis


@pytest.mark.feature(20)
def test_alter_service_moves_its_messages(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.create_service("//stays", STOCK_QUEUE, [CONTRACT])
    database.send(begin(database, "//stays"), ORDER, b"stays")
    database.send_batch(initiator, ORDER, [b"1", b"2"])
    database.create_queue("Second")
    reader = waiting_reader(database, "Second")
    database.alter_service(STOCK, queue="second")
    assert database.send(initiator, ORDER, b"3") == 3
    assert bodies(reader.result(5) + database.receive("Second")) == [b"1", b"2", b"3"]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"stays"]
    database.send(target, REPLY, b"back")
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"back"]
    database.begin_conversation_timer(target, 0)
    assert [message.is_timer for message in database.receive("Second")] == [True]
    database.end_conversation(initiator)
    assert [message.is_end_dialog for message in database.receive("Second")] == [True]
    database.end_conversation(target)


def test_alter_service_adds_and_drops_contracts(database: sb.Database) -> None:
    with refused(8493, STOCK):
        database.alter_service(STOCK)
    with refused(8493, STOCK):
        database.alter_service(STOCK, queue=STOCK_QUEUE)
    for contracts in ({"add_contracts": ["DEFAULT", "DEFAULT"]}, {"add_contracts": [CONTRACT]}):
        with refused(8404):
            database.alter_service(STOCK, **contracts)  # type: ignore[arg-type]
    with refused(8404, "DEFAULT"):
        database.alter_service(STOCK, add_contracts=["DEFAULT"], drop_contracts=["DEFAULT"])
    for wrong in ({"add_contracts": ["//no"]}, {"drop_contracts": ["DEFAULT"]}, {"queue": "Nothing"}):
        with refused(15151):
            database.alter_service(STOCK, **wrong)  # type: ignore[arg-type]
    with refused(15151, "//nothing"):
        database.alter_service("//nothing", add_contracts=["DEFAULT"])
    old, _ = open_dialog(database)
    database.alter_service(STOCK, add_contracts=["DEFAULT"], drop_contracts=[CONTRACT])
    database.send(old, ORDER, b"goes on")
    database.send(database.begin_dialog(ORDERS, STOCK), body=b"new")
    assert bodies(database.receive(STOCK_QUEUE) + database.receive(STOCK_QUEUE)) == [b"goes on", b"new"]
    database.send(begin(database), ORDER, b"refused")
    assert errors(database.receive(ORDERS_QUEUE)) == [-8408]


def test_a_service_that_moves_from_a_queue_that_is_off(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"1")
    database.send(begin(database), ORDER, b"new")
    database.create_queue("Second")
    database.alter_service(STOCK, queue="Second")
    assert waiting_messages(database) == 0
    database.send(handle, ORDER, b"2")
    assert sorted([bodies(database.receive("Second")), bodies(database.receive("Second"))]) == [[b"1", b"2"], [b"new"]]


@contextmanager
def begin_uncommitted(database: sb.Database, done: list[UUID]) -> Iterator[None]:
    """Run BEGIN DIALOG in a transaction that stays open for the block, and then commit it."""
    with database.transaction() as transaction:
        done.append(transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT))
        yield


@pytest.mark.feature(20)
def test_a_dialog_that_is_beginning_moves_with_its_service(database: sb.Database) -> None:
    database.create_queue("Second")
    begun: list[UUID] = []
    with begin_uncommitted(database, begun):
        moving = in_thread(database.alter_service, ORDERS, queue="Second")
        wait_until_blocked(database)
    moving.result(30)
    database.send(begun[0], ORDER, b"x")
    (message,) = database.receive(STOCK_QUEUE)
    database.send(message.conversation_handle, REPLY, b"back")
    assert bodies(database.receive("Second")) == [b"back"]


@pytest.mark.feature(21)
def test_a_dialog_that_is_beginning_goes_with_its_service(fresh_database: sb.Database) -> None:
    database, begun = fresh_database, list[UUID]()
    with begin_uncommitted(database, begun):
        dropping = in_thread(database.drop_service, ORDERS)
        wait_until_blocked(database)
    dropping.result(30)
    assert state(database, begun[0]) is None
    assert leftovers(database) == {}


def begin_during(database: sb.Database, change: Callable[[], None]) -> UUID:
    """Run BEGIN DIALOG, and make the change after it has looked up its service and contract."""

    def steps() -> Steps[UUID]:
        dialog = BeginDialog(ORDERS, STOCK, contract=CONTRACT)
        beginning = begin_dialog(database.database_id, dialog, now=datetime.now(UTC))
        looked = yield next(beginning)
        change()
        return (yield from resume(beginning.send(looked), beginning))

    with psycopg.connect(database.instance.url, autocommit=True) as connection:
        return run_alone(connection, steps())


def test_a_concurrent_begin_dialog_sees_the_change(database: sb.Database) -> None:
    database.create_queue("Second")
    handle = begin_during(database, lambda: database.alter_service(ORDERS, queue="Second"))
    database.begin_conversation_timer(handle, 0)
    assert [message.is_timer for message in database.receive("Second")] == [True]
    with refused(8423, ORDERS):
        begin_during(database, lambda: database.drop_service(ORDERS))


@pytest.mark.feature(20)
def test_a_service_stays_with_the_pipeline_that_reads_its_queue(database: sb.Database) -> None:
    """Otherwise landed, unacknowledged messages would be received again from the other queue."""
    database.create_queue("Second")
    open_dialog(database)
    with pipeline_on(database), pytest.raises(sb.InstanceError, match="A pipeline reads the queue 'StockQueue'"):
        database.alter_service(STOCK, queue="Second")
    database.alter_service(STOCK, queue="Second")


@pytest.mark.usefixtures("without_polls")
@pytest.mark.feature(70)
@pytest.mark.parametrize("inside", [False, True])
def test_a_waiting_reader_is_told_that_its_service_changed(database: sb.Database, inside: bool) -> None:
    reader = waiting_reader(database, inside=inside)
    database.alter_service(STOCK, add_contracts=["DEFAULT"])
    with refused(8468):
        reader.result(10)
    reader = waiting_reader(database, inside=inside)
    database.drop_service(STOCK)
    with refused(8468):
        reader.result(10)
    reader = waiting_reader(database, inside=inside)
    dropped = in_thread(database.drop_queue, STOCK_QUEUE)
    with refused(15151):
        reader.result(10)
    dropped.result(10)


@pytest.mark.feature(21, 102)
def test_drop_service(fresh_database: sb.Database) -> None:
    database = fresh_database
    database.create_broker_priority("P", local_service_name=STOCK)
    with refused(3716, STOCK, "priorities"):
        database.drop_service(STOCK)
    database.drop_broker_priority("P")
    with refused(15151):
        database.drop_service("//nothing")
    handles = [open_dialog(database) for _ in range(3)]
    for initiator, target in handles:
        database.send(initiator, ORDER, b"unread")
        database.send(target, REPLY, b"read on")
    database.drop_service(STOCK)
    assert database.receive(STOCK_QUEUE) == []
    for initiator, target in handles:
        assert (state(database, initiator), state(database, target)) == ("ER", None)
        error, reply = database.receive(ORDERS_QUEUE, conversation_handle=initiator)
        assert sb.read_error(error.message_body) == (-8470, "Remote service has been dropped.")
        assert reply.message_body == b"read on"
        with refused(8426):
            database.send(target, REPLY, b"x")
        database.end_conversation(initiator)
    assert leftovers(database) == {}
    database.send(begin(database), ORDER, b"waits")
    database.create_service(STOCK, STOCK_QUEUE, [CONTRACT])
    assert bodies(database.receive(STOCK_QUEUE)) == [b"waits"]


def test_drop_service_while_ends_wait(fresh_database: sb.Database) -> None:
    database = fresh_database
    initiator, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.end_conversation(initiator)
    database.drop_service(STOCK)
    assert leftovers(database) == {}


@pytest.mark.slow
def test_senders_and_readers_while_the_service_moves(database: sb.Database, seeded_random: random.Random) -> None:
    handles = [begin(database) for _ in range(6)]
    received: dict[UUID, list[tuple[int, object]]] = defaultdict(list)
    committed: set[object] = set()
    done_event, stop = threading.Event(), threading.Event()
    database.create_queue("Second")

    def send(seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(100):
            database.send(choice.choice(handles), ORDER, b"x")

    def read(queue: str) -> list[sb.Message]:
        attempt = object()  # a transaction notes messages while it holds their group, which keeps their order
        with database.transaction() as transaction:
            messages = transaction.receive(queue, top=5, wait=0.02)
            for message in messages:
                received[message.conversation_handle].append((message.message_sequence_number, attempt))
        committed.add(attempt)
        return messages

    def move() -> None:
        while not stop.is_set():
            for queue in ("Second", STOCK_QUEUE):
                result_or_none(lambda queue=queue: database.alter_service(STOCK, queue=queue), 8493)
                stop.wait(seeded_random.random() / 50)

    readers = [in_thread(drain, partial(read, queue), done_event, 8468) for queue in ("Second", STOCK_QUEUE) * 2]
    mover = in_thread(move)
    for sender in [in_thread(send, seeded_random.random()) for _ in range(4)]:
        sender.result(60)
    stop.set()
    mover.result(60)
    done_event.set()
    for reader in readers:
        reader.result(60)
    numbers = {
        handle: [number for number, attempt in notes if attempt in committed] for handle, notes in received.items()
    }
    check_numbers(database, handles, numbers)


@pytest.mark.slow
@pytest.mark.feature(20, 81)
def test_no_reader_that_answers_is_the_victim_of_a_service_that_moves(fresh_database: sb.Database) -> None:
    """Readers lock messages, then endpoints. Moving a service locks endpoints, then messages."""
    database, conversations, each = fresh_database, 16, 15
    database.create_queue("Second")
    handles = [begin(database) for _ in range(conversations)]
    for handle in handles:
        database.send_batch(handle, ORDER, [str(number) for number in range(each)])
    answered: list[UUID] = []
    over = threading.Event()

    def read(queue: str) -> None:
        while not over.is_set():
            try:
                with database.transaction() as transaction:
                    messages = transaction.receive(queue, top=2)
                    for message in messages:
                        time.sleep(0.002)
                        transaction.send(message.conversation_handle, REPLY, message.message_body)
            except sb.BrokerError as refusal:
                if refusal.number != 8468:
                    over.set()
                    raise
            else:
                answered.extend(message.conversation_handle for message in messages)
            if len(answered) >= conversations * each:
                over.set()

    def move() -> int:
        moves = 0
        while not over.is_set():
            database.alter_service(STOCK, queue=("Second", STOCK_QUEUE)[moves % 2])
            moves += 1
        return moves

    mover = in_thread(move)
    run_together(*[lambda queue=queue: read(queue) for queue in ("Second", STOCK_QUEUE) * 4])
    assert mover.result(60) >= 2
    for handle in handles:
        replies = database.receive(ORDERS_QUEUE, conversation_handle=handle)
        assert bodies(replies) == [str(number).encode() for number in range(each)]
