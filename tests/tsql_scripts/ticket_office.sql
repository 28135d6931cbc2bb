-- Seats are sold once: isolation levels, savepoints, application locks, views that write, timers that give back what
-- nobody pays, and an answer to each buyer, whatever has become of the seat.
USE master
GO
WHILE EXISTS (SELECT NULL FROM sys.databases WHERE name = 'Tickets9')
BEGIN
    DROP DATABASE Tickets9
END
GO
CREATE DATABASE Tickets9
GO
ALTER DATABASE Tickets9 SET ALLOW_SNAPSHOT_ISOLATION ON
ALTER DATABASE Tickets9 SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE
GO
USE Tickets9
GO
SET NOCOUNT ON;
SET LOCK_TIMEOUT 5000;
SET DEADLOCK_PRIORITY LOW;
GO
CREATE SCHEMA Hall
GO
CREATE SCHEMA Office AUTHORIZATION dbo
GO
CREATE TABLE Hall.Seat
(
    [Row] CHAR(1) NOT NULL,
    Number SMALLINT NOT NULL,
    Buyer NVARCHAR(40) NULL,
    [Until] DATETIME2(3) NULL,
    [State] AS (CASE WHEN Buyer IS NULL THEN 'free' WHEN [Until] IS NULL THEN 'sold' ELSE 'held' END),
    CONSTRAINT PK_Seat PRIMARY KEY CLUSTERED ([Row], Number),
    CONSTRAINT CK_Seat_Row CHECK ([Row] LIKE '[A-C]')
)
CREATE TABLE Hall.Price ([Row] CHAR(1) PRIMARY KEY, Amount SMALLMONEY NOT NULL)
CREATE TABLE Office.Sale
(
    SaleId BIGINT NOT NULL CONSTRAINT DF_Sale_Id DEFAULT (0),
    Buyer NVARCHAR(40) NOT NULL,
    Seats INT NOT NULL,
    Amount SMALLMONEY NOT NULL,
    SoldAt DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP
)
GO
;WITH n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 4)
INSERT INTO Hall.Seat ([Row], Number) SELECT r.[Row], n.i FROM (VALUES ('A'), ('B'), ('C')) AS r ([Row]) CROSS JOIN n
INSERT Hall.Price SELECT 'A', 50 UNION SELECT 'B', 30 UNION SELECT 'C', 12.50
GO
CREATE SEQUENCE Office.SaleNumbers AS INT START WITH 1 INCREMENT BY 1
GO
CREATE VIEW Hall.Free WITH VIEW_METADATA AS
SELECT s.[Row], s.Number, s.Buyer FROM Hall.Seat AS s WHERE s.Buyer IS NULL
WITH CHECK OPTION
GO
CREATE VIEW Office.Sold AS
SELECT s.Buyer, s.[Row], s.Number, p.Amount
FROM Hall.Seat s, Hall.Price p
WHERE p.[Row] = s.[Row] AND s.Buyer IS NOT NULL AND s.[Until] IS NULL
GO
-- giving tickets back is deleting from the view
CREATE TRIGGER Office.GiveBack ON Office.Sold INSTEAD OF DELETE
AS
BEGIN
    SET NOCOUNT ON
    UPDATE Hall.Seat SET Buyer = NULL, [Until] = NULL
    FROM Hall.Seat s INNER JOIN deleted d ON d.[Row] = s.[Row] AND d.Number = s.Number
    PRINT 'given back: ' + CAST((SELECT COUNT(*) FROM deleted) AS VARCHAR(10))
END
GO
CREATE SYNONYM dbo.Seats FOR Tickets9.Hall.Seat
GO
CREATE MESSAGE TYPE [tickets/wish] VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE [tickets/held] VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE [tickets/pay] VALIDATION = EMPTY
CREATE MESSAGE TYPE [tickets/none] VALIDATION = NONE
CREATE CONTRACT [tickets/buying]
    ([tickets/wish] SENT BY INITIATOR, [tickets/held] SENT BY TARGET, [tickets/pay] SENT BY INITIATOR, [tickets/none] SENT BY TARGET)
