"""A daemon with several shares: no message is lost, duplicated or out of order, also when a share's process fails."""

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
from servicebroker.engine.remote.arriving import StoreResult
from servicebroker.protocol.division import Division, share_of
from servicebroker.protocol.incoming import Batch
from servicebroker.store.connection import connect
from servicebroker.store.statement_counts import counts_of
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
MESSAGE_COUNT, MESSAGE_COST_S = 4_800, 0.0003


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

    def route(self, service: str, target: Site) -> None:
        self.database.create_route(f"To {service}", service_name=service, address=f"TCP://127.0.0.1:{target.port}")

    @property
    def sessions(self) -> int:
        """The number of the daemon's sessions in PostgreSQL: one for each share, and one that listens."""
        text = "select count(*) from pg_stat_activity where application_name = 'servicebroker serve' and datname = %s"
        with psycopg.connect(self.url) as connection:
            (count,) = connection.execute(text, (connection.info.dbname,)).fetchone() or (0,)
        return int(count)

    @property
    def processes(self) -> list[ShareProcess]:
        """The processes of the daemon's shares that have connected to PostgreSQL."""
        return [share for share in self.daemon._shares._opened if isinstance(share, ShareProcess) and share._session]

    @property
    def second_session(self) -> int:
        """The process id of the second share's session in PostgreSQL."""
        share = self.daemon._shares._opened[0]
        if isinstance(share, ShareProcess):
            assert share._session is not None
            return share._session.pid
        return share.connection.info.backend_pid

    def session_of(self, process: ShareProcess) -> list[tuple[Any, ...]]:
        """Return the wait event of a process's session; nothing if the session has ended."""
        assert process._session is not None
        text = "select wait_event_type, wait_event from pg_stat_activity where pid = %s and backend_start = %s"
        with psycopg.connect(self.url) as connection:
            return connection.execute(text, process._session).fetchall()

    @property
    def remembered_counts(self) -> list[int]:
        """The number of conversations in memory, for each share."""
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
    """Create instances with daemons. The first one has only the initiator service, the last one only the target."""
    with ExitStack() as stack:
        created = []
        for number in range(count):
            created.append(Site(make_instance_url(1), folder / str(number), shares, in_processes=in_processes))
            stack.callback(created[-1].close)
        west, east = created[0], created[-1]
        west.database.drop_service(STOCK)
        east.database.drop_service(ORDERS)
        east.database.grant("SEND", "public", service=STOCK)
        yield created


def converse(west: Site, east: Site, *, large: int = 0, encryption: bool = False) -> None:
    """Exchange messages on many conversations. Check that each is answered and counted, once and in order."""
    for site in (west, east):
        eventually(lambda site=site: len(site.remembered_counts) == SHARE_COUNT)
    initial_count = _count_arrivals()
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
    _check_received(east, STOCK_QUEUE, sum(map(len, sent.values())), sent.values(), answers=True)
    lengths = [[b"%d" % len(body) for body in bodies] for bodies in sent.values()]
    _check_received(west, ORDERS_QUEUE, sum(map(len, sent.values())), lengths, answers=False)
    for site in (west, east):
        eventually(lambda site=site: sum(count > 0 for count in site.remembered_counts) > 1)
    eventually(lambda: metrics.REGISTRY.get_sample_value("servicebroker_active_dialogs") == sum(east.remembered_counts))
    eventually(lambda: _count_arrivals() >= initial_count + 2 * sum(map(len, sent.values())))
    for handle in handles:
        west.database.end_conversation(handle)
    eventually(lambda: west.waiting == east.waiting == 0)


def _count_arrivals() -> float:
    """Return how many messages from other instances were stored, in both instances together."""
    return metrics.REGISTRY.get_sample_value("servicebroker_enqueued_transport_messages_total") or 0.0


def _check_received(site: Site, queue: str, count: int, expected: Any, *, answers: bool) -> None:
    received: dict[UUID, list[bytes]] = {}
    while sum(map(len, received.values())) < count:
        for message in site.database.receive(queue, top=100, wait=60):
            if message.message_type_name.endswith("/EndDialog"):  # EndDialogs of earlier conversations
                site.database.end_conversation(message.conversation_handle)
                continue
            body = bytes(message.message_body or b"")
            assert message.message_sequence_number == len(received.setdefault(message.conversation_handle, []))
            received[message.conversation_handle].append(body)
            if answers:
                site.database.send(message.conversation_handle, REPLY, b"%d" % len(body))
    assert sorted(received.values()) == sorted(expected)


