"""The adjacent broker protocol: one connection between two instances, over any byte stream.

The protocol exchanges greetings, agrees on a version, sends keepalives and closes idle connections. If both instances
connect at the same time, one of the two connections is closed (`arbitration.py`). A connection carries the frames of
all conversations between all databases of both instances. All state in this module ends with the connection.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from servicebroker.model.errors import BrokerError
from servicebroker.model.wording import cleaned
from servicebroker.protocol.frames import MAXIMUM_BODY, MAXIMUM_GREETING, Frame, FrameKind, FrameReader, encode_frame
from servicebroker.protocol.mirroring import IN_DOUBT, Known, Role, Standing
from servicebroker.protocol.wire_errors import WireError

OLDEST_VERSION, NEWEST_VERSION = 1, 1
HANDSHAKE_TIME = 15.0  # seconds from the start of a connection until it must be online
KEEP_ALIVE = 15.0  # seconds without an outgoing frame, after which a keepalive is sent
SILENCE_TIMEOUT_S = 50.0  # seconds without received bytes: the connection is closed
IDLE_TIMEOUT_S = 90.0  # seconds without a message of a conversation: the connection is closed
MAX_FRAMES = 2**31  # frames; in effect no limit
MIRRORING = "mirroring"  # the capability to answer a QUESTION frame: which of a mirrored pair is primary

Version = Annotated[int, Meta(ge=0, le=65_535)]
Capabilities = Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=32)]
Counter = Annotated[int, Meta(ge=0, le=2**62)]
Evidence = Annotated[bytes, Meta(max_length=1_024)]
System = Annotated[str, Meta(max_length=64, pattern=r"\A[ -~]*\Z")]


class Phase(StrEnum):
    """The state of a connection, in the words of sys.dm_broker_connections."""

    INITIAL = "INITIAL"
    NEGOTIATING = "WAIT LOGIN NEGOTIATE"
    ARBITRATING = "WAIT ARBITRATION"
    ONLINE = "ONLINE"
    CLOSED = "CLOSED"


class Hello(Struct, array_like=True, frozen=True):
    """The first frame of the side that connected.

    `seat`: the UUID of a daemon's instance, host and server. `incarnation`: a new UUID for each start of the daemon.
    `moment`: a count, no time: the connections that this daemon opened or accepted. `instance` is None if unknown.
    """

    seat: UUID
    incarnation: UUID
    moment: Counter
    oldest: Version
    newest: Version
    capabilities: Capabilities = ()
    instance: UUID | None = None


class Welcome(Struct, array_like=True, frozen=True):
    """The answer that accepts a connection, with the version and the capabilities that both sides support."""

    seat: UUID
    incarnation: UUID
    moment: Counter
    version: Version
    capabilities: Capabilities = ()
    instance: UUID | None = None


class Goodbye(Struct, array_like=True, frozen=True):
    """The body of REJECT and CLOSE: the reason for which a connection is refused or ended."""

    number: Annotated[int, Meta(ge=0, le=2**31)]
    text: Annotated[str, Meta(max_length=500)]


class Highest(Struct, array_like=True, frozen=True):
    """The body of QUESTION: the highest timeline that the asking side has seen of a cluster."""

    system: System
    timeline: Counter
    evidence: Evidence = b""


class Says(Struct, array_like=True, frozen=True):
    """The body of STANDING: the role and the timeline that a side states."""

    role: Role
    system: System
    timeline: Counter
    is_guarded: bool
    evidence: Evidence = b""


class Myself(NamedTuple):
    """Our identity in this start of the daemon. A primary and its standbys share `instance`, and differ in `seat`."""

    seat: UUID
    incarnation: UUID
    capabilities: tuple[str, ...] = (MIRRORING,)
    oldest: int = OLDEST_VERSION
    newest: int = NEWEST_VERSION
    instance: UUID | None = None


class Greeted(NamedTuple):
    """The peer's HELLO. The caller decides with `arbitration`, then calls `welcome` or `reject`."""

    hello: Hello


