"""Internal activation: queues that start their own readers, in this process."""

from __future__ import annotations

import errno
import logging
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from servicebroker.activation import child, procedures, task
from servicebroker.activation.procedures import Procedure
from servicebroker.engine.activation import monitors
from servicebroker.store.statements import Steps
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    deafened,
    eventually,
    query,
    queue_number,
    refused,
    statuses,
    waiting_messages,
    waiting_reader,
)

pytestmark = pytest.mark.usefixtures("nothing_left")

PROCEDURE = "usp_Stock"
ON = sb.Activation(PROCEDURE, max_queue_readers=1, execute_as="SELF", status=True)


class Seen:
    """The messages that a procedure of a test has taken, and its runners at a time."""

    def __init__(self) -> None:
        self.bodies: list[bytes | None] = []
        self.calls = 0
        self.running = self.most = 0
        self.lock = threading.Lock()
        self.go_on = threading.Event()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        with self.lock:
            self.calls += 1
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            yield
        finally:
            with self.lock:
                self.running -= 1


@pytest.fixture
def seen() -> Seen:
    return Seen()


def send(database: sb.Database, *texts: str, conversations: int = 1) -> None:
    for text in texts:
        for _ in range(conversations):
            database.send(begin(database), ORDER, text)


def switch_on(database: sb.Database, **changes: Any) -> None:
    database.alter_queue(STOCK_QUEUE, activation=ON._replace(**changes))


def monitor(database: sb.Database) -> tuple[Any, ...] | None:
    text = (
        "select state, last_empty_rowset_time, last_activated_time, tasks_waiting "
        "from sys.dm_broker_queue_monitors where queue_id = %s"
    )
    rows = query(database, text, queue_number(database, STOCK_QUEUE))
    return rows[0] if rows else None


@pytest.fixture
def active(database: sb.Database) -> Iterator[sb.Database]:
    with sb.activate(database.instance, interval=0.4):
        yield database


@pytest.mark.feature(168)
def test_an_arrival_starts_a_reader(active: sb.Database, seen: Seen) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)
        transaction.send(message.conversation_handle, REPLY, b"done")

    switch_on(active)
    handle = begin(active)
    active.send(handle, ORDER, b"teapot")
    eventually(lambda: seen.bodies == [b"teapot"])
    assert bodies(active.receive("OrdersQueue", conversation_handle=handle, wait=5)) == [b"done"]


