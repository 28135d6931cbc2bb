"""Budgets of owners: the share of each, whatever others use."""

from __future__ import annotations

import pytest

from servicebroker.protocol.budgets import (
    DEFAULT,
    HOUR_S,
    MAX_RECENT,
    NAMED_PERIOD_S,
    REQUEST_PERIOD_S,
    Budget,
    Budgets,
    NamedAddresses,
    RouteRequests,
    over_budget,
)
from servicebroker.protocol.routing import Address

SHOP, MALLORY = "certificate shop", "certificate mallory"
SMALL_BUDGETS = Budgets(Budget(addresses=3, route_requests=60))


def address(number: int) -> Address:
    return Address(f"host{number}", 4022)


def test_an_owner_has_the_default_until_something_else_is_set() -> None:
    budgets = Budgets()
    assert budgets.of(SHOP) == DEFAULT
    budgets.apply({SHOP: {"openings": 7}})
    assert (budgets.of(SHOP), budgets.of(MALLORY)) == (DEFAULT._replace(openings=7), DEFAULT)
    budgets.apply({})
    assert budgets.of(SHOP) == DEFAULT


@pytest.mark.parametrize("resource", Budget._fields)
def test_what_is_beyond_a_budget_names_the_resource_and_the_amount(resource: str) -> None:
    event = over_budget(resource, 12_345)
    assert (event.number, resource.replace("_", " ") in event.text, "12,345" in event.text) == (10928, True, True)


def test_an_owner_names_so_many_addresses_where_nobody_answers() -> None:
    named = NamedAddresses(SMALL_BUDGETS)
    assert [named.may_ask(MALLORY, address(number), 0.0) for number in range(5)] == [True] * 3 + [False] * 2
    assert named.may_ask(MALLORY, address(0), 1.0)  # again
    assert named.may_ask(SHOP, address(4), 1.0)
    named.reached(address(1))
    assert named.may_ask(MALLORY, address(4), 1.0)
    assert not named.may_ask(MALLORY, address(5), NAMED_PERIOD_S - 0.1)
    assert named.may_ask(MALLORY, address(5), NAMED_PERIOD_S)


def test_answered_addresses_leave_nothing_behind() -> None:
    named = NamedAddresses(SMALL_BUDGETS)
    for number in range(100):
        assert named.may_ask(SHOP, address(number), 0.0)
        named.reached(address(number))
    assert named._since == {}


def test_route_requests_come_back_over_the_hour() -> None:
    requests = RouteRequests(SMALL_BUDGETS)
    assert [requests.may_ask(MALLORY, number, 0.0) for number in range(61)] == [True] * 60 + [False]
    assert requests.may_ask(SHOP, "a", 0.0)
    assert not requests.may_ask(MALLORY, "b", HOUR_S / 60 - 1)
    assert [requests.may_ask(MALLORY, text, HOUR_S / 60 + 1) for text in "cd"] == [True, False]


def test_a_route_request_counts_once_while_it_is_pending() -> None:
    requests = RouteRequests(Budgets(Budget(route_requests=2)))
    for now in (0.0, 10.0, REQUEST_PERIOD_S - 1):
        assert requests.may_ask(SHOP, "stock", now)
    assert requests.may_ask(SHOP, "stock", REQUEST_PERIOD_S)
    assert not requests.may_ask(SHOP, "other", REQUEST_PERIOD_S)
    assert requests.may_ask(MALLORY, "stock", REQUEST_PERIOD_S)  # another request for it is pending


def test_shares_divide_budgets_and_memory_is_bounded() -> None:
    named, requests = NamedAddresses(SMALL_BUDGETS), RouteRequests(Budgets(Budget(route_requests=10**6)))
    for named.shares in (3, 4):  # each partition gets at least one
        named._since.clear()
        assert [named.may_ask(SHOP, address(number), 0.0) for number in range(2)] == [True, False]
    for number in range(MAX_RECENT + 10):
        assert requests.may_ask(SHOP, number, 0.0)
    assert len(requests._recent) == MAX_RECENT
