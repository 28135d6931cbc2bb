"""A run: conversations under faults; then the faults stop, and every guarantee is checked."""

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
from servicebroker_lab.simulation.store import Endpoint, GuaranteeBroken, Key

ERROR_BODY = b"why"  # the text of an Error, which always fits into one frame
FAULTY_TIME_S = 60.0  # the part of a run that has faults
ASKING_TIME_S = 200.0  # after the faults; then all open sides send a message if an old copy was restored
_ENDED = (EndpointState.DISCONNECTED_INBOUND, EndpointState.ERROR)  # states in which the peer has ended
SKEWS_H = (-1, 0, 0, 1, 168)  # hours by which an instance's clock may be ahead
CERTIFICATE_GENERATIONS = 5  # certificates of an instance, used in turn, because creating one takes long
CALM_TIME_S = 900.0  # without faults: retries are at most 64 s apart, idle connections are closed after 90 s

logging.getLogger("servicebroker.broker").addHandler(logging.NullHandler())  # the many refusals need no log


class Outcome(NamedTuple):
    """Counts of events in a successful run."""

    messages: int
    corrupted: int
    forged: int
    brought: int  # first messages that a forwarder has delivered again


class _SentMessage(NamedTuple):
    content: Content
    body: bytes


class Case(NamedTuple):
    """The parameters of a run.

    Attributes:
        seed: of the random generator.
        without: kinds of fault that are switched off, to shrink a failing run.
        conversations: the maximum number of conversations.
        seconds: the time with faults.
    """

    seed: int
    without: frozenset[str] = frozenset()
    conversations: int = 4
    seconds: float = FAULTY_TIME_S


