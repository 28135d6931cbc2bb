"""`python -m servicebroker_lab.upgrades OLD`: upgrade two instances while they exchange messages."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import psycopg
import typer

import servicebroker
from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.model.errors import InstanceError
from servicebroker.store.embedded import EmbeddedServer
from servicebroker_lab.upgrades import application
from servicebroker_lab.upgrades.application import CONVERSATION_COUNT, EAST, WEST

STEP_TIMEOUT_S = 300.0  # the time for a part of the exchange
POLL_INTERVAL_S = 0.1
PROCESS_TIMEOUT_S = 60.0  # the time for a process to end
PORT_RANGE = 20_000, 32_000  # the ports of daemons
LOG_CHARACTERS = 2_000  # the part of the log that is shown if the process of a side fails


def upgrades_command(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A checkout of the older version.")],
    messages: Annotated[int, typer.Option(help="Messages each way.")] = 10_000,
    as_json: JsonOption = False,
) -> None:
    """Upgrade two instances in turn while they exchange messages; exit code 1 unless all arrive once, in order."""
    source = old / "src"
    if not (source / "servicebroker").is_dir():
        raise typer.BadParameter(f"'{old}' is not a checkout of servicebroker")
    with (
        tempfile.TemporaryDirectory(prefix="servicebroker-upgrades-") as folder,
        EmbeddedServer.start(Path(folder, "data")) as server,
    ):
        urls = [_database(server.url, name) for name in ("west", "east")]
        result = run(urls, Path(folder), source.resolve(), messages // CONVERSATION_COUNT)
    if as_json:
        say_json(result)
    else:
        for name, value in result.items():
            say(f"{name}: {value}")
    if not result["is_exact"]:
        raise typer.Exit(1)


class Side:
    """An instance with its daemon and its program, both of one version at a time."""

    def __init__(self, name: str, url: str, folder: Path, source: Path, role: tuple[str, ...]) -> None:
        self.name, self.url, self.port, self._role = name, url, _free_port(), role
        self._source, self._log = source, folder / f"{name}.log"
        self._keys = folder / f"{name}-keys"
        self._processes: list[subprocess.Popen[str]] = []

    @property
    def address(self) -> str:
        """The address at which its daemon listens."""
        return f"TCP://127.0.0.1:{self.port}"

    def create_instance(self, service: str, far_service: str, address: str) -> None:
        """Create its instance, with a service and a route to the service at the address."""
        self._wait_for(self._start_process(application.__file__, "make", self.url, service, far_service, address))

    def start(self) -> None:
        """Start daemon and program, and wait until the daemon listens."""
        serve = ("-m", "servicebroker.cli.main", "serve", "--instance", self.url, "--keys", str(self._keys))
        listen = ("--listen", f"127.0.0.1:{self.port}", "--encryption", "DISABLED")
        role, *arguments = self._role
        self._processes = [
            self._start_process(*serve, *listen),
            self._start_process(application.__file__, role, self.url, *arguments),
        ]
        deadline = time.monotonic() + PROCESS_TIMEOUT_S
        while not _is_listened_to(self.port):
            self.check()
            if time.monotonic() > deadline:
                raise InstanceError(f"The daemon of {self.name} does not listen.")
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """End daemon and program, as an operator does."""
        daemon, program = self._processes
        assert program.stdin is not None
        program.stdin.close()
        self._wait_for(program)
        daemon.send_signal(signal.SIGTERM)
        self._wait_for(daemon)
        self._processes = []

    def upgrade(self, source: Path) -> None:
        """Stop daemon and program, upgrade the schema, and start again with another version."""
        self.stop()
        self._source = source
        self._wait_for(self._start_process("-m", "servicebroker.cli.main", "init", "--instance", self.url))
        self.start()

    def check(self) -> None:
        """Check that daemon and program run.

        Raises:
            InstanceError: one of them has ended.
        """
        if any(process.poll() is not None for process in self._processes):
            raise self._failure()

    def kill(self) -> None:
        """Leave no process behind."""
        for process in self._processes:
            process.kill()
            process.wait()

    def rows(self, text: str) -> list[tuple[object, ...]]:
        """Run a query in its database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(text.encode()).fetchall()

    def count(self, table: str) -> int:
        """Count the rows of a table that its program has written."""
        ((count,),) = self.rows(f"select count(*) from public.{table}")
        assert isinstance(count, int)
        return count

    def numbers(self, table: str) -> list[list[int]]:
        """Return the recorded numbers of each conversation, in the order of their rows."""
        rows = self.rows(f"select array_agg(number order by place) from public.{table} group by conversation")
        return [list(numbers) for (numbers,) in rows if isinstance(numbers, list)]

    def _start_process(self, *words: str) -> subprocess.Popen[str]:
        with self._log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, *words],
                env=os.environ | {"PYTHONPATH": str(self._source)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
            )

    def _wait_for(self, process: subprocess.Popen[str]) -> None:
        if process.wait(PROCESS_TIMEOUT_S):
            raise self._failure()
        if process.stdin is not None:
            process.stdin.close()

    def _failure(self) -> InstanceError:
        return InstanceError(f"A process of {self.name} has failed: {self._log.read_text()[-LOG_CHARACTERS:]}")


def run(urls: Sequence[str], folder: Path, old: Path, count: int) -> dict[str, object]:
    """Upgrade west after a third of the messages and east after two thirds.

    `urls` are of two empty databases, `old` is the folder of the older package, `count` the messages of a conversation.
    Returns the counts, the schema versions, the seconds, and `is_exact`.
    """
    new, began = Path(servicebroker.__file__).parents[1], time.monotonic()
    west = Side("west", urls[0], folder, old, ("send", str(count)))
    east = Side("east", urls[1], folder, old, ("answer",))
    total = count * CONVERSATION_COUNT
    try:
        west.create_instance(WEST, EAST, east.address)
        east.create_instance(EAST, WEST, west.address)
        before = west.rows("select max(number) from servicebroker.migrations")
        for side in (west, east):
            side.start()
        _wait(west, east, total // 3)
        west.upgrade(new)
        _wait(west, east, 2 * total // 3)
        east.upgrade(new)
        _wait(west, east, total)
        for side in (west, east):
            side.stop()
    finally:
        for side in (west, east):
            side.kill()
    whole = [list(range(count))] * CONVERSATION_COUNT
    numbers = {"sent": west.numbers("sent"), "taken": east.numbers("taken"), "answered": west.numbers("taken")}
    return {
        **{name: sum(map(len, lists)) for name, lists in numbers.items()},
        "waiting": [side.rows("select count(*) from servicebroker.transmission_queue")[0][0] for side in (west, east)],
        "schema_before": before[0][0],
        "schema_after": west.rows("select max(number) from servicebroker.migrations")[0][0],
        "seconds": round(time.monotonic() - began),
        "is_exact": all(lists == whole for lists in numbers.values()),
    }


def _database(server: str, name: str) -> str:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    return server.replace(":///servicebroker?", f":///{name}?")


def _free_port() -> int:
    """Return a free port below the dynamic range: an endpoint refuses dynamic ports, so port 0 does not help."""
    while True:
        port = random.SystemRandom().randrange(*PORT_RANGE)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _is_listened_to(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(west: Side, east: Side, answers: int) -> None:
    """Wait until west has received that many answers."""
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while west.count("taken") < answers:
        west.check()
        east.check()
        if time.monotonic() > deadline:
            raise InstanceError(f"West has not got {answers:,} answers in {STEP_TIMEOUT_S:.0f} s.")
        time.sleep(POLL_INTERVAL_S)
