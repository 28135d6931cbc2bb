"""Workers and `process` with many conversation groups in one transaction."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
import servicebroker.api.aio.notifier
import servicebroker.api.notifier
from servicebroker import api
from servicebroker.store.statement_counts import StatementCounts
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin_with,
    bodies,
    eventually,
    in_thread,
    peer_handle,
    query,
    queue_number,
    refused,
    state,
)

pytestmark = pytest.mark.both_apis


class RecordingWorker:
    """A worker that records each message with its transaction, answers it, and fails on the `failing` bodies."""

    def __init__(self, *failing: bytes, groups: int = 50, batch: int | None = None) -> None:
        self.failing = set(failing)
        self.transactions: dict[int, list[bytes | None]] = {}
        self.order: list[bytes | None] = []
        self.worker = sb.Worker(STOCK_QUEUE, groups=groups, batch=batch, poison=self.judge)
        self.worker.on(ORDER)(self.take if batch is None else self.take_many)
        self.verdict: sb.Verdict = sb.SetAside()
        self.failures: list[int] = []

    def judge(self, failure: sb.Failure) -> sb.Verdict:
        self.failures.append(failure.count)
        return sb.Retry() if failure.count < 3 else self.verdict

    def take(self, tx: sb.Transaction, message: sb.Message) -> None:
        self.take_many(tx, [message])

    def take_many(self, tx: sb.Transaction, messages: list[sb.Message]) -> None:
        ((transaction,),) = tx.connection.execute("select pg_current_xact_id()::text::bigint").fetchall()
        for message in messages:
            self.order.append(message.message_body)
            tx.send(message.conversation_handle, REPLY, message.message_body)
            if message.message_body in self.failing:
                raise ValueError("no such item")
        self.transactions.setdefault(transaction, []).extend(bodies(messages))


def receive_answers(database: sb.Database) -> list[bytes]:
    answers: list[bytes] = []
    while messages := database.receive(ORDERS_QUEUE, groups=100):
        answers += [message.message_body or b"" for message in messages if not message.is_end_dialog]
    return answers


def is_queue_empty(database: sb.Database) -> bool:
    ((left,),) = query(database, f"select count(*) from servicebroker.queue_{queue_number(database, STOCK_QUEUE)}")
    return bool(left == 0)


@pytest.mark.parametrize(("groups", "woken"), [(2, 1), (3, 1), (4, 0)])
def test_a_reader_wakes_another_if_it_may_have_left_groups(
    database: sb.Database, monkeypatch: pytest.MonkeyPatch, groups: int, woken: int
) -> None:
    calls: list[int] = []

    def record_calls(wake: Callable[..., Any]) -> Callable[..., Any]:
        def wake_and_record(notifier: Any, queue_id: int) -> Any:
            calls.append(queue_id)
            return wake(notifier, queue_id)

        return wake_and_record

    for module in (api.notifier, api.aio.notifier):
        monkeypatch.setattr(module.Notifier, "wake_another", record_calls(module.Notifier.wake_another))
    for number in range(3):
        begin_with(database, b"%d" % number)
    handled = RecordingWorker(groups=groups)
    with database.working(handled.worker):
        eventually(lambda: len(handled.order) == 3)
    assert len(calls) == woken


def test_groups_share_a_transaction_and_each_has_a_call(database: sb.Database) -> None:
    for number in range(7):
        begin_with(database, b"%d" % number)
    handled = RecordingWorker(groups=3)
    with database.working(handled.worker):
        eventually(lambda: is_queue_empty(database))
    assert list(handled.transactions.values()) == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"]]
    assert sorted(receive_answers(database)) == [b"%d" % number for number in range(7)]


@pytest.mark.parametrize(
    "verdict", [sb.SetAside(), sb.Ignore(), sb.EndWithError(77, "no"), sb.Reply(REPLY, b"sorry")], ids=repr
)
def test_a_failure_is_rolled_back_for_its_group_only(database: sb.Database, verdict: sb.Verdict) -> None:
    handles = [begin_with(database, b"%d" % number) for number in range(5)]
    handled = RecordingWorker(b"2")
    handled.verdict = verdict
    with database.working(handled.worker):
        eventually(lambda: is_queue_empty(database))
    assert handled.transactions.popitem()[1] == [b"0", b"1", b"3", b"4"]
    assert handled.failures == [1, 2, 3]
    assert [message.failures for message in database.set_aside_messages()] == [3] * isinstance(verdict, sb.SetAside)
    expected = [b"0", b"1", b"3", b"4", *[b"sorry"] * isinstance(verdict, sb.Reply)]
    received = [message for handle in handles for message in database.receive(ORDERS_QUEUE, conversation_handle=handle)]
    assert sorted(body for body in bodies(received) if body and b"<" not in body) == expected
    assert sum(message.is_error for message in received) == isinstance(verdict, sb.EndWithError)
    assert query(database, "select count(*) from servicebroker.failed_messages") == [(0,)]


def test_a_group_that_failed_keeps_its_order(database: sb.Database) -> None:
    begin_with(database, b"a0", b"a1", b"a2")
    begin_with(database, b"b0", b"b1", b"b2")
    handled = RecordingWorker(b"a1")
    with database.working(handled.worker):
        eventually(lambda: is_queue_empty(database))
    assert [body for body in dict.fromkeys(handled.order) if body and body.startswith(b"a")] == [b"a0", b"a1", b"a2"]
    assert sorted(receive_answers(database)) == [b"a0", b"a2", b"b0", b"b1", b"b2"]
    assert [message.message_body for message in database.set_aside_messages()] == [b"a1"]


def test_each_message_of_a_failing_batch_is_tried_alone(database: sb.Database) -> None:
    begin_with(database, b"a0", b"a1", b"a2")
    begin_with(database, b"b0", b"b1")
    handled = RecordingWorker(b"a1", batch=10)
    with database.working(handled.worker):
        eventually(lambda: is_queue_empty(database))
    assert sorted(receive_answers(database)) == [b"a0", b"a2", b"b0", b"b1"]
    assert [message.message_body for message in database.set_aside_messages()] == [b"a1"]
    assert [b"b0", b"b1"] in handled.transactions.values()


def test_retention_and_a_shared_body_survive_a_failure(database: sb.Database) -> None:
    database.alter_queue(STOCK_QUEUE, retention=True)
    handles = [begin_with(database, b"%d" % number) for number in range(3)]
    assert len(database.receive(STOCK_QUEUE, groups=3)) == 3
    number = queue_number(database, STOCK_QUEUE)
    retained = f"select count(*) from servicebroker.retained_{number}"
    database.send(handles, ORDER, b"x" * 20_000)
    handled = RecordingWorker(b"x" * 20_000)
    handled.verdict = sb.Ignore()
    with database.working(handled.worker):
        eventually(lambda: is_queue_empty(database))
    assert handled.failures.count(3) == 3
    assert query(database, retained) == [(6,)]


def test_a_deadlock_undoes_all_and_groups_are_taken_singly(database: sb.Database) -> None:
    for number in range(4):
        begin_with(database, b"%d" % number)
    handled = RecordingWorker()
    asked: list[int] = []
    plain = handled.take_many

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        plain(tx, messages)
        asked.append(len(messages))
        if len(asked) == 3:
            tx.connection.execute("do $$ begin raise exception 'of a test' using errcode = '40P01'; end $$")

    handled.take_many = take  # type: ignore[method-assign]
    with database.working(handled.worker):
        eventually(lambda: is_queue_empty(database))
    assert handled.failures == []
    assert [len(own) for own in list(handled.transactions.values())[1:]] == [1, 1, 1, 1]
    assert sorted(receive_answers(database)) == [b"0", b"1", b"2", b"3"]


def test_a_procedure_that_ends_its_transaction_loses_nothing(database: sb.Database) -> None:
    for number in range(4):
        begin_with(database, b"%d" % number)
    handled = RecordingWorker()
    plain = handled.take_many
    commands = iter(["commit", "rollback"])

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        plain(tx, messages)
        if messages[0].message_body == b"1" and (command := next(commands, None)):
            tx.connection.execute(command)

    handled.take_many = take  # type: ignore[method-assign]
    with database.working(handled.worker):
        eventually(lambda: is_queue_empty(database))
    assert sorted(receive_answers(database)) == [b"0", b"1", b"2", b"3"]


def test_a_handler_that_receives_from_the_next_group_has_its_messages(database: sb.Database) -> None:
    first, second = begin_with(database, b"0"), begin_with(database, b"1")
    seen: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE, groups=50)

    @worker.on(ORDER)
    def take(tx: sb.Transaction, message: sb.Message) -> None:
        seen.append(message.message_body)
        if message.conversation_handle == peer_handle(database, first):
            seen.extend(bodies(tx.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, second))))

    with database.working(worker):
        eventually(lambda: is_queue_empty(database))
    assert seen == [b"0", b"1"]


def test_process_commits_the_groups_before_a_failure(database: sb.Database) -> None:
    for number in range(4):
        begin_with(database, b"%d" % number)
    handled = RecordingWorker(b"2")
    with pytest.raises(ValueError, match="no such item"):
        database.process(STOCK_QUEUE, handled.take_many, groups=50)
    assert sorted(receive_answers(database)) == [b"0", b"1"]
    for _ in range(5):  # poison detection counts each failure: the message is the first of its queue
        with pytest.raises(ValueError, match="no such item"):
            database.process(STOCK_QUEUE, handled.take_many, groups=50)
    with refused(9617):
        database.process(STOCK_QUEUE, handled.take_many, groups=50)
    database.alter_queue(STOCK_QUEUE, status=True)
    assert database.process(STOCK_QUEUE, RecordingWorker().take_many, groups=50) == 2
    assert sorted(receive_answers(database)) == [b"2", b"3"]


def test_process_with_a_policy(database: sb.Database) -> None:
    for number in range(5):
        begin_with(database, b"%d" % number)
    handled = RecordingWorker(b"2")
    assert database.process(STOCK_QUEUE, handled.take_many, groups=50, poison=handled.judge) >= 5
    assert sorted(receive_answers(database)) == [b"0", b"1", b"3", b"4"]
    assert len(database.set_aside_messages()) == 1


def test_a_conversation_begun_by_a_handler_belongs_to_its_group(database: sb.Database) -> None:
    """BEGIN DIALOG may be sent with the next statement, which belongs to the next group."""
    for number in range(4):
        begin_with(database, b"%d" % number)
    worker = sb.Worker(STOCK_QUEUE, groups=50, poison=lambda failure: sb.SetAside())

    @worker.on(ORDER)
    def take(tx: sb.Transaction, message: sb.Message) -> None:
        begun[message.message_body] = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        if message.message_body in (b"1", b"3"):
            raise ValueError

    begun: dict[bytes | None, UUID] = {}
    with database.working(worker):
        eventually(lambda: len(database.set_aside_messages()) == 2)
    assert {body: state(database, handle) for body, handle in begun.items()} == {
        b"0": "SO", b"1": None, b"2": "SO", b"3": None,
    }  # fmt: skip


def test_process_leaves_no_transaction_open(database: sb.Database, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        begin_with(database, b"%d" % number)
    assert database.process(STOCK_QUEUE, _do_nothing, groups=50) == 3
    assert database.process(STOCK_QUEUE, _do_nothing, groups=50) == 0
    assert "INTRANS" not in caplog.text


def test_another_reader_has_other_groups_meanwhile(database: sb.Database) -> None:
    for number in range(4):
        begin_with(database, b"%d" % number)
    worker = sb.Worker(STOCK_QUEUE, groups=2)
    received: list[bytes | None] = []
    first, go_on = threading.Event(), threading.Event()

    @worker.on()
    def take(tx: sb.Transaction, message: sb.Message) -> None:
        received.append(message.message_body)
        first.set()
        assert go_on.wait(30)

    with database.working(worker):
        assert first.wait(30)
        others = in_thread(lambda: bodies(database.receive(STOCK_QUEUE, groups=50))).result(30)
        go_on.set()
        eventually(lambda: is_queue_empty(database))
    assert (received, others) == ([b"0", b"1"], [b"2", b"3"])


def test_statements_of_a_group(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One RECEIVE serves all groups, and one statement takes the messages of each group."""
    for number in range(40):
        begin_with(database, b"%d" % number)
    count: Counter[str] = Counter()
    with monkeypatch.context() as patch:
        patch.setattr(StatementCounts, "add", lambda self, name, seconds: count.update([name]))
        assert database.process(STOCK_QUEUE, _do_nothing, groups=50) == 40
    assert count["receive.take"] == 40
    assert count["conversation.receive.groups"] == 2
    assert count.total() <= 40 + 6


