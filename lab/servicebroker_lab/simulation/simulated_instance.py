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
from servicebroker.broker.inboxes import Answered, Reached
from servicebroker.broker.inboxes import Lost as LinkLost
from servicebroker.broker.peers import Peers
from servicebroker.broker.policy import Policy, trusted
from servicebroker.broker.recognition import Recognition
from servicebroker.broker.relay import Relay
from servicebroker.broker.self_report import SelfReport
from servicebroker.broker.transport.links import Arrival, Link
from servicebroker.broker.transport.links import Links as AnyLinks
from servicebroker.broker.transport.tls import Tls
from servicebroker.engine.catalog.network_endpoints import REQUIRED
from servicebroker.engine.remote.departing import Settled
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.daemon_reports import Subject
from servicebroker.model.errors import InstanceError
from servicebroker.model.security.dialog_security import Binding
from servicebroker.model.security.peers import Answer, Proved
from servicebroker.protocol.adjacent import Arrived, LocalIdentity
from servicebroker.protocol.dialog import Acknowledged
from servicebroker.protocol.division import Division
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.mirroring import Role, RoleReport
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address
from servicebroker_lab.simulation.contenders import Contender
from servicebroker_lab.simulation.database_outages import RECONNECT_DELAY_S, DatabaseOutages
from servicebroker_lab.simulation.faults import budgets_of
from servicebroker_lab.simulation.hoarding_forwarder import HoardingForwarder
from servicebroker_lab.simulation.links import Links, NetworkEvent, address_of
from servicebroker_lab.simulation.simulated_keys import FIRST_USER, KEYS, identity, master_key
from servicebroker_lab.simulation.simulated_network import OTHER_HALF_OFFSET, Network, Stream, flip
from servicebroker_lab.simulation.simulated_sockets import ShippedNetwork
from servicebroker_lab.simulation.simulated_time import MIDNIGHT, Loop
from servicebroker_lab.simulation.store import Endpoint, Key, Lost, MemoryStore, Tables

ROUND_DELAY_S = 0.005  # seconds until a round begins that something asks for
MAX_HASTY_ROUNDS = 100  # rounds: in 1,500 runs there are at most 13 in a row


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
    keepers: list[HoardingForwarder | DatabaseOutages]  # they bring messages again that came before
    serve: Callable[[Instance, int], Daemon]  # makes a daemon that remembers so many conversations
    in_processes: bool  # shares have processes of their own
    contends: bool  # several processes want to serve an instance

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


