"""The double at its limits: what has just become due, what belongs to another, and what is left after the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import servicebroker as sb
import servicebroker.testing as double
from servicebroker.model.names import END_DIALOG, ERROR
from servicebroker.testing import failures
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Undo,
    bodies,
    define_standard_set,
    refused,
)


@pytest.fixture
def clock() -> double.Clock:
    return double.Clock()


@pytest.fixture
def instance(clock: double.Clock) -> double.Instance:
    return double.open(clock=clock)


def make(instance: double.Instance, name: str) -> double.Database:
    made = instance.database(name, create=True)
    define_standard_set(made)  # type: ignore[arg-type]
    return made


@pytest.fixture
def database(instance: double.Instance) -> double.Database:
    return make(instance, "Test")


def begin(database: double.Database, **options: Any) -> Any:
    return database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, **options)


def kinds(messages: list[sb.Message]) -> list[str]:
    return [message.message_type_name for message in messages]


# ---------------------------------------------------------------- times


def test_a_timer_fires_at_the_end_of_the_lifetime_and_not_after_it(
    database: double.Database, clock: double.Clock
) -> None:
    handle = begin(database, lifetime=60)
    with refused(8410):
        database.begin_conversation_timer(handle, 61)
    database.begin_conversation_timer(handle, 60)
    clock.jump(seconds=60)
    timer, error = database.receive(ORDERS_QUEUE, top=None)
    assert timer.is_timer
    assert error.is_error


def test_a_key_is_known_until_it_expires(database: double.Database, clock: double.Clock) -> None:
    first = begin(database, idempotency_key="k", idempotency_ttl=60)
    clock.jump(seconds=59)
    assert begin(database, idempotency_key="k", idempotency_ttl=60) == first
    clock.jump(seconds=1)
    second = begin(database, idempotency_key="k", idempotency_ttl=60)
    assert second != first
    database.instance.upkeep()
    assert begin(database, idempotency_key="k", idempotency_ttl=60) == second  # upkeep forgets the expired only
    clock.jump(seconds=60)
    database.instance.upkeep()
    assert database.instance._memory.keys == {}


@pytest.mark.parametrize("seconds", [59, 60])
def test_time_passes_with_all_that_becomes_due_in_it(database: double.Database, seconds: int) -> None:
    handle = begin(database, lifetime=600)
    database.begin_conversation_timer(handle, 60)
    fired: list[Any] = []
    worker = sb.Worker(ORDERS_QUEUE)

    @worker.on(sb.DIALOG_TIMER)
    def timer(tx: Any, message: sb.Message) -> None:
        fired.append(database.instance.clock())

    began = database.instance.clock()
    with database.working(worker):
        database.instance.pass_time(seconds=seconds)
    assert fired == ([began + timedelta(seconds=60)] if seconds == 60 else [])
    assert database.instance.clock() == began + timedelta(seconds=seconds)


def test_a_delayed_message_is_released_at_its_time_and_those_behind_it_with_it(
    database: double.Database, clock: double.Clock
) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"late", delay=60)
    database.send(handle, ORDER, b"behind")
    clock.jump(seconds=59)
    assert database.receive(STOCK_QUEUE) == []
    clock.jump(seconds=1)
    assert bodies(database.receive(STOCK_QUEUE, top=None)) == [b"late", b"behind"]


# ---------------------------------------------------------------- poison


def fail(database: double.Database) -> None:
    with pytest.raises(Undo), database.transaction() as tx:
        assert tx.receive(STOCK_QUEUE)
        raise Undo


def test_rollbacks_in_a_row_are_counted_for_each_queue(database: double.Database) -> None:
    database.send(begin(database), ORDER, b"1")
    database.send(begin(database), ORDER, b"2")
    for _ in range(4):
        fail(database)
    with pytest.raises(Undo), database.transaction() as tx:
        tx.receive(ORDERS_QUEUE)  # receives nothing, so it does not count
        raise Undo
    assert len(database.receive(STOCK_QUEUE)) == 1  # ends the series
    for _ in range(4):
        fail(database)
    assert len(database.receive(STOCK_QUEUE)) == 1


def test_a_queue_without_poison_handling_stays_on(database: double.Database) -> None:
    database.alter_queue(STOCK_QUEUE, poison_message_handling=False)
    database.send(begin(database), ORDER, b"1")
    for _ in range(6):
        fail(database)
    assert len(database.receive(STOCK_QUEUE)) == 1
    assert database.instance.events.recent() == []


def test_a_statement_that_fails_is_undone_alone(database: double.Database) -> None:
    handle = begin(database)
    with database.transaction() as tx:
        tx.send(handle, ORDER, b"1")
        with refused(8432):
            tx.send([handle, begin(database)], REPLY, b"x")
        tx.send(handle, ORDER, b"2")
    assert bodies(database.receive(STOCK_QUEUE, top=None)) == [b"1", b"2"]


@pytest.mark.parametrize("is_undone", [True, False])
def test_a_pipeline_that_was_refused_is_mended_by_its_savepoint(database: double.Database, is_undone: bool) -> None:
    handle = begin(database)

    def work() -> None:
        with database.transaction() as tx:
            tx.send(handle, ORDER, b"1")
            with refused(8432), tx.savepoint() if is_undone else tx.pipeline(), tx.pipeline():
                tx.send(handle, REPLY, b"x")
            tx.send(handle, ORDER, b"2")

    if is_undone:
        work()
    else:
        with pytest.raises(sb.InstanceError, match="rolled back"):
            work()
    assert bodies(database.receive(STOCK_QUEUE, top=None)) == ([b"1", b"2"] if is_undone else [])


# ---------------------------------------------------------------- dead letters


def set_aside(database: double.Database, text: bytes, error: type[Exception] = ValueError) -> int:
    """Send a message whose handler fails. Return the number of its dead letter."""

    def handler(tx: Any, messages: list[sb.Message]) -> None:
        raise error("no such item")

    database.send(begin(database), ORDER, text)
    assert database.process(STOCK_QUEUE, handler, poison=lambda failure: sb.SetAside()) == 1
    return database.set_aside_messages()[-1].set_aside_id


def test_dead_letters_are_of_one_database(instance: double.Instance, database: double.Database) -> None:
    other = make(instance, "Other")
    number = set_aside(database, b"1")
    assert other.set_aside_messages() == []
    assert other.dead_letter_groups() == []
    for verb in (other.replay_message, other.discard_message):
        with refused(402):
            verb(number)
    assert len(database.set_aside_messages()) == 1


def test_dead_letters_are_chosen(database: double.Database) -> None:
    first, second = set_aside(database, b"1"), set_aside(database, b"2", KeyError)
    third = set_aside(database, b"3")
    for options, numbers in (
        ({}, [first, second, third]),
        ({"queue": STOCK_QUEUE}, [first, second, third]),
        ({"queue": ORDERS_QUEUE}, []),
        ({"message_type": ORDER}, [first, second, third]),
        ({"message_type": REPLY}, []),
        ({"error": "NO SUCH"}, [first, second, third]),
        ({"error": "keyerror"}, [second]),
        ({"after": first}, [second, third]),
        ({"limit": 2}, [first, second]),
    ):
        found = database.set_aside_messages(**options)  # type: ignore[arg-type]
        assert [letter.set_aside_id for letter in found] == numbers, options
    assert [(group.messages, group.error_kind[:8]) for group in database.dead_letter_groups()] == [
        (2, "ValueErr"),
        (1, "KeyError"),
    ]


@pytest.mark.parametrize("ended_by", ["nobody", "initiator", "initiator unheard", "target", "cleanup"])
def test_a_dead_letter_returns_to_its_conversation_while_both_sides_are_open(
    database: double.Database, ended_by: str
) -> None:
    number = set_aside(database, b"1")
    (letter,) = database.set_aside_messages()
    (initiator,) = (row["conversation_handle"] for row in database.conversation_endpoints() if row["is_initiator"])
    if ended_by == "initiator unheard":  # its EndDialog waits for the queue
        database.alter_queue(STOCK_QUEUE, status=False)
    if ended_by not in ("nobody", "target"):
        database.end_conversation(initiator, cleanup=ended_by == "cleanup")
    elif ended_by == "target":
        database.end_conversation(letter.conversation_handle)
    handle = database.replay_message(number, body=b"other")
    database.alter_queue(STOCK_QUEUE, status=True)
    assert (handle is None) == (ended_by in ("nobody", "cleanup"))  # WITH CLEANUP tells the other side nothing
    found = [message for _ in range(3) for message in database.receive(STOCK_QUEUE, top=None)]
    (replayed,) = [message for message in found if message.body == b"other"]
    assert (replayed.conversation_handle == letter.conversation_handle) == (handle is None)
    assert database.set_aside_messages() == []
    with refused(402):
        database.replay_message(number)


def test_failures_are_forgotten_when_the_message_succeeds(database: double.Database, clock: double.Clock) -> None:
    counts: list[int] = []

    def policy(failure: sb.Failure) -> sb.Verdict:
        counts.append(failure.count)
        return sb.Retry(10)

    fails = [True, True, False, True]

    def handler(tx: Any, messages: list[sb.Message]) -> None:
        if fails.pop(0):
            raise ValueError

    handle = begin(database)
    database.send(handle, ORDER, b"1")
    for seconds, taken in ((0, 1), (9, 0), (1, 1), (10, 1)):
        clock.jump(seconds=seconds)
        assert database.process(STOCK_QUEUE, handler, poison=policy) == taken
    assert counts == [1, 2]
    assert database.instance._memory.failures == {}
    database.send(handle, ORDER, b"2")
    assert database.process(STOCK_QUEUE, handler, poison=policy) == 1
    assert counts == [1, 2, 1]


def test_a_policy_that_never_pauses_is_told(database: double.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_TRIES_AT_ONCE", 20)

    def handler(tx: Any, messages: list[sb.Message]) -> None:
        raise ValueError

    database.send(begin(database), ORDER, b"1")
    with pytest.raises(sb.InstanceError, match="without an advance"):
        database.process(STOCK_QUEUE, handler, poison=lambda failure: sb.Retry())


# ---------------------------------------------------------------- workers and connections


def test_workers_end_with_their_block(database: double.Database) -> None:
    handled: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def order(tx: Any, message: sb.Message) -> None:
        handled.append(message.body)

    handle = begin(database)
    with pytest.raises(Undo), database.working(worker):
        with database.transaction() as tx:
            tx.send(handle, ORDER, b"1")
            assert handled == []  # the worker waits for the commit
        assert handled == [b"1"]
        raise Undo
    database.send(handle, ORDER, b"2")
    assert handled == [b"1"]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"2"]


def test_workers_wait_while_another_transaction_is_open(database: double.Database) -> None:
    handled: list[bytes | None] = []
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    def order(tx: Any, message: sb.Message) -> None:
        handled.append(message.body)

    with database.working(worker):
        with database.transaction() as other:
            database.send(begin(database), ORDER, b"1")
            assert handled == []
            other.send(other.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"2")
        assert handled == [b"1", b"2"]


class Connection:
    """A connection of an application that keeps its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: self.calls.append(name if not arguments else str(arguments[0]).split()[0])


