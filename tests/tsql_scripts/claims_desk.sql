-- A desk that asks two experts about each claim and decides when both have answered: the conversations of a claim
-- are one group, what is known of it stands in a table by that group, priorities let the urgent ones go first.
USE [master]
GO
IF DB_ID('ClaimsDesk') IS NOT NULL DROP DATABASE [ClaimsDesk]
GO
CREATE DATABASE [ClaimsDesk]
GO
ALTER DATABASE [ClaimsDesk] SET RECOVERY SIMPLE, PAGE_VERIFY CHECKSUM WITH NO_WAIT
ALTER DATABASE [ClaimsDesk] SET HONOR_BROKER_PRIORITY ON
GO
USE [ClaimsDesk];
GO
CREATE SCHEMA [Claims] AUTHORIZATION [dbo];
GO
CREATE TYPE [Claims].[Amount] FROM DECIMAL(12, 2) NOT NULL;
CREATE TYPE [Claims].[NewClaims] AS TABLE
(
    [Number] NVARCHAR(20) NOT NULL PRIMARY KEY,
    [Wanted] DECIMAL(12, 2) NOT NULL CHECK ([Wanted] > 0),
    [IsUrgent] BIT NOT NULL DEFAULT (0)
);
GO
CREATE TABLE [Claims].[Claim]
(
    [ClaimId]  UNIQUEIDENTIFIER NOT NULL CONSTRAINT [PK_Claim] PRIMARY KEY NONCLUSTERED,
    [Number]   NVARCHAR(20) NOT NULL CONSTRAINT [UQ_Claim_Number] UNIQUE,
    [Wanted]   [Claims].[Amount],
    [Granted]  DECIMAL(12, 2) NULL,
    [State]    TINYINT NOT NULL CONSTRAINT [DF_Claim_State] DEFAULT (1),
    [Stamp]    ROWVERSION,
    CONSTRAINT [CK_Claim_State] CHECK ([State] BETWEEN 1 AND 4)
);
CREATE TABLE [Claims].[Opinion]
(
    [ClaimId] UNIQUEIDENTIFIER NOT NULL CONSTRAINT [FK_Opinion_Claim] FOREIGN KEY REFERENCES [Claims].[Claim] ([ClaimId]) ON DELETE CASCADE,
    [Expert]  SYSNAME NOT NULL,
    [Answer]  DECIMAL(12, 2) NULL,
    [Reason]  NVARCHAR(200) NULL,
    CONSTRAINT [PK_Opinion] PRIMARY KEY ([ClaimId], [Expert])
);
CREATE TABLE [Claims].[History] ([Id] INT IDENTITY, [Number] NVARCHAR(20), [Was] TINYINT, [Is] TINYINT, [Act] NVARCHAR(10));
GO
CREATE TRIGGER [Claims].[Claim_History] ON [Claims].[Claim] AFTER INSERT, UPDATE
AS
BEGIN
    SET NOCOUNT ON;
    IF NOT UPDATE([State]) RETURN;
    INSERT INTO [Claims].[History] ([Number], [Was], [Is], [Act])
    SELECT i.[Number], d.[State], i.[State], IIF(d.[ClaimId] IS NULL, N'insert', N'update')
    FROM inserted AS i LEFT JOIN deleted AS d ON d.[ClaimId] = i.[ClaimId]
    WHERE d.[State] IS NULL OR d.[State] <> i.[State]
    ORDER BY i.[Number];
END;
GO
CREATE XML SCHEMA COLLECTION [Claims].[Shapes] AS
N'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns="urn:claims" targetNamespace="urn:claims" elementFormDefault="qualified">
    <xs:element name="ask"><xs:complexType>
        <xs:attribute name="number" type="xs:string" use="required"/>
        <xs:attribute name="wanted" type="xs:decimal" use="required"/>
    </xs:complexType></xs:element>
