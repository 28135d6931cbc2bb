"""The built-in functions of T-SQL: the types that the table promises are PostgreSQL's, the values SQL Server's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal

import pytest

import servicebroker as sb
from servicebroker.tsql.function_table import PLAIN, Function
from servicebroker.tsql.interpreter.procedures.session_functions import SESSION_FUNCTIONS
from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translator import translate_expression
from servicebroker.tsql.types import postgres_type
from support import query

# The types of values for each kind of argument.
_ARGUMENT_TYPES = {
    "s": ("nvarchar(10)", "varchar(max)", "int"),
    "n": ("tinyint", "int", "bigint", "decimal(10, 2)", "float", "money", "varchar(10)"),
    "i": ("int", "bigint", "tinyint", "varchar(10)"),
    "d": ("datetime", "datetime2", "date", "datetimeoffset", "varchar(10)"),
    "b": ("varbinary(10)",),
    "x": ("int", "nvarchar(10)", "datetime", "uniqueidentifier", "float"),
    "a": ("uniqueidentifier", "nvarchar(36)"),
}
_WHOLE_ONLY = {"GET_BIT", "SET_BIT", "LEFT_SHIFT", "RIGHT_SHIFT"}
_OF_GROUPS = {"GROUPING", "GROUPING_ID"}  # not without GROUP BY: test_tsql_language.py
# a type that PostgreSQL has in a narrower and a wider form
_SAME = {"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone", "numeric": "numeric"}
_SAME |= {"time": "time without time zone", "varchar": "character varying"}


def calls(row: Function) -> Iterator[str]:
    """Calls with NULLs of all types that it takes, for the first argument."""
    if row.name in _OF_GROUPS:
        return
    letters = row.letters[: max(row.min_arguments, min(row.max_arguments, 1))]
    if not letters:
        yield row.name if row.name.startswith("@@") else f"{row.name}()"
        return
    for of in _ARGUMENT_TYPES[letters[0]]:
        if row.name in _WHOLE_ONLY and of not in ("tinyint", "int", "bigint"):
            continue
        if (row.name, of) in {("BIT_COUNT", "nvarchar(10)"), ("FORMAT", "nvarchar(10)")}:
            continue
        if row.name == "SUBSTRING" and of != "nvarchar(10)":
            continue
        if row.name in ("BIT_COUNT", "FORMAT", "ISNUMERIC") and of in ("uniqueidentifier", "datetime", "float"):
            continue
        rest = [f"CAST(NULL AS {_ARGUMENT_TYPES[each][0]})" for each in letters[1:]]
        yield f"{row.name}({', '.join([f'CAST(NULL AS {of})', *rest])})"


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    return instance.database("Builtins", create=True)


def test_the_types_of_the_table_are_those_of_the_results(shop: sb.Database) -> None:
    texts = [text for rows in PLAIN.values() for row in rows if row.returns != "first" for text in calls(row)]
    done = [translate_expression(text, Scope("Builtins", {}, {}, dict.fromkeys(SESSION_FUNCTIONS))) for text in texts]
    found = query(shop, " union all ".join(f"select pg_typeof(({one.sql}))::text" for one in done))
    wrong = []
    for text, one, (is_there,) in zip(texts, done, found, strict=True):
        (of,) = one.types or ()
        named = postgres_type(of).split("(")[0] if of is not None else "unknown"
        if _SAME.get(named, named) != is_there and {named, is_there} != {"text", "character varying"}:
            wrong.append((text, named, is_there))
    assert wrong == []


VALUES = {
    "ASCII('A')": 65,
    "BASE64_ENCODE(0xFBFF)": "+/8=",
    "BASE64_ENCODE(0xFBFF, 1)": "-_8",
    "BASE64_DECODE('-_8')": b"\xfb\xff",
    "CHARINDEX('b', 'abcb', 3)": 4,
    "CONCAT_WS('-', 1, NULL, 'x')": "1-x",
    "DATALENGTH('abc')": 3,
    "DATALENGTH(N'abc')": 6,
    "DATALENGTH(CAST(1 AS tinyint))": 1,
    "DATALENGTH(CAST(1 AS decimal(20, 2)))": 13,
    "DATALENGTH(CAST('2020-01-01' AS date))": 3,
    "DATALENGTH(CAST('x' AS char(5)))": 5,
    "DIFFERENCE('Green', 'Greene')": 4,
    "DIFFERENCE('Blotchet-Halls', 'Greene')": 0,
    "FORMATMESSAGE('%s has %05d, %-4i| %x %o 100%%', N'a', 42, 7, 255, 8)": "a has 00042, 7   | ff 10 100%",
    "LTRIM('xxyx', 'x')": "yx",
    "RTRIM('xyxx', 'x')": "xy",
    "TRIM(LEADING 'x' FROM 'xax')": "ax",
    "TRIM('.,' FROM ',.a.')": "a",
    "PARSENAME('srv.db.dbo.t', 2)": "dbo",
    "PATINDEX('%[0-9]%', 'ab3')": 3,
    "QUOTENAME('a]b')": "[a]]b]",
    "REPLICATE('ab', 2)": "abab",
    "SOUNDEX('Smith')": "S530",
    "SOUNDEX('Smythe')": "S530",
    "SOUNDEX('Tymczak')": "T522",
    "SOUNDEX('Ashcraft')": "A261",
    "STR(3.147, 5, 2)": " 3.15",
    "STUFF('abcdef', 2, 3, 'ijklmn')": "aijklmnef",
    "TRANSLATE('2*[3+4]', '[]', '()')": "2*(3+4)",
    "CURRENT_TIMEZONE_ID()": "UTC",
    "DATETRUNC(quarter, CAST('2021-12-08' AS date))": date(2021, 10, 1),
    "DATETRUNC(week, CAST('2021-12-08' AS date))": date(2021, 12, 5),
    "DATETRUNC(iso_week, CAST('2021-12-08' AS date))": date(2021, 12, 6),
    "DATETRUNC(minute, CAST('2021-12-08 11:30:15.1234567' AS datetime2))": datetime(2021, 12, 8, 11, 30),
    "DATE_BUCKET(week, 1, CAST('2020-04-15' AS date))": date(2020, 4, 13),
    "DATE_BUCKET(month, 2, CAST('2020-04-15' AS date))": date(2020, 3, 1),
    "DATE_BUCKET(day, 7, CAST('2020-04-15' AS date), CAST('2020-04-14' AS date))": date(2020, 4, 14),
    "DATEFROMPARTS(2010, 12, 31)": date(2010, 12, 31),
    "DATETIME2FROMPARTS(2011, 8, 15, 14, 23, 44, 5, 1)": datetime(2011, 8, 15, 14, 23, 44, 500000),
    "DATETIMEFROMPARTS(2010, 12, 31, 23, 59, 59, 0)": datetime(2010, 12, 31, 23, 59, 59),
    "SMALLDATETIMEFROMPARTS(2010, 12, 31, 23, 59)": datetime(2010, 12, 31, 23, 59),
    "TIMEFROMPARTS(14, 23, 44, 5, 1)": time(14, 23, 44, 500000),
    "CONVERT(varchar(40), CAST('2024-01-02T03:04:05.1234567' AS datetime2), 121)": "2024-01-02 03:04:05.1234560",
    "CONVERT(varchar(40), CAST('2024-01-02T03:04:05.1234567' AS datetime2), 126)": "2024-01-02T03:04:05.1234560",
    "CONVERT(varchar(40), CAST('2024-01-02T03:04:05.1234567' AS datetime2), 109)": "Jan  2 2024  3:04:05.1234560AM",
    "CONVERT(varchar(40), CAST('2024-01-02T03:04:05.1234567' AS datetime2), 113)": "02 Jan 2024 03:04:05.1234560",
    "CONVERT(varchar(40), CAST('2024-01-02T03:04:05.1234567' AS datetime2), 114)": "03:04:05.1234560",
    "CONVERT(varchar(40), CAST('2024-01-02T03:04:05.1234567' AS datetime2), 120)": "2024-01-02 03:04:05",
    "CONVERT(varchar(40), CAST('2024-01-02T03:04:05.1' AS datetime2(2)), 121)": "2024-01-02 03:04:05.10",
    "CONVERT(varchar(40), CAST('03:04:05.1' AS time(3)), 121)": "03:04:05.100",
    "CONVERT(varchar(40), CAST('03:04:05.1' AS time(3)), 108)": "03:04:05",
    "CONVERT(varchar(40), CAST('2024-01-02' AS datetime2), 126)": "2024-01-02T00:00:00",
    "CONVERT(varchar(40), CAST('2024-01-02T03:04:05.12' AS datetime), 114)": "03:04:05:120",
    "(SELECT CAST('2024-01-02T03:04:05.12' AS datetime2(3)) AS d, CAST('03:04:05.1' AS time(2)) AS t FOR XML RAW)": (
        '<row d="2024-01-02T03:04:05.120" t="03:04:05.10"/>'
    ),
    "JSON_OBJECT('d':CAST('2024-01-02T03:04:05.12' AS datetime2(3)))": '{"d":"2024-01-02T03:04:05.120"}',
    "EOMONTH(CAST('2020-02-03' AS date), 1)": date(2020, 3, 31),
    "ACOS(1)": 0.0,
    "COT(RADIANS(45.0))": pytest.approx(1.0),
    "BIT_COUNT(255)": 8,
    "BIT_COUNT(CAST(-1 AS smallint))": 16,
    "GET_BIT(4, 2)": 1,
    "SET_BIT(0, 2)": 4,
    "SET_BIT(7, 0, 0)": 6,
    "LEFT_SHIFT(12345, 5)": 395040,
    "RIGHT_SHIFT(-1, 1)": 2147483647,
    "1 << 4": 16,
    "GREATEST('6.62', 3.1415, N'7')": Decimal("7.0000"),
    "LEAST(2, NULL, 1)": 1,
    "ISJSON('{\"a\":1}')": 1,
    "ISJSON('1')": 0,
    "ISJSON('1', VALUE)": 1,
    "ISJSON('1', SCALAR)": 1,
    "ISJSON('true', SCALAR)": 0,
    "ISJSON('[', ARRAY)": 0,
    "JSON_ARRAY(1, 'a', NULL)": '[1,"a"]',
    "JSON_ARRAY(1, NULL NULL ON NULL)": "[1,null]",
    "JSON_ARRAY()": "[]",
    "JSON_OBJECT('a':1, 'b':NULL, 'c':JSON_ARRAY(1), 'd':CAST(1 AS bit))": '{"a":1,"b":null,"c":[1],"d":true}',
    "JSON_OBJECT('a':NULL ABSENT ON NULL)": "{}",
    "JSON_PATH_EXISTS('{\"a\":{\"b\":1}}', '$.a.b')": 1,
    "JSON_PATH_EXISTS('{\"a\":1}', '$.c')": 0,
    "@@LOCK_TIMEOUT": -1,
    "@@LANGID": 0,
    "@@TEXTSIZE": 2147483647,
    "@@REMSERVER": None,
    "SESSIONPROPERTY('ANSI_NULLS')": 1,
    "DATABASEPROPERTYEX(DB_NAME(), 'Status')": "ONLINE",
    "COLLATIONPROPERTY('Latin1_General_BIN2', 'CodePage')": 1252,
    "TYPEPROPERTY('datetime2', 'Scale')": 7,
    "TYPEPROPERTY('tinyint', 'Precision')": 3,
    "SERVERPROPERTY('IsClustered')": "0",
    "CURSOR_STATUS('global', 'nowhere')": -3,
    "CONTEXT_INFO()": None,
    "ROWCOUNT_BIG()": 1,
    "SUSER_NAME(SUSER_ID('nobody'))": None,
}


def test_the_values_are_those_of_sql_server(shop: sb.Database) -> None:
    rows = shop.execute_tsql("SELECT 1 SELECT " + ",\n".join(VALUES)).rows
    wrong = {text: got for (text, wanted), got in zip(VALUES.items(), rows[0], strict=True) if got != wanted}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("TRANSLATE('a', 'ab', 'c')", 9828),
        ("DATEFROMPARTS(2010, 13, 1)", 289),
        ("DATETIMEFROMPARTS(2010, 1, 1, 24, 0, 0, 0)", 289),
        ("DATETRUNC(weekday, GETDATE())", 9810),
        ("DATE_BUCKET(day, 0, GETDATE())", 9834),
        ("ASIN(2)", 3623),
        ("SQRT(-1)", 3623),
        ("LOG(0)", 3623),
        ("LEFT_SHIFT(1.5, 1)", 8116),
        ("ABS(NEWID())", 8116),
        ("LEFT('a', -1)", 537),
        ("RIGHT('a', -1)", 536),
        ("BASE64_DECODE('a*')", 9803),
        ("(SELECT value FROM STRING_SPLIT('a', 'bc'))", 214),
        ("JSON_PATH_EXISTS('{', '$')", 13609),
    ],
)
def test_invalid_arguments_have_sql_servers_error_number(shop: sb.Database, text: str, number: int) -> None:
    with pytest.raises(TsqlError) as error:
        shop.execute_tsql(f"SELECT {text}")
    assert error.value.number == number


def test_generate_series_and_string_split_return_rows(shop: sb.Database) -> None:
    assert shop.execute_tsql("SELECT value FROM GENERATE_SERIES(1, 7, 3) ORDER BY value").rows == [(1,), (4,), (7,)]
    assert shop.execute_tsql("SELECT g.value FROM GENERATE_SERIES(3, 1) AS g").rows == [(3,), (2,), (1,)]
    assert shop.execute_tsql("SELECT SUM(n) FROM GENERATE_SERIES(0.5, 2, 0.5) s(n)").rows == [(Decimal("5.0"),)]
    split = "SELECT s.ordinal, s.value FROM STRING_SPLIT(N'c,a,b', N',', 1) AS s WHERE ordinal > 1 ORDER BY s.value"
    assert shop.execute_tsql(split).rows == [(2, "a"), (3, "b")]
    assert shop.execute_tsql("SELECT * FROM STRING_SPLIT('a b', ' ')").rows == [("a",), ("b",)]


def test_figures_of_a_group_and_of_a_window(shop: sb.Database) -> None:
    numbers = "(VALUES (1, 2), (1, 4), (2, 9)) AS t(g, n)"
    figures = f"SELECT VAR(n), VARP(n), STDEVP(n), APPROX_COUNT_DISTINCT(g) FROM {numbers} WHERE g = 1"
    assert shop.execute_tsql(figures).rows == [(2.0, 1.0, 1.0, 1)]
    assert shop.execute_tsql(
        f"SELECT n, CUME_DIST() OVER (ORDER BY n), PERCENT_RANK() OVER (ORDER BY n), VARP(n) OVER (PARTITION BY g) "
        f"FROM {numbers} ORDER BY n"
    ).rows == [(2, pytest.approx(1 / 3), 0.0, 1.0), (4, pytest.approx(2 / 3), 0.5, 1.0), (9, 1.0, 1.0, 0.0)]
    text = f"SELECT STRING_AGG(n, '+') WITHIN GROUP (ORDER BY n DESC) FROM {numbers}"
    assert shop.execute_tsql(text).rows == [("9+4+2",)]


SHAPES = """
CREATE TABLE dbo.Shapes (
    Id int IDENTITY(5, 10) PRIMARY KEY, Area decimal(9, 3) NULL, Kind nvarchar(20) NOT NULL, Twice AS Area * 2)
