"""Habits of people who write for SQL Server: each case is a piece of a script with its output."""

from __future__ import annotations

from datetime import datetime, time
from decimal import Decimal

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.statement_errors import TsqlError
from tsql_support import output_of, rows, scalar

D = Decimal


# ---------------------------------------------------------------- constraints, columns, tables


def test_defaults_are_called_as_they_were_named(db: sb.Database) -> None:
    db.execute_tsql("""
    CREATE TABLE Kept (a int CONSTRAINT DF_Kept_a DEFAULT 5, b int DEFAULT (7), c datetime NOT NULL)
    ALTER TABLE Kept ADD CONSTRAINT DF_Kept_c DEFAULT GETDATE() FOR c
    ALTER TABLE Kept ADD d nvarchar(10) NOT NULL CONSTRAINT DF_Kept_d DEFAULT N'x' WITH VALUES""")
    assert rows(db, """SELECT name, is_system_named, COL_NAME(parent_object_id, parent_column_id) FROM sys.default_constraints
        WHERE parent_object_id = OBJECT_ID('Kept') AND is_system_named = 0 ORDER BY name""") == [
        ("DF_Kept_a", 0, "a"), ("DF_Kept_c", 0, "c"), ("DF_Kept_d", 0, "d")
    ]  # fmt: skip
    assert scalar(db, "SELECT name FROM sys.objects WHERE type = 'D' AND name LIKE 'DF[_][_]Kept[_][_]b[_][_]%'")
    assert scalar(db, "SELECT OBJECT_NAME(OBJECT_ID('dbo.DF_Kept_c', 'D'))") == "DF_Kept_c"
    assert output_of(db, "ALTER TABLE Kept ADD DEFAULT 1 FOR a") == [1781, 1750]
    assert (
        output_of(db, "IF OBJECT_ID('DF_Kept_c') IS NOT NULL ALTER TABLE Kept DROP CONSTRAINT DF_Kept_c, DF_Kept_a")
        == []
    )
    db.execute_tsql("""
    DECLARE @name sysname, @sql nvarchar(max)
    SELECT @name = d.name FROM sys.default_constraints d JOIN sys.columns c ON c.default_object_id = d.object_id
    WHERE d.parent_object_id = OBJECT_ID('Kept') AND c.name = 'b'
    SET @sql = N'ALTER TABLE dbo.Kept DROP CONSTRAINT ' + QUOTENAME(@name)
    EXEC (@sql)
    EXEC sp_rename 'Kept.d', 'e', 'COLUMN'
    ALTER TABLE Kept ALTER COLUMN e nvarchar(20) NOT NULL""")
    assert rows(db, "SELECT name FROM sys.default_constraints WHERE parent_object_id = OBJECT_ID('Kept')") == [
        ("DF_Kept_d",)
    ]
    db.execute_tsql("INSERT Kept (c) VALUES ('20240101'); ALTER TABLE Kept DROP CONSTRAINT DF_Kept_d")
    assert rows(db, "SELECT a, b, e FROM Kept") == [(None, None, "x")]
    assert output_of(db, "ALTER TABLE Kept DROP CONSTRAINT DF_Kept_d") == [3728, 3727]


def test_computed_columns_stand_where_they_are_written(db: sb.Database) -> None:
    db.execute_tsql("""
    CREATE TABLE Calculated (a int, b AS a + 1, c AS (UPPER(d)) PERSISTED, d varchar(10) NOT NULL, e int UNIQUE (a, d))
    INSERT Calculated VALUES (1, 'y', 2)""")
    assert rows(db, "SELECT * FROM Calculated") == [(1, 2, "Y", "y", 2)]
    assert output_of(db, "ALTER TABLE Calculated ADD f AS GETDATE()") == [40515]
    assert output_of(db, "ALTER TABLE Calculated ADD g AS (a * 2); SELECT g FROM Calculated") == [[(2,)]]


