"""Transactions of T-SQL that PostgreSQL has undone: by a lock that was not to be had, by a deadlock."""

from __future__ import annotations

import threading

import pytest

import servicebroker as sb
from support import (
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    begin,
    eventually,
    far_handle,
    in_thread,
    open_dialog,
    query,
    state,
)

ENDS = """
SET LOCK_TIMEOUT 20
BEGIN TRY
    BEGIN TRANSACTION
    SAVE TRANSACTION here
    END CONVERSATION @locked
    COMMIT
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER() + (SELECT 0), XACT_STATE(), @@TRANCOUNT
    BEGIN TRY SEND ON CONVERSATION @free MESSAGE TYPE [//test/Order] (0x01) END TRY
    BEGIN CATCH SELECT ERROR_NUMBER() END CATCH
    BEGIN TRY ROLLBACK TRANSACTION here END TRY
    BEGIN CATCH SELECT ERROR_NUMBER() END CATCH
    ROLLBACK
END CATCH
SELECT @@TRANCOUNT
"""
HOLDERS = """
select count(distinct pid) from pg_locks join pg_class on pg_class.oid = relation
 where relname in ('one', 'two') and mode = 'RowExclusiveLock'
"""


def test_a_lock_that_is_not_to_be_had_dooms_the_transaction(database: sb.Database) -> None:
    locked, free = begin(database), begin(database)
    database.send(locked, ORDER, b"x")
    parameters = {"locked": far_handle(database, locked), "free": free}
    with database.transaction() as reader:
        assert reader.receive(STOCK_QUEUE)
        with database.tsql_session() as session:
            assert [found.rows for found in session.execute(ENDS, parameters).sets] == [
                [(1222, -1, 1)],
                [(3930,)],
                [(3931,)],
                [(0,)],
            ]
            with pytest.raises(sb.TsqlError) as outside:  # of TRY: it is rolled back, and the batch ends
                session.execute("SET LOCK_TIMEOUT 20 BEGIN TRAN END CONVERSATION @locked SELECT 1", parameters)
            assert outside.value.number == 1222
            assert session.execute("SELECT @@TRANCOUNT").rows == [(0,)]
    assert state(database, locked) == "CO"


def test_the_victim_of_a_deadlock_rolls_back_by_itself(database: sb.Database) -> None:
    """Two tables, changed in opposite orders; one of both is told 1205, and its locks are free."""
    database.execute_tsql(
        "CREATE TABLE One (n INT) CREATE TABLE Two (n INT) INSERT One VALUES (0) INSERT Two VALUES (0)"
    )
    script = """
    BEGIN TRY
        BEGIN TRANSACTION
        UPDATE {0} SET n += 1
        WAITFOR (RECEIVE message_body FROM {2}), TIMEOUT 20000
        UPDATE {1} SET n += 1
        COMMIT
        SELECT 'done'
    END TRY
    BEGIN CATCH
        SELECT ERROR_NUMBER(), XACT_STATE()
        ROLLBACK
    END CATCH
    """
    found: list[list[tuple[object, ...]]] = []
    initiator, target = open_dialog(database)
    threads = [
        threading.Thread(
            target=lambda text=text: found.append(database.execute_tsql(text).rows)  # type: ignore[misc]
        )
        for text in (script.format("One", "Two", STOCK_QUEUE), script.format("Two", "One", ORDERS_QUEUE))
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: query(database, HOLDERS) == [(2,)])
    database.send(initiator, ORDER, b"go")
    database.send(target, REPLY, b"go")
    for thread in threads:
        thread.join()
    assert sorted(found, key=len) in ([[("done",)], [(1205, -1)]], [[(1205, -1)], [("done",)]])
    assert database.execute_tsql("SELECT (SELECT n FROM One), (SELECT n FROM Two), @@TRANCOUNT").rows == [(1, 1, 0)]


def test_definitions_in_transactions_that_wait_for_each_other(database: sb.Database) -> None:
    """Each session has sent on a conversation that the other's definition needs: the server finds the circle."""
    handles = [begin(database), begin(database)]
    for handle in handles:
        database.send(handle, ORDER, b"x")
    with database.tsql_session() as first, database.tsql_session() as second:
        for session, handle in zip((first, second), handles, strict=True):
            session.execute("BEGIN TRAN SEND ON CONVERSATION @h MESSAGE TYPE [//test/Order] (0x01)", {"h": handle})
        moves = ((STOCK, ORDERS_QUEUE), (ORDERS, STOCK_QUEUE))
        texts = [f"ALTER SERVICE [{service}] ON QUEUE {queue}" for service, queue in moves]
        waiting = [in_thread(session.execute, text) for session, text in zip((first, second), texts, strict=True)]
        problems = [one.exception(120) for one in waiting]
        assert sorted(getattr(problem, "number", 0) for problem in problems) == [0, 1205]
        for session in (first, second):
            session.execute("IF @@TRANCOUNT > 0 ROLLBACK")
