"""The verbs of a restricted PostgreSQL role, which has no rights on the tables.

Each verb calls a function of store/fence.sql, which checks permissions and runs with the rights of the schema's owner.
Methods, operations, results and errors are those of `OwnerVerbs`, with two differences. Sent messages go into the
transmission queue, and a process of the owner delivers them. The time is the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from servicebroker.engine.activation.poison_detection import DisabledQueue
from servicebroker.engine.catalog.catalog import Labels, Queue
from servicebroker.engine.catalog.delivery_paths import RestrictedPathKey
from servicebroker.engine.conversation import deferred_dialogs, enqueue, receive
from servicebroker.engine.conversation.deferred_dialogs import DeferredBatch, DeferredDialog, DeferredSend
from servicebroker.engine.conversation.failed_messages import FailureRecord
from servicebroker.engine.conversation.owner_verbs import OwnerVerbs, Sent, keep_schedule, take_turn
from servicebroker.engine.conversation.pipelined_sends import PipelinedSend, send_in_runs
from servicebroker.engine.conversation.receive import Received, refuse_pipeline
from servicebroker.engine.conversation.requests import AnswerQueue, LateAnswer, answer_queue_of, late_of
from servicebroker.model import names
from servicebroker.model.conversation_events import VerbEvent
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import DelayedMessage, Message
from servicebroker.model.requests import LateAnswerTreatment, late_groups
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
from servicebroker.overriding import override
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Bodies, Rows, Statement, Steps

SQL = SqlFile(__file__)


T = TypeVar("T")

_CALLER_KEY = "(select key from servicebroker_fence.caller)"  # proves the calling role: only the role can read its row
_READ_BY_PIPELINE = "pipeline"  # returned instead of an error number if a pipeline reads the queue


class RestrictedVerbs(OwnerVerbs):
    """The verbs of a restricted role in one database."""

    runs_maintenance = False

    # ------------------------------------------------------------ of the instance

    @override
    @staticmethod
    def find_database(name: str, *, create: bool) -> Steps[int]:
        """Return the id of the database of that name. A restricted role cannot create it."""
        rows = yield call("database", names.checked("database", name))
        _refuse(rows[0][1])
        return int(rows[0][0])

    @override
    @staticmethod
    def find_user(database_id: int, name: str | None) -> Steps[User]:
        """Return the user that is mapped to the role, or guest. A restricted role cannot impersonate another user.

        Raises:
            BrokerError: 916 without CONNECT, 15517 for the name of another user.
        """
        rows = yield call("principal", database_id)
        database, principal_id, principal, refusal = rows[0]
        _refuse(refusal)
        if name is not None and names.checked("user", name).lower() != principal.lower():
            raise BrokerError(15517, name)
        return User(database_id, database, principal_id, principal)

    @override
    @staticmethod
    def disable_queue(queue_id: int, now: datetime) -> Steps[DisabledQueue | None]:
        """Switch the queue off. A process of the owner sends the event notifications."""
        rows = yield call("disable_queue", queue_id)
        database_id, name = rows[0]
        return None if database_id is None else DisabledQueue(database_id, name, [])

    @override
    @staticmethod
    def register_reader(queue_ids: list[int]) -> Steps[None]:
        """Register this session for notifications of those queues from which the role may receive."""
        yield call("wait_for", queue_ids)

    @override
    @staticmethod
    def find_expected_types(queue_id: int) -> Steps[list[ExpectedType]]:
        """Return the message types that only initiators send to the queue; none without permission to receive."""
        rows = yield call("expected_types", queue_id)
        return [ExpectedType(*row) for row in rows]

    @override
    @staticmethod
    def last_queuing_order(queue_id: int) -> Steps[int | None]:
        """Return the last queuing order that a message of the queue got. None if the role may not receive from it."""
        rows = yield call("drawn", queue_id)
        return None if rows[0][0] is None else int(rows[0][0])

    # ------------------------------------------------------------ cached lookups

    @override
    def check_database(self) -> Steps[None]:
        """Raise 8442 if the database was dropped."""
        rows = yield call("is_there", self.user.database_id)
        if not rows[0][0]:
            raise BrokerError(8442)

    @override
    def find_queue(self, name: str) -> Steps[Queue]:
        """Return the queue of that name, from the cache if possible."""
        key = self.user.database_id, name
        cached = self.catalog.queues.get(key) if isinstance(name, str) else None
        if cached is not None:
            return cached
        rows = yield call("queue", self.user.database_id, *names.split_queue_name(name))
        queue_id, stored_name, refusal = rows[0]
        _refuse(refusal)
        if queue_id is None:
            raise BrokerError(15151, "find", "queue", name)
        queue = self.catalog.queues[key] = Queue(queue_id, self.user.database_id, stored_name)
        return queue

    @override
    def find_labels(self, *, anew: bool = False) -> Steps[Labels]:
        """Return names by id, from the cache if possible. Services only if the role may receive their messages."""
        cached = self.catalog.labels.get(self.user.database_id)
        if cached is not None and not anew:
            return cached
        rows = yield call("labels", self.user.database_id)
        kinds: tuple[dict[int, str], ...] = ({}, {}, {})
        for kind, number, name in rows:
            kinds[kind - 1][number] = name
        labels = self.catalog.labels[self.user.database_id] = Labels(*kinds)
        return labels

    # ------------------------------------------------------------ deferred conversations

    @override
    def defer_begin(self, operation: BeginDialog, group: UUID | None = None) -> DeferredDialog | None:
        """Defer BEGIN DIALOG. Returns None if this process has not sent on such a conversation of the role before."""
        operation.check()
        if self.catalog.restricted_paths.find(_key(operation)) is None:
            return None
        return deferred_dialogs.defer_begin(operation, None, self.settings.draw, self.settings.clock(), group)

    @override
    def defer_send(self, dialog: DeferredDialog, operation: Send[int] | SendBatch) -> DeferredSend | None:
        """Defer SEND on a deferred conversation. None if the role has sent no message of this type on such ones."""
        contents = deferred_dialogs.contents_of(operation, self.settings.maximum_body)
        types = self.catalog.restricted_paths.find(_key(dialog.operation)) or ()
        if operation.message_type not in types or operation.is_delayed or dialog.expiry <= self.settings.clock():
            return None
        return DeferredSend(dialog, dialog.message_count, operation, contents, None)

    @override
    def defer_timer(self, dialog: DeferredDialog, operation: BeginConversationTimer) -> bool:
        """Return False: BEGIN CONVERSATION TIMER is not deferred, because its permission has to be checked."""
        return False

    @override
    @staticmethod
    def is_one_statement(batch: DeferredBatch) -> bool:
        """Check whether `begin_deferred` is one statement if no message is refused."""
        return len(batch.dialogs) == 1

    @override
    def begin_deferred(self, batch: DeferredBatch) -> Steps[None]:
        """Run the deferred BEGIN DIALOGs and SENDs, one statement for each conversation, in order of first messages."""
        sends: dict[UUID, list[DeferredSend]] = {}
        for send in batch.sends:
            sends.setdefault(send.dialog.identity.handle, []).append(send)
        dialogs = {dialog.identity.handle: dialog for dialog in batch.dialogs}
        for handle in (*sends, *(handle for handle in dialogs if handle not in sends)):
            yield from _begin_and_send(self, dialogs[handle], sends.get(handle, []))

    @override
    def forget_paths(self, dialogs: Sequence[DeferredDialog]) -> None:
        """Forget cached paths of new conversations whose statement failed."""
        for dialog in dialogs:
            self.catalog.restricted_paths.forget(_key(dialog.operation))

    # ------------------------------------------------------------ beside the verbs

    @override
    def send_pipelined(self, sends: Sequence[PipelinedSend]) -> Steps[dict[int, int]]:
        """Run the SENDs of a pipeline. Returns their sequence numbers, by position in the pipeline."""
        return send_in_runs(sends, partial(_send_batch, self))

    @override
    @staticmethod
    def keep_lock(group: UUID) -> Statement:
        """Lock a group, which the transaction has locked, for the session too."""
        return call("keep_lock", group, locks=True)

    @override
    def service_changes(self, queue: Queue) -> Steps[int]:
        """Return how often services of the queue were altered or dropped."""
        return receive.read_change_count((yield call("service_changes", queue.queue_id)), queue)

    @override
    def find_answer_queue(self, handle: UUID) -> Steps[AnswerQueue]:
        """Return the queue into which answers on a conversation of the role are delivered."""
        return answer_queue_of((yield call("answer_queue", self.user.database_id, handle)), handle)

    @override
    @staticmethod
    def find_answered(queue_id: int, handles: Sequence[UUID]) -> Steps[list[UUID]]:
        """Return those of the conversations that have messages in the queue."""
        rows = yield call("answered", queue_id, list(handles))
        return [handle for (handle,) in rows]

    @override
    def receive_answers(self, queue_id: int, handles: Sequence[UUID]) -> Steps[Received]:
        """Return no answers: a restricted role receives each one with RECEIVE, which checks the permission."""
        return Received((), 0)
        yield

    @override
    def find_late(self, queue_id: int) -> Steps[list[LateAnswer]]:
        """Return requests in the queue whose answer is late and has to be handled."""
        lowest, highest = late_groups(self.settings.clock(), LateAnswerTreatment.HANDLE)
        rows = yield call("late_answers", queue_id, lowest, highest)
        if rows:
            _refuse(rows[0][-1])
        return late_of([row[:2] for row in rows])

    @override
    def observe(self, operation: Operation[T], steps: Steps[T], report: Callable[[VerbEvent], None]) -> Steps[T]:
        """Return the steps unchanged: a restricted role gets no events, because it may not see all conversations."""
        return steps

    @override
    def sent_with_trace(self, steps: Steps[Sent], handles: Sequence[UUID], count: int, context: bytes) -> Steps[Sent]:
        """Run a SEND of `count` messages on each handle, and store their trace context."""
        yield SQL("sent_with_trace")  # opens one transaction, so that no reader sees a message before its context
        result = yield from steps
        numbers = result if isinstance(result, list) else [result]
        yield call("leave_traces", self.user.database_id, list(handles), numbers, count, context)
        return result

    @override
    def take_traces(self, messages: Sequence[tuple[UUID, int]]) -> Steps[list[bytes]]:
        """Return the trace contexts of received messages."""
        rows = yield call(
            "take_traces",
            self.user.database_id,
            [handle for handle, _ in messages],
            [number for _, number in messages],
        )
        return [context for (context,) in rows]

    @override
    def call(self, function: str, *arguments: object) -> Steps[Rows]:
        """Call a function of store/fence.sql. Returns its rows without the last column, which is the error to raise."""
        rows = yield call(function, *arguments)
        if rows:
            _refuse(rows[0][-1])
        return [row[:-1] for row in rows]

    @override
    def take(self, queue_id: int, messages: Sequence[Message]) -> Steps[receive.ReceivedState]:
        """Delete messages of one group that a `Hold` has read."""
        rows = yield call("take", queue_id, messages[0].conversation_group_id, *receive.queue_places(messages))
        return receive.ReceivedState(int(rows[0][0]))

    @override
    def defer_answer(self, operation: Send[int], number: int) -> None:
        """Return None: each SEND of a restricted role checks the permission."""

    @override
    def defer_end(self, operation: EndConversation) -> None:
        """Return None: each END of a restricted role checks the permission."""

    @override
    def answer_ends(self, queue_id: int, messages: Sequence[Message]) -> Steps[list[UUID]]:
        """Return no handles: a restricted role ends each conversation with END, which checks the permission."""
        return []
        yield

    @override
    def find_failures(self, message: Message) -> Steps[FailureRecord | None]:
        """Return how often this message has failed; None if never."""
        rows = yield call("failures", *self._key_of(message))
        return FailureRecord(*rows[0]) if rows else None

    @override
    def track_failure(
        self, queue_id: int, message: Message, known: FailureRecord, error: str, after: float
    ) -> Steps[None]:
        """Record a failure of the message, which is retried after `after` seconds."""
        yield call("track_failure", *self._key_of(message), *known, error, float(after))

    @override
    def forget_failures(self, handles: list[UUID]) -> Steps[None]:
        """Delete the failures recorded for these conversations, whose messages were processed."""
        yield call("forget_failures", self.user.database_id, handles)

    @override
    def sweep_failures(self, queue_id: int) -> Steps[None]:
        """Delete the failures recorded for messages that are no longer in the queue."""
        yield call("sweep_failures", queue_id)

    @override
    def set_aside(
        self, queue_id: int, message: Message, known: FailureRecord, error: str, traceback: str
    ) -> Steps[None]:
        """Store a received message as a dead letter."""
        yield call(
            "set_aside",
            *self._key_of(message),
            message.message_body,
            message.message_enqueue_time,
            *known[:2],
            error,
            traceback,
        )

    def _key_of(self, message: Message) -> tuple[object, ...]:
        return (
            self.user.database_id,
            message.conversation_handle,
            message.message_sequence_number,
            message.message_type_id,
        )


# ---------------------------------------------------------------- how a restricted role runs operations


def _send(verbs: RestrictedVerbs, operation: Send[Any]) -> Steps[Any]:
    """SEND on one or several conversations. Each of them stores its own copy of the body."""
    content = operation.content(verbs.settings.maximum_body)
    numbers = yield from _send_all(verbs, operation.handles, operation.message_type, [content], operation)
    return numbers[0] if operation.is_single else numbers


def _send_batch(verbs: RestrictedVerbs, operation: SendBatch) -> Steps[int]:
    portions = enqueue.split_batch(operation.contents(verbs.settings.maximum_body))
    if len(portions) > 1:
        yield SQL("send_batch")  # opens one transaction
    numbers: list[int] = []
    for portion in portions:
        numbers += yield from _send_all(verbs, operation.handles, operation.message_type, portion, operation)
    return numbers[0]


def _send_all(
    verbs: RestrictedVerbs,
    handles: Sequence[UUID],
    message_type: str,
    contents: Sequence[bytes | None],
    operation: Send[Any] | SendBatch,
) -> Steps[list[int]]:
    bodies = Bodies(content or b"" for content in contents)
    seconds, due = operation.seconds_or_time(verbs.settings.clock()) if operation.is_delayed else (None, None)
    rows = yield call("send_all", verbs.user.database_id, list(handles), message_type, bodies, seconds, due)
    numbers, refusal = rows[0]
    _refuse(refusal)
    for handle in handles:
        verbs.catalog.restricted_paths.record_sent(handle, message_type)
    return list(numbers)


def _receive(verbs: RestrictedVerbs, operation: Receive) -> Steps[tuple[int, Received]]:
    """RECEIVE. Returns the queue's id and the received rows."""
    operation.check()
    queue = yield from verbs.find_queue(operation.queue)
    yield from verbs.find_labels()  # first, so that received rows only need names
    limit, handle, group = receive.limits(operation)
    if operation.groups > 1 or operation.leaves:
        rows = yield call("receive_groups", queue.queue_id, limit, operation.groups, operation.leaves, takes=True)
    else:
        rows = yield call("receive", queue.queue_id, limit, handle, group, takes=True)
    if rows:
        _refuse(rows[0][-1])
    received = yield from receive.read_received([row[:-1] for row in rows], verbs.keep_lock)
    if received is None:
        yield from _check(queue, handle, group)
    return queue.queue_id, received or Received((), 0)


