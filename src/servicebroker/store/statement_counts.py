"""Count the statements of this process and their times, by server and database.

The maintenance thread of an instance adds these to the totals of all processes (`engine/diagnosis/totals.py`).
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from typing import Any

import psycopg


class StatementCounts:
    """Calls and seconds by the name of the statement. Any thread may use it.

    `add` runs for every statement, so it takes no lock. Counts are never reset: `_taken` has how much `take` has
    returned.
    """

    def __init__(self) -> None:
        self._counts: dict[str, list[float]] = {}
        self._taken: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()  # one caller of `take` or `put_back` at a time

    def add_all(self, counts: dict[str, tuple[int, float]]) -> None:
        """Add statements that a child process has run for this process."""
        for name, (calls, seconds) in counts.items():
            count = self._counts.setdefault(name, [0, 0.0])
            count[0] += calls
            count[1] += seconds

    def add(self, name: str, seconds: float) -> None:
        """Count one run of a statement."""
        count = self._counts.get(name) or self._counts.setdefault(name, [0, 0.0])
        count[0] += 1
        count[1] += seconds

    def take(self) -> dict[str, tuple[int, float]]:
        """Return the counts since the last call."""
        increments = {}
        with self._lock:
            for name, (calls, seconds) in list(self._counts.items()):
                before = self._taken.get(name, (0, 0.0))
                if calls > before[0]:
                    increments[name] = int(calls - before[0]), seconds - before[1]
                    self._taken[name] = calls, seconds
        return increments

    def put_back(self, counts: dict[str, tuple[int, float]]) -> None:
        """Return counts that could not be written; the next `take` includes them."""
        with self._lock:
            for name, (calls, seconds) in counts.items():
                before = self._taken[name]
                self._taken[name] = before[0] - calls, before[1] - seconds


DatabaseKey = tuple[bytes, bytes, bytes]  # identifies a database: the host and port of the server, and the name

_CACHE_ATTRIBUTE = "servicebroker_statement_counts"  # the attribute of a connection that holds its counts
_COUNTS: dict[DatabaseKey, StatementCounts] = defaultdict(StatementCounts)
os.register_at_fork(after_in_child=_COUNTS.clear)  # the parent writes the counts from before the fork


def counts_of(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> StatementCounts:
    """Return the counts of the connection's database, cached on the connection for speed."""
    attributes = connection.__dict__
    counts: StatementCounts | None = attributes.get(_CACHE_ATTRIBUTE)
    if counts is None:
        counts = attributes[_CACHE_ATTRIBUTE] = counts_for(database_key_of(connection))
    return counts


def database_key_of(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> DatabaseKey:
    """Return the database of a connection, with its server."""
    server = connection.pgconn
    return server.host, server.port, server.db


def counts_for(place: DatabaseKey) -> StatementCounts:
    """Return the counts of a database."""
    return _COUNTS[place]
