"""The columns of tables, as the translation wants to know them; looked up once, and again after a while."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from servicebroker.tsql.columns import QUERY, columns_of
from servicebroker.tsql.scope import Column

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_AGE = 2.0  # seconds that columns are remembered: another session may alter the table


Remembered = dict[str, tuple[float, tuple[Column, ...]]]
_remembered: WeakKeyDictionary[object, Remembered] = WeakKeyDictionary()  # by what all sessions of an instance share


class Columns(Mapping[str, tuple[Column, ...]]):
    """By the quoted PostgreSQL name of the table; a table that is not there has no entry."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._found = _remembered.setdefault(machine.instance.doorbell, {})
        self.copies: dict[str, str] = {}  # tables that have the columns of another one, as `inserted` has

    def __getitem__(self, table: str) -> tuple[Column, ...]:
        table = self.copies.get(table, table)
        now = time.monotonic()
        known = self._found.get(table)
        if known is None or known[0] < now:
            known = (now + _AGE, self._look(table))
            if not table.startswith("pg_temp"):  # that is another table in another session
                self._found[table] = known
        if not known[1]:
            raise KeyError(table)
        return known[1]

    def _look(self, table: str) -> tuple[Column, ...]:
        rows = self._machine.connection.run_prepared(QUERY, ([table],))
        return columns_of(rows).get(table, ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def forget(self) -> None:
        """Something was defined: look again."""
        self._found.clear()
