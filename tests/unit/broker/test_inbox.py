"""Fairness of the inbox: no owner waits long for the frames of another, whatever they contain."""

from __future__ import annotations

from collections import Counter

import pytest

from many_sites import Pipe
from servicebroker.broker import inboxes
from servicebroker.broker.inboxes import Inbox, Lost, Reached, Unreached
from servicebroker.broker.transport.links import Arrival
from servicebroker.protocol.routing import Address


class OwnedLink(Pipe):
    """A link with an owner."""

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner = owner


class World:
    """An inbox with a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.inbox = Inbox(seconds=lambda: self.now)

    def brings(self, link: OwnedLink, count: int = 1, size: int = 10) -> None:
        for _ in range(count):
            self.inbox.put(Arrival(link, bytes(size)))

    def round(self, *, each: float = 0.0, waste: float = 0.0) -> dict[str, int]:
        """Return the number of frames of each owner in a round, at `each` seconds for a frame."""
        taken = self.inbox.take(2_000)
        values_by_name: dict[str, int] = {}
        for item in taken:
            assert isinstance(item, Arrival)
            values_by_name[item.link.owner] = values_by_name.get(item.link.owner, 0) + 1
            if waste:
                self.inbox.waste(item.link, waste)
        self.now += each * len(taken)
        self.inbox.account_round(each * len(taken))
        return values_by_name


@pytest.fixture
def world() -> World:
    return World()


def test_a_single_owner_is_taken_completely(world: World) -> None:
    world.brings(OwnedLink("mallory"), 1_500)
    assert world.round(each=0.01) == {"mallory": 1_500}
    assert world.inbox.wake_at == inboxes.NEVER


def test_waiting_frames_do_not_hasten_the_next_round(world: World) -> None:
    """Rounds pause between them, so that many small transactions are transmitted together."""
    world.brings(OwnedLink("mallory"), 20)
    assert world.inbox.wake_event.is_set()
    assert world.inbox.wake_at == inboxes.NEVER


def test_a_full_round_is_followed_by_the_next_at_once(world: World) -> None:
    """Stored messages are acknowledged while more are stored. New arrivals do not shorten the pause."""
    mallory, size = OwnedLink("mallory"), inboxes.ROUND_BYTES // 4
    world.brings(mallory, 9, size)
    for count, wake_at in ((4, 0.0), (4, 0.0), (1, inboxes.NEVER)):
        assert world.round() == {"mallory": count}
        assert world.inbox.wake_at == wake_at
    world.brings(mallory, 1, 10 * inboxes.ROUND_BYTES)  # one at least
    world.brings(mallory, 1)
    assert world.round() == {"mallory": 1}
    assert len(world.inbox.empty()) == 1
    assert world.inbox.wake_at == inboxes.NEVER


def test_an_owner_without_a_turn_is_first_in_the_next_round(world: World) -> None:
    owners = [f"shop {number}" for number in range(10)]
    for owner in owners:
        world.brings(OwnedLink(owner), 2, inboxes.ROUND_BYTES // 4)
    rounds = [world.round(each=0.001) for _ in range(5)]
    assert [sum(round_counts.values()) for round_counts in rounds] == [4] * 5
    assert [list(round_counts) for round_counts in rounds] == [
        owners[:4],
        owners[4:8],
        [*owners[8:], *owners[:2]],
        owners[2:6],
        owners[6:],
    ]
    assert sorted(
        owner for round_counts in rounds for owner, count in round_counts.items() for _ in range(count)
    ) == sorted(owners * 2)


def test_rounds_follow_at_once_only_while_an_owner_has_a_turn_left(world: World) -> None:
    """An owner that had a whole turn rests. An owner without room in the round does not rest."""
    mallory, shop = OwnedLink("mallory"), OwnedLink("shop")
    world.brings(mallory, 500, inboxes.ROUND_BYTES // 40)
    world.brings(shop, 1)
    assert world.round(each=0.001) == {"mallory": inboxes.FIRST_PORTION, "shop": 1}
    assert world.inbox.wake_at > world.now
    large = OwnedLink("large")
    world.brings(large, 16, inboxes.ROUND_BYTES // 4)
    assert world.round(each=0.001) == {"large": 4}
    assert world.inbox.wake_at == 0.0
    assert world.round(each=0.001, waste=1.0)["large"] > 0  # no frame to take: it rests, like mallory
    assert world.inbox.wake_at > world.now


def test_a_busy_owner_gets_one_turn_and_then_rests(world: World) -> None:
    mallory, shop = OwnedLink("mallory"), OwnedLink("shop")
    world.brings(mallory, 1_500)
    world.brings(shop)
    first = world.round(each=0.01)
    assert first == {"mallory": inboxes.FIRST_PORTION, "shop": 1}
    assert world.round() == {}  # the owner rests
    world.brings(shop)
    assert world.round(each=0.01) == {"shop": 1}
    world.now = world.inbox.wake_at
    second = world.round(each=0.01)
    assert second == {"mallory": inboxes.TURN_S / 0.01}  # no more than a turn takes at that price
    world.now = world.inbox.wake_at
    assert world.round(each=1e-6)["mallory"] == 2
    world.now = world.inbox.wake_at
    assert world.round(each=1e-6)["mallory"] > 1_000  # cheap frames are taken in numbers


def test_each_owner_is_charged_its_measured_time(world: World) -> None:
    """A frame may cost a hundred times as much as another. Owners of such frames get fewer in, and rest longer."""
    mallory, shop, light = OwnedLink("mallory"), OwnedLink("shop"), OwnedLink("light")
    for number in range(40):
        if number:
            world.now = max(world.now, world.inbox.wake_at)
        for link, count in ((mallory, 100), (shop, 100), (light, 1)):
            world.brings(link, count)
        taken = world.inbox.take(2_000)
        counts = Counter(item.link.owner for item in taken if isinstance(item, Arrival))
        world.inbox.charge(mallory, 0.01 * counts["mallory"])
        seconds = 0.01 * counts["mallory"] + 0.0001 * len(taken)
        world.now += seconds
        world.inbox.account_round(seconds)
        if counts["mallory"] and number:
            assert counts["mallory"] == 1  # as many as its turn has time for
    assert counts["light"] == 1
    assert len(world.inbox.empty()) > 3_900  # frames of mallory; those of the shop were taken
    assert world.inbox._peer_queues["shop"].portion > 100


@pytest.mark.parametrize(("waste", "rest"), [(0.0, 0.016), (0.5, 0.034), (1.0, 0.05)])
def test_an_owner_of_useless_frames_rests_longer(world: World, waste: float, rest: float) -> None:
    world.brings(OwnedLink("mallory"), 500)
    world.brings(OwnedLink("shop"))
    world.round(each=0.001, waste=waste)
    assert world.inbox.wake_at - world.now == pytest.approx(rest, abs=0.003)


def test_a_resting_owner_does_not_wake_the_round(world: World) -> None:
    mallory = OwnedLink("mallory")
    world.brings(mallory, 500)
    world.brings(OwnedLink("shop"))
    world.round(each=0.01)
    world.inbox.wake_event.clear()
    world.brings(mallory, 5)
    assert not world.inbox.wake_event.is_set()
    world.brings(OwnedLink("shop"))
    assert world.inbox.wake_event.is_set()


def test_links_of_one_owner_share_a_line_and_anonymous_links_do_not(world: World) -> None:
    for _ in range(3):
        world.brings(OwnedLink("mallory"), 100)
    world.brings(OwnedLink("shop"))
    assert world.round() == {"mallory": inboxes.FIRST_PORTION, "shop": 1}
    plain = World()
    for _ in range(3):
        plain.brings(OwnedLink(""), 100)
    assert plain.round() == {"": 3 * inboxes.FIRST_PORTION}


def test_owners_with_equal_traffic_need_no_turns(world: World) -> None:
    """Three busy partners: short rounds would cost commits and delay all of them."""
    partners = [OwnedLink("west"), OwnedLink("north"), OwnedLink("south")]
    for _ in range(5):
        for item in partners:
            world.brings(item, 100)
        world.round(each=0.001)
        world.now += 1.0
    for item in partners:
        world.brings(item, 300)
    taken_by_owner = world.round(each=0.001)
    assert min(taken_by_owner.values()) >= 300
    assert world.inbox.wake_at == inboxes.NEVER


def test_a_partner_that_brings_little_is_served_beside_busy_ones(world: World) -> None:
    busy, shop = [OwnedLink("west"), OwnedLink("north")], OwnedLink("shop")
    for _ in range(20):
        for item in busy:
            world.brings(item, 100)
        world.brings(shop)
        taken_by_owner = world.round(each=0.001)
        world.now += 0.2
        assert taken_by_owner["shop"] == 1
        assert sum(taken_by_owner.values()) <= 2 * inboxes.TURN_S / 0.001 + 1
    for _ in range(100):  # a quiet owner counts until it is forgotten
        world.now += inboxes.ACTIVE_S / 90
        for item in busy:
            world.brings(item, 100)
        taken_by_owner = world.round(each=0.001)
    assert sum(taken_by_owner.values()) > 2 * inboxes.TURN_S / 0.001 + 1


def test_useless_frames_get_a_turn_among_busy_owners(world: World) -> None:
    mallory, shop = OwnedLink("mallory"), OwnedLink("shop")
    for _ in range(20):
        world.brings(mallory, 100)
        world.brings(shop, 100)
        world.round(each=0.001, waste=0.5)
        world.now += 1.0
    world.brings(mallory, 500)
    world.brings(shop, 500)
    assert max(world.round(each=0.001).values()) <= inboxes.TURN_S / 0.001


def test_a_closed_link_takes_no_part_of_the_round(world: World) -> None:
    """Two instances connect to each other at the same time, and one connection is closed: the other has all."""
    first, second = OwnedLink(""), OwnedLink("")
    world.brings(first, 3)
    world.brings(second)
    world.round(each=0.01)
    world.inbox.put(Lost(first, "It lost the arbitration."))
    world.brings(second, 1_500)
    assert len(world.inbox.take(2_000)) == 1 + 1_500


def test_a_line_that_is_full_does_not_fill_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "INBOX_BYTES", 30_000)
    mallory, shop = OwnedLink("mallory"), OwnedLink("shop")
    world.brings(shop)
    on_room: list[bool] = []
    world.inbox.on_room = lambda: on_room.append(True)
    while not world.inbox.is_full(mallory):
        world.brings(mallory)
    assert world.inbox.size < 30_000
    assert not world.inbox.is_full(shop)
    world.round()
    assert on_room == [True]


def test_a_restarted_relay_hears_of_no_link_that_was_lost_before(world: World) -> None:
    address = Address("far", 4022)
    events = [Lost(OwnedLink("shop"), "cut"), Reached(address), Unreached(Address("near", 4022), "refused")]
    for event in events:
        world.inbox.put(event)
    world.inbox.forget_links()
    assert world.inbox.take(10) == events[1:]
    world.inbox.put(events[0])
    world.inbox.put(Unreached(address, "refused"))  # the last event of each link and address
    world.inbox.put(Reached(address))
    assert world.inbox.take(10) == [events[0], Reached(address)]


def test_events_come_in_the_order_of_their_last_occurrence(world: World) -> None:
    here, there, link = Address("here", 4022), Address("there", 4022), OwnedLink("shop")
    events = [Unreached(here, "refused"), Lost(link, "cut"), Reached(there), Reached(here), Unreached(here, "again")]
    for event in events:
        world.inbox.put(event)
    assert world.inbox.take(2_000) == [events[1], events[2], events[4]]


def test_only_the_thread_of_the_round_charges_and_counts_waste() -> None:
    """The call goes to the inboxes of all shares, each of which has a thread of its own."""
    thread = [1]
    inbox, link = Inbox(seconds=lambda: 0.0, taker=lambda: thread[0]), OwnedLink("shop")
    inbox.put(Arrival(link, b"x"))
    inbox.take(2_000)
    queue = inbox._peer_queues["shop"]
    for thread[0], charged in ((2, 0.0), (1, 1.5)):
        inbox.charge(link, 1.5)
        inbox.waste(link, 0.5)
        assert (queue.charged_s, queue.useless_frames) == (charged, charged / 3)