class Online(NamedTuple):
    """An established connection, with the values of the peer's greeting. `moment`: the peer's count (see Hello)."""

    seat: UUID
    incarnation: UUID
    moment: int


class Arrived(NamedTuple):
    """The body of a DIALOG frame, or of a FORWARDED one."""

    body: bytes
    is_forwarded: bool = False


class Asked(NamedTuple):
    """The peer's question whether this server is the primary. Answer with `tell`, now and after each change."""

    known: Known


class Told(NamedTuple):
    """The role and timeline that the peer has stated."""

    standing: Standing


class Alive(NamedTuple):
    """A keepalive of the peer."""


class Corrupted(NamedTuple):
    """A message that was corrupted in transit and dropped (event Broker:Corrupted Message)."""

    size: int


class Closed(NamedTuple):
    """The event that the connection ends: close the stream once `outgoing` is written. Number 0 is no error."""

    number: int
    text: str
    is_by_peer: bool = False  # True if the peer sent CLOSE or REJECT


Event = Greeted | Online | Arrived | Asked | Told | Alive | Corrupted | Closed

CARRYING = (FrameKind.DIALOG, FrameKind.FORWARDED)
ONLINE = frozenset({*CARRYING, FrameKind.QUESTION, FrameKind.STANDING, FrameKind.KEEP_ALIVE, FrameKind.CLOSE})

# (phase, is_opener) -> the accepted kinds of frames. INITIAL and CLOSED accept none.
TAKES: dict[tuple[Phase, bool], frozenset[FrameKind]] = {
    (Phase.NEGOTIATING, True): frozenset({FrameKind.WELCOME, FrameKind.REJECT, FrameKind.CLOSE}),
    (Phase.NEGOTIATING, False): frozenset({FrameKind.HELLO, FrameKind.CLOSE}),
    (Phase.ARBITRATING, False): frozenset({FrameKind.CLOSE}),
    (Phase.ONLINE, True): ONLINE,
    (Phase.ONLINE, False): ONLINE,
}

_hellos = msgspec.msgpack.Decoder(Hello)
_welcomes = msgspec.msgpack.Decoder(Welcome)
_goodbyes = msgspec.msgpack.Decoder(Goodbye)
_questions = msgspec.msgpack.Decoder(Highest)
_standings = msgspec.msgpack.Decoder(Says)
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


