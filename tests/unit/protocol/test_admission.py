"""Admission of connections that have not authenticated: which keep their places."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from servicebroker.protocol.admission import Admission, SlotLimits, network_of


def expect_keys(admission: Admission[str], host: str, *keys: str) -> list[str | None]:
    return [admission.expect(key, host, 5.0) for key in keys]


def test_the_oldest_connection_of_a_full_network_is_closed() -> None:
    admission: Admission[str] = Admission(SlotLimits(in_all=10, of_network=2))
    assert expect_keys(admission, "10.0.0.1", "a", "b", "c", "d") == [None, None, "a", "b"]
    assert expect_keys(admission, "10.0.0.2", "e") == [None]
    assert len(admission) == 3


def test_the_oldest_connection_of_the_largest_network_is_closed() -> None:
    admission: Admission[str] = Admission(SlotLimits(in_all=6, of_network=4))
    expect_keys(admission, "10.0.0.9", "honest")
    expect_keys(admission, "10.0.0.1", "a", "b", "c", "d")
    expect_keys(admission, "10.0.0.2", "e")
    assert expect_keys(admission, "10.0.0.3", "f", "g", "h") == ["a", "b", "c"]
    assert admission.oldest() == "f"  # the three newest of its network
    admission.leave("f")
    assert admission.oldest() == "g"
    admission.leave("g")
    assert admission.oldest() == "honest"  # one of each: the oldest


def test_authenticated_connections_are_not_counted() -> None:
    admission: Admission[str] = Admission(SlotLimits(in_all=2, of_network=1))
    for number in range(10):
        assert expect_keys(admission, "10.0.0.1", str(number)) == [None]
        admission.leave(str(number))
    admission.leave("0")
    assert admission.oldest() is None


def test_each_step_has_its_deadline_and_the_place_its_age() -> None:
    admission: Admission[str] = Admission(SlotLimits(in_all=10, of_network=2))
    expect_keys(admission, "10.0.0.1", "a", "b")
    assert admission.overdue(4.9) == []
    assert admission.expect("a", "10.0.0.1", 8.0) is None
    assert admission.overdue(5.0) == ["b"]
    assert admission.overdue(8.0) == ["a", "b"]
    assert expect_keys(admission, "10.0.0.1", "c") == ["a"]


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:8000::1", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_the_network_of_an_address(host: str, network: str) -> None:
    assert network_of(host) == network


def test_no_network_has_more_than_its_share_and_the_one_with_most_loses(seeded_random: Random) -> None:
    places = SlotLimits(in_all=12, of_network=5)
    admission: Admission[int] = Admission(places)
    held: dict[int, str] = {}
    for number in range(3_000):
        if held and seeded_random.random() < 0.3:
            left = seeded_random.choice(list(held))
            admission.leave(left)
            del held[left]
            continue
        host = f"10.0.0.{min(seeded_random.randrange(30), seeded_random.randrange(30))}"
        before = Counter(held.values())
        displaced = admission.expect(number, host, 1.0)
        if displaced is not None:
            network = held.pop(displaced)
            is_full = before[host] == places.of_network
            assert network == host if is_full else before[network] == max(before.values())
        else:
            assert len(held) < places.in_all
        held[number] = host
        assert len(admission) == len(held) <= places.in_all
        assert max(Counter(held.values()).values()) <= places.of_network
