"""Arrivals: the memory for messages that wait for their batch is bounded, whatever a peer repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from remote_support import Wire
from servicebroker.broker.arrivals import (
    MAX_TRACES_PER_CONVERSATION,
    ArrivedTraces,
    PendingOpenings,
    ReceivedMessage,
)
from servicebroker.broker.conversations import MAX_CONVERSATIONS
from servicebroker.broker.departures import BODY_BUDGET_BYTES
from servicebroker.broker.relay import Relay
from servicebroker.broker.transport.links import Arrival
from servicebroker.engine.conversation.traces import MessageContext
from servicebroker.protocol.budgets import DEFAULT, Budgets
from servicebroker.protocol.dialog import Dialog
from servicebroker.protocol.envelope import Content, Header, Kind, Opening, Part, encode, parse
from servicebroker.protocol.incoming import Batch, Deliver, Keep
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.routing import LOCAL, Route
from servicebroker_lab.simulation.simulated_time import MIDNIGHT
from servicebroker_lab.simulation.store import MemoryStore, Tables

BODY_BYTES = 1_000
PEER = uuid4()


def traced_header(number: int, count: int) -> Header:
    """Return the header of a frame whose messages each have a trace context."""
    contexts = tuple((index, b"context") for index in range(count))
    return Header(uuid4(), True, Kind.RUN, False, "//to", None, "//from", uuid4(), number=number, traces=contexts)


def numbers(taken: list[MessageContext]) -> list[int]:
    return [message.number for message in taken]


def test_only_trace_contexts_of_stored_messages_are_taken() -> None:
    traces, handle, other_handle = ArrivedTraces(Budgets()), uuid4(), uuid4()
    part = Part("//type", Content.DATA, b"")
    # 3 and 4 are duplicates, 5 is next in order, 6 is dropped
    traces.note("certificate shop", handle, traced_header(3, 4))
    traces.note("certificate shop", handle, traced_header(9, 1))  # arrived early, and is kept
    traces.note("certificate shop", other_handle, traced_header(0, 1))  # only an acknowledgement
    batch = Batch(5, 6, [Deliver(5, (part,)), Keep(9, 0, 1, part)])
    assert numbers(traces.take({handle: batch}, ())) == [5, 9]
    assert traces.take({handle: batch, other_handle: batch}, ()) == []


def test_trace_contexts_wait_with_postponed_messages() -> None:
    traces, handle = ArrivedTraces(Budgets()), uuid4()
    traces.note("certificate shop", handle, traced_header(0, 2))
    batch = Batch(0, 2, [Deliver(0, (Part("//type", Content.DATA, b""),) * 2)])
    assert traces.take({}, [handle]) == []
    assert numbers(traces.take({handle: batch}, ())) == [0, 1]


def test_contexts_are_bounded_for_each_conversation_and_for_each_owner() -> None:
    traces, batch = (
        ArrivedTraces(Budgets()),
        Batch(0, 10**6, [Deliver(0, (Part("//type", Content.DATA, b""),) * 100_000)]),
    )
    handles = [uuid4() for _ in range(6)]
    for handle in handles:
        for first in range(0, 100_000, 300):
            traces.note("certificate shop", handle, traced_header(first, 300))
            traces.note("certificate shop", handle, traced_header(first, 300))  # comes again
    counts = [len(traces.take({handle: batch}, handles)) for handle in handles]
    assert counts == [MAX_TRACES_PER_CONVERSATION] * 2 + [0] * 4
    assert sum(counts) == DEFAULT.trace_contexts
    other_handle = uuid4()
    traces.note("certificate other", other_handle, traced_header(0, 300))
    assert len(traces.take({other_handle: batch}, ())) == 300


def test_messages_that_wait_for_rows_are_bounded_and_sent_again() -> None:
    """The rows of thirty conversations are locked: part of their messages is kept, and none is lost."""
    receiver = Receiver(budget=20 * 2 * (BODY_BYTES + LIMITS.message_cost))
    senders = [uuid4() for _ in range(30)]
    receiver.take(senders, 0)
    receiver.tables.is_held = lambda handle: True
    receiver.take(senders, 1)
    receiver.take(senders, 2)  # behind the waiting messages: these fill the memory, too
    assert len(receiver.relay._writer._postponed) == 20
    assert receiver.bodies(senders[0]) == [b"0" * BODY_BYTES]
    receiver.tables.is_held = lambda handle: False
    for number in (1, 2):  # peers retransmit unacknowledged messages
        receiver.take(senders, number)
    assert {sender: receiver.bodies(sender) for sender in senders} == {
        sender: [b"%d" % n * BODY_BYTES for n in range(3)] for sender in senders
    }


def test_no_more_conversations_wait_for_rows_than_have_room_in_memory() -> None:
    """The conversation that has waited longest is evicted, however small it is."""
    receiver = Receiver(capacity=5)
    senders = [uuid4() for _ in range(8)]
    receiver.take(senders, 0)
    receiver.tables.is_held = lambda handle: True
    for sender in senders:
        receiver.take([sender], 1)
    assert [receiver.tables.endpoints[handle].conversation for handle in receiver.relay._writer._postponed] == senders[
        3:
    ]


def test_a_peer_with_many_links_has_no_more_openings_wait_than_with_one() -> None:
    waiting = PendingOpenings(lambda: 0.0, Budgets())
    body = _message(uuid4(), 0)
    mallory = [
        ReceivedMessage(Wire(owner="certificate mallory"), parse(body), body, None, 0.0)
        for _ in range(2 * DEFAULT.waiting_messages)
    ]
    assert [waiting.keep(came) for came in mallory].count(True) == DEFAULT.waiting_messages
    assert waiting.keep(mallory[0]._replace(link=Wire(owner="certificate shop")))
    assert waiting.keep(mallory[0]._replace(link=Wire()))


class ChargedLink(Wire):
    """A link that records the time charged to it."""

    seconds = 0.0

    def charge(self, seconds: float) -> None:
        self.seconds += seconds


def test_each_peer_is_charged_for_the_time_that_its_messages_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to check, collect and acknowledge its messages counts."""
    clock = [0.0]
    receiver = Receiver(seconds=lambda: clock[0])
    costly, plain = ChargedLink(), ChargedLink()
    conversations = {costly: uuid4(), plain: uuid4()}
    for step in ("arrived", "batch", "transmit"):
        original = getattr(Dialog, step)

        def slowly(dialog: Dialog, *arguments: Any, original: Any = original) -> Any:
            clock[0] += 0.01 if dialog.identity.conversation_id == conversations[costly] else 0.0
            return original(dialog, *arguments)

        monkeypatch.setattr(Dialog, step, slowly)
    for number in range(3):
        receiver.relay.round(
            receiver.store,
            [Arrival(link, _message(conversation, number)) for link, conversation in conversations.items()],
        )
    assert plain.seconds == 0
    assert costly.seconds == pytest.approx(3 * 0.02)  # no link back to acknowledge the message


