"""The connection is cut before and after an exchange with the server: what a verb did is there as a whole, or not.

At `--cuts` exchanges of each case, by chance; at every one where it has no more.
An exchange is a statement, with the COMMIT and BEGIN that travel ahead of it, or a COMMIT. Cut before: the
server's process is killed when the client begins. Cut after: the answer is lost on its way.
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
    far_handle,
    in_thread,
    open_dialog,
    query,
    stopped,
    tolerate_rollbacks,
    wait_until_blocked,
)

pytestmark = pytest.mark.slow

Handles = list[UUID]
Shown = list[str]
LATE = "//test/Late"
GROUP = UUID(int=1)
UUID_IN_AN_ERROR = re.compile(r"(?:(?:3[0-9]|6[1-6]|2d)00){36}")  # its UTF-16 in hexadecimal


class Cut:
    """Cuts the connection at one exchange of the thread that made this, or at none and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int | None = None, *, after: bool = False) -> None:
        self.number, self.after = number, after
        self.done = False
        self.seen = 0
        self._thread = threading.get_ident()
        self._wait = psycopg.Connection.wait
        self._monkeypatch = monkeypatch

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "wait", lambda *given, **options: self.exchange(*given, **options))
            yield

    def exchange(self, connection: psycopg.Connection[Any], *given: Any, **options: Any) -> Any:
        if threading.get_ident() != self._thread or self.done:
            return self._wait(connection, *given, **options)
        self.seen += 1
        if self.seen - 1 != self.number:
            return self._wait(connection, *given, **options)
        self.done = True
        if not self.after:
            stopped(connection)
            return self._wait(connection, *given, **options)
        self._wait(connection, *given, **options)
        stopped(connection)
        connection.pgconn.exec_(b"")  # the driver notices
        raise psycopg.OperationalError("the answer was lost")


class Case(NamedTuple):
    """The state before, and the verb or transaction that is cut."""

    prepare: Callable[[sb.Database, Clock], Handles]
    act: Callable[[sb.Database, Handles], object]


def nothing(database: sb.Database, clock: Clock) -> Handles:
    return []


def begun(database: sb.Database, clock: Clock) -> Handles:
    return [begin(database)]


def begun_late(database: sb.Database, clock: Clock) -> Handles:
    return [begin(database, LATE)]


def opened(database: sb.Database, clock: Clock) -> Handles:
    return [*open_dialog(database)]


def with_messages(database: sb.Database, clock: Clock) -> Handles:
    initiator, target = open_dialog(database)
    database.send_batch(initiator, ORDER, [b"1", b"2"])
    database.send(target, REPLY, b"3")
    return [initiator, target]


def two_opened(database: sb.Database, clock: Clock) -> Handles:
    handles = with_messages(database, clock)
    related = begin(database, related_conversation_group=GROUP)
    database.send(related, ORDER, b"4")
    return [*handles, related]


def switched_off(database: sb.Database, clock: Clock) -> Handles:
    handles = with_messages(database, clock)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(handles[0], ORDER, b"waits")
    return handles


def retained(database: sb.Database, clock: Clock) -> Handles:
    database.alter_queue(STOCK_QUEUE, retention=True)
    handles = with_messages(database, clock)
    database.receive(STOCK_QUEUE, top=1)
    return handles


def without_broker(database: sb.Database, clock: Clock) -> Handles:
    handles = with_messages(database, clock)
    database.alter(disable_broker=True)
    database.send(handles[0], ORDER, b"waits")
    return handles


def unopened(database: sb.Database, clock: Clock) -> Handles:
    handle = begin(database, LATE)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    return [handle]


def unused_contract(database: sb.Database, clock: Clock) -> Handles:
    handles = with_messages(database, clock)
    database.alter_service(STOCK, drop_contracts=[CONTRACT])
    return handles


def due(database: sb.Database, clock: Clock) -> Handles:
    handle, expires = begin(database), begin(database, lifetime=5)
    database.begin_conversation_timer(handle, 5)
    clock.jump(seconds=6)
    return [handle, expires]


def closed_long_ago(database: sb.Database, clock: Clock) -> Handles:
    for handle in reversed(open_dialog(database)):
        database.end_conversation(handle)
    clock.jump(minutes=31)
    return opened(database, clock)


def requested(database: sb.Database, clock: Clock) -> Handles:
    """A second request, after a conversation from which the process has learnt the way of its answers."""
    database.send(begin(database), ORDER, b"first")
    answer(database, [])
    finish(database, [])
    handle = begin(database)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    return [handle]


def requested_together(database: sb.Database, clock: Clock) -> Handles:
    """The same for three requests of as many groups."""
    first = requested(database, clock)
    handles = [begin(database), begin(database)]
    for handle in handles:
        database.send(handle, ORDER, b"1")
    return [*first, *handles]


