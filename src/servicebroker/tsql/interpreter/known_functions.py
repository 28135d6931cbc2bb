"""What calls of user-defined functions need to know, which PostgreSQL keeps in the functions' comments."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from servicebroker.tsql.scope import Column, UserFunction
from servicebroker.tsql.types import parse_type

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_AGE = 2.0  # seconds that a function is remembered: another session may alter it
_remembered: WeakKeyDictionary[object, dict[str, tuple[float, UserFunction | None]]] = WeakKeyDictionary()


class UserFunctions(Mapping[str, UserFunction]):
    """By the quoted PostgreSQL name. PostgreSQL keeps what calls need to know, as the function's comment.

    Attributes:
        any_called: whether the session has named one, which may ask who works.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._found = _remembered.setdefault(machine.instance.doorbell, {})
        self.any_called = False

    def __getitem__(self, name: str) -> UserFunction:
        now = time.monotonic()
        known = self._found.get(name)
        if known is None or known[0] < now:
            known = self._found[name] = now + _AGE, self._look(name)
        if known[1] is None:
            raise KeyError(name)
        self.any_called = True
        return known[1]

    def _look(self, name: str) -> UserFunction | None:
        rows = self._machine.connection.run_prepared("select obj_description(to_regproc($1), 'pg_proc')", (name,))
        return _noted(rows[0][0]) if rows[0][0] else None

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def forget(self) -> None:
        """One was made or dropped."""
        self._found.clear()


def note_of(function: UserFunction) -> str:
    """The comment that says how a function is called."""
    return json.dumps(
        {
            "parameters": [str(of) for of in function.parameters],
            "defaults": function.defaults,
            "returns": None if function.returns is None else str(function.returns),
            "columns": [(column.name, str(column.type)) for column in function.columns],
        }
    )


def _noted(note: str) -> UserFunction | None:
    try:
        said = json.loads(note)
        return UserFunction(
            tuple(parse_type(of) for of in said["parameters"]),
            tuple(said["defaults"]),
            None if said["returns"] is None else parse_type(said["returns"]),
            tuple(Column(name, parse_type(of)) for name, of in said["columns"]),
        )
    except (ValueError, KeyError, TypeError):  # a function that T-SQL has not made
        return None
