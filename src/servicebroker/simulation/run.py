"""A run: conversations under faults; then faults stop, and everything must come out right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import NamedTuple
from uuid import UUID

from servicebroker.model.states import EndpointState
from servicebroker.protocol.dialog import Identity
from servicebroker.protocol.dialog_keys import UNSECURED, SessionKeys
from servicebroker.protocol.envelope import Content
from servicebroker.protocol.integrity import KEY_SIZE
from servicebroker.simulation.broker import SimulatedBroker, World, exchange, session_key
from servicebroker.simulation.faults import Faults, draw_limits
from servicebroker.simulation.simulated_network import Network
from servicebroker.simulation.simulated_time import Loop
from servicebroker.simulation.store import Endpoint, Key, Lost

FAULTY = 60.0  # seconds with faults
ASKING = 200.0  # seconds after which all who are open send something, where an old copy was restored
CALM = 900.0  # and without: retries are at most 64 seconds apart, connections are closed after 90


class Outcome(NamedTuple):
    """What happened in a run that went well."""

    messages: int
    corrupted: int


class _Sent(NamedTuple):
    content: Content
    body: bytes


class Run:
    """One seed's brokers, applications and books."""

    def __init__(self, seed: int, trace: Callable[[str], object] | None = None) -> None:
        self.seed = seed
        self.loop = Loop(seed, trace)
        random = self.loop.random
        faults = Faults.draw(random)
        self.loop.trace("run", faults)
        network = Network(self.loop, faults)
        self.world = World(self.loop, network, draw_limits(random), {}, {}, set())
        self.loop.trace("run", self.world.limits)
        for index in range(random.choice((2, 2, 3, 3))):
            broker = SimulatedBroker(self.world, index, UUID(int=random.getrandbits(128)))
            broker.on_delivery = self._react
            self.world.brokers[broker.guid] = broker
        network.listeners = list(self.world.brokers.values())
        self.sent: dict[Key, list[_Sent]] = {}
        self.endpoints: dict[Key, Endpoint] = {}  # also those that are gone
        self._replies: dict[Key, int] = {}
        for _ in range(random.randint(1, 4)):
            self._begin_dialog()
        self._look_at_links()

    def finish(self) -> Outcome:
        """Run to the end and judge.

        Raises:
            Lost: a promise was broken.
        """
        self.loop.run(FAULTY)
        self.loop.trace("run", "faults stop")
        self._settle_routes(detours=self.world.network.faults.detour > 0)
        self.world.network.heal()
        self.loop.after(ASKING, self._ask)
        self.loop.run(FAULTY + CALM)
        self._judge()
        received = sum(len(endpoint.queue) for endpoint in self.endpoints.values())
        return Outcome(received, sum(broker.corrupted for broker in self.world.brokers.values()))

    def _look_at_links(self) -> None:
        if self.loop.now < FAULTY:
            self.world.network.partition()
            self._change_routes()
            if not self.world.parted and self.loop.happens(self.world.network.faults.old_copy):
                self._make_copy(self.loop.random.choice(list(self.world.brokers.values())))
            self.loop.after(10.0, self._look_at_links)

    def _change_routes(self) -> None:
        """Routes lead straight to where they should, or to anybody."""
        brokers = list(self.world.brokers)
        for here in brokers:
            for there in brokers:
                if here != there and self.loop.happens(self.world.network.faults.detour):
                    others = [broker for broker in brokers if broker != here]
                    self._set_route(here, there, self.loop.random.choice(others))
                elif here != there:
                    self._set_route(here, there, there)

    def _settle_routes(self, *, detours: bool) -> None:
        """Every route leads there in the end: straight, or with detours through one forwarder."""
        brokers = list(self.world.brokers)
        for there in brokers:
            forwarder = self.loop.random.choice(brokers) if detours else there
            for here in brokers:
                if here != there:
                    self._set_route(here, there, there if forwarder in (here, there) else forwarder)

    def _set_route(self, here: UUID, there: UUID, hop: UUID) -> None:
        if self.world.routes.get((here, there), there) != hop:
            self.world.routes[here, there] = hop
            self.world.brokers[here].routes_changed(there)

    # --- an old copy

    def _make_copy(self, broker: SimulatedBroker) -> None:
        """What an instance is now, to be restored later."""
        self.loop.trace(broker, "is copied")
        copied = {key: endpoint.copy() for key, endpoint in broker.endpoints.items()}
        self.loop.after(self.loop.random.random() * 20, lambda: self._restore(broker, copied))

    def _restore(self, broker: SimulatedBroker, copied: dict[Key, Endpoint]) -> None:
        """What the instance's applications have done since was never done."""
        if self.world.parted:
            return
        was = broker.endpoints.keys() | {key for key in self.endpoints if self._is_at(broker, key)}
        self.world.parted.update(key[0] for key in was | copied.keys())
        broker.go_back(copied)
        for key in was:
            self.endpoints.pop(key, None)
            self.sent.pop(key, None) if key not in copied else self.sent.update({key: self._sent_by(copied, key)})
        self.endpoints.update(copied)

    def _sent_by(self, copied: dict[Key, Endpoint], key: Key) -> list[_Sent]:
        return self.sent.get(key, [])[: copied[key].send_sequence]

    def _is_at(self, broker: SimulatedBroker, key: Key) -> bool:
        return self.endpoints[key].identity.own_broker == broker.guid

    def _ask(self) -> None:
        """In conversations that may have come apart everybody has something to say, or ends."""
        for broker, conversation in product(self.world.brokers.values(), self.world.parted):
            for key in ((conversation, True), (conversation, False)):
                self._send(broker, key, Content.DATA, b"still there?")
                self._end(broker, key)

    # --- applications

    def _begin_dialog(self) -> None:
        random = self.loop.random
        here, there = random.sample(list(self.world.brokers.values()), 2)
        conversation = UUID(int=random.getrandbits(128))
        told, session = None, UNSECURED
        if random.random() < 0.6:
            secret, is_full = random.randbytes(KEY_SIZE), random.random() < 0.5
            told, session = exchange(secret, is_signed=is_full), SessionKeys(session_key(secret, random), None, is_full)
        key = (conversation.int, True)
        identity = Identity(
            conversation,
            True,
            here.guid,
            f"//sim/{here.guid}",
            f"//sim/{there.guid}",
            "//sim/contract",
            1e6,
            is_secured=told is not None,
            exchange=told,
        )
        here.endpoints[key] = Endpoint(identity, random.randint(1, 10), session)
        self._plan(here, key, random.randint(1, 12), random.choice((Content.END, Content.ERROR, None)))

    def _plan(self, broker: SimulatedBroker, key: Key, count: int, last: Content | None) -> None:
        """SENDs at random moments, one after the other, then perhaps an end."""
        random = self.loop.random
        moments = sorted(random.random() * random.choice((0.1, FAULTY)) for _ in range(count))
        for moment in moments:
            body = random.randbytes(random.choice((0, 5, 5, 30, 30, 100, 300)))
            self.loop.after(moment, lambda body=body: self._send(broker, key, Content.DATA, body))  # type: ignore[misc]
        if last is not None:
            end = moments[-1] + random.random() * random.choice((0.1, FAULTY))
            self.loop.after(end, lambda: self._send(broker, key, last, b"" if last is Content.END else b"why"))

    def _send(self, broker: SimulatedBroker, key: Key, content: Content, body: bytes) -> None:
        endpoint = broker.endpoints.get(key)
        if endpoint is None or not endpoint.is_open or (content is not Content.DATA and not endpoint.send_sequence):
            return
        self.endpoints[key] = endpoint
        number = endpoint.send(content, body, self.loop.random.randbytes(8))
        self.sent.setdefault(key, []).append(_Sent(content, body))
        self.loop.trace(broker, "application sends", key, number, content.name, len(body), "bytes")
        broker.poke(key)

    def _react(self, broker: SimulatedBroker, key: Key) -> None:
        """The application of the other side answers some messages, and every end."""
        endpoint = broker.endpoints.get(key)
        if endpoint is None:
            return
        self.endpoints[key] = endpoint
        random = self.loop.random
        if endpoint.state in (EndpointState.DISCONNECTED_INBOUND, EndpointState.ERROR):
            self.loop.after(random.random() * 5, lambda: self._end(broker, key))
        elif not key[1] and key not in self._replies and endpoint.queue:
            self._replies[key] = random.choice((0, 0, 1, 6))
            if self._replies[key]:
                self._plan(broker, key, self._replies[key], random.choice((Content.END, None, None)))

    def _end(self, broker: SimulatedBroker, key: Key) -> None:
        endpoint = broker.endpoints.get(key)
        if endpoint is not None and endpoint.state in (EndpointState.DISCONNECTED_INBOUND, EndpointState.ERROR):
            endpoint.close()
            broker.poke(key)
            broker.remove_closed(key)

    # --- the books

    def _judge(self) -> None:
        problems = [f"{broker}: {leak}" for broker in self.world.brokers.values() for leak in broker.leaks()]
        for key, sent in self.sent.items():
            if key[0] not in self.world.parted or not self._is_told(key):
                problems += self._compare(key, sent)
        if problems:
            raise Lost("\n".join(problems))

    def _is_told(self, key: Key) -> bool:
        """Whether there is an Error on each side, or it is held with the reason; of those sides that are not over."""
        sides = (key, (key[0], not key[1]))
        has_error = {one for one in sides if one in self.endpoints and self.endpoints[one].has_error}
        there = {
            (broker, one)
            for broker, one in product(self.world.brokers.values(), sides)
            if one in broker.endpoints and not broker.endpoints[one].is_over
        }
        told = {side for side in there if side[1] in has_error or side[0].is_held(side[1])}
        return told == there and bool(told or has_error or not there)

    def _compare(self, key: Key, sent: list[_Sent]) -> list[str]:
        """All that was sent has arrived; unless an end or error on either side has cut it off: then its beginning."""
        sender, receiver = self.endpoints[key], self.endpoints.get((key[0], not key[1]))
        received = [] if receiver is None else [_Sent(row.content, row.body) for row in receiver.queue]
        data = [one for one in received if one.content is not Content.ERROR]
        if data != sent[: len(data)]:
            return [f"{key}: received {_show(received)}, sent {_show(sent)}"]
        errors = [one for one in received if one.content is Content.ERROR]
        if errors:
            return [] if errors == [received[-1]] == [sent[-1]] else [f"{key}: errors in {_show(received)}"]
        if len(data) == len(sent) or self._was_cut_off(key, sender, receiver):
            return []
        return [
            f"{key}: received {_show(received)} of {_show(sent)}, "
            f"states {sender.state} and {receiver and receiver.state}"
        ]

    def _was_cut_off(self, key: Key, sender: Endpoint, receiver: Endpoint | None) -> bool:
        """The receiver ended before it had received all, or the sender's error found no conversation to end."""
        ended = {one.content for one in self.sent.get((key[0], not key[1]), ())} - {Content.DATA}
        never_opened = receiver is None and self.sent[key][-1].content is Content.ERROR
        return bool(ended) or never_opened


