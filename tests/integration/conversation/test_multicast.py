"""SEND to a list of handles: all or none, and one stored body, which is deleted with its last message."""

from __future__ import annotations

import itertools
import random
import threading
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

import servicebroker as sb
from servicebroker.api.maintenance import run_maintenance
from servicebroker.engine.catalog import catalog
from servicebroker.model.arguments import MAXIMUM_HANDLES
from servicebroker.store.direct import DirectConnection
from support import (
    APP,
    CONTRACT,
    DOCUMENT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    Undo,
    begin,
    bodies,
    drain,
    errors,
    group_of,
    in_thread,
    leftovers,
    open_dialog,
    peer_handle,
    query,
    refused,
    rolled_back,
    state,
    terminate_backend,
    tolerate_rollbacks,
    waiting_messages,
)

BODY = b"<body/>" * 100


def count_bodies(database: sb.Database) -> tuple[int, int]:
    """Return the number of shared bodies in the instance, and the number of messages that use one."""
    ((body_count, readers),) = query(
        database,
        "select (select count(*) from servicebroker.shared_bodies), "
        "(select count(*) from servicebroker.shared_body_readers)",
    )
    return body_count, readers


def receive_all(database: sb.Database, queue: str = STOCK_QUEUE) -> dict[UUID, list[bytes | None]]:
    """Receive all messages of the queue. Return their bodies by conversation handle."""
    received: dict[UUID, list[bytes | None]] = {}
    while messages := database.receive(queue):
        for message in messages:
            received.setdefault(message.conversation_handle, []).append(message.message_body)
    return received


# ---------------------------------------------------------------- delivery


@pytest.mark.feature(49)
def test_one_message_on_several_conversations_is_stored_once(fresh_database: sb.Database) -> None:
    database = fresh_database
    opened = [open_dialog(database)[0] for _ in range(3)]
    new = [begin(database) for _ in range(2)]
    handles = [opened[0], new[0], opened[1], new[1], opened[2]]
    assert database.send(handles, ORDER, BODY) == [1, 0, 1, 0, 1]
    assert count_bodies(database) == (1, 5)
    text = "select status, message_body, validation, message_sequence_number from test_dbo.stockqueue"
    assert sorted(query(database, text)) == sorted([(1, BODY, "N", 1)] * 3 + [(1, BODY, "N", 0)] * 2)
    assert database.send(handles, ORDER, b"next") == [2, 1, 2, 1, 2]
    database.send(handles[0], ORDER, b"alone")
    assert count_bodies(database) == (2, 10)
    bodies_by_handle = receive_all(database)
    assert len(bodies_by_handle) == 5
    for handle in handles:
        alone = [b"alone"] if handle == handles[0] else []
        assert bodies_by_handle[peer_handle(database, handle)] == [BODY, b"next", *alone]
    assert count_bodies(database) == (0, 0)


@pytest.mark.feature(49)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_one_and_bodies_that_are_empty(fresh_database: sb.Database, kind: Any) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    assert database.send(kind(handles[:1]), ORDER, b"x") == [0]
    assert database.send(kind(handles), MARK) == [1, 0]
    assert database.send(kind(handles), ORDER, b"") == [2, 1]
    assert count_bodies(database)[0] <= 1  # the SEND to a list of one handle
    assert sorted(receive_all(database).values(), key=len) == [[None, None], [b"x", None, None]]
    assert count_bodies(database) == (0, 0)


@pytest.mark.feature(49)
def test_the_body_is_stored_once(fresh_database: sb.Database) -> None:
    """A body that cannot be compressed, sent on 50 conversations: the tables grow by little more than one body."""
    database = fresh_database
    handles = [open_dialog(database)[0] for _ in range(50)]
    size = (
        "select sum(pg_total_relation_size(oid)) from pg_class "
        "where relnamespace = 'servicebroker'::regnamespace and relkind = 'r'"
    )
    before = query(database, size)[0][0]
    body = random.Random(1).randbytes(1_000_000)
    database.send(handles, ORDER, body)
    assert query(database, size)[0][0] - before < 1_200_000
    assert bodies(database.receive(STOCK_QUEUE)) == [body]


