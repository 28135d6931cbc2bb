"""Simulate a fleet of a thousand instances that route by name, while routes change and instances fail.

The first message of each conversation is routed hop by hop by the functions of the daemon: the routes of its instance
choose an instance of the service, a gateway forwards it, the routes of msdb deliver it. The protocol between two
instances is simulated in `run.py`, not here. Time passes in rounds: in each, unacknowledged messages are sent again,
and unsent ones are routed again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple
from uuid import UUID

from servicebroker.protocol.envelope import Header, Kind
from servicebroker.protocol.forwarding import DroppedMessage, Forwarder, Passage, unwrap
from servicebroker.protocol.routing import (
    LOCAL,
    Address,
    Conversation,
    Elsewhere,
    Local,
    Pick,
    Route,
    RoutingTable,
    Site,
    classify,
)

ROUND_S = 5.0
COPY_COUNT = 4  # instances of a balanced service
BALANCED_SHARE = 0.25  # the fraction of services that several instances have
GATEWAY_SHARE = 0.5  # the fraction of instances behind a gateway
DEATH_RATE = 0.002  # the fraction of instances that fail in a round, for one to two minutes: about 4 % are down
CHANGE_RATE = 0.01  # the fraction of services that get one more instance in a round
LOST_ANSWERS = 0.05  # the fraction of acknowledgements that are lost
SETTLE_ROUNDS = 100  # rounds after the last fault
BROKER_PORT = 4022
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NO_ROUTES = RoutingTable(())
AT_HOME = RoutingTable([Route("AutoCreatedLocal", None, None, None, LOCAL)])


class Size(NamedTuple):
    """The size of a fleet, the number of conversations that begin, and the number of rounds with faults."""

    instances: int = 1_000
    services: int = 100_000
    conversations: int = 100_000
    rounds: int = 40


class Outcome(NamedTuple):
    """The result of a run in which all conversations have arrived.

    Attributes:
        seconds: the simulated time.
        settled: the seconds from the last fault until all conversations had arrived.
        rerouted: conversations that were sent to another instance than the first choice, which was down.
        forwarded: messages that passed a gateway.
        dropped: messages that a gateway has dropped, by error number; they are sent again.
        repeated: messages that were sent again after they had arrived, because the acknowledgement was lost.
        misplaced: conversations at an instance without the service, or at two instances; it must be 0.
        waited: the median, 99th percentile and maximum of the seconds that a conversation took to arrive.
        spread: chi-square of the choice among the instances of a service, over its degrees of freedom; 1 is even.
    """

    conversations: int
    seconds: float
    settled: float
    rerouted: int
    forwarded: int
    dropped: dict[int, int]
    repeated: int
    misplaced: int
    waited: tuple[float, float, float]
    spread: float


class _Instance:
    """An instance, with the memory of its daemon."""

    def __init__(self, number: int, gateway: _Instance | None) -> None:
        self.broker = str(UUID(int=number + 1))
        self.address = Address(f"i{number}", BROKER_PORT)
        self.gateway = gateway
        self.is_direct = gateway is None  # routes lead to it without the gateway
        self.services: set[str] = set()
        self.returns_at = 0  # the round until which the instance is down
        self.lost: frozenset[Address] = frozenset()  # addresses that were unreachable at the last attempt
        self.forwarder: Forwarder[Address] = Forwarder(10 * 1024 * 1024)
        self.behind: dict[str, set[_Instance]] = {}  # the instances behind this gateway, by service

    def site(self, service: str) -> Site:
        """Return the description of this instance for routing."""
        homes = {service: [self.broker]} if service in self.services else {}
        return Site(homes, frozenset({self.broker}), frozenset({self.address}), True, unreachable=self.lost)


class _Journey:
    """A conversation whose first message has not been acknowledged."""

    def __init__(self, identifier: int, began: int, origin: _Instance, service: str) -> None:
        self.identifier, self.began, self.origin, self.service = identifier, began, origin, service
        self.first: str | None = None  # the broker that routing has chosen first
        self.sent_to: str | None = None  # the broker to which it was sent
        self.arrived_at: _Instance | None = None

    def pick(self) -> Pick:
        """Return a random generator that gives one conversation always the same numbers."""
        return Random(self.identifier).randrange


class Fleet:
    """The instances and conversations of a seed."""

    def __init__(self, seed: int, size: Size, progress: Callable[[int, int], object] = lambda done, of: None) -> None:
        self._size, self._progress, self._random = size, progress, Random(seed)
        gateways = [_Instance(number, None) for number in range(max(1, size.instances // 30))]
        self._instances = gateways + [
            _Instance(number, self._random.choice(gateways) if self._random.random() < GATEWAY_SHARE else None)
            for number in range(len(gateways), size.instances)
        ]
        self._by_address = {instance.address: instance for instance in self._instances}
        self._homes: dict[str, list[_Instance]] = {}
        self._tables: dict[str, RoutingTable] = {}
        for number in range(size.services):
            copies = COPY_COUNT if self._random.random() < BALANCED_SHARE else 1
            for home in self._random.sample(self._instances, min(copies, size.instances)):
                self._add_home(f"//fleet/{number}", home)
        self._names = list(self._homes)
        self._round = self._last_fault = 0
        self._open: list[_Journey] = []
        self._waits: list[int] = []
        self._choices: Counter[int] = Counter()
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[int] = Counter()

    def run(self) -> Outcome:
        """Begin conversations during faults; then wait without faults until all have arrived.

        Raises:
            AssertionError: a conversation has not arrived long after the last fault.
        """
        size = self._size
        share = -(-size.conversations // size.rounds)
        begun = 0
        while begun < size.conversations or self._open:
            if self._round < size.rounds:
                self._trouble()
            for _ in range(min(share, size.conversations - begun)):
                origin, service = self._random.choice(self._instances), self._random.choice(self._names)
                self._open.append(_Journey(self._random.getrandbits(64), self._round, origin, service))
                begun += 1
            self._open = [conversation for conversation in self._open if not self._go_on(conversation)]
            self._round += 1
            self._progress(len(self._waits), size.conversations)
            if self._round > self._last_fault + SETTLE_ROUNDS and self._round > size.rounds:
                raise AssertionError(f"{len(self._open)} conversations have not arrived")
        waits = sorted(self._waits)
        return Outcome(
            begun,
            self._round * ROUND_S,
            max(0, self._round - self._last_fault) * ROUND_S,
            self._counts["rerouted"],
            self._counts["forwarded"],
            dict(self._dropped),
            self._counts["repeated"],
            self._counts["misplaced"],
            (waits[len(waits) // 2] * ROUND_S, waits[len(waits) * 99 // 100] * ROUND_S, waits[-1] * ROUND_S),
            self._deviation(),
        )

    # ---------------------------------------------------------------- faults

    def _trouble(self) -> None:
        """Let instances fail and lose their memory, change the routes to some, and add instances to some services."""
        count = max(1, int(len(self._instances) * DEATH_RATE))
        for instance in self._random.sample(self._instances, count):
            instance.returns_at = self._round + self._random.randrange(12, 25)
            self._last_fault = max(self._last_fault, instance.returns_at)
            instance.lost = frozenset()
            self._dropped.update(frame.error.number for frame in instance.forwarder.drop_all(11293))
        for instance in self._random.sample(self._instances, count):
            if instance.gateway is not None:
                instance.is_direct = not instance.is_direct
                for service in instance.services:
                    self._tables.pop(service, None)
        for service in self._random.sample(self._names, max(1, int(len(self._names) * CHANGE_RATE / COPY_COUNT))):
            home = self._random.choice(self._instances)
            if home not in self._homes[service]:
                self._add_home(service, home)

    def _add_home(self, service: str, home: _Instance) -> None:
        self._homes.setdefault(service, []).append(home)
        home.services.add(service)
        if home.gateway is not None:
            home.gateway.behind.setdefault(service, set()).add(home)
        self._tables.pop(service, None)

    # ---------------------------------------------------------------- routes

    def _routes(self, service: str) -> RoutingTable:
        """Return the routes of every database to a service: the addresses of its instances."""
        if service not in self._tables:
            self._tables[service] = RoutingTable(
                Route(home.broker, service, home.broker, None, str(self._entry_instance(home).address))
                for home in self._homes[service]
            )
        return self._tables[service]

    def _entry_instance(self, home: _Instance) -> _Instance:
        return home if home.is_direct or home.gateway is None else home.gateway

    def _outside(self, instance: _Instance, service: str) -> RoutingTable:
        """Return the routes of msdb. A gateway has routes to the instances behind it."""
        behind = instance.behind.get(service)
        if not behind:
            return AT_HOME
        routes = [Route(home.broker, service, home.broker, None, str(home.address)) for home in behind]
        return RoutingTable([*routes, *AT_HOME.routes])

    # ---------------------------------------------------------------- conversations

    def _is_up(self, instance: _Instance) -> bool:
        return instance.returns_at <= self._round

    def _go_on(self, one: _Journey) -> bool:
        """Route and send the first message, for the first time or again. Returns True if it was acknowledged."""
        origin = one.origin
        if not self._is_up(origin):
            return False
        site = origin.site(one.service)
        conversation = Conversation(one.service, one.sent_to, origin.broker)
        outside = self._outside(origin, one.service)
        decision = classify(conversation, self._routes(one.service), outside, site, NOW, one.pick())
        chosen, destination = decision.chosen, decision.destination
        if isinstance(destination, Local):  # the route leads back here: delivered and answered in one transaction
            self._take(one, origin, is_answered=True)
            return True
        if chosen is None or not isinstance(destination, Elsewhere):
            return False
        if one.first is None:
            one.first = chosen.broker_instance
            self._count_choice(one, chosen)
        target = self._by_address[destination.address]
        if not self._is_up(target):
            origin.lost |= {target.address}
            return False
        origin.lost -= {target.address}
        if one.sent_to is None:
            one.sent_to = chosen.broker_instance
            self._counts["rerouted"] += one.sent_to != one.first
        header = Header(
            UUID(int=one.identifier),
            True,
            Kind.RUN,
            False,
            one.service,
            UUID(one.sent_to),
            "//fleet/from",
            UUID(origin.broker),
        )
        home = self._carry(header, target)
        return home is not None and self._take(one, home)

    def _carry(self, header: Header, at: _Instance) -> _Instance | None:
        """Forward a message from hop to hop. Returns the instance where it arrives; None if it is dropped."""
        passage: Passage | None = None
        while self._is_up(at):
            conversation = Conversation(header.to_service, str(header.to_broker))
            outside = self._outside(at, header.to_service)
            decision = classify(conversation, NO_ROUTES, outside, at.site(header.to_service), NOW, lambda count: 0)
            if not isinstance(decision.destination, Elsewhere):
                return at if isinstance(decision.destination, Local) else None
            address = decision.destination.address
            now = self._round * ROUND_S
            refusal = at.forwarder.take_in(header, b"", passage or Passage(header.conversation_id), address, now)
            found = at.forwarder.pass_on(address, now) if self._is_up(self._by_address[address]) else None
            if refusal is not None or found is None or isinstance(found, DroppedMessage):
                self._dropped.update(dropped.error.number for dropped in at.forwarder.drop_all(11290))
                return None
            passage, _ = unwrap(found[1])
            self._counts["forwarded"] += 1
            at = self._by_address[address]
        return None

    def _take(self, conversation: _Journey, home: _Instance, *, is_answered: bool = False) -> bool:
        """Record the arrival of a first message, which may be a repetition. Returns True if it is acknowledged."""
        if conversation.arrived_at is not None:
            self._counts["repeated"] += 1
        if conversation.arrived_at not in (None, home) or conversation.service not in home.services:
            self._counts["misplaced"] += 1
        conversation.arrived_at = home
        if not is_answered and self._random.random() < LOST_ANSWERS:
            return False
        self._waits.append(self._round - conversation.began)
        return True

    # ---------------------------------------------------------------- how evenly

    def _count_choice(self, conversation: _Journey, chosen: Route) -> None:
        """Count the instance of the chosen route, if four instances have the service and none is known to be dead."""
        homes = sorted(home.broker for home in self._homes[conversation.service])
        if len(homes) == COPY_COUNT and not conversation.origin.lost:
            self._choices[homes.index(str(chosen.broker_instance))] += 1

    def _deviation(self) -> float:
        expected = self._choices.total() / COPY_COUNT
        if not expected:
            return 0.0
        return sum((self._choices[index] - expected) ** 2 / expected for index in range(COPY_COUNT)) / (COPY_COUNT - 1)
