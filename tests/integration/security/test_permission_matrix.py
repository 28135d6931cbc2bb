"""Permissions by principal and T-SQL statement. Each case is rolled back, because all share an instance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

import servicebroker as sb
from servicebroker.model.security.permissions import NEEDS
from servicebroker.tsql.session import Session

SETUP = """
CREATE USER Owner WITHOUT LOGIN; CREATE USER Granted WITHOUT LOGIN; CREATE USER Stranger WITHOUT LOGIN;
CREATE USER Member WITHOUT LOGIN; CREATE USER Denied WITHOUT LOGIN; CREATE USER Manager WITHOUT LOGIN;
CREATE USER Other WITHOUT LOGIN; CREATE USER ByLogin FOR LOGIN clerk; CREATE ROLE Team; CREATE ROLE Empty;
ALTER ROLE Team ADD MEMBER Member; ALTER ROLE Team ADD MEMBER Denied; ALTER ROLE db_owner ADD MEMBER Manager;
CREATE TABLE T (Id INT IDENTITY PRIMARY KEY, N INT); INSERT T (N) VALUES (1); CREATE INDEX ByN ON T (N);
CREATE TABLE Plain (N INT);
CREATE SEQUENCE Counter; CREATE TYPE Code FROM INT; CREATE SCHEMA Depot;
CREATE SYNONYM Alias FOR T;
CREATE MESSAGE TYPE Note AUTHORIZATION Owner; CREATE MESSAGE TYPE Loose AUTHORIZATION Owner;
CREATE CONTRACT Notes AUTHORIZATION Owner (Note SENT BY ANY);
CREATE CONTRACT Unused AUTHORIZATION Owner (Note SENT BY ANY);
CREATE QUEUE Inbox; CREATE QUEUE Free;
CREATE SERVICE Desk AUTHORIZATION Owner ON QUEUE Inbox (Notes); CREATE SERVICE Till AUTHORIZATION Owner ON QUEUE Free;
ALTER AUTHORIZATION ON OBJECT::Inbox TO Owner; ALTER AUTHORIZATION ON OBJECT::Free TO Owner;
CREATE ROUTE Far AUTHORIZATION Owner WITH SERVICE_NAME = 'Far', ADDRESS = 'TCP://far:4022';
CREATE BROKER PRIORITY First FOR CONVERSATION SET (PRIORITY_LEVEL = 7);
CREATE XML SCHEMA COLLECTION Forms AS N'<schema xmlns="http://www.w3.org/2001/XMLSchema"/>';
CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'long enough 1!';
CREATE CERTIFICATE Seal AUTHORIZATION Owner ENCRYPTION BY PASSWORD = 'long enough 1!' WITH SUBJECT = 'Seal';
CREATE REMOTE SERVICE BINDING ToFar AUTHORIZATION Owner TO SERVICE 'Far' WITH USER = Other;
CREATE EVENT NOTIFICATION Tell ON QUEUE Inbox FOR BROKER_QUEUE_DISABLED TO SERVICE 'Desk', 'current database';
CREATE EVENT NOTIFICATION Told ON DATABASE FOR CREATE_ASSEMBLY TO SERVICE 'Desk', 'current database'
GO
CREATE PROCEDURE Signed AS SELECT 1 AS one
GO
CREATE CERTIFICATE Stamp ENCRYPTION BY PASSWORD = 'long enough 1!' WITH SUBJECT = 'Stamp';
ADD SIGNATURE TO Signed BY CERTIFICATE Stamp WITH PASSWORD = 'long enough 1!'
GO
CREATE VIEW V AS SELECT N FROM T
GO
CREATE PROCEDURE P AS UPDATE T SET N = N + 1
GO
CREATE FUNCTION F (@n INT) RETURNS INT AS BEGIN RETURN 2 * @n END
GO
CREATE TRIGGER Bell ON T AFTER INSERT AS DECLARE @n INT
GO
CREATE PROCEDURE InModule @text NVARCHAR(MAX) WITH EXECUTE AS 'Granted' AS EXEC (@text)
GO
GRANT EXECUTE ON InModule TO Stranger;
DECLARE @h UNIQUEIDENTIFIER;
BEGIN DIALOG @h FROM SERVICE Desk TO SERVICE 'Desk' ON CONTRACT Notes WITH ENCRYPTION = OFF;
SELECT @h AS handle
"""


class Row(NamedTuple):
    """A statement, the number of its refusal, and the grants that allow it: `permission [ON securable]`.

    `owned`: Owner owns the object of the statement.
    """

    statement: str
    script: str
    number: int
    grants: tuple[str, ...]
    owned: bool = False


ROWS = [
    Row("SELECT", "SELECT * FROM T", 229, ("SELECT ON T",)),
    Row("SELECT", "SELECT * FROM V", 229, ("SELECT ON V",)),
    Row("SELECT", "SELECT * FROM Inbox", 229, ("SELECT ON Inbox",), owned=True),
    Row("SELECT", "SELECT * FROM Inbox", 229, ("SELECT ON SCHEMA::dbo",), owned=True),
    Row("SELECT", "SELECT * FROM T", 229, ("SELECT",)),
    Row("SELECT", "DECLARE @n INT IF EXISTS (SELECT * FROM T) SET @n = 1", 229, ("CONTROL ON OBJECT::dbo.T",)),
    Row("INSERT", "INSERT T (N) VALUES (2)", 229, ("INSERT ON T",)),
    Row("INSERT", "INSERT T (N) SELECT N FROM T", 229, ("INSERT ON T", "SELECT ON T")),
    Row("INSERT", "INSERT Plain OUTPUT inserted.N VALUES (2)", 229, ("INSERT ON Plain", "SELECT ON Plain")),
    Row("UPDATE", "UPDATE T SET N = 5", 229, ("UPDATE ON T",)),
    Row("UPDATE", "UPDATE T SET N = N + 1 WHERE Id = 1", 229, ("UPDATE ON T", "SELECT ON T")),
    Row("UPDATE", "UPDATE x SET N = 3 FROM T AS x", 229, ("UPDATE ON SCHEMA::dbo", "SELECT ON SCHEMA::dbo")),
    Row("DELETE", "DELETE FROM T", 229, ("DELETE ON T",)),
    Row("DELETE", "DELETE FROM T WHERE Id = 1", 229, ("DELETE", "SELECT")),
    Row(
        "INSERT",
        "MERGE T USING (SELECT 9 AS n) s ON T.Id = s.n WHEN MATCHED THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (N) VALUES (s.n);",
        229,
        ("INSERT ON T", "DELETE ON T"),
    ),
    Row("EXECUTE", "EXEC P", 229, ("EXECUTE ON P",)),
    Row("EXECUTE", "DECLARE @n INT SET @n = dbo.F(2)", 229, ("EXECUTE ON F",)),
    Row("EXECUTE", "EXEC dbo.P", 229, ("EXECUTE",)),
    Row("CREATE TABLE", "CREATE TABLE New (n INT)", 262, ("CREATE TABLE", "ALTER ON SCHEMA::dbo")),
    Row("CREATE TABLE", "SELECT 1 AS n INTO New", 262, ("CREATE TABLE", "ALTER ON SCHEMA::dbo")),
    Row("CREATE TABLE", "CREATE TABLE Depot.New (n INT)", 262, ("CREATE TABLE", "ALTER ON SCHEMA::Depot")),
    Row(
        "REFERENCES",
        "CREATE TABLE New (n INT REFERENCES T (Id))",
        262,
        ("CREATE TABLE", "ALTER ON SCHEMA::dbo", "REFERENCES ON T"),
    ),
    Row("REFERENCES", "CREATE TABLE #New (n INT DEFAULT (dbo.F(2)))", 229, ("REFERENCES ON F",)),
    Row("REFERENCES", "CREATE TABLE #New (n INT DEFAULT (NEXT VALUE FOR Counter))", 229, ("REFERENCES ON Counter",)),
    Row("REFERENCES", "DECLARE @new TABLE (n INT CHECK (dbo.F(n) > 2))", 229, ("REFERENCES ON F",)),
    Row("CREATE VIEW", "EXEC ('CREATE VIEW New AS SELECT 1 AS n')", 262, ("CREATE VIEW", "ALTER ON SCHEMA::dbo")),
    Row("CREATE PROCEDURE", "EXEC ('CREATE PROCEDURE New AS RETURN')", 262, ("CREATE PROCEDURE", "ALTER ANY SCHEMA")),
    Row(
        "CREATE FUNCTION",
        "EXEC ('CREATE FUNCTION New () RETURNS INT AS BEGIN RETURN 1 END')",
        262,
        ("CREATE FUNCTION", "ALTER ON SCHEMA::dbo"),
    ),
    Row("CREATE TYPE", "CREATE TYPE New FROM INT", 262, ("CREATE TYPE", "ALTER ON SCHEMA::dbo")),
    Row("CREATE SYNONYM", "CREATE SYNONYM New FOR T", 262, ("CREATE SYNONYM", "ALTER ON SCHEMA::dbo")),
    Row("SELECT", "SELECT * FROM Alias", 229, ("SELECT ON T",)),
    Row("ALTER SEQUENCE", "ALTER SEQUENCE Counter RESTART", 3701, ("ALTER ON Counter",)),
    Row("UPDATE", "SELECT NEXT VALUE FOR Counter", 229, ("UPDATE ON Counter",)),
    Row("CREATE SEQUENCE", "CREATE SEQUENCE New", 15247, ("ALTER ON SCHEMA::dbo",)),
    Row("CREATE SCHEMA", "CREATE SCHEMA New", 15247, ("CREATE SCHEMA",)),
    Row(
        "ALTER SCHEMA",
        "ALTER SCHEMA Depot TRANSFER dbo.Plain",
        15151,
        ("ALTER ON SCHEMA::Depot", "CONTROL ON Plain"),
    ),
    Row("CREATE INDEX", "CREATE INDEX New ON T (Id)", 1088, ("ALTER ON T",)),
    Row("CREATE TRIGGER", "EXEC ('CREATE TRIGGER New ON T AFTER DELETE AS RETURN')", 2104, ("ALTER ON T",)),
    Row("ALTER TABLE", "ALTER TABLE T ADD M INT", 1088, ("ALTER ON T",)),
    Row("TRUNCATE TABLE", "TRUNCATE TABLE T", 1088, ("ALTER ON T",)),
    Row("SET IDENTITY_INSERT", "SET IDENTITY_INSERT T ON SET IDENTITY_INSERT T OFF", 1088, ("ALTER ON T",)),
    Row("ENABLE TRIGGER", "DISABLE TRIGGER Bell ON T", 1088, ("ALTER ON T",)),
    Row("ALTER VIEW", "EXEC ('ALTER VIEW V AS SELECT 2 AS N')", 3701, ("ALTER ON V",)),
    Row("ALTER VIEW", "EXEC ('CREATE OR ALTER VIEW V AS SELECT 2 AS N')", 3701, ("ALTER ON V",)),
    Row("ALTER PROCEDURE", "EXEC ('ALTER PROCEDURE P AS RETURN')", 3701, ("ALTER ON P",)),
    Row(
        "ALTER FUNCTION", "EXEC ('ALTER FUNCTION F (@n INT) RETURNS INT AS BEGIN RETURN 1 END')", 3701, ("ALTER ON F",)
    ),
    Row(
        "ALTER TRIGGER",
        "EXEC ('ALTER TRIGGER Bell ON T AFTER INSERT AS RETURN')",
        2104,
        ("ALTER ON T", "ALTER ON Bell"),
    ),
    Row("DROP TABLE", "DROP TABLE Plain", 3701, ("CONTROL ON Plain",)),
    Row("DROP VIEW", "DROP VIEW V", 3701, ("CONTROL ON V",)),
    Row("DROP SEQUENCE", "DROP SEQUENCE Counter", 3701, ("ALTER ON SCHEMA::dbo",)),
    Row("DROP PROCEDURE", "DROP PROCEDURE P", 3701, ("CONTROL ON P",)),
    Row("DROP FUNCTION", "DROP FUNCTION F", 3701, ("ALTER ANY SCHEMA",)),
    Row("DROP SYNONYM", "DROP SYNONYM Alias", 3701, ("CONTROL ON Alias",)),
    Row("DROP INDEX", "DROP INDEX ByN ON T", 3701, ("ALTER ON T",)),
    Row("DROP TRIGGER", "DROP TRIGGER Bell", 3701, ("ALTER ON Bell",)),
    Row("DROP TYPE", "DROP TYPE Code", 218, ("ALTER ON SCHEMA::dbo",)),
    Row("DROP SCHEMA", "DROP SCHEMA Depot", 15151, ("CONTROL ON SCHEMA::Depot",)),
    Row("CREATE MESSAGE TYPE", "CREATE MESSAGE TYPE New", 262, ("CREATE MESSAGE TYPE",)),
    Row(
        "ALTER MESSAGE TYPE",
        "ALTER MESSAGE TYPE Note VALIDATION = EMPTY",
        15151,
        ("ALTER ON MESSAGE TYPE::Note",),
        True,
    ),
    Row("DROP MESSAGE TYPE", "DROP MESSAGE TYPE Loose", 15151, ("CONTROL ON MESSAGE TYPE::Loose",), True),
    Row(
        "CREATE CONTRACT",
        "CREATE CONTRACT New (Note SENT BY ANY)",
        262,
        ("CREATE CONTRACT", "REFERENCES ON MESSAGE TYPE::Note"),
    ),
    Row("DROP CONTRACT", "DROP CONTRACT Unused", 15151, ("CONTROL ON CONTRACT::Unused",), True),
    Row("CREATE QUEUE", "CREATE QUEUE New", 262, ("CREATE QUEUE",)),
    Row("ALTER QUEUE", "ALTER QUEUE Free WITH RETENTION = ON", 15151, ("ALTER ON Free",), True),
    Row("ALTER QUEUE", "ALTER QUEUE Free WITH STATUS = ON", 15151, ("ALTER ON SCHEMA::dbo",), True),
    Row(
        "ALTER QUEUE",
        "CREATE EVENT NOTIFICATION New ON QUEUE Free FOR QUEUE_ACTIVATION TO SERVICE 'Desk', 'current database'",
        15151,
        ("ALTER ON Free",),
        True,
    ),
    Row("ALTER QUEUE", "DROP EVENT NOTIFICATION Tell ON QUEUE Inbox", 15151, ("ALTER ON Inbox",), True),
    Row(
        "EXECUTE AS USER",
        "ALTER QUEUE Free WITH ACTIVATION (PROCEDURE_NAME = P, MAX_QUEUE_READERS = 1, EXECUTE AS 'Other')",
        15151,
        ("ALTER ON Free", "IMPERSONATE ON USER::Other"),
    ),
    Row(
        "DROP QUEUE", "DROP SERVICE Till DROP QUEUE Free", 15151, ("CONTROL ON SERVICE::Till", "CONTROL ON Free"), True
    ),
    Row(
        "CREATE SERVICE",
        "CREATE SERVICE New ON QUEUE Free (Notes)",
        262,
        ("CREATE SERVICE", "REFERENCES ON Free", "REFERENCES ON CONTRACT::Notes"),
    ),
    Row(
        "ALTER SERVICE",
        "ALTER SERVICE Till (ADD CONTRACT Notes)",
        15151,
        ("ALTER ON SERVICE::Till", "REFERENCES ON CONTRACT::Notes"),
        True,
    ),
    Row("DROP SERVICE", "DROP SERVICE Till", 15151, ("CONTROL ON SERVICE::Till",), True),
    Row("CREATE ROUTE", "CREATE ROUTE New WITH ADDRESS = 'LOCAL'", 262, ("CREATE ROUTE",)),
    Row("ALTER ROUTE", "ALTER ROUTE Far WITH ADDRESS = 'LOCAL'", 15151, ("ALTER ON ROUTE::Far",), True),
    Row("DROP ROUTE", "DROP ROUTE Far", 15151, ("CONTROL ON ROUTE::Far",), True),
    Row(
        "CREATE BROKER PRIORITY",
        "CREATE BROKER PRIORITY New FOR CONVERSATION SET (PRIORITY_LEVEL = 2, LOCAL_SERVICE_NAME = Desk)",
        15247,
        ("ALTER",),
    ),
    Row(
        "ALTER BROKER PRIORITY",
        "ALTER BROKER PRIORITY First FOR CONVERSATION SET (PRIORITY_LEVEL = 2)",
        15247,
        ("ALTER",),
    ),
    Row("DROP BROKER PRIORITY", "DROP BROKER PRIORITY First", 15247, ("ALTER",)),
    Row(
        "CREATE XML SCHEMA COLLECTION",
        "CREATE XML SCHEMA COLLECTION New AS N'<schema xmlns=\"http://www.w3.org/2001/XMLSchema\"/>'",
        262,
        ("CREATE XML SCHEMA COLLECTION",),
    ),
    Row(
        "ALTER XML SCHEMA COLLECTION",
        "ALTER XML SCHEMA COLLECTION Forms ADD N'<schema xmlns=\"http://www.w3.org/2001/XMLSchema\"/>'",
        15151,
        ("ALTER ANY SCHEMA",),
    ),
    Row("DROP XML SCHEMA COLLECTION", "DROP XML SCHEMA COLLECTION Forms", 15151, ("ALTER ANY SCHEMA",)),
    Row(
        "FIND XML SCHEMA COLLECTION",
        "CREATE MESSAGE TYPE New VALIDATION = VALID_XML WITH SCHEMA COLLECTION Forms",
        262,
        ("CREATE MESSAGE TYPE", "REFERENCES"),
    ),
    Row(
        "CREATE CERTIFICATE",
        "CREATE CERTIFICATE New ENCRYPTION BY PASSWORD = 'long enough 1!' WITH SUBJECT = 'New'",
        262,
        ("CREATE CERTIFICATE",),
    ),
    Row(
        "ALTER CERTIFICATE",
        "ALTER CERTIFICATE Seal WITH ACTIVE FOR BEGIN_DIALOG = OFF",
        15151,
        ("ALTER ON CERTIFICATE::Seal",),
        True,
    ),
    Row("DROP CERTIFICATE", "DROP CERTIFICATE Seal", 15151, ("CONTROL ON CERTIFICATE::Seal",), True),
    Row(
        "ADD SIGNATURE",
        "ADD SIGNATURE TO P BY CERTIFICATE Seal WITH PASSWORD = 'long enough 1!'",
        15151,
        ("ALTER ON P", "CONTROL ON CERTIFICATE::Seal"),
    ),
    Row("DROP SIGNATURE", "DROP SIGNATURE FROM Signed BY CERTIFICATE Stamp", 15151, ("ALTER ON Signed",)),
    Row(
        "CREATE EVENT NOTIFICATION ON DATABASE",
        "CREATE EVENT NOTIFICATION New ON DATABASE FOR CREATE_ASSEMBLY TO SERVICE 'Desk', 'current database'",
        262,
        ("CREATE DATABASE DDL EVENT NOTIFICATION",),
    ),
    Row(
        "DROP EVENT NOTIFICATION ON DATABASE",
        "DROP EVENT NOTIFICATION Told ON DATABASE",
        15151,
        ("ALTER ANY DATABASE EVENT NOTIFICATION",),
    ),
    Row("MASTER KEY", "ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY", 15247, ("CONTROL",)),
    Row(
        "CREATE REMOTE SERVICE BINDING",
        "CREATE REMOTE SERVICE BINDING New TO SERVICE 'New' WITH USER = Other",
        262,
        ("CREATE REMOTE SERVICE BINDING", "IMPERSONATE ON USER::Other"),
    ),
    Row(
        "ALTER REMOTE SERVICE BINDING",
        "ALTER REMOTE SERVICE BINDING ToFar WITH ANONYMOUS = ON",
        15151,
        ("ALTER ON REMOTE SERVICE BINDING::ToFar",),
        True,
    ),
    Row(
        "DROP REMOTE SERVICE BINDING",
        "DROP REMOTE SERVICE BINDING ToFar",
        15151,
        ("CONTROL ON REMOTE SERVICE BINDING::ToFar",),
        True,
    ),
    Row("CREATE USER", "CREATE USER New WITHOUT LOGIN", 15247, ("ALTER ANY USER",)),
    Row("ALTER USER", "ALTER USER Other WITH DEFAULT_SCHEMA = dbo", 15151, ("ALTER ON USER::Other",)),
    Row("DROP USER", "DROP USER ByLogin", 15151, ("ALTER ANY USER",)),
    Row("CREATE ROLE", "CREATE ROLE New", 15247, ("CREATE ROLE",)),
    Row("ALTER ROLE", "ALTER ROLE Team ADD MEMBER Other", 15151, ("ALTER ANY ROLE",)),
    Row("ALTER FIXED ROLE", "ALTER ROLE db_datareader ADD MEMBER Other", 15151, ("CONTROL",)),
    Row("DROP ROLE", "DROP ROLE Empty", 15151, ("ALTER ANY ROLE",)),
    Row(
        "ALTER AUTHORIZATION",
        "ALTER AUTHORIZATION ON SERVICE::Till TO Other",
        15151,
        ("TAKE OWNERSHIP ON SERVICE::Till", "IMPERSONATE ON USER::Other"),
    ),
    Row("ALTER AUTHORIZATION ON DATABASE", "ALTER AUTHORIZATION ON SCHEMA::dbo TO Other", 15151, ("CONTROL",)),
    Row(
        "AUTHORIZATION",
        "CREATE MESSAGE TYPE New AUTHORIZATION Other",
        262,
        ("CREATE MESSAGE TYPE", "IMPERSONATE ON USER::Other"),
    ),
    Row("AUTHORIZATION OF A ROLE", "CREATE MESSAGE TYPE New AUTHORIZATION Empty", 262, ("CONTROL",)),
    Row("EXECUTE AS USER", "EXECUTE AS USER = 'Other' REVERT", 15517, ("IMPERSONATE ON USER::Other",)),
    Row("EXECUTE AS USER", "EXEC ('RETURN') AS USER = 'Other'", 15517, ("IMPERSONATE ON USER::Other",)),
    Row(
        "WITH EXECUTE AS",
        "EXEC ('CREATE PROCEDURE New WITH EXECUTE AS ''Other'' AS RETURN')",
        262,
        ("CREATE PROCEDURE", "ALTER ON SCHEMA::dbo", "IMPERSONATE ON USER::Other"),
    ),
    Row(
        "WITH EXECUTE AS",
        "EXEC ('CREATE PROCEDURE New WITH EXECUTE AS OWNER AS RETURN')",
        262,
        ("CREATE PROCEDURE", "ALTER ON SCHEMA::dbo", "IMPERSONATE ON USER::dbo"),
    ),
    Row(
        "BEGIN DIALOG",
        "DECLARE @x UNIQUEIDENTIFIER BEGIN DIALOG @x FROM SERVICE Desk TO SERVICE 'Desk' ON CONTRACT Notes",
        8494,
        ("RECEIVE ON Inbox", "REFERENCES ON CONTRACT::Notes"),
        True,
    ),
    Row("SEND", "SEND ON CONVERSATION '{handle}' MESSAGE TYPE Note (0x01)", 8494, ("RECEIVE ON Inbox",), True),
    Row("END CONVERSATION", "END CONVERSATION '{handle}'", 8494, ("RECEIVE ON Inbox",), True),
    Row(
        "MOVE CONVERSATION",
        "DECLARE @g UNIQUEIDENTIFIER = (SELECT conversation_group_id FROM sys.conversation_endpoints "
        "WHERE conversation_handle = '{handle}') MOVE CONVERSATION '{handle}' TO @g",
        8494,
        ("RECEIVE ON Inbox",),
        True,
    ),
    Row(
        "BEGIN CONVERSATION TIMER",
        "BEGIN CONVERSATION TIMER ('{handle}') TIMEOUT = 60",
        8494,
        ("SEND ON SERVICE::Desk",),
        True,
    ),
    Row("RECEIVE", "RECEIVE * FROM Inbox", 229, ("RECEIVE ON Inbox",), True),
    Row(
        "GET CONVERSATION GROUP",
        "DECLARE @g UNIQUEIDENTIFIER; GET CONVERSATION GROUP @g FROM Inbox",
        229,
        ("RECEIVE ON Inbox",),
        True,
    ),
]
# instance-level, in transactions of their own, or not statements by themselves: tested elsewhere
TESTED_ELSEWHERE = {
    "ARRIVE", "AUTHENTICATE", "CONNECT", "END ENDED CONVERSATION WITH CLEANUP", "BACKUP CERTIFICATE",
    "ALTER DATABASE", "DROP DATABASE",
    *(statement for statement, needs in NEEDS.items() if any(need.kind.name in ("SERVER", "LOGIN") for need in needs)),
}  # fmt: skip


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    instance.create_login("clerk")
    return instance.database("Shop", create=True)


@pytest.fixture(scope="module")
def handle(shop: sb.Database) -> str:
    return str(shop.execute_tsql(SETUP).rows[0][0])


@pytest.fixture(scope="module")
def session(shop: sb.Database, handle: str) -> Iterator[Session]:
    with Session(shop) as session:
        yield session


def outcome(session: Session, who: str, script: str, *before: str) -> int:
    """Run the script and roll back. Return the number of the refusal, or 0."""
    session.execute("BEGIN TRANSACTION")
    try:
        for statement in before:
            session.execute(statement)
        session.execute(f"EXECUTE AS {who}")
        session.execute(script)
    except sb.BrokerError as error:
        return error.number
    finally:
        session.execute("REVERT IF @@TRANCOUNT > 0 ROLLBACK")
    return 0


def test_every_statement_has_its_row() -> None:
    assert {row.statement for row in ROWS} == set(NEEDS) - TESTED_ELSEWHERE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.script[:70])
@pytest.mark.sampled(60)
def test_each_statement_needs_its_permission(session: Session, handle: str, row: Row) -> None:
    script = row.script.replace("{handle}", handle)
    grants = [f"GRANT {grant} TO {{}}" for grant in row.grants]

    def grants_for(principal: str) -> list[str]:
        return [grant.format(principal) for grant in grants]

    in_module = "EXEC InModule N'" + script.replace("'", "''") + "'"
    found = {
        "dbo": outcome(session, "USER = 'dbo'", script),
        "sa": outcome(session, "LOGIN = 'sa'", script),
        "db_owner": outcome(session, "USER = 'Manager'", script),
        "owner": outcome(session, "USER = 'Owner'", script) if row.owned else 0,
        "granted": outcome(session, "USER = 'Granted'", script, *grants_for("Granted")),
        "by role": outcome(session, "USER = 'Member'", script, *grants_for("Team")),
        "by login": outcome(session, "LOGIN = 'clerk'", script, *grants_for("ByLogin")),
        "in a module": outcome(session, "USER = 'Stranger'", in_module, *grants_for("Granted")),
        "stranger": outcome(session, "USER = 'Stranger'", script, *grants_for("Granted")),
        "in a module without": outcome(session, "USER = 'Stranger'", in_module),
    }
    assert {who: number for who, number in found.items() if number} == {
        "stranger": row.number,
        "in a module without": row.number,
    }
    for number, grant in enumerate(row.grants):
        denied = [*grants_for("Team"), f"DENY {grant} TO Denied"]
        assert outcome(session, "USER = 'Denied'", script, *denied) != 0, f"denied {grant}"
        without = [each for index, each in enumerate(grants_for("Granted")) if index != number]
        assert outcome(session, "USER = 'Granted'", script, *without) != 0, f"without {grant}"
