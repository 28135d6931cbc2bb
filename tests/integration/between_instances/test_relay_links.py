"""Connections between instances: retries, losses, fairness for small and large messages, and acknowledgements."""

from __future__ import annotations

from collections import deque

import pytest

from remote_support import EAST, Pair, Wire, begin, open_conversation
from servicebroker.broker.conversations import CLEAR_STATUS_S
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.routing import parse_address
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE, bodies, state, waiting_messages


@pytest.mark.feature(133)
def test_an_unreachable_peer_is_retried_with_backoff(pair: Pair) -> None:
    west = pair.west
    west.is_connected = False
    begin(pair)
    west.round([])
    waits = []
    for _ in range(7):
        waits.append(west.relay.wake_at - west.seconds)
        west.seconds = west.relay.wake_at
        west.round([])
    assert waits == [pytest.approx(wait, rel=0.051) for wait in (4, 8, 16, 32, 64, 64, 64)]


@pytest.mark.feature(133)
def test_unacknowledged_messages_are_retried_with_backoff(pair: Pair) -> None:
    west = pair.west
    begin(pair)
    west.round([])
    sent, waits = west.seconds, []
    west.seconds += CLEAR_STATUS_S
    west.round([])  # the status of a sent message
    for _ in range(6):
        west.out.frames.clear()  # lost
        west.seconds = west.relay.wake_at
        waits.append(west.seconds - sent)
        sent = west.seconds
        west.round([])
        assert len(west.out.frames) == 1
    assert waits == [pytest.approx(wait, rel=0.051) for wait in (4, 8, 16, 32, 64, 64)]
    pair.rounds()
    assert len(pair.east.database.receive(STOCK_QUEUE)) == 1


@pytest.mark.feature(140)
def test_a_conversation_survives_a_lost_link(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    for number in range(1, 20):
        pair.west.database.send(handle, ORDER, str(number))
        pair.west.round([])
        if number % 3 == 0:  # all frames in transit are lost with the link
            pair.west.out.frames = deque()
            pair.west.relay.lost(pair.west.out, "gone")
            pair.west.relay.reached(parse_address(EAST))  # type: ignore[arg-type]
        pair.rounds(2)
    pair.pass_time(5)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [str(n).encode() for n in range(1, 20)]
    assert waiting_messages(pair.west.database) == 0


@pytest.mark.feature(131)
def test_a_small_message_overtakes_the_fragments_of_a_large_one(pair: Pair) -> None:
    large, small = (
        pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(2)
    )
    pair.west.database.send(large, ORDER, b"x" * 3_000_000)
    pair.rounds(1)
    pair.west.database.send(small, ORDER, b"small")
    pair.rounds(2)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"small"]
    pair.pass_time(1)
    pair.rounds(15)
    assert [len(body or b"") for body in bodies(pair.east.database.receive(STOCK_QUEUE))] == [3_000_000]


@pytest.mark.feature(131)
def test_large_messages_are_throttled_while_small_ones_are_sent(pair: Pair) -> None:
    """Fragments in transit delay later messages. At first they fill the window, afterwards one is sent at a time."""
    large, small = (
        pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(2)
    )
    pair.west.database.send(small, ORDER, b"first")
    pair.rounds(3)
    pair.pass_time(1)
    pair.west.database.send(large, ORDER, b"x" * 3_000_000)

    def bytes_of_round() -> int:
        """Run a round, and return its sent bytes. The other side stores and acknowledges them."""
        frames, pair.east.out.frames = list(pair.east.out.frames), deque()
        pair.west.round(frames)
        frames, pair.west.out.frames = list(pair.west.out.frames), deque()
        pair.east.round(frames)
        return sum(map(len, frames))

    assert bytes_of_round() > 8 * LIMITS.fragment_size
    pair.west.database.send(small, ORDER, b"0")
    assert bytes_of_round() < 3 * LIMITS.fragment_size  # only bytes that were queued before the small message
    for number in range(1, 5):
        pair.west.database.send(small, ORDER, str(number))
        assert bytes_of_round() == pytest.approx(LIMITS.fragment_size, abs=1_000)
    pair.pass_time(1)
    pair.rounds(15)
    messages = [message for _ in range(2) for message in pair.east.database.receive(STOCK_QUEUE)]
    assert sorted(len(body or b"") for body in bodies(messages)) == [1, 1, 1, 1, 1, 5, 3_000_000]


