"""Batches of requests: under load, many requests share the BEGIN and COMMIT of one transaction.

While a COMMIT of requests is in progress, new requests wait for it, and are sent together with the next COMMIT. If
answers for several callers have arrived, the watcher receives them, and ends their conversations, in one transaction.
A single request never waits for others. With tracing or event handlers, each request has its own transactions.

The rules:

* A refused request must not fail the others. If the transaction of a batch fails, each caller begins its own request,
  and gets its own error.
* A batch never waits for the lock of an answer. The caller of that answer receives it alone.
* Only answers of requests with `late_answers="drop"` are received together. So if a caller was interrupted meanwhile,
  nobody else needs the answer.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import psycopg

from servicebroker.api.shared import tracing
from servicebroker.engine.conversation.requests import AnswerQueue
from servicebroker.engine.diagnosis.totals import RECEIVES
from servicebroker.model.errors import InstanceError, ServiceBrokerError
from servicebroker.model.messages import Message
from servicebroker.operations.begin import RepeatedHandle
from servicebroker.operations.request import BeginRequest, Request, ends_conversation
from servicebroker.store.aio.concurrency import Lock, finish
from servicebroker.store.server_errors import is_transaction_conflict

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase
    from servicebroker.api.aio.instance import AsyncInstance
    from servicebroker.api.aio.requesting import AsyncWaiter, AsyncWatchers
    from servicebroker.api.aio.transaction import AsyncTransaction
    from servicebroker.api.aio.verbs import AsyncVerbs

MAX_BEGUN = 100  # requests in one transaction
MIN_TOGETHER = 3  # answers in one transaction: for fewer, a RECEIVE for each is cheaper

_INTERRUPTED = (
    "The request was sent in one transaction with that of another caller, who was interrupted: check whether it was "
    "sent before you repeat it."
)


class AsyncPendingRequest:
    """A request of a caller.

    Attributes:
        operation: the request.
        group: the conversation group of the request.
        waiter: its caller, after the request was committed.
        problem: the error of the transaction in which it was begun.
        has_left: True if its caller does not wait any more.
    """

    def __init__(self, operation: Request, group: UUID) -> None:
        self.operation, self.group = operation, group
        self.waiter: AsyncWaiter | None = None
        self.problem: Exception | None = None
        self.has_left = False


class TakenAnswers(NamedTuple):
    """Answers received together, by conversation; `problem` if the outcome of their COMMIT is unknown."""

    answers: dict[UUID, list[Message]]
    problem: Exception | None = None


class AsyncRequestSender:
    """Begins the requests of one principal. Requests that arrive during a COMMIT are sent with the next one."""

    def __init__(self, watchers: AsyncWatchers) -> None:
        self._watchers = watchers
        self._lock = Lock()  # held while waiting requests begin
        self._asked: list[AsyncPendingRequest] = []

    async def begin(self, database: AsyncDatabase, asked: AsyncPendingRequest) -> None:
        """Begin a request, in a transaction with others or in one of its own.

        Raises:
            Exception: what BEGIN DIALOG, SEND or COMMIT raises.
        """
        if not _is_seen_alone(database.instance):
            self._asked.append(asked)
            async with self._lock:
                if asked in self._asked:
                    first, self._asked[:MAX_BEGUN] = self._asked[:MAX_BEGUN], []
                    await self._begin_together(database, [request for request in first if not request.has_left])
        if asked.problem is not None:
            raise asked.problem
        if asked.waiter is None:
            await self._begin_all(database, [asked])

    async def _begin_together(self, database: AsyncDatabase, together: list[AsyncPendingRequest]) -> None:
        """Begin requests in one transaction. If one is refused, each caller begins its own request."""
        if len(together) == 1:
            await self._begin_all(database, together)
            return
        is_known = False
        try:
            await finish(self._begin_all(database, together))
            is_known = True
        except (InstanceError, psycopg.Error) as problem:
            is_known = True
            if not is_transaction_conflict(problem):
                for asked in together:
                    asked.problem = problem
        except Exception:
            is_known = True
        finally:
            if not is_known:
                for asked in together:
                    asked.problem = InstanceError(_INTERRUPTED)

    async def _begin_all(self, database: AsyncDatabase, together: list[AsyncPendingRequest]) -> None:
        waiters: list[AsyncWaiter] = []
        is_begun = False
        try:
            async with database.transaction() as transaction:
                for asked in together:
                    handle = await begin(transaction, asked.operation, asked.group)
                    service = asked.operation.from_service
                    waiters.append(await self._watchers.enter(transaction, service, handle))  # no answer comes unseen
            is_begun = True
        finally:
            for asked, waiter in zip(together, waiters, strict=False):
                asked.waiter = waiter if is_begun else None
                if asked.has_left or not is_begun:
                    await waiter.watcher.leave(waiter)


async def begin(verbs: AsyncVerbs, operation: Request | BeginRequest, group: UUID) -> UUID:
    """Begin the conversation of a request, in a new group, and send its message.

    If its idempotency key is known, the request was sent before, and nothing is sent.
    """
    handle = await verbs._begin_in(operation.begin(), group)
    if not isinstance(handle, RepeatedHandle):
        await verbs.run(operation.send(handle))
    return handle


async def take_answers(database: AsyncDatabase, queue: AnswerQueue, handles: list[UUID]) -> TakenAnswers:
    """Receive from several conversations of a queue, and end those that the peer has ended, in one transaction.

    Conversations locked by another session are skipped. If a statement is refused, all are skipped. The callers of
    skipped conversations receive alone, and get their own errors.
    """
    if _is_seen_alone(database.instance):
        return TakenAnswers({})
    answers: dict[UUID, list[Message]] = {}
    is_to_commit = False
    try:
        async with database.transaction() as transaction:
            try:
                answers = await _take(transaction, queue, handles)
            except BaseException:
                transaction._rollback_counts = False  # the rollbacks of the callers, who try again alone, are counted
                raise
            is_to_commit = True
    except (ServiceBrokerError, psycopg.Error) as problem:
        return TakenAnswers(answers, problem) if is_to_commit else TakenAnswers({})
    database.instance.tally.add(RECEIVES, len(answers))
    database.instance.count_received(queue.queue_id, sum(map(len, answers.values())), filtered=True)
    return TakenAnswers(answers)


async def _take(transaction: AsyncTransaction, queue: AnswerQueue, handles: list[UUID]) -> dict[UUID, list[Message]]:
    engine = transaction.engine
    rows, number = await transaction._do(engine.receive_answers(queue.queue_id, handles))
    if not rows:
        return {}
    transaction._note_verb()
    transaction._note_receive(queue.queue_id, number)
    answers: dict[UUID, list[Message]] = defaultdict(list)
    for message in await transaction._named(rows, alone=False):
        answers[message.conversation_handle].append(message)
    ends = [message for own in answers.values() for message in own if message.is_end_dialog]
    ended = set(await transaction._do(engine.answer_ends(queue.queue_id, ends))) if ends else set()
    for handle, own in answers.items():
        if ends_conversation(own) and handle not in ended:
            await transaction.end_conversation(handle)
    return answers


def _is_seen_alone(instance: AsyncInstance) -> bool:
    """Return whether traces or event handlers need each request by itself."""
    return tracing.is_on() or instance.events.watches_conversations
