"""Acknowledging what the sink has: the rows leave the queue, and the conversations they end are ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg

from servicebroker.engine.end import end_conversation
from servicebroker.model.errors import BrokerError
from servicebroker.pipeline.frontier import Slice, delete_rows
from servicebroker.store.running import execute, run

Ending = Callable[[psycopg.Connection[Any], UUID], None]

_NOTHING_TO_END = (8426, 8427)  # unknown handle; already ended by this side


def end_now(connection: psycopg.Connection[Any], handle: UUID) -> None:
    """END CONVERSATION of the engine, at the time of the clock."""
    run(connection, end_conversation(handle, now=datetime.now(UTC)))


def acknowledge(
    connection: psycopg.Connection[Any],
    queue_id: int,
    database_id: int,
    piece: Slice,
    *,
    end_of_stream: str,
    ending: Ending = end_now,
) -> None:
    """Delete the rows of `piece` and end the conversations that they end, in one transaction of its own.

    A conversation ends when the slice holds one of its messages of the type `end_of_stream`, EndDialog or Error.
    Whoever is ended already stays as it is, and a second call with the same slice changes nothing.
    """
    with connection.transaction():
        option = "select is_retention_enabled from servicebroker.queues where queue_id = $1"
        ((retention,),) = execute(connection, option, queue_id)
        over = execute(connection, delete_rows(queue_id, piece, retention), database_id, end_of_stream)
        for handle in _open_ones(connection, [handle for (handle,) in over]):
            try:
                ending(connection, handle)
            except BrokerError as refused:
                if refused.number not in _NOTHING_TO_END:
                    raise


def _open_ones(connection: psycopg.Connection[Any], handles: list[UUID]) -> list[UUID]:
    if not handles:
        return []
    found = execute(
        connection,
        "select conversation_handle from servicebroker.conversation_endpoints "
        "where conversation_handle = any ($1) and state <> 'CD' order by conversation_handle",
        handles,
    )
    return [handle for (handle,) in found]
