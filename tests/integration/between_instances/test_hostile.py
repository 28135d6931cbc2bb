"""A hostile peer with a valid certificate: it impersonates, forges messages and acknowledgements, and floods.

It must not read or acknowledge messages of others, nor delay them, and their ledgers stay exact. `make soak` runs it
for ten minutes under load.
"""

from __future__ import annotations

import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from attacks import SLICE_S, Costs, Times, log_size
from daemons import Site, Two, free_port, two_sites
from hostile import Forwarder, Hostile, HostileProcess, Orders, Talk, context
from servicebroker.broker.daemon import daemon_id, instance_of
from servicebroker.cli.main import app
from servicebroker.protocol.dialog_keys import UNSECURED
from servicebroker.protocol.envelope import Content, Header, Kind, Opening, Part, encode
from servicebroker.protocol.frames import FrameKind, encode_frame
from servicebroker.store.connection import connect
from servicebroker.store.keys import x509_certificates
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    bodies,
    eventually,
    in_thread,
    query,
    waiting_messages,
)

ATTACK_COUNT = 8  # kinds of attacks, each of which is made also on a busy machine
SEALER, SEALED = "//test/Sealer", "//test/Sealed"  # initiator and target
MALLORY, DOWN, OPEN, LOAD = "//test/Mallory", "//test/Down", "//test/Open", "//test/Load"


class World:
    """West and east are honest, and both have imported mallory's certificate. East has a route to it."""

    def __init__(self, two: Two, folder: Path) -> None:
        self.west, self.east = two.west, two.east
        self.two = two
        two.introduce(folder)
        facts, key = x509_certificates.make("mallory", datetime.now(UTC))
        self.identity = folder / "mallory.key"
        self.identity.write_bytes(x509_certificates.key_pem(key) + x509_certificates.as_pem(facts.der))
        file = folder / "mallory.pem"
        file.write_bytes(x509_certificates.as_pem(facts.der))
        self.port = free_port()
        for site in (self.west, self.east):
            site.certificate("import", "mallory", str(file))
            site.endpoint()
        self.middle = free_port()
        ways = [(self.east, MALLORY, self.port), (self.east, DOWN, free_port())]
        ways += [(self.west, SEALED, self.middle), (self.east, SEALER, self.middle)]
        for site, name, port in ways:
            site.database.create_route(name, service_name=name, address=f"TCP://127.0.0.1:{port}")
        self.secure(folder)
        for queue, name in (("Open", OPEN), ("Load", LOAD)):
            self.east.database.create_queue(queue)
            self.east.database.create_service(name, queue, [CONTRACT])
            self.east.database.grant("SEND", "public", service=name)
        self.west.database.create_route(LOAD, service_name=LOAD, address=self.east.address)
        with connect(self.west.url) as west:
            self.claimed = daemon_id(west), instance_of(west)
        for site in (self.west, self.east):
            site.serve()
        self.handle = two.send("0")
        self.arrives("0")

    def secure(self, folder: Path) -> None:
        """Set up full dialog security between two services that reach each other only through the hostile forwarder."""
        for site, own, far in ((self.west, SEALER, SEALED), (self.east, SEALED, SEALER)):
            with sb.open(site.url, keys=site.keys, upkeep=None) as instance:
                database = instance.database("Test")
                database.create_queue("Sealed")
                database.create_service(own, "Sealed", [CONTRACT])
                database.create_master_key("correct horse")
                database.create_certificate("own")
                database.backup_certificate("own", folder / f"{site.name}-dialogs.pem")
                database.create_user("Far")
                database.create_remote_service_binding("far", to_service=far, user="Far")
                database.grant("SEND", "Far", service=own)
        for site, other in ((self.west, self.east), (self.east, self.west)):
            file = folder / f"{other.name}-dialogs.pem"
            site.database.create_certificate("far", file=file, authorization="Far")

    def arrives(self, text: str) -> Any:
        """Receive the next message, and check that it is this one. Return its conversation handle."""
        messages = self.east.database.receive(STOCK_QUEUE, wait=60)
        assert bodies(messages) == [text.encode()]
        return messages[0].conversation_handle

    def talk(self, site: Site, far: str) -> Talk:
        """Return the values of a site's conversation with a service that an eavesdropper knows."""
        text = (
            "select e.conversation_id, d.service_broker_guid, s.name, e.far_broker_instance "
            "from servicebroker.conversation_endpoints e join servicebroker.databases d using (database_id) "
            "join servicebroker.services s using (service_id) where e.far_service = %s"
        )
        ((conversation, broker, service, there),) = query(site.database, text, far)
        return Talk(conversation, service, broker, far, UUID(there) if there else None)

    def hostile(self, name: tuple[UUID, UUID | None], site: Site | None = None) -> Hostile:
        return Hostile.connect((site or self.east).port, self.identity, *name).hear()

    def doctor(self) -> str:
        return CliRunner().invoke(app, ["doctor", "--instance", self.east.url]).output


