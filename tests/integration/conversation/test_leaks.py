"""No rows of ended conversations remain in any table of the schema, whatever happened to them."""

from __future__ import annotations

import itertools

import pytest

import servicebroker as sb
from servicebroker.api.maintenance import run_maintenance
from support import ORDER, ORDERS_QUEUE, REPLY, STOCK_QUEUE, Clock, begin, peer_handle, query

CATALOG = {
    *("made", "needs"),  # tables for definitions, not for conversations
    *("audit", "trail_settings"),
    "databases",
    "message_types",
    "service_contracts",
    "service_contract_message_usages",
    "service_contract_usages",
    "services",
    "queues",
    "broker_priorities",
    "routes",
    "principals",
    "role_members",
    "logins",
    "permissions",
    "xml_schema_collections",
    "instance",
    "migrations",
}
SESSIONS = {"savepoint_probes"}  # one row for each process number of the server
STATEMENTS = {"statement_totals", "history", "history_samples"}  # one row per name; one row per time interval
CONVERSATIONS_TOGETHER = 350  # conversations begun in one transaction
LIFETIME_S = 60  # seconds
SHORT_TOGETHER = 50  # short conversations begun in one transaction
LIVES = [b"answered", b"forgotten", b"failed", b"cleaned", b"expires", b"unread", b"nowhere"]


def count_rows(database: sb.Database) -> dict[str, int]:
    """Return the number of rows in each table of the schema except the catalog."""
    tables = query(database, "select tablename from pg_tables where schemaname = 'servicebroker'")
    names = {name for (name,) in tables} - CATALOG - SESSIONS - STATEMENTS
    assert names > {"conversation_endpoints", "conversation_groups", "transmission_queue"}
    counts = {name: query(database, f"select count(*) from servicebroker.{name}")[0][0] for name in names}
    return {name: count for name, count in counts.items() if count}


def count_rows_after_upkeep(database: sb.Database, clock: Clock) -> dict[str, int]:
    """Run upkeep until it removes no more rows, and return the remaining ones."""
    before, now = None, count_rows(database)
    while now != before:
        with database.instance.connection() as connection:
            run_maintenance(connection, clock())
        before, now = now, count_rows(database)
    return now


def begin_some(database: sb.Database, first: int) -> None:
    """Begin conversations of every kind."""
    with database.transaction() as tx:
        for number in range(first, first + CONVERSATIONS_TOGETHER):
            life = LIVES[number % len(LIVES)]
            options = {"lifetime": LIFETIME_S} if life in (b"expires", b"unread", b"nowhere") else {}
            to = {"to": "//test/Nowhere"} if life == b"nowhere" else {}
            handle = begin(tx, **to, **options)  # type: ignore[arg-type]
            tx.send(handle, ORDER, life)
            tx.begin_conversation_timer(handle, LIFETIME_S - 1)
            if life in (b"forgotten", b"nowhere"):
                tx.end_conversation(handle)


def serve(database: sb.Database) -> None:
    """Serve both queues until they are empty."""
    for _ in itertools.count():
        with database.transaction() as tx:
            found = [message for _ in range(100) for message in tx.receive(STOCK_QUEUE)]
            for message in found:
                answer(database, tx, message)
        with database.transaction() as tx:
            ended = [message for _ in range(100) for message in tx.receive(ORDERS_QUEUE)]
            for handle in {m.conversation_handle for m in ended if m.is_end_dialog or m.is_error}:
                tx.end_conversation(handle)
        if not found and not ended:
            return


def answer(database: sb.Database, tx: sb.Transaction, message: sb.Message) -> None:
    handle, life = message.conversation_handle, message.message_body
    if message.is_end_dialog or message.is_error:
        tx.end_conversation(handle)
    elif life == b"answered":
        tx.send(handle, REPLY, b"done")
        tx.end_conversation(handle)
    elif life == b"failed":
        tx.end_conversation(handle, error=(5, "failed"))
    elif life == b"cleaned":
        tx.end_conversation(peer_handle(database, handle), cleanup=True)
        tx.end_conversation(handle, cleanup=True)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.feature(99)
def test_no_rows_of_conversations_remain(
    fresh_database: sb.Database, clock: Clock, request: pytest.FixtureRequest
) -> None:
    database, wanted = fresh_database, request.config.option.leak_conversations
    assert count_rows(database) == {}
    for first in range(0, wanted, CONVERSATIONS_TOGETHER):
        begin_some(database, first)
        serve(database)
    assert set(count_rows(database)) >= {"conversation_endpoints", "conversation_groups", "transmission_queue"}
    clock.jump(seconds=LIFETIME_S + 1)
    serve(database)
    clock.jump(minutes=31)
    assert count_rows_after_upkeep(database, clock) == {}


@pytest.mark.timeout(0)
@pytest.mark.feature(99)
def test_no_rows_of_short_conversations_remain(
    fresh_database: sb.Database, clock: Clock, request: pytest.FixtureRequest
) -> None:
    database, wanted = fresh_database, request.config.option.short_conversations
    answered = ended = 0
    for _ in range(0, wanted, SHORT_TOGETHER):
        with database.transaction() as tx:
            for _ in range(SHORT_TOGETHER):
                tx.send(begin(tx), ORDER, b"one teapot")  # type: ignore[arg-type]
        answered += database.process(STOCK_QUEUE, answer_and_end, groups=SHORT_TOGETHER)
        ended += database.process(ORDERS_QUEUE, end_at_end_dialog, top=None, groups=SHORT_TOGETHER)
    assert (answered, ended) == (wanted, 2 * wanted)
    endpoints = query(database, "select state, count(*) from servicebroker.conversation_endpoints group by state")
    assert dict(endpoints) == {"CD": wanted}  # closed targets are kept for 30 minutes
    clock.jump(minutes=31)
    assert count_rows_after_upkeep(database, clock) == {}


def answer_and_end(tx: sb.Transaction, messages: list[sb.Message]) -> None:
    for message in messages:
        tx.send(message.conversation_handle, REPLY, b"a teapot")
        tx.end_conversation(message.conversation_handle)


def end_at_end_dialog(tx: sb.Transaction, messages: list[sb.Message]) -> None:
    assert [message.message_body or None for message in messages] == [b"a teapot", None]
    tx.end_conversation(messages[-1].conversation_handle)
