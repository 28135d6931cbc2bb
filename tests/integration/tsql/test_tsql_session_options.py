"""SET ROWCOUNT, SET IMPLICIT_TRANSACTIONS, SET NOEXEC, and the options for dates."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from tsql_support import create_database, output_of, rows

_COUNT = iter(range(1000))


@pytest.fixture
def db(instance: sb.Instance) -> sb.Database:
    script = "CREATE TABLE T (Id int, V int) INSERT T VALUES (1, 1), (2, 2), (3, 3), (4, 4), (5, 5)"
    return create_database(instance, f"Options{next(_COUNT)}", script)


def test_rowcount_limits_selected_rows(db: sb.Database) -> None:
    output = output_of(
        db,
        """
        SET ROWCOUNT 2
        SELECT Id FROM T ORDER BY Id DESC
        SELECT Id, Id, V + 1 FROM T ORDER BY Id
        ;WITH C AS (SELECT Id FROM T) SELECT Id FROM C UNION ALL SELECT 9
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
    assert output == [[(5,), (4,)], [(1, 1, 2), (2, 2, 3)], [(1,), (2,)], [(2, 2)], [(1,)], [(5,)]]


def test_rowcount_limits_changed_rows(db: sb.Database) -> None:
    output_of(
        db,
        """
        SET ROWCOUNT 2
        UPDATE T SET V = 10
        DELETE TOP (1) FROM T WHERE V = 10
        DELETE TOP (9) FROM T WHERE V < 10 -- what says TOP goes by that alone
        INSERT T SELECT 20 + Id, V FROM T ORDER BY Id
        """,
    )
    assert rows(db, "SELECT COUNT(*), SUM(CASE WHEN V = 10 THEN 1 ELSE 0 END) FROM T WHERE Id < 20") == [(1, 1)]
    assert rows(db, "SELECT COUNT(*) FROM T WHERE Id > 20") == [(1,)]
    # the old way to delete in pieces
    script = (
        "SET ROWCOUNT 1 WHILE 1 = 1 BEGIN DELETE T IF @@ROWCOUNT = 0 BREAK END SET ROWCOUNT 0 SELECT COUNT(*) FROM T"
    )
    assert output_of(db, script) == [[(0,)]]


def test_rowcount_limits_every_statement_with_rows(db: sb.Database) -> None:
    output = output_of(
        db,
        """
        SET ROWCOUNT 2
        SELECT Id INTO #Two FROM T
        SELECT N = IDENTITY(int, 1, 1), Id INTO Two FROM T ORDER BY Id DESC
        INSERT T VALUES (11, 0), (12, 0), (13, DEFAULT)
        INSERT T EXEC ('SELECT 14, V FROM T UNION ALL SELECT 15, 0')
        INSERT TOP (1) T VALUES (16, 0), (17, DEFAULT)
        INSERT TOP (0) T VALUES (18, 0), (19, DEFAULT)
        DECLARE @all nvarchar(90) = N''
        SELECT @all += CONVERT(nvarchar(9), Id) + N',' FROM T ORDER BY Id
        PRINT @all
        SELECT Id FROM T ORDER BY Id FOR JSON PATH
        SET ROWCOUNT 0
        SELECT (SELECT COUNT(*) FROM #Two), (SELECT COUNT(*) FROM Two), COUNT(*) FROM T
        SELECT Id FROM T WHERE Id > 10 ORDER BY Id
        DROP TABLE Two
        """,
    )
    assert output[0] == "1,2,"
    assert output[2:] == [[(2, 2, 10)], [(11,), (12,), (14,), (14,), (16,)]]


def test_rowcount_takes_every_form_of_a_change(db: sb.Database) -> None:
    output = output_of(
        db,
        """
        CREATE TABLE D (Id int, N int NULL DEFAULT 7, S varchar(9))
        SET ROWCOUNT 2
        INSERT D (Id, N, S) SELECT '1', NULL, 'x' UNION ALL SELECT 5, 5, 'z' ORDER BY 1
        DELETE D WHERE Id = 5
        INSERT D (Id, N, S) SELECT 2, NULL, NULL UNION ALL SELECT 3, NULL, NULL UNION ALL SELECT 4, 5, NULL
        DELETE D WHERE Id = 3
        UPDATE D SET S = 'y' WHERE Id = 2
        UPDATE D SET N = DEFAULT, S = NULL OUTPUT inserted.N, deleted.S
        UPDATE D SET N = DEFAULT FROM D JOIN T ON T.Id = D.Id WHERE D.Id = 1
        DECLARE @n int
        UPDATE D SET @n = N = N + 1 WHERE Id = 2
        SELECT @n
        DECLARE c CURSOR FOR SELECT Id FROM D ORDER BY Id
        OPEN c FETCH c INTO @n UPDATE D SET N = 0 WHERE CURRENT OF c DELETE D WHERE CURRENT OF c CLOSE c DEALLOCATE c
        SELECT Id, N, S FROM D
        """,
    )
    assert output == [[(7, "x"), (7, "y")], [(8,)], [(2, 8, None)]]


