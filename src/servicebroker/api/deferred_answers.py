# Made from aio/deferred_answers.py by tools/make_sync.py: change that file, then run `make sync`.
"""Answers of a procedure to its group, which are sent with the next group's savepoint in one round trip.

A worker with `groups=50` calls its procedure for one group after the other. The usual procedure answers and ends: SEND,
END CONVERSATION. Both can be deferred, because their results are known: SEND returns the next sequence number, which
was read with the group's messages, and END returns None.

If a deferred verb fails, or has another result than was predicted, its group alone is undone. The procedure then runs
once more, and none of its verbs is deferred. So an error is raised where the procedure called the verb.

The END of a request is deferred in the same way, and sent with COMMIT (requesting.py).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from servicebroker.api.pipelined import ENDED_ON_ITS_CONNECTION, MAX_BYTES, MAX_SENDS, send_deferred
from servicebroker.api.shared import tracing
from servicebroker.engine.conversation.deferred_answers import DeferredVerb
from servicebroker.engine.diagnosis.totals import SENDS
from servicebroker.model.errors import InstanceError
from servicebroker.operations.end import EndConversation
from servicebroker.operations.operation import Operation
from servicebroker.operations.send import Send
from servicebroker.store import session_locks
from servicebroker.store.direct import is_direct, is_idle, run_together
from servicebroker.store.statements import Row, Statement, Steps

if TYPE_CHECKING:
    from servicebroker.api.transaction import Transaction

_PAUSE_S = 10.0  # without deferring, after a deferred verb had another result than expected: its procedure ran twice


def may_defer(transaction: Transaction) -> bool:
    """Return whether verbs may be deferred. Traces and watched conversation events need each verb by itself."""
    instance = transaction.instance
    needs_each_verb = tracing.is_on() or instance.events.watches_conversations
    return not needs_each_verb and time.monotonic() >= instance.defers_from and is_direct(transaction.connection)


class DeferredVerbFailed(Exception):
    """A verb that was sent with COMMIT has failed. Nothing is committed; the caller begins again without deferring."""


class DeferredAnswers:
    """Deferred SENDs and END of a procedure on one conversation, sent with the next statement on the connection.

    Attributes:
        has_failed: whether a deferred verb has failed.
    """

    def __init__(self, transaction: Transaction, handle: UUID, number: int | None = None) -> None:
        self.has_failed = False
        self._transaction = transaction
        self._connection = transaction.connection
        self._handle = handle
        self._number = number  # the sequence number of the next SEND; None if it is not known
        self._may_end = True
        self._verbs: list[DeferredVerb] = []
        self._bytes = 0  # the total size of the deferred bodies

    def run(self, operation: Operation[Any]) -> list[Any]:
        """Defer an operation, and return its result in a list.

        If the list is empty, the operation was not deferred: the caller must run it, and no verb is deferred any more.
        """
        number = self._number
        verb = self._defer(operation) if self._may_defer(operation) else None
        if verb is None:
            if not isinstance(operation, Send) or operation.handle == self._handle:
                self._number, self._may_end = None, False
            elif not operation.is_single:
                self._number = None  # the operation may take sequence numbers
            self.send_now()
            return []
        self._transaction._note_verb()
        self._verbs.append(verb)
        self._bytes += verb.size
        self._connection.deferred.verbs = self._deferred_steps
        if len(self._verbs) >= MAX_SENDS or self._bytes >= MAX_BYTES:
            self.send_now()
        return [number if isinstance(operation, Send) else None]

    def send_now(self) -> None:
        """Send the deferred verbs now."""
        if self._verbs:
            send_deferred(self._connection)

    def send_with(self, following: list[Statement | bytes]) -> tuple[list[list[Row]], psycopg.Error | None]:
        """Run the deferred verbs and these statements in one round trip.

        Return the rows of the statements that have run, and the error that has stopped the others.

        Raises:
            psycopg.Error: a verb has failed, and nothing of `following` has run.
        """
        verbs = self._take()
        self.has_failed = True
        try:
            rows, problem = run_together(self._connection, [*(verb.statement for verb in verbs), *following])
            if problem is not None and len(rows) < len(verbs):
                raise problem
            self.has_failed = False
        except psycopg.Error:
            raise
        except BaseException:  # the last savepoint is unknown
            self._connection.close()
            raise
        finally:
            self._look_for_locks()
        for verb, (row, *_) in zip(verbs, rows, strict=False):
            self._note(verb, row)
        return rows[len(verbs) :], problem

    @property
    def has_deferred(self) -> bool:
        """True if a verb is deferred."""
        return bool(self._verbs)

    def drop(self) -> None:
        """Forget the deferred verbs, since they are undone. No further verb is deferred."""
        self._number, self._may_end = None, False
        if self._verbs:
            self._take()

    def stop(self) -> None:
        """Defer nothing for a while."""
        self._transaction.instance.defers_from = time.monotonic() + _PAUSE_S

    def _may_defer(self, operation: Operation[Any]) -> bool:
        if not isinstance(operation, Send | EndConversation) or operation.handle != self._handle:
            return False
        is_open = self._connection.pgconn.transaction_status == TransactionStatus.INTRANS
        if not is_open or not is_direct(self._connection):
            return False
        return bool(self._verbs) or self._connection.deferred.verbs is None

    def _defer(self, operation: Operation[Any]) -> DeferredVerb | None:
        engine, number = self._transaction.engine, self._number
        verb = None
        if isinstance(operation, EndConversation):
            if self._may_end and (verb := engine.defer_end(operation)) is not None:
                self._number, self._may_end = None, False
        elif isinstance(operation, Send) and number is not None:
            verb = engine.defer_answer(operation, number)
            self._number = number + 1
        return verb

    def _take(self) -> list[DeferredVerb]:
        self._connection.deferred.verbs = None
        return self._pop_verbs()

    def _pop_verbs(self) -> list[DeferredVerb]:
        verbs, self._verbs, self._bytes = self._verbs, [], 0
        return verbs

    def _deferred_steps(self) -> Steps[None]:
        if is_idle(self._connection):
            raise InstanceError(ENDED_ON_ITS_CONNECTION)
        verbs = self._pop_verbs()
        self.has_failed = True
        try:
            for verb in verbs:
                rows = yield verb.statement
                self._note(verb, rows[0])
            self.has_failed = False
        finally:
            self._look_for_locks()

    def _look_for_locks(self) -> None:
        """Let the session look for its locks after the transaction, if an END has failed that may have kept one."""
        if self.has_failed:
            session_locks.record_unknown(self._connection)

    def _note(self, verb: DeferredVerb, row: Row) -> None:
        if verb.messages:
            self._transaction.instance.tally.add(SENDS, verb.messages)
        if verb.done(row):
            self._transaction._has_closed_endpoints = True
