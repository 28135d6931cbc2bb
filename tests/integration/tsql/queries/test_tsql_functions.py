"""User-defined functions: CREATE, ALTER and DROP FUNCTION, scalar and inline table-valued."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.session import Session
from tsql_support import error_number, rows

ORDERS = """
CREATE TABLE Orders (Id INT PRIMARY KEY, Customer NVARCHAR(20), Amount DECIMAL(10, 2))
INSERT Orders VALUES (1, N'Ann', 10.50), (2, N'Ben', 3), (3, N'Ann', 1.25)
"""
TOTAL = """
CREATE FUNCTION dbo.Total (@customer NVARCHAR(20), @factor INT = 1) RETURNS DECIMAL(12, 1)
WITH SCHEMABINDING AS
BEGIN
    DECLARE @sum DECIMAL(12, 2), @n INT = 0, @seen INT = 7
    SELECT @sum = SUM(Amount) FROM Orders WHERE Customer = @customer
    SELECT @seen = Id FROM Orders WHERE Customer = N'nobody'
    IF @sum IS NULL RETURN -@seen
    WHILE 1 = 1
    BEGIN
        SET @n += 1
        IF @n < @factor CONTINUE
        ELSE BREAK
    END
    RETURN @sum * @n
END
"""
ORDERS_OF = """
CREATE FUNCTION dbo.OrdersOf (@customer NVARCHAR(20)) RETURNS TABLE AS RETURN
(
    WITH his AS (SELECT Id, Amount FROM Orders WHERE Customer = @customer)
    SELECT his.Id AS OrderId, Amount, Amount * 2 AS Doubled FROM his
)
"""


@pytest.fixture
def orders(instance: sb.Instance) -> Iterator[sb.Database]:
    """A database with a table of orders and two functions."""
    database = instance.database("Functions", create=True)
    database.execute_tsql(f"{ORDERS}\nGO\n{TOTAL}\nGO\n{ORDERS_OF}")
    yield database
    database.execute_tsql("USE master; DROP DATABASE Functions")


def test_a_scalar_function_is_a_value_wherever_a_value_stands(orders: sb.Database) -> None:
    result_rows = rows(
        orders, "SELECT dbo.Total('Ann', 2), [dbo].[total](N'Zoe', DEFAULT), Functions.dbo.Total(N'Ben', 1)"
    )
    assert result_rows == [(Decimal("23.5"), Decimal("-7.0"), Decimal("3.0"))]
    text = (
        "SELECT Customer FROM Orders WHERE dbo.Total(Customer, Id) > 11 "
        "GROUP BY Customer HAVING dbo.Total(Customer, 1) > 3"
    )
    assert rows(orders, text) == [("Ann",)]
    text = """
    DECLARE @x DECIMAL(9, 3) = dbo.Total('Ann', 1), @who NVARCHAR(9) = N'Ben'
    IF dbo.Total(@who, 1) = 3 UPDATE Orders SET Amount = dbo.Total(@who, 3) WHERE Id = 3
    SELECT @x, Amount FROM Orders WHERE Id = 3
    """
    assert rows(orders, text) == [(Decimal("11.800"), Decimal("9.00"))]


def test_an_inline_function_is_a_table(orders: sb.Database) -> None:
    results = orders.execute_tsql("SELECT * FROM dbo.OrdersOf(N'Ann') ORDER BY OrderId")
    assert results.sets[0].columns == ("OrderId", "Amount", "Doubled")
    assert results.rows == [(1, Decimal("10.50"), Decimal("21.00")), (3, Decimal("1.25"), Decimal("2.50"))]
    text = "SELECT o.Id, q.N FROM Orders o {} APPLY dbo.OrdersOf(o.Customer + {}) AS q (N, A, D) ORDER BY 1, 2"
    assert rows(orders, text.format("CROSS", "''")) == [(1, 1), (1, 3), (2, 2), (3, 1), (3, 3)]
    assert rows(orders, text.format("OUTER", "'x'")) == [(1, None), (2, None), (3, None)]
    text = "SELECT COUNT(*) FROM Orders o JOIN dbo.OrdersOf(N'Ann') a ON a.OrderId = o.Id"
    assert rows(orders, text) == [(2,)]


def test_a_function_may_call_itself_and_others(orders: sb.Database) -> None:
    orders.execute_tsql(
        "CREATE FUNCTION dbo.Factorial (@n INT) RETURNS BIGINT AS BEGIN\n"
        "IF @n <= 1 RETURN 1\nRETURN @n * dbo.Factorial(@n - 1) END\nGO\n"
        "CREATE FUNCTION dbo.Both (@n INT) RETURNS NVARCHAR(3) WITH RETURNS NULL ON NULL INPUT AS BEGIN\n"
        "RETURN CAST(dbo.Factorial(@n) AS NVARCHAR(20)) + N' ' + SUSER_SNAME() + DB_NAME() END\nGO\n"
        "CREATE FUNCTION dbo.Forever (@n INT) RETURNS INT AS BEGIN RETURN dbo.Forever(@n + 1) END"
    )
    assert rows(orders, "SELECT dbo.Factorial(12), dbo.Both(5), dbo.Both(NULL)") == [(479_001_600, "120", None)]
    assert error_number(orders, "SELECT dbo.Forever(1)") == 217
    assert rows(orders, "SELECT dbo.Factorial(3)") == [(6,)]


REPORT = """
CREATE FUNCTION dbo.Report (@least DECIMAL(10, 2), @more BIT = 0)
RETURNS @found TABLE (
    Place INT IDENTITY PRIMARY KEY, Who NVARCHAR(20) NOT NULL, Total DECIMAL(12, 2) DEFAULT 0, Mark CHAR(1)
) AS
BEGIN
    DECLARE @sums TABLE (Who NVARCHAR(20), Total DECIMAL(12, 2), UNIQUE (Who))
    DECLARE @n INT
    INSERT INTO @sums SELECT Customer, SUM(Amount) FROM Orders GROUP BY Customer
    DELETE FROM @sums WHERE Total < @least
    IF NOT EXISTS (SELECT * FROM @sums) RETURN
    INSERT @found (Who, Total) SELECT Who, Total FROM @sums ORDER BY Total DESC
    SELECT @n = COUNT(*) FROM @found
    WHILE @more = 1 AND @n < 4
    BEGIN
        INSERT @found (Who) VALUES (N'more')
        SET @n += 1
    END
    UPDATE f SET Mark = 'x' FROM @found f JOIN @sums s ON s.Who = f.Who WHERE s.Total = (SELECT MAX(Total) FROM @sums)
    RETURN
