"""Triggers of a table that a statement of another database changes: they fire in the database of the table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import servicebroker as sb
from tsql_support import create_database, output_of, rows, scalar

TRIGGER = """
CREATE TRIGGER dbo.{name} ON dbo.{table} {when} INSERT, UPDATE, DELETE AS
    INSERT dbo.Noted (Db, Who, Ins, Del)
    SELECT DB_NAME(), USER_NAME(), (SELECT MAX(Id) FROM inserted), (SELECT MAX(Id) FROM deleted)
GO
"""
TARGET = (
    """
CREATE TABLE dbo.Noted (Db sysname, Who sysname, Ins int, Del int);
CREATE TABLE dbo.Got (Id int);
CREATE TABLE dbo.After_ (Id int, V int DEFAULT 0);
CREATE TABLE dbo.Instead (Id int, V int DEFAULT 0);
GO
"""
    + TRIGGER.format(name="TrAfter", table="After_", when="AFTER")
    + TRIGGER.format(name="TrInstead", table="Instead", when="INSTEAD OF")
)
CALLER = """
CREATE TABLE dbo.Noted (Db sysname, Who sysname, Ins int, Del int);
CREATE TABLE dbo.Go_ (What int);
CREATE SYNONYM dbo.SynAfter_ FOR TargetBase.dbo.After_;
CREATE SYNONYM dbo.SynInstead FOR TargetBase.dbo.Instead;
GO
CREATE VIEW dbo.ViewAfter_ AS SELECT Id, V FROM TargetBase.dbo.After_;
GO
CREATE VIEW dbo.ViewInstead AS SELECT Id, V FROM TargetBase.dbo.Instead;
GO
"""
# A statement, and the largest Id that its trigger sees in inserted and in deleted.
STATEMENTS = {
    "insert": ("INSERT {t} (Id) VALUES (7)", 7, None),
    "insert-select": ("INSERT INTO {t} (Id) SELECT 3 UNION SELECT 8", 8, None),
    "insert-output": ("INSERT {t} (Id) OUTPUT inserted.Id INTO TargetBase.dbo.Got VALUES (9)", 9, None),
    "insert-exec": ("INSERT {t} (Id) EXEC ('SELECT 4')", 4, None),
    "update": ("UPDATE {t} SET Id = Id + 10 WHERE Id = 1", 11, 1),
    "update-from": ("UPDATE x SET Id = 12 FROM {t} AS x WHERE x.Id = 2", 12, 2),
    "update-output": ("UPDATE {t} SET V = 1 OUTPUT deleted.Id INTO TargetBase.dbo.Got WHERE Id = 2", 2, 2),
    "delete": ("DELETE {t} WHERE Id = 2", None, 2),
    "delete-output": ("DELETE FROM {t} OUTPUT deleted.Id INTO TargetBase.dbo.Got WHERE Id = 1", None, 1),
    "merge-insert": ("MERGE {t} AS t USING (SELECT 5 AS Id) AS s ON s.Id = t.Id "
                     "WHEN NOT MATCHED THEN INSERT (Id) VALUES (s.Id);", 5, None),
    "merge-update": ("MERGE {t} AS t USING (SELECT 1 AS Id) AS s ON s.Id = t.Id "
                     "WHEN MATCHED THEN UPDATE SET V = 3;", 1, 1),
    "merge-delete": ("MERGE {t} AS t USING (SELECT 1 AS Id) AS s ON s.Id = t.Id WHEN MATCHED THEN DELETE;", None, 1),
}  # fmt: skip
WAYS_TO_NAME_TABLES = {
    "three-parts": ("TargetBase.dbo.{table}", "{s}"),
    "two-dots": ("TargetBase..{table}", "{s}"),
    "synonym": ("dbo.Syn{table}", "{s}"),
    "view": ("dbo.View{table}", "{s}"),
    "procedure": ("TargetBase.dbo.{table}", "EXEC ('CREATE OR ALTER PROCEDURE dbo.P AS {q}'); EXEC dbo.P"),
    "trigger": (
        "TargetBase.dbo.{table}",
        "EXEC ('CREATE OR ALTER TRIGGER dbo.G ON dbo.Go_ AFTER INSERT AS {q}'); INSERT dbo.Go_ VALUES (1)",
    ),
    "text": ("TargetBase.dbo.{table}", "EXEC ('{q}')"),
    "executesql": ("TargetBase.dbo.{table}", "EXEC sp_executesql N'{q}'"),
    "in-a-transaction": ("TargetBase.dbo.{table}", "BEGIN TRAN; {s}; COMMIT"),
}


@pytest.fixture(scope="module")
def caller(instance: sb.Instance) -> sb.Database:
    instance.database("TargetBase", create=True).execute_tsql(TARGET)
    return create_database(instance, "CallerBase", CALLER)


@pytest.mark.parametrize("table", ["After_", "Instead"])
@pytest.mark.parametrize("way", WAYS_TO_NAME_TABLES)
@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.sampled(70)
def test_a_trigger_fires_in_the_database_of_its_table(
    caller: sb.Database, statement: str, way: str, table: str
) -> None:
    if way == "view" and statement in NOT_OF_VIEWS:
        pytest.skip("OUTPUT of an UPDATE of a view is refused, whichever database has the table")
    target, form = WAYS_TO_NAME_TABLES[way]
    text, inserted, deleted = STATEMENTS[statement]
    said = text.format(t=target.format(table=table))
    caller.execute_tsql(
        f"DISABLE TRIGGER ALL ON TargetBase.dbo.{table}; DELETE TargetBase.dbo.{table}; DELETE TargetBase.dbo.Noted; "
        f"INSERT TargetBase.dbo.{table} (Id) VALUES (1), (2); ENABLE TRIGGER ALL ON TargetBase.dbo.{table}"
    )
    caller.execute_tsql(form.format(s=said, q=said.replace("'", "''")))
    assert rows(caller, "SELECT Db, Who, Ins, Del FROM TargetBase.dbo.Noted") == [
        ("TargetBase", "dbo", inserted, deleted)
    ]
    assert rows(caller, "SELECT DB_NAME(), (SELECT COUNT(*) FROM dbo.Noted)") == [("CallerBase", 0)]
    if table == "Instead":
        assert rows(caller, "SELECT Id, V FROM TargetBase.dbo.Instead ORDER BY Id") == [(1, 0), (2, 0)]


NOT_OF_VIEWS = ("update-output",)  # OUTPUT of an UPDATE of a view is refused, in every database


RIGHTS = """
CREATE TABLE dbo.Doors (Id int IDENTITY(100, 1), V int);
CREATE TABLE dbo.Seen (Line int IDENTITY(500, 1), What nvarchar(100));
CREATE TABLE dbo.Secret (V int);
CREATE USER ClerkThere FOR LOGIN clerk;
CREATE USER Teller WITHOUT LOGIN;
GRANT INSERT, SELECT, UPDATE ON dbo.Doors TO ClerkThere;
GO
CREATE TRIGGER dbo.Same ON dbo.Doors AFTER INSERT AS
    INSERT Seen SELECT CONCAT('caller ', DB_NAME(), ' ', USER_NAME(), ' ', OBJECT_NAME(@@PROCID), ' ', TRIGGER_NESTLEVEL())
