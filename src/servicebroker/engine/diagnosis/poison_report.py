"""The poison report (`servicebroker poison`): queues that are off, failing messages, and messages in a queue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.conversation.failed_messages import is_queued, sweep
from servicebroker.engine.diagnosis.audit import record_action
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT
from servicebroker.model.errors import BrokerError
from servicebroker.store.queue import quoted
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class OffQueue(NamedTuple):
    """A queue with STATUS = OFF: its number of messages (up to COUNT_LIMIT), and the time of the oldest."""

    database: str
    queue: str
    messages: int
    oldest: datetime | None


class FailingMessage(NamedTuple):
    """A message that has failed and will be retried: not before `held_until`. Times are in UTC."""

    database: str
    queue: str
    conversation_handle: UUID
    message_sequence_number: int
    failures: int
    first_failed_at: datetime
    last_failed_at: datetime
    last_error: str
    held_until: datetime | None


class QueuedMessage(NamedTuple):
    """A message in a queue, with columns of the queue's view and the number of its failures."""

    status: int
    conversation_handle: UUID
    message_sequence_number: int
    service_name: str
    message_type_name: str
    validation: str
    message_body: bytes | None
    message_enqueue_time: datetime
    failures: int


def off_queues() -> Steps[list[OffQueue]]:
    """Return the queues that are off for RECEIVE."""
    rows = yield SQL("off_queues.find_queues")
    queues = []
    for database, queue, queue_id in rows:
        counted = yield Statement(
            "poison_report.off_queues.count",
            "select count(*), min(message_enqueue_time) from (select message_enqueue_time "
            f"from servicebroker.queue_{queue_id} order by priority desc, queuing_order limit {COUNT_LIMIT}) q",
        )
        queues.append(OffQueue(database, queue, *counted[0]))
    return queues


def failing_messages() -> Steps[list[FailingMessage]]:
    """Return the messages in queues whose failures were counted by a retry policy, the oldest first."""
    queue_ids = yield from _find_failing_queues()
    if not queue_ids:
        return []
    parts = " union all ".join(
        "select d.name, q.schema_name || '.' || q.name, conversation_handle, message_sequence_number, failures, "
        "first_failed_at, last_failed_at, last_error, f.held_until from servicebroker.failed_messages f "
        "join servicebroker.queues q using (queue_id) join servicebroker.databases d using (database_id) "
        f"where f.queue_id = {queue_id} and {is_queued(queue_id)}"
        for queue_id in queue_ids
    )
    rows = yield Statement("poison_report.failing_messages", f"{parts} order by 6", prepared=False)
    return [FailingMessage(*row) for row in rows]


def _find_failing_queues() -> Steps[list[int]]:
    rows = yield SQL("find_failing_queues")
    return [queue_id for (queue_id,) in rows]


def count_failing() -> Steps[dict[int, int]]:
    """Return the number of messages in each queue whose failures were counted by a retry policy; none for no queue."""
    queue_ids = yield from _find_failing_queues()
    if not queue_ids:
        return {}
    parts = " union all ".join(
        f"select {queue_id}, count(*) from servicebroker.failed_messages f "
        f"where f.queue_id = {queue_id} and {is_queued(queue_id)}"
        for queue_id in queue_ids
    )
    return dict((yield Statement("poison_report.count_failing", parts, prepared=False)))


def queued_messages(queue_id: int, handle: UUID | None, top: int) -> Steps[list[QueuedMessage]]:
    """Return messages of a queue, even if it is off, by priority and queuing order."""
    named = yield SQL("queued_messages.find_view", (queue_id,))
    if not named:
        return []
    schema, view = named[0]
    rows = yield Statement(
        "poison_report.queued_messages.find_messages",
        "select m.status, m.conversation_handle, m.message_sequence_number, m.service_name, m.message_type_name, "
        "m.validation, m.message_body, m.message_enqueue_time, coalesce(f.failures, 0) "
        f"from {quoted(schema)}.{quoted(view)} m left join servicebroker.failed_messages f "
        "on f.conversation_handle = m.conversation_handle and f.message_sequence_number = m.message_sequence_number "
        "and f.message_type_id = m.message_type_id where m.status <> 3 and ($1::uuid is null or "
        "m.conversation_handle = $1) order by m.priority desc, m.queuing_order limit $2",
        (handle, top),
    )
    return [QueuedMessage(*row) for row in rows]


def queue_of_conversation(database_id: int, handle: UUID) -> Steps[str]:
    """Return the queue of a conversation's messages, as schema and name.

    Raises:
        BrokerError: 8426 no such conversation in the database.
    """
    rows = yield SQL("queue_of_conversation", (database_id, handle))
    if not rows:
        raise BrokerError(8426, handle)
    return str(rows[0][0])


def open_conversations(database_id: int, handles: Iterable[UUID]) -> Steps[list[UUID]]:
    """Return those of the handles whose conversation has not ended on this side."""
    return [handle for (handle,) in (yield SQL("open_conversations", (database_id, list(handles))))]


def forget_failures(queue_id: int) -> Steps[int]:
    """Delete the recorded failures of a queue, so that its messages are retried immediately. Returns their number.

    Failures of messages that are no longer in the queue are deleted, and not counted.
    """
    yield from sweep(queue_id)
    rows = yield SQL("forget_failures.delete_failed_messages", (queue_id,))
    queues = yield SQL("forget_failures.update_queues", (queue_id,))
    for database, queue in queues:
        yield from record_action("RETRY FAILED MESSAGES", database, queue, {"messages": len(rows)})
    return len(rows)