CREATE QUEUE Office.BuyerQueue
CREATE QUEUE Office.OfficeQueue
CREATE SERVICE [tickets/buyer] ON QUEUE Office.BuyerQueue
CREATE SERVICE [tickets/office] ON QUEUE Office.OfficeQueue ([tickets/buying])
GO
CREATE PROCEDURE Office.Hold @buyer NVARCHAR(40), @row CHAR(1), @count INT, @got INT OUTPUT
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @lock INT, @name NVARCHAR(32)
    SELECT @name = N'row ' + @row, @got = 0
    SET TRANSACTION ISOLATION LEVEL SERIALIZABLE
    BEGIN TRANSACTION
    EXEC @lock = sp_getapplock @Resource = @name, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 1000
    IF @lock < 0
    BEGIN
        ROLLBACK TRANSACTION
        RETURN -1
    END
    SAVE TRANSACTION BeforeSeats
    UPDATE TOP (@count) Hall.Seat WITH (ROWLOCK, READPAST)
    SET Buyer = @buyer, [Until] = DATEADD(MINUTE, 10, SYSDATETIME())
    OUTPUT inserted.[Row], inserted.Number
    WHERE [Row] = @row AND Buyer IS NULL
    SET @got = @@ROWCOUNT
    IF @got < @count
    BEGIN
        ROLLBACK TRANSACTION BeforeSeats
        SET @got = 0
    END
    COMMIT TRANSACTION
    RETURN @got
END
GO
CREATE PROCEDURE Office.Serve
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @handle UNIQUEIDENTIFIER, @type NVARCHAR(256), @body XML, @buyer NVARCHAR(40), @row CHAR(1), @count INT, @got INT, @sum SMALLMONEY, @reply XML
    WHILE (1 = 1)
    BEGIN
        BEGIN TRANSACTION
        WAITFOR (RECEIVE TOP (1) @handle = conversation_handle, @type = message_type_name, @body = CAST(message_body AS XML) FROM Office.OfficeQueue), TIMEOUT 50
        IF (@@ROWCOUNT = 0)
        BEGIN
            COMMIT TRANSACTION
            BREAK
        END
        IF (@type = 'tickets/wish')
        BEGIN
            SELECT @buyer = w.x.value('(@buyer)[1]', 'NVARCHAR(40)'), @row = w.x.value('(@row)[1]', 'CHAR(1)'), @count = w.x.value('(@count)[1]', 'INT')
            FROM @body.nodes('/wish') AS w(x)
            EXEC Office.Hold @buyer, @row, @count, @got OUTPUT
            IF @got > 0
            BEGIN
                SET @reply = (SELECT [Row] AS [@row], Number AS [@number] FROM Hall.Seat WHERE Buyer = @buyer AND [State] = 'held' ORDER BY Number FOR XML PATH('seat'), ROOT('held'), TYPE);
                SEND ON CONVERSATION @handle MESSAGE TYPE [tickets/held] (@reply)
                BEGIN CONVERSATION TIMER (@handle) TIMEOUT = 1
            END
            ELSE
            BEGIN
                SEND ON CONVERSATION @handle MESSAGE TYPE [tickets/none] (N'no ' + CAST(@count AS NVARCHAR(5)) + N' in ' + @row)
                END CONVERSATION @handle
            END
        END
        ELSE IF (@type = 'tickets/pay' OR @type = 'http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer')
        BEGIN
            SELECT @buyer = [Buyer] FROM Office.Waiting WHERE Handle = @handle
            IF @type = 'tickets/pay'
            BEGIN
                SELECT @count = COUNT(*), @sum = SUM(p.Amount) FROM Hall.Seat s JOIN Hall.Price p ON p.[Row] = s.[Row] WHERE s.Buyer = @buyer AND s.[Until] IS NOT NULL
                INSERT Office.Sale (SaleId, Buyer, Seats, Amount) VALUES (NEXT VALUE FOR Office.SaleNumbers, @buyer, @count, @sum)
                UPDATE Hall.Seat SET [Until] = NULL WHERE Buyer = @buyer
                BEGIN CONVERSATION TIMER (@handle) TIMEOUT = 86400
                END CONVERSATION @handle
            END
            ELSE
            BEGIN
                UPDATE Hall.Seat SET Buyer = NULL, [Until] = NULL WHERE Buyer = @buyer AND [Until] IS NOT NULL
                END CONVERSATION @handle WITH ERROR = 408 DESCRIPTION = N'not paid in time'
            END
        END
        ELSE
            END CONVERSATION @handle
        COMMIT TRANSACTION
    END
