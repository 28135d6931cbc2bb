"""A simulated instance: its tables, and the daemons that serve it, with the relay of the product."""

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
from servicebroker.broker.policy import Policy, find_trust
from servicebroker.broker.recognition import Recognition
from servicebroker.broker.relay import Relay
from servicebroker.broker.self_report import SelfReport
from servicebroker.broker.transport.links import Arrival, Link
from servicebroker.broker.transport.links import Links as AnyLinks
from servicebroker.broker.transport.tls import Tls
from servicebroker.engine.catalog.network_endpoints import REQUIRED
from servicebroker.engine.remote.departing import AcknowledgedEndpoints
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.daemon_reports import Subject
from servicebroker.model.errors import InstanceError
from servicebroker.model.security.dialog_security import Binding
from servicebroker.model.security.peers import Answer, Proved
from servicebroker.overriding import override
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
from servicebroker_lab.simulation.store import Endpoint, GuaranteeBroken, Key, MemoryStore, Tables

ROUND_DELAY_S = 0.005  # the delay from an event to the round (daemon transaction) that handles it
MAX_IDLE_ROUNDS = 100  # rounds in a row without an event: 1,500 runs had at most 13, so more are a busy loop


class DaemonKilled(Exception):
    """The daemon was killed between two operations of a round."""


class ProvedByNetwork(Tls):
    """TLS without handshakes, which would take longer than a run: a stream knows the certificate of its other end."""

    def __init__(self, imported: list[TransportCertificate]) -> None:
        self.recognition = Recognition(imported)


class World(NamedTuple):
    """The values that the instances of a run share."""

    loop: Loop
    network: Network
    limits: Limits
    instances: list[Instance]
    parted: set[UUID]  # conversations of an instance of which an old copy was restored
    proves: bool  # peers authenticate by certificates
    keepers: list[HoardingForwarder | DatabaseOutages]  # they record messages to deliver them again
    serve: Callable[[Instance, int], Daemon]  # creates a daemon; the number is its limit of remembered conversations
    in_processes: bool  # each share (partition) has its own process
    contends: bool  # several daemons compete to serve an instance

    def find(self, key: Key, broker: UUID) -> Endpoint | None:
        """Return the endpoint of a side of a conversation in the instance of a broker."""
        for instance in self.instances:
            if instance.tables.broker == broker:
                return instance.tables.find(key)
        return None


