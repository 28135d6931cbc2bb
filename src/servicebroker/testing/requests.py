"""Requests: BEGIN DIALOG and SEND, then RECEIVE and END CONVERSATION; and the handling of late answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from servicebroker.model.errors import BrokerError
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message
from servicebroker.model.poison import SetAsideMessage, advise_replay, describe_dead_letter
from servicebroker.model.requests import LateAnswerTreatment, RequestTimeout, is_request, late_groups
from servicebroker.operations.begin import RepeatedHandle
from servicebroker.operations.end import EndConversation
from servicebroker.operations.request import BeginRequest, Request, WaitForAnswer, answer_in, ends_conversation
from servicebroker.testing.catalog import Broker, Queue
from servicebroker.testing.ending import end_conversation
from servicebroker.testing.memory import Session

if TYPE_CHECKING:
    from servicebroker.testing.instance import Database, Transaction
    from servicebroker.testing.verbs import Verbs

_ENDED_ERRORS = {8426, 8427}  # errors of END CONVERSATION if the handler has ended it already


def request(verbs: Verbs, operation: Request) -> Message:
    """Run `Request`. It waits by moving the clock, as RECEIVE does."""
    return receive_answer(verbs.database, send_request(verbs, operation), operation.timeout)


def send_request(verbs: Verbs, operation: Request) -> UUID:
    """Send a request in a transaction of its own.

    Raises:
        BrokerError: 226 a transaction is open.
    """
    refuse_open_transaction(verbs, "REQUEST")
    with verbs.database.transaction() as transaction:
        return _begin(transaction, operation)


def begin_request(verbs: Verbs, operation: BeginRequest) -> UUID:
    """Run `BeginRequest`."""
    if verbs is not verbs.database:
        return _begin(verbs, operation)
    with verbs.database.transaction() as transaction:
        return _begin(transaction, operation)


def wait_for_answer(verbs: Verbs, operation: WaitForAnswer) -> Message:
    """Run `WaitForAnswer`."""
    refuse_open_transaction(verbs, "WAIT FOR ANSWER")
    operation.check()
    return receive_answer(verbs.database, operation.handle, operation.timeout)


def refuse_open_transaction(verbs: Verbs, statement: str) -> None:
    """Refuse a statement that waits for an answer while a transaction is open.

    Raises:
        BrokerError: 226 a transaction is open.
    """
    if verbs is not verbs.database or verbs.database.instance._memory.transactions:
        raise BrokerError(226, statement, hint="Call it on the database, after the transaction.")


def receive_answer(database: Database, handle: UUID, timeout: float) -> Message:
    """Receive the answer, and end its conversation.

    Raises:
        RequestTimeout: there is no answer; the clock was moved by the timeout.
    """
    with database._verb() as session:
        queue = session.endpoint(handle).service.queue.name
    messages = database.receive(queue, conversation_handle=handle, wait=timeout)
    if ends_conversation(messages):
        database.end_conversation(handle)
    answer = answer_in(handle, messages)
    if answer is None:
        raise RequestTimeout(handle, timeout, _reason(database, handle))
    return answer


def _reason(database: Database, handle: UUID) -> str:
    """Return the reason why there is no answer: a dead letter of either side, or an undelivered message."""
    with database._verb() as session:
        handles = handle, session.endpoint(handle).peer_handle
        found = [letter for letter in session.dead_letters.all() if letter.letter.conversation_handle in handles]
    said = [
        f"{_describe(broker, letter)} {advise_replay(letter.set_aside_id, broker.name)}" for broker, _, letter in found
    ]
    return " ".join(said) or database.get_transmission_status(handle) or "The other side has not answered yet."


def _describe(broker: Broker, letter: SetAsideMessage) -> str:
    return describe_dead_letter(
        letter.set_aside_id,
        f"{broker.name}.{letter.queue}",
        letter.message_sequence_number,
        letter.message_type_name,
        letter.failures,
        letter.error,
    )


def process_late_answers(
    database: Database, queue: Queue, procedure: Callable[[Transaction, list[Message]], Any]
) -> int:
    """Run the procedure for each late answer to handle, and end its conversation."""
    late = late_answers_to_handle(database, queue)
    for handle in late:
        with database.transaction() as transaction:
            messages = transaction.receive(queue.name, conversation_handle=handle)
            check_result(procedure(transaction, messages))
            end_unless_ended(transaction, handle)
    return len(late)


def late_answers_to_handle(database: Database, queue: Queue) -> Sequence[UUID]:
    """Return the requests with a late answer that is left to `process_late_answers`."""
    with database._verb() as session:
        return late_requests(session, queue, session.now, LateAnswerTreatment.HANDLE)


def end_unless_ended(verbs: Verbs, handle: UUID) -> None:
    """End a conversation, unless its handler has ended it."""
    try:
        verbs.end_conversation(handle)
    except BrokerError as refused:
        if refused.number not in _ENDED_ERRORS:
            raise


def drop_late(session: Session, queue: Queue) -> None:
    """End requests with a late answer that shall be dropped."""
    for handle in late_requests(session, queue, session.now, LateAnswerTreatment.DROP):
        end_conversation(session, EndConversation(handle))


def late_requests(session: Session, queue: Queue, now: datetime, late: LateAnswerTreatment) -> Sequence[UUID]:
    """Return the requests with a late answer in the queue, the oldest first."""
    lowest, highest = late_groups(now, late)
    candidates = sorted(
        (message.conversation_group_id, message.conversation_handle) for message in session.messages_in(queue)
    )
    return list(
        dict.fromkeys(handle for group, handle in candidates if lowest <= group <= highest and is_request(group))
    )


def _begin(verbs: Verbs, operation: Request | BeginRequest) -> UUID:
    group = operation.group(verbs.database.instance.clock(), uuid4())
    handle = verbs.run(replace(operation.begin(), related_conversation_group=group))
    if not isinstance(handle, RepeatedHandle):
        verbs.run(operation.send(handle))
    return handle
