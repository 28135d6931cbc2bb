"""A hostile peer with a certificate: it tries to read, acknowledge and end conversations of other instances.

It knows conversations, numbers, names and addresses, but no keys. It uses the protocol, claims to be another instance,
accepts connections to instances that are down, and forges messages, also as a forwarder.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec.structs import replace

from servicebroker.model.messages import error_body
from servicebroker.overriding import override
from servicebroker.protocol.adjacent import Arrived, Connection, Event, Greeted, LocalIdentity, Online, QuestionReceived
from servicebroker.protocol.dialog import GONE
from servicebroker.protocol.envelope import (
    Acknowledgement,
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
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.mirroring import Role, RoleReport
from servicebroker_lab.simulation.simulated_keys import identity
from servicebroker_lab.simulation.simulated_network import HOSTILE_INDEX, Stream

if TYPE_CHECKING:
    from servicebroker_lab.simulation.simulated_instance import Instance, World
    from servicebroker_lab.simulation.store import Endpoint

FORGED = b"forged"
CONNECTION_LIFE_S = 3.0  # then it closes a connection
FRAMES_PER_CONNECTION = 5


class HostilePeer:
    """The hostile peer of a run. `findings` are descriptions of its successes, which must not happen."""

    shown = identity(HOSTILE_INDEX).own.facts.der

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self.findings: list[str] = []
        self.frames = 0

    @override
    def __repr__(self) -> str:
        return "the hostile peer"

    # ---------------------------------------------------------------- connections

    def act(self) -> None:
        """Connect to an instance, perhaps under the identity of another one."""
        victim, claimed = self._rng.sample(self._world.instances, 2)
        me = self._identity_of(claimed if self._rng.random() < 0.5 else None)
        self._world.network.connect(
            HOSTILE_INDEX, victim.index, lambda stream: self._begin(stream, victim, me), self.shown
        )

    def answers(self, own: int, other: int) -> bool:
        """Check whether this peer accepts a connection to an instance that is down. The opener must know its peer."""
        here = next((instance for instance in self._world.instances if instance.index == own), None)
        return here is not None and here.expects(other) and self._rng.random() < 0.5

    def accept(self, stream: Stream) -> None:
        """Accept a connection that was meant for another instance."""
        stream.shown = self.shown
        victim = next(instance for instance in self._world.instances if instance.index == stream.other)
        _Talk(self, victim, self._identity_of(self._rng.choice(self._world.instances)), stream, is_opener=False)

    def _begin(self, stream: Stream | None, victim: Instance, me: LocalIdentity) -> None:
        if stream is not None and stream.is_open:
            _Talk(self, victim, me, stream, is_opener=True)

    def _identity_of(self, claimed: Instance | None) -> LocalIdentity:
        draw = self._rng.getrandbits
        instance = UUID(int=HOSTILE_INDEX) if claimed is None else claimed.identifier
        return LocalIdentity(UUID(int=draw(128)), UUID(int=draw(128)), instance=instance)

    # ---------------------------------------------------------------- forged messages

    def forge(self, victim: Instance) -> tuple[bytes, bool]:
        """Return a forged message for the victim, and True if it is sent as a forwarded one."""
        self.frames += 1
        known = [endpoint for instance in self._world.instances for endpoint in instance.tables.endpoints.values()]
        header, payload = self._message_for(self._rng.choice(known)) if known else self._opening(victim)
        if self._rng.random() < 0.2:
            header, payload = self._opening(victim)
        body = encode(header, payload, CHECKSUM)
        if self._rng.random() < 0.5:
            return body, False
        return wrap(Passage(UUID(int=self._rng.getrandbits(128), version=4)), body), True

    def _message_for(self, one: Endpoint) -> tuple[Header, Payload]:
        """Return a message as if from the peer of an endpoint of any instance."""
        chance = self._rng
        whose = {there.service: there for there in self._world.instances}
        here, there = (whose.get(service) for service in (one.own_service, one.far_service))
        header = Header(
            one.conversation,
            not one.is_initiator,
            Kind.RUN,
            chance.random() < 0.5,
            one.own_service,
            None if here is None or chance.random() < 0.5 else here.tables.broker,
            one.far_service,
            UUID(int=HOSTILE_INDEX) if there is None else there.tables.broker,
            number=chance.choice((one.next, one.next, one.next + 1)),
        )
        token, what = chance.randbytes(8), chance.randrange(5)
        if what == 0:
            below = Acknowledgement(one.send_sequence, token=chance.choice((None, token)))
            return replace(header, kind=Kind.ACKNOWLEDGEMENT, number=0, acknowledgement=below), None
        if what == 1:
            return replace(header, kind=Kind.FAILURE, number=0), GONE
        part = {
            2: Part("//sim/type", Content.DATA, FORGED, token),
            3: Part("//sim/type", Content.END, None, token),
            4: Part("//sim/type", Content.ERROR, error_body(1, "forged"), token),
        }[what]
        return header, (part,)

    def _opening(self, victim: Instance) -> tuple[Header, Payload]:
        """Return the first message of a conversation as if from another instance."""
        other = self._rng.choice([instance for instance in self._world.instances if instance is not victim])
        header = Header(
            UUID(int=self._rng.getrandbits(128)),
            True,
            Kind.RUN,
            False,
            victim.service,
            None,
            other.service,
            other.tables.broker,
            opening=Opening("//sim/contract", 3600, False),
        )
        return header, (Part("//sim/type", Content.DATA, FORGED, bytes(8)),)

    # ---------------------------------------------------------------- findings

    def believed(self, victim: Instance, me: LocalIdentity) -> None:
        """Record a victim that has accepted this peer under its claimed identity."""
        if not victim.lets_in(HOSTILE_INDEX):
            self.findings.append(f"{victim} lets in the hostile peer")
        elif me.instance is not None and victim.knows(me.instance):
            self.findings.append(f"{victim} believes the hostile peer to be instance {me.instance}")

    def reads(self, victim: Instance, body: bytes) -> None:
        """Record a victim that has sent a message to this peer."""
        if parse(body).header.kind in (Kind.RUN, Kind.FRAGMENT):
            self.findings.append(f"{victim} sends messages to the hostile peer")

    def later(self, action: Callable[[], None]) -> None:
        """Call `action` at the end of a connection's life."""
        self._world.loop.after(CONNECTION_LIFE_S, action)

    @property
    def now(self) -> float:
        """The simulated time."""
        return self._world.loop.now


class _Talk:
    """A connection of the hostile peer."""

    def __init__(
        self, who: HostilePeer, victim: Instance, me: LocalIdentity, stream: Stream, *, is_opener: bool
    ) -> None:
        self._who, self._victim, self._me, self._stream = who, victim, me, stream
        self._connection = Connection(me, is_opener=is_opener, now=who.now)
        stream.on_bytes = lambda data: self._handle(self._connection.receive(data, who.now))
        stream.on_end = lambda: None
        self._connection.begin(1, who.now)
        self._handle([])
        who.later(stream.close)

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Greeted():
                    self._connection.welcome(1, self._who.now)
                    self._handle(self._connection.resume(self._who.now))
                case Online() if self._connection.is_opener:
                    self._who.believed(self._victim, self._me)
                    for _ in range(FRAMES_PER_CONNECTION):
                        body, is_forwarded = self._who.forge(self._victim)
                        self._connection.send(body, self._who.now, is_forwarded=is_forwarded)
                case QuestionReceived(known):
                    told = RoleReport(Role.PRINCIPAL, known.system, known.timeline + 1)
                    self._connection.send_role(told, self._who.now)
                case Arrived(body, False):
                    self._who.reads(self._victim, body)
        self._stream.write(self._connection.outgoing())
