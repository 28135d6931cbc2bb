"""EXECUTE AS, REVERT, the context of modules, logins, and the user in another database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import servicebroker as sb
from servicebroker.model import names
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError
from support import as_user, query, refused
from tsql_support import create_database

WHO = "SELECT USER_NAME() AS who"
SETUP = """
CREATE USER Clerk WITHOUT LOGIN; CREATE USER Boss WITHOUT LOGIN; CREATE USER Visitor FOR LOGIN visitor;
GRANT IMPERSONATE ON USER::Boss TO Clerk;
CREATE TABLE Seen (Who SYSNAME DEFAULT USER_NAME(), N INT);
GO
CREATE PROCEDURE Caller AS SELECT USER_NAME() AS who
GO
CREATE PROCEDURE AsOwner WITH EXECUTE AS OWNER AS REVERT; SELECT USER_NAME() AS who; REVERT
GO
CREATE PROCEDURE AsBoss WITH EXECUTE AS 'Boss' AS
    SELECT USER_NAME() AS who; EXECUTE AS CALLER; SELECT USER_NAME(); REVERT; SELECT USER_NAME(); REVERT;
    SELECT USER_NAME()
GO
CREATE PROCEDURE AsSelf WITH EXECUTE AS SELF AS EXEC ('REVERT SELECT USER_NAME() AS who')
GO
CREATE PROCEDURE Leaves AS EXECUTE AS USER = 'Boss'
GO
CREATE PROCEDURE Fails WITH EXECUTE AS OWNER AS SELECT * FROM Nowhere
GO
CREATE PROCEDURE Static AS INSERT Seen (N) VALUES (1)
GO
CREATE PROCEDURE Dynamic AS EXEC ('INSERT Seen (N) VALUES (2)')
GO
CREATE PROCEDURE Inner1 AS SELECT COUNT(*) AS n FROM Seen
GO
CREATE PROCEDURE Outer1 AS EXEC Inner1
GO
CREATE PROCEDURE DynamicAsOwner WITH EXECUTE AS OWNER AS EXEC ('INSERT Seen (N) VALUES (3)')
GO
CREATE PROCEDURE Elsewhere WITH EXECUTE AS OWNER AS SELECT COUNT(*) AS n FROM Annex.dbo.Things
GO
GRANT EXECUTE ON SCHEMA::dbo TO Clerk; GRANT EXECUTE TO Visitor;
"""


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    """Create a database, and another one where only the login's user has permissions."""
    for login in ("visitor", "chief"):
        instance.create_login(login)
    annex = instance.database("Annex", create=True)
    annex.execute_tsql(
        "CREATE TABLE Things (n INT) CREATE USER Guest1 FOR LOGIN visitor GRANT SELECT, INSERT ON Things TO Guest1"
    )
    return create_database(instance, "Shop", SETUP)


@pytest.fixture
def session(shop: sb.Database) -> Iterator[Session]:
    with Session(shop) as session:
        yield session


def current_names(session: Session) -> str:
    return str(session.execute(WHO).rows[0][0])


def column(session: Session, script: str) -> list[object]:
    """Return the first value of each result set."""
    return [found.rows[0][0] for found in session.execute(script).sets]


# ---------------------------------------------------------------- EXECUTE AS and REVERT


def test_execute_as_is_taken_back_one_by_one(session: Session) -> None:
    session.execute("EXECUTE AS USER = 'Clerk'")
    session.execute("EXECUTE AS USER = 'Boss'")
    assert current_names(session) == "Boss"
    session.execute("REVERT")
    assert current_names(session) == "Clerk"
    session.execute("REVERT")
    session.execute("REVERT")  # there is nothing to revert
    assert current_names(session) == "dbo"


