"""Requests: send a message to another service and wait for its answer; many requests can share one queue.

A request is two transactions: BEGIN DIALOG and SEND, later RECEIVE and END CONVERSATION for the answer. Between them
it holds no connection. One watcher of the process waits for each queue, with the notifier. When messages arrive, the
watcher queries which requests they answer, and wakes only the callers of these. Under load, requests share both
transactions (request_batches.py).

The conversation group of a request encodes the time until which the answer belongs to the caller (model/requests.py).
After that time the answer is late. So late answers are recognised even if the caller's process has died.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID, uuid4

import psycopg

from servicebroker.api.aio.deferred_answers import AsyncDeferredAnswers, DeferredVerbFailed, may_defer
from servicebroker.api.aio.request_batches import (
    MIN_TOGETHER,
    AsyncPendingRequest,
    AsyncRequestSender,
    begin,
    take_answers,
)
from servicebroker.api.shared import tracing
from servicebroker.engine.conversation.requests import AnswerQueue
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.model.errors import BrokerError, ServiceBrokerError, Unreachable
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message
from servicebroker.model.reporting import report
from servicebroker.model.requests import RequestTimeout
from servicebroker.model.security.permissions import User
from servicebroker.operations.operation import Operation
from servicebroker.operations.request import BeginRequest, Request, WaitForAnswer, answer_in, ends_conversation
from servicebroker.store.aio.concurrency import Background, Event, Lock, finish

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase
    from servicebroker.api.aio.verbs import AsyncVerbs

Procedure: TypeAlias = Callable[[Any, list[Message]], Awaitable[object]]  # called with (transaction, messages)

LINGER_S = 10.0  # lifetime of a watcher without requests: registering it again costs two commits
_RETRY_PAUSE_S = 1.0  # the pause after a failure of the watcher
_STOP_TIMEOUT_S = 2.0
_UNKNOWN_CONVERSATION_ERROR = 8426
_SERVICE_CHANGED_ERROR = 8468
_ENDED_ERRORS = {8426, 8427}  # errors of END CONVERSATION if the handler has ended the conversation

_LOG = logging.getLogger("servicebroker")


class AsyncWaiter:
    """A caller that waits for the answer on a conversation.

    Attributes:
        handle: the conversation.
        ready: set when there may be a message to receive.
        watcher: the watcher that wakes the caller.
        taking: set at the end of the watcher's transaction that receives the answer; None without such a transaction.
        messages: the messages that the watcher has received.
        problem: the error of a COMMIT of the watcher whose outcome is unknown.
    """

    def __init__(self, handle: UUID, watcher: AsyncWatcher) -> None:
        self.handle, self.watcher = handle, watcher
        self.ready = Event()
        self.taking: Event | None = None
        self.messages: list[Message] = []
        self.problem: Exception | None = None

    async def rejoin(self, watcher: AsyncWatcher) -> None:
        """Change to another watcher."""
        await self.watcher.leave(self)
        self.watcher = watcher
        await watcher.enter(self)


async def request(verbs: AsyncVerbs, operation: Request) -> Message:
    """Run `Request`: send, wait for the answer, and end the conversation."""
    verbs._refuse_transaction("REQUEST")
    database = verbs.database
    database.instance.check_caller()
    asked = AsyncPendingRequest(operation, operation.group(database.instance.clock(), uuid4()))
    deadline = time.monotonic() + operation.timeout
    try:
        await database.instance.watchers.begin(database, asked)
        assert asked.waiter is not None
        return await _wait(database, asked.waiter, operation.timeout, deadline)
    finally:
        asked.has_left = True
        if asked.waiter is not None:
            await finish(asked.waiter.watcher.leave(asked.waiter))


async def begin_request(verbs: AsyncVerbs, operation: BeginRequest) -> UUID:
    """Run `BeginRequest`, in the caller's transaction if there is one."""
    group = operation.group(verbs.instance.clock(), uuid4())
    if verbs is not verbs.database:
        return await begin(verbs, operation, group)
    async with verbs.database.transaction() as transaction:
        return await begin(transaction, operation, group)


