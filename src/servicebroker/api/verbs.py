# Made from aio/verbs.py by tools/make_sync.py: change that file, then run `make sync`.
"""The verbs as methods, the same in a transaction and on a database (where each is its own transaction)."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

import psycopg

from servicebroker.api.requesting import COMPOSED
from servicebroker.api.shared import tracing
from servicebroker.api.wrappers import WRAPPERS, operated
from servicebroker.engine.catalog.catalog import Queue
from servicebroker.engine.conversation import receive
from servicebroker.model.conversation_events import VerbEvent, describe_event
from servicebroker.model.errors import BrokerError, ServiceBrokerError, Unreachable
from servicebroker.model.messages import Message
from servicebroker.model.wording import shown
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog
from servicebroker.operations.delayed import CancelDelayed, DelayedMessages
from servicebroker.operations.end import EndConversation
from servicebroker.operations.move import MoveConversation
from servicebroker.operations.operation import Operation
from servicebroker.operations.receive import GetConversationGroup, Receive
from servicebroker.operations.request import BeginRequest, Request, WaitForAnswer
from servicebroker.operations.send import Send, SendBatch
from servicebroker.operations.transmission_status import GetTransmissionStatus
from servicebroker.store.statements import Rows, Steps

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from servicebroker.api.database import Database
    from servicebroker.api.doorbell import Bell
    from servicebroker.api.instance import Instance
    from servicebroker.engine.conversation.owner_verbs import OwnerVerbs

T = TypeVar("T")

_LOG = logging.getLogger("servicebroker")
_NAME_ATTEMPTS = 10  # to look up the names of messages that were taken

FALLBACK_POLL_S = 1.0  # a waiting reader polls at least this often, whatever wakes it


class Verbs(ABC):
    """SEND, RECEIVE and the other verbs. Names are looked up in `database`; `instance` and `engine` are those of it."""

    database: Database
    instance: Instance
    engine: OwnerVerbs

    @abstractmethod
    def _do(self, steps: Steps[T]) -> T:
        """Run a verb where this object runs its verbs."""

    def run(self, operation: Operation[T]) -> T:
        """Run an operation, one of `servicebroker.operations`. Each verb is a method that does this.

        Args:
            operation: a statement as a value. It may be made anywhere, kept, compared, and run again.

        Returns:
            What the method of the operation's name returns.

        Raises:
            BrokerError: as that method; 402 what is no operation.
        """
        engine, kind = self.engine, type(operation)
        within = WRAPPERS.get(kind)
        result: T
        if within is None:
            if kind in COMPOSED:
                result = COMPOSED[kind](self, operation)
                return result
            return self._run_definition(operation)
        is_observed = tracing.is_on() or self.instance.events.watches_conversations
        run = within.observed if is_observed else within.quiet
        result = run(self, operation, partial(engine.interpreters[kind], engine, operation))
        return result

    def _alone(self, steps: Steps[T]) -> T:
        """Run administration as a transaction of its own, which only a database does.

        Raises:
            BrokerError: 402.
        """
        raise BrokerError(402, "operation", "administration in a transaction", "one that a database runs")

    def _run_definition(self, operation: Operation[T]) -> T:
        """Refuse an operation that is no verb; a database runs definitions."""
        raise BrokerError(402, "operation", shown(operation), "a verb of servicebroker.operations")

    def _works(self) -> None:  # noqa: B027 # only a transaction counts its rollback
        """Note that a verb is run: if its transaction is rolled back, that is counted."""

    def _tell(self, event: VerbEvent) -> None:
        instance = self.instance
        number, database_id, text, subclass, columns = describe_event(event)
        instance.events.tell(number, instance.clock(), database_id, text, subclass, columns)

    def _is_alone(self) -> bool:
        """Return whether the last verb was a transaction of its own: it is committed, or can be run again."""
        return True

    @abstractmethod
    def _received(self, queue_id: int, transaction: int) -> None:
        """Note that the transaction of that id took messages from the queue: poison detection counts its rollback."""

    begin_dialog = operated(BeginDialog)

    send = operated(Send)

    send_batch = operated(SendBatch)

    request = operated(Request)

    begin_request = operated(BeginRequest)

    wait_for_answer = operated(WaitForAnswer)

    def _begin_in(self, begin: BeginDialog, group: UUID) -> UUID:
        """Run BEGIN DIALOG in a new group, under an id that nobody else has."""
        return self.run(replace(begin, related_conversation_group=group))

    @abstractmethod
    def _refuse_transaction(self, statement: str) -> None:
        """If a transaction is open, refuse a statement that waits for what others do after the COMMIT.

        Raises:
            BrokerError: 226.
        """

    def _named(self, rows: Rows, *, alone: bool) -> list[Message]:
        """Return the messages of the rows with their names, and look up names that this process does not remember."""
        labels, database_id = self.engine.catalog.labels, self.engine.user.database_id
        try:
            return receive.name_rows(rows, labels[database_id])
        except KeyError:
            if alone:
                self._learn_names()
            else:
                self._do(self.engine.find_labels(anew=True))
            return receive.name_rows(rows, receive.with_default_names(labels[database_id]))

    def _learn_names(self) -> None:
        """Look up the names of messages that nobody else can receive any more; if that fails, on other connections."""
        problem: Exception | None = None
        for do in (self._do, *[self.database._do] * _NAME_ATTEMPTS):
            try:
                do(self.engine.find_labels(anew=True))
                return
            except (ServiceBrokerError, psycopg.Error) as refused:
                problem = refused
        _LOG.error("messages were received whose names could not be looked up, and are '': %s", problem)

    def _trace(self, queue: str, messages: Sequence[Message], *, alone: bool) -> None:
        """Continue the traces of the senders of received messages."""
        if alone:
            self._try_to_begin_span(queue, messages)
        else:
            self._begin_span(queue, messages)

    def _begin_span(self, queue: str, messages: Sequence[Message]) -> None:
        sent = [(m.conversation_handle, m.message_sequence_number) for m in messages if not (m.is_timer or m.is_error)]
        span = tracing.begin_receive(queue, messages, self._do(self.engine.take_traces(sent)))
        if span is not None:
            self._process(span)

    def _try_to_begin_span(self, queue: str, messages: Sequence[Message]) -> None:
        """Begin a span after RECEIVE was committed: no problem with it may keep the messages from the caller."""
        try:
            self._begin_span(queue, messages)
        except Exception as problem:  # the sampler and the processors of the application run there
            _LOG.warning("received messages are not traced: %s", problem)

    def _process(self, span: Span) -> None:
        """Begin the span of received messages. It ends at once, since their processing is not known here."""
        tracing.end(span)

    _processing: Span | None = None  # the span of the messages that this transaction received last

    receive = operated(Receive)

    get_conversation_group = operated(GetConversationGroup)

    move_conversation = operated(MoveConversation)

    end_conversation = operated(EndConversation)

    begin_conversation_timer = operated(BeginConversationTimer)

    get_transmission_status = operated(GetTransmissionStatus)

    delayed_messages = operated(DelayedMessages)

    cancel_delayed = operated(CancelDelayed)

    def _find(self, queue: str) -> Queue:
        """Return the queue of that name; without a connection, if this process remembers the queue."""
        engine = self.engine
        known = engine.catalog.queues.get((engine.user.database_id, queue)) if isinstance(queue, str) else None
        if known is not None:
            return known
        return self._do(engine.find_queue(queue))

    def _waiting(
        self,
        queue: str,
        once: Callable[[], T],
        wait: float,
        *,
        filtered: bool,
        enough: Callable[[T | None], bool] = bool,
    ) -> T | None:
        """WAITFOR: run `once` until its result is `enough`, or until it found nothing for `wait` seconds.

        After a result that is not enough, the reader stays registered and waits on. Returns the last result.
        """
        found_queue = self._find(queue)
        doorbell = self.instance.doorbell
        result: T | None
        if wait == 0 or not doorbell.is_registered(found_queue.queue_id):
            result = once()
            if wait == 0 or enough(result):
                return result
        self.instance.check_process()
        deadline = time.monotonic() + wait

        def changes() -> int:
            return self._do(self.engine.service_changes(found_queue))

        with doorbell.listening(found_queue.queue_id, filtered=filtered) as bell:
            services = self._services(found_queue, bell, changes)
            while not enough(result := self._unless_away(once, deadline)):
                if result:
                    deadline = time.monotonic() + wait
                    was_listed = doorbell.keep_waiting(found_queue.queue_id, bell)
                    services = self._services(found_queue, bell, changes)
                    if not was_listed:
                        continue
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                changed = self.instance.sleep(bell, min(left, FALLBACK_POLL_S))
                if changed and self._unless_away(changes, deadline) not in (None, services):
                    raise BrokerError(8468)
        return result

    def _services(self, found_queue: Queue, bell: Bell, changes: Callable[[], int]) -> int:
        """Return how often a service of the queue was altered or dropped before the wait, as the doorbell keeps it."""
        known = self.instance.doorbell.service_changes
        services = known.get(found_queue.queue_id)
        if services is None:
            services = changes()
            if not bell.is_ringing:  # else a change may have rung it
                known[found_queue.queue_id] = services
        return services

    def _unless_away(self, look: Callable[[], T], deadline: float) -> T | None:
        """Return the result of `look`; outside of a transaction None while the server is away, until the deadline."""
        if not self._is_alone():
            return look()
        try:
            self.instance.renew()
            return look()
        except Unreachable:
            if time.monotonic() >= deadline:
                raise
            return None
