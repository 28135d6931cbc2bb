"""Routing and forwarding: a choice among many routes, and messages that pass a forwarder against those that do not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from importlib.metadata import version
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.routing import Address, Conversation, Route, RoutingTable, Site, classify
from servicebroker_lab.benchmarks.measured_system import BATCH_MESSAGES, Implementation, System, free_port, text_body
from servicebroker_lab.benchmarks.report import OURS
from servicebroker_lab.benchmarks.scenarios import BASELINE

MANY_ROUTES, FEW_ROUTES = 10_000, 10  # routes
CONVERSATION_COUNT = 16
MESSAGE_TIMEOUT_S = 60.0  # seconds without a message
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FROM, TO, CONTRACT, TYPE = "//bench/From", "//bench/To", "//bench/Network", "//bench/Body"


class Choosing:
    """Which of so many routes a conversation takes; in memory, without a database."""

    def __init__(self, name: str, routes: int) -> None:
        self.name, self.version = name, version("servicebroker")
        self._routes = routes
        self._table = RoutingTable(
            Route(f"r{n}", f"//s/{n}", str(UUID(int=n)), None, f"TCP://host{n % 50}:4022") for n in range(routes)
        )
        self._pick = random.Random(1).randrange

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for the scenario `routing`, none for others."""
        implementation = Implementation("classify", f"{self._routes:,} routes", lambda messages: None, self._choose)
        return [implementation] if scenario == "routing" else []

    def close(self) -> None:
        """Do nothing: this system holds no resource."""

    def _choose(self, count: int) -> int:
        table, site, pick = self._table, Site({}, frozenset()), self._pick
        for number in range(count):
            classify(Conversation(f"//s/{number % self._routes}", None, "here"), table, table, site, NOW, pick)
        return count


class Passing:
    """Messages between two instances, straight or through a third one; each with its own process of the daemon.

    `size` is how many are sent in one transaction, and received in one; `daemons` are the processes.
    """

    def __init__(self, name: str, url: str, *, is_forwarded: bool, size: int = BATCH_MESSAGES) -> None:
        self.name, self.version = name, version("servicebroker")
        self._url = url
        self._is_forwarded = is_forwarded
        self.size = size
        self.daemons: list[int] = []
        self._open = ExitStack()
        self._west: Database | None = None
        self._east: Database | None = None
        self._handles: list[UUID] = []

    def implementations(self, scenario: str) -> list[Implementation]:
        """Return one implementation for the scenario `forwarding`, none for others."""
        settings = f"{'one forwarder' if self._is_forwarded else 'straight'}, {CONVERSATION_COUNT} conversations"
        implementation = Implementation("send, receive(top=1000)", settings, self._prepare, self._pass)
        return [implementation] if scenario == "forwarding" else []

    def close(self) -> None:
        """End the daemons, and drop what was made."""
        self._open.close()

    def _prepare(self, messages: int) -> None:
        if self._west is None:
            names = ["west", "middle", "east"] if self._is_forwarded else ["west", "east"]
            sites = [self._site(name) for name in names]
            self._west, self._east = sites[0][0], sites[-1][0]
            hops = [address for _, address in sites]
            self._west.create_route("To", service_name=TO, address=str(hops[1]))
            self._east.create_route("From", service_name=FROM, address=str(hops[-2]))
            if self._is_forwarded:
                msdb = sites[1][0].instance.database("msdb")
                msdb.create_route("To", service_name=TO, address=str(hops[2]))
                msdb.create_route("From", service_name=FROM, address=str(hops[0]))
            self._handles = [
                self._west.begin_dialog(FROM, TO, contract=CONTRACT, encryption=False)
                for _ in range(CONVERSATION_COUNT)
            ]
            for handle in self._handles:  # the connections are made, the conversations find their targets
                self._west.send(handle, TYPE, b"first")
            self._receive(CONVERSATION_COUNT)

    def _pass(self, messages: int) -> int:
        """Send so many messages, and wait until all have been received."""
        west, body = self._west, text_body().encode()
        assert west is not None
        for number, begin in enumerate(range(0, messages, self.size)):
            portion = [body] * min(self.size, messages - begin)
            west.send_batch(self._handles[number % CONVERSATION_COUNT], TYPE, portion)
        return self._receive(messages)

    def _receive(self, messages: int) -> int:
        east = self._east
        assert east is not None
        received, heard_at = 0, time.monotonic()
        while received < messages:
            message_count = len(east.receive("Queue", top=self.size, wait=1.0))
            received += message_count
            heard_at = time.monotonic() if message_count else heard_at
            if time.monotonic() > heard_at + MESSAGE_TIMEOUT_S:
                raise InstanceError(f"A benchmark is broken: {received:,} of {messages:,} messages have arrived.")
        return received

    def _site(self, name: str) -> tuple[Database, Address]:
        """Create a separate instance on the server, and start its daemon."""
        database_name = f"bench_{'forwarded' if self._is_forwarded else 'straight'}_{name}"
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(database_name)))
        url = make_conninfo(self._url, dbname=database_name)
        instance: Instance = self._open.enter_context(closing(open_instance(url)))
        port = free_port()
        instance.create_endpoint(
            "Broker",
            state="STARTED",
            listener_port=port,
            listener_ip="127.0.0.1",
            encryption="DISABLED",
            message_forwarding="ENABLED",
        )
        database = instance.database("Bench", create=True)
        database.create_message_type(TYPE)
        database.create_contract(CONTRACT, {TYPE: "INITIATOR"})
        database.create_queue("Queue")
        if name == "west":
            database.create_service(FROM, "Queue")
        elif name == "east":
            database.create_service(TO, "Queue", [CONTRACT])
            database.grant("SEND", "public", service=TO)
        command = [sys.executable, "-m", "servicebroker.cli.main", "serve", "--instance", url]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ)
        self.daemons.append(process.pid)
        self._open.callback(_end, process)
        return database, Address("127.0.0.1", port)


def network_systems(url: str) -> Sequence[System]:
    """Ours, and what it is compared with."""
    return [
        Choosing(OURS, MANY_ROUTES),
        Choosing(BASELINE, FEW_ROUTES),
        Passing(OURS, url, is_forwarded=True),
        Passing(BASELINE, url, is_forwarded=False),
    ]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()