async def wait_for_answer(verbs: AsyncVerbs, operation: WaitForAnswer) -> Message:
    """Run `WaitForAnswer`."""
    verbs._refuse_transaction("WAIT FOR ANSWER")
    operation.check()
    database = verbs.database
    database.instance.check_caller()
    deadline = time.monotonic() + operation.timeout
    queue = await database._do(database.engine.find_answer_queue(operation.handle))
    watcher = await database.instance.watchers.of_queue(database, queue)
    waiter = AsyncWaiter(operation.handle, watcher)
    try:
        await watcher.enter(waiter)
        waiter.ready.set()  # the answer may have arrived before
        return await _wait(database, waiter, operation.timeout, deadline)
    finally:
        await finish(waiter.watcher.leave(waiter))


async def process_late_answers(database: AsyncDatabase, queue: str, procedure: Procedure) -> int:
    """Implement `Database.process_late_answers`."""
    queue_entry = await database._find(queue)
    processed = 0
    while True:
        late = await database._do(database.engine.find_late(queue_entry.queue_id))
        taken = 0
        for late_request in late:
            taken += await _handle_late(database, queue, late_request.handle, procedure)
        processed += taken
        if not taken:
            return processed


async def _wait(database: AsyncDatabase, waiter: AsyncWaiter, timeout: float, deadline: float) -> Message:
    """Sleep until the watcher wakes this caller, and take the answer.

    Raises:
        RequestTimeout: there is no answer at the deadline.
    """
    handle = waiter.handle
    while True:
        await waiter.ready.wait(max(0.0, deadline - time.monotonic()))
        waiter.ready.clear()
        is_last = time.monotonic() >= deadline
        messages: list[Message] | None = await waiter.watcher.taken(waiter)
        try:
            messages = messages or await database._none_if_unreachable(partial(_take, database, waiter), deadline)
        except Unreachable as problem:
            raise RequestTimeout(handle, timeout, str(problem)) from problem
        answer = answer_in(handle, messages or [])
        if answer is not None:
            return answer
        if is_last:
            raise RequestTimeout(handle, timeout, await _reason(database, handle))
        if waiter.watcher.is_running:
            await waiter.watcher.watch(waiter)
        else:
            await _rejoin(database, waiter, deadline)


async def _rejoin(database: AsyncDatabase, waiter: AsyncWaiter, deadline: float) -> None:
    """Enter the watcher of the conversation's current queue, since the previous watcher has failed or stopped."""

    def find() -> Awaitable[AnswerQueue]:
        return database._do(database.engine.find_answer_queue(waiter.handle))

    queue = await database._none_if_unreachable(find, deadline) or waiter.watcher.queue
    await waiter.rejoin(await database.instance.watchers.of_queue(database, queue))


async def _take(database: AsyncDatabase, waiter: AsyncWaiter) -> list[Message]:
    """Receive the messages of the conversation, from the current queue of its service."""
    queue = waiter.watcher.queue
    while True:
        try:
            return await finish(_receive(database, queue.name, waiter.handle))
        except BrokerError as refused:
            if refused.number != _UNKNOWN_CONVERSATION_ERROR:
                raise
            answer_queue: AnswerQueue = await database._do(database.engine.find_answer_queue(waiter.handle))
            if answer_queue == queue:
                raise
            queue = answer_queue


async def _receive(database: AsyncDatabase, queue: str, handle: UUID) -> list[Message]:
    """Receive the messages and end the conversation, in one transaction. END is sent with COMMIT if possible."""
    try:
        return await _receive_and_end(database, queue, handle, defers=True)
    except DeferredVerbFailed:
        return await _receive_and_end(database, queue, handle, defers=False)


async def _receive_and_end(database: AsyncDatabase, queue: str, handle: UUID, *, defers: bool) -> list[Message]:
    async with database.transaction() as transaction:
        messages = await transaction.receive(queue, conversation_handle=handle)
        if ends_conversation(messages):
            if defers and may_defer(transaction) and not any(message.is_error for message in messages):
                transaction._deferred_answers = AsyncDeferredAnswers(transaction, handle)
            await transaction.end_conversation(handle)
    if transaction._has_closed_endpoints:
        with contextlib.suppress(ServiceBrokerError, psycopg.Error):  # the messages are received; others remove them
            await database._do(database.engine.remove_closed())
    return messages


