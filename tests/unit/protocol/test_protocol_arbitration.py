from __future__ import annotations

from uuid import UUID

import pytest

from servicebroker.model.security.peers import NOBODY, Peer
from servicebroker.protocol.adjacent import Hello, Online
from servicebroker.protocol.arbitration import Arbiter

LOW, HIGH = UUID(int=1), UUID(int=2)
BORN = {LOW: UUID(int=11), HIGH: UUID(int=22)}


class Side:
    """An instance, and what its connections know: opened ones wait for their welcome."""

    def __init__(self, instance: UUID) -> None:
        self.arbiter: Arbiter[str] = Arbiter(instance)
        self.instance = instance
        self.opened: dict[str, int] = {}

    def open(self, name: str) -> Hello:
        self.opened[name] = self.arbiter.count_connection()
        return Hello(self.instance, BORN[self.instance], self.opened[name], 1, 1)

    def greeted(self, name: str, hello: Hello) -> Online | int:
        """The welcome that goes back, or the number of the rejection."""
        number = self.arbiter.greeted(hello)
        if number:
            return number
        connection_number = self.arbiter.count_connection()
        self.arbiter.online(name, Online(*self_of(hello)), is_opener=False, connection_number=connection_number)
        return Online(self.instance, BORN[self.instance], connection_number)

    def welcomed(self, name: str, answer: Online | int) -> str | None:
        """Which to close."""
        if isinstance(answer, int):
            return name
        return self.arbiter.online(name, answer, is_opener=True, connection_number=self.opened[name])


def self_of(hello: Hello) -> tuple[UUID, UUID, int]:
    return hello.daemon_id, hello.incarnation, hello.connection_number


@pytest.fixture
def sides() -> tuple[Side, Side]:
    return Side(LOW), Side(HIGH)


def test_one_connection_is_what_it_is(sides: tuple[Side, Side]) -> None:
    low, high = sides
    assert low.welcomed("a", high.greeted("a", low.open("a"))) is None
    assert low.arbiter.find(Peer(NOBODY, HIGH)) == high.arbiter.find(Peer(NOBODY, LOW)) == "a"
    low.arbiter.gone("a")
    assert low.arbiter.find(Peer(NOBODY, HIGH)) is None


@pytest.mark.parametrize("order", range(4))
def test_of_two_opened_at_once_both_keep_that_of_the_lower_instance(sides: tuple[Side, Side], order: int) -> None:
    low, high = sides
    mine, theirs = low.open("low's"), high.open("high's")
    if order == 0:  # both greetings arrive before any answer
        for_low, for_high = high.greeted("low's", mine), low.greeted("high's", theirs)
        low.welcomed("low's", for_low)
        high.welcomed("high's", for_high)
    elif order == 1:
        for_high, for_low = low.greeted("high's", theirs), high.greeted("low's", mine)
        high.welcomed("high's", for_high)
        low.welcomed("low's", for_low)
    elif order == 2:  # one is online on both sides before the other greeting arrives
        assert low.welcomed("low's", high.greeted("low's", mine)) is None
        assert low.greeted("high's", theirs) == 28032
    else:
        assert high.welcomed("high's", low.greeted("high's", theirs)) is None
        assert high.greeted("low's", mine) != 28032
    if order != 3:
        assert low.arbiter.find(Peer(NOBODY, HIGH)) == high.arbiter.find(Peer(NOBODY, LOW)) == "low's"
    else:
        assert high.arbiter.find(Peer(NOBODY, LOW)) == "low's"


def test_a_peer_that_has_lost_the_connection_and_opens_another_is_believed(sides: tuple[Side, Side]) -> None:
    low, high = sides
    low.welcomed("old", high.greeted("old", low.open("old")))
    high.arbiter.gone("old")
    assert high.welcomed("new", low.greeted("new", high.open("new"))) is None
    assert low.arbiter.find(Peer(NOBODY, HIGH)) == high.arbiter.find(Peer(NOBODY, LOW)) == "new"


def test_both_sides_prefer_the_later_one(sides: tuple[Side, Side]) -> None:
    low, high = sides
    low.welcomed("old", high.greeted("old", low.open("old")))
    assert high.welcomed("new", low.greeted("new", high.open("new"))) == "old"
    assert low.arbiter.find(Peer(NOBODY, HIGH)) == high.arbiter.find(Peer(NOBODY, LOW)) == "new"


def test_a_late_welcome_does_not_bring_back_the_earlier_one(sides: tuple[Side, Side]) -> None:
    low, high = sides
    answer = high.greeted("old", low.open("old"))
    high.arbiter.gone("old")
    assert not isinstance(low.greeted("new", high.open("new")), int)
    assert low.welcomed("old", answer) == "old"
    assert low.arbiter.find(Peer(NOBODY, HIGH)) == "new"


def test_the_same_side_opens_again(sides: tuple[Side, Side]) -> None:
    low, high = sides
    high.greeted("old", low.open("old"))
    assert low.welcomed("new", high.greeted("new", low.open("new"))) is None
    assert high.arbiter.find(Peer(NOBODY, LOW)) == "new"


def test_a_restarted_peer_is_believed(sides: tuple[Side, Side]) -> None:
    low, _ = sides
    low.arbiter.online(
        "old", Online(HIGH, UUID(int=5), 900), is_opener=True, connection_number=low.arbiter.count_connection()
    )
    assert low.arbiter.greeted(Hello(HIGH, UUID(int=6), 1, 1, 1)) == 0


def test_an_instance_does_not_connect_to_itself(sides: tuple[Side, Side]) -> None:
    low, _ = sides
    assert low.arbiter.greeted(low.open("self")) == 28032


def test_a_seat_counts_under_its_own_certificate_only(sides: tuple[Side, Side]) -> None:
    low, _ = sides
    arbiter = low.arbiter
    for owner in ("shop", "mallory"):
        assert arbiter.greeted(Hello(HIGH, UUID(int=5), 900, 1, 1), owner) == 0
        connection_number = arbiter.count_connection()
        assert (
            arbiter.online(
                owner, Online(HIGH, UUID(int=5), 900), is_opener=False, connection_number=connection_number, owner=owner
            )
            is None
        )
    assert arbiter.find(Peer("shop", HIGH)) == "shop"  # the second one has replaced nothing
    assert (
        arbiter.online("new", Online(HIGH, UUID(int=6), 1), is_opener=False, connection_number=9, owner="mallory")
        == "mallory"
    )
    arbiter.gone("new")
    assert (arbiter.find(Peer("shop", HIGH)), arbiter.find(Peer("mallory", HIGH))) == ("shop", None)
