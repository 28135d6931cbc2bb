-- An installation as tools and consultants write it: every step looks before it drops, options are scripted out, and the
-- whole script can run again. Here it runs twice: what it says the second time is what somebody upgrading sees.
SET ANSI_NULLS ON
SET QUOTED_IDENTIFIER ON
SET NOCOUNT ON
GO
USE [master]
GO
IF NOT EXISTS (SELECT name FROM sys.databases WHERE name = N'Depot')
BEGIN
    CREATE DATABASE [Depot]
     CONTAINMENT = NONE
     ON PRIMARY (NAME = N'Depot', FILENAME = N'C:\Data\Depot.mdf', SIZE = 8192KB, MAXSIZE = UNLIMITED, FILEGROWTH = 65536KB)
     LOG ON (NAME = N'Depot_log', FILENAME = N'C:\Data\Depot_log.ldf', SIZE = 8192KB, MAXSIZE = 2048GB, FILEGROWTH = 65536KB)
     WITH CATALOG_COLLATION = DATABASE_DEFAULT
END
GO
ALTER DATABASE [Depot] SET COMPATIBILITY_LEVEL = 150
GO
IF (1 = FULLTEXTSERVICEPROPERTY('IsFullTextInstalled'))
BEGIN
    EXEC [Depot].[dbo].[sp_fulltext_database] @action = 'enable'
END
GO
ALTER DATABASE [Depot] SET ANSI_NULL_DEFAULT OFF
GO
ALTER DATABASE [Depot] SET AUTO_CLOSE OFF
GO
ALTER DATABASE [Depot] SET RECOVERY FULL
GO
IF (SELECT is_broker_enabled FROM sys.databases WHERE name = N'Depot') = 0
    ALTER DATABASE [Depot] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE
GO
USE [Depot]
GO
-- ------------------------------------------------------------------------------------------------ what is there goes
DECLARE @found int = 0
IF EXISTS (SELECT * FROM sys.services WHERE name = N'//depot/Intake')
BEGIN
    DROP SERVICE [//depot/Intake]
    SET @found += 1
END
IF EXISTS (SELECT * FROM sys.services WHERE name = N'//depot/Clerk')
BEGIN
    DROP SERVICE [//depot/Clerk]
    SET @found = @found + 1
END
IF EXISTS (SELECT * FROM sys.service_queues WHERE name = N'IntakeQueue' AND SCHEMA_NAME(schema_id) = N'depot')
BEGIN DROP QUEUE [depot].[IntakeQueue] SET @found += 1 END
IF OBJECT_ID(N'depot.ClerkQueue') IS NOT NULL
BEGIN DROP QUEUE depot.ClerkQueue SET @found += 1 END
IF EXISTS (SELECT 1 FROM sys.service_contracts WHERE name = N'//depot/Delivery')
    DROP CONTRACT [//depot/Delivery]
IF EXISTS (SELECT 1 FROM sys.service_message_types WHERE name = N'//depot/Parcel')
    DROP MESSAGE TYPE [//depot/Parcel]
IF EXISTS (SELECT 1 FROM sys.service_message_types WHERE name = N'//depot/Receipt')
    DROP MESSAGE TYPE [//depot/Receipt]
DROP VIEW IF EXISTS depot.Stock
IF OBJECT_ID('depot.Unpack', 'P') IS NOT NULL DROP PROCEDURE depot.Unpack;
IF OBJECT_ID('depot.Weight', 'FN') IS NOT NULL DROP FUNCTION depot.Weight;
IF OBJECT_ID('depot.Heavy', 'IF') IS NOT NULL DROP FUNCTION depot.Heavy;
DROP TABLE IF EXISTS depot.Parcels, depot.Shelves
IF EXISTS (SELECT * FROM sys.objects WHERE object_id = OBJECT_ID(N'[depot].[Versions]') AND type IN (N'U'))
    PRINT N'versions are kept: ' + CAST((SELECT COUNT(*) FROM depot.Versions) AS nvarchar(10))
PRINT CONCAT(N'dropped ', @found)
GO
-- ------------------------------------------------------------------------------------------------ tables
IF NOT EXISTS (SELECT * FROM sys.schemas WHERE name = N'depot')
    EXEC sys.sp_executesql N'CREATE SCHEMA [depot]'
GO
IF NOT EXISTS (SELECT * FROM INFORMATION_SCHEMA.TABLES WHERE TABLE_SCHEMA = 'depot' AND TABLE_NAME = 'Versions')
CREATE TABLE [depot].[Versions](
    [Id] [int] IDENTITY(1,1) NOT NULL,
    [Version] [varchar](20) NOT NULL,
    [InstalledAt] [datetime] NOT NULL CONSTRAINT [DF_Versions_At] DEFAULT (getdate()),
    [InstalledBy] [nvarchar](128) NULL DEFAULT (suser_sname()),
 CONSTRAINT [PK_Versions] PRIMARY KEY CLUSTERED ([Id] ASC)
    WITH (PAD_INDEX = OFF, STATISTICS_NORECOMPUTE = OFF, IGNORE_DUP_KEY = OFF, ALLOW_ROW_LOCKS = ON, ALLOW_PAGE_LOCKS = ON) ON [PRIMARY]
) ON [PRIMARY]
GO
CREATE TABLE [depot].[Shelves](
    [ShelfId] [smallint] NOT NULL,
    [Label] [nchar](4) NOT NULL,
    [Limit] [decimal](9, 2) NOT NULL,
    [IsCold] [bit] NOT NULL CONSTRAINT [DF_Shelves_Cold] DEFAULT ((0)),
    [Options] [sql_variant] NULL,
 CONSTRAINT [PK_Shelves] PRIMARY KEY NONCLUSTERED ([ShelfId] ASC) ON [PRIMARY],
 CONSTRAINT [UQ_Shelves] UNIQUE ([Label])
) ON [PRIMARY]
GO
CREATE TABLE [depot].[Parcels](
    [ParcelId] [uniqueidentifier] ROWGUIDCOL NOT NULL CONSTRAINT [DF_Parcels_Id] DEFAULT (newsequentialid()),
    [ShelfId] [smallint] NOT NULL,
    [Grams] [int] NOT NULL,
    [Content] [xml] NULL,
    [ArrivedAt] [datetime2](3) NOT NULL DEFAULT SYSUTCDATETIME(),
    [Kilos] AS (CONVERT([decimal](9, 3), [Grams] / 1000.0)),
 CONSTRAINT [PK_Parcels] PRIMARY KEY CLUSTERED ([ParcelId] ASC)
) ON [PRIMARY] TEXTIMAGE_ON [PRIMARY]
GO
ALTER TABLE [depot].[Parcels] WITH CHECK ADD CONSTRAINT [FK_Parcels_Shelves] FOREIGN KEY([ShelfId])
REFERENCES [depot].[Shelves] ([ShelfId])
GO
ALTER TABLE [depot].[Parcels] CHECK CONSTRAINT [FK_Parcels_Shelves]
GO
ALTER TABLE [depot].[Parcels] WITH CHECK ADD CONSTRAINT [CK_Parcels_Grams] CHECK (([Grams]>(0)))
GO
CREATE NONCLUSTERED INDEX [IX_Parcels_Shelf] ON [depot].[Parcels] ([ShelfId] ASC) INCLUDE ([Grams])
    WITH (SORT_IN_TEMPDB = OFF, DROP_EXISTING = OFF, ONLINE = OFF, FILLFACTOR = 90) ON [PRIMARY]
GO
EXEC sys.sp_addextendedproperty @name = N'MS_Description', @value = N'What lies where', @level0type = N'SCHEMA',
    @level0name = N'depot', @level1type = N'TABLE', @level1name = N'Parcels'
GO
-- ------------------------------------------------------------------------------------------------ code
CREATE FUNCTION [depot].[Weight] (@shelf smallint) RETURNS decimal(9, 3) WITH SCHEMABINDING
AS
BEGIN
    DECLARE @sum decimal(9, 3)
    SELECT @sum = SUM(Kilos) FROM depot.Parcels WHERE ShelfId = @shelf
    RETURN COALESCE(@sum, 0)
END
GO
CREATE FUNCTION depot.Heavy (@grams int) RETURNS TABLE AS
RETURN (SELECT ParcelId, ShelfId, Grams FROM depot.Parcels WHERE Grams >= @grams)
GO
CREATE VIEW depot.Stock AS
    SELECT s.ShelfId, RTRIM(s.Label) AS Label, depot.Weight(s.ShelfId) AS Kilos,
           CASE WHEN depot.Weight(s.ShelfId) > s.Limit THEN 'over' ELSE 'fine' END AS Stand
    FROM depot.Shelves AS s
GO
CREATE PROCEDURE [depot].[Unpack]
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    DECLARE @handle uniqueidentifier, @type sysname, @body xml, @shelf smallint, @left int = 1;
    WHILE (@left > 0)
    BEGIN
        BEGIN TRY
            BEGIN TRANSACTION;
            WAITFOR (
                RECEIVE TOP (1) @handle = conversation_handle, @type = message_type_name, @body = CAST(message_body AS xml)
                FROM depot.IntakeQueue
            ), TIMEOUT 100;
            SET @left = @@ROWCOUNT;
            IF (@type = N'//depot/Parcel' AND @left > 0)
            BEGIN
                SELECT @shelf = ShelfId FROM depot.Shelves WHERE Label = @body.value('(/parcel/@shelf)[1]', 'nchar(4)')
                IF @shelf IS NULL RAISERROR (N'There is no shelf %s', 16, 1, N'of this name');
                INSERT depot.Parcels (ShelfId, Grams, Content)
                SELECT @shelf, p.item.value('@grams', 'int'), p.item.query('.')
                FROM @body.nodes('/parcel/item') AS p(item);
                SEND ON CONVERSATION @handle MESSAGE TYPE [//depot/Receipt] (CONVERT(nvarchar(20), @@ROWCOUNT));
                END CONVERSATION @handle;
            END
            ELSE IF (@type = N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog')
                END CONVERSATION @handle;
            COMMIT TRANSACTION;
        END TRY
        BEGIN CATCH
            DECLARE @number int = ERROR_NUMBER(), @said nvarchar(2048) = ERROR_MESSAGE();
            IF XACT_STATE() <> 0 ROLLBACK TRANSACTION;
            PRINT CONCAT(N'unpack: ', @number, N' ', @said);
            SET @left = 0
        END CATCH
        SELECT @type = NULL, @shelf = NULL
    END
END
GO
-- ------------------------------------------------------------------------------------------------ Service Broker
CREATE MESSAGE TYPE [//depot/Parcel] AUTHORIZATION [dbo] VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE [//depot/Receipt] AUTHORIZATION [dbo] VALIDATION = NONE
GO
CREATE CONTRACT [//depot/Delivery] AUTHORIZATION [dbo]
    ([//depot/Parcel] SENT BY INITIATOR, [//depot/Receipt] SENT BY TARGET)
GO
CREATE QUEUE [depot].[IntakeQueue] WITH STATUS = ON, RETENTION = OFF,
    ACTIVATION (STATUS = OFF, PROCEDURE_NAME = [depot].[Unpack], MAX_QUEUE_READERS = 2, EXECUTE AS N'dbo'),
    POISON_MESSAGE_HANDLING (STATUS = ON) ON [PRIMARY]
CREATE QUEUE [depot].[ClerkQueue]
GO
CREATE SERVICE [//depot/Intake] AUTHORIZATION [dbo] ON QUEUE [depot].[IntakeQueue] ([//depot/Delivery])
CREATE SERVICE [//depot/Clerk] ON QUEUE [depot].[ClerkQueue]
GO
INSERT depot.Shelves (ShelfId, Label, Limit, IsCold, Options)
VALUES (1, N'A-01', 2.5, 'false', 12), (2, N'A-02', 1, 'true', N'cold'), (3, N'B-01', 9.75, 0, CAST('2020-01-02' AS date))
INSERT depot.Versions (Version) VALUES ('1.' + CAST((SELECT COUNT(*) FROM depot.Versions) AS varchar(4)))
GO
-- ------------------------------------------------------------------------------------------------ a trial
DECLARE @h uniqueidentifier, @sent int = 0, @body nvarchar(max)
WHILE @sent < 3
BEGIN
    SET @sent += 1
    SET @body = (SELECT RTRIM(s.Label) AS [@shelf],
                        (SELECT n.g AS [@grams] FROM (VALUES (400), (700 * @sent)) AS n(g) FOR XML PATH('item'), TYPE)
                 FROM depot.Shelves s WHERE s.ShelfId = @sent FOR XML PATH('parcel'))
    BEGIN DIALOG CONVERSATION @h FROM SERVICE [//depot/Clerk] TO SERVICE N'//depot/Intake', N'CURRENT DATABASE'
        ON CONTRACT [//depot/Delivery] WITH ENCRYPTION = OFF;
    SEND ON CONVERSATION @h MESSAGE TYPE [//depot/Parcel] (@body);
END
EXECUTE [depot].[Unpack];
GO
SELECT Label, Kilos, Stand FROM depot.Stock ORDER BY ShelfId
SELECT COUNT(*) AS heavy, MIN(Grams), MAX(Grams) FROM depot.Heavy(700)
SELECT CAST(message_body AS nvarchar(20)) AS receipt, message_type_name FROM depot.ClerkQueue WHERE message_type_name LIKE N'//depot/%'
SELECT Label, CAST(SQL_VARIANT_PROPERTY(Options, 'BaseType') AS sysname) AS kind, Options FROM depot.Shelves WHERE Options IS NOT NULL ORDER BY ShelfId
SELECT TOP (1) Version, CASE WHEN InstalledBy = SUSER_SNAME() THEN 'me' END FROM depot.Versions ORDER BY Id DESC
GO
INSERT depot.Parcels (ShelfId, Grams) VALUES (9, 5)
GO
INSERT depot.Parcels (ShelfId, Grams) VALUES (1, 0)
GO
INSERT depot.Shelves (ShelfId, Label, Limit) VALUES (4, N'A-01', 1)
GO