def test_messages_in_a_batch_come_by_groups(active: sb.Database, seen: Seen) -> None:
    taken: list[list[bytes | None]] = []

    @sb.procedure(PROCEDURE, form="batch")
    def stock(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        taken.append(bodies(messages))

    with active.transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        for number in range(5):
            transaction.send(handle, ORDER, str(number))
    switch_on(active)
    eventually(lambda: taken == [[b"0", b"1", b"2", b"3", b"4"]])


def test_groups_share_a_transaction(active: sb.Database, seen: Seen) -> None:
    transactions: set[int] = set()

    @sb.procedure(PROCEDURE, groups=50)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        ((number,),) = transaction.connection.execute("select txid_current()").fetchall()
        transactions.add(number)
        seen.bodies.append(message.message_body)

    with active.transaction() as transaction:
        for number in range(5):
            handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
            transaction.send(handle, ORDER, b"%d" % number)
    switch_on(active)
    eventually(lambda: len(seen.bodies) == 5)
    assert len(transactions) == 1
    with refused(402, "groups"):
        sb.procedure(PROCEDURE, form="transaction", groups=2)


@pytest.mark.parametrize("form", ["message", "batch", "transaction", "database"])
def test_coroutine_functions(active: sb.Database, seen: Seen, form: Any) -> None:
    """Each form, as a coroutine function."""

    async def take(transaction: Any, messages: Any) -> None:
        messages = messages if isinstance(messages, list) else [messages]
        for message in messages:
            seen.bodies.append(message.message_body)
            await transaction.send(message.conversation_handle, REPLY, b"done")

    async def take_by_itself(transaction: Any) -> None:
        await take(transaction, await transaction.receive(STOCK_QUEUE))

    async def begin_and_take(database: sb.AsyncDatabase) -> None:
        async with database.transaction() as transaction:
            await take_by_itself(transaction)

    functions = {"transaction": take_by_itself, "database": begin_and_take}
    sb.procedure(PROCEDURE, form=form)(functions.get(form, take))
    switch_on(active)
    handle = begin(active)
    active.send(handle, ORDER, b"one")
    active.send(handle, ORDER, b"two")
    answers: list[sb.Message] = []
    eventually(lambda: len(answers) == 2 or answers.extend(active.receive("OrdersQueue", wait=1)))  # type: ignore[func-returns-value]
    assert seen.bodies == [b"one", b"two"]


@pytest.mark.feature(172)
def test_a_procedure_of_one_message_drains_a_hundred(active: sb.Database, seen: Seen) -> None:
    """The procedure returns after each message, and is started again as long as messages are left."""

    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        seen.calls += 1
        seen.bodies += bodies(transaction.receive(STOCK_QUEUE, top=1))

    send(active, "x", conversations=100)
    switch_on(active)
    eventually(lambda: len(seen.bodies) == 100)
    assert seen.calls >= 100


@pytest.mark.feature(168, 170, 212)
def test_readers_join_one_by_one_and_never_more_than_allowed(active: sb.Database, seen: Seen) -> None:
    """One more after each interval while messages remain, and MAX_QUEUE_READERS at most."""
    starts: list[float] = []

    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        starts.append(time.monotonic())
        with seen.one_more():
            transaction.receive(STOCK_QUEUE)
            seen.go_on.wait(20)

    send(active, "x", conversations=8)
    began = time.monotonic()
    switch_on(active, max_queue_readers=3)
    eventually(lambda: seen.running == 3)
    time.sleep(0.9)  # two more intervals
    assert seen.most == 3
    assert all(start - began > number * 0.39 for number, start in enumerate(starts)), [began, *starts]
    seen.go_on.set()
    eventually(lambda: seen.calls >= 8 and not query(active, "select from " + STOCK_VIEW.format(active.name.lower())))
    assert seen.most == 3


STOCK_VIEW = "{}_dbo.stockqueue"


@pytest.mark.feature(171)
def test_the_states_of_the_monitor(active: sb.Database, seen: Seen) -> None:
    may_receive = threading.Event()

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        may_receive.wait(20)
        database.receive(STOCK_QUEUE, top=1)
        seen.go_on.wait(20)
        while database.receive(STOCK_QUEUE):
            pass

    switch_on(active)
    eventually(lambda: (monitor(active) or ("",))[0] == "INACTIVE")
    send(active, "one", "two", "three")
    eventually(lambda: (monitor(active) or ("",))[0] == "NOTIFIED")
    found = monitor(active)
    assert found is not None
    assert found[2] is not None
    assert found[1] is None
    may_receive.set()
    eventually(lambda: (monitor(active) or ("",))[0] == "RECEIVES_OCCURRING")
    seen.go_on.set()
    eventually(lambda: (monitor(active) or ("",))[0] == "INACTIVE")
    found = monitor(active)
    assert found is not None
    assert found[1] is not None, "a RECEIVE came back empty"
    active.alter_queue(STOCK_QUEUE, status=False)
    eventually(lambda: monitor(active) is None)
    active.alter_queue(STOCK_QUEUE, status=True)
    eventually(lambda: monitor(active) is not None)


@pytest.mark.feature(170)
def test_draining_a_group_with_where_keeps_no_further_reader_away(active: sb.Database, seen: Seen) -> None:
    """That it is empty says nothing of the rest of the queue."""

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        with seen.one_more(), database.transaction() as transaction:
            (message,) = transaction.receive(STOCK_QUEUE, top=1)
            group, handle = message.conversation_group_id, message.conversation_handle
            while not seen.go_on.wait(0.05):  # far more often than each interval
                assert transaction.receive(STOCK_QUEUE, conversation_group_id=group) == []
                assert transaction.receive(STOCK_QUEUE, conversation_handle=handle) == []

    send(active, "x", conversations=2)
    switch_on(active, max_queue_readers=2)
    eventually(lambda: seen.running == 2)
    found = monitor(active)
    assert found is not None
    assert found[1] is None
    seen.go_on.set()
    eventually(lambda: seen.running == 0)


@pytest.mark.feature(172)
def test_who_drains_a_group_with_where_and_exits_is_called_again(database: sb.Database, seen: Seen) -> None:
    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        messages = transaction.receive(STOCK_QUEUE, top=1)
        while messages:
            seen.bodies += bodies(messages)
            messages = transaction.receive(STOCK_QUEUE, conversation_group_id=messages[0].conversation_group_id)

    send(database, "x", conversations=20)
    with sb.activate(database.instance, interval=600):  # an event starts it, not the clock
        switch_on(database)
        eventually(lambda: len(seen.bodies) == 20)


@pytest.mark.feature(170)
def test_which_empty_results_count(active: sb.Database) -> None:
    """Of RECEIVE without WHERE and of GET CONVERSATION GROUP."""
    active.send(begin(active), ORDER, b"x")
    (message,) = active.receive(STOCK_QUEUE)
    switch_on(active)
    eventually(lambda: (monitor(active) or ("",))[0] == "INACTIVE")
    queue = f"servicebroker.queue_{queue_number(active, STOCK_QUEUE)}"
    text = "select r.is_called, r.last_value, e.is_called, e.last_value from {0}_receives r, {0}_empty_receives e"
    assert active.receive(STOCK_QUEUE, conversation_handle=message.conversation_handle) == []
    assert active.receive(STOCK_QUEUE, conversation_group_id=message.conversation_group_id) == []
    assert query(active, text.format(queue)) == [(True, 2, False, 1)]
    assert active.get_conversation_group(STOCK_QUEUE) is None
    assert query(active, text.format(queue)) == [(True, 3, True, 1)]
    assert active.receive(STOCK_QUEUE) == []
    assert query(active, text.format(queue)) == [(True, 4, True, 2)]
    eventually(lambda: (monitor(active) or (0, None))[1] is not None)


def test_who_waits_in_receive_is_shown_and_served_first(active: sb.Database, seen: Seen) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)

    switch_on(active)
    waits = waiting_reader(active)
    eventually(lambda: (monitor(active) or (0, 0, 0, 0))[3] == 1)
    send(active, "mine")
    assert bodies(waits.result(10)) == [b"mine"]
    assert seen.bodies == []


