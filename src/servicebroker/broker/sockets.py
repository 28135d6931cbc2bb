"""The sockets: an event loop in a thread of its own, and the connections that the policy allows.

What happens is put into the inboxes, which the threads of relays empty; a stream whose frames nobody takes is not read
from, so a peer that floods waits at its own side.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.broker import journal
from servicebroker.broker.connections import Counted, Observed
from servicebroker.broker.links import Arrival, Link
from servicebroker.broker.peers import Peers
from servicebroker.broker.policy import OFF, Policy
from servicebroker.broker.refusals import Refusals
from servicebroker.broker.stream import Stream
from servicebroker.broker.tls import Tls
from servicebroker.engine.catalog.network_endpoints import REQUIRED, SUPPORTED
from servicebroker.model.errors import RULES, InstanceError
from servicebroker.model.peers import STANDING, Mistrust, Peer
from servicebroker.protocol.adjacent import Closed, Myself, Online, Phase
from servicebroker.protocol.arbitration import Arbiter
from servicebroker.protocol.division import share_of
from servicebroker.protocol.envelope import conversation_of
from servicebroker.protocol.forwarding import unwrap
from servicebroker.protocol.mirroring import IN_DOUBT, NEVER, Known, Role, Standing
from servicebroker.protocol.routing import Address
from servicebroker.protocol.wire_errors import CorruptedMessage

INBOX = 32 * 1024 * 1024  # bytes that may wait for the relay; a peer whose share is full is not read any more
OVERHEAD = 500  # bytes that a frame counts for beside its body
ACTIVE = 30.0  # seconds for which a peer that has brought something has its share
OVER = float("-inf")  # when it brought something, of a link that is over: who has proved nothing comes with another one
TURN = 0.02  # seconds that the frames of a peer may take of a round, while there are others
PORTION, FEWEST, MOST = 16, 1, 2_000  # frames of a peer in a round: at first, at least, and at most
RECENT = 0.2  # how much the last round says of what a peer has lately done
LIGHT = 0.5  # who has lately had less than this part of what all have on average is not to wait for the others
VAIN = 0.1  # who has brought a larger part for nothing has its turn in any case
WASTE = 2.0  # who has brought more waits as long as its turn took; so much longer when that was for nothing
LINKS = 64  # connections of one owner
CONNECT_TIME = 15.0  # seconds
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0  # seconds after a failed attempt before the next one; each is twice the last
WANTED = 100.0  # seconds for which an address is tried again after it was asked for: dialogs ask every 64 s or so
REMEMBERED = 10_000  # addresses of which it is remembered who answered there, or that they are half of a pair
SILENT = 10.0  # seconds without a sign of the relay's thread: it waits for a commit, and is not the principal
AWAY = 5.0  # seconds in doubt, as while the database is down; then peers have to look for another one
TICK = 0.5  # seconds
NOT_BELIEVED = (9751, 28035)  # why a connection ends whose certificates one side does not take
NOISE = 200  # frames for nothing of one peer that are read in that time
NOT_IN_SERVICE = RULES[28012].text.format("Its PostgreSQL server does not answer, or does not commit.")

_log = logging.getLogger("servicebroker.broker")


class Attempt(NamedTuple):
    """The last one to reach an address has failed: when the next one comes, after which pause, and why."""

    again_at: float
    pause: float
    status: str


class Lost(NamedTuple):
    """A link that was online is over."""

    link: Link
    status: str


class Reached(NamedTuple):
    """There is a link to this address."""

    address: Address


class Unreached(NamedTuple):
    """There is none, and why."""

    address: Address
    status: str


class Answered(NamedTuple):
    """Who is at this address has said what it is."""

    address: Address
    standing: Standing


class Outdated(NamedTuple):
    """A peer has seen a higher timeline of our cluster than ours: another server was promoted."""

    known: Known


Happening = Arrival | Lost | Reached | Unreached | Answered | Outdated


class _Line:
    """What one peer has brought, and how much of it rounds take."""

    def __init__(self) -> None:
        self.arrivals: deque[Arrival] = deque()
        self.size = 0  # bytes of their bodies
        self.active_at = 0.0
        self.portion = PORTION  # frames of a round, while there are other lines
        self.taken = 0  # by the round that runs
        self.wasted = 0.0  # of that
        self.use = 0.0  # seconds of a round that it has lately had
        self.vain = 0.0  # which part of its frames has lately been for nothing
        self.rests_until = 0.0  # 0: it does not rest

    @property
    def weight(self) -> int:
        """Bytes of memory."""
        return self.size + OVERHEAD * len(self.arrivals)


class Inbox:
    """What has happened on the network and waits for the rounds of a share.

    Each owner has a line of its own, who has proved nothing one for each link. While somebody brings little, each gets
    about as much time: who brings more than that waits as long as its portion took. So nobody can delay the others
    much, whatever it brings. Where all bring about as much, nobody gains by that, and rounds take what there is.

    Attributes:
        relieved: called when a line that was full has room again.
    """

    def __init__(self, relieved: Callable[[], object] = lambda: None) -> None:
        self.relieved = relieved
        self.count = 1  # of inboxes that share the room
        self._lock = threading.Lock()
        self._happened: dict[object, Happening] = {}  # of each address and link the last
        self._lines: dict[object, _Line] = {}
        self._is_shared = False  # somebody brings little, and is not to wait for the others
        self._taker = 0  # the thread that has taken last
        self.bell = threading.Event()

    def put(self, item: Happening) -> None:
        """Add one, and ring, unless it has to wait."""
        now = time.monotonic()
        with self._lock:
            if not isinstance(item, Arrival):
                key = _about(item)
                self._happened.pop(key, None)
                self._happened[key] = item
                if isinstance(item, Lost) and item.link in self._lines:
                    self._lines[item.link].active_at = OVER
                self.bell.set()
                return
            line = self._lines.setdefault(line_of(item.link), _Line())
            line.arrivals.append(item)
            line.size += len(item.body)
            line.active_at = now
            if line.rests_until <= now:
                self.bell.set()

    def take(self, most: int) -> list[Happening]:
        """At most so many: what has happened first, then what was brought, of each line one in turns."""
        now, self._taker = time.monotonic(), threading.get_ident()
        with self._lock:
            full = [line for line in self._lines.values() if self._is_full(line)]
            taken = [self._happened.pop(key) for key in list(self._happened)[:most]]
            self._lines = {
                key: line for key, line in self._lines.items() if line.arrivals or line.active_at + ACTIVE > now
            }
            self._is_shared = self._has_light_one()
            for line in self._lines.values():
                line.taken, line.wasted = 0, 0.0
            turns = [line for line in self._lines.values() if line.arrivals and line.rests_until <= now]
            for line in turns:
                line.rests_until = 0.0
            while turns and len(taken) < most:
                for line in turns[: most - len(taken)]:
                    arrival = line.arrivals.popleft()
                    line.size -= len(arrival.body)
                    line.taken += 1
                    taken.append(arrival)
                turns = [
                    line
                    for line in turns
                    if line.arrivals and not (line.taken >= line.portion and self._has_turns(line))
                ]
            is_relieved = any(not self._is_full(line) for line in full)
        if is_relieved:
            self.relieved()
        return taken

    def empty(self) -> list[Arrival]:
        """All that was brought, to be put elsewhere."""
        with self._lock:
            brought = [arrival for line in self._lines.values() for arrival in line.arrivals]
            for line in self._lines.values():
                line.arrivals.clear()
                line.size = 0
        return brought

    def forget_links(self) -> None:
        """Nobody remembers what was under way on links: that some of them are over is no news."""
        with self._lock:
            self._happened = {key: one for key, one in self._happened.items() if not isinstance(one, Lost)}

    def took(self, seconds: float) -> None:
        """So long has it taken to deal with what was taken."""
        now = time.monotonic()
        with self._lock:
            served = [line for line in self._lines.values() if line.taken]
            each = max(seconds, 1e-6) / max(1, sum(line.taken for line in served))
            for line in self._lines.values():
                line.use += RECENT * (each * line.taken - line.use)
            for line in served:
                line.portion = min(max(int(TURN / each), FEWEST), MOST)
                line.vain += RECENT * (line.wasted / line.taken - line.vain)
                if line.arrivals and self._has_turns(line):
                    line.rests_until = now + each * (line.taken + WASTE * line.wasted)

    def _has_light_one(self) -> bool:
        """Whether some line has had much less than the others, or nobody knows yet."""
        uses = [line.use for line in self._lines.values()]
        return len(uses) > 1 and min(uses) <= LIGHT * sum(uses) / len(uses)

    def _has_turns(self, line: _Line) -> bool:
        """Whether a round takes no more than its portion of that line, and lets it rest then."""
        return self._is_shared or (len(self._lines) > 1 and line.vain > VAIN)

    def waste(self, link: Link, share: float) -> None:
        """A frame of this thread's round has cost more than it was worth."""
        with self._lock:
            if self._taker == threading.get_ident() and (line := self._lines.get(line_of(link))) is not None:
                line.wasted += share

    @property
    def wake_at(self) -> float:
        """When somebody who rests may bring more; whose turn it is anyway has rung, and waits for the next round."""
        with self._lock:
            rests = [line.rests_until for line in self._lines.values() if line.arrivals and line.rests_until]
        return min(rests, default=NEVER)

    @property
    def size(self) -> int:
        """Bytes of the bodies in it."""
        with self._lock:
            return sum(line.size for line in self._lines.values())

    def is_full(self, link: Link) -> bool:
        """Whether the streams of that peer should not be read any more: it has its share of the room."""
        with self._lock:
            line = self._lines.get(line_of(link))
            return line is not None and self._is_full(line)

    def _is_full(self, line: _Line) -> bool:
        return line.weight > INBOX // self.count // (len(self._lines) + 1)

    def __len__(self) -> int:
        with self._lock:
            return len(self._happened) + sum(len(line.arrivals) for line in self._lines.values())


