"""Conversations between instances at their edges: ends that cross, rows that somebody holds, switches, replays."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from msgspec.structs import replace

import servicebroker as sb
from remote_support import EAST, WEST, Pair, Site, Wire, begin, leftovers, paired
from servicebroker.api.upkeep import upkeep
from servicebroker.broker import arrivals, postgres_store
from servicebroker.broker.conversations import CLEAR_STATUS_S
from servicebroker.broker.relay import Relay
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.delivery.transmission import deliver_left_over
from servicebroker.engine.remote.arriving import store
from servicebroker.engine.remote.departing import look
from servicebroker.protocol.envelope import Content, Part, encode, open_payload, parse
from servicebroker.protocol.incoming import Batch, Deliver
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.limits import LIMITS
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import parse_address
from servicebroker.store import locks
from servicebroker.store.direct import run_command
from servicebroker.store.migrations import migrate
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
    eventually,
    in_thread,
    query,
    queue_number,
    refused,
    state,
    waiting_messages,
)

HOLD = "select from servicebroker.conversation_endpoints where conversation_handle = %s for update"


def opened(pair: Pair) -> tuple[object, sb.Message]:
    """A conversation that both sides have: the initiator's handle, and the first message at the target."""
    handle = begin(pair)
    pair.rounds()
    (message,) = pair.east.database.receive(STOCK_QUEUE)
    return handle, message


def test_what_a_round_sends_itself_is_found_by_the_next_one(pair: Pair) -> None:
    """As a request for a missing route: after its look, and with a number below those that had ended by then."""
    database = pair.west.database
    handle = begin(pair)
    with psycopg.connect(database.instance.url) as connection:
        connection.execute("select pg_current_xact_id()")
        query(database, "select pg_current_xact_id()")  # somebody else begins later and ends first
        seen = run(connection, look(None)).snapshot
        database.join(connection).send(handle, ORDER, b"asks")
        connection.commit()
        assert [waiting.conversation_handle for waiting in run(connection, look(seen)).waiting] == [handle]


def test_only_what_a_peer_relies_on_waits_for_the_disk(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """That it was acknowledged may be lost in a crash of the server: the message is sent, and acknowledged, again."""
    lazy: list[bool] = []

    def noted(connection: psycopg.Connection[Any], command: bytes) -> None:
        lazy.append(b"synchronous_commit = off" in command)
        run_command(connection, command)

    monkeypatch.setattr(postgres_store, "run_command", noted)

    def carried() -> list[bool]:
        """West sends, east stores, west removes, and nothing is left to do."""
        lazy.clear()
        pair.rounds(2)
        return lazy[:3]

    begin(pair)
    assert carried()[:2] == [False, False]  # the conversation is claimed; its target is made
    handle, _ = opened(pair)
    pair.west.database.send(handle, ORDER, b"x")
    assert carried() == [True, False, True]
    assert waiting_messages(pair.west.database) == 0


def test_both_sides_end_at_the_same_time(pair: Pair) -> None:
    handle, message = opened(pair)
    pair.west.database.end_conversation(handle)
    pair.east.database.end_conversation(message.conversation_handle)
    for _ in range(4):
        pair.rounds()
        pair.pass_time(5)
    assert leftovers(pair.west) == {}
    assert state(pair.east.database, message.conversation_handle) == "CD"
    assert waiting_messages(pair.east.database) == 0


def test_an_end_leaves_although_the_peer_s_end_came_before_it_was_seen(pair: Pair) -> None:
    handle, message = opened(pair)
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
    handle, message = opened(pair)
    pair.east.database.end_conversation(message.conversation_handle)
    pair.east.round([])
    pair.east.out.frames.clear()  # the EndDialog is lost
    pair.west.database.end_conversation(handle, error=(5, "no more"))
    pair.rounds()
    assert state(pair.east.database, message.conversation_handle) == "CD"
    assert waiting_messages(pair.east.database) == 0


@pytest.mark.feature(102)
def test_a_second_broker_that_answers_is_told_that_it_is_too_late(pair: Pair) -> None:
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
    assert pair.west.out.frames  # and the first one is still its target


def test_while_somebody_holds_the_row_nothing_is_lost_and_it_goes_on_soon_after(pair: Pair) -> None:
    handle, message = opened(pair)
    pair.east.database.send(message.conversation_handle, REPLY, b"a")
    with pair.east.database.transaction() as transaction:
        transaction.begin_dialog(STOCK, ORDERS, contract=CONTRACT, encryption=False)
        transaction.move_conversation(
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
        assert pair.east.relay.wake_at < 1.1
    pair.pass_time(1.0)  # the peer's own retry would take four
    pair.rounds()
    assert waiting_messages(pair.west.database) == 0
    assert waiting_messages(pair.east.database) == 0
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [b"a"]


def test_what_comes_behind_a_batch_that_is_postponed_is_stored_right_after_it(pair: Pair) -> None:
    handle, message = opened(pair)
    with psycopg.connect(pair.east.instance.url) as somebody:
        somebody.execute(
            "select from servicebroker.conversation_endpoints where conversation_handle = %s for update",
            (message.conversation_handle,),
        )
        for text in (b"1", b"2"):
            pair.west.database.send(handle, ORDER, text)
            pair.rounds(1)
    pair.east.round([])
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]
    assert pair.east.relay.wake_at <= pair.east.seconds
    pair.east.round([])  # the peer's own retry would take four seconds
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"2"]


