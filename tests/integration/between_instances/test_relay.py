"""Conversations between two instances, by relays over a simulated connection whose frames the test passes on."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

import servicebroker as sb
from remote_support import EAST, Pair, begin, leftovers
from servicebroker.api.maintenance import run_maintenance
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.owner_verbs import OwnerVerbs
from servicebroker.operations import SendBatch
from servicebroker.protocol.routing import parse_address
from servicebroker.store.running import run
from servicebroker.store.statements import only, resume
from support import (
    CONTRACT,
    DOCUMENT,
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


@pytest.mark.feature(51, 127, 128)
def test_a_message_and_its_reply_are_delivered(pair: Pair) -> None:
    handle = begin(pair, 3)
    assert waiting_messages(pair.west.database) == 3
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    messages = pair.east.database.receive(STOCK_QUEUE)
    assert [(m.message_sequence_number, m.message_body) for m in messages] == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert {m.service_name for m in messages} == {STOCK}
    for body in ("a", "b"):
        pair.east.database.send(messages[0].conversation_handle, REPLY, body)
    pair.rounds()
    replies = pair.west.database.receive(ORDERS_QUEUE)
    assert [(m.conversation_handle, m.message_sequence_number, m.message_body) for m in replies] == [
        (handle, 0, b"a"),
        (handle, 1, b"b"),
    ]
    assert waiting_messages(pair.east.database) == 0
    assert state(pair.west.database, handle) == "CO"


@pytest.mark.feature(115)
def test_the_first_acknowledgement_contains_the_targets_identifier(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    text = "select far_broker_instance from sys.conversation_endpoints where conversation_handle = %s"
    east = query(pair.east.database, "select service_broker_guid::text from sys.databases where name = 'Test'")
    assert query(pair.west.database, text, handle) == east


def test_both_sides_end(pair: Pair) -> None:
    handle = begin(pair, 2)
    pair.west.database.end_conversation(handle)
    assert state(pair.west.database, handle) == "DO"
    pair.rounds()
    assert state(pair.west.database, handle) is None  # acknowledged: the initiator is removed at once
    *data, end = pair.east.database.receive(STOCK_QUEUE)
    assert bodies(data) == [b"0", b"1"]
    assert end.is_end_dialog
    assert state(pair.east.database, end.conversation_handle) == "DI"
    pair.east.database.end_conversation(end.conversation_handle)
    assert state(pair.east.database, end.conversation_handle) == "CD"
    pair.rounds()
    assert leftovers(pair.west) == {}


def test_the_target_ends_first(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.end_conversation(message.conversation_handle)
    pair.rounds()
    (end,) = pair.west.database.receive(ORDERS_QUEUE)
    assert end.is_end_dialog
    assert state(pair.east.database, message.conversation_handle) == "CD"
    pair.west.database.end_conversation(handle)
    pair.rounds()
    assert leftovers(pair.west) == {}
    pair.west.clock.jump(minutes=31)
    with pair.east.instance.connection() as connection:
        run_maintenance(connection, pair.east.clock())
    assert leftovers(pair.east) == {}


def test_end_with_error_drops_unsent_messages(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    pair.west.is_connected = False
    pair.west.relay.lost(pair.west.out, "gone")
    pair.west.database.send(handle, ORDER, b"never arrives")
    pair.west.database.end_conversation(handle, error=(7, "no more"))
    pair.rounds()
    pair.west.is_connected = True
    pair.pass_time(70)
    pair.rounds()
    error, first = pair.east.database.receive(STOCK_QUEUE)
    assert errors([error]) == [7]
    assert first.message_body == b"0"
    assert state(pair.east.database, first.conversation_handle) == "ER"
    assert state(pair.west.database, handle) is None


@pytest.mark.feature(104, 108)
def test_a_refusal_by_the_target_arrives_as_an_error(pair: Pair) -> None:
    pair.east.database.alter_service(STOCK, drop_contracts=[CONTRACT])
    handle = begin(pair)
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8408]
    assert state(pair.west.database, handle) == "ER"
    assert waiting_messages(pair.west.database) == 0
    assert leftovers(pair.east) == {}


@pytest.mark.feature(102, 104)
def test_a_contract_that_the_target_database_lacks_ends_in_error_8425(pair: Pair) -> None:
    pair.west.database.create_contract("//west/only", {ORDER: "ANY"})
    handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract="//west/only", encryption=False)
    pair.west.database.send(handle, ORDER, b"x")
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8425]
    assert leftovers(pair.east) == {}


@pytest.mark.feature(106)
@pytest.mark.parametrize("times", [1, 20_000], ids=["small", "in fragments"])
def test_a_message_that_fails_validation_at_the_target(pair: Pair, times: int) -> None:
    """The message is not delivered later either, when upkeep delivers the messages kept beside queues."""
    handle = begin(pair)
    pair.west.database.send(handle, DOCUMENT, b"<no xml" * times)
    pair.west.database.send(handle, ORDER, b"2" * times)
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-9615]
    with pair.east.instance.connection() as connection:
        run_maintenance(connection, pair.east.clock())
    messages = pair.east.database.receive(STOCK_QUEUE)
    assert [m.is_error for m in messages] == [True, False]
    pair.rounds()
    assert [state(pair.west.database, handle), state(pair.east.database, messages[0].conversation_handle)] == [
        "ER",
        "ER",
    ]
    assert query(pair.east.database, "select count(*) from servicebroker.arrived_fragments") == [(0,)]


@pytest.mark.feature(102, 103)
def test_a_peer_that_was_removed(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.end_conversation(message.conversation_handle, cleanup=True)
    pair.east.relay.forget()
    pair.west.database.send(handle, ORDER, b"1")
    pair.rounds()
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8462]


@pytest.mark.feature(138)
def test_messages_for_a_disabled_queue_are_acknowledged_and_wait_at_the_receiver(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    for number in range(1, 4):
        pair.west.database.send(handle, ORDER, str(number))
    pair.west.database.end_conversation(handle)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    messages = pair.east.database.receive(STOCK_QUEUE)
    assert bodies(messages) == [b"0", b"1", b"2", b"3", None]
    assert [m.message_sequence_number for m in messages] == [0, 1, 2, 3, 4]
    assert state(pair.east.database, messages[0].conversation_handle) == "DI"


@pytest.mark.feature(138)
@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "in fragments"])
def test_messages_beside_a_queue_are_dropped_when_the_application_ends(pair: Pair, size: int) -> None:
    """The queue is enabled before the EndDialog has reached the peer. It stays empty."""
    handle = begin(pair)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send(handle, ORDER, b"x" * size)
    pair.rounds()
    pair.east.is_connected = False
    pair.east.database.end_conversation(message.conversation_handle)
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    assert pair.east.database.receive(STOCK_QUEUE) == []
    assert query(pair.east.database, "select count(*) from servicebroker.arrived_fragments") == [(0,)]
    pair.east.is_connected = True
    pair.pass_time(70)
    pair.rounds()
    assert [m.is_end_dialog for m in pair.west.database.receive(ORDERS_QUEUE)] == [True]


@pytest.mark.feature(130)
@pytest.mark.parametrize("kind", [ORDER, DOCUMENT])
def test_a_large_message_is_sent_in_fragments(pair: Pair, kind: str) -> None:
    body = b"<x>" + b"0123456789" * 30_000 + b"</x>"
    handle = pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    pair.west.database.send(handle, kind, body)
    pair.west.database.send(handle, ORDER, b"small")
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [body, b"small"]
    assert query(pair.east.database, "select count(*) from servicebroker.arrived_fragments") == [(0,)]


@pytest.mark.feature(127, 134)
def test_lost_frames_are_retried_and_duplicates_dropped(pair: Pair) -> None:
    rng = random.Random(5)
    handles = [begin(pair, 10) for _ in range(5)]
    for _ in range(200):
        for site in (pair.west, pair.east):
            kept = [body for body in site.out.frames if rng.random() > 0.3]
            twice = [body for body in kept if rng.random() < 0.3]
            frames = kept + twice
            rng.shuffle(frames)
            site.out.frames = deque(frames)
        pair.rounds(1)
        pair.pass_time(3)
        if not waiting_messages(pair.west.database):
            break
    received: dict[Any, list[bytes | None]] = {}
    while messages := pair.east.database.receive(STOCK_QUEUE):
        received.setdefault(messages[0].conversation_handle, []).extend(bodies(messages))
    assert list(received.values()) == [[str(n).encode() for n in range(10)]] * len(handles)


def test_a_restarted_relay_continues(pair: Pair) -> None:
    handle = begin(pair, 2)
    pair.rounds()
    pair.west.relay, pair.east.relay = pair.west.new_relay(), pair.east.new_relay()
    pair.west.database.send(handle, ORDER, b"2")
    pair.rounds()
    messages = pair.east.database.receive(STOCK_QUEUE)
    assert bodies(messages) == [b"0", b"1", b"2"]
    pair.east.relay = pair.east.new_relay()
    pair.east.database.send(messages[0].conversation_handle, REPLY, b"a")
    pair.rounds()
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"a"]


@pytest.mark.feature(124)
def test_transmission_status_has_the_reason_of_a_wait(pair: Pair) -> None:
    pair.west.is_connected = False
    begin(pair)
    pair.rounds()
    text = "select transmission_status from sys.transmission_queue"
    assert query(pair.west.database, text) == [("The target service broker is unreachable.",)]
    pair.west.is_connected = True
    pair.west.relay.reached(parse_address(EAST))  # type: ignore[arg-type]
    pair.rounds()
    assert query(pair.west.database, text) == []


def test_rounds_do_not_wait_for_locks(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    with pair.east.database.transaction() as transaction:
        transaction.send(message.conversation_handle, REPLY, b"long")
        pair.west.database.send(handle, ORDER, b"1")
        pair.rounds()
        assert waiting_messages(pair.west.database) == 0  # stored beside a transaction that sends
    pair.rounds()
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"long"]
    with pair.east.database.transaction() as transaction:
        transaction.receive(STOCK_QUEUE)
        transaction.end_conversation(message.conversation_handle)
        pair.west.database.send(handle, ORDER, b"2")
        pair.rounds()
        assert waiting_messages(pair.west.database) == 1
    pair.pass_time(5)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0


@pytest.mark.feature(49)
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_multicast_reaches_remote_conversations_and_frees_its_shared_body(pair: Pair, size: int) -> None:
    handles = [begin(pair), begin(pair)]
    pair.rounds()
    while pair.east.database.receive(STOCK_QUEUE):
        pass
    handles.append(pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False))
    body = b"x" * size
    pair.west.database.send(handles, ORDER, body)
    assert query(pair.west.database, "select count(*) from servicebroker.shared_bodies") == [(1,)]
    pair.rounds()
    received = [m.message_body for _ in handles for m in pair.east.database.receive(STOCK_QUEUE)]
    assert received == [body] * 3
    assert query(pair.west.database, "select count(*) from servicebroker.shared_bodies") == [(0,)]
    assert query(pair.west.database, "select count(*) from servicebroker.shared_body_readers") == [(0,)]


@pytest.mark.feature(55)
def test_retention_keeps_messages_sent_to_another_instance(pair: Pair) -> None:
    pair.west.database.alter_queue(ORDERS_QUEUE, retention=True)
    handle = begin(pair, 2)
    pair.rounds()
    pair.west.database.send(handle, ORDER, b"2")
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", b"1", b"2"]
    retained_sql = "select status, message_body from test_dbo.ordersqueue order by message_sequence_number"
    assert query(pair.west.database, retained_sql) == [(3, b"0"), (3, b"1"), (3, b"2")]
    pair.west.database.end_conversation(handle)
    pair.rounds()
    assert query(pair.west.database, retained_sql) == []


@pytest.mark.feature(55)
def test_a_sender_to_another_instance_follows_retention(pair: Pair) -> None:
    """A sender with a cached route applies RETENTION with its next SEND. Once it is off, the sender caches again."""
    database = pair.west.database
    handle = begin(pair)
    pair.rounds()
    database.send(handle, ORDER, b"the way is remembered")
    retained_sql = "select status, message_body from test_dbo.ordersqueue order by message_sequence_number"
    with sb.open(pair.west.instance.url, upkeep=None) as elsewhere:
        elsewhere.database("Test").alter_queue(ORDERS_QUEUE, retention=True)
    database.send(handle, ORDER, b"2")
    database.send_batch(handle, ORDER, [b"3", b"4"])
    with database.transaction() as transaction, transaction.pipeline():
        transaction.send(handle, ORDER, b"5")
    database.send([handle], ORDER, b"6")
    assert query(database, retained_sql) == [(3, b"%d" % number) for number in range(2, 7)]
    database.alter_queue(ORDERS_QUEUE, retention=False)
    for body in (b"7", b"8"):
        database.send(handle, ORDER, body)
    assert len(query(database, retained_sql)) == 5
    assert handle in database.catalog.channels
    pair.rounds()
    sent = [b"0", b"the way is remembered", *(b"%d" % number for number in range(2, 9))]
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == sent


def test_retention_enabled_during_a_batch_retains_the_later_messages(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enabled between two statements of a batch: later messages are retained, and all are sent in order."""
    database = pair.west.database
    handle = begin(pair)
    pair.rounds()
    monkeypatch.setattr(enqueue, "MAX_BATCH_BYTES", 2)
    batch = SendBatch(handle, ORDER, [b"1", b"2", b"3", b"4"])
    sending = OwnerVerbs.interpreters[SendBatch](database.engine, batch)
    with pair.west.instance.connection() as connection, connection.transaction():
        statement = next(sending)
        while statement.name != "send.transmit_all":
            statement = sending.send(run(connection, only(statement)))
        first_half = run(connection, only(statement))
        database.alter_queue(ORDERS_QUEUE, retention=True)
        assert run(connection, resume(sending.send(first_half), sending)) == 1
    retained_sql = "select status, message_body from test_dbo.ordersqueue order by message_sequence_number"
    assert query(database, retained_sql) == [(3, b"3"), (3, b"4")]
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", b"1", b"2", b"3", b"4"]


