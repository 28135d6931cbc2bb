"""Benchmark of activated procedures: batches of whole groups against single messages."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from servicebroker.activation.host import Host
from servicebroker.activation.procedures import Form, PythonProcedure
from servicebroker.api.instance import Instance
from servicebroker.api.transaction import Transaction
from servicebroker.model.errors import InstanceError
from servicebroker.model.messages import Message
from servicebroker.operations.queues import Activation
from servicebroker_lab.benchmarks.measured_system import Implementation, System, text_body
from servicebroker_lab.benchmarks.report import OURS
from servicebroker_lab.benchmarks.scenarios import BASELINE

PER_CONVERSATION = 100  # messages of a conversation
TIMEOUT_S = 300.0  # seconds until a benchmark with unprocessed messages fails
FROM, TO, CONTRACT = "//bench/Asking", "//bench/Answering", "//bench/Answers"
ASK, LAST, ANSWER = "//bench/Ask", "//bench/Last", "//bench/Answer"
ASKING, ANSWERING, PROCEDURE = "AskingQueue", "AnsweringQueue", "usp_Bench"

_databases = itertools.count(1)


class Answering:
    """A system whose one activated reader answers each message of the waiting conversations, and ends them."""

    def __init__(self, name: str, instance: Instance, form: Form) -> None:
        self.name, self.version = name, version("servicebroker")
        self._form: Form = form
        self._body = text_body().encode()
        self._instance = instance
        self._database = instance.database(f"Activated{next(_databases)}", create=True)
        for message_type in (ASK, LAST, ANSWER):
            self._database.create_message_type(message_type)
        self._database.create_contract(CONTRACT, {ASK: "INITIATOR", LAST: "INITIATOR", ANSWER: "TARGET"})
        for queue, service in ((ASKING, FROM), (ANSWERING, TO)):
            self._database.create_queue(queue)
            self._database.create_service(service, queue, [CONTRACT])
        self._left = 0
        self._done = threading.Event()

    def close(self) -> None:
        """Close nothing: the caller closes its instance."""

    def _start_readers(self, function: Callable[..., Any]) -> Host:
        """Return a host that runs the activated reader during a block."""
        procedure = PythonProcedure(
            PROCEDURE,
            function,
            self._form,
            top=1 if self._form == "message" else None,
            groups=1,
            wait=0.0,
            worker="thread",
            poison=None,
        )
        self._database.alter_queue(ANSWERING, activation=Activation(PROCEDURE, 1, "OWNER", status=True))
        return Host(self._instance, [lambda database, name: procedure], interval=60)

    def _expect(self, messages: int) -> None:
        """Expect this number of messages to be processed."""
        self._left = messages
        self._done.clear()

    def _count_processed(self, messages: int) -> None:
        """Count processed messages."""
        self._left -= messages
        if not self._left:
            self._done.set()

    def _until_done(self) -> None:
        """Wait until the expected messages are processed."""
        if not self._done.wait(TIMEOUT_S):
            raise InstanceError(f"{self._left} messages were not processed within {TIMEOUT_S:.0f} seconds.")

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for the scenario `activation`, none for others."""
        settings = f"{PER_CONVERSATION} messages a conversation; an answer to each, then END"
        implementation = Implementation(f"procedure of the form {self._form}", settings, self._fill, self._work)
        return [implementation] if scenario == "activation" else []

    def _fill(self, messages: int) -> None:
        self._database.alter_queue(ANSWERING, activation="DROP")
        while self._database.receive(ASKING):
            pass
        for begin in range(0, messages, PER_CONVERSATION):
            handle = self._database.begin_dialog(FROM, TO, contract=CONTRACT)
            if (count := min(PER_CONVERSATION, messages - begin)) > 1:
                self._database.send_batch(handle, ASK, [self._body] * (count - 1))
            self._database.send(handle, LAST, self._body)

    def _work(self, messages: int) -> int:
        self._expect(messages)
        with self._start_readers(self._answer_all if self._form == "batch" else self._answer):
            self._until_done()
        return messages

    def _answer(self, transaction: Transaction, message: Message) -> None:
        transaction.send(message.conversation_handle, ANSWER, message.message_body or b"")
        self._end(transaction, message)
        self._count_processed(1)

    def _answer_all(self, transaction: Transaction, messages: list[Message]) -> None:
        bodies = [message.message_body or b"" for message in messages]
        transaction.send_batch(messages[0].conversation_handle, ANSWER, bodies)
        self._end(transaction, messages[-1])
        self._count_processed(len(messages))

    def _end(self, transaction: Transaction, message: Message) -> None:
        if message.message_type_name == LAST:
            transaction.end_conversation(message.conversation_handle)


def activation_systems(instance: Instance) -> list[System]:
    """Return the measured system and its baseline."""
    return [
        Answering(OURS, instance, "batch"),
        Answering(BASELINE, instance, "message"),
    ]
