"""The current database and principal of a session, and its connection as seen by the methods of a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import psycopg

from servicebroker.api.database import Database
from servicebroker.api.lock_retry import LOCK_TIMEOUTS_MS
from servicebroker.api.shared import tracing
from servicebroker.api.transaction import JoinedTransaction, Transaction
from servicebroker.engine.catalog.databases import ensure_database, find_database, is_trustworthy
from servicebroker.engine.diagnosis.totals import ROLLBACKS
from servicebroker.engine.security.authorization import authorize_login
from servicebroker.engine.security.module_signatures import are_trusted, find_certificate_users, find_logins
from servicebroker.engine.security.principals import (
    find_impersonated,
    find_impersonated_login,
    find_login_of,
    find_module_user,
    find_user,
    find_user_of,
)
from servicebroker.model.arguments import Termination
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import Login, User
from servicebroker.operations.begin import BeginDialog
from servicebroker.operations.operation import Operation
from servicebroker.overriding import override
from servicebroker.store.running import in_transaction, run, run_alone
from servicebroker.store.statements import Statement, Steps, resume
from servicebroker.tsql.statement_errors import TsqlError, no_linked_server
from servicebroker.tsql.syntax import CommitTransaction, Name

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

T = TypeVar("T")

# the principal that permissions are checked for: the connection's own role (None), a login, or a user of one database
ActingPrincipal: TypeAlias = Login | User | None
ExecutionContext: TypeAlias = tuple["SessionDatabase", ActingPrincipal]

MASTER = "master"
_SYSTEM_DATABASES = frozenset({"master", "tempdb", "model"})
# enough for another session's CREATE DATABASE; bounds the wait if this session itself holds the lock
_ENSURE_LOCK_TIMEOUT_MS = 1000


class SessionVerbs(JoinedTransaction):
    """The broker statements (verbs) on a session's connection, in its open transaction or each in its own."""

    def __init__(self, database: SessionDatabase, machine: Machine) -> None:
        super().__init__(database, machine.connection)
        self._machine = machine

    @override
    def run(self, operation: Operation[T]) -> T:
        """Run an operation.

        Inside a transaction, BEGIN DIALOG is delayed until the first messages of its conversation.
        """
        transactions = self._machine.transactions
        if not transactions.count or transactions.is_external or transactions.is_doomed or transactions.is_snapshot:
            return super().run(operation)
        if isinstance(operation, BeginDialog) and not transactions.dialogs.has_dialogs:
            transactions.release_guard()
        if outcome := transactions.dialogs.run(self.engine, operation):
            self._note_verb()
            result: T = outcome[0]
            return result
        return super().run(operation)

    @override
    def _do(self, steps: Steps[T]) -> T:
        transactions = self._machine.transactions
        if transactions.count:
            transactions.check_not_doomed()
            transactions.check_not_snapshot()
            transactions.release_guard()
            if (
                transactions.would_commit
                and isinstance(self._machine.next_statement, CommitTransaction)
                and not self._is_observed()
            ):
                steps = self._and_commit(steps)
        return super()._do(steps)

    def _is_observed(self) -> bool:
        """Return True if tracing or events observe conversations. They must observe each SEND separately."""
        return tracing.is_on() or self.database.instance.events.watches_conversations

    def _and_commit(self, steps: Steps[T]) -> Steps[T]:
        """Run a verb before the session's COMMIT. A SEND of one statement and the COMMIT need one round trip."""
        try:
            first = next(steps)
            rows = self._machine.transactions.run_and_commit(first) if first.certain else ()
            if rows:
                first = steps.send(rows)
        except StopIteration as done:
            result: T = done.value
            return result
        return (yield from resume(first, steps))

    @override
    def _note_verb(self) -> None:
        """Record that the open transaction has run a verb."""
        self._machine.context.has_worked = self._machine.transactions.count > 0

    @override
    def _note_receive(self, queue_id: int, transaction: int) -> None:
        """Report received messages to the poison message detection."""
        if self._machine.transactions.is_external:
            self.database.instance.poison.note_unknown_outcome(transaction, [queue_id])
        elif self._machine.transactions.count:
            self._machine.transactions.received_from.add((transaction, queue_id))
        else:
            self.database.instance.poison.note_commit([queue_id])