</xs:schema>';
GO
CREATE MESSAGE TYPE [urn:claims:ask] VALIDATION = VALID_XML WITH SCHEMA COLLECTION [Claims].[Shapes];
CREATE MESSAGE TYPE [urn:claims:opinion] VALIDATION = NONE;
CREATE MESSAGE TYPE [urn:claims:withdrawn] VALIDATION = EMPTY;
CREATE CONTRACT [urn:claims:asking] ([urn:claims:ask] SENT BY INITIATOR, [urn:claims:opinion] SENT BY TARGET, [urn:claims:withdrawn] SENT BY ANY);
CREATE CONTRACT [urn:claims:urgent] ([urn:claims:ask] SENT BY INITIATOR, [urn:claims:opinion] SENT BY TARGET);
CREATE QUEUE [Claims].[DeskQueue];
CREATE QUEUE [Claims].[ExpertQueue];
CREATE SERVICE [urn:claims:desk] ON QUEUE [Claims].[DeskQueue];
CREATE SERVICE [urn:claims:engineer] ON QUEUE [Claims].[ExpertQueue] ([urn:claims:asking], [urn:claims:urgent]);
CREATE SERVICE [urn:claims:lawyer] ON QUEUE [Claims].[ExpertQueue] ([urn:claims:asking], [urn:claims:urgent]);
CREATE BROKER PRIORITY [UrgentFirst] FOR CONVERSATION SET (CONTRACT_NAME = [urn:claims:urgent], LOCAL_SERVICE_NAME = ANY, REMOTE_SERVICE_NAME = ANY, PRIORITY_LEVEL = 9);
GO
CREATE PROCEDURE [Claims].[Ask] @Claim UNIQUEIDENTIFIER, @Expert NVARCHAR(256), @IsUrgent BIT
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @Handle UNIQUEIDENTIFIER, @Body XML, @Contract SYSNAME = CASE @IsUrgent WHEN 1 THEN N'urn:claims:urgent' ELSE N'urn:claims:asking' END;
    WITH XMLNAMESPACES (DEFAULT 'urn:claims')
    SELECT @Body = (SELECT [Number] AS [@number], [Wanted] AS [@wanted] FROM [Claims].[Claim] WHERE [ClaimId] = @Claim FOR XML PATH('ask'), TYPE);
    BEGIN DIALOG CONVERSATION @Handle
        FROM SERVICE [urn:claims:desk] TO SERVICE @Expert, N'CURRENT DATABASE' ON CONTRACT @Contract
        WITH RELATED_CONVERSATION_GROUP = @Claim, ENCRYPTION = OFF;
    SEND ON CONVERSATION @Handle MESSAGE TYPE [urn:claims:ask] (@Body);
    INSERT [Claims].[Opinion] ([ClaimId], [Expert]) VALUES (@Claim, @Expert);
END;
GO
CREATE OR ALTER PROCEDURE [Claims].[Open] @New [Claims].[NewClaims] READONLY
AS
BEGIN
    SET NOCOUNT, XACT_ABORT ON;
    DECLARE @Made TABLE ([ClaimId] UNIQUEIDENTIFIER, [Number] NVARCHAR(20));
    BEGIN TRANSACTION;
    MERGE [Claims].[Claim] WITH (HOLDLOCK) AS [target]
    USING @New AS [source] ON [target].[Number] = [source].[Number]
    WHEN NOT MATCHED BY TARGET THEN INSERT ([ClaimId], [Number], [Wanted]) VALUES (NEWID(), [source].[Number], [source].[Wanted])
    WHEN MATCHED AND [target].[State] < 3 THEN UPDATE SET [Wanted] = [source].[Wanted]
    OUTPUT inserted.[ClaimId], inserted.[Number] INTO @Made ([ClaimId], [Number]);
    DECLARE @Claim UNIQUEIDENTIFIER, @IsUrgent BIT;
    DECLARE [each] CURSOR LOCAL READ_ONLY FOR
        SELECT m.[ClaimId], n.[IsUrgent] FROM @Made AS m INNER JOIN @New AS n ON n.[Number] = m.[Number] ORDER BY m.[Number];
    OPEN [each];
    FETCH NEXT FROM [each] INTO @Claim, @IsUrgent;
    WHILE @@FETCH_STATUS = 0
    BEGIN
        EXECUTE [Claims].[Ask] @Claim, N'urn:claims:engineer', @IsUrgent;
        EXECUTE [Claims].[Ask] @Claim = @Claim, @Expert = N'urn:claims:lawyer', @IsUrgent = @IsUrgent;
        FETCH NEXT FROM [each] INTO @Claim, @IsUrgent;
    END;
    CLOSE [each]; DEALLOCATE [each];
    COMMIT;
