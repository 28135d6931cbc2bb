"""Many concurrent threads: messages are received exactly once and in order, and no rows remain."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.store import locks
from support import (
    CONTRACT,
    DOCUMENT,
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    Clock,
    Undo,
    begin,
    bodies,
    drain,
    leftovers,
    open_dialog,
    peer_handle,
    query,
    queue_number,
    run_together,
    tolerate_rollbacks,
)

pytestmark = pytest.mark.slow


def is_accepted(verb: Callable[..., Any], *arguments: Any) -> bool:
    """Run a verb. Return False if the conversation has ended. Other errors fail the test."""
    try:
        verb(*arguments)
    except sb.BrokerError as refusal:
        if refusal.number not in (8426, 8429):
            raise
        return False
    return True


def queue_table(database: sb.Database, name: str) -> str:
    return f"servicebroker.queue_{queue_number(database, name)}"


@pytest.mark.feature(62, 63, 67, 76, 77)
def test_readers_and_senders_with_rollbacks_receive_each_message_once_in_order(
    database: sb.Database, seeded_random: random.Random
) -> None:
    """4 senders and 8 readers on 16 conversations: each message is received once, in the order of its conversation."""
    tolerate_rollbacks(database)
    handles = [begin(database) for _ in range(16)]
    received: dict[UUID, list[bytes | None]] = defaultdict(list)  # received numbers, by the target's handle
    numbers: dict[UUID, list[int]] = defaultdict(list)
    done_event = threading.Event()

    def send(seed: float) -> None:
        choice = random.Random(seed)
        for step in range(60):
            chosen = sorted(choice.sample(handles, choice.randint(1, 3)), key=str)
            try:
                with database.transaction() as transaction:
                    if choice.random() < 0.5:  # a transaction id that is old when the conversation's lock is acquired
                        transaction.connection.execute("select pg_current_xact_id()")
                    for handle in chosen:
                        for part in range(choice.randint(1, 4)):
                            body = f"{seed} {step} {part}".encode()
                            transaction.send(handle, ORDER, body)
                    if choice.random() < 0.2:
                        raise Undo
            except Undo:
                continue

    def read(choice: random.Random) -> list[sb.Message]:
        with database.transaction() as transaction:
            top, wait = choice.choice([1, 2, 5, None]), choice.choice([0, 0.02])
            messages = transaction.receive(STOCK_QUEUE, top=top, wait=wait)
            if messages and choice.random() < 0.3:
                raise Undo
            assert len({message.conversation_group_id for message in messages}) <= 1
            for message in messages:  # while the group is locked
                received[message.conversation_handle].append(message.message_body)
                numbers[message.conversation_handle].append(message.message_sequence_number)
        return messages

    def send_all() -> None:
        run_together(*[partial(send, seeded_random.random()) for _ in range(4)])
        done_event.set()

    choices = [random.Random(seeded_random.random()) for _ in range(8)]
    run_together(send_all, *[partial(drain, partial(read, choice), done_event) for choice in choices])
    assert database.receive(STOCK_QUEUE) == []
    far = "select conversation_handle, send_sequence from servicebroker.conversation_endpoints where is_initiator"
    totals = dict(query(database, far))
    for handle in handles:
        target = peer_handle(database, handle)
        assert numbers[target] == list(range(totals[handle]))
        assert max(Counter(received[target]).values(), default=1) == 1


def test_order_of_arrival_and_stamp_follow_the_conversation(
    database: sb.Database, seeded_random: random.Random
) -> None:
    """Senders get their transaction id long before the conversation's lock."""
    handles = [begin(database) for _ in range(4)]

    def send(seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(40):
            with database.transaction() as transaction:
                transaction.connection.execute("select pg_current_xact_id(), pg_sleep(%s)", (choice.random() / 500,))
                transaction.send(choice.choice(handles), ORDER, b"x")
                if choice.random() < 0.1:
                    transaction.connection.rollback()

    run_together(*[partial(send, seeded_random.random()) for _ in range(8)])
    rows = query(
        database,
        "select conversation_handle, message_sequence_number, queuing_order, stamp::text::bigint "
        f"from {queue_table(database, STOCK_QUEUE)} order by conversation_handle, message_sequence_number",
    )
    assert len(rows) > 200
    for (handle, _, order, stamp), (next_handle, _, next_order, next_stamp) in itertools.pairwise(rows):
        if handle == next_handle:
            assert order < next_order
            assert stamp <= next_stamp


def test_no_receive_is_empty_while_a_group_is_free(database: sb.Database) -> None:
    """Readers receive whole groups and nothing is sent, so an unlocked group with messages was never received from."""
    table = queue_table(database, STOCK_QUEUE)
    handles = [begin(database) for _ in range(24)]
    missed: list[Any] = []
    taken: list[int] = []

    def read(start: threading.Barrier) -> None:
        start.wait(10)
        messages: list[sb.Message] | None = None
        while messages is None or messages:
            with database.transaction() as transaction:
                messages = transaction.receive(STOCK_QUEUE)
                taken.append(len(messages))
                if not messages:
                    held = transaction.connection.execute(
                        "select objid::bigint from pg_locks where locktype = 'advisory' and classid = %s",
                        (locks.CONVERSATION_GROUP,),
                    ).fetchall()
                    free = transaction.connection.execute(
                        "select distinct conversation_group_id, uuid_hash(conversation_group_id)::bigint & 4294967295 "
                        f"from {table}"  # type: ignore[arg-type]
                    ).fetchall()
                    missed.extend(group for group, key in free if (key,) not in held)

    for _ in range(12):
        for handle in handles:
            database.send_batch(handle, ORDER, [b"1", b"2"])
        start = threading.Barrier(8)
        run_together(*[partial(read, start)] * 8)
    assert missed == []
    assert sum(taken) == 12 * 24 * 2


@pytest.mark.feature(88, 95, 96)
def test_senders_and_ends_of_both_sides(
    fresh_database: sb.Database, clock: Clock, seeded_random: random.Random
) -> None:
    """In each round two threads per side send while both sides end. Only refusals occur, and no row remains."""
    database = fresh_database

    def one_round(seed: float) -> None:
        choice = random.Random(seed)
        initiator = begin(database)
        database.send(initiator, ORDER, b"0")
        target = peer_handle(database, initiator)
        sides = {initiator: (ORDER, ORDERS_QUEUE), target: (REPLY, STOCK_QUEUE)}
        sends = {handle: choice.randint(0, 6) for handle in sides}

        def send(handle: UUID) -> None:
            for _ in range(sends[handle]):
                if not is_accepted(database.send, handle, sides[handle][0], b"x"):
                    return

        def end(handle: UUID, reads: bool) -> None:
            if reads:
                is_accepted(lambda: database.receive(sides[handle][1], conversation_handle=handle))
            is_accepted(database.end_conversation, handle)

        work = [partial(send, handle) for handle in sides for _ in range(2)]
        work += [partial(end, handle, choice.random() < 0.5) for handle in sides]
        choice.shuffle(work)
        run_together(*work)

    for _ in range(60):
        one_round(seeded_random.random())
    assert query(database, f"select count(*) from {queue_table(database, STOCK_QUEUE)}") == [(0,)]
    assert query(database, f"select count(*) from {queue_table(database, ORDERS_QUEUE)}") == [(0,)]
    clock.jump(minutes=31)
    while any(leftovers(database).values()):
        before = leftovers(database)
        database.end_conversation(begin(database))
        assert leftovers(database) != before


def test_every_successful_send_before_the_end_arrives(database: sb.Database, seeded_random: random.Random) -> None:
    """Four threads send on one conversation, and a fifth ends it. The peer gets exactly the accepted messages."""

    def send(initiator: UUID, name: int, sent: list[bytes]) -> None:
        for number in range(10):
            body = b"%d %d" % (name, number)
            if not is_accepted(database.send, initiator, ORDER, body):
                return
            sent.append(body)

    def end(initiator: UUID, delay: float) -> None:
        threading.Event().wait(delay)
        database.end_conversation(initiator)

    for _ in range(25):
        initiator = begin(database)
        sent: list[bytes] = []
        senders = [partial(send, initiator, name, sent) for name in range(4)]
        run_together(*senders, partial(end, initiator, seeded_random.random() / 50))
        messages = database.receive(STOCK_QUEUE)
        if sent:
            assert messages[-1].is_end_dialog
            database.end_conversation(messages[-1].conversation_handle)
        assert sorted(bodies(messages[:-1])) == sorted(sent)
        assert [message.message_sequence_number for message in messages] == list(range(len(messages)))


def test_concurrent_errors_and_ends_of_both_sides(database: sb.Database, seeded_random: random.Random) -> None:
    """A SEND that fails the conversation changes both sides, as END does. They must not deadlock."""
    for _ in range(40):
        initiator, target = open_dialog(database)
        work = [partial(is_accepted, database.send, handle, DOCUMENT, b"<broken") for handle in (initiator, target)]
        work += [partial(is_accepted, database.end_conversation, handle) for handle in (initiator, target)]
        seeded_random.shuffle(work)
        run_together(*work)
        assert database.receive(STOCK_QUEUE) == database.receive(ORDERS_QUEUE) == []


def test_services_created_while_their_messages_are_sent(database: sb.Database, seeded_random: random.Random) -> None:

    def send(handle: UUID, delay: float) -> None:
        threading.Event().wait(delay)
        for index in range(5):
            database.send(handle, ORDER, b"%d" % index)

    def make(name: str) -> None:
        threading.Event().wait(0.005)
        database.create_service(name, STOCK_QUEUE, [CONTRACT])

    for number in range(15):
        name = f"//stress/{number}"
        handles = [begin(database, name) for _ in range(3)]

        delays = [seeded_random.random() / 50 for _ in handles]
        run_together(partial(make, name), *map(partial, [send] * 3, handles, delays))
        for _ in handles:
            assert bodies(database.receive(STOCK_QUEUE)) == [b"0", b"1", b"2", b"3", b"4"]
        assert database.receive(STOCK_QUEUE) == []
