"""Runs BEGIN, COMMIT, ROLLBACK and SAVE TRANSACTION on the session's connection, and protects each statement.

Inside a transaction, a savepoint, the *guard*, precedes each relational statement, so that its failure undoes nothing
else. The savepoint and its release are sent together with other statements (`QueuedCommand`), without a round trip.
Broker statements ("verbs", such as SEND) need no guard: if one is refused, it has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import psycopg

from servicebroker.api.pipelined import DeferredDialogs, send_deferred
from servicebroker.api.transaction import release_group_locks
from servicebroker.model.messages import Message
from servicebroker.store.direct import DirectConnection, QueuedCommand, run_command
from servicebroker.store.running import run, run_alone
from servicebroker.store.statements import Rows, Statement, only
from servicebroker.tsql.statement_errors import TsqlError, unsupported

_GUARD_NAME = b"tsql_statement"
_BEGIN_COMMANDS = (b"begin", b"begin isolation level repeatable read")  # [is_snapshot]
_DOOMED_TEXT = (
    "The current transaction cannot be committed and cannot support operations that write to the log file. "
    "Roll back the transaction."
)
_DOOMED_SAVEPOINT_TEXT = (
    "The current transaction cannot be committed and cannot be rolled back to a savepoint. "
    "Roll back the entire transaction."
)


class Savepoint(NamedTuple):
    """A savepoint of SAVE TRANSACTION: its name in T-SQL in lower case, and in PostgreSQL."""

    name: str
    postgres_name: str


@dataclass
class Transactions:
    """The transaction of a session.

    Attributes:
        dialogs: new conversations that have not been sent yet. They are sent before the next statement or with COMMIT.
        count: @@TRANCOUNT, 0 if no transaction is open.
        is_doomed: True if the transaction can only be rolled back: XACT_STATE() is -1.
        received_from: the transaction's id and the queue of each RECEIVE that returned messages.
        touched_ids: conversations and groups of received messages and of ended conversations. They may no longer exist.
        is_implicit: True if SET IMPLICIT_TRANSACTIONS began the transaction.
        is_external: True if the transaction belongs to the caller of the session, who ends it.
        was_committed: True if the last transaction that ended was committed.
        is_snapshot: True if all statements read one snapshot, of the time of the first statement.
        save_tables: called before a ROLLBACK. Returns a function that restores what a ROLLBACK must not undo.
        on_undo: called after PostgreSQL has rolled back, since settings of the connection are rolled back too.
    """

    connection: DirectConnection
    dialogs: DeferredDialogs
    count: int = 0
    is_doomed: bool = False
    received_from: set[tuple[int, int]] = field(default_factory=set)
    touched_ids: set[UUID] = field(default_factory=set)
    is_implicit: bool = False
    is_external: bool = False
    was_committed: bool = False
    is_snapshot: bool = False
    save_tables: Callable[[], Callable[[], None]] = field(default=lambda: lambda: None)
    on_undo: Callable[[], None] = field(default=lambda: None)
    _minimum_count: int = 0  # the count that INSERT ... EXEC must not go below
    _outermost_name: str = ""
    _savepoints: list[Savepoint] = field(default_factory=list)
    _savepoint_count: int = 0
    _has_guard: bool = False
    _commit_outcome: psycopg.Error | bool = False  # True if COMMIT was sent with a statement, or its error

    @property
    def state(self) -> int:
        """The value of XACT_STATE()."""
        return -1 if self.is_doomed else int(self.count > 0)

    def begin(self, name: str = "", *, snapshot: bool = False) -> None:
        """Run BEGIN TRANSACTION. Inside a transaction, only increment the count."""
        if self.count == 0:
            self.connection.queued.append(QueuedCommand(_BEGIN_COMMANDS[snapshot]))
            self.is_snapshot = snapshot
            self._outermost_name = name.lower()
        self.count += 1

    def change_isolation(self, *, snapshot: bool) -> None:
        """Change the isolation level, while the transaction's BEGIN has not been sent to PostgreSQL yet."""
        self.connection.queued[:] = [
            QueuedCommand(_BEGIN_COMMANDS[snapshot]) if queued_command.command in _BEGIN_COMMANDS else queued_command
            for queued_command in self.connection.queued
        ]
        self.is_snapshot = snapshot

    def commit(self) -> bool:
        """Run COMMIT TRANSACTION. Return True if it ended the transaction.

        Raises:
            TsqlError: 3902 no transaction is open, or it belongs to the caller; 3930 it is doomed, 3916 INSERT ... EXEC
                holds it open.
        """
        if self.count == 0:
            raise TsqlError(3902, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION.")
        self.check_not_doomed()
        if self.count == self._minimum_count:
            raise TsqlError(
                3916, "Cannot use the COMMIT statement within an INSERT-EXEC statement unless BEGIN TRANSACTION is "
                "used first.", state=0,
            )  # fmt: skip
        if self.count > 1 or self.is_external:
            if self.count == 1:
                raise TsqlError(
                    3902, "The Python program has begun this transaction and commits it: remove COMMIT from the script."
                )
            self.count -= 1
            return False
        outcome = self._commit_outcome
        try:
            if self.dialogs.has_dialogs:
                self._commit_dialogs()
            else:
                should_send = self.has_begun() and not outcome
                self.connection.queued.clear()  # COMMIT releases savepoints
                if should_send:
                    run_command(self.connection, b"commit")
        finally:
            self._reset()
        if isinstance(outcome, psycopg.Error):
            raise outcome
        self.was_committed = True
        return True

    def _commit_dialogs(self) -> None:
        """Send the deferred conversations, then COMMIT.

        If the transaction consists of these conversations only, and one statement can write them, run only that one.
        """
        queued = self.connection.queued
        if self.dialogs.is_one_statement and [queued_command.command for queued_command in queued] == [
            _BEGIN_COMMANDS[False]
        ]:
            queued.clear()
            run_alone(self.connection, self.dialogs.take_steps())
            return
        send_deferred(self.connection)
        queued.clear()
        run_command(self.connection, b"commit")

    @property
    def would_commit(self) -> bool:
        """True if COMMIT would end the transaction."""
        return self.count == 1 and not self._minimum_count and not self.is_external and not self.is_doomed

    def run_and_commit(self, statement: Statement) -> Rows:
        """Run a statement and the COMMIT that follows it in the session, in one round trip.

        `commit` then reports the outcome of this COMMIT. Returns no rows if neither was done, because the statement
        would have returned none.
        """
        self.set_guard()
        try:
            rows = run(self.connection, only(statement._replace(sql=statement.certain, then=b"commit")))
        except psycopg.errors.DivisionByZero:
            self.undo_statement()
            return ()
        except psycopg.Error as error:
            if self.connection.closed or self.is_lost:
                raise
            self._commit_outcome = error
            return ((0,),)
        self._commit_outcome = True
        return rows

    @contextmanager
    def hold_open(self) -> Iterator[None]:
        """Forbid the `with` block, an INSERT ... EXEC, to end the transaction or roll back to an earlier savepoint.

        Raises:
            TsqlError: 8164 another INSERT ... EXEC holds the transaction.
        """
        if self._minimum_count:
            raise TsqlError(8164, "An INSERT EXEC statement cannot be nested.")
        savepoints, self._savepoints = self._savepoints, []
        self._minimum_count = self.count
        try:
            yield
        finally:
            self._minimum_count, self._savepoints = 0, savepoints if self.count else []

    def check_rollback_allowed(self) -> None:
        """Refuse a ROLLBACK TRANSACTION inside INSERT ... EXEC.

        Raises:
            TsqlError: 3915 an INSERT ... EXEC is running.
        """
        if self._minimum_count:
            error = TsqlError(3915, "Cannot use the ROLLBACK statement within an INSERT-EXEC statement.", state=0)
            error.undoes = True
            raise error

    def has_begun(self) -> bool:
        """Return True if BEGIN has been sent, or if conversations are deferred, to be sent after it."""
        return self.dialogs.has_dialogs or not any(
            queued_command.command in _BEGIN_COMMANDS for queued_command in self.connection.queued
        )

    def rollback(self) -> None:
        """Roll back the whole transaction.

        Raises:
            TsqlError: 3903 no transaction is open, or it belongs to the caller.
        """
        if self.count == 0:
            raise TsqlError(3903, "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION.")
        if self.is_external:
            raise TsqlError(
                3903, "The Python program has begun this transaction: raise an error with THROW to roll it back."
            )
        self.was_committed = False
        self.dialogs.drop()
        if not self.has_begun():
            self.connection.queued.clear()
            self._reset()
            return
        restore = self.save_tables()
        self.connection.queued.clear()
        try:
            run_command(self.connection, b"rollback")
            self.on_undo()
        finally:
            self._reset()
        restore()

    def note_messages(self, messages: Iterable[Message]) -> None:
        """Add the groups and conversations of received messages to `touched_ids`, if a transaction is open."""
        if self.count:
            for message in messages:
                self.touched_ids |= {message.conversation_group_id, message.conversation_handle}

    def _reset(self) -> None:
        """Reset the state after the end of the transaction, and release its group locks."""
        self.dialogs.drop()
        self.count = 0
        self.is_doomed = self._has_guard = self.is_snapshot = self.is_implicit = self._commit_outcome = False
        self._savepoints.clear()
        self.touched_ids.clear()
        self._outermost_name = ""
        release_group_locks(self.connection)

    @property
    def is_lost(self) -> bool:
        """True if PostgreSQL accepts only ROLLBACK, because a verb has failed, which has no guard."""
        return self.count > 0 and self.connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR

    def restart(self) -> None:
        """Roll back in PostgreSQL, and begin a doomed transaction in its place, so that a CATCH block can read."""
        self.dialogs.drop()
        self.connection.queued.clear()
        run_command(self.connection, b"rollback")
        self.on_undo()
        release_group_locks(self.connection)
        self.connection.queued.append(QueuedCommand(_BEGIN_COMMANDS[self.is_snapshot]))
        self._has_guard = False
        self.is_doomed = True

    def save(self, name: str) -> None:
        """Run SAVE TRANSACTION name.

        Raises:
            TsqlError: 628 no transaction is open, 3930 it is doomed.
        """
        if self.count == 0:
            raise TsqlError(628, "Cannot issue SAVE TRANSACTION when there is no active transaction.")
        self.check_not_doomed()
        self.release_guard()
        self._savepoint_count += 1
        savepoint = Savepoint(name.lower(), f"tsql_{self._savepoint_count}")
        self.connection.queued.append(QueuedCommand(f"savepoint {savepoint.postgres_name}".encode()))
        self._savepoints.append(savepoint)

    def is_outermost_name(self, name: str) -> bool:
        """Return True if the outermost BEGIN has this name, and no savepoint has it: ROLLBACK then ends all."""
        savepoint_names = [savepoint.name for savepoint in self._savepoints]
        return self.count > 0 and name.lower() == self._outermost_name and name.lower() not in savepoint_names

    def rollback_to(self, name: str) -> None:
        """Run ROLLBACK TRANSACTION to a savepoint.

        Raises:
            TsqlError: 3903 no transaction is open, 6401 there is no such name, 3931 the transaction is doomed.
        """
        if self.count == 0:
            raise TsqlError(3903, "The ROLLBACK TRANSACTION request has no corresponding BEGIN TRANSACTION.")
        positions = [position for position, savepoint in enumerate(self._savepoints) if savepoint.name == name.lower()]
        if not positions:
            raise TsqlError(6401, f"Cannot roll back {name}. No transaction or savepoint of that name was found.")
        if self.is_doomed:
            raise TsqlError(3931, _DOOMED_SAVEPOINT_TEXT)
        self.dialogs.drop()
        savepoint = self._savepoints[positions[-1]]
        del self._savepoints[positions[-1] + 1 :]
        restore = self.save_tables()
        self._has_guard = False
        self.connection.queued[:] = [
            queued_command for queued_command in self.connection.queued if b"release" not in queued_command.command
        ]
        run_command(self.connection, f"rollback to savepoint {savepoint.postgres_name}".encode())
        self.on_undo()
        restore()

    # ------------------------------------------------------------ statements

    def check_not_doomed(self) -> None:
        """Refuse a statement that writes in a doomed transaction.

        Raises:
            TsqlError: 3930 the transaction is doomed.
        """
        if self.is_doomed:
            raise TsqlError(3930, _DOOMED_TEXT)

    def check_not_snapshot(self) -> None:
        """Refuse an operation that needs the current state, in a transaction that reads a snapshot.

        Raises:
            TsqlError: 40515 the transaction reads a snapshot.
        """
        if self.is_snapshot:
            raise unsupported(
                "The broker in a transaction of SNAPSHOT",
                "RECEIVE must read the latest commits: set another isolation level before BEGIN TRANSACTION.", 0,
            )  # fmt: skip

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """If a statement of the `with` block fails, undo the block, but nothing before it."""
        self.release_guard()
        self._savepoint_count += 1
        savepoint = f"tsql_{self._savepoint_count}".encode()
        self.connection.queued.append(QueuedCommand(b"savepoint " + savepoint))
        try:
            yield
        except BaseException:
            self._undo_to(savepoint)
            raise
        self.release_guard()
        if self.count:
            self.connection.queued.append(QueuedCommand(b"release savepoint " + savepoint))

    def _undo_to(self, savepoint: bytes) -> None:
        """Roll back to a savepoint, or drop it if it has not been sent yet."""
        self.dialogs.drop()
        if not self.count or self.connection.closed:
            return
        self._has_guard = False
        commands = [queued_command.command for queued_command in self.connection.queued]
        if b"savepoint " + savepoint in commands:  # not sent yet
            del self.connection.queued[commands.index(b"savepoint " + savepoint) :]
            return
        self.connection.queued.clear()
        run_command(self.connection, b"rollback to savepoint " + savepoint)
        self.on_undo()

    def set_guard(self) -> None:
        """Set the guard before a relational statement."""
        if self.count:
            self.release_guard()
            self.connection.queued.append(QueuedCommand(b"savepoint " + _GUARD_NAME))
            self._has_guard = True

    def release_guard(self) -> None:
        """Release the guard of the last statement. Send deferred verbs first."""
        send_deferred(self.connection)
        if self._has_guard:
            self.connection.queued.append(QueuedCommand(b"release savepoint " + _GUARD_NAME))
            self._has_guard = False

    def undo_statement(self) -> None:
        """Undo the failed statement: roll back to its guard."""
        if self._has_guard and not self.connection.closed:
            if self.connection.queued:  # not sent yet
                self.connection.queued[:] = [
                    queued_command
                    for queued_command in self.connection.queued
                    if queued_command.command != b"savepoint " + _GUARD_NAME
                ]
                self._has_guard = False
                return
            run_command(self.connection, b"rollback to savepoint " + _GUARD_NAME)
            self.on_undo()
