"""Locks of conversation groups that a session keeps after a rollback to a savepoint, until its transaction ends.

A statement that takes such locks (`keep_lock`) returns their keys in the last column of its first row. The keys are
recorded on the connection, and the locks are released after the transaction. PostgreSQL releases them if the connection
is lost.
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
from servicebroker.store.aio.concurrency import finish
from servicebroker.store.statements import Rows, Statement, text_of

_UNLOCK = "select pg_advisory_unlock(%s, key) from unnest(%s::int[]) key"
# Run this only while no transaction holds group locks: pg_locks does not distinguish their owners. objid is unsigned,
# but the key of a lock is a signed integer.
_UNLOCK_ALL = (
    "select pg_advisory_unlock(%s, (objid::bigint - (objid::bigint >> 31 << 32))::int) from pg_locks "
    "where locktype = 'advisory' and granted and objsubid = 2 and classid = %s and pid = pg_backend_pid() "
    "and database = (select oid from pg_database where datname = current_database())"
)


@dataclass
class _SessionLocks:
    keys: list[int] = field(default_factory=list)
    has_unknown: bool = False  # a statement failed, and may have taken locks before
    transaction_start: datetime | None = None  # None until `release_stale` or `record_transaction` has read it


# An attribute of the connection, which each verb reads: faster than a dictionary
_LOCKS_ATTRIBUTE = "servicebroker_kept"


def record(connection: psycopg.BaseConnection[Any], statement: Statement, rows: Rows) -> None:
    """Record the keys of locks that the session keeps since the statement, which has returned these rows."""
    if statement.locks and rows and rows[0][-1] not in (None, []):
        keys = rows[0][-1]
        _locks_of(connection).keys += keys if isinstance(keys, list) else [keys]


def record_unknown(connection: psycopg.BaseConnection[Any]) -> None:
    """Record that a statement failed before it could return its keys, so that `release` searches pg_locks for them."""
    _locks_of(connection).has_unknown = True


def may_keep_locks(connection: psycopg.BaseConnection[Any]) -> bool:
    """Check whether the session may have locks to release."""
    return hasattr(connection, _LOCKS_ATTRIBUTE)


def _locks_of(connection: psycopg.BaseConnection[Any]) -> _SessionLocks:
    session_locks: _SessionLocks = connection.__dict__.setdefault(_LOCKS_ATTRIBUTE, _SessionLocks())
    return session_locks


async def release(connection: psycopg.AsyncConnection[Any]) -> None:
    """Release the locks of the session after its transaction has ended. Costs nothing without locks."""
    session_locks: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if session_locks is None:
        return
    if not connection.closed:
        await finish(_unlock(connection, session_locks))
    with contextlib.suppress(AttributeError):
        delattr(connection, _LOCKS_ATTRIBUTE)


async def release_stale(connection: psycopg.AsyncConnection[Any]) -> None:
    """Release the locks if the application has ended their transaction. Call this before a verb on its connection."""
    session_locks: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if session_locks is None or connection.info.transaction_status == TransactionStatus.INERROR:
        return
    if connection.closed or connection.info.transaction_status == TransactionStatus.IDLE:
        await release(connection)
        return
    start = await _find_start(connection)
    if session_locks.transaction_start is None:
        session_locks.transaction_start = start
    elif session_locks.transaction_start != start:
        await release(connection)


async def record_transaction(connection: psycopg.AsyncConnection[Any]) -> None:
    """Record the transaction that the locks belong to. Call this after a verb on a connection of the application."""
    session_locks: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if (
        session_locks is not None
        and session_locks.transaction_start is None
        and connection.info.transaction_status == TransactionStatus.INTRANS
    ):
        session_locks.transaction_start = await finish(_find_start(connection))


async def _find_start(connection: psycopg.AsyncConnection[Any]) -> datetime:
    """Return the start of the connection's open transaction."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(text_of("session_locks.find_start", "select transaction_timestamp()"))
        ((start,),) = await cursor.fetchall()
    transaction_start: datetime = start
    return transaction_start


async def _unlock(connection: psycopg.AsyncConnection[Any], session_locks: _SessionLocks) -> None:
    async with connection.cursor(row_factory=tuple_row) as cursor:
        if not session_locks.has_unknown:
            await cursor.execute(
                text_of("session_locks.unlock", _UNLOCK), (locks.CONVERSATION_GROUP, session_locks.keys)
            )
            return
        has_released = True
        while has_released:  # a lock that was taken several times must be released as often
            await cursor.execute(
                text_of("session_locks.unlock.all", _UNLOCK_ALL), (locks.CONVERSATION_GROUP, locks.CONVERSATION_GROUP)
            )
            has_released = any(was_held for (was_held,) in await cursor.fetchall())
