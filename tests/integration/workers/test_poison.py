"""Automatic poison detection: five rolled back transactions with a RECEIVE switch the queue off."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from portal import connect
from support import (
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    Undo,
    begin,
    bodies,
    eventually,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    refused,
    rolled_back,
    terminate_backend,
    waiting_messages,
)

pytestmark = pytest.mark.both_apis


def is_on(database: sb.Database, queue: str = STOCK_QUEUE) -> bool:
    rows = query(
        database,
        "select is_receive_enabled, is_enqueue_enabled from servicebroker.queues where database_id = %s and name = %s",
        database.database_id,
        queue,
    )
    assert rows[0][0] == rows[0][1]
    return bool(rows[0][0])


def switch_on(database: sb.Database) -> None:
    change(database, "is_receive_enabled = true, is_enqueue_enabled = true")


def change(database: sb.Database, text: str) -> None:
    with database.instance.connection() as connection:
        connection.execute(
            f"update servicebroker.queues set {text} where database_id = %s and name = %s",  # type: ignore[arg-type]
            (database.database_id, STOCK_QUEUE),
        )


def receive_and_undo(database: sb.Database, times: int = 1) -> None:
    for _ in range(times):
        with rolled_back(database) as transaction:
            assert transaction.receive(STOCK_QUEUE)


def disabled_events(database: sb.Database) -> list[sb.BrokerEvent]:
    return [event for event in database.instance.events.recent(143) if event.database_id == database.database_id]


@pytest.mark.feature(183, 184)
def test_the_fifth_rollback_switches_the_queue_off(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"poison")
    raised: list[sb.BrokerEvent] = []
    database.instance.events.subscribe(raised.append)
    receive_and_undo(database, 4)
    assert is_on(database)
    assert disabled_events(database) == []
    receive_and_undo(database)
    assert not is_on(database)
    with refused(9617, STOCK_QUEUE):
        database.receive(STOCK_QUEUE)
    with refused(9617, STOCK_QUEUE):
        database.get_conversation_group(STOCK_QUEUE)
    assert query(database, f"select message_body from {database.name}_dbo.stockqueue") == [(b"poison",)]
    (event,) = disabled_events(database)
    queue = "select queue_id from servicebroker.queues where database_id = %s and name = %s"
    assert event.object_id == query(database, queue, database.database_id, STOCK_QUEUE)[0][0]
    assert (event.name, STOCK_QUEUE in event.text, event in raised) == ("Broker:Queue Disabled", True, True)
    switch_on(database)
    receive_and_undo(database, 4)
    assert is_on(database)
    receive_and_undo(database)
    assert not is_on(database)
    switch_on(database)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"poison"]


@pytest.mark.feature(183)
def test_rollbacks_disable_every_queue_that_the_transaction_received_from(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"x")
    database.send(target, REPLY, b"y")
    for _ in range(5):
        with rolled_back(database) as transaction:
            assert transaction.receive(STOCK_QUEUE)
            assert transaction.receive(ORDERS_QUEUE)
    assert not is_on(database)
    assert not is_on(database, ORDERS_QUEUE)


def test_a_commit_begins_the_count_again(database: sb.Database) -> None:
    database.send_batch(begin(database), ORDER, [b"1", b"2", b"3"])
    receive_and_undo(database, 4)
    with database.transaction() as transaction:
        transaction.receive(STOCK_QUEUE, top=1)
    receive_and_undo(database, 4)
    database.receive(STOCK_QUEUE, top=1)
    receive_and_undo(database, 4)
    assert is_on(database)


@pytest.mark.feature(192)
def test_an_empty_receive_that_is_rolled_back_does_not_count(database: sb.Database) -> None:
    for _ in range(10):
        with rolled_back(database) as transaction:
            assert transaction.receive(STOCK_QUEUE) == []
            assert transaction.receive(STOCK_QUEUE, top=0) == []
            transaction.send(begin(database), ORDER, b"x")
    assert is_on(database)
    assert disabled_events(database) == []


@pytest.mark.feature(68)
def test_a_rollback_to_a_savepoint_does_not_count(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"x")
    for _ in range(10):
        with database.transaction() as transaction, suppress(Undo), transaction.savepoint():
            assert transaction.receive(STOCK_QUEUE)
            raise Undo
    assert is_on(database)


def receive_beneath(transaction: Any, beneath: str, **options: Any) -> None:
    """RECEIVE under a savepoint that stays open, was released, or is nested in another savepoint."""
    if beneath == "open":
        transaction.connection.execute("savepoint beneath")
        assert transaction.receive(STOCK_QUEUE, **options)
    elif beneath == "released":
        with transaction.savepoint():
            assert transaction.receive(STOCK_QUEUE, **options)
    else:
        with transaction.savepoint(), transaction.savepoint():
            assert transaction.receive(STOCK_QUEUE, **options)


@pytest.mark.feature(68, 183)
@pytest.mark.parametrize("beneath", ["open", "released", "nested"])
@pytest.mark.parametrize("form", ["all", "one", "groups", "where"])
def test_a_receive_under_a_savepoint_counts(database: sb.Database, beneath: str, form: str) -> None:
    """A rollback counts, and a commit resets the count."""
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    forms: dict[str, dict[str, Any]] = {
        "all": {},
        "one": {"top": 1},
        "groups": {"top": 1, "groups": 2},
        "where": {"conversation_handle": peer_handle(database, handle), "top": 1},
    }
    for times in (4, 5):
        for _ in range(times):
            assert is_on(database)
            with rolled_back(database) as transaction:
                receive_beneath(transaction, beneath, **forms[form])
        if times == 4:  # a commit resets the count
            with database.transaction() as transaction:
                receive_beneath(transaction, beneath, top=1)
    assert not is_on(database)


@pytest.mark.feature(68, 183)
def test_a_receive_under_a_savepoint_of_a_joined_transaction_counts(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"x")
    with connect(database.instance, autocommit=False) as connection:
        joined = database.join(connection)
        for _ in range(5):
            assert is_on(database)
            connection.execute("savepoint beneath")
            assert joined.receive(STOCK_QUEUE)
            connection.rollback()
        with refused(9617):
            joined.receive(STOCK_QUEUE)
        connection.rollback()
    assert not is_on(database)


@pytest.mark.feature(68, 183)
@pytest.mark.parametrize("beneath", ["SAVE TRANSACTION beneath", "BEGIN TRANSACTION"])
def test_a_receive_under_a_savepoint_of_a_script_counts(database: sb.Database, beneath: str) -> None:
    database.send(begin(database), ORDER, b"x")
    for _ in range(5):
        assert is_on(database)
        database.execute_tsql(f"BEGIN TRANSACTION; {beneath}; RECEIVE * FROM {STOCK_QUEUE}; ROLLBACK TRANSACTION")
    assert not is_on(database)


@pytest.mark.feature(187)
def test_without_poison_message_handling_nothing_is_switched_off(database: sb.Database) -> None:
    change(database, "is_poison_message_handling_enabled = false")
    database.send(begin(database), ORDER, b"x")
    receive_and_undo(database, 10)
    assert is_on(database)
    assert disabled_events(database) == []
    change(database, "is_poison_message_handling_enabled = true")
    receive_and_undo(database, 5)
    assert not is_on(database)


@pytest.mark.feature(187)
def test_poison_message_handling_is_an_option_of_the_queue(database: sb.Database) -> None:
    column = (
        "select is_poison_message_handling_enabled from sys.service_queues where broker_database = %s and name = %s"
    )
    for setting in (False, True):
        database.alter_queue(STOCK_QUEUE, poison_message_handling=setting)
        assert query(database, column, database.name, STOCK_QUEUE) == [(setting,)]
        assert query(database, column, database.name, ORDERS_QUEUE) == [(True,)]
        assert is_on(database)
    with refused(402, "POISON_MESSAGE_HANDLING"):
        database.alter_queue(STOCK_QUEUE, poison_message_handling="OFF")  # type: ignore[arg-type]


def test_messages_for_a_disabled_queue_wait(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"poison")
    receive_and_undo(database, 5)
    assert not is_on(database)
    assert database.send(handle, ORDER, b"waits") == 1
    assert waiting_messages(database) == 1
    database.alter_queue(STOCK_QUEUE, status=True)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"poison", b"waits"]


def failing_statement(transaction: sb.Transaction) -> None:
    transaction.connection.execute("select 1 / 0")


def fail_inside(transaction: sb.Transaction) -> None:
    """Swallow a statement's error, so that the block ends normally."""
    with suppress(psycopg.errors.DivisionByZero):
        transaction.connection.execute("select 1 / 0")


