"""Rounds (transactions) of the daemon: the messages that each round reads, stores and postpones."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from remote_support import WEST, Pair, begin, open_conversation
from servicebroker.broker import arrivals, postgres_store
from servicebroker.broker.relay import Relay
from servicebroker.engine.remote.departing import look
from servicebroker.protocol.envelope import encode, open_payload, parse
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.store import locks
from servicebroker.store.direct import run_command
from servicebroker.store.running import run
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    bodies,
    errors,
    query,
    state,
    waiting_messages,
)


def test_messages_that_a_round_sends_are_found_by_the_next_round(pair: Pair) -> None:
    """A round sends, for example, a request for a missing route. Later transactions may end before the round does."""
    database = pair.west.database
    handle = begin(pair)
    with psycopg.connect(database.instance.url) as connection:
        connection.execute("select pg_current_xact_id()")
        query(database, "select pg_current_xact_id()")  # another transaction begins later and ends first
        snapshot = run(connection, look(None)).snapshot
        database.join(connection).send(handle, ORDER, b"asks")
        connection.commit()
        assert [waiting.conversation_handle for waiting in run(connection, look(snapshot)).waiting] == [handle]


def test_only_commits_that_a_peer_relies_on_wait_for_the_disk(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash may lose a stored acknowledgement. Then the message is sent and acknowledged again."""
    lazy: list[bool] = []

    def record_command(connection: psycopg.Connection[Any], command: bytes) -> None:
        lazy.append(b"synchronous_commit = off" in command)
        run_command(connection, command)

    monkeypatch.setattr(postgres_store, "run_command", record_command)

    def commits_of_two_rounds() -> list[bool]:
        """Run two rounds. Return whether each of the first three commits skips the wait for the disk."""
        lazy.clear()
        pair.rounds(2)
        return lazy[:3]

    begin(pair)
    assert commits_of_two_rounds()[:2] == [False, False]  # the conversation is claimed, and its target is created
    handle, _ = open_conversation(pair)
    pair.west.database.send(handle, ORDER, b"x")
    # the rounds of west that sends, of east that stores, and of west that deletes the acknowledged message
    assert commits_of_two_rounds() == [True, False, True]
    assert waiting_messages(pair.west.database) == 0


def test_messages_of_a_locked_endpoint_are_stored_soon_after_the_lock(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    pair.east.database.send(message.conversation_handle, REPLY, b"a")
    with pair.east.database.transaction() as transaction:
        transaction.begin_dialog(STOCK, ORDERS, contract=CONTRACT, encryption=False)
        transaction.move_conversation(  # locks the row of the endpoint
            message.conversation_handle,
            query(
                pair.east.database,
                "select conversation_group_id from sys.conversation_endpoints where conversation_handle = %s",
                message.conversation_handle,
            )[0][0],
        )
        pair.west.database.send(handle, ORDER, b"1")
        pair.rounds()
        assert waiting_messages(pair.west.database) == 1
        assert pair.east.relay.wake_at < 1.1  # seconds of the test's clock: the relay tries again after one second
    pair.pass_time(1.0)  # a retry of the peer would take four seconds
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert waiting_messages(pair.east.database) == 0
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"a"]


def test_messages_behind_a_postponed_batch_are_stored_right_after_it(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    with psycopg.connect(pair.east.instance.url) as other_session:
        other_session.execute(
            "select from servicebroker.conversation_endpoints where conversation_handle = %s for update",
            (message.conversation_handle,),
        )
        for text in (b"1", b"2"):
            pair.west.database.send(handle, ORDER, text)
            pair.rounds(1)
    pair.east.round([])
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]
    assert pair.east.relay.wake_at <= pair.east.seconds
    pair.east.round([])  # a retry of the peer would take four seconds
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"2"]


def test_conversations_that_wait_for_a_later_round_are_sent(pair: Pair) -> None:
    """The memory holds the bodies of one conversation at a time. The other conversations have nothing in transit."""
    west = pair.west
    west.relay = Relay(west, west.clock, lambda: west.seconds, random.Random(1), budget=1)
    handles = [open_conversation(pair)[0] for _ in range(4)]
    for _ in range(3):  # no timer remains for the sent messages
        pair.pass_time(70.0)
        pair.rounds()
    for handle in handles:
        west.database.send(handle, ORDER, b"next")
    pair.rounds()
    assert waiting_messages(west.database) == 0


