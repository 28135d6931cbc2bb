"""CREATE TYPE: alias types, table types, and the parameters of procedures that are tables."""

from __future__ import annotations

from decimal import Decimal

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from tsql_support import create_database, error_number, rows

TYPES = """
CREATE TYPE dbo.Label FROM nvarchar(5) NOT NULL;
CREATE TYPE Price FROM decimal(9, 2);
CREATE TYPE dbo.Basket AS TABLE (
    Line INT IDENTITY PRIMARY KEY, Item Label, Cost Price NULL CHECK (Cost >= 0), Amount INT NOT NULL DEFAULT 1);
GO
CREATE PROCEDURE dbo.Total @rows dbo.Basket READONLY, @factor INT = 1, @sum Price OUTPUT AS
    SELECT @sum = SUM(Cost * Amount) * @factor FROM @rows;
    SELECT Line, Item, Amount FROM @rows ORDER BY Line;
    RETURN (SELECT COUNT(*) FROM @rows);
GO
CREATE PROCEDURE Outer_ @rows Basket READONLY, @sum Price OUTPUT AS
    EXEC Total @rows = @rows, @factor = 10, @sum = @sum OUTPUT;
"""
FILLED = "DECLARE @b dbo.Basket, @s dbo.Price; INSERT @b (Item, Cost) VALUES (N'pen', 1.25), (N'ink', 4); "


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "TypeShop", TYPES)


def test_a_procedure_reads_the_table_of_its_caller(shop: sb.Database) -> None:
    sets = shop.execute_tsql(
        FILLED + "DECLARE @n INT; EXEC @n = Total @b, DEFAULT, @s OUTPUT; SELECT @n, @s; SELECT COUNT(*) FROM @b"
    )
    assert [result_set.rows for result_set in sets.sets] == [
        [(1, "pen", 1), (2, "ink", 1)],
        [(2, Decimal("5.25"))],
        [(2,)],
    ]


def test_a_table_goes_through_calls_and_texts(shop: sb.Database) -> None:
    assert [float(one) for (one,) in rows(shop, FILLED + "EXEC Outer_ @b, @s OUTPUT; SELECT @s")[-1:]] == [52.5]
    text = "N'SELECT @n = COUNT(*) FROM @given', N'@given dbo.Basket READONLY, @n INT OUTPUT'"
    assert rows(
        shop, FILLED + f"DECLARE @n INT; EXEC sp_executesql {text}, @given = @b, @n = @n OUTPUT; SELECT @n"
    ) == [(2,)]


@pytest.mark.parametrize("given", ["", " DEFAULT", " @rows = DEFAULT"])
def test_without_a_table_the_parameter_is_empty(shop: sb.Database, given: str) -> None:
    assert rows(
        shop, f"CREATE PROCEDURE Counted @rows Basket READONLY AS SELECT COUNT(*) FROM @rows\nGO\nEXEC Counted{given}"
    ) == [(0,)]
    shop.execute_tsql("DROP PROCEDURE Counted")


