"""The conversations that a relay has in memory. Their number is bounded: others are read from the database again.

`protocol/conversation_states.py` has the state machine of a conversation; this file carries out its actions. Only this
file changes the state of a conversation in memory. Each link (connection to a peer) has a queue of the conversations
that send on it, by priority.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heappop, heappush
from typing import NamedTuple
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.transport.links import Link, Links
from servicebroker.engine.remote.remote_endpoints import RemoteEndpoint
from servicebroker.engine.remote.remote_opening import CreatedTarget
from servicebroker.model.errors import RULES
from servicebroker.model.security.dialog_security import NO_SERVICE_MASTER_KEY, Security
from servicebroker.model.states import EndpointState
from servicebroker.protocol.backoff import FIRST_RETRY_S
from servicebroker.protocol.conversation_states import (
    ARRIVING,
    SENDER_TRANSITIONS,
    Action,
    BatchEvent,
    Event,
    Stage,
    Storing,
    step,
)
from servicebroker.protocol.dialog import SENDS, Dialog, Identity, Sending, TransmissionState
from servicebroker.protocol.dialog_keys import SessionKeys
from servicebroker.protocol.envelope import BrokerFailure, Part, unpack_exchange
from servicebroker.protocol.fairness import FairQueue
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address, Elsewhere

MAX_CONVERSATIONS = 10_000  # the most conversations in memory; others stay in the database
RECENT_S = 0.5  # seconds of one measurement of a link's traffic
# Fragments of a large message in flight while other conversations send small messages, per second of round-trip time:
# one if the peer is near. With a long round trip more fragments delay nobody.
LARGE_FRAGMENTS_PER_S = 128
ROUTE_MATCH_INTERVAL_S = 5.0  # seconds until a conversation without address is matched again
CLEAR_STATUS_S = 0.25  # seconds; an earlier acknowledgement makes the new status superfluous
DEFAULT_PRIORITY = 5


@dataclass(slots=True, eq=False)
class Entry:
    """A conversation endpoint in memory."""

    endpoint: RemoteEndpoint
    dialog: Dialog
    end: int  # one above the highest known message number
    session: SessionKeys | None  # None while its keys cannot be decrypted
    stage: Stage
    storing: Storing = Storing.NOTHING
    address: Address | None = None
    pair: Elsewhere | None = None  # the two brokers of a mirrored route; `address` is the principal's
    link: Link | None = None
    parts: dict[int, Part] = field(default_factory=dict)  # offered, not yet sent
    load: int = 0  # bytes of offered messages without acknowledgement, as counted for its link
    status: str | None = None  # transmission_status that was set last
    # of a target that refused an opening as too old: its clock (seconds since 1970), and the local seconds at that time
    peer_clock: tuple[int, float] | None = None
    match_at: float = NEVER  # time of the next matching
    alarm: float = NEVER  # time of the next alarm

    @property
    def priority(self) -> int:
        """The priority of its messages, 1 to 10."""
        return self.endpoint.priority if self.endpoint.honors_priority else DEFAULT_PRIORITY

    @property
    def has_unread(self) -> bool:
        """Return whether the database has messages that were not offered to the dialog yet."""
        return self.dialog.next_to_offer < self.end

    @property
    def is_to_send(self) -> bool:
        """Return whether it has messages without acknowledgement."""
        return self.has_unread or self.load > 0

    @property
    def is_forgettable(self) -> bool:
        """Return whether the entry can be dropped from memory without a loss or a delay."""
        is_to_send = self.has_unread or self.dialog.load > 0  # messages without acknowledgement are sent again
        return self.dialog.is_idle and not (is_to_send and self.dialog.sending in SENDS)

    @property
    def is_stuck(self) -> bool:
        """Return whether it waits for something that may take long. It can wait in the database as well."""
        return self.stage is not Stage.LINKED and self.storing is Storing.NOTHING and not self.is_forgettable

    def waits_to(self, last: int) -> None:
        """Record that the database has messages up to the number `last`."""
        self.end = max(self.end, last + 1)

    def has_no_more(self) -> None:
        """Record that the database has no further messages: END CONVERSATION has deleted them."""
        self.end = self.dialog.next_to_offer

    def note_claim(self, broker: str | None) -> None:
        """Record the claim: the target is in another instance. `broker`: the broker that the route names, if any."""
        self.endpoint = self.endpoint._replace(is_remote=True, routed_broker=broker)

    def note_acknowledgement(self, broker: str) -> None:
        """Record the broker that has acknowledged the first message."""
        if not self.endpoint.is_acknowledged:
            self.endpoint = self.endpoint._replace(is_acknowledged=True, peer_broker=broker)

    def date(self, own_clock: int, seconds: float) -> int:
        """Return the time of a frame, in seconds since 1970: by the local clock, or by the target's if it differs."""
        if self.peer_clock is None:
            return own_clock
        clock, since = self.peer_clock
        return clock + int(seconds - since)

    def note_peer_clock(self, clock: int, seconds: float) -> None:
        """Record the target's clock, which it reports when it refuses an opening as too old."""
        self.peer_clock = clock, seconds

    def note_made(self, target: CreatedTarget) -> None:
        """Record the created endpoint, with its handle and the priority from the database."""
        self.endpoint = self.endpoint._replace(**target._asdict())

    def secure(self, endpoint: RemoteEndpoint, session: SessionKeys | None) -> None:
        """Set the keys of the conversation."""
        self.endpoint, self.session = endpoint, session


