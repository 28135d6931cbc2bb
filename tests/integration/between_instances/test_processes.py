"""Two instances, each served by three processes, of which one or all are killed under load.

Every message and every answer must arrive exactly once and in order. Dialogs are secured, and some bodies are large.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from daemons import ServeProcess, Serving
from forked import run_command
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    eventually,
    query,
    standard_database,
    waiting_messages,
)

PROCESS_COUNT = 3
CONVERSATION_COUNT = 12
UNDER_WAY = 2_000  # unanswered messages at a time
PASSWORD = "correct horse"
TIMEOUT_S = 60.0  # seconds


class Broker(Serving):
    """An instance, with the daemon that serves it and others that stand by."""

    def __init__(self, url: str, keys: Path) -> None:
        super().__init__()
        self.url, self.keys = url, keys
        self.instance = sb.open(url, clock=lambda: datetime.now(UTC), upkeep=None, keys=keys)
        self.database = standard_database(self.instance)
        self.start()

    def start(self) -> ServeProcess:
        listen = ("--listen", f"127.0.0.1:{self.port}", "--encryption", "DISABLED")
        self.daemons.append(ServeProcess(self.url, self.keys, *listen, "--processes", str(PROCESS_COUNT)))
        return self.daemons[-1]

    @property
    def children(self) -> list[int]:
        """The share processes of the daemon that was started first."""
        return children(self.daemons[0].process.pid)

    def close(self) -> None:
        super().close()
        self.instance.close()


def children(pid: int) -> list[int]:
    """Return the process ids of a daemon's shares."""
    listed = subprocess.run(["ps", "-ewwo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    processes = [line.split(maxsplit=2) for line in listed.splitlines() if "servicebroker.broker.share_process" in line]
    return sorted(int(child) for child, parent, _ in processes if int(parent) == pid)


def are_gone(pids: list[int]) -> bool:
    """Check whether all of these processes have ended. A container's init may leave zombies in the list."""
    listed = subprocess.run(["ps", "-eo", "pid=,stat="], capture_output=True, text=True, check=True).stdout
    states = dict(line.split() for line in listed.splitlines())
    return all(states.get(str(pid), "Z").startswith("Z") for pid in pids)


@pytest.fixture
def brokers(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two instances with each other's certificates. West begins conversations with east."""
    with ExitStack() as stack:
        made = []
        for name in ("west", "east"):
            made.append(Broker(make_instance_url(1), tmp_path / f"keys of {name}"))
            stack.callback(made[-1].close)
        west, east = made
        for broker, dropped, name in ((west, STOCK, "orders"), (east, ORDERS, "stock")):
            broker.database.drop_service(dropped)
            broker.database.create_master_key(PASSWORD)
            broker.database.create_certificate(name)
            broker.database.backup_certificate(name, tmp_path / name)
        for broker, name, user in ((west, "stock", "Stock"), (east, "orders", "Orders")):
            broker.database.create_user(user)
            broker.database.create_certificate(f"{name}!", file=tmp_path / name, authorization=user)
        west.database.create_remote_service_binding("ToStock", to_service=STOCK, user="Stock")
        east.database.grant("SEND", "Orders", service=STOCK)
        west.database.create_route("r", service_name=STOCK, address=f"TCP://127.0.0.1:{east.port}")
        east.database.create_route("r", service_name=ORDERS, address=f"TCP://127.0.0.1:{west.port}")
        for broker in made:
            broker.daemons[0].wait_for_log(f"Conversations are divided among {PROCESS_COUNT} rounds at a time.")
        yield west, east


def make_body(number: int) -> bytes:
    """Return the body of the message with this number."""
    return b"%d " % number + b"x" * (400_000 if number % 101 == 50 else 100)


class Flow:
    """Sends numbered messages while the block runs. Each is answered with its number, and both sides check all."""

    def __init__(self, west: Broker, east: Broker, rng: random.Random) -> None:
        self.west, self.east, self.rng = west.database, east.database, rng
        handles = [self.west.begin_dialog(ORDERS, STOCK, contract=CONTRACT) for _ in range(CONVERSATION_COUNT)]
        self.sent: dict[UUID, int] = dict.fromkeys(handles, 0)
        self.arrived: dict[UUID, int] = {}  # next number, by the target's handle
        self.answered: dict[UUID, int] = dict.fromkeys(handles, 0)
        self.problems: list[BaseException] = []
        self._enough, self._over = threading.Event(), threading.Event()
        works = self._send, self._answer, self._collect
        self._threads = [threading.Thread(target=self._record_problems, args=(work,)) for work in works]

    def __enter__(self) -> Flow:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._enough.set()
        self._threads[0].join()
        try:
            if kind is None:
                self.moves(until=lambda: self.answered == self.sent)
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()
        if self.problems:
            raise self.problems[0]
        assert kind is not None or sorted(self.arrived.values()) == sorted(self.sent.values())

    @property
    def answered_total(self) -> int:
        return sum(self.answered.values())

    def moves(self, until: Callable[[], bool] | None = None) -> None:
        """Wait until more messages were answered, or until `until` is true. Without progress the test fails."""
        seen, at = self.answered_total, time.monotonic()
        target = until or (lambda first=seen: self.answered_total > first + CONVERSATION_COUNT)
        while not target() and not self.problems:
            assert time.monotonic() - at < TIMEOUT_S, f"nothing moves: {self.sent} {self.arrived} {self.answered}"
            if self.answered_total != seen:
                seen, at = self.answered_total, time.monotonic()
            time.sleep(0.05)

    def _record_problems(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self.problems.append(problem)

    def _send(self) -> None:
        while not self._enough.is_set() and not self.problems:
            handle = self.rng.choice(list(self.sent))
            first, count = self.sent[handle], self.rng.randint(1, 40)
            self.west.send_batch(handle, ORDER, [make_body(number) for number in range(first, first + count)])
            self.sent[handle] += count
            while sum(self.sent.values()) - self.answered_total > UNDER_WAY and not self._enough.is_set():
                time.sleep(0.01)

    def _answer(self) -> None:
        while not self._over.is_set():
            with self.east.transaction() as transaction:
                messages = transaction.receive(STOCK_QUEUE, top=500, wait=0.2)
                self._check(messages, self.arrived, make_body)
                for handle in {message.conversation_handle for message in messages}:
                    numbers = [m.message_sequence_number for m in messages if m.conversation_handle == handle]
                    transaction.send_batch(handle, REPLY, [b"%d" % number for number in numbers])

    def _collect(self) -> None:
        while not self._over.is_set():
            self._check(self.west.receive(ORDERS_QUEUE, top=500, wait=0.2), self.answered, lambda n: b"%d" % n)

    def _check(self, messages: list[sb.Message], counts: dict[UUID, int], expected: Callable[[int], bytes]) -> None:
        for message in messages:
            number = counts.get(message.conversation_handle, 0)
            assert message.message_sequence_number == number
            assert message.message_body == expected(number)
            counts[message.conversation_handle] = number + 1


def check_settled(*brokers: Broker) -> None:
    for broker in brokers:
        eventually(lambda broker=broker: waiting_messages(broker.database) == 0)
        assert query(broker.database, "select count(*) from servicebroker.arrived_fragments") == [(0,)]
        securities = query(broker.database, "select distinct security::text from servicebroker.conversation_endpoints")
        assert securities == [("F",)]


def check_status_and_doctor(broker: Broker) -> None:
    """Check that status lists the processes, and that doctor reports those that were replaced repeatedly."""
    killed = broker.daemons[0].count("another one takes its place")
    pids = [broker.daemons[0].process.pid, *broker.children]

    def read_processes() -> list[dict[str, Any]]:
        listed_processes: list[dict[str, Any]] = json.loads(
            run_command("status", "--instance", broker.url, "--json").stdout
        )["processes"]
        return listed_processes

    eventually(lambda: sorted(process["process_id"] for process in read_processes()) == sorted(pids))
    listed_processes = read_processes()
    assert [process["number"] for process in listed_processes] == [1, 2, 3]
    assert sum(process["replaced"] for process in listed_processes) == killed
    assert all(process["memory"] > 10_000_000 for process in listed_processes)
    served = run_command("status", "--instance", broker.url, env=os.environ | {"COLUMNS": "200"}).stdout
    assert f"Served by {PROCESS_COUNT} processes: {pids[0]} (" in served
    report = run_command("doctor", "--instance", broker.url).stdout
    for process in listed_processes:
        often = f"Process {process['number']} of 3 was replaced {process['replaced']} times, lately "
        assert (often in report) == (process["replaced"] >= 3)


@pytest.mark.feature(127, 140)
def test_one_of_several_processes_is_killed(
    brokers: tuple[Broker, Broker], seeded_random: random.Random, request: pytest.FixtureRequest
) -> None:
    kills: int = request.config.option.process_kills
    with Flow(*brokers, seeded_random) as flow:
        flow.moves()
        for _ in range(kills):
            broker = seeded_random.choice(brokers)
            before = broker.children
            killed = seeded_random.choice(before)
            others = {*before} - {killed}
            os.kill(killed, signal.SIGKILL)
            eventually(lambda: others < {*broker.children} - {killed})  # noqa: B023
            flow.moves()
    check_settled(*brokers)
    assert (
        sum(broker.daemons[0].count("was killed (SIGKILL): another one takes its place") for broker in brokers) == kills
    )
    for broker in brokers:
        check_status_and_doctor(broker)
    for broker in brokers:  # a stopped daemon ends all of its processes
        before = broker.children
        assert broker.daemons[0].end() == 0
        assert are_gone(before)
        assert not broker.daemons[0].has_logged("Traceback")
        assert not broker.daemons[0].has_logged("database was lost")


@pytest.mark.feature(127, 140)
def test_a_second_daemon_takes_over(
    brokers: tuple[Broker, Broker], seeded_random: random.Random, request: pytest.FixtureRequest
) -> None:
    takeovers: int = request.config.option.takeovers
    with Flow(*brokers, seeded_random) as flow:
        flow.moves()
        for number in range(takeovers):
            broker = brokers[number % 2]
            second = broker.start()
            second.wait_for_log("this one stands by")
            orphans = broker.children
            broker.daemons[0].process.kill()
            eventually(lambda: are_gone(orphans))  # noqa: B023
            broker.daemons.pop(0).kill()
            second.wait_for_log("This process serves the instance.")
            flow.moves()
    check_settled(*brokers)
