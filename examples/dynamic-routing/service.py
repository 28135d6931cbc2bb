"""A dynamic routing service: it answers the broker's question "where is that service?" out of a file of addresses.

    python examples/dynamic-routing/service.py INSTANCE [addresses.toml]

The broker sends MissingRoute to the service SQL/ServiceBroker/BrokerConfiguration, once for each service that no route
leads to; we create the route and end the conversation, and what waited goes on.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from lxml import etree

import servicebroker as sb

DATABASE, QUEUE = "Routing", "BrokerConfigurationQueue"
SERVICE = "SQL/ServiceBroker/BrokerConfiguration"
NOTICE = "http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice"
MISSING_ROUTE = f"{NOTICE}/MissingRoute"
UNKNOWN_ADDRESS_CODE = 1  # the code of our error: no address is known


def define(instance: sb.Instance) -> sb.Database:
    """The database of the service, made once."""
    database = instance.database(DATABASE, create=True)
    with database.transaction() as transaction:
        made = transaction.connection.execute("select from sys.services where name = %s", (SERVICE,)).fetchone()
    if made is None:
        database.create_queue(QUEUE)
        database.create_service(SERVICE, QUEUE, [NOTICE])
    return database


def use_dynamic_routing(database: sb.Database) -> None:
    """Create the route to the dynamic routing service, which this database then asks for missing routes."""
    database.create_route("BrokerConfiguration", service_name=SERVICE, address="LOCAL")


def answer(database: sb.Database, file: Path, wait: float = 0) -> int:
    """Answer what has been asked, or is within `wait` seconds. Returns how many messages were read."""
    with database.transaction() as transaction:
        messages = transaction.receive(QUEUE, top=100, wait=wait)
        for message in messages:
            handle = message.conversation_handle
            if message.message_type_name != MISSING_ROUTE or create_route(
                asking_database(transaction, handle), message.message_body or b"", file
            ):
                transaction.end_conversation(handle)
            else:
                transaction.end_conversation(
                    handle, error=(UNKNOWN_ADDRESS_CODE, f"No address is known, see {file.name}.")
                )
    return len(messages)


def asking_database(transaction: sb.Transaction, handle: object) -> sb.Database:
    """The database whose routes lack one: the broker that has begun the conversation."""
    row = transaction.connection.execute(
        "select d.broker_database from servicebroker.conversation_endpoints e "
        "join sys.databases d on d.service_broker_guid::text = e.far_broker_instance "
        "where e.conversation_handle = %s",
        (handle,),
    ).fetchone()
    assert row is not None
    return transaction.database.instance.database(row[0])


def create_route(database: sb.Database, body: bytes, file: Path) -> bool:
    """The route to the service that a MissingRoute names. False when its address is not in the file."""
    known = tomllib.loads(file.read_text())
    asked = etree.fromstring(body, etree.XMLParser(resolve_entities=False, no_network=True))
    service = asked.findtext(f"{{{MISSING_ROUTE}}}SERVICE_NAME") or ""
    broker = asked.findtext(f"{{{MISSING_ROUTE}}}BROKER_INSTANCE")
    address = known["addresses"].get(service)
    if address is None:
        return False
    name = f"Found {service} {broker or ''}".strip()[:128]
    clauses = {"address": address, "lifetime": known.get("lifetime")}
    try:
        database.create_route(name, service_name=service, broker_instance=broker, **clauses)
    except sb.BrokerError as refused:
        if refused.number != 2714:
            raise
        database.alter_route(name, **clauses)  # the route has expired, or a failure came before the answer
    return True


def main(target: str, file: Path) -> None:
    """Answer until Ctrl-C."""
    with sb.open(target) as instance:
        database = define(instance)
        while True:
            answer(database, file, wait=60.0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("addresses.toml"))