@pytest.mark.parametrize(
    "in_processes", [pytest.param(False, marks=pytest.mark.full), True], ids=["threads", "processes"]
)
def test_large_and_small_messages_arrive_once_and_in_order(
    make_instance_url: Callable[..., str], tmp_path: Path, *, in_processes: bool
) -> None:
    with sites(2, make_instance_url, tmp_path, in_processes=in_processes) as (west, east):
        west.route(STOCK, east)
        east.route(ORDERS, west)
        converse(west, east, large=3_000_000)
        eventually(lambda: west.sessions == SHARE_COUNT + 1)
        with psycopg.connect(east.url, autocommit=True) as other_connection:  # one session alone: all shares restart
            other_connection.execute("select pg_terminate_backend(%s)", [east.second_session])
        eventually(lambda: len(east.remembered_counts) == 1)
        converse(west, east)


@pytest.mark.sampled(1)
@in_threads_and_processes
def test_secured_conversations_with_shares(
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
def test_forwarded_messages_with_shares(
    make_instance_url: Callable[..., str], tmp_path: Path, *, in_processes: bool
) -> None:
    with sites(3, make_instance_url, tmp_path, in_processes=in_processes) as (west, middle, east):
        watch = middle.daemon._watch
        assert watch.listener is not None
        watch.listener = watch.listener._replace(forwards=True)
        for site, service, next_site in (
            (west, STOCK, middle),
            (middle, STOCK, east),
            (middle, ORDERS, west),
            (east, ORDERS, middle),
        ):
            if site is middle:
                site.database.drop_service(service)
                site.instance.database("msdb").create_route(
                    f"To {service}", service_name=service, address=f"TCP://127.0.0.1:{next_site.port}"
                )
            else:
                site.route(service, next_site)
        converse(west, east)


def test_every_share_finds_its_own_conversations(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    with sb.open(url, upkeep=None) as instance, connect(url) as connection:
        database = standard_database(instance)
        database.drop_service(STOCK)
        database.create_route("ToStock", service_name=STOCK, address="TCP://nowhere:4022")
        stores = [
            PostgresStore(connection, lambda: datetime.now(UTC), Division(n, SHARE_COUNT)) for n in range(SHARE_COUNT)
        ]
        whole = PostgresStore(connection, lambda: datetime.now(UTC))
        snapshot = whole.look(None).snapshot
        for _ in range(30):
            database.send(database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False), ORDER, b"1")
        conversations = dict(
            query(database, "select conversation_handle, conversation_id from servicebroker.conversation_endpoints")
        )
        parts = [store.look(snapshot).waiting for store in stores]
        assert sorted(row for part in parts for row in part) == sorted(whole.look(snapshot).waiting)
        for number, (part, store) in enumerate(zip(parts, stores, strict=True)):
            handles = sorted(row.conversation_handle for row in part)
            assert {share_of(conversations[handle], SHARE_COUNT) for handle in handles} == {number}
            first = store.page(UUID(int=0), 4)
            assert first + store.page(first[-1], 100) == handles


class SlowStore(PostgresStore):
    """Simulates a server on other cores, which takes some time for each stored message."""

    def store(self, batches: Mapping[UUID, Batch], *arguments: Any) -> StoreResult:
        """Store the batches, and sleep in proportion to their messages."""
        result = super().store(batches, *arguments)
        time.sleep(MESSAGE_COST_S * sum(batch.reached - batch.expected for batch in batches.values()))
        return result


@pytest.mark.full
def test_shares_store_messages_concurrently(
    make_instance_url: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "PostgresStore", SlowStore)
    monkeypatch.setattr(shares, "PostgresStore", SlowStore)
    alone, together = (
        _measure_transmission(count, make_instance_url, tmp_path / str(count)) for count in (1, SHARE_COUNT)
    )
    assert alone > MESSAGE_COST_S * MESSAGE_COUNT
    assert together < alone / 1.5


def _measure_transmission(shares: int, make_instance_url: Callable[..., str], folder: Path) -> float:
    """Return the time until all messages that wait at the sender have arrived."""
    with sites(2, make_instance_url, folder, shares) as (west, east):
        handles = [
            west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
            for _ in range(2 * CONVERSATION_COUNT)
        ]
        for handle in handles:
            west.database.send_batch(handle, ORDER, [b"x"] * (MESSAGE_COUNT // len(handles)))
        eventually(lambda: len(west.remembered_counts) == len(east.remembered_counts) == shares)
        start = time.monotonic()
        west.route(STOCK, east)
        east.route(ORDERS, west)
        eventually(lambda: west.waiting == 0)
        return time.monotonic() - start


# ---------------------------------------------------------------- processes that fail


@pytest.fixture
def served_pair(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    """West and east, each served by two processes."""
    with sites(2, make_instance_url, tmp_path, 2, in_processes=True) as (west, east):
        west.route(STOCK, east)
        east.route(ORDERS, west)
        eventually(lambda: len(west.processes) == len(east.processes) == 1)
        yield west, east


def begin_in_share(site: Site, share: int) -> UUID:
    """Begin conversations until one belongs to this share of two. Return its handle."""
    while True:
        handle = site.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
        text = (
            f"select conversation_id from servicebroker.conversation_endpoints where conversation_handle = '{handle}'"
        )
        if share_of(query(site.database, text)[0][0], 2) == share:
            return handle


def send_and_check(west: Site, east: Site, handle: UUID, body: bytes) -> None:
    """Send a message, and wait until it has arrived and was acknowledged."""
    west.database.send(handle, ORDER, body)
    assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=60)] == [body]
    eventually(lambda: west.waiting == 0)


def kill(process: ShareProcess) -> None:
    """Kill a process, as an administrator or the kernel would."""
    os.kill(process.pid, signal.SIGKILL)


def test_the_session_of_a_killed_process_ends_with_it(served_pair: tuple[Site, Site]) -> None:
    """PostgreSQL itself would not notice while the session waits, here for a lock."""
    west, east = served_pair
    handle = begin_in_share(west, 1)
    send_and_check(west, east, handle, b"1")
    (before,) = east.processes
    with psycopg.connect(east.url) as holder:
        holder.execute("lock table servicebroker.arrivals in exclusive mode")
        west.database.send(handle, ORDER, b"2")
        eventually(lambda: east.session_of(before)[0][0] == "Lock")
        kill(before)
        eventually(lambda: east.session_of(before) == [])
    eventually(lambda: bool(east.processes) and east.processes != [before])
    assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=60)] == [b"2"]
    eventually(lambda: west.waiting == 0)