class SessionDatabase(Database):
    """A database whose definitions join the session's open transaction."""

    def __init__(self, machine: Machine, name: str, user: User) -> None:
        super().__init__(machine.instance, name, user)
        self._machine = machine
        self.verbs = SessionVerbs(self, machine)

    @override
    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Join the open transaction, or begin one."""
        machine = self._machine
        if not machine.transactions.count:
            with super().transaction() as own:
                yield own
            return
        machine.transactions.check_not_doomed()
        machine.transactions.check_not_snapshot()
        machine.transactions.set_guard()
        machine.context.has_definitions = True
        try:
            yield JoinedTransaction(self, machine.connection)  # type: ignore[misc] # the verbs are the same
        except BaseException:
            machine.transactions.undo_statement()
            raise

    @override
    def _do(self, steps: Steps[T]) -> T:
        if self._machine.transactions.count:
            return self.verbs._do(steps)
        return super()._do(steps)

    @override
    def _retry_locked(self, steps: Callable[[], Steps[T]], timeouts_ms: Sequence[int] = LOCK_TIMEOUTS_MS) -> T:
        if self._machine.transactions.count:  # locks are held to its end; the server resolves a deadlock
            return self._run_in_transaction(steps())
        return super()._retry_locked(steps, timeouts_ms)

    @override
    def _define_exclusively(
        self, steps: Callable[[], Steps[T]], statement: str, termination: Termination, in_use: BrokerError
    ) -> T:
        refuse_in_transaction(self._machine, statement)
        return super()._define_exclusively(steps, statement, termination, in_use)


def refuse_in_transaction(machine: Machine, statement: str) -> None:
    """Refuse a statement that cannot run inside a transaction.

    Raises:
        TsqlError: 226 a transaction is open.
    """
    if machine.transactions.count:
        raise TsqlError(226, f"{statement} statement not allowed within multi-statement transaction.")


class _SavedContext(NamedTuple):
    """The context that REVERT restores, and the conditions of that REVERT.

    Attributes:
        database, principal: the values before EXECUTE AS.
        run_in: the database in which EXECUTE AS ran; '' for the clause of a module, which REVERT does not undo.
        no_revert: True for WITH NO REVERT.
        cookie: the value that REVERT WITH COOKIE must give.
    """

    database: SessionDatabase
    principal: ActingPrincipal
    run_in: str = ""
    no_revert: bool = False
    cookie: bytes | None = None


class Context:
    """The current database and principal of a session, and the stack of EXECUTE AS.

    Attributes:
        database: the current database, used as the current principal.
        original_login: the login that opened the session, ORIGINAL_LOGIN().
        used_databases: all databases that the session has entered, in lower case.
        has_definitions: True if the open transaction has changed the catalog, so that ROLLBACK must drop caches.
        has_worked: True if the open transaction has run a verb.
    """

    def __init__(self, machine: Machine, database: Database) -> None:
        self._machine = machine
        self.database = SessionDatabase(machine, database.user.database, database.user)
        user = database.user
        self.original_login: str = machine.connection.info.user
        self.used_databases = {user.database.lower()}
        self.has_definitions = self.has_worked = False
        self._begun_as = database.user
        self._is_own: bool | None = False if database.instance.works_as_user else None  # None: not looked up yet
        self._principal: ActingPrincipal = None
        self._logins: dict[User, str] = {}
        self._before: list[_SavedContext] = []

    def log_in(self, login: Login) -> None:
        """Work as a login that a client has signed in with. REVERT does not undo this.

        Raises:
            BrokerError: 916 the login has no access to the current database.
        """
        self.original_login = login.name
        if login.is_administrator:  # as the connection's own role
            return
        user = self.ask(find_user_of(self.database.database_id, login))
        self.database, self._principal = SessionDatabase(self._machine, user.database, user), login

    @property
    def verbs(self) -> SessionVerbs:
        """The verbs in the current database."""
        return self.database.verbs

    # ------------------------------------------------------------ current principal

    @property
    def principal(self) -> ActingPrincipal:
        """The principal for permissions in other databases. None is the connection's own role."""
        if self._principal is not None:
            return self._principal
        if self._is_own is None:  # the session may have been opened as another user
            connection_user = self.ask(find_user(self._begun_as.database_id))
            self._is_own = connection_user.principal_id == self._begun_as.principal_id
        return None if self._is_own else self._begun_as

    @property
    def execution_context(self) -> ExecutionContext:
        """The current database and principal, to be restored later."""
        return self.database, self._principal

    @property
    def login(self) -> str:
        """The name of the current login: SUSER_SNAME()."""
        principal = self.principal
        if principal is None:
            return self.original_login
        if isinstance(principal, Login) or principal.is_dbo:
            return principal.name
        if principal not in self._logins:
            self._logins[principal] = self.ask(find_login_of(principal, everywhere=False)).name
        return self._logins[principal]

    @property
    def server_login(self) -> Login:
        """The current login for permissions on the instance. A user of a database has none there."""
        principal = self.principal
        if principal is None:
            return Login(self.original_login, is_administrator=self._begun_as.is_dbo)
        return principal if isinstance(principal, Login) else Login(principal.name)

    def require(self, statement: str, *subject: object) -> None:
        """Check a permission on the instance. `subject` is named in the error.

        A module that a certificate has signed also has the permissions of the certificate's login.

        Raises:
            BrokerError: the error that `NEEDS` names.
        """
        signers = self._machine.frame.signers
        for login in self.ask(find_logins(signers)) if signers else []:
            with suppress(BrokerError):
                self.ask(authorize_login(login, statement, *subject))
                return
        self.ask(authorize_login(self.server_login, statement, *subject))

    def sign(self, signers: Sequence[bytes]) -> None:
        """Add the permissions of the users of `signers`, the certificates that signed the module that begins.

        Modules that it calls do not inherit them; dynamic SQL does.
        """
        user = self.database.user
        also = self.ask(find_certificate_users(user.database_id, signers)) if signers and not user.is_dbo else ()
        if also != user.also:
            self.database = SessionDatabase(self._machine, user.database, user._replace(also=also))

    def ask(self, steps: Steps[T]) -> T:
        """Run a query inside the open transaction, or on another connection if the transaction is doomed."""
        machine = self._machine
        if machine.transactions.is_doomed:
            with machine.instance.connection() as connection:
                return run(connection, steps)
        if machine.transactions.count:
            machine.transactions.release_guard()
        return run(machine.connection, steps)

    # ------------------------------------------------------------ another database

    def use(self, name: str) -> None:
        """Change the current database.

        Raises:
            BrokerError: 911 no such database, 916 the principal has no access.
        """
        self.database = self.database_named(name)
        self.used_databases.add(name.lower())

    def database_named(self, name: str) -> SessionDatabase:
        """Return another database, opened as the current principal. System databases are created at their first use.

        Raises:
            BrokerError: 911 no such database, 916 the principal has no access.
        """
        if name.lower() == self.database.name.lower():
            return self.database
        machine, principal = self._machine, self.principal
        if name.lower() in _SYSTEM_DATABASES:
            self._ensure(name.lower())
        user = self.ask(_find_user_in(principal, name, self._machine.frame.signers))
        return SessionDatabase(machine, user.database, user)

    def _ensure(self, name: str) -> None:
        """Create a system database at its first use, outside the open transaction, which may roll back.

        The open transaction may itself hold the lock that this needs. So the wait is short, and after it the database
        is not created.
        """
        machine = self._machine
        if not machine.transactions.count:
            with machine.instance.connection() as connection:
                run_alone(connection, ensure_database(name))
            return
        with suppress(BrokerError):
            self.ask(find_database(name))
            return
        with machine.instance.connection() as connection, suppress(psycopg.errors.LockNotAvailable):
            in_transaction(connection, _ensure_without_waiting(name))

    @contextmanager
    def within(self, database: SessionDatabase) -> Iterator[None]:
        """Work in another database for one statement whose names begin with it.

        Ownership chaining gives a module access to dbo's objects in its own database only, not in the other one.
        """
        frame, outer = self._machine.frame, self.database
        is_module = frame.is_module
        self.database = database
        frame.is_module = is_module and database.database_id == outer.database_id
        try:
            yield
        finally:
            self.database, frame.is_module = outer, is_module

    # ------------------------------------------------------------ EXECUTE AS

    def execute_as(self, kind: str, name: str, *, no_revert: bool = False, cookie: bytes | None = None) -> None:
        """EXECUTE AS USER or LOGIN = name.

        Raises:
            BrokerError: 15517 or 15406 no such user or login, or no permission to impersonate it; 916 the login has
                no access to the current database.
        """
        run_in = self.database.name
        if kind == "USER":
            user = self.ask(find_impersonated(self.database.user, name))
            self._work_as(user, user, run_in, no_revert, cookie)
            return
        login = self.ask(find_impersonated_login(self.server_login, name))
        user = self.ask(find_user_of(self.database.database_id, login))
        self._work_as(user, login, run_in, no_revert, cookie)

    def execute_as_caller(self, caller: ExecutionContext) -> None:
        """EXECUTE AS CALLER, inside a module."""
        self._before.append(_SavedContext(self.database, self._principal, self.database.name))
        self.database, self._principal = caller

    def work_as(self, user: str) -> None:
        """Apply WITH EXECUTE AS of a module. Its author's permission was checked when the module was created.

        Raises:
            BrokerError: 15517 no such user.
        """
        module_user = self.ask(find_module_user(self.database.database_id, self.database.name, user))
        self._work_as(module_user, module_user)

    def _work_as(
        self,
        user: User,
        principal: Login | User,
        run_in: str = "",
        no_revert: bool = False,
        cookie: bytes | None = None,
    ) -> None:
        self._before.append(_SavedContext(self.database, self._principal, run_in, no_revert, cookie))
        self.database, self._principal = SessionDatabase(self._machine, user.database, user), principal

    def revert(self, down_to: int, cookie: bytes | None = None) -> None:
        """REVERT: undo one EXECUTE AS. Does nothing at depth `down_to`, which belongs to the caller.

        Raises:
            BrokerError: 15199 EXECUTE AS ran in another database, 15196 WITH NO REVERT, 15591 wrong or missing cookie.
        """
        if self.depth <= down_to or not self._before[-1].run_in:
            return
        saved = self._before[-1]
        if saved.run_in.lower() != self.database.name.lower():
            raise BrokerError(15199, "Execute As")
        if saved.no_revert:
            raise BrokerError(15196)
        if saved.cookie != cookie:
            raise BrokerError(15591)
        self.unwind(self.depth - 1)

    def unwind(self, depth: int) -> None:
        """Undo the EXECUTE AS of modules and dynamic SQL that have ended, down to `depth`."""
        while self.depth > depth:
            saved = self._before.pop()
            self.database, self._principal = saved.database, saved.principal

    @property
    def depth(self) -> int:
        """The number of EXECUTE AS in effect."""
        return len(self._before)

    # ------------------------------------------------------------ the end of transactions

    def commit(self) -> None:
        """COMMIT TRANSACTION. Raises as `Transactions.commit`."""
        transactions = self._machine.transactions
        queue_ids = {queue_id for _, queue_id in transactions.received_from}
        if transactions.commit():
            self._machine.end_transaction()
            self.has_definitions = self.has_worked = False
            transactions.received_from.clear()
            if queue_ids:
                self._machine.instance.poison.note_commit(queue_ids)

    def roll_back(self) -> None:
        """Roll back the whole transaction, and count it for the poison message detection.

        Raises as `Transactions.rollback`.
        """
        transactions = self._machine.transactions
        queue_ids = {queue_id for _, queue_id in transactions.received_from}
        transactions.rollback()
        self._machine.end_transaction()
        transactions.received_from.clear()
        if self.has_worked:
            self.has_worked = False
            self._machine.instance.tally.add(ROLLBACKS)
        if self.has_definitions:
            self._forget()
        if queue_ids:
            self._machine.instance.poison.count_rollback(self._machine.connection, queue_ids)

    def _forget(self) -> None:
        """Drop cached definitions that the rollback has undone."""
        self.has_definitions = False
        self.database.catalog.forget_definitions()


