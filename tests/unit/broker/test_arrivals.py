"""What arrives: what waits for its batch is bounded, whatever a peer repeats."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID, uuid4

from remote_support import Wire
from servicebroker.broker.arrivals import TRACED, Settling
from servicebroker.broker.conversations import CAPACITY
from servicebroker.broker.departures import BUDGET
from servicebroker.broker.links import Arrival
from servicebroker.broker.relay import Relay
from servicebroker.engine.conversation.traces import Traced
from servicebroker.protocol.envelope import Content, Header, Kind, Opening, Part, encode
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.routing import LOCAL, Route
from servicebroker_lab.simulation.simulated_time import MIDNIGHT
from servicebroker_lab.simulation.store import MemoryStore, Tables

SIZE = 1_000
PEER = uuid4()


def test_trace_contexts_of_what_only_comes_again_do_not_pile_up() -> None:
    none: Any = None
    settling = Settling(none, lambda: 0.0, 0)
    settling._traced = [Traced(uuid4(), True, number, b"context") for number in range(TRACED + 5)]
    assert settling.store(none, set()) is None
    assert [one.number for one in settling._traced] == list(range(5, TRACED + 5))


def test_what_waits_for_rows_is_bounded_and_comes_again() -> None:
    """Somebody holds the rows of thirty conversations: of what comes for them a part is kept, and nothing is lost."""
    here = Receiver(budget=20 * 2 * (SIZE + LIMITS.message_cost))
    senders = [uuid4() for _ in range(30)]
    here.take(senders, 0)
    here.tables.is_held = lambda handle: True
    here.take(senders, 1)
    here.take(senders, 2)  # behind what waits: that fills the memory as well
    assert len(here.relay._settling._postponed) == 20
    assert here.bodies(senders[0]) == [b"0" * SIZE]
    here.tables.is_held = lambda handle: False
    for number in (1, 2):  # peers send again what is not acknowledged
        here.take(senders, number)
    assert {one: here.bodies(one) for one in senders} == {one: [b"%d" % n * SIZE for n in range(3)] for one in senders}


def test_no_more_conversations_wait_for_rows_than_have_room_in_memory() -> None:
    """What has waited longest gives way, however small it is."""
    here = Receiver(capacity=5)
    senders = [uuid4() for _ in range(8)]
    here.take(senders, 0)
    here.tables.is_held = lambda handle: True
    for one in senders:
        here.take([one], 1)
    assert [here.tables.endpoints[handle].conversation for handle in here.relay._settling._postponed] == senders[3:]


class Receiver:
    """An instance that only receives."""

    def __init__(self, budget: int = BUDGET, capacity: int = CAPACITY) -> None:
        self.tables = Tables(uuid4(), Random(1))
        self.tables.services.add("//target")
        self.tables.set_routes([Route("local", None, None, None, LOCAL)])
        nowhere: Any = None
        self.relay = Relay(nowhere, lambda: MIDNIGHT, lambda: 0.0, Random(1), capacity=capacity, budget=budget)
        self.store = MemoryStore(self.tables, lambda: MIDNIGHT)
        self.link = Wire()

    def take(self, conversations: list[UUID], number: int) -> None:
        """A message of each arrives."""
        self.relay.round(self.store, [Arrival(self.link, _message(one, number)) for one in conversations])

    def bodies(self, conversation: UUID) -> list[bytes]:
        """What is in the queue of one."""
        endpoint = self.tables.find((conversation, False))
        assert endpoint is not None
        return [body for _, body in endpoint.queue]


def _message(conversation: UUID, number: int) -> bytes:
    names = ("//target", None, "//initiator", PEER)
    header = Header(conversation, True, Kind.RUN, False, *names, number, opening=Opening("//contract", 1_000, False))
    return encode(header, (Part("//type", Content.DATA, b"%d" % number * SIZE),), CHECKSUM)