@pytest.mark.feature(49)
def test_a_multicast_reaches_both_sides_and_several_databases(fresh_database: sb.Database) -> None:
    database = fresh_database
    initiator, target = open_dialog(database)
    other_database = database.instance.database("Other", create=True)
    other_database.create_message_type(DOCUMENT, "EMPTY")
    other_database.create_message_type(ORDER)
    other_database.create_contract(CONTRACT, {ORDER: "INITIATOR", DOCUMENT: "ANY"})
    other_database.create_queue(STOCK_QUEUE)
    other_database.create_service("//other/Stock", STOCK_QUEUE, [CONTRACT])
    far = begin(database, "//other/Stock")
    assert database.send([target, initiator, far], DOCUMENT, "<a/>") == [0, 1, 0]
    (message,) = database.receive(ORDERS_QUEUE, conversation_handle=initiator)
    assert message.message_body == b"<a/>"
    assert bodies(database.receive(STOCK_QUEUE)) == [b"<a/>"]
    (error,) = database.receive(ORDERS_QUEUE)  # in the third database the message type allows no body
    assert (error.conversation_handle, sb.read_error(error.message_body)[0]) == (far, -8430)
    assert count_bodies(database) == (0, 0)


# ---------------------------------------------------------------- refusals


@pytest.mark.feature(49)
def test_an_invalid_list_is_refused(database: sb.Database) -> None:
    handle = begin(database)
    wrong: list[tuple[Any, int, str]] = [
        ([], 402, "1 to 10000"),
        ([handle, handle], 402, f"{handle} twice"),
        ([handle, None], 8418, ""),
        ([handle, "x"], 402, "uuid.UUID"),
        ({handle}, 402, "a list of them"),
        ("handles", 402, "a list of them"),
        ([uuid4() for _ in range(MAXIMUM_HANDLES + 1)], 402, "10001"),
        (None, 8418, ""),
    ]
    for handles, number, words in wrong:
        with refused(number, words):
            database.send(handles, ORDER, b"x")
    assert state(database, handle) == "SO"


@pytest.mark.feature(49)
def test_when_one_handle_is_refused_nothing_is_sent(fresh_database: sb.Database, clock: Clock) -> None:
    database = fresh_database
    good, target = open_dialog(database)
    new, ended, expired = begin(database), open_dialog(database)[0], begin(database, lifetime=1)
    database.send(ended, ORDER, b"x")
    database.receive(STOCK_QUEUE)
    database.end_conversation(peer_handle(database, ended))
    database.create_contract("//test/Other", {REPLY: "INITIATOR"})
    other_handle = database.begin_dialog(ORDERS, STOCK, contract="//test/Other")
    clock.jump(seconds=2)
    unknown = uuid4()
    cases = [
        ([good, unknown, ended], ORDER, b"x", 8426, str(unknown)),
        ([good, new, ended], ORDER, b"x", 8429, "'DI'"),
        ([good, expired], ORDER, b"x", 8429, "'ER'"),
        ([good, other_handle], ORDER, b"x", 8431, ORDER),
        ([good, new], REPLY, b"x", 8432, REPLY),
        ([good, target], ORDER, b"x", 8434, ORDER),
        ([good, new], "//no/type", b"x", 8428, "//no/type"),
        ([good, new], ORDER, None, 8433, ""),
        ([good, new], None, b"x", 402, "message type"),
    ]
    sent = "select conversation_handle, send_sequence from servicebroker.conversation_endpoints order by 1"
    before = query(database, sent)
    for handles, message_type, body, number, words in cases:
        with refused(number, words):
            database.send(handles, message_type, body)  # type: ignore[arg-type]
        with rolled_back(database) as transaction, refused(number, words):
            transaction.send(handles, message_type, body)  # type: ignore[arg-type]
    assert query(database, sent) == before
    assert database.receive(STOCK_QUEUE) == []
    assert (count_bodies(database), state(database, new)) == ((0, 0), "SO")


