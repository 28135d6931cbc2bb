"""A handler's answers are sent with the next group's savepoint, unless a lookup has to come first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
import servicebroker.api.aio.deferred_answers
import servicebroker.api.deferred_answers
from servicebroker import api
from servicebroker.store.direct import PreparedStatements
from support import (
    CONTRACT,
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    begin_with,
    bodies,
    peer_handle,
    query,
    queue_number,
)

pytestmark = pytest.mark.both_apis

Handler = Callable[[sb.Transaction, list[sb.Message]], None]


@pytest.fixture
def warm(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> sb.Database:
    """Return a database whose process has answered before, so that it has cached the reply target."""
    for module in (api.deferred_answers, api.aio.deferred_answers):
        monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    begin_with(database, b"first")
    assert database.process(STOCK_QUEUE, answer, groups=50) == 1
    assert receive_answers(database) == ["first", "end"]
    return database


def answer(tx: sb.Transaction, messages: list[sb.Message]) -> None:
    for message in messages:
        tx.send(message.conversation_handle, REPLY, message.message_body)
    tx.end_conversation(messages[0].conversation_handle)


def receive_answers(database: sb.Database) -> list[str]:
    answers: list[str] = []
    while messages := database.receive(ORDERS_QUEUE, groups=100):
        answers += ["end" if message.is_end_dialog else (message.message_body or b"").decode() for message in messages]
    return answers


def record_round_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of statements and commands in each round trip that contains deferred answers."""
    sizes: list[int] = []
    plain = PreparedStatements.together

    def record_size(self: PreparedStatements, connection: object, sent: list[object]) -> object:
        sizes.append(len(sent))
        return plain(self, connection, sent)  # type: ignore[arg-type]

    monkeypatch.setattr(PreparedStatements, "together", record_size)
    return sizes