END
"""


def test_a_function_fills_the_table_that_it_returns(orders: sb.Database) -> None:
    orders.execute_tsql(REPORT)
    results = orders.execute_tsql("SELECT * FROM dbo.Report(0, DEFAULT) ORDER BY Place")
    assert results.sets[0].columns == ("Place", "Who", "Total", "Mark")
    ann, ben = (1, "Ann", Decimal("11.75"), "x"), (2, "Ben", Decimal("3.00"), None)
    assert results.rows == [ann, ben]
    assert rows(orders, "SELECT * FROM dbo.Report(5, DEFAULT)") == [ann]
    assert rows(orders, "SELECT Who FROM dbo.Report(100, 1)") == []
    assert rows(orders, "SELECT Place, Who, Total FROM dbo.Report(5, 1) ORDER BY Place") == [
        (1, "Ann", Decimal("11.75")), *((place, "more", Decimal(0)) for place in (2, 3, 4)),
    ]  # fmt: skip
    text = "SELECT o.Id, r.Who FROM Orders o {} APPLY dbo.Report(o.Amount, 0) r ORDER BY 1, 2"
    assert rows(orders, text.format("CROSS")) == [(1, "Ann"), (2, "Ann"), (2, "Ben"), (3, "Ann"), (3, "Ben")]
    with orders.tsql_session() as session:
        session.execute("BEGIN TRANSACTION INSERT Orders VALUES (4, N'Cid', 50)")
        assert session.execute("SELECT TOP (1) Who FROM dbo.Report(0, 0) ORDER BY Place").rows == [("Cid",)]
        session.execute(
            REPORT.replace("CREATE", "ALTER").replace("Who NVARCHAR(20) NOT NULL", "Who NVARCHAR(20), Z INT")
        )
        assert session.execute("SELECT Z, Who FROM dbo.Report(20, 0)").rows == [(None, "Cid")]
        session.execute("ROLLBACK")
        assert session.execute("SELECT * FROM dbo.Report(5, 0)").rows == [ann]
    text = "SELECT type, type_desc FROM sys.objects WHERE name = 'Report'"
    assert rows(orders, text) == [("TF", "SQL_TABLE_VALUED_FUNCTION")]
    orders.execute_tsql("DROP FUNCTION dbo.Report")
    assert rows(orders, text) == []


def test_a_scalar_function_has_table_variables_but_does_not_call_itself_then(orders: sb.Database) -> None:
    orders.execute_tsql("""
    CREATE FUNCTION dbo.Down (@n INT) RETURNS NVARCHAR(100) AS
    BEGIN
        DECLARE @t TABLE (i INT)
        WHILE @n > 0
        BEGIN
            INSERT @t VALUES (@n)
            SET @n -= 1
        END
        IF @n < 0 INSERT @t SELECT LEN(dbo.Down(3))
        RETURN (SELECT STRING_AGG(i, ' ') WITHIN GROUP (ORDER BY i DESC) FROM @t)
    END
    """)
    assert rows(orders, "SELECT dbo.Down(3), dbo.Down(0), dbo.Down(Id) FROM Orders WHERE Id < 3") == [
        ("3 2 1", None, "1"), ("3 2 1", None, "2 1"),
    ]  # fmt: skip
    with orders.tsql_session() as session:
        session.execute(
            "BEGIN TRANSACTION BEGIN TRY SELECT dbo.Down(-1) END TRY BEGIN CATCH PRINT ERROR_MESSAGE() END CATCH"
        )
        assert session.execute("SELECT dbo.Down(2)").rows == [("2 1",)]
    assert error_number(orders, "SELECT dbo.Down(-1)") == 40515


def test_functions_are_altered_dropped_and_listed(orders: sb.Database) -> None:
    text = "SELECT name, type, type_desc FROM sys.objects WHERE type IN ('FN', 'IF') ORDER BY name"
    assert rows(orders, text) == [
        ("OrdersOf", "IF", "SQL_INLINE_TABLE_VALUED_FUNCTION"),
        ("Total", "FN", "SQL_SCALAR_FUNCTION"),
    ]
    with orders.tsql_session() as session:
        session.execute("BEGIN TRANSACTION\nGO\nALTER FUNCTION dbo.Total (@a INT) RETURNS INT AS BEGIN RETURN @a END")
        assert session.execute("SELECT dbo.Total('7')").rows == [(7,)]
        session.execute("ROLLBACK")
        assert session.execute("SELECT dbo.Total('Ben', 1)").rows == [(3,)]
    orders.execute_tsql("CREATE OR ALTER FUNCTION dbo.Total () RETURNS INT BEGIN RETURN 1 END")
    assert rows(orders, "SELECT dbo.Total(), OBJECT_ID('dbo.Total', 'FN') - OBJECT_ID('dbo.Total')") == [(1, 0)]
    assert "RETURN 1" in str(rows(orders, "EXEC sp_helptext 'dbo.Total'"))
    orders.execute_tsql("DROP FUNCTION dbo.Total, OrdersOf; DROP FUNCTION IF EXISTS dbo.Total")
    assert rows(orders, text) == []
    assert error_number(orders, "SELECT dbo.Total()") == 4121
    assert error_number(orders, "SELECT * FROM dbo.OrdersOf(1)") == 208
    assert error_number(orders, "DROP FUNCTION dbo.Total") == 3701


def test_goto_rowcount_and_the_caught_error_in_a_function(orders: sb.Database) -> None:
    orders.execute_tsql("""CREATE FUNCTION dbo.Jumps (@n INT) RETURNS VARCHAR(200) AS
    BEGIN
        DECLARE @said VARCHAR(200) = '', @i INT = 0
        again:
        SET @i += 1
        SET @said += 'a'
        WHILE @i < 9
        BEGIN
            step:
            SET @i += 1
            IF @i = 4 GOTO step
            IF @i = 6 BREAK
            IF @i = 7 GOTO done
            SET @said += CAST(@i AS VARCHAR(9))
        END
        IF @n > 0 BEGIN SET @n -= 1 GOTO again END
        done: SET @said += 'd'
        RETURN @said
    END
    GO
    CREATE FUNCTION dbo.Counts (@least INT) RETURNS VARCHAR(200) AS
    BEGIN
        DECLARE @said VARCHAR(200) = CAST(@@ROWCOUNT AS VARCHAR(9)), @id INT, @t TABLE (i INT IDENTITY, id INT)
        SELECT @id = Id FROM Orders WHERE Id >= @least ORDER BY Id
        SET @said += CONCAT(' ', @@ROWCOUNT, @@ERROR)
        SET @said += CONCAT(' ', @@ROWCOUNT)
        INSERT @t (id) SELECT Id FROM Orders
        SET @said += CONCAT(' ', ROWCOUNT_BIG())
        UPDATE @t SET id = 0 WHERE id > 1
        IF @@ROWCOUNT > 0 SET @said += CONCAT(' ', @@ROWCOUNT)
        RETURN @said
    END
    GO
    CREATE FUNCTION dbo.Caught () RETURNS NVARCHAR(200) AS
    BEGIN
        RETURN CONCAT(ERROR_NUMBER(), ' ', ERROR_SEVERITY(), ' ', ERROR_MESSAGE(), ' ', ERROR_PROCEDURE())
    END""")
    assert rows(orders, "SELECT dbo.Jumps(0), dbo.Jumps(1)") == [("a235d", "a235a89d")]
    total = rows(orders, "SELECT COUNT(*) FROM Orders")[0][0]
    assert rows(orders, "SELECT dbo.Counts(1), dbo.Counts(999)") == [(f"0 {total}0 1 {total} 0", f"0 00 1 {total} 0")]
    assert rows(orders, "SELECT dbo.Caught()") == [("   ",)]
    script = "BEGIN TRY RAISERROR('no %s', 16, 1, N'店') END TRY BEGIN CATCH SELECT dbo.Caught() END CATCH"
    assert rows(orders, script) == [("50000 16 no 店 ",)]
    assert rows(orders, f"{script} SELECT dbo.Caught()") == [("   ",)]
    with orders.tsql_session() as session:  # the settings of the connection follow
        assert session.execute(script).rows == [("50000 16 no 店 ",)]
        assert session.execute("SELECT dbo.Caught()").rows == [("   ",)]
    orders.execute_tsql("CREATE TABLE Failures (number INT DEFAULT ERROR_NUMBER(), id INT)")
    insert = "INSERT Failures (id) VALUES (1)"
    orders.execute_tsql(f"BEGIN TRY SELECT 1 / 0 END TRY BEGIN CATCH {insert} END CATCH {insert}")
    assert rows(orders, "SELECT number FROM Failures ORDER BY number") == [(None,), (8134,)]
    orders.execute_tsql("DROP FUNCTION dbo.Jumps, dbo.Counts, dbo.Caught; DROP TABLE Failures")


BAD_FUNCTION = "CREATE FUNCTION dbo.Bad () RETURNS INT AS BEGIN {} END"
REFUSED_SCRIPTS = [
    (BAD_FUNCTION.format("INSERT Orders VALUES (9, 'a', 2) RETURN 1"), 443),
    (BAD_FUNCTION.format("PRINT 'x' RETURN 1"), 443),
    (BAD_FUNCTION.format("EXEC sp_who RETURN 1"), 443),
    (BAD_FUNCTION.format("SELECT Id FROM Orders RETURN 1"), 444),
    (BAD_FUNCTION.format("IF 1 RETURN 2 RETURN 1"), 4145),
    (BAD_FUNCTION.format("DECLARE @t TABLE (a INT) DECLARE @t INT RETURN 1"), 134),
    (BAD_FUNCTION.format("DECLARE @t TABLE (a NOTYPE) RETURN 1"), 2715),
    (BAD_FUNCTION.format("DECLARE @t TABLE (a INT) INSERT @t OUTPUT inserted.a VALUES (1) RETURN 1"), 444),
    (BAD_FUNCTION.format("DECLARE @t TABLE (a INT) INSERT @t EXEC sp_who RETURN 1"), 443),
    (BAD_FUNCTION.format("DECLARE @a INT UPDATE Orders SET @a = Id RETURN 1"), 443),
    (BAD_FUNCTION.format("SELECT Id INTO #t FROM Orders RETURN 1"), 443),
    (BAD_FUNCTION.format("SET @nobody = 1 RETURN 1"), 137),
    (BAD_FUNCTION.format("RETURN @@TRANCOUNT"), 40515),
    (BAD_FUNCTION.format("GOTO nowhere RETURN 1"), 133),
    (BAD_FUNCTION.format("GOTO inside WHILE 1 = 1 BEGIN inside: RETURN 2 END RETURN 1"), 40515),
    (BAD_FUNCTION.format("DECLARE @a INT = 1"), 455),
    (BAD_FUNCTION.format("RETURN Nothing"), 207),
    ("CREATE FUNCTION dbo.Bad () RETURNS @t TABLE (a INT) AS BEGIN RETURN 1 END", 178),
    ("CREATE FUNCTION dbo.Bad () RETURNS @t TABLE (a INT) AS BEGIN INSERT @t VALUES (1) END", 455),
    ("CREATE FUNCTION dbo.Bad () RETURNS @t TABLE (a INT) AS BEGIN DELETE Orders RETURN END", 443),
    ("CREATE FUNCTION dbo.Bad (@t INT) RETURNS @t TABLE (a INT) AS BEGIN RETURN END", 134),
    ("CREATE FUNCTION dbo.Bad () RETURNS TABLE AS RETURN (SELECT 1)", 4514),
    ("CREATE FUNCTION dbo.Bad () RETURNS TABLE AS RETURN (SELECT * FROM Nowhere)", 208),
    ("CREATE FUNCTION dbo.Bad (@a INT OUTPUT) RETURNS INT AS BEGIN RETURN 1 END", 40515),
    ("CREATE FUNCTION dbo.Bad () RETURNS NOTYPE AS BEGIN RETURN 1 END", 2715),
    ("CREATE FUNCTION dbo.Orders () RETURNS INT AS BEGIN RETURN 1 END", 2714),
    ("CREATE FUNCTION dbo.Total () RETURNS INT AS BEGIN RETURN 1 END", 2714),
    ("ALTER FUNCTION dbo.Nope () RETURNS INT AS BEGIN RETURN 1 END", 208),
    ("SELECT 1; CREATE FUNCTION dbo.Bad () RETURNS INT AS BEGIN RETURN 1 END", 111),
    ("SELECT dbo.Total(N'Ann')", 313),
    ("SELECT dbo.Total(N'Ann', 1, 2)", 8144),
    ("SELECT dbo.Total(DEFAULT, 1)", 313),
    ("SELECT dbo.OrdersOf(N'Ann')", 317),
    ("SELECT * FROM dbo.Total(N'Ann', 1)", 208),
    ("SELECT Total(N'Ann', 1)", 195),
]


def test_invalid_functions_are_refused_and_not_created(orders: sb.Database) -> None:
    for script, wanted in REFUSED_SCRIPTS:
        assert (script, error_number(orders, script)) == (script, wanted)
    assert rows(orders, "SELECT OBJECT_ID('dbo.Bad')") == [(None,)]


def test_text_in_a_function_stays_text(orders: sb.Database) -> None:
    odd = "$tsql$ '' ; drop schema servicebroker cascade; --"
    orders.execute_tsql(
        f"CREATE FUNCTION dbo.Odd (@a NVARCHAR(99)) RETURNS NVARCHAR(99) AS BEGIN RETURN @a + N'{odd}' END"
    )
    assert orders.execute_tsql("SELECT dbo.Odd(@given)", {"given": "'); --"}).rows == [
        ("'); --" + odd.replace("''", "'"),)
    ]


def test_check_judges_the_body() -> None:
    script = f"{TOTAL}\nGO\n{ORDERS_OF}\nGO\n{BAD_FUNCTION.format('PRINT 1 RETURN 1')}\nGO\nSELECT dbo.F(1)"
    findings = [(finding.statement, finding.verdict) for finding in check(script)]
    assert [verdict for title, verdict in findings if title == "FUNCTION"] == [
        Verdict.RUNS,
        Verdict.RUNS,
        Verdict.REFUSED,
    ]
    assert findings[-1] == ("SELECT", Verdict.RUNS)


@pytest.mark.parametrize("in_try", [False, True])
def test_a_refused_function_leaves_no_trace_in_an_open_transaction(orders: sb.Database, in_try: bool) -> None:
    """Neither its text nor what stood there before it in another form."""
    begin, end = ("BEGIN TRY ", " END TRY BEGIN CATCH PRINT ERROR_NUMBER() END CATCH") if in_try else ("", "")
    orders.execute_tsql("CREATE FUNCTION Kept () RETURNS int AS BEGIN RETURN 1 END")
    refused = "CREATE FUNCTION Lost () RETURNS int AS BEGIN DELETE Orders RETURN 1 END"
    altered = "ALTER FUNCTION Kept () RETURNS int AS BEGIN DELETE Orders RETURN 2 END"
    with Session(orders, lambda said: None) as session:
        session.run("BEGIN TRANSACTION CREATE TABLE Beside (a int)")
        for script in (refused, altered, "DROP FUNCTION Kept, Nowhere"):
            session.run(f"{begin}EXEC (N'{script}'){end}")
        session.run("COMMIT")
    orders.execute_tsql("SELECT * FROM Beside")
    assert orders.execute_tsql("SELECT dbo.Kept()").rows == [(1,)]
    assert orders.execute_tsql("SELECT OBJECT_ID('Lost')").rows == [(None,)]
    assert "RETURN 1" in str(orders.execute_tsql("SELECT OBJECT_DEFINITION(OBJECT_ID('Kept'))").rows)
    orders.execute_tsql("DROP FUNCTION Kept DROP TABLE Beside")
