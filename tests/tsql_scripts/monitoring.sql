-- Monitoring and cleanup by views; stuck conversations are looked for and ended; reports by FOR XML and STRING_AGG.
CREATE DATABASE Watch
GO
USE Watch
GO
CREATE QUEUE A; CREATE QUEUE B WITH STATUS = OFF
CREATE SERVICE SA ON QUEUE A ([DEFAULT]) CREATE SERVICE SB ON QUEUE B ([DEFAULT])
GO
CREATE VIEW dbo.Health AS
SELECT s.name AS service, q.name AS queue, q.is_receive_enabled AS is_on,
       (SELECT COUNT(*) FROM sys.conversation_endpoints e WHERE e.service_id = s.service_id AND e.state NOT IN ('CD')) AS open_conversations,
       ISNULL(m.state, 'NONE') AS monitor
FROM sys.services s
INNER JOIN sys.service_queues q ON q.object_id = s.service_queue_id
LEFT OUTER JOIN sys.dm_broker_queue_monitors m ON m.queue_id = q.object_id AND m.database_id = DB_ID()
WHERE q.is_ms_shipped = 0
GO
CREATE PROC dbo.Flood @n INT AS
BEGIN
    SET NOCOUNT ON
    DECLARE @i INT = 0, @h UNIQUEIDENTIFIER, @to SYSNAME
    WHILE @i < @n
    BEGIN
        SET @to = CASE WHEN @i % 2 = 0 THEN 'SB' ELSE 'SA' END
        BEGIN DIALOG @h FROM SERVICE SA TO SERVICE @to WITH ENCRYPTION = OFF, LIFETIME = 600;
        SEND ON CONVERSATION @h ('payload ' + CONVERT(VARCHAR(10), @i));
        SELECT @i += 1
    END
END
GO
EXEC Flood 6
SELECT * FROM Health ORDER BY service
SELECT to_service_name, COUNT(*) AS n, MAX(CASE WHEN is_conversation_error = 'false' THEN 'no' END) AS is_error FROM sys.transmission_queue GROUP BY to_service_name HAVING COUNT(*) > 1
SELECT STRING_AGG(CAST(message_body AS VARCHAR(20)), ', ') WITHIN GROUP (ORDER BY queuing_order) FROM A
GO
;WITH old AS (
    SELECT conversation_handle, ROW_NUMBER() OVER (PARTITION BY far_service ORDER BY conversation_id) AS rn, far_service, lifetime
    FROM sys.conversation_endpoints WHERE is_initiator = 1)
SELECT far_service, MAX(rn) AS n, CASE WHEN MIN(DATEDIFF(second, GETUTCDATE(), lifetime)) BETWEEN 300 AND 600 THEN 'soon' END AS ends FROM old GROUP BY far_service ORDER BY far_service
GO
ALTER QUEUE B WITH STATUS = ON
WAITFOR DELAY '00:00:00.500'
SELECT q.name FROM sys.objects o JOIN sys.partitions p ON p.object_id = o.object_id JOIN sys.service_queues q ON q.object_id = o.parent_object_id WHERE o.type = 'IT' AND q.is_ms_shipped = 0 AND p.rows > -1 ORDER BY q.name
SELECT name, (SELECT COUNT(*) FROM B) AS b FROM sys.service_queues WHERE name = 'B' FOR XML AUTO, ROOT('queues')
GO
DECLARE @sql NVARCHAR(MAX) = N'', @dropped INT = 0
SELECT @sql = @sql + N'END CONVERSATION ''' + CAST(conversation_handle AS NVARCHAR(36)) + N''' WITH CLEANUP;' FROM sys.conversation_endpoints
EXEC sp_executesql @sql
SELECT @dropped = COUNT(*) FROM sys.conversation_endpoints
IF @dropped = 0 PRINT 'clean' ELSE RAISERROR('%d left', 16, 1, @dropped)
SELECT (SELECT COUNT(*) FROM A) + (SELECT COUNT(*) FROM B) AS messages
GO
BEGIN TRY
    DROP QUEUE A
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER() AS n, ERROR_SEVERITY() AS s
END CATCH
DECLARE @name SYSNAME
DECLARE gone CURSOR STATIC LOCAL READ_ONLY FOR SELECT name FROM sys.services WHERE name LIKE 'S_'
OPEN gone
WHILE 1 = 1
BEGIN
    FETCH NEXT FROM gone INTO @name
    IF @@FETCH_STATUS <> 0 BREAK
    EXEC ('DROP SERVICE ' + @name)
END
CLOSE gone; DEALLOCATE gone
DROP QUEUE A; DROP QUEUE B
DROP VIEW Health
DROP PROC Flood
SELECT COUNT(*) AS nothing FROM sys.objects WHERE is_ms_shipped = 0
GO
USE master
ALTER DATABASE Watch SET SINGLE_USER WITH ROLLBACK IMMEDIATE
DROP DATABASE Watch