def test_execute_as_needs_impersonate(session: Session) -> None:
    for user, other, number in [
        ("Clerk", "dbo", 15517),
        ("Boss", "Clerk", 15517),
        ("Clerk", "Clerk", 0),  # oneself
        ("Clerk", "Boss", 0),
        ("Clerk", "public", 15517),
        ("Clerk", "Nowhere", 15517),
        ("dbo", "Clerk", 0),
    ]:
        session.execute(f"EXECUTE AS USER = '{user}'")
        if number:
            with refused(number, other):
                session.execute(f"EXECUTE AS USER = '{other}'")
            assert current_names(session) == user
        else:
            session.execute(f"EXECUTE AS USER = '{other}'")
            assert current_names(session) == other
        session.execute("REVERT REVERT")
    assert current_names(session) == "dbo"


def test_without_revert_it_is_for_ever(session: Session) -> None:
    session.execute("EXECUTE AS USER = 'Clerk' WITH NO REVERT")
    for again in ("REVERT", "BEGIN TRY REVERT END TRY BEGIN CATCH END CATCH", "REVERT WITH COOKIE = @c"):
        with refused(15196) if "TRY" not in again else refused(229):
            session.execute(f"{again}; SELECT * FROM Seen", {"c": b"x"})
        assert current_names(session) == "Clerk"
    with refused(8134):  # an error in a TRY block does not revert it, either
        session.execute("BEGIN TRY SELECT 1 / 0 END TRY BEGIN CATCH THROW END CATCH")
    assert current_names(session) == "Clerk"


def test_an_error_does_not_take_it_back(session: Session) -> None:
    caught = "BEGIN TRY EXECUTE AS USER = 'Clerk'; SELECT 1 / 0 END TRY BEGIN CATCH SELECT USER_NAME() END CATCH"
    assert column(session, caught)[-1] == "Clerk"
    assert current_names(session) == "Clerk"
    session.execute("REVERT")


def test_a_cookie_is_needed_to_go_back(session: Session) -> None:
    made = session.execute(
        "DECLARE @c VARBINARY(100) EXECUTE AS USER = 'Clerk' WITH COOKIE INTO @c SELECT @c AS cookie"
    )
    cookie = made.rows[0][0]
    assert isinstance(cookie, bytes)
    assert len(cookie) >= 16
    for wrong in ("REVERT", "REVERT WITH COOKIE = @w", "REVERT WITH COOKIE = @n"):
        with refused(15591):
            session.execute(f"DECLARE @n VARBINARY(100) {wrong}", {"w": b"x" * 16})
        assert current_names(session) == "Clerk"
    session.execute("REVERT WITH COOKIE = @c", {"c": cookie})
    assert current_names(session) == "dbo"
    # clients write the cookie into the text
    again = "DECLARE @c VARBINARY(100) EXECUTE AS USER = 'Clerk' WITH COOKIE INTO @c SELECT @c AS cookie"
    cookie = session.execute(again).rows[0][0]
    assert isinstance(cookie, bytes)
    with refused(15591):
        session.execute("REVERT WITH COOKIE = 0x0102")
    session.execute(f"REVERT WITH COOKIE = 0x{cookie.hex()};")
    assert current_names(session) == "dbo"
    session.execute("EXECUTE AS USER = 'Clerk'")
    with refused(15591):  # a cookie that was not asked for
        session.execute("REVERT WITH COOKIE = @c", {"c": cookie})
    session.execute("REVERT")
    assert current_names(session) == "dbo"


