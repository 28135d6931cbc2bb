"""Routing: the route of a conversation, and its destination (docs/reference/rules.md#routing).

Three steps over plain values: find the matching routes, choose one of them, locate the service. Time and random
numbers are arguments, so that equal arguments give equal decisions.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple, TypeVar

from servicebroker.overriding import override

LOCAL, TRANSPORT = "LOCAL", "TRANSPORT"
DYNAMIC_ROUTING_SERVICE = "SQL/ServiceBroker/BrokerConfiguration"

T = TypeVar("T")
Pick = Callable[[int], int]
"""Return a random number from 0 to one below the argument."""


class Address(NamedTuple):
    """The host and port of a broker."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"TCP://{host}:{self.port}"


_HOST = r"\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)"
_ADDRESS = re.compile(rf"tcp://(?:{_HOST}):(?P<port>[0-9]{{1,5}})", re.IGNORECASE)
_ROUTE_ADDRESS = re.compile(rf"tcp://(?:{_HOST})(?::(?P<port>[0-9]{{1,5}}))?/?", re.IGNORECASE)
DEFAULT_PORT = 4022  # the port of an address without one


@functools.lru_cache(maxsize=4096)
def parse_address(text: str) -> Address | None:
    """Return the address in TCP://host[:port][/], with an IPv6 host in brackets; None if the text is none."""
    parsed = _ROUTE_ADDRESS.fullmatch(text)
    return _address(parsed) if parsed else None


def address_of_service(service: str) -> Address | None:
    """Return the address at the beginning of a service's name, to which a TRANSPORT route leads."""
    parsed = _ADDRESS.match(service)
    return _address(parsed) if parsed and service[parsed.end() : parsed.end() + 1] in ("", "/") else None


def _address(parsed: re.Match[str]) -> Address | None:
    port = int(parsed["port"] or DEFAULT_PORT)
    return Address((parsed["v6"] or parsed["name"]).lower(), port) if 1 <= port <= 65535 else None


class Route(NamedTuple):
    """A row of sys.routes. None means: any service, any broker instance, no expiry, no mirror."""

    name: str
    service: str | None
    broker_instance: str | None
    expires: datetime | None
    address: str
    mirror_address: str | None = None


