"""The statements SEND, RECEIVE and so on as methods, for a transaction and for a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.messages import DelayedMessage, Message
from servicebroker.model.wording import short_repr
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog
from servicebroker.operations.dead_letters import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.delayed import CancelDelayed, DelayedMessages
from servicebroker.operations.end import EndConversation
from servicebroker.operations.move import MoveConversation
from servicebroker.operations.operation import Operation, copy_documentation
from servicebroker.operations.receive import GetConversationGroup, Receive
from servicebroker.operations.request import BeginRequest, Request, WaitForAnswer
from servicebroker.operations.schedules import DropSchedule, KeepSchedule, Schedules, TakeTurn
from servicebroker.operations.send import Send, SendBatch
from servicebroker.operations.transmission_status import GetTransmissionStatus
from servicebroker.testing import delivery, dialogs, ending, failures, receiving, requests, schedules, views
from servicebroker.testing.definitions import find_queue
from servicebroker.testing.memory import Session, WouldWait

if TYPE_CHECKING:
    from servicebroker.testing.instance import Database

P = ParamSpec("P")
T = TypeVar("T")


def method_of(operation: Callable[P, Operation[T]]) -> Callable[Concatenate[Any, P], T]:
    """Return a method that runs an operation. Its parameters, types and help are those of the operation."""

    def method(verbs: Any, /, *arguments: P.args, **keywords: P.kwargs) -> T:
        result: T = verbs.run(operation(*arguments, **keywords))
        return result

    return copy_documentation(method, operation)  # type: ignore[arg-type] # a class


class Verbs(ABC):
    """SEND, RECEIVE and the other statements, with the methods of `servicebroker.Transaction`; views for tests."""

    database: Database

    @abstractmethod
    def _verb(self) -> AbstractContextManager[Session]:
        """Run one statement as a whole, or not at all."""

    @property
    def connection(self) -> object:
        """Refuse: the double was opened without `connect`.

        Raises:
            InstanceError: always.
        """
        raise InstanceError(
            "The in-memory double has no PostgreSQL connection: give it one with "
            "servicebroker.testing.open(connect=...), or use servicebroker.open for a test that needs PostgreSQL."
        )

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of `servicebroker.operations`. Each statement's method does this."""
        interpreter = INTERPRETERS.get(type(operation))
        if interpreter is None:
            raise BrokerError(402, "operation", short_repr(operation), "a value of servicebroker.operations")
        result: T = interpreter(self, operation)
        return result

    begin_dialog = method_of(BeginDialog)

    send = method_of(Send)

    send_batch = method_of(SendBatch)

    receive = method_of(Receive)

    get_conversation_group = method_of(GetConversationGroup)

    move_conversation = method_of(MoveConversation)

    request = method_of(Request)

    begin_request = method_of(BeginRequest)

    wait_for_answer = method_of(WaitForAnswer)

    end_conversation = method_of(EndConversation)

    begin_conversation_timer = method_of(BeginConversationTimer)

    get_transmission_status = method_of(GetTransmissionStatus)

    delayed_messages = method_of(DelayedMessages)

    cancel_delayed = method_of(CancelDelayed)

    # ------------------------------------------------------------ views for tests

    def conversation_endpoints(self) -> list[views.Row]:
        """Return the rows of sys.conversation_endpoints of this database, without session keys and stamps."""
        with self._verb() as session:
            return views.conversation_endpoints(session, self.database.broker)

    def conversation_groups(self) -> list[views.Row]:
        """Return the groups of this database, each with its service."""
        with self._verb() as session:
            return views.conversation_groups(session, self.database.broker)

    def transmission_queue(self) -> list[views.Row]:
        """Return the rows of sys.transmission_queue of this database."""
        with self._verb() as session:
            return views.transmission_queue(session, self.database.broker)

    def queue_messages(self, queue: str) -> list[views.Row]:
        """Return the rows of SELECT * FROM the queue, in the order of arrival."""
        with self._verb() as session:
            return views.queue_messages(session, find_queue(self.database.broker, queue))

    def _wait_for(self, operation: Receive | GetConversationGroup, once: Callable[[], T]) -> T:
        """Run WAITFOR: call `once` until it returns something, or until the wait has passed by the clock.

        Instead of waiting, this moves the clock to the next timer or lifetime, at most to the end of the wait.
        """
        operation.check_wait()
        queue, wait, clock = operation.queue, operation.timeout_s, self.database.instance.clock
        result = once()
        while not result and wait > 0:
            started_at = clock()
            clock.jump_to(self._next_attempt(queue, wait))
            self.database.instance._run_workers()
            wait -= (clock() - started_at).total_seconds()
            result = once()
        return result

    def _next_attempt(self, queue: str, wait: float) -> datetime:
        with self._verb() as session:
            queues = [(self.database, queue)]
            queues += [(database, worker.queue) for database, worker, _ in self.database.instance._workers]
            times = [
                receiving.next_due(session, find_queue(watched_database.broker, name))
                for watched_database, name in queues
            ]
            due = min((time for time in times if time), default=None)
            if wait < float("inf"):
                end = session.now + timedelta(seconds=wait)
                return min(due or end, end)
        if due is None:
            raise WouldWait(
                f"No timer, lifetime or retry is due in the queue '{queue}' at any time, so this would wait for ever: "
                "pass a finite `wait`, or send a message first."
            )
        return due


