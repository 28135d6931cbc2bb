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
    in_thread,
    open_dialog,
    peer_handle,
    query,
    state,
)
from tsql_support import output_of

END_WITH_LOCK_TIMEOUT = """
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
    parameters = {"locked": peer_handle(database, locked), "free": free}
    with database.transaction() as reader:
        assert reader.receive(STOCK_QUEUE)
        with database.tsql_session() as session:
            assert [found.rows for found in session.execute(END_WITH_LOCK_TIMEOUT, parameters).sets] == [
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
        problems = [future.exception(120) for future in waiting]
        assert sorted(getattr(problem, "number", 0) for problem in problems) == [0, 1205]
        for session in (first, second):
            session.execute("IF @@TRANCOUNT > 0 ROLLBACK")


INSERT_EXEC = """
CREATE TABLE Said (n INT PRIMARY KEY, of_whom VARCHAR(3)) CREATE TABLE Noted (n INT)
GO
CREATE PROCEDURE Say @n INT AS INSERT Noted VALUES (@n) SELECT @n, 'abc'
GO
CREATE PROCEDURE Say3 AS INSERT Noted VALUES (3) SELECT 1, 2, 3
GO
CREATE PROCEDURE Settle AS INSERT Noted VALUES (4) COMMIT SELECT 4, 'd'
GO
CREATE PROCEDURE Undo AS INSERT Noted VALUES (5) ROLLBACK SELECT 5, 'e'
GO
CREATE PROCEDURE UndoOne AS SAVE TRAN here INSERT Noted VALUES (6) ROLLBACK TRAN here SELECT 6, 'f'
GO
CREATE PROCEDURE UndoThere AS ROLLBACK TRAN there SELECT 7, 'g'
"""
REMAINING_ROWS = "SELECT (SELECT COUNT(*) FROM Said), (SELECT COUNT(*) FROM Noted), @@TRANCOUNT"


def said_by(database: sb.Database, script: str) -> list[object]:
    """Return the output of a script and the content of both tables, and empty the tables."""
    return [*output_of(database, script), *output_of(database, REMAINING_ROWS + " DELETE Said DELETE Noted")]


def test_insert_exec_is_one_statement(database: sb.Database) -> None:
    """The procedure's work goes with the INSERT, and without a transaction both are one."""
    output_of(database, INSERT_EXEC)
    assert said_by(database, "INSERT Said EXEC Say 1") == [[(1, 1, 0)]]
    for fails, number in (
        ("INSERT Said EXEC Say3", 213),
        ("INSERT Said (of_whom, n) EXEC Say 1", 245),
        ("INSERT Said EXEC ('INSERT Noted VALUES (1) SELECT NULL, 0')", 515),
        ("INSERT Said EXEC NotThere", 2812),
    ):
        assert said_by(database, fails) == [number, [(0, 0, 0)]], fails
    twice = "INSERT Said EXEC Say 1 INSERT Said EXEC Say 1 SELECT @@ERROR"
    assert said_by(database, twice) == [2627, [(2627,)], [(1, 1, 0)]]
    caught = "BEGIN TRY INSERT Said EXEC Say3 END TRY BEGIN CATCH SELECT XACT_STATE() END CATCH"
    assert said_by(database, caught) == [[(0,)], [(0, 0, 0)]]


def test_insert_exec_in_a_transaction_is_undone_alone(database: sb.Database) -> None:
    output_of(database, INSERT_EXEC)
    script = "BEGIN TRAN INSERT Said EXEC Say 1 INSERT Said EXEC Say 1 SELECT @@TRANCOUNT COMMIT"
    assert said_by(database, script) == [2627, [(1,)], [(1, 1, 0)]]
    script = "BEGIN TRAN INSERT Said EXEC Say 1 INSERT Said EXEC Say3 SELECT 'never'"
    assert said_by(database, script) == [213, [(0, 0, 0)]]  # another number of columns ends the batch there too


def test_the_transaction_of_an_insert_exec_cannot_be_ended(database: sb.Database) -> None:
    output_of(database, INSERT_EXEC)
    count = "INSERT Noted EXEC ('SELECT @@TRANCOUNT BEGIN TRAN COMMIT')"
    script = f"{count} SELECT n FROM Noted BEGIN TRAN {count} COMMIT SELECT n FROM Noted"
    assert said_by(database, script) == [[(1,)], [(1,), (1,)], [(0, 2, 0)]]
    for before, after in ("", ""), ("BEGIN TRAN SAVE TRAN there ", " COMMIT"):
        assert said_by(database, f"{before}INSERT Said EXEC Settle{after}") == [3916, [(1, 1, 0)]]
        assert said_by(database, f"{before}INSERT Said EXEC Undo SELECT 'never'") == [3915, [(0, 0, 0)]]
        assert said_by(database, f"{before}INSERT Said EXEC UndoOne{after}") == [[(1, 0, 0)]]
        assert said_by(database, f"{before}INSERT Said EXEC UndoThere{after}") == [6401, [(1, 0, 0)]]


def test_insert_exec_is_not_nested(database: sb.Database) -> None:
    output_of(database, INSERT_EXEC)
    script = "INSERT Noted EXEC ('SELECT 1 INSERT Said EXEC Say 2 SELECT 3') SELECT n FROM Noted ORDER BY n"
    assert said_by(database, script) == [8164, [(1,), (3,)], [(0, 2, 0)]]
    assert said_by(database, "INSERT Said EXEC Say 1") == [[(1, 1, 0)]]


