-- A nightly import in the style of the year 2000: @@ERROR behind each statement, GOTO to one place that cleans up,
-- cursors, temporary tables, dynamic SQL; what was imported is told to a service as XML, which answers for each file.
SET NOCOUNT ON
GO
IF EXISTS (SELECT name FROM master.dbo.sysdatabases WHERE name = N'Imports')
    DROP DATABASE [Imports]
GO
CREATE DATABASE [Imports] COLLATE Latin1_General_BIN2
GO
USE [Imports]
GO
if not exists (select * from sys.schemas where name = 'stage')
    exec ('create schema stage')
GO
CREATE TABLE stage.Lines
(
    LineId   INT IDENTITY(1, 1) NOT NULL,
    FileName VARCHAR(60) NOT NULL,
    Article  CHAR(6) NULL,
    Amount   VARCHAR(20) NULL,
    Price    VARCHAR(20) NULL,
    Problem  VARCHAR(100) NULL,
    CONSTRAINT PK_Lines PRIMARY KEY CLUSTERED (LineId)
)
CREATE TABLE dbo.Articles
(
    Article CHAR(6) NOT NULL CONSTRAINT PK_Articles PRIMARY KEY,
    Stock   INT NOT NULL CONSTRAINT DF_Articles_Stock DEFAULT 0,
    Price   MONEY NOT NULL,
    Changed SMALLDATETIME NOT NULL CONSTRAINT DF_Articles_Changed DEFAULT ('20240301 10:00'),
    Worth AS (Stock * Price)
)
CREATE TABLE dbo.Files
(
    FileName VARCHAR(60) NOT NULL PRIMARY KEY,
    Lines    INT NOT NULL,
    Bad      INT NOT NULL,
    Ticket   BIGINT NOT NULL,
    Answer   NVARCHAR(100) NULL
)
GO
CREATE SEQUENCE dbo.Tickets AS BIGINT START WITH 500 INCREMENT BY 5 NO CYCLE CACHE 10
GO
INSERT INTO dbo.Articles (Article, Stock, Price) VALUES ('A00001', 10, $1.50)
INSERT INTO dbo.Articles (Article, Stock, Price) SELECT 'A00002', 0, 20 UNION ALL SELECT 'A00003', 7, 0.25
GO
CREATE MESSAGE TYPE ImportedFile AUTHORIZATION dbo VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE FileAnswer VALIDATION = NONE
CREATE CONTRACT ImportContract (ImportedFile SENT BY INITIATOR, FileAnswer SENT BY TARGET)
CREATE QUEUE ImportQueue
CREATE QUEUE LedgerQueue WITH STATUS = ON, RETENTION = ON
CREATE SERVICE ImportService ON QUEUE ImportQueue (ImportContract)
CREATE SERVICE LedgerService ON QUEUE LedgerQueue (ImportContract)
GO
/* Splits one line "article;amount;price". An old style function with a loop. */
CREATE FUNCTION dbo.Part (@line VARCHAR(200), @number INT)
RETURNS VARCHAR(200)
AS
BEGIN
    DECLARE @place INT, @next INT
    SELECT @place = 1, @next = CHARINDEX(';', @line + ';')
    WHILE @number > 1
    BEGIN
        SET @place = @next + 1
        SET @next = CHARINDEX(';', @line + ';', @place)
        SET @number = @number - 1
    END
    RETURN LTRIM(RTRIM(SUBSTRING(@line + ';', @place, @next - @place)))
END
GO
CREATE PROCEDURE stage.AddLine @file VARCHAR(60), @line VARCHAR(200)
AS
    DECLARE @code INT
    INSERT stage.Lines (FileName, Article, Amount, Price)
    SELECT @file, dbo.Part(@line, 1), dbo.Part(@line, 2), dbo.Part(@line, 3)
    SELECT @code = @@ERROR
    IF @code <> 0
        RETURN @code
    RETURN 0
