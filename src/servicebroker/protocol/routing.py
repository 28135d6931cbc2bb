"""Routing: which route a conversation takes, and where that leads (docs/reference/rules.md#routing).

Three steps over plain values: find the matching routes, choose one of them, locate the service. Time and chance
are arguments, so the same arguments give the same decision.
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

LOCAL, TRANSPORT = "LOCAL", "TRANSPORT"
DYNAMIC_ROUTING_SERVICE = "SQL/ServiceBroker/BrokerConfiguration"

T = TypeVar("T")
Pick = Callable[[int], int]
"""Chance: a number from 0 up to and without the argument."""


class Address(NamedTuple):
    """The host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"TCP://{host}:{self.port}"


_HOST = r"\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?)"
_ADDRESS = re.compile(rf"tcp://(?:{_HOST}):(?P<port>[0-9]{{1,5}})", re.IGNORECASE)
_ROUTE_ADDRESS = re.compile(rf"tcp://(?:{_HOST})(?::(?P<port>[0-9]{{1,5}}))?/?", re.IGNORECASE)
DEFAULT_PORT = 4022  # of an address without one: what endpoints of brokers usually listen at


@functools.lru_cache(maxsize=4096)
def parse_address(text: str) -> Address | None:
    """Return the address in TCP://host[:port][/], where an IPv6 host stands in brackets; None when it is not one."""
    found = _ROUTE_ADDRESS.fullmatch(text)
    return _address(found) if found else None


def address_of_service(service: str) -> Address | None:
    """The address with which the name of a service begins: what a TRANSPORT route dials."""
    found = _ADDRESS.match(service)
    return _address(found) if found and service[found.end() : found.end() + 1] in ("", "/") else None


def _address(found: re.Match[str]) -> Address | None:
    port = int(found["port"] or DEFAULT_PORT)
    return Address((found["v6"] or found["name"]).lower(), port) if 1 <= port <= 65535 else None


class Route(NamedTuple):
    """A row of sys.routes. None stands for any service, any instance, never expires, no mirror."""

    name: str
    service: str | None
    broker_instance: str | None
    expires: datetime | None
    address: str
    mirror_address: str | None = None


