"""Workers with many groups are killed while handlers fail at random: each message counts once, in order."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from forked import Command
from support import ORDER, STOCK_QUEUE, begin, eventually, query, queue_number

pytestmark = pytest.mark.slow

APP = """
import os, random
import servicebroker as sb

stock = sb.Worker("StockQueue", groups=50, poison=lambda failure: sb.Retry())

@stock.on("//test/Order")
def order(tx, message):
    tx.connection.execute(
        "insert into worked (handle, number, body) values (%s, %s, %s)",
        (message.conversation_handle, message.message_sequence_number, message.message_body),
    )
    chance = random.random()
    if chance < 0.03:
        raise ValueError("by chance")
    if chance < 0.04:
        tx.connection.execute("select 1/0")
    if chance < 0.045:
        tx.connection.execute("do $$ begin raise 'of a test' using errcode = '40P01'; end $$")
    if chance < 0.047:
        os._exit(9)
    tx.send(message.conversation_handle, "//test/Reply", message.message_body)
"""


@pytest.fixture
def start(tmp_path: Path, database: sb.Database) -> Iterator[Callable[[], Command]]:
    (tmp_path / "app.py").write_text(APP)
    environment = os.environ | {"SERVICEBROKER_INSTANCE": database.instance.url}
    started: list[Command] = []

    def begin_one() -> Command:
        with (tmp_path / "log").open("ab") as log:
            arguments = ("worker", "app:stock", "--database", database.name, "--concurrency", "2")
            started.append(Command(*arguments, cwd=tmp_path, stderr=log, env=environment, start_new_session=True))
        return started[-1]

    yield begin_one
    for each in started:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def test_the_ledger_is_exact(
    database: sb.Database, start: Callable[[], Command], pytestconfig: pytest.Config, record_property: Any
) -> None:
    rng = random.Random(pytestconfig.option.seed)
    with database.transaction() as transaction:
        transaction.connection.execute("create table worked (place serial, handle uuid, number bigint, body bytea)")
    message_count = f"select count(*) from servicebroker.queue_{queue_number(database, STOCK_QUEUE)}"
    handles: list[UUID] = []
    sent: dict[UUID, int] = {}

    def send_some() -> None:
        with database.transaction() as transaction:
            for _ in range(60):
                is_new = len(handles) < 20 or rng.random() < 0.5
                handle = begin(transaction) if is_new else rng.choice(handles)  # type: ignore[arg-type]
                if is_new:
                    handles.append(handle)
                transaction.send(handle, ORDER, b"%d" % sent.get(handle, 0))
                sent[handle] = sent.get(handle, 0) + 1

    workers: list[Command] = [start(), start()]

    def worked_on() -> int:
        """Return the number of processed messages. Start new workers for those that have died."""
        workers[:] = [worker if worker.poll() is None else start() for worker in workers]
        ((count,),) = query(database, "select count(*) from worked")
        return int(count)

    kills = 0
    while kills < pytestconfig.option.worker_kills:
        before = worked_on()
        send_some()
        eventually(lambda before=before: worked_on() > before)  # type: ignore[misc]
        time.sleep(rng.uniform(0, 0.1))
        victim = rng.choice(workers)
        if victim.poll() is None:
            os.killpg(victim.pid, signal.SIGKILL)
            victim.wait()
            kills += 1
    eventually(lambda: worked_on() and query(database, message_count) == [(0,)])
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    worked: dict[UUID, list[bytes]] = defaultdict(list)
    for handle, body in query(database, "select handle, body from worked order by place"):
        worked[handle].append(body)
    expected = sorted([b"%d" % number for number in range(count)] for count in sent.values())
    assert sorted(worked.values()) == expected
    assert database.set_aside_messages() == []
    record_property("killed", f"{kills} kills, {sum(sent.values())} messages on {len(sent)} conversations")
