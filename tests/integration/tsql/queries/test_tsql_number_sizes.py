"""Numbers of 5,000 digits where statements run: each is an error of the statement, and the session goes on."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.session import Session
from tsql_support import output_of

LONG = "9" * 5000
# a statement with {n} for the number, and how the error is numbered
REFUSED_NUMBERS = {
    "SELECT {n}": 1007,
    "SELECT -{n}": 1007,
    "SELECT {n} + {n} * {n}": 1007,
    "SELECT 1e{n}": 8115,
    "PRINT {n}": 1007,
    "IF {n} > 1 PRINT 'x'": 1007,
    "DECLARE @x int = {n}": 1007,
    "DECLARE @x money = '{n}'": 8115,
    "DECLARE @x money = {n}.5": 8115,
    "DECLARE @x float = '{n}'": 8115,
    "DECLARE @x float = '1e{n}'": 8115,
    "DECLARE @x decimal(38, 0) = '{n}'": 8115,
    "DECLARE @s nvarchar(max) = N'{n}'; SELECT CAST(@s AS int)": 248,
    "DECLARE @s nvarchar(max) = N'{n}'; WAITFOR DELAY @s": 148,
    "WAITFOR (RECEIVE * FROM Nowhere), TIMEOUT {n}": 1007,
    "RECEIVE TOP ({n}) * FROM Nowhere": 1007,
    "RECEIVE TOP {n} * FROM Nowhere": 1007,
    "SET ROWCOUNT {n}": 1007,
    "SET LOCK_TIMEOUT -{n}": 1007,
    "RAISERROR ('%{n}d', 10, 1, 5)": 2787,
    "RAISERROR ('x', {n}, 1)": 1007,
    "THROW {n}, 'x', 1": 1007,
    "EXEC sp_getapplock 'r', 'Exclusive', 'Session', {n}": 1007,
    "EXEC sp_executesql N'SELECT @p', N'@p int', {n}": 1007,
    "EXEC sp_executesql N'SELECT @p', N'@p int', 1e400": 168,
    "EXEC sp_executesql N'SELECT @p', N'@p int', {n}.5": 8115,
    "EXEC sp_executesql N'SELECT @p', N'@p varbinary(8)', 99999999999999999999": 8115,
    "CREATE TABLE #a (i int IDENTITY({n}, 1))": 1007,
    "CREATE TABLE #a (i int IDENTITY(-+5, 1))": 102,
    "CREATE TABLE #a (i varchar({n}))": 2715,
    "SELECT IDENTITY(int, {n}, 1) AS x INTO #q": 1007,
    "CREATE SEQUENCE dbo.S START WITH {n}": 1007,
    "SELECT TOP ({n}) 1 AS x": 1007,
    "SELECT 1 AS x ORDER BY 1 OFFSET {n} ROWS": 1007,
    "SELECT * FROM sys.objects OPTION (MAXRECURSION {n})": 1007,
    "DECLARE @x xml = '<a/>'; SELECT @x.value('(/a)[{n}]', 'int')": 1007,
    "DECLARE @h uniqueidentifier; BEGIN DIALOG @h FROM SERVICE A TO SERVICE 'B' WITH LIFETIME = {n}": 1007,
    "DECLARE @h uniqueidentifier = NEWID(); BEGIN CONVERSATION TIMER (@h) TIMEOUT = {n}": 1007,
    "DECLARE @h uniqueidentifier = NEWID(); END CONVERSATION @h WITH ERROR = {n} DESCRIPTION = 'x'": 1007,
    "CREATE QUEUE Q WITH ACTIVATION (PROCEDURE_NAME = P, MAX_QUEUE_READERS = {n}, EXECUTE AS SELF)": 1007,
    "CREATE ROUTE R WITH ADDRESS = 'TCP://a:{n}'": 9660,
    "CREATE ROUTE R WITH ADDRESS = 'LOCAL', LIFETIME = {n}": 1007,
    "CREATE ENDPOINT E AS TCP (LISTENER_PORT = {n}) FOR SERVICE_BROKER": 1007,
    "ALTER DATABASE CURRENT SET READ_ONLY WITH ROLLBACK AFTER {n}": 1007,
    "DBCC CHECKIDENT ('x', RESEED, {n})": 1007,
    "DBCC INPUTBUFFER ({n})": 1007,
}


@pytest.fixture(scope="module")
def digits(instance: sb.Instance) -> sb.Database:
    return instance.database("Digits", create=True)


@pytest.mark.parametrize("statement", REFUSED_NUMBERS)
def test_a_number_of_5000_digits_is_an_error_of_its_statement(digits: sb.Database, statement: str) -> None:
    found: list[object] = []
    with Session(digits, found.append) as session:
        session.run(statement.replace("{n}", LONG))
        errors = [item for item in found if isinstance(item, sb.BrokerError)]
        assert [error.number for error in errors] == [REFUSED_NUMBERS[statement]]
        assert session.execute("SELECT 1").rows == [(1,)]


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        (f"SELECT 1\nGO {LONG}\nSELECT 2", [102]),
        ("SELECT 1\nGO 2", [[(1,)], [(1,)]]),
        ("RAISERROR ('[%5d]', 10, 1, 7)", ["[    7]"]),
        ("EXEC sp_executesql N'SELECT @p', N'@p bigint', 99999999999", [[(99999999999,)]]),
        ("EXEC sp_executesql N'SELECT @p', N'@p varbinary(8)', 5", [[(b"\0\0\0\x05",)]]),
        ("SELECT 00000000000000000000000000000000000000000000000000007", [[(7,)]]),
        (f"SELECT CAST({'9' * 38} AS decimal(38, 0))", [[(10**38 - 1,)]]),
    ],
    ids=["go", "go-twice", "width", "bigint", "binary", "zeros", "38-digits"],
)
def test_other_numbers_are_as_before(digits: sb.Database, text: str, expected_text: list[object]) -> None:
    assert output_of(digits, text) == expected_text


@pytest.mark.parametrize("form", ["%999999999d", "%.999999999d", "%*d"])
def test_a_width_is_bounded_by_the_text_of_an_error(digits: sb.Database, form: str) -> None:
    values = "2000000000, 5" if "*" in form else "5"
    (said,) = output_of(digits, f"RAISERROR ('{form}', 10, 1, {values})")
    assert len(said) <= 2048
