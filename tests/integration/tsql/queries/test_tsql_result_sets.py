"""EXEC ... WITH RESULT SETS, DBCC OPENTRAN and INPUTBUFFER, COLLATE of columns."""

from __future__ import annotations

import datetime as dt
import subprocess
from collections.abc import Callable

import pytest

import servicebroker as sb
from servicebroker.store.cluster import programs
from servicebroker.tsql.check import Row, Verdict, check
from servicebroker.tsql.translation.text_writer import postgres_schema
from tsql_support import create_database, output_of, rows


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    script = "CREATE PROCEDURE Two AS SELECT 1 AS a, N'x' AS b SELECT CAST('20240203 04:05' AS datetime) AS d"
    return create_database(instance, "Shaped", script)


def test_columns_are_as_the_caller_wants_them(db: sb.Database) -> None:
    output = db.execute_tsql("EXEC Two WITH RESULT SETS ((n bigint NOT NULL, [the name] nvarchar(10)), (at date))")
    assert [(each.columns, each.rows) for each in output.sets] == [
        (("n", "the name"), [(1, "x")]),
        (("at",), [(dt.date(2024, 2, 3),)]),
    ]
    output = db.execute_tsql("EXEC ('SELECT 5') WITH RESULT SETS ((t varchar(5) COLLATE Latin1_General_CI_AS NULL))")
    assert (output.sets[0].columns, output.sets[0].rows) == (("t",), [("5",)])
    assert output_of(db, "EXEC Two WITH RECOMPILE, RESULT SETS UNDEFINED")[0] == [(1, "x")]


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
    assert number in output_of(db, f"EXEC Two WITH RESULT SETS {sets}")


def test_null_where_none_may_be(db: sb.Database) -> None:
    assert output_of(db, "EXEC ('SELECT NULL') WITH RESULT SETS ((a int NOT NULL))") == [11553]
    assert output_of(db, "EXEC ('SELECT 0x01') WITH RESULT SETS ((a date))") == [11538]


