"""CREATE DATABASE, and finding one by name."""

from __future__ import annotations

from servicebroker.engine.catalog import create_queue, insert_usages
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.store.statements import Statement, Steps


def create_database(name: str) -> Steps[int]:
    """CREATE DATABASE: a broker identifier, the built-in objects, the route AutoCreatedLocal. Returns its id.

    Raises:
        BrokerError: 1801 when the name is taken.
    """
    names.checked("database", name)
    rows = yield Statement(
        "insert into servicebroker.databases (name) values ($1) on conflict do nothing returning database_id",
        (name,),
    )
    if not rows:
        raise BrokerError(1801, name)
    (database_id,) = rows[0]
    types = names.SYSTEM_MESSAGE_TYPES
    yield Statement(
        "insert into servicebroker.message_types (database_id, message_type_id, name, validation) "
        'select $1, * from unnest($2::int[], $3::text[], $4::"char"[])',
        (
            database_id,
            [row.message_type_id for row in types],
            [row.name for row in types],
            [row.validation for row in types],
        ),
    )
    for contract in names.SYSTEM_CONTRACTS:
        yield Statement(
            "insert into servicebroker.service_contracts (database_id, service_contract_id, name) values ($1, $2, $3)",
            (database_id, contract.service_contract_id, contract.name),
        )
        yield insert_usages(database_id, contract.service_contract_id, contract.usages)
    yield Statement(
        "insert into servicebroker.routes (database_id, name, address) values ($1, 'AutoCreatedLocal', 'LOCAL')",
        (database_id,),
    )
    yield from create_system_services(database_id)
    return int(database_id)


def create_system_services(database_id: int) -> Steps[None]:
    """The services that every database has, each on a queue of its own."""
    for name, queue in names.SYSTEM_SERVICES:
        queue_id = yield from create_queue(database_id, queue, is_system=True)
        yield Statement(
            "insert into servicebroker.services (service_id, database_id, name, queue_id) "
            "values (nextval('servicebroker.system_ids'), $1, $2, $3)",
            (database_id, name, queue_id),
        )


def without_system_services() -> Steps[list[int]]:
    """Databases that an older version has made."""
    rows = yield Statement(
        "select database_id from servicebroker.databases d where not exists (select from servicebroker.services s "
        "where s.database_id = d.database_id and s.service_id < $1)",
        (names.FIRST_USER_ID,),
    )
    return [database_id for (database_id,) in rows]


def find_database(name: str) -> Steps[int]:
    """The id of a database, by name without regard to case.

    Raises:
        BrokerError: 911 when there is none.
    """
    rows = yield Statement(
        "select database_id from servicebroker.databases where lower(name) = lower($1)",
        (names.checked("database", name),),
    )
    if not rows:
        raise BrokerError(911, name, hint="Create it with instance.database(name, create=True).")
    return int(rows[0][0])
