"""The instance, its databases and their transactions: the names of the real ones, without PostgreSQL; and a
clock that stands still until a test jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from uuid import UUID, uuid4

from servicebroker import operations
from servicebroker.model import poison
from servicebroker.model.arguments import (
    OMITTED,
    check_groups,
    check_procedure,
    may_exist,
)
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.events import QUEUE_DISABLED_CLASS, Events
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message
from servicebroker.model.workers import Worker
from servicebroker.operations import application
from servicebroker.operations.application import Application
from servicebroker.operations.operation import Definition, Operation
from servicebroker.operations.send import Send
from servicebroker.testing import definitions, delivery, working
from servicebroker.testing.catalog import Broker
from servicebroker.testing.delivery import deliver_everything
from servicebroker.testing.endpoints import expire_ended, remove_closed
from servicebroker.testing.receiving import serve
from servicebroker.testing.requesting import drop_late, process_late_answers
from servicebroker.testing.rows import Connect, Identify, Memory, Session, WouldWait, connected
from servicebroker.testing.verbs import Verbs, operated

T = TypeVar("T")

SYSTEM_DATABASE = "msdb"


def _random_identity(peer: UUID | None) -> tuple[UUID, UUID, UUID]:
    return uuid4(), uuid4(), uuid4()


class Instance:
    """An instance in memory, as `servicebroker.Instance`; it is gone when nobody refers to it.

    Attributes:
        clock: gives every rule its time; it stands still until it is told to jump.
        events: what an administrator wants to know.
    """

    def __init__(
        self, clock: Clock | None = None, identify: Identify = _random_identity, connect: Connect | None = None
    ) -> None:
        self.clock = clock or Clock()
        self.events = Events()
        self._memory = Memory(self.clock, identify)
        self._rollbacks = poison.Rollbacks()
        self._connect = connect
        self._workers: list[tuple[Database, Worker]] = []
        self._is_working = False
        self.database(SYSTEM_DATABASE, create=True)

    def database(self, name: str, *, create: bool = False) -> Database:
        """The broker database of that name, compared without case; made when it is missing and `create` is set.

        Raises:
            BrokerError: 911 when it does not exist.
        """
        return Database(self, definitions.find_broker(self._memory, name, create=create), name)

    def upkeep(self) -> None:
        """What the background of a real instance does now and then: everything that is due by the clock.

        Raises:
            WouldWait: a transaction is open.
        """
        with self._alone() as session:
            for broker in self._memory.brokers:
                for queue in broker.queues.values():
                    serve(session, queue)
                    drop_late(session, queue)
            expire_ended(session)
            remove_closed(session)
            deliver_everything(session)

    def close(self) -> None:
        """Nothing to stop."""

    @contextmanager
    def _alone(self) -> Iterator[Session]:
        """A transaction for what changes definitions: no other is open."""
        if self._memory.transactions:
            raise WouldWait(
                "A transaction is open: the double changes definitions, and does upkeep, only while none is."
            )
        with self._transaction() as session, session.verb():
            yield session

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        """A transaction to the end of the block; its rollback counts where it received."""
        session = self._memory.begin()
        try:
            yield session
        except BaseException:
            session.rollback()
            for queue_id in self._rollbacks.rolled_back(session.received_from):
                self._disable(queue_id)
            raise
        session.commit()
        self._rollbacks.committed(session.received_from)
        self._work()

    def _work(self) -> None:
        """What the workers of `working` have to do now, until they have nothing left."""
        if self._is_working or self._memory.transactions:
            return
        self._is_working = True
        try:
            while any(database._work_once(worker) for database, worker in self._workers):
                pass
        finally:
            self._is_working = False

    def _disable(self, queue_id: int) -> None:
        """Automatic poison detection."""
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
    """One broker database, as `servicebroker.Database`. A verb called here is a transaction of its own.

    Attributes:
        instance: the instance it belongs to.
        database_id: its number.
        name: as it was given.
        broker: its objects.
    """

    def __init__(self, instance: Instance, broker: Broker, name: str) -> None:
        self.instance = instance
        self.database_id = broker.database_id
        self.name = name
        self.broker = broker

    @property
    def database(self) -> Database:  # type: ignore[override] # read-only here
        """The database itself."""
        return self

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction: committed at the end of the block, rolled back by an exception. Several may be open."""
        with self.instance._transaction() as session, connected(self.instance._connect) as connection:
            transaction = Transaction(self, session, connection)
            try:
                yield transaction
                transaction._send_what_waits()
                transaction._check_whole()
            finally:
                transaction.is_open = False

    def process(
        self,
        queue: str,
        procedure: Callable[[Transaction, list[Message]], object],
        *,
        top: int | None = 1,
        groups: int = 1,
        wait: float = 0.0,
    ) -> int:
        """Run `procedure(transaction, messages)` on what RECEIVE takes, each time as a transaction.

        Of so many groups in one transaction, each has a call of its own. What it raises undoes the transaction, and is
        the test's.

        Returns how many messages were processed when nothing is left.
        """
        check_procedure(procedure, may_be_async=False)
        check_groups(groups)
        done = 0
        while True:
            with self.transaction() as transaction:
                messages = transaction.receive(queue, top=top, groups=groups, wait=wait)
                if not messages:
                    return done
                for own in working.by_group(messages):
                    check_result(procedure(transaction, own))
            done += len(messages)

    def process_late_answers(self, queue: str, procedure: Callable[[Transaction, list[Message]], object]) -> int:
        """Run `procedure(transaction, messages)` on each late answer in a queue, and end its conversation.

        Returns how many conversations were ended.
        """
        check_procedure(procedure, may_be_async=False)
        return process_late_answers(self, definitions.find_queue(self.broker, queue), procedure)

    @contextmanager
    def working(self, *workers: Worker, concurrency: int = 1) -> Iterator[None]:
        """Run workers beside the block: whenever something is committed, they do at once what there is to do.

        While a RECEIVE waits, the clock also stops at what is due for them. What a handler raises is raised where the
        test has committed, or has begun to wait; no policy is asked.
        """
        working.check(workers, concurrency, is_async=False)
        for worker in workers:
            definitions.find_queue(self.broker, worker.queue)
        added = [(self, worker) for worker in workers]
        self.instance._workers += added
        try:
            self.instance._work()
            yield
        finally:
            self.instance._workers = [one for one in self.instance._workers if one not in added]

    def _work_once(self, worker: Worker) -> bool:
        """Process what one RECEIVE takes; whether there was something."""
        with self.transaction() as transaction:
            messages = transaction.receive(worker.queue, top=worker.batch or 1, groups=worker.groups)
            for own in working.by_group(messages):
                working.driven(working.handle(worker, transaction, own))
        return bool(messages)

    def define(self, definition: Application | Mapping[str, Any] | str | Path) -> list[str]:
        """Create and alter what a definition says; what was done, in words.

        What the double does not have is left out: routes, users, roles, rights, and RETENTION and ACTIVATION of queues.
        """
        changes = application.changes(
            definitions.known_part(application.read(definition)), definitions.present(self.broker)
        )
        for change in changes:
            self.run(change.operation)
        return [change.words for change in changes]

    def join(self, connection: object) -> Transaction:
        """There is no connection to join.

        Raises:
            InstanceError: always.
        """
        raise InstanceError("The in-memory double has no PostgreSQL connection to join: use database.transaction().")

    def run(self, operation: Operation[T]) -> T:
        """Run an operation, one of `servicebroker.operations`. Each method of a statement does this."""
        if not isinstance(operation, Definition) or type(operation) not in definitions.INTERPRETERS:
            return super().run(operation)
        with may_exist(operation.exist_ok), self.instance._alone() as session:
            definitions.define(session, self.broker, operation)
        return cast(T, None)

    create_message_type = operated(operations.CreateMessageType)

    alter_message_type = operated(operations.AlterMessageType)

    drop_message_type = operated(operations.DropMessageType)

    create_contract = operated(operations.CreateContract)

    drop_contract = operated(operations.DropContract)

    create_queue = operated(operations.CreateQueue)

    alter_queue = operated(operations.AlterQueue)

    drop_queue = operated(operations.DropQueue)

    create_service = operated(operations.CreateService)

    alter_service = operated(operations.AlterService)

    drop_service = operated(operations.DropService)

    create_broker_priority = operated(operations.CreateBrokerPriority)

    alter_broker_priority = operated(operations.AlterBrokerPriority)

    drop_broker_priority = operated(operations.DropBrokerPriority)

    alter = operated(operations.AlterDatabase)

    @contextmanager
    def _verb(self) -> Iterator[Session]:
        with self.instance._transaction() as session, session.verb():
            yield session


