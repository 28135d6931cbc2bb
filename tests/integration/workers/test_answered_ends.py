"""Workers that answer EndDialog messages without a handler, for many conversations at a time."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.engine.conversation import end
from servicebroker.store.statement_counts import StatementCounts
from servicebroker.store.statements import Statement, Steps
from support import ORDER, STOCK_QUEUE, begin_with, eventually, peer_handle, query, queue_number, refused, state

pytestmark = pytest.mark.both_apis


class Reader:
    """A worker with many groups per transaction that records the messages of its handlers."""

    def __init__(self, *, answers_ends: bool = True) -> None:
        self.seen: list[str | bytes | None] = []
        self.worker = sb.Worker(STOCK_QUEUE, groups=50, answers_ends=answers_ends)
        self.worker.on()(self.take)

    def take(self, tx: sb.Transaction, message: sb.Message) -> None:
        self.seen.append(message.message_body if message.message_type_name == ORDER else message.message_type_name)


def create_ended(database: sb.Database, count: int) -> list[UUID]:
    """Create conversations whose only message is an EndDialog. Return the handles of their targets."""
    handles = [begin_with(database, b"%d" % number) for number in range(count)]
    targets = [peer_handle(database, handle) for handle in handles]
    assert len(database.receive(STOCK_QUEUE, groups=count)) == count
    for handle in handles:
        database.end_conversation(handle)
    return targets


def finish(database: sb.Database, reader: Reader) -> Counter[str]:
    """Let the worker empty the queue. Return how often each statement was executed."""
    count: Counter[str] = Counter()
    message_count = f"select count(*) from servicebroker.queue_{queue_number(database, STOCK_QUEUE)}"
    with pytest.MonkeyPatch.context() as patch, database.working(reader.worker):
        patch.setattr(StatementCounts, "add", lambda self, name, seconds: count.update([name]))
        eventually(lambda: query(database, message_count) == [(0,)])
    return count


def rows_of(database: sb.Database, handles: list[UUID]) -> list[tuple[object, ...]]:
    """Return the rows of the targets' endpoints without names and times."""
    return query(
        database,
        "select state, is_initiator, send_sequence, receive_sequence, dialog_timer, far_handle, far_queue_id, "
        "security_timestamp is null from servicebroker.conversation_endpoints where conversation_handle = any (%s)",
        handles,
    )


def test_ends_answered_together_leave_the_same_rows_as_single_ends(database: sb.Database) -> None:
    singly = create_ended(database, 3)
    finish(database, Reader(answers_ends=False))
    together = create_ended(database, 20)
    reader = Reader()
    count = finish(database, reader)
    assert reader.seen == []
    assert [state(database, target) for target in together] == ["CD"] * 20
    assert set(rows_of(database, together)) == set(rows_of(database, singly))
    assert count["end.answer_ends.find"] == 1
    assert count["receive.take"] == 0
    assert count.total() < 40


def test_the_ends_of_initiators_remove_them(database: sb.Database) -> None:
    handles = [begin_with(database, b"1") for _ in range(3)]
    for message in database.receive(STOCK_QUEUE, groups=3):
        database.end_conversation(message.conversation_handle)
    worker = sb.Worker("OrdersQueue", groups=50, answers_ends=True)
    worker.on("//test/Reply")(_do_nothing)
    with database.working(worker):
        eventually(lambda: {state(database, handle) for handle in handles} == {None})


def _do_nothing(tx: sb.Transaction, message: sb.Message) -> None:
    pass


def test_messages_before_an_end_come_first(database: sb.Database) -> None:
    handle = begin_with(database, b"1", b"2")
    target = peer_handle(database, handle)
    database.end_conversation(handle)
    reader = Reader()
    finish(database, reader)
    assert reader.seen == [b"1", b"2"]
    assert state(database, target) == "CD"


def test_an_error_reaches_its_handler(database: sb.Database) -> None:
    targets = create_ended(database, 2)
    handle = begin_with(database, b"1")
    assert len(database.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, handle))) == 1
    database.end_conversation(handle, error=(77, "no"))
    reader = Reader()
    reader.worker.on(sb.ERROR)(reader.take)
    finish(database, reader)
    assert reader.seen == [sb.ERROR]
    assert [state(database, target) for target in targets] == ["CD", "CD"]


def test_answered_ends_delete_retained_messages(database: sb.Database) -> None:
    database.alter_queue(STOCK_QUEUE, retention=True)
    targets = create_ended(database, 3)
    reader = Reader()
    finish(database, reader)
    assert [state(database, target) for target in targets] == ["CD"] * 3
    number = queue_number(database, STOCK_QUEUE)
    assert query(database, f"select count(*) from servicebroker.retained_{number}") == [(0,)]


def test_a_timer_that_fires_meanwhile_goes_with_the_conversation(database: sb.Database) -> None:
    targets = create_ended(database, 2)
    database.begin_conversation_timer(targets[0], 3600)
    reader = Reader()
    finish(database, reader)
    assert reader.seen == []
    assert query(
        database, "select count(*) from servicebroker.conversation_endpoints where dialog_timer is not null"
    ) == [(0,)]


def test_after_a_deadlock_ends_are_answered_singly(
    database: sb.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    targets = create_ended(database, 3)
    tried: list[int] = []

    def answer_ends(queue_id: int, messages: list[sb.Message], now: datetime) -> Steps[list[UUID]]:
        tried.append(len(messages))
        yield Statement("end.answer_ends.lock", "do $$ begin raise 'of a test' using errcode = '40P01'; end $$")
        return []

    monkeypatch.setattr(end, "answer_ends", answer_ends)
    finish(database, Reader())
    assert [state(database, target) for target in targets] == ["CD"] * 3
    assert tried == [3]
    assert "continues in" not in caplog.text


def test_invalid_answers_ends_is_refused() -> None:
    with refused(402, "answers_ends"):
        sb.Worker(STOCK_QUEUE, answers_ends=True)
    with refused(402, "answers_ends"):
        sb.Worker(STOCK_QUEUE, groups=50, answers_ends=1)  # type: ignore[arg-type]
    with refused(402, "END_DIALOG"):
        sb.Worker(STOCK_QUEUE, groups=50, answers_ends=True).on(sb.END_DIALOG)
