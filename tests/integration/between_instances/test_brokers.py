"""Two instances with daemons that are killed at random, and a bad network between them.

The number of relays, which are threads or processes, changes each second.
Every message and every reply must arrive exactly once and in order. `make soak` runs 200,000 of them.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from fault_proxy import FaultProxy
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    query,
    standard_database,
    waiting_messages,
)

CONVERSATION_COUNT = 8
BATCH_MESSAGES = 20
MAX_SHARES = 3  # upper limit
PROGRESS_TIMEOUT_S = 120.0  # seconds without any progress, while the network is calm


class Broker:
    """An instance and its daemon, which can be killed."""

    def __init__(self, url: str, *, in_processes: bool) -> None:
        self.url, self.in_processes = url, in_processes
        self.instance = sb.open(url, clock=lambda: datetime.now(UTC))
        self.database = standard_database(self.instance)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.start()

    def start(self) -> None:
        script = Path(__file__).parents[2] / "daemon_process.py"
        options = str(self.port), str(MAX_SHARES), str(int(self.in_processes))
        self.daemon = subprocess.Popen([sys.executable, str(script), self.url, *options])

    def kill(self) -> None:
        """Kill the daemon with SIGKILL, and start it again."""
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()
        self.start()

    def lose_database(self) -> None:
        """Terminate the daemon's sessions, as a restart of PostgreSQL does."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'servicebroker serve' and datname = current_database()"
            )

    def close(self) -> None:
        self.daemon.terminate()
        assert self.daemon.wait(20) == 0
        self.instance.close()


class Network:
    """Two brokers, and a proxy before each."""

    def __init__(self, west: Broker, east: Broker, rng: random.Random) -> None:
        self.west, self.east = west, east
        self.proxies = [FaultProxy(broker.port, rng) for broker in (west, east)]
        west.database.drop_service(STOCK)
        east.database.drop_service(ORDERS)
        west.database.create_route("r", service_name=STOCK, address=f"TCP://127.0.0.1:{self.proxies[1].port}")
        east.database.grant("SEND", "public", service=STOCK)
        east.database.create_route("r", service_name=ORDERS, address=f"TCP://127.0.0.1:{self.proxies[0].port}")

    def close(self) -> None:
        self.west.close()
        self.east.close()
        for proxy in self.proxies:
            proxy.close()


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.full)], ids=["threads", "processes"])
def network(
    make_instance_url: Callable[..., str], seeded_random: random.Random, request: pytest.FixtureRequest
) -> Iterator[Network]:
    brokers = [Broker(make_instance_url(1), in_processes=request.param) for _ in range(2)]
    both = Network(brokers[0], brokers[1], seeded_random)
    yield both
    both.close()