def _do_nothing(tx: sb.Transaction, messages: list[sb.Message]) -> None:
    pass


def test_a_backend_stays_within_its_subtransactions(database: sb.Database) -> None:
    """PostgreSQL keeps 64 subtransactions of a backend in shared memory; more slow down every session."""
    for number in range(60):
        begin_with(database, b"%d" % number)
    seen: list[tuple[int, bool]] = []

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        tx.send(messages[0].conversation_handle, REPLY, b"1")
        seen.extend(
            tx.connection.execute(
                "select subxact_count, subxact_overflowed from pg_stat_get_backend_subxact((select backendid from "
                "pg_stat_get_backend_idset() backendid where pg_stat_get_backend_pid(backendid) = pg_backend_pid()))"
            ).fetchall()
        )

    ((version,),) = query(database, "select current_setting('server_version_num')::int")
    if version < 160_000:
        pytest.skip("PostgreSQL before 16 does not say how many subtransactions a backend has")
    assert database.process(STOCK_QUEUE, take, groups=60) == 60
    assert not any(overflowed for _, overflowed in seen)
    assert max(count for count, _ in seen) <= 64


def test_a_worker_refuses_invalid_groups() -> None:
    for groups in (0, 61, True, "2"):
        with refused(402, "groups"):
            sb.Worker(STOCK_QUEUE, groups=groups)  # type: ignore[arg-type]


def test_process_refuses(database: sb.Database) -> None:
    with refused(402, "groups"):
        database.process(STOCK_QUEUE, _do_nothing, groups=61)
