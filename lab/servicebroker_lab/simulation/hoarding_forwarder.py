"""A forwarder that records the first messages of secured conversations, and replays them after their targets are gone.

It has no key, so it can only replay. It records messages as they arrive at an instance.
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

MAX_KEPT = 6  # messages of a conversation, because decrypting one takes 0.3 ms
STEP_S = 60.0  # the time between two checks for removed endpoints
TOTAL_TIME_S = 6_000.0  # enough to remove all closed endpoints and to replay, with clocks that differ by 10 min
# Seconds after the removal of a target at which its messages are replayed. 2,100 s: then, 65 min after its end, a
# message that was sealed by a clock one hour ahead looks new.
REPLAY_DELAYS_S = (0.0, 600.0, 1_190.0, 2_100.0)


class _HeldMessage(NamedTuple):
    """A message, with the instance and the connection at which it has arrived."""

    instance: Instance
    link: Link
    message: Arrived


class HoardingForwarder:
    """The forwarder on all connections of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept: defaultdict[UUID, list[_HeldMessage]] = defaultdict(list)
        self.replayed = 0

    def keep(self, instance: Instance, link: Link, message: Arrived) -> None:
        """Record a message that has arrived at an instance, if it is the first one of a secured conversation."""
        try:
            header = parse(unwrap(message.body)[1] if message.is_forwarded else message.body).header
        except CorruptedMessage:
            return
        kept = self._kept[header.conversation_id]
        if (
            header.opening is not None
            and header.is_secured
            and len(kept) < MAX_KEPT
            and self._is_replay_forbidden(header)
        ):
            kept.append(_HeldMessage(instance, link, message))

    def _is_replay_forbidden(self, header: Header) -> bool:
        """Return False if a replay of the message may open the conversation again (docs/reference/rules.md).

        It may if the message was sealed after its target had closed, because acknowledgements were lost, or by an
        anonymous initiator whose clock is far ahead.
        """
        initiator = next(
            (instance for instance in self._world.instances if instance.tables.broker == header.from_broker), None
        )
        is_anonymous = header.exchange is not None and not header.exchange.source
        if initiator is not None and is_anonymous:
            latest = min(instance.clock() for instance in self._world.instances) + CLOCK_ALLOWANCE
            if initiator.clock() > latest:
                return False
        targets = (instance.tables.find((header.conversation_id, False)) for instance in self._world.instances)
        return not any(target is not None and target.state is EndpointState.CLOSED for target in targets)

    def replay_all(self) -> list[str]:
        """Remove closed endpoints over time, and replay their first messages. Returns the conversations opened again.

        Conversations of a restored copy are excluded: their initiator sends the first message again, which opens a new
        target, without any replay.
        """
        world, loop = self._world, self._world.loop
        handles = {handle for instance in world.instances for handle in instance.tables.endpoints}
        end = loop.now + TOTAL_TIME_S
        while loop.now < end:
            for instance in world.instances:
                for endpoint in instance.tables.forget_closed(instance.clock()):
                    for delay in REPLAY_DELAYS_S:
                        loop.after(delay, lambda conversation=endpoint.conversation: self._replay(conversation))  # type: ignore[misc]
            loop.run(loop.now + STEP_S)
        return [
            f"{instance}: {endpoint.key} is opened again by a replayed message"
            for instance in world.instances
            for handle, endpoint in instance.tables.endpoints.items()
            if handle not in handles and endpoint.conversation not in self._world.parted
        ]

    def _replay(self, conversation: UUID) -> None:
        if conversation in self._world.parted:
            return
        for instance, link, message in self._kept[conversation]:
            self.replayed += 1
            instance.trace("gets a first message again", conversation)
            for daemon in instance.daemons[-1:]:
                daemon.take(link, message.body, is_forwarded=message.is_forwarded)