class Traffic:
    """Sends numbered messages on several conversations. Each is answered with its number, and both sides check all."""

    def __init__(self, network: Network, messages: int, rng: random.Random, seconds: float) -> None:
        self.network, self.rng = network, rng
        self.each = max(1, messages // CONVERSATION_COUNT)
        self.pause = seconds * BATCH_MESSAGES / (self.each * CONVERSATION_COUNT)
        self.handles = [
            network.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
            for _ in range(CONVERSATION_COUNT)
        ]
        self.sent: dict[UUID, int] = dict.fromkeys(self.handles, 0)
        self.arrived: dict[UUID, int] = {}  # next number, by the target's handle
        self.answered: dict[UUID, int] = dict.fromkeys(self.handles, 0)
        self.problems: list[BaseException] = []
        self.over = threading.Event()
        self.threads = [
            threading.Thread(target=self._record_problems, args=(work,))
            for work in (self._send, self._answer, self._collect)
        ]

    @property
    def progress(self) -> int:
        return sum(self.sent.values()) + sum(self.arrived.values()) + sum(self.answered.values())

    @property
    def is_done(self) -> bool:
        return bool(self.problems) or all(count == self.each for count in self.answered.values())

    def _record_problems(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self.problems.append(problem)

    def _send(self) -> None:
        database = self.network.west.database
        while not self.over.is_set() and (left := [h for h in self.handles if self.sent[h] < self.each]):
            handle = self.rng.choice(left)
            first = self.sent[handle]
            count = min(self.each - first, self.rng.randint(1, 2 * BATCH_MESSAGES))
            padding = b"x" * (100_000 if self.rng.random() < 0.02 else 100)
            database.send_batch(handle, ORDER, [b"%d " % n + padding for n in range(first, first + count)])
            self.sent[handle] += count
            time.sleep(self.pause)

    def _answer(self) -> None:
        database = self.network.east.database
        while not self.over.is_set():
            with database.transaction() as transaction:
                messages = transaction.receive(STOCK_QUEUE, top=500, wait=0.2)
                self._check(messages, self.arrived)
                for handle in {message.conversation_handle for message in messages}:
                    answers = [m.message_body.split()[0] for m in messages if m.conversation_handle == handle]
                    transaction.send_batch(handle, REPLY, answers)

    def _collect(self) -> None:
        while not self.over.is_set():
            self._check(self.network.west.database.receive(ORDERS_QUEUE, top=500, wait=0.2), self.answered)

    def _check(self, messages: list[Any], counts: dict[UUID, int]) -> None:
        for message in messages:
            expected = counts.get(message.conversation_handle, 0)
            number = int(message.message_body.split()[0])
            assert (number, message.message_sequence_number) == (expected, expected)
            counts[message.conversation_handle] = expected + 1

    def run(self, disturb: Callable[[], None], seconds: float) -> None:
        """Run until all messages have arrived. Faults happen for at most `seconds`."""
        for thread in self.threads:
            thread.start()
        calm_at, seen, at = time.monotonic() + seconds, 0, time.monotonic()
        while not self.is_done and time.monotonic() - at < PROGRESS_TIMEOUT_S:
            if time.monotonic() < calm_at:
                disturb()
            else:
                for proxy in self.network.proxies:
                    proxy.calm()
                time.sleep(0.1)
            if self.progress != seen or time.monotonic() < calm_at:
                seen, at = self.progress, time.monotonic()
        self.over.set()
        for thread in self.threads:
            thread.join()
        if self.problems:
            raise self.problems[0]
        assert self.is_done, f"nothing moves any more: {self.sent} {self.arrived} {self.answered}"
        assert sorted(self.arrived.values()) == [self.each] * CONVERSATION_COUNT


@pytest.mark.feature(127, 140)
def test_messages_arrive_exactly_once_and_in_order(
    network: Network, seeded_random: random.Random, request: pytest.FixtureRequest
) -> None:
    count: int = request.config.option.messages
    seconds = max(8.0, count / 1_000)
    traffic = Traffic(network, count, seeded_random, seconds * 0.8)
    for proxy in network.proxies:
        proxy.cut_rate, proxy.corrupt_rate, proxy.delay_rate = 0.01, 0.02, 0.05

    def disturb() -> None:
        broker = seeded_random.choice((network.west, network.east))
        proxy = seeded_random.choice(network.proxies)
        faults: list[Callable[[], None]] = [broker.kill, broker.lose_database, proxy.cut, lambda: proxy.stall(0.5)]
        seeded_random.choices(faults, (1, 1, 3, 2))[0]()
        time.sleep(seeded_random.random() * 1.5)

    traffic.run(disturb, seconds)
    for broker in (network.west, network.east):
        until = time.monotonic() + PROGRESS_TIMEOUT_S
        while waiting_messages(broker.database) and time.monotonic() < until:
            time.sleep(0.1)
        waiting = "select conversation_handle, message_sequence_number, transmission_status from sys.transmission_queue"
        assert query(broker.database, waiting) == []
        assert query(broker.database, "select count(*) from servicebroker.arrived_fragments") == [(0,)]
    assert sum(proxy.faults for proxy in network.proxies) > 5
