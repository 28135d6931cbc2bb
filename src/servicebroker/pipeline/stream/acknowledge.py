"""Acknowledging what the sink has: the rows leave the queue, and the conversations they end are ended."""

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

Ending = Callable[[psycopg.Connection[Any], UUID], None]

WORTH_TRUNCATING = 50_000  # rows: for fewer, a TRUNCATE takes longer than a DELETE
AT_ONCE = 500  # ENDs in a transaction: each holds a group's lock, of which a server keeps some thousands
_NOTHING_TO_END = (8426, 8427)  # unknown handle; already ended by this side


def end_now(connection: psycopg.Connection[Any], handle: UUID) -> None:
    """END CONVERSATION of the engine, at the time of the server."""
    run(connection, end_conversation(EndConversation(handle), now=server_time(connection)))


def archive_conversation(handle: UUID) -> Steps[None]:
    """Move the conversation's messages into the archive of its queue: END CONVERSATION would delete them.

    Raises:
        BrokerError: 8426 unknown handle.
    """
    endpoint, _ = yield from lock_conversation(handle)
    text = frontier.archive_conversations(endpoint.queue_id)
    yield Statement("acknowledge.archive_conversation", text, ([handle],))


class Rows(NamedTuple):
    """What is to be acknowledged.

    Attributes:
        number: how many rows.
        shared: how many of them have bodies that other rows have, too.
        ending: whom they end, each as often as it is said.
        is_retained: the queue keeps its messages.
    """

    number: int
    shared: int
    ending: list[UUID]
    is_retained: bool

    @property
    def are_all(self) -> bool:
        """Nothing but rows is to go."""
        return not (self.shared or self.ending or self.is_retained)


def look(
    connection: psycopg.Connection[Any], queue_id: int, database_id: int, piece: Slice, end_of_stream: str
) -> Rows:
    """What is to be done for the rows of `piece`."""
    ((number, shared, ending),) = execute(
        connection, "acknowledge.look.find_endings", frontier.endings(queue_id, piece), database_id, end_of_stream
    )
    return Rows(number, shared, ending or [], _is_retained(connection, queue_id))


def take_away(
    connection: psycopg.Connection[Any],
    queue_id: int,
    piece: Slice,
    rows: Rows,
    *,
    archive: bool,
    ending: Ending = end_now,
) -> None:
    """Delete the rows of `piece` and end the conversations that they end; `rows` is what was found in it.

    With `archive` the rows go into the queue's archive, which the attachment has made.

    A queue that holds nothing else is truncated, which costs a fraction of deleting its rows.
    A conversation ends when the slice holds one of its messages of the type that ends a stream, EndDialog or Error.
    Whoever is ended already stays as it is, and a second call with the same slice changes nothing. So the deletion may
    follow the first `AT_ONCE` of many conversations, which leave with their rows, in a transaction of its own.
    """
    handles = _open_ones(connection, rows.ending)
    while len(handles) > AT_ONCE:
        with connection.transaction():
            first, handles = handles[:AT_ONCE], handles[AT_ONCE:]
            if archive:
                execute(
                    connection,
                    "acknowledge.take_away.archive_conversations",
                    frontier.archive_conversations(queue_id, piece),
                    first,
                )
            _end(connection, first, ending)
    with connection.transaction():
        retention = _is_retained(connection, queue_id)
        keeps_or_shares = retention or rows.shared or archive
        if keeps_or_shares:  # first: what is kept leaves with the ENDs
            execute(
                connection,
                "acknowledge.take_away.take_rows",
                frontier.take_rows(queue_id, piece, retention=retention, archive=archive),
            )
        _end(connection, handles, ending)
        if rows.number and not keeps_or_shares:
            _remove(connection, queue_id, piece, rows.number)


def remove_rows(connection: psycopg.Connection[Any], queue_id: int, piece: Slice) -> None:
    """Delete the rows of `piece`, which `are_all`."""
    execute(connection, "acknowledge.remove_rows", frontier.delete_rows(queue_id, piece))


def _is_retained(connection: psycopg.Connection[Any], queue_id: int) -> bool:
    option = "select is_retention_enabled from servicebroker.queues where queue_id = $1"
    ((retention,),) = execute(connection, "acknowledge.is_retained", option, queue_id)
    return bool(retention)


def _end(connection: psycopg.Connection[Any], handles: list[UUID], ending: Ending) -> None:
    for handle in handles:
        try:
            ending(connection, handle)
        except BrokerError as refused:
            if refused.number not in _NOTHING_TO_END:
                raise


def _remove(connection: psycopg.Connection[Any], queue_id: int, piece: Slice, count: int) -> None:
    if count < WORTH_TRUNCATING or not _truncate(connection, queue_id, piece):
        remove_rows(connection, queue_id, piece)


def _truncate(connection: psycopg.Connection[Any], queue_id: int, piece: Slice) -> bool:
    """Empty a queue that holds nothing but the slice. False, and nothing done, when it holds more or is in use.

    Comes last in its transaction and waits for nobody: whoever waits for one of our rows meanwhile, and holds the
    queue, would wait for ever.
    """
    if _holds(connection, frontier.has_later(queue_id, piece)):
        return False
    emptied = False
    in_use_or_not_ours = psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege
    with contextlib.suppress(*in_use_or_not_ours), connection.transaction():
        execute(
            connection,
            "acknowledge.truncate.lock",
            f"lock table servicebroker.queue_{queue_id} in access exclusive mode nowait",
        )
        execute(connection, "acknowledge.truncate.enable_scans", "set local enable_seqscan = on")
        if _holds(connection, frontier.has_others(queue_id, piece)):
            raise psycopg.Rollback  # gives the lock back
        execute(connection, "acknowledge.truncate.truncate", f"truncate servicebroker.queue_{queue_id}")
        emptied = True
    return emptied


def _holds(connection: psycopg.Connection[Any], condition: str) -> bool:
    return bool(execute(connection, "acknowledge.holds", f"select {condition}")[0][0])


def _open_ones(connection: psycopg.Connection[Any], handles: list[UUID]) -> list[UUID]:
    if not handles:
        return []
    found = execute(
        connection,
        "acknowledge.open_ones",
        "select conversation_handle from servicebroker.conversation_endpoints "
        "where conversation_handle = any ($1) and state <> 'CD' order by conversation_handle",
        handles,
    )
    return [handle for (handle,) in found]