@pytest.mark.feature(173)
def test_a_procedure_that_never_receives_is_not_started_again(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    """28087, and stuck, until somebody executes RECEIVE or the activation is switched off and on."""

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        seen.calls += 1
        if seen.calls > 2:
            seen.bodies += bodies(database.receive(STOCK_QUEUE))

    send(active, "x")
    switch_on(active)
    eventually(lambda: said(caplog, 28087))
    time.sleep(1.0)  # more than two intervals
    assert seen.calls == 1
    assert (monitor(active) or ("",))[0] == "NOTIFIED"
    switch_on(active, status=False)
    switch_on(active)
    eventually(lambda: seen.calls == 2)
    assert active.receive(STOCK_QUEUE, top=0) == []  # any session's RECEIVE, even of nothing
    eventually(lambda: seen.bodies == [b"x"])


KILLED = """
import os, pathlib, signal
import servicebroker as sb

@sb.procedure("usp_Stock", form="database", worker="process")
def stock(database):
    calls = pathlib.Path(__file__).with_name("calls")
    with calls.open("a") as file:
        file.write("x")
    if calls.stat().st_size < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    for message in database.receive("StockQueue"):
        calls.with_name("got").write_bytes(message.message_body)
"""


def test_a_process_that_is_killed_before_its_first_receive_is_started_again(
    active: sb.Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    procedures.load([str(tmp_path / "killed.py")])
    send(active, "x")
    switch_on(active)
    eventually((tmp_path / "got").exists, 30)
    assert (tmp_path / "got").read_bytes() == b"x"
    assert (tmp_path / "calls").read_text().startswith("xxx")
    first, second = [one.created for one in caplog.records if "its process ended with code -9" in one.getMessage()]
    assert second - first >= 0.4, "after a pause"


def test_a_session_that_is_killed_before_its_first_receive_is_followed_by_another(
    active: sb.Database, seen: Seen
) -> None:
    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        seen.calls += 1
        if seen.calls < 3:
            with database.transaction() as transaction:
                transaction.connection.execute("select pg_terminate_backend(pg_backend_pid())")
        seen.bodies += bodies(database.receive(STOCK_QUEUE))

    send(active, "x")
    switch_on(active)
    eventually(lambda: seen.bodies == [b"x"], 30)
    assert seen.calls >= 3


def fails_once(function: Any, problem: Exception, applies: Any = lambda *_: True) -> Any:
    failed: list[Any] = []

    def failing(*arguments: Any, **options: Any) -> Any:
        if not failed and applies(*arguments):
            failed.append(arguments)
            raise problem
        return function(*arguments, **options)

    return failing


@pytest.mark.parametrize("lacks", ["process", "file", "thread", "connection"])
def test_what_the_system_lacks_once_is_tried_again(
    active: sb.Database, tmp_path: Path, lacks: str, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "calls").write_text("xx")  # let it live from now on
    is_process = lacks in ("process", "file")
    (tmp_path / "lacking.py").write_text(KILLED if is_process else KILLED.replace(', worker="process"', ""))
    procedures.load([str(tmp_path / "lacking.py")])
    problem = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    if lacks == "process":
        monkeypatch.setattr(child.subprocess, "Popen", fails_once(subprocess.Popen, problem))
    elif lacks == "file":
        monkeypatch.setattr(child.os, "pipe", fails_once(os.pipe, OSError(errno.EMFILE, "Too many open files")))
    elif lacks == "thread":
        problem = RuntimeError("can't start new thread")
        of_task = lambda thread: PROCEDURE in thread.name  # noqa: E731
        monkeypatch.setattr(threading.Thread, "start", fails_once(threading.Thread.start, problem, of_task))
    else:
        monkeypatch.setattr(task, "connect", fails_once(task.connect, psycopg.OperationalError("too many clients")))
    send(active, "x")
    switch_on(active)
    eventually((tmp_path / "got").exists, 30)
    assert (tmp_path / "calls").read_text().startswith("xxx")
    assert [one for one in caplog.records if "cannot be started: " in one.getMessage()]


@pytest.mark.feature(174)
def test_a_missing_procedure_is_tried_again(active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    switch_on(active, procedure_name="usp_Later")
    send(active, "x")
    eventually(lambda: said(caplog, 9614) >= 2)
    assert (monitor(active) or ("",))[0] != "NOTIFIED"

    @sb.procedure("usp_Later")
    def later(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)

    eventually(lambda: seen.bodies == [b"x"])


@pytest.mark.feature(174)
def test_a_user_that_is_gone_is_tried_again(active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)

    active.create_user("Clerk")
    switch_on(active, execute_as="Clerk")
    active.drop_user("Clerk")
    send(active, "x")
    eventually(lambda: said(caplog, 9613) >= 2)
    assert seen.bodies == []
    switch_on(active, execute_as="OWNER")
    eventually(lambda: seen.bodies == [b"x"])


def _exit_once(seen: Seen, problem: type[BaseException]) -> None:
    seen.calls += 1
    if seen.calls == 1:
        raise problem


@pytest.mark.parametrize("problem", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_procedure_that_exits_has_failed_and_others_go_on(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture, *, problem: type[BaseException], is_async: bool
) -> None:
    """Also all coroutines that run in the same event loop, which such an exception stops."""

    def stock(database: sb.Database) -> None:
        with database.transaction() as tx:
            messages = tx.receive(STOCK_QUEUE)
            _exit_once(seen, problem)
            seen.bodies += bodies(messages)

    async def stock_async(database: sb.AsyncDatabase) -> None:
        async with database.transaction() as tx:
            messages = await tx.receive(STOCK_QUEUE)
            _exit_once(seen, problem)
            seen.bodies += bodies(messages)

    sb.procedure(PROCEDURE, form="database")(stock_async if is_async else stock)  # type: ignore[type-var]
    send(active, "x")
    switch_on(active)
    eventually(lambda: seen.bodies == [b"x"], 30)
    assert said(caplog, 28088) == 1
    assert "sys.exit" in caplog.text or problem.__name__ in caplog.text


def test_tsql_of_an_activated_coroutine_works_in_its_session(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    script = (
        "DECLARE @b varbinary(max); RECEIVE TOP (1) @b = message_body FROM StockQueue; "
        "SELECT program_name, @b FROM sys.dm_exec_sessions WHERE session_id = @@SPID"
    )

    async def stock(database: sb.AsyncDatabase) -> None:
        async with database.instance.connection() as own:
            name = own.info.parameter_status("application_name")
        [(program, body)] = (await database.execute_tsql(script)).rows
        assert (program, "usp_Stock" in program) == (name, True)
        seen.bodies.append(body)

    sb.procedure(PROCEDURE, form="database")(stock)
    send(active, "x")
    switch_on(active)
    eventually(lambda: b"x" in seen.bodies, 30)
    assert said(caplog, 28088) == 0


def test_a_resolver_that_fails_stops_no_other_queue(
    database: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    def resolve(_: sb.Database, name: str) -> Procedure | None:
        if "usp_Other" in name:
            raise LookupError("no register of procedures")
        return None

    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)

    database.create_queue("OtherQueue", activation=ON._replace(procedure_name="usp_Other"))
    switch_on(database)
    with sb.activate(database.instance, resolvers=[resolve], interval=0.2):
        eventually(lambda: "no register of procedures" in caplog.text, 30)
        send(database, "x")
        eventually(lambda: seen.bodies == [b"x"], 30)


@pytest.mark.parametrize("form", ["message", "batch", "transaction", "database"])
def test_a_generator_function_is_no_procedure(form: Any) -> None:
    def stock(*_: object) -> Iterator[None]:
        yield

    def of_one(_: object) -> Iterator[None]:
        yield

    with refused(402, "generator"):
        sb.procedure(PROCEDURE, form=form)(of_one if form in ("transaction", "database") else stock)


def test_a_result_that_is_work_not_done_undoes_the_transaction(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages had been received and committed, and the coroutine had never run."""

    async def work(messages: list[sb.Message]) -> None:
        seen.bodies += bodies(messages)

    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> Any:
        messages = transaction.receive(STOCK_QUEUE)
        seen.calls += 1
        if seen.calls == 1:
            return work(messages)
        seen.bodies += bodies(messages)
        return None

    send(active, "x")
    switch_on(active)
    eventually(lambda: seen.bodies == [b"x"], 30)
    assert "its work is not done" in caplog.text


def test_an_object_with_an_async_call_is_awaited(active: sb.Database, seen: Seen) -> None:
    class Stock:
        async def __call__(self, transaction: sb.AsyncTransaction, message: sb.Message) -> None:
            seen.bodies.append(message.message_body)

    sb.procedure(PROCEDURE)(Stock())
    send(active, "x")
    switch_on(active)
    eventually(lambda: seen.bodies == [b"x"], 30)


LOGS = """
import logging, pathlib
import servicebroker as sb

@sb.procedure("usp_Stock", worker="process")
def stock(transaction, message):
    logging.getLogger("shop").warning("%d items", "no number")
    pathlib.Path(__file__).with_name("got").write_bytes(message.message_body)
"""


def test_a_record_that_cannot_be_formatted_ends_no_process(active: sb.Database, tmp_path: Path) -> None:
    (tmp_path / "logs.py").write_text(LOGS)
    procedures.load([str(tmp_path / "logs.py")])
    send(active, "x")
    switch_on(active)
    eventually((tmp_path / "got").exists, 30)


@pytest.mark.feature(175)
@pytest.mark.parametrize("how", ["never left", "begun on the connection"])
def test_an_open_transaction_at_the_end_is_undone(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        seen.calls += 1
        if seen.calls > 1:
            seen.bodies += bodies(database.receive(STOCK_QUEUE))
        elif how == "never left":
            block = database.transaction()
            block.__enter__().receive(STOCK_QUEUE)
        else:
            with database.instance.connection() as connection:
                connection.execute("begin")
                database.join(connection).receive(STOCK_QUEUE)

    send(active, "x")
    switch_on(active)
    eventually(lambda: said(caplog, 8415))
    eventually(lambda: seen.bodies == [b"x"])


@pytest.mark.feature(176)
def test_what_a_procedure_raises_is_logged(active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.calls += 1
        if seen.calls == 1:
            raise ValueError("no such shelf")
        seen.bodies.append(message.message_body)

    send(active, "x")
    switch_on(active)
    eventually(lambda: seen.bodies == [b"x"])
    assert said(caplog, 9724, "usp_Stock", "StockQueue", "ValueError: no such shelf")
    assert said(caplog, 28088)
    assert "Traceback" in caplog.text


@pytest.mark.feature(176)
def test_what_a_procedure_puts_out_is_logged(active: sb.Database, caplog: pytest.LogCaptureFixture) -> None:
    class Talks:
        worker = "thread"

        def __call__(self, call: Any) -> None:
            call.output("forty-two")
            call.database.receive(call.queue)

    caplog.set_level(logging.INFO, "servicebroker")
    found: dict[str, Procedure] = {"[dbo].[usp_Talks]": Talks()}
    with sb.activate(active.instance, resolvers=[lambda database, name: found.get(name)], interval=0.4):
        switch_on(active, procedure_name="usp_Talks")
        send(active, "x")
        eventually(lambda: said(caplog, 9724, "forty-two"))


@pytest.mark.feature(177)
def test_a_procedure_has_no_rights_in_the_instance(active: sb.Database, seen: Seen, caplog: Any) -> None:
    """The procedure acts as a user of its database; another database admits it as guest alone. Nothing is signed."""
    other = active.instance.database("Elsewhere", create=True)
    told: list[Exception] = []

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        instance = database.instance
        for attempt in (
            lambda: instance.drop_database(other.name),
            lambda: instance.create_endpoint("e", listener_port=4022),
            lambda: instance.database("New", create=True),
            lambda: instance.database(other.name, user="dbo"),
        ):
            try:
                attempt()
            except sb.BrokerError as problem:
                told.append(problem)
        assert instance.database(other.name).user.name == "guest"
        assert instance.database(database.name).user == database.user
        seen.bodies += bodies(database.receive(STOCK_QUEUE))

    other.grant("CONNECT", "guest")
    switch_on(active)
    send(active, "x")
    eventually(lambda: bool(seen.bodies))
    assert [problem.number for problem in told[:4]] == [15247, 15247, 15247, 15517]
    assert "signed" in str(told[0])


def test_tsql_of_a_procedure_is_guest_in_another_database(active: sb.Database, seen: Seen) -> None:
    other = active.instance.database("Storehouse", create=True)
    other.grant("CONNECT", "guest")
    other.execute_tsql("CREATE TABLE Secrets (n INT); INSERT INTO Secrets VALUES (7)")
    told: list[object] = []

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        told.extend(database.execute_tsql("USE Storehouse; SELECT USER_NAME()").rows)
        try:
            told.extend(database.execute_tsql("SELECT n FROM Storehouse.dbo.Secrets").rows)
        except sb.BrokerError as refusal:
            told.append(refusal.number)
        seen.bodies += bodies(database.receive(STOCK_QUEUE))

    switch_on(active)
    send(active, "x")
    eventually(lambda: bool(seen.bodies))
    assert told[:2] == [("guest",), 229]


@pytest.mark.feature(169)
@pytest.mark.parametrize(("execute_as", "expected"), [("SELF", "dbo"), ("Clerk", "Clerk"), ("OWNER", "Manager")])
def test_execute_as(active: sb.Database, seen: Seen, execute_as: str, expected: str) -> None:
    """The procedure works as that user, with its permissions and no others."""
    told: list[str] = []

    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        told.append(database.user.name)
        try:
            seen.bodies += bodies(database.receive(STOCK_QUEUE))
        except sb.BrokerError as refusal:
            told.append(str(refusal.number))

    for user in ("Clerk", "Manager"):
        active.create_user(user)
    active.alter_authorization("Manager", queue=STOCK_QUEUE)
    switch_on(active, execute_as=execute_as)
    send(active, "x")
    eventually(lambda: bool(seen.bodies) or len(told) > 1)
    assert set(told) == ({expected, "229"} if execute_as == "Clerk" else {expected})


@pytest.mark.feature(178)
def test_switching_it_on_with_messages_there_starts_it(active: sb.Database, seen: Seen) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)

    switch_on(active, status=False)
    send(active, "x")
    time.sleep(0.5)
    assert seen.bodies == []
    began = time.monotonic()
    switch_on(active)
    eventually(lambda: seen.bodies == [b"x"])
    assert time.monotonic() - began < 2


def test_who_is_started_is_whom_the_queue_names_now(
    active: sb.Database, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue gets another procedure between the look at its messages and what follows from that."""
    called: list[str] = []
    poll_queue, altered = monitors.poll_queue, threading.Event()

    @sb.procedure(PROCEDURE)
    def old(transaction: sb.Transaction, message: sb.Message) -> None:
        called.append("old")

    @sb.procedure("usp_New")
    def new(transaction: sb.Transaction, message: sb.Message) -> None:
        called.append("new")

    def looked(queue_id: int, now: datetime, running: int) -> Steps[monitors.QueueState]:
        found = yield from poll_queue(queue_id, now, running)
        if found.seen.receivable and not altered.is_set():
            switch_on(active, procedure_name="usp_New")
            altered.set()
        return found

    switch_on(active)
    monkeypatch.setattr(monitors, "poll_queue", looked)
    send(active, "x")
    eventually(lambda: called)
    assert altered.is_set()
    assert called == ["new"]


@pytest.mark.feature(14)
def test_raising_the_number_of_readers_starts_one_at_once(database: sb.Database, seen: Seen) -> None:
    """Lowering it, switching the activation off, or another procedure, stop none that runs."""
    stops: list[str] = []

    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        with seen.one_more():
            transaction.receive(STOCK_QUEUE)
            seen.go_on.wait(20)
        stops.append("done")

    with sb.activate(database.instance, interval=60):
        send(database, "x", conversations=5)
        switch_on(database)
        eventually(lambda: seen.running == 1)
        time.sleep(0.3)
        assert seen.running == 1
        switch_on(database, max_queue_readers=2)
        eventually(lambda: seen.running == 2)
        switch_on(database, max_queue_readers=1)
        switch_on(database, status=False)
        time.sleep(0.3)
        assert seen.running == 2
        seen.go_on.set()
        eventually(lambda: stops == ["done", "done"])
        time.sleep(0.3)
        assert seen.calls == 2, "none is started while it is off"
    assert len(query(database, "select from " + STOCK_VIEW.format(database.name.lower()))) == 3


@pytest.mark.feature(13)
def test_a_queue_that_is_made_with_an_activation_is_served(active: sb.Database, seen: Seen) -> None:
    @sb.procedure("usp_Fresh")
    def fresh(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)

    active.create_queue("FreshQueue", activation=sb.Activation("usp_Fresh", 1, "SELF"))
    active.create_service("//test/Fresh", "FreshQueue", [CONTRACT])
    active.send(begin(active, "//test/Fresh"), ORDER, b"x")
    eventually(lambda: seen.bodies == [b"x"])


@pytest.mark.feature(14)
@pytest.mark.parametrize(("change", "number"), [({"status": False}, 28086), ({"activation": "DROP"}, 28086)])
def test_a_task_ends_after_its_call_when_the_queue_is_off(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture, change: dict[str, Any], number: int
) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)
        seen.go_on.wait(20)

    send(active, "x", conversations=3)
    switch_on(active)
    eventually(lambda: len(seen.bodies) == 1)
    active.alter_queue(STOCK_QUEUE, **change)
    time.sleep(0.2)
    seen.go_on.set()
    eventually(lambda: said(caplog, number))
    eventually(lambda: tasks(active) == [])
    assert len(seen.bodies) == 1


@pytest.mark.feature(16)
def test_a_task_ends_when_its_queue_is_dropped(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    @sb.procedure("usp_Fresh", form="database")
    def fresh(database: sb.Database) -> None:
        seen.bodies += bodies(database.receive("FreshQueue"))
        seen.go_on.wait(20)

    active.create_queue("FreshQueue", activation=sb.Activation("usp_Fresh", 1, "SELF"))
    active.create_service("//test/Fresh", "FreshQueue", [CONTRACT])
    active.send(begin(active, "//test/Fresh"), ORDER, b"x")
    eventually(lambda: seen.bodies == [b"x"])
    active.drop_service("//test/Fresh")
    active.drop_queue("FreshQueue")
    time.sleep(0.2)
    seen.go_on.set()
    eventually(lambda: said(caplog, 28085))


@pytest.mark.feature(182)
def test_the_view_of_tasks(active: sb.Database, seen: Seen) -> None:
    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        transaction.receive(STOCK_QUEUE)
        seen.bodies.append(str(transaction.connection.info.backend_pid).encode())
        seen.go_on.wait(20)

    active.create_user("Clerk")
    active.grant("RECEIVE", "Clerk", queue=STOCK_QUEUE)
    send(active, "x", conversations=2)
    switch_on(active, max_queue_readers=2, execute_as="Clerk")
    eventually(lambda: len(seen.bodies) == 2)
    text = (
        "select t.spid, t.database_id, t.queue_id, t.procedure_name, p.name, s.is_user_process, "
        "s.open_transaction_count "
        "from sys.dm_broker_activated_tasks t join sys.dm_exec_sessions s on s.session_id = t.spid "
        "join sys.database_principals p on p.principal_id = t.execute_as and p.broker_database = t.broker_database "
        "where t.broker_database = %s"
    )
    rows = query(active, text, active.name)
    number = queue_number(active, STOCK_QUEUE)
    procedure = f"[{active.name}].[dbo].[{PROCEDURE}]"
    ((shown,),) = query(active, "select database_id from sys.databases where name = %s", active.name)
    assert sorted(rows) == sorted((int(pid or b""), shown, number, procedure, "Clerk", 0, 1) for pid in seen.bodies)
    seen.go_on.set()
    eventually(lambda: tasks(active) == [])


def tasks(database: sb.Database) -> list[tuple[Any, ...]]:
    text = "select spid from sys.dm_broker_activated_tasks where broker_database = %s"
    return query(database, text, database.name)


@pytest.mark.feature(87)
def test_a_conversation_timer_starts_the_procedure(active: sb.Database, seen: Seen) -> None:
    """With no other traffic: it fires by itself, and its message is an arrival."""
    handle = begin(active)
    active.send(handle, ORDER, b"x")
    switch_on(active, status=False)

    @sb.procedure("usp_Timer")
    def timer(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_type_name.encode())

    active.alter_queue("OrdersQueue", activation=sb.Activation("usp_Timer", 1, "SELF", True))
    began = time.monotonic()
    active.begin_conversation_timer(handle, 1)
    eventually(lambda: seen.bodies == [sb.DIALOG_TIMER.encode()])
    assert 0.9 < time.monotonic() - began < 3


def test_a_message_that_always_fails_switches_the_queue_off(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    """Rollbacks of activated readers count, one call after the other."""

    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.calls += 1
        raise ValueError("poison")

    send(active, "x")
    switch_on(active)
    text = "select is_receive_enabled from sys.service_queues where object_id = %s"
    eventually(lambda: query(active, text, queue_number(active, STOCK_QUEUE)) == [(0,)])
    assert seen.calls in (5, 6)
    eventually(lambda: monitor(active) is None)


def test_a_transaction_of_a_reader_whose_session_is_killed_counts(active: sb.Database, seen: Seen) -> None:
    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        transaction.receive(STOCK_QUEUE)
        with psycopg.connect(active.instance.url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s, 5000)", (transaction.connection.info.backend_pid,))
        transaction.receive(STOCK_QUEUE)

    send(active, "x")
    switch_on(active)
    text = "select is_receive_enabled from sys.service_queues where object_id = %s"
    eventually(lambda: query(active, text, queue_number(active, STOCK_QUEUE)) == [(0,)])


def test_activation_that_hears_nothing_more_finds_out(
    active: sb.Database, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        seen.bodies.append(message.message_body)

    deafened(active.instance.url, "servicebroker activation")
    assert "Activation has lost the database" in caplog.text
    switch_on(active)
    send(active, "x")
    eventually(lambda: seen.bodies == [b"x"])


def test_two_processes_that_activate_share_a_queue_s_readers(active: sb.Database, seen: Seen) -> None:
    """One of them has the queue; the other takes over when that has gone."""

    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        with seen.one_more():
            time.sleep(0.05)
            seen.bodies.append(message.message_body)

    with sb.open(active.instance.url, upkeep=None) as other, sb.activate(other, interval=0.4):
        switch_on(active)
        send(active, "x", conversations=10)
        eventually(lambda: len(seen.bodies) == 10)
        assert seen.most == 1
    send(active, "x")
    eventually(lambda: len(seen.bodies) == 11)


def said(caplog: pytest.LogCaptureFixture, number: int, *words: str) -> int:
    """Return the number of log lines with this number and these words."""
    texts = [record.getMessage() for record in caplog.records]
    return sum(text.startswith(f"Msg {number},") and all(word in text for word in words) for text in texts)


@pytest.mark.feature(191, 193)
def test_a_queue_that_was_switched_off_goes_on_where_it_was(active: sb.Database, seen: Seen) -> None:
    """While it is off no reader is started and what comes waits; STATUS = ON brings the monitor and a new count."""
    healed = threading.Event()

    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        with seen.one_more():
            if not healed.is_set():
                raise ValueError("poison")
            seen.bodies.append(message.message_body)

    enabled = "select is_receive_enabled, is_enqueue_enabled from sys.service_queues where object_id = %s"
    number = queue_number(active, STOCK_QUEUE)
    handle = begin(active)
    active.send(handle, ORDER, b"0")
    switch_on(active)
    for calls in (5, 10):  # of the first time, and of the second: the count begins anew
        eventually(lambda: query(active, enabled, number) == [(0, 0)])
        eventually(lambda: monitor(active) is None and tasks(active) == [])
        assert calls <= seen.calls <= calls + 2
        active.send(handle, ORDER, str(calls))
        with refused(9617, STOCK_QUEUE):
            active.receive(STOCK_QUEUE)
        if calls == 10:
            healed.set()
        active.alter_queue(STOCK_QUEUE, status=True)
    eventually(lambda: seen.bodies == [b"0", b"5", b"10"])
    eventually(lambda: monitor(active) is not None)
    assert (query(active, enabled, number), waiting_messages(active)) == ([(1, 1)], 0)
    active.alter_queue(STOCK_QUEUE, status=False)
    eventually(lambda: monitor(active) is None)
    before = seen.calls
    for body in (b"11", b"12"):
        active.send(handle, ORDER, body)
    active.send(begin(active), ORDER, b"13")
    assert waiting_messages(active) == 3
    assert statuses(active) == {"Target queue is busy; message(s) queued for delivery."}
    assert seen.calls == before
    active.alter_queue(STOCK_QUEUE, status=True)
    eventually(lambda: seen.bodies[3:] == [b"11", b"12", b"13"])


def test_a_procedure_has_a_message_within_milliseconds(active: sb.Database, seen: Seen) -> None:
    """Of SEND's commit: 10 ms where a reader waits, 100 ms where one must be started; the best of some medians."""
    times: list[float] = []

    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        times.append(time.perf_counter())

    def median(wait: float) -> float:
        sb.procedure(PROCEDURE, wait=wait)(stock)
        switch_on(active)
        handle, delays = begin(active), []
        for number in range(1, 10):
            times.clear()
            active.send(handle, ORDER, str(number))
            sent = time.perf_counter()
            eventually(lambda: bool(times))
            delays.append(times[0] - sent)
            time.sleep(0.05)
        switch_on(active, status=False)
        return statistics.median(delays)

    assert min(median(5) for _ in range(3)) < 0.01
    assert min(median(0) for _ in range(3)) < 0.1