def test_who_is_read_in_a_later_round_travels_too(pair: Pair) -> None:
    """There is room for the bodies of one conversation at a time, and of the others nothing is under way."""
    west = pair.west
    west.relay = Relay(west, west.clock, lambda: west.seconds, random.Random(1), budget=1)
    handles = [opened(pair)[0] for _ in range(4)]
    for _ in range(3):  # no alarm is left of what was sent
        pair.pass_time(70.0)
        pair.rounds()
    for handle in handles:
        west.database.send(handle, ORDER, b"next")
    pair.rounds()
    assert waiting_messages(west.database) == 0


def test_what_is_sent_while_a_relay_begins_is_seen(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first round takes a message and finds the conversation; the application answers; then the round looks."""
    handle, message = opened(pair)
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


@pytest.mark.feature(137)
def test_there_is_a_transmission_object_once_something_travels_and_as_long_as_it_is_needed(pair: Pair) -> None:
    """In both daemons from the first message on; services of one instance need none."""
    west, east = pair.west, pair.east
    here, there = west.relay._conversations, east.relay._conversations
    west.database.create_service("//test/Here", STOCK_QUEUE, [CONTRACT])
    at_home = west.database.begin_dialog(ORDERS, "//test/Here", contract=CONTRACT)
    west.database.send(at_home, ORDER, b"x")
    handle = west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    pair.rounds()
    assert (len(here), len(there)) == (0, 0)
    west.database.send(handle, ORDER, b"0")
    west.round([])
    assert list(dict(here.items())) == [handle]
    pair.rounds()
    assert len(there) == 1
    entry = here.get(handle)
    assert entry is not None
    assert entry.is_at_rest  # everything is acknowledged: it may go, and is made anew when it is needed
    here.forget(handle)
    there.forget(east.database.receive(STOCK_QUEUE)[0].conversation_handle)
    west.database.send(handle, ORDER, b"1")
    pair.rounds()
    assert bodies(east.database.receive(STOCK_QUEUE)) == [b"1"]
    assert waiting_messages(west.database) == 0


def test_what_waits_for_a_retry_is_not_forgotten(pair: Pair) -> None:
    """Its link was lost, and its place in memory is given to another one."""
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


def test_a_message_that_cannot_be_taken_hides_nobody(pair: Pair) -> None:
    """The message comes right after a start, for a conversation that has something to send."""
    handle, message = opened(pair)
    pair.east.database.send(message.conversation_handle, REPLY, b"x")
    pair.east.round([])
    reply = pair.east.out.frames.pop()
    pair.west.database.send(handle, ORDER, b"waits")
    pair.west.relay = pair.west.new_relay()
    pair.west.round([reply[:-1] + bytes([reply[-1] ^ 1])])
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"waits"]


def test_fragments_of_the_first_reply_outlive_a_start(pair: Pair) -> None:
    """No message has arrived in order yet, so none was counted; the stored fragments were acknowledged all the same."""
    _, message = opened(pair)
    pair.east.database.send(message.conversation_handle, REPLY, bytes(100_000))
    pair.east.round([])
    pair.west.round([pair.east.out.frames.popleft()])
    pair.west.relay = pair.west.new_relay()
    for _ in range(3):
        pair.rounds()
        pair.pass_time(8)
    assert bodies(pair.west.database.receive(ORDERS_QUEUE)) == [bytes(100_000)]


def leave_fragments(site: Site, handle: UUID, *rows: tuple[int, int, int, int]) -> None:
    """As if these had been stored: message, fragment, of how many, bytes."""
    for number, fragment, fragments, size in rows:
        query(
            site.database,
            "insert into servicebroker.arrived_fragments (conversation_handle, message_sequence_number, fragment, "
            "fragments, message_type_name, content, message_body) values (%s, %s, %s, %s, %s, 0, %s) returning 1",
            handle, number, fragment, fragments, ORDER, bytes(size),
        )  # fmt: skip


IMPOSSIBLE = (
    (1, 2**21 - 1, 2**21, 1),
    (2, 0, 3, 1),
    (3, 1, 4, 32_768),
    (3, 0, 3, 32_768),
    *((4, fragment, 1_000, 32_768) for fragment in range(0, 130, 2)),
    (5, 2, 2, 1),
    (1 + 16_384, 0, 1, 1),
)
POSSIBLE = ((6, 1, 3, 32_768), (7, 0, 1, 5), (8, 1, 2, 1), (8, 0, 2, 32_768))


def kept_in(site: Site) -> list[tuple[int, int]]:
    """Which fragments are stored."""
    return query(
        site.database,
        "select message_sequence_number, fragment from servicebroker.arrived_fragments order by 1, 2",
    )


def test_stored_fragments_that_no_sender_cuts_are_forgotten_when_they_are_read(pair: Pair) -> None:
    handle, message = opened(pair)
    leave_fragments(pair.east, message.conversation_handle, *IMPOSSIBLE)
    pair.east.relay = pair.east.new_relay()
    pair.west.database.send(handle, ORDER, bytes(100_000))
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [bytes(100_000)]
    assert kept_in(pair.east) == []


def test_an_upgrade_removes_fragments_that_no_sender_cuts(make_instance_url: Callable[..., str]) -> None:
    with paired(make_instance_url) as pair:
        handle, message = opened(pair)
        pair.east.database.alter_queue(STOCK_QUEUE, status=False)
        pair.west.database.send(handle, ORDER, bytes(40_000))
        pair.rounds()
        beside = [(1, 0), (1, 1)]  # complete, and waits for its queue
        assert kept_in(pair.east) == beside
        later = [(number + 1, *rest) for number, *rest in (*IMPOSSIBLE, *POSSIBLE)]
        leave_fragments(pair.east, message.conversation_handle, *later)
        with pair.east.instance.connection() as connection:
            connection.execute("delete from servicebroker.migrations where number = 410")
            migrate(connection)
        assert kept_in(pair.east) == sorted([*beside, *((number + 1, fragment) for number, fragment, *_ in POSSIBLE)])


@pytest.mark.feature(137)
def test_more_conversations_wait_than_fit_in_memory(pair: Pair) -> None:
    """A peer that is down for long, and then comes back, also across a start of the daemon."""

    def small() -> Relay:
        west = pair.west
        return Relay(west, west.clock, lambda: west.seconds, random.Random(1), capacity=20)

    pair.west.relay = small()
    pair.west.is_connected = False
    for _ in range(100):
        begin(pair)
        pair.west.round([])
    assert len(pair.west.relay._conversations) <= 20
    pair.west.relay = small()
    pair.west.is_connected = True
    for _ in range(100):
        pair.rounds(1)
        pair.pass_time(6)
        if not waiting_messages(pair.west.database):
            break
    assert waiting_messages(pair.west.database) == 0
    assert query(pair.east.database, "select count(*) from sys.conversation_endpoints") == [(100,)]


def test_who_leaves_a_full_memory_weighs_nothing_on_its_link(pair: Pair) -> None:
    """Also when the peer's broker has refused it, and what it had sent is never acknowledged."""
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


def test_a_conversation_whose_broker_was_renewed_is_gone_and_its_peer_learns_it(pair: Pair) -> None:
    handle, _ = opened(pair)
    pair.east.database.alter(new_broker=True)
    pair.west.database.send(handle, ORDER, b"1")
    for _ in range(3):
        pair.rounds()
        pair.pass_time(5)
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8462]


