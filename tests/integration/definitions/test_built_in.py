"""The services and queues that every database has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import servicebroker as sb
from servicebroker.model.names import SYSTEM_SERVICES
from support import CONTRACT, ORDERS, ORDERS_QUEUE, begin, query, refused

NAMES = [
    ("http://schemas.microsoft.com/SQL/Notifications/QueryNotificationService", "QueryNotificationErrorsQueue"),
    ("http://schemas.microsoft.com/SQL/Notifications/EventNotificationService", "EventNotificationErrorsQueue"),
    ("http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker", "ServiceBrokerQueue"),
]


def built_in(database: sb.Database) -> list[tuple[Any, ...]]:
    text = (
        "select s.name, q.name, q.is_ms_shipped, s.service_id < 65536 from sys.services s "
        "join sys.service_queues q on q.object_id = s.service_queue_id "
        "where s.broker_database = %s and q.is_ms_shipped = 1 order by s.service_id"
    )
    return query(database, text, database.name)


@pytest.mark.parametrize("name", ["msdb", None])
def test_every_database_has_them(database: sb.Database, name: str | None) -> None:
    found = built_in(database.instance.database(name) if name else database)
    assert found == [(service, queue, 1, True) for service, queue in NAMES]


@pytest.mark.parametrize(
    "change",
    [
        lambda db, service, queue: db.drop_queue(queue.upper()),
        lambda db, service, queue: db.alter_queue(queue, status=False),
        lambda db, service, queue: db.alter_queue(queue, activation="DROP"),
        lambda db, service, queue: db.alter_queue(queue, reorganize=True),
        lambda db, service, queue: db.drop_service(service),
        lambda db, service, queue: db.alter_service(service, queue=ORDERS_QUEUE),
        lambda db, service, queue: db.alter_service(service, add_contracts=[CONTRACT]),
    ],
)
def test_built_in_objects_cannot_be_changed(
    database: sb.Database, change: Callable[[sb.Database, str, str], None]
) -> None:
    for service, queue in SYSTEM_SERVICES:
        with refused(9663):
            change(database, service, queue)
        with refused(2714):
            database.create_queue(queue)
        with refused(2714):
            database.create_service(service, ORDERS_QUEUE)
    assert len(built_in(database)) == len(NAMES)


def test_built_in_queues_are_readable_and_refuse_conversations(database: sb.Database) -> None:
    for service, queue in SYSTEM_SERVICES:
        assert database.receive(queue) == []
        assert query(database, f"select from {database.name.lower()}_dbo.{queue.lower()}") == []  # type: ignore[arg-type]
        handle = begin(database, service)
        database.send(handle, "//test/Order", b"x")
        (error,) = database.receive(ORDERS_QUEUE)
        assert sb.read_error(error.message_body)[0] == -8408
        database.end_conversation(handle)
        assert (error.service_name, database.receive(queue)) == (ORDERS, [])


def test_status_does_not_list_them_while_they_are_empty(database: sb.Database) -> None:
    queues, _ = database.instance.status()
    assert {queue.queue for queue in queues if queue.database == database.name} == {"dbo.OrdersQueue", "dbo.StockQueue"}
