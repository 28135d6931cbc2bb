"""GOTO and the other statements of procedures besides queries."""

from __future__ import annotations

import functools
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError
from tsql_support import error_number, output_of, scalar, texts

GOTO_OUT_OF_BLOCKS = """
DECLARE @n INT = 0
Again: SET @n += 1
WHILE 1 = 1
BEGIN
    BEGIN TRY
        IF @n < 3 GOTO again
        IF @n = 3 GOTO [Out]
        PRINT 'never'
    END TRY
    BEGIN CATCH
        PRINT 'never'
    END CATCH
END
PRINT 'never'
out:
PRINT @n
PRINT ERROR_NUMBER()
"""


def test_goto_goes_on_at_its_label(db: sb.Database) -> None:
    assert texts(db, GOTO_OUT_OF_BLOCKS) == ["3", ""]
    db.execute_tsql(f"CREATE PROCEDURE Leaves AS {GOTO_OUT_OF_BLOCKS}")
    assert texts(db, "EXEC Leaves") == ["3", ""]
    assert texts(db, "SELECT @@VERSION done: PRINT 'x' GOTO finally PRINT 'never' finally: PRINT 'y'") == ["x", "y"]


AT_THE_END = """
BEGIN TRANSACTION
GOTO Undo
COMMIT TRANSACTION
Undo:
    IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION
Done:
"""


def test_a_label_is_no_name_of_the_transaction_before_it(db: sb.Database) -> None:
    assert texts(db, f"IF 1 = 1 BEGIN {AT_THE_END} END PRINT @@TRANCOUNT") == ["0"]
    assert texts(db, f"{AT_THE_END} PRINT @@TRANCOUNT") == ["0"]
    assert texts(db, "BEGIN TRAN COMMIT TRAN after: PRINT @@TRANCOUNT") == ["0"]


def test_goto_in_a_loop_of_its_own_needs_no_depth(db: sb.Database) -> None:
    assert texts(db, "DECLARE @n INT = 0 a: SET @n += 1 IF @n < 3000 GOTO a PRINT @n") == ["3000"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("GOTO nowhere", 133),
        ("a: PRINT 1 a: PRINT 2", 132),
        ("GOTO a IF 1 = 1 BEGIN a: PRINT 1 END", 40515),
        ("GOTO 5", 102),
        ("EXEC ('GOTO a') a: PRINT 1", 133),
    ],
)
def test_goto_without_its_label_is_refused(db: sb.Database, script: str, expected: int) -> None:
    assert error_number(db, script) == expected


def test_a_text_that_cannot_be_read_ends_itself_alone(db: sb.Database) -> None:
    script = """SET XACT_ABORT ON BEGIN TRAN EXEC ('SELECT FROM') PRINT @@ERROR PRINT @@TRANCOUNT COMMIT
    EXEC sp_executesql N'PRINT @x' PRINT 'on'"""
    assert output_of(db, script) == [102, "102", "1", 137, "on"]
    db.execute_tsql("CREATE PROCEDURE Reads @text NVARCHAR(99) AS EXEC (@text) PRINT 'read'")
    assert output_of(db, "EXEC Reads N'SELECT FROM' PRINT 'after'") == [102, "read", "after"]
    assert output_of(
        db, "BEGIN TRY EXEC ('SELECT FROM') PRINT 'never' END TRY BEGIN CATCH PRINT ERROR_NUMBER() END CATCH"
    ) == ["102"]


NOT_ENTERED = """
IF 1 = 0
BEGIN
    DECLARE @Skipped INT = 5
    DECLARE @Rows TABLE (a INT)
END
SET @Skipped = ISNULL(@Skipped, 1) + 1
INSERT @Rows VALUES (@Skipped)
SELECT @n = a FROM @Rows
PRINT @n
GOTO behind
DECLARE @jumped INT
behind:
SET @jumped = 7
PRINT @jumped
"""


def test_a_declaration_counts_from_where_it_is_written(db: sb.Database) -> None:
    """Also in a branch that is not taken, behind a GOTO, and for what a procedure was made of."""
    assert texts(db, f"DECLARE @n INT {NOT_ENTERED}") == ["2", "7"]
    db.execute_tsql(f"CREATE PROCEDURE Skips @n INT AS {NOT_ENTERED}")
    assert texts(db, "EXEC Skips 0") == ["2", "7"]
    loop = "DECLARE @i INT = 0 WHILE @i < 3 BEGIN DECLARE @kept INT DECLARE @t TABLE (a INT) SET @i += 1 "
    assert texts(db, f"{loop} INSERT @t VALUES (1) SET @kept = ISNULL(@kept, 0) + 1 END PRINT @kept") == ["3"]
    assert scalar(db, f"{loop} INSERT @t VALUES (1) END SELECT COUNT(*) FROM @t") == 3


