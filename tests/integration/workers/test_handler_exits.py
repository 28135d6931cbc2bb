"""Every kind of exit of a handler is a failure of its message. The policy decides; reader and queue go on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import psycopg
import pytest

import servicebroker as sb
from servicebroker.api.aio import working
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    errors,
    eventually,
    query,
    queue_number,
    refused,
)

Messages = list[sb.Message]


class SilentError(Exception):
    """An exception whose `str()` raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class NoTextError(Exception):
    """An exception whose `str()` returns no string."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class EndlessError(Exception):
    """An exception whose `str()` recurses without end."""

    def __str__(self) -> str:
        return str(self)


def recurse() -> None:
    recurse()


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    "GeneratorExit": GeneratorExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [asyncio.CancelledError(), KeyboardInterrupt()]),
    "BaseException": BaseException,
    "MemoryError": MemoryError,
    "StopIteration": StopIteration,
    "StopAsyncIteration": StopAsyncIteration,
    "text raises": SilentError,
    "text is not a text": NoTextError,
    "text recurses": EndlessError,
    "no text": lambda: ValueError(""),
    "NUL and half a character": lambda: ValueError("a\0b\ud800"),
    "a megabyte of text": lambda: ValueError("x" * (1 << 20)),
}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Keep lone surrogates out of the captured log: pytest-xdist cannot send them between processes."""
    caplog.set_level(logging.CRITICAL + 1, "servicebroker")


def send(database: sb.Database, *texts: bytes) -> None:
    """Send each body on a conversation of its own."""
    for text in texts:
        database.send(begin(database), ORDER, text)


def raising(problem: BaseException) -> NoReturn:
    raise problem


def is_bad(message: sb.Message) -> bool:
    return message.message_body == b"bad"


def is_on(database: sb.Database) -> bool:
    return bool(query(database, "select is_receive_enabled from sys.service_queues where name = %s", STOCK_QUEUE)[0][0])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_a_worker_survives_any_exception_of_its_handler(database: sb.Database, name: str) -> None:
    received: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE, poison=lambda failure: sb.Retry() if failure.count < 3 else sb.SetAside())

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        if is_bad(message):
            raise EXCEPTIONS[name]()
        received.append(message.message_body)

    with database.working(worker):
        send(database, b"bad", b"good", b"bad", b"good")
        eventually(lambda: len(received) == 2 and len(database.set_aside_messages()) == 2)
    assert [letter.failures for letter in database.set_aside_messages()] == [3, 3]
    assert is_on(database)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", EXCEPTIONS)
def test_an_asyncio_worker_survives_any_exception_of_its_handler(
    make_instance_url: Callable[..., str], name: str
) -> None:
    """No blocking portal is used: it has tasks of its own between the worker and a handler."""
    received: list[bytes | None] = []

    async def run(url: str) -> None:
        async with sb.open_async(url) as instance:
            database = await instance.database("Test")
            worker = sb.Worker(STOCK_QUEUE, poison=lambda f: sb.Retry() if f.count < 3 else sb.SetAside())

            @worker.on(ORDER)
            async def order(tx: sb.AsyncTransaction, message: sb.Message) -> None:
                if is_bad(message):
                    raise EXCEPTIONS[name]()
                received.append(message.message_body)

            async with asyncio.timeout(30), database.working(worker):
                for body in (b"bad", b"good"):
                    handle = await database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
                    await database.send(handle, ORDER, body)
                while not received or not await database.set_aside_messages():
                    await asyncio.sleep(0.01)
            assert [letter.failures for letter in await database.set_aside_messages()] == [3]

    asyncio.run(run(make_instance_url(1)))
    assert received == [b"good"]


@pytest.mark.parametrize("name", sorted(EXCEPTIONS.keys() - {"KeyboardInterrupt", "SystemExit"}))
def test_process_applies_the_policy_to_any_exception(database: sb.Database, name: str) -> None:
    """Ctrl-C and sys.exit in the main thread are different: they stop `process`. The next test has them."""
    send(database, b"bad", b"good")
    received: list[bytes | None] = []

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        if is_bad(messages[0]):
            raise EXCEPTIONS[name]()
        received.append(messages[0].message_body)

    assert database.process(STOCK_QUEUE, procedure, top=1, poison=lambda failure: sb.EndWithError(9, "no")) == 2
    assert received == [b"good"]
    assert errors(database.receive(ORDERS_QUEUE)) == [9]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit])
