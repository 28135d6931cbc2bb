"""ALTER and DROP of queues, services, contracts and message types; the broker of a database; priorities."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

import servicebroker as sb
from portal import upkeep
from servicebroker.engine.alter import drop_queue, set_status
from servicebroker.store import locks
from support import (
    CONTRACT,
    DOCUMENT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    bodies,
    define_standard_set,
    errors,
    eventually,
    far_handle,
    group_of,
    in_thread,
    leftovers,
    open_dialog,
    query,
    refused,
    state,
    wait_until_blocked,
    waiting_messages,
)

pytestmark = pytest.mark.both_faces

BUSY = "Target queue is busy; message(s) queued for delivery."
DISABLED = "The broker is disabled in the sender's database."


def statuses(database: sb.Database) -> set[str]:
    text = (
        "select transmission_status from servicebroker.transmission_queue "
        "join servicebroker.conversation_endpoints using (conversation_handle) where database_id = %s"
    )
    return {status for (status,) in query(database, text, database.database_id)}


def waiting_reader(database: sb.Database, queue: str = STOCK_QUEUE, *, inside: bool = False) -> Any:
    """A reader that sleeps in RECEIVE, alone or inside a transaction."""

    def read() -> list[sb.Message]:
        if not inside:
            return database.receive(queue, wait=20)
        with database.transaction() as transaction:
            return transaction.receive(queue, wait=20)

    future = in_thread(read)
    text = (
        "select from servicebroker.waiting_readers join servicebroker.queues q using (queue_id) "
        "where q.database_id = %s and q.name = %s"
    )
    eventually(lambda: query(database, text, database.database_id, queue))
    return future


def tried(verb: Callable[[], Any], *refusals: int) -> Any:
    """What the verb returns, None when it was refused with one of these numbers."""
    try:
        return verb()
    except sb.BrokerError as refusal:
        if refusal.number not in refusals:
            raise
        return None


# ---------------------------------------------------------------- queue status


@pytest.mark.feature(69)
def test_a_queue_that_is_off_refuses_receive_and_keeps_what_it_has(database: sb.Database) -> None:
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
        handle = transaction.begin_dialog(ORDERS, STOCK)  # the refusal has aborted nothing
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
    found = [database.receive(STOCK_QUEUE), database.receive(STOCK_QUEUE)]
    assert sorted(map(bodies, found)) == [[b"2", b"3", b"4"], [b"first"]]
    numbers = {message.message_body: message.message_sequence_number for message in found[0] + found[1]}
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


def test_switching_on_waits_for_who_is_parking(database: sb.Database) -> None:
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


@pytest.mark.parametrize("inside", [False, True])
def test_a_waiting_reader_is_told_when_its_queue_goes_off(database: sb.Database, inside: bool) -> None:
    reader = waiting_reader(database, inside=inside)
    database.alter_queue(STOCK_QUEUE, status=False)
    with refused(9617, STOCK_QUEUE):
        reader.result(0.9)


def test_a_waiting_reader_wakes_when_parked_messages_come(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    answers = waiting_reader(database, ORDERS_QUEUE)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handle, ORDER, b"x")
    database.alter_queue(STOCK_QUEUE, status=True)
    (message,) = database.receive(STOCK_QUEUE)
    database.send(message.conversation_handle, REPLY, b"y")
    assert bodies(answers.result(0.9)) == [b"y"]


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


def test_the_background_delivers_what_somebody_has_left(database: sb.Database, clock: Clock) -> None:
    handle, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    new = begin(database)
    for each in (handle, new):
        database.send_batch(each, ORDER, [b"1", b"2"])
    with database.instance.connection() as connection, database.instance.connection() as other:
        upkeep(connection, clock())
        assert waiting_messages(database) == 4
        connection.execute("update servicebroker.queues set is_enqueue_enabled = true, is_receive_enabled = true")
        with other.transaction():
            other.execute("select pg_advisory_xact_lock_shared(%s, 0)", (locks.DELIVERY,))  # somebody parks
            upkeep(connection, clock())  # waits for nobody
            assert waiting_messages(database) == 4
        with other.transaction():
            other.execute(
                "select from servicebroker.conversation_endpoints where conversation_handle = %s for update", (handle,)
            )
            upkeep(connection, clock())
            assert waiting_messages(database) == 2
        upkeep(connection, clock())
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
    with database.instance.connection() as connection, database.instance.connection() as other:
        with other.transaction():
            other.execute(
                "select from servicebroker.conversation_endpoints where conversation_handle = %s for update",
                (message.conversation_handle,),
            )
            upkeep(connection, clock())  # leaves what somebody holds
            assert state(database, handle) == "DO"
        upkeep(connection, clock())
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
        transaction.send(handle, ORDER, b"no xml")
        with database.instance.connection() as connection:
            connection.execute("update servicebroker.queues set is_enqueue_enabled = true, is_receive_enabled = true")
        database.alter_message_type(ORDER, "WELL_FORMED_XML")
        transaction.send(handle, ORDER, b"<a/>")
    assert errors(database.receive(ORDERS_QUEUE)) == errors(database.receive(STOCK_QUEUE)) == [-9615]
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
    assert database.send(handles[other], kinds[other], b"to nobody") >= 0  # its application cannot know
    assert state(database, handles[other]) == "CO"
    assert waiting_messages(database) == (1 if error else 2)
    assert database.receive(queues[ends_first]) == []
    database.alter_queue(queues[other], status=True)
    found = database.receive(queues[other])
    if error:
        assert [sb.read_error(message.message_body) for message in found] == [error]
        assert state(database, handles[other]) == "ER"
    else:
        assert [message.message_body for message in found] == [b"last", None]
        assert found[-1].is_end_dialog
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
    database.send_batch(bad, ORDER, ["<c/>", "no xml", "<d/>"])
    database.alter_message_type(ORDER, "WELL_FORMED_XML")
    database.alter_queue(STOCK_QUEUE, status=True)
    assert [errors(database.receive(ORDERS_QUEUE, conversation_handle=handle)) for handle in (good, bad)] == [
        [],
        [-9615],
    ]
    found = [database.receive(STOCK_QUEUE), database.receive(STOCK_QUEUE)]
    assert sorted(bodies([m for m in messages if not m.is_error]) for messages in found) == [
        [b"<a/>", b"<b/>"],
        [b"<c/>"],
    ]


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
    """4 senders on 8 shared conversations, 3 readers: nothing lost, doubled or reordered."""
    handles = [begin(database) for _ in range(8)]
    received: dict[UUID, list[int]] = defaultdict(list)
    stop, done = threading.Event(), threading.Event()

    def send(seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(80):
            with database.transaction() as transaction:
                for handle in sorted(choice.sample(handles, choice.randint(1, 3)), key=str):
                    for _ in range(choice.randint(1, 3)):
                        transaction.send(handle, ORDER, b"x")
                if choice.random() < 0.2:
                    transaction.connection.rollback()

    def read() -> None:
        while True:
            finished = done.is_set()
            try:
                with database.transaction() as transaction:
                    messages = transaction.receive(STOCK_QUEUE, top=20, wait=0.02)
                    for message in messages:
                        received[message.conversation_handle].append(message.message_sequence_number)
            except sb.BrokerError as refusal:
                if refusal.number != 9617:
                    raise
                continue
            if finished and not messages:
                return

    def switch() -> None:
        choice = random.Random(seeded_random.random())
        while not stop.is_set():
            database.alter_queue(STOCK_QUEUE, status=False)
            stop.wait(choice.random() / 50)
            database.alter_queue(STOCK_QUEUE, status=True)
            stop.wait(choice.random() / 50)

    readers = [in_thread(read) for _ in range(3)]
    switcher = in_thread(switch)
    for sender in [in_thread(send, seeded_random.random()) for _ in range(4)]:
        sender.result(60)
    stop.set()
    switcher.result(60)
    assert waiting_messages(database) == 0
    done.set()
    for reader in readers:
        reader.result(60)
    text = (
        "select far_handle, send_sequence from servicebroker.conversation_endpoints where conversation_handle = any(%s)"
    )
    for target, count in query(database, text, handles):
        assert received[target] == list(range(count))


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
            eventually(lambda initiator=initiator: far_handle(database, initiator))
            sides = [(initiator, ORDER), (far_handle(database, initiator), REPLY)]
            choice.shuffle(sides)
            for handle, kind in sides * 2:
                for _ in range(choice.randint(0, 3)):
                    tried(lambda handle=handle, kind=kind: database.send(handle, kind, b"x"), 8426, 8429)
                error = choice.choice([None, (1, "e")])
                tried(lambda handle=handle, error=error: database.end_conversation(handle, error=error), 8426, 8427)

    switchers = [in_thread(switch, queue, seeded_random.random()) for queue in (STOCK_QUEUE, ORDERS_QUEUE)]
    for one in [in_thread(live, seeded_random.random()) for _ in range(4)]:
        one.result(60)
    stop.set()
    for switcher in switchers:
        switcher.result(60)
    clock.jump(minutes=31)
    for _ in range(4):
        database.end_conversation(begin(database))
    assert leftovers(database) == {}


# ---------------------------------------------------------------- DROP QUEUE


@pytest.mark.feature(16)
@pytest.mark.parametrize("inside", [False, True])
def test_drop_queue(database: sb.Database, inside: bool) -> None:
    with refused(3716, STOCK_QUEUE, "services"):
        database.drop_queue(STOCK_QUEUE)
    with refused(15151, "Nothing"):
        database.drop_queue("Nothing")
    database.create_queue("Short")
    assert database.receive("Short") == []
    reader = waiting_reader(database, "Short", inside=inside)
    dropped = in_thread(database.drop_queue, "short")
    with refused(15151, "Short"):
        reader.result(0.9)
    dropped.result(10)
    with refused(15151):
        database.receive("Short")
    database.create_queue("Short")
    assert database.receive("Short") == []


def test_a_dropped_queue_leaves_nothing_behind(database: sb.Database) -> None:
    counts = "select (select count(*) from pg_class), (select count(*) from pg_proc)"
    before = query(database, counts)
    database.create_queue("Short")
    database.drop_queue("Short")
    assert query(database, counts) == before


def test_another_process_that_remembers_a_dropped_queue(database: sb.Database) -> None:
    with sb.open(database.instance.url) as other:
        theirs = other.database(database.name)
        database.create_queue("Short")
        assert theirs.receive("Short") == []
        database.drop_queue("Short")
        with refused(15151, "Short"):
            theirs.receive("Short")
        database.create_queue("Short")
        database.create_service("//short", "Short", [CONTRACT])
        database.send(begin(database, "//short"), ORDER, b"x")
        assert bodies(theirs.receive("Short")) == [b"x"]
        database.drop_service("//short")
        database.drop_queue("Short")
        with refused(15151, "Short"):
            theirs.get_conversation_group("Short")
        database.create_queue("Short")
        reader = in_thread(theirs.receive, "Short", wait=20)
        database.create_service("//short", "Short", [CONTRACT])
        database.send(begin(database, "//short"), ORDER, b"y")
        assert bodies(reader.result(5)) == [b"y"]


def test_another_process_that_remembers_where_a_service_was(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with sb.open(database.instance.url) as other:
        theirs = other.database(database.name)
        assert theirs.send(handle, ORDER, b"1") == 1
        database.create_queue("Second")
        database.alter_service(STOCK, queue="Second")
        database.drop_queue(STOCK_QUEUE)
        assert theirs.send(handle, ORDER, b"2") == 2
        assert theirs.send_batch(handle, ORDER, [b"3"]) == 3
    assert bodies(database.receive("Second")) == [b"1", b"2", b"3"]


def test_a_table_that_a_dead_process_has_left_goes_with_the_next(database: sb.Database) -> None:
    counts = "select (select count(*) from pg_class), (select count(*) from pg_proc)"
    before = query(database, counts)
    for name in ("Left", "Next"):
        database.create_queue(name)
    with database.transaction() as transaction:
        transaction._do(drop_queue(database.database_id, "Left"))
    assert query(database, counts) != before
    database.drop_queue("Next")
    assert query(database, counts) == before


# ---------------------------------------------------------------- message types and contracts


@pytest.mark.feature(10)
def test_alter_message_type(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    database.send(handle, ORDER, b"any")
    with sb.open(database.instance.url) as other:
        theirs = other.database(database.name)
        theirs.send(handle, ORDER, b"thing")
        database.alter_message_type(ORDER, "WELL_FORMED_XML")
        theirs.send(handle, ORDER, b"<a/>")  # the fast way of another process notices
        found = database.receive(STOCK_QUEUE)
        assert [(message.message_body, message.validation) for message in found] == [
            (b"any", "N"),
            (b"thing", "N"),
            (b"<a/>", "X"),
        ]
        theirs.send(handle, ORDER, b"no xml")
    assert errors(database.receive(ORDERS_QUEUE)) == [-9615]
    with refused(15151, "//no/such"):
        database.alter_message_type("//no/such", "NONE")
    with refused(402):
        database.alter_message_type(ORDER, "SOME")


@pytest.mark.feature(34)
def test_built_in_objects_cannot_be_changed(database: sb.Database) -> None:
    with refused(9663):
        database.alter_message_type("DEFAULT", "EMPTY")
    with refused(9663):
        database.drop_message_type("http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog")
    with refused(9663):
        database.drop_contract("DEFAULT")


@pytest.mark.feature(22)
def test_drop_contract_and_message_type(database: sb.Database) -> None:
    with refused(3716, ORDER, "contracts"):
        database.drop_message_type(ORDER)
    with refused(3716, CONTRACT, "services"):
        database.drop_contract(CONTRACT)
    with refused(15151):
        database.drop_contract("//no/such")
    with refused(15151):
        database.drop_message_type("//no/such")
    initiator, target = open_dialog(database)
    unsent = begin(database)
    database.send(initiator, ORDER, b"unread")
    database.alter_service(STOCK, drop_contracts=[CONTRACT])
    database.create_broker_priority("P", contract_name=CONTRACT)
    with refused(3716, CONTRACT, "priorities"):
        database.drop_contract(CONTRACT)
    database.drop_broker_priority("p")
    database.drop_contract(CONTRACT)
    assert [state(database, handle) for handle in (initiator, target, unsent)] == ["ER", "ER", "ER"]
    for message_type in (ORDER, REPLY, DOCUMENT, MARK):
        database.drop_message_type(message_type)
    database.instance.catalog.labels.clear()  # as a process that has not seen the names
    error, unread = database.receive(STOCK_QUEUE)
    assert sb.read_error(error.message_body) == (-8487, "The remote service contract has been dropped.")
    assert (unread.message_body, unread.message_type_name, unread.service_contract_name) == (b"unread", "", "")
    assert errors(database.receive(ORDERS_QUEUE) + database.receive(ORDERS_QUEUE)) == [-8487, -8487]
    for handle in (initiator, target, unsent):
        database.end_conversation(handle)
    with refused(8425):
        begin(database)
    database.create_message_type(ORDER)


# ---------------------------------------------------------------- services


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


@pytest.mark.feature(70)
@pytest.mark.parametrize("inside", [False, True])
def test_a_waiting_reader_is_told_that_its_service_changed(database: sb.Database, inside: bool) -> None:
    reader = waiting_reader(database, inside=inside)
    database.alter_service(STOCK, add_contracts=["DEFAULT"])
    with refused(8468):
        reader.result(0.9)
    reader = waiting_reader(database, inside=inside)
    database.drop_service(STOCK)
    with refused(8468):
        reader.result(0.9)
    reader = waiting_reader(database, inside=inside)
    dropped = in_thread(database.drop_queue, STOCK_QUEUE)
    with refused(15151):
        reader.result(0.9)
    dropped.result(10)


@pytest.mark.feature(21)
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
    received: dict[UUID, list[int]] = defaultdict(list)
    done, stop = threading.Event(), threading.Event()
    database.create_queue("Second")

    def send(seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(100):
            database.send(choice.choice(handles), ORDER, b"x")

    def read(queue: str) -> None:
        while True:
            finished = done.is_set()
            try:
                with database.transaction() as transaction:
                    messages = transaction.receive(queue, top=5, wait=0.02)
                    for message in messages:
                        received[message.conversation_handle].append(message.message_sequence_number)
            except sb.BrokerError as refusal:
                if refusal.number != 8468:
                    raise
                continue
            if finished and not messages:
                return

    def move() -> None:
        while not stop.is_set():
            for queue in ("Second", STOCK_QUEUE):
                database.alter_service(STOCK, queue=queue)
                stop.wait(seeded_random.random() / 50)

    readers = [in_thread(read, queue) for queue in ("Second", STOCK_QUEUE) * 2]
    mover = in_thread(move)
    for sender in [in_thread(send, seeded_random.random()) for _ in range(4)]:
        sender.result(60)
    stop.set()
    mover.result(60)
    done.set()
    for reader in readers:
        reader.result(60)
    text = (
        "select far_handle, send_sequence from servicebroker.conversation_endpoints where conversation_handle = any(%s)"
    )
    for target, count in query(database, text, handles):
        assert received[target] == list(range(count))


# ---------------------------------------------------------------- the broker of a database


@pytest.fixture
def two(instance: sb.Instance) -> tuple[sb.Database, sb.Database]:
    """Two databases; ORDERS of the first speaks to a service of the second that has its name."""
    near, far = (define_standard_set(instance.database(f"Two{uuid4().hex}", create=True)) for _ in range(2))
    far.create_service(f"//{far.name}", STOCK_QUEUE, [CONTRACT])
    return near, far


@pytest.mark.feature(2)
@pytest.mark.parametrize("disabled", ["near", "far"])
def test_a_disabled_broker_delivers_nothing(two: tuple[sb.Database, sb.Database], disabled: str) -> None:
    near, far = two
    other = near if disabled == "near" else far
    old = begin(near, f"//{far.name}")
    near.send(old, ORDER, b"0")
    near.send(old, ORDER, b"1")
    assert bodies(far.receive(STOCK_QUEUE)) == [b"0", b"1"]
    other.alter(disable_broker=True)
    new = begin(near, f"//{far.name}")
    near.send(old, ORDER, b"2")
    near.send(new, ORDER, b"new")
    far.send(far_handle(near, old), REPLY, b"back")
    assert near.receive(ORDERS_QUEUE) == far.receive(STOCK_QUEUE) == []
    assert statuses(near) >= {DISABLED} if disabled == "near" else DISABLED not in statuses(near)
    assert waiting_messages(near) == 2
    assert waiting_messages(far) == 1
    other.alter(enable_broker=True)
    assert waiting_messages(near) == waiting_messages(far) == 0
    assert bodies(near.receive(ORDERS_QUEUE)) == [b"back"]
    assert sorted([bodies(far.receive(STOCK_QUEUE)), bodies(far.receive(STOCK_QUEUE))]) == [[b"2"], [b"new"]]


@pytest.mark.feature(3)
def test_new_broker(two: tuple[sb.Database, sb.Database]) -> None:
    near, far = two
    text = "select service_broker_guid, is_broker_enabled from servicebroker.databases where database_id = %s"
    guid = query(far, text, far.database_id)[0][0]
    handle = begin(near, f"//{far.name}")
    near.send_batch(handle, ORDER, [b"1", b"2"])
    own, _ = open_dialog(far)
    far.alter(disable_broker=True)
    far.alter(new_broker=True)
    (new, enabled) = query(far, text, far.database_id)[0]
    assert (new != guid, enabled) == (True, True)
    assert state(far, own) is None
    assert far.receive(STOCK_QUEUE) == near.receive(ORDERS_QUEUE) == []
    assert state(near, handle) == "CO"
    near.send(handle, ORDER, b"3")
    assert errors(near.receive(ORDERS_QUEUE)) == [-8462]
    near.end_conversation(handle)


@pytest.mark.feature(4)
def test_error_broker_conversations(two: tuple[sb.Database, sb.Database]) -> None:
    near, far = two
    handle = begin(near, f"//{far.name}")
    near.send(handle, ORDER, b"1")
    initiator, target = open_dialog(far)
    far.alter(error_broker_conversations=True)
    assert errors(near.receive(ORDERS_QUEUE)) == [-9720]
    assert errors(far.receive(ORDERS_QUEUE)) == [-9719]
    assert errors(far.receive(STOCK_QUEUE) + far.receive(STOCK_QUEUE)) == [-9719, -9719]
    with refused(8429, "ER"):
        far.send(initiator, ORDER, b"x")
    for one in (initiator, target, handle):
        far.end_conversation(one)


@pytest.mark.feature(6)
def test_two_enabled_databases_never_share_an_identifier(two: tuple[sb.Database, sb.Database]) -> None:
    near, far = two
    far.alter(disable_broker=True)
    copy = (
        "update servicebroker.databases set service_broker_guid = "
        "(select service_broker_guid from servicebroker.databases where database_id = %s) where database_id = %s"
    )
    with near.instance.connection() as connection:
        connection.execute(copy, (near.database_id, far.database_id))
    with refused(9772, far.name):
        far.alter(enable_broker=True)
    near.alter(disable_broker=True)
    far.alter(enable_broker=True)
    with near.instance.connection() as connection, pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(
            "update servicebroker.databases set is_broker_enabled = true where database_id = %s", (near.database_id,)
        )
    near.alter(new_broker=True)


def test_the_options_of_alter(database: sb.Database) -> None:
    database.alter(honor_broker_priority=True)
    text = "select is_honor_broker_priority_on from servicebroker.databases where database_id = %s"
    assert query(database, text, database.database_id) == [(True,)]
    with refused(402, "SET"):
        database.alter(enable_broker=True, disable_broker=True)


@pytest.mark.slow
def test_senders_while_brokers_go_off_and_on(
    two: tuple[sb.Database, sb.Database], seeded_random: random.Random
) -> None:
    """Both databases are switched while both sides send: nothing lost or reordered."""
    near, far = two
    pairs = []
    for _ in range(4):
        initiator = begin(near, f"//{far.name}")
        near.send(initiator, ORDER, b"0")
        pairs.append((initiator, far_handle(near, initiator)))
    stop = threading.Event()

    def switch(database: sb.Database, seed: float) -> None:
        choice = random.Random(seed)
        while not stop.is_set():
            for options in ({"disable_broker": True}, {"enable_broker": True}):
                database.alter(**options)
                stop.wait(choice.random() / 50)
        database.alter(enable_broker=True)

    def send(database: sb.Database, side: int, kind: str, seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(60):
            with database.transaction() as transaction:
                for pair in sorted(choice.sample(pairs, 2), key=str):
                    transaction.send(pair[side], kind, b"x")

    switchers = [in_thread(switch, database, seeded_random.random()) for database in two]
    senders = [in_thread(send, near, 0, ORDER, seeded_random.random()) for _ in range(2)]
    senders += [in_thread(send, far, 1, REPLY, seeded_random.random()) for _ in range(2)]
    for sender in senders:
        sender.result(60)
    stop.set()
    for switcher in switchers:
        switcher.result(60)
    assert waiting_messages(near) == waiting_messages(far) == 0
    text = "select send_sequence from servicebroker.conversation_endpoints where conversation_handle = %s"
    for initiator, target in pairs:
        arrived = far.receive(STOCK_QUEUE, conversation_handle=target)
        assert [m.message_sequence_number for m in arrived] == list(range(query(near, text, initiator)[0][0]))
        answers = near.receive(ORDERS_QUEUE, conversation_handle=initiator)
        assert [m.message_sequence_number for m in answers] == list(range(query(near, text, target)[0][0]))


@pytest.mark.slow
def test_senders_while_their_service_is_dropped(fresh_database: sb.Database, seeded_random: random.Random) -> None:
    """Every SEND is delivered, waits, or its conversation has an Error; nothing belongs to nobody afterwards."""
    database = fresh_database

    def send(handle: UUID, delay: float) -> None:
        threading.Event().wait(delay)
        for _ in range(5):
            if tried(lambda: database.send(handle, ORDER, b"x"), 8429) is None:
                return

    for _ in range(12):
        handles = [begin(database) for _ in range(4)]
        senders = [in_thread(send, handle, seeded_random.random() / 50) for handle in handles]
        threading.Event().wait(seeded_random.random() / 50)
        database.drop_service(STOCK)
        database.create_service(STOCK, STOCK_QUEUE, [CONTRACT])
        for sender in senders:
            sender.result(30)
        assert waiting_messages(database) == 0
        for handle in handles:
            if state(database, handle) == "ER":
                assert errors(database.receive(ORDERS_QUEUE, conversation_handle=handle)) == [-8470]
            database.end_conversation(handle)
        while messages := database.receive(STOCK_QUEUE):
            assert [m.message_sequence_number for m in messages] == list(range(len(messages)))
            assert messages[-1].is_end_dialog
            database.end_conversation(messages[-1].conversation_handle, cleanup=True)
    assert leftovers(database) == {}


# ---------------------------------------------------------------- priorities


def priority_of(database: sb.Database, handle: UUID) -> int:
    text = "select priority from servicebroker.conversation_endpoints where conversation_handle = %s"
    return int(query(database, text, handle)[0][0])


@pytest.mark.feature(31)
def test_the_best_match_of_eight(database: sb.Database) -> None:
    """Contract before local service before remote service; every one is dropped in its turn."""
    assert priority_of(database, begin(database)) == 5
    for level, name in enumerate(["ANY", "R", "L", "LR", "C", "CR", "CL", "CLR"], 1):
        database.create_broker_priority(
            name,
            contract_name=CONTRACT if "C" in name else "ANY",
            local_service_name=ORDERS if "L" in name else "ANY",
            remote_service_name=STOCK if name != "ANY" and "R" in name else "ANY",
            priority_level=level,
        )
    for level, name in reversed(list(enumerate(["ANY", "R", "L", "LR", "C", "CR", "CL", "CLR"], 1))):
        handle = begin(database)
        assert priority_of(database, handle) == level
        database.drop_broker_priority(name.lower())
        assert priority_of(database, handle) == level
    assert priority_of(database, begin(database)) == 5


@pytest.mark.feature(72)
def test_each_side_has_its_own_priority_and_receive_follows_it(database: sb.Database) -> None:
    database.create_service("//urgent", STOCK_QUEUE, [CONTRACT])
    database.create_broker_priority("Urgent", local_service_name="//urgent", priority_level=9)
    low, high = begin(database), begin(database, "//urgent")
    database.send(low, ORDER, b"low")
    database.send(high, ORDER, b"high")
    assert (priority_of(database, high), priority_of(database, far_handle(database, high))) == (5, 9)
    first, second = database.receive(STOCK_QUEUE), database.receive(STOCK_QUEUE)
    assert [(m.message_body, m.priority) for m in first + second] == [(b"high", 9), (b"low", 5)]
    database.alter_broker_priority("urgent", priority_level=1)
    assert priority_of(database, far_handle(database, high)) == 9
    again = begin(database, "//urgent")
    database.send(again, ORDER, b"x")
    assert priority_of(database, far_handle(database, again)) == 1


def test_priorities_that_are_refused(database: sb.Database) -> None:
    database.create_broker_priority("Taken", contract_name=CONTRACT)
    with refused(33303, "taken"):
        database.create_broker_priority("taken", contract_name="DEFAULT")
    with refused(33303, CONTRACT):
        database.create_broker_priority("Other", contract_name=CONTRACT)
    for level in (0, 11):
        with refused(33302, "Other"):
            database.create_broker_priority("Other", priority_level=level)
    for text in ("", "x" * 257):
        with refused(33301, "REMOTE_SERVICE_NAME", "256"):
            database.create_broker_priority("Other", remote_service_name=text)
    for unknown in ({"contract_name": "//no"}, {"local_service_name": "//no"}):
        with refused(15151, "//no"):
            database.create_broker_priority("Other", **unknown)  # type: ignore[arg-type]
    for wrong in ({"contract_name": 5}, {"priority_level": "high"}):
        with refused(402):
            database.create_broker_priority("Other", **wrong)  # type: ignore[arg-type]
    with refused(15151, "Nothing"):
        database.drop_broker_priority("Nothing")
    with refused(15151, "Nothing"):
        database.alter_broker_priority("Nothing", priority_level=3)
    database.create_broker_priority("Other", remote_service_name="//anywhere", priority_level="DEFAULT")
    with refused(33303):
        database.alter_broker_priority("Other", contract_name=CONTRACT, remote_service_name="ANY")
    database.alter_broker_priority("Other", contract_name=CONTRACT, local_service_name=ORDERS)
