"""Unauthenticated connections: they share a limited number of places, have deadlines, and keep no peer out."""

from __future__ import annotations

import asyncio
import errno
import gc
import resource
import socket
import ssl
import struct
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4
from weakref import ReferenceType, ref

import pytest

from hostile import Hostile
from servicebroker.broker import journal
from servicebroker.broker.inboxes import Inboxes
from servicebroker.broker.policy import Policy
from servicebroker.broker.transport import accepting, sockets, stream
from servicebroker.broker.transport.accepting import Acceptor, Terms, Visitor
from servicebroker.broker.transport.sockets import Network
from servicebroker.broker.transport.stream import OUTBOX_BYTES, OWNER_OUTBOX_BYTES, Stream
from servicebroker.broker.transport.tls import Tls
from servicebroker.cli.descriptor_limit import MIN_DESCRIPTORS, raise_descriptor_limit
from servicebroker.engine.catalog.network_endpoints import SUPPORTED
from servicebroker.protocol.admission import SlotLimits
from servicebroker.protocol.routing import Address
from servicebroker.store.keys import x509_certificates
from support import eventually

PLACES_PER_NETWORK = 6  # for one client network, of twelve in all
TIMEOUT_S = 5.0  # seconds
HANDSHAKE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the first bytes of a TLS client


class Site:
    """A network that listens without encryption."""

    def __init__(self, stack: ExitStack) -> None:
        self.network = network(stack, 1)
        port = self.network.apply(Policy("127.0.0.1", 0))
        assert port is not None
        self.port = port
        self._stack = stack

    def stranger(self, said: bytes = b"") -> socket.socket:
        made = self._stack.enter_context(closing(socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)))
        made.sendall(said)
        return made

    def peer(self) -> Hostile:
        """Return a peer with a name of its own that sends a greeting."""
        return Hostile(self.stranger(), is_opener=True, daemon_id=uuid4(), instance=None).hear()


def network(stack: ExitStack, number: int) -> Network:
    made = Network(UUID(int=number), UUID(int=number + 10), Inboxes(), lambda: datetime.now(UTC))
    stack.callback(made.close)
    return made


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(accepting, "MAX_UNPROVEN", 2 * PLACES_PER_NETWORK)
    with ExitStack() as stack:
        yield Site(stack)


def is_ended(connected: socket.socket) -> bool:
    connected.setblocking(False)
    try:
        while connected.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_the_oldest_that_has_proved_nothing_gives_way(site: Site) -> None:
    held = [site.stranger() for _ in range(PLACES_PER_NETWORK)]
    eventually(lambda: len(site.network.streams) == PLACES_PER_NETWORK)
    for _ in range(PLACES_PER_NETWORK):
        held.append(site.stranger())
        eventually(partial(is_ended, held.pop(0)))
    assert not any(map(is_ended, held))
    assert site.network.take_refused()[28029].times == PLACES_PER_NETWORK
    for _ in range(5 * PLACES_PER_NETWORK):  # at once
        site.stranger()
    eventually(lambda: all(map(is_ended, held)))
    eventually(lambda: len(site.network.streams) == PLACES_PER_NETWORK)


