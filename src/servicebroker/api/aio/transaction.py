"""Transactions that commit changes of the application's tables and its messages together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from servicebroker.api.aio.deferred_answers import AsyncDeferredAnswers, DeferredVerbFailed
from servicebroker.api.aio.pipelined import ENDED_ON_ITS_CONNECTION, AsyncPipeline, AsyncWaitingDialogs, send_what_waits
from servicebroker.api.aio.scripts import AsyncTransactionScripts
from servicebroker.api.aio.verbs import AsyncVerbs
from servicebroker.api.shared import tracing
from servicebroker.engine.activation.poison_detection import find_outcomes
from servicebroker.engine.conversation.owner_verbs import NOT_FOUND, OwnerVerbs
from servicebroker.engine.diagnosis.totals import ROLLBACKS
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.messages import Message
from servicebroker.operations.begin import BeginDialog
from servicebroker.operations.operation import Operation
from servicebroker.operations.receive import Receive
from servicebroker.operations.send import Send
from servicebroker.overriding import override
from servicebroker.store.aio import session_locks
from servicebroker.store.aio.concurrency import current_work, finish
from servicebroker.store.aio.connection import ENCODING, one_line
from servicebroker.store.aio.direct import AsyncDirectConnection, run_command, send_queued
from servicebroker.store.aio.running import in_transaction, run, run_alone
from servicebroker.store.direct import QueuedCommand, is_direct, is_idle
from servicebroker.store.server_errors import explain_error, is_transaction_conflict, raise_broker_error
from servicebroker.store.statements import Statement, Steps, with_savepoint

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from servicebroker.api.aio.database import AsyncDatabase

T = TypeVar("T")

ASK_THE_DATABASE = (
    "The request is sent with the COMMIT, so its answer cannot come before. Call it on the database after the "
    "transaction, or use begin_request in the transaction and wait_for_answer after it."
)

_BEGIN = QueuedCommand(b"begin")


class AsyncJoinedTransaction(AsyncVerbs):
    """The statements (SEND, RECEIVE and so on) on a connection whose transaction the application begins and ends.

    On a connection in autocommit mode with no transaction open, each statement is a transaction of its own.
    """

    def __init__(self, database: AsyncDatabase, connection: psycopg.AsyncConnection[Any]) -> None:
        self.database, self.instance, self.engine = database, database.instance, database.engine
        self.connection = connection

    @override
    async def _do(self, steps: Steps[T]) -> T:
        self.instance.check_caller()
        connection = self.connection
        try:
            await session_locks.release_stale(connection)
            encoding = connection.info.parameter_status("client_encoding") or ENCODING
            if encoding != ENCODING and is_direct(connection):
                async with _in_utf8(connection, encoding):
                    return await self._run(steps)
            return await self._run(steps)
        except psycopg.Error as problem:
            raise_broker_error(problem)
        except BrokerError as refused:
            await find_reason(connection, self.engine, refused)
            raise

    async def _run(self, steps: Steps[T]) -> T:
        connection = self.connection
        if connection.autocommit and is_idle(connection):
            return await run_alone(connection, steps)
        result = await run(connection, steps)
        await session_locks.record_transaction(connection)
        return result

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Set a savepoint. If the block raises, roll back to it and reraise; the transaction stays open.

        The rollback returns messages that the block received to the queue; their groups stay locked until the
        transaction ends. `SAVEPOINT` and `connection.transaction()` on the connection have the same effect.

        Raises:
            InstanceError: no transaction is open on the connection.
        """
        if self.connection.closed or is_idle(self.connection):
            raise InstanceError("A savepoint needs an open transaction: begin a transaction on the connection first.")
        async with self.connection.transaction():
            try:
                yield
                await self._send_what_waits()  # psycopg counts a savepoint as open, if its RELEASE cannot be sent
            except BaseException:
                self._drop_what_waits()
                raise

    async def _send_what_waits(self) -> None:
        """Send deferred statements. This class sends each statement at once."""

    def _drop_what_waits(self) -> None:
        """Drop unsent new conversations that began after the savepoint. This class sends each conversation at once."""

    async def release_locks(self) -> None:
        """Release group locks that remain after a transaction with savepoints. Call this after the transaction.

        The next statement on the connection releases them too. Until then, no other reader gets those groups.

        Raises:
            InstanceError: the transaction is still open.
        """
        if not self.connection.closed and not is_idle(self.connection):
            raise InstanceError("Commit or roll back first: a transaction holds its group locks until it ends.")
        async with translate_errors():
            await session_locks.release(self.connection)
            if not self.connection.closed and not self.connection.autocommit:
                await self.connection.rollback()

    @override
    def _refuse_transaction(self, statement: str) -> None:
        raise BrokerError(226, statement, hint=ASK_THE_DATABASE)

    @override
    def _received(self, queue_id: int, transaction: int) -> None:
        poison = self.database.instance.poison
        if self.connection.autocommit and is_idle(self.connection):
            poison.committed([queue_id])
        else:
            poison.received(transaction, [queue_id])

    @override
    def _is_alone(self) -> bool:
        return is_idle(self.connection)


