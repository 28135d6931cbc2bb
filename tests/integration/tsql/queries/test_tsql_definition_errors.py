"""Every refused definition, change and query has SQL Server's number, not PostgreSQL's words under 50000."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError
from tsql_support import create_database, output_of

OBJECTS = """
CREATE TABLE P (Id int NOT NULL CONSTRAINT PK_P PRIMARY KEY, Code varchar(9), X xml, N int CONSTRAINT DF_N DEFAULT 1,
    CONSTRAINT CK_P CHECK (N > 0))
CREATE TABLE C (Id int NOT NULL, P int CONSTRAINT FK_C REFERENCES P (Id), T varchar(9))
CREATE TABLE H (a int, b int)
CREATE INDEX IX_C ON C (P)
INSERT P (Id) VALUES (1), (2); INSERT C (Id) VALUES (1), (1)
GO
CREATE VIEW V AS SELECT Id FROM P
GO
CREATE VIEW dbo.Bound WITH SCHEMABINDING AS SELECT Id FROM dbo.P WITH (NOLOCK)
GO
CREATE VIEW dbo.Named (A, B) WITH VIEW_METADATA, SchemaBinding AS SELECT Id, N FROM dbo.P
GO
CREATE PROCEDURE Taken AS RETURN
"""
TAKEN = "There is already an object named '{}' in the database."
CASES = [
    ("ALTER TABLE C ADD CONSTRAINT FK_C FOREIGN KEY (P) REFERENCES P (Id)", [2714, 1750], TAKEN.format("FK_C")),
    ("ALTER TABLE C ADD CONSTRAINT CK_P CHECK (Id > 0)", [2714, 1750], TAKEN.format("CK_P")),
    ("ALTER TABLE C ADD CONSTRAINT [ck_p] CHECK (Id > 0)", [2714, 1750], TAKEN.format("ck_p")),
    ("ALTER TABLE C ADD CONSTRAINT PK_P UNIQUE (Id)", [2714, 1750], TAKEN.format("PK_P")),
    ("ALTER TABLE C ADD CONSTRAINT DF_N DEFAULT 1 FOR T", [2714, 1750], TAKEN.format("DF_N")),
    ("ALTER TABLE C ADD Q int CONSTRAINT DF_N DEFAULT 1", [2714, 1750], TAKEN.format("DF_N")),
    ("ALTER TABLE C ADD CONSTRAINT Taken CHECK (Id > 0)", [2714, 1750], TAKEN.format("Taken")),
    ("CREATE TABLE Q (a int CONSTRAINT CK_P CHECK (a > 0))", [2714, 1750], TAKEN.format("CK_P")),
    ("CREATE TABLE Q (a int CONSTRAINT V CHECK (a > 0))", [2714, 1750], TAKEN.format("V")),
    (
        "CREATE TABLE Q (a int CONSTRAINT K CHECK (a > 0), b int CONSTRAINT k DEFAULT 1)",
        [2714, 1750],
        TAKEN.format("k"),
    ),
    ("CREATE TABLE P (a int)", [2714], TAKEN.format("P")),
    (
        "ALTER TABLE P ADD CONSTRAINT Q PRIMARY KEY (Code)",
        [1779, 1750],
        "Table 'P' already has a primary key defined on it.",
    ),
    (
        "CREATE TABLE Q (a int PRIMARY KEY, b int PRIMARY KEY)",
        [8110],
        "Cannot add multiple PRIMARY KEY constraints to table 'Q'.",
    ),
    ("CREATE INDEX IX_C ON C (Id)", [1913], "index or statistics with name 'IX_C' already exists on table 'C'."),
    ("CREATE INDEX I ON C (Nothing)", [1911], "Column name 'Nothing' does not exist in the target table or view."),
    ("CREATE INDEX I ON Nowhere (a)", [1088], 'Cannot find the object "Nowhere"'),
    (
        "CREATE UNIQUE INDEX I ON C (Id)",
        [1505],
        "object name 'dbo.C' and the index name 'I'. The duplicate key value is (1).",
    ),
    ("CREATE INDEX I ON P (X)", [1919], "'P'"),
    ("CREATE TABLE Q (V nvarchar(max) PRIMARY KEY)", [1919, 1750], "Column 'V' in table 'Q'"),
    ("CREATE TABLE Q (A int, V xml, CONSTRAINT U UNIQUE NONCLUSTERED (A, V))", [1919, 1750], "Column 'V' in table 'Q'"),
    ("ALTER TABLE C ADD Memo varbinary(max) UNIQUE", [1919, 1750], "Column 'Memo' in table 'C'"),
    ("ALTER TABLE P ADD CONSTRAINT U UNIQUE (X)", [1919, 1750], "Column 'X' in table 'P'"),
    ("CREATE UNIQUE CLUSTERED INDEX I ON V (Id)", [1939], "view 'V' because the view is not schema bound."),
    ("CREATE UNIQUE CLUSTERED INDEX I ON Bound (Id)", [40515], "An index on a view (Bound) is not supported here."),
    ("CREATE INDEX I ON dbo.Named (B)", [40515], "An index on a view (Named) is not supported here."),
    ("ALTER TABLE P ADD CONSTRAINT DF_M DEFAULT 2 FOR N", [1781, 1750], "Column already has a DEFAULT bound to it."),
    ("ALTER TABLE P ADD CONSTRAINT DF_M DEFAULT 2 FOR Nothing", [1752, 1750], "Column 'Nothing' in table 'P'"),
    (
        "ALTER TABLE C ADD CONSTRAINT F FOREIGN KEY (P) REFERENCES Nowhere (Id)",
        [1767, 1750],
        "Foreign key 'F' references invalid table 'Nowhere'.",
    ),
    ("CREATE TABLE Q (a int REFERENCES Nowhere (a))", [1767, 1750], "references invalid table 'Nowhere'."),
    (
        "ALTER TABLE C ADD CONSTRAINT F FOREIGN KEY (P) REFERENCES P (Nix)",
        [1770, 1750],
        "invalid column 'Nix' in referenced table 'P'.",
    ),
    (
        "ALTER TABLE C ADD CONSTRAINT F FOREIGN KEY (Nix) REFERENCES P (Id)",
        [1769, 1750],
        "invalid column 'Nix' in referencing table 'C'.",
    ),
    ("ALTER TABLE C ADD CONSTRAINT F FOREIGN KEY (T) REFERENCES P (Id)", [1778, 1750], "'F'"),
    (
        "ALTER TABLE C ADD CONSTRAINT F FOREIGN KEY (P) REFERENCES P (N)",
        [1776, 1750],
        "no primary or candidate keys in the referenced table 'P'",
    ),
    ("ALTER TABLE C ADD CONSTRAINT F FOREIGN KEY (P, Id) REFERENCES P (Id)", [8139, 1750], "table 'C'."),
    ("ALTER TABLE C ADD CONSTRAINT F FOREIGN KEY (P) REFERENCES H", [1773, 1750], "implicit reference to object 'H'"),
    ("ALTER TABLE C ADD PRIMARY KEY (Nothing)", [1911, 1750], "Column name 'Nothing'"),
    ("ALTER TABLE C ADD CONSTRAINT K UNIQUE (Id)", [1505, 1750], "index name 'K'"),
    ("ALTER TABLE Nowhere ADD a int", [4902], 'Cannot find the object "Nowhere"'),
    ("ALTER TABLE C DROP COLUMN Nothing", [4924], "column 'Nothing' does not exist in table 'C'."),
    ("ALTER TABLE C ALTER COLUMN Nothing int", [4924], "ALTER COLUMN failed because column 'Nothing'"),
    ("ALTER TABLE C ADD Id int", [2705], "Column name 'Id' in table 'C' is specified more than once."),
    ("CREATE TABLE Q (a int, A int)", [2705], "in table 'Q' is specified more than once."),
    ("ALTER TABLE C ADD Must int NOT NULL", [4901], "Column 'Must' cannot be added to non-empty table 'C'"),
    (
        "ALTER TABLE P DROP CONSTRAINT PK_P",
        [3725, 3727],
        "'PK_P' is being referenced by table 'C', foreign key constraint 'FK_C'.",
    ),
    ("ALTER TABLE P DROP COLUMN Id", [5074, 4922], "The object 'FK_C' is dependent on column 'Id'."),
    ("ALTER TABLE P ALTER COLUMN Id int NULL", [4922], "ALTER TABLE ALTER COLUMN Id failed"),
    ("ALTER TABLE P ALTER COLUMN Id bigint", [5074, 4922], "The object 'V' is dependent on column 'Id'."),
]


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "Faulty", OBJECTS)


def errors(database: sb.Database, script: str) -> list[TsqlError]:
    results: list[object] = []
    with Session(database, results.append) as session:
        session.run(script)
    return [item for item in results if isinstance(item, TsqlError)]


@pytest.mark.parametrize(("script", "numbers", "text"), CASES, ids=[script for script, *_ in CASES])
def test_a_refused_definition_has_sql_servers_numbers(
    db: sb.Database, script: str, numbers: list[int], text: str
) -> None:
    error_codes = errors(db, script)
    assert [error_code.number for error_code in error_codes] == numbers
    assert text.lower() in error_codes[0].text.lower()
    assert {error_code.line for error_code in error_codes} == {1}


def test_catch_handles_the_last_error(db: sb.Database) -> None:
    script = (
        "BEGIN TRY ALTER TABLE C ADD CONSTRAINT CK_P CHECK (Id > 0) END TRY BEGIN CATCH SELECT ERROR_NUMBER() END CATCH"
    )
    assert output_of(db, script) == [[(1750,)]]


def test_a_name_is_free_in_another_schema_and_for_temporary_tables(db: sb.Database) -> None:
    columns = "(a int CONSTRAINT CK_P CHECK (a > 0), b int CONSTRAINT FK_C REFERENCES P (Id))"
    assert output_of(db, f"CREATE TABLE #q {columns} CREATE TABLE #r {columns} INSERT #q VALUES (1, 99)") == []
    assert output_of(db, f"CREATE SCHEMA Away\nGO\nCREATE TABLE Away.Q {columns}") == []
