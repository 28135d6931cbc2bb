"""WITH x AS (...) DELETE FROM x and UPDATE x: rows are taken from a table as from a queue, doubles are deleted."""

from __future__ import annotations

from datetime import datetime

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from tsql_support import create_database, error_number, rows

TABLES = """
CREATE TABLE Work (Id INT IDENTITY PRIMARY KEY, Task NVARCHAR(20), Taken DATETIME, Tries INT NOT NULL DEFAULT 0)
CREATE TABLE Log (Id INT, Task NVARCHAR(20))
CREATE TABLE Urgent (Task NVARCHAR(20))
"""
FILL = """
TRUNCATE TABLE Work; DELETE Log; DELETE Urgent
INSERT Work (Task) VALUES (N'a'), (N'b'), (N'a'), (N'c'), (N'b'), (N'a')
INSERT Urgent VALUES (N'c')
"""
TAKE = """
WITH head AS (SELECT TOP (1) Id, Task AS What FROM Work WITH (ROWLOCK, READPAST) WHERE Taken IS NULL ORDER BY Id)
DELETE FROM head OUTPUT deleted.What, deleted.*
"""


@pytest.fixture(scope="module")
def targets_database(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "CommonTargets", TABLES)


@pytest.fixture
def work(targets_database: sb.Database) -> sb.Database:
    targets_database.execute_tsql(FILL)
    return targets_database


def test_a_table_is_a_queue(work: sb.Database) -> None:
    with work.tsql_session() as first, work.tsql_session() as second:
        first.execute("BEGIN TRANSACTION")
        second.execute("BEGIN TRANSACTION")
        assert first.execute(TAKE).rows == [("a", 1, "a")]
        assert second.execute(TAKE).rows == [("b", 2, "b")]  # and does not wait
        first.execute("ROLLBACK")
        assert second.execute(TAKE).rows == [("a", 1, "a")]
        second.execute("COMMIT")
    take = TAKE.replace("deleted.What, deleted.*", "deleted.Id, deleted.What INTO @got (Id, Task)")
    text = f"DECLARE @got TABLE (Id INT, Task NVARCHAR(20)); {take} SELECT @@ROWCOUNT, * FROM @got"
    assert rows(work, text) == [(1, 3, "a")]


def test_doubles_are_deleted_by_their_number(work: sb.Database) -> None:
    text = (
        "WITH d AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY Task ORDER BY Id) AS n FROM Work)"
        "DELETE d OUTPUT deleted.Id, deleted.n WHERE n > 1"
    )
    assert sorted(rows(work, text)) == [(3, 2), (5, 2), (6, 3)]
    assert rows(work, "SELECT Task FROM Work ORDER BY Id") == [("a",), ("b",), ("c",)]


def test_rows_are_updated_through_it(work: sb.Database) -> None:
    text = """
    WITH next (Number, What, At, n) AS (
        SELECT TOP (2) Id, Task, Taken, Tries FROM dbo.Work AS w WHERE Taken IS NULL ORDER BY Id DESC
    ), unused AS (SELECT 1 AS one)
    UPDATE next SET At = '2020-01-02', n += Number, What = What + N'!'
    OUTPUT deleted.What, deleted.Number WHERE Number > @least
    """
    assert rows(work, "DECLARE @least INT = 5;" + text) == [("a", 6)]
    result_rows = rows(work, "SELECT Task, Taken, Tries FROM Work WHERE Tries > 0")
    assert result_rows == [("a!", datetime(2020, 1, 2), 6)]
    text = "UPDATE x SET Tries = 9 OUTPUT inserted.* FROM x JOIN Urgent u ON u.Task = x.Task"
    text = f"WITH x AS (SELECT Id, Task, Tries FROM Work) {text}"
    assert rows(work, text) == [(4, "c", 9)]
    text = "WITH x AS (SELECT TOP (1) * FROM Work ORDER BY Id) UPDATE x SET @id = Id, Tries = 5"
    text = f"DECLARE @id INT; {text}; SELECT @id"
    assert rows(work, text) == [(1,)]
    work.execute_tsql("WITH x AS (SELECT Id FROM Work) DELETE TOP (4) FROM x WHERE Id < 100")
    assert rows(work, "SELECT COUNT(*) FROM Work") == [(2,)]
    text = "DECLARE @t TABLE (a INT); INSERT @t VALUES (1), (2); "
    text += "WITH x AS (SELECT a FROM @t) DELETE x WHERE a = 1; SELECT * FROM @t"
    assert rows(work, text) == [(2,)]


JOINED = "Work w JOIN Urgent u ON u.Task = w.Task"


def test_a_table_is_updated_through_a_join(work: sb.Database) -> None:
    text = f"""
    WITH x AS (
        SELECT w.Id, w.Tries, u.Task AS t, ROW_NUMBER() OVER (PARTITION BY w.Id ORDER BY u.Task) AS n FROM {JOINED}
    )
    UPDATE x SET Tries = Id + LEN(t) OUTPUT deleted.Id, inserted.Tries WHERE n = 1
    """
    assert rows(work, text) == [(4, 5)]
    text = (
        "WITH x (i, T) AS (SELECT w.Id, W.Task FROM Work W LEFT JOIN Urgent u ON u.Task = w.Task) UPDATE x SET t = 'z'"
    )
    work.execute_tsql(f"{text} WHERE i < 3")
    assert rows(work, "SELECT Task FROM Work WHERE Id < 4 ORDER BY Id") == [("z",), ("z",), ("a",)]


@pytest.mark.parametrize(
    ("inside", "change", "expected"),
    [
        ("SELECT Task, COUNT(*) AS n FROM Work GROUP BY Task", "DELETE x", 4403),
        ("SELECT DISTINCT Task FROM Work", "DELETE x", 4403),
        ("SELECT w.Id FROM Work w JOIN Urgent u ON u.Task = w.Task", "DELETE x", 4405),
        (f"SELECT w.Id, w.Tries, u.Task AS t FROM {JOINED}", "UPDATE x SET Tries = 1, t = 'q'", 4405),
        (f"SELECT w.Tries + 1 AS n FROM {JOINED}", "UPDATE x SET n = 1", 4405),
        ("SELECT Id + 1 AS i FROM Work", "UPDATE x SET i = 1", 4406),
        ("SELECT Id FROM Work UNION ALL SELECT 1", "DELETE x", 40515),
        ("SELECT v.a FROM (VALUES (1)) AS v (a)", "DELETE x", 40515),
        ("SELECT 1 AS a", "DELETE x", 40515),
        ("SELECT Id, RANK() OVER (ORDER BY Id) AS r FROM Work WITH (UPDLOCK)", "DELETE x", 40515),
        ("SELECT Id FROM Work", "DELETE FROM x WITH (READPAST)", 40515),
        ("SELECT Id FROM Work", "DELETE y FROM x AS y", 208),
        ("SELECT Id FROM Nowhere", "DELETE x", 208),
        ("SELECT Id FROM Work", "UPDATE x SET Tries = 1", 4406),
    ],
)
def test_common_table_expressions_that_cannot_be_changed_are_refused(
    work: sb.Database, inside: str, change: str, expected: int
) -> None:
    assert error_number(work, f"WITH x AS ({inside}) {change}") == expected
    assert rows(work, "SELECT COUNT(*) FROM Work") == [(6,)]


def test_check_needs_no_tables() -> None:
    findings = list(check(TAKE + ";WITH x AS (SELECT * FROM Work) UPDATE x SET Tries = 1 OUTPUT deleted.*"))
    assert [each.verdict for each in findings] == [Verdict.RUNS, Verdict.RUNS]
