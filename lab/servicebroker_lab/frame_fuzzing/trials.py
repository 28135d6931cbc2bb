"""Cases, one after the other: an instance in memory, strangers that bring a sequence, and an honest peer."""

from __future__ import annotations

import logging
import time
from collections import Counter
from random import Random
from typing import NamedTuple
from uuid import UUID

from servicebroker.broker.peers import Peers
from servicebroker.broker.relay import Relay
from servicebroker.broker.transport.links import Arrival
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.protocol.budgets import Budget, Budgets
from servicebroker.protocol.envelope import Content, Header, Kind, Opening, Part, encode
from servicebroker.protocol.forwarding import MEGABYTE_BYTES
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.mirroring import KnownTimeline
from servicebroker.protocol.routing import LOCAL, TRANSPORT, Address, Route
from servicebroker_lab.frame_fuzzing.sequences import CONTRACT, MESSAGE_TYPE, STRANGER, TARGET, Sequence
from servicebroker_lab.simulation.simulated_time import MIDNIGHT
from servicebroker_lab.simulation.store import MemoryStore, Tables

STEP_COUNT = 150  # rounds of a case
MAX_FRAMES = 8  # that strangers bring to a round
STRANGER_COUNT, OWNER_COUNT = 3, 2  # links of strangers; the last two have one owner
ROUND_CPU_LIMIT_S = 1.0  # seconds of processor time for a round
LIMITS = Limits(fragment_size=512, window=8_192, ahead_bytes=32_768)
BUDGET = Budget(openings=6, unfinished_bytes=16_384, addresses=3, waiting_messages=5, trace_contexts=20)
HONEST = "certificate honest"
HERE = Address("here", 4022)


class Failure(NamedTuple):
    """A case that broke something: the step, and what."""

    number: int
    step: int
    problem: str


class BoundError(AssertionError):
    """A bound was passed, or a promise to the honest peer broken."""


