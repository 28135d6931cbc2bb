"""Two daemons with one identity are reported if both send at the same time, not if one replaces the other."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.twins import MAX_IDENTITIES, MEMORY_S, OVERLAP_S, Identity, Twins

SHOP = Identity("certificate shop", UUID(int=1))


def incarnation(number: int) -> UUID:
    return UUID(int=number)


def test_two_that_bring_messages_beside_each_other_are_told_with_both_places() -> None:
    twins = Twins()
    hosts = [twins.heard(SHOP, incarnation(number % 2), f"host{number % 2}", float(number)) for number in range(9)]
    assert [host for host in hosts if host] == ["host1"]
    assert (
        hosts.index("host1") == OVERLAP_S + 3
    )  # the second daemon starts at 1; the first must send for longer than that


def test_the_same_two_are_told_again_while_it_goes_on() -> None:
    twins = Twins()
    hosts = [twins.heard(SHOP, incarnation(number % 2), "x", float(number)) for number in range(100)]
    assert 10 <= sum(host is not None for host in hosts) <= 100 / OVERLAP_S


@given(
    st.lists(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=5), min_size=1, max_size=8),
    st.floats(-OVERLAP_S, MEMORY_S),
)
def test_daemons_that_replace_each_other_are_not_told(lives: list[list[float]], pause: float) -> None:
    """The last message of a daemon may arrive up to `OVERLAP_S` seconds after its successor's first message."""
    heard, now = [], 0.0
    for number, life in enumerate(lives):
        begun = now + pause if pause > 0 else now
        for after in sorted(life):
            heard.append((begun + after, number))
        now = begun + max(life)
        if pause < 0:
            heard.append((now - pause, number))  # late
    twins = Twins()
    assert not any(twins.heard(SHOP, incarnation(number), "x", at) for at, number in sorted(heard))


def test_two_instances_and_two_owners_are_not_twins() -> None:
    twins = Twins()
    others = [SHOP, Identity(SHOP.owner, UUID(int=2)), Identity("certificate stock", SHOP.instance)]
    for at in range(100):
        assert not any(twins.heard(peer, incarnation(number), "x", float(at)) for number, peer in enumerate(others))


def test_strangers_fill_no_memory() -> None:
    twins = Twins()
    for number in range(3 * MAX_IDENTITIES):
        twins.heard(Identity("", UUID(int=number)), incarnation(number), "x", 0.0)
        twins.heard(SHOP, incarnation(number), "x", 0.0)
    assert len(twins._known) <= MAX_IDENTITIES
    assert all(len(daemons) <= 4 for daemons in twins._known.values())