def _get_conversation_group(verbs: RestrictedVerbs, operation: GetConversationGroup) -> Steps[UUID | None]:
    queue = yield from verbs.find_queue(operation.queue)
    rows = yield call("get_conversation_group", queue.queue_id, locks=True)
    if not rows:
        yield from _check(queue, None, None)
        return None
    group: UUID | None
    group, refusal, _ = rows[0]
    _refuse(refusal)
    return group


def _check(queue: Queue, handle: UUID | None, group: UUID | None) -> Steps[None]:
    """Raise the reason why nothing can be received; return if the queue is only empty."""
    receive.raise_unreceivable((yield call("receivable", queue.queue_id, handle, group)), queue, handle, group)


def _begin_dialog(verbs: RestrictedVerbs, operation: BeginDialog) -> Steps[UUID]:
    operation.check()
    rows = yield call(
        "begin_conversation",
        verbs.user.database_id,
        operation.from_service,
        operation.to_service,
        operation.contract,
        operation.lifetime,
        operation.target_broker,
        operation.related_conversation,
        operation.related_conversation_group,
        operation.encryption,
        operation.priority,
        operation.idempotency_key,
        operation.idempotency_ttl,
        locks=True,
    )
    handle, refusal, is_repeated, _ = rows[0]
    _refuse(refusal)
    begun: UUID = handle
    if is_repeated:
        return RepeatedHandle.of(begun)
    verbs.catalog.restricted_paths.record_begun(begun, _key(operation))
    return begun


