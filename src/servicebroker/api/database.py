# Made from aio/database.py by tools/make_sync.py: change that file, then run `make sync`.
"""A broker database: its transactions, statements as transactions of their own, workers, definitions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import psycopg

from servicebroker.api.certificates import find_certificate, open_key
from servicebroker.api.definitions import Definitions
from servicebroker.api.exclusive import run_exclusively
from servicebroker.api.lock_retry import LOCK_TIMEOUTS_MS, find_lock_timeout, retry_locked, with_lock_timeout
from servicebroker.api.processing import process
from servicebroker.api.requesting import process_late_answers
from servicebroker.api.scripts import Scripts
from servicebroker.api.transaction import (
    ASK_THE_DATABASE,
    JoinedTransaction,
    Transaction,
    raise_if_database_dropped,
    raise_translated,
    translate_errors,
)
from servicebroker.api.verbs import Verbs
from servicebroker.api.working import working
from servicebroker.api.wrappers import operation_method
from servicebroker.engine.catalog import alter
from servicebroker.engine.catalog.routes import explain_route
from servicebroker.engine.security import authorization as rights
from servicebroker.model.arguments import (
    Termination,
    check_groups,
    check_policy,
    check_procedure,
    check_wait,
)
from servicebroker.model.errors import BrokerError
from servicebroker.model.handlers.typed import typed_procedure
from servicebroker.model.messages import Message
from servicebroker.model.poison import Policy
from servicebroker.model.security.permissions import User
from servicebroker.model.workers import Worker
from servicebroker.operations.dead_letters import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.receive import Receive
from servicebroker.operations.schedules import DropSchedule, Schedules
from servicebroker.overriding import override
from servicebroker.protocol.explanation import Explanation
from servicebroker.store.concurrency import IS_ASYNC, current_work
from servicebroker.store.keys.x509_certificates import sign
from servicebroker.store.running import run_alone
from servicebroker.store.server_errors import raise_broker_error
from servicebroker.store.statements import Steps, only

if TYPE_CHECKING:
    from servicebroker.api.instance import Instance
    from servicebroker.operations.application import Application

T = TypeVar("T")
Given = TypeVar("Given")


class Database(
    Definitions,
    Verbs,
    Scripts,
):
    """A broker database of an instance, used as one principal. Each statement called here is its own transaction.

    Attributes:
        instance: the instance of the database.
        database_id: its number in the catalog.
        name: its name, as it was passed to `instance.database`.
        user: the principal whose permissions apply.
        catalog: the catalog cache of this process for that principal.
        engine: the interpreter of operations, on the tables or, for a restricted role, through the fence.
    """

    _within: Transaction | None = None  # inside `defining`: the transaction of its definitions

    def __init__(self, instance: Instance, name: str, user: User) -> None:
        self.instance = instance
        self.database_id = user.database_id
        self.name = name
        self.user = user
        self.catalog = instance.catalog_of(user)
        self.engine = instance.engine(user, self.catalog, instance)

    @override
    @property
    def database(self) -> Database:  # type: ignore[override] # read-only here
        """The database itself."""
        return self

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin a transaction. The end of the block commits it, an exception rolls it back.

        Its `connection` is a psycopg connection, for the application's own tables in the same transaction.
        """
        if self._within is not None:
            yield self._within
            return
        with self.instance.connection() as connection:
            try:
                with Transaction(self, connection) as transaction:
                    yield transaction
            except psycopg.Error as problem:
                raise_translated(problem)
                raise

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
        """Call `procedure(transaction, messages)` with received messages until the queue stays empty.

        Each call is one transaction, committed before the next one begins; its COMMIT and the next RECEIVE share a
        round trip. An exception of the procedure rolls the transaction back, which returns the messages to the queue,
        and ends `process`. Concurrent calls share a queue by its conversation groups.

        Args:
            queue: its name, as for `receive`.
            procedure: it may send, end conversations, and write the application's tables on `transaction.connection`;
                its result is ignored. `messages` is a list of messages. An annotation `list[Order]` asks for their
                bodies, and `list[sb.Message[Order]]` for messages with such bodies, as for handlers of a worker.
            top: the maximum number of messages of one group in a call; None for all messages of the group.
            groups: the number of conversation groups in one transaction, 60 at most; `procedure` is called for each.
                A failure rolls back the work for its group, and its messages stay in the queue. The other groups are
                committed. A deadlock, a serialization failure or a lost connection rolls back all.
            wait: seconds to wait for a message before this returns; float("inf") for ever. No transaction is open
                meanwhile.
            poison: the policy for a message whose processing raises an exception; `process` then continues. If
                several messages fail together, each of them is tried alone.

        Returns:
            The number of received messages. A message that the policy returns to the queue counts each time.

        Raises:
            BrokerError: as `receive`; 402 `procedure` or `poison` cannot be called, or the policy returned no verdict.
            psycopg.Error: a COMMIT failed, for example by a deferred constraint; that transaction is rolled back.
        """
        check_procedure(procedure, may_be_async=IS_ASYNC)
        check_wait(wait)
        check_groups(groups)
        check_policy(poison)
        operation = Receive(queue, top=top, groups=groups, wait=wait)
        return process(self, operation, typed_procedure(procedure), poison=poison)

    def process_late_answers(self, queue: str, procedure: Callable[[Transaction, list[Message]], object]) -> int:
        """Call `procedure(transaction, messages)` with each late answer in a queue, and end its conversation.

        An answer is late if its request had `late_answers="handle"` and its time has passed. Requests of other programs
        are included, even of programs that have crashed. Each call is one transaction: if the procedure raises an
        exception, the transaction is rolled back, the answer stays in the queue, and the exception ends
        `process_late_answers`. Call this periodically.

        Args:
            queue: the queue of the requesting service.
            procedure: gets the messages of one conversation: the answer, and perhaps EndDialog or Error.

        Returns:
            The number of ended conversations.

        Raises:
            BrokerError: 15151 no such queue, 229 no permission, 9617 it is off, 402 `procedure` cannot be called.
        """
        check_procedure(procedure, may_be_async=IS_ASYNC)
        return process_late_answers(self, queue, procedure)

    @contextmanager
    def defining(self) -> Iterator[Database]:
        """Run definitions in one transaction. The block gets a database whose definitions commit at its end, together.

        An exception rolls back all of them. During the block, no other session can define anything in the instance, so
        definitions that the block has read stay valid.
        """
        with self.transaction() as transaction:
            inside = copy.copy(self)
            inside._within = transaction
            # a catalog cache of its own, since the definitions may be rolled back
            inside.catalog = self.instance._new_catalog(None if self.user.is_dbo else self.user)
            transaction._do(only(alter.lock_catalog(self.user.name)))
            yield inside

    def define(self, definition: Application | Mapping[str, Any] | str | Path) -> list[str]:
        """Create or alter all objects of an application in one transaction. Return the changes in words.

        Objects that exist as defined stay unchanged, others are altered, and nothing is dropped.

        Args:
            definition: a TOML file, or its content as dictionaries: `message_types`, `contracts`, `queues`,
                `services`, `routes`, `users`, `roles`, `grants`, `denials`; see docs/how-to/define.md.

        Raises:
            InstanceError: the definition cannot be read, or requires a change that ALTER does not support.
            BrokerError: as the methods for single objects. All changes are rolled back then.
        """
        from servicebroker.api.defining import define  # imports the TOML reader, which few processes need

        return define(self, definition)

    set_aside_messages = operation_method(SetAsideMessages)

    schedules = operation_method(Schedules)

    drop_schedule = operation_method(DropSchedule)

    dead_letter_groups = operation_method(DeadLetterGroups)

    replay_message = operation_method(ReplayMessage)

    discard_message = operation_method(DiscardMessage)

    def explain_route(
        self, service: str, broker_instance: str | UUID | None = None, *, from_outside: bool = False
    ) -> Explanation:
        """Explain the routing of a new conversation from this database to `service`.

        Args:
            service: the name of the service, compared byte by byte.
            broker_instance: the broker identifier that BEGIN DIALOG would name, if any.
            from_outside: explain the routing of a first message from another instance instead.

        Raises:
            BrokerError: 1093 `broker_instance` is not a broker identifier, 402 `service` is not a service name.
        """

        def steps() -> Steps[Explanation]:
            database_id = None if from_outside else self.database_id
            now = self.instance.clock()
            return (yield from explain_route(self.catalog, database_id, service, broker_instance, now))

        return self._do(steps())

    def sign_with_certificate(self, name: str, text: bytes, *, decryption_password: str | None = None) -> bytes:
        """Sign bytes with the private key of a certificate: ECDSA or RSA-PSS, with SHA-256. Return the signature.

        Args:
            name: the certificate.
            text: the bytes to sign.
            decryption_password: the password of the private key, if a password protects it.

        Raises:
            BrokerError: 15151 no such certificate, or no CONTROL permission on it; 15556 no private key; 15465 wrong
                password; 15581 the master key is not open; 402 an invalid argument.
        """
        certificate = find_certificate(self, "BACKUP CERTIFICATE", name)
        return sign(text, open_key(self, certificate, decryption_password))

    def working(self, *workers: Worker, concurrency: int = 1) -> AbstractContextManager[None]:
        """Run workers during the block: `with database.working(stock, concurrency=4): ...`.

        Each worker has `concurrency` readers: threads, or tasks under asyncio. The end of the block stops the readers,
        and waits for handlers in progress. A failure outside of handlers (the database is down, the queue is off) is
        logged, and the reader continues after a pause. `servicebroker worker` does this as a program.

        Raises:
            BrokerError: 15151 no such queue; 402 an argument is not a worker, a worker has no handlers, its handlers
                are async functions where functions are needed or the reverse, or it lacks a handler for a message type
                that only initiators send to the queue.
        """
        return working(self, workers, concurrency)

    def join(self, connection: Any) -> JoinedTransaction:
        """Use a transaction of the application: statements of the result commit and roll back with it.

        Args:
            connection: a connection of psycopg 3, a session or connection of SQLAlchemy on psycopg 3, or
                `django.db.connection`. Savepoints of these libraries (`begin_nested`, `atomic`) include messages. It
                must be connected to this instance's PostgreSQL database, at READ COMMITTED.

        Raises:
            JoinError: `connection` is none of these, or is asynchronous on a blocking instance, or the reverse. With
                SQLAlchemy, the first statement may raise it.
        """
        if isinstance(connection, psycopg.Connection):
            return JoinedTransaction(self, connection)
        from servicebroker.api.foreign import ForeignTransaction  # only for users of such a library

        return ForeignTransaction(self, connection)

    @override
    def _define_exclusively(
        self, steps: Callable[[], Steps[T]], statement: str, termination: Termination, in_use: BrokerError
    ) -> T:
        """Run steps of DDL with exclusive use of the database. The permission is checked before sessions are ended."""

        def authorized() -> Steps[T]:
            yield from self.engine.check_database()
            return (yield from rights.run_authorized(steps(), self.user, statement))

        self._do(rights.authorize(self.user, statement))
        with self.instance.connection() as connection, translate_errors():
            return run_exclusively(connection, self.database_id, termination, in_use, authorized)

    @override
    def _run_in_transaction(self, steps: Steps[T]) -> T:
        """Run steps of DDL under the lock of the catalog, after a check that the database exists."""

        def locked() -> Steps[T]:
            yield alter.lock_catalog(self.user.name)
            yield from self.engine.check_database()
            return (yield from steps)

        with self.transaction() as transaction:
            return transaction._do(locked())

    @override
    def _retry_locked(self, steps: Callable[[], Steps[T]], timeouts_ms: Sequence[int] = LOCK_TIMEOUTS_MS) -> T:
        """Run the steps as `_run_in_transaction` does, and retry after a lock timeout (`lock_retry.py`)."""
        if self._within is not None:  # the transaction keeps its locks, so a retry is useless
            return self._run_in_transaction(steps())

        def attempt(number: int) -> T:
            return self._run_in_transaction(with_lock_timeout(steps(), timeouts_ms[number % len(timeouts_ms)]))

        return retry_locked(attempt, self._do(find_lock_timeout()))

    @override
    def _do(self, steps: Steps[T]) -> T:
        if self._within is not None:
            return self._within._do(steps)
        with self.instance.connection() as connection:
            try:
                return run_alone(connection, steps)
            except psycopg.Error as problem:
                raise_broker_error(problem)
            except BrokerError as refused:
                raise_if_database_dropped(connection, self.engine, refused)
                raise

    @override
    def _refuse_transaction(self, statement: str) -> None:
        if self._within is not None or self.instance.open_transactions.get(current_work()):
            raise BrokerError(226, statement, hint=ASK_THE_DATABASE)

    @override
    def _note_receive(self, queue_id: int, transaction: int) -> None:
        self.instance.poison.note_commit([queue_id])
