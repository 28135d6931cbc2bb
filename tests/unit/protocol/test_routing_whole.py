"""Every combination of routes, identifiers and sites, compared with a plain second version of the seed's steps."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from servicebroker.protocol.explanation import explain
from servicebroker.protocol.routing import (
    DYNAMIC_ROUTING_SERVICE,
    Address,
    Ask,
    Conversation,
    Delayed,
    Destination,
    Dropped,
    Elsewhere,
    Local,
    Refused,
    Route,
    RoutingTable,
    Site,
    parse_address,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAST = NOW - timedelta(seconds=1)
NAME, DIALLED = "//shop/Stock", "TCP://dialled:4022/stock"
HERE, NEXT, FAR = "here", "next door", "far"  # two databases of this instance, and one elsewhere
HOSTS = [f"TCP://host{n}:4022" for n in range(9)]


def palette(name: str) -> list[Route]:
    """Return routes of every kind, from which the tables are built."""
    return [
        Route("exact", name, FAR, None, HOSTS[0]),
        Route("exact old", name, FAR, PAST, HOSTS[1]),
        Route("exact local", name, HERE, None, "LOCAL"),
        Route("mirrored", name, FAR, None, HOSTS[2], HOSTS[3]),
        Route("named", name, None, None, HOSTS[4]),
        Route("named old", name, None, PAST, HOSTS[1]),
        Route("named local", name, None, None, "Local"),
        Route("other id", name, "other", None, HOSTS[5]),
        Route("other service", name + "x", None, None, HOSTS[6]),
        Route("any", None, None, None, HOSTS[7]),
        Route("any local", None, None, None, "LOCAL"),
        Route("transport", None, None, None, "TRANSPORT"),
        Route("configuration", DYNAMIC_ROUTING_SERVICE, None, None, HOSTS[8]),
        Route("configuration old", DYNAMIC_ROUTING_SERVICE, None, PAST, HOSTS[8]),
    ]


def by_the_seed(conversation: Conversation, routes: Sequence[Route], site: Site) -> set[Destination]:
    """Return all destinations that the seed's steps allow."""
    arrived = conversation.database is None
    if arrived and conversation.from_target and conversation.broker_instance in site.brokers:
        return locating(conversation, None, site)
    valid = [route for route in routes if route.expires is None or route.expires > NOW]
    named = [route for route in valid if route.service == conversation.service]
    if conversation.broker_instance and (
        exact := [r for r in named if r.broker_instance == conversation.broker_instance]
    ):
        return choosing(conversation, exact, site)
    if without := [r for r in named if r.broker_instance is None]:
        return choosing(conversation, without, site)
    if not conversation.broker_instance and named:
        picks = {route.broker_instance for route in named}
        return set().union(
            *(choosing(conversation, [r for r in named if r.broker_instance == pick], site) for pick in picks)
        )
    if any(r.service == DYNAMIC_ROUTING_SERVICE for r in valid) and conversation.service not in site.asked:
        return {Ask(conversation.service, conversation.broker_instance)}
    if last := [r for r in valid if r.service is None and r.broker_instance is None]:
        return choosing(conversation, last, site)
    if conversation.broker_instance and site.homes(conversation.service):
        return locating(conversation, None, site)
    return {waiting(conversation, 9750, site)}


def choosing(conversation: Conversation, routes: Sequence[Route], site: Site) -> set[Destination]:
    mirrored = [route for route in routes if route.mirror_address]
    local = [route for route in routes if route.address.upper() == "LOCAL"]
    network = [route for route in routes if route.address.startswith("TCP") and not route.mirror_address]
    if mirrored:
        return {leaving(conversation, route, site) for route in mirrored}
    if local and site.homes(conversation.service):
        return set().union(*(locating(conversation, route.broker_instance, site) for route in local))
    if network:
        return {leaving(conversation, route, site) for route in network}
    transport = [route for route in routes if route.address == "TRANSPORT"]
    if transport and conversation.service == DIALLED:
        return {leaving(conversation, transport[0], site)}
    if local and conversation.broker_instance in site.brokers:
        return {Refused(8490)}
    return {waiting(conversation, 9796 if local else 9785, site)}


def leaving(conversation: Conversation, route: Route, site: Site) -> Destination:
    if conversation.database is None and not site.forwards:
        return Dropped(9792)
    address = Address("dialled", 4022) if route.address == "TRANSPORT" else parse_address(route.address)
    assert address is not None
    return Elsewhere(address, parse_address(route.mirror_address) if route.mirror_address else None)


def locating(conversation: Conversation, of_route: str | None, site: Site) -> set[Destination]:
    homes, wanted = site.homes(conversation.service), conversation.broker_instance or of_route
    if wanted:
        if wanted in homes:
            return {Local(wanted)}
        return {Refused(8490) if wanted in site.brokers else waiting(conversation, 9795, site)}
    if conversation.database in homes:
        return {Local(str(conversation.database))}
    return {Local(home) for home in homes} or {waiting(conversation, 9796, site)}


def waiting(conversation: Conversation, number: int, site: Site) -> Destination:
    if conversation.database is None:
        return Dropped(number)
    return Delayed(9770 if conversation.service in site.asked else number)


@pytest.mark.feature(110, 111, 112, 113, 114, 117)
@pytest.mark.parametrize(
    ("service", "is_asked", "largest"), [(NAME, False, 3), (NAME, True, 2), (DIALLED, False, 2), (DIALLED, True, 2)]
)
def test_each_table_of_a_few_routes_leads_where_the_rules_say(service: str, is_asked: bool, largest: int) -> None:
    kinds = palette(service)
    tables = [table for size in range(largest + 1) for table in itertools.combinations(kinds, size)]
    places: list[dict[str, list[str]]] = [{}, {service: [HERE]}, {service: [NEXT]}, {service: [HERE, NEXT]}]
    pending = frozenset([service] if is_asked else [])
    count = 0
    for table, homes in itertools.product(tables, places):
        for instance, (database, from_target, forwards) in itertools.product(
            (None, HERE, FAR), ((HERE, False, False), (None, False, False), (None, False, True), (None, True, False))
        ):
            conversation = Conversation(service, instance, database, from_target)
            site = Site(homes, frozenset({HERE, NEXT}), forwards=forwards, asked=pending)
            explanation = explain(conversation, RoutingTable(table), RoutingTable(() if database else table), site, NOW)
            expected = by_the_seed(conversation, table, site)
            assert {decision.destination for decision in explanation.decisions} == expected, (conversation, table, site)
            count += 1
    assert count == len(tables) * 48
