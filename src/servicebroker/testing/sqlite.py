"""Connections of sqlite3 that accept psycopg's placeholders, for handlers that are written for psycopg."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?(.?)")


def sqlite(path: str | os.PathLike[str]) -> Callable[[], Connection]:
    """Return a function that opens connections to a sqlite3 database, for `servicebroker.testing.open(connect=)`.

    Args:
        path: the database file, for example in a temporary folder. A database in memory ends with its connection.
    """
    return lambda: Connection(path)


class Connection:
    """A connection of sqlite3 in a transaction, with psycopg's placeholders `%s`, `%(name)s` and `%%` in `execute`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.sqlite = sqlite3.connect(path, isolation_level=None)
        self.sqlite.execute("begin")

    def execute(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> sqlite3.Cursor:
        """Run a statement. As in psycopg, a statement with parameters needs each other percent sign twice.

        Raises:
            sqlite3.Error: as sqlite3.
            ValueError: a placeholder that psycopg does not know.
        """
        if parameters is None:
            return self.sqlite.execute(query)
        return self.sqlite.execute(_PLACEHOLDER.sub(_placeholder, query), parameters)

    def commit(self) -> None:
        """Commit the transaction, and begin the next one."""
        self.sqlite.execute("commit")
        self.sqlite.execute("begin")

    def rollback(self) -> None:
        """Roll the transaction back, and begin the next one."""
        self.sqlite.execute("rollback")
        self.sqlite.execute("begin")

    def close(self) -> None:
        """Close the connection."""
        self.sqlite.close()


def _placeholder(match: re.Match[str]) -> str:
    name, kind = match.groups()
    if name is None and kind == "%":
        return "%"
    if kind not in {"s", "b", "t"}:
        raise ValueError(f"psycopg knows no placeholder '{match[0]}': write a percent sign twice")
    return "?" if name is None else f":{name}"
