"""Connections between daemons: when there are any, which of two stays, and what peers that misbehave can do.

The daemons run in threads of this process, on real sockets; a bad peer is a socket in the test's hand.
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
from servicebroker.broker import inboxes, metrics
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

    def refused(self) -> dict[int, int]:
        return dict(query(self.database, "select number, refused from servicebroker.refused_connections"))

    @contextmanager
    def without_database(self) -> Iterator[None]:
        """The daemon's sessions are gone, and nobody gets a new one."""
        name = psycopg.conninfo.conninfo_to_dict(self.url)["dbname"]
        with psycopg.connect(self.url, dbname="postgres", autocommit=True) as elsewhere:
            elsewhere.execute(f"alter database {name} allow_connections false")  # type: ignore[call-overload]
            try:
                elsewhere.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where datname = %s and application_name = 'servicebroker serve'",
                    (name,),
                )
                yield
            finally:
                elsewhere.execute(f"alter database {name} allow_connections true")  # type: ignore[call-overload]

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


class Two:
    """Services of each begin conversations with those of the other, through a proxy before each."""

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
        """Wait until exactly these have arrived in the east, and were acknowledged."""
        wait_for(self.east.database, *texts)
        waiting = "select from sys.transmission_queue where to_service_name = %s"
        eventually(lambda: not query(self.west.database, waiting, STOCK))

    def works(self) -> None:
        """Send a message between the others: acts of one peer do not concern them."""
        said = str(uuid4())
        self.west.send(said)
        self.arrives(said)

    def disconnect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let time pass without a message."""
        monkeypatch.setattr(adjacent, "IDLE_TIMEOUT_S", 0.0)
        eventually(lambda: self.west.streams == self.east.streams == 0)
        monkeypatch.undo()

    def close(self) -> None:
        for site in (self.west, self.east):
            site.close()
        for proxy in self.proxies:
            proxy.close()


@pytest.fixture(scope="module")
def sites(make_instance_url: Callable[..., str]) -> Iterator[Two]:
    two = Two(Site(make_instance_url(1)), Site(make_instance_url(1)))
    yield two
    two.close()


@pytest.fixture
def two(sites: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Two:
    """Disconnect both sites, and shorten the pause before a refused peer."""
    sites.disconnect(monkeypatch)
    with sites.east.instance.connection() as connection:
        connection.execute("delete from servicebroker.refused_connections")
    caplog.set_level(logging.INFO, "servicebroker.broker")
    caplog.clear()
    return sites


class Peer:
    """The other end of a connection, which says what the test wants."""

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

    def hears(self, kind: type[E]) -> E:
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
def test_there_is_a_connection_from_the_first_send_until_nobody_uses_it(
    two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    west, east = two.west, two.east
    assert (west.connections(), east.connections()) == ([], [])
    handle = west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    with west.database.transaction() as transaction:
        transaction.send(handle, ORDER, b"undone")
        transaction.connection.rollback()
    assert "Connecting" not in caplog.text  # BEGIN DIALOG and what is not committed reach nobody
    west.send("a", "b", handle=handle)
    two.arrives("a", "b")
    # the answer opens another one, since nobody knows yet who is at that address; one of both stays
    eventually(lambda: [row[1:] for row in west.connections()] == [("LOGGED_IN", "ONLINE", east.identifier)])
    eventually(lambda: [row[1:] for row in east.connections()] == [("LOGGED_IN", "ONLINE", west.identifier)])
    eventually(lambda: west.streams == east.streams == 1)
    connecting = caplog.text.count("subclass=Connecting")
    for number in range(10):
        west.send(str(number), handle=handle)
        two.arrives(str(number))
    assert west.streams == east.streams == 1  # one for all messages and conversations
    assert caplog.text.count("subclass=Connecting") == connecting
    two.disconnect(monkeypatch)
    assert "The connection was idle." not in caplog.text.split("error=")[-1]  # an idle connection is no error
    west.send("c", handle=handle)
    two.arrives("c")
    assert caplog.text.count("subclass=Connecting") > connecting
    eventually(lambda: len(west.connections()) == len(east.connections()) == 1)


def test_bytes_and_fragments_are_counted_and_outlive_their_connection(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted() -> list[float]:
        names = ("io_bytes", "ios", "fragments", "fragment_bytes")
        return [count(name, direction=way) for name in names for way in ("send", "receive")]

    before = counted()
    two.west.send("x" * 100_000)
    two.arrives("x" * 100_000)
    sent, received, sends, receives, *fragments, sent_bytes, received_bytes = (
        now - was for now, was in zip(counted(), before, strict=True)
    )
    assert min(sent, received) > min(sent_bytes, received_bytes) > 100_000
    assert min(sends, receives) >= 4  # two greetings, a message, an acknowledgement
    assert min(fragments) >= 5  # the message is four of 32 KB
    two.disconnect(monkeypatch)
    assert all(now >= was for now, was in zip(counted(), before, strict=True))
    assert count("io_bytes", direction="send") >= before[0] + sent


@pytest.mark.feature(143)
def test_who_says_nothing_but_keeps_alive_is_closed_too(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adjacent, "IDLE_TIMEOUT_S", 0.5)
    with connect(two.east) as peer:
        peer.greet().hears(Online)
        peer.stream.sendall(encode_frame(FrameKind.KEEP_ALIVE))
        closed = peer.hears(Closed)
    assert (closed.number, closed.text) == (0, "The connection was idle.")


# ---------------------------------------------------------------- one for each pair


@pytest.mark.feature(144)
def test_of_two_that_are_opened_at_once_one_stays(
    two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
        # both have let the same one go: who has opened what is left, as both see it
        eventually(lambda: sorted(row[0] for site in (two.west, two.east) for row in site.connections()) == [0, 1])
    assert "previously existing connection" in caplog.text or "new connection" in caplog.text  # 28032, 28033


@pytest.mark.feature(144)
def test_a_new_connection_of_a_peer_takes_the_place_of_the_one_before(two: Two) -> None:
    identifier = uuid4()
    with connect(two.east, identifier) as first, connect(two.east, identifier) as second:
        first.greet().hears(Online)
        second.greet().hears(Online)
        assert first.hears(Closed).number == 28033
        eventually(lambda: [row[3] for row in two.east.connections()].count(identifier) == 1)
    eventually(lambda: not two.east.is_connected_to(identifier))
    two.works()


@pytest.mark.feature(144)
def test_an_instance_does_not_talk_to_itself(two: Two) -> None:
    with connect(two.east, two.east.identifier) as peer:
        assert peer.greet().hears(Closed).number == 28032
    eventually(lambda: not two.east.is_connected_to(two.east.identifier))


def test_a_daemon_without_its_database_keeps_nobody(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name that its peers connect to may lead elsewhere by now: who kept a connection would send to it for ever."""
    two.works()
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


