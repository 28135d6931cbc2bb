-- Who may what in a warehouse: logins, users, roles and schemas, GRANT, DENY and REVOKE, EXECUTE AS in sessions and
-- in modules, a signed procedure, and what the catalog tells of all that. Refusals are caught and counted.
SET NOCOUNT ON
GO
USE master
GO
IF DB_ID(N'Keep9') IS NOT NULL
    DROP DATABASE Keep9
GO
IF EXISTS (SELECT * FROM sys.server_principals WHERE name = N'Keep9Clerk')
    DROP LOGIN Keep9Clerk
IF SUSER_ID('Keep9Chief') IS NOT NULL
    DROP LOGIN Keep9Chief
GO
CREATE LOGIN Keep9Clerk WITH PASSWORD = N'Pa55-word-of-a-clerk', CHECK_POLICY = OFF, DEFAULT_DATABASE = master
CREATE LOGIN Keep9Chief WITH PASSWORD = N'Pa55-word-of-a-chief'
GO
CREATE DATABASE Keep9
GO
USE Keep9
GO
CREATE MASTER KEY ENCRYPTION BY PASSWORD = N'Pa55-word-of-the-key'
GO
CREATE SCHEMA Depot
GO
CREATE SCHEMA Books AUTHORIZATION dbo
GO
CREATE USER Clerk FOR LOGIN Keep9Clerk WITH DEFAULT_SCHEMA = Depot
CREATE USER Chief FOR LOGIN Keep9Chief
CREATE USER Robot WITHOUT LOGIN
GO
CREATE ROLE Packers AUTHORIZATION dbo
CREATE ROLE Readers
ALTER ROLE Packers ADD MEMBER Clerk
ALTER ROLE Packers ADD MEMBER Robot
EXEC sp_addrolemember N'Readers', N'Chief'
GO
CREATE TABLE Depot.Box (BoxId INT NOT NULL PRIMARY KEY, Label NVARCHAR(30) NOT NULL, Worth MONEY NOT NULL, PackedBy SYSNAME NOT NULL DEFAULT (USER_NAME()))
CREATE TABLE Books.Ledger (Id INT IDENTITY PRIMARY KEY, BoxId INT NOT NULL, Who SYSNAME NOT NULL, Login SYSNAME NOT NULL)
CREATE TABLE Books.Refused (Who SYSNAME, What VARCHAR(40), Number INT)
GO
CREATE PROCEDURE Depot.Pack @box INT, @label NVARCHAR(30), @worth MONEY
AS
BEGIN
    SET NOCOUNT ON
    INSERT Depot.Box (BoxId, Label, Worth) VALUES (@box, @label, @worth)
    EXEC Books.Enter @box
END
GO
CREATE PROCEDURE Books.Enter @box INT
AS
    INSERT Books.Ledger (BoxId, Who, Login) VALUES (@box, USER_NAME(), SUSER_SNAME())
GO
CREATE PROCEDURE Books.Total WITH EXECUTE AS OWNER
AS
    SELECT COUNT(*) AS boxes, SUM(Worth) AS worth, USER_NAME() AS who FROM Depot.Box
GO
CREATE PROCEDURE Books.Look
AS
    EXEC (N'SELECT COUNT(*) AS n, USER_NAME() AS who FROM Books.Ledger')
