"""CREATE and DROP DATABASE, and looking up a database by name."""

from __future__ import annotations

from typing import TypeVar

from servicebroker.engine.catalog.alter import renew_routes, wake_readers
from servicebroker.engine.catalog.catalog import create_queue, insert_usages
from servicebroker.engine.catalog.database_options import new_broker
from servicebroker.engine.catalog.read_only import set_read_write
from servicebroker.model import names
from servicebroker.model.client_kind import audit_context_sql, client_kind
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import DBO_ID, FIXED_PRINCIPALS, GRANT, GUEST_ID, Kind
from servicebroker.operations.queues import CreateQueue
from servicebroker.store.queue import quoted
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


T = TypeVar("T")

SYSTEM_DATABASE = "msdb"
_GUEST_DATABASES = frozenset({"master", "tempdb"})  # databases in which guest may connect


def create_database(name: str) -> Steps[int]:
    """CREATE DATABASE, with a broker identifier, the built-in objects and the route AutoCreatedLocal. Returns its id.

    Raises:
        BrokerError: 1801 the name is taken.
    """
    names.checked("database", name)
    rows = yield Statement(
        "databases.create_database.insert_databases",
        "insert into servicebroker.databases (name) values ($1) on conflict do nothing "
        f"returning database_id, {audit_context_sql(2)}",
        (name, "", client_kind()),
    )
    if not rows:
        raise BrokerError(1801, name)
    database_id = rows[0][0]
    yield SQL(
        "create_database.insert_principals",
        (
            database_id,
            [row.principal_id for row in FIXED_PRINCIPALS],
            [row.name for row in FIXED_PRINCIPALS],
            [row.is_role for row in FIXED_PRINCIPALS],
        ),
    )
    if name.lower() in _GUEST_DATABASES:
        yield SQL("create_database.insert_permissions", (database_id, Kind.DATABASE.value, GUEST_ID, DBO_ID, GRANT))
    types = names.SYSTEM_MESSAGE_TYPES
    yield SQL(
        "create_database.insert_message_types",
        (
            database_id,
            [row.message_type_id for row in types],
            [row.name for row in types],
            [row.validation for row in types],
        ),
    )
    for contract in names.SYSTEM_CONTRACTS:
        yield SQL("create_database.insert_contracts", (database_id, contract.service_contract_id, contract.name))
        yield insert_usages(database_id, contract.service_contract_id, contract.usages)
    yield SQL("create_database.insert_routes", (database_id,))
    yield from _create_system_services(database_id)
    return int(database_id)


def ensure_database(name: str) -> Steps[int]:
    """Return the id of a database, creating it if it is missing. Only the creation needs a permission."""
    try:
        return (yield from find_database(name))
    except BrokerError as refused:
        if refused.number != 911:
            raise
    try:
        return (yield from create_database(name))
    except BrokerError as refused:
        if refused.number != 1801:
            raise
    return (yield from find_database(name))


def _create_system_services(database_id: int) -> Steps[None]:
    """Create the built-in services, each on a queue of its own."""
    for name, queue in names.SYSTEM_SERVICES:
        queue_id = yield from create_queue(database_id, CreateQueue(queue), DBO_ID, is_system=True)
        yield SQL("create_system_services", (database_id, name, queue_id))
        if name == names.SERVICE_BROKER:
            yield from _make_answering(database_id, name, queue_id)


def _make_answering(database_id: int, name: str, queue_id: int) -> Steps[None]:
    """Give the service its contracts, and notify the process that answers its messages (engine/built_in)."""
    yield SQL(
        "make_answering.insert_contracts_used",
        (database_id, name, [names.SERVICE_ECHO_ID, names.SERVICE_DIAGNOSTIC_ID]),
    )
    yield Statement(
        "databases.make_answering.create_trigger",
        f"create trigger arrival after insert on servicebroker.queue_{queue_id} "
        "for each statement execute function servicebroker.ring_delivery()",
        prepared=False,
    )


def find_database(name: str) -> Steps[int]:
    """Return the id of a database, by name without regard to case.

    Raises:
        BrokerError: 911 no such database.
    """
    rows = yield SQL("find_database", (names.checked("database", name),))
    if not rows:
        raise BrokerError(911, name, hint="Create it with instance.database(name, create=True).")
    return int(rows[0][0])


def is_trustworthy(database_id: int) -> Steps[bool]:
    """Check whether TRUSTWORTHY is ON."""
    rows = yield SQL("is_trustworthy", (database_id,))
    return bool(rows)


def drop_database(database_id: int) -> Steps[None]:
    """DROP DATABASE: remove its conversations as NEW_BROKER does, and every object. The caller has locked it.

    The caller runs `remove_dropped_queue` for the tables of its queues. A PostgreSQL schema that has other objects is
    not dropped. Peers in other databases get the Error -8462 at their next SEND.

    Raises:
        BrokerError: 3708 the system database.
    """
    yield from check_database(database_id)
    rows = yield SQL("drop_database.find_databases", (database_id,))
    if rows[0][0] == SYSTEM_DATABASE:
        raise BrokerError(3708, SYSTEM_DATABASE)
    yield from set_read_write(database_id, rows[0][0])
    yield from new_broker(database_id)
    queues = yield SQL("drop_database.find_queues", (database_id,))
    for _, schema, view in queues:
        yield Statement(
            "databases.drop_database.drop_view",
            f"drop view if exists {quoted(schema)}.{quoted(view)} cascade",  # and the views that use it
            prepared=False,
        )
    for table in _OBJECTS:
        yield Statement(
            "databases.drop_database.delete_rows",
            f"delete from servicebroker.{table} where database_id = $1",
            (database_id,),
        )
    for schema in sorted({schema for _, schema, _ in queues}):
        remaining = yield SQL("drop_database.find_schema_use", (schema,))
        if not remaining:
            yield Statement(
                "databases.drop_database.drop_schema", f"drop schema if exists {quoted(schema)}", prepared=False
            )
    for queue_id, _, _ in queues:
        yield wake_readers(queue_id)
    yield renew_routes()  # messages parked for its services may have a route to another instance


# tables with rows of a database, in the order in which rows can be deleted
_OBJECTS = (
    "event_notifications",
    "broker_priorities",
    "route_requests",
    "routes",
    "services",
    "queues",
    "service_contract_message_usages",
    "service_contracts",
    "message_types",
    "xml_schema_collections",
    "remote_service_bindings",
    "certificates",
    "master_keys",
    "permissions",
    "role_members",
    "principals",
    "databases",
)


def check_database(database_id: int) -> Steps[None]:
    """Raise an error if the database was dropped.

    Raises:
        BrokerError: 8442 the database was dropped.
    """
    rows = yield SQL("check_database", (database_id,))
    if not rows:
        raise BrokerError(8442)
