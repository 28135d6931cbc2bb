"""`servicebroker worker`, as a user starts and ends it."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import servicebroker as sb
from forked import Command
from support import ORDER, ORDERS_QUEUE, STOCK_QUEUE, begin, bodies, eventually, is_running

pytestmark = pytest.mark.slow

APP = """
import os, time
import servicebroker as sb

stock = sb.Worker("StockQueue")

@stock.on("//test/Order")
def order(tx, message):
    if message.message_body == b"die":
        os._exit(9)
    if message.message_body == b"slow":
        open("slow", "w").close()
        while not os.path.exists("go on"):
            time.sleep(0.05)
    tx.send(message.conversation_handle, "//test/Reply", b"A" + message.message_body)
"""

ASYNC = APP.replace("def order", "async def order").replace("tx.send", "await tx.send")


class WorkerProcess:
    """A worker's process and its log."""

    def __init__(self, folder: Path, database: sb.Database, *arguments: str) -> None:
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = Command(
                *("worker", *arguments, "--database", database.name),
                cwd=folder,
                stderr=log,
                env=os.environ | {"SERVICEBROKER_INSTANCE": database.instance.url},
                start_new_session=True,
            )

    def wait_for_log(self, words: str, times: int = 1) -> None:
        eventually(lambda: self.log.read_text().count(words) >= times or self.process.poll() is not None, 60)
        assert self.log.read_text().count(words) >= times, self.log.read_text()

    def probe(self, path: str) -> int:
        """Request a health probe and return the HTTP status."""
        address = re.search(r"http://[\d.:]+/", self.log.read_text())
        assert address is not None
        try:
            with urllib.request.urlopen(f"{address[0]}{path}", timeout=20) as answered:
                return int(answered.status)
        except HTTPError as error:
            error.close()
            return error.code

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def start(tmp_path: Path, database: sb.Database) -> Iterator[Callable[..., WorkerProcess]]:
    started: list[WorkerProcess] = []

    def begin_one(*arguments: str) -> WorkerProcess:
        started.append(WorkerProcess(tmp_path, database, *arguments))
        return started[-1]

    yield begin_one
    for worker in started:
        if worker.process.poll() is None:
            os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()


def answer(database: sb.Database, body: bytes, **options: Any) -> list[bytes | None]:
    handle = begin(database)
    database.send(handle, ORDER, body)
    return bodies(database.receive(ORDERS_QUEUE, conversation_handle=handle, **options or {"wait": 60}))


@pytest.mark.parametrize("program", [APP, ASYNC], ids=["threads", "asyncio"])
def test_sigterm_lets_running_handlers_finish(
    database: sb.Database, tmp_path: Path, start: Callable[..., WorkerProcess], program: str
) -> None:
    (tmp_path / "app.py").write_text(program)
    worker = start("app:stock", "--concurrency", "2", "--health", "127.0.0.1:0")
    worker.wait_for_log("Reading StockQueue of")
    eventually(lambda: worker.probe("readyz") == 200)
    assert answer(database, b"1") == [b"A1"]
    handle = begin(database)
    database.send(handle, ORDER, b"slow")
    eventually((tmp_path / "slow").exists)
    worker.process.send_signal(signal.SIGTERM)
    if program is APP:  # a blocking handler stops the event loop, and with it the log
        worker.wait_for_log("Stopping")
        assert (worker.probe("livez"), worker.probe("readyz")) == (200, 503)
    (tmp_path / "go on").touch()
    assert worker.process.wait(60) == 0
    assert bodies(database.receive(ORDERS_QUEUE, conversation_handle=handle)) == [b"Aslow"]
    assert answer(database, b"2", wait=0) == []


def test_a_changed_file_begins_it_anew_and_a_broken_one_is_waited_for(
    database: sb.Database, tmp_path: Path, start: Callable[..., WorkerProcess]
) -> None:
    file = tmp_path / "app.py"
    file.write_text(APP)
    worker = start("app.py", "--reload")
    worker.wait_for_log("Reading StockQueue of")
    assert answer(database, b"1") == [b"A1"]
    file.write_text("here is a mistake")
    worker.wait_for_log("cannot be imported (SyntaxError")
    file.write_text(APP.replace('b"A" +', 'b"B" +'))
    assert answer(database, b"2") == [b"B2"]
    assert worker.end() == 0


def test_a_process_that_dies_is_replaced(
    database: sb.Database, tmp_path: Path, start: Callable[..., WorkerProcess]
) -> None:
    (tmp_path / "app.py").write_text(APP)
    worker = start("app", "--processes", "2", "--health=127.0.0.1:0")
    worker.wait_for_log("Reading StockQueue of", 2)
    eventually(lambda: worker.probe("readyz") == 200)
    handle = begin(database)
    database.send(handle, ORDER, b"die")
    worker.wait_for_log("has ended with code 9")
    database.end_conversation(handle, cleanup=True)
    with database.transaction() as transaction:
        for message in transaction.receive(STOCK_QUEUE, wait=5):
            transaction.end_conversation(message.conversation_handle)
    worker.wait_for_log("Reading StockQueue of", 3)
    assert answer(database, b"1") == [b"A1"]
    assert worker.end() == 0
    started = re.findall(r"was started as process (\d+)", worker.log.read_text())
    assert len(started) > 2
    assert not [process for process in started if Path("/proc", process).exists()]


@pytest.mark.parametrize("is_group", [False, True], ids=["process", "group"])
@pytest.mark.parametrize("option", [("--processes", "2"), ("--reload",)], ids=["processes", "reload"])
def test_processes_end_with_a_command_that_is_killed(
    database: sb.Database, tmp_path: Path, start: Callable[..., WorkerProcess], option: tuple[str, ...], is_group: bool
) -> None:
    """With `is_group` the whole process group is killed, as by `kill -9 %1` in a shell."""
    (tmp_path / "app.py").write_text(APP)
    worker = start("app", *option)
    worker.wait_for_log("Reading StockQueue of", 2 if "--processes" in option else 1)
    started = re.findall(r"was started as process (\d+)", worker.log.read_text())
    (os.killpg if is_group else os.kill)(worker.process.pid, signal.SIGKILL)
    assert worker.process.wait(60) == -signal.SIGKILL
    eventually(lambda: not any(is_running(int(process)) for process in started), 10)
    assert answer(database, b"1", wait=0) == []


@pytest.mark.parametrize(
    ("program", "target", "words"),
    [
        (APP, "app:stok", "The module 'app' has no worker 'stok'. Did you mean 'stock'?"),
        (APP, "ap:stock", "There is no module 'ap' in '{folder}'."),
        ("x = 1", "app", "The module 'app' has no worker. Make one there"),
        ("x = 1 / 0", "app:stock", "'app' cannot be imported (ZeroDivisionError: division by zero)."),
        (APP.replace("StockQueue", "Nowhere"), "app", "Cannot find the queue 'Nowhere'"),
        (
            "import servicebroker as sb\nstock = sb.Worker('StockQueue')",
            "app",
            "worker of StockQueue is one without",
        ),
        (APP + "\nother = sb.Worker('OrdersQueue')\n@other.on()\nasync def f(tx, m): ...", "app", "of both forms"),
    ],
)
def test_mistakes_are_said_in_one_sentence(
    database: sb.Database, tmp_path: Path, start: Callable[..., WorkerProcess], program: str, target: str, words: str
) -> None:
    (tmp_path / "app.py").write_text(program)
    worker = start(target)
    assert worker.process.wait(60) == 1
    output = worker.log.read_text()
    assert words.format(folder=tmp_path) in output
    assert output.count("\n") == 1