def _key(operation: BeginDialog) -> RestrictedPathKey:
    """Return the cache key of a new conversation."""
    return RestrictedPathKey(operation.from_service, operation.to_service, operation.contract, operation.target_broker)


def _begin_and_send(verbs: RestrictedVerbs, dialog: DeferredDialog, sends: Sequence[DeferredSend]) -> Steps[None]:
    """BEGIN DIALOG and SEND in one call. If a message is refused, run them one after the other to raise the error."""
    if (yield from _begin_with(verbs, dialog, sends)):
        return
    yield from _begin_with(verbs, dialog, [])
    for send in sends:
        yield from _send_all(
            verbs, [dialog.identity.handle], send.operation.message_type, send.contents, send.operation
        )


def _begin_with(verbs: RestrictedVerbs, dialog: DeferredDialog, sends: Sequence[DeferredSend]) -> Steps[bool]:
    """Begin a deferred conversation with its messages. Returns False, with nothing written, if a message is refused."""
    operation = dialog.operation
    rows = yield call(
        "begin_and_send",
        verbs.user.database_id,
        *dialog.identity,
        operation.from_service,
        operation.to_service,
        operation.contract,
        operation.lifetime,
        operation.target_broker,
        operation.encryption,
        [send.operation.message_type for send in sends for _ in send.contents],
        Bodies(content or b"" for send in sends for content in send.contents),
        locks=True,
    )
    is_done, refusal, _ = rows[0]
    _refuse(refusal)
    return bool(is_done)