def test_select_into_keeps_the_types(db: sb.Database) -> None:
    db.execute_tsql("""
    CREATE TABLE Source (a bit, b tinyint, c money, d nchar(5), e smalldatetime, f varchar(20) NOT NULL, g decimal(9,3),
        h sql_variant, i xml, j sysname, k rowversion, n int IDENTITY(5, 1))
    INSERT Source (a, b, c, d, e, f, g, h, i, j) VALUES (1, 200, 2.5, N'ab', '2024-02-03 04:05', 'x', 1.5, 7, '<a/>', 'n')
    SELECT * INTO Copy FROM Source
    SELECT s.a, s.d + 'x' AS dd, 1.5 AS e INTO #joined FROM Source s JOIN Source t ON s.a = t.a""")
    assert rows(db, """SELECT c.name, TYPE_NAME(c.user_type_id), c.max_length, c.is_nullable, c.is_identity FROM sys.columns c
        WHERE c.object_id = OBJECT_ID('Copy') AND c.name <> 'k' ORDER BY c.column_id""") == [
        ("a", "bit", 1, 1, 0), ("b", "tinyint", 1, 1, 0), ("c", "money", 8, 1, 0), ("d", "nchar", 10, 1, 0),
        ("e", "smalldatetime", 4, 1, 0), ("f", "varchar", 20, 0, 0), ("g", "decimal", 5, 1, 0),
        ("h", "sql_variant", 8, 1, 0), ("i", "xml", -1, 1, 0), ("j", "sysname", 256, 0, 0), ("n", "int", 4, 0, 1),
    ]  # fmt: skip
    assert output_of(db, "UPDATE Copy SET b = b + 100") == [220]
    assert rows(db, "SELECT h, SQL_VARIANT_PROPERTY(h, 'BaseType'), d, DATALENGTH(d) FROM Copy") == [
        (7, "int", "ab   ", 10)
    ]
    assert output_of(
        db, "INSERT Copy (f, j, k) VALUES ('y', 'm', 0x01); SELECT MAX(n), SCOPE_IDENTITY() FROM Copy"
    ) == [[(6, 6)]]


def test_temporary_tables_may_have_any_name(db: sb.Database) -> None:
    script = """
    CREATE TABLE #inner (i int); INSERT INTO #inner VALUES (3)
    SELECT x.i FROM #inner AS x JOIN #inner y ON x.i = y.i
    UPDATE #inner SET i = 4; SELECT * INTO #left FROM #inner; SELECT i FROM #left; DROP TABLE IF EXISTS #left, #inner
    IF OBJECT_ID('tempdb..##everywhere') IS NOT NULL DROP TABLE ##everywhere
    EXEC ('CREATE TABLE ##everywhere (a int); INSERT ##everywhere VALUES (1)')
    SELECT a FROM ##everywhere; DROP TABLE ##everywhere"""
    assert output_of(db, script) == [[(3,)], [(4,)], [(1,)]]


