"""Programs with delays, schedules and idempotency keys are killed by SIGKILL; everything happens once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import servicebroker as sb
from support import eventually, query

pytestmark = pytest.mark.slow

PROGRAM = """
import itertools, os, sys, time
from datetime import datetime, timedelta

import servicebroker as sb

url, over = sys.argv[1:]
stock = sb.Worker("StockQueue", poison=lambda failure: sb.Retry(0.05))


@stock.on("//test/Order")
def order(tx, message):
    tx.connection.execute("insert into worked values (%s, clock_timestamp())", (int(message.message_body),))


@stock.every(timedelta(seconds=1), missed="all", name="tick")
def tick(tx, at: datetime):
    tx.connection.execute("insert into fired values (%s)", (at,))


with sb.open(url) as instance:
    database = instance.database("Test")
    with database.working(stock, concurrency=2):
        for key in itertools.count():  # from the first again, as a caller that does not know what it has done
            if os.path.exists(over):
                break
            with database.transaction() as tx:
                handle = tx.begin_dialog(
                    "//test/Orders", "//test/Stock", contract="//test/Contract", idempotency_key=f"order {key}"
                )
                if isinstance(handle, sb.RepeatedHandle):
                    continue
                delay = (0, 0.1, 0.4)[key % 3]
                due = "insert into sent values (%s, clock_timestamp() + make_interval(secs => %s))"
                tx.connection.execute(due, (key, delay))
                tx.send(handle, "//test/Order", str(key), delay=delay)
            time.sleep(0.01)
        time.sleep(3600)
"""


@pytest.fixture
def start(tmp_path: Path, make_instance_url: Callable[..., str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Return the URL of an instance and a function that starts a program on it."""
    url, program = make_instance_url(1), tmp_path / "program.py"
    program.write_text(PROGRAM)
    started: list[subprocess.Popen[bytes]] = []

    def begin_one() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            started.append(subprocess.Popen([sys.executable, program, url, tmp_path / "over"], stderr=log))
        return started[-1]

    yield url, begin_one
    for each in started:
        each.kill()
        each.wait()


def test_each_happens_once(
    tmp_path: Path,
    start: tuple[str, Callable[[], subprocess.Popen[bytes]]],
    pytestconfig: pytest.Config,
    record_property: Any,
) -> None:
    url, begin_one = start
    chance, kills = random.Random(pytestconfig.option.seed), pytestconfig.option.timed_kills
    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        with instance.connection() as connection:
            connection.execute("create table sent (key int, due timestamptz)")
            connection.execute("create table worked (key int, at timestamptz)")
            connection.execute("create table fired (at timestamptz)")

        def count(table: str) -> int:
            return int(query(database, f"select count(*) from {table}")[0][0])

        programs = [begin_one(), begin_one()]
        for _ in range(kills):
            before = count("worked") + count("fired")
            eventually(lambda before=before: count("worked") + count("fired") > before + 3)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.2))
            victim = chance.randrange(2)
            assert programs[victim].poll() is None, (tmp_path / "log").read_text()
            programs[victim].kill()
            programs[victim].wait()
            programs[victim] = begin_one()
        (tmp_path / "over").touch()
        time.sleep(0.1)
        eventually(lambda: count("worked") >= count("sent"))
        for program in programs:
            program.kill()
            program.wait()
        assert query(database, "select array_agg(key order by key) from worked") == [([*range(count("sent"))],)]
        assert query(database, "select * from worked join sent using (key) where at < due") == []
        fired = [at for (at,) in query(database, "select at from fired order by at")]
        assert {after - before for before, after in pairwise(fired)} <= {timedelta(seconds=1)}
        initiators = "servicebroker.conversation_endpoints where is_initiator"
        assert count(initiators) == count("sent") + 1  # the conversation of the schedule
        assert database.delayed_messages() == []
        record_property("killed", f"{kills} kills, {count('sent')} keys, {len(fired)} times of a schedule")
