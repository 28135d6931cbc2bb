"""Servers that are replaced, with their daemons; numbered messages to them, and the reader who answers these."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from typer.testing import CliRunner

import servicebroker as sb
from daemons import Served, Serving
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
TIMEOUT_S = 60.0  # for what takes one or two


class Half(Serving):
    """A server that may be replaced, as one of two or by an earlier state, and the daemon on its host."""

    def __init__(self, folder: Path, keys: Path) -> None:
        super().__init__()
        self.server, self.keys = Server(folder), keys

    def make_service(self, peer: str) -> str:
        """Begin an instance with the target of numbered messages, for that address. Returns its broker identifier."""
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

    def taken(self) -> list[list[int]]:
        """Return the numbers that the application has noted, for each conversation in its order."""
        text = "select array_agg(number order by place) from taken group by conversation"
        return [numbers for (numbers,) in self.rows(text)]

    def is_settled(self, peer: sb.Database) -> bool:
        """Return whether nothing waits here, nor at the peer."""
        waiting = self.rows("select count(*) from servicebroker.transmission_queue")
        return waiting == [(0,)] and waiting_messages(peer) == 0

    def serve(self) -> None:
        self.daemons.append(
            Served(self.server.url, self.keys, "--listen", f"127.0.0.1:{self.port}", "--encryption", "DISABLED")
        )

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            return connection.execute(text).fetchall()  # type: ignore[call-overload, no-any-return]

    def close(self) -> None:
        super().close()
        self.server.close()


class Reader:
    """An application beside the principal: it notes each message, answers it, and moves with the principal."""

    def __init__(self, half: Half) -> None:
        self.half = half
        self.over = threading.Event()
        self.problems: list[BaseException] = []
        self.errors: list[int] = []  # their codes
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
                except (psycopg.Error, sb.InstanceError):  # its server has gone
                    self.over.wait(0.1)
        except BaseException as problem:
            self.problems.append(problem)

    def _read(self, half: Half) -> None:
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
    """Numbered messages on some conversations, and their answers."""

    def __init__(self, database: sb.Database) -> None:
        self.database = database
        self.handles = [
            database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(CONVERSATION_COUNT)
        ]
        self.answered: dict[UUID, list[int]] = {handle: [] for handle in self.handles}
        self.errors: dict[UUID, int] = {}  # the code of each
        self.sent = dict.fromkeys(self.handles, 0)

    def send(self, count: int, *handles: UUID) -> None:
        """Send more messages of each of these conversations, or of all, five in a transaction."""
        for first in range(0, count, 5):
            for handle in handles or self.handles:
                begins = self.sent[handle]
                self.sent[handle] += min(5, count - first)
                self.database.send_batch(handle, ORDER, [b"%d" % n for n in range(begins, self.sent[handle])])

    def answers(self) -> int:
        """Take what has come; how many there were until now."""
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
    """Take the Error of each conversation, and return their codes."""
    found: list[int] = []

    def have_all_come() -> bool:
        found.extend(errors(database.receive(queue, top=1000)))
        return len(found) >= CONVERSATION_COUNT

    eventually(have_all_come, TIMEOUT_S)
    return found


def lost_at(url: str) -> list[str]:
    """Return doctor's findings about databases that have lost what was acknowledged."""
    done = CliRunner().invoke(main.app, ["doctor", "--json", "--instance", url])
    return [one["problem"] for one in json.loads(done.output)["findings"] if "old copy" in one["problem"]]
