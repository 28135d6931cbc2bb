"""A proxy loses the server, but keeps its clients' sockets open and answers their keepalives."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeAlias

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import servicebroker as sb
from servicebroker.store import lost_sessions
from servicebroker.store.listener import listening
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, eventually, standard_database

Stream: TypeAlias = tuple[socket.socket, socket.socket]  # to the client, to the server


class ForgetfulProxy:
    """Forwards between clients and a server with a Unix socket. `forget` stops all current streams for good."""

    def __init__(self, url: str) -> None:
        parts = conninfo_to_dict(url)
        self.direct = url
        self._target = f"{parts['host']}/.s.PGSQL.{parts['port']}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._streams: list[Stream] = []
        self._forgotten: list[Stream] = []
        port = self._listener.getsockname()[1]
        self.url = make_conninfo(url, host="127.0.0.1", port=port, sslmode="disable")
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self) -> int:
        """Close the server's side without a word to the clients, and return the number of streams."""
        forgotten, self._streams = self._streams, []
        self._forgotten += forgotten
        for _, server in forgotten:
            server.shutdown(socket.SHUT_RDWR)
        return len(forgotten)

    def close(self) -> None:
        """Stop accepting, and end the streams."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for side in itertools.chain(*self._streams, *self._forgotten):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._streams.append((client, server))
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        ended = [stream for stream in self._streams if source in stream]  # none when it was forgotten
        for side in itertools.chain(*ended):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(make_url: Callable[[], str]) -> Iterator[ForgetfulProxy]:
    proxy = ForgetfulProxy(make_url())
    yield proxy
    proxy.close()


@pytest.fixture(autouse=True)
def short_check_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than a server in use needs it."""
    monkeypatch.setattr(lost_sessions, "SAMPLE_INTERVAL_S", 0.1)
    monkeypatch.setattr(lost_sessions, "SUSPICION_S", 0.5)
    monkeypatch.setattr(lost_sessions, "LISTENER_CHECK_S", 1.0)


def test_a_worker_goes_on_after_all_its_sessions_are_gone(proxy: ForgetfulProxy) -> None:
    received: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def order(tx: sb.Transaction, message: sb.Message) -> None:
        received.append(message.message_body)

    with sb.open(proxy.direct) as sender, sb.open(proxy.url) as instance:
        database = standard_database(sender)
        handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        with instance.database(database.name).working(worker):
            for number in range(3):
                database.send(handle, ORDER, b"%d" % number)
                eventually(lambda number=number: len(received) == number + 1, 20)
                assert proxy.forget() > 1
        assert received == [b"0", b"1", b"2"]


def test_a_statement_is_told_of_the_loss(proxy: ForgetfulProxy) -> None:
    with sb.open(proxy.url) as instance:
        database = standard_database(instance)
        with pytest.raises(sb.InstanceError, match="went away"), database.transaction() as transaction:
            transaction.connection.execute("select 1")
            proxy.forget()
            transaction.connection.execute("select 2")


def test_so_is_one_of_asyncio(proxy: ForgetfulProxy) -> None:
    async def lose() -> None:
        async with sb.AsyncInstance(proxy.url) as instance:
            database = await instance.database("Test", create=True)
            with pytest.raises(sb.InstanceError, match="went away"):
                async with database.transaction() as transaction:
                    await transaction.connection.execute("select 1")
                    proxy.forget()
                    await transaction.connection.execute("select 2")

    asyncio.run(asyncio.wait_for(lose(), 20))


def test_a_statement_that_only_takes_long_is_left_alone(proxy: ForgetfulProxy) -> None:
    with sb.open(proxy.url) as instance, standard_database(instance).transaction() as transaction:
        started_at = time.monotonic()
        ((value,),) = transaction.connection.execute("select 1 from pg_sleep(2)").fetchall()
        assert value == 1
        assert time.monotonic() - started_at >= 2


def test_a_listener_is_told_too(proxy: ForgetfulProxy) -> None:
    with listening(proxy.url, ("of_a_test",), print, name="of a test") as listener:
        proxy.forget()
        eventually(lambda: listener.problem is not None, 20)
    with pytest.raises(psycopg.OperationalError):
        listener.check()


def test_a_question_without_an_answer_ends(proxy: ForgetfulProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the one thread that looks for lost sessions would wait for ever on such a session."""
    monkeypatch.setattr(lost_sessions, "_ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(lost_sessions, "_EXISTING", f"select pg_sleep(30), 1 from ({lost_sessions._EXISTING}) of_any")
    with psycopg.connect(proxy.direct) as asked_about:
        suspect = lost_sessions._Watched(proxy.direct, (asked_about.info.backend_pid, None), is_listening=False)
        started_at = time.monotonic()
        lost_sessions._judge(proxy.direct, {asked_about: suspect})
        assert time.monotonic() - started_at < 15
        assert asked_about.execute("select 1").fetchall() == [(1,)]


def test_the_thread_ends_with_the_last_connection(proxy: ForgetfulProxy) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "lost sessions" in thread.name]

    sb.open(proxy.url).close()
    if not list(lost_sessions._watched):  # other tests of the process may have open instances
        eventually(lambda: not threads())
