# Made from aio/activated_session.py by tools/make_sync.py: change that file, then run `make sync`.
"""The session of an activated task: an open instance with one connection for the task, as one principal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from psycopg.pq import TransactionStatus

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.notifier import WaitingReader
from servicebroker.api.transaction import release_group_locks
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.overriding import override
from servicebroker.store.direct import DirectConnection
from servicebroker.store.termination import terminate

_NO_SERVER_RIGHTS = (
    "An activated procedure runs as a user of its database, without rights in the instance, and procedures cannot be "
    "signed. Send a message to a program that opens the instance itself, and let that program do this."
)


@dataclass
class ReceiveHistory:
    """The RECEIVEs and GET CONVERSATION GROUPs of a task since it began, or since `begin`.

    Attributes:
        has_received: the task has run such a statement.
        has_result: such a statement returned messages or a group.
        found_nothing: the last statement returned nothing. A RECEIVE WHERE without a result does not count.
        left_open: the task neither committed nor rolled back a transaction.
    """

    has_received: bool = False
    has_result: bool = False
    found_nothing: bool = False
    left_open: bool = False

    def begin(self) -> None:
        """Begin another call of the procedure."""
        self.has_received = self.has_result = self.found_nothing = self.left_open = False

    def note(self, *, took: bool, filtered: bool = False) -> None:
        """Note a RECEIVE or GET CONVERSATION GROUP.

        `took`: it returned something. `filtered`: it was limited to a certain conversation or group.
        """
        self.has_received = True
        self.has_result |= took
        if took or not filtered:
            self.found_nothing = not took


class ActivatedSession(Instance):
    """An instance for one activated task. The task's own connection is lent first, so the task has one backend id.

    The session is neither opened nor closed; `instance` is open already. Administration of the instance is refused.

    Attributes:
        own: the task's connection.
        history: the task's RECEIVEs.
    """

    works_as_user = True

    def __init__(self, instance: Instance, connection: DirectConnection, history: ReceiveHistory) -> None:
        self.__dict__.update(instance.__dict__)
        self._is_closed = True  # dropped while the instance stays open
        self.own = connection
        self._is_lent = False
        self._others: set[DirectConnection] = set()  # further connections lent to the task
        self._readers: set[WaitingReader] = set()
        self._is_ending = self._is_terminated = False
        self.history = history
        self._home = ("", "")  # name of the task's database, and its principal there

    def enter(self, name: str, user: str) -> Database:
        """Set the task's database and principal, and return the database.

        Raises:
            BrokerError: 911 no such database, 916 no access to it, 15517 no such user.
        """
        database = super().database(name, user=user)
        self._home = (name.lower(), user)
        return database

    @override
    def database(self, name: str, *, create: bool = False, user: str | None = None) -> Database:
        """Return the task's database as its principal, or another database as guest.

        Raises:
            BrokerError: 911, 916; 15517 for another principal; 15247 to create a database.
        """
        if create:
            self._refuse()
        home, principal = self._home
        allowed_user = principal if isinstance(name, str) and name.lower() == home else "guest"
        if user not in (None, allowed_user):
            raise BrokerError(
                15517, user, hint="An activated procedure runs as its EXECUTE AS user, and as guest in other databases."
            )
        return super().database(name, user=allowed_user)

    @override
    def create_endpoint(self, *arguments: object, **clauses: object) -> NoReturn:
        """Refuse: an activated procedure has no rights in the instance.

        Raises:
            BrokerError: 15247 always.
        """
        self._refuse()

    @override
    def alter_endpoint(self, *arguments: object, **clauses: object) -> NoReturn:
        """Refuse: an activated procedure has no rights in the instance.

        Raises:
            BrokerError: 15247 always.
        """
        self._refuse()

    @override
    def drop_endpoint(self, *arguments: object, **clauses: object) -> NoReturn:
        """Refuse: an activated procedure has no rights in the instance.

        Raises:
            BrokerError: 15247 always.
        """
        self._refuse()

    @override
    def drop_database(self, *arguments: object, **clauses: object) -> NoReturn:
        """Refuse: an activated procedure has no rights in the instance.

        Raises:
            BrokerError: 15247 always.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BrokerError(15247, hint=_NO_SERVER_RIGHTS)

    @override
    def count_received(self, queue_id: int, messages: int, *, filtered: bool) -> None:
        """Count the messages of a RECEIVE. `filtered`: it was limited to a certain conversation or group."""
        self.history.note(took=messages > 0, filtered=filtered)
        super().count_received(queue_id, messages, filtered=filtered)

    @override
    def count_polled(self, found: bool) -> None:
        """Note whether GET CONVERSATION GROUP returned a group."""
        self.history.note(took=found)

    @override
    def sleep(self, reader: WaitingReader, seconds: float) -> bool:
        """Wait as `AsyncInstance.sleep`, unless the task shall end.

        Raises:
            InstanceError: `end_waiting` was called.
        """
        self._readers.add(reader)  # first: `end_waiting` wakes the reader, or the check below sees that it was called
        try:
            self._check_that_it_may_wait()
            changed = super().sleep(reader, seconds)
            self._check_that_it_may_wait()
            return changed
        finally:
            self._readers.discard(reader)

    def _check_that_it_may_wait(self) -> None:
        if self._is_ending:
            raise InstanceError("This process is stopping its activated readers: RECEIVE no longer waits.")

    def end_waiting(self) -> None:
        """Wake the task's waiting readers, which then raise InstanceError, and refuse further waits."""
        self._is_ending = True
        for reader in tuple(self._readers):
            reader.wake()

    def terminate(self) -> None:
        """Close the task's connections at once, and refuse further ones. Any thread may call this."""
        self._is_terminated = True
        for connection in (self.own, *self._others):
            terminate(connection)

    @override
    @contextlib.contextmanager
    def connection(self) -> Iterator[DirectConnection]:
        """Lend the task's own connection for a `with` block; if it is lent already, another one of the pool."""
        if self._is_terminated:
            raise InstanceError("Activation has ended in this process, so this procedure was rolled back.")
        if self._is_lent:
            with super().connection() as other:
                self._others.add(other)
                try:
                    yield other
                finally:
                    self._others.discard(other)
            return
        self._is_lent = True
        try:
            yield self.own
        except GeneratorExit:  # a `with` block that was entered and never left
            self.history.left_open = True
            raise
        finally:
            self._is_lent = False
            self._settle()

    def _settle(self) -> None:
        self.own.queued.clear()
        self.roll_back()
        release_group_locks(self.own)

    def roll_back(self) -> None:
        """Roll back the transaction that the procedure has left open."""
        if self.own.closed:
            return
        if self.own.info.transaction_status != TransactionStatus.IDLE:
            self.history.left_open = True
            self.own.rollback()

    @property
    def is_lent(self) -> bool:
        """Return whether the procedure still uses the task's connection."""
        return self._is_lent
