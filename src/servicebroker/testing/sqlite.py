"""Connections of sqlite3 for handlers that are written for psycopg and PostgreSQL.

They accept psycopg's placeholders, Python objects that sqlite3 refuses, and a few functions of PostgreSQL. A SELECT
locks nothing and sees what others have committed, as in READ COMMITTED: a transaction begins with its first write.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?(.?)")
_WRITES = re.compile(r"\b(?:insert|update|delete|replace|create|alter|drop|savepoint)\b", re.IGNORECASE)
_LOCK_WAIT_S = 1.0  # a test has one thread, so the owner of the lock goes on only after the error


def sqlite(path: str | os.PathLike[str]) -> Callable[[], Connection]:
    """Return a function that opens connections to a sqlite3 database, for `servicebroker.testing.open(connect=)`.

    Args:
        path: the database file, for example in a temporary folder. A database in memory ends with its connection.
    """
    return lambda: Connection(path)


class Connection:
    """A connection of sqlite3 with psycopg's placeholders `%s`, `%(name)s` and `%%` in `execute`.

    Attributes:
        clock: the time of `now()`: that of the instance in a transaction of the double, otherwise the system's.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.sqlite = sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None)
        self.sqlite.execute("pragma journal_mode = wal")  # a reader blocks no writer
        self.sqlite.create_function("now", 0, lambda: _plain(self.clock()))
        self.sqlite.create_function("gen_random_uuid", 0, lambda: str(uuid4()))

    def execute(self, query: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> sqlite3.Cursor:
        """Run a statement. As in psycopg, a statement with parameters needs each other percent sign twice.

        Raises:
            sqlite3.Error: as sqlite3.
            ValueError: a placeholder that psycopg does not know.
        """
        if not self.sqlite.in_transaction and _WRITES.search(query):
            self.sqlite.execute("begin")
        try:
            if parameters is None:
                return self.sqlite.execute(query)
            if isinstance(parameters, Mapping):
                plain: Any = {name: _plain(value) for name, value in parameters.items()}
            else:
                plain = [_plain(value) for value in parameters]
            return self.sqlite.execute(_PLACEHOLDER.sub(_placeholder, query), plain)
        except sqlite3.OperationalError as problem:
            if "locked" not in str(problem):
                raise
            remedy = "commit the other connection, often the test's own, that has written to it"
            raise sqlite3.OperationalError(f"{problem}: {remedy}") from problem

    def commit(self) -> None:
        """Commit the transaction, if a statement has begun one."""
        if self.sqlite.in_transaction:
            self.sqlite.execute("commit")

    def rollback(self) -> None:
        """Roll the transaction back, if a statement has begun one."""
        if self.sqlite.in_transaction:
            self.sqlite.execute("rollback")

    def close(self) -> None:
        """Close the connection."""
        self.sqlite.close()


def _plain(value: Any) -> Any:
    """Return a parameter in a type of sqlite3: a UUID, a Decimal and a time become text."""
    if isinstance(value, datetime):
        return value.isoformat(" ")
    return str(value) if isinstance(value, UUID | Decimal | date) else value


def _placeholder(match: re.Match[str]) -> str:
    name, kind = match.groups()
    if name is None and kind == "%":
        return "%"
    if kind not in {"s", "b", "t"}:
        raise ValueError(f"psycopg knows no placeholder '{match[0]}': write a percent sign twice")
    return "?" if name is None else f":{name}"
