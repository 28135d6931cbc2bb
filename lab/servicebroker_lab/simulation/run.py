"""A run: conversations under faults; then faults stop, and everything must come out right."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import permutations, product
from random import Random
from typing import NamedTuple
from uuid import UUID

from servicebroker.model.security.dialog_security import Binding
from servicebroker.model.states import EndpointState
from servicebroker.protocol.envelope import Content
from servicebroker_lab.simulation.database_outages import DatabaseOutages
from servicebroker_lab.simulation.faults import Faults, draw_limits
from servicebroker_lab.simulation.hoarding_forwarder import HoardingForwarder
from servicebroker_lab.simulation.hostile_peer import HostilePeer
from servicebroker_lab.simulation.simulated_instance import Daemon, Instance, World, is_waiting
from servicebroker_lab.simulation.simulated_keys import identity
from servicebroker_lab.simulation.simulated_network import HOSTILE_INDEX, Network
from servicebroker_lab.simulation.simulated_routes import EVERYWHERE, Routes
from servicebroker_lab.simulation.simulated_shares import DividedDaemon
from servicebroker_lab.simulation.simulated_time import MIDNIGHT, Loop
from servicebroker_lab.simulation.store import Endpoint, Key, Lost

WHY = b"why"  # an Error fits into one frame, as every real one does
FAULTY_TIME_S = 60.0  # seconds with faults
ASKING_TIME_S = 200.0  # seconds after which all who are open send something, where an old copy was restored
_ENDED = (EndpointState.DISCONNECTED_INBOUND, EndpointState.ERROR)  # the peer has ended in these states
SKEWS = (-1, 0, 0, 1, 168)  # hours by which a clock may be ahead, each far more than clocks step
CERTIFICATE_GENERATIONS = 5  # of certificates, one after the other: making one takes long
CALM_TIME_S = 900.0  # and without: retries are at most 64 seconds apart, connections are closed after 90

logging.getLogger("servicebroker.broker").addHandler(logging.NullHandler())  # of all that is refused here nobody reads


class Outcome(NamedTuple):
    """The events of a run that went well."""

    messages: int
    corrupted: int
    forged: int
    brought: int  # openings that a forwarder has brought again


class _Sent(NamedTuple):
    content: Content
    body: bytes


class Case(NamedTuple):
    """The origin of a run: its seed, and the faults that are left out of the seed's draw to make it shorter."""

    seed: int
    without: frozenset[str] = frozenset()  # faults
    conversations: int = 4  # at most
    seconds: float = FAULTY_TIME_S


