"""The verbs (SEND, RECEIVE ...) for PostgreSQL roles with rights on the tables, such as the owner of the schema.

Each operation has a function, in the table `OwnerVerbs.interpreters` at the end. `restricted_verbs.py` has the verbs of
roles without rights on the tables. An instance decides which of the two it uses when it is opened.

A deferred verb is sent with a later statement of its transaction, at the latest at the commit (`deferred_dialogs.py`,
`deferred_answers.py`). A path is the cached delivery path of new conversations (`catalog/delivery_paths.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import UUID

from servicebroker.engine.activation import poison_detection
from servicebroker.engine.catalog import catalog, databases
from servicebroker.engine.catalog.catalog import Catalog, Labels, Queue
from servicebroker.engine.catalog.delivery_paths import DeliveryPath
from servicebroker.engine.conversation import (
    begin,
    deferred_answers,
    deferred_dialogs,
    end,
    endpoints,
    failed_messages,
    move,
    multicast,
    pipelined_sends,
    receive,
    requests,
    schedules,
    send,
    traces,
    verb_events,
)
from servicebroker.engine.conversation.begin import Identity
from servicebroker.engine.conversation.deferred_answers import DeferredVerb
from servicebroker.engine.conversation.deferred_dialogs import (
    DeferredBatch,
    DeferredDialog,
    DeferredSend,
    StepwiseVerbs,
)
from servicebroker.engine.conversation.receive import Received, ReceivedState
from servicebroker.engine.conversation.replay import replay
from servicebroker.engine.delivery import delayed_messages, transmission
from servicebroker.engine.diagnosis.audit import record_action
from servicebroker.engine.security import authorization, principals
from servicebroker.model.arguments import CURRENT_DATABASE
from servicebroker.model.conversation_events import VerbEvent
from servicebroker.model.errors import BrokerError
from servicebroker.model.handlers.schedules import Firing, ScheduledJob
from servicebroker.model.messages import DelayedMessage, Message
from servicebroker.model.poison import DeadLetterGroup, SetAsideMessage
from servicebroker.model.requests import LateAnswerTreatment
from servicebroker.model.security.permissions import User
from servicebroker.model.workers import ExpectedType
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog, RepeatedHandle
from servicebroker.operations.dead_letters import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.delayed import CancelDelayed, DelayedMessages
from servicebroker.operations.end import EndConversation
from servicebroker.operations.move import MoveConversation
from servicebroker.operations.operation import Operation
from servicebroker.operations.receive import GetConversationGroup, Hold, Receive
from servicebroker.operations.schedules import DropSchedule, KeepSchedule, Schedules, TakeTurn
from servicebroker.operations.send import Send, SendBatch
from servicebroker.operations.transmission_status import GetTransmissionStatus
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Rows, Statement, Steps

SQL = SqlFile(__file__)


T = TypeVar("T")
Sent = TypeVar("Sent", int, list[int])


NOT_FOUND = {
    8423,
    8425,
    8426,
    8436,
    15151,
}  # error numbers for a missing service, contract, conversation, group, object


class Settings(Protocol):
    """The settings of an open instance: the clock, the size limit of a body in bytes, and `draw` for new handles."""

    clock: Callable[[], datetime]
    maximum_body: int
    draw: Callable[[], UUID]


@dataclass
class OwnerVerbs:
    """The verbs of one principal in one database. They raise the errors of the functions that they call.

    Attributes:
        user: the principal whose permissions are checked.
        catalog: the cache of this process for that principal.
        settings: the settings of the instance.
    """

    user: User
    catalog: Catalog
    settings: Settings

    runs_maintenance = True  # True if the role may run due timers and store counts
    interpreters: ClassVar[Mapping[type[Operation[Any]], Callable[..., Steps[Any]]]]  # the function for each operation

    def forget(self, operation: Operation[Any]) -> None:
        """Forget cached facts of the operation's queue or conversations, after an error for a dropped queue."""
        if isinstance(operation, Send | SendBatch | EndConversation):
            for handle in operation.handles:
                self.catalog.forget(handle)
                self.catalog.received.pop(handle.bytes, None)
        elif isinstance(operation, Receive | GetConversationGroup):
            queue = self.catalog.queues.get((self.user.database_id, operation.queue))
            if queue is not None:
                self.catalog.forget_queue(queue.queue_id)

    # ------------------------------------------------------------ databases, users and queues

    @staticmethod
    def find_database(name: str, *, create: bool) -> Steps[int]:
        """Return the id of the database of that name; with `create`, create a missing one."""
        return databases.ensure_database(name) if create else databases.find_database(name)

    @staticmethod
    def find_user(database_id: int, name: str | None) -> Steps[User]:
        """Return the database user of that name, or the one mapped to the PostgreSQL role."""
        return principals.find_user(database_id, name)

    @staticmethod
    def disable_queue(queue_id: int, now: datetime) -> Steps[poison_detection.DisabledQueue | None]:
        """Switch the queue off, after automatic poison detection has counted five rollbacks."""
        return poison_detection.disable_queue(queue_id, now)

    @staticmethod
    def register_reader(queue_ids: list[int]) -> Steps[None]:
        """Register this session for notifications of messages in these queues, and in no others.

        Registering also deletes the rows of sessions that died.
        """
        if not queue_ids:
            yield SQL("register_reader.delete_readers")
            return
        yield SQL("register_reader.insert_readers", (queue_ids,))

    @staticmethod
    def find_expected_types(queue_id: int) -> Steps[list[ExpectedType]]:
        """Return the message types that only initiators send to the queue, by the contracts of its services."""
        return catalog.find_expected_types(queue_id)

    @staticmethod
    def last_queuing_order(queue_id: int) -> Steps[int | None]:
        """Return the last queuing order that a message of the queue got. None if the role may not receive from it."""
        rows = yield Statement(
            "owner_verbs.last_queuing_order",
            f"select last_value from servicebroker.queue_{queue_id}_order",
            prepared=False,
        )
        return int(rows[0][0])

    @staticmethod
    def keep_lock(group: UUID) -> Statement:
        """Lock a group for the session, too, after the transaction has locked it."""
        return endpoints.keep_lock(group)

    # ------------------------------------------------------------ cached lookups

    def with_database_check(self, steps: Steps[T]) -> Steps[T]:
        """Run a verb in the database. A "not found" error is replaced by 8442 if the database itself was dropped.

        Raises:
            BrokerError: 8442 the database was dropped, and what the verb raises.
        """
        try:
            return (yield from steps)
        except BrokerError as refused:
            if refused.number in NOT_FOUND:
                yield from self.check_database()
            raise

    def check_database(self) -> Steps[None]:
        """Raise 8442 if the database was dropped."""
        return databases.check_database(self.user.database_id)

    def find_queue(self, name: str) -> Steps[Queue]:
        """Return the queue of that name, from the cache if possible."""
        return catalog.find_queue(self.catalog, self.user.database_id, name)

    def find_labels(self, *, anew: bool = False) -> Steps[Labels]:
        """Return the names of services, contracts and message types by id, from the cache if possible."""
        return catalog.find_labels(self.catalog, self.user.database_id, anew=anew)

    # ------------------------------------------------------------ deferred conversations

    def defer_begin(self, operation: BeginDialog, group: UUID | None = None) -> DeferredDialog | None:
        """Defer BEGIN DIALOG. Returns None if its delivery path is not cached. `group`: the id of the new group."""
        path = deferred_dialogs.find_path(self.catalog, self.user.database_id, operation)
        if path is None:
            return None
        return deferred_dialogs.defer_begin(operation, path, self.settings.draw, self.settings.clock(), group)

    def defer_send(self, dialog: DeferredDialog, operation: Send[int] | SendBatch) -> DeferredSend | None:
        """Defer SEND on a deferred conversation. None if it cannot be deferred, so that the verbs must run now."""
        return deferred_dialogs.defer_send(dialog, operation, self.settings.clock(), self.settings.maximum_body)

    def defer_timer(self, dialog: DeferredDialog, operation: BeginConversationTimer) -> bool:
        """Defer BEGIN CONVERSATION TIMER on a deferred conversation. False if its permission has to be checked."""
        if not self.user.is_dbo:
            return False
        dialog.set_timer(operation, self.settings.clock())
        return True

    def begin_deferred(self, batch: DeferredBatch) -> Steps[None]:
        """Run the deferred BEGIN DIALOGs and SENDs."""
        return deferred_dialogs.begin_deferred(self.catalog, batch, self._verbs_of_deferred)

    @staticmethod
    def is_one_statement(batch: DeferredBatch) -> bool:
        """Check whether `begin_deferred` needs only one statement, if the cached path is still valid."""
        return deferred_dialogs.is_one_statement(batch)

    def forget_paths(self, dialogs: Sequence[DeferredDialog]) -> None:
        """Forget cached paths of new conversations whose statement failed."""
        for dialog in dialogs:
            if dialog.path is not None:
                self.catalog.paths.forget(dialog.path)

    @cached_property
    def _verbs_of_deferred(self) -> StepwiseVerbs:
        return StepwiseVerbs(
            partial(_begin_dialog, self), partial(_begin_conversation_timer, self), partial(_send_any, self)
        )

    # ------------------------------------------------------------ requests, answers, traces and failures

    def send_pipelined(self, sends: Sequence[pipelined_sends.PipelinedSend]) -> Steps[dict[int, int]]:
        """Run SENDs that were pipelined on the connection. Returns their sequence numbers, by position."""
        return pipelined_sends.send_pipelined(self.catalog, sends, partial(_send_batch, self), self.settings.clock())

    def service_changes(self, queue: Queue) -> Steps[int]:
        """Return how often services of the queue were altered or dropped."""
        return receive.service_changes(queue)

    def find_answer_queue(self, handle: UUID) -> Steps[requests.AnswerQueue]:
        """Return the queue into which answers on a conversation are delivered: the queue of this side."""
        return requests.find_answer_queue(self.user.database_id, handle)

    @staticmethod
    def find_answered(queue_id: int, handles: Sequence[UUID]) -> Steps[list[UUID]]:
        """Return those of the conversations that have messages in the queue."""
        return requests.find_answered(queue_id, handles)

    def receive_answers(self, queue_id: int, handles: Sequence[UUID]) -> Steps[Received]:
        """RECEIVE the answers of several requests at once. Returns no messages if permissions have to be checked."""
        if not self.user.is_dbo:
            return Received((), 0)
        return (yield from requests.receive_answers(self.catalog, queue_id, handles))

    def find_late(self, queue_id: int) -> Steps[list[requests.LateAnswer]]:
        """Return requests in the queue whose answer is late and has to be handled."""
        return authorization.run_authorized(
            requests.find_late(queue_id, self.settings.clock(), LateAnswerTreatment.HANDLE),
            self.user,
            "RECEIVE",
            authorization.queue_number(queue_id),
        )

    def observe(self, operation: Operation[T], steps: Steps[T], report: Callable[[VerbEvent], None]) -> Steps[T]:
        """Run the steps of an operation, and report the events of its conversations."""
        return verb_events.observe(operation, steps, report)

    def sent_with_trace(self, steps: Steps[Sent], handles: Sequence[UUID], count: int, context: bytes) -> Steps[Sent]:
        """Run a SEND of `count` messages on each handle, and store their trace context."""
        return traces.send_with_context(steps, handles, count, context, self.settings.clock())

    def take_traces(self, messages: Sequence[tuple[UUID, int]]) -> Steps[list[bytes]]:
        """Return the trace contexts of received messages."""
        return traces.take(messages)

    def take(self, queue_id: int, messages: Sequence[Message]) -> Steps[ReceivedState]:
        """Delete messages of one group that a `Hold`, a RECEIVE that leaves messages in the queue, has read."""
        return receive.take(queue_id, messages)

    def may_defer(self, handle: UUID, taken: ReceivedState) -> bool:
        """Return whether SEND and END on a received conversation may be deferred."""
        return self.user.is_dbo and deferred_answers.may_defer(self.catalog, handle, taken)

    def defer_answer(self, operation: Send[int], number: int) -> DeferredVerb | None:
        """Defer SEND on a received conversation, whose next sequence number is `number`."""
        if not self.user.is_dbo:
            return None
        settings = self.settings
        return deferred_answers.defer_send(
            self.catalog, operation, number, now=settings.clock(), maximum_body=settings.maximum_body
        )

    def remove_closed(self) -> Steps[int]:
        """Remove closed endpoints that protect against replays no more. Return their number."""
        return endpoints.remove_closed_endpoints(self.settings.clock())

    def defer_end(self, operation: EndConversation) -> DeferredVerb | None:
        """Defer END CONVERSATION on a received conversation."""
        return deferred_answers.defer_end(self.catalog, operation, self.settings.clock()) if self.user.is_dbo else None

    def answer_ends(self, queue_id: int, messages: Sequence[Message]) -> Steps[list[UUID]]:
        """END CONVERSATION for each EndDialog that a `Hold` has read. Returns the handles of ended conversations."""
        if not self.user.is_dbo:  # each needs a permission check
            return []
        ended = yield from end.answer_ends(queue_id, messages, self.settings.clock())
        for handle in ended:
            self.catalog.forget_ended(handle)
        return ended

    def find_failures(self, message: Message) -> Steps[failed_messages.FailureRecord | None]:
        """Return the record of this message's failures; None if it has never failed."""
        return failed_messages.find_failures(message)

    def track_failure(
        self, queue_id: int, message: Message, known: failed_messages.FailureRecord, error: str, after: float
    ) -> Steps[None]:
        """Record a failure of the message, which is retried after `after` seconds."""
        return failed_messages.record_failure(queue_id, message, known, error, self.settings.clock(), after)

    def call(self, function: str, *arguments: object) -> Steps[Rows]:
        """Call a function of store/verbs.sql, and return its rows."""
        placeholders = ", ".join(f"${number}" for number in range(1, len(arguments) + 1))
        sql = f"select * from servicebroker.{function}({placeholders})"
        return (yield Statement("owner_verbs.call", sql, arguments))

    def forget_failures(self, handles: list[UUID]) -> Steps[None]:
        """Delete the failures recorded for these conversations, whose messages were processed."""
        return failed_messages.forget(handles)

    def sweep_failures(self, queue_id: int) -> Steps[None]:
        """Delete the failures recorded for messages that are no longer in the queue."""
        return failed_messages.sweep(queue_id)

    def set_aside(
        self, queue_id: int, message: Message, known: failed_messages.FailureRecord, error: str, traceback: str
    ) -> Steps[None]:
        """Store a received message as a dead letter."""
        return failed_messages.set_aside(
            self.user.database_id, queue_id, message, known, error, traceback, self.settings.clock()
        )


