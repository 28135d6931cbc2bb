"""Requests: concurrent callers, errors, timeouts, late answers, cancellation and crashes."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
import servicebroker.api.aio.deferred_answers
import servicebroker.api.aio.maintenance
import servicebroker.api.aio.request_batches
import servicebroker.api.aio.requesting
import servicebroker.api.deferred_answers
import servicebroker.api.request_batches
import servicebroker.api.requesting
import servicebroker.model.bodies as model_bodies
from portal import StandIn, run_maintenance
from servicebroker import api
from servicebroker.engine.conversation import owner_verbs
from servicebroker.engine.diagnosis.facts import gather
from servicebroker.engine.diagnosis.judgement import judge
from servicebroker.model.requests import is_request
from servicebroker.store.direct import PreparedStatements
from servicebroker.store.running import run
from servicebroker.store.statement_counts import counts_of
from servicebroker.store.statements import Statement
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    begin_with,
    bodies,
    eventually,
    group_of,
    in_thread,
    peer_handle,
    query,
    queue_number,
    refused,
    rolled_back,
    run_together,
    state,
)

pytestmark = pytest.mark.both_apis

ERROR_BODY, END_BODY = b"error", b"end"


def ask(database: sb.Database, body: object = b"1", **options: Any) -> sb.Message:
    return database.request(ORDERS, STOCK, ORDER, body, contract=CONTRACT, **{"timeout": 20} | options)


def answer(tx: sb.Transaction, message: sb.Message) -> None:
    """Answer with the same body, or end the conversation if the body asks for that."""
    if message.message_body == ERROR_BODY:
        tx.end_conversation(message.conversation_handle, error=(7, "not in stock"))
    elif message.message_body == END_BODY:
        tx.end_conversation(message.conversation_handle)
    else:
        tx.send(message.conversation_handle, REPLY, message.message_body or b"")


@contextmanager
def worker_running(database: sb.Database, concurrency: int = 2) -> Iterator[None]:
    worker = sb.Worker(STOCK_QUEUE)
    worker.on(ORDER)(answer)
    with database.working(worker, concurrency=concurrency):
        yield


def answer_next(database: sb.Database) -> None:
    with database.transaction() as tx:
        (message,) = tx.receive(STOCK_QUEUE, wait=10)
        answer(tx, message)


def time_out(database: sb.Database, **options: Any) -> UUID:
    """Send a request whose caller does not wait. Return its handle."""
    with pytest.raises(sb.RequestTimeout) as error:
        ask(database, timeout=0, **options)
    return error.value.handle


def run_upkeep(database: sb.Database) -> None:
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())


def advance_clock(database: sb.Database, **by: float) -> None:
    clock = database.instance.clock
    assert isinstance(clock, Clock)
    clock.jump(**by)


def endpoints(database: sb.Database) -> list[tuple[UUID]]:
    return query(
        database,
        "select conversation_handle from servicebroker.conversation_endpoints where database_id = %s",
        database.database_id,
    )


def is_removed(database: sb.Database, handle: UUID) -> bool:
    return state(database, handle) is None


def test_after_an_answer_both_sides_have_ended(database: sb.Database) -> None:
    with worker_running(database):
        answered = ask(database, b"tea")
        assert (answered.message_type_name, answered.body) == (REPLY, b"tea")
        assert is_removed(database, answered.conversation_handle)
        (target,) = [handle for (handle,) in endpoints(database)]
        eventually(lambda: state(database, target) == "CD")
    assert query(database, f"select * from {database.name.lower()}_dbo.ordersqueue") == []


@pytest.mark.parametrize(
    ("body", "code", "text"), [(ERROR_BODY, 7, "not in stock"), (END_BODY, 0, "without an answer")]
)
def test_an_error_of_the_target_raises(database: sb.Database, body: bytes, code: int, text: str) -> None:
    with worker_running(database), pytest.raises(sb.RequestError, match=text) as error:
        ask(database, body)
    assert error.value.code == code
    assert text in error.value.description
    assert is_removed(database, error.value.handle)


def test_an_error_of_the_broker_raises(database: sb.Database) -> None:
    with pytest.raises(sb.RequestError) as error:
        database.request(ORDERS, STOCK, "DEFAULT", b"1", timeout=20)  # a contract that the target does not accept
    assert error.value.code == -8408


def test_concurrent_callers_get_their_own_answers(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller runs its own RECEIVE at most once, and only if its answer was not received together with others."""
    requests_each, callers = 5, 24
    received: list[UUID] = []

    def count_calls(receive: Callable[..., Any]) -> Callable[..., Any]:
        def counted_receive(database: Any, queue: str, handle: UUID) -> Any:
            received.append(handle)
            return receive(database, queue, handle)

        return counted_receive

    for module in (api.requesting, api.aio.requesting):
        monkeypatch.setattr(module, "_receive", count_calls(module._receive))

    def caller(number: int) -> None:
        for index in range(requests_each):
            body = f"{number} {index}".encode()
            assert ask(database, body).message_body == body

    with worker_running(database, 4):
        run_together(*(partial(caller, number) for number in range(callers)))
    assert len(received) == len(set(received)) < requests_each * callers


