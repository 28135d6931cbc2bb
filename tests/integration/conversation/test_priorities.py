"""CREATE, ALTER and DROP BROKER PRIORITY."""

from __future__ import annotations

import itertools
import random
from uuid import UUID

import psycopg
import pytest

import servicebroker as sb
from servicebroker.engine.activation.monitors import poll_queue
from servicebroker.store import locks
from servicebroker.store.running import run
from support import (
    CONTRACT,
    DOCUMENT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    group_of,
    open_dialog,
    peer_handle,
    query,
    queue_number,
    refused,
    rolled_back,
    tolerate_rollbacks,
)


def priority_of(database: sb.Database, handle: UUID) -> int:
    text = "select priority from servicebroker.conversation_endpoints where conversation_handle = %s"
    return int(query(database, text, handle)[0][0])


@pytest.mark.both_apis
@pytest.mark.feature(31, 195)
def test_the_best_match_of_eight(database: sb.Database) -> None:
    """Contract, then local service, then remote service decide. The best priority is dropped in each step."""
    assert priority_of(database, begin(database)) == 5
    for level, name in enumerate(["ANY", "R", "L", "LR", "C", "CR", "CL", "CLR"], 1):
        database.create_broker_priority(
            name,
            contract_name=CONTRACT if "C" in name else "ANY",
            local_service_name=ORDERS if "L" in name else "ANY",
            remote_service_name=STOCK if name != "ANY" and "R" in name else "ANY",
            priority_level=level,
        )
    for level, name in reversed(list(enumerate(["ANY", "R", "L", "LR", "C", "CR", "CL", "CLR"], 1))):
        handle = begin(database)
        assert priority_of(database, handle) == level
        database.drop_broker_priority(name.lower())
        assert priority_of(database, handle) == level
    assert priority_of(database, begin(database)) == 5


@pytest.mark.feature(195)
@pytest.mark.parametrize(
    ("better", "worse"),
    list(itertools.pairwise(["CLR", "CL", "CR", "C", "LR", "L", "R", ""])),
    ids=lambda one: one or "none",
)
def test_each_criterion_precedes_the_next(database: sb.Database, better: str, worse: str) -> None:
    """For the target, whose local service is the target service, and in either order of creation."""
    for first, second in ((better, worse), (worse, better)):
        for level, criteria in ((3, first), (8, second)):
            database.create_broker_priority(
                f"P{level}",
                contract_name=CONTRACT if "C" in criteria else "ANY",
                local_service_name=STOCK if "L" in criteria else "ANY",
                remote_service_name=ORDERS if "R" in criteria else "ANY",
                priority_level=level,
            )
        handle = begin(database)
        database.send(handle, ORDER, b"x")
        (message,) = database.receive(STOCK_QUEUE)
        assert message.priority == priority_of(database, peer_handle(database, handle)) == (3 if first == better else 8)
        for level in (3, 8):
            database.drop_broker_priority(f"P{level}")


@pytest.mark.feature(195)
def test_a_priority_that_does_not_match_is_ignored(database: sb.Database) -> None:
    """Names are compared byte by byte. A more specific priority that differs in one criterion does not apply."""
    database.create_service("//test/stock", STOCK_QUEUE, [CONTRACT])
    database.create_broker_priority("Case", remote_service_name=STOCK.lower(), priority_level=9)
    database.create_broker_priority("Contract", contract_name="DEFAULT", remote_service_name=STOCK, priority_level=8)
    database.create_broker_priority("Local", local_service_name=STOCK, priority_level=2)
    handle = begin(database)
    assert priority_of(database, handle) == 5
    assert priority_of(database, begin(database, "//test/stock")) == 9
    assert priority_of(database, database.begin_dialog(ORDERS, STOCK)) == 8
    database.send(handle, ORDER, b"x")
    assert priority_of(database, peer_handle(database, handle)) == 2


@pytest.mark.both_apis
@pytest.mark.feature(196)
def test_an_endpoint_keeps_its_initial_priority(database: sb.Database) -> None:
    """The queue, the transmission queue and RECEIVE show the priority of messages."""
    database.create_broker_priority("P", contract_name=CONTRACT, priority_level=7)
    initiator, target = open_dialog(database)
    waits = begin(database, "//test/Nowhere")
    changes = [
        lambda: database.alter_broker_priority("P", priority_level=2),
        lambda: database.create_broker_priority("Q", contract_name=CONTRACT, local_service_name=ORDERS),
        lambda: database.drop_broker_priority("P"),
        lambda: database.drop_broker_priority("Q"),
    ]
    for later, change in zip((2, 5, 5, 5), changes, strict=True):
        change()
        assert [priority_of(database, handle) for handle in (initiator, target, waits)] == [7, 7, 7]
        assert priority_of(database, begin(database)) == later
        database.send(initiator, ORDER, b"x")
        assert query(database, f"select priority from {database.name.lower()}_dbo.stockqueue") == [(7,)]
        assert [message.priority for message in database.receive(STOCK_QUEUE)] == [7]
    database.send(waits, ORDER, b"x")
    text = "select priority from sys.transmission_queue where conversation_handle = %s"
    assert query(database, text, waits) == [(7,)]
    database.create_service("//test/Nowhere", STOCK_QUEUE, [CONTRACT])
    # the target's priority, because its endpoint begins now
    assert [message.priority for message in database.receive(STOCK_QUEUE)] == [5]


