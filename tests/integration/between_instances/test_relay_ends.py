"""Ends of conversations between instances: ends that cross, replays after an end, lifetimes, and dropped objects."""

from __future__ import annotations

import pytest

from remote_support import Pair, begin, leftovers, open_conversation
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    errors,
    query,
    queue_number,
    refused,
    state,
    waiting_messages,
)


def test_both_sides_end_at_the_same_time(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    pair.west.database.end_conversation(handle)
    pair.east.database.end_conversation(message.conversation_handle)
    for _ in range(4):
        pair.rounds()
        pair.pass_time(5)
    assert leftovers(pair.west) == {}
    assert state(pair.east.database, message.conversation_handle) == "CD"
    assert waiting_messages(pair.east.database) == 0


def test_an_end_is_sent_although_the_peers_end_arrived_before(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    pair.east.database.end_conversation(message.conversation_handle)
    pair.east.round([])
    pair.west.database.send(handle, ORDER, b"last")
    pair.west.database.end_conversation(handle)
    for _ in range(4):
        pair.rounds()
        pair.pass_time(5)
    assert leftovers(pair.west) == {}
    assert state(pair.east.database, message.conversation_handle) == "CD"


@pytest.mark.parametrize("seconds", [0, 5])
def test_a_replayed_first_message_does_not_open_a_closed_target_again(pair: Pair, seconds: int) -> None:
    handle = begin(pair)
    pair.west.round([])
    replay = list(pair.west.out.frames)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.west.database.end_conversation(handle)
    pair.rounds()
    pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.end_conversation(message.conversation_handle)
    pair.pass_time(seconds)
    pair.east.relay.forget()
    pair.east.round(replay)
    pair.rounds()
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert query(pair.east.database, "select state from sys.conversation_endpoints") == [("CD",)]


def test_an_ended_target_that_gets_an_error_is_closed_and_kept(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    pair.east.database.end_conversation(message.conversation_handle)
    pair.east.round([])
    pair.east.out.frames.clear()  # the EndDialog is lost
    pair.west.database.end_conversation(handle, error=(5, "no more"))
    pair.rounds()
    assert state(pair.east.database, message.conversation_handle) == "CD"
    assert waiting_messages(pair.east.database) == 0


@pytest.mark.feature(102)
def test_a_second_broker_that_answers_is_refused(pair: Pair) -> None:
    handle = begin(pair)
    pair.west.round([])
    first = list(pair.west.out.frames)
    pair.rounds()
    pair.east.database.receive(STOCK_QUEUE)
    # the same message has reached another broker, which opens its own target and answers
    pair.east.database.alter(new_broker=True)
    pair.east.relay = pair.east.new_relay()
    pair.east.round(first)
    pair.rounds()
    assert errors(pair.east.database.receive(STOCK_QUEUE)[:1]) == [-8495]
    pair.west.database.send(handle, ORDER, b"for the first one")
    pair.west.round([])
    assert pair.west.out.frames  # the first broker is still the target


def test_new_broker_removes_conversations_and_notifies_their_peers(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    pair.east.database.alter(new_broker=True)
    pair.west.database.send(handle, ORDER, b"1")
    for _ in range(3):
        pair.rounds()
        pair.pass_time(5)
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8462]


def test_error_broker_conversations_reaches_the_peer_at_its_next_message(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    pair.east.database.alter(error_broker_conversations=True)
    assert errors(pair.east.database.receive(STOCK_QUEUE)) == [-9719]
    pair.west.database.send(handle, ORDER, b"1")
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-9720]
    pair.east.database.end_conversation(message.conversation_handle)
    pair.west.database.end_conversation(handle)
    assert leftovers(pair.west) == {}


@pytest.mark.feature(22)
@pytest.mark.parametrize("forgets", [False, True])
def test_a_dropped_contract_reaches_the_peer_at_its_next_message(pair: Pair, forgets: bool) -> None:
    """Also after a restart of the daemon, which loads the conversation without its contract."""
    handle, message = open_conversation(pair)
    pair.east.database.alter_service(STOCK, drop_contracts=[CONTRACT])
    pair.east.database.drop_contract(CONTRACT)
    if forgets:
        pair.east.relay.forget()
    assert errors(pair.east.database.receive(STOCK_QUEUE)) == [-8487]
    pair.west.database.send(handle, ORDER, b"1")
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8487]
    assert waiting_messages(pair.west.database) == 0
    pair.east.database.end_conversation(message.conversation_handle)
    pair.west.database.end_conversation(handle)
    assert leftovers(pair.west) == {}


def test_lifetimes_end_on_both_sides_without_further_messages(pair: Pair) -> None:
    handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False, lifetime=60)
    pair.west.database.send(handle, ORDER, b"0")
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.west.is_connected = False
    pair.west.relay.lost(pair.west.out, "gone")
    pair.west.database.send(handle, ORDER, b"1")
    pair.rounds()
    pair.west.clock.jump(minutes=2)
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8489]
    assert errors(pair.east.database.receive(STOCK_QUEUE)) == [-8489]
    assert waiting_messages(pair.west.database) == 0
    pair.west.is_connected = True
    pair.pass_time(70)
    pair.rounds()
    pair.east.database.end_conversation(message.conversation_handle)
    pair.west.database.end_conversation(handle)
    assert leftovers(pair.west) == {}


def test_the_error_of_a_lifetime_is_enqueued_after_arrived_messages(pair: Pair) -> None:
    """Also if an older transaction detects the expiry, because a pipeline reads by stamps."""
    handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False, lifetime=60)
    with pair.east.database.transaction() as old:
        old.connection.execute("select pg_current_xact_id()")
        pair.west.database.send(handle, ORDER, b"0")
        pair.rounds()
        pair.east.clock.jump(minutes=2)
        number = queue_number(pair.east.database, STOCK_QUEUE)
        old.connection.execute(f"select servicebroker.expire_{number}(%s)".encode(), (pair.east.clock(),))
    text = f"select stamp::text::bigint from servicebroker.queue_{number} order by rank"
    (error,), (message,) = query(pair.east.database, text)
    assert error >= message
    assert [m.is_error for m in pair.east.database.receive(STOCK_QUEUE)] == [True, False]


def test_a_dropped_service_s_peer_gets_an_error_when_it_sends(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    pair.east.database.drop_service(STOCK)
    pair.west.database.send(handle, ORDER, b"1")
    for _ in range(3):
        pair.rounds()
        pair.pass_time(5)
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8462]


def test_a_second_end_is_refused_while_the_first_is_in_transit(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    pair.west.database.send(handle, ORDER, b"last")
    pair.west.database.end_conversation(handle)
    with refused(8427):
        pair.west.database.end_conversation(handle)
    pair.rounds()
    last, end = pair.east.database.receive(STOCK_QUEUE)
    assert (last.message_body, end.is_end_dialog) == (b"last", True)
    assert leftovers(pair.west) == {}