def failing_commit(transaction: sb.Transaction) -> None:
    transaction.connection.execute("create temporary table late (a int unique deferrable initially deferred)")
    transaction.connection.execute("insert into late values (1), (1)")


ROLLBACKS: list[Callable[[sb.Transaction], Any]] = [
    lambda transaction: transaction.connection.rollback(),
    lambda transaction: transaction.connection.execute("rollback"),
    lambda transaction: terminate_backend(transaction.connection),
    failing_statement,
    fail_inside,
    failing_commit,
]


@pytest.mark.feature(183)
@pytest.mark.parametrize("end", ROLLBACKS, ids=["raw", "statement", "killed", "error", "swallowed error", "commit"])
def test_every_way_to_lose_a_transaction_counts(database: sb.Database, end: Callable[[sb.Transaction], Any]) -> None:
    database.send(begin(database), ORDER, b"x")
    for _ in range(5):
        assert is_on(database)
        with suppress(psycopg.Error, sb.InstanceError), database.transaction() as transaction:
            assert transaction.receive(STOCK_QUEUE)
            end(transaction)
    with refused(9617):
        database.receive(STOCK_QUEUE)
    assert not is_on(database)


def test_a_commit_on_the_connection_is_one(database: sb.Database) -> None:
    handle = begin(database)
    for _ in range(10):
        database.send(handle, ORDER, b"x")
        with database.transaction() as transaction:
            assert transaction.receive(STOCK_QUEUE)
            transaction.connection.commit()
    assert is_on(database)


