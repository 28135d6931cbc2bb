"""The speed of the dashboard's pages, and their cost for messages, on one embedded server.

    python tools/dashboard_price.py pages [QUEUES MESSAGES RATE ROUNDS]   p95 of each page under that load
    python tools/dashboard_price.py depth [MESSAGES]                      the overview of one queue of 5,000,000
    python tools/dashboard_price.py load [ROUNDS SECONDS]                 messages a second, watched and not, by turns

The pages come from `servicebroker dashboard` in a process of its own. Each is asked for when what it shows is no longer
fresh, so that it is looked up anew. Told is how long that took, and the processor time of the dashboard and of its
sessions of PostgreSQL, which is what counts where other programs run beside.
"""

from __future__ import annotations

import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from urllib.parse import urlencode
from uuid import UUID

import servicebroker as sb
from servicebroker.dashboard.snapshot_cache import FRESH_S
from servicebroker_lab.benchmarks.processes import processor_time

BODY = b"x" * 200
AT_ONCE = 100
LOAD_QUEUE = "dbo.Load"


def pages(queues: int = 1000, messages: int = 1_000_000, rate: int = 2000, rounds: int = 30) -> None:
    """Print the p95 of each page while so many messages a second come and go."""
    with filled(queues, messages) as (instance, handle), watched(instance, addresses(instance, handle)) as browser:
        with load(instance, rate) as moved:
            begun = time.monotonic()
            took = {page: asked(browser, page, rounds) for page in addresses(instance, handle)}
            passed = time.monotonic() - begun
        print(f"{queues:,} queues, {messages:,} messages, {moved[0] / passed:,.0f} messages a second beside")
        told(took)


def depth(messages: int = 5_000_000) -> None:
    """Print how long the overview takes with so many messages in one queue."""
    with filled(1, messages) as (instance, _), watched(instance, ["/"]) as browser:
        told({"/": asked(browser, "/", 30)})


def slowdown(rounds: int = 5, seconds: int = 20) -> None:
    """Print how many messages a second go through a queue, while somebody looks at the overview and not."""
    rates: dict[str, list[float]] = {"nobody looks": [], "somebody looks": []}
    with filled(100, 100_000) as (instance, _), watched(instance, ["/"]) as browser:
        for _, who in itertools.product(range(rounds), rates):
            gone = threading.Event()
            viewer = threading.Thread(target=look, args=(browser, gone))
            if who == "somebody looks":
                viewer.start()
            with load(instance, None) as moved:
                time.sleep(seconds)
                rates[who].append(moved[0] / seconds)
            gone.set()
            if viewer.is_alive():
                viewer.join()
    for who, found in rates.items():
        print(f"{who}: {statistics.median(found):,.0f} messages a second, from {min(found):,.0f} to {max(found):,.0f}")


@contextmanager
def filled(queues: int, messages: int) -> Iterator[tuple[sb.Instance, UUID]]:
    """An instance with so many messages in so many queues, and the queue of the load; a handle of the first queue."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        with sb.open(folder) as instance:
            database = instance.database("Shop", create=True)
            database.create_queue("Load")
            database.create_service("//load", "Load", ["DEFAULT"])
            handles = []
            for number in range(queues):
                database.create_queue(f"Queue{number}")
                database.create_service(f"//shop/{number}", f"Queue{number}", ["DEFAULT"])
                handle = database.begin_dialog("//load", f"//shop/{number}", encryption=False)
                for start in range(0, messages // queues, 10_000):
                    database.send_batch(handle, "DEFAULT", [BODY] * min(10_000, messages // queues - start))
                handles.append(handle)
            with instance.connection() as connection:
                connection.execute("vacuum analyze")
            yield instance, handles[0]


@contextmanager
def load(instance: sb.Instance, rate: int | None) -> Iterator[list[int]]:
    """Messages that come and go in a process of its own, so many a second or as many as can; how many have gone."""
    program = (
        "import sys, time, servicebroker as sb\n"
        "url, rate, body, at_once = sys.argv[1], float(sys.argv[2]), b'x' * 200, int(sys.argv[3])\n"
        "with sb.open(url, upkeep=None) as instance:\n"
        "    db = instance.database('Shop')\n"
        "    handle = db.begin_dialog('//load', '//load', encryption=False)\n"
        "    begun, sent = time.monotonic(), 0\n"
        "    while True:\n"
        "        db.send_batch(handle, 'DEFAULT', [body] * at_once)\n"
        "        taken = db.receive('Load', top=None)\n"
        "        sent += at_once\n"
        "        print(len(taken), flush=True)\n"
        "        time.sleep(max(0.0, begun + sent / rate - time.monotonic()))\n"
    )
    command = [sys.executable, "-c", program, instance.url, str(rate or "inf"), str(AT_ONCE)]
    process, moved = subprocess.Popen(command, stdout=subprocess.PIPE, text=True), [0]

    def count() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            moved[0] += int(line)

    counting = threading.Thread(target=count)
    assert process.stdout is not None
    process.stdout.readline()  # wait for its first line
    counting.start()
    try:
        yield moved
    finally:
        process.terminate()
        process.wait()
        counting.join()


class Browser:
    """Somebody who has signed in at an address; `pids` are the processes that serve it."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self.pids: set[int] = set()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        fields = urlencode({"token": token}).encode()
        self._opener.open(urllib.request.Request(f"{address}/login", fields, {"Origin": address})).read()

    def get(self, page: str) -> str:
        """The page."""
        return str(self._opener.open(self.address + page, timeout=60).read().decode())

    def spent(self) -> float:
        """Seconds of processor time that have served it."""
        return sum(processor_time(pid) for pid in self.pids)