def test_a_refusal_of_revert_ends_the_batch(session: Session) -> None:
    session.execute("EXECUTE AS USER = 'Clerk' WITH NO REVERT")
    results: list[object] = []
    session.machine.listener = results.append
    session.run("REVERT; PRINT 'not reached'")
    assert [result.number for result in results if isinstance(result, TsqlError)] == [15196]
    assert len(results) == 1


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("DECLARE @c INT EXECUTE AS USER = 'Clerk' WITH COOKIE INTO @c", 15533),
        ("EXECUTE AS USER = 'Clerk' DECLARE @c INT REVERT WITH COOKIE = @c", 15533),
        ("EXECUTE AS USER = 'Clerk' WITH COOKIE INTO @undeclared", 137),
        ("EXEC ('EXECUTE AS USER = ''Clerk'' WITH NO REVERT')", 15590),
        ("EXEC ('DECLARE @c VARBINARY(8000) EXECUTE AS USER = ''Clerk'' WITH COOKIE INTO @c')", 15590),
        ("EXECUTE AS USER = 'Clerk' WITH COOKIE", 102),
        ("EXECUTE AS USER = 'Clerk' WITH NO", 102),
        ("REVERT WITH COOKIE", 102),
        ("REVERT WITH COOKIE =", 102),
        ("EXECUTE AS USER = 'Clerk' REVERT WITH COOKIE = 'abc'", 15533),
        ("EXECUTE AS USER = 'Clerk' REVERT WITH COOKIE = 7", 15533),
    ],
)
def test_options_that_are_wrong(session: Session, script: str, number: int) -> None:
    with refused(number):
        session.execute(script)


def test_execute_as_caller_outside_of_a_module_does_nothing(session: Session) -> None:
    assert column(
        session, "EXECUTE AS USER = 'Clerk' EXECUTE AS CALLER SELECT USER_NAME() REVERT SELECT USER_NAME()"
    ) == [
        "Clerk",
        "dbo",
    ]


# ---------------------------------------------------------------- modules


def test_execute_as_of_a_module_ends_with_the_module(session: Session) -> None:
    session.execute("EXECUTE AS USER = 'Clerk'")
    assert column(session, "EXEC Caller") == ["Clerk"]
    assert column(session, "EXEC AsOwner") == ["dbo"]  # REVERT in it has reverted nothing
    assert current_names(session) == "Clerk"
    assert column(session, "EXEC AsSelf") == ["dbo"]
    assert column(session, "EXEC AsBoss") == ["Boss", "Clerk", "Boss", "Boss"]
    session.execute("EXEC Leaves")
    assert current_names(session) == "Clerk"
    with refused(208):
        session.execute("EXEC Fails")
    assert current_names(session) == "Clerk"
    session.execute("EXEC ('REVERT REVERT')")  # dynamic SQL cannot revert the context of its caller
    assert current_names(session) == "Clerk"


def test_ownership_chaining_excludes_dynamic_sql(session: Session) -> None:
    session.execute("EXECUTE AS USER = 'Clerk'")
    with refused(229, "SELECT", "Seen"):
        session.execute("SELECT * FROM Seen")
    session.execute("EXEC Static")
    with refused(229, "INSERT", "Seen"):
        session.execute("EXEC Dynamic")
    session.execute("EXEC DynamicAsOwner")
    assert column(session, "EXEC Outer1") == [2]
    session.execute("REVERT DENY EXECUTE ON Inner1 TO Clerk EXECUTE AS USER = 'Clerk'")
    assert column(session, "EXEC Outer1") == [2]  # no check along the ownership chain
    with refused(229, "EXECUTE", "Inner1"):
        session.execute("EXEC Inner1")
    session.execute("REVERT DELETE FROM Seen REVOKE EXECUTE ON Inner1 FROM Clerk")


def test_a_trigger_works_as_it_says(session: Session) -> None:
    session.execute("BEGIN TRANSACTION")
    session.execute("CREATE TABLE Bells (N INT) CREATE TABLE Rung (Who SYSNAME) GRANT INSERT ON Bells TO Clerk")
    session.execute(
        "CREATE TRIGGER Ring ON Bells WITH EXECUTE AS 'Boss' AFTER INSERT AS INSERT Rung SELECT USER_NAME()"
    )
    session.execute("EXECUTE AS USER = 'Clerk' INSERT Bells VALUES (1) REVERT")
    session.execute("ALTER TRIGGER Ring ON Bells AFTER INSERT AS INSERT Rung SELECT USER_NAME()")
    session.execute("EXECUTE AS USER = 'Clerk' INSERT Bells VALUES (1) REVERT")
    assert session.execute("SELECT Who FROM Rung ORDER BY Who").rows == [("Boss",), ("Clerk",)]
    session.execute("ROLLBACK")


