"""Results and errors of small T-SQL scripts: each row stands for a kind of script found in the wild."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

import servicebroker as sb
from tsql_support import create_database, failing, output_of

OBJECTS = """
CREATE TABLE A (Id int, X int, Txt varchar(5)); CREATE TABLE B (Id int, Y int)
CREATE TABLE N (Id int IDENTITY, V varchar(5)); INSERT N (V) VALUES ('a')
INSERT A (Id, X) VALUES (1, 1)
CREATE TABLE Docs (Doc xml, Memo ntext); INSERT Docs VALUES ('<a/>', 'b')
GO
CREATE VIEW Joined AS SELECT A.Id, B.Y FROM A JOIN B ON A.Id = B.Id
GO
CREATE VIEW Summed AS SELECT Id, SUM(X) AS S FROM A GROUP BY Id
GO
CREATE FUNCTION dbo.Plus (@a int, @b int = 10) RETURNS int AS BEGIN RETURN @a + @b END
GO
CREATE FUNCTION dbo.OwnName (@a int) RETURNS sysname AS BEGIN RETURN OBJECT_NAME(@@PROCID) END
GO
CREATE PROCEDURE dbo.TakeBit @a bit AS RETURN
GO
CREATE PROCEDURE dbo.Variant @v sql_variant AS SELECT SQL_VARIANT_PROPERTY(@v, 'BaseType'),
    SQL_VARIANT_PROPERTY(@v, 'MaxLength'), SQL_VARIANT_PROPERTY(@v, 'TotalBytes')