@pytest.fixture(scope="module")
def world(make_instance_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hostile")
    with two_sites(make_instance_url, folder) as two:
        yield World(two, folder)


def test_an_impersonated_instance_is_refused_and_keeps_its_connection(world: World) -> None:
    daemon_id_of_west, west = world.claimed
    for name in ((daemon_id_of_west, west), (uuid4(), west), (west, None)):
        with ExitStack() as stack:
            peer = world.hostile(name)
            stack.callback(peer.close)
            assert not peer.is_online
            assert peer.closed is not None
            assert peer.closed.number == 28035
            assert "west" not in peer.closed.text  # the reason does not name the claimed instance
    with ExitStack() as stack:  # a daemon id alone is not a claim: with another certificate it is another peer
        peer = world.hostile((daemon_id_of_west, None))
        stack.callback(peer.close)
        assert peer.is_online
        world.two.send("claimed", handle=world.handle)
        world.arrives("claimed")
        eventually(lambda: waiting_messages(world.west.database) == 0)
        assert peer.heard == []
    world.east.daemon.wait_for_log("Audit Broker Login", subclass="Authentication Failure", certificate="mallory")
    eventually(lambda: world.east.refusal_counts().get(28035) == 3)
    eventually(lambda: "claims to be an instance" in world.doctor())
    assert "servicebroker certificate accept mallory" in world.doctor()


def test_a_peer_at_the_address_of_another_instance_gets_no_message(world: World) -> None:
    """The attacker listens at west's address while west is down."""
    west = world.west
    world.two.send("before", handle=world.handle)
    target = world.arrives("before")
    eventually(lambda: waiting_messages(west.database) == 0)
    world.east.database.send(target, REPLY, b"so that east has connected")
    assert bodies(west.database.receive(ORDERS_QUEUE, wait=60)) == [b"so that east has connected"]
    west.daemon.end(signal.SIGTERM)
    peers: list[Hostile] = []
    with socket.create_server(("127.0.0.1", west.port)) as listening:
        listening.settimeout(30)

        def answer() -> None:
            for name in (world.claimed, (uuid4(), None)):
                raw, _ = listening.accept()
                stream = context(world.identity, is_opener=False).wrap_socket(raw, server_side=True)
                peers.append(Hostile(stream, is_opener=False, daemon_id=name[0], instance=name[1]))
                while not peers[-1].is_over:
                    peers[-1].read()
                peers[-1].close()

        answering = in_thread(answer)
        world.east.database.send(target, REPLY, b"a secret")
        answering.result(60)
    assert [peer.heard for peer in peers] == [[], []]
    world.east.daemon.wait_for_log("Audit Broker Login", error="certificate west has answered at")
    west.serve()
    assert bodies(west.database.receive(ORDERS_QUEUE, wait=60)) == [b"a secret"]
    eventually(lambda: "at an address where another peer was" in world.doctor())


def test_corrupt_frames_are_counted_and_logged_rarely(world: World) -> None:
    frame = encode_frame(FrameKind.DIALOG, b"changed")[:-1] + b"!"
    with ExitStack() as stack:
        peer = world.hostile((uuid4(), None))
        stack.callback(peer.close)
        for number in range(300):
            peer.raw(frame + encode_frame(FrameKind.DIALOG, number.to_bytes(40, "big")))
        found = wait_for_match(r"Refused here, (\d+) times since .*: 11235 Received a malformed message", world.doctor)
    assert "peer certificate mallory" in world.doctor()
    assert int(found) >= 100
    assert world.east.daemon.count("Broker:Corrupted Message") < 50
    world.two.send("after corruption", handle=world.handle)
    world.arrives("after corruption")


def wait_for_match(pattern: str, ask: Callable[[], str]) -> str:
    """Wait until the pattern matches at least three digits, and return them."""
    match = [""]

    def has_match() -> bool:
        match[0] = next(iter(re.findall(pattern, ask())), "")
        return len(match[0]) >= 3

    eventually(has_match)
    return match[0]


def measure_round_trips(world: World, seconds: float, sent: list[str]) -> list[float]:
    """Send messages one after the other for some seconds. Return the round-trip time of each."""
    durations: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        text = f"secret {len(sent)}"
        sent.append(text)
        start = time.monotonic()
        world.two.send(text, handle=world.handle)
        target = world.arrives(text)
        world.east.database.send(target, REPLY, text.encode())
        assert bodies(world.west.database.receive(ORDERS_QUEUE, wait=60)) == [text.encode()]
        durations.append(time.monotonic() - start)
        time.sleep(0.005)
    return durations


class Load(threading.Thread):
    """Concurrent honest load: batches on another conversation, which must arrive once and in order."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.sent = self.received = 0
        self._west, self._east = world.west.database, world.east.database
        self._handle = self._west.begin_dialog(ORDERS, LOAD, contract=CONTRACT, encryption=False)

    def run(self) -> None:
        while not self.over.wait(0.1):
            self._west.send_batch(self._handle, ORDER, [str(self.sent + n).encode() for n in range(20)])
            self.sent += 20
            self.take()

    def take(self, wait: float = 0) -> None:
        for message in self._east.receive("Load", wait=wait):
            assert message.message_body == str(self.received).encode()
            self.received += 1


def _as_settings(talk: Talk) -> Any:
    """Return a conversation in the form of the process's settings."""
    return [None if value is None else str(value) for value in talk]


@contextmanager
def answering_at_its_address(world: World) -> Iterator[None]:
    """Let the hostile peer accept connections at the address of its route."""
    over = threading.Event()

    def answer() -> None:
        with socket.create_server(("127.0.0.1", world.port)) as listening:
            listening.settimeout(0.1)
            peers: list[Hostile] = []
            while not over.is_set():
                with suppress(TimeoutError, OSError):
                    raw, _ = listening.accept()
                    stream = context(world.identity, is_opener=False).wrap_socket(raw, server_side=True)
                    peers.append(Hostile(stream, is_opener=False, daemon_id=uuid4(), instance=None))
                for peer in peers:
                    peer.read()
            for peer in peers:
                peer.close()

    answering = in_thread(answer)
    try:
        yield
    finally:
        over.set()
        answering.result(30)


def first_part(to_service: str, from_service: str, number: int = 0) -> bytes:
    """Return a frame of an unknown conversation: a later message, or half of the first one."""
    names = to_service, None, from_service, uuid4()
    kind, half = (Kind.RUN, (0, 1)) if number else (Kind.FRAGMENT, (1, 2))
    header = Header(uuid4(), True, kind, False, *names, number, *half, opening=Opening(CONTRACT, 10**6, False))
    return encode(header, (Part(ORDER, Content.DATA, b"x", bytes(8)),), UNSECURED.first)


def test_a_hostile_peer_stays_within_its_quota(world: World) -> None:
    """The peer opens conversations without a first message, and sends to services whose names are addresses."""
    east, budget = world.east, {"openings": 40, "addresses": 5}
    east.instance.set_peer_budget("mallory", budget)
    east.database.create_route("ByName", address="TRANSPORT")
    east.daemon.wait_for_log("Budgets of peers, where they differ from the default: {'certificate mallory'")
    openings = "select count(*) from sys.conversation_endpoints where far_service = %s and state = 'SI'"
    frames = [first_part(OPEN, MALLORY, number) for number in (0, 7) for _ in range(100)]
    with ExitStack() as stack:
        stack.callback(east.instance.set_peer_budget, "mallory", None)
        elsewhere = stack.enter_context(socket.create_server(("", 0)))
        elsewhere.settimeout(0.2)
        port = elsewhere.getsockname()[1]
        frames += [first_part(OPEN, f"tcp://127.0.1.{host}:{port}/x") for host in range(1, 61)]
        stack.callback(east.database.drop_route, "ByName")
        stack.enter_context(answering_at_its_address(world))
        peer = world.hostile((uuid4(), None))
        stack.callback(peer.close)
        for place in range(0, len(frames), 10):
            for body in frames[place : place + 10]:
                peer.say(body)
            peer.flush()
            world.two.send(f"beside {place}", handle=world.handle)
            world.arrives(f"beside {place}")
        eventually(lambda: "limit of openings for the peer is 40" in world.doctor())
        assert query(east.database, openings, MALLORY) == [(budget["openings"],)]
        eventually(lambda: "10928" in world.doctor())
        assert "servicebroker certificate budget" in world.doctor()
        dialled = set()
        with suppress(TimeoutError):
            while True:
                stream, _ = elsewhere.accept()
                dialled.add(stream.getsockname()[0])
                stream.close()
        assert 1 <= len(dialled) <= 3 * budget["addresses"]  # in ten seconds, with some tolerance


@pytest.mark.slow
def test_a_hostile_peer_reads_acknowledges_and_delays_nothing(
    world: World, seeded_random: random.Random, request: pytest.FixtureRequest, record_property: Callable[..., None]
) -> None:
    database = world.east.database
    waiting = database.begin_dialog(STOCK, DOWN, contract=CONTRACT, encryption=False)
    request.addfinalizer(lambda: database.end_conversation(waiting, cleanup=True))
    for number in range(5):
        database.send(waiting, ORDER, f"secret for nobody {number}")
    eventually(lambda: "unreachable" in world.east.status())
    own = Talk(uuid4(), MALLORY, uuid4(), OPEN, None)
    daemon_id_of_west, west = map(str, world.claimed)
    orders = Orders(
        seeded_random.randrange(2**31),
        str(world.identity),
        [world.east.port, world.east.port, world.west.port],
        world.port,
        [(daemon_id_of_west, west), (str(uuid4()), west), (daemon_id_of_west, None), (west, None)],
        [_as_settings(talk) for talk in (world.talk(world.west, STOCK), world.talk(world.east, DOWN))],
        _as_settings(own),
    )
    hostile = HostileProcess(orders)
    request.addfinalizer(hostile.kill)
    load = Load(world)
    request.addfinalizer(load.over.set)
    load.start()
    sent: list[str] = []
    times = Times()
    measure_round_trips(world, SLICE_S, sent)  # both connections are established
    costs = [Costs(site.daemon.process.pid, log_size(site.daemon.lines)) for site in (world.west, world.east)]
    end = time.monotonic() + request.config.getoption("--hostile-seconds")
    while time.monotonic() < end or hostile.count_kinds() < ATTACK_COUNT:
        times.quiet += measure_round_trips(world, SLICE_S, sent)
        hostile.go()
        times.harmed += measure_round_trips(world, 2 * SLICE_S, sent)
        hostile.pause()
        time.sleep(SLICE_S / 2)
    found = hostile.end()
    restored = times.wait_until_restored(lambda seconds: measure_round_trips(world, seconds, sent))
    load.over.set()
    load.join(30)
    while load.received < load.sent:
        load.take(wait=60)
    assert len(found["deeds"]) == ATTACK_COUNT, found["deeds"]
    assert found["secrets"] == []
    summary = [times.check(), restored, *(cost.check() for cost in costs)]
    record_property("hostile", f"{summary}, {found['deeds']}, {len(sent)} messages there and back")
    eventually(lambda: waiting_messages(world.west.database) == 0)
    assert waiting_messages(database) == 5  # the messages are not acknowledged
    states = "select state from sys.conversation_endpoints where conversation_handle = %s"
    assert query(database, states, waiting) == [("CO",)]
    assert query(world.west.database, states, world.handle) == [("CO",)]
    for site, queue in ((world.east, STOCK_QUEUE), (world.west, ORDERS_QUEUE)):
        assert site.database.receive(queue) == []  # no forged message has arrived
    world.east.daemon.wait_for_log(
        "Audit Broker Conversation", subclass="No Security Header", peer_owner="certificate mallory"
    )
    eventually(lambda: "no route leads to it for" in world.doctor())


def test_a_hostile_forwarder_cannot_read_or_forge_sealed_messages(
    world: World, seeded_random: random.Random, request: pytest.FixtureRequest
) -> None:
    forwarder = Forwarder(world.middle, [world.west.port, world.east.port], world.identity, seeded_random)
    request.addfinalizer(forwarder.over.set)
    forwarder.start()
    west, east = world.west.database, world.east.database
    handle = west.begin_dialog(SEALER, SEALED, contract=CONTRACT)
    for number in range(20):
        west.send(handle, ORDER, f"secret {number}")
        (message,) = east.receive("Sealed", wait=60)
        assert message.message_body == f"secret {number}".encode()
        east.send(message.conversation_handle, REPLY, f"secret {number}")
        assert bodies(west.receive("Sealed", wait=60)) == [f"secret {number}".encode()]
    west.end_conversation(handle)
    (end,) = east.receive("Sealed", wait=60)
    assert end.is_end_dialog
    east.end_conversation(end.conversation_handle)
    eventually(lambda: waiting_messages(west) == waiting_messages(east) == 0, 60)
    forwarder.over.set()
    forwarder.join(30)
    assert forwarder.told > 100
    assert not any(b"secret" in body for body in forwarder.carried)
    assert west.receive("Sealed") == east.receive("Sealed") == []


def test_a_peer_without_its_certificate_is_refused(world: World) -> None:
    """The last test of this module, because it drops the certificate at both sites."""
    peer = world.hostile((uuid4(), None))
    assert peer.is_online
    world.two.send("before", handle=world.handle)
    world.arrives("before")
    for site in (world.west, world.east):
        site.certificate("drop", "mallory")
    eventually(lambda: peer.read() or peer.is_over)  # type: ignore[func-returns-value]
    peer.close()
    again = world.hostile((uuid4(), None))
    assert not again.is_online
    again.close()
    # the log omits lines after many similar ones
    refused = "select 1 from servicebroker.refusals where last_text like '%%none of those that were imported%%'"
    eventually(lambda: query(world.east.database, refused))
    world.two.send("after", handle=world.handle)
    world.arrives("after")
    assert peer.heard == again.heard == []
    eventually(lambda: "mallory" not in world.doctor())
