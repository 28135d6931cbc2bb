"""A table of faults: the affected side, the repair, and the findings of `servicebroker doctor` during the fault.

Two instances have a PostgreSQL server, a daemon and an application each. The network between the daemons loses data.
The applications write ledgers, which the test compares at the end. `docs/reliability.md` has the table for users.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

import servicebroker as sb
from chaos_application import LEDGER
from daemons import free_port
from fault_proxy import FaultProxy
from servicebroker.store.cluster import Cluster, server_user
from servicebroker_lab.benchmarks.processes import resident_bytes
from support import ORDERS, STOCK, define_standard_set, eventually, query, queue_number

SETTLE_TIMEOUT_S = 120.0  # after the last fault, until all messages have arrived
DISK_MB = 500  # the size of the disk that becomes full
MAX_DAEMON_MB = 150  # the memory that a daemon may use
SOCKET_COUNT = 3_000
WORK = "//chaos/Work"
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)  # the package libfaketime


def _make_mount(folder: Path) -> None:
    """Create the folder, on a separate file system if the machine allows it."""
    folder.mkdir(mode=0o701)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=701", "tmpfs", str(folder)]
    with suppress(OSError):
        subprocess.run(command, capture_output=True, check=False)


class Side:
    """An instance in a folder, its daemon and its application."""

    def __init__(self, name: str, folder: Path, calm: Path) -> None:
        self.name, self.folder, self.calm = name, folder / name, calm
        self.port = free_port()
        self.trouble = folder / f"{name}.trouble"  # a command to the activated procedure, while the file exists
        self.environment: dict[str, str] = {}  # additional variables of processes that are started
        if name == "east":
            _make_mount(self.folder)
        self.instance = sb.open(self.folder)
        self.database = define_standard_set(self.instance.database("Test", create=True))
        self.database.create_queue("Work", activation=sb.Activation("usp_Chaos", 2, "OWNER"))
        self.database.create_service(WORK, "Work", [sb.DEFAULT])
        self.work = f"servicebroker.queue_{queue_number(self.database, 'Work')}"
        self.instance.create_endpoint(
            "broker", state="STARTED", listener_port=self.port, listener_ip="127.0.0.1", encryption="DISABLED"
        )
        with self.instance.connection() as connection:
            for text in LEDGER:
                connection.execute(text)
        self.log = (folder / f"{name}.log").open("wb")

    def start(self) -> None:
        self.start_daemon()
        self.start_application()

    def start_daemon(self) -> None:
        self.daemon = self.serve()

    def serve(self) -> subprocess.Popen[bytes]:
        procedures = str(Path(__file__).parent / "chaos_procedures.py")
        command = ("-m", "servicebroker.cli.main", "serve", "--instance", str(self.folder))
        return self._process(*command, "--procedures", procedures, "--activation-interval", "1")

    def start_application(self) -> None:
        script = Path(__file__).parent / "chaos_application.py"
        self.application = self._process(str(script), self.name, str(self.folder), str(self.calm))

    def _process(self, *arguments: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"CHAOS_TROUBLE": str(self.trouble)} | self.environment
        return subprocess.Popen([sys.executable, *arguments], stdout=self.log, stderr=self.log, env=environment)

    def server(self) -> int:
        """Return the process id of the PostgreSQL server."""
        return int((self.folder / "postgresql" / "postmaster.pid").read_text().split()[0])

    def restart_server(self) -> None:
        """Restart PostgreSQL in this process's environment, before another process that watches it does so."""
        with (self.folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            server = self.server()
            os.kill(server, signal.SIGQUIT)
            eventually(lambda: not Path(f"/proc/{server}/cwd").exists())
            Cluster(self.folder, server_user()).start()

    def ledger(self, action: str) -> list[tuple[str, int]]:
        """Return the entries of the application's ledger in order. Waits until PostgreSQL answers."""
        text = "select conversation, number from public.ledger where action = %s order by position"
        entries: list[tuple[str, int]] = []

        def read() -> None:
            with psycopg.connect(self.instance.url) as connection:
                entries.extend((row[0], row[1]) for row in connection.execute(text, (action,)).fetchall())

        eventually(lambda: _succeeds(read), SETTLE_TIMEOUT_S)
        return entries

    def confirmed(self, action: str) -> set[tuple[str, int]]:
        """Return the commits that PostgreSQL has confirmed to the application, from a file outside of the database."""
        rows = (line.split() for line in self.calm.with_name(f"{self.name}.confirmed").read_text().splitlines())
        return {(conversation, int(number)) for kind, conversation, number in rows if kind == action}

    def megabytes(self) -> int:
        """Return the memory of the daemon in megabytes."""
        return resident_bytes(self.daemon.pid) // 2**20

    def doctor(self) -> tuple[int, str]:
        """Run `servicebroker doctor`, and return its exit code and output."""
        command = [sys.executable, "-m", "servicebroker.cli.main", "doctor", "--instance", str(self.folder)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return result.returncode, result.stdout + result.stderr

    def close(self) -> None:
        for process in (self.application, self.daemon):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        self.instance.close()
        self.log.close()
        if self.folder.is_mount():
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


class World:
    """Two instances. West sends to east, through a proxy in each direction."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.rng, self.calm = rng, folder / "calm"
        self.west, self.east = (Side(name, folder, self.calm) for name in ("west", "east"))
        self.to_east, self.to_west = (FaultProxy(side.port, rng) for side in (self.east, self.west))
        self.west.database.drop_service(STOCK)
        self.east.database.drop_service(ORDERS)
        self.west.database.create_route("r", service_name=STOCK, address=f"TCP://127.0.0.1:{self.to_east.port}")
        self.east.database.create_route("r", service_name=ORDERS, address=f"TCP://127.0.0.1:{self.to_west.port}")
        self.east.database.grant("SEND", "public", service=STOCK)
        for side in (self.west, self.east):
            side.start()

    @property
    def either(self) -> Side:
        return self.rng.choice((self.west, self.east))

    @property
    def proxies(self) -> tuple[FaultProxy, FaultProxy]:
        return self.to_east, self.to_west

    def answer_count(self) -> int:
        return len(self.west.ledger("answered"))

    def goes_on(self) -> None:
        """Wait until a message that is sent after this call has been answered."""
        sent = len(self.west.ledger("sent"))
        eventually(lambda: self.answer_count() > sent, SETTLE_TIMEOUT_S)

    def describe(self) -> str:
        """Return the ends of the logs and the findings of doctor, for the message of a failed test."""
        return "\n".join(
            f"{side.name}: {side.doctor()[1]}" + "\n".join(Path(side.log.name).read_text().splitlines()[-20:])
            for side in (self.west, self.east)
        )

    def close(self) -> None:
        for side in (self.west, self.east):
            side.close()
        for proxy in self.proxies:
            proxy.close()


# ---------------------------------------------------------------- faults


def _kill(part: str, side_name: str = "either") -> Callable[[World], Any]:
    """Kill the `daemon` or `application` of a side, and start it again after the block."""

    @contextmanager
    def fault(world: World) -> Iterator[Side]:
        side: Side = getattr(world, side_name)
        process = getattr(side, part)
        process.kill()
        process.wait()
        try:
            yield side
        finally:
            getattr(side, f"start_{part}")()

    return fault


def _freeze(part: str, side_name: str = "either") -> Callable[[World], Any]:
    @contextmanager
    def fault(world: World) -> Iterator[Side]:
        side: Side = getattr(world, side_name)
        process = getattr(side, part)
        process.send_signal(signal.SIGSTOP)
        try:
            yield side
        finally:
            process.send_signal(signal.SIGCONT)

    return fault


@contextmanager
def _second_daemon(world: World) -> Iterator[Side]:
    """Kill the first of two daemons, so that the second one takes over."""
    side = world.either
    second = side.serve()
    try:
        time.sleep(1)
        side.daemon.kill()
        side.daemon.wait()
        yield side
    finally:
        side.daemon = second


@contextmanager
def _killed_server(world: World) -> Iterator[Side]:
    """Kill PostgreSQL. A process that has the instance open starts it again."""
    side = world.either
    os.kill(side.server(), signal.SIGKILL)
    yield side


@contextmanager
def _killed_server_beside_a_daemon(world: World) -> Iterator[Side]:
    """Kill PostgreSQL while only the daemon commits, so that no other commit flushes what it has acknowledged."""
    side = world.east
    side.application.send_signal(signal.SIGSTOP)
    try:
        for _ in range(3):
            time.sleep(1 + world.rng.random())
            with suppress(OSError):  # the process may not have been started again yet
                os.kill(side.server(), signal.SIGKILL)
        yield side
    finally:
        side.application.send_signal(signal.SIGCONT)


@contextmanager
def _restarted_server(world: World) -> Iterator[Side]:
    """Stop PostgreSQL immediately (SIGQUIT), so that it recovers at the next start."""
    side = world.either
    os.kill(side.server(), signal.SIGQUIT)
    yield side


def _administrators(side: Side, *statements: str) -> None:
    with psycopg.connect(side.instance.url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[call-overload]


ALL_SESSIONS = (
    "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and usename is not null"
)


@contextmanager
def _killed_backends(world: World) -> Iterator[Side]:
    side = world.either
    for _ in range(3):
        _administrators(side, ALL_SESSIONS)
        time.sleep(world.rng.random())
    yield side


@contextmanager
def _role_timeouts(world: World) -> Iterator[Side]:
    """Give the role short timeouts, which must not affect the broker."""
    side = world.either
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    _administrators(side, *(f"alter role current_user set {name} = '50ms'" for name in names), ALL_SESSIONS)
    try:
        yield side
    finally:
        eventually(
            lambda: _succeeds(lambda: _administrators(side, *(f"alter role current_user reset {n}" for n in names)))
        )


def _succeeds(work: Callable[[], None]) -> bool:
    try:
        work()
    except (psycopg.Error, sb.InstanceError):
        return False
    return True


@contextmanager
def _no_connections_left(world: World) -> Iterator[Side]:
    side = world.either
    with ExitStack() as connections:
        with suppress(psycopg.Error):
            while True:
                connections.enter_context(psycopg.connect(side.instance.url))
        yield side


def _bad_network(rate: str, value: float) -> Callable[[World], Any]:
    @contextmanager
    def fault(world: World) -> Iterator[Side]:
        for proxy in world.proxies:
            setattr(proxy, rate, value)
        try:
            yield world.west
        finally:
            for proxy in world.proxies:
                proxy.calm()

    return fault


@contextmanager
def _held_network(world: World) -> Iterator[Side]:
    for proxy in world.proxies:
        proxy.hold()
    try:
        yield world.west
    finally:
        for proxy in world.proxies:
            proxy.release()


@contextmanager
def _idle_sockets(world: World) -> Iterator[Side]:
    """Open many sockets to a daemon. One in ten sends garbage. The limit of open files may bound their number."""
    side = world.either
    with ExitStack() as streams:
        for number in range(SOCKET_COUNT):
            with suppress(OSError):
                stream = streams.enter_context(socket.create_connection(("127.0.0.1", side.port), timeout=5))
                if number % 10 == 0:
                    stream.sendall(world.rng.randbytes(1_000))
        yield side


@contextmanager
def _full_disk(world: World) -> Iterator[Side]:
    """Fill the disk of east's instance."""
    side = world.east
    filler = side.folder / "filler"
    with suppress(OSError), filler.open("wb") as file:
        while True:
            file.write(b"x" * 2**20)
    try:
        yield side
    finally:
        filler.unlink()


@contextmanager
def _clock_off(side: Side, rng: random.Random) -> Iterator[None]:
    """Start processes of this side with a clock that is an hour ahead, or behind."""
    assert FAKETIME is not None
    seconds = rng.choice((3_600, -3_600))
    side.environment = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{seconds:+}", "FAKETIME_DISABLE_SHM": "1"}
    side.environment |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
    try:
        yield
    finally:
        side.environment = {}


def _wrong_clock(part: str) -> Callable[[World], Any]:
    @contextmanager
    def fault(world: World) -> Iterator[Side]:
        side = world.either

        def start_again() -> None:
            process = getattr(side, part)
            process.kill()
            process.wait()
            getattr(side, f"start_{part}")()

        with _clock_off(side, world.rng):
            start_again()
        try:
            yield side
        finally:
            start_again()

    return fault


@contextmanager
def _wrong_clock_of_server(world: World) -> Iterator[Side]:
    side = world.either
    with _clock_off(side, world.rng), pytest.MonkeyPatch.context() as patch:
        for name, value in side.environment.items():
            patch.setenv(name, value)
        side.restart_server()
    try:
        yield side
    finally:
        side.restart_server()


def _give_work(database: sb.Database) -> None:
    with database.transaction() as transaction:
        handle = transaction.begin_dialog(WORK, WORK, encryption=False)
        transaction.send(handle, sb.DEFAULT, b"work")
        transaction.end_conversation(handle)


def _procedure(behavior: str) -> Callable[[World], Any]:
    """Make the activated procedure misbehave in this way. After the block it processes its message."""

    @contextmanager
    def fault(world: World) -> Iterator[Side]:
        side = world.either
        side.trouble.write_text(behavior)
        # the previous fault has terminated the sessions
        eventually(lambda: _succeeds(lambda: _give_work(side.database)))
        try:
            yield side
        finally:
            side.trouble.unlink()
            side.database.alter_queue("Work", status=True)
            eventually(lambda: not query(side.database, f"select from {side.work}"), SETTLE_TIMEOUT_S)

    return fault


class Scenario(NamedTuple):
    """A fault, and the pattern of doctor's output on the affected side meanwhile; "" without a finding."""

    name: str
    happens: Callable[[World], Any]
    doctor_pattern: str = ""
    lasts: float = 12.0  # in seconds


CLOCK_IS_OFF = "there is 3,[56].. s (ahead|behind)"

SCENARIOS = (
    Scenario("a daemon is killed", _kill("daemon"), "no servicebroker serve runs here"),
    Scenario("a daemon is frozen", _freeze("daemon"), "process that serves the instance .* has", 14),
    Scenario("a daemon is killed beside another one", _second_daemon),
    Scenario("an application that sends is killed", _kill("application", "west")),
    Scenario("an application that receives is killed", _kill("application", "east"), "Nobody receives", 14),
    Scenario("an application that sends is frozen", _freeze("application", "west")),
    Scenario(
        "an application that receives is frozen",
        _freeze("application", "east"),
        "Nobody receives|take.* nothing of|transaction .* has been open",
        65,
    ),
    Scenario("an activated procedure throws", _procedure("throws"), "Work: It is OFF", 20),
    Scenario("an activated procedure leaks", _procedure("leaks"), "Work: It is OFF", 20),
    Scenario("an activated procedure exits", _procedure("exits"), "Work: It is OFF", 20),
    Scenario("an activated procedure hangs", _procedure("hangs"), "transaction .* has been open", 65),
    Scenario("PostgreSQL is killed", _killed_server),
    Scenario("PostgreSQL is killed while only a daemon writes", _killed_server_beside_a_daemon),
    Scenario("PostgreSQL stops at once and recovers", _restarted_server),
    Scenario("all sessions are terminated, three times", _killed_backends),
    Scenario("the role gets short timeouts", _role_timeouts, "lock_timeout is 50 ms"),
    Scenario("no connection is left", _no_connections_left, "No connection is left|connections are in use"),
    Scenario("the network cuts", _bad_network("cut_rate", 0.05), "connection with it broke"),
    Scenario("the network changes bits", _bad_network("corrupt_rate", 0.02), "changed under way|broke"),
    Scenario("the network is slow", _bad_network("delay_rate", 0.3)),
    Scenario("the network holds everything", _held_network, "to it waits?,", 14),
    Scenario("3,000 sockets are idle or send garbage", _idle_sockets, "Refused here"),
    Scenario("the disk is full", _full_disk, "disk is full"),
    Scenario("the clock of a daemon is an hour off", _wrong_clock("daemon"), CLOCK_IS_OFF),
    Scenario("the clock of an application is an hour off", _wrong_clock("application"), CLOCK_IS_OFF),
    Scenario("the clock of PostgreSQL is an hour off", _wrong_clock_of_server, CLOCK_IS_OFF, 15),
)


def possible(world: World) -> list[Scenario]:
    """Return the scenarios that this machine allows: a full disk needs a disk of its own, wrong clocks need
    libfaketime.
    """
    return [
        scenario
        for scenario in SCENARIOS
        if (scenario.happens is not _full_disk or world.east.folder.is_mount())
        and (FAKETIME or "clock" not in scenario.name)
    ]


class Outcome(NamedTuple):
    """The effect of one fault: seconds until messages were answered again, and the MB of the larger daemon."""

    scenario: str
    side: str
    seconds: float
    megabytes: int


def run_scenario(world: World, scenario: Scenario, lasts: float | None = None) -> Outcome:
    """Run a fault for `lasts` seconds, and check that messages are answered again after it.

    By default the scenario decides how long, and doctor must report the fault.
    """
    with scenario.happens(world) as side:
        time.sleep(scenario.lasts if lasts is None else lasts)
        if lasts is None and scenario.doctor_pattern:
            code, output = side.doctor()
            is_reported = code == 1 and re.search(scenario.doctor_pattern, output)
            assert is_reported, f"{scenario.name} of {side.name}: doctor says {output}\n{world.describe()}"
    ended_at = time.monotonic()
    try:
        world.goes_on()
    except AssertionError:
        raise AssertionError(f"nothing goes on after {scenario.name} of {side.name}\n{world.describe()}") from None
    seconds = time.monotonic() - ended_at
    for side_of_world in (world.west, world.east):
        assert side_of_world.application.poll() is None, (
            f"{side_of_world.name}'s application has died of {scenario.name}: see its log"
        )
        assert side_of_world.daemon.poll() is None, (
            f"{side_of_world.name}'s daemon has died of {scenario.name}: see its log"
        )
        assert side_of_world.megabytes() < MAX_DAEMON_MB, (
            f"{side_of_world.name}'s daemon uses {side_of_world.megabytes()} MB"
        )
    return Outcome(scenario.name, side.name, seconds, max(world.west.megabytes(), world.east.megabytes()))


def judge(world: World) -> int:
    """Check that every order and reply was processed exactly once and in order, and that no conversation has failed.

    Returns the number of orders.
    """
    world.calm.touch()
    with suppress(AssertionError):  # lost messages are named below
        eventually(lambda: world.answer_count() >= len(world.west.ledger("sent")), SETTLE_TIMEOUT_S)
    time.sleep(1)  # a duplicate would arrive now
    errors = [*world.west.ledger("error"), *world.east.ledger("error")]
    assert not errors, f"conversations have failed: {errors[:5]}"
    for side, action in ((world.west, "sent"), (world.east, "received"), (world.west, "answered")):
        missing_commits = sorted(side.confirmed(action) - set(side.ledger(action)))
        assert not missing_commits, f"{action}, committed, and gone: {len(missing_commits)}, {missing_commits[:5]}"
    sent = world.west.ledger("sent")
    for side, action in ((world.east, "received"), (world.west, "answered")):
        entries = side.ledger(action)
        duplicates = [row for row, count in Counter(entries).items() if count > 1]
        assert not duplicates, f"{action} more than once: {duplicates[:5]}"
        assert set(entries) <= set(sent), f"{action}, and never sent: {sorted(set(entries) - set(sent))[:5]}"
        missing = sorted(set(sent) - set(entries))
        assert not missing, f"{action} never: {len(missing)}, {missing[:5]}\n{world.describe()}"
        last: dict[str, int] = {}
        for conversation, number in entries:
            assert number == last.get(conversation, -1) + 1, f"{action} out of order: {conversation} {number}"
            last[conversation] = number
    return len(sent)
