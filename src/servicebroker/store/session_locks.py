# Made from aio/session_locks.py by tools/make_sync.py: change that file, then run `make sync`.
"""Group locks that a session keeps beyond a savepoint, and their release after the transaction.

The server takes them (`keep_lock`) and reports them in the last column of the statement's first row. Notes belong to
one connection; a lost connection has freed its locks.
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

_UNLOCK = "select pg_advisory_unlock(%s, key) from unnest(%s::int[]) key"
# only while no transaction holds group locks: pg_locks does not distinguish them from those of the session
_UNLOCK_ALL = (
    "select pg_advisory_unlock(%s, (objid::bigint - (objid::bigint >> 31 << 32))::int) from pg_locks "
    "where locktype = 'advisory' and granted and objsubid = 2 and classid = %s and pid = pg_backend_pid() "
    "and database = (select oid from pg_database where datname = current_database())"
)


@dataclass
class _SessionLocks:
    keys: list[int] = field(default_factory=list)
    unsure: bool = False  # a statement failed after it may have taken a lock
    since: datetime | None = None  # start of their transaction; known only after `settle` or `note_transaction`


_LOCKS_ATTRIBUTE = "servicebroker_kept"  # an attribute of the connection, since each verb reads it


def note(connection: psycopg.Connection[Any], keys: int | list[int]) -> None:
    """Note that the session keeps this lock, or these."""
    _locks_of(connection).keys += keys if isinstance(keys, list) else [keys]


def doubt(connection: psycopg.Connection[Any]) -> None:
    """Note that the session may keep an unreported lock, since a statement failed."""
    _locks_of(connection).unsure = True


def may_keep_locks(connection: psycopg.Connection[Any]) -> bool:
    """Check whether there may be locks to release."""
    return hasattr(connection, _LOCKS_ATTRIBUTE)


def _locks_of(connection: psycopg.Connection[Any]) -> _SessionLocks:
    kept: _SessionLocks = connection.__dict__.setdefault(_LOCKS_ATTRIBUTE, _SessionLocks())
    return kept


def release(connection: psycopg.Connection[Any]) -> None:
    """Release the locks after the transaction has ended. Costs nothing without locks."""
    kept: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if kept is None:
        return
    if not connection.closed:
        _unlock(connection, kept)
    with contextlib.suppress(AttributeError):
        delattr(connection, _LOCKS_ATTRIBUTE)


def settle(connection: psycopg.Connection[Any]) -> None:
    """Before a verb on a connection with transactions of the application: release locks of an ended transaction."""
    kept: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if kept is None or connection.info.transaction_status == TransactionStatus.INERROR:
        return
    if connection.closed or connection.info.transaction_status == TransactionStatus.IDLE:
        release(connection)
        return
    began = _find_start(connection)
    if kept.since is None:
        kept.since = began
    elif kept.since != began:
        release(connection)


def note_transaction(connection: psycopg.Connection[Any]) -> None:
    """After a verb on such a connection: note the transaction that the locks belong to."""
    kept: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if kept is not None and kept.since is None and connection.info.transaction_status == TransactionStatus.INTRANS:
        kept.since = _find_start(connection)


def _find_start(connection: psycopg.Connection[Any]) -> datetime:
    """Return the start of the connection's open transaction."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(text_of("session_locks.find_start", "select transaction_timestamp()"))
        ((began,),) = cursor.fetchall()
    at: datetime = began
    return at


def _unlock(connection: psycopg.Connection[Any], kept: _SessionLocks) -> None:
    with connection.cursor(row_factory=tuple_row) as cursor:
        if not kept.unsure:
            cursor.execute(text_of("session_locks.unlock", _UNLOCK), (locks.CONVERSATION_GROUP, kept.keys))
            return
        freed = True
        while freed:  # a lock that was taken several times is released as often
            cursor.execute(
                text_of("session_locks.unlock.all", _UNLOCK_ALL), (locks.CONVERSATION_GROUP, locks.CONVERSATION_GROUP)
            )
            freed = any(was for (was,) in cursor.fetchall())
