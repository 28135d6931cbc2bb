"""Actions of an operator on a page: each calls a method of the API, and returns its result in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode
from uuid import UUID

import psycopg

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.cli.audited_act import audited_transaction, end_with_error
from servicebroker.cli.commands.trail import record_conversation
from servicebroker.dashboard.pages import chosen_dead_letters
from servicebroker.engine.catalog.catalog import find_queue_uncached
from servicebroker.engine.diagnosis import dashboard_queries
from servicebroker.engine.diagnosis.poison_report import forget_failures
from servicebroker.engine.diagnosis.session_end import end_session
from servicebroker.model.errors import BrokerError, InstanceError, ServiceBrokerError, Unreachable
from servicebroker.model.wording import counted, short_repr
from servicebroker.operations.queues import Activation
from servicebroker.store.running import in_transaction, run

Fields = Mapping[str, str]
MAX_ERRORS_SHOWN = 5  # the most errors shown after an action on many messages


class Action(NamedTuple):
    """An action in the broker database that the form names. `page_after` returns the page to show then."""

    run: Callable[[Database, Fields], str]
    page_after: Callable[[Fields], str]


class InstanceAction(NamedTuple):
    """An action on the instance. `page_after` returns the page to show then."""

    run: Callable[[Instance, Fields], str]
    page_after: Callable[[Fields], str]


def _switch(database: Database, fields: Fields) -> str:
    is_on = fields["status"] == "on"
    database.alter_queue(fields["queue"], status=is_on)
    return f"The queue {fields['queue']} is {'ON' if is_on else 'OFF'}."


def _retry(database: Database, fields: Fields) -> str:
    queue = database._do(find_queue_uncached("alter", database.database_id, fields["queue"]))
    database.alter_queue(fields["queue"], status=True)
    count = database._run_in_transaction(forget_failures(queue.queue_id))
    retried = counted(count, "message that had failed is", "messages that had failed are")
    return f"The queue {fields['queue']} is ON; {retried} tried again."


def _end(database: Database, fields: Fields) -> str:
    handle = _uuid(fields, "handle")
    with audited_transaction(database, "END CONVERSATION", handle) as transaction:
        transaction.end_conversation(handle)
    return "The conversation has ended on this side."


def _end_with_error(database: Database, fields: Fields) -> str:
    handle, code, text = _uuid(fields, "handle"), _number(fields, "code"), fields["text"]
    end_with_error(database, handle, code, text)
    return f"The conversation has ended with the error {code}."


def _clean_up(database: Database, fields: Fields) -> str:
    handle = _uuid(fields, "handle")
    with audited_transaction(database, "END CONVERSATION WITH CLEANUP", handle) as transaction:
        transaction.end_conversation(handle, cleanup=True)
    return "This side of the conversation is removed, and the other side is not informed."


def _cancel_delayed(database: Database, fields: Fields) -> str:
    handle = _uuid(fields, "handle")
    with audited_transaction(database, "CANCEL DELAYED MESSAGES", handle) as transaction:
        count = transaction.cancel_delayed(handle)
    return counted(count, "delayed message is cancelled.", "delayed messages are cancelled.")


def _move(database: Database, fields: Fields) -> str:
    handle, group = _uuid(fields, "handle"), _uuid(fields, "group")
    with audited_transaction(database, "MOVE CONVERSATION", handle, group=group) as transaction:
        transaction.move_conversation(handle, group)
    return f"The conversation is in the group {fields['group']}."


def _set_timer(database: Database, fields: Fields) -> str:
    seconds = _number(fields, "seconds")
    handle = _uuid(fields, "handle")
    with audited_transaction(database, "BEGIN CONVERSATION TIMER", handle, seconds=seconds) as transaction:
        transaction.begin_conversation_timer(handle, seconds)
    return f"A DialogTimer message arrives in {counted(seconds, 'second')}."


def _restart_activation(database: Database, fields: Fields) -> str:
    """Switch activation off and on; its procedure, maximum of readers and user stay the same."""
    for status in (False, True):
        database.alter_queue(fields["queue"], activation=Activation(status=status))
    return f"The activation of {fields['queue']} has started again."


def _enable_broker(database: Database, fields: Fields) -> str:
    database.alter(enable_broker=True)
    return f"The broker of {database.name} is enabled."


def _record_trail(database: Database, fields: Fields) -> str:
    handle = _uuid(fields, "handle")
    record_conversation(database.instance, handle)
    return f"Events of the conversation {handle} are recorded from now on."


def _set_activation(database: Database, fields: Fields) -> str:
    activation = Activation(
        fields["procedure"].strip() or None,
        _number(fields, "readers"),
        fields["execute_as"].strip() or None,
        fields["status"] == "on",
    )
    database.alter_queue(fields["queue"], activation=activation)
    return f"The activation of {fields['queue']} is {'ON' if activation.status else 'OFF'}."


def _replay(database: Database, fields: Fields) -> str:
    return _replayed(fields, database.replay_message(_number(fields, "number")))


def _replay_edited(database: Database, fields: Fields) -> str:
    body = fields["body"].replace("\r\n", "\n")  # as browsers send it
    return _replayed(fields, database.replay_message(_number(fields, "number"), body=body), " with another body")


def _replayed(fields: Fields, new_conversation: UUID | None, suffix: str = "") -> str:
    conversation = "" if new_conversation is None else f", on the new conversation {new_conversation}"
    return f"Message {fields['number']} is in its queue again{suffix}{conversation}."


def _replay_chosen(database: Database, fields: Fields) -> str:
    return _for_each_chosen(
        database,
        fields,
        database.replay_message,
        ("message is in its queue again.", "messages are in their queues again."),
    )


def _discard_chosen(database: Database, fields: Fields) -> str:
    return _for_each_chosen(
        database, fields, database.discard_message, ("message is discarded.", "messages are discarded.")
    )


def _for_each_chosen(
    database: Database, fields: Fields, action: Callable[[int], object], result: tuple[str, str]
) -> str:
    """Run an action on each dead letter that matches the form's filter; `result` in singular and plural follows.

    Dead letters that are newer than the page (`newest`) are left out. Each action is a transaction of its own, so a
    failure does not stop the others. A lost connection does.
    """
    chosen, newest = chosen_dead_letters(fields), _number(fields, "newest")
    with database.instance.connection() as connection:
        numbers = run(connection, dashboard_queries.dead_letter_numbers(chosen, newest))
    count, errors = 0, []
    for number in numbers:
        try:
            action(number)
        except (ServiceBrokerError, psycopg.Error) as problem:
            errors.append(f"Message {number}: {problem}")
            if isinstance(problem, Unreachable) or (
                isinstance(problem, psycopg.OperationalError) and problem.sqlstate is None  # the server did not answer
            ):
                break
        else:
            count += 1
    summary = counted(count, *result)
    more = " There are more: press again." if len(numbers) == dashboard_queries.MAX_BULK else ""
    return " ".join([summary + more, *errors[:MAX_ERRORS_SHOWN], *(["..."] if len(errors) > MAX_ERRORS_SHOWN else [])])


def _discard(database: Database, fields: Fields) -> str:
    database.discard_message(_number(fields, "number"))
    return f"Message {fields['number']} is discarded."


def _end_session(instance: Instance, fields: Fields) -> str:
    pid = _number(fields, "pid")
    with instance.connection() as connection:
        if not in_transaction(connection, end_session(pid)):
            raise InstanceError(f"The session {pid} has ended already.")
    return f"The session {pid} has ended."


def _queue(fields: Fields) -> str:
    return f"queue?{urlencode({'database': fields['database'], 'queue': fields['queue']})}"


def _conversation(fields: Fields) -> str:
    return f"conversation?{urlencode({'handle': fields['handle']})}"


def _dead_letters(fields: Fields) -> str:
    chosen = {name: value for name, value in chosen_dead_letters(fields)._asdict().items() if value}
    is_bulk = "newest" in fields
    return f"dead-letters?{urlencode(chosen)}" if is_bulk and chosen else "dead-letters"


def _conversations(fields: Fields) -> str:
    return "conversations"


def _queues(fields: Fields) -> str:
    return "queues"


ACTIONS: dict[str, Action | InstanceAction] = {
    "switch": Action(_switch, _queue),
    "retry": Action(_retry, _queue),
    "end": Action(_end, _conversation),
    "end-with-error": Action(_end_with_error, _conversation),
    "clean-up": Action(_clean_up, _conversations),
    "cancel-delayed": Action(_cancel_delayed, _conversation),
    "move": Action(_move, _conversation),
    "timer": Action(_set_timer, _conversation),
    "activation": Action(_set_activation, _queue),
    "restart-activation": Action(_restart_activation, _queue),
    "enable-broker": Action(_enable_broker, _queues),
    "end-session": InstanceAction(_end_session, _queues),
    "record-trail": Action(_record_trail, _conversation),
    "replay": Action(_replay, _dead_letters),
    "replay-edited": Action(_replay_edited, _dead_letters),
    "replay-chosen": Action(_replay_chosen, _dead_letters),
    "discard-chosen": Action(_discard_chosen, _dead_letters),
    "discard": Action(_discard, _dead_letters),
}


def _uuid(fields: Fields, name: str) -> UUID:
    try:
        return UUID(fields[name].strip())
    except ValueError:
        raise BrokerError(402, name, short_repr(fields[name]), "a UUID") from None


def _number(fields: Fields, name: str) -> int:
    return _whole_number(fields[name], name)


def _whole_number(text: str, name: str) -> int:
    if not re.fullmatch(r"[-+]?[0-9]{1,18}", text.strip()):
        beginning = repr(text if len(text) <= 40 else text[:40] + "…")
        raise BrokerError(402, name, beginning, "a number of at most 18 digits")
    return int(text)