class PeerLink:
    """A connection that takes everything and counts refusals."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.room = 2**40
        self.refusals: Counter[int] = Counter()

    def send(self, body: bytes, *, is_forwarded: bool = False) -> None:
        """Drop a frame."""

    def complain(self) -> None:
        """Do nothing."""

    def refused(self, number: int, text: str) -> None:
        """Count a refusal."""
        self.refusals[number] += 1

    def opened(self) -> None:
        """Do nothing."""

    def charge(self, seconds: float) -> None:
        """Do nothing."""


class Instance:
    """The instance that is attacked, with a service for everybody, forwarding, and a route by names."""

    def __init__(self, draw: Random) -> None:
        self.now = 0.0
        self.dialled: set[Address] = set()
        self.tables = Tables(UUID(int=draw.getrandbits(128)), draw)
        self.tables.limits = LIMITS
        self.tables.services.add(TARGET)
        routes = [
            Route("target", TARGET, None, None, LOCAL),
            Route("honest", "//honest", None, None, "TCP://honest:4022"),
        ]
        routes.append(Route("stranger", STRANGER, None, None, "TCP://stranger:4022"))
        self.tables.set_routes([*routes, Route("any", None, None, None, TRANSPORT)])
        owners = (HONEST, *(f"certificate stranger{min(place, 1)}" for place in range(STRANGER_COUNT)))
        self.honest, *self.strangers = map(PeerLink, owners)
        peers, here = Peers(), LocalInstance(frozenset({HERE}), True, frozenset(), 1)
        peers.proves = True
        self.budgets = peers.budgets = Budgets(BUDGET)
        self.relay = Relay(
            self, lambda: MIDNIGHT, lambda: self.now, draw, lambda: here, 500, peers=peers, limits=LIMITS
        )
        self.store = MemoryStore(self.tables, lambda: MIDNIGHT)

    def reach(self, address: Address) -> PeerLink | str:
        """Return the link to one of the peers; all other addresses do not answer."""
        known = {"honest": self.honest, "stranger": self.strangers[0]}
        if address.host not in known:
            self.dialled.add(address)
        return known.get(address.host, "")

    def ask(self, address: Address, known: KnownTimeline) -> None:
        """Do nothing: no route is mirrored."""

    def check(self) -> None:
        """Compare what is kept with the budgets.

        Raises:
            BoundError: something is beyond.
        """
        openings = sum(one.next == 0 and bool(one.kept) for one in self.tables.endpoints.values())
        fragments = [steps.values() for one in self.tables.endpoints.values() for steps in one.kept.values()]
        kept = sum(len(step.part.body or b"") for steps in fragments for step in steps)
        held = self.relay.forwarding.held[1]
        bounds = (
            ("openings", openings, OWNER_COUNT * BUDGET.openings),
            ("bytes kept", kept, OWNER_COUNT * (2 * BUDGET.unfinished_bytes + LIMITS.ahead_bytes)),
            ("bytes to pass on", held, MEGABYTE_BYTES),
            ("conversations remembered", self.relay.remembered, 500 + MAX_FRAMES),
        )
        for what, found, most in bounds:
            if found > most:
                raise BoundError(f"{found:,} {what}, {most:,} at most")


class HonestPeer:
    """A peer that sends messages in order, and knows which have arrived."""

    def __init__(self, instance: Instance, draw: Random) -> None:
        self._instance = instance
        self._conversation, self._broker = (UUID(int=draw.getrandbits(128)) for _ in range(2))
        self.sent = 0

    def sends(self) -> Arrival:
        """Return the next message."""
        names = TARGET, None, "//honest", self._broker
        opening = Opening(CONTRACT, 2**31 - 1, encryption=False)
        header = Header(self._conversation, True, Kind.RUN, False, *names, self.sent, opening=opening)
        part = Part(MESSAGE_TYPE, Content.DATA, b"%d" % self.sent, self.sent.to_bytes(8, "big"))
        self.sent += 1
        return Arrival(self._instance.honest, encode(header, (part,), CHECKSUM))

    def check(self) -> None:
        """Compare the queue with what was sent.

        Raises:
            BoundError: a message is missing, comes twice, or is somebody else's.
        """
        endpoint = self._instance.tables.find((self._conversation, False))
        arrived = [] if endpoint is None else [body for _, body in endpoint.queue]
        if arrived != [b"%d" % number for number in range(self.sent)]:
            raise BoundError(f"the honest peer has sent {self.sent} messages, and {len(arrived)} arrived")


def judge(number: int, steps: int = STEP_COUNT) -> Counter[str] | Failure:
    """Run a case. Returns its frames by outcome, or its failure."""
    draw = Random(f"frames {number}")
    instance = Instance(draw)
    sequence, honest = Sequence(draw, LIMITS, STRANGER_COUNT), HonestPeer(instance, draw)
    frames = step = 0
    silenced, logging.root.manager.disable = logging.root.manager.disable, logging.CRITICAL
    try:
        for step in range(steps):  # noqa: B007 a failure names it
            brought = [sequence.frame() for _ in range(draw.randint(1, MAX_FRAMES))]
            frames += len(brought)
            arrivals = [Arrival(instance.strangers[one.link], one.body, one.is_forwarded) for one in brought]
            arrivals.insert(draw.randint(0, len(arrivals)), honest.sends())
            _round(instance, arrivals)
            honest.check()
            instance.check()
            instance.now += draw.choice((0.0, 0.01, 0.01, 1.0, 20.0, 400.0))
            if draw.random() < 0.03:
                link = draw.choice(instance.strangers)
                instance.relay.lost(link, "it is over")
            if draw.random() < 0.02:
                instance.relay.forget()
    except Exception as problem:
        return Failure(number, step, f"{type(problem).__name__}: {problem}"[:500])
    finally:
        logging.root.manager.disable = silenced
    refusals = sum((link.refusals for link in instance.strangers), Counter[int]())
    return Counter({"frames": frames, **{f"refused with {error}": count for error, count in refusals.items()}})


def _round(instance: Instance, arrivals: list[Arrival]) -> None:
    """One round.

    Raises:
        BoundError: it has taken too long.
    """
    began = time.process_time()
    instance.relay.round(instance.store, arrivals)
    took = time.process_time() - began
    if took > ROUND_CPU_LIMIT_S:
        raise BoundError(f"{took:.1f} s of processor time for {len(arrivals)} frames")
