"""The states of an endpoint in sys.conversation_endpoints, and every transition between them.

STARTED_INBOUND needs an incomplete message: see test_relay.py.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

import servicebroker as sb
from portal import run_maintenance
from support import (
    CONTRACT,
    MARK,
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    Clock,
    begin,
    bodies,
    create_endpoint,
    errors,
    open_dialog,
    peer_handle,
    query,
    refused,
)

GONE, REFUSED = None, "refused"
DESCRIPTIONS = {
    "SO": "STARTED_OUTBOUND",
    "CO": "CONVERSING",
    "DI": "DISCONNECTED_INBOUND",
    "DO": "DISCONNECTED_OUTBOUND",
    "ER": "ERROR",
    "CD": "CLOSED",
}


def states_of(database: sb.Database, *handles: UUID) -> list[str | None]:
    """Return the states of these endpoints; None for a removed one."""
    text = "select state, state_desc from sys.conversation_endpoints where conversation_handle = %s"
    states = [row for handle in handles for row in query(database, text, handle) or [(GONE, None)]]
    assert all(DESCRIPTIONS.get(letters) == description for letters, description in states)
    return [letters for letters, _ in states]


def new_group(database: sb.Database, handle: UUID) -> UUID:
    """Create another group of the endpoint's service, and return its id."""
    text = (
        "select s.name from sys.conversation_endpoints e join sys.services s using (service_id) "
        "where e.conversation_handle = %s"
    )
    ((service,),) = query(database, text, handle)
    group = uuid4()
    database.begin_dialog(service, "//test/nowhere", contract=CONTRACT, related_conversation_group=group)
    return group


VERBS: dict[str, tuple[Callable[[sb.Database, UUID], object], int]] = {  # with the number of the error
    "send": (lambda db, handle: db.send(handle, MARK), 8429),
    "timer": (lambda db, handle: db.begin_conversation_timer(handle, 60), 8458),
    "move": (lambda db, handle: db.move_conversation(handle, new_group(db, handle)), 8438),
    "end": (lambda db, handle: db.end_conversation(handle), 8427),
    "end with error": (lambda db, handle: db.end_conversation(handle, error=(1, "x")), 8427),
    "end with cleanup": (lambda db, handle: db.end_conversation(handle, cleanup=True), 0),
}
STATE_AFTER: dict[str, dict[str, str | None]] = {  # an END whose EndDialog need not wait is acknowledged at once
    "send": {"SO": "CO", "CO": "CO", "DI": REFUSED, "DO": REFUSED, "ER": REFUSED, "CD": REFUSED},
    "timer": {"SO": "SO", "CO": "CO", "DI": "DI", "DO": REFUSED, "ER": "ER", "CD": REFUSED},
    "move": {"SO": "SO", "CO": "CO", "DI": "DI", "DO": REFUSED, "ER": "ER", "CD": REFUSED},
    "end": {"SO": GONE, "CO": GONE, "DI": GONE, "DO": REFUSED, "ER": GONE, "CD": REFUSED},
    "end with error": {"SO": GONE, "CO": GONE, "DI": GONE, "DO": REFUSED, "ER": GONE, "CD": REFUSED},
    "end with cleanup": {"SO": GONE, "CO": GONE, "DI": GONE, "DO": GONE, "ER": GONE, "CD": GONE},
}


@pytest.mark.feature(98)
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_leads_each_state_to_its_next_state_or_is_refused(database: sb.Database, verb: str) -> None:
    do, number = VERBS[verb]
    for wanted, after in STATE_AFTER[verb].items():
        handle, _ = create_endpoint(database, wanted)
        assert states_of(database, handle) == [wanted]
        if after == REFUSED:
            with refused(number, f"'{wanted}'"):
                do(database, handle)
            assert states_of(database, handle) == [wanted]
        else:
            do(database, handle)
            assert states_of(database, handle) == [after]
            if after is GONE:
                with refused(8426, str(handle)):
                    do(database, handle)


