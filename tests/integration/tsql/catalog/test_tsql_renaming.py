"""sp_rename."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.check import check
from tsql_support import output_of, rows

OBJECTS = """
CREATE TABLE dbo.Orders (Id INT PRIMARY KEY, Amount DECIMAL(9, 2), Twice AS Amount * 2);
CREATE INDEX ByAmount ON dbo.Orders (Amount);
CREATE TABLE dbo.Seen (What NVARCHAR(20));
CREATE TABLE dbo.Other (N INT); CREATE QUEUE dbo.Inbox; CREATE SYNONYM dbo.O FOR dbo.Orders;
CREATE SCHEMA Depot;
CREATE TABLE Depot.Shelf (N INT);
CREATE USER Clerk WITHOUT LOGIN; GRANT SELECT ON dbo.Orders TO Clerk;
INSERT dbo.Orders (Id, Amount) VALUES (1, 5);
GO
CREATE VIEW dbo.Large AS SELECT Id FROM dbo.Orders WHERE Amount > 1
GO
CREATE TRIGGER dbo.Watch ON dbo.Orders AFTER INSERT AS INSERT dbo.Seen SELECT CONCAT(N'new ', Id) FROM inserted
GO
CREATE TRIGGER dbo.Guard ON dbo.Orders INSTEAD OF DELETE AS INSERT dbo.Seen SELECT CONCAT(N'kept ', Id) FROM deleted
GO
CREATE PROCEDURE dbo.Sell AS SELECT 7 AS n
GO
CREATE FUNCTION dbo.F () RETURNS INT AS BEGIN RETURN 1 END
"""


@pytest.fixture
def shop(instance: sb.Instance) -> sb.Database:
    shop = instance.database("RenamedShop", create=True)
    if rows(shop, "SELECT OBJECT_ID('dbo.Seen')") == [(None,)]:
        shop.execute_tsql(OBJECTS)
    return shop


def undone(shop: sb.Database, script: str) -> list[Any]:
    """Return the output of a script that is rolled back."""
    return output_of(shop, f"BEGIN TRAN;\n{script};\nROLLBACK")


@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("EXEC sp_rename 'dbo.Orders', 'Sold'; SELECT Id FROM dbo.Sold", [(1,)]),
        ("EXEC sp_rename 'Orders', 'Sold Things'; INSERT [Sold Things] (Id) VALUES (2); SELECT What FROM Seen",
         [("new 2",)]),
        ("EXEC sp_rename 'Orders', 'Sold'; DELETE Sold; SELECT What FROM Seen", [("kept 1",)]),
        ("EXEC sp_rename 'Orders', 'Sold'; SELECT name FROM sys.tables WHERE name LIKE 'Sold%'", [("Sold",)]),
        ("EXEC sp_rename 'Orders', 'ORDERS'; SELECT name FROM sys.tables WHERE name = 'orders'", [("ORDERS",)]),
        ("EXEC sp_rename 'Orders', 'Sold'; DROP INDEX ByAmount ON Sold; SELECT COUNT(*) FROM Large", [(1,)]),
        ("EXEC sp_rename 'Orders', 'Sold'; EXECUTE AS USER = 'Clerk'; SELECT Id FROM Sold; REVERT", [(1,)]),
        ("EXEC sp_rename 'dbo.Orders.Amount', 'Price', 'COLUMN'; SELECT Price, Twice FROM Orders", [(5, 10)]),
        ("EXEC sp_rename 'RenamedShop.dbo.Orders.Amount', 'Price', 'column'; SELECT * FROM Orders", [(1, 5, 10)]),
        ("EXEC sp_rename @objname = 'Orders.ByAmount', @newname = 'ByPrice', @objtype = 'INDEX'; "
         "DROP INDEX ByPrice ON Orders; SELECT 1", [(1,)]),
        ("EXEC sp_rename 'Large', 'Big', 'OBJECT'; SELECT Id FROM Big", [(1,)]),
        ("EXEC sp_rename 'Sell', 'Sold'; EXEC dbo.Sold", [(7,)]),
        ("EXEC sp_rename 'O', 'Alias'; SELECT Id FROM Alias", [(1,)]),
        ("EXEC sp_rename 'Watch', 'Look'; DISABLE TRIGGER Look ON Orders; INSERT Orders (Id) VALUES (3); "
         "SELECT COUNT(*) FROM Seen", [(0,)]),
        ("EXEC sp_rename 'Depot.Shelf', 'Board'; SELECT COUNT(*) FROM Depot.Board", [(0,)]),
    ],
)  # fmt: skip
def test_sp_rename_renames_objects_and_columns(shop: sb.Database, script: str, last: list[Any]) -> None:
    said = undone(shop, script)
    assert said[-1] == last
    assert any(str(each).startswith("Caution") for each in said)


def test_the_new_spelling_is_shown(shop: sb.Database) -> None:
    shop.execute_tsql("CREATE TABLE Spelled (Id INT)")
    shop.execute_tsql("EXEC sp_rename 'Spelled.Id', 'theNumber', 'COLUMN'")
    assert shop.execute_tsql("SELECT * FROM Spelled").sets[0].columns == ("theNumber",)
    assert rows(shop, "SELECT name FROM sys.columns WHERE object_id = OBJECT_ID('Spelled')") == [("theNumber",)]
    shop.execute_tsql("DROP TABLE Spelled")


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("EXEC sp_rename 'Nothing', 'x'", 15225),
        ("EXEC sp_rename 'a b', 'x'", 15225),
        ("EXEC sp_rename 'Elsewhere.dbo.Orders', 'x'", 15225),
        ("EXEC sp_rename 'Orders.Nothing', 'x', 'COLUMN'", 15248),
        ("EXEC sp_rename 'Amount', 'x', 'COLUMN'", 15248),
        ("EXEC sp_rename 'Large.Id', 'x', 'COLUMN'", 15248),
        ("EXEC sp_rename 'Orders.Nothing', 'x', 'INDEX'", 15248),
        ("EXEC sp_rename 'Orders', 'Other'", 15335),
        ("EXEC sp_rename 'Orders', 'sell'", 15335),
        ("EXEC sp_rename 'Sell', 'Inbox'", 15335),
        ("EXEC sp_rename 'Orders.Amount', 'id', 'COLUMN'", 15335),
        ("EXEC sp_rename 'Orders', NULL", 15223),
        ("EXEC sp_rename 'Orders', 'x', 'THING'", 15249),
        ("EXEC sp_rename 'Orders'", 201),
        ("EXEC sp_rename 'Inbox', 'x'", 40515),
        ("EXEC sp_rename 'F', 'x'", 40515),
        ("EXEC sp_rename 'RenamedShop', 'x', 'DATABASE'", 40515),
        ("EXECUTE AS USER = 'Clerk'; EXEC sp_rename 'Orders', 'x'", 3701),
        ("EXECUTE AS USER = 'Clerk'; EXEC sp_rename 'Orders.Amount', 'x', 'COLUMN'", 1088),
    ],
)
def test_invalid_renames_are_refused(shop: sb.Database, script: str, number: int) -> None:
    assert number in [each for each in output_of(shop, script) if isinstance(each, int)]
    assert rows(shop, "SELECT Id, Amount FROM Orders") == [(1, 5)]


def test_check_says_that_it_runs() -> None:
    findings = check("EXEC sp_rename 'a', 'b'; EXEC sp_rename 'a.b', 'c', 'COLUMN'")
    assert [finding.verdict.value for finding in findings] == ["runs", "runs"]