GO
CREATE TRIGGER dbo.Owned ON dbo.Doors WITH EXECUTE AS OWNER AFTER INSERT AS
    INSERT Seen SELECT CONCAT('owner ', DB_NAME(), ' ', USER_NAME())
GO
CREATE TRIGGER dbo.AsTeller ON dbo.Doors WITH EXECUTE AS 'Teller' AFTER INSERT AS
    INSERT Seen SELECT CONCAT('named ', DB_NAME(), ' ', USER_NAME())
GO
CREATE TRIGGER dbo.Raised ON dbo.Doors AFTER UPDATE AS
    IF EXISTS (SELECT * FROM inserted WHERE V = 1) THROW 50001, N'no', 1
    IF EXISTS (SELECT * FROM inserted WHERE V = 2) BEGIN ROLLBACK RETURN END
    IF EXISTS (SELECT * FROM inserted WHERE V = 3) EXEC ('SELECT * FROM dbo.Secret')
    IF EXISTS (SELECT * FROM inserted WHERE V = 4) INSERT HallHere.dbo.Doors (V) VALUES (4)
GO
"""
SEEN_ROWS = "SELECT What FROM HallThere.dbo.Seen ORDER BY What"


@pytest.fixture
def hall(instance: sb.Instance) -> Iterator[sb.Database]:
    """A hall whose clerk is a user of another name in the other database, which has the doors."""
    there_database = instance.database("HallThere", create=True)
    here = instance.database("HallHere", create=True)
    here.execute_tsql(
        "CREATE LOGIN clerk WITH PASSWORD = 'x'; CREATE USER ClerkHere FOR LOGIN clerk; "
        "CREATE TABLE dbo.Doors (V int); CREATE TABLE dbo.Seen (What nvarchar(100))"
    )
    here.execute_tsql(
        "CREATE TRIGGER dbo.Same ON dbo.Doors AFTER INSERT AS INSERT Seen SELECT CONCAT('here ', DB_NAME(), USER_NAME())"
    )
    there_database.execute_tsql(RIGHTS)
    yield here
    instance.database("tempdb", create=True).execute_tsql(
        "DROP DATABASE HallHere; DROP DATABASE HallThere; DROP LOGIN clerk"
    )


@pytest.mark.parametrize(
    ("begin", "user"), [("", "dbo"), ("EXECUTE AS LOGIN = 'clerk';", "ClerkThere")], ids=["dbo", "clerk"]
)
def test_a_trigger_runs_as_the_callers_user_in_its_database(hall: sb.Database, begin: str, user: str) -> None:
    """The owner's chain and EXECUTE AS are those of the trigger's database; afterwards all is as it was."""
    found = hall.execute_tsql(
        f"{begin} INSERT HallThere.dbo.Doors (V) VALUES (0); SELECT SCOPE_IDENTITY(), @@IDENTITY, DB_NAME(), USER_NAME()"
    ).rows
    assert found == [(100, 502, "HallHere", "ClerkHere" if begin else "dbo")]
    assert rows(hall, SEEN_ROWS) == [
        (f"caller HallThere {user} Same 1",),
        ("named HallThere Teller",),
        ("owner HallThere dbo",),
    ]


@pytest.mark.parametrize(
    ("value", "number"), [(1, 50001), (2, 3609), (3, 229), (4, 229)], ids=["throw", "rollback", "text", "other-table"]
)
def test_an_error_in_a_foreign_trigger_keeps_the_callers_context(hall: sb.Database, value: int, number: int) -> None:
    """A dynamic text there has the clerk's own rights, and so has a table of the caller's database."""
    hall.execute_tsql("INSERT HallThere.dbo.Doors (V) VALUES (0)")
    output = output_of(
        hall,
        f"EXECUTE AS LOGIN = 'clerk'\nBEGIN TRY UPDATE HallThere.dbo.Doors SET V = {value} END TRY\n"
        "BEGIN CATCH SELECT ERROR_NUMBER() END CATCH\nGO\nIF @@TRANCOUNT > 0 ROLLBACK\n"
        "SELECT DB_NAME(), USER_NAME()",
    )
    assert output[0] in ([(number,)], number)
    assert output[-1] == [("HallHere", "ClerkHere")]
    assert scalar(hall, "SELECT V FROM HallThere.dbo.Doors") == 0


def test_triggers_of_two_databases_fire_each_other(hall: sb.Database) -> None:
    """Each in its own, though they have one name."""
    hall.execute_tsql("INSERT HallThere.dbo.Doors (V) VALUES (0); UPDATE HallThere.dbo.Doors SET V = 4")
    assert rows(hall, "SELECT What FROM dbo.Seen") == [("here HallHeredbo",)]


def test_a_login_without_a_user_in_the_other_database_fires_no_trigger(hall: sb.Database) -> None:
    assert output_of(hall, "CREATE LOGIN stray WITH PASSWORD = 'x'; CREATE USER Stray FOR LOGIN stray") == []
    assert output_of(hall, "EXECUTE AS LOGIN = 'stray'\nINSERT HallThere.dbo.Doors (V) VALUES (0)") == [916]
    assert scalar(hall, "SELECT COUNT(*) FROM HallThere.dbo.Doors") == 0
    hall.execute_tsql("DROP USER Stray; DROP LOGIN stray")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TRIGGER dbo.Far ON HallThere.dbo.Doors AFTER INSERT AS PRINT 'x'",
        "CREATE TRIGGER dbo.Far ON HallThere..Doors INSTEAD OF DELETE AS PRINT 'x'",
    ],
)
def test_a_trigger_is_made_in_the_database_of_its_table(hall: sb.Database, text: str) -> None:
    assert output_of(hall, text) == [2108]
    assert scalar(hall, "SELECT COUNT(*) FROM sys.triggers WHERE name = 'Far'") == 0
    hall.execute_tsql("USE HallThere; EXEC ('CREATE TRIGGER dbo.Near ON HallThere.dbo.Doors AFTER DELETE AS PRINT 1')")


def test_truncate_fires_nothing(caller: sb.Database) -> None:
    caller.execute_tsql("DELETE TargetBase.dbo.Noted; TRUNCATE TABLE TargetBase.dbo.After_")
    assert scalar(caller, "SELECT COUNT(*) FROM TargetBase.dbo.Noted") == 0
