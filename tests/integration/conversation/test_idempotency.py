"""Idempotency keys of BEGIN DIALOG, and priorities of single conversations."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.engine.conversation.begin import forget_keys
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.running import run
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    as_role,
    as_user,
    begin,
    bodies,
    define_standard_set,
    in_thread,
    let_in,
    peer_handle,
    query,
    refused,
    rolled_back,
    state,
)

KEY = "order 17"


def keys(database: sb.Database) -> int:
    text = "select count(*) from servicebroker.idempotency_keys join servicebroker.services using (service_id) "
    return int(query(database, f"{text} where database_id = %s", database.database_id)[0][0])


def conversations(database: sb.Database) -> int:
    text = "select count(*) from servicebroker.conversation_endpoints where is_initiator and database_id = %s"
    return int(query(database, text, database.database_id)[0][0])


@pytest.mark.both_apis
def test_a_second_begin_gets_the_first_handle(database: sb.Database) -> None:
    first = begin(database, idempotency_key=KEY)
    assert not isinstance(first, sb.RepeatedHandle)
    database.send(first, ORDER, b"teapot")
    for _ in range(2):  # before the target is cached, and after
        second = begin(database, idempotency_key=KEY)
        assert isinstance(second, sb.RepeatedHandle)
        assert second == first
    assert conversations(database) == 1
    database.send(second, ORDER, b"cup")  # a RepeatedHandle is a UUID
    assert bodies(database.receive(STOCK_QUEUE)) == [b"teapot", b"cup"]
    database.end_conversation(peer_handle(database, first))
    database.receive(ORDERS_QUEUE)
    database.end_conversation(first)
    assert state(database, first) is None
    assert begin(database, idempotency_key=KEY) == first  # also after the end
    with database.transaction() as tx:
        assert tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, idempotency_key=KEY) == first
    assert keys(database) == 1


@pytest.mark.both_apis
def test_each_service_and_principal_has_its_own_keys(database: sb.Database) -> None:
    database.create_service("//test/Second", ORDERS_QUEUE, [])
    database.create_user("Alice")
    database.add_role_member("db_owner", "Alice")

    def begin_all() -> list[UUID]:
        return [
            begin(database, idempotency_key=KEY),
            begin(database, idempotency_key=KEY + "8"),
            database.begin_dialog("//test/Second", STOCK, contract=CONTRACT, idempotency_key=KEY),
            begin(as_user(database, "Alice"), idempotency_key=KEY),
        ]

    handles = begin_all()
    assert len({*handles}) == 4
    assert begin_all() == handles  # each gets its own handle again
    assert keys(database) == 4


@pytest.mark.both_apis
def test_a_rollback_frees_the_key(database: sb.Database) -> None:
    with rolled_back(database) as tx:
        lost = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, idempotency_key=KEY)
    handle = begin(database, idempotency_key=KEY)
    assert handle != lost
    assert not isinstance(handle, sb.RepeatedHandle)


def test_a_key_is_forgotten_after_its_time(database: sb.Database) -> None:
    first = begin(database, idempotency_key=KEY, idempotency_ttl=3600)
    begin(database, idempotency_key="another", idempotency_ttl=100_000)
    later = database.instance.clock() + timedelta(hours=2)
    with database.instance.connection() as connection:
        assert run(connection, forget_keys(later - timedelta(hours=1, minutes=1))) == 0
        assert run(connection, forget_keys(later)) == 1
    assert begin(database, idempotency_key=KEY) != first
    expired = "update servicebroker.idempotency_keys set expires_at = now() - interval '1 s' returning 1"
    with database.transaction() as tx:
        tx.connection.execute(expired)  # upkeep has not run yet
    assert not isinstance(begin(database, idempotency_key=KEY), sb.RepeatedHandle)


@pytest.mark.both_apis
def test_concurrent_begins_return_one_handle(database: sb.Database) -> None:
    """The others wait until the first transaction commits or rolls back."""
    for number, ends_well in enumerate((True, False, True)):
        key = f"order {number}"
        before = conversations(database)
        transaction = database.transaction()
        tx = transaction.__enter__()
        first = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, idempotency_key=key)
        others = [in_thread(begin, database, idempotency_key=key) for _ in range(4)]
        problem = None if ends_well else KeyError()
        transaction.__exit__(type(problem) if problem else None, problem, None)
        handles = [other.result(60) for other in others]
        assert len(set(handles)) == 1
        assert (handles[0] == first) == ends_well
        assert sum(not isinstance(handle, sb.RepeatedHandle) for handle in handles) == (0 if ends_well else 1)
        assert conversations(database) == before + 1


@pytest.mark.both_apis
def test_a_repeated_request_sends_no_message(database: sb.Database) -> None:
    options: Any = {"contract": CONTRACT, "idempotency_key": KEY}
    first = database.begin_request(ORDERS, STOCK, ORDER, b"teapot", **options)
    assert database.begin_request(ORDERS, STOCK, ORDER, b"teapot", **options) == first
    asked = in_thread(database.request, ORDERS, STOCK, ORDER, b"teapot", timeout=60, **options)
    (message,) = database.receive(STOCK_QUEUE, wait=10)
    with database.transaction() as tx:
        tx.send(message.conversation_handle, REPLY, b"done")
        tx.end_conversation(message.conversation_handle)
    assert asked.result(60).message_body == b"done"
    assert database.receive(STOCK_QUEUE) == []
    with refused(8426):  # one caller has received the answer
        database.request(ORDERS, STOCK, ORDER, b"teapot", timeout=1, **options)


def test_a_repeated_begin_is_one_event(database: sb.Database) -> None:
    heard: list[str] = []
    database.instance.events.subscribe(lambda event: heard.append(event.text), 124)
    handles = {begin(database, idempotency_key=KEY) for _ in range(3)}
    assert len(handles) == 1
    assert len(heard) == len({*heard})


@pytest.fixture(scope="module")
def two_roles(
    server: EmbeddedServer, make_instance_url: Callable[[], str]
) -> Iterator[tuple[sb.Database, sb.Database]]:
    """The same database for its owner, and for a restricted role."""
    url, role = make_instance_url(), "keys_clerk"
    with let_in(server.url, role), sb.open(url, upkeep=None) as instance:
        owner = define_standard_set(instance.database("Shop", create=True))
        with instance.connection() as connection:
            connection.execute(f"create role {role} login")  # type: ignore[call-overload]
        instance.grant_rights(role, database="Shop", receive=[ORDERS_QUEUE], send=[STOCK])
        with sb.open(as_role(url, role), upkeep=None) as restricted:
            yield owner, restricted.database("Shop")
        with instance.connection() as connection:
            connection.execute(f"drop owned by {role} cascade; drop role {role}")  # type: ignore[call-overload]


def test_a_restricted_role_has_idempotency_keys_of_its_own(two_roles: tuple[sb.Database, sb.Database]) -> None:
    owner, clerk = two_roles
    owner.grant("REFERENCES", "public", contract=CONTRACT)
    of_owner = begin(owner, idempotency_key=KEY)
    first = begin(clerk, idempotency_key=KEY, priority=7)
    assert priorities(owner, first)[0] == 7
    for _ in range(2):
        second = begin(clerk, idempotency_key=KEY)
        assert isinstance(second, sb.RepeatedHandle)
        assert second == first
    assert begin(owner, idempotency_key=KEY) == of_owner != first
    with rolled_back(clerk) as tx:
        tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, idempotency_key="lost")
    assert not isinstance(begin(clerk, idempotency_key="lost"), sb.RepeatedHandle)
    call = "select refusal from servicebroker_fence.begin_conversation(%s, %s, %s, %s, 60, null, null, null, false, {})"
    with clerk.instance.connection() as connection:
        for choice in ("0, null, null", "11, null, null", "null, '', 60", "null, repeat('x', 257), 60", "null, 'k', 0"):
            text: Any = call.format(choice)
            ((refusal,),) = connection.execute(text, (clerk.database_id, ORDERS, STOCK, CONTRACT)).fetchall()
            assert refusal[0] == "402", choice


def test_a_repeated_begin_needs_the_permission(database: sb.Database) -> None:
    database.create_user("Alice")
    database.grant("RECEIVE", "Alice", queue=ORDERS_QUEUE)
    database.grant("REFERENCES", "Alice", contract=CONTRACT)
    alice = as_user(database, "Alice")
    first = begin(alice, idempotency_key=KEY)
    assert begin(alice, idempotency_key=KEY) == first
    database.deny("RECEIVE", "Alice", queue=ORDERS_QUEUE)
    with pytest.raises(sb.BrokerError, match="permission"):
        begin(alice, idempotency_key=KEY)
    database.revoke("RECEIVE", "Alice", queue=ORDERS_QUEUE)
    database.grant("RECEIVE", "Alice", queue=ORDERS_QUEUE)
    assert begin(alice, idempotency_key=KEY) == first


# ---------------------------------------------------------------- priority


def priorities(database: sb.Database, handle: UUID) -> list[int]:
    """Return the priorities of the initiator, and of the target if it exists."""
    text = (
        "select p.priority from servicebroker.conversation_endpoints e join servicebroker.conversation_endpoints p "
        "using (conversation_id) where e.conversation_handle = %s order by p.is_initiator desc"
    )
    return [row[0] for row in query(database, text, handle)]


@pytest.mark.both_apis
@pytest.mark.parametrize("is_remembered", [False, True], ids=["first", "again"])
def test_begin_dialog_with_a_priority_decides_the_order_of_receive(database: sb.Database, is_remembered: bool) -> None:
    database.create_broker_priority("All", contract_name=CONTRACT, priority_level=6)
    if is_remembered:
        database.send(begin(database), ORDER, b"")
        database.receive(STOCK_QUEUE)
    for priority in (None, 2, 9, 10):
        handle = begin(database, priority=priority)
        database.send(handle, ORDER, str(priority))
        assert priorities(database, handle) == [priority or 6] * 2
    with database.transaction() as tx:  # in the statement that creates the target with several messages
        handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, priority=8)
        for text in ("8", "8 again"):
            tx.send(handle, ORDER, text)
    taken = []
    while messages := database.receive(STOCK_QUEUE, top=1):
        taken.append((messages[0].priority, messages[0].message_body))
    assert taken == [(10, b"10"), (9, b"9"), (8, b"8"), (8, b"8 again"), (6, b"None"), (2, b"2")]


def test_another_database_has_its_own_priorities(database: sb.Database) -> None:
    other_database = database.instance.database(f"{database.name}Other", create=True)
    other_database.create_message_type(ORDER)
    other_database.create_contract(CONTRACT, {ORDER: "INITIATOR"})
    other_database.create_queue("Q")
    other_database.create_service("//other/Stock", "Q", [CONTRACT])
    handle = begin(database, to="//other/Stock", priority=9)
    database.send(handle, ORDER, b"")
    assert priorities(database, handle) == [9, 5]
    (message,) = other_database.receive("Q")
    assert message.priority == 5


def test_a_request_has_a_priority(database: sb.Database) -> None:
    for priority in (None, 9):
        database.begin_request(ORDERS, STOCK, ORDER, b"", contract=CONTRACT, priority=priority)
    assert [message.priority for message in database.receive(STOCK_QUEUE, top=1)] == [9]


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 0},
        {"priority": 11},
        {"priority": True},
        {"priority": "high"},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 257},
        {"idempotency_key": b"x"},
        {"idempotency_key": "a\0b"},
        {"idempotency_key": "\ud800"},
        {"idempotency_key": KEY, "idempotency_ttl": 0},
        {"idempotency_key": KEY, "idempotency_ttl": 2**31},
        {"idempotency_key": KEY, "idempotency_ttl": 1.5},
    ],
    ids=str,
)
def test_invalid_priorities_and_keys_are_refused_and_begin_nothing(database: sb.Database, options: Any) -> None:
    with refused(402):
        begin(database, **options)
    assert conversations(database) == keys(database) == 0


def test_callers_that_retry_send_once(database: sb.Database, seeded_random: random.Random) -> None:
    """Sessions are terminated at any time: in BEGIN DIALOG, before COMMIT and within it. Each key is sent once."""
    keys_to_send = [f"order {number}" for number in range(12)]
    over = threading.Event()

    def order(key: str) -> UUID:
        while True:
            try:
                with database.transaction() as tx:
                    handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, idempotency_key=key)
                    if not isinstance(handle, sb.RepeatedHandle):
                        tx.send(handle, ORDER, key)
            except (sb.InstanceError, psycopg.Error):  # perhaps after the COMMIT
                continue
            return handle

    def terminate() -> None:
        with psycopg.connect(database.instance.url, autocommit=True) as connection:
            for _ in range(150):  # the terminations stop, also with slow callers
                if over.wait(seeded_random.uniform(0, 0.01)):
                    return
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                    "and pid <> pg_backend_pid() and application_name = 'servicebroker' order by random() limit 1"
                )

    killer = in_thread(terminate)
    try:
        callers = [in_thread(order, key) for key in keys_to_send * 3]
        handles = [caller.result(60) for caller in callers]
    finally:
        over.set()
        killer.result(10)
    assert len(set(handles)) == len(keys_to_send)
    with sb.open(database.instance.url, upkeep=None) as instance:  # its connections are alive
        sent = [message.message_body for message in receive_all(instance.database(database.name))]
    assert sorted(body.decode() for body in sent if body) == sorted(keys_to_send)


def receive_all(database: sb.Database) -> list[sb.Message]:
    messages: list[sb.Message] = []
    while more := database.receive(STOCK_QUEUE):
        messages += more
    return messages
