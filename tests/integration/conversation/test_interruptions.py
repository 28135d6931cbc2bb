"""Lost connections before and after a round trip: a statement or transaction has all of its effects, or none.

Each case is interrupted at `--cuts` random round trips, or at all of them if it has fewer.
A round trip carries a statement, together with a deferred COMMIT and BEGIN, or a COMMIT alone. Before it: the server
process is killed when the client sends. After it: the server has done the work, and its answer is lost.
"""

from __future__ import annotations

import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.api.failure_policy import FailureHandler
from servicebroker.api.processing import process as run
from servicebroker.api.requesting import _receive as receive_answer
from servicebroker.api.working import _handle as handle_messages
from servicebroker.operations import Receive
from support import (
    CONTRACT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    define_standard_set,
    in_thread,
    open_dialog,
    peer_handle,
    query,
    terminate_backend,
    tolerate_rollbacks,
    wait_until_blocked,
)

pytestmark = pytest.mark.slow

Handles = list[UUID]
Rows = list[str]
LATE = "//test/Late"
GROUP = UUID(int=1)
UUID_IN_AN_ERROR = re.compile(r"(?:(?:3[0-9]|6[1-6]|2d)00){36}")  # a UUID as UTF-16 in hexadecimal


class Interruption:
    """Interrupts the connection at round trip `number` of the creating thread. Without a number it only counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int | None = None, *, after: bool = False) -> None:
        self.number, self.after = number, after
        self.has_interrupted = False
        self.round_trips = 0
        self._thread = threading.get_ident()
        self._wait = psycopg.Connection.wait
        self._monkeypatch = monkeypatch

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "wait", lambda *arguments, **options: self.wait(*arguments, **options))
            yield

    def wait(self, connection: psycopg.Connection[Any], *arguments: Any, **options: Any) -> Any:
        if threading.get_ident() != self._thread or self.has_interrupted:
            return self._wait(connection, *arguments, **options)
        self.round_trips += 1
        if self.round_trips - 1 != self.number:
            return self._wait(connection, *arguments, **options)
        self.has_interrupted = True
        if not self.after:
            terminate_backend(connection)
            return self._wait(connection, *arguments, **options)
        self._wait(connection, *arguments, **options)
        terminate_backend(connection)
        connection.pgconn.exec_(b"")  # lets the driver notice
        raise psycopg.OperationalError("the answer was lost")


class Case(NamedTuple):
    """Prepares a state, and runs the statement or transaction that is interrupted."""

    prepare: Callable[[sb.Database, Clock], Handles]
    act: Callable[[sb.Database, Handles], object]


def prepare_nothing(database: sb.Database, clock: Clock) -> Handles:
    return []


def begin_one(database: sb.Database, clock: Clock) -> Handles:
    return [begin(database)]


def begun_late(database: sb.Database, clock: Clock) -> Handles:
    return [begin(database, LATE)]


def open_one(database: sb.Database, clock: Clock) -> Handles:
    return [*open_dialog(database)]


def with_messages(database: sb.Database, clock: Clock) -> Handles:
    initiator, target = open_dialog(database)
    database.send_batch(initiator, ORDER, [b"1", b"2"])
    database.send(target, REPLY, b"3")
    return [initiator, target]


def with_two_groups(database: sb.Database, clock: Clock) -> Handles:
    handles = with_messages(database, clock)
    related = begin(database, related_conversation_group=GROUP)
    database.send(related, ORDER, b"4")
    return [*handles, related]


def switched_off(database: sb.Database, clock: Clock) -> Handles:
    handles = with_messages(database, clock)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handles[0], ORDER, b"waits")
    return handles


def retain_messages(database: sb.Database, clock: Clock) -> Handles:
    database.alter_queue(STOCK_QUEUE, retention=True)
    handles = with_messages(database, clock)
    database.receive(STOCK_QUEUE, top=1)
    return handles


def without_broker(database: sb.Database, clock: Clock) -> Handles:
    handles = with_messages(database, clock)
    database.alter(disable_broker=True)
    database.send(handles[0], ORDER, b"waits")
    return handles


def send_unopened(database: sb.Database, clock: Clock) -> Handles:
    handle = begin(database, LATE)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    return [handle]


def unused_contract(database: sb.Database, clock: Clock) -> Handles:
    handles = with_messages(database, clock)
    database.alter_service(STOCK, drop_contracts=[CONTRACT])
    return handles


def with_due_timers(database: sb.Database, clock: Clock) -> Handles:
    handle, expires = begin(database), begin(database, lifetime=5)
    database.begin_conversation_timer(handle, 5)
    clock.jump(seconds=6)
    return [handle, expires]


def with_expired_endpoints(database: sb.Database, clock: Clock) -> Handles:
    for handle in reversed(open_dialog(database)):
        database.end_conversation(handle)
    clock.jump(minutes=31)
    return open_one(database, clock)


def send_second_request(database: sb.Database, clock: Clock) -> Handles:
    """Send a second request, after a first one has filled the process's cache of reply targets."""
    database.send(begin(database), ORDER, b"first")
    answer(database, [])
    finish(database, [])
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    return [handle]


