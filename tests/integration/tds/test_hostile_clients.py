"""Hostile clients of the server for TDS cost bounded memory, time and log, and delay nobody else.

`make soak` runs them for ten minutes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import servicebroker as sb
from attacks import MIN_JUDGED_S, SLICE_S, Costs, Times, log_size
from daemons import ServeProcess, free_port
from servicebroker.tds import connection, prepared_statements, sign_in
from servicebroker.tds.packets import PacketType
from servicebroker.tds.server import TdsServer
from servicebroker.tds.tls import TlsContexts
from servicebroker.tsql.types import INT, NVARCHAR, SqlType
from servicebroker_lab.tds_client import (
    RawClient,
    batch_message,
    call,
    packet,
    packets,
    parameter,
    parse_response,
)
from support import eventually
from tds_attacks import ATTACKS, attacked
from tds_attacks import PASSWORD as MALLORYS
from tds_attacks import USER as MALLORY

PASSWORD = "Secret 1"
BINARY = SqlType("varbinary", -1)
MAX_COPIES = 3  # of a large body, by which the process may grow


@pytest.fixture(scope="module", autouse=True)
def logins(instance: sb.Instance) -> None:
    master = instance.database("master", create=True)
    master.execute_tsql(f"ALTER LOGIN sa WITH PASSWORD = '{PASSWORD}'")
    master.execute_tsql(f"CREATE LOGIN {MALLORY} WITH PASSWORD = '{MALLORYS}'")


# ---------------------------------------------------------------- a server in a process of its own


class Server:
    """A serving process, and its port."""

    def __init__(self, url: str, folder: Path) -> None:
        self.port = free_port()
        self.daemon = ServeProcess(url, folder / "keys", "--tds", f"127.0.0.1:{self.port}", "--tds-only")
        self.daemon.wait_for_log("SQL Server's clients connect at")

    def memory_bytes(self, field: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.daemon.process.pid}/status").read_text()
        (line,) = [one for one in status.splitlines() if field in one]
        return int(line.split()[1]) * 1_024


@pytest.fixture(scope="module")
def served(instance: sb.Instance, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(instance.url, tmp_path_factory.mktemp("tds"))
    yield server
    server.daemon.end()


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [*(pytest.param((name,), marks=pytest.mark.full) for name in ATTACKS), tuple(ATTACKS)], ids="-".join
)
def test_attackers_delay_nobody(
    served: Server, names: tuple[str, ...], request: pytest.FixtureRequest, record_property: Callable[..., None]
) -> None:
    times, statement = Times(), "SELECT 1"

    def measure(seconds: float) -> list[float]:
        taken, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.monotonic()
            assert parse_response(client.batch(statement)).rows == [(1,)]
            taken.append(time.monotonic() - began)
            time.sleep(0.005)
        return taken

    with RawClient(served.port) as client:
        client.sign_in("sa", PASSWORD)
        measure(SLICE_S)
        costs = Costs(served.daemon.process.pid, log_size(served.daemon.lines))
        duration_s = request.config.getoption("--hostile-seconds")
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            times.quiet += measure(SLICE_S)
            with attacked(served.port, *names):
                time.sleep(SLICE_S)  # until the attackers have started
                times.harmed += measure(4 * SLICE_S)
                with RawClient(served.port) as another:
                    assert b"\xad" in another.sign_in("sa", PASSWORD)
            time.sleep(SLICE_S / 2)
        are_judged = duration_s >= MIN_JUDGED_S
        summary = [times.check(are_judged=are_judged), costs.check(len(names))]
        if are_judged:
            summary.append(times.wait_until_restored(measure))
    record_property("hostile clients", str(summary))


@pytest.mark.parametrize("megabytes", [32, pytest.param(512, marks=pytest.mark.full)])
def test_a_large_body_is_given_back(served: Server, megabytes: int, record_property: Callable[..., None]) -> None:
    body = bytes(megabytes * 2**20)
    statement = parameter("", NVARCHAR, "SELECT DATALENGTH(@a)"), parameter("", NVARCHAR, "@a varbinary(max)")
    with RawClient(served.port, timeout_s=300) as client:
        client.sign_in("sa", PASSWORD)
        client.batch("SELECT 1")
        before = served.memory_bytes()
        Path(f"/proc/{served.daemon.process.pid}/clear_refs").write_text("5")  # begins a new VmHWM
        client.write(packets(PacketType.RPC, call(10, *statement, parameter("@a", BINARY, body)), size=4096))
        assert parse_response(client.read()).rows == [(len(body),)]
        grown = served.memory_bytes("VmHWM") - before
        record_property("large body", f"{megabytes} MB: the process grew by {grown / 2**20:.0f} MB")
        assert grown < MAX_COPIES * len(body) + 64 * 2**20
        eventually(lambda: served.memory_bytes() < before + 64 * 2**20)


# ---------------------------------------------------------------- a server in this process


@pytest.fixture
def local(instance: sb.Instance) -> Iterator[tuple[TdsServer, int]]:
    """A server, and its port."""
    server = TdsServer(instance, TlsContexts(None, None, "localhost"))
    yield server, server.start("127.0.0.1", 0)
    server.stop()


def is_closed(client: RawClient) -> bool:
    return client.read() == b""


def test_a_client_that_reads_nothing_loses_its_place(
    local: tuple[TdsServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_WRITE_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_S", 0.1)
    server, port = local
    with RawClient(port) as client:
        client.sign_in("sa", PASSWORD)
        text = "SELECT REPLICATE(CAST('x' AS varchar(max)), 20000000)"
        client.write(packets(PacketType.SQL_BATCH, batch_message(text)))
        eventually(lambda: not server._connections, 20)


def test_requests_without_a_reader_end_the_connection(
    local: tuple[TdsServer, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_MAX_UNREAD_BYTES", 1_000)
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_S", 0.1)
    server, port = local
    with RawClient(port) as client:
        client.sign_in("sa", PASSWORD)
        (accepted,) = server._connections
        accepted.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        with suppress(OSError):
            for _ in range(1_000):
                client.write(packet(PacketType.ATTENTION, b"") * 1_000)
                time.sleep(0.001)
        eventually(lambda: not server._connections)


def test_half_a_request_has_a_deadline(local: tuple[TdsServer, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MESSAGE_TIMEOUT_S", 0.2)
    _, port = local
    with RawClient(port) as slow, RawClient(port) as idle:
        for client in (slow, idle):
            client.sign_in("sa", PASSWORD)
        slow.write(packets(PacketType.SQL_BATCH, batch_message("SELECT 1"))[:-5])
        assert is_closed(slow)
        assert parse_response(idle.batch("SELECT 1")).rows == [(1,)]


def test_the_memory_of_requests_is_shared(local: tuple[TdsServer, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servicebroker.tds.request_memory.MAX_BYTES", 1_000_000)
    server, port = local
    with RawClient(port) as greedy, RawClient(port) as honest:
        for client in (greedy, honest):
            client.sign_in("sa", PASSWORD)
        greedy.socket.settimeout(5)
        with suppress(ConnectionError):
            greedy.write(packets(PacketType.SQL_BATCH, batch_message(" " * 2_000_000)))
            assert is_closed(greedy)
        assert parse_response(honest.batch("SELECT 1" + " " * 100_000)).rows == [(1,)]
        eventually(lambda: server.memory._bytes == 0)


def test_prepared_statements_have_a_limit(local: tuple[TdsServer, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_statements, "_MAX_STATEMENTS", 3)
    _, port = local
    text = parameter("", NVARCHAR, ""), parameter("", NVARCHAR, "SELECT 1"), parameter("", INT, 1)
    with RawClient(port) as client:
        client.sign_in("sa", PASSWORD)
        handles = [parse_response(client.call(11, parameter("", INT, None, 1), *text)) for _ in range(4)]
        assert [handle.errors for handle in handles] == [[], [], [], [701]]
        client.call(15, parameter("", INT, handles[0].outputs[0]))
        assert parse_response(client.call(11, parameter("", INT, None, 1), *text)).errors == []


def test_an_attention_ends_many_calls(local: tuple[TdsServer, int]) -> None:
    _, port = local
    with RawClient(port) as client:
        client.sign_in("sa", PASSWORD)
        body = call("sp_executesql", parameter("", NVARCHAR, "PRINT 1"))
        began = time.monotonic()
        client.write(packets(PacketType.RPC, body + (b"\xff" + body[4:]) * 20_000))
        client.write(packet(PacketType.ATTENTION, b""))
        while not parse_response(client.read()).is_attention:
            pass
        assert time.monotonic() - began < 5
        assert parse_response(client.batch("SELECT 1")).rows == [(1,)]


@pytest.mark.parametrize("name", ["\0", "\ud800", "a\nb"])
def test_names_that_nobody_can_have_are_refused(
    local: tuple[TdsServer, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(sign_in, "_FAILURE_PAUSE_S", 0.0)
    _, port = local
    with RawClient(port) as client:
        assert 18456 in parse_response(client.sign_in(name, PASSWORD)).errors
    with RawClient(port) as client:
        assert 4060 in parse_response(client.sign_in("sa", PASSWORD, name)).errors
    assert not [record for record in caplog.records if record.exc_info]