def test_rowcount_and_merge(db: sb.Database) -> None:
    merge = "MERGE T USING (VALUES (1), (2), (30)) s (n) ON s.n = T.Id WHEN MATCHED THEN UPDATE SET V = 9"
    assert output_of(db, f"SET ROWCOUNT 2 {merge};") == []
    assert rows(db, "SELECT COUNT(*) FROM T WHERE V = 9") == [(2,)]
    more = f"{merge} WHEN NOT MATCHED THEN INSERT VALUES (s.n, 0)"
    assert output_of(db, f"SET ROWCOUNT 2 {more};") == [40515]
    assert output_of(db, f"BEGIN TRAN INSERT T VALUES (40, 0) SET ROWCOUNT 2 {more}; COMMIT") == [40515]
    assert rows(db, "SELECT COUNT(*), MAX(Id) FROM T") == [(6, 40)]
    assert output_of(db, f"SET ROWCOUNT 3 {more};") == []


@pytest.mark.parametrize(
    ("options", "seen"), [("", 5), ("DYNAMIC", 5), ("FAST_FORWARD", 5), ("STATIC", 3), ("KEYSET", 3)]
)
def test_set_rowcount_limits_static_and_keyset_cursors(db: sb.Database, options: str, seen: int) -> None:
    script = f"DECLARE c CURSOR {options} FOR SELECT Id FROM T SET ROWCOUNT 3 OPEN c SELECT @@CURSOR_ROWS"
    assert output_of(db, script) == [[(seen,)]]


def test_rowcount_ends_with_its_procedure(db: sb.Database) -> None:
    db.execute_tsql("CREATE PROCEDURE Few AS SET ROWCOUNT 1 SELECT Id FROM T ORDER BY Id")
    assert output_of(db, "EXEC Few SELECT COUNT(Id) FROM T GROUP BY Id % 2 ORDER BY 1") == [[(1,)], [(2,), (3,)]]
    assert output_of(db, "SET ROWCOUNT -1") == [102]


def test_implicit_transactions_stay_open_until_commit(db: sb.Database) -> None:
    db.execute_tsql("CREATE QUEUE Q")
    output = output_of(
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
    assert output == [[(0,)], "1", [(5,)], "1", [], "1", "2", "1", "0"]
    assert rows(db, "SELECT SUM(V) FROM T") == [(10,)]
    assert output_of(db, "SET IMPLICIT_TRANSACTIONS ON DELETE T") == []  # no COMMIT follows
    assert rows(db, "SELECT COUNT(*) FROM T") == [(4,)]


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("IF EXISTS (SELECT * FROM T) PRINT ''", 1),
        ("WHILE (SELECT COUNT(*) FROM T) < 0 PRINT ''", 1),
        ("DECLARE @x int SET @x = (SELECT MAX(Id) FROM T)", 1),
        ("DECLARE @x int = (SELECT MAX(Id) FROM T)", 1),
        ("SELECT name FROM sys.objects WHERE 1 = 0", 1),
        ("DECLARE @x int SELECT @x = Id FROM T", 1),
        ("DECLARE c CURSOR FOR SELECT Id FROM T OPEN c", 1),
        ("SELECT 'it came from there'", 0),
        ("SELECT TRIM('x' FROM 'xyz')", 0),
        ("SELECT n FROM (VALUES (1)) s (n)", 0),
        ("IF (SELECT 1) = 1 PRINT ''", 0),
        ("DECLARE c CURSOR FOR SELECT Id FROM T", 0),
        ("SET NOCOUNT ON", 0),
    ],
)
def test_statements_that_begin_an_implicit_transaction(db: sb.Database, script: str, count: int) -> None:
    assert output_of(db, f"SET IMPLICIT_TRANSACTIONS ON {script} PRINT @@TRANCOUNT")[-1] == str(count)


def test_a_procedure_may_leave_an_implicit_transaction_open(db: sb.Database) -> None:
    db.execute_tsql("CREATE PROCEDURE Changes AS UPDATE T SET V = 0")
    db.execute_tsql("CREATE PROCEDURE Begins AS BEGIN TRANSACTION UPDATE T SET V = 0")
    db.execute_tsql("CREATE PROCEDURE Commits AS COMMIT")
    implicit = "SET IMPLICIT_TRANSACTIONS ON EXEC"
    assert output_of(db, f"{implicit} Changes PRINT @@TRANCOUNT") == ["1"]
    assert output_of(db, f"{implicit} Begins PRINT @@TRANCOUNT") == [266, "2"]
    assert output_of(db, f"{implicit} Changes EXEC Commits") == [266]
    assert output_of(db, "EXEC Begins") == [266]


