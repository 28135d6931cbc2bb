"""The inboxes: received frames and events of links, which wait for a round, and the fair order of peers.

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

INBOX_BYTES = 32 * 1024 * 1024  # bytes that may wait for the relay; a peer whose share is full is not read any more
ROUND_BYTES = 512 * 1024  # that a round takes: peers send more while the next round stores
FRAME_OVERHEAD_BYTES = 500  # bytes that a frame counts for beside its body
ACTIVE_S = 30.0  # seconds for which a peer that has brought something has its share
CLOSED_LINK_TIME = float(
    "-inf"
)  # when it brought something, of a link that is over: who has proved nothing comes with another one
TURN_S = 0.02  # seconds that the frames of a peer may take of a round, while there are others
FIRST_PORTION, MIN_PORTION, MAX_PORTION = 16, 1, 2_000  # frames of a peer in a round: at first, at least, and at most
RECENT_WEIGHT = 0.2  # the weight of the last round in the moving average of a peer's use
LIGHT_FRACTION = 0.5  # a peer below this part of the average use does not wait for others
USELESS_FRACTION = 0.1  # a peer with a larger part of useless frames waits for its turn in any case
NOISE_FRAMES = 200  # frames for nothing of one peer that are read between two ticks of the network
MIN_CHARGE_S = 0.0005  # charged to a link in a round: what is less is divided among all by their frames
WASTE_FACTOR = 2.0  # the pause after a turn is this many times as long for useless frames


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
    """A broker at this address has stated its role."""

    address: Address
    role_report: RoleReport


class Outdated(NamedTuple):
    """The event that a peer has seen a higher timeline of our cluster: another server was promoted."""

    known: KnownTimeline


NetworkEvent = Arrival | Lost | Reached | Unreached | Answered | Outdated


class _Line:
    """The frames of one peer, and the share of rounds that they take."""

    def __init__(self) -> None:
        self.arrivals: deque[Arrival] = deque()
        self.size = 0  # bytes of their bodies
        self.active_at = 0.0
        self.portion = FIRST_PORTION  # frames of a round, while there are other lines
        self.taken = 0  # by the round that runs
        self.wasted = 0.0  # of that
        self.charged = 0.0  # seconds of the round that runs that were measured for it
        self.round_seconds = 0.0  # seconds of a round that it has lately had
        self.useless_fraction = 0.0  # which part of its frames has lately been for nothing
        self.paused_until = 0.0  # 0: it does not rest

    @property
    def weight(self) -> int:
        """Bytes of memory."""
        return self.size + FRAME_OVERHEAD_BYTES * len(self.arrivals)


class Inbox:
    """The network events that wait for the rounds of a share.

    Each owner has a line of its own, who has proved nothing one for each link. While somebody brings little, each gets
    about as much time: who brings more than that waits as long as its portion took. So nobody can delay the others
    much, whatever it brings. Where all bring about as much, nobody gains by that, and rounds take what there is.

    `seconds` is a clock that never goes back; `taker` names the thread, or whatever else runs a round.

    Attributes:
        relieved: called when a line that was full has room again.
    """

    def __init__(
        self,
        relieved: Callable[[], object] = lambda: None,
        seconds: Callable[[], float] = time.monotonic,
        taker: Callable[[], int] = threading.get_ident,
    ) -> None:
        self.relieved = relieved
        self._seconds = seconds
        self._current_taker = taker
        self.count = 1  # of inboxes that share the room
        self._lock = threading.Lock()
        self._events: dict[object, NetworkEvent] = {}  # of each address and link the last
        self._lines: dict[object, _Line] = {}
        self._limits_portions = False  # a peer sends little, and must not wait for the others
        self._taker = 0  # that has taken last
        self._has_more = False  # than the last round took, of those who do not rest
        self.wake_event = threading.Event()

    def put(self, item: NetworkEvent) -> None:
        """Add one, and ring, unless it has to wait."""
        now = self._seconds()
        with self._lock:
            if not isinstance(item, Arrival):
                key = _event_key(item)
                self._events.pop(key, None)
                self._events[key] = item
                if isinstance(item, Lost) and item.link in self._lines:
                    self._lines[item.link].active_at = CLOSED_LINK_TIME
                self.wake_event.set()
                return
            line = self._lines.setdefault(line_of(item.link), _Line())
            line.arrivals.append(item)
            line.size += len(item.body)
            line.active_at = now
            if line.paused_until <= now:
                self.wake_event.set()

    def take(self, most: int) -> list[NetworkEvent]:
        """Take at most `most` items: first events, then frames of each peer in turns, until the round has enough.

        Who gets least of a round is the first in the next one.
        """
        now, self._taker = self._seconds(), self._current_taker()
        with self._lock:
            full = [line for line in self._lines.values() if self._is_full(line)]
            taken = [self._events.pop(key) for key in list(self._events)[:most]]
            self._lines = {
                key: line for key, line in self._lines.items() if line.arrivals or line.active_at + ACTIVE_S > now
            }
            self._limits_portions = self._has_light_peer()
            for line in self._lines.values():
                line.taken, line.wasted, line.charged = 0, 0.0, 0.0
            turns = [line for line in self._lines.values() if line.arrivals and line.paused_until <= now]
            for line in turns:
                line.paused_until = 0.0
            size = 0
            while turns and len(taken) < most and size < ROUND_BYTES:
                for line in turns[: most - len(taken)]:
                    arrival = line.arrivals.popleft()
                    line.size -= len(arrival.body)
                    line.taken += 1
                    taken.append(arrival)
                    size += len(arrival.body)
                    if size >= ROUND_BYTES:
                        break
                turns = [
                    line
                    for line in turns
                    if line.arrivals and not (line.taken >= line.portion and self._is_limited(line))
                ]
            self._has_more = bool(turns)
            if turns:
                self._lines = dict(sorted(self._lines.items(), key=lambda item: item[1].taken))
            is_relieved = any(not self._is_full(line) for line in full)
        if is_relieved:
            self.relieved()
        return taken

    def empty(self) -> list[Arrival]:
        """All that was brought, to be put elsewhere."""
        with self._lock:
            arrivals = [arrival for line in self._lines.values() for arrival in line.arrivals]
            for line in self._lines.values():
                line.arrivals.clear()
                line.size = 0
            self._has_more = False
        return arrivals

    def forget_links(self) -> None:
        """Forget lost links: after a restart of the relays nothing was under way on them."""
        with self._lock:
            self._events = {key: one for key, one in self._events.items() if not isinstance(one, Lost)}

    def account_round(self, seconds: float) -> None:
        """Note how long the round has worked on the taken items.

        Each line is charged for what was measured for it, and for its part of the rest by the number of its frames.
        """
        now = self._seconds()
        with self._lock:
            served = [line for line in self._lines.values() if line.taken]
            rest = max(seconds - sum(line.charged for line in served), 1e-6)
            each_of_rest = rest / max(1, sum(line.taken for line in served))
            for line in self._lines.values():
                line.round_seconds += RECENT_WEIGHT * (line.charged + each_of_rest * line.taken - line.round_seconds)
            for line in served:
                each = each_of_rest + line.charged / line.taken
                has_had_its_turn = line.taken >= line.portion or line.wasted > 0
                line.portion = min(max(int(TURN_S / each), MIN_PORTION), MAX_PORTION)
                line.useless_fraction += RECENT_WEIGHT * (line.wasted / line.taken - line.useless_fraction)
                if line.arrivals and has_had_its_turn and self._is_limited(line):
                    line.paused_until = now + each * (line.taken + WASTE_FACTOR * line.wasted)
            self._has_more &= any(line.arrivals and not line.paused_until for line in self._lines.values())

    def charge(self, link: Link, seconds: float) -> None:
        """Charge a peer for seconds of this thread's round."""
        with self._lock:
            if self._taker == self._current_taker() and (line := self._lines.get(line_of(link))) is not None:
                line.charged += seconds

    def _has_light_peer(self) -> bool:
        """Return whether some line has had much less than the others, or nobody knows yet."""
        uses = [line.round_seconds for line in self._lines.values()]
        return len(uses) > 1 and min(uses) <= LIGHT_FRACTION * sum(uses) / len(uses)

    def _is_limited(self, line: _Line) -> bool:
        """Return whether a round takes no more than its portion of that line, and lets it rest then."""
        return self._limits_portions or (len(self._lines) > 1 and line.useless_fraction > USELESS_FRACTION)

    def waste(self, link: Link, share: float) -> None:
        """A frame of this thread's round has cost more than it was worth."""
        with self._lock:
            if self._taker == self._current_taker() and (line := self._lines.get(line_of(link))) is not None:
                line.wasted += share

    @property
    def wake_at(self) -> float:
        """The time when a resting peer may be served again; now if a round has left frames.

        What has come since then has rung, and waits for the next round.
        """
        with self._lock:
            if self._has_more:
                return 0.0
            rests = [line.paused_until for line in self._lines.values() if line.arrivals and line.paused_until]
        return min(rests, default=NEVER)

    @property
    def size(self) -> int:
        """Bytes of the bodies in it."""
        with self._lock:
            return sum(line.size for line in self._lines.values())

    def is_full(self, link: Link) -> bool:
        """Return whether the streams of that peer should not be read any more: it has its share of the room."""
        with self._lock:
            line = self._lines.get(line_of(link))
            return line is not None and self._is_full(line)

    def _is_full(self, line: _Line) -> bool:
        return line.weight > INBOX_BYTES // self.count // (len(self._lines) + 1)

    def __len__(self) -> int:
        with self._lock:
            return len(self._events) + sum(len(line.arrivals) for line in self._lines.values())


