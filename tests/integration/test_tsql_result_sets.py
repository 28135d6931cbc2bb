"""EXEC ... WITH RESULT SETS, DBCC OPENTRAN and INPUTBUFFER, COLLATE of columns."""

from __future__ import annotations

import datetime as dt

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Row, Verdict, check
from tsql_support import rows, told


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    made = instance.database("Shaped", create=True)
    made.execute_tsql("CREATE PROCEDURE Two AS SELECT 1 AS a, N'x' AS b SELECT CAST('20240203 04:05' AS datetime) AS d")
    return made


def test_columns_are_as_the_caller_wants_them(db: sb.Database) -> None:
    said = db.execute_tsql("EXEC Two WITH RESULT SETS ((n bigint NOT NULL, [the name] nvarchar(10)), (at date))")
    assert [(each.columns, each.rows) for each in said.sets] == [
        (("n", "the name"), [(1, "x")]),
        (("at",), [(dt.date(2024, 2, 3),)]),
    ]
    said = db.execute_tsql("EXEC ('SELECT 5') WITH RESULT SETS ((t varchar(5) COLLATE Latin1_General_CI_AS NULL))")
    assert said.sets[0] == (("t",), [("5",)])
    assert told(db, "EXEC Two WITH RECOMPILE, RESULT SETS UNDEFINED")[0] == [(1, "x")]


@pytest.mark.parametrize(
    ("sets", "number"),
    [
        ("NONE", 11535),
        ("((a int, b nvarchar(5)))", 11535),
        ("((a int, b nvarchar(5)), (d datetime), (e int))", 11536),
        ("((a int), (d datetime))", 11537),
        ("((a uniqueidentifier, b nvarchar(5)), (d datetime))", 8169),
        ("((a int, b int), (d datetime))", 245),
    ],
)
def test_result_sets_that_are_others(db: sb.Database, sets: str, number: int) -> None:
    assert number in told(db, f"EXEC Two WITH RESULT SETS {sets}")


def test_null_where_none_may_be(db: sb.Database) -> None:
    assert told(db, "EXEC ('SELECT NULL') WITH RESULT SETS ((a int NOT NULL))") == [11553]
    assert told(db, "EXEC ('SELECT 0x01') WITH RESULT SETS ((a date))") == [11538]


def test_dbcc_tells_of_sessions(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Open_ (a int)")
    said = told(db, "DBCC OPENTRAN BEGIN TRAN INSERT Open_ VALUES (1) DBCC OPENTRAN WITH NO_INFOMSGS ROLLBACK")
    assert said[0] == "No active open transactions."
    assert "Oldest active transaction" in said[2]
    ((kind, _, text),) = rows(db, "DECLARE @s int = @@SPID DBCC INPUTBUFFER (@s)")
    assert (kind, "dm_exec_input_buffer" in str(text)) == ("Language Event", True)
    assert told(db, "DBCC INPUTBUFFER (32000)") == [7955]


def test_columns_take_the_collations_that_tools_write(db: sb.Database) -> None:
    table = (
        "CREATE TABLE Words (a nvarchar(20) COLLATE SQL_Latin1_General_CP1_CI_AS NOT NULL, "
        "b varchar(9) COLLATE Latin1_General_BIN2)"
    )
    db.execute_tsql(table + " ALTER TABLE Words ALTER COLUMN b varchar(10) COLLATE Latin1_General_100_CS_AI_SC")
    assert told(db, "CREATE TABLE Others (a nvarchar(20) COLLATE Unheard_Of)") == [448]
    (found,) = check(table)
    assert (found.verdict, found.row) == (Verdict.DIFFERS, Row.COLLATIONS)
    assert [one.verdict for one in check("CREATE TABLE W (a varchar(9) COLLATE Latin1_General_BIN2)")] == [Verdict.RUNS]


_ORDERS = """
CREATE TABLE Customers (Id int PRIMARY KEY)
CREATE TABLE Orders (Id int PRIMARY KEY, Customer int CONSTRAINT FK_Customer REFERENCES Customers (Id)
                     ON DELETE CASCADE, Quantity int CONSTRAINT CK_Quantity CHECK (Quantity > 0))
"""


def test_constraints_are_switched_off_and_on(instance: sb.Instance) -> None:
    db = instance.database("Switched", create=True)
    db.execute_tsql(_ORDERS)
    bad = "INSERT Orders VALUES ((SELECT COUNT(*) FROM Orders), 7, -1)"
    columns = "SELECT is_disabled, is_not_trusted FROM"
    state = f"{columns} sys.foreign_keys UNION ALL {columns} sys.check_constraints"
    assert told(db, bad) == [547]
    assert told(db, "ALTER TABLE Orders NOCHECK CONSTRAINT FK_Customer " + bad.replace("-1", "1")) == []
    assert rows(db, state) == [(1, 1), (0, 0)]
    assert rows(db, "SELECT name, type FROM sys.objects WHERE type IN ('F', 'C') ORDER BY name") == [
        ("CK_Quantity", "C"),
        ("FK_Customer", "F"),
    ]
    assert told(db, "ALTER TABLE dbo.Orders NOCHECK CONSTRAINT ALL " + bad) == []
    assert "Quantity > 0" in str(rows(db, "SELECT definition FROM sys.check_constraints")[0][0]).title()
    assert told(db, "ALTER TABLE Orders WITH CHECK CHECK CONSTRAINT ALL") == [547]
    assert rows(db, state) == [(1, 1), (1, 1)]
    assert told(db, "ALTER TABLE Orders CHECK CONSTRAINT ALL " + bad) == [547]  # of what comes now
    assert rows(db, state) == [(0, 1), (0, 1)]
    told(db, "DELETE Orders ALTER TABLE Orders WITH CHECK CHECK CONSTRAINT CK_Quantity, FK_Customer")
    assert rows(db, state) == [(0, 0), (0, 0)]
    assert rows(db, "SELECT delete_referential_action_desc FROM sys.foreign_keys") == [("CASCADE",)]
    assert told(db, "ALTER TABLE Orders NOCHECK CONSTRAINT Nothing") == [4917]
    key = (
        "DECLARE @s nvarchar(200) SELECT @s = 'ALTER TABLE Orders NOCHECK CONSTRAINT ' + name FROM sys.key_constraints"
    )
    assert told(db, key + " WHERE parent_object_id = OBJECT_ID('Orders') EXEC (@s)") == [11415]


def test_a_condition_of_several_lines_is_switched_on_again(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Cases (a int, CONSTRAINT CK_Case CHECK (CASE WHEN a > 0 THEN 1 ELSE 0 END = 1))")
    assert told(db, "ALTER TABLE Cases NOCHECK CONSTRAINT ALL INSERT Cases VALUES (-1) DELETE Cases") == []
    assert told(db, "ALTER TABLE Cases WITH CHECK CHECK CONSTRAINT ALL") == []
    assert told(db, "INSERT Cases VALUES (-1)") == [547]
    db.execute_tsql("DROP TABLE Cases")


def test_a_procedure_that_is_not_there_is_told_once(db: sb.Database) -> None:
    assert told(db, "EXEC dbo.NoSuch WITH RESULT SETS ((a int))") == [2812]
