"""Workers: handlers by message type, and readers that no exception ends."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.engine.diagnosis.worker_limits import WorkerLimits, find_worker_limits
from servicebroker.store import locks
from servicebroker.store.running import run
from servicebroker.store.statement_counts import StatementCounts
from support import (
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    begin_with,
    bodies,
    eventually,
    open_dialog,
    peer_handle,
    query,
    queue_number,
    refused,
    state,
)

pytestmark = pytest.mark.both_apis


def retry_at_once(failure: sb.Failure) -> sb.Verdict:
    return sb.Retry() if failure.count < 3 else sb.SetAside()


def echo(poison: sb.Policy = retry_at_once) -> sb.Worker:
    """Return a worker that answers each order with its body and fails on bad ones."""
    worker = sb.Worker(STOCK_QUEUE, poison=poison)

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        if message.message_body == b"bad":
            raise ValueError("no such item")
        if message.message_body == b"exit":
            raise SystemExit(3)
        tx.send(message.conversation_handle, REPLY, message.message_body)

    return worker


def replies(database: sb.Database, handle: UUID) -> list[bytes | None]:
    return bodies(database.receive(ORDERS_QUEUE, conversation_handle=handle, wait=10))


def test_a_handler_has_the_messages_of_its_type_and_an_end_is_answered(database: sb.Database) -> None:
    handle = begin(database)
    with database.working(echo()):
        database.send(handle, ORDER, b"1")
        assert replies(database, handle) == [b"1"]
        target = peer_handle(database, handle)
        database.end_conversation(handle)
        eventually(lambda: state(database, target) == "CD")


def test_an_error_is_answered_and_told(database: sb.Database, caplog: pytest.LogCaptureFixture) -> None:
    initiator, target = open_dialog(database)
    with database.working(echo()):
        database.end_conversation(initiator, error=(77, "out of teapots"))
        eventually(lambda: state(database, target) is None or state(database, target) == "CD")
    assert f"Conversation {target} has failed with 77: out of teapots" in caplog.text


def test_own_handlers_of_end_and_error_and_timer_come_first(database: sb.Database) -> None:
    bodies: list[str] = []
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(sb.END_DIALOG, sb.ERROR, sb.DIALOG_TIMER)
    def service(tx: sb.Transaction, message: sb.Message) -> None:
        bodies.append(message.message_type_name)
        if message.is_end_dialog:
            tx.end_conversation(message.conversation_handle)  # itself, which the worker takes as it is

    worker.on(ORDER)(lambda tx, message: None)
    ended, failed = open_dialog(database), open_dialog(database)
    database.begin_conversation_timer(ended[1], 0)
    with database.working(worker):
        eventually(lambda: bodies == [sb.DIALOG_TIMER])
        database.end_conversation(ended[0])
        database.end_conversation(failed[0], error=(5, "no"))
        eventually(lambda: sorted(bodies) == sorted([sb.DIALOG_TIMER, sb.END_DIALOG, sb.ERROR]))
    assert {state(database, ended[1]), state(database, failed[1])} <= {"CD", None}  # before the block has ended


def test_one_exception_ends_no_reader(database: sb.Database, caplog: pytest.LogCaptureFixture) -> None:
    """Neither four exceptions in four readers nor sys.exit end a reader; each fails only its own message."""
    with database.working(echo(), concurrency=4):
        for body in (b"bad", b"bad", b"bad", b"exit"):
            begin_with(database, body)
        eventually(lambda: len(database.set_aside_messages()) == 4)
        handles = [begin_with(database, b"%d" % number) for number in range(8)]
        assert [replies(database, handle) for handle in handles] == [[b"%d" % number] for number in range(8)]
    letters = database.set_aside_messages()
    assert sorted(message.error for message in letters) == [
        "InstanceError: The handler has called sys.exit.",
        *["ValueError: no such item"] * 3,
    ]
    assert all(message.failures == 3 for message in letters)
    assert "has failed 1 time; it is tried again at once. ValueError: no such item" in caplog.text
    assert "has failed 3 times; it becomes a dead letter" in caplog.text


def test_a_failed_message_waits_and_others_go_on(database: sb.Database) -> None:
    slow = begin_with(database, b"bad", b"behind it")
    with database.working(echo(lambda failure: sb.Retry(60) if failure.count == 1 else sb.SetAside())):
        assert replies(database, begin_with(database, b"other")) == [b"other"]
        assert database.receive(ORDERS_QUEUE, conversation_handle=slow) == []


def test_a_message_that_cannot_be_answered_is_set_aside_at_once(database: sb.Database) -> None:
    """The sender has ended the conversation after its message: a retry could not answer, either."""
    handle = begin_with(database, b"1")
    target = peer_handle(database, handle)
    database.end_conversation(handle)
    worker = echo(sb.Worker("any").poison)  # as it is without one
    with database.working(worker):
        eventually(lambda: [message.failures for message in database.set_aside_messages()] == [1])
        eventually(lambda: state(database, target) == "CD")  # its END was answered all the same


def test_a_type_without_a_handler_becomes_a_dead_letter(database: sb.Database) -> None:
    worker = sb.Worker(STOCK_QUEUE, poison=retry_at_once)
    worker.on(ORDER)(lambda tx, message: None)
    database.send(begin(database), MARK)  # either side may send it
    with database.working(worker):
        eventually(lambda: len(database.set_aside_messages()) == 1)
    assert f"no handler for messages of type '{MARK}'" in database.set_aside_messages()[0].error


def test_batches_keep_the_order_and_one_bad_message_costs_itself(database: sb.Database) -> None:
    worker = sb.Worker(STOCK_QUEUE, batch=3, poison=retry_at_once)
    received: list[list[bytes | None]] = []

    @worker.on()
    def orders(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        if b"bad" in bodies(messages):
            raise ValueError
        received.append(bodies(messages))

    handle = begin_with(database, b"1", b"2", b"3", b"4", b"bad", b"5")
    target = peer_handle(database, handle)
    database.end_conversation(handle)
    with database.working(worker):
        eventually(lambda: state(database, target) == "CD")
    assert received[0] == [b"1", b"2", b"3"]
    assert [body for run in received for body in run] == [b"1", b"2", b"3", b"4", b"5"]


def test_a_queue_that_is_off_ends_no_worker(
    database: sb.Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sb.api.working, sb.api.aio.working):
        monkeypatch.setattr(module, "_MIN_PAUSE_S", 0.05)
        monkeypatch.setattr(module, "_MAX_PAUSE_S", 0.1)
    handle = begin(database)
    with database.working(echo(), concurrency=2):
        database.alter_queue(STOCK_QUEUE, status=False)
        eventually(lambda: "continues in 0.1 seconds: Msg 9617" in caplog.text)
        database.alter_queue(STOCK_QUEUE, status=True)
        database.send(handle, ORDER, b"1")
        assert replies(database, handle) == [b"1"]


def test_the_end_of_the_block_waits_for_handlers_in_progress(database: sb.Database) -> None:
    begun_event, go_on = threading.Event(), threading.Event()
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        begun_event.set()
        assert go_on.wait(20)
        tx.send(message.conversation_handle, REPLY, b"done")

    first = begin_with(database, b"1")
    with database.working(worker):
        assert begun_event.wait(10)
        begin_with(database, b"2")
        threading.Timer(0.3, go_on.set).start()
    assert replies(database, first) == [b"done"]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]


def test_an_idle_worker_ends_soon(database: sb.Database) -> None:
    with database.working(echo(), concurrency=4):
        time.sleep(0.1)
        begins = time.monotonic()
    assert time.monotonic() - begins < 4


def test_an_exception_of_the_block_ends_the_workers_too(database: sb.Database) -> None:
    with pytest.raises(ZeroDivisionError), database.working(echo()):
        raise ZeroDivisionError
    begin_with(database, b"1")
    assert bodies(database.receive(STOCK_QUEUE, wait=0.2)) == [b"1"]


def test_working_refuses_a_missing_queue_and_a_wrong_concurrency(database: sb.Database) -> None:
    worker = sb.Worker("Nowhere")
    worker.on()(lambda tx, message: None)
    with refused(15151, "Nowhere"), database.working(worker):
        raise AssertionError
    with refused(402, "concurrency"), database.working(echo(), concurrency=0):
        raise AssertionError


def test_a_wrong_body_is_poison_and_right_ones_are_objects(database: sb.Database) -> None:
    message_type = "//test/Sum"
    database.create_message_type(message_type)
    database.create_contract("//test/Sums", {message_type: "ANY"})
    database.alter_service(STOCK, add_contracts=["//test/Sums"])
    worker = sb.Worker(STOCK_QUEUE)
    worker.on()(lambda tx, message: None)

    @worker.on(message_type)
    def add(tx: sb.Transaction, message: sb.Message) -> None:
        tx.send(message.conversation_handle, message_type, {"sum": sum(message.body["of"])})

    sb.codec(message_type, "json")
    wrong, right = (database.begin_dialog(ORDERS, STOCK, contract="//test/Sums") for _ in range(2))
    with database.working(worker):
        database.send(wrong, message_type, b"{]")
        database.send(right, message_type, {"of": [1, 2, 3]})
        (message,) = database.receive(ORDERS_QUEUE, conversation_handle=right, wait=10)
        eventually(database.set_aside_messages)
    assert message.body == {"sum": 6}
    assert message.message_body == b'{"sum":6}'
    (dead_letter,) = database.set_aside_messages()
    assert dead_letter.failures == 1
    assert dead_letter.error.startswith(
        "BodyError: The body of a message of type '//test/Sum' cannot be read: DecodeError: JSON is malformed"
    )


@dataclass
class Sum:
    of: list[int]


def test_middleware_surrounds_typed_handlers(database: sb.Database) -> None:
    calls: list[str] = []
    worker = sb.Worker(STOCK_QUEUE, poison=retry_at_once)

    @worker.middleware
    def around(tx: sb.Transaction, message: sb.Message) -> Iterator[None]:
        try:
            yield
        except ZeroDivisionError as problem:
            calls.append(type(problem).__name__)
            raise
        tx.send(message.conversation_handle, REPLY, b"and this")

    @worker.on(ORDER)
    def add(tx: sb.Transaction, order: Sum) -> None:
        calls.append(f"{sum(order.of)}")
        if not order.of:
            raise ZeroDivisionError

    worker.on()(lambda tx, message: None)
    handle = begin_with(database, b'{"of":[1,2]}', b"{]", b'{"of":[]}')
    with database.working(worker):
        eventually(lambda: len(database.set_aside_messages()) == 2)
    assert calls == ["3"] + ["0", "ZeroDivisionError"] * 3
    assert [message.failures for message in database.set_aside_messages()] == [3, 3]
    assert bodies(database.receive(ORDERS_QUEUE, conversation_handle=handle)) == [b"and this"]


def test_a_rate_is_kept_by_all_readers_together(database: sb.Database) -> None:
    times: list[float] = []
    worker = sb.Worker(STOCK_QUEUE, rate="20/s")
    worker.on()(lambda tx, message: times.append(time.monotonic()))
    for _ in range(7):
        begin_with(database, b"1")
    with database.working(worker, concurrency=3):
        eventually(lambda: len(times) == 7)
        begin_with(database, b"1")
        eventually(lambda: len(times) == 8)
    assert max(times) - min(times) > 5.5 / 20


def test_a_worker_that_pauses_ends_soon(database: sb.Database) -> None:
    done_event = threading.Event()
    worker = sb.Worker(STOCK_QUEUE, rate="1/h")
    worker.on()(lambda tx, message: done_event.set())
    begin_with(database, b"1", b"2")
    with database.working(worker, concurrency=2):
        assert done_event.wait(60)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert len(database.receive(STOCK_QUEUE)) == 1  # the first is committed, the second still in the queue


def count_slots(database: sb.Database) -> int:
    text = "select count(*) from pg_locks where locktype = 'advisory' and classid = %s"
    return int(query(database, text, locks.QUEUE_SLOT)[0][0])


def limits_of(database: sb.Database) -> WorkerLimits:
    with psycopg.connect(database.instance.url, autocommit=True) as connection:  # steps need a blocking connection
        return run(connection, find_worker_limits())[queue_number(database, STOCK_QUEUE)]


def test_a_global_concurrency_holds_for_all_workers_of_a_queue(database: sb.Database) -> None:
    """The server takes two instances for two processes. The slot of a dead session is free again."""
    at_work, most = Counter[str](), Counter[str]()
    lock = threading.Lock()
    worker = sb.Worker(STOCK_QUEUE, global_concurrency=2)

    @worker.on()
    def handler(tx: sb.Transaction, message: sb.Message) -> None:
        with lock:
            at_work["now"] += 1
            most["now"] = max(most["now"], at_work["now"])
        time.sleep(0.05)
        with lock:
            at_work["now"] -= 1
            most["done"] += 1

    with sb.open(database.instance.url, upkeep=None) as other_instance, other_instance.connection() as lost:
        lost.execute("select servicebroker.take_slot(%s, 1)", (queue_number(database, STOCK_QUEUE),))
        for _ in range(12):
            begin_with(database, b"1")
        with (
            database.working(worker, concurrency=3),
            other_instance.database(database.name).working(worker, concurrency=3),
        ):
            eventually(lambda: most["done"] >= 2)
            assert most["now"] == 1
            assert limits_of(database).slots == 2
            eventually(lambda: limits_of(database).are_slots_taken)
            assert lost.info.backend_pid in limits_of(database).sessions
            lost.close()
            eventually(lambda: most["done"] == 12)
            begin_with(database, b"1")
            eventually(lambda: most["done"] == 13)
    assert most["now"] == 2
    eventually(lambda: not count_slots(database))
    assert (limits_of(database).slots, limits_of(database).sessions) == (2, [])


def test_a_global_rate_is_kept_by_all_workers_of_a_queue(database: sb.Database) -> None:
    """A retry counts like a message."""
    times: list[float] = []
    worker = sb.Worker(STOCK_QUEUE, global_rate="20/s", global_concurrency=4, poison=lambda failure: sb.Retry())

    tried = set[UUID]()

    @worker.on()
    def handler(tx: sb.Transaction, message: sb.Message) -> None:
        times.append(time.monotonic())
        if message.conversation_handle not in tried:
            tried.add(message.conversation_handle)
            raise ValueError("again")

    for _ in range(4):
        begin_with(database, b"1")
    began = time.monotonic()
    with (
        sb.open(database.instance.url, upkeep=None) as other_instance,
        database.working(worker, concurrency=2),
        other_instance.database(database.name).working(worker, concurrency=2),
    ):
        eventually(lambda: len(times) == 8)
    assert max(times) - began >= 7 / 20 - 0.05  # a reader that is late by 50 ms loses nothing
    assert limits_of(database).rate == "20/s"


def test_an_idle_worker_uses_up_no_place(database: sb.Database) -> None:
    done_event = threading.Event()
    worker = sb.Worker(STOCK_QUEUE, global_rate="1/h")
    worker.on()(lambda tx, message: done_event.set())
    with database.working(worker, concurrency=2):
        time.sleep(0.3)
        begin_with(database, b"1", b"2")
        assert done_event.wait(60)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    assert len(database.receive(STOCK_QUEUE)) == 1


def test_a_worker_may_have_a_concurrency_of_its_own(database: sb.Database) -> None:
    at_work, most = Counter[str](), Counter[str]()

    def worker_of(queue: str, concurrency: int | None) -> sb.Worker:
        worker = sb.Worker(queue, concurrency=concurrency)

        @worker.on()
        def handler(tx: sb.Transaction, message: sb.Message) -> None:
            at_work[queue] += 1
            most[queue] = max(most[queue], at_work[queue])
            time.sleep(0.1)
            at_work[queue] -= 1
            most["all"] += 1

        return worker

    for _ in range(3):
        begin_with(database, b"1")
        database.send(open_dialog(database)[1], REPLY, b"1")
    with database.working(worker_of(STOCK_QUEUE, 1), worker_of(ORDERS_QUEUE, None), concurrency=3):
        eventually(lambda: most["all"] == 6)
    assert most[STOCK_QUEUE] == 1
    assert most[ORDERS_QUEUE] > 1


def test_an_idle_worker_stays_listed(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker polls once a second, and stays registered as a waiting reader."""
    count: Counter[str] = Counter()
    monkeypatch.setattr(StatementCounts, "add", lambda self, name, seconds: count.update([name]))
    number = queue_number(database, STOCK_QUEUE)
    with database.working(echo()):
        eventually(lambda: database.instance.notifier.count_asleep(number))
        before = count.copy()
        time.sleep(2.5)
        spent = count - before
    assert 1 <= spent["conversation.receive"] <= 3
    assert not any("register_reader" in name for name in spent)
    assert count["owner_verbs.register_reader.insert_readers"] == 1
    assert count["owner_verbs.register_reader.delete_readers"] == 1


def test_a_worker_needs_handlers_for_types_of_initiators(database: sb.Database) -> None:
    worker = sb.Worker(STOCK_QUEUE)
    worker.on("//test/Ordr")(lambda tx, message: None)
    with (
        refused(402, f"without a handler of '{ORDER}'", CONTRACT, STOCK, "Did you mean it by", "//test/Ordr"),
        database.working(worker),
    ):
        raise AssertionError
    replies = sb.Worker(ORDERS_QUEUE)  # no contract makes its service a target
    replies.on(REPLY)(lambda tx, message: None)
    worker.on()(lambda tx, message: None)
    with database.working(worker, echo(), replies):
        begin_with(database, b"1")
