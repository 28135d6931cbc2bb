"""The in-memory double's instance, databases and transactions, and a clock that a test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from uuid import UUID, uuid4

from servicebroker import operations
from servicebroker.model import poison
from servicebroker.model.arguments import (
    OMITTED,
    check_groups,
    check_policy,
    check_procedure,
    may_exist,
)
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.events import QUEUE_DISABLED_CLASS, Events
from servicebroker.model.handlers import check_result
from servicebroker.model.handlers.typed import typed_procedure
from servicebroker.model.messages import Message
from servicebroker.model.poison import Policy
from servicebroker.model.workers import Worker
from servicebroker.operations import application
from servicebroker.operations.application import Application
from servicebroker.operations.operation import Definition, Operation
from servicebroker.operations.receive import Receive
from servicebroker.operations.send import Send
from servicebroker.overriding import override
from servicebroker.testing import definitions, delivery, failures, worker_calls
from servicebroker.testing.catalog import Broker
from servicebroker.testing.delivery import deliver_everything, release_due
from servicebroker.testing.endpoints import expire_ended, forget_keys, remove_closed
from servicebroker.testing.memory import Connect, IdentityFactory, Memory, Session, WouldWait, application_connection
from servicebroker.testing.receiving import fire_due_events, next_due
from servicebroker.testing.requests import drop_late, process_late_answers
from servicebroker.testing.verbs import Verbs, method_of

T = TypeVar("T")

SYSTEM_DATABASE = "msdb"


def _random_identity(peer: UUID | None) -> tuple[UUID, UUID, UUID]:
    return uuid4(), uuid4(), uuid4()


class Instance:
    """An instance in memory, with the methods of `servicebroker.Instance`.

    Attributes:
        clock: returns the time for timers, lifetimes and delays; it stands still until a test moves it.
        events: events for an administrator.
    """

    def __init__(
        self, clock: Clock | None = None, identify: IdentityFactory = _random_identity, connect: Connect | None = None
    ) -> None:
        self.clock = clock or Clock()
        self.events = Events()
        self._memory = Memory(self.clock, identify)
        self._rollbacks = poison.Rollbacks()
        self._connect = connect
        self._workers: list[tuple[Database, Worker, bool]] = []  # (database, worker, raises); see `Database.working`
        self._is_working = False
        self.database(SYSTEM_DATABASE, create=True)

    def database(self, name: str, *, create: bool = False) -> Database:
        """Return the broker database of that name, case-insensitive. With `create`, a missing one is created.

        Raises:
            BrokerError: 911 there is no such database.
        """
        return Database(self, definitions.find_broker(self._memory, name, create=create), name)

    def upkeep(self) -> None:
        """Do the work of a real instance's maintenance: everything that is due by the clock.

        Raises:
            WouldWait: a transaction is open.
        """
        with self._exclusive_session() as session:
            for broker in self._memory.brokers:
                for queue in broker.queues.values():
                    fire_due_events(session, queue)
                    drop_late(session, queue)
            expire_ended(session)
            remove_closed(session)
            forget_keys(session)
            release_due(session)
            deliver_everything(session)

    def pass_time(self, **by: float) -> None:
        """Move the clock forward in steps, one for each time at which something is due. Workers run after each step.

        The arguments are those of `datetime.timedelta`: `pass_time(hours=1)`.

        Raises:
            WouldWait: a transaction is open.
        """
        end = self.clock() + timedelta(**by)
        while (due := self._next_due()) is not None and due <= end:
            self.clock.jump_to(due)
            self.upkeep()
        self.clock.jump_to(end)
        self.upkeep()

    def _next_due(self) -> datetime | None:
        """Return the next time after now at which something is due in any queue; None without one."""
        with self._exclusive_session() as session:
            queues = [queue for broker in self._memory.brokers for queue in broker.queues.values()]
            return min((time for queue in queues if (time := next_due(session, queue))), default=None)

    def close(self) -> None:
        """Do nothing: an instance in memory has nothing to stop."""

    @contextmanager
    def _exclusive_session(self) -> Iterator[Session]:
        """Run a transaction that changes definitions. No other transaction may be open."""
        if self._memory.transactions:
            raise WouldWait(
                "A transaction is open. The in-memory double runs definitions and upkeep only while no transaction is "
                "open: end it first."
            )
        with self._transaction() as session, session.verb():
            yield session

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        """Run a transaction for the block. A rollback counts for the queues from which it received."""
        session = self._memory.begin()
        try:
            yield session
        except failures.PutBack:
            session.rollback()
            raise
        except BaseException:
            session.rollback()
            for queue_id in self._rollbacks.count_rollback(session.received_from):
                self._disable(queue_id)
            raise
        session.commit()
        self._rollbacks.note_commit(session.received_from)
        self._run_workers()

    def _run_workers(self) -> None:
        """Run the workers until their queues are empty."""
        if self._is_working or self._memory.transactions:
            return
        self._is_working = True
        try:
            while any(database._run_worker_once(worker, raises) for database, worker, raises in self._workers):
                pass
        finally:
            self._is_working = False

    def _disable(self, queue_id: int) -> None:
        """Switch a queue off, as automatic poison detection does."""
        for broker in self._memory.brokers:
            for queue in broker.queues.values():
                is_on = queue.is_receive_enabled or queue.is_enqueue_enabled
                if queue.queue_id == queue_id and queue.is_poison_message_handling_enabled and is_on:
                    queue.is_receive_enabled = queue.is_enqueue_enabled = False
                    text = poison.reason(queue.name)
                    self.events.record(QUEUE_DISABLED_CLASS, self.clock(), broker.database_id, queue_id, text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Database(Verbs):
    """A broker database, with the methods of `servicebroker.Database`. Each statement is a transaction of its own.

    Attributes:
        instance: the instance of the database.
        database_id: the number of the database.
        name: the name of the database, as it was passed to `instance.database`.
        broker: the objects of the database: message types, queues, services and so on.
    """

    def __init__(self, instance: Instance, broker: Broker, name: str) -> None:
        self.instance = instance
        self.database_id = broker.database_id
        self.name = name
        self.broker = broker

    @override
    @property
    def database(self) -> Database:  # type: ignore[override] # read-only here
        """The database itself."""
        return self

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction. The end of the block commits it, an exception rolls it back. Several may be open."""
        connecting = application_connection(self.instance._connect, self.instance.clock)
        with self.instance._transaction() as session, connecting as connection:
            transaction = Transaction(self, session, connection)
            try:
                yield transaction
                transaction._flush_pipeline()
                transaction._check_not_spoiled()
            finally:
                transaction.is_open = False

    def process(
        self,
        queue: str,
        procedure: Callable[[Transaction, list[Any]], object],
        *,
        top: int | None = 1,
        groups: int = 1,
        wait: float = 0.0,
        poison: Policy | None = None,
    ) -> int:
        """Call `procedure(transaction, messages)` for the messages of each RECEIVE, each in a transaction.

        If a transaction has several groups, each group is a call. With `poison`, that policy decides about an exception
        of the procedure. Without it, the exception rolls the transaction back and is raised.

        Returns the number of received messages, when the queue is empty. A message that the policy returns to the
        queue counts each time.
        """
        check_procedure(procedure, may_be_async=False)
        check_groups(groups)
        check_policy(poison)
        procedure = typed_procedure(procedure)
        processed = 0
        while poison is not None:
            operation = Receive(queue, top=top, groups=groups, wait=wait)
            taken = self._take(operation, lambda *work: _called(procedure, *work), poison)
            if not taken:
                return processed
            processed += taken
        while True:
            with self.transaction() as transaction:
                messages = transaction.receive(queue, top=top, groups=groups, wait=wait)
                if not messages:
                    return processed
                for group_of_messages in worker_calls.group_messages(messages):
                    check_result(procedure(transaction, group_of_messages))
            processed += len(messages)

    def process_late_answers(self, queue: str, procedure: Callable[[Transaction, list[Message]], object]) -> int:
        """Run `procedure(transaction, messages)` for each late answer in a queue, and end its conversation.

        Returns the number of ended conversations.
        """
        check_procedure(procedure, may_be_async=False)
        return process_late_answers(self, definitions.find_queue(self.broker, queue), procedure)

    @contextmanager
    def working(self, *workers: Worker, concurrency: int = 1, raises: bool = False) -> Iterator[None]:
        """Run workers during the block: after each commit, they process all messages before the test continues.

        If a RECEIVE of the test waits, the clock also stops at the times of the workers' timers and retries. The policy
        of a worker decides about an exception of a handler. With `raises`, the policy is not used: the exception is
        raised by the COMMIT or the waiting RECEIVE of the test.
        """
        worker_calls.check(self.broker, workers, concurrency, is_async=False)
        worker_calls.keep_schedules(self.run, workers)
        added = [(self, worker, raises) for worker in workers]
        self.instance._workers += added
        try:
            self.instance._run_workers()
            yield
        finally:
            self.instance._workers = [entry for entry in self.instance._workers if entry not in added]

    def run_worker_once(self, worker: Worker) -> int:
        """Run a worker for the messages of one RECEIVE, with its retry policy. Returns the number of messages.

        Raises:
            BrokerError: 402 `worker` is not a worker, or one that the database cannot run.
        """
        worker_calls.check(self.broker, [worker], 1, is_async=False)
        worker_calls.keep_schedules(self.run, [worker])
        return self._take(Receive.of_worker(worker), partial(worker_calls.handle, worker), worker.poison)

    def _run_worker_once(self, worker: Worker, raises: bool) -> bool:
        """Process the messages of one RECEIVE. Returns True if there were any."""
        if not raises:
            return bool(self.run_worker_once(worker))
        with self.transaction() as transaction:
            messages = transaction.run(Receive.of_worker(worker))
            for group_of_messages in worker_calls.group_messages(messages):
                worker_calls.run_to_end(worker_calls.handle(worker, transaction, group_of_messages))
        return bool(messages)

    def _take(self, operation: Receive, procedure: Callable[..., Awaitable[object]], policy: Policy) -> int:
        """Process the messages of one RECEIVE, with a retry policy. Returns the number of messages."""

        @asynccontextmanager
        async def begin() -> AsyncIterator[tuple[Transaction, Transaction]]:
            with self.transaction() as transaction:
                yield transaction, transaction

        return worker_calls.run_to_end(failures.take(self, operation, procedure, policy, begin))

    def define(self, definition: Application | Mapping[str, Any] | str | Path) -> list[str]:
        """Create and alter the objects of a definition. Returns the changes in words.

        Parts that the double does not support are ignored: routes, users, roles, rights, and RETENTION and ACTIVATION
        of queues.
        """
        changes = application.changes(
            definitions.supported_part(application.read(definition)), definitions.describe(self.broker)
        )
        for change in changes:
            self.run(change.operation)
        return [change.words for change in changes]

    def join(self, connection: object) -> Transaction:
        """Refuse: the double has no connection to join.

        Raises:
            InstanceError: always.
        """
        raise InstanceError("The in-memory double has no PostgreSQL connection to join: use database.transaction().")

    @override
    def run(self, operation: Operation[T]) -> T:
        """Run an operation of `servicebroker.operations`. Each statement's method does this."""
        if not isinstance(operation, Definition) or type(operation) not in definitions.INTERPRETERS:
            return super().run(operation)
        with may_exist(operation.exist_ok), self.instance._exclusive_session() as session:
            definitions.define(session, self.broker, operation)
        return cast(T, None)

    create_message_type = method_of(operations.CreateMessageType)

    alter_message_type = method_of(operations.AlterMessageType)

    drop_message_type = method_of(operations.DropMessageType)

    create_contract = method_of(operations.CreateContract)

    drop_contract = method_of(operations.DropContract)

    create_queue = method_of(operations.CreateQueue)

    alter_queue = method_of(operations.AlterQueue)

    drop_queue = method_of(operations.DropQueue)

    create_service = method_of(operations.CreateService)

    alter_service = method_of(operations.AlterService)

    drop_service = method_of(operations.DropService)

    create_broker_priority = method_of(operations.CreateBrokerPriority)

    alter_broker_priority = method_of(operations.AlterBrokerPriority)

    drop_broker_priority = method_of(operations.DropBrokerPriority)

    alter = method_of(operations.AlterDatabase)

    set_aside_messages = method_of(operations.SetAsideMessages)

    schedules = method_of(operations.Schedules)

    drop_schedule = method_of(operations.DropSchedule)

    dead_letter_groups = method_of(operations.DeadLetterGroups)

    replay_message = method_of(operations.ReplayMessage)

    discard_message = method_of(operations.DiscardMessage)

    @override
    @contextmanager
    def _verb(self) -> Iterator[Session]:
        with self.instance._transaction() as session, session.verb():
            yield session


