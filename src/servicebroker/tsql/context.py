"""Which database and which principal a session works in, and its connection as the database's methods see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from servicebroker.api.database import Database
from servicebroker.api.giving_way import MOMENTS
from servicebroker.api.transaction import JoinedTransaction, Transaction
from servicebroker.engine.databases import ensure_database
from servicebroker.engine.principals import find_user
from servicebroker.engine.totals import ROLLBACKS
from servicebroker.model.arguments import Termination
from servicebroker.model.errors import BrokerError
from servicebroker.model.permissions import User
from servicebroker.store.running import run, run_alone
from servicebroker.store.statements import Steps
from servicebroker.tsql.errors import TsqlError

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

T = TypeVar("T")

MASTER = "master"
_ALWAYS_THERE = frozenset({"master", "tempdb", "model"})


class SessionVerbs(JoinedTransaction):
    """The verbs on a session's connection: alone, or in the transaction that BEGIN TRANSACTION has begun."""

    def __init__(self, database: SessionDatabase, machine: Machine) -> None:
        super().__init__(database, machine.connection)
        self._machine = machine

    def _do(self, steps: Steps[T]) -> T:
        transactions = self._machine.transactions
        if transactions.count:
            transactions.check()
            transactions.settle()
        return super()._do(steps)

    def _works(self) -> None:
        self._machine.context.has_worked = self._machine.transactions.count > 0

    def _received(self, queue_id: int, transaction: int) -> None:
        if self._machine.transactions.outer:
            self.database.instance.poison.received(transaction, [queue_id])
        elif self._machine.transactions.count:
            self._machine.transactions.took.add((transaction, queue_id))
        else:
            self.database.instance.poison.committed([queue_id])


class SessionDatabase(Database):
    """A database whose definitions belong to the session's transaction, when one is open."""

    def __init__(self, machine: Machine, name: str, user: User) -> None:
        super().__init__(machine.instance, name, user)
        self._machine = machine
        self.verbs = SessionVerbs(self, machine)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """The one that is open, or one of its own."""
        machine = self._machine
        if not machine.transactions.count:
            with super().transaction() as own:
                yield own
            return
        machine.transactions.check()
        machine.transactions.guard()
        machine.context.defined = True
        try:
            yield JoinedTransaction(self, machine.connection)  # type: ignore[misc] # the verbs are the same
        except BaseException:
            machine.transactions.undo()
            raise

    def _do(self, steps: Steps[T]) -> T:
        if self._machine.transactions.count:
            return self.verbs._do(steps)
        return super()._do(steps)

    def _giving_way(self, steps: Callable[[], Steps[T]], moments: Sequence[int] = MOMENTS) -> T:
        if self._machine.transactions.count:  # what it holds it cannot give up: a circle is for the server to end
            return self._alone(steps())
        return super()._giving_way(steps, moments)

    def _define_alone(
        self, steps: Callable[[], Steps[T]], statement: str, termination: Termination, in_use: BrokerError
    ) -> T:
        check_alone(self._machine, statement)
        return super()._define_alone(steps, statement, termination, in_use)


def check_alone(machine: Machine, statement: str) -> None:
    """Refuse inside a transaction what cannot be a part of one.

    Raises:
        TsqlError: 226.
    """
    if machine.transactions.count:
        raise TsqlError(226, f"{statement} statement not allowed within multi-statement transaction.")


class Context:
    """The current database and principal, and how they change.

    Attributes:
        database: for definitions, as the current principal.
        defined: whether the open transaction has changed the catalog, which ROLLBACK takes back.
        has_worked: whether a verb was run in it.
    """

    def __init__(self, machine: Machine, database: Database) -> None:
        self._machine = machine
        self.database = SessionDatabase(machine, database.user.database, database.user)
        self.login = database.user.name
        self.defined = self.has_worked = False
        self._reverted: list[SessionDatabase] = []

    @property
    def verbs(self) -> SessionVerbs:
        """The verbs in the current database."""
        return self.database.verbs

    def use(self, name: str) -> None:
        """USE name.

        Raises:
            BrokerError: 911 no such database, 916 not for this principal.
        """
        self.database = self.named(name)

    def named(self, name: str) -> SessionDatabase:
        """Another database as the same principal; the system's own are made at their first use."""
        if name.lower() == self.database.name.lower():
            return self.database
        machine = self._machine
        if name.lower() in _ALWAYS_THERE and not machine.transactions.count:
            with machine.instance.connection() as connection:
                run_alone(connection, ensure_database(name.lower()))
        user = self.database.user.name if self._reverted else None
        other = machine.instance.database(name, user=user)
        return SessionDatabase(machine, other.user.database, other.user)

    def execute_as(self, user: str) -> None:
        """EXECUTE AS USER = user.

        Raises:
            BrokerError: 15517.
        """
        other = self._machine.instance.database(self.database.name, user=user)
        self._reverted.append(self.database)
        self.database = SessionDatabase(self._machine, other.user.database, other.user)

    def work_as(self, user: str) -> None:
        """What WITH EXECUTE AS of a procedure says, which nobody needs a permission for but its author.

        Raises:
            BrokerError: 15517 no such user.
        """
        other = run(self._machine.connection, find_user(self.database.database_id, user))
        self._reverted.append(self.database)
        self.database = SessionDatabase(self._machine, self.database.name, other)

    def revert(self) -> None:
        """REVERT; nothing when there is nothing to go back to."""
        if self._reverted:
            self.database = self._reverted.pop()

    @property
    def depth(self) -> int:
        """How many EXECUTE AS are to be taken back."""
        return len(self._reverted)

    # ------------------------------------------------------------ the end of transactions

    def commit(self) -> None:
        """COMMIT TRANSACTION. Raises as `Transactions.commit`."""
        transactions = self._machine.transactions
        took = {queue_id for _, queue_id in transactions.took}
        if transactions.commit():
            self.defined = self.has_worked = False
            transactions.took.clear()
            if took:
                self._machine.instance.poison.committed(took)

    def roll_back(self) -> None:
        """ROLLBACK TRANSACTION of all, counted for the poison detection. Raises as `Transactions.rollback`."""
        transactions = self._machine.transactions
        took = {queue_id for _, queue_id in transactions.took}
        transactions.rollback()
        transactions.took.clear()
        if self.has_worked:
            self.has_worked = False
            self._machine.instance.tally.add(ROLLBACKS)
        if self.defined:
            self._forget()
        if took:
            self._machine.instance.poison.rolled_back(self._machine.connection, took)

    def _forget(self) -> None:
        """What was remembered of objects that are gone again."""
        self.defined = False
        catalog = self.database.catalog
        catalog.queues = {}
        catalog.channels.clear()


def database_of(machine: Machine, name: Any) -> SessionDatabase:
    """The database that a name's first part says, else the current one."""
    if not name.database:
        return machine.context.database
    return machine.context.named(name.database)
