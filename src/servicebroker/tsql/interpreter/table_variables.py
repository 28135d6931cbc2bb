"""Table variables outlive a ROLLBACK: PostgreSQL undoes what is in their tables, so they are made and filled again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from servicebroker.store.direct import run_command
from servicebroker.store.running import fetch
from servicebroker.tsql.interpreter.statement_runner import run_statement
from servicebroker.tsql.translation.rows.targets import counted_on
from servicebroker.tsql.translation.text_writer import identifier

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


class _Kept(NamedTuple):
    """A table variable; `rows` as PostgreSQL writes them, None where the transaction can answer no question."""

    table: str
    columns: str
    rows: list[str] | None


def keep(machine: Machine) -> Callable[[], None]:
    """Before a ROLLBACK: what makes all table variables again as they are now."""
    found = [
        (frame.tables[name], columns)
        for frame in machine.frames
        for name, columns in frame.declared.items()
        if name in frame.tables
    ]
    kept = [
        _Kept(table, columns, None if machine.transactions.is_lost else _rows(machine, table))
        for table, columns in found
    ]

    def restore() -> None:
        if not machine.connection.closed:
            for each in kept:
                _restore(machine, each)

    return restore


def _rows(machine: Machine, table: str) -> list[str]:
    return [row for (row,) in run_statement(machine.connection, f"select t::text from {table} as t", ()).rows]


def _restore(machine: Machine, kept: _Kept) -> None:
    ((is_there,),) = fetch(
        machine.connection, "table_variables.restore", "select to_regclass($1) is not null", (kept.table,)
    )
    if is_there and kept.rows in (None, _rows(machine, kept.table)):
        return
    if is_there:
        run_command(machine.connection, f"delete from {kept.table}".encode())
    else:
        machine.queries.make_table(kept.table, kept.columns)
    machine.queries.columns.forget()
    columns = machine.queries.columns.get(kept.table) or ()
    if not kept.rows:
        return
    written = [column for column in columns if not column.is_computed]
    names = ", ".join(identifier(column.name) for column in written)
    values = [counted_on(f"(r).{identifier(column.name)}", kept.table, column) for column in written]
    run_statement(
        machine.connection,
        f"insert into {kept.table} ({names}) select {', '.join(values)} from "
        f"(select row::{kept.table} as r from unnest($1::text[]) with ordinality as u (row, n) order by n) as kept",
        (kept.rows,),
    )
