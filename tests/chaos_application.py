"""An application of the chaos run, in a separate process: `python chaos_application.py west|east FOLDER CALM`.

West sends numbered orders and collects the replies, east receives and replies. Each records its work in a
table, in the same transaction. After the COMMIT it adds the same lines to a file beside CALM. After an error of the
broker or of PostgreSQL only the transaction is lost: the process keeps its open instance.

CALM: a stop file. Once it exists, west sends nothing new.
"""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import psycopg

import servicebroker as sb
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE

CONVERSATION_COUNT = 6
BATCH_MESSAGES = 30
PAUSE_S = 0.05  # seconds between two attempts, also after an error

LEDGER = (
    "create table public.ledger (at bigint generated always as identity, way text, conversation text, number bigint)",
    "create table public.handles (conversation text, handle uuid)",
)


_log = logging.getLogger("application")


def over_and_over(work: Callable[[], None]) -> None:
    while True:
        try:
            work()
        except (sb.ServiceBrokerError, psycopg.Error) as problem:
            _log.warning("%s: %s", type(problem).__name__, problem)
        with suppress(OSError):  # libfaketime takes a very short remaining pause for an invalid one
            time.sleep(PAUSE_S)


def note(transaction: sb.Transaction, way: str, rows: list[tuple[str, int]]) -> None:
    transaction.connection.cursor().executemany(
        "insert into public.ledger (way, conversation, number) values (%s, %s, %s)", [(way, *row) for row in rows]
    )


class Confirmed:
    """Commits that PostgreSQL has confirmed, in a file outside of its data folder."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("ab", buffering=0)

    def add(self, way: str, rows: list[tuple[str, int]]) -> None:
        """Write all lines at once, so that a kill of this process leaves no partial line."""
        self._file.write("".join(f"{way} {conversation} {number}\n" for conversation, number in rows).encode())


def parsed(message: sb.Message) -> tuple[str, int]:
    conversation, number, *_ = (message.message_body or b"").split()
    return conversation.decode(), int(number)


class West:
    """Sends on a few conversations that survive the process, because a table has their handles."""

    def __init__(self, database: sb.Database, confirmed: Confirmed, calm: Path) -> None:
        self.database, self.confirmed, self.calm, self.chance = database, confirmed, calm, random.Random()

    def send(self) -> None:
        if self.calm.exists():
            return
        with self.database.transaction() as transaction:
            rows = transaction.connection.execute("select conversation, handle from public.handles").fetchall()
            known: list[tuple[str, UUID]] = [(row[0], row[1]) for row in rows]
            if len(known) < CONVERSATION_COUNT:
                handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
                transaction.connection.execute("insert into public.handles values (%s, %s)", (str(handle), handle))
                known.append((str(handle), handle))
            conversation, handle = self.chance.choice(known)
            asked = "select coalesce(max(number) + 1, 0) from public.ledger where way = 'sent' and conversation = %s"
            ((first,),) = transaction.connection.execute(asked, (conversation,)).fetchall()
            numbers = range(first, first + self.chance.randint(1, BATCH_MESSAGES))
            transaction.send_batch(handle, ORDER, [b"%b %d" % (conversation.encode(), number) for number in numbers])
            sent = [(conversation, number) for number in numbers]
            note(transaction, "sent", sent)
            if self.chance.random() < 0.05:
                raise sb.InstanceError("rolled back on purpose")
        self.confirmed.add("sent", sent)

    def collect(self) -> None:
        with self.database.transaction() as transaction:
            messages = transaction.receive(ORDERS_QUEUE, top=500, wait=1)
            answered = [parsed(message) for message in messages if message.message_type_name == REPLY]
            note(transaction, "answered", answered)
            others = [message for message in messages if message.message_type_name != REPLY]
            note(transaction, "error", [(str(message.message_body), 0) for message in others])
        self.confirmed.add("answered", answered)


class East:
    """Answers every order with its own number."""

    def __init__(self, database: sb.Database, confirmed: Confirmed) -> None:
        self.database, self.confirmed = database, confirmed

    def answer(self) -> None:
        with self.database.transaction() as transaction:
            messages = transaction.receive(STOCK_QUEUE, top=500, wait=1)
            orders = [message for message in messages if message.message_type_name == ORDER]
            received = [parsed(message) for message in orders]
            note(transaction, "received", received)
            for handle in dict.fromkeys(message.conversation_handle for message in orders):
                mine = [message.message_body or b"" for message in orders if message.conversation_handle == handle]
                transaction.send_batch(handle, REPLY, mine)
            others = [message for message in messages if message.message_type_name != ORDER]
            note(transaction, "error", [(str(message.message_body), 0) for message in others])
        self.confirmed.add("received", received)


def main(side: str, folder: str, calm: str) -> None:
    with sb.open(folder) as instance:
        database = instance.database("Test")
        confirmed = Confirmed(Path(calm).with_name(f"{side}.confirmed"))
        if side == "west":
            west = West(database, confirmed, Path(calm))
            threading.Thread(target=over_and_over, args=(west.collect,), daemon=True).start()
            over_and_over(west.send)
        over_and_over(East(database, confirmed).answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
