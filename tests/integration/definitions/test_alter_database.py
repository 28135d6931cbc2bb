"""ALTER DATABASE SET: the broker of a database."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from uuid import UUID, uuid4

import psycopg
import pytest

import servicebroker as sb
from servicebroker.engine.catalog.database_options import new_broker
from servicebroker.engine.catalog.database_transactions import lock_database
from servicebroker.store.running import run
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    define_standard_set,
    errors,
    in_thread,
    leftovers,
    open_dialog,
    peer_handle,
    query,
    refused,
    result_or_none,
    state,
    statuses,
    wait_until_blocked,
    waiting_messages,
)

pytestmark = pytest.mark.both_apis

DISABLED = "The broker is disabled in the sender's database."


@pytest.fixture
def two(instance: sb.Instance) -> tuple[sb.Database, sb.Database]:
    """Create two databases. ORDERS of the first talks to a service of the second with the same name."""
    near, far = (define_standard_set(instance.database(f"Two{uuid4().hex}", create=True)) for _ in range(2))
    far.create_service(f"//{far.name}", STOCK_QUEUE, [CONTRACT])
    return near, far


@pytest.mark.feature(2)
@pytest.mark.parametrize("disabled", ["near", "far"])
def test_a_disabled_broker_delivers_nothing(two: tuple[sb.Database, sb.Database], disabled: str) -> None:
    near, far = two
    other = near if disabled == "near" else far
    old = begin(near, f"//{far.name}")
    near.send(old, ORDER, b"0")
    near.send(old, ORDER, b"1")
    assert bodies(far.receive(STOCK_QUEUE)) == [b"0", b"1"]
    other.alter(disable_broker=True)
    new = begin(near, f"//{far.name}")
    near.send(old, ORDER, b"2")
    near.send(new, ORDER, b"new")
    far.send(peer_handle(near, old), REPLY, b"back")
    assert near.receive(ORDERS_QUEUE) == far.receive(STOCK_QUEUE) == []
    assert statuses(near) >= {DISABLED} if disabled == "near" else DISABLED not in statuses(near)
    assert waiting_messages(near) == 2
    assert waiting_messages(far) == 1
    other.alter(enable_broker=True)
    assert waiting_messages(near) == waiting_messages(far) == 0
    assert bodies(near.receive(ORDERS_QUEUE)) == [b"back"]
    assert sorted([bodies(far.receive(STOCK_QUEUE)), bodies(far.receive(STOCK_QUEUE))]) == [[b"2"], [b"new"]]


@pytest.mark.feature(8)
def test_the_switches_are_shown(two: tuple[sb.Database, sb.Database]) -> None:
    def switches_of(database: sb.Database) -> tuple[object, ...]:
        text = "select is_broker_enabled, is_honor_broker_priority_on from sys.databases where name = %s"
        return query(database, text, database.name)[0]

    near, far = two
    assert switches_of(near) == switches_of(far) == (1, 0)
    near.alter(disable_broker=True, honor_broker_priority=True)
    assert (switches_of(near), switches_of(far)) == ((0, 1), (1, 0))
    near.alter(enable_broker=True)
    assert switches_of(near) == (1, 1)
    near.alter(honor_broker_priority=False)
    near.alter(disable_broker=True)
    near.alter(new_broker=True)
    assert switches_of(near) == (1, 0)
    near.alter(disable_broker=True)
    near.alter(error_broker_conversations=True)
    assert (switches_of(near), switches_of(far)) == ((1, 0), (1, 0))


@pytest.mark.feature(3)
def test_new_broker_ends_all_conversations_and_changes_the_identifier(two: tuple[sb.Database, sb.Database]) -> None:
    near, far = two
    text = "select service_broker_guid, is_broker_enabled from servicebroker.databases where database_id = %s"
    guid = query(far, text, far.database_id)[0][0]
    handle = begin(near, f"//{far.name}")
    near.send_batch(handle, ORDER, [b"1", b"2"])
    own, _ = open_dialog(far)
    far.alter(disable_broker=True)
    far.alter(new_broker=True)
    (new, enabled) = query(far, text, far.database_id)[0]
    assert (new != guid, enabled) == (True, True)
    assert state(far, own) is None
    assert far.receive(STOCK_QUEUE) == near.receive(ORDERS_QUEUE) == []
    assert state(near, handle) == "CO"
    near.send(handle, ORDER, b"3")
    assert errors(near.receive(ORDERS_QUEUE)) == [-8462]
    near.end_conversation(handle)


def begin_during_new_broker(database: sb.Database, verb: Callable[[sb.Database], UUID]) -> UUID:
    """Begin a dialog while another session changes the broker identifier of the database."""
    with psycopg.connect(database.instance.url) as altering:
        run(altering, lock_database(database.database_id, 0))
        run(altering, new_broker(database.database_id))
        beginning = in_thread(verb, database)
        wait_until_blocked(database)
        altering.commit()
    return beginning.result(30)


@pytest.mark.feature(3)
def test_a_dialog_that_begins_beside_new_broker_has_the_new_identifier(database: sb.Database) -> None:
    handle = begin_during_new_broker(database, partial(begin, broker_instance="CURRENT DATABASE"))
    database.send(handle, ORDER, b"x")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]


@pytest.mark.feature(3)
def test_a_dialog_that_the_server_begins_beside_new_broker_has_it_too(database: sb.Database) -> None:
    def by_sql(database: sb.Database) -> UUID:
        text = "select servicebroker.begin_dialog(%s, %s, %s, %s, broker_instance => 'CURRENT DATABASE')"
        handle: UUID = query(database, text, database.name, ORDERS, STOCK, CONTRACT)[0][0]
        return handle

    handle = begin_during_new_broker(database, by_sql)
    database.send(handle, ORDER, b"x")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"x"]


@pytest.mark.feature(4, 102)
def test_error_broker_conversations_puts_an_error_into_each_queue(two: tuple[sb.Database, sb.Database]) -> None:
    near, far = two
    handle = begin(near, f"//{far.name}")
    near.send(handle, ORDER, b"1")
    initiator, target = open_dialog(far)
    far.alter(error_broker_conversations=True)
    assert errors(near.receive(ORDERS_QUEUE)) == [-9720]
    assert errors(far.receive(ORDERS_QUEUE)) == [-9719]
    assert errors(far.receive(STOCK_QUEUE) + far.receive(STOCK_QUEUE)) == [-9719, -9719]
    with refused(8429, "ER"):
        far.send(initiator, ORDER, b"x")
    for each_handle in (initiator, target, handle):
        far.end_conversation(each_handle)


@pytest.mark.feature(6)
def test_two_enabled_databases_never_share_an_identifier(two: tuple[sb.Database, sb.Database]) -> None:
    near, far = two
    far.alter(disable_broker=True)
    copy = (
        "update servicebroker.databases set service_broker_guid = "
        "(select service_broker_guid from servicebroker.databases where database_id = %s) where database_id = %s"
    )
    with near.instance.connection() as connection:
        connection.execute(copy, (near.database_id, far.database_id))
    with refused(9772, far.name):
        far.alter(enable_broker=True)
    near.alter(disable_broker=True)
    far.alter(enable_broker=True)
    with near.instance.connection() as connection, pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute(
            "update servicebroker.databases set is_broker_enabled = true where database_id = %s", (near.database_id,)
        )
    near.alter(new_broker=True)


def test_the_options_of_alter(database: sb.Database) -> None:
    database.alter(honor_broker_priority=True)
    text = "select is_honor_broker_priority_on from servicebroker.databases where database_id = %s"
    assert query(database, text, database.database_id) == [(True,)]
    with refused(402, "SET"):
        database.alter(enable_broker=True, disable_broker=True)


@pytest.mark.slow
def test_senders_while_brokers_go_off_and_on(
    two: tuple[sb.Database, sb.Database], seeded_random: random.Random
) -> None:
    """The brokers of both databases are disabled and enabled while both sides send: no message is lost or reordered."""
    near, far = two
    pairs = []
    for _ in range(4):
        initiator = begin(near, f"//{far.name}")
        near.send(initiator, ORDER, b"0")
        pairs.append((initiator, peer_handle(near, initiator)))
    stop = threading.Event()

    def switch(database: sb.Database, seed: float) -> None:
        choice = random.Random(seed)
        while not stop.is_set():
            for options in ({"disable_broker": True}, {"enable_broker": True}):
                database.alter(**options)
                stop.wait(choice.random() / 50)
        database.alter(enable_broker=True)

    def send(database: sb.Database, side: int, kind: str, seed: float) -> None:
        choice = random.Random(seed)
        for _ in range(60):
            with database.transaction() as transaction:
                for pair in sorted(choice.sample(pairs, 2), key=str):
                    transaction.send(pair[side], kind, b"x")

    switchers = [in_thread(switch, database, seeded_random.random()) for database in two]
    senders = [in_thread(send, near, 0, ORDER, seeded_random.random()) for _ in range(2)]
    senders += [in_thread(send, far, 1, REPLY, seeded_random.random()) for _ in range(2)]
    for sender in senders:
        sender.result(60)
    stop.set()
    for switcher in switchers:
        switcher.result(60)
    assert waiting_messages(near) == waiting_messages(far) == 0
    text = "select send_sequence from servicebroker.conversation_endpoints where conversation_handle = %s"
    for initiator, target in pairs:
        messages = far.receive(STOCK_QUEUE, conversation_handle=target)
        assert [m.message_sequence_number for m in messages] == list(range(query(near, text, initiator)[0][0]))
        answers = near.receive(ORDERS_QUEUE, conversation_handle=initiator)
        assert [m.message_sequence_number for m in answers] == list(range(query(near, text, target)[0][0]))


@pytest.mark.slow
def test_senders_while_their_service_is_dropped(fresh_database: sb.Database, seeded_random: random.Random) -> None:
    """Every SEND is delivered, waits, or its conversation has an Error. No row is orphaned."""
    database = fresh_database

    def send(handle: UUID, delay: float) -> None:
        threading.Event().wait(delay)
        for _ in range(5):
            if result_or_none(lambda: database.send(handle, ORDER, b"x"), 8429) is None:
                return

    for _ in range(12):
        handles = [begin(database) for _ in range(4)]
        senders = [in_thread(send, handle, seeded_random.random() / 50) for handle in handles]
        threading.Event().wait(seeded_random.random() / 50)
        database.drop_service(STOCK)
        database.create_service(STOCK, STOCK_QUEUE, [CONTRACT])
        for sender in senders:
            sender.result(30)
        assert waiting_messages(database) == 0
        for handle in handles:
            if state(database, handle) == "ER":
                assert errors(database.receive(ORDERS_QUEUE, conversation_handle=handle)) == [-8470]
            database.end_conversation(handle)
        while messages := database.receive(STOCK_QUEUE):
            assert [m.message_sequence_number for m in messages] == list(range(len(messages)))
            assert messages[-1].is_end_dialog
            database.end_conversation(messages[-1].conversation_handle, cleanup=True)
    assert leftovers(database) == {}