GO
CREATE PROCEDURE stage.Judge
AS
    SET NOCOUNT ON
    UPDATE stage.Lines SET Problem = 'no number' WHERE ISNUMERIC(Amount) = 0 OR ISNUMERIC(Price) = 0
    UPDATE l
       SET Problem = 'unknown article'
      FROM stage.Lines AS l LEFT OUTER JOIN dbo.Articles AS a ON a.Article = l.Article
     WHERE a.Article IS NULL AND l.Problem IS NULL
    RETURN (SELECT COUNT(*) FROM stage.Lines WHERE Problem IS NOT NULL)
GO
CREATE PROCEDURE dbo.TakeOver @file VARCHAR(60), @ticket BIGINT OUTPUT
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @id INT, @article CHAR(6), @amount INT, @price MONEY, @error INT, @lines INT, @bad INT
    DECLARE @handle UNIQUEIDENTIFIER, @body XML

    BEGIN TRANSACTION TakeOver
    DECLARE Walk CURSOR LOCAL FAST_FORWARD FOR
        SELECT LineId, Article, CAST(Amount AS INT), CONVERT(MONEY, Price)
        FROM stage.Lines WHERE FileName = @file AND Problem IS NULL ORDER BY LineId
    OPEN Walk
    FETCH NEXT FROM Walk INTO @id, @article, @amount, @price
    WHILE (@@FETCH_STATUS <> -1)
    BEGIN
        IF (@@FETCH_STATUS <> -2)
        BEGIN
            UPDATE dbo.Articles SET Stock = Stock + @amount, Price = @price WHERE Article = @article
            SET @error = @@ERROR
            IF @error <> 0 GOTO Undo
            IF (SELECT Stock FROM dbo.Articles WHERE Article = @article) < 0
            BEGIN
                RAISERROR ('Line %d of %s would sell what is not there.', 16, 1, @id, @file)
                GOTO Undo
            END
        END
        FETCH NEXT FROM Walk INTO @id, @article, @amount, @price
    END
    CLOSE Walk
    DEALLOCATE Walk

    SELECT @lines = COUNT(*), @bad = SUM(CASE WHEN Problem IS NULL THEN 0 ELSE 1 END)
    FROM stage.Lines WHERE FileName = @file
    SET @ticket = NEXT VALUE FOR dbo.Tickets
    INSERT dbo.Files (FileName, Lines, Bad, Ticket) VALUES (@file, @lines, @bad, @ticket)
    SET @error = @@ERROR
    IF @error <> 0 GOTO Undo

    SET @body = (
        SELECT @ticket AS [@ticket], @file AS [@name],
               (SELECT Article AS [@article], Amount AS [@amount] FROM stage.Lines
                 WHERE FileName = @file AND Problem IS NULL ORDER BY LineId FOR XML PATH('line'), TYPE)
           FOR XML PATH('file'))
    BEGIN DIALOG CONVERSATION @handle
        FROM SERVICE ImportService TO SERVICE 'LedgerService' ON CONTRACT ImportContract WITH ENCRYPTION = OFF;
    SEND ON CONVERSATION @handle MESSAGE TYPE ImportedFile (@body)
    COMMIT TRANSACTION TakeOver
    RETURN 0

Undo:
    IF CURSOR_STATUS('local', 'Walk') >= 0
    BEGIN
        CLOSE Walk
        DEALLOCATE Walk
    END
    IF @@TRANCOUNT > 0
        ROLLBACK TRANSACTION
    SET @ticket = NULL
    RETURN 1
END
GO
CREATE PROCEDURE dbo.Book
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @handle UNIQUEIDENTIFIER, @type SYSNAME, @body XML, @answer NVARCHAR(100)
    WHILE 1 = 1
    BEGIN
        BEGIN TRAN
        WAITFOR (
            RECEIVE TOP (1) @handle = conversation_handle, @type = message_type_name, @body = CAST(message_body AS XML)
            FROM dbo.LedgerQueue
        ), TIMEOUT 200
        IF @@ROWCOUNT = 0
        BEGIN
            ROLLBACK
            BREAK
        END
        IF @type = N'ImportedFile'
        BEGIN
            SELECT @answer = N'file ' + f.x.value('@name', 'nvarchar(60)') + N': '
                 + CONVERT(NVARCHAR(10), f.x.value('count(line)', 'int')) + N' lines, '
                 + CAST(f.x.value('sum(line/@amount)', 'int') AS NVARCHAR(10)) + N' pieces'
            FROM @body.nodes('/file') AS f(x);
            SEND ON CONVERSATION @handle MESSAGE TYPE FileAnswer (@answer)
            END CONVERSATION @handle
        END
        ELSE IF @type IN (N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog',
                          N'http://schemas.microsoft.com/SQL/ServiceBroker/Error')
            END CONVERSATION @handle
        COMMIT TRAN
    END
