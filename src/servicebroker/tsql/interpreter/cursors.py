"""Cursors: the rows of a query, fetched at OPEN and returned one by one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.evaluation import evaluate_integer
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.procedures.session_functions import PREFIXED_FUNCTIONS
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import CursorStep, DeclareCursor, Fetch
from servicebroker.tsql.translation.rows.current_rows import CURRENT_OF_PREFIX, with_row_addresses

FETCH_SUCCEEDED, FETCH_FAILED = 0, -1  # @@FETCH_STATUS


@dataclass
class Cursor:
    """A cursor of the session.

    Attributes:
        query: the SELECT, which is read in `database`, where the cursor was declared.
        is_updatable: False if the cursor only reads.
        is_fixed: True if OPEN settles which rows the cursor has. Then SET ROWCOUNT limits them.
        result: the rows, None while the cursor is closed.
        position: the index of the current row, -1 before the first one.
        row_addresses: 'ctid xmin table' of each row, None for a cursor whose rows cannot be changed through it.
    """

    query: str
    database: str
    is_updatable: bool = False
    is_fixed: bool = False
    result: ResultSet | None = None
    position: int = -1
    row_addresses: list[str] | None = None


@runs(DeclareCursor)
def _declare(machine: Machine, statement: DeclareCursor) -> None:
    """Run DECLARE CURSOR. The query runs at OPEN.

    Raises:
        TsqlError: 16915 the name is taken.
    """
    cursors = machine.cursors
    if statement.name in cursors and not statement.is_variable:
        raise TsqlError(16915, f"A cursor with the name '{statement.name}' already exists.")
    cursors[statement.name] = Cursor(statement.query, machine.database.name, statement.is_updatable, statement.is_fixed)
    machine.record_success()


@runs(CursorStep)
def _change_cursor(machine: Machine, statement: CursorStep) -> None:
    """Run OPEN, CLOSE or DEALLOCATE.

    Raises:
        TsqlError: 16916 there is no such cursor, 16905 it is open already, 16917 it is not open.
    """
    cursor = _find_cursor(machine, statement.name)
    if statement.keyword == "OPEN":
        if cursor.result is not None:
            raise TsqlError(16905, "The cursor is already open.")
        with machine.context.within(machine.context.database_named(cursor.database)):
            cursor.result, cursor.row_addresses = _fetch_rows(machine, cursor)
        cursor.position = -1
        machine.cursor_rows = len(cursor.result.rows)
        machine.record_success()
        return
    if statement.keyword == "CLOSE":
        _open_result(cursor)
        cursor.result = None
    else:
        del machine.cursors[statement.name]
    machine.record_success(0)


@runs(Fetch)
def _fetch(machine: Machine, statement: Fetch) -> None:
    """Run FETCH: move the cursor, then emit the row or assign it to variables.

    Raises:
        TsqlError: 16916 there is no such cursor, 16917 it is not open, 16924 the number of variables differs.
    """
    cursor = _find_cursor(machine, statement.name)
    result = _open_result(cursor)
    row_count = len(result.rows)
    number = 0 if statement.number is None else evaluate_integer(machine, statement.number) or 0
    cursor.position = {
        "NEXT": cursor.position + 1,
        "PRIOR": cursor.position - 1,
        "FIRST": 0,
        "LAST": row_count - 1,
        "ABSOLUTE": number - 1 if number >= 0 else row_count + number,
        "RELATIVE": cursor.position + number,
    }[statement.direction]
    cursor.position = max(-1, min(cursor.position, row_count))
    is_row = 0 <= cursor.position < row_count
    machine.fetch_status = FETCH_SUCCEEDED if is_row else FETCH_FAILED
    row: tuple[Any, ...] = result.rows[cursor.position] if is_row else ()
    if not statement.into:
        machine.emit(ResultSet(result.columns, [row] if is_row else [], result.types))
    elif len(statement.into) != len(result.columns):
        raise TsqlError(
            16924, "Cursorfetch: The number of variables declared in the INTO list must match that of selected columns."
        )
    for name, value in zip(statement.into, row, strict=False):
        machine.frame.assign(name, value, None)
    machine.record_success(int(is_row))


def _fetch_rows(machine: Machine, cursor: Cursor) -> tuple[ResultSet, list[str] | None]:
    """Return the rows, and their addresses if the cursor is updatable and all of them are rows of one table."""
    query = with_row_addresses(cursor.query) if cursor.is_updatable else None
    row_limit = machine.row_limit if cursor.is_fixed else 0
    if query is not None:
        with suppress(TsqlError):
            result = machine.queries.fetch_result(query, row_limit)
            addresses = [str(row[-1]) for row in result.rows]
            types = result.types and result.types[:-1]
            return ResultSet(result.columns[:-1], [row[:-1] for row in result.rows], types), addresses
    return machine.queries.fetch_result(cursor.query, row_limit), None


def current_row(machine: Machine, name: str) -> str:
    """Return the address of the row that the cursor was moved to last.

    Raises:
        TsqlError: 16916 and 16917 as for FETCH, 16929 the cursor is read-only, 16930 it is at no row.
    """
    cursor = _find_cursor(machine, name)
    _open_result(cursor)
    if cursor.row_addresses is None:
        raise TsqlError(16929, "The cursor is READ ONLY.")
    if not 0 <= cursor.position < len(cursor.row_addresses):
        raise TsqlError(16930, "The requested row is not in the fetch buffer.")
    return cursor.row_addresses[cursor.position]


PREFIXED_FUNCTIONS[CURRENT_OF_PREFIX] = current_row

_NEWEST_ROW_VERSION = (
    "select concat_ws(' ', ctid, xmin, tableoid::regclass) from {table} where ctid = "
    "(select case when $3::integer > 0 then currtid2($1::text, $2::text::tid) else $2::text::tid end)"
)


def refresh_current_row(machine: Machine, name: str, touched_count: int) -> None:
    """Update the address of the current row after a change through the cursor, in the same transaction.

    Raises:
        TsqlError: 16934 the row was changed or deleted outside of the cursor since OPEN.
    """
    cursor = _find_cursor(machine, name)
    address = current_row(machine, name)
    row_id, _, table = address.split(" ", 2)
    rows = fetch(
        machine.connection,
        "cursors.refresh_current_row",
        _NEWEST_ROW_VERSION.format(table=table),
        (table, row_id, touched_count),
    )
    if not touched_count and (not rows or rows[0][0] != address):  # an INSTEAD OF trigger leaves the row as it was
        raise TsqlError(16934, "Optimistic concurrency check failed. The row was modified outside of this cursor.")
    if rows and cursor.row_addresses is not None:
        cursor.row_addresses[cursor.position] = rows[0][0]


def _find_cursor(machine: Machine, name: str) -> Cursor:
    """Return a cursor by name.

    Raises:
        TsqlError: 16916 there is none.
    """
    if name not in machine.cursors:
        raise TsqlError(16916, f"A cursor with the name '{name}' does not exist.")
    return machine.cursors[name]


def _open_result(cursor: Cursor) -> ResultSet:
    """Return the rows of an open cursor.

    Raises:
        TsqlError: 16917 the cursor is not open.
    """
    if cursor.result is None:
        raise TsqlError(16917, "Cursor is not open.")
    return cursor.result