def test_a_claimed_conversation_gets_no_second_target_at_home(pair: Pair) -> None:
    pair.west.is_connected = False
    begin(pair)
    pair.west.round([])
    pair.west.database.create_service(STOCK, STOCK_QUEUE, [CONTRACT])
    pair.west.database.alter(enable_broker=True)
    assert pair.west.database.receive(STOCK_QUEUE) == []
    pair.west.is_connected = True
    pair.pass_time(5)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]
    assert pair.west.database.receive(STOCK_QUEUE) == []


def test_error_broker_conversations_reaches_the_peer_at_its_next_message(pair: Pair) -> None:
    handle, message = opened(pair)
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
    """Also when the daemon has been started anew, and looks the conversation up without its contract."""
    handle, message = opened(pair)
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


def test_lifetimes_end_on_both_sides_and_nothing_travels_afterwards(pair: Pair) -> None:
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


def test_the_error_of_a_lifetime_stands_behind_what_has_arrived(pair: Pair) -> None:
    """Also when an older transaction finds that it is over: a pipeline reads by stamps."""
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


def test_a_service_that_moves_to_another_queue_keeps_its_remote_conversations(pair: Pair) -> None:
    handle, _ = opened(pair)
    pair.west.database.send(handle, ORDER, b"1")
    pair.rounds()
    pair.east.database.create_queue("Other")
    pair.east.database.alter_service(STOCK, queue="Other")
    pair.west.database.send(handle, ORDER, b"2")
    pair.rounds()
    assert bodies(pair.east.database.receive("Other")) == [b"1", b"2"]