GO
CREATE FUNCTION Depot.Heavy (@over MONEY) RETURNS TABLE AS RETURN SELECT BoxId, Worth FROM Depot.Box WHERE Worth > @over
GO
CREATE VIEW Books.Labels AS SELECT BoxId, Label FROM Depot.Box
GO
CREATE MESSAGE TYPE [keep/parcel] VALIDATION = NONE
CREATE CONTRACT [keep/contract] ([keep/parcel] SENT BY ANY)
CREATE QUEUE Depot.Out1
CREATE QUEUE Books.In1
CREATE SERVICE [keep/out] AUTHORIZATION dbo ON QUEUE Depot.Out1
CREATE SERVICE [keep/in] ON QUEUE Books.In1 ([keep/contract])
GO
-- what each may
GRANT EXECUTE ON Depot.Pack TO Packers
GRANT EXECUTE ON OBJECT::Books.Total TO Readers, Packers
GRANT EXECUTE ON Books.Look TO Packers
GRANT SELECT ON Depot.Box TO Readers WITH GRANT OPTION
GRANT SELECT ON Books.Labels TO Packers
GRANT SELECT ON Depot.Heavy TO Readers
DENY DELETE ON Depot.Box TO Readers
GRANT INSERT ON Books.Refused TO public
GRANT SEND ON SERVICE::[keep/out] TO Packers
GRANT REFERENCES ON CONTRACT::[keep/contract] TO Packers
GRANT RECEIVE ON Books.In1 TO Readers
GRANT RECEIVE ON Depot.Out1 TO Packers
GRANT IMPERSONATE ON USER::Robot TO Clerk
GRANT VIEW DEFINITION ON SCHEMA::Depot TO Chief
GO
CREATE PROCEDURE Books.Try @what VARCHAR(40), @sql NVARCHAR(400)
AS
BEGIN
    SET NOCOUNT ON
    BEGIN TRY
        EXEC sp_executesql @sql
    END TRY
    BEGIN CATCH
        INSERT Books.Refused (Who, What, Number) VALUES (USER_NAME(), @what, ERROR_NUMBER())
    END CATCH
END
GO
GRANT EXECUTE ON Books.Try TO public
GO
EXECUTE AS USER = N'Clerk'
SELECT USER_NAME() AS who, SUSER_SNAME() AS login, ORIGINAL_LOGIN() AS began, IS_MEMBER('Packers') AS packs, IS_ROLEMEMBER('Readers') AS reads
EXEC Depot.Pack 1, N'plates', 12.50
EXEC Depot.Pack @box = 2, @worth = 700, @label = N'clock'
EXEC Books.Try 'read a table', N'SELECT * FROM Depot.Box'
EXEC Books.Try 'delete', N'DELETE Depot.Box'
EXEC Books.Try 'read by a view', N'SELECT Label FROM Books.Labels'
EXEC Books.Try 'text in a module', N'EXEC Books.Look'
EXEC Books.Try 'receive', N'RECEIVE * FROM Books.In1'
EXEC Books.Try 'create', N'CREATE TABLE Depot.Mine (Id INT)'
EXEC Books.Try 'be dbo', N'EXECUTE AS USER = ''dbo'''
EXEC Books.Try 'be chief', N'EXECUTE AS USER = ''Chief'''
EXECUTE AS USER = 'Robot'
SELECT USER_NAME() AS who, SUSER_SNAME() AS login
EXEC Depot.Pack 3, N'lamp', 80
REVERT
SELECT USER_NAME() AS who
EXEC Books.Total
DECLARE @h UNIQUEIDENTIFIER
BEGIN DIALOG @h FROM SERVICE [keep/out] TO SERVICE N'keep/in' ON CONTRACT [keep/contract] WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE [keep/parcel] (N'three boxes')
REVERT
GO
EXECUTE AS LOGIN = 'Keep9Chief'
SELECT USER_NAME() AS who, IS_SRVROLEMEMBER('sysadmin') AS admin
SELECT BoxId, Label, PackedBy FROM Depot.Box ORDER BY BoxId
SELECT BoxId FROM Depot.Heavy(50) ORDER BY BoxId
EXEC Books.Try 'delete', N'DELETE Depot.Box'
EXEC Books.Try 'pack', N'EXEC Depot.Pack 9, N''no'', 1'
EXEC Books.Try 'grant on', N'GRANT SELECT ON Depot.Box TO Robot'
EXEC Books.Try 'deny', N'DENY SELECT ON Books.Ledger TO Robot'
EXEC Books.Try 'send', N'DECLARE @h UNIQUEIDENTIFIER; BEGIN DIALOG @h FROM SERVICE [keep/out] TO SERVICE ''keep/in'' ON CONTRACT [keep/contract] WITH ENCRYPTION = OFF'
RECEIVE CAST(message_body AS NVARCHAR(50)) AS body FROM Books.In1
REVERT
GO
SELECT Who, What, Number FROM Books.Refused ORDER BY Who, What
SELECT BoxId, Who, Login FROM Books.Ledger ORDER BY Id
GO
-- a signed module: what its certificate's user may, the module may, whoever calls it
CREATE CERTIFICATE LedgerCert WITH SUBJECT = N'reads the ledger', EXPIRY_DATE = '20990101'
GO
CREATE USER LedgerReader FROM CERTIFICATE LedgerCert
GRANT SELECT ON Books.Ledger TO LedgerReader
ADD SIGNATURE TO Books.Look BY CERTIFICATE LedgerCert
GO
EXECUTE AS USER = 'Clerk'
EXEC Books.Look
REVERT
GO
SELECT c.name, OBJECT_NAME(s.major_id) AS module, s.crypt_type_desc FROM sys.crypt_properties AS s JOIN sys.certificates AS c ON c.thumbprint = s.thumbprint
GO
DROP SIGNATURE FROM Books.Look BY CERTIFICATE LedgerCert
REVOKE SELECT ON Depot.Box FROM Readers CASCADE
REVOKE EXECUTE ON Depot.Pack FROM Packers
GO
EXECUTE AS USER = 'Chief'
EXEC Books.Try 'after REVOKE', N'SELECT * FROM Depot.Box'
REVERT
GO
-- people come and go
ALTER ROLE Readers DROP MEMBER Chief
ALTER ROLE Readers ADD MEMBER Robot
CREATE USER Guest9 WITHOUT LOGIN
ALTER AUTHORIZATION ON SERVICE::[keep/in] TO Chief
DENY EXECUTE ON Books.Total TO Guest9
GRANT EXECUTE ON Books.Total TO public
GO
EXECUTE AS USER = 'Guest9'
EXEC Books.Try 'denied beside public', N'EXEC Books.Total'
REVERT
GO
BEGIN TRY
    DROP USER Chief
