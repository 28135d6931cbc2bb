"""The state of a session after SET and FETCH, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from servicebroker.tsql.date_texts import US_ENGLISH
from servicebroker.tsql.interpreter import cursors
from servicebroker.tsql.interpreter.cursors import Cursor, current_row
from servicebroker.tsql.interpreter.set_options import set_option
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import CursorStep, DeclareCursor, Fetch, SetOption


class Machine:
    """A stand-in for a session that keeps what a statement changes."""

    def __init__(self, **state: Any) -> None:
        self.transactions = SimpleNamespace(
            count=0, is_snapshot=False, has_begun=lambda: False, change_isolation=self._change_isolation
        )
        self.database = SimpleNamespace(name="Shop")
        self.isolation, self.dates, self.row_limit = "READ COMMITTED", US_ENGLISH, 0
        self.nocount = self.xact_abort = self.is_implicit = self.closes_cursors = self.is_noexec = False
        self.server_options: dict[str, str] = {}
        self.changes: list[bool] = []
        self.cursors: dict[str, Cursor] = {}
        self.fetch_status, self.cursor_rows = 99, -1
        self.emitted: list[Any] = []
        self.frame = SimpleNamespace(assign=lambda name, value, kind: self.emitted.append((name, value)))
        self.__dict__.update(state)

    def _change_isolation(self, *, snapshot: bool) -> None:
        self.changes.append(snapshot)

    def set_dates(self, dates: Any) -> None:
        self.dates = dates

    def set_server_option(self, name: str, value: str) -> None:
        self.server_options[name] = value

    def record_success(self, rows: int | None = None) -> None:
        """Forget the number of rows."""

    def emit(self, output: Any) -> None:
        self.emitted.append(output)


def refusal(machine: Any, option: str, value: str) -> int:
    """Run SET. Return the number of its error, 0 without one."""
    try:
        set_option(machine, SetOption(1, (option,), value))
    except TsqlError as refused:
        return refused.number
    return 0


@pytest.mark.parametrize(
    ("option", "attribute"),
    [
        ("NOCOUNT", "nocount"),
        ("XACT_ABORT", "xact_abort"),
        ("IMPLICIT_TRANSACTIONS", "is_implicit"),
        ("CURSOR_CLOSE_ON_COMMIT", "closes_cursors"),
        ("NOEXEC", "is_noexec"),
    ],
)
def test_each_switch_changes_one_option(option: str, attribute: str) -> None:
    machine = Machine()
    names = ("nocount", "xact_abort", "is_implicit", "closes_cursors", "is_noexec")
    for value in ("ON", "OFF", "on"):
        assert refusal(machine, option, value) == 0
        assert [name for name in names if getattr(machine, name)] == ([attribute] if value != "OFF" else [])
    assert refusal(machine, option, "MAYBE") == 102


@pytest.mark.parametrize(
    ("value", "timeout_ms"),
    [
        ("-1", "0"),
        ("0", "1"),
        ("1", "1"),
        ("2147483647", "2147483647"),
        ("2147483648", None),
        ("-2", None),
        ("x", None),
    ],
)
def test_a_lock_timeout_without_end_is_0_in_postgresql(value: str, timeout_ms: str | None) -> None:
    machine = Machine()
    assert refusal(machine, "LOCK_TIMEOUT", value) == (102 if timeout_ms is None else 0)
    assert machine.server_options.get("lock_timeout") == timeout_ms


@pytest.mark.parametrize(
    ("option", "value", "number"),
    [
        ("ROWCOUNT", "5", 0),
        ("ROWCOUNT", "-1", 102),
        ("ANSI_NULLS", "ON", 0),
        ("ANSI_NULLS", "OFF", 40515),
        ("PARSEONLY", "OFF", 0),
        ("PARSEONLY", "ON", 40515),
        ("ANSI_NULLS", "5", 102),
        ("TEXTSIZE", "5", 0),
        ("NOTHING", "ON", 195),
        ("TRANSACTION ISOLATION LEVEL", "CHAOS", 102),
        ("DATEFORMAT", "dmy", 0),
        ("DATEFORMAT", "abc", 2741),
        ("DATEFIRST", "1", 0),
        ("DATEFIRST", "7", 0),
        ("DATEFIRST", "0", 2742),
        ("DATEFIRST", "8", 2742),
        ("DATEFIRST", "x", 102),
        ("LANGUAGE", "'British'", 0),
        ("LANGUAGE", "Klingon", 2740),
    ],
)
def test_values_of_options(option: str, value: str, number: int) -> None:
    assert refusal(Machine(), option, value) == number


def test_a_language_sets_what_its_dates_need() -> None:
    machine = Machine()
    refusal(machine, "LANGUAGE", "British")
    assert (machine.dates.order, machine.dates.first, machine.dates.language) == ("dmy", 1, "British")
    refusal(machine, "DATEFIRST", "3")
    refusal(machine, "DATEFORMAT", "YMD")
    assert (machine.dates.order, machine.dates.first, machine.dates.language) == ("ymd", 3, "British")


@pytest.mark.parametrize(
    ("count", "has_begun", "is_snapshot", "before", "after", "number", "changes"),
    [
        (0, False, False, "READ COMMITTED", "SNAPSHOT", 0, []),
        (1, False, False, "READ COMMITTED", "SNAPSHOT", 0, [True]),
        (1, False, True, "SNAPSHOT", "SERIALIZABLE", 0, [False]),
        (1, True, False, "READ COMMITTED", "SERIALIZABLE", 0, []),
        (1, True, False, "READ COMMITTED", "SNAPSHOT", 3951, []),
        (1, True, True, "SNAPSHOT", "READ COMMITTED", 40515, []),
        (1, True, True, "SNAPSHOT", "SNAPSHOT", 0, []),
    ],
)
def test_a_transaction_that_has_begun_keeps_its_snapshot(
    count: int, has_begun: bool, is_snapshot: bool, before: str, after: str, number: int, changes: list[bool]
) -> None:
    machine = Machine(isolation=before)
    machine.transactions.count, machine.transactions.is_snapshot = count, is_snapshot
    machine.transactions.has_begun = lambda: has_begun
    assert refusal(machine, "TRANSACTION ISOLATION LEVEL", after) == number
    assert machine.isolation == (before if number else after)
    assert machine.changes == changes


# ---------------------------------------------------------------- cursors


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Machine()
    made.cursors["c"] = Cursor("", "Shop", True, False, ResultSet(("a",), [(1,), (2,), (3,)]), -1, ["r1", "r2", "r3"])
    monkeypatch.setattr(cursors, "evaluate_integer", lambda machine, number: number)
    return made


def fetched(machine: Any, *steps: tuple[str, int | None]) -> list[Any]:
    """Run FETCH for each step. Return the rows, None without one."""
    found = []
    for direction, number in steps:
        machine.emitted.clear()
        cursors._fetch(machine, Fetch(1, direction, number, "c", ()))  # type: ignore[arg-type]
        rows = machine.emitted[0].rows if machine.emitted else []
        assert machine.fetch_status == (0 if rows else -1)
        found.append(rows[0][0] if rows else None)
    return found


NEXT, PRIOR = ("NEXT", None), ("PRIOR", None)


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        ([NEXT] * 5, [1, 2, 3, None, None]),
        ([NEXT, NEXT, NEXT, NEXT, PRIOR], [1, 2, 3, None, 3]),
        ([NEXT, PRIOR, PRIOR, NEXT], [1, None, None, 1]),
        ([("LAST", None), NEXT, ("FIRST", None), PRIOR, NEXT], [3, None, 1, None, 1]),
        ([("ABSOLUTE", number) for number in (1, 3, 4, 0, -1, -3, -4)], [1, 3, None, None, 3, 1, None]),
        ([("FIRST", None), ("RELATIVE", 2), ("RELATIVE", 0), ("RELATIVE", -1), ("RELATIVE", 9)], [1, 3, 3, 2, None]),
    ],
)
def test_a_cursor_stands_at_one_row_or_before_or_behind_all(machine: Any, steps: Any, rows: list[Any]) -> None:
    assert fetched(machine, *steps) == rows


def test_the_current_row_is_the_one_fetched_last(machine: Any) -> None:
    def current() -> Any:
        try:
            return current_row(machine, "c")
        except TsqlError as refused:
            return refused.number

    assert current() == 16930
    fetched(machine, NEXT, NEXT)
    assert current() == "r2"
    fetched(machine, ("LAST", None), NEXT)
    assert current() == 16930
    machine.cursors["c"].row_addresses = None
    assert current() == 16929
    machine.cursors["c"].result = None
    assert current() == 16917
    del machine.cursors["c"]
    assert current() == 16916


def test_a_cursor_is_declared_once_and_closed_before_it_is_opened_again(machine: Any) -> None:
    def step(statement: Any) -> int:
        try:
            (cursors._declare if isinstance(statement, DeclareCursor) else cursors._change_cursor)(machine, statement)
        except TsqlError as refused:
            return refused.number
        return 0

    assert step(DeclareCursor(1, "c", "SELECT 1", False)) == 16915
    assert step(CursorStep(1, "OPEN", "c")) == 16905
    assert step(CursorStep(1, "CLOSE", "c")) == 0
    assert step(CursorStep(1, "CLOSE", "c")) == 16917
    assert step(CursorStep(1, "DEALLOCATE", "c")) == 0
    assert step(CursorStep(1, "DEALLOCATE", "c")) == 16916
    assert step(DeclareCursor(1, "c", "SELECT 1", True)) == step(DeclareCursor(1, "c", "SELECT 2", True)) == 0
    assert machine.cursors["c"].query == "SELECT 2"
