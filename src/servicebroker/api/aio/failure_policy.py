"""Failures of a procedure: roll back to a savepoint, count the failure, and ask the retry policy for a verdict.

A *turn* is one call of the procedure, with its messages, behind a savepoint (`turns.py`).

A verdict says what happens to the failed message: `Retry`, `SetAside` (a dead letter), `EndWithError`, `Reply` or
`Ignore`.

RECEIVE and the savepoint after it share a round trip, so a processed message costs no extra one. If the verdict is
`Retry`, the whole transaction is rolled back. The session keeps the group's lock until the failure is counted.

Some failures follow the end of the transaction: COMMIT was refused, for example by a deferred constraint, the procedure
has rolled the transaction back, or its connection was lost. Then the message is in the queue again. The handler
remembers the failure. When it receives the message again, it asks the policy, and does not run the procedure
(decision 66).
A connection may be lost without a fault of its message: only the second loss in a row is the message's failure.
If a process died with a message, its supervisor tells the next process, which counts that as a failure
(`shared/in_progress.py`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import psycopg

from servicebroker.api.aio.transaction import AsyncTransaction
from servicebroker.api.aio.turns import SAVEPOINT, AsyncGroupTurn, AsyncTurn, Procedure, answer_ends, hold, link_turns
from servicebroker.api.shared import in_progress, tracing
from servicebroker.engine.conversation.failed_messages import FailureRecord
from servicebroker.model.errors import BrokerError, InstanceError, ServiceBrokerError
from servicebroker.model.handlers import as_exception
from servicebroker.model.handlers.schedules import is_of_schedule
from servicebroker.model.messages import Message
from servicebroker.model.poison import (
    UNANSWERABLE,
    EndWithError,
    Failure,
    Policy,
    Reply,
    Retry,
    SetAside,
    Verdict,
    checked_verdict,
)
from servicebroker.model.reporting import report
from servicebroker.model.wording import describe_exception, traceback_of
from servicebroker.model.workers import by_default
from servicebroker.operations.receive import Receive
from servicebroker.operations.schedules import TakeTurn
from servicebroker.store.aio.concurrency import StopDetector, finish
from servicebroker.store.aio.direct import AsyncDirectConnection
from servicebroker.store.aio.running import run_alone
from servicebroker.store.server_errors import is_transaction_conflict

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase

_LOG = logging.getLogger("servicebroker")
_DEADLOCK_ERROR = 1205
_SWEEP_INTERVAL_S = 1.0  # the time between two sweeps: under light load a queue is empty after each message
_MAX_PENDING_FAILURES = 1000  # another reader may have processed their messages, so the oldest are dropped

_Key: TypeAlias = tuple[UUID, int, int]  # conversation handle, sequence number, message type id


class AsyncFailureHandler:
    """A reader's failure handler: it receives messages, runs a procedure on them, and asks the policy about failures.

    Args:
        database: the database of the queue.
        queue: the name of the queue.
        policy: returns the verdict for a failure.
        exits: True if KeyboardInterrupt and SystemExit in the main thread stop the reader.
        answers_ends: True if EndDialogs of several groups are answered without calling the procedure.
    """

    def __init__(
        self, database: AsyncDatabase, queue: str, policy: Policy, *, exits: bool, answers_ends: bool = False
    ) -> None:
        self._database = database
        self._engine = database.engine
        self._queue = queue
        self._policy = policy
        self._exits = exits
        self._answers_ends = answers_ends
        self._failing: set[UUID] = set()  # conversations with a message whose failure this reader has counted
        self._singles_left = 0  # messages still to receive one by one, since one of a batch has failed
        self._processed: list[Message] = []  # messages whose COMMIT is not confirmed
        self._pending_failures: dict[_Key, Exception] = {}  # failures after the end of their transaction
        self._last_swept = -math.inf
        self._suspects: set[_Key] = set()  # messages whose connection was lost while they were processed

    async def take(self, connection: AsyncDirectConnection, operation: Receive, procedure: Procedure) -> int:
        """Receive and process messages. Return the number processed or put back; 0 if the queue has none.

        If the connection is closed afterwards, it was lost while processing, and the messages are in the queue again.
        """
        if self._singles_left:
            self._singles_left -= 1
            operation = operation.of_one
        messages: list[Message] = []
        is_processed = False
        try:
            async with AsyncTransaction(self._database, connection) as transaction:
                with _uncounted_if_lost(transaction):
                    if operation.groups > 1:
                        turns = await hold(transaction, operation)
                        self._processed = messages = [message for turn in turns for message in turn.messages]
                        await self._process_groups(transaction, turns, procedure)
                    else:
                        self._processed = messages = await transaction._receive_and_save(operation, SAVEPOINT)
                        if messages and await self._process(AsyncTurn(transaction, messages), procedure):
                            await self._succeeded(transaction, messages)
                    is_processed = bool(messages)
        except (psycopg.Error, ServiceBrokerError) as problem:
            if not await self._is_fault_of_messages(connection, problem, is_processed=is_processed):
                raise
        return len(messages) or len(self._processed)  # none received: COMMIT of the processed ones was refused

    async def commit(self, connection: AsyncDirectConnection) -> None:
        """Send the deferred COMMIT, since no RECEIVE follows."""
        try:
            async with AsyncTransaction(self._database, connection):
                pass
        except (psycopg.Error, ServiceBrokerError) as problem:
            if not await self._is_fault_of_messages(connection, problem, is_processed=False):
                raise

    async def sweep(self, connection: AsyncDirectConnection) -> None:
        """Delete failure records of messages that other readers have processed; at most once a second.

        The caller has found the queue empty.
        """
        now = time.monotonic()
        if now >= self._last_swept + _SWEEP_INTERVAL_S:
            self._last_swept = now
            await self._sweep_now(connection)

    async def _sweep_now(self, connection: AsyncDirectConnection) -> None:
        await run_alone(connection, self._engine.sweep_failures(await self._queue_id()))

    async def _process_groups(
        self, transaction: AsyncTransaction, turns: list[AsyncGroupTurn], procedure: Procedure
    ) -> None:
        """Process the turns in order. Stop if one of them has ended the transaction."""
        succeeded: list[Message] = []
        if self._answers_ends:
            succeeded = await answer_ends(transaction, await self._queue_id(), turns)
        for index, turn in enumerate(link_turns(turns)):
            if not await turn.begin(is_first=index == 0):
                continue
            if await self._process(turn, procedure):
                succeeded += turn.messages
            if transaction._was_put_back or transaction._has_finished():
                return
        if succeeded:
            await self._succeeded(transaction, succeeded)

    async def _process(self, turn: AsyncTurn, procedure: Procedure) -> bool:
        """Run the procedure on the messages of a turn. Return whether it has succeeded."""
        transaction, messages = turn.transaction, turn.messages
        failure = self._take_pending(messages)
        stop = StopDetector(exits=self._exits)
        if failure is None:
            try:
                with in_progress.noted(self._queue, messages):
                    await turn.run(procedure)
            except BaseException as problem:
                if stop.is_stop(problem):
                    transaction._rollback_counts = False  # a stop of the process is not a failure of the message
                    raise
                failure = as_exception(problem)
                tracing.fail(transaction._processing, failure)
        if transaction._has_finished():
            await self._ended_by_procedure(transaction, failure)
            return False
        if failure is None and turn.has_failed_statement:
            failure = InstanceError("A statement of the procedure failed, and the procedure went on.")
        if failure is None:
            return True
        if len(self._processed) > len(messages) and is_transaction_conflict(failure):
            self._singles_left = len(self._processed)
            await AsyncTurn(transaction, messages).put_back()  # of all turns: the error undid the whole transaction
            return False
        await turn.undo()
        await self._failed(turn, failure, stop)
        return False

    async def _ended_by_procedure(self, transaction: AsyncTransaction, failure: Exception | None) -> None:
        """Handle a procedure that has ended its transaction, or lost its connection."""
        if transaction.connection.closed:
            transaction._rollback_counts = False
            raise InstanceError("The database connection was lost while the procedure ran.") from failure
        if await transaction._was_rolled_back():
            transaction._rollback_counts = False
            problem = failure or InstanceError("The procedure has rolled its transaction back.")
            self._remember_failure(self._processed, problem)
        elif failure is not None:
            raise failure

    async def _is_fault_of_messages(
        self, connection: AsyncDirectConnection, problem: Exception, *, is_processed: bool
    ) -> bool:
        """Return whether messages caused an error outside of the procedure; if so, remember it for the policy.

        `is_processed`: the error came at the end of their transaction, after the procedure.
        """
        poison, messages = self._database.instance.poison, self._processed
        if connection.closed:
            poison.forget_commit(connection)
            return bool(messages) and self._note_lost(messages, problem)
        if is_processed or poison.forget_commit(connection):  # this COMMIT, or the deferred one was refused
            self._remember_failure(messages, problem)
            return True
        # caused by another transaction, or by one of the messages
        if len(messages) > 1 and is_transaction_conflict(problem):
            self._singles_left = len(messages)
            return True
        return False

    def _note_lost(self, messages: list[Message], problem: Exception) -> bool:
        """Note the messages of a lost connection. The second loss in a row of one message is its failure."""
        keys = {_key(message) for message in messages}
        if len(keys) == 1 and keys <= self._suspects:
            self._remember_failure(messages, problem)
        else:
            self._singles_left = len(keys)
        self._suspects |= keys
        return True

    def _remember_failure(self, messages: list[Message], problem: Exception) -> None:
        """Remember, for the policy, that the transaction of these messages was rolled back."""
        report(
            _LOG,
            logging.INFO,
            "%s: the transaction of a message was rolled back: %s",
            self._queue,
            describe_exception(problem),
        )
        if len(messages) > 1:  # receive them one by one, to find the message that fails
            self._singles_left = len(messages)
            return
        self._pending_failures[_key(messages[0])] = problem
        while len(self._pending_failures) > _MAX_PENDING_FAILURES:
            del self._pending_failures[next(iter(self._pending_failures))]

    def _take_pending(self, messages: list[Message]) -> Exception | None:
        if (
            self._pending_failures
            and len(messages) == 1
            and (failure := self._pending_failures.pop(_key(messages[0]), None))
        ):
            return failure
        return in_progress.take_fatal(messages)

    async def _succeeded(self, transaction: AsyncTransaction, messages: list[Message]) -> None:
        """Delete the failure records of these messages, and defer COMMIT to the next RECEIVE."""
        failed = self._failing.intersection(message.conversation_handle for message in messages)
        if failed:
            await transaction._do(self._engine.forget_failures(list(failed)))
            self._failing -= failed
        transaction._rollback_counts = False  # if COMMIT is refused, the policy decides, not poison detection
        await transaction._defer_commit()

    async def _failed(self, turn: AsyncTurn, problem: Exception, stop: StopDetector) -> None:
        if len(turn.messages) > 1:  # receive them one by one, to find the message that fails
            self._singles_left = len(turn.messages)
            await turn.put_back()
            return
        (message,), transaction = turn.messages, turn.transaction
        self._suspects.discard(_key(message))
        now, text = self._database.instance.clock(), describe_exception(problem)
        previous = await transaction._do(self._engine.find_failures(message)) or FailureRecord(0, now, text)
        record = previous._replace(failures=previous.failures + 1)
        failure = Failure(message, problem, record.failures, record.first_failed_at, record.first_error, now)
        verdict = self._ask_policy(failure, stop)
        if isinstance(verdict, Retry):
            self._failing.add(message.conversation_handle)
            queue_id = await self._queue_id()
            await turn.put_back(self._engine.track_failure(queue_id, message, record, text, float(verdict.after)))
            if transaction._was_put_back:
                await finish(self._sweep_now(transaction.connection))
            return
        try:
            await self._carry_out(transaction, failure, record, verdict)
        except ServiceBrokerError as refused:
            if transaction._has_finished() or (isinstance(refused, BrokerError) and refused.number == _DEADLOCK_ERROR):
                raise
            text_format = "%s: a message becomes a dead letter, since %s failed: %s"
            report(_LOG, logging.ERROR, text_format, self._queue, verdict, refused)
            await turn.undo()
            await self._carry_out(transaction, failure, record, SetAside())

    def _ask_policy(self, failure: Failure, stop: StopDetector) -> Verdict:
        """Return the verdict of the policy. If the policy raises an exception, use the default policy."""
        try:
            return checked_verdict(self._policy(failure))
        except BaseException as problem:
            if stop.is_stop(problem):
                raise
            text_format = "%s: the policy has failed (%s), so the default policy decides"
            report(_LOG, logging.ERROR, text_format, self._queue, describe_exception(problem), exc_info=problem)
            return by_default(failure)

    async def _carry_out(
        self, transaction: AsyncTransaction, failure: Failure, record: FailureRecord, verdict: Verdict
    ) -> None:
        """Carry out a verdict other than `Retry`, in the transaction that has received the message."""
        message = failure.message
        if is_of_schedule(message):
            firing = await transaction.run(
                TakeTurn.of(message)
            )  # again: the handler's own was rolled back with its work
            message = (firing and firing.given(message)) or message
            if isinstance(verdict, EndWithError | Reply):  # a schedule's conversation has no other side, and continues
                verdict = SetAside()
        await transaction._do(self._engine.forget_failures([message.conversation_handle]))
        self._failing.discard(message.conversation_handle)
        if isinstance(verdict, EndWithError):
            await transaction.end_conversation(message.conversation_handle, error=(verdict.code, verdict.description))
        elif isinstance(verdict, SetAside):
            queue_id, text, trace = (
                await self._queue_id(),
                describe_exception(failure.error),
                traceback_of(failure.error),
            )
            await transaction._do(self._engine.set_aside(queue_id, message, record, text, trace))
        elif isinstance(verdict, Reply):
            await _reply(transaction, message.conversation_handle, verdict)

    async def _queue_id(self) -> int:
        database = self._database
        return (await database._find(self._queue)).queue_id


async def _reply(transaction: AsyncTransaction, handle: UUID, reply: Reply) -> None:
    try:
        await transaction.send(handle, reply.message_type, reply.body)
    except BrokerError as refused:
        if refused.number not in UNANSWERABLE:
            raise
        _LOG.warning("A failed message is ignored, since its sender cannot be answered: %s", refused)


def _key(message: Message) -> _Key:
    """Return a key of the message that is the same when the message is received again."""
    return message.conversation_handle, message.message_sequence_number, message.message_type_id


@contextmanager
def _uncounted_if_lost(transaction: AsyncTransaction) -> Iterator[None]:
    """Exclude a lost connection from poison detection: if it happens twice to a message, the policy decides."""
    try:
        yield
    finally:
        if transaction.connection.closed:
            transaction._rollback_counts = False
