"""RECEIVE: the returned messages, their order, its locks and its wait."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
import servicebroker.engine.catalog
from servicebroker.engine.catalog.catalog import Catalog, Labels, find_labels
from servicebroker.store.direct import PreparedStatements
from servicebroker.store.statements import Statement, Steps
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
    eventually,
    group_of,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    refused,
    rolled_back,
    wait_until_blocked,
)

pytestmark = pytest.mark.both_apis


def two_dialogs_in_one_initiator_group(
    database: sb.Database, *, priorities: tuple[int | None, int | None] = (None, None)
) -> tuple[UUID, UUID]:
    """Begin two conversations whose initiators share a group, which receives the replies."""
    first = begin(database, priority=priorities[0])
    second = begin(database, related_conversation=first, priority=priorities[1])
    for handle in (first, second):
        database.send(handle, ORDER, b"open")
    while database.receive(STOCK_QUEUE):
        pass
    return first, second


@pytest.mark.feature(63)
def test_each_conversation_of_a_group_comes_whole_and_in_order(database: sb.Database) -> None:
    handles = two_dialogs_in_one_initiator_group(database)
    targets = [peer_handle(database, handle) for handle in handles]
    for number in range(3):
        for target in targets:
            database.send(target, REPLY, b"%d" % number)
    messages = database.receive(ORDERS_QUEUE)
    assert bodies(messages) == [b"0", b"1", b"2"] * 2
    assert [message.conversation_handle for message in messages] == [messages[0].conversation_handle] * 3 + [
        messages[3].conversation_handle
    ] * 3
    assert {message.conversation_handle for message in messages} == set(handles)
    assert len({message.conversation_group_id for message in messages}) == 1


@pytest.mark.feature(62)
def test_one_receive_takes_from_one_group(database: sb.Database) -> None:
    for number in range(3):
        database.send_batch(begin(database), ORDER, [b"%d" % number] * 2)
    for number in range(3):
        messages = database.receive(STOCK_QUEUE, top=100)
        assert bodies(messages) == [b"%d" % number] * 2
    assert database.receive(STOCK_QUEUE) == []


@pytest.mark.feature(59)
def test_top_takes_at_most_so_many(database: sb.Database) -> None:
    database.send_batch(begin(database), ORDER, [b"%d" % number for number in range(5)])
    assert database.receive(STOCK_QUEUE, top=0) == []
    assert database.receive(STOCK_QUEUE, top=0, wait=30) == []
    assert bodies(database.receive(STOCK_QUEUE, top=2)) == [b"0", b"1"]
    assert bodies(database.receive(STOCK_QUEUE, top=1)) == [b"2"]
    assert bodies(database.receive(STOCK_QUEUE, top=10**20)) == [b"3", b"4"]


@pytest.mark.feature(59)
@pytest.mark.parametrize("priorities", [(None, None), (7, 9)])
def test_top_stays_in_one_group_and_takes_whole_conversations_first(
    database: sb.Database, priorities: tuple[int | None, int | None]
) -> None:
    handles = two_dialogs_in_one_initiator_group(database, priorities=priorities)
    for handle in handles:
        database.send_batch(peer_handle(database, handle), REPLY, [b"1", b"2"])
    alone, _ = open_dialog(database)
    database.send(peer_handle(database, alone), REPLY, b"alone")
    three = database.receive(ORDERS_QUEUE, top=3)
    assert bodies(three) == [b"1", b"2", b"1"]
    assert {message.conversation_handle for message in three} == set(handles)
    assert bodies(database.receive(ORDERS_QUEUE, top=3)) == [b"2"]
    assert bodies(database.receive(ORDERS_QUEUE, top=3)) == [b"alone"]


@pytest.mark.feature(59)
def test_top_0_is_a_receive_that_takes_nothing(database: sb.Database, app: sb.Database) -> None:
    """Such a RECEIVE locks no group, and is refused like any other."""
    _, target = open_dialog(database)
    database.send(peer_handle(database, target), ORDER, b"stays")
    where = {"conversation_handle": target}
    with database.transaction() as reader, database.transaction() as other_reader:
        assert reader.receive(STOCK_QUEUE, top=0) == reader.receive(STOCK_QUEUE, top=0, **where) == []
        assert bodies(other_reader.receive(STOCK_QUEUE)) == [b"stays"]
        other_reader.connection.rollback()
    for wrong in (-1, 1.5, "1", True):
        with refused(402, "TOP"):
            database.receive(STOCK_QUEUE, top=wrong)  # type: ignore[arg-type]
    with refused(229, STOCK_QUEUE):
        app.receive(STOCK_QUEUE, top=0)
    with refused(8426):
        database.receive(ORDERS_QUEUE, top=0, **where)
    with refused(15151):
        database.receive("NoQueue", top=0)
    database.alter_queue(STOCK_QUEUE, status=False)
    with refused(9617, STOCK_QUEUE):
        database.receive(STOCK_QUEUE, top=0)
    database.alter_queue(STOCK_QUEUE, status=True)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"stays"]


@pytest.mark.feature(60, 61)
def test_receive_from_one_conversation_or_one_group(database: sb.Database) -> None:
    first, second = two_dialogs_in_one_initiator_group(database)
    other, _ = open_dialog(database)
    for handle in (other, first, second):
        database.send(peer_handle(database, handle), REPLY, str(handle))
    messages = database.receive(ORDERS_QUEUE, conversation_handle=second)
    assert bodies(messages) == [str(second).encode()]
    assert database.receive(ORDERS_QUEUE, conversation_handle=second) == []
    group = group_of(database, first)
    assert bodies(database.receive(ORDERS_QUEUE, conversation_group_id=group)) == [str(first).encode()]
    assert database.receive(ORDERS_QUEUE, conversation_group_id=group) == []
    assert bodies(database.receive(ORDERS_QUEUE)) == [str(other).encode()]
    target = peer_handle(database, first)
    with refused(8426, str(target)):
        database.receive(ORDERS_QUEUE, conversation_handle=target)  # the conversation belongs to the other queue
    with refused(8436):
        database.receive(ORDERS_QUEUE, conversation_group_id=group_of(database, target))


@pytest.mark.feature(67)
def test_a_rollback_brings_the_messages_back(database: sb.Database) -> None:
    database.send_batch(begin(database), ORDER, [b"1", b"2"])
    for _ in range(3):
        with rolled_back(database) as transaction:
            first = transaction.receive(STOCK_QUEUE)
            assert bodies(first) == [b"1", b"2"]
            assert transaction.receive(STOCK_QUEUE) == []
    assert database.receive(STOCK_QUEUE) == first


@pytest.mark.feature(76, 77)
def test_a_group_is_locked_to_the_end_of_the_transaction(database: sb.Database) -> None:
    first, second = begin(database), begin(database)
    database.send_batch(first, ORDER, [b"a1", b"a2"])
    database.send(second, ORDER, b"b1")
    with database.transaction() as reader, database.transaction() as other_reader:
        assert bodies(reader.receive(STOCK_QUEUE, top=1)) == [b"a1"]
        assert bodies(other_reader.receive(STOCK_QUEUE)) == [b"b1"]
        assert other_reader.receive(STOCK_QUEUE) == []
        assert bodies(reader.receive(STOCK_QUEUE, top=1)) == [b"a2"]  # the transaction's own lock does not block it
        database.send(first, ORDER, b"a3")
        assert other_reader.receive(STOCK_QUEUE) == []
    assert bodies(database.receive(STOCK_QUEUE)) == [b"a3"]


@pytest.mark.feature(78)
def test_messages_arrive_while_their_group_is_locked(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"1")
    with database.transaction() as reader:
        reader.receive(STOCK_QUEUE)
        database.send(initiator, ORDER, b"2")
        assert bodies(reader.receive(STOCK_QUEUE)) == [b"2"]
        reader.send(target, REPLY, b"reply")
        database.send(initiator, ORDER, b"3")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"3"]


def test_a_named_group_is_waited_for(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send_batch(initiator, ORDER, [b"1", b"2"])
    named = [{"conversation_handle": target}, {"conversation_group_id": group_of(database, target)}]
    for options in named:
        with rolled_back(database) as reader:
            reader.receive(STOCK_QUEUE, top=1)
            blocked = in_thread(database.receive, STOCK_QUEUE, top=1, **options)
            wait_until_blocked(database)
        assert len(blocked.result(10)) == 1
    assert database.receive(STOCK_QUEUE) == []


def test_a_long_backlog_of_locked_groups_hides_nothing(database: sb.Database) -> None:
    """More locked groups than one search for a free group reads, and a free group behind them."""
    locked = [begin(database) for _ in range(130)]
    for handle in locked:
        database.send_batch(handle, ORDER, [b"first", b"second"])
    with database.transaction() as greedy:
        for handle in locked:
            greedy.receive(STOCK_QUEUE, top=1, conversation_handle=peer_handle(database, handle))
        assert database.receive(STOCK_QUEUE) == []
        database.send(begin(database), ORDER, b"free")
        assert bodies(database.receive(STOCK_QUEUE)) == [b"free"]


@pytest.mark.feature(73)
def test_the_enqueue_time_is_the_arrival_in_the_queue(database: sb.Database) -> None:
    handle = begin(database, "//test/Later")
    database.send(handle, ORDER, b"waits")
    (created,) = query(database, "select clock_timestamp()")
    database.create_service("//test/Later", STOCK_QUEUE, [CONTRACT])
    (message,) = database.receive(STOCK_QUEUE)
    assert created[0] <= message.message_enqueue_time <= query(database, "select clock_timestamp()")[0][0]
    assert message.message_enqueue_time.tzinfo is not None
    assert not message.message_enqueue_time.utcoffset()


def test_an_empty_receive_assigns_no_transaction_id(database: sb.Database) -> None:
    with database.transaction() as transaction:
        assert transaction.receive(STOCK_QUEUE) == []
        row = transaction.connection.execute("select pg_current_xact_id_if_assigned()").fetchone()
    assert row == (None,)


def test_an_empty_receive_is_one_statement(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.receive(STOCK_QUEUE)
    statements: list[str] = []
    steps = PreparedStatements.steps

    def count_statement(self: PreparedStatements, connection: Any, sql: str, *arguments: Any) -> Any:
        statements.append(sql)
        return steps(self, connection, sql, *arguments)

    monkeypatch.setattr(PreparedStatements, "steps", count_statement)
    assert database.receive(STOCK_QUEUE) == []
    assert len(statements) == 1
    assert database.get_conversation_group(STOCK_QUEUE) is None


# ---------------------------------------------------------------- waiting


@pytest.mark.feature(65)
def test_a_wait_ends_empty_after_its_time(database: sb.Database) -> None:
    start = time.monotonic()
    assert database.receive(STOCK_QUEUE, wait=0.3) == []
    assert 0.3 <= time.monotonic() - start < 1
    for wrong in (-1, float("nan"), "1", None, True):
        with refused(402, "wait"):
            database.receive(STOCK_QUEUE, wait=wrong)  # type: ignore[arg-type]


def wait_for_readers(database: sb.Database, readers: int = 1) -> None:
    """Wait until that many threads of this process wait in RECEIVE, on any queue of the database."""
    numbers = query(database, "select queue_id from servicebroker.queues where database_id = %s", database.database_id)
    notifier = database.instance.notifier
    eventually(lambda: sum(len(notifier._waiting.get(number, ())) for (number,) in numbers) >= readers)
    text = (
        "select count(*) from servicebroker.waiting_readers join servicebroker.queues using (queue_id) "
        "where database_id = %s"
    )
    eventually(lambda: query(database, text, database.database_id)[0][0])


@pytest.mark.feature(65)
def test_a_waiting_reader_wakes_at_the_commit(database: sb.Database) -> None:
    handle = begin(database)
    delays = []
    for wait in (30, float("inf"), 30.5):
        reader = in_thread(lambda wait=wait: (database.receive(STOCK_QUEUE, wait=wait), time.monotonic()))
        wait_for_readers(database)
        with database.transaction() as transaction:
            transaction.send(handle, ORDER, b"x")
            assert not reader.done()
        committed = time.monotonic()
        messages, woke = reader.result(10)
        assert bodies(messages) == [b"x"]
        delays.append(woke - committed)
    assert min(delays) < 0.05
    assert max(delays) < 0.5


@pytest.mark.feature(65)
def test_a_waiting_reader_in_a_transaction_wakes(database: sb.Database) -> None:
    def read() -> list[bytes | None]:
        with database.transaction() as transaction:
            return bodies(transaction.receive(STOCK_QUEUE, wait=30))

    reader = in_thread(read)
    wait_for_readers(database)
    database.send(begin(database), ORDER, b"x")
    assert reader.result(10) == [b"x"]


def test_a_message_of_another_process_wakes(database: sb.Database) -> None:
    handle = begin(database)
    program = (
        "import sys, uuid, servicebroker as sb\n"
        "with sb.open(sys.argv[1]) as instance:\n"
        "    database = instance.database(sys.argv[2])\n"
        "    sys.stdin.readline()\n"
        "    database.send(uuid.UUID(sys.argv[3]), sys.argv[4], b'from afar')\n"
    )
    arguments = [database.instance.url, database.name, str(handle), ORDER]
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, text=True) as process:
        reader = in_thread(database.receive, STOCK_QUEUE, wait=30)
        wait_for_readers(database)
        process.communicate("go\n", timeout=30)
        assert bodies(reader.result(5)) == [b"from afar"]
    assert process.returncode == 0


@pytest.mark.feature(65)
def test_a_wait_takes_the_first_messages_of_its_conversation_or_group_only(database: sb.Database) -> None:
    (mine, target), (other, _) = open_dialog(database), open_dialog(database)
    for where in ({"conversation_handle": target}, {"conversation_group_id": group_of(database, target)}):
        reader = in_thread(lambda where=where: database.receive(STOCK_QUEUE, wait=float("inf"), top=5, **where))
        wait_for_readers(database)
        database.send(other, ORDER, b"not for it")
        assert bodies(database.receive(STOCK_QUEUE)) == [b"not for it"]
        assert not reader.done()
        database.send_batch(mine, ORDER, [b"1", b"2"])
        assert bodies(reader.result(10)) == [b"1", b"2"]


@pytest.mark.feature(65)
def test_receive_returns_at_once_without_a_wait_or_with_a_message(database: sb.Database) -> None:
    start = time.monotonic()
    assert database.receive(STOCK_QUEUE) == database.receive(STOCK_QUEUE, wait=0) == []
    database.send(begin(database), ORDER, b"x")
    assert bodies(database.receive(STOCK_QUEUE, wait=float("inf"))) == [b"x"]
    assert time.monotonic() - start < 5
    with refused(15151):
        database.receive("NoQueue", wait=60)
    database.alter_queue(STOCK_QUEUE, status=False)
    with refused(9617):
        database.receive(STOCK_QUEUE, wait=60)


def test_several_waiting_readers_share_the_work(database: sb.Database) -> None:
    readers = [in_thread(database.receive, STOCK_QUEUE, wait=30) for _ in range(4)]
    others = in_thread(database.receive, ORDERS_QUEUE, wait=1)
    wait_for_readers(database, 5)
    start = time.monotonic()
    for number in range(4):
        database.send(begin(database), ORDER, b"%d" % number)
    received = [bodies(reader.result(10)) for reader in readers]
    assert sorted(received) == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert time.monotonic() - start < 3
    assert others.result(10) == []
    text = (
        "select count(*) from servicebroker.waiting_readers join servicebroker.queues using (queue_id) "
        "where database_id = %s"
    )
    assert query(database, text, database.database_id) == [(0,)]


def test_a_timer_wakes_a_waiting_reader(database: sb.Database) -> None:
    database.begin_conversation_timer(begin(database), 1)
    (timer,) = database.receive(ORDERS_QUEUE, wait=10)
    assert timer.is_timer


@pytest.mark.usefixtures("without_polls")
def test_a_waiting_reader_fails_when_the_instance_closes(database: sb.Database) -> None:
    with sb.open(database.instance.url) as instance:
        reader = in_thread(instance.database(database.name).receive, STOCK_QUEUE, wait=60)
        eventually(lambda: instance.notifier._waiting)
    with pytest.raises(sb.InstanceError, match="closed"):
        reader.result(10)


# ---------------------------------------------------------------- plans


@pytest.mark.slow
def test_a_receive_touches_few_pages_of_a_deep_queue(fresh_database: sb.Database) -> None:
    """From 200,000 messages of 1,000 conversations RECEIVE (1) reads as few pages as from a short queue."""
    database = fresh_database
    handles = [begin(database) for _ in range(1000)]
    with database.transaction() as transaction:
        for handle in handles:
            transaction.send_batch(handle, ORDER, [b"x" * 100] * 200)
    table = query(database, "select queue_id from servicebroker.queues where name = %s", STOCK_QUEUE)[0][0]
    with database.instance.connection() as connection:
        for analyzed in (False, True):
            if analyzed:
                connection.execute(f"vacuum analyze servicebroker.queue_{table}")  # type: ignore[call-overload]
            connection.execute("select pg_stat_reset()")
            statement = f"select * from servicebroker.receive_{table}(1, now())"
            connection.execute(statement)  # type: ignore[call-overload]
            plan = connection.execute(f"explain (analyze, buffers, format json) {statement}").fetchone()  # type: ignore[call-overload]
            assert plan is not None
            node = plan[0][0]["Plan"]
            assert node["Actual Rows"] == 1
            assert node["Shared Hit Blocks"] + node["Shared Read Blocks"] < 120
            connection.execute("select pg_stat_force_next_flush()")
            scans = connection.execute(
                "select seq_scan from pg_stat_user_tables where relid = %s::regclass", (f"servicebroker.queue_{table}",)
            ).fetchone()
            assert scans == (0,)


def test_polling_readers_do_not_block_each_other(database: sb.Database) -> None:
    stop = threading.Event()
    readers = [in_thread(lambda: [database.receive(STOCK_QUEUE) for _ in iter(stop.is_set, True)]) for _ in range(3)]
    handle = begin(database)
    for number in range(50):
        database.send(handle, ORDER, b"%d" % number)
    eventually(lambda: query(database, f"select count(*) from {database.name}_dbo.stockqueue") == [(0,)])
    stop.set()
    received = [body for reader in readers for messages in reader.result(10) for body in bodies(messages)]
    assert sorted(received) == sorted(b"%d" % number for number in range(50))


@pytest.mark.parametrize("joined", [False, True], ids=["database", "joined"])
def test_a_lost_connection_during_the_label_lookup_is_retried(
    database: sb.Database, monkeypatch: pytest.MonkeyPatch, joined: bool
) -> None:
    """The messages are already deleted from the queue when their names are looked up, so the lookup retries."""
    losses = 2

    def lose_connection(catalog: Catalog, database_id: int, *, anew: bool = False) -> Steps[Labels]:
        nonlocal losses
        if losses:
            losses -= 1
            yield Statement("test.ended", "select pg_terminate_backend(pg_backend_pid())")
        return (yield from find_labels(catalog, database_id, anew=anew))

    monkeypatch.setattr(servicebroker.engine.catalog.catalog, "find_labels", lose_connection)
    assert database.receive(STOCK_QUEUE) == []  # fills the cache of names
    with sb.open(database.instance.url, upkeep=None) as other_instance:
        other_database = other_instance.database(database.name)
        other_database.create_message_type("//test/New")
        other_database.create_contract("//test/New", {"//test/New": "INITIATOR"})
        other_database.alter_service(STOCK, add_contracts=["//test/New"])
        other_database.send(other_database.begin_dialog(ORDERS, STOCK, contract="//test/New"), "//test/New", b"x")
    with database.instance.connection() as connection:
        (message,) = (database.join(connection) if joined else database).receive(STOCK_QUEUE)
        assert (message.message_type_name, message.service_contract_name) == ("//test/New", "//test/New")
        assert message.message_body == b"x"
    assert losses == 0