@pytest.mark.parametrize(
    ("script", "expected", "text"),
    [
        ("PRINT 'never' IF 1 = 0 PRINT @Nowhere", 137, 'Must declare the scalar variable "@Nowhere".'),
        ("SET @Late = 1 DECLARE @Late INT", 137, 'Must declare the scalar variable "@Late".'),
        ("PRINT 'never' SELECT * FROM @Gone", 1087, 'Must declare the table variable "@Gone".'),
        ("FETCH ABSOLUTE -2 FROM GLOBAL c INTO @Gone", 137, 'Must declare the scalar variable "@Gone".'),
        ("DECLARE @Twice INT IF 1 = 0 BEGIN DECLARE @TWICE INT END", 134, "The variable name '@TWICE' has already"),
        ("CREATE PROCEDURE Fails AS IF 1 = 0 SET @Nowhere = 1", 137, 'Must declare the scalar variable "@Nowhere".'),
        ("DECLARE @a INT EXEC ('PRINT @a')", 137, 'Must declare the scalar variable "@a".'),
    ],
)
def test_a_variable_that_nothing_declares_stops_its_batch(
    db: sb.Database, script: str, expected: int, text: str
) -> None:
    """Before any of it runs, and in the spelling of the script; check says the same."""
    heard: list[str] = []
    with pytest.raises(sb.TsqlError) as error:
        heard = texts(db, script)
    assert (error.value.number, error.value.text[: len(text)], heard) == (expected, text, [])
    if "EXEC (" not in script:
        assert [str(expected) in finding.note for finding in check(script) if finding.verdict is Verdict.REFUSED] == [
            True
        ]


def test_names_of_parameters_are_no_variables(db: sb.Database) -> None:
    db.execute_tsql("CREATE PROCEDURE Named @p INT AS PRINT @p")
    assert texts(db, "EXEC Named @p = 3 EXEC sp_executesql N'PRINT @x', N'@x INT', @x = 4") == ["3", "4"]
    assert db.execute_tsql("SELECT @given + 1", {"given": 4}).rows == [(5,)]


REFUSED_BY_ITS_TEXT = [
    "CREATE EVENT NOTIFICATION n ON SERVER FOR QUEUE_ACTIVATION TO SERVICE 's', 'current database'",
    "ALTER DATABASE Db SET PARTNER = 'x'",
    "ALTER LOGIN nobody ADD CREDENTIAL c",
    "SET TRANSACTION ISOLATION LEVEL CHAOS",
    "SET SHOWPLAN_XML ON",
    "SET PARSEONLY ON",
    "SET FOO ON",
]


@pytest.mark.parametrize("script", REFUSED_BY_ITS_TEXT)
def test_check_refuses_the_statements_that_the_run_refuses(db: sb.Database, script: str) -> None:
    expected = error_number(db, script)
    assert [(finding.verdict, finding.note.split(":")[0]) for finding in check(script)] == [
        (Verdict.REFUSED, str(expected))
    ]


def test_check_continues_after_an_unreadable_statement() -> None:
    script = """
PRINT 'a'
IF 1 = 1
BEGIN
    PRINT 'b';
    FLY ME TO 'the moon'
    SELECT 1
END
ELSE PRINT 'c'
ALTER INDEX ALL ON Somewhere BOIL
PRINT 'd'
"""
    findings = [(finding.line, finding.statement, finding.verdict is Verdict.REFUSED) for finding in check(script)]
    assert [line for line, _, refused in findings if refused] == [6, 10]
    assert [(line, name) for line, name, refused in findings if not refused] == [
        (2, "PRINT"), (5, "PRINT"), (7, "SELECT"), (9, "PRINT"), (11, "PRINT"),
    ]  # fmt: skip


def test_check_does_the_directives_of_sqlcmd(tmp_path: Path) -> None:
    script = tmp_path / "deploy.sql"
    script.write_text(":on error exit\nPRINT '$(Town)'\n")
    run = functools.partial(CliRunner().invoke, app)
    assert run(["tsql", "check", "-v", "Town=Rome", str(script)]).output == (
        "1 statements: 100.0 % runs (1), 0.0 % differs (0), 0.0 % does not run (0).\n"
    )
    missing = run(["tsql", "check", str(script)])
    assert (missing.exit_code, "'Town' scripting variable not defined" in missing.output) == (1, True)


NEVER = [
    ("SELECT 1\n  SELECT NOSUCH(1, 2)", 195, 3),
    ("IF 1 = 0\n  SELECT * FROM OPENROWSET('a', 'b', 'c')", 40515, 3),
    ("BEGIN TRY SELECT 1 END TRY\nBEGIN CATCH\nSELECT 2 AS\nEND CATCH", 102, 4),
    ("SET PARSEONLY ON", 40515, 2),
    ("DECLARE @t TABLE (a int)\nSELECT a FROM @t WHERE CONTAINS(a, 1)", 40515, 3),
]


@pytest.mark.parametrize(("body", "expected", "line"), NEVER)
def test_a_procedure_that_can_never_run_is_not_made(db: sb.Database, body: str, expected: int, line: int) -> None:
    for kind in ("PROCEDURE Never", "TRIGGER Never ON Watched AFTER INSERT"):
        db.execute_tsql("IF OBJECT_ID('Watched') IS NULL CREATE TABLE Watched (a int)")
        with pytest.raises(sb.TsqlError) as error:
            db.execute_tsql(f"CREATE {kind} AS\n{body}")
        assert (error.value.number, error.value.line, error.value.procedure) == (expected, line, "Never")
        assert db.execute_tsql("SELECT OBJECT_ID('Never')").rows == [(None,)]


