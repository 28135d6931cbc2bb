"""What was looked up in the catalog is remembered for a moment, by all sessions of an instance in this process.

Those are the columns of tables, the types of CREATE TYPE, synonyms, and what calls of user-defined functions need.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from servicebroker.store.running import fetch
from servicebroker.tsql.known_columns import QUERY, columns_of
from servicebroker.tsql.parser.token_reader import name_in
from servicebroker.tsql.scope import Column, UserFunction, UserType
from servicebroker.tsql.syntax import Name
from servicebroker.tsql.types import parse_type

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


_FIND = (
    "select type_id, is_table, definition, is_nullable from servicebroker.tsql_types "
    "where database_id = $1 and lower(schema_name) = $2 and lower(name) = $3"
)


class UserTypes(Remembered[UserType]):
    """Those of the current database by `types.type_key`."""

    def _database_id(self) -> int:
        number: int = self._machine.database.database_id
        return number

    def _look(self, key: str) -> UserType | None:
        schema, _, name = key.partition(".")
        rows = fetch(self._machine.connection, "remembered.look.types", _FIND, (self._database_id(), schema, name))
        if not rows:
            return None
        number, is_table, text, is_nullable = rows[0]
        return UserType(number, None if is_table else parse_type(text), text if is_table else "", is_nullable)


_SYNONYMS = (
    "select lower(m.schema_name), lower(m.name), m.definition from servicebroker.tsql_modules m "
    "join servicebroker.databases d using (database_id) where lower(d.name) = $1 and m.kind = 'SN'"
)


class Synonyms(Remembered[Mapping[tuple[str, str], Name]]):
    """All of a database, by its name in lower case: most have none, and each name in a script may be one."""

    def _look(self, name: str) -> Mapping[tuple[str, str], Name]:
        rows = fetch(self._machine.connection, "remembered.look.synonyms", _SYNONYMS, (name,))
        return {(schema, own): name_in(base) for schema, own, base in rows}


class UserFunctions(Remembered[UserFunction]):
    """By the quoted PostgreSQL name. PostgreSQL keeps what calls need to know, as the function's comment.

    Attributes:
        any_called: whether the session has named one, which may ask who works.
    """

    any_called = False

    def __getitem__(self, name: str) -> UserFunction:
        found = super().__getitem__(name)
        self.any_called = True
        return found

    def _look(self, name: str) -> UserFunction | None:
        rows = fetch(
            self._machine.connection,
            "remembered.look.functions",
            "select obj_description(to_regproc($1), 'pg_proc')",
            (name,),
        )
        return _noted(rows[0][0]) if rows[0][0] else None


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
        rows = fetch(self._machine.connection, "remembered.look.tables", QUERY, ([table],))
        return columns_of(rows).get(table) or None