GO
CREATE TRIGGER Away ON Joined INSTEAD OF INSERT AS RETURN
GO
CREATE TRIGGER After ON A AFTER DELETE AS PRINT 'instead of'
"""
ERRORS = {
    "SELECT ROUND(AVG(n) OVER (PARTITION BY a ORDER BY n), 2) FROM Nowhere": (208, "Invalid object name 'Nowhere'."),
    "DROP TRIGGER Seen ON DATABASE": (40515, "A trigger on DDL is not supported here."),
    "DISABLE TRIGGER ALL ON ALL SERVER": (40515, "A trigger on DDL is not supported here."),
    "SELECT LEFT(Txt, X - 5) FROM A": (537, "Invalid length parameter passed to the LEFT or SUBSTRING function."),
    "SELECT RIGHT('a', X - 5) FROM A": (536, "Invalid length parameter passed to the right function."),
    "CREATE TABLE Q (a int, UNIQUE)": (102, "Incorrect syntax near 'UNIQUE'."),
    "ALTER TABLE A ADD CONSTRAINT K PRIMARY KEY": (102, "Incorrect syntax near 'KEY'."),
    "SELECT Id, $PARTITION.Monthly(Id) FROM A": (40515, "$PARTITION is not supported here."),
    "SELECT * FROM msdb.dbo.job_states(NULL, 0)": (208, "Invalid object name 'msdb.dbo.job_states'."),
    "SELECT msdb.dbo.job_state('a')": (4121, 'Cannot find either column "msdb" or the user-defined function or aggre'),
    "EXEC msdb.dbo.sysmail_configure_sp 'a', 'b'": (40515, "EXEC sysmail_configure_sp is not supported here. Send m"),
    "EXEC msdb.dbo.sp_delete_backuphistory '20200101'": (40515, "EXEC sp_delete_backuphistory is not supported here."),
    "SELECT X, COUNT(*) FROM A": (8120, "Column 'A.X' is invalid in the select list because"),
    "SELECT COUNT(*) FROM dbo.A HAVING X > 1": (8121, "Column 'dbo.A.X' is invalid in the HAVING clause because"),
    "SELECT COUNT(*) FROM A ORDER BY X": (8127, 'Column "A.X" is invalid in the ORDER BY clause because'),
    "SELECT Id FROM A WHERE COUNT(*) > 1": (147, "An aggregate may not appear in the WHERE clause"),
    "SELECT MAX(SUM(X)) FROM A": (130, "Cannot perform an aggregate function on an expression containing"),
    "SELECT DISTINCT Id FROM A ORDER BY X": (145, "ORDER BY items must appear in the select list if"),
    "SELECT Id FROM A ORDER BY 3": (108, "The ORDER BY position number 3 is out of range"),
    "SELECT Id FROM A UNION SELECT Id, Y FROM B": (205, "All queries combined using a UNION"),
    "SELECT (SELECT Id, X FROM A)": (116, "Only one expression can be specified"),
    "UPDATE A SET X = 1, X = 2": (264, "The column name 'X' is specified more than once in the SET clause"),
    "INSERT A (Id, Id) VALUES (1, 2)": (264, "The column name 'Id' is specified more than once"),
    "INSERT A VALUES (1, 2, 'a', 4)": (213, "Column name or number of supplied values"),
    "INSERT A SELECT 1, 2": (213, "Column name or number of supplied values"),
    "INSERT A (Id) VALUES (1, 2)": (110, "There are fewer columns"),
    "MERGE A t USING (VALUES (1), (1)) s (Id) ON t.Id = s.Id WHEN MATCHED THEN UPDATE SET X = 2;": (8672, "The MERGE"),
    "UPDATE Joined SET Id = 1": (4405, "View or function 'Joined' is not updatable because"),
    "UPDATE Summed SET S = 1": (4406, "Update or insert of view or function 'Summed' failed because"),
    "SET IDENTITY_INSERT N ON; INSERT N (V) VALUES ('b')": (545, "Explicit value must be specified for identity"),
    "SET IDENTITY_INSERT N ON; INSERT N VALUES (9, 'b')": (8101, "An explicit value for the identity column"),
    "DROP TABLE #gone": (3701, "Cannot drop the table '#gone', because it does not exist"),
    "SELECT DATEDIFF(ms, '2000-01-01', '2024-01-01')": (535, "The datediff function resulted in an overflow."),
    "SELECT DATEPART(hour, CAST('2024-01-01' AS date))": (9810, "The datepart hour is not supported by date function"),
    "SELECT DATEADD(day, 1, CAST('10:00' AS time))": (
        9810,
        "The datepart day is not supported by date function dateadd",
    ),
    "SELECT 99999999999999999999999999999999999999 * 10": (8115, "Arithmetic overflow error converting expression"),
    "SELECT EXP(1000)": (8115, "Arithmetic overflow error converting expression to data type float."),
    "SELECT 'a' & 1": (245, "Conversion failed when converting the"),
    "SELECT DISTINCT Doc FROM Docs": (421, "The xml data type cannot be selected as DISTINCT because"),
    "SELECT Doc FROM Docs EXCEPT SELECT Doc FROM Docs": (5335, "The data type xml cannot be used as an operand to the"),
    **dict.fromkeys(
        (
            "SELECT 1 FROM Docs a JOIN Docs b ON a.Doc = b.Doc",
            "SELECT 1 FROM Docs WHERE Doc IN (SELECT Doc FROM Docs)",
            "SELECT NULLIF(Doc, Doc) FROM Docs",
            "DECLARE @d xml = '<a/>'; IF @d = @d PRINT 'equal'",
            "SELECT Doc d FROM Docs ORDER BY d",
            "SELECT Doc FROM Docs ORDER BY 1",
            "SELECT COUNT(*) FROM Docs GROUP BY Doc",
            "SELECT ROW_NUMBER() OVER (PARTITION BY Doc ORDER BY (SELECT 1)) FROM Docs",
        ),
        (305, "The XML data type cannot be compared or sorted"),
    ),
    "SELECT Memo FROM Docs ORDER BY Memo": (306, "The text, ntext, and image data types cannot be compared or sorted"),
    "SELECT COUNT(DISTINCT Doc) FROM Docs": (8117, "Operand data type xml is invalid for count operator."),
    "SELECT MAX(Doc) FROM Docs": (8117, "Operand data type xml is invalid for max operator."),
    "SELECT SUM(CAST(1 AS bit))": (8117, "Operand data type bit is invalid for sum operator."),
    "SELECT 1 FROM Docs WHERE Doc LIKE 'a'": (8116, "Argument data type xml is invalid for argument 1 of like"),
    **dict.fromkeys(
        (
            "SELECT LEN(Doc) FROM Docs",
            "SELECT 1 FROM Docs WHERE LEN(Doc) > 1",
            "SELECT LEFT(UPPER(LEN(Doc)), 2) FROM Docs",
        ),
        (8116, "Argument data type xml is invalid for argument 1 of len function."),
    ),
    "DECLARE @d xml = '<a/>'; IF CHARINDEX('a', @d) > 0 PRINT 'found'": (
        8116,
        "Argument data type xml is invalid for argument 2 of charindex function.",
    ),
    "SELECT HASHBYTES('SHA1', Doc) FROM Docs": (
        8116,
        "Argument data type xml is invalid for argument 2 of hashbytes f",
    ),
    "SELECT TRIM(Doc) FROM Docs": (8116, "Argument data type xml is invalid for argument 1 of trim function."),
    "SELECT SUBSTRING(Doc, 1, 2) FROM Docs": (8116, "Argument data type xml is invalid for argument 1 of substring f"),
    "SELECT value FROM Docs CROSS APPLY STRING_SPLIT(Doc, ',')": (
        8116,
        "Argument data type xml is invalid for argument 1 of string_split function.",
    ),
    "SELECT STRING_AGG(Doc, ',') FROM Docs": (8116, "Argument data type xml is invalid for argument 1 of string_agg f"),
    "CREATE QUEUE Nowhere.Q": (2760, 'The specified schema name "Nowhere" either does not exist'),
    "SELECT 'a' COLLATE No_Such_Collation": (448, "Invalid collation 'No_Such_Collation'."),
    "SELECT 1 + 'abc'": (245, "Conversion failed when converting the varchar value 'abc' to data type int."),
    "SELECT V + 1 FROM N": (245, "Conversion failed when converting the varchar value 'a' to data type int."),
    "SELECT CAST(N'x' AS bit)": (245, "Conversion failed when converting the nvarchar value 'x' to data type bit."),
    "SELECT CAST('x' AS float)": (8114, "Error converting data type varchar to float."),
    "SELECT CAST('300' AS tinyint)": (244, "The conversion of the varchar value '300' overflowed an INT1 column."),
    "SELECT CAST('2024-01-01 12:00 +25:00' AS datetimeoffset)": (241, "Conversion failed when converting date"),
    "SELECT CAST('2024-01-01 12:00 +14:01' AS datetime2)": (241, "Conversion failed when converting date"),
    "DECLARE @d datetime2 = '2024-01-01 12:00 +14:01'": (241, "Conversion failed when converting date"),
    "EXEC TakeBit 'abc'": (8114, "Error converting data type"),
    "EXEC sp_executesql N'PRINT @a', N'@a int'": (8178, "The parameterized query '(@a int)PRINT @a' expects"),
    "SELECT COALESCE(NULL, NULL)": (4127, "At least one of the arguments to COALESCE must be an expression"),
    "SELECT NULLIF(NULL, 1)": (4151, "The type of the first argument to NULLIF cannot be the NULL constant"),
    "SELECT ROW_NUMBER() OVER (PARTITION BY Id) FROM A": (
        4112,
        "The function 'ROW_NUMBER' must have an OVER clause with",
    ),
    "SELECT Txt AS x, Id AS [@id] FROM A FOR XML PATH": (6852, "Attribute-centric column '@id' must not come after"),
    "SELECT Txt AS [x/text()], Id AS [x/@id] FROM A FOR XML PATH": (6852, "Attribute-centric column 'x/@id' must not"),
    "WITH r AS (SELECT 'a' n UNION ALL SELECT n + 'b' FROM r) SELECT n FROM r": (240, "Types don't match between the"),
    "WITH r AS (SELECT n FROM r UNION ALL SELECT 1 n) SELECT n FROM r": (246, "No anchor member was specified for"),
    "WITH r AS (SELECT 1 n UNION ALL SELECT n FROM r UNION ALL SELECT 2) SELECT n FROM r": (
        247,
        "An anchor member was",
    ),
    "WITH r AS (SELECT 1 n UNION SELECT n + 1 FROM r) SELECT n FROM r": (
        252,
        "Recursive common table expression 'r' d",
    ),
    "WITH r AS (SELECT n FROM r) SELECT n FROM r": (252, "Recursive common table expression 'r' does not contain a"),
    "WITH r AS (SELECT 1 n UNION ALL SELECT a.n FROM r a, r b) SELECT n FROM r": (253, "Recursive member of a common"),
    "WITH r AS (SELECT 1 n UNION ALL SELECT DISTINCT n FROM r) SELECT n FROM r": (460, "DISTINCT operator is not"),
    "WITH r AS (SELECT 1 n UNION ALL SELECT TOP 1 n FROM r) SELECT n FROM r": (461, "The TOP or OFFSET operator is"),
    "WITH r AS (SELECT 1 n UNION ALL SELECT n FROM r LEFT JOIN A ON Id = n) SELECT n FROM r": (
        462,
        "Outer join is not",
    ),
    "WITH r AS (SELECT 1 n UNION ALL SELECT 2 WHERE 1 IN (SELECT n FROM r)) SELECT n FROM r": (465, "Recursive refer"),
    "WITH r AS (SELECT 1 n UNION ALL SELECT MAX(n) FROM r) SELECT n FROM r": (467, "GROUP BY, HAVING, or aggregate"),
    "EXEC sp_addmessage 50000, 16, 'a'": (15040, "User-defined error messages must have an ID greater than 50000."),
    "EXEC sp_addmessage 50001, 26, 'a'": (15041, "User-defined error messages must have a severity level between 1"),
    "EXEC sp_addmessage 50001, 1, 'a', 'Klingon'": (15033, "'Klingon' is not a valid official language name."),
    "EXEC sp_addmessage 50001, 1, 'a', 'French'": (15279, "You must add the us_english version of this message before"),
    "EXEC sp_addmessage 50001, 1, 'a'; EXEC sp_addmessage 50001, 1, 'b'": (15043, "You must specify"),
    "EXEC sp_dropmessage 49000": (15178, "Cannot drop or alter a message with an ID less than 50,000."),
    "EXEC sp_altermessage 59000, 'WITH_LOG', 'true'": (15179, "The message number 59000 or specified language version"),
    "RAISERROR (59000, 16, 1)": (18054, "Error 59000, severity 16, state 1 was raised, but no message with that error"),
    "RAISERROR (50000, 16, 1)": (2732, "Error number 50000 is invalid."),
    "DECLARE @h int; EXEC sp_xml_preparedocument @h OUTPUT, '<a>'": (
        6602,
        "The error description is 'XML parsing: line 1",
    ),
    "DECLARE @h int; SELECT * FROM OPENXML(@h, '/a') WITH (b int)": (8179, "Could not find prepared statement with"),
    "EXEC sp_xml_removedocument 99": (6607, "sp_xml_removedocument: The value supplied for parameter number 1 is"),
    "DECLARE @h int; SELECT * FROM OPENXML(@h, '/a')": (40515, "OPENXML without WITH is not supported here."),
    "SELECT * FROM OPENXML(@h, '/a') WITH (b int)": (137, 'Must declare the scalar variable "@h".'),
    "BREAK": (135, "Cannot use a BREAK statement outside the scope of a WHILE statement."),
    "IF 1 = 1 CONTINUE": (136, "Cannot use a CONTINUE statement outside the scope of a WHILE statement."),
    "RETURN 1": (178, "A RETURN statement with a return value cannot be used in this context."),
    "EXEC ('RETURN 1')": (178, "A RETURN statement with a return value cannot be used in this context."),
    "DECLARE @r int; EXEC @r = Plus": (201, "Procedure or function 'Plus' expects parameter '@a'"),
    "DECLARE @r int; EXEC @r = Plus 1, 2, 3": (8144, "Procedure or function Plus has too many arguments"),
}
OUTPUT: dict[str, list[Any]] = {
    "IF 1 = 0 DROP TRIGGER Seen ON DATABASE; DROP TRIGGER IF EXISTS Seen ON ALL SERVER; PRINT 'next'": ["next"],
    "DECLARE @t varchar(30) = '20241130 18:30:00:5'; SELECT CAST(@t AS datetime), CAST('18:30:00:07' AS time(3)), "
    "CAST('2024-11-30 6:30:00:123PM' AS datetime2(3)), CONVERT(datetime, '11/30/2024 18:30:00:12', 101), "
    "CAST('2024-11-30 18:30:00:123 +01:00' AS datetime2(3)), TRY_CAST('2024-11-30 18:30:00:1234' AS datetime)": [
        [
            (
                datetime(2024, 11, 30, 18, 30, 0, 5000),
                time(18, 30, 0, 7000),
                datetime(2024, 11, 30, 18, 30, 0, 123000),
                datetime(2024, 11, 30, 18, 30, 0, 12000),
                datetime(2024, 11, 30, 18, 30, 0, 123000),
                None,
            )
        ]
    ],
    "CREATE TABLE #m (t varchar(30), d datetime); INSERT #m (t) VALUES ('20241130 18:30:00:123'); UPDATE #m SET d = t; "
    "EXEC ('INSERT #m (d) SELECT ''20241130 18:30:00:123'''); SELECT MIN(d), MAX(d), COUNT(d) FROM #m": [
        [(datetime(2024, 11, 30, 18, 30, 0, 123000), datetime(2024, 11, 30, 18, 30, 0, 123000), 2)]
    ],
    "SELECT wait_time_ms / waiting_tasks_count FROM sys.dm_os_wait_stats WHERE waiting_tasks_count > 0": [[]],
    "CREATE ROLE Loaders; GRANT SELECT, CREATE EXTERNAL LIBRARY, ALTER ANY SENSITIVITY CLASSIFICATION TO Loaders": [
        "GRANT CREATE EXTERNAL LIBRARY, ALTER ANY SENSITIVITY CLASSIFICATION changes nothing: the permission is never "
        "checked here."
    ],
    "SELECT c.TABLE_CATALOG, c.CONSTRAINT_CATALOG, r.UNIQUE_CONSTRAINT_CATALOG, k.TABLE_CATALOG "
    "FROM INFORMATION_SCHEMA.REFERENTIAL_CONSTRAINTS r JOIN INFORMATION_SCHEMA.CONSTRAINT_COLUMN_USAGE c "
    "ON c.CONSTRAINT_CATALOG = r.CONSTRAINT_CATALOG JOIN INFORMATION_SCHEMA.KEY_COLUMN_USAGE k ON 1 = 1": [[]],
    "SELECT name FROM sys.columns WHERE object_id = OBJECT_ID('B') AND is_sparse = 0": [[("Id",), ("Y",)]],
    "SELECT DATALENGTH(ISNULL(Doc, '<b/>')) / 100, LEN(CAST(Doc AS nvarchar(max))) FROM Docs": [[(0, 4)]],
    "SELECT 2E + .5e- + 1.0E+, 1E1, SQL_VARIANT_PROPERTY(1e, 'BaseType'), CASE WHEN 1 = 1 THEN 2E END; PRINT 3E": [
        [(3.5, 10.0, "float", 2.0)],
        "3",
    ],
    "EXEC Variant 'abc'; EXEC Variant @v = N'abc'; EXEC Variant 0x0A0B; EXEC Variant ''; EXEC Variant 7": [
        [("varchar", 3, 11)],
        [("nvarchar", 6, 14)],
        [("varbinary", 2, 6)],
        [("varchar", 1, 8)],
        [("int", 4, 6)],
    ],
    "DECLARE @r int; EXEC @r = Plus 1; PRINT @r; EXEC @r = dbo.Plus @b = 2, @a = 3; PRINT @r": ["11", "5"],
    "SET XACT_ABORT ON; PRINT @@OPTIONS & 16384; SET XACT_ABORT OFF; PRINT @@OPTIONS": ["16384", "5496"],
    "SELECT CHARINDEX('B', 'abc' COLLATE Latin1_General_CI_AS), CHARINDEX('B', 'abc')": [[(2, 0)]],
    r"SELECT REPLACE('aA.a' COLLATE Latin1_General_CI_AS, 'a.', '\1'), REPLACE('aA', 'a', 'x')": [[(r"a\1a", "xA")]],
    "SELECT CAST(N'é日' AS varchar(5)), CAST(N'日' AS nvarchar(5))": [[("é?", "日")]],
    "SELECT CONVERT(varchar(20), CAST('16:07:08' AS time(0)), 100)": [[("4:07PM",)]],
    "SELECT CAST(1.5 AS float) AS f FOR XML PATH('t')": [[("<t><f>1.500000000000000e+000</f></t>",)]],
    "SELECT CAST(1.5 AS float) AS f FOR JSON PATH": [[('[{"f":1.500000000000000e+000}]',)]],
    "DECLARE @x xml = '<d><a/><a>2</a></d>', @n int = 2; SELECT @x.value('(/d/a)[sql:variable(\"@n\")][1]', 'int')": [
        [(2,)]
    ],
    "DECLARE @d datetime2(0) = '2024-01-01 02:00 +12:15', @t time(0) = '2024-01-01T02:00:00Z'; "
    "SELECT CONVERT(varchar(30), @d, 120), CONVERT(varchar(9), @t), "
    "CAST('2024-01-01 02:00 +12:15' AS date), CAST('02:00 -14:00' AS time(0))": [
        [("2024-01-01 02:00:00", "02:00:00", date(2024, 1, 1), time(2))]
    ],
    "EXEC sp_addmessage 50010, 16, N'Order %d of %s'; EXEC sp_addmessage 50010, 11, N'%d of %s', @replace = 'replace' "
    "BEGIN TRY RAISERROR (50010, -1, 3, 7, 'Ann') END TRY BEGIN CATCH "
    "SELECT ERROR_NUMBER(), ERROR_SEVERITY(), ERROR_STATE(), ERROR_MESSAGE() END CATCH "
    "SELECT FORMATMESSAGE(50010, 8, 'Bob'), FORMATMESSAGE(59000), severity FROM sys.messages WHERE message_id = 50010 "
    "EXEC sp_dropmessage 50010, 'all'": [[(50010, 11, 3, "7 of Ann")], [("8 of Bob", None, 11)]],
    "DECLARE @l TABLE (spid int, dbid int, o bigint, i int, t varchar(9), r varchar(99), m varchar(9), s varchar(9)) "
    "INSERT @l EXEC sp_lock @@SPID; SELECT DISTINCT spid - @@SPID FROM @l": [[(0,)]],
    'DECLARE @h int; EXEC sp_xml_preparedocument @h OUTPUT, N\'<r><c id="7" n="x"><o k="1"/><o k="2"/><t>T</t></c>'
    "<c id=\"8\"/></r>' SELECT * FROM OPENXML(@h, '/r/c', 1) WITH (id int, n varchar(9)) "
    "SELECT * FROM OPENXML (@h, N'r/c', 2) WITH (t varchar(9), i int '@id') a WHERE a.t LIKE 'T%' "
    "SELECT o.k, o.i FROM OPENXML(@h, '//o') WITH (k int, i int '../@id') AS o ORDER BY k DESC "
    "SELECT t, id, x INTO #x FROM OPENXML(@h, '/r/c[@n]', 3) WITH (t varchar(9), id int, x xml 't') SELECT * FROM #x "
    "EXEC sp_xml_removedocument @h": [[(7, "x"), (8, None)], [("T", 7)], [(2, 7), (1, 7)], [("T", 7, "<t>T</t>")]],
    "SELECT $IDENTITY FROM N": [[(1,)]],
    "DECLARE @d sql_variant = CAST('2024-01-02' AS datetime), @b sql_variant = 0x0A "
    "SELECT SQL_VARIANT_PROPERTY(CAST(5 AS sql_variant), 'Precision') p, @d d, @b b, CAST(N'a<' AS sql_variant) s "
    "FOR XML PATH('')": [[("<p>10</p><d>2024-01-02T00:00:00</d><b>Cg==</b><s>a&lt;</s>",)]],
    "DECLARE @i sql_variant = 5, @b sql_variant = CAST(1 AS bit) SELECT @i i, @b b, CAST('x' AS sql_variant) s "
    "FOR JSON PATH": [[('[{"i":5,"b":true,"s":"x"}]',)]],
    "SELECT dbo.OwnName(1), OBJECT_NAME(@@PROCID), CONVERT(bit, 5, 0), CONVERT(time(0), '10:00:00', 0), "
    "LEN(CONVERT(varchar(36), NEWID(), 1)), CONVERT(date, CAST('2024-01-02 10:00' AS datetime2), 112), "
    "CONVERT(int, '7', 120), CONVERT(decimal(5, 2), 1.5, 2), CONVERT(varchar(9), 1.5, 1), CONVERT(datetime, 1, 101)": [
        [("OwnName", None, 1, time(10), 36, date(2024, 1, 2), 7, Decimal("1.50"), "1.5", datetime(1900, 1, 2))]
    ],
    "CREATE ROLE Runners GRANT EXEC ON TakeBit TO Runners SELECT permission_name FROM sys.database_permissions "
    "WHERE grantee_principal_id = DATABASE_PRINCIPAL_ID('Runners') REVOKE EXEC ON dbo.TakeBit FROM Runners": [
        [("EXECUTE",)]
    ],
    "BEGIN TRAN CREATE LOGIN Later WITH PASSWORD = 'aB1!cdefgh' ROLLBACK SELECT COUNT(*) FROM sys.server_principals "
    "WHERE name = 'Later'; CREATE LOGIN Later WITH PASSWORD = 'aB1!cdefgh'; BEGIN TRAN DROP LOGIN Later ROLLBACK "
    "SELECT COUNT(*) FROM sys.server_principals WHERE name = 'Later'; BEGIN TRAN DROP LOGIN Later COMMIT "
    "SELECT COUNT(*) FROM sys.server_principals WHERE name = 'Later'": [[(0,)], [(1,)], [(0,)]],
    "SELECT CAST('-' AS int), CAST('+ ' AS tinyint), CAST('-' AS bit), CAST('-.' AS money), CAST('$' AS smallmoney), "
    "TRY_CAST('-' AS decimal(5, 2)), TRY_CAST('.' AS float)": [[(0, 0, 0, 0, 0, None, None)]],
    "DECLARE @s varchar(9) = '-', @i int, @m money; SET @i = @s; SET @m = @s; SELECT @i, @m": [[(0, 0)]],
    "SELECT Doc FROM Docs UNION ALL SELECT Doc FROM Docs": [[("<a/>",), ("<a/>",)]],
    "SELECT COUNT(Doc) FROM Docs WHERE Doc IS NOT NULL": [[(1,)]],
    "SELECT DISTINCT resource_database_id - DB_ID() FROM sys.dm_tran_locks WHERE resource_type = 'OBJECT' "
    "AND request_session_id = @@SPID AND resource_database_id <> 0": [[]],
    f"DECLARE @s varchar(max); SET @s = {' + '.join(['CAST(1 AS varchar(9))'] * 600)}; SELECT LEN(@s)": [[(600,)]],
    "SELECT COUNT(*) FROM (SELECT TOP (1000) object_id FROM sys.all_objects) t": [[(1000,)]],
    "SELECT COUNT(*) FROM (SELECT TOP (1000) object_id FROM sys.all_columns) t": [[(1000,)]],
    "SELECT COUNT(*) FROM sys.objects WHERE is_ms_shipped = 0 AND type = 'FN'": [[(2,)]],
    "SELECT name, is_instead_of_trigger FROM sys.triggers ORDER BY name": [[("After", 0), ("Away", 1)]],
    "CREATE TABLE S (a int, b money, c datetime2(3), d time(0), e varchar(9)); "
    "SELECT precision, scale, max_length FROM sys.columns WHERE object_id = OBJECT_ID('S') ORDER BY column_id": [
        [(10, 0, 4), (19, 4, 8), (23, 3, 7), (8, 0, 3), (0, 0, 9)]
    ],
    "SELECT COUNT(*) FROM (SELECT TRY_CAST(RAND() * 1000 AS decimal(2, 0)) AS d FROM sys.all_objects) t WHERE d > 99": [
        [(0,)]
    ],
}
LEVELS = {
    "UPDATE A a = 1": (102, 15, 1),
    "CREATE QUEUE Q WITH STATUS ON": (102, 15, 1),
    "SELECT @missing": (137, 15, 2),
    "SELECT NOSUCH(1)": (195, 15, 10),
    "SELECT CAST('2024-13-01' AS datetime)": (242, 16, 3),
    "SELECT CAST('x' AS decimal(5, 2))": (8114, 16, 5),
    "SELECT CAST(5 AS date)": (529, 16, 2),
    "SELECT CAST('x' AS money)": (235, 16, 0),
}


@pytest.fixture(scope="module")
def scripts(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "Strangers", OBJECTS)


@pytest.mark.parametrize("script", ERRORS)
def test_errors(scripts: sb.Database, script: str) -> None:
    number, text = ERRORS[script]
    error = failing(scripts, script)
    assert (error.number, error.text[: len(text)]) == (number, text)


@pytest.mark.parametrize("script", OUTPUT)
def test_output(scripts: sb.Database, script: str) -> None:
    assert output_of(scripts, script) == OUTPUT[script]


@pytest.mark.parametrize("script", LEVELS)
def test_level_and_state(scripts: sb.Database, script: str) -> None:
    error = failing(scripts, script)
    assert (error.number, error.severity, error.state) == LEVELS[script]


def test_an_unknown_collation_of_a_database_has_its_line(scripts: sb.Database) -> None:
    for statement in ("CREATE DATABASE Q COLLATE No_Such", "ALTER DATABASE CURRENT COLLATE No_Such"):
        error = failing(scripts, f"PRINT 'a'\n{statement}")
        assert (error.number, error.line) == (448, 2)


def test_nested_len_is_translated_in_no_time(scripts: sb.Database) -> None:
    depth = 40  # a translation that writes the argument twice would double its text at each level
    assert output_of(scripts, f"SELECT {'LEN(' * depth}'abc'{')' * depth}") == [[(1,)]]


def test_a_name_with_half_of_a_surrogate_pair(scripts: sb.Database) -> None:
    assert failing(scripts, "SELECT (SELECT Id '\ud800', X FROM A)").number == 15151
