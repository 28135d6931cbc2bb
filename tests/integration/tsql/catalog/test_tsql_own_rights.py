"""HAS_PERMS_BY_NAME and fn_my_permissions: what who works may do."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.model.security.permissions import IMPLIED_BY, Kind
from servicebroker.tsql.check import Verdict, check
from tsql_support import create_database, output_of, rows

OBJECTS = """
CREATE TABLE Goods (Id int) CREATE QUEUE Inbox CREATE SERVICE Shop ON QUEUE Inbox CREATE MESSAGE TYPE Order_
CREATE USER Clerk WITHOUT LOGIN CREATE USER Writer WITHOUT LOGIN
ALTER ROLE db_datawriter ADD MEMBER Writer
GRANT SELECT, INSERT ON Goods TO Clerk DENY INSERT ON Goods TO Clerk
GRANT RECEIVE ON Inbox TO Clerk GRANT SEND ON SERVICE::Shop TO Clerk
"""


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "OwnRights", OBJECTS)


@pytest.mark.parametrize(
    ("arguments", "dbo", "clerk", "writer"),
    [
        ("'dbo.Goods', 'OBJECT', 'SELECT'", 1, 1, 0),
        ("N'Goods', 'object', 'insert'", 1, 0, 1),
        ("'[dbo].[Goods]', 'OBJECT', 'ANY'", 1, 1, 1),
        ("'Inbox', 'OBJECT', 'RECEIVE'", 1, 1, 0),
        ("'Shop', 'SERVICE', 'SEND'", 1, 1, 0),
        ("'Order_', 'MESSAGE TYPE', 'ANY'", 1, 0, 0),
        ("'dbo', 'SCHEMA', 'INSERT'", 1, 0, 1),
        ("DB_NAME(), 'DATABASE', 'CREATE QUEUE'", 1, 0, 0),
        ("NULL, 'DATABASE', 'INSERT'", 1, 0, 1),
        ("NULL, NULL, 'ALTER ANY DATABASE'", 1, 0, 0),
        ("'Nothing', 'OBJECT', 'SELECT'", None, None, None),
        ("'Goods', 'NO CLASS', 'SELECT'", None, None, None),
        ("'Goods', 'OBJECT', NULL", None, None, None),
        ("'a.b.c.d.e', 'OBJECT', 'SELECT'", None, None, None),
        ("'a.b.c.d', 'OBJECT', 'SELECT'", None, None, None),
        ("'Goods', 'OBJECT', 'NO SUCH'", None, None, None),
        ("NULL, NULL, 'VIEW SERVER STATE'", 0, 0, 0),
        ("'OwnRights..Goods', 'OBJECT', 'SELECT'", 1, 1, 0),
        ("'[OwnRights].dbo.[Goods]', 'OBJECT', 'INSERT'", 1, 0, 1),
        ("'Elsewhere..Goods', 'OBJECT', 'SELECT'", None, None, None),
        ("'sys.tables', 'OBJECT', 'SELECT'", 1, 1, 1),
        ("'OwnRights.sys.conversation_endpoints', 'OBJECT', 'INSERT'", 0, 0, 0),
        ("'INFORMATION_SCHEMA.TABLES', 'OBJECT', 'ANY'", 1, 1, 1),
        ("'sys.nothing', 'OBJECT', 'SELECT'", None, None, None),
        ("'sys.all_parameters', 'OBJECT', 'SELECT'", None, None, None),
    ],
)
def test_has_perms_by_name_agrees_with_the_grants(
    shop: sb.Database, arguments: str, dbo: int | None, clerk: int | None, writer: int | None
) -> None:
    query = f"SELECT HAS_PERMS_BY_NAME({arguments})"
    output = output_of(shop, f"{query} EXECUTE AS USER = 'Clerk' {query} REVERT EXECUTE AS USER = 'Writer' {query}")
    assert output == [[(dbo,)], [(clerk,)], [(writer,)]]


def test_has_perms_by_name_agrees_with_the_statement(shop: sb.Database) -> None:
    """The names are variables; the function runs in a transaction and in a query with tables."""
    output = output_of(
        shop,
        """
        DECLARE @what sysname = N'DELETE', @name nvarchar(20) = N'Goods'
        BEGIN TRANSACTION
        INSERT Goods VALUES (1)
        EXECUTE AS USER = 'Clerk'
        IF HAS_PERMS_BY_NAME(@name, N'OBJECT', @what) = 0 PRINT 'no'
        DELETE Goods
        SELECT Id, HAS_PERMS_BY_NAME(@name, N'OBJECT', N'SELECT') FROM Goods WHERE Id / 0 = 1
        SELECT Id, HAS_PERMS_BY_NAME(@name, N'OBJECT', N'SELECT') FROM Goods
        REVERT
        ROLLBACK
        """,
    )
    assert output == ["no", 229, 8134, [(1, 1)]]


def test_fn_my_permissions_lists_the_permissions_of_the_user(shop: sb.Database) -> None:
    mine = "SELECT entity_name, permission_name FROM fn_my_permissions(N'Inbox', N'OBJECT') ORDER BY 2"
    every = sorted(name for kind, name in IMPLIED_BY if kind is Kind.QUEUE)
    assert rows(shop, mine) == [("Inbox", name) for name in every]
    assert output_of(shop, f"EXECUTE AS USER = 'Clerk' {mine}") == [[("Inbox", "RECEIVE")]]
    server = "SELECT COUNT(*) FROM sys.fn_my_permissions(NULL, 'SERVER') p WHERE p.permission_name LIKE 'ALTER ANY%'"
    assert rows(shop, server) == [(sum(kind is Kind.SERVER and "ALTER ANY" in name for kind, name in IMPLIED_BY),)]
    assert output_of(shop, f"EXECUTE AS USER = 'Writer' {server}") == [[(0,)]]
    whole = "SELECT DISTINCT entity_name FROM fn_my_permissions(NULL, 'DATABASE')"
    assert output_of(shop, whole) == [[("OwnRights",)]]


@pytest.mark.parametrize(
    ("query", "number"),
    [
        ("SELECT HAS_PERMS_BY_NAME(name, 'OBJECT', 'SELECT') FROM sys.tables", 40515),
        ("SELECT HAS_PERMS_BY_NAME('Goods', 'OBJECT', 'SELECT', 'Id', 'COLUMN')", 40515),
        ("SELECT HAS_PERMS_BY_NAME('Goods', 'OBJECT')", 189),
        ("SELECT * FROM fn_my_permissions('Goods')", 174),
        ("SELECT FN_MY_PERMISSIONS('Goods', 'OBJECT')", 40515),
        ("SELECT HAS_PERMS_BY_NAME(@no, 'OBJECT', 'SELECT')", 137),
    ],
)
def test_unsupported_permission_queries_are_refused(shop: sb.Database, query: str, number: int) -> None:
    assert output_of(shop, query) == [number]
    assert [finding.verdict for finding in check(query)] == [Verdict.REFUSED]


@pytest.mark.parametrize(
    "script",
    [
        "CREATE VIEW Asks AS SELECT HAS_PERMS_BY_NAME('Goods', 'OBJECT', 'SELECT') AS may",
        "CREATE VIEW Asks AS SELECT * FROM fn_my_permissions('Goods', 'OBJECT')",
        "CREATE TABLE Asks (a int, may int DEFAULT HAS_PERMS_BY_NAME('Goods', 'OBJECT', 'SELECT'))",
        "CREATE TABLE Asks (a int, CHECK (HAS_PERMS_BY_NAME('Goods', 'OBJECT', 'SELECT') = 1))",
        "CREATE FUNCTION Asks () RETURNS int AS BEGIN RETURN HAS_PERMS_BY_NAME('Goods', 'OBJECT', 'SELECT') END",
        "CREATE FUNCTION Asks () RETURNS TABLE AS RETURN SELECT HAS_PERMS_BY_NAME(NULL, NULL, 'CONTROL') AS may",
    ],
)
def test_permission_functions_are_refused_in_stored_objects(shop: sb.Database, script: str) -> None:
    with pytest.raises(sb.TsqlError) as error:
        shop.execute_tsql(script)
    assert error.value.number == 40515
    name = "FN_MY_PERMISSIONS" if "fn_my" in script else "HAS_PERMS_BY_NAME"
    assert error.value.text.startswith(f"{name} in a view, a function, a DEFAULT")
    assert Verdict.REFUSED in [finding.verdict for finding in check(script)]
