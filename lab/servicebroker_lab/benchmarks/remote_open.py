"""Conversations between two instances, one for each message: opened, and opened, answered and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg

import servicebroker as sb
from servicebroker.api.database import Database
from servicebroker.api.transaction import Transaction
from servicebroker.model.errors import InstanceError
from servicebroker.model.messages import Message
from servicebroker_lab.benchmarks.measure import Figures, Meter, figures
from servicebroker_lab.benchmarks.remote import (
    BODY,
    CONTRACT,
    DATABASE,
    MESSAGE_TIMEOUT_S,
    ORDER,
    QUEUE,
    READER_WAIT_S,
    SECURED,
    UNSECURED,
    LinkedInstances,
    Progress,
)
from servicebroker_lab.benchmarks.report import OURS, Line
from servicebroker_lab.benchmarks.runner import with_ratios
from servicebroker_lab.benchmarks.scenarios import ANSWERED, BASELINE, CONVERSATIONS_PER_TRANSACTION, Scenario
from servicebroker_lab.benchmarks.sender_process import SenderProcess

LOOK_INTERVAL_S = 0.02
_ARRIVED = "select count(*) from servicebroker.conversation_endpoints where not is_initiator"


def compare_openings(
    name: str, scenario: Scenario, folder: Path, messages: int, rounds: int, progress: Progress
) -> list[Line]:
    """Compare openings with TLS and dialog security to openings without either, the baseline."""
    lines = []
    for number, (system, label) in enumerate(((OURS, SECURED), (BASELINE, UNSECURED))):
        progress(f"{name}: two instances, {label}")
        with (
            closing(LinkedInstances(folder / f"{name}-{number}", is_secured=label == SECURED)) as linked,
            closing(Openings(linked)) as openings,
        ):
            work = openings.converse if name.endswith(ANSWERED) else openings.open
            lines.append(Line(name, system, "", label, *_measure(linked, work, messages, rounds)))
    return with_ratios(lines, scenario)


def _measure(linked: LinkedInstances, work: Callable[[int], int], messages: int, rounds: int) -> tuple[str, Figures]:
    work(CONVERSATIONS_PER_TRANSACTION)  # the daemons and both applications have prepared their statements
    with closing(Meter(linked.url)) as meter:
        before = linked.cpu()
        samples = [meter.sample(work, messages) for _ in range(rounds)]
        cpu = (linked.cpu() - before) / (messages * rounds)
    return (
        f"{CONVERSATIONS_PER_TRANSACTION} begun in a transaction; "
        f"both daemons: {cpu * 1e6:.0f} µs of CPU per conversation",
        figures(samples),
    )


class Openings:
    """A process that begins conversations, and one that takes their answers; this one answers."""

    def __init__(self, linked: LinkedInstances) -> None:
        ((service, west),) = linked.sources.items()
        self._east = linked.east
        self._looks = psycopg.connect(linked.url, autocommit=True)
        self._opener = SenderProcess(_opening, west.instance.url, service, linked.target, linked.is_secured)
        self._finisher = SenderProcess(_finishing, west.instance.url)

    def open(self, count: int) -> int:
        """Begin so many, and wait until all have their targets; nobody reads."""
        before = self._count_arrived()
        self._opener.during(lambda: self._wait(before + count), count)
        return self._count_arrived() - before

    def converse(self, count: int) -> int:
        """Begin so many, each with a request; answer and end each of them, and take answers and ends."""
        return self._opener.during(lambda: self._finisher.during(lambda: self._answer_all(count), count), count)

    def close(self) -> None:
        """End both processes."""
        self._opener.close()
        self._finisher.close()
        self._looks.close()

    def _count_arrived(self) -> int:
        ((count,),) = self._looks.execute(_ARRIVED).fetchall()
        return int(count)

    def _wait(self, count: int) -> None:
        arrived_count, changed_at = 0, time.monotonic()
        while (now := self._count_arrived()) < count:
            if now > arrived_count:
                arrived_count, changed_at = now, time.monotonic()
            elif time.monotonic() > changed_at + MESSAGE_TIMEOUT_S:
                raise InstanceError(f"No conversation has arrived in {MESSAGE_TIMEOUT_S:g} seconds.")
            time.sleep(LOOK_INTERVAL_S)

    def _answer_all(self, count: int) -> int:
        answered_count = 0

        def answer(transaction: Transaction, messages: list[Message]) -> None:
            nonlocal answered_count
            handle = messages[-1].conversation_handle
            if not messages[-1].is_end_dialog:
                transaction.send(handle, ORDER, BODY)
                answered_count += 1
            transaction.end_conversation(handle)

        _work(self._east, answer, lambda: answered_count >= count)
        return answered_count


@contextmanager
def _opening(url: str, service: str, target: str, is_secured: bool) -> Iterator[Callable[[int], None]]:
    """Begin conversations, many in a transaction."""
    with sb.open(url, upkeep=None) as instance:
        database = instance.database(DATABASE)

        def begin(count: int) -> None:
            for first in range(0, count, CONVERSATIONS_PER_TRANSACTION):
                with database.transaction() as transaction:
                    for _ in range(min(CONVERSATIONS_PER_TRANSACTION, count - first)):
                        handle = transaction.begin_dialog(service, target, contract=CONTRACT, encryption=is_secured)
                        transaction.send(handle, ORDER, BODY)

        yield begin


@contextmanager
def _finishing(url: str) -> Iterator[Callable[[int], None]]:
    """Take answers and ends, and end."""
    with sb.open(url, upkeep=None) as instance:
        database = instance.database(DATABASE)
        yield lambda count: _finish(database, count)


def _finish(database: Database, count: int) -> None:
    ended_count = 0

    def finish(transaction: Transaction, messages: list[Message]) -> None:
        nonlocal ended_count
        if messages[-1].is_end_dialog:
            transaction.end_conversation(messages[-1].conversation_handle)
            ended_count += 1

    _work(database, finish, lambda: ended_count >= count)


def _work(
    database: Database, procedure: Callable[[Transaction, list[Message]], None], is_done: Callable[[], bool]
) -> None:
    """Process messages of many conversations in a transaction until it is done."""
    deadline = time.monotonic() + MESSAGE_TIMEOUT_S
    while not is_done():
        if database.process(QUEUE, procedure, top=None, groups=CONVERSATIONS_PER_TRANSACTION, wait=READER_WAIT_S):
            deadline = time.monotonic() + MESSAGE_TIMEOUT_S
        elif time.monotonic() > deadline:
            raise InstanceError(f"Messages have not arrived in {MESSAGE_TIMEOUT_S:g} seconds.")
