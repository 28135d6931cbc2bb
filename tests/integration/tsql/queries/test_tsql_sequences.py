"""CREATE, ALTER and DROP SEQUENCE, NEXT VALUE FOR, and sys.sequences."""

from __future__ import annotations

import pytest

import servicebroker as sb
from tsql_support import create_database, error_number

_COUNT = iter(range(1000))


@pytest.fixture
def db(instance: sb.Instance) -> sb.Database:
    return instance.database(f"Counting{next(_COUNT)}", create=True)


@pytest.fixture(scope="module")
def refusing(instance: sb.Instance) -> sb.Database:
    return create_database(instance, "Refusals", "CREATE SEQUENCE S AS int START WITH 1; CREATE TABLE T (Id int)")


def next_values(db: sb.Database, sequence: str, times: int = 1) -> list[object]:
    return [db.execute_tsql(f"SELECT NEXT VALUE FOR {sequence}").rows[0][0] for _ in range(times)]


def test_a_sequence_counts_by_its_options(db: sb.Database) -> None:
    db.execute_tsql("""
        CREATE SEQUENCE dbo.Orders AS int START WITH 10 INCREMENT BY 5 CACHE 20
        CREATE SEQUENCE Low AS smallint
        CREATE SEQUENCE Down AS decimal(3, 0) INCREMENT BY -1
        CREATE SEQUENCE Around AS int START WITH 2 MINVALUE 1 MAXVALUE 3 CYCLE NO CACHE
        CREATE SEQUENCE Plain NO MINVALUE NO MAXVALUE NO CYCLE CACHE
    """)
    assert next_values(db, "dbo.Orders", 2) == [10, 15]
    assert next_values(db, "Low") == [-32768]
    assert next_values(db, "Down", 2) == [999, 998]
    assert next_values(db, "Around", 4) == [2, 3, 1, 2]
    assert next_values(db, "[dbo].[Plain]") == [-(2**63)]


def test_a_number_that_becomes_text_is_drawn_once(db: sb.Database) -> None:
    """The check of its length draws no other one."""
    db.execute_tsql("CREATE SEQUENCE Ids START WITH 9; CREATE TABLE T (Code varchar(2), Fixed char(3))")
    db.execute_tsql("INSERT T VALUES (NEXT VALUE FOR Ids, NEXT VALUE FOR Ids)")
    assert db.execute_tsql("SELECT Code, Fixed FROM T").rows == [("9", "9  ")]
    assert db.execute_tsql("SELECT 'A' + CAST(NEXT VALUE FOR Ids AS varchar(5))").rows == [("A10",)]
    db.execute_tsql("ALTER SEQUENCE Ids RESTART WITH 100")
    assert error_number(db, "INSERT T (Code) VALUES (NEXT VALUE FOR Ids)") == 8115


def test_next_value_for_draws_numbers_in_statements_and_defaults(db: sb.Database) -> None:
    db.execute_tsql("""
        CREATE SEQUENCE dbo.Ids AS int START WITH 1
        CREATE TABLE dbo.T (Id int PRIMARY KEY DEFAULT NEXT VALUE FOR dbo.Ids, Other int DEFAULT (NEXT VALUE FOR Ids),
                            Name nvarchar(10))
    """)
    output = db.execute_tsql("""
        DECLARE @a int = NEXT VALUE FOR dbo.Ids, @b int, @c int
        SET @b = NEXT VALUE FOR dbo.Ids
        SELECT @c = NEXT VALUE FOR dbo.Ids
        SELECT @a, @b, @c
    """)
    assert output.rows == [(1, 2, 3)]
    db.execute_tsql("INSERT dbo.T (Name) VALUES (N'b'), (N'a')")
    db.execute_tsql("INSERT dbo.T (Id, Other, Name) VALUES (NEXT VALUE FOR dbo.Ids, 0, N'c')")
    assert db.execute_tsql("SELECT Id, Other, Name FROM dbo.T ORDER BY Id").rows == [
        (4, 4, "b"),
        (5, 5, "a"),
        (6, 0, "c"),
    ]
    db.execute_tsql(
        "INSERT dbo.T (Id, Other, Name) SELECT NEXT VALUE FOR dbo.Ids OVER (ORDER BY Name), -1, Name FROM dbo.T"
    )
    rows = db.execute_tsql("SELECT Id, Name FROM dbo.T WHERE Other = -1 ORDER BY Id").rows
    assert rows == [(7, "a"), (8, "b"), (9, "c")]
    db.execute_tsql("UPDATE dbo.T SET Other = NEXT VALUE FOR dbo.Ids WHERE Id = 4")
    assert db.execute_tsql("SELECT Other FROM dbo.T WHERE Id = 4").rows == [(10,)]
    numbered = "SELECT NEXT VALUE FOR dbo.Ids OVER (ORDER BY Name) AS N, Name FROM dbo.T WHERE Other = -1 "
    assert db.execute_tsql(f"{numbered} ORDER BY Name DESC").rows == [(13, "c"), (12, "b"), (11, "a")]
    assert db.execute_tsql(f"{numbered} ORDER BY N DESC").rows == [(16, "c"), (15, "b"), (14, "a")]
    assert error_number(db, "DROP SEQUENCE dbo.Ids") == 3729