def test_answers_leave_with_the_next_savepoint(warm: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, numbers = record_round_trips(monkeypatch), []
    for number in range(4):
        begin_with(warm, b"%d" % number, b"more")

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        numbers.extend(tx.send(message.conversation_handle, REPLY, message.message_body) for message in messages)
        tx.end_conversation(messages[0].conversation_handle)

    assert warm.process(STOCK_QUEUE, take, groups=50, top=2) == 8
    assert sizes == [6, 6, 6, 3]  # two SENDs and END, then RELEASE, SAVEPOINT and the RECEIVE of the next group
    assert numbers == [0, 1] * 4
    assert receive_answers(warm) == [text for number in range(4) for text in (str(number), "more", "end")]


def close_queue(database: sb.Database, theirs: UUID, own: UUID) -> None:
    database.alter_queue(ORDERS_QUEUE, status=False)


def end_with_error(database: sb.Database, theirs: UUID, own: UUID) -> None:
    database.end_conversation(theirs, error=(7, "too late"))


def send_between(database: sb.Database, theirs: UUID, own: UUID) -> None:
    database.send(own, REPLY, b"between")


@pytest.mark.parametrize(
    ("disturb", "outcome", "expected"),
    [
        (close_queue, [0, 0], ["1", "end"]),
        (end_with_error, [0, 8429], []),
        (send_between, [0, 1], ["between", "1", "end"]),
    ],
)
@pytest.mark.parametrize("is_last", [False, True])
def test_a_verb_that_finds_something_else_runs_at_once(
    warm: sb.Database,
    disturb: Callable[[sb.Database, UUID, UUID], None],
    outcome: list[int],
    expected: list[str],
    is_last: bool,
) -> None:
    """Only that group is rolled back, and the procedure runs again. An error is raised where the verb is called."""
    theirs = [begin_with(warm, b"%d" % number) for number in range(2 if is_last else 3)]
    seen: list[bytes | None] = []
    results: list[int] = []

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        (message,) = messages
        if message.is_error:
            return
        seen.append(message.message_body)
        if message.message_body != b"1":
            answer(tx, messages)
            return
        try:
            results.append(tx.send(message.conversation_handle, REPLY, message.message_body))
        except sb.BrokerError as error:
            results.append(error.number)
        if len(results) == 1:
            disturb(warm, theirs[1], message.conversation_handle)
        if results[-1] < 8000:
            tx.end_conversation(message.conversation_handle)

    assert warm.process(STOCK_QUEUE, take, groups=50) >= len(theirs)
    assert (seen[:3], results) == ([b"0", b"1", b"1"], outcome)
    warm.alter_queue(ORDERS_QUEUE, status=True)
    others = [text for number in (0, 2)[: len(theirs) - 1] for text in (str(number), "end")]
    assert sorted(receive_answers(warm)) == sorted(others + expected)


def test_later_statements_of_a_handler_see_its_answer(warm: sb.Database) -> None:
    ours = begin_with(warm, b"0")
    begin_with(warm, b"1")
    seen: list[object] = []

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        handle = messages[0].conversation_handle
        with suppress(ValueError), tx.savepoint():
            tx.send(handle, REPLY, b"undone")
            raise ValueError
        tx.send(handle, REPLY, messages[0].message_body)
        seen.extend(tx.connection.execute(f"select count(*) from servicebroker.queue_{own}").fetchall())
        tx.end_conversation(handle)
        with pytest.raises(sb.BrokerError, match="8427"):
            tx.end_conversation(handle)

    own = queue_number(warm, ORDERS_QUEUE)
    assert peer_handle(warm, ours)
    assert warm.process(STOCK_QUEUE, take, groups=50) == 2
    assert seen == [(1,), (3,)]
    assert receive_answers(warm) == ["0", "end", "1", "end"]


def run_and_disturb(warm: sb.Database, send: Handler) -> int:
    """Process two groups with this handler, and send on the first one's conversation after its first run.

    Returns the number of its runs.
    """
    for number in range(2):
        begin_with(warm, b"%d" % number)
    runs: list[bytes | None] = []

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        runs.append(messages[0].message_body)
        handle = messages[0].conversation_handle
        send(tx, messages)
        if len(runs) == 1:
            warm.send(handle, REPLY, b"between")

    assert warm.process(STOCK_QUEUE, take, groups=50) == 2
    return len(runs)


def test_a_handler_that_runs_again_gets_all_messages(warm: sb.Database) -> None:
    """The first run may have removed messages from its list."""

    def send(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        while messages:
            message = messages.pop()
            tx.send(message.conversation_handle, REPLY, message.message_body)

    assert run_and_disturb(warm, send) == 3
    assert receive_answers(warm) == ["between", "0", "1"]


def test_an_answer_that_fails_at_the_end_of_a_savepoint_undoes_it(warm: sb.Database) -> None:
    connections: list[Any] = []

    def send(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        connections.append(tx.connection)
        message = messages[0]
        with tx.savepoint():
            tx.send(message.conversation_handle, REPLY, message.message_body)
            if len(connections) == 1:
                warm.send(message.conversation_handle, REPLY, b"before")

    for number in range(2):
        begin_with(warm, b"%d" % number)
    assert warm.process(STOCK_QUEUE, send, groups=50) == 2
    assert receive_answers(warm) == ["before", "0", "1"]
    assert {connection._num_transactions for connection in connections} == {0}


def test_an_answer_that_fails_before_another_verb_is_sent_again(warm: sb.Database) -> None:
    other_handle = begin(warm)

    def send(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        (message,) = messages
        if message.message_body == b"other":
            return
        tx.send(message.conversation_handle, REPLY, message.message_body)
        if not sent:
            sent.append(warm.send(message.conversation_handle, REPLY, b"before"))
        tx.send(other_handle, ORDER, b"other")

    sent: list[int] = []
    for number in range(2):
        begin_with(warm, b"%d" % number)
    assert warm.process(STOCK_QUEUE, send, groups=50, top=1) == 2 + 2
    assert sent == [0]
    assert receive_answers(warm)[:3] == ["before", "0", "1"]


def test_verbs_do_not_wait_in_pipeline_mode(warm: sb.Database) -> None:
    """Verbs are refused there. A wait for the server's answer would never end."""
    begin_with(warm, b"0")
    begin_with(warm, b"1")

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        handle = messages[0].conversation_handle
        tx.connection.pgconn.enter_pipeline_mode()
        with pytest.raises(sb.InstanceError, match="pipeline mode"):
            tx.send(handle, REPLY, b"")
        with pytest.raises(sb.InstanceError, match="pipeline mode"):
            tx.end_conversation(handle)
        tx.connection.pgconn.exit_pipeline_mode()

    assert warm.process(STOCK_QUEUE, take, groups=50) == 2
    assert receive_answers(warm) == []


def test_no_more_answers_wait_than_fit(warm: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (api.deferred_answers, api.aio.deferred_answers):
        monkeypatch.setattr(module, "MAX_SENDS", 2)
    sizes = record_round_trips(monkeypatch)
    begin_with(warm, *(b"%d" % number for number in range(6)))
    assert warm.process(STOCK_QUEUE, answer, groups=50, top=6) == 6
    assert sizes == [1]  # END alone
    assert receive_answers(warm) == [*"012345", "end"]


def test_a_lost_connection_is_told_as_such(warm: sb.Database) -> None:
    for number in range(2):
        begin_with(warm, b"%d" % number)
    runs: list[bytes | None] = []

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        runs.append(messages[0].message_body)
        ((process,),) = tx.connection.execute("select pg_backend_pid()").fetchall()
        answer(tx, messages)
        if len(runs) == 2:
            assert query(warm, "select pg_terminate_backend(%s, 10000)", process) == [(True,)]

    with pytest.raises(sb.InstanceError) as error:
        warm.process(STOCK_QUEUE, take, groups=50)
    assert "COMMIT" not in str(error.value)
    assert runs == [b"0", b"1"]
    assert warm.process(STOCK_QUEUE, answer, groups=50) == 2
    assert receive_answers(warm) == ["0", "end", "1", "end"]


def test_answers_that_would_fail_are_not_deferred(warm: sb.Database) -> None:
    """The handler of an Error, of a peer that has ended, or of another peer than the last one runs once."""
    warm.create_queue("SecondQueue")
    warm.create_service("//test/Second", "SecondQueue")
    failed, ended = begin_with(warm, b"failed"), begin_with(warm, b"ended")
    second = warm.begin_dialog("//test/Second", STOCK, contract=CONTRACT)
    begin_with(warm, b"last")
    warm.send(second, ORDER, b"second")
    warm.process(STOCK_QUEUE, lambda tx, messages: None, groups=50)
    warm.end_conversation(failed, error=(1, "failed"))
    warm.send(ended, ORDER, b"more")
    warm.end_conversation(ended)
    for handle in (second, begin(warm)):
        warm.send(handle, ORDER, b"2")
    runs: list[UUID] = []

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        handle = messages[0].conversation_handle
        runs.append(handle)
        if not messages[0].is_error:
            with suppress(sb.BrokerError):
                tx.send(handle, REPLY, messages[0].message_body)
        tx.end_conversation(handle)

    assert warm.process(STOCK_QUEUE, take, groups=50, top=5) == 5
    assert len(runs) == len(set(runs)) == 4
    assert bodies(warm.receive("SecondQueue")) == [b"2", None]
    assert receive_answers(warm)[-2:] == ["2", "end"]


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_handler_that_fails_after_its_answer_sends_nothing(warm: sb.Database, is_refused: bool) -> None:
    for number in range(4):
        begin_with(warm, b"%d" % number)

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        answer(tx, messages)
        if messages[0].message_body == b"2":
            if not is_refused:
                raise ValueError
            with suppress(Exception):
                tx.connection.execute("select 1 / 0")

    failures: list[sb.Failure] = []

    def judge(failure: sb.Failure) -> sb.Verdict:
        failures.append(failure)
        return sb.Ignore()

    assert warm.process(STOCK_QUEUE, take, groups=50, poison=judge) >= 4
    assert [failure.message.message_body for failure in failures] == [b"2"]
    assert receive_answers(warm) == ["0", "end", "1", "end", "3", "end"]


def test_no_lock_outlives_the_transaction(warm: sb.Database) -> None:
    """All locks of the session are released after the transaction."""
    for number in range(3):
        begin_with(warm, b"%d" % number)
    assert warm.process(STOCK_QUEUE, answer, groups=50) == 3
    assert bodies(warm.receive(ORDERS_QUEUE, groups=10))[::2] == [b"0", b"1", b"2"]
    assert query(warm, "select count(*) from pg_locks where locktype = 'advisory' and objsubid = 2") == [(0,)]