class FaultyStore(MemoryStore):
    """A store with faults before and after each operation (`Instance.seam`), and checks of removed rows."""

    def __init__(self, instance: Instance, daemon: Daemon, division: Division) -> None:
        super().__init__(instance.tables, instance.clock, division)
        self._instance = instance
        self._daemon = daemon

    @override
    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction. Its commit may fail, or succeed without an answer."""
        with super().transaction():
            yield
            self._seam("commit")
        self._seam("committed")

    @override
    def __getattribute__(self, name: str) -> Any:
        attribute = super().__getattribute__(name)
        if name.startswith("_") or name in ("transaction", "locks", "division", "unfinished"):
            return attribute

        def operation(*values: Any, **named: Any) -> Any:
            self._seam(name)
            result = attribute(*values, **named)
            self._seam(name)
            return result

        return operation

    def _seam(self, name: str) -> None:
        self._instance.seam(self._daemon, self, name)

    @override
    def acknowledge(self, news: Mapping[UUID, Acknowledged]) -> AcknowledgedEndpoints:
        """Check that all messages to be removed as acknowledged have arrived at the peer."""
        for handle, event in news.items():
            if (endpoint := self._tables.endpoints.get(handle)) is not None:
                self._instance.check(endpoint, event)
        return super().acknowledge(news)


class Daemon:
    """A process that serves the instance with one relay, as `broker/daemon.py` does with threads.

    `simulated_shares.py` has a daemon that divides the conversations among several relays.
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
        self.rng = Random(random.getrandbits(64))
        self.is_over = False
        self.has_lease = True
        self.begin()

    def make_links(self, me: LocalIdentity) -> Links | ShippedNetwork:
        """Return the connections of this daemon."""
        instance = self.instance
        certificate, policy = identity(instance.index).own.facts.der, instance.policy()
        network, role_report = instance.world.network, instance.role_report()
        return Links(network, me, instance.index, certificate, policy, role_report, self.tell, self.bring, self.poke)

    def make_relay(
        self,
        links: AnyLinks,
        clock: Callable[[], datetime],
        rng: Random,
        here: Callable[[], LocalInstance],
        peers: Peers,
    ) -> Relay:
        """Return a relay with the limits of the run."""
        limits = self.instance.world.limits
        budget = limits.window if self._is_narrow else BODY_BUDGET_BYTES
        seconds = lambda: self.loop.now  # noqa: E731
        budgets = budgets_of(limits)
        return Relay(links, clock, seconds, rng, here, self._capacity, KEYS, peers, limits, budget, budgets)

    def here(self) -> LocalInstance:
        """Return the identity of this instance in routes."""
        return LocalInstance(self.instance.addresses, True, self.links.unreachable, 1)

    def begin(self) -> None:
        """Begin to serve."""
        self._relay = self.make_relay(self.links, self.instance.clock, self.rng, self.here, self.links.peers)
        self._store = FaultyStore(self.instance, self, Division())
        self._inbox: list[Arrival | NetworkEvent] = []
        self._round_at = NEVER
        self._idle_rounds = 0  # rounds in a row without an event before, and with another round due immediately
        self._away_until = 0.0  # the database is unreachable until then
        self._relay.forget()
        self.poke()

    @property
    def wake_ats(self) -> list[float]:
        """The time of the next timer of each relay."""
        return [self._relay.wake_at]

    def poke(self) -> None:
        """Schedule a round after an event."""
        self._plan(self.loop.now + ROUND_DELAY_S)

    def _plan(self, at: float) -> None:
        at = max(at, self._away_until)
        if at < self._round_at and at != NEVER:
            self._round_at = at
            self.loop.at(at, lambda: self._round() if self._round_at == at else None)

    def notify(self) -> None:
        """Handle the notification of a committed SEND."""
        self.poke()

    def kill(self) -> None:
        """Drop everything in memory."""
        self.is_over = True
        self._round_at = NEVER
        self.links.crash()

    def tell(self, happening: NetworkEvent) -> None:
        """Record an event of a connection, for the next round."""
        self.instance.trace(*happening)
        self._inbox.append(happening)
        self.poke()

    def bring(self, link: Link, arrived: Arrived) -> None:
        """Receive a message, which earlier hops may have lost, repeated, delayed or changed."""
        network, random = self.instance.world.network, self.loop.random
        faults, happens = network.faults, self.loop.happens

        def arrive(body: bytes = arrived.body) -> None:
            self.take(link, body, is_forwarded=arrived.is_forwarded)

        for keeper in self.instance.world.keepers:
            keeper.keep(self.instance, link, arrived)
        if happens(faults.loss):
            return
        if happens(faults.replay):
            self.loop.after(random.choice((0.1, 5.0, 120.0)) * random.random(), arrive)
        body = arrived.body
        if happens(faults.tampering):
            body = flip(body, self.loop.below(8 * len(body)))
        if happens(faults.reorder):
            self.loop.after(random.choice((0.1, 5.0)) * random.random(), lambda: arrive(body))
        else:
            arrive(body)

    def take(self, link: Link, body: bytes, *, is_forwarded: bool) -> None:
        """Put a message into the inbox, for the next round."""
        if not self.is_over:
            self._inbox.append(Arrival(link, body, is_forwarded))
            self.poke()

    def seam(self, store: FaultyStore, name: str) -> None:
        """Kill the daemon between two operations, by a fault or because another daemon has the lease."""
        if not self.has_lease or self.loop.happens(self.instance.world.network.faults.killed):
            self.instance.trace("is killed at", name)
            raise DaemonKilled

    def interleave(self) -> None:
        """Do nothing, because one relay has one round at a time."""

    def want(self, count: int | None) -> None:
        """Do nothing, because this daemon has one relay."""

    def retire(self) -> None:
        """Stop immediately. The next daemon finds unsent messages in the database."""
        self.instance.crash(self)

    def stop_endpoint(self) -> None:
        """Do nothing, because these connections have no endpoint."""

    def _round(self) -> None:
        try:
            self._run()
        except DaemonKilled:
            self.instance.crash(self)
        except (psycopg.Error, InstanceError) as problem:
            self._begin_anew(problem)

    def _run(self) -> None:
        self._round_at = NEVER
        if self.is_over:
            return
        relay = self._relay
        events = [entry for entry in self._inbox if not isinstance(entry, Arrival)]
        arrivals = [entry for entry in self._inbox if isinstance(entry, Arrival)]
        self._inbox = []
        for event in events:
            if isinstance(event, LinkLost):
                relay.lost(event.link, event.status)
            elif isinstance(event, Answered):
                relay.on_peer_role(*event)
            elif isinstance(event, Reached):
                relay.reached(event.address)
            else:
                relay.unreached(event.address, event.status)
        relay.round(self._store, arrivals)
        self.instance.remember(self.links.peers)
        is_idle = relay.wake_at <= self.loop.now and not (arrivals or events)
        self._idle_rounds = check_idle_rounds(self.instance, self._idle_rounds + 1 if is_idle else 0)
        if relay.wake_at != NEVER:
            self._plan(max(relay.wake_at, self.loop.now + ROUND_DELAY_S))

    def _begin_anew(self, problem: Exception) -> None:
        """Start again from the tables, once the database is reachable."""
        self.instance.trace("loses its database:", problem)
        self._relay.forget()
        self._inbox = [entry for entry in self._inbox if not isinstance(entry, LinkLost)]
        self._away_until = self.loop.now + RECONNECT_DELAY_S
        self.poke()


