# Made from aio/pipelined.py by tools/make_sync.py: change that file, then run `make sync`.
"""Deferred statements of a transaction: the SENDs of `pipeline()`, and new conversations with their first messages.

They are kept in memory and sent together, before the next statement on the connection or with COMMIT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from servicebroker.api.shared import tracing
from servicebroker.api.wrappers import QUEUE_WAS_DROPPED
from servicebroker.engine.conversation.deferred_dialogs import DeferredBatch, DeferredDialog, DeferredSend
from servicebroker.engine.conversation.pipelined_sends import PipelinedSend, checked_send
from servicebroker.engine.diagnosis.totals import SENDS
from servicebroker.model.errors import InstanceError
from servicebroker.operations.begin import BeginConversationTimer, BeginDialog
from servicebroker.operations.operation import Operation
from servicebroker.operations.send import Send, SendBatch
from servicebroker.store.direct import DirectConnection, is_direct, is_idle, send_queued
from servicebroker.store.server_errors import raise_broker_error
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.database import Database
    from servicebroker.api.instance import Instance
    from servicebroker.engine.conversation.owner_verbs import OwnerVerbs

ENDED_ON_ITS_CONNECTION = (
    "The transaction was committed or rolled back on its connection: leave the `with` block, and begin another one."
)
MAX_SENDS = 1_000  # the most deferred SENDs of a connection
MAX_BYTES = 8 * 1024 * 1024  # the most bytes in the bodies of deferred SENDs
MAX_DIALOGS = 100  # the most deferred conversations: the statement searches them for that of each message


def send_deferred(connection: DirectConnection) -> None:
    """Send the deferred statements of a connection now.

    Raises:
        BrokerError: one of them was refused; the transaction can then only be rolled back.
        InstanceError: their queue was dropped, or PostgreSQL raised an error that has a text of servicebroker.
    """
    if not connection.deferred.verbs:
        return
    try:
        send_queued(connection)
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):
        raise InstanceError(QUEUE_WAS_DROPPED) from None
    except psycopg.Error as problem:
        raise_broker_error(problem)


class Pipeline:
    """The SENDs of one `pipeline()` block.

    Attributes:
        numbers: the sequence numbers of sent messages, by the position that `send` has returned.
    """

    def __init__(self, database: Database, connection: DirectConnection) -> None:
        self.numbers: list[int] = []
        self._database = database
        self._connection = connection
        self._sends: list[PipelinedSend] = []  # deferred
        self._bytes = 0  # the total size of their bodies

    @property
    def is_full(self) -> bool:
        """Return whether the SENDs must be sent now, since a limit is reached."""
        return len(self._sends) >= MAX_SENDS or self._bytes >= MAX_BYTES

    def defer(self, operation: Send[int]) -> int:
        """Defer a SEND until the next statement on the connection. Return its position."""
        position = len(self.numbers) + len(self._sends)
        send = checked_send(position, operation, self._database.instance.maximum_body, self._database.instance.clock)
        self._sends.append(send)
        self._bytes += len(send.content or b"")
        self._connection.deferred.verbs = self._deferred_steps
        return position

    def note_sent(self, number: int) -> int:
        """Note the sequence number of a SEND that was not deferred, while none is deferred. Return its position."""
        self.numbers.append(number)
        return len(self.numbers) - 1

    def _deferred_steps(self) -> Steps[None]:
        if is_idle(self._connection):
            raise InstanceError(ENDED_ON_ITS_CONNECTION)
        sends, self._sends, self._bytes = self._sends, [], 0
        database, is_done = self._database, False
        try:
            numbers = yield from database.engine.with_database_check(database.engine.send_pipelined(sends))
            is_done = True
        finally:
            if not is_done:  # the cause may be a stale entry of the catalog cache
                for send in sends:
                    database.catalog.forget(send.handle)
        self.numbers += [numbers[send.position] for send in sends]
        database.instance.tally.add(SENDS, len(sends))


class DeferredDialogs:
    """Deferred conversations and their first messages, for a connection whose transaction is open or about to begin.

    They are sent before the next statement on the connection, unless `take_steps` returns their steps.
    """

    def __init__(self, instance: Instance, connection: DirectConnection) -> None:
        self._instance = instance
        self._connection = connection
        self._engine: OwnerVerbs | None = None  # the engine of the deferred dialogs
        self._clear()

    @property
    def has_dialogs(self) -> bool:
        """Return whether a conversation is deferred."""
        return bool(self._dialogs)

    def run(self, engine: OwnerVerbs, operation: Operation[Any]) -> list[Any]:
        """Defer an operation if possible, and return its result in a list. An empty list: the caller must run it.

        Raises:
            BrokerError: an invalid field of the operation; 8410 a timer beyond the end of the lifetime.
        """
        if type(operation) is BeginDialog:
            return self.begin(engine, operation)
        if self._dialogs and isinstance(operation, Send | SendBatch | BeginConversationTimer) and self._may_defer():
            dialog = self._dialogs.get(operation.handle) if isinstance(operation.handle, UUID) else None
            if dialog is None or engine is not self._engine:
                return []
            if not isinstance(operation, BeginConversationTimer):
                return self._send(engine, dialog, operation)
            return [None] if engine.defer_timer(dialog, operation) else []
        return []

    def begin(self, engine: OwnerVerbs, operation: BeginDialog, group: UUID | None = None) -> list[Any]:
        """Defer BEGIN DIALOG, as `run` does. `group` is the id of the new group."""
        dialog = engine.defer_begin(operation, group) if self._may_defer() else None
        if dialog is None:
            return []
        if self._dialogs and (engine is not self._engine or len(self._dialogs) >= MAX_DIALOGS):
            send_deferred(self._connection)
        self._engine = engine
        self._dialogs[dialog.identity.handle] = dialog
        self._connection.deferred.verbs = self._deferred_steps
        return [dialog.identity.handle]

    def _send(self, engine: OwnerVerbs, dialog: DeferredDialog, operation: Send[int] | SendBatch) -> list[Any]:
        send = engine.defer_send(dialog, operation)
        if send is None:
            return []
        size = sum(len(content or b"") for content in send.contents)
        if size > MAX_BYTES or len(send.contents) > MAX_SENDS:
            return []
        if self._sends and not dialog.fits_in_one_statement_with(self._sends[0].dialog):
            self._connection.deferred.verbs = self._deferred_steps_with_messages
            send_deferred(self._connection)
            self._connection.deferred.verbs = self._deferred_steps
        dialog.message_count += len(send.contents)
        self._sends.append(send)
        self._messages += len(send.contents)
        self._bytes += size
        if self._messages >= MAX_SENDS or self._bytes >= MAX_BYTES:
            send_deferred(self._connection)
        return [send.first_number]

    @property
    def is_one_statement(self) -> bool:
        """Return whether the deferred conversations can be sent in one statement, unless the catalog has changed."""
        if not self._dialogs or self._engine is None:
            return False
        return self._engine.is_one_statement(DeferredBatch([*self._dialogs.values()], self._sends))

    def take_steps(self) -> Steps[None]:
        """Return the steps of the deferred statements, which the caller runs. None of them is deferred any more."""
        self._connection.deferred.verbs = None
        return self._steps([*self._dialogs.values()])

    def drop(self) -> None:
        """Forget the deferred statements, since their transaction or savepoint is rolled back."""
        if self._dialogs:
            self._connection.deferred.verbs = None
            self._clear()

    def _may_defer(self) -> bool:
        if tracing.is_on() or self._instance.events.watches_conversations or not is_direct(self._connection):
            return False
        status = self._connection.pgconn.transaction_status
        is_to_begin = status == TransactionStatus.IDLE and bool(self._connection.queued)
        return is_to_begin or status == TransactionStatus.INTRANS

    def _deferred_steps(self) -> Steps[None]:
        return self._steps_in_transaction([*self._dialogs.values()])

    def _deferred_steps_with_messages(self) -> Steps[None]:
        return self._steps_in_transaction([dialog for dialog in self._dialogs.values() if dialog.message_count])

    def _steps_in_transaction(self, dialogs: list[DeferredDialog]) -> Steps[None]:
        if is_idle(self._connection):
            raise InstanceError(ENDED_ON_ITS_CONNECTION)
        return (yield from self._steps(dialogs))

    def _steps(self, dialogs: list[DeferredDialog]) -> Steps[None]:
        engine, messages, batch, is_done = self._engine, self._messages, DeferredBatch(dialogs, self._sends), False
        assert engine is not None
        if len(dialogs) == len(self._dialogs):
            self._clear()
        else:
            sent = {dialog.identity.handle for dialog in dialogs}
            self._clear({handle: dialog for handle, dialog in self._dialogs.items() if handle not in sent})
        try:
            yield from engine.with_database_check(engine.begin_deferred(batch))
            is_done = True
        finally:
            if not is_done:  # the cause may be a stale entry of the cache of services
                engine.forget_paths(dialogs)
        self._instance.tally.add(SENDS, messages)

    def _clear(self, remaining: dict[UUID, DeferredDialog] | None = None) -> None:
        self._dialogs: dict[UUID, DeferredDialog] = remaining or {}
        self._sends: list[DeferredSend] = []
        self._messages = self._bytes = 0
