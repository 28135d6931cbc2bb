"""The history of the last hour, day and month: samples, omissions and reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import LiteralString

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app
from servicebroker.dashboard import Dashboard
from servicebroker.engine.diagnosis.history import RateHistory, queue_histories, record_history_sample, total_history
from servicebroker.store.running import run, run_alone
from support import ORDER, STOCK_QUEUE, begin, eventually, open_dialog, query

HOUR = timedelta(hours=1)
STOCK = ("Test", f"dbo.{STOCK_QUEUE}")


@pytest.fixture
def database(make_instance_url: Callable[..., str]) -> Iterator[sb.Database]:
    """Open a database without a background, so that only the test takes samples."""
    with sb.open(make_instance_url(1), upkeep=None) as instance:
        execute(instance.database("Test"), "delete from servicebroker.history_samples")
        execute(instance.database("Test"), "delete from servicebroker.history")
        yield instance.database("Test")


def execute(database: sb.Database, text: LiteralString) -> None:
    with database.instance.connection() as connection:
        connection.execute(text)


def send(database: sb.Database, handle: object, count: int) -> None:
    with database.transaction() as tx:
        for _ in range(count):
            tx.send(handle, ORDER, b"x")  # type: ignore[arg-type]
        tx.connection.execute("select pg_stat_force_next_flush()")


def receive(database: sb.Database, count: int) -> None:
    with database.transaction() as tx:
        assert len(tx.receive(STOCK_QUEUE, top=count)) == count
        tx.connection.execute("select pg_stat_force_next_flush()")


def take_sample(database: sb.Database) -> None:
    """Take a sample, and let ten seconds pass."""
    with database.instance.connection() as connection:
        run_alone(connection, record_history_sample())
    wait(database, 10)


def wait(database: sb.Database, seconds: int) -> None:
    """Let time pass: make all samples older."""
    with database.instance.connection() as connection:
        connection.execute("update servicebroker.history_samples set slot = -slot")  # so that all are different
        for table, change in (("history_samples", "slot = -slot - %(s)s / 10, "), ("history", "")):
            connection.execute(
                f"update servicebroker.{table} set {change}at = at - make_interval(secs => %(s)s)", {"s": seconds}
            )


def history_of(database: sb.Database, span: timedelta = HOUR) -> RateHistory:
    with database.instance.connection() as connection:
        return run(connection, queue_histories(database.instance.clock(), span))[STOCK]


def total(rates: list[float | None], history: RateHistory) -> int:
    return round(sum(rate or 0.0 for rate in rates) * history.part_s)


def test_the_history_has_arrivals_departures_and_lengths(database: sb.Database) -> None:
    handle = begin(database)
    send(database, handle, 1)
    take_sample(database)
    send(database, handle, 20)
    take_sample(database)
    receive(database, 15)
    send(database, handle, 2)
    take_sample(database)
    take_sample(database)
    history = history_of(database)
    assert (total(history.rates_in, history), total(history.rates_out, history)) == (22, 15)
    with database.instance.connection() as connection:
        now = database.instance.clock()
        all_of_them = run(connection, total_history(now, HOUR))
        short = run(connection, queue_histories(now, timedelta(minutes=1)))[STOCK]
    assert total(all_of_them.rates_in, all_of_them) == 22
    there = [depth for depth in short.depths if depth is not None]
    assert (total(short.rates_in, short), max(there) - there[-1]) == (22, 13)
    assert history.rates_in[0] is None, "nobody has watched an hour ago"


def test_a_depth_is_that_of_its_part(database: sb.Database) -> None:
    """A row per minute has the peak of its minute, most of which may lie before the shown part."""
    take_sample(database)
    send(database, begin(database), 1)
    take_sample(database)
    receive(database, 1)
    take_sample(database)
    wait(database, 60)
    take_sample(database)
    fine = history_of(database, timedelta(seconds=150))
    assert [depth for depth in fine.depths if depth is not None][-3:] == [1, 0, 0]
    wait(database, 600)
    take_sample(database)
    coarse = history_of(database, timedelta(hours=2))
    assert max(depth for depth in coarse.depths if depth is not None) == 1


def test_an_idle_queue_needs_no_rows_and_a_sample_is_taken_once(database: sb.Database) -> None:
    take_sample(database)
    for _ in range(12):  # rows of a longer interval exist by now
        take_sample(database)
    rows = query(database, "select queue_id from servicebroker.history group by 1 having count(*) > 3")
    assert rows == []
    with database.instance.connection() as connection:
        for _ in range(3):
            run_alone(connection, record_history_sample())
    assert query(database, "select count(*) from servicebroker.history_samples") == [(14,)]


def test_an_hour_is_kept_in_minutes_and_a_day_in_tens_of_them(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    send(database, handle, 0)
    take_sample(database)
    for _ in range(20):
        send(database, handle, 3)
        take_sample(database)
    send(database, handle, 1000)
    take_sample(database)
    with database.transaction() as tx:
        assert len(tx.receive(STOCK_QUEUE, top=5000)) > 1000
        tx.connection.execute("select pg_stat_force_next_flush()")
    for hours, finest in ((2, 60), (24, 600)):
        wait(database, hours * 3600)
        take_sample(database)
        history = history_of(database, timedelta(hours=hours + 3))
        assert total(history.rates_in, history) == 1060
        assert max(depth for depth in history.depths if depth is not None) >= 1000, "a peak is kept too"
        steps = query(
            database, "select min(step) from servicebroker.history_samples where at < now() - interval '1 hour'"
        )
        assert steps[0][0] >= finest
    wait(database, 31 * 86400)
    take_sample(database)
    assert query(database, "select count(*) from servicebroker.history_samples") == [(1,)]
    rows = query(database, "select count(*) from servicebroker.history group by queue_id having count(*) > 2")
    assert rows == []


def test_counters_that_begin_anew_are_no_negative_rate(database: sb.Database) -> None:
    handle, _ = open_dialog(database)
    send(database, handle, 0)
    take_sample(database)
    execute(database, "update servicebroker.history set arrived = arrived + 100000, departed = departed + 100000")
    send(database, handle, 7)
    take_sample(database)
    history = history_of(database)
    assert 0 < total(history.rates_in, history) < 100
    assert min(rate for rate in (*history.rates_in, *history.rates_out) if rate is not None) >= 0


def test_a_queue_that_is_dropped_has_no_history(database: sb.Database) -> None:
    database.create_queue("Short")
    take_sample(database)
    database.drop_queue("Short")
    wait(database, 2 * 30 * 86400)
    take_sample(database)
    gone = "select from servicebroker.history where queue_id <> 0 and queue_id not in (select queue_id from "
    assert query(database, f"{gone}servicebroker.queues)") == []


def test_the_background_writes_it_and_status_and_the_dashboard_tell(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url(1)
    with sb.open(url) as instance:
        database = instance.database("Test")
        handle, _ = open_dialog(database)
        send(database, handle, 5)
        eventually(lambda: query(database, "select from servicebroker.history"))
    with sb.open(url, upkeep=None) as instance:  # otherwise the background could take a sample in between
        database = instance.database("Test")
        wait(database, 10)
        send(database, handle, 50)
        take_sample(database)
        result = CliRunner().invoke(
            app, ["status", "--since", "1h", "--json", "--instance", url], catch_exceptions=False
        )
        stock = next(row for row in json.loads(result.stdout)["history"] if row["queue"] == STOCK[1])
        rates = stock["servicebroker_enqueued_messages_per_second"]
        assert round(sum(rate or 0 for rate in rates) * stock["seconds"]) >= 50
        result = CliRunner().invoke(app, ["status", "--since", "10min", "--instance", url], catch_exceptions=False)
        assert STOCK[1] in result.stdout
        assert "█" in result.stdout
        dashboard = Dashboard([url], token=None)
        with TestClient(dashboard, base_url="http://127.0.0.1") as browser:
            for page in ("/", "/i/0/queues", f"/i/0/queue?database=Test&queue={STOCK[1]}", "/?span=month"):
                shown = browser.get(page)
                assert "<polyline" in shown.text, page


@pytest.mark.parametrize("wrong", ["1", "an hour", "5s", "367d", "99999999999h"])
def test_a_time_that_is_none_is_refused(wrong: str) -> None:
    result = CliRunner().invoke(app, ["status", "--since", wrong, "--instance", "postgresql://nowhere"])
    assert result.exit_code == 2