def test_a_procedure_may_name_objects_that_do_not_exist_yet(db: sb.Database) -> None:
    db.execute_tsql(
        """
        CREATE TYPE Pairs AS TABLE (a int, b int)
        GO
        CREATE PROCEDURE Early @pairs Pairs READONLY AS
        SELECT p.a, l.b FROM Later l JOIN @pairs p ON p.b = l.b JOIN #mine m ON m.b = l.b
        IF OBJECT_ID('gone') IS NOT NULL DROP ASSEMBLY gone
        GO
        CREATE TABLE Later (b int); INSERT Later VALUES (2)
        """
    )
    script = "CREATE TABLE #mine (b int) INSERT #mine VALUES (2) DECLARE @p Pairs INSERT @p VALUES (1, 2) EXEC Early @p"
    assert db.execute_tsql(script).rows == [(1, 2)]


def test_names_that_are_taken_from_a_subquery_or_are_a_star(db: sb.Database) -> None:
    results = db.execute_tsql("SELECT b = (SELECT 5), [c d] = (SELECT MAX(x) FROM (VALUES (1), (2)) t(x))")
    assert (results.sets[0].columns, results.rows) == (("b", "c d"), [(5, 2)])
    assert db.execute_tsql("SELECT 'a' AS [*], 2 AS b FOR XML PATH('x')").rows == [("<x>a<b>2</b></x>",)]


def test_functions_in_from_need_no_schema(db: sb.Database) -> None:
    db.execute_tsql(
        """
        CREATE FUNCTION Split(@n int) RETURNS @t TABLE (a int) AS BEGIN INSERT @t VALUES (@n), (@n + 1) RETURN END
        GO
        CREATE FUNCTION Twice(@n int) RETURNS TABLE AS RETURN (SELECT @n * 2 AS n)
        """
    )
    query = "SELECT s.a, t.n FROM Split(3) s CROSS APPLY Twice(s.a) t ORDER BY s.a"
    assert db.execute_tsql(query).rows == [(3, 6), (4, 8)]
    query = (
        "SELECT v.n, s.a FROM (VALUES (1), (2)) v(n) OUTER APPLY (SELECT a FROM Split(v.n) WHERE a > 2) s ORDER BY v.n"
    )
    assert db.execute_tsql(query).rows == [(1, None), (2, 3)]
    assert error_number(db, "SELECT * FROM NoSuch(1)") == 208


def test_a_query_reads_the_catalog_of_another_database(db: sb.Database) -> None:
    queues = "SELECT COUNT(*) FROM {}.sys.service_queues WHERE name = 'OnlyHere' AND is_receive_enabled = 'true'"
    db.execute_tsql("CREATE QUEUE OnlyHere")
    both = f"SELECT ({queues.format('msdb')}), ({queues.format('Db')})"
    assert db.execute_tsql(both).rows == [(0, 1)]
    assert db.execute_tsql(f"USE msdb {both}").rows == [(0, 1)]
    assert error_number(db, "SELECT * FROM NoSuch.sys.objects") == 208


CREATED = [
    "CONTAINMENT = NONE ON PRIMARY (NAME = N'a', FILENAME = N'a.mdf') LOG ON (NAME = N'b', FILENAME = N'b.ldf') "
    "WITH CATALOG_COLLATION = DATABASE_DEFAULT, LEDGER = OFF",
    "ON (NAME = a, FILENAME = 'a'), FILEGROUP more CONTAINS FILESTREAM DEFAULT (NAME = c, FILENAME = 'c') "
    "COLLATE Latin1_General_CI_AS WITH FILESTREAM (NON_TRANSACTED_ACCESS = OFF), TRUSTWORTHY ON, DB_CHAINING OFF",
]


@pytest.mark.parametrize("clauses", CREATED)
def test_databases_are_created_with_the_clauses_of_tools(db: sb.Database, clauses: str) -> None:
    db.execute_tsql(f"CREATE DATABASE [Clauses] {clauses}\nGO\nDROP DATABASE [Clauses]")
    assert error_number(db, "CREATE DATABASE Copied AS SNAPSHOT OF Db") == 40515
    assert db.execute_tsql("SELECT DB_ID('Copied'), DB_ID('tempdb'), DB_NAME(1)").rows == [(None, 2, "master")]


