"""The types that CREATE TYPE has made."""

from __future__ import annotations

from servicebroker.tsql.interpreter.remembered import Remembered
from servicebroker.tsql.scope import UserType
from servicebroker.tsql.types import parse_type

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
        rows = self._machine.connection.run_prepared(_FIND, (self._database_id(), schema, name))
        if not rows:
            return None
        number, is_table, text, is_nullable = rows[0]
        return UserType(number, None if is_table else parse_type(text), text if is_table else "", is_nullable)