def test_all_next_value_for_of_a_row_draw_one_number(db: sb.Database) -> None:
    db.execute_tsql("""
        CREATE SEQUENCE S AS int START WITH 1
        CREATE TABLE T (Id int IDENTITY, A int DEFAULT NEXT VALUE FOR S, B int DEFAULT NEXT VALUE FOR S, C int)
    """)
    assert db.execute_tsql("SELECT NEXT VALUE FOR S, NEXT VALUE FOR dbo.S").rows == [(1, 1)]
    db.execute_tsql("""
        INSERT T (C) VALUES (NEXT VALUE FOR S), (NEXT VALUE FOR S)
        INSERT T (B, C) SELECT NEXT VALUE FOR S, NEXT VALUE FOR S FROM T
        UPDATE T SET C = NEXT VALUE FOR S, B = NEXT VALUE FOR S WHERE Id = 4
        INSERT T (C) SELECT NEXT VALUE FOR S OVER (ORDER BY Id DESC) FROM T WHERE Id < 3
    """)
    rows = db.execute_tsql("SELECT A, B, C FROM T ORDER BY Id").rows
    assert rows == [(2, 2, 2), (3, 3, 3), (4, 4, 4), (5, 6, 6), (7, 7, 7), (8, 8, 8)]
    # the statements of one transaction, and a loop of them
    output = db.execute_tsql("""
        BEGIN TRANSACTION
        SELECT NEXT VALUE FOR S AS A, NEXT VALUE FOR S AS B
        SELECT NEXT VALUE FOR S AS A, NEXT VALUE FOR S AS B
        COMMIT
    """)
    assert [each.rows for each in output.sets] == [[(9, 9)], [(10, 10)]]


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("INSERT D (A, C) VALUES (DEFAULT, 0), (0, NEXT VALUE FOR R), (DEFAULT, NEXT VALUE FOR R), (DEFAULT, 0)",
         [(1, 1, 0), (0, 2, 2), (3, 3, 3), (4, 4, 0)]),
        ("INSERT D VALUES (DEFAULT, 0, 1), (0, DEFAULT, 2), (DEFAULT, DEFAULT, 3)", [(1, 0, 1), (0, 2, 2), (3, 3, 3)]),
        ("INSERT D (C) VALUES (0), (NEXT VALUE FOR R), (0)", [(1, 1, 0), (2, 2, 2), (3, 3, 0)]),
        ("INSERT D (A, B, C) VALUES (NEXT VALUE FOR R, 0, NEXT VALUE FOR O), (0, NEXT VALUE FOR O, 0), "
         "(NEXT VALUE FOR O + 10, NEXT VALUE FOR R, '7')", [(1, 0, 1), (0, 2, 0), (13, 2, 7)]),
        ("INSERT D (C) VALUES (0), (0) INSERT D (C) VALUES (NEXT VALUE FOR R), (1)",
         [(1, 1, 0), (2, 2, 0), (3, 3, 3), (4, 4, 1)]),
    ],
)  # fmt: skip
def test_each_row_of_values_draws_its_own(instance: sb.Instance, script: str, found: list[object]) -> None:
    db = instance.database(f"Rows{next(_COUNT)}", create=True)
    db.execute_tsql("""
        CREATE SEQUENCE R AS int START WITH 1 CREATE SEQUENCE O AS int START WITH 1
        CREATE TABLE D (A int DEFAULT NEXT VALUE FOR R, B int DEFAULT (NEXT VALUE FOR R), C int, N int IDENTITY)
    """)
    db.execute_tsql(f"BEGIN TRANSACTION {script} COMMIT")
    assert db.execute_tsql("SELECT A, B, C FROM D ORDER BY N").rows == found


def test_merge_draws_by_default_alone(db: sb.Database) -> None:
    db.execute_tsql("""
        CREATE SEQUENCE S AS int START WITH 1
        CREATE TABLE T (Id int, A int DEFAULT NEXT VALUE FOR S, B int DEFAULT NEXT VALUE FOR S)
    """)
    source = "MERGE T USING (VALUES (1), (2)) s (n) ON s.n = T.Id"
    db.execute_tsql(f"{source} WHEN NOT MATCHED THEN INSERT (Id, A) VALUES (n, DEFAULT);")
    assert db.execute_tsql("SELECT A, B FROM T ORDER BY A").rows == [(1, 1), (2, 2)]
    for action in (
        "MATCHED THEN UPDATE SET A = NEXT VALUE FOR S",
        "NOT MATCHED THEN INSERT (A) VALUES (NEXT VALUE FOR S)",
    ):
        assert error_number(db, f"{source} WHEN {action};") == 11742