# ---------------------------------------------------------------- functions of the operations


def _send(verbs: OwnerVerbs, operation: Send[Any]) -> Steps[Any]:
    run: Callable[..., Steps[Any]] = send.send if isinstance(operation.handle, UUID) else multicast.send_multicast
    return run(verbs.catalog, operation, now=verbs.settings.clock(), maximum_body=verbs.settings.maximum_body)


def _send_batch(verbs: OwnerVerbs, operation: SendBatch) -> Steps[int]:
    settings = verbs.settings
    return send.send_batch(verbs.catalog, operation, now=settings.clock(), maximum_body=settings.maximum_body)


def _send_any(verbs: OwnerVerbs, operation: Send[Any] | SendBatch) -> Steps[Any]:
    return _send_batch(verbs, operation) if isinstance(operation, SendBatch) else _send(verbs, operation)


def _receive(verbs: OwnerVerbs, operation: Receive) -> Steps[tuple[int, Received]]:
    """RECEIVE. Returns the queue's id and the received rows."""
    queue = yield from verbs.find_queue(operation.queue)
    return queue.queue_id, (yield from receive.receive(verbs.catalog, queue, operation, now=verbs.settings.clock()))


def _get_conversation_group(verbs: OwnerVerbs, operation: GetConversationGroup) -> Steps[UUID | None]:
    queue = yield from verbs.find_queue(operation.queue)
    yield from authorization.authorize(verbs.user, operation.permission, authorization.queue_number(queue.queue_id))
    return (yield from receive.get_conversation_group(queue, now=verbs.settings.clock()))