class Daemon:
    """One process that serves the instance with one relay: what `broker/daemon.py` does around it, without threads.

    `simulated_shares.py` has the one that divides conversations among several.
    """

    def __init__(self, instance: Instance, capacity: int) -> None:
        self.instance = instance
        self.loop = instance.world.loop
        self._capacity = capacity
        self._is_narrow = capacity != MAX_CONVERSATIONS or instance.world.network.faults.narrow > 0
        random = instance.world.loop.random
        daemon_id = UUID(int=instance.tables.broker.int ^ random.getrandbits(32))
        me = LocalIdentity(daemon_id, UUID(int=random.getrandbits(128)), instance=instance.identifier)
        self.links = self.make_links(me)
        self.chance = Random(random.getrandbits(64))
        self.is_over = False
        self.has_lease = True
        self.begin()

    def make_links(self, me: LocalIdentity) -> Links | ShippedNetwork:
        """The connections of this daemon."""
        instance = self.instance
        shown, policy = identity(instance.index).own.facts.der, instance.policy()
        network, role_report = instance.world.network, instance.role_report()
        return Links(network, me, instance.index, shown, policy, role_report, self.tell, self.bring, self.poke)

    def make_relay(
        self,
        links: AnyLinks,
        clock: Callable[[], datetime],
        chance: Random,
        here: Callable[[], LocalInstance],
        peers: Peers,
    ) -> Relay:
        """A relay with the limits of the run."""
        limits = self.instance.world.limits
        budget = limits.window if self._is_narrow else BODY_BUDGET_BYTES
        seconds = lambda: self.loop.now  # noqa: E731
        budgets = budgets_of(limits)
        return Relay(links, clock, seconds, chance, here, self._capacity, KEYS, peers, limits, budget, budgets)

    def here(self) -> LocalInstance:
        """Return the identity of this instance in routes."""
        return LocalInstance(self.instance.addresses, True, self.links.unreachable, 1)

    def begin(self) -> None:
        """Begin to serve."""
        self._relay = self.make_relay(self.links, self.instance.clock, self.chance, self.here, self.links.peers)
        self._store = FaultyStore(self.instance, self, Division())
        self._inbox: list[Arrival | NetworkEvent] = []
        self._round_at = NEVER
        self._hasty = 0  # rounds in a row before which nothing had come, and after which another one was due at once
        self._away_until = 0.0  # without a database
        self._relay.forget()
        self.poke()

    @property
    def wake_ats(self) -> list[float]:
        """When each of its relays has something to do."""
        return [self._relay.wake_at]

    def poke(self) -> None:
        """Something has happened: a round is due."""
        self._plan(self.loop.now + ROUND_DELAY_S)

    def _plan(self, at: float) -> None:
        at = max(at, self._away_until)
        if at < self._round_at and at != NEVER:
            self._round_at = at
            self.loop.at(at, lambda: self._round() if self._round_at == at else None)

    def notify(self) -> None:
        """Applications have committed a SEND."""
        self.poke()

    def kill(self) -> None:
        """All that is in memory goes."""
        self.is_over = True
        self._round_at = NEVER
        self.links.crash()

    def tell(self, happening: NetworkEvent) -> None:
        """Something has happened to a link."""
        self.instance.trace(*happening)
        self._inbox.append(happening)
        self.poke()

    def bring(self, link: Link, came: Arrived) -> None:
        """A message has come over the last hop; those before it may have lost, doubled, delayed or changed it."""
        network, random = self.instance.world.network, self.loop.random
        faults, happens = network.faults, self.loop.happens

        def arrive(body: bytes = came.body) -> None:
            self.take(link, body, is_forwarded=came.is_forwarded)

        for keeper in self.instance.world.keepers:
            keeper.keep(self.instance, link, came)
        if happens(faults.loss):
            return
        if happens(faults.replay):
            self.loop.after(random.choice((0.1, 5.0, 120.0)) * random.random(), arrive)
        body = came.body
        if happens(faults.tampering):
            body = flip(body, self.loop.below(8 * len(body)))
        if happens(faults.reorder):
            self.loop.after(random.choice((0.1, 5.0)) * random.random(), lambda: arrive(body))
        else:
            arrive(body)

    def take(self, link: Link, body: bytes, *, is_forwarded: bool) -> None:
        """A message is there, for the next round."""
        if not self.is_over:
            self._inbox.append(Arrival(link, body, is_forwarded))
            self.poke()

    def seam(self, store: FaultyStore, name: str) -> None:
        """Between two operations of a round the daemon's host may fail, or the lease may be another one's."""
        if not self.has_lease or self.loop.happens(self.instance.world.network.faults.killed):
            self.instance.trace("is killed at", name)
            raise Killed

    def interleave(self) -> None:
        """Do nothing: one relay has one round at a time."""

    def want(self, count: int | None) -> None:
        """Do nothing: it has one relay."""

    def retire(self) -> None:
        """End at once: what the relay has not sent yet, its successor finds in the database."""
        self.instance.crash(self)

    def stop_endpoint(self) -> None:
        """Do nothing: its connections are those of any policy."""

    def _round(self) -> None:
        try:
            self._run()
        except Killed:
            self.instance.crash(self)
        except (psycopg.Error, InstanceError) as problem:
            self._begin_anew(problem)

    def _run(self) -> None:
        self._round_at = NEVER
        if self.is_over:
            return
        relay = self._relay
        happened = [one for one in self._inbox if not isinstance(one, Arrival)]
        arrivals = [one for one in self._inbox if isinstance(one, Arrival)]
        self._inbox = []
        for one in happened:
            if isinstance(one, LinkLost):
                relay.lost(one.link, one.status)
            elif isinstance(one, Answered):
                relay.on_peer_role(*one)
            elif isinstance(one, Reached):
                relay.reached(one.address)
            else:
                relay.unreached(one.address, one.status)
        relay.round(self._store, arrivals)
        self.instance.remember(self.links.peers)
        is_hasty = relay.wake_at <= self.loop.now and not (arrivals or happened)
        self._hasty = checked_haste(self.instance, self._hasty + 1 if is_hasty else 0)
        if relay.wake_at != NEVER:
            self._plan(max(relay.wake_at, self.loop.now + ROUND_DELAY_S))

    def _begin_anew(self, problem: Exception) -> None:
        """Begin anew from what the database holds, when that is there again."""
        self.instance.trace("loses its database:", problem)
        self._relay.forget()
        self._inbox = [one for one in self._inbox if not isinstance(one, LinkLost)]
        self._away_until = self.loop.now + RECONNECT_DELAY_S
        self.poke()


