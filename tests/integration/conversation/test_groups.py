"""GET CONVERSATION GROUP and MOVE CONVERSATION."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import UUID, uuid4

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
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
    count_blocked_sessions,
    eventually,
    group_of,
    in_thread,
    open_dialog,
    peer_handle,
    pipeline_on,
    query,
    refused,
    rolled_back,
    state,
    tolerate_rollbacks,
    wait_until_blocked,
)

pytestmark = pytest.mark.both_apis

# ---------------------------------------------------------------- GET CONVERSATION GROUP


@pytest.mark.feature(71)
def test_get_locks_the_group_that_receive_would_take(database: sb.Database) -> None:
    first, second = begin(database), begin(database)
    database.send(first, ORDER, b"a")
    database.send(second, ORDER, b"b")
    groups = [group_of(database, peer_handle(database, handle)) for handle in (first, second)]
    with database.transaction() as one, database.transaction() as two:
        assert one.get_conversation_group(STOCK_QUEUE) == groups[0]
        assert two.get_conversation_group(STOCK_QUEUE) == groups[1]
        assert database.get_conversation_group(STOCK_QUEUE) is None
        assert database.receive(STOCK_QUEUE) == []
        assert bodies(one.receive(STOCK_QUEUE)) == [b"a"]
    assert database.get_conversation_group(STOCK_QUEUE) == groups[1]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"b"]
    assert database.get_conversation_group(STOCK_QUEUE) is None


@pytest.mark.feature(71)
def test_get_waits(database: sb.Database) -> None:
    assert database.get_conversation_group(STOCK_QUEUE, wait=0.05) is None
    reader = in_thread(database.get_conversation_group, STOCK_QUEUE, wait=30)
    eventually(lambda: database.instance.notifier._waiting)
    handle = begin(database)
    database.send(handle, ORDER, b"x")
    assert reader.result(10) == group_of(database, peer_handle(database, handle))
    with refused(402, "wait"):
        database.get_conversation_group(STOCK_QUEUE, wait=-1)


def test_get_fires_timers_and_writes_nothing_when_there_is_nothing(database: sb.Database, clock: Clock) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        assert transaction.get_conversation_group(ORDERS_QUEUE) is None
        row = transaction.connection.execute("select pg_current_xact_id_if_assigned()").fetchone()
        assert row == (None,)
    database.begin_conversation_timer(handle, 5)
    clock.jump(seconds=6)
    assert database.get_conversation_group(ORDERS_QUEUE) == group_of(database, handle)
    database.receive(ORDERS_QUEUE)


@pytest.mark.feature(69)
def test_a_disabled_queue_is_neither_received_from_nor_asked_for_groups(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"x")
    switch(database, on=False)
    with database.transaction() as transaction:
        for _ in range(2):
            with refused(9617, STOCK_QUEUE):
                transaction.get_conversation_group(STOCK_QUEUE)
            with refused(9617, STOCK_QUEUE):
                transaction.receive(STOCK_QUEUE)
    switch(database, on=True)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]


def test_get_of_a_queue_that_a_pipeline_reads(database: sb.Database) -> None:
    with pipeline_on(database), pytest.raises(sb.InstanceError, match="pipeline"):
        database.get_conversation_group(STOCK_QUEUE)


# ---------------------------------------------------------------- MOVE CONVERSATION


def switch(database: sb.Database, *, on: bool) -> None:
    with database.instance.connection() as connection:
        connection.execute(
            "update servicebroker.queues set is_receive_enabled = %s where database_id = %s and name = %s",
            (on, database.database_id, STOCK_QUEUE),
        )


def two_with_replies(database: sb.Database, replies: int = 3) -> tuple[UUID, UUID]:
    """Begin two conversations in separate groups, and send replies to their initiators."""
    handles = []
    for _ in range(2):
        initiator, target = open_dialog(database)
        database.send_batch(target, REPLY, [b"%d" % number for number in range(replies)])
        handles.append(initiator)
    return handles[0], handles[1]


@pytest.mark.feature(79)
def test_the_messages_move_with_their_conversation(database: sb.Database) -> None:
    first, second = two_with_replies(database)
    group, left = group_of(database, second), group_of(database, first)
    database.move_conversation(first, group)
    assert group_of(database, first) == group
    assert query(
        database, "select count(*) from servicebroker.conversation_groups where conversation_group_id = %s", left
    ) == [(0,)]
    database.send(peer_handle(database, first), REPLY, b"later")
    messages = database.receive(ORDERS_QUEUE)
    assert {message.conversation_group_id for message in messages} == {group}
    by_handle = {handle: [m for m in messages if m.conversation_handle == handle] for handle in (first, second)}
    assert bodies(by_handle[first]) == [b"0", b"1", b"2", b"later"]
    assert bodies(by_handle[second]) == [b"0", b"1", b"2"]
    orders = [message.queuing_order for message in by_handle[first]]
    assert orders == sorted(orders)
    assert min(orders) > max(message.queuing_order for message in by_handle[second])
    assert database.receive(ORDERS_QUEUE) == []


def test_a_moved_message_gets_a_new_stamp_and_bucket(database: sb.Database) -> None:
    first, second = two_with_replies(database)
    group = group_of(database, second)
    table = query(
        database, "select queue_id from servicebroker.conversation_endpoints where conversation_handle = %s", first
    )[0][0]
    text = (
        "select stamp::text::bigint, bucket = uuid_hash(conversation_group_id) & 1023, message_enqueue_time "
        f"from servicebroker.queue_{table} where conversation_handle = %s order by queuing_order"
    )
    before = query(database, text, first)
    with database.transaction() as transaction:
        transaction.move_conversation(first, group)
        row = transaction.connection.execute("select pg_current_xact_id()::text::bigint").fetchone()
        assert row is not None
    database.send(peer_handle(database, first), REPLY, b"later")
    after = query(database, text, first)
    assert [time for *_, time in after[:3]] == [time for *_, time in before]
    assert all(fits for _, fits, _ in after)
    assert after[0][0] >= row[0]
    assert [stamp for stamp, *_ in after] == sorted(stamp for stamp, *_ in after)


def test_move_of_a_conversation_without_a_peer(database: sb.Database) -> None:
    handle, other_handle = begin(database), begin(database)
    database.move_conversation(handle, group_of(database, other_handle))
    database.send(handle, ORDER, b"x")
    (message,) = database.receive(STOCK_QUEUE)
    database.send(message.conversation_handle, REPLY, b"y")
    (answer,) = database.receive(ORDERS_QUEUE)
    assert answer.conversation_group_id == group_of(database, other_handle)
    database.move_conversation(handle, group_of(database, handle))  # a move to the present group


def test_a_rolled_back_move_changes_nothing(database: sb.Database) -> None:
    first, second = two_with_replies(database)
    group = group_of(database, first)
    with rolled_back(database) as transaction:
        transaction.move_conversation(first, group_of(database, second))
    database.send(peer_handle(database, first), REPLY, b"3")
    messages = database.receive(ORDERS_QUEUE, conversation_handle=first)
    assert bodies(messages) == [b"0", b"1", b"2", b"3"]
    assert {message.conversation_group_id for message in messages} == {group}


@pytest.mark.feature(79)
def test_moves_that_are_refused(database: sb.Database, clock: Clock) -> None:
    initiator, target = open_dialog(database)
    other_handle = begin(database)
    group = group_of(database, other_handle)
    with refused(8418):
        database.move_conversation(None, group)  # type: ignore[arg-type]
    with refused(8420):
        database.move_conversation(initiator, None)  # type: ignore[arg-type]
    for wrong in (str(group), 5, b"x"):
        with refused(402):
            database.move_conversation(initiator, wrong)  # type: ignore[arg-type]
        with refused(402):
            database.move_conversation(wrong, group)  # type: ignore[arg-type]
    unknown = uuid4()
    with refused(8426, str(unknown)):
        database.move_conversation(unknown, group)
    with refused(8436, str(unknown)):
        database.move_conversation(initiator, unknown)
    with refused(8439, str(group)):
        database.move_conversation(target, group)
    database.create_service("//test/SameQueue", ORDERS_QUEUE)
    neighbour = database.begin_dialog("//test/SameQueue", ORDERS, contract=CONTRACT)
    with refused(8439):
        database.move_conversation(initiator, group_of(database, neighbour))
    database.end_conversation(initiator)
    database.end_conversation(target)
    with refused(8438, "'CD'"):
        database.move_conversation(target, group_of(database, target))
    waits = begin(database, "//test/Nowhere")
    database.send(waits, ORDER, b"x")
    database.end_conversation(waits)
    with refused(8438, "'DO'"):
        database.move_conversation(waits, group)


def test_move_in_every_open_state(database: sb.Database) -> None:
    disconnected, target = open_dialog(database)
    database.end_conversation(target)
    failed, target = open_dialog(database)
    database.end_conversation(target, error=(5, "no"))
    group = group_of(database, begin(database))
    for handle, letters in ((disconnected, "DI"), (failed, "ER")):
        database.move_conversation(handle, group)
        assert state(database, handle) == letters
    messages = database.receive(ORDERS_QUEUE, conversation_group_id=group)
    assert {message.conversation_handle for message in messages} == {disconnected, failed}


def test_move_is_refused_while_a_pipeline_reads_the_queue(database: sb.Database) -> None:
    first, second = two_with_replies(database)
    with pipeline_on(database, ORDERS_QUEUE), pytest.raises(sb.InstanceError, match="pipeline"):
        database.move_conversation(first, group_of(database, second))


@pytest.mark.parametrize("locked", [0, 1])
def test_move_waits_for_readers_of_both_groups_and_locks_both(database: sb.Database, locked: int) -> None:
    handles = two_with_replies(database)
    group = group_of(database, handles[1])
    with rolled_back(database) as reader:
        reader.receive(ORDERS_QUEUE, conversation_handle=handles[locked])
        moving = in_thread(database.move_conversation, handles[0], group)
        wait_until_blocked(database)
    moving.result(10)
    third, _ = two_with_replies(database)
    with rolled_back(database) as mover:
        mover.move_conversation(third, group)
        assert bodies(database.receive(ORDERS_QUEUE, top=1)) == [b"0"]  # the group of the fourth conversation
        assert database.receive(ORDERS_QUEUE, top=1) != []
        assert database.receive(ORDERS_QUEUE) != []
        assert database.receive(ORDERS_QUEUE) == []


def test_verbs_that_waited_for_a_move_find_the_new_group(database: sb.Database) -> None:
    first, second = two_with_replies(database)
    target = peer_handle(database, first)
    verbs: list[Callable[[], object]] = [
        lambda: database.send(target, REPLY, b"sent while it moved"),
        lambda: database.begin_conversation_timer(first, 100),
    ]
    with database.transaction() as mover:
        mover.move_conversation(first, group_of(database, second))
        waiting = [in_thread(verb) for verb in verbs]
        reader = in_thread(database.receive, ORDERS_QUEUE, conversation_handle=first)
        wait_until_blocked(database, 3)
    found = reader.result(10)
    for future in waiting:
        future.result(10)
    found += database.receive(ORDERS_QUEUE, conversation_handle=first)
    assert bodies(found) == [b"0", b"1", b"2", b"sent while it moved"]
    assert {message.conversation_group_id for message in found} == {group_of(database, second)}


def begin_with_waiting_end(database: sb.Database) -> tuple[UUID, UUID]:
    """Begin a conversation whose initiator has ended while its EndDialog waits. The target's END removes both sides."""
    initiator, target = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.end_conversation(initiator)
    assert state(database, initiator) == "DO"
    return initiator, target