class Run:
    """The instances and applications of a case, and the record of what they have sent."""

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
        self._generations: Counter[int] = Counter()  # the generation of each instance's certificates
        self._routes = Routes(self.world)
        for index in range(random.choice((2, 2, 3, 3))):
            self._add(Instance(self.world, index, UUID(int=random.getrandbits(128))))
        network.listeners += self.world.instances
        skews = Random(case.seed)
        for instance in self.world.instances if faults.skewed else ():
            instance.skew = timedelta(hours=skews.choice(SKEWS_H))
        self._hostile = HostilePeer(self.world, Random(case.seed))
        if self.world.proves:
            self._introduce()
        self._routes.begin()
        self.sent: dict[Key, list[_SentMessage]] = {}
        self.endpoints: dict[Key, Endpoint] = {}  # also removed ones
        self._homes: dict[Key, Instance] = {}
        self._doubled: list[str] = []  # errors: a side of a conversation was in two instances
        self._busy: set[Key] = set()  # an application has an open transaction with a SEND
        self._replies: set[Key] = set()
        self._ending: set[Endpoint] = set()
        for _ in range(min(random.randint(1, 4), case.conversations)):
            self._begin_dialog()
        self._change_world()
        self._poll()

    def _introduce(self) -> None:
        """Import the certificates of all instances into the others, and a hostile peer's into some runs."""
        self.world.network.usurper = self._hostile
        rng = Random(len(self.world.instances) + self.loop.below(100))
        is_named, hostile_status = rng.random() < 0.5, rng.choice(("imported", "denied", "unknown"))
        for here, there in permutations(self.world.instances, 2):
            here.import_certificate(there.index, there.identifier if is_named else None)
        for here in self.world.instances if hostile_status != "unknown" else ():
            here.import_certificate(HOSTILE_INDEX, None, may_connect=hostile_status == "imported")
        for here in self.world.instances:
            here.start()
        self._act_hostile()

    def _act_hostile(self) -> None:
        """Let the hostile peer act, perhaps, once a second."""
        if self.loop.happens(self.world.network.faults.hostile):
            self._hostile.act()
        if self.loop.now < self._seconds:
            self.loop.after(1.0, self._act_hostile)

    def _add(self, instance: Instance) -> None:
        instance.tables.services |= {instance.service, EVERYWHERE}
        instance.tables.on_wake = lambda: self.loop.after(0.0, lambda: self._react(instance))
        for other_instance in self.world.instances:
            for here, there in ((instance, other_instance), (other_instance, instance)):
                here.meet(there, there.service, self.loop.random.choice(list(Binding)))
        self.world.instances.append(instance)
        if not self.world.proves:
            instance.start()

    def finish(self) -> Outcome:
        """Run to the end, and check the guarantees.

        Raises:
            GuaranteeBroken: a guarantee was broken.
        """
        self.loop.run(self._seconds)
        self.loop.trace("run", "faults stop")
        self._lose_databases()
        self._routes.settle(detours=self.world.network.faults.detour > 0)
        self.world.network.heal()
        self.loop.after(ASKING_TIME_S, self._ask)
        self.loop.run(self._seconds + CALM_TIME_S)
        self._check()
        if opened := self._forwarder.replay_all() if self._forwarder in self.world.keepers else []:
            raise GuaranteeBroken("\n".join(opened))
        received = sum(len(endpoint.queue) for endpoint in self.endpoints.values())
        corrupted = sum(daemon.links.corrupted for instance in self.world.instances for daemon in instance.daemons)
        corrupted += sum(instance.corrupted for instance in self.world.instances)
        return Outcome(received, corrupted, self._hostile.frames, self._forwarder.replayed)

    def close(self) -> None:
        """End the tasks in the event loops of daemons."""
        for instance in self.world.instances:
            for daemon in instance.daemons:
                daemon.links.crash()

    def _change_world(self) -> None:
        """Draw and apply the faults that are drawn every ten seconds."""
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
        self.loop.after(10.0, self._change_world)

    def _lose_databases(self) -> None:
        """Begin outages of some databases, just before routes change."""
        for instance in self.world.instances:
            if self.loop.happens(self.world.network.faults.outages):
                self._outages.begin(instance)

    def _poll(self) -> None:
        """Let readers poll every ten seconds, also without a notification."""
        for instance in self.world.instances:
            self._react(instance)
        self.loop.after(10.0, self._poll)

    def _replace_certificate(self, instance: Instance) -> None:
        """Replace a certificate. Each instance imports the new one at a random time before the faults stop."""
        self._generations[instance.index] += 1
        self.loop.trace(instance, "replaces its certificate")
        for there in self.world.instances:
            import_time = min(self.loop.now + self.loop.random.random() * 20, self._seconds)
            self.loop.at(import_time, lambda there=there: self._take_certificate(there, instance))  # type: ignore[misc]

    def _take_certificate(self, there: Instance, instance: Instance) -> None:
        current = identity(instance.index, self._generations[instance.index] % CERTIFICATE_GENERATIONS)
        there.tables.take_certificate(current.own if there is instance else current.remote)

    # --- an old copy

    def _make_copy(self, instance: Instance) -> None:
        """Copy an instance, and restore the copy later."""
        self.loop.trace(instance, "is copied")
        copied = instance.tables.twin()
        self.loop.after(self.loop.random.random() * 20, lambda: self._restore(instance, copied))

    def _restore(self, instance: Instance, copied: dict[UUID, Endpoint]) -> None:
        """Restore a copy. Later work of the instance's applications is lost."""
        if self.world.parted:
            return
        present = {endpoint.key for endpoint in instance.tables.endpoints.values()}
        present |= {key for key, home in self._homes.items() if home is instance}
        restored = {endpoint.key: endpoint for endpoint in copied.values()}
        self.world.parted.update(key[0] for key in present | restored.keys())
        instance.go_back(copied)
        for key in present:
            self.endpoints.pop(key, None)
            if key in restored:
                self.sent[key] = self.sent.get(key, [])[: restored[key].send_sequence]
            else:
                self.sent.pop(key, None)
        self.endpoints.update(restored)

    def _ask(self) -> None:
        """Send on, or end, each side of the conversations whose two sides may differ after a restore."""
        for instance in self.world.instances:
            for endpoint in list(instance.tables.endpoints.values()):
                if endpoint.conversation in self.world.parted:
                    self._send(instance, endpoint.key, Content.DATA, b"still there?")
                    self._end(instance, endpoint.key)

    # --- applications

    def _begin_dialog(self) -> None:
        random = self.loop.random
        here, there = random.sample(self.world.instances, 2)
        service = EVERYWHERE if self._routes.reach_all(here) and random.random() < 0.6 else there.service
        endpoint = Endpoint(
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
            endpoint.peer_broker = str(there.tables.broker)
        here.tables.insert(endpoint)
        self._plan(here, endpoint.key, random.randint(1, 12), random.choice((Content.END, Content.ERROR, None)))

    def _plan(self, instance: Instance, key: Key, count: int, last: Content | None) -> None:
        """Schedule SENDs at random times, and perhaps an END CONVERSATION after them."""
        random = self.loop.random
        max_delays = 0.1, self._seconds
        delays = sorted(random.random() * random.choice(max_delays) for _ in range(count))
        for delay in delays:
            body = random.randbytes(random.choice((0, 5, 5, 30, 30, 100, 300)))
            self.loop.after(delay, lambda body=body: self._send(instance, key, Content.DATA, body))  # type: ignore[misc]
        if last is not None:
            end_delay = delays[-1] + random.random() * random.choice(max_delays)
            body = b"" if last is Content.END else ERROR_BODY
            self.loop.after(end_delay, lambda: self._send(instance, key, last, body))

    def _send(self, instance: Instance, key: Key, content: Content, body: bytes) -> None:
        """Send in a transaction that takes a while, so that transactions that began later may commit before it."""
        if key in self._busy:
            self.loop.after(0.05, lambda: self._send(instance, key, content, body))
            return
        endpoint = instance.tables.find(key)
        if endpoint is None:
            return
        self._busy.add(key)
        xact = instance.tables.begin()
        delay = self.loop.random.choice((0.0, 0.0, 0.3)) * self.loop.random.random()
        self.loop.after(
            delay, lambda: instance.commit(endpoint.handle, lambda: self._commit(instance, key, content, body, xact))
        )

    def _commit(self, instance: Instance, key: Key, content: Content, body: bytes, xact: int) -> None:
        self._busy.discard(key)
        tables, endpoint = instance.tables, instance.tables.find(key)
        if xact not in tables.unfinished:  # an old copy was restored meanwhile
            return
        tables.commit(xact)
        if endpoint is None or not endpoint.is_open or (content is not Content.DATA and not endpoint.send_sequence):
            return
        self.endpoints[key], self._homes[key] = endpoint, instance
        number = tables.send(endpoint, content, "//sim/type", body, self.loop.random.randbytes(8), xact)
        self.sent.setdefault(key, []).append(_SentMessage(content, body))
        self.loop.trace(instance, "application sends", key, number, content.name, len(body), "bytes")
        instance.poke()

    def _react(self, instance: Instance) -> None:
        """Let applications answer some messages, and end conversations that the peer has ended."""
        random = self.loop.random
        for endpoint in list(instance.tables.endpoints.values()):
            if self._homes.get(endpoint.key, instance) is not instance:
                self._doubled.append(f"{endpoint.key} is in {instance}, and was in {self._homes[endpoint.key]}")
            self.endpoints[endpoint.key], self._homes[endpoint.key] = endpoint, instance
            if endpoint.state in _ENDED and endpoint not in self._ending:
                self._ending.add(endpoint)
                self.loop.after(random.random() * 5, lambda key=endpoint.key: self._end(instance, key))  # type: ignore[misc]
            elif not endpoint.is_initiator and endpoint.key not in self._replies and endpoint.queue:
                self._replies.add(endpoint.key)
                if count := random.choice((0, 0, 1, 6)):
                    self._plan(instance, endpoint.key, count, random.choice((Content.END, None, None)))

    def _end(self, instance: Instance, key: Key) -> None:
        endpoint = instance.tables.find(key)
        if endpoint is not None:
            instance.commit(endpoint.handle, lambda: self._close(instance, key))

    def _close(self, instance: Instance, key: Key) -> None:
        endpoint = instance.tables.find(key)
        if endpoint is not None and endpoint.state in _ENDED:
            instance.tables.end(endpoint)
            instance.poke()

    # --- checks

    def _check(self) -> None:
        problems = [f"{instance}: {leak}" for instance in self.world.instances for leak in instance.leaks()]
        problems += self._hostile.findings
        problems += self._doubled
        begun = {conversation for conversation, _ in self.sent} | self.world.parted
        problems += [f"no application has begun {key}" for key in self.endpoints if key[0] not in begun]
        for key, sent in self.sent.items():
            if key[0] not in self.world.parted or not self._has_outcome(key):
                problems += self._compare(key, sent)
        if problems:
            raise GuaranteeBroken("\n".join(problems))

    def _has_outcome(self, key: Key) -> bool:
        """Check whether each open side of a conversation has an Error, or shows why its messages wait."""
        sides = (key, (key[0], not key[1]))
        failed = {side for side in sides if side in self.endpoints and self.endpoints[side].has_error}
        endpoints = [instance.tables.find(side) for instance, side in product(self.world.instances, sides)]
        open_sides = [endpoint for endpoint in endpoints if endpoint is not None and not endpoint.is_over]
        explained = [endpoint for endpoint in open_sides if endpoint.key in failed or is_waiting(endpoint)]
        return len(explained) == len(open_sides) and bool(explained or failed or not open_sides)

    def _compare(self, key: Key, sent: list[_SentMessage]) -> list[str]:
        """Check that all sent messages have arrived, or only the first ones if an end or error has stopped the rest."""
        sender, receiver = self.endpoints[key], self.endpoints.get((key[0], not key[1]))
        queue = [] if receiver is None else [_SentMessage(*row) for row in receiver.queue]
        received = [message for message in queue if not _is_of_broker(message)]
        data = [message for message in received if message.content is not Content.ERROR]
        if data != sent[: len(data)]:
            return [f"{key}: received {_show(received)}, sent {_show(sent)}"]
        errors = [message for message in received if message.content is Content.ERROR]
        if errors:
            return [] if errors == [received[-1]] == [sent[-1]] else [f"{key}: errors in {_show(received)}"]
        if len(data) == len(sent) or self._was_stopped(key, receiver):
            return []
        return [
            f"{key}: received {_show(received)} of {_show(sent)}, "
            f"states {sender.state} and {receiver and receiver.state}"
        ]

    def _was_stopped(self, key: Key, receiver: Endpoint | None) -> bool:
        """Check whether the receiver has ended, or the sender has failed the conversation before it was opened."""
        ended = {message.content for message in self.sent.get((key[0], not key[1]), ())} - {Content.DATA}
        never_opened = receiver is None and self.sent[key][-1].content is Content.ERROR
        return bool(ended) or never_opened


def _is_of_broker(message: _SentMessage) -> bool:
    """Check whether a message is an Error of the broker, not of an application."""
    return message.content is Content.ERROR and message.body != ERROR_BODY


def _show(messages: list[_SentMessage]) -> str:
    return " ".join(f"{message.content.name[0]}{len(message.body)}" for message in messages) or "nothing"


def run(case: Case, trace: Callable[[str], object] | None = None) -> Outcome:
    """Run one case.

    Raises:
        GuaranteeBroken: a guarantee was broken. Another run of the case breaks it again.
    """
    simulated_run = Run(case, trace)
    try:
        return simulated_run.finish()
    finally:
        simulated_run.close()


class Failure(NamedTuple):
    """A failing seed, with the exception."""

    seed: int
    reason: str


def run_many(seeds: range) -> tuple[Counter[str], list[Failure]]:
    """Run seeds, one after the other. Returns the number of runs with the sums of `Outcome`, and the failures."""
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
