-- What goes wrong, and what a script hears of it: constraints, conversions, transactions, RAISERROR and THROW,
-- triggers, text, and the verbs of the broker. Each patient is noted in one table with number, severity and place.
SET NOCOUNT ON
SET ANSI_WARNINGS ON
GO
IF EXISTS (SELECT * FROM sys.databases WHERE [name] = 'Clinic')
BEGIN
    ALTER DATABASE Clinic SET SINGLE_USER WITH ROLLBACK IMMEDIATE
    DROP DATABASE Clinic
END
CREATE DATABASE Clinic
GO
USE Clinic
GO
CREATE TABLE dbo.Ward
(
    WardId INT NOT NULL CONSTRAINT PK_Ward PRIMARY KEY,
    Beds   TINYINT NOT NULL CONSTRAINT CK_Ward_Beds CHECK (Beds BETWEEN 1 AND 40),
    Title  NVARCHAR(12) NULL CONSTRAINT UQ_Ward_Title UNIQUE
)
CREATE TABLE dbo.Patient
(
    PatientId INT IDENTITY(100, 1) PRIMARY KEY,
    WardId    INT NOT NULL CONSTRAINT FK_Patient_Ward REFERENCES dbo.Ward (WardId),
    Born      DATE NULL,
    Note      VARCHAR(10) NULL
)
CREATE TABLE dbo.Seen
(
    Id        INT IDENTITY PRIMARY KEY,
    Patient   VARCHAR(30) NOT NULL,
    Number    INT NULL,
    Severity  INT NULL,
    State     INT NULL,
    Line      INT NULL,
    Place     NVARCHAR(128) NULL,
    Said      NVARCHAR(2048) NULL,
    Xact      SMALLINT NULL
)
GO
CREATE PROCEDURE dbo.Note @patient VARCHAR(30)
AS
    INSERT dbo.Seen (Patient, Number, Severity, State, Line, Place, Said, Xact)
    VALUES (@patient, ERROR_NUMBER(), ERROR_SEVERITY(), ERROR_STATE(), ERROR_LINE(), ERROR_PROCEDURE(), ERROR_MESSAGE(), XACT_STATE())
GO
CREATE TRIGGER dbo.Ward_NotSmaller ON dbo.Ward FOR UPDATE
AS
IF EXISTS (SELECT 1 FROM inserted i JOIN deleted d ON d.WardId = i.WardId WHERE i.Beds < d.Beds)
BEGIN
    RAISERROR ('Ward %d does not shrink.', 15, 7, 1)
    ROLLBACK TRANSACTION
END
GO
CREATE PROCEDURE dbo.Divide @by INT, @result DECIMAL(9, 2) = NULL OUTPUT
AS
BEGIN
    SET @result = 100.0 / @by
    RETURN 0
END
GO
CREATE FUNCTION dbo.Age (@born DATE) RETURNS INT
AS
BEGIN
    RETURN DATEDIFF(YEAR, @born, '20240229')
