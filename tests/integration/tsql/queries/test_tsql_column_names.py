"""Names of result columns: a column in parentheses keeps its own."""

from __future__ import annotations

import pytest

import servicebroker as sb
from tsql_support import create_database, error_number

TABLES = """
CREATE TABLE People (Id int IDENTITY PRIMARY KEY, Name nvarchar(20) NOT NULL, [Full Name] nvarchar(40))
GO
CREATE VIEW Named AS SELECT (Name), ((Id)), ([Full Name]) FROM People
GO
INSERT People (Name, [Full Name]) VALUES (N'ann', N'ann b'), (N'bob', N'bob c')
CREATE QUEUE Q; CREATE SERVICE S ON QUEUE Q ([DEFAULT])
"""


@pytest.fixture(scope="module")
def people(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "People", TABLES)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("SELECT (Name) FROM People", ["Name"]),
        ("SELECT DISTINCT(Name) FROM People", ["Name"]),
        ("SELECT DISTINCT (Name), Id FROM People", ["Name", "Id"]),
        ("SELECT DISTINCT(p.Name), (p.Id) FROM People p", ["Name", "Id"]),
        ("SELECT TOP 1 (Name) FROM People ORDER BY Name", ["Name"]),
        ("SELECT TOP (1) (([Full Name])) FROM People", ["Full Name"]),
        ("SELECT (Name) AS n, (Id) FROM People", ["n", "Id"]),
        ("SELECT (Name + '') FROM People", [""]),
        ("SELECT (1)", [""]),
        ("SELECT (SELECT Name FROM People WHERE Id = 1)", [""]),
        ("SELECT * FROM (SELECT (Name), (Id) FROM People) d", ["Name", "Id"]),
        ("SELECT d.Name FROM (SELECT DISTINCT(Name) FROM People) d", ["Name"]),
        ("WITH c AS (SELECT (Name) FROM People) SELECT Name FROM c", ["Name"]),
        ("SELECT * FROM Named", ["Name", "Id", "Full Name"]),
        ("SELECT (Name) FROM People UNION SELECT 'x'", ["Name"]),
        ("SELECT (Name), COUNT(*) AS c FROM People GROUP BY (Name)", ["Name", "c"]),
        ("SELECT (Id) FROM People ORDER BY (Id) DESC", ["Id"]),
        ("SELECT (Name) INTO #n FROM People; SELECT * FROM #n", ["Name"]),
        ("INSERT People (Name) OUTPUT (inserted.Name), inserted.Id VALUES ('cid')", ["Name", "Id"]),
        ("UPDATE People SET Name = Name OUTPUT (deleted.Name) WHERE Id = 1", ["Name"]),
        ("DELETE People OUTPUT (deleted.[Full Name]) WHERE Id = 0", ["Full Name"]),
        ("RECEIVE TOP(1) (conversation_handle) FROM Q", ["conversation_handle"]),
        ("RECEIVE TOP(1) ((Message_Body)), (Q.service_name) FROM Q", ["Message_Body", "service_name"]),
        ("RECEIVE TOP(1) (message_body) AS b FROM Q", ["b"]),
        ("RECEIVE TOP(1) (message_body + 0x01) FROM Q", [""]),
    ],
)  # fmt: skip
def test_a_column_in_parentheses_keeps_its_name(people: sb.Database, query: str, columns: list[str]) -> None:
    assert list(people.execute_tsql(query).sets[-1].columns) == columns


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("SELECT (Name) FROM People WHERE Id = 1 FOR JSON PATH", '[{"Name":"ann"}]'),
        ("SELECT (Name) FROM People WHERE Id = 1 FOR XML PATH", "<row><Name>ann</Name></row>"),
    ],
)
def test_a_document_has_the_name_of_a_column_in_parentheses(people: sb.Database, query: str, value: str) -> None:
    assert people.execute_tsql(query).rows == [(value,)]


def test_a_common_table_expression_is_changed_by_the_name(people: sb.Database) -> None:
    people.execute_tsql("WITH c AS (SELECT (Name), (Id) FROM People) UPDATE c SET Name = N'ANN' WHERE Id = 1")
    assert people.execute_tsql("SELECT Name FROM People WHERE Id = 1").rows == [("ANN",)]
    people.execute_tsql("UPDATE People SET Name = N'ann' WHERE Id = 1")


def test_waitfor_needs_its_comma(people: sb.Database) -> None:
    assert error_number(people, "WAITFOR (RECEIVE TOP (1) * FROM Q) TIMEOUT 1") == 102
    assert people.execute_tsql("WAITFOR (RECEIVE TOP (1) * FROM Q), TIMEOUT 1").rows == []
