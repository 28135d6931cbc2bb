"""One instance whose conversations are divided among three relays: nothing is lost, doubled or out of order."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from mirrored_servers import Server
from servicebroker.broker import daemon, metrics, processes, shares
from servicebroker.broker.daemon import Daemon
from servicebroker.broker.postgres_store import PostgresStore
from servicebroker.broker.processes import ShareProcess
from servicebroker.broker.sharing import growth
from servicebroker.engine.remote.arriving import Result
from servicebroker.protocol.division import Division, share_of
from servicebroker.protocol.incoming import Batch
from servicebroker.store.connection import connect
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    eventually,
    query,
    standard_database,
)

SHARE_COUNT = 3
CONVERSATION_COUNT = 12
PASSWORD = "correct horse"
in_threads_and_processes = pytest.mark.parametrize("in_processes", [False, True], ids=["threads", "processes"])
MESSAGE_COUNT, MESSAGE_COST_S = 4_800, 0.0003  # seconds


class Site:
    """An instance and its daemon in a thread."""

    def __init__(self, url: str, keys: Path, shares: int, *, in_processes: bool) -> None:
        self.url = url
        self.instance = sb.open(url, clock=lambda: datetime.now(UTC), upkeep=None, keys=keys)
        self.database = standard_database(self.instance)
        self.daemon = Daemon(
            url, lambda: datetime.now(UTC), keys=self.instance.key_folder(), shares=shares, in_processes=in_processes
        )
        self.port = self.daemon.listen("127.0.0.1", 0).port
        self._thread = threading.Thread(target=self.daemon.run)
        self._thread.start()

    def route(self, service: str, there: Site) -> None:
        self.database.create_route(f"To {service}", service_name=service, address=f"TCP://127.0.0.1:{there.port}")

    @property
    def sessions(self) -> int:
        """Of rounds and of who hears."""
        text = "select count(*) from pg_stat_activity where application_name = 'servicebroker serve' and datname = %s"
        with psycopg.connect(self.url) as connection:
            (found,) = connection.execute(text, (connection.info.dbname,)).fetchone() or (0,)
        return int(found)

    @property
    def processes(self) -> list[ShareProcess]:
        """Of its shares; with them these know whose session it is."""
        return [one for one in self.daemon._shares._opened if isinstance(one, ShareProcess) and one._session]

    @property
    def second_session(self) -> int:
        """The process of PostgreSQL that the second share talks to."""
        one = self.daemon._shares._opened[0]
        if isinstance(one, ShareProcess):
            assert one._session is not None
            return one._session.pid
        return one.connection.info.backend_pid

    def session_of(self, process: ShareProcess) -> list[tuple[Any, ...]]:
        """Return the wait event of a process's session, as long as the session exists."""
        assert process._session is not None
        text = "select wait_event_type, wait_event from pg_stat_activity where pid = %s and backend_start = %s"
        with psycopg.connect(self.url) as connection:
            return connection.execute(text, process._session).fetchall()

    @property
    def remembered(self) -> list[int]:
        """Conversations, by each share."""
        return [share.relay.remembered for share in self.daemon._shares.all]

    @property
    def waiting(self) -> int:
        ((count,),) = query(self.database, "select count(*) from sys.transmission_queue")
        return int(count)

    def close(self) -> None:
        self.daemon.stop()
        self._thread.join(20)
        self.instance.close()


@contextmanager
def sites(
    count: int,
    make_instance_url: Callable[..., str],
    folder: Path,
    shares: int = SHARE_COUNT,
    *,
    in_processes: bool = False,
) -> Iterator[list[Site]]:
    """West sends to east; both know the way."""
    with ExitStack() as stack:
        made = []
        for number in range(count):
            made.append(Site(make_instance_url(1), folder / str(number), shares, in_processes=in_processes))
            stack.callback(made[-1].close)
        west, east = made[0], made[-1]
        west.database.drop_service(STOCK)
        east.database.drop_service(ORDERS)
        east.database.grant("SEND", "public", service=STOCK)
        yield made