@pytest.mark.parametrize("fails", [False, True])
def test_the_connection_of_an_application_ends_with_the_transaction(fails: bool) -> None:
    connection = Connection()
    database = make(double.open(connect=lambda: connection), "Test")
    handle = begin(database)
    connection.calls.clear()
    try:
        with database.transaction() as tx:
            tx.send(handle, ORDER, b"1")
            with pytest.raises(Undo), tx.savepoint():
                raise Undo
            with tx.savepoint():
                pass
            if fails:
                raise Undo
    except Undo:
        assert fails
    savepoints = ["savepoint", "rollback", "release", "savepoint", "release"]
    assert connection.calls == [*savepoints, "rollback" if fails else "commit", "close"]
    assert bodies(database.receive(STOCK_QUEUE)) == ([] if fails else [b"1"])


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ({}, {}, ([], [])),
        ({"error": (5, "no")}, {}, ([], [])),
        ({}, {"cleanup": True}, ([], [])),
        ({"cleanup": True}, {}, ([], [])),
    ],
)
def test_both_sides_end_and_nothing_is_left(
    database: double.Database, clock: double.Clock, first: Any, second: Any, found: Any
) -> None:
    handle = begin(database)
    database.send(handle, ORDER, b"1")
    (message,) = database.receive(STOCK_QUEUE)
    database.end_conversation(handle, **first)
    arrived = kinds(database.receive(STOCK_QUEUE, top=None))
    assert arrived == ([] if "cleanup" in first else [ERROR if first else END_DIALOG])
    database.end_conversation(message.conversation_handle, **second)
    assert (database.receive(STOCK_QUEUE), database.receive(ORDERS_QUEUE)) == found
    clock.jump(hours=1)
    database.instance.upkeep()
    assert (database.conversation_endpoints(), database.conversation_groups(), database.transmission_queue()) == (
        [],
        [],
        [],
    )


def test_an_end_that_finds_no_target_expires_with_its_conversation(
    database: double.Database, clock: double.Clock
) -> None:
    handle = database.begin_dialog(ORDERS, "//nowhere", contract=CONTRACT, lifetime=60)
    database.send(handle, ORDER, b"1")
    database.end_conversation(handle)
    clock.jump(seconds=59)
    database.instance.upkeep()
    assert [row["state"] for row in database.conversation_endpoints()] == ["DO"]
    clock.jump(seconds=1)
    database.instance.upkeep()
    assert (database.conversation_endpoints(), database.transmission_queue()) == ([], [])