class Run:
    """One case's instances, applications and books."""

    def __init__(self, case: Case, trace: Callable[[str], object] | None = None) -> None:
        self._seconds = case.seconds
        self.loop = Loop(case.seed, trace)
        random = self.loop.random
        faults = Faults.draw(random)._replace(**dict.fromkeys(case.without, 0.0))
        self.loop.trace("run", faults)
        network = Network(self.loop, faults)
        self.world = World(
            self.loop,
            network,
            draw_limits(random),
            instances=[],
            parted=set(),
            proves=faults.hostile > 0,
            keepers=[],
            serve=DividedDaemon if faults.divided else Daemon,
            in_processes=faults.processes > 0,
            contends=faults.contended > 0,
        )
        self._forwarder = HoardingForwarder(self.world)
        if faults.hoarded:
            self.world.keepers.append(self._forwarder)
        self._outages = DatabaseOutages(self.world)
        if faults.outages:
            self.world.keepers.append(self._outages)
        self.loop.trace("run", self.world.limits)
        self._generations: Counter[int] = Counter()  # of the certificate of each instance
        self._routes = Routes(self.world)
        for index in range(random.choice((2, 2, 3, 3))):
            self._add(Instance(self.world, index, UUID(int=random.getrandbits(128))))
        network.listeners += self.world.instances
        apart = Random(case.seed)
        for instance in self.world.instances if faults.skewed else ():
            instance.skew = timedelta(hours=apart.choice(SKEWS))
        self._hostile = HostilePeer(self.world, Random(case.seed))
        if self.world.proves:
            self._introduce()
        self._routes.begin()
        self.sent: dict[Key, list[_Sent]] = {}
        self.endpoints: dict[Key, Endpoint] = {}  # also endpoints that are gone
        self._homes: dict[Key, Instance] = {}
        self._doubled: list[str] = []  # conversations that one side of which was in two instances
        self._busy: set[Key] = set()  # an application sends on it
        self._replies: set[Key] = set()
        self._ending: set[Endpoint] = set()
        for _ in range(min(random.randint(1, 4), case.conversations)):
            self._begin_dialog()
        self._look_around()
        self._poll()

    def _introduce(self) -> None:
        """Everybody has the certificates of the others; and somebody else has a certificate, too."""
        self.world.network.usurper = self._hostile
        chance = Random(len(self.world.instances) + self.loop.below(100))
        is_named, stands = chance.random() < 0.5, chance.choice(("imported", "denied", "unknown"))
        for here, there in permutations(self.world.instances, 2):
            here.import_certificate(there.index, there.identifier if is_named else None)
        for here in self.world.instances if stands != "unknown" else ():
            here.import_certificate(HOSTILE_INDEX, None, may_connect=stands == "imported")
        for here in self.world.instances:
            here.start()
        self._meddle()

    def _meddle(self) -> None:
        """Each second the hostile peer may do something."""
        if self.loop.happens(self.world.network.faults.hostile):
            self._hostile.act()
        if self.loop.now < self._seconds:
            self.loop.after(1.0, self._meddle)

    def _add(self, instance: Instance) -> None:
        instance.tables.services |= {instance.service, EVERYWHERE}
        instance.tables.on_wake = lambda: self.loop.after(0.0, lambda: self._react(instance))
        for other in self.world.instances:
            for here, there in ((instance, other), (other, instance)):
                here.meet(there, there.service, self.loop.random.choice(list(Binding)))
        self.world.instances.append(instance)
        if not self.world.proves:
            instance.start()

    def finish(self) -> Outcome:
        """Run to the end and judge.

        Raises:
            Lost: a promise was broken.
        """
        self.loop.run(self._seconds)
        self.loop.trace("run", "faults stop")
        self._lose_databases()
        self._routes.settle(detours=self.world.network.faults.detour > 0)
        self.world.network.heal()
        self.loop.after(ASKING_TIME_S, self._ask)
        self.loop.run(self._seconds + CALM_TIME_S)
        self._judge()
        if opened := self._forwarder.bring_all() if self._forwarder in self.world.keepers else []:
            raise Lost("\n".join(opened))
        received = sum(len(endpoint.queue) for endpoint in self.endpoints.values())
        corrupted = sum(daemon.links.corrupted for one in self.world.instances for daemon in one.daemons)
        corrupted += sum(one.corrupted for one in self.world.instances)
        return Outcome(received, corrupted, self._hostile.frames, self._forwarder.brought)

    def close(self) -> None:
        """End what waits in the event loops of daemons."""
        for instance in self.world.instances:
            for daemon in instance.daemons:
                daemon.links.crash()

    def _look_around(self) -> None:
        """Every ten seconds something may have changed."""
        if self.loop.now >= self._seconds:
            return
        faults = self.world.network.faults
        self.world.network.partition()
        self._lose_databases()
        self._routes.change()
        instance = self.loop.random.choice(self.world.instances)
        if not self.world.parted and self.loop.happens(faults.old_copy):
            self._make_copy(instance)
        if self.loop.happens(faults.usurped):
            instance.usurp()
        if instance.daemons and self.loop.happens(faults.divided):
            instance.divide()
        if instance.daemons and self.loop.happens(faults.retired):
            instance.daemons[-1].retire()
        if instance.daemons and self.loop.happens(faults.stopped):
            instance.daemons[-1].stop_endpoint()
        if self.loop.happens(faults.promoted):
            instance.promote()
        if self.loop.happens(faults.replaced):
            self._replace_certificate(instance)
        if self.loop.happens(faults.gripped):
            instance.grip()
        if self.loop.happens(faults.clock):
            instance.step = timedelta(seconds=self.loop.random.uniform(-300, 300))
        self.loop.after(10.0, self._look_around)

    def _lose_databases(self) -> None:
        """Just before routes change, take the databases of some instances away."""
        for instance in self.world.instances:
            if self.loop.happens(self.world.network.faults.outages):
                self._outages.begin(instance)

    def _poll(self) -> None:
        """Readers look now and then, also when nobody has woken them."""
        for instance in self.world.instances:
            self._react(instance)
        self.loop.after(10.0, self._poll)

    def _replace_certificate(self, instance: Instance) -> None:
        """Everybody takes the new one in its own time, before faults stop."""
        self._generations[instance.index] += 1
        self.loop.trace(instance, "replaces its certificate")
        for there in self.world.instances:
            moment = min(self.loop.now + self.loop.random.random() * 20, self._seconds)
            self.loop.at(moment, lambda there=there: self._take_certificate(there, instance))  # type: ignore[misc]

    def _take_certificate(self, there: Instance, instance: Instance) -> None:
        now = identity(instance.index, self._generations[instance.index] % CERTIFICATE_GENERATIONS)
        there.tables.take_certificate(now.own if there is instance else now.remote)

    # --- an old copy

    def _make_copy(self, instance: Instance) -> None:
        """Copy an instance, to be restored later."""
        self.loop.trace(instance, "is copied")
        copied = instance.tables.twin()
        self.loop.after(self.loop.random.random() * 20, lambda: self._restore(instance, copied))

    def _restore(self, instance: Instance, copied: dict[UUID, Endpoint]) -> None:
        """Restore a copy: later acts of the instance's applications are lost."""
        if self.world.parted:
            return
        was = {one.key for one in instance.tables.endpoints.values()}
        was |= {key for key, home in self._homes.items() if home is instance}
        there = {one.key: one for one in copied.values()}
        self.world.parted.update(key[0] for key in was | there.keys())
        instance.go_back(copied)
        for key in was:
            self.endpoints.pop(key, None)
            if key in there:
                self.sent[key] = self.sent.get(key, [])[: there[key].send_sequence]
            else:
                self.sent.pop(key, None)
        self.endpoints.update(there)

    def _ask(self) -> None:
        """In conversations that may have come apart everybody has something to say, or ends."""
        for instance in self.world.instances:
            for one in list(instance.tables.endpoints.values()):
                if one.conversation in self.world.parted:
                    self._send(instance, one.key, Content.DATA, b"still there?")
                    self._end(instance, one.key)

    # --- applications

    def _begin_dialog(self) -> None:
        random = self.loop.random
        here, there = random.sample(self.world.instances, 2)
        service = EVERYWHERE if self._routes.reach_all(here) and random.random() < 0.6 else there.service
        one = Endpoint(
            here.tables.draw_handle(),
            UUID(int=random.getrandbits(128)),
            is_initiator=True,
            own_service=here.service,
            far_service=service,
            contract="//sim/contract",
            lifetime=MIDNIGHT + timedelta(days=30),
            encryption=service in here.tables.bindings and random.random() < 0.5,
            priority=random.randint(1, 10),
        )
        if service == EVERYWHERE and random.random() < 0.3:
            one.far_broker = str(there.tables.broker)
        here.tables.insert(one)
        self._plan(here, one.key, random.randint(1, 12), random.choice((Content.END, Content.ERROR, None)))

    def _plan(self, instance: Instance, key: Key, count: int, last: Content | None) -> None:
        """SENDs at random moments, one after the other, then perhaps an end."""
        random = self.loop.random
        longest = 0.1, self._seconds
        moments = sorted(random.random() * random.choice(longest) for _ in range(count))
        for moment in moments:
            body = random.randbytes(random.choice((0, 5, 5, 30, 30, 100, 300)))
            self.loop.after(moment, lambda body=body: self._send(instance, key, Content.DATA, body))  # type: ignore[misc]
        if last is not None:
            end = moments[-1] + random.random() * random.choice(longest)
            body = b"" if last is Content.END else WHY
            self.loop.after(end, lambda: self._send(instance, key, last, body))

    def _send(self, instance: Instance, key: Key, content: Content, body: bytes) -> None:
        """In a transaction that takes a while: others that began later may commit before it."""
        if key in self._busy:
            self.loop.after(0.05, lambda: self._send(instance, key, content, body))
            return
        one = instance.tables.find(key)
        if one is None:
            return
        self._busy.add(key)
        xact = instance.tables.begin()
        delay = self.loop.random.choice((0.0, 0.0, 0.3)) * self.loop.random.random()
        self.loop.after(
            delay, lambda: instance.commit(one.handle, lambda: self._commit(instance, key, content, body, xact))
        )

    def _commit(self, instance: Instance, key: Key, content: Content, body: bytes, xact: int) -> None:
        self._busy.discard(key)
        tables, one = instance.tables, instance.tables.find(key)
        if xact not in tables.unfinished:  # an old copy was restored meanwhile
            return
        tables.commit(xact)
        if one is None or not one.is_open or (content is not Content.DATA and not one.send_sequence):
            return
        self.endpoints[key], self._homes[key] = one, instance
        number = tables.send(one, content, "//sim/type", body, self.loop.random.randbytes(8), xact)
        self.sent.setdefault(key, []).append(_Sent(content, body))
        self.loop.trace(instance, "application sends", key, number, content.name, len(body), "bytes")
        instance.poke()

    def _react(self, instance: Instance) -> None:
        """Applications answer some messages, and every end."""
        random = self.loop.random
        for one in list(instance.tables.endpoints.values()):
            if self._homes.get(one.key, instance) is not instance:
                self._doubled.append(f"{one.key} is in {instance}, and was in {self._homes[one.key]}")
            self.endpoints[one.key], self._homes[one.key] = one, instance
            if one.state in _ENDED and one not in self._ending:
                self._ending.add(one)
                self.loop.after(random.random() * 5, lambda key=one.key: self._end(instance, key))  # type: ignore[misc]
            elif not one.is_initiator and one.key not in self._replies and one.queue:
                self._replies.add(one.key)
                if count := random.choice((0, 0, 1, 6)):
                    self._plan(instance, one.key, count, random.choice((Content.END, None, None)))

    def _end(self, instance: Instance, key: Key) -> None:
        one = instance.tables.find(key)
        if one is not None:
            instance.commit(one.handle, lambda: self._close(instance, key))

    def _close(self, instance: Instance, key: Key) -> None:
        one = instance.tables.find(key)
        if one is not None and one.state in _ENDED:
            instance.tables.end(one)
            instance.poke()

    # --- the books

    def _judge(self) -> None:
        problems = [f"{instance}: {leak}" for instance in self.world.instances for leak in instance.leaks()]
        problems += self._hostile.findings
        problems += self._doubled
        begun = {conversation for conversation, _ in self.sent} | self.world.parted
        problems += [f"nobody has begun {key}" for key in self.endpoints if key[0] not in begun]
        for key, sent in self.sent.items():
            if key[0] not in self.world.parted or not self._is_told(key):
                problems += self._compare(key, sent)
        if problems:
            raise Lost("\n".join(problems))

    def _is_told(self, key: Key) -> bool:
        """Return whether each side that is not over has an Error, or is held with a reason."""
        sides = (key, (key[0], not key[1]))
        has_error = {one for one in sides if one in self.endpoints and self.endpoints[one].has_error}
        found = [there.tables.find(side) for there, side in product(self.world.instances, sides)]
        there = [one for one in found if one is not None and not one.is_over]
        told = [one for one in there if one.key in has_error or is_waiting(one)]
        return len(told) == len(there) and bool(told or has_error or not there)

    def _compare(self, key: Key, sent: list[_Sent]) -> list[str]:
        """All that was sent has arrived; unless an end or error on either side has cut it off: then its beginning."""
        sender, receiver = self.endpoints[key], self.endpoints.get((key[0], not key[1]))
        queue = [] if receiver is None else [_Sent(*row) for row in receiver.queue]
        received = [one for one in queue if not _is_of_broker(one)]
        data = [one for one in received if one.content is not Content.ERROR]
        if data != sent[: len(data)]:
            return [f"{key}: received {_show(received)}, sent {_show(sent)}"]
        errors = [one for one in received if one.content is Content.ERROR]
        if errors:
            return [] if errors == [received[-1]] == [sent[-1]] else [f"{key}: errors in {_show(received)}"]
        if len(data) == len(sent) or self._was_cut_off(key, receiver):
            return []
        return [
            f"{key}: received {_show(received)} of {_show(sent)}, "
            f"states {sender.state} and {receiver and receiver.state}"
        ]

    def _was_cut_off(self, key: Key, receiver: Endpoint | None) -> bool:
        """The receiver ended before it had received all, or the sender's error found no conversation to end."""
        ended = {one.content for one in self.sent.get((key[0], not key[1]), ())} - {Content.DATA}
        never_opened = receiver is None and self.sent[key][-1].content is Content.ERROR
        return bool(ended) or never_opened


def _is_of_broker(one: _Sent) -> bool:
    return one.content is Content.ERROR and one.body != WHY


def _show(messages: list[_Sent]) -> str:
    return " ".join(f"{one.content.name[0]}{len(one.body)}" for one in messages) or "nothing"


def run(case: Case, trace: Callable[[str], object] | None = None) -> Outcome:
    """Run one case.

    Raises:
        Lost: a promise was broken; the same case breaks it again.
    """
    made = Run(case, trace)
    try:
        return made.finish()
    finally:
        made.close()


class Failure(NamedTuple):
    """A seed that found something."""

    seed: int
    reason: str


def run_many(seeds: range) -> tuple[Counter[str], list[Failure]]:
    """Run seeds one after the other. Returns sums (runs, messages, corrupted, forged, brought) and the failures."""
    sums: Counter[str] = Counter()
    failures: list[Failure] = []
    for seed in seeds:
        sums["runs"] += 1
        try:
            outcome = run(Case(seed))
        except Exception as problem:
            failures.append(Failure(seed, f"{type(problem).__name__}: {problem}"))
        else:
            sums.update(outcome._asdict())
    return sums, failures
