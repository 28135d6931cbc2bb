"""Programs with delays, schedules and idempotency keys are killed by SIGKILL; everything happens once.

With `--timed-speed` the clock of the programs runs faster: more times of the schedule, and longer delays.
"""

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
from datetime import UTC, datetime, timedelta

import servicebroker as sb

url, over, began, speed = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
stock = sb.Worker("StockQueue", poison=lambda failure: sb.Retry(0.05 * speed))
keys_at_once = 1 if speed == 1 else 20


def clock():  # the same time in each program
    return datetime.fromtimestamp(began + (time.time() - began) * speed, UTC)


@stock.on("//test/Order")
def order(tx, message):
    tx.connection.execute("insert into worked values (%s, %s)", (int(message.message_body), clock()))


@stock.every(timedelta(seconds=1), missed="all", name="tick")
def tick(tx, at: datetime):
    tx.connection.execute("insert into fired values (%s)", (at,))


def place(tx, key):
    names = {"contract": "//test/Contract", "idempotency_key": f"order {key}", "idempotency_ttl": 90 * 86_400}
    handle = tx.begin_dialog("//test/Orders", "//test/Stock", **names)
    if isinstance(handle, sb.RepeatedHandle):
        return
    delay = (0, 0.1 * speed, 0.4 * speed)[key % 3]
    tx.connection.execute("insert into sent values (%s, %s)", (key, clock() + timedelta(seconds=delay)))
    tx.send(handle, "//test/Order", str(key), delay=delay)


with sb.open(url, clock=None if speed == 1 else clock) as instance:
    database = instance.database("Test")
    with database.working(stock, concurrency=2):
        with instance.connection() as connection:  # a caller that does not know what it has done last
            first = max(0, connection.execute("select count(*) from sent").fetchall()[0][0] - 200)
        for start in itertools.count(first, keys_at_once):
            if os.path.exists(over):
                break
            with database.transaction() as tx:
                for key in range(start, start + keys_at_once):
                    place(tx, key)
            time.sleep(0.01)
        time.sleep(3600)
"""


@pytest.fixture
def start(
    tmp_path: Path, make_instance_url: Callable[..., str], pytestconfig: pytest.Config
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Return the URL of an instance and a function that starts a program on it."""
    url, program = make_instance_url(1), tmp_path / "program.py"
    program.write_text(PROGRAM)
    started: list[subprocess.Popen[bytes]] = []
    arguments = [url, str(tmp_path / "over"), str(time.time()), str(pytestconfig.option.timed_speed)]

    def begin_one() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            started.append(subprocess.Popen([sys.executable, str(program), *arguments], stderr=log))
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
    longest_pause_s = 0.2 if pytestconfig.option.timed_speed == 1 else 5  # or the programs would do little but start
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
            eventually(lambda before=before: count("worked") + count("fired") > before + 3, 300)  # type: ignore[misc]
            time.sleep(chance.uniform(0, longest_pause_s))
            victim = chance.randrange(2)
            assert programs[victim].poll() is None, (tmp_path / "log").read_text()
            programs[victim].kill()
            programs[victim].wait()
            programs[victim] = begin_one()
        (tmp_path / "over").touch()
        time.sleep(0.1)
        eventually(lambda: count("worked") >= count("sent"), 300)
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
