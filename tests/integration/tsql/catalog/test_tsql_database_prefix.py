"""Statements with a database before a name: each works in that database, or says why it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import servicebroker as sb
from servicebroker.tsql.session import Session
from tsql_support import output_of, rows, scalar

# the same objects in both databases, of other values
OBJECTS = """
CREATE TABLE dbo.Both (Id int IDENTITY(1, 1) PRIMARY KEY, V int);
INSERT dbo.Both (V) VALUES ({n}), ({n} + 1);
CREATE TABLE dbo.Parent (Id int PRIMARY KEY);
CREATE SEQUENCE dbo.Numbers START WITH {n};
CREATE TYPE dbo.Short FROM {type};
CREATE TYPE dbo.Rows_ AS TABLE (C int);
CREATE QUEUE dbo.Work;
CREATE SERVICE Worker ON QUEUE dbo.Work;
CREATE USER Clerk WITHOUT LOGIN;
CREATE ROLE Readers;
CREATE XML SCHEMA COLLECTION dbo.Known AS
    N'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="e"/></xs:schema>';
GO
CREATE PROCEDURE dbo.Tells @a dbo.Short, @b dbo.Short = 'abcdefgh' AS SELECT DB_NAME(), @a, @b
GO
CREATE PROCEDURE dbo.TellsRows @a dbo.Rows_ READONLY AS SELECT DB_NAME(), COUNT(*) FROM @a
GO
CREATE FUNCTION dbo.Own(@a int) RETURNS int AS BEGIN RETURN {n} END
GO
CREATE VIEW dbo.Seen AS SELECT V FROM dbo.Both
GO
CREATE TRIGGER dbo.Fires ON dbo.Both AFTER DELETE AS RETURN
GO
"""
# The state of both databases before and after a statement.
STATE = """
SELECT s.name, o.name, o.type, (SELECT COUNT(*) FROM sys.columns c WHERE c.object_id = o.object_id)
  FROM sys.objects o JOIN sys.schemas s ON s.schema_id = o.schema_id WHERE o.is_ms_shipped = 0 ORDER BY 1, 2;