@pytest.mark.feature(183)
@pytest.mark.parametrize("autocommit", [True, False])
def test_rollbacks_of_a_joined_transaction_disable_the_queue(database: sb.Database, autocommit: bool) -> None:
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"x"] * 3)
    with connect(database.instance, autocommit=autocommit) as connection:
        joined = database.join(connection)

        def receive() -> list[sb.Message]:
            if autocommit:
                connection.execute("begin")
            return joined.receive(STOCK_QUEUE, top=1)

        for _ in range(3):
            assert receive()
            connection.rollback()
        assert receive()
        connection.commit()
        for _ in range(5):
            assert receive()
            connection.rollback()
        with refused(9617):
            receive()
        connection.rollback()
    assert not is_on(database)


def test_a_joined_connection_in_autocommit_mode_commits(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"x")
    receive_and_undo(database, 4)
    with connect(database.instance, autocommit=True) as connection:
        assert database.join(connection).receive(STOCK_QUEUE)
    database.send(handle, ORDER, b"x")
    receive_and_undo(database, 4)
    assert is_on(database)


@pytest.mark.feature(183)
def test_a_queue_that_cannot_be_switched_off_is_logged_and_counted_anew(
    database: sb.Database, caplog: pytest.LogCaptureFixture
) -> None:
    database.send(begin(database), ORDER, b"poison")
    receive_and_undo(database, 4)
    with psycopg.connect(database.instance.url) as other_connection, caplog.at_level(logging.ERROR, "servicebroker"):
        lock = "select from servicebroker.queues where database_id = %s and name = %s for no key update"
        other_connection.execute(lock, (database.database_id, STOCK_QUEUE))
        fifth = in_thread(receive_and_undo, database)
        lock_count = (
            "from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
            "and strpos(query, 'disabled_queues') > 0"
        )
        eventually(lambda: query(database, f"select 1 {lock_count}"))
        query(database, f"select pg_terminate_backend(pid, 5000) {lock_count}")
        eventually(lambda: "8405" in caplog.text)
        other_connection.rollback()
    fifth.result(60)
    assert is_on(database)
    assert disabled_events(database) == []
    receive_and_undo(database, 5)
    assert not is_on(database)


@pytest.mark.usefixtures("without_polls")
def test_a_waiting_reader_is_told(database: sb.Database) -> None:
    database.send(begin(database), ORDER, b"x")
    receive_and_undo(database, 4)
    with rolled_back(database) as transaction:
        transaction.receive(STOCK_QUEUE)
        reader = in_thread(database.receive, STOCK_QUEUE, wait=60)
        eventually(lambda: query(database, "select count(*) from servicebroker.waiting_readers") != [(0,)])
        time.sleep(0.3)  # one more poll before the sleep
    with refused(9617):
        reader.result(5)


def test_a_full_disk_is_no_messages_fault(database: sb.Database) -> None:
    """Rollbacks by a full disk are not counted: the queue must still be on when there is room again."""
    open_dialog(database)
    database.send(begin(database), ORDER, b"x")
    for _ in range(6):
        with pytest.raises(psycopg.errors.DiskFull), database.transaction() as transaction:
            assert transaction.receive(STOCK_QUEUE)
            transaction.connection.execute("do $$ begin raise sqlstate '53100'; end $$")
        with pytest.raises(sb.InstanceError), database.transaction() as transaction:
            assert transaction.receive(STOCK_QUEUE)
            raise sb.InstanceError("The disk is full") from psycopg.errors.DiskFull()
    assert is_on(database)
