"""Activation in the daemon: `servicebroker serve --procedures`, its log, its shutdown, and its alerts."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from daemons import ServeProcess, Site
from servicebroker.activation import alerts
from support import ORDER, REPLY, STOCK_QUEUE, begin, bodies, eventually, query, queue_number, refused, rolled_back

PROCEDURES = """
import os, time
import servicebroker as sb

@sb.procedure("usp_Stock")
def stock(transaction, message):
    print("took", message.message_body.decode())
    if message.message_body == b"slow":
        open(os.environ["STARTED"], "w").close()
        time.sleep(1)
    if message.message_body == b"poison":
        raise ValueError("poison")
    transaction.send(message.conversation_handle, "//test/Reply", str(os.getpid()))

@sb.procedure("usp_Process", worker="process")
def in_a_process(transaction, message):
    stock(transaction, message)
    if message.message_body == b"die":
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def site(make_instance_url: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "stock_procedures.py").write_text(PROCEDURES)
    monkeypatch.setenv("STARTED", str(tmp_path / "started"))
    started_site = Site("west", make_instance_url(), tmp_path)
    started_site.database.alter_queue(STOCK_QUEUE, activation=sb.Activation("usp_Stock", 2, "OWNER", status=True))
    yield started_site
    started_site.close()


def serve(site: Site, tmp_path: Path, *arguments: str) -> ServeProcess:
    served = site.serve("--procedures", str(tmp_path / "stock_procedures.py"), "--activation-interval", "1", *arguments)
    served.wait_for_log("serves the instance")
    return served


def answer(site: Site, text: str) -> str:
    """Send a message and return the procedure's answer: its process id."""
    handle = begin(site.database)
    site.database.send(handle, ORDER, text)
    (reply,) = site.database.receive("OrdersQueue", conversation_handle=handle, wait=20)
    assert reply.message_type_name == REPLY
    return (reply.message_body or b"").decode()


@pytest.mark.feature(168, 176)
def test_the_daemon_starts_readers_and_logs_their_output(site: Site, tmp_path: Path) -> None:
    served = serve(site, tmp_path)
    assert answer(site, "teapot") == str(served.process.pid)
    served.wait_for_log("Msg 9724", level="INFO")
    assert served.has_logged("took teapot")
    with psycopg.connect(site.url, autocommit=True) as other_connection:  # as a restart of PostgreSQL would
        other_connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = current_database() "
            "and application_name in ('servicebroker activation', 'servicebroker serve')"
        )
    served.wait_for_log("Activation has lost the database")
    assert answer(site, "cup") == str(served.process.pid)


def test_sigterm_lets_the_work_in_progress_finish(site: Site, tmp_path: Path) -> None:
    served = serve(site, tmp_path)
    handle = begin(site.database)
    site.database.send(handle, ORDER, b"slow")
    eventually((tmp_path / "started").exists)
    assert served.end() == 0
    assert bodies(site.database.receive("OrdersQueue", conversation_handle=handle)) == [
        str(served.process.pid).encode()
    ]
    assert query(site.database, "select from sys.dm_broker_queue_monitors") == []


class Hook(BaseHTTPRequestHandler):
    told: list[Any]

    def do_POST(self) -> None:
        self.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[Any]]]:
    hook = type("One", (Hook,), {"told": []})
    with HTTPServer(("127.0.0.1", 0), hook) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", hook.told
        server.shutdown()
        thread.join()


@pytest.mark.feature(186)
def test_a_queue_that_is_switched_off_alerts(site: Site, tmp_path: Path, webhook: tuple[str, list[Any]]) -> None:
    """Alerts go to a command and a webhook, also for events from before the daemon started."""
    url, told = webhook
    file = tmp_path / "alert.json"
    command = f"{sys.executable} -c 'import sys; open(sys.argv[1], \"a\").write(sys.stdin.read() + chr(10))' {file}"
    served = serve(site, tmp_path, "--alert-command", command, "--alert-webhook", url)
    site.database.send(begin(site.database), ORDER, b"poison")
    eventually(lambda: bool(told))
    (event,) = told
    assert (event["event"], event["number"]) == ("Broker:Queue Disabled", 143)
    number = queue_number(site.database, STOCK_QUEUE)
    assert (event["database"], event["schema"], event["queue"], event["queue_id"]) == (
        *("Test", "dbo", STOCK_QUEUE),
        number,
    )
    assert json.loads(file.read_text()) == event
    assert served.end() == 0
    site.database.alter_queue(STOCK_QUEUE, status=True, activation="DROP")
    for _ in range(5):
        with rolled_back(site.database) as transaction:
            assert transaction.receive(STOCK_QUEUE)
    serve(site, tmp_path, "--alert-webhook", url)
    eventually(lambda: len(told) == 2)


