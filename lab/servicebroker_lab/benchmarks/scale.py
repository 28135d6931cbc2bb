"""More and more processes that send, or receive, at a time, each with a connection of its own: ours and pgmq's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol
from uuid import UUID

import psycopg

from servicebroker.api.instance import Instance
from servicebroker_lab.benchmarks.competitors import Pgmq
from servicebroker_lab.benchmarks.measured_system import Implementation, batches, text_body
from servicebroker_lab.benchmarks.scenarios import SCALE
from servicebroker_lab.benchmarks.sender_process import Job, SenderProcess
from servicebroker_lab.benchmarks.servicebroker_system import (
    CONTRACT,
    DATABASE,
    INITIATOR,
    QUEUE,
    TARGET,
    TYPE,
    ServiceBroker,
)

_WARMUP_CALLS = 20  # times that each process does it before the clock starts
_LABELS = {  # the labels of our verbs and of pgmq's
    "send-1": ("send", "pgmq.send"),
    "send-100": ("send_batch", "pgmq.send_batch"),
    "receive-1": ("receive(top=1)", "pgmq.pop"),
    "receive-1000": ("receive(top=1000)", "pgmq.read(1000) + delete"),
}


class FilledSystem(Protocol):
    """A system that fills its queue before processes read it."""

    name: str
    version: str

    def begin(self, messages: int) -> None:
        """Empty the queue."""

    def fill_groups(self, messages: int) -> None:
        """Put a number of messages into the queue."""


class ScaledSystem:
    """A system in the scenarios of `scale`: `job` is what one of its processes does, over `url`."""

    def __init__(self, system: FilledSystem, which: int, job: Job, url: str) -> None:
        self.name, self.version = system.name, system.version
        self._system, self._which, self._job, self._url = system, which, job, url
        self._processes: list[SenderProcess] = []

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for each verb and number of processes."""
        group, _, rest = scenario.partition("-")
        verb, _, many = rest.rpartition("-")
        if group != SCALE:
            return []
        settings = f"{many} process{'' if many == '1' else 'es'}"
        prepare, work = self._prepare(verb, int(many)), self._work(verb, int(many))
        return [Implementation(_LABELS[verb][self._which], settings, prepare, work)]

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.close()

    def _prepare(self, verb: str, many: int) -> Callable[[int], None]:
        size = int(verb.rpartition("-")[2])

        def prepare(messages: int) -> None:
            warm = _WARMUP_CALLS * size * many
            if verb.startswith("send"):
                self._system.begin(messages)
            else:
                self._system.fill_groups(messages + warm)
            self._run_processes(verb, many, warm)

        return prepare

    def _work(self, verb: str, many: int) -> Callable[[int], int]:
        def work(messages: int) -> int:
            self._run_processes(verb, many, messages)
            return messages

        return work

    def _run_processes(self, verb: str, many: int, messages: int) -> None:
        """Let so many processes do it, each with its part of the messages, which it does or fails."""
        while len(self._processes) < many:
            self._processes.append(SenderProcess(self._job, self._url))
        shares = [len(range(number, messages, many)) for number in range(many)]
        _all_at_once(self._processes[:many], verb, shares)


def _all_at_once(processes: Sequence[SenderProcess], verb: str, shares: Sequence[int]) -> None:
    if processes:
        processes[0].during(lambda: _all_at_once(processes[1:], verb, shares[1:]), verb, shares[0])


@contextmanager
def _ours(url: str) -> Iterator[Callable[[str, int], None]]:
    """Run in a process of servicebroker, which has a conversation of its own."""
    body = text_body().encode()
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)
        handle: UUID = database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT)

        def do(verb: str, messages: int) -> None:
            verb, _, size = verb.rpartition("-")
            if verb == "send":
                for many in batches(messages, int(size)):
                    if many == 1:
                        database.send(handle, TYPE, body)
                    else:
                        database.send_batch(handle, TYPE, [body] * many)
            while verb == "receive" and messages:
                messages -= len(database.receive(QUEUE, top=min(int(size), messages)))

        yield do


@contextmanager
def _pgmq(url: str) -> Iterator[Callable[[str, int], None]]:
    """Run in a process that calls pgmq's functions."""
    body = text_body()
    with psycopg.connect(url, autocommit=True) as connection:

        def call(sql: str, *parameters: object) -> list[tuple[object, ...]]:
            return connection.execute(sql.encode(), parameters, prepare=True).fetchall()

        def receive(many: int) -> int:
            if many == 1:
                return len(call("select * from pgmq.pop('bench')"))
            with connection.transaction():
                message_ids = [row[0] for row in call("select * from pgmq.read('bench', 30, %s)", many)]
                return len(call("select * from pgmq.delete('bench', %s::bigint[])", message_ids))

        def do(verb: str, messages: int) -> None:
            verb, _, size = verb.rpartition("-")
            if verb == "send":
                for many in batches(messages, int(size)):
                    bodies = [json.dumps(body) for _ in range(many)]
                    if many == 1:
                        call("select * from pgmq.send('bench', %s::jsonb)", *bodies)
                    else:
                        call("select * from pgmq.send_batch('bench', %s::jsonb[])", bodies)
            while verb == "receive" and messages:
                messages -= receive(1 if size == "1" else min(int(size), messages))

        yield do


def scaled_systems(systems: Sequence[object], url: str) -> list[ScaledSystem]:
    """Return those of the systems that take part."""
    ours = [ScaledSystem(system, 0, _ours, url) for system in systems if isinstance(system, ServiceBroker)]
    return ours + [ScaledSystem(system, 1, _pgmq, url) for system in systems if isinstance(system, Pgmq)]
