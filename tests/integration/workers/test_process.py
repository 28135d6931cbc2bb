"""`Database.process`: each message in a transaction of its own, COMMIT and the next RECEIVE in one round trip."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import waiting

import servicebroker as sb
from servicebroker.store.direct import QueuedCommand
from servicebroker.store.statement_counts import StatementCounts
from support import (
    APP,
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    Undo,
    begin,
    begin_with,
    bodies,
    define_standard_set,
    eventually,
    in_thread,
    open_dialog,
    query,
    queue_number,
    refused,
    run_together,
    terminate_backend,
)

pytestmark = pytest.mark.both_apis

Messages = list[sb.Message]


@pytest.fixture
def log(database: sb.Database) -> Iterator[str]:
    """Create a table of the application whose foreign key is checked by COMMIT."""
    name = f"log_{database.database_id}"
    with database.instance.connection() as connection:
        connection.execute(f"create table {name} (body bytea primary key, known int)".encode())
        connection.execute(f"create table {name}_known (number int primary key)".encode())
        connection.execute(
            f"alter table {name} add foreign key (known) references {name}_known initially deferred".encode()
        )
    yield name
    with database.instance.connection() as connection:
        connection.execute(f"drop table {name}, {name}_known".encode())


def log_rows(database: sb.Database, log: str) -> list[bytes]:
    return [body for (body,) in query(database, f"select body from {log} order by body")]


def write(transaction: sb.Transaction, log: str, messages: Messages, known: int | None = None) -> None:
    for message in messages:
        transaction.connection.execute(f"insert into {log} values (%s, %s)".encode(), (message.message_body, known))


def test_each_message_is_committed_before_the_next_is_handed_out(database: sb.Database, log: str) -> None:
    begin_with(database, b"1", b"2", b"3")
    seen = []

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        seen.append((log_rows(database, log), bodies(messages)))
        write(transaction, log, messages)

    assert database.process(STOCK_QUEUE, procedure) == 3
    assert seen == [([], [b"1"]), ([b"1"], [b"2"]), ([b"1", b"2"], [b"3"])]
    assert log_rows(database, log) == [b"1", b"2", b"3"]


def test_commit_and_the_next_receive_are_one_round_trip(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_with(database, *[b"%d" % number for number in range(10)])
    trips: list[None] = []
    seen = []

    def count_trips(wait: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            trips.append(None)
            return wait(*arguments, **options)

        return call

    monkeypatch.setattr(waiting, "wait", count_trips(waiting.wait))
    monkeypatch.setattr(waiting, "wait_async", count_trips(waiting.wait_async))
    assert database.process(STOCK_QUEUE, lambda transaction, messages: seen.append(len(trips))) == 10
    assert [later - earlier for earlier, later in pairwise(seen)] == [1] * 9


def test_as_many_readers_as_connections_need_no_other_one(make_instance_url: Callable[..., str]) -> None:
    """A COMMIT that is sent with the next RECEIVE needs no connection for poison detection if it succeeds."""
    borrowed: list[None] = []
    received: list[bytes | None] = []
    with sb.Instance(make_instance_url(), connections=8, upkeep=None) as instance:
        database = define_standard_set(instance.database("Busy", create=True))
        for number in range(8):
            begin_with(database, *[b"%d" % (number * 40 + index) for index in range(40)])
        lend = instance.poison._connections

        def lend_and_count() -> AbstractContextManager[psycopg.Connection[Any]]:
            borrowed.append(None)
            return lend()

        instance.poison._connections = lend_and_count

        def read() -> None:
            database.process(STOCK_QUEUE, lambda transaction, messages: received.extend(bodies(messages)), wait=0.5)

        run_together(*[read] * 8, seconds=120)
    assert sorted(received, key=str) == sorted((b"%d" % number for number in range(320)), key=str)
    assert borrowed == []


def test_top_is_the_size_of_each_transaction(database: sb.Database) -> None:
    begin_with(database, b"1", b"2", b"3")
    sizes: list[int] = []
    assert database.process(STOCK_QUEUE, lambda transaction, messages: sizes.append(len(messages)), top=2) == 3
    assert sizes == [2, 1]
    begin_with(database, b"1", b"2", b"3")
    assert database.process(STOCK_QUEUE, lambda transaction, messages: sizes.append(len(messages)), top=None) == 3
    assert sizes == [2, 1, 3]


def test_replies_and_ends_belong_to_the_transaction(database: sb.Database) -> None:
    initiator = begin_with(database, b"question")

    def answer(transaction: sb.Transaction, messages: Messages) -> None:
        for message in messages:
            transaction.send(message.conversation_handle, REPLY, b"answer")
            transaction.end_conversation(message.conversation_handle)

    assert database.process(STOCK_QUEUE, answer) == 1
    reply, end = database.receive(ORDERS_QUEUE, conversation_handle=initiator)
    assert reply.message_body == b"answer"
    assert end.message_type_name.endswith("EndDialog")


def test_an_exception_undoes_its_own_transaction_only(database: sb.Database, log: str) -> None:
    begin_with(database, b"1", b"2", b"3")

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        write(transaction, log, messages)
        if bodies(messages) == [b"2"]:
            raise Undo

    with pytest.raises(Undo):
        database.process(STOCK_QUEUE, procedure)
    assert log_rows(database, log) == [b"1"]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2", b"3"]


def test_a_commit_that_fails_is_raised_and_its_messages_stay(database: sb.Database, log: str) -> None:
    begin_with(database, b"1", b"2", b"3")
    handed: list[bytes | None] = []

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        handed.extend(bodies(messages))
        write(transaction, log, messages, known=7 if bodies(messages) == [b"2"] else None)

    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        database.process(STOCK_QUEUE, procedure)
    assert handed == [b"1", b"2"]  # no other message was received
    assert log_rows(database, log) == [b"1"]
    query(database, f"insert into {log}_known values (7) returning number")
    assert database.process(STOCK_QUEUE, procedure) == 2
    assert log_rows(database, log) == [b"1", b"2", b"3"]


def test_a_swallowed_error_of_a_statement_is_no_success(database: sb.Database) -> None:
    begin_with(database, b"1")

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            transaction.connection.execute("select 1 / 0")

    with pytest.raises(sb.InstanceError, match="undone all of it"):
        database.process(STOCK_QUEUE, procedure)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_killed_connection_loses_and_doubles_nothing(database: sb.Database, log: str) -> None:
    begin_with(database, b"1", b"2", b"3")

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        write(transaction, log, messages)
        if bodies(messages) == [b"2"] and not killed:
            killed.append(terminate_backend(transaction.connection))

    killed: list[int] = []
    with pytest.raises(sb.InstanceError, match="went away"):
        database.process(STOCK_QUEUE, procedure)
    assert log_rows(database, log) == [b"1"]
    assert database.process(STOCK_QUEUE, procedure) == 2
    assert log_rows(database, log) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_procedure_may_end_its_transaction_itself(database: sb.Database, log: str, ending: str) -> None:
    begin_with(database, b"1", b"2")
    times = 0

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        nonlocal times
        times += 1
        if times > 1:
            return write(transaction, log, messages)
        return transaction.connection.execute(ending.encode()) and None

    assert database.process(STOCK_QUEUE, procedure) == (2 if ending == "commit" else 3)
    assert log_rows(database, log) == ([b"2"] if ending == "commit" else [b"1", b"2"])


def test_locks_kept_beyond_a_savepoint_are_given_back(database: sb.Database) -> None:
    initiator = begin_with(database, b"1", b"2")
    group = query(
        database,
        "select far_group_id from servicebroker.conversation_endpoints where conversation_handle = %s",
        initiator,
    )[0][0]

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        with transaction.savepoint():
            assert transaction.receive(STOCK_QUEUE, conversation_group_id=group, top=1)

    assert database.process(STOCK_QUEUE, procedure) == 1
    database.send(initiator, ORDER, b"3")
    taken = in_thread(database.receive, STOCK_QUEUE, conversation_group_id=group)
    assert bodies(taken.result(timeout=10)) == [b"3"]


def test_statements_are_prepared_again_after_discard_all(database: sb.Database) -> None:
    begin_with(database, b"1", b"2", b"3")
    handed: list[bytes | None] = []

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        handed.extend(bodies(messages))
        transaction.connection.execute("deallocate all")

    assert database.process(STOCK_QUEUE, procedure) == 3
    assert handed == [b"1", b"2", b"3"]


def test_process_waits_for_messages(database: sb.Database) -> None:
    handle = begin_with(database, b"1")
    done_event = threading.Event()
    running = in_thread(database.process, STOCK_QUEUE, lambda transaction, messages: done_event.set(), wait=1.0)
    assert done_event.wait(10)
    database.send(handle, ORDER, b"2")
    assert running.result(timeout=20) == 2


def test_threads_share_a_queue_by_its_groups(database: sb.Database) -> None:
    handles = [begin_with(database, *[b"%d" % number for number in range(20)]) for _ in range(8)]
    taken: dict[UUID, list[bytes | None]] = defaultdict(list)

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        for message in messages:
            taken[message.conversation_handle].append(message.message_body)

    readers = [in_thread(database.process, STOCK_QUEUE, procedure, wait=0.2) for _ in range(4)]
    assert sum(reader.result(timeout=60) for reader in readers) == 160
    assert len(taken) == len(handles)
    assert all(received_bodies == [b"%d" % number for number in range(20)] for received_bodies in taken.values())


def test_rollbacks_in_a_row_count_and_a_commit_ends_the_row(database: sb.Database) -> None:
    fails = iter([True] * 4 + [False, False] + [True] * 5)

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        if next(fails):
            raise Undo

    begin_with(database, b"1", b"2", b"3")
    for _ in range(4):
        with pytest.raises(Undo):
            database.process(STOCK_QUEUE, procedure)
    for _ in range(5):  # two commits first
        with pytest.raises(Undo):
            database.process(STOCK_QUEUE, procedure)
    with pytest.raises(sb.BrokerError) as error:
        database.process(STOCK_QUEUE, procedure)
    assert error.value.number == 9617


def test_a_transaction_that_does_nothing_sends_nothing(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.receive(STOCK_QUEUE)  # the connection is there
    with monkeypatch.context() as patched:
        patched.setattr(waiting, "wait", None)
        patched.setattr(waiting, "wait_async", None)
        with database.transaction():
            pass
        with pytest.raises(Undo), database.transaction():
            raise Undo


def by_executemany(transaction: sb.Transaction, log: str) -> None:
    with transaction.connection.cursor() as cursor:
        cursor.executemany(f"insert into {log} values (%s)".encode(), [(b"x",)])


def by_pipeline(transaction: sb.Transaction, log: str) -> None:
    with transaction.connection.pipeline():
        transaction.connection.execute(f"insert into {log} values ('x')".encode())


def by_savepoint_of_the_driver(transaction: sb.Transaction, log: str) -> None:
    with transaction.connection.transaction():
        transaction.connection.execute(f"insert into {log} values ('x')".encode())


def by_savepoint(transaction: sb.Transaction, log: str) -> None:
    with transaction.savepoint():
        transaction.connection.execute(f"insert into {log} values ('x')".encode())


def by_statement(transaction: sb.Transaction, log: str) -> None:
    transaction.connection.execute(f"insert into {log} values ('x')".encode())


@pytest.mark.parametrize(
    "write_first", [by_statement, by_executemany, by_pipeline, by_savepoint_of_the_driver, by_savepoint]
)
def test_any_first_statement_is_inside_the_transaction(
    database: sb.Database, log: str, write_first: Callable[[sb.Transaction, str], None]
) -> None:
    with pytest.raises(Undo), database.transaction() as transaction:
        write_first(transaction, log)
        raise Undo
    assert log_rows(database, log) == []
    with database.transaction() as transaction:
        write_first(transaction, log)
    assert log_rows(database, log) == [b"x"]


def test_verbs_that_join_a_connection_of_ours_are_inside_its_transaction(database: sb.Database) -> None:
    with pytest.raises(Undo), database.transaction() as transaction:
        begin(database.join(transaction.connection))  # type: ignore[arg-type]
        raise Undo
    assert (
        query(database, "select from servicebroker.conversation_endpoints where database_id = %s", database.database_id)
        == []
    )


def test_a_refused_argument_leaves_the_transaction_usable(database: sb.Database) -> None:
    initiator, _ = open_dialog(database)
    with database.transaction() as transaction:
        with pytest.raises(sb.BrokerError):
            transaction.send(initiator, "", b"x")
        transaction.send(initiator, ORDER, b"1")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_command_left_by_an_interruption_is_not_sent(database: sb.Database) -> None:
    initiator, _ = open_dialog(database)
    with database.instance.connection() as connection:
        connection.queued.append(QueuedCommand(b"begin"))  # as __enter__ does if Ctrl-C comes before the block
    for _ in range(database.instance._pool.get_stats()["pool_size"]):
        database.send(initiator, ORDER, b"1")
    assert {body for (body,) in query(database, f"select message_body from {view(database)}")} == {b"1"}


def view(database: sb.Database) -> str:
    return f"{database.name.lower()}_dbo.stockqueue"


def test_no_transaction_is_open_while_it_waits(database: sb.Database) -> None:
    handle = begin_with(database, b"1")
    done_event = threading.Event()
    running = in_thread(database.process, STOCK_QUEUE, lambda transaction, messages: done_event.set(), wait=2.0)
    assert done_event.wait(10)
    opened = "select from pg_stat_activity where datname = current_database() and state like 'idle in%%'"
    eventually(lambda: not query(database, opened))
    database.alter_queue(STOCK_QUEUE, rebuild=True)  # which takes the whole table
    database.send(handle, ORDER, b"2")
    assert running.result(timeout=20) == 2


def test_without_a_begin_nothing_is_done(database: sb.Database, log: str) -> None:
    """A cancellation may have hit BEGIN itself, and the application may continue in the block."""
    handle = begin(database)
    with database.instance.connection() as connection:
        connection.queued.append(QueuedCommand(b"begin nonsense"))
        for _ in range(2):
            with pytest.raises(psycopg.errors.SyntaxError):
                database.join(connection).send(handle, ORDER, b"1")  # type: ignore[arg-type]
            with pytest.raises(psycopg.errors.SyntaxError):
                connection.execute(f"insert into {log} values ('x')".encode())
    assert log_rows(database, log) == []
    assert database.receive(STOCK_QUEUE) == []


def test_process_needs_receive(database: sb.Database, app: sb.Database) -> None:
    begin_with(database, b"1")
    with refused(229):
        app.process(STOCK_QUEUE, lambda transaction, messages: None)
    database.grant("RECEIVE", APP, queue=STOCK_QUEUE)
    assert app.process(STOCK_QUEUE, lambda transaction, messages: None) == 1
    begin_with(database, b"2")
    database.revoke("RECEIVE", APP, queue=STOCK_QUEUE)
    with refused(229):
        app.process(STOCK_QUEUE, lambda transaction, messages: None)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]


def test_process_refuses_missing_and_disabled_queues(database: sb.Database) -> None:
    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        raise AssertionError

    with refused(15151):
        database.process("Nowhere", procedure)
    database.alter_queue(STOCK_QUEUE, status=False)
    with refused(9617):
        database.process(STOCK_QUEUE, procedure)
    assert database.process(ORDERS_QUEUE, procedure, top=0, wait=30) == 0


def test_commits_that_fail_on_their_way_count_as_rollbacks(database: sb.Database, log: str) -> None:
    begin_with(database, b"1")
    for _ in range(5):
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            database.process(STOCK_QUEUE, lambda transaction, messages: write(transaction, log, messages, known=1))
    with pytest.raises(sb.BrokerError) as error:
        database.receive(STOCK_QUEUE)
    assert error.value.number == 9617


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the executions of each statement by its name, without polls of idle readers."""
    count: Counter[str] = Counter()
    add = StatementCounts.add

    def counting(self: StatementCounts, name: str, seconds: float) -> None:
        count[name] += 1
        add(self, name, seconds)

    monkeypatch.setattr(StatementCounts, "add", counting)
    for module in (sb.api.verbs, sb.api.aio.verbs):
        monkeypatch.setattr(module, "FALLBACK_POLL_S", 60.0)
    return count


