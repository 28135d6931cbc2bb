"""Instances that are served by processes of `servicebroker serve`."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import servicebroker as sb
from forked import Command
from servicebroker.cli.commands import certificate
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    STOCK,
    STOCK_QUEUE,
    Clock,
    bodies,
    eventually,
    query,
    standard_database,
    waiting_messages,
)


def free_port() -> int:
    """Return a free port for an endpoint."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class ServeProcess:
    """A process of `servicebroker serve`, and the lines of its log.

    Args:
        host: the network namespace in which the process runs.
        descriptors: the limit of its file descriptors.
    """

    def __init__(self, target: str, keys: Path, *arguments: str, host: str = "", descriptors: int = 0) -> None:
        words = ["serve", "--instance", target, "--json", "--keys", str(keys), *arguments]
        within = ["ip", "netns", "exec", host] if host else []
        if descriptors:
            within = ["sh", "-c", f'ulimit -n {descriptors} && exec "$0" "$@"']
        self.process: Command | subprocess.Popen[str] = (
            subprocess.Popen(
                [*within, sys.executable, "-m", "servicebroker.cli.main", *words], stderr=subprocess.PIPE, text=True
            )
            if within
            else Command(*words, stderr=subprocess.PIPE)
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line) if line.startswith("{") else {"message": line})

    def has_logged(self, words: str, **fields: str) -> bool:
        """Check whether a line of the log has these words and fields."""
        return any(
            words in line["message"] and all(value in line.get(name, "") for name, value in fields.items())
            for line in list(self.lines)
        )

    def count(self, words: str) -> int:
        """Return the number of lines of the log with these words."""
        return sum(words in line["message"] for line in list(self.lines))

    def wait_for_log(self, words: str, **fields: str) -> None:
        """Wait until a line of the log has these words and fields."""
        try:
            eventually(lambda: self.has_logged(words, **fields))
        except AssertionError:
            raise AssertionError(f"not in the log: {words} {fields}\n" + "\n".join(map(str, self.lines))) from None

    def end(self, number: int = signal.SIGTERM) -> int:
        """Stop the process with a signal, and return its exit code."""
        self.process.send_signal(number)
        return self._wait_for_end()

    def _wait_for_end(self) -> int:
        code = self.process.wait(20)
        self._reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def kill(self) -> None:
        """Kill the process at the end of a test."""
        self.process.kill()
        self._wait_for_end()


class Serving:
    """The daemons of an instance, which listen on one port, one after the other."""

    def __init__(self) -> None:
        self.port = free_port()
        self.daemons: list[ServeProcess] = []

    @property
    def address(self) -> str:
        return f"TCP://127.0.0.1:{self.port}"

    @property
    def daemon(self) -> ServeProcess:
        """The daemon that was started last."""
        return self.daemons[-1]

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.kill()


class Site(Serving):
    """An instance with the standard set, its keys and its daemons."""

    def __init__(self, name: str, url: str, folder: Path) -> None:
        super().__init__()
        self.name, self.url = name, url
        self.keys = folder / name
        self.instance = sb.open(url, clock=Clock(), upkeep=None)
        self.database = standard_database(self.instance)

    def serve(self, *arguments: str, **options: Any) -> ServeProcess:
        self.daemons.append(ServeProcess(self.url, self.keys, *arguments, **options))
        return self.daemon

    def endpoint(self, state: str = "STARTED", **clauses: Any) -> None:
        self.instance.create_endpoint(
            "broker", state=state, listener_port=self.port, listener_ip="127.0.0.1", **clauses
        )

    def certificate(self, *arguments: str) -> str:
        """Return the output of `servicebroker certificate ...`."""
        environment = {"SERVICEBROKER_INSTANCE": self.url, "SERVICEBROKER_KEYS": str(self.keys), "COLUMNS": "200"}
        # in this process, because another one costs half a second
        result = CliRunner().invoke(certificate.app, arguments, env=environment)
        assert result.exit_code == 0, result.exception
        return result.stdout

    def connections(self) -> list[tuple[Any, ...]]:
        text = (
            "select is_accept, state_desc, login_state_desc, encryption_algorithm_desc, principal_name "
            "from sys.dm_broker_connections"
        )
        return query(self.database, text)

    def status(self) -> str:
        """Return the reason why messages of the instance wait; '' if none waits."""
        text = "select transmission_status from sys.transmission_queue order by 1 desc limit 1"
        rows = query(self.database, text)
        return rows[0][0] if rows else ""

    def waits(self, reason: str) -> None:
        """Wait until messages of the instance wait for this reason."""
        try:
            eventually(lambda: reason in self.status())
        except AssertionError:
            log = "\n".join(map(str, self.daemon.lines))
            raise AssertionError(f"messages wait because {self.status()!r}, not {reason!r}\n{log}") from None

    def refusal_counts(self) -> dict[int, int]:
        return dict(query(self.database, "select number, refused from servicebroker.refused_connections"))

    def close(self) -> None:
        super().close()
        self.instance.close()


def wait_for(database: sb.Database, *texts: str, seconds: float = 120) -> list[sb.Message]:
    """Receive messages until exactly these have arrived, in this order."""
    messages: list[sb.Message] = []

    def has_all() -> bool:
        messages.extend(database.receive(STOCK_QUEUE, wait=1))
        return len(messages) >= len(texts)

    eventually(has_all, seconds)
    assert bodies(messages) == [text.encode() for text in texts]
    return messages


class Two:
    """Two instances. Services of `west` begin conversations with services of `east`."""

    def __init__(self, west: Site, east: Site) -> None:
        self.west, self.east = west, east
        west.database.drop_service(STOCK)
        east.database.drop_service(ORDERS)
        west.database.create_route("ToStock", service_name=STOCK, address=east.address)
        east.database.grant("SEND", "public", service=STOCK)
        east.database.create_route("ToOrders", service_name=ORDERS, address=west.address)

    def introduce(self, folder: Path, suffix: str = "") -> None:
        """Create a certificate for each instance, and import it into the other one."""
        for site, peer in ((self.west, self.east), (self.east, self.west)):
            file = str(folder / f"{site.name}{suffix}.pem")
            site.certificate("create", site.name + suffix)
            site.certificate("export", site.name + suffix, file)
            peer.certificate("import", site.name + suffix, file)

    def send(self, *texts: str, handle: Any = None) -> Any:
        database = self.west.database
        handle = handle or database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
        for text in texts:
            database.send(handle, ORDER, text)
        return handle

    def arrives(self, *texts: str, seconds: float = 30) -> list[sb.Message]:
        """Receive messages until exactly these have arrived, in this order, and all were acknowledged."""
        messages = wait_for(self.east.database, *texts, seconds=seconds)
        eventually(lambda: waiting_messages(self.west.database) == 0)
        return messages


@contextmanager
def two_sites(make_instance_url: Callable[..., str], folder: Path) -> Iterator[Two]:
    """Create two instances, and close them after the block."""
    west, east = (Site(name, make_instance_url(1), folder) for name in ("west", "east"))
    try:
        yield Two(west, east)
    finally:
        west.close()
        east.close()