def test_the_owners_stop_ends_process_and_puts_the_message_back_uncounted(
    database: sb.Database, problem: type[BaseException]
) -> None:
    send(database, b"bad")
    for _ in range(7):  # more often than poison detection allows
        with pytest.raises(problem):
            database.process(
                STOCK_QUEUE, lambda transaction, messages: raising(problem()), poison=lambda failure: sb.Ignore()
            )
    assert is_on(database)
    (message,) = database.receive(STOCK_QUEUE)
    assert message.message_body == b"bad"


def test_a_task_of_a_handler_that_is_cancelled_is_a_failure_and_the_owners_cancel_a_stop(
    make_instance_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(working, "_STOP_TIMEOUT_S", 0.3)
    handled: list[bytes | None] = []

    async def both(url: str) -> None:
        async with sb.open_async(url) as instance:
            database = await instance.database("Test")
            worker = sb.Worker(STOCK_QUEUE, poison=lambda failure: sb.SetAside())

            @worker.on(ORDER)
            async def order(tx: sb.AsyncTransaction, message: sb.Message) -> None:
                if is_bad(message):
                    child = asyncio.create_task(asyncio.sleep(60))
                    await asyncio.sleep(0)
                    child.cancel()
                    await child
                if message.message_body == b"waits":
                    handled.append(message.message_body)
                    await asyncio.sleep(60)
                handled.append(message.message_body)

            async def run() -> None:
                async with database.working(worker):
                    await asyncio.sleep(60)

            running = asyncio.create_task(run())
            for body in (b"bad", b"good", b"waits"):
                handle = await database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
                await database.send(handle, ORDER, body)
            while b"waits" not in handled or b"good" not in handled:
                await asyncio.sleep(0.02)
            running.cancel()  # the block waits for what is in progress,
            await asyncio.sleep(0.2)
            running.cancel()  # and is in a hurry now
            with pytest.raises(asyncio.CancelledError):
                await running
            assert [letter.message_body for letter in await database.set_aside_messages()] == [b"bad"]
            (again,) = await database.receive(STOCK_QUEUE)  # the message in progress is back, uncounted
            assert again.message_body == b"waits"

    asyncio.run(both(make_instance_url(1)))


@pytest.mark.both_apis
@pytest.mark.parametrize("verdict", ["long", "object", "default"])
def test_a_verdict_takes_any_text(database: sb.Database, verdict: str) -> None:
    send(database, b"bad", b"good")
    policies: dict[str, sb.Policy] = {
        "long": lambda failure: sb.EndWithError(500, "x" * 3001),
        "object": lambda failure: sb.EndWithError(500, failure.error),  # type: ignore[arg-type]
        "default": sb.give_up_after(1),
    }

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        if is_bad(messages[0]):
            raise SilentError

    assert database.process(STOCK_QUEUE, procedure, top=1, poison=policies[verdict]) == (
        3 if verdict == "default" else 2
    )
    assert is_on(database)


@pytest.mark.parametrize("code", [0, -1, True, "x", None])
def test_an_impossible_verdict_is_refused_where_it_is_built(code: Any) -> None:
    with refused(402):
        sb.EndWithError(code, "x")
    with refused(402):
        sb.Retry(after=-1)
    with refused(402):
        sb.Reply(5)  # type: ignore[arg-type]


@pytest.mark.both_apis
def test_a_failing_log_handler_stops_no_worker(database: sb.Database) -> None:
    class FailingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("no log today")

    received: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE, poison=lambda failure: sb.SetAside())

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        if is_bad(message):
            raise ValueError
        received.append(message.message_body)

    broken = FailingHandler()
    logging.getLogger("servicebroker").addHandler(broken)
    try:
        with database.working(worker):
            send(database, b"bad", b"good")
            eventually(lambda: received == [b"good"] and len(database.set_aside_messages()) == 1)
    finally:
        logging.getLogger("servicebroker").removeHandler(broken)


class CoroutineHandler:
    """A callable object that returns a coroutine, so that its work is not done when it returns."""

    async def __call__(self, tx: object, given: object) -> None:
        raise AssertionError("nobody awaits this")


async def coroutine_function(tx: object, given: object) -> None:
    raise AssertionError("nobody awaits this")


def generator(tx: object, given: object) -> Iterator[int]:
    yield 1


async def async_generator(tx: object, given: object) -> Any:
    yield 1