def test_messages_sent_while_a_relay_starts_are_found(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round receives a message and loads its conversation. The application answers before the round polls."""
    handle, message = open_conversation(pair)
    pair.west.database.send(handle, ORDER, b"1")
    pair.west.round([])
    pair.east.relay = pair.east.new_relay()
    find = pair.east.store.endpoints_of

    def found_before_the_answer(keys: Any) -> Any:
        endpoints = find(keys)
        pair.east.database.send(message.conversation_handle, REPLY, b"a")
        return endpoints

    with monkeypatch.context() as patch:
        patch.setattr(pair.east.store, "endpoints_of", found_before_the_answer)
        pair.east.round(pair.west.out.frames)
    pair.west.out.frames.clear()
    pair.rounds()
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"a"]


@pytest.mark.feature(137)
def test_a_transmission_object_exists_while_messages_are_in_transit(pair: Pair) -> None:
    """Both daemons create the object with the first message. Conversations within one instance need none."""
    west, east = pair.west, pair.east
    west_objects, east_objects = west.relay._conversations, east.relay._conversations
    west.database.create_service("//test/Here", STOCK_QUEUE, [CONTRACT])
    at_home = west.database.begin_dialog(ORDERS, "//test/Here", contract=CONTRACT)
    west.database.send(at_home, ORDER, b"x")
    handle = west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    pair.rounds()
    assert (len(west_objects), len(east_objects)) == (0, 0)
    west.database.send(handle, ORDER, b"0")
    west.round([])
    assert list(dict(west_objects.items())) == [handle]
    pair.rounds()
    assert len(east_objects) == 1
    entry = west_objects.get(handle)
    assert entry is not None
    assert entry.is_forgettable  # after the acknowledgement the object may be removed, and is created again on demand
    west_objects.forget(handle)
    east_objects.forget(east.database.receive(STOCK_QUEUE)[0].conversation_handle)
    west.database.send(handle, ORDER, b"1")
    pair.rounds()
    assert bodies(east.database.receive(STOCK_QUEUE)) == [b"1"]
    assert waiting_messages(west.database) == 0


def test_messages_that_wait_for_a_retry_are_not_forgotten(pair: Pair) -> None:
    """The connection was lost, and the conversation's memory is given to another conversation."""
    west = pair.west
    west.relay = Relay(west, west.clock, lambda: west.seconds, random.Random(1), capacity=1)
    begin(pair)
    west.round([])
    west.out.frames.clear()
    west.is_connected = False
    west.relay.lost(west.out, "The connection was lost.")
    begin(pair)
    west.round([])
    west.is_connected = True
    for _ in range(4):
        pair.pass_time(8)
        pair.rounds()
    assert waiting_messages(west.database) == 0


def test_a_corrupted_message_does_not_hide_its_conversation(pair: Pair) -> None:
    """The message arrives right after a start, for a conversation with messages to send."""
    handle, message = open_conversation(pair)
    pair.east.database.send(message.conversation_handle, REPLY, b"x")
    pair.east.round([])
    reply = pair.east.out.frames.pop()
    pair.west.database.send(handle, ORDER, b"waits")
    pair.west.relay = pair.west.new_relay()
    pair.west.round([reply[:-1] + bytes([reply[-1] ^ 1])])
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"waits"]


@pytest.mark.feature(137)
def test_more_conversations_wait_than_fit_in_memory(pair: Pair) -> None:
    """A peer is down for a long time and then reachable again, also after a restart of the daemon."""

    def new_small_relay() -> Relay:
        west = pair.west
        return Relay(west, west.clock, lambda: west.seconds, random.Random(1), capacity=20)

    pair.west.relay = new_small_relay()
    pair.west.is_connected = False
    for _ in range(100):
        begin(pair)
        pair.west.round([])
    assert len(pair.west.relay._conversations) <= 20
    pair.west.relay = new_small_relay()
    pair.west.is_connected = True
    for _ in range(100):
        pair.rounds(1)
        pair.pass_time(6)
        if not waiting_messages(pair.west.database):
            break
    assert waiting_messages(pair.west.database) == 0
    assert query(pair.east.database, "select count(*) from sys.conversation_endpoints") == [(100,)]


def test_conversations_evicted_from_memory_release_their_window_of_the_link(pair: Pair) -> None:
    """The window is also released if the peer refused the conversation, and so never acknowledges its messages."""
    west = pair.west
    west.relay = Relay(west, west.clock, lambda: west.seconds, random.Random(1), capacity=1)
    pair.east.database.revoke("SEND", "public", service=STOCK)
    for _ in range(3):
        begin(pair)
        pair.rounds()
    assert errors(west.database.receive(ORDERS_QUEUE)) == [-8494]
    pair.east.database.grant("SEND", "public", service=STOCK)
    begin(pair)
    pair.rounds()
    assert waiting_messages(west.database) == 0
    assert west.relay._conversations.load(west.out) == 0


