"""Connections between daemons: their lifetime, duplicate connections, and peers that misbehave.

The daemons run in threads of this process, on real sockets. A bad peer is a socket that the test writes to.
"""

from __future__ import annotations

import logging
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID, uuid4
from zlib import crc32

import prometheus_client
import psycopg
import pytest

import servicebroker as sb
from daemons import wait_for
from fault_proxy import FaultProxy
from many_sites import Pipe
from servicebroker.broker import inboxes, metrics, shares
from servicebroker.broker.daemon import Daemon, daemon_id
from servicebroker.broker.inboxes import Inbox
from servicebroker.broker.transport import sockets
from servicebroker.broker.transport import stream as streams
from servicebroker.broker.transport.links import Arrival
from servicebroker.engine.diagnosis.facts import gather
from servicebroker.engine.diagnosis.findings import Finding
from servicebroker.engine.diagnosis.judgement import judge
from servicebroker.protocol import adjacent, twins
from servicebroker.protocol.adjacent import Arrived, Closed, Connection, Event, Greeted, LocalIdentity, Online
from servicebroker.protocol.envelope import Content, Header, Kind, Part, encode
from servicebroker.protocol.frames import FrameKind, encode_frame
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.store.running import run
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    STOCK,
    STOCK_QUEUE,
    bodies,
    eventually,
    in_thread,
    query,
    standard_database,
)

E = TypeVar("E", bound=Event)

CONNECTIONS = "select is_accept, state_desc, login_state_desc, peer_arbitration_id from sys.dm_broker_connections"


class Site:
    """An instance, and its daemon in a thread."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.instance = sb.open(url, clock=lambda: datetime.now(UTC), upkeep=None)
        self.database = standard_database(self.instance)
        with self.instance.connection() as connection:
            self.identifier = daemon_id(connection)
        self.daemon = Daemon(url, lambda: datetime.now(UTC))
        self.port = self.daemon.listen("127.0.0.1", 0).port
        self._thread = threading.Thread(target=self.daemon.run)
        self._thread.start()

    @property
    def streams(self) -> int:
        return len(self.daemon._network.streams)

    def is_connected_to(self, instance: UUID) -> bool:
        return any(stream.observed().peer_arbitration_id == instance for stream in list(self.daemon._network.streams))

    def connections(self) -> list[tuple[Any, ...]]:
        return query(self.database, CONNECTIONS)

    def refusal_counts(self) -> dict[int, int]:
        return dict(query(self.database, "select number, refused from servicebroker.refused_connections"))

    @contextmanager
    def without_database(self) -> Iterator[None]:
        """Terminate the daemon's sessions, and refuse new ones until the block ends."""
        name = psycopg.conninfo.conninfo_to_dict(self.url)["dbname"]
        with psycopg.connect(self.url, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"alter database {name} allow_connections false")  # type: ignore[call-overload]
            try:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = %s and application_name = 'servicebroker serve'",
                    (name,),
                )
                yield
            finally:
                connection.execute(f"alter database {name} allow_connections true")  # type: ignore[call-overload]

    def route_to(self, service: str, port: int) -> None:
        self.database.create_route(f"To {service}", service_name=service, address=f"TCP://127.0.0.1:{port}")

    def send(self, *texts: str, handle: Any = None, to: str = STOCK) -> Any:
        handle = handle or self.database.begin_dialog(ORDERS, to, contract=CONTRACT, encryption=False)
        for text in texts:
            self.database.send(handle, ORDER, text)
        return handle

    def close(self) -> None:
        self.daemon.stop()
        self._thread.join(20)
        self.instance.close()


