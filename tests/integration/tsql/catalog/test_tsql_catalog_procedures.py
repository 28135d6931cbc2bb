"""sp_help and its kin, which show what the catalog knows; system procedures that nothing stands behind."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.check import check
from servicebroker.tsql.interpreter.procedures.unsupported_procedures import ADVICE
from servicebroker.tsql.results import ResultSet
from tsql_support import create_database, output_of

OBJECTS = """
CREATE TABLE dbo.Goods (Id INT IDENTITY PRIMARY KEY, Name NVARCHAR(40) NOT NULL, Price DECIMAL(9, 2), Twice AS Price * 2);
CREATE INDEX ByName ON dbo.Goods (Name, Price); CREATE UNIQUE INDEX OneName ON dbo.Goods (Name);
CREATE SCHEMA Depot;
CREATE TABLE Depot.Shelf (N INT);
INSERT dbo.Goods (Name) VALUES (N'a'), (N'b');
CREATE QUEUE dbo.Inbox;
GO
CREATE VIEW dbo.Names AS SELECT Name FROM dbo.Goods
GO
CREATE PROCEDURE dbo.Sell AS RETURN
GO
CREATE TRIGGER Depot.Put ON Depot.Shelf AFTER INSERT, DELETE AS RETURN
"""  # noqa: E501


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "ShownShop", OBJECTS)


def sets(shop: sb.Database, script: str) -> list[ResultSet]:
    return list(shop.execute_tsql(script).sets)


def test_sp_help_of_a_table_shows_its_columns_and_indexes(shop: sb.Database) -> None:
    about, columns, identity, indexes = sets(shop, "EXEC sp_help 'dbo.Goods'")
    assert about.columns == ("Name", "Owner", "Type", "Created_datetime")
    assert about.rows[0][:3] == ("Goods", "dbo", "user table")
    assert columns.columns[:4] == ("Column_name", "Type", "Computed", "Length")
    assert [tuple(row) for row in columns.rows] == [
        ("Id", "int", "no", 4, 10, 0, "no"),
        ("Name", "nvarchar", "no", 80, 40, None, "no"),
        ("Price", "decimal", "no", columns.rows[2][3], 9, 2, "yes"),
        ("Twice", "decimal", "yes", *columns.rows[3][3:]),
    ]
    assert identity.rows == [("Id",)]
    assert [row[0] for row in indexes.rows][:2] == ["ByName", "OneName"]
    assert indexes.rows[0][1:] == ("nonclustered", "Name, Price")
    assert indexes.rows[1][1:] == ("nonclustered, unique", "Name")
    assert indexes.rows[2][1:] == ("clustered, unique, primary key", "Id")
    assert sets(shop, "EXEC sys.sp_helpindex N'[Goods]'") == [indexes]


@pytest.mark.parametrize(
    ("script", "first"),
    [
        ("EXEC sp_help N'Sell'", ("Sell", "dbo", "sql stored procedure")),
        ("EXEC sp_help @objname = 'Depot.Shelf'", ("Shelf", "Depot", "user table")),
        ("EXEC sp_help Inbox", ("Inbox", "dbo", "service queue")),
        ("EXEC sp_columns 'Goods', @column_name = 'P%'",
         ("ShownShop", "dbo", "Goods", "Price", "decimal", 9, 0, 2, 1, 3, "YES")),
        ("EXEC sp_columns Shelf, Depot", ("ShownShop", "Depot", "Shelf", "N", "int", 10, 4, 0, 1, 1, "YES")),
        ("EXEC sp_tables 'S%'", ("ShownShop", "Depot", "Shelf", "TABLE", None)),
        ("EXEC sp_tables @table_type = \"'VIEW'\"", ("ShownShop", "dbo", "Names", "VIEW", None)),
        ("EXEC sp_spaceused 'Goods'", ("Goods", "2")),
        ("EXEC sp_spaceused 'Inbox'", ("Inbox", "0")),
        ("EXEC sp_spaceused", ("ShownShop",)),
        ("EXEC sp_helpdb SHOWNSHOP", ("ShownShop", None, "sa")),
        ("EXEC sp_helpdb", ("ShownShop", None, "sa")),
        ("EXEC sp_helpconstraint 'dbo.Goods'", ("dbo.Goods",)),
        ("SELECT COL_LENGTH('Depot.Shelf', 'n'), COL_LENGTH('dbo.Goods', 'Name'), COL_LENGTH('Goods', 'n')",
         (4, 80, None)),
        ("EXEC sp_helptrigger 'Depot.Shelf', 'insert'", ("Put", "dbo", 0, 1, 1, 1, 0, "Depot")),
    ],
)  # fmt: skip
def test_catalog_procedures_return_rows(shop: sb.Database, script: str, first: tuple[Any, ...]) -> None:
    shown = list(sets(shop, script)[0].rows[0])
    if "sp_columns" in script and first[4] == "decimal":
        shown[6] = 0  # the size of a decimal in bytes is not the subject
    assert tuple(shown[: len(first)]) == first


def test_sp_helpconstraint_tells_of_every_kind(instance: sb.Instance) -> None:
    shop = instance.database("Constrained", create=True)
    shop.execute_tsql("""
        CREATE TABLE Goods (Id int CONSTRAINT PK_Goods PRIMARY KEY, Code char(3) CONSTRAINT UQ_Code UNIQUE)
        CREATE TABLE Lines (Good int CONSTRAINT FK_Good REFERENCES Goods (Id) ON DELETE CASCADE,
            N int CONSTRAINT DF_N DEFAULT 1 CONSTRAINT CK_N CHECK (N > 0), CONSTRAINT CK_Both CHECK (N < Good))
        ALTER TABLE Lines NOCHECK CONSTRAINT FK_Good
        CREATE TABLE Plain (a int)
    """)
    name, lines = sets(shop, "EXEC sp_helpconstraint Lines")
    assert name.rows == [("Lines",)]
    assert [tuple(row[:5]) for row in lines.rows] == [
        ("CHECK Table Level", "CK_Both", "(n/a)", "(n/a)", "Enabled"),
        ("CHECK on column N", "CK_N", "(n/a)", "(n/a)", "Enabled"),
        ("DEFAULT on column N", "DF_N", "(n/a)", "(n/a)", "(n/a)"),
        ("FOREIGN KEY", "FK_Good", "Cascade", "No Action", "Disabled"),
        (" ", " ", " ", " ", " "),
    ]
    assert [row[6] for row in lines.rows[3:]] == ["Good", "REFERENCES Constrained.dbo.Goods (Id)"]
    goods, referring = sets(shop, "EXEC sp_helpconstraint 'dbo.Goods', 'nomsg'")
    assert [(row[0], row[6]) for row in goods.rows] == [
        ("PRIMARY KEY (clustered)", "Id"),
        ("UNIQUE (non-clustered)", "Code"),
    ]
    assert referring.rows == [("Constrained.dbo.Lines: FK_Good",)]
    assert sets(shop, "EXEC sp_helpconstraint Plain, nomsg") == []


def test_all_of_it_is_listed(shop: sb.Database) -> None:
    listed = {row[0] for row in sets(shop, "EXEC sp_help")[0].rows}
    assert {"Goods", "Shelf", "Names", "Sell", "Inbox"} <= listed
    assert "ShownShop" in [row[0] for row in sets(shop, "EXEC sp_databases")[0].rows]
    sizes = sets(shop, "EXEC sp_spaceused 'dbo.Goods'")[0]
    assert sizes.columns == ("name", "rows", "reserved", "data", "index_size", "unused")
    assert all(cell.endswith(" KB") for cell in sizes.rows[0][2:])


def test_a_text_is_run_for_each_table_and_each_database(shop: sb.Database) -> None:
    assert [one.rows for one in sets(shop, "EXEC sp_MSforeachtable 'SELECT ''?'', COUNT(*) FROM ?'")] == [
        [("[dbo].[Goods]", 2)], [("[Depot].[Shelf]", 0)],
    ]  # fmt: skip
    some = "@command1 = N'PRINT \"~?\"', @replacechar = '~', @whereand = 'AND o.name LIKE ''G%'''"
    assert output_of(shop, f"SET QUOTED_IDENTIFIER ON EXEC sys.sp_MSforeachtable {some}".replace('"', "''")) == [
        "[dbo].[Goods]?"
    ]
    here = "IF ''?'' LIKE ''ShownS%'' BEGIN USE [?]; SELECT DB_NAME(), COUNT(*) FROM sys.tables END"
    assert output_of(shop, f"EXEC master..sp_MSforeachdb N'{here}'")[-1] == [("ShownShop", 2)]
    listed = output_of(
        shop, "CREATE TABLE #d (n sysname) INSERT #d EXEC sp_MSforeachdb 'SELECT ''?''' SELECT n FROM #d"
    )[-1]
    assert {("master",), ("ShownShop",)} <= set(listed)


@pytest.mark.parametrize(
    "condition",
    ["o.id > 0", "uid = SCHEMA_ID('dbo')", "syso.schema_id = 1", "o.xtype = 'U' AND syso.name LIKE 'G%'", "o.uid = 1"],
)
def test_the_tables_are_chosen_as_by_sql_server(shop: sb.Database, condition: str) -> None:
    given = condition.replace("'", "''")
    output = output_of(shop, f"EXEC sp_MSforeachtable 'PRINT ''?''', @whereand = 'AND {given}'")
    assert output[0] == "[dbo].[Goods]"
    assert (len(output) == 2) is (condition == "o.id > 0")


def test_an_error_in_one_of_them_lets_the_others_run(shop: sb.Database) -> None:
    around = "@precommand = 'PRINT 1', @postcommand = 'PRINT 2'"
    script = f"EXEC sp_MSforeachtable 'SELEC ? FROM', @command2 = 'PRINT ''?''', {around}"
    assert output_of(shop, script) == ["1", 102, "[dbo].[Goods]", 102, "[Depot].[Shelf]", "2"]


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("EXEC sp_MSforeachdb", 201),
        ("EXEC sp_help 'Nothing'", 15009),
        ("EXEC sp_help 'a b'", 15009),
        ("EXEC sp_help 'Other.dbo.Goods'", 15250),
        ("EXEC sp_help 'Goods', 'more'", 8144),
        ("EXEC sp_helpindex", 201),
        ("EXEC sp_columns", 201),
        ("EXEC sp_columns 'Goods', @table_qualifier = 'Other'", 15250),
        ("EXEC sp_spaceused 'Names'", 15234),
        ("EXEC sp_helpdb 'Nowhere'", 15010),
        ("EXEC sp_helptrigger 'Nothing'", 15009),
        ("EXEC sp_helptrigger 'Goods', 'x'", 15305),
        ("EXEC sp_helpconstraint", 201),
        ("EXEC sp_helpconstraint 'Nothing'", 15009),
        ("EXEC master..xp_cmdshell 'dir'", 40515),
        ("EXEC msdb.dbo.sp_send_dbmail @subject = 'x'", 40515),
        ("EXEC sp_nothing_of_the_kind", 2812),
        ("EXEC Depot.sp_lock", 2812),
    ],
)
def test_invalid_calls_of_catalog_procedures_are_refused(shop: sb.Database, script: str, number: int) -> None:
    with pytest.raises(sb.BrokerError) as error:
        shop.execute_tsql(script)
    assert error.value.number == number


def test_check_refuses_the_same_procedures_by_name(shop: sb.Database) -> None:
    for name, instead in ADVICE.items():
        (finding,) = check(f"EXEC {name}")
        assert finding.note == f"40515: EXEC {name} is not supported here. {instead}"
    assert [one.verdict.value for one in check("EXEC sp_help 'x'; EXEC Depot.sp_lock; EXEC master..xp_cmdshell")] == [
        "runs", "runs", "does not run",
    ]  # fmt: skip
