"""A user to whom nothing was granted says every statement that there is: what would change something is refused.

The lists are held against the tables by which statements are read and run, so that none can be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import servicebroker as sb
from servicebroker.tsql import parser
from servicebroker.tsql.interpreter.calls import SYSTEM_PROCEDURES
from servicebroker.tsql.interpreter.definitions.objects import DEFINERS
from servicebroker.tsql.interpreter.machine import RUNNERS
from servicebroker.tsql.interpreter.procedures.unsupported_procedures import ADVICE
from servicebroker.tsql.session import Session
from support import query

SETUP = """
CREATE TABLE Parcels (Id INT PRIMARY KEY, Place NVARCHAR(20));
CREATE TABLE Numbered (Id INT IDENTITY, Place NVARCHAR(20));
INSERT Parcels VALUES (1, N'Lund');
CREATE VIEW Places AS SELECT Place FROM Parcels;
CREATE INDEX ByPlace ON Parcels (Place);
CREATE SEQUENCE Counter;
CREATE SYNONYM Alias FOR Parcels;
CREATE TYPE Code FROM NVARCHAR(10);
CREATE SCHEMA Depot;
CREATE MESSAGE TYPE Note;
CREATE CONTRACT Notes (Note SENT BY ANY);
CREATE CONTRACT Unused (Note SENT BY ANY);
CREATE QUEUE Inbox;
CREATE QUEUE Free;
CREATE SERVICE Desk ON QUEUE Inbox (Notes);
CREATE ROUTE Far WITH SERVICE_NAME = 'Far', ADDRESS = 'TCP://far:4022';
CREATE BROKER PRIORITY First FOR CONVERSATION SET (PRIORITY_LEVEL = 7);
CREATE XML SCHEMA COLLECTION Forms AS N'<schema xmlns="http://www.w3.org/2001/XMLSchema"/>';
CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'long enough 1!';
CREATE CERTIFICATE Seal WITH SUBJECT = 'Seal';
CREATE USER Boss WITHOUT LOGIN;
CREATE USER Nobody WITHOUT LOGIN;
CREATE ROLE Clerks;
CREATE REMOTE SERVICE BINDING ToFar TO SERVICE 'Far' WITH USER = Boss;
CREATE EVENT NOTIFICATION Tell ON QUEUE Inbox FOR BROKER_QUEUE_DISABLED TO SERVICE 'Desk', 'current database';
GO
CREATE PROCEDURE Work WITH EXECUTE AS OWNER AS UPDATE Parcels SET Place = N'Ystad';
GO
CREATE FUNCTION Twice (@n INT) RETURNS INT AS BEGIN RETURN 2 * @n END
GO
CREATE TRIGGER Bell ON Parcels AFTER INSERT AS PRINT 'ding';
GO
DECLARE @h UNIQUEIDENTIFIER;
BEGIN DIALOG @h FROM SERVICE Desk TO SERVICE 'Desk' ON CONTRACT Notes WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h MESSAGE TYPE Note (0x01);
SELECT @h AS handle
"""
# The attempts for a statement, by its runner, its words or its name; with the number of the refusal.
ATTEMPTS: dict[object, list[tuple[str, int]]] = {
    "BeginDialog": [("DECLARE @x UNIQUEIDENTIFIER BEGIN DIALOG @x FROM SERVICE Desk TO SERVICE 'Desk'", 8494)],
    "BeginTimer": [("BEGIN CONVERSATION TIMER ('{handle}') TIMEOUT = 60", 8494)],
    "Send": [("SEND ON CONVERSATION '{handle}' MESSAGE TYPE Note (0x02)", 8494)],
    "EndConversation": [
        ("END CONVERSATION '{handle}'", 8494),
        ("END CONVERSATION '{handle}' WITH ERROR = 1 DESCRIPTION = 'x'", 8494),
        ("END CONVERSATION '{handle}' WITH CLEANUP", 8494),
    ],
    "MoveConversation": [("MOVE CONVERSATION '{handle}' TO '{handle}'", 8494)],
    "Receive": [("RECEIVE * FROM Inbox", 229)],
    "GetConversationGroup": [("DECLARE @g UNIQUEIDENTIFIER; GET CONVERSATION GROUP @g FROM Inbox", 229)],
    "WaitForMessage": [("WAITFOR (RECEIVE TOP (1) * FROM Inbox), TIMEOUT 1", 229)],
    "Execute": [
        ("EXEC Work", 229),
        ("DECLARE @name NVARCHAR(20) = N'dbo.Work' EXEC @name", 229),
        ("EXEC {database}.dbo.Work", 229),
    ],
    "ResultSets": [("EXEC Work WITH RESULT SETS NONE", 229)],
    "ExecuteText": [
        ("EXEC ('DELETE FROM Parcels')", 229),
        ("EXEC ('DELETE FROM Parcels') AS USER = 'dbo'", 15517),
        ("EXEC ('DELETE FROM Parcels') AS LOGIN = 'sa'", 15406),
        ("EXEC sp_executesql N'DELETE FROM Parcels'", 229),
    ],
    "InsertExecute": [("INSERT Parcels EXEC ('SELECT 7, N''x''')", 229)],
    "ExecuteAs": [
        ("EXECUTE AS USER = 'dbo'", 15517),
        ("EXECUTE AS USER = 'Boss'", 15517),
        ("EXECUTE AS USER = 'Clerks'", 15517),
        ("EXECUTE AS LOGIN = 'sa'", 15406),
        ("EXECUTE AS LOGIN = 'chief'", 15406),
        ("EXECUTE AS LOGIN = 'nobody at all'", 15406),
    ],
    "Use": [("USE Elsewhere", 916), ("USE msdb", 916), ("USE Nowhere", 911)],
    "Permission": [
        ("GRANT CONTROL TO Boss", 4613),
        ("GRANT SELECT ON Parcels TO Nobody", 4624),
        ("GRANT SELECT ON Parcels TO Boss", 15151),
        ("GRANT EXECUTE ON SCHEMA::dbo TO Boss", 15151),
        ("DENY RECEIVE ON Inbox TO Boss", 15151),
        ("REVOKE SEND ON SERVICE::Desk FROM Boss", 15151),
        ("GRANT IMPERSONATE ON USER::dbo TO Boss", 15151),
        ("USE master GRANT IMPERSONATE ON LOGIN::chief TO chief", 15151),
        ("USE master GRANT CONTROL SERVER TO chief", 4613),
        ("GRANT CONNECT ON ENDPOINT::Line TO public", 15151),
    ],
    "Procedure": [
        ("CREATE PROCEDURE P AS PRINT 1", 262),
        ("CREATE PROCEDURE P WITH EXECUTE AS OWNER AS PRINT 1", 262),
        ("ALTER PROCEDURE Work AS PRINT 1", 3701),
        ("CREATE OR ALTER PROCEDURE Work AS PRINT 1", 3701),
        ("CREATE PROCEDURE Work AS PRINT 1", 262),
    ],
    "Function": [
        ("CREATE FUNCTION F (@n INT) RETURNS INT AS BEGIN RETURN @n END", 262),
        ("ALTER FUNCTION Twice (@n INT) RETURNS INT AS BEGIN RETURN @n END", 3701),
    ],
    "Trigger": [
        ("CREATE TRIGGER T ON Parcels AFTER INSERT AS PRINT 1", 2104),
        ("ALTER TRIGGER Bell ON Parcels AFTER INSERT AS PRINT 1", 2104),
        ("CREATE TRIGGER T ON Inbox AFTER INSERT AS PRINT 1", 8197),
    ],
    "SetOption": [("SET IDENTITY_INSERT Numbered ON", 1088)],
    "DeclareCursor": [("DECLARE c CURSOR FOR SELECT * FROM Inbox OPEN c", 229)],
    "If": [("IF EXISTS (SELECT * FROM Inbox) PRINT 'there'", 229)],
    "SetVariable": [("DECLARE @n INT SET @n = (SELECT COUNT(*) FROM Parcels)", 229)],
    "SelectVariables": [("DECLARE @n INT SELECT @n = dbo.Twice(1)", 229)],
    "Relational": [
        ("SELECT * FROM Parcels", 229),
        ("SELECT * FROM Inbox", 229),
        ("SELECT * FROM Places", 229),
        ("SELECT * INTO Copied FROM Parcels", 262),
        ("SELECT * INTO #copied FROM Parcels", 229),
        ("WITH p AS (SELECT * FROM Parcels) SELECT * FROM p", 229),
        ("SELECT dbo.Twice(2)", 229),
        ("SELECT * FROM Elsewhere.dbo.Things", 916),
        ("INSERT Elsewhere.dbo.Things VALUES (1)", 916),
        ("INSERT Parcels VALUES (2, N'Malmö')", 229),
        ("INSERT Parcels DEFAULT VALUES", 229),
        ("UPDATE Parcels SET Place = N'x'", 229),
        ("UPDATE p SET Place = N'x' FROM Parcels AS p", 229),
        ("WITH p AS (SELECT * FROM Parcels) UPDATE p SET Place = N'x'", 229),
        ("DELETE FROM Parcels", 229),
        ("DELETE p OUTPUT deleted.Id FROM Parcels p", 229),
        ("DECLARE @t TABLE (n INT) INSERT Parcels (Id) OUTPUT inserted.Id INTO @t VALUES (9)", 229),
        ("MERGE Parcels p USING (SELECT 1 AS n) s ON p.Id = s.n WHEN MATCHED THEN DELETE;", 229),
        ("MERGE Parcels p USING (SELECT 5 AS n) s ON p.Id = s.n WHEN NOT MATCHED THEN INSERT (Id) VALUES (s.n);", 229),
        ("INSERT Inbox (status) VALUES (1)", 416),
        ("DELETE FROM Inbox", 416),
        ("TRUNCATE TABLE Parcels", 1088),
        ("TRUNCATE TABLE Inbox", 4708),
        ("CREATE TABLE T (n INT)", 262),
        ("CREATE TABLE T (n INT REFERENCES Parcels (Id))", 262),
        ("CREATE TABLE Inbox (n INT)", 262),
        ("ALTER TABLE Parcels ADD n INT", 1088),
        ("ALTER TABLE Parcels DROP COLUMN Place", 1088),
        ("DROP TABLE Parcels", 3701),
        ("DROP TABLE IF EXISTS Parcels", 3701),
        ("CREATE VIEW V AS SELECT 1 AS n", 262),
        ("ALTER VIEW Places AS SELECT 1 AS n", 3701),
        ("CREATE OR ALTER VIEW Places AS SELECT 1 AS n", 3701),
        ("DROP VIEW Places", 3701),
        ("DROP VIEW Inbox", 3705),
        ("ALTER VIEW Inbox AS SELECT 1 AS n", 2010),
        ("CREATE INDEX I ON Parcels (Id)", 1088),
        ("CREATE UNIQUE INDEX I ON Parcels (Id)", 1088),
        ("CREATE CLUSTERED INDEX I ON Parcels (Id)", 1088),
        ("CREATE NONCLUSTERED INDEX I ON Parcels (Id)", 1088),
        ("DROP INDEX ByPlace ON Parcels", 3701),
        ("DROP INDEX Parcels.ByPlace", 3701),
        ("CREATE SEQUENCE S", 15247),
        ("ALTER SEQUENCE Counter RESTART", 3701),
        ("SELECT NEXT VALUE FOR Counter", 229),
        ("DROP SEQUENCE Counter", 3701),
        ("UPDATE sys.services SET name = 'x'", 259),
        ("UPDATE p SET name = 'x' FROM sys.server_principals AS p", 259),
        ("DELETE FROM sys.server_principals", 259),
    ],
    ("CREATE", "MESSAGE TYPE"): [("CREATE MESSAGE TYPE M", 262)],
    ("ALTER", "MESSAGE TYPE"): [("ALTER MESSAGE TYPE Note VALIDATION = EMPTY", 15151)],
    ("DROP", "MESSAGE TYPE"): [("DROP MESSAGE TYPE Note", 15151)],
    ("CREATE", "CONTRACT"): [("CREATE CONTRACT C (Note SENT BY ANY)", 262)],
    ("DROP", "CONTRACT"): [("DROP CONTRACT Unused", 15151)],
    ("CREATE", "QUEUE"): [("CREATE QUEUE Q", 262)],
    ("ALTER", "QUEUE"): [
        ("ALTER QUEUE Inbox WITH STATUS = OFF", 15151),
        ("ALTER QUEUE Inbox WITH ACTIVATION (PROCEDURE_NAME = Work, MAX_QUEUE_READERS = 1, EXECUTE AS OWNER)", 15151),
        ("ALTER QUEUE Inbox REBUILD", 15151),
        ("ALTER QUEUE Inbox REORGANIZE", 15151),
    ],
    ("DROP", "QUEUE"): [("DROP QUEUE Free", 15151), ("DROP QUEUE Inbox", 15151)],
    ("CREATE", "SERVICE"): [("CREATE SERVICE S ON QUEUE Inbox", 262)],
    ("ALTER", "SERVICE"): [("ALTER SERVICE Desk ON QUEUE Free", 15151)],
    ("DROP", "SERVICE"): [("DROP SERVICE Desk", 15151)],
    ("CREATE", "ROUTE"): [("CREATE ROUTE R WITH ADDRESS = 'LOCAL'", 262)],
    ("ALTER", "ROUTE"): [("ALTER ROUTE Far WITH ADDRESS = 'LOCAL'", 15151)],
    ("DROP", "ROUTE"): [("DROP ROUTE Far", 15151)],
    ("CREATE", "BROKER PRIORITY"): [("CREATE BROKER PRIORITY P FOR CONVERSATION", 15247)],
    ("ALTER", "BROKER PRIORITY"): [
        ("ALTER BROKER PRIORITY First FOR CONVERSATION SET (PRIORITY_LEVEL = 1)", 15247),
    ],
    ("DROP", "BROKER PRIORITY"): [("DROP BROKER PRIORITY First", 15247)],
    ("CREATE", "EVENT NOTIFICATION"): [
        (
            "CREATE EVENT NOTIFICATION N ON QUEUE Inbox FOR QUEUE_ACTIVATION TO SERVICE 'Desk', 'current database'",
            15151,
        ),
    ],
    ("DROP", "EVENT NOTIFICATION"): [("DROP EVENT NOTIFICATION Tell ON QUEUE Inbox", 15151)],
    ("CREATE", "XML SCHEMA COLLECTION"): [
        ("CREATE XML SCHEMA COLLECTION X AS N'<schema xmlns=\"http://www.w3.org/2001/XMLSchema\"/>'", 262),
    ],
    ("ALTER", "XML SCHEMA COLLECTION"): [
        ("ALTER XML SCHEMA COLLECTION Forms ADD N'<schema xmlns=\"http://www.w3.org/2001/XMLSchema\"/>'", 15151),
    ],
    ("DROP", "XML SCHEMA COLLECTION"): [("DROP XML SCHEMA COLLECTION Forms", 15151)],
    ("CREATE", "ENDPOINT"): [
        ("CREATE ENDPOINT E AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (AUTHENTICATION = CERTIFICATE)", 15247),
    ],
    ("ALTER", "ENDPOINT"): [("ALTER ENDPOINT Line STATE = STARTED", 15151)],
    ("DROP", "ENDPOINT"): [("DROP ENDPOINT Line", 15151)],
    ("CREATE", "DATABASE"): [("CREATE DATABASE D", 262), ("CREATE DATABASE D WITH TRUSTWORTHY ON", 262)],
    ("ALTER", "DATABASE"): [
        ("ALTER DATABASE {database} SET NEW_BROKER", 5011),
        ("ALTER DATABASE CURRENT SET DISABLE_BROKER", 5011),
        ("ALTER DATABASE {database} SET TRUSTWORTHY ON", 15247),
        ("ALTER DATABASE {database} SET RECOVERY SIMPLE", 5011),
        ("ALTER DATABASE Elsewhere SET NEW_BROKER", 5011),
    ],
    ("DROP", "DATABASE"): [("USE master DROP DATABASE {database}", 3701), ("DROP DATABASE Elsewhere", 3701)],
    ("CREATE", "LOGIN"): [("CREATE LOGIN l WITH PASSWORD = 'x'", 15247)],
    ("ALTER", "LOGIN"): [("ALTER LOGIN chief WITH PASSWORD = 'x'", 15151)],
    ("DROP", "LOGIN"): [("DROP LOGIN chief", 15151)],
    ("CREATE", "USER"): [("CREATE USER U WITHOUT LOGIN", 15247)],
    ("ALTER", "USER"): [("ALTER USER Boss WITH DEFAULT_SCHEMA = dbo", 15151)],
    ("DROP", "USER"): [("DROP USER Boss", 15151)],
    ("CREATE", "ROLE"): [("CREATE ROLE R", 15247)],
    ("ALTER", "ROLE"): [
        ("ALTER ROLE Clerks ADD MEMBER Nobody", 15151),
        ("ALTER ROLE db_owner ADD MEMBER Nobody", 15151),
    ],
    ("DROP", "ROLE"): [("DROP ROLE Clerks", 15151)],
    ("CREATE", "SCHEMA"): [("CREATE SCHEMA S", 15247)],
    ("ALTER", "SCHEMA"): [("ALTER SCHEMA Depot TRANSFER dbo.Parcels", 15151)],
    ("DROP", "SCHEMA"): [("DROP SCHEMA Depot", 15151)],
    ("CREATE", "TYPE"): [("CREATE TYPE T FROM INT", 262), ("CREATE TYPE T AS TABLE (n INT)", 262)],
    ("CREATE", "SYNONYM"): [("CREATE SYNONYM S FOR Parcels", 262)],
    ("DROP", "SYNONYM"): [("DROP SYNONYM Alias", 3701)],
    ("DROP", "TYPE"): [("DROP TYPE Code", 218)],
    ("CREATE", "MASTER KEY"): [("CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'long enough 2!'", 15247)],
    ("ALTER", "MASTER KEY"): [("ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY", 15247)],
    ("OPEN", "MASTER KEY"): [("OPEN MASTER KEY DECRYPTION BY PASSWORD = 'long enough 1!'", 15247)],
    ("CLOSE", "MASTER KEY"): [("CLOSE MASTER KEY", 15315)],
    ("DROP", "MASTER KEY"): [("DROP MASTER KEY", 15247)],
    ("CREATE", "CERTIFICATE"): [
        ("CREATE CERTIFICATE C WITH SUBJECT = 'C'", 262),
        ("USE master CREATE CERTIFICATE C WITH SUBJECT = 'C'", 15247),
    ],
    ("ALTER", "CERTIFICATE"): [
        ("ALTER CERTIFICATE Seal WITH ACTIVE FOR BEGIN_DIALOG = OFF", 15151),
        ("USE master ALTER CERTIFICATE Transport REMOVE PRIVATE KEY", 15151),
    ],
    ("DROP", "CERTIFICATE"): [
        ("DROP CERTIFICATE Seal", 15151),
        ("USE master DROP CERTIFICATE Transport", 15151),
    ],
    ("BACKUP", "CERTIFICATE"): [
        ("BACKUP CERTIFICATE Seal TO FILE = '{folder}/seal.cer'", 15151),
        ("USE master BACKUP CERTIFICATE Transport TO FILE = '{folder}/transport.cer'", 15151),
    ],
    ("ADD", "SIGNATURE"): [("ADD SIGNATURE TO Work BY CERTIFICATE Seal", 15151)],
    ("DROP", "SIGNATURE"): [("DROP SIGNATURE FROM Work BY CERTIFICATE Seal", 15151)],
    ("CREATE", "REMOTE SERVICE BINDING"): [
        ("CREATE REMOTE SERVICE BINDING B TO SERVICE 'B' WITH USER = Nobody", 262),
    ],
    ("ALTER", "REMOTE SERVICE BINDING"): [("ALTER REMOTE SERVICE BINDING ToFar WITH ANONYMOUS = ON", 15151)],
    ("DROP", "REMOTE SERVICE BINDING"): [("DROP REMOTE SERVICE BINDING ToFar", 15151)],
    ("DROP", "PROCEDURE"): [("DROP PROCEDURE Work", 3701), ("DROP PROCEDURE IF EXISTS Work", 3701)],
    ("DROP", "FUNCTION"): [("DROP FUNCTION Twice", 3701)],
    ("DROP", "TRIGGER"): [("DROP TRIGGER Bell", 3701)],
    ("DBCC", "CHECKIDENT"): [("DBCC CHECKIDENT ('Parcels', RESEED, 5)", 1088)],
    ("DBCC", "OPENTRAN"): [("DBCC OPENTRAN", 2571)],
    ("DBCC", "INPUTBUFFER"): [("DBCC INPUTBUFFER (32000)", 2571)],
    ("ENABLE", "TRIGGER"): [("ENABLE TRIGGER Bell ON Parcels", 1088)],
    ("DISABLE", "TRIGGER"): [
        ("DISABLE TRIGGER ALL ON Parcels", 1088),
        ("ALTER TABLE Parcels DISABLE TRIGGER Bell", 1088),
    ],
    ("ALTER", "AUTHORIZATION"): [
        ("ALTER AUTHORIZATION ON SERVICE::Desk TO Nobody", 15151),
        ("ALTER AUTHORIZATION ON QUEUE::Inbox TO Nobody", 102),
        ("ALTER AUTHORIZATION ON OBJECT::Inbox TO Nobody", 15151),
        ("ALTER AUTHORIZATION ON DATABASE::{database} TO Nobody", 15151),
    ],
    "sp_addrolemember": [("EXEC sp_addrolemember 'db_owner', 'Nobody'", 15151)],
    "sp_droprolemember": [("EXEC sp_droprolemember 'Clerks', 'Boss'", 15151)],
    "sp_rename": [
        ("EXEC sp_rename 'Parcels', 'x'", 3701),
        ("EXEC sp_rename 'Parcels.Place', 'x', 'COLUMN'", 1088),
        ("EXEC sp_rename 'Parcels.ByPlace', 'x', 'INDEX'", 1088),
    ],
    "sp_spaceused": [("EXEC sp_spaceused 'Parcels'", 229)],
    "sp_msforeachdb": [("EXEC sp_MSforeachdb 'PRINT 1', @precommand = 'DELETE FROM Parcels'", 229)],
    "sp_msforeachtable": [
        ("EXEC sp_MSforeachtable 'PRINT 1', @precommand = 'DELETE FROM Parcels'", 229),
        ("EXEC sp_MSforeachtable 'PRINT 1', @whereand = 'AND EXISTS (SELECT * FROM Parcels)'", 229),
    ],
    "sp_addmessage": [("EXEC sp_addmessage 60001, 16, 'x'", 15247)],
    "sp_altermessage": [("EXEC sp_altermessage 60001, 'WITH_LOG', 'true'", 15247)],
    "sp_dropmessage": [("EXEC sp_dropmessage 60001", 15247)],
    "sp_executesql": [("EXEC sp_executesql N'INSERT Parcels VALUES (8, N''x'')'", 229)],
    "Unsupported": [("DROP RULE r", 40515)],
}
# Statements with effects inside the session alone: variables, transaction, temporary tables, output.
OF_THE_SESSION = """
Block Break Continue Goto Label Return While TryCatch Throw Print Raiserror DeclareVariable DeclareTable Declarations
CursorStep Fetch BeginTransaction CommitTransaction RollbackTransaction SaveTransaction WaitForTime Revert
""".split()  # noqa: SIM905 # a list of so many strings is harder to read
# procedures that show something, lock a name, or say that they change nothing
OF_NO_EFFECT = """
NoEffect sp_addextendedproperty sp_changedbowner sp_configure sp_db_vardecimal_storage_format sp_dbcmptlevel sp_dboption
sp_columns sp_databases sp_dropextendedproperty sp_fulltext_database sp_getapplock sp_help sp_helpconstraint sp_helpdb
sp_helpindex sp_helptext sp_helptrigger sp_lock sp_xml_preparedocument sp_xml_removedocument
sp_procoption sp_recompile sp_refreshview sp_releaseapplock sp_set_session_context sp_tables sp_updateextendedproperty
sp_updatestats sp_who sp_who2
""".split()  # noqa: SIM905
# words that begin a statement of the session, or one that is refused to everybody
WORDS = """
BREAK CONTINUE COMMIT ROLLBACK SAVE GOTO IF WHILE PRINT RAISERROR THROW RETURN REVERT FETCH DEALLOCATE ADD
""".split()  # noqa: SIM905
CASES = [(script, number) for attempts in ATTEMPTS.values() for script, number in attempts]


def test_no_statement_is_forgotten() -> None:
    runners = {runner.__name__ for runner in RUNNERS} - {"Definition"}
    assert {*ATTEMPTS, *OF_THE_SESSION, *OF_NO_EFFECT, *ADVICE} == {*runners, *DEFINERS, *SYSTEM_PROCEDURES}
    said = {word for script, _ in CASES for word in script.upper().replace("(", " ").split()}
    assert set(parser._STATEMENTS) - set(WORDS) - said == set()
    assert set(parser._RELATIONAL_KINDS) - said == set()
    made = {" ".join(words) for words in parser._OBJECT_METHODS}
    elsewhere = {"PROCEDURE", "FUNCTION", "TRIGGER", "AUTHORIZATION", "SIGNATURE"}
    elsewhere |= {"CHECKIDENT", "OPENTRAN", "INPUTBUFFER"}  # of DBCC
    assert made == {key[1] for key in DEFINERS} - elsewhere


@pytest.fixture(scope="module")
def office(instance: sb.Instance) -> sb.Database:
    """A database with one of everything, and another one; logins, an endpoint, a certificate of the transport."""
    instance.database("Elsewhere", create=True).execute_tsql("CREATE TABLE Things (n INT)")
    office = instance.database("Office", create=True)
    instance.create_login("chief")
    office.execute_tsql("USE master CREATE CERTIFICATE Transport WITH SUBJECT = 'Transport'")
    instance.create_endpoint("Line", listener_port=4022)
    return office


@pytest.fixture(scope="module")
def values(office: sb.Database, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the names for the scripts."""
    setup = SETUP.replace("\nCREATE VIEW", "\nGO\nCREATE VIEW").replace("\nCREATE INDEX", "\nGO\nCREATE INDEX")
    handle = str(office.execute_tsql(setup).rows[0][0])
    return {"handle": handle, "database": office.name, "folder": str(tmp_path_factory.mktemp("files"))}


