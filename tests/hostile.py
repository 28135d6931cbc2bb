"""A hostile peer: it speaks the wire protocol, and has a certificate that the instances have imported.

`HostileProcess` is a process that attacks until it is stopped.
"""

from __future__ import annotations

import json
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec
from msgspec.structs import replace

from servicebroker.protocol.adjacent import (
    Arrived,
    Closed,
    Connection,
    Event,
    Greeted,
    LocalIdentity,
    Online,
    Phase,
    StandingReceived,
)
from servicebroker.protocol.dialog_keys import UNSECURED
from servicebroker.protocol.envelope import (
    Acknowledgement,
    BrokerFailure,
    Content,
    Header,
    Kind,
    Opening,
    Part,
    Payload,
    encode,
    parse,
)
from servicebroker.protocol.forwarding import Passage, wrap
from servicebroker.protocol.frames import FrameKind, encode_frame
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.mirroring import KnownTimeline, Role, RoleReport
from support import CONTRACT, ORDER, REPLY

LARGE_COUNT = 100  # conversations with a message of 2 GB, of which fragments are sent


class Talk(NamedTuple):
    """A conversation of other instances, as an eavesdropper knows it, in the direction from initiator to target."""

    conversation_id: UUID
    from_service: str
    from_broker: UUID
    to_service: str
    to_broker: UUID | None


def context(identity: Path, *, is_opener: bool) -> ssl.SSLContext:
    """Return a TLS context with a certificate, which accepts every peer."""
    tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if is_opener else ssl.PROTOCOL_TLS_SERVER)
    if is_opener:
        tls_context.check_hostname = False
        tls_context.verify_mode = ssl.CERT_NONE
    tls_context.load_cert_chain(identity)
    return tls_context


class Hostile:
    """A connection of the hostile peer, with any daemon id and instance. `heard` has the received messages."""

    def __init__(self, stream: socket.socket, *, is_opener: bool, daemon_id: UUID, instance: UUID | None) -> None:
        self.stream = stream
        stream.settimeout(0.05)
        me = LocalIdentity(daemon_id, uuid4(), instance=instance)
        self.connection = Connection(me, is_opener=is_opener, now=time.monotonic())
        self.heard: list[bytes] = []
        self.told: list[RoleReport] = []
        self.closed: Closed | None = None
        self.is_online = False
        self.connection.begin(1, time.monotonic())
        self.flush()

    @classmethod
    def connect(cls, port: int, identity: Path, daemon_id: UUID, instance: UUID | None = None) -> Hostile:
        """Connect to a daemon, and begin the handshake. `hear` waits for its end."""
        raw = socket.create_connection(("127.0.0.1", port), 10)
        try:
            return cls(
                context(identity, is_opener=True).wrap_socket(raw),
                is_opener=True,
                daemon_id=daemon_id,
                instance=instance,
            )
        except BaseException:
            raw.close()
            raise

    @property
    def is_over(self) -> bool:
        return self.connection.phase is Phase.CLOSED

    def flush(self) -> None:
        """Send pending bytes. A peer that does not read is ignored after a timeout."""
        with suppress(TimeoutError, OSError):
            self.stream.sendall(self.connection.outgoing())

    def hear(self, seconds: float = 5.0) -> Hostile:
        """Read until the handshake has succeeded, or the connection is closed."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.is_online and not self.is_over:
            self.read()
        return self

    def read(self) -> None:
        """Read the bytes that have arrived."""
        try:
            data = self.stream.recv(1 << 18)
        except TimeoutError:
            return
        except OSError:
            data = b""
        now = time.monotonic()
        for event in self.connection.receive(data, now) if data else self.connection.end_of_stream():
            self.happens(event)

    def happens(self, event: Event) -> None:
        match event:
            case Online():
                self.is_online = True
            case Greeted():
                self.happens(self.connection.welcome(2, time.monotonic()))
                self.flush()
            case Arrived():
                self.heard.append(event.body)
            case StandingReceived():
                self.told.append(event.role_report)
            case Closed():
                self.closed = event

    def say(self, body: bytes, *, is_forwarded: bool = False) -> None:
        if self.connection.phase is Phase.ONLINE:
            body = wrap(Passage(uuid4()), body) if is_forwarded else body
            self.connection.send(body, time.monotonic(), is_forwarded=is_forwarded)

    def raw(self, data: bytes) -> None:
        with suppress(TimeoutError, OSError):
            self.stream.sendall(data)

    def ask(self, known: KnownTimeline) -> None:
        """Ask for the daemon's role, and claim to know a higher timeline."""
        if self.connection.phase is Phase.ONLINE:
            self.connection.ask(known, time.monotonic())
            self.flush()

    def pretend(self) -> None:
        """Pretend to be the primary server."""
        if self.connection.phase is Phase.ONLINE:
            self.connection.send_role(RoleReport(Role.PRINCIPAL, "c", 99), time.monotonic())
            self.flush()

    def close(self) -> None:
        with suppress(OSError):
            self.stream.close()


