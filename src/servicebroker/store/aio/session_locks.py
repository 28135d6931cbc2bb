"""Group locks that a session keeps beyond a savepoint, and their release after the transaction.

A statement that takes such locks (`keep_lock`) reports them in the last column of its first row. They are noted on the
connection. If the connection is lost, PostgreSQL has released them.
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
from servicebroker.store.statements import text_of

_UNLOCK = "select pg_advisory_unlock(%s, key) from unnest(%s::int[]) key"
# only while no transaction holds group locks: pg_locks does not distinguish them from those of the session
# objid is unsigned, the key of a lock is a signed integer
_UNLOCK_ALL = (
    "select pg_advisory_unlock(%s, (objid::bigint - (objid::bigint >> 31 << 32))::int) from pg_locks "
    "where locktype = 'advisory' and granted and objsubid = 2 and classid = %s and pid = pg_backend_pid() "
    "and database = (select oid from pg_database where datname = current_database())"
)


@dataclass
class _SessionLocks:
    keys: list[int] = field(default_factory=list)
    may_have_more: bool = False  # a statement failed, and may have taken a lock before
    transaction_start: datetime | None = None  # None until `settle` or `note_transaction` has found it


_LOCKS_ATTRIBUTE = "servicebroker_kept"  # an attribute of the connection, since each verb reads it


def note(connection: psycopg.AsyncConnection[Any], keys: int | list[int]) -> None:
    """Note locks that the session keeps: one key, or a list."""
    _locks_of(connection).keys += keys if isinstance(keys, list) else [keys]


def doubt(connection: psycopg.AsyncConnection[Any]) -> None:
    """Note that a statement failed before it could report its locks, so that `release` looks for all of them."""
    _locks_of(connection).may_have_more = True


def may_keep_locks(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Check whether there may be locks to release."""
    return hasattr(connection, _LOCKS_ATTRIBUTE)


def _locks_of(connection: psycopg.AsyncConnection[Any]) -> _SessionLocks:
    kept: _SessionLocks = connection.__dict__.setdefault(_LOCKS_ATTRIBUTE, _SessionLocks())
    return kept


async def release(connection: psycopg.AsyncConnection[Any]) -> None:
    """Release the locks after the transaction has ended. Costs nothing without locks."""
    kept: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if kept is None:
        return
    if not connection.closed:
        await finish(_unlock(connection, kept))
    with contextlib.suppress(AttributeError):
        delattr(connection, _LOCKS_ATTRIBUTE)


async def settle(connection: psycopg.AsyncConnection[Any]) -> None:
    """Release locks of a transaction that the application has ended. Call this before a verb on its connection."""
    kept: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if kept is None or connection.info.transaction_status == TransactionStatus.INERROR:
        return
    if connection.closed or connection.info.transaction_status == TransactionStatus.IDLE:
        await release(connection)
        return
    began = await _find_start(connection)
    if kept.transaction_start is None:
        kept.transaction_start = began
    elif kept.transaction_start != began:
        await release(connection)


async def record_transaction(connection: psycopg.AsyncConnection[Any]) -> None:
    """Note the transaction that the locks belong to. Call this after a verb on a connection of the application."""
    kept: _SessionLocks | None = getattr(connection, _LOCKS_ATTRIBUTE, None)
    if (
        kept is not None
        and kept.transaction_start is None
        and connection.info.transaction_status == TransactionStatus.INTRANS
    ):
        kept.transaction_start = await finish(_find_start(connection))


async def _find_start(connection: psycopg.AsyncConnection[Any]) -> datetime:
    """Return the start of the connection's open transaction."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(text_of("session_locks.find_start", "select transaction_timestamp()"))
        ((began,),) = await cursor.fetchall()
    transaction_start: datetime = began
    return transaction_start


async def _unlock(connection: psycopg.AsyncConnection[Any], kept: _SessionLocks) -> None:
    async with connection.cursor(row_factory=tuple_row) as cursor:
        if not kept.may_have_more:
            await cursor.execute(text_of("session_locks.unlock", _UNLOCK), (locks.CONVERSATION_GROUP, kept.keys))
            return
        released = True
        while released:  # a lock that was taken several times is released as often
            await cursor.execute(
                text_of("session_locks.unlock.all", _UNLOCK_ALL), (locks.CONVERSATION_GROUP, locks.CONVERSATION_GROUP)
            )
            released = any(was_held for (was_held,) in await cursor.fetchall())
