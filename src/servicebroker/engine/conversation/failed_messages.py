"""Failures of messages: their number, the retry time of their group, and dead letters.

Rows are written under the lock of the message's conversation group. A failure counts for one message. Rows of messages
that are gone count for nothing; they are swept at the next failure of the queue, or when a reader is idle.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message
from servicebroker.model.poison import VARIES_IN_ERRORS, DeadLetterGroup, SetAsideMessage
from servicebroker.operations.set_aside import SetAsideMessages
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import MAX_ERROR_CHARACTERS
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


# a row `f` for a message that its reader itself enqueues: after a rollback the queue lacks it until the next RECEIVE
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
ERROR_KIND = "regexp_replace(split_part(error, E'\\n', 1), ${}::text, '*', 'g')"  # as `error_kind` makes it


class FailureRecord(NamedTuple):
    """The failures recorded for a message."""

    failures: int
    first_failed_at: datetime
    first_error: str


def find_failures(message: Message) -> Steps[FailureRecord | None]:
    """Return how often this message has failed; None if never."""
    rows = yield SQL(
        "find_failures", (message.conversation_handle, message.message_sequence_number, message.message_type_id)
    )
    return FailureRecord(*rows[0]) if rows else None


def record_failure(
    queue_id: int, message: Message, known: FailureRecord, error: str, now: datetime, after: float
) -> Steps[None]:
    """Record a failure of the message. `known` holds its failures so far; it is retried after `after` seconds."""
    until = now + timedelta(seconds=after) if after else None
    yield SQL(
        "record_failure.insert_failed_messages",
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
            known.first_error[:MAX_ERROR_CHARACTERS],
            error[:MAX_ERROR_CHARACTERS],
            until,
        ),
    )
    if until is not None:
        yield SQL("record_failure.update_queues", (queue_id, until))


def forget(handles: list[UUID]) -> Steps[None]:
    """Forget the failures on these conversations: their messages were processed."""
    yield SQL("forget", (handles,))


def sweep(queue_id: int) -> Steps[None]:
    """Forget messages that are no longer in the queue. Rows locked by another session are left for the next time."""
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
    database_id: int, queue_id: int, message: Message, known: FailureRecord, error: str, traceback: str, now: datetime
) -> Steps[None]:
    """Store a message that this transaction has received as a dead letter, for an operator."""
    yield SQL(
        "set_aside",
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
            error[:MAX_ERROR_CHARACTERS],
            traceback,
        ),
    )


def find_set_aside(database_id: int, queue_id: int | None, operation: SetAsideMessages) -> Steps[list[SetAsideMessage]]:
    """Return the dead letters of a database that the operation asks for, oldest first. `queue_id`: of one queue."""
    rows = yield Statement(
        "failed_messages.find_set_aside",
        f"select {_SET_ASIDE} from servicebroker.set_aside_messages where database_id = $1 "
        "and ($2::int is null or queue_id = $2) and ($3::text is null or message_type_name = $3) "
        f"and ($4::text is null or position(lower($4) in lower(error)) > 0 or {ERROR_KIND.format(5)} = $4) "
        "and set_aside_id > $6 order by set_aside_id limit $7",
        (
            database_id,
            queue_id,
            operation.message_type,
            operation.error,
            VARIES_IN_ERRORS,
            operation.after,
            operation.limit,
        ),
    )
    return [SetAsideMessage(*row) for row in rows]


def find_groups(database_id: int, queue_id: int | None) -> Steps[list[DeadLetterGroup]]:
    """Return the dead letters of a database, or of one of its queues, grouped by the kind of their error."""
    rows = yield Statement(
        "failed_messages.find_groups",
        f"select queue_name, message_type_name, {ERROR_KIND.format(3)} as kind, count(*), min(set_aside_at), "
        "max(set_aside_at) from servicebroker.set_aside_messages where database_id = $1 "
        "and ($2::int is null or queue_id = $2) group by 1, 2, 3 order by 4 desc, 1, 2, 3",
        (database_id, queue_id, VARIES_IN_ERRORS),
    )
    return [DeadLetterGroup(*row) for row in rows]


class DeadLetterId(NamedTuple):
    """The identity of a dead letter that an operator has replayed or discarded."""

    queue: str
    conversation_handle: UUID
    message_sequence_number: int
    message_type: str


def discard(database_id: int, set_aside_id: int) -> Steps[DeadLetterId]:
    """Remove a dead letter. Returns its identity.

    Raises:
        BrokerError: 402 no dead letter has that number.
    """
    rows = yield SQL("discard", (database_id, set_aside_id))
    if not rows:
        raise unknown_dead_letter(set_aside_id)
    return DeadLetterId(*rows[0])


def unknown_dead_letter(set_aside_id: int) -> BrokerError:
    """Return the error for a number that no dead letter has."""
    return BrokerError(402, "the number of a message", str(set_aside_id), "that of a message that is set aside")
