"""A large message yields to small ones on its link. It yields less the longer the round trip takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from servicebroker.broker.conversations import LARGE_FRAGMENTS_PER_S, RECENT_S, Conversations
from servicebroker.protocol.limits import LIMITS

FRAGMENT = LIMITS.fragment_size


class World:
    """Two conversations on one link, and a test clock."""

    def __init__(self) -> None:
        self.now, self.sent = 0.0, 0
        unused: Any = None
        self.conversations = Conversations(unused, unused, lambda: self.now, unused, 10, LIMITS, unused)
        self.link = object()
        self.large, self.small = self.entry(), self.entry()

    def entry(self, link: object | None = None) -> Any:
        dialog, endpoint = SimpleNamespace(load=0), SimpleNamespace(conversation_handle=uuid4())
        return SimpleNamespace(link=link or self.link, load=0, dialog=dialog, endpoint=endpoint, parts={})

    def window(self, entry: Any) -> int | None:
        return self.conversations._large_window(entry)

    def carry(self, seconds: float) -> None:
        """Send a small message that is acknowledged after `seconds`."""
        self.sent += 1
        self.conversations.sent_small(self.small, self.sent)
        self.now += seconds
        self.conversations.acknowledged(self.small, self.sent + 1)


def test_a_large_message_has_the_whole_link_while_no_other_sends() -> None:
    world = World()
    assert world.window(world.large) is None
    world.conversations.sent_small(world.large, 0)  # of the same conversation: they queue behind it in any case
    assert world.window(world.large) is None
    world.conversations.acknowledged(world.large, 1)
    world.carry(0.003)
    assert world.window(world.large) == FRAGMENT
    assert world.window(world.small) is None
    assert world.window(world.entry(link=object())) is None  # together with them, not before them
    world.now += RECENT_S
    assert world.window(world.large) is None


def test_on_a_long_way_more_is_under_way() -> None:
    world = World()
    world.conversations.sent_small(world.small, 0)
    assert world.window(world.large) == LIMITS.window  # the window is not known yet
    world.now += 0.2
    world.conversations.acknowledged(world.small, 1)
    assert world.window(world.large) == int(0.2 * LARGE_FRAGMENTS_PER_S * FRAGMENT)
    world.carry(0.1)
    world.carry(0.3)
    assert world.window(world.large) == pytest.approx(0.1 * LARGE_FRAGMENTS_PER_S * FRAGMENT, abs=1)
    world.carry(0.001)
    assert world.window(world.large) == FRAGMENT


def test_the_time_is_that_of_one_message_and_not_of_the_one_after_it() -> None:
    world = World()
    for number in range(10):  # each is acknowledged long after the next ones were sent
        world.conversations.sent_small(world.small, number)
        world.now += 0.01
    world.conversations.acknowledged(world.small, 1)
    assert world.window(world.large) == pytest.approx(0.1 * LARGE_FRAGMENTS_PER_S * FRAGMENT, abs=1)


def test_pacing_does_not_wait_for_unacknowledged_messages() -> None:
    world = World()
    world.conversations.sent_small(world.entry(), 0)
    world.now += LIMITS.first_retry + 1
    world.carry(0.001)
    assert world.window(world.large) == FRAGMENT