def test_the_sign_of_an_escape_is_one(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Said (v varchar(10)); INSERT Said VALUES ('50%'), ('500'), ('5_0')")
    found = "DECLARE @sign nchar(1) = N'~'; SELECT v FROM Said WHERE v LIKE '%~%' ESCAPE @sign OR v LIKE '_~_%' ESCAPE @sign"
    assert sorted(rows(db, found)) == [("50%",), ("5_0",)]
    for sign in ("''", "'~~'"):
        assert output_of(db, f"SELECT v FROM Said WHERE v LIKE '%~%' ESCAPE {sign}") == [506]
        assert output_of(
            db, f"DECLARE @sign varchar(5) = {sign}; SELECT v FROM Said WHERE v LIKE '%~%' ESCAPE @sign"
        ) == [506]


def test_errors_name_the_kind_of_a_missing_object(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Above (id int PRIMARY KEY); CREATE TABLE Below (id int REFERENCES Above (id))")
    for script, number, text in (
        ("DROP DATABASE nope", 3701, "the database 'nope'"),
        ("DROP INDEX ix ON nope", 3701, "the index 'nope.ix'"),
        ("DROP INDEX nope.ix", 3701, "the index 'nope.ix'"),
        ("TRUNCATE TABLE dbo.Above", 4712, "'dbo.Above'"),
        ("SELECT * FROM [far].[db].[dbo].[t]", 7202, "'far'"),
        ("SELECT STRING_AGG('a', ',') OVER () FROM Above", 4113, "STRING_AGG"),
    ):
        with pytest.raises(sb.TsqlError) as error:
            db.execute_tsql(script)
        assert (error.value.number, text in error.value.text) == (number, True), script


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("2147483648 * 2", D(4294967296)),
        ("SQL_VARIANT_PROPERTY(2147483648, 'Precision')", 10),
        ("3000000000 / 7", D("428571428.571428")),
        ("CAST(3000000000 AS bigint) / 7", 428571428),
        ("2 / 3.0", D("0.666666")),
        ("-5 / 3.0", D("-1.666666")),
        ("CAST(ROUND(12.345, 2) AS varchar(10))", "12.350"),
        ("SIGN(-3)", -1),
        ("ISNUMERIC('$') + ISNUMERIC('-') + ISNUMERIC('e')", 2),
        ("CHECKSUM('a') - CHECKSUM('a')", 0),
        ("HASHBYTES('SHA1', 'abc')", bytes.fromhex("a9993e364706816aba3e25717850c26c9cd0d89d")),
        ("HASHBYTES('SHA', REPLICATE('a', 200))", bytes.fromhex("e61cfffe0d9195a525fc6cf06ca2d77119c24a40")),
        ("SUSER_SNAME(0x01)", "sa"),
        ("CONVERT(varchar(19), CAST('2024-01-01 12:30:29.998' AS smalldatetime), 120)", "2024-01-01 12:30:00"),
        ("CONVERT(varchar(19), CAST(CAST('2024-01-01 23:59:30' AS datetime) AS smalldatetime), 120)", "2024-01-02 00:00:00"),
        ("CAST(COALESCE(NULL, 2, 1.5) AS varchar(9))", "2.0"),
        ("CAST(CASE WHEN 1 = 0 THEN 1.25 ELSE 3 END AS varchar(9))", "3.00"),
        ("HAS_DBACCESS('master')", 1),
        ("HAS_DBACCESS('nowhere')", None),
        ("FORMAT(1234567.891, 'N2')", "1,234,567.89"),
        ("FORMAT(1234.5, 'C', 'en-US')", "$1,234.50"),
        ("FORMAT(-5.5, 'C')", "($5.50)"),
        ("FORMAT(-1234567.8, '#,##0.00')", "-1,234,567.80"),
        ("FORMAT(-0.001, 'N2')", "0.00"),
        ("FORMAT(-0.004, 'C')", "$0.00"),
        ("FORMAT(-0.00001, 'P')", "0.00%"),
        ("FORMAT(-0.001, '0.00')", "0.00"),
        ("FORMAT(-0.4, 'F0')", "0"),
        ("FORMAT(-0.006, 'N2')", "-0.01"),
        ("FORMAT(-7, 'D3')", "-007"),
        ("FORMAT(7, '000')", "007"),
        ("FORMAT(0.5, '0.##')", "0.5"),
        ("FORMAT(0.256, 'P')", "25.60%"),
        ("FORMAT(12.5, '0%')", "1250%"),
        ("FORMAT(255, 'X4')", "00FF"),
        ("FORMAT(CAST('20240305' AS date), 'd', 'en-US')", "3/5/2024"),
        ("FORMAT(CAST('2024-03-05 14:07:09' AS datetime), 'dddd, MMM d, yyyy h:mm:ss tt')", "Tuesday, Mar 5, 2024 2:07:09 PM"),
        ("FORMAT(CAST('2024-03-05 00:07:09.12' AS datetime), 'ddMMyyyyHHmmssfff H')", "05032024000709120 0"),
        ("FORMAT(CAST('2024-03-05 14:07' AS datetime), 'G')", "3/5/2024 2:07:00 PM"),
        ("FORMAT(CAST('20241215' AS date), '''Day'' d')", "Day 15"),
        ("FORMAT(CAST('20241215' AS date), '''zK'' yyyy')", "zK 2024"),
    ],
)  # fmt: skip
def test_values(db: sb.Database, expression: str, expected: object) -> None:
    assert scalar(db, f"SELECT {expression}") == expected


def test_a_variable_of_smalldatetime_has_no_seconds(db: sb.Database) -> None:
    assert output_of(db, "DECLARE @s smalldatetime = '2024-01-01 12:30:45'; PRINT CONVERT(varchar(19), @s, 120)") == [
        "2024-01-01 12:31:00"
    ]


def test_other_cultures_are_refused(db: sb.Database) -> None:
    assert output_of(db, "SELECT FORMAT(1, 'N', 'de-DE')") == [40515]


