"""Conversations with the built-in service that answers."""

from __future__ import annotations

from uuid import UUID

import servicebroker as sb
from servicebroker.api.upkeep import deliver
from servicebroker.model.names import SERVICE_BROKER, SERVICE_ECHO
from support import ORDERS, eventually, query


def begin(database: sb.Database, to: UUID | None = None, contract: str = SERVICE_ECHO, service: str = ORDERS) -> UUID:
    return database.begin_dialog(
        service, SERVICE_BROKER, contract=contract, encryption=False, broker_instance=to or broker_of(database)
    )


def broker_of(database: sb.Database) -> UUID:
    """The identifier of a database: every one has a service of that name."""
    ((found,),) = query(database, "select service_broker_guid from sys.databases where name = %s", database.name)
    return UUID(str(found))


def answer(database: sb.Database) -> None:
    """Answer as the background does when it is notified, until nothing is left."""
    with database.instance.connection() as connection:
        eventually(lambda: not deliver(connection, database.instance.clock()))


def ask_in_t_sql(database: sb.Database, contract: str, message_type: str, body: str) -> None:
    """The service of this database is sent a message by a script, and answers."""
    database.execute_tsql(
        f"""declare @handle uniqueidentifier, @here nvarchar(128) =
            (select cast(service_broker_guid as nvarchar(128)) from sys.databases where database_id = db_id());
        begin dialog @handle from service [{ORDERS}] to service '{SERVICE_BROKER}', @here
            on contract [{contract}] with encryption = off;
        send on conversation @handle message type [{message_type}] (N'{body}');"""
    )
    answer(database)
