"""CREATE, ALTER and DROP ROUTE (docs/reference/rules.md#routes). Each routes waiting (parked) messages again."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from servicebroker.engine.catalog.alter import renew_routes
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.delivery.transmission import lock_delivery, match_again
from servicebroker.engine.remote.local_topology import find_topology
from servicebroker.engine.remote.mirrored_pairs import find_explanations, forget_unused
from servicebroker.engine.security.authorization import authorize, forget_permissions
from servicebroker.engine.security.authorization import route as route_named
from servicebroker.engine.security.principals import find_owner
from servicebroker.model import names
from servicebroker.model.errors import MAXIMUM_LIFETIME, MINIMUM_LIFETIME, BrokerError
from servicebroker.model.security.permissions import Kind
from servicebroker.model.wording import short_repr
from servicebroker.operations.routes import AlterRoute, CreateRoute, DropRoute
from servicebroker.protocol.explanation import Explanation, explain
from servicebroker.protocol.routing import (
    DYNAMIC_ROUTING_SERVICE,
    LOCAL,
    TRANSPORT,
    Conversation,
    Route,
    parse_address,
)
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


MAXIMUM_TEXT = 256  # characters of an address, a service name and a broker identifier


def create_route(definer: Definer, operation: CreateRoute) -> Steps[list[UUID]]:
    """Insert the route, and route the waiting messages again.

    Returns the conversations that another session has locked: the caller runs `deliver_conversation` for each.
    """
    yield from authorize(definer.user, operation.permission)
    owner = yield from find_owner(definer.user, operation.authorization)
    name, now = names.checked("route", operation.name), definer.clock()
    route = _checked(operation, now)
    yield lock_delivery()
    rows = yield SQL("create_route", (definer.database_id, name, *route[1:], owner))
    if not rows:
        raise BrokerError(2714, name)
    return (yield from _changed(definer, now))


def alter_route(definer: Definer, operation: AlterRoute) -> Steps[list[UUID]]:
    """Change the clauses that the statement names. Returns as `create_route`."""
    database_id, name, now = definer.database_id, operation.name, definer.clock()
    yield from authorize(definer.user, operation.permission, route_named(name))
    yield lock_delivery()
    rows = yield SQL("alter_route.find_routes", (database_id, names.checked("route", name)))
    if not rows:
        raise BrokerError(15151, "alter", "route", name)
    if operation == AlterRoute(name):
        raise BrokerError(402, "WITH", "without a clause", "given at least one")
    service, instance, address, mirror, expires = rows[0]
    merged = CreateRoute(
        name,
        service_name=service if operation.service_name is None else operation.service_name,
        broker_instance=instance if operation.broker_instance is None else operation.broker_instance,
        lifetime=operation.lifetime,
        address=address if operation.address is None else operation.address,
        mirror_address=mirror if operation.mirror_address is None else operation.mirror_address,
    )
    route = _checked(merged, now)
    yield SQL(
        "alter_route.update_routes",
        (
            database_id,
            name,
            route.service,
            route.broker_instance,
            route.expires or expires,
            route.address,
            route.mirror_address,
        ),
    )
    return (yield from _changed(definer, now))


def drop_route(definer: Definer, operation: DropRoute) -> Steps[list[UUID]]:
    """Delete the route. Returns as `create_route`."""
    database_id, name = definer.database_id, operation.name
    yield from authorize(definer.user, operation.permission, route_named(name))
    names.checked("route", name)
    yield lock_delivery()
    rows = yield SQL("drop_route", (database_id, name))
    if not rows:
        raise BrokerError(15151, "drop", "route", name)
    yield forget_permissions(database_id, Kind.ROUTE, rows[0][0])
    return (yield from _changed(definer, definer.clock()))


def explain_route(
    catalog: Catalog,
    database_id: int | None,
    service: str,
    broker_instance: str | UUID | None,
    now: datetime,
) -> Steps[Explanation]:
    """Explain the routing of a conversation that begins in a database, or with None arrives from another instance.

    Raises:
        BrokerError: 1093 an invalid broker identifier, 402 an invalid service name.
    """
    if not isinstance(service, str) or not service or "\0" in service or not names.is_encodable(service):
        raise BrokerError(402, "SERVICE_NAME", short_repr(service), "the name of a service")
    instance = _identifier("", broker_instance)
    topology = yield from find_topology([service], now)
    msdb_routes = yield from topology.routes(catalog, topology.msdb)
    mirrors = yield from find_explanations()
    if database_id is None:
        location = topology.site_of(topology.msdb)
        return explain(Conversation(service, instance), msdb_routes, msdb_routes, location, now, mirrors)
    database = topology.find(database_id)
    table = yield from topology.routes(catalog, database)
    return explain(
        Conversation(service, instance, database.broker), table, msdb_routes, topology.site_of(database), now, mirrors
    )


def _changed(definer: Definer, now: datetime) -> Steps[list[UUID]]:
    """Renew the caches of routes, and route the waiting messages again. Returns as `create_route`."""
    database_id = definer.database_id
    yield renew_routes(database_id)
    yield forget_unused()
    yield SQL(  # so that a missing route can be requested again
        "changed.delete_route_requests", (database_id,)
    )
    return (yield from match_again(definer.catalog, database_id, now))


def _checked(clauses: CreateRoute, now: datetime) -> Route:
    """Check the clauses, and return the route that they describe.

    Raises:
        BrokerError: what the rules refuse.
    """
    name = clauses.name
    service = _text(name, "SERVICE_NAME", clauses.service_name)
    instance = _identifier(name, clauses.broker_instance)
    address = _text(name, "ADDRESS", clauses.address)
    mirror = _text(name, "MIRROR_ADDRESS", clauses.mirror_address)
    if address is None:
        raise BrokerError(9659, "ADDRESS", name)
    if instance is not None and service is None:
        raise BrokerError(9662, name)
    if instance is not None and service == DYNAMIC_ROUTING_SERVICE:
        raise BrokerError(1093, instance, hint=f"A route to {DYNAMIC_ROUTING_SERVICE} may not name a broker instance.")
    if mirror is not None:
        if service is None or instance is None:
            raise BrokerError(9661, name)
        for clause, text in (("ADDRESS", address), ("MIRROR_ADDRESS", mirror)):
            if text.upper() in (LOCAL, TRANSPORT):
                raise BrokerError(9743, clause, name)
    for clause, address_text in (("ADDRESS", address), ("MIRROR_ADDRESS", mirror)):
        if (
            address_text is not None
            and address_text.upper() not in (LOCAL, TRANSPORT)
            and parse_address(address_text) is None
        ):
            raise BrokerError(9744, clause, name, hint="Write TCP://host:port, LOCAL or TRANSPORT.")
    if mirror is not None and parse_address(address) == parse_address(mirror):
        raise BrokerError(9747, name)
    if address.upper() == TRANSPORT and service is not None:
        raise BrokerError(9745, name)
    return Route(name, service, instance, _expiry(name, clauses.lifetime, now), address, mirror)


def _text(name: str, clause: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise BrokerError(402, clause, type(value).__name__, "str")
    if not value:
        raise BrokerError(9659, clause, name)
    if len(value) > MAXIMUM_TEXT:
        raise BrokerError(9660, clause, name, MAXIMUM_TEXT + 1)
    if "\0" in value or not names.is_encodable(value):
        raise BrokerError(402, clause, "a text with a NUL or half of a surrogate pair", "str")
    return value


def _identifier(name: str, value: str | UUID | None) -> str | None:
    """Return a broker identifier in its usual spelling; None without one.

    Raises:
        BrokerError: 1093 it is invalid.
    """
    text = _text(name, "BROKER_INSTANCE", str(value) if isinstance(value, UUID) else value)
    if text is None:
        return None
    try:
        return str(UUID(text))
    except ValueError:
        raise BrokerError(1093, text) from None


def _expiry(name: str, lifetime: object, now: datetime) -> datetime | None:
    if lifetime is None:
        return None
    if not isinstance(lifetime, int) or isinstance(lifetime, bool):
        raise BrokerError(402, "LIFETIME", type(lifetime).__name__, "an int (seconds)")
    if not MINIMUM_LIFETIME <= lifetime <= MAXIMUM_LIFETIME:
        raise BrokerError(9746, name, MINIMUM_LIFETIME, MAXIMUM_LIFETIME)
    return now + timedelta(seconds=lifetime)
