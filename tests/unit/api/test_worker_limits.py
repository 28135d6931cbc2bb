"""Limits of a worker, retries of definitions, and counts: what each step takes, and what it gives back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

import servicebroker as sb
from servicebroker.api import lock_retry, maintenance, throttle
from servicebroker.api.lock_retry import find_lock_timeout, retry_locked, with_lock_timeout
from servicebroker.api.maintenance import Maintenance, write_counts
from servicebroker.api.shared.rate_limit import RateLimit
from servicebroker.api.shared.tally import Tally
from servicebroker.api.throttle import MAX_PAUSE_S, SLOT_PAUSE_S, Throttle, limit_of, throttle_of
from servicebroker.model.errors import BrokerError, InstanceError, LockTimeout
from servicebroker.store.statements import Steps

QUEUE_ID = 7


class Database:
    """A stand-in for a database whose statements have the results that a test sets, in turn."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.calls: list[tuple[Any, ...]] = []
        self.engine = SimpleNamespace(call=lambda *call: call)

    def _do(self, call: tuple[Any, ...]) -> Any:
        self.calls.append(call)
        result = self.results.pop(0) if self.results else None
        if isinstance(result, BaseException):
            raise result
        return ((result,),)


class Limit(RateLimit):
    """A local limit whose `take` has the results that a test sets."""

    def __init__(self, *results: float) -> None:
        self.results, self.settled = list(results), list[int]()

    def take(self) -> float:
        return self.results.pop(0)

    def settle(self, received: int) -> None:
        self.settled.append(received)


class Connection:
    """A connection that notes that it is closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Stop:
    """An event that keeps the pauses."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)


def make(database: Database, limit: RateLimit | None, stop: Any = None, **options: Any) -> Throttle:
    made: Any = Throttle(database, sb.Worker("Q", **options), limit, stop)  # type: ignore[arg-type]
    assert isinstance(made, Throttle)
    return made


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_alone(connection: Any, call: tuple[Any, ...]) -> Any:
        return connection.database._do(call)

    monkeypatch.setattr(throttle, "run_alone", run_alone)


def connection_of(database: Database) -> Any:
    connection: Any = Connection()
    connection.database = database
    return connection


@pytest.mark.parametrize(
    ("options", "per_second"),
    [({}, None), ({"rate": "5/s"}, 5), ({"global_rate": "2/s"}, 2), ({"rate": "5/s", "global_rate": "2/s"}, 2)],
)
def test_a_process_takes_at_most_the_smaller_rate(options: dict[str, Any], per_second: float | None) -> None:
    limit = limit_of(sb.Worker("Q", **options))
    assert (limit and 1 / limit._interval) == per_second


@pytest.mark.parametrize(
    ("options", "is_limited"), [({}, False), ({"rate": "5/s"}, True), ({"global_concurrency": 3}, True)]
)
def test_a_worker_without_limits_has_no_throttle(options: dict[str, Any], is_limited: bool) -> None:
    worker = sb.Worker("Q", **options)
    assert (throttle_of(None, worker, limit_of(worker), None) is not None) == is_limited  # type: ignore[arg-type]


def test_a_local_limit_asks_no_database() -> None:
    database, stop = Database(), Stop()
    limited = make(database, Limit(0.0, 0.4, 9.0), stop, rate="5/s")
    assert limited.begin(QUEUE_ID)
    assert [limited.take() for _ in range(3)] == [True, False, False]
    limited.pause()
    limited.pause()  # a pause is made once
    limited.end(QUEUE_ID, 0)
    assert (stop.pauses, database.calls) == ([MAX_PAUSE_S], [])


def test_a_token_of_the_global_rate_is_taken_once_and_paid_by_the_messages() -> None:
    database, limit = Database(0.0), Limit(0.0)
    limited = make(database, limit, Stop(), global_rate="4/s")
    assert limited.begin(QUEUE_ID)
    assert [limited.take(), limited.take()] == [True, False]
    for received in (1, 0, 3):
        limited.end(QUEUE_ID, received)
    settled = [("settle_place", QUEUE_ID, -0.25), ("settle_place", QUEUE_ID, 0.5)]
    assert database.calls == [("take_place", QUEUE_ID, 0.25), *settled]
    limited.settle(3)
    assert limit.settled == [3]


def test_without_a_global_token_the_local_one_is_given_back() -> None:
    database, limit, stop = Database(0.3), Limit(0.0), Stop()
    limited = make(database, limit, stop, global_rate="4/s")
    assert not limited.begin(QUEUE_ID)
    assert not limited.take()
    limited.pause()
    assert (limit.settled, stop.pauses) == ([0], [0.3])


