"""SEND to a list of handles: all or none, the body stored once, and gone with its last reader."""

from __future__ import annotations

import itertools
import random
import threading
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

import servicebroker as sb
from servicebroker.api.upkeep import upkeep
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
    far_handle,
    group_of,
    in_thread,
    leftovers,
    open_dialog,
    query,
    refused,
    state,
    stopped,
    tolerate_rollbacks,
    undone,
    waiting_messages,
)

BODY = b"<body/>" * 100


def stored(database: sb.Database) -> tuple[int, int]:
    """Return the number of shared bodies in the instance, and of rows that refer to one."""
    ((bodies_there, readers),) = query(
        database,
        "select (select count(*) from servicebroker.shared_bodies), "
        "(select count(*) from servicebroker.shared_body_readers)",
    )
    return bodies_there, readers


def received(database: sb.Database, queue: str = STOCK_QUEUE) -> dict[UUID, list[bytes | None]]:
    """Everything in the queue, by conversation handle."""
    found: dict[UUID, list[bytes | None]] = {}
    while messages := database.receive(queue):
        for message in messages:
            found.setdefault(message.conversation_handle, []).append(message.message_body)
    return found


# ---------------------------------------------------------------- what arrives


@pytest.mark.feature(49)
def test_one_message_on_several_conversations(fresh_database: sb.Database) -> None:
    database = fresh_database
    opened = [open_dialog(database)[0] for _ in range(3)]
    new = [begin(database) for _ in range(2)]
    handles = [opened[0], new[0], opened[1], new[1], opened[2]]
    assert database.send(handles, ORDER, BODY) == [1, 0, 1, 0, 1]
    assert stored(database) == (1, 5)
    text = "select status, message_body, validation, message_sequence_number from test_dbo.stockqueue"
    assert sorted(query(database, text)) == sorted([(1, BODY, "N", 1)] * 3 + [(1, BODY, "N", 0)] * 2)
    assert database.send(handles, ORDER, b"next") == [2, 1, 2, 1, 2]
    database.send(handles[0], ORDER, b"alone")
    assert stored(database) == (2, 10)
    found = received(database)
    assert len(found) == 5
    for handle in handles:
        alone = [b"alone"] if handle == handles[0] else []
        assert found[far_handle(database, handle)] == [BODY, b"next", *alone]
    assert stored(database) == (0, 0)


@pytest.mark.feature(49)
@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_one_and_bodies_that_are_empty(fresh_database: sb.Database, kind: Any) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    assert database.send(kind(handles[:1]), ORDER, b"x") == [0]
    assert database.send(kind(handles), MARK) == [1, 0]
    assert database.send(kind(handles), ORDER, b"") == [2, 1]
    assert stored(database)[0] <= 1  # that of the list of one
    assert sorted(received(database).values(), key=len) == [[None, None], [b"x", None, None]]
    assert stored(database) == (0, 0)


@pytest.mark.feature(49)
def test_the_body_is_stored_once(fresh_database: sb.Database) -> None:
    """50 conversations, a body that cannot be compressed: the tables take little more than one body."""
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
def test_both_sides_of_one_conversation_and_several_databases(fresh_database: sb.Database) -> None:
    database = fresh_database
    initiator, target = open_dialog(database)
    other = database.instance.database("Other", create=True)
    other.create_message_type(DOCUMENT, "EMPTY")
    other.create_message_type(ORDER)
    other.create_contract(CONTRACT, {ORDER: "INITIATOR", DOCUMENT: "ANY"})
    other.create_queue(STOCK_QUEUE)
    other.create_service("//other/Stock", STOCK_QUEUE, [CONTRACT])
    far = begin(database, "//other/Stock")
    assert database.send([target, initiator, far], DOCUMENT, "<a/>") == [0, 1, 0]
    (message,) = database.receive(ORDERS_QUEUE, conversation_handle=initiator)
    assert message.message_body == b"<a/>"
    assert bodies(database.receive(STOCK_QUEUE)) == [b"<a/>"]
    (error,) = database.receive(ORDERS_QUEUE)  # the third one's message type takes no body there
    assert (error.conversation_handle, sb.read_error(error.message_body)[0]) == (far, -8430)
    assert stored(database) == (0, 0)


# ---------------------------------------------------------------- what is refused