@pytest.fixture
def served_with_standby(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[tuple[Site, Site, Server]]:
    """`served`, with a server for east that a test can configure to wait for a standby that does not exist."""
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


def begin_waiting_commit(west: Site, east: Site, server: Server) -> ShareProcess:
    """Send a message whose COMMIT waits for the missing standby. Return the process of east that waits."""
    handle = begin_in_share(west, 1)
    send_and_check(west, east, handle, b"1")
    server.set_synchronous("nobody")
    west.database.send(handle, ORDER, b"2")
    (process,) = east.processes
    eventually(lambda: east.session_of(process) == [("IPC", "SyncRep")])
    return process


def test_commits_of_a_killed_process_are_acknowledged_once_the_standby_has_them(
    served_with_standby: tuple[Site, Site, Server],
) -> None:
    west, east, server = served_with_standby
    before = begin_waiting_commit(west, east, server)
    kill(before)
    eventually(lambda: east.session_of(before) == [])
    eventually(lambda: bool(east.processes) and east.processes != [before])
    (after,) = east.processes
    eventually(lambda: east.session_of(after) == [("IPC", "SyncRep")])
    time.sleep(3.0)  # time for a retry of the message
    assert west.waiting == 1
    server.set_synchronous("")
    eventually(lambda: west.waiting == 0)
    assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=60)] == [b"2"]