def _is_waiting(database: sb.Database) -> bool:
    return database.instance.notifier.count_asleep(queue_number(database, STOCK_QUEUE)) == 1


_OF_A_WAIT = (
    "owner_verbs.register_reader.insert_readers",
    "owner_verbs.register_reader.delete_readers",
    "receive.service_changes",
)


def test_a_message_that_comes_alone_costs_two_receives(database: sb.Database, statements: Counter[str]) -> None:
    """One RECEIVE gets the message, and one finds nothing: the waiting reader stays registered."""
    alone = 5
    handle = begin(database)
    database.send(handle, ORDER, b"first")
    received: list[bytes | None] = []
    reader = in_thread(
        database.process, STOCK_QUEUE, lambda transaction, messages: received.extend(bodies(messages)), wait=2
    )
    eventually(lambda: _is_waiting(database) and len(received) == 1)
    before = statements.copy()
    for number in range(alone):
        database.send(handle, ORDER, b"%d" % number)
        eventually(lambda number=number: len(received) == number + 2 and _is_waiting(database))
        time.sleep(0.02)  # slower than the polling mode needs
    spent = statements - before
    assert spent["conversation.receive"] == 2 * alone
    assert not any(spent[name] for name in _OF_A_WAIT)
    assert reader.result(30) == alone + 1
    assert (
        statements["owner_verbs.register_reader.delete_readers"]
        == before["owner_verbs.register_reader.delete_readers"] + 1
    )


