"""Conversation pools: the conversation of each sending session, and the messages received back on them.

The rules: docs/reference/rules.md#recycled-conversations.

Every transaction locks the session's row first and the conversation second.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


MAX_ERRORS = 1000  # Errors kept for each service, the latest


class PoolAddress(NamedTuple):
    """The address of a pool's conversations: broker database, both services, contract."""

    database_id: int
    from_service: str
    to_service: str
    contract: str
    end_of_stream: str  # the type of the last message on a conversation; the target then ends it


class PoolAnswer(NamedTuple):
    """A message received on a pool's conversation that needs an answer: a DialogTimer, an EndDialog or an Error."""

    answer_id: int
    from_service: str
    conversation_handle: UUID
    message_type_id: int
    message_body: bytes | None


class ConversationError(NamedTuple):
    """An Error that ended a conversation of a pool: code and description from the target, and the time of receipt."""

    conversation_handle: UUID
    code: int
    description: str
    received_at: datetime


def use_conversation(pool: PoolAddress, session: str, messages: int) -> Steps[tuple[UUID | None, int]]:
    """Lock the session's row and add `messages` to its message count.

    Returns its conversation, None if it has none, and the new count.
    """
    rows = yield SQL("use_conversation", (*pool, session, messages))
    return rows[0][0], rows[0][1]


def assign(pool: PoolAddress, session: str, handle: UUID) -> Steps[None]:
    """Assign this conversation to the session, whose row is locked."""
    yield SQL("assign", (*pool[:4], session, handle))


def unassign(handle: UUID, messages: int) -> Steps[None]:
    """Record that the conversation's session needs a new one, because SEND on this one fails. Its row is locked.

    `messages` becomes the message count of the session.
    """
    yield SQL("unassign", (handle, messages))


def release(handle: UUID) -> Steps[str | None]:
    """Detach the conversation from its session, after waiting for a SEND in progress.

    Returns the `end_of_stream` message type, None if no session used the conversation.
    """
    rows = yield SQL("release", (handle,))
    return rows[0][0] if rows else None


def find_conversations(pool: PoolAddress) -> Steps[list[UUID]]:
    """Return the handles of the pool's conversations in use."""
    rows = yield SQL("find_conversations", pool[:4])
    return [handle for (handle,) in rows]


def find_queue(database_id: int, service: str) -> Steps[str]:
    """Return the queue of a service, as schema and name.

    Raises:
        BrokerError: 15151 no such service.
    """
    rows = yield SQL("find_queue", (database_id, names.checked("service", service)))
    if not rows:
        raise BrokerError(15151, "find", "service", service)
    return str(rows[0][0])


def store_answers(database_id: int, messages: list[Message]) -> Steps[None]:
    """Store received messages for `next_answer`. Takes no session's lock: the RECEIVE may hold endpoint locks."""
    yield SQL(
        "store_answers",
        (
            database_id,
            [message.service_name for message in messages],
            [message.conversation_handle for message in messages],
            [message.message_type_id for message in messages],
            [message.message_body for message in messages],
        ),
    )


def next_answer(database_id: int, service: str) -> Steps[PoolAnswer | None]:
    """Lock and return the oldest stored message of the service that no session is answering; None without one."""
    rows = yield SQL("next_answer", (database_id, service))
    return PoolAnswer(*rows[0]) if rows else None


def remove_answer(answer: PoolAnswer) -> Steps[None]:
    """Delete a message that was answered."""
    yield SQL("remove_answer", (answer.answer_id,))


def record_error(database_id: int, service: str, error: ConversationError) -> Steps[None]:
    """Record an Error, and delete all but the last `MAX_ERRORS` of the service."""
    yield SQL("record_error", (database_id, service, *error, MAX_ERRORS))


def find_errors(database_id: int, service: str) -> Steps[list[ConversationError]]:
    """Return the Errors that ended conversations of a service's pools, oldest first."""
    rows = yield SQL("find_errors", (database_id, service))
    return [ConversationError(*row) for row in rows]
