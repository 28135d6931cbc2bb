"""Measure messages between instances with servers and daemons of their own. Readers check every message."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple
from uuid import UUID

import psycopg

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.broker.shares import cores
from servicebroker.model.errors import InstanceError
from servicebroker_lab.benchmarks import processes
from servicebroker_lab.benchmarks.measure import Figures, Meter, figures, sample_without_postgresql
from servicebroker_lab.benchmarks.measured_system import free_port
from servicebroker_lab.benchmarks.rabbitmq import ShovelPair, find_server
from servicebroker_lab.benchmarks.report import OURS, Line
from servicebroker_lab.benchmarks.runner import NEEDS_EXTRA, with_ratios
from servicebroker_lab.benchmarks.scenarios import BASELINE, LOCAL, RABBITMQ, REMOTE, Scenario
from servicebroker_lab.benchmarks.sender_process import SenderProcess, all_during, senders, shares

Progress = Callable[[str], None]

DATABASE = "Bench"
CONVERSATION_COUNT = 16
BODY = b"x" * 200
RECEIVE_TOP = 1_000  # messages of a RECEIVE
WAITING_MESSAGES = 60_000  # sent and unread messages, about: then the senders wait
MESSAGE_TIMEOUT_S = 60.0  # without a message
READER_WAIT_S = 0.02  # then a reader checks whether the others have read the rest
MAX_READERS, CORES_OF_READER = 4, 4  # one reader for each four cores, at most four
ORDER, CONTRACT, QUEUE = "//bench/Order", "//bench/Ordering", "Inbox"
PASSWORD = "of a benchmark"  # the password of master keys that are deleted at the end
LATENCY, LARGE, REST, FAN_IN = "latency", "large", "rest", "fan-in"  # instead of the messages of a SEND transaction
# as in Microsoft's published test of 2009, "Service Broker: Performance and Scalability Techniques"
SOURCE_COUNT, UNUSED_DIALOGS, FAN_IN_BATCH = 3, 150, 100
SECURED, UNSECURED, AT_HOME = "TLS and dialog security", "encryption off", "the same senders, into a queue of their own"
LAST_WORDS = 3  # lines of a daemon's log in the error for missing messages
_UNACKNOWLEDGED = "select transmission_status, count(*) from servicebroker.transmission_queue group by 1 order by 1"
_AT_WORK = (
    "select application_name, wait_event_type, wait_event, extract(epoch from now() - query_start)::int "
    "from pg_stat_activity where state <> 'idle' and pid <> pg_backend_pid() order by 1, 4"
)
_QUEUE_ID = "select queue_id from servicebroker.queues where name = %s"
SETTLE_TIME_S, AT_REST = 10.0, 30.0  # seconds: for the last acknowledgements, and of doing nothing


class LinkedInstances:
    """Instances with a daemon each: one or more sources, and one that reads.

    This process reads, or several others if the machine has enough cores.

    Args:
        is_secured: use TLS and dialog security.
        sources: the number of sending instances.
        apart: use only one of this number of dialogs.
        senders: the number of sender processes of each source, which share its conversations.
    """

    def __init__(self, folder: Path, *, is_secured: bool, sources: int = 1, apart: int = 1, senders: int = 1) -> None:
        self.is_secured = is_secured
        self._stack = ExitStack()
        try:
            self._open(folder, sources, apart, senders)
        except BaseException:
            self.close()
            raise

    def _open(self, place: Path, sources: int, apart: int, senders: int) -> None:
        place.mkdir(mode=0o711)
        self._place = place
        names = [*(f"west{number}" for number in range(sources)), "east"]
        folders = [place / name for name in names]
        instances = [self._stack.enter_context(open_instance(folder, upkeep=None)) for folder in folders]
        self.instances = dict(zip(names, instances, strict=True))
        *services, self.target = (f"//bench/{name}" for name in names)
        ports = {service: free_port() for service in [*services, self.target]}
        self.sources = {
            service: _define(instance, service, {self.target: ports[self.target]}, ports[service], self.is_secured)
            for service, instance in zip(services, instances, strict=False)
        }
        self.east = _define(instances[-1], self.target, ports, ports[self.target], self.is_secured)
        self.url = self.east.instance.url
        if self.is_secured:
            self._introduce(place)
        self._kept: dict[str, list[UUID]] = {}
        self.handles = {service: self.begin(service, CONVERSATION_COUNT, apart) for service in services}
        self.daemons = dict(zip(names, [self._serve(folder) for folder in folders], strict=True))
        self._next: defaultdict[UUID, int] = defaultdict(int)  # the next number to be read, by conversation
        self._taken: Synchronized[int] = multiprocessing.get_context("spawn").Value("q", 0)
        self._senders = [
            (service, self._stack.enter_context(closing(SenderProcess(_sending, database.instance.url, self._taken))))
            for service, database in self.sources.items()
            for _ in range(senders)
        ]
        reader_count = min(MAX_READERS, cores() // CORES_OF_READER)
        self._readers = [
            self._stack.enter_context(closing(SenderProcess(_reading, self.url, self._taken)))
            for _ in range(reader_count if reader_count > 1 else 0)
        ]
        self.send_and_receive(CONVERSATION_COUNT * sources, 1)  # every conversation has its target

    def _introduce(self, folder: Path) -> None:
        """Create and exchange certificates of the transport and of the owners of the services."""
        everyone = {**self.sources, self.target: self.east}
        files = {service: folder / f"{service.rpartition('/')[2]}.dialog" for service in everyone}
        for service, database in everyone.items():
            database.instance.create_certificate("Own")
            database.instance.backup_certificate("Own", files[service].with_suffix(".transport"))
            database.create_master_key(PASSWORD)
            database.create_certificate("Own")
            database.backup_certificate("Own", files[service])
        for service, database in self.sources.items():
            for peer_database, name in ((database, self.target), (self.east, service)):
                peer_database.instance.create_certificate(name, file=files[name].with_suffix(".transport"))
                peer_database.create_user(name)
                peer_database.create_certificate(name, file=files[name], authorization=name)
            database.create_remote_service_binding("There", to_service=self.target, user=self.target)
            self.east.grant("SEND", service, service=self.target)

    def begin(self, service: str, count: int, apart: int = 1) -> list[UUID]:
        """Begin conversations of this source; between two of them, begin dialogs that are never used."""
        with self.sources[service].transaction() as transaction:
            handles = [
                transaction.begin_dialog(service, self.target, contract=CONTRACT, encryption=self.is_secured)
                for _ in range(count * apart)
            ]
        return handles[::apart]

    def _serve(self, folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "servicebroker.cli.main", "serve", "--instance", str(folder)]
        log = self._stack.enter_context((folder.parent / f"{folder.name}.log").open("wb"))
        process = subprocess.Popen(command, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process

    def send_and_receive(self, messages: int, batch: int) -> int:
        """Send `messages` in transactions of `batch`, and read them."""
        read = self._read_aside if self._readers else self._read
        return self._while_sending(partial(read, messages), self.handles, messages, batch, waiting=WAITING_MESSAGES)

    def keep(self, messages: int, batch: int) -> int:
        """Let the senders send messages into a queue of their own instance, without a reader."""
        if not self._kept:
            self._kept = {service: self._begin_at_home(service) for service in self.sources}
            self.keep(CONVERSATION_COUNT * len(self.sources), 1)
        return self._while_sending(lambda: messages, self._kept, messages, batch)

    def _begin_at_home(self, service: str) -> list[UUID]:
        database, home = self.sources[service], f"{service}/home"
        database.create_queue("Home")
        database.create_service(home, "Home", [CONTRACT])
        with database.transaction() as transaction:
            return [
                transaction.begin_dialog(service, home, contract=CONTRACT, encryption=False)
                for _ in range(CONVERSATION_COUNT)
            ]

    @property
    def sender_pids(self) -> list[int]:
        """The process ids of the senders."""
        return [sender.pid for _, sender in self._senders]

    @property
    def reader_pids(self) -> list[int]:
        """The process ids of the readers, or of this process if it reads."""
        return [reader.pid for reader in self._readers] or [os.getpid()]

    @property
    def received(self) -> int:
        """The number of messages that the readers have received so far."""
        return self._taken.value

    def daemon_pids(self, name: str) -> list[int]:
        """Return the process ids of the daemon of an instance, and of its child processes."""
        return [pid for pid, _ in processes.family(self.daemons[name].pid)]

    def _while_sending(
        self,
        work: Callable[[], int],
        handles: dict[str, list[UUID]],
        messages: int,
        batch: int,
        waiting: int | None = None,
    ) -> int:
        senders_per_source = len(self._senders) // len(self.sources)
        parts = shares(messages, len(self._senders))
        ahead = None if waiting is None else waiting // len(self._senders)
        orders = [
            (
                sender,
                (
                    handles[service][number % senders_per_source :: senders_per_source],
                    parts[number],
                    batch,
                    ahead,
                    len(self._senders),
                ),
            )
            for number, (service, sender) in enumerate(self._senders)
        ]
        return all_during(work, orders)

    def _read(self, messages: int) -> int:
        """Read in this process."""
        with self._telling():
            self._check([_take(self.east, self._taken, self.received + messages, MESSAGE_TIMEOUT_S)])
        return messages

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Add the location of the messages to an error of a reader."""
        try:
            yield
        except InstanceError as problem:
            raise InstanceError(f"{problem} {self._whereabouts()}") from None

    def _whereabouts(self) -> str:
        """Describe where missing messages are: waiting rows of each side with the reason, sessions at work, logs of the
        daemons.

        A disk that does not answer for a minute is seen by what its server waits for.
        """
        lines = []
        for name, instance in self.instances.items():
            with psycopg.connect(instance.url, autocommit=True) as connection:
                working = connection.execute(_AT_WORK).fetchall() or "nobody"
                unsent = connection.execute(_UNACKNOWLEDGED).fetchall() or "nothing"
            log = (self._place / f"{name}.log").read_text().splitlines()[-LAST_WORDS:]
            lines.append(
                f"{name} has {unsent} not acknowledged, {working} at work; its daemon said {log or 'nothing'}."
            )
        with psycopg.connect(self.url, autocommit=True) as connection:
            ((queue_id,),) = connection.execute(_QUEUE_ID, (QUEUE,)).fetchall()
            ((received,),) = connection.execute(f"select count(*) from servicebroker.queue_{queue_id:d}").fetchall()
        return f"{received} are in the target queue. {' '.join(lines)}"

    def _read_aside(self, messages: int) -> int:
        until = self.received + messages
        with self._telling():
            all_during(lambda: None, [(reader, (until,)) for reader in self._readers])
            self._check([reader.answer for reader in self._readers])
        return messages

    def _check(self, ranges_by_reader: Sequence[list[ReceivedRange]]) -> None:
        """Check that each conversation continues without a gap or a repeated message, whichever reader has read it."""
        for handle, first, messages in sorted(
            received_range for ranges in ranges_by_reader for received_range in ranges
        ):
            if first != self._next[handle]:
                raise InstanceError("Messages were lost, doubled or came out of order.")
            self._next[handle] += messages

    def latencies(self, count: int) -> list[float]:
        """Return the seconds from SEND to the end of RECEIVE, for single messages on an idle system."""
        ((service, west),) = self.sources.items()
        seconds_list = []
        for number in range(count):
            started_at = time.perf_counter()
            west.send(self.handles[service][number % CONVERSATION_COUNT], ORDER, BODY)
            self._read(1)
            seconds_list.append(time.perf_counter() - started_at)
        return seconds_list

    def latencies_beside_large(self, size: int) -> list[float]:
        """Return the latencies of small messages while a message of `size` bytes travels on another conversation."""
        ((service, west),) = self.sources.items()
        large, small = self.handles[service][:2]
        west.send(large, ORDER, bytes(size))
        seconds_list: list[float] = []
        while True:
            started_at = time.perf_counter()
            west.send(small, ORDER, BODY)
            arrived_sizes = self._wait_for_small()
            seconds_list.append(time.perf_counter() - started_at)
            if size in arrived_sizes:
                return seconds_list[:-1] or seconds_list  # the last one's reader has taken the large one, too

    def _wait_for_small(self) -> list[int]:
        """Wait for a small message, and return the sizes of all messages that have arrived."""
        sizes: list[int] = []
        while len(BODY) not in sizes:
            messages = self.east.receive(QUEUE, wait=MESSAGE_TIMEOUT_S)
            if not messages:
                raise InstanceError(f"A message has not arrived in {MESSAGE_TIMEOUT_S:g} seconds.")
            sizes += [len(message.message_body or b"") for message in messages]
        return sizes

    def open_conversations(self, count: int) -> None:
        """Open more conversations, each with one received message. They stay open."""
        ((service, west),) = self.sources.items()
        for first in range(0, count, RECEIVE_TOP):
            handles = self.begin(service, min(RECEIVE_TOP, count - first))
            with west.transaction() as transaction:
                for handle in handles:
                    transaction.send(handle, ORDER, BODY)
            self._read(len(handles))

    def memory(self) -> float:
        """Return the memory of the larger daemon in bytes; 0 without /proc."""
        return max(processes.resident_bytes(daemon.pid) for daemon in self.daemons.values())

    def cpu(self) -> float:
        """Return the processor time of all daemons in seconds; 0 without /proc."""
        return sum(processes.processor_time(pid) for name in self.daemons for pid in self.daemon_pids(name))

    def close(self) -> None:
        """Stop the daemons and servers."""
        self._stack.close()


