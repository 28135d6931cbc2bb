"""What set-up scripts of people and tools say around the broker's statements: files, roles, locks, old spellings."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.errors import Message, TsqlError
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.session import Session


def told(database: sb.Database, script: str) -> list[Any]:
    """What a script says: rows, texts, and numbers of errors."""
    found: list[Any] = []

    def tell(said: object) -> None:
        if isinstance(said, ResultSet):
            found.append(said.rows)
        elif isinstance(said, TsqlError):
            found.append(said.number)
        elif isinstance(said, Message):
            found.append(said.text)

    with Session(database, tell) as session:
        session.run(script)
    return found


def test_a_queue_as_tools_write_it(database: sb.Database) -> None:
    script = """
    CREATE QUEUE [dbo].[Written] WITH STATUS = ON , RETENTION = OFF , POISON_MESSAGE_HANDLING (STATUS = OFF)
     ON [PRIMARY]
    CREATE SERVICE [//written]  AUTHORIZATION [dbo]  ON QUEUE [dbo].[Written] ([DEFAULT])
    """
    assert told(database, script) == []
    assert database.execute_tsql("SELECT COUNT(*) FROM sys.service_queues WHERE name = 'written'").rows == [(1,)]


def test_current_database_in_small_letters(database: sb.Database) -> None:
    script = """
    CREATE QUEUE Small; CREATE SERVICE Small ON QUEUE Small ([DEFAULT]);
    DECLARE @h UNIQUEIDENTIFIER;
    BEGIN DIALOG @h FROM SERVICE Small TO SERVICE N'Small', N'current database' WITH ENCRYPTION = OFF;
    SEND ON CONVERSATION @h (N'here');
    RECEIVE CAST(message_body AS NVARCHAR(10)), message_type_name FROM Small
    """
    assert told(database, script) == [[("here", "DEFAULT")]]


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
    assert told(database, script) == ["sp_addextendedproperty changes nothing here."]


def test_roles_and_permissions_that_nothing_here_asks_for(database: sb.Database) -> None:
    script = """
    CREATE USER Reader WITHOUT LOGIN;
    EXEC sp_addrolemember N'db_datareader', N'Reader';
    ALTER ROLE db_datawriter ADD MEMBER Reader;
    GRANT VIEW SERVER STATE TO Reader;
    GRANT CREATE PROCEDURE, SUBSCRIBE QUERY NOTIFICATIONS TO Reader;
    DENY SELECT TO Reader;
    GRANT MISSPELLED TO Reader;
    """
    *noted, denied, wrong = told(database, script)
    assert len(noted) == 4
    assert all("changes nothing" in text or "own rights" in text for text in noted)
    assert (denied, wrong) == (40515, 4606)
    owner = """
    SELECT IS_ROLEMEMBER('db_owner', 'Reader'); EXEC sp_addrolemember 'db_owner', 'Reader';
    SELECT IS_ROLEMEMBER('db_owner', 'Reader'), IS_MEMBER('db_owner'), IS_MEMBER('nobody'), IS_SRVROLEMEMBER('sysadmin')
    EXECUTE AS USER = 'Reader'; SELECT IS_MEMBER('db_ddladmin'), CERT_ID('none'); REVERT
    """
    assert told(database, owner) == [[(0,)], [(1, 1, None, 1)], [(0, None)]]


def test_constraints_of_a_table_without_the_comma_before_them(database: sb.Database) -> None:
    script = """
    CREATE TABLE Keyed (A INT NOT NULL, B INT NOT NULL INDEX ByB NONCLUSTERED PRIMARY KEY (A, B));
    CREATE TABLE Pointing (A INT, B INT CONSTRAINT ToKeyed FOREIGN KEY (A, B) REFERENCES Keyed (A, B));
    INSERT Keyed VALUES (1, 1), (1, 2);
    INSERT Keyed VALUES (1, 2);
    INSERT Pointing VALUES (1, 3);
    SELECT COUNT(*) FROM Keyed
    """
    assert told(database, script) == [2627, 547, [(2,)]]


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
    assert told(database, script) == [[("Report",)], [("Sales",)], [(1, 0)], [(1,)]]


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
    assert told(database, script) == [[("body", 0)], 50000]


# ---------------------------------------------------------------- sp_getapplock


LOCK = "DECLARE @code INT; EXEC @code = sp_getapplock @Resource = '{}', @LockMode = '{}', {}; SELECT @code"


def locked(session: Session, script: str) -> Any:
    return session.execute(script).rows[0][0]


def test_application_locks_of_sessions(database: sb.Database) -> None:
    of_session = "@LockOwner = 'Session', @LockTimeout = 0"
    with Session(database) as one, Session(database) as other:
        assert locked(one, LOCK.format("Report", "Shared", of_session)) == 0
        assert locked(other, LOCK.format("Report", "Shared", of_session)) == 0
        assert locked(other, LOCK.format("Report", "Exclusive", "@LockOwner = 'Session', @LockTimeout = 20")) == -1
        assert locked(other, LOCK.format("report", "Exclusive", of_session)) == 0  # another name
        other.execute("EXEC sp_releaseapplock @Resource = 'Report', @LockOwner = 'Session'")
        with pytest.raises(TsqlError) as caught:
            other.execute("EXEC sp_releaseapplock 'Report', 'Session'")
        assert caught.value.number == 1223
        assert locked(one, LOCK.format("report", "Exclusive", of_session)) == -1
    with Session(database) as third:  # ended sessions hold nothing
        assert locked(third, LOCK.format("report", "Exclusive", of_session)) == 0


def test_application_locks_of_transactions(database: sb.Database) -> None:
    at_once = "@LockTimeout = 0"
    with Session(database) as one, Session(database) as other:
        assert locked(one, LOCK.format("Job", "Exclusive", at_once)) == -999  # no transaction
        one.execute("BEGIN TRANSACTION")
        assert locked(one, LOCK.format("Job", "Exclusive", at_once)) == 0
        other.execute("BEGIN TRANSACTION")
        assert locked(other, LOCK.format("Job", "Exclusive", "@LockTimeout = 20")) == -1
        assert other.execute("SELECT @@TRANCOUNT, XACT_STATE()").rows == [(1, 1)]
        one.execute("COMMIT")
        assert locked(other, LOCK.format("Job", "Exclusive", at_once)) == 0
        other.execute("ROLLBACK")


def test_application_locks_are_called_rightly(database: sb.Database) -> None:
    assert told(database, "EXEC sp_getapplock @Resource = 'x'") == [201]
    assert told(database, "EXEC sp_getapplock @Resource = 'x', @LockMode = 'IntentExclusive'") == [40515]
    assert told(database, "EXEC sp_getapplock @Resource = 'x', @Mode = 'Shared'") == [8145]
    assert told(database, "EXEC sp_releaseapplock 'x', 'Session', 'public', 1") == [8144]