def requested_together(database: sb.Database, clock: Clock) -> Handles:
    """Send three requests in three groups, as `send_second_request`."""
    first = send_second_request(database, clock)
    handles = [begin(database), begin(database)]
    for handle in handles:
        database.send(handle, ORDER, b"1")
    return [*first, *handles]


def answer_request(database: sb.Database, clock: Clock) -> Handles:
    handles = send_second_request(database, clock)
    answer(database, handles)
    return handles


def send_reply(database: sb.Database, clock: Clock) -> Handles:
    """Send a request, and answer it. The target's side of the conversation stays open."""
    (handle,) = handles = send_second_request(database, clock)
    database.send(peer_handle(database, handle), REPLY, b"done")
    return handles


def take_answer(database: sb.Database, handles: Handles) -> None:
    """Take the answer of a request. END is sent in the round trip of COMMIT."""
    assert receive_answer(database, ORDERS_QUEUE, handles[0])[0].message_body == b"done"


def answer(database: sb.Database, handles: Handles) -> None:
    with database.transaction() as tx:
        (message,) = tx.receive(STOCK_QUEUE, top=1)
        tx.connection.execute("insert into work values (%s)", (message.message_body,))
        tx.send(message.conversation_handle, REPLY, b"done")
        tx.end_conversation(message.conversation_handle)