class AsyncTransaction(AsyncJoinedTransaction, AsyncTransactionScripts):
    """A transaction of the database. `connection` is the psycopg connection, for the application's statements.

    BEGIN is sent with the first statement, in the same round trip. BEGIN DIALOG may be deferred until the first
    messages of the conversation; it is sent with them before the next statement, or with COMMIT.

    Threads and tasks may share it: their statements run one after the other, and one error undoes all of them.
    """

    connection: AsyncDirectConnection

    async def __aenter__(self) -> Self:
        self._taken: set[tuple[int, int]] = set()  # transaction id and queue of each RECEIVE
        self._owner = current_work()
        self.instance.open_transactions[self._owner] += 1
        self.connection.queued.append(_BEGIN)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True  # other transactions may use the connection from now on
        self._forget_owner()
        if self.database.instance.is_forked:
            self._leave_to_parent(kind)
            return
        if self._processing is not None:
            tracing.end(self._processing, error)
        if self._was_put_back:
            await finish(release_group_locks(self.connection))
            return
        if kind is not None:
            self._drop_what_waits()
        if self.connection.queued and not self.connection.pending.verbs:  # no statement was run
            self.connection.queued.pop()
            await finish(send_queued(self.connection))  # perhaps the COMMIT of the previous transaction
            if self._has_worked:
                self.database.instance.tally.add(ROLLBACKS)
            return
        known = not is_idle(self.connection)  # otherwise the application has ended it on the connection
        if kind is None and known and self._commit_travels and self._can_wait():
            self._put_commit_ahead()
            return
        committed = False
        try:
            if kind is None:
                await self._commit()
                committed = True
        except psycopg.errors.InFailedSqlTransaction:
            raise
        except BaseException as problem:
            known, error = False, problem
            raise
        finally:
            if not self._is_counted or (error is not None and is_full_disk(error)):
                self._taken.clear()
            await finish(self._clean_up(committed=committed, known=known))

    async def _commit(self) -> None:
        """Commit. If only new conversations are deferred, their single statement needs no BEGIN and COMMIT."""
        connection = self.connection
        if connection.pgconn.transaction_status == TransactionStatus.INERROR:
            await connection.rollback()
            raise psycopg.errors.InFailedSqlTransaction
        try:
            new = self._new
            if self._answers is not None and self._answers.are_waiting:
                await self._commit_with(self._answers)
            elif new is not None and new.is_one_statement and connection.queued and connection.queued[-1] is _BEGIN:
                connection.queued.pop()
                await run_alone(connection, new.take())
            else:
                await run_command(connection, b"commit")
        except psycopg.OperationalError as problem:
            if connection.closed:
                raise InstanceError(
                    f"The connection was lost during COMMIT ({one_line(problem)}): check whether the transaction was "
                    "committed before you repeat it."
                ) from problem
            raise

    async def _commit_with(self, answers: AsyncDeferredAnswers) -> None:
        """Commit in the round trip of the verbs that wait.

        Raises:
            DeferredVerbFailed: one of them has failed, and poison detection does not count the rollback.
        """
        try:
            _, problem = await answers.leave_with([b"commit"])
        except psycopg.Error as failure:
            if self.connection.closed or is_transaction_conflict(failure):
                raise
            answers.stop()
            self._is_counted = False
            raise DeferredVerbFailed from failure
        if problem is not None:
            raise problem

    @asynccontextmanager
    async def pipeline(self) -> AsyncIterator[AsyncPipeline]:
        """Buffer the SENDs of the block, and send them together: before another statement, and at the end of the block.

        Any other method, COMMIT and a statement on `connection` flush the buffer; so do 1,000 SENDs or 8 MB of bodies.
        `send` of one message returns its position in the block, from 0. After the flush, `numbers[position]` of the
        object that the block gets is its sequence number. Each conversation keeps the order of its SENDs.

        If a SEND is refused, the flush raises, with the position in `BrokerError.place`. The transaction can then
        only be rolled back.
        """
        self._check_open()
        await self._send_what_waits()
        if self._answers is not None:
            self._answers.drop()  # the block draws numbers
        before, self._pipeline = self._pipeline, AsyncPipeline(self.database, self.connection)
        try:
            yield self._pipeline
        finally:
            self._pipeline = before
            if self.connection.closed or self.connection.pgconn.transaction_status == TransactionStatus.INERROR:
                self.connection.pending.verbs = None  # the transaction can commit nothing
            await finish(self._send_what_waits())

    @override
    async def _begin_in(self, begin: BeginDialog, group: UUID) -> UUID:
        if self._answers is not None:
            await self._answers.leave()
        if self._pipeline is None and not self._ended:
            waiting: list[UUID] = await self._new_dialogs.begin(self.engine, begin, group)
            if waiting:
                self.instance.check_caller()
                self._has_worked = True
                return waiting[0]
        return await super()._begin_in(begin, group)

    @override
    async def run(self, operation: Operation[T]) -> T:
        """Run an operation, as `Database.run`. In `pipeline()` a SEND on one conversation returns its position."""
        if self._answers is not None and not self._ended and (known := await self._answers.run(operation)):
            self.instance.check_caller()
            foreseen: T = known[0]
            return foreseen
        pipeline = self._pipeline
        may_wait = pipeline is None and not self._ended and (self._new is not None or type(operation) is BeginDialog)
        if may_wait and (deferred := await self._new_dialogs.run(self.engine, operation)):
            self.instance.check_caller()
            self._has_worked = True
            result: T = deferred[0]
            return result
        if pipeline is None or not isinstance(operation, Send) or not operation.is_single:
            return await super().run(operation)
        if tracing.is_on() or self.instance.events.watches_conversations or not is_direct(self.connection):
            position: Any = pipeline.sent(await super().run(operation))
            return cast(T, position)
        self._check_open()
        self._note_verb()
        position = pipeline.wait(operation)
        if pipeline.is_full:
            await self._send_what_waits()
        return cast(T, position)

    @property
    def _new_dialogs(self) -> AsyncWaitingDialogs:
        """The deferred conversations: one object, also if threads share the transaction."""
        return self._new or vars(self).setdefault("_new", AsyncWaitingDialogs(self.instance, self.connection))

    @override
    def _drop_what_waits(self) -> None:
        if self._new is not None:
            self._new.drop()
        if self._answers is not None:
            self._answers.drop()

    @override
    async def _send_what_waits(self) -> None:
        await send_what_waits(self.connection)

    async def _receive_and_save(self, operation: Receive, savepoint: bytes) -> list[Message]:
        """Run RECEIVE and set a savepoint after it. A rollback to the savepoint does not undo the RECEIVE."""
        if tracing.is_on():  # a statement that reads the traces follows RECEIVE
            messages = await self.run(operation)
            await run_command(self.connection, savepoint)
            return messages
        self._savepoint = savepoint
        try:
            return await self.run(operation)
        finally:
            self._savepoint = b""

    async def _let_commit_travel(self) -> None:
        """Defer COMMIT: it is sent with the first statement of the next transaction on this connection."""
        await self._send_what_waits()
        if self._leaves_closed:
            await self._do(self.engine.remove_closed())
        self._commit_travels = True

    async def _put_back(self, group: UUID, steps: Steps[None] | None = None) -> None:
        """Roll back, uncounted by poison detection, then run the steps before another reader gets the group's lock."""
        await run(self.connection, _single_step(self.database.engine.keep_lock(group)))
        self._taken.clear()
        self._was_put_back = True
        self.database.instance.tally.add(ROLLBACKS)
        await run_command(self.connection, b"rollback")
        if steps is not None:
            await in_transaction(self.connection, steps)

    async def _was_rolled_back(self) -> bool:
        """Return whether the transaction, which took messages and was ended on the connection, was rolled back."""
        ids = [transaction for transaction, _ in self._taken]
        return "aborted" in (await run(self.connection, find_outcomes(ids))).values()

    def _has_finished(self) -> bool:
        """Return whether the transaction was ended on the connection, or the connection is lost."""
        return self.connection.closed or is_idle(self.connection)

    def _can_wait(self) -> bool:
        is_open = self.connection.pgconn.transaction_status == TransactionStatus.INTRANS
        is_free = is_direct(self.connection) and not self.connection.pending.verbs
        return is_open and is_free and not session_locks.may_keep_locks(self.connection)

    def _put_commit_ahead(self) -> None:
        poison, connection = self.database.instance.poison, self.connection
        poison.commit_deferred(connection, self._taken)
        connection.queued.append(QueuedCommand(b"commit", lambda: poison.commit_confirmed(connection)))

    async def _clean_up(self, *, committed: bool, known: bool) -> None:
        self.connection.pending.verbs = None
        if not committed and not is_idle(self.connection):
            with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
                await self.connection.rollback()
        await release_group_locks(self.connection)
        if self._has_worked and known and not committed:
            self.database.instance.tally.add(ROLLBACKS)
        if self._taken:
            await self._count(committed=committed, known=known)

    async def _count(self, *, committed: bool, known: bool) -> None:
        """Report to poison detection whether a transaction that received messages was committed."""
        poison, connection = self.database.instance.poison, self.connection
        queues = {queue_id for _, queue_id in self._taken}
        known = known and len({transaction for transaction, _ in self._taken}) == 1
        if known and committed:
            poison.committed(queues)
        elif known and not connection.closed:
            await poison.rolled_back(connection, queues)
        else:
            for transaction, queue_id in self._taken:
                poison.received(transaction, [queue_id])
            if not connection.closed:
                await poison.resolve_outcomes(connection)

    @override
    def _process(self, span: Span) -> None:
        if self._processing is not None:
            tracing.end(self._processing)
        self._processing = span

    @override
    def _received(self, queue_id: int, transaction: int) -> None:
        if (transaction, queue_id) not in self._taken:
            self._taken.add((transaction, queue_id))
            self.database.instance.poison.took(transaction, queue_id)

    @override
    def _note_verb(self) -> None:
        self._has_worked = True

    _ended = False
    _new: AsyncWaitingDialogs | None = None  # made for the first BEGIN DIALOG
    _answers: AsyncDeferredAnswers | None = None  # while a procedure runs whose verbs may wait
    _leaves_closed = False  # true if closed endpoints can be removed
    _pipeline: AsyncPipeline | None = None
    _has_worked = False
    _commit_travels = False
    _was_put_back = False
    _leaves_groups = True  # False if the last RECEIVE has taken all groups, so that no other reader is needed
    _is_counted = True  # by poison detection, if the transaction is rolled back
    _savepoint = b""

    @override
    async def _do(self, steps: Steps[T]) -> T:
        self.instance.check_caller()
        if self._ended:
            self._check_open()
        if self._savepoint:
            steps = with_savepoint(steps, self._savepoint)
        if is_idle(self.connection):
            raise InstanceError(ENDED_ON_ITS_CONNECTION)
        try:
            return await run(self.connection, steps)
        except psycopg.Error as problem:
            raise_broker_error(problem)
        except BrokerError as refused:
            await find_reason(self.connection, self.engine, refused)
            raise

    def _forget_owner(self) -> None:
        """Count one open transaction less for the thread or task that began this one."""
        opened = self.instance.open_transactions
        opened[self._owner] -= 1
        if not opened[self._owner]:
            del opened[self._owner]

    def _leave_to_parent(self, kind: type[BaseException] | None) -> None:
        """End in a forked child without using the connection: the transaction is the parent's."""
        self.connection.queued.clear()
        self.connection.pending.verbs = None
        if kind is None:
            self.database.instance.check_caller()

    def _check_open(self) -> None:
        self.database.instance.check_caller()
        if self._ended:
            raise InstanceError("This transaction has ended: begin another one with database.transaction().")


