"""Large messages from other instances: a round stores them outside of their queue, a thread inserts them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from remote_support import Pair, begin, paired
from servicebroker.broker import kept_deliveries
from servicebroker.broker.kept_deliveries import KeptDeliveries
from servicebroker.engine.remote.arriving import LARGE_FRAGMENTS
from servicebroker.engine.remote.waiting_arrivals import deliver_free, deliver_kept, find_kept
from servicebroker.protocol.limits import LIMITS
from servicebroker.store.connection import connect
from servicebroker.store.running import in_transaction, run
from support import ORDER, STOCK_QUEUE, bodies, eventually, query, queue_number, waiting_messages

LARGE = LARGE_FRAGMENTS * LIMITS.fragment_size + 1
MAX_ROUNDS = 1_000  # more than fragments, which may travel one by one


class Noted(KeptDeliveries):
    """Counts how often it is asked, and does nothing."""

    asked = 0

    def ask(self) -> None:
        self.asked += 1


@pytest.fixture
def pair(make_instance_url: Callable[..., str]) -> Iterator[Pair]:
    with paired(make_instance_url) as two:
        two.east.store.kept = Noted(two.east.instance.url, two.east.clock)
        yield two


def asked(pair: Pair) -> int:
    assert isinstance(pair.east.store.kept, Noted)
    return pair.east.store.kept.asked


def kept(pair: Pair) -> int:
    """Return the number of fragments beside the queue."""
    ((count,),) = query(pair.east.database, "select count(*)::int from servicebroker.arrived_fragments")
    assert isinstance(count, int)
    return count


def send_around(pair: Pair) -> bytes:
    """A small message, a large one and a small one; all of them are acknowledged."""
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


def test_a_round_does_not_put_it_together(pair: Pair) -> None:
    send_around(pair)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert kept(pair) == LARGE_FRAGMENTS + 2
    assert asked(pair) >= 1


def test_the_thread_delivers_it_in_order_with_what_follows(pair: Pair) -> None:
    large = send_around(pair)
    deliveries = KeptDeliveries(pair.east.instance.url, lambda: datetime.now(UTC))
    deliveries.ask()
    eventually(lambda: kept(pair) == 0)
    deliveries.close()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", large, b"after"]
    before = asked(pair)
    pair.west.database.send(begin(pair), ORDER, b"small")
    arrive(pair)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", b"small"]
    assert asked(pair) == before


def test_a_message_that_is_just_not_large_goes_into_its_queue_at_once(pair: Pair) -> None:
    pair.west.database.send(begin(pair), ORDER, bytes(LARGE - 1))
    arrive(pair)
    assert [len(body or b"") for body in bodies(pair.east.database.receive(STOCK_QUEUE))] == [1, LARGE - 1]
    assert asked(pair) == 0


def test_the_end_of_the_conversation_waits_for_it(pair: Pair) -> None:
    handle = begin(pair)
    pair.west.database.send(handle, ORDER, bytes(LARGE))
    pair.west.database.end_conversation(handle)
    arrive(pair)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]
    with connect(pair.east.instance.url) as connection:
        for one in run(connection, find_kept()):
            in_transaction(connection, deliver_free(one, datetime.now(UTC)))
    messages = pair.east.database.receive(STOCK_QUEUE)
    assert [(len(one.message_body or b""), one.is_end_dialog) for one in messages] == [(LARGE, False), (0, True)]


def test_a_round_waits_for_nobody_who_puts_it_together(pair: Pair) -> None:
    """Messages for that conversation wait for another round meanwhile; others are stored."""
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


def test_one_that_fails_keeps_no_other_out(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_beside_a_queue_that_is_off_nobody_is_asked(pair: Pair) -> None:
    pair.rounds()
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    send_around(pair)
    assert asked(pair) == 0
    pair.east.out.frames = deque()
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    eventually(lambda: kept(pair) == 0)
    assert len(bodies(pair.east.database.receive(STOCK_QUEUE))) == 3