def test_dbcc_tells_of_sessions(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Open_ (a int)")
    output = output_of(db, "DBCC OPENTRAN BEGIN TRAN INSERT Open_ VALUES (1) DBCC OPENTRAN WITH NO_INFOMSGS ROLLBACK")
    assert output[0] == "No active open transactions."
    assert "Oldest active transaction" in output[2]
    ((kind, _, text),) = rows(db, "DECLARE @s int = @@SPID DBCC INPUTBUFFER (@s)")
    assert (kind, "dm_exec_input_buffer" in str(text)) == ("Language Event", True)
    assert output_of(db, "DBCC INPUTBUFFER (32000)") == [7955]


def test_columns_take_the_collations_that_tools_write(db: sb.Database) -> None:
    table = (
        "CREATE TABLE Words (a nvarchar(20) COLLATE SQL_Latin1_General_CP1_CI_AS NOT NULL, "
        "b varchar(9) COLLATE Latin1_General_BIN2)"
    )
    db.execute_tsql(table + " ALTER TABLE Words ALTER COLUMN b varchar(10) COLLATE Latin1_General_100_CS_AI_SC")
    assert output_of(db, "CREATE TABLE Others (a nvarchar(20) COLLATE Unheard_Of)") == [448]
    assert [found.verdict for found in check(table)] == [Verdict.RUNS]


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
    assert output_of(db, bad) == [547]
    assert output_of(db, "ALTER TABLE Orders NOCHECK CONSTRAINT FK_Customer " + bad.replace("-1", "1")) == []
    assert rows(db, state) == [(1, 1), (0, 0)]
    assert rows(db, "SELECT name, type FROM sys.objects WHERE type IN ('F', 'C') ORDER BY name") == [
        ("CK_Quantity", "C"),
        ("FK_Customer", "F"),
    ]
    assert output_of(db, "ALTER TABLE dbo.Orders NOCHECK CONSTRAINT ALL " + bad) == []
    assert "Quantity > 0" in str(rows(db, "SELECT definition FROM sys.check_constraints")[0][0]).title()
    assert output_of(db, "ALTER TABLE Orders WITH CHECK CHECK CONSTRAINT ALL") == [547]
    assert rows(db, state) == [(1, 1), (1, 1)]
    assert output_of(db, "ALTER TABLE Orders CHECK CONSTRAINT ALL " + bad) == [547]  # the constraint holds for new rows
    assert rows(db, state) == [(0, 1), (0, 1)]
    output_of(db, "DELETE Orders ALTER TABLE Orders WITH CHECK CHECK CONSTRAINT CK_Quantity, FK_Customer")
    assert rows(db, state) == [(0, 0), (0, 0)]
    assert rows(db, "SELECT delete_referential_action_desc FROM sys.foreign_keys") == [("CASCADE",)]
    assert output_of(db, "ALTER TABLE Orders NOCHECK CONSTRAINT Nothing") == [4917]
    key = (
        "DECLARE @s nvarchar(200) SELECT @s = 'ALTER TABLE Orders NOCHECK CONSTRAINT ' + name FROM sys.key_constraints"
    )
    assert output_of(db, key + " WHERE parent_object_id = OBJECT_ID('Orders') EXEC (@s)") == [11415]


def test_a_condition_of_several_lines_is_switched_on_again(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Cases (a int, CONSTRAINT CK_Case CHECK (CASE WHEN a > 0 THEN 1 ELSE 0 END = 1))")
    assert output_of(db, "ALTER TABLE Cases NOCHECK CONSTRAINT ALL INSERT Cases VALUES (-1) DELETE Cases") == []
    assert output_of(db, "ALTER TABLE Cases WITH CHECK CHECK CONSTRAINT ALL") == []
    assert output_of(db, "INSERT Cases VALUES (-1)") == [547]
    db.execute_tsql("DROP TABLE Cases")


def test_a_missing_procedure_is_reported_once(db: sb.Database) -> None:
    assert output_of(db, "EXEC dbo.NoSuch WITH RESULT SETS ((a int))") == [2812]


_CAREFUL = """
CREATE PROCEDURE Careful AS
BEGIN TRY SELECT 1 AS a SELECT 2 AS b PRINT 'on' END TRY BEGIN CATCH PRINT 'caught' END CATCH
PRINT 'after'
"""


def test_an_unexpected_result_set_ends_the_call(db: sb.Database) -> None:
    db.execute_tsql(_CAREFUL)
    call = "EXEC Careful WITH RESULT SETS ((a int))"
    assert output_of(db, f"{call} PRINT 'next'") == [[(1,)], 11535, "next"]
    caught = f"BEGIN TRY {call} END TRY BEGIN CATCH SELECT ERROR_NUMBER(), ERROR_PROCEDURE(), @@NESTLEVEL END CATCH"
    assert output_of(db, caught) == [[(1,)], [(11535, None, 0)]]
    # of two EXEC, one inside the other, each tells its own
    db.execute_tsql(
        "CREATE PROCEDURE Around AS BEGIN TRY EXEC Careful WITH RESULT SETS ((a int), (b int)) END TRY "
        "BEGIN CATCH PRINT 'caught within' END CATCH"
    )
    assert output_of(db, "EXEC Around WITH RESULT SETS ((a int, b int)) PRINT 'next'") == [11537, "next"]
    db.execute_tsql(
        "ALTER PROCEDURE Around AS BEGIN TRY EXEC Careful WITH RESULT SETS ((a int)) END TRY "
        "BEGIN CATCH PRINT ERROR_NUMBER() END CATCH"
    )
    assert output_of(db, "EXEC Around WITH RESULT SETS ((a bigint))") == [[(1,)], "11535"]


def test_a_message_that_the_caller_does_not_take_stays(db: sb.Database) -> None:
    db.execute_tsql(
        "CREATE QUEUE Q CREATE SERVICE S ON QUEUE Q ([DEFAULT])\nGO\nDECLARE @h uniqueidentifier "
        "BEGIN DIALOG @h FROM SERVICE S TO SERVICE 'S' WITH ENCRYPTION = OFF; SEND ON CONVERSATION @h ('x')\nGO\n"
        "CREATE PROCEDURE Take AS BEGIN TRY RECEIVE message_body FROM Q END TRY BEGIN CATCH PRINT 'caught' END CATCH"
    )
    for script in ("EXEC Take WITH RESULT SETS NONE", "BEGIN TRAN EXEC Take WITH RESULT SETS NONE"):
        assert output_of(db, script) == [11535]
        assert rows(db, "SELECT COUNT(*) FROM Q") == [(1,)]


def test_a_disabled_foreign_key_shows_its_referenced_columns(instance: sb.Instance) -> None:
    db = instance.database("Referring", create=True)
    db.execute_tsql("""
        CREATE TABLE [Odd (name)] (a int, [b, c] nvarchar(5), CONSTRAINT PK_Odd PRIMARY KEY ([b, c], a))
        CREATE TABLE Refers (Id int, x nvarchar(5), y int, CONSTRAINT FK_Odd FOREIGN KEY (x, y)
                             REFERENCES [Odd (name)] ([b, c], a) ON DELETE CASCADE ON UPDATE SET NULL)
    """)
    shown = """
        SELECT k.name, k.is_disabled, OBJECT_NAME(k.referenced_object_id), k.delete_referential_action_desc,
               k.update_referential_action_desc, p.name, r.name
          FROM sys.foreign_keys k JOIN sys.foreign_key_columns c ON c.constraint_object_id = k.object_id
          JOIN sys.columns p ON p.object_id = c.parent_object_id AND p.column_id = c.parent_column_id
          JOIN sys.columns r ON r.object_id = c.referenced_object_id AND r.column_id = c.referenced_column_id
         ORDER BY c.constraint_column_id
    """
    others = """
        SELECT unique_constraint_name, delete_rule FROM INFORMATION_SCHEMA.REFERENTIAL_CONSTRAINTS UNION ALL
        SELECT column_name, table_name FROM INFORMATION_SCHEMA.KEY_COLUMN_USAGE WHERE table_name = 'Refers' UNION ALL
        SELECT column_name, constraint_name FROM INFORMATION_SCHEMA.CONSTRAINT_COLUMN_USAGE WHERE table_name = 'Refers'
    """
    on, told_on = rows(db, shown), sorted(rows(db, others))
    assert [each[2:] for each in on] == [
        ("Odd (name)", "CASCADE", "SET_NULL", "x", "b, c"),
        ("Odd (name)", "CASCADE", "SET_NULL", "y", "a"),
    ]
    db.execute_tsql("ALTER TABLE Refers NOCHECK CONSTRAINT FK_Odd")
    assert rows(db, shown) == [(each[0], 1, *each[2:]) for each in on]
    assert sorted(rows(db, others)) == told_on


@pytest.mark.parametrize(
    "script",
    [
        "DECLARE @t TABLE (a nvarchar(9) COLLATE Latin1_General_CI_AI)",
        "CREATE TYPE Words AS TABLE (a nvarchar(9) COLLATE [Latin1_General_CS_AI])",
        "ALTER TABLE W ALTER COLUMN a nvarchar(9) COLLATE Latin1_General_100_CI_AI_SC_UTF8",
        "CREATE FUNCTION F () RETURNS @t TABLE (a nvarchar(9) COLLATE Latin1_General_CI_AI) AS BEGIN RETURN END",
    ],
)
def test_check_tells_of_collations_wherever_columns_are_defined(script: str) -> None:
    (finding,) = [one for one in check(script) if one.verdict is not Verdict.RUNS]
    assert (finding.verdict, finding.row) == (Verdict.DIFFERS, Row.COLLATIONS)
    assert all(one.verdict is Verdict.RUNS for one in check(script.replace("_AI", "_AS")))


def test_check_reads_no_collation_in_a_string() -> None:
    script = "CREATE TABLE W (a varchar(90) DEFAULT 'COLLATE Latin1_General_CI_AI')"
    assert [finding.verdict for finding in check(script)] == [Verdict.RUNS]


_TAKES = """
CREATE TABLE Jobs (Id int IDENTITY PRIMARY KEY, Payload nvarchar(20))
INSERT Jobs VALUES (N'a'), (N'b'), (N'c')
GO
CREATE PROCEDURE Take AS DELETE TOP (1) FROM Jobs OUTPUT deleted.Id, deleted.Payload
GO
CREATE PROCEDURE Add_ AS INSERT Jobs OUTPUT inserted.Payload VALUES (N'new')
GO
CREATE PROCEDURE Change AS WITH j AS (SELECT * FROM Jobs) UPDATE j SET Payload += N'!' OUTPUT inserted.Payload
GO
CREATE PROCEDURE TakeQuietly AS BEGIN TRY EXEC Take END TRY BEGIN CATCH PRINT 'caught' END CATCH
"""


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("EXEC Take WITH RESULT SETS ((Id int))", 11537),
        ("EXEC Take WITH RESULT SETS ((Id int, Payload int))", 245),
        ("EXEC TakeQuietly WITH RESULT SETS NONE", 11535),
        ("EXEC Add_ WITH RESULT SETS ((a int, b int))", 11537),
        ("EXEC Change WITH RESULT SETS ((a date))", 241),
        ("EXEC ('DELETE Jobs OUTPUT deleted.Id') WITH RESULT SETS ((a int, b int))", 11537),
    ],
)
def test_rows_of_a_refused_result_set_are_not_deleted(instance: sb.Instance, call: str, number: int) -> None:
    db = instance.database("Takes", create=True)
    db.execute_tsql("DROP TABLE IF EXISTS Jobs DROP PROCEDURE IF EXISTS Take, Add_, Change, TakeQuietly")
    db.execute_tsql(_TAKES)
    kept = [[(1, "a"), (2, "b"), (3, "c")]]
    assert output_of(db, call) == [number]
    assert output_of(db, "SELECT * FROM Jobs ORDER BY Id") == kept
    if number > 1000:  # an error that ends the batch undoes the transaction
        script = f"BEGIN TRAN INSERT Jobs VALUES (N'mine') {call}\nPRINT @@TRANCOUNT SELECT Payload FROM Jobs ROLLBACK"
        assert output_of(db, script) == [number, "1", [("a",), ("b",), ("c",), ("mine",)]]
    assert output_of(db, "EXEC Take WITH RESULT SETS ((Id int, Payload nvarchar(9))) PRINT @@TRANCOUNT") == [
        [(1, "a")],
        "0",
    ]