def test_noexec_runs_no_statement(db: sb.Database) -> None:
    script = "PRINT 'a' SET NOEXEC ON PRINT 'b' DELETE T\nGO\nPRINT 'c'\nGO\nSET NOEXEC OFF PRINT 'd'"
    assert output_of(db, script) == ["a", "d"]
    assert rows(db, "SELECT COUNT(*) FROM T") == [(5,)]


def test_noexec_ends_a_loop_and_is_of_its_procedure(db: sb.Database) -> None:
    loop = "DECLARE @i int = 0 WHILE @i < 3 BEGIN SET NOEXEC ON; SET @i += 1; END\nGO\nSET NOEXEC OFF PRINT 'on'"
    assert output_of(db, loop) == ["on"]
    db.execute_tsql("CREATE PROCEDURE Silent AS SET NOEXEC ON PRINT 'never'")
    assert output_of(db, "EXEC Silent PRINT 'on' DROP PROCEDURE Silent") == ["on"]


def test_rowcount_leaves_definitions_alone(db: sb.Database) -> None:
    keys = "CREATE TABLE P (a int PRIMARY KEY) CREATE TABLE C (a int)"
    key = "SET ROWCOUNT 10 ALTER TABLE C ADD CONSTRAINT FK_C FOREIGN KEY (a) REFERENCES P (a) ON DELETE CASCADE"
    assert output_of(db, f"{keys}\nGO\n{key}\nGO\nDROP TABLE C DROP TABLE P") == []


@pytest.mark.parametrize("script", ["SET ROWCOUNT 5", "SET IMPLICIT_TRANSACTIONS ON", "SET NOEXEC ON"])
def test_check_agrees(script: str) -> None:
    assert [finding.verdict for finding in check(script)] == [Verdict.RUNS]


DATES = (
    # the same text is read by Python (an assignment) and by PostgreSQL (a query)
    ("mdy", "2024/02/03 10:00", "2024-02-03 10:00:00"),
    ("mdy", "02-03-2024", "2024-02-03 00:00:00"),
    ("mdy", "4 July 2024", "2024-07-04 00:00:00"),
    ("mdy", "July 4, 2024 10:00 AM", "2024-07-04 10:00:00"),
    ("mdy", "Feb  3 2024 10:15PM", "2024-02-03 22:15:00"),
    ("mdy", "2/3/24", "2024-02-03 00:00:00"),
    ("mdy", "10:15 PM", "1900-01-01 22:15:00"),
    ("mdy", "13/02/2024", 242),
    ("dmy", "13/02/2024", "2024-02-13 00:00:00"),
    ("dmy", "3.2.24", "2024-02-03 00:00:00"),
    ("dmy", "2024-02-03", "2024-03-02 00:00:00"),
    ("dmy", "2024-02-03T10:00:00", "2024-02-03 10:00:00"),
    ("dmy", "20240203", "2024-02-03 00:00:00"),
    ("dmy", "02/13/2024", 242),
    ("ymd", "24/02/03", "2024-02-03 00:00:00"),
    ("ymd", "02/03/2024", "2024-02-03 00:00:00"),
    ("ydm", "24/02/03", "2024-03-02 00:00:00"),
)


def test_dates_are_read_in_the_order_of_dateformat(db: sb.Database) -> None:
    for order, text, expected in DATES:
        for value in (f"'{text}'", f"CAST(N'{text}' AS datetime) FROM T WHERE Id = 1"):
            assign = "SELECT @d =" if "FROM" in value else "SET @d ="
            output = output_of(
                db, f"SET DATEFORMAT {order} DECLARE @d datetime {assign} {value} SELECT CONVERT(varchar(19), @d, 120)"
            )
            assert output == ([expected] if isinstance(expected, int) else [[(expected,)]]), (order, value)


WEEKS = (
    ("SET DATEFIRST 1 SELECT @@DATEFIRST, DATEPART(dw, '20240101'), DATEPART(wk, '20240107')", [[(1, 1, 1)]]),
    ("SELECT @@DATEFIRST, DATEPART(dw, '20240101'), DATEPART(wk, '20240107')", [[(7, 2, 2)]]),
    ("SET LANGUAGE British SELECT @@LANGUAGE, @@DATEFIRST, MONTH('01/02/2024')", [[("British", 1, 2)]]),
    ("SET DATEFORMAT 'dmy' SET LANGUAGE N'us_english' SELECT MONTH('01/02/2024')", [[(1,)]]),
    ("BEGIN TRAN SET DATEFORMAT dmy ROLLBACK SELECT MONTH('01/02/2024') FROM T WHERE Id = 1", [[(2,)]]),
    ("EXEC ('SET DATEFORMAT dmy SELECT MONTH(''01/02/2024'')') SELECT MONTH('01/02/2024')", [[(2,)], [(1,)]]),
    ("SET LANGUAGE Elvish SET DATEFORMAT mmm SET DATEFIRST 8", [2740, 2741, 2742]),
)


def test_datefirst_and_language_count_for_weeks(db: sb.Database) -> None:
    for script, expected in WEEKS:
        assert output_of(db, script) == expected, script