def _end_conversation(verbs: RestrictedVerbs, operation: EndConversation) -> Steps[None]:
    operation.check()
    code, description = operation.error or (None, None)
    yield from _call_on(verbs, "end_conversation", operation.handle, code, description, operation.cleanup)


def _move_conversation(verbs: RestrictedVerbs, operation: MoveConversation) -> Steps[None]:
    operation.check()
    yield from _call_on(verbs, "move_conversation", operation.handle, operation.group)


def _begin_conversation_timer(verbs: RestrictedVerbs, operation: BeginConversationTimer) -> Steps[None]:
    operation.check()
    yield from _call_on(verbs, "begin_conversation_timer", operation.handle, operation.timeout)


def _call_on(verbs: RestrictedVerbs, function: str, handle: UUID, *arguments: object) -> Steps[None]:
    """Call a function on a conversation, which locks the conversation's group. Raises the error that it returns."""
    _refuse((yield call(function, verbs.user.database_id, handle, *arguments, locks=True))[0][0])


def _get_transmission_status(verbs: RestrictedVerbs, operation: GetTransmissionStatus) -> Steps[str]:
    """GET_TRANSMISSION_STATUS. Returns '' for a conversation on which the role has no rights."""
    operation.check()
    rows = yield call("transmission_status", verbs.user.database_id, operation.handle)
    return str(rows[0][0])


