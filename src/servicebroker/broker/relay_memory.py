"""What a relay remembers of conversations: a bounded number of them, since all can be found in the database again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from uuid import UUID

from servicebroker.broker.links import Link
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.model.dialog_security import Security
from servicebroker.model.states import EndpointState
from servicebroker.protocol.dialog import SENDS, Dialog, Identity, Sending, TransmissionState
from servicebroker.protocol.dialog_keys import SessionKeys
from servicebroker.protocol.envelope import BrokerFailure, Part, unpack_exchange
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address, Elsewhere

CAPACITY = 10_000  # conversations
DEFAULT_PRIORITY = 5


@dataclass(slots=True, eq=False)
class Entry:
    """A conversation endpoint in memory."""

    endpoint: RemoteEndpoint
    dialog: Dialog
    end: int  # one above the highest message known to wait
    session: SessionKeys | None  # None while its keys cannot be opened
    address: Address | None = None
    pair: Elsewhere | None = None  # by a mirrored route: the two brokers, of which `address` is the principal
    is_claimed: bool = False  # nobody in this instance becomes its target any more
    is_stale: bool = False  # a route has changed since its address was found
    link: Link | None = None
    parts: dict[int, Part] = field(default_factory=dict)  # offered, not yet sent
    load: int = 0  # bytes of messages that are offered and not acknowledged, as its link has counted them
    is_storing: bool = False  # a batch of its dialog is on its way into the database
    status: str | None = None  # that was written last
    match_at: float = NEVER  # when its address is looked for again
    alarm: float = NEVER  # the next one that is set

    @property
    def priority(self) -> int:
        """Of what it sends, 1 to 10."""
        return self.endpoint.priority if self.endpoint.honors_priority else DEFAULT_PRIORITY

    @property
    def wants_route(self) -> bool:
        """Whether it is to be matched, or again."""
        return self.address is None or not self.is_claimed or self.is_stale

    @property
    def wants_more(self) -> bool:
        """Whether messages wait in the database that are not offered yet."""
        return self.dialog.next_to_offer < self.end

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is lost or delayed when it is forgotten."""
        is_unacknowledged = self.dialog.load > 0 and self.dialog.sending in SENDS  # and is tried again
        return self.dialog.is_idle and not self.wants_more and not is_unacknowledged


