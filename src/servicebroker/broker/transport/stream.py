"""One connection: bytes on one side, with TLS or without; frames and events on the other."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from servicebroker.broker import journal, metrics
from servicebroker.broker.transport.accepting import EndReason, Visitor
from servicebroker.broker.transport.connections import Observed
from servicebroker.broker.transport.links import Arrival
from servicebroker.broker.transport.tls import EARLY, EXPIRED, HANDSHAKE_BYTE, RECORDS, Channel
from servicebroker.engine.catalog.network_endpoints import DISABLED, REQUIRED
from servicebroker.engine.remote.refusals import CONNECTION_BROKEN, RefusalKey
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.security.peers import UNPROVED, Peer, Proved
from servicebroker.overriding import override
from servicebroker.protocol.adjacent import (
    Alive,
    Arrived,
    Closed,
    Connection,
    Corrupted,
    Event,
    Greeted,
    Online,
    Phase,
    QuestionReceived,
    StandingReceived,
)
from servicebroker.protocol.mirroring import KnownTimeline, RoleReport
from servicebroker.protocol.routing import Address
from servicebroker.protocol.wire_errors import CorruptedMessage

if TYPE_CHECKING:
    from servicebroker.broker.transport.sockets import Network

OUTBOX_BYTES = 4 * 1024 * 1024  # bytes that a link buffers
OWNER_OUTBOX_BYTES = 8 * OUTBOX_BYTES  # bytes that all links of one owner buffer together, or of one host without one
FRAMES_PER_NOISE_CHECK = 100  # frames handled before `is_noisy` is checked again
OPENING_WASTE = 0.5  # useless frames that the creation of a conversation counts as
STEP_TIME = 5.0  # seconds for each step of a connecting peer: the first byte, the TLS handshake, the greeting
CLOSING_TIME = 10.0  # seconds for a peer to read the last bytes before the connection is aborted
REFUSAL_LINGER_S = 1.0  # seconds for a refused peer to read the reason
UNPROVED_INSTANCE = "it does not prove that this is the instance which it says"

REFUSED_BY_PEER = (9751, 28038)  # errors that a TLS alert of the peer reports

_PUBLIC_TEXTS = {  # the reasons that a refused peer gets, without names of this instance
    28034: RULES[28034].text.format("of your certificate"),
    28035: RULES[28035].text.format("it is none of those that are let in here, or was revoked"),
}

BROKEN_LINK = (9753, 11235, 28029)  # errors that end an online connection unexpectedly

EVENTS_WITHOUT_MESSAGE = Alive, QuestionReceived, StandingReceived, Corrupted  # events without a message

_LOGIN_STATES = {Phase.INITIAL: 0, Phase.NEGOTIATING: 1, Phase.ARBITRATING: 11, Phase.ONLINE: 12, Phase.CLOSED: 13}


class Stream(asyncio.Protocol):
    """One connection of a network. It is a `Link` while it is online."""

    def __init__(self, network: Network, address: Address | None, visitor: Visitor | None = None) -> None:
        self.network = network
        self._visitor = visitor  # the visitor of an accepted connection, until it is online
        self.address = address  # the address connected to; None for an accepted connection
        self.connection = Connection(network.me, is_opener=address is not None, now=network.seconds())
        self.connection_number = 0
        self.peer_address = str(address or "")  # the address in logs and views
        self._channel: Channel | None = None
        self._is_begun = False  # the protocol has begun: it is decided whether TLS is used
        self._transport: asyncio.Transport | None = None
        self._was_online = self._is_lost = False
        self._wants_role = False  # the peer wants to know the role of this server
        self._owes_role = False  # the role is sent once the peer has read the bytes before it
        self._outbox: deque[tuple[bytes, bool]] = deque()
        self._outgoing = 0  # bytes in the outbox
        self._owner_part = OUTBOX_BYTES  # the link's part of OWNER_OUTBOX_BYTES
        self._send_lock = threading.Lock()  # held by threads of shares and the loop
        self._flush_due = False
        self._unsent_fragments = 0  # fragments written since the socket's buffer was empty
        self._loop = network.loop
        self._id = uuid4()
        self._connected_at = self._active_at = network.clock()
        self._online_at: datetime | None = None
        self._bytes = [0, 0]  # sent, received
        self._fragments = [0, 0]
        self._checked_fragments = 0  # fragments received at the last check
        self._calls = [0, 0]

    # ---------------------------------------------------------------- as a link, from any thread

    @property
    def room(self) -> int:
        """The bytes that the link accepts now."""
        transport = self._transport
        buffered = self._outgoing + (transport.get_write_buffer_size() if transport else 0)
        return min(OUTBOX_BYTES, self._owner_part) - buffered

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        """Send the body of a DIALOG frame, or of a FORWARDED one. A closed connection drops it."""
        with self._send_lock:
            self._outbox.append((body, is_forwarded))
            self._outgoing += len(body)
            is_due, self._flush_due = self._flush_due, True
        if not is_due:
            self._loop.call_soon_threadsafe(self._flush)

    @property
    def owner(self) -> str:
        """The owner of the certificate that the peer has shown."""
        return self.proved.owner

    @property
    def proved(self) -> Proved:
        """The identity that the peer's certificate proves."""
        return UNPROVED if self._channel is None else self._channel.proved

    @property
    def _certificate(self) -> str:
        return "" if self._channel is None or self._channel.peer is None else self._channel.peer.name

    @property
    def _date_problem(self) -> str:
        """Why the peer's certificate is not valid now, or ''. TLS has checked it by the machine's clock only."""
        if self._channel is None or self._channel.peer is None:
            return ""
        facts, now = self._channel.peer.facts, self.network.clock()
        return EXPIRED if facts.expiry_date <= now else EARLY if now < facts.start_date else ""

    @property
    def instance(self) -> UUID:
        """The instance that the peer claims to be, or the identifier of its daemon if it claims none."""
        greeting = self.connection.peer
        assert greeting is not None
        return greeting.instance or greeting.daemon_id

    @property
    def incarnation(self) -> UUID:
        """The incarnation of the peer's daemon: a new identifier at each start."""
        greeting = self.connection.peer
        assert greeting is not None
        return greeting.incarnation

    def has_new_fragments(self) -> bool:
        """Return whether messages have arrived since the last call."""
        before, self._checked_fragments = self._checked_fragments, self._fragments[metrics.RECEIVE_PLACE]
        return self._checked_fragments > before

    @property
    def peer(self) -> Peer | None:
        """The peer, once its greeting has arrived."""
        greeting = self.connection.peer
        return None if greeting is None else Peer(self.owner, greeting.daemon_id)

    @property
    def phase(self) -> Phase:
        """The phase of the connection."""
        return self.connection.phase

    def complain(self) -> None:
        """Count a useless frame. A peer that sends many of them is read less often."""
        self.network.inbox.complain(self, 1)
        self.network.inbox.waste(self, 1.0)

    def refused(self, number: int, text: str) -> None:
        """Count a message that was refused."""
        self.network.refusals.note(RefusalKey(True, self.known_as, number), text)

    @property
    def known_as(self) -> str:
        """The peer's name in reports: its owner, or its host if it has proved nothing. The port changes each time."""
        return self.owner or self.peer_address.rpartition(":")[0]

    def opened(self) -> None:
        """Count a conversation that the peer has begun: it costs far more than a message."""
        self.network.inbox.waste(self, OPENING_WASTE)

    def charge(self, seconds: float) -> None:
        """Charge the owner for seconds of the round: it is not read for as long."""
        self.network.inbox.charge(self, seconds)

    # ---------------------------------------------------------------- what the loop calls

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the protocol or TLS on the connected stream."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=OUTBOX_BYTES)
        self.network.streams.add(self)
        name = transport.get_extra_info("peername") or ("", 0)
        if self.address is None:
            self.peer_address = str(Address(name[0], name[1]))
            journal.connection("Accept", self.peer_address)
            if self._visitor is not None:
                self._visitor.end = self._end_visit
            if self.network.is_out_of_service:
                self._transport.abort()
            return
        if self.network.policy.silence:  # the endpoint was stopped meanwhile
            self._transport.abort()
            return
        if not self.network.is_secured(self.address):
            self._begin()
            self._write()
            return
        tls = self.network.policy.tls
        if tls is None:  # the policy has just changed
            self.shut(9762, RULES[9762].text)
            return
        self._channel = tls.channel(is_opener=True, certificate_index=self.network.certificate_index(self.address))
        self._channel.begin()
        self._write()

    @override
    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        if self.connection.phase is Phase.CLOSED:
            return
        self._active_at = self.network.clock()
        self._count(metrics.RECEIVE_PLACE, data)
        try:
            plain = self._unsecured(data)
        except BrokerError as problem:
            self._reject(problem)
            return
        self._receive(plain)

    def _receive(self, data: bytes) -> None:
        """Handle decrypted bytes, after the rest of earlier ones, until the peer is noisy."""
        events = self.connection.receive(data, self.network.seconds(), FRAMES_PER_NOISE_CHECK)
        self._handle(events)
        while len(events) >= FRAMES_PER_NOISE_CHECK and not self.network.inbox.is_noisy(self):
            events = self.connection.resume(self.network.seconds(), FRAMES_PER_NOISE_CHECK)
            self._handle(events)
        if self.network.inbox.is_noisy(self) or self.network.inbox.is_full(self):
            self._pause()

    @override
    def eof_received(self) -> bool:
        """Handle the end of the peer's stream."""
        return False

    @override
    def connection_lost(self, problem: Exception | None) -> None:
        """Handle the loss of the stream."""
        if problem is not None:  # a broken pipe is found by a write
            kind = "Send IO Error" if isinstance(problem, BrokenPipeError) else "Receive IO Error"
            journal.connection(kind, self.peer_address, str(problem))
        self._is_lost = True
        if self._visitor is not None:
            self._visitor.leave()
        self._handle(self.connection.end_of_stream())
        self._transport = self._visitor = None  # else TLS objects stay in memory until a garbage collection

    @override
    def resume_writing(self) -> None:
        """Wake the shares: the socket accepts bytes again."""
        self.network.inbox.wake()

    # ---------------------------------------------------------------- what the network calls

    def tick(self) -> None:
        """Check the peer's certificate and the timers of the connection."""
        if why := self._date_problem:
            self.shut(28035, BrokerError(28035, why).text)
        if self._owes_role:
            self.send_role(self.network.role_report)
        self._handle(self.connection.tick(self.network.seconds()))

    def _pause(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on after a pause, if the inbox has room."""
        if self._transport is None or self._transport.is_closing() or self._transport.is_reading():
            return
        self._receive(b"")
        if not self.network.inbox.is_noisy(self) and not self.network.inbox.is_full(self):
            self._transport.resume_reading()

    def divide_outbox(self, links: int) -> None:
        """Set the number of links that divide the buffers of their owner."""
        self._owner_part = OWNER_OUTBOX_BYTES // links
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=min(OUTBOX_BYTES, self._owner_part))

    def shut(self, number: int, text: str) -> None:
        """End the connection, and send the reason to the peer."""
        if self.connection.phase is not Phase.CLOSED:
            self._handle([self.connection.close(number, text, self.network.seconds())])

    def refuse(self, why: str) -> None:
        """Refuse the peer's claimed identity. The peer does not learn the real owner of that identity."""
        if self.phase is Phase.ARBITRATING:
            self.connection.reject(BrokerError(28035, UNPROVED_INSTANCE), self.network.seconds())
        elif self.phase is not Phase.CLOSED:
            self.connection.close(28035, BrokerError(28035, UNPROVED_INSTANCE).text, self.network.seconds())
        self._handle([Closed(28035, BrokerError(28035, why).text)])

    def _reject(self, why: BrokerError) -> None:
        """Close a connection that one side refuses. The peer gets the reason without names of this instance."""
        if self.phase is not Phase.CLOSED:
            public_text = why.text if self._date_problem else _PUBLIC_TEXTS.get(why.number, why.text)
            self.connection.close(why.number, public_text, self.network.seconds())
            self._handle([Closed(why.number, why.text)])

    def _end_visit(self, why: EndReason) -> None:
        """End the connection of a peer that is too slow to authenticate, or that is displaced by newer connections.

        A displaced connection costs one line of the log, since an unknown peer may cause thousands.
        """
        assert self._transport is not None
        reason = "timeout" if why is EndReason.LATE else "newer connections"
        text = BrokerError(28029, reason, self.phase).text
        if why is EndReason.LATE and self.phase is not Phase.CLOSED:
            self.shut(28029, text)
            return
        self._transport.abort()
        if self.phase is not Phase.CLOSED:
            closed = self.connection.close(28029, text, self.network.seconds())
            journal.login(journal.AUDITED[28029], self.peer_address, error=text)
            self.network.refuse(28029, self.peer_address)
            self.network.on_closed(self, closed, was_online=False)

    def _expect_next_step(self) -> None:
        if self._visitor is not None:
            self._visitor.expect(STEP_TIME)

    def ask(self, known: KnownTimeline) -> None:
        """Ask the peer whether it is the principal."""
        if self.connection.phase is Phase.ONLINE:
            self._handle(self.connection.ask(known, self.network.seconds()))

    def send_role(self, role_report: RoleReport) -> None:
        """Send the role to a peer that has asked. While the peer does not read, only the last role is kept for it."""
        if self._wants_role and self.connection.phase is Phase.ONLINE:
            self._owes_role = self.room <= 0
            if self._owes_role:
                return
            self.connection.send_role(self.network.signed_report(role_report), self.network.seconds())
            self._write()

    @property
    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def backlog(self) -> tuple[int, int, int, int]:
        """Return bytes and fragments that are ready to be sent, and those that the socket has not accepted yet."""
        unsent = self._unsent
        return self._outgoing, len(self._outbox), unsent, self._unsent_fragments if unsent else 0

    def observed(self) -> Observed:
        """Return the row of sys.dm_broker_connections."""
        transport, peer = self._transport, self._channel.peer if self._channel else None
        login = _LOGIN_STATES[self.connection.phase]
        greeting = self.connection.peer
        return Observed(
            self._id,
            4 if self._was_online else 3,
            self._connected_at,
            self._online_at,
            peer.name if peer else None,
            (peer.certificate_id or None) if peer else None,
            self.peer_address,
            self._active_at,
            self.address is None,
            login,
            peer is not None,
            (self._channel.authentication or None) if self._channel else None,
            transport is not None and not transport.is_closing() and not transport.is_reading(),
            self.room <= 0,
            *(self._bytes[0], self._bytes[1], self._fragments[0], self._fragments[1], self._calls[0], self._calls[1]),
            greeting.daemon_id if greeting else None,
        )

    # ---------------------------------------------------------------- TLS, or not

    def _unsecured(self, data: bytes) -> bytes:
        """Return the received bytes, decrypted if TLS is used.

        Raises:
            BrokerError: this side refuses the peer, or the peer refuses this side.
        """
        if self._is_begun and self._channel is None:
            return data
        if self.address is None and self._channel is None:
            self._decide(is_tls=data[0] == HANDSHAKE_BYTE)
            if self._channel is None:
                return data
        assert self._channel is not None
        if self.address is not None and self._calls[1] == 1 and data[0] not in RECORDS:
            self._answered_without_tls(data)
        plain = self._channel.receive(data)
        if self._channel.peer is not None and not self._is_begun:
            if why := self._date_problem:
                raise BrokerError(28035, why)
            self._begin()
        return plain

    def _decide(self, *, is_tls: bool) -> None:
        """Choose TLS or plain for an accepted connection, by its first byte."""
        self._expect_next_step()
        policy = self.network.policy
        if policy.refusal:
            raise BrokerError(policy.refusal)
        if is_tls and policy.encryption != DISABLED and policy.tls is not None:
            self._channel = policy.tls.channel(is_opener=False)
        elif is_tls or policy.encryption == REQUIRED:
            raise BrokerError(28027, "encryption algorithm")
        else:
            self._begin()

    def _answered_without_tls(self, data: bytes) -> None:
        """Handle a plain answer to a TLS handshake. Only a refusal in it is believed."""
        assert self.address is not None
        self.network.note_plain_peer(self.address)
        opened = Connection(self.network.me, is_opener=True, now=self.network.seconds())
        opened.begin(0, self.network.seconds())
        for event in opened.receive(data, self.network.seconds()):
            if isinstance(event, Closed) and event.number in (28027, 28036, 28080):
                raise BrokerError(event.number, "encryption algorithm")
        raise BrokerError(9758)

    def _begin(self) -> None:
        self._is_begun = True
        self._expect_next_step()
        self.connection_number = self.network.arbiter.count_connection()
        self.connection.begin(self.connection_number, self.network.seconds())

    def _count(self, direction: int, data: bytes) -> None:
        self._bytes[direction] += len(data)
        self._calls[direction] += 1
        metrics.IO_BYTES[direction].inc(len(data))
        metrics.IOS[direction].inc()

    def _count_fragment(self, direction: int, body: bytes) -> None:
        self._fragments[direction] += 1
        metrics.FRAGMENTS[direction].inc()
        metrics.FRAGMENT_BYTES[direction].inc(len(body))

    # ---------------------------------------------------------------- events

    def _handle(self, events: list[Event]) -> None:
        self.network.inbox.complain(self, sum(isinstance(event, EVENTS_WITHOUT_MESSAGE) for event in events))
        is_asked = False
        for event in events:
            match event:
                case Arrived() if self.network.is_mirror:
                    self.shut(28012, RULES[28012].text.format("It is a replica of a mirrored database."))
                    return
                case QuestionReceived():
                    self._wants_role = is_asked = True
                    self.network.on_question(self, event.known)
                case StandingReceived():
                    self.network.on_role(self, event.role_report)
                case Arrived():
                    self._count_fragment(metrics.RECEIVE_PLACE, event.body)
                    self.network.inbox.put(Arrival(self, event.body, event.is_forwarded))
                case Corrupted():
                    problem = CorruptedMessage(11235, f"{event.size} bytes were changed under way")
                    journal.log_corrupted(problem, self, self.peer_address)
                case Greeted():
                    self._greeted(event)
                case Online():
                    why = None if self.address is None else self.network.objection_to(self)
                    if why is not None:
                        self.refuse(why)
                        return
                    self._was_online = True
                    if self._visitor is not None:
                        self._visitor.prove()
                    self._online_at = self.network.clock()
                    journal.connection("Connected", self.peer_address)
                    if self._certificate:
                        journal.login("Login Success", self.peer_address, self._certificate)
                    self.network.online(self, event)
                case Closed():
                    self._write()
                    self._end(event)
                    return
        if is_asked:
            self.send_role(self.network.role_report)
        self._write()

    def _greeted(self, event: Greeted) -> None:
        now = self.network.seconds()
        why = self.network.objection_to(self)
        if why is not None:
            self.refuse(why)
            return
        refused = self.network.arbiter.greeted(event.hello, self.owner)
        if refused:
            self._handle([self.connection.reject(BrokerError(refused), now)])
            return
        self.connection_number = self.network.arbiter.count_connection()
        self._handle([self.connection.welcome(self.connection_number, now), *self.connection.resume(now)])

    def _end(self, closed: Closed) -> None:
        is_refusal = not self._was_online and closed.number in journal.AUDITED
        error = closed.text if closed.number else ""
        if self._transport is not None and not self._is_lost:
            journal.connection("Closing", self.peer_address, error)
        if self._transport is not None:
            if is_refusal and self.address is None:
                self._close_gracefully(self._transport)
            else:
                self._transport.close()
            self._loop.call_later(CLOSING_TIME, self._transport.abort)
        if is_refusal:
            journal.login(journal.AUDITED[closed.number], self.peer_address, self._certificate, error)
            if self.address is None:
                self.network.refuse(closed.number, self.peer_address)
            self._record_refusal(closed)
        if self._was_online and (closed.number in BROKEN_LINK or closed == Closed(0, "")):
            self._record_refusal(Closed(CONNECTION_BROKEN, closed.text or "The stream has ended without a word."))
        journal.connection("Closed", self.peer_address, error)
        self.network.on_closed(self, closed, was_online=self._was_online)

    def _record_refusal(self, closed: Closed) -> None:
        """Record which side has refused the other, and why."""
        is_by_this_side = not closed.is_by_peer and closed.number not in REFUSED_BY_PEER
        peer = str(self.address or self.known_as)
        self.network.refusals.note(RefusalKey(is_by_this_side, peer, closed.number), closed.text)

    def _close_gracefully(self, transport: asyncio.Transport) -> None:
        """Close the stream after the peer could read the reason: a close while the peer sends may lose it."""
        if not transport.is_closing():
            try:
                transport.write_eof()
            except OSError:  # the peer has reset the connection
                transport.abort()
            else:
                self._loop.call_later(REFUSAL_LINGER_S, transport.close)

    def _flush(self) -> None:
        if not self._unsent:
            self._unsent_fragments = 0
        now = self.network.seconds()
        with self._send_lock:
            was_full = self.room <= 0
            self._flush_due, self._outgoing = False, 0
            outbox, self._outbox = self._outbox, deque()
        for body, is_forwarded in outbox:
            if self.connection.phase == "ONLINE":
                self.connection.send(body, now, is_forwarded=is_forwarded)
                self._count_fragment(metrics.SEND_PLACE, body)
                self._unsent_fragments += 1
        self._write()
        if was_full:
            self.network.inbox.wake()

    def _write(self) -> None:
        data = self.connection.outgoing()
        if self._channel is not None:
            if data and self._channel.is_open:
                self._channel.send(data)
            data = self._channel.outgoing()  # before the channel is open: the handshake, or an alert
        if data and self._transport is not None and not self._transport.is_closing():
            self._count(metrics.SEND_PLACE, data)
            self._transport.write(data)
