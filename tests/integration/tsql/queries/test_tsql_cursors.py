"""UPDATE and DELETE through cursors, and their errors."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import postgres_schema
from tsql_support import output_of, rows


def test_rows_are_changed_through_cursors(db: sb.Database) -> None:
    script = """
    CREATE TABLE Walked (id int PRIMARY KEY, v int); INSERT Walked VALUES (1, 10), (2, 20), (3, 30)
    DECLARE @id int, @v int
    DECLARE c CURSOR FOR SELECT id, v FROM Walked ORDER BY id FOR UPDATE OF v
    OPEN c
    FETCH NEXT FROM c INTO @id, @v
    WHILE @@FETCH_STATUS = 0
    BEGIN
        UPDATE Walked SET v = v + 1 WHERE CURRENT OF c
        UPDATE dbo.Walked SET v = v + 1 WHERE CURRENT OF GLOBAL c
        IF @id = 2 DELETE FROM Walked WHERE CURRENT OF c
        FETCH NEXT FROM c INTO @id, @v
    END
    SELECT * FROM Walked ORDER BY id
    UPDATE Walked SET v = 0 WHERE CURRENT OF c"""
    assert output_of(db, script + "; CLOSE c; DEALLOCATE c; DROP TABLE Walked") == [[(1, 12), (3, 32)], 16930]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE Shared SET v = 7 WHERE id = 1",
        "DELETE Shared WHERE id = 1",
        "DELETE Shared; INSERT Shared VALUES (3, 30)",
    ],
)
def test_a_row_that_others_have_changed_is_not_changed_through_a_cursor(db: sb.Database, change: str) -> None:
    db.execute_tsql(
        "DROP TABLE IF EXISTS Shared; CREATE TABLE Shared (id int, v int); INSERT Shared VALUES (1, 10), (2, 20)"
    )
    with Session(db) as session:
        session.execute("DECLARE c CURSOR FOR SELECT id FROM Shared ORDER BY id FOR UPDATE; OPEN c; FETCH c")
        db.execute_tsql(change)
        with db.instance.connection() as connection:
            connection.autocommit = True
            connection.execute(f"vacuum {postgres_schema('Db', 'dbo')}.shared")
        db.execute_tsql("INSERT Shared VALUES (8, 80)")  # at the place of the old row
        before = rows(db, "SELECT id, v FROM Shared ORDER BY id")
        for statement in ("UPDATE Shared SET v = -1 WHERE CURRENT OF c", "DELETE Shared WHERE CURRENT OF c"):
            with pytest.raises(TsqlError) as error:
                session.execute(statement)
            assert error.value.number == 16934
    assert rows(db, "SELECT id, v FROM Shared ORDER BY id") == before


@pytest.mark.parametrize(
    ("cursor", "number"),
    [
        ("CURSOR READ_ONLY FOR SELECT a FROM #t", 16929),
        ("CURSOR FAST_FORWARD FOR SELECT a FROM #t", 16929),
        ("CURSOR FOR SELECT a FROM #t FOR READ ONLY", 16929),
        ("INSENSITIVE CURSOR FOR SELECT a FROM #t", 16929),
        ("CURSOR FOR SELECT a FROM #t GROUP BY a", 16929),
        ("CURSOR FOR SELECT DISTINCT a FROM #t", 16929),
        ("CURSOR FOR SELECT t.a FROM #t t JOIN #t u ON t.a = u.a", 16929),
        ("CURSOR FOR SELECT 1 AS a", 16929),
    ],
)
def test_cursors_that_only_read(db: sb.Database, cursor: str, number: int) -> None:
    script = f"CREATE TABLE #t (a int); INSERT #t VALUES (1); DECLARE c {cursor}; OPEN c; FETCH c; DELETE #t WHERE CURRENT OF c"
    assert output_of(db, script) == [[(1,)], number]
    assert output_of(db, "CREATE TABLE #t (a int); DELETE #t WHERE CURRENT OF c") == [16916]
