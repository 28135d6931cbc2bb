"""A peer that fills the inbox waits for room: two networks over real sockets, without a database."""

from __future__ import annotations

from contextlib import ExitStack, closing
from datetime import UTC, datetime
from uuid import UUID

import pytest

from servicebroker.broker import inboxes
from servicebroker.broker.inboxes import Inboxes
from servicebroker.broker.policy import Policy
from servicebroker.broker.transport.links import Arrival, Link
from servicebroker.broker.transport.sockets import Network
from servicebroker.broker.transport.stream import Stream
from servicebroker.protocol.routing import Address
from support import eventually


class InboxEmptiedInBetween(Inboxes):
    """An inbox that is emptied between the loop's check that it is full and the loop's reaction."""

    is_armed = True

    def is_full(self, link: Link) -> bool:
        """Return the state that the loop sees, and empty the inbox."""
        was_full = super().is_full(link)
        if was_full and self.is_armed:
            self.is_armed = False
            self.shares[0].take(100)
        return was_full


def test_a_stream_paused_while_the_inbox_is_emptied_resumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inboxes, "INBOX_BYTES", 10)
    with ExitStack() as stack:
        west, east = (
            Network(UUID(int=n), UUID(int=n + 10), InboxEmptiedInBetween(), lambda: datetime.now(UTC)) for n in (1, 2)
        )
        stack.callback(west.close)
        stack.callback(east.close)
        port = east.apply(Policy("127.0.0.1", 0))
        assert port is not None
        west.apply(Policy())
        address = Address("127.0.0.1", port)
        eventually(lambda: isinstance(west.reach(address), Stream))
        link = west.reach(address)
        assert isinstance(link, Stream)
        link.send(bytes(100))
        inbox = east.inbox
        assert isinstance(inbox, InboxEmptiedInBetween)
        eventually(lambda: not inbox.is_armed)
        link.send(b"after it")
        eventually(
            lambda: any(
                isinstance(arrival, Arrival) and arrival.body == b"after it" for arrival in inbox.shares[0].take(100)
            )
        )


class Ending:
    """A stream with unread bytes, which ends when the network resumes it."""

    def __init__(self, network: Network) -> None:
        self.streams = network.streams

    def resume(self) -> None:
        self.streams.discard(self)  # type: ignore[arg-type]

    def tick(self) -> None: ...

    def shut(self, number: int, text: str) -> None: ...


def test_a_stream_that_ends_while_it_resumes_does_not_stop_the_others() -> None:
    with closing(Network(UUID(int=1), UUID(int=11), Inboxes(), lambda: datetime.now(UTC))) as network:
        for _ in range(2):
            network.streams.add(Ending(network))  # type: ignore[arg-type]
        network._resume()
        assert not network.streams