class Inboxes:
    """One for each share: what was brought is for the share of its conversation, what has happened is for all.

    Attributes:
        relieved: called when a line that was full has room again.
    """

    def __init__(self) -> None:
        self.relieved: Callable[[], object] = lambda: None
        self.shares: tuple[Inbox, ...] = (self._new(),)
        self._lock = threading.Lock()

    def _new(self) -> Inbox:
        return Inbox(lambda: self.relieved())

    def divide(self, count: int) -> None:
        """Among so many shares; the first one keeps its inbox, and nothing is lost."""
        with self._lock:
            kept, gone = self.shares[:count], self.shares[count:]
            brought = [arrival for inbox in (*kept, *gone) for arrival in inbox.empty()]
            self.shares = (*kept, *(self._new() for _ in range(count - len(kept))))
            for inbox in self.shares:
                inbox.count = count
            for arrival in brought:
                self.shares[share_for(arrival, count)].put(arrival)
        self.relieved()

    def put(self, item: Happening) -> None:
        """Add one, and ring where it is for."""
        with self._lock:
            if isinstance(item, Arrival):
                self.shares[share_for(item, len(self.shares))].put(item)
                return
            for inbox in self.shares[:1] if isinstance(item, Outdated) else self.shares:
                inbox.put(item)

    def ring(self) -> None:
        """A link takes more: whoever waits for that."""
        for inbox in self.shares:
            inbox.bell.set()

    def forget_links(self) -> None:
        """Nobody remembers what was under way on links."""
        for inbox in self.shares:
            inbox.forget_links()

    def waste(self, link: Link, share: float) -> None:
        """A frame of the round that this thread runs has cost more than it was worth."""
        for inbox in self.shares:
            inbox.waste(link, share)

    def is_full(self, link: Link) -> bool:
        """Whether the streams of that peer should not be read any more: it has its share of the room of one."""
        return any(inbox.is_full(link) for inbox in self.shares)

    @property
    def size(self) -> int:
        """Bytes of the bodies in them."""
        return sum(inbox.size for inbox in self.shares)

    def __len__(self) -> int:
        return sum(len(inbox) for inbox in self.shares)