@asynccontextmanager
async def _in_utf8(connection: psycopg.AsyncConnection[Any], encoding: str) -> AsyncIterator[None]:
    """Set the encoding of the application's connection to UTF8 for one statement, then restore it.

    In a transaction the change is SET LOCAL, so that a ROLLBACK undoes it, too.
    """
    change = "set" if connection.autocommit and is_idle(connection) else "set local"
    await connection.execute(f"{change} client_encoding to '{ENCODING}'".encode())
    try:
        yield
    finally:
        if not connection.closed and connection.pgconn.transaction_status != TransactionStatus.INERROR:
            await finish(connection.execute(f"{change} client_encoding to '{encoding}'".encode()))


def is_full_disk(error: BaseException) -> bool:
    """Return whether the disk was full. No message causes that, so poison detection does not count it."""
    return isinstance(error.__cause__ or error, psycopg.errors.DiskFull)


async def find_reason(connection: psycopg.AsyncConnection[Any], engine: OwnerVerbs, refused: BrokerError) -> None:
    """Raise 8442 instead of a "not found" error if the database was dropped."""
    if refused.number in NOT_FOUND and not connection.closed:
        try:
            await run(connection, engine.check_database())
        except psycopg.Error as problem:
            raise_broker_error(problem)


def _single_step(keeping: Statement) -> Steps[None]:
    yield keeping


