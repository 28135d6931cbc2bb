-- A release as tools write it: each step asks whether it is to be done, tables, queues, services and contracts are
-- altered in place while messages wait, objects are renamed, and what was done is kept by version. It runs twice.
SET ANSI_NULLS ON
SET QUOTED_IDENTIFIER ON
SET ANSI_PADDING ON
SET NOCOUNT ON
GO
IF NOT EXISTS (SELECT * FROM sys.databases WHERE name = N'Shop9')
    CREATE DATABASE [Shop9]
GO
ALTER DATABASE [Shop9] SET RECOVERY SIMPLE
ALTER DATABASE [Shop9] SET AUTO_CLOSE OFF, AUTO_SHRINK OFF
ALTER DATABASE [Shop9] SET COMPATIBILITY_LEVEL = 150
GO
IF (SELECT is_broker_enabled FROM sys.databases WHERE name = 'Shop9') = 0
    ALTER DATABASE [Shop9] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE
GO
USE [Shop9]
GO
IF OBJECT_ID(N'[dbo].[Steps]', N'U') IS NULL
BEGIN
    CREATE TABLE [dbo].[Steps]
    (
        [Step] [int] NOT NULL,
        [Name] [nvarchar](100) NOT NULL,
        [DoneAt] [datetime] NOT NULL CONSTRAINT [DF_Steps_DoneAt] DEFAULT (getdate()),
        [DoneBy] [sysname] NOT NULL CONSTRAINT [DF_Steps_DoneBy] DEFAULT (suser_sname()),
        CONSTRAINT [PK_Steps] PRIMARY KEY CLUSTERED ([Step] ASC)
            WITH (PAD_INDEX = OFF, STATISTICS_NORECOMPUTE = OFF, IGNORE_DUP_KEY = OFF, ALLOW_ROW_LOCKS = ON, ALLOW_PAGE_LOCKS = ON) ON [PRIMARY]
    ) ON [PRIMARY]
END
GO
IF EXISTS (SELECT * FROM sys.objects WHERE object_id = OBJECT_ID(N'[dbo].[Step]') AND type IN (N'P', N'PC'))
    DROP PROCEDURE [dbo].[Step]
GO
CREATE PROCEDURE [dbo].[Step] @Step int, @Name nvarchar(100), @Sql nvarchar(max)
AS
BEGIN
    SET NOCOUNT ON;
    IF EXISTS (SELECT 1 FROM [dbo].[Steps] WHERE [Step] = @Step)
        RETURN 0;
    BEGIN TRY
        BEGIN TRANSACTION;
        EXEC sys.sp_executesql @Sql;
        INSERT INTO [dbo].[Steps] ([Step], [Name]) VALUES (@Step, @Name);
        COMMIT TRANSACTION;
        PRINT N'done: ' + CAST(@Step AS nvarchar(10)) + N' ' + @Name;
        RETURN 1;
    END TRY
    BEGIN CATCH
        DECLARE @Error nvarchar(2000) = ERROR_MESSAGE(), @Number int = ERROR_NUMBER();
        IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
        RAISERROR (N'Step %d failed with %d: %s', 16, 1, @Step, @Number, @Error);
        RETURN -1;
    END CATCH;
END
GO
EXEC dbo.Step 1, N'tables', N'
CREATE TABLE dbo.Customer (CustomerId int IDENTITY(1,1) NOT NULL PRIMARY KEY, Name varchar(30) NOT NULL, Mail varchar(50) NULL);
CREATE TABLE dbo.Purchase (PurchaseId int IDENTITY(1,1) NOT NULL CONSTRAINT PK_Purchase PRIMARY KEY, CustomerId int NOT NULL, Total money NOT NULL, Old int NULL);
CREATE INDEX IX_Purchase_Customer ON dbo.Purchase (CustomerId);
INSERT dbo.Customer (Name, Mail) VALUES (''Ada'', ''ada@shop.example''), (''Ben'', NULL);
INSERT dbo.Purchase (CustomerId, Total) VALUES (1, 20), (2, 5.5), (1, 7);'
EXEC dbo.Step 2, N'broker', N'
CREATE MESSAGE TYPE [shop/order] VALIDATION = NONE;
CREATE CONTRACT [shop/v1] ([shop/order] SENT BY INITIATOR);
CREATE QUEUE dbo.Orders;
CREATE QUEUE dbo.Site;
CREATE SERVICE [shop/site] ON QUEUE dbo.Site;
CREATE SERVICE [shop/orders] ON QUEUE dbo.Orders ([shop/v1]);'
GO
-- messages of the version before wait while the rest is done
IF NOT EXISTS (SELECT * FROM dbo.Orders) AND NOT EXISTS (SELECT 1 FROM dbo.Steps WHERE Step > 2)
BEGIN
    DECLARE @h uniqueidentifier, @i int
    SET @i = 1
    WHILE @i <= 3
    BEGIN
        BEGIN DIALOG CONVERSATION @h FROM SERVICE [shop/site] TO SERVICE N'shop/orders' ON CONTRACT [shop/v1] WITH ENCRYPTION = OFF;
        DECLARE @body nvarchar(max) = N'order ' + CAST(@i AS nvarchar(5));
        SEND ON CONVERSATION @h MESSAGE TYPE [shop/order] (@body);
        SET @i += 1
    END