@pytest.mark.parametrize("mask", ["yyyy-MM-dd zzz", "HH:mm:ssK", "yyyy gg", "ss.FFF"])
def test_parts_of_moments_that_are_not_there_are_refused(db: sb.Database, mask: str) -> None:
    assert output_of(db, f"SELECT FORMAT(CAST('20240305' AS date), '{mask}')") == [40515]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT AVG(v * 1.0) FROM (VALUES (1), (1), (0)) t(v)", [(D("0.666666"),)]),
        ("SELECT TOP 1 AVG(v * 1.0) OVER () FROM (VALUES (1), (1), (0)) t(v)", [(D("0.666666"),)]),
        ("SELECT CHECKSUM_AGG(v) FROM (VALUES (1), (2), (7)) t(v)", [(4,)]),
        (
            "SELECT DISTINCT k, PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY v) OVER (PARTITION BY k), PERCENTILE_DISC(0.5) "
            "WITHIN GROUP (ORDER BY v DESC) OVER (PARTITION BY k) FROM (VALUES (1, 10), (1, 20), (2, 5), (2, NULL)) t(k, v) ORDER BY k",
            [(1, 15.0, 20), (2, 5.0, 5)],
        ),
        ("SELECT k, JSON_OBJECTAGG(k:v), JSON_ARRAYAGG(v ORDER BY v DESC) FROM (VALUES ('a', 1)) t(k, v) GROUP BY k", [("a", '{"a":1}', "[1]")]),
        ("SELECT JSON_ARRAYAGG(v ORDER BY v), JSON_ARRAYAGG(v ORDER BY v NULL ON NULL) FROM (VALUES (1), (NULL)) t(v)", [("[1]", "[null,1]")]),
        ("SELECT JSON_OBJECTAGG('k':v ABSENT ON NULL), JSON_ARRAYAGG(v) FROM (VALUES (NULL)) t(v)", [("{}", "[]")]),
        ("SELECT JSON_ARRAYAGG(v) FROM (VALUES (1)) t(v) WHERE v > 1", [(None,)]),
        (
            "WITH r AS (SELECT *, 0 AS depth FROM (VALUES (1, NULL), (2, 1), (3, 2)) t(id, boss) WHERE boss IS NULL UNION ALL "
            "SELECT t.*, r.depth + 1 FROM (VALUES (1, NULL), (2, 1), (3, 2)) t(id, boss) JOIN r ON t.boss = r.id) SELECT * FROM r ORDER BY id",
            [(1, None, 0), (2, 1, 1), (3, 2, 2)],
        ),
        ("SELECT number FROM master..spt_values WHERE type = 'P' AND number BETWEEN 1 AND 2", [(1,), (2,)]),
        ("SELECT 'x' AS [processing-instruction(pi)], 'c' AS [comment()], 1 AS [a] FOR XML PATH('r')", [("<r><?pi x?><!--c--><a>1</a></r>",)]),
    ],
)  # fmt: skip
def test_queries(db: sb.Database, query: str, expected: list[tuple[object, ...]]) -> None:
    assert rows(db, query) == expected


def test_a_text_is_collected_from_parts_of_moments(db: sb.Database) -> None:
    assert output_of(db, """
    SELECT DATEADD(day, n, '20240131') AS moment, n INTO #Days FROM (VALUES (0), (1)) v(n)
    DECLARE @s VARCHAR(99) = ''
    SELECT @s = @s + DATENAME(mm, moment) + CAST(DATEPART(dd, moment) AS VARCHAR(9)) + '-' + CAST(DATEDIFF(hh, '20240131', moment) AS VARCHAR(9))
        + ';' FROM #Days ORDER BY n DESC
    PRINT @s
    """) == ["February1-24;January31-0;"]  # fmt: skip


def test_apply_takes_a_table_too(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Sizes (size int); INSERT Sizes VALUES (1), (2)")
    made = "DECLARE @none TABLE (a int); SELECT 'x' AS c INTO #Colours; "
    assert rows(db, made + "SELECT c, size FROM #Colours CROSS APPLY dbo.Sizes s WHERE s.size > 1") == [("x", 2)]
    assert rows(db, made + "SELECT size, c FROM Sizes CROSS APPLY #Colours ORDER BY size") == [(1, "x"), (2, "x")]
    assert rows(db, made + "SELECT size, n.a FROM Sizes OUTER APPLY @none n WHERE size = 2") == [(2, None)]
    assert rows(db, made + "SELECT size, n.a FROM Sizes CROSS APPLY @none AS n") == []


def test_a_temporary_table_may_be_named_like_a_recursive_expression(db: sb.Database) -> None:
    assert rows(db, """SELECT id, boss INTO #Staff FROM (VALUES (1, NULL), (2, 1), (3, 2)) v(id, boss);
    WITH Staff AS (SELECT id, 0 AS depth FROM #Staff WHERE boss IS NULL
        UNION ALL SELECT s.id, Staff.depth + 1 FROM #Staff s JOIN Staff ON s.boss = Staff.id)
    SELECT id, depth FROM Staff ORDER BY id""") == [(1, 0), (2, 1), (3, 2)]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("SELECT PERCENTILE_CONT(1.5) WITHIN GROUP (ORDER BY v) OVER () FROM (VALUES (1)) t(v)", 10751),
        ("SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY v) OVER () FROM (VALUES ('a')) t(v)", 8117),
        ("SELECT PERCENTILE_CONT(0.5) FROM (VALUES (1)) t(v)", 10753),
        ("WITH r AS (SELECT 1 AS n UNION ALL SELECT * FROM r) SELECT COUNT(*) FROM r OPTION (MAXRECURSION 10)", 530),
        ("SELECT a FROM Db.dbo.Nothing TABLESAMPLE (101 PERCENT)", 498),
    ],
)
def test_queries_that_are_wrong(db: sb.Database, query: str, number: int) -> None:
    assert output_of(db, query) == [number]


