"""The conversations that a relay has in memory. Their number is bounded: others are found in the database again.

`protocol/on_its_way.py` has the state machine of a conversation; this file carries out its acts. Only this file changes
the state of a conversation in memory. Each link (connection to a peer) has a queue of the conversations that send on
it, by priority.
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
from servicebroker.engine.remote.remote_opening import MadeTarget
from servicebroker.model.errors import RULES
from servicebroker.model.security.dialog_security import NO_SERVICE_MASTER_KEY, Security
from servicebroker.model.states import EndpointState
from servicebroker.protocol.backoff import FIRST_RETRY_S
from servicebroker.protocol.dialog import SENDS, Dialog, Identity, Sending, TransmissionState
from servicebroker.protocol.dialog_keys import SessionKeys
from servicebroker.protocol.envelope import BrokerFailure, Part, unpack_exchange
from servicebroker.protocol.fairness import FairQueue
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.on_its_way import ARRIVING, LEAVING, Act, BatchEvent, Event, Stage, Storing, step
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.routing import Address, Elsewhere

MAX_CONVERSATIONS = 10_000  # conversations
RECENT_S = 0.5  # seconds
# fragments under way of a large message beside which others send small ones, for each second of the shortest time until
# an acknowledgement: one on a short way, more on a long one, where they delay nobody
ASIDE_RATE = 128
MATCH_AGAIN = 5.0  # seconds until a delayed conversation is matched again
CLEAR_STATUS_S = 0.25  # an acknowledgement that comes before deletes the messages, and spares writing their status
DEFAULT_PRIORITY = 5


@dataclass(slots=True, eq=False)
class Entry:
    """A conversation endpoint in memory."""

    endpoint: RemoteEndpoint
    dialog: Dialog
    end: int  # one above the highest message known to wait
    session: SessionKeys | None  # None while its keys cannot be opened
    stage: Stage
    storing: Storing = Storing.NOTHING
    address: Address | None = None
    pair: Elsewhere | None = None  # by a mirrored route: the two brokers, of which `address` is the principal
    link: Link | None = None
    parts: dict[int, Part] = field(default_factory=dict)  # offered, not yet sent
    load: int = 0  # bytes of messages that are offered and not acknowledged, as its link has counted them
    status: str | None = None  # that was written last
    far_clock: tuple[int, float] | None = None  # of a target that took no opening: seconds since 1970, and when, here
    match_at: float = NEVER  # when its address is looked for again
    alarm: float = NEVER  # the next one that is set

    @property
    def priority(self) -> int:
        """The priority of its messages, 1 to 10."""
        return self.endpoint.priority if self.endpoint.honors_priority else DEFAULT_PRIORITY

    @property
    def wants_more(self) -> bool:
        """Return whether messages wait in the database that are not offered yet."""
        return self.dialog.next_to_offer < self.end

    @property
    def is_to_send(self) -> bool:
        """Return whether it has messages that are not acknowledged."""
        return self.wants_more or self.load > 0

    @property
    def is_at_rest(self) -> bool:
        """Return whether nothing is lost or delayed when it is forgotten."""
        is_to_send = self.wants_more or self.dialog.load > 0  # unacknowledged messages are tried again
        return self.dialog.is_idle and not (is_to_send and self.dialog.sending in SENDS)

    @property
    def is_stuck(self) -> bool:
        """Return whether it waits for something that may take long, and can do so in the database."""
        return self.stage is not Stage.LINKED and self.storing is Storing.NOTHING and not self.is_at_rest

    def waits_to(self, last: int) -> None:
        """Messages up to that one wait in the database."""
        self.end = max(self.end, last + 1)

    def has_no_more(self) -> None:
        """Note that only offered messages are left: END CONVERSATION has dropped the rest."""
        self.end = self.dialog.next_to_offer

    def note_claim(self, broker: str | None) -> None:
        """Its target is elsewhere, in that broker instance if its route names one, whatever routes there are later."""
        self.endpoint = self.endpoint._replace(is_remote=True, routed_broker=broker)

    def note_acknowledgement(self, broker: str) -> None:
        """Its target is there."""
        if not self.endpoint.is_acknowledged:
            self.endpoint = self.endpoint._replace(is_acknowledged=True, far_broker=broker)

    def date(self, own_clock: int, seconds: float) -> int:
        """The time at which a frame is sealed, in seconds since 1970: by our clock, or by that of the target."""
        if self.far_clock is None:
            return own_clock
        told, since = self.far_clock
        return told + int(seconds - since)

    def note_far_clock(self, clock: int, seconds: float) -> None:
        """Its target has not taken the opening, and says what its clock shows."""
        self.far_clock = clock, seconds

    def note_made(self, made: MadeTarget) -> None:
        """Its endpoint is made, and has the priority that the database gives it."""
        self.endpoint = self.endpoint._replace(**made._asdict())

    def secure(self, endpoint: RemoteEndpoint, session: SessionKeys | None) -> None:
        """Set the keys of the conversation."""
        self.endpoint, self.session = endpoint, session


class _Small(NamedTuple):
    """Small messages that have left: whose, the number of the last one, and when."""

    handle: UUID
    last: int
    at: float


@dataclass(slots=True)
class _Traffic:
    """The traffic of a link: bytes in flight, bytes that its peer has acknowledged, and its round-trip time."""

    load: int = 0
    since: float = 0.0
    taken: int = 0  # since then
    taken_before: int = 0  # in the half second before that
    small: _Small | None = None  # the last
    measured: _Small | None = None  # the ones whose acknowledgement is measured
    quickest: float = NEVER  # seconds until one was acknowledged

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
        self.waiting_bytes = 0  # of bodies
        self.hungry: dict[UUID, None] = {}  # to be read further, in turns
        self.wanted: set[UUID] = set()  # to be looked up in the database
        self.is_missing = False  # some were forgotten whose target was to be here, and may be elsewhere now
        self._has_left_at_home = False
        self.home_until = NEVER  # when the first route expires by which one of them was to find its target here

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

    def enter(self, endpoint: RemoteEndpoint, session: SessionKeys | None = None) -> UUID:
        """Remember an endpoint as the database has it; its keys are opened if `session` is not given."""
        handle = endpoint.conversation_handle
        self.forget(handle)
        dialog = Dialog(_identity(endpoint, self._at(endpoint.lifetime)), _state(endpoint), self._draw, self._limits)
        if endpoint.state == EndpointState.CLOSED:
            dialog.close()
        elif endpoint.failure is not None:
            dialog.refuse(BrokerFailure(*endpoint.failure))
        session = session or self._session_of(endpoint)
        stage = Stage.DELAYED if endpoint.is_remote else Stage.FOUND
        self._entries[handle] = Entry(endpoint, dialog, endpoint.send_sequence, session, stage)
        self._by_conversation[endpoint.conversation_id, endpoint.is_initiator] = handle
        return handle

    def forget(self, handle: UUID) -> None:
        """Forget a conversation: its endpoint is gone, or it has nothing to do for now."""
        if entry := self._entries.get(handle):
            self.happens(entry, Event.LEFT)

    def look_again(self) -> None:
        """Routes or services have changed: who was to find a target here may have to leave."""
        self.is_missing |= self._has_left_at_home
        self._has_left_at_home = False
        self.home_until = NEVER

    # ---------------------------------------------------------------- what happens to them

    def happens(
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
        """Carry out what the table answers. With the address that was found, the link, or why its messages wait.

        `until` is when the route expires by which its address, or its target here, was found.

        Raises:
            Impossible: it cannot happen to this conversation now.
        """
        entry.stage, acts = step(LEAVING, entry.stage, event)
        for act in acts:
            match act:
                case Act.NOTE_ADDRESS:
                    entry.address, entry.pair = address, pair
                case Act.TAKE_LINK:
                    assert link is not None
                    entry.link = link
                    self._traffic[link].load += entry.load
                case Act.DROP_LINK:
                    assert entry.link is not None
                    self._traffic[entry.link].load -= entry.load
                    entry.link = None
                case Act.FORGET:
                    if event is Event.AT_HOME:
                        self._leaves_at_home(until)
                    self._remove(entry)
                case Act.SAY_NOTHING:
                    if entry.is_to_send:
                        self._leaves_on_link(entry)
                case Act.SAY_WHY:
                    if entry.is_to_send:
                        self.say(entry, why)
                case Act.LINE_UP:
                    self.line_up(entry.endpoint.conversation_handle)
                case Act.GO:
                    entry.dialog.link_up()
                case Act.TRAVEL_AGAIN:
                    self._stop(entry, "")
                    entry.dialog.link_up()
                case Act.TRY_LATER:
                    self._try_later(entry, why)
                case Act.REST:
                    self._match_at(entry, self._expiry(until))
                case _:
                    self._match_at(entry, self._seconds() + _PAUSES[act])

    def stores(self, entry: Entry, event: BatchEvent) -> None:
        """Apply an event of its batch. Once that is durable the next frame acknowledges it.

        Raises:
            Impossible: it cannot happen to this conversation now.
        """
        entry.storing, acts = step(ARRIVING, entry.storing, event)
        if Act.ACKNOWLEDGE in acts:
            entry.dialog.committed()
            self.halt(entry)
            if entry.dialog.sending is Sending.HELD:
                self.say(entry, entry.dialog.status)
            self.line_up(entry.endpoint.conversation_handle)
        if Act.ROLL_BACK in acts:
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
        self.say(entry, why)
        self.set_alarm(entry)

    def _at(self, time: datetime) -> float:
        return self._seconds() + (time - self._clock()).total_seconds()

    def _expiry(self, until: datetime | None) -> float:
        """When a route expires: not yet, since the store's clock has found it valid."""
        return NEVER if until is None else max(self._at(until), self._seconds() + FIRST_RETRY_S)

    def _leaves_at_home(self, until: datetime | None) -> None:
        """One time is kept for all, since they may be any number."""
        self._has_left_at_home = True
        self.home_until = min(self.home_until, self._expiry(until))

    def _match_at(self, entry: Entry, at: float) -> None:
        entry.match_at = at
        self.set_alarm(entry)

    def _remove(self, entry: Entry) -> None:
        self.release(entry)
        del self._entries[entry.endpoint.conversation_handle]
        del self._by_conversation[entry.endpoint.conversation_id, entry.endpoint.is_initiator]

    # ---------------------------------------------------------------- links, and the lines at them

    def reached(self, address: Address) -> None:
        """Handle a new link to an address: conversations that wait for it may send at once."""
        self._tell(address, Event.REACHED)

    def unreached(self, address: Address, status: str) -> None:
        """Handle the failure to connect to an address, with the reason."""
        self._tell(address, Event.UNREACHED, status)

    def _tell(self, address: Address, event: Event, why: str = "") -> None:
        for _, entry in self.items():
            if entry.address == address:
                self.happens(entry, event, why=why)

    def lost(self, link: Link, status: str) -> list[Address]:
        """Handle the end of a link: unacknowledged messages are sent again. Returns the addresses that it led to."""
        self._lines.pop(link, None)
        torn: dict[Address, None] = {}
        for _, entry in self.items():
            if entry.link is link:
                self.happens(entry, Event.LINK_LOST, why=status)
                if entry.address is not None:
                    torn[entry.address] = None
        self._traffic.pop(link, None)
        return list(torn)

    def enable(self, disabled: frozenset[int]) -> set[UUID]:
        """Brokers may have been disabled, or enabled again: their messages wait, or go."""
        changed, self._disabled = self._disabled ^ disabled, disabled
        if not changed:
            return set()
        touched = {handle for handle, entry in self.items() if entry.endpoint.database_id in changed}
        for handle in touched:
            if (entry := self.get(handle)) and entry.endpoint.database_id not in disabled:
                entry.dialog.link_up()
        return touched

    def is_enabled(self, entry: Entry) -> bool:
        """Return whether the broker of its database sends."""
        return entry.endpoint.database_id not in self._disabled

    def attach(self, entry: Entry) -> bool:
        """Return whether it has a link, or gets one now."""
        if entry.stage is Stage.CLAIMED and entry.address is not None:
            found = self._links.reach(entry.address)
            if not isinstance(found, str):
                self.happens(entry, Event.LINK_FOUND, link=found)
        return entry.stage is Stage.LINKED

    def line_up(self, handle: UUID) -> None:
        """Put a conversation with something to send into the line at the link of its address."""
        entry = self._entries.get(handle)
        if entry is None:
            return
        entry.dialog.give_way(self._large_window(entry))
        if obstacle := self._obstacle(entry):
            if entry.wants_more or entry.dialog.has_work(self._seconds()):
                self.happens(entry, Event.HELD_BACK, why=obstacle)
        elif entry.dialog.has_work(self._seconds()):
            if entry.link is None and entry.address is not None:
                found = self._links.reach(entry.address)
                if isinstance(found, str):
                    self.happens(entry, Event.HELD_BACK, why=found)
                    return
                self.happens(entry, Event.LINK_FOUND, link=found)
                if entry.link is not None:  # else a claim comes first
                    self.hungry[handle] = None
            if entry.link is not None:
                self._lines.setdefault(entry.link, FairQueue()).add(handle, entry.priority)
        self.set_alarm(entry)

    def _large_window(self, entry: Entry) -> int | None:
        """Return the window of large messages while others send small ones on its link; else None."""
        if entry.link is not None:
            small, quickest = self._traffic[entry.link].small, self._traffic[entry.link].quickest
            is_other = small is not None and small.handle != entry.endpoint.conversation_handle
            if small is not None and is_other and self._seconds() - small.at < RECENT_S:
                return int(min(self._limits.window, self._limits.fragment_size * max(1.0, ASIDE_RATE * quickest)))
        return None

    def sent_small(self, entry: Entry, last: int) -> None:
        """Messages of it up to that one have left whole: large ones of others give way to the next."""
        if entry.link is None:
            return
        traffic, now = self._traffic[entry.link], self._seconds()
        traffic.small = _Small(entry.endpoint.conversation_handle, last, now)
        if traffic.measured is None or now - traffic.measured.at > self._limits.first_retry:
            traffic.measured = traffic.small

    def acknowledged(self, entry: Entry, below: int) -> None:
        """Note that the peer has stored the messages below that number."""
        self.release(entry, below)
        if self._to_clear and not entry.wants_more and not entry.dialog.load:
            self._to_clear.pop(entry.endpoint.conversation_handle, None)
        if entry.link is not None:
            traffic = self._traffic[entry.link]
            one = traffic.measured
            if one is not None and one.handle == entry.endpoint.conversation_handle and one.last < below:
                traffic.quickest = min(traffic.quickest, self._seconds() - one.at)
                traffic.measured = None
        self.weigh(entry)

    def _obstacle(self, entry: Entry) -> str:
        """Why it may not send, wherever it goes; '' when it may."""
        if not self.is_enabled(entry):
            return RULES[9791].text
        if entry.session is None:
            return RULES[28054].text.format(entry.endpoint.own_service, NO_SERVICE_MASTER_KEY)
        return ""

    @property
    def lines(self) -> Iterator[tuple[Link, FairQueue[UUID]]]:
        """The links, each with the line of conversations that wait for a turn."""
        return iter(list(self._lines.items()))

    def load(self, link: Link) -> int:
        """Bytes that are under way on it."""
        return self._traffic[link].load

    def lately_taken(self, link: Link) -> int:
        """Bytes that its peer has acknowledged in the last half second, or in the one before."""
        traffic = self._traffic[link]
        traffic.turn(self._seconds())
        return max(traffic.taken, traffic.taken_before)

    def weigh(self, entry: Entry) -> None:
        """Update the load of the conversation's link."""
        before, entry.load = entry.load, entry.dialog.load
        if entry.link is not None:
            traffic, gone = self._traffic[entry.link], before - entry.load
            traffic.load -= gone
            if gone > 0:
                traffic.turn(self._seconds())
                traffic.taken += gone

    def say(self, entry: Entry, status: str) -> None:
        """Write why its messages wait; '' while they are on their way."""
        handle = entry.endpoint.conversation_handle
        if status or entry.status != status:
            self._to_clear.pop(handle, None)
            self._statuses[handle] = entry.status = status

    def _leaves_on_link(self, entry: Entry) -> None:
        """Write that its messages are on their way; for new ones only if they are not acknowledged soon."""
        if entry.status is None:
            self._to_clear[entry.endpoint.conversation_handle] = self._seconds() + CLEAR_STATUS_S
            entry.status = ""
        else:
            self.say(entry, "")

    def take_statuses(self) -> dict[UUID, str]:
        """Return the statuses to be written now, and forget them."""
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
        """Return the bodies of these messages, to be sent, and free them."""
        parts = tuple([entry.parts.pop(number) for number in numbers])
        self.waiting_bytes -= _size(parts)
        return parts

    def release(self, entry: Entry, below: float = NEVER) -> None:
        """Free the bodies of messages below that number: they are acknowledged, or will be read again."""
        self.take(entry, [number for number in entry.parts if number < below])

    # ---------------------------------------------------------------- time and room

    def set_alarm(self, entry: Entry) -> None:
        """Ring when the entry next has something to do by itself."""
        at = min(entry.dialog.wake_at, entry.match_at)
        if at < entry.alarm:
            entry.alarm = at
            heappush(self._alarms, (at, entry.endpoint.conversation_handle))

    def ringing(self, now: float) -> Iterator[tuple[UUID, Entry]]:
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
        alarm = self._alarms[0][0] if self._alarms else NEVER
        return min(alarm, next(iter(self._to_clear.values()), NEVER))

    @property
    def room(self) -> int:
        """Return how many more entries it takes."""
        return self.capacity - len(self._entries)

    def make_room(self) -> bool:
        """Forget those at rest when there are too many, then those without a link. Whether some of these went."""
        excess = len(self._entries) - self.capacity
        if excess <= 0:
            return False
        excess += self.capacity // 10  # not for every single one
        at_rest = [handle for handle, entry in self._entries.items() if entry.is_at_rest]
        stuck = [handle for handle, entry in self._entries.items() if entry.is_stuck]
        for handle in at_rest[:excess]:
            self.forget(handle)
        evicted = stuck[: max(0, excess - len(at_rest))]
        for handle in evicted:
            self.forget(handle)
        return bool(evicted)


_PAUSES = {Act.MATCH_NOW: 0.0, Act.MATCH_SOON: FIRST_RETRY_S, Act.MATCH_LATER: MATCH_AGAIN}


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
