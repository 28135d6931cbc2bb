"""Documented behaviour on which scripts rely: error numbers, texts of modules, generated names."""

from __future__ import annotations

import re

import pytest

import servicebroker as sb
from tsql_support import create_database, failing, output_of, rows

_COUNT = iter(range(1000))


@pytest.fixture
def db(instance: sb.Instance) -> sb.Database:
    return instance.database(f"Documented{next(_COUNT)}", create=True)


@pytest.fixture(scope="module")
def numbers(instance: sb.Instance) -> sb.Database:
    script = """
        CREATE TABLE N (Tiny tinyint, Small smallint, Whole int)
        CREATE TABLE D (At datetime, Day date)
        CREATE QUEUE Q
    """
    return create_database(instance, "Numbers", script)


@pytest.mark.parametrize(
    ("script", "number", "text"),
    [
        ("SELECT CAST(300 AS tinyint)", 220, "Arithmetic overflow error for data type tinyint, value = 300."),
        ("DECLARE @t tinyint = -1", 220, "Arithmetic overflow error for data type tinyint, value = -1."),
        ("DECLARE @i int = 70000, @s smallint SET @s = @i", 220, "data type smallint, value = 70000."),
        ("DECLARE @i int = 70000 SELECT CAST(@i AS smallint)", 220, "data type smallint, value = 70000."),
        ("INSERT N (Tiny) VALUES (300)", 220, "data type tinyint, value = 300."),
        ("INSERT N (Small) SELECT 40000", 220, "data type smallint, value = 40000."),
        ("DECLARE @t tinyint = 200, @u tinyint = 100 SELECT @t + @u", 8115, "to data type tinyint."),
        ("DECLARE @s smallint = 30000 SELECT @s + @s", 8115, "to data type smallint."),
        ("SELECT CAST(3000000000 AS int)", 8115, "to data type int."),
        ("SELECT CAST(3e2 AS tinyint)", 232, "Arithmetic overflow error for type tinyint, value = 300.000000."),
        ("DECLARE @f float = 4e9, @i int SET @i = @f", 232, "for type int, value = 4000000000.000000."),
        ("SELECT CAST('300' AS tinyint)", 244, "overflowed an INT1 column. Use a larger integer column."),
        ("DECLARE @s smallint = '40000'", 244, "overflowed an INT2 column. Use a larger integer column."),
        ("SELECT CAST('3000000000' AS int)", 248, "overflowed an int column."),
        ("SELECT CAST('99999999999999999999' AS bigint)", 8115, "to data type bigint."),
        ("SELECT CAST('20240231' AS datetime)", 242, "varchar data type to a datetime data type"),
        ("DECLARE @d datetime = '2024-02-31'", 242, "varchar data type to a datetime data type"),
        ("INSERT D (At) VALUES ('31/12/2024')", 242, "out-of-range value."),
        ("SELECT CONVERT(smalldatetime, '25:00')", 242, "out-of-range value."),
        ("SELECT CAST('17521231' AS datetime)", 242, "out-of-range value."),
        ("SELECT CAST(CAST('17521231' AS datetime2) AS datetime)", 242, "datetime2 data type to a datetime data type"),
        ("SELECT CAST(CAST('18991231' AS datetime) AS smalldatetime)", 242, "to a smalldatetime data type"),
        ("DECLARE @d smalldatetime = '20790607'", 242, "to a smalldatetime data type"),
        ("SELECT CAST('soon' AS datetime)", 241, "Conversion failed when converting date and/or time"),
        ("SELECT CAST('20240231' AS date)", 241, "Conversion failed when converting date and/or time"),
        ("DECLARE @d datetime2 = '20240231'", 241, "Conversion failed when converting date and/or time"),
        ("SELECT CAST(5 AS datetime2)", 529, "to datetime2 is not allowed"),
        ("SELECT CAST(9999999 AS datetime)", 8115, "to data type datetime."),
    ],
)
def test_conversions_that_overflow_are_refused(numbers: sb.Database, script: str, number: int, text: str) -> None:
    error = failing(numbers, script)
    assert (error.number, text in error.text) == (number, True), error


