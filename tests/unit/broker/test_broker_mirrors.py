"""The mirrored pairs of a daemon: which side is asked, what is logged, and what is stored."""

from __future__ import annotations

from servicebroker.broker.mirrors import Mirrors
from servicebroker.engine.remote.mirrored_pairs import StoredPair
from servicebroker.protocol.mirroring import (
    ANSWER_TIMEOUT_S,
    NEVER,
    ROLE_QUERY_INTERVAL_S,
    KnownTimeline,
    Role,
    RoleReport,
)
from servicebroker.protocol.routing import Address, Elsewhere

A, B, C = Address("a", 1), Address("b", 1), Address("c", 1)
PAIR, PLAIN = Elsewhere(A, B), Elsewhere(C)
FIRST = RoleReport(Role.PRINCIPAL, "c", 1, is_synchronous=True)
MIRROR = RoleReport(Role.MIRROR, "c", 1)


class Links:
    """Links without peers that record each question."""

    def __init__(self) -> None:
        self.asked: list[tuple[Address, KnownTimeline]] = []

    def reach(self, address: Address) -> str:
        return "nobody is there"

    def ask(self, address: Address, known: KnownTimeline) -> None:
        self.asked.append((address, known))


class World:
    def __init__(self) -> None:
        self.links, self.now = Links(), 0.0
        self.mirrors = Mirrors(self.links, lambda: self.now)


def new_world(known: KnownTimeline | None = None) -> World:
    world = World()
    assert world.mirrors.strangers([PAIR, PLAIN, PAIR]) == [PAIR]
    world.mirrors.begin({PAIR: known or KnownTimeline()})
    return world


def test_both_are_asked_once_and_then_only_while_neither_is_chosen() -> None:
    world = new_world(KnownTimeline("c", 4))
    assert world.links.asked == [(A, KnownTimeline("c", 4)), (B, KnownTimeline("c", 4))]
    assert world.mirrors.strangers([PAIR]) == []
    world.mirrors.heard(B, MIRROR)
    world.now = ANSWER_TIMEOUT_S
    world.mirrors.tick()  # A is silent
    assert len(world.links.asked) == 4
    world.now += ROLE_QUERY_INTERVAL_S
    world.mirrors.tick()
    assert len(world.links.asked) == 6
    world.mirrors.heard(A, RoleReport(Role.PRINCIPAL, "c", 5))
    assert world.mirrors.wake_at == NEVER
    world.now += 1000.0
    world.mirrors.tick()
    assert len(world.links.asked) == 6


def test_the_way_is_that_of_the_principal_or_a_reason() -> None:
    world = new_world()
    mirrors = world.mirrors
    assert mirrors.address_of(PLAIN) == C
    assert "has not answered yet" in str(mirrors.address_of(PAIR))
    mirrors.heard(A, FIRST)
    mirrors.unreached(B, "refused")
    assert mirrors.address_of(PAIR) == A
    assert mirrors.take_changed() == {PAIR}
    mirrors.unreached(A, "cut")
    assert "a:1 cannot be reached (cut)" in str(mirrors.address_of(PAIR))
    mirrors.heard(B, FIRST._replace(timeline=2))
    assert mirrors.address_of(PAIR) == B
    assert mirrors.take_changed() == {PAIR}
    assert mirrors.take_changed() == set()


def test_a_change_is_stored_once_and_again_after_a_failure() -> None:
    world = new_world()
    mirrors = world.mirrors
    ((*_, first),) = mirrors.take_news()
    assert first.startswith("Neither is known")
    assert mirrors.take_news() == []
    mirrors.heard(B, MIRROR)
    mirrors.heard(A, FIRST)
    text = "TCP://a:1 is the principal: it says so, on timeline 1, and its commits wait for a standby."
    row = StoredPair("TCP://a:1", "TCP://b:1", "TCP://a:1", "c", 1, b"", text)
    assert mirrors.take_news() == [row]
    mirrors.heard(A, FIRST)
    assert mirrors.take_news() == []
    mirrors.forget_told()  # the transaction was rolled back
    assert mirrors.take_news() == [row]


def test_a_route_created_again_starts_without_old_observations() -> None:
    world = new_world()
    mirrors = world.mirrors
    mirrors.heard(A, FIRST._replace(timeline=7))
    mirrors.keep([])  # the timeline was not stored yet
    mirrors.take_changed()
    assert mirrors.strangers([PAIR]) == []
    mirrors.take_news()
    mirrors.keep([PAIR])
    assert mirrors.strangers([PAIR]) == []
    mirrors.keep([])
    assert mirrors.take_changed() == {PAIR}
    assert mirrors.strangers([PAIR]) == [PAIR]
    assert mirrors.address_of(PAIR) == "Its route has gone."
    mirrors.heard(A, FIRST)  # of a pair that is not asked about any more
    assert mirrors.take_news() == []


def test_a_pair_whose_route_went_while_the_database_was_away_is_asked_no_more() -> None:
    world = new_world()
    mirrors = world.mirrors
    assert mirrors.take_news()
    mirrors.forget_told()  # while the database is lost, the route and its stored timeline are dropped
    mirrors.keep([])
    assert mirrors.take_news() == []
    assert mirrors.wake_at == NEVER
    assert mirrors.address_of(PAIR) == "Its route has gone."
    assert mirrors.take_changed() == {PAIR}
