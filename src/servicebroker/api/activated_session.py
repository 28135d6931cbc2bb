# Made from aio/activated_session.py by tools/make_sync.py: change that file, then run `make sync`.
"""The session of an activated task: an open instance seen through a connection of its own, as one principal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from psycopg.pq import TransactionStatus

from servicebroker.api.database import Database
from servicebroker.api.doorbell import Bell
from servicebroker.api.instance import Instance
from servicebroker.api.transaction import release_kept
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.store.direct import DirectConnection
from servicebroker.store.termination import terminate

_NO_SERVER_RIGHTS = (
    "An activated procedure works as a user of its database, and has no rights in the instance. Procedures cannot be "
    "signed: let a program that opens the instance itself do this, asked by a message."
)


@dataclass
class Observed:
    """The RECEIVEs of a task since it began, or since `begin`."""

    has_received: bool = False
    has_taken: bool = False  # messages, or a group
    found_nothing: bool = False  # its last RECEIVE or GET CONVERSATION GROUP; a RECEIVE WHERE without result is skipped
    left_open: bool = False  # a transaction that the task neither committed nor rolled back

    def begin(self) -> None:
        """Begin another call of the procedure."""
        self.has_received = self.has_taken = self.found_nothing = self.left_open = False

    def note(self, *, took: bool, filtered: bool = False) -> None:
        """Note a RECEIVE or GET CONVERSATION GROUP. `filtered`: of a certain conversation or group only."""
        self.has_received = True
        self.has_taken |= took
        if took or not filtered:
            self.found_nothing = not took


class ActivatedSession(Instance):
    """An instance for one task. It borrows its own connection first, so that one backend id stands for the task.

    It is neither opened nor closed; `instance` is open. Operations of the instance itself are refused.

    Attributes:
        own: its connection.
        observed: what the task has done.
    """

    works_as_user = True

    def __init__(self, instance: Instance, connection: DirectConnection, observed: Observed) -> None:
        self.__dict__.update(instance.__dict__)
        self._is_closed = True  # dropped while the instance stays open
        self.own = connection
        self._is_lent = False
        self._others: set[DirectConnection] = set()  # that it has borrowed beside its own
        self._bells: set[Bell] = set()
        self._waits_no_more = self._is_cut = False
        self.observed = observed
        self._home = ("", "")  # its database and principal

    def enter(self, name: str, user: str) -> Database:
        """Return the database that the task works in, as its principal.

        Raises:
            BrokerError: 911, 916, 15517.
        """
        database = super().database(name, user=user)
        self._home = (name.lower(), user)
        return database

    def database(self, name: str, *, create: bool = False, user: str | None = None) -> Database:
        """Return its own database as its own principal, another database as guest.

        Raises:
            BrokerError: 911, 916, 15517 as anybody else, 15247 to create one.
        """
        if create:
            self._refuse()
        home, principal = self._home
        who = principal if isinstance(name, str) and name.lower() == home else "guest"
        if user not in (None, who):
            raise BrokerError(15517, user)
        return super().database(name, user=who)

    def create_endpoint(self, *arguments: object, **clauses: object) -> NoReturn:
        """Refused.

        Raises:
            BrokerError: 15247.
        """
        self._refuse()

    def alter_endpoint(self, *arguments: object, **clauses: object) -> NoReturn:
        """Refused.

        Raises:
            BrokerError: 15247.
        """
        self._refuse()

    def drop_endpoint(self, *arguments: object, **clauses: object) -> NoReturn:
        """Refused.

        Raises:
            BrokerError: 15247.
        """
        self._refuse()

    def drop_database(self, *arguments: object, **clauses: object) -> NoReturn:
        """Refused.

        Raises:
            BrokerError: 15247.
        """
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BrokerError(15247, hint=_NO_SERVER_RIGHTS)

    def count_received(self, queue_id: int, messages: int, *, filtered: bool) -> None:
        """Count the messages that a RECEIVE took; `filtered`: of a certain conversation or group."""
        self.observed.note(took=messages > 0, filtered=filtered)
        super().count_received(queue_id, messages, filtered=filtered)

    def count_polled(self, found: bool) -> None:
        """Note whether a GET CONVERSATION GROUP found a group."""
        self.observed.note(took=found)

    def sleep(self, bell: Bell, seconds: float) -> bool:
        """Sleep as an instance does, with the same result, unless the task is to end: then it takes no further message.

        Raises:
            InstanceError: the task is to end.
        """
        self._bells.add(bell)  # first: then `end_waiting` finds the bell, or the check below finds that it was called
        try:
            self._check_that_it_may_wait()
            changed = super().sleep(bell, seconds)
            self._check_that_it_may_wait()
            return changed
        finally:
            self._bells.discard(bell)

    def _check_that_it_may_wait(self) -> None:
        if self._waits_no_more:
            raise InstanceError("Activation is ending in this process, so its readers stop waiting for messages.")

    def end_waiting(self) -> None:
        """Wake the readers of the task that wait for a message, and let none wait any more."""
        self._waits_no_more = True
        for bell in tuple(self._bells):
            bell.ring()

    def terminate(self) -> None:
        """End at once all that the task does in the database, and refuse what follows. Any thread may call this."""
        self._is_cut = True
        for connection in (self.own, *self._others):
            terminate(connection)

    @contextlib.contextmanager
    def connection(self) -> Iterator[DirectConnection]:
        """Lend its own connection for the length of a `with` block; another connection while that is lent."""
        if self._is_cut:
            raise InstanceError("Activation has ended in this process, and this procedure was undone.")
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
            self.observed.left_open = True
            raise
        finally:
            self._is_lent = False
            self._settle()

    def _settle(self) -> None:
        self.own.ahead.clear()
        self.roll_back()
        release_kept(self.own)

    def roll_back(self) -> None:
        """End the transaction that the procedure has left open."""
        if self.own.closed:
            return
        if self.own.info.transaction_status != TransactionStatus.IDLE:
            self.observed.left_open = True
            self.own.rollback()

    @property
    def is_lent(self) -> bool:
        """Return whether the procedure still uses the task's connection."""
        return self._is_lent
