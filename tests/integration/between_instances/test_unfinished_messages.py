"""Incomplete messages of a peer: their limits, their expiry, and the reports about them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner

from remote_support import Pair, Site, Wire, begin, open_pair
from servicebroker.broker.relay import Relay
from servicebroker.broker.transport.links import Arrival
from servicebroker.cli.main import app
from servicebroker.engine.remote.unfinished_arrivals import forget_openings
from servicebroker.protocol.budgets import Budget, Budgets
from servicebroker.protocol.envelope import Content, Header, Kind, Opening, Part, encode, parse
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.limits import LIMITS
from servicebroker.store.running import run_alone
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, bodies, query

FRAGMENT_BYTES = LIMITS.fragment_size
QUOTA_BYTES = 10 * FRAGMENT_BYTES
SMALL_BUDGETS = Budgets(Budget(unfinished_bytes=QUOTA_BYTES, openings=40))
STORED_FRAGMENTS_SQL = (
    "select count(*), coalesce(sum(octet_length(message_body)), 0)::bigint from servicebroker.arrived_fragments"
)


@pytest.fixture
def pair(make_instance_url: Callable[..., str]) -> Iterator[Pair]:
    with open_pair(make_instance_url) as two:
        two.east.relay = new_relay(two.east)
        yield two


def new_relay(site: Site) -> Relay:
    """Return a relay (it runs the daemon's rounds) after a restart, with small budgets and the stored fragments."""
    return Relay(site, site.clock, lambda: site.seconds, random.Random(1), budgets=SMALL_BUDGETS)


class Stranger:
    """A peer with its own certificate, which sends fragments of new conversations."""

    def __init__(self, pair: Pair, owner: str) -> None:
        self._east = pair.east
        self.broker = uuid4()
        self.link = Wire(owner=owner)

    def send_fragment(
        self, conversation: UUID, fragment: int, fragments: int, number: int = 0, size: int = FRAGMENT_BYTES
    ) -> None:
        """Send one fragment of a message."""
        kind = Kind.RUN if fragments == 1 else Kind.FRAGMENT
        header = Header(
            conversation, True, kind, False, STOCK, None, ORDERS, self.broker, number, fragment, fragments,
            opening=Opening(CONTRACT, 10**6, False),
        )  # fmt: skip
        body = encode(header, (Part(ORDER, Content.DATA, bytes(size), bytes(8)),), CHECKSUM)
        self._east.relay.round(self._east.store, [Arrival(self.link, body)])

    def begin_conversations(
        self, conversations: int, fragments_each: int, fragments: int = LIMITS.most_fragments
    ) -> list[UUID]:
        """Begin conversations, and send `fragments_each` fragments of the first message of each. Return their ids."""
        begun = [uuid4() for _ in range(conversations)]
        for fragment in range(fragments_each):
            for conversation in begun:
                self.send_fragment(conversation, fragment, fragments)
        return begun


def stored_bytes(site: Site) -> int:
    return query(site.database, STORED_FRAGMENTS_SQL)[0][1]


def output_of(site: Site, command: str) -> str:
    return CliRunner().invoke(app, [command, "--instance", site.instance.url]).output


@pytest.fixture
def mallory(pair: Pair) -> Stranger:
    return Stranger(pair, "certificate mallory")


def test_a_peer_fills_at_most_its_quota_and_one_message(pair: Pair, mallory: Stranger) -> None:
    mallory.begin_conversations(20, 3)
    assert stored_bytes(pair.east) <= QUOTA_BYTES + 3 * FRAGMENT_BYTES  # the first message is always accepted
    assert len(endpoints(pair.east)) <= 11  # refused fragments create no target
    for _ in range(2):  # also after a restart
        pair.east.relay = new_relay(pair.east)
        before = stored_bytes(pair.east)
        mallory.begin_conversations(5, 2)
        Stranger(pair, "certificate mallory").begin_conversations(5, 2)
        assert stored_bytes(pair.east) == before
    assert {owner for (owner,) in query(pair.east.database, "select owner from servicebroker.arrived_fragments")} == {
        "certificate mallory"
    }


def test_the_quota_of_one_peer_does_not_affect_another(pair: Pair, mallory: Stranger) -> None:
    mallory.begin_conversations(20, 2)
    handle = begin(pair)
    pair.west.database.send(handle, ORDER, bytes(500_000))
    pair.rounds(4)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", bytes(500_000)]


def test_messages_larger_than_the_quota_arrive(pair: Pair) -> None:
    """Five concurrent messages, each larger than the quota of a peer, arrive one after the other."""
    sizes = range(12 * FRAGMENT_BYTES, 17 * FRAGMENT_BYTES, FRAGMENT_BYTES)
    for size in sizes:
        handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
        pair.west.database.send(handle, ORDER, bytes(size))
    arrived: list[int] = []
    for _ in range(200):  # senders of refused fragments retry after 4 to 64 seconds
        pair.rounds(1)
        pair.pass_time(2)
        assert stored_bytes(pair.east) <= QUOTA_BYTES + max(sizes)
        arrived += map(len, bodies(pair.east.database.receive(STOCK_QUEUE)))
        if len(arrived) == len(sizes):
            break
    assert sorted(arrived) == list(sizes)


def test_a_complete_message_is_not_counted(pair: Pair, mallory: Stranger) -> None:
    mallory.begin_conversations(1, 8, fragments=8)
    assert stored_bytes(pair.east) == 0
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [bytes(8 * FRAGMENT_BYTES)]
    mallory.begin_conversations(1, 8, fragments=9)  # a peer's first incomplete message is always accepted
    mallory.begin_conversations(1, 9, fragments=12)  # further messages may use the whole quota
    assert stored_bytes(pair.east) == 17 * FRAGMENT_BYTES


def test_idle_fragments_are_deleted_and_sent_again(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    body = random.Random(1).randbytes(6 * FRAGMENT_BYTES)
    pair.west.database.send(handle, ORDER, body)
    pair.west.round([])
    first = [pair.west.out.frames.popleft() for _ in range(3)]
    pair.east.round(first)
    pair.west.round(pair.east.out.frames)  # the fragments are acknowledged
    pair.west.out.frames = deque()
    pair.east.out.frames = deque()
    assert stored_bytes(pair.east) == 3 * FRAGMENT_BYTES
    pair.east.seconds += LIMITS.unfinished_idle - 1
    pair.east.round([])
    assert stored_bytes(pair.east) == 3 * FRAGMENT_BYTES
    pair.east.seconds += 40
    assert pair.east.relay.wake_at <= pair.east.seconds
    pair.east.round([])
    assert stored_bytes(pair.east) == 0
    for _ in range(5):
        pair.pass_time(70)
        pair.rounds(3)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", body]
    assert stored_bytes(pair.east) == 0


def test_idle_fragments_are_deleted_also_without_their_conversation_in_memory(pair: Pair, mallory: Stranger) -> None:
    mallory.begin_conversations(3, 2)
    age(pair.east, LIMITS.unfinished_idle - 100)
    pair.east.relay = new_relay(pair.east)
    pair.east.round([])
    assert stored_bytes(pair.east) == 6 * FRAGMENT_BYTES
    pair.east.seconds += 200
    pair.east.round([])
    assert stored_bytes(pair.east) == 0
    pair.east.seconds += 200
    pair.east.round([])
    assert pair.east.relay.wake_at > pair.east.seconds + 10**6


def test_messages_for_a_disabled_queue_are_not_idle(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send(handle, ORDER, bytes(3 * FRAGMENT_BYTES))
    pair.rounds()
    assert stored_bytes(pair.east) == 3 * FRAGMENT_BYTES
    age(pair.east, 10**6)
    pair.east.relay = new_relay(pair.east)
    for _ in range(2):
        pair.east.seconds += 10_000
        pair.east.round([])
    assert output_of(pair.east, "doctor").count("not complete") == 0
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", bytes(3 * FRAGMENT_BYTES)]


def test_fragments_of_an_ended_conversation_are_not_counted(pair: Pair, mallory: Stranger) -> None:
    mallory.begin_conversations(12, 1)
    before = stored_bytes(pair.east)
    for (handle,) in query(pair.east.database, "select conversation_handle from servicebroker.conversation_endpoints"):
        pair.east.database.end_conversation(handle, cleanup=True)
    pair.east.seconds += 31
    pair.east.round([])
    mallory.begin_conversations(12, 1)
    assert stored_bytes(pair.east) == before


def test_a_conversation_without_its_first_message_is_removed_after_five_minutes(pair: Pair, mallory: Stranger) -> None:
    conversations = [uuid4() for _ in range(3)]
    for conversation in conversations:
        mallory.send_fragment(conversation, 0, 1, number=5)
    partial = mallory.begin_conversations(1, 1)
    assert endpoints(pair.east) == {*conversations, *partial}
    assert not any(parse(body).header.acknowledgement for body in mallory.link.frames if parse(body).header.number == 0)
    pair.east.seconds += LIMITS.unfinished_idle_full + 31
    pair.east.round([])
    assert endpoints(pair.east) == {*partial}
    mallory.send_fragment(conversations[0], 0, 1, number=0)  # opens the conversation again
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [bytes(FRAGMENT_BYTES)]


def test_a_conversation_without_fragments_is_removed_after_a_day(pair: Pair, mallory: Stranger) -> None:
    (partial,) = mallory.begin_conversations(1, 1)
    with pair.east.instance.connection() as connection:
        for seconds, left in ((LIMITS.unfinished_idle + 31, {partial}), (0, set())):
            pair.east.seconds += seconds
            pair.east.round([])
            assert stored_bytes(pair.east) == 0
            if not seconds:
                query(pair.east.database, "update servicebroker.arrivals set opened_at = '2000-01-01' returning 1")
            run_alone(connection, forget_openings(datetime.now(UTC)))
            assert endpoints(pair.east) == left


def test_the_open_conversations_of_a_peer_are_limited(pair: Pair, mallory: Stranger) -> None:
    for _ in range(60):
        mallory.send_fragment(uuid4(), 1, 2, size=1)
    assert len(endpoints(pair.east)) == 40
    assert mallory.link.refusals == {10928: 20}
    mallory.send_fragment(uuid4(), 0, 1)  # a complete first message does not count as an opening
    assert len(endpoints(pair.east)) == 41
    pair.east.relay = new_relay(pair.east)
    mallory.send_fragment(uuid4(), 1, 2, size=1)
    assert len(endpoints(pair.east)) == 41
    Stranger(pair, "certificate shop").begin_conversations(1, 1, fragments=2)
    assert len(endpoints(pair.east)) == 42


def endpoints(site: Site) -> set[UUID]:
    """Return the conversation ids of all endpoints."""
    return {
        conversation
        for (conversation,) in query(site.database, "select conversation_id from servicebroker.conversation_endpoints")
    }


def test_doctor_and_status_report_unfinished_messages(pair: Pair, mallory: Stranger) -> None:
    assert "not complete" not in output_of(pair.east, "status").lower()
    mallory.begin_conversations(4, 2)
    assert "Incomplete messages from peer with certificate mallory: 4 in 4 conversations, 0.3 MB" in output_of(
        pair.east, "status"
    )
    assert "certificate mallory" not in output_of(pair.east, "doctor")  # the missing fragments may still be in transit
    age(pair.east, 400)
    output = output_of(pair.east, "doctor")
    assert "peer with certificate mallory: 4 messages of 4 conversations are not complete" in output


def age(site: Site, seconds: float) -> None:
    """Make stored fragments older by some seconds."""
    query(
        site.database,
        "update servicebroker.arrived_fragments set enqueue_time = enqueue_time - make_interval(secs => %s) "
        "returning 1",
        seconds,
    )


def test_a_restarted_daemon_counts_stored_messages_alike(pair: Pair, mallory: Stranger) -> None:
    """The daemon counts the same bytes from the store as it did when the fragments arrived."""
    begun: list[Any] = []
    conversations = mallory.begin_conversations(2, 2, 3)
    mallory.send_fragment(conversations[0], 1, 3, number=4)
    for relay in (pair.east.relay, new_relay(pair.east)):
        pair.east.relay = relay
        pair.east.round([])
        begun.append({conversation.begun for conversation in relay._unfinished._conversations.values()})
    assert begun[0] == begun[1]