NOT_RUN = {
    "a coroutine function": coroutine_function,
    "an object that is awaited": CoroutineHandler(),
    "a generator": generator,
    "an async generator": async_generator,
    "one parameter": lambda tx: None,
    "three parameters": lambda tx, message, more: None,
    "no function": 5,
}


@pytest.mark.parametrize("name", NOT_RUN)
def test_process_refuses_a_procedure_that_would_not_run(database: sb.Database, name: str) -> None:
    with refused(402):
        database.process(STOCK_QUEUE, NOT_RUN[name])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NOT_RUN)
def test_a_worker_refuses_a_handler_that_would_not_run(database: sb.Database, name: str) -> None:
    worker = sb.Worker(STOCK_QUEUE)
    with refused(402) if "await" not in name and "coroutine" not in name else pytest.raises(sb.ServiceBrokerError):  # noqa: SIM117
        with database.working(worker.on(ORDER)(NOT_RUN[name]) and worker):  # type: ignore[arg-type]
            pass


RETURNS: dict[str, Callable[..., Any]] = {
    "a coroutine": lambda tx, given: coroutine_function(tx, given),
    "a generator": lambda tx, given: generator(tx, given),
    "an async generator": lambda tx, given: async_generator(tx, given),
}


@pytest.mark.parametrize("name", RETURNS)
def test_a_result_that_stands_for_work_not_done_is_a_failure(database: sb.Database, name: str) -> None:
    send(database, b"good")
    assert database.process(STOCK_QUEUE, RETURNS[name], poison=lambda failure: sb.SetAside()) == 1
    (dead_letter,) = database.set_aside_messages()
    assert "its work is not done" in dead_letter.error
    send(database, b"good")
    with pytest.raises(sb.InstanceError, match="its work is not done"):
        database.process(STOCK_QUEUE, RETURNS[name])
    assert bodies(database.receive(STOCK_QUEUE)) == [b"good"]
    worker = sb.Worker(STOCK_QUEUE, poison=lambda failure: sb.SetAside())
    worker.on(ORDER)(RETURNS[name])
    with database.working(worker):
        send(database, b"again")
        eventually(lambda: len(database.set_aside_messages()) == 2)


@pytest.fixture
def parents(database: sb.Database) -> Iterator[tuple[str, str]]:
    """Create two tables with a deferred foreign key: COMMIT checks that a child's parent exists."""
    parent_table, child_table = f"parents_{database.database_id}", f"children_{database.database_id}"
    with database.instance.connection() as connection:
        connection.execute(f"create table {parent_table} (id int primary key)".encode())
        connection.execute(
            f"create table {child_table} (id int references {parent_table} deferrable initially deferred, "
            "body bytea)".encode()
        )
    yield parent_table, child_table
    with database.instance.connection() as connection:
        connection.execute(f"drop table {child_table}, {parent_table}".encode())


@pytest.mark.both_apis
@pytest.mark.parametrize("batch", [None, 10])
def test_a_commit_that_is_refused_is_a_failure_of_its_message(
    database: sb.Database, parents: tuple[str, str], batch: int | None
) -> None:
    _, children = parents
    worker = sb.Worker(
        STOCK_QUEUE, poison=lambda failure: sb.Retry() if failure.count < 3 else sb.SetAside(), batch=batch
    )

    @worker.on(ORDER)
    def order(tx: sb.Transaction, given: Any) -> None:
        for message in given if batch else [given]:
            tx.connection.execute(
                f"insert into {children} values (%s, %s)".encode(),
                (5 if is_bad(message) else None, message.message_body),
            )

    with database.working(worker):
        send(database, b"bad", b"good", b"bad", b"good")
        eventually(lambda: query(database, f"select count(*) from {children}") == [(2,)])
        eventually(lambda: len(database.set_aside_messages()) == 2)
    assert {letter.failures for letter in database.set_aside_messages()} == {3}
    assert all("foreign key" in letter.error for letter in database.set_aside_messages())
    assert is_on(database)
    assert query(database, f"select distinct body from {children}") == [(b"good",)]


