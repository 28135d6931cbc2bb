"""Counters over all application processes: SEND, RECEIVE, rollbacks, messages by priority."""

from __future__ import annotations

from contextlib import suppress

import pytest

import servicebroker as sb
from servicebroker.model.errors import BrokerError
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, begin, eventually, query, refused, rolled_back


class Moves:
    """The changes of counters in sys.dm_os_performance_counters since the creation of this object."""

    def __init__(self, database: sb.Database) -> None:
        self._database = database
        self._before = self._values()

    def __call__(self, counter: str) -> int:
        return self._values()[counter] - self._before[counter]

    def _values(self) -> dict[str, int]:
        self._database.instance._write_last_counts(self._database.instance._pool)  # type: ignore[arg-type] # not in 5 seconds
        return dict(query(self._database, "select counter_name, cntr_value from sys.dm_os_performance_counters"))


@pytest.fixture
def moves(fresh_database: sb.Database) -> Moves:
    return Moves(fresh_database)


@pytest.mark.feature(200)
def test_each_send_and_each_receive_is_counted(fresh_database: sb.Database, moves: Moves) -> None:
    database = fresh_database
    handle = begin(database)
    assert moves("SQL SEND Total") == 0
    database.send(handle, ORDER, b"1")
    database.send_batch(handle, ORDER, [b"2", b"3", b"4"])
    database.send([handle, begin(database)], ORDER, b"5")
    assert moves("SQL SEND Total") == 5
    with refused(8431):
        database.send(handle, "DEFAULT", b"")
    assert moves("SQL SEND Total") == 5
    assert len(database.receive(STOCK_QUEUE)) == 5
    assert database.receive(STOCK_QUEUE, top=0) == []
    assert database.receive(STOCK_QUEUE, wait=0.01) != database.receive(STOCK_QUEUE, wait=0.01) == []
    with refused(15151):
        database.receive("Nowhere")
    assert moves("SQL RECEIVE Total") == 4
    query(database, "select servicebroker.send(%s, %s, 'x')", handle, ORDER)
    assert moves("SQL SEND Total") == 6


@pytest.mark.feature(200)
def test_rolled_back_transactions_of_the_broker_are_counted(fresh_database: sb.Database, moves: Moves) -> None:
    database = fresh_database
    handle = begin(database)
    with rolled_back(database) as transaction:
        transaction.send(handle, ORDER, b"x")
        transaction.send(handle, ORDER, b"y")
    assert moves("Broker Transaction Rollbacks") == 1
    assert moves("SQL SEND Total") == 2  # the SENDs have happened
    with rolled_back(database) as transaction:
        transaction.connection.execute("select 1")  # no statement of the broker
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"z")
    assert moves("Broker Transaction Rollbacks") == 1
    with database.instance.connection() as connection:
        joined = database.join(connection)
        for _ in range(5):  # often enough that their outcome is looked up
            with suppress(ZeroDivisionError), connection.transaction():
                assert joined.receive(STOCK_QUEUE)
                raise ZeroDivisionError
    with refused(9617):
        database.receive(STOCK_QUEUE)
    assert moves("Broker Transaction Rollbacks") == 6


@pytest.mark.feature(200)
def test_t_sql_counts_too(fresh_database: sb.Database, moves: Moves) -> None:
    fresh_database.execute_tsql(
        f"""
        DECLARE @h uniqueidentifier;
        BEGIN TRANSACTION;
        BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE '{STOCK}' ON CONTRACT [{CONTRACT}];
        SEND ON CONVERSATION @h MESSAGE TYPE [{ORDER}] (0x01);
        ROLLBACK;
        BEGIN TRANSACTION;
        CREATE QUEUE Another;
        ROLLBACK;
        RECEIVE TOP (1) * FROM {STOCK_QUEUE};
        """
    )
    assert moves("SQL SEND Total") == moves("SQL RECEIVE Total") == 1
    assert moves("Broker Transaction Rollbacks") == 1


@pytest.mark.feature(200)
def test_messages_are_counted_by_their_priority(fresh_database: sb.Database, moves: Moves) -> None:
    database = fresh_database

    def by_priority() -> dict[int, int]:
        found = {priority: moves(f"Enqueued P{priority} Messages/sec") for priority in range(1, 11)}
        return {priority: many for priority, many in found.items() if many}

    usual = begin(database)
    database.create_broker_priority("High", contract_name=CONTRACT, local_service_name=STOCK, priority_level=9)
    urgent = begin(database)
    for _ in range(2):  # the first creates the target endpoint, the second finds it
        database.send(usual, ORDER, b"x")
        database.send(urgent, ORDER, b"x")
    assert by_priority() == {5: 2, 9: 2} or by_priority() == {9: 4}
    before = by_priority()
    database.send([usual, urgent], ORDER, b"x")
    assert sum(by_priority().values()) == sum(before.values()) + 2
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send_batch(urgent, ORDER, [b"a", b"b", b"c"])
    waited = by_priority()
    assert sum(waited.values()) == sum(before.values()) + 2
    database.alter_queue(STOCK_QUEUE, status=True)
    assert by_priority()[9] == waited[9] + 3
    database.end_conversation(urgent)
    assert by_priority()[9] == waited[9] + 3


@pytest.mark.feature(200)
def test_a_process_adds_its_counts_when_it_closes_the_instance(fresh_database: sb.Database, moves: Moves) -> None:
    with sb.open(fresh_database.instance.url, upkeep=None) as other_instance:
        database = other_instance.database(fresh_database.name)
        begin_and_send = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        database.send(begin_and_send, ORDER, b"x")
        with pytest.raises(BrokerError):
            database.send(begin_and_send, "DEFAULT")
    assert moves("SQL SEND Total") == 1


@pytest.mark.feature(200)
def test_the_background_adds_them_by_itself(fresh_database: sb.Database) -> None:
    sql = "select coalesce(sum(value), 0) from servicebroker.totals where counter = 'SQL SEND Total'"
    with sb.open(fresh_database.instance.url) as other_instance:
        before = query(fresh_database, sql)[0][0]
        database = other_instance.database(fresh_database.name)
        database.send(database.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"x")
        eventually(lambda: query(fresh_database, sql)[0][0] > before)
