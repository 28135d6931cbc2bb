"""The inboxes: received frames and events of links that wait for a round, and the fair order of peers.

The network's thread fills them, the threads of relays empty them. If a peer's frames are not taken, its connection is
not read (backpressure), so a peer that floods is slowed down by TCP.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from servicebroker.broker.transport.links import Arrival, Link
from servicebroker.protocol.division import share_of
from servicebroker.protocol.envelope import conversation_of
from servicebroker.protocol.forwarding import unwrap
from servicebroker.protocol.mirroring import NEVER, KnownTimeline, RoleReport
from servicebroker.protocol.routing import Address
from servicebroker.protocol.wire_errors import CorruptedMessage

INBOX_BYTES = 32 * 1024 * 1024  # bytes of waiting frames; a peer that has used up its part is not read
ROUND_BYTES = 512 * 1024  # bytes of frames in a round, so that peers send more while the next round stores
FRAME_OVERHEAD_BYTES = 500  # memory of a frame besides its body, an estimate
ACTIVE_S = 30.0  # seconds for which an idle peer keeps its part of the memory
CLOSED_LINK_TIME = float("-inf")  # activity of a closed link: an unauthenticated peer has a new queue on each link
TURN_S = 0.02  # seconds of a round for the frames of one peer, while there are others
FIRST_PORTION, MIN_PORTION, MAX_PORTION = 16, 1, 2_000  # frames of a peer in a round: at first, at least, and at most
RECENT_WEIGHT = 0.2  # weight of the last round in the moving averages
LIGHT_FRACTION = 0.5  # a peer that uses less than this part of the average must not wait for others
USELESS_FRACTION = 0.1  # a peer with a larger part of useless frames is always limited
NOISE_FRAMES = 200  # useless frames of one peer that are read between two ticks of the network
MIN_CHARGE_S = 0.0005  # a shorter time is not charged to a link, but divided among all by their frames
WASTE_FACTOR = 2.0  # factor of the pause for useless frames


class Lost(NamedTuple):
    """The event that an established link has ended."""

    link: Link
    status: str


class Reached(NamedTuple):
    """The event that a link to this address was made."""

    address: Address


class Unreached(NamedTuple):
    """The event that no link to this address could be made, with the reason."""

    address: Address
    status: str


class Answered(NamedTuple):
    """The event that the broker at this address has stated its role."""

    address: Address
    role_report: RoleReport


class Outdated(NamedTuple):
    """The event that a peer knows a higher timeline of this cluster: another server was promoted."""

    known: KnownTimeline


NetworkEvent = Arrival | Lost | Reached | Unreached | Answered | Outdated


class _PeerQueue:
    """The frames of one peer, and its part of the rounds."""

    def __init__(self) -> None:
        self.arrivals: deque[Arrival] = deque()
        self.size = 0  # bytes of the bodies
        self.active_at = 0.0
        self.portion = FIRST_PORTION  # frames for one round, while there are other peers
        self.taken = 0  # frames in the present round
        self.useless_frames = 0.0  # useless frames in the present round
        self.charged_s = 0.0  # seconds of the present round that were measured for this peer
        self.round_s = 0.0  # seconds for this peer in a round, a moving average
        self.useless_fraction = 0.0  # part of useless frames, a moving average
        self.paused_until = 0.0  # 0: not paused

    @property
    def weight(self) -> int:
        """The bytes of memory in use."""
        return self.size + FRAME_OVERHEAD_BYTES * len(self.arrivals)


class Inbox:
    """The network events that wait for the rounds of a share.

    Each owner has a queue of its own; without a certificate each link has one. While a peer needs little time, the time
    of each round is divided equally. A peer that needs more pauses after a round as long as its frames took. So no peer
    delays the others much. If all peers need about the same time, nobody is limited.

    `seconds` is a clock that never goes back. `taker` returns the identity of the running thread.

    Attributes:
        on_room: called when a full queue has room again.
    """

    def __init__(
        self,
        on_room: Callable[[], object] = lambda: None,
        seconds: Callable[[], float] = time.monotonic,
        taker: Callable[[], int] = threading.get_ident,
    ) -> None:
        self.on_room = on_room
        self._seconds = seconds
        self._current_taker = taker
        self.count = 1  # the number of inboxes that divide the memory
        self._lock = threading.Lock()
        self._events: dict[object, NetworkEvent] = {}  # the last event of each address and link
        self._peer_queues: dict[object, _PeerQueue] = {}
        self._limits_portions = False  # a peer needs little time, and must not wait for the others
        self._taker = 0  # that called `take` last
        self._has_more = False  # frames of peers that are not paused, after the last round
        self.wake_event = threading.Event()

    def put(self, item: NetworkEvent) -> None:
        """Add an event or a frame. Wake the share, unless the peer is paused."""
        now = self._seconds()
        with self._lock:
            if not isinstance(item, Arrival):
                key = _event_key(item)
                self._events.pop(key, None)
                self._events[key] = item
                if isinstance(item, Lost) and item.link in self._peer_queues:
                    self._peer_queues[item.link].active_at = CLOSED_LINK_TIME
                self.wake_event.set()
                return
            peer_queue = self._peer_queues.setdefault(peer_key(item.link), _PeerQueue())
            peer_queue.arrivals.append(item)
            peer_queue.size += len(item.body)
            peer_queue.active_at = now
            if peer_queue.paused_until <= now:
                self.wake_event.set()

    def take(self, most: int) -> list[NetworkEvent]:
        """Take at most `most` items: first events, then frames of each peer in turns, until the round has enough.

        Who gets least of a round is the first in the next one.
        """
        now, self._taker = self._seconds(), self._current_taker()
        with self._lock:
            full = [peer_queue for peer_queue in self._peer_queues.values() if self._is_full(peer_queue)]
            taken = [self._events.pop(key) for key in list(self._events)[:most]]
            self._peer_queues = {
                key: peer_queue
                for key, peer_queue in self._peer_queues.items()
                if peer_queue.arrivals or peer_queue.active_at + ACTIVE_S > now
            }
            self._limits_portions = self._has_light_peer()
            for peer_queue in self._peer_queues.values():
                peer_queue.taken, peer_queue.useless_frames, peer_queue.charged_s = 0, 0.0, 0.0
            turns = [
                peer_queue
                for peer_queue in self._peer_queues.values()
                if peer_queue.arrivals and peer_queue.paused_until <= now
            ]
            for peer_queue in turns:
                peer_queue.paused_until = 0.0
            size = 0
            while turns and len(taken) < most and size < ROUND_BYTES:
                for peer_queue in turns[: most - len(taken)]:
                    arrival = peer_queue.arrivals.popleft()
                    peer_queue.size -= len(arrival.body)
                    peer_queue.taken += 1
                    taken.append(arrival)
                    size += len(arrival.body)
                    if size >= ROUND_BYTES:
                        break
                turns = [
                    peer_queue
                    for peer_queue in turns
                    if peer_queue.arrivals
                    and not (peer_queue.taken >= peer_queue.portion and self._is_limited(peer_queue))
                ]
            self._has_more = bool(turns)
            if turns:
                self._peer_queues = dict(sorted(self._peer_queues.items(), key=lambda item: item[1].taken))
            is_relieved = any(not self._is_full(peer_queue) for peer_queue in full)
        if is_relieved:
            self.on_room()
        return taken

    def empty(self) -> list[Arrival]:
        """Remove and return all frames."""
        with self._lock:
            arrivals = [arrival for peer_queue in self._peer_queues.values() for arrival in peer_queue.arrivals]
            for peer_queue in self._peer_queues.values():
                peer_queue.arrivals.clear()
                peer_queue.size = 0
            self._has_more = False
        return arrivals

    def forget_links(self) -> None:
        """Drop events of lost links: restarted relays have sent nothing on them."""
        with self._lock:
            self._events = {key: event for key, event in self._events.items() if not isinstance(event, Lost)}

    def account_round(self, seconds: float) -> None:
        """Charge the peers for a round that took this time.

        A peer pays for the time measured for it, and for its part of the rest by the number of its frames.
        """
        now = self._seconds()
        with self._lock:
            served = [peer_queue for peer_queue in self._peer_queues.values() if peer_queue.taken]
            rest_s = max(seconds - sum(peer_queue.charged_s for peer_queue in served), 1e-6)
            each_of_rest = rest_s / max(1, sum(peer_queue.taken for peer_queue in served))
            for peer_queue in self._peer_queues.values():
                peer_queue.round_s += RECENT_WEIGHT * (
                    peer_queue.charged_s + each_of_rest * peer_queue.taken - peer_queue.round_s
                )
            for peer_queue in served:
                each = each_of_rest + peer_queue.charged_s / peer_queue.taken
                has_had_its_turn = peer_queue.taken >= peer_queue.portion or peer_queue.useless_frames > 0
                peer_queue.portion = min(max(int(TURN_S / each), MIN_PORTION), MAX_PORTION)
                peer_queue.useless_fraction += RECENT_WEIGHT * (
                    peer_queue.useless_frames / peer_queue.taken - peer_queue.useless_fraction
                )
                if peer_queue.arrivals and has_had_its_turn and self._is_limited(peer_queue):
                    peer_queue.paused_until = now + each * (peer_queue.taken + WASTE_FACTOR * peer_queue.useless_frames)
            self._has_more &= any(
                peer_queue.arrivals and not peer_queue.paused_until for peer_queue in self._peer_queues.values()
            )

    def charge(self, link: Link, seconds: float) -> None:
        """Charge a peer for seconds of this thread's round."""
        with self._lock:
            if (
                self._taker == self._current_taker()
                and (peer_queue := self._peer_queues.get(peer_key(link))) is not None
            ):
                peer_queue.charged_s += seconds

    def _has_light_peer(self) -> bool:
        """Return whether one peer uses much less time than the average, or is new."""
        uses = [peer_queue.round_s for peer_queue in self._peer_queues.values()]
        return len(uses) > 1 and min(uses) <= LIGHT_FRACTION * sum(uses) / len(uses)

    def _is_limited(self, peer_queue: _PeerQueue) -> bool:
        """Return whether a round takes at most the peer's portion, after which the peer pauses."""
        return self._limits_portions or (len(self._peer_queues) > 1 and peer_queue.useless_fraction > USELESS_FRACTION)

    def waste(self, link: Link, frames: float) -> None:
        """Count useless frames in this thread's round. Fractions are allowed."""
        with self._lock:
            if (
                self._taker == self._current_taker()
                and (peer_queue := self._peer_queues.get(peer_key(link))) is not None
            ):
                peer_queue.useless_frames += frames

    @property
    def wake_at(self) -> float:
        """The time when a paused peer may be served again; now if the last round has left frames.

        Frames that arrived later have set `wake_event`.
        """
        with self._lock:
            if self._has_more:
                return 0.0
            pauses = [
                peer_queue.paused_until
                for peer_queue in self._peer_queues.values()
                if peer_queue.arrivals and peer_queue.paused_until
            ]
        return min(pauses, default=NEVER)

    @property
    def size(self) -> int:
        """The bytes of waiting bodies."""
        with self._lock:
            return sum(peer_queue.size for peer_queue in self._peer_queues.values())

    def is_full(self, link: Link) -> bool:
        """Return whether the peer has used up its part of the memory, so that its streams should not be read."""
        with self._lock:
            peer_queue = self._peer_queues.get(peer_key(link))
            return peer_queue is not None and self._is_full(peer_queue)

    def _is_full(self, peer_queue: _PeerQueue) -> bool:
        return peer_queue.weight > INBOX_BYTES // self.count // (len(self._peer_queues) + 1)

    def __len__(self) -> int:
        with self._lock:
            return len(self._events) + sum(len(peer_queue.arrivals) for peer_queue in self._peer_queues.values())


