-- Conversations are used again and again: one for each pair of services and user, with a counter; old ones are ended.
USE master
GO
IF EXISTS (SELECT * FROM sys.databases WHERE name = 'Pool') DROP DATABASE [Pool]
GO
CREATE DATABASE [Pool]
GO
USE [Pool]
GO
CREATE QUEUE SenderQueue
CREATE QUEUE TargetQueue
CREATE SERVICE Sender ON QUEUE SenderQueue
CREATE SERVICE Target ON QUEUE TargetQueue ([DEFAULT])
GO
CREATE TABLE SessionConversations (
    SPID INT NOT NULL,
    FromService SYSNAME NOT NULL,
    ToService SYSNAME NOT NULL,
    OnContract SYSNAME NOT NULL,
    Handle UNIQUEIDENTIFIER NOT NULL,
    Used INT NOT NULL DEFAULT 0,
    PRIMARY KEY (SPID, FromService, ToService, OnContract),
    UNIQUE (Handle))
GO
IF OBJECT_ID('dbo.usp_Send', 'P') IS NOT NULL DROP PROC dbo.usp_Send
GO
CREATE PROC usp_Send (
    @fromService SYSNAME,
    @toService SYSNAME,
    @onContract SYSNAME,
    @messageType SYSNAME,
    @messageBody VARBINARY(MAX),
    @limit INT = 3)
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @handle UNIQUEIDENTIFIER;
    DECLARE @used INT;
    DECLARE @counter INT;
    DECLARE @error INT;
    SELECT @counter = 1;
    BEGIN TRANSACTION;
    WHILE (1=1)
    BEGIN
        SELECT @handle = Handle, @used = Used
        FROM SessionConversations WITH (UPDLOCK, HOLDLOCK)
        WHERE SPID = @@SPID AND FromService = @fromService AND ToService = @toService AND OnContract = @onContract;
        IF @handle IS NULL
        BEGIN
            BEGIN DIALOG CONVERSATION @handle FROM SERVICE @fromService TO SERVICE @toService ON CONTRACT @onContract WITH ENCRYPTION = OFF;
            BEGIN CONVERSATION TIMER (@handle) TIMEOUT = 60;
            INSERT INTO SessionConversations (SPID, FromService, ToService, OnContract, Handle)
            VALUES (@@SPID, @fromService, @toService, @onContract, @handle);
            SET @used = 0
        END;
        SEND ON CONVERSATION @handle MESSAGE TYPE @messageType (@messageBody);
        SELECT @error = @@ERROR;
        IF @error = 0
        BEGIN
            IF @used + 1 >= @limit
            BEGIN
                DELETE FROM SessionConversations WHERE Handle = @handle;
                END CONVERSATION @handle;
            END
            ELSE
                UPDATE SessionConversations SET Used = Used + 1 WHERE Handle = @handle;
            BREAK;
        END
        SELECT @counter = @counter + 1;
        IF @counter > 10
        BEGIN
            RAISERROR (N'Failed to SEND on a conversation for more than 10 times. Error %i.', 16, 1, @error) WITH LOG;
            BREAK;
        END
        DELETE FROM SessionConversations WHERE Handle = @handle;
        SELECT @handle = NULL;
    END
    COMMIT;
END
GO
DECLARE @i INT
SET @i = 0
WHILE @i < 7
BEGIN
    DECLARE @body VARBINARY(MAX)
    SET @body = CAST(N'message ' + CAST(@i AS NVARCHAR(10)) AS VARBINARY(MAX))
    EXEC usp_Send N'Sender', N'Target', N'DEFAULT', N'DEFAULT', @body
    SET @i = @i + 1
END
GO
SELECT COUNT(*) AS pooled, SUM(Used) AS used FROM SessionConversations
SELECT COUNT(DISTINCT conversation_handle) AS conversations, COUNT(*) AS messages FROM TargetQueue WHERE message_type_name = 'DEFAULT'
GO
-- drained in batches into a table variable
DECLARE @batch TABLE (
    queuing_order BIGINT, conversation_handle UNIQUEIDENTIFIER, message_sequence_number BIGINT,
    message_type_name NVARCHAR(256), message_body VARBINARY(MAX))
DECLARE @total INT, @rows INT
SELECT @total = 0, @rows = -1
WHILE @rows <> 0
BEGIN
    BEGIN TRAN
    ;RECEIVE TOP (2) queuing_order, conversation_handle, message_sequence_number, message_type_name, message_body
     FROM TargetQueue INTO @batch
    SET @rows = @@ROWCOUNT
    SET @total += @rows
    DECLARE @h UNIQUEIDENTIFIER
    WHILE EXISTS (SELECT 1 FROM @batch WHERE message_type_name LIKE '%EndDialog')
    BEGIN
        SELECT TOP 1 @h = conversation_handle FROM @batch WHERE message_type_name LIKE N'%EndDialog'
        END CONVERSATION @h
        DELETE @batch WHERE conversation_handle = @h AND message_type_name LIKE '%EndDialog'
    END
    COMMIT
END
SELECT @total AS total, COUNT(*) AS kept, MIN(CAST(message_body AS NVARCHAR(20))) AS first, MAX(CAST(message_body AS NVARCHAR(20))) AS last FROM @batch
GO
SELECT s.name, e.state, e.is_initiator, COUNT(*) c
FROM sys.conversation_endpoints AS e JOIN sys.services s ON s.service_id = e.service_id
GROUP BY s.name, e.state, e.is_initiator ORDER BY s.name, e.state
GO
-- cleanup of everything that is left
DECLARE @left UNIQUEIDENTIFIER
DECLARE c CURSOR FOR SELECT conversation_handle FROM sys.conversation_endpoints
OPEN c
FETCH NEXT FROM c INTO @left
WHILE @@FETCH_STATUS = 0 BEGIN
    END CONVERSATION @left WITH CLEANUP
    FETCH NEXT FROM c INTO @left
END
CLOSE c DEALLOCATE c
SELECT COUNT(*) AS nothing FROM sys.conversation_endpoints
GO
DROP SERVICE Sender
DROP SERVICE Target
DROP QUEUE SenderQueue
DROP QUEUE TargetQueue
IF EXISTS (SELECT 1 FROM sys.service_queues WHERE name IN ('SenderQueue', 'TargetQueue')) PRINT 'still there' ELSE PRINT 'gone'
DROP PROCEDURE usp_Send
DROP TABLE SessionConversations
