"""Two daemons with one identity are reported if both send at the same time, not if one replaces the other."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.twins import MAX_DAEMONS, MAX_IDENTITIES, MEMORY_S, OVERLAP_S, Identity, Twins

SHOP = Identity("certificate shop", UUID(int=1))


def incarnation(number: int) -> UUID:
    return UUID(int=number)


def test_two_daemons_that_send_at_the_same_time_are_reported() -> None:
    twins = Twins()
    hosts = [twins.heard(SHOP, incarnation(number % 2), f"host{number % 2}", float(number)) for number in range(9)]
    assert [host for host in hosts if host] == ["host1"]
    # host0 sends at 0, 2, 4 ... seconds, and host1 at 1, 3, 5 ... When host0 sends at 8, both have sent from 1 to 7:
    # this is the first overlap of more than OVERLAP_S seconds.
    assert hosts.index("host1") == OVERLAP_S + 3


def test_the_same_two_daemons_are_reported_again_while_both_send() -> None:
    twins = Twins()
    hosts = [twins.heard(SHOP, incarnation(number % 2), "x", float(number)) for number in range(100)]
    assert 10 <= sum(host is not None for host in hosts) <= 100 / OVERLAP_S


def test_a_copy_of_an_old_daemon_is_reported() -> None:
    twins = Twins()
    started = 10 * MEMORY_S
    for second in range(int(started)):
        assert twins.heard(SHOP, incarnation(0), "original", float(second)) is None
    hosts = [twins.heard(SHOP, incarnation(n % 2), f"host{n % 2}", started + n) for n in range(9)]
    assert [host for host in hosts if host] == ["host1"]


def test_a_silent_daemon_is_forgotten() -> None:
    for silence, is_known in ((MEMORY_S - 1, True), (MEMORY_S, False)):
        twins = Twins()
        twins.heard(SHOP, incarnation(0), "x", 0.0)
        twins.heard(SHOP, incarnation(1), "x", silence)
        assert (incarnation(0) in twins._known[SHOP]) is is_known


@given(
    st.lists(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=5), min_size=1, max_size=8),
    st.floats(-OVERLAP_S, MEMORY_S),
)
def test_daemons_that_replace_each_other_are_not_reported(
    send_times_of_daemons: list[list[float]], pause: float
) -> None:
    """The last message of a daemon may arrive up to `OVERLAP_S` seconds after its successor's first message."""
    messages, now = [], 0.0
    for number, send_times in enumerate(send_times_of_daemons):
        started_at = now + pause if pause > 0 else now
        for seconds in sorted(send_times):
            messages.append((started_at + seconds, number))
        now = started_at + max(send_times)
        if pause < 0:
            messages.append((now - pause, number))  # late
    twins = Twins()
    assert not any(twins.heard(SHOP, incarnation(number), "x", at) for at, number in sorted(messages))


def test_two_instances_and_two_owners_are_not_twins() -> None:
    twins = Twins()
    identities = [SHOP, Identity(SHOP.owner, UUID(int=2)), Identity("certificate stock", SHOP.instance)]
    for at in range(100):
        assert not any(twins.heard(peer, incarnation(number), "x", float(at)) for number, peer in enumerate(identities))


def test_strangers_fill_no_memory() -> None:
    twins = Twins()
    for number in range(3 * MAX_IDENTITIES):
        twins.heard(Identity("", UUID(int=number)), incarnation(number), "x", 0.0)
        twins.heard(SHOP, incarnation(number), "x", 0.0)
    assert len(twins._known) <= MAX_IDENTITIES
    assert all(len(daemons) <= MAX_DAEMONS for daemons in twins._known.values())