async def _handle_late(database: AsyncDatabase, queue: str, handle: UUID, procedure: Procedure) -> bool:
    """Give a late answer to the procedure and end its conversation. Return whether there was one."""
    async with database.transaction() as transaction:
        try:
            messages = await transaction.receive(queue, conversation_handle=handle)
        except BrokerError as refused:
            if refused.number != _UNKNOWN_CONVERSATION_ERROR:
                raise
            return False  # another process has taken it
        if not messages:
            return False
        with tracing.current(transaction._processing):
            check_result(await procedure(transaction, messages))
        try:
            await transaction.end_conversation(handle)
        except BrokerError as refused:
            if refused.number not in _ENDED_ERRORS:
                raise
    return True


async def _reason(database: AsyncDatabase, handle: UUID) -> str:
    """Return the reason why there is no answer, as `servicebroker doctor` reports it."""
    from servicebroker.engine.diagnosis.conversation_findings import say_why_unanswered
    from servicebroker.engine.diagnosis.dashboard_queries import dead_letters_of_both_sides
    from servicebroker.engine.diagnosis.facts import gather_conversation  # which few requests need
    from servicebroker.engine.diagnosis.own_facts import gather_own_conversation

    instance = database.instance
    is_restricted = instance.engine is RestrictedVerbs  # such a role may not see the other side
    gather = gather_own_conversation if is_restricted else gather_conversation
    try:
        facts = await database._do(gather(database.database_id, handle, instance.clock()))
        letters = [] if is_restricted else await database._do(dead_letters_of_both_sides(handle))
        return say_why_unanswered(facts, letters)
    except (ServiceBrokerError, psycopg.Error) as problem:
        return str(problem)


