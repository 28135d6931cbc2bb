"""INSTEAD OF triggers, on tables and on views."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import servicebroker as sb
from tsql_support import create_database, output_of, rows

TABLES = """
CREATE TABLE dbo.People (Id INT PRIMARY KEY, Name NVARCHAR(20) NOT NULL);
CREATE TABLE dbo.Posts (Person INT, Post NVARCHAR(20));
CREATE TABLE dbo.Noted (Line INT IDENTITY, Text NVARCHAR(60));
CREATE TABLE dbo.Kept (Id INT IDENTITY PRIMARY KEY, What NVARCHAR(20) NOT NULL, Twice AS Id * 2);
GO
CREATE VIEW dbo.Staff AS SELECT p.Id, p.Name, o.Post FROM dbo.People AS p LEFT JOIN dbo.Posts AS o ON o.Person = p.Id;
GO
CREATE TRIGGER dbo.Hire ON dbo.Staff INSTEAD OF INSERT AS
BEGIN
    INSERT dbo.People (Id, Name) SELECT Id, Name FROM inserted;
    INSERT dbo.Posts SELECT Id, Post FROM inserted WHERE Post IS NOT NULL;
END
GO
CREATE TRIGGER dbo.Fire ON dbo.Staff INSTEAD OF DELETE AS
    DELETE dbo.People WHERE Id IN (SELECT Id FROM deleted)
GO
CREATE TRIGGER Move ON Staff INSTEAD OF UPDATE AS
    IF UPDATE(Post) UPDATE o SET Post = i.Post FROM dbo.Posts AS o JOIN inserted AS i ON i.Id = o.Person
    INSERT dbo.Noted SELECT d.Post + N' -> ' + i.Post FROM deleted AS d JOIN inserted AS i ON i.Id = d.Id
GO
CREATE TRIGGER dbo.Keep ON dbo.Kept INSTEAD OF INSERT, DELETE AS
    INSERT dbo.Noted SELECT N'in ' + COALESCE(What, N'nothing') FROM inserted
    INSERT dbo.Noted SELECT N'out ' + What FROM deleted
    INSERT dbo.Kept (What) SELECT What FROM inserted WHERE What IS NOT NULL
GO
CREATE TRIGGER dbo.Behind ON dbo.Kept AFTER INSERT, UPDATE, DELETE AS
    INSERT dbo.Noted SELECT CONCAT(N'after ', (SELECT COUNT(*) FROM inserted), N'/', (SELECT COUNT(*) FROM deleted))
