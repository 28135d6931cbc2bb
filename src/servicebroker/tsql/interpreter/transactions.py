"""BEGIN, COMMIT, ROLLBACK and SAVE TRANSACTION on the session's connection, and what a failed statement leaves.

A relational statement inside a transaction runs behind a savepoint of ours, so that its failure undoes nothing else.
The savepoint and its release travel with the statements (`Ahead`); they cost no round trip. Verbs need none: a verb
that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from servicebroker.api.pipelined import WaitingDialogs, send_what_waits
from servicebroker.api.transaction import release_kept
from servicebroker.model.messages import Message
from servicebroker.store.direct import Ahead, DirectConnection, run_command
from servicebroker.store.running import run, run_alone
from servicebroker.store.statements import Rows, Statement, only
from servicebroker.tsql.statement_errors import TsqlError, unsupported

_GUARD = b"tsql_statement"
_BEGIN = (b"begin", b"begin isolation level repeatable read")  # the second one is what SNAPSHOT means
_DOOMED = (
    "The current transaction cannot be committed and cannot support operations that write to the log file. "
    "Roll back the transaction."
)
_DOOMED_SAVEPOINT = (
    "The current transaction cannot be committed and cannot be rolled back to a savepoint. "
    "Roll back the entire transaction."
)


@dataclass
class Transactions:
    """The transaction of a session, if one is open.

    Attributes:
        dialogs: new conversations of it that wait; they leave before the next statement, or with COMMIT.
        count: @@TRANCOUNT.
        doomed: whether it can only be rolled back: XACT_STATE() is -1.
        took: the transaction's id and the queue of each RECEIVE that found something.
        met: the groups and conversations that it has taken messages of, or ended. They may be gone since.
        snapshot: whether all of its statements see what was there when the first one ran.
        keep: is called before a ROLLBACK, and what it returns behind it: what that does not undo.
        when_undone: is called after PostgreSQL has undone something, with which settings of the connection go back.
    """

    connection: DirectConnection
    dialogs: WaitingDialogs
    count: int = 0
    doomed: bool = False
    took: set[tuple[int, int]] = field(default_factory=set)
    met: set[UUID] = field(default_factory=set)
    is_implicit: bool = False  # SET IMPLICIT_TRANSACTIONS has begun it
    outer: bool = False  # the transaction belongs to the caller, who ends it
    snapshot: bool = False
    keep: Callable[[], Callable[[], None]] = field(default=lambda: lambda: None)
    when_undone: Callable[[], None] = field(default=lambda: None)
    _floor: int = 0  # COMMIT and ROLLBACK leave so many open
    _name: str = ""
    _savepoints: list[tuple[str, str]] = field(default_factory=list)  # name in T-SQL, in PostgreSQL
    _made: int = 0
    _guarded: bool = False
    _commit: psycopg.Error | bool = False  # whether COMMIT has travelled, or why PostgreSQL has refused it

    @property
    def state(self) -> int:
        """XACT_STATE()."""
        return -1 if self.doomed else int(self.count > 0)

    def begin(self, name: str = "", *, snapshot: bool = False) -> None:
        """BEGIN TRANSACTION; one inside another one only counts."""
        if self.count == 0:
            self.connection.ahead.append(Ahead(_BEGIN[snapshot]))
            self.snapshot = snapshot
            self._name = name.lower()
        self.count += 1

    def begin_as(self, *, snapshot: bool) -> None:
        """Another isolation level for a transaction of which nothing has been sent yet."""
        self.connection.ahead[:] = [
            Ahead(_BEGIN[snapshot]) if one.command in _BEGIN else one for one in self.connection.ahead
        ]
        self.snapshot = snapshot

    def commit(self) -> bool:
        """COMMIT TRANSACTION; whether that ended it.

        Raises:
            TsqlError: 3902 none is open, 3930 it is doomed, 3916 INSERT ... EXEC holds it open.
        """
        if self.count == 0:
            raise TsqlError(3902, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.")
        self.check()
        if self.count == self._floor:
            raise TsqlError(
                3916, "Cannot use the COMMIT statement within an INSERT-EXEC statement unless BEGIN TRANSACTION is "
                "used first.", state=0,
            )  # fmt: skip
        if self.count > 1 or self.outer:
            if self.count == 1:
                raise TsqlError(3902, "The transaction belongs to the caller, who commits it.")
            self.count -= 1
            return False
        travelled = self._commit
        try:
            if self.dialogs:
                self._commit_dialogs()
            else:
                begun = self.has_begun() and not travelled
                self.connection.ahead.clear()  # COMMIT releases savepoints
                if begun:
                    run_command(self.connection, b"commit")
        finally:
            self._ended()
        if isinstance(travelled, psycopg.Error):
            raise travelled
        return True

    def _commit_dialogs(self) -> None:
        """COMMIT behind the new conversations that wait. As the only statement they are a transaction by themselves."""
        ahead = self.connection.ahead
        if self.dialogs.is_one_statement and [one.command for one in ahead] == [_BEGIN[False]]:
            ahead.clear()
            run_alone(self.connection, self.dialogs.take())
            return
        send_what_waits(self.connection)
        ahead.clear()
        run_command(self.connection, b"commit")

    @property
    def may_end(self) -> bool:
        """Whether COMMIT would end it."""
        return self.count == 1 and not self._floor and not self.outer and not self.doomed

    def run_and_commit(self, statement: Statement) -> Rows:
        """A statement, and in its round trip the COMMIT that is the session's next one, which is told how that went.

        No rows: neither was done, the statement would have returned none.
        """
        self.guard()
        try:
            rows = run(self.connection, only(statement._replace(sql=statement.certain, then=b"commit")))
        except psycopg.errors.DivisionByZero:
            self.undo()
            return ()
        except psycopg.Error as refused:
            if self.connection.closed or self.is_lost:
                raise
            self._commit = refused
            return ((0,),)
        self._commit = True
        return rows

    @contextmanager
    def held_open(self) -> Iterator[None]:
        """What runs inside, of an INSERT ... EXEC, does not end the transaction, nor go back to before.

        Raises:
            TsqlError: 8164 another one holds it.
        """
        if self._floor:
            raise TsqlError(8164, "An INSERT EXEC statement cannot be nested.")
        savepoints, self._savepoints = self._savepoints, []
        self._floor = self.count
        try:
            yield
        finally:
            self._floor, self._savepoints = 0, savepoints if self.count else []

    def check_ends(self) -> None:
        """Refuse a ROLLBACK TRANSACTION of what is held open.

        Raises:
            TsqlError: 3915.
        """
        if self._floor:
            error = TsqlError(3915, "Cannot use the ROLLBACK statement within an INSERT-EXEC statement.", state=0)
            error.undoes = True
            raise error

    def has_begun(self) -> bool:
        """Whether BEGIN has been sent, or something waits that is to be done behind it."""
        return bool(self.dialogs) or not any(one.command in _BEGIN for one in self.connection.ahead)

    def rollback(self) -> None:
        """ROLLBACK TRANSACTION of all.

        Raises:
            TsqlError: 3903 none is open.
        """
        if self.count == 0:
            raise TsqlError(3903, "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION.")
        if self.outer:
            raise TsqlError(
                3903, "The transaction belongs to the caller, who rolls it back: raise an error with THROW."
            )
        self.dialogs.drop()
        if not self.has_begun():
            self.connection.ahead.clear()
            self._ended()
            return
        restore = self.keep()
        self.connection.ahead.clear()
        try:
            run_command(self.connection, b"rollback")
            self.when_undone()
        finally:
            self._ended()
        restore()

    def meet(self, messages: Iterable[Message]) -> None:
        """Note the groups and conversations of messages that were taken, if a transaction is open."""
        if self.count:
            for message in messages:
                self.met |= {message.conversation_group_id, message.conversation_handle}

    def _ended(self) -> None:
        self.dialogs.drop()
        self.count = 0
        self.doomed = self._guarded = self.snapshot = self.is_implicit = self._commit = False
        self._savepoints.clear()
        self.met.clear()
        self._name = ""
        release_kept(self.connection)

    @property
    def is_lost(self) -> bool:
        """Whether PostgreSQL accepts nothing but its end: it has refused a verb, which runs without a savepoint."""
        return self.count > 0 and self.connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR

    def restart(self) -> None:
        """All of it is undone and its locks are free; it stays open, doomed, so that CATCH can read and roll back."""
        self.dialogs.drop()
        self.connection.ahead.clear()
        run_command(self.connection, b"rollback")
        self.when_undone()
        release_kept(self.connection)
        self.connection.ahead.append(Ahead(_BEGIN[self.snapshot]))
        self._guarded = False
        self.doomed = True

    def save(self, name: str) -> None:
        """SAVE TRANSACTION name.

        Raises:
            TsqlError: 628 none is open, 3930 it is doomed.
        """
        if self.count == 0:
            raise TsqlError(628, "Cannot issue SAVE TRANSACTION when there is no active transaction.")
        self.check()
        self.settle()
        self._made += 1
        savepoint = f"tsql_{self._made}"
        self.connection.ahead.append(Ahead(f"savepoint {savepoint}".encode()))
        self._savepoints.append((name.lower(), savepoint))

    def names_all(self, name: str) -> bool:
        """Whether ROLLBACK TRANSACTION with this name is one of all: the outermost BEGIN has it, and no savepoint."""
        known = [own for own, _ in self._savepoints]
        return self.count > 0 and name.lower() == self._name and name.lower() not in known

    def rollback_to(self, name: str) -> None:
        """ROLLBACK TRANSACTION to a savepoint.

        Raises:
            TsqlError: 3903 none is open, 6401 no such name, 3931 it is doomed.
        """
        if self.count == 0:
            raise TsqlError(3903, "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION.")
        found = [place for place, (known, _) in enumerate(self._savepoints) if known == name.lower()]
        if not found:
            raise TsqlError(6401, f"Cannot roll back {name}. No transaction or savepoint of that name was found.")
        if self.doomed:
            raise TsqlError(3931, _DOOMED_SAVEPOINT)
        self.dialogs.drop()
        savepoint = self._savepoints[found[-1]][1]
        del self._savepoints[found[-1] + 1 :]
        restore = self.keep()
        self._guarded = False
        self.connection.ahead[:] = [one for one in self.connection.ahead if b"release" not in one.command]
        run_command(self.connection, f"rollback to savepoint {savepoint}".encode())
        self.when_undone()
        restore()

    # ------------------------------------------------------------ statements

    def check(self) -> None:
        """Refuse what cannot be done in a doomed transaction.

        Raises:
            TsqlError: 3930.
        """
        if self.doomed:
            raise TsqlError(3930, _DOOMED)

    def check_present(self) -> None:
        """Refuse what goes by the state of now, and not by that of when the transaction began.

        Raises:
            TsqlError: 40515.
        """
        if self.snapshot:
            raise unsupported(
                "The broker in a transaction of SNAPSHOT",
                "RECEIVE has to see what others have just committed: say another isolation level before BEGIN "
                "TRANSACTION.", 0,
            )  # fmt: skip

    @contextmanager
    def undone_alone(self) -> Iterator[None]:
        """Several statements of an open transaction: when one fails, what those before it have done is undone."""
        self.settle()
        self._made += 1
        savepoint = f"tsql_{self._made}".encode()
        self.connection.ahead.append(Ahead(b"savepoint " + savepoint))
        try:
            yield
        except BaseException:
            self._undo_to(savepoint)
            raise
        self.settle()
        if self.count:
            self.connection.ahead.append(Ahead(b"release savepoint " + savepoint))

    def _undo_to(self, savepoint: bytes) -> None:
        self.dialogs.drop()
        if not self.count or self.connection.closed:
            return
        self._guarded = False
        waiting = [one.command for one in self.connection.ahead]
        if b"savepoint " + savepoint in waiting:  # it was never sent
            del self.connection.ahead[waiting.index(b"savepoint " + savepoint) :]
            return
        self.connection.ahead.clear()
        run_command(self.connection, b"rollback to savepoint " + savepoint)
        self.when_undone()

    def guard(self) -> None:
        """Before a statement that PostgreSQL may refuse."""
        if self.count:
            self.settle()
            self.connection.ahead.append(Ahead(b"savepoint " + _GUARD))
            self._guarded = True

    def settle(self) -> None:
        """Before a statement that needs no savepoint: the last one's goes. What waits leaves before a savepoint."""
        send_what_waits(self.connection)
        if self._guarded:
            self.connection.ahead.append(Ahead(b"release savepoint " + _GUARD))
            self._guarded = False

    def undo(self) -> None:
        """The statement behind `guard` has failed."""
        if self._guarded and not self.connection.closed:
            if self.connection.ahead:  # it was never sent
                self.connection.ahead[:] = [
                    one for one in self.connection.ahead if one.command != b"savepoint " + _GUARD
                ]
                self._guarded = False
                return
            run_command(self.connection, b"rollback to savepoint " + _GUARD)
            self.when_undone()