SELECT OBJECT_NAME(object_id), name FROM sys.indexes WHERE name IS NOT NULL ORDER BY 1, 2;
SELECT name, is_enqueue_enabled, principal_id FROM sys.service_queues WHERE is_ms_shipped = 0 ORDER BY name;
SELECT name FROM sys.services ORDER BY name;
SELECT name, current_value FROM sys.sequences ORDER BY name;
SELECT name FROM sys.types WHERE is_user_defined = 1 ORDER BY name;
SELECT name FROM sys.xml_schema_collections ORDER BY name;
SELECT name FROM sys.service_message_types ORDER BY name;
SELECT name FROM sys.event_notifications ORDER BY name;
SELECT name, is_disabled FROM sys.triggers ORDER BY name;
SELECT name, type FROM sys.database_principals ORDER BY name;
SELECT USER_NAME(role_principal_id), USER_NAME(member_principal_id) FROM sys.database_role_members ORDER BY 1, 2;
SELECT USER_NAME(grantee_principal_id), class, permission_name, state FROM sys.database_permissions ORDER BY 1, 2, 3;
SELECT OBJECT_NAME(object_id), definition FROM sys.sql_modules ORDER BY 1;
SELECT Id, V FROM dbo.Both ORDER BY Id;
SELECT IDENT_CURRENT('dbo.Both');
"""
_EMPTIES = "DELETE dbo.Both"
# statements of Here that name There, and what they say
CHANGES_THERE = {
    "executesql": f"EXEC There.sys.sp_executesql N'{_EMPTIES}'",
    "executesql-two-dots": f"EXEC There..sp_executesql N'{_EMPTIES}'",
    "executesql-dbo": f"EXEC [there].[dbo].[SP_ExecuteSQL] N'{_EMPTIES}'",
    "executesql-variable": f"DECLARE @p nvarchar(99) = N'There.sys.sp_executesql'; EXEC @p N'{_EMPTIES}'",
    "executesql-variable-brackets": f"DECLARE @p sysname = '[There]..[sp_executesql]'; EXEC @p N'{_EMPTIES}'",
    "executesql-text": "EXEC ('EXEC There.sys.sp_executesql N''DELETE dbo.Both''')",
    "executesql-synonym": f"CREATE SYNONYM dbo.Far_ FOR There.sys.sp_executesql; EXEC Far_ N'{_EMPTIES}'; "
    "DROP SYNONYM dbo.Far_",
    "executesql-nested": "EXEC Here.sys.sp_executesql N'EXEC There.sys.sp_executesql N''DELETE dbo.Both'''",
    "executesql-in-a-procedure": f"EXEC ('CREATE OR ALTER PROCEDURE #p AS EXEC There..sp_executesql N''{_EMPTIES}''');"
    "EXEC #p",
    "executesql-in-a-transaction": f"BEGIN TRAN; EXEC There.sys.sp_executesql N'{_EMPTIES}'; COMMIT",
    "executesql-queue": "EXEC There.sys.sp_executesql N'CREATE QUEUE dbo.New_; CREATE SERVICE Newer ON QUEUE dbo.New_'",
    "executesql-module": "EXEC There.sys.sp_executesql N'EXEC(''CREATE PROCEDURE dbo.New_ AS SELECT 1'')'",
    "rename": "EXEC There..sp_rename 'dbo.Both.V', 'W', 'COLUMN'; EXEC There..sp_rename 'dbo.Both.W', 'V', 'COLUMN'; "
    "EXEC There..sp_rename 'dbo.Parent', 'Parents'",
    "foreachtable": "EXEC There..sp_msforeachtable 'DELETE ?'",
    "addrolemember": "EXEC There..sp_addrolemember 'Readers', 'Clerk'",
    "addrolemember-variable": "DECLARE @p sysname = 'There..sp_addrolemember'; EXEC @p 'Readers', 'Clerk'",
    "checkident": "DBCC CHECKIDENT ('There.dbo.Both', RESEED, 50) WITH NO_INFOMSGS",
    "collection": "CREATE XML SCHEMA COLLECTION There.dbo.Known2 AS "
    'N\'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="e"/></xs:schema>\'',
    "collection-drop": "DROP XML SCHEMA COLLECTION There.dbo.Known",
    "queue": "CREATE QUEUE There.dbo.Work2; ALTER QUEUE There.dbo.Work WITH STATUS = OFF",
    "table": "CREATE TABLE There.dbo.New_ (Id int); ALTER TABLE There.dbo.Both ADD X int; DROP TABLE There.dbo.Parent",
    "index": "CREATE INDEX Ix ON There.dbo.Both (V) WHERE V > 1",
    "view": "CREATE VIEW There.dbo.Seen2 AS SELECT Id FROM dbo.Parent",
    "module": "CREATE PROCEDURE There.dbo.New_ @a dbo.Short AS SELECT @a",
    "trigger-off": "DISABLE TRIGGER Fires ON There.dbo.Both",
    "sequence": "ALTER SEQUENCE There.dbo.Numbers RESTART WITH 700",
    "notification": "CREATE EVENT NOTIFICATION N ON QUEUE There.dbo.Work FOR QUEUE_ACTIVATION "
    "TO SERVICE 'Worker', 'current database'",
    "type": "DROP TYPE There.dbo.Rows_2",
    "truncate": "TRUNCATE TABLE There.dbo.Both",
    "select-into": "SELECT 1 AS I INTO There.dbo.New_",
}
REFUSED_STATEMENTS = {
    "no-database": ("EXEC Nowhere..sp_executesql N'DELETE dbo.Both'", 911),
    "no-database-variable": ("DECLARE @p sysname = 'Nowhere..sp_executesql'; EXEC @p N'DELETE dbo.Both'", 911),
    "no-database-of-mine": ("EXEC Nowhere.dbo.Tells 1", 911),
    "no-database-to-rename": ("EXEC Nowhere..sp_rename 'dbo.Both', 'Neither'", 911),
    "no-schema-of-the-system": ("EXEC There.guest.sp_executesql N'DELETE dbo.Both'", 2812),
    "no-procedure": ("EXEC There.sys.sp_nothing", 2812),
    "server": ("EXEC Far.There.sys.sp_executesql N'DELETE dbo.Both'", 7202),
    "server-of-mine": ("EXEC Far.There.dbo.Tells 1", 7202),
    "server-variable": ("DECLARE @p sysname = 'Far.There..sp_rename'; EXEC @p 'dbo.Both', 'Neither'", 7202),
    "server-queue": ("DROP QUEUE Far.There.dbo.Work", 7202),
    "nothing-behind": ("EXEC Nowhere.dbo.sp_add_job 'x'", 40515),
    "not-for-him": ("EXECUTE AS USER = 'Clerk'; EXEC There.sys.sp_executesql N'DELETE dbo.Both'", 916),
    "table-type": ("DECLARE @t dbo.Rows_; EXEC There.dbo.TellsRows @t", 206),
    "text": ("EXEC sp_helptext 'There.dbo.Tells'", 15250),
    "columns": ("EXEC There..sp_columns 'Both', 'dbo', 'Here'", 15250),
    "grant": ("GRANT SELECT ON There.dbo.Both TO Clerk", 4610),
    "grant-object": ("GRANT CONTROL ON OBJECT::There.dbo.Both TO Clerk", 4610),
    "deny": ("DENY RECEIVE ON There.dbo.Work TO Clerk", 4610),
    "revoke": ("REVOKE SELECT ON There.dbo.Both FROM Clerk", 4610),
    "grant-schema": ("GRANT SELECT ON SCHEMA::There.dbo TO Clerk", 40515),
    "owner": ("ALTER AUTHORIZATION ON OBJECT::There.dbo.Work TO Clerk", 15151),
    "service": ("CREATE SERVICE Other ON QUEUE There.dbo.Work", 9609),
    "service-altered": ("ALTER SERVICE Worker ON QUEUE There.dbo.Work", 9609),
    "message-type": ("CREATE MESSAGE TYPE M VALIDATION = VALID_XML WITH SCHEMA COLLECTION There.dbo.Known", 9609),
    "dialog": ("DECLARE @h uniqueidentifier; BEGIN DIALOG @h FROM SERVICE There.dbo.Worker TO SERVICE 'Worker'", 9609),
    "contract": (
        "DECLARE @h uniqueidentifier; BEGIN DIALOG @h FROM SERVICE Worker TO SERVICE 'Worker' ON CONTRACT There.dbo.C",
        9609,
    ),
    "sent": ("DECLARE @h uniqueidentifier = NEWID(); SEND ON CONVERSATION @h MESSAGE TYPE There.dbo.M", 9609),
    "opentran": ("DBCC OPENTRAN (Nowhere)", 911),
}


def new_pair(instance: sb.Instance) -> sb.Database:
    """A database Here beside one that is called There; those that were there are dropped."""
    for name in ("Here", "There"):
        output_of(instance.database("tempdb", create=True), f"DROP DATABASE IF EXISTS {name}")
    there_database = instance.database("There", create=True)
    here = instance.database("Here", create=True)
    assert output_of(there_database, OBJECTS.format(n=100, type="int")) == []
    assert output_of(here, OBJECTS.format(n=1, type="varchar(4)")) == []
    there_database.execute_tsql("CREATE TYPE dbo.Rows_2 AS TABLE (C int)")
    return here


@pytest.fixture(scope="module")
def shared_pairs() -> list[sb.Database]:
    """The pair that `shared_here` has made last, if no test with `here` came after it."""
    return []


@pytest.fixture
def here_database(instance: sb.Instance, shared_pairs: list[sb.Database]) -> sb.Database:
    """Here and There of this test alone."""
    shared_pairs.clear()
    return new_pair(instance)


@pytest.fixture
def shared_here(instance: sb.Instance, shared_pairs: list[sb.Database]) -> sb.Database:
    """Here and There of all tests that change nothing that others look at: a pair takes half a second."""
    if not shared_pairs:
        shared_pairs.append(new_pair(instance))
    return shared_pairs[0]


def state(database: sb.Database) -> list[object]:
    return output_of(database, STATE)


def both_states(here_database: sb.Database) -> tuple[list[object], list[object]]:
    return state(here_database), state(here_database.instance.database("There"))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("statement", CHANGES_THERE)
def test_a_statement_changes_the_database_that_it_names(here_database: sb.Database, statement: str) -> None:
    before = both_states(here_database)
    told_errors = [item for item in output_of(here_database, CHANGES_THERE[statement]) if isinstance(item, int)]
    after = both_states(here_database)
    assert told_errors == []
    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.parametrize("statement", REFUSED_STATEMENTS)
@pytest.mark.sampled(10)
def test_refused_database_prefixes_change_no_database(shared_here: sb.Database, statement: str) -> None:
    text, number = REFUSED_STATEMENTS[statement]
    before = both_states(shared_here)
    assert output_of(shared_here, text) == [number]
    assert both_states(shared_here) == before


SHOWN = {
    "executesql": ("EXEC There.sys.sp_executesql N'SELECT DB_NAME(), DB_ID() - DB_ID(''There'')'", [("There", 0)]),
    "columns": ("EXEC There..sp_columns 'Both', @column_name = 'Id'", "There"),
    "tables": ("EXEC There..sp_tables 'Both'", "There"),
    "spaceused": ("EXEC There..sp_spaceused", "There"),
    "procedure": ("EXEC There.dbo.Tells 7, 8", [("There", 7, 8)]),
    "procedures-default": ("EXEC Here.dbo.Tells 'abcdefgh'", [("Here", "abcd", "abcd")]),
    "returned": (
        "DECLARE @n int, @r int; EXEC @r = There.sys.sp_executesql N'SELECT @x = MIN(V) FROM dbo.Both WHERE V > @y', "
        "N'@x dbo.Short OUTPUT, @y int', @y = 0, @x = @n OUTPUT; SELECT @n, @r",
        [(100, 0)],
    ),
    "insert-exec": (
        "DECLARE @t TABLE (V int); INSERT @t EXEC There.sys.sp_executesql N'SELECT MAX(V) FROM dbo.Both'; "
        "SELECT V, DB_NAME() FROM @t",
        [(101, "Here")],
    ),
    "temporary-tables": (
        "CREATE TABLE #t (D sysname); EXEC There..sp_executesql N'INSERT #t VALUES (DB_NAME())'; SELECT D FROM #t",
        [("There",)],
    ),
    "tempdb": ("CREATE TABLE tempdb..#u (I int); INSERT tempdb..#u VALUES (4); SELECT I FROM #u", [(4,)]),
    "key": (
        "CREATE TABLE There.dbo.Child (Id int REFERENCES dbo.Parent (Id)); INSERT There.dbo.Parent VALUES (5); "
        "INSERT There.dbo.Child VALUES (5); SELECT Id FROM There.dbo.Child",
        [(5,)],
    ),
    "default": (
        "CREATE TABLE There.dbo.Made (S dbo.Short, F int DEFAULT dbo.Own(1), N int DEFAULT NEXT VALUE FOR dbo.Numbers);"
        "INSERT There.dbo.Made (S) VALUES (123456789); SELECT S, F, N FROM There.dbo.Made",
        [(123456789, 100, 100)],
    ),
    "view": (
        "EXEC ('CREATE VIEW There.dbo.V AS SELECT MAX(V) AS V FROM dbo.Both'); SELECT V FROM There.dbo.V",
        [(101,)],
    ),
    "cursor": (
        "DECLARE c CURSOR FOR SELECT V FROM dbo.Both WHERE Id = 2; EXEC There.sys.sp_executesql N'OPEN c'; FETCH c; "
        "DEALLOCATE c",
        [(2,)],
    ),
    "opentran": (
        "BEGIN TRAN; UPDATE dbo.Both SET V = 1; DECLARE @d int = DB_ID('There'); DBCC OPENTRAN ('There'); ROLLBACK",
        "Transaction information for database 'There'.",
    ),
    "dialog": (
        "EXEC There.sys.sp_executesql N'DECLARE @h uniqueidentifier; BEGIN DIALOG @h FROM SERVICE Worker TO SERVICE "
        "''Worker'' WITH ENCRYPTION = OFF; SEND ON CONVERSATION @h'; SELECT (SELECT COUNT(*) FROM There.dbo.Work), "
        "(SELECT COUNT(*) FROM dbo.Work)",
        [(1, 0)],
    ),
}


@pytest.mark.parametrize("statement", SHOWN)
def test_a_statement_shows_the_database_that_it_names(shared_here: sb.Database, statement: str) -> None:
    text, expected = SHOWN[statement]
    output = output_of(shared_here, text)
    assert not [each for each in output if isinstance(each, int)]
    if isinstance(expected, str):
        assert expected in (output[0], output[0][0][0])
    else:
        assert output[-1] == expected


ENDINGS = {
    "done": "SELECT 1",
    "use": "USE tempdb; SELECT 1",
    "execute-as": "EXECUTE AS USER = ''Clerk''; SELECT 1",
    "divided-by-zero": "SELECT 1 / 0",
    "nothing-there": "SELECT * FROM dbo.Nothing",
    "unreadable": "SELECT FROM WHERE",
    "raiserror": "RAISERROR (N''x'', 16, 1)",
    "converted": "USE tempdb; SELECT CAST(''x'' AS int)",
    "return": "USE tempdb; RETURN; SELECT 1",
}


@pytest.mark.parametrize("within", ["", "BEGIN TRAN;"], ids=["alone", "in-a-transaction"])
@pytest.mark.parametrize("caught", [False, True], ids=["told", "caught"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_caller_is_where_it_was(shared_here: sb.Database, ending: str, caught: bool, within: str) -> None:
    call = f"EXEC There.sys.sp_executesql N'{ENDINGS[ending]}'"
    if caught:
        call = f"BEGIN TRY {call} END TRY BEGIN CATCH SELECT DB_NAME(), USER_NAME() END CATCH"
    last = output_of(shared_here, f"{within} {call}\nGO\nIF @@TRANCOUNT > 0 ROLLBACK; SELECT DB_NAME(), USER_NAME()")
    assert last[-1] == [("Here", "dbo")]
    assert [item for item in last if isinstance(item, list) and len(item[0]) == 2 and item != [("Here", "dbo")]] == []


def test_a_transaction_is_one_over_both(here_database: sb.Database) -> None:
    output = output_of(
        here_database,
        "BEGIN TRAN; DELETE dbo.Both; EXEC There.sys.sp_executesql N'DELETE dbo.Both; SELECT @@TRANCOUNT'; "
        "EXEC There..sp_rename 'dbo.Parent', 'Parents'; SELECT @@TRANCOUNT, DB_NAME(); ROLLBACK; "
        "SELECT (SELECT COUNT(*) FROM dbo.Both), (SELECT COUNT(*) FROM There.dbo.Both), OBJECT_ID('There.dbo.Parents')",
    )
    assert [each for each in output if isinstance(each, list)] == [[(1,)], [(1, "Here")], [(2, 2, None)]]


def test_a_rollback_inside_leaves_the_caller_here(here_database: sb.Database) -> None:
    output = output_of(
        here_database,
        "BEGIN TRAN; DELETE dbo.Both; EXEC There.sys.sp_executesql N'DELETE dbo.Both; ROLLBACK; SELECT DB_NAME()'; "
        "SELECT DB_NAME(), @@TRANCOUNT, (SELECT COUNT(*) FROM dbo.Both), (SELECT COUNT(*) FROM There.dbo.Both)",
    )
    assert output == [[("There",)], 266, [("Here", 0, 2, 2)]]


def test_dynamic_sql_in_another_database_runs_as_the_callers_user_there(here_database: sb.Database) -> None:
    """A login has another user in each database; a module's owner does not reach beyond its own."""
    here_database.execute_tsql(
        "CREATE LOGIN porter WITH PASSWORD = 'x'; CREATE USER PorterHere FOR LOGIN porter; USE There; "
        "CREATE USER PorterThere FOR LOGIN porter; GRANT SELECT ON dbo.Both TO PorterThere"
    )
    output = output_of(
        here_database,
        "EXECUTE AS LOGIN = 'porter'\n"
        "EXEC There.sys.sp_executesql N'SELECT DB_NAME(), USER_NAME(), COUNT(*) FROM dbo.Both'\n"
        "EXEC There.sys.sp_executesql N'DELETE dbo.Both'\nEXEC There..sp_rename 'dbo.Both', 'Mine'\n"
        "SELECT DB_NAME(), USER_NAME()",
    )
    here_database.execute_tsql("DROP USER PorterHere; USE There; DROP USER PorterThere; DROP LOGIN porter")
    assert output[0] == [("There", "PorterThere", 2)]
    assert output[1] == 229
    assert isinstance(output[2], int)
    assert output[3] == [("Here", "PorterHere")]
    assert scalar(here_database, "SELECT COUNT(*) FROM There.dbo.Both") == 2


