# Made from aio/transaction.py by tools/make_sync.py: change that file, then run `make sync`.
"""Transactions that commit changes of the application's tables and its messages together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from servicebroker.api.deferred_answers import DeferredAnswers, DeferredVerbFailed
from servicebroker.api.pipelined import ENDED_ON_ITS_CONNECTION, DeferredDialogs, Pipeline, send_deferred
from servicebroker.api.scripts import TransactionScripts
from servicebroker.api.shared import tracing
from servicebroker.api.verbs import Verbs
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
from servicebroker.store import session_locks
from servicebroker.store.concurrency import current_work
from servicebroker.store.connection import ENCODING, one_line
from servicebroker.store.direct import DirectConnection, QueuedCommand, is_direct, is_idle, run_command, send_queued
from servicebroker.store.running import in_transaction, run, run_alone
from servicebroker.store.server_errors import explain_error, is_transaction_conflict, raise_broker_error
from servicebroker.store.statements import Statement, Steps, with_savepoint

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from servicebroker.api.database import Database

T = TypeVar("T")

ASK_THE_DATABASE = (
    "The request is sent with the COMMIT, so its answer cannot come before. Call it on the database after the "
    "transaction, or use begin_request in the transaction and wait_for_answer after it."
)

_BEGIN = QueuedCommand(b"begin")


class JoinedTransaction(Verbs):
    """The statements (SEND, RECEIVE and so on) on a connection whose transaction the application begins and ends.

    On a connection in autocommit mode with no transaction open, each statement is a transaction of its own.
    """

    def __init__(self, database: Database, connection: psycopg.Connection[Any]) -> None:
        self.database, self.instance, self.engine = database, database.instance, database.engine
        self.connection = connection

    @override
    def _do(self, steps: Steps[T]) -> T:
        self.instance.check_caller()
        connection = self.connection
        try:
            session_locks.release_stale(connection)
            encoding = connection.info.parameter_status("client_encoding") or ENCODING
            if encoding != ENCODING and is_direct(connection):
                with _in_utf8(connection, encoding):
                    return self._run(steps)
            return self._run(steps)
        except psycopg.Error as problem:
            raise_broker_error(problem)
        except BrokerError as refused:
            raise_if_database_dropped(connection, self.engine, refused)
            raise

    def _run(self, steps: Steps[T]) -> T:
        connection = self.connection
        if connection.autocommit and is_idle(connection):
            return run_alone(connection, steps)
        result = run(connection, steps)
        session_locks.record_transaction(connection)
        return result

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Set a savepoint. If the block raises, roll back to it and reraise; the transaction stays open.

        The rollback returns messages that the block received to the queue; their groups stay locked until the
        transaction ends. `SAVEPOINT` and `connection.transaction()` on the connection have the same effect.

        Raises:
            InstanceError: no transaction is open on the connection.
        """
        if self.connection.closed or is_idle(self.connection):
            raise InstanceError("A savepoint needs an open transaction: begin a transaction on the connection first.")
        with self.connection.transaction():
            try:
                yield
                self._send_deferred()  # before RELEASE: psycopg counts the savepoint as open if RELEASE fails
            except BaseException:
                self._drop_deferred()
                raise

    def _send_deferred(self) -> None:
        """Send deferred statements. This class sends each statement at once."""

    def _drop_deferred(self) -> None:
        """Drop deferred conversations that were begun after the savepoint. This class defers none."""

    def release_locks(self) -> None:
        """Release group locks that remain after a transaction with savepoints. Call this after the transaction.

        The next statement on the connection releases them too. Until then, no other reader gets those groups.

        Raises:
            InstanceError: the transaction is still open.
        """
        if not self.connection.closed and not is_idle(self.connection):
            raise InstanceError("Commit or roll back first: a transaction holds its group locks until it ends.")
        with translate_errors():
            session_locks.release(self.connection)
            if not self.connection.closed and not self.connection.autocommit:
                self.connection.rollback()

    @override
    def _refuse_transaction(self, statement: str) -> None:
        raise BrokerError(226, statement, hint=ASK_THE_DATABASE)

    @override
    def _note_receive(self, queue_id: int, transaction: int) -> None:
        poison = self.database.instance.poison
        if self.connection.autocommit and is_idle(self.connection):
            poison.note_commit([queue_id])
        else:
            poison.note_unknown_outcome(transaction, [queue_id])

    @override
    def _is_alone(self) -> bool:
        return is_idle(self.connection)


