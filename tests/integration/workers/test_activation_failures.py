"""Activation after failures of procedures, processes, sessions and users, and without resources of the system."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from activation_support import ON, PROCEDURE, CallRecorder, count_logged, monitor, send, switch_on
from servicebroker.activation import child, procedures, task
from servicebroker.activation.procedures import Procedure
from support import STOCK_QUEUE, bodies, eventually, query, queue_number, terminate_listeners

pytestmark = pytest.mark.usefixtures("remove_activation_afterwards")

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
    first, second = [
        record.created for record in caplog.records if "its process ended with code -9" in record.getMessage()
    ]
    assert second - first >= 0.4, "after a pause"


def test_a_session_that_is_killed_before_its_first_receive_is_followed_by_another(
    active: sb.Database, recorder: CallRecorder
) -> None:
    @sb.procedure(PROCEDURE, form="database")
    def stock(database: sb.Database) -> None:
        recorder.calls += 1
        if recorder.calls < 3:
            with database.transaction() as transaction:
                transaction.connection.execute("select pg_terminate_backend(pg_backend_pid())")
        recorder.bodies += bodies(database.receive(STOCK_QUEUE))

    send(active, "x")
    switch_on(active)
    eventually(lambda: recorder.bodies == [b"x"], 30)
    assert recorder.calls >= 3


def fail_once(function: Any, problem: Exception, applies: Any = lambda *_: True) -> Any:
    failed: list[Any] = []

    def failing(*arguments: Any, **options: Any) -> Any:
        if not failed and applies(*arguments):
            failed.append(arguments)
            raise problem
        return function(*arguments, **options)

    return failing


@pytest.mark.parametrize("lacks", ["process", "file", "thread", "connection"])
def test_a_reader_is_started_again_after_a_lack_of_resources(
    active: sb.Database, tmp_path: Path, lacks: str, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "calls").write_text("xx")  # stop killing it
    is_process = lacks in ("process", "file")
    (tmp_path / "lacking.py").write_text(KILLED if is_process else KILLED.replace(', worker="process"', ""))
    procedures.load([str(tmp_path / "lacking.py")])
    problem = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    if lacks == "process":
        monkeypatch.setattr(child.subprocess, "Popen", fail_once(subprocess.Popen, problem))
    elif lacks == "file":
        monkeypatch.setattr(child.os, "pipe", fail_once(os.pipe, OSError(errno.EMFILE, "Too many open files")))
    elif lacks == "thread":
        problem = RuntimeError("can't start new thread")
        of_task = lambda thread: PROCEDURE in thread.name  # noqa: E731
        monkeypatch.setattr(threading.Thread, "start", fail_once(threading.Thread.start, problem, of_task))
    else:
        monkeypatch.setattr(task, "connect", fail_once(task.connect, psycopg.OperationalError("too many clients")))
    send(active, "x")
    switch_on(active)
    eventually((tmp_path / "got").exists, 30)
    assert (tmp_path / "calls").read_text().startswith("xxx")
    assert [record for record in caplog.records if "cannot be started: " in record.getMessage()]


@pytest.mark.feature(174)
def test_a_missing_procedure_is_tried_again(
    active: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    switch_on(active, procedure_name="usp_Later")
    send(active, "x")
    eventually(lambda: count_logged(caplog, 9614) >= 2)
    assert (monitor(active) or ("",))[0] != "NOTIFIED"

    @sb.procedure("usp_Later")
    def record_body(transaction: sb.Transaction, message: sb.Message) -> None:
        recorder.bodies.append(message.message_body)

    eventually(lambda: recorder.bodies == [b"x"])


@pytest.mark.feature(174)
def test_a_user_that_is_gone_is_tried_again(
    active: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        recorder.bodies.append(message.message_body)

    active.create_user("Clerk")
    switch_on(active, execute_as="Clerk")
    active.drop_user("Clerk")
    send(active, "x")
    eventually(lambda: count_logged(caplog, 9613) >= 2)
    assert recorder.bodies == []
    switch_on(active, execute_as="OWNER")
    eventually(lambda: recorder.bodies == [b"x"])


def _exit_once(recorder: CallRecorder, problem: type[BaseException]) -> None:
    recorder.calls += 1
    if recorder.calls == 1:
        raise problem


@pytest.mark.parametrize("problem", [SystemExit, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_procedure_that_exits_has_failed_and_others_go_on(
    active: sb.Database,
    recorder: CallRecorder,
    caplog: pytest.LogCaptureFixture,
    *,
    problem: type[BaseException],
    is_async: bool,
) -> None:
    """Such an exception stops the event loop, and with it all coroutines that run there. All must go on."""

    def stock(database: sb.Database) -> None:
        with database.transaction() as tx:
            messages = tx.receive(STOCK_QUEUE)
            _exit_once(recorder, problem)
            recorder.bodies += bodies(messages)

    async def stock_async(database: sb.AsyncDatabase) -> None:
        async with database.transaction() as tx:
            messages = await tx.receive(STOCK_QUEUE)
            _exit_once(recorder, problem)
            recorder.bodies += bodies(messages)

    sb.procedure(PROCEDURE, form="database")(stock_async if is_async else stock)  # type: ignore[type-var]
    send(active, "x")
    switch_on(active)
    eventually(lambda: recorder.bodies == [b"x"], 30)
    assert count_logged(caplog, 28088) == 1
    assert "sys.exit" in caplog.text or problem.__name__ in caplog.text


def test_a_resolver_that_fails_stops_no_other_queue(
    database: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    def resolve(_: sb.Database, name: str) -> Procedure | None:
        if "usp_Other" in name:
            raise LookupError("no register of procedures")
        return None

    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        recorder.bodies.append(message.message_body)

    database.create_queue("OtherQueue", activation=ON._replace(procedure_name="usp_Other"))
    switch_on(database)
    with sb.activate(database.instance, resolvers=[resolve], interval=0.2):
        eventually(lambda: "no register of procedures" in caplog.text, 30)
        send(database, "x")
        eventually(lambda: recorder.bodies == [b"x"], 30)


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


@pytest.mark.feature(176)
def test_an_exception_of_a_procedure_is_logged(
    active: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        recorder.calls += 1
        if recorder.calls == 1:
            raise ValueError("no such shelf")
        recorder.bodies.append(message.message_body)

    send(active, "x")
    switch_on(active)
    eventually(lambda: recorder.bodies == [b"x"])
    assert count_logged(caplog, 9724, "usp_Stock", "StockQueue", "ValueError: no such shelf")
    assert count_logged(caplog, 28088)
    assert "Traceback" in caplog.text


@pytest.mark.feature(176)
def test_the_output_of_a_procedure_is_logged(active: sb.Database, caplog: pytest.LogCaptureFixture) -> None:
    class Talks:
        worker = "thread"

        def __call__(self, call: Any) -> None:
            call.output("forty-two")
            call.database.receive(call.queue)

    caplog.set_level(logging.INFO, "servicebroker")
    by_name: dict[str, Procedure] = {"[dbo].[usp_Talks]": Talks()}
    with sb.activate(active.instance, resolvers=[lambda database, name: by_name.get(name)], interval=0.4):
        switch_on(active, procedure_name="usp_Talks")
        send(active, "x")
        eventually(lambda: count_logged(caplog, 9724, "forty-two"))


def test_a_message_that_always_fails_switches_the_queue_off(
    active: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """Rollbacks of activated readers count for poison detection, call by call."""

    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        recorder.calls += 1
        raise ValueError("poison")

    send(active, "x")
    switch_on(active)
    text = "select is_receive_enabled from sys.service_queues where object_id = %s"
    eventually(lambda: query(active, text, queue_number(active, STOCK_QUEUE)) == [(0,)])
    assert recorder.calls in (5, 6)
    eventually(lambda: monitor(active) is None)


def test_a_transaction_of_a_reader_whose_session_is_killed_counts(active: sb.Database, recorder: CallRecorder) -> None:
    @sb.procedure(PROCEDURE, form="transaction")
    def stock(transaction: sb.Transaction) -> None:
        transaction.receive(STOCK_QUEUE)
        with psycopg.connect(active.instance.url, autocommit=True) as other_connection:
            other_connection.execute(
                "select pg_terminate_backend(%s, 5000)", (transaction.connection.info.backend_pid,)
            )
        transaction.receive(STOCK_QUEUE)

    send(active, "x")
    switch_on(active)
    text = "select is_receive_enabled from sys.service_queues where object_id = %s"
    eventually(lambda: query(active, text, queue_number(active, STOCK_QUEUE)) == [(0,)])


def test_activation_that_hears_nothing_more_finds_out(
    active: sb.Database, recorder: CallRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    @sb.procedure(PROCEDURE)
    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        recorder.bodies.append(message.message_body)

    terminate_listeners(active.instance.url, "servicebroker activation")
    assert "Activation has lost the database" in caplog.text
    switch_on(active)
    send(active, "x")
    eventually(lambda: recorder.bodies == [b"x"])
