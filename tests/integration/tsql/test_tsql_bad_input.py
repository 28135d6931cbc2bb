"""T-SQL that is too long, of the wrong type, or made to be mistaken for something else: clear errors, and no harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import servicebroker as sb
from servicebroker.tsql.session import Session
from support import CONTRACT, ORDER, ORDERS, STOCK, STOCK_QUEUE, begin, define_standard_set, leftovers, query

LARGE_BYTES = 10_000_000


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> Iterator[sb.Database]:
    database = define_standard_set(instance.database("Bad", create=True))
    database.execute_tsql("CREATE TABLE Kept (Id INT IDENTITY PRIMARY KEY, V NVARCHAR(400), X XML)")
    return database


def number(database: sb.Database, script: str) -> int:
    with pytest.raises(sb.TsqlError) as error:
        database.execute_tsql(script)
    assert error.value.line >= 1
    return error.value.number


@pytest.mark.parametrize(
    ("script", "expected", "line"),
    [
        ("PRINT 1\nPRINT '" + "x" * LARGE_BYTES, 105, 2),
        ("PRINT 1\n/*" + "* /" * (LARGE_BYTES // 3), 113, 2),
        ("PRINT 1\nSELECT " + "(" * 100_000 + "1", 191, 2),
    ],
    ids=["string", "comment", "expression"],
)
def test_long_texts_without_an_end(db: sb.Database, script: str, expected: int, line: int) -> None:
    with pytest.raises(sb.TsqlError) as error:
        db.execute_tsql(script)
    assert (error.value.number, error.value.line) == (expected, line)
    assert len(error.value.text) < 300


def test_ten_megabytes_are_run(db: sb.Database) -> None:
    comment = "-- nothing to see here\n" * (LARGE_BYTES // 23)
    assert db.execute_tsql(f"{comment}SELECT 1\nGO\n/*{comment}*/SELECT 2").rows == [(2,)]
    assert db.execute_tsql(f"DECLARE @x NVARCHAR(MAX) = N'{'y' * LARGE_BYTES}'; SELECT LEN(@x)").rows == [
        (LARGE_BYTES,)
    ]


INVALID_SCRIPTS = [
    ("BEGIN DIALOG @h FROM SERVICE a TO SERVICE 'b'", 137),
    ("DECLARE @h INT; BEGIN DIALOG @h FROM SERVICE [//test/Orders] TO SERVICE '//test/Stock'", 206),
    ("DECLARE @h UNIQUEIDENTIFIER; BEGIN DIALOG @h FROM SERVICE [//test/Orders] TO SERVICE NULL", 8421),
    ("SEND ON CONVERSATION 'no guid' (N'x')", 8169),
    ("SEND ON CONVERSATION NULL (N'x')", 8418),
    ("SEND ON CONVERSATION '00000000-0000-0000-0000-000000000001' (5)", 206),
    ("SEND ON CONVERSATION 5 (N'x')", 8169),
    ("END CONVERSATION 'x'", 8169),
    ("END CONVERSATION '00000000-0000-0000-0000-000000000001' WITH ERROR = 'x' DESCRIPTION = 'y'", 245),
    ("BEGIN CONVERSATION TIMER (NEWID()) TIMEOUT = 'soon'", 245),
    ("MOVE CONVERSATION '00000000-0000-0000-0000-000000000001' TO 'x'", 8169),
    ("RECEIVE TOP ('x') * FROM StockQueue", 245),
    ("RECEIVE TOP (-1) * FROM StockQueue", 1060),
    ("RECEIVE * FROM StockQueue WHERE conversation_handle = 'x'", 8169),
    ("DECLARE @i INT; RECEIVE @i = message_body FROM Nowhere", 208),
    ("WAITFOR (RECEIVE * FROM StockQueue), TIMEOUT 'x'", 245),
    ("WAITFOR DELAY 'tomorrow'", 148),
    ("DECLARE @i INT = 'x'", 245),
    ("DECLARE @d DATETIME = 'never'", 241),
    ("DECLARE @t TINYINT = 256", 220),
    ("DECLARE @x XML = '<a>'", 9400),
    ("IF 5 PRINT 1", 4145),
    ("WHILE 'x' PRINT 1", 4145),
    ("SELECT CAST('x' AS INT)", 245),
    ("SELECT 1 + 'x'", 245),
    ("INSERT Kept (V) VALUES (N'" + "x" * 401 + "')", 2628),
    ("INSERT Kept (X) VALUES ('<a>')", 9400),
    ("EXEC sp_executesql N'SELECT 1', N'@a NOTYPE', 1", 2715),
    ("THROW 'x', 5, 6", 245),
    ("SET LOCK_TIMEOUT x", 102),
]


def test_wrong_types_are_refused_by_their_number(db: sb.Database) -> None:
    found = []
    for script, _ in INVALID_SCRIPTS:
        with db.tsql_session() as session, pytest.raises(sb.TsqlError) as error:
            session.execute("\n" + script)
        found.append((script, error.value.number))
        assert error.value.line == 2
    assert [(got, wanted) for got, wanted in zip(found, INVALID_SCRIPTS, strict=True) if got != wanted] == []
    assert leftovers(db) == {}


EVIL = (
    "x'; DROP SCHEMA servicebroker CASCADE; --",
    'x"; drop schema servicebroker cascade; --',
    "x]; DROP TABLE Kept; --",
    "$1 {0} %s \\'; select 1/0; --",
    "')) ; DROP TABLE Kept; --",
)
# {s} stands in a string, {b} in brackets, {q} in quotation marks
PLACES = [
    "SELECT N'{s}', '{s}', N'{s}' + '{s}'",
    "PRINT '{s}'",
    "RAISERROR (N'{s}', 16, 1)",
    "RAISERROR (N'%s', 10, 1, N'{s}')",
    "THROW 50001, N'{s}', 1",
    "INSERT Kept (V) VALUES (N'{s}'); DELETE Kept WHERE V = N'{s}'",
    "SELECT V AS [{b}], V AS \"{q}\", V '{s}' FROM Kept",
    "SELECT * FROM Kept WHERE V LIKE N'{s}' OR V LIKE N'%{s}' ESCAPE '!'",
    "SELECT * FROM [{b}]",
    "SELECT [{b}] FROM Kept AS [{b}]",
    "SELECT k.V FROM Kept AS [{b}] JOIN Kept k ON k.Id = [{b}].Id",
    "WITH [{b}] AS (SELECT 1 AS [{b}]) SELECT [{b}] FROM [{b}]",
    "SELECT FORMAT(GETDATE(), N'{s}'), FORMAT(5, N'{s}')",
    "SELECT OBJECT_ID(N'{s}'), DB_ID(N'{s}'), USER_ID(N'{s}'), SCHEMA_ID(N'{s}'), COL_LENGTH(N'{s}', N'{s}')",
    "SELECT QUOTENAME(N'{s}'), PARSENAME(N'{s}', 1), PATINDEX(N'%{s}%', N'{s}'), STUFF(N'{s}', 1, 1, N'{s}')",
    "SELECT STRING_AGG(V, N'{s}') FROM Kept",
    "SELECT value FROM STRING_SPLIT(N'{s}', N';')",
    "SELECT JSON_VALUE(N'{s}', N'{s}')",
    "SELECT * FROM OPENJSON(N'{s}', N'{s}')",
    "SELECT * FROM OPENJSON(N'{{}}') WITH ([{b}] INT N'{s}')",
    "SELECT CAST('<a/>' AS XML).value(N'{s}', N'{s}')",
    "SELECT CAST(N'{s}' AS XML)",
    "SELECT V FROM Kept FOR XML PATH(N'{s}'), ROOT(N'{s}')",
    "SELECT V AS [{b}] FROM Kept FOR XML RAW(N'{s}')",
    "SELECT V FROM Kept FOR JSON PATH, ROOT(N'{s}')",
    "WITH XMLNAMESPACES (N'{s}' AS p) SELECT X.value('(/p:a)[1]', 'INT') FROM Kept",
    "SELECT V COLLATE [{b}] FROM Kept",
    "EXEC (N'{s}')",
    "EXEC sp_executesql N'SELECT @a', N'@a NVARCHAR(99)', N'{s}'",
    "EXEC sp_executesql N'SELECT 1', N'{s}'",
    "EXEC sp_helptext N'{s}'",
    "EXEC [{b}] N'{s}'",
    "EXEC sp_addrolemember N'{s}', N'{s}'",
    "EXECUTE AS USER = N'{s}'",
    "USE [{b}]",
    "BEGIN TRANSACTION [{b}]; SAVE TRANSACTION [{b}]; ROLLBACK TRANSACTION [{b}]; COMMIT",
    "DECLARE [{b}] CURSOR FOR SELECT V FROM Kept; OPEN [{b}]; FETCH NEXT FROM [{b}]; CLOSE [{b}]; DEALLOCATE [{b}]",
    "CREATE TABLE [{b}] ([{b}] INT CONSTRAINT [{b}] PRIMARY KEY, d NVARCHAR(99) DEFAULT N'{s}'); DROP TABLE [{b}]",
    "CREATE TABLE #t ([{b}] NVARCHAR(99)); INSERT #t VALUES (N'{s}'); SELECT [{b}] FROM #t",
    "CREATE TABLE [#{b}] (a INT); INSERT [#{b}] VALUES (1); DROP TABLE [#{b}]",
    "SELECT N'{s}' AS [{b}] INTO [#{b}]",
    "SELECT N'{s}' AS [{b}] INTO [{b}]; DROP TABLE [{b}]",
    "WITH XMLNAMESPACES (N'{s}' AS p) SELECT N'{s}' AS [p:a] FOR XML PATH",
    "MERGE Kept AS [{b}] USING (SELECT N'{s}' AS v) AS s ON [{b}].V = s.v WHEN MATCHED THEN UPDATE SET V = N'{s}';",
    "UPDATE [{b}] SET V = N'{s}' FROM Kept AS [{b}] WHERE [{b}].V = N'{s}'",
    "SET IDENTITY_INSERT [{b}] ON",
    "DBCC [{b}]",
    "DECLARE @t TABLE ([{b}] NVARCHAR(99)); INSERT @t VALUES (N'{s}'); SELECT [{b}] FROM @t",
    "ALTER TABLE Kept ADD [{b}] INT; ALTER TABLE Kept DROP COLUMN [{b}]",
    "CREATE INDEX [{b}] ON Kept (V); DROP INDEX [{b}] ON Kept",
    "CREATE SEQUENCE [{b}]; ALTER SEQUENCE [{b}] RESTART; DROP SEQUENCE [{b}]",
    "SELECT NEXT VALUE FOR [{b}]",
    "CREATE SCHEMA [{b}]\nGO\nDROP SCHEMA [{b}]",
    "CREATE VIEW [{b}] AS SELECT N'{s}' AS [{b}]\nGO\nSELECT * FROM [{b}]\nGO\nDROP VIEW [{b}]",
    "CREATE PROCEDURE [{b}] @a NVARCHAR(99) = N'{s}' AS SELECT @a\nGO\nEXEC [{b}]\nGO\nDROP PROCEDURE [{b}]",
    "CREATE FUNCTION dbo.[{b}] (@a NVARCHAR(99) = N'{s}') RETURNS NVARCHAR(99) AS BEGIN RETURN @a + N'{s}' END\nGO\n"
    "SELECT dbo.[{b}](N'{s}')\nGO\nDROP FUNCTION dbo.[{b}]",
    "CREATE TRIGGER [{b}] ON Kept AFTER INSERT AS PRINT N'{s}'\nGO\nINSERT Kept (V) VALUES ('x'); DROP TRIGGER [{b}]",
    "CREATE MESSAGE TYPE [{b}]; ALTER MESSAGE TYPE [{b}] VALIDATION = EMPTY; DROP MESSAGE TYPE [{b}]",
    "CREATE CONTRACT [{b}] ([DEFAULT] SENT BY ANY); DROP CONTRACT [{b}]",
    "CREATE QUEUE [{b}]; SELECT * FROM [{b}]; RECEIVE * FROM [{b}]; DROP QUEUE [{b}]",
    "CREATE SERVICE [{b}] ON QUEUE StockQueue; DROP SERVICE [{b}]",
    "CREATE ROUTE [{b}] WITH SERVICE_NAME = N'{s}', ADDRESS = N'{s}'; DROP ROUTE [{b}]",
    "CREATE BROKER PRIORITY [{b}] FOR CONVERSATION SET (REMOTE_SERVICE_NAME = N'{s}'); DROP BROKER PRIORITY [{b}]",
    "CREATE USER [{b}] WITHOUT LOGIN; GRANT SEND ON SERVICE::[//test/Stock] TO [{b}]; DROP USER [{b}]",
    "CREATE ROLE [{b}]; DROP ROLE [{b}]",
    "CREATE LOGIN [{b}] WITH PASSWORD = N'{s}'; DROP LOGIN [{b}]",
    "CREATE XML SCHEMA COLLECTION [{b}] AS N'{s}'",
    "CREATE DATABASE [{b}]\nGO\nDROP DATABASE [{b}]",
    f"DECLARE @h UNIQUEIDENTIFIER; BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE N'{{s}}', N'{{s}}' "
    f"ON CONTRACT [{CONTRACT}]; END CONVERSATION @h WITH CLEANUP",
    f"DECLARE @h UNIQUEIDENTIFIER; BEGIN DIALOG @h FROM SERVICE [{ORDERS}] TO SERVICE N'{STOCK}' "
    f"ON CONTRACT [{CONTRACT}]; "
    "END CONVERSATION @h WITH ERROR = 5 DESCRIPTION = N'{s}'; SEND ON CONVERSATION @h MESSAGE TYPE [{b}] (N'{s}')",
]  # fmt: skip


def test_no_string_and_no_name_is_mistaken_for_sql(db: sb.Database) -> None:
    """Each runs, or is refused under a number of T-SQL's; PostgreSQL never has to say that it cannot read something."""
    ran, unlike = 0, list[tuple[str, str]]()
    for evil in EVIL:
        words = {"s": evil.replace("'", "''"), "b": evil.replace("]", "]]"), "q": evil.replace('"', '""')}
        for place in PLACES:
            script = place.format(**words)
            results: list[object] = []
            with Session(db, results.append) as session:
                session.run(script)
            assert query(db, "select to_regclass('servicebroker.databases') is not null") == [(True,)], script
            errors = [one for one in results if isinstance(one, sb.TsqlError)]
            unlike += [(script, str(one)) for one in errors if "PostgreSQL" in one.text or one.line < 1]
            ran += not errors
    assert unlike == []
    assert ran > 2 * len(PLACES)
    assert query(db, "select count(*) from servicebroker.databases where name = 'Bad'") == [(1,)]
    made = "SELECT COUNT(*) FROM sys.objects WHERE type IN ('U', 'V', 'P', 'FN', 'TR', 'SO')"
    assert db.execute_tsql(made).rows == [(1,)]