class InstancePair:
    """Two sites that send to each other, each through a proxy."""

    def __init__(self, west: Site, east: Site) -> None:
        self.west, self.east = west, east
        self.proxies = [FaultProxy(site.port, random.Random(1)) for site in (west, east)]
        west.database.drop_service(STOCK)
        west.database.create_service("//test/West", STOCK_QUEUE, [CONTRACT])
        east.database.drop_service(ORDERS)
        east.database.create_service("//test/East", "OrdersQueue")
        west.route_to(STOCK, self.proxies[1].port)
        west.route_to("//test/East", self.proxies[1].port)
        east.route_to(ORDERS, self.proxies[0].port)
        east.route_to("//test/West", self.proxies[0].port)
        west.database.grant("SEND", "public", service="//test/West")
        east.database.grant("SEND", "public", service=STOCK)

    def arrives(self, *texts: str) -> None:
        """Wait until exactly these messages have arrived in the east, and were acknowledged."""
        wait_for(self.east.database, *texts)
        waiting = "select from sys.transmission_queue where to_service_name = %s"
        eventually(lambda: not query(self.west.database, waiting, STOCK))

    def check_exchange(self) -> None:
        """Check that the two sites still exchange messages, whatever another peer does."""
        text = str(uuid4())
        self.west.send(text)
        self.arrives(text)

    def disconnect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Close the connections, by an idle timeout of zero."""
        monkeypatch.setattr(adjacent, "IDLE_TIMEOUT_S", 0.0)
        eventually(lambda: self.west.streams == self.east.streams == 0)
        monkeypatch.undo()

    def close(self) -> None:
        for site in (self.west, self.east):
            site.close()
        for proxy in self.proxies:
            proxy.close()


@pytest.fixture(scope="module")
def sites(make_instance_url: Callable[..., str]) -> Iterator[InstancePair]:
    two = InstancePair(Site(make_instance_url(1)), Site(make_instance_url(1)))
    yield two
    two.close()


@pytest.fixture
def two(sites: InstancePair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> InstancePair:
    """Disconnect both sites, and shorten the pause before a refused peer."""
    sites.disconnect(monkeypatch)
    with sites.east.instance.connection() as connection:
        connection.execute("delete from servicebroker.refused_connections")
    caplog.set_level(logging.INFO, "servicebroker.broker")
    caplog.clear()
    return sites


class Peer:
    """A peer of a daemon, with a connection whose bytes the test chooses."""

    def __init__(
        self, stream: socket.socket, identifier: UUID | None = None, *, is_opener: bool = True, **me: Any
    ) -> None:
        self.stream = stream
        stream.settimeout(30)
        self.identifier = identifier or uuid4()
        self.connection = Connection(
            LocalIdentity(self.identifier, uuid4(), **me), is_opener=is_opener, now=time.monotonic()
        )
        self.events: list[Event] = []

    def close(self) -> None:
        self.stream.close()

    def greet(self, moment: int = 1) -> Peer:
        self.connection.begin(moment, time.monotonic())
        return self.flush()

    def flush(self) -> Peer:
        self.stream.sendall(self.connection.outgoing())
        return self

    def expect(self, kind: type[E]) -> E:
        """Wait for an event of this kind."""
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    self.events.remove(event)
                    return event
            data = self.stream.recv(65_536)
            self.events += self.connection.receive(data, time.monotonic()) if data else self.connection.end_of_stream()


def connect(site: Site, identifier: UUID | None = None, **me: Any) -> Any:
    stream = socket.create_connection(("127.0.0.1", site.port), 30)
    return closing(Peer(stream, identifier, **me))


def count(name: str, **labels: str) -> float:
    value = prometheus_client.CollectorRegistry.get_sample_value
    return value(metrics.REGISTRY, f"servicebroker_{name}_total", labels) or 0.0


# ---------------------------------------------------------------- on demand


@pytest.mark.feature(143)
def test_a_connection_exists_from_the_first_send_until_it_is_idle(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    west, east = two.west, two.east
    assert (west.connections(), east.connections()) == ([], [])
    handle = west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    with west.database.transaction() as transaction:
        transaction.send(handle, ORDER, b"undone")
        transaction.connection.rollback()
    assert "Connecting" not in caplog.text  # BEGIN DIALOG and uncommitted messages open no connection
    west.send("a", "b", handle=handle)
    two.arrives("a", "b")
    # the answer may open a second one, because the peer at that address is not known yet; one of both is kept
    eventually(lambda: [row[1:] for row in west.connections()] == [("LOGGED_IN", "ONLINE", east.identifier)])
    eventually(lambda: [row[1:] for row in east.connections()] == [("LOGGED_IN", "ONLINE", west.identifier)])
    eventually(lambda: west.streams == east.streams == 1)
    connecting = caplog.text.count("subclass=Connecting")
    for number in range(10):
        west.send(str(number), handle=handle)
        two.arrives(str(number))
    assert west.streams == east.streams == 1  # one connection for all messages and conversations
    assert caplog.text.count("subclass=Connecting") == connecting
    two.disconnect(monkeypatch)
    assert "The connection was idle." not in caplog.text.split("error=")[-1]  # an idle connection is not an error
    west.send("c", handle=handle)
    two.arrives("c")
    assert caplog.text.count("subclass=Connecting") > connecting
    eventually(lambda: len(west.connections()) == len(east.connections()) == 1)


def test_bytes_and_fragments_are_counted_and_outlive_their_connection(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_counts() -> list[float]:
        names = ("io_bytes", "ios", "fragments", "fragment_bytes")
        return [count(name, direction=way) for name in names for way in ("send", "receive")]

    before = read_counts()
    two.west.send("x" * 100_000)
    two.arrives("x" * 100_000)
    sent, received, sends, receives, *fragments, sent_bytes, received_bytes = (
        now - was for now, was in zip(read_counts(), before, strict=True)
    )
    assert min(sent, received) > min(sent_bytes, received_bytes) > 100_000
    assert min(sends, receives) >= 4  # two HELLO frames, a message, an acknowledgement
    assert min(fragments) >= 5  # the message has four fragments of 32 KB
    two.disconnect(monkeypatch)
    assert all(now >= was for now, was in zip(read_counts(), before, strict=True))
    assert count("io_bytes", direction="send") >= before[0] + sent


@pytest.mark.feature(143)
def test_a_peer_that_only_sends_keepalives_is_closed_as_idle(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adjacent, "IDLE_TIMEOUT_S", 0.5)
    with connect(two.east) as peer:
        peer.greet().expect(Online)
        peer.stream.sendall(encode_frame(FrameKind.KEEP_ALIVE))
        closed = peer.expect(Closed)
    assert (closed.number, closed.text) == (0, "The connection was idle.")


# ---------------------------------------------------------------- one for each pair


@pytest.mark.feature(144)
def test_one_of_two_simultaneous_connections_is_kept(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for attempt in range(3):
        two.disconnect(monkeypatch)
        for proxy in two.proxies:
            proxy.hold()
        two.west.send(f"east {attempt}")
        two.east.database.send(
            two.east.database.begin_dialog("//test/East", "//test/West", contract=CONTRACT, encryption=False),
            ORDER,
            f"west {attempt}",
        )
        eventually(lambda: two.west.streams == two.east.streams == 2)  # one opened and one accepted stream
        for proxy in two.proxies:
            proxy.release()
        two.arrives(f"east {attempt}")
        assert bodies(two.west.database.receive(STOCK_QUEUE, wait=30)) == [f"west {attempt}".encode()]
        eventually(lambda: two.west.streams == two.east.streams == 1)
        # both sides have closed the same one: one site has opened the rest, the other one has accepted it
        eventually(lambda: sorted(row[0] for site in (two.west, two.east) for row in site.connections()) == [0, 1])
    assert "previously existing connection" in caplog.text or "new connection" in caplog.text  # 28032, 28033


@pytest.mark.feature(144)
def test_a_new_connection_of_a_peer_replaces_the_previous_one(two: InstancePair) -> None:
    identifier = uuid4()
    with connect(two.east, identifier) as first, connect(two.east, identifier) as second:
        first.greet().expect(Online)
        second.greet().expect(Online)
        assert first.expect(Closed).number == 28033
        eventually(lambda: [row[3] for row in two.east.connections()].count(identifier) == 1)
    eventually(lambda: not two.east.is_connected_to(identifier))
    two.check_exchange()


@pytest.mark.feature(144)
def test_a_connection_of_an_instance_to_itself_is_refused(two: InstancePair) -> None:
    with connect(two.east, two.east.identifier) as peer:
        assert peer.greet().expect(Closed).number == 28032
    eventually(lambda: not two.east.is_connected_to(two.east.identifier))


def test_a_daemon_without_its_database_closes_all_connections(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peers' address may lead to another host by now. On an old connection they would send here for ever."""
    two.check_exchange()
    monkeypatch.setattr(sockets, "DOUBT_TIMEOUT_S", 0.5)
    handle = two.west.send()
    with two.east.without_database():
        eventually(lambda: two.west.streams == two.east.streams == 0)
        two.west.send("meanwhile", handle=handle)
        status = "select transmission_status from sys.transmission_queue where to_service_name = %s"
        eventually(lambda: "closed" in str(query(two.west.database, status, STOCK)))
        with socket.create_connection(("127.0.0.1", two.east.port), 10) as stream, suppress(ConnectionResetError):
            assert stream.recv(1) == b""
        assert two.west.streams == 0
    two.arrives("meanwhile")