def lies(talk: Talk, rng: random.Random) -> list[bytes]:
    """Return forged frames of both sides of a conversation: messages, acknowledgements, ends and errors."""
    order, reply = Part(ORDER, Content.DATA, b"forged"), Part(REPLY, Content.DATA, b"forged")
    complete = Acknowledgement(2**40)
    partial = Acknowledgement(rng.randrange(1, 1_000))
    opening = Opening(CONTRACT, 3600, encryption=False)
    failure = BrokerFailure(-8462, "It is over.")
    forged: list[tuple[Header, Payload]] = []
    for is_initiator in (True, False):
        header = _header(talk, is_initiator=is_initiator)
        data = order if is_initiator else reply
        for number in (0, 1, rng.randrange(2, 500)):
            forged.append((_with(header, Kind.RUN, number, partial), (data,)))
            forged.append((_with(header, Kind.RUN, number), (Part(data.message_type, Content.END, None),)))
            forged.append((_with(header, Kind.RUN, number), (Part(data.message_type, Content.ERROR, b"<Error/>"),)))
        forged.append((_with(header, Kind.ACKNOWLEDGEMENT, 0, complete), None))
        forged.append((_with(header, Kind.ACKNOWLEDGEMENT, 0, partial), None))
        forged.append((_with(header, Kind.FAILURE, 0), failure))
    fresh = talk._replace(conversation_id=uuid4())
    forged.append((_with(_header(fresh, is_initiator=True), Kind.RUN, 0, opening=opening), (order,)))
    frames = [
        (header, payload)
        for header, payload in forged
        if not (header.is_from_initiator and header.number == 0 and _ends(payload))
    ]
    rng.shuffle(frames)
    return [encode(header, payload, UNSECURED.first) for header, payload in frames]


def _ends(payload: Payload) -> bool:
    return isinstance(payload, tuple) and payload[0].content is not Content.DATA


def _header(talk: Talk, *, is_initiator: bool) -> Header:
    target, initiator = (talk.to_service, talk.to_broker), (talk.from_service, talk.from_broker)
    (to_service, to_broker), (from_service, from_broker) = (target, initiator) if is_initiator else (initiator, target)
    return Header(
        talk.conversation_id, is_initiator, Kind.RUN, False, to_service, to_broker, from_service, from_broker or uuid4()
    )


def _with(
    header: Header,
    kind: Kind,
    number: int,
    acknowledgement: Acknowledgement | None = None,
    opening: Opening | None = None,
) -> Header:
    return replace(header, kind=kind, number=number, acknowledgement=acknowledgement, opening=opening)


def noise(rng: random.Random) -> bytes:
    """Return random valid and invalid frames."""
    kinds = (
        lambda: encode_frame(FrameKind.KEEP_ALIVE),
        lambda: encode_frame(FrameKind.DIALOG, rng.randbytes(100)),
        lambda: encode_frame(FrameKind.FORWARDED, rng.randbytes(200)),
        lambda: encode_frame(FrameKind.DIALOG, b"changed")[:-1] + b"!",
    )
    return b"".join(kinds[rng.randrange(len(kinds))]() for _ in range(200))