END;
GO
-- both experts share a queue: who is asked is told by the service of the message
CREATE PROCEDURE [Claims].[Judge]
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @Handle UNIQUEIDENTIFIER, @Service SYSNAME, @Type SYSNAME, @Body XML, @Wanted DECIMAL(12, 2), @Answer NVARCHAR(MAX), @Order INT = 0;
    WHILE 1 = 1
    BEGIN
        SET @Handle = NULL;
        BEGIN TRANSACTION;
        RECEIVE TOP (1) @Handle = conversation_handle, @Service = service_name, @Type = message_type_name, @Body = CAST(message_body AS XML)
        FROM [Claims].[ExpertQueue];
        IF @Handle IS NULL BEGIN COMMIT; BREAK END;
        IF @Type = N'urn:claims:ask'
        BEGIN
            SET @Wanted = @Body.value('declare namespace c="urn:claims"; (/c:ask/@wanted)[1]', 'DECIMAL(12, 2)');
            SELECT @Answer = CASE @Service
                WHEN N'urn:claims:engineer' THEN (SELECT @Wanted * 0.8 AS granted, N'wear' AS reason FOR JSON PATH, WITHOUT_ARRAY_WRAPPER)
                ELSE (SELECT IIF(@Wanted > 1000, NULL, @Wanted) AS granted, N'law' AS reason FOR JSON PATH, WITHOUT_ARRAY_WRAPPER, INCLUDE_NULL_VALUES) END;
            SEND ON CONVERSATION @Handle MESSAGE TYPE [urn:claims:opinion] (@Answer);
            PRINT CONCAT(@Service, ' judged ', @Body.value('declare default element namespace "urn:claims"; (/ask/@number)[1]', 'NVARCHAR(20)'));
        END
        ELSE
            END CONVERSATION @Handle;
        COMMIT;
    END;
END;
GO
CREATE PROCEDURE [Claims].[Decide]
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @Group UNIQUEIDENTIFIER, @Handle UNIQUEIDENTIFIER, @Type SYSNAME, @Body NVARCHAR(MAX);
    WHILE 1 = 1
    BEGIN
        BEGIN TRANSACTION;
        SET @Group = NULL;
        WAITFOR (GET CONVERSATION GROUP @Group FROM [Claims].[DeskQueue]), TIMEOUT 100;
        IF @Group IS NULL BEGIN ROLLBACK TRANSACTION; BREAK; END;
        WHILE 1 = 1
        BEGIN
            IF NOT EXISTS (SELECT * FROM [Claims].[DeskQueue] WHERE conversation_group_id = @Group) BREAK;
            RECEIVE TOP (1) @Handle = conversation_handle, @Type = message_type_name, @Body = CAST(message_body AS NVARCHAR(MAX))
            FROM [Claims].[DeskQueue] WHERE conversation_group_id = @Group;
            IF @Type <> N'urn:claims:opinion' BEGIN END CONVERSATION @Handle; CONTINUE; END;
            UPDATE o
            SET [Answer] = TRY_CONVERT(DECIMAL(12, 2), JSON_VALUE(@Body, '$.granted')), [Reason] = JSON_VALUE(@Body, '$.reason')
            FROM [Claims].[Opinion] AS o
            INNER JOIN sys.conversation_endpoints AS e ON e.conversation_group_id = o.[ClaimId] AND e.far_service = o.[Expert]
            WHERE e.conversation_handle = @Handle;
            END CONVERSATION @Handle;
        END;
        IF NOT EXISTS (SELECT * FROM [Claims].[Opinion] WHERE [ClaimId] = @Group AND [Reason] IS NULL)
            UPDATE [Claims].[Claim]
            SET [Granted] = found.[least], [State] = CASE WHEN found.[refused] > 0 THEN 4 ELSE 3 END
            FROM [Claims].[Claim] AS c
            CROSS APPLY (SELECT MIN([Answer]) AS [least], SUM(IIF([Answer] IS NULL, 1, 0)) AS [refused] FROM [Claims].[Opinion] WHERE [ClaimId] = c.[ClaimId]) AS found
            WHERE c.[ClaimId] = @Group;
        ELSE
            UPDATE [Claims].[Claim] SET [State] = 2 WHERE [ClaimId] = @Group AND [State] = 1;
        COMMIT TRANSACTION;
    END;
