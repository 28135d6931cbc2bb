"""Outages of databases, during which routes change and damaged copies of earlier messages arrive.

After an outage the daemon starts again from the database. It may remember addresses to which no route leads any more. A
damaged message loads its conversation into memory, and is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from servicebroker.protocol.adjacent import Arrived
from servicebroker.protocol.envelope import parse
from servicebroker.protocol.forwarding import unwrap
from servicebroker.protocol.wire_errors import CorruptedMessage
from servicebroker_lab.simulation.simulated_network import flip

if TYPE_CHECKING:
    from servicebroker.broker.transport.links import Link
    from servicebroker_lab.simulation.simulated_instance import Instance, World

RECONNECT_DELAY_S = 1.0  # the time until a daemon reconnects to its database
MAX_OUTAGE_S = 2.0  # so that one or two attempts to connect fail
COPIES_COUNT = 3  # copies of each message: a failed attempt drops copies that arrived earlier


class _LastMessage(NamedTuple):
    """The last message of a conversation, and its connection."""

    link: Link
    message: Arrived


class DatabaseOutages:
    """The outages of all instances of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: dict[tuple[int, UUID], _LastMessage] = {}

    def keep(self, instance: Instance, link: Link, message: Arrived) -> None:
        """Record a message that has arrived at an instance."""
        try:
            header = parse(unwrap(message.body)[1] if message.is_forwarded else message.body).header
        except CorruptedMessage:
            return
        self._last[instance.index, header.conversation_id] = _LastMessage(link, message)

    def begin(self, instance: Instance) -> None:
        """Begin an outage, and let damaged messages arrive for conversations that have messages to send."""
        loop = self._world.loop
        instance.trace("has no database for a while")
        outage = MAX_OUTAGE_S * loop.random.random()
        instance.away_until = loop.now + outage
        instance.poke()
        for endpoint in instance.tables.endpoints.values():
            last = self._last.get((instance.index, endpoint.conversation))
            if endpoint.rows and last is not None:
                for _ in range(COPIES_COUNT):
                    delay = (outage + RECONNECT_DELAY_S) * loop.random.random()
                    loop.after(delay, lambda last=last: self._deliver(instance, last))  # type: ignore[misc]

    def _deliver(self, instance: Instance, last: _LastMessage) -> None:
        damaged = flip(last.message.body, 8 * len(last.message.body) - 1)  # the last bit: the header stays readable
        for daemon in instance.daemons[-1:]:
            daemon.take(last.link, damaged, is_forwarded=last.message.is_forwarded)
