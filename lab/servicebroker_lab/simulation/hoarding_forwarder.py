"""A forwarder that keeps what opens secured conversations, and brings it again when their targets have gone.

It can do nothing else: it has no key. What it keeps is what comes to an instance over the last hop, unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from servicebroker.model.states import EndpointState
from servicebroker.protocol.adjacent import Arrived
from servicebroker.protocol.envelope import Header, parse
from servicebroker.protocol.forwarding import unwrap
from servicebroker.protocol.freshness import CLOCK_ALLOWANCE
from servicebroker.protocol.wire_errors import CorruptedMessage

if TYPE_CHECKING:
    from servicebroker.broker.transport.links import Link
    from servicebroker_lab.simulation.simulated_instance import Instance, World

MOST_KEPT = 6  # frames of a conversation: opening one takes a third of a millisecond
STEP_S = 60.0  # seconds between two looks for what has gone
LASTS_S = (
    6_000.0  # seconds until all that is closed has gone, by clocks that step by ten minutes, and was brought again
)
# Seconds after a target has gone at which its openings come again. The last one is when the time has come of what was
# sealed by a clock that is an hour ahead.
AGAIN = (0.0, 600.0, 1_190.0, 2_100.0)


class _Kept(NamedTuple):
    """A frame, and where it has come."""

    instance: Instance
    link: Link
    came: Arrived


class HoardingForwarder:
    """One for all connections of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: defaultdict[UUID, list[_Kept]] = defaultdict(list)
        self.brought = 0

    def keep(self, instance: Instance, link: Link, came: Arrived) -> None:
        """Keep a frame that came to an instance, if it opens a secured conversation."""
        try:
            header = parse(unwrap(came.body)[1] if came.is_forwarded else came.body).header
        except CorruptedMessage:
            return
        kept = self._kept[header.conversation_id]
        if header.opening is not None and header.is_secured and len(kept) < MOST_KEPT and self._may_keep(header):
            kept.append(_Kept(instance, link, came))

    def _may_keep(self, header: Header) -> bool:
        """Return whether the rules promise that the frame does not open the conversation again
        (docs/reference/rules.md).

        What is sealed after its target has closed, since acknowledgements are lost, may do so; what an anonymous
        initiator seals whose clock is far ahead, too.
        """
        begins = next((one for one in self._world.instances if one.tables.broker == header.from_broker), None)
        is_anonymous = header.exchange is not None and not header.exchange.source
        if begins is not None and is_anonymous:
            latest = min(one.clock() for one in self._world.instances) + CLOCK_ALLOWANCE
            if begins.clock() > latest:
                return False
        found = (one.tables.find((header.conversation_id, False)) for one in self._world.instances)
        return not any(one is not None and one.state is EndpointState.CLOSED for one in found)

    def bring_all(self) -> list[str]:
        """Let closed endpoints go, and bring what has opened them. Returns what was opened again.

        The initiator of an old copy still sends the first message of a conversation that has ended at its target. It
        opens a new target when the old one has gone: that is no frame that was kept.
        """
        world, loop = self._world, self._world.loop
        handles = {handle for one in world.instances for handle in one.tables.endpoints}
        ends = loop.now + LASTS_S
        while loop.now < ends:
            for instance in world.instances:
                for one in instance.tables.forget_closed(instance.clock()):
                    for later in AGAIN:
                        loop.after(later, lambda conversation=one.conversation: self._bring(conversation))  # type: ignore[misc]
            loop.run(loop.now + STEP_S)
        return [
            f"{instance}: {one.key} is opened again by a frame that was kept"
            for instance in world.instances
            for handle, one in instance.tables.endpoints.items()
            if handle not in handles and one.conversation not in self._world.parted
        ]

    def _bring(self, conversation: UUID) -> None:
        if conversation in self._world.parted:
            return
        for instance, link, came in self._kept[conversation]:
            self.brought += 1
            instance.trace("is brought an opening again", conversation)
            for daemon in instance.daemons[-1:]:
                daemon.take(link, came.body, is_forwarded=came.is_forwarded)
