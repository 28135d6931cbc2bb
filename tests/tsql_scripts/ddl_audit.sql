-- An audit of what is defined: event notifications on the database and on the server, shredded into a table, with a
-- maintenance window in which the database is read-only. After the habits of DBAs who keep such a log.
USE master
GO
SET NOCOUNT ON
GO
IF EXISTS (SELECT 1 FROM sys.server_event_notifications WHERE name = N'AuditServer')
    DROP EVENT NOTIFICATION AuditServer ON SERVER
GO
IF DB_ID(N'AuditDb') IS NOT NULL
BEGIN
    ALTER DATABASE AuditDb SET SINGLE_USER WITH ROLLBACK IMMEDIATE
    DROP DATABASE AuditDb
END
GO
CREATE DATABASE AuditDb
    CONTAINMENT = NONE
    ON PRIMARY (NAME = N'AuditDb', FILENAME = N'C:\Data\AuditDb.mdf', SIZE = 8192KB, FILEGROWTH = 65536KB)
    LOG ON (NAME = N'AuditDb_log', FILENAME = N'C:\Data\AuditDb_log.ldf', SIZE = 8192KB, FILEGROWTH = 65536KB)
    WITH CATALOG_COLLATION = DATABASE_DEFAULT, LEDGER = OFF
GO
ALTER DATABASE AuditDb SET RECOVERY SIMPLE, PAGE_VERIFY CHECKSUM
ALTER DATABASE AuditDb SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE
GO
USE AuditDb
GO
CREATE SCHEMA audit AUTHORIZATION dbo
GO
-- ------------------------------------------------------------------ where it is kept
CREATE TABLE audit.DdlLog
(
    LogId       INT IDENTITY(1, 1) NOT NULL,
    EventType   SYSNAME            NOT NULL,
    Happened    DATETIME2(3)       NULL,
    LoginName   SYSNAME            NULL,
    DatabaseName SYSNAME           NULL,
    SchemaName  SYSNAME            NULL,
    ObjectName  SYSNAME            NULL,
    ObjectType  NVARCHAR(60)       NULL,
    TargetName  SYSNAME            NULL,
    Command     NVARCHAR(MAX)      NULL,
    Body        XML                NOT NULL,
    Kept        DATETIME           NOT NULL CONSTRAINT DF_DdlLog_Kept DEFAULT (GETDATE()),
    CONSTRAINT PK_DdlLog PRIMARY KEY CLUSTERED (LogId)
)
CREATE NONCLUSTERED INDEX IX_DdlLog_Object ON audit.DdlLog (ObjectName, EventType) INCLUDE (Happened)
GO
CREATE TABLE audit.Problems
(
    ProblemId INT IDENTITY PRIMARY KEY,
    Number    INT            NULL,
    Said      NVARCHAR(4000) NULL,
    Body      VARBINARY(MAX) NULL
)
GO
CREATE FUNCTION audit.Text (@body XML, @element SYSNAME)
RETURNS NVARCHAR(MAX)
AS
BEGIN
    RETURN CASE @element
        WHEN N'EventType' THEN @body.value('(/EVENT_INSTANCE/EventType)[1]', 'nvarchar(max)')
        WHEN N'ObjectName' THEN @body.value('(/EVENT_INSTANCE/ObjectName)[1]', 'nvarchar(max)')
    END