def converse(west: Site, east: Site, *, large: int = 0, encryption: bool = False) -> None:
    """Many conversations of both; each message is answered, and everything comes once and in order, and is counted."""
    for site in (west, east):
        eventually(lambda site=site: len(site.remembered) == SHARE_COUNT)
    counted = _arrived()
    handles = [
        west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=encryption)
        for _ in range(CONVERSATION_COUNT)
    ]
    sent = {handle: [b"%d" % number for number in range(10)] for handle in handles}
    for handle in handles[:3] if large else []:
        sent[handle].insert(5, bytes(large))
    for number in range(11):
        for handle in handles:
            for body in sent[handle][number : number + 1]:
                west.database.send(handle, ORDER, body)
    _read(east, STOCK_QUEUE, sum(map(len, sent.values())), sent.values(), answers=True)
    lengths = [[b"%d" % len(body) for body in bodies] for bodies in sent.values()]
    _read(west, ORDERS_QUEUE, sum(map(len, sent.values())), lengths, answers=False)
    for site in (west, east):
        eventually(lambda site=site: sum(count > 0 for count in site.remembered) > 1)
    eventually(lambda: metrics.REGISTRY.get_sample_value("servicebroker_active_dialogs") == sum(east.remembered))
    eventually(lambda: _arrived() >= counted + 2 * sum(map(len, sent.values())))
    for handle in handles:
        west.database.end_conversation(handle)
    eventually(lambda: west.waiting == east.waiting == 0)


def _arrived() -> float:
    """Messages from other instances that were stored, in both."""
    return metrics.REGISTRY.get_sample_value("servicebroker_enqueued_transport_messages_total") or 0.0


def _read(site: Site, queue: str, count: int, expected: Any, *, answers: bool) -> None:
    found: dict[UUID, list[bytes]] = {}
    while sum(map(len, found.values())) < count:
        for message in site.database.receive(queue, top=100, wait=60):
            if message.message_type_name.endswith("/EndDialog"):  # EndDialogs of earlier conversations
                site.database.end_conversation(message.conversation_handle)
                continue
            body = bytes(message.message_body or b"")
            assert message.message_sequence_number == len(found.setdefault(message.conversation_handle, []))
            found[message.conversation_handle].append(body)
            if answers:
                site.database.send(message.conversation_handle, REPLY, b"%d" % len(body))
    assert sorted(found.values()) == sorted(expected)


@pytest.mark.parametrize(
    "in_processes", [pytest.param(False, marks=pytest.mark.full), True], ids=["threads", "processes"]
)
def test_messages_large_and_small_come_once_and_in_order(
    make_instance_url: Callable[..., str], tmp_path: Path, *, in_processes: bool
) -> None:
    with sites(2, make_instance_url, tmp_path, in_processes=in_processes) as (west, east):
        west.route(STOCK, east)
        east.route(ORDERS, west)
        converse(west, east, large=3_000_000)
        eventually(lambda: west.sessions == SHARE_COUNT + 1)
        with psycopg.connect(east.url, autocommit=True) as other:  # one of them alone: all begin anew
            other.execute("select pg_terminate_backend(%s)", [east.second_session])
        eventually(lambda: len(east.remembered) == 1)
        converse(west, east)


@pytest.mark.sampled(1)
@in_threads_and_processes
def test_conversations_that_are_secured(
    make_instance_url: Callable[..., str], tmp_path: Path, *, in_processes: bool
) -> None:
    with sites(2, make_instance_url, tmp_path, in_processes=in_processes) as (west, east):
        east.database.revoke("SEND", "public", service=STOCK)
        for site, name in ((west, "orders"), (east, "stock")):
            site.database.create_master_key(PASSWORD)
            site.database.create_certificate(name)
            site.database.backup_certificate(name, tmp_path / name)
        for site, name, user in ((west, "stock", "Stock"), (east, "orders", "Orders")):
            site.database.create_user(user)
            site.database.create_certificate(f"{name}!", file=tmp_path / name, authorization=user)
        west.database.create_remote_service_binding("ToStock", to_service=STOCK, user="Stock")
        east.database.grant("SEND", "Orders", service=STOCK)
        west.route(STOCK, east)
        east.route(ORDERS, west)
        converse(west, east, encryption=True)
        assert set(query(east.database, "select security::text from servicebroker.conversation_endpoints")) == {("F",)}