def _begin_dialog(verbs: OwnerVerbs, operation: BeginDialog, identity: Identity | None = None) -> Steps[UUID]:
    database_id, paths, now = verbs.user.database_id, verbs.catalog.paths, verbs.settings.clock()
    principal_id = verbs.user.principal_id
    own, handle = paths.find_own_side(database_id, operation.from_service, operation.contract), None
    # not for CURRENT DATABASE, because begin_dialog has to lock the database's broker identifier
    is_cached = own is not None and operation.target_broker != CURRENT_DATABASE
    if own is not None and is_cached:
        operation.check()
        handle = yield from begin.begin_at(
            database_id, own, operation, now=now, identity=identity, principal_id=principal_id
        )
    if handle is None:
        yield from _authorize_begin(verbs, operation)
        handle = yield from begin.begin_dialog(
            database_id, operation, now=now, identity=identity, principal_id=principal_id
        )
        if own is None or is_cached:
            yield from _remember_own_side(verbs, operation)
    path = deferred_dialogs.find_path(verbs.catalog, database_id, operation)
    if isinstance(path, DeliveryPath) and not isinstance(handle, RepeatedHandle):
        paths.record_begun(handle, path)
    return handle


def _remember_own_side(verbs: OwnerVerbs, operation: BeginDialog) -> Steps[None]:
    """Cache the initiator's side. Checks permissions again, since they may have changed after the first check."""
    own = yield from begin.find_own_side(verbs.user.database_id, operation)
    with suppress(BrokerError):
        yield from _authorize_begin(verbs, operation)
        verbs.catalog.paths.remember_own_side(verbs.user.database_id, operation.from_service, operation.contract, own)