def test_disabled_constraints_follow_renamed_objects(instance: sb.Instance) -> None:
    db = instance.database("SwitchedRenamed", create=True)
    db.execute_tsql("""
    CREATE TABLE Goods (Id int PRIMARY KEY, [Odd, name] int UNIQUE)
    CREATE TABLE Lines (Good int CONSTRAINT FK_Good REFERENCES Goods (Id) ON DELETE CASCADE,
        Odd int CONSTRAINT FK_Odd REFERENCES Goods ([Odd, name]), v int CONSTRAINT CK_v CHECK (v > 0 OR v < -5))
    ALTER TABLE Lines NOCHECK CONSTRAINT ALL""")
    helped = db.execute_tsql("EXEC sp_helpconstraint Lines, nomsg").sets[0].rows
    assert helped[0][0] == "CHECK on column v"
    db.execute_tsql("""
    EXEC sp_rename 'Goods', 'Wares'; EXEC sp_rename 'Wares.Id', 'Number', 'COLUMN'
    EXEC sp_rename 'Lines.Good', 'Ware', 'COLUMN'; EXEC sp_rename 'Lines.v', 'w', 'COLUMN'""")
    assert output_of(db, "DROP TABLE Wares") == [3726]
    shown = """SELECT f.name, OBJECT_NAME(f.referenced_object_id), p.name, r.name, f.is_disabled FROM sys.foreign_keys f
    JOIN sys.foreign_key_columns c ON c.constraint_object_id = f.object_id
    JOIN sys.columns p ON p.object_id = c.parent_object_id AND p.column_id = c.parent_column_id
    JOIN sys.columns r ON r.object_id = c.referenced_object_id AND r.column_id = c.referenced_column_id
    ORDER BY f.name"""
    assert rows(db, shown) == [("FK_Good", "Wares", "Ware", "Number", 1), ("FK_Odd", "Wares", "Odd", "Odd, name", 1)]
    assert "w > 0" in str(rows(db, "SELECT definition FROM sys.check_constraints")[0][0])
    assert output_of(db, "INSERT Lines VALUES (7, 7, -1) DELETE Lines") == []
    assert output_of(db, "ALTER TABLE Lines WITH CHECK CHECK CONSTRAINT ALL") == []
    bad = "INSERT Lines VALUES (7, NULL, 1) INSERT Lines VALUES (NULL, 7, 1) INSERT Lines VALUES (NULL, NULL, -1)"
    assert output_of(db, bad) == [547, 547, 547]
    assert rows(db, shown)[0] == ("FK_Good", "Wares", "Ware", "Number", 0)
    db.execute_tsql("INSERT Wares VALUES (1, 2); INSERT Lines VALUES (1, 2, 1); DELETE Lines; DROP TABLE Lines, Wares")