def check_idle_rounds(instance: Instance, rounds: int) -> int:
    """Return the number of rounds in a row without an event.

    Raises:
        GuaranteeBroken: the daemon runs in a busy loop.
    """
    if rounds > MAX_IDLE_ROUNDS:
        raise GuaranteeBroken(f"{instance}: {rounds} rounds in a row without an event between them")
    return rounds


class Instance:
    """The tables of an instance, and the daemons that serve it."""

    def __init__(self, world: World, index: int, broker: UUID) -> None:
        self.world = world
        self.index = index
        self.tables = Tables(broker, world.loop.random)
        self.tables.limits = world.limits
        self.tables.is_held = self._is_held
        self.tables.clock = self.clock
        self._grips: dict[UUID, float] = {}  # rows that an application has locked, and until when
        self.tables.master_key = master_key()
        self.tables.certificates.append(identity(index).own)
        self.transport: list[TransportCertificate] = []  # the transport certificates of peers
        self._answers: dict[Address, Answer] = {}  # the stored answers, by address
        self.daemons: list[Daemon] = []
        self.contenders: list[Contender] = []
        self.reports = SelfReport(self.clock)  # the reports of its daemons, for `servicebroker doctor`
        self.half = 0  # 0 or OTHER_HALF_OFFSET: which of the two servers is the primary
        self._timeline = 1
        self.step = timedelta()  # the time by which the server's clock was set ahead
        self.skew = timedelta()  # the time by which the server's clock is ahead during the whole run
        self.away_until = 0.0  # daemons cannot reach the database until then
        self.corrupted = 0
        self._pending: list[tuple[UUID, Callable[[], None]]] = []  # changes that applications are about to commit

    @override
    def __repr__(self) -> str:
        return f"instance {self.index}"

    def grip(self) -> None:
        """Let applications lock the rows of some conversations with waiting messages for up to 15 s."""
        for endpoint in self.tables.endpoints.values():
            if endpoint.rows and self.world.loop.happens(0.5):
                self._grips[endpoint.handle] = self.world.loop.now + 15 * self.world.loop.random.random()

    def _is_held(self, handle: UUID) -> bool:
        if self._grips.get(handle, 0.0) > self.world.loop.now:
            return True
        return self.world.loop.happens(self.world.network.faults.held)

    def meet(self, other: Instance, service: str, binding: Binding) -> None:
        """Import the certificate of another instance, and perhaps create a binding for its service."""
        self.tables.certificates.append(identity(other.index).remote)
        if binding is not Binding.NO_BINDING:
            self.tables.bindings[service] = binding, FIRST_USER + other.index

    @property
    def identifier(self) -> UUID:
        """The identifier of the instance, for its peers."""
        return UUID(int=self.tables.broker.int ^ 1)

    @property
    def service(self) -> str:
        """The service of its applications."""
        return f"//sim/{self.index}"

    # ---------------------------------------------------------------- peers

    def import_certificate(self, index: int, instance: UUID | None, *, may_connect: bool = True) -> None:
        """Import the transport certificate of a peer. `instance`: the instance that it names, if any."""
        certificate = identity(index).remote
        name, proved = certificate.name, Proved(f"certificate {certificate.name}", instance)
        self.transport.append(TransportCertificate(index, name, False, name, may_connect, certificate.facts, proved))

    def policy(self) -> Policy:
        """Return the network policy of the daemons."""
        if not self.world.proves:
            return Policy()
        tls = ProvedByNetwork(self.transport)
        return Policy(encryption=REQUIRED, tls=tls, **find_trust(self.transport))._replace(answers=self._answers.copy())

    def remember(self, peers: Peers) -> None:
        """Store the answers of peers, and log mistrusted ones, as a daemon does."""
        self._answers |= peers.take_answers()
        for mistrusted, (times, detail) in peers.take_mistrusted().items():
            journal.log_false_claims(mistrusted, times, detail)

    def expects(self, index: int) -> bool:
        """Check whether the instance knows which peer answers at an address."""
        return address_of(index) in self._answers

    def lets_in(self, index: int) -> bool:
        """Check whether the instance accepts connections of a peer."""
        return any(known.certificate_id == index and known.may_connect for known in self.transport)

    def knows(self, instance: UUID) -> bool:
        """Check whether an instance identifier is known, as this instance's or a peer's."""
        return instance == self.identifier or any(known.proved.instance == instance for known in self.transport)

    def clock(self) -> datetime:
        """Return the time of the server's clock."""
        return MIDNIGHT + timedelta(seconds=self.world.loop.now) + self.step + self.skew

    def trace(self, *event: object) -> None:
        """Trace an event of this instance."""
        self.world.loop.trace(self, *event)

    # ---------------------------------------------------------------- daemons

    def is_up_at(self, number: int) -> bool:
        """Check whether a daemon listens at the address with this number."""
        return bool(self.daemons) and number == self.index + self.half

    @property
    def addresses(self) -> frozenset[Address]:
        """The addresses of both servers of this instance, for routes."""
        return frozenset({address_of(self.index), address_of(self.index + OTHER_HALF_OFFSET)})

    def role_report(self) -> RoleReport:
        """Return the role and timeline of the server, which daemons report to peers."""
        return RoleReport(Role.PRINCIPAL, f"cluster {self.index}", self._timeline, is_synchronous=True)

    def promote(self) -> None:
        """Replace the server by its synchronous standby, which has all its data and another address."""
        for daemon in list(self.daemons):
            self.crash(daemon)
        self.trace("is promoted")
        for contender in self.contenders:
            if contender.half == self.half:
                contender.lose()
        self.half, self._timeline = OTHER_HALF_OFFSET - self.half, self._timeline + 1
        if self.world.contends and not any(contender.half == self.half for contender in self.contenders):
            self._contend(self.half)

    def accept(self, stream: Stream) -> None:
        """Give a new connection to the daemon that has started last."""
        self.daemons[-1].links.accept(stream)

    def start(self) -> None:
        """Start a daemon, or let it compete with others to serve the instance."""
        if not self.world.contends:
            self._serve()
            return
        self._contend(self.half)
        if len(self.contenders) < 2:
            self._contend(self.world.loop.random.choice((self.half, OTHER_HALF_OFFSET - self.half)))

    def _contend(self, half: int) -> None:
        contender = Contender(self, half, self._serve)
        self.contenders.append(contender)
        contender.connect()

    @property
    def lease_is_held(self) -> bool:
        """True if the session of a daemon has the lease."""
        return any(daemon.has_lease for daemon in self.daemons) or any(
            contender.has_lease for contender in self.contenders
        )

    def _serve(self) -> None:
        self.daemons.append(self.world.serve(self, self.world.loop.random.choice((3, MAX_CONVERSATIONS))))
        if self.world.loop.happens(self.world.network.faults.divided):
            self.divide()

    def divide(self) -> None:
        """Change the number of shares, to a fixed one or to one that follows load."""
        count = self.world.loop.random.choice((1, 2, 3, None))
        self.trace("is to have", count or "any number of", "shares")
        self.daemons[-1].want(count)

    def usurp(self) -> None:
        """Start another daemon, after the running one has lost its session and lease without noticing."""
        if self.daemons:
            self.trace("is served twice")
            self.daemons[-1].has_lease = False
            self.start()

    def crash(self, daemon: Daemon) -> None:
        """Remove a daemon. If no other one serves, a new one starts later."""
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
        """Restore an old copy of the tables."""
        self.trace("goes back to an old copy")
        for daemon in list(self.daemons):
            self.crash(daemon)
        self.tables.endpoints = endpoints
        self.tables.unfinished.clear()
        self._pending.clear()

    def poke(self) -> None:
        """Notify the daemons of a SEND."""
        for daemon in self.daemons:
            daemon.notify()

    # ---------------------------------------------------------------- between the operations of a round

    def commit(self, handle: UUID, action: Callable[[], None]) -> None:
        """Commit a change of a conversation for an application: now, or between two operations of the next round."""
        if self.world.loop.happens(self.world.network.faults.between):
            self._pending.append((handle, action))
            self.world.loop.after(0.1, lambda: self._commit(lambda _: True))
            self.poke()
        else:
            action()

    def _commit(self, is_free: Callable[[UUID], bool]) -> None:
        ready = [(handle, action) for handle, action in self._pending if is_free(handle)]
        self._pending = [change for change in self._pending if change not in ready]
        for _, action in ready:
            action()

    def seam(self, daemon: Daemon, store: FaultyStore, name: str) -> None:
        """Inject faults before or after an operation of a daemon's round."""
        loop, faults = self.world.loop, self.world.network.faults
        daemon.seam(store, name)
        if self.away_until > loop.now or loop.happens(faults.lost):
            raise psycopg.OperationalError(f"at {name}")
        daemon.interleave()
        if self._pending and loop.happens(0.3):
            self._commit(lambda handle: not store.locks(handle))

    def check(self, endpoint: Endpoint, event: Acknowledged) -> None:
        """Check that the peer has stored all messages that are removed as acknowledged.

        Raises:
            GuaranteeBroken: it lacks one.
        """
        peer = self.world.find((endpoint.conversation, not endpoint.is_initiator), event.peer_broker)
        if peer is None or endpoint.conversation in self.world.parted:
            return
        lost = [number for number in endpoint.rows if peer.next <= number < event.below]
        if lost:
            raise GuaranteeBroken(
                f"{endpoint.key}: messages {lost} are acknowledged, stored are those below {peer.next}"
            )

    # ---------------------------------------------------------------- checks at the end

    def leaks(self) -> list[str]:
        """Return descriptions of everything that an idle instance should not have any more."""
        leaks = [f"doctor still says that {subject}" for subject in Subject if self.reports.has(subject)]
        is_held = any(
            is_waiting(held) for instance in self.world.instances for held in instance.tables.endpoints.values()
        )
        for endpoint in self.tables.endpoints.values():
            if endpoint.conversation in self.world.parted and (is_waiting(endpoint) or endpoint.is_over):
                continue
            if endpoint.kept:
                leaks.append(f"{endpoint.key} still keeps {sorted(endpoint.kept)}")
            if endpoint.rows:
                leaks.append(f"{endpoint.key} in {endpoint.state} still has to send {sorted(endpoint.rows)}")
        for daemon in self.daemons if not is_held else ():
            leaks += [f"the relay has a timer at {wake_at}" for wake_at in daemon.wake_ats if wake_at != NEVER]
            if len(daemon.links):
                leaks.append(f"{len(daemon.links)} connections are open")
        return leaks


def is_waiting(endpoint: Endpoint) -> bool:
    """Check whether the endpoint has messages to send, and all of them show why they wait."""
    return bool(endpoint.rows) and all(row.status for row in endpoint.rows.values())
