"""Schedules of workers: with the engine, as a restricted role, and with the test double."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from threading import Event
from typing import Any

import pytest

import servicebroker as sb
import servicebroker.testing as double
from servicebroker.api.working import _handle
from servicebroker.model.handlers.schedules import Schedule
from servicebroker.operations.schedules import KeepSchedule, TakeTurn
from support import (
    ORDER,
    ORDERS_QUEUE,
    STOCK_QUEUE,
    Clock,
    begin,
    define_standard_set,
    eventually,
    in_thread,
    query,
    refused,
)

FIVE_MINUTES = timedelta(minutes=5)


class ScheduleBed:
    """A database, real or in memory, with a clock that the test moves and a way to run workers."""

    def __init__(self, database: Any, clock: Any, run: Callable[[sb.Worker], None]) -> None:
        self.database, self.clock, self.run = database, clock, run

    def to_next_hour(self) -> datetime:
        """Jump to ten seconds before a full hour, and return the hour."""
        hour: datetime = self.clock().replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        self.clock.jump(seconds=(hour - self.clock()).total_seconds() - 10)
        return hour


def stock_worker(**options: Any) -> sb.Worker:
    """Return a worker with a handler for orders, since initiators may send them to its queue."""
    worker = sb.Worker(STOCK_QUEUE, **options)
    worker.on(ORDER)(lambda tx, message: None)
    return worker


def run_once(database: sb.Database, worker: sb.Worker) -> None:
    """Run a worker in this thread until the queue is empty."""
    worker.check(is_async=False)
    for name, schedule in worker.schedules.items():
        with database.transaction() as transaction:
            transaction.run(KeepSchedule(worker.queue, name, schedule))
    database.process(worker.queue, partial(_handle, worker), poison=worker.poison)


@pytest.fixture(params=["engine", "double"])
def course(request: pytest.FixtureRequest) -> ScheduleBed:
    if request.param == "engine":
        database = request.getfixturevalue("database")
        return ScheduleBed(database, request.getfixturevalue("clock"), partial(run_once, database))
    instance = double.open()
    fake = define_standard_set(instance.database("Test", create=True))  # type: ignore[arg-type]

    def run(worker: sb.Worker) -> None:
        while fake.run_worker_once(worker):  # type: ignore[attr-defined]
            pass

    return ScheduleBed(fake, instance.clock, run)


@pytest.mark.parametrize(("missed", "late"), [("once", [11]), ("all", list(range(12))), ("skip", [])])
def test_a_schedule_fires_each_time_once(course: ScheduleBed, missed: Any, late: list[int]) -> None:
    worker, fired_times = stock_worker(), []

    @worker.every("*/5 * * * *", missed=missed)
    def job(tx: sb.Transaction, at: datetime) -> None:
        fired_times.append(at)

    hour = course.to_next_hour()
    course.run(worker)
    assert fired_times == []
    (schedule,) = course.database.schedules()
    assert (schedule.queue, schedule.name, schedule.rule, schedule.next_time) == (
        f"dbo.{STOCK_QUEUE}",
        "job",
        "*/5 * * * *",
        hour,
    )
    for seconds in (15, 300, 300):
        course.clock.jump(seconds=seconds)
        course.run(worker)
        course.run(worker)
    assert fired_times == [hour, hour + FIVE_MINUTES, hour + 2 * FIVE_MINUTES]
    fired_times.clear()
    course.clock.jump(minutes=62)  # the next 12 times; the last is two minutes ago
    course.run(worker)
    assert fired_times == [hour + (3 + place) * FIVE_MINUTES for place in late]
    course.clock.jump(minutes=3)
    course.run(worker)
    assert fired_times[len(late) :] == [hour + 15 * FIVE_MINUTES]


def test_a_schedules_handler_gets_messages_or_the_time(course: ScheduleBed) -> None:
    worker, got = sb.Worker(STOCK_QUEUE, batch=5), []

    @worker.every(timedelta(hours=1), name="plain")
    def plain(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        got.append(messages[0])

    @worker.every("0 * * * *", name="times", time_zone="Europe/Berlin")
    def times(tx: sb.Transaction, at: list[datetime]) -> None:
        got.append(at[0])

    @worker.on(ORDER)
    def order(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        got.append(messages[0].message_body)

    hour = course.to_next_hour()
    course.run(worker)
    course.database.send(begin(course.database), ORDER, b"order")
    course.clock.jump(seconds=11)
    course.run(worker)
    (message,) = (item for item in got if isinstance(item, tuple))
    assert message.is_timer
    assert message.message_body == hour.isoformat().encode()
    assert sorted(map(str, got[:0] + [item for item in got if not isinstance(item, tuple)])) == [str(hour), "b'order'"]


def test_a_failure_is_judged_and_the_schedule_goes_on(course: ScheduleBed) -> None:
    for verdict in (sb.SetAside(), sb.Ignore(), sb.EndWithError(5, "no"), sb.Reply(ORDER, b"")):
        worker = stock_worker(poison=sb.give_up_after(2, verdict, pause=1))
        tried: list[datetime] = []

        @worker.every("@hourly", name=f"fails {verdict}")
        def fails(tx: sb.Transaction, at: datetime, tried: list[datetime] = tried) -> None:
            tried.append(at)
            raise ValueError("failed")

        hour = course.to_next_hour()
        course.run(worker)
        for _ in range(4):
            course.clock.jump(seconds=12)
            course.run(worker)
        assert tried == [hour] * 3
        course.clock.jump(hours=1)
        course.run(worker)
        assert tried == [hour] * 3 + [hour + timedelta(hours=1)]
        course.clock.jump(seconds=5)
        course.run(worker)
        course.database.drop_schedule(STOCK_QUEUE, f"fails {verdict}")
    letters = course.database.set_aside_messages()
    assert len(letters) == 3
    assert all(datetime.fromisoformat(letter.message_body.decode()).minute == 0 for letter in letters)


def test_changes(course: ScheduleBed) -> None:
    def worker(rule: str | timedelta, **options: Any) -> sb.Worker:
        stock = stock_worker()
        stock.every(rule, name="job", **options)(lambda tx, message: None)
        return stock

    hour = course.to_next_hour()
    course.run(worker("0 * * * *"))
    (before,) = course.database.schedules()
    course.run(worker("0 * * * *", missed="all"))
    (after,) = course.database.schedules()
    assert after == before._replace(missed="all")
    course.run(worker("30 * * * *"))
    (after,) = course.database.schedules()
    assert (after.conversation_handle, after.next_time) == (before.conversation_handle, hour + timedelta(minutes=30))
    course.database.end_conversation(before.conversation_handle, cleanup=True)
    course.run(worker(timedelta(seconds=7)))
    (after,) = course.database.schedules()
    assert after.conversation_handle != before.conversation_handle
    assert after.rule == "@every 7"
    course.database.drop_schedule(STOCK_QUEUE, "job")
    assert course.database.schedules() == []
    assert (
        course.database.conversation_endpoints() == [] if hasattr(course.database, "conversation_endpoints") else True
    )
    with refused(15151):
        course.database.drop_schedule(STOCK_QUEUE, "job")


def test_a_drop_waits_for_the_turn(database: sb.Database, clock: Clock) -> None:
    worker = stock_worker()
    worker.every("@hourly", name="job")(lambda tx, message: None)
    run_once(database, worker)
    clock.jump(hours=1)
    with database.transaction() as transaction:
        (message,) = transaction.receive(STOCK_QUEUE)
        dropping = in_thread(lambda: database.drop_schedule(STOCK_QUEUE, "job"))
        eventually(lambda: query(database, "select count(*) from pg_locks where not granted") != [(0,)])
        assert transaction.run(TakeTurn(message.conversation_handle)) is not None
    dropping.result(10)
    assert database.schedules() == []


def test_a_refused_start_stores_no_schedule(course: ScheduleBed) -> None:
    worker = stock_worker()
    worker.every("@hourly", name="job")(lambda tx, at: None)
    with refused(402, "one without handlers"), course.database.working(worker, sb.Worker(ORDERS_QUEUE)):
        raise AssertionError("it has started")
    assert course.database.schedules() == []


def test_a_worker_without_the_schedule_keeps_a_dead_letter(course: ScheduleBed) -> None:
    worker, fired_times = stock_worker(), []

    @worker.every("@hourly", name="job")
    def job(tx: sb.Transaction, at: datetime) -> None:
        fired_times.append(at)

    hour = course.to_next_hour()
    course.run(worker)
    other_worker = stock_worker(poison=sb.give_up_after(1, sb.SetAside()))
    other_worker.on()(lambda tx, message: None)
    course.clock.jump(seconds=11)
    course.run(other_worker)
    (letter,) = course.database.set_aside_messages()
    assert "has no schedule 'job'" in letter.error
    assert len(course.database.schedules()) == 1
    course.database.replay_message(letter.set_aside_id)
    course.clock.jump(hours=1)
    course.run(worker)
    assert sorted(fired_times) == [hour, hour + timedelta(hours=1)]


def test_invalid_schedules_are_refused() -> None:
    worker = sb.Worker("Q")
    worker.every("@daily", name="one")(lambda tx, message: None)
    with refused(402):
        worker.every("@daily", name="one")(lambda tx, message: None)
    with refused(402):
        worker.every("@daily", name="")(lambda tx, message: None)
    with refused(402):
        worker.every("@daily")(lambda tx: None)
    with refused(402):
        worker.every("nonsense")

    async def job(tx: sb.AsyncTransaction, message: sb.Message) -> None: ...

    with refused(402):
        worker.every("@daily")(job)

    def typed_handler(tx: sb.Transaction, at: int) -> None: ...

    worker.every("@daily")(typed_handler)
    with refused(402):
        worker.check(is_async=False)


def test_the_double_lets_time_pass() -> None:
    instance, fired_times = double.open(), []
    database = define_standard_set(instance.database("Test", create=True))  # type: ignore[arg-type]
    worker = sb.Worker(STOCK_QUEUE)
    worker.every("*/10 * * * *", name="job")(lambda tx, message: fired_times.append(message.message_body))
    worker.on(ORDER)(lambda tx, message: fired_times.append(message.message_body))
    with database.working(worker):
        database.send(begin(database), ORDER, b"x", delay=60)
        instance.pass_time(hours=1)
    assert len(fired_times) == 7


def test_schedules_fire_in_the_asyncio_double() -> None:
    async def course() -> list[datetime]:
        instance = double.open_async()
        database = await instance.database("Test", create=True)
        await database.create_queue("Q")
        await database.create_service("S", "Q")
        worker, fired_times = sb.Worker("Q"), []

        @worker.every("@hourly")
        async def job(tx: sb.AsyncTransaction, at: datetime) -> None:
            fired_times.append(at)

        async with database.working(worker):
            await instance.pass_time(hours=3)
        return fired_times

    assert [at.hour for at in asyncio.run(course())] == [1, 2, 3]


@pytest.mark.both_apis
def test_first_starts_at_the_same_time_agree(database: sb.Database) -> None:
    """The second worker waits for the first, and ends the conversation that it has begun."""
    keep = KeepSchedule(STOCK_QUEUE, "job", Schedule("*/5 * * * *", "UTC", "once"))
    with database.transaction() as first:
        first.run(keep)
        second = in_thread(database.run, keep)
        waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        eventually(lambda: query(database, waits)[0][0])
    second.result(30)
    assert query(database, "select count(*) from servicebroker.schedules") == [(1,)]
    assert query(database, "select count(*) from servicebroker.conversation_endpoints") == [(1,)]


def test_two_workers_share_a_schedule(database: sb.Database) -> None:
    """Two workers share a schedule; each second fires once."""
    fired_times: list[datetime] = []
    workers = [stock_worker() for _ in range(2)]
    for worker in workers:
        worker.every(timedelta(seconds=1), name="job", missed="all")(
            lambda tx, message: fired_times.append(datetime.fromisoformat(message.message_body.decode()))
        )
    with database.working(*workers):
        eventually(lambda: len(fired_times) >= 3)
    assert all(after - before == timedelta(seconds=1) for before, after in pairwise(fired_times))


@pytest.mark.parametrize("count", [60, pytest.param(20_000, marks=pytest.mark.full)])
def test_no_time_twice_under_kills_and_clock_jumps(
    database: sb.Database, clock: Clock, seeded_random: random.Random, count: int
) -> None:
    """Readers die within their handlers, and the clock jumps: each time is in the table once."""
    with database.instance.connection() as connection:
        connection.execute("create table fired (at timestamptz)")

    class KillSignal(BaseException):
        pass

    def job(tx: sb.Transaction, at: datetime) -> None:
        tx.connection.execute("insert into fired values (%s)", (at,))
        chance = seeded_random.random()
        if chance < 0.05:
            tx.connection.close()
        elif chance < 0.1:
            raise KillSignal
        elif chance < 0.15:
            raise ValueError("failed")

    worker = stock_worker(poison=lambda failure: sb.Retry(0))
    worker.every("* * * * *", missed="all")(job)
    run_once(database, worker)
    (schedule,) = database.schedules()

    over = Event()

    def read() -> None:
        while not over.is_set():
            try:
                database.process(STOCK_QUEUE, partial(_handle, worker), poison=worker.poison)
            except (KillSignal, sb.ServiceBrokerError):
                continue

    def fired_times() -> list[datetime]:
        return [at for (at,) in query(database, "select at from fired order by at")]

    readers = [in_thread(read) for _ in range(2)]
    while len(times := fired_times()) < count:
        if len(times) >= (clock() - schedule.next_time) / timedelta(minutes=1):
            clock.jump(seconds=seeded_random.choice([1, 30, 60, 61, 600, 6000]))
    over.set()
    for reader in readers:
        reader.result(60)
    times = fired_times()
    assert times == [schedule.next_time + timedelta(minutes=index) for index in range(len(times))]
    assert times[-1] <= clock()


@pytest.mark.parametrize("count", [500, pytest.param(100_000, marks=pytest.mark.full)])
def test_no_time_fires_twice_in_the_double(seeded_random: random.Random, count: int) -> None:
    instance, fired_times, kept = double.open(), [], []
    database = define_standard_set(instance.database("Test", create=True))  # type: ignore[arg-type]
    worker = stock_worker(poison=lambda failure: sb.Retry(0.5))

    @worker.every("*/2 * * * *", missed="all")
    def job(tx: sb.Transaction, at: datetime) -> None:
        fired_times.append(at)
        if seeded_random.random() < 0.1:
            raise ValueError("failed")
        kept.append(at)

    with database.working(worker):
        while len(kept) < count:
            instance.pass_time(seconds=seeded_random.choice([1, 30, 60, 120, 600, 6000]))
    assert all(after - before == timedelta(minutes=2) for before, after in pairwise(kept))
    assert len(fired_times) > count