@pytest.mark.feature(72)
def test_each_side_has_its_own_priority_and_receive_follows_it(database: sb.Database) -> None:
    database.create_service("//urgent", STOCK_QUEUE, [CONTRACT])
    database.create_broker_priority("Urgent", local_service_name="//urgent", priority_level=9)
    low, high = begin(database), begin(database, "//urgent")
    database.send(low, ORDER, b"low")
    database.send(high, ORDER, b"high")
    assert (priority_of(database, high), priority_of(database, peer_handle(database, high))) == (5, 9)
    first, second = database.receive(STOCK_QUEUE), database.receive(STOCK_QUEUE)
    assert [(m.message_body, m.priority) for m in first + second] == [(b"high", 9), (b"low", 5)]
    database.alter_broker_priority("urgent", priority_level=1)
    assert priority_of(database, peer_handle(database, high)) == 9
    again = begin(database, "//urgent")
    database.send(again, ORDER, b"x")
    assert priority_of(database, peer_handle(database, again)) == 1


def levels_of(database: sb.Database, queue: str) -> list[tuple[str, int]]:
    """Receive all messages, and return the type and the priority of each."""
    messages = database.receive(queue)
    return [(message.message_type_name.rpartition("/")[2], message.priority) for message in messages]


@pytest.mark.both_apis
@pytest.mark.feature(72)
@pytest.mark.parametrize("kind_of_send", ["one", "again", "several", "batch", "pipeline", "parked", "began"])
def test_a_message_has_the_priority_of_the_side_that_receives_it(database: sb.Database, kind_of_send: str) -> None:
    """For every kind of SEND in both directions. Each side has its own level."""
    database.create_broker_priority("Near", local_service_name=ORDERS, priority_level=8)
    database.create_broker_priority("Far", local_service_name=STOCK, priority_level=3)
    initiator, target = open_dialog(database) if kind_of_send != "began" else (None, None)

    def send(handle: UUID, kind: str) -> None:
        if kind_of_send == "several":
            database.send([handle], kind, b"x")
        elif kind_of_send == "batch":
            database.send_batch(handle, kind, [b"x"])
        elif kind_of_send == "pipeline":
            with database.transaction() as transaction, transaction.pipeline() as pipeline:
                transaction.send(handle, kind, b"x")
            assert len(pipeline.numbers) == 1
        else:
            database.send(handle, kind, b"x")

    if kind_of_send == "began":  # sent with BEGIN DIALOG in one statement, and answered in a transaction
        with database.transaction() as transaction:
            initiator = begin(transaction)
            transaction.send(initiator, ORDER, b"x")
        with database.transaction() as transaction:
            (message,) = transaction.receive(STOCK_QUEUE)
            target = message.conversation_handle
            transaction.send(target, REPLY, b"x")
        assert message.priority == 3
        assert levels_of(database, ORDERS_QUEUE) == [("Reply", 8)]
    assert initiator is not None
    assert target is not None
    if kind_of_send == "parked":
        for queue in (ORDERS_QUEUE, STOCK_QUEUE):
            database.alter_queue(queue, status=False)
    for _ in range(1 + (kind_of_send == "again")):
        send(initiator, ORDER)
        send(target, REPLY)
    if kind_of_send == "parked":
        for queue in (ORDERS_QUEUE, STOCK_QUEUE):
            database.alter_queue(queue, status=True)
    assert set(levels_of(database, STOCK_QUEUE)) == {("Order", 3)}
    assert set(levels_of(database, ORDERS_QUEUE)) == {("Reply", 8)}
    database.end_conversation(target)
    assert levels_of(database, ORDERS_QUEUE) == [("EndDialog", 8)]
    assert [priority_of(database, initiator), priority_of(database, target)] == [8, 3]


@pytest.mark.both_apis
@pytest.mark.feature(72)
def test_messages_of_the_broker_have_the_receivers_priority(database: sb.Database, clock: Clock) -> None:
    """Errors of the broker and of the peer, timers, and expired lifetimes."""
    database.create_broker_priority("Near", local_service_name=ORDERS, priority_level=8)
    database.create_broker_priority("Far", local_service_name=STOCK, priority_level=3)
    initiator, _ = open_dialog(database)
    database.send(initiator, DOCUMENT, b"<broken")  # fails the conversation on both sides
    assert levels_of(database, ORDERS_QUEUE) == [("Error", 8)]
    assert levels_of(database, STOCK_QUEUE) == [("Error", 3)]
    for error_of in (0, 1):
        sides = open_dialog(database)
        database.end_conversation(sides[error_of], error=(5, "no"))
        assert levels_of(database, (STOCK_QUEUE, ORDERS_QUEUE)[error_of]) == [("Error", (3, 8)[error_of])]
    initiator = begin(database, lifetime=60)
    database.send(initiator, ORDER, b"x")
    (message,) = database.receive(STOCK_QUEUE)
    for handle in (initiator, message.conversation_handle):
        database.begin_conversation_timer(handle, 30)
    for seconds, told in ((31, "DialogTimer"), (30, "Error")):
        clock.jump(seconds=seconds)
        assert levels_of(database, ORDERS_QUEUE) == [(told, 8)]
        assert levels_of(database, STOCK_QUEUE) == [(told, 3)]