END
GO
-- the files of the night
EXEC stage.AddLine 'one.txt', 'A00001; 5; 1.75'
EXEC stage.AddLine 'one.txt', 'A00002;100;19.99'
EXEC stage.AddLine 'one.txt', 'A00009;1;1'
EXEC stage.AddLine @file = 'two.txt', @line = 'A00003;many;0.30'
EXEC stage.AddLine @line = 'A00003;3;0.30', @file = 'two.txt'
EXEC stage.AddLine 'bad.txt', 'A00001;-400;1'
DECLARE @rc INT
EXEC @rc = stage.Judge
PRINT 'lines with a problem: ' + LTRIM(STR(@rc))
GO
DECLARE @file VARCHAR(60), @ticket BIGINT, @rc INT
CREATE TABLE #done (FileName VARCHAR(60), Code INT, Ticket BIGINT)
DECLARE files SCROLL CURSOR FOR SELECT DISTINCT FileName FROM stage.Lines ORDER BY FileName DESC
OPEN files
FETCH FIRST FROM files INTO @file
WHILE @@FETCH_STATUS = 0
BEGIN
    EXEC @rc = dbo.TakeOver @file, @ticket OUTPUT
    INSERT #done VALUES (@file, @rc, @ticket)
    FETCH NEXT FROM files INTO @file
END
CLOSE files
DEALLOCATE files
SELECT FileName, Code, Ticket FROM #done ORDER BY FileName
DROP TABLE #done
GO
SELECT Article, Stock, Price, Worth FROM dbo.Articles ORDER BY Article
SELECT FileName, Article, Problem FROM stage.Lines WHERE Problem IS NOT NULL ORDER BY LineId
GO
EXEC dbo.Book
GO
-- the answers, taken with a table variable and put beside their files by dynamic SQL
DECLARE @answers TABLE (Handle UNIQUEIDENTIFIER, Type SYSNAME, Body NVARCHAR(MAX))
DECLARE @handle UNIQUEIDENTIFIER, @sql NVARCHAR(500), @count INT, @text NVARCHAR(100)
WHILE 1 = 1
BEGIN
    RECEIVE conversation_handle, message_type_name, CAST(message_body AS NVARCHAR(MAX)) FROM dbo.ImportQueue INTO @answers
    IF @@ROWCOUNT = 0 BREAK
END
SET @sql = N'UPDATE dbo.Files SET Answer = @text WHERE @text LIKE N''file '' + FileName + N'':%''; SET @n = @n + @@ROWCOUNT'
SET @count = 0
DECLARE walk CURSOR LOCAL STATIC FOR SELECT Handle, Body FROM @answers WHERE Type = N'FileAnswer'
OPEN walk
FETCH NEXT FROM walk INTO @handle, @text
WHILE @@FETCH_STATUS = 0
BEGIN
    EXEC sp_executesql @sql, N'@text NVARCHAR(100), @n INT OUTPUT', @text = @text, @n = @count OUTPUT
    END CONVERSATION @handle
    FETCH NEXT FROM walk INTO @handle, @text
END
CLOSE walk DEALLOCATE walk
PRINT CONVERT(VARCHAR(10), @count) + ' answers'
SELECT FileName, Lines, Bad, Ticket, Answer FROM dbo.Files ORDER BY Ticket
SELECT COUNT(*) AS kept FROM dbo.LedgerQueue
GO
EXEC dbo.Book
SELECT e.state_desc, COUNT(*) AS n FROM sys.conversation_endpoints AS e GROUP BY e.state_desc ORDER BY 1
SELECT [A00001], [A00002], [A00003]
FROM (SELECT Article, Stock FROM dbo.Articles) AS s PIVOT (SUM(Stock) FOR Article IN ([A00001], [A00002], [A00003])) AS p
GO
USE master
DROP DATABASE Imports
