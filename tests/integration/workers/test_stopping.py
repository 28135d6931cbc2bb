"""The end of activation: waiting readers end, hanging ones are cut off, and none uses the database afterwards."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import servicebroker as sb
from daemons import ServeProcess
from servicebroker.store.locks import CONVERSATION_GROUP
from support import ORDER, STOCK_QUEUE, begin, bodies, eventually, query, standard_database

pytestmark = pytest.mark.usefixtures("remove_activation_afterwards")

PROCEDURE = "usp_Stock"
is_released = threading.Event()  # set when a procedure that hangs in Python may go on


def switch_on(database: sb.Database) -> None:
    database.alter_queue(STOCK_QUEUE, activation=sb.Activation(PROCEDURE, 1, "SELF", status=True))


def is_waiting(database: sb.Database) -> bool:
    """Return True if a reader of the procedure waits for a message."""
    text = "select tasks_waiting from sys.dm_broker_queue_monitors where tasks_waiting > 0"
    return bool(query(database, text))


@pytest.mark.parametrize("form", ["message", "database", "coroutine"])
def test_a_message_after_the_end_of_the_block_is_not_taken(database: sb.Database, form: str) -> None:
    """A reader that waits for the next message stops as soon as the block ends."""
    received: list[bytes | None] = []

    def stock(transaction: sb.Transaction, message: sb.Message) -> None:
        received.append(message.message_body)

    async def coroutine(transaction: sb.AsyncTransaction, message: sb.Message) -> None:
        received.append(message.message_body)

    def receive_itself(database: sb.Database) -> None:
        while messages := database.receive(STOCK_QUEUE, wait=60):
            received.extend(message.message_body for message in messages)

    if form == "database":
        sb.procedure(PROCEDURE, form="database")(receive_itself)
    else:
        sb.procedure(PROCEDURE, wait=60)(coroutine if form == "coroutine" else stock)
    switch_on(database)
    handle = begin(database)
    with sb.activate(database.instance, interval=0.2):
        database.send(handle, ORDER, b"first")
        eventually(lambda: received == [b"first"] and is_waiting(database))
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < 5
    database.send(handle, ORDER, b"after")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"after"]
    assert query(database, "select from sys.dm_broker_activated_tasks") == []
    assert received == [b"first"]


def hang_in_sql(transaction: sb.Transaction, message: sb.Message) -> None:
    transaction.connection.execute("select pg_sleep(600)")


def hang_in_python(transaction: sb.Transaction, message: sb.Message) -> None:
    is_released.wait(600)
    transaction.send(message.conversation_handle, "//test/Reply", b"too late")


async def hang_in_sql_async(transaction: sb.AsyncTransaction, message: sb.Message) -> None:
    await transaction.connection.execute("select pg_sleep(600)")


@pytest.mark.parametrize("procedure", [hang_in_sql, hang_in_python, hang_in_sql_async])
def test_a_procedure_that_does_not_end_is_rolled_back(database: sb.Database, procedure: Any) -> None:
    """The block ends after its timeout (patience). From then on the procedure cannot use the database."""
    is_released.clear()
    sb.procedure(PROCEDURE)(procedure)
    switch_on(database)
    with sb.activate(database.instance, interval=0.2, patience=0.2):
        database.send(begin(database), ORDER, b"first")
        eventually(lambda: query(database, "select from sys.dm_broker_activated_tasks"))
        eventually(
            lambda: query(
                database, "select from pg_locks where locktype = 'advisory' and classid = %s", CONVERSATION_GROUP
            )
        )
        stopped_at = time.monotonic()
    assert time.monotonic() - stopped_at < 5
    is_released.set()
    text = "select from pg_stat_activity where application_name like %s"
    eventually(lambda: not query(database, text, f"%{PROCEDURE}%"), 5)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"first"]
    assert database.receive("OrdersQueue") == []


PROCEDURES = """
import os, re, signal, subprocess, sys, threading, time
import servicebroker as sb

def mark_started():
    open(os.environ["STARTED"], "w").close()