@pytest.mark.sampled(1)
@in_threads_and_processes
def test_messages_that_are_forwarded(
    make_instance_url: Callable[..., str], tmp_path: Path, *, in_processes: bool
) -> None:
    with sites(3, make_instance_url, tmp_path, in_processes=in_processes) as (west, middle, east):
        watch = middle.daemon._watch
        assert watch.listener is not None
        watch.listener = watch.listener._replace(forwards=True)
        for here, service, there in (
            (west, STOCK, middle),
            (middle, STOCK, east),
            (middle, ORDERS, west),
            (east, ORDERS, middle),
        ):
            if here is middle:
                here.database.drop_service(service)
                here.instance.database("msdb").create_route(
                    f"To {service}", service_name=service, address=f"TCP://127.0.0.1:{there.port}"
                )
            else:
                here.route(service, there)
        converse(west, east)


def test_every_share_finds_its_own(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    with sb.open(url, upkeep=None) as instance, connect(url) as connection:
        database = standard_database(instance)
        database.drop_service(STOCK)
        database.create_route("ToStock", service_name=STOCK, address="TCP://nowhere:4022")
        stores = [
            PostgresStore(connection, lambda: datetime.now(UTC), Division(n, SHARE_COUNT)) for n in range(SHARE_COUNT)
        ]
        whole = PostgresStore(connection, lambda: datetime.now(UTC))
        seen = whole.look(None).snapshot
        for _ in range(30):
            database.send(database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False), ORDER, b"1")
        conversations = dict(
            query(database, "select conversation_handle, conversation_id from servicebroker.conversation_endpoints")
        )
        parts = [store.look(seen).waiting for store in stores]
        assert sorted(one for part in parts for one in part) == sorted(whole.look(seen).waiting)
        for number, (part, store) in enumerate(zip(parts, stores, strict=True)):
            mine = sorted(one.conversation_handle for one in part)
            assert {share_of(conversations[handle], SHARE_COUNT) for handle in mine} == {number}
            first = store.page(UUID(int=0), 4)
            assert first + store.page(first[-1], 100) == mine


class Slow(PostgresStore):
    """A server on other cores, which needs some time for each message that it stores."""

    def store(self, batches: Mapping[UUID, Batch], *arguments: Any) -> Result:
        """As PostgreSQL's; and then it takes a while."""
        result = super().store(batches, *arguments)
        time.sleep(MESSAGE_COST_S * sum(batch.reached - batch.expected for batch in batches.values()))
        return result


@pytest.mark.full
def test_what_servers_do_for_shares_takes_place_at_the_same_time(
    make_instance_url: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "PostgresStore", Slow)
    monkeypatch.setattr(shares, "PostgresStore", Slow)
    alone, together = (_seconds(count, make_instance_url, tmp_path / str(count)) for count in (1, SHARE_COUNT))
    assert alone > MESSAGE_COST_S * MESSAGE_COUNT
    assert together < alone / 1.5