END TRY
BEGIN CATCH
    INSERT Books.Refused (Who, What, Number) VALUES (USER_NAME(), 'drop an owner', ERROR_NUMBER())
END CATCH
DROP USER Guest9
SELECT s.name AS service, USER_NAME(s.principal_id) AS owner FROM sys.services AS s WHERE s.name LIKE N'keep/%' ORDER BY s.name
SELECT p.name, p.type_desc FROM sys.database_principals AS p WHERE p.name IN (N'Clerk', N'Chief', N'Robot', N'Packers', N'Guest9') ORDER BY p.name
SELECT What, Number FROM Books.Refused WHERE What IN ('denied beside public', 'drop an owner', 'after REVOKE') ORDER BY What, Number
GO
EXECUTE AS USER = 'Clerk' WITH NO REVERT
EXEC Books.Try 'after REVOKE', N'EXEC Depot.Pack 4, N''no'', 1'
GO
-- a new session of its own would be needed to be dbo again: the batches after this one are the clerk's
SELECT USER_NAME() AS still
GO
SELECT p.permission_name, p.state_desc, p.class_desc, USER_NAME(p.grantee_principal_id) AS who
FROM sys.database_permissions AS p WHERE USER_NAME(p.grantee_principal_id) = N'Packers' ORDER BY p.permission_name, p.class_desc
GO
SELECT r.name AS role, m.name AS member
FROM sys.database_role_members AS rm
JOIN sys.database_principals AS r ON r.principal_id = rm.role_principal_id
JOIN sys.database_principals AS m ON m.principal_id = rm.member_principal_id
WHERE r.name IN (N'Packers', N'Readers')
ORDER BY r.name, m.name
GO