END
GO
CREATE PROCEDURE audit.ReadEvents @Handled INT = 0 OUTPUT
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON
    DECLARE @handle UNIQUEIDENTIFIER, @type SYSNAME, @raw VARBINARY(MAX), @body XML
    SET @Handled = 0
    WHILE 1 = 1
    BEGIN
        BEGIN TRY
            BEGIN TRANSACTION
            SET @handle = NULL
            WAITFOR (
                RECEIVE TOP (1) @handle = conversation_handle, @type = message_type_name, @raw = message_body
                FROM audit.EventQueue
            ), TIMEOUT 50
            IF @handle IS NULL
            BEGIN
                COMMIT TRANSACTION
                BREAK
            END
            IF @type = N'http://schemas.microsoft.com/SQL/Notifications/EventNotification'
            BEGIN
                SET @body = CAST(@raw AS XML)
                INSERT audit.DdlLog (EventType, Happened, LoginName, DatabaseName, SchemaName, ObjectName, ObjectType, TargetName, Command, Body)
                VALUES (
                    @body.value('(/EVENT_INSTANCE/EventType)[1]', 'sysname'),
                    @body.value('(/EVENT_INSTANCE/PostTime)[1]', 'datetime2(3)'),
                    @body.value('(/EVENT_INSTANCE/LoginName)[1]', 'sysname'),
                    @body.value('(/EVENT_INSTANCE/DatabaseName)[1]', 'sysname'),
                    @body.value('(/EVENT_INSTANCE/SchemaName)[1]', 'sysname'),
                    @body.value('(/EVENT_INSTANCE/ObjectName)[1]', 'sysname'),
                    @body.value('(/EVENT_INSTANCE/ObjectType)[1]', 'nvarchar(60)'),
                    @body.value('(/EVENT_INSTANCE/TargetObjectName)[1]', 'sysname'),
                    LTRIM(RTRIM(@body.value('(/EVENT_INSTANCE/TSQLCommand/CommandText)[1]', 'nvarchar(max)'))),
                    @body)
                SET @Handled += 1
            END
            ELSE IF @type IN (N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog', N'http://schemas.microsoft.com/SQL/ServiceBroker/Error')
                END CONVERSATION @handle
            COMMIT TRANSACTION
        END TRY
        BEGIN CATCH
            IF XACT_STATE() <> 0 ROLLBACK TRANSACTION
            INSERT audit.Problems (Number, Said, Body) VALUES (ERROR_NUMBER(), ERROR_MESSAGE(), @raw)
            BREAK
        END CATCH
    END
END
GO
-- ------------------------------------------------------------------ who is told
CREATE QUEUE audit.EventQueue WITH STATUS = ON, POISON_MESSAGE_HANDLING (STATUS = OFF)
CREATE SERVICE [//audit/Events] ON QUEUE audit.EventQueue ([http://schemas.microsoft.com/SQL/Notifications/PostEventNotification])
GO
CREATE EVENT NOTIFICATION AuditTables ON DATABASE WITH FAN_IN
    FOR DDL_TABLE_EVENTS, DDL_INDEX_EVENTS, DDL_PROCEDURE_EVENTS, DDL_TRIGGER_EVENTS
    TO SERVICE N'//audit/Events', N'current database'
CREATE EVENT NOTIFICATION AuditBroker ON DATABASE
    FOR DDL_SSB_EVENTS, GRANT_DATABASE, DENY_DATABASE, REVOKE_DATABASE
    TO SERVICE N'//audit/Events', N'current database'
CREATE EVENT NOTIFICATION AuditServer ON SERVER
    FOR CREATE_DATABASE, DROP_DATABASE, DDL_LOGIN_EVENTS, AUDIT_LOGIN_FAILED
    TO SERVICE N'//audit/Events', N'current database'
GO
SELECT n.name, n.parent_class_desc AS scope, COUNT(e.type_desc) AS events
FROM sys.event_notifications AS n
INNER JOIN sys.events AS e ON e.object_id = n.object_id
GROUP BY n.name, n.parent_class_desc
UNION ALL
SELECT s.name, s.parent_class_desc, (SELECT COUNT(*) FROM sys.server_events AS e WHERE e.object_id = s.object_id)
FROM sys.server_event_notifications AS s
ORDER BY name
GO
-- ------------------------------------------------------------------ something to be told of
CREATE TABLE dbo.Invoice (InvoiceId INT NOT NULL CONSTRAINT PK_Invoice PRIMARY KEY, Amount DECIMAL(10, 2) NOT NULL)
GO
ALTER TABLE dbo.Invoice ADD Paid BIT NOT NULL CONSTRAINT DF_Invoice_Paid DEFAULT (0)
CREATE INDEX IX_Invoice_Paid ON dbo.Invoice (Paid)
GO
CREATE OR ALTER PROCEDURE dbo.PayInvoice @InvoiceId INT
AS
    UPDATE dbo.Invoice SET Paid = 1 WHERE InvoiceId = @InvoiceId AND Paid = 0
    IF @@ROWCOUNT = 0 RAISERROR (N'Invoice %d is not open.', 16, 1, @InvoiceId)
GO
CREATE OR ALTER PROCEDURE dbo.PayInvoice @InvoiceId INT
AS
    SET NOCOUNT ON
    UPDATE dbo.Invoice SET Paid = 1 WHERE InvoiceId = @InvoiceId AND Paid = 0
    IF @@ROWCOUNT = 0 RAISERROR (N'Invoice %d is not open.', 16, 1, @InvoiceId)
GO
CREATE TRIGGER dbo.NoCheaper ON dbo.Invoice AFTER UPDATE
AS
    IF EXISTS (SELECT * FROM inserted AS i JOIN deleted AS d ON d.InvoiceId = i.InvoiceId WHERE i.Amount < d.Amount)
    BEGIN
        ROLLBACK TRANSACTION
        RAISERROR (N'An invoice does not become cheaper.', 16, 1)
    END
GO
CREATE USER Clerk WITHOUT LOGIN
GRANT EXECUTE ON dbo.PayInvoice TO Clerk
DENY DELETE ON dbo.Invoice TO Clerk
CREATE QUEUE dbo.Dunning
ALTER QUEUE dbo.Dunning WITH RETENTION = ON
DROP QUEUE dbo.Dunning
GO
-- what is taken back was never there
BEGIN TRANSACTION
    CREATE TABLE dbo.Never (a INT)
ROLLBACK TRANSACTION
GO
CREATE LOGIN AuditedLogin WITH PASSWORD = N'S0me#long&password', CHECK_POLICY = OFF
DROP LOGIN AuditedLogin
GO
DECLARE @count INT
EXEC audit.ReadEvents @Handled = @count OUTPUT
PRINT CONCAT(N'told of ', @count, N' events')
SELECT LogId, EventType, ISNULL(SchemaName, N'-') AS SchemaName, ObjectName, ObjectType, TargetName
FROM audit.DdlLog ORDER BY LogId
SELECT COUNT(*) AS strangers FROM audit.DdlLog WHERE LoginName <> SUSER_SNAME() OR Happened > SYSUTCDATETIME() OR Command IS NULL
SELECT Number, Said FROM audit.Problems
GO
SELECT l.EventType, p.n.value('.', 'nvarchar(30)') AS permission, g.n.value('.', 'sysname') AS grantee
FROM audit.DdlLog AS l
CROSS APPLY l.Body.nodes('/EVENT_INSTANCE/Permissions/Permission') AS p(n)
CROSS APPLY l.Body.nodes('/EVENT_INSTANCE/Grantees/Grantee') AS g(n)
ORDER BY l.LogId
SELECT audit.Text(Body, N'EventType') AS of_function, LEFT(Command, 24) AS command
FROM audit.DdlLog WHERE ObjectName = N'PayInvoice' AND EventType LIKE N'ALTER%'
GO
;WITH days AS (
    SELECT CAST(Happened AS DATE) AS d, PARSENAME(REPLACE(EventType, N'_', N'.'), 2) AS verb FROM audit.DdlLog
)
SELECT SUM(CASE WHEN verb = N'CREATE' THEN 1 ELSE 0 END) AS created, SUM(IIF(verb = N'ALTER', 1, 0)) AS altered,
       COUNT(DISTINCT d) AS days
FROM days
GO
-- ------------------------------------------------------------------ the window in which nobody writes
INSERT dbo.Invoice (InvoiceId, Amount) VALUES (1, 10), (2, 20)
GO
ALTER DATABASE AuditDb SET READ_ONLY WITH ROLLBACK IMMEDIATE
GO
SELECT name, is_read_only FROM sys.databases WHERE name = N'AuditDb'
BEGIN TRY
    EXEC dbo.PayInvoice @InvoiceId = 1
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER() AS number, ERROR_SEVERITY() AS severity, ERROR_MESSAGE() AS said, @@TRANCOUNT AS open_transactions
END CATCH
SELECT COUNT(*) AS unpaid FROM dbo.Invoice WHERE Paid = 0
GO
CREATE TABLE dbo.NotNow (a INT)
GO
ALTER DATABASE AuditDb SET READ_WRITE
GO
EXEC dbo.PayInvoice @InvoiceId = 1
EXEC dbo.PayInvoice @InvoiceId = 1
UPDATE dbo.Invoice SET Amount = 1 WHERE InvoiceId = 2
GO
SELECT InvoiceId, Amount, Paid FROM dbo.Invoice ORDER BY InvoiceId
GO
-- ------------------------------------------------------------------ away with it
DROP EVENT NOTIFICATION AuditServer ON SERVER
DROP EVENT NOTIFICATION AuditTables, AuditBroker ON DATABASE
GO
SELECT (SELECT COUNT(*) FROM sys.event_notifications) + (SELECT COUNT(*) FROM sys.server_event_notifications) AS left_over
GO
EXEC audit.ReadEvents
SELECT state_desc, COUNT(*) AS endpoints FROM sys.conversation_endpoints GROUP BY state_desc ORDER BY state_desc
GO
USE master
DROP DATABASE AuditDb
GO