class Connection:
    """One connection; `is_opener` on the side that connected.

    The caller writes the bytes of `outgoing()` to the stream. The calls return the events that occurred.
    """

    __slots__ = (
        "_active_at",
        "_begun_at",
        "_heard_at",
        "_me",
        "_out",
        "_reader",
        "_said_at",
        "capabilities",
        "is_opener",
        "peer",
        "phase",
        "version",
    )

    def __init__(self, me: Myself, *, is_opener: bool, now: float) -> None:
        self.is_opener = is_opener
        self.phase = Phase.INITIAL
        self.peer: Hello | Welcome | None = None
        self.version = 0
        self.capabilities: frozenset[str] = frozenset()
        self._me = me
        self._reader = FrameReader(MAXIMUM_GREETING)
        self._out: list[bytes] = []
        self._begun_at = self._heard_at = self._said_at = self._active_at = now

    # --- sending

    def begin(self, moment: int, now: float) -> None:
        """Start the handshake on an open stream. The opener sends HELLO."""
        self._expect(Phase.INITIAL)
        self.phase = Phase.NEGOTIATING
        if self.is_opener:
            me = self._me
            hello = Hello(me.seat, me.incarnation, moment, me.oldest, me.newest, me.capabilities, me.instance)
            self._say(FrameKind.HELLO, _encoder.encode(hello), now)

    def welcome(self, moment: int, now: float) -> Online:
        """Accept the peer that sent HELLO."""
        self._expect(Phase.ARBITRATING)
        assert isinstance(self.peer, Hello)
        me, peer = self._me, self.peer
        common = tuple(one for one in me.capabilities if one in peer.capabilities)
        answer = Welcome(me.seat, me.incarnation, moment, self.version, common, me.instance)
        self._say(FrameKind.WELCOME, _encoder.encode(answer), now)
        return self._go_online(peer, common, now)

    def reject(self, why: BrokerError, now: float) -> Closed:
        """Refuse the peer that sent HELLO, and close the connection."""
        self._expect(Phase.ARBITRATING)
        return self._part(FrameKind.REJECT, why, now)

    def send(self, body: bytes, now: float, *, is_forwarded: bool = False) -> None:
        """Send the body of a DIALOG frame, or of a FORWARDED one."""
        self._expect(Phase.ONLINE)
        self._active_at = now
        self._say(FrameKind.FORWARDED if is_forwarded else FrameKind.DIALOG, body, now)

    def ask(self, known: Known, now: float) -> list[Event]:
        """Ask the peer whether it is the primary. For a peer without that capability, return IN_DOUBT."""
        self._expect(Phase.ONLINE)
        if MIRRORING not in self.capabilities:
            return [Told(IN_DOUBT)]
        self._say(FrameKind.QUESTION, _encoder.encode(Highest(*known)), now)
        return []

    def tell(self, standing: Standing, now: float) -> None:
        """Send this server's role and timeline to a peer that has asked."""
        self._expect(Phase.ONLINE)
        self._say(FrameKind.STANDING, _encoder.encode(Says(*standing)), now)

    def close(self, number: int, text: str, now: float) -> Closed:
        """End the connection and tell the peer why."""
        self._say(FrameKind.CLOSE, _encoder.encode(Goodbye(number, text[:500])), now)
        return self._closed(number, text)

    def outgoing(self) -> bytes:
        """Return the bytes to write to the stream, and forget them."""
        out, self._out = self._out, []
        return b"".join(out)

    # --- receiving

    def receive(self, data: bytes, now: float, most: int = MAX_FRAMES) -> list[Event]:
        """Handle received bytes, in any portions, up to `most` frames. `resume` handles the rest."""
        if self.phase is Phase.CLOSED:
            return []
        self._heard_at = now
        self._reader.feed(data)
        return self._read(now, most)

    def end_of_stream(self) -> list[Event]:
        """Handle the end or the loss of the stream."""
        if self.phase is Phase.CLOSED:
            return []
        return [self._closed(28028, BrokerError(28028).text) if self.phase is not Phase.ONLINE else self._closed(0, "")]

    def tick(self, now: float) -> list[Event]:
        """Send a due keepalive, or close the connection after a timeout."""
        if self.phase is Phase.CLOSED:
            return []
        if self.phase is not Phase.ONLINE:
            late = now >= self._begun_at + HANDSHAKE_TIME
            return [self._part(FrameKind.CLOSE, BrokerError(28029, "timeout", self.phase), now)] if late else []
        if now >= self._heard_at + SILENCE_TIMEOUT_S:
            return [self.close(9753, BrokerError(9753).text, now)]
        if now >= self._active_at + IDLE_TIMEOUT_S:
            return [self.close(0, "The connection was idle.", now)]
        if now >= self._said_at + KEEP_ALIVE:
            self._say(FrameKind.KEEP_ALIVE, b"", now)
        return []

    @property
    def wake_at(self) -> float:
        """Return the time of the next call of `tick` if no event occurs before."""
        if self.phase is Phase.CLOSED:
            return float("inf")
        if self.phase is not Phase.ONLINE:
            return self._begun_at + HANDSHAKE_TIME
        return min(self._heard_at + SILENCE_TIMEOUT_S, self._active_at + IDLE_TIMEOUT_S, self._said_at + KEEP_ALIVE)

    def resume(self, now: float, most: int = MAX_FRAMES) -> list[Event]:
        """Handle bytes already received: those that followed the greeting, or frames beyond `most`."""
        return self._read(now, most)

    def _read(self, now: float, most: int) -> list[Event]:
        events: list[Event] = []
        try:
            while self.phase not in (Phase.CLOSED, Phase.ARBITRATING) and len(events) < most:
                frame = self._reader.next_frame()
                if frame is None:
                    break
                events += self._take(frame, now)
        except WireError as problem:
            events.append(self._part(FrameKind.CLOSE, problem, now))
        return events

    def _take(self, frame: Frame, now: float) -> list[Event]:
        if frame.kind not in TAKES.get((self.phase, self.is_opener), ()):
            return [self._part(FrameKind.CLOSE, BrokerError(28029, frame.kind.name, self.phase), now)]
        if frame.kind in CARRYING:
            self._active_at = now
            is_forwarded = frame.kind is FrameKind.FORWARDED
            return [Arrived(frame.body, is_forwarded)] if frame.is_intact else [Corrupted(len(frame.body))]
        if not frame.is_intact:
            raise WireError(11235, f"the body of a {frame.kind.name} was changed under way")
        try:
            return self._take_control(frame, now)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise WireError(11235, problem) from None

    def _take_control(self, frame: Frame, now: float) -> list[Event]:
        match frame.kind:
            case FrameKind.HELLO:
                return [self._greeted(_hellos.decode(frame.body), now)]
            case FrameKind.WELCOME:
                return [self._welcomed(_welcomes.decode(frame.body), now)]
            case FrameKind.KEEP_ALIVE:
                return [Alive()]
            case FrameKind.QUESTION:
                question = _questions.decode(frame.body)
                return [Asked(Known(question.system, question.timeline, question.evidence))]
            case FrameKind.STANDING:
                said = _standings.decode(frame.body)
                return [Told(Standing(said.role, said.system, said.timeline, said.is_guarded, said.evidence))]
            case _:
                goodbye = _goodbyes.decode(frame.body)
                return [self._closed(goodbye.number, cleaned(goodbye.text), is_by_peer=True)]

    def _greeted(self, hello: Hello, now: float) -> Event:
        version = min(hello.newest, self._me.newest)
        if version < max(hello.oldest, self._me.oldest):
            return self._part(FrameKind.REJECT, BrokerError(28027, "protocol version"), now)
        self.peer, self.version, self.phase = hello, version, Phase.ARBITRATING
        return Greeted(hello)

    def _welcomed(self, welcome: Welcome, now: float) -> Event:
        if not self._me.oldest <= welcome.version <= self._me.newest:
            return self._part(FrameKind.CLOSE, BrokerError(28027, "protocol version"), now)
        self.version = welcome.version
        common = tuple(one for one in self._me.capabilities if one in welcome.capabilities)
        return self._go_online(welcome, common, now)

    def _go_online(self, peer: Hello | Welcome, capabilities: tuple[str, ...], now: float) -> Online:
        self.peer, self.phase = peer, Phase.ONLINE
        self.capabilities = frozenset(capabilities)
        self._reader.limit = MAXIMUM_BODY
        self._active_at = now
        return Online(peer.seat, peer.incarnation, peer.moment)

    def _expect(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise ValueError(f"the connection is {self.phase}, not {phase}")

    def _part(self, kind: FrameKind, why: BrokerError, now: float) -> Closed:
        self._say(kind, _encoder.encode(Goodbye(why.number, why.text[:500])), now)
        return self._closed(why.number, why.text)

    def _closed(self, number: int, text: str, *, is_by_peer: bool = False) -> Closed:
        self.phase = Phase.CLOSED
        return Closed(number, text, is_by_peer)

    def _say(self, kind: FrameKind, body: bytes, now: float) -> None:
        if self.phase is not Phase.CLOSED:
            self._said_at = now
            self._out.append(encode_frame(kind, body))