@sb.procedure("usp_Stock")
def stock(transaction, message):
    how = message.message_body.decode()
    if how == "child":
        child = subprocess.Popen(["sleep", "600"])
        mark_started()
        child.wait()
    if how == "thread":
        threading.Thread(target=time.sleep, args=(600,)).start()
    mark_started()
    if how == "sql":
        transaction.connection.execute("select pg_sleep(600)")
    if how == "c":
        re.match("(a+)+$", "a" * 60 + "b")  # lets no other thread of Python run
    time.sleep(600)

@sb.procedure("usp_Process", worker="process")
def in_a_process(transaction, message):
    stock(transaction, message)
"""


Serve = Callable[..., ServeProcess]


@pytest.fixture
def serve(make_instance_url: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start `servicebroker serve` on an unused instance with a procedure that hangs in the given way."""
    (tmp_path / "hanging.py").write_text(PROCEDURES)
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    running: list[ServeProcess] = []

    def start(procedure: str, how: str, patience: float, target: str = "") -> ServeProcess:
        target = target or make_instance_url(1)
        with sb.open(target, upkeep=None) as instance:
            database = standard_database(instance)
            database.alter_queue(STOCK_QUEUE, activation=sb.Activation(procedure, 1, "OWNER", status=True))
            database.send(begin(database), ORDER, how)
        arguments = ("--procedures", str(tmp_path / "hanging.py"), "--patience", str(patience))
        running.append(ServeProcess(target, tmp_path / "keys", *arguments))
        eventually((tmp_path / "started").exists)
        return running[-1]

    yield start
    for daemon in running:
        if daemon.process.poll() is None:
            daemon.kill()


def list_processes(folder: Path) -> list[str]:
    """Return the command lines of processes that run in a folder or have its name in their environment."""
    command_lines = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = str(folder).encode() in (process / "environ").read_bytes()
            if ours or (process / "cwd").readlink().is_relative_to(folder):
                command_lines.append((process / "cmdline").read_text())
    return command_lines


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("procedure", "how"),
    [
        ("usp_Process", "c"),
        ("usp_Stock", "child"),
        ("usp_Stock", "thread"),
        ("usp_Stock", "sql"),
        ("usp_Process", "sql"),
    ],
)
def test_the_daemon_ends_in_time_despite_hanging_procedures(
    serve: Serve, tmp_path: Path, procedure: str, how: str
) -> None:
    daemon = serve(procedure, how, 0.2)
    stopped_at = time.monotonic()
    assert daemon.end() == 0
    assert time.monotonic() - stopped_at < 8
    assert daemon.has_logged("did not end in 0.2 seconds")
    eventually(lambda: not list_processes(tmp_path), 5)


def test_a_daemon_whose_threads_cannot_run_is_killed(serve: Serve, tmp_path: Path) -> None:
    daemon = serve("usp_Stock", "c", 0)
    stopped_at = time.monotonic()
    assert daemon.end() == -signal.SIGKILL
    assert time.monotonic() - stopped_at < 10
    assert daemon.has_logged("killed, since it had not ended in time", level="ERROR")  # a log record in JSON, too
    eventually(lambda: not list_processes(tmp_path), 5)


def test_a_second_signal_ends_the_daemon_at_once(serve: Serve, tmp_path: Path) -> None:
    """A second SIGINT ends the daemon. Its embedded server stops, too, since no other process uses it."""
    # outside of pytest's temporary folder: see the fixture `server`
    with TemporaryDirectory(prefix="stopping-") as folder:
        _stop_with_second_signal(
            serve("usp_Stock", "child", 600, f"{folder}/instance"), tmp_path, Path(folder).resolve()
        )


def _stop_with_second_signal(daemon: ServeProcess, *folders: Path) -> None:
    daemon.process.send_signal(signal.SIGINT)
    daemon.wait_for_log("shut down")
    stopped_at = time.monotonic()
    assert daemon.end() in (0, -signal.SIGKILL)  # by its watchdog, if the machine is too busy for 3 seconds
    assert time.monotonic() - stopped_at < 8
    eventually(lambda: not any(list_processes(folder) for folder in folders), 10)
