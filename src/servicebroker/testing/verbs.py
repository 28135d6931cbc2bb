"""The verbs as methods, the same in a transaction and on a database, as in `servicebroker.api.verbs`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.arguments import check_handle, check_switch
from servicebroker.model.errors import MAXIMUM_LIFETIME, InstanceError
from servicebroker.model.messages import Message
from servicebroker.operations.operation import Operation, described
from servicebroker.operations.receive import GetConversationGroup, Receive
from servicebroker.operations.send import Send, SendBatch
from servicebroker.testing import delivery, dialogs, ending, receiving, views
from servicebroker.testing.definitions import find_queue
from servicebroker.testing.rows import Session, WouldWait

if TYPE_CHECKING:
    from servicebroker.testing.instance import Database

P = ParamSpec("P")
T = TypeVar("T")


def operated(operation: Callable[P, Operation[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the method that runs an operation; its parameters, types and help are those of the operation."""

    def method(verbs: Any, /, *given: P.args, **named: P.kwargs) -> T:
        result: T = verbs._run(operation(*given, **named))
        return result

    return described(method, operation)  # type: ignore[arg-type] # a class


class Verbs(ABC):
    """SEND, RECEIVE and the rest, each as the method of the same name of `servicebroker.Transaction`."""

    database: Database

    @abstractmethod
    def _verb(self) -> AbstractContextManager[Session]:
        """Where a verb runs: all of it or nothing."""

    @property
    def connection(self) -> object:
        """There is none.

        Raises:
            InstanceError: always.
        """
        raise InstanceError(
            "The in-memory double has no PostgreSQL connection: give it one with "
            "servicebroker.testing.open(connect=...), or use servicebroker.open for a test that needs PostgreSQL."
        )

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
        """BEGIN DIALOG; `encryption` makes no difference inside an instance."""
        check_switch("ENCRYPTION", encryption)
        with self._verb() as session:
            return dialogs.begin_dialog(
                session,
                self.database.broker,
                from_service,
                to_service,
                broker_instance=broker_instance,
                contract=contract,
                related_conversation=related_conversation,
                related_conversation_group=related_conversation_group,
                lifetime=lifetime,
            )

    def _run(self, operation: Operation[T]) -> T:
        """Run an operation."""
        result: T = INTERPRETERS[type(operation)](self, operation)
        return result

    send = operated(Send)

    send_batch = operated(SendBatch)

    receive = operated(Receive)

    get_conversation_group = operated(GetConversationGroup)

    def move_conversation(self, handle: UUID, group: UUID) -> None:
        """MOVE CONVERSATION to another group of the same service."""
        with self._verb() as session:
            dialogs.move_conversation(session, handle, group)

    def end_conversation(self, handle: UUID, *, error: tuple[int, str] | None = None, cleanup: bool = False) -> None:
        """END CONVERSATION, plain, WITH ERROR = (code, description) or WITH CLEANUP."""
        with self._verb() as session:
            ending.end_conversation(session, handle, error, cleanup)

    def begin_conversation_timer(self, handle: UUID, timeout: int) -> None:
        """BEGIN CONVERSATION TIMER: after `timeout` seconds a DialogTimer message comes into the own queue."""
        with self._verb() as session:
            dialogs.begin_conversation_timer(session, handle, timeout)

    def get_transmission_status(self, handle: UUID) -> str:
        """GET_TRANSMISSION_STATUS."""
        check_handle(handle)
        with self._verb() as session:
            rows = views.transmission_queue(session, self.database.broker)
        waiting = [row for row in rows if row["conversation_handle"] == handle]
        oldest = min(waiting, key=lambda row: row["message_sequence_number"], default=None)
        return "" if oldest is None else str(oldest["transmission_status"])

    # ------------------------------------------------------------ what a test looks at

    def conversation_endpoints(self) -> list[views.Row]:
        """The rows of sys.conversation_endpoints of this database, without session keys and stamps."""
        with self._verb() as session:
            return views.conversation_endpoints(session, self.database.broker)

    def conversation_groups(self) -> list[views.Row]:
        """The groups of this database, each with its service."""
        with self._verb() as session:
            return views.conversation_groups(session, self.database.broker)

    def transmission_queue(self) -> list[views.Row]:
        """The rows of sys.transmission_queue of this database."""
        with self._verb() as session:
            return views.transmission_queue(session, self.database.broker)

    def queue_messages(self, queue: str) -> list[views.Row]:
        """What SELECT * FROM the queue shows, in the order of arrival."""
        with self._verb() as session:
            return views.queue_messages(session, find_queue(self.database.broker, queue))

    def _waiting(self, operation: Receive | GetConversationGroup, once: Callable[[], T]) -> T:
        """WAITFOR, which takes no time: what `once` returns.

        The clock jumps to the next timer or lifetime of the queue that is due before the patience ends, else to that.
        """
        operation.check_wait()
        queue, wait, clock = operation.queue, operation.patience, self.database.instance.clock
        found = once()
        while not found and wait > 0:
            began = clock()
            clock.jump_to(self._next_look(queue, wait))
            self.database.instance._work()
            wait -= (clock() - began).total_seconds()
            found = once()
        return found

    def _next_look(self, queue: str, wait: float) -> datetime:
        with self._verb() as session:
            looked_at = [(self.database, queue)]
            looked_at += [(database, worker.queue) for database, worker in self.database.instance._workers]
            times = [receiving.next_due(session, find_queue(one.broker, name)) for one, name in looked_at]
            due = min((time for time in times if time), default=None)
            if wait < float("inf"):
                end = session.now + timedelta(seconds=wait)
                return min(due or end, end)
        if due is None:
            raise WouldWait(f"Nothing will become due in the queue '{queue}': this would wait for ever.")
        return due


# ---------------------------------------------------------------- how the double runs operations


def _send(verbs: Verbs, operation: Send[Any]) -> Any:
    with verbs._verb() as session:
        return delivery.send(session, operation)


def _send_batch(verbs: Verbs, operation: SendBatch) -> int:
    with verbs._verb() as session:
        return delivery.send_batch(session, operation)


def _receive(verbs: Verbs, operation: Receive) -> list[Message]:
    """RECEIVE; groups that another transaction has locked are skipped.

    Raises:
        WouldWait: for ever, or for a lock that WHERE asks for.
    """

    def once() -> list[Message]:
        with verbs._verb() as session:
            queue = find_queue(verbs.database.broker, operation.queue)
            receiving.look(session, queue, operation)
        with verbs._verb() as session:
            messages = receiving.receive(session, queue, operation)
            if messages:
                session.received_from.add(queue.queue_id)
            return messages

    return verbs._waiting(operation, once)


def _get_conversation_group(verbs: Verbs, operation: GetConversationGroup) -> UUID | None:
    def once() -> UUID | None:
        with verbs._verb() as session:
            return receiving.get_conversation_group(session, find_queue(verbs.database.broker, operation.queue))

    return verbs._waiting(operation, once)


INTERPRETERS: Mapping[type[Operation[Any]], Callable[[Any, Any], Any]] = {
    Send: _send,
    SendBatch: _send_batch,
    Receive: _receive,
    GetConversationGroup: _get_conversation_group,
}