@pytest.fixture(scope="module", params=["by EXECUTE AS", "by name"])
def user_session(request: pytest.FixtureRequest, office: sb.Database, values: dict[str, str]) -> Iterator[Session]:
    """A session of the user."""
    if request.param == "by name":
        with Session(office.instance.database(office.name, user="Nobody")) as session:
            yield session
        return
    with Session(office) as session:
        session.execute("EXECUTE AS USER = 'Nobody' WITH NO REVERT")
        yield session


def instance_content(database: sb.Database) -> list[tuple[object, ...]]:
    """Return the content of the instance: rows of every table, tables, functions, triggers; without counters."""
    tables = query(
        database,
        "select format('%%I.%%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace "
        "where c.relkind = 'r' and (n.nspname = 'servicebroker' or n.nspname like '%%\\_dbo') "
        "and c.relname not in ('totals', 'statement_totals', 'history', 'history_samples', 'waiting_readers') "
        "order by 1",
    )
    one = "select '{0}', md5(coalesce(string_agg(t::text, '|' order by t::text), '')) from {0} t"
    rows = query(database, " union all ".join(one.format(name) for (name,) in tables))
    catalog = (
        "select count(*)::text, md5(string_agg(c.oid || c.relname || c.relnamespace, '|' order by c.oid)) "
        "from pg_class c where c.relnamespace::regnamespace::text !~ '^pg_' union all "
        "select count(*)::text, md5(string_agg(p.oid || p.prosrc, '|' order by p.oid)) from pg_proc p "
        "where p.pronamespace::regnamespace::text !~ '^pg_' union all "
        "select count(*)::text, md5(string_agg(t.oid || t.tgname || t.tgenabled::text, '|' order by t.oid)) "
        "from pg_trigger t union all select count(*)::text, '' from pg_namespace where nspname !~ '^pg_'"
    )
    return [*sorted(rows), *query(database, catalog)]