class Transaction(JoinedTransaction, TransactionScripts):
    """A transaction of the database. `connection` is the psycopg connection, for the application's statements.

    BEGIN is sent with the first statement, in the same round trip. BEGIN DIALOG may be deferred until the first
    messages of the conversation; it is sent with them before the next statement, or with COMMIT.

    Threads and tasks may share it: their statements run one after the other, and one error undoes all of them.
    """

    connection: DirectConnection

    # Deferred statements are kept in memory, and sent before the connection's next statement or with COMMIT:
    # BEGIN and COMMIT in `connection.queued`, new conversations with their first messages in `_deferred_dialogs`,
    # the answers of a procedure in `_deferred_answers`, and the SENDs of `pipeline()` in `_pipeline`.
    _has_ended = False
    _deferred_dialogs: DeferredDialogs | None = None  # created for the first BEGIN DIALOG
    _deferred_answers: DeferredAnswers | None = None  # not None while a procedure runs whose verbs may be deferred
    _pipeline: Pipeline | None = None  # the innermost pipeline() block that is open
    _has_closed_endpoints = False  # True if this transaction closed endpoints, which can be removed after it
    _has_run_verb = False
    _defers_commit = False  # True if COMMIT may be sent with the next statement of the connection
    _was_put_back = False  # True after `_put_back`, which has rolled back
    _may_have_more_groups = True  # False if the last RECEIVE took all groups, so that no other reader is needed
    _rollback_counts = True  # False if poison detection must not count a rollback of this transaction
    _savepoint = b""  # the command that is sent after the next RECEIVE

    def __enter__(self) -> Self:
        self._received_from: set[tuple[int, int]] = set()  # the transaction id and queue id of each RECEIVE
        self._owner = current_work()
        self.instance.open_transactions[self._owner] += 1
        self.connection.queued.append(_BEGIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended = True  # other transactions may use the connection from now on
        self._forget_owner()
        if self.database.instance.is_forked:
            self._leave_to_parent(kind)
            return
        if self._processing is not None:
            tracing.end(self._processing, error)
        if self._was_put_back:
            release_group_locks(self.connection)
            return
        if kind is not None:
            self._drop_deferred()
        if self.connection.queued and not self.connection.deferred.verbs:  # no statement was run
            self.connection.queued.pop()
            send_queued(self.connection)  # the deferred COMMIT of the previous transaction, if any
            if self._has_run_verb:
                self.database.instance.tally.add(ROLLBACKS)
            return
        outcome_is_known = not is_idle(self.connection)  # False if the application has run COMMIT or ROLLBACK itself
        if kind is None and outcome_is_known and self._defers_commit and self._may_defer_commit():
            self._queue_commit()
            return
        committed = False
        try:
            if kind is None:
                self._commit()
                committed = True
        except psycopg.errors.InFailedSqlTransaction:
            raise
        except BaseException as problem:
            outcome_is_known, error = False, problem
            raise
        finally:
            if not self._rollback_counts or (error is not None and is_full_disk(error)):
                self._received_from.clear()
            self._clean_up(committed=committed, outcome_is_known=outcome_is_known)

    def _commit(self) -> None:
        """Commit. If only new conversations are deferred, their single statement needs no BEGIN and COMMIT."""
        connection = self.connection
        if connection.pgconn.transaction_status == TransactionStatus.INERROR:
            connection.rollback()
            raise psycopg.errors.InFailedSqlTransaction
        try:
            dialogs = self._deferred_dialogs
            if self._deferred_answers is not None and self._deferred_answers.has_deferred:
                self._commit_with(self._deferred_answers)
            elif (
                dialogs is not None
                and dialogs.is_one_statement
                and connection.queued
                and connection.queued[-1] is _BEGIN
            ):
                connection.queued.pop()
                run_alone(connection, dialogs.take_steps())
            else:
                run_command(connection, b"commit")
        except psycopg.OperationalError as problem:
            if connection.closed:
                raise InstanceError(
                    f"The connection was lost during COMMIT ({one_line(problem)}): check whether the transaction was "
                    "committed before you repeat it."
                ) from problem
            raise

    def _commit_with(self, answers: DeferredAnswers) -> None:
        """Send the deferred verbs and COMMIT in one round trip.

        Raises:
            DeferredVerbFailed: a deferred verb has failed. Poison detection does not count this rollback.
        """
        try:
            _, problem = answers.send_with([b"commit"])
        except psycopg.Error as failure:
            if self.connection.closed or is_transaction_conflict(failure):
                raise
            answers.stop()
            self._rollback_counts = False
            raise DeferredVerbFailed from failure
        if problem is not None:
            raise problem

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """Buffer the SENDs of the block, and send them together: before another statement, and at the end of the block.

        Any other method, COMMIT and a statement on `connection` flush the buffer; so do 1,000 SENDs or 8 MB of bodies.
        `send` of one message returns its position in the block, from 0. After the flush, `numbers[position]` of the
        object that the block gets is its sequence number. Each conversation keeps the order of its SENDs.

        If a SEND is refused, the flush raises, with the position in `BrokerError.place`. The transaction can then
        only be rolled back.
        """
        self._check_open()
        self._send_deferred()
        if self._deferred_answers is not None:
            self._deferred_answers.drop()  # the SENDs of the block use the predicted numbers
        before, self._pipeline = self._pipeline, Pipeline(self.database, self.connection)
        try:
            yield self._pipeline
        finally:
            self._pipeline = before
            if self.connection.closed or self.connection.pgconn.transaction_status == TransactionStatus.INERROR:
                self.connection.deferred.verbs = None  # the transaction can commit nothing
            self._send_deferred()

    @override
    def _begin_in(self, begin: BeginDialog, group: UUID) -> UUID:
        if self._deferred_answers is not None:
            self._deferred_answers.send_now()
        if self._pipeline is None and not self._has_ended:
            handles: list[UUID] = self._get_deferred_dialogs().begin(self.engine, begin, group)
            if handles:
                self.instance.check_caller()
                self._has_run_verb = True
                return handles[0]
        return super()._begin_in(begin, group)

    @override
    def run(self, operation: Operation[T]) -> T:
        """Run an operation, as `Database.run`. In `pipeline()` a SEND on one conversation returns its position."""
        answers = self._deferred_answers
        if answers is not None and not self._has_ended and (predicted := answers.run(operation)):
            self.instance.check_caller()
            predicted_result: T = predicted[0]
            return predicted_result
        pipeline = self._pipeline
        is_begin = type(operation) is BeginDialog
        may_defer = pipeline is None and not self._has_ended and (self._deferred_dialogs is not None or is_begin)
        if may_defer and (deferred := self._get_deferred_dialogs().run(self.engine, operation)):
            self.instance.check_caller()
            self._has_run_verb = True
            result: T = deferred[0]
            return result
        if pipeline is None or not isinstance(operation, Send) or not operation.is_single:
            return super().run(operation)
        if tracing.is_on() or self.instance.events.watches_conversations or not is_direct(self.connection):
            position: Any = pipeline.note_sent(super().run(operation))
            return cast(T, position)
        self._check_open()
        self._note_verb()
        position = pipeline.defer(operation)
        if pipeline.is_full:
            self._send_deferred()
        return cast(T, position)

    def _get_deferred_dialogs(self) -> DeferredDialogs:
        """Return the deferred conversations: one object, also if threads share the transaction."""
        return self._deferred_dialogs or vars(self).setdefault(
            "_deferred_dialogs", DeferredDialogs(self.instance, self.connection)
        )

    @override
    def _drop_deferred(self) -> None:
        if self._deferred_dialogs is not None:
            self._deferred_dialogs.drop()
        if self._deferred_answers is not None:
            self._deferred_answers.drop()

    @override
    def _send_deferred(self) -> None:
        send_deferred(self.connection)

    def _receive_and_save(self, operation: Receive, savepoint: bytes) -> list[Message]:
        """Run RECEIVE and set a savepoint after it. A rollback to the savepoint does not undo the RECEIVE."""
        if tracing.is_on():  # a statement that reads the traces follows RECEIVE
            messages = self.run(operation)
            run_command(self.connection, savepoint)
            return messages
        self._savepoint = savepoint
        try:
            return self.run(operation)
        finally:
            self._savepoint = b""

    def _defer_commit(self) -> None:
        """Defer COMMIT: it is sent with the first statement of the next transaction on this connection."""
        self._send_deferred()
        if self._has_closed_endpoints:
            self._do(self.engine.remove_closed())
        self._defers_commit = True

    def _put_back(self, group: UUID, steps: Steps[None] | None = None) -> None:
        """Roll back without counting it in poison detection. Then run the steps, still with the group's lock."""
        run(self.connection, _single_step(self.database.engine.keep_lock(group)))
        self._received_from.clear()
        self._was_put_back = True
        self.database.instance.tally.add(ROLLBACKS)
        run_command(self.connection, b"rollback")
        if steps is not None:
            in_transaction(self.connection, steps)

    def _was_rolled_back(self) -> bool:
        """Return whether the application has rolled back this transaction, which had received messages."""
        ids = [transaction for transaction, _ in self._received_from]
        return "aborted" in (run(self.connection, find_outcomes(ids))).values()

    def _has_finished(self) -> bool:
        """Return whether the transaction was ended on the connection, or the connection is lost."""
        return self.connection.closed or is_idle(self.connection)

    def _may_defer_commit(self) -> bool:
        """Return whether COMMIT may be sent later: no verb is deferred, and no group lock outlives the transaction."""
        is_open = self.connection.pgconn.transaction_status == TransactionStatus.INTRANS
        is_free = is_direct(self.connection) and not self.connection.deferred.verbs
        return is_open and is_free and not session_locks.may_keep_locks(self.connection)

    def _queue_commit(self) -> None:
        """Queue COMMIT before the connection's next statement. Poison detection then learns its outcome."""
        poison, connection = self.database.instance.poison, self.connection
        poison.note_deferred_commit(connection, self._received_from)
        connection.queued.append(QueuedCommand(b"commit", lambda: poison.confirm_commit(connection)))

    def _clean_up(self, *, committed: bool, outcome_is_known: bool) -> None:
        self.connection.deferred.verbs = None
        if not committed and not is_idle(self.connection):
            with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
                self.connection.rollback()
        release_group_locks(self.connection)
        if self._has_run_verb and outcome_is_known and not committed:
            self.database.instance.tally.add(ROLLBACKS)
        if self._received_from:
            self._count(committed=committed, outcome_is_known=outcome_is_known)

    def _count(self, *, committed: bool, outcome_is_known: bool) -> None:
        """Report to poison detection whether a transaction that received messages was committed."""
        poison, connection = self.database.instance.poison, self.connection
        queues = {queue_id for _, queue_id in self._received_from}
        is_single = len({transaction for transaction, _ in self._received_from}) == 1
        if outcome_is_known and is_single and committed:
            poison.note_commit(queues)
        elif outcome_is_known and is_single and not connection.closed:
            poison.count_rollback(connection, queues)
        else:
            for transaction, queue_id in self._received_from:
                poison.note_unknown_outcome(transaction, [queue_id])
            if not connection.closed:
                poison.resolve_outcomes(connection)

    @override
    def _keep_span(self, span: Span) -> None:
        if self._processing is not None:
            tracing.end(self._processing)
        self._processing = span

    @override
    def _note_receive(self, queue_id: int, transaction: int) -> None:
        if (transaction, queue_id) not in self._received_from:
            self._received_from.add((transaction, queue_id))
            self.database.instance.poison.note_receive(transaction, queue_id)

    @override
    def _note_verb(self) -> None:
        self._has_run_verb = True

    @override
    def _do(self, steps: Steps[T]) -> T:
        self.instance.check_caller()
        if self._has_ended:
            self._check_open()
        if self._savepoint:
            steps = with_savepoint(steps, self._savepoint)
        if is_idle(self.connection):
            raise InstanceError(ENDED_ON_ITS_CONNECTION)
        try:
            return run(self.connection, steps)
        except psycopg.Error as problem:
            raise_broker_error(problem)
        except BrokerError as refused:
            raise_if_database_dropped(self.connection, self.engine, refused)
            raise

    def _forget_owner(self) -> None:
        """Decrement the number of open transactions of the thread or task that began this one."""
        opened = self.instance.open_transactions
        opened[self._owner] -= 1
        if not opened[self._owner]:
            del opened[self._owner]

    def _leave_to_parent(self, kind: type[BaseException] | None) -> None:
        """End in a forked child without using the connection: the transaction is the parent's."""
        self.connection.queued.clear()
        self.connection.deferred.verbs = None
        if kind is None:
            self.database.instance.check_caller()

    def _check_open(self) -> None:
        self.database.instance.check_caller()
        if self._has_ended:
            raise InstanceError("This transaction has ended: begin another one with database.transaction().")


@contextmanager
def _in_utf8(connection: psycopg.Connection[Any], encoding: str) -> Iterator[None]:
    """Set the encoding of the application's connection to UTF8 for one statement, then restore it.

    In a transaction the change is SET LOCAL, so that a ROLLBACK undoes it, too.
    """
    change = "set" if connection.autocommit and is_idle(connection) else "set local"
    connection.execute(f"{change} client_encoding to '{ENCODING}'".encode())
    try:
        yield
    finally:
        if not connection.closed and connection.pgconn.transaction_status != TransactionStatus.INERROR:
            connection.execute(f"{change} client_encoding to '{encoding}'".encode())


def is_full_disk(error: BaseException) -> bool:
    """Return whether the disk was full. No message causes that, so poison detection does not count it."""
    return isinstance(error.__cause__ or error, psycopg.errors.DiskFull)


def raise_if_database_dropped(connection: psycopg.Connection[Any], engine: OwnerVerbs, refused: BrokerError) -> None:
    """Raise 8442 instead of a "not found" error if the database was dropped."""
    if refused.number in NOT_FOUND and not connection.closed:
        try:
            run(connection, engine.check_database())
        except psycopg.Error as problem:
            raise_broker_error(problem)


def _single_step(keeping: Statement) -> Steps[None]:
    yield keeping


def release_group_locks(connection: psycopg.Connection[Any]) -> None:
    """Release group locks that remain on a connection after its transaction; if that fails, close the connection."""
    if not session_locks.may_keep_locks(connection):
        return
    try:
        connection.rollback()  # a transaction that was left open
        session_locks.release(connection)
    except psycopg.Error:
        connection.close()


def translate_errors(*, runs_application_sql: bool = False) -> AbstractContextManager[None]:
    """Translate errors of PostgreSQL in the block into the broker's errors.

    `runs_application_sql`: the block runs statements of the application, too. Errors of PostgreSQL are then raised as
    they are, except for a deadlock and a lost transaction or connection.
    """
    return _Translated(runs_application_sql)


class _Translated(AbstractContextManager[None]):
    """The context manager of `translate_errors`; a class, since each statement enters one and a generator is slower."""

    __slots__ = ("_runs_application_sql",)

    def __init__(self, runs_application_sql: bool) -> None:
        self._runs_application_sql = runs_application_sql

    @override
    def __enter__(self) -> None:
        pass

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, psycopg.Error):
            raise_translated(error, runs_application_sql=self._runs_application_sql)


def raise_translated(problem: psycopg.Error, *, runs_application_sql: bool = True) -> None:
    """Raise the broker's error that corresponds to an error of PostgreSQL; without one, do nothing."""
    broker_error = explain_error(problem, transaction_only=runs_application_sql)
    if broker_error is not None:
        raise broker_error from problem
