"""Surroundings of the broker's statements in set-up scripts: files, roles, locks, old spellings."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker.activation.activate import activate
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError
from support import eventually
from tsql_support import output_of


def test_a_queue_as_tools_write_it(database: sb.Database) -> None:
    script = """
    CREATE QUEUE [dbo].[Written] WITH STATUS = ON , RETENTION = OFF , POISON_MESSAGE_HANDLING (STATUS = OFF)
     ON [PRIMARY]
    CREATE SERVICE [//written]  AUTHORIZATION [dbo]  ON QUEUE [dbo].[Written] ([DEFAULT])
    """
    assert output_of(database, script) == []
    assert database.execute_tsql("SELECT COUNT(*) FROM sys.service_queues WHERE name = 'written'").rows == [(1,)]


def test_current_database_may_be_written_in_small_letters(database: sb.Database) -> None:
    script = """
    CREATE QUEUE Small; CREATE SERVICE Small ON QUEUE Small ([DEFAULT]);
    DECLARE @h UNIQUEIDENTIFIER;
    BEGIN DIALOG @h FROM SERVICE Small TO SERVICE N'Small', N'current database' WITH ENCRYPTION = OFF;
    SEND ON CONVERSATION @h (N'here');
    RECEIVE CAST(message_body AS NVARCHAR(10)), message_type_name FROM Small
    """
    assert output_of(database, script) == [[("here", "DEFAULT")]]


@pytest.mark.feature(33)
def test_event_notifications_of_one_name_on_two_queues(database: sb.Database) -> None:
    made = "CREATE EVENT NOTIFICATION Told ON QUEUE {} FOR QUEUE_ACTIVATION TO SERVICE N'//x', N'current database';"
    script = f"""
    CREATE QUEUE A; CREATE QUEUE B; {made.format("A")} {made.format("B")}
    GO
    {made.format("b")}
    GO
    DROP EVENT NOTIFICATION Told ON QUEUE A;
    SELECT n.name, q.name FROM sys.event_notifications n JOIN sys.service_queues q ON q.object_id = n.parent_id
    """
    assert output_of(database, script) == [2714, [("Told", "B")]]


def test_a_program_of_query_notifications_gets_its_permissions(database: sb.Database) -> None:
    """The permissions are those that the documentation of query notifications names. No program subscribes here."""
    script = """
    CREATE USER Watcher WITHOUT LOGIN
    GRANT CREATE PROCEDURE, CREATE QUEUE, CREATE SERVICE, SUBSCRIBE QUERY NOTIFICATIONS TO Watcher
    GRANT REFERENCES ON CONTRACT::[http://schemas.microsoft.com/SQL/Notifications/PostQueryNotification] TO Watcher
    GRANT RECEIVE ON QueryNotificationErrorsQueue TO Watcher
    GRANT TAKE OWNERSHIP ON SCHEMA::dbo TO Watcher
    GRANT VIEW ANY COLUMN MASTER KEY DEFINITION TO public
    """
    assert [item for item in output_of(database, script) if isinstance(item, int)] == []
    assert output_of(database, "GRANT RECEIVE ON Nowhere TO Watcher GRANT RECEIVE ON sys.objects TO Watcher")[:1] == [
        15151
    ]
    assert output_of(database, "GRANT CONTROL ON QueryNotificationErrorsQueue TO Watcher") == [9663]


def test_permissions_of_the_instance_stand_beside_others(instance: sb.Instance) -> None:
    script = """CREATE LOGIN Beside WITH PASSWORD = 'Secret 1'
    GRANT AUTHENTICATE SERVER, VIEW SERVER STATE TO Beside
    SELECT permission_name FROM sys.server_permissions p
    JOIN sys.server_principals l ON l.principal_id = p.grantee_principal_id
    WHERE l.name = 'Beside' AND permission_name LIKE 'A%'
    DROP LOGIN Beside"""
    output = output_of(instance.database("master", create=True), script)
    assert output[0].startswith("GRANT VIEW SERVER STATE changes nothing")
    assert output[1] == [("AUTHENTICATE SERVER",)]


def test_files_and_filegroups_are_noted_and_left_to_postgresql(instance: sb.Instance, database: sb.Database) -> None:
    name = database.name
    script = f"""
    ALTER DATABASE [{name}] ADD FILEGROUP [Slow];
    ALTER DATABASE [{name}] ADD FILE (NAME = N'f', FILENAME = N'f.ndf', SIZE = 8MB), (NAME = N'g') TO FILEGROUP [Slow];
    ALTER DATABASE [{name}] MODIFY FILEGROUP [Slow] DEFAULT
    ALTER DATABASE [{name}] SET TARGET_RECOVERY_TIME = 60 SECONDS
    ALTER DATABASE [{name}] SET RECOVERY SIMPLE
    SET ANSI_PADDING OFF
    IF (1 = FULLTEXTSERVICEPROPERTY('IsFullTextInstalled'))
        EXEC [{name}].[dbo].[sp_fulltext_database] @action = 'enable'
    EXEC sys.sp_addextendedproperty @name = N'note', @value = N'for readers', @level0type = N'SCHEMA'
    """
    assert output_of(database, script) == ["sp_addextendedproperty changes nothing here."]
    used = """
    CREATE TABLE OnSlow (Id int PRIMARY KEY ON [Slow]) ON [Slow]
    CREATE INDEX Ix ON OnSlow (Id) ON [Slow]
    CREATE QUEUE SlowQueue WITH STATUS = ON ON [Slow]
    ALTER QUEUE SlowQueue MOVE TO [PRIMARY]
    ALTER QUEUE SlowQueue MOVE TO [Slow]
    SELECT Id INTO IntoSlow ON [Slow] FROM OnSlow
    """
    assert [item for item in output_of(database, used) if isinstance(item, int)] == []


def test_roles_and_permissions_that_nothing_here_asks_for(database: sb.Database) -> None:
    script = """
    CREATE USER Reader WITHOUT LOGIN;
    EXEC sp_addrolemember N'db_datareader', N'Reader';
    ALTER ROLE db_datawriter ADD MEMBER Reader;
    GRANT VIEW SERVER STATE TO Reader;
    GRANT CREATE PROCEDURE, SUBSCRIBE QUERY NOTIFICATIONS TO Reader;
    DENY SHOWPLAN TO Reader;
    GRANT MISSPELLED TO Reader;
    """
    *noted, denied, wrong = output_of(database, script)
    assert len(noted) == 2
    assert all("changes nothing" in text for text in noted)
    assert (denied, wrong) == (40515, 4606)
    owner = """
    SELECT IS_ROLEMEMBER('db_owner', 'Reader'); EXEC sp_addrolemember 'db_owner', 'Reader';
    SELECT IS_ROLEMEMBER('db_owner', 'Reader'), IS_MEMBER('db_owner'), IS_MEMBER('nobody'), IS_SRVROLEMEMBER('sysadmin')
    EXECUTE AS USER = 'Reader'; SELECT IS_MEMBER('db_ddladmin'), CERT_ID('none'); REVERT
    """
    assert output_of(database, owner) == [[(0,)], [(1, 1, None, 1)], [(0, None)]]


def test_table_constraints_need_no_comma_before_them(database: sb.Database) -> None:
    script = """
    CREATE TABLE Keyed (A INT NOT NULL, B INT NOT NULL INDEX ByB NONCLUSTERED PRIMARY KEY (A, B));
    CREATE TABLE Pointing (A INT, B INT CONSTRAINT ToKeyed FOREIGN KEY (A, B) REFERENCES Keyed (A, B));
    INSERT Keyed VALUES (1, 1), (1, 2);
    INSERT Keyed VALUES (1, 2);
    INSERT Pointing VALUES (1, 3);
    SELECT COUNT(*) FROM Keyed
    """
    assert output_of(database, script) == [2627, 547, [(2,)]]


def test_names_of_catalog_views_are_compared_without_case(database: sb.Database) -> None:
    script = """
    CREATE SCHEMA Sales;
    GO
    CREATE PROCEDURE Sales.Report AS SELECT 1;
    GO
    SELECT ROUTINE_NAME FROM INFORMATION_SCHEMA.ROUTINES WHERE ROUTINE_NAME = 'report' AND ROUTINE_SCHEMA = 'SALES'
    SELECT SCHEMA_NAME FROM INFORMATION_SCHEMA.SCHEMATA WHERE SCHEMA_NAME = 'sales'
    SELECT is_trustworthy_on, is_master_key_encrypted_by_server FROM sys.databases WHERE name = DB_NAME()
    CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'long enough 1!'
    SELECT is_master_key_encrypted_by_server FROM sys.databases WHERE name = DB_NAME()
    """
    assert output_of(database, script) == [[("Report",)], [("Sales",)], [(0, 0)], [(1,)]]


def test_statements_that_end_where_the_next_begins(database: sb.Database) -> None:
    script = """
    CREATE QUEUE Ends; CREATE SERVICE Ends ON QUEUE Ends ([DEFAULT]);
    CREATE TABLE Counted (N INT);
    INSERT Counted VALUES (0);
    DECLARE @h UNIQUEIDENTIFIER
    BEGIN DIALOG @h FROM SERVICE Ends TO SERVICE 'Ends' WITH ENCRYPTION = OFF
    ;SEND ON CONVERSATION @h ('body')
    UPDATE Counted SET N = 1
    RECEIVE CONVERT(VARCHAR(10), message_body), message_sequence_number FROM Ends
    BEGIN TRY
        RAISERROR ('inner', 16, 1)
    END TRY
    BEGIN CATCH
        THROW
        PRINT 'not reached'
    END CATCH
    """
    assert output_of(database, script) == [[("body", 0)], 50000]


# ---------------------------------------------------------------- sp_getapplock


LOCK = "DECLARE @code INT; EXEC @code = sp_getapplock @Resource = '{}', @LockMode = '{}', {}; SELECT @code"


def lock_result(session: Session, script: str) -> Any:
    return session.execute(script).rows[0][0]


def test_application_locks_of_sessions(database: sb.Database) -> None:
    of_session = "@LockOwner = 'Session', @LockTimeout = 0"
    with Session(database) as first, Session(database) as second:
        assert lock_result(first, LOCK.format("Report", "Shared", of_session)) == 0
        assert lock_result(second, LOCK.format("Report", "Shared", of_session)) == 0
        assert (
            lock_result(second, LOCK.format("Report", "Exclusive", "@LockOwner = 'Session', @LockTimeout = 20")) == -1
        )
        assert lock_result(second, LOCK.format("report", "Exclusive", of_session)) == 0  # another name
        second.execute("EXEC sp_releaseapplock @Resource = 'Report', @LockOwner = 'Session'")
        with pytest.raises(TsqlError) as error:
            second.execute("EXEC sp_releaseapplock 'Report', 'Session'")
        assert error.value.number == 1223
        assert lock_result(first, LOCK.format("report", "Exclusive", of_session)) == -1
    with Session(database) as third:  # ended sessions hold nothing
        assert lock_result(third, LOCK.format("report", "Exclusive", of_session)) == 0


def test_application_locks_of_transactions(database: sb.Database) -> None:
    at_once = "@LockTimeout = 0"
    with Session(database) as first, Session(database) as second:
        assert lock_result(first, LOCK.format("Job", "Exclusive", at_once)) == -999  # no transaction
        first.execute("BEGIN TRANSACTION")
        assert lock_result(first, LOCK.format("Job", "Exclusive", at_once)) == 0
        second.execute("BEGIN TRANSACTION")
        assert lock_result(second, LOCK.format("Job", "Exclusive", "@LockTimeout = 20")) == -1
        assert second.execute("SELECT @@TRANCOUNT, XACT_STATE()").rows == [(1, 1)]
        first.execute("COMMIT")
        assert lock_result(second, LOCK.format("Job", "Exclusive", at_once)) == 0
        second.execute("ROLLBACK")


def test_application_locks_are_called_rightly(database: sb.Database) -> None:
    assert output_of(database, "EXEC sp_getapplock @Resource = 'x'") == [201]
    assert output_of(database, "EXEC sp_getapplock @Resource = 'x', @LockMode = 'IntentExclusive'") == [40515]
    assert output_of(database, "EXEC sp_getapplock @Resource = 'x', @Mode = 'Shared'") == [8145]
    assert output_of(database, "EXEC sp_releaseapplock 'x', 'Session', 'public', 1") == [8144]


# ---------------------------------------------------------------- what scripts look at


def test_one_procedure_for_many_queues_finds_its_own(instance: sb.Instance, database: sb.Database) -> None:
    """By the number of its session, which is @@SPID in the views too."""
    script = """
    CREATE QUEUE Left_; CREATE QUEUE Right_; CREATE QUEUE Asking;
    CREATE SERVICE Left_ ON QUEUE Left_ ([DEFAULT]); CREATE SERVICE Right_ ON QUEUE Right_ ([DEFAULT]);
    CREATE SERVICE Asking ON QUEUE Asking;
    CREATE TABLE Found (Queue SYSNAME, Body NVARCHAR(20));
    GO
    CREATE PROCEDURE AnyQueue AS
    BEGIN
        DECLARE @queue SYSNAME, @h UNIQUEIDENTIFIER, @body NVARCHAR(20), @sql NVARCHAR(MAX);
        SELECT @queue = q.name FROM sys.dm_broker_activated_tasks t
        JOIN sys.service_queues q ON q.object_id = t.queue_id
        WHERE t.spid = @@SPID;
        SET @sql = N'RECEIVE TOP (1) @h = conversation_handle, @body = message_body FROM ' + QUOTENAME(@queue);
        EXEC sp_executesql @sql, N'@h UNIQUEIDENTIFIER OUTPUT, @body NVARCHAR(20) OUTPUT', @h OUTPUT, @body OUTPUT;
        IF @h IS NOT NULL INSERT Found VALUES (@queue, @body);
    END
    GO
    ALTER QUEUE Left_ WITH ACTIVATION
        (STATUS = ON, PROCEDURE_NAME = AnyQueue, MAX_QUEUE_READERS = 1, EXECUTE AS OWNER);
    ALTER QUEUE Right_ WITH ACTIVATION
        (STATUS = ON, PROCEDURE_NAME = AnyQueue, MAX_QUEUE_READERS = 1, EXECUTE AS OWNER);
    DECLARE @h UNIQUEIDENTIFIER;
    BEGIN DIALOG @h FROM SERVICE Asking TO SERVICE 'Left_' WITH ENCRYPTION = OFF; SEND ON CONVERSATION @h (N'left');
    BEGIN DIALOG @h FROM SERVICE Asking TO SERVICE 'Right_' WITH ENCRYPTION = OFF; SEND ON CONVERSATION @h (N'right');
    """
    host = activate(instance)
    host.start()
    try:
        assert output_of(database, script) == []
        eventually(lambda: len(database.execute_tsql("SELECT * FROM Found").rows) == 2)
    finally:
        host.stop()
    rows = database.execute_tsql("SELECT Queue, Body FROM Found ORDER BY Queue").rows
    assert rows == [("Left_", "left"), ("Right_", "right")]


def test_views_of_unsupported_features_are_empty(database: sb.Database) -> None:
    script = """
    IF EXISTS (SELECT * FROM sys.assemblies WHERE name = N'Clr') DROP ASSEMBLY Clr
    IF EXISTS (SELECT * FROM sys.asymmetric_keys WHERE name = N'Key') DROP ASYMMETRIC KEY [Key]
    IF NOT EXISTS (SELECT * FROM sys.server_event_notifications WHERE name = N'Blocked') PRINT 'none'
    SELECT value_in_use FROM sys.configurations WHERE name = 'blocked process threshold (s)'
    DROP ASSEMBLY Clr
    PRINT 'on'
    """
    assert output_of(database, script) == ["none", [], 40515, "on"]


def test_messages_and_modules_are_shown(database: sb.Database) -> None:
    script = """
    CREATE PROCEDURE dbo.Shown AS SELECT 1
    GO
    SELECT OBJECT_NAME(object_id) FROM sys.sql_modules WHERE definition LIKE '%dbo.Shown%'
    SELECT [text], severity FROM sys.messages WHERE message_id = 8426 AND language_id = 1033
    SELECT COUNT(*) FROM sys.master_files WHERE database_id = DB_ID()
    SELECT 1 FROM sys.dm_exec_sessions s WHERE s.session_id = @@SPID
        AND EXISTS (SELECT * FROM sys.dm_exec_sessions t WHERE t.session_id = s.session_id)
    """
    modules, messages, files, sessions = output_of(database, script)
    assert modules == [("Shown",)]
    assert messages == [('The conversation handle "%s" is not found.', 16)]
    assert (files, sessions) == ([(2,)], [(1,)])


def test_rowversion_grows_with_each_update(database: sb.Database) -> None:
    script = """
    CREATE TABLE Stamped (Id INT PRIMARY KEY, Name NVARCHAR(10), Stamp ROWVERSION NOT NULL)
    INSERT Stamped (Id, Name) VALUES (1, 'a'), (2, 'b')
    DECLARE @seen ROWVERSION = (SELECT MAX(Stamp) FROM Stamped)
    UPDATE Stamped SET Name = 'c' WHERE Id = 1
    SELECT Id, DATALENGTH(Stamp) FROM Stamped WHERE Stamp > @seen
    UPDATE Stamped SET Name = 'd' WHERE Id = 2 AND Stamp = @seen
    SELECT @@ROWCOUNT
    UPDATE Stamped SET Name = 'e' WHERE Id = 2 AND Stamp = @seen
    SELECT @@ROWCOUNT
    ALTER TABLE Found ADD Version TIMESTAMP
    CREATE TABLE Twice (A TIMESTAMP, B ROWVERSION)
    """
    assert output_of(database, "CREATE TABLE Found (A INT)" + script) == [[(1, 8)], [(1,)], [(0,)], 2738]


def test_certificates_travel_as_data(instance: sb.Instance, database: sb.Database) -> None:
    instance.database("Peer", create=True)
    script = """
    CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'long enough 1!';
    CREATE CERTIFICATE Own WITH SUBJECT = 'Own', EXPIRY_DATE = '20900101';
    DECLARE @sql NVARCHAR(MAX) = N'USE Peer; CREATE CERTIFICATE Theirs FROM BINARY = '
        + CONVERT(NVARCHAR(MAX), CERTENCODED(CERT_ID('Own')), 1);
    EXEC (@sql);
    USE Peer
    SELECT pvt_key_encryption_type, subject FROM sys.certificates WHERE name = 'theirs'
    CREATE CERTIFICATE Wrong FROM BINARY = 5
    """
    items = [item for item in output_of(database, script) if not str(item).startswith("Changed database")]
    assert items == [[("NA", "CN=Own")], 102]


def test_dates_compare_with_numbers_and_template_parameters_are_refused(database: sb.Database) -> None:
    script = """
    DECLARE @elapsed DATETIME = GETDATE() - GETDATE(), @limit INT = 5
    IF @elapsed > @limit PRINT 'late' ELSE PRINT 'in time'
    IF GETDATE() > 40000 AND 0 = @elapsed PRINT 'days since 1900'
    GO
    CREATE QUEUE <queue name, sysname, test_queue>
    GO
    CREATE QUEUE <queue_name, sysname, test_queue>
    """
    assert output_of(database, script) == ["in time", "days since 1900", 102, 102]
    for parameter in (
        "<queue_name, sysname, test_queue>",
        "<queue name ,sysname , test-queue>",
        "<message-type, sysname>",
    ):
        with pytest.raises(TsqlError, match="a parameter of a template"):
            database.execute_tsql(f"DROP QUEUE {parameter}")


def test_clean_up_that_puts_its_statements_together(database: sb.Database) -> None:
    """Names of the catalog go into a variable row by row, and queues say the schemas they stand in."""
    script = """
    CREATE SCHEMA Depot
    GO
    CREATE QUEUE dbo.One; CREATE QUEUE Depot.Two;
    CREATE SERVICE One ON QUEUE dbo.One; CREATE SERVICE Two ON QUEUE Depot.Two;
    GO
    SELECT s.name, q.name FROM sys.service_queues q JOIN sys.schemas s ON s.schema_id = q.schema_id
    WHERE q.name IN ('One', 'Two') ORDER BY q.name
    DECLARE @sql NVARCHAR(MAX) = N'', @count INT = 0
    SELECT @sql = @sql + N'DROP SERVICE ' + QUOTENAME(name) + N';', @count += 1
    FROM sys.services WHERE name IN ('One', 'Two') ORDER BY name
    SELECT @sql += N'DROP QUEUE ' + QUOTENAME(SCHEMA_NAME(schema_id)) + N'.' + QUOTENAME(name) + N';'
    FROM sys.service_queues WHERE name IN ('One', 'Two') ORDER BY name
    PRINT @sql
    EXEC sp_executesql @sql
    SELECT @count, COUNT(*) FROM sys.service_queues WHERE name IN ('One', 'Two')
    """
    assert output_of(database, script) == [
        [("dbo", "One"), ("Depot", "Two")],
        "DROP SERVICE [One];DROP SERVICE [Two];DROP QUEUE [dbo].[One];DROP QUEUE [Depot].[Two];",
        [(2, 0)],
    ]


def test_a_role_with_the_rights_of_the_owner_is_sysadmin_however_it_is_spelled(database: sb.Database) -> None:
    with database.instance.connection() as connection:
        connection.execute('create role "Mixed Case" in role current_user')
        connection.execute('create role "Nobody Else"')
        try:
            asked = "SELECT IS_SRVROLEMEMBER('sysadmin', 'Mixed Case'), IS_SRVROLEMEMBER('sysadmin', 'Nobody Else')"
            assert output_of(database, asked) == [[(1, 0)]]
        finally:
            connection.execute('drop role "Mixed Case", "Nobody Else"')


def test_guids_of_brokers_are_compared_without_case_however_they_are_written(database: sb.Database) -> None:
    """Scripts compare the text of a view with their own or with a cast GUID, which is in capitals."""
    script = """
    DECLARE @other NVARCHAR(128) = N'D8D4D268-00A3-4C62-8F91-634B89B1E315', @h UNIQUEIDENTIFIER
    DECLARE @own NVARCHAR(128) = (SELECT service_broker_guid FROM sys.databases WHERE database_id = DB_ID())
    CREATE QUEUE Q; CREATE SERVICE Near ON QUEUE Q ([DEFAULT])
    IF NOT EXISTS (SELECT * FROM sys.routes WHERE broker_instance = @other)
        CREATE ROUTE Away WITH SERVICE_NAME = N'Away', ADDRESS = N'TCP://away.example:4022',
            BROKER_INSTANCE = 'D8D4D268-00A3-4C62-8F91-634B89B1E315'
    SELECT name FROM sys.routes WHERE broker_instance = @other OR broker_instance IN (N'none')
    BEGIN DIALOG @h FROM SERVICE Near TO SERVICE 'Near', @own WITH ENCRYPTION = OFF; SEND ON CONVERSATION @h (N'x')
    BEGIN DIALOG @h FROM SERVICE Near TO SERVICE 'Away', @other WITH ENCRYPTION = OFF; SEND ON CONVERSATION @h (N'x')
    SELECT e.far_service FROM sys.conversation_endpoints e
    JOIN sys.databases d ON e.far_broker_instance = CAST(d.service_broker_guid AS NVARCHAR(36)) WHERE e.is_initiator = 1
    SELECT t.to_service_name, r.name FROM sys.transmission_queue t
    JOIN sys.routes r ON r.broker_instance = t.to_broker_instance WHERE t.to_broker_instance = @other
    """
    assert output_of(database, script) == [[("Away",)], [("Near",)], [("Away", "Away")]]


def test_receive_returns_a_star_beside_other_columns(database: sb.Database) -> None:
    script = """
    CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q ([DEFAULT]);
    DECLARE @h UNIQUEIDENTIFIER
    BEGIN DIALOG @h FROM SERVICE S TO SERVICE 'S' WITH ENCRYPTION = OFF
    ;SEND ON CONVERSATION @h (N'one')
    RECEIVE TOP (1) body = CAST(message_body AS NVARCHAR(10)), *, message_type_name AS again FROM Q
    """
    (result_set,) = database.execute_tsql(script).sets
    (alone,) = database.execute_tsql("RECEIVE * FROM Q").sets
    assert result_set.columns == ("body", *alone.columns, "again")
    assert (result_set.rows[0][0], result_set.rows[0][-1]) == ("one", "DEFAULT")
    assert output_of(database, "DECLARE @h UNIQUEIDENTIFIER; RECEIVE @h = conversation_handle, * FROM Q") == [8447]


def test_value_accepts_the_first_item_of_data(database: sb.Database) -> None:
    script = """
    DECLARE @x XML = '<event><name n="1">a</name><name n="2">b</name></event>'
    SELECT @x.value('data(/event/name)[1]', 'sysname'), @x.value('data(//name/@n)[1]', 'int'),
        @x.value('data((//name)[2])[1]', 'sysname'), @x.value('count(//name)[1]', 'int'),
        @x.value('data(//none)[1]', 'int')
    SELECT @x.value('data(//name)', 'sysname')
    """
    assert output_of(database, script) == [[("a", 1, "b", 2, None)], 2389]


def test_rows_are_counted_at_once_and_requests_are_seen(database: sb.Database) -> None:
    script = """
    CREATE QUEUE CountedQueue
    CREATE SERVICE CountedService ON QUEUE CountedQueue ([DEFAULT])
    CREATE TABLE Counted (Id INT)
    INSERT Counted VALUES (1), (2)
    DECLARE @h UNIQUEIDENTIFIER
    BEGIN DIALOG @h FROM SERVICE CountedService TO SERVICE 'CountedService' WITH ENCRYPTION = OFF
    ;SEND ON CONVERSATION @h (0x01)
    ;SEND ON CONVERSATION @h (0x02)
    GO
    SELECT p.rows, s.row_count FROM sys.partitions p JOIN sys.internal_tables t ON t.object_id = p.object_id
    JOIN sys.service_queues q ON q.object_id = t.parent_object_id
    JOIN sys.dm_db_partition_stats s ON s.object_id = p.object_id AND s.used_page_count > 0
    JOIN sys.indexes i ON i.object_id = p.object_id AND i.index_id = p.index_id
    WHERE q.name = 'CountedQueue' AND p.index_id = 1
    SELECT rows FROM sys.partitions WHERE object_id = OBJECT_ID('Counted')
    SELECT r.command, r.blocking_session_id FROM sys.dm_exec_requests r WHERE r.session_id = @@SPID
    EXEC sp_who
    EXEC sp_who2
    """
    queue, table, request, who, who2 = [item for item in output_of(database, script) if isinstance(item, list)]
    assert (queue, table, request) == ([(2, 2)], [(2,)], [("SELECT", 0)])
    assert {len(row) for row in who} == {9}
    assert {len(row) for row in who2} == {13}


def test_guids_in_errors_are_in_upper_case(database: sb.Database) -> None:
    script = """
    BEGIN TRY END CONVERSATION 'a1b2c3d4-0000-4000-8000-00000000000f' END TRY
    BEGIN CATCH SELECT ERROR_MESSAGE() END CATCH
    """
    assert output_of(database, script) == [
        [('The conversation handle "A1B2C3D4-0000-4000-8000-00000000000F" is not found.',)]
    ]


def test_keys_constraints_and_indexes_are_asked_before_they_are_dropped(database: sb.Database) -> None:
    script = """
    CREATE TABLE dbo.Parent (Id INT CONSTRAINT PK_Parent PRIMARY KEY, Code CHAR(3) NOT NULL CONSTRAINT UQ_Code UNIQUE,
                             Q INT CONSTRAINT CK_Q CHECK (Q > 0) CONSTRAINT DF_Q DEFAULT 5, R AS Q * 2)
    CREATE TABLE dbo.Child (N INT, ParentId INT NOT NULL
                            CONSTRAINT FK_Child REFERENCES dbo.Parent (Id) ON DELETE CASCADE)
    CREATE INDEX IX_Child ON dbo.Child (ParentId DESC) INCLUDE (N)
    GO
    SELECT f.name, OBJECT_NAME(f.referenced_object_id), f.delete_referential_action_desc,
           COL_NAME(k.parent_object_id, k.parent_column_id), COL_NAME(k.referenced_object_id, k.referenced_column_id)
    FROM sys.foreign_keys f JOIN sys.foreign_key_columns k ON k.constraint_object_id = f.object_id
    WHERE f.parent_object_id = OBJECT_ID('dbo.Child')
    SELECT name, type FROM sys.objects WHERE parent_object_id = OBJECT_ID('Parent') ORDER BY name
    SELECT CONSTRAINT_NAME FROM INFORMATION_SCHEMA.TABLE_CONSTRAINTS
    WHERE TABLE_NAME = 'parent' AND CONSTRAINT_TYPE = 'CHECK'
    SELECT definition, parent_column_id FROM sys.check_constraints WHERE name = 'ck_q'
    SELECT definition FROM sys.default_constraints WHERE parent_object_id = OBJECT_ID('Parent')
    SELECT name FROM sys.computed_columns WHERE object_id = OBJECT_ID('Parent')
    SELECT i.name, i.type_desc, c.name, k.key_ordinal, k.is_descending_key, k.is_included_column FROM sys.indexes i
    JOIN sys.index_columns k ON k.object_id = i.object_id AND k.index_id = i.index_id
    JOIN sys.columns c ON c.object_id = k.object_id AND c.column_id = k.column_id
    WHERE i.object_id = OBJECT_ID('Child') ORDER BY k.index_column_id
    SELECT COUNT(*) FROM sys.key_constraints WHERE name IN ('PK_Parent', 'UQ_Code')
    SELECT COUNT(*) FROM sys.database_files
    SELECT COUNT(*) FROM sys.dm_tran_locks WHERE request_session_id = @@SPID AND request_status = 'WAIT'
    IF EXISTS (SELECT * FROM sys.foreign_keys WHERE object_id = OBJECT_ID(N'[dbo].[FK_Child]', 'F'))
        ALTER TABLE dbo.Child DROP CONSTRAINT FK_Child
    SELECT OBJECT_ID('FK_Child')
    """
    items = [item for item in output_of(database, script) if isinstance(item, list)]
    assert items == [
        [("FK_Child", "Parent", "CASCADE", "ParentId", "Id")],
        [("CK_Q", "C"), ("DF_Q", "D"), ("PK_Parent", "PK"), ("UQ_Code", "UQ")],
        [("CK_Q",)],
        [("(q > 0)", 3)],
        [("5",)],
        [("R",)],
        [("IX_Child", "NONCLUSTERED", "ParentId", 1, 1, 0), ("IX_Child", "NONCLUSTERED", "N", 0, 0, 1)],
        [(2,)],
        [(2,)],
        [(0,)],
        [(None,)],
    ]
