"""A cache of catalog rows, shared by all sessions of an instance in this process.

It holds the columns of tables, the types of CREATE TYPE, synonyms, and the signatures of user-defined functions. An
entry lives for two seconds, because sessions of other processes may change the catalog.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from servicebroker.overriding import override
from servicebroker.store.running import fetch
from servicebroker.tsql.known_columns import COLUMNS_SQL, columns_of
from servicebroker.tsql.parser.token_reader import parse_name
from servicebroker.tsql.scope import Column, UserFunction, UserType
from servicebroker.tsql.syntax import Name
from servicebroker.tsql.types import parse_type

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


_ENTRY_LIFETIME_S = 2.0  # bounds the delay until a session sees a change by another process


class _Entry(NamedTuple):
    """An object of the catalog, or None for a missing one, and the time until which the entry holds."""

    expires_at: float
    value: Any


# by the instance's notifier and the class of the cache, then by database and name
_entries: WeakKeyDictionary[object, dict[type, dict[tuple[int, str], _Entry]]] = WeakKeyDictionary()

T = TypeVar("T")


class CatalogCache(Mapping[str, T]):
    """A mapping from names to one kind of catalog object. A missing object is cached too, and raises KeyError."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._cached = _entries.setdefault(machine.instance.notifier, {}).setdefault(type(self), {})

    def _load(self, name: str) -> T | None:
        """Read an object from the catalog."""
        raise NotImplementedError

    def _database_id(self) -> int:
        """Return the database of the names, 0 if each name contains its database."""
        return 0

    def _is_shared(self, name: str) -> bool:
        """Return True if a name refers to the same object in all sessions."""
        return True

    @override
    def __getitem__(self, name: str) -> T:
        now, key = time.monotonic(), (self._database_id(), name)
        entry = self._cached.get(key)
        if entry is None or entry.expires_at < now:
            entry = _Entry(now + _ENTRY_LIFETIME_S, self._load(name))
            if self._is_shared(name):
                self._cached[key] = entry
        if entry.value is None:
            raise KeyError(name)
        value: T = entry.value
        return value

    @override
    def __iter__(self) -> Iterator[str]:
        return (name for _, name in self._cached)

    @override
    def __len__(self) -> int:
        return len(self._cached)

    def invalidate(self) -> None:
        """Discard all entries, after a definition or a DROP."""
        self._cached.clear()


_FIND_TYPE = (
    "select type_id, is_table, definition, is_nullable from servicebroker.tsql_types "
    "where database_id = $1 and lower(schema_name) = $2 and lower(name) = $3"
)


class UserTypes(CatalogCache[UserType]):
    """The types of the current database, by `types.type_key`."""

    @override
    def _database_id(self) -> int:
        number: int = self._machine.database.database_id
        return number

    @override
    def _load(self, key: str) -> UserType | None:
        schema, _, name = key.partition(".")
        rows = fetch(
            self._machine.connection, "catalog_cache.load.types", _FIND_TYPE, (self._database_id(), schema, name)
        )
        if not rows:
            return None
        number, is_table, text, is_nullable = rows[0]
        return UserType(number, None if is_table else parse_type(text), text if is_table else "", is_nullable)


_FIND_SYNONYMS = (
    "select lower(m.schema_name), lower(m.name), m.definition from servicebroker.tsql_modules m "
    "join servicebroker.databases d using (database_id) where lower(d.name) = $1 and m.kind = 'SN'"
)


_FIND_COLLATION = "select collation_name from servicebroker.databases where lower(name) = $1"


class Synonyms(CatalogCache[Mapping[tuple[str, str], Name]]):
    """All synonyms of a database, by its name in lower case.

    They are loaded together: most databases have none, and every name in a script may be one.
    """

    @override
    def _load(self, name: str) -> Mapping[tuple[str, str], Name]:
        rows = fetch(self._machine.connection, "catalog_cache.load.synonyms", _FIND_SYNONYMS, (name,))
        return {(schema, synonym): parse_name(base) for schema, synonym, base in rows}


class Collations(CatalogCache[str]):
    """The collation of each database, by its name in lower case."""

    @override
    def _load(self, name: str) -> str | None:
        if self._machine.transactions.is_lost:
            return None
        rows = fetch(self._machine.connection, "catalog_cache.load.collation", _FIND_COLLATION, (name,))
        return rows[0][0] if rows else None

    @override
    def _is_shared(self, name: str) -> bool:
        return not self._machine.transactions.is_lost


class UserFunctions(CatalogCache[UserFunction]):
    """The user-defined functions, by quoted PostgreSQL name. The comment of the function holds its signature.

    Attributes:
        has_called_any: True if the session has used a user-defined function, which may read the current user.
    """

    has_called_any = False

    @override
    def __getitem__(self, name: str) -> UserFunction:
        function = super().__getitem__(name)
        self.has_called_any = True
        return function

    @override
    def _load(self, name: str) -> UserFunction | None:
        rows = fetch(
            self._machine.connection,
            "catalog_cache.load.functions",
            "select obj_description(to_regproc($1), 'pg_proc')",
            (name,),
        )
        return _read_function_note(rows[0][0]) if rows[0][0] else None


def write_function_note(function: UserFunction) -> str:
    """Return the comment that holds a function's signature."""
    return json.dumps(
        {
            "parameters": [str(parameter_type) for parameter_type in function.parameters],
            "defaults": function.defaults,
            "returns": None if function.returns is None else str(function.returns),
            "columns": [(column.name, str(column.type)) for column in function.columns],
        }
    )


def _read_function_note(note: str) -> UserFunction | None:
    """Return the signature in the comment of a function; None if T-SQL did not create the function."""
    try:
        fields = json.loads(note)
        return UserFunction(
            tuple(parse_type(type_name) for type_name in fields["parameters"]),
            tuple(fields["defaults"]),
            None if fields["returns"] is None else parse_type(fields["returns"]),
            tuple(Column(name, parse_type(type_name)) for name, type_name in fields["columns"]),
        )
    except (ValueError, KeyError, TypeError):  # a function of PostgreSQL
        return None


class Columns(CatalogCache[tuple[Column, ...]]):
    """The columns of tables, by quoted PostgreSQL name.

    Attributes:
        copies: tables with the columns of another table, such as `inserted`.
    """

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.copies: dict[str, str] = {}

    @override
    def __getitem__(self, table: str) -> tuple[Column, ...]:
        return super().__getitem__(self.copies.get(table, table))

    @override
    def _is_shared(self, table: str) -> bool:
        return not table.startswith("pg_temp")

    @override
    def _load(self, table: str) -> tuple[Column, ...] | None:
        rows = fetch(self._machine.connection, "catalog_cache.load.tables", COLUMNS_SQL, ([table],))
        return columns_of(rows).get(table) or None
