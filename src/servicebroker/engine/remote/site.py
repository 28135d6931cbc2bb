"""What this instance says of itself to routing: which database has which service, and whose routes count.

And where messages go that no endpoint of this instance is for, and that begin none here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.catalog import Catalog, find_routes
from servicebroker.engine.remote.missing_routes import ASK_AGAIN, ask
from servicebroker.model.errors import BrokerError
from servicebroker.protocol.envelope import Header
from servicebroker.protocol.routing import Address, Ask, Conversation, Decision, RoutingTable, Site, classify
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


class Here(NamedTuple):
    """What routing has to know of the network, beside what the tables say; `forward_size` is in MB."""

    addresses: frozenset[Address] = frozenset()
    forwards: bool = False
    unreachable: frozenset[Address] = frozenset()
    forward_size: int = 0


class Database(NamedTuple):
    """A broker database; `asked` are services for which a request for a route is pending."""

    database_id: int
    routes_version: int
    broker: str
    is_enabled: bool
    is_msdb: bool
    asked: tuple[str, ...]


class Home(NamedTuple):
    """A service of this instance. `contract_id` is that of the contract asked for; `accepted`: the service takes it.

    `is_bound`: the database that asks has a remote service binding for a service of that name.
    """

    service_id: int
    queue_id: int
    database_id: int
    is_open: bool
    contract_id: int | None
    accepted: bool
    is_bound: bool


class Located(NamedTuple):
    """What `find_site` has found; `homes` by service name and broker identifier, `chance` from 0 up to 1."""

    site: Site
    databases: Sequence[Database]
    homes: Mapping[tuple[str, str], Home]
    chance: float

    def find(self, database_id: int) -> Database:
        """That database.

        Raises:
            BrokerError: 8442 when it was dropped.
        """
        for one in self.databases:
            if one.database_id == database_id:
                return one
        raise BrokerError(8442)

    @property
    def msdb(self) -> Database | None:
        """The database whose routes decide about what arrives from outside."""
        return next((one for one in self.databases if one.is_msdb), None)

    def site_of(self, database: Database | None) -> Site:
        """What the instance says of itself to conversations that the routes of this database decide about."""
        return replace(self.site, asked=frozenset(database.asked)) if database and database.asked else self.site

    def routes(self, catalog: Catalog, database: Database | None) -> Steps[RoutingTable]:
        """The routes of a database."""
        if database is None:
            return RoutingTable(())
        return (yield from find_routes(catalog, database.database_id, database.routes_version))


def find_instance() -> Steps[UUID]:
    """The identifier of this instance."""
    rows = yield SQL("find_instance")
    return UUID(str(rows[0][0]))


def find_site(
    services: Sequence[str],
    now: datetime,
    here: Here | None = None,
    contract: str | None = None,
    database_id: int | None = None,
) -> Steps[Located]:
    """Which databases have these services, and what routing asks besides. One statement.

    Without `here` the stored endpoint says where the instance is reached. `database_id` is that of the database that
    asks, where its remote service bindings matter.
    """
    rows = yield SQL("find_site", (list(services), contract, now - ASK_AGAIN, database_id))
    databases = list({row[0]: Database._make([*row[:5], tuple(row[5])]) for row in rows}.values())
    homes = {(row[10], row[2]): Home(*row[11:]) for row in rows if row[10] is not None and row[3]}
    brokers: dict[str, list[str]] = {}
    for service, broker in homes:
        brokers.setdefault(service, []).append(broker)
    enabled = frozenset(one.broker for one in databases if one.is_enabled)
    chance, host, port, forwards = rows[0][6:10] if rows else (0.0, "", None, False)
    if here is None:
        here = Here() if port is None else Here(own_addresses(host, port), forwards)
    site = Site(brokers, enabled, here.addresses, here.forwards, unreachable=here.unreachable)
    return Located(site, databases, homes, chance)


class Picking:
    """Picks out of one number from 0 to 1: each uses up its share of it. `was_asked`: there was something to choose."""

    def __init__(self, chance: float) -> None:
        self._chance = chance
        self.was_asked = False

    def __call__(self, count: int) -> int:
        """Return a number from 0 up to and without `count`."""
        self.was_asked = True
        self._chance *= count
        found = min(int(self._chance), count - 1)
        self._chance -= found
        return found


def own_addresses(host: str, port: int) -> frozenset[Address]:
    """Where routes mean a listener at `host` ('' for every address of the machine) and `port`."""
    hosts = (host,) if host else ("localhost", "127.0.0.1", "::1", os.uname().nodename)
    return frozenset(Address(one.lower(), port) for one in hosts)


def route_arrivals(catalog: Catalog, headers: Sequence[Header], here: Here, now: datetime) -> Steps[list[Decision]]:
    """What the routes of msdb say of each of these messages from outside.

    Chance is the conversation's identifier: all of its messages take the same way.
    """
    located = yield from find_site(list({header.to_service for header in headers}), now, here)
    decisions = passages(headers, located, (yield from located.routes(catalog, located.msdb)), now)
    for decision in decisions:
        if isinstance(decision.destination, Ask) and located.msdb is not None:
            yield from ask(located.msdb.database_id, decision.destination, now)
    return decisions


def passages(headers: Sequence[Header], located: Located, outside: RoutingTable, now: datetime) -> list[Decision]:
    """Where each of these messages from outside goes, by the routes of msdb."""
    site = located.site_of(located.msdb)
    decisions = []
    for header in headers:
        broker = None if header.to_broker is None else str(header.to_broker)
        conversation = Conversation(header.to_service, broker, None, not header.is_from_initiator)
        chance = header.conversation_id.int % 2**53 / 2**53
        decisions.append(classify(conversation, RoutingTable(()), outside, site, now, Picking(chance)))
    return decisions
