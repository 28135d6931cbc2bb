# Made from aio/database.py by tools/make_sync.py: change that file, then run `make sync`.
"""A broker database: its transactions, the verbs outside of a transaction, ALTER DATABASE."""

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
    find_reason,
    raise_broker_error,
    translate,
    translated,
)
from servicebroker.api.verbs import Verbs
from servicebroker.api.working import working
from servicebroker.api.wrappers import operated
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
from servicebroker.operations.receive import Receive
from servicebroker.operations.schedules import DropSchedule, Schedules
from servicebroker.operations.set_aside import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.protocol.explanation import Explanation
from servicebroker.store.concurrency import IS_ASYNC, current_work
from servicebroker.store.keys.x509_certificates import sign
from servicebroker.store.running import run_alone
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
    """One broker database of an instance, and who works there. A verb called here is a transaction of its own.

    Attributes:
        instance: the instance it belongs to.
        database_id: its number in the catalog.
        name: as it was given.
        user: the principal whose permissions count.
        catalog: what this process remembers for that principal.
        engine: the verbs as steps, on the tables or, for a restricted role, through the fence.
    """

    _within: Transaction | None = None  # the one that definitions belong to

    def __init__(self, instance: Instance, name: str, user: User) -> None:
        self.instance = instance
        self.database_id = user.database_id
        self.name = name
        self.user = user
        self.catalog = instance.catalog_of(user)
        self.engine = instance.engine(user, self.catalog, instance)

    @property
    def database(self) -> Database:  # type: ignore[override] # read-only here
        """The database itself."""
        return self

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction: committed at the end of the block, rolled back by an exception.

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
                translate(problem)
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
        """Run `procedure(transaction, messages)` on what RECEIVE takes, again and again, each time as a transaction.

        Each transaction is committed before the messages of the next one are handed out; its COMMIT and the next
        RECEIVE are one round trip. An exception of the procedure rolls its transaction back, so that the messages
        are in the queue again, and ends `process`. Several that run at a time share a queue by its conversation groups.

        Args:
            queue: its name, as for `receive`.
            procedure: what it returns does not matter; it may end conversations, send, and write its own tables
                on `transaction.connection`. It gets a list of messages; annotated with `list[Order]`, of their bodies,
                as handlers of a worker; with `list[sb.Message[Order]]`, of messages whose `body` is an Order.
            top: at most so many messages of one group at a time; None for all that the group has.
            groups: so many conversation groups, 60 at most, share a transaction; `procedure` is called for each. What
                fails is undone for its group, whose messages stay in the queue; the others are committed. A deadlock, a
                serialization failure and a lost connection undo all.
            wait: seconds to wait for a message before it ends; float("inf") for ever. No transaction is open then.
            poison: says what happens to a message whose processing raises an exception; `process` goes on then. Of
                several messages that fail together each is tried alone.

        Returns:
            How many messages were taken. One that the policy puts back counts each time.

        Raises:
            BrokerError: as `receive`; 402 `procedure` or `poison` cannot be called, or the policy gave no verdict.
            psycopg.Error: a COMMIT failed, as at a deferred constraint; that transaction is rolled back.
        """
        check_procedure(procedure, may_be_async=IS_ASYNC)
        check_wait(wait)
        check_groups(groups)
        check_policy(poison)
        operation = Receive(queue, top=top, groups=groups, wait=wait)
        return process(self, operation, typed_procedure(procedure), poison=poison)

    def process_late_answers(self, queue: str, procedure: Callable[[Transaction, list[Message]], object]) -> int:
        """Run `procedure(transaction, messages)` on each late answer in a queue, and end its conversation.

        Late are the answers to requests with `late_answers="handle"` whose time has passed, of every program, also of
        those that have crashed. Each is a transaction: if the procedure raises an exception, it is rolled back, the
        answer is in the queue again, and the exception ends `process_late_answers`. Call it now and then.

        Args:
            queue: that of the services which requests came from.
            procedure: gets what came on one conversation: the answer, and perhaps EndDialog or Error.

        Returns:
            How many conversations were ended.

        Raises:
            BrokerError: 15151 no such queue, 229 no permission, 9617 it is off, 402 `procedure` cannot be called.
        """
        check_procedure(procedure, may_be_async=IS_ASYNC)
        return process_late_answers(self, queue, procedure)

    @contextmanager
    def defining(self) -> Iterator[Database]:
        """Definitions in one transaction: those of the database that the block gets are committed at its end together.

        An exception undoes all of them. From the block's begin to its end, no other session defines anything in the
        instance: what the block finds defined stays so.
        """
        with self.transaction() as transaction:
            inside = copy.copy(self)
            inside._within = transaction
            inside.catalog = self.instance._new_catalog(
                None if self.user.is_dbo else self.user
            )  # for definitions that may be undone
            transaction._do(only(alter.lock_catalog(self.user.name)))
            yield inside

    def define(self, definition: Application | Mapping[str, Any] | str | Path) -> list[str]:
        """Give the database all that an application needs, in one transaction, and say what that took.

        What is there already stays, what differs is altered, and nothing is dropped.

        Args:
            definition: a TOML file, or the same as dictionaries: `message_types`, `contracts`, `queues`, `services`,
                `routes`, `users`, `roles`, `grants`, `denials`; see docs/how-to/define.md.

        Raises:
            InstanceError: it cannot be read, or asks for what cannot be altered.
            BrokerError: as the methods that define one thing. Nothing was done then.
        """
        from servicebroker.api.defining import define  # with what reads TOML, which few processes need

        return define(self, definition)

    set_aside_messages = operated(SetAsideMessages)

    schedules = operated(Schedules)

    drop_schedule = operated(DropSchedule)

    dead_letter_groups = operated(DeadLetterGroups)

    replay_message = operated(ReplayMessage)

    discard_message = operated(DiscardMessage)

    def explain_route(
        self, service: str, broker_instance: str | UUID | None = None, *, from_outside: bool = False
    ) -> Explanation:
        """Explain the routing of a conversation to `service` that begins in this database now.

        Args:
            service: the name of the service, compared byte by byte.
            broker_instance: the identifier that BEGIN DIALOG names, if any.
            from_outside: explain instead what becomes of a first message that arrives from another instance.

        Raises:
            BrokerError: 1093 no broker identifier, 402 no name of a service.
        """

        def steps() -> Steps[Explanation]:
            database_id = None if from_outside else self.database_id
            now = self.instance.clock()
            return (yield from explain_route(self.catalog, database_id, service, broker_instance, now))

        return self._do(steps())

    def sign_with_certificate(self, name: str, text: bytes, *, decryption_password: str | None = None) -> bytes:
        """The signature of a text by the private key of a certificate: ECDSA or RSA-PSS, with SHA-256.

        Args:
            name: the certificate.
            text: what is signed.
            decryption_password: of a private key that is kept under a password.

        Raises:
            BrokerError: 15151 no such certificate, or no CONTROL on it, 15556 there is no private key, 15465, 15581,
                402.
        """
        found = find_certificate(self, "BACKUP CERTIFICATE", name)
        return sign(text, open_key(self, found, decryption_password))

    def working(self, *workers: Worker, concurrency: int = 1) -> AbstractContextManager[None]:
        """Run workers beside the block: `with database.working(stock, concurrency=4): ...`.

        Each has so many readers, which are threads, under asyncio tasks. At the end of the block nothing more is taken,
        and what handlers are at is waited for. What no policy judges (the database is down, the queue is off, a COMMIT
        has failed) is logged, and the reader goes on after a pause. `servicebroker worker` does this as a program.

        Raises:
            BrokerError: 15151 no such queue; 402 what is no worker, has no handlers, those of the other form, or none
                of a type that only initiators send to the queue.
        """
        return working(self, workers, concurrency)

    def join(self, connection: Any) -> JoinedTransaction:
        """The verbs in a transaction of the application: they are committed and rolled back with it.

        Args:
            connection: of psycopg 3; or a session or connection of SQLAlchemy on psycopg 3, or `django.db.connection`,
                whose savepoints (`begin_nested`, `atomic`) hold for messages too. It must lead to this instance's
                PostgreSQL database, at READ COMMITTED.

        Raises:
            JoinError: nothing of the kind, or of the other form; with SQLAlchemy the first verb says so.
        """
        if isinstance(connection, psycopg.Connection):
            return JoinedTransaction(self, connection)
        from servicebroker.api.foreign import ForeignTransaction  # for who has such a library

        return ForeignTransaction(self, connection)

    def _define_alone(
        self, steps: Callable[[], Steps[T]], statement: str, termination: Termination, in_use: BrokerError
    ) -> T:
        """Run steps of DDL with the database for themselves. Who may not do it ends nobody."""

        def authorized() -> Steps[T]:
            yield from self.engine.check_database()
            return (yield from rights.authorized(steps(), self.user, statement))

        self._do(rights.authorize(self.user, statement))
        with self.instance.connection() as connection, translated():
            return run_exclusively(connection, self.database_id, termination, in_use, authorized)

    def _alone(self, steps: Steps[T]) -> T:
        """DDL, one at a time, in a database that is there."""

        def locked() -> Steps[T]:
            yield alter.lock_catalog(self.user.name)
            yield from self.engine.check_database()
            return (yield from steps)

        with self.transaction() as transaction:
            return transaction._do(locked())

    def _retry_locked(self, steps: Callable[[], Steps[T]], timeouts_ms: Sequence[int] = LOCK_TIMEOUTS_MS) -> T:
        """Run the steps as `_alone` does, and retry while others are in the way (`lock_retry.py`)."""
        if self._within is not None:  # the transaction keeps its locks: the server ends a deadlock
            return self._alone(steps())

        def attempt(number: int) -> T:
            return self._alone(with_lock_timeout(steps(), timeouts_ms[number % len(timeouts_ms)]))

        return retry_locked(attempt, self._do(find_lock_timeout()))

    def _do(self, steps: Steps[T]) -> T:
        if self._within is not None:
            return self._within._do(steps)
        with self.instance.connection() as connection:
            try:
                return run_alone(connection, steps)
            except psycopg.Error as problem:
                raise_broker_error(problem)
            except BrokerError as refused:
                find_reason(connection, self.engine, refused)
                raise

    def _refuse_transaction(self, statement: str) -> None:
        if self._within is not None or self.instance.open_transactions.get(current_work()):
            raise BrokerError(226, statement, hint=ASK_THE_DATABASE)

    def _received(self, queue_id: int, transaction: int) -> None:
        self.instance.poison.committed([queue_id])