@pytest.mark.parametrize("clause", ["'Nowhere'", "'public'", "'Team'"])
def test_a_module_works_as_a_user_that_there_is(session: Session, clause: str) -> None:
    with refused(15151, "execute as"):
        session.execute(f"CREATE PROCEDURE Odd WITH EXECUTE AS {clause} AS RETURN")


def test_a_user_as_which_a_module_works_stays(shop: sb.Database, session: Session) -> None:
    with refused(15136):
        session.execute("DROP USER Boss")
    session.execute("CREATE USER Maker WITHOUT LOGIN ALTER ROLE db_ddladmin ADD MEMBER Maker EXECUTE AS USER = 'Maker'")
    session.execute("CREATE PROCEDURE Made WITH EXECUTE AS SELF AS SELECT USER_NAME() AS who")
    session.execute("REVERT")
    assert column(session, "EXEC Made") == ["Maker"]
    with refused(15136):
        session.execute("DROP USER Maker")
    session.execute("ALTER PROCEDURE Made WITH EXECUTE AS SELF AS SELECT USER_NAME() AS who")  # dbo's now
    assert column(session, "EXEC Made") == ["dbo"]
    session.execute("DROP USER Maker DROP PROCEDURE Made")


# ---------------------------------------------------------------- other databases


def test_a_user_without_a_login_has_no_access_to_another_database(shop: sb.Database, session: Session) -> None:
    session.execute("EXECUTE AS USER = 'Clerk'")
    for script in (
        "USE Annex",
        "SELECT * FROM Annex.dbo.Things",
        "EXEC Annex.dbo.Whatever",
        "DROP TABLE Annex.dbo.Things",
        "SELECT * FROM Annex.sys.objects",
        "SELECT 1 WHERE EXISTS (SELECT * FROM Annex.sys.conversation_endpoints)",
        "SELECT * FROM Annex.INFORMATION_SCHEMA.TABLES",
    ):
        with refused(916, "Clerk", "Annex"):
            session.execute(script)
    assert session.execute("SELECT name FROM Annex.sys.databases WHERE name = 'Annex'").rows == [("Annex",)]
    assert session.execute("SELECT name FROM master.sys.services").rows
    assert column(session, "USE master SELECT USER_NAME()") == ["guest"]
    with refused(15199):  # EXECUTE AS was said in another database
        session.execute("REVERT")
    session.execute("USE Shop REVERT")
    assert current_names(session) == "dbo"
    session.execute("EXECUTE AS USER = 'dbo'")
    with refused(916):  # dbo of one database
        session.execute("USE Annex")
    session.execute("REVERT USE Annex")
    assert current_names(session) == "dbo"


def test_guest_has_its_granted_permissions(shop: sb.Database, session: Session) -> None:
    session.execute("USE Annex GRANT CONNECT TO guest GRANT SELECT ON Things TO guest USE Shop")
    session.execute("EXECUTE AS USER = 'Clerk'")
    assert session.execute("SELECT COUNT(*) FROM Annex.dbo.Things").rows == [(0,)]
    with refused(229):
        session.execute("INSERT Annex.dbo.Things VALUES (1)")
    session.execute("REVERT USE Annex REVOKE CONNECT FROM guest REVOKE SELECT ON Things FROM guest")


def test_a_session_that_was_opened_as_a_user_is_that_user_everywhere(shop: sb.Database) -> None:
    for name in ("Clerk", "Boss"):
        with Session(as_user(shop, name)) as session:
            for script in ("USE Annex", "SELECT * FROM Annex.dbo.Things"):
                with refused(916, name):
                    session.execute(script)
            with refused(262):
                session.execute("CREATE DATABASE New")
            session.execute("REVERT")
            assert current_names(session) == name


