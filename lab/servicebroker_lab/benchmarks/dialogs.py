"""A conversation for each piece of work: most users begin one for a request and end it with the answer."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.transaction import Transaction
from servicebroker.model.messages import Message
from servicebroker_lab.benchmarks.measured_system import Implementation, System, batches, text_body
from servicebroker_lab.benchmarks.report import OURS
from servicebroker_lab.benchmarks.scenarios import CONVERSATIONS_PER_TRANSACTION
from servicebroker_lab.benchmarks.servicebroker_system import CONTRACT, INITIATOR, TARGET, TYPE

DATABASE = "Dialogs"
REQUEST_QUEUE, ANSWER_QUEUE = "RequestQueue", "AnswerQueue"
_WARM_UP = 20  # conversations, which prepare the statements


class Dialogs:
    """Conversations inside one database, in three steps, each a transaction: ask, answer and end, take and end."""

    name = OURS

    def __init__(self, instance: Instance) -> None:
        self.version = version("servicebroker")
        self._database = set_up(instance)
        self._body = text_body().encode()

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return implementations of whole conversations, and of each of their steps."""
        return {
            "dialog": [
                Implementation("begin_dialog, send; receive, send, end; receive, end", "", self._begin, self._converse)
            ],
            "dialog-job": [
                Implementation("begin_dialog, send; receive, end; receive, end", "", self._begin, self._do_jobs)
            ],
            "dialog-groups": [self._run_in_batches("begin_dialog, send; process: end; process: end", is_silent=True)],
            "dialog-groups-answer": [self._run_in_batches("begin_dialog, send; process: send, end; process: end")],
            "dialog-begin": [Implementation("begin_dialog, send", "one transaction", self._begin, self._ask_all)],
            "dialog-answer": [
                Implementation("receive(top=1), send, end", "one transaction", self._fill, self._answer_all)
            ],
            "dialog-end": [
                Implementation("receive(top=2), end", "one transaction", self._fill_answered, self._finish_all)
            ],
        }.get(scenario, [])

    def close(self) -> None:
        """Close nothing: the instance belongs to who opened it."""

    def _begin(self, messages: int) -> None:
        """Let nothing be in the queues, and all statements be known."""
        while self._database.receive(REQUEST_QUEUE, top=None) or self._database.receive(ANSWER_QUEUE, top=None):
            pass
        self._converse(_WARM_UP)
        self._do_jobs(_WARM_UP)

    def _fill(self, messages: int) -> None:
        self._begin(messages)
        self._ask_all(messages)

    def _fill_answered(self, messages: int) -> None:
        self._fill(messages)
        self._answer_all(messages)

    def _converse(self, messages: int) -> int:
        """Ask, answer and take each answer before the next question."""
        completed = 0
        for _ in range(messages):
            self._ask()
            completed += self._answer() + self._finish() == 2
        return completed

    def _do_jobs(self, messages: int) -> int:
        """Begin all, then do all, then take all ends."""
        self._ask_all(messages)
        answered_count = sum(self._answer(is_silent=True) for _ in range(messages))
        return min(answered_count, self._finish_all(messages))

    def _run_in_batches(self, name: str, *, is_silent: bool = False) -> Implementation:
        """Return an implementation in which senders and workers put many conversations into each transaction."""
        options = f"groups={CONVERSATIONS_PER_TRANSACTION}, as many begun in a transaction"
        return Implementation(name, options, self._begin_together, partial(self._work_together, is_silent=is_silent))

    def _begin_together(self, messages: int) -> None:
        self._begin(messages)
        for is_silent in (False, True):
            self._work_together(CONVERSATIONS_PER_TRANSACTION, is_silent=is_silent)

    def _work_together(self, messages: int, *, is_silent: bool) -> int:
        def answer(transaction: Transaction, received: list[Message]) -> None:
            if not received[-1].is_end_dialog:
                if not is_silent:
                    transaction.send(received[0].conversation_handle, TYPE, self._body)
                transaction.end_conversation(received[0].conversation_handle)

        def finish(transaction: Transaction, received: list[Message]) -> None:
            transaction.end_conversation(received[-1].conversation_handle)

        for size in batches(messages, CONVERSATIONS_PER_TRANSACTION):
            with self._database.transaction() as transaction:
                for _ in range(size):
                    ask(transaction, self._body)
        answered_count = self._database.process(REQUEST_QUEUE, answer, groups=CONVERSATIONS_PER_TRANSACTION)
        ends = self._database.process(ANSWER_QUEUE, finish, top=None, groups=CONVERSATIONS_PER_TRANSACTION)
        return min(answered_count, ends if is_silent else ends // 2)

    def _ask_all(self, messages: int) -> int:
        return sum(isinstance(self._ask(), UUID) for _ in range(messages))

    def _answer_all(self, messages: int) -> int:
        return sum(self._answer() for _ in range(messages))

    def _finish_all(self, messages: int) -> int:
        return sum(self._finish() for _ in range(messages))

    def _ask(self) -> UUID:
        with self._database.transaction() as transaction:
            return ask(transaction, self._body)

    def _answer(self, *, is_silent: bool = False) -> int:
        with self._database.transaction() as transaction:
            (message,) = transaction.receive(REQUEST_QUEUE, top=1)
            if not is_silent:
                transaction.send(message.conversation_handle, TYPE, self._body)
            transaction.end_conversation(message.conversation_handle)
        return 1

    def _finish(self) -> int:
        with self._database.transaction() as transaction:
            messages = transaction.receive(ANSWER_QUEUE, top=2)
            transaction.end_conversation(messages[-1].conversation_handle)
        return int(messages[-1].is_end_dialog)


def ask(transaction: Transaction, body: bytes) -> UUID:
    """Begin a conversation and send its first message."""
    handle = transaction.begin_dialog(INITIATOR, TARGET, contract=CONTRACT, encryption=False)
    transaction.send(handle, TYPE, body)
    return handle


def set_up(instance: Instance, name: str = DATABASE) -> Database:
    """Create a database with this name, in which both sides may send."""
    database = instance.database(name, create=True)
    database.create_message_type(TYPE)
    database.create_contract(CONTRACT, {TYPE: "ANY"})
    database.create_queue(ANSWER_QUEUE)
    database.create_queue(REQUEST_QUEUE)
    database.create_service(INITIATOR, ANSWER_QUEUE)
    database.create_service(TARGET, REQUEST_QUEUE, [CONTRACT])
    return database


def dialog_systems(instance: Instance) -> list[System]:
    """Ours; the others measure these scenarios beside their own."""
    return [Dialogs(instance)]
