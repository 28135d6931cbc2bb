from __future__ import annotations

from uuid import UUID

import pytest

from servicebroker.model.security.peers import NOBODY, Peer
from servicebroker.protocol.adjacent import Hello, Online
from servicebroker.protocol.arbitration import Arbiter

LOW, HIGH = UUID(int=1), UUID(int=2)
BORN = {LOW: UUID(int=11), HIGH: UUID(int=22)}


class Side:
    """An instance and its connections. An opened connection waits for the answer to its greeting."""

    def __init__(self, instance: UUID) -> None:
        self.arbiter: Arbiter[str] = Arbiter(instance)
        self.instance = instance
        self.opened: dict[str, int] = {}

    def open(self, name: str) -> Hello:
        self.opened[name] = self.arbiter.count_connection()
        return Hello(self.instance, BORN[self.instance], self.opened[name], 1, 1)

    def take_greeting(self, name: str, hello: Hello) -> Online | int:
        """Take a greeting. Return the welcome to send back, or the number of the rejection."""
        number = self.arbiter.greeted(hello)
        if number:
            return number
        connection_number = self.arbiter.count_connection()
        self.arbiter.online(name, Online(*self_of(hello)), is_opener=False, connection_number=connection_number)
        return Online(self.instance, BORN[self.instance], connection_number)

    def take_answer(self, name: str, answer: Online | int) -> str | None:
        """Take the answer to a greeting. Return the name of the connection to close, if any."""
        if isinstance(answer, int):
            return name
        return self.arbiter.online(name, answer, is_opener=True, connection_number=self.opened[name])


def self_of(hello: Hello) -> tuple[UUID, UUID, int]:
    return hello.daemon_id, hello.incarnation, hello.connection_number


@pytest.fixture
def sides() -> tuple[Side, Side]:
    return Side(LOW), Side(HIGH)


def test_a_single_connection_is_kept(sides: tuple[Side, Side]) -> None:
    low, high = sides
    assert low.take_answer("a", high.take_greeting("a", low.open("a"))) is None
    assert low.arbiter.find(Peer(NOBODY, HIGH)) == high.arbiter.find(Peer(NOBODY, LOW)) == "a"
    low.arbiter.gone("a")
    assert low.arbiter.find(Peer(NOBODY, HIGH)) is None


@pytest.mark.parametrize("order", range(4))
def test_both_sides_keep_the_connection_of_the_lower_instance(sides: tuple[Side, Side], order: int) -> None:
    low, high = sides
    mine, theirs = low.open("low's"), high.open("high's")
    if order == 0:  # both greetings arrive before any answer
        for_low, for_high = high.take_greeting("low's", mine), low.take_greeting("high's", theirs)
        low.take_answer("low's", for_low)
        high.take_answer("high's", for_high)
    elif order == 1:
        for_high, for_low = low.take_greeting("high's", theirs), high.take_greeting("low's", mine)
        high.take_answer("high's", for_high)
        low.take_answer("low's", for_low)
    elif order == 2:  # one is online on both sides before the other greeting arrives
        assert low.take_answer("low's", high.take_greeting("low's", mine)) is None
        assert low.take_greeting("high's", theirs) == 28032
    else:
        assert high.take_answer("high's", low.take_greeting("high's", theirs)) is None
        assert high.take_greeting("low's", mine) != 28032
    if order != 3:
        assert low.arbiter.find(Peer(NOBODY, HIGH)) == high.arbiter.find(Peer(NOBODY, LOW)) == "low's"
    else:
        assert high.arbiter.find(Peer(NOBODY, LOW)) == "low's"


def test_a_peer_that_has_lost_the_connection_and_opens_another_is_believed(sides: tuple[Side, Side]) -> None:
    low, high = sides
    low.take_answer("old", high.take_greeting("old", low.open("old")))
    high.arbiter.gone("old")
    assert high.take_answer("new", low.take_greeting("new", high.open("new"))) is None
    assert low.arbiter.find(Peer(NOBODY, HIGH)) == high.arbiter.find(Peer(NOBODY, LOW)) == "new"


def test_both_sides_prefer_the_later_one(sides: tuple[Side, Side]) -> None:
    low, high = sides
    low.take_answer("old", high.take_greeting("old", low.open("old")))
    assert high.take_answer("new", low.take_greeting("new", high.open("new"))) == "old"
    assert low.arbiter.find(Peer(NOBODY, HIGH)) == high.arbiter.find(Peer(NOBODY, LOW)) == "new"


def test_a_late_welcome_does_not_bring_back_the_earlier_one(sides: tuple[Side, Side]) -> None:
    low, high = sides
    answer = high.take_greeting("old", low.open("old"))
    high.arbiter.gone("old")
    assert not isinstance(low.take_greeting("new", high.open("new")), int)
    assert low.take_answer("old", answer) == "old"
    assert low.arbiter.find(Peer(NOBODY, HIGH)) == "new"


def test_the_same_side_opens_again(sides: tuple[Side, Side]) -> None:
    low, high = sides
    high.take_greeting("old", low.open("old"))
    assert low.take_answer("new", high.take_greeting("new", low.open("new"))) is None
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
    assert arbiter.find(Peer("shop", HIGH)) == "shop"  # the second connection has replaced nothing
    assert (
        arbiter.online("new", Online(HIGH, UUID(int=6), 1), is_opener=False, connection_number=9, owner="mallory")
        == "mallory"
    )
    arbiter.gone("new")
    assert (arbiter.find(Peer("shop", HIGH)), arbiter.find(Peer("mallory", HIGH))) == ("shop", None)


def test_a_stranger_s_greeting_is_not_judged_by_the_connection_of_the_owner(sides: tuple[Side, Side]) -> None:
    """The same greeting is refused to the owner, who has a connection that wins."""
    low, _ = sides
    arbiter = low.arbiter
    arbiter.online("shop's", Online(HIGH, BORN[HIGH], 1), is_opener=True, connection_number=5, owner="shop")
    late = Hello(HIGH, BORN[HIGH], 1, 1, 1)
    assert arbiter.greeted(late, "shop") == 28032
    assert arbiter.greeted(late, "mallory") == arbiter.greeted(late) == 0