def test_large_messages_for_one_peer_do_not_delay_another(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    west, far = pair.west, Wire()
    links = {west.other: west.out, parse_address("TCP://far:4022"): far}
    monkeypatch.setattr(west, "reach", links.__getitem__)
    west.database.create_route("ToFar", service_name="//test/Far", address="TCP://far:4022")
    for _ in range(4):
        handle = west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
        west.database.send(handle, ORDER, b"x" * 3_000_000)
    west.round([])
    handle = west.database.begin_dialog(ORDERS, "//test/Far", contract=CONTRACT, encryption=False)
    west.database.send(handle, ORDER, b"small")
    west.round([])
    assert len(far.frames) == 1


@pytest.mark.feature(132)
def test_a_reply_carries_the_acknowledgement(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    for number in range(5):
        pair.west.database.send(handle, ORDER, str(number))
    pair.east.database.send(message.conversation_handle, REPLY, b"reply")
    pair.west.round([])
    frames, pair.west.out.frames = pair.west.out.frames, deque()
    assert len(frames) == 1  # five messages
    pair.east.round(frames)
    assert len(pair.east.out.frames) == 1  # the reply and the acknowledgement of all five
    frames, pair.east.out.frames = pair.east.out.frames, deque()
    pair.west.round(frames)
    assert waiting_messages(pair.west.database) == 0
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"reply"]


@pytest.mark.feature(135)
def test_an_acknowledgement_leaves_only_after_the_commit(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    pair.west.database.send(handle, ORDER, b"1")
    pair.west.round([])
    pair.east.connection.execute(
        "alter table servicebroker.arrivals add constraint no_more check (receive_sequence < 2)"
    )
    with pytest.raises(Exception, match="no_more"):
        pair.east.round(list(pair.west.out.frames))
    assert not pair.east.out.frames
    pair.west.out.frames.clear()
    pair.east.relay.forget()
    pair.east.connection.execute("alter table servicebroker.arrivals drop constraint no_more")
    pair.rounds()
    assert waiting_messages(pair.west.database) == 1
    pair.pass_time(5)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]


@pytest.mark.feature(116)
@pytest.mark.parametrize("kind_of_end", ["error", "refusal"])
def test_an_ended_conversation_frees_memory_and_link(pair: Pair, kind_of_end: str) -> None:
    west = pair.west
    handle, message = open_conversation(pair)
    for _ in range(8):
        west.database.send(handle, ORDER, b"x" * 30_000)
    west.out.room = 1
    west.round([])
    there = west.relay._conversations
    assert there.waiting_bytes > 100_000
    assert there.load(west.out) > 200_000
    if kind_of_end == "error":
        pair.east.database.end_conversation(message.conversation_handle, error=(1, "why"))
    else:
        pair.east.database.end_conversation(message.conversation_handle, cleanup=True)
        pair.east.relay.forget()
    pair.rounds(2)
    assert state(west.database, handle) == "ER"
    assert (there.waiting_bytes, there.load(west.out)) == (0, 0)
    west.out.room = 2**40
    pair.rounds(2)
    entry = there.get(handle)
    assert entry is not None
    assert entry.is_forgettable


@pytest.mark.feature(116)
def test_a_conversation_loaded_before_its_acknowledgement_is_stored(pair: Pair) -> None:
    """Its row was locked, and its route was dropped meanwhile."""
    west = pair.west
    handle = begin(pair)
    pair.rounds(1)
    assert [len(site.out.frames) for site in (west, pair.east)] == [0, 1]
    with west.database.transaction() as tx:
        tx.send(handle, ORDER, b"1")
        pair.rounds(1)  # the acknowledgement has arrived, and cannot be stored
        west.database.drop_route("ToStock")
        pair.rounds(1)
        pair.pass_time(5.1)
        pair.rounds(1)
    pair.pass_time(1.1)
    pair.rounds(1)
    west.database.create_route("ToStock", service_name=STOCK, address=EAST)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", b"1"]


@pytest.mark.feature(116)
def test_a_conversation_whose_keys_can_be_opened_again_receives_retries(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = open_conversation(pair)
    east = pair.east.relay
    east.forget()
    with monkeypatch.context() as patch:
        patch.setattr(east._conversations, "_session_of", lambda endpoint: None)
        pair.west.database.send(handle, ORDER, b"1")
        pair.rounds(2)
        assert waiting_messages(pair.west.database) == 1
    pair.pass_time(5)
    pair.rounds()
    pair.pass_time(10)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]
