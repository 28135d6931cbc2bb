"""CREATE SYNONYM and DROP SYNONYM, and what reads, changes, calls and receives by another name."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.check import check
from tsql_support import create_database, output_of, rows

OBJECTS = """
CREATE TABLE dbo.Parcels (Id INT PRIMARY KEY, Place NVARCHAR(20));
CREATE SCHEMA Depot;
GO
CREATE VIEW dbo.Heavy AS SELECT Id FROM dbo.Parcels WHERE Id > 10;
GO
CREATE PROCEDURE dbo.Count_them @least INT = 0 AS SELECT COUNT(*) AS n FROM dbo.Parcels WHERE Id >= @least;
GO
CREATE FUNCTION dbo.Doubled (@n INT) RETURNS INT AS BEGIN RETURN @n * 2 END;
GO
CREATE FUNCTION dbo.Above (@n INT) RETURNS TABLE AS RETURN (SELECT Id FROM dbo.Parcels WHERE Id > @n);
GO
CREATE QUEUE dbo.Arrivals; CREATE SERVICE Arrival ON QUEUE dbo.Arrivals ([DEFAULT]);
CREATE SYNONYM dbo.P FOR dbo.Parcels;
CREATE SYNONYM Depot.[All Of Them] FOR [dbo].[Parcels];
CREATE SYNONYM H FOR Heavy; CREATE SYNONYM Counted FOR dbo.Count_them;
CREATE SYNONYM Twice FOR dbo.Doubled CREATE SYNONYM Beyond FOR dbo.Above
CREATE SYNONYM Q FOR dbo.Arrivals;
CREATE SYNONYM Names FOR sys.synonyms;
CREATE SYNONYM Gone FOR dbo.NotThere; CREATE SYNONYM Chain FOR dbo.P; CREATE SYNONYM Far FOR Other.Db.dbo.T;
"""


@pytest.fixture(scope="module")
def depot(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "SynonymDepot", OBJECTS)


@pytest.fixture
def filled_depot(depot: sb.Database) -> sb.Database:
    depot.execute_tsql("DELETE dbo.Parcels; INSERT dbo.Parcels VALUES (1, N'Bonn'), (20, N'Trier')")
    return depot


@pytest.mark.parametrize(
    ("script", "expected_text"),
    [
        ("SELECT p.Id, P.Place FROM P ORDER BY P.Id", [[(1, "Bonn"), (20, "Trier")]]),
        ("SELECT * FROM depot.[all of them] AS a JOIN h ON h.Id = a.Id", [[(20, "Trier", 20)]]),
        ("SELECT Id FROM SynonymDepot.dbo.P WHERE Place = N'Bonn'", [[(1,)]]),
        ("INSERT P (Id, Place) OUTPUT inserted.Id VALUES (3, N'Ulm'); SELECT COUNT(*) FROM P", [[(3,)], [(3,)]]),
        ("UPDATE P SET Place = N'Kiel' WHERE Id = 1; SELECT Place FROM Parcels WHERE Id = 1", [[("Kiel",)]]),
        ("UPDATE P SET Place = N'Kiel' FROM P JOIN H ON H.Id = P.Id; SELECT Id FROM P WHERE Place = N'Kiel'",
         [[(20,)]]),
        ("DELETE FROM P WHERE Id = 1; SELECT Id FROM Parcels", [[(20,)]]),
        ("DELETE x FROM P AS x JOIN H ON H.Id = x.Id; SELECT Id FROM Parcels", [[(1,)]]),
        ("MERGE P AS t USING (VALUES (1), (5)) AS s (n) ON s.n = t.Id WHEN MATCHED THEN DELETE "
         "WHEN NOT MATCHED THEN INSERT (Id) VALUES (s.n); SELECT Id FROM P ORDER BY Id", [[(5,), (20,)]]),
        ("WITH few AS (SELECT * FROM P WHERE Id < 5) UPDATE few SET Place = N'Jena'; SELECT Place FROM P WHERE Id = 1",
         [[("Jena",)]]),
        ("DECLARE @t TABLE (n INT); INSERT @t SELECT Id FROM P; DELETE P OUTPUT deleted.Id INTO @t; "
         "SELECT COUNT(*) FROM @t", [[(4,)]]),
        ("EXEC Counted @least = 2; EXEC dbo.Counted 1", [[(1,)], [(2,)]]),
        ("SELECT dbo.Twice(21)", [[(42,)]]),
        ("SELECT o.Id FROM dbo.Beyond(5) AS o", [[(20,)]]),
        ("SELECT s.base_object_name FROM Names AS s WHERE s.name = 'H'", [[("[Heavy]",)]]),
        ("IF OBJECT_ID('P', 'SN') IS NOT NULL SELECT OBJECT_NAME(OBJECT_ID('P')), OBJECT_DEFINITION(OBJECT_ID('P'))",
         [[("P", None)]]),
        ("CREATE PROCEDURE dbo.ByName AS SELECT COUNT(*) FROM P\nGO\nEXEC ByName; DROP PROCEDURE ByName", [[(2,)]]),
        ("DECLARE @x NVARCHAR(50) = N'Counted'; EXEC @x", [[(2,)]]),
    ],
)  # fmt: skip
def test_a_synonym_is_used_like_its_base_object(
    filled_depot: sb.Database, script: str, expected_text: list[Any]
) -> None:
    assert [each for each in output_of(filled_depot, script) if not isinstance(each, str)] == expected_text


def test_receive_and_its_kin_take_a_synonym_of_a_queue(filled_depot: sb.Database) -> None:
    script = """
        DECLARE @h UNIQUEIDENTIFIER, @g UNIQUEIDENTIFIER;
        BEGIN DIALOG @h FROM SERVICE Arrival TO SERVICE 'Arrival' WITH ENCRYPTION = OFF;
        SEND ON CONVERSATION @h (CAST('in' AS VARBINARY(10)));
        SELECT COUNT(*) FROM Q;
        BEGIN TRAN; GET CONVERSATION GROUP @g FROM dbo.Q; ROLLBACK;
        WAITFOR (RECEIVE TOP (1) CAST(message_body AS VARCHAR(10)) FROM Q), TIMEOUT 1000;
    """
    assert output_of(filled_depot, script)[-1] == [("in",)]
    assert next(found for found in output_of(filled_depot, script) if isinstance(found, list)) == [(1,)]


def test_the_catalog_shows_synonyms(depot: sb.Database) -> None:
    shown = rows(
        depot,
        "SELECT y.name, SCHEMA_NAME(y.schema_id), y.type, y.type_desc, y.base_object_name FROM sys.synonyms AS y "
        "JOIN sys.objects AS o ON o.object_id = y.object_id WHERE y.name IN ('P', 'All Of Them', 'Far') "
        "ORDER BY y.name",
    )
    assert shown == [
        ("All Of Them", "Depot", "SN", "SYNONYM", "[dbo].[Parcels]"),
        ("Far", "dbo", "SN", "SYNONYM", "[Other].[Db].[dbo].[T]"),
        ("P", "dbo", "SN", "SYNONYM", "[dbo].[Parcels]"),
    ]
    assert rows(depot, "SELECT COUNT(*) FROM sys.sql_modules AS m JOIN sys.synonyms AS s ON s.object_id = m.object_id")[
        0
    ] == (0,)


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("SELECT * FROM Gone", 5313),
        ("INSERT Gone VALUES (1)", 5313),
        ("EXEC Gone", 2812),
        ("RECEIVE * FROM Gone", 208),
        ("SELECT dbo.Gone(1)", 4121),
        ("SELECT * FROM Chain", 470),
        ("EXEC Chain", 470),
        ("SELECT * FROM Far", 7202),
        ("CREATE SYNONYM P FOR dbo.Heavy", 2714),
        ("CREATE SYNONYM parcels FOR dbo.Heavy", 2714),
        ("CREATE SYNONYM Arrivals FOR dbo.Heavy", 2714),
        ("CREATE SYNONYM Count_them FOR dbo.Heavy", 2714),
        ("CREATE TABLE P (n INT)", 2714),
        ("CREATE QUEUE P", 2714),
        ("SELECT 1 AS n INTO P", 2714),
        ("CREATE PROCEDURE P AS SELECT 1", 2714),
        ("CREATE VIEW P AS SELECT 1 AS n", 2714),
        ("CREATE SYNONYM NoSchema.P FOR dbo.Parcels", 2760),
        ("CREATE SYNONYM sys.P FOR dbo.Parcels", 2760),
        ("DROP SYNONYM Nothing", 3701),
        ("DROP SYNONYM Parcels", 3701),
        ("DROP SYNONYM Arrivals", 3705),
        ("DROP TABLE P", 3705),
        ("DROP PROCEDURE Counted", 3705),
        ("ALTER TABLE P ADD x INT", 4909),
        ("TRUNCATE TABLE P", 4708),
        ("CREATE INDEX i ON P (Id)", 1914),
        ("CREATE TRIGGER tr ON P AFTER INSERT AS PRINT 'x'", 8197),
        ("ALTER PROCEDURE Counted AS SELECT 1", 2010),
        ("CREATE SYNONYM X", 102),
        ("CREATE SYNONYM X FOR", 102),
        ("ALTER SYNONYM P FOR dbo.Heavy", 102),
    ],
)  # fmt: skip
def test_invalid_uses_of_synonyms_are_refused(depot: sb.Database, script: str, number: int) -> None:
    before = rows(depot, "SELECT COUNT(*) FROM sys.objects")
    with pytest.raises(sb.BrokerError) as error:
        depot.execute_tsql(script)
    assert error.value.number == number
    assert rows(depot, "SELECT COUNT(*) FROM sys.objects") == before


def test_the_name_means_another_thing_once_it_is_dropped(filled_depot: sb.Database) -> None:
    filled_depot.execute_tsql("CREATE SYNONYM Moving FOR dbo.Parcels; SELECT * FROM Moving")
    filled_depot.execute_tsql("BEGIN TRAN; DROP SYNONYM dbo.Moving; CREATE SYNONYM Moving FOR dbo.Heavy; ROLLBACK")
    assert len(rows(filled_depot, "SELECT Place FROM Moving")) == 2
    filled_depot.execute_tsql("DROP SYNONYM IF EXISTS dbo.Moving; DROP SYNONYM IF EXISTS dbo.Moving")
    with pytest.raises(sb.BrokerError) as error:
        filled_depot.execute_tsql("SELECT * FROM Moving")
    assert error.value.number == 208
    filled_depot.execute_tsql("CREATE TABLE Moving (n INT); INSERT Moving VALUES (7)")
    assert rows(filled_depot, "SELECT n FROM Moving") == [(7,)]
    filled_depot.execute_tsql("DROP TABLE Moving")


def test_a_synonym_may_stand_for_another_databases_table(instance: sb.Instance, filled_depot: sb.Database) -> None:
    other_database = instance.database("SynonymElsewhere", create=True)
    other_database.execute_tsql("CREATE SYNONYM dbo.Theirs FOR SynonymDepot.dbo.Parcels; CREATE TABLE dbo.Own (n INT)")
    filled_depot.execute_tsql("CREATE SYNONYM dbo.Own FOR SynonymElsewhere..Own; INSERT Own VALUES (4)")
    assert rows(other_database, "SELECT COUNT(*) FROM Theirs") == [(2,)]
    assert rows(filled_depot, "SELECT n FROM Own") == [(4,)]
    assert rows(other_database, "SELECT COUNT(*) FROM SynonymDepot.dbo.P") == [(2,)]
    filled_depot.execute_tsql("DROP SYNONYM Own")


def test_check_says_that_it_runs() -> None:
    found = list(check("CREATE SYNONYM dbo.S FOR D.dbo.T; SELECT * FROM S; DROP SYNONYM IF EXISTS dbo.S"))
    assert [(one.statement, one.verdict.value) for one in found] == [
        ("CREATE SYNONYM", "runs"), ("SELECT", "runs"), ("DROP SYNONYM", "runs"),
    ]  # fmt: skip