@contextmanager
def watched(instance: sb.Instance, pages: list[str]) -> Iterator[Browser]:
    """A dashboard of the instance in a process of its own, and somebody who has looked at these pages."""
    others = sessions(instance)
    command = [sys.executable, "-m", "servicebroker.cli.main", "dashboard", "--port", "0", "--role", "act"]
    process = subprocess.Popen([*command, "--instance", instance.url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = ""
        while (found := re.search(r"(http://\S+)/login#(\S+)", said)) is None:
            said += process.stdout.readline()
        browser = Browser(found[1], found[2])
        for page in pages:
            browser.get(page)
        browser.pids = {process.pid} | (sessions(instance) - others)
        yield browser
    finally:
        process.terminate()
        process.wait()


def sessions(instance: sb.Instance) -> set[int]:
    """The processes of PostgreSQL that serve somebody."""
    with instance.connection() as connection:
        rows = connection.execute("select pid from pg_stat_activity where backend_type = 'client backend'").fetchall()
    return {pid for (pid,) in rows}


def look(browser: Browser, gone: threading.Event) -> None:
    """Look at the overview until one is gone, as a browser does that has it open."""
    while not gone.wait(1.0):
        browser.get("/")


def addresses(instance: sb.Instance, handle: UUID) -> list[str]:
    """Every page."""
    queue = urlencode({"database": "Shop", "queue": "dbo.Queue0"})
    busy = urlencode({"database": "Shop", "queue": LOAD_QUEUE})
    plain = ("queues", "conversations", "way", "dead-letters", "statements", "audit")
    with instance.connection() as connection:
        far = connection.execute(
            "select far_handle from servicebroker.conversation_endpoints where conversation_handle = %s", (handle,)
        ).fetchone()
    assert far is not None
    return [
        "/",
        *(f"/i/0/{page}" for page in plain),
        f"/i/0/queue?{queue}",
        f"/i/0/queue?{busy}",
        f"/i/0/queue?{queue}&text=nothing",
        f"/i/0/conversation?handle={far[0]}",
    ]


def asked(browser: Browser, page: str, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds and the processor seconds of the page for each round, each time looked up anew."""
    took = []
    for _ in range(rounds):
        time.sleep(FRESH_S + 0.05)
        begun, before = time.perf_counter(), browser.spent()
        browser.get(page)
        took.append((time.perf_counter() - begun, browser.spent() - before))
    return took


def told(took: dict[str, list[tuple[float, float]]]) -> None:
    """Print what each page has taken."""
    for page, times in took.items():
        wall, processor = (sorted(one) for one in zip(*times, strict=True))
        p95 = statistics.quantiles(wall, n=20, method="inclusive")[-1]
        said = f"{p95 * 1e3:6.0f} ms p95 {statistics.median(wall) * 1e3:6.0f} ms median"
        print(f"{said}, {statistics.mean(processor) * 1e3:6.1f} ms of the processor  {page}", flush=True)


if __name__ == "__main__":
    what: dict[str, Callable[..., None]] = {"pages": pages, "depth": depth, "load": slowdown}
    what[sys.argv[1]](*map(int, sys.argv[2:]))
