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
from servicebroker.store.cut import cut
from servicebroker.store.direct import DirectConnection

_NO_SERVER_RIGHTS = (
    "An activated procedure works as a user of its database, and has no rights in the instance. Procedures cannot be "
    "signed: let a program that opens the instance itself do this, asked by a message."
)


@dataclass
class Observed:
    """What a task has done since it began, or since `begin`."""

    has_received: bool = False
    has_taken: bool = False  # messages, or a group
    found_nothing: bool = False  # its last RECEIVE or GET CONVERSATION GROUP, but for RECEIVEs WHERE that found nothing
    left_open: bool = False  # a transaction that it neither committed nor rolled back

    def begin(self) -> None:
        """Another call of the procedure begins."""
        self.has_received = self.has_taken = self.found_nothing = self.left_open = False

    def note(self, *, took: bool, choosy: bool = False) -> None:
        """A RECEIVE or GET CONVERSATION GROUP was executed. `choosy`: of a certain conversation or group only."""
        self.has_received = True
        self.has_taken |= took
        if took or not choosy:
            self.found_nothing = not took


class ActivatedSession(Instance):
    """An instance for one task. What it borrows first is its own connection, so that its number says who does what.

    It is neither opened nor closed; `instance` is open. Verbs of the instance itself are refused.

    Attributes:
        own: its connection.
        observed: what the task has done.
    """

    works_as_user = True

    def __init__(self, instance: Instance, connection: DirectConnection, observed: Observed) -> None:
        self.__dict__.update(instance.__dict__)
        self.own = connection
        self._is_lent = False
        self._others: set[DirectConnection] = set()  # that it has borrowed beside its own
        self._bells: set[Bell] = set()
        self._waits_no_more = self._is_cut = False
        self.observed = observed
        self._home = ("", "")  # its database and principal

    def enter(self, name: str, user: str) -> Database:
        """The database that the task works in, as its principal.

        Raises:
            BrokerError: 911, 916, 15517.
        """
        database = super().database(name, user=user)
        self._home = (name.lower(), user)
        return database

    def database(self, name: str, *, create: bool = False, user: str | None = None) -> Database:
        """Its own database as its own principal, another one as guest.

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

    def took(self, queue_id: int, messages: int, *, choosy: bool) -> None:
        """A RECEIVE took so many messages; `choosy`: of a certain conversation or group."""
        self.observed.note(took=messages > 0, choosy=choosy)
        super().took(queue_id, messages, choosy=choosy)

    def looked(self, found: bool) -> None:
        """A GET CONVERSATION GROUP has found one, or none."""
        self.observed.note(took=found)

    def sleep(self, bell: Bell, seconds: float) -> bool:
        """The same, unless the task is to end: then nothing that comes is taken any more.

        Raises:
            InstanceError: it is.
        """
        self._bells.add(bell)  # first, so that who ends it finds it, or is found out here
        try:
            self._check_that_it_may_wait()
            changed = super().sleep(bell, seconds)
            self._check_that_it_may_wait()
            return changed
        finally:
            self._bells.discard(bell)

    def _check_that_it_may_wait(self) -> None:
        if self._waits_no_more:
            raise InstanceError("Activation ends in this process: its readers wait for no further message.")

    def end_waiting(self) -> None:
        """Wake the readers of the task that wait for a message, and let none wait any more."""
        self._waits_no_more = True
        for bell in tuple(self._bells):
            bell.ring()

    def cut(self) -> None:
        """End all that the task does in the database, now; what it tries later is refused. From any thread."""
        self._is_cut = True
        for connection in (self.own, *self._others):
            cut(connection)

    @contextlib.contextmanager
    def connection(self) -> Iterator[DirectConnection]:
        """Its own connection, for the length of a `with` block; another one while that is lent."""
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
        """End what the procedure has left open."""
        if self.own.closed:
            return
        if self.own.info.transaction_status != TransactionStatus.IDLE:
            self.observed.left_open = True
            self.own.rollback()

    @property
    def is_lent(self) -> bool:
        """Whether somebody still works on the task's connection."""
        return self._is_lent
