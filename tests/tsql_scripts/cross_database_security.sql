-- Two databases of one instance: a full binding authenticates the sender's owner at the target.
USE master
IF DB_ID('SenderDb') IS NOT NULL DROP DATABASE SenderDb
IF DB_ID('TargetDb') IS NOT NULL DROP DATABASE TargetDb
CREATE DATABASE SenderDb
CREATE DATABASE TargetDb
ALTER DATABASE SenderDb SET TRUSTWORTHY OFF
GO
SELECT name, is_trustworthy_on, is_broker_enabled, CASE WHEN database_id > 4 THEN 'user' END AS kind FROM sys.databases WHERE name IN ('SenderDb', 'TargetDb') ORDER BY name
GO
USE TargetDb
GO
CREATE MASTER KEY ENCRYPTION BY PASSWORD = N'#a strong one 1'
CREATE MESSAGE TYPE [//x/Request] VALIDATION = WELL_FORMED_XML
CREATE CONTRACT [//x/Contract] ([//x/Request] SENT BY INITIATOR)
CREATE QUEUE InboundQueue
CREATE USER TargetOwner WITHOUT LOGIN
CREATE CERTIFICATE TargetCert AUTHORIZATION TargetOwner WITH SUBJECT = 'target', EXPIRY_DATE = N'12/31/2099'
CREATE SERVICE [//x/Target] AUTHORIZATION TargetOwner ON QUEUE InboundQueue ([//x/Contract])
GRANT RECEIVE ON InboundQueue TO TargetOwner
GRANT CONTROL ON SERVICE::[//x/Target] TO TargetOwner
DECLARE @folder NVARCHAR(200) = N'$(folder)'
EXEC ('BACKUP CERTIFICATE TargetCert TO FILE = ''' + @folder + '/target.cer''')
GO
USE SenderDb
GO
CREATE MASTER KEY ENCRYPTION BY PASSWORD = '#another strong one 2'
CREATE MESSAGE TYPE [//x/Request] VALIDATION = WELL_FORMED_XML
CREATE CONTRACT [//x/Contract] ([//x/Request] SENT BY INITIATOR)
CREATE QUEUE OutboundQueue
CREATE USER SenderOwner WITHOUT LOGIN
CREATE USER Remote WITHOUT LOGIN
CREATE CERTIFICATE SenderCert AUTHORIZATION SenderOwner WITH SUBJECT = 'sender'
CREATE SERVICE [//x/Sender] AUTHORIZATION SenderOwner ON QUEUE OutboundQueue
DECLARE @folder NVARCHAR(200) = N'$(folder)'
EXEC ('BACKUP CERTIFICATE SenderCert TO FILE = ''' + @folder + '/sender.cer''')
EXEC ('CREATE CERTIFICATE TheirCert AUTHORIZATION Remote FROM FILE = ''' + @folder + '/target.cer''')
CREATE REMOTE SERVICE BINDING ToTarget TO SERVICE '//x/Target' WITH USER = Remote, ANONYMOUS = OFF
SELECT name, pvt_key_encryption_type_desc FROM sys.certificates ORDER BY name
SELECT b.name, b.remote_service_name, p.name AS who, b.is_anonymous_on FROM sys.remote_service_bindings b JOIN sys.database_principals p ON p.principal_id = b.remote_principal_id
GO
USE TargetDb
CREATE USER SenderThere WITHOUT LOGIN
DECLARE @folder NVARCHAR(200) = N'$(folder)'
EXEC ('CREATE CERTIFICATE SenderThereCert AUTHORIZATION SenderThere FROM FILE = ''' + @folder + '/sender.cer''')
GRANT SEND ON SERVICE::[//x/Target] TO SenderThere
GRANT CONNECT TO SenderThere
GO
USE SenderDb
GO
DECLARE @h UNIQUEIDENTIFIER
BEGIN DIALOG @h FROM SERVICE [//x/Sender] TO SERVICE '//x/Target' ON CONTRACT [//x/Contract];
SEND ON CONVERSATION @h MESSAGE TYPE [//x/Request] ('<hello/>')
SELECT COUNT(*) AS waiting FROM sys.transmission_queue
GO
USE TargetDb
GO
DECLARE @n INT = 0
WHILE NOT EXISTS (SELECT * FROM InboundQueue) AND @n < 20 BEGIN WAITFOR DELAY '00:00:00.100' SET @n += 1 END
EXECUTE AS USER = 'TargetOwner'
BEGIN TRY
    RECEIVE service_name, message_type_name, CAST(message_body AS VARCHAR(50)) AS body FROM InboundQueue
END TRY
BEGIN CATCH
    SELECT ERROR_NUMBER(), ERROR_MESSAGE()
END CATCH
SELECT USER_NAME() AS who, SUSER_SNAME() AS login_name, ORIGINAL_LOGIN() AS opened_by
REVERT
EXECUTE AS USER = 'SenderThere'
BEGIN TRY
    RECEIVE * FROM InboundQueue
END TRY
BEGIN CATCH
    PRINT CONCAT(ERROR_NUMBER(), ': ', ERROR_MESSAGE())
END CATCH
REVERT
SELECT dp.name, dp.type_desc, ISNULL(pe.permission_name, '-') AS permission, pe.state_desc
FROM sys.database_principals dp LEFT JOIN sys.database_permissions pe ON pe.grantee_principal_id = dp.principal_id AND pe.class_desc = 'SERVICE'
WHERE dp.name IN ('TargetOwner', 'SenderThere') ORDER BY dp.name
GO
USE master
DROP DATABASE SenderDb
DROP DATABASE TargetDb
