"""The language around queries: GOTO, and what else procedures are made of."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    return instance.database("Language", create=True)


def said(database: sb.Database, script: str) -> list[str]:
    return [message.text for message in database.execute_tsql(script).messages]


def number(database: sb.Database, script: str) -> int:
    with pytest.raises(sb.TsqlError) as caught:
        database.execute_tsql(script)
    return caught.value.number


LEAVING = """
DECLARE @n INT = 0
Again: SET @n += 1
WHILE 1 = 1
BEGIN
    BEGIN TRY
        IF @n < 3 GOTO again
        IF @n = 3 GOTO [Out]
        PRINT 'never'
    END TRY
    BEGIN CATCH
        PRINT 'never'
    END CATCH
END
PRINT 'never'
out:
PRINT @n
PRINT ERROR_NUMBER()
"""


def test_goto_goes_on_at_its_label(db: sb.Database) -> None:
    assert said(db, LEAVING) == ["3", ""]
    db.execute_tsql(f"CREATE PROCEDURE Leaves AS {LEAVING}")
    assert said(db, "EXEC Leaves") == ["3", ""]
    assert said(db, "SELECT @@VERSION done: PRINT 'x' GOTO finally PRINT 'never' finally: PRINT 'y'") == ["x", "y"]


def test_goto_in_a_loop_of_its_own_needs_no_depth(db: sb.Database) -> None:
    assert said(db, "DECLARE @n INT = 0 a: SET @n += 1 IF @n < 3000 GOTO a PRINT @n") == ["3000"]


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        ("GOTO nowhere", 133),
        ("a: PRINT 1 a: PRINT 2", 132),
        ("GOTO a IF 1 = 1 BEGIN a: PRINT 1 END", 40515),
        ("GOTO 5", 102),
        ("EXEC ('GOTO a') a: PRINT 1", 133),
    ],
)
def test_goto_without_its_label_is_refused(db: sb.Database, script: str, wanted: int) -> None:
    assert number(db, script) == wanted


def value(database: sb.Database, script: str) -> Any:
    ((found,),) = database.execute_tsql(script).rows
    return found