def _authorize_begin(verbs: OwnerVerbs, operation: BeginDialog) -> Steps[None]:
    queue = authorization.queue_of(operation.from_service)
    contract = authorization.contracts([operation.contract])
    yield from authorization.authorize(verbs.user, operation.permission, queue, contract)


def _end_conversation(verbs: OwnerVerbs, operation: EndConversation) -> Steps[None]:
    if verbs.user.is_dbo:
        yield from end.end_conversation(operation, now=verbs.settings.clock(), catalog=verbs.catalog)
    else:
        yield from end.end_permitted(verbs.catalog, verbs.user, operation, now=verbs.settings.clock())


def _move_conversation(verbs: OwnerVerbs, operation: MoveConversation) -> Steps[None]:
    yield from authorization.authorize(verbs.user, operation.permission, authorization.conversation(operation.handle))
    yield from move.move_conversation(operation)


def _begin_conversation_timer(verbs: OwnerVerbs, operation: BeginConversationTimer) -> Steps[None]:
    yield from authorization.authorize(verbs.user, operation.permission, authorization.conversation(operation.handle))
    yield from begin.begin_conversation_timer(operation, now=verbs.settings.clock())


def _get_transmission_status(verbs: OwnerVerbs, operation: GetTransmissionStatus) -> Steps[str]:
    return transmission.get_transmission_status(verbs.user.database_id, operation)


