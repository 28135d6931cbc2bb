"""Conversations of one request and its answer: the number of statements, and the remaining rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.api.maintenance import run_maintenance
from servicebroker.store.direct import PreparedStatements
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
    as_user,
    begin_with,
    bodies,
    define_standard_set,
    leftovers,
    open_dialog,
    query,
    queue_number,
    state,
)

OTHERS, OTHERS_QUEUE = "//test/Others", "OthersQueue"


@pytest.fixture
def own_database(make_instance_url: Callable[..., str], clock: Clock) -> Iterator[sb.Database]:
    with sb.open(make_instance_url(), clock=clock, upkeep=None) as instance:
        yield define_standard_set(instance.database("Test", create=True))


@contextmanager
def record_statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record the names of the statements that run in the block, without BEGIN and COMMIT."""
    ran: list[str] = []
    run = PreparedStatements._run

    def run_and_record(self: Any, connection: Any, sql: str, *arguments: Any) -> Any:
        match = re.match(r"/\* (\S+) \*/", sql)
        ran.append(match[1] if match else sql)
        return run(self, connection, sql, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PreparedStatements, "_run", run_and_record)
        yield ran


def answer(database: sb.Database, body: bytes = b"done") -> UUID:
    """Receive one request, answer it and end the conversation. Returns the handle."""
    with database.transaction() as transaction:
        (message,) = transaction.receive(STOCK_QUEUE, top=1)
        transaction.send(message.conversation_handle, REPLY, body)
        transaction.end_conversation(message.conversation_handle)
    return message.conversation_handle


def receive_end(database: sb.Database, queue: str = ORDERS_QUEUE) -> list[sb.Message]:
    """Receive the answer and the EndDialog, and end this side, too."""
    with database.transaction() as transaction:
        messages = transaction.receive(queue)
        transaction.end_conversation(messages[0].conversation_handle)
    return messages


