# Made from aio/kept.py by tools/make_sync.py: change that file, then run `make sync`.
"""Group locks that a session keeps beyond a savepoint, and how they are given back when the transaction has ended.

The server takes them (`keep_lock`) and says so in the last column of the statement's first row. What is noted here
belongs to one connection; a connection that is lost has freed its locks.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from servicebroker.store import locks
from servicebroker.store.statements import text_of

_FREE = "select pg_advisory_unlock(%s, key) from unnest(%s::int[]) key"
# only where no transaction holds group locks: pg_locks does not tell them from those of the session
_FREE_ALL = (
    "select pg_advisory_unlock(%s, (objid::bigint - (objid::bigint >> 31 << 32))::int) from pg_locks "
    "where locktype = 'advisory' and granted and objsubid = 2 and classid = %s and pid = pg_backend_pid() "
    "and database = (select oid from pg_database where datname = current_database())"
)


@dataclass
class _Kept:
    keys: list[int] = field(default_factory=list)
    unsure: bool = False  # a statement failed after it may have taken a lock
    since: datetime | None = None  # when the transaction began that took them; known only when somebody asked


_REMEMBERED = "servicebroker_kept"  # by the connection itself, since each verb asks


def note(connection: psycopg.Connection[Any], keys: int | list[int]) -> None:
    """The session keeps this lock, or these."""
    _of(connection).keys += keys if isinstance(keys, list) else [keys]


def doubt(connection: psycopg.Connection[Any]) -> None:
    """The session may keep a lock that was not told of."""
    _of(connection).unsure = True


def is_kept(connection: psycopg.Connection[Any]) -> bool:
    """Whether there may be something to release."""
    return hasattr(connection, _REMEMBERED)


def _of(connection: psycopg.Connection[Any]) -> _Kept:
    kept: _Kept = connection.__dict__.setdefault(_REMEMBERED, _Kept())
    return kept


def release(connection: psycopg.Connection[Any]) -> None:
    """The transaction has ended: the locks go back. Costs nothing when there are none."""
    kept: _Kept | None = getattr(connection, _REMEMBERED, None)
    if kept is None:
        return
    if not connection.closed:
        _free(connection, kept)
    with contextlib.suppress(AttributeError):
        delattr(connection, _REMEMBERED)


def settle(connection: psycopg.Connection[Any]) -> None:
    """Before a verb on a connection whose transactions somebody else ends: give back what an ended one has left."""
    kept: _Kept | None = getattr(connection, _REMEMBERED, None)
    if kept is None or connection.info.transaction_status == TransactionStatus.INERROR:
        return
    if connection.closed or connection.info.transaction_status == TransactionStatus.IDLE:
        release(connection)
        return
    began = _began(connection)
    if kept.since is None:
        kept.since = began
    elif kept.since != began:
        release(connection)


def note_transaction(connection: psycopg.Connection[Any]) -> None:
    """After a verb on such a connection: remember which transaction the locks belong to."""
    kept: _Kept | None = getattr(connection, _REMEMBERED, None)
    if kept is not None and kept.since is None and connection.info.transaction_status == TransactionStatus.INTRANS:
        kept.since = _began(connection)


def _began(connection: psycopg.Connection[Any]) -> datetime:
    """When the transaction began that is open on the connection."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(text_of("kept.began", "select transaction_timestamp()"))
        ((began,),) = cursor.fetchall()
    at: datetime = began
    return at


def _free(connection: psycopg.Connection[Any], kept: _Kept) -> None:
    with connection.cursor(row_factory=tuple_row) as cursor:
        if not kept.unsure:
            cursor.execute(text_of("kept.free", _FREE), (locks.GROUP, kept.keys))
            return
        freed = True
        while freed:  # a lock that was taken several times is freed as often
            cursor.execute(text_of("kept.free.all", _FREE_ALL), (locks.GROUP, locks.GROUP))
            freed = any(was for (was,) in cursor.fetchall())
