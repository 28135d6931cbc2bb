"""Budgets of peers: the limits of each peer do not depend on the others."""

from __future__ import annotations

import pytest

from servicebroker.protocol.budgets import (
    DEFAULT,
    HOUR_S,
    MAX_RECENT,
    REQUEST_PERIOD_S,
    UNANSWERED_PERIOD_S,
    Budget,
    Budgets,
    RouteRequests,
    UnansweredAddresses,
    over_budget,
)
from servicebroker.protocol.routing import Address

SHOP, MALLORY = "certificate shop", "certificate mallory"
SMALL_BUDGETS = Budgets(Budget(addresses=3, route_requests=60))


def address(number: int) -> Address:
    return Address(f"host{number}", 4022)


def test_a_peer_has_the_default_budget_unless_another_is_set() -> None:
    budgets = Budgets()
    assert budgets.of(SHOP) == DEFAULT
    budgets.apply({SHOP: {"openings": 7}})
    assert (budgets.of(SHOP), budgets.of(MALLORY)) == (DEFAULT._replace(openings=7), DEFAULT)
    budgets.apply({})
    assert budgets.of(SHOP) == DEFAULT


@pytest.mark.parametrize("resource", Budget._fields)
def test_the_event_over_budget_names_the_resource_and_the_amount(resource: str) -> None:
    event = over_budget(resource, 12_345)
    assert (event.number, resource.replace("_", " ") in event.text, "12,345" in event.text) == (10928, True, True)


def test_the_unanswered_addresses_of_a_peer_are_limited() -> None:
    unanswered = UnansweredAddresses(SMALL_BUDGETS)
    assert [unanswered.may_connect(MALLORY, address(number), 0.0) for number in range(5)] == [True] * 3 + [False] * 2
    assert unanswered.may_connect(MALLORY, address(0), 1.0)  # again
    assert unanswered.may_connect(SHOP, address(4), 1.0)
    unanswered.reached(address(1))
    assert unanswered.may_connect(MALLORY, address(4), 1.0)
    assert not unanswered.may_connect(MALLORY, address(5), UNANSWERED_PERIOD_S - 0.1)
    assert unanswered.may_connect(MALLORY, address(5), UNANSWERED_PERIOD_S)


def test_answered_addresses_use_no_memory() -> None:
    unanswered = UnansweredAddresses(SMALL_BUDGETS)
    for number in range(100):
        assert unanswered.may_connect(SHOP, address(number), 0.0)
        unanswered.reached(address(number))
    assert unanswered._since == {}


def test_the_budget_of_route_requests_refills_within_an_hour() -> None:
    requests = RouteRequests(SMALL_BUDGETS)
    assert [requests.may_ask(MALLORY, number, 0.0) for number in range(61)] == [True] * 60 + [False]
    assert requests.may_ask(SHOP, "a", 0.0)
    assert not requests.may_ask(MALLORY, "b", HOUR_S / 60 - 1)
    assert [requests.may_ask(MALLORY, text, HOUR_S / 60 + 1) for text in "cd"] == [True, False]
    asked = [requests.may_ask(SHOP, f"at {second}", float(second)) for second in range(1, 2 * int(HOUR_S), 10)]
    assert sum(asked) == 178  # 59 at once, then 1 a minute


def test_a_route_request_counts_once_while_it_is_pending() -> None:
    requests = RouteRequests(Budgets(Budget(route_requests=2)))
    for now in (0.0, 10.0, REQUEST_PERIOD_S - 1):
        assert requests.may_ask(SHOP, "stock", now)
    assert requests.may_ask(SHOP, "stock", REQUEST_PERIOD_S)
    assert not requests.may_ask(SHOP, "other", REQUEST_PERIOD_S)
    assert requests.may_ask(MALLORY, "stock", REQUEST_PERIOD_S)  # another request for it is pending


def test_each_partition_gets_its_part_of_the_budget_and_at_least_one() -> None:
    unanswered = UnansweredAddresses(SMALL_BUDGETS)
    for partitions in (3, 4):
        unanswered.shares = partitions
        unanswered._since.clear()
        assert [unanswered.may_connect(SHOP, address(number), 0.0) for number in range(2)] == [True, False]


def test_the_memory_of_pending_route_requests_is_bounded() -> None:
    requests = RouteRequests(Budgets(Budget(route_requests=10**6)))
    for number in range(MAX_RECENT + 10):
        assert requests.may_ask(SHOP, number, 0.0)
    assert len(requests._recent) == MAX_RECENT