def test_receive_answer_and_end_are_one_statement_each(
    own_database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = own_database
    for _ in range(3):
        begin_with(database, b"order")
    answer(database)
    receive_end(database)
    with record_statements(monkeypatch) as ran:
        target = answer(database)
    assert ran == ["conversation.receive", "send.answer", "end.end_dialog"]
    assert state(database, target) == "CD"
    with record_statements(monkeypatch) as ran:
        messages = receive_end(database)
    assert ran == ["conversation.receive", "end.end_dialog"]
    assert bodies(messages) == [b"done", None]
    answer(database)
    receive_end(database)
    assert set(leftovers(database)) == {"conversation_endpoints", "conversation_groups"}


def test_tsql_uses_as_few_statements(own_database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database = own_database
    request = f"""
        declare @handle uniqueidentifier;
        begin transaction;
        receive top (1) @handle = conversation_handle from {STOCK_QUEUE};
        send on conversation @handle message type [{REPLY}] (0x61);
        end conversation @handle;
        commit;
    """
    for _ in range(2):
        begin_with(database, b"order")
    with database.tsql_session() as session:
        session.execute(request)
        with record_statements(monkeypatch) as ran:
            session.execute(request)
    assert ran == ["conversation.receive", "send.answer", "end.end_dialog"]
    assert [bodies(receive_end(database)) for _ in range(2)] == [[b"a", None]] * 2


def test_an_end_without_an_answer_uses_as_few_statements(
    own_database: sb.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = own_database

    def end() -> None:
        with database.transaction() as transaction:
            (message,) = transaction.receive(STOCK_QUEUE, top=1)
            transaction.end_conversation(message.conversation_handle)

    for _ in range(2):
        begin_with(database, b"order")
    end()
    with record_statements(monkeypatch) as ran:
        end()
    assert ran == ["conversation.receive", "end.end_dialog"]
    first, second = begin_with(database, b"x"), begin_with(database, b"y")
    with record_statements(monkeypatch) as ran:
        database.end_conversation(first)  # a conversation without a RECEIVE
    assert ran == ["end.find_queues", "end.end_dialog"]
    assert (state(database, first), state(database, second)) == (None, "CO")


def test_a_second_message_uses_the_cached_target(own_database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database = own_database
    begin_with(database, b"order")
    answer(database)
    begin_with(database, b"order")
    (message,) = database.receive(STOCK_QUEUE)
    with record_statements(monkeypatch) as ran:
        assert [database.send(message.conversation_handle, REPLY, b"x") for _ in range(3)] == [0, 1, 2]
    assert ran == ["send.answer", "conversation.send", "conversation.send"]


def test_many_groups_of_one_receive(own_database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database = own_database
    begin_with(database, b"order")
    answer(database)
    for _ in range(3):
        begin_with(database, b"order")
    with record_statements(monkeypatch) as ran, database.transaction() as transaction:
        for message in transaction.receive(STOCK_QUEUE, groups=5):
            transaction.send(message.conversation_handle, REPLY, b"done")
            transaction.end_conversation(message.conversation_handle)
    assert ran == ["conversation.receive.groups", *["send.answer", "end.end_dialog"] * 3]


def test_peers_of_one_service_that_have_different_queues(own_database: sb.Database) -> None:
    """The target cached for one conversation is wrong for the next one."""
    database = own_database
    database.create_queue(OTHERS_QUEUE)
    database.create_service(OTHERS, OTHERS_QUEUE)
    for n in range(6):
        service, queue = [(ORDERS, ORDERS_QUEUE), (OTHERS, OTHERS_QUEUE)][n // 2 % 2]
        handle = database.begin_dialog(service, STOCK, contract=CONTRACT)
        database.send(handle, ORDER, b"order")
        body = b"%d" % n
        answer(database, body)
        messages = receive_end(database, queue)
        assert (messages[0].conversation_handle, bodies(messages)) == (handle, [body, None])
    assert set(leftovers(database)) == {"conversation_endpoints", "conversation_groups"}


def test_two_services_on_one_queue_have_separate_permissions(own_database: sb.Database) -> None:
    """An initiator whose owner may send to one target service may not send to the other on the same queue."""
    database = own_database
    database.create_user("App")
    database.create_service(OTHERS, STOCK_QUEUE, [CONTRACT])
    database.create_service("//test/Own", ORDERS_QUEUE, authorization="App")
    database.grant("SEND", "App", service=STOCK)
    targets = {}
    for to in (STOCK, OTHERS):
        handle = database.begin_dialog("//test/Own", to, contract=CONTRACT)
        database.send(handle, ORDER, b"order")
        targets[to] = handle
    assert [m.message_type_name == ORDER for m in database.receive(STOCK_QUEUE)] == [True]
    assert database.receive(STOCK_QUEUE) == []
    (message,) = database.receive(ORDERS_QUEUE)
    assert message.conversation_handle == targets[OTHERS]
    assert message.is_error


def test_a_change_invalidates_cached_peers(own_database: sb.Database) -> None:
    database = own_database
    for change in (
        lambda: database.alter_queue(ORDERS_QUEUE, status=False),
        lambda: database.alter_queue(ORDERS_QUEUE, status=True),
        lambda: database.alter_message_type(REPLY, "EMPTY"),
        lambda: database.alter_message_type(REPLY, "NONE"),
        lambda: database.alter_queue(STOCK_QUEUE, retention=True),
        lambda: database.alter_queue(STOCK_QUEUE, retention=False),
    ):
        begin_with(database, b"order")
        answer(database)
        receive_end(database)
        initiator = begin_with(database, b"order")
        change()
        answer(database)
        if not query(database, "select is_enqueue_enabled from servicebroker.queues where name = %s", ORDERS_QUEUE)[0][
            0
        ]:
            assert state(database, initiator) == "CO"
            assert len(query(database, "select from servicebroker.transmission_queue")) == 2
            database.alter_queue(ORDERS_QUEUE, status=True)
        last = receive_end(database)[-1]
        assert last.is_end_dialog or last.is_error
        assert set(leftovers(database)) <= {"conversation_endpoints", "conversation_groups"}


def test_a_rolled_back_end_changes_nothing(own_database: sb.Database) -> None:
    database = own_database
    initiator = begin_with(database, b"order")
    answer(database)
    with database.transaction() as transaction:
        messages = transaction.receive(ORDERS_QUEUE)
        with pytest.raises(KeyError), transaction.savepoint():
            transaction.end_conversation(initiator)
            raise KeyError
        assert state(database, initiator) == "DI"
        transaction.end_conversation(messages[0].conversation_handle)
    assert state(database, initiator) is None


def test_end_removes_unread_messages(own_database: sb.Database) -> None:
    database = own_database
    begin_with(database, b"1", b"2", b"3")
    with database.transaction() as transaction:
        (message,) = transaction.receive(STOCK_QUEUE, top=1)
        transaction.end_conversation(message.conversation_handle)
    assert database.receive(STOCK_QUEUE) == []
    assert [m.is_end_dialog for m in receive_end(database)] == [True]


def test_the_second_end_writes_only_its_own_row(own_database: sb.Database) -> None:
    """The first END stores the other side's final sequence number."""
    initiator, target = open_dialog(own_database)
    own_database.send(initiator, ORDER, b"more")
    written = (
        "select xmin::text, receive_sequence from servicebroker.conversation_endpoints where conversation_handle = %s"
    )
    own_database.end_conversation(target)
    before = query(own_database, written, target)
    assert before[0][1] == 2
    own_database.end_conversation(initiator)
    assert query(own_database, written, target) == before


def test_a_queue_that_was_dropped_meanwhile(own_database: sb.Database) -> None:
    """Another process has dropped a queue that this process has cached, together with the conversation."""
    database = own_database
    begin_with(database, b"order")
    answer(database)
    begin_with(database, b"order")
    (message,) = database.receive(STOCK_QUEUE)
    with sb.open(database.instance.url, upkeep=None) as other_instance:
        there_database = other_instance.database("Test")
        there_database.drop_service(ORDERS)
        there_database.drop_queue(ORDERS_QUEUE)
    database.end_conversation(message.conversation_handle)
    assert state(database, message.conversation_handle) in ("CD", None)


def test_a_user_that_is_not_dbo(own_database: sb.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """END uses cached permissions until they change."""
    database = own_database
    database.create_user("App")
    database.grant("RECEIVE", "App", queue=STOCK_QUEUE)
    user = as_user(database, "App")
    for _ in range(4):
        begin_with(database, b"order")
    answer(user)
    with record_statements(monkeypatch) as ran:
        answer(user)
    assert ran == ["receive.receive_permitted.receive", "send.answer", "end.end_dialog"]
    with user.transaction() as transaction:
        messages = [transaction.receive(STOCK_QUEUE, top=1)[0] for _ in range(2)]
        transaction.send(messages[0].conversation_handle, MARK)
    database.deny("RECEIVE", "App", queue=STOCK_QUEUE)
    for message in messages:
        for verb in (user.end_conversation, lambda handle: user.send(handle, MARK)):
            with pytest.raises(sb.BrokerError) as error:
                verb(message.conversation_handle)
            assert error.value.number == 8494
    assert {state(database, message.conversation_handle) for message in messages} == {"CO"}


@pytest.mark.slow
@pytest.mark.feature(99)
def test_no_row_remains_after_half_an_hour(
    own_database: sb.Database, clock: Clock, request: pytest.FixtureRequest
) -> None:
    database, wanted = own_database, request.config.option.leak_conversations
    for first in range(0, wanted, 500):
        many = min(500, wanted - first)
        with database.transaction() as transaction:
            for _ in range(many):
                transaction.send(transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT), ORDER, b"order")
        for _ in range(many):
            answer(database)
        for _ in range(many):
            receive_end(database)
    assert leftovers(database) == {"conversation_endpoints": wanted, "conversation_groups": wanted}
    clock.jump(minutes=31)
    with database.instance.connection() as connection:
        run_maintenance(connection, clock())
    assert leftovers(database) == {}


@pytest.mark.slow
def test_closed_conversations_do_not_slow_down_statements(own_database: sb.Database) -> None:
    """Compares the pages that statements read without and with 20,000 closed endpoints of the queue."""
    database = own_database
    for _ in range(2):
        begin_with(database, b"order")
    answer(database)
    receive_end(database)
    before = count_pages(database)
    with database.instance.connection() as connection:
        connection.execute(
            "with made as (insert into servicebroker.conversation_endpoints (is_initiator, database_id, service_id, "
            "service_contract_id, conversation_group_id, queue_id, state, encryption, lifetime, far_service, "
            "security_timestamp, can_expire) select false, database_id, service_id, service_contract_id, "
            "gen_random_uuid(), queue_id, 'CD', false, now() - interval '1 s', far_service, "
            "now() + interval '30 min', false "
            "from servicebroker.conversation_endpoints, generate_series(1, 20000) where state = 'CD' "
            "returning conversation_group_id, service_id) "
            "insert into servicebroker.conversation_groups select * from made"
        )
    after = count_pages(database)
    assert all(after[name] <= before[name] + 10 for name in before), (before, after)


def count_pages(database: sb.Database) -> dict[str, int]:
    """Return the number of pages that a RECEIVE and an END read. Both are rolled back."""
    number = queue_number(database, STOCK_QUEUE)
    ((handle, queue_id, far),) = query(
        database,
        "select conversation_handle, queue_id, far_queue_id from servicebroker.conversation_endpoints "
        "where state = 'CO' and not is_initiator",
    )
    verbs = {
        "receive": f"select * from servicebroker.receive_{number}(1, now())",
        "end": f"select * from servicebroker.end_dialog_{queue_id}('{handle}', now(), {far}, null)",
    }
    pages = {}
    with psycopg.connect(database.instance.url) as connection:
        for name, verb in verbs.items():
            for _ in range(2):  # the first run also reads the catalogs of PostgreSQL
                ((plan,),) = connection.execute(f"explain (analyze, buffers, format json) {verb}".encode()).fetchall()
                connection.rollback()
            pages[name] = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
    return pages
