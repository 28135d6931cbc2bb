"""Deferred SEND and END on received conversations: they are sent together with the transaction's next statement.

Their result is known before they run: the transaction has locked the conversation group, and has read the next sequence
number. Each verb is one statement. If a value in the database is not the cached one, the statement fails with
DIVISION_BY_ZERO. The caller then rolls it back, and runs the verb without deferring it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeAlias
from uuid import UUID

from servicebroker.engine.catalog.catalog import AnswerPath, Catalog, Channel, ReceivedConversation
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.receive import ReceivedState
from servicebroker.engine.conversation.send import known_usage
from servicebroker.engine.conversation.validation import accepts
from servicebroker.model.states import EndpointState
from servicebroker.operations.end import EndConversation
from servicebroker.operations.send import Send
from servicebroker.store.statements import Row, Statement

Done: TypeAlias = Callable[[Row], bool]  # called with the statement's row; returns True if closed endpoints are due


class DeferredVerb(NamedTuple):
    """A deferred verb.

    Attributes:
        statement: the statement of the verb.
        done: the function to call with the statement's row.
        messages, size: the number of messages that the verb sends, and the bytes of their bodies.
    """

    statement: Statement
    done: Done
    messages: int = 0
    size: int = 0


def may_defer(catalog: Catalog, handle: UUID, received_state: ReceivedState) -> bool:
    """Return whether the cache describes the conversation of these messages, so that its verbs should not fail."""
    conversation = catalog.received.get(handle.bytes)
    if conversation is None:
        return False
    if received_state.state != EndpointState.CONVERSING:
        return conversation.has_ended and received_state.state == EndpointState.DISCONNECTED_INBOUND
    path = catalog.answer_paths.get(conversation.kind)
    if path is None:
        return catalog.end_queues.get(conversation.kind) == received_state.delivery_queue_id
    return (path.channel.delivery_queue_id, path.peer_service_id) == (
        received_state.delivery_queue_id,
        received_state.peer_service_id,
    )


def defer_send(
    catalog: Catalog, operation: Send[int], number: int, *, now: datetime, maximum_body: int
) -> DeferredVerb | None:
    """Defer SEND of one message, whose sequence number will be `number`. None if it cannot be deferred.

    Raises:
        BrokerError: what `Send.content` refuses.
    """
    handle = operation.handle
    assert isinstance(handle, UUID)
    conversation = None if operation.is_delayed else catalog.received.get(handle.bytes)
    path = None if conversation is None or conversation.has_ended else _find_path(catalog, handle, conversation)
    if conversation is None or path is None:
        return None
    content, channel = operation.content(maximum_body), path.channel
    usage = known_usage(channel, operation.message_type)
    if usage is None or not accepts(usage, channel.is_initiator, content):
        return None
    statement = Statement(
        "deferred_answers.defer_send",
        enqueue.send_answer(channel.delivery_queue_id, certain=True),
        (
            *(handle, usage.message_type_id, usage.validation, content, now, channel.catalog_version),
            *(*conversation.kind, channel.is_initiator, path.peer_service_id, path.peer_contract_id, number),
        ),
    )

    note = partial(_note_sent, catalog, handle, channel)
    return DeferredVerb(statement, note, 1, len(content or b""))


def defer_end(catalog: Catalog, operation: EndConversation, now: datetime) -> DeferredVerb | None:
    """Defer END CONVERSATION. None if it cannot be deferred."""
    if operation.error or operation.cleanup:
        return None
    conversation = catalog.received.get(operation.handle.bytes)
    peer_queue_id = conversation and _find_peer_queue(catalog, operation.handle, conversation)
    if conversation is None or peer_queue_id is None or peer_queue_id == enqueue.IN_ANOTHER_INSTANCE:
        return None
    sql = enqueue.end_dialog(conversation.queue_id, peer_queue_id, certain=True)
    statement = Statement("deferred_answers.defer_end", sql, (operation.handle, now, None))
    return DeferredVerb(statement, partial(_note_end, catalog, operation.handle))


def _find_path(catalog: Catalog, handle: UUID, conversation: ReceivedConversation) -> AnswerPath | None:
    """Return the cached path to a peer in this instance; None without one, or if the conversation has another peer."""
    path, own = catalog.answer_paths.get(conversation.kind), catalog.channels.get(handle)
    if path is None or not path.channel.delivery_queue_id:
        return None
    return path if own is None or own.delivery_queue_id == path.channel.delivery_queue_id else None


def _find_peer_queue(catalog: Catalog, handle: UUID, conversation: ReceivedConversation) -> int | None:
    """Return the parameter `peer_queue` of `enqueue.end_dialog` from the cache."""
    if conversation.has_ended:
        return enqueue.HAS_ENDED
    if (own := catalog.channels.get(handle)) is not None:
        return own.delivery_queue_id or None
    path = _find_path(catalog, handle, conversation)
    return catalog.end_queues.get(conversation.kind) if path is None else path.channel.delivery_queue_id


def _note_sent(catalog: Catalog, handle: UUID, channel: Channel, row: Row) -> bool:
    priority = row[0]
    catalog.remember_channel(handle, channel._replace(peer_priority=priority))
    catalog.count_enqueued(priority, 1)
    return False


def _note_end(catalog: Catalog, handle: UUID, row: Row) -> bool:
    catalog.forget_ended(handle)
    return bool(row[1])
