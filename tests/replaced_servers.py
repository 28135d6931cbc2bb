"""Helpers for failover and restore tests: a replaceable server with its daemon, numbered messages, and a reader."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from typer.testing import CliRunner

import servicebroker as sb
from daemons import ServeProcess, Serving
from mirrored_servers import Server
from servicebroker.cli import main
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    errors,
    eventually,
    query,
    standard_database,
    waiting_messages,
)

CONVERSATION_COUNT = 4
TIMEOUT_S = 60.0  # usually one or two seconds


class ReplacedSide(Serving):
    """A server that a test replaces by its standby or by a restored backup, and the daemon on its host."""

    def __init__(self, folder: Path, keys: Path) -> None:
        super().__init__()
        self.server, self.keys = Server(folder), keys

    def make_service(self, peer: str) -> str:
        """Create an instance with the target service of the numbered messages, and a route to `peer`.

        Returns the broker identifier.
        """
        with sb.open(self.server.url, upkeep=None) as instance:
            database = standard_database(instance)
            database.drop_service(ORDERS)
            database.grant("SEND", "public", service=STOCK)
            database.create_route("ToOrders", service_name=ORDERS, address=peer)
            with instance.connection() as connection:
                connection.execute("create table taken (place bigserial, conversation uuid, number int)")
            text = "select service_broker_guid::text from sys.databases where broker_database = 'Test'"
            ((broker,),) = query(database, text)
            return str(broker)

    def stored_numbers(self) -> list[list[int]]:
        """Return the numbers that the application has stored, in order, for each conversation."""
        text = "select array_agg(number order by place) from taken group by conversation"
        return [numbers for (numbers,) in self.rows(text)]

    def is_settled(self, peer: sb.Database) -> bool:
        """Check whether no message waits for transmission, here or at the peer."""
        waiting = self.rows("select count(*) from servicebroker.transmission_queue")
        return waiting == [(0,)] and waiting_messages(peer) == 0

    def serve(self) -> None:
        self.daemons.append(
            ServeProcess(self.server.url, self.keys, "--listen", f"127.0.0.1:{self.port}", "--encryption", "DISABLED")
        )

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            return connection.execute(text).fetchall()  # type: ignore[call-overload, no-any-return]

    def close(self) -> None:
        super().close()
        self.server.close()


class Reader:
    """An application on the principal's server: it stores each message, answers it, and follows a failover."""

    def __init__(self, half: ReplacedSide) -> None:
        self.half = half
        self.over = threading.Event()
        self.problems: list[BaseException] = []
        self.errors: list[int] = []  # codes of Error messages
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self.over.set()
        self._thread.join(TIMEOUT_S)
        assert self.problems == []

    def _run(self) -> None:
        try:
            while not self.over.is_set():
                try:
                    self._read(self.half)
                except (psycopg.Error, sb.InstanceError):  # the server was stopped or replaced
                    self.over.wait(0.1)
        except BaseException as problem:
            self.problems.append(problem)

    def _read(self, half: ReplacedSide) -> None:
        with sb.open(half.server.url, upkeep=None) as instance:
            database = instance.database("Test")
            while half is self.half and not self.over.is_set():
                with database.transaction() as transaction:
                    messages = transaction.receive(STOCK_QUEUE, top=40, wait=0.2)
                    self.errors += errors(messages)
                    for message in messages:
                        if message.is_error:
                            continue
                        assert message.message_body is not None
                        transaction.connection.execute(
                            "insert into taken (conversation, number) values (%s, %s)",
                            (message.conversation_handle, int(message.message_body)),
                        )
                        transaction.send(message.conversation_handle, REPLY, message.message_body)


class Load:
    """Sends numbered messages on several conversations, and receives the answers."""

    def __init__(self, database: sb.Database) -> None:
        self.database = database
        self.handles = [
            database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(CONVERSATION_COUNT)
        ]
        self.answered: dict[UUID, list[int]] = {handle: [] for handle in self.handles}
        self.errors: dict[UUID, int] = {}  # code of the Error, by conversation
        self.sent = dict.fromkeys(self.handles, 0)

    def send(self, count: int, *handles: UUID) -> None:
        """Send `count` messages on each of these conversations, or on all, five in a transaction."""
        for first in range(0, count, 5):
            for handle in handles or self.handles:
                begins = self.sent[handle]
                self.sent[handle] += min(5, count - first)
                self.database.send_batch(handle, ORDER, [b"%d" % n for n in range(begins, self.sent[handle])])

    def answers(self) -> int:
        """Receive the answers that have arrived. Return the number of answers so far."""
        for message in self.database.receive(ORDERS_QUEUE, top=1000):
            assert message.message_body is not None
            if message.is_error:
                self.errors[message.conversation_handle] = sb.read_error(message.message_body)[0]
            else:
                self.answered[message.conversation_handle].append(int(message.message_body))
        return sum(map(len, self.answered.values()))

    def is_answered(self) -> bool:
        return self.answers() >= sum(self.sent.values())


def errors_of(database: sb.Database, queue: str) -> list[int]:
    """Receive the Error of each conversation, and return the codes."""
    codes: list[int] = []

    def have_all_come() -> bool:
        codes.extend(errors(database.receive(queue, top=1000)))
        return len(codes) >= CONVERSATION_COUNT

    eventually(have_all_come, TIMEOUT_S)
    return codes


def lost_at(url: str) -> list[str]:
    """Return doctor's findings about databases that have lost acknowledged messages."""
    result = CliRunner().invoke(main.app, ["doctor", "--json", "--instance", url])
    return [finding["problem"] for finding in json.loads(result.output)["findings"] if "old copy" in finding["problem"]]