def test_a_dropped_service_s_peer_gets_an_error_when_it_sends(pair: Pair) -> None:
    handle, _ = opened(pair)
    pair.east.database.drop_service(STOCK)
    pair.west.database.send(handle, ORDER, b"1")
    for _ in range(3):
        pair.rounds()
        pair.pass_time(5)
    assert errors(pair.west.database.receive(ORDERS_QUEUE)) == [-8462]


def test_a_frame_with_names_that_no_database_stores_stops_nobody(pair: Pair) -> None:
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


def test_a_conversation_is_looked_up_again_in_the_round_that_stores_for_it(pair: Pair) -> None:
    """Its answer waits for a route while messages come: nothing of either is lost."""
    handle, message = opened(pair)
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


def test_a_second_end_is_refused_while_the_first_travels(pair: Pair) -> None:
    handle, _ = opened(pair)
    pair.west.database.send(handle, ORDER, b"last")
    pair.west.database.end_conversation(handle)
    with refused(8427):
        pair.west.database.end_conversation(handle)
    pair.rounds()
    last, end = pair.east.database.receive(STOCK_QUEUE)
    assert (last.message_body, end.is_end_dialog) == (b"last", True)
    assert leftovers(pair.west) == {}


def test_who_alters_a_service_or_a_queue_for_long_stops_nobody_else(pair: Pair) -> None:
    handle, _ = opened(pair)
    with pair.east.database.transaction() as transaction:
        lock = "select pg_advisory_xact_lock(%s, 0)"
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


def test_a_conversation_that_begins_while_a_service_is_altered_waits_for_nobody_s_retry(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "MAX_KEPT", 3)
    with pair.east.database.transaction() as transaction:
        transaction.connection.execute("select pg_advisory_xact_lock(%s, 0)", (locks.PARKED_DELIVERY,))
        for _ in range(4):
            begin(pair)
        for _ in range(3):
            pair.rounds(1)
            pair.pass_time(0.1)
        assert pair.east.database.receive(STOCK_QUEUE) == []
    pair.pass_time(1)
    pair.rounds()

    def waiting() -> tuple[int, int]:
        ((there,),) = query(pair.east.database, "select count(*) from sys.conversation_endpoints")
        return there, waiting_messages(pair.west.database)

    assert waiting() == (3, 1)
    pair.pass_time(5)  # there was no room for one
    pair.rounds()
    assert waiting() == (4, 0)


