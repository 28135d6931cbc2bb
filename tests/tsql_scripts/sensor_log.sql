-- Readings come as JSON in batches; they are cleaned with window functions, kept with MERGE, and told as a report.
USE master;
DROP DATABASE IF EXISTS Sensors;
GO
CREATE DATABASE Sensors;
ALTER DATABASE Sensors SET ENABLE_BROKER;
GO
USE Sensors;
SET NOCOUNT ON;
GO
CREATE TABLE dbo.Device
(
    DeviceId  INT NOT NULL IDENTITY PRIMARY KEY,
    Code      VARCHAR(10) NOT NULL UNIQUE,
    Parent    INT NULL REFERENCES dbo.Device (DeviceId),
    Tags      NVARCHAR(200) NULL CHECK (Tags IS NULL OR ISJSON(Tags) = 1)
);
CREATE TABLE dbo.Reading
(
    DeviceId INT NOT NULL REFERENCES dbo.Device,
    At       DATETIME2(0) NOT NULL,
    Kind     VARCHAR(8) NOT NULL,
    Value    DECIMAL(9, 3) NOT NULL,
    Times    INT NOT NULL DEFAULT 1,
    PRIMARY KEY (DeviceId, Kind, At),
    INDEX IX_Reading_At NONCLUSTERED (At) INCLUDE (Value)
);
CREATE TABLE dbo.Inbox (Id BIGINT IDENTITY PRIMARY KEY, Body NVARCHAR(MAX) NOT NULL, TakenAt DATETIME2 NOT NULL DEFAULT SYSUTCDATETIME());
GO
SET IDENTITY_INSERT dbo.Device ON;
INSERT dbo.Device (DeviceId, Code, Parent, Tags) VALUES
    (1, 'ROOT', NULL, NULL), (2, 'HALL', 1, N'["inside","big"]'), (3, 'YARD', 1, N'["outside"]'),
    (4, 'HALL-T1', 2, N'["temp"]'), (5, 'HALL-T2', 2, N'["temp","old"]'), (6, 'YARD-W', 3, N'[]');
SET IDENTITY_INSERT dbo.Device OFF;
GO
CREATE MESSAGE TYPE [sensors/batch] VALIDATION = NONE;
CREATE MESSAGE TYPE [sensors/alarm] VALIDATION = WELL_FORMED_XML;
CREATE CONTRACT [sensors/contract] ([sensors/batch] SENT BY INITIATOR, [sensors/alarm] SENT BY TARGET);
CREATE QUEUE dbo.GatewayQueue;
CREATE QUEUE dbo.StoreQueue;
CREATE SERVICE [sensors/gateway] ON QUEUE dbo.GatewayQueue ([sensors/contract]);
CREATE SERVICE [sensors/store] ON QUEUE dbo.StoreQueue ([sensors/contract]);
GO
CREATE VIEW dbo.Path AS
WITH tree AS
(
    SELECT DeviceId, Code, CAST(Code AS VARCHAR(100)) AS Way, 0 AS Depth FROM dbo.Device WHERE Parent IS NULL
    UNION ALL
    SELECT d.DeviceId, d.Code, CAST(t.Way + '/' + d.Code AS VARCHAR(100)), t.Depth + 1
    FROM dbo.Device AS d INNER JOIN tree AS t ON t.DeviceId = d.Parent
)
SELECT DeviceId, Code, Way, Depth FROM tree;
GO
CREATE FUNCTION dbo.Unpacked (@json NVARCHAR(MAX))
RETURNS TABLE
AS
RETURN
    SELECT r.code, r.at, r.kind, r.value
    FROM OPENJSON(@json, '$.readings') WITH (
        code VARCHAR(10) '$.d', at DATETIME2(0) '$.t', kind VARCHAR(8) '$.k', value DECIMAL(9, 3) '$.v') AS r;
GO
CREATE PROCEDURE dbo.Say @json NVARCHAR(MAX)
AS
BEGIN
    DECLARE @handle UNIQUEIDENTIFIER;
    SELECT TOP (1) @handle = conversation_handle FROM sys.conversation_endpoints WHERE is_initiator = 1 AND state = 'CO' AND far_service = N'sensors/store';
    IF @handle IS NULL
        BEGIN DIALOG CONVERSATION @handle FROM SERVICE [sensors/gateway] TO SERVICE N'sensors/store', N'CURRENT DATABASE'
            ON CONTRACT [sensors/contract] WITH ENCRYPTION = OFF, LIFETIME = 86400;
    SEND ON CONVERSATION @handle MESSAGE TYPE [sensors/batch] (@json);