def checked_haste(instance: Instance, rounds: int) -> int:
    """Return the number of rounds in a row between which nothing has come.

    Raises:
        Lost: they are too many.
    """
    if rounds > MAX_HASTY_ROUNDS:
        raise Lost(f"{instance}: {rounds} rounds in a row, and nothing has come between them")
    return rounds


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
        self.contenders: list[Contender] = []
        self.reports = SelfReport(self.clock)  # of its daemons, for doctor
        self.half = 0  # which of its two servers is the principal
        self._timeline = 1
        self.step = timedelta()  # of the server's clock
        self.skew = timedelta()  # by which it is ahead all the time
        self.away_until = 0.0  # daemons cannot reach the database
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
        self.tables.certificates.append(identity(other.index).remote)
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
        one = identity(index).remote
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
        return bool(self.daemons) and number == self.index + self.half

    @property
    def addresses(self) -> frozenset[Address]:
        """Return the addresses by which routes mean this instance: those of either server."""
        return frozenset({address_of(self.index), address_of(self.index + OTHER_HALF_OFFSET)})

    def role_report(self) -> RoleReport:
        """Return the standing that a daemon reports of its server."""
        return RoleReport(Role.PRINCIPAL, f"cluster {self.index}", self._timeline, is_synchronous=True)

    def promote(self) -> None:
        """The server is gone, and its synchronous standby, which has all that it had, takes over at another address."""
        for daemon in list(self.daemons):
            self.crash(daemon)
        self.trace("is promoted")
        for one in self.contenders:
            if one.half == self.half:
                one.lose()
        self.half, self._timeline = OTHER_HALF_OFFSET - self.half, self._timeline + 1
        if self.world.contends and not any(one.half == self.half for one in self.contenders):
            self._contend(self.half)

    def accept(self, stream: Stream) -> None:
        """The network brings a new stream, to who began to listen last."""
        self.daemons[-1].links.accept(stream)

    def start(self) -> None:
        """A daemon begins to serve, or is among those that want to."""
        if not self.world.contends:
            self._serve()
            return
        self._contend(self.half)
        if len(self.contenders) < 2:
            self._contend(self.world.loop.random.choice((self.half, OTHER_HALF_OFFSET - self.half)))

    def _contend(self, half: int) -> None:
        self.contenders.append(one := Contender(self, half, self._serve))
        one.connect()

    @property
    def lease_is_held(self) -> bool:
        """Return whether the session of a process has the lease."""
        return any(one.has_lease for one in self.daemons) or any(one.has_lease for one in self.contenders)

    def _serve(self) -> None:
        self.daemons.append(self.world.serve(self, self.world.loop.random.choice((3, MAX_CONVERSATIONS))))
        if self.world.loop.happens(self.world.network.faults.divided):
            self.divide()

    def divide(self) -> None:
        """The number of wanted shares, or one that changes with load."""
        count = self.world.loop.random.choice((1, 2, 3, None))
        self.trace("is to have", count or "any number of", "shares")
        self.daemons[-1].want(count)

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
            if not self.daemons or self.world.contends:
                self.world.loop.after(0.1 + self.world.loop.random.random() * 10, self._restart)

    def _restart(self) -> None:
        if not self.daemons or (self.world.contends and len(self.contenders) < 2):
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
            daemon.notify()

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

    def seam(self, daemon: Daemon, store: FaultyStore, name: str) -> None:
        """Before and after an operation of a daemon's round."""
        loop, faults = self.world.loop, self.world.network.faults
        daemon.seam(store, name)
        if self.away_until > loop.now or loop.happens(faults.lost):
            raise psycopg.OperationalError(f"at {name}")
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
        found = [f"doctor still says that {subject}" for subject in Subject if self.reports.has(subject)]
        is_held = any(is_waiting(one) for there in self.world.instances for one in there.tables.endpoints.values())
        for one in self.tables.endpoints.values():
            if one.conversation in self.world.parted and (is_waiting(one) or one.is_over):
                continue
            if one.kept:
                found.append(f"{one.key} still keeps {sorted(one.kept)}")
            if one.rows:
                found.append(f"{one.key} in {one.state} still has to send {sorted(one.rows)}")
        for daemon in self.daemons if not is_held else ():
            found += [f"the relay wants to go on at {one}" for one in daemon.wake_ats if one != NEVER]
            if len(daemon.links):
                found.append(f"{len(daemon.links)} connections are open")
        return found


def is_waiting(one: Endpoint) -> bool:
    """Return whether messages of the endpoint wait with a known reason."""
    return bool(one.rows) and all(row.status for row in one.rows.values())