def test_tables_are_sampled(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Sampled (a int); INSERT Sampled VALUES (1), (2)")
    assert scalar(db, "SELECT COUNT(*) FROM Sampled TABLESAMPLE (100 PERCENT)") == 2
    assert scalar(db, "SELECT COUNT(*) FROM dbo.Sampled AS s TABLESAMPLE SYSTEM (1000 ROWS) REPEATABLE (5)") == 2
    assert scalar(db, "SELECT COUNT(*) FROM Sampled TABLESAMPLE (0)") == 0


# ---------------------------------------------------------------- the catalog, monitoring


def test_xml_of_a_schema_collection_is_xml(db: sb.Database) -> None:
    script = """
    CREATE TABLE Typed (id int, a xml(dbo.Forms), b xml(CONTENT dbo.Forms), c xml (DOCUMENT [Forms]))
    INSERT Typed VALUES (1, '<r><n>7</n></r>', NULL, NULL)
    DECLARE @x xml(dbo.Forms); SELECT @x = a FROM Typed; SELECT @x.value('(/r/n)[1]', 'int')"""
    assert output_of(db, script) == [[(7,)]]


def test_dbo_may_be_said_to_grant(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Granted (a int)")
    assert (
        output_of(
            db, "GRANT SELECT ON [dbo].[Granted] TO [public] AS [dbo]; REVOKE SELECT ON Granted FROM public AS dbo"
        )
        == []
    )
    assert output_of(db, "GRANT SELECT ON Granted TO public AS nobody") == [40515]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT '1' AS a UNION ALL SELECT 2 ORDER BY a DESC", [(2,), (1,)]),
        ("SELECT 2.50 AS a UNION SELECT '1' ORDER BY a", [(D("1.00"),), (D("2.50"),)]),
        ("SELECT 1 AS a, NULL AS b UNION ALL SELECT 2, NULL UNION ALL SELECT 3, 5 UNION SELECT '4', '6' ORDER BY a",
         [(1, None), (2, None), (3, 5), (4, 6)]),
        ("SELECT a FROM (SELECT NULL AS a UNION ALL SELECT NULL UNION ALL SELECT 7) x ORDER BY a",
         [(None,), (None,), (7,)]),
        ("SELECT NULL UNION ALL SELECT 'a'", [(None,), ("a",)]),
        ("SELECT 1 EXCEPT SELECT '1'", []),
        ("SELECT 'x' UNION ALL SELECT 2", 245),
    ],
)  # fmt: skip
def test_queries_of_several_types_are_joined(db: sb.Database, query: str, found: object) -> None:
    """Numbers and dates win over strings, and NULL is of any type."""
    assert output_of(db, query) == [found]


