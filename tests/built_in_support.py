"""Conversations with the built-in service."""

from __future__ import annotations

from uuid import UUID

import servicebroker as sb
from servicebroker.api.maintenance import deliver
from servicebroker.model.names import SERVICE_BROKER, SERVICE_ECHO
from support import ORDERS, eventually, query


def begin(database: sb.Database, to: UUID | None = None, contract: str = SERVICE_ECHO, service: str = ORDERS) -> UUID:
    return database.begin_dialog(
        service, SERVICE_BROKER, contract=contract, encryption=False, broker_instance=to or broker_of(database)
    )


def broker_of(database: sb.Database) -> UUID:
    """Return the broker identifier of a database. Every database has the built-in service."""
    ((identifier,),) = query(database, "select service_broker_guid from sys.databases where name = %s", database.name)
    return UUID(str(identifier))


def answer(database: sb.Database) -> None:
    """Deliver all messages, as the maintenance thread does after a notification, so that the service answers."""
    with database.instance.connection() as connection:
        eventually(lambda: not deliver(connection, database.instance.clock()))


def ask_in_t_sql(database: sb.Database, contract: str, message_type: str, body: str) -> None:
    """Send a message to the built-in service of this database by a T-SQL script, and let the service answer."""
    database.execute_tsql(
        f"""declare @handle uniqueidentifier, @here nvarchar(128) =
            (select cast(service_broker_guid as nvarchar(128)) from sys.databases where database_id = db_id());
        begin dialog @handle from service [{ORDERS}] to service '{SERVICE_BROKER}', @here
            on contract [{contract}] with encryption = off;
        send on conversation @handle message type [{message_type}] (N'{body}');"""
    )
    answer(database)
