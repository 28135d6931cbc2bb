"""SEND and END towards a peer in another instance: each is one statement with the result of the single steps."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

import servicebroker as sb
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.conversation import end
from servicebroker.model.errors import BrokerError
from servicebroker.store.running import run
from servicebroker.store.statement_counts import counts_of
from support import CONTRACT, ORDER, ORDERS, ORDERS_QUEUE, REPLY, STOCK_QUEUE, begin_with, query, queue_number

AWAY = "//test/Away"
_ENDPOINT = "update servicebroker.conversation_endpoints set {} where conversation_handle = %(handle)s"
_FRAGMENT = (
    "insert into servicebroker.arrivals (conversation_handle, receive_sequence) values (%(handle)s, 2); "
    "insert into servicebroker.arrived_fragments (conversation_handle, message_sequence_number, fragment, fragments, "
    "message_type_name, content) values (%(handle)s, {}, 0, 1, 'x', 0)"
)
_UNREAD = (
    "insert into servicebroker.queue_{} (message_sequence_number, stamp, conversation_group_id, conversation_handle, "
    "service_id, service_contract_id, message_type_id, priority, bucket, validation) "
    "select 0, pg_current_xact_id(), conversation_group_id, conversation_handle, service_id, service_contract_id, 14, "
    "priority, 0, 'N' from servicebroker.conversation_endpoints where conversation_handle = %(handle)s"
)
_BOTH_HERE = (
    "insert into servicebroker.conversation_endpoints (conversation_id, is_initiator, database_id, service_id, "
    "service_contract_id, conversation_group_id, queue_id, state, encryption, lifetime, far_service, is_remote) "
    "select conversation_id, not is_initiator, database_id, service_id, service_contract_id, gen_random_uuid(), "
    "queue_id, state, encryption, lifetime, far_service, true from servicebroker.conversation_endpoints "
    "where conversation_handle = %(handle)s"
)

# changes of an endpoint with a remote peer before END; True if the END is still one statement
CASES: dict[str, tuple[list[str], bool]] = {
    "conversing": ([], True),
    "conversing, secured": ([_ENDPOINT.format("security = 'F'")], True),
    "a target": ([_ENDPOINT.format("is_initiator = false, security = 'N'")], True),
    "a timer": ([_ENDPOINT.format("dialog_timer = now() + interval '1 hour'")], True),
    "unread messages": ([_UNREAD], True),
    "messages beside the queue": ([_FRAGMENT.format(1)], True),
    "a part of a later message": ([_FRAGMENT.format(5)], True),
    "the peer has ended": ([_ENDPOINT.format("state = 'DI'"), _UNREAD], True),
    "the peer of a secured initiator has ended": ([_ENDPOINT.format("state = 'DI', security = 'F'")], True),
    "the peer of a target has ended": (
        [_ENDPOINT.format("state = 'DI', is_initiator = false, security = 'N'"), _FRAGMENT.format(1)],
        True,
    ),
    "nothing waits any more": (
        ["delete from servicebroker.transmission_queue", _ENDPOINT.format("state = 'DI', is_acknowledged = true")],
        True,
    ),
    "both sides are here": ([_BOTH_HERE], False),
    "both sides are here, and one has ended": ([_BOTH_HERE, _ENDPOINT.format("state = 'DI'")], False),
    "a delayed message": (
        ["update servicebroker.transmission_queue set delayed_until = now() + interval '1 hour'"],
        False,
    ),
    "retained messages": (["update servicebroker.queues set keeps_retained = true"], False),
    "a broker that is off": (["update servicebroker.databases set is_broker_enabled = false"], False),
    "its lifetime is over": ([_ENDPOINT.format("lifetime = now() - interval '1 hour'")], False),
    "failed": ([_ENDPOINT.format("state = 'ER', can_expire = false")], False),
    "ended": ([_ENDPOINT.format("state = 'DO'")], False),
}


@pytest.fixture
def remote(database: sb.Database) -> UUID:
    """A conversation with a remote target, with two messages in the transmission queue."""
    database.create_route("out", address="TCP://localhost:24022", service_name=AWAY)
    handle = database.begin_dialog(ORDERS, AWAY, contract=CONTRACT, encryption=False)
    database.send_batch(handle, ORDER, [b"1", b"2"])
    with database.instance.connection() as connection:
        connection.execute(_ENDPOINT.format("is_remote = true"), {"handle": handle})
    return handle


def _read_rows(connection: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows that an END may change, without random values."""
    texts = {
        "endpoints": "select to_jsonb(e) - 'security_timestamp' - 'last_stamp', security_timestamp is null "
        "from servicebroker.conversation_endpoints e order by conversation_handle",
        "groups": "select conversation_group_id from servicebroker.conversation_groups order by 1",
        "waiting": "select to_jsonb(t) - 'xact' - 'enqueue_time' - 'token' from servicebroker.transmission_queue t "
        "order by conversation_handle, message_sequence_number",
        "fragments": "select message_sequence_number from servicebroker.arrived_fragments order by 1",
    }
    return {name: connection.execute(text).fetchall() for name, text in texts.items()}


