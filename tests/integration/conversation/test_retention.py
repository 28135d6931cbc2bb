"""RETENTION: received and sent messages stay in the queue's view until their conversation ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.api.maintenance import run_maintenance
from servicebroker.store.direct import DirectConnection
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
    Undo,
    begin,
    bodies,
    group_of,
    in_thread,
    leftovers,
    open_dialog,
    peer_handle,
    query,
    refused,
    rolled_back,
    state,
    tolerate_rollbacks,
)

Row = tuple[int, int, bytes | None]  # status, message sequence number, body


@pytest.fixture
def database(fresh_database: sb.Database) -> Iterator[sb.Database]:
    """The standard set, both queues with RETENTION on."""
    for queue in (ORDERS_QUEUE, STOCK_QUEUE):
        fresh_database.alter_queue(queue, retention=True)
    yield fresh_database
    # no retained message of an ended conversation
    strays = [
        row
        for queue in (ORDERS_QUEUE, STOCK_QUEUE)
        for row in query(
            fresh_database,
            f"select conversation_handle from test_dbo.{queue} where conversation_handle not in (select "
            "conversation_handle from servicebroker.conversation_endpoints where state not in ('DO', 'CD'))",
        )
    ]
    assert strays == []


def rows(database: sb.Database, queue: str = STOCK_QUEUE, handle: UUID | None = None) -> list[Row]:
    """Return the rows of the queue's view, by order of arrival."""
    text = (
        f"select status, message_sequence_number, message_body from {database.name}_dbo.{queue} "
        "where conversation_handle = %s or %s::uuid is null order by queuing_order"
    )
    return query(database, text, handle, handle)


# ---------------------------------------------------------------- retained messages


@pytest.mark.feature(55, 74, 198)
def test_received_messages_stay_with_status_0_and_sent_copies_with_3(database: sb.Database) -> None:
    initiator = begin(database)
    database.send(initiator, ORDER, b"one")
    database.send_batch(initiator, ORDER, [b"two", b"three"])
    target = peer_handle(database, initiator)
    assert rows(database) == [(1, 0, b"one"), (1, 1, b"two"), (1, 2, b"three")]
    assert rows(database, ORDERS_QUEUE) == [(3, 0, b"one"), (3, 1, b"two"), (3, 2, b"three")]
    messages = database.receive(STOCK_QUEUE, top=2)
    assert [(message.status, message.message_body) for message in messages] == [(0, b"one"), (0, b"two")]
    assert rows(database) == [(0, 0, b"one"), (0, 1, b"two"), (1, 2, b"three")]
    database.send(target, REPLY, b"reply")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"three"]
    assert sorted(rows(database)) == [(0, 0, b"one"), (0, 1, b"two"), (0, 2, b"three"), (3, 0, b"reply")]
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"reply"]
    assert database.receive(STOCK_QUEUE) == database.receive(ORDERS_QUEUE) == []  # only SELECT shows them
    assert database.get_conversation_group(STOCK_QUEUE) is None
    # END removes the copies of its side
    database.end_conversation(target)
    assert rows(database) == []
    assert {status for status, _, _ in rows(database, ORDERS_QUEUE)} == {0, 1, 3}  # 1: the EndDialog
    database.receive(ORDERS_QUEUE)
    database.end_conversation(initiator)
    assert rows(database, ORDERS_QUEUE) == []


@pytest.mark.feature(55, 198)
def test_a_copy_has_all_the_columns_of_a_queue(database: sb.Database) -> None:
    initiator = begin(database)
    database.send(initiator, DOCUMENT, b"<a/>")
    text = "select * from test_dbo.{} where conversation_handle = %s"
    (arrived,) = query(database, text.format(STOCK_QUEUE), peer_handle(database, initiator))
    (message,) = database.receive(STOCK_QUEUE)
    (kept,) = query(database, text.format(STOCK_QUEUE), peer_handle(database, initiator))
    assert kept == (0, *arrived[1:]) == tuple(message)
    (sent,) = query(database, text.format(ORDERS_QUEUE), initiator)
    copy = sb.Message(*sent)
    assert (copy.status, copy.conversation_group_id) == (3, group_of(database, initiator))
    assert (copy.service_name, copy.service_contract_name, copy.message_type_name) == (ORDERS, CONTRACT, DOCUMENT)
    assert (copy.message_sequence_number, copy.priority, copy.validation, copy.message_body) == (0, 5, "X", b"<a/>")


