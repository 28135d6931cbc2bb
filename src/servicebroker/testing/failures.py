"""Failures of handlers: roll back, count, and carry out the verdict of the worker's retry policy. Dead letters.

The rules: docs/how-to/poison-messages.md. After the verdict `Retry`, no RECEIVE takes from the group of the message
until the clock has reached the time of the retry.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from servicebroker.model.arguments import Omitted, stored_body
from servicebroker.model.errors import BrokerError, InstanceError, ServiceBrokerError
from servicebroker.model.handlers.schedules import is_of_schedule
from servicebroker.model.messages import Message
from servicebroker.model.poison import (
    UNANSWERABLE,
    DeadLetterGroup,
    EndWithError,
    Failure,
    Policy,
    Reply,
    Retry,
    SetAside,
    SetAsideMessage,
    Verdict,
    checked_verdict,
    error_kind,
)
from servicebroker.model.states import EndpointState
from servicebroker.model.wording import describe_exception, traceback_of
from servicebroker.model.workers import by_default
from servicebroker.operations.dead_letters import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.receive import Receive
from servicebroker.operations.schedules import TakeTurn
from servicebroker.testing import worker_calls
from servicebroker.testing.definitions import find_queue
from servicebroker.testing.memory import DeadLetter, FailureRecord, Session, WouldWait

if TYPE_CHECKING:
    from servicebroker.testing.instance import Database, Transaction
    from servicebroker.testing.verbs import Verbs

_LOG = logging.getLogger("servicebroker")
_OPEN = {EndpointState.STARTED_OUTBOUND, EndpointState.STARTED_INBOUND, EndpointState.CONVERSING}
MAX_TRIES_AT_ONCE = 1000  # the most tries of one message while the clock stands still


class PutBack(Exception):
    """Rolls back a transaction, which returns its messages to the queue. Poison detection does not count it."""


async def take(
    database: Database,
    operation: Receive,
    procedure: Callable[[Any, list[Message]], Any],
    policy: Policy,
    begin: Callable[[], AbstractAsyncContextManager[tuple[Any, Transaction]]],
) -> int:
    """Process the messages of one RECEIVE, and ask the policy about failures. Returns the number of messages.

    Args:
        database: the database of the queue.
        operation: the RECEIVE.
        procedure: awaited with a transaction and the messages of one group.
        policy: returns the verdict for a failure, which is carried out at once.
        begin: begins a transaction. It yields the object for handlers, whose methods may be asynchronous, and the
            blocking object inside it.
    """
    queue = find_queue(database.broker, operation.queue)
    if queue.singles_left:
        queue.singles_left -= 1
        operation = operation.of_one
    messages: list[Message] = []
    try:
        async with begin() as (transaction, inner):
            messages = inner.run(operation)
            for group_of_messages in worker_calls.group_messages(messages):
                try:
                    async with _savepoint(transaction):
                        await procedure(transaction, group_of_messages)
                except WouldWait:
                    raise  # a limit of the double, reported to the test
                except Exception as problem:
                    if len(messages) > 1:  # receive them one by one, to find the message that fails
                        queue.singles_left = len(messages)
                        raise PutBack from problem
                    _count_failure(inner, messages[0], problem, policy)
                else:
                    for message in group_of_messages:
                        inner._session.memory.failures.pop(_key(message), None)
    except PutBack:
        pass
    return len(messages)


@asynccontextmanager
async def _savepoint(transaction: Any) -> AsyncIterator[None]:
    """Run the block in a savepoint of a blocking or an asynchronous transaction."""
    block = transaction.savepoint()
    if hasattr(block, "__aenter__"):
        async with block:
            yield
    else:
        with block:
            yield


def _count_failure(transaction: Transaction, message: Message, problem: Exception, policy: Policy) -> None:
    """Count a failure, and carry out the verdict of the policy.

    Raises:
        PutBack: the verdict is `Retry`.
    """
    memory, now = transaction._session.memory, transaction._session.now
    previous = memory.failures.get(_key(message)) or FailureRecord(0, now, describe_exception(problem))
    record = previous._replace(failures=previous.failures + 1)
    failure = Failure(message, problem, record.failures, record.first_failed_at, record.first_error, now)
    verdict = _judge(policy, failure)
    _LOG.warning("A handler has failed (%s): %s", describe_exception(problem), verdict)
    if isinstance(verdict, Retry):
        memory.failures[_key(message)] = record
        memory.retry_at[message.conversation_group_id] = now + timedelta(seconds=verdict.after)
        if record.failures > MAX_TRIES_AT_ONCE and verdict.after == 0:
            raise InstanceError(
                f"The policy has retried a message {record.failures} times without an advance of the test clock: "
                "return Retry with a pause, SetAside or Ignore."
            )
        raise PutBack
    memory.failures.pop(_key(message), None)
    try:
        with transaction.savepoint():
            _carry_out(transaction, failure, verdict)
    except ServiceBrokerError as refused:
        _LOG.error("A message becomes a dead letter, since %s failed: %s", verdict, refused)
        _store_dead_letter(transaction._session, failure)


def _judge(policy: Policy, failure: Failure) -> Verdict:
    """Return the verdict of the policy. If the policy raises an exception, use the default policy."""
    try:
        return checked_verdict(policy(failure))
    except Exception as problem:
        _LOG.error(
            "the policy has failed (%s), so the default policy decides", describe_exception(problem), exc_info=problem
        )
        return by_default(failure)


def _carry_out(transaction: Transaction, failure: Failure, verdict: Verdict) -> None:
    """Carry out a verdict other than `Retry`."""
    handle = failure.message.conversation_handle
    if is_of_schedule(failure.message):
        firing = transaction.run(TakeTurn.of(failure.message))  # again: the handler's own was rolled back with its work
        failure = replace(failure, message=(firing and firing.given(failure.message)) or failure.message)
        if isinstance(verdict, EndWithError | Reply):  # a schedule's conversation has no other side, and continues
            verdict = SetAside()
    if isinstance(verdict, EndWithError):
        transaction.end_conversation(handle, error=(verdict.code, verdict.description))
    elif isinstance(verdict, SetAside):
        _store_dead_letter(transaction._session, failure)
    elif isinstance(verdict, Reply):
        try:
            transaction.send(handle, verdict.message_type, verdict.body)
        except BrokerError as refused:
            if refused.number not in UNANSWERABLE:
                raise


def _store_dead_letter(session: Session, failure: Failure) -> None:
    """Store a message as a dead letter."""
    message = failure.message
    endpoint = session.endpoint(message.conversation_handle)
    queue = endpoint.service.queue
    ((schema, _),) = [name for name, other in endpoint.broker.queues.items() if other is queue]
    number = next(session.memory.dead_letter_ids)
    letter = SetAsideMessage(
        number,
        f"{schema}.{queue.name}",
        message.conversation_handle,
        message.conversation_group_id,
        message.message_sequence_number,
        message.service_name,
        message.service_contract_name,
        message.message_type_name,
        message.validation,
        message.message_body,
        message.message_enqueue_time,
        endpoint.far_service,
        endpoint.far_broker_instance,
        failure.count,
        failure.first_failed_at,
        failure.now,
        describe_exception(failure.error),
        traceback_of(failure.error),
        endpoint.peer_handle,
    )
    session.dead_letters.put(number, DeadLetter(endpoint.broker, queue, letter))


def _key(message: Message) -> tuple[UUID, int, int]:
    return message.conversation_handle, message.message_sequence_number, message.message_type_id


# ---------------------------------------------------------------- dead letters


def find(verbs: Verbs, operation: SetAsideMessages) -> list[SetAsideMessage]:
    """Run `SetAsideMessages`."""
    operation.check()
    letters = [
        letter
        for letter in _letters(verbs, operation.queue)
        if operation.message_type in (None, letter.message_type_name)
        and (
            operation.error is None
            or operation.error.lower() in letter.error.lower()
            or operation.error == error_kind(letter.error)
        )
        and letter.set_aside_id > operation.after
    ]
    return letters[: operation.limit]


def groups(verbs: Verbs, operation: DeadLetterGroups) -> list[DeadLetterGroup]:
    """Run `DeadLetterGroups`."""
    times: dict[tuple[str, str, str], list[datetime]] = {}
    for letter in _letters(verbs, operation.queue):
        key = letter.queue, letter.message_type_name, error_kind(letter.error)
        times.setdefault(key, []).append(letter.set_aside_at)
    counts = [DeadLetterGroup(*key, len(of_key), min(of_key), max(of_key)) for key, of_key in times.items()]
    return sorted(counts, key=lambda group: (-group.messages, *group[:3]))


def _letters(verbs: Verbs, queue_name: str | None) -> list[SetAsideMessage]:
    """Return the dead letters of the database, or of one of its queues."""
    broker = verbs.database.broker
    queue = None if queue_name is None else find_queue(broker, queue_name)
    with verbs._verb() as session:
        return [row.letter for row in session.dead_letters.all() if row.broker is broker and queue in (None, row.queue)]


def discard(verbs: Verbs, operation: DiscardMessage) -> None:
    """Run `DiscardMessage`."""
    operation.check()
    with verbs._verb() as session:
        _remove_dead_letter(session, verbs, operation.set_aside_id)


def replay(verbs: Verbs, operation: ReplayMessage) -> UUID | None:
    """Run `ReplayMessage`: on the message's conversation, or on a new one if that has ended."""
    operation.check()
    with verbs.database.transaction() as transaction:
        session = transaction._session
        letter = _remove_dead_letter(session, verbs, operation.set_aside_id)
        body = letter.message_body if isinstance(operation.body, Omitted) else stored_body(operation.body)
        endpoint = session.endpoints.get(letter.conversation_handle)
        peer = endpoint and session.peer(endpoint)
        if endpoint and {side.state for side in (endpoint, peer) if side} <= _OPEN:
            kind = endpoint.broker.message_types[letter.message_type_name]
            session.enqueue(endpoint, kind, body, number=letter.message_sequence_number)
            return None
        from_service = operation.from_service or letter.far_service
        if from_service not in verbs.database.broker.services:
            raise InstanceError("The conversation has ended: a new one needs from_service, a service of this database.")
        handle = transaction.begin_dialog(
            from_service, letter.service_name, contract=letter.service_contract_name, encryption=False
        )
        transaction.send(handle, letter.message_type_name, body)
        return handle


def _remove_dead_letter(session: Session, verbs: Verbs, number: int) -> SetAsideMessage:
    dead_letter = session.dead_letters.get(number)
    if dead_letter is None or dead_letter.broker is not verbs.database.broker:
        raise BrokerError(402, "the dead letter's number", str(number), "a number of `servicebroker dead-letters list`")
    session.dead_letters.remove(number)
    return dead_letter.letter
