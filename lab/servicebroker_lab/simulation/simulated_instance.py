"""One instance of a run: its tables, and the daemons that serve it. The relay in them is the one that ships."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from servicebroker.broker import journal
from servicebroker.broker.conversations import MAX_CONVERSATIONS
from servicebroker.broker.departures import BODY_BUDGET_BYTES
from servicebroker.broker.inboxes import Answered, Reached, share_for
from servicebroker.broker.inboxes import Lost as LinkLost
from servicebroker.broker.peers import Peers
from servicebroker.broker.policy import Policy, trusted
from servicebroker.broker.recognition import Recognition
from servicebroker.broker.relay import Relay
from servicebroker.broker.transport.links import Arrival
from servicebroker.broker.transport.tls import Tls
from servicebroker.engine.catalog.network_endpoints import REQUIRED
from servicebroker.engine.remote.departing import Settled
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.errors import InstanceError
from servicebroker.model.security.dialog_security import Binding
from servicebroker.model.security.peers import Answer, Proved
from servicebroker.protocol.adjacent import Arrived, Myself
from servicebroker.protocol.dialog import Acknowledged
from servicebroker.protocol.division import WHOLE, Division
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.mirroring import Role, Standing
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address
from servicebroker_lab.simulation.hoarding_forwarder import HoardingForwarder
from servicebroker_lab.simulation.links import Links, NetworkEvent, SimulatedLink, address_of
from servicebroker_lab.simulation.simulated_keys import FIRST_USER, KEYS, identity, master_key
from servicebroker_lab.simulation.simulated_network import OTHER_HALF_OFFSET, Network, Stream, flip
from servicebroker_lab.simulation.simulated_time import MIDNIGHT, Loop
from servicebroker_lab.simulation.store import Endpoint, Key, Lost, MemoryStore, Tables

ROUND_DELAY_S = 0.005  # seconds until a round begins that something asks for
MAX_HASTY_ROUNDS = 100  # rounds: in 1,500 runs there are at most 13 in a row
RECONNECT_DELAY_S = 1.0  # seconds until the database is there again


class Killed(Exception):
    """The daemon is gone, between two steps of a round."""


class ProvedByNetwork(Tls):
    """Streams say what is shown at their other end: handshakes would take longer than runs."""

    def __init__(self, imported: list[TransportCertificate]) -> None:
        self.recognition = Recognition(imported)


class World(NamedTuple):
    """The values that the instances of a run share."""

    loop: Loop
    network: Network
    limits: Limits
    instances: list[Instance]
    parted: set[UUID]  # conversations of an instance that has gone back to an old copy
    proves: bool  # connections prove who is at their ends
    forwarder: list[HoardingForwarder]  # one, or none

    def find(self, key: Key, broker: UUID) -> Endpoint | None:
        """The endpoint of that side of a conversation, in that broker."""
        for one in self.instances:
            if one.tables.broker == broker:
                return one.tables.find(key)
        return None


class FaultyStore(MemoryStore):
    """Between any two of its operations anything may happen, see `Instance.seam`; and it looks at what is removed."""

    def __init__(self, instance: Instance, daemon: Daemon, division: Division) -> None:
        super().__init__(instance.tables, instance.clock, division)
        self._instance = instance
        self._daemon = daemon

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """The commit may fail, or it succeeds and nobody is told."""
        with super().transaction():
            yield
            self._seam("commit")
        self._seam("committed")

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in ("transaction", "locks", "division", "unfinished"):  # that one only counts
            return found

        def operation(*values: Any, **named: Any) -> Any:
            self._seam(name)
            result = found(*values, **named)
            self._seam(name)
            return result

        return operation

    def _seam(self, name: str) -> None:
        self._instance.seam(self._daemon, self, name)

    def acknowledge(self, news: Mapping[UUID, Acknowledged]) -> Settled:
        """Check that everything removed as acknowledged has arrived."""
        for handle, event in news.items():
            if (one := self._tables.endpoints.get(handle)) is not None:
                self._instance.check(one, event)
        return super().acknowledge(news)


class Share:
    """One relay of a daemon, what has come for it, and when its next round is."""

    def __init__(self, relay: Relay, store: FaultyStore) -> None:
        self.relay = relay
        self.store = store
        self.inbox: list[Arrival | NetworkEvent] = []
        self.round_at = NEVER
        self.is_running = False
        self.hasty = 0  # rounds in a row before which nothing had come, and after which another one was due at once


class Daemon:
    """One process that serves the instance: what `broker/daemon.py` does around relays, without threads.

    Between two operations of one relay's round there may be a round of another one.
    """

    def __init__(self, instance: Instance, capacity: int) -> None:
        self._instance = instance
        self._capacity = capacity
        self._is_narrow = capacity != MAX_CONVERSATIONS or instance.world.network.faults.narrow > 0
        self._loop = instance.world.loop
        world, random = instance.world, instance.world.loop.random
        seat = UUID(int=instance.tables.broker.int ^ random.getrandbits(32))
        me = Myself(seat, UUID(int=random.getrandbits(128)), instance=instance.identifier)
        shown, policy = identity(instance.index).own.facts.der, instance.policy()
        self.links = Links(
            world.network, me, instance.index, shown, policy, instance.standing(), self._tell, self._bring, self.poke
        )
        self._chance = Random(random.getrandbits(64))
        self.shares: list[Share] = []
        self._away_until = 0.0  # without a database
        self._problem: Exception | None = None  # that has ended the round of a share
        self.is_over = False
        self.has_lease = True
        self.divide(1)

    def _share(self, number: int) -> Share:
        instance = self._instance
        relay = Relay(
            self.links,
            instance.clock,
            lambda: self._loop.now,
            Random(self._chance.getrandbits(64)) if number else self._chance,
            lambda: LocalInstance(instance.addresses, True, self.links.unreachable, 1),
            self._capacity,
            KEYS,
            self.links.peers,
            instance.world.limits,
            instance.world.limits.window if self._is_narrow else BODY_BUDGET_BYTES,
        )
        return Share(relay, FaultyStore(instance, self, WHOLE))

    def divide(self, count: int) -> None:
        """Conversations are divided anew, between rounds."""
        brought = [one for share in self.shares for one in share.inbox if isinstance(one, Arrival)]
        for share in self.shares[count:]:
            share.round_at = NEVER
        self.shares = self.shares[:count] + [self._share(number) for number in range(len(self.shares), count)]
        for number, share in enumerate(self.shares):
            share.inbox = [one for one in share.inbox if not isinstance(one, Arrival)]
            share.store.division = Division(number, count)
            share.relay.forget(count)
        for arrival in brought:
            self.shares[share_for(arrival, count)].inbox.append(arrival)
        self.poke()

    def poke(self) -> None:
        """Something has happened: rounds are due."""
        for share in self.shares:
            self._plan(share, self._loop.now + ROUND_DELAY_S)

    def _plan(self, share: Share, at: float) -> None:
        at = max(at, self._away_until)
        if at < share.round_at and at != NEVER:
            share.round_at = at
            self._loop.at(at, lambda: self._round(share) if share.round_at == at else None)

    def kill(self) -> None:
        """All that is in memory goes."""
        self.is_over = True
        for share in self.shares:
            share.round_at = NEVER
        self.links.crash()

    def _tell(self, happening: NetworkEvent) -> None:
        self._instance.trace(*happening)
        for share in self.shares:
            share.inbox.append(happening)
        self.poke()

    def _bring(self, link: SimulatedLink, came: Arrived) -> None:
        """A message has come over the last hop; those before it may have lost, doubled, delayed or changed it."""
        network, random = self._instance.world.network, self._loop.random
        faults, happens = network.faults, self._loop.happens

        def arrive(body: bytes = came.body) -> None:
            self.take(link, body, is_forwarded=came.is_forwarded)

        for forwarder in self._instance.world.forwarder:
            forwarder.keep(self._instance, link, came)
        if happens(faults.loss):
            return
        if happens(faults.replay):
            self._loop.after(random.choice((0.1, 5.0, 120.0)) * random.random(), arrive)
        body = came.body
        if happens(faults.tampering):
            body = flip(body, self._loop.below(8 * len(body)))
        if happens(faults.reorder):
            self._loop.after(random.choice((0.1, 5.0)) * random.random(), lambda: arrive(body))
        else:
            arrive(body)

    def take(self, link: SimulatedLink, body: bytes, *, is_forwarded: bool) -> None:
        """A message is there, for the next round of its share."""
        if not self.is_over:
            arrival = Arrival(link, body, is_forwarded)
            share = self.shares[share_for(arrival, len(self.shares))]
            share.inbox.append(arrival)
            self._plan(share, self._loop.now + ROUND_DELAY_S)

    def interleave(self) -> None:
        """A round of another share, in the midst of one."""
        soon = self._loop.now + ROUND_DELAY_S
        due = [share for share in self.shares if not share.is_running and share.round_at <= soon]
        if due:
            self._run(self._loop.random.choice(due))

    def _round(self, share: Share) -> None:
        try:
            self._run(share)
        except Killed:
            self._instance.crash(self)
            return
        if self._problem is not None:
            self._begin_anew(self._problem)

    def _run(self, share: Share) -> None:
        share.round_at = NEVER
        if self.is_over:
            return
        relay, share.is_running = share.relay, True
        happened = [one for one in share.inbox if not isinstance(one, Arrival)]
        arrivals = [one for one in share.inbox if isinstance(one, Arrival)]
        share.inbox = []
        for one in happened:
            if isinstance(one, LinkLost):
                relay.lost(one.link, one.status)
            elif isinstance(one, Answered):
                relay.on_peer_role(*one)
            elif isinstance(one, Reached):
                relay.reached(one.address)
            else:
                relay.unreached(one.address, one.status)
        try:
            relay.round(share.store, arrivals)
        except (psycopg.Error, InstanceError) as problem:
            self._problem = problem
            return
        finally:
            share.is_running = False
        self._instance.remember(self.links.peers)
        share.hasty = share.hasty + 1 if relay.wake_at <= self._loop.now and not (arrivals or happened) else 0
        if share.hasty > MAX_HASTY_ROUNDS:
            raise Lost(f"{self._instance}: {share.hasty} rounds in a row, and nothing has come between them")
        if relay.wake_at != NEVER:
            self._plan(share, max(relay.wake_at, self._loop.now + ROUND_DELAY_S))

    def _begin_anew(self, problem: Exception) -> None:
        """Let all shares begin anew after a failure in the round of one."""
        self._instance.trace("loses its database:", problem)
        self._problem = None
        for share in self.shares:
            share.relay.forget(len(self.shares))
            share.inbox = [one for one in share.inbox if not isinstance(one, LinkLost)]
        self._away_until = self._loop.now + RECONNECT_DELAY_S
        self.poke()


class Instance:
    """Tables, and whoever serves them."""

    def __init__(self, world: World, index: int, broker: UUID) -> None:
        self.world = world
        self.index = index
        self.tables = Tables(broker, world.loop.random)
        self.tables.limits = world.limits
        self.tables.is_held = self._is_held
        self.tables.clock = self.clock
        self._grips: dict[UUID, float] = {}  # rows that an application has, and until when
        self.tables.master_key = master_key()
        self.tables.certificates.append(identity(index).own)
        self.transport: list[TransportCertificate] = []  # of the others
        self._answers: dict[Address, Answer] = {}  # the stored answers, by address
        self.daemons: list[Daemon] = []
        self._half = 0  # which of its two servers is the principal
        self._timeline = 1
        self.step = timedelta()  # of the server's clock
        self.skew = timedelta()  # by which it is ahead all the time
        self.corrupted = 0
        self._pending: list[tuple[UUID, Callable[[], None]]] = []  # changes that applications are about to commit

    def __repr__(self) -> str:
        return f"instance {self.index}"

    def grip(self) -> None:
        """Applications lock the rows of some conversations on which messages wait, and take their time."""
        for one in self.tables.endpoints.values():
            if one.rows and self.world.loop.happens(0.5):
                self._grips[one.handle] = self.world.loop.now + 15 * self.world.loop.random.random()

    def _is_held(self, handle: UUID) -> bool:
        if self._grips.get(handle, 0.0) > self.world.loop.now:
            return True
        return self.world.loop.happens(self.world.network.faults.held)

    def meet(self, other: Instance, service: str, binding: Binding) -> None:
        """A service of another instance: its certificate is imported, and perhaps a binding is made for it."""
        self.tables.certificates.append(identity(other.index).abroad)
        if binding is not Binding.NO_BINDING:
            self.tables.bindings[service] = binding, FIRST_USER + other.index

    @property
    def identifier(self) -> UUID:
        """Which instance it is, for its peers."""
        return UUID(int=self.tables.broker.int ^ 1)

    @property
    def service(self) -> str:
        """That of its applications."""
        return f"//sim/{self.index}"

    # ---------------------------------------------------------------- who its peers are

    def import_certificate(self, index: int, instance: UUID | None, *, may_connect: bool = True) -> None:
        """Of a peer: and which instance it names."""
        one = identity(index).abroad
        proved = Proved(f"certificate {one.name}", instance)
        self.transport.append(TransportCertificate(index, one.name, False, one.name, may_connect, one.facts, proved))

    def policy(self) -> Policy:
        """Return the policy that a daemon obeys."""
        if not self.world.proves:
            return Policy()
        tls = ProvedByNetwork(self.transport)
        return Policy(encryption=REQUIRED, tls=tls, **trusted(self.transport))._replace(answers=self._answers.copy())

    def remember(self, peers: Peers) -> None:
        """Keep answers of peers each second, and log mistrusted ones, as a daemon does."""
        self._answers |= peers.take_answers()
        for what, (times, detail) in peers.take_mistrusted().items():
            journal.mistrusted(what, times, detail)

    def expects(self, index: int) -> bool:
        """Return whether the instance knows which peer answers at that address."""
        return address_of(index) in self._answers

    def lets_in(self, index: int) -> bool:
        """Return whether the instance takes connections of a peer with that certificate."""
        return any(one.certificate_id == index and one.may_connect for one in self.transport)

    def knows(self, instance: UUID) -> bool:
        """Return whether the owner of that instance identifier is known; its own, too."""
        return instance == self.identifier or any(one.proved.instance == instance for one in self.transport)

    def clock(self) -> datetime:
        """The server's."""
        return MIDNIGHT + timedelta(seconds=self.world.loop.now) + self.step + self.skew

    def trace(self, *what: object) -> None:
        """Trace an event of this instance."""
        self.world.loop.trace(self, *what)

    # ---------------------------------------------------------------- daemons

    def is_up_at(self, number: int) -> bool:
        """Return whether a daemon listens under that number."""
        return bool(self.daemons) and number == self.index + self._half

    @property
    def addresses(self) -> frozenset[Address]:
        """Return the addresses by which routes mean this instance: those of either server."""
        return frozenset({address_of(self.index), address_of(self.index + OTHER_HALF_OFFSET)})

    def standing(self) -> Standing:
        """Return the standing that a daemon reports of its server."""
        return Standing(Role.PRINCIPAL, f"cluster {self.index}", self._timeline, is_guarded=True)

    def promote(self) -> None:
        """The server is gone, and its synchronous standby, which has all that it had, takes over at another address."""
        for daemon in list(self.daemons):
            self.crash(daemon)
        self.trace("is promoted")
        self._half, self._timeline = OTHER_HALF_OFFSET - self._half, self._timeline + 1

    def accept(self, stream: Stream) -> None:
        """The network brings a new stream, to who began to listen last."""
        self.daemons[-1].links.accept(stream)

    def start(self) -> None:
        """A daemon begins to serve."""
        self.daemons.append(Daemon(self, self.world.loop.random.choice((3, MAX_CONVERSATIONS))))
        if self.world.loop.happens(self.world.network.faults.divided):
            self.divide()

    def divide(self) -> None:
        """Load has changed, and so has the number of shares."""
        count = self.world.loop.random.choice((1, 2, 3))
        self.trace("has", count, "shares")
        self.daemons[-1].divide(count)

    def usurp(self) -> None:
        """Another one begins to: this one has lost its session, and the lease with that, and learns of it later."""
        if self.daemons:
            self.trace("is served twice")
            self.daemons[-1].has_lease = False
            self.start()

    def crash(self, daemon: Daemon) -> None:
        """A daemon is gone; if nobody else serves, one comes back later."""
        if daemon in self.daemons:
            self.trace("crash")
            self.daemons.remove(daemon)
            daemon.kill()
            self.corrupted += daemon.links.corrupted
            if not self.daemons:
                self.world.loop.after(0.1 + self.world.loop.random.random() * 10, self._restart)

    def _restart(self) -> None:
        if not self.daemons:
            self.start()

    def go_back(self, endpoints: dict[UUID, Endpoint]) -> None:
        """An old copy is restored: its tables are what they were then."""
        self.trace("goes back to an old copy")
        for daemon in list(self.daemons):
            self.crash(daemon)
        self.tables.endpoints = endpoints
        self.tables.unfinished.clear()
        self._pending.clear()

    def poke(self) -> None:
        """A SEND has notified whoever serves."""
        for daemon in self.daemons:
            daemon.poke()

    # ---------------------------------------------------------------- between the operations of a round

    def commit(self, handle: UUID, action: Callable[[], None]) -> None:
        """An application commits something of a conversation: now, or between two steps of the next round."""
        if self.world.loop.happens(self.world.network.faults.between):
            self._pending.append((handle, action))
            self.world.loop.after(0.1, lambda: self._commit(lambda _: True))
            self.poke()
        else:
            action()

    def _commit(self, may: Callable[[UUID], bool]) -> None:
        ready = [(handle, action) for handle, action in self._pending if may(handle)]
        self._pending = [one for one in self._pending if one not in ready]
        for _, action in ready:
            action()

    def seam(self, daemon: Daemon, store: MemoryStore, name: str) -> None:
        """Before and after an operation of a daemon's round."""
        loop, faults = self.world.loop, self.world.network.faults
        if not daemon.has_lease or loop.happens(faults.killed):
            self.trace("is killed at", name)
            raise Killed
        if loop.happens(faults.lost):
            raise psycopg.OperationalError(f"at {name}")
        if len(daemon.shares) > 1 and loop.happens(0.1):
            daemon.interleave()
        if self._pending and loop.happens(0.3):
            self._commit(lambda handle: not store.locks(handle))

    def check(self, one: Endpoint, event: Acknowledged) -> None:
        """Check that everything removed as acknowledged is stored.

        Raises:
            Lost: it is not.
        """
        peer = self.world.find((one.conversation, not one.is_initiator), event.far_broker)
        if peer is None or one.conversation in self.world.parted:
            return
        lost = [number for number in one.rows if peer.next <= number < event.below]
        if lost:
            raise Lost(f"{one.key}: messages {lost} are acknowledged, stored are those below {peer.next}")

    # ---------------------------------------------------------------- what must hold at the end

    def leaks(self) -> list[str]:
        """Return the remains in an instance that has nothing to do."""
        found = []
        is_held = any(is_waiting(one) for there in self.world.instances for one in there.tables.endpoints.values())
        for one in self.tables.endpoints.values():
            if one.conversation in self.world.parted and (is_waiting(one) or one.is_over):
                continue
            if one.kept:
                found.append(f"{one.key} still keeps {sorted(one.kept)}")
            if one.rows:
                found.append(f"{one.key} in {one.state} still has to send {sorted(one.rows)}")
        for daemon in self.daemons if not is_held else ():
            for share in daemon.shares:
                if share.relay.wake_at != NEVER:
                    found.append(f"the relay wants to go on at {share.relay.wake_at}")
            if len(daemon.links):
                found.append(f"{len(daemon.links)} connections are open")
        return found


def is_waiting(one: Endpoint) -> bool:
    """Return whether messages of the endpoint wait with a known reason."""
    return bool(one.rows) and all(row.status for row in one.rows.values())
