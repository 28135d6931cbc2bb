"""Objects of the broker: T-SQL cannot make, change, drop or shadow them, not even as dbo."""

from __future__ import annotations

import pytest

import servicebroker as sb
from support import query, refused
from tsql_support import create_database

SETUP = """
CREATE QUEUE Inbox; CREATE SERVICE Desk ON QUEUE Inbox ([DEFAULT]);
CREATE TABLE Taken (n INT); CREATE SCHEMA Depot; CREATE QUEUE Depot.Inbox;
GO
CREATE PROCEDURE Busy AS RETURN
"""
OF_A_QUEUE = [
    ("DROP VIEW Inbox", 3705, "Use DROP QUEUE"),
    ("DROP VIEW IF EXISTS dbo.Inbox", 3705, "DROP VIEW"),
    ("DROP TABLE Inbox", 3705, "DROP TABLE"),
    ("DROP TABLE Taken, Inbox", 3705, "DROP TABLE"),
    ("DROP SEQUENCE Inbox", 3705, "Inbox"),
    ("DROP PROCEDURE Inbox", 3705, "Inbox"),
    ("DROP FUNCTION Inbox", 3705, "Inbox"),
    ("DROP VIEW {database}.dbo.Inbox", 3705, "Inbox"),
    ("DROP VIEW Depot.Inbox", 3705, "Inbox"),
    ("ALTER VIEW Inbox AS SELECT 1 AS n", 2010, "Inbox"),
    ("CREATE OR ALTER VIEW Inbox AS SELECT 1 AS n", 2010, "Inbox"),
    ("ALTER TABLE Inbox ADD n INT", 4909, "Inbox"),
    ("ALTER TABLE Inbox ADD CONSTRAINT d DEFAULT 0x FOR message_body", 4909, "Inbox"),
    ("ALTER TABLE Inbox DROP COLUMN message_body", 4909, "Inbox"),
    ("CREATE TABLE Inbox (n INT)", 2714, "Inbox"),
    ("CREATE TABLE inbox (n INT)", 2714, "inbox"),
    ("CREATE TABLE [{database}].dbo.Inbox (n INT)", 2714, "Inbox"),
    ("SELECT 1 AS n INTO Inbox", 2714, "Inbox"),
    ("CREATE VIEW Inbox AS SELECT 1 AS n", 2714, "Inbox"),
    ("CREATE SEQUENCE Inbox", 2714, "Inbox"),
    ("CREATE PROCEDURE Inbox AS RETURN", 2714, "Inbox"),
    ("CREATE FUNCTION Inbox () RETURNS INT AS BEGIN RETURN 1 END", 2714, "Inbox"),
    ("CREATE TRIGGER Inbox ON Taken AFTER INSERT AS RETURN", 2714, "Inbox"),
    ("CREATE TRIGGER T ON Inbox AFTER INSERT AS RETURN", 8197, "Inbox"),
    ("CREATE INDEX i ON Inbox (status)", 1914, "Inbox"),
    ("DROP INDEX i ON Inbox", 3701, "Inbox"),
    ("TRUNCATE TABLE Inbox", 4708, "Inbox"),
    ("INSERT Inbox (status) VALUES (1)", 416, "Inbox"),
    ("UPDATE Inbox SET status = 1", 416, "Inbox"),
    ("DELETE FROM Inbox", 416, "Inbox"),
    ("CREATE QUEUE Taken", 2714, "Taken"),
    ("CREATE QUEUE Busy", 2714, "Busy"),
    ("CREATE TABLE Busy (n INT)", 2714, "Busy"),
    ("CREATE VIEW Busy AS SELECT 1 AS n", 2714, "Busy"),
    ("DROP SCHEMA Depot", 3729, "depot"),
]
OF_THE_SYSTEM = [
    ("CREATE TABLE sys.T (n INT)", 2760, "sys"),
    ("CREATE TABLE information_schema.T (n INT)", 2760, "information_schema"),
    ("CREATE VIEW sys.V AS SELECT 1 AS n", 2760, "sys"),
    ("CREATE OR ALTER VIEW sys.services AS SELECT 1 AS n", 2760, "sys"),
    ("CREATE SEQUENCE sys.S", 2760, "sys"),
    ("CREATE PROCEDURE sys.P AS RETURN", 2760, "sys"),
    ("CREATE FUNCTION sys.F () RETURNS INT AS BEGIN RETURN 1 END", 2760, "sys"),
    ("CREATE TYPE sys.T FROM INT", 2760, "sys"),
    ("CREATE QUEUE sys.Q", 2760, "sys"),
    ("CREATE SCHEMA sys", 2714, "sys"),
    ("SELECT 1 AS n INTO sys.T", 259, "system catalogs"),
    ("ALTER VIEW sys.services AS SELECT 1 AS n", 1088, "sys.services"),
    ("ALTER TABLE sys.services ADD n INT", 1088, "sys.services"),
    ("DROP VIEW sys.services", 3701, "sys.services"),
    ("DROP TABLE sys.objects", 3701, "sys.objects"),
    ("DROP VIEW information_schema.tables", 3701, "information_schema.tables"),
    ("TRUNCATE TABLE sys.services", 1088, "sys.services"),
    ("CREATE INDEX i ON sys.services (name)", 1088, "sys.services"),
    ("INSERT sys.services (name) VALUES ('x')", 259, "system catalogs"),
    ("UPDATE sys.services SET name = 'x'", 259, "system catalogs"),
    ("UPDATE s SET name = 'x' FROM sys.services AS s", 259, "system catalogs"),
    ("UPDATE s SET name = 'x' FROM sys.server_principals AS s", 259, "system catalogs"),
    ("DELETE s FROM sys.server_principals AS s", 259, "system catalogs"),
    ("DELETE FROM sys.conversation_endpoints", 259, "system catalogs"),
    ("DELETE s FROM sysdatabases AS s", 259, "system catalogs"),
    ("WITH s AS (SELECT name FROM sys.server_principals) DELETE FROM s", 259, "system catalogs"),
    ("DECLARE @t TABLE (n INT) INSERT @t OUTPUT 1 INTO sys.services VALUES (1)", 259, "system catalogs"),
    ("MERGE sys.services s USING (SELECT 1 AS n) x ON 1 = 0 WHEN MATCHED THEN DELETE;", 259, "system catalogs"),
    ("EXEC ('DROP VIEW sys.services')", 3701, "sys.services"),
]
BY_OTHER_NAMES = [  # schemas of PostgreSQL cannot be named
    "SELECT * FROM servicebroker.queues",
    "SELECT * FROM tsql.objects",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM [servicebroker].dbo.queues",
    "DELETE FROM servicebroker.queues",
    "DROP TABLE servicebroker.queues",
    "INSERT pg_temp.x VALUES (1)",
    "SELECT servicebroker.send(1)",
    "SELECT tsql.object_id('x')",
    "EXEC servicebroker.send",
]