def _list_dead_letters(verbs: OwnerVerbs, operation: SetAsideMessages) -> Steps[list[SetAsideMessage]]:
    operation.check()
    queue_id = yield from _find_dead_letter_queue(verbs, operation)
    return (yield from failed_messages.find_dead_letters(verbs.user.database_id, queue_id, operation))


def _dead_letter_groups(verbs: OwnerVerbs, operation: DeadLetterGroups) -> Steps[list[DeadLetterGroup]]:
    queue_id = yield from _find_dead_letter_queue(verbs, operation)
    return (yield from failed_messages.find_groups(verbs.user.database_id, queue_id))


def _find_dead_letter_queue(verbs: OwnerVerbs, operation: SetAsideMessages | DeadLetterGroups) -> Steps[int | None]:
    """Return the id of the queue that the operation names; None for all queues. Checks the permission."""
    yield from authorization.demand(verbs.user, operation.permission)
    if operation.queue is None:
        return None
    return (yield from catalog.find_queue_uncached("find", verbs.user.database_id, operation.queue)).queue_id


def _replay_message(verbs: OwnerVerbs, operation: ReplayMessage) -> Steps[UUID | None]:
    operation.check()
    yield from authorization.demand(verbs.user, operation.permission)
    now, maximum = verbs.settings.clock(), verbs.settings.maximum_body
    message, handle = yield from replay(verbs.catalog, verbs.user.database_id, operation, now=now, maximum_body=maximum)
    edited = {"body": "edited"} if operation.is_edited else {}
    new_handle = {} if handle is None else {"new_conversation": handle}
    number = str(operation.set_aside_id)
    yield from record_action("REPLAY MESSAGE", verbs.user.database, number, message._asdict() | edited | new_handle)
    return handle


