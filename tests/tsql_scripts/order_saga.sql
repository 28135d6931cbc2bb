-- Orders are booked, paid and shipped by three services; what fails is undone in the other order.
SET NOCOUNT ON
SET XACT_ABORT ON
GO
IF DB_ID(N'Saga') IS NOT NULL
BEGIN
    ALTER DATABASE Saga SET SINGLE_USER WITH ROLLBACK IMMEDIATE
    DROP DATABASE Saga
END
GO
CREATE DATABASE Saga
GO
ALTER DATABASE Saga SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE
GO
USE Saga
GO
CREATE TABLE dbo.Orders
(
    OrderId     INT IDENTITY(1,1) NOT NULL,
    Customer    NVARCHAR(50) NOT NULL,
    Amount      DECIMAL(10, 2) NOT NULL CONSTRAINT CK_Orders_Amount CHECK (Amount > 0),
    Status      VARCHAR(20) NOT NULL CONSTRAINT DF_Orders_Status DEFAULT ('NEW'),
    Conversation UNIQUEIDENTIFIER NULL,
    CreatedAt   DATETIME NOT NULL DEFAULT GETUTCDATE(),
    CONSTRAINT PK_Orders PRIMARY KEY CLUSTERED (OrderId ASC) WITH (PAD_INDEX = OFF, IGNORE_DUP_KEY = OFF) ON [PRIMARY]
) ON [PRIMARY]