def test_an_end_in_one_statement_writes_the_rows_of_its_steps(database: sb.Database, remote: UUID) -> None:
    queue_id = queue_number(database, ORDERS_QUEUE)
    messages = f"select count(*) from servicebroker.queue_{queue_id}"
    now = database.instance.clock()
    for name, (before, is_one_statement) in CASES.items():
        found = []
        for is_stepwise in (False, True):
            with database.transaction() as tx:
                for text in before:
                    for statement in text.replace("queue_{}", f"queue_{queue_id}").split("; "):
                        tx.connection.execute(statement, {"handle": remote})
                try:
                    if is_stepwise:
                        run(tx.connection, end._end_step_by_step(remote, now=now, error=None, cleanup=False))
                    elif run(tx.connection, end._end_dialog(Catalog(), remote, now)) is not is_one_statement:
                        pytest.fail(f"{name}: END is {'not' if is_one_statement else ''} one statement")
                except BrokerError as error:
                    found.append(error.number)
                else:
                    found.append([_read_rows(tx.connection), tx.connection.execute(messages).fetchall()])
                tx.connection.rollback()
        if is_one_statement:
            assert found[0] == found[1], name


_OWN = "database_id = (select database_id from servicebroker.databases where name = %s)"
_FROM_AFAR = (
    f"delete from servicebroker.conversation_endpoints where is_initiator and {_OWN}",
    "update servicebroker.conversation_endpoints set is_remote = true, far_handle = null, far_queue_id = null "
    f"where {_OWN}",
)


def test_an_answer_and_its_end_are_one_statement_each(database: sb.Database) -> None:
    """The first conversation of a service and contract fills the cache. One with another target still works."""
    for _ in range(4):
        begin_with(database, b"x")
    with database.instance.connection() as connection:
        for text in _FROM_AFAR:
            connection.execute(text, (database.name,))
        statements = counts_of(getattr(connection, "real", connection))
    found = []

    def answer(tx: sb.Transaction, messages: list[sb.Message]) -> None:
        handle = messages[-1].conversation_handle
        statements.take()
        assert tx.send(handle, REPLY, b"<a/>") == 0
        tx.end_conversation(handle)
        found.append({name: calls for name, (calls, _) in statements.take().items()})

    assert database.process(STOCK_QUEUE, answer) == 4
    assert found[1:] == [{"send.transmit_answer": 1, "end.end_dialog": 1}] * 3
    assert sum(found[0].values()) <= 5
    waiting = (
        "select message_sequence_number, is_end_of_dialog, state from servicebroker.transmission_queue "
        f"join servicebroker.conversation_endpoints using (conversation_handle) where {_OWN}"
    )
    assert sorted(query(database, waiting, database.name)) == [(0, False, "DO")] * 4 + [(1, True, "DO")] * 4