@pytest.mark.feature(49, 54)
def test_a_multicast_body_over_the_maximum_is_refused(fresh_database: sb.Database) -> None:
    handles = [begin(fresh_database), begin(fresh_database)]
    fresh_database.instance.maximum_body = 10
    with refused(8459, "10"):
        fresh_database.send(handles, ORDER, b"x" * 11)
    fresh_database.send(handles, ORDER, b"x" * 10)


def test_a_refusal_inside_a_transaction_leaves_it_usable(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    with database.transaction() as transaction:
        with refused(8426):
            transaction.send([*handles, uuid4()], ORDER, b"no")
        transaction.send(handles, ORDER, b"yes")
    assert list(receive_all(database).values()) == [[b"yes"], [b"yes"]]


# ---------------------------------------------------------------- the life of a shared body


def test_rollbacks_of_a_multicast_free_its_shared_body(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    with rolled_back(database) as transaction:
        transaction.send(handles, ORDER, b"undone")
    assert leftovers(database).keys() == {"conversation_endpoints", "conversation_groups"}
    database.send(handles, ORDER, BODY)
    with database.transaction() as transaction:
        with pytest.raises(Undo), transaction.savepoint():
            while transaction.receive(STOCK_QUEUE):
                pass
            raise Undo
        assert bodies(transaction.receive(STOCK_QUEUE)) == [BODY]
    with rolled_back(database) as transaction:
        assert bodies(transaction.receive(STOCK_QUEUE)) == [BODY]
    assert count_bodies(database) == (1, 1)
    assert bodies(database.receive(STOCK_QUEUE)) == [BODY]
    assert count_bodies(database) == (0, 0)


def test_a_multicast_is_received_in_the_transaction_that_sent_it(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    with database.transaction() as transaction:
        transaction.send(handles, ORDER, BODY)
        assert bodies(transaction.receive(STOCK_QUEUE)) == [BODY]
        assert bodies(transaction.receive(STOCK_QUEUE)) == [BODY]
    assert count_bodies(database) == (0, 0)


@pytest.mark.parametrize("kind_of_end", ["plain", "error", "cleanup"])
def test_every_kind_of_end_drops_unreceived_messages(fresh_database: sb.Database, kind_of_end: str) -> None:
    database = fresh_database
    handles = [open_dialog(database)[0], open_dialog(database)[0]]
    database.send(handles, ORDER, BODY)
    options: dict[str, Any] = {"plain": {}, "error": {"error": (1, "x")}, "cleanup": {"cleanup": True}}[kind_of_end]
    database.end_conversation(peer_handle(database, handles[0]), **options)
    assert count_bodies(database) == (1, 1)
    database.end_conversation(peer_handle(database, handles[1]), **options)
    assert count_bodies(database) == (0, 0)


def test_move_leaves_the_body_readable(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [open_dialog(database)[0], open_dialog(database)[0]]
    database.send(handles, ORDER, BODY)
    first, second = (peer_handle(database, handle) for handle in handles)
    database.move_conversation(first, group_of(database, second))
    assert bodies(database.receive(STOCK_QUEUE)) == [BODY, BODY]
    assert count_bodies(database) == (0, 0)


def test_parked_messages_wait_with_the_shared_body(fresh_database: sb.Database) -> None:
    """Messages wait for a missing service and for a disabled queue. Another conversation gets its message at once."""
    database = fresh_database
    database.create_queue("Off")
    database.create_service("//test/Off", "Off", [CONTRACT])
    opened, new = begin(database, "//test/Off"), begin(database, "//test/Off")
    database.send(opened, ORDER, b"0")
    database.receive("Off")
    database.alter_queue("Off", status=False)
    nobody, free = begin(database, "//test/Later"), begin(database)
    database.send(nobody, ORDER, b"0")
    assert database.send([opened, new, nobody, free], ORDER, BODY) == [1, 0, 1, 0]
    assert count_bodies(database) == (1, 4)
    assert waiting_messages(database) == 4
    text = "select message_body from sys.transmission_queue where message_body <> '0'"
    assert query(database, text) == [(BODY,)] * 3
    assert bodies(database.receive(STOCK_QUEUE)) == [BODY]
    database.alter_queue("Off", status=True)
    assert receive_all(database, "Off") == {
        peer_handle(database, opened): [BODY],
        peer_handle(database, new): [BODY],
    }
    database.create_service("//test/Later", STOCK_QUEUE, [CONTRACT])
    assert bodies(database.receive(STOCK_QUEUE)) == [b"0", BODY]
    assert (count_bodies(database), waiting_messages(database)) == ((0, 0), 0)


def test_parked_messages_that_never_arrive(fresh_database: sb.Database, clock: Clock) -> None:
    """A lifetime, an error and a cleanup each drop a waiting message. The body is dropped with the last one."""
    database = fresh_database
    handles = [begin(database, "//nobody", lifetime=60), begin(database, "//nobody"), begin(database, "//nobody")]
    database.send(handles, ORDER, BODY)
    assert count_bodies(database) == (1, 3)
    clock.jump(seconds=61)
    assert [message.is_error for message in database.receive(ORDERS_QUEUE)] == [True]
    assert count_bodies(database) == (1, 2)
    database.end_conversation(handles[1], error=(1, "x"))
    assert count_bodies(database) == (1, 1)
    database.end_conversation(handles[2], cleanup=True)
    assert count_bodies(database) == (0, 0)


def test_a_refusal_by_a_peer_fails_only_its_conversation(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [open_dialog(database)[0], begin(database)]
    database.create_queue("Off")
    database.create_service("//test/Off", "Off", [CONTRACT])
    database.alter_queue("Off", status=False)
    late = begin(database, "//test/Off")
    database.send([*handles, late], DOCUMENT, b"<broken")
    assert count_bodies(database) == (1, 1)  # the message to the disabled queue is not validated yet
    database.alter_queue("Off", status=True)
    assert [state(database, handle) for handle in [*handles, late]] == ["ER", "ER", "ER"]
    assert {message.is_error for message in database.receive(ORDERS_QUEUE)} == {True}
    assert count_bodies(database) == (0, 0)
    good = [begin(database), begin(database, "//nobody")]
    database.send(good, DOCUMENT, b"<fine/>")
    assert count_bodies(database) == (1, 2)


def test_shared_bodies_follow_a_service_to_another_queue(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    database.send(handles, ORDER, BODY)
    database.create_queue("New")
    database.alter_service(STOCK, queue="New")
    assert list(receive_all(database, "New").values()) == [[BODY], [BODY]]
    assert count_bodies(database) == (0, 0)


@pytest.mark.parametrize("owner", ["service", "broker"])
def test_drop_service_and_queue_and_new_broker_remove_the_bodies(fresh_database: sb.Database, owner: str) -> None:
    database = fresh_database
    database.send([begin(database), begin(database), begin(database, "//nobody")], ORDER, BODY)
    if owner == "service":
        database.drop_service(STOCK)
        database.drop_queue(STOCK_QUEUE)
        assert count_bodies(database) == (1, 1)
        database.drop_service(ORDERS)
    else:
        database.alter(new_broker=True)
    assert count_bodies(database) == (0, 0)


def test_upkeep_removes_a_body_after_concurrent_last_readers(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database), begin(database, "//nobody")]
    database.send(handles[:2], ORDER, BODY)
    with database.transaction() as first, database.transaction() as second:
        assert bodies(first.receive(STOCK_QUEUE)) == bodies(second.receive(STOCK_QUEUE)) == [BODY]
    assert count_bodies(database) == (1, 0)
    database.send([handles[2], handles[0]], ORDER, b"kept")
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())
    assert count_bodies(database) == (1, 2)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"kept"]


@pytest.mark.feature(49)
def test_a_connection_lost_before_each_statement_leaves_nothing(
    fresh_database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fresh_database
    handles = [open_dialog(database)[0], begin(database), begin(database, "//nobody"), begin(database)]
    sent = "select conversation_handle, send_sequence, state from servicebroker.conversation_endpoints order by 1"
    before = query(database, sent)
    run_prepared = DirectConnection.run_prepared
    remaining = 0

    def run_or_lose(connection: DirectConnection, text: str, parameters: tuple[object, ...], then: bytes) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            terminate_backend(connection)
        return run_prepared(connection, text, parameters, then)

    for statements in itertools.count():
        remaining = statements
        with monkeypatch.context() as patched:
            patched.setattr(DirectConnection, "run_prepared", run_or_lose)
            try:
                database.send(handles, DOCUMENT, "<x/>")
            except sb.InstanceError:
                pass
            else:
                break
        assert query(database, sent) == before
        assert (count_bodies(database), waiting_messages(database)) == ((0, 0), 0)
    assert statements > 8
    assert count_bodies(database) == (1, 4)
    assert list(receive_all(database).values()) == [[b"<x/>"]] * 3


# ---------------------------------------------------------------- concurrency


@pytest.mark.slow
@pytest.mark.feature(49)
def test_concurrent_multicasts_and_readers_leave_no_body(
    fresh_database: sb.Database, seeded_random: random.Random
) -> None:
    """Overlapping multicasts in random order, with rollbacks: no deadlock, no lost message, no remaining body."""
    database = fresh_database
    tolerate_rollbacks(database)
    handles = [open_dialog(database)[0] for _ in range(8)]
    targets = {handle: peer_handle(database, handle) for handle in handles}
    sent: dict[UUID, list[bytes]] = {target: [] for target in targets.values()}
    received: dict[UUID, list[bytes | None]] = {target: [] for target in targets.values()}
    done_event = threading.Event()

    def send(name: int, seed: float) -> None:
        choice = random.Random(seed)
        for number in range(40):
            chosen = choice.sample(handles, choice.randint(2, 8))
            body = b"%d %d" % (name, number)
            try:
                with database.transaction() as transaction:
                    if choice.random() < 0.1:
                        transaction.send([*chosen, begin(database, "//nobody")], DOCUMENT, b"<lost/>")
                        raise Undo
                    transaction.send(chosen, ORDER, body)
            except Undo:
                continue
            for handle in chosen:
                sent[targets[handle]].append(body)

    def read(choice: random.Random) -> list[sb.Message]:
        with database.transaction() as transaction:
            messages = transaction.receive(STOCK_QUEUE, top=choice.choice([1, 3, None]))
            if messages and choice.random() < 0.3:
                raise Undo
            for message in messages:
                received[message.conversation_handle].append(message.message_body)
        return messages

    choices = [random.Random(seeded_random.random()) for _ in range(3)]
    readers = [in_thread(drain, partial(read, choice), done_event) for choice in choices]
    senders = [in_thread(partial(send, name, seeded_random.random())) for name in range(6)]
    for future in senders:
        future.result(120)
    done_event.set()
    for future in readers:
        future.result(120)
    for target, contents in received.items():
        assert sorted(map(bytes, filter(None, contents))) == sorted(sent[target])
    for name in range(6):  # each sender's messages are in order
        for contents in received.values():
            numbers = [int(body.split()[1]) for body in contents if body and body.startswith(b"%d " % name)]
            assert numbers == sorted(numbers)
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())
    assert count_bodies(database) == (0, 0)


@pytest.mark.slow
def test_multicasts_against_ends_of_their_peers(fresh_database: sb.Database, seeded_random: random.Random) -> None:
    database = fresh_database
    for _ in range(25):
        dialogs = [open_dialog(database) for _ in range(4)]
        handles = [initiator for initiator, _ in dialogs]

        def send(chosen: list[UUID]) -> None:
            for _ in range(5):
                try:
                    database.send(chosen, ORDER, BODY)
                except sb.BrokerError as refusal:
                    assert refusal.number in (8426, 8429), refusal  # noqa: PT017 # nothing else may come

        def end(handle: UUID) -> None:
            database.end_conversation(handle)

        work = [in_thread(send, seeded_random.sample(handles, 4)) for _ in range(2)]
        work += [in_thread(end, target) for _, target in seeded_random.sample(dialogs, 2)]
        for future in work:
            future.result(60)
        receive_all(database)
        for handle in handles:
            database.end_conversation(handle, cleanup=True)
    with database.instance.connection() as connection:
        run_maintenance(connection, database.instance.clock())
    assert count_bodies(database) == (0, 0)


# ---------------------------------------------------------------- permissions


@pytest.fixture
def app_handles(database: sb.Database, app: sb.Database) -> tuple[UUID, UUID]:
    """Two handles of a service of App: an initiator whose SEND permission was revoked, and a target."""
    name = "//test/Owned"
    database.create_service(name, ORDERS_QUEUE, [CONTRACT], authorization=APP)
    database.grant("SEND", APP, service=STOCK)
    asking = database.begin_dialog(name, STOCK, contract=CONTRACT)
    database.send(asking, MARK)
    database.revoke("SEND", APP, service=STOCK)
    assert len(database.receive(STOCK_QUEUE)) == 1
    database.send(database.begin_dialog(STOCK, name, contract=CONTRACT), MARK)
    (message,) = database.receive(ORDERS_QUEUE)
    return asking, message.conversation_handle


@pytest.mark.feature(49, 107)
@pytest.mark.parametrize("first", [0, 1])
def test_a_target_needs_no_permission_and_an_initiator_does(
    database: sb.Database, app_handles: tuple[UUID, UUID], first: int
) -> None:
    asking, answering = app_handles
    database.send([app_handles[first], app_handles[1 - first]], DOCUMENT, b"<a/>")
    assert errors(database.receive(ORDERS_QUEUE)) == [-8494]
    assert state(database, asking) == "ER"
    assert receive_all(database)[peer_handle(database, answering)] == [b"<a/>"]


@pytest.mark.feature(49, 107)
@pytest.mark.parametrize("obstacle", ["none", "retention", "off"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_multicast_to_both_sides_of_a_conversation_that_fails(
    database: sb.Database, app_handles: tuple[UUID, UUID], obstacle: str, first: int
) -> None:
    """The other side's message is delivered before the Error, or dropped with it. Both sides are in state ER."""
    handles = [app_handles[0], peer_handle(database, app_handles[0])]
    database.alter_queue(STOCK_QUEUE, retention=obstacle == "retention")
    database.alter_queue(ORDERS_QUEUE, status=obstacle != "off")
    sending = in_thread(database.send, [handles[first], handles[1 - first]], DOCUMENT, b"<a/>")
    assert len(sending.result(20)) == 2
    database.alter_queue(ORDERS_QUEUE, status=True)
    assert [state(database, handle) for handle in handles] == ["ER", "ER"]
    assert waiting_messages(database) == 0
    assert errors(database.receive(ORDERS_QUEUE, conversation_handle=handles[0])) == [-8494]
    for handle in handles:
        database.end_conversation(handle)
    assert count_bodies(database) == (0, 0)


@pytest.mark.feature(49)
def test_the_senders_permissions_are_read_once_for_all_handles(
    database: sb.Database, app: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [open_dialog(database)[0] for _ in range(8)]
    with refused(8494, ORDERS):
        app.send(handles, ORDER, BODY)
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    missing = uuid4()
    with refused(8426, str(missing)):
        app.send([*handles[:2], missing, *handles[2:]], ORDER, BODY)
    statements: list[str] = []
    run = DirectConnection.run_prepared

    def count_statement(
        connection: DirectConnection, sql: str, parameters: tuple[object, ...], then: bytes
    ) -> list[Any]:
        statements.append(sql)
        return run(connection, sql, parameters, then)

    monkeypatch.setattr(DirectConnection, "run_prepared", count_statement)
    app.send(handles, ORDER, BODY)
    reads = len([sql for sql in statements if "principals" in sql or "owner_id, s.name, q.queue_id" in sql])
    assert reads == 2
    assert sum(map(len, receive_all(database).values())) == len(handles)


def test_the_cache_of_contracts_has_a_limit(
    database: sb.Database, app: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache stays bounded while permissions change after every message."""
    monkeypatch.setattr(catalog, "_MAX_USAGES", 8)
    handle = begin(database)
    for number in range(30):
        assert database.send(handle, ORDER, b"x") == number
        database.grant("SEND", APP, service=STOCK)
    assert len(database.catalog.usages) <= 8
