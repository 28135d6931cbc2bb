"""An application of the chaos run, in a separate process: `python chaos_application.py west|east FOLDER CALM`.

West sends numbered orders and collects the replies, east receives and replies. Each records its work in a
table, in the same transaction. After the COMMIT it adds the same lines to a file beside CALM. After an error of the
broker or of PostgreSQL only the transaction is lost; the process keeps its open instance.

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
    "create table public.ledger (position bigint generated always as identity, action text, conversation text, "
    "number bigint)",
    "create table public.handles (conversation text, handle uuid)",
)


_log = logging.getLogger("application")


def over_and_over(work: Callable[[], None]) -> None:
    while True:
        try:
            work()
        except (sb.ServiceBrokerError, psycopg.Error) as problem:
            _log.warning("%s: %s", type(problem).__name__, problem)
        with suppress(OSError):  # under libfaketime, sleep() can fail with EINVAL near its end
            time.sleep(PAUSE_S)


def record(transaction: sb.Transaction, action: str, rows: list[tuple[str, int]]) -> None:
    transaction.connection.cursor().executemany(
        "insert into public.ledger (action, conversation, number) values (%s, %s, %s)", [(action, *row) for row in rows]
    )


class CommitLog:
    """Commits that PostgreSQL has confirmed, in a file outside of its data folder."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("ab", buffering=0)

    def add(self, action: str, rows: list[tuple[str, int]]) -> None:
        """Write all lines at once, so that a kill of this process leaves no partial line."""
        self._file.write("".join(f"{action} {conversation} {number}\n" for conversation, number in rows).encode())


def parse_body(message: sb.Message) -> tuple[str, int]:
    conversation, number, *_ = (message.message_body or b"").split()
    return conversation.decode(), int(number)


class West:
    """Sends on a few conversations that survive the process, because a table has their handles."""

    def __init__(self, database: sb.Database, commit_log: CommitLog, stop_file: Path) -> None:
        self.database, self.confirmed, self.stop_file, self.random = database, commit_log, stop_file, random.Random()

    def send(self) -> None:
        if self.stop_file.exists():
            return
        with self.database.transaction() as transaction:
            rows = transaction.connection.execute("select conversation, handle from public.handles").fetchall()
            conversations: list[tuple[str, UUID]] = [(row[0], row[1]) for row in rows]
            if len(conversations) < CONVERSATION_COUNT:
                handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
                transaction.connection.execute("insert into public.handles values (%s, %s)", (str(handle), handle))
                conversations.append((str(handle), handle))
            conversation, handle = self.random.choice(conversations)
            next_number_sql = (
                "select coalesce(max(number) + 1, 0) from public.ledger where action = 'sent' and conversation = %s"
            )
            ((first,),) = transaction.connection.execute(next_number_sql, (conversation,)).fetchall()
            numbers = range(first, first + self.random.randint(1, BATCH_MESSAGES))
            transaction.send_batch(handle, ORDER, [b"%b %d" % (conversation.encode(), number) for number in numbers])
            sent = [(conversation, number) for number in numbers]
            record(transaction, "sent", sent)
            if self.random.random() < 0.05:
                raise sb.InstanceError("rolled back on purpose")
        self.confirmed.add("sent", sent)

    def collect(self) -> None:
        with self.database.transaction() as transaction:
            messages = transaction.receive(ORDERS_QUEUE, top=500, wait=1)
            replies = [parse_body(message) for message in messages if message.message_type_name == REPLY]
            record(transaction, "answered", replies)
            others = [message for message in messages if message.message_type_name != REPLY]
            record(transaction, "error", [(str(message.message_body), 0) for message in others])
        self.confirmed.add("answered", replies)


class East:
    """Answers every order with its own number."""

    def __init__(self, database: sb.Database, commit_log: CommitLog) -> None:
        self.database, self.confirmed = database, commit_log

    def answer(self) -> None:
        with self.database.transaction() as transaction:
            messages = transaction.receive(STOCK_QUEUE, top=500, wait=1)
            orders = [message for message in messages if message.message_type_name == ORDER]
            received = [parse_body(message) for message in orders]
            record(transaction, "received", received)
            for handle in dict.fromkeys(message.conversation_handle for message in orders):
                mine = [message.message_body or b"" for message in orders if message.conversation_handle == handle]
                transaction.send_batch(handle, REPLY, mine)
            others = [message for message in messages if message.message_type_name != ORDER]
            record(transaction, "error", [(str(message.message_body), 0) for message in others])
        self.confirmed.add("received", received)


def main(side: str, folder: str, calm: str) -> None:
    with sb.open(folder) as instance:
        database = instance.database("Test")
        commit_log = CommitLog(Path(calm).with_name(f"{side}.confirmed"))
        if side == "west":
            west = West(database, commit_log, Path(calm))
            threading.Thread(target=over_and_over, args=(west.collect,), daemon=True).start()
            over_and_over(west.send)
        over_and_over(East(database, commit_log).answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
