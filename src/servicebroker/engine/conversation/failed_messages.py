"""Messages whose processing fails: how often, until when their group is held, and those that were set aside.

Written under the lock of the message's conversation group. A failure is counted for one message, so what is left of
one that is gone counts for nothing; it is swept away at the next failure of its queue, or when a reader is idle.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, find_usages
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.endpoints import Endpoint, lock_conversation
from servicebroker.model import names
from servicebroker.model.arguments import OMITTED, Body, Omitted, stored_body
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.messages import Message
from servicebroker.model.xml import validation_failure
from servicebroker.store.sql_verbs import ERROR_KEPT
from servicebroker.store.statements import Statement, Steps

_RANKS = {names.DIALOG_TIMER_ID: enqueue.RANK_TIMER, names.ERROR_ID: enqueue.RANK_ERROR}
# a row `f` is of a message that its reader itself puts into the queue: a rollback takes it out until the next RECEIVE
_COMES_AGAIN = (
    "select from servicebroker.conversation_endpoints e where e.conversation_handle = f.conversation_handle and ("
    f"f.message_type_id = {names.DIALOG_TIMER_ID} and e.dialog_timer is not null "
    f"or f.message_type_id = {names.ERROR_ID} and e.state in ('SO', 'SI', 'CO', 'DI'))"
)
_SET_ASIDE = (
    "set_aside_id, queue_name, conversation_handle, conversation_group_id, message_sequence_number, service_name, "
    "service_contract_name, message_type_name, validation::text, message_body, message_enqueue_time, far_service, "
    "far_broker_instance, failures, first_failed_at, set_aside_at, error, traceback"
)


class Tracked(NamedTuple):
    """What is known of a message that has failed before."""

    failures: int
    first_failed_at: datetime
    first_error: str


class SetAsideMessage(NamedTuple):
    """A message that an operator is to look at. Times are UTC; `far_service` and `far_broker_instance` sent it."""

    set_aside_id: int
    queue: str
    conversation_handle: UUID
    conversation_group_id: UUID
    message_sequence_number: int
    service_name: str
    service_contract_name: str
    message_type_name: str
    validation: str
    message_body: bytes | None
    message_enqueue_time: datetime
    far_service: str | None
    far_broker_instance: str | None
    failures: int
    first_failed_at: datetime
    set_aside_at: datetime
    error: str
    traceback: str


def find_failures(message: Message) -> Steps[Tracked | None]:
    """How often this message has failed; None when it has not."""
    rows = yield Statement(
        "failed_messages.find_failures",
        "select failures, first_failed_at, first_error from servicebroker.failed_messages "
        "where conversation_handle = $1 and message_sequence_number = $2 and message_type_id = $3",
        (message.conversation_handle, message.message_sequence_number, message.message_type_id),
    )
    return Tracked(*rows[0]) if rows else None


def track(queue_id: int, message: Message, known: Tracked, error: str, now: datetime, after: float) -> Steps[None]:
    """The message has failed, `known` says how often, and is to be tried again in `after` seconds."""
    until = now + timedelta(seconds=after) if after else None
    yield Statement(
        "failed_messages.track.insert_failed_messages",
        "insert into servicebroker.failed_messages (conversation_handle, queue_id, conversation_group_id, priority, "
        "message_sequence_number, message_type_id, failures, first_failed_at, last_failed_at, first_error, last_error, "
        "held_until) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) "
        "on conflict (conversation_handle) do update set (queue_id, conversation_group_id, priority, "
        "message_sequence_number, message_type_id, failures, first_failed_at, last_failed_at, first_error, last_error, "
        "held_until) = row (excluded.queue_id, excluded.conversation_group_id, excluded.priority, "
        "excluded.message_sequence_number, excluded.message_type_id, excluded.failures, excluded.first_failed_at, "
        "excluded.last_failed_at, excluded.first_error, excluded.last_error, excluded.held_until)",
        (
            message.conversation_handle,
            queue_id,
            message.conversation_group_id,
            message.priority,
            message.message_sequence_number,
            message.message_type_id,
            known.failures,
            known.first_failed_at,
            now,
            known.first_error[:ERROR_KEPT],
            error[:ERROR_KEPT],
            until,
        ),
    )
    if until is not None:
        yield Statement(
            "failed_messages.track.update_queues",
            "update servicebroker.queues set held_until = greatest(held_until, $2) where queue_id = $1",
            (queue_id, until),
        )


def forget(handles: list[UUID]) -> Steps[None]:
    """What has failed on these conversations has been dealt with."""
    yield Statement(
        "failed_messages.forget",
        "delete from servicebroker.failed_messages where conversation_handle = any ($1)",
        (handles,),
    )


def sweep(queue_id: int) -> Steps[None]:
    """Forget messages of the queue that are not in it any more; rows that somebody writes are for the next time."""
    yield Statement(
        "failed_messages.sweep",
        "delete from servicebroker.failed_messages where conversation_handle = any (array("
        f"select conversation_handle from servicebroker.failed_messages f where queue_id = {queue_id} and not exists ("
        f"select from servicebroker.queue_{queue_id} m where m.priority = f.priority "
        "and m.conversation_group_id = f.conversation_group_id and m.conversation_handle = f.conversation_handle "
        "and m.message_sequence_number = f.message_sequence_number) "
        f"and not exists ({_COMES_AGAIN}) for update skip locked))",
    )


def set_aside(
    database_id: int, queue_id: int, message: Message, known: Tracked, error: str, traceback: str, now: datetime
) -> Steps[None]:
    """Keep a message that this transaction has received for an operator."""
    yield Statement(
        "failed_messages.set_aside",
        "insert into servicebroker.set_aside_messages (database_id, queue_id, queue_name, conversation_handle, "
        "conversation_group_id, message_sequence_number, service_name, service_contract_name, message_type_name, "
        "message_type_id, validation, message_body, message_enqueue_time, far_service, far_broker_instance, failures, "
        "first_failed_at, set_aside_at, error, traceback) "
        "select $1, q.queue_id, q.schema_name || '.' || q.name, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, "
        "e.far_service, e.far_broker_instance, $13, $14, $15, $16, $17 from servicebroker.queues q "
        "left join servicebroker.conversation_endpoints e on e.conversation_handle = $3 where q.queue_id = $2",
        (
            database_id,
            queue_id,
            message.conversation_handle,
            message.conversation_group_id,
            message.message_sequence_number,
            message.service_name,
            message.service_contract_name,
            message.message_type_name,
            message.message_type_id,
            message.validation,
            message.message_body,
            message.message_enqueue_time,
            known.failures,
            known.first_failed_at,
            now,
            error[:ERROR_KEPT],
            traceback,
        ),
    )


def set_aside_messages(database_id: int, queue_id: int | None) -> Steps[list[SetAsideMessage]]:
    """What was set aside, oldest first; of one queue when it is given."""
    rows = yield Statement(
        "failed_messages.set_aside_messages",
        f"select {_SET_ASIDE} from servicebroker.set_aside_messages where database_id = $1 "
        "and ($2::int is null or queue_id = $2) order by set_aside_id",
        (database_id, queue_id),
    )
    return [SetAsideMessage(*row) for row in rows]


class Handled(NamedTuple):
    """Which message it was that an operator has replayed or discarded."""

    queue: str
    conversation_handle: UUID
    message_sequence_number: int
    message_type: str


def replay(catalog: Catalog, database_id: int, set_aside_id: int, instead: Body | Omitted = OMITTED) -> Steps[Handled]:
    """Put a message that was set aside into its queue again, behind what is there, with another body if one is given.

    Raises:
        BrokerError: 402 there is none of that number, or its message type refuses the body.
        InstanceError: its conversation has ended.
    """
    rows = yield Statement(
        "failed_messages.replay.find_message",
        "select conversation_handle, message_sequence_number, message_type_id, message_type_name, validation::text, "
        "message_body from servicebroker.set_aside_messages where database_id = $1 and set_aside_id = $2 for update",
        (database_id, set_aside_id),
    )
    if not rows:
        raise _unknown(set_aside_id)
    handle, number, type_id, message_type, validation, body = rows[0]
    try:
        endpoint, _ = yield from lock_conversation(handle)
    except BrokerError as gone:
        raise InstanceError(
            f"The message cannot be replayed: {gone.text} Take its body from the list, or discard it."
        ) from None
    rank = _RANKS.get(type_id, enqueue.RANK_DATA)
    if endpoint.state in ("DO", "CD"):
        raise InstanceError("The message cannot be replayed: its conversation has ended on this side.")
    if not isinstance(instead, Omitted):
        body = stored_body(instead)
        yield from _check(catalog, endpoint, message_type, validation, body)
    yield Statement(
        "failed_messages.replay.enqueue",
        enqueue.replay(endpoint.queue_id),
        (handle, number, type_id, validation, body, rank),
    )
    return (yield from discard(database_id, set_aside_id))


def _check(catalog: Catalog, endpoint: Endpoint, message_type: str, validation: str, body: bytes | None) -> Steps[None]:
    """Refuse a body that the message type does not take, as the receiver would have done."""
    rows = yield Statement(
        "failed_messages.check",
        "select catalog_version from servicebroker.queues where queue_id = $1",
        (endpoint.queue_id,),
    )
    usages = yield from find_usages(catalog, endpoint.database_id, endpoint.service_contract_id, rows[0][0])
    usage = usages.get(message_type)
    failure = validation_failure(validation, body, usage.schemas if usage else None)
    if failure is not None:
        raise BrokerError(402, "the new body", f"refused by the message type: {failure}", "valid")


def discard(database_id: int, set_aside_id: int) -> Steps[Handled]:
    """Remove a message that was set aside.

    Raises:
        BrokerError: 402 there is none of that number.
    """
    rows = yield Statement(
        "failed_messages.discard",
        "delete from servicebroker.set_aside_messages where database_id = $1 and set_aside_id = $2 "
        "returning queue_name, conversation_handle, message_sequence_number, message_type_name",
        (database_id, set_aside_id),
    )
    if not rows:
        raise _unknown(set_aside_id)
    return Handled(*rows[0])


def _unknown(set_aside_id: int) -> BrokerError:
    return BrokerError(402, "the number of a message", f"{set_aside_id}, which none has", "one that was set aside")