def test_a_commit_that_waits_for_its_standby_ends_with_the_daemon(
    served_with_standby: tuple[Site, Site, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    west, east, server = served_with_standby
    monkeypatch.setattr(daemon, "STOP_TIMEOUT_S", 0.5)
    process = begin_waiting_commit(west, east, server)
    east.daemon.stop()
    east._thread.join(20)
    assert not east._thread.is_alive()
    assert east.session_of(process) == []
    assert west.waiting == 1
    server.set_synchronous("")


def _refuse_process(*_: object, **__: object) -> Any:
    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")


START_FAILURES = pytest.mark.parametrize(
    ("owner", "name", "value", "reason"),
    [
        (
            subprocess,
            "Popen",
            _refuse_process,
            "The daemon cannot start another process: [Errno 11] Resource temporarily unavailable.",
        ),
        (processes, "PROGRAM", [], "Another version was installed since the daemon began"),
        (processes, "MODULE", "no_such_module", "A process ended with exit code 1 at its start."),
    ],
    ids=["none", "another version", "broken"],
)


@pytest.mark.sampled(1)
@START_FAILURES
def test_the_daemon_takes_over_the_share_of_a_process_it_cannot_replace(
    served_pair: tuple[Site, Site],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: object,
    name: str,
    value: object,
    reason: str,
) -> None:
    west, east = served_pair
    handle = begin_in_share(west, 1)
    send_and_check(west, east, handle, b"1")
    monkeypatch.setattr(owner, name, value)
    kill(east.processes[0])
    send_and_check(west, east, handle, b"2")
    assert east.processes == []
    assert len(east.remembered_counts) == 2
    (warning,) = [text for text in caplog.messages if "does the work of process" in text]
    assert warning.startswith(f"The daemon itself does the work of process 2 of 2: {reason}")


@pytest.mark.sampled(1)
@START_FAILURES
def test_the_daemon_runs_with_fewer_shares_if_no_process_starts(
    make_instance_url: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: object,
    name: str,
    value: object,
    reason: str,
) -> None:
    tries: list[object] = []
    open_shares = shares.Shares._open_shares

    def record(self: shares.Shares, divisions: list[Division]) -> Any:
        tries.append(divisions)
        return open_shares(self, divisions)

    monkeypatch.setattr(growth, "RETRY_INTERVAL_S", 0.0)
    monkeypatch.setattr(shares.Shares, "_open_shares", record)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        with sites(2, make_instance_url, tmp_path, 2, in_processes=True) as (west, east):
            west.route(STOCK, east)
            east.route(ORDERS, west)
            send_and_check(west, east, begin_in_share(west, 1), b"1")
            eventually(lambda: len(tries) >= 6)
            warnings = [text for text in caplog.messages if "The number of parallel rounds stays at 1" in text]
            assert len(warnings) == 2  # one from each daemon
            assert all(reason in text for text in warnings)
            patch.undo()
            eventually(lambda: len(west.processes) == len(east.processes) == 1)
            send_and_check(west, east, begin_in_share(west, 1), b"2")


def test_shares_restart_with_one_if_no_thread_starts(
    make_instance_url: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    start = threading.Thread.start

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == "servicebroker share 1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(growth, "RETRY_INTERVAL_S", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_or_fail)
        with sites(2, make_instance_url, tmp_path, 2) as (west, east):
            west.route(STOCK, east)
            east.route(ORDERS, west)
            eventually(lambda: any("can't start new thread" in text for text in caplog.messages))
            west.database.send(begin_in_share(west, 1), ORDER, b"1")
            assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=30)] == [b"1"]
            patch.undo()
            eventually(lambda: len(west.remembered_counts) == len(east.remembered_counts) == 2, 30)


def test_a_failed_round_is_not_reported_as_a_killed_process(
    served_pair: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The round raises EOFError, which is also the sign of a lost daemon."""
    west, east = served_pair
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(processes, "MODULE", "failing_share")
    before = east.processes[0]
    kill(before)
    eventually(lambda: any("EOFError: of a round" in text for text in caplog.messages))
    assert sum("was killed" in text for text in caplog.messages) == 1
    monkeypatch.undo()
    eventually(lambda: bool(east.processes) and east.processes != [before])
    send_and_check(west, east, begin_in_share(west, 1), b"1")


def test_a_missed_deadline_of_a_process_is_no_lost_connection(
    served_pair: tuple[Site, Site], caplog: pytest.LogCaptureFixture
) -> None:
    west, east = served_pair
    handle = begin_in_share(west, 1)
    (process,) = east.processes
    with psycopg.connect(east.url) as holder:
        holder.execute("lock table servicebroker.arrivals in exclusive mode")
        west.database.send(handle, ORDER, b"1")
        eventually(lambda: east.session_of(process)[0][0] == "Lock")
        holder.execute("select pg_cancel_backend(%s)", (east.second_session,))  # as statement_timeout does
        eventually(lambda: "A round missed its deadline, and is tried again" in caplog.text)
    assert "connection to the database was lost" not in caplog.text
    assert [message.message_body for message in east.database.receive(STOCK_QUEUE, wait=60)] == [b"1"]
    eventually(lambda: len(east.processes) == 1)
    send_and_check(west, east, handle, b"2")
    with psycopg.connect(east.url) as connection:  # the daemon counts the statements of its processes
        eventually(lambda: "share_process.session" in counts_of(connection)._counts)


def test_a_failed_stop_leaves_no_process_or_session(
    served_pair: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = served_pair[1].processes[0]

    def fail(*_: object) -> None:
        raise ValueError

    monkeypatch.setattr(process, "_say", fail)
    eventually(lambda: process._process.poll() is not None)
    eventually(lambda: served_pair[1].session_of(process) == [])
    assert process._connection.closed
    assert process._process.stdin is not None
    assert process._process.stdin.closed