def test_exec_behind_an_insert_with_rows_is_a_statement_of_its_own(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Rows (a int)\nGO\nCREATE PROCEDURE Three AS SELECT 3")
    db.execute_tsql(
        "INSERT Rows VALUES (1) EXEC Three INSERT INTO Rows (a) SELECT 2\nEXECUTE Three INSERT Rows EXEC Three"
    )
    assert db.execute_tsql("SELECT a FROM Rows ORDER BY a").rows == [(1,), (2,), (3,)]


REFUSED_SCRIPTS = [
    ("SELECT CAST(1 AS bit) + CAST(1 AS bit)", 402, "bit and bit are incompatible in the add operator"),
    ("SELECT CAST(1 AS bit) - CAST(1 AS bit)", 402, "bit and bit are incompatible in the subtract operator"),
    ("SELECT 2147483647 + 1", 8115, "to data type int."),
    ("DECLARE @b bigint = 9223372036854775807 SET @b += 1", 8115, "to data type bigint."),
    ("TRUNCATE TABLE Shown", 4708, "'shown' because it is not a table"),
    ("ALTER VIEW NotThere AS SELECT 1 AS a", 208, "'NotThere'"),
    ("DECLARE @g uniqueidentifier GET CONVERSATION GROUP @g FROM Nowhere", 208, "'Nowhere'"),
]


@pytest.mark.parametrize(("script", "expected", "words"), REFUSED_SCRIPTS)
def test_refusals_have_sql_servers_number_and_name_the_object(
    db: sb.Database, script: str, expected: int, words: str
) -> None:
    db.execute_tsql("CREATE OR ALTER VIEW Shown AS SELECT 1 AS a")
    with pytest.raises(sb.TsqlError) as error:
        db.execute_tsql(script)
    assert (error.value.number, words in error.value.text) == (expected, True)


def test_a_view_may_ask_which_database_it_is_of(db: sb.Database) -> None:
    db.execute_tsql("CREATE VIEW Asking AS SELECT DB_ID() AS id, DB_NAME() AS name WHERE DB_ID() > 4")
    results = db.execute_tsql("SELECT a.* FROM Asking a JOIN sys.databases d ON d.database_id = a.id")
    assert results.rows == [(db.database_id + 3, db.name)]
    db.execute_tsql("CREATE VIEW AskingMore AS SELECT @@SPID AS spid, @@SERVERNAME AS server")
    assert db.execute_tsql("SELECT spid - @@SPID, server FROM AskingMore").rows == [(0, "servicebroker")]
    assert error_number(db, "CREATE VIEW Never AS SELECT USER_NAME() AS who") == 40515
    assert error_number(db, "DECLARE @n int = 1 EXEC ('CREATE VIEW Never AS SELECT @n AS n')") in (111, 137)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a AS Limit FROM Told",
        "SELECT a AS Minus FROM Told",
        "SELECT a At FROM Told",
        "SELECT Told.a FROM Told (TABLOCKX, HOLDLOCK)",
        "SELECT a FROM Told (READPAST, HOLDLOCK)",
        "SELECT a FROM Told (SERIALIZABLE)",
        "SELECT a FROM Told (UPDLOCK HOLDLOCK)",
        "SELECT t.a FROM Told (NOLOCK) t",
        "SELECT t.a FROM dbo.Told (UPDLOCK, ROWLOCK) AS t WHERE t.a = 3",
        "SELECT Told.* FROM Told",
        "SELECT Db..Told.* FROM Db..Told",
        "SELECT (((SELECT COUNT(*) FROM Told) + 2))",
        "SELECT a FROM Told WHERE a IN (((SELECT 2) + 1))",
        "SELECT x.a FROM (((SELECT 3 AS a) AS x CROSS JOIN Told))",
    ],
)
def test_queries_that_are_written_in_unusual_ways(db, query):
    db.execute_tsql("IF OBJECT_ID('Told') IS NULL CREATE TABLE Told (a int); DELETE Told; INSERT Told VALUES (3)")
    assert db.execute_tsql(query).rows == [(3,)]


def test_hints_may_stand_without_with(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Hinted (a int) INSERT Hinted VALUES (1)")
    query = "SELECT h.a FROM Hinted h (NOLOCK) JOIN dbo.Hinted (UPDLOCK, ROWLOCK) ON Hinted.a = h.a"
    assert db.execute_tsql(query).rows == [(1,)]
    assert db.execute_tsql("SELECT COUNT(*) FROM Hinted (NOLOCK) WHERE a IN (SELECT a FROM Hinted(NOLOCK))").rows == [
        (1,)
    ]


SALES = "(VALUES ('a', 1, 1.00), ('a', 2, 2.00), ('b', 1, 4.00), ('b', 1, NULL)) AS Sales (Kind, Day, Price)"


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        (
            f"SELECT Kind, SUM(Price) FROM {SALES} GROUP BY Kind WITH ROLLUP ORDER BY GROUPING(Kind), Kind",
            [("a", 3), ("b", 4), (None, 7)],
        ),
        (
            f"SELECT Kind, Day, COUNT(*), GROUPING_ID(Kind, Day) AS id FROM {SALES} "
            "GROUP BY ROLLUP(Kind, Day) ORDER BY id, 1, 2",
            [("a", 1, 1, 0), ("a", 2, 1, 0), ("b", 1, 2, 0), ("a", None, 2, 1), ("b", None, 2, 1), (None, None, 4, 3)],
        ),
        (
            f"SELECT Kind, Day, SUM(Price) FROM {SALES} "
            "GROUP BY CUBE(Kind, Day) HAVING SUM(Price) > 3.5 ORDER BY 3, 1, 2",
            [("b", None, 4), ("b", 1, 4), (None, 1, 5), (None, None, 7)],
        ),
        (
            f"SELECT CASE WHEN GROUPING(Kind) = 1 THEN 'all' ELSE Kind END, COUNT(*) FROM {SALES} "
            "GROUP BY GROUPING SETS ((Kind), (Kind, Day), ()) HAVING COUNT(*) > 2",
            [("all", 4)],
        ),
    ],
)
def test_a_query_may_group_in_several_ways_at_once(db: sb.Database, query: str, rows: list[Any]) -> None:
    assert db.execute_tsql(query).rows == rows
    assert [finding.verdict for finding in check(query)] == [Verdict.RUNS]