def _delayed_messages(verbs: RestrictedVerbs, operation: DelayedMessages) -> Steps[list[DelayedMessage]]:
    operation.check()
    if operation.handle is None:
        _refuse_administration(verbs, operation)
    rows = yield call("delayed_messages", verbs.user.database_id, operation.handle)
    if rows:
        _refuse(rows[0][-1])
    return [DelayedMessage(*row[:-1]) for row in rows]


def _cancel_delayed(verbs: RestrictedVerbs, operation: CancelDelayed) -> Steps[int]:
    operation.check()
    cancelled, refusal = (yield call("cancel_delayed", verbs.user.database_id, operation.handle, operation.number))[0]
    _refuse(refusal)
    return int(cancelled)


def _refuse_administration(verbs: RestrictedVerbs, operation: Operation[Any]) -> Steps[Any]:
    """Refuse an operation that needs all rights in the database."""
    raise BrokerError(5011, verbs.user.database)


_ADMINISTRATION = (SetAsideMessages, DeadLetterGroups, ReplayMessage, DiscardMessage, Schedules, DropSchedule)

RestrictedVerbs.interpreters = {
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
    DelayedMessages: _delayed_messages,
    CancelDelayed: _cancel_delayed,
    KeepSchedule: keep_schedule,
    TakeTurn: take_turn,
    **dict.fromkeys(_ADMINISTRATION, _refuse_administration),
}

# ---------------------------------------------------------------- functions of store/fence.sql


def applied_migrations() -> Statement:
    """Return the statement for the numbers of the schema's migrations."""
    return call("migrations")


def find_home_of() -> Statement:
    """Return the statement that decides whether this database is a restored copy (`find_home`, store/home.py)."""
    return call("home")


def call(function: str, *arguments: object, locks: bool = False, takes: bool = False) -> Statement:
    """Return the statement that calls a function of store/fence.sql."""
    placeholders = "".join(f"${number}, " for number in range(1, len(arguments) + 1))
    sql = f"select * from servicebroker_fence.{function}({placeholders}{_CALLER_KEY})"
    return Statement("restricted_verbs.call", sql, arguments, locks=locks, takes=takes)


def _refuse(refusal: list[str] | None) -> None:
    """Raise the error that a function has returned: its number, and the values for its text. None means no error."""
    if refusal is None:
        return
    number, *values = refusal
    if number == _READ_BY_PIPELINE:
        raise refuse_pipeline(f"'{values[0]}'")
    raise BrokerError(int(number), *values)
