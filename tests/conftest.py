"""Shared fixtures: an embedded server, a PostgreSQL database for each module, a broker database for each test."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg import generators

import servicebroker as sb
import servicebroker.api.aio.verbs
import servicebroker.api.verbs
from browsers import chromium as chromium
from daemons import Two, two_sites
from forked import cheapen_passwords
from portal import open_behind_portal
from remote_support import Pair, open_pair
from second_tries import pytest_sessionfinish as pytest_sessionfinish
from servicebroker.store import cluster, running
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.statements import Rows, Statement
from support import APP, Clock, Stock, as_user, define_standard_set, stocked_name

_numbers = itertools.count(1)
_databases: dict[str, str] = {}  # PostgreSQL databases that were created and not dropped: name, URL of the server
_templates: set[str] = set()

# files that take half a minute or more: they run first, so that the processes of a run end at about the same time
LONGEST_FILES = (
    "test_pipeline_command",
    "test_demo",
    "test_benchmarks",
    "test_pipeline_faults",
    "test_model",
    "test_simulation",
    "test_pipeline_spark",
    "test_pipeline_session",
    "test_serve",
    "test_dialog_security",
    "test_check",
    "test_embedded",
)
STOCKS = (1, 8, 32)  # template instances exist with these numbers of databases
_MEMORY_FOLDER = "/dev/shm"
_MIN_FREE_BYTES = 8 * 1024**3  # a run uses up to 4 GB


class Count(NamedTuple):
    """The size of a random or long test in a normal run, and in a run with --full."""

    short: int
    full: int
    meaning: str


COUNTS = {
    "leak-conversations": Count(300, 700, "conversations of the test for leaks"),
    "short-conversations": Count(100, 10_000, "conversations that are opened, answered and ended, and leave nothing"),
    "model-steps": Count(1_000, 10_000, "steps of the engine beside the double"),
    "tsql-steps": Count(250, 1_200, "steps in T-SQL text beside the double"),
    "crossings": Count(
        40, 6_000, "verbs in states beside a lock, a savepoint, an end of time, as test_crossings.py has them"
    ),
    "crowd-seconds": Count(2, 8, "how long 16 senders and 16 readers meet"),
    "pool-messages": Count(300, 600, "messages of the stress of ConversationPool"),
    "good-messages": Count(300, 1_000, "good messages among which poison is found"),
    "cuts": Count(2, 4, "at how many exchanges test_interruptions.py cuts each of its cases"),
    "kills": Count(1, 2, "how often test_pipeline_faults.py kills the pipeline"),
    "ledger-batches": Count(6, 300, "batches of a stream that test_pipeline_ledger.py cuts off and meddles with"),
    "space-messages": Count(20_000, 20_000, "messages that go ten times through one queue"),
    "tsql-expressions": Count(200, 100_000, "expressions that Python and PostgreSQL evaluate"),
    "tsql-sizes": Count(8, 1_500, "values that get into targets of every size by every way"),
    "fuzz-examples": Count(60, 300, "texts of each test that writes random T-SQL"),
    "open-dialogs": Count(3_000, 20_000, "dialogs that are open between two daemons"),
    "seeds": Count(40, 1_000, "histories of the simulator in which anything goes wrong"),
    "other-seeds": Count(20, 100, "histories of the simulator that the seed of the run draws"),
    "chaos-seconds": Count(5, 60, "how long everything goes wrong"),
    "hostile-seconds": Count(2, 4, "how long a partner means harm to the others"),
    "store-operations": Count(500, 20_000, "operations on the simulator's store beside PostgreSQL"),
    "table-histories": Count(2, 30, "histories of a table whose rule changes while messages land"),
    "iceberg-histories": Count(1, 20, "such histories of an Iceberg table"),
    "messages": Count(500, 2_000, "how many test_brokers.py sends each way"),
    "process-kills": Count(1, 20, "how often test_processes.py kills one of several processes"),
    "late-requests": Count(100, 10_000, "requests of test_late_answers.py, whose answers come late or never"),
    "late-programs": Count(
        24, 1_000, "programs of test_late_answers.py, which leave before their answers or with them"
    ),
    "copied-messages": Count(300, 10_000, "messages to an instance beside which a copy works"),
    "decoder-seconds": Count(3, 60, "how long random bodies are decoded"),
    "worker-kills": Count(3, 20, "how often test_worker_kills.py kills workers on many groups"),
    "timed-kills": Count(1, 60, "how often test_timed_kills.py kills programs with delays, schedules and keys"),
    "timed-speed": Count(1, 100, "how many times faster than the server's the clock of these programs runs"),
    "takeovers": Count(1, 10, "how often a second daemon takes over in test_processes.py"),
}


def _work_in_memory() -> None:
    """Keep servers and files of tests in memory if it has room: a disk takes ten times as long to copy a server."""
    with suppress(OSError):
        if "TMPDIR" not in os.environ and shutil.disk_usage(_MEMORY_FOLDER).free > _MIN_FREE_BYTES:
            os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY_FOLDER  # also for processes that tests start


_work_in_memory()
cheapen_passwords()  # as the processes of forked.py do, which open the same sealed keys

# tests create few reference cycles, and the search for them took a tenth of the processor time
gc.set_threshold(20_000, 20, 20)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell leaves it to what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# without the optimizing compiler of Java, which pays off only after minutes; a test of Spark takes seconds
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SPARK_CLASSES = Path(sys.prefix, "spark.jsa")  # written by tools/spark_classes.py
if _SPARK_CLASSES.exists():
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{JAVA_OPTIONS} -XX:SharedArchiveFile={_SPARK_CLASSES} -Xlog:disable")
for _options in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_options, JAVA_OPTIONS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="the seed of the randomized tests, to repeat a run")
    parser.addoption("--postgres", type=Path, default=None, help="the folder of another PostgreSQL's programs")
    parser.addoption("--full", action="store_true", help="every test and case: also those that make test leaves out")
    for name, count in COUNTS.items():
        text = f"{count.meaning}: {count.short}, with --full {count.full}"
        parser.addoption(f"--{name}", type=int, default=None, help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for name, count in COUNTS.items():
        option = name.replace("-", "_")
        if getattr(config.option, option) is None:
            setattr(config.option, option, count.full if config.option.full else count.short)
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(2**31)
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(config.option.seed)
    fuzz_settings = {"max_examples": config.option.fuzz_examples, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("fuzz", deadline=None, **fuzz_settings)


def _selected_cases(item: pytest.Item, cases: int) -> int:
    """Return the number of cases of a test in a short run."""
    sampled = item.get_closest_marker("sampled")
    both = item.get_closest_marker("both_apis")
    return sampled.args[0] if sampled else (cases + 1) // 2 if both else cases


def pytest_report_header(config: pytest.Config) -> str:
    return (
        f"random seed: {config.option.seed} (to repeat the run: --seed {config.option.seed})\n"
        "each process first creates a PostgreSQL server, so the first test ends after half a minute"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the sizes of random tests, also of other processes, and the failures of tests that were run again."""
    for report in terminalreporter.getreports("passed"):
        for _, text in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {text}")
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"was run again: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture
def seeded_random(request: pytest.FixtureRequest) -> random.Random:
    """A random generator of the test, seeded by --seed and the test's name."""
    return random.Random(f"{request.config.option.seed} {request.node.nodeid}")