@pytest.mark.parametrize(
    "statement",
    [
        "EXEC There..sp_spaceused 'dbo.Both'",
        "EXEC There.sys.sp_executesql N'SELECT * FROM dbo.Both'",
        "CREATE TABLE There.dbo.Child (Id int REFERENCES dbo.Parent (Id))",
        "DBCC CHECKIDENT ('There.dbo.Both')",
        "EXEC There..sp_msforeachtable 'DELETE ?'",
    ],
)
def test_a_module_owns_nothing_in_another_database(here_database: sb.Database, statement: str) -> None:
    """Acts of a procedure of Here in There need rights of its caller, though dbo owns the tables of both."""
    quoted = statement.replace("'", "''")
    here_database.execute_tsql(
        "CREATE LOGIN porter WITH PASSWORD = 'x'; CREATE USER Porter FOR LOGIN porter; "
        f"EXEC ('CREATE PROCEDURE dbo.Reaches AS {quoted}'); GRANT EXECUTE ON dbo.Reaches TO Porter; USE There; "
        "CREATE USER Porter FOR LOGIN porter; GRANT CREATE TABLE TO Porter; GRANT ALTER ON SCHEMA::dbo TO Porter"
    )
    there_database = here_database.instance.database("There")
    before = state(there_database)
    output = output_of(here_database, "EXECUTE AS LOGIN = 'porter'; EXEC dbo.Reaches")
    after = state(there_database)
    here_database.execute_tsql("DROP USER Porter; USE There; DROP USER Porter; DROP LOGIN porter")
    assert 229 in output
    assert after == before


