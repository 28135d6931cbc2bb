"""The topology of this instance, for routing: its databases, their services, and the instance's addresses.

Also routes messages from other instances that belong to no endpoint of this instance (`route_arrivals`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, find_routes
from servicebroker.engine.remote.missing_routes import ROUTE_REQUEST_RETRY, ask
from servicebroker.model.errors import BrokerError
from servicebroker.protocol.envelope import Header
from servicebroker.protocol.routing import Address, Ask, Conversation, Decision, RoutingTable, Site, classify
from servicebroker.store.rows import build_row
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


class LocalInstance(NamedTuple):
    """Network facts for routing that are in no table. `forward_size` is in MB.

    Attributes:
        addresses: the addresses by which routes mean this instance.
        forwards: message forwarding is on.
        unreachable: the addresses to which no connection can be made now.
    """

    addresses: frozenset[Address] = frozenset()
    forwards: bool = False
    unreachable: frozenset[Address] = frozenset()
    forward_size: int = 0


class Database(NamedTuple):
    """A broker database. `asked` are the services whose route request is pending, or was answered just now."""

    database_id: int
    routes_version: int
    broker: str
    is_enabled: bool
    is_msdb: bool
    asked: Sequence[str]


class LocalService(NamedTuple):
    """A service of this instance.

    Attributes:
        is_open: its queue is on.
        contract_id: the id of the conversation's contract in the service's database; None if it has no such contract.
        accepted: the service can be a target under that contract.
        is_bound: the initiator's database has a remote service binding for the service's name.
        catalog_version: that of the service's queue.
    """

    service_id: int
    queue_id: int
    database_id: int
    is_open: bool
    contract_id: int | None
    accepted: bool
    is_bound: bool
    catalog_version: int = 0


class _TopologyRow(NamedTuple):
    """A row of `find_topology`: a database, the stored endpoint, and one of the services, if the database has any."""

    database: Database
    chance: float
    host: str
    port: int | None
    forwards: bool
    service: str | None
    home: LocalService | None


class LocalTopology(NamedTuple):
    """The result of `find_topology`.

    Attributes:
        site: the facts that `classify` of protocol/routing.py needs.
        databases: all databases.
        homes: the services, by name and broker identifier of their database.
        chance: a random number from 0 up to 1.
    """

    site: Site
    databases: Sequence[Database]
    homes: Mapping[tuple[str, str], LocalService]
    chance: float

    def find(self, database_id: int) -> Database:
        """Return the database of that id.

        Raises:
            BrokerError: 8442 the database was dropped.
        """
        for database in self.databases:
            if database.database_id == database_id:
                return database
        raise BrokerError(8442)

    @property
    def msdb(self) -> Database | None:
        """The database whose routes apply to messages from other instances."""
        return next((database for database in self.databases if database.is_msdb), None)

    def site_of(self, database: Database | None) -> Site:
        """Return the site for conversations that are routed by the routes of this database."""
        return replace(self.site, asked=frozenset(database.asked)) if database and database.asked else self.site

    def routes(self, catalog: Catalog, database: Database | None) -> Steps[RoutingTable]:
        """Return the routes of a database."""
        if database is None:
            return RoutingTable(())
        return (yield from find_routes(catalog, database.database_id, database.routes_version))


def find_instance() -> Steps[UUID]:
    """Return the identifier of this instance."""
    rows = yield SQL("find_instance")
    return UUID(str(rows[0][0]))


def find_topology(
    services: Sequence[str],
    now: datetime,
    here: LocalInstance | None = None,
    contract: str | None = None,
    database_id: int | None = None,
) -> Steps[LocalTopology]:
    """Find the databases with these services, and the other facts that routing needs, in one statement.

    Args:
        services: the names of the services.
        now: the server's time.
        here: the network facts of this instance; without it the stored endpoint determines the addresses.
        contract: the contract of the conversation, if the services have to be checked for it.
        database_id: the initiator's database, if its remote service bindings matter.
    """
    rows = yield SQL("find_topology", (list(services), contract, now - ROUTE_REQUEST_RETRY, database_id))
    topology = [build_row(_TopologyRow, row) for row in rows]
    databases = list({row.database.database_id: row.database for row in topology}.values())
    homes = {
        (row.service, row.database.broker): row.home
        for row in topology
        if row.service is not None and row.home is not None and row.database.is_enabled
    }
    brokers: dict[str, list[str]] = {}
    for service, broker in homes:
        brokers.setdefault(service, []).append(broker)
    enabled = frozenset(database.broker for database in databases if database.is_enabled)
    first = topology[0] if topology else None
    if here is None:
        here = LocalInstance()
        if first is not None and first.port is not None:
            here = LocalInstance(own_addresses(first.host, first.port), first.forwards)
    site = Site(brokers, enabled, here.addresses, here.forwards, unreachable=here.unreachable)
    return LocalTopology(site, databases, homes, first.chance if first else 0.0)


class ChancePick:
    """Makes random choices out of one number from 0 up to 1, each from the digits that earlier choices have left.

    `was_asked`: a choice was made.
    """

    def __init__(self, chance: float) -> None:
        self._chance = chance
        self.was_asked = False

    def __call__(self, count: int) -> int:
        """Return a number from 0 up to and without `count`."""
        self.was_asked = True
        self._chance *= count
        index = min(int(self._chance), count - 1)
        self._chance -= index
        return index


class Router:
    """Routes conversations by a fixed set of routes at a fixed time.

    Many conversations have equal names. If routing needs no random choice, the decision is cached.
    """

    def __init__(self, own: RoutingTable, outside: RoutingTable, site: Site, now: datetime) -> None:
        self._own = own
        self._outside = outside
        self._site = site
        self._now = now
        self._decisions: dict[Conversation, Decision] = {}

    def decide(self, conversation: Conversation, conversation_id: UUID) -> Decision:
        """Return the routing decision. The identifier replaces random choices: equal calls return equal decisions."""
        known = self._decisions.get(conversation)
        if known is not None:
            return known
        pick = ChancePick(conversation_id.int % 2**53 / 2**53)
        decision = classify(conversation, self._own, self._outside, self._site, self._now, pick)
        if not pick.was_asked:
            self._decisions[conversation] = decision
        return decision


def own_addresses(host: str, port: int) -> frozenset[Address]:
    """Return the addresses by which routes mean a listener at `host` ('' for all interfaces) and `port`."""
    hosts = (host,) if host else ("localhost", "127.0.0.1", "::1", os.uname().nodename)
    return frozenset(Address(host.lower(), port) for host in hosts)


def route_arrivals(
    catalog: Catalog,
    headers: Sequence[Header],
    here: LocalInstance,
    now: datetime,
    may_ask: Callable[[int, Ask], bool],
) -> Steps[list[Decision]]:
    """Return the routing decision for each of these messages from other instances, by the routes of msdb.

    The conversation's identifier replaces random choices, so all its messages take the same route. A missing route is
    requested from the dynamic routing service if `may_ask` allows it for the message of that index.
    """
    located = yield from find_topology(list({header.to_service for header in headers}), now, here)
    decisions = route_headers(headers, located, (yield from located.routes(catalog, located.msdb)), now)
    for place, decision in enumerate(decisions):
        missing = decision.destination
        if isinstance(missing, Ask) and located.msdb is not None and may_ask(place, missing):
            yield from ask(located.msdb.database_id, missing, now)
    return decisions


def route_headers(
    headers: Sequence[Header], located: LocalTopology, outside: RoutingTable, now: datetime
) -> list[Decision]:
    """Return the routing decision for each of these messages from other instances, by the routes of msdb."""
    router = Router(RoutingTable(()), outside, located.site_of(located.msdb), now)
    decisions = []
    for header in headers:
        broker = None if header.to_broker is None else str(header.to_broker)
        conversation = Conversation(header.to_service, broker, None, not header.is_from_initiator)
        decisions.append(router.decide(conversation, header.conversation_id))
    return decisions