def _ensure_without_waiting(name: str) -> Steps[int]:
    """Run `ensure_database`, and give up instead of waiting for a lock."""
    yield Statement(
        "context.ensure_without_waiting", f"set local lock_timeout = {_ENSURE_LOCK_TIMEOUT_MS}", prepared=False
    )
    return (yield from ensure_database(name))


def _find_user_in(principal: ActingPrincipal, name: str, signers: Sequence[bytes] = ()) -> Steps[User]:
    """Return the user of a principal in a database. `signers` have signed the calling module."""
    database_id = yield from find_database(name)
    if principal is None:
        return (yield from find_user(database_id))
    if isinstance(principal, User):
        if principal.database_id == database_id:
            return principal
        is_trusted = yield from is_trustworthy(principal.database_id)
        if signers and not is_trusted:
            is_trusted = yield from are_trusted(database_id, name, signers)
        principal = yield from find_login_of(principal, everywhere=is_trusted)
    user = yield from find_user_of(database_id, principal)
    return (
        user._replace(also=(yield from find_certificate_users(database_id, signers)))
        if signers and not user.is_dbo
        else user
    )


def database_of(machine: Machine, name: Name) -> SessionDatabase:
    """Return the database that a name begins with, or the current one.

    Raises:
        BrokerError: 911 no such database, 916 the principal has no access.
        TsqlError: 7202 the name begins with a server.
    """
    if name.server:
        raise no_linked_server(name.server)
    if not name.database:
        return machine.context.database
    return machine.context.database_named(name.database)