def test_grouping_needs_a_grouped_expression(db: sb.Database) -> None:
    types = ", ".join(
        f"SQL_VARIANT_PROPERTY({each}, 'BaseType')" for each in ("GROUPING(Kind)", "GROUPING_ID(Kind, Day)")
    )
    assert set(db.execute_tsql(f"SELECT {types} FROM {SALES} GROUP BY CUBE(Kind, Day)").rows) == {("tinyint", "int")}
    assert error_number(db, f"SELECT GROUPING(Price) FROM {SALES} GROUP BY ROLLUP(Kind)") == 8161
    assert error_number(db, f"SELECT Day FROM {SALES} GROUP BY ROLLUP(Kind)") == 8120


CURED = """
CREATE TABLE Moved (Id int PRIMARY KEY, At datetime2(0) NULL, Who uniqueidentifier NULL, Price money NULL)
CREATE TABLE Beside (Id int PRIMARY KEY REFERENCES Moved)
CREATE INDEX ix_recent ON Moved (Id) WHERE At >= '2024-01-01'
GO
CREATE VIEW Dear AS SELECT Id, Price FROM Moved WHERE Price > 10 WITH CHECK OPTION
GO
CREATE VIEW Paired AS SELECT m.Id FROM Moved m JOIN Beside b ON b.Id = m.Id WITH CHECK OPTION
GO
INSERT Moved VALUES (1, '2024-03-01', NEWID(), 20)
INSERT Beside VALUES (1)
"""


def test_null_set_by_an_update_with_a_join_has_the_columns_type(db: sb.Database) -> None:
    db.execute_tsql(CURED)
    join = "FROM Moved m JOIN Beside b ON b.Id = m.Id"
    db.execute_tsql(f"UPDATE m SET At = NULL, Who = '6F9619FF-8B86-D011-B42D-00C04FC964FF', Price = NULL {join}")
    found = db.execute_tsql("SELECT At, Who, Price FROM Moved").rows
    assert [str(value) for value in found[0]] == ["None", "6f9619ff-8b86-d011-b42d-00c04fc964ff", "None"]
    db.execute_tsql(
        "ALTER TABLE Moved ADD Tax AS (Price * 0.5) PERSISTED, Note varchar(9) NULL, "
        "Due AS DATEADD(day, Id, CAST('20240101' AS datetime))"
    )
    db.execute_tsql("UPDATE Moved SET Price = 20")
    assert db.execute_tsql("SELECT Tax, DAY(Due) FROM Moved").rows == [(10, 2)]
    for script, number in (
        ("TRUNCATE TABLE Moved", 4712),
        ("INSERT Dear VALUES (2, 5)", 550),
        ("CREATE UNIQUE INDEX u ON Moved (At) WITH (IGNORE_DUP_KEY = ON)", 40515),
    ):
        with pytest.raises(sb.TsqlError) as error:
            db.execute_tsql(script)
        assert error.value.number == number


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("DECLARE @d datetime SET @d = '20240231'", 242),
        ("DECLARE @d date = '20249999'", 241),
        ("DECLARE @m smallmoney = 200000 SET @m = @m * @m", 8115),
        ("DECLARE @m money = 900000000000000, @t varchar(90) SET @t = @m + @m", 8115),
        ("DECLARE @m smallmoney SET @m = 12345678", 8115),
        ("DECLARE @b bit = 1 IF @b PRINT 'x'", 4145),
        ("DECLARE @b bit = 1 WHILE CAST(@b AS bit) BREAK", 4145),
        ("IF 1 = 1 DO PRINT 'x'", 102),
        ("SELECT name FROM sys.databases LIMIT 5", 102),
        ("SELECT a.name FROM sys.databases a JOIN sys.objects b", 102),
    ],
)
def test_invalid_values_are_refused(db: sb.Database, script: str, number: int) -> None:
    with pytest.raises(sb.TsqlError) as error:
        db.execute_tsql(script)
    assert error.value.number == number
    said = [int(finding.note.split(":")[0]) for finding in check(script) if finding.verdict is Verdict.REFUSED]
    assert said == ([number] if number in (102, 4145) else [])


def test_queries_in_parentheses_and_braces_run(db: sb.Database) -> None:
    assert db.execute_tsql("(SELECT 2 AS n) UNION ALL (SELECT 1) ORDER BY n").rows == [(1,), (2,)]
    joined = "{oj (VALUES (1), (2)) AS a (n) LEFT OUTER JOIN (VALUES (2)) AS b (n) ON b.n = a.n}"
    assert db.execute_tsql(f"SELECT a.n FROM {joined} WHERE b.n IS NULL").rows == [(1,)]
    assert db.execute_tsql("SELECT 1 WHERE '5%' LIKE '_!%' {escape '!'} AND 'x' <> 'y'").rows == [(1,)]
    assert db.execute_tsql(
        "DECLARE @a national char varying(5) = 'abcdef', @d double precision = 1.5 SELECT @a, @d"
    ).rows == [("abcde", 1.5)]