@pytest.mark.feature(198)
def test_timers_errors_and_empty_bodies_are_retained(database: sb.Database, clock: Clock) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, MARK)
    database.begin_conversation_timer(target, 1)
    clock.jump(seconds=2)
    assert [message.is_timer for message in database.receive(STOCK_QUEUE)] == [True, False]
    database.end_conversation(initiator, error=(7, "no"))
    (error,) = database.receive(STOCK_QUEUE)
    assert error.is_error
    assert [status for status, _, _ in rows(database)] == [0, 0, 0, 0]
    database.end_conversation(target)
    assert rows(database) == []


@pytest.mark.feature(198)
def test_the_option_is_set_altered_and_shown(fresh_database: sb.Database) -> None:
    database = fresh_database

    def retention_by_queue() -> dict[str, int]:
        return dict(query(database, "select name, is_retention_enabled from sys.service_queues"))

    database.create_queue("Keeps", retention=True)
    database.create_queue("KeepsNot", retention=False)
    assert (retention_by_queue()["Keeps"], retention_by_queue()["KeepsNot"], retention_by_queue()[STOCK_QUEUE]) == (
        1,
        0,
        0,
    )
    database.create_service("//test/Keeps", "Keeps", [CONTRACT])
    handle = begin(database, "//test/Keeps")
    database.send(handle, ORDER, b"x")
    database.receive("Keeps")
    assert rows(database, "Keeps") == [(0, 0, b"x")]
    assert rows(database, ORDERS_QUEUE) == []  # each queue has its own option
    for wrong in (1, "ON"):
        with refused(402, "RETENTION"):
            database.alter_queue("Keeps", retention=wrong)  # type: ignore[arg-type]
        with refused(402, "RETENTION"):
            database.create_queue("Other", retention=wrong)  # type: ignore[arg-type]
    with refused(15151):
        database.alter_queue("Nothing", retention=True)
    database.alter_queue("Keeps", retention=False)
    assert retention_by_queue()["Keeps"] == 0


@pytest.mark.feature(55, 198)
def test_retention_enabled_for_conversations_that_have_sent(fresh_database: sb.Database) -> None:
    """The client may have cached a target without RETENTION. Disabled again, retained messages stay until END."""
    database = fresh_database
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"before")
    database.alter_queue(ORDERS_QUEUE, retention=True)
    database.alter_queue(STOCK_QUEUE, retention=True)
    database.send(initiator, ORDER, b"after")
    assert rows(database, ORDERS_QUEUE) == [(3, 2, b"after")]
    assert bodies(database.receive(STOCK_QUEUE, top=1)) == [b"before"]
    assert rows(database) == [(0, 1, b"before"), (1, 2, b"after")]
    for queue in (ORDERS_QUEUE, STOCK_QUEUE):
        database.alter_queue(queue, retention=False)
    database.send(initiator, ORDER, b"off")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"after", b"off"]
    assert (rows(database), rows(database, ORDERS_QUEUE)) == ([(0, 1, b"before")], [(3, 2, b"after")])
    database.end_conversation(target)
    database.end_conversation(initiator)
    assert rows(database) == rows(database, ORDERS_QUEUE) == []