def test_a_query_fills_columns_of_other_types(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Filled (Id int, N int, S varchar(9))")
    db.execute_tsql("INSERT Filled SELECT '1', NULL, 'x' INSERT TOP (2) Filled (S, N, Id) SELECT NULL, NULL, '2'")
    assert rows(db, "SELECT Id, N, S FROM Filled ORDER BY Id") == [(1, None, "x"), (2, None, None)]
    db.execute_tsql("DROP TABLE Filled")


def test_a_query_that_was_prepared_follows_its_table(db: sb.Database) -> None:
    seen = "SELECT * FROM Shifting"
    assert output_of(db, f"""
    CREATE TABLE Shifting (a int); INSERT Shifting VALUES (7); {seen}; {seen}
    ALTER TABLE Shifting ALTER COLUMN a varchar(9); {seen}
    BEGIN TRAN; INSERT Shifting VALUES ('b'); ALTER TABLE Shifting ADD b int; {seen}; COMMIT
    DROP TABLE Shifting; CREATE TABLE Shifting (c bit); {seen}
    """) == [[(7,)], [(7,)], [("7",)], [("7", None), ("b", None)], []]  # fmt: skip


def test_a_column_cannot_become_shorter_than_its_values(db: sb.Database) -> None:
    db.execute_tsql(
        "CREATE TABLE Narrow (a varchar(20), b bit, c int, d datetime); INSERT Narrow VALUES ('abcdef', 1, 12345, '20240203')"
    )
    for change in ("a varchar(3)", "c varchar(2)"):
        assert output_of(db, f"ALTER TABLE Narrow ALTER COLUMN {change}") == [8152]
    db.execute_tsql("""ALTER TABLE Narrow ALTER COLUMN a nvarchar(6) ALTER TABLE Narrow ALTER COLUMN b varchar(5)
    ALTER TABLE Narrow ALTER COLUMN d varchar(30)""")
    assert rows(db, "SELECT a, b, c, d FROM Narrow") == [("abcdef", "1", 12345, "Feb  3 2024 12:00AM")]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("DATEADD(day, DATEDIFF(day, 0, '20240203 18:30'), 0)", datetime(2024, 2, 3)),
        ("DATEADD(mm, DATEDIFF(mm, 0, CAST('20240203' AS datetime)) + 1, -1)", datetime(2024, 2, 29)),
        ("YEAR(0) + MONTH(31)", 1902),
        ("CAST(CAST('20200102 18:00' AS datetime) AS float)", 43830.75),
        ("CAST(FLOOR(CAST(CAST('20200102 18:00' AS datetime) AS float)) AS datetime)", datetime(2020, 1, 2)),
        ("CAST(CAST('20200102 18:00' AS datetime) AS int)", 43831),
        ("CAST(CAST('20200102 06:00' AS datetime) AS decimal(9, 2))", D("43830.25")),
        ("1 + CAST('20200102' AS datetime)", datetime(2020, 1, 3)),
        ("CAST('9999-12-31 23:59:59.9999999' AS datetime2(3))", datetime(9999, 12, 31, 23, 59, 59, 999000)),
        ("CAST('20200102 23:59:59.9999' AS datetime2(0))", datetime(2020, 1, 3)),
        ("CAST('23:59:59.9999999' AS time(0))", time(0)),
        ("LEN(0x010a1a)", 3),
        ("LEN(CAST('ab' AS varbinary(9)))", 2),
    ],
)
def test_numbers_are_days_and_days_numbers(db: sb.Database, expression: str, expected: object) -> None:
    assert scalar(db, f"SELECT {expression}") == expected


def test_the_last_moment_of_all_is_kept(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Valid (Id int, Until datetime2(0) DEFAULT '9999-12-31 23:59:59.9999999'); INSERT Valid (Id) VALUES (1)
    DECLARE @until datetime2(2) = '9999-12-31 23:59:59.9999999'; SELECT Until, @until FROM Valid
    """) == [[(datetime(9999, 12, 31, 23, 59, 59), datetime(9999, 12, 31, 23, 59, 59, 990000))]]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("SELECT CAST(SYSDATETIME() AS int)", 529),
        ("SELECT * FROM (SELECT 1 + 1) d", 8155),
        ("SELECT COUNT(*) FROM (SELECT 1 AS a, 2) d", 8155),
        ("WITH c AS (SELECT MAX(object_id) FROM sys.objects) SELECT * FROM c", 8155),
        ("EXEC sp_who @loginame = NULL, 'x'", 119),
        ("DECLARE @said varchar(50) = 'DROP PROCEDURE Nothing'; EXEC @said", 2812),
        ("TRUNCATE TABLE NotThere", 4701),
        ("TRUNCATE TABLE nowhere.NotThere", 4701),
        ("DROP DATABASE master", 3708),
    ],
)
def test_refused_idioms_have_sql_servers_error_number(db: sb.Database, script: str, number: int) -> None:
    with pytest.raises(TsqlError) as error:
        db.execute_tsql(script)
    assert error.value.number == number


def test_columns_of_two_queries_have_room_for_both(db: sb.Database) -> None:
    db.execute_tsql("""
    SELECT 'a' AS s, 1 AS n, CAST('20240203' AS date) AS d, 0x01 AS b INTO Roomy
    UNION ALL SELECT 'abcdef', 2.55, CAST('20240203 10:00' AS datetime), 0x010203""")
    assert rows(db, "SELECT s, n, d, b FROM Roomy ORDER BY n") == [
        ("a", D("1.00"), datetime(2024, 2, 3), b"\x01"), ("abcdef", D("2.55"), datetime(2024, 2, 3, 10), b"\x01\x02\x03")
    ]  # fmt: skip


def test_unique_columns_hold_one_null(db: sb.Database) -> None:
    db.execute_tsql("""
    CREATE TABLE Rare (a int UNIQUE, b int, c int, UNIQUE (b, c), s sysname NULL)
    CREATE TABLE Rarer (a int, b int); CREATE UNIQUE INDEX One ON Rarer (a); CREATE UNIQUE INDEX Two ON Rarer (b) WHERE b IS NOT NULL
    INSERT Rare (b, c) VALUES (1, NULL); INSERT Rarer (a) VALUES (NULL)""")
    assert output_of(db, "INSERT Rare (b, c) VALUES (2, NULL)") == [2627]
    assert output_of(db, "INSERT Rare (a, b, c) VALUES (1, 1, NULL)") == [2627]
    assert output_of(db, "INSERT Rarer (a) VALUES (NULL)") == [2601]
    assert output_of(db, "INSERT Rarer (a) VALUES (1)") == []
    assert output_of(db, "DECLARE @t TABLE (a int UNIQUE); INSERT @t VALUES (NULL); INSERT @t VALUES (NULL)") == [2627]


def test_sysname_takes_no_null_of_itself(db: sb.Database) -> None:
    assert output_of(db, "CREATE TABLE Called (a int, b sysname, c sysname NULL); INSERT Called (a) VALUES (1)") == [
        515
    ]
    assert output_of(db, "INSERT Called (a, b) VALUES (1, 'x')") == []


def test_update_may_set_variables_alone(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Wondered (a int IDENTITY, b int); INSERT Wondered (b) VALUES (10), (20)
    DECLARE @v int, @w int = 5
    UPDATE Wondered SET @v = b WHERE a = 2; UPDATE Wondered SET @w = @w + b WHERE a = 1; SELECT @v, @w, SUM(b) FROM Wondered
    UPDATE Wondered SET @w = b = @w + b
    SELECT b FROM Wondered ORDER BY a""") == [[(20, 15, 30)], 40515, [(10,), (20,)]]  # fmt: skip


