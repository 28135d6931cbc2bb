"""Acknowledges rows that the sink (the tables) has stored.

Acknowledging deletes the rows from the queue. It also ends each conversation of which a row is the last message:
EndDialog, Error, or the type that the option `endOfStream` names. A slice is a page of a window (`frontier.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from servicebroker.engine.conversation.end import end_conversation
from servicebroker.engine.conversation.endpoints import lock_conversation
from servicebroker.model.errors import BrokerError
from servicebroker.operations.end import EndConversation
from servicebroker.pipeline.stream import frontier
from servicebroker.pipeline.stream.frontier import Slice
from servicebroker.store.running import execute, run
from servicebroker.store.server_time import server_time
from servicebroker.store.statements import Statement, Steps

ConversationEnder = Callable[[psycopg.Connection[Any], UUID], None]

MIN_TRUNCATE_ROWS = 50_000  # the fewest rows for a TRUNCATE; for fewer, a DELETE is faster
MAX_ENDS_PER_TRANSACTION = 500  # each END locks a group, and a server has room for a few thousand locks
_NOTHING_TO_END = (8426, 8427)  # unknown handle; already ended by this side


def end_now(connection: psycopg.Connection[Any], handle: UUID) -> None:
    """Run END CONVERSATION."""
    run(connection, end_conversation(EndConversation(handle), now=server_time(connection)))


def archive_conversation(handle: UUID) -> Steps[None]:
    """Move a conversation's messages into the archive of its queue, because END CONVERSATION would delete them.

    Raises:
        BrokerError: 8426 unknown handle.
    """
    endpoint, _ = yield from lock_conversation(handle)
    text = frontier.archive_conversations_sql(endpoint.queue_id)
    yield Statement("acknowledgement.archive_conversation", text, ([handle],))


class RowsToAcknowledge(NamedTuple):
    """Facts about the rows to acknowledge, which decide how to delete them.

    Attributes:
        number: number of rows.
        shared: number of rows that share their stored body with other rows, after one SEND to several conversations.
        ended_handles: handles of conversations to end, one for each last message; a handle may occur twice.
        has_retention: the queue has RETENTION.
    """

    number: int
    shared: int
    ended_handles: list[UUID]
    has_retention: bool

    @property
    def need_only_deletion(self) -> bool:
        """True if acknowledging needs no more than a DELETE of the rows."""
        return not (self.shared or self.ended_handles or self.has_retention)


def find_rows(
    connection: psycopg.Connection[Any], queue_id: int, database_id: int, window_slice: Slice, end_of_stream: str
) -> RowsToAcknowledge:
    """Return the facts about the rows of a slice.

    The last message of a conversation is an EndDialog, an Error, or a message of the type `end_of_stream`.
    """
    ((number, shared, ended_handles),) = execute(
        connection,
        "acknowledgement.find_rows.find_endings",
        frontier.endings_sql(queue_id, window_slice),
        database_id,
        end_of_stream,
    )
    return RowsToAcknowledge(number, shared, ended_handles or [], _has_retention(connection, queue_id))


def acknowledge_rows(
    connection: psycopg.Connection[Any],
    queue_id: int,
    window_slice: Slice,
    rows: RowsToAcknowledge,
    *,
    archive: bool,
    end: ConversationEnder = end_now,
) -> None:
    """Delete the rows of a slice, and end the open conversations whose last message is among them (`find_rows`).

    A second call with the same slice changes nothing. A queue without other rows is truncated, which is much faster
    than a DELETE. If more than `MAX_ENDS_PER_TRANSACTION` conversations end, several transactions end them. The last
    transaction also deletes the rows.

    Args:
        rows: the result of `find_rows`.
        archive: move the rows into the queue's archive, a table that `QueueLease.open` has created.
        end: ends one conversation.
    """
    handles = _find_open(connection, rows.ended_handles)
    while len(handles) > MAX_ENDS_PER_TRANSACTION:
        with connection.transaction():
            first, handles = handles[:MAX_ENDS_PER_TRANSACTION], handles[MAX_ENDS_PER_TRANSACTION:]
            if archive:
                execute(
                    connection,
                    "acknowledgement.acknowledge_rows.archive_conversations",
                    frontier.archive_conversations_sql(queue_id, window_slice),
                    first,
                )
            _end(connection, first, end)
    with connection.transaction():
        retention = _has_retention(connection, queue_id)
        needs_more_than_delete = retention or rows.shared or archive
        if needs_more_than_delete:  # before _end, because END CONVERSATION deletes the messages to keep
            execute(
                connection,
                "acknowledgement.acknowledge_rows.take_rows",
                frontier.take_rows_sql(queue_id, window_slice, retention=retention, archive=archive),
            )
        _end(connection, handles, end)
        if rows.number and not needs_more_than_delete:
            _remove(connection, queue_id, window_slice, rows.number)


def remove_rows(connection: psycopg.Connection[Any], queue_id: int, window_slice: Slice) -> None:
    """Delete the rows of a slice. Call it only if `need_only_deletion` is True."""
    execute(connection, "acknowledgement.remove_rows", frontier.delete_rows_sql(queue_id, window_slice))


def _has_retention(connection: psycopg.Connection[Any], queue_id: int) -> bool:
    option = "select is_retention_enabled from servicebroker.queues where queue_id = $1"
    ((retention,),) = execute(connection, "acknowledgement.has_retention", option, queue_id)
    return bool(retention)


def _end(connection: psycopg.Connection[Any], handles: list[UUID], end: ConversationEnder) -> None:
    for handle in handles:
        try:
            end(connection, handle)
        except BrokerError as refused:
            if refused.number not in _NOTHING_TO_END:
                raise


def _remove(connection: psycopg.Connection[Any], queue_id: int, window_slice: Slice, count: int) -> None:
    if count < MIN_TRUNCATE_ROWS or not _truncate(connection, queue_id, window_slice):
        remove_rows(connection, queue_id, window_slice)


def _truncate(connection: psycopg.Connection[Any], queue_id: int, window_slice: Slice) -> bool:
    """Empty a queue that holds only the slice. Returns False, without any effect, if the queue holds more or is in use.

    This must be the last step of its transaction, and must wait for no lock. Another session may hold the queue and
    wait for a row that this transaction has locked: a deadlock.
    """
    if _is_true(connection, frontier.has_later_sql(queue_id, window_slice)):
        return False
    emptied = False
    queue_in_use_or_not_owned = psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege
    with contextlib.suppress(*queue_in_use_or_not_owned), connection.transaction():
        execute(
            connection,
            "acknowledgement.truncate.lock",
            f"lock table servicebroker.queue_{queue_id} in access exclusive mode nowait",
        )
        execute(connection, "acknowledgement.truncate.enable_scans", "set local enable_seqscan = on")
        if _is_true(connection, frontier.has_others_sql(queue_id, window_slice)):
            raise psycopg.Rollback  # releases the lock
        execute(connection, "acknowledgement.truncate.truncate", f"truncate servicebroker.queue_{queue_id}")
        emptied = True
    return emptied


def _is_true(connection: psycopg.Connection[Any], condition: str) -> bool:
    return bool(execute(connection, "acknowledgement.is_true", f"select {condition}")[0][0])


def _find_open(connection: psycopg.Connection[Any], handles: list[UUID]) -> list[UUID]:
    """Return the handles of conversations that are not closed, without repetitions."""
    if not handles:
        return []
    rows = execute(
        connection,
        "acknowledgement.find_open",
        "select conversation_handle from servicebroker.conversation_endpoints "
        "where conversation_handle = any ($1) and state <> 'CD' order by conversation_handle",
        handles,
    )
    return [handle for (handle,) in rows]
