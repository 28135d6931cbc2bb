"""DROP QUEUE, also with processes that have the queue cached."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.engine.catalog.alter import drop_queue
from support import (
    CONTRACT,
    ORDER,
    STOCK,
    STOCK_QUEUE,
    begin,
    bodies,
    in_thread,
    open_dialog,
    query,
    refused,
    waiting_reader,
)

pytestmark = pytest.mark.both_apis


@pytest.mark.usefixtures("without_polls")
@pytest.mark.feature(16)
@pytest.mark.parametrize("inside", [False, True])
def test_drop_queue(database: sb.Database, inside: bool) -> None:
    with refused(3716, STOCK_QUEUE, "services"):
        database.drop_queue(STOCK_QUEUE)
    with refused(15151, "Nothing"):
        database.drop_queue("Nothing")
    database.create_queue("Short")
    assert database.receive("Short") == []
    reader = waiting_reader(database, "Short", inside=inside)
    dropped = in_thread(database.drop_queue, "short")
    with refused(15151, "Short"):
        reader.result(10)
    dropped.result(10)
    with refused(15151):
        database.receive("Short")
    database.create_queue("Short")
    assert database.receive("Short") == []


def test_a_dropped_queue_leaves_nothing_behind(database: sb.Database) -> None:
    counts = "select (select count(*) from pg_class), (select count(*) from pg_proc)"
    before = query(database, counts)
    database.create_queue("Short")
    database.drop_queue("Short")
    assert query(database, counts) == before


def test_another_process_that_remembers_a_dropped_queue(database: sb.Database) -> None:
    with sb.open(database.instance.url) as other_instance:
        theirs = other_instance.database(database.name)
        database.create_queue("Short")
        assert theirs.receive("Short") == []
        database.drop_queue("Short")
        with refused(15151, "Short"):
            theirs.receive("Short")
        database.create_queue("Short")
        database.create_service("//short", "Short", [CONTRACT])
        database.send(begin(database, "//short"), ORDER, b"x")
        assert bodies(theirs.receive("Short")) == [b"x"]
        database.drop_service("//short")
        database.drop_queue("Short")
        with refused(15151, "Short"):
            theirs.get_conversation_group("Short")
        database.create_queue("Short")
        reader = in_thread(theirs.receive, "Short", wait=20)
        database.create_service("//short", "Short", [CONTRACT])
        database.send(begin(database, "//short"), ORDER, b"y")
        assert bodies(reader.result(5)) == [b"y"]


def test_another_process_that_remembers_where_a_service_was(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    with sb.open(database.instance.url) as other_instance:
        theirs = other_instance.database(database.name)
        assert theirs.send(handle, ORDER, b"1") == 1
        database.create_queue("Second")
        database.alter_service(STOCK, queue="Second")
        database.drop_queue(STOCK_QUEUE)
        assert theirs.send(handle, ORDER, b"2") == 2
        assert theirs.send_batch(handle, ORDER, [b"3"]) == 3
    assert bodies(database.receive("Second")) == [b"1", b"2", b"3"]


def test_a_table_that_a_dead_process_has_left_goes_with_the_next(database: sb.Database) -> None:
    counts = "select (select count(*) from pg_class), (select count(*) from pg_proc)"
    before = query(database, counts)
    for name in ("Left", "Next"):
        database.create_queue(name)
    with database.transaction() as transaction:
        transaction._do(drop_queue(database.database_id, "Left"))
    assert query(database, counts) != before
    database.drop_queue("Next")
    assert query(database, counts) == before