def writers(database: sb.Database) -> int:
    """Return the number of transactions of the server that have written something, or begun to."""
    return int(query(database, "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")[0][0])


@pytest.fixture(scope="module")
def content_before(user_session: Session, office: sb.Database) -> list[tuple[object, ...]]:
    return instance_content(office)


@pytest.mark.parametrize(("script", "number"), CASES, ids=[script[:60] for script, _ in CASES])
def test_a_user_without_rights_changes_nothing(
    user_session: Session,
    office: sb.Database,
    values: dict[str, str],
    content_before: list[object],
    script: str,
    number: int,
) -> None:
    for name, value in values.items():
        script = script.replace("{" + name + "}", value)
    user_session.execute(f"USE {office.name}")
    wrote = writers(office)
    with pytest.raises(sb.BrokerError) as error:
        user_session.execute(script)
    assert error.value.number == number, str(error.value)
    assert user_session.execute("SELECT USER_NAME(), @@TRANCOUNT").rows in ([("Nobody", 0)], [("guest", 0)])
    assert list(Path(values["folder"]).iterdir()) == []
    assert writers(office) == wrote or instance_content(office) == content_before


def test_the_comparison_detects_a_change(
    user_session: Session, office: sb.Database, content_before: list[object]
) -> None:
    assert instance_content(office) == content_before
    wrote = writers(office)
    office.execute_tsql("UPDATE Parcels SET Place = N'x'")
    assert writers(office) != wrote
    assert instance_content(office) != content_before
    office.execute_tsql("UPDATE Parcels SET Place = N'Lund'")
    assert instance_content(office) == content_before