"""


@pytest.fixture(scope="module")
def office(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "DivertedOffice", TABLES)


@pytest.fixture
def empty(office: sb.Database) -> sb.Database:
    office.execute_tsql(
        "DISABLE TRIGGER ALL ON dbo.Kept; TRUNCATE TABLE Kept; DELETE Noted; DELETE People; DELETE Posts; "
        "ENABLE TRIGGER ALL ON dbo.Kept; ENABLE TRIGGER ALL ON dbo.Staff"
    )
    return office


STAFF = "SELECT Id, Name, Post FROM Staff ORDER BY Id"
NOTED = "SELECT Text FROM Noted ORDER BY Line"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"INSERT Staff VALUES (1, N'Ada', N'lead'), (2, N'Bo', NULL); SELECT @@ROWCOUNT; {STAFF}",
         [[(2,)], [(1, "Ada", "lead"), (2, "Bo", None)]]),
        (f"INSERT Staff (Id, Name) SELECT 3, N'Cy'; {STAFF}", [[(3, "Cy", None)]]),
        (f"INSERT Staff VALUES (1, N'Ada', N'a'); UPDATE Staff SET Post = N'b' WHERE Id = 1; {STAFF}; {NOTED}",
         [[(1, "Ada", "b")], [("a -> b",)]]),
        (f"INSERT Staff VALUES (1, N'Ada', N'a'); UPDATE Staff SET Name = N'X'; SELECT @@ROWCOUNT; {STAFF}",
         [[(1,)], [(1, "Ada", "a")]]),
        (f"INSERT Staff VALUES (1, N'Ada', NULL), (2, N'Bo', NULL); DELETE Staff WHERE Id = 1; {STAFF}",
         [[(2, "Bo", None)]]),
        (f"INSERT Kept (What) VALUES (N'a'), (NULL); SELECT @@ROWCOUNT; SELECT What FROM Kept; {NOTED}",
         [[(2,)], [("a",)], [("in a",), ("in nothing",), ("after 1/0",)]]),
        (f"INSERT Kept (What) VALUES (N'a'); DELETE Noted; DELETE Kept; SELECT What FROM Kept; {NOTED}",
         [[("a",)], [("out a",), ("after 0/0",)]]),
        (f"INSERT Kept (What) VALUES (N'a'); DELETE Noted; UPDATE Kept SET What = N'b'; SELECT What FROM Kept; {NOTED}",
         [[("b",)], [("after 1/1",)]]),
        (f"DELETE Kept WHERE What = N'none'; SELECT @@ROWCOUNT; {NOTED}", [[(0,)], [("after 0/0",)]]),
        (f"DISABLE TRIGGER Keep ON Kept; INSERT Kept (What) VALUES (N'a'); {NOTED}", [[("after 1/0",)]]),
        (f"DISABLE TRIGGER Keep ON Kept; ENABLE TRIGGER Keep ON Kept; INSERT Kept (What) VALUES (NULL); {NOTED}",
         [[("in nothing",), ("after 0/0",)]]),
        (f"BEGIN TRAN; INSERT Staff VALUES (5, N'Eve', N'x'); ROLLBACK; {STAFF}", [[]]),
        (f"BEGIN TRY INSERT Staff VALUES (1, NULL, NULL) END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH; {STAFF}",
         [[(515,)], []]),
    ],
)  # fmt: skip
def test_the_trigger_replaces_the_statement(empty: sb.Database, script: str, expected: list[Any]) -> None:
    assert [
        output for output in output_of(empty, "SET NOCOUNT ON; " + script) if not isinstance(output, str)
    ] == expected


def test_alter_view_keeps_the_triggers(empty: sb.Database) -> None:
    empty.execute_tsql("CREATE VIEW Names AS SELECT Id, Name FROM dbo.People")
    empty.execute_tsql("CREATE TRIGGER Named ON Names INSTEAD OF INSERT AS INSERT Noted SELECT Name FROM inserted")
    empty.execute_tsql("ALTER VIEW Names AS SELECT Id, Name, Id * 2 AS Twice FROM dbo.People")
    empty.execute_tsql("INSERT Names (Name) VALUES (N'here')")
    assert rows(empty, NOTED) == [("here",)]
    empty.execute_tsql("DROP TRIGGER Named; INSERT Names (Id, Name) VALUES (9, N'there')")
    assert rows(empty, "SELECT Name FROM People") == [("there",)]
    empty.execute_tsql("DROP VIEW Names")


def test_alter_trigger_changes_the_events(empty: sb.Database) -> None:
    empty.execute_tsql("CREATE TABLE Turned (N INT)")
    empty.execute_tsql("CREATE TRIGGER Turn ON Turned INSTEAD OF INSERT AS INSERT Turned SELECT N + 1 FROM inserted")
    empty.execute_tsql("INSERT Turned VALUES (1)")
    empty.execute_tsql("ALTER TRIGGER Turn ON Turned INSTEAD OF DELETE AS PRINT N'stays'")
    assert output_of(empty, "INSERT Turned VALUES (5); DELETE Turned")[-1] == "stays"
    assert rows(empty, "SELECT N FROM Turned ORDER BY N") == [(2,), (5,)]
    empty.execute_tsql("ALTER TRIGGER Turn ON Turned AFTER DELETE AS PRINT N'gone'")
    assert output_of(empty, "DELETE Turned")[-1] == "gone"
    assert rows(empty, "SELECT N FROM Turned") == []
    empty.execute_tsql("DROP TABLE Turned")


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("CREATE TRIGGER Second ON Staff INSTEAD OF INSERT AS PRINT 1", 2111),
        ("CREATE TRIGGER Second ON Kept INSTEAD OF UPDATE, DELETE AS PRINT 1", 2111),
        ("CREATE TRIGGER Second ON Staff AFTER INSERT AS PRINT 1", 8197),
        ("CREATE TRIGGER Second ON Staff FOR DELETE AS PRINT 1", 8197),
        ("CREATE TRIGGER Second ON Nowhere INSTEAD OF INSERT AS PRINT 1", 8197),
        ("CREATE TRIGGER Second ON Staff INSTEAD OF SELECT AS PRINT 1", 102),
        ("CREATE TRIGGER Second ON Staff INSTEAD OF AS PRINT 1", 102),
        ("UPDATE s SET Name = N'x' FROM Staff AS s JOIN People AS p ON p.Id = s.Id", 40515),
        ("DELETE TOP (1) FROM Staff", 40515),
    ],
)
def test_invalid_triggers_and_statements_are_refused(empty: sb.Database, script: str, number: int) -> None:
    with pytest.raises(sb.BrokerError) as error:
        empty.execute_tsql(script)
    assert error.value.number == number
    assert rows(empty, "SELECT COUNT(*) FROM sys.triggers WHERE name = 'Second'") == [(0,)]


def test_sql_of_postgresql_fires_no_trigger_and_cannot_change_the_view(empty: sb.Database) -> None:
    empty.execute_tsql("INSERT Staff VALUES (1, N'Ada', NULL)")
    with empty.instance.connection() as connection:
        connection.execute("insert into divertedoffice_dbo.kept (what) values ('plain')")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="only T-SQL"):
            connection.execute("delete from divertedoffice_dbo.staff where true")
        connection.rollback()
    assert rows(empty, NOTED) == []