@contextmanager
def _sending(url: str, received: Synchronized[int]) -> Iterator[Callable[..., None]]:
    """Run in a sender process, one of `sender_count`. It waits while more than `ahead` of its messages are unread."""
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)

        def send(handles: list[UUID], messages: int, batch: int, ahead: int | None, sender_count: int) -> None:
            received_before = received.value
            for number, first in enumerate(range(0, messages, batch)):
                while ahead is not None and first - (received.value - received_before) // sender_count > ahead:
                    time.sleep(READER_WAIT_S)
                database.send_batch(handles[number % len(handles)], ORDER, [BODY] * min(batch, messages - first))

        yield send


@contextmanager
def _reading(url: str, received: Synchronized[int]) -> Iterator[Callable[[int], list[ReceivedRange]]]:
    """Run in a reader process: yield a function that receives until a number of messages is received in all."""
    with Instance(url, connections=1, upkeep=None) as instance:
        database = instance.database(DATABASE)
        yield lambda until: _take(database, received, until, READER_WAIT_S)


class ReceivedRange(NamedTuple):
    """The result of one RECEIVE: a number of messages of a conversation, from this number on."""

    handle: UUID
    first: int
    messages: int


def _take(database: Database, received: Synchronized[int], until: int, wait: float) -> list[ReceivedRange]:
    """Read until all readers together have received `until` messages.

    Raises:
        InstanceError: messages arrived out of order, or none arrives.
    """
    read: list[ReceivedRange] = []
    expected: defaultdict[UUID, int] = defaultdict(int)
    last = time.monotonic()
    while received.value < until:
        messages = database.receive(QUEUE, top=RECEIVE_TOP, wait=wait)
        if not messages and time.monotonic() - last >= MESSAGE_TIMEOUT_S:
            raise InstanceError(
                f"{until - received.value:,} messages have not arrived in {MESSAGE_TIMEOUT_S:g} seconds."
            )
        if not messages:
            continue
        handle, first, last = messages[0].conversation_handle, messages[0].message_sequence_number, time.monotonic()
        numbers = [message.message_sequence_number for message in messages]
        if numbers != list(range(first, first + len(messages))) or first < expected[handle]:
            raise InstanceError("Messages were lost, doubled or came out of order.")
        expected[handle] = first + len(messages)
        read.append(ReceivedRange(handle, first, len(messages)))
        with received.get_lock():
            received.value += len(messages)
    return read