def _seconds(shares: int, make_instance_url: Callable[..., str], folder: Path) -> float:
    """Until what waits at the sender has arrived."""
    with sites(2, make_instance_url, folder, shares) as (west, east):
        handles = [
            west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
            for _ in range(2 * CONVERSATION_COUNT)
        ]
        for handle in handles:
            west.database.send_batch(handle, ORDER, [b"x"] * (MESSAGE_COUNT // len(handles)))
        eventually(lambda: len(west.remembered) == len(east.remembered) == shares)
        began = time.monotonic()
        west.route(STOCK, east)
        east.route(ORDERS, west)
        eventually(lambda: west.waiting == 0)
        return time.monotonic() - began


# ---------------------------------------------------------------- processes that do not do what they should


@pytest.fixture
def served(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    """West and east, each in two processes; conversations are under way, one of each share at least."""
    with sites(2, make_instance_url, tmp_path, 2, in_processes=True) as (west, east):
        west.route(STOCK, east)
        east.route(ORDERS, west)
        eventually(lambda: len(west.processes) == len(east.processes) == 1)
        yield west, east


def handle_of(site: Site, share: int) -> UUID:
    """A new conversation of that share of two."""
    while True:
        handle = site.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
        text = (
            f"select conversation_id from servicebroker.conversation_endpoints where conversation_handle = '{handle}'"
        )
        if share_of(query(site.database, text)[0][0], 2) == share:
            return handle


def sends(west: Site, east: Site, handle: UUID, body: bytes) -> None:
    """Send a message, and wait until it has arrived and west knows that."""
    west.database.send(handle, ORDER, body)
    assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=60)] == [body]
    eventually(lambda: west.waiting == 0)


def killed(process: ShareProcess) -> None:
    """As somebody else would do it."""
    os.kill(process.pid, signal.SIGKILL)


def test_the_session_of_a_killed_process_ends_with_it(served: tuple[Site, Site]) -> None:
    """PostgreSQL would not notice as long as it waits: for a lock here."""
    west, east = served
    handle = handle_of(west, 1)
    sends(west, east, handle, b"1")
    (before,) = east.processes
    with psycopg.connect(east.url) as holder:
        holder.execute("lock table servicebroker.arrivals in exclusive mode")
        west.database.send(handle, ORDER, b"2")
        eventually(lambda: east.session_of(before)[0][0] == "Lock")
        killed(before)
        eventually(lambda: east.session_of(before) == [])
    eventually(lambda: bool(east.processes) and east.processes != [before])
    assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=60)] == [b"2"]
    eventually(lambda: west.waiting == 0)


@pytest.fixture
def guarded(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[tuple[Site, Site, Server]]:
    """As `served`, and east's server can be told to wait for a standby that there is not."""
    folder = Path(tempfile.mkdtemp(prefix="servicebroker-guarded-"))  # reachable for the server's user
    folder.chmod(0o755)
    server = Server(folder / "one")
    server.make(synchronous="")
    server.start()
    try:
        urls = iter([make_instance_url(1), server.url])
        with sites(2, lambda _: next(urls), tmp_path, 2, in_processes=True) as (west, east):
            west.route(STOCK, east)
            east.route(ORDERS, west)
            eventually(lambda: len(west.processes) == len(east.processes) == 1)
            yield west, east, server
    finally:
        server.close()
        shutil.rmtree(folder)


def commit_waits(west: Site, east: Site, server: Server) -> ShareProcess:
    """The process of east that has stored a message, which its standby does not confirm."""
    handle = handle_of(west, 1)
    sends(west, east, handle, b"1")
    server.set_synchronous("nobody")
    west.database.send(handle, ORDER, b"2")
    (process,) = east.processes
    eventually(lambda: east.session_of(process) == [("IPC", "SyncRep")])
    return process


def test_what_a_killed_process_has_committed_is_acknowledged_when_the_standby_has_it(
    guarded: tuple[Site, Site, Server],
) -> None:
    west, east, server = guarded
    before = commit_waits(west, east, server)
    killed(before)
    eventually(lambda: east.session_of(before) == [])
    eventually(lambda: bool(east.processes) and east.processes != [before])
    (after,) = east.processes
    eventually(lambda: east.session_of(after) == [("IPC", "SyncRep")])
    time.sleep(3.0)  # the message has come again meanwhile
    assert west.waiting == 1
    server.set_synchronous("")
    eventually(lambda: west.waiting == 0)
    assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=60)] == [b"2"]