def test_a_service_that_moves_to_another_queue_keeps_its_remote_conversations(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    pair.west.database.send(handle, ORDER, b"1")
    pair.rounds()
    pair.east.database.create_queue("Other")
    pair.east.database.alter_service(STOCK, queue="Other")
    pair.west.database.send(handle, ORDER, b"2")
    pair.rounds()
    assert bodies(pair.east.database.receive("Other")) == [b"1", b"2"]


def test_a_frame_with_invalid_names_affects_no_other_frame(pair: Pair) -> None:
    handle = begin(pair)
    pair.west.round([])
    (frame,) = pair.west.out.frames
    envelope = parse(frame)
    header = replace(envelope.header, from_service="//test\0Orders")
    pair.east.round([encode(header, open_payload(envelope, CHECKSUM), CHECKSUM)])
    assert query(pair.east.database, "select count(*) from sys.conversation_endpoints") == [(0,)]
    pair.rounds()
    assert len(pair.east.database.receive(STOCK_QUEUE)) == 1
    assert state(pair.west.database, handle) == "CO"


def test_a_conversation_without_memory_is_loaded_in_the_round_of_its_arriving_message(pair: Pair) -> None:
    """Its answer waits for a route while messages arrive. No message is lost in either direction."""
    handle, message = open_conversation(pair)
    pair.east.database.drop_route("ToOrders")
    pair.east.relay.forget()
    pair.east.database.send(message.conversation_handle, REPLY, b"a")
    for number in range(1, 6):
        pair.west.database.send(handle, ORDER, str(number))
        pair.rounds(1)
        pair.pass_time(5)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [str(n).encode() for n in range(1, 6)]
    pair.east.database.create_route("ToOrders", service_name=ORDERS, address=WEST)
    for _ in range(5):
        pair.rounds(2)
        pair.pass_time(5)
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"a"]
    assert waiting_messages(pair.west.database) == 0


def test_messages_that_arrive_during_a_long_alteration_are_stored_after_it(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    with pair.east.database.transaction() as transaction:
        lock = "select pg_advisory_xact_lock(%s, 0)"  # the lock that ALTER QUEUE holds while it delivers messages
        transaction.connection.execute(lock, (locks.PARKED_DELIVERY,))
        pair.west.database.send(handle, ORDER, b"1")
        begin(pair)
        pair.rounds()
        assert waiting_messages(pair.west.database) == 2
    pair.pass_time(5)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert sorted(bodies(pair.east.database.receive(STOCK_QUEUE, top=1) + pair.east.database.receive(STOCK_QUEUE))) == [
        b"0",
        b"1",
    ]


def test_a_conversation_that_begins_during_an_alteration_needs_no_retry(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MAX_KEPT", 3)  # first messages that the relay keeps while it cannot store them
    with pair.east.database.transaction() as transaction:  # as ALTER QUEUE does while it delivers parked messages
        transaction.connection.execute("select pg_advisory_xact_lock(%s, 0)", (locks.PARKED_DELIVERY,))
        for _ in range(4):
            begin(pair)
        for _ in range(3):
            pair.rounds(1)
            pair.pass_time(0.1)
        assert pair.east.database.receive(STOCK_QUEUE) == []
    pair.pass_time(1)
    pair.rounds()

    def count_conversations_and_waiting() -> tuple[int, int]:
        ((conversation_count,),) = query(pair.east.database, "select count(*) from sys.conversation_endpoints")
        return conversation_count, waiting_messages(pair.west.database)

    assert count_conversations_and_waiting() == (3, 1)
    pair.pass_time(5)  # the memory had no room for the frame
    pair.rounds()
    assert count_conversations_and_waiting() == (4, 0)


@pytest.mark.feature(116)
def test_a_locked_row_is_polled_again_after_a_pause(pair: Pair) -> None:
    """The daemon sleeps before it polls the locked row again."""
    west = pair.west
    handle = begin(pair)
    with west.database.transaction() as tx:
        tx.send(handle, ORDER, b"1")
        for _ in range(3):
            west.round([])
            assert west.relay.wake_at > west.seconds
            west.seconds = west.relay.wake_at
    pair.pass_time(1.1)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", b"1"]