def compare_remote(
    name: str, scenario: Scenario, place: Path, messages: int, rounds: int, progress: Progress
) -> list[Line]:
    """Compare servicebroker with TLS and dialog security, without both (the baseline), and RabbitMQ."""
    kind = name.removeprefix(f"{REMOTE}-")
    if kind in (LARGE, REST):
        progress(f"{name}: two instances")
        with closing(LinkedInstances(place / name, is_secured=True)) as linked:
            figures_by_system = {OURS: _measure_idle(linked, messages)} if kind == REST else _large(linked, messages)
        return with_ratios(
            [Line(name, system, "", SECURED, *line) for system, line in figures_by_system.items()], scenario
        )
    variants = [(OURS, SECURED, 1), (BASELINE, UNSECURED, 1)]
    sources, sender_count = 1, senders(int(kind)) if kind.isdecimal() else 1
    if kind == FAN_IN:
        sources, sender_count = SOURCE_COUNT, senders(FAN_IN_BATCH)
        variants.append((BASELINE, f"{SECURED}, one of {UNUSED_DIALOGS} dialogs used", UNUSED_DIALOGS))
    lines = []
    for number, (system, label, apart) in enumerate(variants):
        progress(f"{name}: {sources + 1} instances, {label}")
        folder, is_secured = place / f"{name}-{number}", label != UNSECURED
        with closing(
            LinkedInstances(folder, is_secured=is_secured, sources=sources, apart=apart, senders=sender_count)
        ) as linked:
            lines.append(Line(name, system, "", label, *_measure(linked, kind, messages, rounds)))
            if kind.isdecimal() and system == OURS:
                lines.append(Line(name, LOCAL, "", AT_HOME, *_at_home(linked, messages, rounds, int(kind))))
    if kind.isdecimal():
        progress(f"{name}: RabbitMQ")
        lines.append(_rabbitmq(name, place / f"{name}-{RABBITMQ}", messages, rounds, int(kind)))
    return with_ratios(lines, scenario)