@pytest.mark.parametrize("nonsense", [b"no HTTP", b"HTTP/1.1 302 Found\r\nLocation: http://[::/"])
def test_a_webhook_that_answers_nonsense_is_tried_again(
    database: sb.Database, monkeypatch: pytest.MonkeyPatch, nonsense: bytes
) -> None:
    """An answer that is not HTTP must not end the thread that sends alerts."""
    monkeypatch.setattr(alerts, "RETRY_DELAY_S", 0.1)
    for _ in range(5):
        with rolled_back(database) as transaction:
            transaction.send(begin(transaction), ORDER, b"x")  # type: ignore[arg-type]
            transaction.receive(STOCK_QUEUE)
    tried = threading.Semaphore(0)

    def answer_all() -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(nonsense + b"\r\n\r\n")
                tried.release()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer_all, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with alerts.alerts(database.instance, alerts.Alert(webhook=url)):
            assert tried.acquire(timeout=20)
            assert tried.acquire(timeout=20)
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("url", ["http://", "http://a b/", "http://[::/", "http://a:99999/", "http://a/\xe9"])
def test_an_address_that_no_request_can_be_sent_to_is_refused(database: sb.Database, url: str) -> None:
    with refused(402, "http"), alerts.alerts(database.instance, alerts.Alert(webhook=url)):
        raise AssertionError


@pytest.mark.feature(186)
@pytest.mark.parametrize("option", [["--alert-webhook", "ftp://x"], ["--alert-command", "'"]])
def test_a_hook_that_cannot_be_one_is_refused(site: Site, option: list[str]) -> None:
    served = site.serve(*option)
    assert served.process.wait(20) == 1
    served.wait_for_log("Msg 402")


def test_procedures_that_cannot_be_imported_end_it(site: Site) -> None:
    served = site.serve("--procedures", "no_such_module_here")
    assert served.process.wait(20) == 1
    served.wait_for_log("no_such_module_here")


@pytest.mark.feature(168)
def test_a_procedure_in_a_process_of_its_own(site: Site, tmp_path: Path) -> None:
    """Its output is logged. A crash ends only its process, counts as a rollback, and a new process follows."""
    site.database.alter_queue(STOCK_QUEUE, activation=sb.Activation("usp_Process"))
    served = serve(site, tmp_path)
    worker = answer(site, "teapot")
    assert worker != str(served.process.pid)
    served.wait_for_log("took teapot")
    site.database.send(begin(site.database), ORDER, b"die")
    text = "select is_receive_enabled from sys.service_queues where object_id = %s"
    eventually(lambda: query(site.database, text, queue_number(site.database, STOCK_QUEUE)) == [(0,)])
    served.wait_for_log("its process ended with code -9")
    assert served.process.poll() is None
    assert served.end() == 0
    (message,) = query(site.database, "select message_body from test_dbo.stockqueue")
    assert message == (b"die",), "it is still there"


def test_sigterm_waits_for_a_process_too(site: Site, tmp_path: Path) -> None:
    site.database.alter_queue(STOCK_QUEUE, activation=sb.Activation("usp_Process"))
    served = serve(site, tmp_path)
    handle = begin(site.database)
    site.database.send(handle, ORDER, b"slow")
    eventually((tmp_path / "started").exists)
    assert served.end() == 0
    (reply,) = site.database.receive("OrdersQueue", conversation_handle=handle)
    assert reply.message_type_name == REPLY


def test_processes_end_with_a_daemon_that_is_killed(site: Site, tmp_path: Path) -> None:
    site.database.alter_queue(STOCK_QUEUE, activation=sb.Activation("usp_Process"))
    served = serve(site, tmp_path)
    site.database.send(begin(site.database), ORDER, b"slow")
    eventually((tmp_path / "started").exists)
    text = "select from sys.dm_broker_activated_tasks"
    assert query(site.database, text)
    served.kill()
    eventually(lambda: not query(site.database, text))
