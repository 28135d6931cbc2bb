"""Large messages from other instances: a round stores them beside the queue, and a thread enqueues them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from remote_support import Pair, begin, open_pair
from servicebroker.broker import kept_deliveries
from servicebroker.broker.kept_deliveries import KeptDeliveries
from servicebroker.engine.remote.arriving import LARGE_FRAGMENTS
from servicebroker.engine.remote.waiting_arrivals import deliver_free, deliver_kept, find_kept
from servicebroker.protocol.limits import LIMITS
from servicebroker.store.connection import connect
from servicebroker.store.running import in_transaction, run
from support import ORDER, STOCK_QUEUE, bodies, eventually, query, queue_number, waiting_messages

LARGE = LARGE_FRAGMENTS * LIMITS.fragment_size + 1
MAX_ROUNDS = 1_000  # more than the number of fragments, which may be sent one by one


class CountedDeliveries(KeptDeliveries):
    """Counts the requests for a delivery, and does nothing."""

    asked = 0

    def ask(self) -> None:
        self.asked += 1


@pytest.fixture
def pair(make_instance_url: Callable[..., str]) -> Iterator[Pair]:
    with open_pair(make_instance_url) as two:
        two.east.store.kept = CountedDeliveries(two.east.instance.url, two.east.clock)
        yield two


def count_requests(pair: Pair) -> int:
    assert isinstance(pair.east.store.kept, CountedDeliveries)
    return pair.east.store.kept.asked


def count_fragments(pair: Pair) -> int:
    """Return the number of fragments that are stored outside of the queue."""
    ((count,),) = query(pair.east.database, "select count(*)::int from servicebroker.arrived_fragments")
    assert isinstance(count, int)
    return count


def send_around(pair: Pair) -> bytes:
    """Send a large message between two small ones, until all are acknowledged. Return the large body."""
    handle = begin(pair)
    large = b"large" + bytes(LARGE)
    pair.west.database.send(handle, ORDER, large)
    pair.west.database.send(handle, ORDER, b"after")
    arrive(pair)
    return large


def arrive(pair: Pair) -> None:
    for _ in range(MAX_ROUNDS):
        pair.rounds(1)
        if waiting_messages(pair.west.database) == 0:
            return
        pair.pass_time(1)
    raise AssertionError("the messages were not acknowledged")


def test_a_round_does_not_assemble_a_large_message(pair: Pair) -> None:
    send_around(pair)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert count_fragments(pair) == LARGE_FRAGMENTS + 2
    assert count_requests(pair) >= 1


def test_the_thread_enqueues_messages_in_order(pair: Pair) -> None:
    large = send_around(pair)
    deliveries = KeptDeliveries(pair.east.instance.url, lambda: datetime.now(UTC))
    deliveries.ask()
    eventually(lambda: count_fragments(pair) == 0)
    deliveries.close()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", large, b"after"]
    before = count_requests(pair)
    pair.west.database.send(begin(pair), ORDER, b"small")
    arrive(pair)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", b"small"]
    assert count_requests(pair) == before


def test_a_message_below_the_limit_is_enqueued_at_once(pair: Pair) -> None:
    pair.west.database.send(begin(pair), ORDER, bytes(LARGE - 1))
    arrive(pair)
    assert [len(body or b"") for body in bodies(pair.east.database.receive(STOCK_QUEUE))] == [1, LARGE - 1]
    assert count_requests(pair) == 0


def test_the_end_waits_for_a_large_message(pair: Pair) -> None:
    handle = begin(pair)
    pair.west.database.send(handle, ORDER, bytes(LARGE))
    pair.west.database.end_conversation(handle)
    arrive(pair)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]
    with connect(pair.east.instance.url) as connection:
        for conversation in run(connection, find_kept()):
            in_transaction(connection, deliver_free(conversation, datetime.now(UTC)))
    messages = pair.east.database.receive(STOCK_QUEUE)
    assert [(len(message.message_body or b""), message.is_end_dialog) for message in messages] == [
        (LARGE, False),
        (0, True),
    ]


def test_a_round_does_not_wait_for_the_assembly_of_a_message(pair: Pair) -> None:
    """Messages for that conversation wait for another round meanwhile. Others are stored."""
    large = send_around(pair)
    west, east = pair.west.database, pair.east.database
    assert bodies(east.receive(STOCK_QUEUE)) == [b"0"]
    ((sender,),) = query(west, "select conversation_handle from servicebroker.conversation_endpoints")
    with connect(pair.east.instance.url) as connection, connection.transaction():
        assert run(connection, deliver_kept(run(connection, find_kept()), datetime.now(UTC))) == []
        west.send(sender, ORDER, b"meanwhile")
        begin(pair)
        pair.rounds(4)
        assert waiting_messages(west) == 1
        assert bodies(east.receive(STOCK_QUEUE)) == [b"0"]
        assert east.receive(STOCK_QUEUE) == []
    arrive(pair)
    assert bodies(east.receive(STOCK_QUEUE)) == [large, b"after", b"meanwhile"]


REFUSE = """
    create function refuse_large() returns trigger language plpgsql as $$
    begin raise 'no room'; end $$;
    create trigger refuse before insert on servicebroker.queue_{0} for each row
    when (octet_length(new.message_body) > {1}) execute function refuse_large();
"""


def test_a_failed_delivery_does_not_block_others(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_deliveries, "RETRY_S", 0.1)
    west, east = pair.west.database, pair.east.database
    for size in (LARGE + 1, LARGE):
        west.send(begin(pair, 0), ORDER, bytes(size))
        arrive(pair)
    deliveries = KeptDeliveries(pair.east.instance.url, lambda: datetime.now(UTC))
    with connect(pair.east.instance.url) as connection:
        connection.execute(REFUSE.format(queue_number(east, STOCK_QUEUE), LARGE))
        deliveries.ask()
        assert [len(body or b"") for body in bodies(east.receive(STOCK_QUEUE, wait=20))] == [LARGE]
        connection.execute("drop function refuse_large cascade")
    assert [len(body or b"") for body in bodies(east.receive(STOCK_QUEUE, wait=20))] == [LARGE + 1]
    deliveries.close()


def test_no_delivery_is_requested_for_a_disabled_queue(pair: Pair) -> None:
    pair.rounds()
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    send_around(pair)
    assert count_requests(pair) == 0
    pair.east.out.frames = deque()
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    eventually(lambda: count_fragments(pair) == 0)
    assert len(bodies(pair.east.database.receive(STOCK_QUEUE))) == 3