def _rabbitmq(name: str, folder: Path, messages: int, rounds: int, batch: int) -> Line:
    """Measure RabbitMQ, the alternative that a user might choose, without encryption."""
    server = find_server()
    if server is None:
        return Line(name, RABBITMQ, reason="install rabbitmq-server")
    try:
        with closing(ShovelPair(server, folder, senders(batch))) as nodes:
            samples = [
                sample_without_postgresql(lambda count: nodes.send_and_receive(count, batch), messages)
                for _ in range(rounds)
            ]
    except ImportError:
        return Line(name, RABBITMQ, reason=NEEDS_EXTRA)
    label = f"two nodes and a shovel, quorum queues, publisher confirms, {UNSECURED}"
    return Line(name, RABBITMQ, nodes.version, label, "", figures(samples))


def _measure(linked: LinkedInstances, kind: str, messages: int, rounds: int) -> tuple[str, Figures]:
    if kind == LATENCY:
        return _latency(linked.latencies(messages))
    return _throughput(linked, messages, rounds, FAN_IN_BATCH if kind == FAN_IN else int(kind))


def _throughput(linked: LinkedInstances, messages: int, rounds: int, batch: int) -> tuple[str, Figures]:
    messages -= messages % CONVERSATION_COUNT
    with closing(Meter(linked.url)) as meter:
        before = linked.cpu()
        samples = [meter.sample(lambda count: linked.send_and_receive(count, batch), messages) for _ in range(rounds)]
        cpu = (linked.cpu() - before) / (messages * rounds)
    sender_count = senders(batch) * len(linked.sources)
    return f"{sender_count} senders; all daemons: {cpu * 1e6:.0f} µs of CPU per message", figures(samples)