def test_a_commit_that_waits_for_its_standby_ends_with_the_daemon(
    guarded: tuple[Site, Site, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    west, east, server = guarded
    monkeypatch.setattr(daemon, "STOP_TIMEOUT_S", 0.5)
    process = commit_waits(west, east, server)
    east.daemon.stop()
    east._thread.join(20)
    assert not east._thread.is_alive()
    assert east.session_of(process) == []
    assert west.waiting == 1
    server.set_synchronous("")


def _no_more(*_: object, **__: object) -> Any:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


HINDRANCES = pytest.mark.parametrize(
    ("what", "name", "value", "said"),
    [
        (
            subprocess,
            "Popen",
            _no_more,
            "The daemon cannot start another process: [Errno 11] Resource temporarily unavailable.",
        ),
        (processes, "PROGRAM", [], "Another version was installed since the daemon began"),
        (processes, "MODULE", "no_such_module", "A process ended with exit code 1 at its start."),
    ],
    ids=["none", "another version", "broken"],
)


@pytest.mark.sampled(1)
@HINDRANCES
def test_where_no_process_can_take_its_place_the_daemon_does_its_work(
    served: tuple[Site, Site],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: object,
    name: str,
    value: object,
    said: str,
) -> None:
    west, east = served
    handle = handle_of(west, 1)
    sends(west, east, handle, b"1")
    monkeypatch.setattr(what, name, value)
    killed(east.processes[0])
    sends(west, east, handle, b"2")
    assert east.processes == []
    assert len(east.remembered) == 2
    (told,) = [text for text in caplog.messages if "does the work of process" in text]
    assert told.startswith(f"The daemon itself does the work of process 2 of 2: {said}")


@pytest.mark.sampled(1)
@HINDRANCES
def test_where_no_process_can_be_had_the_daemon_goes_on_with_fewer(
    make_instance_url: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    what: object,
    name: str,
    value: object,
    said: str,
) -> None:
    tries: list[object] = []
    opened_for = shares.Shares._open_shares

    def noted(self: shares.Shares, divisions: list[Division]) -> Any:
        tries.append(divisions)
        return opened_for(self, divisions)

    monkeypatch.setattr(growth, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr(shares.Shares, "_open_shares", noted)
    with monkeypatch.context() as hindered:
        hindered.setattr(what, name, value)
        with sites(2, make_instance_url, tmp_path, 2, in_processes=True) as (west, east):
            west.route(STOCK, east)
            east.route(ORDERS, west)
            sends(west, east, handle_of(west, 1), b"1")
            eventually(lambda: len(tries) >= 6)
            told = [text for text in caplog.messages if "The number of parallel rounds stays at 1" in text]
            assert len(told) == 2  # once each
            assert all(said in text for text in told)
            hindered.undo()
            eventually(lambda: len(west.processes) == len(east.processes) == 1)
            sends(west, east, handle_of(west, 1), b"2")


def test_where_no_thread_can_be_had_all_begin_anew_with_one_share(
    make_instance_url: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = threading.Thread.start

    def hindered(thread: threading.Thread) -> None:
        if thread.name == "servicebroker share 1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(growth, "RETRY_INTERVAL_S", 1.0)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", hindered)
        with sites(2, make_instance_url, tmp_path, 2) as (west, east):
            west.route(STOCK, east)
            east.route(ORDERS, west)
            eventually(lambda: any("can't start new thread" in text for text in caplog.messages))
            west.database.send(handle_of(west, 1), ORDER, b"1")
            assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=30)] == [b"1"]
            limited.undo()
            eventually(lambda: len(west.remembered) == len(east.remembered) == 2, 30)


def test_a_round_that_fails_is_no_killed_process(
    served: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error does not matter; here it looks like the end of the daemon."""
    west, east = served
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(processes, "MODULE", "failing_share")
    before = east.processes[0]
    killed(before)
    eventually(lambda: any("EOFError: of a round" in text for text in caplog.messages))
    assert sum("was killed" in text for text in caplog.messages) == 1
    monkeypatch.undo()
    eventually(lambda: bool(east.processes) and east.processes != [before])
    sends(west, east, handle_of(west, 1), b"1")


def test_nothing_of_a_process_is_left_when_its_end_goes_wrong(
    served: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = served[1].processes[0]

    def wrong(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(process, "_say", wrong)
    eventually(lambda: process._process.poll() is not None)
    eventually(lambda: served[1].session_of(process) == [])
    assert process._connection.closed
    assert process._process.stdin is not None
    assert process._process.stdin.closed
