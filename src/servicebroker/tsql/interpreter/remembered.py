"""What was looked up in the catalog is remembered for a moment, by all sessions of an instance in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_AGE = 2.0  # seconds: a session of another process may change it
# by what all sessions of an instance share, and what is remembered; then by database and name
_remembered: WeakKeyDictionary[object, dict[type, dict[tuple[int, str], tuple[float, Any]]]] = WeakKeyDictionary()

T = TypeVar("T")


class Remembered(Mapping[str, T]):
    """Things by name; what is not there has no entry."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._found = _remembered.setdefault(machine.instance.doorbell, {}).setdefault(type(self), {})

    def _look(self, name: str) -> T | None:
        """Look it up."""
        raise NotImplementedError

    def _database_id(self) -> int:
        """The database whose names these are; 0 when each name says so itself."""
        return 0

    def _is_shared(self, name: str) -> bool:
        """Whether other sessions mean the same by that name."""
        return True

    def __getitem__(self, name: str) -> T:
        now, asked = time.monotonic(), (self._database_id(), name)
        known: tuple[float, T | None] | None = self._found.get(asked)
        if known is None or known[0] < now:
            known = now + _AGE, self._look(name)
            if self._is_shared(name):
                self._found[asked] = known
        if known[1] is None:
            raise KeyError(name)
        return known[1]

    def __iter__(self) -> Iterator[str]:
        return (name for _, name in self._found)

    def __len__(self) -> int:
        return len(self._found)

    def forget(self) -> None:
        """Something was defined or dropped: look again."""
        self._found.clear()