class Forwarder(threading.Thread):
    """A forwarder that forwards all messages, and forges further ones for the same conversations."""

    def __init__(self, port: int, to: list[int], identity: Path, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.carried: list[bytes] = []
        self.told = 0
        self._identity, self._rng = identity, rng
        self._daemon_id = uuid4()
        self._links = [Hostile.connect(peer_port, identity, self._daemon_id).hear() for peer_port in to]
        self._listening = socket.create_server(("127.0.0.1", port))
        self._listening.settimeout(0.05)

    def run(self) -> None:
        while not self.over.is_set():
            self._accept()
            for link in list(self._links):
                link.read()
                while link.heard:
                    self._pass_on(link, link.heard.pop(0))
                if link.is_over:
                    link.close()
                    self._links.remove(link)
        for link in self._links:
            link.close()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(TimeoutError, OSError, ssl.SSLError):
            raw, _ = self._listening.accept()
            stream = context(self._identity, is_opener=False).wrap_socket(raw, server_side=True)
            self._links.append(Hostile(stream, is_opener=False, daemon_id=self._daemon_id, instance=None))

    def _pass_on(self, source: Hostile, body: bytes) -> None:
        """Forward a frame to all other peers, after forged frames and a copy with a changed bit."""
        header = parse(body).header
        if not header.is_secured:  # an answer of a daemon to a forged frame
            return
        self.carried.append(body)
        talk = Talk(header.conversation_id, *_ends_of(header))
        forged = lies(talk, self._rng)[:8]
        changed = bytearray(body)
        changed[-1] ^= 1
        for link in self._links:
            if link is not source and not _has_same_peer(link, source):
                for frame in (*forged, *map(_marked_secured, forged), bytes(changed), body, body):
                    link.say(frame, is_forwarded=True)
                self.told += len(forged)
                link.flush()


def _has_same_peer(link: Hostile, other: Hostile) -> bool:
    first, second = link.connection.peer, other.connection.peer
    return first is None or second is None or first.daemon_id == second.daemon_id


def _ends_of(header: Header) -> tuple[str, UUID, str, UUID | None]:
    if header.is_from_initiator:
        return header.from_service, header.from_broker, header.to_service, header.to_broker
    return header.to_service, header.to_broker or uuid4(), header.from_service, header.from_broker


def _marked_secured(body: bytes) -> bytes:
    """Return the frame with a header that claims that the body is sealed."""
    end = 2 + int.from_bytes(body[:2], "big")
    clear = msgspec.msgpack.encode(replace(parse(body).header, is_secured=True))
    return len(clear).to_bytes(2, "big") + clear + body[end:]


# ---------------------------------------------------------------- the process


class Orders(NamedTuple):
    """The settings of the hostile process.

    Attributes:
        identity: the file with its certificate and key.
        ports: the ports of the attacked daemons. `own_port` is the port on which the process itself listens.
        names: the daemon ids and instances that it claims to be.
        talks: conversations of other instances, which it has overheard.
        own: a conversation that it may begin, because the service grants SEND to everybody.
    """

    seed: int
    identity: str
    ports: list[int]
    own_port: int
    names: list[tuple[str, str | None]]
    talks: list[tuple[str, str, str, str, str | None]]
    own: tuple[str, str, str, str, str | None]


def parse_talk(talk: Any) -> Talk:
    """Return a conversation from the process's settings."""
    conversation, from_service, from_broker, to_service, to_broker = talk
    return Talk(UUID(conversation), from_service, UUID(from_broker), to_service, UUID(to_broker) if to_broker else None)


class HostileProcess:
    """A process that attacks between `go` and `pause`. `end` returns its counts."""

    def __init__(self, orders: Orders) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say(json.dumps(orders))
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def go(self) -> None:
        self._say("go")

    def pause(self) -> None:
        self._say("pause")

    def count_kinds(self) -> int:
        """Return how many kinds of attacks it has made."""
        self._say("count")
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def end(self) -> dict[str, Any]:
        """Stop the attacks. Return the counts of them and of received bodies, and bodies with a secret."""
        self._say("end")
        assert self._process.stdout is not None
        report: dict[str, Any] = json.loads(self._process.stdout.readline())
        return report  # the process may take minutes to exit on a busy machine; `kill` ends it

    def kill(self) -> None:
        """Kill the process at the end of a test."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Attacker:
    """Makes all attacks at random, and keeps the received bodies."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self.rng = random.Random(orders.seed)
        self.identity = Path(orders.identity)
        self.talks = [parse_talk(talk) for talk in orders.talks]
        self.own = parse_talk(orders.own)
        self.links: list[Hostile] = []
        self.heard: list[bytes] = []
        self.deeds: dict[str, int] = {}
        # conversations with a large message, and its next fragment
        self.large = [(UUID(int=self.rng.getrandbits(128)), 0) for _ in range(LARGE_COUNT)]
        self.attacks = (
            self.noise,
            self.lies,
            self.pass_on,
            self.claim,
            self.ask,
            self.open,
            self.fragment,
            self.crowd,
        )
        self.may, self.over = threading.Event(), threading.Event()
        self.welcomed: list[Hostile] = []

    def listen(self) -> None:
        """Accept connections to its own address, as daemons connect there to answer."""
        with socket.create_server(("127.0.0.1", self.orders.own_port)) as listening:
            listening.settimeout(0.2)
            while not self.over.is_set():
                with suppress(TimeoutError, OSError, ssl.SSLError):
                    raw, _ = listening.accept()
                    stream = context(self.identity, is_opener=False).wrap_socket(raw, server_side=True)
                    threading.Thread(target=self._welcome, args=(stream,), daemon=True).start()

    def _welcome(self, stream: socket.socket) -> None:
        link = Hostile(stream, is_opener=False, daemon_id=uuid4(), instance=None)
        self.welcomed.append(link)
        while not link.is_over and not self.over.is_set():
            link.read()
        link.close()

    def run(self) -> None:
        due: list[Callable[[Hostile], None]] = []
        while not self.over.is_set():
            if self.may.wait(0.05):
                self._connect()
                if not self.links:
                    continue

                if not due:
                    due = self.rng.sample(self.attacks, len(self.attacks))  # each of them also in a short run
                attack = due.pop()
                attack(self.rng.choice(self.links))
                self.deeds[attack.__name__] = self.deeds.get(attack.__name__, 0) + 1
        self.heard += [body for link in (*self.links, *self.welcomed) for body in link.heard]

    def _connect(self) -> None:
        for link in [link for link in self.links if link.is_over]:
            self.heard += link.heard
            link.close()
            self.links.remove(link)
        while len(self.links) < 4 and self.may.is_set():
            self.links += self._greet((str(uuid4()), str(uuid4())))

    def _greet(self, name: tuple[str, str | None]) -> list[Hostile]:
        daemon_id, instance = name
        with suppress(OSError, ssl.SSLError):
            link = Hostile.connect(
                self.rng.choice(self.orders.ports),
                self.identity,
                UUID(daemon_id),
                UUID(instance) if instance else None,
            ).hear()
            if link.is_online:
                return [link]
            link.close()
        return []

    def noise(self, link: Hostile) -> None:
        link.raw(noise(self.rng))
        link.read()

    def lies(self, link: Hostile) -> None:
        for body in lies(self.rng.choice(self.talks), self.rng):
            link.say(body)
        link.flush()
        link.read()

    def pass_on(self, link: Hostile) -> None:
        for body in lies(self.rng.choice(self.talks), self.rng):
            link.say(body, is_forwarded=True)
        link.flush()

    def claim(self, link: Hostile) -> None:
        self.links += self._greet(self.rng.choice(self.orders.names))

    def ask(self, link: Hostile) -> None:
        link.ask(KnownTimeline("c", 10**6))
        link.pretend()

    def open(self, link: Hostile) -> None:
        """Send parts of conversations whose first message never comes: later messages with a trace, or fragments."""
        for _ in range(20):
            header = _header(self.own._replace(conversation_id=uuid4()), is_initiator=True)
            opening = Opening(CONTRACT, 10**6, encryption=False)
            if self.rng.random() < 0.5:
                header = _with(header, Kind.RUN, self.rng.randrange(1, 64), opening=opening)
                header, body = replace(header, traces=((0, bytes(25)),)), b"x"
            else:
                header = replace(
                    _with(header, Kind.FRAGMENT, 0, opening=opening), fragment=1, fragments=LIMITS.most_fragments
                )
                body = bytes(LIMITS.fragment_size)
            link.say(encode(header, (Part(ORDER, Content.DATA, body, bytes(8)),), UNSECURED.first))
        link.flush()
        link.read()

    def fragment(self, link: Hostile) -> None:
        """Send the next fragments of messages of 2 GB, in order, on many conversations."""
        for place in self.rng.sample(range(len(self.large)), 20):
            conversation, fragment = self.large[place]
            self.large[place] = conversation, fragment + 1
            header = _header(self.own._replace(conversation_id=conversation), is_initiator=True)
            header = _with(header, Kind.FRAGMENT, 0, opening=Opening(CONTRACT, 10**6, encryption=False))
            header = replace(header, fragment=fragment, fragments=LIMITS.most_fragments)
            link.say(
                encode(header, (Part(ORDER, Content.DATA, bytes(LIMITS.fragment_size), bytes(8)),), UNSECURED.first)
            )
        link.flush()
        link.read()

    def crowd(self, link: Hostile) -> None:
        """Begin 50 conversations that it may begin."""
        for _ in range(50):
            talk = self.own._replace(conversation_id=uuid4())
            header = _with(
                _header(talk, is_initiator=True), Kind.RUN, 0, opening=Opening(CONTRACT, 3600, encryption=False)
            )
            link.say(encode(header, (Part(ORDER, Content.DATA, bytes(200)),), UNSECURED.first))
        link.flush()
        link.read()


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    os.nice(19)  # a real attacker has a processor of its own, so this one leaves the cores to the daemons
    attacker = Attacker(Orders(*json.loads(sys.stdin.readline())))
    threads = [threading.Thread(target=work) for work in (attacker.listen, attacker.run)]
    for thread in threads:
        thread.start()
    write_line("ready")
    for line in sys.stdin:
        match line.strip():
            case "go":
                attacker.may.set()
            case "pause":
                attacker.may.clear()
            case "count":
                write_line(str(len(attacker.deeds)))
            case _:
                break
    attacker.over.set()
    for thread in threads:
        thread.join()
    secrets = [body.hex() for body in attacker.heard if b"secret" in body]  # in ten minutes it hears 100 MB of answers
    write_line(json.dumps({"deeds": attacker.deeds, "heard": len(attacker.heard), "secrets": secrets}))


if __name__ == "__main__":
    main()