def test_without_a_local_token_no_global_one_is_asked_for() -> None:
    database, limit, stop = Database(), Limit(0.2), Stop()
    limited = make(database, limit, stop, global_rate="4/s")
    assert not limited.begin(QUEUE_ID)
    limited.pause()
    assert (database.calls, limit.settled, stop.pauses) == ([], [], [0.2])


@pytest.mark.usefixtures("alone")
def test_a_slot_is_released_once() -> None:
    database = Database(2)
    limited = make(database, None, Stop(), global_concurrency=3)
    connection = connection_of(database)
    assert limited.enter(connection, QUEUE_ID)
    limited.leave(connection, QUEUE_ID)
    limited.leave(connection, QUEUE_ID)
    assert database.calls == [("take_slot", QUEUE_ID, 3), ("release_slot", QUEUE_ID, 2)]
    assert not connection.closed


@pytest.mark.usefixtures("alone")
def test_without_a_slot_the_token_is_given_back() -> None:
    database, limit, stop = Database(0.0, None), Limit(0.0), Stop()
    limited = make(database, limit, stop, global_rate="4/s", global_concurrency=3)
    connection = connection_of(database)
    assert limited.begin(QUEUE_ID)
    assert not limited.enter(connection, QUEUE_ID)
    assert not limited.take()
    limited.pause()
    limited.leave(connection, QUEUE_ID)
    assert (limit.settled, stop.pauses) == ([0], [SLOT_PAUSE_S])
    assert [call[0] for call in database.calls] == ["take_place", "take_slot"]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("problem", [psycopg.OperationalError("lost"), KeyboardInterrupt()])
def test_a_session_that_may_have_a_slot_is_closed(problem: BaseException) -> None:
    database = Database(problem)
    connection = connection_of(database)
    with pytest.raises(type(problem)):
        make(database, None, Stop(), global_concurrency=3).enter(connection, QUEUE_ID)
    assert connection.closed
    other = Database(1, psycopg.OperationalError("lost"))
    holder, limited = connection_of(other), make(other, None, Stop(), global_concurrency=3)
    assert limited.enter(holder, QUEUE_ID)
    limited.leave(holder, QUEUE_ID)
    assert holder.closed


def test_a_worker_without_global_concurrency_needs_no_slot() -> None:
    database = Database()
    limited = make(database, Limit(), Stop(), rate="5/s")
    assert limited.enter(connection_of(database), QUEUE_ID)
    limited.leave(connection_of(database), QUEUE_ID)
    assert database.calls == []


# ---------------------------------------------------------------- retries of definitions


class Clock:
    """A clock whose pauses move it."""

    def __init__(self) -> None:
        self.now, self.pauses = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(lock_retry, "time", made)
    monkeypatch.setattr(lock_retry, "sleep", made.sleep)
    return made


def attempt(*outcomes: Exception | str) -> tuple[Callable[[int], str], list[int]]:
    numbers: list[int] = []

    def run(number: int) -> str:
        numbers.append(number)
        outcome = outcomes[min(number, len(outcomes) - 1)]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return run, numbers


LOCKED, DEADLOCK = LockTimeout("locked"), BrokerError(1205, 1, "lock")


def test_a_definition_is_tried_again_with_longer_pauses(clock: Clock) -> None:
    run, numbers = attempt(*[LOCKED] * 9, DEADLOCK, "done")
    assert retry_locked(run, 0.0) == "done"
    assert numbers == list(range(11))
    assert clock.pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("timeout_s", "attempts"), [(0.03, 3), (0.031, 4), (0.01, 2)])
def test_a_definition_is_tried_until_its_timeout(clock: Clock, timeout_s: float, attempts: int) -> None:
    run, numbers = attempt(LOCKED)
    with pytest.raises(LockTimeout):
        retry_locked(run, timeout_s)
    assert len(numbers) == attempts


def test_a_deadlock_has_no_timeout_and_other_errors_no_second_try(clock: Clock) -> None:
    run, numbers = attempt(DEADLOCK, DEADLOCK, "done")
    assert retry_locked(run, 0.001) == "done"
    assert len(numbers) == 3
    for problem in (BrokerError(8426, "x"), InstanceError("no"), psycopg.OperationalError("lost")):
        run, numbers = attempt(problem)
        with pytest.raises(type(problem)):
            retry_locked(run, 0.0)
        assert len(numbers) == 1


def drive(steps: Steps[Any], *rows: Any) -> tuple[Any, list[tuple[str, tuple[object, ...]]]]:
    """Run steps whose statements have these rows. Return the result and the statements."""
    seen = []
    answers = iter(rows)
    try:
        statement = next(steps)
        while True:
            seen.append((statement.name.rpartition(".")[2], statement.parameters))
            statement = steps.send(next(answers))
    except StopIteration as ended:
        return ended.value, seen