class Memory:
    """The entries, and what is kept in step with them."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
        draw: Callable[[], float],
        capacity: int,
        limits: Limits,
        session_of: Callable[[RemoteEndpoint], SessionKeys | None],
    ) -> None:
        self._session_of = session_of
        self._clock = clock
        self._seconds = seconds
        self._draw = draw
        self._capacity = capacity
        self._limits = limits
        self._entries: dict[UUID, Entry] = {}
        self._by_conversation: dict[tuple[UUID, bool], UUID] = {}
        self._alarms: list[tuple[float, UUID]] = []
        self.waiting_bytes = 0  # of bodies

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, handle: UUID) -> bool:
        return handle in self._entries

    def get(self, handle: UUID) -> Entry | None:
        """The entry of an endpoint."""
        return self._entries.get(handle)

    def items(self) -> Iterator[tuple[UUID, Entry]]:
        """All, in the order in which they came."""
        return iter(list(self._entries.items()))

    def find(self, conversation: UUID, is_initiator: bool) -> UUID | None:
        """The handle of that side of a conversation."""
        return self._by_conversation.get((conversation, is_initiator))

    def enter(self, endpoint: RemoteEndpoint) -> UUID:
        """Remember an endpoint as the database has it."""
        handle = endpoint.conversation_handle
        self.forget(handle)
        lifetime = self._seconds() + (endpoint.lifetime - self._clock()).total_seconds()
        dialog = Dialog(_identity(endpoint, lifetime), _state(endpoint), self._draw, self._limits)
        if endpoint.state == EndpointState.CLOSED:
            dialog.close()
        elif endpoint.failure is not None:
            dialog.refuse(BrokerFailure(*endpoint.failure))
        session = self._session_of(endpoint)
        self._entries[handle] = Entry(endpoint, dialog, endpoint.send_sequence, session, is_claimed=endpoint.is_remote)
        self._by_conversation[endpoint.conversation_id, endpoint.is_initiator] = handle
        return handle

    def forget(self, handle: UUID) -> None:
        """It is gone, or can wait."""
        entry = self._entries.pop(handle, None)
        if entry is not None:
            self.release(entry)
            del self._by_conversation[entry.endpoint.conversation_id, entry.endpoint.is_initiator]

    def hold(self, entry: Entry, numbers: Sequence[int], parts: Sequence[Part]) -> None:
        """Keep what was read of messages with these numbers until it is sent."""
        fresh = {number: part for number, part in zip(numbers, parts, strict=False) if number not in entry.parts}
        entry.parts |= fresh
        self.waiting_bytes += _size(fresh.values())

    def take(self, entry: Entry, numbers: Sequence[int]) -> tuple[Part, ...]:
        """What is kept of them, to be sent."""
        parts = tuple([entry.parts.pop(number) for number in numbers])
        self.waiting_bytes -= _size(parts)
        return parts

    def release(self, entry: Entry, below: float = NEVER) -> None:
        """The bodies of messages below that number are not needed any more, or will be read again."""
        self.take(entry, [number for number in entry.parts if number < below])

    def set_alarm(self, entry: Entry) -> None:
        """Ring when the entry next has something to do by itself."""
        at = min(entry.dialog.wake_at, entry.match_at)
        if at < entry.alarm:
            entry.alarm = at
            heappush(self._alarms, (at, entry.endpoint.conversation_handle))

    def ringing(self, now: float) -> Iterator[tuple[UUID, Entry]]:
        """Whose alarm is due; set another one if need be."""
        while self._alarms and self._alarms[0][0] <= now:
            at, handle = heappop(self._alarms)
            entry = self._entries.get(handle)
            if entry is not None and entry.alarm == at:
                entry.alarm = NEVER
                yield handle, entry

    @property
    def wake_at(self) -> float:
        """The next alarm."""
        return self._alarms[0][0] if self._alarms else NEVER

    @property
    def room(self) -> int:
        """How many more entries it takes."""
        return self._capacity - len(self._entries)

    def make_room(self) -> bool:
        """Forget those at rest when there are too many, then those without a link. Whether some of these went."""
        excess = len(self._entries) - self._capacity
        if excess <= 0:
            return False
        excess += self._capacity // 10  # not for every single one
        at_rest = [handle for handle, entry in self._entries.items() if entry.is_at_rest]
        stuck = [
            handle
            for handle, entry in self._entries.items()
            if entry.link is None and not entry.is_storing and not entry.is_at_rest
        ]
        for handle in at_rest[:excess]:
            self.forget(handle)
        evicted = stuck[: max(0, excess - len(at_rest))]
        for handle in evicted:
            self.forget(handle)
        return bool(evicted)


def _size(parts: Iterable[Part]) -> int:
    return sum([len(part.body) for part in parts if part.body])


def _identity(endpoint: RemoteEndpoint, lifetime: float) -> Identity:
    return Identity(
        endpoint.conversation_id,
        endpoint.is_initiator,
        endpoint.own_broker,
        endpoint.own_service,
        endpoint.far_service,
        endpoint.contract,
        lifetime,
        endpoint.encryption,
        endpoint.security in (Security.ANONYMOUS, Security.FULL),
        None if endpoint.keys is None or endpoint.keys.exchange is None else unpack_exchange(endpoint.keys.exchange),
    )


def _state(endpoint: RemoteEndpoint) -> TransmissionState:
    has_ended = endpoint.state in (EndpointState.DISCONNECTED_INBOUND, EndpointState.CLOSED)
    return TransmissionState(
        base=endpoint.first,
        sent_below=endpoint.send_sequence,
        sending=_SENDING.get(endpoint.state, Sending.FLOWING),
        far_broker=UUID(endpoint.far_broker) if endpoint.far_broker else None,
        is_acknowledged=endpoint.is_acknowledged,
        next=endpoint.receive_sequence,
        final=endpoint.receive_sequence - 1 if has_ended and endpoint.receive_sequence else None,
        token=endpoint.receive_token,
        kept=endpoint.kept,
    )


_SENDING = {
    EndpointState.DISCONNECTED_OUTBOUND.value: Sending.ENDING,
    EndpointState.ERROR.value: Sending.FAILED,
    EndpointState.CLOSED.value: Sending.CLOSED,
}