def test_insert_exec_fires_triggers_once_and_leaves_the_identity(database: sb.Database) -> None:
    output_of(
        database,
        """CREATE TABLE Counted (id INT IDENTITY(5, 1), n INT) CREATE TABLE Fired (rows_of INT)
        GO
        CREATE TRIGGER Fires ON Counted AFTER INSERT AS INSERT Fired SELECT COUNT(*) FROM inserted
        GO
        CREATE VIEW Seen AS SELECT n FROM Counted
        GO
        CREATE TRIGGER FiresInstead ON Seen INSTEAD OF INSERT AS INSERT Fired SELECT 10 * COUNT(*) FROM inserted""",
    )
    several = "EXEC ('SELECT 1 UNION ALL SELECT 2 SELECT NULL')"
    assert output_of(database, f"INSERT Counted {several} SELECT @@ROWCOUNT, SCOPE_IDENTITY()") == [[(3, 7)]]
    assert output_of(database, f"INSERT Seen {several} SELECT @@ROWCOUNT") == [[(3,)]]
    assert output_of(database, "SELECT rows_of FROM Fired") == [[(3,), (30,)]]


def test_insert_exec_takes_more_rows_than_one_statement_has_values(
    database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("servicebroker.tsql.interpreter.queries._MAX_PARAMETERS", 100)
    many = "EXEC ('SELECT value, value + 1 FROM GENERATE_SERIES(1, 120)')"
    script = f"CREATE TABLE #Many (a INT, b INT) INSERT #Many {many} SELECT @@ROWCOUNT, SUM(b - a) FROM #Many"
    assert output_of(database, script) == [[(120, 120)]]


def test_table_variables_outlive_a_rollback(instance: sb.Instance) -> None:
    database = instance.database("Outliving", create=True)
    database.execute_tsql("""
    CREATE TABLE Steps (a int)
    GO
    CREATE TYPE Pairs AS TABLE (a int PRIMARY KEY, b int)
    GO
    CREATE PROCEDURE Logged AS
    DECLARE @log TABLE (Id int IDENTITY, Said varchar(50), Loud AS UPPER(Said), Body xml)
    BEGIN TRY
        BEGIN TRAN
        INSERT @log (Said, Body) VALUES ('begun, "so"', '<a/>')
        INSERT Steps VALUES (1 / 0)
        COMMIT
    END TRY
    BEGIN CATCH
        ROLLBACK
        INSERT @log (Said) VALUES ('failed')
    END CATCH
    SELECT Id, Loud, CAST(Body AS varchar(9)) FROM @log ORDER BY Id
    """)
    logged = [(1, 'BEGUN, "SO"', "<a/>"), (2, "FAILED", None)]
    assert output_of(database, "EXEC Logged") == [logged]
    assert output_of(database, "BEGIN TRAN; EXEC Logged") == [logged, 266]  # made inside of what was rolled back
    assert output_of(database, """
    DECLARE @t TABLE (a int); INSERT @t VALUES (1); DECLARE @p Pairs
    BEGIN TRAN; INSERT @t VALUES (2); SAVE TRAN half; DELETE @t WHERE a = 1; INSERT @p VALUES (1, 2); ROLLBACK TRAN half
    SELECT a FROM @t; UPDATE @t SET a = 3; ROLLBACK; SELECT a FROM @t; SELECT a, b FROM @p
    """) == [[(2,)], [(3,)], [(1, 2)]]  # fmt: skip


def test_insert_exec_takes_values_of_all_types(database: sb.Database) -> None:
    """A datetime that came back from a procedure had been taken for a float (529)."""
    types = (
        "date, time, datetime, datetime2, datetimeoffset, bit, bigint, float, money, uniqueidentifier, varbinary, xml"
    )
    values = (
        "'20240203', '10:20', '20240203 10:20', '20240203', '20240203', 1, 9999999999, 1.5, 2.5, NEWID(), 0x12, '<a/>'"
    )
    columns = ", ".join(f"c{number} {of}" for number, of in enumerate(types.split(", ")))
    output_of(
        database, f"CREATE TABLE Kinds ({columns}) CREATE TABLE Copied ({columns}) INSERT Kinds VALUES ({values})"
    )
    output_of(database, "INSERT Kinds DEFAULT VALUES")
    assert output_of(database, "INSERT Copied EXEC('SELECT * FROM Kinds') SELECT @@ROWCOUNT") == [[(2,)]]
    assert output_of(database, "SELECT * FROM Copied ORDER BY c6") == output_of(
        database, "SELECT * FROM Kinds ORDER BY c6"
    )


def test_a_failed_definition_of_a_table_ends_the_transaction(database: sb.Database) -> None:
    database.execute_tsql("CREATE TABLE Wall (n INT)")
    tried = "BEGIN TRY BEGIN TRAN {} END TRY BEGIN CATCH SELECT ERROR_NUMBER(), XACT_STATE() ROLLBACK END CATCH"
    for definition, number, xact_state in [
        ("CREATE TABLE Wall (n INT)", 2714, -1),
        ("EXEC ('ALTER TABLE Wall ADD n INT')", 2705, -1),
        ("DROP TABLE Gate", 3701, 1),
    ]:
        assert database.execute_tsql(tried.format(definition)).rows == [(number, xact_state)], definition
    failed = "BEGIN TRAN\nINSERT Wall VALUES (1)\nCREATE TABLE Wall (n INT)\nPRINT 'on'\n"
    script = f"{failed}GO\nSELECT @@TRANCOUNT, COUNT(*) FROM Wall"
    assert output_of(database, script) == [2714, [(0, 0)]]
