"""Connection attempts: a network over real sockets, without a database."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from servicebroker.broker.inboxes import Inboxes, Unreached
from servicebroker.broker.policy import Policy
from servicebroker.broker.transport.sockets import Network
from servicebroker.protocol.routing import Address
from support import eventually


def networks(stack: ExitStack, *numbers: int) -> list[Network]:
    made = [Network(UUID(int=n), UUID(int=n + 10), Inboxes(), lambda: datetime.now(UTC)) for n in numbers]
    for peer in made:
        stack.callback(peer.close)
    return made


@pytest.mark.feature(107)
def test_a_connection_that_is_made_after_the_endpoint_was_stopped_carries_nothing() -> None:
    """The connection would start unencrypted, though the stopped endpoint required TLS."""
    with ExitStack() as stack:
        west, east = networks(stack, 1, 2)
        port = east.apply(Policy("127.0.0.1", 0))
        assert port is not None
        address = Address("127.0.0.1", port)
        west.apply(Policy(encryption="REQUIRED"))
        connect, made = west.loop.create_connection, []

        async def connect_late(*values: Any) -> object:
            await asyncio.sleep(0.3)
            made.append(await connect(*values))
            return made[0]

        west.loop.create_connection = connect_late  # type: ignore[method-assign, assignment]
        assert west.reach(address) == ""
        west.apply(Policy(silence=9748))
        eventually(lambda: bool(made))
        for _ in range(20):
            assert isinstance(west.reach(address), str)
            time.sleep(0.01)
        eventually(lambda: not west.streams)


@pytest.mark.feature(116)
@pytest.mark.parametrize("host", ["broker..example", "a" * 64])
def test_a_name_that_no_host_can_have_is_unreachable(host: str) -> None:
    with ExitStack() as stack:
        (west,) = networks(stack, 1)
        west.apply(Policy())
        address = Address(host, 4022)
        assert west.reach(address) == ""
        eventually(lambda: address in west.unreachable)
        assert west.reach(address) == (
            f"The target service broker is unreachable. TCP://{host}:4022: No host can have this name."
        )
        assert [type(arrival) for arrival in west.inbox.shares[0].take(10)] == [Unreached]
