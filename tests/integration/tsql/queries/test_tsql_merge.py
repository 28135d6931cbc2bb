"""MERGE with OUTPUT, $action and NOT MATCHED BY SOURCE."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.interpreter.queries import _check_server
from servicebroker.tsql.scope import Scope
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translator import translate
from tsql_support import create_database

TABLES = """
CREATE TABLE dbo.Shelf (Id INT IDENTITY PRIMARY KEY, Item NVARCHAR(20) UNIQUE, Amount INT NOT NULL);
CREATE TABLE dbo.Delivery (Item NVARCHAR(20), Amount INT, Note NVARCHAR(20));
CREATE TABLE dbo.Log (What NVARCHAR(10), Item NVARCHAR(20), Before INT, After INT);
"""
ROWS = """
TRUNCATE TABLE Shelf; DELETE Delivery; DELETE Log;
INSERT Shelf (Item, Amount) VALUES (N'pen', 1), (N'ink', 2), (N'old', 3);
INSERT Delivery VALUES (N'pen', 10, N'first'), (N'cap', 5, N'new');
"""
MERGE = """
MERGE INTO dbo.Shelf WITH (HOLDLOCK) AS t USING dbo.Delivery AS s ON t.Item = s.Item
WHEN MATCHED THEN UPDATE SET Amount = t.Amount + s.Amount
WHEN NOT MATCHED BY TARGET THEN INSERT (Item, Amount) VALUES (s.Item, s.Amount)
WHEN NOT MATCHED BY SOURCE AND t.Item = N'old' THEN DELETE
"""


@pytest.fixture(scope="module")
def merge_database(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "MergeStore", TABLES)


@pytest.fixture
def store(merge_database: sb.Database) -> sb.Database:
    merge_database.execute_tsql(ROWS)
    return merge_database


def rows(store: sb.Database, script: str) -> list[tuple[Any, ...]]:
    return sorted(store.execute_tsql(script).rows, key=str)


def test_output_of_merge_returns_actions_and_values(store: sb.Database) -> None:
    results = store.execute_tsql(
        MERGE + "OUTPUT $action, inserted.Item, deleted.Item AS Was, deleted.Amount AS Before, "
        "inserted.Amount AS [After], s.Note;"
    )
    (result_set,) = results.sets
    assert result_set.columns == ("$action", "Item", "Was", "Before", "After", "Note")
    assert sorted(result_set.rows) == [
        ("DELETE", None, "old", 3, None, None),
        ("INSERT", "cap", None, None, 5, "new"),
        ("UPDATE", "pen", "pen", 1, 11, "first"),
    ]
    assert rows(store, "SELECT Item, Amount FROM Shelf") == [("cap", 5), ("ink", 2), ("pen", 11)]


def test_merge_writes_its_output_into_a_table_or_a_table_variable(store: sb.Database) -> None:
    listed = "OUTPUT $action, COALESCE(inserted.Item, deleted.Item), deleted.Amount, inserted.Amount INTO"
    expected = [("DELETE", "old", 3, None), ("INSERT", "cap", None, 5), ("UPDATE", "pen", 1, 11)]
    assert rows(store, f"{MERGE} {listed} dbo.Log (What, Item, Before, After); SELECT * FROM Log") == expected
    store.execute_tsql(ROWS)
    table = "DECLARE @log TABLE (What NVARCHAR(10), Item NVARCHAR(20), Before INT, After INT);"
    assert rows(store, f"{table} {MERGE} {listed} @log; SELECT * FROM @log WHERE @@ROWCOUNT = 3") == expected


def test_merge_returns_expressions_of_the_action_and_stars(store: sb.Database) -> None:
    output_rows = rows(
        store, MERGE + "OUTPUT LOWER($action) AS a, CASE $ACTION WHEN 'DELETE' THEN 1 ELSE 0 END AS gone, deleted.*;"
    )
    assert [row[:2] for row in output_rows] == [("delete", 1), ("insert", 0), ("update", 0)]
    assert [row[3:] for row in output_rows] == [("old", 3), (None, None), ("pen", 1)]


def test_a_common_table_expression_goes_before(store: sb.Database) -> None:
    text = MERGE.replace("dbo.Delivery AS s", "d AS s")
    given = "WITH d AS (SELECT Item, Amount FROM Delivery WHERE Amount > 9) "
    assert rows(store, given + text + "OUTPUT $action;") == [("DELETE",), ("UPDATE",)]
    store.execute_tsql(ROWS)
    assert rows(store, given + text + "OUTPUT $action INTO Log (What); SELECT What FROM Log") == [
        ("DELETE",),
        ("UPDATE",),
    ]


def test_triggers_run_as_well(store: sb.Database) -> None:
    store.execute_tsql(
        "CREATE TRIGGER Kept ON Shelf AFTER INSERT, UPDATE, DELETE AS INSERT Log (What, Item) "
        "SELECT N'fired', COALESCE(i.Item, d.Item) FROM inserted i FULL JOIN deleted d ON i.Id = d.Id"
    )
    store.execute_tsql(f"{MERGE} OUTPUT $action INTO Log (What);")
    assert rows(store, "SELECT What FROM Log WHERE Item IS NULL") == [("DELETE",), ("INSERT",), ("UPDATE",)]
    assert rows(store, "SELECT Item FROM Log WHERE What = N'fired'") == [("cap",), ("old",), ("pen",)]
    store.execute_tsql("DROP TRIGGER Kept")


@pytest.mark.parametrize(
    ("script", "number"),
    [
        (MERGE + "OUTPUT inserted.Nothing;", 207),
        (MERGE + "OUTPUT ;", 102),
        (MERGE.replace("INTO dbo.Shelf", "TOP (1) INTO dbo.Shelf") + ";", 40515),
        (MERGE.replace("THEN DELETE", "THEN INSERT (Item) VALUES (N'x')") + ";", 10711),
        ("SELECT $action FROM Shelf", 40515),
    ],
)
def test_invalid_merge_statements_are_refused(store: sb.Database, script: str, number: int) -> None:
    with pytest.raises(TsqlError) as error:
        store.execute_tsql(script)
    assert error.value.number == number
    assert rows(store, "SELECT Item FROM Shelf") == [("ink",), ("old",), ("pen",)]


def test_an_older_server_is_told() -> None:
    scope = Scope("d")
    for text, version in ((MERGE, 17), (MERGE + "OUTPUT $action", 18)):
        translation = translate(text, scope)
        _check_server(translation, version)
        with pytest.raises(TsqlError, match=f"It needs PostgreSQL {version}"):
            _check_server(translation, version - 1)


def test_check_agrees() -> None:
    assert {finding.verdict for finding in check(MERGE + "OUTPUT $action, inserted.Item;")} == {Verdict.RUNS}


def test_merge_ends_with_a_semicolon() -> None:
    merge = MERGE.rstrip(" ;\n")
    for script, notes in ((merge, ["10713"]), (f"{merge}\nSELECT 1;", ["10713", ""]), (f"{merge};", [""])):
        assert [finding.note[:5] for finding in check(script)] == notes, script
