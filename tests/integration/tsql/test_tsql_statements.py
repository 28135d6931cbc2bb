"""Statements of T-SQL that concern whole databases: event notifications, READ_ONLY, master keys, signed modules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import servicebroker as sb
import tsql_support
from servicebroker.tsql.check import Row, Verdict, check
from support import refused

POST = "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"


def rows_and_errors(database: sb.Database, script: str) -> list[Any]:
    """Rows, and numbers of errors."""
    return [one for one in tsql_support.output_of(database, script) if not isinstance(one, str)]


# ---------------------------------------------------------------- event notifications


@pytest.fixture
def watched_database(database: sb.Database) -> Iterator[sb.Database]:
    database.create_queue("Told")
    database.create_service("Watcher", "Told", [POST])
    yield database
    with database.instance.connection() as connection:
        connection.execute("delete from servicebroker.event_notifications")


def events(database: sb.Database) -> list[sb.EventInstance]:
    found = []
    while messages := database.receive("Told"):
        found += [sb.read_event(message.message_body) for message in messages]
    return found


def notify(name: str, scope: str, what: str) -> str:
    return f"CREATE EVENT NOTIFICATION {name} ON {scope} FOR {what} TO SERVICE 'Watcher', 'current database'\n"


@pytest.mark.feature(33)
def test_a_database_tells_of_its_ddl(watched_database: sb.Database) -> None:
    script = notify("n", "DATABASE", "DDL_DATABASE_LEVEL_EVENTS") + (
        "CREATE TABLE dbo.Things (a INT)\nCREATE UNIQUE INDEX ix ON Things (a)\nGO\n"
        "CREATE PROCEDURE dbo.P AS SELECT 1\nGO\nALTER PROCEDURE dbo.P AS SELECT 2\nGO\n"
        "DROP PROCEDURE dbo.P; DROP PROCEDURE IF EXISTS dbo.P; DROP USER IF EXISTS Nobody\n"
        "CREATE USER Ann WITHOUT LOGIN; GRANT SEND ON SERVICE::Watcher TO Ann; ALTER ROLE db_owner ADD MEMBER Ann\n"
        "CREATE TABLE #t (a INT); CREATE MESSAGE TYPE [//é<x>]"
    )
    assert rows_and_errors(watched_database, script) == []
    events_found = events(watched_database)
    me = query(watched_database, "SELECT SUSER_SNAME(), USER_NAME()")[0]
    assert [(one.event_type, one.schema_name, one.object_name, one.object_type) for one in events_found] == [
        ("CREATE_EVENT_NOTIFICATION", "", "n", "EVENT NOTIFICATION"),
        ("CREATE_TABLE", "dbo", "Things", "TABLE"),
        ("CREATE_INDEX", "dbo", "ix", "INDEX"),
        ("CREATE_PROCEDURE", "dbo", "P", "PROCEDURE"),
        ("ALTER_PROCEDURE", "dbo", "P", "PROCEDURE"),
        ("DROP_PROCEDURE", "dbo", "P", "PROCEDURE"),
        ("CREATE_USER", "", "Ann", "SQL USER"),
        ("GRANT_DATABASE", "", "Watcher", "SERVICE"),
        ("ADD_ROLE_MEMBER", "", "Ann", "SQL USER"),
        ("CREATE_MESSAGE_TYPE", "", "//é<x>", "MESSAGE TYPE"),
    ]
    assert {(one.login_name, one.user_name, one.database_name) for one in events_found} == {
        (*me, watched_database.name)
    }
    assert events_found[1].command == "CREATE TABLE dbo.Things (a INT)"
    assert events_found[4].command == "ALTER PROCEDURE dbo.P AS SELECT 2"
    assert events_found[5].command.startswith("DROP PROCEDURE dbo.P")


def query(database: sb.Database, text: str) -> list[tuple[Any, ...]]:
    return database.execute_tsql(text).rows


def test_rolled_back_ddl_sends_no_event(watched_database: sb.Database) -> None:
    rows_and_errors(watched_database, notify("n", "DATABASE", "CREATE_QUEUE"))
    rows_and_errors(
        watched_database, "BEGIN TRAN; CREATE QUEUE A; ROLLBACK; BEGIN TRAN; CREATE QUEUE B; COMMIT; CREATE QUEUE B"
    )
    assert [event.object_name for event in events(watched_database)] == ["B"]


def test_a_server_notification_covers_databases_and_server_objects(watched_database: sb.Database) -> None:
    script = notify("n", "SERVER", "DDL_SERVER_LEVEL_EVENTS, CREATE_QUEUE") + (
        "CREATE DATABASE Elsewhere\nGO\nUSE Elsewhere\nGO\nCREATE QUEUE Q\nGO\nUSE master\nGO\n"
        "CREATE LOGIN Told_login WITH PASSWORD = 'x'; DROP LOGIN Told_login; DROP DATABASE Elsewhere"
    )
    assert rows_and_errors(watched_database, script) == []
    assert [(event.event_type, event.database_name, event.object_name) for event in events(watched_database)] == [
        ("CREATE_DATABASE", "Elsewhere", ""),
        ("CREATE_QUEUE", "Elsewhere", "Q"),
        ("CREATE_LOGIN", "", "Told_login"),
        ("DROP_LOGIN", "", "Told_login"),
        ("DROP_DATABASE", "Elsewhere", ""),
    ]


def test_names_are_unique_in_their_scope(watched_database: sb.Database) -> None:
    scopes = ("QUEUE Told", "DATABASE", "SERVER")
    for scope in scopes:
        assert rows_and_errors(watched_database, notify("Same", scope, "BROKER_QUEUE_DISABLED") * 2) == [2714]
    rows = query(
        watched_database, "SELECT name, parent_class, parent_class_desc FROM sys.event_notifications ORDER BY 2"
    )
    assert rows == [("Same", 0, "DATABASE"), ("Same", 1, "OBJECT_OR_COLUMN")]
    rows = query(
        watched_database, "SELECT name, parent_class, parent_class_desc, parent_id FROM sys.server_event_notifications"
    )
    assert rows == [("Same", 100, "SERVER", 0)]
    for scope in scopes:
        assert rows_and_errors(
            watched_database, f"DROP EVENT NOTIFICATION SAME ON {scope}" + f" DROP EVENT NOTIFICATION same ON {scope}"
        ) == [15151]
    assert query(watched_database, "SELECT name FROM sys.event_notifications") == []


def test_a_queue_that_was_switched_off_is_told_of_everywhere(watched_database: sb.Database) -> None:
    watched_database.create_queue("Poisoned")
    watched_database.create_service("S", "Poisoned", ["DEFAULT"])
    rows_and_errors(
        watched_database,
        notify("d", "DATABASE", "BROKER_QUEUE_DISABLED") + notify("s", "SERVER", "BROKER_QUEUE_DISABLED"),
    )
    watched_database.send(watched_database.begin_dialog("S", "S", encryption=False), body=b"x")
    for _ in range(5):
        rows_and_errors(
            watched_database,
            "BEGIN TRAN; RECEIVE TOP (0) * FROM Told; DECLARE @x XML; RECEIVE @x = NULL FROM Poisoned; ROLLBACK",
        )
    events_found = events(watched_database)
    assert [(one.event_type, one.object_name) for one in events_found] == [("BROKER_QUEUE_DISABLED", "Poisoned")] * 2


def test_an_event_that_does_not_fit_is_refused(watched_database: sb.Database) -> None:
    assert rows_and_errors(watched_database, notify("n", "DATABASE", "NO_EVENT")) == [1084]
    assert rows_and_errors(watched_database, notify("n", "DATABASE", "CREATE_LOGIN")) == [1098]
    assert rows_and_errors(watched_database, notify("n", "DATABASE", "QUEUE_ACTIVATION")) == [1098]
    assert rows_and_errors(watched_database, notify("n", "QUEUE Told", "CREATE_TABLE")) == [1098]
    traced = notify("n", "SERVER", "DEADLOCK_GRAPH, AUDIT_LOGIN")
    assert rows_and_errors(watched_database, traced) == []
    (finding,) = check(traced)
    assert (finding.verdict, finding.row) == (Verdict.DIFFERS, Row.TRACED)


def test_event_notifications_need_permission(watched_database: sb.Database) -> None:
    rows_and_errors(watched_database, "CREATE USER Ann WITHOUT LOGIN")
    as_ann = "EXECUTE AS USER = 'Ann'\n"
    assert rows_and_errors(watched_database, as_ann + notify("n", "DATABASE", "CREATE_TABLE")) == [262]
    assert rows_and_errors(watched_database, as_ann + notify("n", "SERVER", "CREATE_TABLE")) == [262]
    rows_and_errors(watched_database, "GRANT CREATE DATABASE DDL EVENT NOTIFICATION TO Ann")
    assert rows_and_errors(watched_database, as_ann + notify("n", "DATABASE", "CREATE_TABLE")) == []
    assert rows_and_errors(watched_database, as_ann + "DROP EVENT NOTIFICATION n ON DATABASE") == [15151]


def test_event_notifications_are_dropped_with_their_database(watched_database: sb.Database) -> None:
    instance = watched_database.instance
    other_database = instance.database("Gone", create=True)
    for on_server in (False, True):
        other_database.create_event_notification("n", events="CREATE_TABLE", to_service="X", on_server=on_server)
    instance.drop_database("Gone")
    assert query(watched_database, "SELECT name FROM sys.server_event_notifications") == []


# ---------------------------------------------------------------- READ_ONLY

_STOCKED = """
CREATE TABLE T (a INT); INSERT T VALUES (1); CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q ([DEFAULT])
DECLARE @h UNIQUEIDENTIFIER
BEGIN DIALOG @h FROM SERVICE S TO SERVICE 'S' WITH ENCRYPTION = OFF; SEND ON CONVERSATION @h (0x01)
"""


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT T VALUES (2)",
        "UPDATE T SET a = 2 WHERE 1 = 0",
        "CREATE TABLE T2 (a INT)",
        "SELECT a INTO T3 FROM T",
        "DROP TABLE T",
        "ALTER TABLE T ADD b INT",
        "CREATE QUEUE Q2",
        "ALTER QUEUE Q WITH STATUS = OFF",
        "DROP SERVICE S",
        "CREATE USER Ann WITHOUT LOGIN",
        "EXEC ('CREATE PROCEDURE P AS SELECT 1')",
        "RECEIVE * FROM Q",
        "DECLARE @h UNIQUEIDENTIFIER BEGIN DIALOG @h FROM SERVICE S TO SERVICE 'S' WITH ENCRYPTION = OFF",
        "DECLARE @h UNIQUEIDENTIFIER = (SELECT TOP 1 conversation_handle FROM Q) END CONVERSATION @h",
        "ALTER DATABASE CURRENT SET DISABLE_BROKER",
    ],
)
def test_a_read_only_database_refuses_changes(read_only: sb.Database, statement: str) -> None:
    follows = [5069] if statement.startswith("ALTER DATABASE") else []
    assert rows_and_errors(read_only, statement) == [3906, *follows]


@pytest.fixture(scope="module")
def read_only(instance: sb.Instance) -> sb.Database:
    database = instance.database("Sealed", create=True)
    assert (
        rows_and_errors(database, _STOCKED + "\nGO\nALTER DATABASE CURRENT SET READ_ONLY WITH ROLLBACK IMMEDIATE") == []
    )
    return database


def test_a_read_only_database_is_read(read_only: sb.Database) -> None:
    script = "SELECT a FROM T; SELECT a INTO #t FROM T; UPDATE #t SET a = 5; SELECT a FROM #t; SELECT COUNT(*) FROM Q"
    assert rows_and_errors(read_only, script) == [[(1,)], [(5,)], [(1,)]]
    flags = "SELECT is_read_only, is_broker_enabled FROM sys.databases WHERE name = 'Sealed'"
    assert query(read_only, flags) == [(1, 1)]


def test_a_read_only_database_refuses_python_and_postgresql(read_only: sb.Database, instance: sb.Instance) -> None:
    with refused(3906):
        read_only.begin_dialog("S", "S")
    with refused(3906):
        read_only.receive("Q")
    with instance.connection() as connection, pytest.raises(psycopg.Error, match="3906"):
        connection.execute("delete from sealed_dbo.t")


def test_read_only_and_back(instance: sb.Instance) -> None:
    """Messages from others wait; definitions elsewhere and the background go on; then all is as before."""
    database, other = (instance.database(name, create=True) for name in ("Shut", "Sender"))
    rows_and_errors(database, _STOCKED.replace("SERVICE S", "SERVICE Shut").replace("'S'", "'Shut'"))
    rows_and_errors(other, "CREATE QUEUE O; CREATE SERVICE O ON QUEUE O")
    handle = database.begin_dialog("Shut", "Shut", encryption=False, lifetime=1)
    database.alter(read_only=True, rollback_after=0)
    rows_and_errors(
        other,
        "DECLARE @h UNIQUEIDENTIFIER BEGIN DIALOG @h FROM SERVICE O TO SERVICE 'Shut' WITH ENCRYPTION = OFF;"
        "SEND ON CONVERSATION @h (0x02)",
    )
    assert rows_and_errors(other, "CREATE QUEUE More; DROP QUEUE More; GRANT CONNECT TO guest") == []
    assert query(other, "SELECT COUNT(*) FROM sys.transmission_queue") == [(1,)]
    assert instance.check().findings == []
    database.alter(read_only=False)
    assert query(other, "SELECT COUNT(*) FROM sys.transmission_queue") == [(0,)]
    assert rows_and_errors(database, "INSERT T VALUES (7)") == []
    database.end_conversation(handle)
    database.alter(read_only=True)
    instance.drop_database("Shut")
    with instance.connection() as connection:
        left = connection.execute(
            "select tgname from pg_trigger where starts_with(tgname, %s)", (f"read_only_{database.database_id}",)
        ).fetchall()
    assert left == []


# ---------------------------------------------------------------- master keys


def test_a_master_key_is_regenerated(database: sb.Database, tmp_path: Path) -> None:
    """A private key that it keeps is there afterwards; passwords come and go."""
    script = f"""
    CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'First#Password1'
    CREATE CERTIFICATE C WITH SUBJECT = 'c'
    ALTER MASTER KEY REGENERATE WITH ENCRYPTION BY PASSWORD = 'Second#Password1'
    BACKUP CERTIFICATE C TO FILE = '{tmp_path}/c'
        WITH PRIVATE KEY (FILE = '{tmp_path}/k', ENCRYPTION BY PASSWORD = 'File#Password1')
    ALTER MASTER KEY ADD ENCRYPTION BY PASSWORD = 'Third#Password1'
    GO
    OPEN MASTER KEY DECRYPTION BY PASSWORD = 'Third#Password1'
    ALTER MASTER KEY DROP ENCRYPTION BY PASSWORD = 'Third#Password1'
    GO
    OPEN MASTER KEY DECRYPTION BY PASSWORD = 'First#Password1'
    GO
    OPEN MASTER KEY DECRYPTION BY PASSWORD = 'Third#Password1'
    GO
    ALTER MASTER KEY DROP ENCRYPTION BY PASSWORD = 'Second#Password1'
    GO
    OPEN MASTER KEY DECRYPTION BY PASSWORD = 'Second#Password1'
    """
    assert rows_and_errors(database, script) == [15313, 15313, 15558]


def test_force_gives_up_keys_that_cannot_be_decrypted(database: sb.Database) -> None:
    rows_and_errors(
        database,
        "CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'First#Password1' CREATE CERTIFICATE C WITH SUBJECT = 'c' "
        "ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY",
    )
    renew = "ALTER MASTER KEY {}REGENERATE WITH ENCRYPTION BY PASSWORD = 'Other#Password1'"
    assert rows_and_errors(database, renew.format("")) == [15329]
    assert query(database, "SELECT pvt_key_encryption_type FROM sys.certificates") == [("MK",)]
    assert rows_and_errors(database, renew.format("FORCE ")) == []
    assert query(database, "SELECT pvt_key_encryption_type FROM sys.certificates") == [("NA",)]


# ---------------------------------------------------------------- signatures

_SIGNED = """
CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'Strong#Password1'
CREATE CERTIFICATE Signer ENCRYPTION BY PASSWORD = 'Signer#Password1' WITH SUBJECT = 'signs'
CREATE USER Low WITHOUT LOGIN
CREATE TABLE Secret (a INT); INSERT Secret VALUES (1)
GO
CREATE PROCEDURE Dynamic AS EXEC ('SELECT a FROM Secret')
GO
CREATE PROCEDURE Outer1 AS EXEC Dynamic
GO
GRANT EXECUTE ON Dynamic TO Low; GRANT EXECUTE ON Outer1 TO Low
CREATE USER SignerUser FROM CERTIFICATE Signer
GRANT SELECT ON Secret TO SignerUser
"""
_AS_LOW = "EXECUTE AS USER = 'Low'\nEXEC {}\n"
_SIGN = "ADD SIGNATURE TO {} BY CERTIFICATE Signer WITH PASSWORD = 'Signer#Password1'\n"


def test_a_signed_module_has_the_permissions_of_the_signers_user(database: sb.Database) -> None:
    assert rows_and_errors(database, _SIGNED) == []
    assert rows_and_errors(database, _AS_LOW.format("Dynamic")) == [229]
    assert rows_and_errors(database, _SIGN.format("OBJECT::dbo.Dynamic")) == []
    assert rows_and_errors(database, _AS_LOW.format("Dynamic")) == [[(1,)]]
    assert rows_and_errors(database, _AS_LOW.format("Dynamic") + "SELECT a FROM Secret") == [[(1,)], 229], (
        "for the module alone"
    )
    assert rows_and_errors(database, "DENY SELECT ON Secret TO SignerUser\nGO\n" + _AS_LOW.format("Dynamic")) == [229]
    rows_and_errors(database, "REVOKE SELECT ON Secret TO SignerUser GRANT SELECT ON Secret TO SignerUser")
    assert rows_and_errors(database, "DROP CERTIFICATE Signer") == [15559]
    assert rows_and_errors(database, _SIGN.format("Dynamic")) == [15557]


def test_a_signature_is_of_one_module_and_one_text(database: sb.Database) -> None:
    rows_and_errors(database, _SIGNED + _SIGN.format("Outer1"))
    assert rows_and_errors(database, _AS_LOW.format("Outer1")) == [229], "what it calls is not signed"
    rows_and_errors(database, _SIGN.format("Dynamic") + "ALTER CERTIFICATE Signer REMOVE PRIVATE KEY")
    assert rows_and_errors(database, _AS_LOW.format("Outer1")) == [[(1,)]]
    rows_and_errors(database, "EXEC ('ALTER PROCEDURE Dynamic AS EXEC (''SELECT a FROM Secret'')')")
    assert rows_and_errors(database, _AS_LOW.format("Dynamic")) == [229]
    assert rows_and_errors(database, _SIGN.format("Dynamic")) == [15556]
    assert rows_and_errors(database, "DROP SIGNATURE FROM Outer1 BY CERTIFICATE Signer") == []
    assert rows_and_errors(database, "DROP SIGNATURE FROM Outer1 BY CERTIFICATE Signer") == [15558]
    assert rows_and_errors(database, "ADD SIGNATURE TO Nothing BY CERTIFICATE Signer") == [15151]
    assert rows_and_errors(database, "ADD SIGNATURE TO Dynamic BY CERTIFICATE Signer WITH SIGNATURE = 0x0102") == [
        15299
    ]


@pytest.mark.parametrize("vouched", ["GRANT AUTHENTICATE TO Vouching", ""])
def test_a_signed_module_is_believed_in_another_database(instance: sb.Instance, tmp_path: Path, vouched: str) -> None:
    """The activated procedure that writes elsewhere: EXECUTE AS OWNER, and AUTHENTICATE for its signer there."""
    here, there = (instance.database(f"{name}{bool(vouched)}", create=True) for name in ("Here", "There"))
    rows_and_errors(there, "CREATE TABLE Log (a INT)\nGO\nCREATE PROCEDURE Note AS INSERT Log VALUES (1)")
    rows_and_errors(here, f"""
    CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'Strong#Password1'; CREATE CERTIFICATE Signer WITH SUBJECT = 'signs'
    BACKUP CERTIFICATE Signer TO FILE = '{tmp_path}/signer'
    GO
    CREATE PROCEDURE Activated WITH EXECUTE AS OWNER AS EXEC {there.name}.dbo.Note
    """)  # fmt: skip
    assert rows_and_errors(here, "EXEC Activated") == [916]
    rows_and_errors(here, "ADD SIGNATURE TO Activated BY CERTIFICATE Signer")
    rows_and_errors(there, f"CREATE CERTIFICATE Signer FROM FILE = '{tmp_path}/signer'; "
                f"CREATE USER Vouching FOR CERTIFICATE Signer; {vouched}")  # fmt: skip
    assert rows_and_errors(here, "EXEC Activated") == ([] if vouched else [916])
    assert query(there, "SELECT COUNT(*) FROM Log") == [(len(vouched) > 0,)]


# ---------------------------------------------------------------- temporary tables


def test_a_temporary_table_outlives_its_batch(database: sb.Database) -> None:
    """But not the procedure that made it, nor the session; nor does a table variable outlive anything."""
    script = (
        "CREATE TABLE #a (x INT); DECLARE @t TABLE (x INT)\nGO\nINSERT #a VALUES (1); SELECT x INTO #b FROM #a\nGO\n"
        "SELECT x FROM #a; SELECT x FROM #b; DROP TABLE #a\nGO\nCREATE TABLE #a (y INT)\nGO\nSELECT y FROM #a\nGO\n"
        "EXEC ('CREATE TABLE #c (z INT)')\nGO\nSELECT z FROM #c"
    )
    assert rows_and_errors(database, script) == [[(1,)], [(1,)], [], 208]
    assert rows_and_errors(database, "SELECT * FROM #a") == [208]
    assert rows_and_errors(database, "DECLARE @t TABLE (x INT)\nGO\nSELECT x FROM @t") == [1087]
    assert [
        finding.note for finding in check(script) if finding.verdict is Verdict.REFUSED and "#c" not in finding.note
    ] == []