@pytest.mark.parametrize(
    "change",
    [
        "INSERT @rows (Item) VALUES (N'x')",
        "UPDATE @rows SET Amount = 2",
        "UPDATE r SET Amount = 2 FROM @rows AS r",
        "DELETE FROM @rows",
        "DELETE r FROM @rows r WHERE r.Line = 1",
        "MERGE @rows AS t USING (SELECT 1 AS n) AS s ON t.Line = s.n WHEN MATCHED THEN DELETE;",
        "DECLARE @own TABLE (Item NVARCHAR(9)); INSERT @own OUTPUT inserted.Item INTO @rows (Item) VALUES (N'x')",
    ],
)
def test_a_parameter_is_read_only(shop: sb.Database, change: str) -> None:
    shop.execute_tsql(f"CREATE PROCEDURE Changes @rows Basket READONLY AS {change}")
    assert error_number(shop, FILLED + "EXEC Changes @b") == 10700
    shop.execute_tsql("DROP PROCEDURE Changes")


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("CREATE TYPE basket FROM int", 219),
        ("CREATE TYPE Odd FROM nosuch", 2715),
        ("CREATE TYPE Odd AS TABLE (a nosuch)", 2715),
        ("CREATE TYPE Odd AS TABLE ()", 102),
        ("CREATE TYPE Odd AS TABLE", 102),
        ("CREATE TYPE Other.dbo.Odd FROM int", 117),
        ("CREATE TYPE Odd EXTERNAL NAME a.b", 40515),
        ("DROP TYPE Odd", 218),
        ("DROP TYPE dbo.Basket", 3732),
        ("DECLARE @x dbo.Odd", 2715),
        ("CREATE TABLE Odd (a Basket)", 2715),
        ("CREATE PROCEDURE Odd @x dbo.Odd READONLY AS RETURN", 2715),
        ("CREATE PROCEDURE Odd @x int READONLY AS RETURN", 346),
        ("CREATE PROCEDURE Odd @x Basket AS RETURN", 352),
        ("CREATE FUNCTION Odd (@x Basket READONLY) RETURNS INT AS BEGIN RETURN 1 END", 40515),
        ("DECLARE @s Price; EXEC Outer_ 1, @s OUTPUT", 206),
        ("DECLARE @s Price, @x INT; EXEC Outer_ @x, @s OUTPUT", 206),
        ("DECLARE @s Price, @x TABLE (a INT); EXEC Outer_ @x, @s OUTPUT", 206),
        ("DECLARE @s Price; EXEC Outer_ @nowhere, @s OUTPUT", 137),
        ("DECLARE @b Basket; INSERT @b (Item, Cost) VALUES (N'x', -1)", 547),
        ("DECLARE @b Basket; INSERT @b (Cost) VALUES (1)", 515),
    ],
)
def test_invalid_types_are_refused(shop: sb.Database, script: str, number: int) -> None:
    assert error_number(shop, script) == number


def test_an_alias_is_the_type_that_it_names(shop: sb.Database) -> None:
    assert rows(shop, "DECLARE @l dbo.Label = N'longer than five'; SELECT @l") == [("longe",)]
    shop.execute_tsql(
        "CREATE TABLE Tags (Tag [dbo].[Label], Note Label NULL, Cost Price); ALTER TABLE Tags ADD More Label NULL"
    )
    shown = (
        "SELECT name, is_nullable, max_length FROM sys.columns WHERE object_id = OBJECT_ID('Tags') ORDER BY column_id"
    )
    assert rows(shop, shown)[:2] == [("Tag", False, 10), ("Note", True, 10)]
    assert error_number(shop, "INSERT Tags (Note) VALUES (N'x')") == 515
    shop.execute_tsql("DROP TABLE Tags")


def test_scripts_that_make_their_types_again(shop: sb.Database) -> None:
    script = """
    IF TYPE_ID(N'dbo.Passing') IS NOT NULL DROP TYPE dbo.Passing;
    IF EXISTS (SELECT * FROM sys.types WHERE is_table_type = 1 AND name = N'PassingRows') DROP TYPE PassingRows;
    CREATE TYPE dbo.Passing FROM varchar(20); CREATE TYPE PassingRows AS TABLE (a INT) WITH (MEMORY_OPTIMIZED = ON)"""
    for _ in range(2):
        shop.execute_tsql(script)
    assert rows(
        shop,
        "SELECT name, is_user_defined, is_table_type, max_length FROM sys.types WHERE name LIKE 'Passing%' ORDER BY 1",
    ) == [("Passing", 1, 0, 20), ("PassingRows", 1, 1, -1)]
    shop.execute_tsql("DROP TYPE Passing; DROP TYPE IF EXISTS PassingRows; DROP TYPE IF EXISTS PassingRows")
    assert rows(shop, "SELECT TYPE_ID('Passing'), TYPE_ID('int')") == [(None, 56)]
    assert error_number(shop, "BEGIN TRAN; CREATE TYPE Undone FROM int; ROLLBACK; DECLARE @x Undone") == 2715


def test_check_agrees() -> None:
    assert {finding.verdict for finding in check(TYPES + "GO\n" + FILLED + "EXEC Total @b, 1, @s OUTPUT")} == {
        Verdict.RUNS
    }
    # another script may make it
    assert [finding.verdict for finding in check("DECLARE @x dbo.Nowhere")] == [Verdict.RUNS]
    assert [finding.verdict for finding in check("DECLARE @x decimal(99)")] == [Verdict.REFUSED]
