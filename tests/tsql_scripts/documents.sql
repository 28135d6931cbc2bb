-- Documents as messages: XML is shredded, JSON is answered, settings are sql_variants, reports are windows over what came;
-- with cursors, dynamic SQL, table types, and the state of the session.
CREATE DATABASE Papers
GO
USE Papers
GO
SET NOCOUNT ON
CREATE XML SCHEMA COLLECTION dbo.InvoiceSchema AS N'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" elementFormDefault="qualified"
    targetNamespace="urn:papers"><xs:element name="invoice"><xs:complexType><xs:sequence><xs:element name="line" maxOccurs="unbounded">
    <xs:complexType><xs:attribute name="sku" type="xs:string"/><xs:attribute name="n" type="xs:int"/></xs:complexType></xs:element></xs:sequence>
    <xs:attribute name="id" type="xs:int"/></xs:complexType></xs:element></xs:schema>'
GO
CREATE MESSAGE TYPE [urn:papers/Invoice] VALIDATION = VALID_XML WITH SCHEMA COLLECTION dbo.InvoiceSchema
CREATE MESSAGE TYPE [urn:papers/Answer] VALIDATION = NONE
CREATE MESSAGE TYPE [urn:papers/Ping] VALIDATION = EMPTY
CREATE CONTRACT [urn:papers/Trade] ([urn:papers/Invoice] SENT BY INITIATOR, [urn:papers/Ping] SENT BY ANY, [urn:papers/Answer] SENT BY TARGET)
CREATE QUEUE dbo.Office WITH RETENTION = ON
CREATE QUEUE dbo.Customers
CREATE SERVICE Office ON QUEUE dbo.Office ([urn:papers/Trade])
CREATE SERVICE Customer ON QUEUE dbo.Customers
GO
CREATE TYPE dbo.Money2 FROM decimal(12, 2) NOT NULL
CREATE TYPE dbo.LineList AS TABLE (Place int IDENTITY(1, 1), Sku varchar(10) NOT NULL, Pieces int NOT NULL DEFAULT 1, PRIMARY KEY (Place))
GO
CREATE TABLE dbo.Prices (Sku varchar(10) PRIMARY KEY, Price Money2, ValidFrom date NOT NULL DEFAULT '20200101')
CREATE TABLE dbo.Lines (Invoice int, Place int, Sku varchar(10), Pieces int, Amount Money2, PRIMARY KEY (Invoice, Place))
CREATE TABLE dbo.Settings ([Key] nvarchar(50) PRIMARY KEY, [Value] sql_variant)
CREATE TABLE dbo.Trace (Id bigint IDENTITY PRIMARY KEY, What varchar(30), Detail nvarchar(max), At datetime2 DEFAULT SYSDATETIME())
INSERT dbo.Prices (Sku, Price) SELECT v.s, v.p FROM (VALUES ('pen', 1.25), ('ink', 4), ('paper', 0.05)) v(s, p)
INSERT dbo.Settings VALUES (N'currency', 'EUR'), (N'discount', 0.1), (N'limit', 3), (N'from', CAST('2020-01-01' AS date)), (N'off', NULL)
GO
CREATE FUNCTION dbo.Setting (@key nvarchar(50)) RETURNS sql_variant AS
BEGIN
    RETURN (SELECT [Value] FROM dbo.Settings WHERE [Key] = @key)
END
GO
CREATE FUNCTION dbo.Priced (@lines xml) RETURNS @found TABLE (Place int, Sku varchar(10), Pieces int, Amount decimal(12, 2)) AS
BEGIN
    INSERT @found (Place, Sku, Pieces)
    SELECT ROW_NUMBER() OVER (ORDER BY (SELECT NULL)), l.value('@sku', 'varchar(10)'), l.value('@n', 'int') FROM @lines.nodes('/l') AS t(l)
    UPDATE f SET Amount = f.Pieces * p.Price FROM @found f JOIN dbo.Prices p ON p.Sku = f.Sku
    RETURN
END
GO
CREATE TRIGGER dbo.Traced ON dbo.Lines AFTER INSERT, DELETE AS
BEGIN
    IF NOT EXISTS (SELECT * FROM inserted) AND NOT EXISTS (SELECT * FROM deleted) RETURN
    INSERT dbo.Trace (What, Detail)
    SELECT CASE WHEN i.Invoice IS NULL THEN 'gone' ELSE 'kept' END,
           (SELECT COALESCE(i.Invoice, d.Invoice) AS invoice, COALESCE(i.Sku, d.Sku) AS sku FOR JSON PATH, WITHOUT_ARRAY_WRAPPER)
    FROM inserted i FULL OUTER JOIN deleted d ON d.Invoice = i.Invoice AND d.Place = i.Place