def _at_home(linked: LinkedInstances, messages: int, rounds: int, batch: int) -> tuple[str, Figures]:
    """Measure the senders alone, without a reader and within one instance: the upper bound of the rate."""
    messages -= messages % CONVERSATION_COUNT
    ((_, database),) = linked.sources.items()
    with closing(Meter(database.instance.url)) as meter:
        samples = [meter.sample(lambda count: linked.keep(count, batch), messages) for _ in range(rounds)]
    return f"{senders(batch)} senders", figures(samples)


def _latency(seconds: list[float], condition: str = "on an idle system") -> tuple[str, Figures]:
    half, most = median(seconds), quantiles([*seconds, max(seconds)], n=100)[98]
    settings = f"single messages {condition}: median {half * 1e3:.1f} ms, 99th percentile {most * 1e3:.1f} ms"
    return settings, Figures(1 / half, 0.0, 0.0)


def _large(linked: LinkedInstances, size: int) -> dict[str, tuple[str, Figures]]:
    """Compare latencies while a message of `size` million bytes travels with those of the idle system."""
    idle = _latency(linked.latencies(100))
    return {
        OURS: _latency(linked.latencies_beside_large(size * 1_000_000), f"beside one of {size:,} MB"),
        BASELINE: idle,
    }


def _measure_idle(linked: LinkedInstances, conversations: int) -> tuple[str, Figures]:
    """Measure how many conversations are opened in a second, and the cost of idle ones (in the settings)."""
    started_at = time.perf_counter()
    linked.open_conversations(conversations)
    opened_per_second = conversations / (time.perf_counter() - started_at)
    time.sleep(SETTLE_TIME_S)
    before = linked.cpu()
    time.sleep(AT_REST)
    part, memory = (linked.cpu() - before) / AT_REST / 2, linked.memory() / 1e6
    settings = f"{conversations:,} idle conversations: a daemon uses {part:.2%} of a core and {memory:.0f} MB"
    return settings, Figures(opened_per_second, 0.0, 0.0)


def _define(instance: Instance, service: str, routes: dict[str, int], port: int, is_secured: bool) -> Database:
    """Create the database of a service, with routes to the ports of other services."""
    database = instance.database(DATABASE, create=True)
    database.create_message_type(ORDER)
    database.create_contract(CONTRACT, {ORDER: "ANY"})
    database.create_queue(QUEUE)
    database.create_service(service, QUEUE, [CONTRACT])
    if not is_secured:
        database.grant("SEND", "public", service=service)
    for peer_service, other_port in routes.items():
        if peer_service != service:
            database.create_route(peer_service, service_name=peer_service, address=f"TCP://127.0.0.1:{other_port}")
    instance.create_endpoint(
        "Broker",
        state="STARTED",
        listener_port=port,
        listener_ip="127.0.0.1",
        encryption="REQUIRED" if is_secured else "DISABLED",
    )
    return database