def test_try_conversions_and_years_have_no_range_errors(numbers: sb.Database) -> None:
    assert rows(numbers, "SELECT TRY_CAST('20240231' AS datetime), TRY_CAST(300 AS tinyint)") == [(None, None)]
    assert rows(numbers, "SELECT YEAR('0001-01-01'), YEAR(CAST('00010101' AS datetime2))") == [(1, 1)]
    assert rows(numbers, "SELECT CONVERT(datetime, '31/12/2024', 103), ISDATE('20240231')")[0][1] == 0


def test_statements_about_a_missing_database_are_refused(numbers: sb.Database) -> None:
    assert output_of(numbers, "ALTER DATABASE Nowhere SET ENABLE_BROKER PRINT @@ERROR") == [5011, 5069, "5069"]
    assert output_of(numbers, "ALTER DATABASE Nowhere SET RECOVERY SIMPLE") == [5011, 5069]
    caught = "BEGIN TRY ALTER DATABASE Nowhere SET NEW_BROKER END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH"
    assert output_of(numbers, caught) == [[(5069,)]]
    assert output_of(numbers, "DROP DATABASE Nowhere") == [3701]
    assert output_of(numbers, "USE Nowhere") == [911]
    assert "'Nowhere.dbo.T'" in failing(numbers, "SELECT * FROM Nowhere.dbo.T").text


def test_a_column_that_no_queue_has(numbers: sb.Database) -> None:
    for listed in ("Bogus", "TOP (1) message_body, Bogus + 1 AS X", "Q.Bogus", "CAST(Bogus AS nvarchar(max))"):
        assert failing(numbers, f"RECEIVE {listed} FROM Q").number == 207
    assert failing(numbers, "DECLARE @x int RECEIVE @x = Bogus FROM Q").number == 207


_TALK = """
CREATE QUEUE Asks
CREATE QUEUE Answers
CREATE SERVICE Asking ON QUEUE Asks
CREATE SERVICE Answering ON QUEUE Answers ([DEFAULT])
GO
DECLARE @h uniqueidentifier
BEGIN DIALOG @h FROM SERVICE Asking TO SERVICE 'Answering' WITH ENCRYPTION = OFF;
SEND ON CONVERSATION @h (N'how many?')
RECEIVE TOP (1) @h = conversation_handle FROM Answers
END CONVERSATION @h
"""


def test_a_group_that_was_ended_in_its_transaction_is_empty(db: sb.Database) -> None:
    output_of(db, _TALK)
    output = output_of(
        db,
        """
        DECLARE @h uniqueidentifier, @g uniqueidentifier, @n int = 0
        BEGIN TRANSACTION
        WAITFOR (GET CONVERSATION GROUP @g FROM Asks), TIMEOUT 1000
        WHILE 1 = 1
        BEGIN
            RECEIVE TOP (1) @h = conversation_handle FROM Asks WHERE conversation_group_id = @g
            IF @@ROWCOUNT = 0 BREAK
            SET @n += 1
            END CONVERSATION @h
        END
        RECEIVE TOP (1) @h = conversation_handle FROM Asks WHERE conversation_handle = @h
        SELECT @n, @@ROWCOUNT
        COMMIT
        RECEIVE TOP (1) @h = conversation_handle FROM Asks WHERE conversation_group_id = @g
        RECEIVE TOP (1) @h = conversation_handle FROM Asks WHERE conversation_handle = @h
        """,
    )
    assert output == [[(1, 0)], 8436, 8426]