class Inboxes:
    """The inboxes of all shares: a frame goes to the share of its conversation, an event to all shares.

    The first share alone gets `Outdated`.

    `seconds` and `taker` are those of each inbox.

    Attributes:
        relieved: called when a line that was full has room again.
    """

    def __init__(
        self, seconds: Callable[[], float] = time.monotonic, taker: Callable[[], int] = threading.get_ident
    ) -> None:
        self._seconds, self._taker = seconds, taker
        self.relieved: Callable[[], object] = lambda: None
        self.shares: tuple[Inbox, ...] = (self._new(),)
        self._noise: Counter[object] = Counter()  # frames for nothing of each peer
        self._lock = threading.Lock()

    def _new(self) -> Inbox:
        return Inbox(lambda: self.relieved(), self._seconds, self._taker)

    def divide(self, count: int) -> None:
        """Keep or add inboxes for `count` shares, and divide the waiting frames among them. No frame is lost."""
        with self._lock:
            kept, gone = self.shares[:count], self.shares[count:]
            arrivals = [arrival for inbox in (*kept, *gone) for arrival in inbox.empty()]
            self.shares = (*kept, *(self._new() for _ in range(count - len(kept))))
            for inbox in self.shares:
                inbox.count = count
            for arrival in arrivals:
                self.shares[share_for(arrival, count)].put(arrival)
        self.relieved()

    def put(self, item: NetworkEvent) -> None:
        """Add one, and ring where it is for."""
        with self._lock:
            if isinstance(item, Arrival):
                self.shares[share_for(item, len(self.shares))].put(item)
                return
            for inbox in self.shares[:1] if isinstance(item, Outdated) else self.shares:
                inbox.put(item)

    def wake(self) -> None:
        """Wake all shares, since one may wait until a link accepts more."""
        for inbox in self.shares:
            inbox.wake_event.set()

    def forget_links(self) -> None:
        """Forget lost links in all inboxes."""
        for inbox in self.shares:
            inbox.forget_links()

    def complain(self, link: Link, frames: int) -> None:
        """Count frames of a peer that were for nothing."""
        self._noise[line_of(link)] += frames

    def is_noisy(self, link: Link) -> bool:
        """Return whether a peer brings too much noise, on all of its connections together, to be read now."""
        return self._noise[line_of(link)] > NOISE_FRAMES

    def reset_noise(self) -> bool:
        """Reset the counts of useless frames. Returns whether there were any."""
        was_noise = bool(self._noise)
        self._noise.clear()
        return was_noise

    def waste(self, link: Link, share: float) -> None:
        """A frame of the round that this thread runs has cost more than it was worth."""
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
    """The measured time of the round that runs, by the link that has brought what it went to.

    What a stranger brings may take longer than its number of frames says: messages with many gaps, for instance. So
    time is measured where it depends on what was brought, and told to the link, whose inbox has that peer rest as long.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._of_link: defaultdict[Link, float] = defaultdict(float)
        self._link_of: dict[UUID, Link] = {}

    @property
    def now(self) -> float:
        """The present time, from which the next charge counts."""
        return self._seconds()

    @property
    def are_shared(self) -> bool:
        """Return whether several links have brought something in this round: else nothing is to be divided."""
        return len(self._of_link) > 1

    def begin(self) -> None:
        """Begin another round."""
        self._of_link.clear()
        self._link_of.clear()

    def note_sender(self, handle: UUID, link: Link) -> None:
        """Charge that link for the conversation, in this round."""
        self._link_of[handle] = link

    def charge(self, link: Link, since: float) -> None:
        """Charge a link for the time since then."""
        self._of_link[link] += self._seconds() - since

    def charge_equally(self, links: Sequence[Link], since: float) -> None:
        """Charge each of these links for its part of the time since then."""
        each = (self._seconds() - since) / max(1, len(links))
        for link in links:
            self._of_link[link] += each

    def charge_for(self, handle: UUID, since: float) -> None:
        """Charge the peer that has sent frames of that conversation in this round, if any."""
        if (link := self._link_of.get(handle)) is not None:
            self.charge(link, since)

    def charge_by_weight(self, weights: Mapping[UUID, float], since: float) -> None:
        """Divide the time since then among conversations by their weight, and charge those who brought them."""
        total = sum(weights.values())
        seconds = self._seconds() - since
        if total <= 0 or seconds <= 0:
            return
        for handle, weight in weights.items():
            if (link := self._link_of.get(handle)) is not None:
                self._of_link[link] += seconds * weight / total

    def tell(self) -> None:
        """Tell the links, at the end of the round."""
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


def line_of(link: Link) -> object:
    """Return the key of the line of a link: its owner, or the link itself."""
    return link.owner or link


def _event_key(item: Lost | Reached | Unreached | Answered | Outdated) -> object:
    """Return the subject of an event: the next event of the same subject replaces it, so that none pile up."""
    match item:
        case Lost():
            return item.link
        case Reached() | Unreached():
            return item.address
        case Answered():
            return Answered, item.address
        case Outdated():
            return Outdated