@pytest.mark.feature(133)
def test_a_peer_that_cannot_be_reached_is_tried_less_and_less_often(pair: Pair) -> None:
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
def test_what_is_not_acknowledged_travels_again_less_and_less_often(pair: Pair) -> None:
    west = pair.west
    begin(pair)
    west.round([])
    sent, waits = west.seconds, []
    west.seconds += CLEAR_STATUS_S
    west.round([])  # says that the message is on its way
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
    handle, _ = opened(pair)
    for number in range(1, 20):
        pair.west.database.send(handle, ORDER, str(number))
        pair.west.round([])
        if number % 3 == 0:  # everything under way is lost with the link
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
def test_a_large_message_gives_way_while_small_ones_travel(pair: Pair) -> None:
    """Fragments under way delay what comes behind them: first all that there is room for, then one at a time."""
    large, small = (
        pair.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(2)
    )
    pair.west.database.send(small, ORDER, b"first")
    pair.rounds(3)
    pair.pass_time(1)
    pair.west.database.send(large, ORDER, b"x" * 3_000_000)

    def sent() -> int:
        """Bytes that leave in a round, which the other side stores and acknowledges."""
        frames, pair.east.out.frames = list(pair.east.out.frames), deque()
        pair.west.round(frames)
        frames, pair.west.out.frames = list(pair.west.out.frames), deque()
        pair.east.round(frames)
        return sum(map(len, frames))

    assert sent() > 8 * LIMITS.fragment_size
    pair.west.database.send(small, ORDER, b"0")
    assert sent() < 3 * LIMITS.fragment_size  # only bytes that stood in line before the small message
    for number in range(1, 5):
        pair.west.database.send(small, ORDER, str(number))
        assert sent() == pytest.approx(LIMITS.fragment_size, abs=1_000)
    pair.pass_time(1)
    pair.rounds(15)
    found = [message for _ in range(2) for message in pair.east.database.receive(STOCK_QUEUE)]
    assert sorted(len(body or b"") for body in bodies(found)) == [1, 1, 1, 1, 1, 5, 3_000_000]


def test_large_messages_for_one_peer_do_not_hold_up_another(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
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
    handle, message = opened(pair)
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
    handle, _ = opened(pair)
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
@pytest.mark.parametrize("how", ["error", "refusal"])
def test_a_conversation_that_sends_no_more_fills_neither_the_memory_nor_its_link(pair: Pair, how: str) -> None:
    west = pair.west
    handle, message = opened(pair)
    for _ in range(8):
        west.database.send(handle, ORDER, b"x" * 30_000)
    west.out.room = 1
    west.round([])
    there = west.relay._conversations
    assert there.waiting_bytes > 100_000
    assert there.load(west.out) > 200_000
    if how == "error":
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
    assert entry.is_at_rest


@pytest.mark.feature(116)
def test_who_is_found_again_before_its_acknowledgement_is_written_goes_on(pair: Pair) -> None:
    """Its row was held, and meanwhile its route had gone."""
    west = pair.west
    handle = begin(pair)
    pair.rounds(1)
    assert [len(site.out.frames) for site in (west, pair.east)] == [0, 1]
    with west.database.transaction() as tx:
        tx.send(handle, ORDER, b"1")
        pair.rounds(1)  # the acknowledgement has come, and cannot be written
        west.database.drop_route("ToStock")
        pair.rounds(1)
        pair.pass_time(5.1)
        pair.rounds(1)
    pair.pass_time(1.1)
    pair.rounds(1)
    west.database.create_route("ToStock", service_name=STOCK, address=EAST)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0", b"1"]


def home_in(instance: sb.Instance) -> sb.Database:
    """Another database, which has what the service needs."""
    home = instance.database("Home", create=True)
    home.create_message_type(ORDER)
    home.create_contract(CONTRACT, {ORDER: "INITIATOR"})
    home.create_queue(STOCK_QUEUE)
    return home


def wait_at_home(pair: Pair, home: sb.Database) -> None:
    """A conversation whose service is in that database, its queue off: the relay has nothing to do with it."""
    home.create_service(STOCK, STOCK_QUEUE, [CONTRACT])
    home.alter_queue(STOCK_QUEUE, status=False)
    begin(pair)
    pair.rounds()
    assert pair.west.relay.remembered == 0


@pytest.mark.feature(116)
def test_what_was_to_find_its_target_here_leaves_by_a_route_that_is_made(pair: Pair) -> None:
    database = pair.west.database
    database.drop_route("ToStock")
    wait_at_home(pair, database)
    database.create_route("ToStock", service_name=STOCK, address=EAST)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]


