"""Whole scripts in the manner of those that people have: databases, objects, tables, procedures, XML, problems."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.results import Results

PARCELS = """
USE master;
GO
IF EXISTS (SELECT * FROM sys.databases WHERE name = 'parcelshop')
    DROP DATABASE ParcelShop;
GO
CREATE DATABASE ParcelShop;
GO
ALTER DATABASE ParcelShop SET ENABLE_BROKER;
GO
USE ParcelShop;
GO
CREATE MESSAGE TYPE [//parcel/Request] VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//parcel/Answer] VALIDATION = WELL_FORMED_XML;
CREATE CONTRACT [//parcel/Contract] ([//parcel/Request] SENT BY INITIATOR, [//parcel/Answer] SENT BY TARGET);
CREATE QUEUE dbo.DepotQueue WITH STATUS = ON;
CREATE QUEUE dbo.ClientQueue;
CREATE SERVICE [//parcel/Depot] ON QUEUE dbo.DepotQueue ([//parcel/Contract]);
CREATE SERVICE [//parcel/Client] ON QUEUE dbo.ClientQueue;
GO
CREATE TABLE dbo.Parcels (
    ParcelId INT IDENTITY(1,1) NOT NULL CONSTRAINT PK_Parcels PRIMARY KEY CLUSTERED,
    Receiver NVARCHAR(100) NOT NULL,
    Weight DECIMAL(10, 2) NULL,
    Body XML NULL,
    Arrived DATETIME NOT NULL CONSTRAINT DF_Arrived DEFAULT (GETDATE()),
    ConversationHandle UNIQUEIDENTIFIER NOT NULL
) ON [PRIMARY];
CREATE TABLE dbo.Problems (Id INT IDENTITY PRIMARY KEY, Number INT, Message NVARCHAR(4000));
GO
CREATE PROCEDURE dbo.HandleParcels
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @handle UNIQUEIDENTIFIER, @type SYSNAME, @body XML;
    WHILE (1 = 1)
    BEGIN
        BEGIN TRY
            BEGIN TRANSACTION;
            WAITFOR (
                RECEIVE TOP (1) @handle = conversation_handle, @type = message_type_name,
                                @body = CAST(message_body AS XML)
                FROM dbo.DepotQueue
            ), TIMEOUT 10;
            IF (@@ROWCOUNT = 0)
            BEGIN
                ROLLBACK TRANSACTION;
                BREAK;
            END
            IF @type = N'//parcel/Request'
            BEGIN
                INSERT INTO dbo.Parcels (Receiver, Weight, Body, ConversationHandle)
                SELECT p.value('(receiver/text())[1]', 'nvarchar(100)'), p.value('@weight', 'decimal(10,2)'),
                       @body, @handle
                FROM @body.nodes('/parcels/parcel') AS T(p);
                DECLARE @answer XML = (SELECT ParcelId AS [@id], Receiver AS [receiver] FROM dbo.Parcels
                                        WHERE ConversationHandle = @handle ORDER BY ParcelId
                                          FOR XML PATH('stored'), ROOT('answer'), TYPE);
                SEND ON CONVERSATION @handle MESSAGE TYPE [//parcel/Answer] (@answer);
                END CONVERSATION @handle;
            END
            ELSE IF @type = N'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog'
                END CONVERSATION @handle;
            ELSE IF @type = N'http://schemas.microsoft.com/SQL/ServiceBroker/Error'
            BEGIN
                WITH XMLNAMESPACES (DEFAULT N'http://schemas.microsoft.com/SQL/ServiceBroker/Error')
                INSERT INTO dbo.Problems (Number, Message)
                SELECT @body.value('(/Error/Code)[1]', 'int'), @body.value('(/Error/Description)[1]', 'nvarchar(4000)');
                END CONVERSATION @handle;
            END
            COMMIT TRANSACTION;
        END TRY
        BEGIN CATCH
            IF XACT_STATE() <> 0 ROLLBACK TRANSACTION;
            INSERT INTO dbo.Problems (Number, Message) VALUES (ERROR_NUMBER(), ERROR_MESSAGE());
            BREAK;
        END CATCH
    END
END
GO
"""
SEND_PARCELS = """
DECLARE @h UNIQUEIDENTIFIER, @doc NVARCHAR(MAX) = N'<parcels>{}</parcels>';
BEGIN DIALOG CONVERSATION @h FROM SERVICE [//parcel/Client] TO SERVICE N'//parcel/Depot'
    ON CONTRACT [//parcel/Contract] WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE [//parcel/Request] (@doc);
{}
"""
TWO_PARCELS = (
    '<parcel weight="2.50"><receiver>Ann</receiver></parcel>'
    '<parcel weight="7"><receiver>Bob &amp; Co</receiver></parcel>'
)


@pytest.fixture
def parcels(instance: sb.Instance) -> sb.Database:
    instance.database("Master", create=True).execute_tsql(PARCELS)
    return instance.database("ParcelShop")


def run(database: sb.Database, script: str) -> Results:
    return database.execute_tsql(script)


def test_a_request_is_taken_apart_stored_and_answered(parcels: sb.Database) -> None:
    run(parcels, SEND_PARCELS.format(TWO_PARCELS, ""))
    (listed,) = run(parcels, "SELECT message_type_name, CAST(message_body AS XML) AS body FROM DepotQueue").rows
    assert listed == ("//parcel/Request", f"<parcels>{TWO_PARCELS}</parcels>")
    run(parcels, "EXEC HandleParcels")
    stored = run(parcels, "SELECT ParcelId, Receiver, CAST(Weight AS varchar(9)) FROM Parcels ORDER BY Weight DESC")
    assert stored.rows == [(2, "Bob & Co", "7.00"), (1, "Ann", "2.50")]
    answer = run(
        parcels,
        "DECLARE @t SYSNAME, @b XML; "
        "RECEIVE TOP (1) @t = message_type_name, @b = message_body FROM ClientQueue; "
        "SELECT @t, @b.value('(/answer/stored/receiver)[2]', 'nvarchar(50)'), @b.value('count(/answer/stored)', 'int')",
    )
    assert answer.rows == [("//parcel/Answer", "Bob & Co", 2)]
    assert run(parcels, "SELECT COUNT(*) FROM sys.transmission_queue").rows == [(0,)]


def test_an_error_message_is_written_down(parcels: sb.Database) -> None:
    run(parcels, SEND_PARCELS.format(TWO_PARCELS, "END CONVERSATION @h WITH ERROR = 127 DESCRIPTION = N'No stamp.'"))
    run(parcels, "EXEC HandleParcels")
    assert run(parcels, "SELECT Number, Message FROM Problems").rows == [(127, "No stamp.")]


def test_a_problem_of_the_procedure_gives_the_message_back(parcels: sb.Database) -> None:
    run(parcels, SEND_PARCELS.format("<parcel/>", ""))
    run(parcels, "EXEC dbo.HandleParcels")
    assert run(parcels, "SELECT Number FROM Problems").rows == [(515,)]  # no receiver
    assert run(parcels, "SELECT COUNT(*) FROM dbo.DepotQueue WITH (NOLOCK)").rows == [(1,)]


def test_objects_are_found_and_dropped(parcels: sb.Database) -> None:
    script = """
    IF OBJECT_ID('dbo.Parcels', 'U') IS NOT NULL DROP TABLE dbo.Parcels;
    IF EXISTS (SELECT 1 FROM sys.services WHERE name = N'//parcel/Client') DROP SERVICE [//parcel/Client];
    IF EXISTS (SELECT 1 FROM sys.service_queues WHERE name = N'clientqueue') DROP QUEUE ClientQueue;
    IF EXISTS (SELECT 1 FROM sys.objects
                WHERE object_id = OBJECT_ID(N'[dbo].[HandleParcels]') AND type in (N'P', N'PC'))
        DROP PROCEDURE [dbo].[HandleParcels]
    GO
    SELECT name FROM sys.objects WHERE is_ms_shipped = 0 ORDER BY name;
    SELECT s.name, q.name FROM sys.services AS s INNER JOIN sys.service_queues AS q ON s.service_queue_id = q.object_id
     WHERE s.service_id > 65535;
    """
    objects, services = run(parcels, script).sets
    depot, key, problems = (name for (name,) in objects.rows)
    assert (depot, str(key)[:14], problems) == ("DepotQueue", "PK__Problems__", "Problems")
    assert services.rows == [("//parcel/Depot", "DepotQueue")]


def test_orders_with_lines_through_a_procedure_with_an_output(parcels: sb.Database) -> None:
    script = """
    CREATE TABLE dbo.Orders (OrderID int IDENTITY(1,1) PRIMARY KEY, Customer nvarchar(50) NOT NULL,
                             Total money DEFAULT 0)
    CREATE TABLE dbo.Lines (LineID int IDENTITY PRIMARY KEY, Qty int CHECK (Qty > 0), Price money,
                            OrderID int NOT NULL FOREIGN KEY REFERENCES dbo.Orders(OrderID) ON DELETE CASCADE)
    GO
    CREATE PROCEDURE AddOrder @Customer nvarchar(50), @Lines xml, @OrderID int OUTPUT AS
    SET NOCOUNT ON
    INSERT INTO Orders (Customer) VALUES (@Customer)
    SET @OrderID = SCOPE_IDENTITY()
    INSERT INTO Lines (OrderID, Qty, Price)
    SELECT @OrderID, l.value('@qty', 'int'), l.value('@price', 'money') FROM @Lines.nodes('/l') x(l)
    UPDATE o SET Total = s.t
      FROM Orders o JOIN (SELECT OrderID, SUM(Qty * Price) AS t FROM Lines GROUP BY OrderID) s ON s.OrderID = o.OrderID
     WHERE o.OrderID = @OrderID
    GO
    DECLARE @id int
    EXEC AddOrder N'Ann', '<l qty="2" price="1.50"/><l qty="1" price="4"/>', @id OUTPUT
    EXEC AddOrder @Customer = 'Bob', @Lines = N'<l qty="5" price="2"/>', @OrderID = @id OUTPUT
    SELECT @id AS id, CAST(SUM(Total) AS int) AS total FROM Orders
    DECLARE @json nvarchar(max) = (SELECT OrderID, Customer FROM Orders FOR JSON PATH)
    SELECT JSON_VALUE(@json, '$[1].Customer') AS c
    DELETE FROM Orders WHERE Customer = 'Bob'
    SELECT COUNT(*) AS n FROM Lines
    BEGIN TRY
        INSERT INTO Lines (OrderID, Qty) VALUES (1, 0)
    END TRY
    BEGIN CATCH
        SELECT ERROR_NUMBER()
    END CATCH
    """
    assert [result_set.rows for result_set in run(parcels, script).sets] == [[(2, 17)], [("Bob",)], [(2,)], [(547,)]]


def test_a_table_variable_is_walked_through(parcels: sb.Database) -> None:
    script = """
    DECLARE @queues TABLE (Id int identity, Name sysname)
    INSERT INTO @queues (Name) SELECT name FROM sys.service_queues WHERE is_ms_shipped = 0 ORDER BY name
    DECLARE @i int = 1, @max int, @name sysname
    SELECT @max = MAX(Id) FROM @queues
    WHILE @i <= @max
    BEGIN
        SELECT @name = Name FROM @queues WHERE Id = @i
        PRINT LTRIM(STR(@i)) + N': ' + @name
        SET @i += 1
    END
    """
    assert [message.text for message in run(parcels, script).messages] == ["1: ClientQueue", "2: DepotQueue"]


def test_conversations_are_cleaned_up_in_a_loop(parcels: sb.Database) -> None:
    run(parcels, SEND_PARCELS.format(TWO_PARCELS, ""))
    script = """
    DECLARE @handle uniqueidentifier
    WHILE EXISTS (SELECT * FROM sys.conversation_endpoints)
    BEGIN
        SELECT TOP (1) @handle = conversation_handle FROM sys.conversation_endpoints
        END CONVERSATION @handle WITH CLEANUP
    END
    SELECT COUNT(*) FROM sys.conversation_endpoints
    """
    assert run(parcels, script).rows == [(0,)]


def test_the_first_conversation_of_a_key_is_kept_in_a_table(parcels: sb.Database) -> None:
    script = """
    CREATE TABLE Kept (Sender SYSNAME, Receiver SYSNAME, Handle UNIQUEIDENTIFIER NOT NULL,
                       PRIMARY KEY (Sender, Receiver))
    GO
    CREATE PROCEDURE SendKept @from SYSNAME, @to SYSNAME, @doc XML AS
    BEGIN
        SET NOCOUNT ON
        DECLARE @h UNIQUEIDENTIFIER
        BEGIN TRANSACTION
        SELECT @h = Handle FROM Kept WITH (UPDLOCK, HOLDLOCK) WHERE Sender = @from AND Receiver = @to
        IF @h IS NULL
        BEGIN
            BEGIN DIALOG CONVERSATION @h FROM SERVICE @from TO SERVICE @to ON CONTRACT [//parcel/Contract]
                WITH ENCRYPTION = OFF;
            INSERT INTO Kept (Sender, Receiver, Handle) VALUES (@from, @to, @h);
        END;
        SEND ON CONVERSATION @h MESSAGE TYPE [//parcel/Request] (@doc);
        COMMIT
    END
    GO
    EXEC SendKept N'//parcel/Client', N'//parcel/Depot', '<parcels/>'
    EXEC SendKept N'//parcel/Client', N'//parcel/Depot', '<parcels/>'
    SELECT COUNT(*), COUNT(DISTINCT conversation_handle) FROM DepotQueue
    """
    assert run(parcels, script).rows == [(2, 1)]