@pytest.fixture(scope="module")
def shop(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "Shop", SETUP)


def objects(database: sb.Database) -> list[tuple[object, ...]]:
    """Return the definition of every table, view, sequence and function."""
    text = (
        "select c.oid::bigint, c.relname::text, coalesce(pg_get_viewdef(c.oid), '') || "
        "coalesce(string_agg(d.adnum::text, ',' order by d.adnum), '') "
        "from pg_class c left join pg_attrdef d on d.adrelid = c.oid "
        "where c.relkind in ('r', 'v', 'S') and c.relnamespace::regnamespace::text !~ '^pg_' group by c.oid "
        "union all select p.oid::bigint, p.proname::text, p.prosrc from pg_proc p "
        "where p.pronamespace::regnamespace::text !~ '^pg_' order by 1"
    )
    return query(database, text)


@pytest.mark.parametrize(("script", "number", "word"), OF_A_QUEUE + OF_THE_SYSTEM, ids=lambda value: str(value)[:60])
@pytest.mark.sampled(30)
def test_dbo_may_not(shop: sb.Database, script: str, number: int, word: str) -> None:
    before = objects(shop)
    with refused(number, word):
        shop.execute_tsql(script.replace("{database}", shop.name))
    assert objects(shop) == before


@pytest.mark.parametrize("script", BY_OTHER_NAMES)
def test_the_schemas_of_postgresql_have_no_name_in_tsql(shop: sb.Database, script: str) -> None:
    before = objects(shop)
    with pytest.raises(sb.BrokerError) as error:
        shop.execute_tsql(script)
    assert error.value.number in (207, 208, 911, 2812, 3701, 4121)
    assert objects(shop) == before


def test_a_queue_is_dropped_as_one(shop: sb.Database) -> None:
    shop.execute_tsql("CREATE QUEUE Short")
    with refused(3705):
        shop.execute_tsql("DROP VIEW Short")
    shop.execute_tsql(
        "DROP QUEUE Short CREATE TABLE Short (n INT) DROP TABLE Short CREATE QUEUE Short DROP QUEUE Short"
    )


def test_a_schema_where_another_database_stands_is_refused(shop: sb.Database) -> None:
    shop.instance.database("Shop_Far", create=True).execute_tsql("CREATE TABLE Things (n INT)")
    for script in ("CREATE SCHEMA Far_dbo", "CREATE QUEUE Far_dbo.Q"):
        with refused(2760, "Far_dbo"):
            shop.execute_tsql(script)
    shop.execute_tsql("CREATE SCHEMA Wide_dbo")
    with refused(2760):
        shop.instance.database("Shop_Wide", create=True)


def test_a_queues_name_is_free_in_other_schemas_and_for_types(shop: sb.Database) -> None:
    """A name is unique within its schema, and types have a namespace of their own."""
    shop.execute_tsql("CREATE SCHEMA Annex")
    shop.execute_tsql("CREATE TABLE Annex.Inbox (n INT) CREATE TYPE Inbox FROM INT CREATE TABLE #Inbox (n INT)")
    shop.execute_tsql("CREATE VIEW Waiting AS SELECT * FROM Inbox")
    assert shop.execute_tsql("SELECT COUNT(*) FROM Waiting").rows == [(0,)]
