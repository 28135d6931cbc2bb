"""The language around queries: GOTO, and what else procedures are made of."""

from __future__ import annotations

from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check


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


NOT_ENTERED = """
IF 1 = 0
BEGIN
    DECLARE @Skipped INT = 5
    DECLARE @Rows TABLE (a INT)
END
SET @Skipped = ISNULL(@Skipped, 1) + 1
INSERT @Rows VALUES (@Skipped)
SELECT @n = a FROM @Rows
PRINT @n
GOTO behind
DECLARE @jumped INT
behind:
SET @jumped = 7
PRINT @jumped
"""


def test_a_declaration_counts_from_where_it_is_written(db: sb.Database) -> None:
    """Also in a branch that is not taken, behind a GOTO, and for what a procedure was made of."""
    assert said(db, f"DECLARE @n INT {NOT_ENTERED}") == ["2", "7"]
    db.execute_tsql(f"CREATE PROCEDURE Skips @n INT AS {NOT_ENTERED}")
    assert said(db, "EXEC Skips 0") == ["2", "7"]
    loop = "DECLARE @i INT = 0 WHILE @i < 3 BEGIN DECLARE @kept INT DECLARE @t TABLE (a INT) SET @i += 1 "
    assert said(db, f"{loop} INSERT @t VALUES (1) SET @kept = ISNULL(@kept, 0) + 1 END PRINT @kept") == ["3"]
    assert value(db, f"{loop} INSERT @t VALUES (1) END SELECT COUNT(*) FROM @t") == 3


@pytest.mark.parametrize(
    ("script", "wanted", "text"),
    [
        ("PRINT 'never' IF 1 = 0 PRINT @Nowhere", 137, 'Must declare the scalar variable "@Nowhere".'),
        ("SET @Late = 1 DECLARE @Late INT", 137, 'Must declare the scalar variable "@Late".'),
        ("PRINT 'never' SELECT * FROM @Gone", 1087, 'Must declare the table variable "@Gone".'),
        ("DECLARE @Twice INT IF 1 = 0 BEGIN DECLARE @TWICE INT END", 134, "The variable name '@TWICE' has already"),
        ("CREATE PROCEDURE Fails AS IF 1 = 0 SET @Nowhere = 1", 137, 'Must declare the scalar variable "@Nowhere".'),
        ("DECLARE @a INT EXEC ('PRINT @a')", 137, 'Must declare the scalar variable "@a".'),
    ],
)
def test_a_variable_that_nothing_declares_stops_its_batch(db: sb.Database, script: str, wanted: int, text: str) -> None:
    """Before any of it runs, and in the spelling of the script; check says the same."""
    heard: list[str] = []
    with pytest.raises(sb.TsqlError) as caught:
        heard = said(db, script)
    assert (caught.value.number, caught.value.text[: len(text)], heard) == (wanted, text, [])
    if "EXEC (" not in script:
        assert [str(wanted) in one.note for one in check(script) if one.verdict is Verdict.REFUSED] == [True]


def test_names_of_parameters_are_no_variables(db: sb.Database) -> None:
    db.execute_tsql("CREATE PROCEDURE Named @p INT AS PRINT @p")
    assert said(db, "EXEC Named @p = 3 EXEC sp_executesql N'PRINT @x', N'@x INT', @x = 4") == ["3", "4"]
    assert db.execute_tsql("SELECT @given + 1", {"given": 4}).rows == [(5,)]