def _discard_message(verbs: OwnerVerbs, operation: DiscardMessage) -> Steps[None]:
    operation.check()
    yield from authorization.demand(verbs.user, operation.permission)
    message = yield from failed_messages.discard(verbs.user.database_id, operation.set_aside_id)
    yield from record_action("DISCARD MESSAGE", verbs.user.database, str(operation.set_aside_id), message._asdict())


def _delayed_messages(verbs: OwnerVerbs, operation: DelayedMessages) -> Steps[list[DelayedMessage]]:
    operation.check()
    if operation.handle is None:
        yield from authorization.demand(verbs.user, operation.permission)
    else:
        yield from authorization.authorize(
            verbs.user, CancelDelayed.permission, authorization.conversation(operation.handle)
        )
    return (yield from delayed_messages.find_delayed(verbs.user.database_id, operation.handle))


def _cancel_delayed(verbs: OwnerVerbs, operation: CancelDelayed) -> Steps[int]:
    operation.check()
    yield from endpoints.find_endpoint(operation.handle)
    yield from authorization.authorize(verbs.user, operation.permission, authorization.conversation(operation.handle))
    return (yield from delayed_messages.cancel(operation.handle, operation.number))


def _schedules(verbs: OwnerVerbs, operation: Schedules) -> Steps[list[ScheduledJob]]:
    yield from authorization.demand(verbs.user, operation.permission)
    return (yield from schedules.find_all(verbs.user.database_id))


def _drop_schedule(verbs: OwnerVerbs, operation: DropSchedule) -> Steps[None]:
    operation.check()
    yield from authorization.demand(verbs.user, operation.permission)
    queue = yield from verbs.find_queue(operation.queue)
    handle = yield from schedules.drop(queue, operation)
    with suppress(BrokerError):  # its conversation has ended
        yield from _end_conversation(verbs, EndConversation(handle, cleanup=True))


def keep_schedule(verbs: OwnerVerbs, operation: KeepSchedule) -> Steps[None]:
    """Begin a schedule of a worker, or change it. Restricted roles use this function, too."""
    queue = yield from verbs.find_queue(operation.queue)
    interpreters = verbs.interpreters
    begin, end = partial(interpreters[BeginDialog], verbs), partial(interpreters[EndConversation], verbs)
    yield from schedules.keep(verbs.call, queue, operation, verbs.settings.clock(), begin, end)


def take_turn(verbs: OwnerVerbs, operation: TakeTurn) -> Steps[Firing | None]:
    """Claim the due time of a schedule, so that only one worker runs it. Restricted roles use this function, too."""
    end = partial(verbs.interpreters[EndConversation], verbs)
    return (yield from schedules.take_turn(verbs.call, operation, verbs.settings.clock(), end))


OwnerVerbs.interpreters = {
    Send: _send,
    SendBatch: _send_batch,
    Receive: _receive,
    Hold: _receive,
    GetConversationGroup: _get_conversation_group,
    BeginDialog: _begin_dialog,
    EndConversation: _end_conversation,
    MoveConversation: _move_conversation,
    BeginConversationTimer: _begin_conversation_timer,
    GetTransmissionStatus: _get_transmission_status,
    SetAsideMessages: _list_dead_letters,
    DeadLetterGroups: _dead_letter_groups,
    ReplayMessage: _replay_message,
    DiscardMessage: _discard_message,
    DelayedMessages: _delayed_messages,
    CancelDelayed: _cancel_delayed,
    Schedules: _schedules,
    DropSchedule: _drop_schedule,
    KeepSchedule: keep_schedule,
    TakeTurn: take_turn,
}