def test_a_login_without_a_user_in_the_other_database_is_refused(here_database: sb.Database) -> None:
    here_database.execute_tsql("CREATE LOGIN stranger WITH PASSWORD = 'x'; CREATE USER Stranger FOR LOGIN stranger")
    for call in ("sys.sp_executesql N'DELETE dbo.Both'", ".sp_helptext 'dbo.Tells'", ".sp_help 'dbo.Both'"):
        assert output_of(here_database, f"EXECUTE AS LOGIN = 'stranger'; EXEC There.{call}") == [916]
    here_database.execute_tsql("DROP USER Stranger; DROP LOGIN stranger")


def test_the_systems_databases_are_there_also_within_a_transaction(make_instance_url: Callable[..., str]) -> None:
    """The first use of one makes it, beside the transaction, and a ROLLBACK leaves it."""
    with sb.open(make_instance_url(), upkeep=None) as instance:
        database = instance.database("Shop", create=True)
        output = output_of(
            database,
            "BEGIN TRAN; CREATE TABLE dbo.T (I int); EXEC master..sp_who; "
            "EXEC tempdb.sys.sp_executesql N'SELECT DB_NAME()'; ROLLBACK; EXEC tempdb.sys.sp_executesql N'SELECT 5'",
        )
        assert output[1:] == [[("tempdb",)], [(5,)]]