def test_a_compound_assignment_is_of_the_column_that_is_set(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Held (Id int, Qty int); CREATE TABLE Sent (Id int, Qty int); INSERT Held VALUES (1, 1); INSERT Sent VALUES (1, 10)
    UPDATE h SET Qty += s.Qty FROM Held h JOIN Sent s ON s.Id = h.Id
    MERGE Held AS t USING Sent AS s ON t.Id = s.Id WHEN MATCHED THEN UPDATE SET Qty -= s.Qty * 2;
    SELECT Qty FROM Held""") == [[(-9,)]]  # fmt: skip


def test_dates_after_the_last_are_refused(db: sb.Database) -> None:
    assert output_of(db, "SELECT DATEADD(year, 150, CAST('99001226' AS datetime))") == [517]
    assert output_of(db, "SELECT CAST('10000-01-01' AS datetime2)") == [242]


def test_values_of_data_are_apart(db: sb.Database) -> None:
    names = "(VALUES ('a', 'x'), ('b', NULL), ('c', 'z')) v (n, m)"
    assert (
        scalar(db, f"SELECT REPLACE((SELECT n AS [data()] FROM {names} ORDER BY n FOR XML PATH('')), ' ', ', ')")
        == "a, b, c"
    )
    assert (
        scalar(db, f"SELECT n AS [data()], m AS [data()] FROM {names} FOR XML PATH('r')")
        == "<r>a x</r><r>b</r><r>c z</r>"
    )
    assert (
        scalar(db, f"SELECT n AS 's/data()', m AS 's/data()' FROM {names} WHERE n = 'a' FOR XML PATH('r')")
        == "<r><s>a x</s></r>"
    )
    assert scalar(db, f"SELECT n AS [data()], ';' FROM {names} FOR XML PATH('')") == "a;b;c;"


def test_a_view_with_names_knows_its_types(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Papers (a int, b xml, c datetime); INSERT Papers VALUES (1, '<a>7</a>', '20240203')
    GO
    CREATE VIEW Named (Id, Doc, Moment, Ten) AS SELECT a, b, c, a * 10 FROM Papers
    GO
    SELECT Doc.value('(/a)[1]', 'int'), Moment + 1, Ten FROM Named
    SELECT Id, Doc FROM Named FOR XML PATH('r')
    """) == [[(7, datetime(2024, 2, 4), 10)], [("<r><Id>1</Id><Doc><a>7</a></Doc></r>",)]]  # fmt: skip


def test_a_document_of_no_rows_is_no_row(db: sb.Database) -> None:
    assert output_of(db, """
    SELECT 1 AS a WHERE 1 = 0 FOR XML PATH('r'); SELECT @@ROWCOUNT
    SELECT 1 AS a WHERE 1 = 0 FOR JSON PATH
    DECLARE @x xml = (SELECT 1 AS a WHERE 1 = 0 FOR XML PATH('r')); SELECT @x
    """) == [[], [(0,)], [], [(None,)]]  # fmt: skip


def test_offsets_are_not_left_out(db: sb.Database) -> None:
    assert scalar(db, "SELECT CAST(CAST('2024-02-03 10:00 -9:30' AS datetimeoffset) AS varchar(40))") == (
        "2024-02-03 10:00:00.0000000 -09:30"
    )
    assert output_of(db, "SELECT CAST('2024-02-03 10:00 +8' AS datetimeoffset)") == [241]
    assert scalar(db, "SELECT DATEDIFF(week, '18991230', '18991231')") == 1