@pytest.mark.parametrize("script", ["SELECT FROM", "PRINT @x", "SELECT 1 / 0", "SELECT * FROM Nothing", "SELECT 1"])
def test_sp_executesql_returns_the_number_of_its_error(db: sb.Database, script: str) -> None:
    output = output_of(db, f"DECLARE @r int = 5 EXEC @r = sp_executesql N'{script}' PRINT @@ERROR PRINT @r")
    number = output[0] if isinstance(output[0], int) else 0
    assert output[1:] == [str(number)] * 2
    assert (number > 0) is (script != "SELECT 1")


def test_insert_accepts_rows_of_only_null(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Nulls (v int, d date)")
    script = """INSERT Nulls (v) SELECT NULL UNION ALL SELECT NULL
    INSERT Nulls SELECT DISTINCT NULL, NULL FROM Nulls
    INSERT Nulls SELECT NULL, NULL EXCEPT SELECT 1, NULL
    INSERT Nulls (d) SELECT TOP (1) NULL UNION SELECT NULL UNION ALL SELECT NULL
    SELECT COUNT(*), COUNT(v), COUNT(d) FROM Nulls"""
    assert output_of(db, script) == [[(6, 0, 0)]]


def test_a_type_of_the_system_is_no_table(db: sb.Database) -> None:
    script = "DECLARE @x int = 1 INSERT @x VALUES (1)"
    assert error_number(db, script) == 1087
    assert [finding.note[:40] for finding in check(script) if finding.verdict is Verdict.REFUSED] != []
    assert [finding.verdict for finding in check("DECLARE @t dbo.OfAnother INSERT @t VALUES (1)")] == [Verdict.RUNS] * 2


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("CROSS APPLY sys.tables t WHERE t.name = 'Applied'", 2),
        ("CROSS APPLY sys.tables AS t WITH (NOLOCK) WHERE t.name = 'Applied'", 2),
        ("OUTER APPLY INFORMATION_SCHEMA.TABLES t WHERE t.TABLE_NAME = 'Applied'", 2),
        ("CROSS APPLY Applied AS y WITH (NOLOCK)", 4),
        ("CROSS APPLY Applied y WITH (NOLOCK, ROWLOCK) CROSS APPLY (SELECT y.a + 1 AS b) z WHERE z.b = 2", 2),
        ("OUTER APPLY dbo.Applied y (NOLOCK) WHERE y.a = 1", 2),
        ("OUTER APPLY dbo.Applied WITH (READPAST)", 4),
        ("OUTER APPLY [Languages]..[Applied] [y] JOIN Applied z WITH (NOLOCK) ON z.a = y.a", 4),
        ("OUTER APPLY (SELECT 1 AS b) y CROSS APPLY STRING_SPLIT('a b', ' ') AS s", 4),
        ("OUTER APPLY #Nobody y", 2),
    ],
)
def test_apply_accepts_the_sources_of_from(db: sb.Database, source: str, found: int) -> None:
    script = f"""CREATE TABLE #Nobody (a int) DROP TABLE IF EXISTS Applied CREATE TABLE Applied (a int)
    INSERT Applied VALUES (1), (2) SELECT COUNT(*) FROM Applied x {source}"""
    assert output_of(db, script.replace("Languages", db.name)) == [[(found,)]]


def test_a_variable_may_have_an_odd_name(db: sb.Database) -> None:
    """A name that begins with @@ is a function only if one of that name exists."""
    names = ("@", "@@", "@@@", "@#", "@$", "@_", "@7", "@8x", "@@x")
    declared = "DECLARE " + ", ".join(f"{name} int = {value}" for value, name in enumerate(names, 1))
    listed = f"SELECT {', '.join(names)}, @@ROWCOUNT"
    assert db.execute_tsql(f"{declared} {listed}").rows == [(1, 2, 3, 4, 5, 6, 7, 8, 9, 1)]
    assert texts(db, f"{declared} WHILE @ < 3 SET @ += @@ SET @@x -= @ IF @@x = 6 PRINT @# SELECT @ = @$ PRINT @") == [
        "4",
        "5",
    ]
    db.execute_tsql("CREATE PROCEDURE Odd @ int, @@y int = 5 AS SELECT @ - @@y")
    assert db.execute_tsql("DECLARE @ int = 7 EXEC Odd @ = @, @@y = 2").rows == [(5,)]
    assert db.execute_tsql("EXEC sp_executesql N'SELECT @ * @@y', N'@ int, @@y int', @ = 3, @@y = 2").rows == [(6,)]
    table = "DECLARE @ TABLE (a int) INSERT @ VALUES (1), (2) DELETE x FROM @ x WHERE a = 1 SELECT * FROM @"
    assert db.execute_tsql(table).rows == [(2,)]
    assert [error_number(db, f"SELECT {name}") for name in ("@", "@@x", "@@nothing")] == [137] * 3