END
GO
CREATE PROCEDURE dbo.Keep @invoice int, @lines dbo.LineList READONLY, @total decimal(12, 2) = NULL OUTPUT AS
BEGIN
    IF (SELECT COUNT(*) FROM @lines) > CAST(dbo.Setting(N'limit') AS int)
        THROW 50001, N'too many lines', 1;
    INSERT dbo.Lines (Invoice, Place, Sku, Pieces, Amount)
    OUTPUT inserted.Sku AS kept
    SELECT @invoice, l.Place, l.Sku, l.Pieces, l.Pieces * p.Price FROM @lines AS l INNER JOIN dbo.Prices AS p ON p.Sku = l.Sku ORDER BY l.Place
    SELECT @total = SUM(Amount) FROM dbo.Lines WHERE Invoice = @invoice
    RETURN @@ROWCOUNT
END
GO
CREATE PROCEDURE dbo.Work AS
BEGIN
    DECLARE @group uniqueidentifier, @got int
    DECLARE @messages TABLE (Handle uniqueidentifier, Number bigint, Type sysname, Body varbinary(max))
    DECLARE @handle uniqueidentifier, @type sysname, @body varbinary(max)
    WHILE 1 = 1
    BEGIN
        BEGIN TRAN
        WAITFOR (GET CONVERSATION GROUP @group FROM dbo.Office), TIMEOUT 50
        IF @group IS NULL BEGIN ROLLBACK BREAK END
        WAITFOR (RECEIVE conversation_handle, message_sequence_number, message_type_name, message_body
                 FROM dbo.Office INTO @messages WHERE conversation_group_id = @group), TIMEOUT 0
        DECLARE each_message CURSOR LOCAL FAST_FORWARD FOR SELECT Handle, Type, Body FROM @messages ORDER BY Number
        OPEN each_message
        FETCH NEXT FROM each_message INTO @handle, @type, @body
        WHILE @@FETCH_STATUS = 0
        BEGIN
            IF @type = N'urn:papers/Invoice'
            BEGIN
                SAVE TRANSACTION before_invoice
                BEGIN TRY
                    DECLARE @xml xml = CAST(@body AS xml), @invoice int, @lines dbo.LineList, @total decimal(12, 2), @kept int
                    DELETE @lines
                    ;WITH XMLNAMESPACES ('urn:papers' AS p)
                    SELECT @invoice = @xml.value('(/p:invoice/@id)[1]', 'int')
                    ;WITH XMLNAMESPACES (DEFAULT 'urn:papers')
                    INSERT @lines (Sku, Pieces) SELECT t.l.value('@sku', 'varchar(10)'), ISNULL(t.l.value('@n', 'int'), 1) FROM @xml.nodes('/invoice/line') t(l)
                    EXEC dbo.Keep @invoice = @invoice, @lines = @lines, @total = @total OUTPUT
                    DECLARE @answer nvarchar(max) = JSON_MODIFY(JSON_OBJECT('invoice':@invoice, 'total':@total, 'currency':CAST(dbo.Setting(N'currency') AS varchar(3))),
                        '$.skus', JSON_QUERY((SELECT Sku AS sku, Pieces AS n FROM dbo.Lines WHERE Invoice = @invoice ORDER BY Place FOR JSON PATH)));
                    SEND ON CONVERSATION @handle MESSAGE TYPE [urn:papers/Answer] (@answer)
                END TRY
                BEGIN CATCH
                    IF XACT_STATE() = 1 ROLLBACK TRANSACTION before_invoice
                    DECLARE @why nvarchar(300) = CONCAT(ERROR_MESSAGE(), N' (', ERROR_NUMBER(), N')')
                    END CONVERSATION @handle WITH ERROR = 50001 DESCRIPTION = @why
                END CATCH
            END
            ELSE IF @type = N'urn:papers/Ping'
                SEND ON CONVERSATION @handle MESSAGE TYPE [urn:papers/Ping]
            ELSE IF @type LIKE N'http://schemas.microsoft.com/SQL/ServiceBroker/%'
                END CONVERSATION @handle
            FETCH NEXT FROM each_message INTO @handle, @type, @body
        END
        CLOSE each_message DEALLOCATE each_message
        DELETE FROM @messages
        SET @group = NULL
        COMMIT TRAN
    END
END
GO
-- ------------------------------------------------------------------------------------------------ customers send
DECLARE @h uniqueidentifier, @n int = 0, @doc nvarchar(max), @first uniqueidentifier
DECLARE @docs TABLE (Id int, Doc nvarchar(max))
INSERT @docs VALUES
    (1, N'<invoice xmlns="urn:papers" id="1"><line sku="pen" n="4"/><line sku="ink" n="1"/></invoice>'),
    (2, N'<invoice xmlns="urn:papers" id="2"><line sku="paper" n="500"/></invoice>'),
    (3, N'<invoice xmlns="urn:papers" id="3"><line sku="pen" n="1"/><line sku="pen" n="1"/><line sku="pen" n="1"/><line sku="ink" n="1"/></invoice>')