class AsyncWatchers:
    """The watchers of an instance, one for each queue and principal that waits there for answers."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_queue: dict[tuple[User, int], AsyncWatcher] = {}
        self._by_service: dict[tuple[User, str], AsyncWatcher] = {}
        self._senders: dict[User, AsyncRequestSender] = {}

    async def begin(self, database: AsyncDatabase, asked: AsyncPendingRequest) -> None:
        """Begin a request, and enter its caller at the watcher of its queue."""
        await self._senders.setdefault(database.user, AsyncRequestSender(self)).begin(database, asked)

    async def enter(self, verbs: AsyncVerbs, service: str, handle: UUID) -> AsyncWaiter:
        """Make a waiter for the answer on a conversation from `service`, and enter it at the watcher."""
        waiter = AsyncWaiter(handle, await self.of_service(verbs, service, handle))
        await waiter.watcher.enter(waiter)
        return waiter

    async def of_service(self, verbs: AsyncVerbs, service: str, handle: UUID) -> AsyncWatcher:
        """Return the watcher for the queue of a service from which a conversation was begun.

        The result is cached while the watcher runs. The watcher ends when the service moves to another queue.
        """
        key = verbs.database.user, service
        known = self._by_service.get(key)
        if known is not None and known.is_running:
            return known
        watcher = await self.of_queue(verbs.database, await verbs._do(verbs.engine.find_answer_queue(handle)))
        self._by_service[key] = watcher
        return watcher

    async def of_queue(self, database: AsyncDatabase, queue: AnswerQueue) -> AsyncWatcher:
        """Return the watcher for a queue."""
        key = database.user, queue.queue_id
        async with self._lock:
            known = self._by_queue.get(key)
            if known is None or not known.is_running or known.queue != queue:
                self._by_service = {key: watcher for key, watcher in self._by_service.items() if watcher.is_running}
                known = self._by_queue[key] = AsyncWatcher(database, queue)
            return known

    def stop(self) -> None:
        """Stop the watchers at their next poll, and wake all callers, which get "the instance is closed"."""
        for watcher in list(self._by_queue.values()):
            watcher.stop()

    async def join(self) -> None:
        """Wait until the watchers have ended."""
        for watcher in list(self._by_queue.values()):
            await watcher.join()


class AsyncWatcher:
    """Waits at a queue for all requests of this process, and wakes each caller when its answer arrives.

    Attributes:
        queue: the queue of the answers.
        is_running: True if it waits, or will wait with the next request. Otherwise a new watcher is needed.
    """

    def __init__(self, database: AsyncDatabase, queue: AnswerQueue) -> None:
        self.queue = queue
        self.is_running = True
        self._database = database
        self._lock = Lock()
        self._entered: set[AsyncWaiter] = set()
        self._watched: dict[UUID, list[AsyncWaiter]] = {}  # waiters that are asleep
        self._background: Background | None = None

    async def enter(self, waiter: AsyncWaiter) -> None:
        """Wake the waiter when messages arrive on its conversation, until it leaves."""
        async with self._lock:
            self._entered.add(waiter)
            self._watched.setdefault(waiter.handle, []).append(waiter)
            if self._background is None:
                self.is_running = True
                self._background = Background(self._run, f"servicebroker requests of {self.queue.name}")

    async def watch(self, waiter: AsyncWaiter) -> None:
        """Wake a waiter again when more messages arrive."""
        async with self._lock:
            self._watched.setdefault(waiter.handle, []).append(waiter)

    async def leave(self, waiter: AsyncWaiter) -> None:
        """Forget a waiter."""
        async with self._lock:
            self._entered.discard(waiter)  # missing if the caller was interrupted before it entered
            self._let_be(waiter)

    async def taken(self, waiter: AsyncWaiter) -> list[Message]:
        """Return the messages of an awake waiter, after the end of a transaction of the watcher for it.

        Raises:
            InstanceError: the connection was lost during COMMIT.
        """
        async with self._lock:
            self._let_be(waiter)
            taking = waiter.taking
        while taking is not None and not await taking.wait(_STOP_TIMEOUT_S):
            pass
        if waiter.problem is not None:
            raise waiter.problem
        messages, waiter.messages = waiter.messages, []
        return messages

    def stop(self) -> None:
        """Stop at the next poll, and wake all callers."""
        self.is_running = False
        self._wake(list(self._watched))

    async def join(self) -> None:
        """Wait for the end."""
        if self._background is not None:
            await self._background.stop(_STOP_TIMEOUT_S)

    async def _run(self) -> None:
        """Watch until no request has waited for `LINGER_S`, or a service of the queue was altered."""
        while self.is_running:
            try:
                await self._database._waiting(
                    self.queue.name, self._look, LINGER_S, filtered=True, enough=lambda _: not self.is_running
                )
            except (ServiceBrokerError, psycopg.Error) as problem:  # the woken callers get the same error
                report(_LOG, logging.DEBUG, "requests of %s: %s", self.queue.name, str(problem))
                await self._pause(problem)
                self.is_running = False
            async with self._lock:
                if not self._entered or not self.is_running:
                    self.is_running, self._background = False, None
                    self._wake(list(self._watched))

    async def _pause(self, problem: Exception) -> None:
        """Wait, since the next watcher may fail, too. If only a service was altered, do not wait."""
        has_changed = isinstance(problem, BrokerError) and problem.number == _SERVICE_CHANGED_ERROR
        if self.is_running and not has_changed:
            await Event().wait(_RETRY_PAUSE_S)

    async def _look(self) -> int:
        """Wake the callers whose conversations have messages. Return the number of these conversations."""
        handles = list(self._watched)
        if not handles:
            return 0
        answered = await self._database._do(self._database.engine.find_answered(self.queue.queue_id, handles))
        if len(answered) >= MIN_TOGETHER:
            await self._take(answered)
        self._wake(answered)
        return len(answered)

    async def _take(self, handles: list[UUID]) -> None:
        """Receive the answers that need no wait for a lock, for their callers, in one transaction."""
        has_taken = Event()
        async with self._lock:
            takers = {handle: waiters[0] for handle in handles if (waiters := self._watched.get(handle))}
            for waiter in takers.values():
                waiter.taking = has_taken
        try:
            taken = await take_answers(self._database, self.queue, list(takers))
            for handle, messages in taken.answers.items():
                takers[handle].problem = taken.problem
                takers[handle].messages = messages
        finally:
            for waiter in takers.values():
                waiter.taking = None
            has_taken.set()

    def _let_be(self, waiter: AsyncWaiter) -> None:
        """Stop waking a waiter."""
        waiters = self._watched.get(waiter.handle, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._watched[waiter.handle]

    def _wake(self, handles: list[UUID]) -> None:
        for handle in handles:
            for waiter in self._watched.pop(handle, ()):
                waiter.ready.set()


COMPOSED: Mapping[type[Operation[Any]], Callable[[Any, Any], Awaitable[Any]]] = {
    Request: request,
    BeginRequest: begin_request,
    WaitForAnswer: wait_for_answer,
}