def leave(verbs: sb.Database | sb.Transaction, handle: UUID, verb: str, elsewhere: UUID) -> None:
    """Make the conversation leave its group."""
    if verb == "MOVE":
        verbs.move_conversation(handle, elsewhere)
    else:
        verbs.end_conversation(handle, cleanup=verb == "END WITH CLEANUP")


@pytest.mark.parametrize("verb", ["END", "END WITH CLEANUP", "MOVE"])
@pytest.mark.parametrize("first", ["leaves", "is removed"])
def test_a_group_that_two_conversations_leave_concurrently_is_removed(
    database: sb.Database, verb: str, first: str
) -> None:
    """One conversation leaves by a verb. The other one is removed by the END of its peer, which locks another group."""
    ending, target = begin_with_waiting_end(database)
    group, elsewhere = group_of(database, ending), group_of(database, begin(database))
    leaving = begin(database, related_conversation_group=group)  # a conversation without messages
    with database.transaction() as transaction:
        if first == "leaves":
            leave(transaction, leaving, verb, elsewhere)
            other = in_thread(database.end_conversation, target)
        else:
            transaction.end_conversation(target)
            other = in_thread(leave, database, leaving, verb, elsewhere)
        eventually(lambda: other.done() or count_blocked_sessions(database))
    other.result(30)
    assert state(database, ending) is None
    text = "select from servicebroker.conversation_groups where conversation_group_id = %s"
    assert query(database, text, group) == []


