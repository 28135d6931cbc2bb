"""The figures of the dashboard: rates, counts of large queues, statements, and one snapshot for many viewers."""

from __future__ import annotations

import re
import threading
import time

import psycopg
import pytest

import servicebroker as sb
from dashboard_support import Browser, send_messages
from servicebroker.dashboard import snapshot_cache
from servicebroker.engine.diagnosis.queue_counts import queue_depths
from servicebroker.store.running import run
from support import ORDER, STOCK_QUEUE, begin, eventually, query, queue_number

pytestmark = pytest.mark.usefixtures("always_fresh")


def test_rates_are_of_the_last_seconds(database: sb.Database, browser: Browser) -> None:
    def flush_statistics() -> None:  # PostgreSQL reports the counters of a session when it is idle, up to 10 s later
        query(database, "select pg_stat_force_next_flush()")

    flush_statistics()
    browser.page("i/0/queues")
    send_messages(database, *[(ORDER, b"x")] * 50)
    flush_statistics()
    row = browser.page("i/0/queues").xpath(f"//tr[@data-key='{database.name}.dbo.{STOCK_QUEUE}']")[0]
    assert float(row.xpath("td[@data-label='In/s']")[0].text_content().replace(",", "")) > 0
    assert row.xpath("td[@data-label='Messages']")[0].text_content() == "50"


def test_a_rate_is_the_increase_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 102.0, 111.0, 200.0])
    monkeypatch.setattr(snapshot_cache.time, "monotonic", lambda: next(times))
    rates = snapshot_cache.Rates()
    assert rates.update({("a",): 1000}) == {("a",): 0.0}
    assert rates.update({("a",): 1020, ("b",): 5}) == {("a",): 10.0, ("b",): 0.0}
    assert rates.update({("a",): 1110})[("a",)] == 10.0
    assert rates.update({("a",): 90}) == {("a",): 0.0}  # the server's counters were reset


def test_many_viewers_are_one_question(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_cache, "FRESH_S", 60.0)
    observed, looks_ = snapshot_cache.ObservedInstance(database.instance.url), []
    for _ in range(5):
        assert observed.read("page", lambda instance: looks_.append(1) or {"n": len(looks_)}).facts == {"n": 1}
    observed.invalidate()
    assert observed.read("page", lambda instance: {"n": 2}).facts == {"n": 2}
    observed.close()


def test_slow_facts_are_cached_while_they_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading takes a sixth of the time at most. A failure is reported to the next viewer."""
    monkeypatch.setattr(snapshot_cache, "SLOW_S", 0.01)
    watched, going, asked = snapshot_cache.CachedSource("slow"), threading.Event(), []

    def ask() -> int:
        asked.append(time.monotonic())
        going.wait(0.05 if len(asked) == 1 else 20)
        if len(asked) == 3:
            raise sb.BrokerError(8426, "x")
        return len(asked)

    assert watched.snapshot("page", ask, 0.0).facts == 1
    assert watched.snapshot("page", ask, 0.0).facts == 1
    assert len(asked) == 1, "it rests"
    time.sleep(0.05 * (snapshot_cache.MIN_IDLE_FACTOR + 1))
    started_at = time.monotonic()
    assert [watched.snapshot("page", ask, 0.0).facts for _ in range(10)] == [1] * 10
    assert time.monotonic() - started_at < 5, "nobody waits for it"
    assert len(asked) <= 2
    going.set()
    eventually(lambda: watched.snapshot("page", lambda: 2, 0.0).facts == 2)
    watched.invalidate()
    asked[:] = [0.0, 0.0]
    with pytest.raises(sb.BrokerError):  # after an action no viewer gets the old state
        watched.snapshot("page", ask, 0.0)


def test_a_look_that_was_asked_before_an_act_is_not_of_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for slow in (0.0, 60.0):  # in the background, and by the request itself
        monkeypatch.setattr(snapshot_cache, "SLOW_S", slow)
        watched, asked, going = snapshot_cache.CachedSource("acted on"), threading.Event(), threading.Event()
        watched.snapshot("page", lambda: "old", 0.0)

        def ask(asked: threading.Event = asked, going: threading.Event = going) -> str:
            asked.set()
            assert going.wait(20)
            return "before the act"

        monkeypatch.setattr(snapshot_cache, "MIN_IDLE_FACTOR", 0)
        other = threading.Thread(target=watched.snapshot, args=("page", ask, 0.0))
        other.start()
        assert asked.wait(20)
        watched.invalidate()
        after = threading.Timer(0.1, going.set)
        after.start()
        assert watched.snapshot("page", lambda: "after the act", 60.0).facts == "after the act"
        assert watched.snapshot("page", lambda: "later", 60.0).facts == "after the act", "it is fresh"
        for thread in (other, after):
            thread.join()


def test_trouble_is_over_when_a_look_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_cache, "SLOW_S", 0.0)
    watched = snapshot_cache.CachedSource("down for a while")

    def down() -> str:
        raise psycopg.OperationalError("it is down")

    assert watched.snapshot("page", lambda: "old", 0.0).trouble == ""
    monkeypatch.setattr(snapshot_cache, "MIN_IDLE_FACTOR", 0)
    eventually(lambda: watched.snapshot("page", down, 0.0)[::2] == ("old", "it is down"))  # by a read in the background
    watched.invalidate()
    assert watched.snapshot("page", down, 0.0)[::2] == ("old", "it is down")
    assert watched.snapshot("page", lambda: "new", 0.0)[::2] == ("new", "")
    assert watched.snapshot("page", lambda: "newer", 60.0)[::2] == ("new", ""), "it is fresh, and there is no trouble"


def test_the_count_of_many_messages_comes_from_the_statistics(
    database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer that polls every second counts only part of a large queue. Smaller counts are exact."""
    database.send_batch(begin(database), ORDER, [b"x"] * 300)
    number = queue_number(database, STOCK_QUEUE)
    counted = "select pg_stat_force_next_flush(), pg_stat_get_tuples_inserted(%s::regclass)"
    # otherwise unreported counts of the sender would be added to those of VACUUM
    eventually(lambda: query(database, counted, f"servicebroker.queue_{number}")[0][1] == 300)
    with database.instance.connection() as connection:
        connection.execute(f"vacuum analyze servicebroker.queue_{number}")  # type: ignore[call-overload]
        told = {most: run(connection, queue_depths([number], most))[number].messages for most in (100, 301, 100_000)}
    assert told == {100: 300, 301: 300, 100_000: 300}


def test_statements_are_told_by_name(database: sb.Database, browser: Browser) -> None:
    send_messages(database, (ORDER, b"1"))
    with sb.open(database.instance.url, upkeep=None) as other_instance:
        other_instance.database(database.name).receive(STOCK_QUEUE)
    assert re.search(
        r"RECEIVE conversation\.receive \d+ % \d+ % [\d,]+ [\d.]+ [\d.]+", browser.text("i/0/statements", all="1")
    )
