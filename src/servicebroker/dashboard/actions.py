"""Actions of an operator on a page: each calls a method of the API, and returns its result in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.cli.audited_act import audited
from servicebroker.engine.catalog.catalog import find_queue_now
from servicebroker.engine.diagnosis.poison_report import forget_failures
from servicebroker.model.errors import BrokerError, ServiceBrokerError
from servicebroker.model.wording import counted, shown
from servicebroker.operations.queues import Activation

Fields = Mapping[str, str]


class Action(NamedTuple):
    """An action, and the page of the instance to show afterwards."""

    run: Callable[[Database, Fields], str]
    page_after: Callable[[Fields], str]


def _switch(database: Database, fields: Fields) -> str:
    is_on = fields["status"] == "on"
    database.alter_queue(fields["queue"], status=is_on)
    return f"The queue {fields['queue']} is {'ON' if is_on else 'OFF'}."


def _retry(database: Database, fields: Fields) -> str:
    queue = database._do(find_queue_now("alter", database.database_id, fields["queue"]))
    database.alter_queue(fields["queue"], status=True)
    again = counted(
        database._alone(forget_failures(queue.queue_id)), "message that had failed is", "messages that had failed are"
    )
    return f"The queue {fields['queue']} is ON; {again} tried again."


def _end(database: Database, fields: Fields) -> str:
    handle = _identifier(fields, "handle")
    with audited(database, "END CONVERSATION", handle) as transaction:
        transaction.end_conversation(handle)
    return "The conversation has ended on this side."


def _end_with_error(database: Database, fields: Fields) -> str:
    handle, code, text = _identifier(fields, "handle"), _number(fields, "code"), fields["text"]
    with audited(database, "END CONVERSATION WITH ERROR", handle, code=code, text=text) as transaction:
        transaction.end_conversation(handle, error=(code, text))
    return f"The conversation has ended with the error {code}."


def _clean_up(database: Database, fields: Fields) -> str:
    handle = _identifier(fields, "handle")
    with audited(database, "END CONVERSATION WITH CLEANUP", handle) as transaction:
        transaction.end_conversation(handle, cleanup=True)
    return "This side of the conversation is removed, and the other side is not informed."


def _move(database: Database, fields: Fields) -> str:
    handle, group = _identifier(fields, "handle"), _identifier(fields, "group")
    with audited(database, "MOVE CONVERSATION", handle, group=group) as transaction:
        transaction.move_conversation(handle, group)
    return f"The conversation is in the group {fields['group']}."


def _set_timer(database: Database, fields: Fields) -> str:
    seconds = _number(fields, "seconds")
    handle = _identifier(fields, "handle")
    with audited(database, "BEGIN CONVERSATION TIMER", handle, seconds=seconds) as transaction:
        transaction.begin_conversation_timer(handle, seconds)
    return f"A DialogTimer message comes in {counted(seconds, 'second')}."


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


def _replay_all(database: Database, fields: Fields) -> str:
    errors, numbers = [], [_whole_number(number, "numbers") for number in fields["numbers"].split()]
    for number in numbers:
        try:
            database.replay_message(number)
        except ServiceBrokerError as problem:
            errors.append(f"Message {number}: {problem}")
    replayed = len(numbers) - len(errors)
    summary = counted(replayed, "message is in its queue again.", "messages are in their queues again.")
    return " ".join([summary, *errors])


def _discard(database: Database, fields: Fields) -> str:
    database.discard_message(_number(fields, "number"))
    return f"Message {fields['number']} is discarded."


def _queue(fields: Fields) -> str:
    return f"queue?{urlencode({'database': fields['database'], 'queue': fields['queue']})}"


def _conversation(fields: Fields) -> str:
    return f"conversation?{urlencode({'handle': fields['handle']})}"


def _poison(fields: Fields) -> str:
    return "poison"


ACTIONS = {
    "switch": Action(_switch, _queue),
    "retry": Action(_retry, _queue),
    "end": Action(_end, _conversation),
    "end-with-error": Action(_end_with_error, _conversation),
    "clean-up": Action(_clean_up, _conversation),
    "move": Action(_move, _conversation),
    "timer": Action(_set_timer, _conversation),
    "activation": Action(_set_activation, _queue),
    "replay": Action(_replay, _poison),
    "replay-edited": Action(_replay_edited, _poison),
    "replay-all": Action(_replay_all, _poison),
    "discard": Action(_discard, _poison),
}


def _identifier(fields: Fields, name: str) -> UUID:
    try:
        return UUID(fields[name].strip())
    except ValueError:
        raise BrokerError(402, name, shown(fields[name]), "an identifier") from None


def _number(fields: Fields, name: str) -> int:
    return _whole_number(fields[name], name)


def _whole_number(text: str, name: str) -> int:
    if not re.fullmatch(r"[-+]?[0-9]{1,18}", text.strip()):
        shown = repr(text if len(text) <= 40 else text[:40] + "…")
        raise BrokerError(402, name, shown, "a number of at most 18 digits")
    return int(text)
