"""The programs of an instance, run by the interpreter with the package of one version: `application.py ROLE URL ...`.

Roles: `make URL SERVICE ADDRESS BROKER`, `send URL COUNT`, `answer URL`. The last two end when standard input ends.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import servicebroker as sb

DATABASE, CONTRACT = "Upgraded", "//upgraded/Contract"
QUESTION, ANSWER = "//upgraded/Question", "//upgraded/Answer"
WEST, EAST = "//upgraded/West", "//upgraded/East"
CONVERSATION_COUNT = 10
MAX_TAKEN = 20  # messages of one transaction at most
PAUSE_S = 0.02  # the pause between the sender's transactions, so that each upgrade falls into the exchange


def make(url: str, service: str, far_service: str, address: str) -> None:
    """Make the instance of one side, with a route to the other, and the tables of its program."""
    with sb.open(url, upkeep=None) as instance:
        database = instance.database(DATABASE, create=True)
        database.create_message_type(QUESTION)
        database.create_message_type(ANSWER)
        database.create_contract(CONTRACT, {QUESTION: "INITIATOR", ANSWER: "TARGET"})
        database.create_queue("Messages")
        database.create_service(service, "Messages", [CONTRACT])
        database.create_route("Far", service_name=far_service, address=address)
        database.grant("SEND", "public", service=service)
        with instance.connection() as connection:
            for table in ("sent", "taken"):
                connection.execute(
                    f"create table public.{table} (place bigserial, conversation text, number int)".encode()
                )
            connection.execute("create table public.conversations (handle uuid primary key)")


def send(url: str, count: int, over: threading.Event) -> None:
    """Send messages of each conversation, and note answers, until so many of each were sent and all is over."""
    with sb.open(url) as instance:
        database = instance.database(DATABASE)
        handles = _conversations(database)
        while not over.is_set():
            with database.transaction() as transaction:
                counts = "select conversation, count(*)::int from public.sent group by conversation"
                sent: dict[str, int] = dict(transaction.connection.execute(counts).fetchall())
                for handle in handles:
                    number = sent.get(str(handle), 0)
                    if number < count:
                        transaction.send(handle, QUESTION, b"%d" % number)
                        _note(transaction, "sent", handle, number)
            for _ in handles:
                with database.transaction() as transaction:
                    for message in transaction.receive("Messages", top=MAX_TAKEN):
                        _note(transaction, "taken", message.conversation_handle, int(message.message_body or b"-1"))
            over.wait(PAUSE_S)


def answer(url: str, over: threading.Event) -> None:
    """Note each message, and answer it with its number."""
    with sb.open(url) as instance:
        database = instance.database(DATABASE)
        while not over.is_set():
            with database.transaction() as transaction:
                for message in transaction.receive("Messages", top=MAX_TAKEN, wait=0.2):
                    _note(transaction, "taken", message.conversation_handle, int(message.message_body or b"-1"))
                    transaction.send(message.conversation_handle, ANSWER, message.message_body)


def _conversations(database: Any) -> list[Any]:
    """Return the conversations of the sender, which begin with its first start."""
    with database.transaction() as transaction:
        known = [
            handle for (handle,) in transaction.connection.execute("select handle from public.conversations").fetchall()
        ]
        for _ in range(CONVERSATION_COUNT - len(known)):
            handle = transaction.begin_dialog(WEST, EAST, contract=CONTRACT, encryption=False)
            transaction.connection.execute("insert into public.conversations values (%s)", (handle,))
            known.append(handle)
    return known


def _note(transaction: Any, table: str, handle: object, number: int) -> None:
    text = f"insert into public.{table} (conversation, number) values (%s, %s)"
    transaction.connection.execute(text.encode(), (str(handle), number))


def _wait_for_the_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def main(role: str, *arguments: str) -> None:
    """Run one role; it ends when standard input ends."""
    if role == "make":
        make(*arguments)
        return
    over = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(over,), daemon=True).start()
    if role == "send":
        send(arguments[0], int(arguments[1]), over)
    else:
        answer(arguments[0], over)


if __name__ == "__main__":
    main(*sys.argv[1:])
