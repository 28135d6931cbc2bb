"""`process(poison=policy)`: failures are counted under the group's lock, and a policy returns a verdict."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn
from uuid import UUID

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    begin_with,
    bodies,
    errors,
    in_thread,
    peer_handle,
    query,
    queue_number,
    refused,
    rolled_back,
    run_together,
    state,
)

pytestmark = pytest.mark.both_apis

Messages = list[sb.Message]


class Bad(Exception):
    """The error that the procedures of these tests raise."""


@pytest.fixture
def table(database: sb.Database) -> Any:
    name = f"done_{database.database_id}"
    with database.instance.connection() as connection:
        connection.execute(f"create table {name} (body bytea primary key)".encode())
    yield name
    with database.instance.connection() as connection:
        connection.execute(f"drop table {name}".encode())


def stored_bodies(database: sb.Database, table: str) -> list[bytes]:
    return [body for (body,) in query(database, f"select body from {table} order by body")]


def store_and_fail(table: str, fails: Callable[[sb.Message], object]) -> Callable[[sb.Transaction, Messages], None]:
    """Return a procedure that stores its messages, and then fails if `fails` is true for one of them."""

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        for message in messages:
            transaction.connection.execute(f"insert into {table} values (%s)".encode(), (message.message_body or b"",))
        if any(fails(message) for message in messages):
            raise Bad(b",".join(body or b"" for body in bodies(messages)).decode())

    return procedure


def is_bad(message: sb.Message) -> bool:
    return (message.message_body or b"").startswith(b"bad")


def failure_rows(database: sb.Database) -> list[tuple[Any, ...]]:
    text = "select failures, first_error, last_error from servicebroker.failed_messages where queue_id = %s"
    return query(database, text, queue_number(database, STOCK_QUEUE))


def is_on(database: sb.Database) -> bool:
    text = "select is_receive_enabled from servicebroker.queues where queue_id = %s"
    return bool(query(database, text, queue_number(database, STOCK_QUEUE))[0][0])


@pytest.mark.feature(188, 189)
def test_at_the_fourth_failure_the_conversation_ends_with_the_error_and_others_go_on(
    database: sb.Database, table: str
) -> None:
    first, second = begin_with(database, b"bad", b"after"), begin_with(database, b"good")
    seen: list[int] = []
    policy = sb.give_up_after(3, sb.EndWithError(500, "Unable to process message."))

    def watching(failure: sb.Failure) -> sb.Verdict:
        seen.append(failure.count)
        return policy(failure)

    def fails(message: sb.Message) -> bool:
        if is_bad(message):
            assert failure_rows(database) == ([(seen[-1], "Bad: bad", "Bad: bad")] if seen else [])
        return is_bad(message)

    assert database.process(STOCK_QUEUE, store_and_fail(table, fails), poison=watching) == 5
    assert seen == [1, 2, 3, 4]
    assert stored_bodies(database, table) == [b"good"]
    assert database.receive(STOCK_QUEUE) == []  # the conversation's other message was removed with it
    (error,) = database.receive(ORDERS_QUEUE)
    assert sb.read_error(error.message_body) == (500, "Unable to process message.")
    assert (error.conversation_handle, state(database, second)) == (first, "CO")
    assert failure_rows(database) == []
    assert is_on(database)


@pytest.mark.parametrize("error", [None, (1, "no more")], ids=["ended", "failed"])
def test_a_reply_to_a_sender_that_has_ended_is_not_sent_and_the_queue_stays_on(
    database: sb.Database, table: str, error: tuple[int, str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    with database.transaction() as transaction:  # no reader waits for a reply
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        transaction.send(handle, ORDER, b"bad")
        transaction.end_conversation(handle, error=error)
    failed: list[int] = []

    def policy(failure: sb.Failure) -> sb.Verdict:
        failed.append(failure.count)
        return sb.Reply(REPLY, b"no")

    # and the EndDialog or the Error
    assert database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=policy) == 2
    assert failed == [1]
    assert "8429" in caplog.text
    assert is_on(database)
    assert database.receive(STOCK_QUEUE) == []


def test_a_failure_undoes_everything_but_the_count(database: sb.Database, table: str) -> None:
    begin_with(database, b"x")

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        transaction.connection.execute(f"insert into {table} values ('x')".encode())
        transaction.send(messages[0].conversation_handle, REPLY, b"never")
        raise Bad

    assert database.process(STOCK_QUEUE, procedure, poison=lambda failure: sb.Ignore()) == 1
    assert stored_bodies(database, table) == []
    assert database.receive(ORDERS_QUEUE) == []


@pytest.mark.feature(188)
def test_a_failed_statement_is_a_failure_too(database: sb.Database, table: str) -> None:
    begin_with(database, b"x", b"y")
    bodies: list[str] = []

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        if messages[0].message_body == b"x":
            transaction.connection.execute("select 1 / 0")

    def swallowing(transaction: sb.Transaction, messages: Messages) -> None:
        try:
            transaction.connection.execute("select 1 / 0")
        except Exception as problem:
            bodies.append(type(problem).__name__)

    def policy(failure: sb.Failure) -> sb.Verdict:
        bodies.append(failure.first_error.split(":")[0])
        return sb.Retry() if failure.count < 2 else sb.Ignore()

    assert database.process(STOCK_QUEUE, procedure, poison=policy) == 3
    assert bodies == ["DivisionByZero"] * 2
    begin_with(database, b"z")
    assert database.process(STOCK_QUEUE, swallowing, poison=policy) == 2
    assert bodies[2:] == ["DivisionByZero", "InstanceError"] * 2


def test_success_clears_the_count(database: sb.Database, table: str) -> None:
    begin_with(database, b"1", b"2")
    attempts: list[bytes | None] = []
    counts: list[int] = []

    def fails(message: sb.Message) -> bool:
        attempts.append(message.message_body)
        return attempts.count(message.message_body) < 3

    def policy(failure: sb.Failure) -> sb.Verdict:
        counts.append(failure.count)
        return sb.Retry()

    assert database.process(STOCK_QUEUE, store_and_fail(table, fails), poison=policy) == 6
    assert counts == [1, 2, 1, 2]
    assert stored_bodies(database, table) == [b"1", b"2"]
    assert failure_rows(database) == []


@pytest.mark.parametrize("kind", ["a timer", "a lifetime"])
def test_timers_and_expired_lifetimes_are_given_up_too(
    database: sb.Database, table: str, clock: Clock, kind: str
) -> None:
    """RECEIVE puts its message into the queue, and a rollback of the RECEIVE removes it again."""
    initiator = begin(database, lifetime=60)
    database.send(initiator, ORDER, b"x")
    handle = peer_handle(database, initiator)
    database.receive(STOCK_QUEUE)
    if kind == "a timer":
        database.begin_conversation_timer(handle, 1)
    clock.jump(seconds=2 if kind == "a timer" else 61)
    counts: list[int] = []
    policy = sb.give_up_after(3)

    def watching(failure: sb.Failure) -> sb.Verdict:
        counts.append(failure.count)
        assert len(counts) < 10
        return policy(failure)

    assert database.process(STOCK_QUEUE, store_and_fail(table, lambda message: True), poison=watching) == 4
    assert counts == [1, 2, 3, 4]
    assert state(database, handle) == "CD"
    assert failure_rows(database) == []


def test_failures_of_one_timer_are_not_counted_against_the_next(database: sb.Database, clock: Clock) -> None:
    """Each fails once in the first reader and succeeds in another, which does not know that count."""
    handle = peer_handle(database, begin_with(database, b"x"))
    database.receive(STOCK_QUEUE)
    counts: list[int] = []

    def watching(failure: sb.Failure) -> sb.Verdict:
        counts.append(failure.count)
        return sb.Retry(after=10)  # the other reader is next

    def fail(transaction: sb.Transaction, messages: Messages) -> None:
        raise Bad

    for _ in range(5):
        database.begin_conversation_timer(handle, 1)
        clock.jump(seconds=2)
        database.process(STOCK_QUEUE, fail, poison=watching)
        clock.jump(seconds=20)
        with database.transaction() as transaction:
            (timer,) = transaction.receive(STOCK_QUEUE)
            assert timer.is_timer
        assert [row[0] for row in failure_rows(database)] == [1]
    assert counts == [1] * 5
    assert state(database, handle) == "CO"


def test_a_count_of_another_process_is_cleared_when_a_reader_is_idle(
    database: sb.Database, table: str, clock: Clock
) -> None:
    begin_with(database, b"bad")
    database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=lambda failure: sb.Retry(after=10))
    clock.jump(seconds=20)
    assert [row[0] for row in failure_rows(database)] == [1]
    assert database.process(STOCK_QUEUE, store_and_fail(table, lambda message: False), poison=sb.give_up_after()) == 1
    assert failure_rows(database) == []


def test_the_policy_sees_the_message_the_first_failure_and_the_time(
    database: sb.Database, table: str, clock: Clock
) -> None:
    handle = begin_with(database, b"bad")
    seen: list[sb.Failure] = []

    def policy(failure: sb.Failure) -> sb.Verdict:
        seen.append(failure)
        clock.jump(seconds=20)
        waits = failure.now - failure.first_failed_at < timedelta(seconds=30)
        return sb.Retry() if waits else sb.SetAside()

    database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=policy)
    assert [failure.count for failure in seen] == [1, 2, 3]
    assert len({failure.first_failed_at for failure in seen}) == 1
    assert isinstance(seen[0].error, Bad)
    assert seen[0].message.conversation_handle == peer_handle(database, handle)


def test_retry_later_holds_the_group_and_lets_others_pass(database: sb.Database, table: str, clock: Clock) -> None:
    handle = begin_with(database, b"bad 1", b"2")
    known: list[str] = []  # the customer of the order

    def fails(message: sb.Message) -> bool:
        return is_bad(message) and not known

    def policy(failure: sb.Failure) -> sb.Verdict:
        return sb.Retry(after=60)

    assert database.process(STOCK_QUEUE, store_and_fail(table, fails), poison=policy) == 1
    begin_with(database, b"other")
    assert database.process(STOCK_QUEUE, store_and_fail(table, fails), poison=policy) == 1
    assert stored_bodies(database, table) == [b"other"]
    assert database.receive(STOCK_QUEUE) == []
    assert database.get_conversation_group(STOCK_QUEUE) is None
    with database.transaction() as transaction:  # a RECEIVE by conversation gets the message
        assert transaction.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, handle), top=0) == []
    known.append("customer")
    clock.jump(seconds=61)
    assert database.process(STOCK_QUEUE, store_and_fail(table, fails), poison=policy) == 2
    assert stored_bodies(database, table) == [b"2", b"bad 1", b"other"]
    assert failure_rows(database) == []


def test_each_group_is_held_until_its_own_time(database: sb.Database, table: str, clock: Clock) -> None:
    for seconds in (600, 60):
        begin_with(database, b"bad %d" % seconds)

    def policy(failure: sb.Failure) -> sb.Verdict:
        return sb.Retry(after=int((failure.message.message_body or b"").split()[1]))

    database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=policy)
    assert len(failure_rows(database)) == 2
    clock.jump(seconds=61)
    with rolled_back(database) as transaction:
        assert bodies(transaction.receive(STOCK_QUEUE, groups=9)) == [b"bad 60"]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"bad 60"]
    assert database.receive(STOCK_QUEUE) == []
    clock.jump(seconds=600)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"bad 600"]


def test_ignore_commits_the_receive(database: sb.Database, table: str) -> None:
    handle = begin_with(database, b"bad", b"2")
    assert database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=lambda failure: sb.Ignore()) == 2
    assert (stored_bodies(database, table), state(database, handle)) == ([b"2"], "CO")


def test_an_application_error_message_is_sent_and_the_conversation_goes_on(database: sb.Database, table: str) -> None:
    handle = begin_with(database, b"bad", b"2")
    assert (
        database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=lambda f: sb.Reply(REPLY, b"cannot do"))
        == 2
    )
    assert (stored_bodies(database, table), state(database, handle)) == ([b"2"], "CO")
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"cannot do"]


def test_set_aside_keeps_everything_and_can_be_replayed(database: sb.Database, table: str) -> None:
    handle = begin_with(database, b"bad \x00", b"2")
    far = peer_handle(database, handle)
    policy = sb.give_up_after(1, sb.SetAside())
    assert database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=policy) == 3
    (dead_letter,) = database.set_aside_messages()
    assert (dead_letter.queue, dead_letter.conversation_handle, dead_letter.message_body) == (
        f"dbo.{STOCK_QUEUE}",
        far,
        b"bad \x00",
    )
    assert (dead_letter.failures, dead_letter.validation, dead_letter.message_type_name, dead_letter.service_name) == (
        2,
        "N",
        ORDER,
        STOCK,
    )
    assert dead_letter.error.startswith("Bad: bad")
    assert "raise Bad" in dead_letter.traceback
    ours = "select service_broker_guid::text from servicebroker.databases where database_id = %s"
    assert (dead_letter.far_service, dead_letter.far_broker_instance) == (
        "//test/Orders",
        query(database, ours, database.database_id)[0][0],
    )
    assert dead_letter.first_failed_at <= dead_letter.set_aside_at
    assert state(database, handle) == "CO"
    assert stored_bodies(database, table) == [b"2"]
    database.replay_message(dead_letter.set_aside_id)
    assert database.set_aside_messages(STOCK_QUEUE) == []
    (again,) = database.receive(STOCK_QUEUE)
    assert (again.message_body, again.message_sequence_number, again.conversation_handle) == (b"bad \x00", 0, far)
    assert not database.instance.check().findings


def test_a_message_is_replayed_with_another_body_that_its_type_takes(database: sb.Database, table: str) -> None:
    database.create_message_type("//test/Xml", "WELL_FORMED_XML")
    database.create_contract("//test/XmlContract", {"//test/Xml": "INITIATOR"})
    database.alter_service(STOCK, add_contracts=["//test/XmlContract"])
    handle = database.begin_dialog(ORDERS, STOCK, contract="//test/XmlContract")
    database.send(handle, "//test/Xml", b"<bad/>")

    def refuse(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no")

    database.process(STOCK_QUEUE, refuse, poison=lambda failure: sb.SetAside())
    (dead_letter,) = database.set_aside_messages()
    with refused(402, "the new body is refused by the message type"):
        database.replay_message(dead_letter.set_aside_id, body=b"<good>")
    with refused(402):
        database.replay_message(dead_letter.set_aside_id, body=7)  # type: ignore[arg-type]
    with refused(8433):
        database.replay_message(dead_letter.set_aside_id, body=None)  # type: ignore[arg-type]
    database.replay_message(dead_letter.set_aside_id, body="<good/>")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"<good/>"]


WAYS_TO_END: dict[str, Any] = {
    "here": lambda database, handle: database.end_conversation(peer_handle(database, handle)),
    "there": lambda database, handle: database.end_conversation(handle),
    "with an error": lambda database, handle: database.end_conversation(handle, error=(1, "late")),
    "cleaned up": lambda database, handle: [
        database.end_conversation(handle_of_side, cleanup=True)
        for handle_of_side in (peer_handle(database, handle), handle)
    ],
}


@pytest.mark.parametrize("ends", WAYS_TO_END)
def test_a_message_of_an_ended_conversation_is_replayed_on_a_new_one(
    database: sb.Database, table: str, ends: str
) -> None:
    """Its handler can answer on the new conversation; the answer goes to the service that had sent the message."""
    handle = begin_with(database, b"bad \x00")
    database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=lambda failure: sb.SetAside())
    (dead_letter,) = database.set_aside_messages(STOCK_QUEUE)
    WAYS_TO_END[ends](database, handle)
    anew = database.replay_message(dead_letter.set_aside_id)
    assert anew is not None
    assert anew != handle
    assert database.set_aside_messages() == []
    with database.transaction() as transaction:
        (again,) = transaction.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, anew))
        transaction.send(again.conversation_handle, REPLY, b"done")
    assert (again.message_body, again.message_type_name, again.service_name) == (b"bad \x00", ORDER, STOCK)
    assert bodies(database.receive(ORDERS_QUEUE, conversation_handle=anew)) == [b"done"]
    assert not database.instance.check().findings


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "gone"])
def test_a_message_for_an_initiator_is_replayed_beside_a_new_dialog(
    database: sb.Database, table: str, *, ends: bool
) -> None:
    handle = begin_with(database, b"question")
    with database.transaction() as transaction:
        (question,) = transaction.receive(STOCK_QUEUE)
        transaction.send(question.conversation_handle, REPLY, b"bad")
    database.process(ORDERS_QUEUE, store_and_fail(table, is_bad), poison=lambda failure: sb.SetAside())
    (dead_letter,) = database.set_aside_messages(ORDERS_QUEUE)
    database.end_conversation(handle, cleanup=not ends)
    anew = database.replay_message(dead_letter.set_aside_id, body=b"mended")
    (again,) = database.receive(ORDERS_QUEUE)
    assert (again.message_body, again.message_type_name, again.conversation_handle) == (b"mended", REPLY, anew)
    database.end_conversation(again.conversation_handle)
    assert not database.instance.check().findings


def test_a_dead_letter_that_cannot_be_replayed_stays_until_discarded(database: sb.Database, table: str) -> None:
    """A remote sender, or a service without the contract: the message stays whole."""
    other_database = database.instance.database("Elsewhere", create=True)
    other_database.create_message_type(ORDER)
    other_database.create_contract(CONTRACT, {ORDER: "INITIATOR"})
    other_database.create_queue("Q")
    other_database.create_service("//elsewhere", "Q")
    ours = "select service_broker_guid::text from servicebroker.databases where database_id = %s"
    broker = query(database, ours, database.database_id)[0][0]
    handle = other_database.begin_dialog(
        "//elsewhere", STOCK, broker_instance=broker, contract=CONTRACT, encryption=False
    )
    database.grant("SEND", "public", service=STOCK)
    other_database.send(handle, ORDER, b"bad")
    database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=lambda failure: sb.SetAside())
    (dead_letter,) = database.set_aside_messages(STOCK_QUEUE)
    database.end_conversation(peer_handle(database, handle))
    endpoints = "select count(*) from servicebroker.conversation_endpoints"
    before = query(database, endpoints)
    with pytest.raises(sb.InstanceError, match="sender '//elsewhere' is not a service of this database"):
        database.replay_message(dead_letter.set_aside_id)
    with refused(8423):
        database.replay_message(dead_letter.set_aside_id, from_service="//nowhere")
    database.alter_service(STOCK, drop_contracts=[CONTRACT])
    with pytest.raises(sb.InstanceError, match="refuses the message"):
        database.replay_message(dead_letter.set_aside_id, from_service=ORDERS)
    assert len(database.set_aside_messages()) == 1
    assert query(database, endpoints) == before
    database.alter_service(STOCK, add_contracts=[CONTRACT])
    assert database.replay_message(dead_letter.set_aside_id, from_service=ORDERS) is not None
    database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=lambda failure: sb.SetAside())
    (dead_letter,) = database.set_aside_messages(STOCK_QUEUE)
    for verb in (other_database.replay_message, other_database.discard_message):  # the message is not theirs
        with refused(402, "a number of `servicebroker dead-letters list`"):
            verb(dead_letter.set_aside_id)
    database.discard_message(dead_letter.set_aside_id)
    for verb in (database.replay_message, database.discard_message):
        with refused(402, "a number of `servicebroker dead-letters list`"):
            verb(dead_letter.set_aside_id)
        with refused(402):
            verb("1")  # type: ignore[arg-type]


def test_dead_letters_need_db_owner(database: sb.Database, app: sb.Database) -> None:
    for verb in (app.set_aside_messages, lambda: app.replay_message(1), lambda: app.discard_message(1)):
        with refused(5011):
            verb()


def test_the_bad_message_of_a_failing_batch_is_found(database: sb.Database, table: str) -> None:
    begin_with(database, *[b"%d" % number for number in range(5)], b"bad", *[b"%d" % number for number in range(5, 9)])
    failed: list[bytes | None] = []

    def policy(failure: sb.Failure) -> sb.Verdict:
        failed.append(failure.message.message_body)
        return sb.Ignore()

    database.process(STOCK_QUEUE, store_and_fail(table, is_bad), top=None, poison=policy)
    assert failed == [b"bad"]
    assert stored_bodies(database, table) == [b"%d" % number for number in range(9)]


def test_the_group_stays_locked_until_the_failure_is_counted(database: sb.Database, table: str) -> None:
    """Another reader never gets the message between the ROLLBACK and the count."""
    handle = begin_with(database, b"bad")
    group = query(
        database,
        "select conversation_group_id from servicebroker.conversation_endpoints where conversation_handle = %s",
        peer_handle(database, handle),
    )[0][0]
    over = threading.Event()
    seen: list[list[tuple[Any, ...]]] = []
    text = (
        "select coalesce((select failures from servicebroker.failed_messages where conversation_group_id = %s), 0) "
        "where pg_try_advisory_xact_lock(1396834305, uuid_hash(%s))"
    )

    def watching() -> None:
        while not over.is_set():
            seen.append(query(database, text, group, group))

    counts: list[int] = []

    def policy(failure: sb.Failure) -> sb.Verdict:
        counts.append(failure.count)
        return sb.Retry() if failure.count < 30 else sb.Ignore()

    watcher = in_thread(watching)
    while counts[-1:] != [30]:  # the watcher holds the lock from time to time
        database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=policy)
    over.set()
    watcher.result(10)
    assert counts == list(range(1, 31))
    free = [rows[0][0] for rows in seen if rows]
    while free and free[-1] == 0:  # cleared
        free.pop()
    assert free == sorted(free)


def test_readers_at_a_time_count_together(database: sb.Database, table: str) -> None:
    for _ in range(4):
        begin_with(database, b"bad", b"x")
    counts: dict[UUID, list[int]] = defaultdict(list)

    def policy(failure: sb.Failure) -> sb.Verdict:
        counts[failure.message.conversation_handle].append(failure.count)
        return sb.Retry() if failure.count < 6 else sb.EndWithError(127, "no")

    def reader() -> None:
        database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=policy, wait=0.3)

    run_together(reader, reader, reader)
    assert [sorted(count) for count in counts.values()] == [[1, 2, 3, 4, 5, 6]] * 4
    assert errors(database.receive(ORDERS_QUEUE)) == [127]


@pytest.mark.parametrize("kind", ["nonsense", "raises", "interrupts", "impossible"])
def test_a_policy_that_fails_or_says_nonsense_leaves_it_to_the_default_one(
    database: sb.Database, table: str, clock: Clock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Five more tries, then set aside. The queue stays on, and the good message behind it is processed."""
    verdicts: dict[str, Callable[[], Any]] = {
        "nonsense": lambda: "retry",
        "raises": lambda: 1 / 0,
        "interrupts": lambda: raising(GeneratorExit()),
        "impossible": lambda: sb.Retry(after=-1),
    }
    begin_with(database, b"bad")
    for _ in range(6):
        database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=lambda failure: verdicts[kind]())
        clock.jump(seconds=100)
    assert is_on(database)
    assert [letter.failures for letter in database.set_aside_messages()] == [6]
    assert caplog.text.count("the policy has failed") == 6


