"""The columns of tables, as the translation wants to know them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from servicebroker.tsql.interpreter.remembered import Remembered
from servicebroker.tsql.known_columns import QUERY, columns_of
from servicebroker.tsql.scope import Column

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


class Columns(Remembered[tuple[Column, ...]]):
    """By the quoted PostgreSQL name of the table."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.copies: dict[str, str] = {}  # tables that have the columns of another one, as `inserted` has

    def __getitem__(self, table: str) -> tuple[Column, ...]:
        return super().__getitem__(self.copies.get(table, table))

    def _is_shared(self, table: str) -> bool:
        return not table.startswith("pg_temp")

    def _look(self, table: str) -> tuple[Column, ...] | None:
        rows = self._machine.connection.run_prepared(QUERY, ([table],))
        return columns_of(rows).get(table) or None