def answer_groups(database: sb.Database, handles: Handles) -> None:
    """Answer each group. Its SEND and END are sent in the round trip that sets the next group's savepoint."""

    def take(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        tx.send(messages[0].conversation_handle, REPLY, messages[0].message_body)
        tx.end_conversation(messages[0].conversation_handle)

    database.process(STOCK_QUEUE, take, groups=50)


def finish(database: sb.Database, handles: Handles) -> None:
    with database.transaction() as tx:
        tx.end_conversation(tx.receive(ORDERS_QUEUE)[0].conversation_handle)


def work(database: sb.Database, handles: Handles) -> None:
    """Run an application's transaction."""
    with database.transaction() as tx:
        messages = tx.receive(STOCK_QUEUE)
        for message in messages:
            tx.connection.execute("insert into work values (%s)", (message.message_body,))
            tx.send(message.conversation_handle, REPLY, b"done")
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            tx.send(messages[0].conversation_handle, REPLY, b"undone")
            raise ZeroDivisionError
        tx.end_conversation(messages[0].conversation_handle)
        following = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        tx.send(following, ORDER, b"next")


def begin_and_send(database: sb.Database, handles: Handles) -> None:
    """Begin conversations and send messages on them, in a transaction without other statements."""
    with database.transaction() as tx:
        for number in range(1 + len(handles)):
            handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
            for position in range(1 + number):
                tx.send(handle, ORDER, b"%d %d" % (number, position))
            tx.begin_conversation_timer(handle, 60)


def begin_beside_own_work(database: sb.Database, handles: Handles) -> None:
    """Begin conversations in a transaction that also writes to the application's table, before and after."""
    with database.transaction() as tx:
        tx.connection.execute("insert into work values ('asks')")
        handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        tx.send(handle, ORDER, b"x")
        tx.connection.execute("insert into work values ('has asked')")
        tx.send(tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"y")


def process(database: sb.Database, handles: Handles) -> None:
    """Run a worker on one message."""

    def procedure(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        transaction.connection.execute("insert into work values (%s)", (b"%d" % len(messages),))
        transaction.send(messages[0].conversation_handle, REPLY, b"done")

    database.process(STOCK_QUEUE, procedure, top=None)


def with_ended_conversations(database: sb.Database, clock: Clock) -> Handles:
    """Create five conversations: three open with a message, one with a message and an EndDialog, one with an EndDialog.

    Returns the targets of the open ones.
    """
    handles = [begin(database) for _ in range(5)]
    for handle in handles:
        database.send(handle, ORDER, b"x" if handle != handles[1] else b"bad")
    database.receive(STOCK_QUEUE, conversation_handle=peer_handle(database, handles[4]))
    for handle in handles[3:]:
        database.end_conversation(handle)
    return [peer_handle(database, handle) for handle in handles[:3]]


def work_on_groups(database: sb.Database, handles: Handles, *, answers_ends: bool = False) -> None:
    """Run a worker on many groups. One message fails."""
    worker = sb.Worker(STOCK_QUEUE, groups=50, answers_ends=answers_ends, poison=lambda failure: sb.SetAside())

    @worker.on(ORDER)
    def take(transaction: sb.Transaction, message: sb.Message) -> None:
        transaction.connection.execute("insert into work values (%s)", (message.message_body,))
        if message.message_body == b"bad":
            raise ValueError
        if message.conversation_handle in handles:
            transaction.send(message.conversation_handle, REPLY, b"done")

    guard = FailureHandler(database, STOCK_QUEUE, worker.poison, exits=False, answers_ends=answers_ends)
    receive = Receive(STOCK_QUEUE, top=1, groups=50, wait=0)
    run(database, receive, partial(handle_messages, worker), failure_handler=guard)


CASES: dict[str, Case] = {
    "receive groups": Case(with_ended_conversations, lambda db, handles: db.receive(STOCK_QUEUE, groups=50)),
    "process groups": Case(with_ended_conversations, work_on_groups),
    "answer groups": Case(requested_together, answer_groups),
    "answer ends": Case(with_ended_conversations, partial(work_on_groups, answers_ends=True)),
    "begin": Case(prepare_nothing, lambda db, handles: begin(db)),
    "begin related": Case(begin_one, lambda db, handles: begin(db, related_conversation=handles[0])),
    "send first": Case(begin_one, lambda db, handles: db.send(handles[0], ORDER, b"x")),
    "send": Case(open_one, lambda db, handles: db.send(handles[0], ORDER, b"x")),
    "send batch": Case(open_one, lambda db, handles: db.send_batch(handles[1], REPLY, [b"1", b"2"])),
    "send what waits": Case(switched_off, lambda db, handles: db.send(handles[0], ORDER, b"x")),
    "send what is rejected": Case(open_one, lambda db, handles: db.send(handles[0], MARK, b"not empty")),
    "send to a missing service": Case(begun_late, lambda db, handles: db.send(handles[0], ORDER, b"x")),
    "receive": Case(with_messages, lambda db, handles: db.receive(STOCK_QUEUE)),
    "receive where": Case(with_messages, lambda db, handles: db.receive(STOCK_QUEUE, conversation_handle=handles[1])),
    "receive what is due": Case(with_due_timers, lambda db, handles: db.receive(ORDERS_QUEUE)),
    "get group": Case(with_messages, lambda db, handles: db.get_conversation_group(STOCK_QUEUE)),
    "timer": Case(open_one, lambda db, handles: db.begin_conversation_timer(handles[0], 60)),
    "end": Case(with_messages, lambda db, handles: db.end_conversation(handles[0])),
    "end of the target": Case(with_messages, lambda db, handles: db.end_conversation(handles[1])),
    "end with error": Case(with_messages, lambda db, handles: db.end_conversation(handles[0], error=(5, "no"))),
    "end with cleanup": Case(with_messages, lambda db, handles: db.end_conversation(handles[0], cleanup=True)),
    "end that waits": Case(switched_off, lambda db, handles: db.end_conversation(handles[0])),
    "end after others": Case(with_expired_endpoints, lambda db, handles: db.end_conversation(handles[0])),
    "answer": Case(send_second_request, answer),
    "finish": Case(answer_request, finish),
    "take an answer": Case(send_reply, take_answer),
    "take an answer and EndDialog": Case(answer_request, take_answer),
    "work": Case(with_messages, work),
    "process": Case(with_messages, process),
    "begin and send": Case(prepare_nothing, begin_and_send),
    "begin and send several": Case(open_one, begin_and_send),
    "begin beside own work": Case(prepare_nothing, begin_beside_own_work),
    "queue off": Case(with_messages, lambda db, handles: db.alter_queue(STOCK_QUEUE, status=False)),
    "queue on": Case(switched_off, lambda db, handles: db.alter_queue(STOCK_QUEUE, status=True)),
    "create service": Case(send_unopened, lambda db, handles: db.create_service(LATE, STOCK_QUEUE, [CONTRACT])),
    "alter service": Case(with_messages, lambda db, handles: db.alter_service(STOCK, queue=ORDERS_QUEUE)),
    "drop service": Case(with_messages, lambda db, handles: db.drop_service(STOCK)),
    "send to several": Case(with_two_groups, lambda db, handles: db.send(handles[::2], ORDER, b"x" * 5000)),
    "move": Case(with_two_groups, lambda db, handles: db.move_conversation(handles[0], GROUP)),
    "receive and retain": Case(retain_messages, lambda db, handles: db.receive(STOCK_QUEUE)),
    "work and retain": Case(retain_messages, work),
    "end of what is retained": Case(retain_messages, lambda db, handles: db.end_conversation(handles[1])),
    "retention off": Case(retain_messages, lambda db, handles: db.alter_queue(STOCK_QUEUE, retention=False)),
    "broker off": Case(with_messages, lambda db, handles: db.alter(disable_broker=True)),
    "broker on": Case(without_broker, lambda db, handles: db.alter(enable_broker=True)),
    "new broker": Case(with_messages, lambda db, handles: db.alter(new_broker=True)),
    "errors for all": Case(with_messages, lambda db, handles: db.alter(error_broker_conversations=True)),
    "drop contract": Case(unused_contract, lambda db, handles: db.drop_contract(CONTRACT)),
}


def read_rows(database: sb.Database) -> Rows:
    """Return all rows of the database as text without identifiers, sorted."""
    queues = " union all ".join(
        f"select row('{queue}', status, message_type_name, message_sequence_number, message_body, priority)::text "
        f"from {database.name}_dbo.{queue}".lower()
        for queue in (ORDERS_QUEUE, STOCK_QUEUE)
    )
    text = (
        f"with shown as (select '{database.name}'::text as broker_database) "
        "select row('endpoint', is_initiator, state, far_service, send_sequence, receive_sequence, priority, "
        "dialog_timer > '1900-01-02', security_timestamp > '1900-01-02')::text "
        "from sys.conversation_endpoints join shown using (broker_database) union all "
        "select row('group')::text from sys.conversation_groups join shown using (broker_database) union all "
        "select row('waiting', message_sequence_number, message_type_name, message_body, transmission_status)::text "
        "from sys.transmission_queue join shown using (broker_database) union all "
        "select row('service', s.name, q.name)::text from sys.services s join shown using (broker_database) "
        "join sys.service_queues q on q.object_id = s.service_queue_id union all "
        "select row('queue', name, is_receive_enabled, is_enqueue_enabled, is_retention_enabled)::text "
        "from sys.service_queues join shown using (broker_database) union all "
        "select row('broker', is_broker_enabled)::text from sys.databases where name = (table shown) union all "
        "select row('contract', name)::text from sys.service_contracts join shown using (broker_database) union all "
        f"select row('work', body)::text from work union all {queues} order by 1"
    )
    return sorted(UUID_IN_AN_ERROR.sub("<id>", row) for (row,) in query(database, text))


def locks_held(database: sb.Database) -> list[tuple[Any, ...]]:
    return query(
        database,
        "select classid, objid from pg_locks where locktype = 'advisory' "
        "and database = (select oid from pg_database where datname = current_database())",
    )


class CleanDatabases:
    """Returns a database with the standard set for each run. Reuses it if its definitions are unchanged."""

    def __init__(self, instance: sb.Instance) -> None:
        self.instance = instance
        self._numbers = itertools.count(1)
        self._new()

    def _new(self) -> None:
        self.database = define_standard_set(self.instance.database(f"Cut{next(self._numbers)}", create=True))
        tolerate_rollbacks(self.database)
        self._initial_rows = read_rows(self.database)
        text = "select queue_id from servicebroker.queues where database_id = %s"
        tables = ["conversation_endpoints", "conversation_groups", "transmission_queue"]
        numbers = [number for (number,) in query(self.database, text, self.database.database_id)]
        tables += [f"{kind}_{number}" for kind in ("queue", "retained") for number in numbers]
        self._clear = "; ".join(["delete from work", *(f"delete from servicebroker.{table}" for table in tables)])

    def next(self) -> sb.Database:
        """Return a database without conversations."""
        with self.instance.connection() as connection:
            connection.execute(self._clear)  # type: ignore[call-overload]
        if read_rows(self.database) != self._initial_rows:
            with suppress(sb.BrokerError):  # other databases would route to this service
                self.database.drop_service(LATE)
            self._new()
        return self.database


@pytest.fixture(scope="module")
def clean_databases(instance: sb.Instance) -> CleanDatabases:
    with instance.connection() as connection:
        connection.execute("create table work (body bytea)")
    return CleanDatabases(instance)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", CASES)
def test_an_interrupted_verb_is_done_completely_or_not_at_all(
    clean_databases: CleanDatabases,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    seeded_random: random.Random,
    request: pytest.FixtureRequest,
    name: str,
) -> None:
    """Interrupt each case before and after a round trip."""
    case = CASES[name]
    for _ in range(2):  # the first run fills the cache of the catalog; later runs have fewer round trips
        database = clean_databases.next()
        handles = case.prepare(database, clock)
        before = read_rows(database)
        counter = Interruption(monkeypatch)
        with counter.active():
            case.act(database, handles)
        after = read_rows(database)
    count = min(counter.round_trips, request.config.option.cuts)
    outcomes = [
        interrupt_once(clean_databases, clock, monkeypatch, case, before, after, number, late)
        for number in seeded_random.sample(range(counter.round_trips), count)
        for late in (False, True)
    ]
    assert any(outcomes)


def interrupt_once(
    clean_databases: CleanDatabases,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    before: Rows,
    after: Rows,
    number: int,
    late: bool,
) -> bool:
    """Interrupt at the round trip of that number. Return whether the case reached it."""
    database = clean_databases.next()
    handles = case.prepare(database, clock)
    assert read_rows(database) == before
    interruption = Interruption(monkeypatch, number, after=late)
    lost = False
    with interruption.active():
        try:
            case.act(database, handles)
        except sb.InstanceError:
            lost = True
    clean_databases.instance._pool.check()  # removes a dead connection from the pool
    rows = read_rows(database)
    assert rows == after or (lost and rows == before), f"half-done at round trip {number}"
    assert locks_held(database) == []
    if rows == before:
        case.act(database, handles)
        assert read_rows(database) == after
    assert lost <= interruption.has_interrupted
    return interruption.has_interrupted


def test_a_server_process_killed_during_commit(clean_databases: CleanDatabases, clock: Clock) -> None:
    """COMMIT waits in a deferred trigger of the application's table. There the server process is killed."""
    database = clean_databases.next()
    handles = with_messages(database, clock)
    before = read_rows(database)
    with database.instance.connection() as connection:
        connection.execute(
            "create function wait() returns trigger language plpgsql as "
            "'begin perform pg_advisory_xact_lock(1, 1); return null; end'"
        )
        connection.execute(
            "create constraint trigger wait after insert on work deferrable initially deferred "
            "for each row execute function wait()"
        )
        connection.execute("select pg_advisory_lock(1, 1)")
        working = in_thread(work, database, handles)
        wait_until_blocked(database)
        text = (
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where query = 'commit' and state = 'active'"
        )
        assert query(database, text) == [(True,)]
        with pytest.raises(sb.InstanceError, match="during COMMIT"):
            working.result(10)
        connection.execute("select pg_advisory_unlock(1, 1)")
        connection.execute("drop function wait() cascade")
    assert read_rows(database) == before
    assert locks_held(database) == []
    work(database, handles)
    assert read_rows(database) != before