def test_a_module_of_dbo_reaches_no_other_database_unless_its_own_is_trustworthy(
    shop: sb.Database, session: Session
) -> None:
    with refused(916, "Annex"):
        session.execute("EXEC Elsewhere")
    session.execute("ALTER DATABASE Shop SET TRUSTWORTHY ON")
    assert column(session, "SELECT is_trustworthy_on FROM sys.databases WHERE name = 'Shop'") == [1]
    assert column(session, "EXEC Elsewhere") == [0]
    assert column(session, "EXECUTE AS USER = 'dbo' USE Annex SELECT USER_NAME() USE Shop REVERT") == ["dbo"]
    assert column(session, "EXECUTE AS USER = 'Visitor' USE Annex SELECT USER_NAME() USE Shop REVERT") == ["Guest1"]
    session.execute("EXECUTE AS USER = 'Clerk'")  # without a login the user has no identity there
    with refused(916):
        session.execute("USE Annex")
    session.execute("REVERT ALTER DATABASE Shop SET TRUSTWORTHY OFF")
    with refused(916):
        session.execute("EXEC Elsewhere")


def test_only_an_administrator_makes_a_database_trustworthy(shop: sb.Database, session: Session) -> None:
    session.execute("CREATE USER Owner1 WITHOUT LOGIN ALTER ROLE db_owner ADD MEMBER Owner1")
    for script in ("EXECUTE AS USER = 'Owner1'", "EXECUTE AS USER = 'dbo'"):
        session.execute(script)
        with refused(15247):
            session.execute("ALTER DATABASE Shop SET TRUSTWORTHY ON")
        session.execute("REVERT")
    session.execute("DROP USER Owner1")
    assert not query(shop, "select from servicebroker.databases where is_trustworthy_on")


# ---------------------------------------------------------------- logins


def test_a_login_is_its_user_in_every_database(shop: sb.Database, session: Session) -> None:
    ((role,),) = query(shop, "select session_user::text")
    assert column(session, "SELECT SUSER_SNAME() SELECT SYSTEM_USER") == [role, role]
    session.execute("EXECUTE AS LOGIN = 'visitor'")
    assert column(session, "SELECT SUSER_SNAME() SELECT ORIGINAL_LOGIN() SELECT USER_NAME()") == [
        "visitor",
        role,
        "Visitor",
    ]
    assert column(session, "USE Annex SELECT USER_NAME() USE master SELECT USER_NAME() USE Shop") == ["Guest1", "guest"]
    session.execute("INSERT Annex.dbo.Things VALUES (1)")
    with refused(229):
        session.execute("DELETE FROM Annex.dbo.Things")
    session.execute("REVERT DELETE FROM Annex.dbo.Things")
    with refused(916, "chief", "Shop"):  # this login has no user here
        session.execute("EXECUTE AS LOGIN = 'chief'")
    with refused(15406):
        session.execute("EXECUTE AS LOGIN = 'nobody'")
    assert column(
        session, "EXECUTE AS LOGIN = 'sa' SELECT USER_NAME() USE Annex SELECT USER_NAME() USE Shop REVERT"
    ) == [
        "dbo",
        "dbo",
    ]


def test_execute_as_login_needs_impersonate_on_the_login(shop: sb.Database, session: Session) -> None:
    session.execute("USE Shop CREATE USER Chief FOR LOGIN chief USE master EXECUTE AS LOGIN = 'visitor'")
    with refused(15406, "chief"):
        session.execute("EXECUTE AS LOGIN = 'chief'")
    session.execute("REVERT GRANT IMPERSONATE ON LOGIN::chief TO visitor EXECUTE AS LOGIN = 'visitor' USE Shop")
    session.execute("EXECUTE AS LOGIN = 'chief'")
    assert current_names(session) == "Chief"
    shown = "SELECT class_desc, permission_name, state_desc FROM sys.server_permissions WHERE class = 101"
    assert session.execute(shown).rows == [("SERVER_PRINCIPAL", "IMPERSONATE", "GRANT")]
    session.execute(
        "REVERT USE master REVERT DENY IMPERSONATE ON LOGIN::chief TO visitor USE Shop EXECUTE AS LOGIN = 'visitor'"
    )
    with refused(15406):
        session.execute("EXECUTE AS LOGIN = 'chief'")
    shop.instance.revoke("IMPERSONATE", "visitor", login="chief")
    shop.instance.grant("IMPERSONATE ANY LOGIN", "visitor")
    session.execute("EXECUTE AS LOGIN = 'chief' REVERT")
    shop.instance.deny("IMPERSONATE", "visitor", login="chief")
    with refused(15406):
        session.execute("EXECUTE AS LOGIN = 'chief'")
    shop.instance.revoke("IMPERSONATE ANY LOGIN", "visitor")
    shop.instance.revoke("IMPERSONATE", "visitor", login="chief")
    with refused(15406):
        session.execute("EXECUTE AS LOGIN = 'sa'")
    session.execute("REVERT DROP USER Chief")