def answered(database: sb.Database, clock: Clock) -> Handles:
    handles = requested(database, clock)
    answer(database, handles)
    return handles


def answer(database: sb.Database, handles: Handles) -> None:
    with database.transaction() as tx:
        (message,) = tx.receive(STOCK_QUEUE, top=1)
        tx.connection.execute("insert into work values (%s)", (message.message_body,))
        tx.send(message.conversation_handle, REPLY, b"done")
        tx.end_conversation(message.conversation_handle)


def answer_groups(database: sb.Database, handles: Handles) -> None:
    """SEND and END of a group leave with the savepoint of the next one."""

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


def ask(database: sb.Database, handles: Handles) -> None:
    """Begin conversations for their messages, in a transaction that does nothing else."""
    with database.transaction() as tx:
        for number in range(1 + len(handles)):
            handle = tx.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
            for place in range(1 + number):
                tx.send(handle, ORDER, b"%d %d" % (number, place))
            tx.begin_conversation_timer(handle, 60)


def ask_beside(database: sb.Database, handles: Handles) -> None:
    """The same beside the application's own tables, before and after."""
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


def crowd(database: sb.Database, clock: Clock) -> Handles:
    """Conversations of one message, one with an end behind it, one whose end is all that is left.

    Returns the targets of those that are open.
    """
    handles = [begin(database) for _ in range(5)]
    for handle in handles:
        database.send(handle, ORDER, b"x" if handle != handles[1] else b"bad")
    database.receive(STOCK_QUEUE, conversation_handle=far_handle(database, handles[4]))
    for handle in handles[3:]:
        database.end_conversation(handle)
    return [far_handle(database, handle) for handle in handles[:3]]


def work_on_groups(database: sb.Database, handles: Handles, *, answers_ends: bool = False) -> None:
    """Run a worker on many groups; one message fails."""
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
    "receive groups": Case(crowd, lambda db, handles: db.receive(STOCK_QUEUE, groups=50)),
    "process groups": Case(crowd, work_on_groups),
    "answer groups": Case(requested_together, answer_groups),
    "answer ends": Case(crowd, partial(work_on_groups, answers_ends=True)),
    "begin": Case(nothing, lambda db, handles: begin(db)),
    "begin related": Case(begun, lambda db, handles: begin(db, related_conversation=handles[0])),
    "send first": Case(begun, lambda db, handles: db.send(handles[0], ORDER, b"x")),
    "send": Case(opened, lambda db, handles: db.send(handles[0], ORDER, b"x")),
    "send batch": Case(opened, lambda db, handles: db.send_batch(handles[1], REPLY, [b"1", b"2"])),
    "send what waits": Case(switched_off, lambda db, handles: db.send(handles[0], ORDER, b"x")),
    "send what is rejected": Case(opened, lambda db, handles: db.send(handles[0], MARK, b"not empty")),
    "send into the blue": Case(begun_late, lambda db, handles: db.send(handles[0], ORDER, b"x")),
    "receive": Case(with_messages, lambda db, handles: db.receive(STOCK_QUEUE)),
    "receive where": Case(with_messages, lambda db, handles: db.receive(STOCK_QUEUE, conversation_handle=handles[1])),
    "receive what is due": Case(due, lambda db, handles: db.receive(ORDERS_QUEUE)),
    "get group": Case(with_messages, lambda db, handles: db.get_conversation_group(STOCK_QUEUE)),
    "timer": Case(opened, lambda db, handles: db.begin_conversation_timer(handles[0], 60)),
    "end": Case(with_messages, lambda db, handles: db.end_conversation(handles[0])),
    "end of the target": Case(with_messages, lambda db, handles: db.end_conversation(handles[1])),
    "end with error": Case(with_messages, lambda db, handles: db.end_conversation(handles[0], error=(5, "no"))),
    "end with cleanup": Case(with_messages, lambda db, handles: db.end_conversation(handles[0], cleanup=True)),
    "end that waits": Case(switched_off, lambda db, handles: db.end_conversation(handles[0])),
    "end after others": Case(closed_long_ago, lambda db, handles: db.end_conversation(handles[0])),
    "answer": Case(requested, answer),
    "finish": Case(answered, finish),
    "work": Case(with_messages, work),
    "process": Case(with_messages, process),
    "ask": Case(nothing, ask),
    "ask for several": Case(opened, ask),
    "ask beside": Case(nothing, ask_beside),
    "queue off": Case(with_messages, lambda db, handles: db.alter_queue(STOCK_QUEUE, status=False)),
    "queue on": Case(switched_off, lambda db, handles: db.alter_queue(STOCK_QUEUE, status=True)),
    "create service": Case(unopened, lambda db, handles: db.create_service(LATE, STOCK_QUEUE, [CONTRACT])),
    "alter service": Case(with_messages, lambda db, handles: db.alter_service(STOCK, queue=ORDERS_QUEUE)),
    "drop service": Case(with_messages, lambda db, handles: db.drop_service(STOCK)),
    "send to several": Case(two_opened, lambda db, handles: db.send(handles[::2], ORDER, b"x" * 5000)),
    "move": Case(two_opened, lambda db, handles: db.move_conversation(handles[0], GROUP)),
    "receive and retain": Case(retained, lambda db, handles: db.receive(STOCK_QUEUE)),
    "work and retain": Case(retained, work),
    "end of what is retained": Case(retained, lambda db, handles: db.end_conversation(handles[1])),
    "retention off": Case(retained, lambda db, handles: db.alter_queue(STOCK_QUEUE, retention=False)),
    "broker off": Case(with_messages, lambda db, handles: db.alter(disable_broker=True)),
    "broker on": Case(without_broker, lambda db, handles: db.alter(enable_broker=True)),
    "new broker": Case(with_messages, lambda db, handles: db.alter(new_broker=True)),
    "errors for all": Case(with_messages, lambda db, handles: db.alter(error_broker_conversations=True)),
    "drop contract": Case(unused_contract, lambda db, handles: db.drop_contract(CONTRACT)),
}