def test_a_short_loss_of_the_database_keeps_the_connections(two: InstancePair) -> None:
    two.check_exchange()
    before = {stream.observed().connection_id for stream in list(two.east.daemon._network.streams)}
    with two.east.without_database():
        time.sleep(1)
    two.check_exchange()
    assert {stream.observed().connection_id for stream in list(two.east.daemon._network.streams)} == before


# ---------------------------------------------------------------- peers that misbehave


def header(length: int, check: int = 0, kind: FrameKind = FrameKind.DIALOG) -> bytes:
    """Return the header of a frame, with a valid checksum of the header itself."""
    fields = struct.pack(">2sBBII", b"SB", 1, kind, length, check)
    return fields + struct.pack(">I", crc32(fields))


def test_another_version_of_the_protocol_is_refused_with_28027(
    two: InstancePair, caplog: pytest.LogCaptureFixture
) -> None:
    refused = count("login_events", subclass="Negotiate Failure")
    with connect(two.east, oldest=7, newest=9) as peer:
        closed = peer.greet().expect(Closed)
    assert (closed.number, "protocol version" in closed.text) == (28027, True)
    eventually(lambda: two.east.refusal_counts() == {28027: 1})
    assert "Audit Broker Login: subclass='Negotiate Failure'" in caplog.text
    assert count("login_events", subclass="Negotiate Failure") == refused + 1
    two.check_exchange()