class RoutingTable:
    """The routes of one database, found by service name and broker identifier.

    `is_timeless`: they say the same at any time, since none expires and nobody is asked for routes.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._by_service: dict[str | None, dict[str | None, list[Route]]] = defaultdict(lambda: defaultdict(list))
        for route in self.routes:
            self._by_service[route.service][route.broker_instance].append(route)
        has_no_expiry = all(route.expires is None for route in self.routes)
        self.is_timeless = has_no_expiry and DYNAMIC_ROUTING_SERVICE not in self._by_service

    def of(self, service: str | None) -> Mapping[str | None, Sequence[Route]]:
        """The routes that name this service, by broker identifier."""
        return self._by_service.get(service, {})

    def leads_away(self, service: str, own: frozenset[Address]) -> bool:
        """Return whether routes name the service, and each of them an address that is none of our `own`."""
        named = [route for routes in self.of(service).values() for route in routes]
        addresses = [parse_address(route.mirror_address or route.address) for route in named]
        addresses += [parse_address(route.address) for route in named]
        return bool(named) and not any(address is None or address in own for address in addresses)


class Conversation(NamedTuple):
    """The names in a conversation by which it is routed.

    Attributes:
        service: the name of the service that the message is for.
        broker_instance: the identifier that was named, or learned from the first acknowledgement.
        database: the identifier of the database it began in; None when the message came from outside.
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
        services: for a service name, the identifiers of the databases that have it and whose broker is enabled.
        brokers: the identifiers of all databases whose broker is enabled.
        addresses: where the instance listens.
        forwards: message forwarding is on.
        asked: services whose route the dynamic routing service has been asked for.
        unreachable: addresses that lately could not be reached; new conversations avoid them while others exist.
    """

    services: Mapping[str, Sequence[str]]
    brokers: frozenset[str]
    addresses: frozenset[Address] = frozenset()
    forwards: bool = False
    asked: frozenset[str] = frozenset()
    unreachable: frozenset[Address] = frozenset()

    def homes(self, service: str) -> Sequence[str]:
        """The identifiers of the databases that have a service of this name."""
        return self.services.get(service, ())


class Rule(Enum):
    """The step of the matching process that found the routes."""

    REPLY = "a reply whose broker identifier belongs to this instance"
    SERVICE_AND_INSTANCE = "routes with the service name and the broker identifier"
    SERVICE = "routes with the service name and no broker identifier"
    SERVICE_ANY_INSTANCE = "routes with the service name and some broker identifier"
    DYNAMIC = "a dynamic routing service, which is asked for a route"
    LAST_RESORT = "routes with neither service name nor broker identifier"
    HERE = "a broker identifier was given, and a database of this instance has the service"
    NONE = "no route"


class Local(NamedTuple):
    """Delivered in this instance, to the database of that identifier."""

    broker_instance: str


class Elsewhere(NamedTuple):
    """The decision to send to the broker at an address; of a mirrored pair, to the principal."""

    address: Address
    mirror: Address | None = None

    def leads_to(self, addresses: frozenset[Address]) -> bool:
        """Return whether it is one of these addresses, or half of a pair of which one is."""
        return self.address in addresses or self.mirror in addresses


class Delayed(NamedTuple):
    """Matched again later; `number` is the message that says why (docs/reference/rules.md#transmission-status)."""

    number: int


class Ask(NamedTuple):
    """Matched again once the dynamic routing service has answered."""

    service: str
    broker_instance: str | None


class Refused(NamedTuple):
    """The broker identifier is one of ours, and that database has no such service: an Error of this number."""

    number: int


class Dropped(NamedTuple):
    """A dropped message from outside, which its sender repeats. `number` is the reason."""

    number: int


Destination = Local | Elsewhere | Delayed | Ask | Refused | Dropped


class Decision(NamedTuple):
    """The destination of a message, and the rule and routes that led to it."""

    destination: Destination
    rule: Rule
    matched: tuple[Route, ...] = ()
    chosen: Route | None = None
    through_outside: bool = False  # the route led back to this instance: the routes of msdb decided
    expires: datetime | None = None  # when the first of the routes that led there does


def classify(
    conversation: Conversation, own: RoutingTable, outside: RoutingTable, site: Site, now: datetime, pick: Pick
) -> Decision:
    """Return the destination of a conversation's messages.

    `own` is the table of the database that it began in, `outside` that of msdb, for what comes from elsewhere.
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
    if chosen is None:  # LOCAL, and the service is not here; or TRANSPORT, and its name holds no address
        is_local = any(_is(route, LOCAL) for route in matched)
        if is_local and conversation.broker_instance in site.brokers:
            return Decision(Refused(8490), rule, matched)
        number = 9796 if is_local else 9785
        return Decision(Dropped(number) if arrived else Delayed(number), rule, matched)
    return Decision(_destination(conversation, chosen, site, pick), rule, matched, chosen, expires=chosen.expires)


def match(
    conversation: Conversation, table: RoutingTable, site: Site, now: datetime, pick: Pick
) -> tuple[Rule, tuple[Route, ...]]:
    """Step 1: the first rule that any route fits which has not expired, and those routes."""
    named = table.of(conversation.service)
    if conversation.broker_instance and (found := _valid(named.get(conversation.broker_instance, ()), now)):
        return Rule.SERVICE_AND_INSTANCE, found
    if found := _valid(named.get(None, ()), now):
        return Rule.SERVICE, found
    if conversation.broker_instance is None:
        instances = {key: valid for key, routes in named.items() if key and (valid := _valid(routes, now))}
        if instances:
            return Rule.SERVICE_ANY_INSTANCE, instances[_any(_preferred(instances, site), pick)]
    if conversation.service not in site.asked and asks(conversation.service, table, now):
        return Rule.DYNAMIC, ()
    if found := _valid(table.of(None).get(None, ()), now):
        return Rule.LAST_RESORT, found
    if conversation.broker_instance is not None and site.homes(conversation.service):
        return Rule.HERE, ()
    return Rule.NONE, ()


def choose(conversation: Conversation, matched: Sequence[Route], site: Site, pick: Pick) -> Route | None:
    """Step 2: a mirrored route, else LOCAL when the service is here, else a network address, else TRANSPORT."""
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
    """Every address that a route of these tables names for a service at that broker, also by one that has expired.

    As everywhere, routes for any service count where no valid one is for this.
    """
    found: set[Address | None] = set()
    for table in tables:
        of_service, any_service = table.of(service), table.of(None)
        named = (*of_service.get(broker_instance, ()), *of_service.get(None, ()))
        for route in named if _valid(named, now) else (*named, *any_service.get(None, ())):
            if _is(route, TRANSPORT):
                found.add(address_of_service(service))
            else:
                found |= {parse_address(text) for text in (route.address, route.mirror_address) if text is not None}
    return {address for address in found if address is not None}


def asks(service: str, table: RoutingTable, now: datetime) -> bool:
    """Return whether a dynamic routing service is asked for a route to this service where there is none."""
    routes = table.of(DYNAMIC_ROUTING_SERVICE).values()
    return service != DYNAMIC_ROUTING_SERVICE and any(_valid(some, now) for some in routes)


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
    """Step 3: the database. The own one before the others, of which any."""
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
    """The identifiers that new conversations are spread over: those with an address not known to be unreachable."""
    reachable = [
        instance for instance, routes in instances.items() if any(_is_reachable(route, site) for route in routes)
    ]
    return sorted(reachable or instances)


def _valid(routes: Iterable[Route], now: datetime) -> tuple[Route, ...]:
    return tuple(route for route in routes if route.expires is None or route.expires > now)


def _first(*expiries: datetime | None) -> datetime | None:
    return min((one for one in expiries if one is not None), default=None)


def _is_reachable(route: Route, site: Site) -> bool:
    """Return whether an address can be reached; of a mirrored pair one of both is enough."""
    ways = [parse_address(text) for text in (route.address, route.mirror_address) if text is not None]
    return any(way not in site.unreachable for way in ways)


def _distinct(routes: Sequence[Route]) -> list[Route]:
    """One of each: routes with the same identifier, service name and address count as one."""
    return list({(r.broker_instance, r.service, r.address.lower(), r.mirror_address): r for r in routes}.values())


def _is(route: Route, kind: str) -> bool:
    return route.address.upper() == kind


def _any(choices: Sequence[T], pick: Pick) -> T:
    return choices[pick(len(choices)) if len(choices) > 1 else 0]