# ---------------------------------------------------------------- how the double runs operations


def _send(verbs: Verbs, operation: Send[Any]) -> Any:
    with verbs._verb() as session:
        return delivery.send(session, operation)


def _send_batch(verbs: Verbs, operation: SendBatch) -> int:
    with verbs._verb() as session:
        return delivery.send_batch(session, operation)


def _receive(verbs: Verbs, operation: Receive) -> list[Message]:
    """RECEIVE, which skips groups that another transaction has locked.

    Raises:
        WouldWait: the wait would be endless, or another transaction has locked the group of WHERE.
    """

    def once() -> list[Message]:
        with verbs._verb() as session:
            queue = find_queue(verbs.database.broker, operation.queue)
            receiving.prepare_receive(session, queue, operation)
        with verbs._verb() as session:
            messages = receiving.receive(session, queue, operation)
            if messages:
                session.received_from.add(queue.queue_id)
            return messages

    return verbs._wait_for(operation, once)


def _get_conversation_group(verbs: Verbs, operation: GetConversationGroup) -> UUID | None:
    def once() -> UUID | None:
        with verbs._verb() as session:
            return receiving.get_conversation_group(session, find_queue(verbs.database.broker, operation.queue))

    return verbs._wait_for(operation, once)


def _begin_dialog(verbs: Verbs, operation: BeginDialog) -> UUID:
    """BEGIN DIALOG; ENCRYPTION makes no difference within an instance."""
    with verbs._verb() as session:
        return dialogs.begin_dialog(session, verbs.database.broker, operation)


def _end_conversation(verbs: Verbs, operation: EndConversation) -> None:
    with verbs._verb() as session:
        ending.end_conversation(session, operation)


def _move_conversation(verbs: Verbs, operation: MoveConversation) -> None:
    with verbs._verb() as session:
        dialogs.move_conversation(session, operation)


def _begin_conversation_timer(verbs: Verbs, operation: BeginConversationTimer) -> None:
    with verbs._verb() as session:
        dialogs.begin_conversation_timer(session, operation)


def _get_transmission_status(verbs: Verbs, operation: GetTransmissionStatus) -> str:
    operation.check()
    rows = [row for row in verbs.transmission_queue() if row["conversation_handle"] == operation.handle]
    oldest = min(rows, key=lambda row: row["message_sequence_number"], default=None)
    return "" if oldest is None else str(oldest["transmission_status"])


def _delayed_messages(verbs: Verbs, operation: DelayedMessages) -> list[DelayedMessage]:
    with verbs._verb() as session:
        return delivery.find_delayed(session, verbs.database.broker, operation)


def _cancel_delayed(verbs: Verbs, operation: CancelDelayed) -> int:
    with verbs._verb() as session:
        return delivery.cancel_delayed(session, operation)


INTERPRETERS: Mapping[type[Operation[Any]], Callable[[Any, Any], Any]] = {
    Send: _send,
    SendBatch: _send_batch,
    Receive: _receive,
    GetConversationGroup: _get_conversation_group,
    Request: requests.request,
    BeginRequest: requests.begin_request,
    WaitForAnswer: requests.wait_for_answer,
    BeginDialog: _begin_dialog,
    EndConversation: _end_conversation,
    MoveConversation: _move_conversation,
    BeginConversationTimer: _begin_conversation_timer,
    GetTransmissionStatus: _get_transmission_status,
    DelayedMessages: _delayed_messages,
    CancelDelayed: _cancel_delayed,
    Schedules: schedules.find_all,
    DropSchedule: schedules.drop,
    KeepSchedule: schedules.keep,
    TakeTurn: schedules.take_turn,
    SetAsideMessages: failures.find,
    DeadLetterGroups: failures.groups,
    ReplayMessage: failures.replay,
    DiscardMessage: failures.discard,
}