@pytest.mark.parametrize("data", [b"\0" * 16, header(4_097, kind=FrameKind.HELLO), header(2**32 - 1), b"S" * 16])
def test_a_peer_that_begins_without_hello_is_refused(
    two: InstancePair, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(two.east) as peer:
        peer.stream.sendall(data)
        assert peer.expect(Closed).number in (11235, 28028, 28029)
    eventually(lambda: sum(two.east.refusal_counts().values()) == 1)
    assert "Audit Broker Login" in caplog.text
    two.check_exchange()


def test_a_silent_peer_is_closed_after_the_handshake_timeout(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adjacent, "HANDSHAKE_TIME", 0.5)
    with connect(two.east) as peer:
        assert peer.expect(Closed).number in (28028, 28029)
    two.check_exchange()


def test_a_hello_in_single_bytes_is_accepted(two: InstancePair) -> None:
    with connect(two.east) as peer:
        peer.connection.begin(1, time.monotonic())
        for byte in peer.connection.outgoing():
            peer.stream.sendall(bytes([byte]))
        assert peer.expect(Online).daemon_id == two.east.identifier


@pytest.mark.parametrize(
    "data",
    [
        header(262_145),  # longer than the limit
        header(2**32 - 1),
        header(100) + bytes(50) + encode_frame(FrameKind.KEEP_ALIVE) * 10,  # a frame that ends before its length
        header(10) + bytes(50),  # a frame that ends after its length
        encode_frame(FrameKind.HELLO, b"again"),
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_invalid_frames_after_the_handshake_close_the_connection(
    two: InstancePair, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    closings, closed = (count("connection_events", subclass=name) for name in ("Closing", "Closed"))
    with connect(two.east) as peer:
        peer.greet().expect(Online)
        peer.stream.sendall(data)
        assert peer.expect(Closed).number in (11235, 28029)
    eventually(lambda: not two.east.is_connected_to(peer.identifier))
    assert count("connection_events", subclass="Closing") > closings
    assert count("connection_events", subclass="Closed") > closed
    assert "Broker:Connection: subclass=Closed" in caplog.text
    two.check_exchange()


@pytest.mark.feature(201)
def test_a_reset_connection_is_an_io_error(two: InstancePair, caplog: pytest.LogCaptureFixture) -> None:
    errors = count("connection_events", subclass="Receive IO Error")
    with connect(two.east) as peer:
        peer.greet().expect(Online)
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() is a reset
    eventually(lambda: count("connection_events", subclass="Receive IO Error") > errors)
    eventually(lambda: "subclass='Receive IO Error'" in caplog.text)
    two.check_exchange()


def test_control_characters_in_a_closing_text_are_replaced(two: InstancePair, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        two.west.route_to("//test/Nul", listening.getsockname()[1])
        handle = two.west.send("x", to="//test/Nul")
        stream, _ = listening.accept()
        with closing(Peer(stream, is_opener=False)) as peer:
            peer.connection.begin(1, time.monotonic())
            peer.expect(Greeted)
            peer.connection.welcome(2, time.monotonic())
            peer.flush().expect(Arrived)
            peer.connection.close(28012, "gone\0\x1b[2J", time.monotonic())
            peer.flush()
    text = "select transmission_status from sys.transmission_queue where to_service_name = %s"
    eventually(lambda: query(two.west.database, text, "//test/Nul")[0][0].startswith("gone\ufffd"))
    two.check_exchange()
    assert not {"\0", "\x1b"} & set(caplog.text)
    assert "database was lost" not in caplog.text
    two.west.database.end_conversation(handle, cleanup=True)
    two.west.database.drop_route("To //test/Nul")


def test_an_exception_of_a_round_is_retried_and_reported_by_doctor(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    relay, failures = two.west.daemon._relay, [KeyError("what nobody foresaw")] * 2
    run_round = relay.round

    def fail_at_first(*arguments: Any) -> int:
        if failures:
            raise failures.pop()
        return run_round(*arguments)

    monkeypatch.setattr(relay, "round", fail_at_first)
    two.check_exchange()
    assert not failures
    assert caplog.text.count("message dispatcher: KeyError") == 1  # with its location, and not repeated each second
    assert "in fail_at_first" in caplog.text

    eventually(lambda: "2 times" in faults(two.west)[0].problem)
    (finding,) = faults(two.west)
    assert "9644 An error occurred in the service broker message dispatcher: KeyError: 'what nobody" in finding.problem
    assert "WITH CLEANUP" in finding.advice


def test_doctor_reports_a_fault_while_every_round_fails(two: InstancePair, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> int:
        raise KeyError("each time")

    with monkeypatch.context() as patch:
        patch.setattr(two.west.daemon._relay, "round", fail)
        eventually(lambda: [fault for fault in faults(two.west) if "each time" in fault.problem])
    two.check_exchange()


def test_unchanged_definitions_are_not_read_again(two: InstancePair, statement_counts: Counter[str]) -> None:
    """A daemon reads the endpoint, the certificates and the logins only after something was committed."""
    poll_statement = "departing.look"

    def count_reads() -> int:
        statement_counts.clear()
        eventually(lambda: statement_counts[poll_statement] >= 6)
        return (
            statement_counts["network_endpoints.find_endpoint"]
            + statement_counts["transport_certificates.all_certificates"]
        )

    eventually(lambda: count_reads() <= 2)  # each daemon commits a sample every ten seconds
    two.west.database.create_message_type("AnyChange")
    eventually(lambda: statement_counts["logins.find_connect"] >= 1, 5)


def findings(site: Site) -> list[Finding]:
    """Return the findings of doctor."""
    with site.instance.connection() as connection:
        return judge(run(connection, gather(datetime.now(UTC))))


def faults(site: Site) -> list[Finding]:
    """Return the findings of doctor about the daemon."""
    return [finding for finding in findings(site) if finding.subject == "servicebroker serve"]


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "sends"])
def test_answers_to_a_peer_that_never_reads_do_not_pile_up(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch, *, asks: bool
) -> None:
    """The peer asks for the daemon's role, or sends messages of unknown conversations."""
    monkeypatch.setattr(inboxes, "NOISE_FRAMES", 10**9)
    monkeypatch.setattr(streams, "FRAMES_PER_NOISE_CHECK", 1)
    limit = 16 * 1024
    monkeypatch.setattr(streams, "OUTBOX_BYTES", limit)
    header = Header(uuid4(), False, Kind.RUN, False, ORDERS, uuid4(), "//test/Nobody", uuid4(), number=1)
    stranger = encode(header, (Part(ORDER, Content.DATA, b"x"),), CHECKSUM)
    with connect(two.east) as peer:
        peer.greet().expect(Online)
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        streams_by_id = {one.observed().peer_arbitration_id: one for one in list(two.east.daemon._network.streams)}
        stream: Any = streams_by_id[peer.identifier]
        stream._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        for _ in range(4_000 if asks else 1_200):
            if asks:
                peer.connection.ask(KnownTimeline("c", 1), time.monotonic())
            else:
                peer.connection.send(stranger, time.monotonic())
        data = peer.connection.outgoing()
        peer.stream.sendall(data)
        eventually(lambda: stream.observed().total_bytes_received > len(data))
        eventually(lambda: len(two.east.daemon._inbox) == 0)
        two.check_exchange()
        outgoing, _, unsent, _ = stream.backlog()
        assert outgoing + unsent < 2 * limit
        assert stream.observed().total_bytes_sent < 10 * limit  # bytes passed to the socket


def test_a_flooding_peer_is_slowed_down(two: InstancePair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer sends without end while the daemon waits for its database. The memory for arrivals is bounded."""
    limit = 4 * 1024 * 1024
    monkeypatch.setattr(inboxes, "INBOX_BYTES", limit)
    inbox = two.east.daemon._inbox
    two.check_exchange()
    corrupted = count("corrupted_messages")
    frame = encode_frame(FrameKind.DIALOG, bytes(200_000))
    sent = 0
    stop = threading.Event()

    def flood(peer: Peer) -> None:
        nonlocal sent
        peer.stream.settimeout(0.1)
        unsent = b""
        while not stop.is_set():
            unsent = unsent or frame
            with suppress(TimeoutError):
                written = peer.stream.send(unsent)
                unsent, sent = unsent[written:], sent + written

    with connect(two.east) as peer, psycopg.connect(two.east.url) as holder:
        peer.greet().expect(Online)
        holder.execute("lock table servicebroker.queues, servicebroker.conversation_endpoints")
        two.west.send("a")  # storing this message waits for the lock
        flooding = in_thread(flood, peer)
        eventually(lambda: any(inbox._is_full(line) for line in list(inbox._peer_queues.values())))
        accepted = -1
        while accepted != sent:  # until the socket accepts no more bytes
            accepted = sent
            time.sleep(1)
        assert inbox.size < limit + 4 * 1024 * 1024
        stop.set()
        flooding.result(60)
        holder.rollback()
        two.arrives("a")
    eventually(lambda: len(inbox) == 0)
    assert accepted < 10 * limit
    assert count("corrupted_messages") > corrupted
    two.check_exchange()


def test_a_locked_queue_delays_no_other(two: InstancePair, caplog: pytest.LogCaptureFixture) -> None:
    """A REINDEX or an administrator locks one queue. First and later messages for it wait; those for others do not."""
    east, locked = two.east.database, "//test/Locked"
    east.create_queue("LockedQueue")
    east.create_service(locked, "LockedQueue", [CONTRACT])
    east.grant("SEND", "public", service=locked)
    two.west.route_to(locked, two.proxies[1].port)
    ((queue_id,),) = query(east, "select queue_id from servicebroker.queues where name = 'LockedQueue'")
    old = two.west.send("1", to=locked)
    assert bodies(east.receive("LockedQueue", wait=60)) == [b"1"]
    with psycopg.connect(two.east.url) as holder:
        holder.execute(f"lock table servicebroker.queue_{queue_id} in share mode".encode())
        time.sleep(1.1)  # a younger lock is waited for
        two.west.send("2", handle=old)
        two.west.send("3", to=locked)
        began = time.monotonic()
        two.check_exchange()
        assert time.monotonic() - began < shares.LOCK_TIMEOUT_MS / 1_000
        eventually(lambda: "another session has locked the table of Test.LockedQueue" in caplog.text)
        assert "missed its deadline" not in caplog.text
        holder.rollback()
    received = [east.receive("LockedQueue", wait=60) for _ in range(2)]
    assert sorted(bodies(received[0]) + bodies(received[1])) == [b"2", b"3"]


def test_a_round_does_not_wait_longer_than_its_deadline(
    two: InstancePair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One event tells of the missed deadline, and the round is tried again until the lock is gone."""
    monkeypatch.setattr(shares, "LOCK_TIMEOUT_MS", 100)
    with two.east.without_database():
        pass  # a new session has the short deadline
    with psycopg.connect(two.east.url) as holder:
        holder.execute("lock table servicebroker.arrivals")
        two.west.send("a")
        eventually(lambda: "A round missed its deadline, and is tried again" in caplog.text)
        holder.rollback()
    two.arrives("a")
    assert caplog.text.count("A round missed its deadline") == 1
    monkeypatch.undo()
    with two.east.without_database():
        pass
    two.check_exchange()


def test_a_peer_that_never_acknowledges_gets_one_window(two: InstancePair) -> None:
    """30 MB wait for a peer that only reads. The daemon's memory stays small, and the other peer is not delayed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        two.west.route_to("//test/Silent", listening.getsockname()[1])
        handle = two.west.database.begin_dialog(ORDERS, "//test/Silent", contract=CONTRACT, encryption=False)
        two.west.database.send_batch(handle, ORDER, [bytes(30_000)] * 1_000)
        stream, _ = listening.accept()
        with closing(Peer(stream, is_opener=False)) as peer:
            peer.connection.begin(0, time.monotonic())
            peer.expect(Greeted)
            peer.connection.welcome(1, time.monotonic())
            peer.flush()
            received_bytes = len(peer.expect(Arrived).body)
            peer.stream.settimeout(1)
            with pytest.raises(TimeoutError):
                while True:
                    received_bytes += len(peer.expect(Arrived).body)
            assert 500_000 < received_bytes < 2_500_000
            assert two.west.daemon._relay._conversations.waiting_bytes < 8 * 1024 * 1024
            two.check_exchange()
    two.west.database.end_conversation(handle, cleanup=True)
    two.west.database.drop_route("To //test/Silent")


@pytest.mark.feature(200)
def test_waiting_frames_are_counted_by_gauges(two: InstancePair) -> None:
    inbox = Inbox()
    inbox.put(Arrival(Pipe(), b"abc"))
    assert (inbox.size, len(inbox)) == (3, 1)
    two.check_exchange()
    network = two.west.daemon._network
    stream = next(stream for stream in list(network.streams) if stream.observed().login_state == 12)  # online
    gate = threading.Event()
    network.loop.call_soon_threadsafe(gate.wait, 60)
    try:
        stream.send(b"nonsense")
        assert (network.backlog().ready_bytes, network.backlog().ready) == (8, 1)
        eventually(lambda: gauge("pending_send_fragments") == 1 and gauge("pending_send_bytes") == 8)
    finally:
        gate.set()
    eventually(lambda: network.backlog() == (0,) * 6)
    eventually(lambda: gauge("pending_send_fragments") == 0)
    two.check_exchange()


def gauge(name: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(f"servicebroker_{name}")


def test_two_daemons_with_one_identity_are_reported(two: InstancePair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copied virtual machine has the same identity. Both are served, and doctor reports both addresses."""
    monkeypatch.setattr(twins, "OVERLAP_S", 1.5)
    instance = uuid4()
    header = Header(uuid4(), False, Kind.RUN, False, ORDERS, uuid4(), "//test/Nobody", uuid4(), number=1)
    message = encode(header, (Part(ORDER, Content.DATA, b"x"),), CHECKSUM)
    with connect(two.east, instance=instance) as first, connect(two.east, instance=instance) as second:
        for peer in (first, second):
            peer.greet().expect(Online)
        ports = [peer.stream.getsockname()[1] for peer in (first, second)]

        def is_reported() -> bool:
            for peer in (first, second):
                peer.connection.send(message, time.monotonic())
                peer.flush()
            problems = [finding.problem for finding in findings(two.east) if "at the same time" in finding.problem]
            return len(problems) == 1 and all(f"TCP://127.0.0.1:{port}" in problems[0] for port in ports)

        eventually(is_reported)
    two.check_exchange()