@dataclass
class Pipeline:
    """SENDs of one `pipeline()` block; `numbers` are those of the ones that have left, by place."""

    numbers: list[int] = field(default_factory=list)
    waiting: list[Send[int]] = field(default_factory=list)


class Transaction(Verbs):
    """A transaction, as `servicebroker.Transaction`; its connection is what the test has given."""

    def __init__(self, database: Database, session: Session, connection: Any = None) -> None:
        self.database = database
        self._connection = connection
        self.is_open = True
        self._session = session
        self._pipeline: Pipeline | None = None
        self._is_spoiled = False

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """SENDs of the block wait, and leave together: before the next verb, and at the end of the block.

        `send` of one message returns its place in the block. One that is refused raises when they leave, naming its
        place, and nothing of the transaction can be committed any more.
        """
        self._check_open()
        self._send_what_waits()
        before, self._pipeline = self._pipeline, Pipeline()
        try:
            yield self._pipeline
        finally:
            try:
                if not self._is_spoiled:
                    self._send_what_waits()
            finally:
                self._pipeline = before

    def run(self, operation: Operation[T]) -> T:
        """Run an operation, as `Database.run`. Within `pipeline()` a SEND on one conversation returns its place."""
        if self._pipeline is None or not isinstance(operation, Send) or not operation.is_single:
            return super().run(operation)
        self._check_open()
        place: Any = len(self._pipeline.numbers) + len(self._pipeline.waiting)
        content = operation.content()
        assert isinstance(operation.handle, UUID)
        waiting = Send(operation.handle, operation.message_type, OMITTED if content is None else content)
        self._pipeline.waiting.append(waiting)
        return cast(T, place)

    def _send_what_waits(self) -> None:
        if self._pipeline is None or not self._pipeline.waiting:
            return
        sends, self._pipeline.waiting = self._pipeline.waiting, []
        for send in sends:
            place = len(self._pipeline.numbers)
            try:
                with self._session.verb():
                    number = delivery.send(self._session, send)
            except BrokerError as refused:
                self._is_spoiled = True
                raise refused.of_send(place, f"'{send.message_type}' on the conversation {send.handle}") from None
            self._pipeline.numbers.append(number)

    def _check_whole(self) -> None:
        if self._is_spoiled:
            raise InstanceError("A SEND of the pipeline was refused, so the transaction is undone: begin it again.")

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """A savepoint: rolled back when the block raises, and the exception goes on; the transaction lives.

        Messages that the block received are in the queue again then, and their groups stay locked until the
        transaction ends.
        """
        self._check_open()
        self._send_what_waits()
        was_spoiled = self._is_spoiled
        try:
            with self._session.savepoint(), self._undone_together():
                yield
                self._send_what_waits()
                self._check_whole()
        except BaseException:
            self._is_spoiled = was_spoiled
            raise

    @contextmanager
    def _undone_together(self) -> Iterator[None]:
        """The same savepoint on the connection, where there is one."""
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

    @property
    def connection(self) -> Any:
        """What `connect` has returned for this transaction.

        Raises:
            InstanceError: the instance was opened without `connect`.
        """
        return super().connection if self._connection is None else self._connection

    @contextmanager
    def _verb(self) -> Iterator[Session]:
        self._check_open()
        self._check_whole()
        self._send_what_waits()
        with self._session.verb():
            yield self._session

    def _check_open(self) -> None:
        if not self.is_open:
            raise InstanceError("This transaction has ended: begin another one with database.transaction().")


def open_instance(*, clock: Clock | None = None, connect: Connect | None = None) -> Instance:
    """Open an instance in memory; its clock stands still until `instance.clock.jump(seconds=...)`.

    Args:
        clock: another one.
        connect: makes `transaction.connection`, for the application's own tables: it is called for each transaction of
            `database.transaction()` and of workers. What it returns has `commit`, `rollback` and `close`, which are
            called as the transaction ends, and `execute` for savepoints: a connection of psycopg to a test's database,
            of sqlite3, or an object of the test's own.
    """
    return Instance(clock, connect=connect)


class Clock:
    """Gives the time, UTC; pass it to `servicebroker.open(..., clock=)` or to the double's `open`."""

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start

    def __call__(self) -> datetime:
        """The time."""
        return self._now

    def jump(self, **by: float) -> None:
        """Go forward; the arguments are those of `datetime.timedelta`: `jump(minutes=31)`."""
        self._now += timedelta(**by)

    def jump_to(self, time: datetime) -> None:
        """Go forward to a time; an earlier one changes nothing."""
        self._now = max(self._now, time)