CREATE TABLE dbo.Accounts (Customer NVARCHAR(50) NOT NULL PRIMARY KEY, Balance DECIMAL(10,2) NOT NULL)
CREATE TABLE dbo.Journal
(
    Id INT IDENTITY PRIMARY KEY,
    OrderId INT NULL,
    Step VARCHAR(30) NOT NULL,
    Detail NVARCHAR(MAX) NULL
)
CREATE NONCLUSTERED INDEX IX_Journal_Order ON dbo.Journal (OrderId) INCLUDE (Step)
INSERT dbo.Accounts (Customer, Balance) VALUES (N'Ann', 100), (N'Bob', 5)
GO
CREATE MESSAGE TYPE [//Saga/Order/Book] VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE [//Saga/Order/Booked] VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE [//Saga/Order/Rejected] VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE [//Saga/Order/Undo] VALIDATION = EMPTY
GO
CREATE CONTRACT [//Saga/OrderContract]
(
    [//Saga/Order/Book] SENT BY INITIATOR,
    [//Saga/Order/Booked] SENT BY TARGET,
    [//Saga/Order/Rejected] SENT BY TARGET,
    [//Saga/Order/Undo] SENT BY INITIATOR
)
GO
CREATE QUEUE dbo.OrderQueue WITH STATUS = ON, RETENTION = OFF
CREATE QUEUE dbo.PaymentQueue
GO
CREATE SERVICE [//Saga/Orders] ON QUEUE dbo.OrderQueue ([//Saga/OrderContract])
CREATE SERVICE [//Saga/Payment] AUTHORIZATION dbo ON QUEUE dbo.PaymentQueue ([//Saga/OrderContract])
GO
CREATE PROCEDURE dbo.LogStep
    @OrderId INT = NULL,
    @Step VARCHAR(30),
    @Detail NVARCHAR(MAX) = NULL
AS
BEGIN
    SET NOCOUNT ON
    INSERT INTO dbo.Journal (OrderId, Step, Detail) VALUES (@OrderId, @Step, @Detail)
    RETURN 0
END
GO
CREATE PROCEDURE dbo.PlaceOrder
    @Customer NVARCHAR(50),
    @Amount DECIMAL(10, 2),
    @OrderId INT OUTPUT
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @handle UNIQUEIDENTIFIER, @body XML
    BEGIN TRY
        BEGIN TRANSACTION
        INSERT dbo.Orders (Customer, Amount) VALUES (@Customer, @Amount)
        SELECT @OrderId = SCOPE_IDENTITY()
        SET @body = (SELECT @OrderId AS [@id], @Customer AS Customer, @Amount AS Amount FOR XML PATH('Order'), TYPE)
        BEGIN DIALOG CONVERSATION @handle
            FROM SERVICE [//Saga/Orders]
            TO SERVICE N'//Saga/Payment', N'CURRENT DATABASE'
            ON CONTRACT [//Saga/OrderContract]
            WITH ENCRYPTION = OFF, LIFETIME = 3600;
        SEND ON CONVERSATION @handle MESSAGE TYPE [//Saga/Order/Book] (@body)
        UPDATE dbo.Orders SET Conversation = @handle, Status = 'SENT' WHERE OrderId = @OrderId
        EXEC dbo.LogStep @OrderId, 'placed', @Customer
        COMMIT TRANSACTION
    END TRY
    BEGIN CATCH
        IF XACT_STATE() <> 0 ROLLBACK TRANSACTION
        DECLARE @message NVARCHAR(4000) = ERROR_MESSAGE(), @number INT
        SET @number = ERROR_NUMBER()
        EXEC dbo.LogStep NULL, 'failed', @message
        RAISERROR (N'PlaceOrder: %s (%d)', 16, 1, @message, @number)
        RETURN -1
    END CATCH
END
GO
CREATE PROCEDURE dbo.ProcessPayments
AS
BEGIN
    SET NOCOUNT ON
    DECLARE @handle UNIQUEIDENTIFIER, @type SYSNAME, @body XML, @id INT, @customer NVARCHAR(50), @amount DECIMAL(10,2)
    WHILE (1 = 1)
    BEGIN
        BEGIN TRANSACTION
        WAITFOR
        (
            RECEIVE TOP (1)
                @handle = conversation_handle,
                @type = message_type_name,
                @body = CAST(message_body AS XML)
            FROM dbo.PaymentQueue
        ), TIMEOUT 200
        IF (@@ROWCOUNT = 0)
        BEGIN
            ROLLBACK TRANSACTION
            BREAK
        END
        IF @type = N'//Saga/Order/Book'
        BEGIN
            SELECT @id = @body.value('(/Order/@id)[1]', 'INT'),
                   @customer = @body.value('(/Order/Customer)[1]', 'NVARCHAR(50)'),
                   @amount = @body.value('(/Order/Amount/text())[1]', 'DECIMAL(10,2)')
            UPDATE dbo.Accounts SET Balance -= @amount WHERE Customer = @customer AND Balance >= @amount
            IF @@ROWCOUNT = 1
            BEGIN
                DECLARE @answer XML = (SELECT @id AS [@id], Balance FROM dbo.Accounts WHERE Customer = @customer FOR XML PATH('Paid'));
                SEND ON CONVERSATION @handle MESSAGE TYPE [//Saga/Order/Booked] (@answer)
            END
            ELSE
                SEND ON CONVERSATION @handle MESSAGE TYPE [//Saga/Order/Rejected] (N'<Reason>too little</Reason>')
        END
        ELSE IF @type = N'//Saga/Order/Undo'
        BEGIN
            UPDATE a SET a.Balance = a.Balance + o.Amount
            FROM dbo.Accounts a INNER JOIN dbo.Orders o ON o.Customer = a.Customer
            WHERE o.OrderId = @id
            END CONVERSATION @handle
        END
        ELSE IF @type IN (N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog', N'http://schemas.microsoft.com/SQL/ServiceBroker/Error')
            END CONVERSATION @handle
        COMMIT TRANSACTION
    END
END
GO
CREATE PROCEDURE dbo.ProcessAnswers AS
BEGIN
    SET NOCOUNT ON
    DECLARE @h UNIQUEIDENTIFIER
          , @t NVARCHAR(256)
          , @b VARBINARY(MAX)
    DECLARE @messages TABLE (h UNIQUEIDENTIFIER, t NVARCHAR(256), b VARBINARY(MAX), n BIGINT)
    BEGIN TRAN
    RECEIVE conversation_handle, message_type_name, message_body, message_sequence_number FROM dbo.OrderQueue INTO @messages
    DECLARE answers CURSOR LOCAL FAST_FORWARD FOR SELECT h, t, b FROM @messages ORDER BY n
    OPEN answers
    FETCH NEXT FROM answers INTO @h, @t, @b
    WHILE @@FETCH_STATUS = 0
    BEGIN
        IF @t = '//Saga/Order/Booked'
        BEGIN
            UPDATE dbo.Orders SET Status = 'PAID' WHERE Conversation = @h
            END CONVERSATION @h
        END
        ELSE IF @t = '//Saga/Order/Rejected'
        BEGIN
            UPDATE dbo.Orders SET Status = 'REJECTED' WHERE Conversation = @h
            INSERT dbo.Journal (OrderId, Step, Detail)
            SELECT OrderId, 'rejected', CAST(@b AS NVARCHAR(MAX)) FROM dbo.Orders WHERE Conversation = @h
            END CONVERSATION @h
        END
        FETCH NEXT FROM answers INTO @h, @t, @b
    END
    CLOSE answers
    DEALLOCATE answers
    COMMIT TRAN
END
GO
DECLARE @a INT, @b INT, @rc INT
EXEC @rc = dbo.PlaceOrder N'Ann', 30.5, @a OUTPUT
EXEC dbo.PlaceOrder @Customer = N'Bob', @Amount = 10, @OrderId = @b OUT
SELECT @rc AS rc, @a AS a, @b AS b
GO
DECLARE @c INT
EXEC dbo.PlaceOrder N'Ann', -1, @c OUTPUT
GO
EXEC dbo.ProcessPayments
EXEC dbo.ProcessAnswers -- RECEIVE takes one group at a time
EXEC dbo.ProcessAnswers
EXEC dbo.ProcessPayments
GO
SELECT OrderId, Customer, Amount, Status FROM dbo.Orders ORDER BY OrderId
SELECT Customer, Balance FROM dbo.Accounts ORDER BY Customer
SELECT Step, Detail FROM dbo.Journal ORDER BY Id
SELECT state_desc, COUNT(*) AS n FROM sys.conversation_endpoints GROUP BY state_desc ORDER BY 1
SELECT (SELECT COUNT(*) FROM dbo.OrderQueue) AS orders, (SELECT COUNT(*) FROM dbo.PaymentQueue) AS payments, (SELECT COUNT(*) FROM sys.transmission_queue) AS waiting
GO
PRINT 'done at ' + CONVERT(VARCHAR(4), DATEPART(year, GETDATE()))
SELECT name, type_desc FROM sys.objects WHERE type IN ('U', 'P', 'SQ') AND is_ms_shipped = 0 ORDER BY type, name