class Inboxes:
    """The inboxes of all shares: a frame goes to the share of its conversation, an event to all shares.

    The first share alone gets `Outdated`.

    `seconds` and `taker`: see `Inbox`.

    Attributes:
        on_room: called when a full queue has room again.
    """

    def __init__(
        self, seconds: Callable[[], float] = time.monotonic, taker: Callable[[], int] = threading.get_ident
    ) -> None:
        self._seconds, self._taker = seconds, taker
        self.on_room: Callable[[], object] = lambda: None
        self.shares: tuple[Inbox, ...] = (self._new(),)
        self._noise: Counter[object] = Counter()  # useless frames of each peer
        self._lock = threading.Lock()

    def _new(self) -> Inbox:
        return Inbox(lambda: self.on_room(), self._seconds, self._taker)

    def divide(self, count: int) -> None:
        """Keep or add inboxes for `count` shares, and divide the waiting frames among them. No frame is lost."""
        with self._lock:
            remaining, removed = self.shares[:count], self.shares[count:]
            arrivals = [arrival for inbox in (*remaining, *removed) for arrival in inbox.empty()]
            self.shares = (*remaining, *(self._new() for _ in range(count - len(remaining))))
            for inbox in self.shares:
                inbox.count = count
            for arrival in arrivals:
                self.shares[share_for(arrival, count)].put(arrival)
        self.on_room()

    def put(self, item: NetworkEvent) -> None:
        """Add an event or a frame, and wake its shares."""
        with self._lock:
            if isinstance(item, Arrival):
                self.shares[share_for(item, len(self.shares))].put(item)
                return
            for inbox in self.shares[:1] if isinstance(item, Outdated) else self.shares:
                inbox.put(item)

    def wake(self) -> None:
        """Wake all shares, because one may be waiting for room on a link."""
        for inbox in self.shares:
            inbox.wake_event.set()

    def forget_links(self) -> None:
        """Drop events of lost links in all inboxes."""
        for inbox in self.shares:
            inbox.forget_links()

    def complain(self, link: Link, frames: int) -> None:
        """Count useless frames of a peer."""
        self._noise[peer_key(link)] += frames

    def is_noisy(self, link: Link) -> bool:
        """Return whether a peer has sent too many useless frames, on all of its connections, to be read now."""
        return self._noise[peer_key(link)] > NOISE_FRAMES

    def reset_noise(self) -> bool:
        """Reset the counts of useless frames. Returns whether there were any."""
        was_noise = bool(self._noise)
        self._noise.clear()
        return was_noise

    def waste(self, link: Link, share: float) -> None:
        """Count useless frames in the round of this thread. Fractions are allowed."""
        for inbox in self.shares:
            inbox.waste(link, share)

    def charge(self, link: Link, seconds: float) -> None:
        """Charge a peer for seconds of the round that this thread runs."""
        for inbox in self.shares:
            inbox.charge(link, seconds)

    def is_full(self, link: Link) -> bool:
        """Return whether the streams of that peer should not be read any more: it has its share of the room of one."""
        return any(inbox.is_full(link) for inbox in self.shares)

    @property
    def size(self) -> int:
        """Bytes of the bodies in them."""
        return sum(inbox.size for inbox in self.shares)

    def __len__(self) -> int:
        return sum(len(inbox) for inbox in self.shares)