def shown(database: sb.Database) -> Shown:
    """Everything that the database holds, without identifiers, in no order."""
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


class Places:
    """Broker databases with the standard set, one after the other: one that is as it was made is used again."""

    def __init__(self, instance: sb.Instance) -> None:
        self.instance = instance
        self._numbers = itertools.count(1)
        self._new()

    def _new(self) -> None:
        self.database = define_standard_set(self.instance.database(f"Cut{next(self._numbers)}", create=True))
        tolerate_rollbacks(self.database)
        self._made = shown(self.database)
        text = "select queue_id from servicebroker.queues where database_id = %s"
        tables = ["conversation_endpoints", "conversation_groups", "transmission_queue"]
        numbers = [number for (number,) in query(self.database, text, self.database.database_id)]
        tables += [f"{kind}_{number}" for kind in ("queue", "retained") for number in numbers]
        self._clear = "; ".join(["delete from work", *(f"delete from servicebroker.{table}" for table in tables)])

    def next(self) -> sb.Database:
        """A database without conversations."""
        with self.instance.connection() as connection:
            connection.execute(self._clear)  # type: ignore[call-overload]
        if shown(self.database) != self._made:
            with suppress(sb.BrokerError):  # other databases would find the service
                self.database.drop_service(LATE)
            self._new()
        return self.database


@pytest.fixture(scope="module")
def places(instance: sb.Instance) -> Places:
    with instance.connection() as connection:
        connection.execute("create table work (body bytea)")
    return Places(instance)


@pytest.mark.sampled(14)
@pytest.mark.parametrize("name", CASES)
def test_all_or_nothing(
    places: Places,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    seeded_random: random.Random,
    request: pytest.FixtureRequest,
    name: str,
) -> None:
    """Before an exchange and after it."""
    case = CASES[name]
    for _ in range(2):  # the first run fills the cache of the catalog; later ones have fewer exchanges
        database = places.next()
        handles = case.prepare(database, clock)
        before = shown(database)
        counted = Cut(monkeypatch)
        with counted.active():
            case.act(database, handles)
        after = shown(database)
    wanted = min(counted.seen, request.config.option.cuts)
    done = [
        cut_once(places, clock, monkeypatch, case, before, after, number, late)
        for number in seeded_random.sample(range(counted.seen), wanted)
        for late in (False, True)
    ]
    assert any(done)


def cut_once(
    places: Places,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    before: Shown,
    after: Shown,
    number: int,
    late: bool,
) -> bool:
    """Cut at the exchange of that number; return whether there was one."""
    database = places.next()
    handles = case.prepare(database, clock)
    assert shown(database) == before
    cut = Cut(monkeypatch, number, after=late)
    lost = False
    with cut.active():
        try:
            case.act(database, handles)
        except sb.InstanceError:
            lost = True
    places.instance._pool.check()  # a dead connection that nobody has noticed leaves it
    found = shown(database)
    assert found == (after if not lost else after if found == after else before), f"half-done at exchange {number}"
    assert locks_held(database) == []
    if found == before:
        case.act(database, handles)
        assert shown(database) == after
    assert lost <= cut.done
    return cut.done


def test_a_cut_in_the_middle_of_commit(places: Places, clock: Clock) -> None:
    """COMMIT waits in a deferred trigger of the application's table, and is killed there."""
    database = places.next()
    handles = with_messages(database, clock)
    before = shown(database)
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
    assert shown(database) == before
    assert locks_held(database) == []
    work(database, handles)
    assert shown(database) != before
