"""`servicebroker serve --metrics`: the counters follow their events."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from datetime import UTC, datetime
from typing import Any

import prometheus_client
import pytest

import servicebroker as sb
from forked import Command, run_command
from remote_support import Wire
from servicebroker.broker import journal, metrics
from servicebroker.cli.http_server import serve_wsgi
from servicebroker.model.events import ACTIVATION_CLASS, QUEUE_DISABLED_CLASS, Events
from servicebroker.protocol.wire_errors import CorruptedMessage
from support import CONTRACT, ORDER, ORDERS, STOCK_QUEUE, begin, eventually, refused, rolled_back


def scrape(url: str) -> dict[str, float]:
    text = prometheus_client.generate_latest(metrics.registry(url)).decode()
    return parse_samples(text)


def parse_samples(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^([^#\s].*?) (\S+)$", text, flags=re.MULTILINE)}


def test_metrics_read_from_postgresql(fresh_database: sb.Database) -> None:
    database, url = fresh_database, fresh_database.instance.url
    of = f'{{database="{database.name}",queue="dbo.{STOCK_QUEUE}"}}'
    before = scrape(url)
    assert before["servicebroker_up"] == 1
    assert before[f"servicebroker_queue_messages{of}"] == 0
    database.send_batch(begin(database), ORDER, [b"1", b"2", b"3"])
    database.send(database.begin_dialog(ORDERS, "//nowhere", contract=CONTRACT), ORDER, b"x")
    with database.instance.connection() as connection:
        connection.execute("select pg_stat_force_next_flush()")

    def has_three_enqueued() -> bool:
        samples = scrape(url)
        return samples[f"servicebroker_enqueued_messages_total{of}"] == 3

    eventually(has_three_enqueued)
    samples = scrape(url)
    assert samples[f"servicebroker_queue_messages{of}"] == 3
    assert 0 <= samples[f"servicebroker_queue_oldest_seconds{of}"] < 60
    assert sum(value for name, value in samples.items() if "transmission_queue_messages" in name) == 1
    state = f'{{database="{database.name}",queue="dbo.{STOCK_QUEUE}",state="CO"}}'
    assert samples[f"servicebroker_conversations{state}"] == 1
    database.process(STOCK_QUEUE, _fail, poison=lambda failure: sb.Retry(after=600))
    assert scrape(url)[f"servicebroker_failing_messages{of}"] == 1
    with refused(9617):
        for _ in range(6):
            with rolled_back(database) as transaction:
                transaction.receive(STOCK_QUEUE, conversation_handle=_handle(database))
    assert scrape(url)[f"servicebroker_queue_off{of}"] == 1


def test_events_of_readers_and_of_poison_are_counted() -> None:
    events = Events()
    events.subscribe(metrics.count_event)

    def read_counters() -> list[float]:
        samples = parse_samples(prometheus_client.generate_latest(metrics.REGISTRY).decode())
        names = ['activation_events_total{subclass="Started"}', 'activation_events_total{subclass="Aborted"}']
        return [samples.get(f"servicebroker_{name}", 0.0) for name in (*names, "queue_disabled_events_total")]

    before = read_counters()
    now = datetime.now(UTC)
    for _ in range(2):
        events.record(ACTIVATION_CLASS, now, 5, 70000, "Started: p on Q, 1 active tasks", "Started")
    events.record(ACTIVATION_CLASS, now, 5, 70000, "Aborted: p on Q, 0 active tasks", "Aborted")
    events.record(QUEUE_DISABLED_CLASS, now, 5, 70000, "off")
    assert [after - was for after, was in zip(read_counters(), before, strict=True)] == [2, 1, 1]
    assert [event.subclass for event in events.recent(ACTIVATION_CLASS)] == ["Started", "Started", "Aborted"]


def _fail(transaction: sb.Transaction, messages: Any) -> None:
    raise ValueError


def _handle(database: sb.Database) -> Any:
    with database.instance.connection() as connection:
        text = f"select conversation_handle from {database.name}_dbo.stockqueue limit 1".encode()
        row = connection.execute(text).fetchone()
    return row[0] if row else None


def test_metrics_counted_by_the_daemon() -> None:
    def value(name: str, **labels: str) -> float:
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    connections = value("servicebroker_connection_events_total", subclass="Connected")
    logins = value("servicebroker_login_events_total", subclass="Login Success")
    corrupted = value("servicebroker_corrupted_messages_total")
    journal.connection("Connected", "there")
    journal.login("Login Success", "there")
    journal.log_corrupted(CorruptedMessage(11251), Wire())
    assert value("servicebroker_connection_events_total", subclass="Connected") == connections + 1
    assert value("servicebroker_login_events_total", subclass="Login Success") == logins + 1
    assert value("servicebroker_corrupted_messages_total") == corrupted + 1


def test_a_database_that_is_down_is_said_and_not_raised() -> None:
    assert scrape("postgresql://127.0.0.1:1/none")["servicebroker_up"] == 0


def test_a_port_that_is_taken(fresh_database: sb.Database) -> None:
    url = fresh_database.instance.url
    with (
        serve_wsgi(metrics.registry(url), "127.0.0.1", 0) as port,
        pytest.raises(sb.InstanceError, match="cannot be served"),
        serve_wsgi(metrics.registry(url), "127.0.0.1", port),
    ):
        pass


def test_the_daemon_serves_them(fresh_database: sb.Database) -> None:
    command = ["serve", "--instance", fresh_database.instance.url]
    wrong = run_command(*command, "--metrics", "everywhere")
    assert (wrong.returncode, "--metrics" in wrong.stderr) == (1, True)
    health = ("--health", "127.0.0.1:0")
    with Command(*command, *health, "--metrics", "127.0.0.1:0", stderr=subprocess.PIPE) as daemon:
        assert daemon.stderr is not None
        try:
            line = next(line for line in daemon.stderr if "/readyz" in line)
            match = re.search(r"http://[\d.:]+/", line)
            assert match is not None
            line = next(line for line in daemon.stderr if "/metrics" in line)
            address = re.search(r"http://\S+/metrics", line)
            assert address is not None
            with urllib.request.urlopen(address[0], timeout=20) as answer:
                assert parse_samples(answer.read().decode())["servicebroker_up"] == 1
            with urllib.request.urlopen(f"{match[0]}readyz", timeout=20) as answer:
                assert answer.read() == b"ok\n"
        finally:
            daemon.terminate()
            daemon.communicate(timeout=20)
    assert daemon.returncode == 0