class Charges:
    """The measured time of the present round, by the link whose frames used it.

    A hostile frame may take much more time than others, for example a message with many gaps. So the time is measured
    where it depends on received frames, and charged to the link, whose inbox pauses the peer for as long.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._of_link: defaultdict[Link, float] = defaultdict(float)
        self._link_of: dict[UUID, Link] = {}

    @property
    def now(self) -> float:
        """The present time, for the argument `since` of a charge."""
        return self._seconds()

    @property
    def are_shared(self) -> bool:
        """Return whether several links have sent frames in this round: otherwise there is nothing to divide."""
        return len(self._of_link) > 1

    def begin(self) -> None:
        """Begin another round."""
        self._of_link.clear()
        self._link_of.clear()

    def note_sender(self, handle: UUID, link: Link) -> None:
        """Charge this link for the conversation, in this round."""
        self._link_of[handle] = link

    def charge(self, link: Link, since: float) -> None:
        """Charge a link for the time since `since`."""
        self._of_link[link] += self._seconds() - since

    def charge_equally(self, links: Sequence[Link], since: float) -> None:
        """Charge each of these links for an equal part of the time since `since`."""
        each = (self._seconds() - since) / max(1, len(links))
        for link in links:
            self._of_link[link] += each

    def charge_for(self, handle: UUID, since: float) -> None:
        """Charge the peer that has sent frames of a conversation in this round, if any."""
        if (link := self._link_of.get(handle)) is not None:
            self.charge(link, since)

    def charge_by_weight(self, weights: Mapping[UUID, float], since: float) -> None:
        """Divide the time since `since` among conversations by their weight, and charge their senders."""
        total = sum(weights.values())
        seconds = self._seconds() - since
        if total <= 0 or seconds <= 0:
            return
        for handle, weight in weights.items():
            if (link := self._link_of.get(handle)) is not None:
                self._of_link[link] += seconds * weight / total

    def tell(self) -> None:
        """Charge the links at the end of the round."""
        for link, seconds in self._of_link.items():
            if seconds >= MIN_CHARGE_S:
                link.charge(seconds)


def share_for(arrival: Arrival, count: int) -> int:
    """Return the number of a frame's share. A frame that cannot be parsed goes to the first share, which logs it."""
    if count == 1:
        return 0
    try:
        body = unwrap(arrival.body)[1] if arrival.is_forwarded else arrival.body
        return share_of(conversation_of(body), count)
    except CorruptedMessage:
        return 0


def peer_key(link: Link) -> object:
    """Return the key of a link's queue: its owner, or the link itself without a certificate."""
    return link.owner or link


def _event_key(item: Lost | Reached | Unreached | Answered | Outdated) -> object:
    """Return the key of an event. The next event with this key replaces it, so that none pile up."""
    match item:
        case Lost():
            return item.link
        case Reached() | Unreached():
            return item.address
        case Answered():
            return Answered, item.address
        case Outdated():
            return Outdated
