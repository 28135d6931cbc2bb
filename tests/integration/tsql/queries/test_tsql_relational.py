"""Queries in T-SQL, translated and run by PostgreSQL: their results are those of SQL Server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.model.zero_character import ZERO
from servicebroker.tsql.known_columns import COLUMNS_SQL, columns_of
from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translator import Translation, tables_of, translate, translate_expression
from servicebroker.tsql.types import DATETIME, INT, NVARCHAR, UNIQUEIDENTIFIER, VARBINARY, XML, SqlType
from tsql_support import output_of

HANDLE = UUID("1b6f7c8e-0f52-4d5e-9f3b-2a4c6e8d0f12")
ORDERS = '<o xmlns="urn:o" id="7"><l n="1">a</l><l n="2">b&amp;c</l></o>'
VARIABLES: dict[str, tuple[SqlType, object]] = {
    "@n": (INT, 5),
    "@none": (INT, None),
    "@s": (NVARCHAR, "text"),
    "@h": (UNIQUEIDENTIFIER, HANDLE),
    "@hs": (NVARCHAR, str(HANDLE).upper()),
    "@b": (VARBINARY, "héllo €".encode("utf-16-le")),
    "@d": (DATETIME, datetime(2026, 11, 21, 19, 8, 7, 123000)),
    "@x": (XML, '<r><i k="1"><n>one</n></i><i k="2"><n>two</n><n>zwei</n></i></r>'),
    "@o": (XML, ORDERS),
    "@j": (NVARCHAR, '{"a":{"b":[1,{"c":"x"}]},"items":[{"id":1,"name":"p"},{"id":2,"name":"q"}]}'),
}
FUNCTIONS = {"@@rowcount": 3, "db_name": "Shop", "error_message": "oops"}


class Session:
    """A minimal session: runs translated T-SQL on one connection."""

    def __init__(self, url: str, database: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.RawCursor)
        self.connection.execute("set timezone = 'UTC'")
        self.connection.execute(f"set servicebroker.database = '{database}'")  # type: ignore[arg-type]
        self.database = database
        self.tables: dict[str, str] = {}
        self.identity_insert: str | None = None

    def scope(self, text: str = "") -> Scope:
        scope = Scope(
            self.database,
            {name: sql_type for name, (sql_type, _) in VARIABLES.items()},
            self.tables,
            FUNCTIONS,
            identity_insert=self.identity_insert,
        )
        if text:
            rows = self.connection.execute(COLUMNS_SQL, [list(tables_of(text, scope))]).fetchall()
            scope.columns = columns_of(rows)
        return scope

    def value(self, name: str) -> object:
        return VARIABLES[name][1] if name in VARIABLES else FUNCTIONS[name]

    def run(self, text: str) -> Any:
        """Return the rows of a result, or the count of rows."""
        return self.perform(translate(text, self.scope(text)))

    def perform(self, translation: Translation) -> Any:
        for lock in translation.before:
            self.connection.execute(lock.sql, [self.value(name) for name in lock.parameters])
        if translation.kind == "ddl":
            psycopg.ClientCursor(self.connection).execute(translation.sql)  # type: ignore[arg-type]
            return None
        cursor = self.connection.execute(translation.sql, [self.value(name) for name in translation.parameters])
        return cursor.fetchall() if translation.kind in ("rows", "assign") else cursor.rowcount

    def evaluate(self, text: str) -> object:
        translation = translate_expression(text, self.scope())
        parameters = [self.value(name) for name in translation.parameters]
        rows = self.connection.execute(translation.sql, parameters).fetchall()
        return rows[0][0]


@pytest.fixture(scope="module")
def session(instance: sb.Instance) -> Iterator[Session]:
    instance.database("Shop", create=True).create_queue("WorkQueue")
    session = Session(instance.url, "Shop")
    yield session
    session.connection.close()


@pytest.fixture
def items(session: Session) -> Iterator[Session]:
    session.run(
        "CREATE TABLE Items (Id int IDENTITY(10, 5) NOT NULL CONSTRAINT PK_Items PRIMARY KEY CLUSTERED, "
        "Name nvarchar(20) NULL, Price money NOT NULL DEFAULT (0), Handle uniqueidentifier NULL, Body varbinary(max), "
        "Doc xml, IsOpen bit NOT NULL DEFAULT 1, Twice AS (Price * 2) PERSISTED, Made datetime DEFAULT GETDATE())"
    )
    yield session
    session.run("DROP TABLE Items")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # strings
        ("'a' + N'b' + CAST(@n AS varchar(5))", "ab5"),
        ("@s + NULL", None),
        ("CONCAT('a', 1, NULL, @n)", "a15"),
        ("LEN('ab  ')", 2),
        ("DATALENGTH(N'abc')", 6),
        ("SUBSTRING('hello', 0, 3)", "he"),
        ("SUBSTRING(0x010203, 2, 1)", b"\x02"),
        ("LEFT('abc', 2) + RIGHT('abc', 1)", "abc"),
        ("CHARINDEX('l', 'hello', 4)", 4),
        ("CHARINDEX('z', 'hello')", 0),
        ("PATINDEX('%l[lo]%', 'hello')", 3),
        ("REPLACE('aXbX', 'X', '-')", "a-b-"),
        ("STUFF('abcdef', 2, 3, 'X')", "aXef"),
        ("REPLICATE('ab', 2) + SPACE(1) + REVERSE('ab')", "abab ba"),
        ("LTRIM('  a ') + RTRIM(' b ') + TRIM(' c ')", "a  bc"),
        ("UPPER('aä') + LOWER('B')", "AÄb"),
        ("STR(3.14159, 6, 2)", "  3.14"),
        ("QUOTENAME('a]b')", "[a]]b]"),
        ("NCHAR(8364) + CHAR(65)", "€A"),
        ("FORMAT(1234.5, 'N2')", "1,234.50"),
        # LIKE
        ("'abc' LIKE 'a[a-c]_'", True),
        ("'5%x' LIKE '5!%_' ESCAPE '!'", True),
        ("'5%x' LIKE '55%_' ESCAPE @n AND 'a%' NOT LIKE CONCAT('a', @n, '%x') ESCAPE @n", True),
        ("'%' LIKE '55%' ESCAPE @none", None),
        ("'a_c' LIKE 'a[_]c' AND 'abc' NOT LIKE 'a[^b]c'", True),
        ("'a.c' LIKE 'a.c' AND 'abc' NOT LIKE 'a.c'", True),
        # numbers
        ("5 / 2", 2),
        ("-5 % 3", -2),
        ("CAST(5.0 / 2 AS varchar(20))", "2.500000"),
        ("CAST(-5.7 AS int)", -5),
        ("CAST(1.255 AS decimal(5, 2))", Decimal("1.26")),
        ("CAST('12' AS int) + 1", 13),
        ("'5' + 1", 6),
        ("ROUND(2.567, 1, 1)", Decimal("2.5")),
        ("POWER(2, 10)", 1024),
        ("5 & 4 | 2 ^ 1", 7),
        ("ISNUMERIC('1.5e3') + ISNUMERIC('x')", 1),
        ("CAST(CAST(1234567890.0 AS float) AS varchar(30))", "1.23457e+009"),
        # null, and what depends on conditions
        ("ISNULL(@none, 3) + 1", 4),
        ("COALESCE(NULL, @none, @n)", 5),
        ("NULLIF(@n, 5)", None),
        ("IIF(@n > 3, 'big', 'small')", "big"),
        ("CASE @n WHEN 5 THEN 'five' ELSE 'other' END", "five"),
        ("CHOOSE(2, 'a', 'b')", "b"),
        ("@none = 1 OR @none <> 1", None),
        ("@n BETWEEN 5 AND 6 AND @n IN (1, 5) AND NOT @n = 6 AND @n !< 5", True),
        # times
        ("DATEADD(month, 1, '2026-01-31')", datetime(2026, 2, 28)),
        ("DATEDIFF(day, '2026-01-01 23:59', '2026-01-02 00:01')", 1),
        ("DATEDIFF(year, '2025-12-31', '2026-01-01')", 1),
        ("DATEPART(weekday, '2026-11-21')", 7),
        ("DATENAME(month, @d) + DATENAME(weekday, @d)", "NovemberSaturday"),
        ("EOMONTH(@d)", date(2026, 11, 30)),
        ("@d + 1", datetime(2026, 11, 22, 19, 8, 7, 123000)),
        ("CONVERT(varchar(30), @d, 121)", "2026-11-21 19:08:07.123"),
        ("CONVERT(varchar(8), @d, 112)", "20261121"),
        ("CAST(@d AS nvarchar(30))", "Nov 21 2026  7:08PM"),
        ("ISDATE('2026-13-01') + ISDATE('20261101')", 1),
        # bytes, identifiers
        ("CAST(@b AS nvarchar(max))", "héllo €"),
        ("CAST(N'é€' AS varbinary(max))", "é€".encode("utf-16-le")),
        ("CAST('é€' AS varbinary(max))", "é€".encode("cp1252")),
        ("CAST(CAST('é€' AS varbinary(10)) AS varchar(10))", "é€"),
        ("CAST(N'🙂' AS varbinary(8))", "🙂".encode("utf-16-le")),
        ("CAST(0x3DD842DE AS nvarchar(4))", "🙂"),
        ("CAST(0x00004100 AS nvarchar(10)) + CAST(0x4200 AS varchar(10))", f"{ZERO}AB{ZERO}"),
        ("CONVERT(varchar(20), 0xDEAD, 1) + CONVERT(varchar(20), 0xBEEF, 2)", "0xDEADBEEF"),
        ("CONVERT(varbinary(4), '0xDEAD', 1)", b"\xde\xad"),
        ("CAST(12345 AS varbinary(4))", b"\x00\x0009"),
        ("CAST(0x3039 AS int)", 12345),
        ("CAST(CAST(@h AS binary(16)) AS uniqueidentifier)", HANDLE),
        ("CAST(@h AS nvarchar(36)) = @hs AND @h = @hs AND @hs = @h", True),
        ("HASHBYTES('MD5', 'a')", bytes.fromhex("0cc175b9c0f1b6a831c399e269772661")),
        ("TRY_CAST('x' AS int)", None),
        ("TRY_CONVERT(datetime, '2026-99-01')", None),
        ("TRY_PARSE('2026-99-01' AS date USING 'en-US')", None),
        ("PARSE('1,234' AS int) + PARSE(' -1,000.50 ' AS decimal(9, 2) USING 'en-US')", Decimal("233.50")),
        ("PARSE('($1,000.5)' AS money) + PARSE('$2' AS smallmoney)", Decimal("-998.5")),
        ("TRY_PARSE('($5)' AS int)", None),
        ("PARSE(N'17' AS int) + PARSE('2' AS int USING '')", 19),
        ("PARSE('2026-11-02' AS date)", date(2026, 11, 2)),
        ("PARSE(CAST(NULL AS varchar(9)) AS int)", None),
        ("CAST('1/2/50' AS date)", date(1950, 1, 2)),
        ("CAST('690203' AS date)", date(1969, 2, 3)),
        ("YEAR('1 Feb 49') + YEAR('2055-02-03')", 2049 + 2055),
        ("CONVERT(date, '55.02.01', 2)", date(1955, 2, 1)),
        ("LEFT(0x4142, 1) + UPPER(0x61)", "AA"),
        # XML
        ("@x.value('(/r/i/n)[2]', 'nvarchar(10)')", "two"),
        ("@x.value('/r[1]/i[2]/@k', 'int')", 2),
        ("@x.value('(/r/i)[last()]/@k', 'int')", 2),
        ("@x.value('(//n[.=\"zwei\"])[1]', 'nvarchar(9)')", "zwei"),
        ("@x.value('(/r/i[@k = sql:variable(\"@none\")])[1]', 'nvarchar(9)')", None),
        ("@x.value('count(/r/i)', 'int')", 2),
        ("@x.exist('/r/i[n=\"two\" and not(@z)]')", 1),
        ("@x.exist('/r/i[@k > 5]')", 0),
        ("@x.query('/r/i[2]/n')", "<n>two</n><n>zwei</n>"),
        ("@o.value('declare namespace z=\"urn:o\"; (/z:o/z:l[@n=2])[1]', 'nvarchar(20)')", "b&c"),
        ("@o.value('declare default element namespace \"urn:o\"; (/o/@id)[1]', 'int')", 7),
        ("@o.value('(/o/@id)[1]', 'int')", None),
        ("CAST(CAST(N'<?xml version=\"1.0\"?><a>é</a>' AS xml) AS nvarchar(max))", "<a>é</a>"),
        # JSON
        ("JSON_VALUE(@j, '$.a.b[1].c')", "x"),
        ("JSON_QUERY(@j, '$.a.b')", '[1,{"c":"x"}]'),
        ("JSON_VALUE(@j, '$.a')", None),
        ("JSON_VALUE(JSON_MODIFY(@j, '$.a', 5), '$.a')", "5"),
        ("JSON_MODIFY('{\"b\":1.10,\"a\":[1, 2]}', '$.b', NULL)", '{"a":[1, 2]}'),
        ("JSON_MODIFY('{\"b\":1.10,\"a\":[1, 2]}', '$.a[1]', 'x\"y')", '{"b":1.10,"a":[1,"x\\"y"]}'),
        ("JSON_MODIFY('{\"b\":1.10,\"a\":[1]}', 'append $.a', JSON_QUERY('{ }'))", '{"b":1.10,"a":[1,{ }]}'),
        ("JSON_MODIFY('{\"b\":1}', '$.a', 'n')", '{"b":1,"a":"n"}'),
        ("JSON_MODIFY('{\"b\":1}', '$.a.c', 'n')", '{"b":1}'),
        ("JSON_MODIFY('{}', 'append $.a', 1)", '{"a":[1]}'),
        ("JSON_MODIFY('[1]', 'strict $[0]', NULL)", "[null]"),
        ("ISJSON(@j) + ISJSON('x')", 1),
        # objects
        ("DB_ID('shop') IS NOT NULL AND DB_ID('nowhere') IS NULL", True),
        ("OBJECT_ID('dbo.WorkQueue', 'SQ') IS NOT NULL AND OBJECT_ID('workqueue', 'U') IS NULL", True),
        ("OBJECT_ID(N'[Shop].[dbo].[WorkQueue]') = OBJECT_ID('WorkQueue')", True),
        ("OBJECT_NAME(OBJECT_ID('workqueue'))", "WorkQueue"),
        ("@@ROWCOUNT + 1", 4),
        ("ERROR_MESSAGE() + '!'", "oops!"),
    ],
)
def test_value_of_an_expression(session: Session, text: str, expected: object) -> None:
    assert session.evaluate(text) == expected


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("CAST('abc' AS int)", "S0245"),
        ("CAST('99999999999' AS int)", "S0248"),
        ("CAST(300 AS tinyint)", "S0220"),
        ("CAST('x' AS uniqueidentifier)", "S8169"),
        ("CAST('2026-99-99' AS datetime)", "S0242"),
        ("CAST('1.x' AS decimal(5, 2))", "S8114"),
        ("CAST(N'<a><b></a>' AS xml)", "S9436"),
        ("CAST(N'<a>' AS xml)", "S9400"),
        ("CAST(N'<!DOCTYPE a [<!ENTITY x \"y\">]><a>&x;</a>' AS xml)", "S6359"),
        ("CAST(N'<a>&x;</a>' AS xml)", "S9448"),
        ("CAST(REPLICATE(CAST('<a>' AS nvarchar(max)), 200) AS xml)", "S6335"),
        ("LEFT('abc', -1)", "S0537"),
        ("JSON_VALUE('{', '$.a')", "SB000"),
    ],
)
def test_error_number_of_a_failed_conversion(session: Session, text: str, state: str) -> None:
    with pytest.raises(psycopg.Error) as error:
        session.evaluate(text)
    assert error.value.sqlstate == state


_ATTRIBUTES = " ".join(f"b{number}='1'" for number in range(20_000))
_COSTLY = {
    "comments": ("<!--" * 20_000, "S9412"),
    "sections": ("<![CDATA[" * 20_000, "S9423"),
    "instructions": ("<a/>" + "<?b " * 20_000, "S9451"),
    "attributes": (f"<a {_ATTRIBUTES}/>", ""),
    "namespaces": (f"<a {_ATTRIBUTES.replace('b', 'xmlns:b')}/>", ""),
    "references": ("".join(f"&#{number};" for number in range(100, 40_000)), ""),
    "an attribute twice": (f"<a {_ATTRIBUTES} b7='2'/>", "S9437"),
}


@pytest.mark.parametrize("name", _COSTLY)
def test_xml_is_read_in_linear_time(session: Session, name: str) -> None:
    text, state = _COSTLY[name]
    session.connection.execute("set statement_timeout = '8s'")
    try:
        with pytest.raises(psycopg.Error) if state else nullcontext() as error:
            session.connection.execute("select tsql.xml_tree($1)", [text])
    finally:
        session.connection.execute("reset statement_timeout")
    assert (error.value.sqlstate if error else "") == state


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("&#38;lt;&#x26;amp;&lt;&gt;&quot;&apos;&amp;", "&lt;&amp;<>\"'&"),
        ("a&#98;c&#x1F600;", "abc\U0001f600"),
        ("<!-->--><![CDATA[]]]]><?b?>?>x", "]]?>x"),
    ],
)
def test_xml_references_are_decoded_once(session: Session, text: str, value: str) -> None:
    ((decoded,),) = session.connection.execute(
        "select tsql.xml_string(tsql.xml_tree($1))", [f"<a>{text}</a>"]
    ).fetchall()
    assert decoded == value


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("<!-->", "S9424"),
        ("<!--->", "S9424"),
        ("<![CDATA[]>", "S9423"),
        ("<?>", "S9421"),
        ("<a/><!-- -- ", "S9412"),
        ("<a/><?b", "S9451"),
    ],
)
def test_unclosed_xml_is_refused(session: Session, text: str, state: str) -> None:
    with pytest.raises(psycopg.Error) as error:
        session.connection.execute("select tsql.xml_tree($1)", [text])
    assert error.value.sqlstate == state


def test_rows_are_inserted_changed_and_deleted(items: Session) -> None:
    assert items.run("INSERT INTO Items (Name, Handle, Body) VALUES (N'a', @hs, @b), (@n, NULL, NULL)") == 2
    assert items.run("INSERT Items (Name, Price) SELECT Name + '!', '1.5' FROM dbo.Items WHERE Id = 10") == 1
    assert items.run("SELECT Id, name, PRICE, Twice FROM Items ORDER BY Id DESC") == [
        (20, "a!", Decimal("1.5000"), Decimal("3.0000")),
        (15, "5", 0, 0),
        (10, "a", 0, 0),
    ]
    assert items.run("UPDATE Items SET Price += 2, Name = UPPER(Name) WHERE Handle = @hs") == 1
    assert items.run("SELECT Id FROM Items WHERE Body = @b AND CAST(Body AS nvarchar(max)) LIKE N'h_llo%'") == [(10,)]
    assert items.run("DELETE FROM Items WHERE Id > 10") == 2
    assert items.run("SELECT COUNT(*), MAX(Price) FROM Items") == [(1, 2)]


def test_output_returns_old_and_new_values(items: Session) -> None:
    # the last column is the identity, for SCOPE_IDENTITY()
    assert items.run("INSERT Items (Name) OUTPUT inserted.Id, inserted.Name AS N VALUES ('a'), ('b')") == [
        (10, "a", 10),
        (15, "b", 15),
    ]
    assert items.run("UPDATE Items SET Price = Price + 1 OUTPUT deleted.Price, inserted.Price WHERE Id = 10") == [
        (0, 1)
    ]
    items.tables["#gone"] = 'pg_temp."#gone"'
    items.run("CREATE TABLE #gone (Number int, Name nvarchar(9))")
    assert items.run("DELETE TOP (1) Items OUTPUT deleted.Id, deleted.Name INTO #gone WHERE Name = 'a'") == 1
    assert items.run("SELECT * FROM #gone") == [(10, "a")]
    for change, returned in (
        ("INSERT Items (Name) {} OUTPUT inserted.Name VALUES ('c')", [("c", 20)]),  # and the identity
        ("UPDATE Items SET Price = 7 {} OUTPUT deleted.Price, inserted.Price WHERE Id = 15", [(0, 7)]),
        ("DELETE Items {} OUTPUT deleted.Id, deleted.Name WHERE Id = 20", [(20, "c")]),
    ):
        table = "deleted" if change.startswith("DELETE") else "inserted"
        rows = items.run(change.format(f"OUTPUT {table}.Id, {table}.Name INTO #gone"))
        assert [row[: len(returned[0])] for row in rows] == returned
    assert items.run("SELECT Number FROM #gone ORDER BY Number") == [(10,), (15,), (20,), (20,)]
    items.run("DROP TABLE #gone")


def test_update_and_delete_use_a_join(items: Session) -> None:
    items.run("INSERT Items (Name) VALUES ('a'), ('b'), ('c')")
    changed = "UPDATE i SET Price = v.p FROM Items AS i INNER JOIN (VALUES ('a', 5), ('b', 6)) v(n, p) ON v.n = i.Name"
    assert items.run(changed) == 2
    gone = "DELETE i FROM Items i LEFT JOIN (VALUES ('a'), ('b')) v(n) ON v.n = i.Name WHERE v.n IS NULL"
    assert items.run(gone) == 1
    assert items.run("SELECT Name, CAST(Price AS int) FROM Items ORDER BY Name") == [("a", 5), ("b", 6)]


def test_a_variable_accumulates_over_the_rows_of_a_select(items: Session) -> None:
    items.run("INSERT Items (Name, Price) VALUES ('a', 1), ('b', 2), ('c', 3)")
    assert items.run("SELECT @s = @s + ',' + Name, @n = @n + Price FROM Items ORDER BY Id DESC") == [("text,c,b,a", 11)]
    joined = "SELECT @s = COALESCE(@s + '; ', '') + i.Name FROM Items i WHERE i.Price > 1 ORDER BY i.Name"
    assert items.run(joined) == [("text; b; c",)]
    assert items.run("SELECT @s = @s + Name FROM Items WHERE 1 = 0") == [("text",)]
    numbered = "SELECT @n += 1, @s = @s + CAST(@n AS varchar(9)) + Name, @n *= 10 FROM Items ORDER BY Id"
    assert items.run(numbered) == [(611, "text6a61b611c", 6110)]


def test_merge_changes_and_inserts(items: Session) -> None:
    items.run("INSERT Items (Name, Price) VALUES ('a', 1), ('b', 2)")
    text = (
        "MERGE INTO dbo.Items WITH (HOLDLOCK) AS t USING (SELECT 'a' AS n, 5 AS p UNION ALL SELECT 'c', 6) AS s (n, p) "
        "ON t.Name = s.n WHEN MATCHED AND t.Price < 5 THEN UPDATE SET Price = s.p, Name = UPPER(t.Name) "
        "WHEN NOT MATCHED BY TARGET THEN INSERT (Name, Price) VALUES (s.n, s.p);"
    )
    assert items.run(text) == 2
    assert items.run("SELECT Name, CAST(Price AS int) FROM Items ORDER BY Price") == [("b", 2), ("A", 5), ("c", 6)]


def test_update_and_select_assign_to_variables(items: Session) -> None:
    items.run("INSERT Items (Name, Price) VALUES ('a', 4)")
    assert items.run("UPDATE Items SET @n = Price = Price + 1") == [(5,)]
    assert items.run("SELECT TOP 1 @s = Name, @none = Price FROM Items") == [("a", 5)]
    assert items.run("SELECT @n = 9, @none = @n + 1") == [(9, 10)]
    assert items.run("UPDATE Items SET @n = Price *= 1 + 1, Name += 'b'") == [(10,)]
    assert items.run("UPDATE Items SET Price = 0, @n *= 1 + 2") == [(15,)]


def test_an_identity_value_may_be_inserted_with_identity_insert_on(items: Session) -> None:
    items.identity_insert = '"shop_dbo"."items"'
    try:
        items.run("INSERT Items (Id, Name) VALUES (99, 'x')")
    finally:
        items.identity_insert = None
    assert items.run("SELECT Id FROM Items") == [(99,)]
    assert items.evaluate("IDENT_CURRENT('Items')") is not None


def test_select_star_returns_columns_as_they_were_spelled(items: Session) -> None:
    translation = translate("SELECT * FROM items", items.scope("SELECT * FROM items"))
    assert translation.columns is not None
    assert translation.columns[:3] == ("Id", "Name", "Price")
    assert translation.types is not None
    assert str(translation.types[1]) == "nvarchar(20)"


def test_a_string_that_is_too_long_is_refused(items: Session) -> None:
    with pytest.raises(psycopg.errors.StringDataRightTruncation):
        items.run("INSERT Items (Name) VALUES ('a name of more than twenty signs')")


def test_tables_are_altered_and_indexed(items: Session) -> None:
    items.run("ALTER TABLE Items ADD Note nvarchar(5) NULL, Kind char(2) NOT NULL CONSTRAINT DF_Kind DEFAULT 'k'")
    items.run("ALTER TABLE Items ADD CONSTRAINT CK_Price CHECK (Price >= 0)")
    items.run("ALTER TABLE Items ALTER COLUMN Note nvarchar(50) NULL")
    items.run("CREATE UNIQUE NONCLUSTERED INDEX IX_Name ON Items (Name ASC, Price DESC) INCLUDE (Note) WHERE Price > 0")
    items.run("INSERT Items (Name, Note) VALUES ('a', 'longer than five')")
    assert items.run("SELECT Kind, Note FROM Items") == [("k ", "longer than five")]
    with pytest.raises(psycopg.errors.CheckViolation):
        items.run("UPDATE Items SET Price = -1")
    items.run("ALTER TABLE Items DROP CONSTRAINT CK_Price")
    items.run("DROP INDEX IX_Name ON Items")
    items.run("CREATE VIEW Cheap AS SELECT Id, Name AS Title FROM Items WHERE Price < 5")
    assert items.run("SELECT Title FROM Cheap") == [("a",)]
    items.run("DROP VIEW Cheap")
    items.run("TRUNCATE TABLE Items")
    assert items.run("SELECT 1 FROM Items") == []


def test_group_by_windows_cte_and_subqueries_return_their_rows(items: Session) -> None:
    items.run("INSERT Items (Name, Price) VALUES ('a', 1), ('a', 2), ('b', 3)")
    assert items.run("SELECT Name, SUM(Price) AS s FROM Items GROUP BY Name HAVING COUNT(*) > 1") == [("a", 3)]
    assert items.run(
        "WITH r AS (SELECT Name, ROW_NUMBER() OVER (PARTITION BY Name ORDER BY Price DESC) AS n FROM Items) "
        "SELECT Name FROM r WHERE n = 2"
    ) == [("a",)]
    assert items.run("WITH c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 5) SELECT SUM(n) FROM c") == [
        (15,)
    ]
    assert items.run("SELECT TOP 1 WITH TIES Name FROM Items ORDER BY Name") == [("a",), ("a",)]
    assert items.run(
        "SELECT Name AS N FROM Items UNION SELECT 'z' ORDER BY N DESC OFFSET 1 ROWS FETCH NEXT 1 ROWS ONLY"
    ) == [("b",)]
    assert items.run(
        "SELECT i.Name, x.Price FROM Items i OUTER APPLY (SELECT TOP 1 Price FROM Items j WHERE j.Price > i.Price "
        "ORDER BY j.Price) x WHERE i.Price >= 2 ORDER BY i.Price"
    ) == [("a", 3), ("b", None)]
    assert items.run("SELECT STRING_AGG(Name, ',') WITHIN GROUP (ORDER BY Name DESC) FROM Items") == [("b,a,a",)]
    assert items.run("SELECT value FROM STRING_SPLIT('a,b', ',')") == [("a",), ("b",)]
    assert items.run("SELECT AVG(n) FROM (VALUES (1), (2), (4)) v(n)") == [(2,)]
    assert items.run("SELECT DISTINCT Name FROM Items WHERE Name IN (SELECT Name FROM Items WHERE Price > 2)") == [
        ("b",)
    ]
    assert items.run("SELECT 1 WHERE EXISTS (SELECT * FROM Items WHERE Price > ALL (SELECT 2))") == [(1,)]


def test_xml_methods_work_on_columns(items: Session) -> None:
    items.run("INSERT Items (Name, Doc, Body) VALUES ('a', @x, CAST(@x AS varbinary(max)))")
    assert items.run(
        "SELECT i.Name, n.c.value('.', 'nvarchar(9)') FROM Items i CROSS APPLY i.Doc.nodes('//n') AS n(c)"
    ) == [
        ("a", "one"),
        ("a", "two"),
        ("a", "zwei"),
    ]
    assert items.run(
        "SELECT T.c.value('@k', 'int'), U.d.value('.', 'nvarchar(9)') FROM @x.nodes('/r/i') AS T(c) "
        "CROSS APPLY T.c.nodes('n') AS U(d) WHERE T.c.exist('n[2]') = 1"
    ) == [(2, "two"), (2, "zwei")]
    assert items.run("SELECT CAST(Body AS xml).value('(/r/i/n)[1]', 'nvarchar(9)') FROM Items") == [("one",)]
    assert items.run(
        "WITH XMLNAMESPACES (DEFAULT 'urn:o') SELECT @o.value('(/o/l)[2]', 'varchar(9)'), @o.exist('/o/x')"
    ) == [("b&c", 0)]


def test_rows_become_xml_and_json(items: Session) -> None:
    items.run("INSERT Items (Name, Handle) VALUES ('x<y', @h), (NULL, NULL)")
    assert items.run("SELECT Name FROM Items FOR XML RAW") == [('<row Name="x&lt;y"/><row/>',)]
    assert items.run("SELECT Id, Name FROM Items WHERE Id = 10 FOR XML AUTO, ELEMENTS") == [
        ("<Items><Id>10</Id><Name>x&lt;y</Name></Items>",)
    ]
    assert items.run(
        "SELECT Id AS '@id', Name AS 'who/name', Handle AS 'who/handle' FROM Items "
        "FOR XML PATH('item'), ROOT('items'), TYPE"
    ) == [
        (
            f'<items><item id="10"><who><name>x&lt;y</name><handle>{str(HANDLE).upper()}</handle></who></item>'
            '<item id="15"/></items>',
        )
    ]
    assert items.evaluate(
        "STUFF((SELECT ',' + CAST(Id AS varchar(9)) FROM Items FOR XML PATH(''), TYPE)"
        ".value('.', 'varchar(99)'), 1, 1, '')"
    ) == ("10,15")
    assert items.run("SELECT Id, Name AS 'n.m', IsOpen FROM Items FOR JSON PATH, ROOT('r')") == [
        ('{"r":[{"Id":10,"n":{"m":"x<y"},"IsOpen":true},{"Id":15,"IsOpen":true}]}',)
    ]


def test_json_becomes_rows(session: Session) -> None:
    assert session.run("SELECT id, name FROM OPENJSON(@j, '$.items') WITH (id int, name nvarchar(9))") == [
        (1, "p"),
        (2, "q"),
    ]
    assert session.run("SELECT [key], type FROM OPENJSON(@j)") == [("a", 5), ("items", 4)]
    assert session.run(
        "SELECT x.id FROM OPENJSON(@j) o CROSS APPLY OPENJSON(o.value) WITH (id int '$.id') x WHERE o.[key] = 'items'"
    ) == [(1,), (2,)]


def test_select_into_creates_a_temporary_table(session: Session) -> None:
    session.tables["#t"] = 'pg_temp."#t"'
    assert session.run("SELECT 1 AS a, N'x' AS b INTO #t UNION ALL SELECT 2, N'y'") == 2
    assert session.run("SELECT b FROM #t t1 WHERE t1.a = (SELECT MAX(a) FROM #t)") == [("y",)]
    assert session.evaluate("OBJECT_ID('tempdb..#t') IS NOT NULL")
    session.run("DROP TABLE #t")


def test_catalog_views_compare_names_without_case_and_list_tables(items: Session) -> None:
    assert items.run("SELECT name FROM sys.databases WHERE name = N'SHOP'") == [("Shop",)]
    assert items.run("SELECT name FROM sys.tables") == [("Items",)]
    assert items.run(
        "SELECT type FROM sys.objects WHERE object_id = OBJECT_ID(N'[dbo].[items]') AND type IN (N'U')"
    ) == [("U",)]
    assert items.run("SELECT name FROM sys.columns WHERE object_id = OBJECT_ID('Items') AND is_identity = 1") == [
        ("Id",)
    ]
    assert items.run("SELECT TABLE_NAME FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = 'dbo'") == [("Items",)]
    assert items.run("SELECT q.name FROM sys.service_queues q WHERE q.name = 'workqueue'") == [("WorkQueue",)]
    assert items.run("SELECT COUNT(*) FROM WorkQueue WHERE message_type_name = N'x'") == [(0,)]


def test_delete_from_a_queue_is_refused(session: Session) -> None:
    with pytest.raises(psycopg.Error) as error:
        session.run("DELETE FROM WorkQueue")
    assert error.value.sqlstate == "S0416"


def test_two_first_inserters_under_holdlock_make_one_row(items: Session, instance: sb.Instance) -> None:
    other = Session(instance.url, "Shop")
    look = "SELECT Id FROM Items WITH (UPDLOCK, HOLDLOCK) WHERE Handle = @h"
    add = "INSERT Items (Handle) VALUES (@h)"

    def find_or_insert(session: Session, begun: threading.Event | None = None) -> None:
        session.connection.execute("begin")
        if not session.run(look):
            if begun is not None:
                begun.set()
                waiting(session)
            session.run(add)
        session.connection.execute("commit")

    def waiting(session: Session) -> None:
        """Until the other session waits for the key."""
        asked = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        for _ in range(1000):
            if session.connection.execute(asked).fetchone() != (0,):
                return
            session.connection.execute("select pg_sleep(0.005)")
        raise AssertionError("nobody waits")

    begun = threading.Event()
    first = threading.Thread(target=find_or_insert, args=(items, begun))
    first.start()
    assert begun.wait(10)
    find_or_insert(other)
    first.join()
    other.connection.close()
    assert items.run("SELECT COUNT(*) FROM Items") == [(1,)]


def test_readpast_skips_locked_rows(items: Session, instance: sb.Instance) -> None:
    items.run("INSERT Items (Name) VALUES ('a'), ('b')")
    other = Session(instance.url, "Shop")
    other.connection.execute("begin")
    other.run("SELECT * FROM Items WITH (UPDLOCK) WHERE Name = 'a'")
    assert items.run("DELETE TOP (1) FROM Items WITH (ROWLOCK, READPAST) OUTPUT deleted.Name") == [("b",)]
    other.connection.execute("rollback")
    other.connection.close()


def test_recursion_stops_at_maxrecursion(items: Session) -> None:
    numbers = "WITH r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r{}) SELECT {} FROM r"
    assert items.run(numbers.format(" WHERE n < 101", "MAX(n)")) == [(101,)]
    assert items.run(numbers.format("", "TOP (2) n")) == [(1,), (2,)]
    assert items.run(numbers.format(" WHERE n < 200", "MAX(n)") + " OPTION (MAXRECURSION 0)") == [(200,)]
    for text, number in (
        (numbers.format(" WHERE n < 102", "MAX(n)"), 530),
        (numbers.format("", "SUM(n)") + " OPTION (RECOMPILE, MAXRECURSION 5)", 530),
        (numbers.format("", "SUM(n)") + " OPTION (MAXRECURSION 32768)", 310),
    ):
        with pytest.raises((TsqlError, psycopg.Error), match=f"Msg {number},"):
            items.run(text)


def test_a_recursive_query_has_the_types_of_its_anchor(items: Session) -> None:
    text = """
    WITH d (day, y) AS (SELECT CAST('2026-11-02' AS date), 1
                        UNION ALL SELECT DATEADD(day, 1, day), y * 2 FROM d WHERE y < 4),
         p AS (SELECT y, CAST(y AS nvarchar(max)) AS path FROM d WHERE y = 1
               UNION ALL SELECT d.y, p.path + N'/' + CAST(d.y AS nvarchar(9)) FROM d JOIN p ON d.y = p.y * 2)
    SELECT d.day, p.* FROM d JOIN p ON p.y = d.y ORDER BY d.y
    """
    assert items.run(text) == [
        (date(2026, 11, 2), 1, "1"), (date(2026, 11, 3), 2, "1/2"), (date(2026, 11, 4), 4, "1/2/4"),
    ]  # fmt: skip


def test_a_null_in_the_anchor_is_an_int(items: Session) -> None:
    """If the recursive part has another type, the error names the column. A NULL there takes the anchor's type."""
    text = "WITH r (a, n) AS (SELECT {}, 1 UNION ALL SELECT {}, n + 1 FROM r WHERE n < 3) SELECT a FROM r"
    assert items.run(text.format("NULL", "n * 2")) == [(None,), (2,), (4,)]
    assert items.run(text.format("NULL", "a + 1")) == [(None,)] * 3
    assert items.run(text.format("5", "NULL")) == [(5,), (None,), (None,)]
    sized = "CAST('{}' AS VARCHAR(9))"
    rows = [("x",), ("longer",), ("longer",)]
    assert items.run(text.format(sized.format("x"), sized.format("longer"))) == rows
    assert items.run(text.format("NULL", "7, 5 UNION ALL SELECT a")) == [(None,), (7,), (None,), (None,)]
    for first, following in (
        ("NULL", "'x'"),
        ("NULL", "2.5"),
        ("1", "a * 2.5"),
        ("1", "CAST(a AS bigint)"),
        ("'a'", "n"),
        ("'x'", "'longer'"),
    ):
        with pytest.raises(TsqlError, match=r'Msg 240, .* in column "a" of recursive query "r"'):
            items.run(text.format(first, following))


def test_output_names_the_tables_that_are_joined(instance: sb.Instance) -> None:
    depot = instance.database("OutputDepot", create=True)
    assert output_of(depot, """
    CREATE TABLE Kept (Id int, Name varchar(9)); CREATE TABLE Asked (Id int, Why varchar(9))
    INSERT Kept VALUES (1, 'a'), (2, 'b'), (3, 'c'); INSERT Asked VALUES (1, 'old'), (2, 'new')
    DELETE k OUTPUT deleted.Name, q.Why FROM Kept k JOIN Asked q ON q.Id = k.Id WHERE q.Why = 'old'
    UPDATE k SET Name = q.Why OUTPUT deleted.Name, inserted.*, q.*, UPPER(q.Why) AS Loud
    FROM Kept k JOIN Asked q ON q.Id = k.Id
    DECLARE @t TABLE (Id int, Sign char(1))
    DELETE k OUTPUT deleted.Id, v.s INTO @t FROM Kept k CROSS APPLY (VALUES ('x')) v (s) WHERE k.Id = 3
    SELECT * FROM @t
    """) == [[("a", "old")], [("b", 2, "new", 2, "new", "NEW")], [(3, "x")]]  # fmt: skip