def test_a_sequence_is_exhausted_and_restarted(db: sb.Database) -> None:
    db.execute_tsql("CREATE SEQUENCE Tiny AS tinyint START WITH 254")
    assert next_values(db, "Tiny", 2) == [254, 255]
    assert error_number(db, "SELECT NEXT VALUE FOR Tiny") == 11728
    asked = "SELECT is_exhausted, current_value, start_value, maximum_value, TYPE_NAME(user_type_id) FROM sys.sequences"
    assert db.execute_tsql(asked).rows == [(1, 255, 254, 255, "tinyint")]
    db.execute_tsql("ALTER SEQUENCE Tiny RESTART WITH 7 INCREMENT BY 2")
    assert db.execute_tsql("SELECT current_value, last_used_value, increment FROM sys.sequences").rows == [(7, None, 2)]
    assert next_values(db, "Tiny", 2) == [7, 9]
    db.execute_tsql("ALTER SEQUENCE Tiny RESTART; ALTER SEQUENCE Tiny MAXVALUE 255 CYCLE MINVALUE 250")
    assert next_values(db, "Tiny", 2) == [254, 250]
    db.execute_tsql("CREATE SEQUENCE Wide AS int START WITH 1 MINVALUE 1 MAXVALUE 5")
    db.execute_tsql("ALTER SEQUENCE Wide NO MINVALUE NO MAXVALUE NO CYCLE")
    bounds = "SELECT minimum_value, maximum_value FROM sys.sequences WHERE name = 'Wide'"
    assert db.execute_tsql(bounds).rows == [(-(2**31), 2**31 - 1)]


def test_sys_sequences_is_there_without_any(db: sb.Database) -> None:
    assert db.execute_tsql("SELECT name, is_cycling, current_value, is_cached FROM sys.sequences").rows == []


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("CREATE SEQUENCE W INCREMENT BY 0", 11700),
        ("CREATE SEQUENCE W MINVALUE 1 MAXVALUE 4 INCREMENT BY 9", 11701),
        ("CREATE SEQUENCE W AS float", 11702),
        ("CREATE SEQUENCE W AS decimal(5, 2)", 11702),
        ("CREATE SEQUENCE W START WITH 5 MAXVALUE 4", 11703),
        ("CREATE SEQUENCE W MINVALUE 5 MAXVALUE 4", 11705),
        ("CREATE SEQUENCE W CACHE 0", 11706),
        ("CREATE SEQUENCE W AS tinyint MAXVALUE 256", 11708),
        ("CREATE SEQUENCE W RESTART WITH 1", 11709),
        ("ALTER SEQUENCE S START WITH 1", 11710),
        ("ALTER SEQUENCE S AS int", 11711),
        ("ALTER SEQUENCE S", 11715),
        ("ALTER SEQUENCE S INCREMENT BY 0", 11700),
        ("ALTER SEQUENCE S MAXVALUE 5 RESTART WITH 9", 11704),
        ("ALTER SEQUENCE Missing RESTART", 208),
        ("ALTER SEQUENCE T RESTART", 11726),
        ("SELECT NEXT VALUE FOR T", 11726),
        ("SELECT NEXT VALUE FOR dbo.Missing", 208),
        ("DROP SEQUENCE Missing", 3701),
        ("DROP SEQUENCE far.Missing", 3701),
        ("SELECT CASE WHEN 1 = 1 THEN NEXT VALUE FOR S END", 11741),
        ("SELECT 1 WHERE NEXT VALUE FOR S = 1", 11720),
        ("SELECT (SELECT NEXT VALUE FOR S)", 11719),
        ("EXEC ('CREATE VIEW V AS SELECT NEXT VALUE FOR S AS n')", 11719),
        ("SELECT DISTINCT NEXT VALUE FOR S", 11721),
        ("SELECT NEXT VALUE FOR S FROM T ORDER BY Id", 11723),
    ],
)
def test_refused_sequence_statements_change_no_sequence(refusing: sb.Database, script: str, expected: int) -> None:
    seen = "SELECT name, increment, minimum_value, maximum_value, current_value, last_used_value FROM sys.sequences"
    before = refusing.execute_tsql(seen).rows
    assert error_number(refusing, script) == expected
    assert refusing.execute_tsql(seen).rows == before
