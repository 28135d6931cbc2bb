# Made from aio/turns.py by tools/make_sync.py: change that file, then run `make sync`.
"""Turns: a turn is one call of a procedure with its messages. It can be undone, or return its messages to the queue.

One turn in a transaction: RECEIVE runs before the savepoint, so only a ROLLBACK returns the messages to the queue.

Many groups in one transaction (decision 20): `hold` locks the groups and reads their messages without deleting them.
Each turn sets a savepoint, then deletes the messages of its group from the queue. So a rollback to the savepoint undoes
both the work of the procedure and the RECEIVE, and leaves the queue unchanged. If a procedure ends the transaction, the
messages of the following groups are still in the queue. Each turn is one subtransaction.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from servicebroker.api.deferred_answers import DeferredAnswers, may_defer
from servicebroker.api.shared import tracing
from servicebroker.api.transaction import Transaction
from servicebroker.engine.catalog.catalog import Queue
from servicebroker.engine.conversation.receive import ReceivedState
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message
from servicebroker.operations.receive import Receive
from servicebroker.overriding import override
from servicebroker.store.direct import QueuedCommand, run_command
from servicebroker.store.server_errors import is_transaction_conflict, raise_broker_error
from servicebroker.store.statements import Statement, Steps, result_of

Procedure: TypeAlias = Callable[[Transaction, list[Message]], object]

SAVEPOINT = b"savepoint servicebroker_procedure"
_UNDO = b"rollback to savepoint servicebroker_procedure"
_RELEASE = b"release savepoint servicebroker_procedure"


class Turn:
    """A call of a procedure with all messages that its transaction has received."""

    def __init__(self, transaction: Transaction, messages: list[Message]) -> None:
        self.transaction = transaction
        self.messages = messages

    def run(self, procedure: Procedure) -> None:
        """Call the procedure, then send its deferred statements, so that their errors belong to the turn."""
        self._call(procedure)
        self.transaction._send_deferred()

    def _call(self, procedure: Procedure) -> None:
        with tracing.current(self.transaction._processing):
            check_result(procedure(self.transaction, self.messages.copy()))  # procedures may change their list

    @property
    def has_failed_statement(self) -> bool:
        """True if a statement of the procedure has failed."""
        return self.transaction.connection.pgconn.transaction_status == TransactionStatus.INERROR

    def undo(self) -> None:
        """Undo what the procedure did. Its messages stay received."""
        self.transaction._drop_deferred()
        run_command(self.transaction.connection, _UNDO)

    def put_back(self, steps: Steps[None] | None = None) -> None:
        """Put the messages back, and run these steps before another reader gets the group's lock."""
        self.transaction._put_back(self.messages[0].conversation_group_id, steps)