class _SmallMessages(NamedTuple):
    """The small messages of a conversation that were sent: the last number, and the time."""

    handle: UUID
    last: int
    at: float


@dataclass(slots=True)
class _Traffic:
    """The traffic of a link: bytes in flight, bytes that its peer has acknowledged, and its round-trip time."""

    load: int = 0
    since: float = 0.0
    taken: int = 0  # bytes acknowledged since `since`
    taken_before: int = 0  # bytes acknowledged in the half second before
    small: _SmallMessages | None = None  # the small messages that were sent last
    measured: _SmallMessages | None = None  # the small messages whose round trip is being measured
    round_trip_s: float = NEVER  # the shortest time until an acknowledgement

    def turn(self, now: float) -> None:
        """Begin another half second of measurement, if the last one is over."""
        if now - self.since >= RECENT_S:
            self.taken_before = self.taken if now - self.since < 2 * RECENT_S else 0
            self.since, self.taken = now, 0


class Conversations:
    """The conversations in memory, with their queues at links, their alarms and their statuses."""

    def __init__(
        self,
        links: Links,
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
        draw: Callable[[], float],
        capacity: int,
        limits: Limits,
        session_of: Callable[[RemoteEndpoint], SessionKeys | None],
    ) -> None:
        self._links = links
        self._clock = clock
        self._seconds = seconds
        self._draw = draw
        self.capacity = capacity
        self._limits = limits
        self._session_of = session_of
        self._entries: dict[UUID, Entry] = {}
        self._by_conversation: dict[tuple[UUID, bool], UUID] = {}
        self._alarms: list[tuple[float, UUID]] = []
        self._lines: dict[Link, FairQueue[UUID]] = {}
        self._traffic: defaultdict[Link, _Traffic] = defaultdict(_Traffic)
        self._disabled: frozenset[int] = frozenset()
        self._statuses: dict[UUID, str] = {}
        self._to_clear: dict[UUID, float] = {}  # times at which "on their way" is written, the oldest first
        self.waiting_bytes = 0  # the bytes of bodies in memory
        self.to_read: dict[UUID, None] = {}  # conversations with messages to read, in turn
        self.wanted: set[UUID] = set()  # conversations to load from the database
        self.is_missing = False  # conversations that were routed locally must be matched again
        self._has_forgotten_local = False
        self.local_route_expiry = NEVER  # the first expiry of a route to a local target

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, handle: UUID) -> bool:
        return handle in self._entries

    def get(self, handle: UUID) -> Entry | None:
        """Return the entry of an endpoint, or None."""
        return self._entries.get(handle)

    def items(self) -> Iterator[tuple[UUID, Entry]]:
        """Yield all entries, in the order in which they were entered."""
        return iter(list(self._entries.items()))

    def find(self, conversation: UUID, is_initiator: bool) -> UUID | None:
        """Return the handle of one side of a conversation, or None."""
        return self._by_conversation.get((conversation, is_initiator))

    def enter(self, endpoint: RemoteEndpoint, session: SessionKeys | None = None) -> UUID:
        """Add an endpoint as read from the database. Without `session` its keys are decrypted here."""
        handle = endpoint.conversation_handle
        self.forget(handle)
        dialog = Dialog(_identity(endpoint, self._at(endpoint.lifetime)), _state(endpoint), self._draw, self._limits)
        if endpoint.state == EndpointState.CLOSED:
            dialog.close()
        elif endpoint.failure is not None:
            dialog.refuse(BrokerFailure(*endpoint.failure))
        session = session or self._session_of(endpoint)
        stage = Stage.CLAIMED_UNROUTED if endpoint.is_remote else Stage.UNROUTED
        self._entries[handle] = Entry(endpoint, dialog, endpoint.send_sequence, session, stage)
        self._by_conversation[endpoint.conversation_id, endpoint.is_initiator] = handle
        return handle

    def forget(self, handle: UUID) -> None:
        """Drop a conversation from memory, if it is there."""
        if entry := self._entries.get(handle):
            self.on_event(entry, Event.LEFT)

    def recheck_local_targets(self) -> None:
        """Handle changed routes or services: conversations with a local target may need another instance now."""
        self.is_missing |= self._has_forgotten_local
        self._has_forgotten_local = False
        self.local_route_expiry = NEVER

    # ---------------------------------------------------------------- events

    def on_event(
        self,
        entry: Entry,
        event: Event,
        *,
        address: Address | None = None,
        pair: Elsewhere | None = None,
        until: datetime | None = None,
        link: Link | None = None,
        why: str = "",
    ) -> None:
        """Handle an event: enter the next stage, and carry out its actions.

        `address`: the matched address, with its `pair` if the route is mirrored. `until`: the expiry of the route.
        `link`: the new link. `why`: the reason why the messages wait.

        Raises:
            Impossible: the event cannot happen in this stage.
        """
        entry.stage, actions = step(SENDER_TRANSITIONS, entry.stage, event)
        for action in actions:
            match action:
                case Action.NOTE_ADDRESS:
                    entry.address, entry.pair = address, pair
                case Action.TAKE_LINK:
                    assert link is not None
                    entry.link = link
                    self._traffic[link].load += entry.load
                case Action.DROP_LINK:
                    assert entry.link is not None
                    self._traffic[entry.link].load -= entry.load
                    entry.link = None
                case Action.FORGET:
                    if event is Event.ROUTED_LOCALLY:
                        self._note_local_target(until)
                    self._remove(entry)
                case Action.CLEAR_STATUS:
                    if entry.is_to_send:
                        self._clear_status(entry)
                case Action.SET_STATUS:
                    if entry.is_to_send:
                        self.set_status(entry, why)
                case Action.ENQUEUE:
                    self.enqueue(entry.endpoint.conversation_handle)
                case Action.END_BACKOFF:
                    entry.dialog.link_up()
                case Action.RESEND:
                    self._stop(entry, "")
                    entry.dialog.link_up()
                case Action.TRY_LATER:
                    self._try_later(entry, why)
                case Action.MATCH_AT_EXPIRY:
                    self._match_at(entry, self._expiry(until))
                case _:
                    self._match_at(entry, self._seconds() + _PAUSES[action])

    def on_batch_event(self, entry: Entry, event: BatchEvent) -> None:
        """Handle an event of the conversation's batch. After the commit, the next frame acknowledges the batch.

        Raises:
            Impossible: the event cannot happen in this stage.
        """
        entry.storing, actions = step(ARRIVING, entry.storing, event)
        if Action.ACKNOWLEDGE in actions:
            entry.dialog.committed()
            self.halt(entry)
            if entry.dialog.sending is Sending.HELD:
                self.set_status(entry, entry.dialog.status)
            self.enqueue(entry.endpoint.conversation_handle)
        if Action.ROLL_BACK in actions:
            entry.dialog.rolled_back()

    def halt(self, entry: Entry) -> None:
        """Free the bodies of a conversation and its part of the link, if it sends no more."""
        if entry.dialog.sending not in SENDS:
            self.release(entry)
            self.weigh(entry)

    def _stop(self, entry: Entry, why: str) -> None:
        """Stop sending, and free the bodies that were read: they are read again later."""
        entry.dialog.link_down(self._seconds(), why)
        self.release(entry)

    def _try_later(self, entry: Entry, why: str) -> None:
        self._stop(entry, why)
        if why not in ("", entry.status):
            journal.transmission(entry.endpoint.conversation_id, why)
        self.set_status(entry, why)
        self.set_alarm(entry)

    def _at(self, time: datetime) -> float:
        return self._seconds() + (time - self._clock()).total_seconds()

    def _expiry(self, until: datetime | None) -> float:
        """Return when a route expires: in the future, since the store found it valid by its own clock."""
        return NEVER if until is None else max(self._at(until), self._seconds() + FIRST_RETRY_S)

    def _note_local_target(self, until: datetime | None) -> None:
        """Record a forgotten conversation with a local target. One expiry is kept for all of them."""
        self._has_forgotten_local = True
        self.local_route_expiry = min(self.local_route_expiry, self._expiry(until))

    def _match_at(self, entry: Entry, at: float) -> None:
        entry.match_at = at
        self.set_alarm(entry)

    def _remove(self, entry: Entry) -> None:
        self.release(entry)
        del self._entries[entry.endpoint.conversation_handle]
        del self._by_conversation[entry.endpoint.conversation_id, entry.endpoint.is_initiator]

    # ---------------------------------------------------------------- links, and the queues at them

    def reached(self, address: Address) -> None:
        """Handle a new link to an address: waiting conversations may send immediately."""
        self._tell(address, Event.REACHED)

    def unreached(self, address: Address, status: str) -> None:
        """Handle the failure to connect to an address, with the reason."""
        self._tell(address, Event.UNREACHED, status)

    def _tell(self, address: Address, event: Event, why: str = "") -> None:
        for _, entry in self.items():
            if entry.address == address:
                self.on_event(entry, event, why=why)

    def lost(self, link: Link, status: str) -> list[Address]:
        """Handle the end of a link: unacknowledged messages are sent again. Returns the addresses that it led to."""
        self._lines.pop(link, None)
        torn: dict[Address, None] = {}
        for _, entry in self.items():
            if entry.link is link:
                self.on_event(entry, Event.LINK_LOST, why=status)
                if entry.address is not None:
                    torn[entry.address] = None
        self._traffic.pop(link, None)
        return list(torn)

    def enable(self, disabled: frozenset[int]) -> set[UUID]:
        """Set the databases whose broker is disabled. Returns the conversations of changed databases."""
        changed, self._disabled = self._disabled ^ disabled, disabled
        if not changed:
            return set()
        touched = {handle for handle, entry in self.items() if entry.endpoint.database_id in changed}
        for handle in touched:
            if (entry := self.get(handle)) and entry.endpoint.database_id not in disabled:
                entry.dialog.link_up()
        return touched

    def is_enabled(self, entry: Entry) -> bool:
        """Return whether the broker of its database is enabled."""
        return entry.endpoint.database_id not in self._disabled

    def attach(self, entry: Entry) -> bool:
        """Return whether the conversation has a link. It gets one here if possible."""
        if entry.stage is Stage.CLAIMED and entry.address is not None:
            link = self._links.reach(entry.address)
            if not isinstance(link, str):
                self.on_event(entry, Event.LINK_FOUND, link=link)
        return entry.stage is Stage.LINKED

    def enqueue(self, handle: UUID) -> None:
        """Put a conversation with work into the queue at the link of its address."""
        entry = self._entries.get(handle)
        if entry is None:
            return
        entry.dialog.limit_large(self._large_window(entry))
        if obstacle := self._obstacle(entry):
            if entry.has_unread or entry.dialog.has_work(self._seconds()):
                self.on_event(entry, Event.SEND_BLOCKED, why=obstacle)
        elif entry.dialog.has_work(self._seconds()):
            if entry.link is None and entry.address is not None:
                link = self._links.reach(entry.address)
                if isinstance(link, str):
                    self.on_event(entry, Event.SEND_BLOCKED, why=link)
                    return
                self.on_event(entry, Event.LINK_FOUND, link=link)
                if entry.link is not None:  # without a link the conversation must be claimed first
                    self.to_read[handle] = None
            if entry.link is not None:
                self._lines.setdefault(entry.link, FairQueue()).add(handle, entry.priority)
        self.set_alarm(entry)

    def _large_window(self, entry: Entry) -> int | None:
        """Return the window of large messages while others send small ones on its link; else None."""
        if entry.link is not None:
            small, round_trip_s = self._traffic[entry.link].small, self._traffic[entry.link].round_trip_s
            is_other = small is not None and small.handle != entry.endpoint.conversation_handle
            if small is not None and is_other and self._seconds() - small.at < RECENT_S:
                return int(
                    min(
                        self._limits.window, self._limits.fragment_size * max(1.0, LARGE_FRAGMENTS_PER_S * round_trip_s)
                    )
                )
        return None

    def sent_small(self, entry: Entry, last: int) -> None:
        """Record small messages that were sent. Large messages of others leave room for them for `RECENT_S`."""
        if entry.link is None:
            return
        traffic, now = self._traffic[entry.link], self._seconds()
        traffic.small = _SmallMessages(entry.endpoint.conversation_handle, last, now)
        if traffic.measured is None or now - traffic.measured.at > self._limits.first_retry:
            traffic.measured = traffic.small

    def acknowledged(self, entry: Entry, below: int) -> None:
        """Handle an acknowledgement: the peer has stored the messages below this number."""
        self.release(entry, below)
        if self._to_clear and not entry.has_unread and not entry.dialog.load:
            self._to_clear.pop(entry.endpoint.conversation_handle, None)
        if entry.link is not None:
            traffic = self._traffic[entry.link]
            measured = traffic.measured
            if measured and measured.handle == entry.endpoint.conversation_handle and measured.last < below:
                traffic.round_trip_s = min(traffic.round_trip_s, self._seconds() - measured.at)
                traffic.measured = None
        self.weigh(entry)

    def _obstacle(self, entry: Entry) -> str:
        """Return why the conversation may not send at all, or ''."""
        if not self.is_enabled(entry):
            return RULES[9791].text
        if entry.session is None:
            return RULES[28054].text.format(entry.endpoint.own_service, NO_SERVICE_MASTER_KEY)
        return ""

    @property
    def lines(self) -> Iterator[tuple[Link, FairQueue[UUID]]]:
        """The links, each with its queue of conversations."""
        return iter(list(self._lines.items()))

    def load(self, link: Link) -> int:
        """Return the bytes in flight on a link."""
        return self._traffic[link].load

    def recent_bytes(self, link: Link) -> int:
        """Return the bytes that the peer has acknowledged in the last half second, or in the one before."""
        traffic = self._traffic[link]
        traffic.turn(self._seconds())
        return max(traffic.taken, traffic.taken_before)

    def weigh(self, entry: Entry) -> None:
        """Update the load of the conversation's link."""
        before, entry.load = entry.load, entry.dialog.load
        if entry.link is not None:
            traffic, released = self._traffic[entry.link], before - entry.load
            traffic.load -= released
            if released > 0:
                traffic.turn(self._seconds())
                traffic.taken += released

    def set_status(self, entry: Entry, status: str) -> None:
        """Set transmission_status: the reason why its messages wait, or '' while they are sent."""
        handle = entry.endpoint.conversation_handle
        if status or entry.status != status:
            self._to_clear.pop(handle, None)
            self._statuses[handle] = entry.status = status

    def _clear_status(self, entry: Entry) -> None:
        """Set transmission_status to ''; for new messages after `CLEAR_STATUS_S`, unless they are acknowledged."""
        if entry.status is None:
            self._to_clear[entry.endpoint.conversation_handle] = self._seconds() + CLEAR_STATUS_S
            entry.status = ""
        else:
            self.set_status(entry, "")

    def take_statuses(self) -> dict[UUID, str]:
        """Return the statuses to write now, and clear them."""
        taken, self._statuses = self._statuses, {}
        now = self._seconds()
        while self._to_clear and (first := next(iter(self._to_clear.items())))[1] <= now:
            del self._to_clear[first[0]]
            taken[first[0]] = ""
        return taken

    # ---------------------------------------------------------------- bodies

    def hold(self, entry: Entry, numbers: Sequence[int], parts: Sequence[Part]) -> None:
        """Keep the read bodies of messages with these numbers until they are sent."""
        fresh = {number: part for number, part in zip(numbers, parts, strict=False) if number not in entry.parts}
        entry.parts |= fresh
        self.waiting_bytes += _size(fresh.values())

    def take(self, entry: Entry, numbers: Sequence[int]) -> tuple[Part, ...]:
        """Return the bodies of these messages for sending, and free them."""
        parts = tuple([entry.parts.pop(number) for number in numbers])
        self.waiting_bytes -= _size(parts)
        return parts

    def release(self, entry: Entry, below: float = NEVER) -> None:
        """Free the bodies of messages below this number: they are acknowledged, or will be read again."""
        self.take(entry, [number for number in entry.parts if number < below])

    # ---------------------------------------------------------------- timers and capacity

    def set_alarm(self, entry: Entry) -> None:
        """Set the alarm to the entry's next timer: of its dialog, or of its matching."""
        at = min(entry.dialog.wake_at, entry.match_at)
        if at < entry.alarm:
            entry.alarm = at
            heappush(self._alarms, (at, entry.endpoint.conversation_handle))

    def due_alarms(self, now: float) -> Iterator[tuple[UUID, Entry]]:
        """Yield the conversations whose alarm is due."""
        while self._alarms and self._alarms[0][0] <= now:
            at, handle = heappop(self._alarms)
            entry = self._entries.get(handle)
            if entry is not None and entry.alarm == at:
                entry.alarm = NEVER
                yield handle, entry

    @property
    def wake_at(self) -> float:
        """The time of the next alarm, or now if a conversation may send."""
        if any(line and link.room > 0 for link, line in self._lines.items()):
            return self._seconds()
        first_alarm = self._alarms[0][0] if self._alarms else NEVER
        return min(first_alarm, next(iter(self._to_clear.values()), NEVER))

    @property
    def room(self) -> int:
        """The number of entries that can be added."""
        return self.capacity - len(self._entries)

    def make_room(self) -> bool:
        """If there are too many conversations, evict idle, then waiting ones. Returns whether waiting ones were."""
        excess = len(self._entries) - self.capacity
        if excess <= 0:
            return False
        excess += self.capacity // 10  # evict in batches, not for each new entry
        idle = [handle for handle, entry in self._entries.items() if entry.is_forgettable]
        waiting = [handle for handle, entry in self._entries.items() if entry.is_stuck]
        for handle in idle[:excess]:
            self.forget(handle)
        evicted = waiting[: max(0, excess - len(idle))]
        for handle in evicted:
            self.forget(handle)
        return bool(evicted)


_PAUSES = {Action.MATCH_NOW: 0.0, Action.MATCH_SOON: FIRST_RETRY_S, Action.MATCH_LATER: ROUTE_MATCH_INTERVAL_S}


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
    is_ended = endpoint.state in (EndpointState.DISCONNECTED_INBOUND, EndpointState.CLOSED)
    has_ended = is_ended or endpoint.is_end_waiting
    return TransmissionState(
        base=endpoint.first,
        sent_below=endpoint.send_sequence,
        sending=_SENDING_BY_STATE.get(endpoint.state, Sending.FLOWING),
        peer_broker=UUID(endpoint.peer_broker) if endpoint.peer_broker else None,
        is_acknowledged=endpoint.is_acknowledged,
        next=endpoint.receive_sequence,
        final=endpoint.receive_sequence - 1 if has_ended and endpoint.receive_sequence else None,
        token=endpoint.receive_token,
        kept=endpoint.kept,
    )


_SENDING_BY_STATE = {
    EndpointState.DISCONNECTED_OUTBOUND.value: Sending.ENDING,
    EndpointState.ERROR.value: Sending.FAILED,
    EndpointState.CLOSED.value: Sending.CLOSED,
}