def test_a_peer_is_let_in_among_strangers_and_stays(site: Site) -> None:
    for _ in range(PLACES_PER_NETWORK):
        site.stranger()
    with ExitStack() as stack:
        honest = network(stack, 2)
        honest.apply(Policy())
        assert honest.reach(Address("127.0.0.1", site.port)) == ""
        eventually(lambda: [stream.phase for stream in honest.streams] == ["ONLINE"])
        for _ in range(3 * PLACES_PER_NETWORK):
            site.stranger(b"S")
        eventually(lambda: len(site.network.streams) == PLACES_PER_NETWORK + 1)
        assert [stream.phase for stream in honest.streams] == ["ONLINE"]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a file with a certificate and its key."""
    facts, key = x509_certificates.make("east", datetime.now(UTC))
    file = tmp_path_factory.mktemp("strangers") / "east.key"
    file.write_bytes(x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
    return file


@pytest.fixture(scope="module")
def tls(identity: Path) -> Tls:
    return Tls(identity, [])


@pytest.mark.parametrize("said", [b"", b"S", HANDSHAKE], ids=["nothing", "a byte", "half a handshake"])
def test_each_step_has_a_deadline_that_bytes_do_not_extend(
    site: Site, said: bytes, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "STEP_TIME", 0.3)
    monkeypatch.setattr(stream, "STEP_TIME", 0.3)
    site.network.apply(Policy())
    site.port = site.network.apply(Policy("127.0.0.1", 0, encryption=SUPPORTED, tls=tls)) or 0
    stranger = site.stranger(said)
    started_at = time.monotonic()
    while not is_ended(stranger) and time.monotonic() < started_at + TIMEOUT_S:
        with suppress(OSError):
            stranger.send(said[:1])
        time.sleep(0.05)
    assert 0.2 < time.monotonic() - started_at < TIMEOUT_S


def test_a_connection_that_is_reset_while_it_is_refused_is_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = site.stranger()
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends a reset
    journaled = journal.connection

    def reset(subclass: str, peer: str, error: str = "") -> None:
        if subclass == "Closing":  # the reason was written to it
            stranger.close()
        journaled(subclass, peer, error)

    monkeypatch.setattr(journal, "connection", reset)
    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
    eventually(lambda: stranger.fileno() < 0)
    eventually(lambda: not site.network.streams)
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_peer_that_does_not_read_the_end_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CLOSING_TIME", 0.2)
    peer = site.peer()
    assert peer.is_online
    (online,) = site.network.streams
    transport = online._transport
    assert transport is not None
    site.network.loop.call_soon_threadsafe(transport.write, bytes(16 * 1024 * 1024))
    site.network.loop.call_soon_threadsafe(online.shut, 0, "")
    eventually(lambda: online._transport is None)


def test_a_host_without_certificates_has_a_share(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_LINKS_PER_HOST", 3)
    peers = [site.peer() for _ in range(5)]
    assert [peer.is_online for peer in peers] == [True] * 3 + [False] * 2


def test_the_links_of_a_host_divide_its_buffers(site: Site) -> None:
    """A peer that reads none of its links fills a part of the memory, however many it has."""
    peers = [site.peer() for _ in range(PLACES_PER_NETWORK)]
    assert {stream.room for stream in site.network.streams} == {OUTBOX_BYTES}
    for _ in range(2):
        peers += [site.peer() for _ in range(PLACES_PER_NETWORK)]
    assert sum(stream.room for stream in site.network.streams) <= OWNER_OUTBOX_BYTES
    for peer in peers[1:]:
        peer.close()
    eventually(lambda: [stream.room for stream in site.network.streams] == [OUTBOX_BYTES])


class OutOfDescriptors(socket.socket):
    """A listening socket of a process that has no free file descriptor at first."""

    shortages = 3

    def accept(self) -> tuple[socket.socket, object]:
        if self.shortages:
            self.shortages -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_without_descriptors_it_waits_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "SHORTAGE_PAUSE_S", 0.1)

    async def accepted() -> float:
        acceptor = Acceptor(Silent, Terms(SlotLimits(4, 4), TIMEOUT_S))
        listening = OutOfDescriptors()
        listening.bind(("127.0.0.1", 0))
        acceptor.listen([listening])
        started_at = time.monotonic()
        with closing(socket.create_connection(("127.0.0.1", acceptor.port), TIMEOUT_S)):
            await asyncio.wait_for(Silent.made.wait(), TIMEOUT_S)
        acceptor.close()
        return time.monotonic() - started_at

    assert 0.25 < asyncio.run(accepted()) < TIMEOUT_S
    records = [record.getMessage() for record in caplog.records]
    assert records == ["A connection was not accepted: there are 0, and Too many open files."] * 3


@pytest.mark.parametrize("kind", ["ends", "is late", "speaks TLS"])
def test_connections_that_are_over_leave_no_garbage(identity: Path, kind: str) -> None:
    """asyncio uses 256 KB per connection. Without garbage, strangers cannot make that memory pile up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity)

    def connect(port: int) -> None:
        for _ in range(10):
            made = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
            if kind == "speaks TLS":
                made = ssl._create_unverified_context().wrap_socket(made)  # any peer, unverified
            else:
                made.sendall(HANDSHAKE)
            with closing(made):
                if kind == "is late":
                    assert made.recv(1) == b""

    async def left() -> int:
        acceptor = Acceptor(Silent, Terms(SlotLimits(20, 20), 0.2), context)
        acceptor.listen([socket.create_server(("127.0.0.1", 0))])
        gc.collect()
        gc.disable()
        try:
            await asyncio.to_thread(connect, acceptor.port)
            for _ in range(100):
                await asyncio.sleep(0.01)
            return sum(isinstance(thing, SSLProtocol) for thing in gc.get_objects())
        finally:
            gc.enable()
            acceptor.close()

    assert asyncio.run(left()) == 0


@pytest.mark.parametrize("said", [b"GET / HTTP/1.0\r\n\r\n", HANDSHAKE], ids=["no handshake", "half a handshake"])
def test_streams_that_are_over_leave_no_garbage(
    site: Site, said: bytes, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "REFUSAL_LINGER_S", 0.05)
    monkeypatch.setattr(stream, "CLOSING_TIME", 0.1)  # its timer references the transport
    made: list[ReferenceType[Stream]] = []
    connection_made = Stream.connection_made

    def note(self: Stream, transport: asyncio.BaseTransport) -> None:
        made.append(ref(self))
        connection_made(self, transport)

    monkeypatch.setattr(Stream, "connection_made", note)
    site.network.apply(Policy())
    site.port = site.network.apply(Policy("127.0.0.1", 0, encryption=SUPPORTED, tls=tls)) or 0
    gc.disable()
    try:
        for _ in range(3):
            site.stranger(said).close()
        eventually(lambda: len(made) == 3 and not any(reference() for reference in made), seconds=5)
    finally:
        gc.enable()


class Silent(asyncio.Protocol):
    """A protocol that sends nothing and reports its connection."""

    made = asyncio.Event()

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set()
        transport.close()

    def connection_lost(self, problem: Exception | None) -> None:
        self._visitor.leave()


def test_the_last_descriptors_are_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accepting, "descriptors", lambda: accepting.RESERVED_DESCRIPTORS)
    first = site.stranger()
    eventually(lambda: is_ended(first))
    assert not site.network.streams


def test_the_limit_of_descriptors_is_raised() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    expected = MIN_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MIN_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1_024), hard))
    try:
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (expected, hard)
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (expected, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
