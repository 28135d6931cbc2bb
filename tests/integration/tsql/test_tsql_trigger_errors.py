"""Errors in triggers: what the client gets, what is undone, and what a caller's CATCH sees."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.results import RowCount
from servicebroker.tsql.session import Session
from servicebroker.tsql.statement_errors import Message, TsqlError
from tsql_support import create_database, output_of

CAUGHT = "BEGIN TRY {} END TRY BEGIN CATCH {} END CATCH"
NO_OP = "SET NOCOUNT OFF;"
TERMINATED = "The statement has been terminated."
# the body of a trigger; numbers and texts of the batch, where "on" is printed behind the INSERT; rows that stay
BODIES = {
    "nothing wrong": ("DECLARE @n int = 1", ["1 row", "on"], 1),
    "error": ("SELECT 1/0 AS z", [8134, TERMINATED], 0),
    "throw": ("THROW 51000, 'boom', 1", [51000, TERMINATED], 0),
    "duplicate key": ("INSERT Once VALUES (1), (1)", [2627, TERMINATED], 0),
    "no table": ("INSERT Nowhere VALUES (1)", [208, TERMINATED], 0),
    "conversion": ("DECLARE @n int = 'x'", [245, TERMINATED], 0),
    "xml": ("DECLARE @x xml = '<a>'", [9400, TERMINATED], 0),
    "raiserror": ("RAISERROR('told', 16, 1)", [50000, "1 row", "on"], 1),
    "caught error": (CAUGHT.format("SELECT 1/0 AS z", NO_OP), [3616], 0),
    "caught throw": (CAUGHT.format("THROW 51000, 'boom', 1", NO_OP), [3616], 0),
    "caught raiserror": (CAUGHT.format("RAISERROR('told', 11, 1)", NO_OP), [3616], 0),
    "caught notice": (CAUGHT.format("RAISERROR('told', 10, 1)", NO_OP), ["told", "1 row", "on"], 1),
    "caught duplicate key": (CAUGHT.format("INSERT Once VALUES (1), (1)", NO_OP), [3616], 0),
    "caught in a procedure": ("EXEC Swallow", [3616], 0),
    "caught and told": (CAUGHT.format("SELECT 1/0 AS z", "RAISERROR('told', 16, 1)"), [50000, 3616], 0),
    "caught, then a write": (CAUGHT.format("SELECT 1/0 AS z", "INSERT Notes VALUES ('a')"), [3930, TERMINATED], 0),
    "caught, then thrown": (CAUGHT.format("SELECT 1/0 AS z", "THROW"), [8134, TERMINATED], 0),
    "caught, then rolled back": (CAUGHT.format("SELECT 1/0 AS z", "ROLLBACK"), [3609], 0),
    "caught with XACT_ABORT OFF": (
        "SET XACT_ABORT OFF; " + CAUGHT.format("SELECT 1/0 AS z", "INSERT Notes VALUES ('a')"),
        ["1 row", "1 row", "on"],
        1,
    ),
    "error with XACT_ABORT OFF": ("SET XACT_ABORT OFF; DECLARE @z int = 1/0", [8134, "1 row", "on"], 1),
    "rollback": ("ROLLBACK", [3609], 0),
    "commit": ("COMMIT", [3609], 1),
    "rollback, then a write": ("ROLLBACK; INSERT Notes VALUES ('a')", ["1 row", 3609], 0),
}
CALLERS = {
    "nothing wrong": (0, 0),
    "raiserror": (50000, 0),
    "caught notice": (0, 0),
    "caught and told": (50000, 0),
    "caught with XACT_ABORT OFF": (0, 0),
    "error with XACT_ABORT OFF": (8134, 0),
}


@pytest.fixture(scope="module")
def hall(instance: sb.Instance) -> sb.Database:
    return create_database(
        instance,
        "TriggerHall",
        f"""
        CREATE TABLE T (a int); CREATE TABLE Once (a int PRIMARY KEY); CREATE TABLE Notes (n varchar(9))
        GO
        CREATE PROCEDURE Swallow AS {CAUGHT.format("SELECT 1/0 AS z", NO_OP)}
        GO
        CREATE TRIGGER Tr ON T AFTER INSERT AS RETURN
        """,
    )


def outputs(database: sb.Database, script: str) -> list[object]:
    """Return numbers of errors, texts, and counts of rows, in their order."""
    found: list[object] = []

    def note(said: object) -> None:
        if isinstance(said, TsqlError):
            found.append(said.number)
        elif isinstance(said, Message):
            found.append(said.text)
        elif isinstance(said, RowCount):
            found.append(f"{said.rows} row")

    with Session(database, note) as session:
        session.run(script)
    return found


@pytest.mark.parametrize("is_open", [False, True], ids=["alone", "in a transaction"])
def test_an_error_in_a_trigger_ends_the_batch(hall: sb.Database, is_open: bool) -> None:
    begin, end = ("BEGIN TRAN;", "IF @@TRANCOUNT > 0 COMMIT") if is_open else ("", "")
    found, expected = {}, {}
    for name, (body, said, rows) in BODIES.items():
        hall.execute_tsql(f"ALTER TRIGGER Tr ON T AFTER INSERT AS BEGIN {body} END")
        script = f"{begin} INSERT T VALUES (1); PRINT 'on'; {end}\nGO\nIF @@TRANCOUNT > 0 PRINT 'open'"
        found[name] = (outputs(hall, script), hall.execute_tsql("SELECT COUNT(*) FROM T").rows)
        expected[name] = (said, [(rows,)])
        hall.execute_tsql("DELETE T; DELETE Notes; DELETE Once")
    assert found == expected


def test_a_caller_catches_the_error_of_a_trigger(hall: sb.Database) -> None:
    """In a transaction of the caller; without one, XACT_STATE() is 0 and nothing is left to roll back."""
    found, expected = {}, {}
    for name, (body, said, _) in BODIES.items():
        number = next((one for one in said if isinstance(one, int)), 0)
        number, state = CALLERS.get(name, (number, 0 if number == 3609 else -1))
        hall.execute_tsql(f"ALTER TRIGGER Tr ON T AFTER INSERT AS BEGIN {body} END")
        script = """SET NOCOUNT ON; BEGIN TRAN; BEGIN TRY INSERT T VALUES (1); SELECT 0, 0; COMMIT END TRY
        BEGIN CATCH SELECT ERROR_NUMBER(), XACT_STATE(); IF @@TRANCOUNT > 0 ROLLBACK END CATCH"""
        found[name] = [said for said in output_of(hall, script) if isinstance(said, list) and said]
        expected[name] = [[(number, state if number else 0)]]
        hall.execute_tsql("DELETE T; DELETE Notes; DELETE Once")
    expected["raiserror"] = [[(50000, -1)]]
    expected["caught and told"] = [[(50000, -1)]]
    expected["error with XACT_ABORT OFF"] = [[(8134, 1)]]
    assert found == expected
    for body, number in (
        (CAUGHT.format("SELECT 1/0 AS z", NO_OP), 3616),
        ("THROW 51000, 'x', 1", 51000),
        ("ROLLBACK", 3609),
    ):
        hall.execute_tsql(f"ALTER TRIGGER Tr ON T AFTER INSERT AS BEGIN {body} END")
        script = "BEGIN TRY INSERT T VALUES (1) END TRY BEGIN CATCH SELECT ERROR_NUMBER(), @@TRANCOUNT END CATCH"
        assert output_of(hall, script)[-1] == [(number, 0)]
    assert hall.execute_tsql("SELECT COUNT(*) FROM T").rows == [(0,)]


def test_a_doomed_transaction_at_the_end_of_the_batch_is_3998(hall: sb.Database) -> None:
    hall.execute_tsql("ALTER TRIGGER Tr ON T AFTER INSERT AS BEGIN SELECT 1/0 AS z END")
    script = "BEGIN TRAN; BEGIN TRY INSERT T VALUES (1) END TRY BEGIN CATCH PRINT XACT_STATE() END CATCH"
    assert outputs(hall, script) == ["-1", 3998]


@pytest.mark.parametrize("event", ["UPDATE", "DELETE", "INSTEAD OF INSERT"])
def test_other_triggers_fail_alike(hall: sb.Database, event: str) -> None:
    kind = event if event.startswith("INSTEAD") else f"AFTER {event}"
    hall.execute_tsql(f"""
    CREATE TABLE Other{event[:3]} (a int)
    GO
    INSERT Other{event[:3]} VALUES (1)
    GO
    CREATE TRIGGER Other{event[:3]}Tr ON Other{event[:3]} {kind} AS {CAUGHT.format("SELECT 1/0 AS z", NO_OP)}
    """)
    change = {"UPDATE": "UPDATE {} SET a = 2", "DELETE": "DELETE {}"}.get(event, "INSERT {} VALUES (2)")
    assert outputs(hall, change.format(f"Other{event[:3]}") + "; PRINT 'on'") == [3616]
    assert hall.execute_tsql(f"SELECT a FROM Other{event[:3]}").rows == [(1,)]


def test_the_error_of_an_inner_trigger_is_told_once(hall: sb.Database) -> None:
    hall.execute_tsql("""
    CREATE TABLE Outer_ (a int); CREATE TABLE Inner_ (a int)
    GO
    CREATE TRIGGER OuterTr ON Outer_ AFTER INSERT AS INSERT Inner_ VALUES (1)
    GO
    CREATE TRIGGER InnerTr ON Inner_ AFTER INSERT AS THROW 51000, 'boom', 1
    """)
    assert outputs(hall, "INSERT Outer_ VALUES (1); PRINT 'on'") == [51000, TERMINATED]
