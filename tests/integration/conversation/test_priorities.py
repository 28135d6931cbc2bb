"""CREATE, ALTER and DROP BROKER PRIORITY."""

from __future__ import annotations

import itertools
from uuid import UUID

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    STOCK,
    STOCK_QUEUE,
    begin,
    far_handle,
    open_dialog,
    query,
    refused,
)


def priority_of(database: sb.Database, handle: UUID) -> int:
    text = "select priority from servicebroker.conversation_endpoints where conversation_handle = %s"
    return int(query(database, text, handle)[0][0])


@pytest.mark.both_faces
@pytest.mark.feature(31, 195)
def test_the_best_match_of_eight(database: sb.Database) -> None:
    """Contract before local service before remote service; every one is dropped in its turn."""
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
def test_each_criterion_that_is_met_goes_before_the_next(database: sb.Database, better: str, worse: str) -> None:
    """On the target's side, whose local service is the target; whichever of the two was made first."""
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
        assert message.priority == priority_of(database, far_handle(database, handle)) == (3 if first == better else 8)
        for level in (3, 8):
            database.drop_broker_priority(f"P{level}")


@pytest.mark.feature(195)
def test_what_does_not_match_gives_nothing(database: sb.Database) -> None:
    """Names are compared byte by byte; a better rule that misses by one criterion leaves the others to decide."""
    database.create_service("//test/stock", STOCK_QUEUE, [CONTRACT])
    database.create_broker_priority("Case", remote_service_name=STOCK.lower(), priority_level=9)
    database.create_broker_priority("Contract", contract_name="DEFAULT", remote_service_name=STOCK, priority_level=8)
    database.create_broker_priority("Local", local_service_name=STOCK, priority_level=2)
    handle = begin(database)
    assert priority_of(database, handle) == 5
    assert priority_of(database, begin(database, "//test/stock")) == 9
    assert priority_of(database, database.begin_dialog(ORDERS, STOCK)) == 8
    database.send(handle, ORDER, b"x")
    assert priority_of(database, far_handle(database, handle)) == 2


@pytest.mark.both_faces
@pytest.mark.feature(196)
def test_an_endpoint_keeps_the_priority_that_it_began_with(database: sb.Database) -> None:
    """Messages show the priority in the queue, in the transmission queue and in RECEIVE."""
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
    assert [message.priority for message in database.receive(STOCK_QUEUE)] == [5]  # the target's own, that begins now


@pytest.mark.feature(72)
def test_each_side_has_its_own_priority_and_receive_follows_it(database: sb.Database) -> None:
    database.create_service("//urgent", STOCK_QUEUE, [CONTRACT])
    database.create_broker_priority("Urgent", local_service_name="//urgent", priority_level=9)
    low, high = begin(database), begin(database, "//urgent")
    database.send(low, ORDER, b"low")
    database.send(high, ORDER, b"high")
    assert (priority_of(database, high), priority_of(database, far_handle(database, high))) == (5, 9)
    first, second = database.receive(STOCK_QUEUE), database.receive(STOCK_QUEUE)
    assert [(m.message_body, m.priority) for m in first + second] == [(b"high", 9), (b"low", 5)]
    database.alter_broker_priority("urgent", priority_level=1)
    assert priority_of(database, far_handle(database, high)) == 9
    again = begin(database, "//urgent")
    database.send(again, ORDER, b"x")
    assert priority_of(database, far_handle(database, again)) == 1


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