@pytest.mark.feature(72)
def test_locked_groups_do_not_hide_other_levels(database: sb.Database, seeded_random: random.Random) -> None:
    """Random groups on adjacent and distant levels, of which random ones are locked.

    Every form of RECEIVE gets the free groups from the highest level to the lowest, by the arrival of their first
    message.
    """
    tolerate_rollbacks(database)
    groups: dict[UUID, int] = {}  # groups with their levels, in the order of arrival
    database.create_broker_priority("P", local_service_name=STOCK)
    for _ in range(14):
        level = seeded_random.choice([1, 4, 5, 6, 9, 10])
        database.alter_broker_priority("P", priority_level=level)
        handle = begin(database)
        database.send_batch(handle, ORDER, [b"1", b"2"])
        groups[group_of(database, peer_handle(database, handle))] = level
    order = sorted(groups, key=lambda group: -groups[group])
    levels = sorted(set(groups.values()), reverse=True)
    cases = [{group for group in order if groups[group] in levels[:count]} for count in range(len(levels) + 1)]
    cases += [{group for group in order if groups[group] == level} for level in levels]
    cases += [set(seeded_random.sample(order, seeded_random.randint(1, len(order)))) for _ in range(6)]
    queue_id = queue_number(database, STOCK_QUEUE)
    for locked in cases:
        free = [group for group in order if group not in locked]
        with psycopg.connect(database.instance.url) as holder:
            for group in locked:
                holder.execute("select pg_advisory_xact_lock(%s, uuid_hash(%s))", (locks.CONVERSATION_GROUP, group))
            with rolled_back(database) as reader:
                found = [messages[0].conversation_group_id for _ in free if (messages := reader.receive(STOCK_QUEUE))]
                assert (found, reader.receive(STOCK_QUEUE)) == (free, [])
            with rolled_back(database) as reader:
                found = [message.conversation_group_id for _ in free for message in reader.receive(STOCK_QUEUE, top=2)]
                assert (list(dict.fromkeys(found)), len(found)) == (free, 2 * len(free))
            with rolled_back(database) as reader:
                first = reader.receive(STOCK_QUEUE, top=1)
                assert [message.conversation_group_id for message in first] == free[:1]
            with rolled_back(database) as reader:
                several = reader.receive(STOCK_QUEUE, top=1, groups=5)
                assert [message.conversation_group_id for message in several] == free[:5]
            with rolled_back(database) as reader:
                assert reader.get_conversation_group(STOCK_QUEUE) == (free[0] if free else None)
            with database.instance.connection() as connection:
                seen = run(connection, poll_queue(queue_id, database.instance.clock(), 0)).seen
            assert seen.receivable == bool(free)


def test_priorities_that_are_refused(database: sb.Database) -> None:
    database.create_broker_priority("Taken", contract_name=CONTRACT)
    with refused(33303, "taken"):
        database.create_broker_priority("taken", contract_name="DEFAULT")
    with refused(33303, CONTRACT):
        database.create_broker_priority("Other", contract_name=CONTRACT)
    for level in (0, 11):
        with refused(33302, "Other"):
            database.create_broker_priority("Other", priority_level=level)
    for text in ("", "x" * 257):
        with refused(33301, "REMOTE_SERVICE_NAME", "256"):
            database.create_broker_priority("Other", remote_service_name=text)
    for unknown in ({"contract_name": "//no"}, {"local_service_name": "//no"}):
        with refused(15151, "//no"):
            database.create_broker_priority("Other", **unknown)  # type: ignore[arg-type]
    for wrong in ({"contract_name": 5}, {"priority_level": "high"}):
        with refused(402):
            database.create_broker_priority("Other", **wrong)  # type: ignore[arg-type]
    with refused(15151, "Nothing"):
        database.drop_broker_priority("Nothing")
    with refused(15151, "Nothing"):
        database.alter_broker_priority("Nothing", priority_level=3)
    database.create_broker_priority("Other", remote_service_name="//anywhere", priority_level="DEFAULT")
    with refused(33303):
        database.alter_broker_priority("Other", contract_name=CONTRACT, remote_service_name="ANY")
    database.alter_broker_priority("Other", contract_name=CONTRACT, local_service_name=ORDERS)
