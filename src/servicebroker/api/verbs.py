# Made from aio/verbs.py by tools/make_sync.py: change that file, then run `make sync`.
"""The verbs as methods, the same in a transaction and on a database (where each is its own transaction)."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from uuid import UUID

import psycopg

from servicebroker.api import tracing
from servicebroker.api.wrappers import WRAPPERS, operated
from servicebroker.engine.catalog.catalog import Queue
from servicebroker.engine.conversation import receive
from servicebroker.engine.conversation.begin import NewDialog
from servicebroker.model import names
from servicebroker.model.conversation_events import Deed, Happened, described
from servicebroker.model.errors import MAXIMUM_LIFETIME, BrokerError, ServiceBrokerError, Unreachable
from servicebroker.model.messages import Message
from servicebroker.operations.operation import Operation
from servicebroker.operations.receive import GetConversationGroup, Receive
from servicebroker.operations.send import Send, SendBatch
from servicebroker.store.statements import Rows, Steps

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from servicebroker.api.database import Database
    from servicebroker.api.doorbell import Bell
    from servicebroker.api.instance import Instance
    from servicebroker.engine.conversation.plain_verbs import Direct

T = TypeVar("T")

_LOG = logging.getLogger("servicebroker")
_ATTEMPTS = 10  # to look up the names of messages that were taken

FALLBACK_POLL = 1.0  # seconds: a waiting reader looks at least this often, whatever wakes it


class Verb(NamedTuple, Generic[T]):
    """A verb, and what those have to know who stand around it.

    Attributes:
        begin: makes its steps; anew when it has to be done again.
        deed: what it does to the conversations of `handles`; `groups` are those that a new one may join.
    """

    begin: Callable[[], Steps[T]]
    deed: Deed | None = None
    handles: Sequence[UUID] = ()
    groups: Sequence[UUID] = ()


class Verbs(ABC):
    """SEND, RECEIVE and the rest. `database` is where names are looked up; `instance` and `engine` are its own."""

    database: Database
    instance: Instance
    engine: Direct

    @abstractmethod
    def _do(self, steps: Steps[T]) -> T:
        """Run a verb where this object runs its verbs."""

    def _run(self, operation: Operation[T]) -> T:
        """Run an operation within the wrappers that it has."""
        engine, kind = self.engine, type(operation)
        is_observed = tracing.is_on() or self.instance.events.watches_conversations
        run = WRAPPERS[kind].observed if is_observed else WRAPPERS[kind].quiet
        result: T = run(self, operation, partial(engine.interpreters[kind], engine, operation))
        return result

    def _change(self, verb: Verb[T]) -> T:
        """Run a verb that is no operation yet; who watches conversations is told."""
        self._works()
        steps = verb.begin()
        if self.instance.events.watches_conversations and (verb.handles or verb.deed):
            steps = self.engine.watched(verb.deed, steps, verb.handles, self._tell, groups=verb.groups)
        return self._do(steps)

    def _works(self) -> None:  # noqa: B027 # who knows how transactions end wants to know
        """A verb is run: should its transaction be rolled back, that is counted."""

    def _tell(self, event: Happened) -> None:
        instance = self.database.instance
        number, database_id, text, subclass, columns = described(event)
        instance.events.tell(number, instance.clock(), database_id, text, subclass, columns)

    def _is_alone(self) -> bool:
        """Whether the verb that was just run was a transaction of its own: it is done, or can be done again."""
        return True

    @abstractmethod
    def _received(self, queue_id: int, transaction: int) -> None:
        """Messages were taken from the queue by the transaction of that id: its rollback counts."""

    def begin_dialog(
        self,
        from_service: str,
        to_service: str,
        *,
        broker_instance: str | UUID | None = None,
        contract: str = names.DEFAULT,
        related_conversation: UUID | None = None,
        related_conversation_group: UUID | None = None,
        lifetime: int = MAXIMUM_LIFETIME,
        encryption: bool = True,
    ) -> UUID:
        """BEGIN DIALOG: begin a conversation, and return its handle.

        The target is not told, and not looked for: that happens with the first message. So a name that is wrong there
        is no error here; the message waits (`servicebroker doctor`).

        Args:
            from_service: a service of this database. Answers come into its queue.
            to_service: the service at the other end, here or in another instance. The name is compared byte by byte.
            broker_instance: identifier of the target's database, where several have such a service; or
                "CURRENT DATABASE".
            contract: a contract of this database: what each side may send.
            related_conversation: a handle. The new conversation joins the conversation group of that one.
            related_conversation_group: the conversation group to join. It is made when it does not exist.
            lifetime: seconds after which both sides get an Error (-8489), 1 to 2,147,483,647.
            encryption: whether dialog security is wanted. It matters only between instances.

        Raises:
            BrokerError: 8423 no such service, 8425 no such contract, 8426 no such related conversation, 9610 that is
                one of another service, 8411 the lifetime is out of range, 8494 without RECEIVE on the service's
                queue, 229 without REFERENCES on the contract; 8406, 8413, 8414, 8417, 8421, 1093 for arguments that
                nothing can be called.
        """
        handles = [] if related_conversation is None else [related_conversation]
        groups = [] if related_conversation_group is None else [related_conversation_group]

        engine = self.database.engine
        dialog = NewDialog(
            from_service,
            to_service,
            broker_instance,
            contract,
            related_conversation,
            related_conversation_group,
            lifetime,
            encryption,
        )
        return self._change(Verb(lambda: engine.begin_dialog(dialog), Deed.BEGIN, handles, groups))

    send = operated(Send)

    send_batch = operated(SendBatch)

    def _named(self, rows: Rows, *, alone: bool) -> list[Message]:
        """What was taken, with its names. Those that we do not remember are looked up."""
        labels, database_id = self.database.catalog.labels, self.database.database_id
        try:
            return receive.named(rows, labels[database_id])
        except KeyError:
            if alone:
                self._learn_names()
            else:
                self._do(self.database.engine.find_labels(anew=True))
            return receive.named(rows, receive.nameless(labels[database_id]))

    def _learn_names(self) -> None:
        """Of messages that nobody else can receive any more: here, and when that fails on other connections."""
        problem: Exception | None = None
        for do in (self._do, *[self.database._do] * _ATTEMPTS):
            try:
                do(self.database.engine.find_labels(anew=True))
                return
            except (ServiceBrokerError, psycopg.Error) as refused:
                problem = refused
        _LOG.error("messages were received whose names could not be looked up, and are '': %s", problem)

    def _trace(self, queue: str, messages: Sequence[Message], *, alone: bool) -> None:
        """What was received goes on under the traces of its senders."""
        if alone:
            self._try_to_begin_span(queue, messages)
        else:
            self._begin_span(queue, messages)

    def _begin_span(self, queue: str, messages: Sequence[Message]) -> None:
        sent = [(m.conversation_handle, m.message_sequence_number) for m in messages if not (m.is_timer or m.is_error)]
        span = tracing.begin_receive(queue, messages, self._do(self.database.engine.take_traces(sent)))
        if span is not None:
            self._process(span)

    def _try_to_begin_span(self, queue: str, messages: Sequence[Message]) -> None:
        """RECEIVE is committed: no problem with a trace may keep its messages from the caller."""
        try:
            self._begin_span(queue, messages)
        except Exception as problem:  # the application's own sampler and processors run there, too
            _LOG.warning("received messages are not traced: %s", problem)

    def _process(self, span: Span) -> None:
        """A span of received messages begins; here it ends at once, since nobody knows what becomes of them."""
        tracing.end(span)

    _processing: Span | None = None  # of the messages that this transaction has received last

    receive = operated(Receive)

    get_conversation_group = operated(GetConversationGroup)

    def move_conversation(self, handle: UUID, group: UUID) -> None:
        """MOVE CONVERSATION to another group of the same service; its messages in the queue go with it.

        Both groups are locked until the transaction ends.

        Raises:
            BrokerError: 8426 no such conversation, 8436 no such group, 8439 it is one of another service, 8438 the
                conversation has ended or failed, 8494 no permission, 8418 and 8420 an argument is missing.
        """
        engine = self.database.engine
        self._change(Verb(lambda: engine.move_conversation(handle, group), handles=[handle]))

    def _find(self, queue: str) -> Queue:
        """The queue of that name; it takes no connection when this process remembers it."""
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
        choosy: bool,
        enough: Callable[[T | None], bool] = bool,
    ) -> T | None:
        """WAITFOR: what `once` returns as soon as that is `enough`, or after `wait` seconds in which it was nothing.

        Who is told something that is not enough waits on where it is: `once` has looked since, and in vain.
        """
        there = self._find(queue)
        doorbell = self.database.instance.doorbell
        found: T | None
        if wait == 0 or not doorbell.hears(there.queue_id):
            found = once()
            if wait == 0 or enough(found):
                return found
        self.database.instance.check_process()
        deadline = time.monotonic() + wait

        def changes() -> int:
            return self._do(self.database.engine.service_changes(there))

        with doorbell.listening(there.queue_id, choosy=choosy) as bell:
            services = self._services(there, bell, changes)
            while not enough(found := self._unless_away(once, deadline)):
                if found:
                    deadline = time.monotonic() + wait
                    was_listed = doorbell.found(there.queue_id, bell)
                    services = self._services(there, bell, changes)
                    if not was_listed:
                        continue
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                changed = self.database.instance.sleep(bell, min(left, FALLBACK_POLL))
                if changed and self._unless_away(changes, deadline) not in (None, services):
                    raise BrokerError(8468)
        return found

    def _services(self, there: Queue, bell: Bell, changes: Callable[[], int]) -> int:
        """How often a service of the queue was altered or dropped before the wait; the doorbell remembers it."""
        known = self.database.instance.doorbell.service_changes
        services = known.get(there.queue_id)
        if services is None:
            services = changes()
            if not bell.is_ringing:  # it may be about a change
                known[there.queue_id] = services
        return services

    def _unless_away(self, look: Callable[[], T], deadline: float) -> T | None:
        """What `look` finds; None while the server is away, which a reader outside of a transaction sits out."""
        if not self._is_alone():
            return look()
        try:
            self.database.instance.renew()
            return look()
        except Unreachable:
            if time.monotonic() >= deadline:
                raise
            return None

    def end_conversation(self, handle: UUID, *, error: tuple[int, str] | None = None, cleanup: bool = False) -> None:
        """END CONVERSATION: this side is done. Its messages that nobody has received are dropped.

        The other side gets an EndDialog message, or the error, behind what was sent before. Each side ends the
        conversation for itself.

        Args:
            handle: the conversation.
            error: WITH ERROR: a code above 0 and a description, which the other side receives as an Error message.
            cleanup: WITH CLEANUP: the other side is not told anything. For a conversation whose other side is gone for
                good.

        Raises:
            BrokerError: 8426 no such conversation, 8427 it has ended on this side already, 8494 no permission, 8418 the
                handle is missing, 8419, 8422 and 8424 the code or the description is; 28006 WITH CLEANUP of a
                conversation that has ended on this side is for db_owner.
        """

        deed = Deed.END_WITH_CLEANUP if cleanup else Deed.END if error is None else Deed.END_WITH_ERROR
        engine = self.database.engine
        self._change(Verb(lambda: engine.end_conversation(handle, error, cleanup=cleanup), deed, [handle]))

    def get_transmission_status(self, handle: UUID) -> str:
        """GET_TRANSMISSION_STATUS: why the oldest message waits that was sent on this side of the conversation.

        The same text as in sys.transmission_queue; '' when nothing waits, when it was not tried yet, and for a handle
        that is unknown in this database.

        Raises:
            BrokerError: 8418, 402 what is no handle.
        """
        return self._do(self.database.engine.get_transmission_status(handle))

    def begin_conversation_timer(self, handle: UUID, timeout: int) -> None:
        """BEGIN CONVERSATION TIMER: after `timeout` seconds a DialogTimer message comes into the own queue.

        A conversation has one timer: setting it again replaces it. It is a row of PostgreSQL, so it comes also when
        this program has ended meanwhile.

        Raises:
            BrokerError: 8426 no such conversation, 8410 the conversation's lifetime ends before, 8458 it has ended or
                failed, 8494 no SEND on the conversation's own service, 8418 the handle is missing.
        """
        engine = self.database.engine
        self._change(Verb(lambda: engine.begin_conversation_timer(handle, timeout)))