def test_a_refused_request_does_not_fail_others(database: sb.Database) -> None:
    """Each request of a shared transaction gets its own answer, or its own error."""
    outcomes: dict[int, object] = {}

    def caller(number: int) -> None:
        kind = "//test/unknown" if number % 4 == 0 else ORDER
        try:
            outcomes[number] = database.request(
                ORDERS, STOCK, kind, b"%d" % number, contract=CONTRACT, timeout=20
            ).message_body
        except sb.BrokerError as refusal:
            outcomes[number] = refusal.number

    with worker_running(database):
        run_together(*(partial(caller, number) for number in range(24)))
    assert outcomes == {number: b"%d" % number if number % 4 else 8428 for number in range(24)}
    assert [state(database, handle) for (handle,) in endpoints(database)].count("CO") == 0


def test_requests_that_wait_for_a_commit_share_the_next_one(
    database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers, batch_sizes = 12, []

    def record_sizes(begin_all: Callable[..., Any]) -> Callable[..., Any]:
        def begin_and_record(sender: Any, request: Any, together: list[Any]) -> Any:
            batch_sizes.append(len(together))
            return begin_all(sender, request, together)

        return begin_and_record

    for kind in (api.request_batches.RequestSender, api.aio.request_batches.AsyncRequestSender):
        monkeypatch.setattr(kind, "_begin_all", record_sizes(kind._begin_all))
    with worker_running(database):
        run_together(*(partial(ask, database) for _ in range(callers)))
    assert sum(batch_sizes) == callers
    assert len(batch_sizes) < callers


@pytest.mark.parametrize("late_answers", ["drop", "handle"])
def test_answers_of_free_groups_are_received_together(database: sb.Database, late_answers: str) -> None:
    """If a group is locked, or late answers have a handler, each caller receives its own answer."""
    handles = [time_out(database, body=b"%d" % number, late_answers=late_answers) for number in range(6)]
    for _ in handles:
        answer_next(database)
    with database.transaction() as tx:
        (held,) = tx.receive(ORDERS_QUEUE, conversation_handle=handles[0])
        waiting = [in_thread(database.wait_for_answer, handle, timeout=20) for handle in handles[1:]]
        assert sorted(answered.result(20).message_body or b"" for answered in waiting) == [b"1", b"2", b"3", b"4", b"5"]
        assert held.message_body == b"0"
    assert [is_removed(database, handle) for handle in handles] == [False, *[True] * 5]


def test_a_failed_shared_receive_is_replaced_by_single_ones(
    database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each caller receives its own answer, and the failures do not count as rollbacks of the queue."""
    failures = 0

    def fail_receive(database_id: int, queue: Any, handles: list[UUID]) -> Any:
        nonlocal failures
        failures += 1
        yield Statement("test.fail", "select 1 / 0")

    for module in (api.requesting, api.aio.requesting):
        monkeypatch.setattr(module, "MIN_TOGETHER", 1)
    monkeypatch.setattr(owner_verbs.requests, "receive_answers", fail_receive)
    with worker_running(database):
        for number in range(8):
            assert ask(database, b"%d" % number).message_body == b"%d" % number
    assert failures >= 8


def test_end_is_sent_with_commit(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """If END fails there, as with RETENTION, the answer is received again, and END is sent by itself."""
    sizes: list[int] = []
    plain = PreparedStatements.together

    def record_size(self: PreparedStatements, connection: object, sent: list[object]) -> object:
        sizes.append(len(sent))
        return plain(self, connection, sent)  # type: ignore[arg-type]

    monkeypatch.setattr(PreparedStatements, "together", record_size)
    for module in (api.deferred_answers, api.aio.deferred_answers):
        monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    with worker_running(database):
        assert is_removed(database, ask(database, b"tea").conversation_handle)
        assert sizes == [2]  # END, COMMIT
        database.alter_queue(ORDERS_QUEUE, retention=True)
        assert is_removed(database, ask(database, b"coffee").conversation_handle)
        assert sizes == [2, 2]
        database.alter_queue(ORDERS_QUEUE, retention=False)
        with pytest.raises(sb.RequestError):
            ask(database, ERROR_BODY)
    assert sizes == [2, 2]  # after an Error, END is not deferred


def test_a_timeout_has_a_reason(database: sb.Database) -> None:
    def time_out_reason(**options: Any) -> str:
        with pytest.raises(sb.RequestTimeout) as error:
            database.request(
                **{"from_service": ORDERS, "to_service": STOCK, "message_type": ORDER, "body": b"1"} | options,
                contract=CONTRACT,
                timeout=0.1,
            )
        assert error.value.reason in str(error.value)
        return error.value.reason

    assert "no service by that name" in time_out_reason(to_service="//test/nowhere")
    assert "where no reader waits" in time_out_reason()
    database.alter_queue(STOCK_QUEUE, status=False)
    assert "STATUS = ON" in time_out_reason()
    database.alter_queue(STOCK_QUEUE, status=True)
    database.drop_route("AutoCreatedLocal")
    assert "route" in time_out_reason(to_service="//test/elsewhere")


def test_the_reason_is_a_queue_that_is_off_for_readers(database: sb.Database) -> None:
    handle = time_out(database)
    with database.instance.connection() as connection:
        connection.execute(
            "update servicebroker.queues set is_receive_enabled = false where database_id = %s and name = %s",
            (database.database_id, STOCK_QUEUE),
        )
    with pytest.raises(sb.RequestTimeout, match=r"queue .*StockQueue is OFF"):
        database.wait_for_answer(handle, timeout=0)


def test_a_disabled_queue_of_the_caller_is_refused(database: sb.Database) -> None:
    database.alter_queue(ORDERS_QUEUE, status=False)
    with refused(9617):
        ask(database, timeout=0.1)


def test_the_handle_of_a_timeout_can_be_waited_for_again(database: sb.Database) -> None:
    handle = time_out(database)
    answer_next(database)
    assert database.wait_for_answer(handle, timeout=10).body == b"1"
    with refused(8426):
        database.wait_for_answer(handle, timeout=10)


def test_a_second_wait_for_an_answer_is_woken(database: sb.Database) -> None:
    handle = time_out(database)
    waiting = in_thread(database.wait_for_answer, handle, timeout=30)
    time.sleep(0.2)
    answer_next(database)
    assert waiting.result(10).body == b"1"


def test_a_late_answer_is_dropped_after_its_time(database: sb.Database) -> None:
    handle = time_out(database, keep=100)
    answer_next(database)
    advance_clock(database, seconds=99)
    run_upkeep(database)
    assert not is_removed(database, handle)
    advance_clock(database, seconds=3)
    run_upkeep(database)
    assert is_removed(database, handle)
    (message,) = database.receive(STOCK_QUEUE, wait=10)  # the target's work is committed, and it gets an EndDialog
    assert message.is_end_dialog


def test_a_request_stays_until_its_answer_however_late(database: sb.Database) -> None:
    handle = time_out(database, keep=0)
    advance_clock(database, hours=10)
    run_upkeep(database)
    assert not is_removed(database, handle)
    answer_next(database)
    run_upkeep(database)
    assert is_removed(database, handle)


def test_only_requests_are_dropped(database: sb.Database) -> None:
    """Other conversations keep their messages, also in a group whose id resembles that of a request."""
    # in the range of request groups, but a version 4 UUID
    named = uuid.UUID(int=0x5342_4400_0000_4000_8000_0000_0000_0001)
    handles = [begin(database), begin(database, related_conversation_group=named)]
    kept = time_out(database, keep=0, late_answers="handle")
    assert is_request(group_of(database, kept))
    for handle in handles:
        database.send(handle, ORDER, b"1")
    for _ in (*handles, kept):
        answer_next(database)
    advance_clock(database, days=400)
    run_upkeep(database)
    assert [state(database, handle) for handle in (*handles, kept)] == ["CO", "CO", "CO"]


def test_upkeep_skips_a_locked_late_answer(database: sb.Database) -> None:
    handle = time_out(database, keep=0)
    answer_next(database)
    advance_clock(database, seconds=2)
    with database.transaction() as tx:
        tx.receive(ORDERS_QUEUE, conversation_handle=handle)
        run_upkeep(database)
        tx.end_conversation(handle)
    assert is_removed(database, handle)


def test_late_answers_are_passed_to_a_handler(database: sb.Database) -> None:
    handles = [time_out(database, body=body, keep=10, late_answers="handle") for body in (b"1", b"2", ERROR_BODY)]
    for _ in handles:
        answer_next(database)
    handled: list[tuple[UUID, bytes | None]] = []

    def handle_late(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        handled.extend((message.conversation_handle, message.message_body) for message in messages)

    assert _process_late(database, handle_late) == 0  # the callers may still wait for the answers
    advance_clock(database, seconds=12)
    run_upkeep(database)
    assert _process_late(database, handle_late) == 3
    assert {handle for handle, _ in handled} == set(handles)
    assert {body for _, body in handled} > {b"1", b"2"}
    assert all(is_removed(database, handle) for handle in handles)


def test_a_failed_handler_of_late_answers_rolls_back(database: sb.Database) -> None:
    handle = time_out(database, keep=0, late_answers="handle")
    answer_next(database)
    advance_clock(database, seconds=2)

    def fail(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _process_late(database, fail)
    assert not is_removed(database, handle)
    assert _process_late(database, lambda tx, messages: tx.end_conversation(handle)) == 1


def _process_late(database: sb.Database, procedure: Callable[[Any, list[sb.Message]], Any]) -> int:
    """Run `process_late_answers` of the blocking or the asyncio API."""
    if not isinstance(database, StandIn):
        return database.process_late_answers(ORDERS_QUEUE, procedure)

    async def run_procedure(transaction: Any, messages: list[sb.Message]) -> None:
        await asyncio.to_thread(procedure, database._wrap(transaction), messages)

    count: int = database._call(database.real.process_late_answers, (ORDERS_QUEUE, run_procedure), {})
    return count


def test_a_transaction_refuses_a_request_at_once(database: sb.Database) -> None:
    handle = begin(database)
    with database.transaction() as tx:
        with refused(226, "begin_request"):
            ask(tx)  # type: ignore[arg-type]
        with refused(226):
            tx.wait_for_answer(handle)
    assert [row[0] for row in endpoints(database)] == [handle]


def test_a_request_begins_with_the_tables_of_its_transaction(database: sb.Database) -> None:
    with worker_running(database):
        with database.transaction() as tx:
            tx.connection.execute("create temporary table kept on commit preserve rows as select 1")
            handle = tx.begin_request(ORDERS, STOCK, ORDER, b"1", contract=CONTRACT)
            time.sleep(0.1)
            assert query(database, f"select from {database.name.lower()}_dbo.stockqueue") == []
        assert database.wait_for_answer(handle, timeout=20).body == b"1"
        assert (
            database.wait_for_answer(
                database.begin_request(ORDERS, STOCK, ORDER, b"2", contract=CONTRACT), timeout=20
            ).body
            == b"2"
        )


@pytest.mark.parametrize(
    "options",
    [{"timeout": -1}, {"timeout": float("inf")}, {"timeout": None}, {"keep": "1"}, {"late_answers": "keep"}],
)
def test_invalid_options_are_refused(database: sb.Database, options: dict[str, Any]) -> None:
    with refused(402):
        ask(database, **options)
    assert endpoints(database) == []


def test_an_answer_is_read_by_its_codec(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_bodies, "_codecs", {})  # the codecs are removed after the test
    sb.codec(ORDER, "json")
    sb.codec(REPLY, "json")
    with worker_running(database):
        assert ask(database, {"item": "tea"}).body == {"item": "tea"}
    with pytest.raises(sb.BodyError):
        ask(database, object())


def test_a_request_follows_its_service_to_another_queue(database: sb.Database) -> None:
    database.create_queue("OtherQueue")
    waiting = in_thread(ask, database)
    eventually(lambda: query(database, f"select from {database.name.lower()}_dbo.stockqueue"))
    database.alter_service(ORDERS, queue="OtherQueue")
    answer_next(database)
    assert waiting.result(15).body == b"1"


def test_an_answer_arrives_after_lost_connections(fresh_database: sb.Database) -> None:
    database = fresh_database
    waiting = in_thread(ask, database, timeout=60)
    eventually(lambda: query(database, "select from test_dbo.stockqueue"))
    with psycopg.connect(database.instance.url, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
    eventually(lambda: _can_answer(database))
    assert waiting.result(60).body == b"1"


def _can_answer(database: sb.Database) -> bool:
    try:
        answer_next(database)
    except (psycopg.Error, sb.ServiceBrokerError):
        return False
    return True


def test_the_watcher_stops_without_waiting_callers(
    fresh_database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fresh_database
    for module in (api.requesting, api.aio.requesting):
        monkeypatch.setattr(module, "LINGER_S", 0.1)
    time_out(database)
    eventually(lambda: query(database, "select from servicebroker.waiting_readers") == [])
    with worker_running(database):
        assert ask(database).body == b"1"


# ---------------------------------------------------------------- of one API, or in own instances


@pytest.fixture
def url(make_instance_url: Callable[..., str]) -> str:
    return make_instance_url(1)


def test_a_thread_with_an_open_transaction_is_refused(url: str) -> None:
    """Other threads of the same process are not refused."""
    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        with worker_running(database):
            with database.transaction(), refused(226, "REQUEST"):
                ask(database)
            with database.transaction():
                assert in_thread(ask, database).result(20).body == b"1"
            with database.defining() as inside, refused(226):
                ask(inside)
            assert ask(database).body == b"1"
        assert not instance.open_transactions


def test_a_task_with_an_open_transaction_is_refused(url: str) -> None:
    async def test() -> None:
        async with sb.open_async(url, upkeep=None) as instance:
            database = await instance.database("Test")
            async with async_worker_running(database):
                async with database.transaction():
                    with refused(226, "REQUEST"):
                        await ask(database)  # type: ignore[misc]
                    assert (await asyncio.create_task(ask(database))).body == b"1"  # type: ignore[arg-type]
                assert (await ask(database)).body == b"1"  # type: ignore[misc]

    asyncio.run(test())


def test_cancelled_tasks_leave_no_request(url: str, seeded_random: random.Random) -> None:
    """Each order is processed once. Its answer reaches the caller, or is dropped as a late answer."""

    async def caller(database: sb.AsyncDatabase, number: int) -> None:
        asking = asyncio.create_task(ask(database, b"%d" % number, keep=0))  # type: ignore[arg-type]
        await asyncio.sleep(seeded_random.uniform(0, 0.1))
        asking.cancel()
        await asyncio.wait([asking])

    async def test() -> None:
        clock = Clock()
        async with sb.open_async(url, upkeep=None, clock=clock) as instance:
            database = await instance.database("Test")
            async with async_worker_running(database):
                await asyncio.gather(*(caller(database, number) for number in range(40)))
                assert (await ask(database, b"last")).body == b"last"  # type: ignore[misc]
                while await database.receive(STOCK_QUEUE):
                    await asyncio.sleep(0.05)
            clock.jump(minutes=1)
            async with instance.connection() as connection:
                await api.aio.maintenance.run_maintenance(connection, clock())
                endpoints = await connection.execute(
                    "select from servicebroker.conversation_endpoints where is_initiator"
                )
                assert await endpoints.fetchall() == []

    asyncio.run(test())


@asynccontextmanager
async def async_worker_running(database: sb.AsyncDatabase) -> AsyncIterator[None]:
    worker = sb.Worker(STOCK_QUEUE)

    @worker.on(ORDER)
    async def order(tx: sb.AsyncTransaction, message: sb.Message) -> None:
        await tx.send(message.conversation_handle, REPLY, message.message_body or b"")

    async with database.working(worker, concurrency=2):
        yield


WAITING_PROGRAM = """
import sys
import servicebroker as sb

with sb.open(sys.argv[1], upkeep=None) as instance:
    database = instance.database("Test")
    print("asks", flush=True)
    database.request(*sys.argv[2:5], b"1", contract=sys.argv[5], keep=0, timeout=1000, late_answers=sys.argv[6])
"""


@pytest.mark.parametrize("late_answers", ["drop", "handle"])
def test_the_answer_to_a_crashed_program_is_dropped_or_handled(url: str, late_answers: str) -> None:
    clock = Clock()
    with sb.open(url, upkeep=None, clock=clock) as instance:
        database = instance.database("Test")
        arguments = (url, ORDERS, STOCK, ORDER, CONTRACT, late_answers)
        with subprocess.Popen([sys.executable, "-c", WAITING_PROGRAM, *arguments]) as program:
            eventually(lambda: query(database, "select from test_dbo.stockqueue"))
            program.kill()
        answer_next(database)
        (handle,) = [message.conversation_handle for message in _peek_answers(database)]
        clock.jump(seconds=900)
        run_upkeep(database)
        assert not is_removed(database, handle), "the answer is kept for the 1,000 s that the program would have waited"
        clock.jump(seconds=200)
        handled: list[sb.Message] = []
        run_upkeep(database)
        assert database.process_late_answers(ORDERS_QUEUE, lambda tx, messages: handled.extend(messages)) == (
            late_answers == "handle"
        )
        assert bodies(handled) == [b"1"] * len(handled)
        assert is_removed(database, handle)


def _peek_answers(database: sb.Database) -> list[sb.Message]:
    """Return the messages in the queue of the answers, without removing them."""
    with rolled_back(database) as tx:
        return tx.receive(ORDERS_QUEUE)
    raise AssertionError


def test_an_open_instance_drops_late_answers_by_itself(url: str) -> None:
    with sb.open(url, upkeep=0.1) as instance:
        database = instance.database("Test")
        handle = time_out(database, keep=0)
        answer_next(database)
        eventually(lambda: is_removed(database, handle))


def test_two_programs_share_a_queue_for_answers(url: str) -> None:
    """Neither program receives the other one's answers."""
    with sb.open(url, upkeep=None) as first, sb.open(url, upkeep=None) as second:
        databases = [instance.database("Test") for instance in (first, second)]

        def caller(number: int) -> None:
            for index in range(10):
                body = f"{number} {index}".encode()
                assert ask(databases[number % 2], body).message_body == body

        with worker_running(databases[0]):
            run_together(*(partial(caller, number) for number in range(6)))


def test_doctor_reports_late_answers_after_their_time(url: str) -> None:
    clock = Clock()

    def findings(instance: sb.Instance) -> list[str]:
        with instance.connection() as connection:
            all_findings = judge(run(connection, gather(clock())))
        return [finding.problem for finding in all_findings if "OrdersQueue" in finding.subject]

    with sb.open(url, upkeep=None, clock=clock) as instance:
        database = instance.database("Test")
        for late_answers in ("drop", "handle"):
            time_out(database, keep=600, late_answers=late_answers)
            answer_next(database)
        clock.jump(minutes=5)
        assert findings(instance) == []  # a caller may still wait for them
        clock.jump(minutes=10)
        assert findings(instance) == [
            "1 late answer to a request should have been dropped within half a minute.",
            "Nobody handles 1 late answer to a request.",
        ]
        time_out(database, keep=0)
        clock.jump(minutes=5)
        answer_next(database)
        table = f"servicebroker.queue_{queue_number(database, ORDERS_QUEUE)}"
        newest = f"message_enqueue_time = (select max(message_enqueue_time) from {table})"
        with instance.connection() as connection:
            arrived = f"'{clock() - timedelta(seconds=50)}'"
            connection.execute(f"update {table} set message_enqueue_time = {arrived} where {newest}".encode())
        assert len(findings(instance)) == 2  # this answer is not old enough to be reported
        assert findings(instance)[0].startswith("1 late answer ")
        database.send(peer_handle(database, begin_with(database, b"1")), REPLY, b"of nobody")
        clock.jump(minutes=1)
        assert any("of 4 messages" in problem for problem in findings(instance))


def test_a_request_is_sent_in_one_statement(url: str) -> None:
    """The request's group is new, so nothing is looked up, as for a conversation without a group."""
    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        for number in range(2):
            with worker_running(database, concurrency=1):
                assert ask(database, b"%d" % number).body == b"%d" % number
            with instance.connection() as connection:
                counted = counts_of(connection).take()
        ran = {name for name in counted if name.partition(".")[0] in ("begin", "deferred_dialogs", "send", "requests")}
        assert ran == {"deferred_dialogs.single_message", "send.answer", "requests.find_answered"}