def test_texts_are_kept(db: sb.Database) -> None:
    text = "CREATE VIEW dbo.Few AS\n    SELECT 1 AS One, -- the first\n           2 AS Two"
    db.execute_tsql(text)
    assert rows(db, "EXEC sp_helptext 'dbo.Few'") == [(line + "\n",) for line in text.splitlines()]
    assert rows(db, "SELECT OBJECT_DEFINITION(OBJECT_ID('Few'))") == [(text,)]
    assert rows(db, "SELECT definition FROM sys.sql_modules WHERE object_id = OBJECT_ID('dbo.Few')") == [(text,)]
    assert rows(db, "SELECT view_definition FROM INFORMATION_SCHEMA.VIEWS WHERE table_name = 'few'") == [(text,)]
    db.execute_tsql("EXEC sp_rename 'Few', 'Fewer'")
    assert rows(db, "SELECT name, OBJECT_DEFINITION(object_id) FROM sys.views") == [("Fewer", text)]
    db.execute_tsql("ALTER VIEW Fewer AS SELECT 3 AS Three")
    assert rows(db, "SELECT OBJECT_DEFINITION(OBJECT_ID('Fewer'))") == [("CREATE VIEW Fewer AS SELECT 3 AS Three",)]
    output_of(db, "CREATE OR ALTER PROCEDURE P AS SELECT 1\nGO\nALTER PROCEDURE P AS SELECT 2")
    assert rows(db, "SELECT definition FROM sys.sql_modules WHERE object_id = OBJECT_ID('P')") == [
        ("CREATE PROCEDURE P AS SELECT 2",)
    ]
    db.execute_tsql("CREATE TABLE T (Id int)")
    assert failing(db, "EXEC sp_helptext 'T'").number == 15197
    assert failing(db, "EXEC sp_helptext 'Nothing'").number == 15009


def test_guids_that_are_text(db: sb.Database) -> None:
    guid = "abcdefab-cdef-abcd-efab-cdefabcdefab"
    output_of(
        db,
        f"""
        CREATE QUEUE Q
        CREATE SERVICE S ON QUEUE Q
        CREATE ROUTE R WITH SERVICE_NAME = 'Far', BROKER_INSTANCE = '{guid}', ADDRESS = 'LOCAL'
        DECLARE @h uniqueidentifier
        BEGIN DIALOG @h FROM SERVICE S TO SERVICE 'Far', '{guid}' WITH ENCRYPTION = OFF;
        SEND ON CONVERSATION @h
        """,
    )
    assert rows(db, "SELECT far_broker_instance FROM sys.conversation_endpoints") == [(guid.upper(),)]
    assert rows(db, "SELECT broker_instance FROM sys.routes WHERE name = 'R'") == [(guid.upper(),)]
    assert rows(db, f"SELECT to_broker_instance FROM sys.transmission_queue WHERE to_broker_instance = '{guid}'") == [
        (guid.upper(),)
    ]


def test_generated_names_of_constraints(db: sb.Database) -> None:
    db.execute_tsql("""
        CREATE TABLE Customers (Id int PRIMARY KEY, Mail nvarchar(20) UNIQUE, Age int CHECK (Age > 0))
        CREATE TABLE OrderDetails (Id int CONSTRAINT PK_Mine PRIMARY KEY, Customer int REFERENCES Customers (Id),
                                   B int DEFAULT 1, CHECK (Id > Customer))
        ALTER TABLE OrderDetails ADD UNIQUE (Customer)
    """)
    names = [
        name
        for (name,) in rows(db, "SELECT name FROM sys.objects WHERE type IN ('PK', 'UQ', 'F', 'C', 'D') ORDER BY name")
    ]
    forms = (
        "CK__Customers__Age__[0-9A-F]{8}",
        "CK__OrderDeta__[0-9A-F]{8}",
        "DF__OrderDeta__B__[0-9A-F]{8}",
        "FK__OrderDeta__Custo__[0-9A-F]{8}",
        "PK_Mine",
        "PK__Customer__[0-9A-F]{16}",
        "UQ__Customer__[0-9A-F]{16}",
        "UQ__OrderDet__[0-9A-F]{16}",
    )
    assert len(names) == len(forms)
    assert all(re.fullmatch(form, str(name)) for form, name in zip(forms, names, strict=True)), names
    assert rows(db, "SELECT is_system_named FROM sys.key_constraints ORDER BY name") == [(0,), (1,), (1,), (1,)]
    assert str(names[5]) in failing(db, "INSERT Customers (Id) VALUES (1), (1)").text
    assert rows(db, "SELECT name FROM sys.indexes WHERE is_primary_key = 1 AND object_id = OBJECT_ID('Customers')") == [
        (names[5],)
    ]
    # a name is looked up, and dropped by it; a table of the old name does not clash with what was renamed
    db.execute_tsql("""
        DECLARE @s nvarchar(max)
        SELECT @s = N'ALTER TABLE OrderDetails DROP CONSTRAINT ' + QUOTENAME(name) FROM sys.foreign_keys
        EXEC (@s)
        EXEC sp_rename 'Customers', 'CustomersBefore'
        CREATE TABLE Customers (Id int PRIMARY KEY)
    """)
    assert rows(db, "SELECT COUNT(*) FROM sys.foreign_keys") == [(0,)]
    assert rows(db, "SELECT COUNT(DISTINCT name) FROM sys.key_constraints WHERE type = 'PK'") == [(3,)]


