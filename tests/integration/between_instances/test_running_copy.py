"""A copy of an instance beside its original, under load: the copy receives no message for the original."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from daemons import ServeProcess, Two
from servicebroker.cli.main import app as command
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK, STOCK_QUEUE, eventually, standard_database

DIALOG_COUNT = 10


def answer(url: str, answered: list[bytes], stopped: threading.Event, say: bytes) -> None:
    """Answer every order of an instance, until `stopped` is set."""
    with sb.open(url, upkeep=None) as instance:
        database = standard_database(instance)
        while not stopped.is_set():
            with database.transaction() as transaction:
                for message in transaction.receive(STOCK_QUEUE, top=100, wait=0.2):
                    if message.message_type_name == ORDER:
                        transaction.send(message.conversation_handle, REPLY, say + (message.body or b""))
                        answered.append(message.body or b"")


def copy_of(url: str, make_url: Callable[..., str]) -> str:
    return make_url(psycopg.conninfo.conninfo_to_dict(url)["dbname"])


def test_a_copy_answers_no_message_of_the_original(
    two: Two, make_url: Callable[..., str], tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Copy an instance under load. The copy is refused, then adopted as a new instance and served.

    The original is restarted beside it, on the same port.
    """
    many = pytestconfig.getoption("--copied-messages")
    for site in (two.west, two.east):
        site.endpoint(encryption="DISABLED")
    two.west.serve()
    database = two.west.database
    handles = [database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False) for _ in range(DIALOG_COUNT)]
    sent = [b"%d" % number for number in range(many)]

    def send(part: int) -> None:
        for number in range(part * many // 4, (part + 1) * many // 4):
            database.send(handles[number % DIALOG_COUNT], ORDER, sent[number])

    send(0)
    two.east.instance.close()
    copy = copy_of(two.east.url, make_url)
    two.east.serve()
    refused = ServeProcess(copy, tmp_path / "copied", "--listen", f"127.0.0.1:{two.east.port}")
    refused.process.wait(30)
    assert refused.end() == 1
    assert refused.count("holds a copy of an instance")
    stopped = threading.Event()
    answered: dict[str, list[bytes]] = {two.east.url: [], copy: []}
    adopted = CliRunner().invoke(command, ["instance", "adopt", "--identifier", "new", "--instance", copy])
    assert adopted.exit_code == 0, adopted.output
    threads = [
        threading.Thread(target=answer, args=(url, found, stopped, b"original " if url != copy else b"copy "))
        for url, found in answered.items()
    ]
    beside = ServeProcess(copy, tmp_path / "copied")
    try:
        for thread in threads:
            thread.start()
        for part in (1, 2, 3):
            two.east.daemon.kill()
            send(part)
            two.east.serve()
        got: list[bytes] = []

        def all_answered() -> bool:
            while found := database.receive(ORDERS_QUEUE, top=1_000):
                got.extend(message.body or b"" for message in found)
            return len(got) >= many

        eventually(all_answered, 60 + many / 50)
    finally:
        stopped.set()
        for thread in threads:
            thread.join(30)
        beside.kill()
    assert sorted(got) == sorted(b"original " + text for text in sent)
    assert answered[copy] == []
