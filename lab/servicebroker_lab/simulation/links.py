"""The connections of a daemon: opened and greeted, one for each peer. A crash takes them all.

What `broker/transport/sockets.py` does with sockets and threads, over simulated streams: the same protocol and
arbitration, the same happenings, the same pauses between attempts.
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

OUTBOX_BYTES = 4_000  # bytes that a link takes at a time
CORRUPTED = (11230, 11235, 11251)  # why a message is refused that was changed on its way
UNREACHABLE = RULES[9753].text

NetworkEvent = Answered | Lost | Reached | Unreached


class Attempt(NamedTuple):
    """The last one to reach an address has failed: when the next one comes, and after which pause."""

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
        self.address = address  # the address that we connected to; None for an accepted connection
        self.connection_number = 0
        self.was_online = False
        self.has_alarm = False
        self._links = links
        self._pending = 0  # bytes that wait to be written
        self._is_flushing = False

    def __repr__(self) -> str:
        return f"the link to {self.address}" if self.address else "an accepted link"

    @property
    def instance(self) -> UUID:
        """Which instance the peer says that it is."""
        greeting = self.connection.peer
        assert greeting is not None
        assert greeting.instance is not None
        return greeting.instance

    @property
    def peer(self) -> Peer | None:
        """Return the peer at the other end, once it has greeted."""
        greeting = self.connection.peer
        return None if greeting is None else Peer(self.owner, greeting.daemon_id)

    @property
    def room(self) -> int:
        """Return the number of bytes that the link takes now."""
        return OUTBOX_BYTES - self._pending

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        """Send the body of a frame, with the next bytes that are written."""
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
        """Count a frame that was for nothing, where peers have turns."""
        self._waste(1.0)

    def refused(self, number: int, text: str) -> None:
        """Count a refusal of what the peer has brought."""
        self._links.corrupted += number in CORRUPTED

    def opened(self) -> None:
        """Count a conversation that the peer has begun."""
        self._waste(OPENING_WASTE)

    def _waste(self, part: float) -> None:
        if self._links.inboxes is not None:
            self._links.inboxes.waste(self, part)

    def charge(self, seconds: float) -> None:
        """Charge the peer for seconds of the round, where peers have turns."""
        if self._links.inboxes is not None:
            self._links.inboxes.charge(self, seconds)


class Links:
    """The links of a daemon. `tell` gets events, `bring` frames; `on_room` is called when a link takes more.

    `shown` is its own certificate; TLS, which proves that a peer has the key of what it shows, is not simulated.

    Attributes:
        inboxes: those of a daemon in which peers have turns; None where rounds take what has come.
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
        ] = {}  # halves of mirrored pairs: to be asked whenever they are reached
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
        self._asked: dict[Address, float] = {}  # when the relay last wanted to reach what it could not
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
        """Return the addresses whose last attempts have failed."""
        return frozenset(self._attempts)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do something, unless these links are over by then."""
        self._network.loop.after(delay, lambda: None if self._is_over else action())

    def crash(self) -> None:
        """The streams end, and nobody is told anything more."""
        self._is_over = True
        for link in self._open:
            link.stream.close()

    # ---------------------------------------------------------------- for the relay

    def reach(self, address: Address) -> SimulatedLink | str:
        """The link to an address, or why there is none: then it is being opened."""
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
        """Ask whoever is at that address whether it is the principal; what it says is told when it comes."""
        self._questions[address] = known
        link = self.reach(address)
        if isinstance(link, SimulatedLink):
            self._ask(link, known)
        elif link:
            self._tell(Unreached(address, link))

    # ---------------------------------------------------------------- for the network

    def accept(self, stream: Stream) -> None:
        """A peer has connected."""
        stream.shown = self._shown
        self._begin(stream, None)

    def _connect(self, address: Address) -> None:
        if address not in self._connecting:
            self._connecting.add(address)
            self._network.connect(
                self._index, index_of(address), lambda stream: self._connected(address, stream), self._shown
            )

    def _connected(self, address: Address, stream: Stream | None) -> None:
        if self._is_over:
            if stream is not None:
                stream.close()
        elif stream is None or not stream.twin_is_open:
            self._failed(address, UNREACHABLE)
        else:
            self._begin(stream, address)

    def _begin(self, stream: Stream, address: Address | None) -> None:
        try:
            proved = self._proved(stream)
        except BrokerError as problem:
            stream.close()
            if address is not None:
                self._failed(address, problem.text)
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

    def _proved(self, stream: Stream) -> Proved:
        """Return the identity that the peer's certificate proves.

        Raises:
            BrokerError: 28034, 28035 it is not let in.
        """
        if self._recognition is None:
            return UNPROVED
        assert stream.twin is not None
        return self._recognition.recognize(stream.twin.shown).peer.proved

    def handle(self, link: SimulatedLink, events: list[adjacent.Event]) -> None:
        """Do what the protocol says, and write what it has to say."""
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
                    self._closed(link, event)
        link.stream.write(link.connection.outgoing())
        if link.connection.phase is Phase.CLOSED:
            link.stream.close()
        elif not link.has_alarm:
            link.has_alarm = True
            self.later(max(0.0, link.connection.wake_at - self.now), lambda: self._ring(link))

    def _ring(self, link: SimulatedLink) -> None:
        link.has_alarm = False
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
            why = BrokerError(28035, UNPROVED_INSTANCE)
            self.handle(link, [link.connection.close(why.number, why.text, self.now)])
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
        """The addresses of mirrored pairs at which this peer answers."""
        return [address for address, one in self._peers.items() if one == link.peer and address in self._questions]

    def _closed(self, link: SimulatedLink, event: Closed) -> None:
        if link not in self._open:
            return
        self._open.remove(link)
        self._arbiter.gone(link)
        peer = link.peer
        lost: list[Address] = []
        if peer is not None and self._arbiter.find(peer) is None:
            lost = self._halves(link)
            self._peers = {address: one for address, one in self._peers.items() if one != peer}
        if link.was_online:
            for address in lost if event.number else ():
                self._failed(address, event.text)
            self._tell(Lost(link, event.text if event.number else ""))
        elif link.address is not None:
            self._failed(link.address, event.text)

    def _failed(self, address: Address, status: str) -> None:
        self._connecting.discard(address)
        pause = min(self._attempts.get(address, Attempt()).pause * 2, LAST_PAUSE) or FIRST_PAUSE
        self._attempts[address] = Attempt(self.now + pause, pause, status)
        self._tell(Unreached(address, status))
        self.later(pause, lambda: self._try_again(address))

    def _try_again(self, address: Address) -> None:
        """Connect again if the address was asked for lately; otherwise forget its attempts."""
        if self._asked.get(address, -RETRY_PERIOD_S) + RETRY_PERIOD_S > self.now:
            self._connect(address)
        else:
            self._attempts.pop(address, None)


def address_of(index: int) -> Address:
    """Return the address at which the instance of that number listens."""
    return Address(f"sim{index}", 4022)


def index_of(address: Address) -> int:
    """The number of the instance that listens there."""
    return int(address.host.removeprefix("sim"))
