"""Brokers and queues that are switched off while messages arrive from another instance, and on again."""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from remote_support import Pair, Site, begin, open_conversation
from servicebroker.api.maintenance import run_maintenance
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.delivery.transmission import deliver_left_over
from servicebroker.engine.remote.arriving import store
from servicebroker.protocol.envelope import Content, Part
from servicebroker.protocol.incoming import Batch, Deliver
from servicebroker.store.running import run
from support import (
    ORDER,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    bodies,
    errors,
    eventually,
    in_thread,
    query,
    state,
    waiting_messages,
)

HOLD = "select from servicebroker.conversation_endpoints where conversation_handle = %s for update"


@pytest.mark.feature(124)
def test_a_disabled_broker_neither_sends_nor_receives(pair: Pair) -> None:
    handle, _ = open_conversation(pair)
    pair.west.database.send(handle, ORDER, b"1")
    pair.west.database.alter(disable_broker=True)
    pair.rounds()
    status = "The broker is disabled in the sender's database."
    assert query(pair.west.database, "select transmission_status from sys.transmission_queue") == [(status,)]
    assert pair.west.database.get_transmission_status(handle) == status
    pair.west.database.alter(enable_broker=True)
    pair.east.database.alter(disable_broker=True)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 1
    pair.east.database.alter(enable_broker=True)
    pair.pass_time(1.0)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert pair.west.database.get_transmission_status(handle) == ""
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]


@pytest.mark.parametrize("ends", [False, True], ids=["message", "end"])
def test_what_arrives_for_a_read_only_database_waits(pair: Pair, ends: bool) -> None:
    """An acknowledgement is under way when the sender's database becomes READ_ONLY: rounds for others go on."""
    handle = begin(pair, 2)
    if ends:
        pair.west.database.end_conversation(handle)
    pair.west.round([])
    pair.east.round(list(pair.west.out.frames))
    pair.west.out.frames.clear()
    pair.west.database.alter(read_only=True, rollback_after=0)
    pair.rounds()
    assert waiting_messages(pair.west.database) == (3 if ends else 2)
    other = pair.west.instance.database("Other", create=True)
    run_maintenance(pair.west.connection, pair.west.clock())
    pair.west.database.alter(read_only=False)
    pair.pass_time(70)
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert state(pair.west.database, handle) == (None if ends else "CO")
    assert bodies(pair.east.database.receive(STOCK_QUEUE))[:2] == [b"0", b"1"]
    assert other.database_id


@pytest.mark.feature(138)
def test_messages_for_a_disabled_queue_are_in_the_receivers_transmission_queue(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send(handle, ORDER, b"x" * 100_000)
    pair.rounds()
    columns = "message_sequence_number, octet_length(message_body), transmission_status, to_service_name"
    assert query(pair.east.database, f"select {columns} from sys.transmission_queue") == [
        (1, 100_000, "Target queue is busy; message(s) queued for delivery.", STOCK)
    ]
    text = "select receive_sequence from sys.conversation_endpoints where conversation_handle = %s"
    assert query(pair.east.database, text, message.conversation_handle) == [(2,)]
    pair.east.database.alter_queue(STOCK_QUEUE, status=True)
    assert query(pair.east.database, "select count(*) from sys.transmission_queue") == [(0,)]
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"x" * 100_000]


def store_beside_queue(pair: Pair, count: int = 3) -> tuple[Any, UUID]:
    """Store messages beside a disabled queue, and enable it without delivering them. Return both handles."""
    handle, message = open_conversation(pair)
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send_batch(handle, ORDER, [str(number) for number in range(1, count + 1)])
    pair.rounds()
    switched = "update servicebroker.queues set is_enqueue_enabled = true, is_receive_enabled = true returning queue_id"
    assert query(pair.east.database, switched)
    return handle, message.conversation_handle


def deliver_messages(site: Site) -> bool:
    """Deliver left-over messages, as upkeep does. Return True if a message had to be skipped."""
    with psycopg.connect(site.instance.url) as connection:
        return run(connection, deliver_left_over(Catalog(), site.clock()))


@pytest.mark.feature(138)
def test_messages_stored_during_a_delivery_by_upkeep_are_not_lost(pair: Pair) -> None:
    _, target = store_beside_queue(pair)
    late = Batch(4, 5, [Deliver(4, (Part(ORDER, Content.DATA, b"4", b"t" * 8),))], b"t" * 8)
    with psycopg.connect(pair.east.instance.url) as daemon:
        assert run(daemon, store(Catalog(), {target: late}, {}, pair.east.clock())).stored == [target]
        background = in_thread(deliver_messages, pair.east)
        wait([background], timeout=1)  # the thread has finished, or is blocked
    background.result(timeout=30)
    deliver_messages(pair.east)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1", b"2", b"3", b"4"]


@pytest.mark.feature(138)
def test_messages_of_a_locked_conversation_are_delivered_later(pair: Pair) -> None:
    _, target = store_beside_queue(pair)
    url, clock = pair.east.instance.url, pair.east.clock
    with psycopg.connect(url) as somebody, psycopg.connect(url, autocommit=True) as connection:
        somebody.execute(HOLD, (target,))
        assert deliver_messages(pair.east)
        assert run_maintenance(connection, clock())
        with sb.open(url, clock=clock, upkeep=600) as instance:
            reading = in_thread(instance.database("Test").receive, STOCK_QUEUE, wait=30)
            eventually(lambda: query(pair.east.database, "select from servicebroker.waiting_readers"))
            somebody.commit()
            assert bodies(reading.result(40)) == [b"1", b"2", b"3"]
        assert not run_maintenance(connection, clock())
    assert not deliver_messages(pair.east)


@pytest.mark.feature(138)
def test_an_enabled_queue_gets_waiting_messages_during_a_send(pair: Pair) -> None:
    handle, message = open_conversation(pair)
    database, target = pair.east.database, message.conversation_handle
    database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send_batch(handle, ORDER, [b"1", b"2"])
    pair.west.database.end_conversation(handle)
    pair.rounds()
    with database.transaction() as transaction:
        transaction.send(target, REPLY, b"a")
        switching = in_thread(database.alter_queue, STOCK_QUEUE, status=True)
        wait([switching], timeout=1)  # the thread has finished, or waits
    switching.result(30)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"2", None]
    assert state(database, target) == "DI"


@pytest.mark.feature(138)
@pytest.mark.parametrize("error", [None, (5, "no more")], ids=["end", "error"])
def test_no_message_is_sent_to_a_peer_whose_end_waits_beside_a_queue(pair: Pair, error: tuple[int, str] | None) -> None:
    """The relay starts anew after the end has arrived. It still sends the peer no message."""
    handle, message = open_conversation(pair)
    database = pair.east.database
    database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send(handle, ORDER, b"1")
    pair.west.database.end_conversation(handle, error=error)
    pair.rounds()
    pair.east.relay = pair.east.new_relay()
    database.send(message.conversation_handle, REPLY, b"a")
    for _ in range(3):
        pair.rounds()
        pair.pass_time(70)
    assert query(database, "select count(*) from servicebroker.transmission_queue") == [(1,)]
    database.alter_queue(STOCK_QUEUE, status=True)
    pair.rounds()
    received = database.receive(STOCK_QUEUE)
    assert errors([message for message in received if message.is_error]) == ([] if error is None else [5])
    assert [message.message_body for message in received if not message.is_error] == (
        [b"1", None] if error is None else []
    )
