"""The types that CREATE TYPE has made, looked up once, and again after a while."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from servicebroker.tsql.scope import UserType
from servicebroker.tsql.types import parse_type

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_AGE = 2.0  # seconds that a type is remembered: another session may drop it
_FIND = (
    "select type_id, is_table, definition, is_nullable from servicebroker.tsql_types "
    "where database_id = $1 and lower(schema_name) = $2 and lower(name) = $3"
)
_remembered: WeakKeyDictionary[object, dict[tuple[int, str], tuple[float, UserType | None]]] = WeakKeyDictionary()


class UserTypes(Mapping[str, UserType]):
    """Those of the current database by `types.type_key`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._found = _remembered.setdefault(machine.instance.doorbell, {})

    def __getitem__(self, key: str) -> UserType:
        now, asked = time.monotonic(), (self._machine.database.database_id, key)
        known = self._found.get(asked)
        if known is None or known[0] < now:
            known = self._found[asked] = now + _AGE, self._look(*asked)
        if known[1] is None:
            raise KeyError(key)
        return known[1]

    def _look(self, database_id: int, key: str) -> UserType | None:
        schema, _, name = key.partition(".")
        rows = self._machine.connection.run_prepared(_FIND, (database_id, schema, name))
        if not rows:
            return None
        number, is_table, text, is_nullable = rows[0]
        return UserType(number, None if is_table else parse_type(text), text if is_table else "", is_nullable)

    def __iter__(self) -> Iterator[str]:
        return (key for _, key in self._found)

    def __len__(self) -> int:
        return len(self._found)

    def forget(self) -> None:
        """One was made or dropped."""
        self._found.clear()