@pytest.fixture(scope="session", autouse=True)
def own_keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep key folders in a temporary folder instead of the user's."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Undo the logging configuration of commands that a test runs in this process."""
    logger, root = logging.getLogger("servicebroker"), logging.getLogger()
    level = logger.level
    yield
    logger.setLevel(level)
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler:  # handlers of pytest have classes of their own
            root.removeHandler(handler)


@contextmanager
def _programs_of(folder: Path | None) -> Iterator[None]:
    """Start and stop embedded servers with the programs of another version of PostgreSQL."""
    if folder is None:
        yield
        return
    answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.findall(r"\d+", answer)[0]
    changed: dict[str, Any] = {"programs": lambda: folder, "POSTGRES_VERSION": version}
    if int(version) < 17:  # before the builtin provider of locales
        changed["LOCALE_OPTIONS"] = ("--encoding=UTF8", "--locale=C.UTF-8")
    with mock.patch.multiple(cluster, **changed):
        yield


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[EmbeddedServer]:
    # not in pytest's folder: if root runs another session, the server's user could not enter it any more
    folder = tempfile.mkdtemp(prefix="servicebroker-tests-")
    try:
        programs = pytestconfig.option.postgres
        with _programs_of(programs):
            server = EmbeddedServer.start(folder, watches=programs is None)
        with server:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute("alter system set fsync = off")  # no power failure in tests
                connection.execute("alter system set max_wal_size = '256MB'")  # the server may lie in memory
                # after each copy of a database, which is a checkpoint, every page goes into the log as a whole
                connection.execute("alter system set wal_compression = off")
                # autovacuum would check each of the many databases, most of which are dropped after some seconds
                connection.execute("alter system set autovacuum_naptime = '60s'")
                connection.execute("alter role all set servicebroker.allow_data_loss = on")
                connection.execute("select pg_reload_conf()")
            yield server
            with _programs_of(programs):
                server.close()
    finally:  # in the background: the folder has a hundred thousand files
        subprocess.run(["sh", "-c", 'rm -rf "$0" >/dev/null 2>&1 &', folder], check=True)


