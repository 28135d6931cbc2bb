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

from remote_support import Pair, Site, Wire, begin, paired
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

FULL = LIMITS.fragment_size
QUOTA = 10 * FULL
FEW = Budgets(Budget(unfinished_bytes=QUOTA, openings=40))
KEPT = "select count(*), coalesce(sum(octet_length(message_body)), 0)::bigint from servicebroker.arrived_fragments"


@pytest.fixture
def pair(make_instance_url: Callable[..., str]) -> Iterator[Pair]:
    with paired(make_instance_url) as two:
        two.east.relay = new_relay(two.east)
        yield two


def new_relay(site: Site) -> Relay:
    """Return a relay with little memory that knows the stored fragments."""
    return Relay(site, site.clock, lambda: site.seconds, random.Random(1), budgets=FEW)


class Stranger:
    """A peer with a certificate of its own that begins conversations."""

    def __init__(self, pair: Pair, owner: str) -> None:
        self._east = pair.east
        self.broker = uuid4()
        self.link = Wire(owner=owner)

    def brings(self, conversation: UUID, fragment: int, fragments: int, number: int = 0, size: int = FULL) -> None:
        """A fragment of a message of a conversation."""
        names, kind = (STOCK, None, ORDERS, self.broker), Kind.RUN if fragments == 1 else Kind.FRAGMENT
        header = Header(
            conversation, True, kind, False, *names, number, fragment, fragments,
            opening=Opening(CONTRACT, 10**6, False),
        )  # fmt: skip
        body = encode(header, (Part(ORDER, Content.DATA, bytes(size), bytes(8)),), CHECKSUM)
        self._east.relay.round(self._east.store, [Arrival(self.link, body)])

    def begins(self, conversations: int, each: int, fragments: int = LIMITS.most_fragments) -> list[UUID]:
        """Send this many fragments of each message, over this many conversations."""
        begun = [uuid4() for _ in range(conversations)]
        for fragment in range(each):
            for conversation in begun:
                self.brings(conversation, fragment, fragments)
        return begun


def kept_bytes(site: Site) -> int:
    return query(site.database, KEPT)[0][1]


def told(site: Site, command: str) -> str:
    return CliRunner().invoke(app, [command, "--instance", site.instance.url]).output


@pytest.fixture
def mallory(pair: Pair) -> Stranger:
    return Stranger(pair, "certificate mallory")


def test_a_peer_fills_no_more_than_its_quota_and_one_message(pair: Pair, mallory: Stranger) -> None:
    mallory.begins(20, 3)
    assert kept_bytes(pair.east) <= QUOTA + 3 * FULL  # the first is taken in any case
    assert len(endpoints(pair.east)) <= 11  # refused fragments make no target
    for _ in range(2):  # nor after a start
        pair.east.relay = new_relay(pair.east)
        before = kept_bytes(pair.east)
        mallory.begins(5, 2)
        Stranger(pair, "certificate mallory").begins(5, 2)
        assert kept_bytes(pair.east) == before
    assert {owner for (owner,) in query(pair.east.database, "select owner from servicebroker.arrived_fragments")} == {
        "certificate mallory"
    }


def test_an_honest_peer_beside_does_not_notice(pair: Pair, mallory: Stranger) -> None:
    mallory.begins(20, 2)
    handle = begin(pair)
    pair.west.database.send(handle, ORDER, bytes(500_000))
    pair.rounds(4)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", bytes(500_000)]


def test_messages_that_are_larger_than_the_quota_arrive_all_the_same(pair: Pair) -> None:
    """Five at a time, of which each is larger than all that is kept of a peer: one after the other."""
    sizes = range(12 * FULL, 17 * FULL, FULL)
    for size in sizes:
        handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
        pair.west.database.send(handle, ORDER, bytes(size))
    arrived: list[int] = []
    for _ in range(200):  # senders whose fragments were not taken try again after 4 to 64 seconds
        pair.rounds(1)
        pair.pass_time(2)
        assert kept_bytes(pair.east) <= QUOTA + max(sizes)
        arrived += map(len, bodies(pair.east.database.receive(STOCK_QUEUE)))
        if len(arrived) == len(sizes):
            break
    assert sorted(arrived) == list(sizes)


def test_a_message_that_is_complete_counts_no_more(pair: Pair, mallory: Stranger) -> None:
    mallory.begins(1, 8, fragments=8)
    assert kept_bytes(pair.east) == 0
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [bytes(8 * FULL)]
    mallory.begins(1, 8, fragments=9)  # the only one, which is taken in any case
    mallory.begins(1, 9, fragments=12)  # has the quota for itself
    assert kept_bytes(pair.east) == 17 * FULL


