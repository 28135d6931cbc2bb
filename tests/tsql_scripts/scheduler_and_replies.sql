-- Timers as a scheduler, an activated service that answers in XML and in JSON, audit by triggers, monitoring, cleanup.
IF NOT EXISTS (SELECT name FROM master.sys.databases WHERE name = N'Timers')
    CREATE DATABASE Timers
GO
USE Timers
GO
SET ANSI_NULLS ON
SET QUOTED_IDENTIFIER ON
GO
CREATE SCHEMA jobs AUTHORIZATION dbo
GO
CREATE TABLE jobs.Schedule
(
    JobId UNIQUEIDENTIFIER NOT NULL DEFAULT NEWID() CONSTRAINT PK_Schedule PRIMARY KEY,
    Name NVARCHAR(100) NOT NULL,
    [Every] INT NOT NULL,
    Runs INT NOT NULL CONSTRAINT DF_Runs DEFAULT 0,
    Handle UNIQUEIDENTIFIER NULL,
    IsOn BIT NOT NULL DEFAULT 'true'
)
CREATE TABLE jobs.Audit (Id INT IDENTITY(1,1), What NVARCHAR(10), Name NVARCHAR(100), Old INT, New INT, Who SYSNAME DEFAULT SUSER_SNAME())
GO
CREATE TRIGGER jobs.trg_Schedule ON jobs.Schedule AFTER INSERT, UPDATE, DELETE
AS
BEGIN
    SET NOCOUNT ON
    INSERT INTO jobs.Audit (What, Name, Old, New)
    SELECT CASE WHEN d.JobId IS NULL THEN 'insert' WHEN i.JobId IS NULL THEN 'delete' ELSE 'update' END,
           COALESCE(i.Name, d.Name), d.Runs, i.Runs
    FROM inserted i FULL OUTER JOIN deleted d ON d.JobId = i.JobId
    WHERE d.JobId IS NULL OR i.JobId IS NULL OR UPDATE(Runs)
END
GO
CREATE QUEUE jobs.TimerQueue
CREATE SERVICE TimerService ON QUEUE jobs.TimerQueue ([DEFAULT])
GO
CREATE PROCEDURE jobs.AddJob @name NVARCHAR(100), @every INT, @job UNIQUEIDENTIFIER = NULL OUTPUT
AS
DECLARE @h UNIQUEIDENTIFIER
BEGIN TRANSACTION
    BEGIN DIALOG CONVERSATION @h FROM SERVICE TimerService TO SERVICE 'TimerService', 'CURRENT DATABASE' WITH ENCRYPTION = OFF
    BEGIN CONVERSATION TIMER (@h) TIMEOUT = @every
    SET @job = NEWID()
    INSERT jobs.Schedule (JobId, Name, [Every], Handle) VALUES (@job, @name, @every, @h)
COMMIT
GO
CREATE PROCEDURE jobs.RunJobs
AS
BEGIN
    DECLARE @h UNIQUEIDENTIFIER, @type SYSNAME, @every INT
    WHILE 1 = 1
    BEGIN
        BEGIN TRAN
        SELECT @h = NULL, @every = NULL
        ;WAITFOR (RECEIVE TOP (1) @h = conversation_handle, @type = message_type_name FROM jobs.TimerQueue), TIMEOUT 1500
        IF @@ROWCOUNT = 0 OR @h IS NULL
        BEGIN
            COMMIT
            RETURN
        END
        IF @type = 'http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer'
        BEGIN
            UPDATE jobs.Schedule SET Runs += 1, @every = CASE WHEN Runs + 1 < 2 THEN [Every] END WHERE Handle = @h AND IsOn = 1
            IF @every IS NOT NULL
                BEGIN CONVERSATION TIMER (@h) TIMEOUT = @every
            ELSE
                END CONVERSATION @h
        END
        COMMIT
    END
