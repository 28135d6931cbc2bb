"""Faults that only asyncio has: cancellation at any await, many tasks on few connections, the end of a loop."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, STOCK, STOCK_QUEUE, Undo, bodies, define_standard_set
from tracing_support import tracer_provider

T = TypeVar("T")

TIMEOUT_S = 20.0  # seconds; more than any step here needs
_names = count(1)


class LoopBed:
    """One broker database, and an asyncio instance in an event loop of the test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.name = f"Async{next(_names)}"
        with sb.open(url, upkeep=None) as instance:
            database = instance.database(self.name, create=True)
            define_standard_set(database)
            # these tests roll back often, and must not trigger poison detection
            database.alter_queue(STOCK_QUEUE, poison_message_handling=False)

    def run(self, test: Callable[[sb.AsyncDatabase], Coroutine[Any, Any, T]], connections: int = 4) -> T:
        async def open_and_test() -> T:
            async with sb.AsyncInstance(self.url, connections=connections, upkeep=None) as instance:
                return await test(await instance.database(self.name))

        return asyncio.run(open_and_test())


@pytest.fixture(scope="module")
def url(make_instance_url: Callable[..., str]) -> str:
    return make_instance_url()


@pytest.fixture
def loop(url: str) -> LoopBed:
    return LoopBed(url)


async def dialog(database: sb.AsyncDatabase, *messages: bytes) -> UUID:
    handle = await database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    for body in messages:
        await database.send(handle, ORDER, body)
    return handle