class GroupTurn(Turn):
    """A call of a procedure with the messages of one group, in a transaction that holds several groups."""

    def __init__(self, transaction: Transaction, queue: Queue, messages: list[Message]) -> None:
        super().__init__(transaction, messages)
        self.following: GroupTurn | None = None
        self._queue = queue
        self._taken: ReceivedState | None = None
        self._problem: psycopg.Error | None = None  # why the messages were not taken

    @property
    def is_end(self) -> bool:
        """Return whether all messages of the group are EndDialogs."""
        return all(message.is_end_dialog for message in self.messages)

    @override
    @property
    def has_failed_statement(self) -> bool:
        """True if a statement of the procedure has failed, and not the statement that begins the following turn."""
        return super().has_failed_statement and (self.following is None or self.following._problem is None)

    def begin(self, *, is_first: bool) -> bool:
        """Set a savepoint and take the messages. If some are not in the queue any more, take none, and return False.

        An earlier turn may have received them, or ended their conversation.
        """
        if self._problem is not None:
            raise_broker_error(self._problem)
        if self._taken is None:
            commands = [SAVEPOINT] if is_first else [_RELEASE, SAVEPOINT]
            self.transaction.connection.queued += [QueuedCommand(command, _nothing) for command in commands]
            self._take()
        if not self._has_all:
            super().undo()  # a later RECEIVE takes the remaining messages
            return False
        if tracing.is_on():
            self.transaction._trace(self._queue.name, self.messages, alone=False)
        return True

    @override
    def undo(self) -> None:
        """Undo what the procedure did, and take the messages again."""
        super().undo()
        self._take()

    @override
    def put_back(self, steps: Steps[None] | None = None) -> None:
        """Put the messages back, then run these steps. The transaction stays open."""
        super().undo()
        if steps is not None:
            self.transaction._do(steps)

    @override
    def run(self, procedure: Procedure) -> None:
        """Call the procedure. Its deferred answers are sent with the savepoint of the following turn.

        If one of them fails, call the procedure once more without deferring its verbs.
        """
        transaction, answers = self.transaction, self._defer_answers()
        if answers is None:
            super().run(procedure)
            return
        try:
            self._call(procedure)
            transaction._deferred_answers = None
            if not answers.has_failed:
                self._send_answers(answers)
        except Exception as problem:
            if not answers.has_failed or is_transaction_conflict(problem) or transaction._has_finished():
                raise
        finally:
            transaction._deferred_answers = None
            answers.drop()
        if answers.has_failed and not transaction._has_finished():
            answers.stop()
            self.undo()
            super().run(procedure)

    def _defer_answers(self) -> DeferredAnswers | None:
        """Defer answers of the procedure, if the cache describes the conversation of its messages. Else return None."""
        taken, transaction = self._taken, self.transaction
        handle = self.messages[0].conversation_handle
        if taken is None or not may_defer(transaction) or not transaction.engine.may_defer(handle, taken):
            return None
        transaction._deferred_answers = DeferredAnswers(transaction, handle, taken.next_number)
        return transaction._deferred_answers

    def _send_answers(self, answers: DeferredAnswers) -> None:
        """Send the deferred answers, and with them the commands that begin the following turn."""
        transaction, following = self.transaction, self.following
        if transaction.connection.pgconn.transaction_status != TransactionStatus.INTRANS:
            answers.drop()
        if not answers.has_deferred:
            transaction._send_deferred()
            return
        sent: list[Statement | bytes] = []
        if following is not None:
            steps = following._take_steps()
            sent = [_RELEASE, SAVEPOINT, next(steps)]
        try:
            rows, following_problem = answers.send_with(sent)
        except psycopg.Error as problem:
            raise_broker_error(problem)
        if following is not None:
            following._problem = following_problem
            if following_problem is None:
                following._taken = result_of(steps, rows[-1])

    def _take(self) -> None:
        self._taken = self.transaction._do(self._take_steps())

    def _take_steps(self) -> Steps[ReceivedState]:
        return self.transaction.engine.take(self._queue.queue_id, self.messages)

    @property
    def _has_all(self) -> bool:
        return self._taken is not None and self._taken.messages == len(self.messages)


def hold(transaction: Transaction, operation: Receive) -> list[GroupTurn]:
    """Lock the groups from which a RECEIVE would take, and return a turn for each. The messages stay in the queue."""
    messages = transaction.run(operation.held)
    queue = transaction._find(operation.queue)
    by_group = groupby(messages, attrgetter("conversation_group_id"))
    turns = [GroupTurn(transaction, queue, list(group)) for _, group in by_group]
    transaction._may_have_more_groups = len(turns) >= operation.groups
    return turns


def link_turns(turns: list[GroupTurn]) -> list[GroupTurn]:
    """Tell each turn which one follows it. Return the turns."""
    for turn, following in pairwise(turns):
        turn.following = following
    return turns


def answer_ends(transaction: Transaction, queue_id: int, turns: list[GroupTurn]) -> list[Message]:
    """End the conversations of turns with only EndDialogs together. Return the messages of these turns.

    These turns are removed from `turns`. A turn with a conversation that could not be ended this way stays.
    """
    ends = [message for turn in turns if turn.is_end for message in turn.messages]
    if not ends:
        return []
    answered = set(transaction._do(transaction.engine.answer_ends(queue_id, ends)))
    answered_turns = [
        turn for turn in turns if answered.issuperset(message.conversation_handle for message in turn.messages)
    ]
    turns[:] = [turn for turn in turns if turn not in answered_turns]
    return [message for turn in answered_turns for message in turn.messages]


def _nothing() -> None:
    """Ignore the answer to a savepoint command."""