INSERT dbo.Shapes (Area, Kind) VALUES (1.5, N'square')
CREATE SEQUENCE dbo.Numbers AS int
GO
CREATE PROCEDURE dbo.Draw AS SELECT 1
GO
CREATE FUNCTION dbo.Both (@a int) RETURNS TABLE AS RETURN (SELECT @a AS a)
"""


def test_names_and_properties(instance: sb.Instance) -> None:
    shapes = instance.database("Shapes", create=True)
    shapes.execute_tsql(SHAPES)
    asked = {
        "COL_NAME(OBJECT_ID('dbo.Shapes'), 2)": "Area",
        "COLUMNPROPERTY(OBJECT_ID('dbo.Shapes'), 'Area', 'Precision')": 9,
        "COLUMNPROPERTY(OBJECT_ID('dbo.Shapes'), 'Area', 'Scale')": 3,
        "COLUMNPROPERTY(OBJECT_ID('dbo.Shapes'), 'Kind', 'AllowsNull')": 0,
        "COLUMNPROPERTY(OBJECT_ID('dbo.Shapes'), 'Kind', 'Precision')": 20,
        "COLUMNPROPERTY(OBJECT_ID('dbo.Shapes'), 'Id', 'IsIdentity')": 1,
        "COLUMNPROPERTY(OBJECT_ID('dbo.Shapes'), 'Twice', 'IsComputed')": 1,
        "COLUMNPROPERTY(OBJECT_ID('dbo.Shapes'), 'Nothing', 'Scale')": None,
        "IDENT_SEED('dbo.Shapes')": 5,
        "IDENT_INCR('dbo.Shapes')": 10,
        "IDENT_CURRENT('dbo.Shapes')": 5,
        "OBJECTPROPERTY(OBJECT_ID('dbo.Shapes'), 'TableHasIdentity')": 1,
        "OBJECTPROPERTY(OBJECT_ID('dbo.Shapes'), 'TableHasPrimaryKey')": 1,
        "OBJECTPROPERTY(OBJECT_ID('dbo.Draw'), 'IsProcedure')": 1,
        "OBJECTPROPERTY(OBJECT_ID('dbo.Both'), 'IsInlineFunction')": 1,
        "OBJECTPROPERTYEX(OBJECT_ID('dbo.Draw'), 'BaseType')": "P",
        "OBJECT_DEFINITION(OBJECT_ID('dbo.Draw'))": "CREATE PROCEDURE dbo.Draw AS SELECT 1",
    }
    (row,) = shapes.execute_tsql("SELECT " + ", ".join(asked)).rows
    assert {text: got for (text, wanted), got in zip(asked.items(), row, strict=True) if got != wanted} == {}


def test_a_session_has_context_info_and_cursor_status(shop: sb.Database) -> None:
    rows = shop.execute_tsql("SET CONTEXT_INFO 0x0102 SELECT CONTEXT_INFO(), DATALENGTH(CONTEXT_INFO())").rows
    assert rows == [(b"\1\2" + bytes(126), 128)]
    states = shop.execute_tsql(
        "SET LOCK_TIMEOUT 1500 DECLARE c CURSOR FOR SELECT 1 UNION ALL SELECT 2 "
        "DECLARE @before int = CURSOR_STATUS('global', 'c') OPEN c "
        "SELECT @before, CURSOR_STATUS('global', 'C'), @@CURSOR_ROWS, @@LOCK_TIMEOUT CLOSE c DEALLOCATE c"
    ).rows  # fmt: skip
    assert states == [(-1, 1, 2, 1500)]


def test_a_common_table_expression_may_be_called_as_a_function(shop: sb.Database) -> None:
    text = "WITH Space (n) AS (SELECT 1), Sign (m) AS (SELECT 2) SELECT n, m FROM Space, Sign"
    assert shop.execute_tsql(text).rows == [(1, 2)]
