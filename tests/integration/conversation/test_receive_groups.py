"""RECEIVE from many conversation groups: the chosen groups, their order, and the remaining messages."""

from __future__ import annotations

import threading

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    STOCK,
    STOCK_QUEUE,
    begin,
    begin_with,
    bodies,
    group_of,
    in_thread,
    peer_handle,
    query,
    queue_number,
    refused,
    rolled_back,
)

pytestmark = pytest.mark.both_apis


def test_messages_are_returned_group_by_group_from_the_oldest(database: sb.Database) -> None:
    handles = [begin(database) for _ in range(5)]
    for number in range(3):
        for index, handle in enumerate(handles):
            database.send(handle, ORDER, b"%d%d" % (index, number))
    assert bodies(database.receive(STOCK_QUEUE, top=2, groups=3)) == [b"00", b"01", b"10", b"11", b"20", b"21"]
    assert bodies(database.receive(STOCK_QUEUE, groups=10)) == [
        b"30", b"31", b"32", b"40", b"41", b"42", b"02", b"12", b"22",
    ]  # fmt: skip
    assert database.receive(STOCK_QUEUE, groups=10) == []


def test_locked_groups_are_skipped_and_returned_after_a_rollback(database: sb.Database) -> None:
    for number in range(4):
        begin_with(database, b"%d" % number)
    with rolled_back(database) as transaction:
        assert bodies(transaction.receive(STOCK_QUEUE, groups=2)) == [b"0", b"1"]
        assert in_thread(lambda: bodies(database.receive(STOCK_QUEUE, groups=9))).result(30) == [b"2", b"3"]
    assert bodies(database.receive(STOCK_QUEUE, groups=9)) == [b"0", b"1"]


def test_the_same_transaction_continues_in_its_groups(database: sb.Database) -> None:
    handles = [begin_with(database, b"a%d" % number, b"b%d" % number) for number in range(3)]
    with database.transaction() as transaction:
        assert bodies(transaction.receive(STOCK_QUEUE, top=1, groups=2)) == [b"a0", b"a1"]
        assert bodies(transaction.receive(STOCK_QUEUE, top=1, groups=9)) == [b"b0", b"b1", b"a2"]
    assert bodies(database.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, handles[2]))) == [b"b2"]


def test_higher_priorities_are_first_and_may_share_a_group(database: sb.Database) -> None:
    database.create_broker_priority("high", contract_name=CONTRACT, local_service_name=STOCK, priority_level=9)
    high = begin_with(database, b"high")
    database.drop_broker_priority("high")
    low = [begin_with(database, b"low %d" % number) for number in range(2)]
    database.move_conversation(peer_handle(database, low[1]), group_of(database, peer_handle(database, high)))
    begin_with(database, b"last")
    assert bodies(database.receive(STOCK_QUEUE, groups=2)) == [b"high", b"low 1", b"low 0"]
    assert bodies(database.receive(STOCK_QUEUE, groups=2)) == [b"last"]


def test_under_a_savepoint_all_groups_stay_locked(database: sb.Database) -> None:
    for number in range(3):
        begin_with(database, b"%d" % number)
    with database.transaction() as transaction:
        with pytest.raises(ZeroDivisionError), transaction.savepoint():
            assert bodies(transaction.receive(STOCK_QUEUE, groups=2)) == [b"0", b"1"]
            raise ZeroDivisionError
        assert in_thread(lambda: bodies(database.receive(STOCK_QUEUE, groups=9))).result(30) == [b"2"]
    assert bodies(database.receive(STOCK_QUEUE, groups=9)) == [b"0", b"1"]


def test_retention_keeps_the_messages_of_all_groups(database: sb.Database) -> None:
    database.alter_queue(STOCK_QUEUE, retention=True)
    for number in range(3):
        begin_with(database, b"%d" % number)
    assert len(database.receive(STOCK_QUEUE, groups=3)) == 3
    rows = query(database, f"select message_body from servicebroker.retained_{queue_number(database, STOCK_QUEUE)}")
    assert sorted(rows) == [(b"0",), (b"1",), (b"2",)]


def test_a_shared_body_is_removed(database: sb.Database) -> None:
    handles = [begin_with(database, b"first") for _ in range(3)]
    assert len(database.receive(STOCK_QUEUE, groups=3)) == 3
    database.send(handles, ORDER, b"x" * 20_000)
    assert bodies(database.receive(STOCK_QUEUE, groups=3)) == [b"x" * 20_000] * 3
    assert query(database, "select count(*) from servicebroker.shared_bodies") == [(0,)]


def test_a_reader_of_many_groups_can_wait(database: sb.Database) -> None:
    handle = begin(database)
    threading.Timer(0.3, lambda: database.send(handle, ORDER, b"late")).start()
    assert bodies(database.receive(STOCK_QUEUE, groups=50, wait=20)) == [b"late"]


def test_a_long_queue_is_searched_by_pages(database: sb.Database) -> None:
    crowd = begin(database)
    database.send_batch(crowd, ORDER, [b"crowd"] * 300)
    for number in range(3):
        begin_with(database, b"%d" % number)
    assert bodies(database.receive(STOCK_QUEUE, top=1, groups=4)) == [b"crowd", b"0", b"1", b"2"]


def test_invalid_groups_are_refused(database: sb.Database) -> None:
    for groups in (0, -1, True, "2", 1.0, 2**31):
        with refused(402, "groups"):
            database.receive(STOCK_QUEUE, groups=groups)
    with refused(402, "groups"):
        database.receive(STOCK_QUEUE, groups=2, conversation_handle=begin(database))
    with refused(15151):
        database.receive("Nowhere", groups=2)
    database.alter_queue(STOCK_QUEUE, status=False)
    with refused(9617):
        database.receive(STOCK_QUEUE, groups=2)
    assert database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