def test_a_queue_without_retention_has_no_further_statements(
    fresh_database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEND to a queue with RETENTION, and RECEIVE from another queue, stay one statement with a cached target."""
    database = fresh_database
    initiator, _ = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, retention=True)
    database.send(initiator, ORDER, b"looks up what has changed")
    statements: list[str] = []
    run_prepared = DirectConnection.run_prepared

    def record_statement(connection: DirectConnection, text: str, parameters: tuple[object, ...], then: bytes) -> Any:
        statements.append(text)
        return run_prepared(connection, text, parameters, then)

    monkeypatch.setattr(DirectConnection, "run_prepared", record_statement)
    database.send(initiator, ORDER, b"x")
    assert len(statements) == 1
    database.receive(STOCK_QUEUE)
    assert len(statements) == 2
    database.end_conversation(initiator)
    assert [text for text in statements if "retained_" in text] == []


# ---------------------------------------------------------------- 9618, and other kinds of SEND


@pytest.mark.feature(55)
def test_a_send_from_a_queue_that_is_off_is_refused(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    new = begin(database)
    database.alter_queue(ORDERS_QUEUE, status=False)
    for handle in (initiator, new):
        with refused(9618, f"'{ORDERS_QUEUE}'", "retention is on"):
            database.send(handle, ORDER, b"x")
        with refused(9618):
            database.send_batch(handle, ORDER, [b"x"])
    with refused(9618):
        database.send([target, initiator], DOCUMENT, b"<x/>")
    assert database.receive(STOCK_QUEUE) == []
    database.send(target, REPLY, b"y")  # the sender's queue is enabled: the reply waits
    assert (3, 0, b"y") in rows(database)
    database.alter_queue(ORDERS_QUEUE, retention=False)
    database.send(initiator, ORDER, b"x")
    database.alter_queue(ORDERS_QUEUE, status=True, retention=True)
    database.send(initiator, ORDER, b"z")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x", b"z"]
    assert (3, 2, b"z") in rows(database, ORDERS_QUEUE)


@pytest.mark.feature(55, 198)
def test_waiting_and_undeliverable_messages_are_retained(database: sb.Database) -> None:
    waiting = begin(database, "//nobody")
    database.send(waiting, ORDER, b"waits")
    assert rows(database, ORDERS_QUEUE, waiting) == [(3, 0, b"waits")]
    failing = begin(database)
    database.send(failing, DOCUMENT, b"<broken")
    assert sorted(rows(database, ORDERS_QUEUE, failing))[-1] == (3, 0, b"<broken")
    database.create_service("//nobody", STOCK_QUEUE, [CONTRACT])
    there = peer_handle(database, waiting)
    assert bodies(database.receive(STOCK_QUEUE, conversation_handle=there)) == [b"waits"]
    for handle in (waiting, failing):
        database.end_conversation(handle, cleanup=True)
    assert rows(database, ORDERS_QUEUE) == []


@pytest.mark.feature(49, 198)
def test_copies_of_a_multicast_share_its_body(database: sb.Database) -> None:
    handles = [begin(database), begin(database)]
    database.send(handles, ORDER, b"shared")
    assert rows(database, ORDERS_QUEUE) == [(3, 0, b"shared")] * 2
    readers = "select count(*) from servicebroker.shared_body_readers"
    assert query(database, readers) == [(4,)]
    for _ in handles:
        assert bodies(database.receive(STOCK_QUEUE)) == [b"shared"]
    assert rows(database) == [(0, 0, b"shared")] * 2
    assert query(database, readers) == [(4,)]
    for handle in handles:
        database.end_conversation(peer_handle(database, handle))
        assert rows(database, ORDERS_QUEUE, handle)[0] == (3, 0, b"shared")
        database.end_conversation(handle)
    assert query(database, readers) == [(0,)]
    assert query(database, "select count(*) from servicebroker.shared_bodies") == [(0,)]


# ---------------------------------------------------------------- rollback, MOVE, ALTER SERVICE


@pytest.mark.feature(198)
def test_rollbacks_return_the_message(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"x")
    before = rows(database), rows(database, ORDERS_QUEUE)
    with rolled_back(database) as transaction:
        assert bodies(transaction.receive(STOCK_QUEUE)) == [b"x"]
        transaction.send(initiator, ORDER, b"undone")
        transaction.end_conversation(target)
    assert (rows(database), rows(database, ORDERS_QUEUE)) == before
    with database.transaction() as transaction:
        with pytest.raises(Undo), transaction.savepoint():
            assert bodies(transaction.receive(STOCK_QUEUE)) == [b"x"]
            raise Undo
        assert bodies(transaction.receive(STOCK_QUEUE)) == [b"x"]
    assert rows(database) == [(0, 0, b"open"), (0, 1, b"x")]


@pytest.mark.feature(198)
@pytest.mark.parametrize("where", ["handle", "group"])
def test_receive_where_retains(database: sb.Database, where: str) -> None:
    initiator, target = open_dialog(database)
    database.send_batch(initiator, ORDER, [b"x", b"y"])
    expected: dict[str, Any] = {
        "handle": {"conversation_handle": target},
        "group": {"conversation_group_id": group_of(database, target)},
    }[where]
    assert bodies(database.receive(STOCK_QUEUE, top=1, **expected)) == [b"x"]
    assert rows(database) == [(0, 0, b"open"), (0, 1, b"x"), (1, 2, b"y")]


@pytest.mark.feature(198)
def test_retained_messages_follow_moved_conversations_and_services(database: sb.Database) -> None:
    first, second = open_dialog(database)[1], open_dialog(database)[1]
    group = group_of(database, second)
    database.move_conversation(first, group)
    groups = f"select distinct conversation_group_id from test_dbo.{STOCK_QUEUE}"
    assert query(database, groups) == [(group,)]
    database.create_queue("New")
    database.alter_service(STOCK, queue="New")
    assert (rows(database), rows(database, "New")) == ([], [(0, 0, b"open")] * 2)
    for handle in (first, second):
        database.end_conversation(handle)
    assert rows(database, "New") == []


# ---------------------------------------------------------------- removal of copies


@pytest.mark.feature(198)
@pytest.mark.parametrize("how", ["plain", "error", "cleanup", "after the peer", "never delivered"])
def test_end_removes_retained_messages(database: sb.Database, clock: Clock, how: str) -> None:
    initiator, target = open_dialog(database)
    other = open_dialog(database)[0]
    database.send(target, REPLY, b"reply")
    if how == "after the peer":
        database.end_conversation(target)
        database.receive(ORDERS_QUEUE, conversation_handle=initiator)
    if how == "never delivered":
        database.alter_queue(STOCK_QUEUE, status=False)
    options: dict[str, Any] = {"error": {"error": (1, "x")}, "cleanup": {"cleanup": True}}.get(how, {})
    database.end_conversation(initiator, **options)
    assert rows(database, ORDERS_QUEUE, initiator) == []
    assert rows(database, ORDERS_QUEUE, other) == [(3, 0, b"open")]


@pytest.mark.feature(198)
def test_an_expired_conversation_keeps_them_until_its_end(database: sb.Database, clock: Clock) -> None:
    initiator = begin(database, lifetime=60)
    database.send(initiator, ORDER, b"x")
    target = peer_handle(database, initiator)
    database.receive(STOCK_QUEUE)
    clock.jump(seconds=61)
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())
    assert [state(database, handle) for handle in (initiator, target)] == ["ER", "ER"]
    assert {status for status, _, _ in rows(database)} == {0, 1}
    for handle in (initiator, target):
        database.end_conversation(handle)
    assert rows(database) == rows(database, ORDERS_QUEUE) == []
    clock.jump(minutes=31)
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())
    assert leftovers(database) == {}


@pytest.mark.feature(198)
@pytest.mark.parametrize("how", ["new broker", "drop service", "drop queue"])
def test_dropped_conversations_lose_their_retained_messages(database: sb.Database, how: str) -> None:
    initiator, target = open_dialog(database)
    database.send([initiator, begin(database)], ORDER, b"shared")
    database.receive(STOCK_QUEUE, conversation_handle=target)
    if how == "new broker":
        database.alter(new_broker=True)
        assert leftovers(database) == {}
        return
    database.drop_service(STOCK)
    assert rows(database) == []
    if how == "drop queue":
        ((number,),) = query(database, "select queue_id from servicebroker.queues where name = %s", STOCK_QUEUE)
        database.drop_queue(STOCK_QUEUE)
        assert query(database, "select relname from pg_class where relname like %s", f"%\\_{number}%") == []
        database.create_queue(STOCK_QUEUE)  # for the query at the end
    database.drop_service(ORDERS)
    assert leftovers(database) == {}


@pytest.mark.feature(198)
def test_a_queue_disabled_by_poison_messages_keeps_its_messages(database: sb.Database) -> None:
    """After five rollbacks the message is ready to be received, and not retained."""
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"poison")
    for _ in range(5):
        with rolled_back(database) as transaction:
            transaction.receive(STOCK_QUEUE)
    with refused(9617):
        database.receive(STOCK_QUEUE)
    assert rows(database) == [(0, 0, b"open"), (1, 1, b"poison")]
    with refused(9618):
        database.send(target, REPLY, b"x")


# ---------------------------------------------------------------- concurrency


@pytest.mark.slow
@pytest.mark.feature(198)
def test_concurrent_senders_readers_and_ends(database: sb.Database, seeded_random: random.Random) -> None:
    """Transactions are rolled back and RETENTION is toggled. No row remains when all conversations have ended."""
    tolerate_rollbacks(database)
    done_event = threading.Event()
    dialogs = [open_dialog(database) for _ in range(6)]

    def send(initiator: UUID, target: UUID) -> None:
        for number in range(25):
            database.send(initiator, ORDER, b"%d" % number)
            with rolled_back(database) as transaction:
                transaction.send([target, initiator], DOCUMENT, b"<undone/>")

    def read(seed: float) -> None:
        choice = random.Random(seed)
        while True:
            finished = done_event.is_set()
            with rolled_back(database) if choice.random() < 0.3 else database.transaction() as transaction:
                messages = transaction.receive(STOCK_QUEUE, top=choice.choice([1, 4, None]))
                if messages and choice.random() < 0.3:
                    transaction.send(messages[0].conversation_handle, REPLY, b"reply")
            if finished and not messages:
                return

    def alter() -> None:
        for number in range(10):
            database.alter_queue(STOCK_QUEUE, retention=number % 2 == 0)
            done_event.wait(0.05)

    readers = [in_thread(partial(read, seeded_random.random())) for _ in range(3)]
    work = [in_thread(send, *dialog) for dialog in dialogs] + [in_thread(alter)]
    for future in work:
        future.result(120)
    for initiator, target in dialogs:  # while the readers go on
        in_thread(database.end_conversation, target).result(30)
        in_thread(database.end_conversation, initiator).result(30)
    done_event.set()
    for future in readers:
        future.result(120)
    assert rows(database) == rows(database, ORDERS_QUEUE) == []
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())
    assert query(database, "select count(*) from servicebroker.shared_bodies") == [(0,)]