def test_a_message_sent_just_before_the_reader_sleeps_wakes_it(
    database: sb.Database, statements: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message comes between an empty RECEIVE and the wait, also for a reader that has just processed one."""
    handle = begin(database)
    received: list[bytes | None] = []
    sleeps = 0

    def sending(reader: type[Any]) -> Callable[..., Any]:
        wait = reader.wait

        def send_first(self: Any, seconds: float) -> Any:
            nonlocal sleeps
            sleeps += 1
            if sleeps <= 5:
                in_thread(database.send, handle, ORDER, b"%d" % sleeps).result(30)
            return wait(self, seconds)

        async def send_first_aio(self: Any, seconds: float) -> Any:
            nonlocal sleeps
            sleeps += 1
            if sleeps <= 5:
                sent = in_thread(database.send, handle, ORDER, b"%d" % sleeps)
                await asyncio.wrap_future(sent)
            return await wait(self, seconds)

        return send_first_aio if reader is sb.api.aio.notifier.WaitingReader else send_first

    for reader in (sb.api.notifier.WaitingReader, sb.api.aio.notifier.WaitingReader):
        monkeypatch.setattr(reader, "wait", sending(reader))
    began = time.monotonic()
    assert database.process(STOCK_QUEUE, lambda transaction, messages: received.extend(bodies(messages)), wait=1) == 5
    assert received == [b"%d" % number for number in range(1, 6)]
    assert time.monotonic() - began < 30  # otherwise the reader would have slept for a minute


def test_a_service_that_changes_while_the_reader_is_busy_ends_no_wait(database: sb.Database) -> None:
    """8468 ends waits only: here the wait begins after the procedure has returned."""
    handle = begin(database)
    received: list[bytes | None] = []

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        received.extend(bodies(messages))
        if received == [b"1"]:
            began.set()
            altered.wait(30)

    began, altered = threading.Event(), threading.Event()
    reader = in_thread(database.process, STOCK_QUEUE, procedure, wait=2)
    eventually(lambda: _is_waiting(database))
    database.send(handle, ORDER, b"1")
    began.wait(30)
    database.create_service("//test/Beside", STOCK_QUEUE)
    database.drop_service("//test/Beside")
    number = queue_number(database, STOCK_QUEUE)
    eventually(lambda: number not in database.instance.notifier.service_changes)  # the process has heard of it
    altered.set()
    eventually(lambda: reader.done() or _is_waiting(database))
    database.send(handle, ORDER, b"2")
    assert reader.result(30) == 2
    reader = in_thread(database.process, STOCK_QUEUE, procedure, wait=20)
    eventually(lambda: _is_waiting(database))
    database.create_service("//test/Beside", STOCK_QUEUE)
    database.drop_service("//test/Beside")
    with refused(8468):
        reader.result(30)