def test_defaults_ask_the_session(db: sb.Database) -> None:
    db.execute_tsql(
        """CREATE TABLE Asked (
            n INT IDENTITY, spid smallint DEFAULT @@SPID, server sysname DEFAULT @@SERVERNAME,
            host sysname DEFAULT HOST_NAME(), program sysname DEFAULT APP_NAME(), first tinyint DEFAULT @@DATEFIRST,
            context varbinary(128) DEFAULT CONTEXT_INFO(),
            tenant int DEFAULT CAST(SESSION_CONTEXT(N'tenant') AS int), login sysname DEFAULT ORIGINAL_LOGIN(),
            domain sysname DEFAULT DEFAULT_DOMAIN())
        GO
        CREATE FUNCTION TenantOfSession() RETURNS int AS BEGIN RETURN CAST(SESSION_CONTEXT(N'tenant') AS int) END"""
    )
    results = db.execute_tsql(
        """INSERT Asked DEFAULT VALUES
        EXEC sp_set_session_context 'tenant', 5 SET CONTEXT_INFO 0x0102
        INSERT Asked DEFAULT VALUES
        BEGIN TRAN EXEC sp_set_session_context 'tenant', 6 INSERT Asked DEFAULT VALUES ROLLBACK
        INSERT Asked DEFAULT VALUES
        SELECT n, tenant, CAST(context AS varbinary(2)) FROM Asked
        SELECT DISTINCT spid - @@SPID, server, host, program, first, login, domain, dbo.TenantOfSession() FROM Asked"""
    )
    assert results.sets[0].rows == [(1, None, None), (2, 5, b"\1\2"), (4, 6, b"\1\2")]
    assert [row[:5] + row[6:] for row in results.sets[1].rows] == [
        (0, "servicebroker", "localhost", "servicebroker", 7, "WORKGROUP", 6)
    ]
    assert results.sets[1].rows[0][5] == db.execute_tsql("SELECT ORIGINAL_LOGIN()").rows[0][0]
    for asked in ("@@TRANCOUNT", "@@NESTLEVEL", "@@IDENTITY", "XACT_STATE()"):
        assert error_number(db, f"CREATE TABLE Never (a INT DEFAULT {asked})") == 40515


def test_indexes_of_tables_in_memory_stand_in_the_table(db: sb.Database) -> None:
    db.execute_tsql(
        """CREATE TABLE Hashed (a INT NOT NULL PRIMARY KEY NONCLUSTERED HASH WITH (BUCKET_COUNT = 8),
            b INT INDEX ixb HASH WITH (BUCKET_COUNT = 8), c INT INDEX ixc NONCLUSTERED, d INT INDEX ixd UNIQUE,
            INDEX ixe HASH (c, d) WITH (BUCKET_COUNT = 8), INDEX ixf NONCLUSTERED (d DESC)) WITH (MEMORY_OPTIMIZED = ON)
        DECLARE @t TABLE (a INT INDEX ix NONCLUSTERED HASH WITH (BUCKET_COUNT = 4), INDEX iy HASH (a))"""
    )
    named = db.execute_tsql(
        "SELECT name FROM sys.indexes WHERE object_id = OBJECT_ID('Hashed') AND name LIKE 'ix%' ORDER BY name"
    )
    assert [name for (name,) in named.rows] == ["ixb", "ixc", "ixd", "ixe", "ixf"]


def test_top_is_an_expression_wherever_rows_are_changed(db: sb.Database) -> None:
    def rows(text: str) -> list[tuple[object, ...]]:
        return db.execute_tsql("DECLARE @n INT = 2 " + text).rows

    db.execute_tsql("CREATE TABLE Cut (n INT IDENTITY, a DATE, b VARCHAR(3), c UNIQUEIDENTIFIER)")
    values = "(a, b, c) OUTPUT inserted.n VALUES (NULL, 'x', NULL), ('20260102', 'y', NULL), (NULL, NULL, NULL)"
    assert rows(f"INSERT TOP (@n) Cut {values}") == [(1,), (2,)]
    assert rows("SELECT a, b, c FROM Cut") == [(None, "x", None), (date(2026, 1, 2), "y", None)]
    assert rows(f"INSERT TOP (SELECT COUNT(*) - 1 FROM Cut) INTO Cut {values}") == [(3,)]
    assert rows(f"INSERT TOP (34) PERCENT Cut {values}") == [(4,), (5,)]
    assert rows("INSERT TOP (@n * 50) PERCENT Cut (b) OUTPUT inserted.n SELECT b FROM Cut WHERE n < 3") == [(6,), (7,)]
    assert rows("UPDATE TOP (@n - 1) Cut SET b = 'z' OUTPUT inserted.n WHERE n > 3") == [(4,)]
    assert len(rows("UPDATE TOP (@n * 20) PERCENT Cut SET b = 'z' OUTPUT inserted.n")) == 3
    assert len(rows("DELETE TOP (@n + 1) FROM Cut OUTPUT deleted.n WHERE n < 4")) == 3
    assert rows("DELETE TOP (30) PERCENT FROM Cut OUTPUT deleted.n WHERE n = 5") == [(5,)]
    assert rows("SELECT TOP (SELECT COUNT(*) - 1 FROM Cut) n FROM Cut ORDER BY n") == [(4,), (6,)]
    db.execute_tsql("CREATE SEQUENCE Cuts START WITH 7")
    db.execute_tsql(
        "CREATE TABLE Drawn (s VARCHAR(9) DEFAULT 'said', d DATE, n INT DEFAULT NEXT VALUE FOR Cuts, m INT)"
    )
    cut = "INSERT TOP (@n) Drawn (s, d, m) OUTPUT inserted.* VALUES (DEFAULT, DEFAULT, NEXT VALUE FOR Cuts), "
    assert rows(f"{cut} ('x', '20260101', 1), (DEFAULT, NULL, 2)") == [
        ("said", None, 7, 7),
        ("x", date(2026, 1, 1), 8, 1),
    ]
    for said, top, offset in ("NULL", 1060, 10743), ("-1", 127, 10742):
        for text in ("SELECT TOP (@m) n FROM Cut", "DELETE TOP (@m) Cut", "INSERT TOP (@m) Cut (b) VALUES ('q')"):
            assert error_number(db, f"DECLARE @m INT = {said} {text}") == top
        assert error_number(db, f"DECLARE @m INT = {said} SELECT n FROM Cut ORDER BY n OFFSET @m ROWS") == offset