@pytest.fixture(scope="session")
def make_url(server: EmbeddedServer) -> Callable[..., str]:
    """A function that creates an empty PostgreSQL database, or a copy of one, and returns its URL."""

    def make(template: str = "template1") -> str:
        name = f"test_{next(_numbers)}"
        with psycopg.connect(server.url, autocommit=True) as connection:
            text = f"create database {name} template {template} strategy file_copy"
            connection.execute(text)  # type: ignore[call-overload]
        _databases[name] = server.url
        return server.url.replace(":///servicebroker?", f":///{name}?")

    return make


@pytest.fixture(scope="module", autouse=True)
def own_databases() -> Iterator[None]:
    """Drop the databases of a module after its tests, because a run would fill the memory."""
    yield
    created = {name: url for name, url in _databases.items() if name not in _templates}
    _databases.clear()
    if created:
        with psycopg.connect(next(iter(created.values())), autocommit=True) as connection:
            for name in created:
                connection.execute(f"drop database if exists {name} with (force)")  # type: ignore[call-overload]


@pytest.fixture(scope="session")
def make_instance_url(make_url: Callable[..., str]) -> Callable[..., str]:
    """A function that creates an instance and returns its URL, much faster than `sb.open` on an empty database.

    The instance has `stocked` databases with the names `stocked_name` and the standard set of objects.
    """

    @functools.cache
    def template(stocked: int) -> str:
        if not stocked:
            url = make_url()
            sb.open(url, upkeep=None).close()
            return _keep_database(url)
        smaller = max(size for size in (0, *STOCKS) if size < stocked)
        url = make_url(template(smaller))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("select servicebroker.settle()")
        with sb.open(url, upkeep=None) as instance:
            for number in range(smaller, stocked):
                define_standard_set(instance.database(stocked_name(number), create=True))
        return _keep_database(url)

    def make(stocked: int = 0) -> str:
        url = make_url(template(stocked))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("update servicebroker.instance set instance_id = default")
            connection.execute("select servicebroker.settle()")
            connection.execute("update servicebroker.databases set service_broker_guid = gen_random_uuid()")
        return url

    return make


def _keep_database(url: str) -> str:
    """Exclude a database from `own_databases`, and return its name."""
    name: str = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    _templates.add(name)
    return name


@pytest.fixture(scope="module")
def module_clock() -> Clock:
    return Clock()


@pytest.fixture
def clock(module_clock: Clock) -> Clock:
    """The clock of `instance`. The tests of a module share it, and can only move it forward."""
    return module_clock