def test_what_is_idle_is_deleted_and_sent_again(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    body = random.Random(1).randbytes(6 * FULL)
    pair.west.database.send(handle, ORDER, body)
    pair.west.round([])
    first = [pair.west.out.frames.popleft() for _ in range(3)]
    pair.east.round(first)
    pair.west.round(pair.east.out.frames)  # they are acknowledged
    pair.west.out.frames = deque()
    pair.east.out.frames = deque()
    assert kept_bytes(pair.east) == 3 * FULL
    pair.east.seconds += LIMITS.unfinished_idle - 1
    pair.east.round([])
    assert kept_bytes(pair.east) == 3 * FULL
    pair.east.seconds += 40
    assert pair.east.relay.wake_at <= pair.east.seconds
    pair.east.round([])
    assert kept_bytes(pair.east) == 0
    for _ in range(5):
        pair.pass_time(70)
        pair.rounds(3)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", body]
    assert kept_bytes(pair.east) == 0


def test_what_lies_idle_without_its_conversation_in_memory_is_deleted_too(pair: Pair, mallory: Stranger) -> None:
    mallory.begins(3, 2)
    age(pair.east, LIMITS.unfinished_idle - 100)
    pair.east.relay = new_relay(pair.east)
    pair.east.round([])
    assert kept_bytes(pair.east) == 6 * FULL
    pair.east.seconds += 200
    pair.east.round([])
    assert kept_bytes(pair.east) == 0
    pair.east.seconds += 200
    pair.east.round([])
    assert pair.east.relay.wake_at > pair.east.seconds + 10**6


def test_what_waits_beside_a_queue_that_is_off_is_not_idle(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send(handle, ORDER, bytes(3 * FULL))
    pair.rounds()
    assert kept_bytes(pair.east) == 3 * FULL
    age(pair.east, 10**6)
    pair.east.relay = new_relay(pair.east)
    for _ in range(2):
        pair.east.seconds += 10_000
        pair.east.round([])
    assert told(pair.east, "doctor").count("not complete") == 0
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", bytes(3 * FULL)]


def test_what_an_application_has_ended_counts_no_more(pair: Pair, mallory: Stranger) -> None:
    mallory.begins(12, 1)
    before = kept_bytes(pair.east)
    for (handle,) in query(pair.east.database, "select conversation_handle from servicebroker.conversation_endpoints"):
        pair.east.database.end_conversation(handle, cleanup=True)
    pair.east.seconds += 31
    pair.east.round([])
    mallory.begins(12, 1)
    assert kept_bytes(pair.east) == before


def test_an_opening_of_which_only_later_messages_come_goes_after_five_minutes(pair: Pair, mallory: Stranger) -> None:
    conversations = [uuid4() for _ in range(3)]
    for conversation in conversations:
        mallory.brings(conversation, 0, 1, number=5)
    partial = mallory.begins(1, 1)
    assert endpoints(pair.east) == {*conversations, *partial}
    assert not any(parse(body).header.acknowledgement for body in mallory.link.frames if parse(body).header.number == 0)
    pair.east.seconds += LIMITS.unfinished_idle_full + 31
    pair.east.round([])
    assert endpoints(pair.east) == {*partial}
    mallory.brings(conversations[0], 0, 1, number=0)  # begins it again
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [bytes(FULL)]


def test_an_opening_that_lies_empty_for_a_day_goes(pair: Pair, mallory: Stranger) -> None:
    (partial,) = mallory.begins(1, 1)
    with pair.east.instance.connection() as connection:
        for seconds, left in ((LIMITS.unfinished_idle + 31, {partial}), (0, set())):
            pair.east.seconds += seconds
            pair.east.round([])
            assert kept_bytes(pair.east) == 0
            if not seconds:
                query(pair.east.database, "update servicebroker.arrivals set opened_at = '2000-01-01' returning 1")
            run_alone(connection, forget_openings(datetime.now(UTC)))
            assert endpoints(pair.east) == left


def test_a_peer_opens_no_more_conversations_at_a_time_than_its_budget(pair: Pair, mallory: Stranger) -> None:
    for _ in range(60):
        mallory.brings(uuid4(), 1, 2, size=1)
    assert len(endpoints(pair.east)) == 40
    assert mallory.link.refusals == {10928: 20}
    mallory.brings(uuid4(), 0, 1)  # a whole first message is no opening
    assert len(endpoints(pair.east)) == 41
    pair.east.relay = new_relay(pair.east)
    mallory.brings(uuid4(), 1, 2, size=1)
    assert len(endpoints(pair.east)) == 41
    Stranger(pair, "certificate shop").begins(1, 1, fragments=2)
    assert len(endpoints(pair.east)) == 42


def endpoints(site: Site) -> set[UUID]:
    """Return the conversations."""
    return {one for (one,) in query(site.database, "select conversation_id from servicebroker.conversation_endpoints")}


def test_doctor_and_status_tell_of_it(pair: Pair, mallory: Stranger) -> None:
    assert "not complete" not in told(pair.east, "status").lower()
    mallory.begins(4, 2)
    assert "Incomplete messages from peer with certificate mallory: 4 in 4 conversations, 0.3 MB" in told(
        pair.east, "status"
    )
    assert "certificate mallory" not in told(pair.east, "doctor")  # they may be on their way
    age(pair.east, 400)
    found = told(pair.east, "doctor")
    assert "peer with certificate mallory: 4 messages of 4 conversations are not complete" in found


def age(site: Site, seconds: float) -> None:
    """As if what is kept had come so much earlier."""
    query(
        site.database,
        "update servicebroker.arrived_fragments set enqueue_time = enqueue_time - make_interval(secs => %s) "
        "returning 1",
        seconds,
    )


def test_the_price_of_a_message_is_the_same_in_the_store(pair: Pair, mallory: Stranger) -> None:
    """After a start the daemon counts the same as it did while messages came."""
    begun: list[Any] = []
    conversations = mallory.begins(2, 2, 3)
    mallory.brings(conversations[0], 1, 3, number=4)
    for relay in (pair.east.relay, new_relay(pair.east)):
        pair.east.relay = relay
        pair.east.round([])
        begun.append({one.begun for one in relay._unfinished._conversations.values()})
    assert begun[0] == begun[1]