END;
GO
CREATE PROCEDURE dbo.Store
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    DECLARE @taken TABLE (handle UNIQUEIDENTIFIER NOT NULL, number BIGINT NOT NULL, kind SYSNAME NOT NULL, body VARBINARY(MAX) NULL);
    DECLARE @alarm XML, @handle UNIQUEIDENTIFIER;
    BEGIN TRANSACTION;
    RECEIVE TOP (100) conversation_handle, message_sequence_number, message_type_name, message_body FROM dbo.StoreQueue INTO @taken;
    IF @@ROWCOUNT = 0
    BEGIN
        COMMIT TRANSACTION;
        RETURN 0;
    END;
    INSERT dbo.Inbox (Body) SELECT CAST(body AS NVARCHAR(MAX)) FROM @taken WHERE kind = N'sensors/batch' ORDER BY number;

    SELECT d.DeviceId, u.at, u.kind, u.value,
           ROW_NUMBER() OVER (PARTITION BY d.DeviceId, u.kind, u.at ORDER BY t.number DESC) AS place,
           COUNT(*) OVER (PARTITION BY d.DeviceId, u.kind, u.at) AS times
    INTO #clean
    FROM @taken AS t
    CROSS APPLY dbo.Unpacked(CAST(t.body AS NVARCHAR(MAX))) AS u
    LEFT JOIN dbo.Device AS d ON d.Code = u.code
    WHERE t.kind = N'sensors/batch' AND d.DeviceId IS NOT NULL;

    MERGE dbo.Reading AS r
    USING (SELECT DeviceId, at, kind, value, times FROM #clean WHERE place = 1) AS c
       ON r.DeviceId = c.DeviceId AND r.Kind = c.kind AND r.At = c.at
    WHEN MATCHED THEN UPDATE SET Value = c.value, Times = r.Times + c.times
    WHEN NOT MATCHED THEN INSERT (DeviceId, At, Kind, Value, Times) VALUES (c.DeviceId, c.at, c.kind, c.value, c.times);

    SELECT TOP (1) @handle = handle FROM @taken;
    SET @alarm = (
        SELECT p.Way AS [@device], c.value AS [@value]
        FROM #clean AS c INNER JOIN dbo.Path AS p ON p.DeviceId = c.DeviceId
        WHERE c.place = 1 AND c.kind = 'temp' AND c.value > 60 ORDER BY p.Way
        FOR XML PATH('alarm'), ROOT('alarms'), TYPE);
    IF @alarm IS NOT NULL
        SEND ON CONVERSATION @handle MESSAGE TYPE [sensors/alarm] (@alarm);
    DROP TABLE #clean;
    COMMIT TRANSACTION;
    RETURN (SELECT COUNT(*) FROM @taken);
END;
GO
EXEC dbo.Say N'{"from":"g1","readings":[
    {"d":"HALL-T1","t":"2024-03-01T10:00:00","k":"temp","v":20.5},
    {"d":"HALL-T1","t":"2024-03-01T10:05:00","k":"temp","v":21.25},
    {"d":"HALL-T2","t":"2024-03-01T10:00:00","k":"temp","v":61},
    {"d":"NOBODY","t":"2024-03-01T10:00:00","k":"temp","v":1}]}';
EXEC dbo.Say @json = N'{"readings":[
    {"d":"YARD-W","t":"2024-03-01T10:00:00","k":"wind","v":3.125},
    {"d":"YARD-W","t":"2024-03-01T11:00:00","k":"wind","v":5.5},
    {"d":"HALL-T1","t":"2024-03-01T10:05:00","k":"temp","v":22}]}';