def test_the_lock_timeout_is_set_for_the_steps_alone() -> None:
    def steps() -> Steps[str]:
        yield SimpleNamespace(name="a.work", parameters=())  # type: ignore[misc]
        return "result"

    result, seen = drive(with_lock_timeout(steps(), 200), [("7s", "200")], [], [])
    assert result == "result"
    assert seen == [("set_timeout", ("200",)), ("work", ()), ("restore_timeout", ("7s",))]
    assert drive(find_lock_timeout(), [(1.5,)])[0] == 1.5


# ---------------------------------------------------------------- counts and maintenance


@pytest.mark.parametrize(
    ("problem", "is_kept"),
    [
        (None, False),
        (psycopg.errors.InsufficientPrivilege("no"), False),
        (psycopg.OperationalError("lost"), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_counts_are_written_once(monkeypatch: pytest.MonkeyPatch, problem: BaseException | None, is_kept: bool) -> None:
    tally, written = Tally(), list[Any]()
    tally.add("sends", 2)

    def run(connection: Any, counts: Any) -> None:
        tally.add("sends")  # another thread counts meanwhile
        if problem is not None:
            raise problem
        written.append(counts)

    monkeypatch.setattr(maintenance, "run", run)
    monkeypatch.setattr(maintenance, "add_totals", dict)
    try:
        write_counts(None, tally)  # type: ignore[arg-type]
    except (psycopg.OperationalError, KeyboardInterrupt):
        assert is_kept
    assert written == ([{"sends": 2}] if problem is None else [])
    assert tally.take() == {"sends": 3 if is_kept else 1}
    assert tally.take() == {}


@pytest.fixture
def upkeep(monkeypatch: pytest.MonkeyPatch) -> Maintenance:
    made = Maintenance.__new__(Maintenance)
    made._clock, made._catalog = (lambda: None), (lambda: None)  # type: ignore[assignment, return-value]
    made._since, made._release_at = 0, None
    made._received, made._remaining_attempts = maintenance.Counter(), 0
    return made


@pytest.mark.parametrize(
    ("since", "oldest", "outcome", "asked", "then"),
    [
        (0, 50, False, 0, 50),
        (50, 60, False, 50, 60),
        (50, 60, True, 50, 50),  # messages are left, which the next call delivers
        (50, 50, False, 50, 50),
        (50, 40, False, 0, 40),  # after a crash ids are used again
        (0, 50, psycopg.errors.QueryCanceled("slow"), 0, 50),
        (40, 50, psycopg.errors.QueryCanceled("slow"), 40, 40),
        (50, 40, psycopg.errors.QueryCanceled("slow"), 0, 40),
    ],
)
def test_messages_are_delivered_from_the_oldest_writer_on(
    upkeep: Maintenance, monkeypatch: pytest.MonkeyPatch, since: int, oldest: int, outcome: Any, asked: int, then: int
) -> None:
    questions: list[int] = []

    def deliver(connection: Any, now: Any, catalog: Any, since: int) -> bool:
        questions.append(since)
        if isinstance(outcome, Exception):
            raise outcome
        return bool(outcome)

    monkeypatch.setattr(maintenance, "release", lambda connection, now: (None, False))
    monkeypatch.setattr(maintenance, "run", lambda connection, steps: oldest)
    monkeypatch.setattr(maintenance, "deliver", deliver)
    upkeep._since = since
    try:
        assert upkeep._deliver(None) == outcome  # type: ignore[arg-type]
    except psycopg.errors.QueryCanceled:
        assert isinstance(outcome, Exception)
    assert (questions, upkeep._since) == ([asked], then)


@pytest.mark.parametrize(("messages", "attempts"), [(9_999, 0), (10_000, 10)])
def test_a_table_is_truncated_after_many_messages(upkeep: Maintenance, messages: int, attempts: int) -> None:
    upkeep.count_received(1, messages - 1)
    upkeep.count_received(2, 5)
    upkeep.count_received(1, 1)
    upkeep.count_received(2, 0)
    assert upkeep._remaining_attempts == 0
    upkeep.count_received(1, 0)
    assert upkeep._remaining_attempts == attempts
    upkeep._remaining_attempts = 0
    upkeep.count_received(1, 0)
    assert upkeep._remaining_attempts == 0  # the count began again


def test_a_tally_loses_nothing_between_threads() -> None:
    tally, total = Tally(), 0
    threads = [threading.Thread(target=lambda: [tally.add("n") for _ in range(1_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        total += tally.take().get("n", 0)
    assert total + tally.take().get("n", 0) == 4_000