END
GO
CREATE TABLE Office.Waiting (Handle UNIQUEIDENTIFIER PRIMARY KEY, Buyer NVARCHAR(40) NOT NULL)
GO
CREATE PROCEDURE Office.Wish @buyer NVARCHAR(40), @row CHAR(1), @count INT
AS
    DECLARE @h UNIQUEIDENTIFIER, @wish XML
    SET @wish = (SELECT @buyer AS buyer, @row AS [row], @count AS [count] FOR XML RAW('wish'), TYPE)
    BEGIN DIALOG CONVERSATION @h FROM SERVICE [tickets/buyer] TO SERVICE 'tickets/office' ON CONTRACT [tickets/buying] WITH ENCRYPTION = OFF;
    SEND ON CONVERSATION @h MESSAGE TYPE [tickets/wish] (@wish)
    INSERT Office.Waiting SELECT e2.conversation_handle, @buyer FROM sys.conversation_endpoints e1
        INNER JOIN sys.conversation_endpoints e2 ON e2.conversation_id = e1.conversation_id AND e2.is_initiator = 0 WHERE e1.conversation_handle = @h
GO
EXEC Office.Wish N'Lea', 'A', 2
EXEC Office.Wish N'Max', 'B', 3
EXEC Office.Wish N'Ida', 'A', 3
EXEC Office.Wish N'Tom', 'C', 1
GO
EXEC Office.Serve
SELECT message_type_name, CAST(message_body AS NVARCHAR(200)) AS body FROM Office.BuyerQueue ORDER BY queuing_order
SELECT [Row], COUNT(*) AS held FROM dbo.Seats WHERE [State] = 'held' GROUP BY [Row] ORDER BY [Row]
GO
-- two of them pay, one waits too long
DECLARE @h UNIQUEIDENTIFIER, @buyer NVARCHAR(40), @types NVARCHAR(MAX) = N''
DECLARE paying CURSOR LOCAL STATIC FOR
    SELECT i.conversation_handle, w.Buyer FROM Office.Waiting w
    INNER JOIN sys.conversation_endpoints t ON t.conversation_handle = w.Handle
    INNER JOIN sys.conversation_endpoints i ON i.conversation_id = t.conversation_id AND i.is_initiator = 1
    WHERE w.Buyer IN (N'Lea', N'Max') ORDER BY w.Buyer
OPEN paying
FETCH NEXT FROM paying INTO @h, @buyer
WHILE @@FETCH_STATUS = 0
BEGIN
    SEND ON CONVERSATION @h MESSAGE TYPE [tickets/pay]
    SET @types += @buyer + N' pays; '
    FETCH NEXT FROM paying INTO @h, @buyer
END
CLOSE paying
DEALLOCATE paying
PRINT @types
EXEC Office.Serve
WAITFOR DELAY '00:00:01.200'
EXEC Office.Serve
GO
SELECT SaleId, Buyer, Seats, Amount FROM Office.Sale ORDER BY SaleId
SELECT Buyer, [Row], Number, Amount FROM Office.Sold ORDER BY [Row], Number
SELECT message_type_name, COUNT(*) AS n FROM Office.BuyerQueue GROUP BY message_type_name ORDER BY message_type_name
GO
DELETE FROM Office.Sold WHERE Buyer = N'Max' AND Number = 2
BEGIN TRY
    INSERT Hall.Free ([Row], Number, Buyer) VALUES ('C', 9, N'Eve')
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER() AS number
END CATCH
GO
-- SNAPSHOT sees one state to its end
SET TRANSACTION ISOLATION LEVEL SNAPSHOT
BEGIN TRANSACTION
SELECT COUNT(*) AS free_seats FROM Hall.Free
COMMIT
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
SELECT [State], COUNT(*) AS n FROM Hall.Seat GROUP BY [State] ORDER BY [State]
SELECT state, COUNT(*) AS n FROM sys.conversation_endpoints WHERE is_initiator = 1 GROUP BY state ORDER BY state
SELECT MAX(CAST(current_value AS INT)) AS sales FROM sys.sequences WHERE name = 'SaleNumbers'
GO
USE master
GO
DROP DATABASE Tickets9