EXEC dbo.Say N'{"readings":[]}';
DECLARE @n INT;
EXEC @n = dbo.Store;
PRINT CONCAT('stored ', @n);
EXEC @n = dbo.Store;
PRINT CONCAT('stored ', @n);
GO
EXEC dbo.Say N'{"readings":[{"d":"HALL-T1","t":"2024-03-02T10:05:00","k":"temp","v":19},{"d":"HALL-T2","t":"2024-03-01T10:00:00","k":"temp","v":18.5}]}';
GO
EXEC dbo.Store;
GO
SELECT d.Code, r.At, r.Value, r.Times FROM dbo.Reading AS r JOIN dbo.Device AS d ON d.DeviceId = r.DeviceId ORDER BY d.Code, r.At;
SELECT Way, Depth FROM dbo.Path ORDER BY Way OFFSET 2 ROWS FETCH NEXT 3 ROWS ONLY;
GO
-- per device the latest reading and the change since the one before
SELECT Code, Value, Change, Running
FROM (
    SELECT d.Code, r.Value, r.Value - LAG(r.Value) OVER (PARTITION BY r.DeviceId ORDER BY r.At) AS Change,
           SUM(r.Value) OVER (PARTITION BY r.DeviceId ORDER BY r.At ROWS UNBOUNDED PRECEDING) AS Running,
           ROW_NUMBER() OVER (PARTITION BY r.DeviceId ORDER BY r.At DESC) AS place
    FROM dbo.Reading AS r INNER JOIN dbo.Device AS d ON d.DeviceId = r.DeviceId
) AS x
WHERE place = 1
ORDER BY Code;
GO
-- totals by hall, kind, and all of them
SELECT ISNULL(h.Code, 'all') AS hall, ISNULL(r.Kind, '-') AS kind, COUNT(*) AS n, CAST(AVG(r.Value) AS DECIMAL(9, 2)) AS mean, GROUPING_ID(h.Code, r.Kind) AS level
FROM dbo.Reading AS r
JOIN dbo.Device AS d ON d.DeviceId = r.DeviceId
JOIN dbo.Device AS h ON h.DeviceId = d.Parent
GROUP BY GROUPING SETS ((h.Code, r.Kind), ())
ORDER BY level, hall;
-- one column for each hour
SELECT Code, [10], [11]
FROM (SELECT d.Code, DATEPART(HOUR, r.At) AS hour, r.Value FROM dbo.Reading r JOIN dbo.Device d ON d.DeviceId = r.DeviceId WHERE r.At < '20240302') AS s
PIVOT (MAX(Value) FOR hour IN ([10], [11])) AS p
ORDER BY Code;
GO
-- tags out of JSON, and rows into JSON
SELECT t.value AS tag, COUNT(*) AS n, STRING_AGG(d.Code, ', ') WITHIN GROUP (ORDER BY d.Code) AS codes
FROM dbo.Device AS d CROSS APPLY OPENJSON(d.Tags) AS t
GROUP BY t.value
HAVING COUNT(*) >= 1
ORDER BY n DESC, tag;
UPDATE dbo.Device SET Tags = JSON_MODIFY(Tags, 'append $', N'new') WHERE Code = 'YARD-W';
SELECT (
    SELECT d.Code AS [device.code], JSON_QUERY(d.Tags) AS tags, (SELECT COUNT(*) FROM dbo.Reading r WHERE r.DeviceId = d.DeviceId) AS readings
    FROM dbo.Device AS d WHERE d.Code LIKE 'YARD%' ORDER BY d.Code FOR JSON PATH, ROOT('yard')
) AS report;
GO
SELECT COUNT(*) AS batches, MIN(JSON_VALUE(Body, '$.from')) AS first_from, SUM(DATALENGTH(Body)) / 2 AS characters FROM dbo.Inbox;
SELECT value AS word, ordinal FROM STRING_SPLIT('temp,wind,temp', ',', 1) WHERE value <> 'wind' ORDER BY ordinal DESC;
SELECT DATEDIFF(MINUTE, MIN(At), MAX(At)) AS minutes, DATENAME(WEEKDAY, MAX(At)) AS day, EOMONTH(MAX(At)) AS month_end, FORMAT(MIN(At), 'yyyy-MM-dd HH:mm') AS start FROM dbo.Reading;
GO
-- weeks without readings are there too
WITH weeks AS (SELECT CAST('20240226' AS DATE) AS monday UNION ALL SELECT DATEADD(WEEK, 1, monday) FROM weeks WHERE monday < '20240311')
SELECT w.monday, COUNT(r.Value) AS readings, COALESCE(MAX(r.Value), 0) AS highest
FROM weeks AS w LEFT JOIN dbo.Reading AS r ON r.At >= w.monday AND r.At < DATEADD(WEEK, 1, w.monday)
GROUP BY w.monday ORDER BY w.monday OPTION (MAXRECURSION 60);
GO
-- the alarms that the gateway has heard
DECLARE @handle UNIQUEIDENTIFIER, @body XML, @type SYSNAME;
DECLARE @alarms TABLE (device VARCHAR(100), value DECIMAL(9, 3));
WHILE 1 = 1
BEGIN
    SET @type = NULL;
    RECEIVE TOP (1) @handle = conversation_handle, @type = message_type_name, @body = CAST(message_body AS XML) FROM dbo.GatewayQueue;
    IF @type IS NULL BREAK;
    IF @type = N'sensors/alarm'
        INSERT @alarms SELECT a.x.value('@device', 'VARCHAR(100)'), a.x.value('@value', 'DECIMAL(9, 3)') FROM @body.nodes('/alarms/alarm') AS a(x);
END;
SELECT device, value FROM @alarms;
END CONVERSATION @handle WITH CLEANUP;
SELECT COUNT(*) AS left_over FROM sys.conversation_endpoints WHERE is_initiator = 1;
GO
USE master;
DROP DATABASE Sensors;
