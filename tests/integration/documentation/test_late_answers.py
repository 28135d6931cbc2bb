"""The pages with requests: answers arrive late, programs are killed, and no order is lost.

Each page runs in a process of its own as it is printed, but for its patience, which is a few milliseconds. A customer's
order counts when the page has said that it was taken. It is shipped exactly once, and nothing is set aside. When the
time of late answers has passed, no conversation is left on the side that has asked.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

import servicebroker as sb
from forked import Command
from servicebroker.api.maintenance import run_maintenance
from support import Clock, eventually, query, run_together

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "fastapi"
STORY = (ROOT / "docs" / "stories" / "applications.md").read_text()
OPEN_REQUESTS_SQL = "select from servicebroker.conversation_endpoints where is_initiator"
LATE = """
import asyncio, random, sys
import httpx2 as httpx
import shop

first, last, taken, seed = int(sys.argv[1]), int(sys.argv[2]), open(sys.argv[3], "a", buffering=1), sys.argv[4]
random = random.Random(seed)

async def slow(tx, message, handler=shop.stock._handlers["//shop/Order"].function):
    if random.random() < 0.2:
        await asyncio.sleep(random.uniform(0, 0.05))
    await handler(tx, message)

shop.stock._handlers["//shop/Order"].function = slow

async def customer(client, items):
    for item in items:
        shop.PATIENCE_S = random.choice([0.0, 0.001, 0.01, 0.05])
        said = (await client.post("/orders", params={"item": str(item)}))
        if said.status_code in (200, 202):
            taken.write(f"{item}\\n")
        for _ in range(random.randrange(3)):
            if said.status_code == 202:
                said = await client.get(f"/orders/{said.json()['order']}")
        if random.random() < 0.1:  # somebody leaves
            leaving = asyncio.create_task(client.post("/orders", params={"item": str(10**6 + item)}))
            await asyncio.sleep(random.uniform(0, 0.05))
            leaving.cancel()
            await asyncio.wait([leaving])

async def main():
    shop.KEPT_S = 5.0
    async with shop.lifespan(shop.app):
        transport = httpx.ASGITransport(shop.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as client:
            await asyncio.gather(*(customer(client, range(first + place, last, 8)) for place in range(8)))
        print("done", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.timeout(1500)
def test_no_order_of_the_fastapi_example_is_lost(
    make_instance_url: Callable[..., str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    url, wanted = make_instance_url(), request.config.option.late_requests
    (tmp_path / "late.py").write_text(LATE)
    taken = tmp_path / "taken"
    taken.touch()
    first, kills, portion = 0, 0, max(50, wanted // 20)

    def begin(first: int, last: int) -> subprocess.Popen[str]:
        arguments = (first, last, taken, seeded_random.random())
        return subprocess.Popen(
            [sys.executable, str(tmp_path / "late.py"), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"SERVICEBROKER_INSTANCE": url, "PYTHONPATH": str(FOLDER)},
        )

    def orders() -> list[int]:
        return [int(line) for line in taken.read_text().split()]

    while len(orders()) < wanted:
        process = begin(first, first + portion)
        before, enough = len(orders()), seeded_random.randrange(portion)
        eventually(lambda: len(orders()) - before >= enough or process.poll() is not None)  # noqa: B023 # called at once
        time.sleep(seeded_random.uniform(0, 0.05))
        assert process.poll() is None, "it goes on until it is killed"
        process.kill()
        process.communicate()
        first, kills = first + portion, kills + 1
    with begin(first, first) as process, sb.open(url, upkeep=0.5) as instance:  # the rest is processed or dropped
        try:
            db = instance.database("Shop")
            eventually(lambda: not query(db, "select from shop_dbo.stockqueue"))
            assert db.set_aside_messages() == []
            eventually(lambda: not query(db, OPEN_REQUESTS_SQL))
            shipped = sorted(int(item) for (item,) in query(db, "select item from shipments"))
        finally:
            process.kill()
    assert len(set(shipped)) == len(shipped), "exactly once"
    assert set(orders()) <= set(shipped)
    record_property("late answers", f"{len(orders())} orders taken, {len(shipped)} shipped, {kills} kills")


def file_of_page(name: str, language: str = "python") -> str:
    """Return a file of the story from its page."""
    match = re.search(rf"```{language}\n# {re.escape(name)}\n(.*?)```", STORY, re.DOTALL)
    assert match is not None
    return match[1]


@pytest.mark.timeout(1500)
def test_no_reservation_of_the_story_is_lost(
    make_instance_url: Callable[..., str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: Callable[[str, object], None],
) -> None:
    """`reserve.py` exits before or with its answer, and the worker of `stock.py` is killed repeatedly."""
    url, wanted, customers = make_instance_url(), request.config.option.late_programs, 4
    (tmp_path / "stock.py").write_text(file_of_page("stock.py"))
    program = (
        file_of_page("reserve.py").replace('"servicebroker-data"', "url, upkeep=None").replace("sys.argv[1]", "item")
    )
    assert "timeout=10" in program
    program = program.replace("timeout=10", "timeout=patience")
    taken: list[str] = []
    kills = 0

    def customer(first: int) -> None:
        mine = random.Random(seeded_random.random())
        for number in range(first, wanted, customers):
            patience = mine.choice([0.0, 0.001, 0.01, 0.1])
            exec(compile(program, "reserve.py", "exec"), {"url": url, "item": str(number), "patience": patience})
            taken.append(str(number))

    def worker() -> Command:
        arguments = ("worker", "stock", "--instance", url, "--database", "Shop", "--processes", "2")
        with (tmp_path / "log").open("ab") as log:
            return Command(*arguments, cwd=tmp_path, stderr=log, start_new_session=True)

    def killer() -> None:
        nonlocal kills
        while len(taken) < wanted:
            with worker() as process:
                time.sleep(seeded_random.uniform(1.5, 3))
                process.send_signal(signal.SIGKILL)
                process.wait(30)
            kills += 1

    clock = Clock()
    with sb.open(url, upkeep=None, clock=clock) as instance:
        db = instance.database("Shop", create=True)
        db.define(tomllib.loads(file_of_page("shop.toml", "toml")))
        with db.transaction() as tx:
            tx.connection.execute("create table stock (item text primary key, pieces int not null)")
            tx.connection.execute("insert into stock select n, 1 from generate_series(0, %s) n", (wanted - 1,))
        run_together(*(partial(customer, index) for index in range(customers)), killer, seconds=1200)
        with worker() as process:
            eventually(lambda: not query(db, "select from shop_dbo.stockqueue"))
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        assert db.set_aside_messages() == []
        assert query(db, "select item from stock where pieces <> 0") == []
        clock.jump(minutes=2)
        with instance.connection() as connection:
            run_maintenance(connection, clock())
        assert query(db, OPEN_REQUESTS_SQL) == []
    record_property("late answers", f"{wanted} reservations, {kills} kills")
