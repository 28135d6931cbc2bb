"""ENABLE and DISABLE TRIGGER, in both forms."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.statement_errors import TsqlError
from tsql_support import create_database, output_of

TABLES = """
CREATE TABLE dbo.Doors (Number INT PRIMARY KEY);
CREATE TABLE dbo.Rings (Who NVARCHAR(20));
GO
CREATE TRIGGER dbo.Bell ON dbo.Doors AFTER INSERT AS INSERT Rings VALUES (N'bell');
GO
CREATE TRIGGER Knocker ON Doors AFTER INSERT AS INSERT Rings VALUES (N'knocker');
"""


@pytest.fixture(scope="module")
def house(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "DoorHouse", TABLES)


def ringing_bells(house: sb.Database, script: str) -> list[str]:
    """Return the bells that ring when a door is made after the script; restore all bells afterwards."""
    found = house.execute_tsql(
        f"DELETE Rings; DELETE Doors;\n{script};\nINSERT Doors VALUES (1); SELECT Who FROM Rings ORDER BY Who"
    ).rows
    house.execute_tsql("ENABLE TRIGGER ALL ON Doors")
    return [who for (who,) in found]


@pytest.mark.parametrize(
    ("script", "left"),
    [
        ("DISABLE TRIGGER Bell ON Doors", ["knocker"]),
        ("disable trigger [dbo].[bell], Knocker on [dbo].[Doors]", []),
        ("DISABLE TRIGGER ALL ON Doors; ENABLE TRIGGER dbo.Bell ON dbo.Doors", ["bell"]),
        ("ALTER TABLE Doors DISABLE TRIGGER Knocker", ["bell"]),
        (
            "ALTER TABLE dbo.Doors DISABLE TRIGGER ALL ALTER TABLE dbo.Doors ENABLE TRIGGER Bell, Knocker",
            ["bell", "knocker"],
        ),
        ("BEGIN TRAN; DISABLE TRIGGER ALL ON Doors; ROLLBACK", ["bell", "knocker"]),
        ("IF 1 = 1 DISABLE TRIGGER Bell ON Doors ELSE DISABLE TRIGGER ALL ON Doors", ["knocker"]),
        ("EXEC ('ALTER TABLE Doors DISABLE TRIGGER ALL')", []),
        ("ALTER TABLE Rings ENABLE TRIGGER ALL", ["bell", "knocker"]),
        ("DELETE Doors OUTPUT deleted.Number", ["bell", "knocker"]),
    ],
)
def test_a_disabled_trigger_does_not_run(house: sb.Database, script: str, left: list[str]) -> None:
    assert ringing_bells(house, script) == left


def test_sys_triggers_shows_disabled_triggers(house: sb.Database) -> None:
    shown = "SELECT name, is_disabled FROM sys.triggers WHERE parent_id = OBJECT_ID('dbo.Doors') ORDER BY name"
    assert house.execute_tsql(f"DISABLE TRIGGER Bell ON Doors; {shown}").rows == [("Bell", True), ("Knocker", False)]
    house.execute_tsql("ALTER TRIGGER dbo.Bell ON dbo.Doors AFTER INSERT AS INSERT Rings VALUES (N'bell')")
    assert house.execute_tsql(shown).rows == [("Bell", False), ("Knocker", False)]


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("DISABLE TRIGGER Gong ON Doors", 1088),
        ("DISABLE TRIGGER Bell ON Rings", 1088),
        ("ENABLE TRIGGER Bell ON Nowhere", 1088),
        ("DISABLE TRIGGER Bell, Gong ON Doors", 1088),
        ("ALTER TABLE Doors DISABLE TRIGGER Gong", 4920),
        ("ALTER TABLE Nowhere DISABLE TRIGGER ALL", 4902),
        ("DISABLE TRIGGER Bell ON DATABASE", 40515),
        ("DISABLE TRIGGER ALL ON ALL SERVER", 40515),
        ("DISABLE TRIGGER Bell", 102),
        ("ALTER TABLE Doors DISABLE TRIGGER", 102),
        ("INSERT Doors OUTPUT inserted.Number VALUES (9)", 334),
        ("INSERT Doors OUTPUT inserted.Number INTO Rings OUTPUT inserted.Number VALUES (9)", 334),
    ],
)
def test_a_missing_trigger_is_refused_and_no_trigger_switched(house: sb.Database, script: str, number: int) -> None:
    with pytest.raises(TsqlError) as error:
        house.execute_tsql(script)
    assert error.value.number == number
    assert ringing_bells(house, "PRINT 'as before'") == ["bell", "knocker"]


def test_a_trigger_does_not_fire_itself(instance: sb.Instance) -> None:
    """RECURSIVE_TRIGGERS is OFF; those of two tables fire each other."""
    mill = instance.database("MillHouse", create=True)
    mill.execute_tsql("""
    CREATE TABLE Sacks (Id int, Turns int DEFAULT 0, Weight int)
    CREATE TABLE Carts (Id int)
    INSERT Sacks (Id) VALUES (1), (2)
    GO
    CREATE TRIGGER Turned ON Sacks AFTER UPDATE AS
    UPDATE Sacks SET Turns = Sacks.Turns + 1 FROM Sacks JOIN inserted i ON i.Id = Sacks.Id
    GO
    CREATE TRIGGER Filled ON Sacks AFTER INSERT AS EXEC ('INSERT Sacks (Id) VALUES (99)')
    GO
    CREATE TRIGGER Loaded ON Carts AFTER INSERT AS
    IF EXISTS (SELECT * FROM inserted WHERE Id < 3) INSERT Sacks (Id) SELECT Id FROM inserted
    GO
    CREATE TRIGGER Followed ON Sacks AFTER INSERT AS
    IF EXISTS (SELECT * FROM inserted WHERE Id < 9) INSERT Carts SELECT Id + 1 FROM inserted
    """)
    found = mill.execute_tsql("UPDATE Sacks SET Weight = 5 WHERE Id = 1; SELECT Id, Turns FROM Sacks ORDER BY Id").rows
    assert found == [(1, 1), (2, 0)]
    mill.execute_tsql("DISABLE TRIGGER Followed ON Sacks; INSERT Sacks (Id) VALUES (3)")
    assert mill.execute_tsql("SELECT Id FROM Sacks ORDER BY Id").rows == [(1,), (2,), (3,), (99,)]
    mill.execute_tsql("DISABLE TRIGGER Filled ON Sacks; ENABLE TRIGGER Followed ON Sacks; INSERT Carts VALUES (1)")
    assert mill.execute_tsql("SELECT Id FROM Carts ORDER BY Id").rows == [(1,), (2,), (3,)]
    with pytest.raises(TsqlError) as error:
        mill.execute_tsql("ALTER DATABASE MillHouse SET RECURSIVE_TRIGGERS ON")
    assert error.value.number == 40515
    mill.execute_tsql("ALTER DATABASE MillHouse SET RECURSIVE_TRIGGERS OFF")


def test_a_trigger_that_commits_leaves_nothing_behind(instance: sb.Instance) -> None:
    """The trigger's rows are gone, though no transaction is open at its end: the next statement makes them anew."""
    shop = instance.database("CommitHouse", create=True)
    shop.execute_tsql("""
    CREATE TABLE Sold (Id int); CREATE TABLE Told (Id int)
    GO
    CREATE TRIGGER Teller ON Sold AFTER INSERT AS INSERT Told SELECT Id FROM inserted; COMMIT
    """)
    for number in (1, 2):
        assert output_of(shop, f"INSERT Sold VALUES ({number})") == [3609]
    assert shop.execute_tsql("SELECT Id FROM Told ORDER BY Id").rows == [(1,), (2,)]
