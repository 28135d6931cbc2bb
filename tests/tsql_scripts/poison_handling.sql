-- Three attempts at a message, then a table of dead letters; five rollbacks switch the queue off, which is told.
USE master
IF DB_ID('Poison') IS NOT NULL DROP DATABASE Poison
CREATE DATABASE Poison
GO
USE Poison
GO
CREATE MESSAGE TYPE [Work] VALIDATION = NONE
CREATE CONTRACT [WorkContract] ([Work] SENT BY ANY)
CREATE QUEUE [WorkQueue]
CREATE QUEUE [AskQueue]
CREATE QUEUE [EventQueue]
CREATE SERVICE [Worker] ON QUEUE [WorkQueue] ([WorkContract])
CREATE SERVICE [Asker] ON QUEUE [AskQueue] ([WorkContract])
CREATE SERVICE [Events] ON QUEUE [EventQueue] ([http://schemas.microsoft.com/SQL/Notifications/PostEventNotification])
CREATE EVENT NOTIFICATION [Disabled] ON QUEUE [WorkQueue] FOR BROKER_QUEUE_DISABLED TO SERVICE 'Events', 'current database'
GO
CREATE TABLE Attempts (Handle UNIQUEIDENTIFIER PRIMARY KEY, N INT NOT NULL)
CREATE TABLE DeadLetters (Id INT IDENTITY(1, 1) PRIMARY KEY, Handle UNIQUEIDENTIFIER, Body NVARCHAR(MAX), Error NVARCHAR(2048), At DATETIME2(3) DEFAULT SYSUTCDATETIME())
CREATE TABLE Results (Value INT)
GO
CREATE PROCEDURE Work1 @body NVARCHAR(MAX) AS
    INSERT Results SELECT CONVERT(INT, @body)
GO
CREATE PROCEDURE HandleWork AS
SET NOCOUNT ON
DECLARE @h UNIQUEIDENTIFIER, @type NVARCHAR(256), @body NVARCHAR(MAX), @n INT
Next:
BEGIN TRANSACTION
SAVE TRANSACTION BeforeReceive
SET @h = NULL;
WAITFOR (RECEIVE TOP(1) @h = conversation_handle, @type = message_type_name, @body = CAST(message_body AS NVARCHAR(MAX)) FROM WorkQueue), TIMEOUT 100
IF @h IS NULL BEGIN ROLLBACK TRANSACTION RETURN END
IF @type <> 'Work' BEGIN END CONVERSATION @h COMMIT GOTO Next END
DECLARE @error NVARCHAR(2048) = NULL
BEGIN TRY
    IF ISNUMERIC(@body) = 0 RAISERROR('no number: %s', 16, 1, @body)
    EXEC Work1 @body
END TRY
BEGIN CATCH
    SET @error = ERROR_MESSAGE()
    IF XACT_STATE() = -1 BEGIN ROLLBACK PRINT 'doomed' GOTO Next END
END CATCH
IF @error IS NOT NULL
BEGIN
    ROLLBACK TRANSACTION BeforeReceive
    MERGE Attempts AS t USING (SELECT @h AS Handle) AS s ON t.Handle = s.Handle
    WHEN MATCHED THEN UPDATE SET N = t.N + 1
    WHEN NOT MATCHED THEN INSERT (Handle, N) VALUES (s.Handle, 1);
    SELECT @n = N FROM Attempts WHERE Handle = @h
    IF @n >= 3
    BEGIN
        INSERT DeadLetters (Handle, Body, Error) VALUES (@h, @body, @error)
        DELETE Attempts WHERE Handle = @h
        END CONVERSATION @h WITH ERROR = 500 DESCRIPTION = 'Unable to process message.'
    END
END
COMMIT TRANSACTION
GOTO Next
GO
DECLARE @i INT = 1, @h UNIQUEIDENTIFIER
WHILE @i <= 4
BEGIN
    BEGIN DIALOG @h FROM SERVICE Asker TO SERVICE 'Worker' ON CONTRACT WorkContract WITH ENCRYPTION = OFF
    DECLARE @text NVARCHAR(20) = CASE @i WHEN 3 THEN N'three' ELSE CAST(@i AS NVARCHAR(20)) END;
    SEND ON CONVERSATION @h MESSAGE TYPE Work (@text)
    SET @i += 1
END
EXEC HandleWork
SELECT Value FROM Results ORDER BY 1
SELECT Body, Error FROM DeadLetters
SELECT COUNT(*) FROM Attempts
SELECT CAST(message_body AS XML).value('declare namespace e="http://schemas.microsoft.com/SQL/ServiceBroker/Error"; (/e:Error/e:Code)[1]', 'INT') AS code,
       CAST(message_body AS XML).value('declare default element namespace "http://schemas.microsoft.com/SQL/ServiceBroker/Error"; (/Error/Description)[1]', 'NVARCHAR(100)') AS description
FROM AskQueue WHERE message_type_name = 'http://schemas.microsoft.com/SQL/ServiceBroker/Error'
GO
-- five rollbacks switch the queue off
DECLARE @h UNIQUEIDENTIFIER, @n INT = 0
BEGIN DIALOG @h FROM SERVICE Asker TO SERVICE 'Worker' ON CONTRACT WorkContract WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE Work (N'poison')
WHILE @n < 5
BEGIN
    BEGIN TRAN
    RECEIVE TOP(1) * FROM WorkQueue
    ROLLBACK
    SET @n = @n + 1
END
GO
DECLARE @tries INT = 0
WHILE (SELECT is_receive_enabled FROM sys.service_queues WHERE name = 'WorkQueue') = 1 AND @tries < 100
BEGIN
    WAITFOR DELAY '00:00:00.050'
    SET @tries += 1
END
SELECT is_receive_enabled, is_enqueue_enabled FROM sys.service_queues WHERE name = 'WorkQueue'
BEGIN TRY
    RECEIVE * FROM WorkQueue
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER() AS number, ERROR_SEVERITY() AS severity
END CATCH
DECLARE @event XML
WAITFOR (RECEIVE TOP (1) @event = message_body FROM EventQueue), TIMEOUT 5000
SELECT @event.value('(/EVENT_INSTANCE/EventType)[1]', 'SYSNAME') AS event, @event.value('(//ObjectName)[1]', 'NVARCHAR(128)') AS object,
       @event.value('(//DatabaseName)[1]', 'NVARCHAR(128)') AS db, @event.exist('/EVENT_INSTANCE/LoginName/text()') AS login
ALTER QUEUE WorkQueue WITH STATUS = ON
DECLARE @bad UNIQUEIDENTIFIER
SELECT TOP (1) @bad = conversation_handle FROM WorkQueue WITH (NOLOCK)
END CONVERSATION @bad WITH ERROR = 127 DESCRIPTION = N'Unable to process message.'
SELECT COUNT(*) AS waiting FROM WorkQueue
SELECT q.name, q.is_receive_enabled, m.state FROM sys.service_queues q LEFT JOIN sys.dm_broker_queue_monitors m ON m.queue_id = q.object_id AND m.database_id = DB_ID() WHERE q.is_ms_shipped = 0 ORDER BY q.name