@pytest.mark.parametrize(
    ("script", "expected_text"),
    [
        ("SELECT 1 / 0 PRINT 1", [8134, "1", "0"]),
        ("SELECT 1 / 0 DECLARE @x int = 1", [8134, "0"]),
        ("RAISERROR('no', 16, 1)", [50000, "50000"]),
    ],
)
def test_the_last_error_of_a_text_is_its_return_code(db: sb.Database, script: str, expected_text: list[object]) -> None:
    text = script.replace("'", "''")
    assert output_of(db, f"DECLARE @r int EXEC @r = sp_executesql N'{text}' PRINT @r") == expected_text


def test_a_dump_makes_tables_that_refer_to_each_other(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    with sb.open(url, upkeep=None) as instance:
        db = instance.database("Circle", create=True)
        db.execute_tsql("""
        CREATE TABLE One (Id int PRIMARY KEY, b int)
        CREATE TABLE Two (Id int PRIMARY KEY, a int CONSTRAINT FK_Two REFERENCES One (Id),
            Self int CONSTRAINT FK_Self REFERENCES Two (Id))
        ALTER TABLE One ADD CONSTRAINT FK_One FOREIGN KEY (b) REFERENCES Two (Id)
        ALTER TABLE One NOCHECK CONSTRAINT ALL ALTER TABLE Two NOCHECK CONSTRAINT ALL""")
        schema = postgres_schema("Circle", "dbo").strip('"')
        result = subprocess.run([programs() / "pg_dump", "-n", schema, url], check=True, capture_output=True, text=True)
        with instance.connection() as connection:
            connection.execute(f'drop schema "{schema}" cascade')
        subprocess.run(
            [programs() / "psql", "-q", "-v", "ON_ERROR_STOP=1", url], input=result.stdout, text=True, check=True
        )
        assert output_of(db, "DROP TABLE Two DROP TABLE One") == [3726, 3726]
        db.execute_tsql("EXEC sp_rename 'Two', 'Second'; EXEC sp_rename 'Second.Id', 'Number', 'COLUMN'")
        db.execute_tsql("ALTER TABLE One CHECK CONSTRAINT ALL ALTER TABLE Second CHECK CONSTRAINT ALL")
        assert output_of(db, "INSERT Second VALUES (1, NULL, 2) INSERT One VALUES (1, 2)") == [547, 547]
