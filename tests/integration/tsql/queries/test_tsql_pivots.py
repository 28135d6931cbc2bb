"""PIVOT and UNPIVOT; CROSS APPLY (VALUES ...), another way to write UNPIVOT; the WINDOW clause; TOP PERCENT."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.check import check
from tsql_support import create_database, rows

TABLES = """
CREATE TABLE dbo.Sales (Id INT IDENTITY PRIMARY KEY, Shop NVARCHAR(10), Year INT, Part CHAR(1), Amount DECIMAL(9, 2));
INSERT dbo.Sales (Shop, Year, Part, Amount) VALUES
    (N'Ost', 2015, 'a', 10), (N'Ost', 2015, 'b', 2.5), (N'Ost', 2016, 'a', NULL), (N'West', 2016, 'b', 7), (NULL, 2015, 'a', 1);
CREATE TABLE dbo.Phones (Person INT, Home NVARCHAR(20), Work NVARCHAR(20), Age INT);
INSERT dbo.Phones VALUES (1, N'11', N'12', 40), (2, NULL, N'22', 41), (3, NULL, NULL, 42);
"""  # noqa: E501


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "PivotShop", TABLES)


SALES = "(SELECT Shop, Year, Amount FROM dbo.Sales) AS s"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (f"SELECT * FROM {SALES} PIVOT (SUM(Amount) FOR Year IN ([2015], [2016], [2017])) AS p ORDER BY Shop",
         [(None, 1, None, None), ("Ost", 12.5, None, None), ("West", None, 7, None)]),
        (f"SELECT p.Shop, p.[2016] AS Later FROM {SALES} PIVOT (COUNT(Amount) FOR Year IN ([2015], [2016])) p "
         "WHERE p.[2015] > 0 ORDER BY Shop", [(None, 0), ("Ost", 0)]),
        ("SELECT [a], [b] FROM (SELECT Part, Id FROM Sales) AS s PIVOT (COUNT(Id) FOR Part IN ([a], [b])) AS p",
         [(3, 2)]),
        ("SELECT * FROM (SELECT Part, Id FROM Sales WHERE 1 = 0) AS s PIVOT (COUNT(Id) FOR Part IN ([a])) AS p",
         [(0,)]),
        ("SELECT * FROM (SELECT Part, Amount FROM Sales) AS s PIVOT (STDEV(Amount) FOR Part IN ([b])) AS p "
         "JOIN Phones AS q ON q.Person = 2", [(3.181980515339464, 2, None, "22", 41)]),
        ("WITH c AS (SELECT Shop, Year, Amount FROM Sales) SELECT AVG(p.[2015]) FROM c "
         "PIVOT (MAX(Amount) FOR Year IN ([2015])) AS p", [(5.5,)]),
        ("SELECT [1] FROM (SELECT s.Part, q.Person, q.Age FROM Sales s CROSS JOIN Phones q) AS j "
         "PIVOT (MIN(Age) FOR Person IN ([1])) AS p ORDER BY Part", [(40,), (40,)]),
        ("SELECT p.Part, p.[1] FROM (SELECT Part, Year FROM Sales) AS s JOIN (SELECT Person, Age, Work FROM Phones) AS "
         "q ON q.Person = s.Year - 2014 PIVOT (MAX(Age) FOR Person IN ([1], [2])) AS p WHERE Year = 2015 ORDER BY Part",
         [("a", 40), ("b", 40)]),
        ("SELECT Person, Number, Kind FROM dbo.Phones UNPIVOT (Number FOR Kind IN (Home, [Work])) AS u "
         "ORDER BY Person, Kind", [(1, "11", "Home"), (1, "12", "Work"), (2, "22", "Work")]),
        ("SELECT * FROM Phones AS f UNPIVOT (Number FOR Kind IN (home, work)) AS u WHERE u.Person = 2",
         [(2, 41, "22", "Work")]),
        ("SELECT * FROM Phones UNPIVOT (Number FOR Kind IN (Home, Work)) AS u "
         "PIVOT (MAX(Number) FOR Kind IN (Home, Work)) AS p ORDER BY Person",
         [(1, 40, "11", "12"), (2, 41, None, "22")]),
    ],
)  # fmt: skip
def test_pivot_makes_columns_and_unpivot_rows(shop: sb.Database, query: str, found: list[tuple[object, ...]]) -> None:
    assert rows(shop, query) == found


def test_the_result_has_column_names_and_can_be_stored(shop: sb.Database) -> None:
    pivoted = shop.execute_tsql(f"SELECT * FROM {SALES} PIVOT (SUM(Amount) FOR Year IN ([2015], [2016])) AS p")
    assert pivoted.sets[0].columns == ("Shop", "2015", "2016")
    shop.execute_tsql(
        "DECLARE @t TABLE (n NVARCHAR(20), k NVARCHAR(20)); "
        "INSERT @t SELECT Number, Kind FROM Phones UNPIVOT (Number FOR Kind IN (Home, Work)) AS u; "
        "IF (SELECT COUNT(*) FROM @t) <> 3 THROW 50000, 'three', 1"
    )
    shop.execute_tsql(
        "CREATE VIEW dbo.ByYear AS SELECT Shop, [2015] FROM (SELECT Shop, Year, Amount FROM dbo.Sales) AS s "
        "PIVOT (SUM(Amount) FOR Year IN ([2015])) AS p"
    )
    assert rows(shop, "SELECT [2015] FROM ByYear WHERE Shop = N'Ost'") == [(12.5,)]


@pytest.mark.parametrize(
    ("clause", "number"),
    [
        ("PIVOT (SUM(Nothing) FOR Year IN ([2015])) AS p", 207),
        ("PIVOT (SUM(Amount) FOR Nothing IN ([2015])) AS p", 207),
        ("PIVOT (SUM(Amount) FOR Year IN ([2015])) AS p WHERE p.Year = 1", 207),
        ("PIVOT (SUM(Amount) FOR Year IN ([soon])) AS p", 8114),
        ("PIVOT (SUM(Amount) FOR Year IN ([2015], [2015])) AS p", 8156),
        ("PIVOT (MAX(Amount) FOR Part IN ([Shop])) AS p", 265),
        ("PIVOT (SUM(Shop) FOR Year IN ([2015])) AS p", 8117),
        ("PIVOT (COUNT(*) FOR Year IN ([2015])) AS p", 102),
        ("PIVOT (SUM(Amount), MAX(Amount) FOR Year IN ([2015])) AS p", 102),
        ("PIVOT (SUM(Amount) FOR Year IN (2015)) AS p", 102),
        ("PIVOT (SUM(Amount) FOR Year IN ([2015]))", 102),
        ("PIVOT (SUM(Amount) FOR Year) AS p", 102),
        ("JOIN dbo.Sales AS t ON t.Id = s.Id PIVOT (SUM(Amount) FOR Year IN ([2015])) AS p", 8156),
        ("UNPIVOT (Value FOR Kind IN (Shop, Nothing)) AS u", 207),
        ("UNPIVOT (Value FOR Kind IN (Shop, Year)) AS u", 8167),
        ("UNPIVOT (Value FOR Id IN (Year)) AS u", 265),
        ("UNPIVOT (Value FOR Kind IN (Year, Year)) AS u", 8156),
        ("UNPIVOT (Value FOR Value IN (Year)) AS u", 8156),
        ("UNPIVOT (Value FOR Kind IN (Year))", 102),
        ("WITH (UPDLOCK) PIVOT (SUM(Amount) FOR Year IN ([2015])) AS p", 40515),
    ],
)
def test_invalid_pivots_are_refused(shop: sb.Database, clause: str, number: int) -> None:
    with pytest.raises(sb.BrokerError) as error:
        shop.execute_tsql(f"SELECT * FROM dbo.Sales AS s {clause}")
    assert error.value.number == number


def test_the_error_names_a_missing_table(shop: sb.Database) -> None:
    with pytest.raises(sb.BrokerError, match="Invalid object name 'Missing'") as error:
        shop.execute_tsql("SELECT * FROM Missing PIVOT (SUM(Amount) FOR Year IN ([2015])) AS p")
    assert error.value.number == 208


def test_check_predicts_the_result_of_a_run() -> None:
    verdicts = {
        "SELECT * FROM T PIVOT (SUM(a) FOR b IN ([x])) AS p": "runs",
        "SELECT * FROM (SELECT 1 AS a, 2 AS b) AS T PIVOT (SUM(a) FOR b IN ([2])) AS p": "runs",
        "SELECT * FROM (SELECT 1 AS a, 2 AS b) AS T PIVOT (SUM(a) FOR b IN ([x])) AS p": "does not run",
        "SELECT * FROM T UNPIVOT (v FOR n IN (a, b)) AS u": "runs",
    }
    assert {text: next(check(text)).verdict.value for text in verdicts} == verdicts


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT f.Person, v.Number, v.Kind FROM Phones AS f CROSS APPLY (VALUES (f.Home, 'h'), (f.Work, 'w')) "
         "AS v (Number, Kind) WHERE v.Number IS NOT NULL ORDER BY f.Person, v.Kind",
         [(1, "11", "h"), (1, "12", "w"), (2, "22", "w")]),
        ("SELECT f.Person, v.k FROM Phones AS f OUTER APPLY (VALUES (f.Age + 1)) v (k) WHERE f.Person = 3", [(3, 43)]),
        ("SELECT Id, SUM(Id) OVER w AS s, COUNT(*) OVER (w ORDER BY Id) AS c FROM Sales WHERE Id < 4 "
         "WINDOW w AS (PARTITION BY Year) ORDER BY Id", [(1, 3, 1), (2, 3, 2), (3, 3, 1)]),
        ("SELECT TOP (2) CONCAT('', LAG(Amount, 1, 0) OVER (ORDER BY Id)) FROM Sales ORDER BY Id",
         [("0.00",), ("10.00",)]),
        ("SELECT Id, LAG(Id) OVER w, ROW_NUMBER() OVER v FROM Sales WHERE Id < 3 WINDOW w AS (ORDER BY Id), "
         "v AS (w ROWS UNBOUNDED PRECEDING) ORDER BY Id", [(1, None, 1), (2, 1, 2)]),
        ("SELECT TOP (30) PERCENT Id FROM Sales ORDER BY Id DESC", [(5,), (4,)]),
        ("SELECT TOP 100 PERCENT Id FROM Sales WHERE Id < 3 ORDER BY Id", [(1,), (2,)]),
        ("SELECT TOP (0) PERCENT Id FROM Sales", []),
        ("SELECT TOP (10.5) PERCENT WITH TIES Year FROM Sales ORDER BY Year", [(2015,), (2015,), (2015,)]),
        ("SELECT TOP (50) PERCENT Year, COUNT(*) FROM Sales GROUP BY Year ORDER BY Year", [(2015, 3)]),
        ("SELECT DISTINCT TOP (50) PERCENT Year FROM Sales ORDER BY Year", [(2015,)]),
        ("SELECT COUNT(*) FROM (SELECT TOP (60) PERCENT Id FROM Sales ORDER BY Id) AS t", [(3,)]),
    ],
)  # fmt: skip
def test_apply_of_values_named_windows_and_percent(
    shop: sb.Database, query: str, found: list[tuple[object, ...]]
) -> None:
    assert rows(shop, query) == found


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("SELECT 1 FROM Phones CROSS APPLY (VALUES (1))", 102),
        ("SELECT TOP (101) PERCENT 1 AS a FROM Phones", 1031),
        ("SELECT TOP (-1) PERCENT 1 AS a FROM Phones", 1031),
        ("SELECT TOP ('x') PERCENT 1 AS a FROM Phones", 1031),
        ("SELECT {fn NOWHERE()}", 195),
        ("SELECT 1 FROM Phones AS f CROSS APPLY (VALUES (f.Age), (1, 2)) AS v (k)", 10709),
        ("SELECT APPROX_PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY Age) FROM Phones", 40515),
    ],
)
def test_invalid_apply_and_top_are_refused(shop: sb.Database, query: str, number: int) -> None:
    with pytest.raises(sb.BrokerError) as error:
        shop.execute_tsql(query)
    assert error.value.number == number
