"""A procedure whose failures a policy judges: each is undone to a savepoint, counted under the group's lock, answered.

RECEIVE comes first and the savepoint next, in its round trip: a message that is processed costs none more. What a
policy gives back to the queue needs a ROLLBACK of all of it; the session keeps the group's lock until the failure is
counted.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from psycopg.pq import TransactionStatus

from servicebroker.api import tracing
from servicebroker.api.aio.transaction import AsyncTransaction
from servicebroker.engine.conversation.failed_messages import Tracked
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.messages import Message
from servicebroker.model.poison import (
    EndWithError,
    Failure,
    Policy,
    Reply,
    Retry,
    SetAside,
    checked_verdict,
)
from servicebroker.store.aio.concurrency import finish
from servicebroker.store.aio.direct import AsyncDirectConnection, run_command
from servicebroker.store.aio.running import run_alone

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase

Procedure: TypeAlias = Callable[[AsyncTransaction, list[Message]], Awaitable[object]]

_LOG = logging.getLogger("servicebroker")
_UNANSWERABLE = {8426, 8429}  # the conversation is gone, or the other side has ended it, or it has failed
_SAVEPOINT = b"savepoint servicebroker_procedure"
_UNDO = b"rollback to savepoint servicebroker_procedure"


class AsyncGuard:
    """What one reader of a queue knows of failures; it takes messages and runs a procedure on them."""

    def __init__(self, database: AsyncDatabase, queue: str, policy: Policy) -> None:
        self._database = database
        self._engine = database.engine
        self._queue = queue
        self._policy = policy
        self._failing: set[UUID] = set()  # conversations whose message we have counted a failure of
        self._one_by_one = 0  # so many messages are taken singly: one of a batch has failed

    async def take(self, connection: AsyncDirectConnection, top: int | None, procedure: Procedure) -> int:
        """RECEIVE and process: how many messages were dealt with or put back; 0 when there is nothing to take."""
        if self._one_by_one:
            self._one_by_one -= 1
            top = 1
        async with AsyncTransaction(self._database, connection) as transaction:
            messages = await transaction._receive_and_save(self._queue, top, _SAVEPOINT)
            if messages:
                await self._process(transaction, messages, procedure)
        return len(messages)

    async def rest(self, connection: AsyncDirectConnection) -> None:
        """There is nothing to take: forget the failures of messages that others have dealt with."""
        await run_alone(connection, self._engine.sweep_failures(await self._queue_id()))

    async def _process(self, transaction: AsyncTransaction, messages: list[Message], procedure: Procedure) -> None:
        failure: Exception | None = None
        try:
            with tracing.current(transaction._processing):
                await procedure(transaction, messages)
        except Exception as problem:
            if transaction._is_over():
                raise
            failure = problem
            tracing.fail(transaction._processing, problem)
        if failure is None and transaction.connection.info.transaction_status == TransactionStatus.INERROR:
            failure = InstanceError("A statement of the procedure failed, and it went on.")
        if failure is None:
            await self._succeeded(transaction, messages)
            return
        await run_command(transaction.connection, _UNDO)
        await self._failed(transaction, messages, failure)

    async def _succeeded(self, transaction: AsyncTransaction, messages: list[Message]) -> None:
        failed = self._failing.intersection(message.conversation_handle for message in messages)
        if failed and not transaction._is_over():
            await transaction._do(self._engine.forget_failures(list(failed)))
            self._failing -= failed
        transaction._let_commit_travel()

    async def _failed(self, transaction: AsyncTransaction, messages: list[Message], problem: Exception) -> None:
        if len(messages) > 1:  # which one?
            self._one_by_one = len(messages)
            await transaction._put_back(messages[0].conversation_group_id)
            return
        (message,) = messages
        now, text = self._database.instance.clock(), _told(problem)
        before = await transaction._do(self._engine.find_failures(message)) or Tracked(0, now, text)
        known = before._replace(failures=before.failures + 1)
        verdict = checked_verdict(
            self._policy(Failure(message, problem, known.failures, known.first_failed_at, known.first_error, now))
        )
        if isinstance(verdict, Retry):
            self._failing.add(message.conversation_handle)
            queue_id = await self._queue_id()
            await transaction._put_back(
                message.conversation_group_id,
                self._engine.track_failure(queue_id, message, known, text, float(verdict.after)),
            )
            await finish(self.rest(transaction.connection))
            return
        await transaction._do(self._engine.forget_failures([message.conversation_handle]))
        self._failing.discard(message.conversation_handle)
        if isinstance(verdict, EndWithError):
            await transaction.end_conversation(message.conversation_handle, error=(verdict.code, verdict.description))
        elif isinstance(verdict, SetAside):
            trace = _storable("".join(traceback.format_exception(problem)))
            queue_id = await self._queue_id()
            await transaction._do(self._engine.set_aside(queue_id, message, known, text, trace))
        elif isinstance(verdict, Reply):
            await _reply(transaction, message.conversation_handle, verdict)

    async def _queue_id(self) -> int:
        database = self._database
        return (await database._find(self._queue)).queue_id


async def _reply(transaction: AsyncTransaction, handle: UUID, reply: Reply) -> None:
    try:
        await transaction.send(handle, reply.message_type, reply.body)
    except BrokerError as refused:
        if refused.number not in _UNANSWERABLE:
            raise
        _LOG.warning("a message that failed is ignored, since its sender cannot be answered: %s", refused)


def _told(problem: Exception) -> str:
    """An exception on one line."""
    return _storable(" ".join(f"{type(problem).__name__}: {problem}".split()))


def _storable(text: str) -> str:
    """A text that PostgreSQL takes: without NUL and halves of surrogate pairs."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