@pytest.mark.feature(49)
def test_a_list_that_is_none_of_handles_is_refused(database: sb.Database) -> None:
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
    database.end_conversation(far_handle(database, ended))
    database.create_contract("//test/Other", {REPLY: "INITIATOR"})
    other = database.begin_dialog(ORDERS, STOCK, contract="//test/Other")
    clock.jump(seconds=2)
    unknown = uuid4()
    cases = [
        ([good, unknown, ended], ORDER, b"x", 8426, str(unknown)),
        ([good, new, ended], ORDER, b"x", 8429, "'DI'"),
        ([good, expired], ORDER, b"x", 8429, "'ER'"),
        ([good, other], ORDER, b"x", 8431, ORDER),
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
        with undone(database) as transaction, refused(number, words):
            transaction.send(handles, message_type, body)  # type: ignore[arg-type]
    assert query(database, sent) == before
    assert database.receive(STOCK_QUEUE) == []
    assert (stored(database), state(database, new)) == ((0, 0), "SO")


@pytest.mark.feature(49, 54)
def test_a_body_over_the_maximum(fresh_database: sb.Database) -> None:
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
    assert list(received(database).values()) == [[b"yes"], [b"yes"]]


# ---------------------------------------------------------------- no body lost, none left behind


def test_rollback_and_savepoints(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    with undone(database) as transaction:
        transaction.send(handles, ORDER, b"undone")
    assert leftovers(database).keys() == {"conversation_endpoints", "conversation_groups"}
    database.send(handles, ORDER, BODY)
    with database.transaction() as transaction:
        with pytest.raises(Undo), transaction.savepoint():
            while transaction.receive(STOCK_QUEUE):
                pass
            raise Undo
        assert bodies(transaction.receive(STOCK_QUEUE)) == [BODY]
    with undone(database) as transaction:
        assert bodies(transaction.receive(STOCK_QUEUE)) == [BODY]
    assert stored(database) == (1, 1)
    assert bodies(database.receive(STOCK_QUEUE)) == [BODY]
    assert stored(database) == (0, 0)


def test_sent_and_received_in_one_transaction(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    with database.transaction() as transaction:
        transaction.send(handles, ORDER, BODY)
        assert bodies(transaction.receive(STOCK_QUEUE)) == [BODY]
        assert bodies(transaction.receive(STOCK_QUEUE)) == [BODY]
    assert stored(database) == (0, 0)


@pytest.mark.parametrize("how", ["plain", "error", "cleanup"])
def test_end_in_its_three_forms_drops_what_was_not_received(fresh_database: sb.Database, how: str) -> None:
    database = fresh_database
    handles = [open_dialog(database)[0], open_dialog(database)[0]]
    database.send(handles, ORDER, BODY)
    options: dict[str, Any] = {"plain": {}, "error": {"error": (1, "x")}, "cleanup": {"cleanup": True}}[how]
    database.end_conversation(far_handle(database, handles[0]), **options)
    assert stored(database) == (1, 1)
    database.end_conversation(far_handle(database, handles[1]), **options)
    assert stored(database) == (0, 0)


def test_move_leaves_the_body_readable(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [open_dialog(database)[0], open_dialog(database)[0]]
    database.send(handles, ORDER, BODY)
    first, second = (far_handle(database, handle) for handle in handles)
    database.move_conversation(first, group_of(database, second))
    assert bodies(database.receive(STOCK_QUEUE)) == [BODY, BODY]
    assert stored(database) == (0, 0)


def test_parked_messages_wait_with_the_shared_body(fresh_database: sb.Database) -> None:
    """A service that is not there, a queue that is off, a conversation that waits already, and one that is free."""
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
    assert stored(database) == (1, 4)
    assert waiting_messages(database) == 4
    text = "select message_body from sys.transmission_queue where message_body <> '0'"
    assert query(database, text) == [(BODY,)] * 3
    assert bodies(database.receive(STOCK_QUEUE)) == [BODY]
    database.alter_queue("Off", status=True)
    assert received(database, "Off") == {
        far_handle(database, opened): [BODY],
        far_handle(database, new): [BODY],
    }
    database.create_service("//test/Later", STOCK_QUEUE, [CONTRACT])
    assert bodies(database.receive(STOCK_QUEUE)) == [b"0", BODY]
    assert (stored(database), waiting_messages(database)) == ((0, 0), 0)


def test_parked_messages_that_never_arrive(fresh_database: sb.Database, clock: Clock) -> None:
    """Expired, ended with an error, cleaned up: what waits is dropped, and the body with the last of them."""
    database = fresh_database
    handles = [begin(database, "//nobody", lifetime=60), begin(database, "//nobody"), begin(database, "//nobody")]
    database.send(handles, ORDER, BODY)
    assert stored(database) == (1, 3)
    clock.jump(seconds=61)
    assert [message.is_error for message in database.receive(ORDERS_QUEUE)] == [True]
    assert stored(database) == (1, 2)
    database.end_conversation(handles[1], error=(1, "x"))
    assert stored(database) == (1, 1)
    database.end_conversation(handles[2], cleanup=True)
    assert stored(database) == (0, 0)


def test_what_a_peer_refuses_fails_its_conversation_only(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [open_dialog(database)[0], begin(database)]
    database.create_queue("Off")
    database.create_service("//test/Off", "Off", [CONTRACT])
    database.alter_queue("Off", status=False)
    late = begin(database, "//test/Off")
    database.send([*handles, late], DOCUMENT, b"<broken")
    assert stored(database) == (1, 1)  # that of the message which nobody has looked at
    database.alter_queue("Off", status=True)
    assert [state(database, handle) for handle in [*handles, late]] == ["ER", "ER", "ER"]
    assert {message.is_error for message in database.receive(ORDERS_QUEUE)} == {True}
    assert stored(database) == (0, 0)
    good = [begin(database), begin(database, "//nobody")]
    database.send(good, DOCUMENT, b"<fine/>")
    assert stored(database) == (1, 2)


def test_a_service_that_moves_takes_its_bodies_along(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    database.send(handles, ORDER, BODY)
    database.create_queue("New")
    database.alter_service(STOCK, queue="New")
    assert list(received(database, "New").values()) == [[BODY], [BODY]]
    assert stored(database) == (0, 0)


@pytest.mark.parametrize("how", ["service", "broker"])
def test_drop_service_and_queue_and_new_broker_remove_the_bodies(fresh_database: sb.Database, how: str) -> None:
    database = fresh_database
    database.send([begin(database), begin(database), begin(database, "//nobody")], ORDER, BODY)
    if how == "service":
        database.drop_service(STOCK)
        database.drop_queue(STOCK_QUEUE)
        assert stored(database) == (1, 1)
        database.drop_service(ORDERS)
    else:
        database.alter(new_broker=True)
    assert stored(database) == (0, 0)


def test_last_readers_that_go_at_once_leave_a_body_to_the_background(fresh_database: sb.Database) -> None:
    database = fresh_database
    handles = [begin(database), begin(database), begin(database, "//nobody")]
    database.send(handles[:2], ORDER, BODY)
    with database.transaction() as one, database.transaction() as two:
        assert bodies(one.receive(STOCK_QUEUE)) == bodies(two.receive(STOCK_QUEUE)) == [BODY]
    assert stored(database) == (1, 0)
    database.send([handles[2], handles[0]], ORDER, b"kept")
    with database.instance.connection() as connection:
        upkeep(connection, database.instance.clock())
    assert stored(database) == (1, 2)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"kept"]


@pytest.mark.feature(49)
def test_a_connection_lost_before_any_statement_leaves_nothing(
    fresh_database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = fresh_database
    handles = [open_dialog(database)[0], begin(database), begin(database, "//nobody"), begin(database)]
    sent = "select conversation_handle, send_sequence, state from servicebroker.conversation_endpoints order by 1"
    before = query(database, sent)
    run_prepared = DirectConnection.run_prepared
    left = 0

    def cut(connection: DirectConnection, text: str, parameters: tuple[object, ...], then: bytes) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            stopped(connection)
        return run_prepared(connection, text, parameters, then)

    for statements in itertools.count():
        left = statements
        with monkeypatch.context() as patched:
            patched.setattr(DirectConnection, "run_prepared", cut)
            try:
                database.send(handles, DOCUMENT, "<x/>")
            except sb.InstanceError:
                pass
            else:
                break
        assert query(database, sent) == before
        assert (stored(database), waiting_messages(database)) == ((0, 0), 0)
    assert statements > 8
    assert stored(database) == (1, 4)
    assert list(received(database).values()) == [[b"<x/>"]] * 3


# ---------------------------------------------------------------- many at once


@pytest.mark.slow
@pytest.mark.feature(49)
def test_multicasts_readers_and_ends_at_once(fresh_database: sb.Database, seeded_random: random.Random) -> None:
    """Overlapping multicasts in every order with rollbacks: no deadlock, each body where it was sent, none left."""
    database = fresh_database
    tolerate_rollbacks(database)
    handles = [open_dialog(database)[0] for _ in range(8)]
    targets = {handle: far_handle(database, handle) for handle in handles}
    sent: dict[UUID, list[bytes]] = {target: [] for target in targets.values()}
    found: dict[UUID, list[bytes | None]] = {target: [] for target in targets.values()}
    done = threading.Event()

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
                found[message.conversation_handle].append(message.message_body)
        return messages

    choices = [random.Random(seeded_random.random()) for _ in range(3)]
    readers = [in_thread(drain, partial(read, choice), done) for choice in choices]
    senders = [in_thread(partial(send, name, seeded_random.random())) for name in range(6)]
    for future in senders:
        future.result(120)
    done.set()
    for future in readers:
        future.result(120)
    for target, there in found.items():
        assert sorted(map(bytes, filter(None, there))) == sorted(sent[target])
    for name in range(6):  # in the order of each sender
        for there in found.values():
            own = [int(body.split()[1]) for body in there if body and body.startswith(b"%d " % name)]
            assert own == sorted(own)
    with database.instance.connection() as connection:
        upkeep(connection, database.instance.clock())
    assert stored(database) == (0, 0)


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
        received(database)
        for handle in handles:
            database.end_conversation(handle, cleanup=True)
    with database.instance.connection() as connection:
        upkeep(connection, database.instance.clock())
    assert stored(database) == (0, 0)


# ---------------------------------------------------------------- what the peers say of the sender


@pytest.fixture
def owned(database: sb.Database, app: sb.Database) -> tuple[UUID, UUID]:
    """Handles of a service of App: as initiator towards STOCK, where it may not SEND any more, and as its target."""
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
def test_an_answer_needs_no_permission_and_lends_none_to_a_question(
    database: sb.Database, owned: tuple[UUID, UUID], first: int
) -> None:
    asking, answering = owned
    database.send([owned[first], owned[1 - first]], DOCUMENT, b"<a/>")
    assert errors(database.receive(ORDERS_QUEUE)) == [-8494]
    assert state(database, asking) == "ER"
    assert received(database)[far_handle(database, answering)] == [b"<a/>"]


@pytest.mark.feature(49, 107)
@pytest.mark.parametrize("obstacle", ["none", "retention", "off"])
@pytest.mark.parametrize("first", [0, 1])
def test_both_ends_of_a_conversation_that_fails_on_the_way(
    database: sb.Database, owned: tuple[UUID, UUID], obstacle: str, first: int
) -> None:
    """The other end's message is delivered before the Error, or dropped with it; both ends stay in error."""
    ends = [owned[0], far_handle(database, owned[0])]
    database.alter_queue(STOCK_QUEUE, retention=obstacle == "retention")
    database.alter_queue(ORDERS_QUEUE, status=obstacle != "off")
    sending = in_thread(database.send, [ends[first], ends[1 - first]], DOCUMENT, b"<a/>")
    assert len(sending.result(20)) == 2
    database.alter_queue(ORDERS_QUEUE, status=True)
    assert [state(database, end) for end in ends] == ["ER", "ER"]
    assert waiting_messages(database) == 0
    assert errors(database.receive(ORDERS_QUEUE, conversation_handle=ends[0])) == [-8494]
    for end in ends:
        database.end_conversation(end)
    assert stored(database) == (0, 0)


@pytest.mark.feature(49)
def test_permissions_of_the_sender_are_asked_once_for_all_handles(
    database: sb.Database, app: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = [open_dialog(database)[0] for _ in range(8)]
    with refused(8494, ORDERS):
        app.send(handles, ORDER, BODY)
    database.grant("RECEIVE", APP, queue=ORDERS_QUEUE)
    missing = uuid4()
    with refused(8426, str(missing)):
        app.send([*handles[:2], missing, *handles[2:]], ORDER, BODY)
    done: list[str] = []
    run = DirectConnection.run_prepared

    def counted(connection: DirectConnection, sql: str, parameters: tuple[object, ...], then: bytes) -> list[Any]:
        done.append(sql)
        return run(connection, sql, parameters, then)

    monkeypatch.setattr(DirectConnection, "run_prepared", counted)
    app.send(handles, ORDER, BODY)
    asked = len([sql for sql in done if "principals" in sql or "owner_id, s.name, q.queue_id" in sql])
    assert asked == 2
    assert sum(map(len, received(database).values())) == len(handles)


def test_what_is_remembered_of_contracts_has_a_limit(
    database: sb.Database, app: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache stays bounded for a sender while permissions change all the time."""
    monkeypatch.setattr(catalog, "_MAX_USAGES", 8)
    handle = begin(database)
    for number in range(30):
        assert database.send(handle, ORDER, b"x") == number
        database.grant("SEND", APP, service=STOCK)
    assert len(database.catalog.usages) <= 8