@pytest.mark.feature(116)
@pytest.mark.parametrize("what", ["service", "database", "broker", "read_only"])
def test_what_was_to_find_its_target_here_leaves_when_that_is_elsewhere(pair: Pair, what: str) -> None:
    """The service was here, its queue off; then it has moved, or its database takes nothing."""
    database, instance = pair.west.database, pair.west.instance
    home = database if what == "service" else home_in(instance)
    database.drop_route("ToStock")
    database.create_route("Any", address=EAST)
    wait_at_home(pair, home)
    match what:
        case "service":
            home.drop_service(STOCK)
        case "database":
            instance.drop_database("Home")
        case "broker":
            home.alter(disable_broker=True)
        case _:
            home.alter(read_only=True)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]


@pytest.mark.feature(112)
def test_what_was_to_find_its_target_here_leaves_when_the_route_expires(pair: Pair) -> None:
    west = pair.west
    for name in ("ToStock", "AutoCreatedLocal"):
        west.database.drop_route(name)
    west.database.create_route("Here", service_name=STOCK, address="LOCAL", lifetime=60)
    west.database.create_route("Any", address=EAST)
    wait_at_home(pair, west.database)
    assert 0 < west.relay.wake_at - west.seconds <= 60
    west.clock.jump(seconds=61)
    pair.pass_time(61)
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"0"]


@pytest.mark.feature(112)
def test_what_was_to_find_its_target_here_and_still_is_when_the_route_expires_is_looked_for_once(pair: Pair) -> None:
    """The daemon's clock may be ahead of the store's."""
    west = pair.west
    west.database.drop_route("ToStock")
    west.database.create_route("Here", service_name=STOCK, address="LOCAL", lifetime=60)
    wait_at_home(pair, west.database)
    pair.pass_time(61)
    for _ in range(3):
        west.round([])
        assert west.relay.wake_at > west.seconds
    west.clock.jump(seconds=61)
    pair.pass_time(61)
    west.round([])
    assert west.relay.wake_at == NEVER
    assert west.relay.remembered == 0


@pytest.mark.feature(112)
def test_a_conversation_leaves_a_route_that_has_expired(pair: Pair) -> None:
    west = pair.west
    west.database.drop_route("ToStock")
    west.database.create_route("Old", service_name=STOCK, address="TCP://old:4022", lifetime=60)
    west.database.create_route("Any", address=EAST)
    west.other = parse_address("TCP://old:4022")
    handle, _ = opened(pair)
    west.relay.lost(west.out, "gone")
    west.clock.jump(seconds=61)
    pair.pass_time(61)
    west.other = parse_address(EAST)
    west.database.send(handle, ORDER, b"1")
    pair.rounds()
    assert bodies(pair.east.database.receive(STOCK_QUEUE)) == [b"1"]


@pytest.mark.feature(113)
@pytest.mark.parametrize("is_acknowledged", [True, False])
def test_a_route_to_another_instance_that_has_the_service_leaves_conversations_where_they_are(
    pair: Pair, *, is_acknowledged: bool
) -> None:
    """Also of whom nothing is acknowledged yet: the first message would be stored there too."""
    west, east = pair.west.database, pair.east.database
    ((broker,),) = query(
        east, "select service_broker_guid::text from servicebroker.databases where name = %s", east.name
    )
    west.alter_route("ToStock", broker_instance=broker)
    handles = [begin(pair) for _ in range(8)]
    pair.west.round([])
    if is_acknowledged:
        pair.rounds()
    west.create_route("More", service_name=STOCK, broker_instance=uuid4(), address="TCP://more:4022")
    pair.rounds()
    for handle in handles:
        west.send(handle, ORDER, b"1")
    pair.rounds()
    assert waiting_messages(west) == 0
    assert [bodies(east.receive(STOCK_QUEUE)) for _ in handles] == [[b"0", b"1"]] * 8


@pytest.mark.feature(116)
def test_who_waits_for_a_row_waits_between_two_looks(pair: Pair) -> None:
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


@pytest.mark.feature(116)
def test_a_conversation_whose_keys_can_be_opened_again_takes_what_comes_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = opened(pair)
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