@pytest.mark.slow
@pytest.mark.feature(79)
def test_moves_among_senders_and_readers(database: sb.Database, seeded_random: random.Random) -> None:
    """3 senders, 3 readers and 3 movers on 6 conversations in 6 groups: each message arrives once and in order."""
    pairs = [open_dialog(database) for _ in range(6)]
    anchors = [group_of(database, begin(database)) for _ in range(3)]
    received: dict[UUID, list[bytes | None]] = defaultdict(list)
    sent: dict[UUID, int] = defaultdict(int)
    sending, moving = threading.Event(), threading.Event()
    guards = {initiator: threading.Lock() for initiator, _ in pairs}

    def send(seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(100):
            initiator, target = choice.choice(pairs)
            with guards[initiator], database.transaction() as transaction:
                for _ in range(choice.randint(1, 3)):
                    transaction.send(target, REPLY, b"%d" % sent[initiator])
                    sent[initiator] += 1

    def read(seed: float) -> None:
        choice = random.Random(seed)
        while True:
            finished = sending.is_set() and moving.is_set()
            with database.transaction() as transaction:
                messages = transaction.receive(ORDERS_QUEUE, top=choice.choice([1, 3, None]))
                assert len({message.conversation_group_id for message in messages}) <= 1
                for message in messages:
                    received[message.conversation_handle].append(message.message_body)
            if finished and not messages:
                return

    def move(seed: float) -> None:
        choice = random.Random(seed)
        while not sending.is_set():
            with database.transaction() as transaction:
                transaction.move_conversation(choice.choice(pairs)[0], choice.choice(anchors))

    senders = [in_thread(partial(send, seeded_random.random())) for _ in range(3)]
    movers = [in_thread(partial(move, seeded_random.random())) for _ in range(3)]
    readers = [in_thread(partial(read, seeded_random.random())) for _ in range(3)]
    for future in senders:
        future.result(60)
    sending.set()
    for future in movers:
        future.result(60)
    moving.set()
    for future in readers:
        future.result(60)
    for initiator, _ in pairs:
        assert received[initiator] == [b"%d" % number for number in range(sent[initiator])]
    assert database.receive(ORDERS_QUEUE) == []


# ---------------------------------------------------------------- applications of groups


@pytest.mark.feature(80)
def test_state_is_kept_by_conversation_group(database: sb.Database, seeded_random: random.Random) -> None:
    """Each order adds up the messages of its conversations. The lock of the group also protects the order's row."""
    tolerate_rollbacks(database)
    table = f"sums_{database.database_id}"
    with database.instance.connection() as connection:
        connection.execute(  # type: ignore[call-overload]
            f"create table {table} (conversation_group_id uuid primary key, messages int, total int)"
        )
    orders: dict[UUID, int] = {}  # the sum of a group's messages
    for _ in range(4):
        handles = [begin(database) for _ in range(3)]
        database.send_batch(handles[0], ORDER, [b"1"])
        group = group_of(database, peer_handle(database, handles[0]))
        orders[group] = 1
        for handle in handles[1:]:
            database.send(handle, ORDER, b"2")
            database.move_conversation(peer_handle(database, handle), group)
            orders[group] += 2
        for handle in seeded_random.choices(handles, k=20):
            database.send(handle, ORDER, b"5")
            orders[group] += 5

    read = f"select messages, total from {table} where conversation_group_id = %s"
    write = (
        f"insert into {table} values (%s, %s, %s) on conflict (conversation_group_id) "
        "do update set messages = excluded.messages, total = excluded.total"
    )

    def work(seed: float) -> None:
        choice = random.Random(seed)
        while True:
            with suppress(Undo), database.transaction() as transaction:
                messages = transaction.receive(STOCK_QUEUE, top=2)
                for message in messages:
                    group = message.conversation_group_id
                    row = transaction.connection.execute(read, (group,)).fetchone()  # type: ignore[call-overload]
                    count, total = row or (0, 0)
                    values = (group, count + 1, total + int(message.message_body or b""))
                    transaction.connection.execute(write, values)  # type: ignore[call-overload]
                if choice.random() < 0.2:
                    raise Undo
                if not messages:
                    return

    for reader in [in_thread(work, seeded_random.random()) for _ in range(4)]:
        reader.result(60)
    assert {group: (count, total) for group, count, total in query(database, f"select * from {table}")} == {
        group: (23, total) for group, total in orders.items()
    }


@pytest.mark.feature(82)
def test_a_group_ranks_by_its_highest_conversation_that_has_messages(database: sb.Database) -> None:
    for name, level in (("High", 9), ("Middle", 5), ("Low", 2)):
        database.create_contract(name, {ORDER: "INITIATOR"})
        database.create_broker_priority(name, contract_name=name, priority_level=level)
    database.alter_service(STOCK, add_contracts=["High", "Middle", "Low"])
    high, middle, low = (database.begin_dialog(ORDERS, STOCK, contract=name) for name in ("High", "Middle", "Low"))

    names = {high: b"high", middle: b"middle", low: b"low"}

    def send(*handles: UUID) -> None:
        for handle in handles:
            database.send(handle, ORDER, names[handle])

    send(low, middle, high)
    database.move_conversation(peer_handle(database, low), group_of(database, peer_handle(database, high)))
    # the group of `high` and `low` ranks by `high`, and by `low` once `high` is received
    assert bodies(database.receive(STOCK_QUEUE, top=1)) == [b"high"]
    assert database.get_conversation_group(STOCK_QUEUE) == group_of(database, peer_handle(database, middle))
    assert bodies(database.receive(STOCK_QUEUE)) == [b"middle"]
    send(middle, high)  # the group ranks by `high` again, and returns all its messages by descending priority
    assert bodies(database.receive(STOCK_QUEUE)) == [b"high", b"low"]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"middle"]
    send(low, high)
    with database.transaction() as transaction:  # other readers do not see messages of a locked group
        assert bodies(transaction.receive(STOCK_QUEUE, top=1)) == [b"high"]
        send(middle)
        assert bodies(database.receive(STOCK_QUEUE)) == [b"middle"]
        assert database.receive(STOCK_QUEUE) == []
    assert bodies(database.receive(STOCK_QUEUE)) == [b"low"]
