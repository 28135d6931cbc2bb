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
from servicebroker.protocol.mirroring import IN_DOUBT, KnownTimeline, Role, RoleReport
from servicebroker.protocol.wire_errors import WireError

OLDEST_VERSION, NEWEST_VERSION = 1, 1
HANDSHAKE_TIME = 15.0  # seconds from the start of a connection until it must be ONLINE
KEEP_ALIVE = 15.0  # seconds without an outgoing frame, after which a keepalive is sent
SILENCE_TIMEOUT_S = 50.0  # seconds without received bytes: the connection is closed
IDLE_TIMEOUT_S = 90.0  # seconds without a message of a conversation: the connection is closed
NO_FRAME_LIMIT = 2**31  # the default of `receive`: no limit in practice
MIRRORING = "mirroring"  # the capability to answer a QUESTION frame: which of a mirrored pair is primary

Version = Annotated[int, Meta(ge=0, le=65_535)]
Capabilities = Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=32)]
Counter = Annotated[int, Meta(ge=0, le=2**62)]
Signature = Annotated[bytes, Meta(max_length=1_024)]
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

    `daemon_id`: the UUID of a daemon's instance, host and server. `incarnation`: a new UUID for each start of the
    daemon. `connection_number`: a count of the connections that this daemon opened or accepted. `instance` is None if
    unknown.
    """

    daemon_id: UUID
    incarnation: UUID
    connection_number: Counter
    oldest: Version
    newest: Version
    capabilities: Capabilities = ()
    instance: UUID | None = None


class Welcome(Struct, array_like=True, frozen=True):
    """The answer that accepts a connection, with the version and the capabilities that both sides support."""

    daemon_id: UUID
    incarnation: UUID
    connection_number: Counter
    version: Version
    capabilities: Capabilities = ()
    instance: UUID | None = None


class Goodbye(Struct, array_like=True, frozen=True):
    """The body of REJECT and CLOSE: the reason for which a connection is refused or ended."""

    number: Annotated[int, Meta(ge=0, le=2**31)]
    text: Annotated[str, Meta(max_length=500)]


class QuestionBody(Struct, array_like=True, frozen=True):
    """The body of QUESTION: the highest timeline of a cluster that the asking side knows."""

    system: System
    timeline: Counter
    signature: Signature = b""


class StandingBody(Struct, array_like=True, frozen=True):
    """The body of STANDING: the role, the cluster (`system`) and the timeline of the sender's server."""

    role: Role
    system: System
    timeline: Counter
    is_synchronous: bool
    signature: Signature = b""


class LocalIdentity(NamedTuple):
    """The identity of this daemon since its start.

    A primary and its standbys have an equal `instance`, and each its own `daemon_id`.
    """

    daemon_id: UUID
    incarnation: UUID
    capabilities: tuple[str, ...] = (MIRRORING,)
    oldest: int = OLDEST_VERSION
    newest: int = NEWEST_VERSION
    instance: UUID | None = None


class Greeted(NamedTuple):
    """The peer's HELLO. The caller decides with `arbitration`, then calls `welcome` or `reject`."""

    hello: Hello


class Online(NamedTuple):
    """An established connection, with the values of the peer's greeting.

    `connection_number` is the peer's count (see Hello).
    """

    daemon_id: UUID
    incarnation: UUID
    connection_number: int


class Arrived(NamedTuple):
    """The body of a DIALOG frame, or of a FORWARDED one."""

    body: bytes
    is_forwarded: bool = False


class QuestionReceived(NamedTuple):
    """The peer asks whether this server is the primary. Answer with `send_role` now, and after each change."""

    known: KnownTimeline


class StandingReceived(NamedTuple):
    """The role and timeline that the peer has stated."""

    role_report: RoleReport


class Alive(NamedTuple):
    """A keepalive of the peer."""


class Corrupted(NamedTuple):
    """A message that was corrupted in transit and dropped (event Broker:Corrupted Message)."""

    size: int


class Closed(NamedTuple):
    """The connection has ended: close the stream once `outgoing` is written. `number` 0: without an error."""

    number: int
    text: str
    is_by_peer: bool = False  # True if the peer sent CLOSE or REJECT


Event = Greeted | Online | Arrived | QuestionReceived | StandingReceived | Alive | Corrupted | Closed

MESSAGE_FRAMES = (FrameKind.DIALOG, FrameKind.FORWARDED)
ONLINE_FRAMES = frozenset(
    {*MESSAGE_FRAMES, FrameKind.QUESTION, FrameKind.STANDING, FrameKind.KEEP_ALIVE, FrameKind.CLOSE}
)

