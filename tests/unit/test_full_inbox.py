"""A peer that fills the inbox waits until there is room again: two networks over real sockets, and no database."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from uuid import UUID

import pytest

from servicebroker.broker import sockets as inboxes
from servicebroker.broker.links import Arrival, Link
from servicebroker.broker.policy import Policy
from servicebroker.broker.sockets import Inboxes, Network
from servicebroker.broker.stream import Stream
from servicebroker.protocol.routing import Address
from support import eventually


class Crossing(Inboxes):
    """Once it is full, the relay takes everything between the loop's look at that and what it then does."""

    is_armed = True

    def is_full(self, link: Link) -> bool:
        """As the loop sees it."""
        found = super().is_full(link)
        if found and self.is_armed:
            self.is_armed = False
            self.shares[0].take(100)
        return found


def test_a_stream_that_is_paused_while_the_inbox_is_emptied_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "INBOX", 10)
    with ExitStack() as stack:
        west, east = (Network(UUID(int=n), UUID(int=n + 10), Crossing(), lambda: datetime.now(UTC)) for n in (1, 2))
        stack.callback(west.close)
        stack.callback(east.close)
        port = east.obey(Policy("127.0.0.1", 0))
        assert port is not None
        west.obey(Policy())
        address = Address("127.0.0.1", port)
        eventually(lambda: isinstance(west.reach(address), Stream))
        link = west.reach(address)
        assert isinstance(link, Stream)
        link.send(bytes(100))
        inbox = east.inbox
        assert isinstance(inbox, Crossing)
        eventually(lambda: not inbox.is_armed)
        link.send(b"after it")
        eventually(
            lambda: any(isinstance(one, Arrival) and one.body == b"after it" for one in inbox.shares[0].take(100))
        )