def test_server_statements_need_their_server_permissions(shop: sb.Database, session: Session) -> None:
    for permission, script, number, undo in [
        ("CREATE ANY DATABASE", "CREATE DATABASE Fresh", 262, "DROP DATABASE Fresh"),
        ("ALTER ANY LOGIN", "CREATE LOGIN fresh WITH PASSWORD = 'x'", 15247, "DROP LOGIN fresh"),
        ("ALTER ANY LOGIN", "ALTER LOGIN chief ENABLE", 15151, ""),
        ("ALTER ANY LOGIN", "DROP LOGIN spare", 15151, "CREATE LOGIN spare WITH PASSWORD = 'x'"),
        (
            "CREATE ENDPOINT",
            "CREATE ENDPOINT E AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER",
            15247,
            "DROP ENDPOINT E",
        ),
        ("CONTROL SERVER", "GRANT ALTER ANY LOGIN TO chief", 4613, "REVOKE ALTER ANY LOGIN FROM chief"),
        ("CONTROL SERVER", "CREATE CERTIFICATE C WITH SUBJECT = 'C'", 15247, "DROP CERTIFICATE C"),
    ]:
        session.execute("USE master IF NOT EXISTS (SELECT * FROM sys.server_principals WHERE name = 'spare') "
                        "CREATE LOGIN spare WITH PASSWORD = 'x'")  # fmt: skip
        session.execute("EXECUTE AS LOGIN = 'visitor'")
        with refused(number):
            session.execute(script)
        session.execute(f"REVERT GRANT {permission} TO visitor EXECUTE AS LOGIN = 'visitor' {script} REVERT")
        session.execute(f"REVOKE {permission} FROM visitor {undo}")
    with refused(4621):
        session.execute("USE Shop GRANT ALTER ANY LOGIN TO visitor")
    with refused(4606):
        session.execute("USE master GRANT SELECT ON LOGIN::chief TO visitor")
    with refused(15151, "login 'nobody'"):
        session.execute("GRANT ALTER ANY LOGIN TO nobody")
    session.execute("USE Shop")


def test_the_creator_of_a_database_is_its_db_owner(session: Session) -> None:
    session.execute("USE master GRANT CREATE ANY DATABASE TO visitor EXECUTE AS LOGIN = 'visitor' CREATE DATABASE Mine")
    session.execute("USE Mine CREATE QUEUE Q CREATE TABLE T (n INT) INSERT T VALUES (1)")
    assert column(session, "SELECT USER_NAME() SELECT IS_MEMBER('db_owner')") == ["visitor", 1]
    session.execute("USE master DROP DATABASE Mine REVERT REVOKE CREATE ANY DATABASE FROM visitor USE Shop")


# ---------------------------------------------------------------- IMPERSONATE by the API


