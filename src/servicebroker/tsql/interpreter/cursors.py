"""Cursors: the rows of a query, taken when it is opened, one after the other."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.evaluation import integer
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.procedures.session_functions import KNOWN_BY
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import CursorStep, DeclareCursor, Fetch
from servicebroker.tsql.translation.rows.current_rows import CURRENT_OF, with_places

FETCHED, BEYOND = 0, -1  # @@FETCH_STATUS


@dataclass
class Cursor:
    """A cursor of the session. `found` is None while it is closed; `place` is that of the current row, from 0.

    `database` is where it was declared: its query is read there, wherever it is opened.
    """

    query: str
    database: str
    is_updatable: bool = False
    is_fixed: bool = False  # which rows it has is settled when it is opened, and SET ROWCOUNT counts
    found: ResultSet | None = None
    place: int = -1
    rows: list[str] | None = None  # 'ctid xmin table' of the rows, of a cursor through which they can be changed


@runs(DeclareCursor)
def _declare(machine: Machine, statement: DeclareCursor) -> None:
    cursors = machine.cursors
    if statement.name in cursors and not statement.is_variable:
        raise TsqlError(16915, f"A cursor with the name '{statement.name}' already exists.")
    cursors[statement.name] = Cursor(statement.query, machine.database.name, statement.is_updatable, statement.is_fixed)
    machine.done()


@runs(CursorStep)
def _step(machine: Machine, statement: CursorStep) -> None:
    cursor = _named(machine, statement.name)
    if statement.verb == "OPEN":
        if cursor.found is not None:
            raise TsqlError(16905, "The cursor is already open.")
        with machine.context.within(machine.context.named(cursor.database)):
            cursor.found, cursor.rows = _taken(machine, cursor)
        cursor.place = -1
        machine.cursor_rows = len(cursor.found.rows)
    elif statement.verb == "CLOSE":
        _opened(cursor)
        cursor.found = None
    else:
        del machine.cursors[statement.name]
    machine.done()


@runs(Fetch)
def _fetch(machine: Machine, statement: Fetch) -> None:
    cursor = _named(machine, statement.name)
    found = _opened(cursor)
    last = len(found.rows)
    number = 0 if statement.number is None else integer(machine, statement.number) or 0
    cursor.place = {
        "NEXT": cursor.place + 1,
        "PRIOR": cursor.place - 1,
        "FIRST": 0,
        "LAST": last - 1,
        "ABSOLUTE": number - 1 if number > 0 else last + number,
        "RELATIVE": cursor.place + number,
    }[statement.direction]
    cursor.place = max(-1, min(cursor.place, last))
    is_row = 0 <= cursor.place < last
    machine.fetch_status = FETCHED if is_row else BEYOND
    row: tuple[Any, ...] = found.rows[cursor.place] if is_row else ()
    if not statement.into:
        machine.say(ResultSet(found.columns, [row] if is_row else []))
    elif len(statement.into) != len(found.columns):
        raise TsqlError(
            16924, "Cursorfetch: The number of variables declared in the INTO list must match that of selected columns."
        )
    for name, value in zip(statement.into, row, strict=False):
        machine.frame.assign(name, value, None)
    machine.done(int(is_row))


def _taken(machine: Machine, cursor: Cursor) -> tuple[ResultSet, list[str] | None]:
    """The rows, and where they stand when they are those of one table."""
    query = with_places(cursor.query) if cursor.is_updatable else None
    most = machine.row_limit if cursor.is_fixed else 0
    if query is not None:
        with suppress(TsqlError):
            found = machine.queries.collect(query, most)
            places = [str(row[-1]) for row in found.rows]
            return ResultSet(found.columns[:-1], [row[:-1] for row in found.rows]), places
    return machine.queries.collect(cursor.query, most), None


def current_row(machine: Machine, name: str) -> str:
    """Where the row stands that a cursor was moved to last.

    Raises:
        TsqlError: 16916 and 16917 as FETCH, 16929 it only reads, 16930 it stands at no row.
    """
    cursor = _named(machine, name)
    _opened(cursor)
    if cursor.rows is None:
        raise TsqlError(16929, "The cursor is READ ONLY.")
    if not 0 <= cursor.place < len(cursor.rows):
        raise TsqlError(16930, "The requested row is not in the fetch buffer.")
    return cursor.rows[cursor.place]


KNOWN_BY[CURRENT_OF] = current_row

_NEWEST = (
    "select concat_ws(' ', ctid, xmin, tableoid::regclass) from {table} where ctid = "
    "(select case when $3::integer > 0 then currtid2($1::text, $2::text::tid) else $2::text::tid end)"
)


def follow(machine: Machine, name: str, touched: int) -> None:
    """The row at which a cursor stands was to be changed through it: what it is from now on. In the same transaction.

    Raises:
        TsqlError: 16934 it was changed otherwise, or deleted, since the cursor was opened.
    """
    cursor = _named(machine, name)
    before = current_row(machine, name)
    place, _, table = before.split(" ", 2)
    rows = fetch(machine.connection, "cursors.follow", _NEWEST.format(table=table), (table, place, touched))
    if not touched and (not rows or rows[0][0] != before):  # a trigger instead of the change leaves it as it was
        raise TsqlError(16934, "Optimistic concurrency check failed. The row was modified outside of this cursor.")
    if rows and cursor.rows is not None:
        cursor.rows[cursor.place] = rows[0][0]


def _named(machine: Machine, name: str) -> Cursor:
    if name not in machine.cursors:
        raise TsqlError(16916, f"A cursor with the name '{name}' does not exist.")
    return machine.cursors[name]


def _opened(cursor: Cursor) -> ResultSet:
    if cursor.found is None:
        raise TsqlError(16917, "Cursor is not open.")
    return cursor.found