def test_permissions_without_effect_are_reported_by_scope(db: sb.Database) -> None:
    db.execute_tsql("CREATE USER Granted WITHOUT LOGIN")
    for given in ("VIEW SERVER STATE", "SHOWPLAN", "SHOWPLAN ON DATABASE::Db", "UNMASK ON SCHEMA::dbo"):
        (told_of,) = texts(db, f"GRANT {given} TO Granted")
        assert "changes nothing" in told_of
    assert error_number(db, "GRANT VIEW SERVER STATE ON DATABASE::Db TO Granted") == 4606
    assert error_number(db, "DENY SHOWPLAN TO Granted") == 40515


def test_an_error_of_level_20_ends_the_batch(db: sb.Database) -> None:
    with Session(db) as session:
        session.execute("CREATE TABLE Went_on (level INT)")
        for level in (19, 20, 21):
            with pytest.raises(TsqlError, match=f"Level {level}"):
                session.execute(f"RAISERROR('x', {level}, 1) WITH LOG; INSERT INTO Went_on VALUES ({level})")
        assert session.execute("SELECT level FROM Went_on").rows == [(19,)]


def test_errors_about_temporary_procedures_have_the_states_of_sql_server(db: sb.Database) -> None:
    with Session(db) as session:
        session.execute("CREATE PROCEDURE #p AS RETURN")
        for text, number, state in (
            ("CREATE PROCEDURE #p AS RETURN", 2714, 3),
            ("ALTER PROCEDURE #q AS RETURN", 208, 6),
        ):
            with pytest.raises(TsqlError) as error:
                session.execute(text)
            assert (error.value.number, error.value.state) == (number, state)


def test_a_temporary_procedure_is_of_its_session(db: sb.Database) -> None:
    script = """CREATE PROCEDURE #p @n int, @twice int = 0 OUTPUT AS SET @twice = @n * 2 SELECT @n RETURN 7
    GO
    DECLARE @r int, @o int EXEC @r = #p 3, @o OUTPUT SELECT @r, @o
    EXEC ('EXEC tempdb..#P 4')
    GO
    IF OBJECT_ID('tempdb..#p') IS NOT NULL DROP PROCEDURE #p
    EXEC #p 1
    GO
    CREATE PROC #p AS PRINT 'one'
    GO
    CREATE PROC #P AS PRINT 'again'
    GO
    CREATE OR ALTER PROC #p AS PRINT 'two'
    GO
    EXEC #p
    BEGIN TRAN
    GO
    ALTER PROC #p AS PRINT 'three'
    GO
    EXEC #p ROLLBACK EXEC #p
    DROP PROC #p, #q
    GO
    DROP PROC IF EXISTS #q
    GO
    ALTER PROC #q AS PRINT 'never'
    GO
    CREATE PROC ##q AS PRINT 'never'
    GO
    CREATE PROC #q WITH EXECUTE AS OWNER AS PRINT 'never'
    GO
    CREATE PROC #q AS PRINT 'of one session'"""
    assert output_of(db, script) == [
        *([(3,)], [(7, 6)], [(4,)], 2812, 2714, "two", "three", "two", 3701, 208, 40515, 40515),
    ]
    assert output_of(db, "EXEC #q") == [2812]


def test_a_temporary_procedure_has_the_callers_permissions(db: sb.Database) -> None:
    script = """CREATE USER Small WITHOUT LOGIN CREATE TABLE Hidden (a int)
    EXECUTE AS USER = 'Small'
    GO
    CREATE PROCEDURE #look AS SELECT a FROM Hidden
    GO
    EXEC #look REVERT EXEC #look"""
    assert output_of(db, script) == [229, []]
