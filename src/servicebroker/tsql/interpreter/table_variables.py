"""Table variables survive a ROLLBACK: their rows are saved before it and restored after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from servicebroker.store.direct import run_command
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.statement_runner import run_statement
from servicebroker.tsql.translation.rows.targets import advance_identity
from servicebroker.tsql.translation.text_writer import quote_identifier

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


class _SavedTable(NamedTuple):
    """The definition and rows of a table variable. `rows` is None if the transaction is lost and cannot be read."""

    table: str
    columns: str
    rows: list[str] | None


def save_table_variables(machine: Machine) -> Callable[[], None]:
    """Save all table variables before a ROLLBACK. Return a function that restores them."""
    tables = [
        (frame.tables[name], columns)
        for frame in machine.frames
        for name, columns in frame.table_definitions.items()
        if name in frame.tables
    ]
    saved_tables = [
        _SavedTable(table, columns, None if machine.transactions.is_lost else _read_rows(machine, table))
        for table, columns in tables
    ]

    def restore() -> None:
        if not machine.connection.closed:
            for saved in saved_tables:
                _restore_table(machine, saved)

    return restore


def _read_rows(machine: Machine, table: str) -> list[str]:
    return [row for (row,) in run_statement(machine.connection, f"select t::text from {table} as t", ()).rows]


def _restore_table(machine: Machine, saved: _SavedTable) -> None:
    """Create and fill a table variable again, unless the ROLLBACK has left it as it was."""
    ((exists,),) = fetch(
        machine.connection, "table_variables.restore_table", "select to_regclass($1) is not null", (saved.table,)
    )
    if exists and saved.rows in (None, _read_rows(machine, saved.table)):
        return
    if exists:
        run_command(machine.connection, f"delete from {saved.table}".encode())
    else:
        machine.queries.create_table(saved.table, saved.columns)
    machine.queries.columns.invalidate()
    columns = machine.queries.columns.get(saved.table) or ()
    if not saved.rows:
        return
    written = [column for column in columns if not column.is_computed]
    names = ", ".join(quote_identifier(column.name) for column in written)
    values = [advance_identity(f"(r).{quote_identifier(column.name)}", saved.table, column) for column in written]
    run_statement(
        machine.connection,
        f"insert into {saved.table} ({names}) select {', '.join(values)} from "
        f"(select row::{saved.table} as r from unnest($1::text[]) with ordinality as u (row, n) order by n) as kept",
        (saved.rows,),
    )
