"""Error texts name T-SQL's concepts, not those of PostgreSQL or Python."""

from __future__ import annotations

import pytest

import servicebroker as sb
from tsql_support import failing


@pytest.mark.parametrize("use", ["USE master; ", ""])
@pytest.mark.parametrize("dates", ["EXPIRY_DATE = '20230101'", "START_DATE = '2023-05-01', EXPIRY_DATE = '2023-04-30'"])
def test_a_certificate_must_not_end_before_it_begins(database: sb.Database, use: str, dates: str) -> None:
    error = failing(database, f"{use}CREATE CERTIFICATE Old WITH SUBJECT = 'Old', {dates}")
    assert error.number == 402
    assert error.text.startswith("EXPIRY_DATE '2023")
    assert "must be later than the certificate's first day" in error.text


@pytest.mark.parametrize("script", ["USE Nowhere", "SELECT * FROM Nowhere.dbo.T", "DROP DATABASE Nowhere"])
def test_a_missing_database_is_refused(database: sb.Database, script: str) -> None:
    error = failing(database, script)
    assert error.number in (911, 208, 3701)
    assert "instance.database" not in error.text
    if error.number == 911:
        assert error.text == "Database 'Nowhere' does not exist. Make sure that the name is entered correctly."


@pytest.mark.parametrize("action", ["CREATE", "ALTER", "CREATE OR ALTER"])
def test_create_function_refuses_a_database_prefix(database: sb.Database, action: str) -> None:
    error = failing(database, f"\n{action} FUNCTION Other.dbo.F () RETURNS INT AS BEGIN RETURN 1 END")
    assert (error.number, error.severity, error.line) == (166, 15, 2)


@pytest.mark.parametrize("action", ["CREATE", "ALTER", "CREATE OR ALTER"])
def test_create_trigger_refuses_a_database_prefix(database: sb.Database, action: str) -> None:
    error = failing(database, f"\n{action} TRIGGER Other.dbo.Tr ON dbo.T AFTER INSERT AS RETURN")
    assert (error.number, error.severity, error.line) == (166, 15, 2)
    assert error.text.startswith("'CREATE/ALTER TRIGGER' does not allow specifying the database name as a prefix")


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("EXEC sp_addrolemember", 201),
        ("EXEC sp_droprolemember 'readers'", 201),
        ("EXEC sp_addrolemember 'readers', 'ann', 1", 8144),
        ("CREATE TABLE T (Id DATETIME IDENTITY)", 2749),
        ("CREATE TABLE T (Id DECIMAL(9, 2) IDENTITY)", 2749),
        ("CREATE TABLE T (Id DECIMAL(9) IDENTITY)", 40515),
        ("CREATE QUEUE NoTable; DROP SEQUENCE NoTable", 3705),
        ("WITH c (n) AS (SELECT 1 FROM c) SELECT n FROM c", 252),
        ("SELECT 1 FROM (VALUES (1)) AS v (n = p)", 102),
        ("SELECT IIF(1 = 1, 2)", 174),
        ("DECLARE @v bigint = CAST(SYSDATETIMEOFFSET() AS datetimeoffset)", 206),
        ("CREATE TABLE T (a datetime); CREATE INDEX I ON T (a) WHERE GETDATE() > a", 10735),
        ("CREATE TABLE T (a int); SELECT NTILE(0) OVER (ORDER BY a) FROM (VALUES (1)) v (a)", 4116),
        ("SELECT 1 AS a ORDER BY a OFFSET -1 ROWS", 10742),
    ],
)
def test_error_texts_do_not_quote_postgresql(database: sb.Database, script: str, number: int) -> None:
    error = failing(database, script)
    assert error.number == number
    assert "(PostgreSQL" not in error.text


@pytest.mark.parametrize("around", ["\n{}", "\nBEGIN TRY {} END TRY BEGIN CATCH THROW END CATCH"])
def test_the_line_of_an_error_counts_from_the_beginning_of_the_batch(database: sb.Database, around: str) -> None:
    error = failing(database, around.format("CREATE TABLE T (a int,\n b int wrong)"))
    assert (error.number, error.line) == (102, 3)