class RoutingTable:
    """The routes of one database, found by service name and broker identifier.

    `is_timeless`: the decision does not depend on the time. No route expires, and there is no dynamic routing service.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._by_service: dict[str | None, dict[str | None, list[Route]]] = defaultdict(lambda: defaultdict(list))
        for route in self.routes:
            self._by_service[route.service][route.broker_instance].append(route)
        has_no_expiry = all(route.expires is None for route in self.routes)
        self.is_timeless = has_no_expiry and DYNAMIC_ROUTING_SERVICE not in self._by_service

    def of(self, service: str | None) -> Mapping[str | None, Sequence[Route]]:
        """Return the routes that name this service, by broker identifier."""
        return self._by_service.get(service, {})

    def leads_away(self, service: str, own: frozenset[Address]) -> bool:
        """Return whether routes name the service, and all of them addresses other than the `own` ones."""
        named = [route for routes in self.of(service).values() for route in routes]
        addresses = [parse_address(route.mirror_address or route.address) for route in named]
        addresses += [parse_address(route.address) for route in named]
        return bool(named) and not any(address is None or address in own for address in addresses)


class Conversation(NamedTuple):
    """The names in a conversation by which it is routed.

    Attributes:
        service: the name of the service that the message is for.
        broker_instance: the identifier from BEGIN DIALOG, or from the first acknowledgement.
        database: the identifier of the database that sends the message; None if a peer sent it.
        from_target: the message goes from the target to the initiator.
    """

    service: str
    broker_instance: str | None = None
    database: str | None = None
    from_target: bool = False


@dataclass(frozen=True)
class Site:
    """The facts about this instance that routing uses.

    Attributes:
        services: service name -> identifiers of the databases with an enabled broker that have it.
        brokers: the identifiers of all databases whose broker is enabled.
        addresses: the addresses at which the instance listens.
        forwards: message forwarding is enabled.
        asked: services for which a request to the dynamic routing service is pending.
        unreachable: addresses that could not be reached lately; new conversations avoid them if there are others.
    """

    services: Mapping[str, Sequence[str]]
    brokers: frozenset[str]
    addresses: frozenset[Address] = frozenset()
    forwards: bool = False
    asked: frozenset[str] = frozenset()
    unreachable: frozenset[Address] = frozenset()

    def homes(self, service: str) -> Sequence[str]:
        """Return the identifiers of the databases that have a service of this name."""
        return self.services.get(service, ())


class Rule(Enum):
    """The rule of the matching process that selected the routes."""

    REPLY = "a reply whose broker identifier belongs to this instance"
    SERVICE_AND_INSTANCE = "routes with the service name and the broker identifier"
    SERVICE = "routes with the service name and no broker identifier"
    SERVICE_ANY_INSTANCE = "routes with the service name and some broker identifier"
    DYNAMIC = "a dynamic routing service, which is asked for a route"
    LAST_RESORT = "routes with neither service name nor broker identifier"
    HERE = "a broker identifier was given, and a database of this instance has the service"
    NONE = "no route"


class Local(NamedTuple):
    """The decision to deliver in this instance, to the database with this identifier."""

    broker_instance: str


class Elsewhere(NamedTuple):
    """The decision to send to the broker at an address; of a mirrored pair, to the principal."""

    address: Address
    mirror: Address | None = None

    def leads_to(self, addresses: frozenset[Address]) -> bool:
        """Return whether one of these addresses is the address or the mirror."""
        return self.address in addresses or self.mirror in addresses


class Delayed(NamedTuple):
    """The decision to match again later. `number`: the reason (docs/reference/rules.md#transmission-status)."""

    number: int


class Ask(NamedTuple):
    """The decision to ask the dynamic routing service, and to match again after its answer."""

    service: str
    broker_instance: str | None


class Refused(NamedTuple):
    """The decision to fail with an Error: the broker identifier belongs to a local database without such a service."""

    number: int


class Dropped(NamedTuple):
    """The decision to drop a message of a peer, which repeats it. `number` is the reason."""

    number: int


Destination = Local | Elsewhere | Delayed | Ask | Refused | Dropped


class Decision(NamedTuple):
    """The destination of a message, and the rule and routes that led to it."""

    destination: Destination
    rule: Rule
    matched: tuple[Route, ...] = ()
    chosen: Route | None = None
    through_outside: bool = False  # the route led to this instance itself, so the routes of msdb decided
    expires: datetime | None = None  # the first expiry of the routes that were used


def classify(
    conversation: Conversation, own: RoutingTable, outside: RoutingTable, site: Site, now: datetime, pick: Pick
) -> Decision:
    """Return the destination of a conversation's messages.

    `own`: the routes of the sending database. `outside`: those of msdb, for messages of peers.
    """
    if conversation.database is None:
        return _classify(conversation, outside, site, now, pick)
    decision = _while_asked(_classify(conversation, own, site, now, pick), conversation, site)
    if isinstance(decision.destination, Elsewhere) and decision.destination.leads_to(site.addresses):
        arrived = _classify(conversation._replace(database=None), outside, site, now, pick)
        return arrived._replace(through_outside=True, expires=_first(decision.expires, arrived.expires))
    return decision


def _while_asked(decision: Decision, conversation: Conversation, site: Site) -> Decision:
    """Give a delayed message the reason that a request for its route is pending."""
    if isinstance(decision.destination, Delayed) and conversation.service in site.asked:
        return decision._replace(destination=Delayed(9770))
    return decision


def _classify(conversation: Conversation, table: RoutingTable, site: Site, now: datetime, pick: Pick) -> Decision:
    arrived = conversation.database is None
    if arrived and conversation.from_target and conversation.broker_instance in site.brokers:
        return Decision(_locate(conversation, None, site, pick), Rule.REPLY)
    rule, matched = match(conversation, table, site, now, pick)
    if rule is Rule.DYNAMIC:
        return Decision(Ask(conversation.service, conversation.broker_instance), rule)
    if rule is Rule.HERE:
        return Decision(_locate(conversation, None, site, pick), rule)
    if rule is Rule.NONE:
        return Decision(Dropped(9750) if arrived else Delayed(9750), rule)
    chosen = choose(conversation, matched, site, pick)
    if chosen is None:  # LOCAL without the service here, or TRANSPORT without an address in its name
        is_local = any(_is(route, LOCAL) for route in matched)
        if is_local and conversation.broker_instance in site.brokers:
            return Decision(Refused(8490), rule, matched)
        number = 9796 if is_local else 9785
        return Decision(Dropped(number) if arrived else Delayed(number), rule, matched)
    return Decision(_destination(conversation, chosen, site, pick), rule, matched, chosen, expires=chosen.expires)


def match(
    conversation: Conversation, table: RoutingTable, site: Site, now: datetime, pick: Pick
) -> tuple[Rule, tuple[Route, ...]]:
    """Step 1: return the first rule with a valid (unexpired) route, and its valid routes."""
    named = table.of(conversation.service)
    if conversation.broker_instance and (matching := _valid(named.get(conversation.broker_instance, ()), now)):
        return Rule.SERVICE_AND_INSTANCE, matching
    if matching := _valid(named.get(None, ()), now):
        return Rule.SERVICE, matching
    if conversation.broker_instance is None:
        instances = {key: valid for key, routes in named.items() if key and (valid := _valid(routes, now))}
        if instances:
            return Rule.SERVICE_ANY_INSTANCE, instances[_any(_preferred(instances, site), pick)]
    if conversation.service not in site.asked and asks(conversation.service, table, now):
        return Rule.DYNAMIC, ()
    if matching := _valid(table.of(None).get(None, ()), now):
        return Rule.LAST_RESORT, matching
    if conversation.broker_instance is not None and site.homes(conversation.service):
        return Rule.HERE, ()
    return Rule.NONE, ()


def choose(conversation: Conversation, matched: Sequence[Route], site: Site, pick: Pick) -> Route | None:
    """Step 2: choose a mirrored route, else LOCAL if the service is local, else a network address, else TRANSPORT."""
    mirrored = [route for route in matched if route.mirror_address is not None]
    if mirrored:
        return _any(_distinct(mirrored), pick)
    local = [route for route in matched if _is(route, LOCAL)]
    if local and site.homes(conversation.service):
        return _any(_distinct(local), pick)
    network = [route for route in matched if parse_address(route.address)]
    if network:
        reachable = [route for route in network if _is_reachable(route, site)]
        return _any(_distinct(reachable or network), pick)
    transport = [route for route in matched if _is(route, TRANSPORT)]
    return _any(transport, pick) if transport and address_of_service(conversation.service) else None


def ways(service: str, broker_instance: str, tables: Iterable[RoutingTable], now: datetime) -> set[Address]:
    """Return every address that routes of these tables name for a service at a broker, even in expired routes.

    Routes for any service count only if no valid route names this service.
    """
    addresses: set[Address | None] = set()
    for table in tables:
        of_service, any_service = table.of(service), table.of(None)
        named = (*of_service.get(broker_instance, ()), *of_service.get(None, ()))
        for route in named if _valid(named, now) else (*named, *any_service.get(None, ())):
            if _is(route, TRANSPORT):
                addresses.add(address_of_service(service))
            else:
                addresses |= {parse_address(text) for text in (route.address, route.mirror_address) if text is not None}
    return {address for address in addresses if address is not None}


def asks(service: str, table: RoutingTable, now: datetime) -> bool:
    """Return whether a dynamic routing service is asked for a missing route to this service."""
    routes = table.of(DYNAMIC_ROUTING_SERVICE).values()
    return service != DYNAMIC_ROUTING_SERVICE and any(_valid(same_broker, now) for same_broker in routes)


def _destination(conversation: Conversation, chosen: Route, site: Site, pick: Pick) -> Destination:
    if _is(chosen, LOCAL):
        return _locate(conversation, chosen, site, pick)
    if conversation.database is None and not site.forwards:
        return Dropped(9792)
    address = address_of_service(conversation.service) if _is(chosen, TRANSPORT) else parse_address(chosen.address)
    if address is None:
        return Delayed(9785)
    return Elsewhere(address, parse_address(chosen.mirror_address) if chosen.mirror_address else None)


def _locate(conversation: Conversation, chosen: Route | None, site: Site, pick: Pick) -> Destination:
    """Step 3: choose the database that has the service: the sending one first, else any."""
    homes = site.homes(conversation.service)
    wanted = conversation.broker_instance or (chosen.broker_instance if chosen else None)
    if wanted is not None:
        if wanted in homes:
            return Local(wanted)
        if wanted in site.brokers:
            return Refused(8490)
        return Dropped(9795) if conversation.database is None else Delayed(9795)
    if conversation.database in homes:
        return Local(str(conversation.database))
    return Local(_any(sorted(homes), pick))


def _preferred(instances: Mapping[str, Sequence[Route]], site: Site) -> list[str]:
    """Return the identifiers for new conversations: those with an address that is not known to be unreachable."""
    reachable = [
        instance for instance, routes in instances.items() if any(_is_reachable(route, site) for route in routes)
    ]
    return sorted(reachable or instances)


def _valid(routes: Iterable[Route], now: datetime) -> tuple[Route, ...]:
    return tuple(route for route in routes if route.expires is None or route.expires > now)


def _first(*expiries: datetime | None) -> datetime | None:
    return min((expiry for expiry in expiries if expiry is not None), default=None)


def _is_reachable(route: Route, site: Site) -> bool:
    """Return whether an address is not known to be unreachable. Of a mirrored pair, one address is enough."""
    addresses = [parse_address(text) for text in (route.address, route.mirror_address) if text is not None]
    return any(address not in site.unreachable for address in addresses)


def _distinct(routes: Sequence[Route]) -> list[Route]:
    """Return each route once: routes with equal broker identifier, service name and addresses are equal."""
    return list({(r.broker_instance, r.service, r.address.lower(), r.mirror_address): r for r in routes}.values())


def _is(route: Route, kind: str) -> bool:
    return route.address.upper() == kind


def _any(choices: Sequence[T], pick: Pick) -> T:
    return choices[pick(len(choices)) if len(choices) > 1 else 0]
