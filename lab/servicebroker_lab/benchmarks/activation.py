"""Activated procedures: by whole groups against message by message."""

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

PER_CONVERSATION = 100
TIMEOUT_S = 300.0  # seconds
FROM, TO, CONTRACT = "//bench/Asking", "//bench/Answering", "//bench/Answers"
ASK, LAST, ANSWER = "//bench/Ask", "//bench/Last", "//bench/Answer"
ASKING, ANSWERING, PROCEDURE = "AskingQueue", "AnsweringQueue", "usp_Bench"

_databases = itertools.count(1)


class Answering:
    """Conversations that wait in a queue are answered, message for message, and ended by one activated reader."""

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
        """Close nothing: the instance belongs to who opened it."""

    def _activated(self, function: Callable[..., Any]) -> Host:
        """Start readers, as long as the block lasts."""
        top = 1 if self._form == "message" else None
        procedure = PythonProcedure(PROCEDURE, function, self._form, top, 1, 0.0, "thread", None)
        self._database.alter_queue(ANSWERING, activation=Activation(PROCEDURE, 1, "OWNER", status=True))
        return Host(self._instance, [lambda database, name: procedure], interval=60)

    def _expect(self, messages: int) -> None:
        """Expect this number of messages to be processed."""
        self._left = messages
        self._done.clear()

    def _processed(self, messages: int) -> None:
        """Count processed messages."""
        self._left -= messages
        if not self._left:
            self._done.set()

    def _until_done(self) -> None:
        """Wait until all expected ones were."""
        if not self._done.wait(TIMEOUT_S):
            raise InstanceError(f"A benchmark is broken: {self._left} messages were not processed.")

    def implementations(self, scenario: str) -> list[Implementation]:
        """One, in the scenario `activation`."""
        settings = f"{PER_CONVERSATION} messages a conversation; an answer to each, then END"
        implementation = Implementation(f"procedure of the form {self._form}", settings, self._fill, self._work)
        return [implementation] if scenario == "activation" else []

    def _fill(self, messages: int) -> None:
        self._database.alter_queue(ANSWERING, activation="DROP")
        while self._database.receive(ASKING):
            pass
        for begin in range(0, messages, PER_CONVERSATION):
            handle = self._database.begin_dialog(FROM, TO, contract=CONTRACT)
            if (share := min(PER_CONVERSATION, messages - begin)) > 1:
                self._database.send_batch(handle, ASK, [self._body] * (share - 1))
            self._database.send(handle, LAST, self._body)

    def _work(self, messages: int) -> int:
        self._expect(messages)
        with self._activated(self._answer_all if self._form == "batch" else self._answer):
            self._until_done()
        return messages

    def _answer(self, transaction: Transaction, message: Message) -> None:
        transaction.send(message.conversation_handle, ANSWER, message.message_body or b"")
        self._end(transaction, message)
        self._processed(1)

    def _answer_all(self, transaction: Transaction, messages: list[Message]) -> None:
        bodies = [message.message_body or b"" for message in messages]
        transaction.send_batch(messages[0].conversation_handle, ANSWER, bodies)
        self._end(transaction, messages[-1])
        self._processed(len(messages))

    def _end(self, transaction: Transaction, message: Message) -> None:
        if message.message_type_name == LAST:
            transaction.end_conversation(message.conversation_handle)


def activation_systems(instance: Instance) -> list[System]:
    """Ours, and what it is compared with."""
    return [
        Answering(OURS, instance, "batch"),
        Answering(BASELINE, instance, "message"),
    ]