def test_send_in_sql_to_another_instance(pair: Pair) -> None:
    handle = begin(pair)
    pair.rounds()
    query(pair.west.database, "select servicebroker.send(%s, %s, %s)", handle, ORDER, b"by SQL")
    pair.west.database.send(handle, ORDER, b"by Python")
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", b"by SQL", b"by Python"]


@pytest.mark.feature(74, 98, 130)
def test_incomplete_and_early_messages_are_visible_and_not_received(pair: Pair) -> None:
    """They have status 2 in the queue's view. The target is STARTED_INBOUND until its first message is complete."""
    west, east = pair.west, pair.east
    large = b"0123456789" * 10_000
    handle = west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    west.database.send(handle, ORDER, large)
    west.round([])
    first, *rest = west.out.frames
    west.out.frames.clear()
    west.database.send(handle, ORDER, b"small")
    west.round([])
    early = list(west.out.frames)
    seen = (
        "select status, message_sequence_number, message_type_name, validation, service_name, message_body "
        "from test_dbo.stockqueue order by message_sequence_number"
    )
    shown = "select state, state_desc from sys.conversation_endpoints"

    east.round([first])
    assert query(east.database, seen) == [(2, 0, ORDER, "N", STOCK, None)]
    assert query(east.database, shown) == [("SI", "STARTED_INBOUND")]
    assert east.database.receive(STOCK_QUEUE) == []
    east.round(early)
    assert query(east.database, seen)[1:] == [(2, 1, ORDER, "N", STOCK, b"small")]
    assert east.database.receive(STOCK_QUEUE) == []
    east.round(rest)
    assert query(east.database, seen) == [(1, 0, ORDER, "N", STOCK, large), (1, 1, ORDER, "N", STOCK, b"small")]
    assert query(east.database, shown) == [("CO", "CONVERSING")]
    assert bodies(east.database.receive(STOCK_QUEUE)) == [large, b"small"]
    assert query(east.database, seen) == []


@pytest.mark.parametrize("is_held", [False, True], ids=["free", "held by a session"])
def test_an_end_without_sent_messages_is_not_sent(pair: Pair, is_held: bool) -> None:
    """No broker accepts EndDialog as the first message of a conversation."""
    west = pair.west.database
    handle = west.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    west.send(handle, ORDER, b"x", delay=600)
    west.end_conversation(handle)
    assert west.cancel_delayed(handle) == 1
    if is_held:
        with west.transaction() as tx:
            tx.connection.execute("select from servicebroker.conversation_endpoints for update")
            pair.rounds(2)
        pair.pass_time(60)
    pair.rounds()
    assert not any(leftovers(pair.west).values())
    assert not any(leftovers(pair.east).values())
