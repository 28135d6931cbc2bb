"""Between two instances: two servers, two daemons, one that sends and one that reads and checks every message."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from uuid import UUID

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.open import open_instance
from servicebroker.benchmarks.aside import Aside, senders
from servicebroker.benchmarks.measure import Figures, Meter, figures, sample_elsewhere
from servicebroker.benchmarks.ports import free_port
from servicebroker.benchmarks.rabbitmq import Shovelled, find_server
from servicebroker.benchmarks.report import OURS, Line
from servicebroker.benchmarks.runner import NEEDS_EXTRA, with_ratios
from servicebroker.benchmarks.scenarios import BASELINE, RABBITMQ, REMOTE, Scenario
from servicebroker.model.errors import InstanceError

Progress = Callable[[str], None]

DATABASE = "Bench"
CONVERSATIONS = 16
BODY = b"x" * 200
TOP = 1_000  # messages of a RECEIVE
PATIENCE = 60.0  # seconds without a message
ORDER, CONTRACT, QUEUE = "//bench/Order", "//bench/Ordering", "Inbox"
SERVICES = ("//bench/West", "//bench/East")
PASSWORD = "of a benchmark"  # its data are deleted at the end
LATENCY, LARGE, REST = "latency", "large", "rest"  # instead of the messages of a SEND transaction
SECURED = "TLS and dialog security"
SETTLING, AT_REST = 10.0, 30.0  # seconds: for the last acknowledgements, and of doing nothing
TICKS = os.sysconf("SC_CLK_TCK")  # a second's, in /proc


class Pair:
    """Two instances with daemons of their own; secured by TLS and dialog security, or not at all."""

    def __init__(self, place: Path, *, is_secured: bool) -> None:
        self.is_secured = is_secured
        self._stack = ExitStack()
        try:
            self._open(place)
        except BaseException:
            self.close()
            raise

    def _open(self, place: Path) -> None:
        place.mkdir(mode=0o711)
        folders = [place / "west", place / "east"]
        instances = [self._stack.enter_context(open_instance(folder, upkeep=None)) for folder in folders]
        ports = [free_port() for _ in folders]
        self.west, self.east = (
            _define(instance, own, SERVICES[1 - own], ports[own], ports[1 - own], is_secured=self.is_secured)
            for own, instance in enumerate(instances)
        )
        self.url = self.east.instance.url
        if self.is_secured:
            self._introduce(place)
        self._handles = [
            self.west.begin_dialog(*SERVICES, contract=CONTRACT, encryption=self.is_secured)
            for _ in range(CONVERSATIONS)
        ]
        self._daemons = [self._serve(folder) for folder in folders]
        self._sender = self._stack.enter_context(closing(Aside(_sending, self.west.instance.url, self._handles)))
        self.carry(CONVERSATIONS, 1)  # every conversation has its target

    def _introduce(self, place: Path) -> None:
        """Certificates of the transport, and of the owners of the services, who are dbo."""
        both = ((self.west, self.east, "West"), (self.east, self.west, "East"))
        for database, other, name in both:
            database.instance.create_certificate(name)
            database.instance.backup_certificate(name, place / f"{name}.transport")
            other.instance.create_certificate(name, file=place / f"{name}.transport")
            database.create_master_key(PASSWORD)
            database.create_certificate(name)
            database.backup_certificate(name, place / name)
        for _, other, name in both:
            other.create_user(name)
            other.create_certificate(name + " of the other", file=place / name, authorization=name)
        self.west.create_remote_service_binding("There", to_service=SERVICES[1], user="East")
        self.east.grant("SEND", "West", service=SERVICES[1])

    def _serve(self, folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "servicebroker.cli.main", "serve", "--instance", str(folder)]
        log = self._stack.enter_context((folder.parent / f"{folder.name}.log").open("wb"))
        process = subprocess.Popen(command, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process

    def carry(self, messages: int, batch: int) -> int:
        """Send so many, so many in a transaction, and read them."""
        return self._sender.during(lambda: self._read(messages), messages, batch)

    def _read(self, messages: int) -> int:
        expected: defaultdict[UUID, int] | None = None
        read = 0
        while read < messages:
            found = self.east.receive(QUEUE, top=TOP, wait=PATIENCE)
            if not found:
                raise InstanceError(f"{messages - read:,} messages have not arrived in {PATIENCE:g} seconds.")
            expected = expected or defaultdict(int)
            handle, first = found[0].conversation_handle, found[0].message_sequence_number
            numbers = [message.message_sequence_number for message in found]
            if numbers != list(range(first, first + len(found))) or first < expected[handle]:
                raise InstanceError("Messages were lost, doubled or came out of order.")
            expected[handle] = first + len(found)
            read += len(found)
        return read

    def latencies(self, count: int) -> list[float]:
        """Seconds from before SEND to after RECEIVE, of single messages on an idle system."""
        found = []
        for number in range(count):
            begun = time.perf_counter()
            self.west.send(self._handles[number % CONVERSATIONS], ORDER, BODY)
            self._read(1)
            found.append(time.perf_counter() - begun)
        return found

    def latencies_beside_large(self, size: int) -> list[float]:
        """The same while a message of so many bytes travels on a conversation of its own, until it has arrived."""
        large, small = self._handles[0], self._handles[1]
        self.west.send(large, ORDER, bytes(size))
        found: list[float] = []
        while True:
            begun = time.perf_counter()
            self.west.send(small, ORDER, BODY)
            arrived = self._arrived()
            found.append(time.perf_counter() - begun)
            if size in arrived:
                return found[:-1] or found  # the last one's reader has taken the large one, too

    def _arrived(self) -> list[int]:
        """Wait for a small message: the sizes of what has come until then."""
        sizes: list[int] = []
        while len(BODY) not in sizes:
            found = self.east.receive(QUEUE, wait=PATIENCE)
            if not found:
                raise InstanceError(f"A message has not arrived in {PATIENCE:g} seconds.")
            sizes += [len(message.message_body or b"") for message in found]
        return sizes

    def open_conversations(self, count: int) -> None:
        """So many more, with a message each that has been received; they stay open."""
        for first in range(0, count, TOP):
            with self.west.transaction() as transaction:
                for _ in range(min(TOP, count - first)):
                    handle = transaction.begin_dialog(*SERVICES, contract=CONTRACT, encryption=self.is_secured)
                    transaction.send(handle, ORDER, BODY)
            self._read(min(TOP, count - first))

    def memory(self) -> float:
        """Bytes that the larger daemon holds; 0 where the system does not say."""
        found = [0.0]
        for daemon in self._daemons:
            with suppress(OSError):
                found.append(int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        return max(found)

    def cpu(self) -> float:
        """Seconds of processor time that both daemons have used; 0 where the system does not say."""
        ticks = 0
        for daemon in self._daemons:
            with suppress(OSError):
                fields = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS

    def close(self) -> None:
        """End the daemons and the servers."""
        self._stack.close()


@contextmanager
def _sending(url: str, handles: list[UUID]) -> Iterator[Callable[[int, int], None]]:
    """Several senders, each with conversations of its own; as many as conversations for single messages."""
    with Instance(url, connections=CONVERSATIONS, upkeep=None) as instance, ThreadPoolExecutor(CONVERSATIONS) as pool:
        database = instance.database(DATABASE)

        def send(handles: list[UUID], messages: int, batch: int) -> None:
            for number, first in enumerate(range(0, messages, batch)):
                database.send_batch(handles[number % len(handles)], ORDER, [BODY] * min(batch, messages - first))

        def send_all(messages: int, batch: int) -> None:
            many = senders(batch)
            shares = [len(range(number, messages, many)) for number in range(many)]
            list(pool.map(send, [handles[n::many] for n in range(many)], shares, [batch] * many))

        yield send_all


def compare_remote(
    name: str, scenario: Scenario, place: Path, messages: int, rounds: int, progress: Progress
) -> list[Line]:
    """Ours as it is by default, encrypted in two layers, and without either as the baseline."""
    what = name.removeprefix(f"{REMOTE}-")
    if what in (LARGE, REST):
        progress(f"{name}: two instances")
        with closing(Pair(place / name, is_secured=True)) as pair:
            found = {OURS: _rest(pair, messages)} if what == REST else _large(pair, messages)
        return with_ratios([Line(name, system, "", SECURED, *line) for system, line in found.items()], scenario)
    lines = []
    for system, is_secured in ((OURS, True), (BASELINE, False)):
        label = SECURED if is_secured else "encryption off"
        progress(f"{name}: two instances, {label}")
        with closing(Pair(place / f"{name}-{system}", is_secured=is_secured)) as pair:
            lines.append(Line(name, system, "", label, *_measure(pair, what, messages, rounds)))
    if what.isdecimal():
        progress(f"{name}: RabbitMQ")
        lines.append(_rabbitmq(name, place / f"{name}-{RABBITMQ}", messages, rounds, int(what)))
    return with_ratios(lines, scenario)


def _rabbitmq(name: str, place: Path, messages: int, rounds: int, batch: int) -> Line:
    """What a user would pick instead; without encryption."""
    server = find_server()
    if server is None:
        return Line(name, RABBITMQ, reason="install rabbitmq-server")
    try:
        with closing(Shovelled(server, place)) as nodes:
            samples = [sample_elsewhere(lambda count: nodes.carry(count, batch), messages) for _ in range(rounds)]
    except ImportError:
        return Line(name, RABBITMQ, reason=NEEDS_EXTRA)
    label = "two nodes and a shovel, quorum queues, publisher confirms, encryption off"
    return Line(name, RABBITMQ, nodes.version, label, "", figures(samples))


def _measure(pair: Pair, what: str, messages: int, rounds: int) -> tuple[str, Figures]:
    if what == LATENCY:
        return _latency(pair.latencies(messages))
    return _throughput(pair, messages, rounds, int(what))


def _throughput(pair: Pair, messages: int, rounds: int, batch: int) -> tuple[str, Figures]:
    messages -= messages % CONVERSATIONS
    with closing(Meter(pair.url)) as meter:
        before = pair.cpu()
        samples = [meter.sample(lambda count: pair.carry(count, batch), messages) for _ in range(rounds)]
        cpu = (pair.cpu() - before) / (messages * rounds)
    return f"{senders(batch)} senders; both daemons: {cpu * 1e6:.0f} µs of CPU per message", figures(samples)


def _latency(seconds: list[float], where: str = "on an idle system") -> tuple[str, Figures]:
    half, most = median(seconds), quantiles([*seconds, max(seconds)], n=100)[98]
    settings = f"single messages {where}: median {half * 1e3:.1f} ms, 99th percentile {most * 1e3:.1f} ms"
    return settings, Figures(1 / half, 0.0, 0.0)


def _large(pair: Pair, size: int) -> dict[str, tuple[str, Figures]]:
    """Single messages while one of `size` million bytes travels, against the same on the idle system."""
    idle = _latency(pair.latencies(100))
    return {
        OURS: _latency(pair.latencies_beside_large(size * 1_000_000), f"beside one of {size:,} MB"),
        BASELINE: idle,
    }


def _rest(pair: Pair, conversations: int) -> tuple[str, Figures]:
    """The figure is how many are opened in a second; what they cost afterwards stands in the settings."""
    begun = time.perf_counter()
    pair.open_conversations(conversations)
    opened = conversations / (time.perf_counter() - begun)
    time.sleep(SETTLING)
    before = pair.cpu()
    time.sleep(AT_REST)
    part, memory = (pair.cpu() - before) / AT_REST / 2, pair.memory() / 1e6
    settings = f"{conversations:,} idle conversations: a daemon uses {part:.2%} of a core and {memory:.0f} MB"
    return settings, Figures(opened, 0.0, 0.0)


def _define(instance: Instance, own: int, other: str, port: int, other_port: int, *, is_secured: bool) -> Database:
    database = instance.database(DATABASE, create=True)
    database.create_message_type(ORDER)
    database.create_contract(CONTRACT, {ORDER: "ANY"})
    database.create_queue(QUEUE)
    database.create_service(SERVICES[own], QUEUE, [CONTRACT])
    if not is_secured:
        database.grant("SEND", "public", service=SERVICES[own])
    database.create_route("There", service_name=other, address=f"TCP://127.0.0.1:{other_port}")
    instance.create_endpoint(
        "Broker",
        state="STARTED",
        listener_port=port,
        listener_ip="127.0.0.1",
        encryption="REQUIRED" if is_secured else "DISABLED",
    )
    return database