def test_a_daemon_that_misses_its_database_for_a_moment_keeps_its_peers(two: Two) -> None:
    two.works()
    before = {stream.observed().connection_id for stream in list(two.east.daemon._network.streams)}
    with two.east.without_database():
        time.sleep(1)
    two.works()
    assert {stream.observed().connection_id for stream in list(two.east.daemon._network.streams)} == before


# ---------------------------------------------------------------- peers that misbehave


def header(length: int, check: int = 0, kind: FrameKind = FrameKind.DIALOG) -> bytes:
    """That of a frame whose body may be anything."""
    fields = struct.pack(">2sBBII", b"SB", 1, kind, length, check)
    return fields + struct.pack(">I", crc32(fields))


def test_another_version_of_the_protocol(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    refused = count("login_events", subclass="Negotiate Failure")
    with connect(two.east, oldest=7, newest=9) as peer:
        closed = peer.greet().hears(Closed)
    assert (closed.number, "protocol version" in closed.text) == (28027, True)
    eventually(lambda: two.east.refused() == {28027: 1})
    assert "Audit Broker Login: subclass='Negotiate Failure'" in caplog.text
    assert count("login_events", subclass="Negotiate Failure") == refused + 1
    two.works()


@pytest.mark.parametrize("said", [b"\0" * 16, header(4_097, kind=FrameKind.HELLO), header(2**32 - 1), b"S" * 16])
def test_who_does_not_greet_like_a_broker(two: Two, said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with connect(two.east) as peer:
        peer.stream.sendall(said)
        assert peer.hears(Closed).number in (11235, 28028, 28029)
    eventually(lambda: sum(two.east.refused().values()) == 1)
    assert "Audit Broker Login" in caplog.text
    two.works()


def test_who_says_nothing_at_all(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adjacent, "HANDSHAKE_TIME", 0.5)
    with connect(two.east) as peer:
        assert peer.hears(Closed).number in (28028, 28029)
    two.works()


def test_a_greeting_in_single_bytes_is_one(two: Two) -> None:
    with connect(two.east) as peer:
        peer.connection.begin(1, time.monotonic())
        for byte in peer.connection.outgoing():
            peer.stream.sendall(bytes([byte]))
        assert peer.hears(Online).daemon_id == two.east.identifier


@pytest.mark.parametrize(
    "said",
    [
        header(262_145),  # longer than allowed
        header(2**32 - 1),
        header(100) + bytes(50) + encode_frame(FrameKind.KEEP_ALIVE) * 10,  # a frame that ends before its length
        header(10) + bytes(50),  # and after it
        encode_frame(FrameKind.HELLO, b"again"),
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_who_was_let_in_and_lies(two: Two, said: bytes, caplog: pytest.LogCaptureFixture) -> None:
    closings, closed = (count("connection_events", subclass=what) for what in ("Closing", "Closed"))
    with connect(two.east) as peer:
        peer.greet().hears(Online)
        peer.stream.sendall(said)
        assert peer.hears(Closed).number in (11235, 28029)
    eventually(lambda: not two.east.is_connected_to(peer.identifier))
    assert count("connection_events", subclass="Closing") > closings
    assert count("connection_events", subclass="Closed") > closed
    assert "Broker:Connection: subclass=Closed" in caplog.text
    two.works()


@pytest.mark.feature(201)
def test_a_connection_that_is_reset_is_an_io_error(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    errors = count("connection_events", subclass="Receive IO Error")
    with connect(two.east) as peer:
        peer.greet().hears(Online)
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() is a reset
    eventually(lambda: count("connection_events", subclass="Receive IO Error") > errors)
    eventually(lambda: "subclass='Receive IO Error'" in caplog.text)
    two.works()


def test_the_last_words_of_a_peer_stop_nothing(two: Two, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        two.west.route_to("//test/Nul", listening.getsockname()[1])
        handle = two.west.send("x", to="//test/Nul")
        stream, _ = listening.accept()
        with closing(Peer(stream, is_opener=False)) as peer:
            peer.connection.begin(1, time.monotonic())
            peer.hears(Greeted)
            peer.connection.welcome(2, time.monotonic())
            peer.flush().hears(Arrived)
            peer.connection.close(28012, "gone\0\x1b[2J", time.monotonic())
            peer.flush()
    text = "select transmission_status from sys.transmission_queue where to_service_name = %s"
    eventually(lambda: query(two.west.database, text, "//test/Nul")[0][0].startswith("gone\ufffd"))
    two.works()
    assert not {"\0", "\x1b"} & set(caplog.text)
    assert "database was lost" not in caplog.text
    two.west.database.end_conversation(handle, cleanup=True)
    two.west.database.drop_route("To //test/Nul")


def test_a_fault_of_the_daemon_itself_ends_nothing_and_doctor_tells_of_it(
    two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    relay, left = two.west.daemon._relay, [KeyError("what nobody foresaw")] * 2
    whole = relay.round

    def fails_at_first(*given: Any) -> int:
        if left:
            raise left.pop()
        return whole(*given)

    monkeypatch.setattr(relay, "round", fails_at_first)
    two.works()
    assert not left
    assert caplog.text.count("message dispatcher: KeyError") == 1  # with where it was, and not once more each second
    assert "in fails_at_first" in caplog.text

    eventually(lambda: "2 times" in faults(two.west)[0].problem)
    (found,) = faults(two.west)
    assert "9644 An error occurred in the service broker message dispatcher: KeyError: 'what nobody" in found.problem
    assert "WITH CLEANUP" in found.advice


def test_doctor_hears_of_a_fault_also_while_no_round_succeeds(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> int:
        raise KeyError("each time")

    with monkeypatch.context() as patch:
        patch.setattr(two.west.daemon._relay, "round", fails)
        eventually(lambda: [one for one in faults(two.west) if "each time" in one.problem])
    two.works()


def test_what_nobody_has_changed_is_not_read_again(two: Two, asked: Counter[str]) -> None:
    """The endpoint, certificates and logins: while nothing is committed, a daemon reads none of them."""
    looks = "departing.look"

    def read() -> int:
        asked.clear()
        eventually(lambda: asked[looks] >= 6)
        return asked["network_endpoints.find_endpoint"] + asked["transport_certificates.all_certificates"]

    eventually(lambda: read() <= 2)  # a sample is committed every ten seconds, by each daemon
    two.west.database.create_message_type("AnyChange")
    eventually(lambda: asked["logins.find_connect"] >= 1, 5)


def findings(site: Site) -> list[Finding]:
    """Return the findings of doctor."""
    with site.instance.connection() as connection:
        return judge(run(connection, gather(datetime.now(UTC))))


def faults(site: Site) -> list[Finding]:
    """Return the findings of doctor about the daemon."""
    return [one for one in findings(site) if one.subject == "servicebroker serve"]


@pytest.mark.parametrize("asks", [True, False], ids=["asks", "sends"])
def test_who_never_reads_is_told_no_more(two: Two, monkeypatch: pytest.MonkeyPatch, *, asks: bool) -> None:
    """Answers to questions, and to messages of conversations that nobody knows: they do not pile up."""
    monkeypatch.setattr(inboxes, "NOISE_FRAMES", 10**9)
    monkeypatch.setattr(streams, "FRAMES_PER_NOISE_CHECK", 1)
    limit = 16 * 1024
    monkeypatch.setattr(streams, "OUTBOX_BYTES", limit)
    header = Header(uuid4(), False, Kind.RUN, False, ORDERS, uuid4(), "//test/Nobody", uuid4(), number=1)
    stranger = encode(header, (Part(ORDER, Content.DATA, b"x"),), CHECKSUM)
    with connect(two.east) as peer:
        peer.greet().hears(Online)
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        streams_by_id = {one.observed().peer_arbitration_id: one for one in list(two.east.daemon._network.streams)}
        stream: Any = streams_by_id[peer.identifier]
        stream._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        for _ in range(4_000 if asks else 1_200):
            if asks:
                peer.connection.ask(KnownTimeline("c", 1), time.monotonic())
            else:
                peer.connection.send(stranger, time.monotonic())
        said = peer.connection.outgoing()
        peer.stream.sendall(said)
        eventually(lambda: stream.observed().total_bytes_received > len(said))
        eventually(lambda: len(two.east.daemon._inbox) == 0)
        two.works()
        outgoing, _, unsent, _ = stream.backlog()
        assert outgoing + unsent < 2 * limit
        assert stream.observed().total_bytes_sent < 10 * limit  # bytes that its socket has taken


def test_who_floods_waits_at_its_own_side(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the daemon waits for its database, a peer sends without end: what waits in memory is bounded."""
    limit = 4 * 1024 * 1024
    monkeypatch.setattr(inboxes, "INBOX_BYTES", limit)
    inbox = two.east.daemon._inbox
    two.works()
    corrupted = count("corrupted_messages")
    frame = encode_frame(FrameKind.DIALOG, bytes(200_000))
    sent = 0
    over = threading.Event()

    def flood(peer: Peer) -> None:
        nonlocal sent
        peer.stream.settimeout(0.1)
        left = b""
        while not over.is_set():
            left = left or frame
            with suppress(TimeoutError):
                written = peer.stream.send(left)
                left, sent = left[written:], sent + written

    with connect(two.east) as peer, psycopg.connect(two.east.url) as holder:
        peer.greet().hears(Online)
        holder.execute("lock table servicebroker.queues, servicebroker.conversation_endpoints")
        two.west.send("a")  # the daemon waits for the lock with it
        flooding = in_thread(flood, peer)
        eventually(lambda: any(inbox._is_full(line) for line in list(inbox._peer_queues.values())))
        taken = -1
        while taken != sent:  # until the socket takes no more
            taken = sent
            time.sleep(1)
        assert inbox.size < limit + 4 * 1024 * 1024
        over.set()
        flooding.result(60)
        holder.rollback()
        two.arrives("a")
    eventually(lambda: len(inbox) == 0)
    assert taken < 10 * limit
    assert count("corrupted_messages") > corrupted
    two.works()


def test_who_never_acknowledges_gets_a_window_and_no_more(two: Two) -> None:
    """30 MB wait for a peer that only reads; the daemon's memory and the other peer do not feel it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        two.west.route_to("//test/Silent", listening.getsockname()[1])
        handle = two.west.database.begin_dialog(ORDERS, "//test/Silent", contract=CONTRACT, encryption=False)
        two.west.database.send_batch(handle, ORDER, [bytes(30_000)] * 1_000)
        stream, _ = listening.accept()
        with closing(Peer(stream, is_opener=False)) as peer:
            peer.connection.begin(0, time.monotonic())
            peer.hears(Greeted)
            peer.connection.welcome(1, time.monotonic())
            peer.flush()
            got = len(peer.hears(Arrived).body)
            peer.stream.settimeout(1)
            with pytest.raises(TimeoutError):
                while True:
                    got += len(peer.hears(Arrived).body)
            assert 500_000 < got < 2_500_000
            assert two.west.daemon._relay._conversations.waiting_bytes < 8 * 1024 * 1024
            two.works()
    two.west.database.end_conversation(handle, cleanup=True)
    two.west.database.drop_route("To //test/Silent")


@pytest.mark.feature(200)
def test_what_waits_between_sockets_and_rounds(two: Two) -> None:
    inbox = Inbox()
    inbox.put(Arrival(Pipe(), b"abc"))
    assert (inbox.size, len(inbox)) == (3, 1)
    two.works()
    connected = two.west.daemon._network
    stream = next(one for one in list(connected.streams) if one.observed().login_state == 12)  # online
    gate = threading.Event()
    connected.loop.call_soon_threadsafe(gate.wait, 60)
    try:
        stream.send(b"nonsense")
        assert (connected.backlog().ready_bytes, connected.backlog().ready) == (8, 1)
        eventually(lambda: gauge("pending_send_fragments") == 1 and gauge("pending_send_bytes") == 8)
    finally:
        gate.set()
    eventually(lambda: connected.backlog() == (0,) * 6)
    eventually(lambda: gauge("pending_send_fragments") == 0)
    two.works()


def gauge(name: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(f"servicebroker_{name}")


def test_two_daemons_with_one_identity_are_told(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a virtual machine that was copied: what both bring is taken, and doctor says where they are."""
    monkeypatch.setattr(twins, "OVERLAP_S", 1.5)
    instance = uuid4()
    header = Header(uuid4(), False, Kind.RUN, False, ORDERS, uuid4(), "//test/Nobody", uuid4(), number=1)
    message = encode(header, (Part(ORDER, Content.DATA, b"x"),), CHECKSUM)
    with connect(two.east, instance=instance) as one, connect(two.east, instance=instance) as other:
        for peer in (one, other):
            peer.greet().hears(Online)
        ports = [peer.stream.getsockname()[1] for peer in (one, other)]

        def is_told() -> bool:
            for peer in (one, other):
                peer.connection.send(message, time.monotonic())
                peer.flush()
            found = [finding.problem for finding in findings(two.east) if "at the same time" in finding.problem]
            return len(found) == 1 and all(f"TCP://127.0.0.1:{port}" in found[0] for port in ports)

        eventually(is_told)
    two.works()