def test_impersonate_is_granted_by_the_api_too(shop: sb.Database) -> None:
    shop.create_user("Temp")
    shop.grant("IMPERSONATE", "Temp", user="Boss")
    shown = "select class_desc, major_id, type from sys.database_permissions where permission_name = 'IMPERSONATE'"
    number = query(shop, "select principal_id from servicebroker.principals where name = 'Boss'")[0][0]
    assert ("DATABASE_PRINCIPAL", number, "IM") in query(shop, shown)
    with Session(as_user(shop, "Temp")) as session:
        session.execute("EXECUTE AS USER = 'Boss'")
        assert current_names(session) == "Boss"
    shop.deny("IMPERSONATE", "Temp", user="Boss")
    with Session(as_user(shop, "Temp")) as session, refused(15517):
        session.execute("EXECUTE AS USER = 'Boss'")
    with refused(15151, "user 'nobody'"):
        shop.grant("IMPERSONATE", "Temp", user="nobody")
    with refused(4606):
        shop.grant("RECEIVE", "Temp", user="Boss")
    shop.drop_user("Temp")


def test_permissions_on_a_table_are_shown_and_dropped_with_it(shop: sb.Database, session: Session) -> None:
    session.execute("CREATE TABLE Kept (n INT)")
    shop.grant("SELECT", "Boss", tsql_object="Kept")
    shop.grant("EXECUTE", "Boss", tsql_object="dbo.Caller")
    shop.grant("INSERT", "Boss", schema="dbo")
    shown = (
        "SELECT OBJECT_NAME(major_id), permission_name FROM sys.database_permissions p WHERE class = 1 "
        "AND grantee_principal_id = DATABASE_PRINCIPAL_ID('Boss') ORDER BY 2"
    )
    assert session.execute(shown).rows == [("Caller", "EXECUTE"), ("Kept", "SELECT")]
    session.execute("DROP TABLE Kept CREATE TABLE Kept (n INT) EXECUTE AS USER = 'Boss'")
    with refused(229):
        session.execute("SELECT * FROM Kept")
    session.execute("REVERT DROP TABLE Kept REVOKE EXECUTE ON Caller FROM Boss REVOKE INSERT ON SCHEMA::dbo FROM Boss")
    boss = "(select principal_id from servicebroker.principals where name = 'Boss')"
    assert query(shop, f"select from servicebroker.permissions where grantee_id = {boss} and class = 1001") == []
    with refused(15151, "object 'Nowhere'"):
        shop.grant("SELECT", "Boss", tsql_object="Nowhere")


def test_a_grant_on_a_table_of_a_schema_that_was_not_created_here_is_refused(shop: sb.Database) -> None:
    outside = names.postgres_name(shop.name, "Outside")
    with shop.instance.connection() as connection:
        connection.execute(f'create schema "{outside}"; create table "{outside}".t (n int)')
    with refused(15151, "Outside.T"):
        shop.grant("SELECT", "Boss", tsql_object="Outside.T")
    with shop.instance.connection() as connection:
        connection.execute(f'drop schema "{outside}" cascade')


def test_the_transmission_queue_is_for_db_owner(shop: sb.Database, session: Session) -> None:
    session.execute(
        "CREATE QUEUE Out CREATE SERVICE Out ON QUEUE Out DECLARE @h UNIQUEIDENTIFIER "
        "BEGIN DIALOG @h FROM SERVICE Out TO SERVICE 'Nowhere' WITH ENCRYPTION = OFF; "
        "SEND ON CONVERSATION @h ('secret')"
    )
    session.execute("CREATE VIEW Waiting AS SELECT message_body FROM sys.transmission_queue")
    count = "SELECT COUNT(*) FROM sys.transmission_queue"
    assert column(session, count) == [1]
    session.execute("GRANT SELECT ON Waiting TO Clerk EXECUTE AS USER = 'Clerk'")
    assert column(session, f"{count} SELECT COUNT(*) FROM Waiting") == [0, 0]
    assert column(session, "REVERT SELECT COUNT(*) FROM Waiting") == [1]
    session.execute("DROP VIEW Waiting")


