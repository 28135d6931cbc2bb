"""BEGIN DIALOG is deferred until the first messages, and sent with them in one statement."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.store.statement_counts import StatementCounts, counts_of
from support import (
    CONTRACT,
    DOCUMENT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    as_user,
    begin,
    bodies,
    group_of,
    peer_handle,
    query,
    refused,
    state,
    waiting_reader,
)

pytestmark = pytest.mark.both_apis


@pytest.fixture
def cached_database(database: sb.Database) -> sb.Database:
    """A database that has cached the target of conversations from ORDERS to STOCK."""
    begin_and_send(database)
    begin_and_send(database)
    database.receive(STOCK_QUEUE, top=None)
    database.receive(STOCK_QUEUE, top=None)
    return database


def begin_and_send(database: sb.Database, *messages: bytes, to: str = STOCK, **options: Any) -> UUID:
    """Begin a conversation and send messages on it, in one transaction."""
    with database.transaction() as tx:
        handle = tx.begin_dialog(ORDERS, to, contract=CONTRACT, **options)
        for number, body in enumerate(messages or (b"order",)):
            assert tx.send(handle, ORDER, body) == number
    return handle


def counts(database: sb.Database) -> StatementCounts:
    with database.instance.connection() as connection:
        return counts_of(getattr(connection, "real", connection))


def count_statements(database: sb.Database, run: Callable[[], object]) -> dict[str, int]:
    """Count the executions of each statement."""
    statement_counts = counts(database)
    statement_counts.take()
    run()
    return {name: calls for name, (calls, _) in statement_counts.take().items()}


def test_begin_send_and_commit_are_one_statement(cached_database: sb.Database, trips: list[None]) -> None:
    assert count_statements(cached_database, lambda: begin_and_send(cached_database)) == {
        "deferred_dialogs.single_message": 1
    }
    del trips[:]
    for _ in range(3):
        begin_and_send(cached_database)
    assert len(trips) == 3
    assert bodies(cached_database.receive(STOCK_QUEUE)) == [b"order"]


def test_further_sends_and_timers_join_the_statement(cached_database: sb.Database, trips: list[None]) -> None:
    def begin_several() -> None:
        with cached_database.transaction() as tx:
            for number in range(10):
                handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
                tx.begin_conversation_timer(handle, 600)
                tx.send(handle, MARK)
                assert tx.send_batch(handle, ORDER, [b"%d" % number, b"%d" % number]) == 1
                assert tx.send(handle, DOCUMENT, b"<a/>") == 3

    begin_several()
    assert count_statements(cached_database, begin_several) == {"deferred_dialogs.many_messages": 1}
    del trips[:]
    begin_several()
    assert len(trips) == 1
    for _ in range(3):
        for number in range(10):
            received = cached_database.receive(STOCK_QUEUE)
            assert [m.message_sequence_number for m in received] == [0, 1, 2, 3]
            assert bodies(received) == [None, b"%d" % number, b"%d" % number, b"<a/>"]
    timers = query(
        cached_database, "select count(*) from servicebroker.conversation_endpoints where dialog_timer is not null"
    )
    assert timers == [(30,)]


def test_the_order_of_sends_is_the_order_of_arrival(cached_database: sb.Database) -> None:
    with cached_database.transaction() as tx:
        first, second = (tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT) for _ in range(2))
        tx.send(second, ORDER, b"1")
        tx.send(first, ORDER, b"2")
        tx.send(second, ORDER, b"3")
    text = f"select message_body from {cached_database.name.lower()}_dbo.stockqueue order by queuing_order"
    assert [bytes(body) for (body,) in query(cached_database, text)] == [b"1", b"2", b"3"]


def test_one_statement_writes_the_rows_of_single_statements(cached_database: sb.Database) -> None:
    def rows(handle: UUID) -> list[tuple[Any, ...]]:
        columns = (
            "is_initiator, database_id, service_id, service_contract_id, queue_id, priority, state, encryption, "
            "dialog_timer is null, security_timestamp, far_service, far_broker_instance, far_queue_id, far_service_id, "
            "far_contract_id, far_priority, send_sequence, receive_sequence, is_remote, is_acknowledged, "
            "routed_broker, security, principal_id, far_principal_id, last_stamp > '0', lifetime > now(), "
            "far_handle = (select p.conversation_handle from servicebroker.conversation_endpoints p "
            "where p.conversation_id = e.conversation_id and p.is_initiator <> e.is_initiator), "
            "far_group_id = (select p.conversation_group_id from servicebroker.conversation_endpoints p "
            "where p.conversation_id = e.conversation_id and p.is_initiator <> e.is_initiator), "
            "(select g.service_id from servicebroker.conversation_groups g "
            "where g.conversation_group_id = e.conversation_group_id)"
        )
        message = (
            "message_sequence_number, service_id, service_contract_id, message_type_id, priority, rank, "
            "bucket = uuid_hash(conversation_group_id) & 1023, validation, is_shared, message_body, "
            "stamp > '0', conversation_group_id = (select conversation_group_id from "
            "servicebroker.conversation_endpoints e where e.conversation_handle = q.conversation_handle)"
        )
        queue = query(cached_database, "select far_queue_id from servicebroker.conversation_endpoints "
                             "where conversation_handle = %s", handle)[0][0]  # fmt: skip
        return query(
            cached_database,
            f"select {columns} from servicebroker.conversation_endpoints e where conversation_id = (select "
            "conversation_id from servicebroker.conversation_endpoints where conversation_handle = %s) order by 1",
            handle,
        ) + query(
            cached_database,
            f"select {message} from servicebroker.queue_{queue} q where conversation_handle = (select far_handle "
            "from servicebroker.conversation_endpoints where conversation_handle = %s) order by 1",
            handle,
        )

    fresh = sb.open(cached_database.instance.url, upkeep=None)
    with fresh:
        one_by_one = begin_and_send(fresh.database(cached_database.name), b"1", b"2", lifetime=1000, encryption=False)
    expected = rows(one_by_one)
    assert len(expected) == 4
    handles = {}
    assert count_statements(
        cached_database,
        lambda: handles.update(combined=begin_and_send(cached_database, b"1", b"2", lifetime=1000, encryption=False)),
    ) == {"deferred_dialogs.many_messages": 1}
    assert rows(handles["combined"]) == expected
    cached_database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    opened = begin(cached_database, lifetime=1000, encryption=False)
    assert count_statements(cached_database, lambda: cached_database.send(opened, ORDER, b"1")) == {
        "send.open_and_send": 1
    }
    cached_database.send(opened, ORDER, b"2")
    assert rows(opened) == expected
    single = begin_and_send(cached_database, b"1", lifetime=1000, encryption=False)
    cached_database.send(single, ORDER, b"2")
    assert rows(single) == expected


def test_statements_of_the_application_see_the_new_dialog(cached_database: sb.Database) -> None:
    with cached_database.transaction() as tx:
        handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        text = "select state from servicebroker.conversation_endpoints where conversation_handle = %s"
        assert tx.connection.execute(text, (handle,)).fetchall() == [("SO",)]
        tx.send(handle, ORDER, b"1")
        assert tx.connection.execute(text, (handle,)).fetchall() == [("CO",)]
        other_handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        tx.send(other_handle, ORDER, b"2")
        assert tx.connection.execute(text, (other_handle,)).fetchall() == [("CO",)]
        assert tx.receive(STOCK_QUEUE, top=None)
        locks = (
            "select count(*) from pg_locks where locktype = 'advisory' and objid = uuid_hash(%s)::bigint & 4294967295"
        )
        assert tx.connection.execute(locks, (group_of_in(tx, other_handle),)).fetchall() == [(1,)]
    assert state(cached_database, handle) == "CO"


def group_of_in(tx: Any, handle: UUID) -> UUID:
    text = "select conversation_group_id from servicebroker.conversation_endpoints where conversation_handle = %s"
    group: UUID = tx.connection.execute(text, (handle,)).fetchone()[0]
    return group


def test_a_rollback_removes_new_dialogs(cached_database: sb.Database) -> None:
    before = query(cached_database, "select count(*) from servicebroker.conversation_endpoints")
    with pytest.raises(ZeroDivisionError), cached_database.transaction() as tx:
        tx.send(tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"1")
        raise ZeroDivisionError
    with cached_database.transaction() as tx:
        kept = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            undone = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
            tx.send(undone, ORDER, b"2")
            raise ZeroDivisionError
        with refused(8426):
            tx.send(undone, ORDER, b"3")
        tx.send(kept, ORDER, b"4")
        with tx.savepoint():
            tx.send(tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"5")
    with cached_database.transaction() as tx:
        tx.send(tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"6")
        tx.connection.rollback()
    assert query(cached_database, "select count(*) from servicebroker.conversation_endpoints") == [(before[0][0] + 4,)]
    assert sorted(bodies(cached_database.receive(STOCK_QUEUE) + cached_database.receive(STOCK_QUEUE))) == [b"4", b"5"]
    assert not cached_database.receive(STOCK_QUEUE)


def test_errors_that_need_no_server_are_raised_at_once(cached_database: sb.Database) -> None:
    with cached_database.transaction() as tx:
        with refused(8411):
            tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, lifetime=0)
        with refused(1093):
            tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, broker_instance="nobody")
        handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT, lifetime=60)
        with refused(8410):
            tx.begin_conversation_timer(handle, 61)
        with refused(8433):
            tx.send(handle, ORDER, None)
        with refused(8432):  # only the target may send this type
            tx.send(handle, REPLY, b"x")
        with refused(8431):
            tx.send(handle, "DEFAULT", b"x")
        assert tx.send(handle, ORDER, b"1") == 0
    assert bodies(cached_database.receive(STOCK_QUEUE)) == [b"1"]


def test_a_message_that_the_target_refuses_fails_the_conversation(cached_database: sb.Database) -> None:
    with cached_database.transaction() as tx:
        handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        tx.send(handle, ORDER, b"1")
        tx.send(handle, DOCUMENT, b"<broken")
    (error,) = cached_database.receive(ORDERS_QUEUE)
    assert error.is_error
    assert error.conversation_handle == handle


def drop_contract(database: sb.Database, target: str) -> None:
    for service in (STOCK, target):
        database.alter_service(service, drop_contracts=[CONTRACT])
    database.drop_contract(CONTRACT)


ALTERATIONS: dict[str, Callable[[sb.Database, str], object]] = {
    "broker off": lambda db, to: db.alter(disable_broker=True),
    "queue off": lambda db, to: db.alter_queue(STOCK_QUEUE, status=False),
    "own queue off": lambda db, to: db.alter_queue(ORDERS_QUEUE, status=False),
    "own queue retains": lambda db, to: db.alter_queue(ORDERS_QUEUE, retention=True),
    "far queue retains": lambda db, to: db.alter_queue(STOCK_QUEUE, retention=True),
    "service without the contract": lambda db, to: db.alter_service(to, drop_contracts=[CONTRACT]),
    "no service": lambda db, to: db.drop_service(to),
    "service moved": lambda db, to: db.alter_service(to, queue=ORDERS_QUEUE),
    "own service moved": lambda db, to: db.alter_service(ORDERS, queue=STOCK_QUEUE),
    "message type": lambda db, to: db.alter_message_type(ORDER, "EMPTY"),
    "route": lambda db, to: db.create_route("away", address="TCP://10.9.8.7:4022", service_name=to),
    "route that expires": lambda db, to: db.create_route("brief", address="LOCAL", service_name=to, lifetime=60),
    "priority": lambda db, to: db.create_broker_priority("p", contract_name=CONTRACT, priority_level=9),
    "new broker": lambda db, to: db.alter(new_broker=True),
    "contract": drop_contract,
    "own service": lambda db, to: db.drop_service(ORDERS),
    "read only": lambda db, to: db.alter(read_only=True),
}


@pytest.mark.parametrize("name", ALTERATIONS)
@pytest.mark.sampled(8)
def test_alterations_invalidate_a_cached_target(cached_database: sb.Database, name: str) -> None:
    """A client with a cached target and a new client get the same result. No other database has this target name."""
    target = f"//test/Target of {cached_database.name}"
    cached_database.create_service(target, STOCK_QUEUE, [CONTRACT])
    for _ in range(2):
        begin_and_send(cached_database, to=target)
    with sb.open(cached_database.instance.url, upkeep=None) as other_instance:
        ALTERATIONS[name](other_instance.database(cached_database.name), target)
    outcomes = []
    for _ in range(2):  # the second run uses the cache
        outcomes.append(outcome(cached_database, target))
        with sb.open(cached_database.instance.url, upkeep=None) as fresh:
            outcomes.append(outcome(fresh.database(cached_database.name), target))
    assert len(set(outcomes)) == 1, outcomes


def outcome(database: Any, target: str) -> str:
    """Return the outcome of a conversation for one message: a refusal, or its rows."""
    try:
        handle = begin_and_send(database, to=target)
    except sb.BrokerError as problem:
        return str(problem)
    except Exception as problem:
        return type(problem).__name__
    text = (
        "select e.state, e.far_handle is null, e.far_queue_id, e.priority, e.far_priority, e.send_sequence, "
        "e.far_broker_instance, e.queue_id, e.far_contract_id, e.last_stamp > '0', e.is_remote, e.encryption, "
        "(select array_agg((t.transmission_status, t.message_type_name, t.validation, octet_length(t.token))::text) "
        "from servicebroker.transmission_queue t where t.conversation_handle = e.conversation_handle) "
        "from servicebroker.conversation_endpoints e where e.conversation_handle = %s"
    )
    return repr(query(database, text, handle))


def test_commit_refuses_a_service_dropped_meanwhile(cached_database: sb.Database) -> None:
    with refused(8423, ORDERS), cached_database.transaction() as tx:
        handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        tx.send(handle, ORDER, b"x")
        with sb.open(cached_database.instance.url, upkeep=None) as other_instance:
            other_instance.database(cached_database.name).drop_service(ORDERS)
    assert state(cached_database, handle) is None


def test_a_revoked_permission_is_refused(cached_database: sb.Database) -> None:
    cached_database.create_user("clerk")
    cached_database.grant("RECEIVE", "clerk", queue=ORDERS_QUEUE)
    cached_database.grant("REFERENCES", "clerk", contract=CONTRACT)
    clerk = cached_database.instance.database(cached_database.name, user="clerk")
    begin_and_send(clerk)
    assert count_statements(clerk, lambda: begin_and_send(clerk)) == {"deferred_dialogs.single_message": 1}
    with refused(8494, ORDERS), clerk.transaction() as tx:
        handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        tx.begin_conversation_timer(handle, 5)  # needs SEND on the caller's service
    cached_database.revoke("RECEIVE", "clerk", queue=ORDERS_QUEUE)
    with refused(8494):
        begin_and_send(clerk)
    cached_database.grant("RECEIVE", "clerk", queue=ORDERS_QUEUE)
    begin_and_send(clerk)
    cached_database.deny("REFERENCES", "clerk", contract=CONTRACT)
    with refused(229):
        begin_and_send(clerk)
    cached_database.grant("REFERENCES", "clerk", contract=CONTRACT)
    cached_database.alter_authorization("clerk", service=ORDERS)
    handle = begin_and_send(clerk)
    (error,) = cached_database.receive(ORDERS_QUEUE, conversation_handle=handle)
    assert error.is_error  # the owner of the service may not send to the target


def test_a_new_dialog_wakes_a_waiting_reader(cached_database: sb.Database) -> None:
    received = waiting_reader(cached_database)
    start = time.monotonic()
    begin_and_send(cached_database)
    assert bodies(received.result(30)) == [b"order"]
    assert time.monotonic() - start < 0.9  # a reader polls each second, even without a notification


def test_each_queue_has_a_statement_of_its_own(cached_database: sb.Database) -> None:
    """Messages to different queues are enqueued in the order in which they were sent."""
    cached_database.create_queue("SecondQueue")
    cached_database.create_service("//test/Second", "SecondQueue", [CONTRACT])
    for _ in range(2):
        cached_database.send(cached_database.begin_dialog(ORDERS, "//test/Second", contract=CONTRACT), ORDER, b"0")

    def begin_three() -> None:
        with cached_database.transaction() as tx:
            handles = [tx.begin_dialog(ORDERS, to, contract=CONTRACT) for to in (STOCK, "//test/Second", STOCK)]
            for number, handle in enumerate(handles):
                tx.send(handle, ORDER, b"%d" % number)

    assert count_statements(cached_database, begin_three) == {"deferred_dialogs.single_message": 3}
    assert bodies(cached_database.receive(STOCK_QUEUE)) == [b"0"]
    assert bodies(cached_database.receive(STOCK_QUEUE)) == [b"2"]


def test_many_conversations_are_sent_in_portions(cached_database: sb.Database) -> None:
    with cached_database.transaction() as tx:
        handles = [tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT) for _ in range(250)]
        for handle in handles:
            tx.send(handle, ORDER, b"x")
    assert (
        query(cached_database, "select count(*) from servicebroker.conversation_endpoints where state = 'CO'")[0][0]
        >= 500
    )
    assert peer_handle(cached_database, handles[0])
    assert group_of(cached_database, handles[-1])


# ---------------------------------------------------------------- to another instance


AWAY = "//test/Away"
WAY_OUT = "TCP://localhost:24022"


@pytest.fixture
def departing(database: sb.Database) -> sb.Database:
    """A database that has cached the route to a service of another instance."""
    database.create_route("out", address=WAY_OUT, service_name=AWAY)
    begin_and_send(database, to=AWAY)
    return database


def test_many_remote_conversations_are_one_statement(departing: sb.Database, trips: list[None]) -> None:
    handles: list[UUID] = []

    def begin_several() -> None:
        del trips[:]
        with departing.transaction() as tx:
            for _ in range(10):
                handles.append(handle := tx.begin_dialog(ORDERS, AWAY, contract=CONTRACT))
                tx.begin_conversation_timer(handle, 600)
                tx.send(handle, MARK)
                assert tx.send_batch(handle, ORDER, [b"1", b"2"]) == 1

    begin_several()
    assert count_statements(departing, begin_several) == {"deferred_dialogs.to_other_instance": 1}
    assert len(trips) == 1
    waiting = (
        "select message_sequence_number, message_type_name, message_body from servicebroker.transmission_queue "
        "where conversation_handle = %s order by 1"
    )
    for handle in handles:
        assert query(departing, waiting, handle) == [(0, MARK, None), (1, ORDER, b"1"), (2, ORDER, b"2")]
    with refused(8432), departing.transaction() as tx:  # only the target may send this type
        tx.send(tx.begin_dialog(ORDERS, AWAY, contract=CONTRACT), REPLY, b"x")


DEPARTURE_CHANGES: dict[str, tuple[Callable[[sb.Database], object], Callable[[sb.Database], object]]] = {
    "nothing": (lambda db: None, lambda db: None),
    "several ways, which are drawn": (
        lambda db: db.create_route("more", address="TCP://localhost:24023", service_name=AWAY),
        lambda db: db.drop_route("more"),
    ),
    "one of several leads nowhere": (
        lambda db: db.create_route("more", address="LOCAL", service_name=AWAY),
        lambda db: db.drop_route("more"),
    ),
    "the way home": (
        lambda db: db.alter_route("out", address="LOCAL"),
        lambda db: db.alter_route("out", address=WAY_OUT),
    ),
    "no route": (
        lambda db: db.drop_route("out"),
        lambda db: db.create_route("out", address=WAY_OUT, service_name=AWAY),
    ),
    "a service of that name": (
        lambda db: db.create_service(AWAY, STOCK_QUEUE, [CONTRACT]),
        lambda db: db.drop_service(AWAY),
    ),
    "the address is ours": (
        lambda db: db.instance.create_endpoint("ours", state="STARTED", listener_port=24022),
        lambda db: db.instance.drop_endpoint("ours"),
    ),
    "broker off": (lambda db: db.alter(disable_broker=True), lambda db: db.alter(enable_broker=True)),
    "own queue retains": (
        lambda db: db.alter_queue(ORDERS_QUEUE, retention=True),
        lambda db: db.alter_queue(ORDERS_QUEUE, retention=False),
    ),
    "own service moved": (
        lambda db: db.alter_service(ORDERS, queue=STOCK_QUEUE),
        lambda db: db.alter_service(ORDERS, queue=ORDERS_QUEUE),
    ),
    "priority": (
        lambda db: db.create_broker_priority("p", contract_name=CONTRACT, priority_level=9),
        lambda db: db.drop_broker_priority("p"),
    ),
    "new broker": (lambda db: db.alter(new_broker=True), lambda db: None),
    "no service of ours": (lambda db: db.drop_service(ORDERS), lambda db: None),
}


def test_conversations_of_a_principal_are_one_statement_while_permitted(departing: sb.Database) -> None:
    departing.create_user("clerk")
    rights = [("RECEIVE", {"queue": ORDERS_QUEUE}, 8494), ("REFERENCES", {"contract": CONTRACT}, 229)]
    for permission, on, _ in rights:
        departing.grant(permission, "clerk", **on)
    clerk = as_user(departing, "clerk")
    for permission, on, refusal in rights:
        for _ in range(2):
            begin_and_send(clerk, to=AWAY)
        assert count_statements(clerk, lambda: begin_and_send(clerk, to=AWAY)) == {
            "deferred_dialogs.to_other_instance": 1
        }
        departing.deny(permission, "clerk", **on)
        with refused(refusal):
            begin_and_send(clerk, to=AWAY)
        departing.grant(permission, "clerk", **on)
    begin_and_send(clerk, to=AWAY)
    with refused(8494, ORDERS), clerk.transaction() as tx:
        handle = tx.begin_dialog(ORDERS, AWAY, contract=CONTRACT)
        tx.begin_conversation_timer(handle, 5)  # needs SEND on the caller's service


def test_alterations_invalidate_a_cached_route(departing: sb.Database) -> None:
    """A client with a cached route and a new client get the same result, during an alteration and after it."""
    with sb.open(departing.instance.url, upkeep=None) as other_instance:
        for name, changes in DEPARTURE_CHANGES.items():
            for change in changes:
                change(other_instance.database(departing.name))
                outcomes = [outcome(departing, AWAY)]
                with sb.open(departing.instance.url, upkeep=None) as fresh:
                    outcomes += [outcome(fresh.database(departing.name), AWAY), outcome(departing, AWAY)]
                assert len(set(outcomes)) == 1, (name, outcomes)