def test_a_statement_that_fails_has_touched_no_row(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Once (a int PRIMARY KEY); INSERT Once VALUES (1); INSERT Once VALUES (1)
    SELECT @@ERROR, @@ROWCOUNT""") == [2627, [(2627, 0)]]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("SELECT z.m FROM sys.objects", "z.m"),
        ("SELECT objects.name FROM sys.objects AS o", "objects.name"),
        ("SELECT o.name FROM sys.objects AS o JOIN sys.columns AS c ON [x].[object_id] = c.object_id", "x.object_id"),
    ],
)
def test_unbound_identifiers_are_refused(db: sb.Database, query: str, name: str) -> None:
    with pytest.raises(TsqlError, match=f'The multi-part identifier "{name}" could not be bound') as error:
        db.execute_tsql(query)
    assert error.value.number == 4104


def test_money_is_added_up_over_windows(db: sb.Database) -> None:
    assert rows(db, """
    SELECT m * 100.0 / SUM(m) OVER (), SUM(m + 1) OVER (ORDER BY n), AVG(m) OVER (), SUM(CASE WHEN n > 1 THEN m ELSE 0 END) OVER ()
    FROM (VALUES (1, CAST(10 AS money)), (2, CAST(30 AS money))) v (n, m) ORDER BY n""") == [
        (D("25"), D("11"), D("20"), D("30")), (D("75"), D("42"), D("20"), D("30"))
    ]  # fmt: skip


def test_a_table_of_numbers_is_counted(db: sb.Database) -> None:
    assert output_of(db, """
    SELECT TOP 3 IDENTITY(int, 1, 1) AS n INTO Tally FROM sys.objects a CROSS JOIN sys.objects b; SELECT n FROM Tally ORDER BY n
    SELECT IDENTITY(int, -5, 1) AS n, v INTO #below FROM (VALUES ('a'), ('b')) t (v); INSERT #below (v) VALUES ('c')
    SELECT MIN(n), MAX(n) FROM #below""") == [[(1,), (2,), (3,)], [(-5, -3)]]  # fmt: skip


def test_hints_may_stand_behind_values(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Hinted (a int); INSERT Hinted VALUES (1), (2) OPTION (MAXDOP 1, QUERYTRACEON 460)
    SELECT COUNT(*) FROM Hinted""") == [[(2,)]]  # fmt: skip
    assert output_of(db, "INSERT Hinted VALUES (3) OPTION (NONSENSE 3)") == [102]


def test_check_knows_not_the_columns_that_merge_leaves_out(db: sb.Database) -> None:
    findings = check("MERGE Unseen AS t USING Seen AS s ON t.a = s.a WHEN NOT MATCHED THEN INSERT VALUES (s.a, s.b);")
    assert [each.verdict for each in findings] == [Verdict.RUNS]


def test_a_temporary_table_hides_that_of_the_caller(db: sb.Database) -> None:
    db.execute_tsql("""
    CREATE PROCEDURE Inner_ AS INSERT INTO #shared (a) SELECT a + 1 FROM #shared; SELECT COUNT(*) FROM #shared
    GO
    CREATE PROCEDURE Outer_ AS
    CREATE TABLE #shared (a int); INSERT #shared VALUES (1); EXEC Inner_; SELECT 7 AS b INTO #made; SELECT b FROM #made
    """)
    assert output_of(db, """
    CREATE TABLE #shared (a int, z int DEFAULT 5); CREATE TABLE #made (c int)
    EXEC Outer_; EXEC Outer_; INSERT #shared (a) VALUES (9); SELECT a, z FROM #shared; SELECT c FROM #made
    EXEC ('CREATE TABLE #shared (q int); SELECT q FROM #shared'); EXEC Inner_
    """) == [[(2,)], [(7,)], [(2,)], [(7,)], [(9, 5)], [], [], [(2,)]]  # fmt: skip


def test_keywords_of_changes_in_statements_that_create_temporary_tables(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE #kept (a int PRIMARY KEY, [update] varchar(9)); SELECT a FROM #kept
    SELECT 'insert' AS w INTO #words; SELECT w FROM #words;
    WITH one AS (SELECT 1 AS a) SELECT a INTO #ones FROM one; SELECT a FROM #ones;
    WITH one AS (SELECT 2 AS a) INSERT INTO #ones SELECT a FROM one; SELECT COUNT(*) FROM #ones
    """) == [[], [("insert",)], [(1,)], [(2,)]]  # fmt: skip