END
GO
EXEC dbo.Step 3, N'wider names', N'
ALTER TABLE dbo.Customer ALTER COLUMN Name nvarchar(60) NOT NULL;
ALTER TABLE dbo.Customer ADD Born date NULL, IsOpen bit NOT NULL CONSTRAINT DF_Customer_IsOpen DEFAULT (1) WITH VALUES;
ALTER TABLE dbo.Purchase DROP COLUMN Old;
ALTER TABLE dbo.Purchase WITH CHECK ADD CONSTRAINT FK_Purchase_Customer FOREIGN KEY (CustomerId) REFERENCES dbo.Customer (CustomerId);
ALTER TABLE dbo.Purchase WITH NOCHECK ADD CONSTRAINT CK_Purchase_Total CHECK (Total > 6);
ALTER TABLE dbo.Purchase CHECK CONSTRAINT FK_Purchase_Customer;'
EXEC dbo.Step 4, N'new words', N'
EXEC sp_rename ''dbo.Purchase'', ''Sale'';
EXEC sp_rename ''dbo.Sale.PurchaseId'', ''SaleId'', ''COLUMN'';
EXEC sp_rename N''dbo.Sale.IX_Purchase_Customer'', N''IX_Sale_Customer'', N''INDEX'';'
EXEC dbo.Step 5, N'broker of version two', N'
CREATE MESSAGE TYPE [shop/paid] VALIDATION = WELL_FORMED_XML;
CREATE CONTRACT [shop/v2] ([shop/order] SENT BY INITIATOR, [shop/paid] SENT BY TARGET);
ALTER SERVICE [shop/orders] (ADD CONTRACT [shop/v2], DROP CONTRACT [shop/v1]);
ALTER MESSAGE TYPE [shop/paid] VALIDATION = EMPTY;
ALTER QUEUE dbo.Orders WITH RETENTION = OFF, POISON_MESSAGE_HANDLING (STATUS = OFF);
ALTER QUEUE dbo.Site WITH STATUS = OFF;
ALTER QUEUE dbo.Site WITH STATUS = ON;'
EXEC dbo.Step 6, N'a step that fails', N'ALTER TABLE dbo.Sale ADD CONSTRAINT CK_Sale_Total CHECK (Total < 10);'
GO
IF NOT EXISTS (SELECT * FROM sys.columns WHERE object_id = OBJECT_ID('dbo.Sale') AND name = 'Tax')
    ALTER TABLE dbo.Sale ADD Tax AS (Total * 0.2) PERSISTED
GO
IF EXISTS (SELECT * FROM sys.indexes WHERE name = N'IX_Sale_Total' AND object_id = OBJECT_ID(N'dbo.Sale'))
    DROP INDEX IX_Sale_Total ON dbo.Sale
CREATE NONCLUSTERED INDEX IX_Sale_Total ON dbo.Sale (Total DESC) INCLUDE (CustomerId) WHERE Total > 1 WITH (ONLINE = OFF, FILLFACTOR = 90)
GO
UPDATE STATISTICS dbo.Sale WITH FULLSCAN
ALTER INDEX ALL ON dbo.Sale REBUILD
GO
IF OBJECT_ID('dbo.Totals') IS NOT NULL DROP VIEW dbo.Totals
GO
CREATE VIEW dbo.Totals WITH SCHEMABINDING
AS
SELECT c.CustomerId, c.Name, SUM(s.Total) AS Total, COUNT_BIG(*) AS Sales
FROM dbo.Sale AS s INNER JOIN dbo.Customer AS c ON c.CustomerId = s.CustomerId
GROUP BY c.CustomerId, c.Name
GO
CREATE OR ALTER FUNCTION dbo.Discount (@customer int)
RETURNS decimal(5, 2)
AS
BEGIN
    DECLARE @total money
    SELECT @total = Total FROM dbo.Totals WHERE CustomerId = @customer
    RETURN CASE WHEN @total >= 20 THEN 10.0 WHEN @total IS NULL THEN NULL ELSE 0 END
