"""Statements of T-SQL in generated combinations, beside a few lines of Python that say what SQL Server documents."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.interpreter.procedures.applocks import RESULT_GRANTED, RESULT_TIMED_OUT
from servicebroker.tsql.session import Session
from tsql_support import output_of


@pytest.fixture(scope="module")
def mill(instance: sb.Instance) -> sb.Database:
    mill = instance.database("CrossingMill", create=True)
    mill.execute_tsql("""
    CREATE TABLE T (n INT PRIMARY KEY)
    CREATE TABLE Seen (n INT)
    GO
    CREATE TRIGGER Watches ON Seen AFTER INSERT AS
    INSERT T SELECT n + 1000 FROM inserted UPDATE T SET n = n WHERE n = 1001
    GO
    CREATE PROCEDURE Nothing AS DECLARE @x INT
    GO
    CREATE PROCEDURE Two AS SELECT 1 UNION SELECT 2
    """)
    return mill


# ---------------------------------------------------------------- transactions and savepoints

STEPS = ("BEGIN TRAN a", "BEGIN TRAN b", "COMMIT", "ROLLBACK", "ROLLBACK TRAN a", "ROLLBACK TRAN b", "ROLLBACK TRAN c",
         "SAVE TRAN A", "SAVE TRAN c", "INSERT", "INSERT", "INSERT", "INSERT again")  # fmt: skip


class Nested:
    """The transaction of a session: its count, the name of its first BEGIN, its savepoints, and the rows of a table."""

    def __init__(self) -> None:
        self.count, self.name = 0, ""
        self.savepoints: list[tuple[str, frozenset[int]]] = []  # name and rows at that time
        self.rows: frozenset[int] = frozenset()
        self.committed = self.rows
        self.drawn = 0

    def run(self, step: str) -> tuple[str, int]:
        """Run a step. Return its T-SQL text, and the number of its error, 0 for none."""
        verb, _, name = step.rpartition(" ")
        name = name.lower()
        if step.startswith("INSERT"):
            self.drawn += step == "INSERT"
            error = 2627 if self.drawn in self.rows else 0
            self.rows |= {self.drawn}
            self.committed = self.committed if self.count else self.rows
            return f"INSERT T VALUES ({self.drawn})", error
        return step, self._run(verb or step, name if verb else "")

    def _run(self, verb: str, name: str) -> int:
        names = [saved for saved, _ in self.savepoints]
        if verb == "BEGIN TRAN":
            self.name = self.name if self.count else name
            self.count += 1
        elif self.count == 0:
            return {"COMMIT": 3902, "SAVE TRAN": 628}.get(verb, 3903)
        elif verb == "SAVE TRAN":
            self.savepoints.append((name, self.rows))
        elif verb == "COMMIT":
            self.count -= 1
            if not self.count:
                self.committed, self.savepoints = self.rows, []
        elif name in names:  # the latest of that name, which stays
            place = len(names) - 1 - names[::-1].index(name)
            self.rows = self.savepoints[place][1]
            del self.savepoints[place + 1 :]
        elif name in ("", self.name):
            self.count, self.rows, self.savepoints = 0, self.committed, []
        else:
            return 6401
        return 0


def test_nested_transactions_and_savepoints_agree_with_a_model(mill: sb.Database, seeded_random: random.Random) -> None:
    for _ in range(60):
        nested, script, wanted = Nested(), ["DELETE T"], list[Any]()
        for step in seeded_random.choices(STEPS, k=10):
            text, error = nested.run(step)
            script.append(f"{text}\nSELECT @@TRANCOUNT, XACT_STATE(), COUNT(*), MAX(n) FROM T")
            wanted += [error] * bool(error)
            wanted.append([(nested.count, int(nested.count > 0), len(nested.rows), max(nested.rows, default=None))])
        script.append("IF @@TRANCOUNT > 0 ROLLBACK\nSELECT n FROM T ORDER BY n")
        wanted.append([(number,) for number in sorted(nested.committed)])
        assert (output_of(mill, "\n".join(script)), script) == (wanted, script)


# ---------------------------------------------------------------- cursors

MOVES = ("NEXT", "PRIOR", "FIRST", "LAST", *(f"{how} {number}" for how in ("ABSOLUTE", "RELATIVE")
                                             for number in (-4, -1, 0, 1, 2, 4)))  # fmt: skip


def moved(position: int, move: str, rows: int) -> int:
    """Return the position after a FETCH: 0 before the first of the rows, one more than their number behind the last."""
    verb, _, number = move.partition(" ")
    given = int(number or 0)
    new = {
        "NEXT": position + 1,
        "PRIOR": position - 1,
        "FIRST": 1,
        "LAST": rows,
        "ABSOLUTE": given if given >= 0 else rows + 1 + given,
        "RELATIVE": position + given,
    }[verb]
    return max(0, min(new, rows + 1))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_fetch_moves_a_cursor_in_every_direction(mill: sb.Database, rows: int, seeded_random: random.Random) -> None:
    moves = [move for pair in product(MOVES, MOVES) for move in pair]
    if rows < 3:
        moves = seeded_random.sample(moves, 60)
    query = f"SELECT value FROM GENERATE_SERIES(1, 3) WHERE value <= {rows}"
    script = [f"DECLARE c SCROLL CURSOR FOR {query} OPEN c"]
    position, wanted = 0, []
    for move in moves:
        position = moved(position, move, rows)
        is_row = 0 < position <= rows
        script.append(f"FETCH {move} FROM c SELECT @@FETCH_STATUS, @@ROWCOUNT")
        wanted += [[(position,)] if is_row else [], [(0, 1) if is_row else (-1, 0)]]
    output = output_of(mill, "\n".join([*script, "DEALLOCATE c"]))
    steps = list(zip(moves, output[::2], output[1::2], strict=True))
    assert steps == list(zip(moves, wanted[::2], wanted[1::2], strict=True))


# ---------------------------------------------------------------- what a statement leaves

ROWS_BEFORE = 3  # of the query before each statement
ROWCOUNTS = {  # @@ROWCOUNT after a statement
    "SELECT 1 WHERE 1 = 0": 0,
    "SELECT 1": 1,
    "SET @x = 5": 1,
    "SELECT @x = 5": 1,
    "SELECT @x = v FROM (VALUES (1), (2)) t (v)": 2,
    "DECLARE @y INT = 5": 1,
    "IF 1 = 0 SET @x = 1": 0,
    "WHILE 1 = 0 SET @x = 1": ROWS_BEFORE,
    "PRINT 'x'": 0,
    "RAISERROR ('x', 0, 1)": 0,
    "SET NOCOUNT ON": 0,
    "SET LOCK_TIMEOUT -1": 0,
    "USE CrossingMill": 0,
    "BEGIN TRAN": 0,
    "SAVE TRAN s": 0,
    "INSERT T VALUES (1), (2)": 2,
    "UPDATE T SET n = n": 2,
    "UPDATE T SET n = n WHERE n = 7": 0,
    "DELETE T WHERE n = 1": 1,
    "INSERT Seen VALUES (1), (2), (4), (8)": 4,  # not that of its trigger
    "MERGE T USING (SELECT 2 AS n UNION SELECT 3) s ON T.n = s.n WHEN MATCHED THEN DELETE "
    "WHEN NOT MATCHED THEN INSERT VALUES (s.n);": 2,
    "SELECT n INTO #Copy FROM T": 5,
    "TRUNCATE TABLE Seen": 0,
    "CREATE TABLE #Made (n INT)": 0,
    "DROP TABLE #Made": 0,
    "EXEC Two": 2,
    "EXEC ('SELECT 1 UNION SELECT 2')": 2,
    "EXEC Nothing": ROWS_BEFORE,
    "DECLARE c CURSOR FOR SELECT 1": ROWS_BEFORE,
    "OPEN c": ROWS_BEFORE,
    "FETCH c INTO @x": 1,
    "CLOSE c": 0,
    "DEALLOCATE c": 0,
    "ROLLBACK TRAN s": 0,
    "COMMIT": 0,
    "BEGIN TRY SELECT 1 UNION SELECT 2 END TRY BEGIN CATCH SELECT 1 END CATCH": 2,
    "WAITFOR DELAY '00:00:00'": 0,
}
FAILED = {  # statements that fail and do not end the batch, with the number of their error
    "INSERT T VALUES (2000), (2000)": 2627,
    "SELECT 1 / 0": 8134,
    "RAISERROR ('x', 16, 1)": 50000,
    "FETCH nowhere": 16916,
    "SAVE TRAN late": 628,
}


def test_each_statement_sets_rowcount_and_error(mill: sb.Database) -> None:
    many = "SELECT 1 UNION SELECT 2 UNION SELECT 3"
    texts = {text: (rows, 0) for text, rows in ROWCOUNTS.items()} | {text: (0, error) for text, error in FAILED.items()}
    script = ["DELETE T DECLARE @x INT, @rows INT, @error INT DECLARE @found TABLE (place INT, rows INT, error INT)"]
    for index, text in enumerate(texts):
        script.append(
            f"{many}\n{text}\nSELECT @rows = @@ROWCOUNT, @error = @@ERROR INSERT @found VALUES ({index}, @rows, @error)"
        )
    *_, found = output_of(mill, "\n".join([*script, "SELECT rows, error FROM @found ORDER BY place"]))
    wrong = {text: got for (text, wanted), got in zip(texts.items(), found, strict=True) if got != wanted}
    assert wrong == {}


# ---------------------------------------------------------------- application locks

MODES = {"Shared": True, "Exclusive": False, "Update": False, "IntentShared": True}  # True for a shared lock
TAKE = "DECLARE @r INT EXEC @r = sp_getapplock 'wheel', '{}', '{}', 0 SELECT @r"
RELEASE = "EXEC sp_releaseapplock 'wheel', 'Session'"


def taken(session: Session, mode: str, owner: str = "Session") -> bool:
    """Try to take the lock."""
    ((result,),) = session.execute(TAKE.format(mode, owner)).rows
    assert result in (RESULT_GRANTED, RESULT_TIMED_OUT)
    return bool(result == RESULT_GRANTED)


def is_free(session: Session) -> bool:
    """Check whether no other session holds the lock."""
    if not taken(session, "Exclusive"):
        return False
    session.execute(RELEASE)
    return True


@pytest.mark.parametrize("owner", ["Session", "Transaction"])
def test_application_locks_exclude_each_other_in_one_database(mill: sb.Database, owner: str) -> None:
    other_database = mill.instance.database(f"OtherMill{owner}", create=True)
    found, wanted = {}, {}
    with mill.tsql_session() as holder, mill.tsql_session() as seeker, other_database.tsql_session() as stranger:
        for (held, mode), end in product(product(MODES, MODES), ("COMMIT", "ROLLBACK")):
            holder.execute("BEGIN TRAN")
            assert taken(holder, held, owner)
            is_shared = taken(seeker, mode)
            if is_shared:
                seeker.execute(RELEASE)
            outcome = [is_shared, is_free(stranger)]
            holder.execute(end)
            outcome.append(is_free(seeker))
            if owner == "Session":
                holder.execute(RELEASE)
            found[held, mode, end] = [*outcome, is_free(seeker)]
            wanted[held, mode, end] = [MODES[held] and MODES[mode], True, owner == "Transaction", True]
    assert found == wanted


@pytest.mark.parametrize("mode", MODES)
def test_an_application_lock_is_released_as_often_as_it_was_taken(mill: sb.Database, mode: str) -> None:
    with mill.tsql_session() as seeker:
        with mill.tsql_session() as holder:
            found = []
            for _ in range(2):
                assert taken(holder, mode)
            for _ in range(2):
                found.append(is_free(seeker))
                holder.execute(RELEASE)
            assert [*found, is_free(seeker)] == [False, False, True]
            with pytest.raises(sb.TsqlError) as error:
                holder.execute(RELEASE)
            assert error.value.number == 1223
            for each in MODES if MODES[mode] else [mode]:
                assert taken(holder, each)
        assert is_free(seeker)  # the end of the session releases what it holds
