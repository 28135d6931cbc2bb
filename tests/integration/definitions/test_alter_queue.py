"""ALTER QUEUE: STATUS, the messages that wait while it is OFF, and REBUILD."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from portal import run_maintenance
from servicebroker.engine.catalog.alter import set_status
from servicebroker.store import locks
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
    bodies,
    check_numbers,
    drain,
    errors,
    eventually,
    group_of,
    in_thread,
    leftovers,
    open_dialog,
    peer_handle,
    query,
    refused,
    result_or_none,
    state,
    statuses,
    wait_until_blocked,
    waiting_messages,
    waiting_reader,
)

pytestmark = pytest.mark.both_apis

BUSY = "Target queue is busy; message(s) queued for delivery."


@pytest.mark.feature(69)
def test_a_disabled_queue_refuses_receive_and_keeps_its_messages(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"kept")
    database.alter_queue(STOCK_QUEUE, status=False)
    for alone in (True, False):
        with refused(9617, STOCK_QUEUE):
            if alone:
                database.receive(STOCK_QUEUE)
            else:
                with database.transaction() as transaction:
                    transaction.receive(STOCK_QUEUE)
    with database.transaction() as transaction:
        with refused(9617):
            transaction.receive(STOCK_QUEUE)
        handle = transaction.begin_dialog(ORDERS, STOCK)  # the refusal has not aborted the transaction
    assert state(database, handle) == "SO"
    database.alter_queue(STOCK_QUEUE, status=True)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"kept"]


@pytest.mark.feature(124)
def test_messages_wait_for_a_queue_that_is_off(database: sb.Database) -> None:
    old, _ = open_dialog(database)
    database.send(old, ORDER, b"1")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(old, ORDER, b"2")
    database.send_batch(old, ORDER, [b"3", b"4"])
    new = begin(database)
    database.send(new, ORDER, b"first")
    assert state(database, new) == "CO"
    assert statuses(database) == {BUSY}
    assert waiting_messages(database) == 4
    database.alter_queue(STOCK_QUEUE, status=True)
    assert waiting_messages(database) == 0
    received = [database.receive(STOCK_QUEUE), database.receive(STOCK_QUEUE)]
    assert sorted(map(bodies, received)) == [[b"2", b"3", b"4"], [b"first"]]
    numbers = {message.message_body: message.message_sequence_number for message in received[0] + received[1]}
    assert numbers == {b"2": 2, b"3": 3, b"4": 4, b"first": 0}
    assert database.send(old, ORDER, b"5") == 5
    assert bodies(database.receive(STOCK_QUEUE)) == [b"5"]


def test_a_transaction_that_is_undone_parks_nothing(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    with database.instance.connection() as connection:
        connection.execute("begin")
        assert database.join(connection).send(handle, ORDER, b"gone") == 1
        connection.rollback()
    assert waiting_messages(database) == 0
    database.alter_queue(STOCK_QUEUE, status=True)
    assert database.send(handle, ORDER, b"here") == 1
    assert bodies(database.receive(STOCK_QUEUE)) == [b"here"]


def test_enabling_a_queue_waits_for_senders_that_are_parking(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"parked")
        switched = in_thread(database.alter_queue, STOCK_QUEUE, status=True)
        wait_until_blocked(database)
    switched.result(10)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"parked"]
    assert waiting_messages(database) == 0


def test_a_send_that_waits_for_the_switch_is_delivered_behind(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"1")
    with database.instance.connection() as connection:
        connection.execute("begin")
        joined = database.join(connection)
        queue = query(
            database,
            "select queue_id from servicebroker.queues where database_id = %s and name = %s",
            database.database_id,
            STOCK_QUEUE,
        )[0][0]

        joined._do(set_status(database.instance.catalog, queue, True, database.instance.clock()))
        sent = in_thread(database.send, handle, ORDER, b"2")
        wait_until_blocked(database)
        connection.commit()
    assert sent.result(10) == 2
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"2"]


@pytest.mark.usefixtures("without_polls")
@pytest.mark.parametrize("inside", [False, True])
def test_a_waiting_reader_is_told_when_its_queue_goes_off(database: sb.Database, inside: bool) -> None:
    reader = waiting_reader(database, inside=inside)
    database.alter_queue(STOCK_QUEUE, status=False)
    with refused(9617, STOCK_QUEUE):
        reader.result(10)


@pytest.mark.usefixtures("without_polls")
def test_a_waiting_reader_wakes_when_parked_messages_come(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    answers = waiting_reader(database, ORDERS_QUEUE)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"x")
    database.alter_queue(STOCK_QUEUE, status=True)
    (message,) = database.receive(STOCK_QUEUE)
    database.send(message.conversation_handle, REPLY, b"y")
    assert bodies(answers.result(10)) == [b"y"]


@pytest.mark.feature(79)
def test_a_conversation_that_is_moved_while_messages_wait_for_it(database: sb.Database) -> None:
    (handle, target), (_, other) = open_dialog(database), open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"waits")
    group = group_of(database, other)
    database.move_conversation(target, group)
    database.alter_queue(STOCK_QUEUE, status=True)
    (message,) = database.receive(STOCK_QUEUE, conversation_group_id=group)
    assert (message.conversation_handle, message.message_body) == (target, b"waits")
    assert message.conversation_group_id == group


def test_background_work_delivers_parked_messages(database: sb.Database, clock: Clock) -> None:
    handle, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    new = begin(database)
    for each in (handle, new):
        database.send_batch(each, ORDER, [b"1", b"2"])
    with database.instance.connection() as connection, database.instance.connection() as other_connection:
        run_maintenance(connection, clock())
        assert waiting_messages(database) == 4
        connection.execute("update servicebroker.queues set is_enqueue_enabled = true, is_receive_enabled = true")
        with other_connection.transaction():
            other_connection.execute(
                "select pg_advisory_xact_lock(%s, 0)", (locks.PARKED_DELIVERY,)
            )  # another session switches
            run_maintenance(connection, clock())  # does not wait for locks
            assert waiting_messages(database) == 4
        with other_connection.transaction():
            other_connection.execute(
                "select from servicebroker.conversation_endpoints where conversation_handle = %s for update", (handle,)
            )
            run_maintenance(connection, clock())
            assert waiting_messages(database) == 2
        run_maintenance(connection, clock())
    assert waiting_messages(database) == 0
    assert bodies(database.receive(STOCK_QUEUE)) == bodies(database.receive(STOCK_QUEUE)) == [b"1", b"2"]
    assert database.send(handle, ORDER, b"3") == 3


def test_a_lifetime_ends_while_an_end_waits(fresh_database: sb.Database, clock: Clock) -> None:
    database = fresh_database
    handle = begin(database, lifetime=60)
    database.send(handle, ORDER, b"read")
    (message,) = database.receive(STOCK_QUEUE)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"never delivered")
    database.end_conversation(handle)
    assert state(database, handle) == "DO"
    clock.jump(seconds=61)
    with database.instance.connection() as connection, database.instance.connection() as other_connection:
        with other_connection.transaction():
            other_connection.execute(
                "select from servicebroker.conversation_endpoints where conversation_handle = %s for update",
                (message.conversation_handle,),
            )
            run_maintenance(connection, clock())  # leaves locked rows
            assert state(database, handle) == "DO"
        run_maintenance(connection, clock())
    assert state(database, handle) is None
    assert waiting_messages(database) == 0
    database.alter_queue(STOCK_QUEUE, status=True)
    assert errors(database.receive(STOCK_QUEUE)) == [-8489]
    database.end_conversation(message.conversation_handle)
    clock.jump(minutes=31)
    database.end_conversation(begin(database))
    assert leftovers(database) == {}


def test_parked_messages_of_a_lifetime_that_is_over_are_dropped(database: sb.Database, clock: Clock) -> None:
    handle = begin(database, lifetime=60)
    database.send(handle, ORDER, b"read")
    assert database.receive(STOCK_QUEUE)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"never delivered")
    clock.jump(seconds=61)
    with refused(8429):
        database.send(handle, ORDER, b"x")
    assert errors(database.receive(ORDERS_QUEUE)) == [-8489]
    assert waiting_messages(database) == 0
    database.alter_queue(STOCK_QUEUE, status=True)
    assert errors(database.receive(STOCK_QUEUE)) == [-8489]
    assert database.receive(STOCK_QUEUE) == []


def test_a_sender_that_finds_the_way_free_and_a_message_that_is_refused(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"<no xml")
        with database.instance.connection() as connection:
            connection.execute("update servicebroker.queues set is_enqueue_enabled = true, is_receive_enabled = true")
        database.alter_message_type(ORDER, "WELL_FORMED_XML")
        transaction.send(handle, ORDER, b"<a/>")
    assert errors(database.receive(ORDERS_QUEUE)) == [-9615]
    assert errors(database.receive(STOCK_QUEUE)) == [-9616]
    assert waiting_messages(database) == 0


@pytest.mark.parametrize("error", [None, (7, "no")])
@pytest.mark.parametrize("ends_first", ["initiator", "target"])
def test_an_end_waits_for_a_queue_that_is_off(
    fresh_database: sb.Database, clock: Clock, error: tuple[int, str] | None, ends_first: str
) -> None:
    database = fresh_database
    handles = dict(zip(("initiator", "target"), open_dialog(database), strict=True))
    queues = {"initiator": ORDERS_QUEUE, "target": STOCK_QUEUE}
    kinds = {"initiator": ORDER, "target": REPLY}
    other = "target" if ends_first == "initiator" else "initiator"
    database.alter_queue(queues[other], status=False)
    database.send(handles[ends_first], kinds[ends_first], b"last")
    database.end_conversation(handles[ends_first], error=error)
    assert state(database, handles[ends_first]) == "DO"
    with refused(8427):
        database.end_conversation(handles[ends_first])
    with refused(8429):
        database.send(handles[ends_first], kinds[ends_first], b"x")
    assert database.send(handles[other], kinds[other], b"to nobody") >= 0  # the application cannot know the outcome
    assert state(database, handles[other]) == "CO"
    assert waiting_messages(database) == (1 if error else 2)
    assert database.receive(queues[ends_first]) == []
    database.alter_queue(queues[other], status=True)
    received = database.receive(queues[other])
    if error:
        assert [sb.read_error(message.message_body) for message in received] == [error]
        assert state(database, handles[other]) == "ER"
    else:
        assert [message.message_body for message in received] == [b"last", None]
        assert received[-1].is_end_dialog
        assert state(database, handles[other]) == "DI"
    assert state(database, handles[ends_first]) == (None if ends_first == "initiator" else "CD")
    database.end_conversation(handles[other])
    clock.jump(minutes=31)
    database.end_conversation(begin(database))
    assert leftovers(database) == {}


@pytest.mark.parametrize("cleanup", [False, True])
def test_both_end_while_an_end_waits(fresh_database: sb.Database, clock: Clock, cleanup: bool) -> None:
    database = fresh_database
    initiator, target = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(initiator, ORDER, b"never read")
    database.end_conversation(initiator)
    database.end_conversation(target, cleanup=cleanup)
    assert state(database, initiator) is None
    database.alter_queue(STOCK_QUEUE, status=True)
    assert database.receive(STOCK_QUEUE) == database.receive(ORDERS_QUEUE) == []
    clock.jump(minutes=31)
    database.end_conversation(begin(database))
    assert leftovers(database) == {}


def test_a_validation_altered_while_messages_wait(database: sb.Database) -> None:
    good, _ = open_dialog(database)
    bad, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send_batch(good, ORDER, ["<a/>", "<b/>"])
    database.send_batch(bad, ORDER, ["<c/>", "<no xml", "<d/>"])
    database.alter_message_type(ORDER, "WELL_FORMED_XML")
    database.alter_queue(STOCK_QUEUE, status=True)
    assert [errors(database.receive(ORDERS_QUEUE, conversation_handle=handle)) for handle in (good, bad)] == [
        [],
        [-9615],
    ]
    received = [database.receive(STOCK_QUEUE), database.receive(STOCK_QUEUE)]
    assert sorted(bodies([m for m in messages if not m.is_error]) for messages in received) == [
        [b"<a/>", b"<b/>"],
        [b"<c/>"],
    ]


DELIVERING: dict[str, Callable[[sb.Database], Any]] = {
    "queue": lambda database: database.alter_queue("Busy.Queue", status=True),
    "service": lambda database: database.alter_service("//test/busy", queue="Busy.Other"),
    "new route": lambda database: database.create_route("Busy", service_name="//test/busy", address="LOCAL"),
    "route": lambda database: database.alter_route("Elsewhere", address="LOCAL"),
    "no route": lambda database: database.drop_route("Elsewhere"),
}


@pytest.mark.parametrize("deliver", DELIVERING.values(), ids=DELIVERING)
def test_a_new_sender_does_not_wait_behind_a_waiting_definition(
    fresh_database: sb.Database, deliver: Callable[[sb.Database], Any]
) -> None:
    database = fresh_database
    for queue in ("Busy.Queue", "Busy.Other"):
        database.create_queue(queue)
    database.create_service("//test/busy", "Busy.Queue", [CONTRACT])
    database.create_route("Elsewhere", service_name="//test/elsewhere", address="LOCAL")
    database.alter_queue("Busy.Queue", status=False)
    waits = begin(database, "//test/busy")
    database.send(waits, ORDER, b"waits")
    with database.transaction() as transaction:
        transaction.send(transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"first")
        delivering = in_thread(deliver, database)
        wait_until_blocked(database)
        for verb in (database.send, lambda *sent: query(database, "select servicebroker.send(%s, %s, %s)", *sent)):
            in_thread(lambda verb=verb: verb(begin(database), ORDER, b"second")).result(120)
        in_thread(database.create_queue, "Another").result(120)
        assert not delivering.done()
    delivering.result(120)
    database.alter_queue("Busy.Queue", status=True)
    eventually(lambda: waiting_messages(database) == 0)
    assert peer_handle(database, waits)


def test_alter_queue_is_refused(database: sb.Database) -> None:
    with refused(15151, "Nothing"):
        database.alter_queue("Nothing", status=True)
    with refused(402, "STATUS"):
        database.alter_queue(STOCK_QUEUE, status="OFF")  # type: ignore[arg-type]


def size_of(database: sb.Database, name: str) -> int:
    text = (
        "select pg_table_size(('servicebroker.queue_' || queue_id)::regclass) "
        "from servicebroker.queues where database_id = %s and name = %s"
    )
    return int(query(database, text, database.database_id, name)[0][0])


def test_rebuild_gives_space_back(database: sb.Database) -> None:
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"x" * 1000] * 2000)
    database.receive(STOCK_QUEUE, top=1990)
    before = size_of(database, STOCK_QUEUE)
    database.alter_queue(STOCK_QUEUE, rebuild=True)
    assert size_of(database, STOCK_QUEUE) < before / 10
    assert [message.message_sequence_number for message in database.receive(STOCK_QUEUE)] == list(range(1990, 2000))


@pytest.mark.slow
def test_senders_and_readers_while_the_queue_goes_off_and_on(
    database: sb.Database, seeded_random: random.Random
) -> None:
    """4 senders on 8 shared conversations, 3 readers: no message is lost, duplicated or reordered."""
    handles = [begin(database) for _ in range(8)]
    received: dict[UUID, list[int]] = defaultdict(list)
    stop, done_event = threading.Event(), threading.Event()

    def send(seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(80):
            with database.transaction() as transaction:
                for handle in sorted(choice.sample(handles, choice.randint(1, 3)), key=str):
                    for _ in range(choice.randint(1, 3)):
                        transaction.send(handle, ORDER, b"x")
                if choice.random() < 0.2:
                    transaction.connection.rollback()

    def read() -> list[sb.Message]:
        with database.transaction() as transaction:
            messages = transaction.receive(STOCK_QUEUE, top=20, wait=0.02)
            for message in messages:
                received[message.conversation_handle].append(message.message_sequence_number)
        return messages

    def switch() -> None:
        choice = random.Random(seeded_random.random())
        while not stop.is_set():
            database.alter_queue(STOCK_QUEUE, status=False)
            stop.wait(choice.random() / 50)
            database.alter_queue(STOCK_QUEUE, status=True)
            stop.wait(choice.random() / 50)

    readers = [in_thread(drain, read, done_event, 9617) for _ in range(3)]
    switcher = in_thread(switch)
    for sender in [in_thread(send, seeded_random.random()) for _ in range(4)]:
        sender.result(60)
    stop.set()
    switcher.result(60)
    assert waiting_messages(database) == 0
    done_event.set()
    for reader in readers:
        reader.result(60)
    check_numbers(database, handles, received)


@pytest.mark.slow
def test_ends_of_both_sides_while_queues_go_off_and_on(
    fresh_database: sb.Database, clock: Clock, seeded_random: random.Random
) -> None:
    database = fresh_database
    stop = threading.Event()

    def switch(queue: str, seed: float) -> None:
        choice = random.Random(seed)
        while not stop.is_set():
            database.alter_queue(queue, status=False)
            stop.wait(choice.random() / 100)
            database.alter_queue(queue, status=True)
            stop.wait(choice.random() / 100)

    def live(seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(15):
            initiator = begin(database)
            database.send(initiator, ORDER, b"0")
            eventually(lambda initiator=initiator: peer_handle(database, initiator))
            sides = [(initiator, ORDER), (peer_handle(database, initiator), REPLY)]
            choice.shuffle(sides)
            for handle, kind in sides * 2:
                for _ in range(choice.randint(0, 3)):
                    result_or_none(lambda handle=handle, kind=kind: database.send(handle, kind, b"x"), 8426, 8429)
                error = choice.choice([None, (1, "e")])
                result_or_none(
                    lambda handle=handle, error=error: database.end_conversation(handle, error=error), 8426, 8427
                )

    switchers = [in_thread(switch, queue, seeded_random.random()) for queue in (STOCK_QUEUE, ORDERS_QUEUE)]
    for future in [in_thread(live, seeded_random.random()) for _ in range(4)]:
        future.result(60)
    stop.set()
    for switcher in switchers:
        switcher.result(60)
    clock.jump(minutes=31)
    for _ in range(4):
        database.end_conversation(begin(database))
    assert leftovers(database) == {}
