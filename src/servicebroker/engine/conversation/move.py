"""MOVE CONVERSATION (docs/reference/rules.md#move-conversation)."""

from __future__ import annotations

from uuid import UUID

from servicebroker.engine.conversation.endpoints import (
    Endpoint,
    find_endpoint,
    lock_group,
    lock_rows,
    remove_empty_groups,
)
from servicebroker.engine.conversation.receive import keep_off_pipelines
from servicebroker.engine.conversation.retention import move_to_group
from servicebroker.model.errors import BrokerError
from servicebroker.model.states import EndpointState, Event, after
from servicebroker.operations.move import MoveConversation
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


def move_conversation(operation: MoveConversation) -> Steps[None]:
    """MOVE CONVERSATION to another group of the same service, with its messages.

    Both groups are locked until the transaction ends. A group that is left empty is removed.

    Raises:
        BrokerError: what `MoveConversation.check` refuses, 8426 unknown handle, 8436 unknown group, 8438 wrong state,
            8439 a group of another service.
        InstanceError: a pipeline reads the queue.
    """
    operation.check()
    handle, group = operation.handle, operation.group
    yield from _lock_groups(handle, group)
    endpoint = yield from find_endpoint(handle)
    yield from lock_rows(endpoint.conversation_id)  # the peer's SENDs read group and queue from its row
    endpoint = yield from find_endpoint(handle)
    after(EndpointState(endpoint.state), Event.MOVE)
    yield from _check_group(endpoint, group)
    if group == endpoint.conversation_group_id:
        return
    yield from keep_off_pipelines(endpoint.queue_id)
    yield SQL("move_conversation", (handle, group, endpoint.peer_handle))
    yield _move_messages(endpoint, group)
    if endpoint.keeps_retained:
        yield move_to_group(endpoint, group)
    yield remove_empty_groups([endpoint.conversation_group_id])


def _lock_groups(handle: UUID, group: UUID) -> Steps[None]:
    """Lock the conversation against other MOVEs, then both groups, in an order common to all sessions."""
    yield from find_endpoint(handle)
    yield SQL("lock_groups.lock", (locks.CONVERSATION_MOVE, handle))
    old_group = (yield from find_endpoint(handle)).conversation_group_id
    rows = yield SQL("lock_groups.in_order", ([old_group, group],))
    for (group_id,) in rows:
        yield lock_group(group_id)


def _check_group(endpoint: Endpoint, group: UUID) -> Steps[None]:
    """Check that the conversation may join the group.

    Locks the rows of both groups, in an order common to all statements. So another session that removes a conversation
    of the old group waits for this transaction, or this transaction sees the removal.

    Raises:
        BrokerError: 8436 unknown group, 8439 a group of another service.
    """
    rows = yield SQL("check_group", ([endpoint.conversation_group_id, group],))
    services: dict[UUID, int] = dict(rows)
    if group not in services:
        raise BrokerError(8436, group)
    if services[group] != endpoint.service_id:
        raise BrokerError(8439, group)


def _move_messages(endpoint: Endpoint, group: UUID) -> Statement:
    """Give the messages a new group, queuing order, stamp and bucket.

    Readers that have passed the old queuing order or stamp would skip the messages otherwise.
    """
    queue = f"servicebroker.queue_{endpoint.queue_id}"
    return Statement(
        "move.move_messages",
        f"with numbered as materialized (select place, nextval('{queue}_order') as arrival from ("
        f"select ctid as place from {queue} where priority = $1 and conversation_group_id = $2 "
        "and conversation_handle = $3 order by rank, queuing_order) found) "
        f"update {queue} set conversation_group_id = $4, queuing_order = arrival, "
        "stamp = greatest(stamp, pg_current_xact_id()), bucket = (uuid_hash($4) & 1023)::smallint "
        "from numbered where ctid = place",
        (endpoint.priority, endpoint.conversation_group_id, endpoint.conversation_handle, group),
    )
