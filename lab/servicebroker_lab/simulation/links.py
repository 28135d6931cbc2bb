"""The connections of a daemon to its peers, over simulated streams.

They replace `broker/transport/sockets.py`, which uses sockets and threads: protocol, arbitration, events and the pauses
between attempts are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from servicebroker.broker.inboxes import Answered, Inboxes, Lost, Reached, Unreached
from servicebroker.broker.peers import Peers
from servicebroker.broker.policy import Policy
from servicebroker.broker.transport.sockets import FIRST_PAUSE, LAST_PAUSE, RETRY_PERIOD_S
from servicebroker.broker.transport.stream import OPENING_WASTE, UNPROVED_INSTANCE
from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.security.peers import UNPROVED, Peer, Proved
from servicebroker.overriding import override
from servicebroker.protocol import adjacent
from servicebroker.protocol.adjacent import (
    Arrived,
    Closed,
    Connection,
    Corrupted,
    Greeted,
    LocalIdentity,
    Online,
    Phase,
    QuestionReceived,
    StandingReceived,
)
from servicebroker.protocol.arbitration import Arbiter
from servicebroker.protocol.mirroring import KnownTimeline, RoleReport
from servicebroker.protocol.routing import Address
from servicebroker_lab.simulation.simulated_network import Network, Stream

OUTBOX_BYTES = 4_000  # bytes that a connection buffers
CORRUPTED = (11230, 11235, 11251)  # error numbers of messages that were changed on their way
UNREACHABLE = RULES[9753].text

NetworkEvent = Answered | Lost | Reached | Unreached


class Attempt(NamedTuple):
    """A failed attempt to connect to an address: the time of the next one, the last pause, and the error."""

    again_at: float = 0.0
    pause: float = 0.0
    status: str = ""


class SimulatedLink:
    """A connection and its stream, as the relay sees it."""

    def __init__(
        self, links: Links, connection: Connection, stream: Stream, address: Address | None, proved: Proved
    ) -> None:
        self.proved = proved  # the identity that the peer's certificate proves
        self.owner = proved.owner
        self.connection = connection
        self.stream = stream
        self.address = address  # the address of an opened connection; None for an accepted one
        self.connection_number = 0
        self.was_online = False
        self.has_timer = False
        self._links = links
        self._pending = 0  # bytes that wait to be written
        self._is_flushing = False

    @override
    def __repr__(self) -> str:
        return f"the link to {self.address}" if self.address else "an accepted link"

    @property
    def instance(self) -> UUID:
        """The instance that the peer has named in its greeting."""
        greeting = self.connection.peer
        assert greeting is not None
        assert greeting.instance is not None
        return greeting.instance

    @property
    def peer(self) -> Peer | None:
        """The peer; None before its greeting."""
        greeting = self.connection.peer
        return None if greeting is None else Peer(self.owner, greeting.daemon_id)

    @property
    def room(self) -> int:
        """The number of bytes that the connection can buffer now."""
        return OUTBOX_BYTES - self._pending

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        """Send a message, with the next bytes that are written."""
        if self.connection.phase is not Phase.ONLINE:
            return
        self._pending += len(body)
        self.connection.send(body, self._links.now, is_forwarded=is_forwarded)
        if not self._is_flushing:
            self._is_flushing = True
            self._links.later(0.001, self._flush)

    def _flush(self) -> None:
        self._pending, self._is_flushing = 0, False
        self._links.handle(self, [])
        self._links.on_room()

    def complain(self) -> None:
        """Record a useless frame of the peer, for the fair division of time among peers."""
        self._waste(1.0)

    def refused(self, number: int, text: str) -> None:
        """Count a refused message, if it was corrupted."""
        self._links.corrupted += number in CORRUPTED

    def opened(self) -> None:
        """Record that the peer has begun a conversation."""
        self._waste(OPENING_WASTE)

    def _waste(self, part: float) -> None:
        if self._links.inboxes is not None:
            self._links.inboxes.waste(self, part)

    def charge(self, seconds: float) -> None:
        """Record processing time for messages of the peer."""
        if self._links.inboxes is not None:
            self._links.inboxes.charge(self, seconds)


class Links:
    """The connections of a daemon. TLS is not simulated: a peer has the key of each certificate that it shows.

    Args:
        shown: the daemon's own certificate.
        tell: called with each event of a connection.
        bring: called with each received message.
        on_room: called when a connection can send again.

    Attributes:
        inboxes: the inboxes of a daemon that divides its time among peers; None for another daemon.
    """

    def __init__(
        self,
        network: Network,
        me: LocalIdentity,
        index: int,
        shown: bytes,
        policy: Policy,
        role_report: RoleReport,
        tell: Callable[[NetworkEvent], None],
        bring: Callable[[SimulatedLink, Arrived], None],
        on_room: Callable[[], None],
    ) -> None:
        self._network = network
        self._me = me
        self._index = index
        self._shown = shown
        self._role_report = role_report
        self._questions: dict[
            Address, KnownTimeline
        ] = {}  # by server of a mirrored pair: the question for its role, sent after each connect
        self._recognition = policy.tls.recognition if policy.tls is not None else None
        self.peers = Peers(me.instance)
        self.peers.apply(policy)
        self._tell = tell
        self._bring = bring
        self.on_room = on_room
        self.corrupted = 0
        self._arbiter: Arbiter[SimulatedLink] = Arbiter(me.daemon_id)
        self._open: list[SimulatedLink] = []
        self._all: list[SimulatedLink] = []  # weak references to a link end with the run, and not at a collection
        self.inboxes: Inboxes | None = None
        self._peers: dict[Address, Peer] = {}
        self._attempts: dict[Address, Attempt] = {}
        self._asked: dict[Address, float] = {}  # the last time that the relay needed the address
        self._connecting: set[Address] = set()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def now(self) -> float:
        """The time of the run."""
        return self._network.loop.now

    @property
    def unreachable(self) -> frozenset[Address]:
        """The addresses whose last attempt has failed."""
        return frozenset(self._attempts)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Call `action` after a delay, unless the daemon has ended by then."""
        self._network.loop.after(delay, lambda: None if self._is_over else action())

    def crash(self) -> None:
        """Close all streams without any further event."""
        self._is_over = True
        for link in self._open:
            link.stream.close()

    # ---------------------------------------------------------------- for the relay

    def reach(self, address: Address) -> SimulatedLink | str:
        """Return the connection to an address. If there is none, open it, and return the last error or ''."""
        peer = self._peers.get(address)
        link = None if peer is None else self._arbiter.find(peer)
        if link is not None:
            return link
        self._asked[address] = self.now
        attempt = self._attempts.get(address, Attempt())
        if self.now >= attempt.again_at:
            self._connect(address)
        return attempt.status

    def ask(self, address: Address, known: KnownTimeline) -> None:
        """Ask the server at an address for its role. The answer is an event."""
        self._questions[address] = known
        link = self.reach(address)
        if isinstance(link, SimulatedLink):
            self._ask(link, known)
        elif link:
            self._tell(Unreached(address, link))

    # ---------------------------------------------------------------- for the network

    def accept(self, stream: Stream) -> None:
        """Accept a connection of a peer."""
        stream.shown = self._shown
        self._begin(stream, None)

    def _connect(self, address: Address) -> None:
        if address not in self._connecting:
            self._connecting.add(address)
            self._network.connect(
                self._index, index_of(address), lambda stream: self._on_connected(address, stream), self._shown
            )

    def _on_connected(self, address: Address, stream: Stream | None) -> None:
        if self._is_over:
            if stream is not None:
                stream.close()
        elif stream is None or not stream.twin_is_open:
            self._on_failed(address, UNREACHABLE)
        else:
            self._begin(stream, address)

    def _begin(self, stream: Stream, address: Address | None) -> None:
        try:
            proved = self._identity_of(stream)
        except BrokerError as problem:
            stream.close()
            if address is not None:
                self._on_failed(address, problem.text)
            return
        connection = Connection(self._me, is_opener=address is not None, now=self.now)
        link = SimulatedLink(self, connection, stream, address, proved)
        link.connection_number = self._arbiter.count_connection() if address is not None else 0
        self._open.append(link)
        self._all.append(link)
        stream.on_bytes = lambda data: self.handle(link, connection.receive(data, self.now))
        stream.on_end = lambda: self.handle(link, connection.end_of_stream())
        connection.begin(link.connection_number, self.now)
        self.handle(link, [])

    def _identity_of(self, stream: Stream) -> Proved:
        """Return the identity of the peer by its certificate.

        Raises:
            BrokerError: 28034, 28035 the peer is refused.
        """
        if self._recognition is None:
            return UNPROVED
        assert stream.twin is not None
        return self._recognition.recognize(stream.twin.shown).peer.proved

    def handle(self, link: SimulatedLink, events: list[adjacent.Event]) -> None:
        """Handle events of the protocol, and write its outgoing bytes."""
        for event in events:
            match event:
                case Greeted(hello):
                    self._greet(link, hello)
                case Online():
                    self._online(link, event)
                case Arrived():
                    self._bring(link, event)
                case Corrupted():
                    self.corrupted += 1
                case QuestionReceived():
                    link.connection.send_role(self._role_report, self.now)
                case StandingReceived(role_report):
                    for address in self._halves(link):
                        self._tell(Answered(address, role_report))
                case Closed():
                    self._on_closed(link, event)
        link.stream.write(link.connection.outgoing())
        if link.connection.phase is Phase.CLOSED:
            link.stream.close()
        elif not link.has_timer:
            link.has_timer = True
            self.later(max(0.0, link.connection.wake_at - self.now), lambda: self._tick(link))

    def _tick(self, link: SimulatedLink) -> None:
        link.has_timer = False
        self.handle(link, link.connection.tick(self.now))

    def _greet(self, link: SimulatedLink, hello: adjacent.Hello) -> None:
        if self.peers.objection_to(None, link.proved, link.instance) is not None:
            self.handle(link, [link.connection.reject(BrokerError(28035, UNPROVED_INSTANCE), self.now)])
            return
        number = self._arbiter.greeted(hello, link.owner)
        if number:
            self.handle(link, [link.connection.reject(BrokerError(number), self.now)])
            return
        link.connection_number = self._arbiter.count_connection()
        self.handle(link, [link.connection.welcome(link.connection_number, self.now)])
        self.handle(link, link.connection.resume(self.now))

    def _online(self, link: SimulatedLink, event: Online) -> None:
        if link.address is not None and self.peers.objection_to(link.address, link.proved, link.instance) is not None:
            error = BrokerError(28035, UNPROVED_INSTANCE)
            self.handle(link, [link.connection.close(error.number, error.text, self.now)])
            return
        link.was_online = True
        loser = self._arbiter.online(
            link, event, is_opener=link.address is not None, connection_number=link.connection_number, owner=link.owner
        )
        if link.address is not None:
            self._connecting.discard(link.address)
            self._attempts.pop(link.address, None)
            self._asked.pop(link.address, None)
            self._peers[link.address] = Peer(link.owner, event.daemon_id)
        if loser is not None:
            self.handle(loser, [loser.connection.close(28033, RULES[28033].text, self.now)])
        if link.address is not None:
            self._tell(Reached(link.address))
        for address in self._halves(link)[:1]:
            self._ask(link, self._questions[address])

    def _ask(self, link: SimulatedLink, known: KnownTimeline) -> None:
        if link.connection.phase is Phase.ONLINE:
            self.handle(link, link.connection.ask(known, self.now))

    def _halves(self, link: SimulatedLink) -> list[Address]:
        """Return the addresses of servers of mirrored pairs at which this peer answers."""
        return [address for address, peer in self._peers.items() if peer == link.peer and address in self._questions]

    def _on_closed(self, link: SimulatedLink, event: Closed) -> None:
        if link not in self._open:
            return
        self._open.remove(link)
        self._arbiter.gone(link)
        peer = link.peer
        lost: list[Address] = []
        if peer is not None and self._arbiter.find(peer) is None:
            lost = self._halves(link)
            self._peers = {address: known for address, known in self._peers.items() if known != peer}
        if link.was_online:
            for address in lost if event.number else ():
                self._on_failed(address, event.text)
            self._tell(Lost(link, event.text if event.number else ""))
        elif link.address is not None:
            self._on_failed(link.address, event.text)

    def _on_failed(self, address: Address, status: str) -> None:
        self._connecting.discard(address)
        pause = min(self._attempts.get(address, Attempt()).pause * 2, LAST_PAUSE) or FIRST_PAUSE
        self._attempts[address] = Attempt(self.now + pause, pause, status)
        self._tell(Unreached(address, status))
        self.later(pause, lambda: self._try_again(address))

    def _try_again(self, address: Address) -> None:
        """Connect again if the relay has needed the address recently. Otherwise forget its attempts."""
        if self._asked.get(address, -RETRY_PERIOD_S) + RETRY_PERIOD_S > self.now:
            self._connect(address)
        else:
            self._attempts.pop(address, None)


def address_of(index: int) -> Address:
    """Return the address of the instance with this number."""
    return Address(f"sim{index}", 4022)


def index_of(address: Address) -> int:
    """Return the number of the instance that listens at an address."""
    return int(address.host.removeprefix("sim"))