async def rows(database: sb.AsyncDatabase, text: str) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(database.instance.url, autocommit=True) as connection:
        return await (await connection.execute(text)).fetchall()  # type: ignore[call-overload]


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def nothing_is_left_open(database: sb.AsyncDatabase) -> None:
    """Check that no advisory lock is held, no transaction is open, and all pool connections are available."""
    held = (
        "select count(*) from pg_locks where locktype = 'advisory' "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    opened = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'"

    async def quiet() -> bool:  # the server's session outlives a connection closed during a statement for a moment
        return await rows(database, f"select ({held}) + ({opened})") == [(0,)]

    await eventually(quiet)
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        barrier = asyncio.Barrier(4)

        async def hold() -> None:
            async with database.instance.connection() as connection:
                await barrier.wait()
                await connection.execute("select 1")

        for _ in range(4):
            group.create_task(hold())


class CancelAt:
    """Runs a coroutine and cancels its task at its await number `at`."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.waits = 0

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._steps(work)

    @types.coroutine
    def _steps(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        step: Callable[[Any], Any] = work.send
        given: Any = None
        while True:
            try:
                waited_for = step(given)
            except StopIteration as error:
                result: T = error.value
                return result
            self.waits += 1
            if self.waits == self.at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                given = yield waited_for
                step = work.send
            except BaseException as problem:
                given, step = problem, work.throw


async def cancel_everywhere(
    work: Callable[[], Coroutine[Any, Any, T]], check: Callable[[T | None], Coroutine[Any, Any, None]]
) -> int:
    """Run the work once per await, cancelled at another await each time. `check` gets its result."""
    for at in count(1):
        cut = CancelAt(at)
        task = asyncio.create_task(cut.run(work()))
        result = None
        async with asyncio.timeout(TIMEOUT_S):
            with suppress(
                asyncio.CancelledError, sb.InstanceError
            ):  # the second: PostgreSQL has rolled everything back
                result = await task
        await check(result)
        if cut.waits < at:
            return at - 1
    raise AssertionError


# --- receive ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [0.0, 30.0])
@pytest.mark.parametrize("traces", [False, True], ids=["", "traced"])
def test_a_receive_that_is_cancelled_at_any_await_loses_nothing(loop: LoopBed, wait: float, traces: bool) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        handle = await dialog(database, b"0")
        received: list[bytes | None] = []
        sent = 1

        async def work() -> list[sb.Message]:
            return await database.receive(STOCK_QUEUE, top=1, wait=wait)

        async def check(messages: list[sb.Message] | None) -> None:
            nonlocal sent
            received.extend(bodies(messages or []))
            await nothing_is_left_open(database)
            received.extend(bodies(await database.receive(STOCK_QUEUE)))
            assert received == [b"%d" % number for number in range(sent)]
            await database.send(handle, ORDER, b"%d" % sent)
            sent += 1

        assert await cancel_everywhere(work, check) >= 1  # a server that answers at once costs one await

    with tracer_provider() if traces else nullcontext():
        loop.run(test)


@pytest.mark.parametrize("table", ["trace_contexts", "message_types"])
def test_a_receive_that_is_cancelled_after_its_commit_returns_its_messages(loop: LoopBed, table: str) -> None:
    """The cancellation hits the lookup of traces, or of a name that another process has created."""

    def send(elsewhere: sb.Database) -> None:
        elsewhere.create_message_type("//test/New")
        elsewhere.create_contract("//test/New", {"//test/New": "INITIATOR"})
        elsewhere.alter_service(STOCK, add_contracts=["//test/New"])
        elsewhere.send(elsewhere.begin_dialog(ORDERS, STOCK, contract="//test/New"), "//test/New", b"x")

    async def test(database: sb.AsyncDatabase) -> None:
        async def is_blocked() -> bool:
            waits = "select count(*) from pg_locks where not granted and relation = %r::regclass"
            return await rows(database, waits % f"servicebroker.{table}") == [(1,)]

        assert await database.receive(STOCK_QUEUE) == []  # the current names are cached
        with sb.open(database.instance.url, upkeep=None) as other_instance:
            await asyncio.to_thread(send, other_instance.database(database.name))
        async with await psycopg.AsyncConnection.connect(database.instance.url) as locking:
            await locking.execute(f"lock servicebroker.{table}".encode())
            receiving = asyncio.create_task(database.receive(STOCK_QUEUE))
            await eventually(is_blocked)
            receiving.cancel()
            await asyncio.wait({receiving}, timeout=1)  # longer than it would take to lose them
        (message,) = await receiving
        assert (message.message_type_name, message.message_body) == ("//test/New", b"x")
        await nothing_is_left_open(database)

    with tracer_provider():
        loop.run(test)


def test_a_waiting_receive_that_is_cancelled_at_any_await_loses_nothing(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        handle = await dialog(database)
        received: list[bytes | None] = []
        sent = 0

        async def work() -> list[sb.Message]:
            async def send_later() -> None:
                await asyncio.sleep(0.02)
                await database.send(handle, ORDER, b"%d" % sent)

            sending = asyncio.create_task(send_later())
            try:
                return await database.receive(STOCK_QUEUE, top=1, wait=30)
            finally:
                await asyncio.shield(sending)

        async def check(messages: list[sb.Message] | None) -> None:
            nonlocal sent
            received.extend(bodies(messages or []))

            async def has_arrived() -> bool:
                received.extend(bodies(await database.receive(STOCK_QUEUE)))
                return len(received) > sent

            await eventually(has_arrived)
            assert received == [b"%d" % number for number in range(sent + 1)]
            sent += 1
            assert not database.instance.notifier._waiting
            await nothing_is_left_open(database)

        assert await cancel_everywhere(work, check) >= 6

    loop.run(test)


def test_a_receive_on_a_connection_of_the_application_loses_nothing(loop: LoopBed) -> None:
    """In autocommit mode the RECEIVE is a transaction of its own."""

    async def test(database: sb.AsyncDatabase) -> None:
        handle = await dialog(database, b"0")
        received: list[bytes | None] = []
        sent = 1
        application = await psycopg.AsyncConnection.connect(database.instance.url, autocommit=True)

        async def work() -> list[sb.Message]:
            return await database.join(application).receive(STOCK_QUEUE)

        async def check(messages: list[sb.Message] | None) -> None:
            nonlocal sent
            assert not application.closed
            received.extend(bodies(messages or []))
            received.extend(bodies(await database.receive(STOCK_QUEUE)))
            assert received == [b"%d" % number for number in range(sent)]
            await nothing_is_left_open(database)
            await database.send(handle, ORDER, b"%d" % sent)
            sent += 1

        async with application:
            assert await cancel_everywhere(work, check) >= 1

    loop.run(test)


# --- transactions -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def ours(database: sb.AsyncDatabase, _: psycopg.AsyncConnection) -> AsyncIterator[sb.AsyncJoinedTransaction]:
    async with database.transaction() as transaction:
        yield transaction


@asynccontextmanager
async def theirs(
    database: sb.AsyncDatabase, application: psycopg.AsyncConnection
) -> AsyncIterator[sb.AsyncJoinedTransaction]:
    async with application.transaction():
        yield database.join(application)
    await database.join(application).release_locks()


@pytest.mark.parametrize("begin", [ours, theirs])
def test_a_transaction_that_is_cancelled_at_any_await_is_done_or_not(loop: LoopBed, begin: Callable[..., Any]) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        handle = await dialog(database, b"0")
        async with database.instance.connection() as connection:
            await connection.execute(f"create table {database.name} (body bytea)")  # type: ignore[call-overload]
        application = await psycopg.AsyncConnection.connect(database.instance.url, autocommit=True)
        number = 0

        async def work() -> bool:
            async with begin(database, application) as transaction:
                (message,) = await transaction.receive(STOCK_QUEUE)
                async with transaction.savepoint():
                    await transaction.connection.execute(
                        f"insert into {database.name} values (%s)", (message.message_body,)
                    )
                    await transaction.send(handle, ORDER, b"%d" % (number + 1))
            return True

        async def check(committed: bool | None) -> None:
            nonlocal number
            await database.join(application).release_locks()
            await nothing_is_left_open(database)
            done = len(await rows(database, f"select from {database.name}"))
            assert done in ([number + 1] if committed else [number] if begin is ours else [number, number + 1])
            number = done
            with suppress(Undo):
                async with database.transaction() as transaction:
                    assert bodies(await transaction.receive(STOCK_QUEUE)) == [b"%d" % number]
                    raise Undo

        async with application:
            assert await cancel_everywhere(work, check) >= 5

    loop.run(test)


def test_a_pipeline_that_is_cancelled_at_any_await_is_committed_whole_or_not(loop: LoopBed) -> None:
    """The cancellation may also be suppressed, and the transaction continues."""

    async def test(database: sb.AsyncDatabase) -> None:
        known = await dialog(database, b"0")
        await database.receive(STOCK_QUEUE)

        async def work() -> bool:
            new = await database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
            async with database.transaction() as transaction:
                try:
                    async with transaction.pipeline():
                        for handle in (known, new, known, new):
                            await transaction.send(handle, ORDER, b"x")
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    assert task is not None
                    task.uncancel()
            return True

        async def check(committed: bool | None) -> None:
            await nothing_is_left_open(database)
            found = 0
            while messages := await database.receive(STOCK_QUEUE):
                found += len(messages)
            assert found in ([4] if committed else [0, 4])

        assert await cancel_everywhere(work, check) >= 4

    loop.run(test)


async def make_log(database: sb.AsyncDatabase) -> None:
    async with database.instance.connection() as connection:
        await connection.execute(f"create table {database.name} (body bytea primary key)".encode())


async def log(transaction: sb.AsyncTransaction, messages: list[sb.Message]) -> None:
    """Store the messages in the log table of the database. This is a procedure for `process`."""
    for message in messages:
        await transaction.connection.execute(
            f"insert into {transaction.database.name} values (%s)", (message.message_body,)
        )


async def logged_bodies(database: sb.AsyncDatabase) -> list[bytes]:
    return sorted(body for (body,) in await rows(database, f"select body from {database.name}"))


@pytest.mark.parametrize("wait", [0.0, 0.05])
def test_a_process_that_is_cancelled_at_any_await_does_each_message_once(loop: LoopBed, wait: float) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        await make_log(database)
        handle = await dialog(database, b"000", b"001", b"002")
        sent = 3

        async def work() -> int:
            return await database.process(STOCK_QUEUE, log, wait=wait)

        async def check(_: int | None) -> None:
            nonlocal sent
            await nothing_is_left_open(database)
            done = await logged_bodies(database)
            assert await database.process(STOCK_QUEUE, log) == sent - len(done)
            assert await logged_bodies(database) == [b"%03d" % number for number in range(sent)]
            for number in range(sent, sent + 3):
                await database.send(handle, ORDER, b"%03d" % number)
            sent += 3

        assert await cancel_everywhere(work, check) >= 6

    loop.run(test)


def test_a_timeout_at_any_moment_of_a_process_does_each_message_once(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        await make_log(database)
        handle = await dialog(database)
        for number in range(150):
            await database.send_batch(handle, ORDER, [b"%03d %d" % (number, part) for part in range(3)])
            with suppress(TimeoutError, sb.InstanceError):
                async with asyncio.timeout(number * 0.00003):
                    await database.process(STOCK_QUEUE, log)
            await asyncio.sleep(0)  # a cancellation that was held back would come here
        await nothing_is_left_open(database)
        await database.process(STOCK_QUEUE, log)
        assert await logged_bodies(database) == [
            b"%03d %d" % (number, part) for number in range(150) for part in range(3)
        ]

    loop.run(test)


def test_statements_after_a_cancellation_in_the_block_are_in_the_transaction(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        await make_log(database)
        await dialog(database, b"x")

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            with suppress(Undo, psycopg.errors.InFailedSqlTransaction):
                async with database.transaction() as transaction:
                    try:
                        messages = await transaction.receive(STOCK_QUEUE)
                        await log(transaction, messages)
                    except asyncio.CancelledError:
                        task.uncancel()
                    await transaction.connection.execute(f"insert into {database.name} values ('late')")
                    raise Undo

        async def check(_: None) -> None:
            await nothing_is_left_open(database)
            assert await logged_bodies(database) == []

        assert await cancel_everywhere(work, check) >= 3

    loop.run(test)


@pytest.mark.parametrize("where", ["alone", "in a transaction that is committed all the same"])
def test_an_end_that_is_cancelled_at_any_await_is_never_half_done(loop: LoopBed, where: str) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        async def target_of_new_conversation() -> UUID:
            await dialog(database, b"x")
            (message,) = await database.receive(STOCK_QUEUE)
            return message.conversation_handle

        target = await target_of_new_conversation()

        async def work() -> bool:
            if where == "alone":
                await database.end_conversation(target, error=(5, "enough"))
                return True
            async with database.transaction() as transaction:
                ending = asyncio.current_task()
                assert ending is not None
                try:
                    await transaction.end_conversation(target, error=(5, "enough"))
                except asyncio.CancelledError:
                    ending.uncancel()
                    return False  # leaves the block normally
            return True

        async def check(ended: bool | None) -> None:
            nonlocal target
            await nothing_is_left_open(database)
            messages = await database.receive(ORDERS_QUEUE)
            open_still = await rows(
                database,
                "select from servicebroker.conversation_endpoints "
                f"where conversation_handle = '{target}' and state in ('CO', 'DI')",
            )
            assert len(messages) + len(open_still) == 1, "either the peer was told, or the conversation goes on"
            if ended:
                assert messages
            if messages:
                target = await target_of_new_conversation()

        assert await cancel_everywhere(work, check) >= 2

    loop.run(test)


def test_definitions_that_are_cancelled_at_any_await_are_done_or_not(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        made = 0

        async def work() -> bool:
            await database.create_queue(f"Queue{made}")
            await database.create_service(f"Service{made}", f"Queue{made}", [CONTRACT])
            await database.drop_service(f"Service{made}")
            await database.drop_queue(f"Queue{made}")
            return True

        async def check(_: bool | None) -> None:
            nonlocal made
            await nothing_is_left_open(database)
            with suppress(sb.BrokerError):
                await database.drop_service(f"Service{made}")
            with suppress(sb.BrokerError):
                await database.drop_queue(f"Queue{made}")
            made += 1

        await cancel_everywhere(work, check)
        names = "select name from servicebroker.queues where name like 'Queue%'"
        tables = "select relname from pg_class where relname ~ '^queue_[0-9]+$'"
        assert await rows(database, names) == []
        kept = await rows(database, "select 'queue_' || queue_id from servicebroker.queues order by 1")
        assert sorted(await rows(database, tables)) == sorted(kept)

    loop.run(test)


# --- timeouts -----------------------------------------------------------------------------------------------------


def test_timeouts_of_asyncio_end_a_wait_and_no_more(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        handle = await dialog(database)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await database.receive(STOCK_QUEUE, wait=float("inf"))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(database.receive(STOCK_QUEUE, wait=float("inf")), 0.1)
        async with database.transaction() as transaction:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.3):  # during a wait: the transaction continues
                    await transaction.receive(STOCK_QUEUE, wait=float("inf"))
            await transaction.send(handle, ORDER, b"x")
        assert bodies(await database.receive(STOCK_QUEUE)) == [b"x"]
        await nothing_is_left_open(database)

    loop.run(test)


def test_a_timeout_at_any_moment_loses_no_message(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        handle = await dialog(database)
        received: list[bytes | None] = []
        for number in range(150):
            await database.send(handle, ORDER, b"%d" % number)
            with suppress(TimeoutError):
                async with asyncio.timeout(number * 0.00003):
                    received += bodies(await database.receive(STOCK_QUEUE))
            with suppress(TimeoutError):
                received += bodies(await asyncio.wait_for(database.receive(STOCK_QUEUE), number * 0.00003))
            await asyncio.sleep(0)  # a cancellation that was held back would come here
        received += bodies(await database.receive(STOCK_QUEUE))
        assert received == [b"%d" % number for number in range(150)]
        await nothing_is_left_open(database)

    loop.run(test)


def test_cancelling_again_and_again_loses_no_message(loop: LoopBed) -> None:
    """A cancel scope of anyio does the same until its tasks have ended."""

    async def test(database: sb.AsyncDatabase) -> None:
        handle = await dialog(database)
        received: list[bytes | None] = []
        for number in range(50):
            await database.send(handle, ORDER, b"%d" % number)
            receiving = asyncio.create_task(database.receive(STOCK_QUEUE))
            await asyncio.sleep(number * 0.0001)
            while not receiving.done():
                receiving.cancel()
                await asyncio.sleep(0)
            if not receiving.cancelled():
                received += bodies(receiving.result())
        received += bodies(await database.receive(STOCK_QUEUE))
        assert received == [b"%d" % number for number in range(50)]
        await nothing_is_left_open(database)

    loop.run(test)


def test_a_verb_that_waits_for_a_lock_can_be_cancelled(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        await dialog(database, b"x")
        async with database.transaction() as transaction:
            (message,) = await transaction.receive(STOCK_QUEUE)
            blocked = asyncio.create_task(
                database.receive(STOCK_QUEUE, conversation_handle=message.conversation_handle)
            )
            await asyncio.sleep(0.3)
            blocked.cancel()
            started_at = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await blocked
            assert time.monotonic() - started_at < 3
        await nothing_is_left_open(database)

    loop.run(test)


# --- many tasks ---------------------------------------------------------------------------------------------------


def test_a_thousand_concurrent_transactions_use_four_connections(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        async def conversation(number: int) -> None:
            async with database.transaction() as transaction:
                handle = await transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
                await transaction.send(handle, ORDER, b"%d" % number)

        async with asyncio.TaskGroup() as group:
            for number in range(1000):
                group.create_task(conversation(number))
        received: list[bytes | None] = []

        async def reader() -> None:
            while messages := await database.receive(STOCK_QUEUE, wait=0.5):
                received.extend(bodies(messages))

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(reader())
        assert sorted(received) == sorted(b"%d" % number for number in range(1000))
        used = await rows(database, "select count(*) from pg_stat_activity where application_name = 'servicebroker'")
        assert used[0][0] <= 4

    loop.run(test)


def test_waiting_readers_share_one_connection_and_each_gets_a_message(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        readers = [asyncio.create_task(database.receive(STOCK_QUEUE, wait=TIMEOUT_S)) for _ in range(50)]

        async def all_wait() -> bool:
            return sum(map(len, database.instance.notifier._waiting.values())) == 50

        await eventually(all_wait)
        listening = await rows(
            database,
            "select application_name, count(*) from pg_stat_activity "
            "where application_name like 'servicebroker %' and datname = current_database() group by 1 order by 1",
        )
        assert listening == [("servicebroker notifier", 1), ("servicebroker waiting readers", 1)]
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(dialog(database, b"%d" % number))
        found = [body for messages in await asyncio.gather(*readers) for body in bodies(messages)]
        assert sorted(found) == sorted(b"%d" % number for number in range(50))
        assert not database.instance.notifier._waiting

    loop.run(test)


def test_two_tasks_may_share_a_transaction(loop: LoopBed) -> None:
    async def test(database: sb.AsyncDatabase) -> None:
        async with database.transaction() as transaction, asyncio.TaskGroup() as group:
            for number in range(20):
                handle = await database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
                group.create_task(transaction.send(handle, ORDER, b"%d" % number))
        received: list[bytes | None] = []
        while messages := await database.receive(STOCK_QUEUE):
            received += bodies(messages)
        assert sorted(received) == sorted(b"%d" % number for number in range(20))

    loop.run(test)


# --- opening and closing ------------------------------------------------------------------------------------------


def test_the_end_of_the_loop_ends_everything(loop: LoopBed) -> None:
    async def leave_readers_behind(database: sb.AsyncDatabase) -> None:
        readers = [asyncio.create_task(database.receive(STOCK_QUEUE, wait=float("inf"))) for _ in range(10)]
        await asyncio.sleep(0.3)
        left_behind.extend(readers)

    left_behind: list[asyncio.Task[Any]] = []
    started_at = time.monotonic()
    loop.run(leave_readers_behind)
    assert time.monotonic() - started_at < TIMEOUT_S
    ends = [reader.cancelled() or isinstance(reader.exception(), sb.InstanceError) for reader in left_behind]
    assert ends == [True] * 10

    async def check(database: sb.AsyncDatabase) -> None:
        await nothing_is_left_open(database)

    loop.run(check)


def test_the_loop_goes_on_while_an_embedded_server_starts_and_stops(tmp_path: Path) -> None:
    async def test() -> None:
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - before)

        ticking = asyncio.create_task(tick())
        instance = await sb.open_async(tmp_path / "data", upkeep=0.05)
        database = await instance.database("Mine", create=True)
        await database.create_queue("Q")
        assert await database.receive("q") == []
        await instance.close()
        ticking.cancel()
        assert longest < 0.5, "making a server takes seconds"

    asyncio.run(test())


def test_an_opening_that_is_cancelled_stops_its_server(tmp_path: Path) -> None:
    async def test() -> None:
        opening = asyncio.create_task(sb.open_async(tmp_path / "data").open())
        await asyncio.sleep(0.2)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not (tmp_path / "data" / "postgresql" / "postmaster.pid").exists()
        async with sb.open_async(tmp_path / "data") as instance:
            assert await instance.database("Mine", create=True)

    asyncio.run(test())


def test_an_instance_is_opened_before_it_is_used_and_not_after(url: str) -> None:
    async def test() -> None:
        instance = sb.open_async(url, upkeep=None)
        with pytest.raises(sb.InstanceError, match="not open"):
            await instance.database("Mine")
        async with instance:
            database = await instance.database("Mine", create=True)
        with pytest.raises(sb.InstanceError, match="closed"):
            await database.receive("Q")

    asyncio.run(test())


def test_another_event_loop_is_refused_at_once(url: str) -> None:
    def refused_in_another_loop(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        async def run() -> None:
            with pytest.raises(sb.InstanceError, match="another event loop"):
                await work()

        asyncio.run(asyncio.wait_for(run(), 10))  # seconds; without the check each call waits for its own timeout

    async def test() -> None:
        async with sb.open_async(url, upkeep=None) as instance:
            database = await instance.database("Loops", create=True)
            await database.create_queue("Q")
            reader = asyncio.create_task(database.receive("Q", wait=60))
            await asyncio.sleep(0.2)
            block = database.transaction()
            transaction = await block.__aenter__()
            calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
                instance.open,
                instance.close,
                lambda: instance.database("Loops"),
                lambda: database.receive("Q", wait=60),
                lambda: database.request("Q", "Q", timeout=60),
                lambda: database.wait_for_answer(UUID(int=1), timeout=60),
                lambda: transaction.receive("Q"),
                lambda: database.execute_tsql("SELECT 1"),
            ]
            for call in calls:
                await asyncio.to_thread(refused_in_another_loop, call)
            await block.__aexit__(None, None, None)
            reader.cancel()
            assert await database.receive("Q") == []  # its own loop goes on

    asyncio.run(test())


def test_tsql_runs_on_connections_that_stay_open(url: str) -> None:
    loop = LoopBed(url)
    since = "SELECT login_time FROM sys.dm_exec_sessions WHERE session_id = @@SPID"

    async def talk(database: sb.AsyncDatabase) -> None:
        began = {(await database.execute_tsql(since)).rows[0] for _ in range(10)}
        assert len(began) < 5  # a call that opens an instance has its own connection
        with pytest.raises(sb.TsqlError):
            await database.execute_tsql("SELECT 1 / 0")
        several = await asyncio.gather(*(database.execute_tsql("SELECT @n", {"n": n}) for n in range(10)))
        assert [each.rows for each in several] == [[(n,)] for n in range(10)]

    loop.run(talk)
    loop.run(talk)  # and once more after the instance was closed


def test_tsql_works_on_connections_of_the_instance(loop: LoopBed) -> None:
    sessions = (
        "select count(*) from pg_stat_activity where datname = current_database() and application_name like "
        "'servicebroker%' and application_name not in ('servicebroker notifier', 'servicebroker waiting readers')"
    )

    async def work(database: sb.AsyncDatabase) -> None:
        await asyncio.gather(*(database.execute_tsql("SELECT @n", {"n": n}) for n in range(10)))
        [(count,)] = await rows(database, sessions)
        assert count <= 2
        await database.execute_tsql("CREATE QUEUE Both; CREATE SERVICE Both ON QUEUE Both ([DEFAULT])")
        assert await database.receive("Both") == []
        with pytest.raises(sb.TsqlError):
            await database.execute_tsql("BEGIN TRANSACTION; SELECT 1 / 0")
        async with database.transaction() as transaction:
            heard: list[str] = []
            transaction.connection.add_notice_handler(lambda notice: heard.append(str(notice.message_primary)))
            await transaction.connection.execute("do $$ begin raise notice 'heard'; end $$")
        assert heard == ["heard"]

    loop.run(work, connections=2)


def test_waitfor_is_woken_by_a_message(loop: LoopBed) -> None:
    waiting = "WAITFOR (RECEIVE TOP (1) message_body FROM StockQueue), TIMEOUT 60000"

    async def work(database: sb.AsyncDatabase) -> None:
        many = [asyncio.create_task(database.execute_tsql(waiting)) for _ in range(12)]
        while len(database.instance.notifier._waiting) < 1:
            await asyncio.sleep(0.01)
        for number in range(12):
            await dialog(database, b"%d" % number)
        async with asyncio.timeout(20):
            found = await asyncio.gather(*many)
        assert {each.rows[0][0] for each in found} == {b"%d" % number for number in range(12)}

    loop.run(work, connections=14)