END
GO
CREATE OR ALTER PROCEDURE dbo.TakeOrders @most int = 10
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @orders TABLE (Handle uniqueidentifier, Contract sysname, Body nvarchar(max) NULL, Kind sysname)
    DECLARE @handle uniqueidentifier
    RECEIVE TOP (@most) conversation_handle, service_contract_name, CAST(message_body AS nvarchar(max)), message_type_name
    FROM dbo.Orders INTO @orders
    DECLARE each_order CURSOR LOCAL FORWARD_ONLY READ_ONLY FOR SELECT DISTINCT Handle FROM @orders
    OPEN each_order
    FETCH NEXT FROM each_order INTO @handle
    WHILE @@FETCH_STATUS = 0
    BEGIN
        END CONVERSATION @handle
        FETCH NEXT FROM each_order INTO @handle
    END
    CLOSE each_order
    DEALLOCATE each_order
    SELECT Contract, Body FROM @orders WHERE Kind = N'shop/order' ORDER BY Body
END
GO
-- what is there after it
SELECT Step, Name, DoneBy FROM dbo.Steps ORDER BY Step
SELECT c.name, TYPE_NAME(c.user_type_id) AS type, c.max_length, c.is_nullable, c.is_computed
FROM sys.columns AS c WHERE c.object_id = OBJECT_ID('dbo.Sale') ORDER BY c.column_id
SELECT LOWER(i.name) AS name, i.is_unique, i.is_primary_key FROM sys.indexes AS i WHERE i.object_id = OBJECT_ID('dbo.Sale') ORDER BY i.name
SELECT name, type_desc FROM sys.objects WHERE parent_object_id = OBJECT_ID('dbo.Sale') ORDER BY name
SELECT Name, Total, Sales, dbo.Discount(CustomerId) AS Discount FROM dbo.Totals ORDER BY Name
SELECT s.name AS service, c.name AS contract FROM sys.service_contract_usages AS u
JOIN sys.services AS s ON s.service_id = u.service_id JOIN sys.service_contracts AS c ON c.service_contract_id = u.service_contract_id
WHERE s.name LIKE N'shop/%' ORDER BY s.name, c.name
GO
SELECT q.name, q.is_receive_enabled, q.is_retention_enabled, q.is_poison_message_handling_enabled FROM sys.service_queues AS q WHERE q.is_ms_shipped = 0 ORDER BY q.name
SELECT m.name, m.validation_desc FROM sys.service_message_types AS m WHERE m.name LIKE N'shop/%' ORDER BY m.name
SELECT OBJECT_NAME(k.object_id) AS name, k.type_desc, OBJECT_NAME(k.parent_object_id) AS parent FROM sys.objects AS k
WHERE k.type IN ('PK', 'F', 'C') AND k.parent_object_id IN (OBJECT_ID('dbo.Sale'), OBJECT_ID('dbo.Customer')) AND k.name NOT LIKE 'PK__%' ORDER BY name
SELECT COUNT(*) AS orders FROM dbo.Orders WITH (NOLOCK)
GO
-- the old contract is taken no more, what has waited is still there
DECLARE @h uniqueidentifier
BEGIN DIALOG @h FROM SERVICE [shop/site] TO SERVICE N'shop/orders' ON CONTRACT [shop/v1] WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE [shop/order] (N'late');
GO
SELECT message_type_name, CAST(message_body AS xml).value('declare namespace e="http://schemas.microsoft.com/SQL/ServiceBroker/Error"; (/e:Error/e:Code)[1]', 'int') AS code FROM dbo.Site
GO
DECLARE @h uniqueidentifier
BEGIN DIALOG @h FROM SERVICE [shop/site] TO SERVICE N'shop/orders' ON CONTRACT [shop/v2] WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE [shop/order] (N'new');
GO
EXEC dbo.TakeOrders
EXEC dbo.TakeOrders @most = 1
GO
DECLARE @h uniqueidentifier
DECLARE ended CURSOR LOCAL FOR SELECT conversation_handle FROM sys.conversation_endpoints WHERE is_initiator = 1
OPEN ended
FETCH NEXT FROM ended INTO @h
WHILE @@FETCH_STATUS = 0
BEGIN
    END CONVERSATION @h WITH CLEANUP
    FETCH NEXT FROM ended INTO @h
END
CLOSE ended
DEALLOCATE ended
SELECT COUNT(*) AS conversations FROM sys.conversation_endpoints WHERE state <> 'CD'
GO
USE master
GO