DECLARE docs CURSOR FOR SELECT Doc FROM @docs ORDER BY Id
OPEN docs
FETCH NEXT FROM docs INTO @doc
WHILE (@@FETCH_STATUS <> -1)
BEGIN
    BEGIN DIALOG CONVERSATION @h FROM SERVICE Customer TO SERVICE 'Office' ON CONTRACT [urn:papers/Trade] WITH LIFETIME = 3600, ENCRYPTION = OFF;
    IF @first IS NULL SET @first = @h;
    SEND ON CONVERSATION @h MESSAGE TYPE [urn:papers/Invoice] (@doc);
    FETCH NEXT FROM docs INTO @doc
END
CLOSE docs
SELECT CURSOR_STATUS('global', 'docs') AS closed
DEALLOCATE docs;
SEND ON CONVERSATION @first MESSAGE TYPE [urn:papers/Ping];
EXEC sp_set_session_context N'first', @first
GO
EXEC dbo.Work
GO
-- ------------------------------------------------------------------------------------------------ what came of it
SELECT CASE WHEN message_type_name LIKE '%Error' THEN N'Error' ELSE STUFF(message_type_name, 1, 11, N'') END AS kind,
       CASE WHEN ISJSON(CAST(message_body AS nvarchar(max))) = 1 THEN JSON_VALUE(CAST(message_body AS nvarchar(max)), '$.total') END AS total,
       CASE WHEN message_type_name LIKE '%Error' THEN CAST(message_body AS xml).value('declare namespace e="http://schemas.microsoft.com/SQL/ServiceBroker/Error"; (/e:Error/e:Description)[1]', 'nvarchar(100)') END AS why
FROM dbo.Customers ORDER BY kind, total
SELECT j.[key], j.value, j.type FROM dbo.Customers c CROSS APPLY OPENJSON(CAST(c.message_body AS nvarchar(max))) j
WHERE c.message_type_name = N'urn:papers/Answer' AND c.conversation_handle = CAST(SESSION_CONTEXT(N'first') AS uniqueidentifier) AND j.type <> 4
ORDER BY j.[key]
SELECT x.sku, x.n, SUM(x.n) OVER (ORDER BY x.sku ROWS UNBOUNDED PRECEDING) AS running, PERCENT_RANK() OVER (ORDER BY x.sku) AS place
FROM dbo.Customers c CROSS APPLY OPENJSON(CAST(c.message_body AS nvarchar(max)), '$.skus') WITH (sku varchar(10), n int) AS x
WHERE c.message_type_name = N'urn:papers/Answer' ORDER BY x.sku
SELECT p.Sku, l.Pieces, p2.Amount, GREATEST(l.Pieces, 10) AS at_least
FROM dbo.Prices p LEFT JOIN dbo.Lines l ON l.Sku = p.Sku AND l.Invoice < 3
OUTER APPLY dbo.Priced((SELECT p.Sku AS [@sku], l.Pieces AS [@n] FOR XML PATH('l'), TYPE)) p2 ORDER BY p.Sku
SELECT What, COUNT(*), MIN(JSON_VALUE(Detail, '$.sku')) FROM dbo.Trace GROUP BY What
GO
DECLARE @sql nvarchar(max) = N'SELECT @n = COUNT(*), @last = MAX(At) FROM dbo.' + QUOTENAME(N'Trace') + N' WHERE What = @what', @n int, @last datetime2
EXEC sp_executesql @sql, N'@what varchar(30), @n int OUTPUT, @last datetime2 OUTPUT', @what = 'kept', @n = @n OUTPUT, @last = @last OUTPUT
SELECT @n AS n, DATEDIFF(hour, @last, SYSUTCDATETIME()) AS hours, EOMONTH('20200215') AS month_end, DATEFROMPARTS(2020, 2, 29) AS leap
SELECT [Key], [Value], SQL_VARIANT_PROPERTY([Value], 'BaseType') AS kind FROM dbo.Settings WHERE [Value] IS NOT NULL ORDER BY [Key]
SELECT state_desc, COUNT(*) FROM sys.conversation_endpoints GROUP BY state_desc ORDER BY state_desc
SELECT COUNT(*) AS retained FROM dbo.Office WHERE status = 2
GO
-- ------------------------------------------------------------------------------------------------ and it is taken away
DECLARE @all nvarchar(max) = N''
SELECT @all += N'END CONVERSATION ' + QUOTENAME(CONVERT(nvarchar(36), conversation_handle), '''') + N' WITH CLEANUP; ' FROM sys.conversation_endpoints
EXECUTE (@all)
SELECT (SELECT COUNT(*) FROM sys.conversation_endpoints) + (SELECT COUNT(*) FROM dbo.Office) + (SELECT COUNT(*) FROM dbo.Customers) AS nothing
GO
DROP SERVICE Office
DROP SERVICE Customer
DROP QUEUE dbo.Office
DROP QUEUE dbo.Customers
USE master
DROP DATABASE Papers
PRINT N'gone'
GO
