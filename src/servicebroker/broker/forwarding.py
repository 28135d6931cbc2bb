"""Forwarding: messages held in memory for other instances, their links, and their log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import psycopg

from servicebroker.broker import journal
from servicebroker.broker.arrivals import ReceivedMessage
from servicebroker.broker.mirrors import Mirrors
from servicebroker.broker.transport.connections import show
from servicebroker.broker.transport.links import Links
from servicebroker.engine.remote.local_topology import LocalInstance
from servicebroker.model.errors import BrokerError
from servicebroker.protocol.budgets import UnansweredAddresses
from servicebroker.protocol.forwarding import MEGABYTE_BYTES, DroppedMessage, Forwarder, Passage
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address, Ask, Decision, Dropped, Elsewhere

EXPIRY_INTERVAL_S = 1.0  # seconds between checks for expired messages
MAX_LINKED = 1_000  # addresses that are remembered as linked
MAX_SHOWN = 1_000  # messages in sys.dm_broker_forwarded_messages

Row = tuple[object, ...]


class Forwarding:
    """The forwarder of one instance. `draw` returns random bits for the identifiers of messages.

    Attributes:
        wake_at: the time at which `send` must be called; NEVER while no message is held.
    """

    def __init__(
        self,
        links: Links,
        mirrors: Mirrors,
        unanswered: UnansweredAddresses,
        seconds: Callable[[], float],
        draw: Callable[[int], int],
    ) -> None:
        self._links = links
        self._mirrors = mirrors
        self._unanswered = unanswered
        self._seconds = seconds
        self._draw = draw
        self._linked: set[Address] = set()  # addresses with a link at the last attempt
        self._forwarder: Forwarder[Elsewhere] = Forwarder(0)
        self.shares = 1  # shares that divide the memory
        self.wake_at = NEVER

    def takes(self, came: ReceivedMessage, decision: Decision, here: LocalInstance) -> bool:
        """Return whether the route of a message leads to another instance. If so, hold or drop it."""
        header = came.header
        journal.log_classified(decision.destination, header.to_service, header.to_broker, is_arrival=True)
        match decision.destination:
            case Elsewhere() as away if away.leads_to(here.addresses):
                journal.forwarded_dropped(BrokerError(11294), header)
            case Elsewhere() as away:
                self._forwarder.limit = here.forward_size * MEGABYTE_BYTES // self.shares
                self._take_in(came, away)
            case Dropped(9792):
                journal.forwarded_dropped(BrokerError(9792), header)
            case Ask():
                journal.forwarded_dropped(BrokerError(9770), header)
            case _:
                return False
        return True

    def _take_in(self, came: ReceivedMessage, hop: Elsewhere) -> None:
        """Hold a message for the next broker. Without a passage it comes from its original sender."""
        passage = came.passage or Passage(UUID(int=self._draw(128), version=4))
        now, owner = self._seconds(), came.link.owner
        refused = self._forwarder.take_in(came.header, came.body, passage, hop, now, owner)
        if refused is not None and refused.error.number == 11289:
            dropped = self._forwarder.make_room(came.body, owner)
            for refusal in dropped:
                _dropped(refusal)
            if dropped:
                refused = self._forwarder.take_in(came.header, came.body, passage, hop, now, owner)
        if refused is not None:
            _dropped(refused)
        self.wake_at = min(self.wake_at, now + EXPIRY_INTERVAL_S)

    def send(self, here: LocalInstance) -> bool:
        """Forward messages as far as links accept them. Returns whether any were sent."""
        if not here.forwards:
            self.drop_all(9792)
        now, sent = self._seconds(), False
        for hop in self._forwarder.hops:
            address = self._mirrors.address_of(hop)
            if isinstance(address, str) or not (address in self._linked or self._may_reach(hop, address, now)):
                continue
            link = self._links.reach(address)
            if isinstance(link, str):
                self._linked.discard(address)
                self._forwarder.postpone(hop)
                continue
            self._note_link(address)
            while link.room > 0 and (forwarded := self._forwarder.pass_on(hop, now)) is not None:
                if isinstance(forwarded, DroppedMessage):
                    _dropped(forwarded)
                    continue
                header, body = forwarded
                link.send(body, is_forwarded=True)
                journal.log_forwarded(header, address, len(body))
                sent = True
        if now >= self.wake_at:
            for refusal in self._forwarder.expire(now):
                _dropped(refusal)
            self.wake_at = now + EXPIRY_INTERVAL_S if len(self._forwarder) else NEVER
        return sent

    def _note_link(self, address: Address) -> None:
        """Record a link to an address: further messages to it need no budget."""
        if address not in self._linked:
            if len(self._linked) >= MAX_LINKED:
                self._linked.clear()
            self._linked.add(address)
            self._unanswered.reached(address)

    def _may_reach(self, hop: Elsewhere, address: Address, now: float) -> bool:
        """Return whether the budget of an owner with messages for a hop allows a connection to it."""
        return any(self._unanswered.may_connect(owner, address, now) for owner in self._forwarder.owners_at(hop))

    def drop_all(self, number: int) -> None:
        """Drop all messages for this reason. The senders repeat them."""
        for refusal in self._forwarder.drop_all(number):
            _dropped(refusal)

    @property
    def held(self) -> tuple[int, int]:
        """The number of held messages, and their bytes."""
        return len(self._forwarder), self._forwarder.held_bytes

    def observed(self) -> list[Row]:
        """Return the rows of sys.dm_broker_forwarded_messages."""
        now = self._seconds()
        return [
            (
                held.passage.message_id,
                held.header.conversation_id,
                held.header.is_from_initiator,
                held.header.to_service,
                held.header.to_broker,
                held.header.from_service,
                held.header.from_broker,
                str(held.hop.address),
                held.header.number,
                held.header.fragment,
                held.passage.hops_remaining,
                held.passage.time_to_live,
                int(held.consumed(now)),
            )
            for held, _ in zip(self._forwarder, range(MAX_SHOWN), strict=False)
        ]


_COLUMNS = (
    *("message_id", "conversation_id", "is_initiator", "to_service_name", "to_broker_instance", "from_service_name"),
    *("from_broker_instance", "adjacent_broker_address", "message_sequence_number", "message_fragment_number"),
    *("hops_remaining", "time_to_live", "time_consumed"),
)


def write(connection: psycopg.Connection[tuple[object, ...]], rows: Sequence[Row]) -> None:
    """Write the rows of sys.dm_broker_forwarded_messages."""
    show(connection, "forwarded_messages", _COLUMNS, rows)


def _dropped(refusal: DroppedMessage) -> None:
    journal.forwarded_dropped(refusal.error, refusal.header)
