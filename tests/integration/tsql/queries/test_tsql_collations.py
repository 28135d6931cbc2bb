"""Collations of databases, columns and expressions: comparisons, groups, keys and order that ignore case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Row, Verdict, check
from tsql_support import error_number, output_of, rows, scalar, texts


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> Iterator[sb.Database]:
    """A database that ignores case, with a table."""
    db = instance.database("Shop", create=True)
    db.execute_tsql(
        "ALTER DATABASE Shop COLLATE SQL_Latin1_General_CP1_CI_AS "
        "CREATE TABLE Items (Id int IDENTITY PRIMARY KEY, Name nvarchar(40) NOT NULL CONSTRAINT UQ_Name UNIQUE, "
        "Kind varchar(10), Code char(5)) "
        "CREATE INDEX IX_Kind ON Items (Kind DESC, Id) "
        "INSERT Items (Name, Kind, Code) VALUES (N'apple', 'fruit', 'ab'), (N'Banana', 'FRUIT', 'AB'), "
        "(N'Carrot', 'Veg', 'c'), (N'date', 'Fruit', 'd')"
    )
    yield db
    instance.drop_database("Shop")


QUERIES: dict[str, list[tuple[Any, ...]]] = {
    "SELECT Name FROM Items WHERE Kind = 'fruit' ORDER BY Name DESC": [("date",), ("Banana",), ("apple",)],
    "SELECT Name n FROM Items WHERE Kind IN ('VEG', 'x') OR Kind NOT IN (SELECT 'FRUIT')": [("Carrot",)],
    "SELECT Name FROM Items WHERE Name LIKE 'B%A' OR Name LIKE N'[c-d]AR%' ORDER BY 1": [("Banana",), ("Carrot",)],
    "SELECT Name FROM Items WHERE Name BETWEEN 'b' AND 'CZ' AND Name >= ALL (SELECT 'B') ORDER BY Name": [
        ("Banana",), ("Carrot",)],
    "SELECT Kind, COUNT(*) FROM Items GROUP BY Kind ORDER BY Kind": [("FRUIT", 3), ("Veg", 1)],
    "SELECT Items.Kind + '!' x FROM Items GROUP BY Kind HAVING Kind = 'vEG'": [("Veg!",)],
    "SELECT Kind, GROUPING(Kind) g, COUNT(*) FROM Items GROUP BY ROLLUP (Kind) ORDER BY g, Kind": [
        ("FRUIT", 0, 3), ("Veg", 0, 1), (None, 1, 4)],
    "SELECT Kind, (SELECT COUNT(*) FROM Items i WHERE i.Kind = Items.Kind) FROM Items GROUP BY Kind ORDER BY 1": [
        ("FRUIT", 3), ("Veg", 1)],
    "SELECT COUNT(DISTINCT Kind), MIN(Name), MAX(Name) FROM Items": [(2, "apple", "date")],
    "SELECT DISTINCT MIN(Name) OVER (PARTITION BY Kind), MAX(Name) OVER (PARTITION BY Kind) FROM Items ORDER BY 1": [
        ("apple", "date"), ("Carrot", "Carrot")],
    "SELECT MAX(Code), LOWER(MIN(Code)) FROM Items WHERE Kind = 'fruit'": [("d    ", "ab   ")],
    "SELECT MAX(Name) OVER (ORDER BY Name), MIN(Name) OVER (ORDER BY Name DESC) FROM Items ORDER BY Id": [
        ("apple", "apple"), ("Banana", "Banana"), ("Carrot", "Carrot"), ("date", "date")],
    "SELECT DISTINCT UPPER(Kind) k FROM Items ORDER BY k DESC": [("VEG",), ("FRUIT",)],
    "SELECT DISTINCT TOP 1 LEN(Kind), LOWER(Kind) FROM Items ORDER BY LOWER(Kind) DESC": [(3, "veg")],
    "SELECT LOWER(Kind) k FROM Items UNION SELECT 'VEG' ORDER BY k": [("fruit",), ("veg",)],
    "SELECT Kind FROM Items EXCEPT SELECT 'frUIT'": [("Veg",)],
    "SELECT LOWER(Kind) FROM Items INTERSECT SELECT 'FRUIT'": [("fruit",)],
    "SELECT Name FROM Items WHERE Kind = 'Fruit' UNION ALL SELECT 'Berry' ORDER BY Name": [
        ("apple",), ("Banana",), ("Berry",), ("date",)],
    "SELECT ROW_NUMBER() OVER (PARTITION BY Kind ORDER BY Name) FROM Items ORDER BY Id": [(1,), (2,), (1,), (3,)],
    "SELECT COUNT(*) FROM Items a JOIN Items b ON a.Kind = b.Kind AND a.Code = b.Code": [(6,)],
    "SELECT fruit, VEG FROM (SELECT Kind, Code FROM Items) s PIVOT (COUNT(Code) FOR Kind IN ([fruit], [VEG])) p": [
        (3, 1)],
    "WITH k AS (SELECT DISTINCT Kind FROM Items) SELECT COUNT(*) FROM k WHERE Kind = 'VEG'": [(1,)],
    "SELECT name FROM sys.columns WHERE object_id = OBJECT_ID('Items') AND collation_name LIKE '%CI_AS' "
    "ORDER BY column_id": [("Name",), ("Kind",), ("Code",)],
    "SELECT c.name FROM sys.indexes i "
    "JOIN sys.index_columns k ON k.object_id = i.object_id AND k.index_id = i.index_id "
    "JOIN sys.columns c ON c.object_id = k.object_id AND c.column_id = k.column_id "
    "WHERE i.object_id = OBJECT_ID('items') ORDER BY i.name, k.key_ordinal": [("Kind",), ("Id",), ("Id",), ("Name",)],
    "SELECT collation_name FROM sys.databases WHERE name = 'SHOP'": [("SQL_Latin1_General_CP1_CI_AS",)],
}  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_a_database_that_ignores_case(shop: sb.Database, query: str) -> None:
    assert rows(shop, query) == QUERIES[query]


VALUES: dict[str, Any] = {
    "IIF('a' = 'A', 1, 0)": 1,
    "IIF('a' = 'A' COLLATE Latin1_General_BIN2, 1, 0)": 0,
    "IIF(N'\u00e4' = N'\u00c4', 1, 0)": 1,
    "CASE @a WHEN 'abc' THEN 1 ELSE 0 END": 1,
    "IIF(@a < 'abd', 1, 0)": 1,
    "CHARINDEX('B', 'abc') * 10 + PATINDEX('%B%', 'abc')": 22,
    "REPLACE('aBc', 'b', 'x')": "axc",
    "NULLIF('a', 'A')": None,
}


@pytest.mark.parametrize("expression", VALUES)
def test_expressions_in_a_database_that_ignores_case(shop: sb.Database, expression: str) -> None:
    assert scalar(shop, f"DECLARE @a varchar(9) = 'ABC' SELECT {expression}") == VALUES[expression]


def test_control_flow_and_functions_ignore_case(shop: sb.Database) -> None:
    said = texts(shop, "DECLARE @a varchar(9) = 'ABC' IF @a = 'abc' AND @a < 'abd' AND NOT @a <> 'aBc' PRINT 'equal'")
    assert said == ["equal"]
    shop.execute_tsql("CREATE FUNCTION F (@x varchar(9)) RETURNS int AS BEGIN IF @x = 'a' RETURN 1; RETURN 0 END")
    assert scalar(shop, "SELECT dbo.F('A')") == 1


def test_keys_ignore_case(shop: sb.Database) -> None:
    (message,) = texts(
        shop, "BEGIN TRY INSERT Items (Name) VALUES (N'APPLE') END TRY BEGIN CATCH PRINT ERROR_MESSAGE() END CATCH"
    )
    assert message.startswith("Violation of UNIQUE KEY constraint 'UQ_Name'.")
    again = "DECLARE @t TABLE (K varchar(5) PRIMARY KEY) INSERT @t VALUES ('a') INSERT @t VALUES ('A')"
    assert error_number(shop, again) == 2627
    assert error_number(shop, "CREATE UNIQUE INDEX U ON Items (Kind)") == 1505
    shop.execute_tsql("CREATE TABLE Keyed (K varchar(5) CONSTRAINT PK_Keyed PRIMARY KEY) INSERT Keyed VALUES ('a')")
    shop.execute_tsql("ALTER TABLE Keyed DROP CONSTRAINT PK_Keyed INSERT Keyed VALUES ('A')")
    assert error_number(shop, "ALTER TABLE Keyed ADD CONSTRAINT UQ_Keyed UNIQUE (K)") == 1505
    referring = "CREATE TABLE Refers (N nvarchar(40) REFERENCES Items (Name), B varchar(9) COLLATE Latin1_General_BIN2)"
    told = "A FOREIGN KEY finds only the case of the key that it refers to, although the collation ignores case."
    assert texts(shop, referring) == [f"Refers: {told} Columns: N."]
    assert error_number(shop, "INSERT Refers (N) VALUES (N'APPLE')") == 547
    shop.execute_tsql("DROP TABLE Refers")
    merged = (
        "MERGE Items t USING (SELECT N'CARROT' n) s ON t.Name = s.n WHEN MATCHED THEN UPDATE SET Code = 'm' "
        "WHEN NOT MATCHED THEN INSERT (Name) VALUES (s.n); SELECT COUNT(*) FROM Items WHERE Code = 'M'"
    )
    assert scalar(shop, merged) == 1


def test_columns_have_their_own_collations(db: sb.Database) -> None:
    db.execute_tsql(
        "CREATE TABLE Own (A nvarchar(20) COLLATE Latin1_General_CI_AS NOT NULL CONSTRAINT PK_Own PRIMARY KEY, "
        "B nvarchar(20), C varchar(9) COLLATE SQL_Latin1_General_CP1_CI_AS CONSTRAINT DF_C DEFAULT 'c', D varchar(9)) "
        "INSERT Own (A, B, D) VALUES ('a', 'b', 'x'), ('B', 'B', 'y')"
    )
    for query, found in {
        "A = 'A'": ["a"],
        "UPPER(A) = 'b'": ["B"],
        "A COLLATE Latin1_General_BIN = 'A'": [],
        "A = D + B": [],
        "B = 'b'": ["a"],
        "A IN (SELECT LOWER(B) FROM Own)": ["B"],
    }.items():
        assert rows(db, f"SELECT A FROM Own WHERE {query}") == [(name,) for name in found], query
    assert rows(db, "SELECT x FROM (SELECT A + 'X' x FROM Own) q WHERE x = 'AX'") == [("aX",)]
    assert error_number(db, "INSERT Own (A) VALUES ('A')") == 2627
    assert scalar(db, "SELECT name FROM sys.default_constraints WHERE name LIKE 'DF[_]C'") == "DF_C"
    assert rows(db, "SELECT collation_name FROM sys.columns WHERE object_id = OBJECT_ID('Own') ORDER BY column_id") == [
        ("Latin1_General_CI_AS",), ("Latin1_General_BIN2",), ("SQL_Latin1_General_CP1_CI_AS",), ("Latin1_General_BIN2",)
    ]  # fmt: skip
    db.execute_tsql("ALTER TABLE Own ALTER COLUMN B nvarchar(30) COLLATE Latin1_General_CI_AS")
    assert rows(db, "SELECT A INTO Copied FROM Own; SELECT COUNT(*) FROM Copied WHERE A = 'b'") == [(1,)]
    assert scalar(db, "SELECT COUNT(DISTINCT B) FROM Own") == 1
    assert output_of(db, "SELECT A FROM Own WHERE A = C") == [468]
    assert output_of(db, "SELECT 'a' COLLATE Latin1_General_BIN + C FROM Own WHERE A LIKE C") == [468]


@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("CREATE TABLE T (a varchar(9) COLLATE Latin1_General_CI_AS)", Verdict.RUNS),
        ("CREATE TABLE T (a varchar(9) COLLATE Latin1_General_CS_AI)", Verdict.DIFFERS),
        ("CREATE DATABASE D COLLATE Latin1_General_CI_AS", Verdict.RUNS),
        ("CREATE DATABASE D", Verdict.DIFFERS),
        ("ALTER DATABASE D COLLATE Latin1_General_CI_AI", Verdict.DIFFERS),
        ("ALTER DATABASE D COLLATE Loud", Verdict.REFUSED),
        ("SELECT 1 WHERE 'a' COLLATE Latin1_General_CI_AS = 'a' COLLATE Latin1_General_BIN", Verdict.REFUSED),
    ],
)
def test_check_knows_what_a_collation_does(script: str, verdict: Verdict) -> None:
    (finding,) = check(script)
    assert finding.verdict == verdict
    assert (finding.row == Row.COLLATIONS) == (verdict == Verdict.DIFFERS)
