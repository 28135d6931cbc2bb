"""SEND and BEGIN DIALOG: delivered, refused and waiting messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

import servicebroker as sb
from servicebroker.engine.conversation import enqueue
from support import (
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
    begin,
    bodies,
    define_standard_set,
    group_of,
    in_thread,
    leftovers,
    open_dialog,
    peer_handle,
    query,
    refused,
    rolled_back,
    state,
    wait_until_blocked,
    waiting_messages,
)

pytestmark = pytest.mark.both_apis


@pytest.mark.feature(36, 41)
def test_begin_dialog_creates_only_an_endpoint(database: sb.Database) -> None:
    for target in (STOCK, "//no/such/service"):
        handle = begin(database, target)
        assert isinstance(handle, UUID)
        assert state(database, handle) == "SO"
    assert database.receive(STOCK_QUEUE) == database.receive(ORDERS_QUEUE) == []
    with refused(8423, "//nobody"):
        database.begin_dialog("//nobody", STOCK)
    with refused(8425, "//no/contract"):
        database.begin_dialog(ORDERS, STOCK, contract="//no/contract")


@pytest.mark.feature(42, 43)
def test_each_side_has_its_own_handle_and_group(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    assert initiator != target
    assert group_of(database, initiator) != group_of(database, target)
    rows = query(
        database,
        "select conversation_id, is_initiator from servicebroker.conversation_endpoints "
        "where conversation_handle in (%s, %s) order by is_initiator",
        initiator,
        target,
    )
    assert rows[0][0] == rows[1][0]
    assert [is_initiator for _, is_initiator in rows] == [False, True]


@pytest.mark.feature(40)
@pytest.mark.parametrize("options", [{}, {"encryption": True}, {"encryption": False}], ids=str)
def test_encryption_within_a_database_needs_no_key(database: sb.Database, options: dict[str, bool]) -> None:
    """No message leaves the instance, so nothing is encrypted, and the view shows no session key."""
    handle = begin(database, **options)
    database.send(handle, ORDER, b"x")
    (message,) = database.receive(STOCK_QUEUE)
    database.send(message.conversation_handle, REPLY, b"y")
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"y"]
    text = (
        "select outbound_session_key_identifier, inbound_session_key_identifier from sys.conversation_endpoints "
        "where broker_database = %s"
    )
    assert query(database, text, database.name) == [(UUID(int=0), UUID(int=0))] * 2
    for wrong in ("ON", 1, None):
        with refused(402, "ENCRYPTION"):
            begin(database, encryption=wrong)


@pytest.mark.feature(38)
def test_conversations_can_share_a_group(database: sb.Database) -> None:
    first = begin(database)
    second = begin(database, related_conversation=first)
    assert group_of(database, first) == group_of(database, second)
    own = uuid4()
    third = begin(database, related_conversation_group=own)
    fourth = begin(database, related_conversation_group=own)
    assert group_of(database, third) == group_of(database, fourth) == own
    with refused(8426):
        begin(database, related_conversation=uuid4())
    with refused(8414):
        begin(database, related_conversation_group=UUID(int=0))
    for relation in ({"related_conversation": first}, {"related_conversation_group": own}):
        with refused(9610, STOCK, ORDERS):
            database.begin_dialog(STOCK, ORDERS, contract=CONTRACT, **relation)  # type: ignore[arg-type]


def test_two_services_cannot_create_the_same_group(database: sb.Database) -> None:
    group = uuid4()
    with database.transaction() as first:
        first.begin_dialog(ORDERS, STOCK, related_conversation_group=group)
        second = in_thread(database.begin_dialog, STOCK, ORDERS, related_conversation_group=group)
        wait_until_blocked(database)
    with refused(9610):
        second.result(10)


def test_a_group_is_kept_while_a_dialog_begins_in_it(database: sb.Database) -> None:
    first = begin(database)
    group = group_of(database, first)
    with database.transaction() as transaction:
        transaction.end_conversation(first)
        second = in_thread(begin, database, related_conversation_group=group)
        wait_until_blocked(database)
    assert group_of(database, second.result(10)) == group
    rows = query(database, "select from servicebroker.conversation_groups where conversation_group_id = %s", group)
    assert len(rows) == 1


@pytest.mark.feature(37, 102, 108)
def test_a_broker_instance_names_the_database(instance: sb.Instance, database: sb.Database) -> None:
    text = "select service_broker_guid from servicebroker.databases where database_id = %s"
    own = query(database, text, database.database_id)[0][0]
    for broker_instance in ("CURRENT DATABASE", own, str(own).upper()):
        database.send(begin(database, broker_instance=broker_instance), ORDER, b"x")
        assert len(database.receive(STOCK_QUEUE)) == 1
    other_database = instance.database("OtherTarget", create=True)
    other_broker = query(database, text, other_database.database_id)[0][0]
    handle = begin(database, broker_instance=other_broker)
    database.send(handle, ORDER, b"x")
    (error,) = database.receive(ORDERS_QUEUE, conversation_handle=handle)
    assert sb.read_error(error.message_body) == (
        -8490,
        f"Cannot find the remote service '{STOCK}' because it does not exist.",
    )
    waits = begin(database, broker_instance=uuid4())
    database.send(waits, ORDER, b"x")
    assert waiting_messages(database) == 1
    assert database.receive(STOCK_QUEUE) == database.receive(ORDERS_QUEUE) == []
    database.end_conversation(waits, cleanup=True)


def test_two_databases_exchange_messages_in_one_transaction(instance: sb.Instance, database: sb.Database) -> None:
    far = instance.database("Far", create=True)
    for name, validation in ((ORDER, "NONE"), (REPLY, "NONE")):
        far.create_message_type(name, validation)
    far.create_contract(CONTRACT, {ORDER: "INITIATOR", REPLY: "TARGET"})
    far.create_queue("FarQueue")
    far.create_service("//far", "FarQueue", [CONTRACT])
    with database.transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, "//far", contract=CONTRACT)
        transaction.send(handle, ORDER, b"over there")
        (message,) = far.join(transaction.connection).receive("FarQueue")
        assert (message.service_name, message.message_body) == ("//far", b"over there")
        far.join(transaction.connection).send(message.conversation_handle, REPLY, b"and back")
    (answer,) = database.receive(ORDERS_QUEUE)
    assert answer.message_body == b"and back"
    database.send(handle, DOCUMENT, "<known-only-here/>")
    errors = [*database.receive(ORDERS_QUEUE), *far.receive("FarQueue")]
    assert [sb.read_error(error.message_body)[0] for error in errors] == [-8428, -8428]


@pytest.mark.feature(44, 50, 75)
def test_a_message_arrives_with_all_its_columns(database: sb.Database) -> None:
    handle = begin(database)
    assert database.send(handle, ORDER, b"one") == 0
    assert database.send(handle, DOCUMENT, "<zwei>ü</zwei>") == 1
    assert database.send(handle, ORDER, bytearray(b"three")) == 2
    assert database.send(handle, ORDER, memoryview(b"four")) == 3
    assert database.send(handle, MARK) == 4
    assert waiting_messages(database) == 0
    messages = database.receive(STOCK_QUEUE)
    assert bodies(messages) == [b"one", "<zwei>ü</zwei>".encode(), b"three", b"four", None]
    assert [message.message_sequence_number for message in messages] == [0, 1, 2, 3, 4]
    assert [message.validation for message in messages] == ["N", "X", "N", "N", "E"]
    assert {(m.service_name, m.service_contract_name, m.status, m.priority) for m in messages} == {
        (STOCK, CONTRACT, 0, 5)
    }
    assert all(message.message_enqueue_time.utcoffset() is not None for message in messages)


@pytest.mark.feature(45)
def test_no_body_and_an_empty_body_arrive_as_none(database: sb.Database) -> None:
    handle = begin(database)
    database.send(handle, ORDER)
    for empty in (b"", "", bytearray(), memoryview(b"")):
        database.send(handle, ORDER, empty)
    database.send(handle, MARK)
    database.send_batch(handle, ORDER, [b"", "", b"x"])
    assert bodies(database.receive(STOCK_QUEUE)) == [None] * 8 + [b"x"]


@pytest.mark.feature(46)
def test_a_null_body_is_refused(database: sb.Database) -> None:
    handle = begin(database)
    with refused(8433):
        database.send(handle, ORDER, None)  # type: ignore[arg-type]
    with refused(8433):
        database.send_batch(handle, ORDER, [b"x", None])  # type: ignore[list-item]
    assert state(database, handle) == "SO"


def test_every_byte_arrives(database: sb.Database) -> None:
    every = bytes(range(256)) * 3
    handle = begin(database)
    database.send(handle, ORDER, every)
    database.send_batch(handle, ORDER, [every, every[::-1], b"\0"])
    database.send(handle, ORDER, "\0text\u2028🐘")
    assert bodies(database.receive(STOCK_QUEUE)) == [
        every,
        every,
        every[::-1],
        b"\0",
        "\0text\u2028🐘".encode(),
    ]


def test_a_large_body_arrives(database: sb.Database) -> None:
    large = bytes(range(256)) * (20 * 4096)  # 20 MB
    handle = begin(database)
    database.send(handle, ORDER, large)
    (message,) = database.receive(STOCK_QUEUE)
    assert message.message_body == large


def test_a_batch_larger_than_a_statement_is_sent_whole(database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "MAX_BATCH_BYTES", 1000)
    contents: list[bytes | str] = [b"%d" % n * 300 for n in range(10)]
    handle = begin(database)
    assert database.send_batch(handle, ORDER, contents) == 0
    assert database.send_batch(handle, ORDER, contents) == 10
    messages = database.receive(STOCK_QUEUE)
    assert bodies(messages) == contents * 2
    assert [message.message_sequence_number for message in messages] == list(range(20))
    broken: list[bytes | str] = ["<a>" + "x" * 600 + "</a>", "<a/>", "<b>" + "x" * 600 + "</b>", "<broken"]
    assert database.send_batch(handle, DOCUMENT, broken) == 20
    error, *before = database.receive(STOCK_QUEUE)
    assert error.is_error
    assert bodies(before) == [body.encode() for body in broken[:-1] if isinstance(body, str)]
    waits = begin(database, "//later/large")
    assert database.send_batch(waits, ORDER, contents) == 0
    database.create_service("//later/large", STOCK_QUEUE, [CONTRACT])
    assert bodies(database.receive(STOCK_QUEUE)) == contents


@pytest.mark.parametrize("opened", [False, True])
def test_messages_before_an_invalid_body_of_a_batch_are_delivered(database: sb.Database, opened: bool) -> None:
    """A batch behaves like single SENDs."""
    handle = begin(database)
    if opened:
        database.send(handle, DOCUMENT, "<first/>")
        assert bodies(database.receive(STOCK_QUEUE)) == [b"<first/>"]
    assert database.send_batch(handle, DOCUMENT, ["<a/>", "<b/>", "<no xml", "<c/>"]) == int(opened)
    error, *before = database.receive(STOCK_QUEUE)
    assert (error.is_error, bodies(before)) == (True, [b"<a/>", b"<b/>"])
    assert [message.message_sequence_number for message in before] == [int(opened), int(opened) + 1]
    assert state(database, handle) == "ER"
    with refused(8429):
        database.send(handle, DOCUMENT, "<c/>")


@pytest.mark.feature(47)
def test_the_message_type_must_exist_and_be_allowed_for_the_sender(database: sb.Database) -> None:
    database.create_message_type("//test/Foreign")
    initiator = begin(database)
    for _ in range(2):  # looked up, and cached
        with refused(8428, "//no/type"):
            database.send(initiator, "//no/type", b"")
        with refused(8431, "//test/Foreign", "The contract of this conversation is '", "No contract has the type."):
            database.send(initiator, "//test/Foreign", b"")
        with refused(8432, REPLY):
            database.send(initiator, REPLY, b"")
        with refused(8432, REPLY):
            database.send_batch(initiator, REPLY, [b""])
        database.send(initiator, ORDER, b"x")
    target = database.receive(STOCK_QUEUE)[0].conversation_handle
    for _ in range(2):
        with refused(8434, ORDER):
            database.send(target, ORDER, b"")
        database.send(target, REPLY, b"x")
    for type_of_the_system in (sb.ERROR, sb.END_DIALOG, sb.DIALOG_TIMER, sb.DEFAULT):
        with refused(8431):
            database.send(initiator, type_of_the_system, b"")


@pytest.mark.feature(48)
def test_send_needs_a_conversing_endpoint(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(target, REPLY, b"known way")
    database.end_conversation(initiator)
    with refused(8426):
        database.send(initiator, ORDER, b"x")
    for _ in range(2):
        with refused(8429, "'DI'"):
            database.send(target, REPLY, b"x")
        with refused(8429, "'DI'"):
            database.send_batch(target, REPLY, [b"x"])
    initiator, target = open_dialog(database)
    database.end_conversation(initiator, error=(5, "x"))
    with refused(8429, "'ER'"):
        database.send(target, REPLY, b"x")
    database.end_conversation(target)
    with refused(8429, "'CD'"):
        database.send(target, REPLY, b"x")
    waits = begin(database, "//never")
    database.send(waits, ORDER, b"x")
    database.end_conversation(waits)
    with refused(8429, "'DO'"):
        database.send(waits, ORDER, b"x")


@pytest.mark.feature(102, 104)
def test_a_contract_that_the_target_does_not_accept_ends_in_error_8408(database: sb.Database) -> None:
    database.create_contract("//other", {ORDER: "ANY"})
    handle = database.begin_dialog(ORDERS, STOCK, contract="//other")
    database.send(handle, ORDER, b"x")
    assert state(database, handle) == "ER"
    (error,) = database.receive(ORDERS_QUEUE)
    assert error.is_error
    assert error.validation == "X"
    assert sb.read_error(error.message_body) == (
        -8408,
        f"Target service '{STOCK}' does not support contract '//other'.",
    )
    database.end_conversation(handle)
    assert state(database, handle) is None
    assert database.receive(STOCK_QUEUE) == []


@pytest.mark.feature(102, 104)
def test_a_contract_that_the_target_database_lacks_ends_in_error_8425(
    instance: sb.Instance, database: sb.Database
) -> None:
    far = instance.database(f"{database.name}Knows", create=True)
    far.create_queue("Q")
    far.create_service("//knows/nothing", "Q", ["DEFAULT"])
    handle = begin(database, "//knows/nothing")
    database.send(handle, ORDER, b"x")
    (error,) = database.receive(ORDERS_QUEUE)
    assert sb.read_error(error.message_body) == (-8425, f"The service contract '{CONTRACT}' is not found.")
    assert (state(database, handle), far.receive("Q")) == ("ER", [])


@pytest.mark.feature(102)
@pytest.mark.parametrize(
    ("message_type", "body", "number"),
    [
        (DOCUMENT, b"<broken", -9615),
        (DOCUMENT, b"<a/></b>", -9615),
        (DOCUMENT, b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><a/>', -9615),
        (MARK, b"x", -8430),
    ],
)
def test_an_invalid_body_is_an_error_for_both_sides(
    database: sb.Database, message_type: str, body: bytes, number: int
) -> None:
    for as_first in (True, False):
        handle = begin(database)
        sent = 0
        if not as_first:
            sent = 1 + database.send(handle, ORDER, b"fine")
        assert database.send(handle, message_type, body) == sent
        target = peer_handle(database, handle)
        assert state(database, handle) == state(database, target) == "ER"
        (error,) = database.receive(ORDERS_QUEUE, conversation_handle=handle)
        code, text = sb.read_error(error.message_body)
        assert code == number
        if number == -9615:
            assert f"Initiator: 1, and Message sequence number: {sent}." in text
        messages = database.receive(STOCK_QUEUE, conversation_handle=target)
        assert messages[0].is_error
        assert bodies(messages[1:]) == [b"fine"] * sent
        with refused(8429, "'ER'"):
            database.send(handle, ORDER, b"x")
        database.end_conversation(handle)
        database.end_conversation(target)


@pytest.mark.feature(52)
def test_a_rolled_back_send_leaves_nothing(fresh_database: sb.Database) -> None:
    with rolled_back(fresh_database) as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        transaction.send_batch(handle, ORDER, [b"1", b"2"])
        assert fresh_database.receive(STOCK_QUEUE) == []
    assert leftovers(fresh_database) == {}
    with refused(8426):
        fresh_database.send(handle, ORDER, b"x")
    handle = begin(fresh_database)
    for number in range(3):  # a rollback frees the sequence number
        with rolled_back(fresh_database) as transaction:
            assert transaction.send(handle, ORDER, b"lost") == number
        assert fresh_database.send(handle, ORDER, b"kept") == number
    assert bodies(fresh_database.receive(STOCK_QUEUE)) == [b"kept"] * 3


def test_a_target_cached_in_a_rolled_back_transaction_is_not_used(database: sb.Database) -> None:
    handle = begin(database)
    with rolled_back(database) as transaction:
        transaction.send(handle, ORDER, b"lost")
    assert state(database, handle) == "SO"
    assert database.send(handle, ORDER, b"first") == 0
    assert bodies(database.receive(STOCK_QUEUE)) == [b"first"]


@pytest.mark.feature(53)
def test_sends_on_one_conversation_are_serialized(database: sb.Database) -> None:
    shared, own = begin(database), begin(database)
    for handle in (shared, own):
        database.send(handle, ORDER, b"0")
    with database.transaction() as transaction:
        transaction.send(shared, ORDER, b"1")
        second = in_thread(database.send, shared, ORDER, b"2")
        wait_until_blocked(database)
        assert database.send(own, ORDER, b"1") == 1  # another conversation is not blocked
        assert not second.done()
    assert second.result(10) == 2


def test_two_threads_send_the_first_message(database: sb.Database) -> None:
    handle = begin(database)
    with database.transaction() as transaction:
        assert transaction.send(handle, ORDER, b"first") == 0
        second = in_thread(database.send, handle, ORDER, b"second")
        wait_until_blocked(database)
    assert second.result(10) == 1
    messages = database.receive(STOCK_QUEUE)
    assert bodies(messages) == [b"first", b"second"]
    assert len({message.conversation_handle for message in messages}) == 1


def test_threads_that_find_a_cached_target_ended_are_all_refused(database: sb.Database) -> None:
    handle, target = open_dialog(database)
    database.send(handle, ORDER, b"known way")
    with database.transaction() as transaction:
        transaction.end_conversation(target)
        senders = [in_thread(database.send, handle, ORDER, b"late") for _ in range(3)]
        wait_until_blocked(database, 3)
    for sender in senders:
        with refused(8429, "'DI'"):
            sender.result(10)


# ---------------------------------------------------------------- a service that is created later


def test_messages_wait_for_their_service_and_arrive_in_order(database: sb.Database) -> None:
    name = f"//later/{uuid4()}"
    first, second = begin(database, name), begin(database, name)
    for number in range(3):
        assert database.send(first, ORDER, b"first %d" % number) == number
        assert database.send_batch(second, ORDER, [b"second %d" % number]) == number
    assert state(database, first) == "CO"
    assert waiting_messages(database) == 6
    assert database.receive(ORDERS_QUEUE) == []
    database.create_service(name, STOCK_QUEUE, [CONTRACT])
    assert waiting_messages(database) == 0
    assert database.send(first, ORDER, b"first 3") == 3
    assert bodies(database.receive(STOCK_QUEUE)) == [b"first %d" % n for n in range(4)]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"second %d" % n for n in range(3)]


def test_messages_and_end_reach_a_target_that_is_created_after_the_end(fresh_database: sb.Database) -> None:
    database = fresh_database
    name = "//later/ended"
    handle = begin(database, name)
    database.send(handle, ORDER, b"x")
    database.begin_conversation_timer(handle, 0)
    database.end_conversation(handle)
    assert state(database, handle) == "DO"
    with refused(8427, "'DO'"):
        database.end_conversation(handle)
    assert database.receive(ORDERS_QUEUE) == []  # END CONVERSATION has removed the timer
    database.create_service(name, STOCK_QUEUE, [CONTRACT])
    assert state(database, handle) is None
    order, end = database.receive(STOCK_QUEUE)
    assert (order.message_body, order.message_sequence_number) == (b"x", 0)
    assert end.is_end_dialog
    assert end.message_sequence_number == 1
    assert state(database, end.conversation_handle) == "DI"
    database.end_conversation(end.conversation_handle)


@pytest.mark.feature(89, 90)
@pytest.mark.parametrize("end_options", [{"error": (5, "no")}, {"cleanup": True}])
def test_waiting_messages_are_dropped_by_an_error_or_cleanup(
    fresh_database: sb.Database, end_options: dict[str, object]
) -> None:
    handle = begin(fresh_database, "//later/dropped")
    fresh_database.send(handle, ORDER, b"x")
    fresh_database.end_conversation(handle, **end_options)  # type: ignore[arg-type]
    assert leftovers(fresh_database) == {}
    fresh_database.create_service("//later/dropped", STOCK_QUEUE, [CONTRACT])
    assert fresh_database.receive(STOCK_QUEUE) == []


@pytest.mark.feature(97)
@pytest.mark.parametrize("contracts", [[], [CONTRACT]])
def test_an_error_of_the_target_is_dropped_after_the_initiator_ended(
    fresh_database: sb.Database, contracts: list[str]
) -> None:
    database = fresh_database
    handle = begin(database, "//later/refuses")
    database.send(handle, DOCUMENT, "<broken")
    database.end_conversation(handle)
    database.create_service("//later/refuses", STOCK_QUEUE, contracts)
    assert state(database, handle) is None
    assert database.receive(ORDERS_QUEUE) == []
    assert waiting_messages(database) == 0


def test_a_waiting_message_with_an_invalid_body_is_an_error_once_the_service_exists(database: sb.Database) -> None:
    handle = begin(database, "//later/strict")
    database.send_batch(handle, ORDER, [b"fine"])
    database.send(handle, DOCUMENT, "<broken")
    database.send(handle, ORDER, b"dropped")
    database.create_service("//later/strict", STOCK_QUEUE, [CONTRACT])
    assert state(database, handle) == "ER"
    (error,) = database.receive(ORDERS_QUEUE)
    code, text = sb.read_error(error.message_body)
    assert code == -9615
    assert "Message sequence number: 1." in text
    assert [message.is_error for message in database.receive(STOCK_QUEUE)] == [True, False]
    assert waiting_messages(database) == 0


def test_create_service_delivers_messages_of_an_uncommitted_sender(database: sb.Database) -> None:
    """The sender found no service, and commits after CREATE SERVICE has begun. Its message is delivered, too."""
    handle = begin(database, "//later/race")
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"0")
        creation = in_thread(database.create_service, "//later/race", STOCK_QUEUE, [CONTRACT])
        wait_until_blocked(database)
        transaction.send(handle, ORDER, b"1")
    creation.result(10)
    assert database.send(handle, ORDER, b"2") == 2
    assert bodies(database.receive(STOCK_QUEUE)) == [b"0", b"1", b"2"]


def test_send_waits_for_an_uncommitted_create_service(database: sb.Database) -> None:
    handle = begin(database, "//later/race2")
    with database.transaction() as transaction:
        transaction._do(_create_service(database, "//later/race2"))
        sent = in_thread(database.send, handle, ORDER, b"0")
        wait_until_blocked(database)
    assert sent.result(10) == 0
    assert bodies(database.receive(STOCK_QUEUE)) == [b"0"]


def _create_service(database: sb.Database, name: str):
    from servicebroker.engine.catalog import catalog
    from servicebroker.operations import CreateService

    queue = yield from catalog.find_queue(database.instance.catalog, database.database_id, STOCK_QUEUE)
    operation = CreateService(name, STOCK_QUEUE, [CONTRACT])
    yield from catalog.create_service(database.database_id, operation, queue.queue_id, database.user.principal_id)


def test_create_service_delivers_nothing_of_a_conversation_that_is_cleaned_up(database: sb.Database) -> None:
    handle = begin(database, "//later/race3")
    database.send(handle, ORDER, b"x")
    with database.transaction() as transaction:
        transaction.end_conversation(handle, cleanup=True)
        creation = in_thread(database.create_service, "//later/race3", STOCK_QUEUE, [CONTRACT])
        wait_until_blocked(database)
    creation.result(10)
    assert database.receive(STOCK_QUEUE) == []


def test_sends_are_hot_updates(fresh_database: sb.Database) -> None:
    database = fresh_database
    handle = begin(database)
    for _ in range(300):
        database.send(handle, ORDER, b"x")
    text = (
        "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'servicebroker' "
        "and relname = 'conversation_endpoints'"
    )
    deadline = time.monotonic() + 5
    while (row := query(database, text)[0])[0] < 300 and time.monotonic() < deadline:
        with database.instance.connection() as connection:
            connection.execute("select pg_stat_force_next_flush()")
    updated, hot = row
    assert updated >= 300
    assert hot / updated > 0.95


@pytest.mark.feature(54)
def test_a_body_over_the_limit_is_refused_and_writes_nothing(
    make_instance_url: Callable[..., str], clock: Clock
) -> None:
    with refused(402, "maximum_body"):
        sb.open(make_instance_url(), maximum_body=2**30)
    with sb.open(make_instance_url(), clock=clock, upkeep=None) as instance:
        assert instance.maximum_body == 512 * 1024 * 1024
    with sb.open(instance.url, clock=clock, upkeep=None, maximum_body=1000) as instance:
        database = define_standard_set(instance.database("Small", create=True))
        handle = begin(database)
        for _ in range(2):  # with an unknown target, and with a cached one
            with refused(8459, "exceeds the maximum allowed of 1000"):
                database.send(handle, ORDER, b"x" * 1001)
            with refused(8459, "1000"):
                database.send_batch(handle, ORDER, [b"fits", b"x" * 1001])
            database.send(handle, ORDER, b"x" * 1000)
        with rolled_back(database) as transaction, refused(8459):
            transaction.send(handle, ORDER, b"x" * 1001)
        assert [len(body or b"") for body in bodies(database.receive(STOCK_QUEUE))] == [1000, 1000]
        assert query(database, "select send_sequence from servicebroker.conversation_endpoints where is_initiator") == [
            (2,)
        ]