@pytest.mark.parametrize(
    "take",
    [
        "DECLARE @i INT; RECEIVE @i = conversation_handle FROM StockQueue",
        "DECLARE @i TINYINT; RECEIVE @i = CAST(message_body AS NVARCHAR(9)) FROM StockQueue",
        "DECLARE @t TABLE (a INT, b INT); RECEIVE message_body FROM StockQueue INTO @t",
        "RECEIVE CAST(message_body AS INT) / 0 AS x FROM StockQueue",
        "WAITFOR (RECEIVE CAST(message_body AS INT) / 0 AS x FROM StockQueue), TIMEOUT 1000",
    ],
)
def test_a_message_that_cannot_be_given_is_not_taken(db: sb.Database, take: str) -> None:
    handle = begin(db)
    db.send(handle, ORDER, b"x\0y\0")
    for script in (take, f"BEGIN TRANSACTION {take} COMMIT"):
        with db.tsql_session() as session, pytest.raises(sb.TsqlError):
            session.execute(script)
    (message,) = db.receive(STOCK_QUEUE)
    assert message.message_body == b"x\0y\0"
    db.end_conversation(message.conversation_handle, cleanup=True)
    db.end_conversation(handle, cleanup=True)
    db.alter_queue(STOCK_QUEUE, status=True)