@pytest.fixture(scope="module")
def open_face(request: pytest.FixtureRequest) -> Callable[..., AbstractContextManager[sb.Instance]]:
    """A function that opens instances like `sb.open`. Tests marked `both_apis` run again on the asyncio API."""
    return open_behind_portal if getattr(request, "param", "threads") == "asyncio" else sb.open


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest files first.

    Without --full leave out tests marked `full`, one API of those marked `both_apis`, and cases of `sampled`.
    """
    positions = {stem: position for position, stem in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: positions.get(item.path.stem, len(LONGEST_FILES)))
    if config.option.full or any("::" in argument for argument in config.args):  # a test named on the command line runs
        return
    items_of = Counter(item.nodeid.partition("[")[0] for item in items)
    shuffled = list(items)
    random.Random(config.option.seed).shuffle(shuffled)
    cases: defaultdict[str, int] = defaultdict(int)
    left_out = []
    for item in shuffled:
        test = item.nodeid.partition("[")[0]
        cases[test] += 1
        if item.get_closest_marker("full") or cases[test] > _selected_cases(item, items_of[test]):
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    deselected = set(left_out)
    items[:] = [item for item in items if item not in deselected]


def pytest_collection_finish() -> None:
    """Exclude all loaded objects from garbage collection: they live to the end of the run."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "open_face" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_apis"):
        metafunc.parametrize("open_face", ["threads", "asyncio"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def stocked_databases(request: pytest.FixtureRequest) -> Stock:
    """The databases that the shared instance of a module has from its template."""
    needed_count = sum(
        item.path == request.path and "database" in getattr(item, "fixturenames", ()) for item in request.session.items
    )
    return Stock(next((size for size in STOCKS if size >= needed_count), STOCKS[-1]) if needed_count else 0)


@pytest.fixture(scope="module")
def instance(
    open_face: Callable[..., AbstractContextManager[sb.Instance]],
    make_instance_url: Callable[..., str],
    module_clock: Clock,
    stocked_databases: Stock,
) -> Iterator[sb.Instance]:
    """The instance that the tests of a module share."""
    stocked_databases.left = list(range(stocked_databases.size))
    url = make_instance_url(stocked_databases.size)
    with open_face(url, clock=module_clock, upkeep=None) as instance:
        yield instance


@pytest.fixture
def fresh_instance(
    request: pytest.FixtureRequest,
    open_face: Callable[..., AbstractContextManager[sb.Instance]],
    make_instance_url: Callable[..., str],
    module_clock: Clock,
) -> Iterator[sb.Instance]:
    """A new instance."""
    url = make_instance_url(1 if "fresh_database" in request.fixturenames else 0)
    with open_face(url, clock=module_clock, upkeep=None) as instance:
        yield instance


@pytest.fixture
def database(instance: sb.Instance, stocked_databases: Stock) -> sb.Database:
    """A new broker database with the standard set of objects (see support.py)."""
    if stocked_databases.left:
        return instance.database(stocked_name(stocked_databases.left.pop(0)))
    return define_standard_set(instance.database(f"Test{next(_numbers)}", create=True))


@pytest.fixture
def fresh_database(fresh_instance: sb.Instance) -> sb.Database:
    """The only database of a new instance, with the standard set of objects."""
    return fresh_instance.database(stocked_name(0))


@pytest.fixture
def app(database: sb.Database) -> sb.Database:
    """`database` for a user without any permission."""
    database.create_user(APP)
    return as_user(database, APP)


@pytest.fixture
def postgres_role(database: sb.Database) -> Iterator[str]:
    """A role of the server, dropped after the test."""
    name = f"role_{database.name.lower()}"
    with database.instance.connection() as connection:
        connection.execute(f"create role {name}")  # type: ignore[arg-type]
    yield name
    with database.instance.connection() as connection:
        connection.execute(f"drop role {name}")  # type: ignore[arg-type]


@pytest.fixture
def without_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the poll once a second: a waiting reader wakes up only by a notification."""
    for form in (servicebroker.api.verbs, servicebroker.api.aio.verbs):
        monkeypatch.setattr(form, "FALLBACK_POLL_S", 60.0)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A list with an element for each round trip to the server."""
    sent: list[None] = []

    def count_calls(steps: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            sent.append(None)
            return steps(*arguments)

        return call

    monkeypatch.setattr(generators, "execute", count_calls(generators.execute))
    monkeypatch.setattr(generators, "send", count_calls(generators.send))  # of a pipeline
    return sent


@pytest.fixture
def pair(make_instance_url: Callable[[], str]) -> Iterator[Pair]:
    """Two instances with their relays, and a connection whose frames the test passes on."""
    with open_pair(make_instance_url) as pair:
        yield pair


@pytest.fixture
def two(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[Two]:
    """Two instances that daemons can serve."""
    with two_sites(make_instance_url, tmp_path) as sites:
        yield sites


@pytest.fixture
def statement_counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the executions of each statement, by its name."""
    count: Counter[str] = Counter()
    rows_of = running._rows

    def counting(connection: object, statement: Statement) -> Rows:
        count[statement.name] += 1
        return rows_of(connection, statement)  # type: ignore[arg-type]

    monkeypatch.setattr(running, "_rows", counting)
    return count