@pytest.mark.both_apis
def test_process_judges_a_refused_commit(database: sb.Database, parents: tuple[str, str]) -> None:
    _, children = parents
    send(database, b"bad", b"good")

    def procedure(transaction: sb.Transaction, messages: Messages) -> None:
        row = (5 if is_bad(messages[0]) else None, messages[0].message_body)
        transaction.connection.execute(f"insert into {children} values (%s, %s)".encode(), row)

    database.process(STOCK_QUEUE, procedure, top=1, poison=lambda failure: sb.SetAside())
    assert query(database, f"select body from {children}") == [(b"good",)]
    assert [letter.message_body for letter in database.set_aside_messages()] == [b"bad"]
    assert is_on(database)


MISUSES: dict[str, Callable[[sb.Transaction], object]] = {
    "closes the connection": lambda tx: tx.connection.close(),
    "kills its backend": lambda tx: tx.connection.execute("select pg_terminate_backend(pg_backend_pid())"),
    "rolls back": lambda tx: tx.connection.rollback(),
    "rolls back by SQL": lambda tx: tx.connection.execute("rollback"),
    "leaves it aborted": lambda tx: _swallow(tx),
}


def _swallow(tx: sb.Transaction) -> None:
    with suppress(psycopg.Error):
        tx.connection.execute("select 1 / 0")


@pytest.mark.parametrize("name", MISUSES)
def test_a_handler_that_ruins_its_transaction_costs_its_message(database: sb.Database, name: str) -> None:
    received: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE, poison=lambda failure: sb.Retry() if failure.count < 2 else sb.SetAside())

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        if is_bad(message):
            MISUSES[name](tx)
        else:
            received.append(message.message_body)

    with database.working(worker):
        send(database, b"bad", b"good")
        eventually(lambda: received == [b"good"] and len(database.set_aside_messages()) == 1, 30)
    assert is_on(database)


def test_a_handler_that_outlasts_the_idle_timeout_switches_no_queue_off(database: sb.Database) -> None:
    """The server ends the session of each call. The policy counts the failures; poison detection must not."""
    worker = sb.Worker(STOCK_QUEUE, poison=lambda failure: sb.Retry() if failure.count < 4 else sb.SetAside())
    tries: list[int] = []

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        tries.append(1)
        tx.connection.execute("set local idle_in_transaction_session_timeout = 20")
        time.sleep(0.1)

    with database.working(worker):
        send(database, b"bad")
        eventually(lambda: len(database.set_aside_messages()) == 1, 30)
    assert len(tries) > 5, "so many rollbacks would have switched the queue off"
    assert is_on(database)


def test_a_reply_that_a_late_rollback_undoes_is_not_sent(database: sb.Database, parents: tuple[str, str]) -> None:
    _, children = parents
    worker = sb.Worker(STOCK_QUEUE, poison=lambda failure: sb.SetAside())

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        tx.send(message.conversation_handle, REPLY, b"done")
        tx.connection.execute(f"insert into {children} values (5, null)".encode())

    with database.working(worker):
        send(database, b"bad")
        eventually(lambda: len(database.set_aside_messages()) == 1)
        time.sleep(0.1)
    assert database.receive(ORDERS_QUEUE) == []


def test_a_handler_of_a_namespace_without_name_has_its_policy(database: sb.Database) -> None:
    """`exec` creates such namespaces. The origin of an exception is looked up for the log only."""
    space: dict[str, Any] = {"fail": raising, "problem": ValueError("no")}
    exec("def inner():\n    fail(problem)\ndef order(tx, message):\n    inner()", space)
    del space["__builtins__"]
    judged: list[sb.Failure] = []

    def judge(failure: sb.Failure) -> sb.Verdict:
        judged.append(failure)
        return sb.Ignore()

    worker = sb.Worker(STOCK_QUEUE, poison=judge)
    worker.on(ORDER)(space["order"])
    send(database, b"bad")
    with database.working(worker):
        eventually(lambda: judged)
    assert query(database, f"select from servicebroker.queue_{queue_number(database, STOCK_QUEUE)}") == []


@pytest.mark.parametrize(
    "setting", ["set default_transaction_read_only = on", "set session characteristics as transaction read only"]
)
def test_a_handler_that_makes_its_session_read_only_stops_no_reader(database: sb.Database, setting: str) -> None:
    """A setting of the session outlives the transaction, so the reader continues in another session."""
    received: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        if is_bad(message):
            tx.connection.execute(setting)
        received.append(message.message_body)

    send(database, b"bad", b"good", b"better")
    with database.working(worker):
        eventually(lambda: received == [b"bad", b"good", b"better"], 30)
    assert database.receive(STOCK_QUEUE) == []
