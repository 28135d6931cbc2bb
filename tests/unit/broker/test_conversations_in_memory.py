"""Conversations in memory: links and their load, disabled brokers, priorities, clocks, and room for others."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from remote_support import Wire
from servicebroker.broker.conversations import CLEAR_STATUS_S, RECENT_S, Conversations, Entry
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.model.states import EndpointState
from servicebroker.protocol.conversation_states import Event, Stage
from servicebroker.protocol.dialog import Sending
from servicebroker.protocol.dialog_keys import UNSECURED
from servicebroker.protocol.envelope import Content, Part
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.routing import Address
from servicebroker_lab.simulation.simulated_time import MIDNIGHT

HERE, THERE = Address("here", 4022), Address("there", 4022)
BODY_BYTES = 10
COST = BODY_BYTES + LIMITS.message_cost
BASIS: dict[str, Any] = {
    "is_initiator": True, "database_id": 1, "own_broker": UUID(int=1), "is_enabled": True, "own_service": "//own",
    "far_service": "//far", "peer_broker": None, "routed_broker": None, "contract": "//contract",
    "lifetime": MIDNIGHT + timedelta(days=1), "encryption": False, "priority": 8, "honors_priority": True,
    "state": EndpointState.CONVERSING, "is_remote": True, "is_acknowledged": True, "first": 0, "send_sequence": 2,
    "receive_sequence": 0, "failure": None, "kept": {},
}  # fmt: skip


class Links:
    """A link to each address, or why there is none."""

    def __init__(self) -> None:
        self.to: dict[Address, Any] = {HERE: Wire(), THERE: Wire()}

    def reach(self, address: Address) -> Any:
        return self.to[address]

    def ask(self, address: Address, known: object) -> None:
        raise AssertionError("no pair is asked")


class World:
    """Conversations in memory, and a test clock."""

    def __init__(self, capacity: int = 100) -> None:
        self.now, self.links = 0.0, Links()
        self.conversations = Conversations(
            self.links,
            lambda: MIDNIGHT,
            lambda: self.now,
            Random(1).random,
            capacity,
            LIMITS,
            lambda endpoint: UNSECURED,
        )

    def enter(self, **changes: Any) -> Entry:
        endpoint = RemoteEndpoint(conversation_handle=uuid4(), conversation_id=uuid4(), **(BASIS | changes))
        entry = self.conversations.get(self.conversations.enter(endpoint))
        assert entry is not None
        return entry

    def linked(self, address: Address = HERE, messages: int = 2, **changes: Any) -> Entry:
        """Return a conversation with a link and offered messages."""
        entry = self.enter(send_sequence=messages, **changes)
        self.conversations.on_event(entry, Event.ROUTED, address=address)
        entry.dialog.offer_run(0, [BODY_BYTES] * messages)
        parts = [Part("//type", Content.DATA, bytes(BODY_BYTES)) for _ in range(messages)]
        self.conversations.hold(entry, range(messages), parts)
        self.conversations.weigh(entry)
        assert self.conversations.attach(entry)
        return entry


def test_the_load_of_a_link_is_what_its_conversations_have_in_flight() -> None:
    world = World()
    conversations, link = world.conversations, world.links.to[HERE]
    first, second, other = world.linked(), world.linked(messages=3), world.linked(THERE)
    assert (conversations.load(link), conversations.load(world.links.to[THERE])) == (5 * COST, 2 * COST)
    conversations.on_event(first, Event.REROUTED, address=THERE)
    assert conversations.load(link) == 3 * COST
    conversations.forget(second.endpoint.conversation_handle)
    assert conversations.load(link) == 0
    conversations.lost(world.links.to[THERE], "cut")
    assert (other.stage, other.link, conversations.load(world.links.to[THERE])) == (Stage.CLAIMED, None, 0)


def test_bodies_count_until_they_are_sent_acknowledged_or_read_again() -> None:
    world = World()
    conversations = world.conversations
    entry, other, third = world.linked(messages=4), world.linked(messages=4), world.linked(THERE, messages=4)
    assert conversations.waiting_bytes == 12 * BODY_BYTES
    assert [part.body for part in conversations.take(entry, [0, 1])] == [bytes(BODY_BYTES)] * 2
    assert conversations.waiting_bytes == 10 * BODY_BYTES
    conversations.release(other, 3)
    assert (conversations.waiting_bytes, list(other.parts)) == (7 * BODY_BYTES, [3])
    conversations.hold(other, [3], [Part("//type", Content.DATA, bytes(BODY_BYTES))])  # is there already
    assert conversations.waiting_bytes == 7 * BODY_BYTES
    conversations.lost(world.links.to[HERE], "cut")
    assert conversations.waiting_bytes == 4 * BODY_BYTES
    conversations.forget(third.endpoint.conversation_handle)
    assert conversations.waiting_bytes == 0


def test_a_lost_link_or_address_concerns_its_own_conversations_only() -> None:
    world = World()
    conversations = world.conversations
    entry, other = world.linked(), world.linked(THERE)
    assert conversations.lost(world.links.to[HERE], "cut") == [HERE]
    assert (entry.link, entry.status, other.link) == (None, "cut", world.links.to[THERE])
    for address, is_told in ((THERE, False), (HERE, True)):
        conversations.unreached(address, "refused")
        assert (entry.status == "refused") is is_told
        assert other.stage is Stage.LINKED
    assert not entry.dialog.has_work(world.now)
    for address, is_told in ((THERE, False), (HERE, True)):
        conversations.reached(address)
        assert entry.dialog.has_work(world.now) is is_told


def test_conversations_of_a_broker_are_touched_when_it_is_disabled_and_enabled() -> None:
    world = World()
    conversations = world.conversations
    entry, other = world.enter(), world.enter(database_id=2)
    handle, other_handle = entry.endpoint.conversation_handle, other.endpoint.conversation_handle
    for disabled, touched in (
        (set(), set()),
        ({1}, {handle}),
        ({1}, set()),
        ({1, 2}, {other_handle}),
        ({2}, {handle}),
        (set(), {other_handle}),
    ):
        assert conversations.enable(frozenset(disabled)) == touched
        assert [conversations.is_enabled(each) for each in (entry, other)] == [1 not in disabled, 2 not in disabled]


def test_a_disabled_broker_sends_nothing_and_says_why() -> None:
    world = World()
    entry = world.linked()
    handle = entry.endpoint.conversation_handle
    world.conversations.enable(frozenset({1}))
    world.conversations.enqueue(handle)
    assert (entry.link, entry.dialog.has_work(world.now)) == (None, False)
    assert "disabled" in world.conversations.take_statuses()[handle]
    world.conversations.enable(frozenset())
    assert entry.dialog.has_work(world.now)


@pytest.mark.parametrize(("honors", "expected"), [(True, ["high", "low"]), (False, ["low", "high"])])
def test_priorities_count_if_the_database_honors_them(honors: bool, expected: list[str]) -> None:
    world = World()
    entries = {
        name: world.linked(priority=priority, honors_priority=honors) for name, priority in (("low", 3), ("high", 9))
    }
    for entry in entries.values():
        world.conversations.enqueue(entry.endpoint.conversation_handle)
    ((_, line),) = world.conversations.lines
    turns = [line.take() for _ in entries]
    names = {entry.endpoint.conversation_handle: name for name, entry in entries.items()}
    assert [names[turn.key] for turn in turns if turn] == expected


def test_a_frame_is_dated_by_the_clock_that_the_target_has_reported() -> None:
    entry = World().enter()
    assert entry.date(1_000, 5.0) == 1_000
    entry.note_peer_clock(500, 5.0)
    assert [entry.date(1_000 + seconds, 5.0 + seconds) for seconds in (0, 1, 90)] == [500, 501, 590]


def test_a_new_conversation_shows_that_its_messages_are_on_their_way_only_after_a_while() -> None:
    world = World()
    entry = world.linked()
    handle = entry.endpoint.conversation_handle
    assert world.conversations.take_statuses() == {}
    assert world.conversations.wake_at == CLEAR_STATUS_S
    world.now = CLEAR_STATUS_S
    assert world.conversations.take_statuses() == {handle: ""}
    assert world.conversations.take_statuses() == {}
    quick = world.linked()
    quick.end = quick.dialog.next_to_offer
    quick.dialog.close()
    world.conversations.acknowledged(quick, 2)
    world.now += CLEAR_STATUS_S
    assert world.conversations.take_statuses() == {}


def test_a_status_is_written_once_for_each_change() -> None:
    world = World()
    entry = world.enter()
    handle = entry.endpoint.conversation_handle
    for status, written in (("cut", {handle: "cut"}), ("", {handle: ""}), ("", {}), ("cut", {handle: "cut"})):
        world.conversations.set_status(entry, status)
        assert world.conversations.take_statuses() == written


def test_the_recent_traffic_of_a_link_is_that_of_the_last_second() -> None:
    world = World()
    entry, link = world.linked(messages=3), world.links.to[HERE]
    assert world.conversations.recent_bytes(link) == 0
    entry.dialog.close()
    world.now = RECENT_S / 2
    world.conversations.weigh(entry)
    for seconds, is_recent in ((0.0, True), (RECENT_S, True), (2.5 * RECENT_S, False)):
        world.now = RECENT_S / 2 + seconds
        assert (world.conversations.recent_bytes(link) == 3 * COST) is is_recent


@pytest.mark.parametrize(
    ("changes", "sending"),
    [
        ({}, Sending.FLOWING),
        ({"state": EndpointState.DISCONNECTED_OUTBOUND}, Sending.ENDING),
        ({"state": EndpointState.ERROR}, Sending.FAILED),
        ({"state": EndpointState.CLOSED}, Sending.CLOSED),
        ({"state": EndpointState.DISCONNECTED_INBOUND, "receive_sequence": 3}, Sending.HELD),
        ({"is_end_waiting": True, "receive_sequence": 3}, Sending.HELD),
    ],
)
def test_a_conversation_goes_on_in_its_stored_state(changes: dict[str, Any], sending: Sending) -> None:
    entry = World().enter(**changes)
    assert entry.dialog.sending is sending
    assert entry.stage is Stage.CLAIMED_UNROUTED
    assert World().enter(is_remote=False).stage is Stage.UNROUTED


def test_idle_conversations_make_room_before_waiting_ones_and_busy_ones_never() -> None:
    world = World(capacity=4)
    busy = [world.linked() for _ in range(2)]
    waiting = [world.enter() for _ in range(2)]
    assert not world.conversations.make_room()
    idle = [world.enter(send_sequence=0) for _ in range(2)]
    assert not world.conversations.make_room()
    remaining = {handle for handle, _ in world.conversations.items()}
    assert remaining == {entry.endpoint.conversation_handle for entry in (*busy, *waiting)}
    assert not remaining & {entry.endpoint.conversation_handle for entry in idle}
    world.enter()
    assert world.conversations.make_room()
    assert {entry.endpoint.conversation_handle for entry in busy} <= {
        handle for handle, _ in world.conversations.items()
    }
    assert world.conversations.room == 0
    for entry in (*busy, *waiting, *idle):
        key = entry.endpoint.conversation_id, entry.endpoint.is_initiator
        assert (world.conversations.find(*key) is not None) is (
            entry.endpoint.conversation_handle in world.conversations
        )