def test_a_transaction_does_not_wait_for_itself(make_instance_url: Callable[..., str]) -> None:
    """A transaction that holds the catalog cannot have a database made beside it: the database does not exist yet."""
    with sb.open(make_instance_url(), upkeep=None) as instance:
        database = instance.database("Shop", create=True)
        output = output_of(database, "BEGIN TRAN; CREATE QUEUE dbo.Q; EXEC tempdb..sp_executesql N'SELECT 5'; ROLLBACK")
        assert output in ([911], [[(5,)]])


def test_definitions_are_told_in_the_database_that_they_name(here_database: sb.Database) -> None:
    """A notification on a database hears of what is made in it, from wherever."""
    for name in ("Here", "There"):
        here_database.execute_tsql(
            f"USE {name}; CREATE QUEUE dbo.Heard; CREATE SERVICE Hearing ON QUEUE dbo.Heard "
            "([http://schemas.microsoft.com/SQL/Notifications/PostEventNotification]); "
            "CREATE EVENT NOTIFICATION Hears ON DATABASE FOR DDL_EVENTS TO SERVICE 'Hearing', 'current database'"
        )
        here_database.execute_tsql(
            f"USE {name}; WHILE 1 = 1 BEGIN RECEIVE * FROM dbo.Heard; IF @@ROWCOUNT = 0 BREAK END"
        )
    here_database.execute_tsql(
        "CREATE QUEUE There.dbo.Told; CREATE TABLE There.dbo.ToldTable (Id int); DROP TYPE There.dbo.Rows_2; "
        "CREATE EVENT NOTIFICATION N ON QUEUE There.dbo.Told FOR QUEUE_ACTIVATION TO SERVICE 'Worker', "
        "'current database'; ALTER TABLE There.dbo.Both DISABLE TRIGGER Fires; "
        "EXEC There.sys.sp_executesql N'CREATE SEQUENCE dbo.ToldNumbers'"
    )
    events = "SELECT CAST(message_body AS xml).value('(/EVENT_INSTANCE/EventType)[1]', 'sysname') FROM {}.dbo.Heard"
    assert rows(here_database, events.format("Here")) == []
    assert [kind for (kind,) in rows(here_database, events.format("There") + " ORDER BY queuing_order")] == [
        "CREATE_QUEUE", "CREATE_TABLE", "DROP_TYPE", "CREATE_EVENT_NOTIFICATION", "ALTER_TABLE", "CREATE_SEQUENCE",
    ]  # fmt: skip


def test_a_session_that_goes_on_is_where_it_was(here_database: sb.Database) -> None:
    """After an error that ends the batch, and after USE, which is the session's."""
    with Session(here_database) as session:
        with pytest.raises(sb.BrokerError, match="50001"):
            session.execute("EXEC There.sys.sp_executesql N'USE tempdb; THROW 50001, N''x'', 1'")
        assert session.execute("SELECT DB_NAME()").rows == [("Here",)]
        session.execute("USE There; EXEC Here.sys.sp_executesql N'SELECT 1'")
        assert session.execute("SELECT DB_NAME()").rows == [("There",)]
