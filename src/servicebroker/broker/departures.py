"""Outbound messages of the daemon: find conversations with messages to send, read the messages, and make frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from msgspec import structs

from servicebroker.broker import journal, metrics
from servicebroker.broker.conversations import ROUTE_MATCH_INTERVAL_S, Conversations, Entry
from servicebroker.broker.dialog_security import DialogSecurity, Introduction
from servicebroker.broker.inboxes import Charges
from servicebroker.broker.store_operations import Store
from servicebroker.broker.transport.links import Link
from servicebroker.engine.remote.departing import NO_MESSAGES, OutgoingMessages, ReadRequest, WaitingConversation
from servicebroker.model.waiting import UNANSWERED
from servicebroker.protocol.dialog import SENDS
from servicebroker.protocol.envelope import CAPABILITIES, Content, Header, Part, encode
from servicebroker.protocol.outgoing import NEVER, Cut

PAGE_CONVERSATIONS = 500  # waiting conversations that a round reads from the database as one page
MAX_ENTERED = 500  # conversations that a round loads into memory: 0.2 s, during which all others wait
MAX_MESSAGES_READ = 1_000  # messages of one conversation that a round reads
BODY_BUDGET_BYTES = 64 * 1024 * 1024  # bytes of bodies that wait in memory for a link
# Bytes in flight on a link, of all shares together. A share alone may have as much if the peer acknowledges as much in
# half a second. More would only make acknowledgements late, and late messages are sent again.
IN_FLIGHT_BYTES = 4 * 1024 * 1024
MIN_IN_FLIGHT_BYTES = 64 * 1024  # bytes that a conversation may always have in flight
MAX_FRAGMENTS_READ = 8  # per round and link, so that small messages need not wait for a large one


class Finding:
    """Loads conversations with messages into memory: new ones in each round, old or evicted ones page by page."""

    def __init__(self, conversations: Conversations, security: DialogSecurity, seconds: Callable[[], float]) -> None:
        self._conversations = conversations
        self._security = security
        self._seconds = seconds
        self._page_at, self._page_after = 0.0, UUID(int=0)
        self._page_missed = False

    @property
    def wake_at(self) -> float:
        """The time of the next page, or of the next expiry of a route to a local target."""
        if self._conversations.wanted:
            return self._seconds()
        return min(self._page_at, self._conversations.local_route_expiry)

    def missed(self) -> None:
        """Record that waiting conversations were evicted from memory: a later page loads them again."""
        self._page_missed = True
        self._page_at = min(self._page_at, self._seconds() + ROUTE_MATCH_INTERVAL_S)

    def reached(self) -> None:
        """Handle a new link, for which conversations may have waited."""
        if self._page_missed:
            self._page_at = 0.0

    def due(self, store: Store) -> set[UUID]:
        """Run the due timers. Returns their conversations."""
        now = self._seconds()
        due, unacknowledged = set(), []
        for handle, entry in self._conversations.due_alarms(now):
            if entry.match_at <= now or entry.session is None:
                self._conversations.wanted.add(handle)  # its service may have been created in this instance
            entry.dialog.tick(now)
            due.add(handle)
            if entry.link is not None and entry.dialog.is_unanswered:
                self._conversations.set_status(entry, UNANSWERED)
            if entry.link is not None and entry.dialog.introduction is not None:
                unacknowledged.append(entry)
        if unacknowledged:
            self._introduce_again(store, unacknowledged)
        return due

    def _introduce_again(self, store: Store, entries: list[Entry]) -> None:
        """Repeat key exchanges without acknowledgement: their certificates may have been replaced."""
        introductions = [
            Introduction(entry.endpoint, key, entry.dialog.is_unanswered)
            for entry in entries
            if (key := entry.dialog.introduction) is not None
        ]
        renewed = self._security.renew(store, introductions)
        for entry in entries:
            match renewed.get(entry.endpoint.conversation_handle):
                case (keys, exchange):
                    entry.secure(entry.endpoint._replace(keys=keys), entry.session)
                    entry.dialog.secure(exchange)
                case str(why):
                    self._conversations.set_status(entry, why)

    def find(self, store: Store, waiting: list[WaitingConversation]) -> set[UUID]:
        """Load the conversations with new messages, a page of old ones, and those that were marked for a reload.

        At most `MAX_ENTERED` are loaded; the others follow in the next round.
        """
        for conversation in waiting:
            if entry := self._conversations.get(conversation.conversation_handle):
                entry.waits_to(conversation.last)
                if conversation.has_end:
                    entry.dialog.end()
        touched = {conversation.conversation_handle for conversation in waiting}
        touched |= self._turn_page(store)
        unknown = self._conversations.wanted | {handle for handle in touched if handle not in self._conversations}
        now = list(islice(unknown, MAX_ENTERED))
        self._conversations.wanted = unknown.difference(now)
        for handle in now:
            self._conversations.forget(handle)
        if now:
            touched |= {self._conversations.enter(endpoint) for endpoint in store.endpoints(now)}
        return touched

    def _turn_page(self, store: Store) -> set[UUID]:
        """Return the next page of conversations that waited before the start, or were evicted."""
        now = self._seconds()
        if self._conversations.local_route_expiry <= now:
            self._conversations.recheck_local_targets()
        is_first = self._page_after == UUID(int=0)
        if self._conversations.is_missing and is_first:
            self._conversations.is_missing = False
            self._page_at = now
        if now < self._page_at:
            return set()
        handles = store.page(self._page_after, PAGE_CONVERSATIONS)
        if len(handles) == PAGE_CONVERSATIONS:
            self._page_after = handles[-1]
            self._page_at = now if self._conversations.room >= PAGE_CONVERSATIONS else now + ROUTE_MATCH_INTERVAL_S
        else:
            self._page_after = UUID(int=0)
            self._page_at = now + ROUTE_MATCH_INTERVAL_S if self._page_missed else NEVER
            self._page_missed = False
            if self._conversations.is_missing:  # set while these pages were read: begin with the first page again
                self._page_at = now
        return {handle for handle in handles if handle not in self._conversations}


class Readahead:
    """Reads messages of all conversations in turn, bodies up to `longest` bytes, and offers them to their dialogs.

    `budget` bounds the bytes of bodies in memory, for all `shares` together. The bytes in flight are divided among the
    shares as well; a share has more of them if the peer acknowledges fast.
    """

    def __init__(
        self, conversations: Conversations, longest: int, seconds: Callable[[], float], budget: int, shares: int
    ) -> None:
        self._conversations = conversations
        self._longest = longest
        self._seconds = seconds
        self._budget, self._pipeline = budget // shares, IN_FLIGHT_BYTES // shares

    @property
    def wake_at(self) -> float:
        """Now if there are messages to read and room for them, else never."""
        has_room = self._conversations.waiting_bytes < self._budget
        return self._seconds() if self._conversations.to_read and has_room else NEVER

    def offer(self, store: Store, touched: Iterable[UUID]) -> set[UUID]:
        """Read waiting messages that may be sent, a part at a time, so that memory stays bounded.

        Returns the conversations of which messages were read: of the touched ones and of those whose turn it is.
        """
        self._conversations.to_read.update(dict.fromkeys(touched))
        wanted: dict[UUID, ReadRequest] = {}
        budget = self._budget - self._conversations.waiting_bytes
        for handle in list(self._conversations.to_read):
            if budget <= 0:
                break
            del self._conversations.to_read[handle]
            entry = self._conversations.get(handle)
            if entry is not None and (reading := self._reading(entry)) is not None:
                wanted[handle] = reading
                budget -= min(reading.room, (entry.end - reading.first) * self._longest)
        if not wanted:
            return set()
        by_handle = store.read(wanted, self._longest)
        for handle, reading in wanted.items():
            entry = self._conversations.get(handle)
            assert entry is not None
            leaving = by_handle.get(handle, NO_MESSAGES)
            self._offer_read(entry, leaving)
            was_all = len(leaving.numbers) < reading.most and sum(leaving.sizes) < reading.room
            if was_all and entry.dialog.room > 0:
                entry.has_no_more()
            elif entry.link is not None and entry.has_unread and entry.dialog.room > 0:
                self._conversations.to_read[handle] = None
        return set(wanted)

    def _reading(self, entry: Entry) -> ReadRequest | None:
        """Return the messages to read of a conversation. Without a link one is enough to make the daemon connect."""
        dialog = entry.dialog
        if (
            entry.address is None
            or dialog.sending not in SENDS
            or not entry.has_unread
            or not self._conversations.is_enabled(entry)
        ):
            return None
        if not self._conversations.attach(entry):
            return ReadRequest(dialog.next_to_offer, 1, 1)
        assert entry.link is not None
        room = max(dialog.room, 1)
        if self._conversations.load(entry.link) >= self._max_in_flight(entry.link):
            room = min(room, MIN_IN_FLIGHT_BYTES)
            if entry.load:  # its acknowledgement will make it read on
                return None
        return ReadRequest(dialog.next_to_offer, MAX_MESSAGES_READ, room)

    def _max_in_flight(self, link: Link) -> int:
        """Return the most bytes in flight on a link."""
        if self._pipeline == IN_FLIGHT_BYTES:
            return IN_FLIGHT_BYTES
        return max(self._pipeline, min(IN_FLIGHT_BYTES, self._conversations.recent_bytes(link)))

    def _offer_read(self, entry: Entry, leaving: OutgoingMessages) -> None:
        """Offer read messages to the dialog as far as it has room, and the EndDialog or Error behind them."""
        dialog, (numbers, sizes, parts) = entry.dialog, leaving
        ends = bool(parts) and parts[-1].content is not Content.DATA
        count = len(parts) - ends
        if count and dialog.room > 0 and numbers[0] == dialog.next_to_offer:
            following = next((index for index in range(count) if numbers[index] != numbers[0] + index), count)
            offered = dialog.offer_run(numbers[0], sizes[:following], [part.token for part in parts[:following]])
            self._conversations.hold(entry, numbers[:offered], parts)
        if ends:
            self._offer_end(entry, numbers[-1], sizes[-1], parts[-1])
        self._conversations.weigh(entry)

    def _offer_end(self, entry: Entry, number: int, size: int, part: Part) -> None:
        """Offer an EndDialog when it is next and has room. An Error needs no room, and may skip messages."""
        dialog = entry.dialog
        if part.content is Content.ERROR:
            self._conversations.release(entry)
        elif dialog.room <= 0 or number != dialog.next_to_offer:
            return
        dialog.offer(number, size, part.content, part.token)
        self._conversations.hold(entry, [number], [part])


class _Frame(NamedTuple):
    """A frame to send, and the number of messages that it counts as."""

    body: bytes
    messages: int


class Frames:
    """Makes and sends frames, in the order of the queues at links. Bodies longer than `longest` are fragmented."""

    def __init__(
        self,
        conversations: Conversations,
        charges: Charges,
        longest: int,
        clock: Callable[[], datetime],
        seconds: Callable[[], float],
    ) -> None:
        self._conversations = conversations
        self._charges = charges
        self._longest = longest
        self._clock = clock
        self._seconds = seconds
        self._fragments = 0  # read in this round for the present link
        self._is_traced = False  # messages have trace contexts

    def send(self, store: Store, *, is_traced: bool) -> int:
        """Send queued messages, as far as links accept them. Returns their number, at least one for each frame."""
        self._is_traced = is_traced
        sent = 0
        for link, line in self._conversations.lines:
            self._fragments = 0
            while link.room > 0 and self._fragments < MAX_FRAGMENTS_READ and (turn := line.take()) is not None:
                entry = self._conversations.get(turn.key)
                if entry is None or entry.link is not link:
                    continue
                frame = self._frame(store, turn.key, entry)
                if frame is not None:
                    link.send(frame.body)
                    metrics.PRIORITY_SENDS.labels(entry.priority).inc()
                    sent += frame.messages
                self._conversations.enqueue(turn.key)
        return sent

    def _frame(self, store: Store, handle: UUID, entry: Entry) -> _Frame | None:
        began = self._seconds()
        transmission = None if entry.session is None else entry.dialog.transmit(began)
        self._charges.charge_for(handle, began)  # a frame that acknowledges many gaps is costly
        if transmission is None or entry.session is None:
            return None
        cut = transmission.cut
        if cut is None:
            header = self._dated(entry, transmission.header)
            journal.acknowledgement(header, is_sent=True)
            return _Frame(encode(header, transmission.payload, entry.session.of(header)), 1)
        parts = self._parts(store, handle, entry, cut)
        if parts is None:  # END CONVERSATION has deleted messages without acknowledgement
            self._conversations.forget(handle)
            self._conversations.wanted.add(handle)
            return None
        journal.acknowledgement(transmission.header, is_sent=True)
        if cut.fragments == 1:
            self._conversations.sent_small(entry, cut.last)
        header = self._with_traces(store, transmission.header, cut) if self._is_traced else transmission.header
        header = self._dated(entry, header)
        return _Frame(encode(header, parts, entry.session.of(header)), len(parts))

    def _dated(self, entry: Entry, header: Header) -> Header:
        """Return the header with the present time, if the frame opens a secured conversation.

        A repeated frame gets the time of its repetition.
        """
        if header.opening is None or not header.is_secured:
            return header
        own_clock = int(self._clock().timestamp())
        opening = structs.replace(
            header.opening,
            sealed_at=entry.date(own_clock, self._seconds()),
            own_clock=None if entry.peer_clock is None else own_clock,
            capabilities=CAPABILITIES,
        )
        return structs.replace(header, opening=opening)

    def _with_traces(self, store: Store, header: Header, cut: Cut) -> Header:
        """Return the header with the trace contexts of its messages, if any."""
        contexts = store.read_traces(header, cut.first, cut.last)
        if not contexts:
            return header
        return structs.replace(header, traces=tuple((number - cut.first, context) for number, context in contexts))

    def _parts(self, store: Store, handle: UUID, entry: Entry, cut: Cut) -> tuple[Part, ...] | None:
        """Return the messages of a cut, or its fragment of one message; None if they were deleted."""
        numbers = range(cut.first, cut.last + 1)
        if not entry.parts.keys() >= set(numbers):  # sent before: their bodies were freed
            reading = ReadRequest(cut.first, len(numbers), 2**40)
            read = store.read({handle: reading}, self._longest).get(handle, NO_MESSAGES)
            if read.numbers != tuple(numbers):
                return None
            self._conversations.hold(entry, read.numbers, read.parts)
        if cut.fragments == 1:
            return self._conversations.take(entry, numbers)
        whole = entry.parts[cut.first]
        self._fragments += 1
        body = store.read_fragment(handle, cut.first, cut.offset, cut.length)
        return None if body is None else (Part(whole.message_type, whole.content, body, whole.token),)
