"""Brokers and queues that are switched off while messages arrive from another instance, and on again."""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from remote_support import Pair, Site, opened
from servicebroker.api.upkeep import upkeep
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
def test_a_disabled_broker_sends_and_takes_nothing_until_it_is_enabled(pair: Pair) -> None:
    handle, _ = opened(pair)
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


@pytest.mark.feature(138)
def test_what_waits_beside_a_queue_that_is_off_is_in_the_receiver_s_transmission_queue(pair: Pair) -> None:
    handle, message = opened(pair)
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


def kept_beside(pair: Pair, count: int = 3) -> tuple[Any, UUID]:
    """A conversation with so many messages beside a queue that is on again, from number 1 on; nobody has looked."""
    handle, message = opened(pair)
    pair.east.database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send_batch(handle, ORDER, [str(number) for number in range(1, count + 1)])
    pair.rounds()
    switched = "update servicebroker.queues set is_enqueue_enabled = true, is_receive_enabled = true returning queue_id"
    assert query(pair.east.database, switched)
    return handle, message.conversation_handle


def left_over(site: Site) -> bool:
    """Run the step of the background that delivers left-over messages, and return its answer."""
    with psycopg.connect(site.instance.url) as connection:
        return run(connection, deliver_left_over(Catalog(), site.clock()))


@pytest.mark.feature(138)
def test_what_is_stored_while_the_background_delivers_what_waits_beside_a_queue_is_not_lost(pair: Pair) -> None:
    _, target = kept_beside(pair)
    late = Batch(4, 5, [Deliver(4, (Part(ORDER, Content.DATA, b"4", b"t" * 8),))], b"t" * 8)
    with psycopg.connect(pair.east.instance.url) as daemon:
        assert run(daemon, store(Catalog(), {target: late}, {}, pair.east.clock())).stored == [target]
        background = in_thread(left_over, pair.east)
        wait([background], timeout=1)  # the thread is done, or has come as far as it can
    background.result(timeout=30)
    left_over(pair.east)
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1", b"2", b"3", b"4"]


@pytest.mark.feature(138)
def test_what_waits_beside_a_queue_of_a_conversation_that_somebody_is_at_is_left_over_for_soon(pair: Pair) -> None:
    _, target = kept_beside(pair)
    url, clock = pair.east.instance.url, pair.east.clock
    with psycopg.connect(url) as somebody, psycopg.connect(url, autocommit=True) as connection:
        somebody.execute(HOLD, (target,))
        assert left_over(pair.east)
        assert upkeep(connection, clock())
        with sb.open(url, clock=clock, upkeep=600) as instance:
            reading = in_thread(instance.database("Test").receive, STOCK_QUEUE, wait=30)
            eventually(lambda: query(pair.east.database, "select from servicebroker.waiting_readers"))
            somebody.commit()
            assert bodies(reading.result(40)) == [b"1", b"2", b"3"]
        assert not upkeep(connection, clock())
    assert not left_over(pair.east)


@pytest.mark.feature(138)
def test_switching_on_delivers_what_waits_beside_the_queue_of_a_conversation_that_is_sent_on(pair: Pair) -> None:
    handle, message = opened(pair)
    database, target = pair.east.database, message.conversation_handle
    database.alter_queue(STOCK_QUEUE, status=False)
    pair.west.database.send_batch(handle, ORDER, [b"1", b"2"])
    pair.west.database.end_conversation(handle)
    pair.rounds()
    with database.transaction() as transaction:
        transaction.send(target, REPLY, b"a")
        switching = in_thread(database.alter_queue, STOCK_QUEUE, status=True)
        wait([switching], timeout=1)  # the thread is done, or waits
    switching.result(30)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"2", None]
    assert state(database, target) == "DI"


@pytest.mark.feature(138)
@pytest.mark.parametrize("error", [None, (5, "no more")], ids=["end", "error"])
def test_nothing_is_sent_to_a_peer_whose_end_waits_beside_a_queue(pair: Pair, error: tuple[int, str] | None) -> None:
    """After the daemon has begun anew, too."""
    handle, message = opened(pair)
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
    assert errors([one for one in received if one.is_error]) == ([] if error is None else [5])
    assert [one.message_body for one in received if not one.is_error] == ([b"1", None] if error is None else [])
