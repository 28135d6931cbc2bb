"""Failed messages: how often each has failed, when its group may be received again, and the dead letters.

A message fails when its handler raises. A row counts the failures of one message, and is written under the lock of the
message's conversation group. Rows of messages that are no longer in the queue have no effect. They are deleted at the
next failure in the queue, or when a reader is idle (`sweep`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message
from servicebroker.model.poison import VARIES_IN_ERRORS, DeadLetterGroup, SetAsideMessage
from servicebroker.operations.dead_letters import SetAsideMessages
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.sql_verbs import MAX_ERROR_CHARACTERS
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


# Condition for a row `f` of a DialogTimer or lifetime Error. RECEIVE itself inserts these messages. The rollback of a
# failed handler therefore removes them from the queue, and the next RECEIVE inserts them again.
_IS_INSERTED_AGAIN = (
    "select from servicebroker.conversation_endpoints e where e.conversation_handle = f.conversation_handle and ("
    f"f.message_type_id = {names.DIALOG_TIMER_ID} and e.dialog_timer is not null "
    f"or f.message_type_id = {names.ERROR_ID} and e.state in ('SO', 'SI', 'CO', 'DI'))"
)
_COLUMNS = (  # the columns of a `SetAsideMessage`
    "set_aside_id, queue_name, conversation_handle, conversation_group_id, message_sequence_number, service_name, "
    "service_contract_name, message_type_name, validation::text, message_body, message_enqueue_time, far_service, "
    "far_broker_instance, failures, first_failed_at, set_aside_at, error, traceback, "
    "(select p.conversation_handle from servicebroker.conversation_endpoints e "
    "join servicebroker.conversation_endpoints p on p.conversation_handle = e.far_handle "
    "where e.conversation_handle = set_aside_messages.conversation_handle)"
)
# The first line of an error, with its varying parts replaced by *, as `error_kind` of model/poison.py makes it. The
# placeholder is the number of the parameter with the pattern.
ERROR_KIND = "regexp_replace(split_part(error, E'\\n', 1), ${}::text, '*', 'g')"


class FailureRecord(NamedTuple):
    """The failures recorded for a message."""

    failures: int
    first_failed_at: datetime
    first_error: str


def find_failures(message: Message) -> Steps[FailureRecord | None]:
    """Return the record of this message's failures; None if it has never failed."""
    rows = yield SQL(
        "find_failures", (message.conversation_handle, message.message_sequence_number, message.message_type_id)
    )
    return FailureRecord(*rows[0]) if rows else None


def record_failure(
    queue_id: int, message: Message, record: FailureRecord, error: str, now: datetime, after: float
) -> Steps[None]:
    """Record a failure of the message, which may be received again after `after` seconds.

    `record`: the record to store, with this failure counted.
    """
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
            record.failures,
            record.first_failed_at,
            now,
            record.first_error[:MAX_ERROR_CHARACTERS],
            error[:MAX_ERROR_CHARACTERS],
            until,
        ),
    )
    if until is not None:
        yield SQL("record_failure.update_queues", (queue_id, until))


def forget(handles: list[UUID]) -> Steps[None]:
    """Delete the failures recorded for these conversations, whose messages were processed."""
    yield SQL("forget", (handles,))


def sweep(queue_id: int) -> Steps[None]:
    """Delete the failures recorded for messages that are no longer in the queue. Skips rows that are locked."""
    yield Statement(
        "failed_messages.sweep",
        "delete from servicebroker.failed_messages where conversation_handle = any (array("
        f"select conversation_handle from servicebroker.failed_messages f where queue_id = {queue_id} "
        f"and not {is_queued(queue_id)} for update skip locked))",
    )


def is_queued(queue_id: int) -> str:
    """Return the condition for a row `f` of failed_messages in this queue: its message still waits there."""
    return (
        f"(exists (select from servicebroker.queue_{queue_id} m where m.priority = f.priority "
        "and m.conversation_group_id = f.conversation_group_id and m.conversation_handle = f.conversation_handle "
        f"and m.message_sequence_number = f.message_sequence_number) or exists ({_IS_INSERTED_AGAIN}))"
    )


def set_aside(
    database_id: int, queue_id: int, message: Message, record: FailureRecord, error: str, traceback: str, now: datetime
) -> Steps[None]:
    """Dead-letter a message that this transaction has received: store it for an operator."""
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
            record.failures,
            record.first_failed_at,
            now,
            error[:MAX_ERROR_CHARACTERS],
            traceback,
        ),
    )


def find_dead_letters(
    database_id: int, queue_id: int | None, operation: SetAsideMessages
) -> Steps[list[SetAsideMessage]]:
    """Return the dead letters that the operation selects, oldest first: of one queue, or of the whole database."""
    rows = yield Statement(
        "failed_messages.find_dead_letters",
        f"select {_COLUMNS} from servicebroker.set_aside_messages where database_id = $1 "
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
    """Return the dead letters of a queue or of the whole database, grouped by queue, message type and kind of error."""
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
        BrokerError: 402 no dead letter with that number.
    """
    rows = yield SQL("discard", (database_id, set_aside_id))
    if not rows:
        raise unknown_dead_letter(set_aside_id)
    return DeadLetterId(*rows[0])


def unknown_dead_letter(set_aside_id: int) -> BrokerError:
    """Return the error for a number that no dead letter has."""
    return BrokerError(
        402, "the dead letter's number", str(set_aside_id), "a number of `servicebroker dead-letters list`"
    )
