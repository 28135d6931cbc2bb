"""IDENTITY: its next numbers, its limits, and explicit inserts."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.store import locks
from support import eventually, in_thread, query
from tsql_support import output_of, rows, scalar


def test_select_into_counts(db: sb.Database) -> None:
    script = """
    SELECT v, IDENTITY(int, 100, 5) AS id INTO #numbered FROM (VALUES ('b'), ('a')) t(v) ORDER BY v
    INSERT #numbered (v) VALUES ('c')
    SELECT v, id FROM #numbered ORDER BY id"""
    assert output_of(db, script) == [[("a", 100), ("b", 105), ("c", 110)]]
    assert output_of(db, "SELECT IDENTITY(int) AS x FROM sys.databases") == [40515]
    assert output_of(db, "SELECT IDENTITY(int) AS x, IDENTITY(int) AS y INTO #z FROM sys.databases") == [8108]


def test_identity_goes_on_elsewhere(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Counted (id int IDENTITY PRIMARY KEY, v int); CREATE TABLE Plain (v int)")
    done = "DBCC execution completed. If DBCC printed error messages, contact your system administrator."
    assert output_of(db, "INSERT Counted VALUES (1); DBCC CHECKIDENT ('dbo.Counted', RESEED, 50); INSERT Counted VALUES (2)") == [
        "Checking identity information: current identity value '1'.", done
    ]  # fmt: skip
    assert rows(db, "SELECT id FROM Counted ORDER BY id") == [(1,), (51,)]
    assert output_of(
        db, "DBCC CHECKIDENT (Counted, RESEED, 2); DBCC CHECKIDENT ('Counted', NORESEED); DBCC CHECKIDENT ('Counted')"
    )[2] == ("Checking identity information: current identity value '2', current column value '51'.")
    db.execute_tsql("INSERT Counted VALUES (3)")
    assert scalar(db, "SELECT MAX(id) FROM Counted") == 52
    db.execute_tsql("CREATE TABLE [O'Brien] (id int IDENTITY, v int); DBCC CHECKIDENT ([O'Brien], RESEED, 7)")
    db.execute_tsql("INSERT [O'Brien] VALUES (1); DBCC CHECKIDENT ([O'Brien])")
    assert scalar(db, "SELECT id FROM [O'Brien]") == 7
    assert output_of(db, "DBCC CHECKIDENT ('Counted', RESEED, NULL)") == [2560]
    assert output_of(db, "DBCC CHECKIDENT ('Plain')") == [7997]
    assert output_of(db, "DBCC CHECKIDENT ('Nothing', RESEED, 0) WITH NO_INFOMSGS") == [2501]
    assert output_of(db, "DBCC CHECKIDENT ('Counted', RESEED, 90) WITH NO_INFOMSGS; INSERT Counted VALUES (4)") == []
    assert scalar(db, "SELECT MAX(id) FROM Counted") == 91


def test_identity_continues_after_inserted_values(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Seeded (Id int IDENTITY PRIMARY KEY, a int); CREATE TABLE #down (Id smallint IDENTITY(100, -1), a int)
    SET IDENTITY_INSERT Seeded ON; INSERT Seeded (Id, a) VALUES (10, 1), (4, 1); INSERT Seeded (Id, a) SELECT 7, 1
    SET IDENTITY_INSERT Seeded OFF; INSERT Seeded (a) VALUES (2); SELECT Id FROM Seeded ORDER BY Id; SELECT SCOPE_IDENTITY()
    SET IDENTITY_INSERT #down ON; INSERT #down (Id, a) OUTPUT inserted.Id VALUES (90, 1); SET IDENTITY_INSERT #down OFF
    INSERT #down (a) VALUES (2); SELECT Id FROM #down
    """) == [[(4,), (7,), (10,), (11,)], [(11,)], [(90,)], [(90,), (89,)]]  # fmt: skip


def test_identity_goes_on_behind_the_rows_that_were_written_not_behind_those_that_are_there(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Low (Id int IDENTITY(1, 10) PRIMARY KEY, a int); SET IDENTITY_INSERT Low ON
    INSERT Low (Id, a) VALUES (90000, 0); DBCC CHECKIDENT ('Low', RESEED, 1)
    INSERT Low (Id, a) SELECT 21, 1; SET IDENTITY_INSERT Low OFF; INSERT Low (a) VALUES (2); SELECT SCOPE_IDENTITY()
    SET IDENTITY_INSERT Low ON; INSERT Low (Id, a) VALUES (35, 3); SET IDENTITY_INSERT Low OFF
    INSERT Low (a) VALUES (4); SELECT SCOPE_IDENTITY()
    BEGIN TRANSACTION; INSERT Low (a) VALUES (5), (6); ROLLBACK
    SET IDENTITY_INSERT Low ON; INSERT Low (Id, a) VALUES (46, 7), (47, 7); SET IDENTITY_INSERT Low OFF
    INSERT Low (a) VALUES (8); SELECT SCOPE_IDENTITY()
    """)[-3:] == [[(31,)], [(45,)], [(75,)]]  # fmt: skip


def test_identity_continues_after_values_inserted_by_merge(db: sb.Database) -> None:
    assert output_of(db, """
    CREATE TABLE Merged (Id int IDENTITY PRIMARY KEY, a int); SET IDENTITY_INSERT Merged ON
    MERGE Merged AS t USING (VALUES (7, 1), (5000, 2)) AS s (Id, a) ON t.Id = s.Id
    WHEN NOT MATCHED THEN INSERT (Id, a) VALUES (s.Id, s.a);
    SET IDENTITY_INSERT Merged OFF; INSERT Merged (a) VALUES (3); SELECT SCOPE_IDENTITY()""") == [[(5001,)]]  # fmt: skip


def test_one_session_at_a_time_moves_an_identity_far(db: sb.Database) -> None:
    db.execute_tsql("CREATE TABLE Far (Id int IDENTITY PRIMARY KEY, a int)")
    insert = "SET IDENTITY_INSERT Far ON; INSERT Far (Id, a) VALUES ({}, 1)"
    waits = "select from pg_locks where locktype = 'advisory' and classid = %s and not granted"
    with db.transaction() as transaction:
        transaction.execute_tsql(insert.format(5000))
        other = in_thread(db.execute_tsql, insert.format(9000))
        eventually(lambda: query(db, waits, locks.TSQL_IDENTITY))
    other.result(30)
    assert output_of(db, "INSERT Far (a) VALUES (2); SELECT SCOPE_IDENTITY()") == [[(9001,)]]


@pytest.mark.parametrize(("kind", "last"), [("tinyint", 255), ("smallint", 32767), ("int", 2147483647)])
def test_identity_ends_with_its_type(db: sb.Database, kind: str, last: int) -> None:
    assert output_of(db, f"""
    CREATE TABLE Ended_{kind} (Id {kind} IDENTITY({last}, 1)); INSERT Ended_{kind} DEFAULT VALUES; SELECT Id FROM Ended_{kind}
    INSERT Ended_{kind} DEFAULT VALUES""") == [[(last,)], 8115]  # fmt: skip
    assert output_of(db, f"""
    SELECT IDENTITY({kind}, {last}, 1) AS Id INTO #ended; INSERT #ended DEFAULT VALUES""") == [8115]  # fmt: skip
    db.execute_tsql(f"CREATE TABLE Copied_{kind} (Id {kind} IDENTITY, a int)")
    assert output_of(db, f"""
    SELECT * INTO #copied FROM Copied_{kind}
    SET IDENTITY_INSERT #copied ON; INSERT #copied (Id) VALUES ({last}); SET IDENTITY_INSERT #copied OFF
    INSERT #copied (a) VALUES (1)""")[-1:] == [8115]  # fmt: skip


def test_identity_begins_anew_at_any_number(db: sb.Database) -> None:
    output = output_of(
        db,
        """
    CREATE TABLE Anew (Id int IDENTITY); INSERT Anew DEFAULT VALUES; DELETE Anew
    DBCC CHECKIDENT ('Anew', RESEED, 0) WITH NO_INFOMSGS; INSERT Anew DEFAULT VALUES; SELECT Id FROM Anew
    DBCC CHECKIDENT ('Anew', RESEED, -7); INSERT Anew DEFAULT VALUES; SELECT MIN(Id) FROM Anew""",
    )
    assert [each for each in output if isinstance(each, list)] == [[(1,)], [(-6,)]]
