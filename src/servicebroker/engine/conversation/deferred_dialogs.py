"""Deferred conversations: begun by the application, but not written until their first messages are sent.

If the delivery path is cached (`engine/catalog/delivery_paths.py`), BEGIN DIALOG needs nothing from the server. The
client draws handle and group, and the sequence numbers of the messages are 0, 1, 2 ... Later one statement writes
several conversations between the same two services, with their timers and messages. If that statement writes nothing,
because an object was altered meanwhile, the verbs run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, Usage
from servicebroker.engine.catalog.delivery_paths import DeliveryPath, DeparturePath
from servicebroker.engine.conversation import enqueue
from servicebroker.engine.conversation.begin import Identity
from servicebroker.engine.conversation.send import cache_channels, first_usage
from servicebroker.engine.delivery.opening import NO_TRANSPORT
from servicebroker.model.errors import BrokerError
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog
from servicebroker.operations.send import Send, SendBatch
from servicebroker.store.statements import Bodies, Statement, Steps


@dataclass(slots=True)
class DeferredDialog:
    """A deferred conversation.

    Attributes:
        operation: the BEGIN DIALOG of the application.
        identity: the handle and the group.
        expiry: the end of the lifetime.
        path: the delivery path; None for a restricted role, because a function on the server finds its path.
        timer: the last BEGIN CONVERSATION TIMER, and the time at which it fires.
        message_count: the number of deferred messages.
    """

    operation: BeginDialog
    identity: Identity
    expiry: datetime
    path: DeliveryPath | DeparturePath | None
    timer: tuple[BeginConversationTimer, datetime] | None = None
    message_count: int = 0

    def set_timer(self, operation: BeginConversationTimer, now: datetime) -> None:
        """Defer BEGIN CONVERSATION TIMER.

        Raises:
            BrokerError: what `BeginConversationTimer.check` refuses, 8410 beyond the lifetime.
        """
        operation.check()
        at = now + timedelta(seconds=operation.timeout)
        if at > self.expiry:
            raise BrokerError(8410)
        self.timer = operation, at

    def fits_in_one_statement_with(self, other: DeferredDialog) -> bool:
        """Check whether one statement can write both conversations: they have the same two services and contract."""
        if self.path is None or other.path is None:
            return True
        return self.path.own is other.path.own and self.path.target is other.path.target

    @property
    def fires_at(self) -> datetime | None:
        """The time at which the timer fires; None without a timer."""
        return None if self.timer is None else self.timer[1]


class DeferredSend(NamedTuple):
    """A deferred SEND. `first_number` is the sequence number of its first message.

    `usage` has the id and validation of the message type in the target's database; for a target in another instance, in
    the database of the initiator. None for a restricted role.
    """

    dialog: DeferredDialog
    first_number: int
    operation: Send[int] | SendBatch
    contents: Sequence[bytes | None]
    usage: Usage | None


class DeferredBatch(NamedTuple):
    """Conversations that are to be written by one statement, and their SENDs in order."""

    dialogs: Sequence[DeferredDialog]
    sends: Sequence[DeferredSend]


def is_one_statement(batch: DeferredBatch) -> bool:
    """Check whether one statement writes the whole batch, unless an object was altered meanwhile."""
    if batch.sends:
        return all(dialog.message_count for dialog in batch.dialogs)
    return len(batch.dialogs) == 1 and batch.dialogs[0].timer is None  # a timer would be a second statement


class StepwiseVerbs(NamedTuple):
    """The verbs that run one after the other if the path has changed."""

    begin: Callable[[BeginDialog, Identity], Steps[UUID]]
    set_timer: Callable[[BeginConversationTimer], Steps[None]]
    send: Callable[[Send[int] | SendBatch], Steps[int]]


NewId: TypeAlias = Callable[[], UUID]


def defer_begin(
    operation: BeginDialog,
    path: DeliveryPath | DeparturePath | None,
    new_id: NewId,
    now: datetime,
    group: UUID | None = None,
) -> DeferredDialog | None:
    """Defer BEGIN DIALOG. None if the server has to lock a related group or look up an idempotency key.

    `path` is the cached delivery path, None for a restricted role. `group` is an unused id for the new group; without
    it `new_id` makes one.

    Raises:
        BrokerError: what `BeginDialog.check` refuses.
    """
    if not operation.may_be_deferred:
        return None
    operation.check()
    return DeferredDialog(operation, Identity(new_id(), group or new_id()), operation.expiry(now), path)


def find_path(catalog: Catalog, database_id: int, operation: BeginDialog) -> DeliveryPath | DeparturePath | None:
    """Return the cached path of a new conversation; None if it is not cached."""
    own, target, contract = operation.from_service, operation.to_service, operation.contract
    if not (isinstance(own, str) and isinstance(target, str) and isinstance(contract, str)):
        return None
    return catalog.paths.find(database_id, own, target, contract, operation.target_broker)


def contents_of(operation: Send[int] | SendBatch, maximum_body: int) -> Sequence[bytes | None]:
    """Return the bodies to send.

    Raises:
        BrokerError: what the operation's checks refuse.
        BodyError: a body that cannot be stored.
    """
    return operation.contents(maximum_body) if isinstance(operation, SendBatch) else [operation.content(maximum_body)]


def defer_send(
    dialog: DeferredDialog, operation: Send[int] | SendBatch, now: datetime, maximum_body: int
) -> DeferredSend | None:
    """Defer SEND on a deferred conversation.

    Return None if SEND must run by itself: a side would refuse the message, it is delayed, or the lifetime is over.

    Raises:
        BrokerError: what the operation's checks refuse.
        BodyError: a body that cannot be stored.
    """
    contents = contents_of(operation, maximum_body)
    assert dialog.path is not None
    usage = first_usage(dialog.path, operation.message_type, contents)
    if usage is None or operation.is_delayed or dialog.expiry <= now:
        return None
    return DeferredSend(dialog, dialog.message_count, operation, contents, usage)


def begin_deferred(catalog: Catalog, batch: DeferredBatch, stepwise: StepwiseVerbs) -> Steps[None]:
    """Begin the deferred conversations and send their messages. The result is that of the verbs in their order.

    Raises:
        BrokerError: what BEGIN DIALOG or SEND raises, if an object was altered after they were deferred.
    """
    sending = [dialog for dialog in batch.dialogs if dialog.message_count]
    if sending and not (yield from _begin_and_send(catalog, sending, batch.sends)):
        for dialog in sending:
            yield from _begin_alone(dialog, stepwise)
        for send in batch.sends:
            yield from stepwise.send(send.operation)
    for dialog in batch.dialogs:
        if not dialog.message_count:
            yield from _begin_alone(dialog, stepwise)


def _begin_alone(dialog: DeferredDialog, stepwise: StepwiseVerbs) -> Steps[None]:
    yield from stepwise.begin(dialog.operation, dialog.identity)
    if dialog.timer is not None:
        yield from stepwise.set_timer(dialog.timer[0])


def _begin_and_send(catalog: Catalog, dialogs: Sequence[DeferredDialog], sends: Sequence[DeferredSend]) -> Steps[bool]:
    """BEGIN conversations between the same two services and SEND, in one statement. False if nothing was written."""
    path = dialogs[0].path
    assert path is not None
    messages = [DeferredMessage(send, index) for send in sends for index in range(len(send.contents))]
    if isinstance(path, DeparturePath):
        rows = yield _to_other_instance(path, dialogs, messages)
    else:
        rows = (
            yield _single_message(path, messages[0]) if len(messages) == 1 else _many_messages(path, dialogs, messages)
        )
    if not rows:
        catalog.paths.forget(path)
        return False
    if isinstance(path, DeliveryPath):
        cache_channels(catalog, path, [dialog.identity.handle for dialog in dialogs], rows[0][0], len(messages))
    return True


class DeferredMessage(NamedTuple):
    """One message of a deferred SEND: the body at `position` of its contents."""

    send: DeferredSend
    position: int

    @property
    def usage(self) -> Usage:
        """The message type's id and validation in the target's database."""
        assert self.send.usage is not None
        return self.send.usage

    @property
    def content(self) -> bytes | None:
        """The message body."""
        return self.send.contents[self.position]


def _single_message(path: DeliveryPath, message: DeferredMessage) -> Statement:
    dialog = message.send.dialog
    return Statement(
        "deferred_dialogs.single_message",
        enqueue.begin_and_send(path.target.queue_id),
        (
            *path.parameters,
            *(*dialog.identity, dialog.expiry, dialog.operation.encryption, dialog.fires_at),
            *(message.usage.message_type_id, message.usage.validation, message.content),
        ),
    )


def _many_messages(
    path: DeliveryPath, dialogs: Sequence[DeferredDialog], messages: Sequence[DeferredMessage]
) -> Statement:
    return Statement(
        "deferred_dialogs.many_messages",
        enqueue.begin_and_send_many(path.target.queue_id),
        (
            *path.parameters,
            *_columns(dialogs, messages),
            [message.usage.message_type_id for message in messages],
            [message.usage.validation for message in messages],
            Bodies(message.content for message in messages),
        ),
    )


def _to_other_instance(
    path: DeparturePath, dialogs: Sequence[DeferredDialog], messages: Sequence[DeferredMessage]
) -> Statement:
    return Statement(
        "deferred_dialogs.to_other_instance",
        enqueue.BEGIN_AND_TRANSMIT,
        (
            *path.parameters,
            *_columns(dialogs, messages),
            [message.send.operation.message_type for message in messages],
            Bodies(message.content for message in messages),
            NO_TRANSPORT,
        ),
    )


def _columns(dialogs: Sequence[DeferredDialog], messages: Sequence[DeferredMessage]) -> tuple[list[object], ...]:
    """Return six arrays with a value for each dialog, then two with a value for each message.

    The two: the index of the message's dialog, from 1, and the sequence number.
    """
    indexes = {dialog.identity.handle: index for index, dialog in enumerate(dialogs, 1)}
    return (
        [dialog.identity.handle for dialog in dialogs],
        [dialog.identity.group for dialog in dialogs],
        [dialog.expiry for dialog in dialogs],
        [dialog.operation.encryption for dialog in dialogs],
        [dialog.fires_at for dialog in dialogs],
        [dialog.message_count for dialog in dialogs],
        [indexes[message.send.dialog.identity.handle] for message in messages],
        [message.send.first_number + message.position for message in messages],
    )
