"""SEND with a delay: on the engine, for a restricted role, on the double, and to another instance."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

import servicebroker as sb
import servicebroker.testing as double
from remote_support import begin as begin_remote
from remote_support import open_pair
from servicebroker.api.maintenance import run_maintenance
from servicebroker.cli.main import app as command
from servicebroker.engine.delivery import delayed_messages
from servicebroker.model import waiting
from servicebroker.store.connection import connect
from servicebroker.store.embedded import EmbeddedServer
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    as_role,
    begin,
    bodies,
    define_standard_set,
    let_in,
    query,
    refused,
)

MINUTE = timedelta(minutes=1)


class Course:
    """A database of the engine or the double, with a clock that the test advances."""

    def __init__(self, database: Any, jump: Callable[[float], None], now: Callable[[], datetime]) -> None:
        self.database, self.jump, self.now = database, jump, now

    def receive_bodies(self) -> list[bytes | None]:
        return bodies(self.database.receive(STOCK_QUEUE))


def of_engine(database: sb.Database, clock: Clock) -> Course:
    def jump(seconds: float) -> None:
        clock.jump(seconds=seconds)
        with connect(database.instance.url) as connection:
            connection.autocommit = True
            run_maintenance(connection, clock())

    return Course(database, jump, clock)


def of_double() -> Course:
    instance = double.open()
    database = instance.database("Test", create=True)
    define_standard_set(database)  # type: ignore[arg-type]

    def jump(seconds: float) -> None:
        instance.clock.jump(seconds=seconds)
        instance.upkeep()

    return Course(database, jump, instance.clock)


@pytest.fixture(params=["engine", "double"])
def course(request: pytest.FixtureRequest) -> Course:
    if request.param == "double":
        return of_double()
    return of_engine(request.getfixturevalue("database"), request.getfixturevalue("clock"))


def open_dialog(course: Course, *, is_open: bool) -> Any:
    """Begin a conversation whose target has received the first message, or does not exist yet."""
    handle = begin(course.database)
    if is_open:
        course.database.send(handle, ORDER, b"open")
        assert course.receive_bodies() == [b"open"]
    return handle


@pytest.mark.parametrize("is_open", [True, False])
def test_later_messages_and_the_end_wait_behind_a_delayed_message(course: Course, is_open: bool) -> None:
    database, handle = course.database, open_dialog(course, is_open=is_open)
    first = int(is_open)
    assert database.send(handle, ORDER, b"1", delay=60) == first
    assert database.send(handle, ORDER, b"2") == first + 1
    assert database.send_batch(handle, ORDER, [b"3", b"4"], delay=MINUTE * 2) == first + 2
    database.end_conversation(handle)
    assert course.receive_bodies() == []
    assert database.get_transmission_status(handle) == waiting.DELAYED
    assert [(one.message_sequence_number, one.bytes) for one in database.delayed_messages(handle)] == [
        *((first + number, 1) for number in range(4)),
        (first + 4, 0),
    ]
    course.jump(59)
    assert course.receive_bodies() == []
    course.jump(2)
    assert course.receive_bodies() == [b"1", b"2"]
    course.jump(30)
    assert course.receive_bodies() == []
    course.jump(40)
    messages = database.receive(STOCK_QUEUE)
    assert bodies(messages) == [b"3", b"4", None]
    assert messages[-1].is_end_dialog
    assert [one.message_sequence_number for one in messages] == [first + number for number in (2, 3, 4)]
    assert database.delayed_messages() == []


def test_delay_and_at_give_the_time_of_delivery(course: Course) -> None:
    database, now = course.database, course.now()
    for given, seconds in (
        ({"delay": 0}, 0),
        ({"delay": timedelta()}, 0),
        ({"at": now - MINUTE}, 0),
        ({"at": now + MINUTE * 10}, 600),
        ({"delay": 1.5}, 2),
    ):
        database.send(begin(database), ORDER, b"x", **given)
        if seconds:
            assert course.receive_bodies() == []
            course.jump(seconds)
        assert course.receive_bodies() == [b"x"], given


@pytest.mark.parametrize(
    "given",
    [
        {"delay": -1},
        {"delay": "1"},
        {"delay": True},
        {"delay": float("nan")},
        {"at": 5},
        {"at": datetime(2030, 1, 1)},
        {"delay": 2_000_000_000},
        {"delay": 1, "at": datetime.fromisoformat("2031-01-01T00:00:00Z")},
        {"at": datetime.fromisoformat("2999-01-01T00:00:00Z")},
        {"at": datetime.fromisoformat("9999-12-31T23:00:00-05:00")},
    ],
)
def test_invalid_delays_are_refused(course: Course, given: dict[str, Any]) -> None:
    handle = begin(course.database, lifetime=1_000_000_000)
    with refused(402):
        course.database.send(handle, ORDER, b"x", **given)
    with refused(402):
        course.database.send_batch(handle, ORDER, [b"x"], **given)
    with refused(402):
        course.database.send([handle], ORDER, b"x", **given)
    course.database.end_conversation(handle)


@pytest.fixture(scope="module")
def senders(server: EmbeddedServer, make_instance_url: Callable[[], str]) -> Iterator[list[Any]]:
    """A database of the engine, the same database for a restricted role, and a database of the double."""
    url, role = make_instance_url(), "delays_clerk"
    with let_in(server.url, role), sb.open(url, upkeep=None) as instance:
        owner = define_standard_set(instance.database("Shop", create=True))
        with instance.connection() as connection:
            connection.execute(f"create role {role} login")  # type: ignore[call-overload]
        instance.grant_rights(role, database="Shop", receive=[ORDERS_QUEUE], send=[STOCK])
        owner.grant("REFERENCES", "public", contract=CONTRACT)
        with sb.open(as_role(url, role), upkeep=None) as restricted:
            yield [owner, restricted.database("Shop"), of_double().database]
        with instance.connection() as connection:
            connection.execute(f"drop owned by {role} cascade; drop role {role}")  # type: ignore[call-overload]


@pytest.mark.parametrize("delay", [None, 10, 100, -1])
@pytest.mark.parametrize("message_type", [ORDER, REPLY, "//test/Missing", sb.DEFAULT])
def test_refusals_have_one_order(senders: list[Any], message_type: str, delay: int | None) -> None:
    """For a SEND with several faults, the engine, the restricted role and the double raise the same error."""
    for conversations in ("open", "over", "missing", "open open", "open over", "over open"):
        told = []
        for database in senders:
            handles = []
            for kind in conversations.split():
                handle = uuid4() if kind == "missing" else begin(database, lifetime=50)
                if kind == "over":
                    database.end_conversation(handle)
                handles.append(handle)
            try:
                result = database.send(handles if len(handles) > 1 else handles[0], message_type, b"x", delay=delay)
            except sb.BrokerError as refusal:
                result = refusal.number
            told.append(result)
        assert told[0] == told[1] == told[2], conversations


def test_other_conversations_overtake_and_the_timer_is_free(course: Course) -> None:
    database, handle = course.database, begin(course.database)
    database.begin_conversation_timer(handle, 30)
    database.send(handle, ORDER, b"late", delay=60)
    database.send(begin(database), ORDER, b"soon")
    assert course.receive_bodies() == [b"soon"]
    course.jump(31)
    (timer,) = database.receive(ORDERS_QUEUE)
    assert timer.is_timer
    course.jump(31)
    assert course.receive_bodies() == [b"late"]


def test_delays_work_in_transactions_and_pipelines(course: Course) -> None:
    database = course.database
    with pytest.raises(ZeroDivisionError), database.transaction() as transaction:
        transaction.send(begin(transaction), ORDER, b"never", delay=1)
        raise ZeroDivisionError
    with database.transaction() as transaction:
        handles = [begin(transaction) for _ in range(3)]
        transaction.send(handles, ORDER, b"all", delay=10)
        with transaction.pipeline() as pipeline:
            for index, delay in enumerate((None, 20, 20, None)):
                transaction.send(handles[0], ORDER, str(index), delay=delay)
            transaction.send(handle := begin(transaction), ORDER, b"now")
        assert pipeline.numbers == [1, 2, 3, 4, 0]
    assert course.receive_bodies() == [b"now"]
    assert len(database.delayed_messages()) == 7
    course.jump(11)
    arrived = [body for _ in range(3) for body in course.receive_bodies()]
    assert sorted(arrived, key=str) == [b"0", b"all", b"all", b"all"]
    course.jump(10)
    assert course.receive_bodies() == [b"1", b"2", b"3"]
    database.end_conversation(handle)


@pytest.mark.parametrize("number", [0, 1, 2, None, 3])
def test_cancel(course: Course, number: int | None) -> None:
    database, handle = course.database, begin(course.database)
    for index, delay in enumerate((60, None, 120)):
        database.send(handle, ORDER, str(index), delay=delay)
    gone = {0: 1, 1: 1, 2: 1, None: 2, 3: 0}[number]
    assert database.cancel_delayed(handle, number) == gone
    left = [b"0", b"1", b"2"] if number == 3 else [b"1"] if number is None else [b"0", b"1", b"2"]
    if number is not None and gone:
        del left[number]
    assert database.send(handle, ORDER, b"last") == len(left)
    course.jump(61)
    course.jump(61)
    messages = database.receive(STOCK_QUEUE)
    assert bodies(messages) == [*left, b"last"]
    assert [message.message_sequence_number for message in messages] == list(range(len(left) + 1))
    assert database.cancel_delayed(handle) == 0
    with refused(8426):
        database.cancel_delayed(uuid4())
    with refused(402):
        database.cancel_delayed(handle, -1)


def test_cancel_renumbers_retained_messages_and_drops_trace_contexts(database: sb.Database) -> None:
    database.alter_queue(ORDERS_QUEUE, retention=True)
    handle = begin(database)
    for delay in (60, None, 60, None):
        database.send(handle, ORDER, str(delay), delay=delay)
    contexts = (
        "select message_sequence_number from servicebroker.trace_contexts "
        "join servicebroker.conversation_endpoints using (conversation_id) where conversation_handle = %s"
    )
    with database.transaction() as transaction:  # before the background sweeps contexts that have no message
        transaction.connection.execute(
            "insert into servicebroker.trace_contexts select conversation_id, true, generate_series(0, 3), %s, now() "
            "from servicebroker.conversation_endpoints where conversation_handle = %s",
            (bytes(25), handle),
        )
        assert transaction.cancel_delayed(handle, 1) == 1
        assert transaction.connection.execute(contexts, (handle,)).fetchall() == [(0,)]
    assert database.cancel_delayed(handle) == 2
    sent = f"select message_sequence_number from {database.name}_dbo.ordersqueue where status = 3"
    assert query(database, sent) == [(0,)]


@pytest.mark.parametrize("is_open", [True, False])
def test_the_end_behind_a_cancelled_message_arrives(course: Course, is_open: bool) -> None:
    database, handle = course.database, open_dialog(course, is_open=is_open)
    database.send(handle, ORDER, b"late", delay=60)
    database.end_conversation(handle)
    assert database.cancel_delayed(handle) == 1
    course.jump(1)
    assert [message.is_end_dialog for message in database.receive(STOCK_QUEUE)] == [True]


@pytest.mark.parametrize("kind", ["cleanup", "error", "peer", "expiry"])
def test_ends_and_expiry_drop_delayed_messages(course: Course, kind: str) -> None:
    database, handle = course.database, begin(course.database, lifetime=100)
    database.send(handle, ORDER, b"open")
    (message,) = database.receive(STOCK_QUEUE)
    database.send(handle, ORDER, b"late", delay=60)
    if kind == "peer":
        database.end_conversation(message.conversation_handle)
    elif kind == "expiry":
        course.jump(101)
        assert [message.is_error for message in database.receive(ORDERS_QUEUE)] == [True]
    else:
        database.end_conversation(handle, **{"cleanup": True} if kind == "cleanup" else {"error": (5, "failed")})
    assert database.delayed_messages() == []
    course.jump(61)
    assert [message.is_error for message in database.receive(STOCK_QUEUE)] == (
        [True] if kind in {"error", "expiry"} else []
    )


def test_delays_behind_messages_that_wait_for_other_reasons(course: Course) -> None:
    database = course.database
    database.alter_queue(STOCK_QUEUE, status=False)
    handle, nowhere = begin(database), begin(database, "//test/Later")
    for conversation in (handle, nowhere):
        database.send(conversation, ORDER, b"1")
        database.send(conversation, ORDER, b"2", delay=60)
        database.send(conversation, ORDER, b"3")
    database.alter_queue(STOCK_QUEUE, status=True)
    assert course.receive_bodies() == [b"1"]
    database.create_queue("LaterQueue")
    database.create_service("//test/Later", "LaterQueue", [CONTRACT])
    assert bodies(database.receive("LaterQueue")) == [b"1"]
    assert course.receive_bodies() == []
    database.alter_queue(STOCK_QUEUE, status=False)
    course.jump(61)
    assert bodies(database.receive("LaterQueue")) == [b"2", b"3"]
    database.alter_queue(STOCK_QUEUE, status=True)
    assert course.receive_bodies() == [b"2", b"3"]


def test_the_target_delays_its_replies(course: Course) -> None:
    database, handle = course.database, begin(course.database)
    database.send(handle, ORDER, b"?")
    (message,) = database.receive(STOCK_QUEUE)
    database.send(message.conversation_handle, REPLY, b"!", delay=5)
    assert database.receive(ORDERS_QUEUE) == []
    course.jump(6)
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"!"]


def test_the_double_delivers_what_is_due_in_each_statement_that_looks() -> None:
    course = of_double()
    course.database.send(begin(course.database), ORDER, b"late", delay=60)
    assert bodies(course.database.receive(STOCK_QUEUE, wait=90)) == [b"late"]
    course.database.send(begin(course.database), ORDER, b"later", delay=60)
    course.database.instance.clock.jump(seconds=61)
    assert course.database.get_conversation_group(STOCK_QUEUE) is not None


def test_engine_and_double_deliver_random_delays_at_the_same_times(
    database: sb.Database, clock: Clock, request: pytest.FixtureRequest
) -> None:
    """Random delays: the engine and the double deliver the same messages at the same times."""
    rng = random.Random(request.config.getoption("seed"))
    courses = [of_engine(database, clock), of_double()]
    handles = [[begin(course.database) for _ in range(4)] for course in courses]
    for step in range(60 if request.config.getoption("full") else 25):
        which, action = rng.randrange(4), rng.choice(["send", "delay", "delay", "jump", "cancel"])
        delay, seconds, number = (
            rng.choice([5, 30, 90]),
            rng.choice([3, 20, 60]),
            rng.choice([None, *range(6)]),
        )
        results: list[Any] = []
        for course, own in zip(courses, handles, strict=True):
            if action == "jump":
                course.jump(seconds)
                results.append(None)
            elif action == "cancel":
                results.append(course.database.cancel_delayed(own[which], number))
                course.jump(0)  # releases the messages behind it
            else:
                results.append(
                    course.database.send(own[which], ORDER, str(step), delay=delay if action == "delay" else None)
                )
            messages = course.database.receive(STOCK_QUEUE, top=None, groups=10)
            results[-1] = (
                results[-1],
                sorted((message.message_sequence_number, message.message_body) for message in messages),
            )
        assert results[0] == results[1], (step, action)


def test_a_delayed_message_to_another_instance_waits_at_the_sender(make_instance_url: Callable[..., str]) -> None:
    with open_pair(make_instance_url) as pair:
        west, east = pair.west, pair.east.database

        def jump(seconds: float) -> None:
            west.clock.jump(seconds=seconds)
            with connect(west.instance.url) as connection:
                connection.autocommit = True
                run_maintenance(connection, west.clock())
            pair.rounds()

        handles = [begin_remote(pair, 0), begin_remote(pair, 0)]
        west.database.send(handles[1], ORDER, b"open")
        pair.rounds()
        assert bodies(east.receive(STOCK_QUEUE)) == [b"open"]
        for handle in handles:
            west.database.send(handle, ORDER, b"1", delay=60)
            west.database.send(handle, ORDER, b"2")
            west.database.send(handle, ORDER, b"3", delay=120)
            west.database.end_conversation(handle)
        pair.rounds()
        west.relay = west.new_relay()
        pair.rounds()
        assert east.receive(STOCK_QUEUE) == []
        assert query(west.database, "select count(*) from servicebroker.conversation_endpoints where is_remote") == [
            (1,)
        ]
        jump(30)
        assert east.receive(STOCK_QUEUE) == []
        jump(31)
        assert [bodies(east.receive(STOCK_QUEUE)) for _ in handles] == [[b"1", b"2"]] * 2
        assert west.database.cancel_delayed(handles[0]) == 1
        jump(61)
        assert sorted(len(east.receive(STOCK_QUEUE)) for _ in handles) == [1, 2]
        pair.rounds()
        assert query(west.database, "select count(*) from servicebroker.transmission_queue") == [(0,)]
        handle = begin_remote(pair, 0)
        for index, delay in enumerate((60, None, 120)):
            west.database.send(handle, ORDER, str(index), delay=delay)
        pair.rounds()
        assert west.database.cancel_delayed(handle, 0) == 1
        pair.rounds()
        assert bodies(east.receive(STOCK_QUEUE)) == [b"1"]


def test_a_locked_conversation_does_not_delay_others(
    database: sb.Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_messages, "MAX_RELEASED_CONVERSATIONS", 1)
    course = of_engine(database, clock)
    busy, free = begin(database), begin(database)
    database.send_batch(busy, ORDER, [b"1", b"2"], delay=5)
    database.send(free, ORDER, b"free", delay=6)
    with database.transaction() as transaction:
        transaction.send(busy, ORDER, b"3")
        course.jump(10)
        assert course.receive_bodies() == [b"free"]
    course.jump(0)
    assert course.receive_bodies() == [b"1", b"2", b"3"]


def test_upkeep_delivers_delayed_messages(make_instance_url: Callable[..., str]) -> None:
    with sb.open(make_instance_url(1)) as instance:
        database = instance.database("Test")
        for delay in (5, 0.5):
            database.send(begin(database), ORDER, str(delay), delay=delay)
        start = instance.clock()
        assert bodies(database.receive(STOCK_QUEUE, wait=5)) == [b"0.5"]
        assert 0.4 < (instance.clock() - start).total_seconds() < 3


def test_other_sends_write_no_index_entry(database: sb.Database) -> None:
    text = (
        "select indexrelid::regclass::text from pg_index where indrelid = 'servicebroker.transmission_queue'::regclass "
        "and pg_get_expr(indpred, indrelid) = '(delayed_until IS NOT NULL)' order by 1"
    )
    names = ["transmission_queue_delayed", "transmission_queue_due"]
    assert query(database, text) == [(name,) for name in names]


def test_delayed_commands_list_and_cancel_messages(database: sb.Database, clock: Clock) -> None:
    def run(*words: str, code: int = 0) -> str:
        options = ["--instance", database.instance.url, "--database", database.name]
        result = CliRunner(env={"COLUMNS": "300"}).invoke(command, [*words, *options])
        assert result.exit_code == code, result.output
        return result.output

    to_stock = ["--from", ORDERS, "--to", STOCK, "--contract", CONTRACT, "--type", ORDER]
    assert run("delayed", "list") == "No message is delayed.\n"
    handle = run("send", "tea", *to_stock, "--delay", "90").strip()
    run("send", "pot", "--conversation", handle, "--type", ORDER, "--at", f"{clock() + MINUTE * 9}")
    assert "no time zone" in run("send", "x", *to_stock, "--at", "2030-01-31T09:00", code=2)
    assert "is not a time" in run("send", "x", *to_stock, "--at", "soon", code=2)
    messages = json.loads(run("delayed", "list", "--json"))["messages"]
    assert [(message["conversation_handle"], message["bytes"]) for message in messages] == [(handle, 3)] * 2
    assert STOCK in run("delayed", "list", "--conversation", handle)
    status = CliRunner().invoke(command, ["status", "--instance", database.instance.url]).output
    assert "are delayed (servicebroker delayed list)" in status
    assert run("delayed", "cancel", handle, "--number", "1") == "1 message is cancelled.\n"
    assert json.loads(run("delayed", "cancel", handle, "--json"))["cancelled"] == 1


def test_doctor_reports_overdue_messages(fresh_database: sb.Database) -> None:
    def doctor() -> str:
        return CliRunner().invoke(command, ["doctor", "--instance", fresh_database.instance.url]).output

    fresh_database.send(begin(fresh_database), ORDER, b"tea", delay=MINUTE)
    assert waiting.DELAYED not in doctor()
    with fresh_database.instance.connection() as connection:
        connection.execute("update servicebroker.transmission_queue set delayed_until = now() - interval '1 hour'")
    assert waiting.DELAYED in doctor()
