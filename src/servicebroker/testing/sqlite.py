"""Connections of sqlite3 for handlers that are written for psycopg: they take its placeholders."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?(.?)")


def sqlite(path: str | os.PathLike[str]) -> Callable[[], Connection]:
    """Return a function that makes connections to a database of sqlite3, for `servicebroker.testing.open(connect=)`.

    Args:
        path: its file. A database in memory vanishes with its connection: take a file in a temporary folder.
    """
    return lambda: Connection(path)


class Connection:
    """A connection of sqlite3 in a transaction, with psycopg's placeholders `%s`, `%(name)s` and `%%` in `execute`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.sqlite = sqlite3.connect(path, isolation_level=None)
        self.sqlite.execute("begin")

    def execute(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> sqlite3.Cursor:
        """Run a statement. As in psycopg, a percent sign is written twice where there are parameters.

        Raises:
            sqlite3.Error: as sqlite3.
            ValueError: a placeholder that psycopg does not know.
        """
        if parameters is None:
            return self.sqlite.execute(query)
        return self.sqlite.execute(_PLACEHOLDER.sub(_translated, query), parameters)

    def commit(self) -> None:
        """End the transaction with what it did, and begin the next one."""
        self.sqlite.execute("commit")
        self.sqlite.execute("begin")

    def rollback(self) -> None:
        """End the transaction without what it did, and begin the next one."""
        self.sqlite.execute("rollback")
        self.sqlite.execute("begin")

    def close(self) -> None:
        """Close the connection."""
        self.sqlite.close()


def _translated(found: re.Match[str]) -> str:
    name, kind = found.groups()
    if name is None and kind == "%":
        return "%"
    if kind not in {"s", "b", "t"}:
        raise ValueError(f"psycopg knows no placeholder '{found[0]}': write a percent sign twice")
    return "?" if name is None else f":{name}"
