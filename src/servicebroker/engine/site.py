"""What this instance says of itself to routing: which database has which service, and whose routes count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from servicebroker.engine.catalog import Catalog, find_routes
from servicebroker.protocol.routing import Address, Pick, RoutingTable, Site
from servicebroker.store.statements import Statement, Steps


class Here(NamedTuple):
    """What routing has to know of this process and the network, beside what the tables say."""

    addresses: frozenset[Address] = frozenset()
    forwards: bool = False
    unreachable: frozenset[Address] = frozenset()


NOWHERE = Here()


class Database(NamedTuple):
    """A broker database: its number, the version of its routes, and its broker identifier."""

    database_id: int
    routes_version: int
    broker: str
    is_enabled: bool
    is_msdb: bool


class Home(NamedTuple):
    """A service of this instance. `contract_id` is that of the contract asked for; `accepted`: the service takes it."""

    service_id: int
    queue_id: int
    database_id: int
    is_open: bool
    contract_id: int | None
    accepted: bool


class Located(NamedTuple):
    """What `find_site` has found; `homes` by service name and broker identifier, `chance` from 0 up to 1."""

    site: Site
    databases: Sequence[Database]
    homes: Mapping[tuple[str, str], Home]
    chance: float

    def broker(self, database_id: int) -> str:
        """The broker identifier of a database."""
        return next(one.broker for one in self.databases if one.database_id == database_id)

    def routes(self, catalog: Catalog, database_id: int) -> Steps[RoutingTable]:
        """The routes of a database."""
        one = next(one for one in self.databases if one.database_id == database_id)
        return (yield from find_routes(catalog, database_id, one.routes_version))

    def outside(self, catalog: Catalog) -> Steps[RoutingTable]:
        """The routes of msdb, for what arrives from outside."""
        for one in self.databases:
            if one.is_msdb:
                return (yield from find_routes(catalog, one.database_id, one.routes_version))
        return RoutingTable(())


def find_site(services: Sequence[str], here: Here = NOWHERE, contract: str | None = None) -> Steps[Located]:
    """Which databases have these services, and what routing asks besides. One statement."""
    rows = yield Statement(
        "select d.database_id, d.routes_version, d.service_broker_guid::text, d.is_broker_enabled, "
        "lower(d.name) = 'msdb', random(), s.name, s.service_id, s.queue_id, s.database_id, q.is_enqueue_enabled, "
        "c.service_contract_id, u.service_id is not null "
        "from servicebroker.databases d "
        "left join (servicebroker.services s join servicebroker.queues q on q.queue_id = s.queue_id) "
        "  on s.database_id = d.database_id and s.name = any ($1) "
        "left join servicebroker.service_contracts c on c.database_id = s.database_id and c.name = $2 "
        "left join servicebroker.service_contract_usages u "
        "  on u.service_id = s.service_id and u.service_contract_id = c.service_contract_id",
        (list(services), contract),
    )
    databases = list({row[0]: Database(*row[:5]) for row in rows}.values())
    homes = {(row[6], row[2]): Home(*row[7:]) for row in rows if row[6] is not None and row[3]}
    brokers: dict[str, list[str]] = {}
    for service, broker in homes:
        brokers.setdefault(service, []).append(broker)
    enabled = frozenset(one.broker for one in databases if one.is_enabled)
    # a dynamic routing service is not asked yet: the routes that are there decide
    site = Site(brokers, enabled, here.addresses, here.forwards, frozenset(services), here.unreachable)
    return Located(site, databases, homes, rows[0][5] if rows else 0.0)


def picking(chance: float) -> Pick:
    """Picks out of one number from 0 to 1: each uses up its share of it."""

    def pick(count: int) -> int:
        nonlocal chance
        chance *= count
        found = min(int(chance), count - 1)
        chance -= found
        return found

    return pick