END
GO
INSERT dbo.Ward VALUES (1, 10, N'North'), (2, 4, N'South')
INSERT dbo.Patient (WardId, Born) VALUES (1, '19700101')
GO
-- constraints: the statement is undone, the batch goes on
BEGIN TRY INSERT dbo.Ward VALUES (1, 5, N'Again') END TRY BEGIN CATCH EXEC dbo.Note 'key' END CATCH
BEGIN TRY INSERT dbo.Ward VALUES (3, 5, N'North') END TRY BEGIN CATCH EXEC dbo.Note 'unique' END CATCH
BEGIN TRY INSERT dbo.Ward VALUES (3, 0, N'None') END TRY BEGIN CATCH EXEC dbo.Note 'check' END CATCH
BEGIN TRY INSERT dbo.Patient (WardId) VALUES (9) END TRY BEGIN CATCH EXEC dbo.Note 'reference' END CATCH
BEGIN TRY DELETE dbo.Ward WHERE WardId = 1 END TRY BEGIN CATCH EXEC dbo.Note 'referenced' END CATCH
BEGIN TRY INSERT dbo.Patient (WardId) VALUES (NULL) END TRY BEGIN CATCH EXEC dbo.Note 'null' END CATCH
BEGIN TRY INSERT dbo.Patient (WardId, Note) VALUES (1, 'longer than ten') END TRY BEGIN CATCH EXEC dbo.Note 'long' END CATCH
BEGIN TRY UPDATE dbo.Ward SET Beds = 3 WHERE WardId = 2 END TRY BEGIN CATCH EXEC dbo.Note 'trigger' END CATCH
BEGIN TRY TRUNCATE TABLE dbo.Ward END TRY BEGIN CATCH EXEC dbo.Note 'truncate' END CATCH
GO
-- conversions and arithmetic
DECLARE @n INT, @t TINYINT, @d DATETIME, @s VARCHAR(20), @m DECIMAL(4, 2)
BEGIN TRY SET @n = CAST('ten' AS INT) END TRY BEGIN CATCH EXEC dbo.Note 'text to int' END CATCH
BEGIN TRY SET @t = 256 END TRY BEGIN CATCH EXEC dbo.Note 'tinyint' END CATCH
BEGIN TRY SET @n = 2147483647; SET @n = @n + 1 END TRY BEGIN CATCH EXEC dbo.Note 'overflow' END CATCH
BEGIN TRY SET @d = '20240231' END TRY BEGIN CATCH EXEC dbo.Note 'date' END CATCH
BEGIN TRY SELECT @n = 1 / 0 END TRY BEGIN CATCH EXEC dbo.Note 'zero' END CATCH
BEGIN TRY SET @m = 123.45 END TRY BEGIN CATCH EXEC dbo.Note 'decimal' END CATCH
BEGIN TRY SELECT @s = (SELECT Title FROM dbo.Ward) END TRY BEGIN CATCH EXEC dbo.Note 'two rows' END CATCH
BEGIN TRY DECLARE @g UNIQUEIDENTIFIER; SET @g = 'no guid' END TRY BEGIN CATCH EXEC dbo.Note 'guid' END CATCH
BEGIN TRY DECLARE @x XML; SET @x = N'<a><b></a>' END TRY BEGIN CATCH EXEC dbo.Note 'xml' END CATCH
BEGIN TRY EXEC dbo.Divide 0 END TRY BEGIN CATCH EXEC dbo.Note 'in a procedure' END CATCH
BEGIN TRY SELECT @n = dbo.Age(Born) / 0 FROM dbo.Patient END TRY BEGIN CATCH EXEC dbo.Note 'beside a function' END CATCH
SELECT TRY_CAST('ten' AS INT) AS a, TRY_CONVERT(TINYINT, '256') AS b, TRY_PARSE('20240231' AS DATE USING 'en-US') AS c
GO
-- what is not there: the text ends, who has called it goes on
BEGIN TRY EXEC ('SELECT * FROM dbo.Nobody') END TRY BEGIN CATCH EXEC dbo.Note 'no table' END CATCH
BEGIN TRY EXEC ('SELECT Colour FROM dbo.Ward') END TRY BEGIN CATCH EXEC dbo.Note 'no column' END CATCH
BEGIN TRY EXEC ('EXEC dbo.Nothing') END TRY BEGIN CATCH EXEC dbo.Note 'no procedure' END CATCH
BEGIN TRY EXEC ('SELECT @' + 'who') END TRY BEGIN CATCH EXEC dbo.Note 'no variable' END CATCH
BEGIN TRY EXEC ('SELEC ' + '1 FROM dbo.Ward') END TRY BEGIN CATCH EXEC dbo.Note 'no statement' END CATCH
BEGIN TRY EXEC ('SELECT ' + '''open') END TRY BEGIN CATCH EXEC dbo.Note 'no end' END CATCH
BEGIN TRY EXEC dbo.Divide END TRY BEGIN CATCH EXEC dbo.Note 'no argument' END CATCH
BEGIN TRY EXEC dbo.Divide 1, 2, 3 END TRY BEGIN CATCH EXEC dbo.Note 'three arguments' END CATCH
BEGIN TRY EXEC dbo.Divide @with = 1 END TRY BEGIN CATCH EXEC dbo.Note 'other argument' END CATCH
GO
-- definitions
BEGIN TRY CREATE TABLE dbo.Ward (Id INT) END TRY BEGIN CATCH EXEC dbo.Note 'table again' END CATCH
BEGIN TRY ALTER TABLE dbo.Ward ADD Beds INT END TRY BEGIN CATCH EXEC dbo.Note 'column again' END CATCH
BEGIN TRY DROP TABLE dbo.Nobody END TRY BEGIN CATCH EXEC dbo.Note 'drop nothing' END CATCH
BEGIN TRY ALTER TABLE dbo.Patient DROP CONSTRAINT FK_Nothing END TRY BEGIN CATCH EXEC dbo.Note 'drop no constraint' END CATCH
GO
-- RAISERROR, THROW and what goes through several blocks
BEGIN TRY
    BEGIN TRY
        RAISERROR (N'%s has %d of %i, %x in hex, %%', 14, 3, N'Ward', 2, 4, 255)
    END TRY
    BEGIN CATCH
        EXEC dbo.Note 'inner';
        THROW
    END CATCH
END TRY
BEGIN CATCH
    EXEC dbo.Note 'outer'
END CATCH
BEGIN TRY
    DECLARE @text NVARCHAR(100) = FORMATMESSAGE('bed %d', 7);
    THROW 51234, @text, 9;
END TRY
BEGIN CATCH
    EXEC dbo.Note 'thrown'
END CATCH
RAISERROR ('only said', 10, 1) WITH NOWAIT
RAISERROR ('said and gone on', 16, 2)
PRINT 'after it: ' + CONVERT(VARCHAR(12), @@ERROR)
GO
-- transactions: named ones, savepoints, and what XACT_ABORT makes of an error
BEGIN TRANSACTION Outermost
INSERT dbo.Ward VALUES (5, 5, N'Five')
SAVE TRANSACTION Half
INSERT dbo.Ward VALUES (6, 6, N'Six')
ROLLBACK TRANSACTION Half
BEGIN TRANSACTION
INSERT dbo.Ward VALUES (7, 7, N'Seven')
COMMIT TRANSACTION
SELECT @@TRANCOUNT AS depth, (SELECT COUNT(*) FROM dbo.Ward WHERE WardId >= 5) AS wards
BEGIN TRY ROLLBACK TRANSACTION Nowhere END TRY BEGIN CATCH EXEC dbo.Note 'no savepoint' END CATCH
IF @@TRANCOUNT > 0 COMMIT TRANSACTION Outermost
GO
SET XACT_ABORT ON
BEGIN TRY
    BEGIN TRANSACTION
    INSERT dbo.Ward VALUES (8, 8, N'Eight')
    INSERT dbo.Ward VALUES (8, 8, N'Eight again')
    COMMIT
END TRY
BEGIN CATCH
    SELECT XACT_STATE() AS xact, @@TRANCOUNT AS depth, ERROR_NUMBER() AS number
    BEGIN TRY INSERT dbo.Ward VALUES (9, 9, N'Nine') END TRY BEGIN CATCH SELECT ERROR_NUMBER() AS number END CATCH
    ROLLBACK
    EXEC dbo.Note 'after the rollback'
END CATCH
SET XACT_ABORT OFF
GO
BEGIN TRY COMMIT TRANSACTION END TRY BEGIN CATCH EXEC dbo.Note 'nothing to commit' END CATCH
GO
-- the broker
CREATE MESSAGE TYPE Pill VALIDATION = WELL_FORMED_XML
CREATE MESSAGE TYPE Bill VALIDATION = EMPTY
CREATE CONTRACT Care (Pill SENT BY INITIATOR, Bill SENT BY TARGET)
CREATE QUEUE BedQueue
CREATE QUEUE DoctorQueue
CREATE SERVICE Bed ON QUEUE BedQueue
CREATE SERVICE Doctor ON QUEUE DoctorQueue (Care)
GO
DECLARE @h UNIQUEIDENTIFIER, @none UNIQUEIDENTIFIER = '00000000-0000-0000-0000-000000000001', @other UNIQUEIDENTIFIER
BEGIN TRY BEGIN DIALOG @other FROM SERVICE Nurse TO SERVICE 'Doctor' ON CONTRACT Care END TRY BEGIN CATCH EXEC dbo.Note 'no service' END CATCH
BEGIN TRY BEGIN DIALOG @other FROM SERVICE Bed TO SERVICE 'Doctor' ON CONTRACT Cure END TRY BEGIN CATCH EXEC dbo.Note 'no contract' END CATCH
BEGIN DIALOG @h FROM SERVICE Bed TO SERVICE 'Doctor' ON CONTRACT Care WITH ENCRYPTION = OFF
BEGIN TRY SEND ON CONVERSATION @h MESSAGE TYPE Bill END TRY BEGIN CATCH EXEC dbo.Note 'other side' END CATCH
BEGIN TRY SEND ON CONVERSATION @h MESSAGE TYPE Potion (N'x') END TRY BEGIN CATCH EXEC dbo.Note 'no type' END CATCH
BEGIN TRY SEND ON CONVERSATION @none MESSAGE TYPE Pill (N'<a/>') END TRY BEGIN CATCH EXEC dbo.Note 'no conversation' END CATCH
BEGIN TRY BEGIN CONVERSATION TIMER (@h) TIMEOUT = -1 END TRY BEGIN CATCH EXEC dbo.Note 'timer' END CATCH
BEGIN TRY END CONVERSATION @h WITH ERROR = 0 DESCRIPTION = N'' END TRY BEGIN CATCH EXEC dbo.Note 'error code' END CATCH
BEGIN TRY EXEC ('RECEIVE * FROM dbo.Nowhere') END TRY BEGIN CATCH EXEC dbo.Note 'no queue' END CATCH
BEGIN TRY DROP QUEUE DoctorQueue END TRY BEGIN CATCH EXEC dbo.Note 'queue in use' END CATCH
BEGIN TRY INSERT dbo.DoctorQueue (status) VALUES (1) END TRY BEGIN CATCH EXEC dbo.Note 'not by insert' END CATCH;
SEND ON CONVERSATION @h MESSAGE TYPE Pill (N'<pill>')
END CONVERSATION @h WITH ERROR = 77 DESCRIPTION = N'too bitter'
BEGIN TRY SEND ON CONVERSATION @h MESSAGE TYPE Pill (N'<pill/>') END TRY BEGIN CATCH EXEC dbo.Note 'ended' END CATCH
ALTER QUEUE DoctorQueue WITH STATUS = OFF
BEGIN TRY RECEIVE TOP (1) * FROM DoctorQueue END TRY BEGIN CATCH EXEC dbo.Note 'queue is off' END CATCH
GO
SELECT Patient, Number, Severity, State, Place FROM dbo.Seen ORDER BY Id
SELECT Patient, REPLACE(Said, CHAR(10), ' ') FROM dbo.Seen WHERE Patient IN ('check', 'inner', 'thrown', 'zero', 'in a procedure') ORDER BY Id
SELECT WardId, Beds, Title FROM dbo.Ward ORDER BY WardId
GO
ALTER QUEUE DoctorQueue WITH STATUS = ON
SELECT message_type_name, CAST(message_body AS XML).value('declare namespace e="http://schemas.microsoft.com/SQL/ServiceBroker/Error"; (//e:Code)[1]', 'int') AS code FROM DoctorQueue
SELECT message_type_name, state FROM BedQueue q JOIN sys.conversation_endpoints e ON e.conversation_handle = q.conversation_handle
GO
USE master
GO
DROP DATABASE Clinic
