"""Run a case: an instance in memory, strangers that send it a sequence of frames, and an honest peer."""

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

STEP_COUNT = 150  # rounds in one case
MAX_FRAMES = 8  # the most frames from strangers in one round
STRANGER_COUNT, OWNER_COUNT = 3, 2  # links of strangers; the last two have one owner
ROUND_CPU_LIMIT_S = 1.0  # seconds of processor time for a round
LIMITS = Limits(fragment_size=512, window=8_192, ahead_bytes=32_768)
BUDGET = Budget(openings=6, unfinished_bytes=16_384, addresses=3, waiting_messages=5, trace_contexts=20)
HONEST = "certificate honest"
HERE = Address("here", 4022)


class Failure(NamedTuple):
    """A case that broke something: the step at which it did, and the error."""

    number: int
    step: int
    problem: str


class BoundError(AssertionError):
    """A bound was exceeded, or a promise to the honest peer was broken."""


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
    """The attacked instance. It offers a service to everybody, forwards messages, and routes by names."""

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
        owners = (HONEST, *(f"certificate stranger{min(index, 1)}" for index in range(STRANGER_COUNT)))
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
        links = {"honest": self.honest, "stranger": self.strangers[0]}
        if address.host not in links:
            self.dialled.add(address)
        return links.get(address.host, "")

    def ask(self, address: Address, known: KnownTimeline) -> None:
        """Do nothing: no route is mirrored."""

    def check(self) -> None:
        """Compare the stored messages and the memory with the budgets.

        Raises:
            BoundError: one of them exceeds its budget.
        """
        openings = sum(endpoint.next == 0 and bool(endpoint.kept) for endpoint in self.tables.endpoints.values())
        fragments = [steps.values() for endpoint in self.tables.endpoints.values() for steps in endpoint.kept.values()]
        stored_bytes = sum(len(step.part.body or b"") for steps in fragments for step in steps)
        forwarded_bytes = self.relay.forwarding.held[1]
        bounds = (
            ("openings", openings, OWNER_COUNT * BUDGET.openings),
            ("bytes kept", stored_bytes, OWNER_COUNT * (2 * BUDGET.unfinished_bytes + LIMITS.ahead_bytes)),
            ("bytes to pass on", forwarded_bytes, MEGABYTE_BYTES),
            ("conversations remembered", self.relay.remembered, 500 + MAX_FRAMES),
        )
        for name, value, limit in bounds:
            if value > limit:
                raise BoundError(f"{value:,} {name}, {limit:,} at most")


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
        bodies = [] if endpoint is None else [body for _, body in endpoint.queue]
        if bodies != [b"%d" % number for number in range(self.sent)]:
            raise BoundError(f"the honest peer has sent {self.sent} messages, and {len(bodies)} arrived")


def run_case(number: int, steps: int = STEP_COUNT) -> Counter[str] | Failure:
    """Run a case. Returns the number of frames by outcome, or the failure."""
    draw = Random(f"frames {number}")
    instance = Instance(draw)
    sequence, honest = Sequence(draw, LIMITS, STRANGER_COUNT), HonestPeer(instance, draw)
    frames = step = 0
    logging_level, logging.root.manager.disable = logging.root.manager.disable, logging.CRITICAL
    try:
        for step in range(steps):  # noqa: B007 a failure names it
            strangers_frames = [sequence.frame() for _ in range(draw.randint(1, MAX_FRAMES))]
            frames += len(strangers_frames)
            arrivals = [
                Arrival(instance.strangers[frame.link], frame.body, frame.is_forwarded) for frame in strangers_frames
            ]
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
        logging.root.manager.disable = logging_level
    refusals = sum((link.refusals for link in instance.strangers), Counter[int]())
    return Counter({"frames": frames, **{f"refused with {error}": count for error, count in refusals.items()}})


def _round(instance: Instance, arrivals: list[Arrival]) -> None:
    """Run one round.

    Raises:
        BoundError: the round has taken too long.
    """
    started_at = time.process_time()
    instance.relay.round(instance.store, arrivals)
    seconds = time.process_time() - started_at
    if seconds > ROUND_CPU_LIMIT_S:
        raise BoundError(f"{seconds:.1f} s of processor time for {len(arrivals)} frames")
