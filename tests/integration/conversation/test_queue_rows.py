"""Every way into a queue writes the same facts about a message: its group, priority, rank and bucket."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

import servicebroker as sb
from portal import run_maintenance
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    open_dialog,
    query,
    queue_number,
)

Way = Callable[[sb.Database, Clock], object]


def maintain(database: sb.Database, clock: Clock, seconds: float = 0) -> None:
    clock.jump(seconds=seconds)
    with database.instance.connection() as connection:
        run_maintenance(connection, clock())


def begin_and_send(database: sb.Database) -> UUID:
    with database.transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        transaction.send(handle, ORDER, b"1")
    return handle


def send_both(database: sb.Database) -> None:
    for handle, kind in zip(open_dialog(database), (ORDER, REPLY), strict=True):
        database.send(handle, kind, b"1")


def send_in_sql(database: sb.Database, clock: Clock) -> None:
    handle = begin(database)
    with database.instance.connection() as connection:
        connection.execute("select servicebroker.send(%s, %s, %s)", (handle, ORDER, b"1"))
    maintain(database, clock)


def wait_in_transmission_queue(database: sb.Database) -> None:
    database.alter_queue(STOCK_QUEUE, status=False)
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    database.end_conversation(handle)
    database.alter_queue(STOCK_QUEUE, status=True)


def delay(database: sb.Database, clock: Clock) -> None:
    database.send(begin(database), ORDER, b"later", delay=60)
    maintain(database, clock, 61)


def fire_timers(database: sb.Database, clock: Clock) -> None:
    for handle in open_dialog(database):
        database.begin_conversation_timer(handle, 60)
    maintain(database, clock, 61)


def expire(database: sb.Database, clock: Clock) -> None:
    handle = begin(database, lifetime=60)
    database.send(handle, ORDER, b"1")
    maintain(database, clock, 61)


def end_both(database: sb.Database, error: tuple[int, str] | None) -> None:
    for side in (0, 1):
        database.end_conversation(open_dialog(database)[side], error=error)


def move(database: sb.Database) -> None:
    handles = open_dialog(database), open_dialog(database)
    for side, (kind, queue) in enumerate(((REPLY, ORDERS_QUEUE), (ORDER, STOCK_QUEUE))):
        database.send(handles[0][1 - side], kind, b"moved")
        assert query(database, f"select from servicebroker.queue_{queue_number(database, queue)}")
        with database.instance.connection() as connection:
            ((group,),) = connection.execute(
                "select conversation_group_id from servicebroker.conversation_endpoints where conversation_handle = %s",
                (handles[1][side],),
            ).fetchall()
        database.move_conversation(handles[0][side], group)


def replay(database: sb.Database) -> None:
    for queue, side, kind in ((STOCK_QUEUE, 0, ORDER), (ORDERS_QUEUE, 1, REPLY)):
        database.send(open_dialog(database)[side], kind, b"x")
        database.process(queue, lambda tx, messages: {}["jug"], poison=lambda failure: sb.SetAside())
    for letter in database.set_aside_messages():
        database.replay_message(letter.set_aside_id)


WAYS: dict[str, tuple[Way, int]] = {  # and the number of messages then in the queues of both sides
    "a first message": (lambda db, clock: db.send(begin(db), ORDER, b"1"), 1),
    "BEGIN DIALOG with its first message": (lambda db, clock: begin_and_send(db), 1),
    "two in one SEND": (lambda db, clock: db.send_batch(begin(db), ORDER, [b"1", b"2"]), 2),
    "messages in both directions": (lambda db, clock: send_both(db), 2),
    "many conversations": (lambda db, clock: db.send([begin(db), open_dialog(db)[0]], ORDER, b"1"), 2),
    "many conversations, replies": (
        lambda db, clock: db.send([open_dialog(db)[1], open_dialog(db)[1]], REPLY, b"1"), 2,
    ),
    "a function of the server": (send_in_sql, 1),
    "the transmission queue": (lambda db, clock: wait_in_transmission_queue(db), 3),
    "a delay": (delay, 1),
    "timers": (fire_timers, 2),
    "lifetimes": (expire, 3),
    "ends": (lambda db, clock: end_both(db, None), 2),
    "errors": (lambda db, clock: end_both(db, (5, "no")), 2),
    "a moved conversation": (lambda db, clock: move(db), 2),
    "a dead letter": (lambda db, clock: replay(db), 2),
}  # fmt: skip

_ROWS = (
    "select m.message_type_id, m.bucket - (uuid_hash(m.conversation_group_id) & 1023), m.priority - e.priority, "
    "m.service_id - e.service_id, m.service_contract_id - e.service_contract_id, "
    "m.conversation_group_id = e.conversation_group_id, m.rank - case m.message_type_id when 5 then 0 when 1 then 1 "
    "else 2 end, m.stamp > '0' and m.stamp < pg_snapshot_xmax(pg_current_snapshot()) "
    "from servicebroker.queue_{} m join servicebroker.conversation_endpoints e using (conversation_handle)"
)


@pytest.mark.parametrize("way", WAYS)
def test_the_row_of_a_message_has_the_facts_of_its_endpoint(database: sb.Database, clock: Clock, way: str) -> None:
    for service, level in ((ORDERS, 3), (STOCK, 8)):
        database.create_broker_priority(f"p{level}", local_service_name=service, priority_level=level)
    go, count = WAYS[way]
    go(database, clock)
    numbers = [queue_number(database, queue) for queue in (ORDERS_QUEUE, STOCK_QUEUE)]
    rows = [row for number in numbers for row in query(database, _ROWS.format(number))]
    assert len(rows) == count
    assert {row[1:] for row in rows} == {(0, 0, 0, 0, True, 0, True)}
