"""The connections of an instance in one of its lives: opened and greeted, one for each peer; a crash takes them all."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from servicebroker.model.errors import RULES, BrokerError
from servicebroker.model.peers import NOBODY, Peer
from servicebroker.protocol import adjacent
from servicebroker.protocol.adjacent import Arrived, Closed, Connection, Corrupted, Greeted, Myself, Online
from servicebroker.protocol.arbitration import Arbiter
from servicebroker.simulation.simulated_network import Stream

if TYPE_CHECKING:
    from servicebroker.simulation.broker import SimulatedBroker


class Link:
    """A connection and its stream."""

    def __init__(self, connection: Connection, stream: Stream, moment: int) -> None:
        self.connection = connection
        self.stream = stream
        self.moment = moment
        self.peer: UUID | None = None
        self.has_alarm = False


class Links:
    """What a broker is connected to. It is told when a peer can be reached, when no more, and what came from it."""

    def __init__(self, broker: SimulatedBroker, me: Myself) -> None:
        self._broker = broker
        self._me = me
        self._arbiter: Arbiter[Link] = Arbiter(me.seat)
        self._open: list[Link] = []
        self._connecting: set[UUID] = set()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._open)

    def crash(self) -> None:
        """The streams end, and nobody is told anything more."""
        self._is_over = True
        for link in self._open:
            link.stream.close()

    def find(self, peer: UUID) -> Link | None:
        """The connection with a peer."""
        return self._arbiter.find(Peer(NOBODY, peer))

    def accept(self, stream: Stream) -> None:
        """A peer has connected."""
        self._begin(stream, is_opener=False)

    def connect(self, peer: UUID) -> None:
        """Try to reach a peer, unless that is being tried."""
        if peer in self._connecting:
            return
        self._connecting.add(peer)

        def done(stream: Stream | None) -> None:
            if self._is_over:
                if stream is not None:
                    stream.close()
            elif stream is None:
                self._connecting.discard(peer)
                self._broker.link_down(peer)
            else:
                self._begin(stream, is_opener=True, peer=peer)

        world = self._broker.world
        world.network.connect(self._broker.index, world.brokers[peer].index, done)

    def flush(self, link: Link) -> None:
        """Write what the connection has to say."""
        self._handle(link, [])

    def _begin(self, stream: Stream, *, is_opener: bool, peer: UUID | None = None) -> None:
        broker = self._broker
        connection = Connection(self._me, is_opener=is_opener, now=broker.now)
        link = Link(connection, stream, self._arbiter.moment() if is_opener else 0)
        link.peer = peer
        self._open.append(link)
        stream.on_bytes = lambda data: self._handle(link, connection.receive(data, broker.now))
        stream.on_end = lambda: self._handle(link, connection.end_of_stream())
        connection.begin(link.moment, broker.now)
        self.flush(link)

    def _handle(self, link: Link, events: list[adjacent.Event]) -> None:
        for event in events:
            match event:
                case Greeted(hello):
                    self._greet(link, hello)
                case Online():
                    self._online(link, event)
                case Arrived():
                    self._broker.carried(event)
                case Corrupted():
                    self._broker.corrupted += 1
                case Closed():
                    self._closed(link, event)
        link.stream.write(link.connection.outgoing())
        if link.connection.phase is adjacent.Phase.CLOSED:
            link.stream.close()
        elif not link.has_alarm:
            link.has_alarm = True
            self._broker.at(link.connection.wake_at, lambda: self._ring(link))

    def _ring(self, link: Link) -> None:
        link.has_alarm = False
        self._handle(link, link.connection.tick(self._broker.now))

    def _greet(self, link: Link, hello: adjacent.Hello) -> None:
        now = self._broker.now
        number = self._arbiter.greeted(hello)
        if number:
            self._handle(link, [link.connection.reject(BrokerError(number), now)])
            return
        link.moment = self._arbiter.moment()
        self._handle(link, [link.connection.welcome(link.moment, now)])
        self._handle(link, link.connection.resume(now))

    def _online(self, link: Link, event: Online) -> None:
        broker = self._broker
        link.peer = event.seat
        self._connecting.discard(event.seat)
        loser = self._arbiter.online(link, event, is_opener=link.connection.is_opener, moment=link.moment)
        if loser is not None:
            broker.trace("arbitration with", broker.world.brokers[event.seat])
            self._handle(loser, [loser.connection.close(28033, RULES[28033].text, broker.now)])
        if loser is not link:
            broker.trace("online with", broker.world.brokers[event.seat])
            broker.link_up(event.seat)

    def _closed(self, link: Link, event: Closed) -> None:
        self._broker.trace(*event)
        if link in self._open:
            self._open.remove(link)
        self._arbiter.gone(link)
        if link.peer is not None:
            if link.connection.is_opener:
                self._connecting.discard(link.peer)
            if self._arbiter.find(Peer(NOBODY, link.peer)) is None:
                self._broker.link_down(link.peer)