def _show(messages: list[_Sent]) -> str:
    return " ".join(f"{one.content.name[0]}{len(one.body)}" for one in messages) or "nothing"


def run(seed: int, trace: Callable[[str], object] | None = None) -> Outcome:
    """Run one seed.

    Raises:
        Lost: a promise was broken; the same seed breaks it again.
    """
    return Run(seed, trace).finish()


def trace_of(seed: int) -> list[str]:
    """What happens in a run, line by line, up to its failure."""
    lines: list[str] = []
    try:
        run(seed, lines.append)
    except Exception as problem:
        lines.append(f"{type(problem).__name__}: {problem}")
    return lines


class Failure(NamedTuple):
    """A seed that found something."""

    seed: int
    reason: str


def run_many(seeds: range) -> tuple[Counter[str], list[Failure]]:
    """Run seeds one after the other. Returns sums (runs, messages, corrupted) and the failures."""
    sums: Counter[str] = Counter()
    failures: list[Failure] = []
    for seed in seeds:
        sums["runs"] += 1
        try:
            outcome = run(seed)
        except Exception as problem:
            failures.append(Failure(seed, f"{type(problem).__name__}: {problem}"))
        else:
            sums.update(messages=outcome.messages, corrupted=outcome.corrupted)
    return sums, failures