READERS = {
    "view": ("VIEW Look AS SELECT Word FROM {there}", "SELECT * FROM Look"),
    "view of a function": ("VIEW Look AS SELECT * FROM Other.dbo.Words ()", "SELECT * FROM Look"),
    "inline": ("FUNCTION Look () RETURNS TABLE AS RETURN SELECT Word FROM {there}", "SELECT * FROM Look ()"),
    "scalar": (
        "FUNCTION Look () RETURNS NVARCHAR(9) AS BEGIN RETURN (SELECT TOP (1) Word FROM {there}) END",
        "SELECT dbo.Look ()",
    ),
    "scalar by a condition": (
        "FUNCTION Look () RETURNS INT AS BEGIN IF EXISTS (SELECT * FROM {there}) RETURN 1 RETURN 0 END",
        "SELECT dbo.Look ()",
    ),
    "filled": (
        "FUNCTION Look () RETURNS @r TABLE (W NVARCHAR(9)) AS BEGIN INSERT @r SELECT Word FROM {there} RETURN END",
        "SELECT * FROM Look ()",
    ),
    "variable": (
        "FUNCTION Look () RETURNS NVARCHAR(9) AS "
        "BEGIN DECLARE @w NVARCHAR(9) SELECT @w = Word FROM {there} RETURN @w END",
        "SELECT dbo.Look ()",
    ),
    "procedure": ("PROCEDURE Look AS SELECT Word FROM {there}", "EXEC Look"),
}


@pytest.fixture
def two_shops(fresh_instance: sb.Instance) -> Iterator[Session]:
    """Create two databases: Mallory is db_owner of Shop and guest in Other."""
    other_database = fresh_instance.database("Other", create=True)
    other_database.execute_tsql(
        "CREATE TABLE Secrets (Word NVARCHAR(9)); INSERT Secrets VALUES (N'hush'); GRANT CONNECT TO guest\nGO\n"
        "CREATE FUNCTION Words () RETURNS TABLE AS RETURN SELECT Word FROM Secrets"
    )
    shop = fresh_instance.database("Shop", create=True)
    shop.execute_tsql(
        "CREATE USER Mallory WITHOUT LOGIN; ALTER ROLE db_owner ADD MEMBER Mallory; CREATE USER Bob WITHOUT LOGIN;"
        "CREATE SYNONYM Far FOR Other.dbo.Secrets; CREATE QUEUE Inbox; ALTER AUTHORIZATION ON OBJECT::Inbox TO Bob"
    )
    with Session(shop) as session:
        yield session


@pytest.mark.parametrize("there", ["Other.dbo.Secrets", "Other..Secrets", "Far"])
@pytest.mark.parametrize("kind", READERS)
@pytest.mark.sampled(8)
def test_a_module_that_reads_another_database_needs_the_creators_permission(
    two_shops: Session, kind: str, there: str
) -> None:
    made, read = (text.format(there=there) for text in READERS[kind])
    two_shops.execute("EXECUTE AS USER = 'Mallory'")
    with pytest.raises(sb.BrokerError) as error:
        two_shops.execute(f"EXEC (N'CREATE {made}') {read}")
    assert error.value.number == 229
    two_shops.execute("REVERT")
    two_shops.execute(f"EXEC (N'CREATE OR ALTER {made}')")
    assert len(two_shops.execute(read).rows) == 1
    two_shops.execute("EXECUTE AS USER = 'Mallory'")
    with pytest.raises(sb.BrokerError) as error:  # ALTER cannot make it read more, either
        two_shops.execute(f"EXEC (N'ALTER {made}') {read}")
    assert error.value.number == 229


@pytest.mark.parametrize("kind", ["VIEW Look AS", "FUNCTION Look () RETURNS TABLE AS RETURN"])
def test_a_view_of_a_queue_needs_the_creators_permission(two_shops: Session, kind: str) -> None:
    two_shops.execute("ALTER ROLE db_owner DROP MEMBER Mallory GRANT CREATE VIEW, CREATE FUNCTION TO Mallory")
    two_shops.execute("GRANT ALTER ON SCHEMA::dbo TO Mallory EXECUTE AS USER = 'Mallory'")
    with pytest.raises(sb.BrokerError) as error:
        two_shops.execute(f"EXEC (N'CREATE {kind} SELECT message_body FROM Inbox')")
    assert error.value.number == 229