async def release_group_locks(connection: psycopg.AsyncConnection[Any]) -> None:
    """Release group locks that remain on a connection after its transaction; if that fails, close the connection."""
    if not session_locks.may_keep_locks(connection):
        return
    try:
        await connection.rollback()  # a transaction that was left open
        await session_locks.release(connection)
    except psycopg.Error:
        await connection.close()


def translate_errors(*, runs_application_sql: bool = False) -> AbstractAsyncContextManager[None]:
    """Translate errors of PostgreSQL in the block into the broker's errors.

    `runs_application_sql`: the block runs statements of the application, too. Errors of PostgreSQL are then raised as
    they are, except for a deadlock and a lost transaction or connection.
    """
    return _Translated(runs_application_sql)


class _Translated(AbstractAsyncContextManager[None]):
    """The context manager of `translate_errors`; a class, since each statement enters one and a generator is slower."""

    __slots__ = ("_runs_application_sql",)

    def __init__(self, runs_application_sql: bool) -> None:
        self._runs_application_sql = runs_application_sql

    @override
    async def __aenter__(self) -> None:
        pass

    @override
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, psycopg.Error):
            translate(error, runs_application_sql=self._runs_application_sql)


def translate(problem: psycopg.Error, *, runs_application_sql: bool = True) -> None:
    """Raise the broker's error that corresponds to an error of PostgreSQL; without one, do nothing."""
    broker_error = explain_error(problem, transaction_only=runs_application_sql)
    if broker_error is not None:
        raise broker_error from problem
