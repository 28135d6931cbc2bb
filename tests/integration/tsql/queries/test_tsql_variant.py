"""sql_variant: columns, variables, conversions, comparisons, and what the session remembers under a key."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.tsql.statement_errors import TsqlError
from tsql_support import create_database

GUID = UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")
TABLES = f"""
CREATE TABLE dbo.Settings (
    Name nvarchar(30) PRIMARY KEY, Value sql_variant NULL, Fallback sql_variant NOT NULL DEFAULT 7)
DECLARE @size decimal(9, 2) = 46279.10, @when datetime = '20200102 03:04:05.670'
INSERT dbo.Settings (Name, Value) VALUES (N'number', 5), (N'size', @size), (N'text', N'Zoë'),
    (N'single', 'abc'), (N'nothing', NULL)
INSERT dbo.Settings (Name, Value) SELECT N'when', @when
INSERT dbo.Settings (Name, Value) SELECT N'day', CAST('2020-02-03' AS date)
INSERT dbo.Settings (Name, Value) VALUES (N'id', CAST('{GUID}' AS uniqueidentifier)),
    (N'bytes', 0x01FF), (N'float', 1.5e0)
"""


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "Variants", TABLES)


def test_a_variant_column_returns_the_inserted_values(shop: sb.Database) -> None:
    results = dict(shop.execute_tsql("SELECT Name, Value FROM dbo.Settings").rows)
    assert results == {
        "number": 5,
        "size": Decimal("46279.10"),
        "text": "Zoë",
        "single": "abc",
        "nothing": None,
        "when": datetime(2020, 1, 2, 3, 4, 5, 670000),
        "day": date(2020, 2, 3),
        "id": GUID,
        "bytes": b"\1\xff",
        "float": 1.5,
    }
    assert shop.execute_tsql("SELECT DISTINCT Fallback FROM dbo.Settings").rows == [(7,)]


def test_sql_variant_property_describes_the_stored_value(shop: sb.Database) -> None:
    asked = "SELECT Name, " + ", ".join(
        f"SQL_VARIANT_PROPERTY(Value, '{one}')" for one in ("BaseType", "Precision", "Scale", "TotalBytes", "MaxLength")
    )
    rows = {row[0]: row[1:] for row in shop.execute_tsql(f"{asked} FROM dbo.Settings").rows}
    assert rows["number"] == ("int", 10, 0, 6, 4)
    assert rows["size"] == ("decimal", 9, 2, 9, 5)
    assert rows["when"] == ("datetime", 23, 3, 10, 8)
    assert rows["text"][0] == "nvarchar"
    assert rows["single"][0] == "varchar"
    assert rows["nothing"] == (None,) * 5
    assert shop.execute_tsql("SELECT SQL_VARIANT_PROPERTY(N'abc', 'BaseType')").rows == [("nvarchar",)]


def test_a_variant_is_converted_by_its_base_type(shop: sb.Database) -> None:
    text = """
    DECLARE @v sql_variant = 46279.6, @s sql_variant = N'12'
    DECLARE @d sql_variant = CAST('20200102 03:04:05' AS datetime), @n sql_variant
    DECLARE @i int = CAST(@v AS int), @t nvarchar(30) = CONVERT(nvarchar(30), @d)
    SELECT CAST(@v AS int), @i, CAST(@s AS int) + 1, @t, CONVERT(varchar(10), @d, 112), CAST(@s AS varbinary(4)),
           CAST(@n AS int),
           CAST(@d AS date), TRY_CAST(@s AS uniqueidentifier), ISNULL(@n, 3), COALESCE(@n, @s)
    """
    (row,) = shop.execute_tsql(text).rows
    assert row[:6] == (46279, 46279, 13, "Jan  2 2020  3:04AM", "20200102", b"1\x002\x00")
    assert row[6:] == (None, date(2020, 1, 2), None, 3, "12")
    assert shop.execute_tsql("SELECT CAST(Value AS decimal(9, 1)) FROM dbo.Settings WHERE Name = N'size'").rows == [
        (Decimal("46279.1"),)
    ]


def test_values_of_one_family_are_compared_and_the_higher_family_wins(shop: sb.Database) -> None:
    def names_where(condition: str) -> list[str]:
        return [
            name for (name,) in shop.execute_tsql(f"SELECT Name FROM dbo.Settings WHERE {condition} ORDER BY Name").rows
        ]

    assert names_where("Value = 5") == ["number"]
    assert names_where("Value = CAST(5 AS bigint)") == ["number"]
    assert names_where("Value = N'abc'") == ["single"]
    assert names_where("Value > 100 AND SQL_VARIANT_PROPERTY(Value, 'BaseType') <> 'datetime'") == [
        "day",
        "float",
        "size",
    ]
    assert names_where("Value IN (N'abc', 5)") == ["number", "single"]
    assert names_where("Value IS NULL") == ["nothing"]
    ordered = [name for (name,) in shop.execute_tsql("SELECT Name FROM dbo.Settings ORDER BY Value, Name").rows]
    assert ordered[0] == "nothing"
    assert ordered[1:4] == ["id", "bytes", "text"]
    assert ordered[4:] == ["single", "number", "size", "float", "when", "day"]
    branch = "DECLARE @v sql_variant = 5 IF @v = 5 PRINT 'five' ELSE PRINT 'other'"
    assert [message.text for message in shop.execute_tsql(branch).messages] == ["five"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SELECT Value + 1 FROM dbo.Settings", 403),
        ("SELECT LEN(Value) FROM dbo.Settings", 8116),
        ("SELECT SUM(Value) FROM dbo.Settings", 8117),
        ("SELECT CAST(Value AS int) FROM dbo.Settings WHERE Name = N'text'", 245),
        ("SELECT CAST(CAST('<a/>' AS xml) AS sql_variant)", 206),
        ("SELECT CAST(Value AS varbinary(8)) FROM dbo.Settings WHERE Name = N'when'", 529),
    ],
)
def test_invalid_uses_of_a_variant_are_refused(shop: sb.Database, text: str, number: int) -> None:
    with pytest.raises(TsqlError) as error:
        shop.execute_tsql(text)
    assert error.value.number == number


def test_a_session_remembers_values_under_keys(shop: sb.Database) -> None:
    script = """
    EXEC sp_set_session_context N'tenant', 42
    EXEC sys.sp_set_session_context @key = N'user', @value = N'Zoë', @read_only = 1
    SELECT CAST(SESSION_CONTEXT(N'tenant') AS int) + 1, SESSION_CONTEXT(N'user'), SESSION_CONTEXT(N'none')
    GO
    CREATE PROCEDURE dbo.WhoIs AS SELECT CONVERT(nvarchar(10), SESSION_CONTEXT(N'user')) AS who
    GO
    EXEC dbo.WhoIs
    """
    assert [found.rows for found in shop.execute_tsql(script).sets] == [[(43, "Zoë", None)], [("Zoë",)]]
    fixed = "EXEC sp_set_session_context N'a', 1, @read_only = 1 EXEC sp_set_session_context N'a', 2"
    with pytest.raises(TsqlError) as error:
        shop.execute_tsql(fixed)
    assert error.value.number == 15664


def test_procedures_functions_and_tables_take_it(shop: sb.Database) -> None:
    script = """
    CREATE FUNCTION dbo.Kind (@v sql_variant) RETURNS nvarchar(30) AS
    BEGIN
        RETURN CAST(SQL_VARIANT_PROPERTY(@v, 'BaseType') AS nvarchar(30))
    END
    GO
    CREATE PROCEDURE dbo.Put @name nvarchar(30), @value sql_variant AS
        UPDATE dbo.Settings SET Value = @value WHERE Name = @name
    GO
    EXEC dbo.Put N'nothing', 3.25
    DECLARE @t TABLE (v sql_variant)
    INSERT @t SELECT Value FROM dbo.Settings WHERE Name IN (N'nothing', N'text')
    SELECT v, dbo.Kind(v), dbo.Kind(1) FROM @t ORDER BY dbo.Kind(v)
    CREATE TABLE #kept (Value sql_variant)
    INSERT #kept SELECT Value FROM dbo.Settings WHERE Name = N'nothing'
    SELECT Value FROM #kept
    UPDATE dbo.Settings SET Value = NULL WHERE Name = N'nothing'
    """
    first, second = (found.rows for found in shop.execute_tsql(script).sets)
    assert first == [(Decimal("3.25"), "decimal", "int"), ("Zoë", "nvarchar", "int")]
    assert second == [(Decimal("3.25"),)]