END
GO
EXEC jobs.AddJob N'every second', 1
EXEC jobs.RunJobs
SELECT Name, Runs FROM jobs.Schedule
UPDATE jobs.Schedule SET IsOn = 'false'
DELETE FROM jobs.Schedule WHERE IsOn = 'false'
SELECT What, Old, New, CASE WHEN Who = SUSER_SNAME() AND Who = ORIGINAL_LOGIN() THEN 'me' ELSE Who END AS Who FROM jobs.Audit ORDER BY Id
GO
-- request and reply, started by the queue
CREATE MESSAGE TYPE AskXml VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE AskJson VALIDATION = NONE
CREATE MESSAGE TYPE Answer VALIDATION = NONE
CREATE CONTRACT Asking (AskXml SENT BY INITIATOR, AskJson SENT BY INITIATOR, Answer SENT BY TARGET)
CREATE QUEUE AskingQueue
CREATE QUEUE AnsweringQueue
CREATE SERVICE AskingService ON QUEUE AskingQueue
CREATE SERVICE AnsweringService ON QUEUE AnsweringQueue (Asking)
GO
CREATE FUNCTION dbo.Total (@lines XML) RETURNS TABLE
AS RETURN
(
    SELECT SUM(line.value('@price', 'DECIMAL(9,2)') * line.value('@count', 'INT')) AS Total, COUNT(*) AS Lines
    FROM @lines.nodes('/order/line') AS lines(line)
)
GO
CREATE PROCEDURE Answers AS
SET NOCOUNT ON
DECLARE @group UNIQUEIDENTIFIER
WHILE 1 = 1
BEGIN
    BEGIN TRANSACTION
    SET @group = NULL;
    WAITFOR (GET CONVERSATION GROUP @group FROM AnsweringQueue), TIMEOUT 500
    IF @group IS NULL BEGIN ROLLBACK BREAK END
    DECLARE @messages TABLE (handle UNIQUEIDENTIFIER, type SYSNAME, body VARBINARY(MAX), seq BIGINT)
    DELETE @messages;
    RECEIVE conversation_handle, message_type_name, message_body, message_sequence_number
    FROM AnsweringQueue INTO @messages WHERE conversation_group_id = @group
    DECLARE @h UNIQUEIDENTIFIER, @t SYSNAME, @b VARBINARY(MAX), @out NVARCHAR(MAX)
    WHILE EXISTS (SELECT * FROM @messages)
    BEGIN
        SELECT TOP 1 @h = handle, @t = type, @b = body FROM @messages ORDER BY seq
        DELETE @messages WHERE handle = @h AND seq = (SELECT MIN(seq) FROM @messages)
        IF @t = 'AskXml'
        BEGIN
            SELECT @out = (SELECT Total AS [@total], Lines AS [@lines] FROM Total(CAST(@b AS XML)) FOR XML PATH('sum'));
            SEND ON CONVERSATION @h MESSAGE TYPE Answer (@out)
        END
        IF @t = 'AskJson'
        BEGIN
            SET @out = (SELECT j.sku, j.n * 2 AS twice FROM OPENJSON(CAST(@b AS NVARCHAR(MAX)), '$.items')
                        WITH (sku NVARCHAR(20) '$.sku', n INT '$.n') AS j ORDER BY j.sku FOR JSON PATH, ROOT('items'));
            SEND ON CONVERSATION @h MESSAGE TYPE Answer (@out);
            END CONVERSATION @h
        END
        IF @t LIKE '%/EndDialog' OR @t LIKE '%/Error' END CONVERSATION @h
    END
    COMMIT TRANSACTION
END
GO
ALTER QUEUE AnsweringQueue WITH ACTIVATION (STATUS = ON, PROCEDURE_NAME = Answers, MAX_QUEUE_READERS = 2, EXECUTE AS OWNER)
SELECT name, activation_procedure, max_readers FROM sys.service_queues WHERE is_activation_enabled = 'true' AND is_ms_shipped = 0
ALTER QUEUE AnsweringQueue WITH ACTIVATION (STATUS = OFF)
GO
DECLARE @h UNIQUEIDENTIFIER
BEGIN DIALOG @h FROM SERVICE AskingService TO SERVICE 'AnsweringService' ON CONTRACT Asking WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE AskXml (N'<order><line price="1.50" count="2"/><line price="10" count="1"/></order>');
SEND ON CONVERSATION @h MESSAGE TYPE AskJson (N'{"items": [{"sku": "b", "n": 4}, {"sku": "a", "n": 1}]}');
EXEC Answers
DECLARE @answers TABLE (n INT IDENTITY, type SYSNAME, body NVARCHAR(MAX))
INSERT @answers (type, body) SELECT message_type_name, CAST(message_body AS NVARCHAR(MAX)) FROM AskingQueue ORDER BY queuing_order
SELECT type, body FROM @answers ORDER BY n;
RECEIVE CAST(message_body AS NVARCHAR(10)) AS head FROM AskingQueue WHERE conversation_handle = @h
END CONVERSATION @h
GO
-- how it stands
SELECT p.rows FROM sys.objects AS o JOIN sys.partitions AS p ON p.object_id = o.object_id WHERE o.name = 'sysxmitqueue'
SELECT c.name, t.name AS type, c.max_length FROM sys.columns c JOIN sys.types t ON t.user_type_id = c.user_type_id
WHERE c.object_id = OBJECT_ID('dbo.AskingQueue') AND c.column_id <= 3 ORDER BY c.column_id
SELECT COUNT(*) AS monitors FROM sys.dm_broker_queue_monitors WHERE database_id = DB_ID()
SELECT DATEDIFF(day, sqlserver_start_time, GETDATE()) AS days FROM sys.dm_os_sys_info
SELECT far_service, state_desc FROM sys.conversation_endpoints WHERE state <> 'CD' ORDER BY far_service
GO
USE master
DROP DATABASE Timers
GO
IF DB_ID('Timers') IS NULL PRINT 'gone'
