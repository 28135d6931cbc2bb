"""Many queues: tasks over all queues use set-based statements, and an idle queue costs a share of one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import psycopg
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.activation import procedures
from servicebroker.cli.main import app
from servicebroker.dashboard import Dashboard, pages
from servicebroker.engine.diagnosis.facts import gather
from servicebroker.store import migrations
from servicebroker.store.running import run
from support import CONTRACT, ORDER, ORDERS, STOCK_QUEUE, begin, bodies, define_standard_set, eventually, query

MANY_OBJECTS = 25
UPGRADED_QUEUES = 60
CROWD_SIZE = 10_000


@pytest.fixture
def database(make_instance_url: Callable[..., str]) -> Iterator[sb.Database]:
    """Create MANY_OBJECTS queues, each with a service, and one of them with a message."""
    with sb.open(make_instance_url(), upkeep=None) as instance:
        made = define_standard_set(instance.database("Many", create=True))
        for number in range(MANY_OBJECTS):
            made.create_queue(f"Queue{number}")
            made.create_service(f"//test/{number}", f"Queue{number}", [CONTRACT])
        made.send(begin(made, "//test/7"), ORDER, b"seventh")
        yield made
    procedures._registered.clear()


def test_counting_all_queues_needs_no_statement_per_queue(
    database: sb.Database, statement_counts: Counter[str]
) -> None:
    queues, _ = database.instance.status()
    counts = {queue.queue: queue.messages for queue in queues}
    assert counts["dbo.Queue7"] == 1
    assert counts["dbo.Queue8"] == 0
    analyzed, findings = database.instance.check()
    assert analyzed["Service Queues"] > MANY_OBJECTS
    assert not findings
    with database.instance.connection() as connection:
        facts = run(connection, gather(database.instance.clock()))
    assert [queue.messages for queue in facts.queues if queue.name.endswith("Queue7")] == [1]
    often = {name: times for name, times in statement_counts.items() if times > MANY_OBJECTS / 2}
    assert not often


def test_no_page_of_the_dashboard_asks_for_each_queue(
    database: sb.Database, statement_counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_QUEUES", 3)
    dashboard = Dashboard([database.instance.url], token=None)
    client = TestClient(dashboard, base_url="http://127.0.0.1")
    for page in (
        "",
        *(f"i/0/{name}" for name in ("queues", "conversations", "way", "dead-letters", "statements", "audit")),
    ):
        statement_counts.clear()
        answer = client.get(f"/{page}")
        assert answer.status_code == 200, answer.text
        assert max(statement_counts.values()) < MANY_OBJECTS / 2, (page, statement_counts)
        if page == "i/0/queues":  # some of them, those with the most messages first
            assert f"3 of {MANY_OBJECTS + 2} queues, those with the most messages" in answer.text
            assert "dbo.Queue7" in answer.text
    dashboard.close()


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_pages_of_ten_thousand_queues(make_instance_url: Callable[..., str]) -> None:
    """The list shows the queues with the most messages; search finds the others. No page is long or slow."""
    with sb.open(make_instance_url(), upkeep=None) as instance:
        made = define_standard_set(instance.database("Many", create=True))
        for first in range(0, CROWD_SIZE, 500):
            with made.defining() as definitions:
                for number in range(first, first + 500):
                    definitions.create_queue(f"Queue{number}")
                    definitions.create_service(f"//test/{number}", f"Queue{number}", [CONTRACT])
        made.send(begin(made, "//test/7"), ORDER, b"seventh")
        dashboard = Dashboard([instance.url], token=None)
        with TestClient(dashboard, base_url="http://127.0.0.1") as client:
            for page in (
                "",
                *(f"i/0/{name}" for name in ("queues", "conversations", "way", "dead-letters", "statements")),
            ):
                client.get(f"/{page}")
                started_at = time.monotonic()
                answer = client.get(f"/{page}")
                assert time.monotonic() - started_at < 1.0, page
                assert answer.status_code == 200, answer.text
                assert len(answer.content) < 500_000, page
            assert "dbo.Queue7<" in client.get("/i/0/queues").text
            output = client.get("/i/0/queues", params={"name": f"Queue{CROWD_SIZE - 1}"}).text
            assert f"1 of {CROWD_SIZE + 2:,} queues" in output
            assert f"//test/{CROWD_SIZE - 1}" in output
        dashboard.close()


def test_a_queue_is_made_in_a_few_round_trips(database: sb.Database, statement_counts: Counter[str]) -> None:
    """One round trip creates its tables, indexes, functions, view and triggers."""
    database.create_queue("OneMore")
    assert statement_counts.total() <= 8
    assert statement_counts["queue.queue_objects"] == 1
    statement_counts.clear()
    database.alter_queue("OneMore", retention=True)
    assert statement_counts["queue.queue_functions"] == 1


def test_the_status_shows_the_first_services_of_a_queue(database: sb.Database) -> None:
    for number in range(5):
        database.create_service(f"//test/more/{number}", "Queue1")
    result = CliRunner().invoke(
        app, ["status"], env={"SERVICEBROKER_INSTANCE": database.instance.url, "COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.exception
    assert "//test/more/1" in result.stdout
    assert "//test/more/2" not in result.stdout
    assert "and 3 more" in result.stdout


def test_an_idle_activated_queue_is_not_looked_at(database: sb.Database, statement_counts: Counter[str]) -> None:
    """A message must still be noticed, however it arrives."""
    received: list[bytes | None] = []

    @sb.procedure("usp_Many")
    def many(transaction: sb.Transaction, message: sb.Message) -> None:
        received.append(message.message_body)

    database.receive("Queue7")
    for number in range(MANY_OBJECTS):
        activation = sb.Activation("usp_Many", 1, "SELF", status=True)
        database.alter_queue(f"Queue{number}", activation=activation)
    with sb.activate(database.instance, interval=0.4):

        def count_polls() -> int:
            before, ticks = statement_counts["monitors.poll_queue"], statement_counts["monitors.poll_changed"]
            eventually(lambda: statement_counts["monitors.poll_changed"] >= ticks + 5)
            return statement_counts["monitors.poll_queue"] - before

        eventually(lambda: count_polls() == 0, 30)
        database.send(begin(database, "//test/9"), ORDER, b"ninth")
        eventually(lambda: received == [b"ninth"], 5)
        with database.instance.connection() as connection:  # like a SEND that began before it could see the listener
            connection.execute("delete from servicebroker.waiting_readers where is_monitor")
        with database.transaction() as transaction:
            transaction.send(transaction.begin_dialog(ORDERS, "//test/3", contract=CONTRACT), ORDER, b"third")
            count_polls()
        eventually(lambda: received == [b"ninth", b"third"], 5)
        eventually(lambda: count_polls() == 0, 30)


def test_an_instance_with_many_queues_is_upgraded(
    make_instance_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their messages survive, whatever plans PostgreSQL chooses for so many objects."""
    url, every = make_instance_url(), migrations.migrations()
    with sb.open(url, upkeep=None) as instance:
        made = define_standard_set(instance.database("Many", create=True))
        with made.defining() as definitions:
            for number in range(UPGRADED_QUEUES):
                definitions.create_queue(f"Queue{number}", retention=number % 2 == 0)
        made.send(begin(made), ORDER, b"before")
    newer = migrations.Migration(9001, "9001_newer.sql", "alter table servicebroker.routes add column newer integer")
    monkeypatch.setattr(migrations, "migrations", lambda: [*every, newer])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("vacuum analyze")
        for join in ("hashjoin", "mergejoin", "sort"):  # row orders differ from those of a few objects
            connection.execute(f"set enable_{join} = off".encode())
        assert migrations.migrate(connection) == [newer]
    with sb.open(url, upkeep=None) as instance:
        analyzed, findings = instance.check()
        assert analyzed["Service Queues"] > UPGRADED_QUEUES
        assert not findings
        many = instance.database("Many")
        assert not query(many, "select from servicebroker.queues where fingerprint is null")
        assert bodies(many.receive(STOCK_QUEUE)) == [b"before"]
        many.drop_queue("Queue7")


@pytest.mark.full
def test_five_hundred_queues(make_instance_url: Callable[..., str]) -> None:
    """Definitions do not slow down with their number, and a poll of all queues is quick."""
    with sb.open(make_instance_url(), upkeep=None) as instance:
        made = instance.database("Many", create=True)
        times = []
        for number in range(500):
            begins = time.perf_counter()
            made.create_queue(f"Queue{number}")
            times.append(time.perf_counter() - begins)
        assert sorted(times[400:])[50] < 3 * sorted(times[:100])[50]
        for look in (instance.status, instance.check):
            begins = time.perf_counter()
            look()
            assert time.perf_counter() - begins < 3  # 0.1 s and 0.8 s on an idle machine
