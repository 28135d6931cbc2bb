"""Many readers and senders on one queue, and long conversation groups that are locked."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from functools import partial
from statistics import median
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.api.instance import Instance
from servicebroker.api.shared import polling_mode
from support import (
    ORDER,
    REPLY,
    STOCK_QUEUE,
    begin,
    bodies,
    eventually,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    queue_number,
    refused,
    run_together,
)

pytestmark = pytest.mark.slow


def pages(database: sb.Database) -> int:
    """Return the number of pages that a RECEIVE reads, in a transaction that is rolled back."""
    call = f"servicebroker.receive_{queue_number(database, STOCK_QUEUE)}(1, now())"
    text = f"explain (analyze, buffers, format json) select * from {call}"
    with database.instance.connection() as connection, connection.transaction(force_rollback=True):
        connection.execute(text.encode())
        row = connection.execute(text.encode()).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"])


def test_a_long_locked_group_does_not_slow_down_readers(fresh_database: sb.Database) -> None:
    """A locked group has 50,000 messages. Another reader reads no more pages for it, and finds the other messages."""
    database = fresh_database
    head, others = begin(database), [begin(database) for _ in range(20)]
    for _ in range(50):
        database.send_batch(head, ORDER, [b"x" * 50] * 1000)
    for handle in others:
        database.send(handle, ORDER, b"other")
    with database.transaction() as holder:
        assert len(holder.receive(STOCK_QUEUE, top=1)) == 1
        assert pages(database) < 300
        usual, behind = [], []
        for _ in range(20):
            start = time.perf_counter()
            assert bodies(database.receive(STOCK_QUEUE, top=1)) == [b"other"]
            behind.append(time.perf_counter() - start)
        assert database.receive(STOCK_QUEUE) == []
        holder.connection.rollback()
    for _ in range(20):
        start = time.perf_counter()
        assert bodies(database.receive(STOCK_QUEUE, top=1)) == [b"x" * 50]
        usual.append(time.perf_counter() - start)
    assert median(behind) < 3 * median(usual) + 0.002


@pytest.mark.feature(62, 76, 77)
def test_sixteen_senders_and_sixteen_readers_lose_no_message(
    database: sb.Database, seeded_random: random.Random, request: pytest.FixtureRequest
) -> None:
    """They send, receive and reply on one queue for some seconds, without a deadlock or a lost message."""
    dialogs = [open_dialog(database) for _ in range(16)]
    lasting: int = request.config.option.crowd_seconds
    deadline, patience = time.monotonic() + lasting, 112 + 2 * lasting
    done_event = threading.Event()
    taken: dict[UUID, list[int]] = {target: [] for _, target in dialogs}

    with Instance(database.instance.url, connections=40, upkeep=None) as instance:
        crowd = instance.database(database.name)

        def send(initiator: UUID, seed: float) -> None:
            choice = random.Random(seed)
            while time.monotonic() < deadline:
                others = [handle for handle, _ in choice.sample(dialogs, choice.choice([0, 0, 2]))]
                with crowd.transaction() as transaction:  # in one order, because otherwise the transactions deadlock
                    for handle in sorted({initiator, *others}):
                        transaction.send_batch(handle, ORDER, [b"x"] * choice.randint(1, 3))

        def read(seed: float) -> None:
            choice = random.Random(seed)
            while True:
                finished = done_event.is_set()
                with crowd.transaction() as transaction:
                    messages = transaction.receive(STOCK_QUEUE, top=choice.choice([1, 5, None]))
                    for message in messages:
                        taken[message.conversation_handle].append(message.message_sequence_number)
                    if messages and choice.random() < 0.2:
                        transaction.send(messages[0].conversation_handle, REPLY, b"reply")
                if finished and not messages:
                    return

        def send_all() -> None:
            run_together(
                *[partial(send, initiator, seeded_random.random()) for initiator, _ in dialogs], seconds=patience
            )
            done_event.set()

        def deadlocks() -> int:
            text = "select deadlocks from pg_stat_database where datname = current_database()"
            count: int = query(database, text)[0][0]
            return count

        before = deadlocks()
        run_together(send_all, *[partial(read, seeded_random.random()) for _ in range(16)], seconds=patience)
    assert deadlocks() == before
    sent = dict(query(database, "select conversation_handle, send_sequence from servicebroker.conversation_endpoints"))
    for initiator, target in dialogs:
        assert peer_handle(database, initiator) == target
        assert taken[target] == list(range(1, sent[initiator]))


@pytest.mark.usefixtures("without_polls")
@pytest.mark.feature(65)
def test_a_waiting_reader_misses_no_message(database: sb.Database, seeded_random: random.Random) -> None:
    """Eight readers wait without the poll once a second. One of them waits for one conversation only."""
    handles = [begin(database) for _ in range(6)]
    for handle in handles:
        database.send(handle, ORDER, b"open")
    targets = {handle: peer_handle(database, handle) for handle in handles}
    chosen = targets[handles[0]]
    taken: dict[UUID, list[int]] = {target: [] for target in targets.values()}
    stopping = threading.Event()

    def read(**options: UUID) -> None:
        while not stopping.is_set():
            for message in database.receive(STOCK_QUEUE, top=1, wait=60, **options):  # type: ignore[arg-type]
                taken[message.conversation_handle].append(message.message_sequence_number)

    def process() -> None:
        def keep(_: sb.Transaction, messages: list[sb.Message]) -> None:
            for message in messages:
                taken[message.conversation_handle].append(message.message_sequence_number)
            if stopping.is_set():
                raise StopIteration

        with contextlib.suppress(StopIteration):
            database.process(STOCK_QUEUE, keep, wait=60)

    readers = [in_thread(read) for _ in range(5)] + [in_thread(process) for _ in range(2)]
    readers.append(in_thread(read, conversation_handle=chosen))
    sent = dict.fromkeys(handles, 1)

    def all_arrived() -> bool:
        return all(len(taken[targets[handle]]) == count for handle, count in sent.items())

    for _ in range(60):
        some = seeded_random.sample(handles, seeded_random.choice([1, 1, 2, 6]))
        with database.transaction() as transaction:
            if len(some) > 2:
                transaction.send(some, ORDER, b"to all")
            else:
                for handle in sorted(some):
                    transaction.send_batch(handle, ORDER, [b"x"] * (len(some) if len(some) == 1 else 2))
        for handle in some:
            sent[handle] += 2 if len(some) == 2 else 1
        if seeded_random.random() < 0.5:
            eventually(all_arrived, 5)
    eventually(all_arrived, 5)
    assert all(numbers == list(range(len(numbers))) for numbers in map(sorted, taken.values()))
    stopping.set()
    database.alter_queue(STOCK_QUEUE, status=False)
    for reader in readers:
        with contextlib.suppress(sb.BrokerError):
            reader.result(5)


@pytest.mark.usefixtures("without_polls")
@pytest.mark.feature(65)
@pytest.mark.parametrize("multicast", [False, True])
def test_one_transaction_wakes_a_reader_for_each_group(database: sb.Database, multicast: bool) -> None:
    """Each of six waiting readers receives one message. A seventh keeps waiting, and is woken by the next message."""
    handles = [open_dialog(database)[0] for _ in range(6)]
    readers = [in_thread(database.receive, STOCK_QUEUE, top=1, wait=60) for _ in range(7)]
    queue, waiting = queue_number(database, STOCK_QUEUE), database.instance.notifier._waiting
    eventually(lambda: [reader.is_asleep for reader in waiting.get(queue, ())] == [True] * 7)
    with database.transaction() as transaction:
        if multicast:
            transaction.send(handles, ORDER, b"x")
        else:
            for handle in handles:
                transaction.send(handle, ORDER, b"x")
    eventually(lambda: sum(reader.done() for reader in readers) == 6)
    database.send(handles[0], ORDER, b"last")
    assert sorted(bodies([m for reader in readers for m in reader.result(5)])) == [b"last"] + [b"x"] * 6


@pytest.mark.usefixtures("without_polls")
@pytest.mark.feature(65)
def test_under_load_readers_poll(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """They unregister from notifications, miss no message, notice changes, and register again afterwards."""
    monkeypatch.setattr(polling_mode, "_BURST_GAP_S", 10.0)
    handles = [open_dialog(database)[0] for _ in range(3)]
    taken: list[int] = []

    def read() -> None:
        while True:
            taken.extend(m.message_sequence_number for m in database.receive(STOCK_QUEUE, top=1, wait=60))

    readers = [in_thread(read) for _ in range(4)]
    listed = "select count(*) from servicebroker.waiting_readers"
    sent: list[UUID] = []

    def all_taken() -> bool:
        return len(taken) == len(sent)

    for ends in (True, False):
        eventually(lambda: query(database, listed) == [(1,)])
        if not ends:
            monkeypatch.setattr(polling_mode, "_MAX_INTERVAL_S", math.inf)
            monkeypatch.setattr(polling_mode, "_LAST_INTERVAL_S", math.inf)
        while query(database, listed) == [(1,)]:  # many of these messages find a reader that is not waiting
            for handle in handles:
                database.send(handle, ORDER, b"x")
            sent += handles
        eventually(all_taken)
        for _ in range(20):
            with database.transaction() as transaction:
                for handle in handles:
                    transaction.send(handle, ORDER, b"x")
            sent += handles
        eventually(all_taken)
    assert query(database, listed) == [(0,)]
    database.alter_queue(STOCK_QUEUE, status=False)
    for reader in readers:
        with refused(9617, STOCK_QUEUE):
            reader.result(5)


@pytest.mark.feature(76)
def test_a_receive_is_empty_only_if_all_groups_are_locked(database: sb.Database) -> None:
    """More groups are locked, one after the other, than one search reads. Each search finds a free group."""
    handles = [begin(database) for _ in range(100)]
    for handle in handles:
        database.send_batch(handle, ORDER, [b"1", b"2"])
    groups = set()
    with database.transaction() as holder:
        for _ in handles:
            (message,) = holder.receive(STOCK_QUEUE, top=1, conversation_group_id=free_group(database, groups))
            groups.add(message.conversation_group_id)
            found = database.get_conversation_group(STOCK_QUEUE)
            assert (found is None) is (len(groups) == 100)
            assert found not in groups


def free_group(database: sb.Database, taken: set[UUID]) -> UUID:
    """Return a group with messages that is not in `taken`."""
    table = f"servicebroker.queue_{queue_number(database, STOCK_QUEUE)}"
    text = f"select conversation_group_id from {table} order by queuing_order"
    found: UUID = next(group for (group,) in query(database, text) if group not in taken)
    return found


def test_invalid_queue_ids_of_notifications_are_not_stored(database: sb.Database) -> None:
    notifier = database.instance.notifier
    reader = in_thread(database.receive, STOCK_QUEUE, wait=60)
    eventually(lambda: notifier.is_registered(queue_number(database, STOCK_QUEUE)))
    with database.instance.connection() as connection:
        connection.execute("select pg_notify('servicebroker', (900000 + n)::text) from generate_series(1, 1000) n")
        connection.execute("select pg_notify('servicebroker', %s)", (str(queue_number(database, STOCK_QUEUE)),))
    # notifications arrive in order, so the others were processed; other tests have used queues of the instance
    eventually(lambda: queue_number(database, STOCK_QUEUE) in notifier._polling)
    assert max(notifier._polling) < 900_000
    database.send(begin(database), ORDER, b"a teapot")
    assert bodies(reader.result()) == [b"a teapot"]
