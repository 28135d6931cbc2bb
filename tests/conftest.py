"""One embedded PostgreSQL for the session, a PostgreSQL database for each module, a broker database for each test."""

from __future__ import annotations

import itertools
import logging
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import psycopg
import pytest
from hypothesis import HealthCheck, settings

import servicebroker as sb
import servicebroker.api.aio.verbs
import servicebroker.api.verbs
from portal import open_behind_portal
from remote_support import Pair, paired
from servicebroker.store.embedded import EmbeddedServer
from support import APP, Clock, as_user, define_standard_set

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="the seed of the randomized tests, to repeat a run")
    parser.addoption("--leak-conversations", type=int, default=700, help="conversations of the test for leaks")
    parser.addoption("--model-steps", type=int, default=10_000, help="steps of the engine beside the double")
    parser.addoption("--tsql-steps", type=int, default=1_200, help="steps in T-SQL text beside the double")
    parser.addoption("--crowd-seconds", type=int, default=8, help="how long 16 senders and 16 readers meet")
    parser.addoption("--pool-messages", type=int, default=600, help="messages of the stress of ConversationPool")
    parser.addoption("--good-messages", type=int, default=1_000, help="good messages among which poison is found")
    parser.addoption("--cuts", type=int, default=4, help="at how many exchanges test_cut.py cuts each of its cases")
    parser.addoption("--kills", type=int, default=2, help="how often test_pipeline_faults.py kills the pipeline")
    parser.addoption("--space-messages", type=int, default=20_000, help="messages that go ten times through one queue")
    parser.addoption("--fuzz-examples", type=int, default=300, help="texts of each test that writes random T-SQL")
    parser.addoption("--open-dialogs", type=int, default=20_000, help="dialogs that are open between two daemons")
    parser.addoption("--hostile-seconds", type=float, default=4.0, help="how long a partner means harm to the others")
    parser.addoption("--messages", type=int, default=2_000, help="how many test_brokers.py sends each way")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(2**31)
    if getattr(config.option, "hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(config.option.seed)
    of_fuzz = {"max_examples": config.option.fuzz_examples, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("fuzz", deadline=None, **of_fuzz)


def pytest_report_header(config: pytest.Config) -> str:
    return f"random seed: {config.option.seed} (the same again: --seed {config.option.seed})"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a random test has done, also in another process, and why one was run again."""
    for report in terminalreporter.getreports("passed"):
        for _, said in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {said}")
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.write_sep("_", f"was run again: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture
def seeded_random(request: pytest.FixtureRequest) -> random.Random:
    """Randomness of this test, the same again under the same --seed."""
    return random.Random(f"{request.config.option.seed} {request.node.nodeid}")


@pytest.fixture(scope="session", autouse=True)
def own_keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Key folders of instances by URL are not those of who runs the tests."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """A command that a test runs in this process says where the log goes: not that of the tests after it."""
    ours, root = logging.getLogger("servicebroker"), logging.getLogger()
    level = ours.level
    yield
    ours.setLevel(level)
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler:  # not those of pytest, which are of classes of their own
            root.removeHandler(handler)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    # not under pytest's own folder: another session of root's would shut the server's user out of it
    folder = tempfile.mkdtemp(prefix="servicebroker-tests-")
    try:
        with EmbeddedServer.start(folder) as server:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute("alter system set fsync = off")  # nobody pulls the plug on it
                connection.execute("alter role all set servicebroker.allow_data_loss = on")
                connection.execute("select pg_reload_conf()")
            yield server
    finally:  # a hundred thousand files: nobody waits for that
        subprocess.run(["sh", "-c", 'rm -rf "$0" >/dev/null 2>&1 &', folder], check=True)


@pytest.fixture(scope="session")
def make_url(server: EmbeddedServer) -> Callable[..., str]:
    """Makes an empty PostgreSQL database each time it is called, or a copy of one, and returns its URL."""

    def make(template: str = "template1") -> str:
        name = f"test_{next(_numbers)}"
        with psycopg.connect(server.url, autocommit=True) as connection:
            text = f"create database {name} template {template} strategy file_copy"
            connection.execute(text)  # type: ignore[call-overload]
        return server.url.replace(":///servicebroker?", f":///{name}?")

    return make


@pytest.fixture(scope="session")
def make_instance_url(make_url: Callable[..., str]) -> Callable[[], str]:
    """Makes an instance that nothing was done in each time it is called, and returns its URL: faster than `sb.open`."""
    template = make_url()
    sb.open(template, upkeep=None).close()

    def make() -> str:
        url = make_url(psycopg.conninfo.conninfo_to_dict(template)["dbname"])
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("update servicebroker.instance set instance_id = default")
            connection.execute("update servicebroker.databases set service_broker_guid = gen_random_uuid()")
        return url

    return make


@pytest.fixture(scope="module")
def module_clock() -> Clock:
    return Clock()


@pytest.fixture
def clock(module_clock: Clock) -> Clock:
    """The clock of `instance`. It only goes forward, for all tests of a module."""
    return module_clock


@pytest.fixture(scope="module")
def open_face(request: pytest.FixtureRequest) -> Callable[..., AbstractContextManager[sb.Instance]]:
    """Opens instances: as `sb.open`, and a second time behind a portal for tests that are `both_faces`."""
    return open_behind_portal if getattr(request, "param", "threads") == "asyncio" else sb.open


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "open_face" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_faces"):
        metafunc.parametrize("open_face", ["threads", "asyncio"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def instance(
    open_face: Callable[..., AbstractContextManager[sb.Instance]],
    make_instance_url: Callable[[], str],
    module_clock: Clock,
) -> Iterator[sb.Instance]:
    """The instance that the tests of a module share."""
    with open_face(make_instance_url(), clock=module_clock, upkeep=None) as instance:
        yield instance


@pytest.fixture
def fresh_instance(
    open_face: Callable[..., AbstractContextManager[sb.Instance]],
    make_instance_url: Callable[[], str],
    module_clock: Clock,
) -> Iterator[sb.Instance]:
    """An instance that nothing was done in."""
    with open_face(make_instance_url(), clock=module_clock, upkeep=None) as instance:
        yield instance


@pytest.fixture
def database(instance: sb.Instance) -> sb.Database:
    """A new broker database with the standard set of objects (see support.py)."""
    return define_standard_set(instance.database(f"Test{next(_numbers)}", create=True))


@pytest.fixture
def fresh_database(fresh_instance: sb.Instance) -> sb.Database:
    """The standard set in an instance that holds nothing else."""
    return define_standard_set(fresh_instance.database("Test", create=True))


@pytest.fixture
def app(database: sb.Database) -> sb.Database:
    """`database` as a user that nothing was granted to."""
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
    """A waiting reader looks when it is woken, and not once a second."""
    for form in (servicebroker.api.verbs, servicebroker.api.aio.verbs):
        monkeypatch.setattr(form, "FALLBACK_POLL", 60.0)


@pytest.fixture
def pair(make_instance_url: Callable[[], str]) -> Iterator[Pair]:
    """Two instances, relays between them, and a link that the test holds."""
    with paired(make_instance_url) as both:
        yield both