def test_a_trigger_sees_the_columns_that_were_set(db: sb.Database) -> None:
    output_of(
        db,
        """
        CREATE TABLE T (a int, b int, c int)
        GO
        CREATE TRIGGER Seen ON T AFTER INSERT, UPDATE, DELETE AS
            SELECT COLUMNS_UPDATED(), CASE WHEN COLUMNS_UPDATED() & 4 = 4 THEN 'third' END,
                   SUBSTRING(COLUMNS_UPDATED(), 1, 1)
        """,
    )
    assert output_of(db, "INSERT T (a) VALUES (1) UPDATE T SET b = 2 UPDATE T SET a = 3, c = 4 DELETE T") == [
        [(b"\x07", "third", b"\x07")],
        [(b"\x02", None, b"\x02")],
        [(b"\x05", "third", b"\x05")],
        [(b"\x00", None, b"\x00")],
    ]


def test_columns_updated_keeps_its_bits_after_dropped_columns(db: sb.Database) -> None:
    output_of(
        db,
        """
        CREATE TABLE Wide (a int, b int, c int, d int, e int, f int, g int, h int, i int)
        ALTER TABLE Wide DROP COLUMN b
        ALTER TABLE Wide DROP COLUMN d
        GO
        CREATE TRIGGER SeenWide ON Wide AFTER UPDATE AS
            SELECT COLUMNS_UPDATED()
            SELECT column_id FROM sys.columns WHERE object_id = OBJECT_ID('Wide') AND name IN ('a', 'c', 'i')
            ORDER BY column_id
        GO
        INSERT Wide (a) VALUES (1)
        """,
    )
    assert output_of(db, "UPDATE Wide SET a = 1, c = 1, i = 1") == [[(b"\x05\x01",)], [(1,), (3,), (9,)]]


def test_the_types_of_events_are_listed(db: sb.Database) -> None:
    known = "SELECT type_name FROM sys.event_notification_event_types WHERE type_name LIKE 'BROKER_Q%' OR type = 1"
    assert rows(db, known + " ORDER BY 1") == [("BROKER_QUEUE_DISABLED",), ("QUEUE_ACTIVATION",)]
    members = """SELECT e.type_name FROM sys.trigger_event_types e
                   JOIN sys.trigger_event_types p ON p.type = e.parent_type
                  WHERE p.type_name = 'DDL_TABLE_EVENTS' ORDER BY 1"""
    assert rows(db, members) == [("ALTER_TABLE",), ("CREATE_TABLE",), ("DROP_TABLE",)]
    assert rows(db, "SELECT is_user_process FROM sys.dm_exec_sessions WHERE session_id = @@SPID") == [(1,)]


def test_a_computed_column_with_a_fixed_length_is_padded(db: sb.Database) -> None:
    db.execute_tsql("""
        CREATE TABLE T (a varchar(9), x xml, b AS CAST(LEFT(a, 1) AS char(3)), c AS x.value('(/a/@b)[1]', 'nchar(2)'))
        INSERT T (a, x) VALUES ('hello', '<a b="q"/>')
    """)
    assert rows(db, "SELECT b, c FROM T") == [("h  ", "q ")]
    assert rows(db, "SELECT max_length FROM sys.columns WHERE name = 'b' AND object_id = OBJECT_ID('T')") == [(3,)]


def test_times_of_waitfor_need_no_leading_zeros(numbers: sb.Database) -> None:
    assert output_of(numbers, "WAITFOR DELAY '0:0:0.05' WAITFOR DELAY '00:00:0' PRINT 'on'") == ["on"]
    assert output_of(numbers, "WAITFOR DELAY '0:60:0'") == [148]