def test_storing_time_is_charged_to_peers_by_their_stored_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each link brings one frame: with a small message, a large one, or a hundred small ones."""
    clock = [0.0]
    receiver = Receiver(seconds=lambda: clock[0])
    small, large, many = ChargedLink(), ChargedLink(), ChargedLink()
    conversations = {small: uuid4(), large: uuid4(), many: uuid4()}
    receiver.relay.round(
        receiver.store, [Arrival(link, _message(conversation, 0)) for link, conversation in conversations.items()]
    )
    store = receiver.store.store

    def slowly(*arguments: Any) -> Any:
        clock[0] += 0.1
        return store(*arguments)

    monkeypatch.setattr(receiver.store, "store", slowly)
    bodies = {small: [b"x"], large: [bytes(10_000)], many: [b"x"] * 100}
    receiver.relay.round(
        receiver.store,
        [Arrival(link, _message(conversation, 1, bodies[link])) for link, conversation in conversations.items()],
    )
    costs = {link: sum(len(body) + LIMITS.message_cost for body in some) for link, some in bodies.items()}
    total = sum(costs.values())
    assert [link.seconds for link in costs] == [pytest.approx(0.1 * cost / total, abs=1e-3) for cost in costs.values()]
    assert many.seconds > 50 * small.seconds


class Receiver:
    """An instance that receives and sends nothing."""

    def __init__(
        self,
        budget: int = BODY_BUDGET_BYTES,
        capacity: int = MAX_CONVERSATIONS,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.tables = Tables(uuid4(), Random(1))
        self.tables.services.add("//target")
        self.tables.set_routes([Route("local", None, None, None, LOCAL)])
        nowhere: Any = None
        self.relay = Relay(nowhere, lambda: MIDNIGHT, seconds, Random(1), capacity=capacity, budget=budget)
        self.store = MemoryStore(self.tables, lambda: MIDNIGHT)
        self.link = Wire()

    def take(self, conversations: list[UUID], number: int) -> None:
        """Let one message of each conversation arrive."""
        self.relay.round(
            self.store, [Arrival(self.link, _message(conversation, number)) for conversation in conversations]
        )

    def bodies(self, conversation: UUID) -> list[bytes]:
        """Return the bodies in the queue of a conversation."""
        endpoint = self.tables.find((conversation, False))
        assert endpoint is not None
        return [body for _, body in endpoint.queue]


def _message(conversation: UUID, number: int, bodies: Sequence[bytes] = ()) -> bytes:
    names = ("//target", None, "//initiator", PEER)
    header = Header(conversation, True, Kind.RUN, False, *names, number, opening=Opening("//contract", 1_000, False))
    parts = tuple(Part("//type", Content.DATA, body) for body in bodies or [b"%d" % number * BODY_BYTES])
    return encode(header, parts, CHECKSUM)