@dataclass
class Pipeline:
    """The SENDs of one `pipeline()` block. `numbers` are the sequence numbers of those that were sent, by position."""

    numbers: list[int] = field(default_factory=list)
    waiting: list[Send[int]] = field(default_factory=list)


class Transaction(Verbs):
    """A transaction, with the methods of `servicebroker.Transaction`. Its connection comes from the test."""

    def __init__(self, database: Database, session: Session, connection: Any = None) -> None:
        self.database = database
        self._connection = connection
        self.is_open = True
        self._session = session
        self._pipeline: Pipeline | None = None
        self._is_spoiled = False

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """Buffer the SENDs of the block, and send them together: before another statement, and at the end of the block.

        `send` of one message returns its position in the block. If a SEND is refused, sending the buffer raises, with
        the position in the error. The transaction can then only be rolled back.
        """
        self._check_open()
        self._flush_pipeline()
        outer_pipeline, self._pipeline = self._pipeline, Pipeline()
        try:
            yield self._pipeline
        finally:
            try:
                if not self._is_spoiled:
                    self._flush_pipeline()
            finally:
                self._pipeline = outer_pipeline

    @override
    def run(self, operation: Operation[T]) -> T:
        """Run an operation, as `Database.run`. Within `pipeline()`, a SEND on one conversation returns its position."""
        if self._pipeline is None or not isinstance(operation, Send) or not operation.is_single:
            return super().run(operation)
        self._check_open()
        position: Any = len(self._pipeline.numbers) + len(self._pipeline.waiting)
        content = operation.content()
        assert isinstance(operation.handle, UUID)
        body = OMITTED if content is None else content
        due = operation.due(self.database.instance.clock())
        send = Send(operation.handle, operation.message_type, body, at=due)
        self._pipeline.waiting.append(send)
        return cast(T, position)

    def _flush_pipeline(self) -> None:
        if self._pipeline is None or not self._pipeline.waiting:
            return
        sends, self._pipeline.waiting = self._pipeline.waiting, []
        for send in sends:
            position = len(self._pipeline.numbers)
            try:
                with self._session.verb():
                    number = delivery.send(self._session, send)
            except BrokerError as refused:
                self._is_spoiled = True
                raise refused.of_send(position, f"'{send.message_type}' on the conversation {send.handle}") from None
            self._pipeline.numbers.append(number)

    def _check_not_spoiled(self) -> None:
        if self._is_spoiled:
            raise InstanceError(
                "A SEND of the pipeline was refused, so the transaction is rolled back: begin it again."
            )

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Set a savepoint. If the block raises, roll back to it and reraise; the transaction stays open.

        The rollback returns messages that the block received to the queue. Their groups stay locked until the
        transaction ends.
        """
        self._check_open()
        self._flush_pipeline()
        was_spoiled = self._is_spoiled
        try:
            with self._session.savepoint(), self._connection_savepoint():
                yield
                self._flush_pipeline()
                self._check_not_spoiled()
        except BaseException:
            self._is_spoiled = was_spoiled
            raise

    @contextmanager
    def _connection_savepoint(self) -> Iterator[None]:
        """Set a savepoint on the connection of the test, too, if there is one."""
        if self._connection is None:
            yield
            return
        self._connection.execute("savepoint servicebroker")
        try:
            yield
        except BaseException:
            self._connection.execute("rollback to savepoint servicebroker")
            self._connection.execute("release savepoint servicebroker")
            raise
        self._connection.execute("release savepoint servicebroker")

    @override
    @property
    def connection(self) -> Any:
        """The connection that `connect` has returned for this transaction.

        Raises:
            InstanceError: the instance was opened without `connect`.
        """
        return super().connection if self._connection is None else self._connection

    @override
    @contextmanager
    def _verb(self) -> Iterator[Session]:
        self._check_open()
        self._check_not_spoiled()
        self._flush_pipeline()
        with self._session.verb():
            yield self._session

    def _check_open(self) -> None:
        if not self.is_open:
            raise InstanceError("This transaction has ended: begin another one with database.transaction().")


async def _called(procedure: Callable[[Transaction, list[Message]], object], *work: Any) -> None:
    check_result(procedure(*work))


def open_instance(*, clock: Clock | None = None, connect: Connect | None = None) -> Instance:
    """Open an instance in memory. Its clock stands still until `instance.clock.jump(seconds=...)`.

    Args:
        clock: a clock that instances share. Default: a new one.
        connect: returns `transaction.connection`, for the application's own tables. It is called for each transaction
            of `database.transaction()` and of workers. The result needs `commit`, `rollback` and `close`, and `execute`
            for savepoints: for example a connection of psycopg or sqlite3, or an object of the test.
    """
    return Instance(clock, connect=connect)


class Clock:
    """A clock in UTC, for `servicebroker.open(..., clock=)` and `servicebroker.testing.open(clock=)`."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def __call__(self) -> datetime:
        """Return the time."""
        return self._now

    def jump(self, **by: float) -> None:
        """Move the clock forward. The arguments are those of `datetime.timedelta`: `jump(minutes=31)`."""
        self._now += timedelta(**by)

    def jump_to(self, time: datetime) -> None:
        """Move the clock forward to a time. An earlier time changes nothing."""
        self._now = max(self._now, time)