@pytest.mark.feature(98)
def test_the_life_of_a_dialog_whose_initiator_ends_first(database: sb.Database, clock: Clock) -> None:
    initiator = begin(database)
    assert states_of(database, initiator) == ["SO"]
    text = "select conversation_handle from sys.conversation_endpoints where broker_database = %s"
    assert query(database, text, database.name) == [(initiator,)]  # the target does not have the EndDialog yet
    database.send(initiator, ORDER, b"1")
    target = peer_handle(database, initiator)
    assert states_of(database, initiator, target) == ["CO", "CO"]
    database.alter_queue(STOCK_QUEUE, status=False)
    database.end_conversation(initiator)
    assert states_of(database, initiator, target) == ["DO", "CO"]  # until the EndDialog has arrived
    database.send(target, REPLY, b"late")
    assert states_of(database, initiator) == ["DO"]
    assert database.receive(ORDERS_QUEUE) == []
    database.alter_queue(STOCK_QUEUE, status=True)
    assert states_of(database, initiator, target) == [GONE, "DI"]
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1", None]
    assert states_of(database, target) == ["DI"]
    database.end_conversation(target)
    assert states_of(database, target) == ["CD"]
    clock.jump(minutes=31)
    with database.instance.connection() as connection:
        run_maintenance(connection, clock())
    assert states_of(database, target) == [GONE]


@pytest.mark.feature(98)
def test_the_life_of_a_dialog_whose_target_ends_first(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.alter_queue(ORDERS_QUEUE, status=False)
    database.end_conversation(target)
    assert states_of(database, initiator, target) == ["CO", "DO"]
    database.send(initiator, ORDER, b"late")
    assert database.receive(STOCK_QUEUE) == []
    database.alter_queue(ORDERS_QUEUE, status=True)
    assert states_of(database, initiator, target) == ["DI", "CD"]
    (end,) = database.receive(ORDERS_QUEUE)
    assert end.is_end_dialog
    database.end_conversation(initiator, error=(1, "nobody hears it"))
    assert states_of(database, initiator, target) == [GONE, "CD"]
    assert database.receive(STOCK_QUEUE) == []


@pytest.mark.feature(98)
@pytest.mark.parametrize("ends", ["initiator", "target"])
def test_an_error_of_either_side_moves_the_other_to_er(database: sb.Database, ends: str) -> None:
    initiator, target = open_dialog(database)
    first, second = (initiator, target) if ends == "initiator" else (target, initiator)
    database.end_conversation(first, error=(7, "failed"))
    assert states_of(database, first, second) == [GONE if first == initiator else "CD", "ER"]
    assert errors(database.receive(STOCK_QUEUE if second == target else ORDERS_QUEUE)) == [7]
    assert states_of(database, second) == ["ER"]
    database.end_conversation(second)
    assert states_of(database, second) == [GONE if second == initiator else "CD"]


@pytest.mark.feature(98)
@pytest.mark.parametrize("error", [None, (7, "failed")])
def test_an_end_that_arrives_late_leaves_a_failed_side_as_it_is(
    database: sb.Database, clock: Clock, error: tuple[int, str] | None
) -> None:
    """The lifetimes of both sides may end at different times: each counts from its own BEGIN."""
    initiator, target = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.end_conversation(initiator, error=error)
    with database.instance.connection() as connection:
        text = "update servicebroker.conversation_endpoints set lifetime = %s where conversation_handle = %s"
        connection.execute(text, (clock(), target))
        run_maintenance(connection, clock())
    assert states_of(database, initiator, target) == ["DO", "ER"]
    database.alter_queue(STOCK_QUEUE, status=True)
    assert states_of(database, target) == ["ER"]
    assert errors(database.receive(STOCK_QUEUE))[0] == -8489
    assert states_of(database, target) == ["ER"]


@pytest.mark.feature(98)
def test_a_lifetime_puts_sides_that_have_not_ended_into_error(database: sb.Database, clock: Clock) -> None:
    started, conversing, disconnected = (begin(database, lifetime=60) for _ in range(3))
    for handle in (conversing, disconnected):
        database.send(handle, ORDER, b"x")
    target, ended = peer_handle(database, conversing), peer_handle(database, disconnected)
    database.end_conversation(ended)
    assert states_of(database, started, conversing, target, disconnected, ended) == ["SO", "CO", "CO", "DI", "CD"]
    clock.jump(seconds=61)
    for queue in (ORDERS_QUEUE, STOCK_QUEUE):
        while database.receive(queue):
            pass
    assert states_of(database, started, conversing, target, disconnected, ended) == ["ER", "ER", "ER", "ER", "CD"]