# (phase, is_opener) -> the accepted kinds of frames. INITIAL and CLOSED accept none.
ACCEPTED_FRAMES: dict[tuple[Phase, bool], frozenset[FrameKind]] = {
    (Phase.NEGOTIATING, True): frozenset({FrameKind.WELCOME, FrameKind.REJECT, FrameKind.CLOSE}),
    (Phase.NEGOTIATING, False): frozenset({FrameKind.HELLO, FrameKind.CLOSE}),
    (Phase.ARBITRATING, False): frozenset({FrameKind.CLOSE}),
    (Phase.ONLINE, True): ONLINE_FRAMES,
    (Phase.ONLINE, False): ONLINE_FRAMES,
}

_hellos = msgspec.msgpack.Decoder(Hello)
_welcomes = msgspec.msgpack.Decoder(Welcome)
_goodbyes = msgspec.msgpack.Decoder(Goodbye)
_questions = msgspec.msgpack.Decoder(QuestionBody)
_standings = msgspec.msgpack.Decoder(StandingBody)
_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")


class Connection:
    """One connection. `is_opener` is True on the side that connected.

    The caller writes the bytes of `outgoing()` to the stream. The other methods return the events that occurred.
    """

    __slots__ = (
        "_active_at",
        "_begun_at",
        "_me",
        "_out",
        "_reader",
        "_received_at",
        "_sent_at",
        "capabilities",
        "is_opener",
        "peer",
        "phase",
        "version",
    )

    def __init__(self, me: LocalIdentity, *, is_opener: bool, now: float) -> None:
        self.is_opener = is_opener
        self.phase = Phase.INITIAL
        self.peer: Hello | Welcome | None = None
        self.version = 0
        self.capabilities: frozenset[str] = frozenset()
        self._me = me
        self._reader = FrameReader(MAXIMUM_GREETING)
        self._out: list[bytes] = []
        self._begun_at = self._received_at = self._sent_at = self._active_at = now

    # --- sending

    def begin(self, connection_number: int, now: float) -> None:
        """Start the handshake on an open stream. The opener sends HELLO."""
        self._expect(Phase.INITIAL)
        self.phase = Phase.NEGOTIATING
        if self.is_opener:
            me = self._me
            hello = Hello(
                me.daemon_id, me.incarnation, connection_number, me.oldest, me.newest, me.capabilities, me.instance
            )
            self._append_frame(FrameKind.HELLO, _encoder.encode(hello), now)

    def welcome(self, connection_number: int, now: float) -> Online:
        """Accept the peer that sent HELLO."""
        self._expect(Phase.ARBITRATING)
        assert isinstance(self.peer, Hello)
        me, peer = self._me, self.peer
        common = tuple(capability for capability in me.capabilities if capability in peer.capabilities)
        answer = Welcome(me.daemon_id, me.incarnation, connection_number, self.version, common, me.instance)
        self._append_frame(FrameKind.WELCOME, _encoder.encode(answer), now)
        return self._go_online(peer, common, now)

    def reject(self, why: BrokerError, now: float) -> Closed:
        """Refuse the peer that sent HELLO, and close the connection."""
        self._expect(Phase.ARBITRATING)
        return self._close_with_error(FrameKind.REJECT, why, now)

    def send(self, body: bytes, now: float, *, is_forwarded: bool = False) -> None:
        """Send the body of a DIALOG frame, or of a FORWARDED one."""
        self._expect(Phase.ONLINE)
        self._active_at = now
        self._append_frame(FrameKind.FORWARDED if is_forwarded else FrameKind.DIALOG, body, now)

    def ask(self, known: KnownTimeline, now: float) -> list[Event]:
        """Ask the peer whether it is the primary. For a peer without that capability, return IN_DOUBT."""
        self._expect(Phase.ONLINE)
        if MIRRORING not in self.capabilities:
            return [StandingReceived(IN_DOUBT)]
        self._append_frame(FrameKind.QUESTION, _encoder.encode(QuestionBody(*known)), now)
        return []

    def send_role(self, role_report: RoleReport, now: float) -> None:
        """Send this server's role and timeline to a peer that has asked."""
        self._expect(Phase.ONLINE)
        self._append_frame(FrameKind.STANDING, _encoder.encode(StandingBody(*role_report)), now)

    def close(self, number: int, text: str, now: float) -> Closed:
        """End the connection, and send the reason to the peer."""
        self._append_frame(FrameKind.CLOSE, _encoder.encode(Goodbye(number, text[:500])), now)
        return self._closed(number, text)

    def outgoing(self) -> bytes:
        """Return the bytes to write to the stream, and clear the buffer."""
        out, self._out = self._out, []
        return b"".join(out)

    # --- receiving

    def receive(self, data: bytes, now: float, most: int = NO_FRAME_LIMIT) -> list[Event]:
        """Handle received bytes, cut anywhere, up to `most` frames. `resume` handles the remaining frames."""
        if self.phase is Phase.CLOSED:
            return []
        self._received_at = now
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
            return (
                [self._close_with_error(FrameKind.CLOSE, BrokerError(28029, "timeout", self.phase), now)]
                if late
                else []
            )
        if now >= self._received_at + SILENCE_TIMEOUT_S:
            return [self.close(9753, BrokerError(9753).text, now)]
        if now >= self._active_at + IDLE_TIMEOUT_S:
            return [self.close(0, "The connection was idle.", now)]
        if now >= self._sent_at + KEEP_ALIVE:
            self._append_frame(FrameKind.KEEP_ALIVE, b"", now)
        return []

    @property
    def wake_at(self) -> float:
        """The time at which `tick` must be called next, if no other call comes first."""
        if self.phase is Phase.CLOSED:
            return float("inf")
        if self.phase is not Phase.ONLINE:
            return self._begun_at + HANDSHAKE_TIME
        return min(self._received_at + SILENCE_TIMEOUT_S, self._active_at + IDLE_TIMEOUT_S, self._sent_at + KEEP_ALIVE)

    def resume(self, now: float, most: int = NO_FRAME_LIMIT) -> list[Event]:
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
            events.append(self._close_with_error(FrameKind.CLOSE, problem, now))
        return events

    def _take(self, frame: Frame, now: float) -> list[Event]:
        if frame.kind not in ACCEPTED_FRAMES.get((self.phase, self.is_opener), ()):
            return [self._close_with_error(FrameKind.CLOSE, BrokerError(28029, frame.kind.name, self.phase), now)]
        if frame.kind in MESSAGE_FRAMES:
            self._active_at = now
            is_forwarded = frame.kind is FrameKind.FORWARDED
            return [Arrived(frame.body, is_forwarded)] if frame.is_intact else [Corrupted(len(frame.body))]
        if not frame.is_intact:
            raise WireError(11235, f"the body of a {frame.kind.name} was corrupted in transit")
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
                return [QuestionReceived(KnownTimeline(question.system, question.timeline, question.signature))]
            case FrameKind.STANDING:
                body = _standings.decode(frame.body)
                return [
                    StandingReceived(
                        RoleReport(body.role, body.system, body.timeline, body.is_synchronous, body.signature)
                    )
                ]
            case _:
                goodbye = _goodbyes.decode(frame.body)
                return [self._closed(goodbye.number, cleaned(goodbye.text), is_by_peer=True)]

    def _greeted(self, hello: Hello, now: float) -> Event:
        version = min(hello.newest, self._me.newest)
        if version < max(hello.oldest, self._me.oldest):
            return self._close_with_error(FrameKind.REJECT, BrokerError(28027, "protocol version"), now)
        self.peer, self.version, self.phase = hello, version, Phase.ARBITRATING
        return Greeted(hello)

    def _welcomed(self, welcome: Welcome, now: float) -> Event:
        if not self._me.oldest <= welcome.version <= self._me.newest:
            return self._close_with_error(FrameKind.CLOSE, BrokerError(28027, "protocol version"), now)
        self.version = welcome.version
        common = tuple(capability for capability in self._me.capabilities if capability in welcome.capabilities)
        return self._go_online(welcome, common, now)

    def _go_online(self, peer: Hello | Welcome, capabilities: tuple[str, ...], now: float) -> Online:
        self.peer, self.phase = peer, Phase.ONLINE
        self.capabilities = frozenset(capabilities)
        self._reader.limit = MAXIMUM_BODY
        self._active_at = now
        return Online(peer.daemon_id, peer.incarnation, peer.connection_number)

    def _expect(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise ValueError(f"the connection is {self.phase}, not {phase}")

    def _close_with_error(self, kind: FrameKind, why: BrokerError, now: float) -> Closed:
        self._append_frame(kind, _encoder.encode(Goodbye(why.number, why.text[:500])), now)
        return self._closed(why.number, why.text)

    def _closed(self, number: int, text: str, *, is_by_peer: bool = False) -> Closed:
        self.phase = Phase.CLOSED
        return Closed(number, text, is_by_peer)

    def _append_frame(self, kind: FrameKind, body: bytes, now: float) -> None:
        if self.phase is not Phase.CLOSED:
            self._sent_at = now
            self._out.append(encode_frame(kind, body))
