"""The errors of constraints name what the user has named, as it was written."""

from __future__ import annotations

import pytest

import servicebroker as sb
from tsql_support import create_database, failing, rows

TABLES = """
CREATE TABLE Orders (Id int NOT NULL CONSTRAINT PK_Orders PRIMARY KEY, Qty int CONSTRAINT CK_Qty CHECK (Qty > 0),
    Code varchar(9), CONSTRAINT UQ_Code UNIQUE (Code))
GO
CREATE SCHEMA Shop
GO
CREATE TABLE Shop.Lines (Id int CONSTRAINT FK_Lines REFERENCES Orders (Id), No int NOT NULL)
CREATE UNIQUE INDEX IX_No ON Shop.Lines (No)
INSERT Orders VALUES (1, 1, 'a'); INSERT Shop.Lines VALUES (1, 1)
"""
CASES = [
    ("INSERT Orders VALUES (1, 2, 'b')", 2627, "PRIMARY KEY constraint 'PK_Orders'", "object 'dbo.Orders'", "is (1)"),
    ("INSERT Orders VALUES (2, 2, 'a')", 2627, "UNIQUE KEY constraint 'UQ_Code'", "object 'dbo.Orders'", "is (a)"),
    ("INSERT Shop.Lines VALUES (1, 1)", 2601, "unique index 'IX_No'", "object 'Shop.Lines'", "is (1)"),
    (
        "UPDATE Orders SET Qty = -1",
        547,
        "The UPDATE",
        'CHECK constraint "CK_Qty"',
        "table \"dbo.Orders\", column 'Qty'",
    ),
    ("INSERT Shop.Lines VALUES (9, 9)", 547, "The INSERT", 'FOREIGN KEY constraint "FK_Lines"', 'table "dbo.Orders"'),
    ("DELETE Orders", 547, "The DELETE", 'REFERENCE constraint "FK_Lines"', "table \"Shop.Lines\", column 'Id'"),
    ("INSERT Shop.Lines VALUES (1, NULL)", 515, "column 'No'", "table 'Constraints.Shop.Lines'", "INSERT fails"),
    ("ALTER TABLE Orders ADD CONSTRAINT CK_More CHECK (Qty > 5)", 547, "ALTER TABLE", '"CK_More"', '"dbo.Orders"'),
    ("DECLARE @T TABLE (a int PRIMARY KEY) INSERT @T VALUES (1), (1)", 2627, "PRIMARY KEY", "'dbo.@t'", "is (1)"),
    ("CREATE TABLE #T (a int CONSTRAINT PK_T PRIMARY KEY) INSERT #T VALUES (1), (1)", 2627, "'PK_T'", "#t'", "is (1)"),
]


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "Constraints", TABLES)


@pytest.mark.parametrize(("script", "number", *"abc"), CASES, ids=[script for script, *_ in CASES])
@pytest.mark.parametrize("around", ["{}", "BEGIN TRAN {} ROLLBACK"])
def test_violations_of_constraints_are_refused(
    db: sb.Database, script: str, number: int, a: str, b: str, c: str, around: str
) -> None:
    with pytest.raises(sb.TsqlError) as error:
        db.execute_tsql(around.format(script))
    assert error.value.number == number
    assert [part for part in (a, b, c) if part not in error.value.text] == []


def test_a_constraint_may_leave_out_the_rows_that_are_there(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Loose (Id int, Of_ int); INSERT Loose VALUES (1, 9), (2, NULL)")
    db.execute_tsql("ALTER TABLE dbo.Loose WITH NOCHECK ADD CONSTRAINT CK_Small CHECK (Id < 2)")
    db.execute_tsql("ALTER TABLE Loose WITH NOCHECK ADD CONSTRAINT FK_Of FOREIGN KEY (Of_) REFERENCES Orders (Id)")
    for script in (
        "INSERT Loose VALUES (5, NULL)",
        "INSERT Loose VALUES (1, 9)",
        "ALTER TABLE Loose WITH CHECK CHECK CONSTRAINT CK_Small",
        "ALTER TABLE Loose WITH CHECK CHECK CONSTRAINT ALL",
        "ALTER TABLE Loose WITH CHECK ADD CONSTRAINT CK_More CHECK (Id < 2)",
        "ALTER TABLE Loose ADD CHECK (Id < 2)",
    ):
        with pytest.raises(sb.TsqlError) as error:
            db.execute_tsql(script)
        assert error.value.number == 547
    db.execute_tsql("ALTER TABLE Loose CHECK CONSTRAINT CK_Small; DELETE Loose WHERE Id = 2; UPDATE Loose SET Of_ = 1")
    db.execute_tsql(
        "ALTER TABLE Loose WITH CHECK CHECK CONSTRAINT CK_Small; ALTER TABLE Loose WITH CHECK CHECK CONSTRAINT ALL"
    )
    db.execute_tsql("DROP TABLE Loose")


TRUNCATED = (
    ("INSERT Narrow (Short) VALUES (N'abcd')", "Short", "ab"),
    ("INSERT Narrow (Fixed) SELECT 'it''s' UNION ALL SELECT 'b'", "Fixed", "it'"),
    ("UPDATE Narrow SET Short = Short + N'long'", "Short", "xl"),
    ("UPDATE n SET Fixed = m.Short + 'yyy' FROM Narrow n JOIN Narrow m ON m.Short = n.Short", "Fixed", "xyy"),
    ("MERGE Narrow USING (SELECT 'tall' v) s ON 1 = 0 WHEN NOT MATCHED THEN INSERT (Short) VALUES (v);", "Short", "ta"),
)


def test_a_string_too_long_is_told_with_its_column(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Narrow (Short nvarchar(2), Fixed char(3)) INSERT Narrow VALUES ('x', 'y')")
    for script, column, value in TRUNCATED:
        for begin in ("", "BEGIN TRANSACTION "):
            refused = failing(db, begin + script)
            assert (refused.number, refused.text) == (
                2628,
                f"String or binary data would be truncated in table 'Constraints.dbo.Narrow', column '{column}'. "
                f"Truncated value: '{value}'.",
            )
    assert rows(db, "SELECT COUNT(*), MAX(Short) FROM Narrow") == [(1, "x")]
