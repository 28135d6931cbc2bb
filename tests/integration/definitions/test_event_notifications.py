"""Event notifications on queues: conversations that tell a service that a queue needs readers or is off."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import servicebroker as sb
from servicebroker.engine.catalog.event_notifications import post
from servicebroker.store.running import run
from support import (
    APP,
    ORDER,
    STOCK_QUEUE,
    as_user,
    begin,
    eventually,
    in_thread,
    query,
    queue_number,
    refused,
    rolled_back,
    wait_until_blocked,
)

POST = "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"
EVENT = "http://schemas.microsoft.com/SQL/Notifications/EventNotification"
WATCHER, WATCH_QUEUE = "//test/Watcher", "WatchQueue"
ACTIVATION, DISABLED = "QUEUE_ACTIVATION", "BROKER_QUEUE_DISABLED"


@pytest.fixture
def watched_database(database: sb.Database) -> sb.Database:
    """Return a database with a service that receives notifications."""
    database.create_queue(WATCH_QUEUE)
    database.create_service(WATCHER, WATCH_QUEUE, [POST])
    return database


@pytest.fixture
def active(watched_database: sb.Database) -> Iterator[sb.Database]:
    with sb.activate(watched_database.instance, interval=0.4):
        yield watched_database
    with watched_database.instance.connection() as connection:
        connection.execute("delete from servicebroker.event_notifications")
        connection.execute("update servicebroker.queues set notifies_activation = false, is_activation_enabled = false")


def notify(database: sb.Database, name: str = "n", events: Any = ACTIVATION, **more: Any) -> None:
    database.create_event_notification(name, on_queue=STOCK_QUEUE, events=events, to_service=WATCHER, **more)


def receive_events(database: sb.Database) -> list[sb.EventInstance]:
    """Receive the events without ending their conversations."""
    events = []
    while messages := database.receive(WATCH_QUEUE):
        events += [sb.read_event(message.message_body) for message in messages if message.message_type_name == EVENT]
    return events


def wait_for(database: sb.Database, count: int = 1) -> list[sb.EventInstance]:
    events: list[sb.EventInstance] = []

    def have_arrived() -> bool:
        events.extend(receive_events(database))
        return len(events) >= count

    eventually(have_arrived)
    assert len(events) == count
    return events


def poison(database: sb.Database) -> None:
    """Roll back a RECEIVE five times, which disables the queue."""
    database.send(begin(database), ORDER, b"x")
    for _ in range(5):
        with rolled_back(database) as transaction:
            transaction.receive(STOCK_QUEUE)


@pytest.mark.feature(33, 185)
def test_a_queue_that_is_switched_off_by_itself_is_told_of(watched_database: sb.Database) -> None:
    """No daemon is needed: the event comes with the commit that switched the queue off."""
    notify(watched_database, events=DISABLED)
    poison(watched_database)
    (event,) = wait_for(watched_database)
    assert event[5:] == ("dbo", watched_database.name, "dbo", STOCK_QUEUE, "QUEUE", "")
    assert (event.event_type, event.server_name) == (
        DISABLED,
        query(watched_database, "select current_database()")[0][0],
    )
    assert event.post_time[:4] == str(watched_database.instance.clock().year)
    assert watched_database.instance.events.recent(143)[-1].object_id == queue_number(watched_database, STOCK_QUEUE)


@pytest.mark.feature(184)
def test_the_event_143_has_database_and_queue(watched_database: sb.Database) -> None:
    poison(watched_database)
    event = watched_database.instance.events.recent(143)[-1]
    assert (event.name, event.database_id) == ("Broker:Queue Disabled", watched_database.database_id)
    assert event.object_id == queue_number(watched_database, STOCK_QUEUE)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_two_concurrent_first_events_begin_one_conversation(watched_database: sb.Database, is_dropped: bool) -> None:
    notify(watched_database, events=DISABLED)
    queue_id, now = queue_number(watched_database, STOCK_QUEUE), watched_database.instance.clock()

    def post_second() -> list[sb.BrokerError]:
        with watched_database.instance.connection() as connection, connection.transaction():
            return run(connection, post(DISABLED, queue_id, now))

    with watched_database.instance.connection() as connection:
        with connection.transaction():
            assert run(connection, post(DISABLED, queue_id, now)) == []
            if is_dropped:
                connection.execute("delete from servicebroker.event_notifications where queue_id = %s", (queue_id,))
            second = in_thread(post_second)
            wait_until_blocked(watched_database)
        assert second.result(30) == []
    begun = "select from sys.conversation_endpoints where is_initiator = 1 and broker_database = %s"
    assert len(query(watched_database, begun, watched_database.name)) == 1
    assert len(receive_events(watched_database)) == (1 if is_dropped else 2)


@pytest.mark.feature(207)
def test_the_notifications_conversation_is_a_system_conversation(watched_database: sb.Database) -> None:
    """The conversation begins with the first event, and carries all of them."""
    notify(watched_database, events=[DISABLED, ACTIVATION])
    text = "select is_initiator, is_system from sys.conversation_endpoints where broker_database = %s order by 1"
    assert query(watched_database, text, watched_database.name) == []
    for _ in range(2):
        poison(watched_database)
        watched_database.alter_queue(STOCK_QUEUE, status=True)
        watched_database.receive(STOCK_QUEUE)
    assert len(wait_for(watched_database, 2)) == 2
    text += " limit 100"
    rows = query(
        watched_database,
        text.replace("order by 1", "and far_service in (%s, %s) order by 1"),
        watched_database.name,
        WATCHER,
        POST.replace("PostEventNotification", "EventNotificationService"),
    )
    assert rows == [(0, 0), (1, 1)]


@pytest.mark.feature(33, 179)
def test_queue_activation_is_notified_until_a_receive(active: sb.Database) -> None:
    notify(active)
    active.send(begin(active), ORDER, b"one")
    (event,) = wait_for(active)
    assert (event.event_type, event.object_name) == (ACTIVATION, STOCK_QUEUE)
    active.send(begin(active), ORDER, b"two")
    time.sleep(1)  # more than two intervals
    assert receive_events(active) == []
    assert len(active.receive(STOCK_QUEUE)) == 1
    wait_for(active)  # messages remain
    while active.receive(STOCK_QUEUE):
        pass
    text = "select state from sys.dm_broker_queue_monitors where queue_id = %s"
    eventually(lambda: query(active, text, queue_number(active, STOCK_QUEUE)) == [("INACTIVE",)])
    active.send(begin(active), ORDER, b"three")
    wait_for(active)


@pytest.mark.feature(181)
def test_several_notifications_all_fire(active: sb.Database) -> None:
    for number in range(3):
        notify(active, f"n{number}")
    active.send(begin(active), ORDER, b"x")
    wait_for(active, 3)


def test_with_fan_in_one_of_several_fires(active: sb.Database) -> None:
    for number in range(3):
        notify(active, f"n{number}", with_fan_in=True)
    notify(active, "alone")
    active.send(begin(active), ORDER, b"x")
    wait_for(active, 2)


@pytest.mark.feature(179)
def test_either_a_procedure_or_notifications(watched_database: sb.Database) -> None:
    activation = sb.Activation("usp", 1, "SELF", status=True)
    watched_database.alter_queue(STOCK_QUEUE, activation=activation)
    with refused(9718, STOCK_QUEUE):
        notify(watched_database)
    notify(watched_database, "other", events=DISABLED)  # this one is allowed
    watched_database.alter_queue(STOCK_QUEUE, activation=activation._replace(status=False))
    notify(watched_database)
    with refused(9717, STOCK_QUEUE):
        watched_database.alter_queue(STOCK_QUEUE, activation=activation)
    watched_database.drop_event_notification("N", on_queue=STOCK_QUEUE)
    watched_database.alter_queue(STOCK_QUEUE, activation=activation)
    watched_database.alter_queue(STOCK_QUEUE, activation="DROP")


def test_the_views(watched_database: sb.Database) -> None:
    notify(watched_database, events=[DISABLED, ACTIVATION])
    text = (
        "select n.name, n.parent_id, n.service_name, n.broker_instance, e.type_desc from sys.event_notifications n "
        "join sys.events e using (object_id) where n.broker_database = %s order by 5"
    )
    number = queue_number(watched_database, STOCK_QUEUE)
    assert query(watched_database, text, watched_database.name) == [
        ("n", number, WATCHER, "current database", event) for event in (DISABLED, ACTIVATION)
    ]


@pytest.mark.feature(33)
def test_dropping_one_tells_the_service(watched_database: sb.Database) -> None:
    notify(watched_database, events=DISABLED)
    poison(watched_database)
    wait_for(watched_database)
    watched_database.drop_event_notification("n", on_queue=STOCK_QUEUE)
    (message,) = watched_database.receive(WATCH_QUEUE)
    assert message.is_end_dialog
    with refused(15151, "event notification"):
        watched_database.drop_event_notification("n", on_queue=STOCK_QUEUE)


def test_a_notification_is_dropped_with_its_queue(watched_database: sb.Database) -> None:
    watched_database.create_queue("Other")
    watched_database.create_event_notification("n", on_queue="Other", events=DISABLED, to_service=WATCHER)
    watched_database.drop_queue("Other")
    text = "select from sys.event_notifications where broker_database = %s"
    assert query(watched_database, text, watched_database.name) == []
    notify(watched_database)


@pytest.mark.parametrize(("error", "number"), [(None, 17004), ((1, "no"), 17003)])
def test_one_whose_conversation_was_ended_is_dropped(
    watched_database: sb.Database, caplog: pytest.LogCaptureFixture, error: Any, number: int
) -> None:
    notify(watched_database, events=DISABLED)
    poison(watched_database)
    (message,) = watched_database.receive(WATCH_QUEUE)
    watched_database.end_conversation(message.conversation_handle, error=error)
    with sb.activate(watched_database.instance, interval=0.4):
        eventually(lambda: f"Msg {number}" in caplog.text)
    assert (
        query(watched_database, "select from sys.event_notifications where broker_database = %s", watched_database.name)
        == []
    )
    text = "select from sys.conversation_endpoints where is_system = 1 and broker_database = %s"
    assert query(watched_database, text, watched_database.name) == []


def test_to_another_database(watched_database: sb.Database) -> None:
    other_database = watched_database.instance.database(watched_database.name + "B", create=True)
    other_database.create_queue(WATCH_QUEUE)
    other_database.create_service(WATCHER, WATCH_QUEUE, [POST])
    text = "select service_broker_guid::text from sys.databases where name = %s"
    ((broker,),) = query(other_database, text, other_database.name)
    notify(watched_database, events=DISABLED, broker_instance=broker)
    poison(watched_database)
    assert wait_for(other_database)[0].database_name == watched_database.name
    assert receive_events(watched_database) == []


@pytest.mark.feature(33)
@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"events": "CREATE_TABLE"}, 1098),
        ({"events": "NO_EVENT"}, 1084),
        ({"events": []}, 402),
        ({"on_queue": "NoQueue"}, 8197),
        ({"broker_instance": "CURRENT DATABASE"}, 1093),  # compared byte by byte
        ({"broker_instance": "x"}, 1093),
        ({"name": "taken"}, 2714),
    ],
)
def test_refusals(watched_database: sb.Database, change: dict[str, Any], number: int) -> None:
    notify(watched_database, "taken", events=DISABLED)
    given = {"name": "n", "on_queue": STOCK_QUEUE, "events": ACTIVATION, "to_service": WATCHER} | change
    with refused(number):
        watched_database.create_event_notification(given.pop("name"), **given)


@pytest.mark.feature(33)
def test_a_name_is_taken_on_its_queue_only(watched_database: sb.Database) -> None:
    notify(watched_database, "Told", events=DISABLED)
    watched_database.create_event_notification("TOLD", on_queue=WATCH_QUEUE, events=DISABLED, to_service=WATCHER)
    for queue in (STOCK_QUEUE, WATCH_QUEUE):
        with refused(2714):
            watched_database.create_event_notification("told", on_queue=queue, events=DISABLED, to_service=WATCHER)
    watched_database.drop_event_notification("told", on_queue=WATCH_QUEUE)
    with refused(15151, "event notification"):
        watched_database.drop_event_notification("told", on_queue=WATCH_QUEUE)
    poison(watched_database)  # the notification of the other queue still exists
    assert wait_for(watched_database)[0].object_name == STOCK_QUEUE


def test_alter_on_the_queue_permits_creating_a_notification(watched_database: sb.Database) -> None:
    watched_database.create_user(APP)
    app = as_user(watched_database, APP)
    with refused(15151):
        notify(app)
    watched_database.grant("ALTER", APP, queue=STOCK_QUEUE)
    notify(app)
