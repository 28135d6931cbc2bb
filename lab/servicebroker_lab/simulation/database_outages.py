"""Outages of databases: routes change meanwhile, and messages that came before come again, damaged.

The daemon begins anew from what the database holds. It may remember addresses to which no route leads any more.
A damaged message brings its conversation into memory, and is not taken.
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

RECONNECT_DELAY_S = 1.0  # seconds until a daemon tries to reach its database again
MAX_OUTAGE_S = 2.0  # seconds: there are one or two attempts in vain
COPIES_COUNT = 3  # of a message: those before an attempt in vain are lost with it


class _Came(NamedTuple):
    """The last message of a conversation, and the link that has brought it."""

    link: Link
    came: Arrived


class DatabaseOutages:
    """The outages of all instances of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: dict[tuple[int, UUID], _Came] = {}

    def keep(self, instance: Instance, link: Link, came: Arrived) -> None:
        """Keep what came to an instance, unchanged."""
        try:
            header = parse(unwrap(came.body)[1] if came.is_forwarded else came.body).header
        except CorruptedMessage:
            return
        self._last[instance.index, header.conversation_id] = _Came(link, came)

    def begin(self, instance: Instance) -> None:
        """Take its database away, and bring damaged messages of conversations that still have something to send."""
        loop = self._world.loop
        instance.trace("has no database for a while")
        outage = MAX_OUTAGE_S * loop.random.random()
        instance.away_until = loop.now + outage
        instance.poke()
        for one in instance.tables.endpoints.values():
            last = self._last.get((instance.index, one.conversation))
            if one.rows and last is not None:
                for _ in range(COPIES_COUNT):
                    moment = (outage + RECONNECT_DELAY_S) * loop.random.random()
                    loop.after(moment, lambda last=last: self._bring(instance, last))  # type: ignore[misc]

    def _bring(self, instance: Instance, last: _Came) -> None:
        damaged = flip(last.came.body, 8 * len(last.came.body) - 1)  # its header says what it said
        for daemon in instance.daemons[-1:]:
            daemon.take(last.link, damaged, is_forwarded=last.came.is_forwarded)