def raising(problem: BaseException) -> NoReturn:
    raise problem


def test_invalid_poison_policies_are_refused(database: sb.Database) -> None:
    with refused(402, "poison"):
        database.process(STOCK_QUEUE, lambda transaction, messages: None, poison=3)  # type: ignore[arg-type]
    with refused(402):
        sb.give_up_after(0)
    with refused(402):
        sb.give_up_after(1, "end")  # type: ignore[arg-type]


def test_a_reply_that_the_contract_forbids_sets_the_message_aside(database: sb.Database, table: str) -> None:
    begin_with(database, b"bad")
    assert (
        database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=lambda failure: sb.Reply(sb.DEFAULT)) == 1
    )
    assert database.receive(STOCK_QUEUE) == []
    assert [letter.message_body for letter in database.set_aside_messages()] == [b"bad"]


def test_a_procedure_that_touches_nothing_may_fail_too(database: sb.Database) -> None:
    handle = begin_with(database, b"bad", b"2")
    seen: Messages = []

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        if is_bad(messages[0]):
            raise Bad
        seen.extend(messages)

    assert database.process(STOCK_QUEUE, procedure, poison=lambda failure: sb.Ignore()) == 2
    assert (bodies(seen), state(database, handle)) == ([b"2"], "CO")


def test_locks_do_not_stay(database: sb.Database, table: str) -> None:
    handle = begin_with(database, b"bad")
    counted: list[int] = []

    def policy(failure: sb.Failure) -> sb.Verdict:
        counted.append(failure.count)
        return sb.Retry(after=3600)

    database.process(STOCK_QUEUE, store_and_fail(table, is_bad), poison=policy)
    held = (
        "select from pg_locks where locktype = 'advisory' and classid = 1396834305 "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    assert query(database, held) == []
    taken = in_thread(database.receive, STOCK_QUEUE, conversation_handle=peer_handle(database, handle))
    assert bodies(taken.result(10)) == [b"bad"]


def test_a_cancelled_procedure_is_no_failure(instance: sb.Instance, database: sb.Database) -> None:
    if isinstance(instance, sb.Instance):
        pytest.skip("only a task can be cancelled")
    begin_with(database, b"1")

    async def work() -> None:
        async def procedure(transaction: sb.AsyncTransaction, messages: Messages) -> None:
            await asyncio.sleep(60)

        def policy(failure: sb.Failure) -> sb.Verdict:
            raise AssertionError

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await database.real.process(STOCK_QUEUE, procedure, poison=policy)  # type: ignore[attr-defined]

    asyncio.run_coroutine_threadsafe(work(), database.loop).result(20)  # type: ignore[attr-defined]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


@pytest.mark.feature(109)
def test_the_initiator_sends_a_message_again_after_a_recoverable_error(database: sb.Database, table: str) -> None:
    """The target ends with an error that means 'later'. The initiator sends the message on a new conversation."""
    kept = {begin_with(database, b"bad order"): b"bad order"}
    known: list[str] = []
    procedure = store_and_fail(table, lambda message: is_bad(message) and not known)
    for attempt in range(3):
        if attempt == 2:
            known.append("customer")
        database.process(STOCK_QUEUE, procedure, poison=lambda failure: sb.EndWithError(1001, "try again"))
        with database.transaction() as transaction:
            for message in transaction.receive(ORDERS_QUEUE):
                code, _ = sb.read_error(message.message_body)
                transaction.end_conversation(message.conversation_handle)
                assert code == 1001
                again = begin(transaction)  # type: ignore[arg-type]
                transaction.send(again, ORDER, kept[message.conversation_handle])
                kept[again] = kept.pop(message.conversation_handle)
    assert stored_bodies(database, table) == [b"bad order"]
    assert state(database, next(iter(kept))) == "CO"


@pytest.mark.parametrize("top", [1, None])
def test_poison_among_many_good_messages_leaves_the_queue_on(
    fresh_database: sb.Database, request: pytest.FixtureRequest, seeded_random: random.Random, top: int | None
) -> None:
    """Good messages count exactly once and in order, poison is dismissed or set aside, and the queue stays on."""
    database = fresh_database
    good, bad = request.config.option.good_messages, request.config.option.good_messages // 100
    handles = [begin(database) for _ in range(max(10, bad // 2))]
    for handle in handles:
        database.send(handle, MARK)  # creates the target's endpoint
    poisoned = set(seeded_random.sample(range(good), bad))
    for number in range(good):
        if number in poisoned:
            database.send(seeded_random.choice(handles), ORDER, b"bad %d" % number)
        database.send(handles[number % len(handles)], ORDER, b"%d %d" % (number % len(handles), number))
    got: dict[bytes, list[int]] = defaultdict(list)
    failures: dict[bytes | None, int] = defaultdict(int)
    places: dict[bytes | None, int] = {}

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        if any(is_bad(message) for message in messages):
            transaction.connection.execute("select 1 / 0")
        for message in messages:
            if message.message_body:
                key, number = message.message_body.split()
                got[key].append(int(number))

    def policy(failure: sb.Failure) -> sb.Verdict:
        failures[failure.message.message_body] += 1
        places[failure.message.message_body] = failure.message.message_sequence_number
        assert failure.count == failures[failure.message.message_body]
        verdicts = (sb.SetAside(), sb.Ignore())
        return sb.Retry() if failure.count < 4 else verdicts[failure.message.message_sequence_number % 2]

    def reader() -> None:
        database.process(STOCK_QUEUE, procedure, top=top, poison=policy, wait=0.2)

    run_together(reader, reader, seconds=3600)
    assert sorted(number for numbers in got.values() for number in numbers) == list(range(good))
    assert all(numbers == sorted(numbers) for numbers in got.values())
    assert sorted(failures.values()) == [4] * bad
    assert len(database.set_aside_messages()) == sum(number % 2 == 0 for number in places.values())
    assert database.instance.events.recent(143) == []
    assert is_on(database)
    assert failure_rows(database) == []


@pytest.mark.feature(189)
def test_in_the_automatic_form_the_queue_goes_off(database: sb.Database, table: str) -> None:
    handle = begin_with(database, b"1", b"bad", b"2")
    for _ in range(5):
        with pytest.raises(Bad):
            database.process(STOCK_QUEUE, store_and_fail(table, is_bad))
    assert not is_on(database)
    database.alter_queue(STOCK_QUEUE, status=True)
    database.end_conversation(peer_handle(database, handle), error=(127, "Unable to process message."))
    assert stored_bodies(database, table) == [b"1"]
    assert errors(database.receive(ORDERS_QUEUE)) == [127]
