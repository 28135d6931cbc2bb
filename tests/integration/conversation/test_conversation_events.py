"""The events Broker:Conversation (124) and Broker:Conversation Group (136)."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

import servicebroker as sb
from servicebroker.model.events import BrokerEvent
from support import CONTRACT, ORDER, ORDERS, REPLY, STOCK, STOCK_QUEUE, begin, query, refused, rolled_back

pytestmark = [pytest.mark.feature(201), pytest.mark.both_apis]

Told = Callable[[], list[tuple[str, str, str]]]


@pytest.fixture
def take_events(fresh_database: sb.Database) -> Told:
    """A function that returns the events since its last call: subclass, role (empty for a group), state."""
    events: list[BrokerEvent] = []
    of_others = fresh_database.database_id

    def handler(event: BrokerEvent) -> None:
        if event.database_id == of_others:
            events.append(event)

    fresh_database.instance.events.subscribe(handler, 124, 136)

    def take() -> list[tuple[str, str, str]]:
        event_rows = [(event.subclass, event.columns.get("RoleName", "group"), event.text) for event in events]
        events.clear()
        return event_rows

    return take


def test_events_of_a_conversation_from_begin_to_end(fresh_database: sb.Database, take_events: Told) -> None:
    database = fresh_database
    handle = begin(database)
    assert take_events() == [("Create", "group", ""), ("BEGIN DIALOG", "initiator", "SO")]
    database.send(handle, ORDER, b"1")
    assert take_events() == [
        ("Create", "group", ""),
        ("SEND Message", "initiator", "CO"),
        ("Dialog Created", "target", "CO"),
        ("Received Sequenced Message", "target", "CO"),
    ]
    database.send_batch(handle, ORDER, [b"2", b"3"])
    sent, received = ("SEND Message", "initiator", "CO"), ("Received Sequenced Message", "target", "CO")
    assert take_events() == [sent, sent, received, received]
    messages = database.receive(STOCK_QUEUE)
    assert take_events() == []
    target = messages[0].conversation_handle
    database.send(target, REPLY, b"r")
    assert take_events() == [("SEND Message", "target", "CO"), ("Received Sequenced Message", "initiator", "CO")]
    database.end_conversation(target)
    assert take_events() == [
        ("END CONVERSATION", "target", "CD"),
        ("Received END CONVERSATION", "initiator", "DI"),
        ("Received END CONVERSATION Ack", "target", "CD"),
    ]
    database.end_conversation(handle)
    assert take_events()[:2] == [("END CONVERSATION", "initiator", "CD"), ("Terminate Dialog", "initiator", "CD")]


def test_a_trace_event_has_the_columns_of_sql_server(fresh_database: sb.Database) -> None:
    events: list[BrokerEvent] = []
    fresh_database.instance.events.subscribe(events.append, 124)
    handle = begin(fresh_database)
    ((conversation, group),) = query(
        fresh_database,
        "select conversation_id::text, conversation_group_id::text from sys.conversation_endpoints "
        "where conversation_handle = %s",
        handle,
    )
    mine = [event for event in events if event.columns["ObjectName"] == str(handle)]
    assert [(event.number, event.name, event.database_id) for event in mine] == [
        (124, "Broker:Conversation", fresh_database.database_id)
    ]
    assert dict(mine[0].columns) == {
        "GUID": conversation,
        "ObjectName": str(handle),
        "MethodName": group,
        "RoleName": "initiator",
    }
    assert fresh_database.instance.events.recent(124) == []  # a thousand of these would displace relevant events


def test_errors_of_the_application_and_of_the_broker_are_events(fresh_database: sb.Database, take_events: Told) -> None:
    database = fresh_database
    handle = begin(database)
    database.send(handle, ORDER, b"x")
    (message,) = database.receive(STOCK_QUEUE)
    take_events()
    database.end_conversation(message.conversation_handle, error=(500, "no"))
    assert take_events() == [
        ("END CONVERSATION WITH ERROR", "target", "CD"),
        ("Received END CONVERSATION WITH ERROR", "initiator", "ER"),
        ("Received END CONVERSATION Ack", "target", "CD"),
    ]
    nowhere = database.begin_dialog(ORDERS, ORDERS, contract=CONTRACT)  # the service accepts no contract
    take_events()
    database.send(nowhere, ORDER, b"x")
    assert take_events() == [("SEND Message", "initiator", "ER"), ("Broker Initiated Error", "initiator", "ER")]
    database.end_conversation(nowhere, cleanup=True)
    assert take_events() == [("END CONVERSATION WITH CLEANUP", "initiator", "CD"), ("Drop", "group", "")]


def test_waiting_messages_are_sent_and_not_received(fresh_database: sb.Database, take_events: Told) -> None:
    handle = begin(fresh_database, "//nowhere")
    take_events()
    fresh_database.send(handle, ORDER, b"x")
    assert [event[:2] for event in take_events()] == [("SEND Message", "initiator")]


def test_groups(fresh_database: sb.Database, take_events: Told) -> None:
    database = fresh_database
    group = uuid4()
    first = begin(database, related_conversation_group=group)
    assert take_events()[0] == ("Create", "group", "")
    second = begin(database, related_conversation=first)
    assert take_events() == [("BEGIN DIALOG", "initiator", "SO")]
    other_handle = begin(database)
    take_events()
    database.move_conversation(other_handle, group)
    assert take_events() == [("Drop", "group", "")]
    for handle in (first, second):
        database.end_conversation(handle)
    assert "group" not in {role for _, role, _ in take_events()}
    database.end_conversation(other_handle)
    assert take_events()[-1] == ("Drop", "group", "")


def test_events_are_reported_even_if_the_transaction_rolls_back(fresh_database: sb.Database, take_events: Told) -> None:
    with rolled_back(fresh_database) as transaction:
        transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        assert len(take_events()) == 2
    assert take_events() == []


def test_a_multicast_is_one_event_for_each_conversation_and_a_refusal_is_none(
    fresh_database: sb.Database, take_events: Told
) -> None:
    database = fresh_database
    handles = [begin(database), begin(database)]
    take_events()
    database.send(handles, ORDER, b"x")
    subclasses = [subclass for subclass, _, _ in take_events()]
    assert (subclasses.count("SEND Message"), subclasses.count("Received Sequenced Message")) == (2, 2)
    with refused(8431):
        database.send(handles[0], "DEFAULT")
    with refused(402):
        database.send("no handle", ORDER)  # type: ignore[call-overload]
    with refused(8418):
        database.send(None, ORDER)  # type: ignore[call-overload]
    with refused(402):
        database.end_conversation("no handle")  # type: ignore[arg-type]
    assert take_events() == []


def test_events_without_a_handler_are_not_collected(fresh_database: sb.Database) -> None:
    usual: list[BrokerEvent] = []
    fresh_database.instance.events.subscribe(usual.append)
    fresh_database.send(begin(fresh_database), ORDER, b"x")
    assert usual == []
    with refused(402):
        fresh_database.instance.events.subscribe(usual.append, 142)  # an event class of the daemon