def share_for(arrival: Arrival, count: int) -> int:
    """The number of its share, of so many; what cannot be read is the first one's, which tells of it."""
    if count == 1:
        return 0
    try:
        body = unwrap(arrival.body)[1] if arrival.is_forwarded else arrival.body
        return share_of(conversation_of(body), count)
    except CorruptedMessage:
        return 0


def line_of(link: Link) -> object:
    """Whose line it is in."""
    return link.owner or link


def _about(item: Lost | Reached | Unreached | Answered | Outdated) -> object:
    """What a happening is of: the next one of the same takes its place, so that peers cannot pile them up."""
    match item:
        case Lost():
            return item.link
        case Reached() | Unreached():
            return item.address
        case Answered():
            return Answered, item.address
        case Outdated():
            return Outdated


class Backlog(NamedTuple):
    """Bytes and fragments: come and in no round yet, ready to be sent, given to sockets that have not taken them."""

    received_bytes: int
    received: int
    ready_bytes: int
    ready: int
    unsent_bytes: int
    unsent: int


_NONE = Attempt(0.0, 0.0, "")


class Network:
    """The connections of one instance: those it opens, and those it accepts where it listens, as its policy says."""

    def __init__(
        self,
        seat: UUID,
        incarnation: UUID,
        inbox: Inboxes,
        clock: Callable[[], datetime],
        instance: UUID | None = None,
    ) -> None:
        self.inbox = inbox
        self.clock = clock
        self.policy = OFF
        self.me = Myself(seat, incarnation, instance=instance)
        self.peers = Peers(instance)
        self.arbiter: Arbiter[Stream] = Arbiter(seat)
        self.streams: set[Stream] = set()
        self._lock = threading.Lock()
        self._peers: dict[Address, Peer] = {}  # who answered there, while its link is online
        self._attempts: dict[Address, Attempt] = {}
        self._asked: dict[Address, float] = {}  # when the relay last wanted to reach what it could not
        self._last: dict[Address, Peer] = {}  # who answered there last
        self._connecting: set[Address] = set()
        self._wanted: set[Address] = set()  # asked for while nothing could leave
        self._plain: set[Address] = set()  # where a peer takes no TLS
        self._turns: dict[Address, int] = {}  # where a peer has not believed the first of our certificates
        self._questions: dict[Address, Known] = {}  # halves of mirrored pairs: to be asked whenever they are reached
        self._standing, self._seen_at = IN_DOUBT, 0.0
        self._away_at = NEVER  # nobody could be served from then on
        self._told = IN_DOUBT  # to those who have asked
        self._evident: tuple[Standing, Tls | None, Standing] = (IN_DOUBT, None, IN_DOUBT)
        self.was_asked = False  # whether we are the principal, by anybody
        self._refused: dict[int, Counted] = {}
        self.refusals = Refusals()
        self._noise: Counter[object] = Counter()  # frames for nothing of each peer, since the last tick
        self._listening: tuple[str, int | None] = "", None
        self._loop = asyncio.new_event_loop()
        inbox.relieved = self._resume_soon
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="servicebroker network", daemon=True)
        self._thread.start()
        self._loop.call_soon_threadsafe(self._tick)

    # ---------------------------------------------------------------- for the relay's thread

    def obey(self, policy: Policy) -> int | None:
        """Do as the policy says; connections made under another one are closed. Returns the port it listens on.

        Raises:
            InstanceError: the address cannot be had; the rest of the policy holds, and `obey` may be tried again.
        """
        return asyncio.run_coroutine_threadsafe(self._obey(policy), self._loop).result()

    @property
    def unreachable(self) -> frozenset[Address]:
        """Where the last attempts to connect have failed."""
        with self._lock:
            return frozenset(self._attempts)

    def observe(self) -> list[Observed]:
        """The connections, as sys.dm_broker_connections shows them."""
        return [stream.observed() for stream in list(self.streams)]

    def backlog(self) -> Backlog:
        """What waits between sockets and rounds."""
        sums = [sum(column) for column in zip(*(stream.backlog() for stream in list(self.streams)), strict=True)]
        return Backlog(self.inbox.size, len(self.inbox), *(sums or [0, 0, 0, 0]))

    def take_refused(self) -> dict[int, Counted]:
        """Which peers were refused since the last time, by the number of the reason."""
        with self._lock:
            taken, self._refused = self._refused, {}
        return taken

    def reach(self, address: Address) -> Link | str:
        """The link to an address, or why there is none: then it is being opened."""
        with self._lock:
            peer = self._peers.get(address)
            link = None if peer is None else self.arbiter.find(peer)
            if link is not None:
                return link
            if self.policy.silence:
                self._wanted.add(address)
                return _text(self.policy.silence, "Service Broker")
            now = time.monotonic()
            self._asked[address] = now
            attempt = self._attempts.get(address, _NONE)
            if now >= attempt.again_at:
                self._begin_connecting(address)
            return attempt.status

    def ask(self, address: Address, known: Known) -> None:
        """Ask whoever is at that address whether it is the principal: an `Answered` or `Unreached` comes of it."""
        with self._lock:
            self._questions.pop(address, None)
            self._questions[address] = known
            if len(self._questions) > REMEMBERED:
                del self._questions[next(iter(self._questions))]
        link = self.reach(address)
        if isinstance(link, Stream):
            self._loop.call_soon_threadsafe(link.ask, known)
        elif link:
            self.inbox.put(Unreached(address, str(link)))

    def is_noisy(self, stream: Stream) -> bool:
        """Whether the peer brings nothing but noise, on all of its connections together: it is not read for a while."""
        return self._noise[line_of(stream)] > NOISE

    def complain(self, stream: Stream, frames: int) -> None:
        """So many frames of a peer were for nothing."""
        self._noise[line_of(stream)] += frames

    def stand(self, standing: Standing) -> None:
        """What we are; said again at least every `SILENT` seconds, or it is not believed."""
        self._standing, self._seen_at = standing, time.monotonic()
        in_doubt = standing.role is Role.IN_DOUBT
        self._away_at = min(self._away_at, self._seen_at + AWAY) if in_doubt else NEVER
        if standing != self._told:
            self._loop.call_soon_threadsafe(self._tell)

    @property
    def standing(self) -> Standing:
        """What we are now."""
        is_silent = self._standing.role is Role.PRINCIPAL and time.monotonic() > self._seen_at + SILENT
        return IN_DOUBT if is_silent else self._standing

    @property
    def is_away(self) -> bool:
        """Whether messages that came in would wait for nobody knows how long: there are no connections meanwhile.

        A peer that kept one would send on it, also when the name that it connects to leads elsewhere by now.
        """
        return time.monotonic() > self._away_at

    def close(self) -> None:
        """Tell every peer, and stop."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ---------------------------------------------------------------- in the loop

    async def _obey(self, policy: Policy) -> int | None:
        before, self.policy = self.policy, policy
        self.peers.obey(policy)
        if policy._replace(forwards=before.forwards, forward_size=before.forward_size) != before:
            self._plain.clear()
            self._turns.clear()
            self._end_all(
                policy.silence, _text(policy.silence, "Service Broker") if policy.silence else "The transport restarts."
            )
        if self._listening != (policy.host, policy.port) and self._server is not None:
            self._server.close()
            self._server, self._listening = None, ("", None)
        if not policy.silence and policy != before:
            with self._lock:
                self._attempts.clear()
                wanted, self._wanted = self._wanted, set()
            for address in wanted:
                self.reach(address)
        if self._server is None and policy.port is not None:
            self._server = await self._listen(policy.host, policy.port)
            self._listening = policy.host, policy.port
        return self._server.sockets[0].getsockname()[1] if self._server else None

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        try:
            return await self._loop.create_server(lambda: Stream(self, None), host or None, port)
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                raise InstanceError(_text(9692, port)) from None
            raise InstanceError(_text(9693, problem.strerror or problem)) from None

    def _begin_connecting(self, address: Address) -> None:
        """The caller has the lock."""
        if address not in self._connecting and not self.is_away:
            self._connecting.add(address)
            asyncio.run_coroutine_threadsafe(self._connect(address), self._loop)

    def _try_again(self) -> None:
        """Connect to those that are wanted and were not reached: whoever waits need not ask first."""
        now = time.monotonic()
        with self._lock:
            self._asked = {address: at for address, at in self._asked.items() if at + WANTED > now}
            self._attempts = {address: one for address, one in self._attempts.items() if address in self._asked}
            for address in () if self.policy.silence else self._asked:
                if now >= self._attempts.get(address, _NONE).again_at:
                    self._begin_connecting(address)

    async def _connect(self, address: Address) -> None:
        journal.connection("Connecting", str(address))
        try:
            await asyncio.wait_for(
                self._loop.create_connection(lambda: Stream(self, address), address.host, address.port), CONNECT_TIME
            )
        except (OSError, TimeoutError) as problem:
            self.failed(address, f"{RULES[9753].text} {address}: {_why(problem)}.")

    def is_secured(self, address: Address) -> bool:
        """Whether a connection to that address begins with TLS."""
        policy = self.policy
        if policy.encryption == SUPPORTED:
            return policy.tls is not None and address not in self._plain
        return policy.encryption == REQUIRED

    def takes_no_tls(self, address: Address) -> None:
        """A peer has answered that it takes no TLS; where it is only supported, the next attempt does without."""
        if self.policy.encryption == SUPPORTED:
            self._plain.add(address)

    def turn(self, address: Address) -> int:
        """Which of our certificates is shown there, when there are two: the other one after each refusal."""
        return self._turns.get(address, 0)

    def refuse(self, number: int, peer: str) -> None:
        """Count a peer that was not let in."""
        with self._lock:
            before = self._refused.get(number)
            self._refused[number] = Counted((before.times if before else 0) + 1, peer)

    def failed(self, address: Address, status: str) -> None:
        """No link to this address: the next attempt comes later."""
        journal.connection("Connect Failed", str(address), status)
        with self._lock:
            self._connecting.discard(address)
            before = self._attempts.get(address, _NONE)
            pause = min(before.pause * 2, LAST_PAUSE) or FIRST_PAUSE
            self._attempts[address] = Attempt(time.monotonic() + pause, pause, status)
        self.inbox.put(Unreached(address, status))

    def doubt(self, stream: Stream) -> str | None:
        """A peer has greeted: why it is not believed to be who it says. Who answers us is remembered."""
        why = self.peers.doubt(stream.address, stream.proved, stream.instance)
        if stream.address is None:
            return why or self._is_crowded(stream)
        for other in [one for one in self.streams if one.phase is Phase.ONLINE and one.instance == stream.instance]:
            claimed = self.peers.objection(other.owner, other.instance)  # somebody else claims it as well now
            if claimed is not None and other is not stream:
                other.refuse(claimed)
        return why

    def _is_crowded(self, stream: Stream) -> str | None:
        """Why one more connection is too many: they would use up the sockets of this process."""
        many = sum(one.phase is Phase.ONLINE and one.owner == stream.owner for one in self.streams)
        return f"its owner has {many} connections" if stream.owner and many >= LINKS else None

    def online(self, stream: Stream, event: Online) -> None:
        """A connection may carry messages, unless another one with the same peer does."""
        peer = Peer(stream.owner, event.seat)
        with self._lock:
            loser = self.arbiter.online(
                stream, event, is_opener=stream.address is not None, moment=stream.moment, owner=peer.owner
            )
            if stream.address is not None:
                self._connecting.discard(stream.address)
                self._attempts.pop(stream.address, None)
                self._asked.pop(stream.address, None)
                self._peers[stream.address] = peer
                self._last.pop(stream.address, None)
                self._last[stream.address] = peer
                if len(self._last) > REMEMBERED:
                    del self._last[next(iter(self._last))]
            else:
                self._peer_is_back(peer)
        if loser is not None:
            loser.shut(28033, RULES[28033].text)
        if stream.address is not None:
            self.inbox.put(Reached(stream.address))
        self._loop.call_soon(self._ask_again, peer)

    def _ask_again(self, peer: Peer) -> None:
        """A half of a mirrored pair is reached."""
        with self._lock:
            link = self.arbiter.find(peer)
            known = next((self._questions[address] for address in self._halves(peer)), None)
        if link is not None and known is not None:
            link.ask(known)

    def _halves(self, peer: Peer) -> list[Address]:
        """The addresses of mirrored pairs at which this peer answers. The caller has the lock."""
        return [address for address, one in self._peers.items() if one == peer and address in self._questions]

    def told(self, stream: Stream, standing: Standing) -> None:
        """A peer has said whether it is the principal."""
        assert stream.peer is not None
        with self._lock:
            halves = self._halves(stream.peer)
        for address in halves:
            self.inbox.put(Answered(address, standing))
        if not halves and self.peers.proves:
            self.peers.mistrust(Mistrust(stream.owner, STANDING), f"{standing.role.name} of {standing.system}")

    def asked(self, stream: Stream, known: Known) -> None:
        """A peer wants to know whether we are the principal, and has seen this timeline of a cluster.

        Where peers can prove something, a higher timeline than ours is that only with the signature of our other half.
        """
        self.was_asked = True
        mine, tls = self._standing, self.policy.tls
        if mine.role is not Role.PRINCIPAL or known.system != mine.system or known.timeline <= mine.timeline:
            return
        if self.peers.proves and tls is not None and not tls.is_ours(known):
            self.peers.mistrust(Mistrust(stream.owner, STANDING), f"timeline {known.timeline} of {known.system}")
        else:
            self.inbox.put(Outdated(known))

    def evident(self, standing: Standing) -> Standing:
        """The same, with the evidence that it is true, for those who are told."""
        tls = self.policy.tls if self.peers.proves else None
        if self._evident[:2] != (standing, tls):
            self._evident = standing, tls, standing if tls is None else tls.signed(standing)
        return self._evident[2]

    def _tell(self) -> None:
        self._told = self.standing
        for stream in list(self.streams):
            stream.tell(self._told)

    def _peer_is_back(self, peer: Peer) -> None:
        """It has connected to us: where it was not reached lately it may be now. The caller has the lock."""
        for address in self._asked:
            if self._last.get(address) == peer:
                self._begin_connecting(address)

    def over(self, stream: Stream, closed: Closed, *, was_online: bool) -> None:
        """A connection has ended."""
        self.streams.discard(stream)
        with self._lock:
            self.arbiter.gone(stream)
            peer = stream.peer
            lost: list[Address] = []
            if peer is not None and self.arbiter.find(peer) is None:
                lost = self._halves(peer)
                self._peers = {address: one for address, one in self._peers.items() if one != peer}
        if was_online:
            if closed.number == 28012 and stream.address is not None:  # a mirror takes no messages
                lost.append(stream.address)
            for address in set(lost) if closed.number else ():
                self.failed(address, closed.text)
            self.inbox.put(Lost(stream, closed.text if closed.number else ""))
        elif stream.address is not None:
            if closed.number in NOT_BELIEVED and self.policy.tls is not None and self.policy.tls.ways > 1:
                self._turns[stream.address] = self.turn(stream.address) + 1
            self.failed(stream.address, closed.text)

    def _tick(self) -> None:
        self._loop.call_later(TICK, self._tick)  # first: whatever a peer brings about, there is a next one
        if self._noise:
            self._noise.clear()
            self._resume()
        if self.is_away:
            self._end_all(28012, NOT_IN_SERVICE)
        for stream in list(self.streams):
            stream.tick()
        self._try_again()
        if self.standing != self._told:
            self._tell()

    def _resume_soon(self) -> None:
        """The inbox has room again: after what the loop is at, which may be to pause a stream."""
        self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        for stream in list(self.streams):  # what was not read yet may end some of them
            stream.resume()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._end_all(0, "The broker is shut down.")
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the sockets are closed

    def _end_all(self, number: int, text: str) -> None:
        for stream in list(self.streams):
            stream.shut(number, text)


def _why(problem: OSError | TimeoutError) -> str:
    """Why a connection could not be made; asyncio repeats the address where the system says what is wrong."""
    if problem.errno and problem.errno > 0:
        return os.strerror(problem.errno)
    return problem.strerror or str(problem) or "no answer"


def _text(number: int, *values: object) -> str:
    return RULES[number].text.format(*values)
