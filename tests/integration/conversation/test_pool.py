"""`ConversationPool`: conversations that are reused, and ended with [EndOfStream] after a while."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    Clock,
    bodies,
    define_standard_set,
    leftovers,
    peer_handle,
    query,
    refused,
    run_together,
    state,
    tolerate_rollbacks,
)

Messages = list[sb.Message]


def make_pool(database: sb.Database, **options: Any) -> sb.ConversationPool:
    return sb.ConversationPool(database, ORDERS, STOCK, contract=CONTRACT, end_of_stream=MARK, **options)


def send(pool: sb.ConversationPool, *texts: bytes, key: str | None = "k") -> UUID:
    with pool.database.transaction() as transaction:
        for text in texts:
            handle = pool.send(transaction, ORDER, text, key=key)
    return handle


def do_nothing(transaction: sb.Transaction, messages: Messages) -> None:
    pass


def drain(database: sb.Database, procedure: Callable[..., object] = do_nothing) -> int:
    return database.process(STOCK_QUEUE, sb.ConversationPool.target(procedure, end_of_stream=MARK), top=None)


def test_a_pool_uses_one_conversation_for_each_key(database: sb.Database) -> None:
    pool = make_pool(database)
    first = send(pool, b"1")
    assert send(pool, b"2") == first
    assert send(make_pool(database), b"3") == first  # also in another process, because a table stores the keys
    assert send(pool, b"4", key="other") != first
    with database.transaction() as transaction:
        assert pool.send_batch(transaction, ORDER, [b"5", b"6"], key="k") == first
    taken = database.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, first))
    assert bodies(taken) == [b"1", b"2", b"3", b"5", b"6"]


def test_by_default_each_session_has_its_own_conversation(database: sb.Database) -> None:
    pool = make_pool(database)
    with database.transaction() as one, database.transaction() as other:
        first, second = pool.send(one, ORDER, b"1"), pool.send(other, ORDER, b"2")
        assert pool.send(one, ORDER, b"3") == first != second


def test_sends_without_a_key_use_the_conversations_in_turn(database: sb.Database) -> None:
    pool = make_pool(database, conversations=3)
    handles = [send(pool, b"x", key=None) for _ in range(6)]
    assert handles[:3] == handles[3:]
    assert len(set(handles)) == 3


def test_a_conversation_ends_after_its_time(database: sb.Database, clock: Clock) -> None:
    pool = make_pool(database, seconds=60)
    seen: list[bytes | None] = []
    first = send(pool, b"1", b"2")
    assert pool.answer() == 0
    clock.jump(seconds=61)
    assert pool.answer() == 1
    second = send(pool, b"3")
    assert second != first
    assert drain(database, lambda transaction, messages: seen.extend(bodies(messages))) == 4
    assert sorted(seen) == [b"1", b"2", b"3"]  # no EndOfStream
    assert state(database, first) == "DI"
    assert pool.answer() == 1
    assert state(database, first) is None
    assert state(database, second) == "CO"
    assert pool.errors() == []


def test_a_conversation_ends_after_its_number_of_messages(database: sb.Database) -> None:
    pool = make_pool(database, messages=2)
    first = send(pool, b"1")
    assert send(pool, b"2") == first
    assert send(pool, b"3") != first
    sizes: list[int] = []
    drain(database, lambda transaction, messages: sizes.append(len(messages)))
    assert sizes == [2, 1]
    assert pool.answer() == 1
    assert state(database, first) is None


def test_all_streams_can_be_ended(database: sb.Database) -> None:
    pool = make_pool(database)
    send(pool, b"1")
    send(pool, b"2", key="other")
    pool.end_streams()
    assert drain(database) == 4
    assert pool.answer() == 2
    assert (
        query(
            database,
            "select from servicebroker.session_conversations where database_id = %s",
            pool.database.database_id,
        )
        == []
    )


def test_an_error_is_recorded_and_a_new_conversation_begun(database: sb.Database) -> None:
    pool = make_pool(database)
    first = send(pool, b"1")
    database.end_conversation(peer_handle(database, first), error=(500, "no more"))
    second = send(pool, b"2")  # before an answer
    assert second != first
    assert pool.answer() == 1
    (error,) = pool.errors()
    assert (error.conversation_handle, error.code, error.description) == (first, 500, "no more")
    assert error.received_at.tzinfo is not None
    assert state(database, first) is None
    assert send(pool, b"3") == second


def test_only_the_last_thousand_errors_are_kept(database: sb.Database) -> None:
    from servicebroker.engine.conversation.recycling import ConversationError, record_error

    pool = make_pool(database)
    at = database.instance.clock()
    for number in range(1003):
        database._do(record_error(database.database_id, ORDERS, ConversationError(UUID(int=number), number, "", at)))
    kept = pool.errors()
    assert (len(kept), kept[-1].code) == (1000, 1002)


def test_a_removed_conversation_is_replaced(database: sb.Database) -> None:
    pool = make_pool(database)
    first = send(pool, b"1")
    database.end_conversation(first, cleanup=True)
    assert send(pool, b"2") != first


def test_a_rollback_leaves_no_conversation(database: sb.Database) -> None:
    pool = make_pool(database)
    with pytest.raises(ZeroDivisionError), database.transaction() as transaction:
        gone = pool.send(transaction, ORDER, b"1", key="k")
        raise ZeroDivisionError
    assert send(pool, b"2") != gone


def test_a_reply_stays_in_the_queue_and_is_logged(database: sb.Database) -> None:
    pool = make_pool(database)
    handle = send(pool, b"1")
    database.send(peer_handle(database, handle), MARK)
    with pytest.raises(sb.InstanceError, match=MARK):
        pool.answer()
    assert len(database.receive(ORDERS_QUEUE)) == 1


def test_invalid_pool_arguments_are_refused(database: sb.Database) -> None:
    for wrong in ({"seconds": 0}, {"messages": "7"}, {"conversations": -1}):
        with refused(402):
            make_pool(database, **wrong)
    pool = make_pool(database)
    for key in ("", "a\0b", "x" * 300):
        with refused(15151), database.transaction() as transaction:
            pool.send(transaction, ORDER, b"x", key=key)
    with database.instance.connection() as connection, pytest.raises(sb.InstanceError, match="inside a transaction"):
        pool.send(database.join(connection), ORDER, b"x")  # type: ignore[arg-type]
    with refused(8431), database.transaction() as transaction:
        pool.send(transaction, sb.DEFAULT, b"x")
    with refused(402):
        sb.ConversationPool.target(7)  # type: ignore[arg-type]
    with refused(15151):
        sb.ConversationPool(database, "//nowhere", STOCK).answer()


def test_answers_stored_by_a_crashed_process_are_handled(database: sb.Database, clock: Clock) -> None:
    pool = make_pool(database, seconds=1)
    handle = send(pool, b"1")
    clock.jump(seconds=2)
    with database.transaction() as transaction:
        pool.note(transaction, transaction.receive(ORDERS_QUEUE))
    assert pool.answer() == 0  # the queue is empty, but the stream was ended
    assert send(pool, b"2") != handle
    drain(database)
    assert pool.answer() == 1


def test_a_pool_spreads_over_a_second_target_that_appears(fresh_instance: sb.Instance) -> None:
    initiator, *databases = [define_standard_set(fresh_instance.database(f"At{n}", create=True)) for n in range(3)]
    initiator.drop_service(STOCK)
    databases[1].drop_service(STOCK)
    pool = make_pool(initiator, messages=1)

    def second_is_reached() -> list[int]:
        for _ in range(40):
            send(pool, b"x")
        counts = [drain(database) // 2 for database in databases]
        pool.answer()
        return counts

    assert second_is_reached() == [40, 0]
    databases[1].create_service(STOCK, STOCK_QUEUE, [CONTRACT])
    assert all(count > 4 for count in second_is_reached())


@pytest.mark.parametrize("keys", [1, 3])
def test_under_load_no_message_is_lost_or_follows_the_end(
    fresh_database: sb.Database, clock: Clock, request: pytest.FixtureRequest, keys: int
) -> None:
    """Conversations are replaced every few milliseconds, by timer and number, while three threads use the same keys."""
    database, senders = fresh_database, 3
    total = request.config.option.pool_messages
    tolerate_rollbacks(database)
    pool = make_pool(database, seconds=1, messages=50)
    sent = threading.Barrier(senders + 1)
    over = threading.Event()
    got: dict[UUID, list[bytes]] = defaultdict(list)
    ended: list[UUID] = []

    def sender(number: int) -> None:
        choice = random.Random(number)
        for n in range(total // senders):
            with database.transaction() as transaction:
                key = f"k{choice.randrange(keys)}"
                pool.send(transaction, ORDER, b"%d %d" % (number, n), key=key)
        sent.wait(120)

    def recycler() -> None:
        while not over.is_set():
            clock.jump(seconds=2)
            pool.answer()

    def consumer(transaction: sb.Transaction, messages: Messages) -> None:
        for message in messages:
            if message.message_type_name == MARK:
                ended.append(message.conversation_handle)
                transaction.end_conversation(message.conversation_handle)
            else:
                assert message.conversation_handle not in ended
                got[message.conversation_handle].append(message.message_body or b"")

    def target() -> None:
        while not over.is_set():
            database.process(STOCK_QUEUE, consumer, top=None)

    def finish() -> None:
        sent.wait(120)
        pool.end_streams()
        while query(database, "select from servicebroker.conversation_endpoints where is_initiator"):
            pass
        over.set()

    run_together(*[lambda n=n: sender(n) for n in range(senders)], recycler, recycler, target, finish, seconds=300)  # type: ignore[misc]
    arrived = [text for texts in got.values() for text in texts]
    assert sorted(arrived) == sorted(b"%d %d" % (s, n) for s in range(senders) for n in range(total // senders))
    for texts in got.values():
        for number in range(senders):
            own = [int(text.split()[1]) for text in texts if int(text.split()[0]) == number]
            assert own == sorted(own)
    assert len(got) > total // 50
    assert pool.errors() == []
    clock.jump(hours=1)
    pool.answer()
    # closed targets are kept for a while
    left = leftovers(database).keys() - {
        "conversation_endpoints",
        "conversation_groups",
    }
    assert not left
