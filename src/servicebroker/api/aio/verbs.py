"""The statements SEND, RECEIVE and so on as methods. On a database, each call is a transaction of its own."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import psycopg

from servicebroker.api.aio.requesting import COMPOSED
from servicebroker.api.aio.wrappers import WRAPPERS, operation_method
from servicebroker.api.shared import tracing
from servicebroker.engine.catalog.catalog import Queue
from servicebroker.engine.conversation import receive
from servicebroker.model.conversation_events import VerbEvent, describe_event
from servicebroker.model.errors import BrokerError, ServiceBrokerError, Unreachable
from servicebroker.model.messages import Message
from servicebroker.model.wording import short_repr
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog
from servicebroker.operations.delayed import CancelDelayed, DelayedMessages
from servicebroker.operations.end import EndConversation
from servicebroker.operations.move import MoveConversation
from servicebroker.operations.operation import Operation
from servicebroker.operations.receive import GetConversationGroup, Receive
from servicebroker.operations.request import BeginRequest, Request, WaitForAnswer
from servicebroker.operations.send import Send, SendBatch
from servicebroker.operations.transmission_status import GetTransmissionStatus
from servicebroker.store.aio.concurrency import shelter
from servicebroker.store.statements import Rows, Steps

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from servicebroker.api.aio.database import AsyncDatabase
    from servicebroker.api.aio.instance import AsyncInstance
    from servicebroker.api.aio.notifier import WaitingReader
    from servicebroker.engine.conversation.owner_verbs import OwnerVerbs

T = TypeVar("T")

_LOG = logging.getLogger("servicebroker")
_NAME_ATTEMPTS = 10  # connections on which the names of received messages are looked up

FALLBACK_POLL_S = 1.0  # a waiting reader polls at least this often, whatever wakes it


class AsyncVerbs(ABC):
    """SEND, RECEIVE and the other statements of conversations.

    Attributes:
        database: the database in which names are looked up.
        instance: the instance of that database.
        engine: the interpreter of operations, on the tables or, for a restricted role, through the fence.
    """

    database: AsyncDatabase
    instance: AsyncInstance
    engine: OwnerVerbs

    @abstractmethod
    async def _do(self, steps: Steps[T]) -> T:
        """Run the steps of a statement, on this transaction or as a transaction of their own."""

    async def run(self, operation: Operation[T]) -> T:
        """Run an operation of `servicebroker.operations`. Each statement's method does this.

        Args:
            operation: a statement as a value. It can be stored, compared, and run more than once.

        Returns:
            The result of the method with the operation's name.

        Raises:
            BrokerError: as that method; 402 `operation` is not an operation.
        """
        engine, kind = self.engine, type(operation)
        within = WRAPPERS.get(kind)
        result: T
        if within is None:
            if kind in COMPOSED:
                result = await COMPOSED[kind](self, operation)
                return result
            return await self._run_definition(operation)
        is_observed = tracing.is_on() or self.instance.events.watches_conversations
        run = within.observed if is_observed else within.quiet
        result = await run(self, operation, partial(engine.interpreters[kind], engine, operation))
        return result

    async def _run_in_transaction(self, steps: Steps[T]) -> T:
        """Run an administrative operation as a transaction of its own. Only a database overrides this.

        Raises:
            BrokerError: 402 the operation needs a database.
        """
        raise BrokerError(402, "operation", "administration in a transaction", "run on the database instead")

    async def _run_definition(self, operation: Operation[T]) -> T:
        """Refuse an operation without a runner; a database overrides this, and runs definitions."""
        raise BrokerError(
            402,
            "operation",
            short_repr(operation),
            "one that a transaction can run, such as Send or Receive; run definitions on a database",
        )

    def _note_verb(self) -> None:  # noqa: B027 # only a transaction counts its rollback
        """Note that a statement runs, so that a rollback of its transaction is counted."""

    def _record_event(self, event: VerbEvent) -> None:
        instance = self.instance
        number, database_id, text, subclass, columns = describe_event(event)
        instance.events.tell(number, instance.clock(), database_id, text, subclass, columns)

    def _is_alone(self) -> bool:
        """Return whether the last statement was a transaction of its own: it is committed, or can be run again."""
        return True

    @abstractmethod
    def _note_receive(self, queue_id: int, transaction: int) -> None:
        """Note that a transaction, by its id, received from the queue: poison detection counts its rollback."""

    begin_dialog = operation_method(BeginDialog)

    send = operation_method(Send)

    send_batch = operation_method(SendBatch)

    request = operation_method(Request)

    begin_request = operation_method(BeginRequest)

    wait_for_answer = operation_method(WaitForAnswer)

    async def _begin_in(self, begin: BeginDialog, group: UUID) -> UUID:
        """Run BEGIN DIALOG in a new group with this unique id."""
        return await self.run(replace(begin, related_conversation_group=group))

    @abstractmethod
    def _refuse_transaction(self, statement: str) -> None:
        """If a transaction is open, refuse a statement that waits for an answer: it cannot come before the COMMIT.

        Raises:
            BrokerError: 226 a transaction is open.
        """

    async def _named(self, rows: Rows, *, alone: bool) -> list[Message]:
        """Return the messages of received rows. Names that are missing in the cache are looked up."""
        labels, database_id = self.engine.catalog.labels, self.engine.user.database_id
        try:
            return receive.name_rows(rows, labels[database_id])
        except KeyError:
            if alone:
                await shelter(self._learn_names())
            else:
                await self._do(self.engine.find_labels(anew=True))
            return receive.name_rows(rows, receive.with_default_names(labels[database_id]))

    async def _learn_names(self) -> None:
        """Look up the names of received, committed messages; if that fails, try again on other connections."""
        problem: Exception | None = None
        for do in (self._do, *[self.database._do] * _NAME_ATTEMPTS):
            try:
                await do(self.engine.find_labels(anew=True))
                return
            except (ServiceBrokerError, psycopg.Error) as refused:
                problem = refused
        _LOG.error("The names of received messages could not be looked up; they are '' instead: %s", problem)

    async def _trace(self, queue: str, messages: Sequence[Message], *, alone: bool) -> None:
        """Continue the traces of the senders of received messages."""
        if alone:
            await shelter(self._try_to_begin_span(queue, messages))
        else:
            await self._begin_span(queue, messages)

    async def _begin_span(self, queue: str, messages: Sequence[Message]) -> None:
        sent = [(m.conversation_handle, m.message_sequence_number) for m in messages if not (m.is_timer or m.is_error)]
        span = tracing.begin_receive(queue, messages, await self._do(self.engine.take_traces(sent)))
        if span is not None:
            self._keep_span(span)

    async def _try_to_begin_span(self, queue: str, messages: Sequence[Message]) -> None:
        """Begin a span after RECEIVE was committed. An error is only logged, since the caller must get the messages."""
        try:
            await self._begin_span(queue, messages)
        except Exception as problem:  # raised by the sampler or a span processor of the application
            _LOG.warning("received messages are not traced: %s", problem)

    def _keep_span(self, span: Span) -> None:
        """Record a span for received messages. Outside of a transaction the end of their processing is unknown."""
        tracing.end(span)

    _processing: Span | None = None  # the span of the messages that this transaction received last

    receive = operation_method(Receive)

    get_conversation_group = operation_method(GetConversationGroup)

    move_conversation = operation_method(MoveConversation)

    end_conversation = operation_method(EndConversation)

    begin_conversation_timer = operation_method(BeginConversationTimer)

    get_transmission_status = operation_method(GetTransmissionStatus)

    delayed_messages = operation_method(DelayedMessages)

    cancel_delayed = operation_method(CancelDelayed)

    async def _find(self, queue: str) -> Queue:
        """Return the queue of that name, from the cache of this process if possible."""
        engine = self.engine
        known = engine.catalog.queues.get((engine.user.database_id, queue)) if isinstance(queue, str) else None
        if known is not None:
            return known
        return await self._do(engine.find_queue(queue))

    async def _waiting(
        self,
        queue: str,
        once: Callable[[], Awaitable[T]],
        wait: float,
        *,
        filtered: bool,
        enough: Callable[[T | None], bool] = bool,
    ) -> T | None:
        """WAITFOR: call `once` until its result is `enough`, or until it returns nothing for `wait` seconds.

        After a result that is not enough, the reader stays registered and keeps waiting. Returns the last result.
        """
        queue_entry = await self._find(queue)
        notifier = self.instance.notifier
        result: T | None
        if wait == 0 or not notifier.is_registered(queue_entry.queue_id):
            result = await once()
            if wait == 0 or enough(result):
                return result
        self.instance.check_caller()
        deadline = time.monotonic() + wait

        def changes() -> Awaitable[int]:
            return self._do(self.engine.service_changes(queue_entry))

        async with notifier.listening(queue_entry.queue_id, filtered=filtered) as reader:  # polls after it registered
            services = await self._services(queue_entry, reader, changes)
            while not enough(result := await self._none_if_unreachable(once, deadline)):
                if result:
                    deadline = time.monotonic() + wait
                    was_registered = await notifier.keep_waiting(queue_entry.queue_id, reader)
                    services = await self._services(queue_entry, reader, changes)
                    if not was_registered:
                        continue
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    break
                changed = await self.instance.sleep(reader, min(remaining_s, FALLBACK_POLL_S))
                if changed and await self._none_if_unreachable(changes, deadline) not in (None, services):
                    raise BrokerError(8468)
        return result

    async def _services(self, queue_entry: Queue, reader: WaitingReader, changes: Callable[[], Awaitable[int]]) -> int:
        """Return how often a service of the queue was altered or dropped before the wait; the notifier caches that."""
        known = self.instance.notifier.service_changes
        services = known.get(queue_entry.queue_id)
        if services is None:
            services = await changes()
            if not reader.is_woken:  # else a change may have woken it
                known[queue_entry.queue_id] = services
        return services

    async def _none_if_unreachable(self, query: Callable[[], Awaitable[T]], deadline: float) -> T | None:
        """Return the result of `query`.

        Outside of a transaction, an unreachable server makes it None until the deadline, so that the caller retries.
        """
        if not self._is_alone():
            return await query()
        try:
            await self.instance.renew()
            return await query()
        except Unreachable:
            if time.monotonic() >= deadline:
                raise
            return None
