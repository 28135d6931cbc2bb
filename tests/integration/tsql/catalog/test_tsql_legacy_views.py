"""The compatibility views of SQL Server 2000: each exists, and answers what old scripts ask."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from tsql_support import create_database, rows, scalar

OBJECTS = """
CREATE TABLE Parts (Id int IDENTITY CONSTRAINT PK_Parts PRIMARY KEY,
    Name nvarchar(20) NULL CONSTRAINT DF_Name DEFAULT N'x',
    Price decimal(9, 2) NOT NULL CONSTRAINT CK_Price CHECK (Price > 0))
CREATE TABLE Uses (Part int CONSTRAINT FK_Part REFERENCES Parts (Id))
CREATE INDEX IX_Name ON Parts (Name)
INSERT Parts (Price) VALUES (1), (2)
GO
CREATE PROCEDURE Adds @a int, @b nvarchar(9) OUTPUT AS SELECT 'added'
"""
NAMES = [
    "sysaltfiles", "syscolumns", "syscomments", "sysconfigures", "sysconstraints", "syscurconfigs",
    "sysdatabases", "sysdepends", "sysfilegroups", "sysfiles", "sysforeignkeys", "sysindexes", "sysindexkeys",
    "syslanguages", "syslogins", "sysmembers", "sysmessages", "sysobjects", "sysprocesses", "sysreferences",
    "sysservers", "systypes", "sysusers",
]  # fmt: skip


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "Legacy", OBJECTS)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_there_under_all_its_names(db: sb.Database, name: str) -> None:
    counts = {
        scalar(db, f"SELECT COUNT(*) FROM {prefix}{name}") for prefix in ("", "dbo.", "sys.", "Legacy..", "Legacy.sys.")
    }
    assert len(counts) == 1
    (finding,) = check(f"SELECT * FROM {name}")
    assert finding.verdict is Verdict.RUNS


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            "SELECT name, length, prec, scale, isnullable, status & 128 FROM syscolumns "
            "WHERE id = OBJECT_ID('Parts') ORDER BY colid",
            [("Id", 4, 10, 0, 0, 128), ("Name", 40, 20, 0, 1, 0), ("Price", 5, 9, 2, 0, 0)],
        ),
        (
            "SELECT c.name, t.name FROM syscolumns c JOIN systypes t ON t.xusertype = c.xusertype "
            "WHERE c.id = OBJECT_ID('Parts') ORDER BY c.colid",
            [("Id", "int"), ("Name", "nvarchar"), ("Price", "decimal")],
        ),
        ("SELECT name, isoutparam FROM syscolumns WHERE id = OBJECT_ID('Adds') ORDER BY colid", [("@a", 0), ("@b", 1)]),
        ("SELECT rows FROM sysindexes WHERE id = OBJECT_ID('dbo.Parts') AND indid < 2", [(2,)]),
        (
            "SELECT o.name, i.rows FROM sysobjects o JOIN sysindexes i ON i.id = o.id "
            "WHERE i.indid IN (0, 1) AND o.xtype = 'U' ORDER BY 1",
            [("Parts", 2), ("Uses", 0)],
        ),
        (
            "SELECT name FROM sysindexes WHERE id = OBJECT_ID('Parts') AND name IS NOT NULL ORDER BY name",
            [("IX_Name",), ("PK_Parts",)],
        ),
        ("SELECT colid FROM sysindexkeys WHERE id = OBJECT_ID('Parts') AND indid = 1", [(1,)]),
        ("SELECT COUNT(*) FROM syscomments WHERE id = OBJECT_ID('Adds') AND text LIKE '%added%'", [(1,)]),
        (
            "SELECT o.name FROM sysconstraints c JOIN sysobjects o ON o.id = c.constid "
            "WHERE c.id = OBJECT_ID('Parts') ORDER BY 1",
            [("CK_Price",), ("DF_Name",), ("PK_Parts",)],
        ),
        (
            "SELECT OBJECT_NAME(constid), OBJECT_NAME(fkeyid), OBJECT_NAME(rkeyid), fkey, rkey FROM sysforeignkeys",
            [("FK_Part", "Uses", "Parts", 1, 1)],
        ),
        ("SELECT keycnt FROM sysreferences WHERE fkeyid = OBJECT_ID('Uses')", [(1,)]),
        ("SELECT groupname FROM sysfilegroups", [("PRIMARY",)]),
        ("SELECT COUNT(*) FROM sysfiles WHERE fileid = 1 AND groupid = 1", [(1,)]),
        ("SELECT description FROM master.dbo.sysmessages WHERE error = 8429 AND msglangid = 1033", None),
        ("SELECT alias FROM syslanguages WHERE langid = @@LANGID", None),
        ("SELECT name FROM systypes WHERE name = 'sysname'", [("sysname",)]),
        (
            "IF EXISTS (SELECT * FROM dbo.sysobjects WHERE id = OBJECT_ID(N'[dbo].[Parts]') "
            "AND OBJECTPROPERTY(id, N'IsUserTable') = 1) "
            "SELECT 1",
            [(1,)],
        ),
    ],
)
def test_legacy_views_answer_old_scripts(
    db: sb.Database, query: str, expected: list[tuple[object, ...]] | None
) -> None:
    result_rows = rows(db, query)
    assert result_rows == expected if expected is not None else len(result_rows) == 1