END;
GO
DECLARE @New [Claims].[NewClaims];
INSERT @New ([Number], [Wanted]) VALUES (N'C-1', 100), (N'C-2', 5000);
INSERT @New ([Number], [Wanted], [IsUrgent]) VALUES (N'C-3', 70.5, 1);
EXEC [Claims].[Open] @New;
SELECT [priority], COUNT(*) AS waiting FROM [Claims].[ExpertQueue] GROUP BY [priority] ORDER BY [priority] DESC;
GO
-- a claim of nothing is none, and a text that the schema does not know is not a question
DECLARE @New [Claims].[NewClaims];
INSERT @New ([Number], [Wanted]) VALUES (N'C-0', 0);
GO
DECLARE @Handle UNIQUEIDENTIFIER;
BEGIN TRY
    BEGIN TRANSACTION;
    BEGIN DIALOG @Handle FROM SERVICE [urn:claims:desk] TO SERVICE N'urn:claims:lawyer' ON CONTRACT [urn:claims:asking] WITH ENCRYPTION = OFF;
    SEND ON CONVERSATION @Handle MESSAGE TYPE [urn:claims:opinion] (N'{}');
    COMMIT;
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER() AS [number], ERROR_SEVERITY() AS [severity], XACT_STATE() AS [state], ERROR_PROCEDURE() AS [procedure];
    IF XACT_STATE() <> 0 ROLLBACK;
END CATCH;
GO
EXEC [Claims].[Judge];
EXEC [Claims].[Decide];
GO
SELECT [Number], [Wanted], [Granted], [State] FROM [Claims].[Claim] ORDER BY [Number];
SELECT c.[Number], STRING_AGG(CONCAT(RIGHT(o.[Expert], 6), N'=', ISNULL(CONVERT(NVARCHAR(20), o.[Answer]), N'?')), N', ') WITHIN GROUP (ORDER BY o.[Expert]) AS [opinions]
FROM [Claims].[Opinion] AS o JOIN [Claims].[Claim] AS c ON c.[ClaimId] = o.[ClaimId] GROUP BY c.[Number] ORDER BY c.[Number];
SELECT [Number], [Was], [Is], [Act] FROM [Claims].[History] ORDER BY [Number], [Id];
GO
EXEC [Claims].[Judge];
SELECT e.is_initiator, e.state_desc, e.priority, COUNT(DISTINCT e.conversation_group_id) AS [groups], COUNT(*) AS [all]
FROM sys.conversation_endpoints AS e GROUP BY e.is_initiator, e.state_desc, e.priority ORDER BY 1, 3;
SELECT p.name, p.priority FROM sys.conversation_priorities AS p;
SELECT CASE WHEN MIN([Stamp]) < MAX([Stamp]) THEN 'stamped' END AS [stamp] FROM [Claims].[Claim];
GO
DROP PROCEDURE IF EXISTS [Claims].[Open], [Claims].[Ask];
DROP TYPE IF EXISTS [Claims].[NewClaims];
GO
USE [master]
GO
DROP DATABASE [ClaimsDesk]
