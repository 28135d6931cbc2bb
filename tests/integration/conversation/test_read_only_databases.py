"""Conversations and maintenance beside a READ_ONLY database: its own work waits, and that of others goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from built_in_support import begin as begin_with_built_in
from portal import run_maintenance
from servicebroker.engine.catalog.event_notifications import drop_broken
from servicebroker.model.names import ECHO
from servicebroker.store.running import run_alone
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    bodies,
    define_standard_set,
    query,
    refused,
)

pytestmark = pytest.mark.both_apis

HOUR_S = 3_600


class DueWork(NamedTuple):
    """The work in a database for the maintenance of an hour later."""

    timers: int
    lifetimes: int
    undelivered_ends: int
    closed: int
    delayed: int
    late_answers: int


def due_work(database: sb.Database) -> DueWork:
    """Count the work in the database that was not done yet."""
    rows = query(
        database,
        "with e as (select * from servicebroker.conversation_endpoints where database_id = %s) "
        "select count(*) filter (where dialog_timer is not null), "
        "count(*) filter (where far_service = 'missing' and state = 'SO'), count(*) filter (where state = 'DO'), "
        "count(*) filter (where state = 'CD'), count(*) filter (where exists (select from "
        "servicebroker.transmission_queue t where t.conversation_handle = e.conversation_handle "
        "and t.delayed_until is not null)), "
        "count(*) filter (where substring(conversation_group_id::text, 15, 1) = '8') from e",
        database.database_id,
    )
    return DueWork(*rows[0])


def prepare_work(database: sb.Database) -> None:
    """Leave one of each kind of work in the database."""

    def begin(to: str = STOCK, **options: float) -> UUID:
        return database.begin_dialog(ORDERS, to, contract=CONTRACT, encryption=False, **options)  # type: ignore[arg-type]

    database.begin_conversation_timer(begin(), 60)
    begin("missing", lifetime=60)
    ended = begin("missing", lifetime=60)
    database.send(ended, ORDER, b"1")
    database.end_conversation(ended)
    closed = begin()
    database.send(closed, ORDER, b"2")
    with database.transaction() as tx:
        (message,) = tx.receive(STOCK_QUEUE)
        tx.end_conversation(message.conversation_handle)
    database.end_conversation(closed)
    database.send(begin(), ORDER, b"3", delay=60)
    with pytest.raises(sb.RequestTimeout):
        database.request(ORDERS, STOCK, ORDER, b"4", contract=CONTRACT, timeout=0)
    with database.transaction() as tx:
        (message,) = tx.receive(STOCK_QUEUE)
        tx.send(message.conversation_handle, REPLY, b"late")


def test_the_maintenance_passes_over_a_read_only_database(fresh_instance: sb.Instance, clock: Clock) -> None:
    sealed, other = (define_standard_set(fresh_instance.database(name, create=True)) for name in ("Sealed", "Other"))
    for database in (sealed, other):
        prepare_work(database)
        assert due_work(database) == DueWork(1, 1, 1, 1, 1, 1)
    sealed.alter(read_only=True, rollback_after=0)
    before = due_work(sealed)
    clock.jump(seconds=HOUR_S)
    with fresh_instance.connection() as connection:
        run_maintenance(connection, clock())
        assert due_work(sealed) == before
        assert due_work(other) == DueWork(0, 0, 0, 0, 0, 0)
        sealed.alter(read_only=False)
        run_maintenance(connection, clock())
    assert due_work(sealed) == DueWork(0, 0, 0, 0, 0, 0)


def end(database: sb.Database, handle: UUID) -> None:
    database.end_conversation(handle)


def end_with_error(database: sb.Database, handle: UUID) -> None:
    database.end_conversation(handle, error=(1, "wrong"))


def end_with_cleanup(database: sb.Database, handle: UUID) -> None:
    database.end_conversation(handle, cleanup=True)


def send_and_end(database: sb.Database, handle: UUID) -> None:
    database.send(handle, ORDER, b"waits")
    database.end_conversation(handle)


def move(database: sb.Database, handle: UUID) -> None:
    other = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    group = query(
        database,
        "select conversation_group_id from servicebroker.conversation_endpoints where conversation_handle = %s",
        other,
    )[0][0]
    database.move_conversation(handle, group)


def expire(database: sb.Database, handle: UUID) -> None:
    """Let the lifetime of a conversation that has ended here run out."""
    database.end_conversation(handle)
    clock = database.instance.clock
    assert isinstance(clock, Clock)
    clock.jump(seconds=2 * HOUR_S)
    with database.instance.connection() as connection:
        run_maintenance(connection, clock())


@pytest.mark.parametrize("verb", [end, end_with_error, end_with_cleanup, send_and_end, move, expire])
def test_a_conversation_with_a_read_only_database_goes_on(
    fresh_instance: sb.Instance, verb: Callable[[sb.Database, UUID], None]
) -> None:
    """Its verbs work as beside a disabled broker, and what they send waits."""
    sealed = define_standard_set(fresh_instance.database("Sealed", create=True))
    other = define_standard_set(fresh_instance.database("Other", create=True))
    other.drop_service(STOCK)
    sealed.drop_service(ORDERS)
    sealed.grant("SEND", "guest", service=STOCK)
    handle = other.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False, lifetime=HOUR_S)
    other.send(handle, ORDER, b"1")
    with sealed.transaction() as tx:
        (message,) = tx.receive(STOCK_QUEUE)
        tx.send(message.conversation_handle, REPLY, b"2")
    sealed.alter(read_only=True, rollback_after=0)
    verb(other, handle)
    if verb is not expire:  # then it has an Error
        with refused(3906):
            sealed.send(message.conversation_handle, REPLY, b"3")
    with refused(3906):
        sealed.end_conversation(message.conversation_handle)
    sealed.alter(read_only=False)
    if verb in (end, send_and_end, end_with_error):
        received = sealed.receive(STOCK_QUEUE)
        assert received[-1].is_error if verb is end_with_error else received[-1].is_end_dialog
        assert [message.message_body for message in received[:-1]] == ([b"waits"] if verb is send_and_end else [])


def test_the_built_in_service_of_a_read_only_database_answers_later(fresh_instance: sb.Instance, clock: Clock) -> None:
    sealed, other = (define_standard_set(fresh_instance.database(name, create=True)) for name in ("Sealed", "Other"))
    for database in (sealed, other):
        database.send(begin_with_built_in(database), ECHO, b"back")
    sealed.alter(read_only=True, rollback_after=0)
    with fresh_instance.connection() as connection:
        run_maintenance(connection, clock())
        assert bodies(other.receive(ORDERS_QUEUE)) == [b"back"]
        sealed.alter(read_only=False)
        assert sealed.receive(ORDERS_QUEUE) == []
        run_maintenance(connection, clock())
    assert bodies(sealed.receive(ORDERS_QUEUE)) == [b"back"]


def test_a_broken_notification_of_a_read_only_database_is_dropped_later(
    fresh_instance: sb.Instance, clock: Clock
) -> None:
    sealed, other = (define_standard_set(fresh_instance.database(name, create=True)) for name in ("Sealed", "Other"))
    for database in (sealed, other):
        query(
            database,
            "insert into servicebroker.event_notifications (database_id, name, queue_id, events, is_fan_in, "
            "service_name, broker_instance, owner_id, is_of_server, creator, conversation_handle) values "
            "(%s, 'broken', null, '{CREATE_QUEUE}', false, 'missing', 'current database', 1, false, session_user, "
            "gen_random_uuid()) returning object_id",
            database.database_id,
        )
    sealed.alter(read_only=True, rollback_after=0)

    def broken() -> set[int]:
        rows = query(other, "select database_id from servicebroker.event_notifications")
        return {database_id for (database_id,) in rows}

    with psycopg.connect(fresh_instance.url, autocommit=True) as connection:
        run_alone(connection, drop_broken(clock()))
        assert broken() == {sealed.database_id}
        sealed.alter(read_only=False)
        run_alone(connection, drop_broken(clock()))
    assert broken() == set()
