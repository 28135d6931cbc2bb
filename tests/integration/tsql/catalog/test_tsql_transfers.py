"""ALTER SCHEMA ... TRANSFER."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.check import check
from tsql_support import create_database, output_of, rows

OBJECTS = """
CREATE SCHEMA Depot;
CREATE TABLE dbo.Parcels (Id INT PRIMARY KEY, Weight INT); CREATE INDEX ByWeight ON dbo.Parcels (Weight);
CREATE TABLE dbo.Seen (What INT); CREATE TABLE dbo.Both (N INT); CREATE TABLE Depot.Both (N INT);
CREATE QUEUE dbo.Inbox; CREATE SYNONYM dbo.P FOR dbo.Seen; CREATE SEQUENCE dbo.Counter;
CREATE USER Clerk WITHOUT LOGIN; GRANT SELECT ON dbo.Parcels TO Clerk; INSERT dbo.Parcels VALUES (1, 2);
GO
CREATE VIEW dbo.Heavy AS SELECT Id FROM dbo.Parcels
GO
CREATE TRIGGER dbo.Watch ON dbo.Parcels AFTER INSERT AS INSERT dbo.Seen SELECT Id FROM inserted
GO
CREATE PROCEDURE dbo.Sell AS SELECT 7 AS n
GO
CREATE FUNCTION dbo.F () RETURNS INT AS BEGIN RETURN 1 END
"""


@pytest.fixture(scope="module")
def depot(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "TransferDepot", OBJECTS)


@pytest.mark.parametrize(
    ("script", "last"),
    [
        ("ALTER SCHEMA Depot TRANSFER dbo.Parcels; SELECT Weight FROM Depot.Parcels", [(2,)]),
        ("ALTER SCHEMA depot TRANSFER Parcels; INSERT Depot.Parcels VALUES (5, 6); SELECT What FROM Seen", [(5,)]),
        ("ALTER SCHEMA [Depot] TRANSFER OBJECT::[dbo].[Parcels]; DROP INDEX ByWeight ON Depot.Parcels; "
         "DISABLE TRIGGER Depot.Watch ON Depot.Parcels; SELECT COUNT(*) FROM Heavy", [(1,)]),
        ("ALTER SCHEMA Depot TRANSFER dbo.Parcels; ALTER SCHEMA dbo TRANSFER Depot.Parcels; SELECT Id FROM Parcels",
         [(1,)]),
        ("ALTER SCHEMA Depot TRANSFER dbo.Heavy; SELECT Id FROM Depot.Heavy", [(1,)]),
        ("ALTER SCHEMA Depot TRANSFER dbo.Sell; EXEC Depot.Sell", [(7,)]),
        ("ALTER SCHEMA Depot TRANSFER dbo.P; SELECT COUNT(*) FROM Depot.P", [(0,)]),
        ("ALTER SCHEMA Depot TRANSFER dbo.Counter; SELECT SCHEMA_NAME(schema_id) FROM sys.sequences", [("Depot",)]),
        ("ALTER SCHEMA dbo TRANSFER dbo.Parcels; SELECT Id FROM dbo.Parcels", [(1,)]),
        ("ALTER SCHEMA Depot TRANSFER dbo.Parcels; EXECUTE AS USER = 'Clerk'; SELECT Id FROM Depot.Parcels", 229),
    ],
)  # fmt: skip
def test_alter_schema_transfer_moves_the_object(depot: sb.Database, script: str, last: list[Any] | int) -> None:
    assert output_of(depot, f"BEGIN TRAN;\n{script};\nREVERT; ROLLBACK")[-1] == last
    assert rows(depot, "SELECT Id FROM dbo.Parcels") == [(1,)]


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("ALTER SCHEMA Depot TRANSFER dbo.Nothing", 15151),
        ("ALTER SCHEMA Nowhere TRANSFER dbo.Parcels", 15151),
        ("ALTER SCHEMA Depot TRANSFER Elsewhere.dbo.Parcels", 15151),
        ("ALTER SCHEMA Depot TRANSFER dbo.Both", 15530),
        ("ALTER SCHEMA Depot TRANSFER dbo.Inbox", 40515),
        ("ALTER SCHEMA Depot TRANSFER dbo.F", 40515),
        ("ALTER SCHEMA Depot TRANSFER TYPE::dbo.Zip", 40515),
        ("ALTER SCHEMA Depot TRANSFER XML SCHEMA COLLECTION::dbo.Forms", 40515),
        ("ALTER SCHEMA Depot TRANSFER", 102),
        ("ALTER SCHEMA Depot", 102),
        ("EXECUTE AS USER = 'Clerk'; ALTER SCHEMA Depot TRANSFER dbo.Parcels", 15151),
    ],
)
def test_invalid_transfers_are_refused(depot: sb.Database, script: str, number: int) -> None:
    with pytest.raises(sb.BrokerError) as error:
        depot.execute_tsql(script)
    assert error.value.number == number


def test_check_judges_as_the_run_does() -> None:
    script = "ALTER SCHEMA S TRANSFER dbo.T; ALTER SCHEMA S TRANSFER TYPE::dbo.T"
    assert [(finding.statement, finding.verdict.value) for finding in check(script)] == [
        ("ALTER SCHEMA", "runs"), ("ALTER SCHEMA", "does not run"),
    ]  # fmt: skip
