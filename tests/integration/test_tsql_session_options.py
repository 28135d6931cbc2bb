"""SET ROWCOUNT, SET IMPLICIT_TRANSACTIONS and SET NOEXEC."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from tsql_support import rows, told

_COUNT = iter(range(1000))


@pytest.fixture
def db(instance: sb.Instance) -> sb.Database:
    made = instance.database(f"Options{next(_COUNT)}", create=True)
    made.execute_tsql("CREATE TABLE T (Id int, V int) INSERT T VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)")
    return made


def test_rowcount_limits_what_is_seen(db: sb.Database) -> None:
    said = told(
        db,
        """
        SET ROWCOUNT 2
        SELECT Id FROM T ORDER BY Id DESC
        SELECT Id, Id, V + 1 FROM T ORDER BY Id
        WITH C AS (SELECT Id FROM T) SELECT Id FROM C UNION ALL SELECT 9
        DECLARE @x int
        SELECT @x = Id FROM T ORDER BY Id
        SELECT @x, @@ROWCOUNT
        SET @x = 1
        SET ROWCOUNT @x
        SELECT Id FROM T ORDER BY Id
        SET ROWCOUNT 0
        SELECT COUNT(*) FROM T
        """,
    )
    assert said == [[(5,), (4,)], [(1, 1, 2), (2, 2, 3)], [(1,), (2,)], [(2, 2)], [(1,)], [(5,)]]


def test_rowcount_limits_what_is_changed(db: sb.Database) -> None:
    told(
        db,
        """
        SET ROWCOUNT 2
        UPDATE T SET V = 10
        DELETE TOP (1) FROM T WHERE V = 10
        DELETE TOP (9) FROM T WHERE V < 10
        INSERT T SELECT 20 + Id, V FROM T ORDER BY Id
        """,
    )
    assert rows(db, "SELECT COUNT(*), SUM(CASE WHEN V = 10 THEN 1 ELSE 0 END) FROM T WHERE Id < 20") == [(2, 1)]
    assert rows(db, "SELECT COUNT(*) FROM T WHERE Id > 20") == [(2,)]
    # the old way to delete in pieces
    said = "SET ROWCOUNT 1 WHILE 1 = 1 BEGIN DELETE T IF @@ROWCOUNT = 0 BREAK END SET ROWCOUNT 0 SELECT COUNT(*) FROM T"
    assert told(db, said) == [[(0,)]]


def test_rowcount_ends_with_its_procedure(db: sb.Database) -> None:
    db.execute_tsql("CREATE PROCEDURE Few AS SET ROWCOUNT 1 SELECT Id FROM T ORDER BY Id")
    assert told(db, "EXEC Few SELECT COUNT(Id) FROM T GROUP BY Id % 2 ORDER BY 1") == [[(1,)], [(2,), (3,)]]
    assert told(db, "SET ROWCOUNT -1") == [102]


def test_implicit_transactions(db: sb.Database) -> None:
    db.execute_tsql("CREATE QUEUE Q")
    said = told(
        db,
        """
        SET IMPLICIT_TRANSACTIONS ON
        SELECT @@TRANCOUNT
        INSERT T VALUES (6, 6)
        PRINT @@TRANCOUNT
        ROLLBACK
        SELECT COUNT(*) FROM T
        PRINT @@TRANCOUNT
        COMMIT
        RECEIVE TOP (1) service_id FROM Q
        PRINT @@TRANCOUNT
        COMMIT
        BEGIN TRANSACTION
        PRINT @@TRANCOUNT
        COMMIT
        COMMIT
        UPDATE T SET V = 0
        GO
        PRINT @@TRANCOUNT
        ROLLBACK
        SET IMPLICIT_TRANSACTIONS OFF
        DELETE T WHERE Id = 5
        PRINT @@TRANCOUNT
        """,
    )
    assert said == [[(0,)], "1", [(5,)], "1", [], "1", "2", "1", "0"]
    assert rows(db, "SELECT SUM(V) FROM T") == [(10,)]
    assert told(db, "SET IMPLICIT_TRANSACTIONS ON DELETE T") == []  # nobody commits
    assert rows(db, "SELECT COUNT(*) FROM T") == [(4,)]


def test_nothing_is_done_under_noexec(db: sb.Database) -> None:
    said = "PRINT 'a' SET NOEXEC ON PRINT 'b' DELETE T\nGO\nPRINT 'c'\nGO\nSET NOEXEC OFF PRINT 'd'"
    assert told(db, said) == ["a", "d"]
    assert rows(db, "SELECT COUNT(*) FROM T") == [(5,)]


def test_noexec_ends_a_loop_and_is_of_its_procedure(db: sb.Database) -> None:
    loop = "DECLARE @i int = 0 WHILE @i < 3 BEGIN SET NOEXEC ON; SET @i += 1; END\nGO\nSET NOEXEC OFF PRINT 'on'"
    assert told(db, loop) == ["on"]
    db.execute_tsql("CREATE PROCEDURE Silent AS SET NOEXEC ON PRINT 'never'")
    assert told(db, "EXEC Silent PRINT 'on' DROP PROCEDURE Silent") == ["on"]


def test_rowcount_leaves_definitions_alone(db: sb.Database) -> None:
    keys = "CREATE TABLE P (a int PRIMARY KEY) CREATE TABLE C (a int)"
    key = "SET ROWCOUNT 10 ALTER TABLE C ADD CONSTRAINT FK_C FOREIGN KEY (a) REFERENCES P (a) ON DELETE CASCADE"
    assert told(db, f"{keys}\nGO\n{key}\nGO\nDROP TABLE C DROP TABLE P") == []


@pytest.mark.parametrize("script", ["SET ROWCOUNT 5", "SET IMPLICIT_TRANSACTIONS ON", "SET NOEXEC ON"])
def test_check_agrees(script: str) -> None:
    assert [one.verdict for one in check(script)] == [Verdict.RUNS]
